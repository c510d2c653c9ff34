"""Tokenizers are compared by what they hold, not only on the text; models are compared on the ids of one of them."""

import json
import shutil

import pytest
import safetensors.torch
from transformers import AutoConfig, AutoModelForCausalLM

import repsim_cli
from repsim_cli.api.verify import save_reference
from repsim_cli.data.text import embedded_text
from repsim_cli.models.checkpoints import SHIPPED
from repsim_cli.models.tokenizers import load_tokenizer
from repsim_cli.studies.verify.tokens import (
    compare_tokenizers,
    find_differing_ids,
)

TEXTS = ["Some words of a text, and some more of them."]


@pytest.fixture
def changed(tmp_path):
    """changed(change, weight): a copy of tiny_a whose tokenizer.json, and one bias, are changed."""

    def make(change, weight=0.0):
        folder = tmp_path / "other"
        shutil.copytree(SHIPPED / "tiny_a", folder)
        file = folder / "tokenizer.json"
        settings = json.loads(file.read_text())
        change(settings)
        file.write_text(json.dumps(settings))
        if weight:
            weights = safetensors.torch.load_file(folder / "model.safetensors")
            weights[next(name for name in weights if name.endswith("layers.1.attention.dense.bias"))] += weight
            safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return folder

    return make


def exchange_unused(settings):
    """Exchanges the ids of two entries that no token of the shipped text has."""
    tokenizer = load_tokenizer(str(SHIPPED / "tiny_a"))
    used = {each for text in [*embedded_text().documents()][:40] for each in tokenizer(text)["input_ids"]}
    vocabulary = settings["model"]["vocab"]
    a, b = [token for token, number in vocabulary.items() if number not in used and token.isascii()][:2]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]


def exchange_merges(settings):
    merges = settings["model"]["merges"]
    merges[-1], merges[-2] = merges[-2], merges[-1]


def add_token(settings):
    about = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    settings["added_tokens"].append({"id": max(settings["model"]["vocab"].values()) + 1, "content": "<new>", **about})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (exchange_unused, "entries of the vocabulary differ ("),
        (exchange_merges, "2 of 255 merges differ ("),
        (add_token, "'<new>' is in the candidate alone"),
    ],
)
def test_a_difference_that_no_text_shows(repsim, changed, change, said):
    folder = changed(change)
    code, out, _ = repsim("verify", "tiny_a", folder)
    assert (code, out.splitlines()[0]) == (1, "DIFFERENT   first at token ids")
    assert said in out.splitlines()[1]
    assert "; token ids are equal on " in out.splitlines()[1]
    assert "embed, emb_dropout, rotary_emb, blocks 0 to 5, final_norm, head are right when given right inputs" in out


def test_models_of_other_tokenizers_are_compared(changed):
    def exchange(settings):
        vocabulary = settings["model"]["vocab"]
        vocabulary["e"], vocabulary["a"] = vocabulary["a"], vocabulary["e"]

    answer = repsim_cli.verify("tiny_a", str(changed(exchange, 1.0)), TEXTS)
    assert [each.where for each in answer.differences] == ["token ids", "block 1, attn_out (attention.dense)"]
    lines = answer.lines()
    assert "token 8 of 'Some words of a text'... is id " in lines[1]
    assert lines[2].startswith("  then    block 1, attn_out (attention.dense) (all before agree to rounding): ")
    assert any(line.startswith("  effect  on the same token ids, next token: KL ") for line in lines)


def test_the_text_of_an_id_is_its_entry_in_its_own_vocabulary():
    tokenizer = load_tokenizer(str(SHIPPED / "tiny_a"))
    ids = tokenizer("Some words")["input_ids"]
    other = find_differing_ids({"Some words": [ids[0] + 1, *ids[1:]]}, tokenizer, load_tokenizer("characters"))
    entries = load_tokenizer("characters").convert_ids_to_tokens(ids[0] + 1), tokenizer.convert_ids_to_tokens(ids[0])
    assert other.about == (
        f"the tokenizers differ: token 0 of 'Some words' is id {ids[0] + 1} ({entries[0]!r}) in the reference and id "
        f"{ids[0]} ({entries[1]!r}) in the candidate"
    )
    shorter = find_differing_ids({"Some words": ids[:-1]}, tokenizer)
    assert f"token {len(ids) - 1} of 'Some words' is its end in the reference and id {ids[-1]} (" in shorter.about


