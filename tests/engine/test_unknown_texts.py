"""Texts that a tokenizer does not know, of which most tokens are one."""

from types import SimpleNamespace

import numpy as np
import pytest

from repsim_cli.data.base import Sequences
from repsim_cli.engine.extraction import list_unknown_texts

TOKENS = np.array([[1, 2, 3, 0, 0], [0, 0, 5, 9, 9]])


def texts(read=4):
    """Sequences of which the first `read` places are text."""
    text = np.tile(np.arange(TOKENS.shape[1]) < read, (len(TOKENS), 1))
    places = np.where(text, np.arange(TOKENS.shape[1]), -1)
    return Sequences(inputs=TOKENS, mask=text, text=text, document=np.zeros_like(TOKENS), position=places, documents=1)


def tokenizer(unknown, **ends):
    return SimpleNamespace(unk_token_id=unknown, **ends)


@pytest.mark.parametrize(("read", "said"), [(4, "38 %"), (2, "50 %")])
def test_models_that_know_as_much_are_one_warning(read, said):
    known = {"a": tokenizer(0), "b": tokenizer(0), "c": tokenizer(7)}
    assert list(list_unknown_texts(dict.fromkeys(known, texts(read)), known, "greek.txt")) == [
        f"data: {said} of the tokens of greek.txt are unknown to the tokenizer of 'a', 'b', and the same token to it; "
        "take text that it knows"
    ]


@pytest.mark.parametrize(
    "known", [tokenizer(5), tokenizer(None), tokenizer(0, eos_token_id=0), tokenizer(0, bos_token_id=0), None]
)
def test_few_unknown_tokens_and_those_that_end_texts_are_no_reason(known):
    assert not list(list_unknown_texts({"a": texts()}, {"a": known}, "greek.txt"))


def test_a_run_on_text_that_a_model_does_not_know_warns(repsim, tmp_path):
    (tmp_path / "greek.txt").write_text("\u03bc\u03b7\u03bd\u03b9\u03bd \u03b1\u03b5\u03b9\u03b4\u03b5 " * 200)
    other = "+model.other={kind: random, tokenizer: word_pieces, config: {model_type: gpt2, n_embd: 16, n_layer: 1, n_head: 2}}"
    words = ["model=[]", other, "measure=[cka]", "data=local_text", f"data.path={tmp_path / 'greek.txt'}"]
    code, _, err = repsim("run", *words, "extract.sequences=8", "extract.length=16")
    assert code == 0, err
    assert "are unknown to the tokenizer of 'other', and the same token to it" in " ".join(err.split())
