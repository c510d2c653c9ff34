"""Parallel text: a planted second language is found in every layer, shuffled pairs are not; chance and p by simulation."""

import csv

import numpy as np
import pytest
import torch
from helpers.recorded import recorded
from scipy.sparse import csr_array

from repsim_cli.engine.proportions import compute_wilson_interval
from repsim_cli.runs.content import CHANCE, FOUND
from repsim_cli.studies.parallel.columns import BY_TEXT, BY_TOKENS, HIGH, LOW, P_AT_MOST, RETRIEVAL
from repsim_cli.studies.parallel.finding import find_best_layer, find_highest, say_answers
from repsim_cli.studies.parallel.retrieval import (
    bound_retrieval_p,
    count_retrieved,
    make_unit_rows,
)

WORDS, ROWS, LAYERS = 40, 36, ["embed", "resid_post@0", "resid_post@1"]
RUN = ("run", "experiment=parallel", "extract.hook_points=[embed,resid_post]", "hardware.threads=1", "model=[]")


def test_retrieval_by_hand():
    """A pair among m equally near rows counts 1/m; rows without direction are as near to all."""
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    units = make_unit_rows(x, centred=False)
    expected = (1 / 2 + 1 / 2 + 1 + 1 / 4) / 4
    for found in (count_retrieved(units, units), count_retrieved(*[csr_array(units.numpy())] * 2)):
        assert (found.share, found.unique) == (pytest.approx(expected), 1)
        assert found.hits.tolist() == [0.5, 0.5, 1.0, 0.25]


