"""What stitching refuses before any weight loads: models, pairs, layers and recipes that do not fit together."""

from collections.abc import Mapping
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.models.points import take_hidden_states
from repsim_cli.models.source import AnySource, Source
from repsim_cli.models.transformers import list_types_with_head
from repsim_cli.studies.stitching.held_out import Held, count_held_out
from repsim_cli.studies.stitching.models import Auto
from repsim_cli.studies.stitching.train import StitchRecipe


def check_stitchable(label: str, source: AnySource, auto: Auto) -> None:
    """Raises BadInput for a model that cannot be cut between its blocks, or that has no such head."""
    if not isinstance(source, Source) or not source.has_head:
        raise BadInput(f"model.{label}: it cannot be run past its activations, got no model with a head; use another")
    native = source.model_type.startswith("native ") and auto == "AutoModelForCausalLM"
    why = (
        say_why_uncuttable(source)
        if native or source.model_type in list_types_with_head(auto)
        else "it has no such head"
    )
    if why:
        raise BadInput(
            f"model.{label}: its blocks cannot be stitched under {auto}, got model_type '{source.model_type}' ({why}); "
            "use another model"
        )


def say_why_uncuttable(source: Source) -> str:
    """Says why the model cannot be cut between its blocks; empty where it can."""
    table = source.architecture
    if table is None:
        return "no blocks are known in it"
    if table.stacks:
        return "it has an encoder and a decoder"
    if table.shared:
        return "its layers share the weights of a block"
    stream = table.block.get("resid_post")
    if stream is None:
        return table.lacks.get("resid_post", "no stream is known in it")
    return "" if stream.pick is take_hidden_states else "its blocks pass on more than the stream"


def check_all_stitchable(given: Mapping[str, AnySource], auto: Any) -> dict[str, Source]:
    """The models, all of which can be cut between blocks and have the head `auto`."""
    if not given:
        raise BadInput("model: no model is selected; e.g. model=[tiny_a,tiny_b]")
    models = {}
    for label, source in given.items():
        check_stitchable(label, source, auto)
        assert isinstance(source, Source)
        models[label] = source
    return models


def check_recipe(recipe: StitchRecipe, evaluation: Held, extract: Extract, hardware: Hardware) -> None:
    """Raises BadInput where nothing is left to train on or to evaluate, or gradients underflow."""
    sequences = extract.sequences
    held = count_held_out(evaluation, sequences, recipe.fitted)
    if recipe.fitted and not 0 < held < sequences:
        raise BadInput(
            f"options.evaluation: no sequences are left to train on, got {held} of {sequences}; raise extract.sequences"
            " or lower options.evaluation"
        )
    if hardware.dtype == "float16" and recipe.trained:
        raise BadInput("hardware.dtype: gradients underflow, got float16; use bfloat16 or float32")


def check_groups(models: Mapping[str, Source], given: Mapping[str, Any]) -> None:
    """Raises BadInput where models of groups differ in depth, or with options that they do not have."""
    for name, value in given.items():
        if value:
            raise BadInput(
                f"options.{name}: all pairs of models of groups are stitched, at equal layers, got {value}; drop "
                "it, or set groups=null"
            )
    depths = {source.layers: label for label, source in models.items()}
    if len(depths) > 1:
        (depth, a), (other, b), *_ = depths.items()
        raise BadInput(
            f"groups: models of equal depth are needed, got {depth} ('{a}') and {other} ('{b}'); leave one of them out"
        )
