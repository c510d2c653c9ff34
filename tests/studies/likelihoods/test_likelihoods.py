"""Log-likelihoods of texts: by hand, planted distances and their errors, and the divergence that they stand for."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.drawn_in_memory import in_memory
from helpers.printed import ASSETS
from transformers import AutoModelForCausalLM, AutoTokenizer

from repsim_cli.activations.next_token import number_documents
from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.data.base import Sequences
from repsim_cli.runs import reader
from repsim_cli.runs.content import NEAREST, Matrix, Measured, Side, Table
from repsim_cli.studies.likelihoods.distances import (
    LIKELIHOODS,
    centre_twice,
    compute_likelihood_distances,
    find_likelihood_interval,
    place_models,
)
from repsim_cli.studies.likelihoods.finding import MAP, draw_figures, say_answers, say_interval
from repsim_cli.studies.likelihoods.study import Likelihoods, log_likelihoods, mark_scored

TINY_A = ASSETS / "models" / "tiny_a"
WORDS = ("run", "-q", "study=likelihoods", "extract=words", "measure=[]", "extract.sequences=40", "extract.length=32",
         "hardware.threads=1")  # fmt: skip
transformers = registry.models.get("transformers").function


def noised(model, size, seed=0):
    """A copy with noise of this size, relative to each tensor."""
    changed, draw = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in changed.parameters():
            weights += size * weights.std() * torch.randn(weights.shape, generator=draw)
    return changed


@pytest.fixture(scope="module")
def tiny():
    return AutoModelForCausalLM.from_pretrained(TINY_A).eval()


def sequences_of(ids, word):
    ids, word = np.array(ids), np.array(word)
    whole = np.ones_like(word, dtype=bool)
    return Sequences(
        inputs=ids, mask=whole, text=whole, document=np.zeros_like(ids), position=word, documents=1, word=word
    )


def test_what_is_scored_comes_after_the_first_word():
    texts = sequences_of([[5, 6, 7, 8], [5, 6, 7, 8]], [[0, 0, 1, -1], [-1, 3, 4, 4]])
    assert mark_scored(texts).tolist() == [[False, False, True, True], [False, False, True, True]]
    none = sequences_of([[5, 6]], [[-1, -1]])
    assert not mark_scored(none).any()


def test_likelihoods_are_those_of_the_model_token_by_token(tiny):
    ids = np.random.default_rng(0).integers(5, 400, (3, 7))
    texts = sequences_of(ids, np.tile([0, 0, 1, 2, 2, 3, 4], (3, 1)))
    found = log_likelihoods(tiny, transformers(path=str(TINY_A)), texts)
    for row, value in zip(ids, found, strict=True):
        total = 0.0
        for place in range(2, 7):
            with torch.no_grad():
                logits = tiny(torch.tensor(row[None, :place])).logits[0, -1].double()
            total += float(logits.log_softmax(0)[row[place]])
        assert value == pytest.approx(total, abs=1e-4)


def test_distances_are_those_of_the_matrix_that_is_centred_both_ways():
    logs = np.random.default_rng(0).normal(size=(4, 50)) * 9
    found = compute_likelihood_distances(logs, np.arange(50))
    rows = centre_twice(logs)
    assert np.abs(rows.mean(0)).max() < 1e-12
    for a in range(4):
        for b in range(4):
            assert found.values[a, b] == pytest.approx(np.square(rows[a] - rows[b]).sum() / 49 / 2)
            assert found.values[a, b] == pytest.approx(np.var(logs[a] - logs[b], ddof=1) / 2)


def test_errors_are_the_spread_over_draws_of_documents():
    """Four texts of a document are alike."""
    values, errors, naive = [], [], []
    documents = np.repeat(np.arange(60), 4)
    for seed in range(200):
        draw = np.random.default_rng(seed)
        logs = draw.normal(size=(2, 60))[:, documents] + 0.3 * draw.normal(size=(2, 240))
        found = compute_likelihood_distances(logs, documents)
        values.append(found.values[0, 1])
        errors.append(found.se[0, 1])
        naive.append(compute_likelihood_distances(logs, np.arange(240)).se[0, 1])
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)
    assert np.mean(naive) < 0.7 * np.std(values)


def cover_distances(rng, documents, texts, draws):
    """How often the interval holds the true distance 0.5, half of the variance between documents."""
    held, of = 0, np.repeat(np.arange(documents), texts)
    for _ in range(draws):
        differences = 0.5**0.5 * (rng.normal(size=documents)[of] + rng.normal(size=len(of)))
        found = compute_likelihood_distances(np.stack([differences, np.zeros(len(of))]), of)
        low, high = find_likelihood_interval(found.values[0, 1], found.se[0, 1], documents - 1, 0.95)
        held += low <= 0.5 <= high
    return held / draws


@pytest.mark.parametrize(("documents", "texts"), [(6, 4), (10, 2), (25, 3)])
def test_intervals_hold_the_distance_from_few_documents_on(documents, texts):
    """1.96 errors of the distance itself, which is far from normal, hold it in fewer."""
    assert cover_distances(np.random.default_rng(3), documents, texts, 300) >= 0.86


def test_models_that_differ_on_one_document_have_a_wide_error():
    logs = np.zeros((2, 24))
    logs[0, :4] = [1.0, -1.0, 2.0, -2.0]
    found = compute_likelihood_distances(logs, np.repeat(np.arange(6), 4))
    assert found.se[0, 1] == pytest.approx(found.values[0, 1], rel=0.2)
    assert say_interval(0.5, 0.2, 4, 3, 0.95) == "no interval from 4 documents"
    assert say_interval(0.5, 0.1, 12, 11, 0.95) == "95 % interval 0.322 to 0.777 over 12 documents"
    # of which one has most of the texts
    assert say_interval(0.5, 0.1, 12, 1, 0.95) == "95 % interval 0.0394 to 6.35 over 12 documents"


def test_two_axes_keep_distances_that_lie_in_a_plane():
    draw = np.random.default_rng(0)
    logs = draw.normal(size=(5, 2)) @ draw.normal(size=(2, 80)) + draw.normal(size=80)
    places, shares = place_models(logs)
    wanted = compute_likelihood_distances(logs, np.arange(80)).values
    np.testing.assert_allclose(np.square(places[:, None] - places).sum(-1), wanted, atol=1e-9)
    assert shares.sum() == pytest.approx(1)
    assert place_models(logs[:2])[0].shape == (2, 2)


@pytest.mark.slow
def test_close_models_are_as_far_apart_as_their_divergence(tiny):
    """Half the variance over texts that a model wrote is its KL from another, which the mean difference estimates."""
    torch.manual_seed(0)
    start = torch.full((600, 1), 11)
    ids = tiny.generate(start, do_sample=True, min_new_tokens=23, max_new_tokens=23, top_k=0, pad_token_id=0).numpy()
    texts = sequences_of(ids, np.tile(np.arange(24), (600, 1)))
    source = transformers(path=str(TINY_A))
    own = log_likelihoods(tiny, source, texts)
    last = 0.0
    for size in (0.01, 0.03, 0.1):
        other = log_likelihoods(noised(tiny, size), source, texts)
        found = compute_likelihood_distances(np.stack([own, other]), np.arange(600))
        divergence = own - other
        error = divergence.std() / 600**0.5
        assert (
            abs(found.values[0, 1] - divergence.mean()) < 3 * np.hypot(error, found.se[0, 1]) + 0.1 * found.values[0, 1]
        )
        assert found.values[0, 1] > 4 * last
        last = found.values[0, 1]
    assert last > 0.05


@pytest.mark.slow
def test_a_run_finds_copies_and_orders_noise(repsim, newest, tiny, tmp_path):
    """Equal models are 0 apart, and more noise is further."""
    for name, size in (("same", 0.0), ("little", 0.02), ("much", 0.2)):
        noised(tiny, size).save_pretrained(tmp_path / name)
        AutoTokenizer.from_pretrained(TINY_A).save_pretrained(tmp_path / name)
    others = ", ".join(
        f"{name}: {{kind: transformers, path: {tmp_path / name}}}" for name in ("same", "little", "much")
    )
    code, _, err = repsim(*WORDS, "data=embedded", "model=[tiny_a]", f"+model={{{others}}}")
    assert code == 0, err
    found = reader.read_results(newest())
    (measured,) = found.measures
    values = reader.read_array(newest(), measured.matrices[0].values)
    assert values[0, 1] == 0
    assert 0 < values[0, 2] < values[0, 3]
    assert found.tables[NEAREST].rows[0][1].startswith("tiny_a with same: 0 (")
    assert "half the variance of the difference of log-likelihoods" in found.tables[NEAREST].rows[1][1]
    assert found.tables[NEAREST].rows[0][1].endswith("texts), the same to the bit")


def test_distances_are_told_apart_by_the_errors_of_their_logarithms():
    """A distance near nothing is not as large as one whose error is half of it, as their intervals say."""
    values, errors = np.zeros((2, 3, 3))
    for (a, b), value, share in (((0, 1), 1e-10, 0.2), ((0, 2), 3000.0, 0.45), ((1, 2), 2500.0, 0.45)):
        values[a, b], errors[a, b] = value, share * value
    side = Side(model="all", layers=["a", "b", "c"])
    matrix = Matrix(rows=side, columns=side, values="values", se="errors", n=40)
    whole = Measured(name="likelihoods", label="nats", settings={}, estimate={}, card={}, matrices=[matrix])
    run = in_memory({"values": values, "errors": errors}, measures=[whole], about={"documents": 40})
    closest, furthest = (sentence for _, sentence in say_answers(run))
    assert closest.startswith("a with b: 1e-10 nats (")
    assert "told apart" not in closest
    assert furthest.endswith("; b with c is not told apart from it")


def test_the_map_names_models_at_one_place_apart_from_each_other():
    rows = [["a", 1.0, 2.0, 0.9, 0.1], ["b", 1.0, 2.0, 0.9, 0.1], ["c", -2.0, 0.0, 0.9, 0.1]]
    run = in_memory({}, tables={MAP: Table(columns=["model", "first", "second", "share", "rest"], rows=rows)})
    ((_, draw),) = draw_figures(run, whole=False)
    (axes,) = draw().axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b", "c"]
    assert not [text.get_text() for text in axes.texts]


@pytest.mark.slow
def test_models_of_other_tokenizers_read_the_same_words(repsim, newest):
    other = "+model.other={kind: random, tokenizer: word_pieces, config: {model_type: gpt2, n_embd: 16, n_layer: 1, n_head: 2}}"
    code, _, err = repsim(*WORDS, "data=embedded", "model=[tiny_a]", other)
    assert code == 0, err
    found = reader.read_results(newest())
    table = found.tables["likelihoods of models"]
    assert len(set(table.column("words"))) == len(set(table.column("texts"))) == 1
    logs = reader.read_array(newest(), found.matrices[LIKELIHOODS].values)
    assert logs.shape == (2, table.rows[0][4])
    assert (logs < 0).all()


@pytest.mark.parametrize(
    ("models", "unit", "match"),
    [
        (["tiny_a"], "word", r"model: likelihoods are compared between models, got 1; select two or more"),
        (["tiny_a", "tiny_b"], "token", r"extract.unit: texts are to be the same words for every tokenizer, got token"),
    ],
)
def test_what_is_refused(models, unit, match):
    with pytest.raises(BadInput, match=match):
        Likelihoods(
            model={label: transformers(path=str(ASSETS / "models" / label)) for label in models},
            data=registry.data.get("embedded_text").function(),
            extract=Extract(hook_points=["resid_post"], unit=unit),
            hardware=Hardware(),
            seed=0,
        )


def test_copies_of_a_text_count_as_one():
    ids = np.array([[5, 6], [7, 8], [5, 6], [5, 6], [9, 8]])
    texts = sequences_of(ids, np.zeros_like(ids))
    texts = replace(texts, document=np.repeat(np.arange(5), 2).reshape(5, 2), documents=5)
    said: list[str] = []
    assert number_documents(texts, said.append, "data").tolist() == [0, 1, 0, 0, 4]
    assert said[0].startswith("data: 2 of 5 texts are copies of others")
    assert number_documents(texts.take(np.array([0, 1, 4])), said.append, "data").tolist() == [0, 1, 4]
    assert len(said) == 1


def test_few_texts_and_other_models_are_refused(repsim, tmp_path):
    (tmp_path / "copies.csv").write_text("text\n" + "the cat runs over the house\n" * 40)
    copied = ("data=table", f"data.path={tmp_path / 'copies.csv'}", "data.text=text")
    code, _, err = repsim(*WORDS, *copied, "model=[tiny_a,tiny_b]")
    assert (code, "data: 20 different texts of two words or more are needed, got 1;" in err) == (2, True), err
    code, _, err = repsim(*WORDS, "data=embedded", "model=[tiny_a,tiny_b]", "extract.sequences=9")
    assert code == 2
    assert "data: 20 different texts of two words or more are needed, got 9; read more (extract.sequences)" in err
    encoder = "+model.other={kind: random, config: {model_type: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}}"
    code, _, err = repsim(*WORDS, "data=embedded", "model=[tiny_a]", encoder)
    assert code == 2
    assert "model.other: it has no output head for the next token; use a causal language model" in err
