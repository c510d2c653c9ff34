"""What a GPU changes: all pairs, forward passes of published shapes, a peer, Gromov-Wasserstein, out-of-memory halving.

    python benchmarks/gpu.py                  everything, some minutes on a data-centre card with 80 GB
    python benchmarks/gpu.py pairs forwards   parts of it: pairs, forwards, peer, blocks, gw, memory
    python benchmarks/gpu.py --small          on the CPU, of sizes that take a minute: shows that the script runs, and
                                              measures nothing

pairs      workload A: 260 layers of 4096 x 768, unbiased CKA of all 33 930 pairs. Target: below 0.3 s.
forwards   workload B: 8 models of the Pythia shapes in bfloat16, batches of 1024 tokens. Target: similarity below 15 %
           of the forward passes.
peer       pytorch-cka on the same features (pip install pytorch-cka). Target: 3 times as fast, with sums in float64.
blocks     random weights of a 7B and a 13B Llama shape in bfloat16, unbiased CKA of all blocks.
gw         the products of Gromov-Wasserstein's descents on the card, against the whole of a pair on the CPU: what the
           card could save.
memory     forward passes whose batch does not fit: halved until it does, with the rows of a batch that fits.

Seconds are the best of some turns, each until the device is done. Errors are against float64 on the CPU.
"""

import argparse
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModel

from repsim_cli import measures
from repsim_cli.activations.capture import capture
from repsim_cli.activations.readings import plan_readings
from repsim_cli.activations.row_batches import stream_row_batches
from repsim_cli.activations.rows import Forward, stream_row_blocks
from repsim_cli.activations.stored import Running
from repsim_cli.base import registry
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.config.presets import read_table_entries
from repsim_cli.data.base import Sequences
from repsim_cli.data.packing import pack
from repsim_cli.engine.estimates import estimate_all_pairs
from repsim_cli.engine.pairs import compute_all_pairs
from repsim_cli.models.source import Source

