"""What a run of stitching takes: memory, and work."""

from collections.abc import Mapping
from typing import NamedTuple

from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Data
from repsim_cli.engine.bounds import find_usual_length
from repsim_cli.engine.cost import Cost, estimate_forward_cost, estimate_products
from repsim_cli.models.source import Source
from repsim_cli.studies.stitching.shared import ROWS
from repsim_cli.studies.stitching.train import StitchRecipe

SOLVING = 25.0  # operations of a symmetric decomposition, of the cube of its width


class Amounts(NamedTuple):
    """How much a run of stitching does.

    stitches: that it makes. every: those of all models, of which groups may choose. heads: of all tails. random: those
    of them with random weights. evaluated: sequences. vocabularies: whether the models predict tokens.
    """

    stitches: int
    every: int
    heads: int
    random: int
    evaluated: int
    vocabularies: bool


def estimate_memory(
    models: Mapping[str, Source], amounts: Amounts, extract: Extract, hardware: Hardware, recipe: StitchRecipe
) -> dict[str, float]:
    """Bytes, estimated: weights, streams, outputs and gradients of a batch, stitch layers."""
    sources = models.values()
    places = min(hardware.batch_size, extract.sequences) * extract.length
    widest = max(source.width for source in sources)
    most = max(source.vocabulary for source in sources) if amounts.vocabularies else 8
    blocks = max(source.layers for source in sources)
    return {
        "Python and its libraries": 0.5e9,
        "weights": sum(4.0 * s.parameters for s in sources) * (1 + amounts.random / len(models)),
        "streams": 4.0 * places * sum(s.width * (s.layers + 1) for s in sources),
        "outputs": 4.0 * 4 * places * most,
        "gradients": 4.0 * places * widest * 24 * blocks * recipe.trained,
        "rows that are compared": 8.0 * 4 * ROWS * widest * (blocks + 1) * recipe.fitted,
        "stitch layers": 4.0 * 3 * amounts.every * (widest + 1) ** 2 * recipe.fitted,
    }


def estimate_costs(
    models: Mapping[str, Source],
    amounts: Amounts,
    data: Data,
    extract: Extract,
    hardware: Hardware,
    recipe: StitchRecipe,
) -> dict[str, Cost]:
    """Estimates the work. A step of training is a forward pass of head and tail and a backward pass of the tail. In
    the evaluation every model runs once, and a tail (on average half a model) for every stitch. Where rows are
    compared, both models of every pair run on both parts, and each stitch takes four decompositions."""
    length, count = find_usual_length(models, data, extract), len(models)
    widest = max(source.width for source in models.values())
    steps = recipe.steps if recipe.trained else 0

    def estimate_pass(sequences: int) -> Cost:
        cost = estimate_forward_cost(models.values(), sequences, length, hardware, vocabularies=amounts.vocabularies)
        return 1 / count * cost

    costs = {
        "training of stitches": 2.5 * amounts.stitches * estimate_pass(steps * recipe.batch),
        "evaluation": (count + amounts.stitches / 2) * estimate_pass(amounts.evaluated),
    }
    if recipe.fitted:
        passes = amounts.heads * 4 * estimate_pass(min(-(-ROWS // length), extract.sequences))
        solving = estimate_products(SOLVING * amounts.every * 4 * widest**3, hardware)
        costs["rows that are compared"] = passes + solving
    return costs
