"""Sentences of findings on drawn numbers, of which many are missing or equal: none says None or nan, and two layers never
have one name."""

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from repsim_cli.findings.answering import find_closest_columns, find_near_columns, make_layer_namer, say_closest
from repsim_cli.findings.budget import say_most_shared, say_neighbours
from repsim_cli.findings.driving import say_driving
from repsim_cli.findings.sentences import say_how_alike
from repsim_cli.runs.behind import Kept
from repsim_cli.runs.content import (
    BUDGET_COLUMNS,
    BY_TOKEN_COLUMNS,
    CHANCE,
    P_BEYOND,
    Matrix,
    Measured,
    Results,
    Side,
    Table,
)  # fmt: skip
from repsim_cli.studies.barycentre.columns import FROM_COLUMNS
from repsim_cli.studies.barycentre.finding import say_ends
from repsim_cli.studies.dictionaries.columns import (
    ALL_SIDES,
    BETWEEN_SIDES,
    COLUMNS,
    DEAD,
    EXPLAINED,
    LATENTS_COLUMNS,
    MORE,
    RECOVERED,
    SIDES_COLUMNS,
)
from repsim_cli.studies.dictionaries.finding_crosscoder import say_answers as say_sides
from repsim_cli.studies.dictionaries.finding_transfer import say_dictionary_worth
from repsim_cli.studies.layers.columns import DOCUMENTS, DOCUMENTS_WITHOUT, OF_LAYER_COLUMNS
from repsim_cli.studies.layers.finding import say_answers as say_layers
from repsim_cli.studies.tuned.finding import ChangedBlocks, say_changed_blocks, say_restored_effect

TIES = st.sampled_from([0.0, 0.25, 1.0])
NUMBERS = TIES | st.floats(-1, 1)
ERRORS = TIES | st.floats(0, 1)
MAYBE = st.none() | NUMBERS
POINTS = (
    "embed",
    "final_norm",
    *(f"{point}@{block}" for point in ("resid_post", "attn_out", "q") for block in (0, 1, 11)),
    "q@1.h2",
)
NAMES = st.lists(st.sampled_from(POINTS), min_size=1, max_size=6, unique=True)
CARD = {"larger_is_closer": True, "symmetric": True, "bounds": [None, None], "label": "L"}


def check(text):
    """Says of a sentence that every word of it is one."""
    assert not re.search(r"None|nan|inf\b|  |\(\)|, ,|; ;", text), text


@given(NAMES)
def test_two_layers_never_have_one_name(names):
    word, _ = make_layer_namer(names)
    assert len({word(name) for name in names}) == len(names)


@st.composite
def rows_of_budget(draw):
    rows = []
    twin = draw(st.sampled_from(["all", "none", "some"]))
    for layer in draw(NAMES):
        row = dict.fromkeys(BUDGET_COLUMNS) | {"model a": "a", "model b": "b", "layer a": layer, "layer b": layer}
        if draw(st.booleans()):
            row["layer b"] = draw(st.sampled_from(POINTS))
        if draw(st.booleans()) or not rows:
            of = ["rest"] if twin == "none" or (twin == "some" and draw(st.booleans())) else ["untrained", "learned"]
            known = draw(st.booleans())
            for part in ["value", "token", *of, "alone"]:
                row |= {part: draw(NUMBERS), f"± {part}": draw(ERRORS) if known else None}
            row[P_BEYOND] = draw(st.none() | st.floats(0, 1))
        rows.append(row)
    return rows


@given(rows_of_budget())
def test_what_similarity_is_made_of(rows):
    said = say_most_shared(rows)
    check(said)
    assert bool(said) == any(row["± value"] is not None for row in rows)
    lacking = dict.fromkeys(("value", "± value"))
    alone = [say_most_shared([row if row is only else row | lacking for row in rows]) for only in rows]
    places = [re.search(" in (.*), .* is the token", each)[1] for each in alone if each]
    pairs = [(row["layer a"], row["layer b"]) for row, each in zip(rows, alone, strict=True) if each]
    assert len(set(places)) == len(set(pairs))


