"""Similarity of every layer of every model with every layer of every model."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Unpack

from repsim_cli.base.registry import studies
from repsim_cli.base.remedies import ALL_REMEDIES, REMEDIES
from repsim_cli.base.settings import Group, Significance
from repsim_cli.engine import budget, footprint
from repsim_cli.engine.bounds import describe_models
from repsim_cli.engine.checks import check_groups, check_within
from repsim_cli.engine.comparison import Comparison, make_comparison
from repsim_cli.engine.cost import describe_needs
from repsim_cli.engine.grouped import choose_models, list_group_members, select_group_models
from repsim_cli.engine.left_out import find_left_out_measures
from repsim_cli.engine.matrices import compute_matrices
from repsim_cli.engine.pair_units import PairWorker, list_pair_units, list_permutation_units
from repsim_cli.engine.permutations import split_permutations
from repsim_cli.engine.record import make_measure_records
from repsim_cli.engine.recording import plan_recordings
from repsim_cli.engine.rows import prepare
from repsim_cli.engine.solved import record_solved
from repsim_cli.engine.study import OfMeasures, Study
from repsim_cli.engine.unit import Kinds, Phase
from repsim_cli.runs.content import Results
from repsim_cli.runs.results import Run
from repsim_cli.studies.similarity import fewer_rows as samples
from repsim_cli.studies.similarity.images import check_feature_maps, keep_maps
from repsim_cli.studies.similarity.remedies import compare_under_remedies

log = logging.getLogger("repsim")


@studies.register("similarity")
class Similarity(Study):
    """Compares all layers of all models under one or several measures.

    within: compare only layers of the same model, and all layers with those of `targets`.
    targets: the label of known functions of the input (kind: modular_targets or precomputed); null: none.
    robustness: measure the map under each remedy too; the analysis of that name sets it.
    fewer_rows: measure the closest layers on samples of the rows too; the analysis of that name sets it.
    feature_maps: keep the feature maps of an image of each class; the analysis of that name sets it.
    Example: repsim run study=similarity model=[] +model.mine='{kind: transformers, path: DIR}' +model.other='{kind:
        transformers, path: DIR}' data=local_text data.path=FILE
    """

    takes_remedies: ClassVar[Sequence[str]] = ALL_REMEDIES
    takes_pairs: ClassVar[bool] = True
    takes_budget: ClassVar[bool] = True
    by_block: ClassVar[bool] = True
    unread: ClassVar[Sequence[str]] = ()

    def __init__(  # noqa: PLR0913 - keys of YAML
        self,
        *,
        significance: Significance,
        groups: Mapping[str, Group] | None = None,
        base: str | None = None,
        within: bool = False,
        targets: str | None = None,
        robustness: bool = False,
        fewer_rows: bool = False,
        feature_maps: bool = False,
        **given: Unpack[OfMeasures],
    ):
        self.groups, self.base = groups or {}, base
        self.robustness, self.fewer_rows, self.feature_maps = robustness, fewer_rows, feature_maps
        models = given["model"]
        given["model"] = select_group_models(models, list_group_members(self.groups))
        self.comparison = make_comparison(given, significance, among=models, within=within, targets=targets)
        self.readings, self.measures = self.comparison.readings, self.comparison.measures
        self.skipped = self.comparison.skipped
        check_groups(self.groups, self.comparison.models, self.readings)
        if feature_maps:
            check_feature_maps(self.readings)
        if fewer_rows:
            samples.check(self.comparison)
        if within:
            check_within({"groups": self.groups, "significance": significance.method != "none"})
        if significance.budget:
            budget.check(self.comparison)
        footprint.check_fits(self.comparison)

    def plan(self) -> dict[str, Any]:
        """Describes what a run would do: models, layers, pairs, forward passes, memory in GB."""
        compared = self.comparison
        costs = footprint.estimate_costs(compared, compared.pairs)
        rows = footprint.count_rows_per_comparison(compared)
        left_out = find_left_out_measures(compared)
        if self.robustness:
            costs["similarity"] = len(REMEDIES) * costs["similarity"]
        if self.fewer_rows:
            costs["fewer rows"] = samples.estimate_samples_cost(compared)
        if compared.significance.budget:
            costs["budget"] = budget.estimate_budget_cost(compared)
        by_block = footprint.list_by_block(compared)
        return {
            "models": describe_models(compared.models, compared.hardware, compared.devices),
            **({"by block": by_block} if by_block else {}),
            "layers": len(compared.layers),
            "pairs of layers": compared.pairs,
            **({"groups": dict(self.groups)} if self.groups else {}),
            "measures": list(compared.measures),
            **({"remedies": list(REMEDIES)} if self.robustness else {}),
            "pairs of rows": footprint.describe_planned_pairs(compared),
            "chance": footprint.describe_planned_chance(compared),
            **({"errors, from leaving out groups of documents": list(left_out)} if left_out else {}),
            **({"budget": budget.plan_budget(compared)} if compared.significance.budget else {}),
            "estimate": compared.extract.estimate,
            **footprint.describe_rows_and_passes(compared),
            **describe_needs(
                costs,
                compared.hardware,
                memory=footprint.estimate_comparison_memory(compared, rows),
                disk=footprint.estimate_disk(compared),
                activations=footprint.count_stored(compared),
                figures=len(compared.measures),
            ),
        }

    def run(self, run: Run) -> Results:
        prepare(run, self.comparison.hardware)
        comparison = self.choose_models(run)
        with run.stage("data"):
            sequences = comparison.sequences(run)
            comparison = comparison.pair_rows(run, sequences).count_rows(run, sequences).add_clusters(run, sequences)
        taken = budget.sample_budget_rows(comparison, sequences) if comparison.significance.budget else None
        comparison = footprint.plan_memory(comparison)
        matrices, of_layers = compute_matrices(
            run, comparison, sequences, blocks=split_permutations(comparison), keep_rows=True
        )
        further = {}
        if self.robustness:
            with run.stage("remedies"):
                further |= compare_under_remedies(run, comparison, sequences)
        if self.fewer_rows:
            with run.stage("fewer rows"):
                of_layers |= samples.compare_on_fewer_rows(run, comparison, sequences, matrices)
        if self.feature_maps:
            with run.stage("feature maps"):
                further |= keep_maps(run, comparison, sequences)
        about = {}
        if taken is not None:
            with run.stage("budget"):
                split, about["budget"] = budget.compute_budget(run, taken, sequences)
                of_layers |= split
        with run.stage("results"):
            measures, tables = make_measure_records(run, comparison, matrices)
            tables |= record_solved(run, comparison.names, comparison.measures, matrices) | of_layers
            return Results(study="similarity", measures=measures, tables=tables, matrices=further, about=about)

    def units(self, run: Run) -> Iterator[Phase]:
        comparison = self.choose_models(run)
        if not footprint.stays_in_cache(comparison):
            log.warning("cache: it does not hold the activations of all models, which are left to the run itself")
            return
        yield from plan_recordings(comparison)
        yield "pairs", list_pair_units(comparison)
        yield "permutations", list_permutation_units(comparison)

    def worker(self) -> Kinds:
        return PairWorker(self.choose_models).kinds

    def choose_models(self, run: Run) -> Comparison:
        """Keeps the models of the groups, where there are any, some chosen by the metrics that they were saved with."""
        if not self.groups:
            return self.comparison
        with run.stage("groups"):
            members = choose_models(run, self.groups, self.comparison.models)
            return self.comparison.keep_models([label for group in members.values() for label in group])
