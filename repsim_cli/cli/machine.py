"""What commands answer as JSON, for programs that drive repsim; `docs/programs.md` says what each key is.

Every document has `schema` and `command`. `SHAPES` says what else, as `base/documents.find_misfit` reads it.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from repsim_cli.cli import answer, listing
from repsim_cli.cli.terminal import say
from repsim_cli.findings import answering
from repsim_cli.findings.answering import Sides
from repsim_cli.report.headline import list_sentences
from repsim_cli.runs import reader
from repsim_cli.runs.content import Measured, Results

SCHEMA = 1
NUMBER = int | float
CELL = {"layer": str, "other_layer": str, "value": NUMBER}
PAIR = {
    "model": str,
    "other_model": str,
    "chance": dict | None,  # pyright: ignore[reportMissingTypeArgument] - a type at run time  # pyright: ignore[reportMissingTypeArgument] - a type at run time
    "same_layers": [{"layer": str, "value": NUMBER}],
    "closest": [CELL],
    "furthest": [CELL],
    "answering": [
        {"layer": str, "closest_layer": str, "value": NUMBER, "chance": NUMBER | None, "margin": NUMBER | None}
    ],
}
RUN = {
    "run": str,
    "name": str,
    "study": str,
    "status": str,
    "error": str | None,
    "seconds": NUMBER | None,
    "seed": int,
    "models": [str],
    "sentences": [str],
    "answers": [{"of": str, "says": str}],
    "measures": [
        {
            "label": str,
            "name": str,
            "larger_is_closer": bool,
            "estimate": dict,
            "token_alone": NUMBER | None,
            "token_and_one_before": NUMBER | None,
            "warnings": [str],
            "pairs": [PAIR],
        }
    ],
    "claims": [{"name": str, "measure": str, "verdict": str, "value": NUMBER | None, "p": NUMBER | None, "why": str}],
    "warnings": [str],
    "figures": [str],
    "report": str | None,
    "results": str | None,
}
SHAPES: dict[str, dict[str, Any]] = {
    "compare": RUN,
    "show": RUN,
    "diff": {
        "first": str,
        "second": str,
        "texts": [{"first": str, "second": str}],
        "models": {str: str},
        "settings": {str: {"first": str, "second": str}},
        "differences": [
            {
                "measure": str,
                "rows": str,
                "columns": str,
                "layers": int,
                "largest": NUMBER,
                "mean": NUMBER,
                "where": [str],
                "signed": NUMBER,
                "largest_in_errors": NUMBER | None,
                "median_in_errors": NUMBER | None,
            }
        ],
        "not_compared": [str],
    },
    "list": {"groups": {str: [{"name": str, "text": str, "notes": str, "example": str}]}, "runs": [dict]},
    "claims": {
        "claims": [
            {
                "name": str,
                "source": str,
                "analysis": str,
                "says": str,
                "statistic": str,
                "holds_where": str,
                "unit": str,
                "verdicts": {str: [str]},
            }
        ]
    },
    "describe": {
        "meanings": [
            {
                "name": str,
                "title": str,
                "path": str,
                "text": str,
                "settings": {str: dict},
                "facts": [str],
                "example": str,
            }
        ]
    },
    "doctor": {"topics": {str: [str]}},
}


def say_json(command: str, content: Mapping[str, Any]) -> None:
    """Prints the document of a command."""
    text = json.dumps({"schema": SCHEMA, "command": command, **content}, indent=1, allow_nan=False)
    say(*text.replace("\x7f", "\\u007f").split("\n"))  # the only character left that `say` would write otherwise


def build_run_json(folder: Path) -> dict[str, Any]:
    """Builds what a run found, as `RUN` has it."""
    manifest = reader.read_manifest(folder)
    known = manifest["status"] == "complete" or reader.has_results(manifest)
    whole = reader.read_results(folder) if known else Results(study=manifest["study"])
    read, labels = partial(reader.read_array, folder), [measured.label for measured in whole.measures]
    page, numbers = folder / "report.html", folder / "results.json"
    return {
        "run": str(folder),
        **{key: manifest[key] for key in ("name", "study", "status", "error", "seed")},
        "seconds": reader.count_seconds(manifest),
        "models": list(manifest.get("models", {})),
        "sentences": list_sentences(folder, whole).say_all(),
        "answers": [{"of": who, "says": what} for who, what in whole.answers],
        "measures": [
            {
                "label": measured.label,
                "name": measured.name,
                "larger_is_closer": measured.larger_is_closer,
                "estimate": measured.estimate,
                "token_alone": (measured.floor or {}).get("value"),
                "token_and_one_before": (measured.floor or {}).get("pairs"),
                "warnings": [
                    text for text in manifest["warnings"] if answer.is_about_measure(text, measured.label, labels)
                ],
                "pairs": [
                    _build_pair_record(measured, sides) for sides in answering.list_directed_pairs(measured, read)
                ],
            }
            for measured in whole.measures
        ],
        "claims": [
            {"name": x.name, "measure": x.measure, "verdict": x.verdict, "value": x.value, "p": x.decided, "why": x.why}
            for x in whole.claims
        ],
        "warnings": list(manifest["warnings"]),
        "figures": [str(file) for file in sorted((folder / "figures").glob("*.png"))],
        "report": str(page) if page.is_file() else None,
        "results": str(numbers) if known and numbers.is_file() else None,
    }


def _build_pair_record(measured: Measured, sides: Sides) -> dict[str, Any]:
    """Two models under a measure, from the first to the second."""
    chance = answer.find_chance_level(measured, sides)
    same = answering.list_layer_values(sides) if sides.same_layers else []
    near, far = answering.pick_extreme_pairs(sides, answer.SHOWN)
    return {
        "model": sides.first,
        "other_model": sides.second,
        "chance": None if chance is None else asdict(chance),
        "same_layers": [{"layer": layer, "value": value} for layer, value in same],
        "closest": [dict(zip(CELL, cell, strict=True)) for cell in near],
        "furthest": [dict(zip(CELL, cell, strict=True)) for cell in far],
        "answering": [
            dict(zip(PAIR["answering"][0], each, strict=True)) for each in answering.find_closest_layers(sides)
        ],
    }


def build_lists_json(groups: Iterable[str], runs: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Builds what `repsim list` lists, as SHAPES has it."""
    return {
        "groups": {group: [entry._asdict() for entry in listing.list_entries(group)] for group in groups},
        "runs": list(runs),
    }
