"""Stitching of pairs of models: the performance lost when one model's later blocks run on another's residual stream."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Unpack

import torch
from torch import nn

from repsim_cli.activations.inputs import check_modality, load_tokenizers
from repsim_cli.activations.readings import assign_devices
from repsim_cli.base.closure import collect_code
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.registry import studies
from repsim_cli.base.settings import Group
from repsim_cli.data.base import Sequences
from repsim_cli.data.labelled import Examples
from repsim_cli.engine.bounds import check_memory, describe_models, suggest_memory_limit
from repsim_cli.engine.cost import Cost, describe_needs
from repsim_cli.engine.extraction import make_noted_sequences
from repsim_cli.engine.grouped import check_metrics, choose_models, list_group_members, select_group_models
from repsim_cli.engine.rows import prepare
from repsim_cli.engine.study import RESIDENT, SAMPLING, TEXTS, OfRows, Study
from repsim_cli.engine.unit import Kinds, Phase, Unit
from repsim_cli.runs.cache import Entry, make_cache_key, trim, use
from repsim_cli.runs.content import Results
from repsim_cli.runs.results import Progress, Run, open_scratch_run, quiet
from repsim_cli.studies.stitching.checks import check_all_stitchable, check_groups, check_recipe
from repsim_cli.studies.stitching.cost import Amounts, estimate_costs, estimate_memory
from repsim_cli.studies.stitching.evaluate import (
    Head,
    PassSettings,
    PredictionTask,
    Stitch,
    StitchScores,
    evaluate_stitches,
    make_classification_task,
    make_next_token_task,
)
from repsim_cli.studies.stitching.held_out import (
    Held,
    count_held_out,
    identify_sequences,
    number_evaluated,
    split_sequences,
)
from repsim_cli.studies.stitching.layers import check_layer
from repsim_cli.studies.stitching.models import Whole, open_whole, scramble
from repsim_cli.studies.stitching.results import make_group_results, make_pair_results, warn_of_misled
from repsim_cli.studies.stitching.shared import measure_shared
from repsim_cli.studies.stitching.stitches import (
    Baseline,
    list_cut_layers,
    list_different_pairs,
    list_heads,
    list_stitched_pairs,
    list_stitches,
)
from repsim_cli.studies.stitching.train import Fitting, StitchFit, StitchRecipe, fit_key, fit_stitches

HELD = 2  # whole models that a worker keeps


@studies.register("stitching")
class Stitching(Study):
    """Runs the later blocks of one model on the residual stream of another, through a stitch layer, and measures what
    is lost.

    The stitched model has blocks 0..l of one model (the head), a stitch layer, and blocks l+1..last of another (the
    tail), at every layer l of extract.hook_points (`embed`, `resid_post`). Language models on text lose cross-entropy
    of the next token, classifiers on labelled examples lose accuracy too. With `groups`, every model of the groups is
    the head of every other.

    pairs: [[HEAD, TAIL], ...], by label; null: every model with every other.
    grid: the head's blocks up to every layer with the tail's blocks after every layer, not only after the same one.
    evaluation: how many of the last of extract.sequences are kept for evaluation: nothing is fitted on them, nor on
        their documents, unless the text is one document; `auto`: 64, at most half of them where layers are fitted;
        null: all of them, for stitch layers that are not fitted.
    baselines: heads for every tail beside other models: the tail itself (`self`), with its weights in random order
        (`random`), with the rows of every batch in random order (`shuffled`), or with noise about a centre for each
        right answer in place of its rows (`noise`); null: none.
    recipe: the stitch layers and how they are fitted.
    labels: the names of classifiers' labels, in the order of their logits, where configs do not name them; null: those
        of configs.
    Example: repsim run study=stitching model=[] +model.mine='{kind: transformers, path: DIR}' +model.other='{kind:
        transformers, path: DIR}' data=local_text data.path=FILE data.sample_by=paragraph
        extract.sequences=100 extract.layers=[0,2,5] options.recipe.layer=least_squares
    """

    unread: ClassVar[Sequence[str]] = ("extract.unit", "extract.padding", *SAMPLING, TEXTS, RESIDENT)

    def __init__(
        self,
        *,
        groups: Mapping[str, Group] | None = None,
        pairs: list[list[str]] | None = None,
        grid: bool = False,
        evaluation: Held = "auto",
        baselines: list[Baseline] | None = None,
        recipe: StitchRecipe,
        labels: list[str] | None = None,
        **given: Unpack[OfRows],
    ):
        self.data, self.hardware, self.seed = given["data"], given["hardware"], given["seed"]
        self.cache = given.get("cache", True)
        self.groups, self.grid, self.baselines = groups or {}, grid, baselines or []
        self.evaluation: Held = evaluation
        self.extract = replace(given["extract"], unit="token", padding="drop")
        self.recipe, self.labels = recipe, labels
        models = select_group_models(given["model"], list_group_members(self.groups))
        check_metrics(self.groups, models)
        self.every = self.models = check_all_stitchable(models, self.auto)
        check_modality(self.models, self.data)
        if isinstance(self.data, Examples) and not self.data.labelled:
            raise BadInput(
                f"data: classifiers need a label per example, got none in {self.data.source}; use other data"
            )
        check_recipe(recipe, evaluation, self.extract, self.hardware)
        if self.groups:
            check_groups(self.models, {"pairs": pairs, "grid": grid, "baselines": self.baselines})
        self.layers = {label: list_cut_layers(label, source, self.extract) for label, source in self.models.items()}
        self._stitch(list_different_pairs(self.models) if self.groups else list_stitched_pairs(self.models, pairs))
        if not self.stitches:
            raise BadInput(
                f"extract.layers: no pair of models shares a layer, got {self.extract.layers}; use all, or grid"
            )
        for stitch in self.stitches:
            self._check_widths(stitch)
        self.devices = assign_devices(self.hardware, list(self.models))
        self.tokenizers = load_tokenizers(self.models, self.data, self.extract)
        if isinstance(self.data, Examples):
            make_classification_task(self.models, self.data.names, labels)
        need = sum(self.memory().values())
        advice = f"{suggest_memory_limit(need)}, or lower hardware.batch_size or extract.length, or use fewer models"
        check_memory(need, self.hardware, advice)

    @property
    def auto(self) -> Any:
        labelled = isinstance(self.data, Examples)
        return "AutoModelForSequenceClassification" if labelled else "AutoModelForCausalLM"

    def _stitch(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Sets the heads by their tails, and all stitches."""
        self.pairs = list(pairs)
        self.heads = list_heads(pairs, self.baselines)
        self.stitches = list_stitches(self.heads, self.layers, grid=self.grid)

    def _check_widths(self, stitch: Stitch) -> None:
        head, tail = ((label, self.models[label].width) for label in (stitch.head.model, stitch.tail))
        check_layer(self.recipe.layer, self.recipe.init, head, tail)

    @property
    def amounts(self) -> Amounts:
        heads = [head for each in self.heads.values() for head in each]
        return Amounts(
            stitches=self._count_planned()[1],
            every=len(self.stitches),
            heads=len(heads),
            random=sum(head.kind == "random" for head in heads),
            evaluated=self._count_evaluated(),
            vocabularies=self.auto.endswith("LM"),
        )

    def memory(self) -> dict[str, float]:
        return estimate_memory(self.models, self.amounts, self.extract, self.hardware, self.recipe)

    def costs(self) -> dict[str, Cost]:
        return estimate_costs(self.models, self.amounts, self.data, self.extract, self.hardware, self.recipe)

    def plan(self) -> dict[str, Any]:
        recipe, length = self.recipe, self.extract.length
        steps = recipe.steps if recipe.trained else 0
        groups = {"groups": dict(self.groups)} if self.groups else {}
        return {
            "models": describe_models(self.models, self.hardware),
            **groups,
            "stitches": self._count_planned()[1],
            "pairs of models": self._count_planned()[0],
            "stitch layer": recipe.layer,
            "training steps of each": steps,
            "tokens per step, at most": recipe.batch * length if steps else 0,
            "training tokens of each, at most": steps * recipe.batch * length,
            "evaluation tokens, at most": self._count_evaluated() * length,
            **describe_needs(self.costs(), self.hardware, memory=self.memory()),
        }

    def _count_planned(self) -> tuple[int, int]:
        """Numbers of pairs of models and of stitches; the run may choose the models of groups."""
        sizes = [len(group) if isinstance(group, list) else group.top or group.bottom for group in self.groups.values()]
        count = sum(size or 0 for size in sizes)
        pairs = count * (count - 1) if self.groups else len(self.pairs)
        return pairs, len(self.stitches) * pairs // len(self.pairs)

    def _count_evaluated(self) -> int:
        return min(count_held_out(self.evaluation, self.extract.sequences, self.recipe.fitted), self.extract.sequences)

    def run(self, run: Run) -> Results:
        hardware = self.hardware
        prepare(run, hardware)
        members = self.choose(run)
        with run.stage("data"):
            train, held = self.parts(run)
            task, documents = self.task(held), number_evaluated(held, run.warn)
        with run.stage("hashes"):
            identities = {label: source.identity() for label, source in self.models.items()}
            run.input("models", identities)
        run.save_manifest()
        with run.stage("models"):
            wholes = {label: self.open_whole(label) for label in self.models}
            heads = {head: self.prepare_head(head, wholes[head.model]) for each in self.heads.values() for head in each}
        keys = self.keys(self.stitches, identities, train, task)
        fits: dict[Stitch, StitchFit] = {}
        with run.stage("stitch layers"):
            for tail, each in self.heads.items() if self.recipe.fitted else ():
                for head in each:
                    between = {s: keys[s] for s in self.stitches if s.head == head and s.tail == tail}
                    with self.entries("stitches", [*between.values()]) as entries:
                        of = {s: entries[name] for s, name in between.items() if entries}
                        fits |= self.fit_stitches(heads[head], wholes[tail], [*between], train, task, of, run.progress)
        for stitch, fit in fits.items():
            if fit.diverged is not None:
                run.warn(f"{stitch}: its training diverged at step {fit.diverged}; its penalty is missing")
        whole = [s for s in self.stitches if s not in fits or fits[s].diverged is None]
        lost = len(self.stitches) - len(whole)
        if lost and (members or not whole):  # a map of all pairs has no gaps
            what = f"{lost} of {len(self.stitches)} trainings" if whole else "every training"
            raise RunFailed(f"options.recipe.learning_rate: {what} diverged, got {self.recipe.learning_rate}; lower it")
        maps: dict[Stitch, nn.Module] = {s: fits[s].layer for s in whole if s in fits}
        parts = {"stitches": [keys[s] for s in whole], "data": identify_sequences(held), **self._settings}
        name = (code := collect_code(__name__)) and make_cache_key({"code": code.key, **parts})
        with run.stage("stitched models"), self.entries("stitched", [name]) as entries:
            passes = PassSettings(hardware.batch_size, self.seed, run.progress, entries.get(name or ""))
            scores = evaluate_stitches(heads, wholes, whole, held, task, passes, maps)
            scores = replace(scores, documents=documents)
        if self.recipe.fitted:
            with run.stage("rows that are shared"):
                shared = measure_shared(heads, wholes, whole, (train, held), documents, passes)
                scores = replace(scores, shared=shared)
        warn_of_misled(run, scores)
        with run.stage("results"):
            if members:
                return make_group_results(run, members, self.layers, self.pairs, scores)
            about = self._describe(task.outputs != (), len(train.ids), scores)
            return make_pair_results(self.stitches, scores, fits, about)

    def choose(self, run: Run) -> dict[str, list[str]]:
        """Keeps only the models of the groups, some chosen by the metrics that they were saved with.

        Result: the models by group; empty without groups, where all models stay.
        """
        if not self.groups:
            return {}
        with run.stage("groups"):
            members = choose_models(run, self.groups, self.every)
            self.models = {label: self.every[label] for group in members.values() for label in group}
            self._stitch(list_different_pairs(self.models))
        return members

    def task(self, held: Sequences) -> PredictionTask:
        return (
            make_classification_task(self.models, held.labels.names, self.labels)
            if held.labels
            else make_next_token_task()
        )

    def open_whole(self, label: str) -> Whole:
        dtype = getattr(torch, self.hardware.dtype)
        return open_whole(label, self.models[label], self.auto, self.devices[label], dtype)

    @property
    def _settings(self) -> dict[str, Any]:
        """The settings that change the bits of stitch layers and scores, beside what these are made of."""
        return {"dtype": self.hardware.dtype, "batch_size": self.hardware.batch_size, "seed": self.seed}

    def keys(
        self, stitches: Iterable[Stitch], identities: Mapping[str, Any], train: Sequences, task: PredictionTask
    ) -> dict[Stitch, Any]:
        """Makes the cache keys of the stitch layers."""
        return {s: fit_key(s, identities, train, task, self.recipe, self._settings) for s in stitches}

    def fit_stitches(
        self,
        head: Whole,
        tail: Whole,
        stitches: Sequence[Stitch],
        train: Sequences,
        task: PredictionTask,
        entries: Mapping[Stitch, Entry],
        progress: Progress,
    ) -> dict[Stitch, StitchFit]:
        """Fits the stitch layers between a head and a tail; finished ones are read from their entries of the cache."""
        fitting = Fitting(self.recipe, self.hardware.batch_size, self.seed, progress)
        return fit_stitches(head, tail, stitches, train, task, fitting, entries)

    def units(self, run: Run) -> Iterator[Phase]:
        """A unit per head and tail: their stitch layers, which are fitted side by side."""
        self.choose(run)
        if not self.recipe.fitted:
            return
        units = [
            Unit(kind="stitches", name=f"stitches of {head} and {tail}", args={"tail": tail, "head": i}, group=tail)
            for tail, heads in self.heads.items()
            for i, head in enumerate(heads)
        ]
        yield "stitch layers", units

    def worker(self) -> Kinds:
        return {"stitches": StitchWorker(self).fit}

    def parts(self, run: Run) -> tuple[Sequences, Sequences]:
        """The training and the evaluation sequences, their numbers noted in the manifest."""
        used = {label: self.tokenizers[label] for label in self.models}
        sequences = next(
            iter(make_noted_sequences(run, self.models, used, self.data, self.extract, self.seed).values())
        )
        train, held = split_sequences(sequences, self.evaluation, self.recipe.fitted)
        if self.recipe.fitted and sequences.of_one:
            run.warn(
                f"options.evaluation: the text is one document, got its last {len(held.ids)} sequences for the "
                "evaluation and those before them for training; data.sample_by=paragraph makes documents of "
                "the paragraphs of local text"
            )
        run.manifest["rows"] = {"training": len(train.ids), "evaluation": len(held.ids)}
        return train, held

    def prepare_head(self, head: Head, whole: Whole) -> Whole:
        return scramble(whole, self.auto, self.seed) if head.kind == "random" else whole

    @contextmanager
    def entries(self, kind: str, keys: Sequence[str | None]) -> Iterator[Mapping[str, Entry]]:
        known = [name for name in keys if name is not None]
        if not self.cache or not known:
            yield {}
            return
        with use(kind, known) as entries:
            yield entries
        trim()

    def _describe(self, classifiers: bool, training: int, scores: StitchScores) -> dict[str, Any]:
        """Says what figures need to know of the stitches. training: how many sequences."""
        trained = self.recipe.trained
        return {
            "layer": self.recipe.layer,
            "init": self.recipe.init,
            "grid": self.grid,
            "predicts": "label" if classifiers else "next token",
            "steps": self.recipe.steps if trained else 0,
            "tokens_per_step": self.recipe.batch * self.extract.length,
            "training_sequences": training if trained else min(training, self.recipe.init_sequences),
            "evaluation_sequences": len(scores.weights),
            "evaluation_documents": scores.independent,
            "freedom": scores.freedom,
            "kinds": {label: f"{s.model_type.split()[-1]}, {s.layers} blocks" for label, s in self.models.items()},
        }


