"""`repsim describe model MODEL`: what a model consists of, and which hook points it has. No weights are loaded."""

import re
import textwrap
from collections.abc import Iterator
from typing import Any

from repsim_cli.activations.hook_points import (
    BY_HEAD,
    CONTAINERS,
    IN_BLOCK,
    OF_CONVOLUTIONS,
    OUTSIDE,
    HookPoint,
    count_stack_blocks,
)
from repsim_cli.base.errors import BadInput
from repsim_cli.base.planning import collect_unfit
from repsim_cli.base.registry import models
from repsim_cli.config.binding import bind_model
from repsim_cli.config.presets import find_model_entry, read_table_entries
from repsim_cli.data.images import Patches
from repsim_cli.models.architectures import REFUSED
from repsim_cli.models.points import ABSENT, Architecture
from repsim_cli.models.shapes import Vocabulary
from repsim_cli.models.source import Family, Precomputed, Series, Source

WIDTH = 100
GLOBS = 60  # the most modules that are listed
# why a type lacks a kind that its table does not name
NEVER = {
    **ABSENT,
    "attn_scores": "what precedes the softmax is read under kind: transformer_lens",
    "final_norm": "no norm follows the blocks",
}


def describe_anatomy(name: str) -> str:
    """A model as text for a terminal, of a published one by the shape that ships with the package.

    Raises BadInput where there is none, or only stored activations.
    """
    with collect_unfit(dry=True):
        return _show(name, open_model(name))


def _show(name: str, source: Source) -> str:
    lines = [name, *_fill(dict(list_model_facts(source)))]
    table = source.architecture
    if table is None:
        why = f" ({REFUSED[source.model_type]})" if source.model_type in REFUSED else ""
        none = f"no blocks are known in {source.model_type}{why}; module:NAME reads any module"
        lines += _fill({"hook points": none})
    else:
        for stack, of_stack in (table.stacks or {None: table}).items():
            lines += _describe_hook_points(source, stack, of_stack)
    return "\n".join([*lines, *_fill({"modules (module:NAME)": ", ".join(list_module_globs(source))})])


def _describe_hook_points(source: Source, stack: str | None, table: Architecture) -> Iterator[str]:
    has, lacks = list_hook_points(source, stack, table)
    of = "" if stack is None else f" of the {stack}"
    yield from _fill({f"hook points{of}": ", ".join(has)})
    if by_head := [kind for kind in BY_HEAD if kind not in lacks]:
        example = f"{by_head[0]}@0.h0"
        yield from _fill({f"by head{of}": f"{', '.join(by_head)}, as {example} or {by_head[0]}.h*"})
    if lacks:
        yield f"  lacking{of}:"
        yield from (f"    {kind}: {why}" for kind, why in lacks.items())


def open_model(name: str) -> Source:
    """The model of a path, an entry of `repsim list model` (of several models the last), or a hub id."""
    entry = find_model_entry(name)
    model = (
        bind_model(name, entry)
        if name in read_table_entries("model")
        else models.get(entry.pop("kind")).function(**entry)
    )
    if isinstance(model, Family):
        model = list(model.sources.values())[-1]
    if isinstance(model, Series):
        model = model.checkpoints[-1].open()
    if isinstance(model, Precomputed):
        raise BadInput(f"MODEL: stored activations have no hook points, got '{name}'; name a model")
    return model


def list_model_facts(source: Source) -> Iterator[tuple[str, str]]:
    """Lists what is known of a model without its weights, as a word and what stands behind it, its type first."""
    table = source.architecture
    guessed = "; no table: its stream is found by structure, and checked when it is first run"
    yield (
        "type",
        f"{source.model_type}, reads {source.modality}{guessed if table is not None and table.guessed else ''}",
    )
    yield "blocks", f"{_say_depth(source)} of width {source.width}{_name_block_lists(table)}"
    if source.heads:
        shared = f", {source.kv_heads} for keys and values" if source.kv_heads != source.heads else ""
        rotated = f", {source.rotary} of them rotated" if source.rotary else ""
        yield "heads", f"{source.heads} of {source.head_width} features{rotated}{shared}"
    yield "parameters", f"{source.parameters:,} of the backbone"
    yield "context", "no limit" if source.context is None else f"{source.context:,} places"
    yield "input", _describe_input(source)
    if source.labels:
        yield "labels", ", ".join(source.labels)


def _say_depth(source: Source) -> str:
    stacks = source.architecture.stacks if source.architecture is not None else {}
    counts = (f"{count_stack_blocks(HookPoint('resid_post', stack=stack), source)} of the {stack}" for stack in stacks)
    return ", ".join(counts) or str(source.layers)


def _name_block_lists(table: Architecture | None) -> str:
    if table is None:
        return ""
    lists = [stack.blocks for stack in table.stacks.values()] or [table.blocks]
    return f", in {', '.join(lists)}"


def _describe_input(source: Source) -> str:
    """The tokenizer, or the size of images; the reason where there is none."""
    try:
        given: Any = source.tokenizer()
    except BadInput as error:
        return f"not usable: {error}"
    if isinstance(given, Vocabulary):
        return f"the tokenizer of {given.name}"
    if isinstance(given, Patches):
        size = "any size" if given.size is None else f"{given.size[0]} x {given.size[1]}"
        return f"images of {size}, {given.channels} channels, {given.places} places"
    if not hasattr(given, "is_fast"):
        return "numbers"
    offsets = "words and spans" if given.is_fast else "no words: it gives no character offsets"
    chat = ", a chat template" if getattr(given, "chat_template", None) else ""
    return f"{type(given).__name__} of {len(given):,} tokens ({offsets}{chat}); {source.vocabulary:,} embeddings"


def list_hook_points(source: Source, stack: str | None, table: Architecture) -> tuple[list[str], dict[str, str]]:
    """The kinds that a stack of blocks has, with the blocks where they are not all, and why it lacks the others."""
    depth = count_stack_blocks(HookPoint("resid_post", stack=stack), source)
    prefix = "" if stack is None else f"{stack}."
    has: list[str] = []
    lacks: dict[str, str] = {}
    convolutional = any(kind in table.block for kind in OF_CONVOLUTIONS)
    for kind in OF_CONVOLUTIONS if convolutional else ("embed", *IN_BLOCK, "final_norm"):
        blocks = [None] if kind in OUTSIDE else list(range(depth))
        there = [block for block in blocks if table.find(kind, block)]
        if not there:
            lacks[kind] = table.say_why_missing(kind, blocks[0]) or (
                "no table of the type" if table.guessed else NEVER.get(kind, "the type has none")
            )
        else:
            some = f" (blocks {', '.join(map(str, there))})" if len(there) < len(blocks) else ""
            has.append(f"{prefix}{kind}{some}")
    return has, lacks


def list_module_globs(source: Source) -> list[str]:
    """The modules as globs, in the model's order."""
    modules = source.skeleton_modules.items()
    running = (path for path, module in modules if path and not isinstance(module, CONTAINERS))
    globs = list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path) for path in running))
    return [*globs[:GLOBS], *([f"and {len(globs) - GLOBS} more"] if len(globs) > GLOBS else [])]


def _fill(facts: dict[str, str]) -> list[str]:
    return [
        textwrap.fill(
            f"{name}: {text}", WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False,
            break_on_hyphens=False,
        )
        for name, text in facts.items()
    ]  # fmt: skip
