"""Fine-tuning of an encoder as a classifier of labelled text, with metrics by kind of example."""

import copy
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from repsim_cli.activations.outputs import in_order, outputs
from repsim_cli.data.base import Sequences
from repsim_cli.data.labelled import Example, Examples
from repsim_cli.data.labels import Scoring
from repsim_cli.errors import BadInput
from repsim_cli.models.transformers import library, load
from repsim_cli.results import Progress
from repsim_cli.settings import Above0, Extract, From0, Medium, NotNegative, Positive
from repsim_cli.training.trained import Metrics

CODE = 1  # raise when a change of the code changes the trained weights
LOGGED = 50  # points of the loss curve, roughly
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
EVERYTHING = 1 << 30


@dataclass(frozen=True, kw_only=True)
class FineTuneRecipe:
    """How a classifier is trained: AdamW on all weights, with a rate that rises linearly and then falls linearly to
    zero.

    length: examples are cut to so many tokens.
    epochs: passes over the data, where `steps` is null.
    steps: how many steps of training; null: as many as `epochs` take.
    batch_size: examples per step.
    learning_rate: the largest rate, after the warm-up.
    warm_up: the steps over which the rate rises.
    weight_decay: of AdamW.
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


def word_tokenizer(texts: Iterable[str], vocabulary: int, length: int) -> Any:
    """A lower-case tokenizer of the `vocabulary` most frequent words of the texts, special tokens included, equally
    frequent words in alphabetical order. Pairs are [CLS] a [SEP] b [SEP], with token types 0 and 1.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    lower, split = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in split.pre_tokenize_str(lower.normalize_str(text)))
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


def all_sequences(data: Examples, tokenizer: Any, length: int) -> Sequences:
    """Every example of the data, in its order."""
    return data.sequences(tokenizer, Extract(hook_points=["embed"], length=length, sequences=EVERYTHING), 0)


def labelled_config(config: Any, labels: Sequence[str]) -> Any:
    """A copy of the config for a classifier of these labels, in this order."""
    labelled = copy.deepcopy(config)
    labelled.id2label = dict(enumerate(labels))
    labelled.label2id = {label: code for code, label in enumerate(labels)}
    return labelled


def classifier(config: Any, where: str | None, revision: str | None, seed: int) -> Any:
    """A classifier with a random head under the seed; its encoder is random, or loaded from `where` (folder or hub id).

    Parts of the encoder that the checkpoint lacks (a pooler) are random. Raises BadInput where there is no such
    classifier.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = library().AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
    except ValueError as error:
        raise BadInput(
            f"config: no classifier can be made of it, got model_type {config.model_type}; use an encoder"
        ) from error
    if where is not None:
        weights = load(where, revision, False).state_dict()
        there = {name: weight for name, weight in weights.items() if not weight.isnan().any()}
        model.base_model.load_state_dict(there, strict=False)
    return model


class _Rows(torch.utils.data.Dataset):
    """The examples by number; `batch` makes tensors as long as its longest example."""

    def __init__(self, sequences: Sequences, segments: bool):
        self.sequences, self.segments = sequences, segments

    def __len__(self) -> int:
        return len(self.sequences.ids)

    def __getitem__(self, number: int) -> int:
        return number

    def batch(self, numbers: Sequence[int]) -> dict[str, Tensor]:
        all_rows, chosen = self.sequences, np.asarray(numbers)
        longest = int(all_rows.mask[chosen].sum(1).max())
        arrays = {"input_ids": all_rows.ids, "attention_mask": all_rows.mask}
        if self.segments and all_rows.segments is not None:
            arrays["token_type_ids"] = all_rows.segments
        given = {name: torch.from_numpy(array[chosen, :longest]).long() for name, array in arrays.items()}
        assert all_rows.labels is not None
        return {**given, "labels": torch.from_numpy(all_rows.labels.codes[chosen]).long()}


def fine_tune(
    model: nn.Module,
    sequences: Sequences,
    recipe: FineTuneRecipe,
    *,
    segments: bool,
    seed: int,
    scratch: Path,
    progress: Progress,
) -> dict[int, float]:
    """Trains the classifier in place; returns the mean loss since the last point, in nats, by step.

    seed: of the order of the examples and of dropout. The same seed gives the same weights on the same machine.
    """
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    rows = _Rows(sequences, segments)
    total = recipe.steps or int(np.ceil(len(rows) / recipe.batch_size) * recipe.epochs)
    ticks = iter(progress(range(total), label="training", unit="steps"))

    class Tick(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            next(ticks, None)

    settings = TrainingArguments(
        output_dir=str(scratch),
        max_steps=total,
        per_device_train_batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="linear",
        warmup_steps=recipe.warm_up,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        optim="adamw_torch_fused",
        seed=seed,
        logging_steps=max(1, total // LOGGED),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        use_cpu=recipe.device == "cpu",
    )
    settings._n_gpu = min(settings.n_gpu, 1)  # otherwise each of several devices takes a whole batch
    trainer = Trainer(model=model, args=settings, train_dataset=rows, data_collator=rows.batch, callbacks=[Tick()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    next(ticks, None)
    return {int(entry["step"]): entry["loss"] for entry in trainer.state.log_history if "loss" in entry}


def logits_of(model: Any, sequences: Sequences, *, segments: bool, batch_size: int) -> Float[Tensor, "N c"]:
    """The logits of a classifier for all sequences, on the CPU."""
    model.eval()
    parts = outputs(model, sequences, in_order(sequences, batch_size), segments=segments)
    return torch.cat([part.cpu() for part in parts])


def in_distribution(logits: Float[Tensor, "N c"], sequences: Sequences, scored: Scoring) -> Metrics:
    """accuracy, and loss in nats where the model and the data have the same labels."""
    labels = sequences.labels
    assert labels is not None
    metrics = {"accuracy": float(scored.correct(logits.argmax(1).numpy(), labels.codes).mean())}
    if len(scored.names) == logits.shape[1] == len(labels.names):
        order = torch.from_numpy(np.argsort(scored.model))
        codes = torch.from_numpy(scored.data[labels.codes]).long()
        metrics["loss"] = float(nn.functional.cross_entropy(logits[:, order], codes))
    return metrics


def by_heuristic(
    logits: Float[Tensor, "N c"], sequences: Sequences, scored: Scoring, examples: Sequence[Example]
) -> Metrics:
    """hans_accuracy; hans_HEURISTIC over its labels (half of it is right where the heuristic is always followed),
    hans_HEURISTIC_LABEL for every combination in the data, and hans_SUBCASE."""
    labels, numbers = sequences.labels, sequences.example
    assert labels is not None
    assert numbers is not None
    correct = scored.correct(logits.argmax(1).numpy(), labels.codes)
    groups: defaultdict[str, list[bool]] = defaultdict(list)
    for right, example in zip(correct, (examples[number] for number in numbers), strict=True):
        for name in ("accuracy", example.heuristic, f"{example.heuristic}_{example.label}", example.subcase):
            groups[f"hans_{re.sub(r'[^0-9A-Za-z]+', '_', str(name))}"].append(bool(right))
    return {name: float(np.mean(answers)) for name, answers in groups.items()}
