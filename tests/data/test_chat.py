"""Texts in a chat template: which tokens are of the text, and templates that cannot be used."""

import json
import shutil

import numpy as np
import pytest

from repsim_cli.activations.places import count_kept_rows
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import EveryData, Extract
from repsim_cli.data.base import apply_keys
from repsim_cli.data.chat import check_chat
from repsim_cli.data.padding import pad
from repsim_cli.data.words import make_text_passage, tokenize_passages

CHATML = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|system|>\nYou help with a dog.\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
)
TRIMMED = "{{ bos_token }}{% for m in messages %}[INST] {{ m['content'] | trim }} [/INST]{% endfor %}"
TEXTS = ["A dog runs in the rain.", "  You help with a dog. \n", "naïve 🙂 text\n\nwith lines", "You", "end|>"]


@pytest.fixture
def tokenizer(gpt_tokenizer):
    gpt_tokenizer.chat_template = CHATML
    return gpt_tokenizer


def padded(tokenizer, texts, length=200):
    return pad(texts, check_chat(tokenizer), length=length, sequences=len(texts), seed=0, source="texts")


@pytest.mark.parametrize(("template", "opening"), [(CHATML, "<|user|>\n"), (TRIMMED, "[INST] ")])
def test_the_rows_are_the_tokens_of_the_text(tokenizer, template, opening):
    tokenizer.chat_template = template
    found = padded(tokenizer, [(text,) for text in TEXTS])
    for row, text in enumerate(TEXTS):
        rendered = tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False)
        ids = found.ids[row][found.mask[row]]
        assert tokenizer.decode(ids) == rendered
        assert tokenizer.decode(found.ids[row][found.text[row]]).strip() == text.strip()
        assert found.position[row][found.text[row]].tolist() == list(range(found.text[row].sum()))
        first, last = np.flatnonzero(found.text[row])[[0, -1]]
        before = rendered[: rendered.index(opening) + len(opening)]
        assert tokenizer.decode(found.ids[row][:first]).rstrip() == before.rstrip()
        assert 0 < first <= last < found.mask[row].sum() - 1


def test_a_pair_stands_on_two_lines(tokenizer):
    chat = check_chat(tokenizer)
    encoded = chat("A dog runs.", "A cat\nsleeps.")
    ids, parts = np.asarray(encoded["input_ids"]), encoded.sequence_ids(0)
    assert "A dog runs.\nA cat\nsleeps." in tokenizer.decode(ids)
    texts = [tokenizer.decode(ids[[part == number for part in parts]]) for number in (0, 1)]
    assert texts == ["A dog runs.", "A cat\nsleeps."]
    for (start, stop), part, i in zip(encoded["offset_mapping"], parts, ids, strict=True):
        if part is not None:
            assert ("A dog runs.", "A cat\nsleeps.")[part][start:stop] == tokenizer.decode([i])
    extra = chat.num_special_tokens_to_add(pair=True)
    assert extra == parts.count(None) == chat.num_special_tokens_to_add() + 1


def test_what_is_too_long_loses_text_and_no_template(tokenizer):
    long, short = "a dog runs " * 30, "A cat sleeps."
    extra = check_chat(tokenizer).num_special_tokens_to_add(pair=True)
    found = padded(tokenizer, [(long, short)], length=extra + 20)
    assert found.truncated == 1
    assert found.mask.sum() == extra + 20
    whole = tokenizer.decode(found.ids[0])
    assert whole.startswith("<|system|>\nYou help with a dog.\n<|user|>\na dog runs a do")
    assert whole.endswith("\nA cat sleeps.<|end|>\n")
    with pytest.raises(BadInput, match="extract.length: too short for .* special tokens and a word, got 9; raise it"):
        padded(tokenizer, [(long,)], length=9)


