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
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the command does

if os.environ.get("REPSIM_TYPES"):  # `make types`: checks shapes and types of every call
    from helpers.typed import check_calls

    check_calls()

import gc
import hashlib
import shutil
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from unittest import mock

import filelock
import hypothesis
import pytest
import torch
from helpers.composing import groups_composed_once
from helpers.tiny import TINY, perturb

from repsim_cli.base import closure, environment, registry
from repsim_cli.config.compose import register
from repsim_cli.data import network, packing
from repsim_cli.runs import results

register()  # for the tests that compose without the command line

hypothesis.settings.register_profile("repsim", deadline=None, max_examples=5, derandomize=True)
hypothesis.settings.register_profile("nightly", deadline=None, max_examples=30)
hypothesis.settings.load_profile("repsim")


@pytest.fixture(autouse=True)
def seeded():
    """New modules of a test have the same weights in each of its runs."""
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` notes a traceback for each kind of device there is not


@pytest.fixture(autouse=True)
def nothing_added():
    """What a test adds to the measures is gone after it."""
    yield
    registry.measures.forget()


@pytest.fixture(autouse=True)
def no_network(monkeypatch, request):
    """A test that reaches for the network fails, but for those of a cluster at this machine's address."""
    if request.node.get_closest_marker("ray"):
        return
    connect = socket.socket.connect

    def guarded(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6):
            raise AssertionError(f"a test tried to connect to {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    network.say_why_unreachable.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def tokenized_once():
    """The text that ships is tokenized once by each tokenizer, and not in each of a worker's runs."""
    known: dict[tuple[str, str], tuple[list, Iterator]] = {}
    original = packing._tokenize

    def tokenized(text, tokenizer):
        words = getattr(tokenizer, "backend_tokenizer", None)
        if words is None or not text.source.startswith("Jargon File"):
            yield from original(text, tokenizer)
            return
        key, place = (text.source, words.to_str()), 0
        made, rest = known.setdefault(key, ([], original(text, tokenizer)))
        while True:
            if place == len(made):
                try:
                    made.append(next(rest))
                except StopIteration:
                    return
                except BaseException:  # of a test that breaks off here
                    known.pop(key, None)
                    raise
            yield made[place]
            place += 1

    with mock.patch.object(packing, "_tokenize", tokenized):
        yield


@pytest.fixture(autouse=True, scope="session")
def git_asked_once():
    """The commit is read once, and not by six processes in each of a worker's runs."""
    once = cache(environment.read_git_state)
    with mock.patch.object(environment, "read_git_state", once), mock.patch.object(results, "read_git_state", once):
        yield


@pytest.fixture(autouse=True, scope="session")
def groups_composed():
    """The groups that commands select are composed once, and not in each of a worker's runs."""
    with groups_composed_once():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]):
    """The files beside the folders first, whose tests are the longest: workers end together."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


def pytest_collection_finish():
    """What is imported stays to the end: collections of garbage, which runs ask for, need not look at it. Python starts
    others of its own, after 700 new objects: here later, since they take one second in twenty."""
    gc.set_threshold(20_000, 20, 20)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def frozen():
    """Collections of garbage need not look at what a module's tests have imported and keep either."""
    yield
    pytest_collection_finish()


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id) -> Callable[[str, Callable[[Path], object]], Path]:
    """shared(name, make): a folder that one of the workers fills by make(folder), and that all of them only read."""
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "shared"
    root.mkdir(exist_ok=True)

    def made(name: str, make: Callable[[Path], object]) -> Path:
        folder = root / name
        with filelock.FileLock(f"{folder}.lock"):
            if not folder.exists():
                unfinished = tmp_path_factory.mktemp(name)
                make(unfinished)
                unfinished.rename(folder)
        return folder

    return made


@pytest.fixture(scope="session")
def tokenizer_folder(shared) -> Path:
    """A BPE tokenizer of 400 tokens, in transformers format."""
    from repsim_cli.base.registry import data
    from repsim_cli.training.pretrain import train_byte_pair_tokenizer

    def make(folder: Path) -> None:
        documents = list(data.get("embedded_text").function(split="validation").documents())[:60]
        train_byte_pair_tokenizer(documents, 400, 64).save_pretrained(folder)

    return shared("tokenizer", make)


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
def tiny_folder(shared, tokenizer_folder) -> Callable[..., Path]:
    """tiny_folder(kind, seed): a folder with a random tiny model whose weights are far from degenerate."""
    from repsim_cli.models.configs import inline_config
    from repsim_cli.models.library import import_transformers

    def make(kind: str, seed: int, folder: Path) -> None:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            model = import_transformers().AutoModel.from_config(inline_config(TINY[kind]))
            perturb(model)
            model.save_pretrained(folder)
        shutil.copytree(tokenizer_folder, folder, dirs_exist_ok=True)

    return lambda kind, seed=0: shared(f"{kind}-{seed}", partial(make, kind, seed))


@pytest.fixture
def repsim(monkeypatch, tmp_path, capsys, request):
    """repsim(words...) runs the real command line in this process -> (exit code, stdout, stderr).

    Runs go to tmp_path / "outputs", stored activations to tmp_path / "cache". What runs, compares or
    analyses draws figures and report only in tests marked `drawn`: they take half the time of a run on tiny models.
    Runs without `figures` draw PNG alone.
    """
    from repsim_cli import cli

    monkeypatch.setenv("REPSIM_OUTPUTS", str(tmp_path / "outputs"))
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("REPSIM_QUIET", raising=False)
    monkeypatch.setattr("sys.argv", ["repsim"])

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.delenv("REPSIM_QUIET", raising=False)
        given, drawn = [str(word) for word in words], request.node.get_closest_marker("drawn")
        if drawn and given[0] == "run" and not any(word.startswith("figures") for word in given):
            given.append("figures.format=[png]")
        drawing = nullcontext() if drawn or given[0] not in ("run", "compare", "analyse", "map") else undrawn()
        with drawing, pytest.raises(SystemExit) as stopped:
            cli.main(given)
        out, err = capsys.readouterr()
        return stopped.value.code or 0, out, err

    return run


@contextmanager
def undrawn() -> Iterator[None]:
    """Runs that leave no figures and no report."""
    with mock.patch("repsim_cli.findings.analyse.draw", return_value=[]), mock.patch("repsim_cli.report.save"):
        yield


@pytest.fixture(scope="session")
def finished(shared) -> Callable[..., Path]:
    """finished(words...): a complete run of these words, made once for all workers; a test reads it, or changes a
    copy."""
    from repsim_cli import cli

    def make(words: tuple[str, ...], folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch, undrawn(), pytest.raises(SystemExit) as stopped:
            patch.setenv("REPSIM_OUTPUTS", str(folder))
            patch.setenv("REPSIM_CACHE", str(folder / "cache"))
            patch.setattr("sys.argv", ["repsim"])
            cli.main(["run", "-q", *words])
        assert not stopped.value.code

    def made(*words: str) -> Path:
        name = hashlib.sha256(" ".join(words).encode()).hexdigest()
        (manifest,) = shared(f"run-{name[:16]}", partial(make, words)).rglob("manifest.json")
        return manifest.parent

    return made


@pytest.fixture
def edited(monkeypatch, tmp_path):
    """edited(module, old, new): from now on the file of the module has this other text for the keys of the cache, or a
    line more."""
    places, real, known = {}, closure._place, closure._parse_module

    def edit(module: str, old: str = "", new: str = "") -> None:
        closure.collect_code.cache_clear()
        file, folders = real(module)
        text = Path(file).read_text()
        assert old in text
        changed = tmp_path / f"{module}.py"
        changed.write_text(text.replace(old, new) if old else text + "MORE = 1\n")
        places[module] = (str(changed), folders)
        monkeypatch.setattr(closure, "_place", lambda name: places.get(name) or real(name))
        # what is not edited is read once by all tests
        monkeypatch.setattr(
            closure, "_parse_module", lambda name: (known.__wrapped__ if name in places else known)(name)
        )

    yield edit
    closure.collect_code.cache_clear()


@pytest.fixture
def newest(tmp_path):
    """newest(): the run folder that was made last."""
    from repsim_cli.runs import folders

    return lambda: folders.list_run_folders(tmp_path / "outputs")[-1]


@pytest.fixture
def trained_once(shared, monkeypatch, repsim):
    """A model that one test has trained is in the cache of the next, whichever worker runs it."""
    monkeypatch.setenv("REPSIM_CACHE", str(shared("trained", lambda folder: None)))


@pytest.fixture(scope="session")
def chromium():
    from helpers.browser import CHROMIUM, browser

    if not CHROMIUM:
        pytest.skip("needs Chromium: apt-get install chromium")
    with browser() as started:
        yield started


@pytest.fixture
def opened(chromium):
    """opened(file, ...): the browser with that page; in the end, nothing was asked for and nothing complained."""
    files = []

    def open_page(file, **how):
        files.append(file.resolve().as_uri())
        chromium.open(file, **how)
        return chromium

    yield open_page
    assert chromium.complaints() == []
    assert [url for url in chromium.requests() if not url.startswith("data:")] == files[-1:]
