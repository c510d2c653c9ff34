"""A language model of 7B parameters on a machine with 6 GB: repsim's pass by block, and accelerate's offload to disk.

Command: python benchmarks/by_block.py FOLDER [BATCHES]     (root; FOLDER gets 13.5 GB of weights, deleted at the end)
         python benchmarks/by_block.py FOLDER verify [BLOCKS] [WORD ...]    (root; FOLDER gets 14.5 GB)

Writes a Llama of the 7B shape in bfloat16 and measures what no run can avoid: the arithmetic of its blocks with weights
in memory, and one sequential read of the files. Then it runs, each in a cgroup (v1) of 6 GB that holds its page cache
too, and each with none of the weights in the page cache:
  repsim run, all 32 blocks and the embeddings, cka_unbiased, 8 sequences of 128 tokens in 8 batches (or BATCHES), an
    empty cache, from a folder laid out as the cache of the hub, whose files are named by their hashes;
  the same from a folder of plain files, whose hash is not known;
  the same tokens through the model whose weights accelerate leaves on the disk (device_map "disk").
With `verify`: `repsim verify` of such a model of 32 blocks (or BLOCKS) with a head and of its copy, in which one weight
of the block in the middle is another; shards that are the same are one file on the disk. WORD: more of the command, as
--quick.
Prints per process: bytes read from the disk, in multiples of the weights; the most anonymous memory; CPU and wall time;
and the stages of a run that take more than a second.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

LIMIT = 6 * 10**9
LENGTH = 128
SHAPE = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
GROUPS = Path("/sys/fs/cgroup/memory")


class Used(NamedTuple):
    read: int
    anonymous: int
    cpu: float
    wall: float


def write(folder: Path, blocks: int = 32, *, head: bool = False, per_file: int = 2) -> int:
    """Writes shards of so many blocks each, a tensor at a time; the bytes of all weights."""
    import torch
    import transformers
    from safetensors.torch import save_file

    from repsim_cli.models.checkpoints import find_shipped

    folder.mkdir(parents=True)
    config = transformers.AutoConfig.for_model(**{**SHAPE, "num_hidden_layers": blocks})
    with torch.device("meta"):
        whole = transformers.AutoModelForCausalLM.from_config(config)
    shapes = {name: x.shape for name, x in whole.state_dict().items() if head or name.startswith("model.")}
    index, total, place = {}, 0, 0
    # every matrix is a piece of the same random numbers, since drawing all of them takes minutes
    drawn = torch.randn(2**26 - 5, generator=torch.Generator().manual_seed(0)).mul_(0.02).to(torch.bfloat16)
    groups: dict[int, list[str]] = {}
    for name in shapes:
        groups.setdefault(int(name.split(".")[2]) // per_file + 1 if ".layers." in name else 0, []).append(name)
    for number, names in sorted(groups.items()):
        file = f"model-{number + 1:05d}-of-{len(groups):05d}.safetensors"
        tensors = {}
        for name in names:
            ones, place = len(shapes[name]) == 1, (place + 12_345_677) % len(drawn)
            x = torch.ones(shapes[name], dtype=torch.bfloat16)
            tensors[name] = x if ones else drawn.roll(place).repeat(-(-x.numel() // len(drawn)))[: x.numel()].view_as(x)
            tensors[name] = tensors[name].clone()
            total += x.nbytes
            index[name] = file
        save_file(tensors, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": total}, "weight_map": index})
    )
    config.save_pretrained(folder)
    for file in find_shipped("tiny_a").glob("*token*"):
        shutil.copy(file, folder)
    return total


def forget(folder: Path) -> None:
    """Drops the files from the page cache."""
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def limited(command: list[str], environment: dict[str, str], limit: int = LIMIT, ends: int = 0) -> Used:
    """Runs a command that ends with this code in a group of its own with so many bytes of memory, page cache
    included."""
    group = GROUPS / f"repsim-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(limit))
    start, most = time.monotonic(), 0

    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    process = subprocess.Popen(command, env={**os.environ, **environment}, preexec_fn=enter)
    while True:
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        if ended:
            break
        counted = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        most = max(most, int(counted["rss"]))
        time.sleep(0.1)
    group.rmdir()
    assert os.waitstatus_to_exitcode(status) == ends, (os.waitstatus_to_exitcode(status), command)
    return Used(512 * usage.ru_inblock, most, usage.ru_utime + usage.ru_stime, time.monotonic() - start)


def offloaded(folder: str, batches: str) -> None:
    """The peer: all weights stay on the disk, and every forward pass reads them."""
    import torch
    import transformers

    model: Any = transformers.AutoModel.from_pretrained(
        folder, dtype=torch.bfloat16, device_map={"": "disk"}, offload_folder=f"{folder}/offloaded"
    )
    ids = torch.randint(3, 500, (int(batches), LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for one in ids:
            model(input_ids=one[None], use_cache=False)


def arithmetic(batches: int) -> tuple[float, float]:
    """CPU and wall seconds of all blocks of the model, with weights in memory."""
    import torch
    import transformers

    model: Any = transformers.AutoModel.from_config(
        transformers.AutoConfig.for_model(**{**SHAPE, "num_hidden_layers": 1}), dtype=torch.bfloat16
    )
    ids = torch.randint(3, 500, (batches + 1, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        for i, sequence in enumerate(ids):
            if i == 1:  # the first warms up
                cpu, wall = time.process_time(), time.monotonic()
            model(input_ids=sequence[None], use_cache=False)
    count = SHAPE["num_hidden_layers"]
    return count * (time.process_time() - cpu), count * (time.monotonic() - wall)


def read(folder: Path) -> float:
    """Wall seconds to read the files once, in order."""
    forget(folder)
    start, buffer = time.monotonic(), bytearray(2**24)
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass
    return time.monotonic() - start


def as_on_hub(weights: Path, hub: Path) -> Path:
    """A snapshot of the same files in the layout of the hub's cache."""
    snapshot, blobs = hub / "snapshots" / "0", hub / "blobs"
    for made in (snapshot, blobs):
        made.mkdir(parents=True)
    for file in weights.iterdir():
        with file.open("rb") as opened:
            blob = blobs / hashlib.file_digest(opened, "sha256").hexdigest()
        blob.hardlink_to(file)
        (snapshot / file.name).symlink_to(f"../../blobs/{blob.name}")
    return snapshot


