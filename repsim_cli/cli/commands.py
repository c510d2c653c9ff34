"""The commands and their arguments."""

import argparse
import importlib
from collections.abc import Callable
from typing import Any

from repsim_cli import __version__
from repsim_cli.base import garbage
from repsim_cli.cli.parser import Parser, add_map, read_column
from repsim_cli.config.presets import GROUPS, UNSELECTED

STARTING_RUNS = ("compare", "verify", "claims")  # import for seconds more, until `execution/perform.py`


def _make_lazy_command(module: str, name: str) -> Callable[..., Any]:
    """A command, whose module is imported when it is called: help needs none of them."""

    def call(parsed: argparse.Namespace) -> int:
        command = getattr(importlib.import_module(f"repsim_cli.cli.{module}"), name)
        if module not in STARTING_RUNS:
            garbage.resume()
        return command(parsed)

    return call


def build_parser() -> Parser:
    """The parser of all commands, which imports none of them."""
    top = Parser(
        prog="repsim",
        description="Compare the inside of language models: from one config to similarity matrices, figures and JSON.",
        epilog="example: repsim run experiment=tiny/pythia_cka",
    )
    top.add_argument("--version", action="version", version=f"repsim {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def add(
        name: str, command: Callable[..., Any], help: str, example: str, description: str = ""
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=help,
            description=description or f"{help[0].upper()}{help[1:]}.",
            epilog=f"example: {example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(command=command)
        return sub

    add_first(add)
    add_map(add, _make_lazy_command)
    add_of_finished(add)
    for name in AS_JSON:
        commands.choices[name].add_argument("--json", action="store_true", help="print the answer as JSON")
    return top


AS_JSON = ("compare", "show", "diff", "list", "claims", "describe", "doctor")  # cli/machine.py has the keys
Add = Callable[..., argparse.ArgumentParser]


def add_first(add: Add) -> None:
    """Commands that run, list and explain, and what they need."""
    sub = add("run", lambda _: 0, "run an experiment", "repsim run experiment=tiny/pythia_cka seed=1", RUN_HELP)
    sub.usage = "repsim run [-q] [-m] [--from RUN] [KEY=VALUE ...]"

    sub = add(
        "list",
        _make_lazy_command("listing", "list_command"),
        "list what can be selected or set, or the runs",
        "repsim list model",
    )
    sub.add_argument(
        "what",
        nargs="?",
        choices=(*UNSELECTED, *GROUPS, "setting", "architecture", "run"),
        help="one group (all that can be selected by default)",
    )

    sub = add(
        "describe",
        _make_lazy_command("describe", "describe_command"),
        "explain a study, analysis, measure, model, data set or setting",
        "repsim describe extract.estimate",
        "Explain a study, analysis, measure, model, data set, or one setting of them: what it means, what it may be,\n"
        "its default, and a command. `describe model MODEL` says what a model on the disk consists of, and which hook\n"
        "points it has; no weights are loaded.",
    )
    sub.add_argument(
        "name", metavar="NAME", help="e.g. similarity, cka, tiny_nli, extract, hardware.tile, mutual_knn.k"
    )
    sub.add_argument(
        "which",
        metavar="MODEL",
        nargs="?",
        help="after `model`: a folder, a .gguf file, a hub id, or a name of repsim list model",
    )

    sub = add(
        "show",
        _make_lazy_command("show", "show_command"),
        "show a run: how it ended, its numbers, its files",
        "repsim show latest",
    )
    sub.add_argument("run", metavar="RUN", help="a path, `latest`, or a name")
    sub.add_argument(
        "--follow", action="store_true", help="of a running run: its log and its maps so far, until it ends"
    )

    sub = add(
        "compare",
        _make_lazy_command("compare", "compare_command"),
        "compare the layers of two models",
        "repsim compare models/small models/large --data texts.txt",
        "Compare all layers of two models, into a new run folder; repsim run model.LABEL=MODEL ... compares more.",
    )
    sub.add_argument("first", metavar="MODEL", help="a folder, .gguf file, hub id or name of repsim list model")
    sub.add_argument("second", metavar="MODEL", help="the same")
    sub.add_argument("--data", metavar="DATA", help="a file of text, a table, or a name of repsim list data")
    sub.add_argument(
        "--column", metavar="NAME", type=read_column, help="of a table: the column of the text, or its number (text)"
    )
    sub.add_argument("--measure", metavar="NAME,...", help="names of repsim list measure (cka_unbiased,mutual_knn)")
    sub.add_argument("--names", metavar="NAME,NAME", help="of the models (the last parts of their paths that differ)")
    sub.add_argument("--significance", metavar="NAME", default="none", help="a name of repsim list significance (none)")
    sub.add_argument("-q", "--quiet", action="store_true", help="print errors only")
    sub.add_argument(
        "--until",
        metavar="se=NUMBER",
        help="few rows first, more until the largest standard error (of CKA) is at most NUMBER",
    )
    sub.add_argument("--budget", action="store_true", help="split values into the token, untrained models, training")
    sub.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a setting of repsim run, such as extract.batch_rows=256, dry_run=true or resume=latest; more may follow",
    )
    sub.add_argument(
        "--rows",
        choices=("auto", "tokens", "words", "pooled"),
        default="auto",
        help="what becomes a row; auto: tokens where the models share a tokenizer, words elsewhere",
    )

    sub = add(
        "diff",
        _make_lazy_command("compare", "diff_command"),
        "show how far the numbers of two runs differ",
        "repsim diff latest tiny_pythia_cka",
    )
    sub.add_argument("first", metavar="RUN", help="a path, `latest`, or a name")
    sub.add_argument("second", metavar="RUN", help="the same; the differences are the second minus the first")
    sub.add_argument("--output", metavar="DIR", help="draws the differences and writes their table there")

    sub = add(
        "verify",
        _make_lazy_command("verify", "verify_command"),
        "say whether two models are the same, and if not, where they first differ",
        "repsim verify models/small models/copy",
        "Say whether the candidate is the same model as the reference, and if not, at which module it first differs,\n"
        "on the reference's own inputs: IDENTICAL (every bit), ROUNDING (within what the precision gives), AS\n"
        "QUANTISED, or DIFFERENT. Ends with 0 where they are the same, 1 where they differ, 2 where there is no\n"
        "verdict.",
    )
    sub.add_argument(
        "reference",
        metavar="REFERENCE",
        help="a folder, .gguf file, hub id or name of repsim list model, a file of --save, or activations that a "
        "serving engine stored, with token ids",
    )
    sub.add_argument("candidate", metavar="CANDIDATE", nargs="?", help="the same, but for files of --save")
    sub.add_argument(
        "--save", metavar="FILE", help="write the reference to a .safetensors file, to be given in its place"
    )
    sub.add_argument("--quick", action="store_true", help="measure no rounding, and try text alone")
    sub.add_argument(
        "--layer-ids",
        metavar="IDS",
        help="of stored activations, the layers that the engine was told to write, as 0,4-6 (all)",
    )
    sub.add_argument("--text", metavar="FILE", help="a file of text (text that ships with the package)")
    sub.add_argument(
        "--by-block",
        choices=("auto", "always", "never"),
        default="auto",
        help="hold one block of each model in memory (auto: where both would take more than half of --memory-gb)",
    )
    sub.add_argument("--memory-gb", metavar="GB", type=float, help="what may be taken (80 %% of the machine's memory)")
    sub.add_argument("--json", action="store_true", help="print all of the answer as JSON")
    sub.add_argument("--junit", metavar="FILE", help="write the answer as the result of a test, for CI servers")
    sub.add_argument(
        "--fail-on",
        choices=("rounding", "as-quantised", "different"),
        default="different",
        help="the first verdict that ends with 1 (different)",
    )

    add(
        "doctor",
        _make_lazy_command("show", "doctor_command"),
        "report what this machine and installation offer",
        "repsim doctor",
    )

    sub = add(
        "cache",
        _make_lazy_command("show", "cache_command"),
        "show, limit or clear stored activations",
        "repsim cache --limit 20GB",
    )
    sub.add_argument("--clear", action="store_true", help="remove all entries that no run is using")
    sub.add_argument("--limit", metavar="SIZE", help="the most that all entries may take together; kept for later runs")

    sub = add(
        "convert",
        _make_lazy_command("show", "convert_command"),
        "rewrite a model's pickled weights as safetensors",
        "repsim convert connectivity/feather_berts_99 models/feather_berts_99",
        "Rewrite pickled weights (pytorch_model.bin) as safetensors, into a new folder. A separate process\n"
        "reads nothing but tensors, and can neither connect to the network nor start another process.",
    )
    sub.add_argument("source", metavar="MODEL", help="a folder in the transformers format, or a hub id")
    sub.add_argument("target", metavar="FOLDER", help="where the converted model goes: a new folder")
    sub.add_argument("--revision", help="of a hub id")


