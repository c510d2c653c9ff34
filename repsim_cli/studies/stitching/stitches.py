"""What is stitched to what: pairs of models, heads and layers."""

from collections.abc import Mapping, Sequence
from typing import Literal

from repsim_cli.activations.hook_points import choose_hook_points
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import did_you_mean
from repsim_cli.base.settings import Extract
from repsim_cli.models.source import Source
from repsim_cli.studies.stitching.evaluate import Head, HeadKind, Stitch
from repsim_cli.studies.stitching.models import EMBED, Layer

Baseline = Literal["self", "random", "shuffled", "noise"]
AS_HEAD: dict[Baseline, HeadKind] = {"self": "model", "random": "random", "shuffled": "shuffled", "noise": "noise"}


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


def list_heads(pairs: Sequence[tuple[str, str]], baselines: Sequence[Baseline]) -> dict[str, list[Head]]:
    """Lists the heads of every tail: other models, and baselines."""
    heads: dict[str, list[Head]] = {}
    for tail in dict.fromkeys(tail for _, tail in pairs):
        others = [Head(head) for head, other in pairs if other == tail]
        # a model may be named both as an other model and as a baseline
        heads[tail] = list(dict.fromkeys([*others, *(Head(tail, AS_HEAD[word]) for word in baselines)]))
    return heads


def list_stitches(
    heads: Mapping[str, Sequence[Head]], layers: Mapping[str, Sequence[Layer]], *, grid: bool
) -> list[Stitch]:
    """Lists the stitches of all heads and their tails: at equal layers or, with `grid`, from every layer into every."""
    return [
        Stitch(head, tail, at, into)
        for tail, of in heads.items()
        for head in of
        for at in layers[head.model]
        for into in layers[tail]
        if grid or at == into
    ]
