"""What the kinds of studies, measures, models and data, and the settings that studies share, say of themselves: their
docstrings, signatures and cards.

Those of the package stand in a table too, which `scripts/kinds --write` makes and a test holds against the code: it is
read without importing torch, which takes a second.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.cli.docstrings import parse
from repsim_cli.cli.settings import Setting, read_settings

SELECTED = {"study": registry.studies, "measure": registry.measures, "model": registry.models, "data": registry.data}
ROOMS = {**SELECTED, "analysis": registry.analyses}
GROUP, RUN = "settings", "run"  # the table's name of the keys of a run and of the groups of settings that studies share
SETTINGS = ("extract", "significance", "hardware", "figures")
TABLE = Path(__file__).parent.parent / "assets" / "kinds.jsonl"


class KindText(NamedTuple):
    """A registered component in words. facts: further lines. example: a command, where its docstring has one."""

    prose: Sequence[str]
    settings: Mapping[str, Setting]
    facts: Sequence[str]
    example: str


def read_kind(group: str, name: str) -> KindText:
    """Reads the kind from the table, or makes it where it comes from outside of the package."""
    told = _read_kinds_table().get((group, name)) if group == GROUP or ROOMS[group].own(name) else None
    return told or make_kind(group, name)


@cache
def _read_kinds_table() -> dict[tuple[str, str], KindText]:
    rows = map(json.loads, TABLE.read_text("utf-8").splitlines())
    return {
        (group, name): KindText(prose, _make_settings(keys), facts, example)
        for group, name, prose, keys, facts, example in rows
    }


def _make_settings(described: Mapping[str, Any]) -> dict[str, Setting]:
    made = {key: Setting(*data) for key, data in described.items()}
    return {
        key: setting._replace(inner=setting.inner and _make_settings(setting.inner)) for key, setting in made.items()
    }


def make_kind(group: str, name: str) -> KindText:
    """Makes the kind from its function or class, which is imported."""
    from repsim_cli.base.settings import EveryData, EveryModel, SeededModel
    from repsim_cli.config.run import RunKeys

    if group == GROUP:
        function = list_shared_settings()[name]
    else:
        entry = ROOMS[group].get(name)
        function = entry.card.options if group == "analysis" else entry.function
    text = parse(inspect.getdoc(function))
    taken = read_settings(function, RunKeys.model_fields if group == "study" else ())
    if group == "model":
        taken |= (read_settings(SeededModel) if "seed" in taken else {}) | read_settings(EveryModel)
    if group == "data":
        taken |= read_settings(EveryData)
    return KindText(text.prose, taken, FACTS[group](name) if group in FACTS else (), text.example)


def list_shared_settings() -> dict[str, type]:
    """Lists the classes of the keys of a run and of the groups of settings that studies share, by name."""
    from repsim_cli.base.settings import Extract, Hardware, Significance
    from repsim_cli.config.run import RunKeys
    from repsim_cli.figures.frame import Figures

    return dict(zip((RUN, *SETTINGS), (RunKeys, Extract, Significance, Hardware, Figures), strict=True))


def _name_analysis_studies(name: str) -> list[str]:
    """Names the studies whose runs an analysis reads."""
    return [f"of runs of: {', '.join(registry.analyses.get(name).card.studies)}"]


def _list_taken(name: str) -> list[str]:
    """Names the keys of the run that a study uses."""
    from repsim_cli.config.run import RunKeys
    from repsim_cli.runs.reader import GROUPS

    keys = inspect.signature(registry.studies.get(name).function).parameters.keys() & RunKeys.model_fields.keys()
    return [f"takes: {', '.join(sorted(keys, key=[*GROUPS, *RunKeys.model_fields].index))}"]


def _describe_measure_card(name: str) -> list[str]:
    """Tells the properties of a measure, and its settings in a run."""
    card = registry.measures.get(name).card
    ends = [f"{word} {bound:g}" for word, bound in zip(("from", "to"), card.bounds, strict=True) if bound is not None]
    needs = [
        "attention maps" if card.reads == "attention" else f"{card.minimum_rows} rows",
        *["more rows than features"] * card.refuses_wide,
        *["equal widths"] * card.equal_widths,
        *["a class per row"] * card.labelled,
        *([f"the package {card.package}"] if card.package else []),
    ]
    kinds = [*["symmetric"] * card.symmetric, *["a metric"] * card.is_metric]
    return [
        "; ".join(
            [f"{'larger' if card.larger_is_closer else 'smaller'} is closer", " ".join(ends) or "unbounded", *kinds]
        ),
        f"unchanged by: {', '.join(sorted(card.invariant_to)) or 'nothing'}",
        *(f"but under extract.normalise={how} not by {', '.join(lost)}" for how, lost in card.undone().items()),
        f"needs: {', '.join(needs)}",
        f"cost: {card.cost}",
        f"source: {card.source}",
        f"estimates; significance: {list_allowed(name)}",
        *([card.note] if card.note else []),
    ]


def list_allowed(name: str) -> str:
    """Lists the estimates that a measure has in a run, and the significance: `full, per_batch; permutation`."""
    from repsim_cli.base.settings import ESTIMATES, Significance
    from repsim_cli.engine import significance
    from repsim_cli.engine.estimates import check_estimate

    entry = registry.measures.get(name)
    if entry.card.infinite_to_itself:
        return "repsim measure alone"
    if entry.card.reads == "attention":
        return "full"
    measure = replace(entry.function(), name=name, card=entry.card)
    judged = {
        "closed_form": Significance(method="closed_form"),
        "permutation": Significance(method="permutation"),
        "jackknife": Significance(jackknife=True),
    }
    estimates = [estimate for estimate in get_args(ESTIMATES) if _passes_check(check_estimate, measure, estimate)]
    nulls = [name for name, asked in judged.items() if _passes_check(significance.check_measure, asked, measure)]
    return "; ".join(", ".join(names) for names in (estimates, nulls) if names)


def _passes_check(check: Callable[..., Any], *arguments: Any) -> bool:
    try:
        check(*arguments)
    except BadInput:
        return False
    return True


FACTS: dict[str, Callable[[str], list[str]]] = {
    "study": _list_taken,
    "measure": _describe_measure_card,
    "analysis": _name_analysis_studies,
}
