"""Words and files as `scripts/fuzz` changed them: each gets one clear line that says what to do, exit code 2, and leaves nothing."""

import pytest
from helpers import mutations
from helpers.refusals import check

MUTATIONS = mutations.kept()


@pytest.mark.parametrize("number", range(len(MUTATIONS)))
def test_mutations(repsim, tmp_path, tiny_folder, number):
    """What `scripts/fuzz` found, one of each refusal, whether or not it had failed."""
    words = mutations.apply(MUTATIONS[number], tmp_path, tiny_folder("gpt2"))
    check(*repsim(*words), tmp_path / "outputs")


def test_how_many():
    """The number that benchmarks/README.md states."""
    assert len(MUTATIONS) >= 100
