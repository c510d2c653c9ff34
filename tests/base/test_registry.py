"""Names are found in files without importing these, and what a run does not use is not loaded."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from repsim_cli.base import registry

REGISTRIES = [part for part in vars(registry).values() if isinstance(part, registry.Registry)]
# what a comparison of CKA loads of the measures
MEASURES = [
    "base",
    "cards",
    "centring",
    "distance_ranks",
    "documents",
    "features",
    "hsic",
    "inner",
    "kernels",
    "moments",
    "near_rows",
    "nearest",
    "of_attention",
    "platonic",
    "products",
    "rank",
    "rdm",
    "room",
]

# packages that a run of models whose rows and matrices are in the cache may import, and those that these import
MAY = {
    "numpy", "torch", "scipy", "matplotlib", "hydra", "omegaconf", "pydantic", "jaxtyping", "yaml", "regex",
    "safetensors", "tokenizers", "xxhash", "filelock", "platformdirs", "psutil", "threadpoolctl", "zstandard",
    "hydra_plugins", "cloudpickle", "dill", "joblib", "antlr4",
    "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection", "tqdm",
    "torchgen", "packaging", "attr", "charset_normalizer",
    "mpl_toolkits", "PIL", "cycler", "dateutil", "fontTools", "kiwisolver", "pyparsing",
    "Cython", "cython", "cython_runtime",
}  # fmt: skip


@pytest.mark.parametrize("known", REGISTRIES, ids=lambda known: known.noun)
def test_files_say_the_names_that_they_register(known):
    for pattern in known.patterns:
        for module, _ in registry.match_modules(pattern):
            importlib.import_module(module)
    registered = {name: entry.function.__module__ for name, entry in known._entries.items()}
    assert {(name, module) for name, module in known._own.items() if module} <= registered.items()
    assert {name for name, module in registered.items() if module.startswith("repsim_cli.")} <= known._own.keys()


def test_a_run_loads_what_it_uses():
    script = (
        "import json, sys\nfrom repsim_cli.cli import main\n"
        "try: main(['run', 'experiment=tiny/pythia_cka', 'dry_run=true'])\nexcept SystemExit as end: assert not end.code\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    loaded = json.loads(ended.stdout.splitlines()[-1])
    assert not {"scipy.stats", "sklearn", "matplotlib", "transformers.trainer"} & {*loaded}
    own = [name.removeprefix("repsim_cli.") for name in loaded if name.startswith("repsim_cli.")]
    assert {name for name in own if name.startswith("measures.")} <= {f"measures.{name}" for name in MEASURES}
    parts = [name for name in own if name.startswith("studies.") and name.endswith((".study", ".train", ".model"))]
    assert parts == ["studies.similarity.study"]
    assert not [name for name in own if name.startswith("training.")]


@pytest.mark.slow
def test_a_run_that_is_in_the_cache_imports_no_models(repsim, tmp_path):
    """Transformers is not imported, nor what it brings; `cache=false` reads and writes no record of configs and
    tokenizers."""
    script = (
        "import json, sys\nfrom repsim_cli.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code\n"
        "print(json.dumps(sorted(sys.modules)))\n"
        "from repsim_cli.api.entries import compose_configuration\n"
        "models = {name: {'kind': 'shipped', 'name': name} for name in ('tiny_a', 'tiny_b')}\n"
        "for words in ([], ['cache=false']):  # `compare` opens models before there is a run\n"
        "    config = compose_configuration(models, None, ['cka'], 'auto', 'none', words)\n"
        "    assert config.extract.unit == 'token'\n    print('transformers' in sys.modules)"
    )
    words = [
        "run", "-q", "experiment=tiny/pythia_cka", "model=[tiny_a]", "extract.sequences=8", "extract.rows=256",
        "extract.batch_rows=256", "extract.layers=[0,-1]",
        "+model.twin={kind: random, shipped: tiny_a}",
        "+model.other={kind: random, config: {model_type: gpt2, vocab_size: 512, n_embd: 32, n_head: 2, n_layer: 2}, "
        "tokenizer: tiny_a}",
    ]  # fmt: skip
    folders: set[Path] = set()

    def read_arrays():
        (folder,) = {file.parent for file in (tmp_path / "outputs").glob("*/*/results.json")} - folders
        folders.add(folder)
        return {file.name: file.read_bytes() for file in folder.glob("arrays/*")}

    made = []
    for known in ("cache=false", "cache=true"):
        code, _, err = repsim(*words, known)
        assert code == 0, err
        made.append(read_arrays())
        records = {"configs", "tokenizers"} & {place.name for place in (tmp_path / "cache").glob("*")}
        assert len(records) == (2 if known == "cache=true" else 0)
    command = [sys.executable, "-c", script, *words, "figures.format=[png]"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    modules, *said = ended.stdout.splitlines()
    cached = {*json.loads(modules)}
    assert made == [read_arrays()] * 2
    assert made[0]
    assert not {"scipy.stats", "torch._dynamo", "torch._inductor", "torch.distributed.tensor"} & cached
    own = {"repsim_cli", "sitecustomize", "usercustomize"}  # the last two are of the machine: Debian's Python has one
    found = {name.partition(".")[0] for name in cached} - sys.stdlib_module_names - own
    assert {name for name in found if not name.startswith("_")} <= MAY
    assert said == ["False", "True"]  # what is not in the cache needs it


@pytest.mark.parametrize("word", ["measur=cka", "measure=ckaa", "study=similarty", "model=[tiny_a,tiny_z]", "seeed=1"])
def test_misspelt_words_load_nothing_that_computes(word):
    script = (
        "import sys\nfrom repsim_cli.cli import main\n"
        f"try: main(['run', {word!r}])\nexcept SystemExit as end: assert end.code == 2\n"
        "assert not {'torch', 'hydra', 'omegaconf', 'numpy', 'pydantic', 'transformers'} & {*sys.modules}, sys.modules"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "did you mean" in ended.stderr


def test_a_measure_is_described_without_models():
    script = (
        "import sys\nfrom repsim_cli.cli import main\n"
        "try: main(['describe', 'cka'])\nexcept SystemExit as end: assert not end.code\n"
        "assert not {'transformers', 'sklearn', 'scipy.stats', 'scipy.optimize', 'matplotlib'} & {*sys.modules}"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
