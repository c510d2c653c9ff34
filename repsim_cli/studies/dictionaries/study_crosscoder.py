"""Measures a crosscoder on rows of the models that it is of."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Unpack

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.registry import did_you_mean, studies
from repsim_cli.base.schemas import attempt, give_up
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import check_rows_fit, count_most_rows, describe_models
from repsim_cli.engine.cached import hash_arrays
from repsim_cli.engine.cost import Cost, describe_needs, estimate_dictionaries_cost, estimate_products
from repsim_cli.engine.extraction import make_extraction
from repsim_cli.engine.recording import StudyOfRows
from repsim_cli.engine.rows import prepare, sample
from repsim_cli.engine.study import OfRows
from repsim_cli.runs.content import Matrix, Results, Side, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.dictionaries.columns import (
    ALL_SIDES,
    BETWEEN_SIDES,
    LATENTS_COLUMNS,
    NORMS,
    OF_LATENTS,
    OF_SIDES,
    SIDES_COLUMNS,
)
from repsim_cli.studies.dictionaries.crosscoders import BETWEEN, OF_ALL, Crosscoder, load, tell_whose
from repsim_cli.studies.dictionaries.formats import Dictionary
from repsim_cli.studies.dictionaries.formats import load as load_dictionary
from repsim_cli.studies.dictionaries.other_sides import DRAWS, SharesFromOthers, compute_shares_from_others
from repsim_cli.studies.dictionaries.train import DictionaryRecipe, list_model_folders, train_dictionary
from repsim_cli.studies.dictionaries.worth import compute_explained_share, jackknife

CELLS = 2**24  # of a code held at a time
LEAST = 8  # documents, where a crosscoder is trained here
TRAINED_ON = 0.75  # of the documents


class Said(NamedTuple):
    """What a crosscoder says of rows. left, shuffled: squares that are not said, of each side and row; by a decoder
    whose latents are exchanged. squares: of the distances to the mean row. counts: rows on which each latent is active.
    kept: by side and latent, how much of its direction on each other side's errors, as a share of its own; NaN where it
    is never active. from_others: what `compute_shares_from_others` gives."""

    left: Float[np.ndarray, "s n"]
    shuffled: Float[np.ndarray, "s n"]
    squares: Float[np.ndarray, "s n"]
    counts: Int[np.ndarray, " m"]
    kept: Float[np.ndarray, "s m"]
    from_others: SharesFromOthers


@studies.register("crosscoder")
class CrosscoderStudy(StudyOfRows):
    """Measures a crosscoder, one code for the rows of several models or layers, on rows of these.

    Of each side the share of the variance that is explained, with its error over documents, beside a decoder whose
    latents are exchanged. Latents by whose they are: a side's alone where the decoder norm on each other side is at
    most a fifth of that on it, of all sides where none is below four fifths of the largest, norms relative to the
    spread of each side's rows; how many of them are never active. A small norm may be an artefact of the training: for
    latents of one side alone the table has how strongly their directions stand in the errors of the other sides, as a
    share of how strongly they stand in their own rows (Minder et al. 2025): near 0 where the latent is of that side
    alone, near 1 where the others have it too. Equal norms prove nothing common either: for latents of all sides the
    table has how strongly they stand in the rows of a side where the code has seen those of the others alone, as a
    share of where it has seen all, the median, and up to where chance brings it: 0 where sides are independent.

    path: a folder with one .safetensors file, or the file (`crosscoders.py`); null: one is trained on the rows of three
        quarters of the documents, and measured on the others.
    sides: the layer of each side in the order of the crosscoder, [[MODEL, LAYER], ...]; null: the one layer that is
        read of each model, in the order of the models.
    recipe: how one is trained, as a dictionary of the rows of all sides together.
    Example: repsim run study=crosscoder model=[] +model.before='{kind: transformers, path: DIR}'
        +model.after='{kind: transformers, path: DIR}' data=local_text data.path=FILE data.sample_by=paragraph
        extract=texts extract.hook_points=[resid_post] extract.layers=[1]
    """

    takes_remedies: ClassVar[Sequence[str]] = ("skip", "skip_tokens")

    def __init__(
        self,
        *,
        path: str | None = None,
        sides: list[list[str]] | None = None,
        recipe: DictionaryRecipe,
        **given: Unpack[OfRows],
    ):
        models, extract = given["model"], given["extract"]
        if extract.estimate != "full":
            raise BadInput(f"extract.estimate: rows of one sample are said, got {extract.estimate}; use full")
        problems: list[str] = []
        self.extraction = attempt(problems, "", lambda: make_extraction(given))
        self.given = None if path is None else attempt(problems, "options.", lambda: load(path))
        give_up(problems)
        self.readings, self.hardware, self.seed = self.extraction.readings, given["hardware"], given["seed"]
        self.recipe = recipe
        self.places = self._places(sides)
        if len(self.places) < 2:
            raise BadInput(f"model: a crosscoder has two sides or more, got {len(self.places)}; name more layers")
        widths = {self.extraction.layers[at].width for at in self.places}
        if len(widths) > 1:
            raise BadInput(f"model: the sides of a crosscoder have one width, got {sorted(widths)}; name other layers")
        if self.given is not None:
            self._check(self.given)
        self.most = min(extract.rows, count_most_rows(models, extract))
        check_rows_fit(self.memory, self.most, self.hardware, self.extraction.live)

    def _places(self, sides: Sequence[Sequence[str]] | None) -> list[int]:
        """Finds the layer of each side, by its number among all."""
        layers = self.extraction.layers
        if sides is None:
            if len(layers) != len(self.readings):
                raise BadInput(
                    f"options.sides: one layer is read of each model where sides are not named, got {len(layers)} "
                    f"layers of {len(self.readings)} models; name them, or set extract.layers (of stored rows: layers "
                    "of the entry)"
                )
            return list(range(len(layers)))
        names = {(layer.model, layer.name): at for at, layer in enumerate(layers)}
        for side in sides:
            if tuple(side) not in names:
                raise BadInput(
                    f"options.sides: not read, got {list(side)}; "
                    f"{did_you_mean(' '.join(side), [' '.join(each) for each in names])}"
                )
        return [names[tuple(side)] for side in sides]  # type: ignore[index]

    def _check(self, crosscoder: Crosscoder) -> None:
        if len(self.places) != crosscoder.sides:
            raise BadInput(
                f"options.path: a crosscoder of {crosscoder.sides} sides, got {len(self.places)} layers; name as many "
                "(options.sides)"
            )
        features = crosscoder.encoder[0].shape[0]
        for at in self.places:
            if (layer := self.extraction.layers[at]).width != features:
                raise BadInput(
                    f"options.path: a crosscoder of {features} features, got {layer.width} at {layer.name} of "
                    f"'{layer.model}'; name the layers that it was trained on"
                )

    @property
    def latents(self) -> int:
        return self.recipe.width if self.given is None else self.given.width

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated: libraries, weights, rows, the crosscoder, and a part of the code."""
        features, width = sum(self.extraction.layers[at].width for at in self.places), self.latents
        return {
            "Python and its libraries": 0.5e9,
            "weights": sum(4.0 * source.parameters for source in self.extraction.live.values()),
            "rows": 4.0 * rows * (2 * sum(layer.width for layer in self.extraction.layers) + 4 * features),
            "crosscoder": 4.0 * 6 * features * width,
            "code": 4.0 * 4 * max(CELLS, width),
        }

    def plan(self) -> dict[str, Any]:
        layers = self.extraction.layers
        return {
            "models": describe_models(self.extraction.models, self.hardware),
            "sides": [str(layers[at]) for at in self.places],
            "latents": self.latents,
            "trained here": self.given is None,
            "rows, at most": self.most,
            **describe_needs(
                self._costs(),
                self.hardware,
                memory=self.memory(self.most),
                activations=footprint.count_stored(self.extraction),
                figures=1,
            ),
        }

    def _costs(self) -> dict[str, Cost]:
        features, sides = sum(self.extraction.layers[at].width for at in self.places), len(self.places)
        products = 5 + (2 + DRAWS) * (sides + 2)
        costs = {
            "forward passes": footprint.estimate_passes_cost(self.extraction),
            "codes": estimate_products(2.0 * products * self.most * features * self.latents, self.hardware),
        }
        if self.given is None:
            seen = self.recipe.steps * self.recipe.batch_size
            costs["training"] = estimate_dictionaries_cost(self.recipe.width, features, seen, self.hardware)
        return costs

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        with run.stage("data"):
            sequences = self.extraction.sequences(run)
            extraction = self.extraction.pair_rows(run, sequences).count_rows(run, sequences)
            documents = extraction.find_documents(sequences, run.warn)
        taken, tables = sample(run, extraction, sequences)
        layers, rows_of = [extraction.layers[at] for at in self.places], [taken[at].cpu().float() for at in self.places]
        crosscoder = self.given
        if crosscoder is None:
            out = self._leave_out(documents)
            crosscoder = self._train(run, [x[~out] for x in rows_of])
            rows_of, documents = [x[out] for x in rows_of], documents[out]
        with run.stage("crosscoder"):
            said = say_rows(crosscoder, rows_of, documents, self.seed)
        if not np.isfinite(said.left).all():
            raise RunFailed("crosscoder: what it says is not finite; check its weights and the layers of its sides")
        labels = _name_sides([layer.model for layer in layers], [layer.name for layer in layers])
        rows = []
        for side, layer in enumerate(layers):
            if not said.squares[side].sum() > 0:
                raise BadInput(f"{labels[side]}: its rows are all the same; leave it out")
            value, error = jackknife(
                compute_explained_share, np.stack([said.left[side], said.squares[side]]), documents
            )
            by_shuffled = float(
                compute_explained_share(np.array([said.shuffled[side].sum(), said.squares[side].sum()]))
            )
            counts = [len(documents), len(np.unique(documents))]
            rows.append([labels[side], layer.model, layer.name, value, error, by_shuffled, *counts])
        norms = crosscoder.norms / np.sqrt(said.squares.mean(1))
        matrix = Matrix(
            rows=Side(model="latents", layers=[str(i) for i in range(crosscoder.width)]),
            columns=Side(model="sides", layers=labels),
            values=run.write_array("decoder-norms", norms),
            n=len(documents),
            label="decoder norm, in spreads of the side's rows",
            about={"kind": NORMS, "active": run.write_array("rows-active", said.counts)},
        )
        return Results(
            study="crosscoder",
            matrices={NORMS: matrix},
            tables={
                OF_SIDES: Table(columns=SIDES_COLUMNS, rows=rows),
                OF_LATENTS: Table(columns=LATENTS_COLUMNS, rows=count_latents(said, norms, labels)),
                **tables,
            },
        )

    def _leave_out(self, documents: Int[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Marks the rows of a quarter of the documents, drawn under the run's seed."""
        names = np.random.default_rng(self.seed).permutation(np.unique(documents))
        if len(names) < LEAST:
            raise BadInput(
                f"data: a crosscoder is trained on some documents and measured on others, got {len(names)}; give "
                f"{LEAST} or more"
            )
        return np.isin(documents, names[: max(1, round((1 - TRAINED_ON) * len(names)))])

    def _train(self, run: Run, rows: Sequence[Float[Tensor, "n d"]]) -> Crosscoder:
        """Trains a dictionary of the rows of all sides, each with a spread of 1, or takes it from the cache."""
        means = [x.mean(0) for x in rows]
        spreads = [float((x - mean).square().sum(1).mean().sqrt()) for x, mean in zip(rows, means, strict=True)]
        if not all(spreads):
            raise BadInput("crosscoder: the rows of a side are all the same; leave it out")
        joined = torch.cat([(x - mean) / spread for x, mean, spread in zip(rows, means, spreads, strict=True)], 1)
        with run.stage("training"):
            trained = train_dictionary([joined], self.recipe, seed=self.seed, digest=hash_arrays([joined.numpy()]))
            trained.folder(lambda items, **_: run.progress(items, label="crosscoder", unit="steps"))
            made = load_dictionary(list_model_folders(trained, 1)[0])
        return convert_to_crosscoder(made, means, spreads)


def convert_to_crosscoder(dictionary: Dictionary, means: Sequence[Tensor], spreads: Sequence[float]) -> Crosscoder:
    """Makes a crosscoder of a dictionary of joined rows, (x - mean) / spread of each side beside each other."""
    width = len(means[0])
    encoder = torch.stack(
        [part / spread for part, spread in zip(dictionary.encoder.split(width), spreads, strict=True)]
    )
    before = dictionary.bias @ dictionary.encoder if dictionary.centred else torch.zeros(dictionary.width)
    before = before + sum(mean @ part for mean, part in zip(means, encoder, strict=True))
    decoders, biases = dictionary.decoder.split(width, 1), dictionary.bias.split(width)
    return Crosscoder(
        encoder=encoder,
        encoder_bias=dictionary.encoder_bias - before,
        decoder=torch.stack([part * spread for part, spread in zip(decoders, spreads, strict=True)]),
        bias=torch.stack([mean + spread * b for mean, spread, b in zip(means, spreads, biases, strict=True)]),
        threshold=dictionary.threshold,
        scale=torch.ones(dictionary.width),
    )


def count_latents(said: Said, norms: Float[np.ndarray, "m s"], labels: Sequence[str]) -> list[list[Any]]:
    """Counts the latents by whose they are: the rows of LATENTS_COLUMNS."""
    sides, rows = tell_whose(norms), said.left.shape[1]
    found = []
    for kind, name in {**dict(enumerate(labels)), OF_ALL: ALL_SIDES, BETWEEN: BETWEEN_SIDES}.items():
        mine = sides == kind
        count, alive = int(mine.sum()), mine & (said.counts > 0)
        dead = None if not count else 1 - float(alive.sum()) / count
        beyond = float(np.median(said.kept[kind][alive])) if kind >= 0 and alive.any() else None
        shared = (said.from_others.find_median(mine) if kind == OF_ALL else None) or (None, None)
        found.append([name, count, count / len(norms), dead, float(said.counts[mine].sum()) / rows, beyond, *shared])
    return found


def _name_sides(models: Sequence[str], names: Sequence[str]) -> list[str]:
    """Names the sides: by their models where these differ, else by their layers."""
    if len(set(models)) == len(models):
        return list(models)
    return [f"{model} {name}" for model, name in zip(models, names, strict=True)]


def say_rows(
    crosscoder: Crosscoder, rows: Sequence[Float[Tensor, "n d"]], documents: Int[np.ndarray, " n"], seed: int
) -> Said:
    """Says rows of all sides, and measures what is left of them.

    A latent's direction on its own side stands in the rows of a side, less what all other latents say of them, as
    strongly as the least squares of these rows by its code times that direction; `Said.kept` is the largest of the
    other sides over its own.
    """
    sides, n, width = crosscoder.sides, len(rows[0]), crosscoder.width
    order = torch.randperm(width, generator=torch.Generator().manual_seed(seed))
    exchanged = [part[order] for part in crosscoder.decoder]
    left, shuffled, squares = np.zeros((3, sides, n))
    for side, x in enumerate(rows):
        squares[side] = (x - x.double().mean(0)).double().square().sum(1).numpy()
    counts = torch.zeros(width, dtype=torch.int64)
    energy = torch.zeros(width, dtype=torch.float64)
    errors = torch.zeros(crosscoder.decoder.shape, dtype=torch.float64)  # of every side, along each latent's code
    size = max(1, CELLS // width)
    for start in range(0, n, size):
        part = [x[start : start + size] for x in rows]
        code = crosscoder.encode(part)
        counts += (code > 0).sum(0)
        energy += code.double().square().sum(0)
        for side, (x, said) in enumerate(zip(part, crosscoder.decode(code), strict=True)):
            left[side, start : start + size] = (x - said).double().square().sum(1).numpy()
            by_others = code @ exchanged[side] + crosscoder.bias[side]
            shuffled[side, start : start + size] = (x - by_others).double().square().sum(1).numpy()
            errors[side] += (code.T @ (x - said)).double()
    kept = _find_kept(crosscoder, errors, energy, counts > 0)
    return Said(
        left,
        shuffled,
        squares,
        counts.numpy(),
        kept,
        compute_shares_from_others(crosscoder, rows, documents, seed, size),
    )


def _find_kept(
    crosscoder: Crosscoder, errors: Float[Tensor, "s m d"], energy: Float[Tensor, " m"], alive: Bool[Tensor, " m"]
) -> Float[np.ndarray, "s m"]:
    decoder = crosscoder.decoder.double()
    kept = np.full((crosscoder.sides, crosscoder.width), np.nan)
    for own in range(crosscoder.sides):
        direction = decoder[own]
        squared = direction.square().sum(1)
        strengths = (errors * direction).sum(2) / (energy * squared) + (decoder * direction).sum(2) / squared
        others = torch.cat([strengths[:own], strengths[own + 1 :]]).amax(0)
        kept[own, alive.numpy()] = (others / strengths[own])[alive].numpy()
    return kept
