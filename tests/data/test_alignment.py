"""Aligned words: links of a file or of equal words, the same pairs of words in both columns, in the order of the first."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repsim_cli.activations.inputs import describe_inputs
from repsim_cli.activations.places import find_rows, have_same_rows, list_row_places
from repsim_cli.activations.remedies import skip_in_all
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract
from repsim_cli.data.alignment import link, link_equal
from repsim_cli.data.words import find_spaced_word_spans

PAIRS = [
    ("the red cat , it sleeps .", "es schläft die rote Katze ."),
    ("we saw two dogs", "zwei Hunde sahen wir gestern"),
    ("nothing", "gar nichts"),
]
LINKS = ["0-2 1-3 2-4 3-1 4-0 5-1 6-5", "3-1 2-0 1-2 0-3", "0-0 0-1"]
FOUND = [
    [("the", "die"), ("red", "rote"), ("cat", "Katze"), ("it", "es"), ("sleeps", "schläft")],
    [("we", "wir"), ("saw", "sahen"), ("two", "zwei"), ("dogs", "Hunde")],
]


@pytest.fixture
def tokenizers(bert_tokenizer, gpt_tokenizer):
    return {"bytes": gpt_tokenizer, "pieces": bert_tokenizer}


def extract(**settings):
    return Extract(**{"hook_points": ["embed"], "unit": "word", "length": 64, "sequences": 100, **settings})


def load(folder, pairs, links):
    """Two files line by line, with links or with a rule."""
    for place, name in enumerate(("one.txt", "two.txt")):
        (folder / name).write_text("".join(f"{pair[place]}\n" for pair in pairs))
    rule = isinstance(links, str)
    if not rule:
        (folder / "links.txt").write_text("".join(f"{line}\n" for line in links))
    alignment = links if rule else str(folder / "links.txt")
    return registry.data.get("parallel").function(
        path=str(folder / "one.txt"), other=str(folder / "two.txt"), alignment=alignment
    )


def columns(data, tokenizers, settings):
    return {name: column.align(tokenizers, settings, 0) for name, column in data.columns().items()}


def words_of(sequences, tokenizer, settings):
    """The text of all pieces of every row, in row order, by sequence."""
    rows = find_rows(sequences, settings)
    found = {}
    for number, (sequence, _) in enumerate(list_row_places(sequences, settings).tolist()):
        text = tokenizer.decode(sequences.ids[rows == number].tolist(), clean_up_tokenization_spaces=False)
        found.setdefault(sequence, []).append(text.strip())
    return list(found.values())


@pytest.mark.parametrize("piece", ["last", "first", "mean"])
def test_linked_words_are_the_same_rows_in_the_order_of_the_first_text(tmp_path, tokenizers, piece):
    settings = extract(piece=piece)
    given = columns(load(tmp_path, PAIRS, LINKS), tokenizers, settings)
    of_bytes = [words_of(given[name]["bytes"], tokenizers["bytes"], settings) for name in given]
    assert [list(zip(*both, strict=True)) for both in zip(*of_bytes, strict=True)] == FOUND
    for sequences in (each for column in given.values() for each in column.values()):
        assert have_same_rows(given["first"]["bytes"], sequences, settings)


def test_what_is_left_out_is_counted_by_column(tmp_path, tokenizers):
    data = load(tmp_path, PAIRS, LINKS)
    given = columns(data, tokenizers, extract())
    several, bare = "a word in several links", "a word without letter or digit"
    wanted = {"first": {several: 1, bare: 2}, "second": {several: 2, bare: 1, "a word without link": 1}}
    for name, of_models in given.items():
        for sequences in of_models.values():
            assert (sequences.words_dropped, sequences.lost) == (wanted[name], sum(wanted[name].values()))
            assert sequences.dropped == {"no aligned words": 1}
    record, notices = describe_inputs(given["second"], data.columns()["second"], extract())
    assert (record["rows_kept"], record["rows_dropped"]) == (9, 4)
    (line,) = [notice for notice in notices if " words of " in notice]
    assert line.endswith(
        "second are left out for all models: 1 (a word without letter or digit), 1 (a word without link), "
        "2 (a word in several links)"
    )


def test_equal_words_are_linked_whatever_their_case(tmp_path, tokenizers):
    pairs = [('A dog barks, "a" dog.', "the Dog barks A lot"), ("red Cats don't sleep", "Don't sleep, cats!")]
    given = columns(load(tmp_path, pairs, "same"), tokenizers, extract())
    found = [words_of(each["bytes"], tokenizers["bytes"], extract()) for each in given.values()]
    assert found == [[["barks"], ["Cats", "don't", "sleep"]], [["barks"], ["cats", "Don't", "sleep"]]]


def test_words_that_are_equal_to_several_are_linked_and_no_rows():
    links = link_equal((["A", "dog", "barks", "a", "dog", ","], ["the", "dog", "barks", "A", "lot", ","]))
    assert links.alone.tolist() == [[2, 2]]
    assert [set(words) for words in links.linked] == [{0, 1, 2, 3, 4}, {1, 2, 3}]


def test_words_behind_the_window_of_one_column_are_left_out_of_both(tmp_path, tokenizers):
    words = ["we", "saw", "two", "dogs", "run", "far", "away"]
    pairs = [(" ".join(words), " ".join(words[::-1])), ("we met", "we met")]
    data = load(tmp_path, pairs, [" ".join(f"{i}-{6 - i}" for i in range(7)), "0-0 1-1"])
    whole = columns(data, tokenizers, extract())
    length = int(whole["first"]["bytes"].mask[0].sum()) - 4
    cut = columns(data, tokenizers, extract(length=length))
    of_whole, of_cut = (
        [words_of(each["bytes"], tokenizers["bytes"], extract()) for each in given.values()] for given in (whole, cut)
    )
    assert of_whole == [[words, ["we", "met"]]] * 2
    assert of_cut[0] == of_cut[1]
    assert 0 < len(of_cut[0][0]) < 6  # some are cut off the first text, and others off the second
    assert of_cut[0][0] == [word for word in words if word in of_cut[0][0]]
    for of_models in cut.values():
        sequences = of_models["bytes"]
        assert sum(map(len, of_cut[0])) + sequences.lost == 9
        assert f"a word behind the first {length} tokens" in sequences.words_dropped
        assert "a word whose aligned word is not read" in sequences.words_dropped
        assert sequences.split == 0


def test_a_row_that_is_skipped_in_one_column_is_skipped_in_both(tmp_path, tokenizers):
    settings = extract(skip=6)
    given = columns(load(tmp_path, PAIRS[1:2], LINKS[1:2]), {"bytes": tokenizers["bytes"]}, settings)
    by_column = {name: each["bytes"] for name, each in given.items()}
    left = skip_in_all(by_column, dict.fromkeys(by_column, tokenizers["bytes"]), settings)
    kept = [words_of(each, tokenizers["bytes"], settings)[0] for each in left.values()]
    skipped = {
        name: set(np.flatnonzero(list_row_places(each["bytes"], settings)[:, 1] < 6).tolist())
        for name, each in given.items()
    }
    assert all(skipped.values())
    wanted = [FOUND[1][i] for i in range(4) if i not in skipped["first"] | skipped["second"]]
    assert list(zip(*kept, strict=True)) == wanted


def test_links_of_words_with_others_and_of_punctuation_are_left_out():
    texts = (["one", ",", "two", "three"], ["un", "deux", ";", "trois"])
    assert link([(0, 0), (0, 2), (2, 1), (3, 3), (1, 3)], texts).alone.tolist() == [[0, 0], [2, 1], [3, 3]]
    assert link([(0, 0), (0, 1), (2, 1), (3, 3), (3, 3)], texts).alone.tolist() == [[3, 3]]


@given(st.text(alphabet="aé1.,-'$ \t\n\u00a0\u3000क्", max_size=30))
def test_words_are_numbered_as_split_numbers_them(text):
    words = [text[a:b] for a, b in find_spaced_word_spans(text)]
    assert len(words) == len(text.split())
    for word, whole in zip(words, text.split(), strict=True):
        assert word in whole
        assert all(character in ".,-'$" for character in whole.replace(word, "", 1))


@pytest.mark.parametrize(
    ("links", "problem"),
    [
        (["0-0", "0-0"], "links.txt: fewer lines than pairs of texts, got 2 lines for 3 pairs; write a line for each"),
        (["0-0"] * 4, "links.txt: more lines than pairs of texts, got 4 lines for 3 pairs"),
        (["0-0", "0-0 2-9", ""], "links.txt, line 2: no such word, got 2-9 of texts with 4 and 5 words; number from 0"),
        (["0-0", "4-0", ""], "links.txt, line 2: no such word, got 4-0 of texts with 4 and 5 words"),
        (
            ["0-0", "", "0:0"],
            "links.txt, line 3: not a link, got '0:0'; write numbers of words from 0, such as 0-0 1-2, and leave links out",
        ),
        (["0-0 0p1", "", ""], r"links.txt, line 1: not a link, got '0p1'; .* only possible \(0p2, 0-2\?\)"),
        (["0-0 0-2?", "", ""], r"links.txt, line 1: not a link, got '0-2\?'"),
        (".", "alignment: it is a folder, got '.'; name the file of links in it"),
        (["0-0 1--2", "", ""], "links.txt, line 1: not a link, got '1--2'"),
        (["0-0 1-", "", ""], "links.txt, line 1: not a link, got '1-'"),
        ("other", "alignment: no such file, got 'other'; give a file with a line of links per pair"),
    ],
)
def test_a_file_that_does_not_fit_the_pairs_is_refused(tmp_path, links, problem):
    with pytest.raises(BadInput, match=problem):
        load(tmp_path, PAIRS, links)


def test_lines_are_of_pairs_that_are_left_out_too(tmp_path, tokenizers):
    pairs = [(" ", "leer"), *PAIRS]
    given = columns(load(tmp_path, pairs, ["", *LINKS]), tokenizers, extract())
    assert words_of(given["second"]["bytes"], tokenizers["bytes"], extract())[1] == [two for _, two in FOUND[1]]
    with pytest.raises(BadInput, match="links.txt, line 4: no such word, got 0-2"):
        load(tmp_path, pairs, ["", *LINKS[1:], LINKS[0]])


def test_no_link_at_all_is_refused(tmp_path, tokenizers):
    data = load(tmp_path, PAIRS, ["", "0-0 0-1", "0-0 0-1"])
    problem = (
        "data.alignment: no word of .*one.txt and .*two.txt, first has a link to one other word alone, got 8 words without "
        "link, 2 words without letter or digit, 2 words in several links; give links of single words"
    )
    with pytest.raises(BadInput, match=problem):
        columns(data, tokenizers, extract())
    with pytest.raises(BadInput, match="got 1 word without link; give a file of links"):
        columns(load(tmp_path, [("one", "two")], "same"), tokenizers, extract())


def test_a_byte_order_mark_is_no_part_of_a_link_or_a_word(tmp_path, tokenizers):
    plain = columns(load(tmp_path, PAIRS, LINKS), tokenizers, extract())
    marked = load(tmp_path, PAIRS, ["\ufeff" + LINKS[0], *LINKS[1:]])
    assert (tmp_path / "links.txt").read_bytes().startswith(b"\xef\xbb\xbf0-2")
    (tmp_path / "one.txt").write_text((tmp_path / "one.txt").read_text(), encoding="utf-8-sig")
    for name, of_models in columns(marked, tokenizers, extract()).items():
        for label, sequences in of_models.items():
            assert np.array_equal(sequences.ids, plain[name][label].ids)
            assert np.array_equal(sequences.word, plain[name][label].word)


def test_texts_without_spaces_are_counted_where_they_are_most(tmp_path):
    pairs = [("我喜欢读书。", "Ich lese gern"), ("วันนี้", "heute"), ("a b", "c d"), ("dog", "Hund")]
    counts = [
        [column.count_unspaced() for column in load(tmp_path, some, "same").columns().values()]
        for some in (pairs[:3], pairs, pairs[2:])
    ]
    assert counts == [[2, 0], [0, 0], [0, 0]]
