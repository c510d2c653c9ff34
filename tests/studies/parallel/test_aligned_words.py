"""Aligned words: a planted language in another word order is found, shuffled links are not; numbers again in plain numpy."""

import csv
import json
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from helpers.recorded import recorded

from repsim_cli.runs.content import CHANCE, FOUND
from repsim_cli.studies.parallel.columns import BY_TEXT, BY_TOKENS, P_AT_MOST, RETRIEVAL
from repsim_cli.studies.parallel.retrieval import bound_retrieval_p, count_retrieved, make_unit_rows

TEXTS, LENGTH = 8, 5
RUN = (
    "run",
    "experiment=parallel",
    "extract.unit=word",
    "hardware.threads=1",
    "model=[]",
    "data.first=a",
    "data.second=b",
)


def gpt(folder, tokenizer, vocabulary):
    """A random GPT-2 of two blocks, and its tokenizer in the folder."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_embd=16, n_layer=2, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2Model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0).add_(0.1 * torch.randn_like(parameter))
    tokenizer.save_pretrained(folder)
    return model


@pytest.fixture(scope="session")
def twin(shared):
    """The folder of a model without embeddings of places, with one vector for a word `a7` and its translation `b7`."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = TEXTS * LENGTH

    def make(folder):
        names = ["[PAD]", *(f"{language}{word}" for language in "ab" for word in range(words))]
        level = Tokenizer(models.WordLevel({name: place for place, name in enumerate(names)}, unk_token="[PAD]"))
        level.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        model = gpt(folder, transformers.PreTrainedTokenizerFast(tokenizer_object=level, pad_token="[PAD]"), len(names))
        with torch.no_grad():
            model.wpe.weight.zero_()
            model.wte.weight[1 + words :] = model.wte.weight[1 : 1 + words]
        model.save_pretrained(folder)

    return shared("twin_of_words", make)


@pytest.fixture(scope="session")
def spelled(shared, tokenizer_folder):
    """The folder of a random model whose words have several tokens."""
    import transformers

    def make(folder):
        gpt(folder, transformers.AutoTokenizer.from_pretrained(tokenizer_folder), 400).save_pretrained(folder)

    return shared("spelled_words", make)


