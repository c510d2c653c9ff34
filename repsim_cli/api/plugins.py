"""How programs and other packages add measures, models, data sets and studies, each by a decorator."""

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from functools import partial, wraps
from typing import Any, TypeVar, get_args

import numpy as np
from torch import Tensor

from repsim_cli.base import registry
from repsim_cli.base.errors import BadInput, Degenerate, RunFailed
from repsim_cli.base.registry import Registry
from repsim_cli.base.schemas import call_checked
from repsim_cli.measures.base import Measure, Pairwise
from repsim_cli.measures.cards import Card, Invariance

Function = TypeVar("Function", bound=Callable[..., Any])
INVARIANCES = get_args(Invariance)
LABEL = re.compile("[a-z][a-z0-9_]*")
NAME = "repsim_name"  # the attribute of a function that is a measure
WEAKEST = {
    "bounds": (None, None),
    "symmetric": False,
    "is_metric": False,
    "invariant_to": frozenset[Any](),
    "minimum_rows": 2,
    "cost": "not known",
    "source": "none given",
}  # claims


def register_measure(name: str, *, larger_is_closer: bool, **claims: Any) -> Callable[[Function], Function]:
    """Makes a measure of a function of two representations, for `compare(measures=[function])` and for plug-ins.

    The function takes x (n, d_x) and y (n, d_y), float tensors with paired rows, and its settings as keyword arguments
    with defaults; it returns a number, or raises `repsim_cli.Degenerate` where there is none. Where a part depends on
    one side alone, or all pairs can be had at once, let it return a `repsim_cli.measures.Pairwise` or `InnerProduct` of
    its settings instead, and take no x and y.

    name: lower case letters, digits and _, as in `repsim list measure`.
    larger_is_closer: whether a larger value is closer.
    claims: of `repsim_cli.measures.Card`, which chance, figures and checks rely on: label, bounds, symmetric,
        invariant_to, minimum_rows, source, ...; by default the weakest of each, but `paired`: paired=False
        says that the value does not depend on which rows are paired.

    Raises BadInput for a name that is taken or none, a claim that is none or has a wrong value, and a setting without a
    default.

    Example: register_measure("gap", larger_is_closer=False)(lambda x, y: (x.mean() - y.mean()).abs())
    """
    _check_name("register_measure", name)
    if not LABEL.fullmatch(name):
        raise BadInput(f"register_measure: letters a to z, digits and _ make a name, got '{name}'; give another")
    card = _make_card({**WEAKEST, "label": name, "larger_is_closer": larger_is_closer, **claims})

    def decorate(function: Function) -> Function:
        parameters = [*_read_signature(function).parameters.values()]
        settings = [each for each in parameters if each.kind is each.KEYWORD_ONLY]
        if unset := [each.name for each in settings if each.default is each.empty]:
            raise BadInput(f"register_measure: a setting has a default, got {unset[0]} without; write {unset[0]}=VALUE")
        whole = len(settings) == len(parameters)  # it gives a measure

        def bind(**given: Any) -> Measure:
            if not whole:
                return Pairwise(prepare=_keep_rows, compare=partial(_compute_value, name, partial(function, **given)))
            made = function(**given)
            if isinstance(made, Pairwise):
                return replace(made, card=card, compare=partial(_compute_value, name, made.compare))
            if not isinstance(made, Measure):
                raise BadInput(
                    f"a function of settings alone returns a Pairwise or InnerProduct, got "
                    f"{type(made).__name__}; let it take x and y, or return one"
                )
            return made

        bind.__signature__ = inspect.Signature(settings)  # type: ignore[attr-defined]
        bind.__wrapped__ = function  # type: ignore[attr-defined]
        bind.__doc__ = function.__doc__
        registry.measures.add(name, bind, card)
        setattr(function, NAME, name)
        return function

    return decorate


def _check_name(where: str, name: Any) -> None:
    if not isinstance(name, str) or not name.strip():
        raise BadInput(f"{where}: not a name, got {name!r:.60}; write @repsim_cli.{where}('NAME')")


