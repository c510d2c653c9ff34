"""What this machine and installation offer: versions, devices, memory, threads, matrix kernels, hub, ports, cache."""

import os
import platform
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from repsim_cli.base import environment
from repsim_cli.config.executor import PORTS
from repsim_cli.runs import cache, results

OPTIONAL = ("gguf", "peft", "numba", "ripser", "gudhi")  # of the extras
SIDE = 1024  # of the matrices whose product is timed


def examine() -> Iterator[tuple[str, list[str]]]:
    """(topic, lines), topic by topic, because some take seconds."""
    packages = [f"{name} {environment.read_version(name) or 'missing'}" for name in (*environment.PACKAGES, *OPTIONAL)]
    yield "versions", [f"Python {platform.python_version()} on {platform.platform()}", *packages]
    memory = psutil.virtual_memory()
    outputs = results.find_outputs_root()
    there = next(p for p in (outputs.resolve(), *outputs.resolve().parents) if p.exists())
    yield (
        "memory and disk",
        [
            f"{memory.total / 1e9:.1f} GB of memory, {memory.available / 1e9:.1f} GB available",
            f"{shutil.disk_usage(there).free / 1e9:.1f} GB free for runs in {outputs}",
        ],
    )
    yield "devices", describe_devices()
    yield "matrix kernels", describe_kernels()
    yield "hub", [describe_hub()]
    yield "open ports, by hardware.executor", [f"{name}: {ports}" for name, ports in PORTS.items()]
    used = [f"{kind}: {entries} entries, {size / 1e9:.3f} GB" for kind, entries, size in cache.measure_cache_use()]
    writable = "can be written" if _is_cache_writable() else "cannot be written: runs do without it"
    yield "cache", [f"{cache.find_cache_folder()}: limit {cache.limit() / 1e9:g} GB, {writable}", *used]


def describe_devices() -> list[str]:
    """Lists the CPU with its threads and every GPU, a line each."""
    import torch

    lines = [f"cpu: {psutil.cpu_count(logical=False) or '?'} cores, torch uses {torch.get_num_threads()} threads"]
    policy = os.environ.get("OMP_WAIT_POLICY", "not set")
    if policy.lower() == "passive":
        lines.append("threads that wait sleep (OMP_WAIT_POLICY=passive)")
    else:
        lines.append(
            f"threads that wait spin (OMP_WAIT_POLICY: {policy}) and slow other processes down; set it to passive"
        )
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        lines.append(f"cuda:{index}: {properties.name}, {properties.total_memory / 1e9:.0f} GB")
    if not torch.cuda.is_available():
        lines.append("no CUDA device")
    return lines


def describe_kernels() -> list[str]:
    """Describes the BLAS that serves numpy and torch, and the speed of a product of two square matrices, in GFLOP/s."""
    import numpy as np
    import threadpoolctl
    import torch

    lines = []
    for pool in threadpoolctl.threadpool_info():
        kind = pool.get("architecture") or pool["prefix"]
        lines.append(f"{pool['internal_api']} {pool['version'] or ''}: {kind}, {pool['num_threads']} threads")
    lines.append(
        f"torch: {'MKL' if torch.backends.mkl.is_available() else 'no MKL'}, "
        f"{'oneDNN' if torch.backends.mkldnn.is_available() else 'no oneDNN'}"
    )
    for dtype in ("float32", "float64"):
        a = torch.rand(SIDE, SIDE, dtype=getattr(torch, dtype))
        b = np.random.default_rng(0).random((SIDE, SIDE)).astype(dtype)
        lines.append(
            f"{dtype} product of {SIDE} x {SIDE}: torch {_measure_product_speed(lambda x=a: x @ x):.0f}, "
            f"numpy {_measure_product_speed(lambda x=b: x @ x):.0f} GFLOP/s"
        )
    return lines


def _measure_product_speed(product: Callable[[], Any]) -> float:
    product()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        product()
        times.append(time.perf_counter() - start)
    return 2 * SIDE**3 / min(times) / 1e9


def describe_hub() -> str:
    if os.environ.get("HF_HUB_OFFLINE"):
        return "HF_HUB_OFFLINE is set: only what is in the local hub cache can be used"
    try:
        with socket.create_connection(("huggingface.co", 443), timeout=3):
            return "huggingface.co can be reached"
    except OSError as error:
        return f"huggingface.co cannot be reached ({error}): use local folders and files"


def _is_cache_writable() -> bool:
    try:
        cache.find_cache_folder().mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(cache.find_cache_folder(), os.W_OK)
