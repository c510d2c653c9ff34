"""How programs and other packages add measures, models, data sets and studies, each by a decorator."""

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import Registry
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.cards import Card

Function = TypeVar("Function", bound=Callable[..., Any])
LABEL = re.compile("[a-z][a-z0-9_]*")
NAME = "repsim_name"  # the attribute of a function that is a measure


def register_measure(name: str, *, larger_is_closer: bool, **claims: Any) -> Callable[[Function], Function]:
    """Makes a measure of a function of two representations, for `compare(measures=[function])` and for plug-ins.

    The function takes x (n, d_x) and y (n, d_y), float tensors with paired rows, and its settings as keyword arguments
    with defaults; it returns a number. Where a part depends on one side alone, or all pairs can be had at once, let it
    return a `repsim_cli.measures.Pairwise` or `InnerProduct` of its settings instead, and take no x and y.

    name: lower case letters, digits and _, as in `repsim list measure`.
    larger_is_closer: whether a larger value is closer.
    claims: of `repsim_cli.measures.Card`, which chance, figures and checks rely on: label, bounds, symmetric,
        invariant_to, minimum_rows, source, ...; by default the weakest of each, but `paired`: paired=False
        says that the value does not depend on which rows are paired.

    Raises BadInput for a name that is taken or none, a claim that is none, and a setting without a default.

    Example: register_measure("gap", larger_is_closer=False)(lambda x, y: (x.mean() - y.mean()).abs())
    """
    weakest = {
        "label": name,
        "bounds": (None, None),
        "symmetric": False,
        "is_metric": False,
        "invariant_to": frozenset(),
        "minimum_rows": 2,
        "cost": "not known",
        "source": "none given",
    }
    if not LABEL.fullmatch(name):
        raise BadInput(f"register_measure: letters a to z, digits and _ make a name, got '{name}'; give another")
    try:
        card = Card(larger_is_closer=larger_is_closer, **{**weakest, **claims})
    except TypeError as error:
        raise BadInput(f"register_measure: not a claim of a measure ({error}), got {', '.join(claims)}") from None
    card = Card(**{**vars(card), "invariant_to": frozenset(card.invariant_to)})

    def decorate(function: Function) -> Function:
        parameters = [*inspect.signature(function).parameters.values()]
        settings = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
        if unset := [each.name for each in settings if each.default is each.empty]:
            raise BadInput(f"register_measure: a setting has a default, got {unset[0]} without; write {unset[0]}=VALUE")

        def bind(**given: Any) -> Measure:
            if len(settings) == len(parameters):
                return function(**given)
            return Pairwise(prepare=_keep_rows, compare=partial(_compute_value, partial(function, **given)))

        bind.__signature__ = inspect.Signature(settings)  # type: ignore[attr-defined]
        bind.__wrapped__ = function  # type: ignore[attr-defined]
        bind.__doc__ = function.__doc__
        registry.measures.add(name, bind, card)
        setattr(function, NAME, name)
        return function

    return decorate


def _keep_rows(x: Any) -> Any:
    return x


def _compute_value(function: Callable[..., Any], x: Any, y: Any) -> float:
    return float(function(x, y))


def _add_to(room: Registry, name: str) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        room.add(name, function)
        return function

    return decorate


def register_model(name: str) -> Callable[[Function], Function]:
    """Makes a kind of model, `{kind: NAME}`, of a function of settings that returns a
    `repsim_cli.models.source.Source`."""
    return _add_to(registry.models, name)


def register_data(name: str) -> Callable[[Function], Function]:
    """Makes a kind of data, `data.kind=NAME`, of a function of settings that returns a
    `repsim_cli.data.packing.Text`."""
    return _add_to(registry.data, name)


def register_study(name: str) -> Callable[[Function], Function]:
    """Makes a study, `study=NAME`, of a subclass of `repsim_cli.engine.study.Study`."""
    return _add_to(registry.studies, name)
