"""What results.json holds, typed: measures with their matrices, further matrices, tables, curves and verdicts.

Everything after a run reads these and nothing else. `analysis` says which analysis made an item; the study made those
where it is empty.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from repsim_cli.base.plain import say_count

Numbers = list[float | int | None]  # None: a gap
# how a model of modular sums was trained; Models 0, E and L of Gao et al. 2024
ONE_SUM, END_TO_END, BY_BLOCK = "on one sum", "end to end", "block by block"
# what differs, token by token, between a model and its base
RELATIVE, COSINE, KL, NEXT = "relative difference", "cosine", "KL of the outputs", "next token"
# what differs at the end of its blocks, token by token, and the tables of it
OWN, CARRIED = "own change", "carried change"
OF_BLOCKS, OF_WEIGHTS, DIRECTIONS = "changes of blocks", "changes of weights", "directions of change"
OF_BLOCKS_COLUMNS = ["model", "block", OWN, CARRIED, "weights", "rounding", "above rounding", "effect restored"]
# tables of two columns, who and what in a sentence, which stand before all others
WHERE, SAME = "where it changed", "the same layer of two models"
ON = " on "  # in a label, between a model and the column of texts that it read
CHANCE = "chance"  # the detail of a matrix that has the level of chance of each cell: the mean of random pairings
MADE_OF = "what similarity is made of"
BEYOND_WALKS = "clearer than walks"  # a column: yes, no, or nothing where no groups were found by themselves
FOUND, KEPT, STANDS_OUT = "where pairs find each other", "what maps keep", "which layers stand out"
DIFFER, REACHED = "how outputs differ", "what training reached"
ACCURACY = "accuracy"  # of outputs: the table of each model's, with its error
REUSED, NEAREST = "what dictionaries of the base are worth", "closest and furthest models"
CODED = "what a crosscoder has of each side"
IDENTICAL = "identical checkpoints"  # of a training
COPIES = "models that are copies"  # the table of two models each, whose compared layers are the same in some way
ANSWERS = (WHERE, SAME, MADE_OF, FOUND, KEPT, STANDS_OUT, REUSED, NEAREST, CODED, DIFFER, REACHED)
# the tables of the shares of similarity, and of shared neighbours, of layers at the same depth
BUDGET, BY_TOKEN = "similarity budget", "shared neighbours by token"
BUDGET_PARTS = ("value", "token", "rest", "untrained", "learned", "alone")
P_BEYOND = "p beyond the token"
OF_LAYERS = ["model a", "model b", "layer a", "layer b"]
BUDGET_COLUMNS = [*OF_LAYERS, *BUDGET_PARTS, *(f"± {part}" for part in BUDGET_PARTS), P_BEYOND]
BY_TOKEN_COLUMNS = ["measure", *OF_LAYERS, "value", CHANCE, "same token", "other tokens"]

OF_LAYER_ERRORS, OF_LAYER_DIFFERENCES = "errors of layers one by one", "errors of differences of layers"
BY_SCALE = "intrinsic dimension by k"  # tables that are not printed; differences: from the layer that stands out
# the table of diagnostics and its columns; places: of a sequence, whose rows have a mean norm of their own
DIAGNOSTICS, PLACES = "diagnostics of layers", 8
FEATURE, FEATURE_SHARE = "largest feature", "share of variance in the largest feature"
ROWS_SHARE, PARTICIPATION = "share of variance in the largest 1 % of rows", "participation ratio"
NORMS = [*(f"norm at place {place}" for place in range(PLACES)), "norm elsewhere"]
DIAGNOSED = ["model", "layer", "rows", "features", FEATURE, FEATURE_SHARE, ROWS_SHARE, PARTICIPATION, *NORMS]

FEWER_ROWS = "fewer rows"  # the table of the closest layers on samples of the rows
FEATURE_MAPS = "feature maps"  # the kind of a matrix of them: a row per image, a layer after the other
COUNTERPARTS = "counterparts"  # the kind of a matrix of the neurons of a model and their counterparts in another
# of tests of measures: the kinds of a matrix of all models of a test, which its `about` names, and of its layers
# with components deleted; the tables of what could not be measured and of what it cost
COMPARED, TRUNCATED, UNMEASURED, COSTS = "compared", "truncated", "not measured", "cost of measures"
UNMEASURED_COLUMNS = ["measure", "data", "test", "hook point", "why"]
COSTS_COLUMNS = ["measure", "data", "rows", "pairs", "seconds per pair", "rho with all rows"]
# of the rows behind a map: their nearest rows and shares, and what they are of
BEHIND, TEXTS = "rows.safetensors", "rows.json"
# the arrays of a matrix with a number per cell; p, p_family, q and calibrated are of `tested`, if it is there
QUANTITIES = ("values", "se", "low", "high", "p", "p_family", "q", "calibrated", "tested", CHANCE)
# the table of cells of matrices, and of points of curves, for which a measure is undefined
WITHOUT_VALUE = "cells without a value"
WITHOUT_VALUE_COLUMNS = ["measure", "model a", "model b", "layer a", "layer b", "why"]
GRID = "grid"  # the kind of a matrix of the models of a base and of a value of a factor, which its `about` names
SPACES = "feature spaces"  # the table of the spaces of paired features of two layers
MATCHED = "matched latents"  # the kind of a matrix of the latents of two dictionaries, matched one to one
CROSS = "cross-reconstruction"  # the kind of a matrix of how well the code of each model reconstructs each other
REMEDY = "remedy"  # the kind of a matrix under one, of the measure and remedy that its `about` names
# the table of features that are left out
LEFT_OUT = "features left out"
LEFT_OUT_COLUMNS = ["model", "layer", "features left out", "which", "their share of the variance"]
CAPPED = "directions capped"
CAPPED_COLUMNS = ["model", "layer", "directions capped", "their share of the variance before"]


def omit_nan(value: float) -> float | None:
    """The value, or None in place of NaN: a gap, or a cell without a value."""
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True, kw_only=True)
class Side:
    """model: whose layers the rows or columns are, or what they are (`measures`, `models`). layers: their names."""

    model: str
    layers: list[str]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One array of the run folder with the names of its rows and columns.

    values: the array's path.
    se, p, p_family, q, calibrated, tested, low, high: paths of arrays with one number per cell. p_family, q: p
        corrected for the cells of this matrix, or of all, family-wise and as a false discovery rate; None where they
        cannot be known, or cannot be small.
    n: the rows of data that the values rest on. details: further arrays by name.
    label, bounds: of the colour bar, where no measure says them. about: what else is known. analysis: which made it.
    """

    rows: Side
    columns: Side
    values: str = ""
    n: int | None = None
    se: str | None = None
    p: str | None = None
    p_family: str | None = None
    q: str | None = None
    calibrated: str | None = None
    tested: str | None = None
    low: str | None = None
    high: str | None = None
    details: dict[str, str] = field(default_factory=dict)
    label: str = ""
    bounds: list[float | None] = field(default_factory=lambda: [None, None])
    about: dict[str, Any] = field(default_factory=dict)
    analysis: str = ""

    @property
    def cells(self) -> dict[str, str]:
        """The paths of its QUANTITIES, as far as it has them."""
        paths = {what: self.details.get(what) if what == CHANCE else getattr(self, what) for what in QUANTITIES}
        return {what: path for what, path in paths.items() if isinstance(path, str)}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One measure over all layers: a matrix per pair of models, both ways if the measure is asymmetric.

    estimate: kind, rows, rows_available, batches, pairs (`all` or `other_documents`), and unit where it is not rows.
    null: how significance was tested; None: not. chance: what its level is of (units, share of rows with a partner,
    batches, mean, spread, orders), or why it is unknown; scatter, closest: errors by the drawn documents, of layers and
    of the closest; freedom: of the former; documents: how many, or groups. floor: what the token gives alone (value,
    unit, of, width, batches) and with the one before it (pairs); None: no tokens.
    """

    name: str
    label: str
    settings: dict[str, Any]
    estimate: dict[str, Any]
    card: dict[str, Any]
    matrices: list[Matrix]
    null: dict[str, Any] | None = None
    chance: dict[str, Any] | None = None
    floor: dict[str, Any] | None = None

    @property
    def larger_is_closer(self) -> bool:
        return self.card["larger_is_closer"]

    @property
    def token_alone(self) -> str:
        """Says what the token alone gives; empty where it is not known."""
        if self.floor is None:
            return ""
        pairs = f" (per pair with the one before: {self.floor['pairs']:z.2f})" if "pairs" in self.floor else ""
        return f"the {self.floor['unit']} alone: {self.floor['value']:z.2f}{pairs}, {self.floor['of']}"

    @property
    def fixed_places(self) -> str:
        """Says that the value changes as rows are added, and of how many it is; empty where it does not."""
        k, kind = self.settings.get("k"), self.estimate.get("kind")
        rows = self.estimate["rows_available" if kind == "sampled" else "rows"] // max(
            self.estimate.get("batches", 1), 1
        )
        falls = self.card.get("falls_with_rows", False) and isinstance(k, int)
        return f"k = {k} of {rows:,} rows, changes with their number" if falls else ""

    @property
    def pairs(self) -> str:
        """Says which pairs of rows it is of; empty where these are all."""
        return "pairs of rows of different documents" if self.estimate.get("pairs") == "other_documents" else ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """columns: their names. rows: by row, text, finite numbers, truth values or None. analysis: which made it."""

    columns: list[str]
    rows: list[list[Any]]
    analysis: str = ""

    def __post_init__(self) -> None:
        if any(len(row) != len(self.columns) for row in self.rows):
            raise ValueError(f"a row that has not {len(self.columns)} cells")

    def column(self, name: str) -> list[Any]:
        return [row[self.columns.index(name)] for row in self.rows]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """name: what the numbers are. unit: `nats`, `tokens`; empty where there is none."""

    name: str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name


@dataclass(frozen=True, kw_only=True)
class Band:
    """low, high: at each position. of: what the band is, in words (`95 % over models`)."""

    low: Numbers
    high: Numbers
    of: str


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Lines over one axis: at[i] is the place of the i-th value of every line.

    at: steps, epochs, or names of layers. lines: by name (a layer, a pair of models), each as long as `at`.
    mean: over the lines. bands: about the mean, by name. errors: standard errors of lines. bounds: of y.
    about: what tells the curves of one figure apart (quantity, model, hook point ...); its key `levels`: what chance
        gives, by what that is, or its low, middle and high value; empty where it is not known.
    analysis: which made it.
    """

    x: Axis
    y: Axis
    at: list[Any]
    lines: dict[str, Numbers]
    mean: Numbers | None = None
    bands: dict[str, Band] = field(default_factory=dict)
    errors: dict[str, Numbers] = field(default_factory=dict)
    bounds: list[float | None] = field(default_factory=lambda: [None, None])
    about: dict[str, Any] = field(default_factory=dict)
    analysis: str = ""

    def __post_init__(self) -> None:
        bands = [side for band in self.bands.values() for side in (band.low, band.high)]
        every = [*self.lines.values(), *self.errors.values(), *bands, *([] if self.mean is None else [self.mean])]
        if any(len(values) != len(self.at) for values in every):
            raise ValueError(f"a line that has not {len(self.at)} values")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a claim came to on the data of one run. measure: what it was tested on. p, opposite_p: one-sided, of a value
    as far to the published side of the threshold, and to the other side. unit, units: what they are over, and how many
    of these; empty in runs that were written before claims declared it."""

    name: str
    source: str
    says: str
    measure: str
    statistic: str
    value: float | None
    se: float | None
    threshold: float
    p: float | None
    opposite_p: float | None
    verdict: str
    why: str
    analysis: str = ""
    unit: str = ""
    units: int | None = None

    @property
    def decided(self) -> float | None:
        """The p that decided: of a claim that fails that to the other side."""
        return self.opposite_p if self.verdict == "fails" else self.p

    @property
    def over(self) -> str:
        """The number of units, in words; empty where it is not known.

        >>> more = dict.fromkeys(["name", "source", "says", "measure", "statistic", "why"], "")
        >>> numbers = dict.fromkeys(["value", "se", "p", "opposite_p"], 0.0)
        >>> Verdict(**more, **numbers, threshold=0.0, verdict="holds", unit="pair of models", units=3).over
        '3 pairs of models'
        """
        return say_count(self.units, self.unit) if self.unit and self.units is not None else ""

    @property
    def basis(self) -> str:
        """The words on what p rests on: the number of units, and more where value, threshold and error do not give p.

        >>> more = dict.fromkeys(["name", "source", "says", "measure", "statistic"], "")
        >>> numbers = dict.fromkeys(["value", "se", "p", "opposite_p"], 0.0)
        >>> given = {**more, **numbers, "threshold": 0.0, "verdict": "unclear", "unit": "model", "units": 3}
        >>> Verdict(**given, why="standard error over 3 models").basis
        '3 models'
        >>> Verdict(**given, why="standard error over 3 models, and steps of the curve that they share").basis
        'standard error over 3 models, and steps of the curve that they share'
        """
        plain = self.se is not None and self.why in (f"standard error over {self.over}", f"spread of {self.over}")
        if plain or self.decided is None or self.verdict == "not testable here" or not self.why:
            return self.over
        return self.why if self.over in self.why else f"{self.over}, {self.why}"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a manifest says of a model, so that nothing after a run needs the model.

    kind: `live`, `stored` (activations) or `series` (then of its last checkpoint). family: its architecture; of stored
    activations the first part of their label. layers, widths: the hook points that are read, and their features.
    blocks, width, heads, head_width, rotary, parameters, vocabulary: None of stored activations. trained: whether its
    weights are not fresh. training: how it was trained here, where that tells models apart. steps: of a series.
    entry: its entry of `model`, where that stands for several models, such as the seeds of a training.
    """

    kind: str
    family: str
    layers: list[str]
    widths: list[int]
    blocks: int | None = None
    width: int | None = None
    heads: int | None = None
    head_width: int | None = None
    rotary: int | None = None
    parameters: int | None = None
    vocabulary: int | None = None
    trained: bool = True
    training: str = ""
    steps: list[int] = field(default_factory=list)
    entry: str = ""


