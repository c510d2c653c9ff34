"""Parts of models: objects of a model's class of which some modules alone hold weights."""

from collections.abc import Callable
from typing import Any

from repsim_cli.models.points import Architecture
from repsim_cli.models.source import Source

Kept = Callable[[str], bool]
"""Whether the weights of the module of this name, itself and not its children, are there."""
# types whose blocks cannot be run one by one, and why
TOGETHER = {
    "falcon_h1": "the model sets up all of its blocks together",
    "rwkv": "the model rescales all of its blocks when it runs",
    "xlstm": "its blocks return more than tensors",
    **dict.fromkeys(("zamba", "zamba2"), "its blocks share their attention"),
}


def make_partial_class(kind: Any, kept: Kept) -> Any:
    """The class of a transformers model, whose other modules are empty: `from_pretrained` then reads the tensors of the
    kept modules alone, with all that it does to names, dtypes and buffers. What they share with another module is in
    both, since a checkpoint has it under one of its names."""

    def init(self: Any, *args: Any, **settings: Any) -> None:
        kind.__init__(self, *args, **settings)
        pairs = self.all_tied_weights_keys.items()
        shared = {key for pair in pairs if any(kept(key.rpartition(".")[0]) for key in pair) for key in pair}
        for name, module in self.named_modules():
            if not kept(name):
                for key in [key for key in module._parameters if f"{name}.{key}" not in shared]:
                    del module._parameters[key]
                module._buffers.clear()
                module._non_persistent_buffers_set.clear()
                module._is_hf_initialized = True  # nothing in it is to be filled
        there = self.state_dict().keys()
        tied = self.all_tied_weights_keys
        self.all_tied_weights_keys = {name: other for name, other in tied.items() if {name, other} <= there}

    return type(kind.__name__, (kind,), {"__init__": init, "__module__": kind.__module__})


def is_inside(name: str, module: str) -> bool:
    """Tells whether the module of this name is `module` or one of its descendants.

    >>> is_inside("layers.1.mlp", "layers.1"), is_inside("layers.10", "layers.1")
    (True, False)
    """
    return name == module or name.startswith(f"{module}.")


def list_stacks(source: Source) -> list[Architecture]:
    """The stacks of blocks, in the order in which they run."""
    assert source.architecture is not None
    return list(source.architecture.stacks.values()) or [source.architecture]


def list_block_names(source: Source) -> list[str]:
    """The names of all blocks, in the order in which they run."""
    return [f"{stack.blocks}.{layer}" for stack in list_stacks(source) for layer in range(stack.depth)]


def explain_block_refusal(source: Source) -> str | None:
    """Says why a model cannot be run by block; None: it can."""
    table = source.architecture
    if table is None or not (table.depth or table.stacks):
        return f"no list of blocks is known in {source.model_type}"
    if table.guessed:
        return f"the blocks of {source.model_type} were found by structure"
    if table.shared is not None:
        return f"the blocks of {source.model_type} share their weights"
    if source.modality not in ("text", "images"):
        return f"it reads {source.modality}"
    if source.model_type in TOGETHER:
        return TOGETHER[source.model_type]
    return None if source.parts else "its weights are not those of unquantized safetensors"
