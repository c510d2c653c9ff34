"""Classifiers trained from an encoder and labelled text when they are first needed: a family with a model per seed."""

import functools
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput
from repsim_cli.base.planning import check_device, is_dry
from repsim_cli.base.registry import models
from repsim_cli.base.settings import NotNegative, Seed
from repsim_cli.data.base import Data, Sequences, draw
from repsim_cli.data.labelled import Examples
from repsim_cli.data.labels import Scoring, match_labels
from repsim_cli.data.packing import Text
from repsim_cli.models.checkpoints import find_weight_files, hash_files
from repsim_cli.models.configs import build_source_from_config, find_config, hash_config, inline_config
from repsim_cli.models.decoders import DECODERS
from repsim_cli.models.loading import WHOLE, disable_cache
from repsim_cli.models.pretrained import load, load_with_head
from repsim_cli.models.series import METRICS, read_metrics
from repsim_cli.models.source import Checkpoint, Family, Series, Source, TrainingWork
from repsim_cli.models.tokenizers import load_tokenizer
from repsim_cli.models.transformers import Place, check_place, place
from repsim_cli.runs.reader import STATE
from repsim_cli.runs.results import Progress, dumps, write
from repsim_cli.training.blocks import freeze_blocks, is_frozen, keep_first_blocks
from repsim_cli.training.encoder import (
    RECORD,
    SHARED_SEED,
    SharedEncoder,
    check_length,
    define_language_model,
    hash_json,
    load_mask_tokenizer,
)
from repsim_cli.training.finetune import (
    CODE,
    FineTuneRecipe,
    build_word_tokenizer,
    compute_class_logits,
    encode_examples,
    fine_tune,
    label_config,
    make_classifier,
    score_by_heuristic,
    score_in_distribution,
)
from repsim_cli.training.loop import Along, keep_nothing
from repsim_cli.training.masked import mark_tokenizer
from repsim_cli.training.sparse import compute_achieved, find_prunable_blocks
from repsim_cli.training.trained import Metrics, Trained

Folders = tuple[Path, Path, Progress]  # of the model, of its state, and what shows how far the training is
SEEN = 1000  # examples of the training loss of a checkpoint


@models.register("finetuned")
def finetuned(  # noqa: PLR0913 - keys of YAML
    *,
    config: dict[str, Any] | None = None,
    path: str | None = None,
    hub: str | None = None,
    revision: str | None = None,
    tokenizer: str | None = None,
    shared: SharedEncoder | None = None,
    blocks: NotNegative | None = None,
    train: Data,
    evaluate: Data,
    hans: Data | None = None,
    seeds: Annotated[list[Seed], Field(min_length=1)],
    recipe: FineTuneRecipe,
) -> Family:
    """Classifiers of the labels of `train`, one per seed (LABEL_0, LABEL_1, ...), trained when they are first needed.

    The encoder is pretrained (`path` or `hub`), or made from `config`: with random weights under each seed, or with
    `shared` ones, so that all seeds start from the same encoder, as with a pretrained one. The classification head is
    random under each seed. With recipe.save each of them is a series of checkpoints, whose metrics are those of
    `evaluate` and training_loss (nats, on a thousand examples of `train`).

    config: a transformers config of an encoder, with its `model_type`; give one of config, path and hub.
    path: a folder with a pretrained encoder and its tokenizer.
    hub: the hub id of a pretrained encoder.
    revision: a branch, tag or commit of the hub id; null: its main branch.
    tokenizer: with `config`, a folder, a hub id or the shipped word_pieces (texts become [CLS] a [SEP] b [SEP]); null:
        one of the config.vocab_size most frequent words of `train`.
    shared: with `config`, how the encoder that all seeds start from is trained; null: random weights under each seed.
    blocks: how many of its first blocks the encoder keeps, before it is trained; 0: its embeddings alone; null: all.
    train: the labelled examples to train on.
    evaluate: the examples of the metrics accuracy, f1 (of two labels, of the second) and loss (nats). The models are
        trained again if these examples change.
    hans: examples with heuristics, for the metric hans_accuracy and the accuracies by heuristic and label and by
        subcase; null: none.
    seeds: of the random weights, the order of the examples and dropout.
    recipe: how each classifier is trained. With `recipe.sparsity` the metrics have `sparsity`, the share of zero
        weights in the attention and MLP matrices of the blocks, `heads_removed` and `neurons_removed`.
    Example: repsim run model=[] +model.mine='{kind: finetuned, path: DIR, train: {kind: mnli, path: FILE}, evaluate:
        {kind: mnli, path: FILE}, seeds: [0, 1]}' data=mnli data.path=FILE extract=pooled
    """
    _check_given(config, (path, hub, revision), {"tokenizer": tokenizer, "shared": shared and shared.data.source})
    if len(set(seeds)) < len(seeds) or min(seeds) < 0 or max(seeds) >= SHARED_SEED:
        raise BadInput(f"seeds: not distinct numbers from 0 to {SHARED_SEED - 1}, got {seeds}; name each seed once")
    data = {
        "shared": None if shared is None or isinstance(shared.data, Text) else shared.data,
        "train": train,
        "evaluate": evaluate,
        "hans": hans,
    }
    sets = {name: _check_labelled(name, entry).keep() for name, entry in data.items() if entry is not None}
    labels = sets["train"].names
    scored = {name: match_labels(labels, sets[name].names, name) for name in ("evaluate", "hans") if name in sets}
    encoder = place(path, hub, revision) if config is None else None
    plain = encoder.config if encoder is not None else inline_config(config or {})
    if plain.model_type in DECODERS and plain.pad_token_id is None:
        raise BadInput(
            f"config: {plain.model_type} classifies by the last token before padding, got no pad_token_id; "
            "set it in the model's config"
        )
    cut = plain if blocks is None else keep_first_blocks(plain, blocks)
    start = Start(encoder, revision, tokenizer, plain, cut, label_config(cut, labels))
    made = Classifiers(start, shared, sets, scored, recipe)
    return Family(sources={str(seed): made.member(seed) for seed in seeds})


