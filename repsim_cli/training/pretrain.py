"""Pre-training of a small causal language model on running text, with the tokenizer it needs.

A killed training resumes from its saved state, and ends with the same bits.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.settings import EVERYTHING, Above0, Medium, NotNegative, Positive
from repsim_cli.data.packing import Text, pack
from repsim_cli.models.configs import inline_config
from repsim_cli.models.library import import_transformers
from repsim_cli.models.series import METRICS, read_metrics
from repsim_cli.runs.results import Progress, dumps, write
from repsim_cli.training.loop import Along, Pace, check_warm_up, keep_nothing, train

END = "<|endoftext|>"
AT_ONCE = 32  # held-out sequences
Steps = list[NotNegative] | Literal["log"]
ROUNDING = 1e-5  # of the largest logit
BYTES = 257  # tokens of a byte-level vocabulary without merges: all bytes, and the end of a text


@dataclass(frozen=True, kw_only=True)
class TextRecipe:
    """How a causal language model is trained on text: AdamW, with a rate that rises linearly and falls along a cosine
    to a tenth.

    The betas are 0.9 and 0.95, the weight decay is 0.1, and gradients are clipped to the norm 1.

    length: tokens per sequence.
    steps: how many steps of training, each on sequences drawn with replacement.
    batch_size: sequences per step.
    learning_rate: the largest rate, after the warm-up.
    warm_up: the steps over which the rate rises; `auto`: 50, at most a tenth of the training.

    Raises BadInput for a warm-up as long as the training, whose rate never is the largest.
    """

    length: Medium = 128
    steps: Positive = 1000
    batch_size: Medium = 16
    learning_rate: Above0 = 3e-3
    warm_up: Positive | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if self.rising > 1:  # a rise over one step is none
            check_warm_up(self.rising, self.steps)

    @property
    def rising(self) -> int:
        """The steps of the warm-up."""
        return min(50, max(1, self.steps // 10)) if self.warm_up == "auto" else self.warm_up

    @property
    def tokens(self) -> int:
        """The number of tokens that it is trained on."""
        return self.steps * self.batch_size * self.length


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe(TextRecipe):
    """All that decides about a language model and its tokenizer, beside the text and the seed.

    Raises BadInput for a config that the library does not know, for kept steps that are never reached or none, for a
    vocabulary without all bytes, and for sequences beyond the model's context.

    config: a transformers config with its `model_type`, without the vocabulary.
    vocabulary: the number of tokens of the byte-level BPE tokenizer that is made from the text.
    save: the steps whose weights are kept; `log`: 0, 1, 2, 4, ... and the last.
    """

    config: dict[str, Any]
    vocabulary: Medium = 512
    save: Steps = "log"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocabulary < BYTES:
            raise BadInput(
                f"vocabulary: a token for each of the {BYTES - 1} bytes and one for the end of a text are needed, got "
                f"{self.vocabulary}; raise it to {BYTES} or more"
            )
        if not self.kept:
            raise BadInput("save: no step is kept, got an empty list; name one, such as the last")
        outside = [step for step in self.kept if not 0 <= step <= self.steps]
        if outside:
            raise BadInput(f"save: no such step, got {outside[0]}; steps go from 0 to {self.steps}")
        context = getattr(self.settings(), "max_position_embeddings", None)
        if context is not None and 0 < context < self.length:
            raise BadInput(
                f"length: longer than the context of the model, got {self.length} for max_position_embeddings="
                f"{context}; lower it, or raise that of the config"
            )

    @property
    def kept(self) -> list[int]:
        if self.save != "log":
            return sorted({*self.save})
        return [0, *(2**i for i in range(self.steps.bit_length()) if 2**i < self.steps), self.steps]

    def settings(self) -> Any:
        """The library's config."""
        return inline_config({**self.config, "vocab_size": self.vocabulary})


class Corpus(NamedTuple):
    """A tokenizer, and the sequences of a text: those to be trained on, and every twentieth, held out."""

    tokenizer: Any
    seen: Int[np.ndarray, "N L"]
    held_out: Int[np.ndarray, "M L"]
    hash: str


def make_corpus(text: Text, recipe: PretrainRecipe, seed: int) -> Corpus:
    """Trains a tokenizer on a text, and packs the text into whole sequences, every twentieth held out.

    seed: that of the order of documents.
    """
    tokenizer = train_byte_pair_tokenizer(text.documents(), recipe.vocabulary, recipe.length)
    made = pack(
        text,
        tokenizer,
        length=recipe.length,
        sequences=EVERYTHING,
        pool=EVERYTHING,
        separator="eos",
        seed=seed,
    )
    whole = made.ids[made.mask.all(1)]
    if len(whole) < 2:
        raise BadInput(f"data: too little text to train on, got {len(whole)} sequences of {recipe.length}; give more")
    return Corpus(tokenizer, whole[[i for i in range(len(whole)) if i % 20]], whole[::20], made.hash())


