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


def list_alike(
    values: Sequence[float], errors: Sequence[float | None], best: int, freedom: int | None = None
) -> list[int]:
    """Lists the places of the values that cannot be told apart from the one at `best`, which is among them. Values
    without a standard error cannot be told apart from any. Errors are taken as independent, which is careful: values on
    the same rows differ more clearly than this says.

    >>> list_alike([1.0, 1.1, 3.0], [0.1, 0.1, 0.1], 0), list_alike([1.0, 3.0], [0.1, None], 0)
    ([0, 1], [0, 1])
    """
    width = find_width(len(values), freedom)

    def is_alike(place: int) -> bool:
        both = errors[place], errors[best]
        if place == best or both[0] is None or both[1] is None:
            return True
        return bool(abs(values[place] - values[best]) <= width * math.hypot(both[0], both[1]))

    return [place for place in range(len(values)) if is_alike(place)]


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
