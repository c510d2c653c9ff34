"""All pairs at once against the per-pair code that public libraries ship, on the same features, in one run.

    python benchmarks/measures.py             every measure, one thread: speed-up and error
    python benchmarks/measures.py full        260 layers, 4096 rows, 768 features, unbiased CKA
    python benchmarks/measures.py joint       8 models, 182 layers: one joint pass against one pass per pair of models
    python benchmarks/measures.py single      a call for two arrays against lines of numpy, where rows are many
    python benchmarks/measures.py growth      seconds by layers, rows and width, as a figure
    python benchmarks/measures.py peers       pytorch-cka and rsatoolbox, where they are installed

Seconds are CPU seconds of one thread. The per-pair code runs on a few random pairs, of which the table says how many,
and its time is scaled to all pairs. Errors are against this package's single pairs in float64, on those pairs.
"""

import ctypes
import resource
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from per_pair import (
    above,
    best_correlation,
    bures,
    canonical,
    feature_cka,
    gram_cka_unbiased,
    knn_jaccard,
    knn_mutual,
    lanczos_msid,
    orthogonal,
    rbf_cka,
    regression,
    row_cosine,
    rsa,
    rsm_norm,
    truncated,
)
from threadpoolctl import threadpool_limits

from repsim_cli import measures
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.measures.distance_ranks import rank_distances
from repsim_cli.measures.inner import compute_inner_products
from repsim_cli.measures.kernels import Packed, State


