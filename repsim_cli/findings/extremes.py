"""Which values cannot be told apart from the largest or smallest of several, each with its standard error."""

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist

from repsim_cli.findings.student import find_t_quantile

PAIRS = 2  # pairs that a sentence names
LEVEL = 0.05  # of saying of any two that are alike that they differ


def find_width(count: int, freedom: int | None = None) -> float:
    """Finds from how many standard errors of their difference on two of `count` values count as different: where all
    values are equal, any pair lies further apart in a share LEVEL of cases at most (Bonferroni).

    freedom: of the errors, as one less than the documents that they are over; None where they are known.

    >>> round(find_width(2), 2), round(find_width(10), 2), round(find_width(10, 7), 2)
    (1.96, 3.26, 5.31)
    """
    p = LEVEL / max(2, count * (count - 1))
    return NormalDist().inv_cdf(1 - p) if freedom is None else find_t_quantile(p, max(freedom, 1))


def compare_width(count: int, freedom: int | None) -> float:
    """Divides the width for errors of so many degrees of freedom by that for errors that are known.

    >>> [round(compare_width(8, freedom), 2) for freedom in (None, 1000, 8, 1)]
    [1.0, 1.0, 1.47, 114.13]
    """
    return 1.0 if freedom is None else find_width(count, freedom) / find_width(count)


def list_alike(
    values: Sequence[float], errors: Sequence[float | None], best: int, freedom: int | None = None
) -> list[int]:
    """Lists the places of the values that cannot be told apart from the one at `best`, which is among them. Values
    without a standard error cannot be told apart from any. Errors are taken as independent, which is careful: values on
    the same rows differ more clearly than this says.

    >>> list_alike([1.0, 1.1, 3.0], [0.1, 0.1, 0.1], 0), list_alike([1.0, 3.0], [0.1, None], 0)
    ([0, 1], [0, 1])
    """
    return list_within(values, combine_with_best(errors, best), best, freedom)


def combine_with_best(errors: Sequence[float | None], best: int) -> list[float | None]:
    """Combines each error with that of the value at `best`, as if they were independent; None where one is not known.

    >>> combine_with_best([3.0, 4.0, None], 1)
    [5.0, 5.656854249492381, None]
    """
    of_best = errors[best]
    return [None if of_best is None or error is None else math.hypot(error, of_best) for error in errors]


def list_within(
    values: Sequence[float], apart: Sequence[float | None], best: int, freedom: int | None = None
) -> list[int]:
    """Lists the places of the values that cannot be told apart from the one at `best`, which is among them.

    apart: standard errors of the difference from that value; None where it is not known, so that no difference counts.

    >>> list_within([1.0, 1.1, 3.0], [0.0, 0.01, 0.1], 0)
    [0]
    """
    width = find_width(len(values), freedom)

    def is_within(place: int) -> bool:
        error = apart[place]
        return place == best or error is None or bool(abs(values[place] - values[best]) <= width * error)

    return [place for place in range(len(values)) if is_within(place)]


def say_ends(
    names: Sequence[str],
    values: Sequence[float],
    errors: Sequence[float] | None,
    freedom: int | None,
    say: Callable[[int], str],
) -> Iterator[list[str]]:
    """Says which pairs of models are closest and furthest by a distance, and which cannot be told apart from these.
    names: of the pairs. errors: None where they are not known, so that no pairs can be told apart. freedom: of the
    errors. say: the numbers of a pair, by its place.
    """
    order = sorted(range(len(values)), key=lambda place: values[place])
    for word, end in zip(("closest", "furthest"), (order[0], order[-1])[: len(order)], strict=False):
        told = "" if errors is None else say_others(names, list_alike(values, errors, end, freedom), end, PAIRS)
        yield [word, f"{names[end]}: {say(end)}{told}"]


def say_others(names: Sequence[str], alike: Sequence[int], best: int, named: int = 3) -> str:
    """Says which others cannot be told apart from the best; empty where there are none.

    >>> say_others(["a", "b", "c"], [0, 2], 0), say_others(["a", "b", "c"], [1], 1)
    ('; c is not told apart from it', '')
    >>> say_others("abcdef", range(6), 0)
    '; none of the other 5 is told apart from it'
    """
    others = [names[place] for place in alike if place != best]
    if not others:
        return ""
    more = len(others) - named
    if more > 0 and len(others) == len(names) - 1:
        return f"; none of the other {len(others)} is told apart from it"
    listed = [*others[:named], *([f"{more} more"] if more > 0 else [])]
    joined = " and ".join(filter(None, [", ".join(listed[:-1]), listed[-1]]))
    return f"; {joined} {'is' if len(others) == 1 else 'are'} not told apart from it"
