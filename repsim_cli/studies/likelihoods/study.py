"""Measures the log-likelihoods of the same texts under every model, and how far apart they put the models."""

from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from repsim_cli.activations.batching import batch_by_length, count_batch_places, count_passes, measure_lengths
from repsim_cli.activations.inputs import check_modality, load_tokenizers, name_errors
from repsim_cli.activations.next_token import HEAD, compute_logits_at, number_documents
from repsim_cli.activations.readings import assign_devices, choose_loading
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.registry import studies
from repsim_cli.data.base import Sequences
from repsim_cli.data.copies import find_equal_sequences
from repsim_cli.engine.bounds import (
    bound_sequence_length,
    check_memory,
    describe_models,
    find_usual_length,
    suggest_settings,
)
from repsim_cli.engine.cost import describe_needs, estimate_forward_cost
from repsim_cli.engine.extraction import make_noted_sequences
from repsim_cli.engine.proportions import count_like_freedom
from repsim_cli.engine.rows import prepare, tally
from repsim_cli.engine.study import POINTS, RESIDENT, SAMPLING, TEXTS, OfRows, Study
from repsim_cli.measures import Card
from repsim_cli.models.source import Source
from repsim_cli.models.transformers import predicts_next
from repsim_cli.runs.content import Matrix, Measured, Results, Side, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.likelihoods.distances import COLUMNS, LIKELIHOODS, OF_MODELS, compute_likelihood_distances

LEAST = 20  # texts
NAME = "likelihood_distance"
CARD = Card(
    label="half the variance of log-likelihood differences, nats²",
    larger_is_closer=False,
    bounds=(0.0, None),
    symmetric=True,
    is_metric=False,
    invariant_to=frozenset(),
    minimum_rows=LEAST,
    cost="n per pair",
    source="Oyama et al. 2025: squared distance of double-centred log-likelihood vectors",
    reads="outputs",
    note="Half the variance over texts of the difference of log-likelihoods, nats²: the same number as the KL "
    "divergence of the models' texts in nats where they are close, and a distance where they are not. Longer texts are "
    "further apart.",
)