LLAMA = {"model_type": "llama", "vocab_size": 32000, "max_position_embeddings": 4096}
LLAMA_7B = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA_13B = {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40}
SHAPES = {"7B": {**LLAMA, **LLAMA_7B}, "13B": {**LLAMA, **LLAMA_13B}}
SMALL_LLAMA = {**LLAMA, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
PYTHIA = ("70m", "160m", "410m", "1b", "1_4b", "2_8b", "6_9b", "12b")
CKA = {"cka_unbiased": measures.get("cka_unbiased")}
Rows = Iterator[tuple[str, str, str]]  # what was measured, the figure, the target


class Device:
    """The card, or the CPU with sizes that are small."""

    def __init__(self, small: bool):
        self.small, self.name = small, "cpu" if small else "cuda"
        self.dtype: Literal["float32", "bfloat16"] = "float32" if small else "bfloat16"

    def done(self) -> None:
        if self.name == "cuda":
            torch.cuda.synchronize()

    def seconds(self, step: Callable[[], object], turns: int = 3) -> float:
        step()
        times = []
        for _ in range(turns):
            self.done()
            start = time.perf_counter()
            step()
            self.done()
            times.append(time.perf_counter() - start)
        return min(times)

    def peak(self) -> str:
        """The peak of memory since the last call, in words."""
        if self.name != "cuda":
            return ""
        taken = torch.cuda.max_memory_allocated() / 1e9
        torch.cuda.reset_peak_memory_stats()
        return f", peak {taken:.1f} GB"

    def free(self) -> None:
        if self.name == "cuda":
            torch.cuda.empty_cache()


def layers(count: int, n: int, d: int, device: Device) -> list[torch.Tensor]:
    """Layers over a shared latent, with a feature of large scale and offset, float32."""
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(n, 96, generator=generator)
    found = []
    for _ in range(count):
        x = shared @ torch.randn(96, d, generator=generator) / 10 + torch.randn(n, d, generator=generator)
        x[:, 3] = x[:, 3] * 60 + 200
        found.append(x.to(device.name))
    return found


def of_pairs(device: Device) -> Rows:
    count, n, d = (12, 256, 32) if device.small else (260, 4096, 768)
    xs = layers(count, n, d, device)
    values = compute_all_pairs(CKA, xs)["cka_unbiased"]
    sampled = [(0, 1), (2, count - 1), (count // 2, count // 2 + 1)]
    exact = [CKA["cka_unbiased"](xs[a].cpu(), xs[b].cpu()) for a, b in sampled]
    error = max(abs(float(values[a, b]) - value) for (a, b), value in zip(sampled, exact, strict=True))
    seconds = device.seconds(lambda: compute_all_pairs(CKA, xs))
    what = f"A: {count} layers of {n} x {d}, unbiased CKA, all pairs"
    yield what, f"{seconds:.3f} s, error {error:.0e}{device.peak()}", "0.3 s"


def text_of(sequences: int, length: int) -> Sequences:
    text = registry.data.get("embedded_text").function(split="train")
    tokenizer = registry.models.get("shipped").function(name="tiny_a").tokenizer()
    return pack(text, tokenizer, length=length, sequences=sequences, pool=sequences, separator="auto", seed=0)


def stream_of(
    models: Mapping[str, Source], modules: Mapping[str, Any], tokens: int, sequences: int, device: Device
) -> Callable[[], Iterator[list[torch.Tensor]]]:
    """Batches of 1024 rows of all blocks of these models, on the device."""
    length = min(tokens, 512)
    extract = Extract(
        hook_points=["resid_post"], length=length, sequences=sequences, padding="keep", batch_rows=min(tokens, 1024)
    )
    hardware = Hardware(device=device.name, dtype=device.dtype, batch_size=max(1, tokens // length))
    given = text_of(sequences, length)
    found = plan_readings(models, extract)

    def stream() -> Iterator[list[torch.Tensor]]:
        rows = stream_row_blocks(found, Running(modules, dict.fromkeys(models, given)), extract, hardware, iter)
        return stream_row_batches(rows, extract, given.ids.size, 0)

    return stream


def draw(config: Mapping[str, Any], device: Device) -> torch.nn.Module:
    """The model of this shape, its random weights drawn on the device: on the host they take minutes."""
    with torch.device(device.name):
        return AutoModel.from_config(AutoConfig.for_model(**config), dtype=getattr(torch, device.dtype)).eval()


def compared(
    shapes: Mapping[str, Mapping[str, Any]], device: Device, tokens: int, count: int
) -> tuple[float, float, int]:
    """Seconds per batch of the forward passes with capture, and of the whole; and how many layers there are."""
    make = registry.models.get("random").function
    models = {label: make(config=config, seed=0) for label, config in shapes.items()}
    modules = {label: draw(config, device) for label, config in shapes.items()}
    stream = stream_of(models, modules, tokens, count * max(1, tokens // min(tokens, 512)), device)
    names = [f"{label} {layer}" for label, source in models.items() for layer in range(source.layers)]

    def forwards() -> None:
        for _ in stream():
            pass

    def whole() -> None:
        estimate_all_pairs(CKA, lambda seen: stream(), names=names, estimate="per_batch")

    return device.seconds(forwards) / count, device.seconds(whole) / count, len(names)


def of_forwards(device: Device) -> Rows:
    sizes = PYTHIA[:1] if device.small else PYTHIA
    shapes = {size: read_table_entries("model")[f"pythia_{size}_shape"]["config"] for size in sizes}
    if device.small:
        shapes = {label: {**config, "hidden_size": 64, "intermediate_size": 128} for label, config in shapes.items()}
    tokens = 128 if device.small else 1024
    forwards, whole, count = compared(shapes, device, tokens, 2 if device.small else 8)
    share = (whole - forwards) / forwards
    what = f"B: {len(shapes)} Pythia shapes in {device.dtype}, {count} layers, batches of {tokens} tokens"
    found = f"forwards {forwards:.3f} s, similarity {whole - forwards:.3f} s per batch: {share:.0%}{device.peak()}"
    yield what, found, "below 15 %"


def of_blocks(device: Device) -> Rows:
    tokens = 128 if device.small else 1024
    for name, config in {"small": SMALL_LLAMA}.items() if device.small else SHAPES.items():
        forwards, whole, count = compared({name: config}, device, tokens, 2 if device.small else 8)
        rate = f"{tokens / whole:,.0f} tokens/s, forwards alone {tokens / forwards:,.0f}{device.peak()}"
        yield f"Llama of {name} shape in {device.dtype}, {count} blocks", rate, "-"
        device.free()


def of_peer(device: Device) -> Rows:
    try:
        from cka import cka_from_features  # type: ignore[import-not-found]
    except ImportError:
        yield "pytorch-cka", "not installed; pip install pytorch-cka", "3 x"
        return
    count, n, d = (8, 128, 32) if device.small else (52, 1024, 384)
    xs = layers(count, n, d, device)
    theirs = device.seconds(lambda: cka_from_features(xs, xs))
    ours = device.seconds(lambda: compute_all_pairs(CKA, xs))
    what = f"pytorch-cka, {count} layers of {n} x {d}, unbiased CKA"
    yield what, f"{theirs:.3f} s, here {ours:.3f} s: {theirs / ours:.1f} x", "3 x"


def of_gw(device: Device) -> Rows:
    """A descent needs about 5 products of (n, n) matrices beside its assignments, which stay on the CPU."""
    n, products = (100, 5) if device.small else (1000, 5)
    xs = [x.cpu() for x in layers(4, n, 32, device)]
    measure = measures.get("gromov_wasserstein")
    pairs = list(itertools.combinations(xs, 2))
    start = time.perf_counter()
    for a, b in pairs:
        measure(a, b)
    each = (time.perf_counter() - start) / len(pairs)
    square = torch.rand(n, n, dtype=torch.float64)
    there = square.to(device.name)

    def moved() -> None:
        for _ in range(products):
            (there @ square.to(device.name)).cpu()

    on_cpu = products * device.seconds(lambda: square @ square)
    card = device.seconds(moved)
    found = f"{each:.3f} s a pair, {on_cpu:.3f} s of it in products, {card:.3f} s on the device with transfers"
    yield f"Gromov-Wasserstein, {n} rows, CPU", f"{found}: saves {max(on_cpu - card, 0) / each:.0%}", "if it pays"


def of_memory(device: Device) -> Rows:
    what = "batches that do not fit are halved"
    if device.name != "cuda":
        yield what, "needs a GPU", "the same rows"
        return
    many, few = 64, 4
    source = registry.models.get("random").function(config=SHAPES["7B"], seed=0)
    hardware = {size: Hardware(device=device.name, dtype=device.dtype, batch_size=size) for size in (many, few)}
    module = draw(SHAPES["7B"], device)
    device.free()
    # 3 GB beside the weights, whatever the card: 64 sequences need more, 4 need 0.4 GB
    left = (torch.cuda.memory_allocated() + 3e9) / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(left, 1.0))
    extract = Extract(hook_points=["resid_post"], layers=[0, -1], length=512, sequences=many, padding="keep")
    (reading,) = plan_readings({"a": source}, extract)
    given = text_of(many, 512)
    rows, fits = {}, {}
    for size in (many, few):
        with capture(module, source, reading.points) as read:
            forward = Forward(reading, read, module, given, extract, hardware[size])
            rows[size], fits[size] = [x.cpu() for x in forward.rows(slice(0, size))], forward.fits
    torch.cuda.set_per_process_memory_fraction(1.0)
    same = max(float((a[: len(b)] - b).abs().max()) for a, b in zip(rows[many], rows[few], strict=True))
    found = f"{many} sequences of 512 tokens through 7B in 3 GB: {fits[many]} fit, largest difference {same:.1e}"
    yield what, found, "the same rows"


PARTS = {
    "pairs": of_pairs,
    "forwards": of_forwards,
    "peer": of_peer,
    "blocks": of_blocks,
    "gw": of_gw,
    "memory": of_memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; by default all")
    parser.add_argument("--small", action="store_true", help="on the CPU, to see that the script runs")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part, got {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    if not given.small and not torch.cuda.is_available():
        parser.error("no GPU can be used here; --small runs small sizes on the CPU, which measure nothing")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    device = Device(given.small)
    card = "the CPU, small sizes: no figures" if given.small else torch.cuda.get_device_name()
    print(f"{card}, torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print("| what | measured | target |\n| --- | --- | --- |")
    for part in given.parts or PARTS:
        for what, found, target in PARTS[part](device):
            print(f"| {what} | {found} | {target} |", flush=True)
        device.free()


if __name__ == "__main__":
    main()
