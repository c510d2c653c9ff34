"""The answer of a comparison of two models: a screen that says which layers are alike, how far above chance, and what
warns of it."""

import itertools
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from repsim_cli.base.plain import escape, write_percent
from repsim_cli.base.remedies import say_treatment
from repsim_cli.figures.chance import Chance, say_pairings
from repsim_cli.findings import answering
from repsim_cli.findings.answering import ClosestLayer, Sides
from repsim_cli.findings.sentences import choose_digits, find_chance_level, find_least_lead, list_layers
from repsim_cli.report.headline import list_sentences
from repsim_cli.runs import reader
from repsim_cli.runs.content import CHANCE, Measured

WIDTH, INDENT = 118, " " * 6  # of a line, and of what continues one
SHOWN = 2  # closest and furthest pairs of layers
MATCHES, FIGURES = 12, 6  # lines of the path, and figures, that are printed at most
TAKEN = {  # by `extract.normalise`, what it takes away
    "features": "a rotation now counts, and features that hardly vary count as much as the others",
    "directions": "what few directions alone share counts less",
    "rows": "the length of rows does not count",
}


def answer(folder: Path, first: str, second: str) -> Iterator[str]:
    """Writes what a run says of two models, a line each."""
    manifest, whole = reader.read_manifest(folder), reader.read_results(folder)
    read = partial(reader.read_array, folder)
    yield f"{manifest['name']}: {manifest['status']}, {manifest['seconds']:.1f} s, seed {manifest['seed']}"
    for text in list_sentences(folder, whole).say_main():
        yield from wrap_sentence(text)
    if (given := manifest.get("data")) is not None:
        yield f"  data: {_say_read(given)}"
    yield from say_treated_rows(manifest)
    left = list(manifest["warnings"])
    for number, measured in enumerate(whole.measures):
        about = [
            text for text in left if is_about_measure(text, measured.label, [each.label for each in whole.measures])
        ]
        left = [text for text in left if text not in about]
        yield from _say_measure(measured, read, (first, second), whole.pairs_of(measured), with_path=not number)
        yield from (f"    warning: {text}" for text in about)
    yield from (f"  warning: {text}" for text in left)
    yield from _say_result_files(folder)


def say_treated_rows(manifest: Mapping[str, Any]) -> Iterator[str]:
    """Says what was done to the rows before they were compared, and how many were left out; empty where nothing was."""
    remedies = manifest.get("remedies", {})
    if not (treated := say_treatment(remedies)):
        return
    taken = TAKEN.get(remedies.get("normalise"))
    left, share = (remedies.get(key) for key in ("rows_left_out", "share_left_out"))
    treated += f" ({taken})" if taken else ""
    yield f"  rows: {treated}" + (f"; {left:,} ({write_percent(share, '.2g')}) left out" if left and share else "")


def wrap_sentence(text: str, head: str = "  ", indent: str = "    ") -> list[str]:
    """Breaks a sentence into lines of the terminal, in which tabs and ends of lines of labels are shown as codes."""
    return textwrap.wrap(escape(text), WIDTH, initial_indent=head, subsequent_indent=indent)


def _say_read(given: Mapping[str, Any]) -> str:
    """Says how much of the data was read."""
    taken, available = given["sequences"], given["sequences_available"]
    if available is None:  # not counted
        return f"{taken:,} sequences of {given['source']}"
    first = "the first " if available == given["pool"] else ""
    read = f"{taken:,} of {first}{available:,}" if taken < available else f"all {taken:,}"
    more = "; more by --set extract.sequences=N" if taken < available else ""
    return f"{read} sequences of {given['source']}{more}"


def is_about_measure(warning: str, label: str, labels: Sequence[str]) -> bool:
    """Tells whether a warning is about this measure and no other.

    >>> is_about_measure("cka: 2 cells", "cka", ["cka", "rsa"])
    True
    >>> is_about_measure("cka, rsa: few rows", "cka", ["cka", "rsa"])
    False
    """
    named = [each for each in labels if re.search(rf"(?<!\w){re.escape(each)}(?!\w)", warning)]
    return named == [label] if len(labels) > 1 else not warning.startswith("cache:")


