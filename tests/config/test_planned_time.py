"""The time that a plan gives: operations over the speed of the machine, and what each call costs."""

import itertools
import re

import pytest
from helpers.composing import composed
from helpers.timers import replace_clock

from repsim_cli import measures
from repsim_cli.base.planning import collect_unfit
from repsim_cli.base.registry import models
from repsim_cli.base.settings import Hardware
from repsim_cli.config.run import validate
from repsim_cli.engine import cost, footprint


def test_the_time_of_all_figures_is_planned(repsim):
    code, out, _ = repsim("run", "experiment=tiny/measure_agreement", "figures=all", "dry_run=true")
    assert code == 0
    (count,) = re.findall(r"all figures, beside that: 12 min, about (\d+) of them", out)
    assert 580 <= int(count) <= 620  # 602 are drawn


def test_other_load_on_the_machine_does_not_make_a_plan_longer(monkeypatch):
    cost.measure_speed.cache_clear()
    late = itertools.count(step=1000.0)
    replace_clock(monkeypatch, cost, perf_counter=lambda: next(late))  # as if others had the CPU all the time
    speed, source = cost.measure_speed("cpu", threads=1)
    assert 1e8 < speed < 1e15
    assert source == "measured on 'cpu' in CPU time, as if nothing else ran"


@pytest.fixture
def speed(monkeypatch):
    """A device of 1 TFLOP/s."""
    monkeypatch.setattr(cost, "measure_speed", lambda *device, **settings: (1e12, "given"))
    return 1e12


def test_the_time_of_forward_passes(speed):
    """Two operations per weight and token, and those of attention; half of the speed of a product."""
    with collect_unfit(dry=True):
        source = models.get("transformers").function(hub="openai-community/gpt2")
    blocks = 124_439_808 - 50257 * 768
    tokens = 1000 * 128
    expected = 2 * tokens * (blocks + 2 * 12 * 128 * 768) / (speed / 2)
    found = cost.estimate_forward_cost([source], 1000, 128, Hardware(batch_size=1000))
    assert found.seconds == pytest.approx(expected, rel=1e-3)
    assert found.operations == pytest.approx(expected * speed / 2)
    both = cost.estimate_forward_cost([source, source], 1000, 128, Hardware(batch_size=1000))
    assert (both.operations, both.seconds) == pytest.approx((2 * found.operations, 2 * found.seconds))
    head = cost.estimate_forward_cost([source], 1000, 128, Hardware(batch_size=1000), vocabularies=True)
    assert head.seconds - found.seconds == pytest.approx(2 * tokens * 50257 * 768 / (speed / 2))


def test_the_time_of_pairs(speed):
    def seconds(name, pairs=1, rows=1000, **settings):
        return cost.estimate_pairs_cost(
            [measures.get(name)], [64, 64], pairs, rows, Hardware(processes=1), **settings
        ).seconds

    for name in ("cka", "procrustes", "gromov_wasserstein"):
        assert seconds(name, pairs=100) > seconds(name)
        assert seconds(name, batches=7.0) == pytest.approx(7 * seconds(name))
        assert seconds(name, permutations=99) > seconds(name)
    # 20 products of 1000 x 1000, half as much beside them, and what any pair takes, beside what is prepared
    each = seconds("gromov_wasserstein", pairs=11) - seconds("gromov_wasserstein", pairs=10)
    assert each == pytest.approx(20 * 1.5 * 2e9 / speed + cost.SOLVED, rel=1e-6)
    assert seconds("geometry_score") > 100 * seconds("cka")  # of complexes of rows, not of products of features
    # beyond 10,000 rows distances are not held, and groups of rows take their turns
    whole = seconds("gromov_wasserstein", rows=10_000), seconds("gromov_wasserstein", rows=5_000)
    assert whole[0] == pytest.approx(8 * whole[1], rel=0.2)
    moments = cost.estimate_moments_cost([measures.get("cka")], [64, 64], 3, 10_000, Hardware())
    assert moments.operations == 2 * 10_000 * 128**2 + 3 * 40 * 64**3
    assert moments.seconds == pytest.approx(moments.operations / speed)
    # each worker is a core of the CPU: the operations are the same, the seconds fewer
    several = [
        cost.estimate_pairs_cost([measures.get("gromov_wasserstein")], [64, 64], 100, 100, Hardware(processes=count))
        for count in (1, 4)
    ]
    assert several[0].operations == several[1].operations
    assert several[0].seconds > 3 * several[1].seconds


def test_more_work_takes_longer(speed):
    def seconds(*words):
        study = validate(composed(*words, "dry_run=true")).study
        single = words[0].startswith("model")
        return sum(
            part.seconds
            for part in (footprint.estimate_costs(study.comparison, 100) if single else study.costs()).values()
        )

    small = ("model=[tiny_a]", "extract.sequences=64")
    assert seconds("model=[tiny_a]", "extract.sequences=640") > 5 * seconds(*small)
    assert seconds("model=[tiny_a]", "extract.estimate=full", "extract.rows=4096") > seconds(
        "model=[tiny_a]", "extract.estimate=full", "extract.rows=512"
    )
    two = "model.pythia_70m_series.steps=[0,143000]"
    of_two = seconds("experiment=pythia_convergence", "model=[pythia_70m_series]", two)
    assert seconds("experiment=pythia_convergence", "model=[pythia_70m_series]") == pytest.approx(27 / 2 * of_two)


def test_the_time_of_training(speed):
    """pretrain_width_64: three passes of 6 blocks of 12 x 64^2 weights, and what each call costs."""
    found = cost.estimate_training(6, 64, 1_024_000, 1000, Hardware())
    assert found.operations == 6 * 1_024_000 * 6 * 12 * 64**2
    assert found.seconds == pytest.approx(found.operations / (speed / 2) + 4 * cost.CALL * 6000)
