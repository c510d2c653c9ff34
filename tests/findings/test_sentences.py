"""What two models come to in a sentence: ties, odd layers, layers without a value, layers that match others better."""

import numpy as np
import pytest
import scipy

from repsim_cli.findings.answering import EVERYWHERE, WITHIN_ERROR, Sides, describe_depth_trend
from repsim_cli.findings.extremes import compare_width
from repsim_cli.findings.sentences import (
    BEYOND,
    BLIND,
    NOTHING,
    UNJUDGED,
    choose_digits,
    find_displaced_layers,
    find_noise,
    say_how_alike,
)
from repsim_cli.findings.student import find_t_quantile
from repsim_cli.runs.content import CHANCE, Matrix, Measured, Results, Side

CARD = {"larger_is_closer": True, "symmetric": True, "bounds": [0.0, 1.0], "label": "L"}
NAN = np.nan


def say(
    *maps, larger=True, names="xyzwv", columns=None, chance=0.001, spread=0.0002, scatter=0.0002, beside=None, null=None,
    back=None, order="ab", floor=None, **more,
):  # fmt: skip
    """The sentences on models a and b of these maps, each of another measure. beside: what every cell has, by name.
    back: of one measure that has a direction, the map from b to a. order: which model is named first. more: what else is
    known of chance."""
    arrays, measures = {}, []
    for number, values in enumerate(map(np.array, maps)):
        arrays |= {f"{number}": values.astype(float), f"chance{number}": np.full(values.shape, chance)}
        rows, others = names[: len(values)], (columns or names)[: values.shape[1]]
        matrix = Matrix(
            rows=Side(model="a", layers=list(rows)), columns=Side(model="b", layers=list(others)),
            values=f"{number}", details={CHANCE: f"chance{number}"}, **{what: what for what in beside or {}},
        )  # fmt: skip
        arrays |= {what: np.full(values.shape, cell) for what, cell in (beside or {}).items()}
        card = CARD | {"larger_is_closer": larger, "label": f"L{number or ''}", "symmetric": back is None}
        matrices = [matrix]
        if back is not None:
            arrays |= {"back": np.array(back, float), "chance back": np.full(np.shape(back), chance)}
            details = {CHANCE: "chance back"}
            matrices.append(Matrix(rows=matrix.columns, columns=matrix.rows, values="back", details=details))
        measures.append(
            Measured(
                name=f"m{number}", label=f"m{number}", settings={}, estimate={}, card=card, matrices=matrices,
                chance={"units": "rows", "spread": spread, "mean": "exact", "orders": 8, "scatter": scatter} | more,
                null=null, floor=None if floor is None else {"unit": "token", "value": floor, "of": "two tables"},
            )
        )  # fmt: skip
    return list(say_how_alike(Results(study="similarity", measures=measures), arrays.__getitem__, *order))


def test_layers_that_are_as_alike_within_error_are_named():
    """The best leads the next by less than four of its errors, and the others by more."""
    (said,) = say(square(0.5, 0.9, 0.88, 0.5), scatter=0.02)
    assert "most alike at y: L 0.90 at y and 0.50 at x and w; as alike within error: z;" in said
    (said,) = say(square(0.5, 0.9, 0.6, 0.5), scatter=0.02)
    assert "within error" not in said


@pytest.mark.parametrize(
    ("floor", "larger", "within"),
    [(0.95, True, True), (0.85, True, False), (None, True, False), (0.2, False, True), (0.4, False, False)],
)
def test_models_that_are_no_more_alike_than_by_the_token_alone(floor, larger, within):
    """The sentence says first what a title may quote."""
    (said,) = say(square(0.3, 0.5, 0.7, 0.9), floor=floor, larger=larger, chance=0.001 if larger else 2.0)
    assert (", and are no more alike than the token alone would make them: " in said) is within
    (said,) = say(square(0.3, 0.5, 0.7, 0.9), floor=0.95, chance=0.99)
    assert "token alone would" not in said  # of models that have nothing in common


@pytest.mark.parametrize(("scatter", "otherwise"), [(0.0002, True), (0.05, False)])
def test_a_measure_whose_ends_are_alike_within_error_says_nothing_else(scatter, otherwise):
    first, second = say(square(0.3, 0.5, 0.7, 0.9), square(0.9, 0.5, 0.7, 0.8), scatter=scatter)
    assert "more alike with depth" in first
    assert ("otherwise" in second) is otherwise


