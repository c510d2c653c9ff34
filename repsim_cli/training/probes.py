"""Probes: how well a target can be predicted from a representation, on rows that the probe was not fitted on.

They are those of scikit-learn. A target is a class per row. A regression probe is fitted on the number of the class
and scored by 1 - R^2, a classification probe by 1 - accuracy: 0 is perfect; a target that cannot be predicted gives
about 1, or the error of a guess. The control is the same fit to labels without meaning: what it reaches, the probe
learns by itself (Hewitt and Liang 2019).
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num
from scipy.special import bdtrc, stdtr

from repsim_cli.base.errors import BadInput

Task = str  # a key of ERRORS
ERRORS = {"number": "1 - R²", "class": "1 - accuracy"}


@dataclass(frozen=True)
class Probe:
    """make(seed): a fresh estimator. label: in figures. linear: by least squares, on all targets of a layer at once."""

    label: str
    task: Task
    make: Callable[[int], Any]
    linear: bool = False


def _linear(seed: int) -> Any:
    from sklearn.linear_model import LinearRegression

    return LinearRegression()


def _logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression()


INTERRUPTED = "Training interrupted by user"
PENALTIES = tuple(10.0**power for power in range(-2, 6))  # of standardised features


def _ridge(seed: int) -> Any:
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), RidgeClassifierCV(PENALTIES))


def _mlp_regressor(seed: int) -> Any:
    from sklearn.neural_network import MLPRegressor

    return MLPRegressor(random_state=seed)


def _mlp_classifier(seed: int) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier(random_state=seed)


PROBES = {
    "linear_regression": Probe("linear regression", "number", _linear, linear=True),
    "linear_classification": Probe("linear classification", "class", _linear, linear=True),
    "ridge_classification": Probe("ridge classification", "class", _ridge),
    "logistic_classification": Probe("logistic regression", "class", _logistic),
    "mlp_regression": Probe("2-layer MLP, regression", "number", _mlp_regressor),
    "mlp_classification": Probe("2-layer MLP, classification", "class", _mlp_classifier),
}


class Split(NamedTuple):
    """Row numbers: those that probes are fitted on and those held out. In the control, row i has the class of row
    shuffled[i]. documents: of every row."""

    fitted: Int[np.ndarray, " m"]
    held_out: Int[np.ndarray, " k"]
    shuffled: Int[np.ndarray, " n"]
    documents: Int[np.ndarray, " n"]


class Targets(NamedTuple):
    """What is predicted, row by row.

    classes: by target. names: of the classes; empty where they are numbers.
    documents: of every row; those that probes are fitted on are not among those held out.
    units: the control gives all rows of a unit one class: that of another unit (units are rows or documents), or, where
    units are types of words, that of a row that is drawn, so that frequent classes stay frequent.
    typed: whether units are types.
    """

    classes: Mapping[str, Int[np.ndarray, " n"]]
    names: Mapping[str, Sequence[str]]
    documents: Int[np.ndarray, " n"]
    units: Int[np.ndarray, " n"]
    typed: bool = False

    def split(self, share: float, seed: int) -> Split:
        """Splits rows by document into those that probes are fitted on and the others. share: of the documents in the
        first part. Raises BadInput where fewer than two are on either side."""
        draw = np.random.default_rng(seed)
        document = np.unique(self.documents, return_inverse=True)[1]
        count = int(document.max()) + 1
        fitted = round(share * count)
        if not 2 <= fitted <= count - 2:
            raise BadInput(
                f"options.train_share: two documents (examples, sentences) are needed on either side, got {share} of "
                f"{count}; change it"
            )
        place = draw.permutation(count).argsort()[document]
        rows = place.argsort(kind="stable")
        _, first, unit = np.unique(self.units, return_index=True, return_inverse=True)
        given = draw.integers(len(unit), size=len(first)) if self.typed else first[draw.permutation(len(first))]
        ends = int((place < fitted).sum())
        return Split(rows[:ends], rows[ends:], given[unit], self.documents)


def make_split(rows: int, share: float, seed: int) -> Split:
    """Splits rows each of which is a document."""
    alone = np.arange(rows)
    return Targets({}, {}, alone, alone).split(share, seed)


def find_largest_class(classes: Int[np.ndarray, " n"], split: Split) -> tuple[int, float]:
    """The most frequent class of the held-out rows, and its share of them: the best answer that is always the same."""
    values, counts = np.unique(classes[split.held_out], return_counts=True)
    return int(values[counts.argmax()]), float(counts.max() / counts.sum())


def compare_with_guess(
    task: Task, y: Num[np.ndarray, " k"], predicted: Num[np.ndarray, " k"], documents: Int[np.ndarray, " k"]
) -> float:
    """Compares predictions of held-out rows with the best answer that is always the same: the one-sided p of no better
    ones, over documents, whose rows depend on each other.

    It is Student's of what is saved in each document beside that answer: of classes wrong rows, of numbers squared
    errors. Of classes of single rows it is McNemar's, exact. Documents have no sign test: one of the largest class, of
    which that answer has no row wrong, counts against a probe that has one wrong, whatever it saves in the others, and
    most may be of a class that few rows have. No p is below that of as many signs.
    """
    number = np.unique(documents, return_inverse=True)[1]
    if task == "class":
        values, counts = np.unique(y, return_counts=True)
        saved = np.bincount(number, (predicted == y) - 1.0 * (y == values[counts.argmax()]))
        if len(saved) == len(y):
            better, worse = int((saved > 0).sum()), int((saved < 0).sum())
            return float(bdtrc(better - 1, better + worse, 0.5)) if better else 1.0
    else:
        saved = np.bincount(number, (y - y.mean()) ** 2 - (y - predicted) ** 2)
    error = float(saved.std(ddof=1)) / len(saved) ** 0.5 if len(saved) > 1 else 0.0
    p = float(stdtr(len(saved) - 1, -saved.mean() / error)) if error else float(saved.mean() <= 0)
    return max(p, 0.5 ** len(saved))


def combine_tests(p_values: Sequence[float | None]) -> float | None:
    """Combines p of several splits, which depend on each other in any way: twice their mean (Vovk and Wang 2020); None
    where one is not known."""
    known = [p for p in p_values if p is not None]
    if len(known) < len(p_values):
        return None
    return min(1.0, (2 if len(known) > 1 else 1) * float(np.mean(known)))


class ProbeFit(NamedTuple):
    """The error on held-out rows and on fitted rows; whether the solver stopped before its last step. p: of a probe
    that is no better than the best constant answer; None in what was fitted before it was tested. wrong: of a class,
    how many rows of each held-out document were told wrongly, in the order of documents; None of a number."""

    error: float
    fitted_error: float
    converged: bool
    p: float | None = None
    wrong: Sequence[int] | None = None


def count_wrong_rows(
    task: Task, y: Num[np.ndarray, " k"], predicted: Num[np.ndarray, " k"], documents: Int[np.ndarray, " k"]
) -> list[int] | None:
    """Counts the wrong answers in each document, in the order of documents; None where answers are numbers."""
    if task == "number":
        return None
    number = np.unique(documents, return_inverse=True)[1]
    return np.bincount(number, predicted != y).astype(int).tolist()


def fit_probe(
    probe: Probe, x: Float[np.ndarray, "n d"], classes: Int[np.ndarray, " n"], split: Split, seed: int
) -> ProbeFit:
    """A probe on a target. Features are not scaled; a number is standardised over the fitted rows. Raises BadInput for
    fitted rows of one class where the probe needs two."""
    from sklearn.exceptions import ConvergenceWarning

    y = classes
    if probe.task == "number":
        y = (classes - classes[split.fitted].mean()) / (classes[split.fitted].std() or 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.filterwarnings("error", INTERRUPTED)  # an MLP takes Ctrl-C for the end of its training
        try:
            estimator = probe.make(seed).fit(x[split.fitted], y[split.fitted])
        except UserWarning as warning:
            if INTERRUPTED in str(warning):
                raise KeyboardInterrupt from None
            raise
        except ValueError as error:
            if len(np.unique(y[split.fitted])) > 1:
                raise
            raise BadInput(
                f"extract.rows: a probe is fitted on rows of two classes, got one in the {len(split.fitted)} rows that "
                "are not held out; read more rows, or use ridge_classification"
            ) from error
    rows = split.held_out
    error, fitted = (1 - float(estimator.score(x[some], y[some])) for some in (rows, split.fitted))
    answers = (probe.task, y[rows], estimator.predict(x[rows]), split.documents[rows])
    steps = getattr(estimator, "n_iter_", None)
    converged = steps is None or bool(np.max(steps) < estimator.max_iter)
    return ProbeFit(error, fitted, converged, compare_with_guess(*answers), count_wrong_rows(*answers))


def make_indicators(classes: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n c"]:
    """A column for each class that occurs."""
    present, codes = np.unique(classes, return_inverse=True)
    return np.eye(len(present))[codes]


def fit_linear(
    x: Float[np.ndarray, "n d"], targets: Mapping[str, Int[np.ndarray, " n"]], tasks: Sequence[Task], split: Split
) -> dict[tuple[str, Task], ProbeFit]:
    """Least squares in float64 on all targets at once: on their numbers, and on indicators of classes, where the
    largest output is the answer."""
    from sklearn.metrics import accuracy_score, r2_score

    given = x.astype(np.float64)
    wanted = {
        (name, task): classes[:, None].astype(np.float64) if task == "number" else make_indicators(classes)
        for name, classes in targets.items()
        for task in tasks
    }
    ends = np.cumsum([y.shape[1] for y in wanted.values()])[:-1]
    together = np.concatenate(list(wanted.values()), 1)
    estimator = _linear(0).fit(given[split.fitted], together[split.fitted])
    errors: dict[tuple[str, Task], list[float]] = {key: [] for key in wanted}
    beside: dict[tuple[str, Task], tuple[float, list[int] | None]] = {}
    for rows in (split.held_out, split.fitted):
        for (key, y), outputs in zip(wanted.items(), np.split(estimator.predict(given[rows]), ends, 1), strict=True):
            number = key[1] == "number"
            true, predicted = (x[:, 0] if number else x.argmax(1) for x in (y[rows], outputs))
            errors[key].append(1 - float((r2_score if number else accuracy_score)(true, predicted)))
            if rows is split.held_out:
                answers = (key[1], true, predicted, split.documents[rows])
                beside[key] = compare_with_guess(*answers), count_wrong_rows(*answers)
    return {key: ProbeFit(held_out, fitted, True, *beside[key]) for key, (held_out, fitted) in errors.items()}


class ProbeUnit(NamedTuple):
    """What is fitted at a time: all probes by least squares of a layer (`LINEAR`), or a probe on a target or its
    control. split: its number."""

    model: str
    layer: str
    probe: str
    target: str
    control: bool
    split: int


LINEAR = "linear"
Record = tuple[str, str, bool]  # probe, target, control


def fit_unit(
    unit: ProbeUnit,
    x: Float[np.ndarray, "n d"],
    targets: Mapping[str, Int[np.ndarray, " n"]],
    probes: Sequence[str],
    split: Split,
    seed: int,
) -> tuple[ProbeUnit, list[tuple[Record, ProbeFit]]]:
    """The errors of a unit, on a single thread, so that they do not depend on how many units are fitted in parallel."""
    from threadpoolctl import threadpool_limits

    import_module("sklearn.linear_model")  # only libraries that are loaded are limited
    with threadpool_limits(1):
        if unit.probe != LINEAR:
            classes = targets[unit.target][split.shuffled] if unit.control else targets[unit.target]
            return unit, [
                ((unit.probe, unit.target, unit.control), fit_probe(PROBES[unit.probe], x, classes, split, seed))
            ]
        linear = {PROBES[name].task: name for name in probes if PROBES[name].linear}
        records = []
        for control in (False, True):
            given = {name: classes[split.shuffled] if control else classes for name, classes in targets.items()}
            fits = fit_linear(x, given, list(linear), split)
            records += [((linear[task], target, control), of_target) for (target, task), of_target in fits.items()]
        return unit, records


def describe_probe_settings(probe: Probe, seed: int) -> dict[str, Any]:
    """Describes the settings by which the probe can be fitted again."""
    estimator = probe.make(seed)
    return {
        "estimator": type(estimator).__name__,
        "parameters": {key: value for key, value in estimator.get_params().items() if isinstance(value, _PLAIN)},
        "error": ERRORS[probe.task],
    }


_PLAIN = (bool, int, float, str, tuple, type(None))
