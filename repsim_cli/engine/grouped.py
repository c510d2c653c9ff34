"""Named groups of models, whose members are listed or chosen by a metric that models were saved with."""

import itertools
from collections.abc import Mapping

from repsim_cli.activations.inputs import name_errors
from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Group, Members, Ranked
from repsim_cli.models.source import AnySource, Precomputed
from repsim_cli.runs.results import Run


def list_group_members(groups: Mapping[str, Group]) -> dict[str, list[str]]:
    """The models of the groups where all are listed; none where the run chooses some by a metric."""
    if any(isinstance(group, Ranked) for group in groups.values()):
        return {}
    return {name: list(group) for name, group in groups.items() if not isinstance(group, Ranked)}


def select_group_models(models: Mapping[str, AnySource], members: Members) -> dict[str, AnySource]:
    """The models of the groups, in their order: no other needs to be run. Without groups all models."""
    return {label: models[label] for group in members.values() for label in group} or dict(models)


def check_metrics(groups: Mapping[str, Group], models: Mapping[str, AnySource]) -> None:
    """Raises BadInput where models without metrics are to be ranked."""
    for name, by in {name: group.by for name, group in groups.items() if isinstance(group, Ranked)}.items():
        for label, source in models.items():
            if isinstance(source, Precomputed) or source.metrics is None:
                raise BadInput(
                    f"groups.{name}.by: '{label}' has no metrics, got {by}; name the models of the group, or "
                    "use fine-tuned ones, which are saved with theirs"
                )


def resolve_groups(groups: Mapping[str, Group], metrics: Mapping[str, Mapping[str, float]]) -> dict[str, list[str]]:
    """The models of every group. metrics: of all models, in order; models of equal metrics keep this order.

    Raises BadInput where a model lacks the metric, or would be in two groups.
    """
    members: dict[str, list[str]] = {}
    for name, group in groups.items():
        if not isinstance(group, Ranked):
            members[name] = list(group)
            continue
        for label, known in metrics.items():
            if group.by not in known:
                listed = ", ".join(known) or "no metrics"
                raise BadInput(
                    f"groups.{name}.by: '{label}' was saved without {group.by}, got {listed}; use another metric"
                )
        scores = {label: known[group.by] for label, known in metrics.items()}
        ranking = sorted(scores, key=lambda label: -scores[label])
        size = group.top or group.bottom or 0
        members[name] = ranking[:size] if group.top is not None else ranking[len(ranking) - size :]
    of: dict[str, str] = {}
    for name, labels in members.items():
        for label in labels:
            if label in of:
                raise BadInput(
                    f"groups.{name}: a model is in one group only, got '{label}', which is in {of[label]} too; "
                    "ask for fewer models"
                )
            of[label] = name
    return members


def say_group_ties(
    groups: Mapping[str, Group], members: Members, metrics: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """Messages about top and bottom groups that share a value of their metric."""
    ranked = {name: group for name, group in groups.items() if isinstance(group, Ranked)}
    messages = []
    for (a, top), (b, bottom) in itertools.permutations(ranked.items(), 2):
        if top.top and bottom.bottom and top.by == bottom.by:
            lowest = min(metrics[label][top.by] for label in members[a])
            if lowest <= max(metrics[label][top.by] for label in members[b]):
                messages.append(f"groups: {a} and {b} both have models of {top.by} {lowest:.3g}; ask for fewer models")
    return messages


def choose_models(run: Run, groups: Mapping[str, Group], models: Mapping[str, AnySource]) -> dict[str, list[str]]:
    """The models of every group, those chosen by metric included, noted in the manifest."""
    ranked = list(dict.fromkeys(group.by for group in groups.values() if isinstance(group, Ranked)))
    metrics = {
        label: name_errors(label, source.metrics)
        for label, source in (models if ranked else {}).items()
        if not isinstance(source, Precomputed) and source.metrics is not None
    }
    members = resolve_groups(groups, metrics)
    noted = {
        name: {label: {by: metrics[label][by] for by in ranked} for label in labels} for name, labels in members.items()
    }
    run.input("groups", noted)
    for tie in say_group_ties(groups, members, metrics):
        run.warn(tie)
    return members
