"""Fine-tuning of an encoder as a classifier of labelled text, with metrics by kind of example."""

import copy
import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from repsim_cli.activations.outputs import batch_in_order, compute_logits
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import EVERYTHING, Above0, Extract, From0, Medium, NotNegative, Positive
from repsim_cli.data.base import Labels, Sequences
from repsim_cli.data.labelled import Example, Examples
from repsim_cli.data.labels import Scoring
from repsim_cli.models.library import import_transformers
from repsim_cli.models.pretrained import load
from repsim_cli.training.blocks import Freeze
from repsim_cli.training.loop import Along, Pace, check_warm_up, train
from repsim_cli.training.sparse import SparseTraining, Sparsity
from repsim_cli.training.trained import Metrics

CODE = 2  # raise when a change of the code changes the trained weights (tests/test_codes.py)
LOGGED = 50  # points of the loss curve, roughly
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}


@dataclass(frozen=True, kw_only=True)
class EncoderRecipe:
    """How an encoder is trained with a head: AdamW, with a rate that rises linearly and then falls linearly to zero.

    length: tokens that are kept of an example, from the first.
    epochs: passes over the data, where `steps` is null.
    steps: how many steps of training; null: as many as `epochs` take.
    batch_size: examples per step.
    learning_rate: the largest rate, after the warm-up.
    warm_up: the steps over which the rate rises.
    weight_decay: of AdamW; norms and biases do not decay.
    clip: gradients of a larger norm are scaled down to this one.
    device: the torch device that models are trained on.
    """

    length: Medium = 128
    epochs: Above0 = 3.0
    steps: Positive | None = None
    batch_size: Medium = 32
    learning_rate: Above0 = 2e-5
    warm_up: NotNegative = 0
    weight_decay: From0 = 0.0
    clip: Above0 = 1.0
    device: str = "cpu"

    def total(self, examples: int) -> int:
        """The number of steps that training takes on this number of examples. Raises BadInput for a warm-up as long."""
        steps = self.steps or math.ceil(math.ceil(examples / self.batch_size) * self.epochs)
        check_warm_up(self.warm_up, steps)
        return steps

    def rate(self, step: int, total: int) -> float:
        if step < self.warm_up:
            return self.learning_rate * (step / self.warm_up)
        return self.learning_rate * ((total - step) / max(1, total - self.warm_up))


@dataclass(frozen=True, kw_only=True)
class FineTuneRecipe(EncoderRecipe):
    """How a classifier is trained. Raises BadInput for fewer than two checkpoints, one after the last step, or sparsity
    with frozen blocks.

    sparsity: how attention heads and MLP neurons are removed during the training; null: none are.
    freeze: the blocks that do not train; null: all weights are trained.
    save: the steps whose weights are kept, so that the classifier is a series of checkpoints; 0 is before the first;
        null: none.
    """

    sparsity: Sparsity | None = None
    freeze: Freeze | None = None
    save: list[NotNegative] | None = None

    def __post_init__(self) -> None:
        if self.save is not None and len(set(self.save)) < max(len(self.save), 2):
            raise BadInput(f"save: not two or more distinct steps, got {self.save}; change them")
        if self.steps is not None:
            self.check(self.steps)
        if self.sparsity is not None and self.freeze is not None:
            raise BadInput(
                "sparsity: not with frozen blocks, which keep their weights, got freeze too; drop one of them"
            )

    @property
    def kept(self) -> list[int]:
        return sorted(self.save or [])

    def check(self, total: int) -> None:
        """Raises BadInput for a checkpoint after the last of `total` steps, and for a warm-up as long."""
        check_warm_up(self.warm_up, total)
        if self.kept and self.kept[-1] > total:
            raise BadInput(f"save: no such step, got {self.kept[-1]}; steps go from 0 to {total}")