def square(*diagonal, others=0.3):
    values = np.full((len(diagonal),) * 2, float(others))
    np.fill_diagonal(values, diagonal)
    return values


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (square(1, 1, 1, 1), "about as alike at every depth: L 1.00 at every layer;"),
        (square(1, 1, 1, 0), "most alike at all layers but w: L 1.00 there and 0.00 at w; closer to another layer: w;"),
        (square(0, 1, 1, 1, others=0), "most alike at all layers but x: L 1.00 there and 0.00 at x;"),
        (square(1, 0.5, 0.6, 1), "most alike at x and w: L 1.00 there and 0.50 at y;"),
        (square(0.5, 0.9, 0.8, 0.5), "most alike at y: L 0.90 at y and 0.50 at x and w;"),
        (square(0.5, 0.9, 0.6, 0.7), "most alike at y: L 0.90 at y and 0.50 at x;"),
        (square(0.5, 0.6, 0.7, 0.8), "more alike with depth: L 0.50 at x and 0.80 at w;"),
        (square(0.9, 0.8, 0.7, 0.5, 0.6), "less alike with depth: L 0.90 at x and 0.60 at v, lowest 0.50 at w;"),
        (square(0.101, 0.1045, 0.101, others=0), "about as alike at every depth: L 0.10 at every layer;"),
        (square(0.84), "can be compared at one layer, x: L 0.84;"),
    ],
)
def test_the_headline_names_ties_and_odd_layers(values, said):
    assert say(values) == [f"a and b {'' if said.startswith('can') else 'are '}{said} chance at most 0.00"]


def test_layers_without_a_value_are_named():
    values = square(1, 1, 1, 1)
    values[:, 2] = NAN
    assert say(values) == [
        "a and b are about as alike at every depth: L 1.00 at every layer (no value for z of b); chance at most 0.00"
    ]


