"""Words are checked before Hydra starts, with the lines that come of its own errors."""

import pytest

from repsim_cli.base.errors import BadInput
from repsim_cli.config.compose import compose
from repsim_cli.config.presets import GROUPS, describe_group
from repsim_cli.config.words import check_once, check_spelling

WRONG = ["measur=cka", "seeed=1", "dat.path=x", "measure=ckaa", "model=[tiny_a,tiny_z]", "experiment=tiny/pythia_ck"]
RIGHT = [
    *["seed=1", "hydra/launcher=joblib", "hydra.run.dir=x", "model=3", "model=null", "measure=[]", "+what.ever=1"],
    *[
        "experiment=tiny/pythia_cka.yaml",
        "experiment=glob(tiny/*)",
        "seed=0,1",
        "extract.rows=5",
        "data.any=1",
        "~claims",
    ],
]


def line(check, *given):
    with pytest.raises(BadInput) as raised:
        check(*given)
    return str(raised.value)


@pytest.mark.parametrize("word", WRONG)
def test_the_lines_are_those_of_hydra(word):
    assert line(check_spelling, [word]) == line(compose, [word])


@pytest.mark.parametrize("word", RIGHT)
def test_what_may_mean_something_is_left_to_hydra(word):
    check_spelling([word])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["+model.a={kind: x}", "seed=1", "+model.a={kind: y}"], "model.a: added twice"),
        (["model=[tiny_a,tiny_b,tiny_a]"], "model: a name twice, got 'tiny_a' in [tiny_a,tiny_b,tiny_a]"),
        (["measure=[cka,cka]"], "measure: a name twice, got 'cka'"),
    ],
)
def test_what_hydra_would_drop_is_refused(words, said):
    assert line(check_once, words).startswith(said)


def test_what_is_given_once_is_not_refused():
    check_once(["model=[tiny_a,tiny_b],[tiny_a]", "seed=1", "seed=2", "+model.a={kind: x}", "+model.b={kind: x}"])


@pytest.mark.parametrize("group", GROUPS)
def test_every_name_is_known(group):
    check_spelling([f"{group}={','.join(describe_group(group))}"])


def test_words_beside_a_folder_of_ones_own_are_left_to_hydra():
    check_spelling(["--config-dir", "DIR", "experiment=mine"])


@pytest.mark.parametrize("flag", ["--config-dir", "--cfg", "-c"])
def test_a_flag_without_its_value(repsim, flag):
    code, _, err = repsim("run", flag)
    assert code == 2
    assert "no value; write --" in err


def test_keys_of_settings_that_studies_share():
    assert line(check_spelling, ["extract.batch_row=3"]) == (
        "extract.batch_row: unknown key, got 3; did you mean 'batch_rows'?"
    )


@pytest.mark.parametrize(("word", "hint"), [("--dry-run", "write dry_run=VALUE"), ("--seed", "write seed=VALUE")])
def test_a_key_that_is_written_as_a_flag(repsim, word, hint):
    code, _, err = repsim("run", word)
    assert (code, err) == (2, f"error: repsim run: unknown option, got '{word}'; {hint}\n")