def write(folder, pairs, links):
    """A table of pairs of texts, and the file of their links."""
    with (folder / "pairs.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("a", "b"), *pairs])
    (folder / "links.txt").write_text("".join(" ".join(f"{i}-{j}" for i, j in some) + "\n" for some in links))
    return f"data.path={folder / 'pairs.csv'}", f"data.alignment={folder / 'links.txt'}"


def planted(order, *, moved=0):
    """Texts of words that stand nowhere else, the second in another order and of the text so many rows on."""
    numbers = np.arange(TEXTS * LENGTH).reshape(TEXTS, LENGTH)
    orders = [order(LENGTH) for _ in range(TEXTS)]
    pairs = [
        (" ".join(f"a{word}" for word in first), " ".join(f"b{word}" for word in second[at]))
        for first, second, at in zip(numbers, np.roll(numbers, moved, 0), orders, strict=True)
    ]
    return pairs, [[(int(i), j) for j, i in enumerate(at)] for at in orders]


def model(folder):
    return f"+model.m={{kind: transformers, path: {folder}}}"


def table(run, name):
    found = recorded(run)["tables"][name]
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


ORDERS = {"same": np.arange, "reversed": lambda n: np.arange(n)[::-1], "random": np.random.default_rng(1).permutation}


@pytest.mark.parametrize("order", ["same", "reversed", pytest.param("random", marks=pytest.mark.drawn)])
def test_a_language_in_another_order_of_words_is_found(repsim, newest, twin, tmp_path, order):
    pairs, links = planted(ORDERS[order])
    code, out, err = repsim(*RUN, model(twin), *write(tmp_path, pairs, links))
    assert not code, err
    rows = table(newest(), RETRIEVAL)
    assert len(rows) == 2 * 3
    for row in rows:
        assert row["rows"] == TEXTS * LENGTH
        assert row[CHANCE] == pytest.approx(1 / (TEXTS * LENGTH))
        assert row[BY_TEXT] == pytest.approx(1 / LENGTH)
        assert row[BY_TOKENS] == pytest.approx(row[CHANCE])  # no token is in both languages
        if row["layer"] == "embed" or order == "same":
            assert row[RETRIEVAL] == 1.0
            assert row[P_AT_MOST] == pytest.approx(
                bound_retrieval_p(TEXTS)
            )  # of texts, whose words depend on each other
    assert (
        "of 40 words find their pair at embed (a to b; back 1.00), where chance gives 0.025, the right text"
        in " ".join(out.split())
    )
    assert [row["model"] for row in table(newest(), FOUND)] == ["m"]
    assert (newest() / "figures" / "parallel.png").is_file() == (order == "random")


def test_links_between_other_texts_and_shuffled_links_are_not_found(repsim, newest, twin, tmp_path):
    pairs, links = planted(np.arange, moved=1)
    code, _, err = repsim(*RUN, model(twin), *write(tmp_path, pairs, links))
    assert not code, err
    for row in table(newest(), RETRIEVAL):
        assert (row[RETRIEVAL], row[P_AT_MOST]) == (0.0, 1.0)
    pairs, _ = planted(np.arange)
    rng = np.random.default_rng(0)
    shuffled = [list(enumerate(rng.permutation(LENGTH).tolist())) for _ in range(TEXTS)]
    right = np.mean([i == j for some in shuffled for i, j in some])
    code, _, err = repsim(*RUN, model(twin), *write(tmp_path, pairs, shuffled))
    assert not code, err
    for row in table(newest(), RETRIEVAL):
        assert row[RETRIEVAL] == pytest.approx(right)


def sentences():
    """Texts of few words, which so stand in several texts and twice in some, and links of some of them."""
    rng = np.random.default_rng(3)
    words = ["network", "hacker", "the", "of", "program", "buffer", "a", "compiler", "kernel"]
    pairs, links = [], []
    for _ in range(24):
        first = rng.choice(words, size=rng.integers(4, 9))
        order = rng.permutation(len(first))
        second = np.where(rng.random(len(first)) < 0.2, rng.choice(words, size=len(first)), first)[order]
        pairs.append((" ".join(first), " ".join(second)))
        links.append([(int(i), j) for j, i in enumerate(order) if rng.random() < 0.8])
    return pairs, links


def keep_output(states, module, given, output):
    states.append(output[0] if isinstance(output, tuple) else output)


def states_of_words(folder, texts, piece):
    """(layer, word, feature) of each text by itself, and the tokens of each word."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.GPT2Model.from_pretrained(folder).eval()
    rows, tokens = [], []
    for text in texts:
        given = tokenizer(text, return_offsets_mapping=True, return_tensors="pt")
        spans = given["offset_mapping"][0].tolist()
        states = []
        keep = partial(keep_output, states)
        hooks = [each.register_forward_hook(keep) for each in (network.drop, *network.h)]
        with torch.no_grad():
            network(given["input_ids"])
        for hook in hooks:
            hook.remove()
        start, of_words = 0, []
        for word in text.split():
            end = start + len(word)
            of_words.append([k for k, (a, b) in enumerate(spans) if a < end and b > start and a < b])
            start = end + 1
        take = {"last": lambda x: x[-1], "first": lambda x: x[0], "mean": lambda x: x.mean(0)}[piece]
        rows.append(np.array([[take(x[0].numpy()[at]) for at in of_words] for x in states], np.float32))
        tokens.append([Counter(given["input_ids"][0][at].tolist()) for at in of_words])
    return rows, tokens


def found_by(x, y):
    """The share of rows whose nearest one is their pair, where equally near ones share it."""
    shares = []
    for place, row in enumerate(x):
        near = y @ row >= (y @ row).max() - 1e-6
        shares.append(near[place] / near.sum())
    return np.mean(shares)


def unbiased_cka(x, y):
    def hsic(k, m):
        n, k, m = len(k), k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
        both = np.sum(k * m) + k.sum() * m.sum() / (n - 1) / (n - 2) - 2 * (k.sum(0) @ m.sum(0)) / (n - 2)
        return both / n / (n - 3)

    k, m = x @ x.T, y @ y.T
    return hsic(k, m) / np.sqrt(hsic(k, k) * hsic(m, m))


@pytest.mark.parametrize("piece", ["last", "first", "mean"])
def test_the_numbers_are_those_of_plain_numpy(repsim, newest, spelled, tmp_path, piece):
    pairs, links = sentences()
    words = (model(spelled), *write(tmp_path, pairs, links), f"extract.piece={piece}")
    code, _, err = repsim(*RUN, *words, "extract.rows=1000", "significance.chance=false")
    assert not code, err
    read = [states_of_words(spelled, texts, piece) for texts in zip(*pairs, strict=True)]
    ordered = [sorted(some) for some in links]
    sides = [
        np.concatenate(
            [rows[:, [link[side] for link in some]] for rows, some in zip(read[side][0], ordered, strict=True)], 1
        )
        for side in (0, 1)
    ]
    vocabulary = np.eye(400)
    bags = [
        np.array(
            [
                sum(count * vocabulary[token] for token, count in read[side][1][text][link[side]].items())
                for text, some in enumerate(ordered)
                for link in some
            ]
        )
        for side in (0, 1)
    ]
    bags = [bag / np.linalg.norm(bag, axis=1, keepdims=True) for bag in bags]
    rows = table(newest(), RETRIEVAL)
    for way, order in (("a", (0, 1)), ("b", (1, 0))):
        for layer, row in enumerate(row for row in rows if row["from"] == way):
            x, y = (sides[side][layer].astype(float) for side in order)
            x, y = (each - each.mean(0) for each in (x, y))
            x, y = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, y))
            assert row["rows"] == len(x) == sum(map(len, links))
            assert row[RETRIEVAL] == pytest.approx(found_by(x, y), abs=1e-9)
            assert row[BY_TOKENS] == pytest.approx(found_by(*(bags[side] for side in order)), abs=1e-9)
            assert 3 * row[CHANCE] < row[RETRIEVAL] < 1
    cka = next(x for x in recorded(newest())["measures"] if x["name"] == "cka_unbiased")
    pair = next(x for x in cka["matrices"] if x["rows"]["model"] != x["columns"]["model"])
    expected = [unbiased_cka(*(sides[side][layer].astype(float) for side in (0, 1))) for layer in range(3)]
    assert np.load(newest() / pair["values"]).diagonal() == pytest.approx(np.array(expected), abs=1e-5)


def test_rows_that_any_column_skips_are_counted_once_of_all(repsim, newest, twin, tmp_path):
    """The first word of each column is a different row in reversed order."""
    given = write(tmp_path, *planted(ORDERS["reversed"]))
    code, out, err = repsim(*RUN, model(twin), *given, "extract.skip=1")
    assert not code, err
    lost, whole = 2 * TEXTS, LENGTH * TEXTS
    assert out.count("extract.skip: ") == 1
    assert f"extract.skip: {lost} of {whole} rows are left out, as some model skips their places" in out
    manifest = json.loads((newest() / "manifest.json").read_text())
    assert manifest["rows"] == whole - lost
    assert (manifest["remedies"]["rows_left_out"], manifest["remedies"]["share_left_out"]) == (lost, lost / whole)
    data = manifest["data"]
    assert (data["rows_kept"], data["rows_dropped"], data["rows_skipped"]) == (whole - lost, lost, lost)


def test_texts_without_spaces_are_warned_of(repsim, spelled, tmp_path):
    path, links = write(
        tmp_path, [("我喜欢读书", "I like books"), ("今天天气", "the weather today")] * 9, [[(0, 0)]] * 18
    )
    code, out, err = repsim(*RUN, model(spelled), path, links, "extract.skip=0")
    assert not code, err
    assert "data: 18 texts of" in out
    assert "pairs.csv, a have no white space, so that each is one word; segment them before words are aligned" in out
    assert "pairs.csv, b have" not in out


def test_words_are_in_the_question_and_in_an_example(repsim):
    from repsim_cli.report.studies import find_question

    assert "or their words" in (find_question("parallel") or "")
    out = repsim("describe", "parallel")[1]
    assert "example: repsim run experiment=parallel extract=words data.path=FILE" in out
    assert "example: repsim run study=parallel model=[tiny_a] extract=pooled" in out


def test_equal_words_have_no_p(repsim, newest, spelled, tmp_path):
    """Equal words are chosen because they are equal, so that random pairings are not a null."""
    pairs, links = sentences()
    path, _ = write(tmp_path, pairs, links)
    code, _, err = repsim(*RUN, model(spelled), path, "data.alignment=same")
    assert not code, err
    once = sum(
        sum(first.split().count(word) == second.split().count(word) == 1 for word in set(first.split()))
        for first, second in pairs
    )
    for row in table(newest(), RETRIEVAL):
        assert row[P_AT_MOST] is None
        assert row["rows"] == once
        assert row[CHANCE] < row[BY_TOKENS] < 1


def test_votes_of_texts_keep_the_level_whatever_their_lengths():
    """Words of a text are alike, and texts have 1 to 12 of them."""
    p = []
    for seed in range(400):
        generator = torch.Generator().manual_seed(seed)
        texts = np.repeat(np.arange(20), np.random.default_rng(seed).integers(1, 13, 20))
        x, y = (
            torch.randn(20, 4, generator=generator, dtype=torch.float64)[torch.from_numpy(texts)]
            + 0.5 * torch.randn(len(texts), 4, generator=generator, dtype=torch.float64)
            for _ in range(2)
        )
        found = count_retrieved(make_unit_rows(x, centred=True), make_unit_rows(y, centred=True), texts)
        p.append(bound_retrieval_p(found.unique))
    for alpha in (0.5, 0.2, 0.05, 0.01):
        assert np.mean(np.array(p) <= alpha) <= alpha
    assert min(p) < 0.5


def test_a_text_votes_by_most_of_its_words():
    x = torch.eye(6, dtype=torch.float64)
    texts = np.array([0, 0, 0, 1, 1, 2])
    # of text 0 two of three words lie in text 0, of text 1 one word in each of two texts, of text 2 its word in text 2
    y = x[[1, 0, 3, 2, 4, 5]]
    found = count_retrieved(x, y, texts)
    assert (found.share, found.unique) == (pytest.approx(2 / 6), 2)


def test_what_is_refused(repsim, twin, tmp_path):
    given = write(tmp_path, *planted(np.arange))
    path = given[0]
    (tmp_path / "none.txt").write_text("0-0 0-1 1-0\n" * TEXTS)
    (tmp_path / "wide.txt").write_text("0-0\n" * (TEXTS - 1) + "0-5\n")
    for words, problem in (
        (
            (path,),
            "extract.unit: nothing says which words of two texts stand for each other, got word; set data.alignment",
        ),
        ((*given, "extract.unit=mean"), "data.alignment: it pairs words, got extract.unit=mean; set extract.unit=word"),
        ((*given, "extract.unit=token"), "data.alignment: it pairs words, got extract.unit=token"),
        ((path, "data.alignment=pairs"), "alignment: no such file, got 'pairs'"),
        (
            (path, f"data.alignment={tmp_path / 'wide.txt'}"),
            "wide.txt, line 8: no such word, got 0-5 of texts with 5 and",
        ),
        ((path, f"data.alignment={tmp_path / 'none.txt'}"), "data.alignment: no word of "),
    ):
        code, _, err = repsim(*RUN, model(twin), *words)
        assert code == 2, words
        assert problem in err
        assert "Traceback" not in err
