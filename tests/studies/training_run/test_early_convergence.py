"""Early convergence and large rank: when a curve is early, the table, claims."""

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from repsim_cli.base.errors import BadInput
from repsim_cli.engine.curves import make_curve
from repsim_cli.findings.claims import UNTESTABLE, find_claims
from repsim_cli.studies.training_run.finding_convergence import take_values_at_share
from repsim_cli.studies.training_run.finding_ranks import (
    Ranks,
    compute_matthews,
    find_early_layers,
    find_large_layers,
    tabulate_matthews,
)


def made(values, quantity="cka to last", point="attn_out", model="m", parameters=10, steps=(0, 10, 20, 100)):
    """A curve; values: a list per layer, None in all layers for a gap."""
    by_step = {step: list(column) for step, column in zip(steps, zip(*values, strict=True), strict=True) if None not in column}  # fmt: skip
    layers = [f"{point}@{i}" for i in range(len(values))]
    return make_curve(quantity=quantity, label="", point=point, model=model, parameters=parameters, steps=steps, layers=layers, values=by_step)  # fmt: skip


def test_early_is_reached_within_the_share_and_large_is_at_the_end():
    one = made([[0.1, 0.45, 0.2, 1.0], [0.2, 0.44, 0.9, 1.0], [0.5, 0.1, 0.1, 1.0]])
    assert find_early_layers(one, 0.45, 0.1) == [True, False, True]
    assert find_early_layers(one, 0.45, 0.2) == [True, True, True]
    assert find_early_layers(made([[0.5, 1.0]], steps=(50, 100)), 0.45, 0.1) is None
    assert find_early_layers(made([[None, 0.3, 1.0]], steps=(0, 10, 100)), 0.3, 0.0) is None
    assert take_values_at_share(one, 0.2) == [0.2, 0.9, 0.1]
    assert take_values_at_share(made([[0.5, None, 1.0]], steps=(0, 20, 100)), 0.2) == [0.5]
    rank = made([[0.0, 0.0, 0.0, 0.95], [1.0, 1.0, 1.0, 0.94], [0.0, 0.0, 0.0, 0.5]])
    assert find_large_layers(rank, 0.95, relative=False) == [True, False, False]
    assert find_large_layers(rank, 0.9, relative=True) == [True, True, False]


def test_matthews_equals_scikit_learns():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b = (rng.random((2, 9)) < 0.5).tolist()
        if len(set(a)) == len(set(b)) == 2:
            assert compute_matthews(a, b, ("a", "b"))[0] == pytest.approx(matthews_corrcoef(a, b), abs=1e-12)
    assert compute_matthews([True, False], [True, False], ("a", "b")) == (1.0, "")
    assert compute_matthews([True, False], [False, False], ("early", "large")) == (None, "none large")


def test_the_table():
    similarity = made([[0.5, 1.0], [0.5, 1.0], [0.1, 1.0], [0.1, 1.0]], steps=(0, 100))
    parameters = made([[1.0, 0.99], [1.0, 0.96], [1.0, 0.97], [1.0, 0.9]], "parameters", steps=(0, 100))
    gradients = made([[1.0, 0.5], [1.0, 0.46], [1.0, 0.4], [1.0, 0.3]], "gradients", steps=(0, 100))
    rows = tabulate_matthews([similarity], [parameters, gradients], Ranks()).rows
    assert rows[0] == ["m", "attn_out", "parameters", 4, 2, 3, 2, pytest.approx(1 / np.sqrt(3)), ""]
    assert rows[1] == ["m", "attn_out", "gradients", 4, 2, 2, 2, pytest.approx(1.0), ""]
    rows = tabulate_matthews([similarity], [parameters], Ranks(early_similarity=0.6)).rows
    assert rows == [["m", "attn_out", "parameters", 4, 0, 3, 0, None, "none early"]]
    late = made([[0.5, 1.0]] * 4, steps=(50, 100))
    rows = tabulate_matthews([late], [parameters], Ranks()).rows
    assert rows == [["m", "attn_out", "parameters", 4, None, 3, None, None, "no checkpoint in the first 10 %"]]
    with pytest.raises(BadInput, match="extract: the table needs the similarity of .*, got none; read all layers"):
        tabulate_matthews([], [parameters], Ranks())


ON_CURVES = (
    "larger_models_converge_earlier",
    "earlier_layers_converge_faster",
    "larger_models_have_larger_parameter_rank",
    "larger_models_have_larger_gradient_rank",
    "rank_keeps_falling_in_small_models",
)


@pytest.mark.parametrize("name", ON_CURVES)
def test_claims_on_one_shallow_model(name):
    curves = [made([[0.5, 0.6, 0.7, 1.0]], quantity) for quantity in ("cka to last", "parameters", "gradients")]
    (claim,) = find_claims([name])
    judgement = claim(curves)
    assert (judgement.verdict, judgement.value) == (UNTESTABLE, None)
    assert judgement.why