def test_random_pairings_give_one_in_n_and_no_small_p():
    """Few of the rows are the nearest of many (hubs), as those of language models are."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, generator=generator, dtype=torch.float64) * torch.tensor([9.0, 1, 1, 1]) + 3
    y = x[torch.randperm(30, generator=generator)] + 0.3 * torch.randn(30, 4, generator=generator, dtype=torch.float64)
    x, y = (make_unit_rows(each, centred=True) for each in (x, y))
    found = [count_retrieved(x, y[torch.randperm(30, generator=generator)]) for _ in range(1000)]
    assert np.mean([each.share for each in found]) == pytest.approx(1 / 30, abs=0.004)
    p = np.array([bound_retrieval_p(each.unique) for each in found])
    for alpha in (0.2, 0.05, 0.01):
        assert np.mean(p <= alpha) <= alpha


def covered(draws, noise, alike):
    """How often the interval holds the mean share of all draws: rows of a document are alike, or not."""
    shares, ends = [], []
    for seed in range(draws):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(120, 6, generator=generator, dtype=torch.float64)
        size = torch.rand(30 if alike else 120, generator=generator, dtype=torch.float64).repeat_interleave(
            4 if alike else 1
        )
        y = x + 2 * noise * size[:, None] * torch.randn(120, 6, generator=generator, dtype=torch.float64)
        found = count_retrieved(make_unit_rows(x, centred=True), make_unit_rows(y, centred=True))
        shares.append(found.share)
        ends.append(compute_wilson_interval(found.hits, np.arange(120) // 4 if alike else np.arange(120)))
    low, high = np.array(ends).T
    return np.mean((low <= np.mean(shares)) & (np.mean(shares) <= high))


@pytest.mark.parametrize(("noise", "alike"), [(0.1, False), (0.6, False), (2.0, False), (0.6, True)])
def test_intervals_hold_the_share_of_other_texts(noise, alike):
    """Shares are near 1, in the middle and near 0; rows depend on each other by the candidates that they share."""
    assert 0.92 <= covered(400, noise, alike) <= 1


def test_an_interval_of_independent_rows_is_wilsons():
    from scipy.stats import binomtest

    hits = np.repeat([1.0, 0.0], [30, 70])
    expected = binomtest(30, 100).proportion_ci(method="wilson")
    assert compute_wilson_interval(hits, np.arange(100)) == pytest.approx(tuple(expected), rel=0.01)
    low, high = compute_wilson_interval(np.repeat(hits, 4), np.arange(400) // 4)
    assert (low, high) == pytest.approx(tuple(expected), rel=0.01)  # copies add nothing


@pytest.fixture(scope="session")
def languages(shared):
    """Folders of models of two languages of 40 words each, and 36 sentences in both: `twin` has the same vector for a
    word and its translation, `model` does not, and `turned` is `model` with the languages' vectors exchanged."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    names = ["[PAD]", *(f"{language}{word}" for language in "ab" for word in range(WORDS))]

    def make(folder):
        words = Tokenizer(models.WordLevel({name: place for place, name in enumerate(names)}, unk_token="[PAD]"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
        config = transformers.GPT2Config(
            vocab_size=len(names), n_embd=16, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
        )
        torch.manual_seed(0)
        model = transformers.GPT2Model(config)
        a, b = (slice(start, start + WORDS) for start in (1, 1 + WORDS))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(4.0).add_(0.1 * torch.randn_like(parameter))
            own = model.wte.weight.clone()
            for name, first, second in (
                ("model", own[a], own[b]),
                ("turned", own[b], own[a]),
                ("twin", own[a], own[a]),
            ):
                model.wte.weight[a], model.wte.weight[b] = first, second
                model.save_pretrained(folder / name)
                tokenizer.save_pretrained(folder / name)
        rng = np.random.default_rng(0)
        numbers = [rng.integers(WORDS, size=rng.integers(4, 9)) for _ in range(ROWS)]
        rows = [[" ".join(f"{language}{word}" for word in sentence) for language in "ab"] for sentence in numbers]
        with (folder / "pairs.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("left", "right"), *rows])
        order = rng.permutation(ROWS)
        (folder / "left.txt").write_text("".join(f"{row[0]}\n" for row in rows))
        (folder / "shuffled.txt").write_text("".join(f"{rows[i][1]}\n" for i in order))
        (folder / "fixed").write_text(str(int((order == np.arange(ROWS)).sum())))

    return shared("languages", make)


def model(label, folder):
    return f"+model.{label}={{kind: transformers, path: {folder / label}}}"


def table(run, name):
    found = recorded(run)["tables"][name]
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


@pytest.mark.slow
@pytest.mark.drawn
def test_a_planted_language_is_found_in_every_layer(repsim, newest, languages):
    of = [model(label, languages) for label in ("twin", "model", "turned")]
    words = (*of, f"data.path={languages / 'pairs.csv'}", "data.first=left", "data.second=right")
    code, out, err = repsim(*RUN, *words)
    assert not code, err
    rows = table(newest(), RETRIEVAL)
    shares = {}
    for row in rows:
        assert row["rows"] == ROWS
        assert row[CHANCE] == pytest.approx(1 / ROWS)
        shares.setdefault((row["model"], row["other model"], row["from"]), []).append(row[RETRIEVAL])
        same = row["model"] == row["other model"]
        assert row[BY_TOKENS] == (pytest.approx(1 / ROWS) if same else None)
        if row[RETRIEVAL] == 1.0:
            assert row[P_AT_MOST] == pytest.approx(bound_retrieval_p(ROWS))
    assert [row["layer"] for row in rows[:3]] == LAYERS
    for way in (("twin", "twin", "left"), ("twin", "twin", "right"), ("model", "turned", "left")):
        assert shares[way] == [1.0] * 3
    assert max(shares["model", "model", "left"]) < 0.3
    assert (
        "twin: 1.00 [0.90, 1.00] of 36 texts find their pair at embed (left to right; back 1.00), where chance gives 0.028"
        in out
    )
    (cka, _) = recorded(newest())["measures"]
    pair = next(
        x for x in cka["matrices"] if (x["rows"]["model"], x["columns"]["model"]) == ("twin on left", "twin on right")
    )
    assert np.load(newest() / pair["values"]).diagonal() == pytest.approx(1.0, abs=1e-5)
    assert (newest() / "figures" / "parallel.png").is_file()
    assert f"  figure: {newest() / 'figures' / 'parallel.png'}" in repsim("show", str(newest()))[1]
    assert [row["model"] for row in table(newest(), FOUND)] == ["twin", "model", "turned"]


def test_the_highest_share_is_named_with_its_way():
    """Another layer than the best of both ways together."""
    ways = {
        ("a", "b"): {"m": [{"layer": "embed", RETRIEVAL: 0.6}, {"layer": "resid_post@0", RETRIEVAL: 0.5}]},
        ("b", "a"): {"m": [{"layer": "embed", RETRIEVAL: 0.6}, {"layer": "resid_post@0", RETRIEVAL: 0.65}]},
    }
    assert find_highest(ways) is ways["b", "a"]["m"][1]
    assert find_best_layer(*(models["m"] for models in ways.values())) == 0


def test_shuffled_pairs_are_found_as_often_as_by_chance(repsim, newest, languages):
    """The nearest row is the translation, which the shuffle has put elsewhere but for its fixed points."""
    files = (f"data.path={languages / 'left.txt'}", f"data.other={languages / 'shuffled.txt'}")
    code, _, err = repsim(*RUN, model("twin", languages), *files)
    assert not code, err
    fixed = int((languages / "fixed").read_text())
    for row in table(newest(), RETRIEVAL):
        assert row[RETRIEVAL] == pytest.approx(fixed / ROWS)
        assert row[P_AT_MOST] == pytest.approx(bound_retrieval_p(fixed))


def test_what_is_refused(repsim, languages, tmp_path):
    twin, pairs = model("twin", languages), f"data.path={languages / 'pairs.csv'}"
    named = (twin, pairs, "data.first=left", "data.second=right")
    np.savez(tmp_path / "stored.npz", layer_0=np.eye(40))
    stored = f"+model.stored={{kind: precomputed, path: {tmp_path / 'stored.npz'}}}"
    for words, problem in (
        ((*named, "extract.unit=token"), "extract.unit: texts are paired, not their tokens, got token"),
        ((*named, "extract.estimate=per_batch"), "extract.estimate: pairs are found in one sample, got per_batch"),
        ((*named, stored), "model.stored: stored rows are of one text, got no model"),
        ((twin, pairs), "no column 'premise', got 'left', 'right'"),
    ):
        code, _, err = repsim(*RUN, *words)
        assert code == 2, words
        assert problem in err
        assert "Traceback" not in err
    code, _, err = repsim("run", "study=parallel", "model=[tiny_a]", "data=embedded_sentences", "extract=pooled")
    assert code == 2
    assert "data: two columns of text are needed, got " in err
    for words in ("extract=pooled",), ("extract=pooled", "dry_run=true"), ("extract=words", "data.alignment=same"):
        code, _, err = repsim("run", "study=similarity", twin, "data=parallel", *named[1:], *words)
        assert code == 2, words
        assert "two columns of text are read one by one by study=parallel" in err


def test_layers_that_find_as_many_pairs_are_named():
    """The best layer leads another one by less than their errors, and the first one by more."""
    row = {"rows": 100, CHANCE: 0.01, BY_TEXT: None, BY_TOKENS: 0.02}
    rows = [
        row | {"layer": f"resid_post@{i}", RETRIEVAL: share, LOW: share - 0.1, HIGH: share + 0.1}
        for i, share in enumerate((0.1, 0.50, 0.52))
    ]
    ((_, said),) = say_answers({("l", "r"): {"m": rows}, ("r", "l"): {"m": rows}}, "texts")
    assert said.endswith("; block 1 is not told apart from it")
