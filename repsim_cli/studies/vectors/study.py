"""Maps from the rows of one model to those of another, fitted on some documents and scored on others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Unpack

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

import repsim_cli
from repsim_cli.activations.places import list_row_labels
from repsim_cli.activations.readings import Layer
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.base.registry import did_you_mean, studies
from repsim_cli.base.remedies import ALL_REMEDIES
from repsim_cli.base.settings import Fraction, Positive
from repsim_cli.data.base import Sequences
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import check_rows_fit, count_most_rows, describe_models
from repsim_cli.engine.cost import Cost, describe_needs
from repsim_cli.engine.extraction import Extraction, make_extraction
from repsim_cli.engine.recording import StudyOfRows
from repsim_cli.engine.rows import prepare, sample
from repsim_cli.engine.study import OfRows
from repsim_cli.engine.validity import COPIED, are_neighbours_alike
from repsim_cli.runs.content import Results, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.vectors.fits import KINDS, From, MapFit, Rows, To, centre_pair
from repsim_cli.studies.vectors.readers import LabelledRows, has_two_classes, score_largest_class, score_readers
from repsim_cli.studies.vectors.scores import (
    AS_THEY_ARE,
    AT,
    BEFORE,
    BY_CHANCE,
    DEPENDENT,
    MAPS_COLUMNS,
    RENEWED,
    VECTOR_MAPS,
    MapScore,
    compute_chance_recall,
    hold_out,
    name_pair,
    score_mapped_rows,
    score_retrieved_neighbours,
)
from repsim_cli.studies.vectors.stored import VectorMap

FEWEST = 8  # documents on either side, for an interval and a fit
LEAST = max(AT) + 2  # rows that are held out
HALVINGS = 5  # sizes of the curve: all fitted documents, half of them, ...


class MappedPair(NamedTuple):
    """Layers of the two models, by their numbers among all."""

    old: int
    new: int


class Half(NamedTuple):
    """Numbers of rows: those that may be fitted, a document after the other in the order in which they are taken, and
    those that are held out."""

    fitted: list[Int[np.ndarray, " m"]]
    held_out: Int[np.ndarray, " k"]


class Given(NamedTuple):
    """Rows of both models, with the document of each, and its class where the data has labels."""

    x: Rows
    y: Rows
    documents: Int[np.ndarray, " n"]
    classes: Int[np.ndarray, " n"] | None
    half: Half


@studies.register("vector_map")
class VectorMaps(StudyOfRows):
    """Fits maps from the rows of the first model to those of the second, and scores them on held-out documents.

    A map is a matrix and an offset: rotation (orthogonal Procrustes with one scale), affine (least squares with
    intercept), ridge (the same with a penalty chosen by leaving fitted rows out), low_rank (ridge of a lower rank).
    Queries are rows of the second model, the store is the mapped rows of the first: recall at 1 and 10 is the share of
    neighbours that the old rows had among each other, or that new rows would have. Each score has a 95 % interval over
    held-out documents, for all fitted documents, half of them, a quarter and so on. The maps are in the run folder.
    Where the data has labels, a probe is carried over, and of two classes the direction between their means: fitted on
    mapped old rows, they read held-out rows of the new model.

    layers: pairs of layers, [[LAYER, LAYER], ...]; null: those at the same place where both models have as many, else
        the last of each.
    kinds: which of rotation, affine, ridge and low_rank.
    rank: of low_rank; null: a quarter of the narrower side.
    train_share: the share of the documents that maps are fitted on, drawn under the run's seed.
    Example: repsim run study=vector_map model=[tiny_a_step400,tiny_a] extract=pooled extract.layers=[-1]
    """

    takes_remedies: ClassVar[Sequence[str]] = ALL_REMEDIES
    by_block: ClassVar[bool] = True

    def __init__(
        self,
        *,
        layers: list[list[str]] | None = None,
        kinds: list[str] | None = None,
        rank: Positive | None = None,
        train_share: Fraction = 0.8,
        **given: Unpack[OfRows],
    ):
        models, extract = given["model"], given["extract"]
        if len(models) != 2:
            raise BadInput(f"model: two are needed, the old one first, got {len(models)}; e.g. model=[OLD,NEW]")
        for name in kinds or ():
            if name not in KINDS:
                raise BadInput(f"options.kinds: no such kind of map, got '{name}'; {did_you_mean(name, KINDS)}")
        if extract.estimate != "full":
            raise BadInput(f"extract.estimate: maps are fitted on one sample, got {extract.estimate}; use full")
        self.extraction = make_extraction(given)
        self.readings, self.hardware, self.seed = self.extraction.readings, given["hardware"], given["seed"]
        self.kinds, self.rank, self.train_share = list(dict.fromkeys(kinds or KINDS)), rank, train_share
        self.pairs = self._pairs(layers)
        self.most = min(extract.rows, count_most_rows(models, extract))
        check_rows_fit(self.memory, self.most, self.hardware, self.extraction.live)

    def _pairs(self, layers: list[list[str]] | None) -> list[MappedPair]:
        old, new = self.extraction.places
        names = [layer.name for layer in self.extraction.layers]
        if layers is None:
            if old.stop - old.start != new.stop - new.start:
                return [MappedPair(old.stop - 1, new.stop - 1)]
            return [
                MappedPair(*each) for each in zip(range(old.start, old.stop), range(new.start, new.stop), strict=True)
            ]
        pairs = []
        for pair in layers:
            if len(pair) != 2:
                raise BadInput(f"options.layers: not a pair of layers, got {pair}; e.g. [[resid_post@3,resid_post@3]]")
            for name, place in zip(pair, (old, new), strict=True):
                if name not in names[place]:
                    raise BadInput(f"options.layers: not read, got '{name}'; {did_you_mean(name, names[place])}")
            pairs.append(
                MappedPair(*(names.index(name, place.start) for name, place in zip(pair, (old, new), strict=True)))
            )
        return pairs

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated: libraries, weights, the rows, and what one fit and its neighbours work on."""
        widest = max(layer.width for layer in self.extraction.layers)
        return {
            "Python and its libraries": 0.5e9,
            "weights": sum(4.0 * source.parameters for source in self.extraction.live.values()),
            "rows": 4.0 * 3 * rows * sum(layer.width for layer in self.extraction.layers),
            "fits": 8.0 * (8 * rows * widest + 4 * widest**2) + 8.0 * 4 * min(rows, 1024) * rows,
        }

    def plan(self) -> dict[str, Any]:
        return {
            "models": describe_models(self.extraction.models, self.hardware),
            "pairs of layers": [" to ".join(self.extraction.names[place] for place in pair) for pair in self.pairs],
            "maps": self.kinds,
            "rows, at most": self.most,
            **describe_needs(
                self._costs(),
                self.hardware,
                memory=self.memory(self.most),
                activations=footprint.count_stored(self.extraction),
            ),
        }

    def _costs(self) -> dict[str, Cost]:
        widths = [max(self.extraction.layers[place].width for place in pair) for pair in self.pairs]
        fits = 2.0 * len(self.kinds) * sum(20.0 * self.most * width**2 + 4.0 * self.most**2 * width for width in widths)
        return {"forward passes": footprint.estimate_passes_cost(self.extraction), "fits": Cost(fits, fits / 1e10)}

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        with run.stage("data"):
            sequences = self.extraction.sequences(run)
            extraction = self.extraction.pair_rows(run, sequences).count_rows(run, sequences)
            documents, classes = extraction.find_documents(sequences), find_row_classes(extraction, sequences)
            half = split_documents(documents, self.train_share, self.seed)
        taken, tables = sample(run, extraction, sequences)
        rows: list[list[Any]] = []
        with run.stage("maps"):
            for pair in run.progress(self.pairs, label="maps", unit="pairs of layers"):
                x, y = (taken[place].cpu().numpy().astype(np.float64) for place in pair)
                given = Given(x, y, documents, classes, half)
                rows += self._map_pair(run, [extraction.layers[place] for place in pair], given)
        maps = {VECTOR_MAPS: Table(columns=MAPS_COLUMNS, rows=rows)}
        about = {DEPENDENT: found} if (found := self._list_dependent(run, taken, documents)) else {}
        return Results(study="vector_map", tables=maps | tables, about=about)

    def _list_dependent(self, run: Run, taken: Sequence[Tensor], documents: Int[np.ndarray, " n"]) -> list[str]:
        """Lists the pairs of layers whose rows, each a document by itself, are alike where they follow each other, and
        warns of them: rows held out are then not independent of those that are fitted."""
        if len(np.unique(documents)) < len(documents):
            return []
        layers = self.extraction.layers
        found = [
            name_pair(layers[old].model, layers[old].name, layers[new].model, layers[new].name)
            for old, new in self.pairs
            if are_neighbours_alike([taken[old], taken[new]], self.seed)
        ]
        if found:
            run.warn(
                f"vectors: rows that follow each other are alike ({', '.join(found)}), so that held-out rows are not "
                "independent of fitted ones: maps keep less of new rows, if anything, and intervals are too narrow; "
                "give the documents that they are of (`documents` in a file of stored rows)"
            )
        return found

    def _map_pair(self, run: Run, layers: Sequence[Layer], given_rows: "Given") -> Iterator[list[Any]]:
        """Makes the rows of MAPS_COLUMNS; the map of each kind that all fitted rows make is written."""
        (old, new), (x, y, documents, classes, half) = layers, given_rows
        for layer, values in zip(layers, (x, y), strict=True):
            check_rows_differ(layer, values)
        out = hold_out(x[half.held_out], y[half.held_out], documents[half.held_out])
        for notice in list_copies(layers, (x, y), half.held_out):
            run.warn(notice)
        counts = [len(half.held_out), len(np.unique(out.documents))]
        mean = y[np.concatenate(half.fitted)].mean(0)

        def read(
            rows: Float[np.ndarray, "m d"], chosen: Int[np.ndarray, " m"], on: Float[np.ndarray, "k d"] = out.y
        ) -> dict[str, MapScore]:
            """Scores readers that are fitted on the `chosen` rows, on held-out rows of the new model, or of `on`."""
            if classes is None or not has_two_classes(classes[chosen]):
                return {}
            left = LabelledRows(on, classes[half.held_out])
            return score_readers(LabelledRows(rows, classes[chosen]), left, out.documents)

        def list_scores(kind: str, fitted: Sequence[int], found: Mapping[str, MapScore]) -> Iterator[list[Any]]:
            for name, score in found.items():
                yield [old.model, old.name, new.model, new.name, kind, *fitted, *counts, name, *score]

        stores: list[Rows] = []  # of the maps that all fitted rows make
        for size in list_fitted_sizes(len(half.fitted)):
            chosen = np.concatenate(half.fitted[-size:])
            fitted, given = [len(chosen), size], centre_pair(x[chosen], y[chosen])
            for kind in self.kinds:
                fit = KINDS[kind](given, self.rank or max(1, min(old.width, new.width) // 4))
                found = score_mapped_rows(out, fit(out.x), mean) | read(fit(x[chosen]), chosen)
                yield from list_scores(kind, fitted, found)
                if size == len(half.fitted):
                    self._write_map(run, layers, kind, fit, fitted + counts, found)
                    stores.append(fit(out.x))
        every = np.concatenate(half.fitted)
        chance = compute_chance_recall(out, stores)
        if classes is not None and has_two_classes(classes[every]):
            chance |= score_largest_class(classes[every], LabelledRows(out.y, classes[half.held_out]), out.documents)
        yield from list_scores(BY_CHANCE, [0, 0], chance)
        yield from list_scores(RENEWED, [0, 0], score_retrieved_neighbours(out, out.y) | read(y[every], every))
        yield from list_scores(BEFORE, [0, 0], read(x[every], every, out.x))
        if old.width == new.width:
            yield from list_scores(AS_THEY_ARE, [0, 0], score_mapped_rows(out, out.x, mean) | read(x[every], every))

    def _write_map(
        self,
        run: Run,
        layers: Sequence[Layer],
        kind: str,
        fit: MapFit,
        counts: list[int],
        found: Mapping[str, MapScore],
    ) -> None:
        sides = [
            {"model": layer.model, "layer": layer.name, "width": layer.width, **run.manifest["models"][layer.model]}
            for layer in layers
        ]
        data = run.manifest.get("data", {})
        record = {
            "kind": kind,
            "from": sides[0],
            "to": sides[1],
            "data": {key: data[key] for key in ("source", "hash") if key in data},
            "unit": self.extraction.extract.unit if data else "stored rows",
            "counts": dict(zip(("rows", "documents", "rows held out", "documents held out"), counts, strict=True)),
            "held out": {name: score._asdict() for name, score in found.items()},
            "chosen": fit.facts,
            "seed": self.seed,
            "repsim": repsim_cli.__version__,
        }
        (run.folder / "maps").mkdir(exist_ok=True)
        VectorMap(fit.weight, fit.bias, record).save(
            run.folder / "maps" / f"{name_map_file(kind, *layers)}.safetensors"
        )


def list_copies(layers: Sequence[Layer], pair: tuple[From, To], held_out: Int[np.ndarray, " k"]) -> Iterator[str]:
    """Names the layers in which many held-out rows stand twice, there or among the fitted rows: what maps keep of such
    rows says little of new ones. pair: all rows of both layers."""
    for layer, rows in zip(layers, pair, strict=True):
        _, which, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
        copies = int((counts[which.ravel()[held_out]] > 1).sum())
        if copies > COPIED * len(held_out):
            yield (
                f"vectors: {copies:,} of {len(held_out):,} held-out rows of {layer.name} of '{layer.model}' are copies "
                "of other rows, of which none is nearest and which a map may have seen; drop the copies, or look at "
                "the text that is read"
            )


def check_rows_differ(layer: Layer, rows: Rows) -> None:
    if (rows == rows[0]).all():
        raise BadInput(
            f"options.layers: rows that differ are mapped, got one vector in all rows of {layer.name} of "
            f"'{layer.model}'; leave it out"
        )


def name_map_file(kind: str, old: Layer, new: Layer) -> str:
    return slug(kind, old.model, old.name, new.model, new.name)


def find_row_classes(extraction: Extraction, sequences: Mapping[str, Sequences]) -> Int[np.ndarray, " n"] | None:
    """Finds the class of every sampled row, where the data has labels."""
    given = next(iter(sequences.values()), None)
    labels = None if given is None else list_row_labels(given, extraction.extract)
    return None if labels is None else labels[extraction.numbers(0)]


def split_documents(documents: Int[np.ndarray, " n"], share: float, seed: int) -> Half:
    """Draws the documents to fit on, and leaves the rows of the others out. Raises BadInput where documents or rows are
    too few on either side.

    documents: of each row.
    share: of the documents, those to fit on.
    """
    names = np.random.default_rng(seed).permutation(np.unique(documents))
    count = round(share * len(names))
    rows = [np.flatnonzero(documents == name) for name in names[:count]]
    left = np.flatnonzero(np.isin(documents, names[count:]))
    if min(count, len(names) - count) < FEWEST or len(left) < LEAST:
        raise BadInput(
            f"data: too few different documents, got {count} to fit on and {len(names) - count} of "
            f"{len(left)} rows held out; give {FEWEST} for each and {LEAST} rows, or another options.train_share"
        )
    return Half(rows, left)


def list_fitted_sizes(documents: int) -> list[int]:
    """Lists how many documents are fitted: all, half of them, and so on, ascending.

    >>> list_fitted_sizes(100), list_fitted_sizes(9)
    ([12, 25, 50, 100], [9])
    """
    return [documents >> step for step in reversed(range(HALVINGS)) if documents >> step >= FEWEST]
