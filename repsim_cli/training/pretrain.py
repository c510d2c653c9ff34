"""Pre-training of a small causal language model, with the tokenizer it needs."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from repsim_cli.errors import RunFailed

END = "<|endoftext|>"


def byte_pair_tokenizer(documents: Iterable[str], vocabulary: int, context: int) -> Any:
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


def train(
    model: nn.Module,
    sequences: Int[np.ndarray, "N L"],
    *,
    steps: Iterable[int],
    total: int,
    batch_size: int,
    learning_rate: float,
    warm_up: int,
    seed: int,
    save: Callable[[int], None],
) -> Iterator[float]:
    """Trains with AdamW, linear warm-up and cosine decay; yields the loss in nats per token of every step.

    save(step) is called before the first step and after each, with the number of steps done.
    """
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda s: min((s + 1) / warm_up, 0.55 + 0.45 * math.cos(math.pi * s / total)),
    )
    draw = np.random.default_rng(seed)
    model.train()
    save(0)
    for step in steps:
        ids = torch.from_numpy(sequences[draw.integers(len(sequences), size=batch_size)]).long()
        loss = next_token_loss(model, ids)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        save(step + 1)
        yield float(loss.detach())


def next_token_loss(model: nn.Module, ids: Int[Tensor, "b s"]) -> Tensor:
    """Mean cross-entropy of each token given those before it, in nats."""
    logits = model(input_ids=ids).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def add_loss_gradients(
    model: nn.Module, sequences: Int[np.ndarray, "N L"], mask: Bool[np.ndarray, "N L"], batch_size: int
) -> float:
    """Leaves in every parameter's .grad the gradient of the mean next-token loss over all sequences; returns the loss.

    Tokens that are padding are neither read nor predicted. Raises RunFailed where the loss is not finite, as it is
    where the checkpoint lacks the head of the language model.
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
def held_out_loss(model: nn.Module, sequences: Int[np.ndarray, "N L"], batch_size: int) -> float:
    """Mean next-token loss over whole sequences, in nats per token."""
    model.eval()
    losses = [
        float(next_token_loss(model, torch.from_numpy(sequences[i : i + batch_size]).long()))
        * len(sequences[i : i + batch_size])
        for i in range(0, len(sequences), batch_size)
    ]
    model.train()
    return sum(losses) / len(sequences)