def layers(models: int, depth: int, n: int, d: int, seed: int = 0) -> list[torch.Tensor]:
    """Residual streams over shared factors, each with two features of large scale and offset, float32."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    factors, spectrum = normal(n, 96), torch.arange(1, d + 1) ** -0.5
    found = []
    for model in range(models):
        stream = factors @ normal(96, d) / 96**0.5 + 0.3 * normal(n, d) * spectrum
        for layer in range(depth):
            if layer:
                hidden = torch.nn.functional.gelu(torch.nn.functional.layer_norm(stream, (d,)) @ normal(d, d) / d**0.5)
                stream = stream + 0.6 * hidden @ normal(d, d) / d**0.5 * (1 + spectrum)
            x = stream.clone()
            x[:, [3 + model, 17 + model]] = x[:, [3 + model, 17 + model]] * 60 + 200.0 * (layer > 0)
            found.append(x)
    return found


# measure -> (per-pair code, pairs it is timed on, models of 13 layers, target)
CASES: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], float], int, int, float]] = {
    "cka": (feature_cka, 12, 4, 20),
    "cka_unbiased": (gram_cka_unbiased, 4, 4, 400),
    "cka_rbf": (rbf_cka, 3, 4, 200),
    "rsa": (rsa, 4, 4, 200),
    "rsm_norm_difference": (rsm_norm, 4, 4, 60),
    "mutual_knn": (knn_mutual, 6, 4, 50),
    "jaccard_knn": (knn_jaccard, 6, 4, 50),
    "linear_regression": (regression, 8, 4, 15),
    "neuronsim": (best_correlation, 12, 4, 4.5),
    "cosine": (row_cosine, 40, 4, 10),
    "yanai_cca": (lambda x, y: float(np.square(canonical(x, y)).mean()), 6, 2, 20),
    "svcca": (truncated, 6, 2, 25),
    "mean_cca": (lambda x, y: float(canonical(x, y).mean()), 6, 2, 7),
    "procrustes": (orthogonal, 12, 2, 1.3),
    "bures_similarity": (bures, 1, 2, 50),
    "msid": (lanczos_msid, 1, 2, 10),
}


def cpu_seconds(step: Callable[[], object]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def table(names: list[str], n: int = 2048, d: int = 384) -> None:
    print(f"n = {n}, d = {d}, one thread, {machine()}\n")
    print("| measure | layers | per pair, all pairs | all pairs at once | speed-up | asked | error |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in names:
        peer, timed, models, target = CASES[name]
        xs = layers(models, 13, n, d)
        measure, count = measures.get(name), len(xs)
        # a first turn on few rows, so that neither side pays for imports and compilation
        compute_all_pairs({name: measure}, [x[: 2 * d] for x in xs[:2]])
        pairs = np.random.default_rng(0).choice(count, (timed, 2))
        peer(xs[0][: 2 * d], xs[1][: 2 * d])
        naive = cpu_seconds(lambda p=peer, a=xs, b=pairs: [p(a[i], a[j]) for i, j in b]) / timed
        ordered = count * count if not measure.card.symmetric and name != "neuronsim" else count * (count + 1) / 2
        found: list[torch.Tensor] = []
        ours = min(
            cpu_seconds(lambda m=measure, a=xs, f=found, k=name: f.append(compute_all_pairs({k: m}, a)[k]))
            for _ in range(2)
        )
        exact = [measure(xs[i], xs[j]) for i, j in pairs[:4]]
        error = max(abs(float(found[0][i, j]) - e) / max(1.0, abs(e)) for (i, j), e in zip(pairs, exact, strict=False))
        row = f"{naive * ordered:.1f} s | {ours:.2f} s | {naive * ordered / ours:.1f} x | {target:g} x | {error:.0e}"
        print(f"| `{name}` | {count} | {row} |", flush=True)


TOGETHER = ["cka", "cka_unbiased", "cka_angular", "ensd", "yanai_cca", "linear_regression"]


def together(n: int = 2048, d: int = 384) -> None:
    """Several inner-product measures in one pass against one after the other."""
    xs = layers(4, 13, n, d)
    chosen = {name: measures.get(name) for name in TOGETHER}
    apart = {
        name: cpu_seconds(lambda k=name, m=measure: compute_all_pairs({k: m}, xs)) for name, measure in chosen.items()
    }
    joint = cpu_seconds(lambda: compute_all_pairs(chosen, xs))
    print(f"\n{', '.join(chosen)}: {joint:.2f} s together, {sum(apart.values()):.2f} s one after the other")


def full() -> None:
    """Times all 33 930 pairs of 260 layers of 4096 rows and 768 features, against the peak of torch.mm."""
    xs = layers(20, 13, 4096, 768)
    ctypes.CDLL(None).malloc_trim(0)  # what making them left behind is no part of the peak
    a, b = torch.randn(4096, 4096), torch.randn(4096, 4096)
    torch.mm(a, b)
    rates = []
    for _ in range(5):
        start = time.perf_counter()
        torch.mm(a, b)
        rates.append(2 * 4096**3 / (time.perf_counter() - start) / 1e9)
    del a, b
    start = time.perf_counter()
    values = compute_all_pairs({"m": measures.get("cka_unbiased")}, xs)["m"]
    seconds = time.perf_counter() - start
    n, d, r = 4096, 768, len(xs)
    # each symmetric half counted once: Gram matrices, and products of all pairs of them
    operations = r * n * n * d + r * r * n * n / 2
    rate, peak = operations / seconds / 1e9, max(rates)
    most, held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, sum(x.nbytes for x in xs)
    sampled = [(3, 200), (17, 18), (100, 250)]
    error = max(abs(float(values[i, j]) - measures.get("cka_unbiased")(xs[i], xs[j])) for i, j in sampled)
    print(f"{torch.get_num_threads()} threads, {machine()}")
    print(f"{r * (r + 1) // 2} pairs in {seconds:.1f} s: {rate:.0f} GF/s of torch.mm's {peak:.0f} = {rate / peak:.0%}")
    print(f"peak memory {most / 1e9:.2f} GB, of which the layers {held / 1e9:.2f}; error {error:.0e}")


SHAPES = {64: 14, 128: 18, 192: 22, 256: 24, 320: 26, 384: 26, 512: 26, 640: 26}  # width -> blocks


def joint(tokens: int = 512) -> None:
    """One batch of 512 tokens through 8 models of GPT-NeoX shape, unbiased CKA between all 182 layers, one thread."""
    from transformers import GPTNeoXConfig, GPTNeoXModel

    ids = torch.randint(0, 1000, (1, tokens), generator=torch.Generator().manual_seed(0))
    features, forward = [], []
    for width, blocks in SHAPES.items():
        torch.manual_seed(width)
        config = GPTNeoXConfig(
            vocab_size=1000,
            hidden_size=width,
            num_hidden_layers=blocks,
            num_attention_heads=width // 32,
            intermediate_size=4 * width,
            max_position_embeddings=tokens,
        )
        model = GPTNeoXModel(config).eval()
        with torch.inference_mode():
            model(ids)
            start = time.process_time()
            states = model(ids, output_hidden_states=True).hidden_states[1:]
            forward.append(time.process_time() - start)
        features.append([state[0].clone() for state in states])
    everything = [x for one in features for x in one]
    measure = {"m": measures.get("cka_unbiased")}
    similarity = min(cpu_seconds(lambda: compute_all_pairs(measure, everything)) for _ in range(3))
    # pair by pair every model runs with each model anew (once with itself), and every pair of layers is computed anew
    runs = sum(forward) * (len(SHAPES) + 1)
    sampled = np.random.default_rng(0).choice(len(everything), (40, 2))
    each = cpu_seconds(lambda: [gram_cka_unbiased(everything[i], everything[j]) for i, j in sampled]) / len(sampled)
    count = len(everything)
    pairs = each * (count * (count - 1) / 2 + count)
    ours = sum(forward) + similarity
    print(f"{count} layers, {tokens} tokens, one thread, {machine()}")
    print(
        f"joint: forwards {sum(forward):.2f} s, similarity {similarity:.2f} s ({similarity / sum(forward):.0%} of them)"
    )
    print(f"pair by pair: forwards {runs:.1f} s, similarity {pairs:.1f} s: {(runs + pairs) / ours:.0f} x")


def growth() -> None:
    """Seconds of cka_unbiased by layers, rows and width, each the others fixed at 26, 1024 and 256."""
    from matplotlib.figure import Figure

    base = {"layers": 26, "rows": 1024, "width": 256}
    steps = {"layers": (13, 26, 52, 104), "rows": (512, 1024, 2048, 4096), "width": (64, 128, 256, 512)}
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    for axes, (what, sizes) in zip(figure.subplots(1, 3, sharey=True), steps.items(), strict=True):
        for name in ("cka_unbiased", "rsa", "mutual_knn", "svcca"):
            seconds = []
            for size in sizes:
                shape = {**base, what: size}
                xs = layers(shape["layers"] // 13, 13, shape["rows"], shape["width"])
                seconds.append(cpu_seconds(lambda m=name, a=xs: compute_all_pairs({m: measures.get(m)}, a)))
            axes.loglog(sizes, seconds, marker="o", label=name)
            print(f"{name:14} {what:7} " + "  ".join(f"{s}: {t:.2f} s" for s, t in zip(sizes, seconds, strict=True)))
        axes.set_xlabel(what)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
    figure.axes[0].set_ylabel("CPU seconds, all pairs")
    figure.axes[0].legend(fontsize=7)
    figure.savefig(Path(__file__).parent / "growth.png", dpi=150)


def seconds_of(step: Callable[[], object], turns: int = 3) -> float:
    """Wall-clock, the best of some turns."""
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return min(times)


def peers() -> None:
    """pytorch-cka on the same features, and rsatoolbox on the same dissimilarity matrices."""
    from cka import cka_from_features
    from rsatoolbox.rdm import RDMs, compare

    print(f"{torch.get_num_threads()} threads, {machine()}")
    xs = layers(4, 13, 1024, 384)
    measure = {"m": measures.get("cka_unbiased")}
    theirs, ours = seconds_of(lambda: cka_from_features(xs, xs)), seconds_of(lambda: compute_all_pairs(measure, xs))
    print(f"pytorch-cka, 52 layers of 1024 x 384: {theirs:.2f} s, here {ours:.2f} s: {theirs / ours:.1f} x")
    shifted = [x.clone() for x in xs[:2]]
    for x in shifted:
        x[:, 5] += 3000
    exact = measures.get("cka_unbiased")(*shifted)
    here = float(compute_all_pairs(measure, shifted)["m"][0, 1])
    print(
        f"an offset of 3000: pytorch-cka {float(cka_from_features(*shifted)):.6f}, here {here:.6f}, float64 {exact:.6f}"
    )

    few = [x[:512] for x in xs]
    cells = [torch.from_numpy(above(1 - np.corrcoef(x.numpy()))).float() for x in few]
    rdms = RDMs(np.stack([one.double().numpy() for one in cells]))
    kernel = Packed(cells=rank_distances)

    def compared() -> torch.Tensor:
        (cross,) = compute_inner_products(
            [(kernel, kernel)], {kernel: [State(rank_distances(one)) for one in cells]}, 512, 512
        )
        return cross / cross.diagonal().sqrt()[:, None] / cross.diagonal().sqrt()

    theirs, ours = seconds_of(lambda: compare(rdms, rdms, method="spearman")), seconds_of(compared)
    whole = seconds_of(lambda: compute_all_pairs({"m": measures.get("rsa")}, few))
    largest = np.abs(compare(rdms, rdms, method="spearman") - compared().numpy()).max()
    print(
        f"rsatoolbox compare(spearman), 52 dissimilarity matrices of 512 rows: {theirs:.2f} s, here {ours:.2f} s: "
        f"{theirs / ours:.1f} x, largest difference {largest:.0e}; from activations {whole:.2f} s"
    )


def numpy_cka(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    return float(np.linalg.norm(x.T @ y) ** 2 / np.linalg.norm(x.T @ x) / np.linalg.norm(y.T @ y))


def numpy_regression(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    return float(np.linalg.norm(np.linalg.qr(y)[0].T @ x) ** 2 / np.linalg.norm(x) ** 2)


def single() -> None:
    """A call for two arrays of float64, against what a user would write in numpy, which checks nothing."""
    print(f"{machine()}\n\n| measure | rows x features | numpy | here | |\n| --- | --- | --- | --- | --- |")
    rng = np.random.default_rng(0)
    for name, peer in (("cka", numpy_cka), ("linear_regression", numpy_regression)):
        for n, d in ((4096, 64), (50_000, 64), (20_000, 768)):
            shared = rng.normal(size=(n, 24))
            x, y = (shared @ rng.normal(size=(24, d)) + rng.normal(size=(n, d)) for _ in range(2))
            measure = measures.get(name)
            assert abs(measure(x, y) - peer(x, y)) < 1e-9
            theirs, ours = (min(cpu_seconds(partial(f, x, y)) for _ in range(3)) for f in (peer, measure))
            print(f"| `{name}` | {n:,} x {d} | {theirs:.3f} s | {ours:.3f} s | {theirs / ours:.1f} x |")


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return f"{name}, torch {torch.__version__}, numpy {np.__version__}"


COMMANDS = {"full": full, "joint": joint, "growth": growth, "peers": peers, "single": single}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    words = sys.argv[1:]
    threads = 2 if words in (["full"], ["peers"]) else 1
    torch.set_num_threads(threads)
    with threadpool_limits(threads):
        if words and words[0] in COMMANDS:
            COMMANDS[words[0]]()
        else:
            table(words or list(CASES))
            if not words:
                together()