@given(st.data())
def test_shared_neighbours(data):
    rows = []
    for layer in data.draw(NAMES):
        numbers = [data.draw(NUMBERS) for _ in range(4)] if data.draw(st.booleans()) else [None] * 4
        rows.append(dict(zip(BY_TOKEN_COLUMNS, ["mutual_knn", "a", "b", layer, layer, *numbers], strict=True)))
    check(say_neighbours(rows))


@st.composite
def maps(draw, rows, columns):
    shape = (len(rows), len(columns))
    cells = st.just(float("nan")) | NUMBERS
    return np.array(draw(st.lists(cells, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))).reshape(shape)


@given(st.data())
def test_two_models(data):
    """Sentences of two measures, with chance, without it and with it in some cells, and with the rows behind."""
    rows = data.draw(NAMES)
    columns = rows if data.draw(st.booleans()) else data.draw(NAMES)
    arrays, measures = {}, []
    for name in "mn":
        arrays |= {what + name: data.draw(maps(rows, columns)) for what in ("values", "chance", "se")}
        beside = data.draw(st.sampled_from([{}, {"details": {CHANCE: f"chance{name}"}}]))
        noted = {
            "units": "rows",
            "spread": data.draw(st.none() | ERRORS),
            "mean": "exact",
            "orders": 8,
            "scatter": None,
        }
        matrix = Matrix(rows=Side(model="a", layers=rows), columns=Side(model="b", layers=columns), values=f"values{name}", **beside)  # fmt: skip
        card = CARD | {"larger_is_closer": data.draw(st.booleans())}
        measures.append(Measured(name=name, label=name, settings={}, estimate={}, card=card, matrices=[matrix], chance=noted if beside else None))  # fmt: skip
    for said in say_how_alike(Results(study="similarity", measures=measures), arrays.__getitem__, "a", "b"):
        check(said)
    values = arrays["valuesm"]
    near = find_near_columns(values, True, data.draw(st.sampled_from([0.0, 0.2, 2.0])))
    closest = find_closest_columns(values, larger=True)
    check(say_closest(("a", "b"), rows, columns, closest, near))
    check(say_closest(("a", "b"), rows, columns, closest, None))


@given(st.data())
def test_layers_that_stand_out(data):
    layers = data.draw(NAMES)
    of = [
        {"model": "m", "layer": layer} | {column: data.draw(MAYBE) for column in OF_LAYER_COLUMNS[2:]}
        for layer in layers
    ]
    errors = [{column: data.draw(st.none() | ERRORS) for column in OF_LAYER_COLUMNS[2:]} for _ in layers]
    about = {name: data.draw(st.none() | st.integers(1, 50)) for name in (DOCUMENTS, DOCUMENTS_WITHOUT)}
    for _, said in say_layers({"m": of}, {"m": errors}, about):
        check(said)


@given(st.data())
def test_distances_from_a_common_shape(data):
    count, known = data.draw(st.integers(2, 6)), data.draw(st.booleans())
    rows = [
        dict(
            zip(
                FROM_COLUMNS,
                ["0.5", f"m{i}", "resid_post@0", data.draw(TIES), data.draw(ERRORS) if known else None, 0.9],
                strict=True,
            )
        )
        for i in range(count)
    ]
    said = say_ends(rows, 9)
    check(said)
    if (ends := re.match(r"(\w+) is closest .*, (\w+) furthest", said)) is not None:
        assert ends[1] != ends[2]


@given(st.data())
def test_sides_of_a_crosscoder(data):
    sides, latents = [], []
    for side in ("a", "b", ALL_SIDES, BETWEEN_SIDES):
        count = data.draw(st.sampled_from([0, 3]))
        never = data.draw(ERRORS) if count else None
        shared = [data.draw(NUMBERS), data.draw(NUMBERS)] if side == ALL_SIDES and count else [None, None]
        latents.append([side, count, count / 9, never, None, data.draw(st.none() | ERRORS), *shared])
        sides.append(
            [side, "m", "resid_post@0", data.draw(NUMBERS), data.draw(st.none() | ERRORS), data.draw(NUMBERS), 9, 3]
        )
    tables = Table(columns=SIDES_COLUMNS, rows=sides[:2]), Table(columns=LATENTS_COLUMNS, rows=latents)
    for _, said in say_sides(*tables):
        check(said)


