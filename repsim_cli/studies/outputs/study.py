"""How far models differ in what they predict on the same rows: classifiers, or language models."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from repsim_cli.activations.batching import batch_by_length, count_batch_places, count_passes, measure_lengths
from repsim_cli.activations.inputs import (
    check_modality,
    have_different_vocabularies,
    load_tokenizers,
    name_errors,
)
from repsim_cli.activations.outputs import compute_logits, limit_output_padding
from repsim_cli.activations.readings import assign_devices
from repsim_cli.base.errors import BadInput
from repsim_cli.base.plain import slug
from repsim_cli.base.registry import did_you_mean, studies
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Data, Sequences
from repsim_cli.data.copies import count_copied_texts, warn_of_copies
from repsim_cli.data.labels import Scoring, match_labels
from repsim_cli.engine.bounds import (
    bound_sequence_length,
    check_memory,
    describe_models,
    find_usual_length,
    suggest_settings,
)
from repsim_cli.engine.cost import Cost, describe_needs, estimate_forward_cost
from repsim_cli.engine.extraction import make_noted_sequences
from repsim_cli.engine.proportions import count_like_freedom
from repsim_cli.engine.rows import prepare, tally
from repsim_cli.engine.study import POINTS, RESIDENT, SAMPLING, TEXTS, Study
from repsim_cli.models.source import AnySource, Source
from repsim_cli.models.transformers import predicts_next
from repsim_cli.runs.content import ACCURACY, CHANCE, Matrix, Measured, Results, Side, Table
from repsim_cli.runs.results import Run
from repsim_cli.studies.outputs.outputs import CARDS, OutputSums

CLASSIFIERS = ("output_jsd", "disagreement", "accuracy_difference")
LANGUAGE_MODELS = ("output_kl", "output_jsd", "disagreement")
HEADS = {True: "AutoModelForSequenceClassification", False: "AutoModelForCausalLM"}


@studies.register("outputs")
class Outputs(Study):
    """Compares what models predict, for all pairs of models, and how accurate they are.

    Each model is run once over the same rows. A row of a classifier is an example; a row of a language model is a
    position, with the next token to predict.

    outputs: which of output_jsd, output_kl, disagreement and accuracy_difference; null: all but output_kl for
        classifiers, all but accuracy_difference for language models.
    Example: repsim run study=outputs model=[] +model.mine='{kind: transformers, path: DIR}' +model.other='{kind:
        transformers, path: DIR}' data=local_text data.path=FILE
    """

    fixed_points: ClassVar[bool] = True
    unread: ClassVar[Sequence[str]] = (*POINTS, *SAMPLING, TEXTS, RESIDENT)

    def __init__(
        self,
        *,
        model: Mapping[str, AnySource],
        data: Data,
        extract: Extract,
        hardware: Hardware,
        seed: int,
        outputs: list[str] | None = None,
    ):
        if len(model) < 2:
            raise BadInput(f"model: outputs are compared between models, got {len(model)}; select two or more")
        for label, source in model.items():
            if not isinstance(source, Source) or not source.has_head:
                raise BadInput(f"model.{label}: it has no outputs, got activations or a backbone alone; drop it")
        self.models = {label: source for label, source in model.items() if isinstance(source, Source)}
        check_modality(self.models, data)
        self.classify = any(source.labels for source in self.models.values())
        self._check_heads()
        self.outputs = outputs or list(CLASSIFIERS if self.classify else LANGUAGE_MODELS)
        for name in self.outputs:
            if name not in CARDS:
                raise BadInput(
                    f"options.outputs: no such measure of outputs, got '{name}'; {did_you_mean(name, CARDS)}"
                )
        if self.classify and data.running:
            raise BadInput(f"data: classifiers read examples, got running text ({data.source}); use e.g. data=mnli")
        if self.classify and not data.labelled and "accuracy_difference" in self.outputs:
            raise BadInput(
                f"data: accuracy_difference needs a label per example, got none in {data.source}; use other data, or "
                "options.outputs=[output_jsd,disagreement]"
            )
        self.data, self.extract, self.hardware, self.seed = data, extract, hardware, seed
        self.devices = assign_devices(hardware, list(model))
        check_memory(sum(self.memory().values()), hardware, suggest_settings(self.memory(), hardware, self.models))
        self.tokenizers = load_tokenizers(self.models, data, extract)
        self._check_tokens()

    def _check_heads(self) -> None:
        """Raises BadInput unless all are classifiers of the same labels, or language models of one vocabulary."""
        first, *others = self.models
        if not self.classify:
            for label, source in self.models.items():
                if not predicts_next(source):
                    kind = source.model_type
                    raise BadInput(
                        f"model.{label}: it predicts no next token, got a {kind}; use a causal language model"
                    )
        for label in others:
            reference, other = self.models[first], self.models[label]
            if sorted(reference.labels) != sorted(other.labels):
                raise BadInput(
                    f"model.{label}: its labels are not those of '{first}', got {list(other.labels)} for "
                    f"{list(reference.labels)}; compare classifiers of the same labels (in any order)"
                )
            if not self.classify and reference.vocabulary != other.vocabulary:
                raise BadInput(
                    f"model.{label}: its vocabulary is not that of '{first}', got {other.vocabulary} for "
                    f"{reference.vocabulary} tokens; compare language models of one vocabulary"
                )

    def _check_tokens(self) -> None:
        """Raises BadInput where a number stands for one token in one language model and for another in another."""
        first, *others = self.tokenizers
        for label in others:
            if not self.classify and have_different_vocabularies(self.tokenizers[first], self.tokenizers[label]):
                raise BadInput(
                    f"model.{label}: next tokens are compared by their numbers, got other tokens than those of "
                    f"'{first}'; use study=likelihoods, or models that share a tokenizer"
                )

    def plan(self) -> dict[str, Any]:
        length = find_usual_length(self.models, self.data, self.extract)
        batches = count_passes(self.extract.sequences, length, self.hardware)
        return {
            "models": describe_models(self.models, self.hardware, self.devices),
            "head": HEADS[self.classify],
            "measures": self.outputs,
            "pairs of models": len(self.models) * (len(self.models) - 1) // 2,
            "sequences, at most": self.extract.sequences,
            "forward passes": batches * len(self.models),
            **describe_needs(
                {"forward passes": self._costs()}, self.hardware, memory=self.memory(), figures=len(self.outputs)
            ),
        }

    def memory(self) -> dict[str, float]:
        """Bytes, estimated: weights in float32, and the outputs of a batch of all models, with copies in float64 of
        two."""
        hardware, head = self.hardware, {label: source.vocabulary for label, source in self.models.items()}
        if self.classify:
            head = {label: len(source.labels) for label, source in self.models.items()}
        batch = count_batch_places(bound_sequence_length(self.models, self.extract), hardware)
        return {
            "Python and its libraries": 0.5e9,
            "weights": sum(4.0 * source.parameters for source in self.models.values()),
            "output heads": sum(4.0 * head[label] * source.width for label, source in self.models.items()),
            "forward": 4.0 * 4 * batch * max(source.width for source in self.models.values()),
            "sums": 8.0 * 4 * len(self.models) ** 2 * self.extract.sequences,
            "outputs": 4.0 * batch * (sum(head.values()) + 4 * max(head.values())),
        }

    def _costs(self) -> Cost:
        length, count = find_usual_length(self.models, self.data, self.extract), self.extract.sequences
        heads = not self.classify
        return estimate_forward_cost(self.models.values(), count, length, self.hardware, vocabularies=heads)

    def run(self, run: Run) -> Results:
        hardware = self.hardware
        prepare(run, hardware)
        with run.stage("data"):
            sequences = make_noted_sequences(run, self.models, self.tokenizers, self.data, self.extract, self.seed)
            first = next(iter(sequences))
            for label, given in sequences.items():
                if not self.classify and not np.array_equal(given.ids, sequences[first].ids):
                    raise BadInput(
                        f"model.{label}: its tokenizer cuts the text otherwise than that of '{first}'; use "
                        "study=likelihoods, or models that share a tokenizer"
                    )
            scored = self._choose_scoring(sequences)
            warn_of_copies(*count_copied_texts(sequences[first]), run.warn, "outputs")
            documents = sequences[first].join_copies(sequences[first].document)
        with run.stage("models"):
            run.input("models", {label: source.identity() for label, source in self.models.items()})
            modules = {label: name_errors(label, self._load_model, label) for label in self.models}
        run.save_manifest()
        sums = OutputSums(self.outputs, 1 + max(int(given.document.max()) for given in sequences.values()))
        with run.stage("outputs"):
            count = tally(run, self.models)
            lengths = np.max([measure_lengths(given.mask) for given in sequences.values()], axis=0)
            reads = {label: source.segments for label, source in self.models.items()}
            padding = [limit_output_padding(modules[label], sequences[label], segments=reads[label]) for label in reads]
            # the same batches for all models, whose rows are paired
            batches = list(batch_by_length(lengths, hardware, min(padding)))
            streams = [
                compute_logits(
                    modules[label], sequences[label], batches, segments=reads[label], tally=partial(count, label)
                )
                for label in reads
            ]
            for batch, *logits in zip(run.progress(batches, label="outputs", unit="batches"), *streams, strict=True):
                sums.add(*self._rows(logits, sequences, scored, batch, documents[batch]))
        return self._results(run, sums)

    def _load_model(self, label: str) -> nn.Module:
        return self.models[label].with_head(HEADS[self.classify]).to(self.devices[label])

    def _choose_scoring(self, sequences: Mapping[str, Sequences]) -> dict[str, Scoring]:
        """Chooses how the answers of each classifier are scored; empty where there is nothing to score them by."""
        labels = next(iter(sequences.values())).labels
        if labels is None or not self.classify:
            return {}
        return {
            label: match_labels(source.labels, labels.names, f"model.{label}") for label, source in self.models.items()
        }

    def _rows(
        self,
        logits: list[Tensor],
        sequences: Mapping[str, Sequences],
        scored: Mapping[str, Scoring],
        batch: Int[np.ndarray, " b"],
        documents: Int[np.ndarray, "b L"],
    ) -> tuple[Float[Tensor, "m n c"], Int[Tensor, "m n"], Int[Tensor, " n"] | None, Int[Tensor, " n"]]:
        """Logits of all models on the rows of a batch, with their answers, what these should be, and the document.
        documents: of each place of the batch."""
        rows = next(iter(sequences.values()))
        if not self.classify:
            places = slice(1, logits[0].shape[1])
            predicted = torch.from_numpy(rows.text[batch, places])
            kept = torch.stack([each[:, :-1][predicted.to(each.device)].cpu() for each in logits])
            right, of = (torch.from_numpy(each[:, places]).long()[predicted] for each in (rows.ids[batch], documents))
            return kept, kept.argmax(-1), right, of
        common = next(iter(self.models.values())).labels
        orders = {label: [source.labels.index(name) for name in common] for label, source in self.models.items()}
        kept = torch.stack([each.cpu()[:, order] for each, order in zip(logits, orders.values(), strict=True)])
        of = torch.from_numpy(documents.max(1)).long()
        if not scored or rows.labels is None:
            return kept, kept.argmax(-1), None, of
        classes = [scored[label].model[order] for label, order in orders.items()]
        answers = [torch.from_numpy(of)[each.argmax(-1)] for of, each in zip(classes, kept, strict=True)]
        right = next(iter(scored.values())).data[rows.labels.codes[batch]]
        return kept, torch.stack(answers), torch.from_numpy(right), of

    def _results(self, run: Run, sums: OutputSums) -> Results:
        side, rows = Side(model="outputs", layers=list(self.models)), int(sums.rows.sum())
        measures = []
        for name in self.outputs:
            found, chance = sums.compute_matrix(name), sums.compute_chance(name)
            matrix = Matrix(
                rows=side,
                columns=side,
                values=run.write_array(slug(name, "values"), found.values.numpy()),
                se=None if found.se is None else run.write_array(slug(name, "se"), found.se.numpy()),
                n=rows,
                details={} if chance is None else {CHANCE: run.write_array(slug(name, CHANCE), chance.numpy())},
            )
            estimate = {"kind": "full", "rows": rows, "rows_available": rows, "batches": 1}
            card = CARDS[name].record()
            measures.append(
                Measured(name=name, label=name, settings={}, estimate=estimate, card=card, matrices=[matrix])
            )
        tables = {} if sums.correct is None else {ACCURACY: make_accuracy_table(side.layers, sums)}
        about = {"documents": int((sums.rows > 0).sum()), "freedom": count_like_freedom(sums.rows.numpy())}
        return Results(study="outputs", measures=measures, tables=tables, about=about)


def make_accuracy_table(labels: Sequence[str], sums: OutputSums) -> Table:
    found = sums.compute_accuracy()
    assert found is not None
    errors = [None] * len(labels) if found.se is None else found.se.tolist()
    rows = [list(row) for row in zip(labels, found.values.tolist(), errors, strict=True)]
    return Table(columns=["model", "accuracy", "se"], rows=rows)