def build_word_tokenizer(texts: Iterable[str], vocabulary: int, length: int) -> Any:
    """A lower-case tokenizer of the `vocabulary` most frequent words of the texts, special tokens included, equally
    frequent words in alphabetical order. Pairs are [CLS] a [SEP] b [SEP], with token types 0 and 1.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    lower, split = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    # a space ends a word, whatever stands around it: equal pieces are looked at once
    pieces = Counter(piece for text in texts for piece in text.split(" "))
    counts: Counter[str] = Counter()
    for piece, count in pieces.items():
        for word, _ in split.pre_tokenize_str(lower.normalize_str(piece)):
            counts[word] += count
    words = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - len(SPECIAL)]
    ids = {word: number for number, word in enumerate([*SPECIAL.values(), *words])}
    whole = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL["unk_token"]))
    whole.normalizer, whole.pre_tokenizer = lower, split
    cls, sep = SPECIAL["cls_token"], SPECIAL["sep_token"]
    whole.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, ids[cls]), (sep, ids[sep])],
    )
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=whole, model_max_length=length, model_input_names=inputs, **SPECIAL)


def encode_examples(data: Examples, tokenizer: Any, length: int) -> Sequences:
    """Encodes all examples of the data, in their order, cut to `length` tokens."""
    return data.sequences(tokenizer, Extract(hook_points=["embed"], length=length, sequences=EVERYTHING), 0)


def label_config(config: Any, labels: Sequence[str]) -> Any:
    """A copy of the config for a classifier of these labels, in this order."""
    labelled = copy.deepcopy(config)
    labelled.id2label = dict(enumerate(labels))
    labelled.label2id = {label: code for code, label in enumerate(labels)}
    return labelled


def make_classifier(config: Any, where: str | None, revision: str | None, seed: int) -> Any:
    """A classifier with a random head under the seed; its encoder is random, or loaded from `where` (folder or hub id).

    Parts of the encoder that the checkpoint lacks (a pooler) are random. Raises BadInput where there is no such
    classifier.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = import_transformers().AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    except (ValueError, ZeroDivisionError) as error:  # the latter without blocks
        raise BadInput(
            f"config: no classifier can be made of it, got model_type {config.model_type}; use an encoder"
        ) from error
    if where is not None:
        weights = load(where, revision, False).state_dict()
        there = {name: weight for name, weight in weights.items() if not weight.isnan().any()}
        model.base_model.load_state_dict(there, strict=False)
    return model


def make_labelled_batch(sequences: Sequences, numbers: Int[np.ndarray, " b"], segments: bool) -> dict[str, Tensor]:
    """The inputs of these examples, as long as the longest of them, and their labels."""
    longest = int(sequences.mask[numbers].sum(1).max())
    arrays = {"input_ids": sequences.ids, "attention_mask": sequences.mask}
    if segments and sequences.segments is not None:
        arrays["token_type_ids"] = sequences.segments
    given = {name: torch.from_numpy(array[numbers, :longest]).long() for name, array in arrays.items()}
    assert sequences.labels is not None
    return {**given, "labels": torch.from_numpy(sequences.labels.codes[numbers]).long()}