@given(st.data())
def test_a_dictionary_in_a_model(data):
    def drawn(recovered):
        row = dict.fromkeys(COLUMNS) | {"documents": 8, DEAD: data.draw(ERRORS)}
        for score in [EXPLAINED, *[RECOVERED] * recovered]:
            row |= {score: data.draw(NUMBERS), f"{score} shuffled": data.draw(NUMBERS), MORE: 0.1}
            apart = data.draw(MAYBE)
            row |= {
                f"{score} minus base": apart,
                f"± {score} minus base": None if apart is None else data.draw(st.none() | ERRORS),
            }
        return row

    check(say_dictionary_worth(drawn(data.draw(st.booleans())), drawn(data.draw(st.booleans()))))


@given(st.data())
def test_blocks_that_changed(data):
    count = data.draw(st.integers(1, 5))
    kinds = data.draw(st.lists(st.sampled_from(["yes", "no", "rounded"]), min_size=count, max_size=count))
    numbers = st.lists(ERRORS, min_size=count, max_size=count)
    maybe = st.lists(st.none() | ERRORS, min_size=count, max_size=count)
    blocks = ChangedBlocks(
        own=data.draw(numbers), carried=data.draw(numbers), weights=data.draw(maybe), rounding=data.draw(numbers),
        above=[i for i, kind in enumerate(kinds) if kind == "yes"], rounded=[i for i, kind in enumerate(kinds) if kind == "rounded"],
        restored=data.draw(maybe),
    )  # fmt: skip
    outside = data.draw(st.lists(st.tuples(st.sampled_from(["embed", "head"]), st.none() | ERRORS), max_size=2))
    said = say_changed_blocks(blocks, outside)
    check(said)
    check(say_restored_effect(blocks))


@given(st.data())
def test_rows_behind_a_similarity(data):
    rows, near = 6, 2
    layers = [[model, layer] for model in "ab" for layer in data.draw(NAMES)]
    pairs = [
        [i, j]
        for i, (model, _) in enumerate(layers)
        for j, (other, _) in enumerate(layers)
        if (model, other) == ("a", "b")
    ]
    shares = np.array([[data.draw(ERRORS) for _ in range(rows)] for _ in pairs], np.float32)
    nearest = np.array([[[(row + 1) % rows, (row + 2) % rows]] * 1 for row in range(rows)]).reshape(rows, near)
    tokens = data.draw(st.none() | st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
    pieces = data.draw(st.lists(st.sampled_from([" a", "b", " ", "'", "\x1b"]), min_size=rows, max_size=rows))
    about = {"layers": layers, "unit": "token", "tokens": tokens, "without": "keep_texts=true",
             "texts": data.draw(st.sampled_from([[], [{"pieces": pieces, "rows": list(range(rows))}]]))}  # fmt: skip
    arrays = {
        "pairs": np.array(pairs),
        "values": shares.sum(1),
        "shares": shares,
        "nearest": np.stack([nearest] * len(layers)),
    }
    for said in say_driving(Kept(about, arrays), "a", "b"):
        check(said)


def test_layers_of_one_block_have_two_names_in_what_similarity_is_made_of():
    numbers = dict.fromkeys(BUDGET_COLUMNS, 0.25) | {P_BEYOND: None, "model a": "a", "model b": "b"}
    best, other = (
        numbers | {"layer a": layer, "layer b": layer, "learned": x}
        for layer, x in (("attn_out@1", 0.5), ("q@1", 0.25))
    )
    assert say_most_shared([best, other]).startswith("of 0.25 in attn_out@1, ")
    assert say_most_shared([best]).startswith("of 0.25 in block 1, ")
