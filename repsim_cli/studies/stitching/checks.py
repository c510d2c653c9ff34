"""What stitching refuses before any weight loads: models, pairs, layers and recipes that do not fit together."""

from collections.abc import Mapping
from typing import Any

from repsim_cli.activations.hook_points import choose_hook_points
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.models.source import AnySource, Source
from repsim_cli.studies.stitching.evaluate import Held, count_held_out
from repsim_cli.studies.stitching.models import EMBED, Layer, check_stitchable
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


def list_different_pairs(models: Mapping[str, Source]) -> list[tuple[str, str]]:
    """Lists all pairs of a head and another model as the tail."""
    return [(head, tail) for tail in models for head in models if head != tail]


def list_stitched_pairs(models: Mapping[str, Source], given: list[list[str]] | None) -> list[tuple[str, str]]:
    """Lists the pairs (head, tail): those that are given, else all, with each model before itself too."""
    if given is None:
        return [(head, tail) for tail in models for head in models]
    for pair in given:
        if len(pair) != 2:
            raise BadInput(f"options.pairs: not a head and a tail, got {pair}; write [[HEAD, TAIL], ...]")
        for label in pair:
            if label not in models:
                raise BadInput(f"options.pairs: no such model, got '{label}'; {did_you_mean(label, models)}")
    return [(head, tail) for head, tail in given]


def list_cut_layers(label: str, source: Source, extract: Extract) -> list[Layer]:
    """Lists the layers after which the model is cut. Raises BadInput for hook points that are not between blocks."""
    points = choose_hook_points(label, source, extract)
    for point in points:
        if point.kind not in ("embed", "resid_post") or point.head is not None:
            raise BadInput(
                f"extract.hook_points: stitches are made between blocks, got '{point}'; use resid_post and embed"
            )
    return [EMBED if point.layer is None else point.layer for point in points]
