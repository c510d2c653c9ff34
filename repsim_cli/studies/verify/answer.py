"""The answer: six lines for a terminal, and a record. Needs no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from repsim_cli.base.plain import join_into_ranges, name_blocks, say_count, write_percent

IDENTICAL, ROUNDING, AS_QUANTISED, DIFFERENT = "IDENTICAL", "ROUNDING", "AS QUANTISED", "DIFFERENT"
VERDICTS = (IDENTICAL, ROUNDING, AS_QUANTISED, DIFFERENT)
UNNAMED = "unnamed"
TOKEN_IDS = "token ids"  # where a difference of tokenizers is, which stands before all parts
AGREES = "all before agree to rounding"
SHOWN = 3  # places and tensors that a line names
WIDTH = 10


@dataclass(frozen=True)
class Difference:
    """A place where the candidate differs on the reference's own inputs.

    unit: the part of the model. block: its number, of a block. place: the module in it, `:in` for what enters it;
    empty: the part's own sums. point: the kind of hook point, where it is one. kind: of the error, or `unnamed`;
    about: the same in words. relative: the norm of the error over that of the tensor; times: over what rounding gives.
    agree: how many of `tokens` are within rounding. first: the first place of a row that is not, in any row. inputs:
    which of them show it. tensors: those of the place that differ, by name.
    """

    unit: str
    block: int | None
    place: str
    point: str | None
    kind: str
    about: str
    relative: float
    times: float
    agree: int
    tokens: int
    first: int | None
    inputs: Sequence[str]
    tensors: Sequence[str] = ()

    @property
    def where(self) -> str:
        return f"{self.unit}, {self.here}" if self.here else self.unit

    @property
    def here(self) -> str:
        """The place in its part."""
        if self.point is not None:
            module = self.place.removesuffix(":in").rpartition(":")[0] or self.place.removesuffix(":in")
            return f"{self.point} ({module})" if module not in ("", self.point) else self.point
        module, _, what = self.place.rpartition(":")
        if what == "in" and self.place:
            return f"what enters {module}" if module else "what enters it"
        if module:
            return f"{what} ({module})"
        return self.place or ("its sum" if self.block is not None else "")


@dataclass(frozen=True, repr=False)
class Answer:
    """A verdict and its reasons.

    differences: all independent ones, in order of computation. right: the parts that are right when given right inputs.
    inside: places that differ inside parts that do not. weights: tensors of common names that differ, and how much.
    worst: the most that anything right is off, in multiples of its rounding. effect: on the output.
    quantised: of which rounding of weights the errors are. inputs: what was tried. notes: further sentences.
    given: what each part was run on; empty: none was run. before: of what runs before the first difference, empty where
    nothing does. config: the settings that differ, those first that may be behind the first difference.
    """

    verdict: str
    reference: str
    candidate: str
    differences: Sequence[Difference] = ()
    right: Sequence[str] = ()
    inside: Sequence[str] = ()
    weights: Mapping[str, Any] = field(default_factory=dict)
    worst: tuple[float, float] = (0.0, 0.0)
    effect: Mapping[str, float] = field(default_factory=dict)
    quantised: str = ""
    inputs: Sequence[str] = ()
    notes: Sequence[str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    given: str = "the reference's own inputs"
    before: str = ""
    config: Sequence[str] = ()

    @property
    def same(self) -> bool:
        return self.verdict != DIFFERENT

    def record(self) -> dict[str, Any]:
        """The answer as values of strict JSON."""
        return {"verdict": self.verdict, **asdict(self)}

    def lines(self) -> list[str]:
        """Writes the answer for a terminal: the verdict, and a line for each reason."""
        if not self.differences:
            effect = [f"  {'effect':{WIDTH - 2}}{self._effect()}"] if self.quantised else []
            config = [f"  {'config':{WIDTH - 2}}{self._say_config()}"] if self.config else []
            weights = [f"  {'weights':{WIDTH - 2}}{slight}"] if (slight := self._say_slight_weights()) else []
            said = f"{self.verdict}   {self.quantised or self._agreement()}"
            return [said, *effect, *config, *weights, *self._list_notes()]
        first = self.differences[0]
        before = f" ({self.before})" * bool(self.before)
        tokens, parts = first.unit == TOKEN_IDS, self._list_parts()
        said = {
            "kind": f"{first.about}{self._rotation(first)}",
            "then": f"{parts[0].where}{before}: {parts[0].about}" if tokens and parts else "",
            "config": self._say_config(),
            "weights": self._weights(),
            "from": _say_first_token(first),
            "effect": self._effect(),
            "alone": self._say_alone(),
            "input": self._inputs(first),
        }
        lines = [f"{self.verdict}   first at {first.where}{'' if tokens else before}"]
        return [*lines, *(f"  {name:{WIDTH - 2}}{text}" for name, text in said.items() if text), *self._list_notes()]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__  # what a notebook shows

    def _rotation(self, first: Difference) -> str:
        """Says what is right where queries or keys are turned to another direction."""
        angles = next((key for key in self.right if "rotary" in key), None)
        if angles is None or first.kind != "rotary" or not first.place.endswith((":q", ":k")):
            return ""
        return f"; what is rotated and its angles ({angles}) are right, so look at what rotates"

    def _list_parts(self) -> list[Difference]:
        """Lists the differences of models, without that of their tokenizers."""
        return [each for each in self.differences if each.unit != TOKEN_IDS]

    def _say_quantised(self) -> str:
        return self.quantised if self.differences else ""

    def _layout(self) -> str:
        """Says what differs inside models that are the same function."""
        differ = self.weights.get("differ", [])
        if self._list_parts() or self.quantised or not (self.inside or differ):
            return ""
        if not self.inside:
            return f"{len(differ)} tensors of common names differ, and nothing that is computed with them does"
        rest = f" and {len(self.inside) - SHOWN} more" if len(self.inside) > SHOWN else ""
        tensors = f"; {len(differ)} tensors of common names differ" if differ else ""
        return f"the same function, another layout inside: {'; '.join(self.inside[:SHOWN])}{rest}{tensors}"

    def _agreement(self) -> str:
        inputs = self.inputs[0] if len(self.inputs) == 1 else f"{len(self.inputs)} kinds of input"
        what = f"{len(self.right)} part{'s' * (len(self.right) != 1)} on {inputs}"
        if self.verdict == IDENTICAL or not any(self.worst):
            return f"every bit is the same, in {what}"
        whole, row = self.worst
        return f"{what} are within {max(whole, 0.01):.2g} times their rounding, single rows within {max(row, 0.01):.2g}"

    def _say_config(self) -> str:
        rest = f"; {say_count(len(self.config) - SHOWN, 'setting')} more" if len(self.config) > SHOWN else ""
        return "; ".join(self.config[:SHOWN]) + rest

    def _weights(self) -> str:
        if not self.weights:
            return ""
        common, differ = self.weights["common"], self.weights["differ"]
        if not common:
            return "the models have no names of weights in common"
        lacking = {"reference": self.weights["only_reference"], "candidate": self.weights["only_candidate"]}
        alone = "".join(f"; the {side} alone has {_name_some(names)}" for side, names in lacking.items() if names)
        shaped = self.weights.get("shaped", ())
        alone += f"; {_name_some(shaped)}" if shaped else ""
        if not differ:
            return f"none of the {common} tensors of common names differs{alone}"
        shown = [
            f"{name} differs{f' in {count:,} of {of:,} values' * (count > 0)}" for name, count, of, _ in differ[:SHOWN]
        ]
        rest = len(differ) - SHOWN
        more = f"{say_count(rest, 'other')} of {common} differ{'s' * (rest == 1)}"
        end = more if rest > 0 else "no other tensor does"
        return f"{', '.join(shown)}; {end}{alone}"

    def _say_slight_weights(self) -> str:
        """Says which weights have other bits, though no others are computed with; empty where rounding of all of them
        was named."""
        slight = [] if self.quantised else self.weights.get("slight", [])
        if not slight:
            return ""
        shown = ", ".join(f"{name} in {count:,} of {of:,} values" for name, count, of in slight[:SHOWN])
        rest = f" and {len(slight) - SHOWN} tensors more" if len(slight) > SHOWN else ""
        return f"other bits, within the rounding of their rows: {shown}{rest}"

    def _effect(self) -> str:
        if "kl" in self.effect:
            kl, same = self.effect["kl"], self.effect["same_choice"]
            other = any(each.unit == TOKEN_IDS for each in self.differences)
            ids = "on the same token ids, " if other else ""
            return f"{ids}next token: KL {kl:.2g} nats, the same choice in {write_percent(same, '.1f')}"
        if "not_finite" in self.effect:
            return f"the output is not finite in {write_percent(self.effect['not_finite'], '.1f')} of the rows"
        return f"the output is off by {self.effect['relative']:.2g} of its norm" if self.effect else ""

    def _say_alone(self) -> str:
        """Says in which places parts differ when each is run alone, and which are right when given right inputs."""
        if not self.given:
            return ""
        places: dict[str, list[str]] = {}
        for each in self._list_parts():
            places.setdefault(each.unit, []).append(each.here or "it")
        groups = [
            (list(units), inside) for inside, units in groupby(places, lambda unit: [*dict.fromkeys(places[unit])])
        ]
        shown = [f"{name_part_ranges(units)}: {', '.join(inside)}" for units, inside in groups[:SHOWN]]
        if rest := [unit for units, _ in groups[SHOWN:] for unit in units]:
            shown.append(f"{len(rest)} more part{'s' * (len(rest) > 1)} ({name_part_ranges(rest)})")
        right = [f"{name_part_ranges(self.right)} are right when given right inputs"] if self.right else []
        return f"on {self.given} {'; '.join([*shown, *right])}" if shown or right else ""

    def _inputs(self, first: Difference) -> str:
        """Names the input that shows it, where the ordinary one, the first, does not."""
        ordinary = next(iter(self.inputs), "text")
        if ordinary in first.inputs or first.unit == TOKEN_IDS:
            return ""
        if not first.inputs:
            return "none of these inputs shows it"
        name, does_not = ("ordinary text", "does not") if ordinary == "text" else (ordinary, "do not")
        later = next((each.where for each in self.differences if ordinary in each.inputs), None)
        does_not = f"{name} {does_not}" if later is None else f"{name} first shows {later}"
        return f"{', '.join(first.inputs)} show{'s' * (len(first.inputs) == 1)} it, {does_not}"

    def _list_notes(self) -> list[str]:
        return [
            f"  {'note':{WIDTH - 2}}{text}" for text in [self._say_quantised(), self._layout(), *self.notes] if text
        ]


def _name_some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _say_first_token(first: Difference) -> str:
    if not first.tokens:
        return ""
    if first.first is None:
        return "no single token stands out, all of them together do"
    start = "the first token on" if first.first == 0 else f"token {first.first} of a row on"
    return f"{start}; {first.agree:,} of {first.tokens:,} positions agree"


def name_places(places: Sequence[tuple[str, str]]) -> str:
    """Names places, those of the same parts together.

    >>> name_places([("block 0", "q"), ("block 0", "k"), ("block 1", "q"), ("block 1", "k"), ("block 2", "v")])
    'q, k of blocks 0 to 1; v of block 2'
    """
    parts: dict[str, list[str]] = {}
    for unit, place in places:
        parts.setdefault(place, []).append(unit)
    groups: dict[tuple[str, ...], list[str]] = {}
    for place, units in parts.items():
        groups.setdefault(tuple(sorted(units, key=_sort_by_number)), []).append(place)
    shown = [f"{', '.join(some)} of {name_part_ranges(units)}" for units, some in groups.items()]
    rest = f" and {len(shown) - SHOWN} groups more" if len(shown) > SHOWN else ""
    return "; ".join(shown[:SHOWN]) + rest


def _sort_by_number(unit: str) -> tuple[str, int]:
    name, _, number = unit.rpartition(" ")
    return (name, int(number)) if number.isdigit() else (unit, 0)


def name_part_ranges(keys: Sequence[str]) -> str:
    """Parts by name, blocks that follow each other as a range.

    >>> name_part_ranges(["embed", "block 0", "block 1", "block 2", "block 4", "head"])
    'embed, blocks 0 to 2, block 4, head'
    """
    made: list[str] = []
    for of_blocks, some in groupby(keys, lambda key: key.removeprefix("block ").isdigit()):
        named = list(some)
        made += (
            map(name_blocks, join_into_ranges(int(key.removeprefix("block ")) for key in named)) if of_blocks else named
        )
    return ", ".join(made)