def train_byte_pair_tokenizer(documents: Iterable[str], vocabulary: int, context: int) -> Any:
    """A byte-level BPE tokenizer of `vocabulary` tokens; one special token serves as bos, eos and padding."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(documents, trainer)
    special = {"bos_token": END, "eos_token": END, "pad_token": END}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, model_max_length=context, **special)


class Pretrained(NamedTuple):
    """losses: of every step, in nats per token. metrics: of every kept step, as in its metrics.json."""

    losses: list[float]
    metrics: dict[int, dict[str, float]]


def pretrain(
    recipe: PretrainRecipe, text: Corpus, folder: Path, *, seed: int, state: Path, progress: Progress
) -> Pretrained:
    """Writes FOLDER/stepN for every kept step: float16 weights and tokenizer in transformers format, metrics.json.

    Resumes from the file `state` where it exists, and removes it at the end.
    """
    torch.manual_seed(seed)
    settings = recipe.settings()
    model = import_transformers().AutoModelForCausalLM.from_config(settings, dtype=torch.float32)
    check_causal(model, torch.from_numpy(text.seen[:1]).long())

    def keep(step: int) -> None:
        if step in recipe.kept:
            place = folder / f"step{step}"
            kept = type(model)(settings).half()
            kept.load_state_dict(model.state_dict())
            kept.save_pretrained(place)
            text.tokenizer.save_pretrained(place)
            write(place / METRICS, dumps(compute_held_out(model, text.held_out)).encode())

    losses = list(
        train_causal_model(
            model,
            text.seen,
            recipe,
            steps=progress(range(recipe.steps), label="training", unit="steps"),
            seed=seed,
            save=keep,
            state=state,
        )
    )
    state.unlink()
    return Pretrained(losses, {step: read_metrics(folder / f"step{step}") for step in recipe.kept})


def train_causal_model(
    model: nn.Module,
    sequences: Int[np.ndarray, "N L"],
    recipe: TextRecipe,
    *,
    steps: Iterable[int],
    seed: int,
    save: Callable[[int], None] = keep_nothing,
    state: Path | None = None,
) -> Iterator[float]:
    """Yields the loss in nats per token of every step; `steps`, `save` and `state` as in `loop.Along`."""

    def loss(_: int, draw: np.random.Generator) -> Tensor:
        rows = draw.integers(len(sequences), size=recipe.batch_size)
        return compute_next_token_loss(model, torch.from_numpy(sequences[rows]).long())

    def rate(step: int) -> float:
        decay = 0.55 + 0.45 * math.cos(math.pi * step / recipe.steps)
        return recipe.learning_rate * min((step + 1) / recipe.rising, decay)

    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    return train(model, optimiser, loss, pace=Pace(steps, rate, 1.0), seed=seed, along=Along(save=save, state=state))


@torch.inference_mode()
def check_causal(model: nn.Module, ids: Int[Tensor, "1 s"]) -> None:
    """Raises BadInput for a model of which a token depends on those after it: it reads what it is to predict."""
    training = model.training
    model.eval()
    other = ids.clone()
    other[:, -1] = ids[:, -1] + 1 - 2 * (ids[:, -1] > 0)
    logits, changed = (model(input_ids=each).logits[:, :-1] for each in (ids, other))
    model.train(training)
    if (logits - changed).abs().max() > ROUNDING * logits.abs().max():
        raise BadInput(
            "options.recipe.config: a model whose tokens do not see the next ones is needed, got "
            f"{type(model).__name__}; use a causal one, or is_decoder: true where the library has it"
        )


def compute_next_token_loss(model: nn.Module, ids: Int[Tensor, "b s"]) -> Tensor:
    """Mean cross-entropy of each token given those before it, in nats."""
    logits = model(input_ids=ids).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def add_loss_gradients(
    model: nn.Module, sequences: Int[np.ndarray, "N L"], mask: Bool[np.ndarray, "N L"], batch_size: int
) -> float:
    """Sets every parameter's .grad to the gradient of the mean next-token loss over all sequences; returns the loss.

    Padding tokens are neither read nor predicted. Raises RunFailed where the loss is not finite, as where
    the checkpoint lacks the language-model head.
    """
    device = next(model.parameters()).device
    model.zero_grad()
    predicted, total = int(mask[:, 1:].sum()), 0.0
    for start in range(0, len(sequences), batch_size):
        ids, real = (torch.from_numpy(x[start : start + batch_size]).to(device) for x in (sequences, mask))
        logits = model(input_ids=ids.long(), attention_mask=real.long()).logits[:, :-1]
        wanted = ids[:, 1:].long().masked_fill(~real[:, 1:], -100)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum") / predicted
        loss.backward()
        total += float(loss.detach())
    if not math.isfinite(total):
        raise RunFailed(
            f"the next-token loss is not finite, got {total}; give a checkpoint with its language-model head"
        )
    return total


@torch.inference_mode()
def compute_held_out(model: nn.Module, sequences: Int[np.ndarray, "N L"]) -> dict[str, float]:
    """Computes the mean next-token loss in nats per token (`loss`) and the share of next tokens ranked first
    (`accuracy`), over whole sequences."""
    model.eval()
    loss = hits = 0.0
    for i in range(0, len(sequences), AT_ONCE):
        ids = torch.from_numpy(sequences[i : i + AT_ONCE]).long()
        logits = model(input_ids=ids).logits[:, :-1]
        mean = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss += float(mean) * len(ids)
        hits += float((logits.argmax(-1) == ids[:, 1:]).float().mean()) * len(ids)
    return {"loss": loss / len(sequences), "accuracy": hits / len(sequences)}
