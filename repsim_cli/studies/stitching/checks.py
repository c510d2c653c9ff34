"""What stitching refuses before any weight loads: models, pairs, layers and recipes that do not fit together."""

from collections.abc import Mapping
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.models.source import AnySource, Source
from repsim_cli.studies.stitching.held_out import Held, count_held_out
from repsim_cli.studies.stitching.models import check_stitchable
from repsim_cli.studies.stitching.train import StitchRecipe


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
