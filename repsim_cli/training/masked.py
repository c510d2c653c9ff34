"""Masked language modelling (Devlin et al. 2019, section 3.1): an encoder learns to predict hidden tokens of a text."""

from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import EVERYTHING
from repsim_cli.data.packing import Text, pack
from repsim_cli.models.library import import_transformers
from repsim_cli.models.tokenizers import load_tokenizer
from repsim_cli.training.finetune import EncoderRecipe, train_on
from repsim_cli.training.loop import Along
from repsim_cli.training.trained import Metrics

HIDDEN = 0.15  # of the tokens are predicted
MASKED, REPLACED = 0.8, 0.1  # of these are [MASK], or a random token; the others stay
HELD_OUT = 20  # one of this many sequences is held out


def mark_tokenizer(where: str) -> Any:
    """The tokenizer. One that has [CLS] and [SEP] gets a [MASK], and texts become [CLS] a [SEP] b [SEP], with token
    types 0 and 1, where it does not do that."""
    from tokenizers import processors

    tokenizer = load_tokenizer(where)
    cls, sep = tokenizer.cls_token, tokenizer.sep_token
    if cls is None or sep is None or not tokenizer.is_fast:
        return tokenizer
    if tokenizer.mask_token is None:
        tokenizer.add_special_tokens({"mask_token": "[MASK]"})
    if tokenizer("a", "a").input_ids.count(tokenizer.sep_token_id) < 2:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} $B:1 {sep}:1",
            special_tokens=[(cls, tokenizer.cls_token_id), (sep, tokenizer.sep_token_id)],
        )
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer


class Masked(NamedTuple):
    """Sequences [CLS] ... [SEP] of a text: those to be trained on, and every twentieth, held out.

    seen_text, held_out_text: which of their tokens are of the text, and known to the tokenizer.
    """

    seen: Int[np.ndarray, "N L"]
    held_out: Int[np.ndarray, "M L"]
    seen_text: Bool[np.ndarray, "N L"]
    held_out_text: Bool[np.ndarray, "M L"]


def pack_masked_text(text: Text, tokenizer: Any, length: int) -> Masked:
    settings = {"sequences": EVERYTHING, "pool": EVERYTHING, "separator": "sep", "seed": 0}
    made = pack(text, tokenizer, length=length - 2, **settings)
    known = made.text & (made.ids != tokenizer.unk_token_id)
    whole, text_of = (np.pad(x[made.mask.all(1)], ((0, 0), (1, 1))) for x in (made.ids, known))
    if len(whole) < 2:
        raise BadInput(f"data: too little text to train on, got {len(whole)} sequences of {length}; give more")
    whole[:, 0], whole[:, -1] = tokenizer.cls_token_id, tokenizer.sep_token_id
    seen = np.arange(len(whole)) % HELD_OUT > 0
    return Masked(whole[seen], whole[~seen], text_of[seen], text_of[~seen])


def hide_tokens(
    ids: Int[np.ndarray, "b L"],
    text: Bool[np.ndarray, "b L"],
    tokenizer: Any,
    draw: np.random.Generator,
    share: float = HIDDEN,
) -> tuple[Int[np.ndarray, "b L"], Bool[np.ndarray, "b L"]]:
    """The tokens as the model reads them, and which it has to predict: a share of those of the text."""
    chosen = (draw.random(ids.shape) < share) & text
    how = draw.random(ids.shape)
    others = draw.integers(len(tokenizer), size=ids.shape)
    read = np.where(how < MASKED, tokenizer.mask_token_id, np.where(how < MASKED + REPLACED, others, ids))
    return np.where(chosen, read, ids), chosen


class LanguageHead(NamedTuple):
    """What a language model predicts: the class of transformers that does, and what to use where a type has none."""

    predicts: str
    auto: str
    instead: str


MASKED_TOKENS = LanguageHead("masked tokens", "AutoModelForMaskedLM", "model_type: bert")
NEXT_TOKEN = LanguageHead("the next token", "AutoModelForCausalLM", "objective=masked")


def make_fresh_model(config: Any, head: LanguageHead, seed: int) -> Any:
    """A language model with random weights. Raises BadInput where its type has no such head."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return getattr(import_transformers(), head.auto).from_config(config, dtype=torch.float32)
    except ValueError as error:
        raise BadInput(
            f"config: it cannot predict {head.predicts}, got model_type {config.model_type}; use {head.instead}"
        ) from error


def train_masked(
    model: Any,
    text: Masked,
    tokenizer: Any,
    recipe: EncoderRecipe,
    *,
    seed: int,
    share: float = HIDDEN,
    along: Along = Along(),  # noqa: B008 - frozen
) -> tuple[dict[int, float], Metrics]:
    """Trains in place; returns the loss by step as `train_on`, and the metrics of held-out text
    (`score_masked_tokens`).
        share: of the tokens that are predicted in training."""

    def loss(numbers: Int[np.ndarray, " b"], draw: np.random.Generator) -> Tensor:
        given = text.seen[numbers], text.seen_text[numbers]
        logits, wanted = _predict(model, *given, tokenizer, draw, recipe.device, share)
        return nn.functional.cross_entropy(logits, wanted)

    losses = train_on(model, len(text.seen), recipe, loss, seed=seed, along=along)
    return losses, score_masked_tokens(model, text, tokenizer, recipe)


def _predict(
    model: Any,
    ids: Int[np.ndarray, "b L"],
    text: Bool[np.ndarray, "b L"],
    tokenizer: Any,
    draw: np.random.Generator,
    device: str,
    share: float = HIDDEN,
) -> tuple[Tensor, Tensor]:
    """The logits at the hidden places, (places, vocabulary), and the tokens that stood there."""
    read, chosen = hide_tokens(ids, text, tokenizer, draw, share)
    inputs, places, wanted = (torch.from_numpy(x).to(device) for x in (read, chosen, ids))
    return model(input_ids=inputs.long()).logits[places], wanted[places].long()


@torch.inference_mode()
def score_masked_tokens(model: Any, text: Masked, tokenizer: Any, recipe: EncoderRecipe) -> Metrics:
    """Scores the hidden tokens of the held-out text: masked_loss (nats) and masked_accuracy of the model, unigram_loss
    and unigram_accuracy of the frequencies of tokens in the text that it was trained on, each counted once more."""
    model.eval()
    draw, parts = np.random.default_rng(0), []
    for start in range(0, len(text.held_out), recipe.batch_size):
        batch = slice(start, start + recipe.batch_size)
        given = text.held_out[batch], text.held_out_text[batch]
        logits, wanted = _predict(model, *given, tokenizer, draw, recipe.device)
        loss = nn.functional.cross_entropy(logits, wanted, reduction="none")
        parts.append(torch.stack([loss, (logits.argmax(-1) == wanted).float(), wanted.float()]).cpu())
    loss, right, tokens = torch.cat(parts, 1).double().numpy()
    counts = np.bincount(text.seen[text.seen_text], minlength=len(tokenizer)) + 1
    expected = tokens.astype(int)
    return {
        "masked_loss": float(loss.mean()),
        "masked_accuracy": float(right.mean()),
        "unigram_loss": float(-np.log(counts / counts.sum())[expected].mean()),
        "unigram_accuracy": float((expected == counts.argmax()).mean()),
    }
