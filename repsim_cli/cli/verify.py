"""`repsim verify`: is it the same model, and if not, where does it first differ?"""

import argparse
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from repsim_cli.base import signals
from repsim_cli.base.errors import BadInput, RunFailed
from repsim_cli.base.files import check_writable
from repsim_cli.cli.terminal import Bar, check_torch, complain, say
from repsim_cli.runs import results
from repsim_cli.runs.results import write
from repsim_cli.studies.verify.answer import VERDICTS, Answer

NO_VERDICT = 2
FLAGS = {
    "texts": "--text",
    "quick": "--quick",
    "layer_ids": "--layer-ids",
    "by_block": "--by-block",
    "memory_gb": "--memory-gb",
}
"""What arguments of `repsim_cli.verify` are called in the command."""


def verify_command(parsed: argparse.Namespace) -> int:
    """0 the same, 1 different, 2 no verdict, as `cmp` has it."""
    check_torch()
    from repsim_cli.api.verify import save_reference, verify

    if parsed.save:
        if parsed.candidate:
            raise BadInput(f"--save: writes the reference alone, got the candidate '{parsed.candidate}' too; drop one")
        with signals.interruptible():
            say(str(save_reference(parsed.reference, parsed.save, parsed.text)))
        return 0
    if not parsed.candidate:
        raise BadInput("CANDIDATE: none is named, got the reference alone; name one, or write a file with --save FILE")
    if parsed.junit and (not Path(parsed.junit).absolute().parent.is_dir() or Path(parsed.junit).is_dir()):
        raise BadInput(f"--junit: not a file in a folder that exists, got '{parsed.junit}'; name one")
    if parsed.junit:
        check_writable(Path(parsed.junit).absolute().parent)  # before a search that takes minutes
    place = results.take_unused(
        results.find_outputs_root() / f"{datetime.now():%Y-%m-%d}" / f"{datetime.now():%H-%M-%S}-verify"
    )
    try:
        with signals.interruptible():
            answer = verify(
                parsed.reference,
                parsed.candidate,
                parsed.text,
                quick=parsed.quick,
                layer_ids=parse_layer_ids(parsed.layer_ids),
                by_block=parsed.by_block,
                memory_gb=parsed.memory_gb,
                folder=place,
                progress=Bar(),
            )
    except RunFailed as error:
        complain(error)
        return NO_VERDICT
    except BadInput as error:
        key, colon, rest = str(error).partition(":")
        raise BadInput(f"{FLAGS.get(key, key)}{colon}{rest}") from error
    finally:
        results.drop_empty(place)
    fails = VERDICTS.index(answer.verdict) >= VERDICTS.index(parsed.fail_on.replace("-", " ").upper())
    if parsed.junit:
        write(Path(parsed.junit), build_junit_xml(answer, fails))
    if parsed.json:
        say(*results.dumps(answer.record()).rstrip().split("\n"))
    else:
        say(*answer.lines(), f"  run       {place}")
    return int(fails)


def parse_layer_ids(text: str | None) -> list[int] | None:
    """Numbers and ranges of them.

    >>> parse_layer_ids("0,4-6")
    [0, 4, 5, 6]
    """
    if text is None:
        return None
    ends = [part.split("-") for part in text.split(",")]
    if not all(len(each) < 3 and all(end.isdecimal() and len(end) < 6 for end in each) for each in ends):
        raise BadInput(f"--layer-ids: not numbers and ranges, got '{text}'; write them as 0,4-6")
    return [number for each in ends for number in range(int(each[0]), int(each[-1]) + 1)]


def build_junit_xml(answer: Answer, fails: bool) -> bytes:
    """The answer as the result of a test, in the form that CI servers read."""
    suite = ElementTree.Element("testsuite", name="repsim verify", tests="1", failures=str(int(fails)))
    case = ElementTree.SubElement(suite, "testcase", classname=answer.reference, name=answer.candidate)
    lines = answer.lines()
    within: Any = ElementTree.SubElement(case, "failure", message=lines[0]) if fails else None
    (within if fails else ElementTree.SubElement(case, "system-out")).text = "\n".join(lines)
    return ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True)