@pytest.mark.slow
def test_settings_that_change_ids_are_found_on_characters_and_others_noted(changed):
    def replace(settings):
        settings["normalizer"] = {"type": "Replace", "pattern": {"String": "\u0167"}, "content": "t"}

    folder = changed(replace)
    answer = repsim_cli.verify("tiny_a", str(folder))
    assert answer.verdict == "DIFFERENT"
    assert answer.differences[0].about.startswith("the tokenizers differ: token ")
    shutil.rmtree(folder)

    def change_nothing(settings):
        settings["normalizer"] = {"type": "Sequence", "normalizers": []}

    answer = repsim_cli.verify("tiny_a", str(changed(change_nothing)))
    assert answer.verdict == "ROUNDING"
    assert answer.lines()[0] == "ROUNDING   every bit is the same, in 11 parts on 5 kinds of input"
    (note,) = answer.notes
    assert note.startswith("the tokenizers are set up in another way (normalizer); token ids equal on ")


def test_what_changes_no_ids_is_no_difference(changed):
    def pad(settings):
        settings["truncation"] = {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
        settings["decoder"] = None
        model = settings["model"]
        model["vocab"] = dict(sorted(model["vocab"].items()))
        settings["model"] = dict(reversed(model.items()))

    answer = repsim_cli.verify("tiny_a", str(changed(pad)))
    assert (answer.verdict, answer.notes) == ("IDENTICAL", [])


def test_a_saved_reference_knows_its_tokenizer(changed, tmp_path):
    file = save_reference("tiny_a", tmp_path / "reference.safetensors", TEXTS)
    assert repsim_cli.verify(file, "tiny_a").verdict == "IDENTICAL"
    answer = repsim_cli.verify(file, str(changed(exchange_merges, 1.0)))
    assert answer.differences[0].about.startswith(
        "the tokenizers differ: the merges are not the same; token ids equal on "
    )
    assert answer.differences[1].unit == "block 1"


def test_a_tokenizer_that_says_only_its_vocabulary():
    """A slow tokenizer is such: of the vocabulary the entries that both have are compared, and a note says so."""

    class Slow:
        def __init__(self, own):
            self.get_vocab = own.get_vocab
            self.own = own

        def __call__(self, text, **settings):
            return self.own(text, **settings)

    tokenizer = load_tokenizer(str(SHIPPED / "tiny_a"))
    other, (note,) = compare_tokenizers(tokenizer, Slow(tokenizer), TEXTS)
    assert other is None
    assert note == "of the tokenizers, only the vocabularies are compared; token ids equal on 10 words of the text"
    other = dict(tokenizer.get_vocab())
    other["a"], other["e"] = other["e"], other["a"]
    slow = Slow(tokenizer)
    slow.get_vocab = lambda: {**other, "<fill>": 5000}
    said = compare_tokenizers(tokenizer, slow, TEXTS)[0].about
    assert said.startswith("the tokenizers differ: 2 of 512 entries of the vocabulary differ (")


def test_models_that_cannot_be_compared_beside_other_tokenizers(changed, tmp_path):
    folder = changed(exchange_merges)
    shallow = AutoConfig.from_pretrained(folder, num_hidden_layers=4)
    candidate = AutoModelForCausalLM.from_config(shallow).eval(), load_tokenizer(str(folder))
    answer = repsim_cli.verify("tiny_a", candidate)
    assert (answer.verdict, len(answer.differences)) == ("DIFFERENT", 1)
    (note,) = answer.notes
    assert note.startswith("weights and parts are not compared on the ids of the reference (models: not comparable")
