"""The commands and their arguments."""

from repsim_cli.cli.parser import Command, Parser, argument, make_parser, read_column, read_number
from repsim_cli.config.presets import GROUPS, UNSELECTED


def build_parser() -> Parser:
    """The parser of all commands, which imports none of them."""
    return make_parser(COMMANDS)


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
MAP_HELP = """Keep vectors when the model changes: `map fit` fits maps from rows of the old model to rows of the new one
on some documents, and says what they keep on others; `map apply` maps stored rows into a new file."""
RUN = argument("run", metavar="RUN", help="a path, `latest`, or a name")
COLUMN = argument(
    "--column", metavar="NAME", type=read_column, help="of a table: the column of the text, or its number (text)"
)
NAMES = argument("--names", metavar="NAME,NAME", help="of the models (the last parts of their paths that differ)")
JSON = argument("--json", action="store_true", help="print the answer as JSON")  # its keys: cli/machine.py

COMMANDS = (
    Command(
        "run",
        "",
        "run an experiment",
        "repsim run experiment=tiny/pythia_cka seed=1",
        about=RUN_HELP,
        usage="repsim run [-q] [-m] [--from RUN] [KEY=VALUE ...]",
    ),
    Command(
        "list",
        "listing.list_command",
        "list what can be selected or set, or the runs",
        "repsim list model",
        [
            argument(
                "what",
                nargs="?",
                choices=(*UNSELECTED, *GROUPS, "setting", "architecture", "run"),
                help="one group (all that can be selected by default)",
            ),
            JSON,
        ],
    ),
    Command(
        "describe",
        "describe.describe_command",
        "explain a study, analysis, measure, model, data set or setting",
        "repsim describe extract.estimate",
        [
            argument(
                "name", metavar="NAME", help="e.g. similarity, cka, tiny_nli, extract, hardware.tile, mutual_knn.k"
            ),
            argument(
                "which",
                metavar="MODEL",
                nargs="?",
                help="after `model`: a folder, a .gguf file, a hub id, or a name of repsim list model",
            ),
            JSON,
        ],
        about="Explain a study, analysis, measure, model, data set, or one setting of them: what it means, what "
        "it may be,\n"
        "its default, and a command. `describe model MODEL` says what a model on the disk consists of, and which hook\n"
        "points it has; no weights are loaded.",
    ),
    Command(
        "show",
        "show.show_command",
        "show a run: how it ended, its numbers, its files",
        "repsim show latest",
        [
            RUN,
            argument(
                "--follow", action="store_true", help="of a running run: its log and its maps so far, until it ends"
            ),
            JSON,
        ],
    ),
    Command(
        "compare",
        "compare.compare_command",
        "compare the layers of two models",
        "repsim compare models/small models/large --data texts.txt",
        [
            argument("first", metavar="MODEL", help="a folder, .gguf file, hub id or name of repsim list model"),
            argument("second", metavar="MODEL", help="the same"),
            argument("--data", metavar="DATA", help="a file of text, a table, or a name of repsim list data"),
            COLUMN,
            argument("--measure", metavar="NAME,...", help="names of repsim list measure (cka_unbiased,mutual_knn)"),
            NAMES,
            argument(
                "--significance", metavar="NAME", default="none", help="a name of repsim list significance (none)"
            ),
            argument("-q", "--quiet", action="store_true", help="print errors only"),
            argument(
                "--until",
                metavar="se=NUMBER",
                help="few rows first, more until the largest standard error (of CKA) is at most NUMBER",
            ),
            argument("--budget", action="store_true", help="split values into the token, untrained models, training"),
            argument(
                "--set",
                metavar="KEY=VALUE",
                action="append",
                default=[],
                help="a setting of repsim run, such as extract.batch_rows=256, dry_run=true or resume=latest; "
                "more may follow",
            ),
            argument(
                "--rows",
                choices=("auto", "tokens", "words", "pooled"),
                default="auto",
                help="what becomes a row; auto: tokens where the models share a tokenizer, words elsewhere",
            ),
            JSON,
        ],
        about="Compare all layers of two models, into a new run folder; repsim run model.LABEL=MODEL ... "
        "compares more.",
    ),
    Command(
        "diff",
        "compare.diff_command",
        "show how far the numbers of two runs differ",
        "repsim diff latest tiny_pythia_cka",
        [
            argument("first", metavar="RUN", help="a path, `latest`, or a name"),
            argument("second", metavar="RUN", help="the same; the differences are the second minus the first"),
            argument("--output", metavar="DIR", help="draws the differences and writes their table there"),
            JSON,
        ],
    ),
    Command(
        "verify",
        "verify.verify_command",
        "say whether two models are the same, and if not, where they first differ",
        "repsim verify models/small models/copy",
        [
            argument(
                "reference",
                metavar="REFERENCE",
                help="a folder, .gguf file, hub id or name of repsim list model, a file of --save, or "
                "activations that a "
                "serving engine stored, with token ids",
            ),
            argument("candidate", metavar="CANDIDATE", nargs="?", help="the same, but for files of --save"),
            argument(
                "--save", metavar="FILE", help="write the reference to a .safetensors file, to be given in its place"
            ),
            argument("--quick", action="store_true", help="measure no rounding, and try text alone"),
            argument(
                "--layer-ids",
                metavar="IDS",
                help="of stored activations, the layers that the engine was told to write, as 0,4-6 (all)",
            ),
            argument("--text", metavar="FILE", help="a file of text (text that ships with the package)"),
            argument(
                "--by-block",
                choices=("auto", "always", "never"),
                default="auto",
                help="hold one block of each model in memory (auto: where both would take more than half of "
                "--memory-gb)",
            ),
            argument(
                "--memory-gb", metavar="GB", type=read_number, help="what may be taken (80 %% of the machine's memory)"
            ),
            argument("--json", action="store_true", help="print all of the answer as JSON"),
            argument("--junit", metavar="FILE", help="write the answer as the result of a test, for CI servers"),
            argument(
                "--fail-on",
                choices=("rounding", "as-quantised", "different"),
                default="different",
                help="the first verdict that ends with 1 (different)",
            ),
        ],
        about="Say whether the candidate is the same model as the reference, and if not, at which module it "
        "first differs,\n"
        "on the reference's own inputs: IDENTICAL (every bit), ROUNDING (within what the precision gives), AS\n"
        "QUANTISED, or DIFFERENT. Ends with 0 where they are the same, 1 where they differ, 2 where there is no\n"
        "verdict.",
    ),
    Command(
        "doctor", "show.doctor_command", "report what this machine and installation offer", "repsim doctor", [JSON]
    ),
    Command(
        "cache",
        "show.cache_command",
        "show, limit or clear stored activations",
        "repsim cache --limit 20GB",
        [
            argument("--clear", action="store_true", help="remove all entries that no run is using"),
            argument(
                "--limit", metavar="SIZE", help="the most that all entries may take together; kept for later runs"
            ),
        ],
    ),
    Command(
        "convert",
        "show.convert_command",
        "rewrite a model's pickled weights as safetensors",
        "repsim convert connectivity/feather_berts_99 models/feather_berts_99",
        [
            argument("source", metavar="MODEL", help="a folder in the transformers format, or a hub id"),
            argument("target", metavar="FOLDER", help="where the converted model goes: a new folder"),
            argument("--revision", help="of a hub id"),
        ],
        about="Rewrite pickled weights (pytorch_model.bin) as safetensors, into a new folder. A separate process\n"
        "reads nothing but tensors, and can neither connect to the network nor start another process.",
    ),
    Command(
        "map",
        "",
        "keep vectors when the model changes",
        "repsim map fit old.npy new.npy",
        about=MAP_HELP,
        parts=[
            Command(
                "fit",
                "vector_maps.fit_command",
                "fit maps on some documents and score them on others, in a new run folder",
                "repsim map fit old.npy new.npy",
                [
                    argument("old", metavar="OLD", help="a model as of repsim compare, or a file of its rows"),
                    argument(
                        "new",
                        metavar="NEW",
                        help="the same; rows of files are paired in order, or by ids in both files",
                    ),
                    argument(
                        "--data",
                        metavar="DATA",
                        help="of models: a file of text, a table, or a name of repsim list data",
                    ),
                    COLUMN,
                    argument("--kind", metavar="NAME,...", help="of rotation, affine, ridge and low_rank (all)"),
                    argument(
                        "--layers",
                        metavar="LAYER,LAYER",
                        action="append",
                        default=[],
                        help="of the two models (the last of each)",
                    ),
                    NAMES,
                    argument(
                        "--out", metavar="MAP", help="a .safetensors file for the map that keeps most new neighbours"
                    ),
                    argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a setting of repsim run"),
                ],
            ),
            Command(
                "apply",
                "vector_maps.apply_command",
                "map the rows of a file into another file",
                "repsim map apply map.safetensors old.npy mapped.npy",
                [
                    argument("map", metavar="MAP", help="a file that repsim map fit wrote"),
                    argument(
                        "rows", metavar="ROWS", help="a .npy, .parquet or .safetensors file of rows of the old model"
                    ),
                    argument("out", metavar="OUT", help="a new file of the same kind"),
                    argument(
                        "--array", metavar="NAME", help="the array or column, where several have the width of the map"
                    ),
                ],
            ),
        ],
    ),
    Command(
        "plot",
        "show.plot_command",
        "draw the figures of a run again, from its files",
        "repsim plot latest",
        [
            RUN,
            argument(
                "--heads",
                metavar=("MODEL", "MODEL"),
                nargs=2,
                help="for an attention run, draw the similarity of the heads of two models instead; MODEL@3: of "
                "block 3 alone",
            ),
            argument("--all", action="store_true", help="draw every figure, not only those of the overview"),
        ],
    ),
    Command(
        "export",
        "show.export_command",
        "write the tables and figures of a run for a paper",
        "repsim export latest --latex --pdf --width column",
        [
            RUN,
            argument("--csv", action="store_true", help="tables with full precision"),
            argument("--latex", action="store_true", help="tables for LaTeX, numbers with three decimals"),
            argument("--parquet", action="store_true", help="tables for programs"),
            argument("--pdf", action="store_true", help="figures"),
            argument("--all", action="store_true", help="every figure, not only those of the overview"),
            argument(
                "--width", choices=("column", "page"), help="of figures: 3.25 or 6.75 inches; text keeps its size"
            ),
            argument("--colours", metavar="NAME", default="viridis", help="the colour map of figures (viridis)"),
            argument("--titles", action="store_true", help="figures keep their titles"),
            argument("--font", metavar="NAME", default="DejaVu Sans", help="the font of figures (DejaVu Sans)"),
            argument("--output", metavar="DIR", help="where the files go (export/ in the run folder)"),
        ],
        about="Write the numbers of a run as CSV, LaTeX (booktabs) or parquet, and its figures as vector PDF "
        "with the fonts\n"
        "inside, without titles.",
    ),
    Command(
        "analyse",
        "show.analyse_command",
        "analyse a finished run again, from its files",
        "repsim analyse latest +analyses.agreement={}",
        [
            RUN,
            argument(
                "changes", metavar="KEY=VALUE", nargs="*", help="+analyses.NAME={OPTION: VALUE}, or claims=[NAME,NAME]"
            ),
        ],
        about="Compute what follows from a finished run again, or more of it: no model is loaded. Without changes:\n"
        "the analyses and claims of the run's configuration. An analysis that the run already has is replaced.",
    ),
    Command(
        "claims",
        "claims.claims_command",
        "list published findings, and the verdicts of the newest runs",
        "repsim claims falls_with_layer_distance",
        [
            argument("names", metavar="CLAIM", nargs="*", help="all by default"),
            argument(
                "--check",
                choices=("tiny",),
                help="run the tiny experiments that are missing, and print the table of their verdicts",
            ),
            JSON,
        ],
    ),
    Command(
        "report",
        "show.report_command",
        "make one HTML page of a run, of several, or of a sweep; or list all runs",
        "repsim report latest",
        [
            argument(
                "runs",
                metavar="RUN",
                nargs="*",
                help="a path, `latest`, a name, or a sweep; several appear side by side; none: all runs in one list",
            ),
            argument(
                "--output", metavar="FILE", help="where the page goes (report.html in the folder of one run or sweep)"
            ),
            argument(
                "--follow", action="store_true", help="while a run computes: its maps so far; the page reloads itself"
            ),
        ],
        about="Make one HTML page of a run, of several, or of a sweep. Without RUN: index.html in the folder of "
        "all runs,\n"
        "which lists them with search, thumbnails and links to their pages.",
    ),
    Command(
        "measure",
        "measure.measure_command",
        "compare two arrays (n, d) with paired rows",
        "repsim measure all X.npy Y.npy --json",
        [
            argument("name", metavar="NAME", help="a measure (see repsim list measure), or all"),
            argument("x", metavar="X.npy", help="the rows of the matrix entry: explained by, or matched to, Y"),
            argument("y", metavar="Y.npy", help="the columns of the matrix entry"),
            argument("settings", metavar="key=value", nargs="*", default=[], help="settings of the measure"),
            argument("--labels", metavar="L.npy", help="a class code per row, for measures that need them"),
            argument("--json", action="store_true", help="print value, settings and card as JSON"),
        ],
    ),
)