class StitchWorker:
    """What a worker holds of a run of stitching: what stitch layers are fitted on, hashes, and the last few models."""

    def __init__(self, study: Stitching):
        self.study = study
        self._identities: dict[str, Any] = {}
        self._wholes: dict[str, Whole] = {}

    @cached_property
    def training(self) -> tuple[Sequences, PredictionTask]:
        with open_scratch_run() as run:
            self.study.choose(run)
            train, held = self.study.parts(run)
        return train, self.study.task(held)

    def identity(self, label: str) -> dict[str, Any]:
        if label not in self._identities:
            self._identities[label] = self.study.models[label].identity()
        return self._identities[label]

    def whole(self, label: str) -> Whole:
        whole = self._wholes.pop(label, None) or self.study.open_whole(label)
        self._wholes[label] = whole  # the last to be dropped
        while len(self._wholes) > HELD:
            self._wholes.pop(next(iter(self._wholes)))
        return whole

    def fit(self, run: Run, tail: str, head: int) -> bool:
        """The stitch layers between a head and a tail; whether any was missing."""
        (train, task), study = self.training, self.study
        of = study.heads[tail][head]
        identities = {label: self.identity(label) for label in (of.model, tail)}
        stitches = [s for s in study.stitches if s.head == of and s.tail == tail]
        keys = study.keys(stitches, identities, train, task)
        with study.entries("stitches", [*keys.values()]) as entries:
            if missing := any(not entry.complete for entry in entries.values()):
                known = {s: entries[name] for s, name in keys.items()}
                whole = study.prepare_head(of, self.whole(of.model))
                study.fit_stitches(whole, self.whole(tail), stitches, train, task, known, quiet)
        return missing
