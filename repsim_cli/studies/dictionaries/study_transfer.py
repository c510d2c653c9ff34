"""Measures dictionaries of a base in the models that were made from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from jaxtyping import Int

from repsim_cli.activations.batching import batch_by_length, measure_lengths
from repsim_cli.activations.hook_points import HookPoint, expand
from repsim_cli.activations.inputs import name_errors
from repsim_cli.activations.next_token import HEAD, number_documents
from repsim_cli.activations.places import count_kept_rows
from repsim_cli.activations.readings import choose_loading, find_point_width
from repsim_cli.activations.rows import find_used
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import studies
from repsim_cli.base.schemas import attempt, give_up
from repsim_cli.data.base import Sequences
from repsim_cli.engine.bounds import bound_pass, check_memory, describe_models
from repsim_cli.engine.cached import hash_arrays
from repsim_cli.engine.cost import Cost, describe_needs, estimate_dictionaries_cost, estimate_forward_cost
from repsim_cli.engine.extraction import find_sequence_length, make_extraction
from repsim_cli.engine.rows import prepare, tally
from repsim_cli.engine.study import SAMPLING, TEXTS, OfRows, Study
from repsim_cli.models.source import Source
from repsim_cli.models.transformers import predicts_next
from repsim_cli.runs.content import Results, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.dictionaries.columns import COLUMNS, IN_MODELS
from repsim_cli.studies.dictionaries.formats import Dictionary, load
from repsim_cli.studies.dictionaries.spliced import CELLS, KINDS, SpliceReader, Told, say_why_unreplaceable, tell
from repsim_cli.studies.dictionaries.train import DictionaryRecipe, list_model_folders, train_dictionary
from repsim_cli.studies.dictionaries.worth import check_told, make_worth_cells

LEAST = 8  # sequences
TRAINED_ON = 0.75  # of the sequences, where dictionaries are trained here


@dataclass(frozen=True, kw_only=True)
class DictionaryOfBase:
    """A dictionary that was trained elsewhere, on the base.

    path: a folder or file of SAELens, sparsify, Gemma Scope or dictionary_learning (`formats.py`).
    layer: the name of the layer, e.g. `resid_post@3`.
    """

    path: str
    layer: str


@studies.register("dictionary_transfer")
class DictionaryTransfer(Study):
    """Asks whether sparse dictionaries of a base (`base=LABEL`) still work in models that were made from it.

    In every model, the base included: the share of the variance of a layer's rows that the dictionary explains, its
    active and dead latents, and what the next token loses where the dictionary's rows stand in for the model's own,
    against the mean row in their place. A shuffled dictionary (each latent has the decoder direction of another) says
    what codes alone give. Errors are over documents; differences from the base are of the same documents.

    dictionaries: {NAME: {path: FOLDER, layer: NAME}}. Without any, one is trained for each layer of `extract.layers`
        of the base on three quarters of the sequences, and all models are measured on the last quarter.
    recipe: how these are trained.
    Example: repsim run study=dictionary_transfer model=[] +model.before='{kind: transformers, path: DIR}'
        +model.after='{kind: transformers, path: DIR}' base=before data=local_text data.path=FILE extract.layers=[1]
    """

    takes_remedies: ClassVar[Sequence[str]] = ("skip", "skip_tokens")
    unread: ClassVar[Sequence[str]] = (*SAMPLING, TEXTS)

    def __init__(
        self,
        *,
        base: str | None = None,
        dictionaries: dict[str, DictionaryOfBase] | None = None,
        recipe: DictionaryRecipe,
        **given: Unpack[OfRows],
    ):
        self.extract, self.hardware, self.seed = given["extract"], given["hardware"], given["seed"]
        if base is None:
            raise BadInput("base: the model that the dictionaries are of is needed; set base=LABEL")
        if self.extract.unit != "token":
            raise BadInput(f"extract.unit: dictionaries say tokens, got {self.extract.unit}; use extract=tokens")
        if self.extract.sequences < LEAST:
            raise BadInput(
                f"extract.sequences: errors are over texts, got {self.extract.sequences}; read {LEAST} or more"
            )
        for label, source in given["model"].items():
            if not isinstance(source, Source):
                raise BadInput(f"model.{label}: its layers are replaced in passes, got stored rows; give a model")
        self.base, self.recipe, self.extraction = base, recipe, make_extraction(given)
        self.live = self.extraction.live
        self.given, self.points = self._read(dictionaries or {})
        for name, point in self.points.items():
            for label in self.live:
                self._check(name, point, label)
        check_memory(sum(self.memory().values()), self.hardware, "read shorter sequences, or fewer layers")

    def _read(self, given: Mapping[str, DictionaryOfBase]) -> tuple[dict[str, Dictionary], dict[str, HookPoint]]:
        """Reads the dictionaries that are named, and finds the hook points of all."""
        if not given:
            reading = next(each for each in self.extraction.readings if each.label == self.base)
            return {}, {str(point): point for point in reading.points}
        problems: list[str] = []
        read, points = {}, {}
        for name, about in given.items():
            where = f"options.dictionaries.{name}"
            find = partial(expand, [about.layer], "all", self.live[self.base])
            found = attempt(problems, f"{where}: ", find)
            read[name] = attempt(problems, f"{where}.", lambda path=about.path: load(path))
            if found is not None and len(found) != 1:
                problems.append(f"{where}.layer: one layer is needed, got '{about.layer}'; name it, e.g. resid_post@3")
            points |= {name: found[0]} if found else {}
        give_up(problems)
        return read, points

    def _check(self, name: str, point: HookPoint, label: str) -> None:
        """Raises BadInput where a dictionary does not fit a layer of a model, or the layer cannot be replaced."""
        try:
            expand([str(point)], "all", self.live[label])
            features = find_point_width(point, self.live[label])
        except BadInput as error:
            raise BadInput(f"model.{label}: {error}") from None
        if why := say_why_unreplaceable(point, self.live[label]):
            raise BadInput(f"model.{label}: {why}; use resid_post, mlp_out or attn_out")
        wanted = (
            self.given[name].decoder.shape[1] if name in self.given else find_point_width(point, self.live[self.base])
        )
        if features != wanted:
            raise BadInput(
                f"options.dictionaries: '{name}' says {wanted} features, got {features} at {point} of '{label}'; "
                "compare models of one base"
            )

    @property
    def latents(self) -> int:
        return max([each.width for each in self.given.values()] or [self.recipe.width])

    @property
    def rows(self) -> int:
        """The number of rows that dictionaries are trained on, at most; 0 where they are given."""
        return 0 if self.given else round(TRAINED_ON * self.extract.sequences * self.extract.length)

    def memory(self) -> dict[str, float]:
        """Bytes, estimated: weights, a batch with logits of two passes, codes, rows of a training."""
        features = max(find_point_width(point, self.live[self.base]) for point in self.points.values())
        batch = self.hardware.batch_size * find_sequence_length(self.extraction)
        vocabulary = max(source.vocabulary for source in self.live.values())
        return {
            "Python and its libraries": 0.6e9,
            **bound_pass(self.live, self.extract, self.hardware, features * len(self.points)),
            "dictionaries": 4.0 * 3 * self.latents * features * len(self.points),
            "logits": 4.0 * 3 * batch * vocabulary,
            "codes": 4.0 * 4 * max(CELLS, self.latents) + 4.0 * 6 * batch * features,
            "rows": 4.0 * 3 * self.rows * features,
        }

    def plan(self) -> dict[str, Any]:
        return {
            "models": describe_models(self.live, self.hardware),
            "dictionaries": {name: str(point) for name, point in self.points.items()},
            "trained here": not self.given,
            "latents of each, at most": self.latents,
            "loss of the next token": [label for label, source in self.live.items() if predicts_next(source)],
            **describe_needs(self._costs(), self.hardware, memory=self.memory(), figures=2),
        }

    def _costs(self) -> dict[str, Cost]:
        length, count = find_sequence_length(self.extraction), self.extract.sequences
        costs = {"forward passes": Cost()}
        for source in self.live.values():
            replaced = len(KINDS) * len(self.points) if predicts_next(source) else 0
            costs["forward passes"] += (2 + replaced) * estimate_forward_cost(
                [source], count, length, self.hardware, vocabularies=predicts_next(source)
            )
        if not self.given:
            features = sum(find_point_width(point, self.live[self.base]) for point in self.points.values())
            seen = self.recipe.steps * self.recipe.batch_size
            costs["training"] = estimate_dictionaries_cost(features, self.recipe.width, seen, self.hardware)
        return costs

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        with run.stage("data"):
            sequences = self.extraction.sequences(run)
            self.extraction.count_rows(run, sequences)
        texts = count_kept_rows(sequences[self.base], self.extract) > 0
        chosen = np.flatnonzero(texts)
        if len(chosen) < LEAST:
            raise BadInput(f"extract.sequences: {LEAST} texts are needed, the data have {len(chosen)}; give more")
        kept = 0 if self.given else round(TRAINED_ON * len(chosen))
        documents = number_documents(sequences[self.base], run.warn, "data")[chosen[kept:]]
        found: dict[str, dict[str, Told]] = {}
        dictionaries = dict(self.given)
        for label in [self.base, *(label for label in self.live if label != self.base)]:
            reader = self._reader(run, label)
            if not dictionaries:
                dictionaries = self._train(run, reader, sequences[label].take(chosen[:kept]))
            batches, members = self._batches(sequences[label].take(chosen[kept:]))
            moved = {name: (point, dictionaries[name].to(reader.device)) for name, point in self.points.items()}
            with run.stage(f"dictionaries in {label}"), torch.inference_mode():
                found[label] = tell(reader, batches, members, moved, self.seed)
            for name, told in found[label].items():
                check_told(told, f"{label}@{self.points[name]}")
        rows = [
            [label, name, str(point), len(np.unique(documents)),
             *make_worth_cells(found[label][name], found[self.base][name] if label != self.base else None, documents)]
            for name, point in self.points.items() for label in found
        ]  # fmt: skip
        return Results(study="dictionary_transfer", tables={IN_MODELS: Table(columns=COLUMNS, rows=rows)})

    def _reader(self, run: Run, label: str) -> SpliceReader:
        source, how = self.live[label], choose_loading(self.hardware, self.extraction.devices[label])
        model = None
        if predicts_next(source):
            try:
                model = source.with_head(HEAD, how)
            except BadInput as error:
                run.warn(f"model.{label}: nothing is said of the next token ({error})")
        head = model is not None
        if model is None:
            model = name_errors(label, source.load, False, how)
        counts = tally(run, self.extraction.models)
        return SpliceReader(
            model=model,
            source=source,
            extract=self.extract,
            head=head,
            progress=partial(run.progress, label=f"passes of {label}", unit="batches"),
            count=lambda mask: counts(label, mask),
        )

    def _batches(self, given: Sequences) -> tuple[list[Sequences], list[Int[np.ndarray, " b"]]]:
        lengths = measure_lengths(find_used(given, self.extract))
        members = list(batch_by_length(lengths, self.hardware))
        return [given.take(part, int(lengths[part].max())) for part in members], members

    def _train(self, run: Run, reader: SpliceReader, given: Sequences) -> dict[str, Dictionary]:
        """Trains dictionaries of the base, or takes them from the cache."""
        parts: dict[HookPoint, list[torch.Tensor]] = {}
        with run.stage("activations"), torch.inference_mode():
            for rows in reader.rows(self._batches(given)[0], list(self.points.values())):
                for point, x in rows.items():
                    parts.setdefault(point, []).append(x.cpu())
        made = {}
        with run.stage("dictionaries"):
            for name, point in self.points.items():
                x = torch.cat(parts[point])
                trained = train_dictionary([x], self.recipe, seed=self.seed, digest=hash_arrays([x.numpy()]))
                label = f"{self.base}@{point}"
                trained.folder(lambda items, *, label=label, **_: run.progress(items, label=label, unit="steps"))
                made[name] = load(list_model_folders(trained, 1)[0])
        return made