def _say_measure(
    measured: Measured, read: answering.Read, models: tuple[str, str], pairs: str, *, with_path: bool
) -> Iterator[str]:
    """A measure of two models: what it rests on, chance, the token alone, layers. pairs: of rows. with_path: with all
    best matches."""
    estimate, better = measured.estimate, "larger" if measured.larger_is_closer else "smaller"
    rows = f"{estimate['rows']:,} of {estimate['rows_available']:,} {estimate.get('unit', 'rows')}"
    kept = f", {pairs}" if pairs else ""
    yield f"  {measured.label}: {measured.card['label']}, {better} is closer, {estimate['kind']}, {rows}{kept}"
    if measured.token_alone:
        yield f"    {measured.token_alone}"
    for sides in answering.find_both_directions(measured, read, *models)[: 1 if measured.card["symmetric"] else 2]:
        if not measured.card["symmetric"]:
            yield f"    {sides.first} x {sides.second}"
        if np.isnan(sides.values).all():
            yield "    no value"
            continue
        digits = choose_digits(measured, sides)
        if sides.se is not None and np.isfinite(sides.se).any():
            yield f"    standard errors: at most {np.nanmax(sides.se):.2g}"
        yield f"    {_say_chance_level(find_chance_level(measured, sides), measured.chance or {}, digits)}"
        word, said = answering.make_layer_namer([*sides.rows, *sides.columns])
        if sides.values.size == 1:
            layers = f"{word(sides.rows[0])} of {sides.first} and {word(sides.columns[0])} of {sides.second}"
            yield f"    the only two layers: {layers}, {sides.values.item():{digits}}"
            yield from _say_test(measured, read, sides, digits)
            continue
        if sides.same_layers:
            yield from _say_same_layers(sides, word, said, digits)
        near, far = answering.pick_extreme_pairs(sides, SHOWN)
        for name, cells in (("closest", near), ("furthest", far)):
            of = (f" of {sides.first}", f" of {sides.second}")
            listed = [
                f"{word(a)}{of[0] * (not i)} and {word(b)}{of[1] * (not i)}, {value:{digits}}"
                for i, (a, b, value) in enumerate(cells)
            ]
            yield f"    {name}: {'; '.join(listed)}"
            if name == "closest":
                yield from _say_test(measured, read, sides, digits)
        if with_path:
            yield from say_closest_layers(sides, word, digits, find_least_lead(measured, sides))


def _say_same_layers(sides: Sides, word: Callable[[str], str], said: str, digits: str) -> Iterator[str]:
    """Writes the same layer of both models beside each other."""
    names = [word(layer).removeprefix("block ") for layer in sides.rows]
    cells = [
        f"{name} {'-' if np.isnan(value) else f'{value:{digits}}'}"
        for name, value in zip(names, sides.values.diagonal(), strict=True)
    ]
    head = f"    same layer{f' ({said})' if said else ''}: "
    yield from wrap_sentence(", ".join(cells), head, INDENT)


def say_closest_layers(sides: Sides, word: Callable[[str], str], digits: str, least: float | None) -> Iterator[str]:
    """Says which layer of the second model is the closest to each of the first, and whether it is told apart from the
    next.
    Layers in a row that have the same closest one stand together. Where half or more have the same layer of the other
    model, the others alone are named. word: what a layer is called. digits: how values are written. least:
    the least lead that tells a layer apart from the next; None where the error of values is not known.
    """
    found = answering.find_closest_layers(sides)
    own = [each for each in found if each.layer == each.closest]
    lead = partial(_say_lead, sides=sides, word=word, least=least)
    if sides.same_layers and 2 * len(own) >= len(found):
        others = "; ".join(
            f"{word(each.layer)} and {word(each.closest)}, {_say_layer_values([each], digits)}{lead([each])}"
            for each in found
            if each.layer != each.closest
        )
        text = f"best match: the same layer for {len(own)} of {len(found)}{_say_untold(own, least)}"
        text += f"; {others}" if others else ""
        yield from wrap_sentence(text, "    ", INDENT)
        return
    # layers without a value part those beside them
    apart = {each.layer: sides.rows.index(each.layer) - place for place, each in enumerate(found)}
    groups = [list(group) for _, group in itertools.groupby(found, key=lambda each: (each.closest, apart[each.layer]))]
    rows = [
        (
            name_layer_span([word(each.layer) for each in group]),
            word(group[0].closest),
            _say_layer_values(group, digits) + lead(group),
        )
        for group in groups
    ]
    rows = [
        (sides.first, sides.second, "value, and its lead, or what is as close within error"),
        *rows,
    ]
    first, second = (max(len(row[place]) for row in rows[: MATCHES + 1]) for place in (0, 1))
    yield "    best matches:"
    yield from (f"      {a:{first}}  {b:{second}}  {values}" for a, b, values in rows[: MATCHES + 1])
    if len(groups) > MATCHES:
        yield f"      and {len(groups) - MATCHES} more: repsim export latest --csv"