def add_of_finished(add: Add) -> None:
    """Commands on what a run left, and on arrays."""
    sub = add(
        "plot",
        _make_lazy_command("show", "plot_command"),
        "draw the figures of a run again, from its files",
        "repsim plot latest",
    )
    sub.add_argument("run", metavar="RUN", help="a path, `latest`, or a name")
    sub.add_argument(
        "--heads",
        metavar=("MODEL", "MODEL"),
        nargs=2,
        help="for an attention run, draw the similarity of the heads of two models instead; MODEL@3: of block 3 alone",
    )

    sub.add_argument("--all", action="store_true", help="draw every figure, not only those of the overview")

    sub = add(
        "export",
        _make_lazy_command("show", "export_command"),
        "write the tables and figures of a run for a paper",
        "repsim export latest --latex --pdf --width column",
        "Write the numbers of a run as CSV, LaTeX (booktabs) or parquet, and its figures as vector PDF with the fonts\n"
        "inside, without titles.",
    )
    sub.add_argument("run", metavar="RUN", help="a path, `latest`, or a name")
    sub.add_argument("--csv", action="store_true", help="tables with full precision")
    sub.add_argument("--latex", action="store_true", help="tables for LaTeX, numbers with three decimals")
    sub.add_argument("--parquet", action="store_true", help="tables for programs")
    sub.add_argument("--pdf", action="store_true", help="figures")
    sub.add_argument("--all", action="store_true", help="every figure, not only those of the overview")
    sub.add_argument("--width", choices=("column", "page"), help="of figures: 3.25 or 6.75 inches; text keeps its size")
    sub.add_argument("--colours", metavar="NAME", default="viridis", help="the colour map of figures (viridis)")
    sub.add_argument("--titles", action="store_true", help="figures keep their titles")
    sub.add_argument("--font", metavar="NAME", default="DejaVu Sans", help="the font of figures (DejaVu Sans)")
    sub.add_argument("--output", metavar="DIR", help="where the files go (export/ in the run folder)")

    sub = add(
        "analyse",
        _make_lazy_command("show", "analyse_command"),
        "analyse a finished run again, from its files",
        "repsim analyse latest +analyses.agreement={}",
        "Compute what follows from a finished run again, or more of it: no model is loaded. Without changes:\n"
        "the analyses and claims of the run's configuration. An analysis that the run already has is replaced.",
    )
    sub.add_argument("run", metavar="RUN", help="a path, `latest`, or a name")
    sub.add_argument(
        "changes", metavar="KEY=VALUE", nargs="*", help="+analyses.NAME={OPTION: VALUE}, or claims=[NAME,NAME]"
    )

    sub = add(
        "claims",
        _make_lazy_command("claims", "claims_command"),
        "list published findings, and the verdicts of the newest runs",
        "repsim claims falls_with_layer_distance",
    )
    sub.add_argument("names", metavar="CLAIM", nargs="*", help="all by default")
    sub.add_argument(
        "--check",
        choices=("tiny",),
        help="run the tiny experiments that are missing, and print the table of their verdicts",
    )

    sub = add(
        "report",
        _make_lazy_command("show", "report_command"),
        "make one HTML page of a run, of several, or of a sweep; or list all runs",
        "repsim report latest",
        "Make one HTML page of a run, of several, or of a sweep. Without RUN: index.html in the folder of all runs,\n"
        "which lists them with search, thumbnails and links to their pages.",
    )
    sub.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        help="a path, `latest`, a name, or a sweep; several appear side by side; none: all runs in one list",
    )
    sub.add_argument(
        "--output", metavar="FILE", help="where the page goes (report.html in the folder of one run or sweep)"
    )
    sub.add_argument("--follow", action="store_true", help="of a running run: its maps so far; the page reloads itself")

    sub = add(
        "measure",
        _make_lazy_command("measure", "measure_command"),
        "compare two arrays (n, d) with paired rows",
        "repsim measure all X.npy Y.npy --json",
    )
    sub.add_argument("name", metavar="NAME", help="a measure (see repsim list measure), or all")
    sub.add_argument("x", metavar="X.npy", help="the rows of the matrix entry: explained by, or matched to, Y")
    sub.add_argument("y", metavar="Y.npy", help="the columns of the matrix entry")
    sub.add_argument("settings", metavar="key=value", nargs="*", default=[], help="settings of the measure")
    sub.add_argument("--labels", metavar="L.npy", help="a class code per row, for measures that need them")
    sub.add_argument("--json", action="store_true", help="print value, settings and card as JSON")


RUN_HELP = """\
Run an experiment, or the default one, into a new folder under outputs/ (or REPSIM_OUTPUTS).

  KEY=VALUE           sets a key or selects from a group: experiment=NAME model=[a,b] data=local_text seed=1
  model.LABEL=MODEL   compares a model of yours: a folder, a .gguf file, a hub id, or a name of repsim list model;
                      models given this way are the only ones, unless model=[...] is given too
  +model.LABEL='{kind: transformers, path: DIR, quantize: {bits: 8}}'
                      adds a model with settings; the claims of an experiment are about its own models and are then
                      tested only where claims=[NAME,...] asks for them
  -m, --multirun      runs every combination of the values given with commas: seed=0,1,2
  -q, --quiet         prints errors only
  dry_run=true        prints the plan (models, layers, pairs, forward passes, memory, time) and stops
  --cfg job           prints the composed configuration
  --config-dir DIR    adds a folder of your YAML files
  --from RUN          repeats a run with its configuration; KEY=VALUE and GROUP=NAME change it
  resume=latest       resumes the newest unfinished run of the same configuration; resume=RUN that one
  cache=false         neither reads nor writes stored activations (repsim cache shows them)
"""