@studies.register("likelihoods")
class Likelihoods(Study):
    """Compares language models by the log-likelihoods that they give to the same texts, whatever their tokenizers.

    A text is a sequence of the data: the same words for every tokenizer (extract=words). What counts is the
    log-likelihood of all that follows its first word, in nats. The distance of two models is half the variance over
    texts of the difference of these, nats²: the same number as their KL divergence in nats, where they are close.

    Example: repsim run study=likelihoods model=[] +model.mine='{kind: transformers, path: DIR}' +model.other='{kind:
        transformers, path: DIR}' extract=words data=local_text data.path=FILE
    """

    fixed_points: ClassVar[bool] = True
    unread: ClassVar[Sequence[str]] = (*POINTS, *SAMPLING, TEXTS, RESIDENT)

    def __init__(self, **given: Unpack[OfRows]):
        self.data, self.extract, self.hardware = given["data"], given["extract"], given["hardware"]
        self.seed, models = given["seed"], given["model"]
        if len(models) < 2:
            raise BadInput(f"model: likelihoods are compared between models, got {len(models)}; select two or more")
        for label, source in models.items():
            if not isinstance(source, Source) or not predicts_next(source):
                raise BadInput(f"model.{label}: it has no output head for the next token; use a causal language model")
        if self.extract.unit != "word":
            raise BadInput(
                f"extract.unit: texts are to be the same words for every tokenizer, got {self.extract.unit}; use word "
                "(extract=words)"
            )
        self.models = {label: source for label, source in models.items() if isinstance(source, Source)}
        check_modality(self.models, self.data)
        self.devices = assign_devices(self.hardware, list(models))
        check_memory(
            sum(self.memory().values()), self.hardware, suggest_settings(self.memory(), self.hardware, self.models)
        )
        self.tokenizers = load_tokenizers(self.models, self.data, self.extract)

    def plan(self) -> dict[str, Any]:
        count, length = self.extract.sequences, find_usual_length(self.models, self.data, self.extract)
        cost = estimate_forward_cost(self.models.values(), count, length, self.hardware, vocabularies=True)
        return {
            "models": describe_models(self.models, self.hardware, self.devices),
            "texts, at most": count,
            "forward passes": count_passes(count, length, self.hardware) * len(self.models),
            **describe_needs({"forward passes": cost}, self.hardware, memory=self.memory(), figures=2),
        }

    def memory(self) -> dict[str, float]:
        """Estimates the bytes: the weights of the largest model and its logits of a batch, in float64."""
        batch = count_batch_places(bound_sequence_length(self.models, self.extract), self.hardware)
        sources = self.models.values()
        return {
            "Python and its libraries": 0.5e9,
            "weights": max(4.0 * (source.parameters + source.vocabulary * source.width) for source in sources),
            "forward": 4.0 * 4 * batch * max(source.width for source in sources),
            "logits": 2 * 8.0 * batch * max(source.vocabulary for source in sources),
        }

    def run(self, run: Run) -> Results:
        prepare(run, self.hardware)
        with run.stage("data"):
            sequences = make_noted_sequences(run, self.models, self.tokenizers, self.data, self.extract, self.seed)
            first = next(iter(sequences.values()))
            kept = np.all([mark_scored(given).any(1) for given in sequences.values()], axis=0)
            if (count := len(np.unique(find_equal_sequences(first)[kept]))) < LEAST:
                raise BadInput(
                    f"data: {LEAST} different texts of two words or more are needed, got {count}; read more "
                    "(extract.sequences)"
                )
            texts = {label: given.take(np.flatnonzero(kept)) for label, given in sequences.items()}
            documents = number_documents(first.take(np.flatnonzero(kept)), run.warn, "likelihoods")
        run.input("models", {label: source.identity() for label, source in self.models.items()})
        run.save_manifest()
        with run.stage("likelihoods"):
            logs = np.stack([self._compute_model_likelihoods(run, label, given) for label, given in texts.items()])
        with run.stage("results"):
            words = int(sum(len(np.unique(row[row >= 0])) - 1 for row in _require_words(next(iter(texts.values())))))
            return self._results(run, logs, documents, words)

    def _compute_model_likelihoods(self, run: Run, label: str, texts: Sequences) -> Float[np.ndarray, " n"]:
        source = self.models[label]
        model = name_errors(label, source.with_head, HEAD, choose_loading(self.hardware, self.devices[label]))
        lengths, counts = measure_lengths(texts.mask), tally(run, self.models)
        batches = list(batch_by_length(lengths, self.hardware))
        found = np.zeros(len(lengths))
        for batch in run.progress(batches, label=f"likelihoods of {label}", unit="batches"):
            given = texts.take(batch, int(lengths[batch].max()))
            found[batch] = log_likelihoods(model, source, given)
            counts(label, given.mask)
        if not np.isfinite(found).all():
            raise RunFailed(f"model.{label}: its likelihoods are not finite; check its weights, or use float32")
        return found

    def _results(self, run: Run, logs: np.ndarray, documents: np.ndarray, words: int) -> Results:
        labels, n = list(self.models), logs.shape[1]
        found, side = compute_likelihood_distances(logs, documents), Side(model="likelihoods", layers=labels)
        matrix = Matrix(
            rows=side,
            columns=side,
            values=run.write_array(f"{NAME}-values", found.values),
            se=run.write_array(f"{NAME}-se", found.se),
            n=n,
        )
        whole = Matrix(
            rows=side,
            columns=Side(model="texts", layers=[str(i) for i in range(n)]),
            values=run.write_array(LIKELIHOODS, logs),
            n=n,
            label="log-likelihood, nats",
            about={"kind": LIKELIHOODS},
        )
        estimate = {"kind": "full", "rows": n, "rows_available": n, "batches": 1}
        measured = Measured(
            name=NAME, label=NAME, settings={}, estimate=estimate, card=CARD.record(), matrices=[matrix]
        )
        rows = [
            [label, -float(row.mean()), _compute_standard_error(row, documents), -float(row.sum()) / words, n, words]
            for label, row in zip(labels, logs, strict=True)
        ]
        tables = {OF_MODELS: Table(columns=COLUMNS, rows=rows)}
        counts = np.unique(documents, return_counts=True)[1]
        about = {"documents": len(counts), "freedom": count_like_freedom(counts)}
        return Results(
            study="likelihoods", measures=[measured], matrices={LIKELIHOODS: whole}, tables=tables, about=about
        )


def _require_words(texts: Sequences) -> np.ndarray:
    assert texts.word is not None
    return texts.word


def mark_scored(texts: Sequences) -> Bool[np.ndarray, "N L"]:
    """Marks the tokens of the text after its first word, which has nothing before it under some tokenizers."""
    words = _require_words(texts)
    first = np.where(words >= 0, words, np.iinfo(words.dtype).max).min(1, keepdims=True)
    places = np.arange(words.shape[1])
    last = np.where((words == first) & (words >= 0), places, -1).max(1, keepdims=True)
    return texts.text & (places > last) & (last >= 0)


@torch.inference_mode()
def log_likelihoods(model: nn.Module, source: Source, texts: Sequences) -> Float[np.ndarray, " b"]:
    """Sums the log-likelihood of what follows the first word of each text, in nats."""
    wanted = mark_scored(texts)
    before = np.zeros_like(wanted)
    before[:, :-1] = wanted[:, 1:]
    logits = compute_logits_at(model, source, texts, before)
    ids = torch.from_numpy(texts.ids[wanted]).long().to(logits.device)
    parts = [
        _gather_log_probabilities(each, some) for each, some in zip(logits.split(4096), ids.split(4096), strict=True)
    ]
    return np.bincount(wanted.nonzero()[0], torch.cat(parts).cpu().numpy(), len(wanted))


def _gather_log_probabilities(logits: Float[Tensor, "n c"], ids: Tensor) -> Float[Tensor, " n"]:
    return logits.double().log_softmax(-1).gather(1, ids[:, None])[:, 0]


def _compute_standard_error(values: Float[np.ndarray, " n"], documents: np.ndarray) -> float:
    """Computes the standard error of a mean, over documents."""
    groups = np.unique(documents, return_inverse=True)[1]
    sums = np.bincount(groups, values - values.mean())
    return float(np.sqrt(np.square(sums).sum() * len(sums) / max(len(sums) - 1, 1)) / len(values))