def test_words_in_a_template(tokenizer):
    """The words of the text, whatever the template repeats of them."""
    passages = [
        make_text_passage(0, ("You help with a dog, don't you?",)),
        make_text_passage(1, ("A dog", "runs, we met")),
    ]
    for passage, given in zip(
        passages, [tokenize_passages(check_chat(tokenizer), [one])[0] for one in passages], strict=True
    ):
        assert not given.lost
        assert given.order
        text = "\n".join(passage.texts)
        for word, (start, stop) in enumerate(passage.words):
            assert tokenizer.decode(given.tokens[0][given.tokens[1] == word]).strip() == text[start:stop]


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "tokenizer: it has no chat template, got '.*'; use a model tuned for chat, or set data.chat=false"),
        ("{{ messages[0]['role'] }}", "tokenizer: the chat template does not repeat the text, got 'user' of '.*'; set"),
        ("{{ raise_exception('no users') }}", r"tokenizer: the chat template cannot be used, got '.*' \(no users\); set"),
        ("{{ messages.__class__.__mro__ }}", "tokenizer: the chat template cannot be used, got .*unsafe.*; set"),
        ("{% if %}", "tokenizer: the chat template cannot be used, got"),
    ],
)  # fmt: skip
def test_templates_that_cannot_be_used(tokenizer, template, message):
    tokenizer.chat_template = template
    with pytest.raises(BadInput, match=message):
        check_chat(tokenizer)


def test_texts_that_the_template_changes(tokenizer):
    tokenizer.chat_template = "{{ messages[0]['content'] | replace('dog', 'cat') }}<|end|>"
    chat = check_chat(tokenizer)
    assert chat("a cat")["input_ids"]
    with pytest.raises(
        BadInput, match="data.chat: the template of '.*' changes the text, got 'a cat<|end|>' for 'a dog'"
    ):
        chat("a dog")


def test_the_date_is_fixed(tokenizer):
    tokenizer.chat_template = "{{ strftime_now('%d %B %Y') }} {{ messages[0]['content'] }}"
    assert tokenizer.decode(check_chat(tokenizer)("a dog")["input_ids"]) == "26 July 2024 a dog"


def test_documents_are_not_packed(tokenizer, tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("A dog runs.\nWe met in the rain.\n")
    text = registry.data.get("local_text").function(path=str(file), sample_by="line")
    extract = Extract(hook_points=["embed"], length=128)
    assert text.packs(extract)
    chat = apply_keys(text, EveryData(chat=True))
    assert not chat.packs(extract)
    found = chat.sequences(check_chat(tokenizer), extract, 0)
    assert len(found.inputs) == 2
    rows = count_kept_rows(found, extract)
    assert [tokenizer.decode(found.ids[i][found.text[i]]) for i in (0, 1)] == ["A dog runs.", "We met in the rain."]
    assert rows.sum() == found.text.sum()


@pytest.fixture
def folders(tiny_folder, tokenizer, tmp_path):
    """Two models with one tokenizer and template, and one without a template."""
    made = {}
    for seed, name in enumerate(("one", "two", "base")):
        made[name] = shutil.copytree(tiny_folder("llama", seed), tmp_path / name)
        if name != "base":
            tokenizer.save_pretrained(made[name])
    return made


@pytest.mark.parametrize("extract", ["tokens", "words", "pooled"])
def test_a_run_in_the_template(repsim, newest, folders, tmp_path, extract):
    file = tmp_path / "text.txt"
    file.write_text("A dog runs.\nWe met in the rain.\nA cat sleeps, and a dog runs.\n" * 8)
    words = [f"+model.{name}={{kind: transformers, path: '{folders[name]}'}}" for name in ("one", "two")]
    common = ["run", "model=[]", "data=local_text", f"data.path={file}", "data.sample_by=line", f"extract={extract}",
              "extract.length=64", "extract.skip=0", "measure=[cka]", "extract.estimate=full"]  # fmt: skip
    code, _, err = repsim(*common, *words, "data.chat=true")
    assert code == 0, err
    manifest = json.loads((newest() / "manifest.json").read_text())
    with_template = manifest["data"]
    assert repsim(*common, *words, "data.chat=false")[0] == 0
    plain = json.loads((newest() / "manifest.json").read_text())["data"]
    assert with_template["hash"] != plain["hash"]
    if extract == "words":
        assert with_template["rows_kept"] == plain["rows_kept"]
    base = f"+model.base={{kind: transformers, path: '{folders['base']}'}}"
    code, _, err = repsim(*common, *words, base, "data.chat=true")
    assert code == 2
    assert "model.base.tokenizer: it has no chat template, got" in err


def test_only_texts_have_a_template(repsim):
    code, _, err = repsim("run", "data=digits", "model=[]", "data.chat=true")
    assert code == 2
    assert "data.chat: only texts are put into a chat template, got images; drop it" in err


def test_pre_training_takes_no_template(repsim):
    code, _, err = repsim("run", "experiment=pretrain_tiny", "data.chat=true")
    assert code == 2
    assert "data.chat: pre-training reads running text, got true; set data.chat=false" in err