def _check_given(
    config: dict[str, Any] | None, place: tuple[str | None, str | None, str | None], own: Mapping[str, str | None]
) -> None:
    """Raises BadInput unless there is one encoder. place: path, hub, revision. own: what a pretrained one has."""
    path, hub, revision = place
    if config is not None and place != (None, None, None):
        raise BadInput(
            f"config, path, hub: give exactly one of them, got config and {path or hub or revision}; drop one"
        )
    if config is None:
        check_place(path, hub, revision)
        for key, given in own.items():
            if given is not None:
                raise BadInput(f"{key}: a pretrained encoder has its own, got '{given}'; drop it, or give config")


@dataclass(frozen=True)
class Start:
    """The encoder before it is trained: pretrained, or of a config.

    plain, cut: its config, and with the first blocks alone. settings: of the classifier.
    """

    encoder: Place | None
    revision: str | None
    tokenizer: str | None
    plain: Any
    cut: Any
    settings: Any


class Classifiers:
    """The classifiers of one entry: what they read, and how each is trained when it is first needed."""

    def __init__(
        self,
        start: Start,
        shared: SharedEncoder | None,
        sets: Mapping[str, Examples],
        scored: Mapping[str, Scoring],
        recipe: FineTuneRecipe,
    ):
        self.start, self.shared, self.sets, self.scored, self.recipe = start, shared, sets, scored, recipe
        self.settings, self.labels = start.settings, sets["train"].names
        # before any model changes them
        self.whole_shape, self.cut_shape = (hash_config(each.to_dict()) for each in (start.plain, start.cut))
        self.text = shared.data if shared is not None and isinstance(shared.data, Text) else None
        if self.text is not None:
            load_mask_tokenizer(start.plain, start.tokenizer)
        recipes = {"recipe": recipe, **({} if shared is None else {"shared.recipe": shared.recipe})}
        if is_dry():  # a model from the cache needs no such device, wherever it was trained
            for key, settings_of in recipes.items():
                check_device(f"{key}.device", settings_of.device)
        self.bare = build_source_from_config(
            self.settings, self.tokens, lambda eager, how=WHOLE: nn.Module(), dict, None
        )
        if recipe.sparsity is not None:
            find_prunable_blocks(self.settings, self.bare.skeleton)
        for key, settings_of in recipes.items():
            check_length(f"{key}.length", settings_of, self.bare)
        self.frozen = is_frozen(self.bare, recipe.freeze) if recipe.freeze is not None else None
        self.sequences, self.content = functools.cache(self._sequences), functools.cache(self._content)
        self.define = functools.cache(self._define)

    def _make_tokens(self) -> Any:
        start = self.start
        if start.encoder is not None:
            return load_tokenizer(start.encoder.where, start.revision)
        if start.tokenizer is not None:
            return mark_tokenizer(start.tokenizer)
        texts = (text for example in self.sets["train"].examples()[0] for text in example.texts)
        return build_word_tokenizer(texts, self.settings.vocab_size, self.recipe.length)

    @functools.cached_property
    def tokens_and_digest(self) -> tuple[Any, str]:
        """The tokenizer, and its digest, taken before any use: use stores truncation in it."""
        words = self._make_tokens()
        return words, hash_json(words.backend_tokenizer.to_str() if getattr(words, "is_fast", False) else str(words))

    def tokens(self) -> Any:
        return self.tokens_and_digest[0]

    def _sequences(self, name: str) -> Sequences:
        shared, recipe = self.shared, self.recipe
        length = shared.recipe.length if shared is not None and name == "shared" else recipe.length
        encoded = encode_examples(self.sets[name], self.tokens(), length)
        if encoded.labels is None:
            raise BadInput(
                f"{name}: a classifier needs a label per example, got none in {self.sets[name].source}; add them"
            )
        return encoded

    def _content(self, name: str) -> str:
        return hash_json([list(vars(example).values()) for example in self.sets[name].examples()[0]])

    def parts(self, shape: str, recipe: FineTuneRecipe, *names: str) -> dict[str, Any]:
        encoder = self.start.encoder
        return {
            "code": CODE,
            "config": shape,
            "encoder": None if encoder is None else encoder.identity()["weights_hash"],
            "tokenizer": self.tokens_and_digest[1],
            "data": {name: self.content(name) for name in names},
            "recipe": asdict(recipe),
        }

    def work(self, name: str, recipe: FineTuneRecipe) -> TrainingWork:
        """Estimates the work of a training, from the mean length of its examples."""
        examples = self.sequences(name)
        steps = recipe.total(len(examples.ids))
        return TrainingWork(
            steps=steps, tokens=round(steps * recipe.batch_size * examples.mask.sum() / len(examples.ids))
        )

    def fit(
        self,
        model: Any,
        name: str,
        recipe: FineTuneRecipe,
        seed: int,
        place: Folders,
        save: Callable[[int], None] = keep_nothing,
    ) -> None:
        """Trains the classifier on the data of this name, and saves it in the folder."""
        folder, scratch, progress = place
        start = time.process_time()
        losses = fine_tune(
            model,
            self.sequences(name),
            recipe,
            segments=self.bare.segments,
            seed=seed,
            along=Along(save=save, state=scratch / STATE, progress=progress),
        )
        record = {"seed": seed, "recipe": asdict(recipe), "loss": losses, "cpu_seconds": time.process_time() - start}
        if name == "train":
            record["evaluated"] = len(self.sequences("evaluate").ids)
        if self.recipe.sparsity is not None:
            record["blocks"] = compute_achieved(find_prunable_blocks(model.config, model.base_model))[1]
        model.save_pretrained(folder)
        self.tokens().save_pretrained(folder)
        (folder / RECORD).write_text(dumps(record))

    @functools.cached_property
    def first(self) -> Trained | None:
        """The encoder that all seeds start from, where it is trained here."""
        if self.shared is None:
            return None
        if self.text is not None:
            return define_language_model(self.start.plain, self.tokens(), self.text, self.shared.recipe)
        shape = label_config(self.start.plain, self.sets["shared"].names)
        recipe = FineTuneRecipe(**vars(self.shared.recipe))

        def train(folder: Path, scratch: Path, progress: Progress) -> Metrics:
            check_device("shared.recipe.device", recipe.device)
            model = make_classifier(shape, None, self.start.revision, SHARED_SEED).to(recipe.device)
            self.fit(model, "shared", recipe, SHARED_SEED, (folder, scratch, progress))
            return {}

        made_of = {**self.parts(self.whole_shape, recipe, "shared"), "seed": SHARED_SEED}
        return Trained(made_of, train, lambda: self.work("shared", recipe))

    def _define(self, seed: int) -> Trained:
        first = self.first
        made_of = self.parts(self.cut_shape, self.recipe, "train", *self.scored)
        return Trained(
            {**made_of, "start": first and first.key, "seed": seed},
            functools.partial(self.train, seed),
            lambda: self.work("train", self.recipe),
        )

    def train(self, seed: int, folder: Path, scratch: Path, progress: Progress) -> Metrics:
        """Trains the classifier of a seed; returns its metrics."""
        recipe, encoder, train = self.recipe, self.start.encoder, self.sequences("train")
        check_device("recipe.device", recipe.device)
        recipe.check(recipe.total(len(train.ids)))
        where = str(self.first.folder(progress)) if self.first is not None else encoder and encoder.where
        model = make_classifier(self.settings, where, self.start.revision, seed).to(recipe.device)
        if self.frozen is not None:
            freeze_blocks(model.base_model, self.frozen)
        steps = scratch / "steps"

        def keep(step: int) -> None:
            if step not in recipe.kept:
                return
            model.save_pretrained(steps / f"step{step}")
            self.tokens().save_pretrained(steps / f"step{step}")
            some = train.take(draw(len(train.ids), SEEN, seed))
            of_training = score_in_distribution(
                self.answers(model, some), some.labels, match_labels(self.labels, self.labels, "train")
            )
            metrics = {**self.scores(model), "training_loss": of_training["loss"]}
            write(steps / f"step{step}" / METRICS, dumps(metrics).encode())

        self.fit(model, "train", recipe, seed, (folder, scratch, progress), keep)
        if recipe.kept:
            shutil.copytree(steps, folder, dirs_exist_ok=True)
        metrics = self.scores(model)
        if "hans" in self.scored:
            of = self.sequences("hans")
            metrics |= score_by_heuristic(
                self.answers(model, of), of, self.scored["hans"], self.sets["hans"].examples()[0]
            )
        return metrics

    def answers(self, model: Any, of: Sequences) -> Float[Tensor, "N c"]:
        return compute_class_logits(model, of, segments=self.bare.segments, batch_size=self.recipe.batch_size)

    def scores(self, model: Any) -> Metrics:
        of = self.sequences("evaluate")
        metrics = score_in_distribution(self.answers(model, of), of.labels, self.scored["evaluate"])
        if self.recipe.sparsity is not None:
            metrics |= compute_achieved(find_prunable_blocks(model.config, model.base_model))[0]
        return metrics

    def find_missing(self, seed: int) -> dict[str, Callable[[], TrainingWork]]:
        return {**(self.first.find_missing() if self.first is not None else {}), **self.define(seed).find_missing()}

    def source_of(self, seed: int, name: str, metrics: Callable[[], Metrics], **more: Any) -> Source:
        """The classifier of a seed, or the checkpoint of this name."""

        def folder() -> str:
            return str(self.define(seed).folder() / name)

        def identity() -> dict[str, Any]:
            where = folder()
            return {
                "source": str(Path(f"trained here, models/{self.define(seed).key}") / name),
                "trained": self.define(seed).key,
                "weights_hash": hash_files(find_weight_files(Path(where))),
                "config_hash": hash_config(find_config(where).to_dict()),
                "metrics": metrics(),
            }

        return replace(
            self.bare,
            load=lambda eager, how=WHOLE: disable_cache(load(folder(), None, eager, how=how)),
            with_head=lambda auto, how=WHOLE: load_with_head(folder(), None, auto, how),
            identity=identity,
            metrics=metrics,
            labels=self.labels,
            **more,
        )

    def checkpoint(self, seed: int, step: int) -> Source:
        name = f"step{step}"
        return self.source_of(seed, name, lambda: read_metrics(self.define(seed).folder() / name))

    def member(self, seed: int) -> Source | Series:
        def make(progress: Progress) -> None:
            self.define(seed).folder(progress)

        if not self.recipe.kept:
            needed = functools.partial(self.find_missing, seed)
            return self.source_of(seed, "", lambda: self.define(seed).metrics(), make=make, work=needed)
        checkpoints = [
            Checkpoint(step=step, open=functools.partial(self.checkpoint, seed, step)) for step in self.recipe.kept
        ]
        return Series(checkpoints=checkpoints, local=False, make=make)


def _check_labelled(name: str, data: Data) -> Examples:
    if not isinstance(data, Examples):
        raise BadInput(f"{name}: a classifier needs labelled examples, got {data.source}; e.g. {{kind: mnli, ...}}")
    return data
