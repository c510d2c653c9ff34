"""Tokenizers from the cache: the same tokens as transformers makes, and nothing once their files have changed."""

import json
import shutil
from pathlib import Path

import pytest

from repsim_cli.base import environment
from repsim_cli.base.planning import use_known
from repsim_cli.data.chat import Encoded
from repsim_cli.models.known_tokenizers import KnownTokenizer, know_tokenizer
from repsim_cli.models.tokenizers import TOKENIZERS, load_tokenizer
from repsim_cli.runs.cache import Entry, find_cache_folder

TEXTS = ["Some words, of a sentence.", "", " naïve\n\n\t日本語 😀  [SEP] </s> <unk>", "x" * 300]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["byte pairs", "bert", "word_pieces", "unigrams", "characters"])
def folder(request, tmp_path, tokenizer_folder, bert_tokenizer):
    place = tmp_path / "tokenizer"
    if request.param == "bert":
        bert_tokenizer.save_pretrained(place)
    else:
        shutil.copytree(tokenizer_folder if request.param == "byte pairs" else TOKENIZERS / request.param, place)
    return place


def load(folder, anew, change=lambda loaded: loaded, cached=True):
    """The tokenizer of a folder in the checks of a run. anew: gets an item where transformers loads it."""

    def find_out():
        anew.append(1)
        return change(load_tokenizer(str(folder)))

    with use_known(cached, write=True):
        return know_tokenizer(folder, find_out)


def both(folder):
    """The tokenizer as transformers loads it, and as the cache then has it, without another load."""
    anew = []
    loaded, known = load(folder, anew), load(folder, anew)
    assert isinstance(known, KnownTokenizer)
    assert len(anew) == 1
    assert not isinstance(loaded, KnownTokenizer)
    return loaded, known, anew


@pytest.mark.parametrize(
    "settings",
    [
        {"add_special_tokens": False},
        {"return_special_tokens_mask": True, "truncation": False},
        {"return_special_tokens_mask": True, "return_offsets_mapping": True},
    ],
)
def test_texts_have_the_same_tokens(folder, settings):
    loaded, known, anew = both(folder)
    pairs = (TEXTS, TEXTS[::-1])
    for given in [*((text,) for text in TEXTS), (TEXTS,), pairs]:
        made, expected = known(*given, **settings, verbose=False), loaded(*given, **settings, verbose=False)
        assert dict(made) == dict(expected)
        assert isinstance(made, Encoded)
        for i in range(len(given[0]) if isinstance(given[0], list) else 1):
            assert made.sequence_ids(i) == expected.sequence_ids(i)
    assert len(anew) == 1


def test_it_says_the_same_of_itself(folder):
    loaded, known, anew = both(folder)
    assert known.backend_tokenizer.to_str() == loaded.backend_tokenizer.to_str()
    for name in ("pad_token_id", "eos_token_id", "is_fast", "all_special_tokens", "model_input_names"):
        assert getattr(known, name) == getattr(loaded, name)
    assert (known.get_vocab(), len(known)) == (loaded.get_vocab(), len(loaded))
    assert [known.num_special_tokens_to_add(pair) for pair in (False, True)] == [
        loaded.num_special_tokens_to_add(pair) for pair in (False, True)
    ]
    for token, added in loaded.added_tokens_decoder.items():
        assert (known.added_tokens_decoder[token].special, str(known.added_tokens_decoder[token])) == (
            added.special,
            str(added),
        )
    tokens = loaded(TEXTS[0])["input_ids"]
    for some in (tokens, tokens[:1], []):
        assert known.decode(some, clean_up_tokenization_spaces=False) == loaded.decode(
            some, clean_up_tokenization_spaces=False
        )
    assert len(anew) == 1


def test_what_is_not_known_is_asked_of_transformers(folder):
    loaded, known, anew = both(folder)
    cut = {"truncation": True, "max_length": 3, "verbose": False}
    assert dict(known(TEXTS, **cut)) == dict(loaded(TEXTS, **cut))
    assert known.decode(loaded(TEXTS[0])["input_ids"]) == loaded.decode(loaded(TEXTS[0])["input_ids"])
    assert known.padding_side == loaded.padding_side
    assert not hasattr(known, "no_such_thing")
    assert len(anew) == 2