def test_what_is_said_does_not_depend_on_which_model_is_named_first():
    """Cases are: only the layers of one are closest to others; models have other layers; a measure has a
    direction."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.random((4, 4)).round(2) * rng.integers(0, 2, (4, 1))
        there, back = (say(values, order=order, chance=0.0)[0].split(":")[0] for order in ("ab", "ba"))
        assert there.removeprefix("a and b") == back.removeprefix("b and a")
    falls, rises = square(0.9, 0.7, 0.5, 0.3, others=0.1), square(0.3, 0.5, 0.7, 0.9, others=0.1)
    for order, numbers in (("ab", "0.90 at x and 0.30 at w"), ("ba", "0.30 at x and 0.90 at w")):
        (said,) = say(falls, back=rises, order=order)
        a, b = order
        how = {"ab": "less", "ba": "more"}
        assert said.startswith(
            f"{a} and {b} are {how[order]} alike with depth from {a} to {b}, and are {how[order[::-1]]} alike with "
            f"depth back: L {numbers}; chance at most 0.00; back L "
        )
    assert " from " not in say(falls, back=falls)[0]
    assert say(falls, back=np.full((4, 4), NAN)) == say(falls)  # one direction alone has values


def test_layers_that_are_closer_to_others_than_to_their_like():
    turned = square(1, 1, 1, 1)[::-1] * 0.9
    (said,) = say(turned)
    assert said == (
        "a and b often have their closest layer at another depth: L 8 of 8 layers are closest to another one, x of "
        "a to w of b with 0.90; the same layers have 0.27 at every layer; chance at most 0.00"
    )
    (said,) = say(1 - turned, larger=False, chance=1.0)
    assert "x of a to w of b with 0.10; the same layers have 0.73 at every layer (smaller is closer);" in said
    (said,) = say(turned, columns="pqrs")  # layers of other names have no like
    assert said == (
        "a and b are about as alike at every depth: best matches, L 0.90 at every layer of a; chance at most 0.00"
    )
    near = square(0.8, 0.8, 0.8, 0.8, others=0.81)  # a lead that the noise of values or rounding makes is none
    assert say(near)[0].startswith("a and b are about as alike at every depth: L 0.80 at every layer;")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (square(0.8, 0.7, 0.6, 0.5), "L1 says otherwise, that they are less alike with depth: L1 0.80 at x and 0.50"),
        (square(0.5, 0.9, 0.7, 0.8), "L1 says that they are most alike at y: L1 0.90 at y and 0.50 at x;"),
        (square(0.9, 0.5, 0.7, 0.8), "L1 says otherwise, that they are most alike at x: L1 0.90 at x and 0.50 at y;"),
        (square(*[0.0012] * 4, others=0), f"L1 says otherwise, that they {NOTHING}: L1 0.00120 at every layer; chance"),
        (square(0.6, 0.7, 0.8, 0.9), "L1 agrees: L1 0.60 at x and 0.90 at w;"),
    ],
)
def test_what_other_measures_say_is_a_sentence(other, said):
    assert say(square(0.5, 0.6, 0.7, 0.8), other)[1].startswith(said)


def test_one_layer_agrees_with_nothing():
    assert say([[0.84]], [[0.5]])[1] == "L1 0.50; chance at most 0.00"


def test_what_changes_with_depth_is_relative_to_the_values_and_to_their_noise():
    """0.0827 to 0.0961 is more of a change than 0.83 to 0.86, which is one too; errors of their size hide both."""
    for values in ([0.0827, 0.0861, 0.0903, 0.0961], [0.83, 0.84, 0.85, 0.86]):
        assert say(square(*values, others=0))[0].startswith("a and b are more alike with depth: ")
        noisy = say(square(*values, others=0), spread=(values[-1] - values[0]) / 3)
        assert noisy[0].startswith("a and b are as alike at every depth within error: ")


@pytest.mark.parametrize(
    ("value", "chance", "larger", "said"),
    [
        (17.61, 17.58, True, "17.61; chance 17.58 in the mean"),
        (0.9637, 0.9561, True, "0.964; chance 0.956 in the mean"),
        (1.412, 1.408, False, "1.412 (smaller is closer); chance 1.408 in the mean"),
        (1.0, 1e-6, True, "1.00; chance 0.00 in the mean"),
        (33_406_992.0, 33_006_992.0, True, "33,406,992; chance 33,006,992 in the mean"),
        (3e-4, 2.6e-9, True, "0.000300; chance 0.000000 in the mean"),
    ],
)
def test_a_value_and_its_chance_have_the_same_digits(value, chance, larger, said):
    assert say([[value]], chance=chance, larger=larger, spread=None) == [
        f"a and b can be compared at one layer, x: L {said}"
    ]


def test_digits_without_any_chance():
    sides = Sides("a", "b", ["x"], ["x"], np.array([[0.5]]), None, True)
    measured = Measured(name="m", label="m", settings={}, estimate={}, card=CARD, matrices=[])
    assert choose_digits(measured, sides) == "z,.2f"


@pytest.mark.parametrize(
    ("larger", "chance", "beyond", "within", "said"),
    [(True, 0.0, 0.5, 0.11, "chance at most 0.12"), (False, 1.0, 0.5, 0.89, "chance at least 0.88")],
)
def test_chance_reaches_as_far_as_its_spread_says(larger, chance, beyond, within, said):
    """One pair and eight pairings of known mean: 0.002 of t with 8 degrees of freedom are beyond 3.991."""
    assert say([[beyond]], larger=larger, chance=chance, spread=0.03)[0].endswith(said)
    assert NOTHING in say([[within]], larger=larger, chance=chance, spread=0.03)[0]


@pytest.mark.parametrize(("layers", "batches"), [(2, 2), (4, 2), (8, 2), (8, 3), (4, 8)])
def test_layers_that_are_as_alike_are_seldom_told_apart_by_errors_over_few_batches(layers, batches):
    """Errors of a value are those of both layers and its own; 400 draws: 0.05 and three errors of a share."""
    rng, told = np.random.default_rng(10 * layers + batches), 0
    for _ in range(400):
        of_batches = 0.5 + 0.1 * sum(
            rng.normal(size=(batches, *shape)) for shape in ((layers, 1), (1, layers), (layers, layers))
        )
        sides = Sides("a", "b", names := [f"{i}" for i in range(layers)], names, of_batches.mean(0), None, True)
        sides = sides._replace(se=of_batches.std(0, ddof=1) / batches**0.5)
        measured = Measured(name="m", label="m", settings={}, estimate={"batches": batches}, card=CARD, matrices=[])
        noise = find_noise(measured, sides)
        trend = describe_depth_trend(sides.values.diagonal().tolist(), True, noise)
        told += trend not in (EVERYWHERE, WITHIN_ERROR) or bool(find_displaced_layers(sides, noise))
    assert told / 400 <= 0.05 + 3 * 0.011


@pytest.mark.parametrize("known", [{}, {"freedom": 4}])
def test_scatter_of_few_degrees_of_freedom_tells_less(known):
    values = np.array([[0.5, 0.4], [0.4, 0.6]])
    sides = Sides("a", "b", "xy", "xy", values, None, True)
    measured = Measured(
        name="m", label="m", settings={}, estimate={}, card=CARD, matrices=[], chance={"scatter": 0.01, **known}
    )
    assert find_noise(measured, sides) == pytest.approx(0.01 * compare_width(3, known.get("freedom")))
    measured.chance["spread"] = 0.1
    assert find_noise(measured, sides) == 0.1


@pytest.mark.parametrize("known", [{"scatter": 0.04}, {"scatter": 1e-5, "closest": 0.04}])
def test_chance_reaches_as_far_as_the_drawn_documents_say(known):
    """Pairings of few documents of other lengths hardly differ: 0.002 of t with 11 degrees of freedom are beyond
    3.633."""
    for spread in (1e-4, None):
        assert "chance at most 0.15" in say([[0.14]], chance=0.001, spread=spread, documents=12, **known)[0]
        assert NOTHING in say([[0.14]], chance=0.001, spread=spread, documents=12, **known)[0]
        assert NOTHING not in say([[0.2]], chance=0.001, spread=spread, documents=12, **known)[0]


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 15, 64])
@pytest.mark.parametrize("p", [0.2, 0.002, 2e-6])
def test_the_quantile_is_that_of_student(freedom, p):
    assert find_t_quantile(p, freedom) == pytest.approx(scipy.stats.t.isf(p, freedom), rel=1e-8)


@pytest.mark.parametrize("larger", [True, False])
def test_a_test_decides_where_there_is_one_that_holds(larger):
    null = {"alpha": 0.05}
    for p, nothing in ((0.2, True), (0.01, False)):
        beside = {"p_family": p, "se": 0.5}
        told = say([[0.3]], larger=larger, beside=beside, null=null, spread=1e-5)[0]
        assert (NOTHING in told) == nothing
        untold = say([[0.5]], larger=True, beside=beside, null=null | {"not_valid": ["rows are alike"]})[0]
        assert NOTHING not in untold
        assert "which is too little here (see the warnings)" in untold
        assert "too little" not in told
    assert NOTHING not in say([[0.5]], beside={"se": 0.5}, null=null)[0]


@pytest.mark.parametrize(
    ("value", "chance", "spread", "said"),
    [
        (0.97, 0.135, 0.3, f"{BLIND}: L 0.97 at every layer; chance at most 1.00"),  # no value could be beyond it
        (1.0, 1.0, 0.0001, f"{BLIND}: L 1.00 at every layer; chance at most 1.00"),  # rows that are all alike
        (0.2, 0.135, 0.3, f"{BLIND}: L 0.20 at every layer; chance at most 1.00"),
        (0.2, 0.135, 0.03, f"{NOTHING}: L 0.20 at every layer; chance at most 0.25"),
    ],
)
def test_rows_that_cannot_tell_are_said(value, chance, spread, said):
    (line,) = say([[value]], chance=chance, spread=spread)
    assert line.startswith(f"a and b {said}".replace(" at every layer", " at x")), line
    assert "otherwise" not in say([[value]], [[0.9]], chance=chance, spread=0.3)[1]


def test_rows_that_a_test_cannot_tell_are_said():
    """Few documents have no small p, however alike the models are."""
    said = say([[0.8]], beside={"p_family": 0.3}, null={"alpha": 0.05})[0]
    assert said.startswith(f"a and b {BLIND}: L 0.80")
    said = say([[0.9]], beside={"p_family": 0.3}, null={"alpha": 0.05}, larger=False, chance=0.8)[0]
    assert said.startswith(f"a and b {NOTHING}: L 0.90")  # further apart than chance


@pytest.mark.parametrize(
    ("scatter", "said"),
    [
        (0.005, "are more alike with depth: L 0.60 at x and 0.66 at w;"),
        (0.02, "are as alike at every depth within error: L 0.60 at x and 0.66 at w;"),
        (None, f"{BEYOND}: L 0.60 at x and 0.66 at w, error not known;"),
    ],
)
def test_what_differs_by_the_drawn_documents_is_no_trend(scatter, said):
    assert say(square(0.60, 0.62, 0.63, 0.66), scatter=scatter)[0].startswith(f"a and b {said}")


def test_where_no_error_is_known_numbers_are_said_alone():
    """Neither where layers are most alike, nor which are closer to others, nor whether measures agree."""
    unknown = {"scatter": None, "spread": None}
    turned = square(0.9, 0.5, 0.7)[::-1]
    assert say(turned, turned, **unknown) == [
        f"a and b {UNJUDGED}: L 0.30 at x and 0.30 at z, highest 0.50 at y; chance 0.00 in the mean",
        "L1 0.30 at x and 0.30 at z, highest 0.50 at y; chance 0.00 in the mean",
    ]
    known, other = say(turned, square(0.5, 0.9, 0.7), scatter=None)
    assert known.startswith(f"a and b {BEYOND}: L 0.30 at x and 0.30 at z, highest 0.50 at y, error not known; chance ")
    assert other.startswith("L1 agrees: L1 0.50 at x and 0.70 at z, highest 0.90 at y, error not known; chance ")
    assert say(square(0.5, 0.5, 0.5), **unknown)[0].startswith("a and b are about as alike at every depth: L 0.50 at")
    both = say(turned, back=square(0.5, 0.5, 0.5), **unknown)[0]
    assert both.startswith(f"a and b {UNJUDGED}: L 0.30 at x and 0.30 at z, highest 0.50 at y; chance ")
    assert "; back L 0.50 at every layer; chance " in both
