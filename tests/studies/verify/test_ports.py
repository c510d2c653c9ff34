"""Published bugs of ports are found at the module where they stand, and named."""

import pytest
from helpers.nights import nightly
from ports import PORTS, port

from repsim_cli.studies.verify.answer import DIFFERENT

AT_NIGHT = ("norms multiply by w, not by 1 + w", "a tied head is drawn anew", "padding is attended to")


@pytest.mark.parametrize("name", nightly(PORTS, *AT_NIGHT))
def test_a_published_bug_of_a_port_is_found(name):
    answer = port(name)
    first = answer.differences[0]
    assert answer.verdict == DIFFERENT
    assert (first.unit, first.place, first.kind) == (*PORTS[name].place, PORTS[name].kind)