def test_another_file_or_version_is_loaded_anew(folder, monkeypatch):
    _, known, anew = both(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    name = known.all_special_tokens[0]
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "sep_token": name}))
    assert load(folder, anew).sep_token_id == known.get_vocab()[name]
    assert len(anew) == 2
    monkeypatch.setattr(environment, "read_version", lambda name: "another")
    load(folder, anew)
    assert len(anew) == 3
    (folder / "model.safetensors").write_text("weights are no part of it")
    load(folder, anew)
    assert len(anew) == 3
    load(folder, anew, cached=False)
    assert len(anew) == 4


@pytest.mark.parametrize("harm", ["cut", "no file", "other words"])
def test_a_broken_record_is_made_again(tmp_path, harm, caplog):
    folder, anew = shutil.copytree(TOKENIZERS / "characters", tmp_path / "tokenizer"), []
    load(folder, anew)
    (file,) = (find_cache_folder() / "tokenizers").glob("*/tokenizer.json-*")
    if harm == "no file":
        file.unlink()
    else:
        file.write_text(file.read_text()[:99] if harm == "cut" else "{}")
    assert load(folder, anew)(TEXTS[0])["input_ids"] == load(folder, anew)(TEXTS[0], verbose=False)["input_ids"]
    assert len(anew) == 2
    assert "is damaged" in caplog.text


@pytest.mark.parametrize("said", [None, [], {"pad_token_id": 0}])
def test_a_record_that_says_too_little_is_made_again(tmp_path, said):
    folder, anew = shutil.copytree(TOKENIZERS / "characters", tmp_path / "tokenizer"), []
    load(folder, anew)
    (record,) = (find_cache_folder() / "tokenizers").glob("*/entry-*")
    entry = Entry("tokenizers", record.parent.name)
    entry.load()
    entry.finish(said=said)
    assert not isinstance(load(folder, anew), KnownTokenizer)
    assert isinstance(load(folder, anew), KnownTokenizer)
    assert len(anew) == 2


@pytest.mark.parametrize(
    "kind",
    [
        {"__module__": "transformers.other", "_decode": lambda self, ids, **settings: "other"},
        {"__module__": "a_program"},
    ],
)
def test_a_tokenizer_that_is_more_than_its_backend_is_not_kept(tmp_path, kind):
    """Its class does in another way what the backend does, or is not of the library, so that it may change."""
    folder, anew = shutil.copytree(TOKENIZERS / "characters", tmp_path / "tokenizer"), []

    def change(loaded):
        loaded.__class__ = type("Other", (type(loaded),), kind)
        return loaded

    for _ in range(2):
        assert not isinstance(load(folder, anew, change), KnownTokenizer)
    assert len(anew) == 2
    assert not (find_cache_folder() / "tokenizers").exists()


def test_a_folder_without_a_fast_tokenizer_is_left_to_transformers(tmp_path):
    anew: list[Path] = []
    for _ in range(2):
        with use_known(True, write=True):
            know_tokenizer(tmp_path, lambda: anew.append(tmp_path))
    assert len(anew) == 2


@pytest.mark.parametrize("why", ["it cannot be read", "it is large"])
def test_a_file_that_only_the_record_would_read_does_no_harm(tmp_path, monkeypatch, why):
    """One of another user, or of gigabytes, beside a tokenizer that transformers loads without it."""
    folder, anew = shutil.copytree(TOKENIZERS / "characters", tmp_path / "tokenizer"), []
    other, read_bytes = folder / "notes.txt", Path.read_bytes
    with other.open("wb") as file:
        file.truncate(10**8 if why == "it is large" else 1)

    def refuse(file):
        if file == other:
            raise PermissionError(file)
        return read_bytes(file)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    for _ in range(2):
        assert load(folder, anew)(TEXTS[0])["input_ids"]
    assert len(anew) == 2