def make_adamw(model: nn.Module, rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW on all weights that train, with decay of all but norms and biases."""
    trained = [(name, weights) for name, weights in model.named_parameters() if weights.requires_grad]
    decays = [weights.ndim > 1 and "bias" not in name for name, weights in trained]
    groups = [
        {
            "params": [weights for (_, weights), decay in zip(trained, decays, strict=True) if decay == wanted],
            **settings,
        }
        for wanted, settings in ((True, {"weight_decay": weight_decay}), (False, {"weight_decay": 0.0}))
    ]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate, fused=True)


def train_on(
    model: nn.Module,
    examples: int,
    recipe: EncoderRecipe,
    loss: Callable[[Int[np.ndarray, " b"], np.random.Generator], Tensor],
    *,
    seed: int,
    along: Along = Along(),  # noqa: B008 - frozen
    sparsity: SparseTraining | None = None,
) -> dict[int, float]:
    """Trains the model in place; returns the mean loss since the last point, by step.

    loss(numbers, draw): of the examples of these numbers. seed: of the order of the examples, which is drawn anew for
    each epoch, of dropout and of `draw`. The same seed gives the same weights on the same machine.
    """
    per_epoch = math.ceil(examples / recipe.batch_size)
    total = recipe.total(examples)

    @functools.lru_cache(maxsize=1)
    def order(epoch: int) -> Int[np.ndarray, " N"]:
        return torch.randperm(examples, generator=torch.Generator().manual_seed(seed + epoch)).numpy()

    def compute_step_loss(step: int, draw: np.random.Generator) -> Tensor:
        epoch, start = step // per_epoch, step % per_epoch * recipe.batch_size
        return loss(order(epoch)[start : start + recipe.batch_size], draw)

    devices = [recipe.device] if torch.device(recipe.device).type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        losses = list(
            train(
                model,
                make_adamw(model, recipe.learning_rate, recipe.weight_decay),
                compute_step_loss,
                pace=Pace(
                    along.progress(range(total), label="training", unit="steps"),
                    lambda step: recipe.rate(step, total),
                    recipe.clip,
                ),
                seed=seed,
                along=along,
                sparsity=sparsity,
            )
        )
    every = max(1, total // LOGGED)
    return {end: float(np.mean(losses[end - every : end])) for end in range(every, total + 1, every)}


def fine_tune(
    model: Any, sequences: Sequences, recipe: FineTuneRecipe, *, segments: bool, **settings: Any
) -> dict[int, float]:
    """Trains the classifier in place; `settings` and what is returned as of `train_on`, in nats."""

    def loss(numbers: Int[np.ndarray, " b"], _: np.random.Generator) -> Tensor:
        inputs = {name: x.to(recipe.device) for name, x in make_labelled_batch(sequences, numbers, segments).items()}
        labels = inputs.pop("labels")
        return nn.functional.cross_entropy(model(**inputs).logits, labels)

    count = len(sequences.ids)
    sparse = recipe.sparsity and SparseTraining(model.config, model.base_model, recipe.sparsity, recipe.total(count))
    return train_on(model, count, recipe, loss, sparsity=sparse, **settings)


def compute_class_logits(model: Any, sequences: Sequences, *, segments: bool, batch_size: int) -> Float[Tensor, "N c"]:
    """The logits of a classifier for all sequences, on the CPU."""
    model.eval()
    parts = compute_logits(model, sequences, batch_in_order(sequences, batch_size), segments=segments)
    return torch.cat([part.cpu() for part in parts])


def score_in_distribution(logits: Float[Tensor, "N c"], labels: Labels | None, scored: Scoring) -> Metrics:
    """Scores accuracy; where the model and the data have the same labels, also loss in nats and, of two labels, f1 of
    the second (`positive` of reviews)."""
    assert labels is not None
    answers = logits.argmax(1).numpy()
    metrics = {"accuracy": float(scored.correct(answers, labels.codes).mean())}
    if len(scored.names) == logits.shape[1] == len(labels.names):
        if len(scored.names) == 2:
            said, true = scored.model[answers] == 1, scored.data[labels.codes] == 1
            metrics["f1"] = float(2 * (said & true).sum() / max(1, said.sum() + true.sum()))
        order = torch.from_numpy(np.argsort(scored.model))
        codes = torch.from_numpy(scored.data[labels.codes]).long()
        metrics["loss"] = float(nn.functional.cross_entropy(logits[:, order], codes))
    return metrics


def score_by_heuristic(
    logits: Float[Tensor, "N c"], sequences: Sequences, scored: Scoring, examples: Sequence[Example]
) -> Metrics:
    """Scores hans_accuracy, hans_HEURISTIC over its labels (half of it is right where the heuristic is always
    followed), hans_HEURISTIC_LABEL for every combination in the data, and hans_SUBCASE."""
    labels, numbers = sequences.labels, sequences.example
    assert labels is not None
    assert numbers is not None
    correct = scored.correct(logits.argmax(1).numpy(), labels.codes)
    groups: defaultdict[str, list[bool]] = defaultdict(list)
    for right, example in zip(correct, (examples[number] for number in numbers), strict=True):
        for name in ("accuracy", example.heuristic, f"{example.heuristic}_{example.label}", example.subcase):
            groups[f"hans_{re.sub(r'[^0-9A-Za-z]+', '_', str(name))}"].append(bool(right))
    return {name: float(np.mean(answers)) for name, answers in groups.items()}
