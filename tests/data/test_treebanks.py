"""Treebanks: words with their tags, and what is said of bad files."""

from dataclasses import replace

import datasets
import pytest
from helpers.data_files import load, table

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract

EXTRACT = Extract(hook_points=["embed"], unit="mean", length=32, sequences=1000)


CONLLU = """# sent_id = 1
# text = I don't know.
1\tI\tI\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tdon't\t_\t_\t_\t_\t_\t_\t_\t_
2\tdo\tdo\tAUX\tVBP\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tknow\tknow\tVERB\tVB\t_\t0\troot\t_\tSpaceAfter=No
4.1\twhat\twhat\tPRON\tWP\t_\t_\t_\t4:obj\t_
5\t.\t.\tPUNCT\t.\t_\t4\tpunct\t_\t_

# text = Yes
1\tYes\tyes\tINTJ\tUH\t_\t0\troot\t_\t_
"""


def test_conllu(tmp_path, gpt_tokenizer):
    (tmp_path / "en_ewt-ud-dev.conllu").write_text(CONLLU)
    surface, syntactic = (load("ewt", tmp_path, words=words) for words in ("surface", "syntactic"))
    assert surface.sentences() == [["I", "don't", "know", "."], ["Yes"]]
    assert syntactic.sentences() == [["I", "do", "n't", "know", "."], ["Yes"]]
    assert surface.labels_of_words()["upos"] == [["PRON", "AUX+PART", "VERB", "PUNCT"], ["INTJ"]]
    assert syntactic.labels_of_words()["upos"] == [["PRON", "AUX", "PART", "VERB", "PUNCT"], ["INTJ"]]
    assert list(surface.labels_of_words()) == ["upos", "xpos", "deprel"]
    assert load("ptb", table(tmp_path / "a.txt", ["one line"], [])).labels_of_words() == {}
    found = surface.sequences(gpt_tokenizer, EXTRACT, 0)
    assert found.ids[0][found.mask[0]].tolist() == gpt_tokenizer("I don't know .")["input_ids"]
    for unit in ("token", "word"):
        for drawn in (1, 2, 5):
            found = surface.sequences(gpt_tokenizer, replace(EXTRACT, unit=unit, sequences=drawn), 0)
            assert (len(found.mask), found.available) == (min(drawn, 2), 2)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("3\tn't", "5\tn't", "line 6: words out of order, got 5 after 2; number them from 1"),
        ("4\tknow", "4\t ", "line 7: not a line of CoNLL-U"),
        ("1\tYes\t", "1\tYes ", "line 12: not a line of CoNLL-U"),
        ("# text = Yes", "text = Yes", "line 11: not a line of CoNLL-U, got 'text = Yes'"),
        ("1\tYes", "1-2\tYes", "line 13: the sentence ends early, got 0 for 2; fix it"),
        ("2-3\t", "3-2\t", "line 4: words out of order, got 3-2 after 1"),
    ],
)
def test_bad_conllu(tmp_path, before, after, message):
    assert before in CONLLU
    (tmp_path / "a.conllu").write_text(CONLLU.replace(before, after))
    with pytest.raises(BadInput, match=f"a.conllu, {message}"):
        load("ewt", tmp_path / "a.conllu").sentences()


def test_ptb(tmp_path, monkeypatch):
    (tmp_path / "ptb.valid.txt").write_text(" the <unk> rose N points \n\n it fell \n")
    sentences = [["the", "<unk>", "rose", "N", "points"], ["it", "fell"]]
    assert load("ptb", tmp_path).sentences() == sentences
    rows = datasets.Dataset.from_dict({"sentence": [" ".join(words) for words in sentences]})
    rows.to_parquet(tmp_path / "a.parquet")
    assert load("ptb", tmp_path / "a.parquet").sentences() == sentences
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or rows)
    assert load("ptb", split="test").sentences() == sentences
    revision = {"split": "test", "revision": "refs/convert/parquet"}
    assert asked == [(("ptb-text-only/ptb_text_only", "penn_treebank"), revision)]
