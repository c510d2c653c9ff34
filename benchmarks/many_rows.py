"""RSA of many rows: what batches and samples of rows say of the value of the population, and whether errors cover it.

Command: python benchmarks/many_rows.py [DRAWS [ROWS]]     (200 draws of 20,000 rows)

Rows are tanh of a linear map of directions that two layers share, half of whose variance documents of 20 rows have in
common, and noise. `in topics`: documents come in order of 20 topics, as corpora come in order of their sources. Values
are of pairs of rows of different documents. Of every draw: `per_batch`, batches of 1,024 rows that follow each other;
`full` with the jackknife over documents, of 2,048 rows at random. Pearson is not in the registry: distances in place of
their ranks. The value of the population is that of independent pairs of rows.
"""

import sys
import time
from dataclasses import replace

import numpy as np
import torch
from scipy.stats import rankdata

from repsim_cli import measures
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.engine.significance import jackknife
from repsim_cli.measures.features import PreparedFeatures
from repsim_cli.measures.kernels import Packed
from repsim_cli.measures.rdm import make_rank_measure, pack_distances, standardise_rows

SHARED, WIDTH, OF_DOCUMENT, TOPICS = 8, 32, 20, 20
BATCH, SAMPLE = 1024, 2048
PAIRS, AT_ONCE = 10_000_000, 250_000  # of the population
Rng = np.random.Generator


def correlate_distances(x: torch.Tensor, left_out: torch.Tensor | None = None) -> PreparedFeatures:
    cells = pack_distances(standardise_rows(x)[0].float()).square_()
    kept = torch.ones(len(cells), dtype=torch.bool) if left_out is None else ~left_out
    cells -= cells[kept].mean()
    cells[~kept] = 0
    return PreparedFeatures(cells / cells[kept].std())


class Population:
    """Two layers of one text. topics: whether documents have topics, in whose order they come."""

    def __init__(self, topics: bool) -> None:
        rng = np.random.default_rng(0)
        self.maps = [rng.standard_normal((SHARED, WIDTH), np.float32) / 2 for _ in range(2)]
        self.topics = 1.5 * topics * rng.standard_normal((TOPICS, SHARED), np.float32)

    def read(self, rng: Rng, documents: int, each: int) -> list[torch.Tensor]:
        topics = np.sort(rng.integers(TOPICS, size=documents))
        centres = self.topics[topics] + rng.standard_normal((documents, SHARED), np.float32)
        signal = centres.repeat(each, 0) + rng.standard_normal((documents * each, SHARED), np.float32)
        noise = (rng.standard_normal((len(signal), WIDTH), np.float32) / 2 for _ in range(2))
        return [torch.from_numpy(np.tanh(signal @ m) + e) for m, e in zip(self.maps, noise, strict=True)]

    def compute_values(self) -> dict[str, float]:
        """The two correlations of the distances of independent pairs of rows."""
        rng, apart = np.random.default_rng(1), []
        for _ in range(PAIRS // AT_ONCE):
            order = torch.from_numpy(rng.permutation(2 * AT_ONCE))
            units = [standardise_rows(x[order])[0] for x in self.read(rng, 2 * AT_ONCE, 1)]
            apart.append([1 - (x[:AT_ONCE] * x[AT_ONCE:]).sum(1).numpy() for x in units])
        sides = [np.concatenate(side) for side in zip(*apart, strict=True)]
        ranked = [rankdata(side) for side in sides]
        return {name: float(np.corrcoef(*of)[0, 1]) for name, of in (("rsa", ranked), ("Pearson", sides))}


MEASURES = {"rsa": measures.get("rsa")}
MEASURES["Pearson"] = replace(make_rank_measure(Packed(cells=correlate_distances)), card=MEASURES["rsa"].card)


def measure_batches(xs: list[torch.Tensor], documents: torch.Tensor) -> dict[str, tuple[float, float]]:
    found = {name: [] for name in MEASURES}
    for rows in range(0, len(documents) - BATCH + 1, BATCH):
        some = slice(rows, rows + BATCH)
        for name, matrix in compute_all_pairs(MEASURES, [x[some] for x in xs], documents=documents[some]).items():
            found[name].append(float(matrix[0, 1]))
    return {name: (float(np.mean(of)), float(np.std(of, ddof=1) / len(of) ** 0.5)) for name, of in found.items()}


def measure_sample(xs: list[torch.Tensor], documents: torch.Tensor, rng: Rng) -> dict[str, tuple[float, float]]:
    some = torch.from_numpy(np.sort(rng.choice(len(documents), SAMPLE, replace=False)))
    found = {}

    def observe(name, measure, prepared, values) -> None:
        found[name] = float(values[0, 1]), float(jackknife(prepared, values, documents[some].numpy())[0, 1])

    compute_all_pairs(MEASURES, [x[some] for x in xs], documents=documents[some], observe=observe)
    return found


def main(draws: int, rows: int) -> None:
    torch.set_num_threads(1)
    documents = torch.arange(rows // OF_DOCUMENT).repeat_interleave(OF_DOCUMENT)
    print("| documents | measure | estimate | population | bias | spread | error over spread | covered |")
    print("| --- " * 8 + "|")
    for topics in (False, True):
        begin, population, rng = time.process_time(), Population(topics), np.random.default_rng(2)
        truth, found = population.compute_values(), {}
        for _ in range(draws):
            xs = population.read(rng, rows // OF_DOCUMENT, OF_DOCUMENT)
            of = {"per_batch": measure_batches(xs, documents), "full, jackknife": measure_sample(xs, documents, rng)}
            for estimate, values in of.items():
                for name, pair in values.items():
                    found.setdefault((name, estimate), []).append(pair)
        for (name, estimate), pairs in found.items():
            values, errors = np.array(pairs).T
            spread = values.std(ddof=1)
            covered = np.mean(np.abs(values - truth[name]) < 2 * errors)
            print(
                f"| {'in topics' if topics else 'in any order'} | {name} | {estimate} | {truth[name]:.4f} "
                f"| {values.mean() - truth[name]:+.4f} | {spread:.4f} | {errors.mean() / spread:.2f} | {covered:.3f} |",
                flush=True,
            )
        print(f"{time.process_time() - begin:.0f} CPU s", file=sys.stderr)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*(given + [200, 20_000][len(given) :]))