def run_of(weights: Path, batches: int) -> list[str]:
    words = ["run", "model=[]", f"+model.big={{kind: transformers, path: {weights}}}", "measure=[cka_unbiased]"]
    words += ["extract.hook_points=[embed,resid_post]", f"extract.sequences={batches}", f"extract.length={LENGTH}"]
    words += [f"extract.batch_rows={LENGTH * batches}", "extract.padding=keep", "extract.skip=0"]
    words += ["hardware.dtype=bfloat16", "hardware.batch_size=1", f"hardware.memory_gb={LIMIT / 1e9}"]
    return [sys.executable, "-m", "repsim_cli", *words]


def unavoidable(weights: Path, batches: int) -> None:
    cpu, wall = arithmetic(batches)
    print(
        f"blocks alone: CPU {cpu:.0f} s, wall {wall:.0f} s; one sequential read: wall {read(weights):.0f} s",
        flush=True,
    )


def measure(name: str, command: list[str], weights: Path, scratch: Path, *more: Path, ends: int = 0) -> None:
    """Runs a command with an empty cache and none of the weights in the page cache. more: folders of other weights."""
    places = {"REPSIM_OUTPUTS": f"{scratch}/outputs", "REPSIM_CACHE": f"{scratch}/cache"}
    size = sum(file.stat().st_size for folder in (weights, *more) for file in folder.glob("*.safetensors"))
    for folder in (weights, *more):
        forget(folder)
    used = limited(command, places, ends=ends)
    for manifest in (scratch / "outputs").rglob("manifest.json"):
        stages = json.loads(manifest.read_text())["timings"]
        print(", ".join(f"{stage} {seconds:.0f} s" for stage, seconds in stages.items() if seconds > 1))
    shutil.rmtree(scratch, ignore_errors=True)
    print(
        f"{name}: read {used.read / 1e9:.1f} GB ({used.read / size:.2f} x the weights), anonymous memory "
        f"at most {used.anonymous / 1e9:.2f} GB, CPU {used.cpu:.0f} s, wall {used.wall:.0f} s, load after "
        f"{os.getloadavg()[0]:.1f}",
        flush=True,
    )


def verified(folder: Path, blocks: int = 32, *words: str) -> None:
    """A model and its copy with another weight, by `repsim verify` with these words."""
    from safetensors.torch import load_file, save_file

    weights, other, scratch = folder / "llama-7b", folder / "llama-7b-copy", folder / "scratch"
    try:
        print(f"weights: {write(weights, blocks, head=True) / 1e9:.2f} GB; load before: {os.getloadavg()[0]:.1f}")
        shutil.copytree(weights, other, copy_function=os.link)
        name = f"model.layers.{blocks // 2}.mlp.down_proj.weight"
        file = other / json.loads((other / "model.safetensors.index.json").read_text())["weight_map"][name]
        tensors = load_file(file)
        tensors[name][5, 7] += 1
        file.unlink()
        save_file(tensors, file, metadata={"format": "pt"})
        del tensors
        command = [sys.executable, "-m", "repsim_cli", "verify", str(weights), str(other)]
        command += ["--memory-gb", str(LIMIT / 1e9), *words]
        measure("repsim verify, by block", command, weights, scratch, other, ends=1)
    finally:
        for made in (weights, other, scratch):
            shutil.rmtree(made, ignore_errors=True)


def main(folder: Path, batches: int) -> None:
    weights, hub, scratch = folder / "llama-7b", folder / "models--llama-7b", folder / "scratch"
    try:
        print(f"weights: {write(weights) / 1e9:.2f} GB; load before: {os.getloadavg()[0]:.1f}")
        snapshot = as_on_hub(weights, hub)
        unavoidable(weights, batches)
        measure("repsim, by block, from the hub", run_of(snapshot, batches), weights, scratch)
        measure("repsim, by block, from a folder", run_of(weights, batches), weights, scratch)
        peer = [sys.executable, __file__, "--offloaded", str(weights), str(batches)]
        measure("accelerate, disk", peer, weights, scratch)
    finally:
        for made in (weights, hub, scratch):
            shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1] == "--offloaded":
        offloaded(*sys.argv[2:])
    elif sys.argv[2:3] == ["verify"]:
        verified(Path(sys.argv[1]), *map(int, sys.argv[3:4]), *sys.argv[4:])
    else:
        main(Path(sys.argv[1]), int((*sys.argv[2:], "8")[0]))