def _make_card(claims: dict[str, Any]) -> Card:
    """The card of these claims. Raises BadInput for one that is none, or has a wrong value."""
    for claim, kind, example in (("bounds", tuple, "(0, None)"), ("invariant_to", frozenset, "{'orthogonal'}")):
        if not isinstance(given := claims[claim], Collection) or isinstance(given, str):
            raise BadInput(f"register_measure.{claim}: not several values, got {given!r:.60}; write {example}")
        if claim == "invariant_to" and (unknown := [each for each in given if each not in INVARIANCES]):
            known = ", ".join(map(repr, INVARIANCES))
            raise BadInput(f"register_measure.{claim}: unknown, got {min(unknown, key=repr)!r:.60}; give {known}")
        claims[claim] = kind(given)
    return call_checked("register_measure", Card, claims)


def _read_signature(function: Any) -> inspect.Signature:
    """The signature of a function of x and y, or of settings alone. Raises BadInput for others."""
    try:
        signature = inspect.signature(function)
        taken = [each for each in signature.parameters.values() if each.kind is not each.KEYWORD_ONLY]
        if taken:
            inspect.Signature(taken).bind(0, 0)
    except (TypeError, ValueError):
        raise BadInput(
            f"register_measure: not a function of x and y, got {function!r:.60}; write def NAME(x, y, *, SETTING=VALUE)"
        ) from None
    return signature


def _keep_rows(x: Any) -> Any:
    return x


def _compute_value(name: str, function: Callable[..., Any], x: Any, y: Any) -> float:
    """The number that a function from outside gives for two sides, of which it gets copies, since other pairs read them
    too. Raises RunFailed where it fails or gives none, and Degenerate where this is not finite."""
    given = registry.measures.call(name, lambda: function(deepcopy(x), deepcopy(y)), RunFailed)
    value = given.item() if isinstance(given, Tensor | np.ndarray | np.generic) and given.ndim == 0 else given
    if isinstance(value, bool) or not isinstance(value, int | float):
        shape = f" {tuple(given.shape)}" if isinstance(given, Tensor | np.ndarray) else ""
        whose = registry.measures.say_whose(name)
        raise RunFailed(f"{whose} does not give a number, got {type(given).__name__}{shape}; return a float")
    if not math.isfinite(value):
        raise Degenerate(f"{name}: its value is not finite, got {value}; mend the measure, or give other rows")
    return float(value)


def _add_to(room: Registry, where: str, name: str) -> Callable[[Function], Function]:
    _check_name(where, name)

    def decorate(function: Function) -> Function:
        if not callable(function):
            raise BadInput(f"{where}: not a function, got {function!r:.60}; decorate one")
        room.add(name, function)
        return function

    return decorate


def register_model(name: str) -> Callable[[Function], Function]:
    """Makes a kind of model, `{kind: NAME}`, of a function of settings that returns a
    `repsim_cli.models.source.Source`."""
    return _add_to(registry.models, "register_model", name)


def register_data(name: str) -> Callable[[Function], Function]:
    """Makes a kind of data, `data.kind=NAME`, of a function of settings that returns a
    `repsim_cli.data.packing.Text`."""
    add = _add_to(registry.data, "register_data", name)

    def decorate(function: Function) -> Function:
        @wraps(function)
        def make(**settings: Any) -> Any:
            made = function(**settings)
            documents: Callable[[], Iterable[Any]] | None = getattr(made, "documents", None)
            return replace(made, documents=partial(_give_texts, name, documents)) if callable(documents) else made

        add(make if callable(function) else function)
        return function

    return decorate


def _give_texts(name: str, documents: Callable[[], Iterable[Any]]) -> Iterator[str]:
    """Gives the documents of a kind of data from outside. Raises BadInput for one that is not text."""
    for number, text in enumerate(documents()):
        if not isinstance(text, str):
            whose = registry.data.say_whose(name)
            raise BadInput(f"{whose}: a document is text, got {type(text).__name__} as document {number}; give str")
        yield text


def register_study(name: str) -> Callable[[Function], Function]:
    """Makes a study, `study=NAME`, of a subclass of `repsim_cli.engine.study.Study`."""
    add = _add_to(registry.studies, "register_study", name)

    def decorate(study: Function) -> Function:
        from repsim_cli.engine.study import Study

        if callable(study) and Study not in getattr(study, "__mro__", ()):
            raise BadInput(f"register_study: no subclass of Study, got {study!r:.60}; write class NAME(Study)")
        return add(study)

    return decorate