def name_layer_span(names: Sequence[str]) -> str:
    """Names layers in a row.

    >>> name_layer_span(["block 0", "block 1"]), name_layer_span(["embed", "block 0"]), name_layer_span(["embed"])
    ('blocks 0 to 1', 'embed to block 0', 'embed')
    """
    first, last = names[0], names[-1]
    if first.startswith("block ") and first != last:
        return f"blocks {first.removeprefix('block ')} to {last.removeprefix('block ')}"
    return first if first == last else f"{first} to {last}"


def _say_untold(group: Sequence[ClosestLayer], least: float | None) -> str:
    """Says of how many layers the closest one is not told apart from the next, or that this is not known."""
    if least is None:
        return " (error not known)" if group else ""
    count = len(answering.list_untold_layers(group, least))
    if not count:
        return ""
    return f",{'' if count == len(group) else f' {count} of them'} not told apart from the next"


def _say_layer_values(group: Sequence[ClosestLayer], digits: str) -> str:
    """Writes the values of layers in a row."""
    values = [each.value for each in group]
    return f"{min(values):{digits}}" + (f" to {max(values):{digits}}" if len(values) > 1 else "")


def _say_lead(group: Sequence[ClosestLayer], sides: Sides, word: Callable[[str], str], least: float | None) -> str:
    """Says by how much layers in a row are closer than the second closest, at least; or which layers of the other model
    are as close within error."""
    margins = [each.margin for each in group if each.margin is not None]
    if not margins:
        return ""
    if least is None or not answering.list_untold_layers(group, least):
        return f", {min(margins):.2g} ahead" + ("" if least is not None else " (error not known)")
    rows = [sides.rows.index(each.layer) for each in group]
    near = {place for row in answering.find_near_columns(sides.values[rows], sides.larger, least) for place in row}
    return f", within error {list_layers([word(sides.columns[place]) for place in sorted(near)])}"


def _say_chance_level(chance: Chance | None, record: Mapping[str, Any], digits: str) -> str:
    """The level of chance and what it is of, or why it is not known."""
    if chance is None:
        return f"chance is not known here: {record.get('unknown', 'no layers have a value')}"
    low, high = f"{chance.low:{digits}}", f"{chance.high:{digits}}"
    cells = low if low == high else f"{low} to {high} by cell"
    spread = f", a single pairing within {record['spread']:.2g} (sd)" if record.get("spread") else ""
    return f"chance: {cells}, the mean of {say_pairings(record)}{spread}"


def _say_test(measured: Measured, read: answering.Read, sides: Sides, digits: str) -> Iterator[str]:
    """Says what the test found for the closest layers, as the table `closest layers` has it; nothing without a test."""
    null: Any = measured.null
    if null is None:
        return
    matrix = next(
        m for m in measured.matrices if {m.rows.model, m.columns.model} == {sides.first, sides.second}
        and (measured.card["symmetric"] or m.rows.model == sides.first)
    )  # fmt: skip
    found = reader.find_closest_cell(measured, matrix, {what: read(file) for what, file in matrix.cells.items()})
    if found is None:
        return
    numbers = found[2]
    by_chance = f"chance {numbers[CHANCE]:{digits}}; " if numbers.get(CHANCE) is not None else ""
    tested = (
        f"{numbers['tested']:{digits}} on the {write_percent(null['share'])} of rows that were tested: "
        if numbers.get("tested") is not None
        else ""
    )
    named = {"calibrated": "calibrated", "p": "p", "p_family": "family-wise p"}
    said = ", ".join(f"{name} {numbers[what]:.3g}" for what, name in named.items() if numbers.get(what) is not None)
    faults = "; ".join(null.get("not_valid", ()))
    yield "      " + by_chance + tested + said + (f" (not valid: {faults})" if faults else "")
    if needed := null.get("permutations_for_q"):
        yield f"      q is left out, as it cannot be small: significance.permutations={needed} would do"


def _say_result_files(folder: Path) -> Iterator[str]:
    """Says where the figures, the folder and the page are."""
    figures = sorted((folder / "figures").glob("*.png"))
    yield from (f"  figure: {figure}" for figure in figures[:FIGURES])
    if len(figures) > FIGURES:
        yield f"  figures: {len(figures) - FIGURES} more in {folder / 'figures'}"
    yield f"  folder: {folder}"
    if (folder / "report.html").is_file():
        yield f"  report: {folder / 'report.html'}"