def read_facts(manifest: Mapping[str, Any]) -> dict[str, Facts]:
    """The facts of every model that a manifest has, as far as this version knows them."""
    known = {part.name for part in dataclasses.fields(Facts)}
    facts = manifest.get("facts", {}).items()
    return {label: Facts(**{key: fact for key, fact in of.items() if key in known}) for label, of in facts}


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a study has measured. matrices, tables, curves: by name. about: facts of the study that its figures need.
    warnings: beside those of `Run.warn`.

    The run fills the others. study: which one. analyses: by name the options and the code (version, commit) that made
    the items of each, and its `claims`. marks: by model, how it falls short of what it was trained for."""

    study: str = ""
    measures: list[Measured] = field(default_factory=list)
    matrices: dict[str, Matrix] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    claims: list[Verdict] = field(default_factory=list)
    analyses: dict[str, dict[str, Any]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    marks: dict[str, str] = field(default_factory=dict)

    def leave_out_analyses(self) -> "Results":
        """The results without what analyses made."""
        return functools.reduce(Results.leave_out_analysis, self.analyses, self)

    @property
    def answers(self) -> list[tuple[str, str]]:
        """Lists what the run says in sentences, and of whom."""
        rows = [row for name in ANSWERS if name in self.tables for row in self.tables[name].rows]
        return [(str(who), str(what)) for who, what in (row for row in rows if len(row) == 2)]

    def pairs_of(self, measured: Measured) -> str:
        """Says which pairs of rows a measure is of, where not every measure is of all, and of which neighbours."""
        pairs = (measured.pairs or "all pairs of rows") if any(each.pairs for each in self.measures) else ""
        return ", ".join(filter(None, [pairs, measured.fixed_places]))

    def index_by_remedy(self) -> dict[str, dict[str, Measured]]:
        """Collects each measure as if it had been run with a remedy, by label and by remedy; empty where none was."""
        by_label = {measured.label: measured for measured in self.measures}
        measures: dict[str, dict[str, Measured]] = {}
        for matrix in self.matrices.values():
            if matrix.about.get("kind") == REMEDY and matrix.about["measure"] in by_label:
                label, remedy = matrix.about["measure"], matrix.about["remedy"]
                base = by_label[label]
                estimate = {key: value for key, value in base.estimate.items() if key != "remedies"}
                like = dataclasses.replace(
                    base, label=f"{label}, {remedy}", matrices=[], null=None, estimate={**estimate, "rows": matrix.n}
                )
                measures.setdefault(label, {}).setdefault(remedy, like).matrices.append(matrix)
        return measures

    def leave_out_analysis(self, analysis: str) -> "Results":
        """The same without what this analysis made."""
        return dataclasses.replace(
            self,
            matrices={name: x for name, x in self.matrices.items() if x.analysis != analysis},
            tables={name: x for name, x in self.tables.items() if x.analysis != analysis},
            curves={name: x for name, x in self.curves.items() if x.analysis != analysis},
            claims=[x for x in self.claims if x.analysis != analysis],
            analyses={name: x for name, x in self.analyses.items() if name != analysis},
        )

    def leave_out_claims(self, names: Collection[str]) -> "Results":
        """The same without the verdicts on these claims."""
        return dataclasses.replace(self, claims=[claim for claim in self.claims if claim.name not in names])
