"""Gromov-Wasserstein of pairs of layers against POT's own solver: seconds and objectives, interleaved in one run.

    python benchmarks/gromov_wasserstein.py [ROWS ...] [--encoder FOLDER]        by default 200 500 1000

The layers are those of Model L of the modular sums (modsum_l of conf/models.yaml, trained if it is not there: two
minutes), at the hook points of conf/extract/modsum.yaml, on as many pairs of numbers; and those of three plain networks
of eight layers, two of them trained to tell ten clusters, on as many points. With --encoder (e.g. what `python
scripts/real_models minilm` prints) also the embeddings and blocks of a pretrained model, on tokens of the shipped text.
Seconds are CPU seconds of one thread, the median of 16 pairs of layers (4 above 1000 rows); objectives are those of the
couplings that come out.
"""

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np
import ot
import torch
import yaml
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits

from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.row_batches import stream_row_batches
from repsim_cli.activations.rows import stream_row_blocks
from repsim_cli.activations.stored import Running
from repsim_cli.base.registry import data
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.config.binding import bind_model
from repsim_cli.config.presets import find_conf_folder, read_table_entries
from repsim_cli.data.modular import modular_pairs
from repsim_cli.measures import assignment
from repsim_cli.measures.gromov import lower_bounds
from repsim_cli.measures.gromov_search import find_best_gromov
from repsim_cli.measures.gromov_spaces import Space, order_pair, prepare_space
from repsim_cli.models.source import Precomputed

TIED = "resid_post@1"
MODES = ("pot", "identity", "best")
ORDERS = 5


def layers(n: int, model: str = "modsum_l") -> dict[str, torch.Tensor]:
    """The representations (n, d) of an entry of conf/models.yaml, by layer."""
    entry = dict(read_table_entries("model")[model])
    chosen = yaml.safe_load((find_conf_folder() / "extract" / "modsum.yaml").read_text())
    extract = Extract(**{**chosen, "rows": n, "at_most": []})
    source = bind_model(model, entry)
    found, hardware = plan_readings({model: source}, extract), Hardware(batch_size=512)
    if isinstance(source, Precomputed):
        stream, total = stream_row_blocks(found, Running({}, {}), extract, hardware, iter), source.rows
    else:
        sequences = modular_pairs(numbers=entry["recipe"]["moduli"][0]).sequences(source.tokenizer(), extract, 0)
        modules, total = {model: source.load(False)}, len(sequences.inputs)
        stream = stream_row_blocks(found, Running(modules, {model: sequences}), extract, hardware, iter)
    (rows,) = stream_row_batches(stream, extract, total, 0)
    return {layer.name: x for layer, x in zip(found[0].layers, rows, strict=True)}


