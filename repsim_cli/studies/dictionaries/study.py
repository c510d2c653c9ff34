"""Sparse dictionaries of layers: do seeds find the same features, do models, and does one code serve several models?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar, NamedTuple, Unpack

import numpy as np
from jaxtyping import Int
from torch import Tensor

from repsim_cli.activations.readings import Layer
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.base.registry import did_you_mean, studies
from repsim_cli.base.remedies import ALL_REMEDIES
from repsim_cli.base.schemas import attempt, give_up
from repsim_cli.base.settings import Medium, Share, Tries
from repsim_cli.engine import footprint
from repsim_cli.engine.bounds import bound_pass, check_rows_fit, count_most_rows, describe_models
from repsim_cli.engine.cached import hash_arrays
from repsim_cli.engine.cost import Cost, describe_needs, estimate_dictionaries_cost, estimate_products
from repsim_cli.engine.estimates import Notices, file_warnings
from repsim_cli.engine.exchanges import draw_document_orders
from repsim_cli.engine.extraction import make_extraction
from repsim_cli.engine.recording import StudyOfRows
from repsim_cli.engine.rows import prepare, sample
from repsim_cli.engine.study import OfRows
from repsim_cli.runs.content import CROSS, MATCHED, SPACES, Matrix, Results, Side, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.dictionaries.compare import (
    MEASURES,
    Matched,
    Quality,
    compare_feature_spaces,
    cross_reconstruction,
    draw_mirrored,
    encode_in_blocks,
    match_latents,
    measure_dictionary_quality,
    score_linear_maps,
    take_alive_directions,
)
from repsim_cli.studies.dictionaries.formats import Dictionary, load
from repsim_cli.studies.dictionaries.train import DictionaryRecipe, list_model_folders, train_dictionary

HELD_OUT = 10  # one row of this many is held out
LEAST = 100  # rows
MIRRORS = 19  # chance levels, of which none is reached in 0.05 of draws by chance
GUESSED = ("mlp_pre", "mlp_post", "module:")  # layers whose width is known when they are read
QUALITY = ["model", "layer", "dictionary", "latents", "explained variance", "active latents per row", "dead latents"]
PAIRED = ["model", "layer", "other", "other's layer", "paired features", "mean correlation",
          *(f"{name}{of}" for name in MEASURES for of in ("", " of random pairings", " p"))]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GivenDictionary:
    """A dictionary that was trained elsewhere.

    path: a folder or file of SAELens, sparsify, Gemma Scope or dictionary_learning (`formats.py`).
    model: the LABEL of the model whose activations it reads.
    layer: the name of the layer, e.g. `resid_post@3`.
    """

    path: str
    model: str
    layer: str


class Known(NamedTuple):
    """A dictionary of a layer, with its name and what it reaches."""

    name: str
    dictionary: Dictionary
    quality: Quality


@studies.register("features")
class Features(StudyOfRows):
    """Trains sparse dictionaries (BatchTopK autoencoders) of every layer under several seeds, and compares them.

    Within a layer: which latents two seeds share, by matching decoder and encoder directions one to one (Paulo and
    Belrose 2025), beside those of the second mirrored in principal axes of the rows, which keep all that the
    covariance gives. Between layers of different models: features paired by the correlation of their activations, and
    the similarity of the paired decoder rows (Lan et al. 2024) against random pairings of documents, under each of
    which features are paired anew: those that correlate by chance are alike by the same chance. Between models: one
    code with an encoder and a decoder for each (Thasarathan et al. 2025), and how well the code of each reconstructs
    each other.
    Nine tenths of the rows are trained on. Dictionaries are kept in the cache.

    recipe: how dictionaries are trained.
    seeds: how many dictionaries of each layer are trained, under the run's seed and those that follow.
    dictionaries: {NAME: {path: FOLDER, model: LABEL, layer: NAME}}: further ones, which are read.
    universal: train one dictionary of all models for each layer too; the models' layers are taken in order.
    least_correlation: features are paired if their activations correlate by at least this.
    pairings: how many random pairings of documents are drawn.
    absolute: match directions by absolute cosine; published are signed ones.
    Example: repsim run study=features model=[tiny_a,tiny_b] measure=[] extract.layers=[2] extract.estimate=full
        options.recipe.steps=200
    """

    takes_remedies: ClassVar[Sequence[str]] = ALL_REMEDIES
    by_block: ClassVar[bool] = True

    def __init__(
        self,
        *,
        recipe: DictionaryRecipe,
        seeds: Tries = 2,
        dictionaries: dict[str, GivenDictionary] | None = None,
        universal: bool = True,
        least_correlation: Share = 0.1,
        pairings: Medium = 99,
        absolute: bool = False,
        **given: Unpack[OfRows],
    ):
        self.extraction = make_extraction(given)
        self.extract, self.hardware, self.seed = given["extract"], given["hardware"], given["seed"]
        if self.extract.estimate != "full":
            got = self.extract.estimate
            raise BadInput(f"extract.estimate: dictionaries are trained on one sample of rows, got {got}; use full")
        if not (seeds or dictionaries):
            raise BadInput("options.seeds: no dictionary is left, got 0; train some, or name options.dictionaries")
        self.readings, self.recipe, self.seeds = self.extraction.readings, recipe, seeds
        self.least_correlation, self.pairings, self.absolute = least_correlation, pairings, absolute
        self.universal = universal and bool(seeds) and len(given["model"]) > 1
        if self.universal:
            self._check_depths()
        self.given = self._read(dictionaries or {})
        self.most = min(self.extract.rows, count_most_rows(self.extraction.models, self.extract))
        self._check_rows(self.most)
        check_rows_fit(self.memory, self.most, self.hardware, self.extraction.live, least=LEAST)

    @property
    def layers(self) -> list[Layer]:
        return [layer for reading in self.readings for layer in reading.layers]

    def _check_depths(self) -> None:
        first, *others = self.readings
        for reading in others:
            if len(reading.layers) != len(first.layers):
                raise BadInput(
                    f"options.universal: models need equally many layers, got {len(first.layers)} of '{first.label}' "
                    f"and {len(reading.layers)} of '{reading.label}'; choose extract.layers that all have, e.g. [-1], "
                    "or options.universal=false"
                )

    def _read(self, given: Mapping[str, GivenDictionary]) -> dict[tuple[str, str], dict[str, Dictionary]]:
        """The dictionaries from folders, by model and layer, and by name."""
        problems: list[str] = []
        read: dict[tuple[str, str], dict[str, Dictionary]] = {}
        for name, about in given.items():
            where = f"options.dictionaries.{name}"
            layer = attempt(problems, where, lambda about=about: self._find_layer(about))
            dictionary = attempt(problems, f"{where}.", lambda path=about.path: load(path))
            if layer is not None and dictionary is not None:
                if not about.layer.startswith(GUESSED):
                    _check_width(name, dictionary, layer, layer.width)
                read.setdefault((about.model, about.layer), {})[name] = dictionary
        give_up(problems)
        return read

    def _find_layer(self, about: GivenDictionary) -> Layer:
        """Finds the layer that a dictionary reads. Raises BadInput where the run has none, or changes its rows."""
        layers = {layer.name: layer for layer in self.layers if layer.model == about.model}
        if about.model not in (models := self.extraction.models):
            raise BadInput(f".model: no such model, got '{about.model}'; {did_you_mean(about.model, models)}")
        if about.layer not in layers:
            raise BadInput(f".layer: no such layer, got '{about.layer}'; {did_you_mean(about.layer, layers)}")
        if self.extract.features_changed or self.extract.normalise == "rows":
            raise BadInput(
                f": it reads activations as models give them, got {self.extract.remedies}; set "
                "extract.normalise=none and extract.drop_features=1"
            )
        return layers[about.layer]

    def _check_rows(self, rows: int) -> None:
        if rows < LEAST:
            raise BadInput(f"extract.rows: dictionaries need {LEAST} rows, got {rows}; raise rows and sequences")

    def memory(self, rows: int) -> dict[str, float]:
        """Bytes, estimated: weights, a forward batch, rows, a training, codes of all layers, and matchings."""
        features, width = sum(layer.width for layer in self.layers), self._widest
        batch = 4.0 * 8 * self.recipe.batch_size * (width + features)
        return {
            "Python and its libraries": 0.6e9,
            **bound_pass(self.extraction.live, self.extract, self.hardware, features),
            "rows": 4.0 * 4 * rows * features,
            "training": batch + 4.0 * 8 * width * features + 4.0 * 3 * min(rows, 8192) * width,
            "codes": 4.0 * rows * width * (len(self.layers) + 2),
            "matchings": 8.0 * 6 * width**2,
        }

    @property
    def _widest(self) -> int:
        given = [dictionary.width for of_layer in self.given.values() for dictionary in of_layer.values()]
        return max([self.recipe.width, *given])

    def plan(self) -> dict[str, Any]:
        """Describes what a run would do: models, layers, dictionaries, forward passes, memory in GB."""
        return {
            "models": describe_models(self.extraction.models, self.hardware),
            "layers": len(self.layers),
            "dictionaries": self.seeds * len(self.layers) + sum(map(len, self.given.values())),
            "universal dictionaries": len(self.readings[0].layers) if self.universal else 0,
            "latents of each": self.recipe.width,
            "rows, at most": self.most,
            "forward passes, unless stored": footprint.count_passes_of_models(self.extraction),
            **describe_needs(
                self._costs(),
                self.hardware,
                memory=self.memory(self.most),
                disk={"dictionaries": 4.0 * 2 * self.recipe.width * self._features},
                activations=footprint.count_stored(self.extraction),
                figures=3,
            ),
        }

    @property
    def _features(self) -> int:
        """Features of all layers of which dictionaries are trained, counted for each dictionary."""
        return sum(layer.width for layer in self.layers) * (self.seeds + self.universal)

    def _costs(self) -> dict[str, Cost]:
        seen = self.recipe.steps * self.recipe.batch_size
        return {
            "forward passes": footprint.estimate_passes_cost(self.extraction),
            "training": estimate_dictionaries_cost(self._features, self.recipe.width, seen, self.hardware),
            "feature spaces": estimate_products(
                2.0 * self._count_pairs() * (1 + self.pairings) * self.most * self._widest**2, self.hardware
            ),
        }

    def _count_pairs(self) -> int:
        """Counts the pairs of layers of different models."""
        return sum(a.model != b.model for a, b in combinations(self.layers, 2))

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        with run.stage("data"):
            sequences = self.extraction.sequences(run)
            extraction = self.extraction.pair_rows(run, sequences).count_rows(run, sequences)
            self._check_rows(extraction.total)
        taken, tables = sample(run, extraction, sequences)
        rows = {layer: x.contiguous() for layer, x in zip(self.layers, taken, strict=True)}
        for layer, x in rows.items():
            if not float((x - x.mean(0)).abs().max()) > 0:
                raise BadInput(f"{layer}: its rows are all the same, got {len(x)} of them; leave it out")
        # rows come in the order of the text: neighbours are on one side
        kept = len(taken[0]) - len(taken[0]) // HELD_OUT
        seen, held_out = ({layer: x[part] for layer, x in rows.items()} for part in (slice(kept), slice(kept, None)))
        with run.stage("dictionaries"):
            known = {layer: self._compare_known(run, layer, seen[layer], held_out[layer]) for layer in rows}
        quality_rows = [
            [layer.model, layer.name, each.name, each.dictionary.width, each.quality.explained, each.quality.active,
             1 - float(each.quality.alive.mean())]
            for layer, ones in known.items() for each in ones
        ]  # fmt: skip
        tables = {"dictionaries": Table(columns=QUALITY, rows=quality_rows), **tables}
        with run.stage("shared latents"):
            matched = (self._match_shared(run, layer, ones, seen[layer]) for layer, ones in known.items())
            matrices = dict(pair for of_layer in matched for pair in of_layer)
        with run.stage("feature spaces"):
            documents = extraction.find_documents(sequences, run.warn)
            orders = list(draw_document_orders(documents, self.pairings, self.seed))
            if pairs := list(self._spaces(run, known, rows, orders)):
                tables[SPACES] = Table(columns=PAIRED, rows=pairs)
        if self.universal:
            with run.stage("universal dictionaries"):
                for place in range(len(self.readings[0].layers)):
                    matrices |= self._universal(run, place, seen, held_out)
        return Results(study="features", matrices=matrices, tables=tables)

    def _train(self, run: Run, label: str, rows: Sequence[Tensor], seed: int) -> list[Dictionary]:
        """Trains a dictionary of these rows, or takes it from the cache: one for each of `rows`, with a common code."""
        hashed = hash_arrays([x.cpu().numpy() for x in rows])
        trained = train_dictionary(rows, self.recipe, seed=seed, digest=hashed)

        def progress(items: Sequence[Any], label: str = label, unit: str = "steps") -> Any:
            return run.progress(items, label=label, unit=unit)

        trained.folder(lambda items, **_: progress(items))
        return [load(folder).to(self.hardware.device) for folder in list_model_folders(trained, len(rows))]

    def _compare_known(self, run: Run, layer: Layer, seen: Tensor, held_out: Tensor) -> list[Known]:
        made = {
            f"seed {seed}": self._train(run, f"{layer}, seed {seed}", [seen], seed)[0]
            for seed in range(self.seed, self.seed + self.seeds)
        }
        read = self.given.get((layer.model, layer.name), {})
        for name, dictionary in read.items():
            _check_width(name, dictionary, layer, seen.shape[1])
        every = {**made, **{name: dictionary.to(self.hardware.device) for name, dictionary in read.items()}}
        return [
            Known(name, dictionary, measure_dictionary_quality(dictionary, seen, held_out))
            for name, dictionary in every.items()
        ]

    def _match_shared(self, run: Run, layer: Layer, known: Sequence[Known], seen: Tensor) -> Any:
        """The matched latents of every two dictionaries of a layer, of those that are alive, and of the first with the
        second in random mirrors."""
        for first, second in combinations(known, 2):
            a, b = (take_alive_directions(each.dictionary, each.quality.alive) for each in (first, second))
            if not (len(a["decoder"]) and len(b["decoder"])):
                run.warn(f"{layer}: no latent of {first.name} or of {second.name} is alive; they are not matched")
                continue
            pairs = match_latents(a, b, self.absolute)
            mirrored = draw_mirrored(b, seen, MIRRORS, self.seed)
            chance = [match_latents(a, each, self.absolute) for each in mirrored]
            name = f"{layer.model} {layer.name}, {first.name} and {second.name}"
            values = np.stack([side for each in (pairs, *chance) for side in _stack(each)])
            sides = [
                f"{of}{what}"
                for of in ("", *(f"mirror {number} " for number in range(MIRRORS)))
                for what in ("decoder", "encoder", "agree")
            ]
            yield (
                f"matched latents of {name}",
                Matrix(
                    rows=Side(model=layer.model, layers=sides),
                    columns=Side(model="latents", layers=[]),
                    values=run.write_array(slug("matched", name), values),
                    n=values.shape[1],
                    label="absolute cosine" if self.absolute else "cosine",
                    about={"kind": MATCHED, "layer": layer.name, "dictionaries": [first.name, second.name]},
                ),
            )

    def _spaces(
        self,
        run: Run,
        known: Mapping[Layer, Sequence[Known]],
        rows: Mapping[Layer, Tensor],
        orders: Sequence[Int[np.ndarray, " n"]],
    ) -> Any:
        """A row for every two layers of different models, of the first dictionary of each. orders: of the rows of
        one of the two, as of random pairings."""
        firsts = {layer: ones[0].dictionary for layer, ones in known.items() if ones}
        if len({layer.model for layer in firsts}) < 2:
            return
        codes = {layer: encode_in_blocks(dictionary, rows[layer]) for layer, dictionary in firsts.items()}
        pairs = [(a, b) for a, b in combinations(firsts, 2) if a.model != b.model]
        notices: Notices = {}
        for a, b in run.progress(pairs, label="feature spaces", unit="pairs of layers"):
            with file_warnings(notices, ["feature spaces"]):
                compared = compare_feature_spaces(
                    (codes[a], codes[b]),
                    (firsts[a].decoder, firsts[b].decoder),
                    least=self.least_correlation,
                    orders=orders,
                )
            if compared is None:
                run.warn(f"{a} and {b}: too few features correlate by {self.least_correlation}; they are left out")
                continue
            each = []
            for name in MEASURES:
                value, null = compared.values[name], compared.null[name]
                each += [value, float(null.mean()), (1 + int((null >= value).sum())) / (1 + len(null))]
            yield [a.model, a.name, b.model, b.name, compared.pairs, compared.correlation, *each]
        for label, warned in notices.items():
            for notice in warned:
                run.warn(f"{label}: {notice}")

    def _universal(
        self, run: Run, place: int, seen: Mapping[Layer, Tensor], held_out: Mapping[Layer, Tensor]
    ) -> dict[str, Matrix]:
        """Measures how well the code of each model reconstructs each other model, at one layer of every model.

        place: of the layer among those that are read. seen: rows that are trained on. held_out: rows that are measured.
        """
        layers = [reading.layers[place] for reading in self.readings]
        train, test = ([of[layer] for layer in layers] for of in (seen, held_out))
        names = [layer.name for layer in layers]
        label = names[0] if len(set(names)) == 1 else ", ".join(names)
        made = self._train(run, f"{label} of all models", train, self.seed)
        models = [layer.model for layer in layers]
        stem = f"cross-reconstruction-{place:02d}"
        return {
            f"cross-reconstruction, {label}": Matrix(
                rows=Side(model="encoded", layers=models),
                columns=Side(model="decoded", layers=models),
                values=run.write_array(stem, cross_reconstruction(made, train, test)),
                details={"linear": run.write_array(f"{stem}-linear", score_linear_maps(train, test))},
                n=len(test[0]),
                label="R² of held-out rows",
                about={"kind": CROSS, "layer": label},
            )
        }


def _check_width(name: str, dictionary: Dictionary, layer: Layer, width: int) -> None:
    if (wide := dictionary.decoder.shape[1]) != width:
        raise BadInput(
            f"options.dictionaries.{name}: it is of another layer, got {wide} features for {width} of {layer}; name "
            "another"
        )


def _stack(pair: Matched) -> list[np.ndarray]:
    return [pair.decoder, pair.encoder, pair.agree.astype(float)]
