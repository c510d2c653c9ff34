"""The commands that the program prints as examples, on what a user has, and what makes those of studies short."""

import json
import shlex
from importlib import resources
from pathlib import Path

import h5py
import numpy as np
import PIL.Image

ASSETS = Path(str(resources.files("repsim_cli"))) / "assets"


def encoder(folder):
    """A model in the transformers format that becomes a classifier."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    words = AutoTokenizer.from_pretrained(ASSETS / "tokenizers" / "word_pieces")
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=128, **sizes)).save_pretrained(folder)
    words.save_pretrained(folder)


def places(tmp_path, shared):
    """What a user has, by its place in the examples: a folder of a model or of checkpoints, a file."""
    shipped = ASSETS / "models"
    (tmp_path / "run").mkdir()
    for name in ("step100", "step400"):
        (tmp_path / "run" / name).symlink_to(shipped / f"tiny_a_{name}")
    (tmp_path / "text.txt").write_text("".join(f"Any text will do here, as {i} does.\n\n" for i in range(2000)))
    (tmp_path / "pairs.tsv").write_text("gold_label\tsentence1\tsentence2\n" + "neutral\tIt is.\tIt was.\n" * 99)
    rows = "".join(f"{'a b ' * number}c,{'d ' * number}e\n" for number in range(40))
    (tmp_path / "parallel.csv").write_text("en,de\n" + rows)
    for number in range(40):
        PIL.Image.new("RGB", (8, 8), (6 * number, 0, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "captions.csv").write_text("image,caption\n" + "".join(f"{i}.png,{'a ' * i}b\n" for i in range(40)))
    np.savez(tmp_path / "stored.npz", layer_0=np.eye(40), layer_1=np.eye(40)[::-1])
    with h5py.File(tmp_path / "words.hdf5", "w") as archive:
        archive["0"] = np.ones((3, 2, 5), dtype=np.float32)
        archive["sentence_to_index"] = np.array([json.dumps({"we met": "0"}).encode()])
    return {
        " options.path=CROSSCODER": "",  # one is trained in its place
        "path: DIR, train": f"path: {shared('encoder', encoder)}, train",
        "path=FILE data=ptb": f"path={tmp_path / 'words.hdf5'} data=ptb",
        "{kind: series, folder: DIR}": f"{{kind: series, folder: {tmp_path / 'run'}}}",
        "{kind: mnli, path: FILE}": f"{{kind: mnli, path: {tmp_path / 'pairs.tsv'}}}",
        "{kind: precomputed, path: FILE}": f"{{kind: precomputed, path: {tmp_path / 'stored.npz'}}}",
        "data=mnli data.path=FILE": f"data=mnli data.path={tmp_path / 'pairs.tsv'}",
        "data=captions data.path=FILE": f"data=captions data.path={tmp_path / 'captions.csv'}",
        "data.path=FILE data.first=en": f"data.path={tmp_path / 'parallel.csv'} data.first=en",
        "data.path=FILE": f"data.path={tmp_path / 'text.txt'}",
        "path: DIR": f"path: {shipped / 'tiny_a'}",
    }


def words_of(command, places):
    """The words on models of one's own: those that ship, in a folder of theirs."""
    for place, there in places.items():
        command = command.replace(place, there)
    return shlex.split(command)[1:]


FEW = ("extract.sequences=9",)
SHORTER = {  # what makes the command of a study short, None: nothing does
    "architecture": (),
    "attention": (*FEW, "extract.layers=[0,1]"),
    "barycentre": (*FEW, "options.depths=[0.5]"),
    "convergence": FEW,
    "crosscoder": (
        "extract.sequences=24", "extract.length=32", "options.recipe.steps=2", "options.recipe.width=16",
        "options.recipe.k=4",
    ),
    "dictionary_transfer": (
        "extract.sequences=12", "extract.length=32", "extract.layers=[1]", "options.recipe.steps=2",
        "options.recipe.width=16", "options.recipe.k=4",
    ),
    "effective_rank": FEW,
    "features": (*FEW, "options.recipe.steps=2", "options.recipe.width=16", "options.pairings=9"),
    "finetune": None,
    "grounding": None,
    "layers": ("extract.sequences=40", "options.without=2"),
    "likelihoods": ("extract.sequences=24",),
    "modular_training": None,
    "outputs": FEW,
    "parallel": ("extract.sequences=24",),
    "pretrain": ("options.recipe.steps=2",),
    "probes": ("extract.sequences=64", "extract.layers=[0]", "hardware.processes=1"),
    "similarity": FEW,
    "stitching": (
        "extract.sequences=16", "extract.layers=[0]", "options.recipe.steps=2", "options.recipe.warm_up=1",
        "options.evaluation=4",
    ),
    "training_view": FEW,
    "tuned": FEW,
    "universal_neurons": FEW,
    "universality": None,
    "vector_map": ("extract.sequences=60",),
    "views": ("extract.layers=[0,1]", "extract.rows=64", "options.batch=8"),
}  # fmt: skip