def plain_layers(n: int) -> dict[str, torch.Tensor]:
    """The hidden layers (n, 128) of networks of eight, two trained on other points of the same clusters, one hardly."""
    x, y = make_blobs(3 * n, 64, centers=10, cluster_std=6.0, random_state=0)
    found = {}
    for seed, epochs in enumerate((20, 20, 1)):
        network = MLPClassifier((128,) * 8, max_iter=epochs, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(x[n:], y[n:])
        rows = x[:n]
        for number, (weights, offset) in enumerate(zip(network.coefs_[:-1], network.intercepts_[:-1], strict=True)):
            rows = np.maximum(rows @ weights + offset, 0)
            found[f"network {seed}, layer {number}"] = torch.from_numpy(rows)
    return found


def encoder_layers(folder: str, n: int) -> dict[str, torch.Tensor]:
    """The embeddings and the outputs of all blocks (n, d) of a transformers model, on the first tokens of a text."""
    from transformers import AutoModel, AutoTokenizer

    text = "\n".join(itertools.islice(data.get("embedded_text").function().documents(), 200))
    words = AutoTokenizer.from_pretrained(folder)(text, verbose=False).input_ids[: 128 * (n // 128 + 1)]
    ids = torch.tensor(words).unflatten(0, (-1, 128))
    with torch.inference_mode():
        hidden = AutoModel.from_pretrained(folder)(ids, output_hidden_states=True).hidden_states
    return {f"layer {i}": x.flatten(0, 1)[:n].clone() for i, x in enumerate(hidden)}


def timed(step: Callable[[], float]) -> tuple[float, float]:
    """CPU seconds, and the step's value."""
    start = time.process_time()
    value = step()
    return time.process_time() - start, value


def by_pot(a: Space, b: Space) -> float:
    uniform = np.full(len(a.rows), 1 / len(a.rows))
    return float(ot.gromov.gromov_wasserstein2(a.distances, b.distances, uniform, uniform))


def by_mode(mode: str, a: Space, b: Space) -> float:
    return find_best_gromov(a, b, start=mode, restarts=0, seed=0).value  # type: ignore[arg-type]


def compare(what: str, found: dict[str, torch.Tensor]) -> None:
    spaces = [prepare_space(x, cost_scale="mean", bounds=True, blocks=True) for x in found.values()]
    n = len(spaces[0].rows)
    draw = np.random.default_rng(7)
    count = 16 if n <= 1000 else 4
    drawn = [draw.choice(len(spaces), 2, replace=False) for _ in range(count)]
    pairs = [order_pair(spaces[i], spaces[j]) for i, j in drawn]
    by_mode("best", *pairs[0])  # compiles
    solvers = {"POT": by_pot, **{mode: partial(by_mode, mode) for mode in MODES}}
    seconds, values = ({name: [] for name in solvers} for _ in range(2))
    for a, b in pairs:
        for name, solve in solvers.items():
            took, value = timed(partial(solve, a, b))
            seconds[name].append(took)
            values[name].append(value)
    pot, peer = np.array(values["POT"]), np.array(seconds["POT"])
    print(f"\n{what}: {n} rows, {count} pairs" + ("" if assignment.load_compiled() else ", without numba"))
    print("| start | seconds | times as fast as POT | objective / POT's: mean, least, largest |")
    print("| --- | --- | --- | --- |")
    for name in solvers:
        ratio = np.array(values[name]) / pot
        faster = np.median(peer / np.array(seconds[name]))
        spread = f"{ratio.mean():.3f}, {ratio.min():.3f}, {ratio.max():.10f}"
        print(f"| {name} | {np.median(seconds[name]):.3f} | {faster:.1f} | {spread} |")
    second, third = np.array([lower_bounds(a, b) for a, b in pairs]).T / np.array(values["best"])
    print(f"lower bounds over `best`, median: second {np.median(second):.2f}, third {np.median(third):.2f}")


def tied(n: int) -> None:
    """One-hot rows: distances are 0 or one other value, so that the steps of any solver depend on the rows' order."""
    draw = np.random.default_rng(0)
    classes = torch.nn.functional.one_hot(torch.from_numpy(draw.integers(0, 17, n))).double()
    layer = layers(n)[TIED]
    print(f"\none-hot rows of 17 classes against {TIED}, {n} rows: range over {ORDERS} orders of the rows / least")
    for name, solve in {"POT": by_pot, **{mode: partial(by_mode, mode) for mode in MODES}}.items():
        found = []
        for _ in range(ORDERS):
            order = torch.from_numpy(draw.permutation(n))
            found.append(solve(*(prepare_space(x[order], cost_scale="mean") for x in (classes, layer))))
        print(f"{name}: {(max(found) - min(found)) / min(found):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", type=int, default=[200, 500, 1000])
    parser.add_argument("--encoder", metavar="FOLDER")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        for rows in asked.rows:
            compare("Model L", layers(rows))
            compare("plain networks", plain_layers(rows))
            if asked.encoder:
                compare("encoder", encoder_layers(asked.encoder, rows))
        tied(500)
