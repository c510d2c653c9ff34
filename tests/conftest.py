"""Everything here runs offline, on models and data that the tests make or the package ships."""

import os
import signal

signal.signal(
    signal.SIGHUP, signal.SIG_DFL
)  # nohup leaves it ignored, and processes that tests start would inherit that
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# the matrices of the tests are too small to share; several threads only wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")

from jaxtyping import install_import_hook

install_import_hook("repsim_cli", "beartype.beartype")

import socket
import warnings
from pathlib import Path

import hypothesis
import pytest
import torch

from repsim_cli.data import network

hypothesis.settings.register_profile("repsim", deadline=None, max_examples=15, derandomize=True)
hypothesis.settings.load_profile("repsim")


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """A test that reaches for the network fails."""
    connect = socket.socket.connect

    def guarded(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            raise AssertionError(f"a test tried to connect to {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    network.unreachable.cache_clear()


TINY = {
    "gpt_neox": {
        "model_type": "gpt_neox",
        "vocab_size": 512,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    },
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 512,
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 64,
    },
    "llama": {
        "model_type": "llama",
        "vocab_size": 512,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    },
    "bert": {
        "model_type": "bert",
        "vocab_size": 512,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    },
    "roberta": {
        "model_type": "roberta",
        "vocab_size": 512,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 65,
        "pad_token_id": 0,
    },
    "distilbert": {
        "model_type": "distilbert",
        "vocab_size": 512,
        "dim": 32,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 64,
        "max_position_embeddings": 64,
    },
    "albert": {
        "model_type": "albert",
        "vocab_size": 512,
        "embedding_size": 16,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    },
    "openai-gpt": {
        "model_type": "openai-gpt",
        "vocab_size": 512,
        "n_embd": 32,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 64,
    },
    "xlnet": {
        "model_type": "xlnet",
        "vocab_size": 512,
        "d_model": 32,
        "n_layer": 3,
        "n_head": 4,
        "d_inner": 64,
    },
}


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory) -> Path:
    """A BPE tokenizer of 400 tokens, in transformers format."""
    from repsim_cli.registry import data
    from repsim_cli.training.pretrain import byte_pair_tokenizer

    documents = list(data.get("embedded_text").function(split="validation").documents())[:60]
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_pair_tokenizer(documents, 400, 64).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def bert_tokenizer():
    """A WordPiece tokenizer with [CLS] and [SEP], and token types of pairs."""
    import transformers
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    texts = ["rain falls .", 'it is " wet " outside .', "a dog runs", "a cat runs", "we met", "we did meet"] * 3
    words.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=200, special_tokens=names, show_progress=False)
    )
    words.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(name, words.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return transformers.BertTokenizer(tokenizer_object=words)


@pytest.fixture
def gpt_tokenizer(tokenizer_folder):
    """A byte-level tokenizer without a template."""
    import transformers

    return transformers.AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory, tokenizer_folder):
    """tiny_folder(kind, seed): a folder with a random tiny model whose weights are far from degenerate."""
    from repsim_cli.models.transformers import inline_config, library

    made: dict[tuple[str, int], Path] = {}

    def make(kind: str, seed: int = 0) -> Path:
        if (kind, seed) not in made:
            folder = tmp_path_factory.mktemp(f"{kind}-{seed}")
            with torch.random.fork_rng(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.manual_seed(seed)
                model = library().AutoModel.from_config(inline_config(TINY[kind]))
                perturb(model)
                model.save_pretrained(folder)
            for file in tokenizer_folder.iterdir():
                (folder / file.name).write_bytes(file.read_bytes())
            made[kind, seed] = folder
        return made[kind, seed]

    return make


def perturb(model: torch.nn.Module) -> None:
    """Fresh weights are too degenerate to catch a wrong hook: norms and biases are trivial."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0).add_(0.1 * torch.randn_like(parameter))


@pytest.fixture
def repsim(monkeypatch, tmp_path, capsys):
    """repsim(words...) runs the real command line in this process -> (exit code, stdout, stderr).

    Runs go to tmp_path / "outputs", stored activations to tmp_path / "cache".
    """
    from repsim_cli import cli

    monkeypatch.setenv("REPSIM_OUTPUTS", str(tmp_path / "outputs"))
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REPSIM_QUIET", raising=False)
    monkeypatch.setattr("sys.argv", ["repsim"])

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.delenv("REPSIM_QUIET", raising=False)
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return stopped.value.code or 0, out, err

    return run


@pytest.fixture
def newest(tmp_path):
    """newest(): the run folder that was made last."""
    from repsim_cli import results

    return lambda: results.runs(tmp_path / "outputs")[-1]


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def trained_once(cache_folder, monkeypatch, repsim):
    """What is trained in one test is there in the next."""
    monkeypatch.setenv("REPSIM_CACHE", str(cache_folder))
