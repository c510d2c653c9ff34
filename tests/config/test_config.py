"""Every YAML composes, lists its function's keywords, has its header; every problem is found at once."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import UnionType
from typing import Annotated, Any, get_args, get_origin

import pytest
import yaml
from helpers.composing import CONF, EXPERIMENTS, ROOT, composed
from helpers.nights import nightly

from repsim_cli.base import registry
from repsim_cli.base.errors import BadConfig
from repsim_cli.base.settings import Extract, Hardware, Ranked, Significance
from repsim_cli.config import presets
from repsim_cli.config.binding import MISSING, check_arguments, wrap_model_function
from repsim_cli.config.compose import compose
from repsim_cli.config.run import GROUPS, RunKeys, validate
from repsim_cli.config.unread import say_unread
from repsim_cli.engine.footprint import estimate_comparison_memory

SETTINGS = {"extract": Extract, "significance": Significance, "hardware": Hardware}


def nested(annotation: Any) -> type | None:
    """The dataclass in an annotation `X` or `X | None`."""
    kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return next((kind for kind in kinds if is_dataclass(kind)), None)


LATER = {
    "seed=${seed}": 0,
    "length=auto": 128,
    "sequences=auto": 64,
    "rows=auto": 4096,
    "batch_rows=auto": 1024,
    "at_most=auto": ["rows"],
    "skip=auto": 4,
    "normalise=auto": "directions",
}  # values that the run puts in


def components() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """(where, function, given keywords) of every component under conf/."""
    for group, room in (("model", registry.models), ("measure", registry.measures)):
        for label, entry in presets.read_table_entries(group).items():
            if entry != {"kind": "all"}:
                component = room.get(entry["kind"])
                function = wrap_model_function(component) if group == "model" else component.function
                yield f"{group}.{label}", function, without_kind(entry)
    for group in ("data", *SETTINGS):
        for file in sorted((CONF / group).glob("*.yaml")):
            content = yaml.safe_load(file.read_text())
            function = registry.data.get(content["kind"]).function if group == "data" else SETTINGS[group]
            yield f"{group}/{file.stem}", function, without_kind(content)


def without_kind(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "kind"}


def test_components_have_keys_and_values_that_their_functions_take():
    """Every key is a parameter and every value of its type; what has no default is given; no null repeats a default."""
    seen = set()
    for name, function, given in components():
        check_keys(name, function, given)
        values = {key: LATER.get(f"{key}={value}", value) for key, value in given.items() if value != MISSING}
        problems: list[str] = []
        check_arguments(problems, name, function, values)
        missing = [f"{name}.{key}: missing; set it" for key in given.keys() - values.keys()]
        assert problems == missing, name
        seen.add(name)
    files = {str(file.relative_to(CONF).with_suffix("")) for file in CONF.rglob("*.yaml")}
    others = {file for file in files - seen if not file.startswith("experiment/")}
    assert others == {"config", "hydra/launcher/slurm", "models", "measures"}
    assert (
        len(seen - files) == sum(len(presets.read_table_entries(group)) for group in presets.TABLES) - 1
    )  # measure=all


def check_keys(where: str, function: Any, given: dict[str, Any]) -> None:
    """Compares the keys of nested settings too."""
    parameters = inspect.signature(function).parameters
    assert not given.keys() - parameters.keys(), where
    assert not {key for key, p in parameters.items() if p.default is p.empty} - given.keys(), where
    assert not [key for key, value in given.items() if value is None and parameters[key].default is None], where
    for key, value in given.items():
        if isinstance(value, dict) and "kind" in value:
            check_keys(f"{where}.{key}", registry.data.get(value["kind"]).function, without_kind(value))
        elif isinstance(value, dict) and (inner := nested(parameters[key].annotation)):
            check_keys(f"{where}.{key}", inner, value)


def test_measures_list_their_settings():
    """A measure's entry is named as its kind, and lists its settings with their defaults; a null says nothing."""
    for label, entry in presets.read_table_entries("measure").items():
        if label == "all":
            continue
        parameters = inspect.signature(registry.measures.get(label).function).parameters
        defaults = {key: parameter.default for key, parameter in parameters.items() if parameter.default is not None}
        assert entry == {"kind": label, **defaults}


def test_every_registered_component_can_be_selected():
    kinds = {
        group: {entry["kind"] for entry in presets.read_table_entries(group).values()} for group in ("measure", "model")
    }
    assert kinds["measure"] == {*registry.measures.names(), "all"}
    assert kinds["model"] == set(registry.models.names()) - {"trained", "memory"}
    files = {yaml.safe_load(file.read_text())["kind"] for file in CONF.glob("data/*.yaml")}
    assert files == set(registry.data.names()) - {"memory"}


def test_the_options_of_a_run_have_their_defaults():
    """Findings read them as if all were given."""
    words = ("study=features", "model=[tiny_a]", "measure=[]", "extract.layers=[2]", "extract.estimate=full")
    options = validate(composed(*words, "+options.recipe={steps: 5}", "dry_run=true")).options
    assert options.keys() == inspect.signature(registry.studies.get("features").function).parameters.keys() - {
        "model", "data", "extract", "hardware", "seed", "cache"
    }  # fmt: skip
    assert (options["pairings"], options["recipe"]["steps"], options["recipe"]["batch_size"]) == (99, 5, 512)
    options = validate(composed("experiment=tiny/grounding", "dry_run=true")).options
    assert options["samples"]["pairs"]["data"]["kind"] == "overlap_nli"
    assert validate(composed("analyses.robustness={}", "dry_run=true")).options["robustness"] is True


def test_every_label_of_a_table_stands_there_once_with_a_comment():
    for group, file in presets.TABLES.items():
        labels = [line.partition(":")[0] for line in (CONF / file).read_text().splitlines() if line[:1].isalpha()]
        assert sorted(labels) == sorted(presets.read_table_entries(group)) == list(presets.describe_group(group))
        assert all(comment and comment[0].startswith("# ") for comment in presets.describe_group(group).values())


@pytest.mark.parametrize(
    "name", nightly(EXPERIMENTS, "tiny/glue_freezing", "tiny/finetune_nli", "tiny/yelp_freeze", "tiny/yelp_prune")
)
def test_experiments(name):
    """Header and page; of a tiny study its plan too (tests/config/test_dry_run.py has the others)."""
    file = CONF / "experiment" / f"{name}.yaml"
    lines = file.read_text().splitlines()
    assert lines[0] == "# @package _global_"
    for part in ("Question: ", "Source: ", "Command: repsim run", "Cost: "):
        assert any(line.startswith(f"# {part}") for line in lines), f"{name}: {part}"
    assert not [*say_unread(*compose([f"experiment={name}"]))]
    study = name.removeprefix("tiny/")
    assert any(f"## {study}" in page.read_text() for page in (ROOT / "experiments").glob("*.md")), study
    if name != study:
        config = validate(composed(f"experiment={name}", "dry_run=true"))
        assert not config.unknown
        assert config.plan()
        # its page was measured so, whatever the defaults are
        assert config.keys.extract["pairs"] == "all" or not config.study.takes_pairs
        assert config.keys.extract["normalise"] != "auto" or "normalise" not in config.study.takes_remedies


@pytest.mark.parametrize("name", ["models", "measures"])
def test_no_entry_is_written_twice(name):
    """YAML takes the last of equal keys without a word."""
    labels = re.findall(r"^(\w+):", (CONF / f"{name}.yaml").read_text(), re.MULTILINE)
    assert len(labels) == len(set(labels))


def test_published_settings_of_pythia_cka():
    config = composed("experiment=pythia_cka")
    assert list(config.model) == ["pythia_70m", "pythia_160m", "pythia_410m", "pythia_1b", "pythia_1_4b", "pythia_2_8b", "pythia_6_9b"]  # fmt: skip
    assert (config.extract.length, config.extract.sequences, config.extract.batch_rows) == (1024, 1000, 1024)
    assert (config.extract.padding, config.extract.estimate, config.data.kind) == ("keep", "per_batch", "pile")


def test_published_settings_of_solu_gelu_cka():
    config = composed("experiment=solu_gelu_cka")
    hubs = [f"NeelNanda/{name}512W_C4_Code" for name in ("GELU_3L", "SoLU_3L", "GELU_4L", "SoLU_4L")]
    assert [entry.hub for entry in config.model.values()] == hubs
    assert (config.extract.length, config.extract.hook_points, config.data.kind) == (1024, ["resid_post"], "pile")


def test_published_settings_of_the_mnli_studies():
    config = composed("experiment=mnli_cka")
    assert (config.extract.hook_points, config.extract.padding, config.data.kind) == (["mlp_out"], "keep", "mnli")
    assert (config.extract.length, config.extract.sequences, config.extract.batch_rows) == (512, 1000, 1024)
    by = "hans_lexical_overlap_non_entailment"
    groups = {"generalizing": {"top": 10, "by": by}, "heuristic": {"bottom": 10, "by": by}}
    assert config.groups == groups
    assert len(config.model.feather_berts.numbers) == 20
    stitched = composed("experiment=hans_identity_stitching")
    assert (stitched.groups, stitched.data.heuristics) == (groups, ["lexical_overlap"])


def test_other_yaml_has_a_header():
    for file in CONF.rglob("*.yaml"):
        assert file.read_text().startswith("# "), file


def test_a_validated_config_is_plain_and_repeats_itself():
    config = validate(composed("model=[tiny_a]", "data=embedded"))
    again = yaml.safe_load(config.yaml())
    assert again["model"] == {"tiny_a": {"kind": "shipped", "name": "tiny_a"}}
    assert set(GROUPS) < set(again)


def test_all_problems_at_once():
    config = composed(
        "seed=x",
        "model=[tiny_a]",
        "+model.b={kind: transfomers}",
        "+model.c={kind: shipped, nam: tiny_a}",
        "+model.d=3",
        "+measure.e={kind: mutual_knn, kk: 3}",
        "extract.length=0",
        "extract.padding=kep",
        "data=local_text",
        "options.target=[]",
        "+analyses.agreemnt={}",
        "+analyses.blocks={leest: 3}",
        "+analyses.groups=3",
        "claims=[falls_with_distance,early_layers]",
    )
    with pytest.raises(BadConfig) as caught:
        validate(config)
    problems = caught.value.problems
    expected = [
        "data.path: missing; set data.path=VALUE",
        "seed: wrong value, got 'x'; give integer",
        "model.d: wrong value, got 3; give a mapping",
        "model.b.kind: unknown model kind, got 'transfomers'; did you mean 'transformers' or 'transformer_lens' or 'transformers_family'?",
        "model.c.name: missing; set it",
        "model.c.nam: unknown key, got 'tiny_a'; did you mean 'name'?",
        "measure.e.kk: unknown key, got 3; did you mean 'k'?",
        "extract.length: wrong value, got 0; give greater than or equal to 1",
        "extract.padding: wrong value, got 'kep'; give 'drop' or 'keep'",
        "options.target: unknown key, got []; did you mean 'targets'?",
        "analyses: unknown analysis, got 'agreemnt'; did you mean 'agreement'?",
        "analyses.blocks.leest: unknown key, got 3; did you mean 'least'?",
        "analyses.groups: not settings, got 3; write {SETTING: VALUE}",
        "claims: unknown claim, got 'falls_with_distance'; did you mean 'falls_with_layer_distance'?",
        "claims: unknown claim, got 'early_layers'; did you mean 'early_layers_agree' or 'early_layers_cost_little'?",
    ]
    assert [p for p in expected if p not in problems] == []


def test_all_problems_of_the_plan_at_once():
    asked = ("+analyses.agreement={}", "+analyses.probes={}", "claims=[larger_models_converge_earlier]")
    with pytest.raises(BadConfig) as caught:
        validate(composed("model=[tiny_a]", *asked))
    assert [problem.partition(", got")[0] for problem in caught.value.problems] == [
        "claims: larger_models_converge_earlier is about runs of the study convergence or effective_rank or training_view",
        "analyses.agreement: 3 measures are needed",
        "analyses.probes: it is about runs of the study probes",
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["study=similarty"], "study: unknown study, got 'similarty'; did you mean 'similarity'?"),
        (["model=[]"], "model: no model is selected; e.g. model=[tiny_a,tiny_b]"),
        (["measure=[]"], "measure: no measure is selected; e.g. measure=[cka_unbiased]"),
        (["extract.hook_points=[pattern]"], "extract.hook_points: an attention map has no row per token"),
        (["extract.batch_rows=3"], "extract.batch_rows: cka_unbiased needs at least 4 rows, got 3; raise it"),
        (["hardware.device=tpu9"], "hardware.device: unknown device, got 'tpu9'; known: cpu, cuda, cuda:1, mps"),
        (["hardware.memory_gb=0.1"], "hardware.memory_gb: the run needs about 0.52 GB, got a limit of 0.10 GB; hardware.memory_gb=0.6 would do"),
        (["claims=[falls_with_distance]"], "claims: unknown claim, got 'falls_with_distance'; did you mean 'falls_with_layer_distance'"),
        (["extract.estimate=full", "extract.rows=90000000", "extract.sequences=1000000"], r"extract.rows=\d+ would fit"),
        (["extract.estimate=ratio_of_sums", "measure=[mutual_knn]"], "mutual_knn is not made of HSIC; use per_batch"),
        (["figures=most"], "figures.which: wrong value, got 'most'; give 'overview' or 'all'"),
        (["figures.widht=column"], "figures.widht: unknown key, got 'column'; did you mean 'width'?"),
        (["figures={width: colum}"], "figures.width: wrong value, got 'colum'; give 'column' or 'page'"),
        (["figures={colours: viridsi}"], "figures.colours: no such colour map, got 'viridsi'; did you mean 'viridis'"),
        (["name=${nothing}"], "name: Interpolation key 'nothing' not found; fix the YAML"),
    ],
)  # fmt: skip
def test_conflicts_are_found_before_any_weight_loads(overrides, message):
    with pytest.raises(BadConfig) as caught:
        validate(composed("model=[tiny_a]", "measure=[cka_unbiased]", *overrides))
    assert re.search(message, str(caught.value)) or message in str(caught.value)


def test_square_matrices_count_in_the_memory():
    """A prepared layer of `riemannian` is two matrices of float64."""
    comparison = validate(
        composed("model=[tiny_a]", "measure=[cka,riemannian]", "extract.batch_rows=100")
    ).study.comparison
    assert estimate_comparison_memory(comparison, 100)["states"] == 2 * 8 * 100**2 * len(comparison.layers)


def test_slow_pairs_count_in_the_memory():
    """Squares of all layers lie in files; each process holds what one pair takes."""
    words = ("model=[tiny_a]", "measure=[gromov_wasserstein]", "extract.estimate=full")
    comparison = validate(composed(*words, "hardware.processes=3", "extract.rows=100")).study.comparison
    assert estimate_comparison_memory(comparison, 100)["matrices"] == 3 * 8 * 8 * 100**2
    assert estimate_comparison_memory(comparison, 100)["processes"] > 0
    with pytest.raises(BadConfig, match=r"got a limit of 2.00 GB; extract.rows=\d+ would fit") as caught:
        held = "measure.gromov_wasserstein.held_rows=20000"
        large = (held, "extract.rows=20000", "extract.sequences=1000000", "hardware.memory_gb=2")
        validate(composed(*words, "hardware.processes=2", *large))
    fits = int(re.search(r"rows=(\d+) would", str(caught.value))[1])
    assert 1000 < fits < (2e9 / (2 * 8 * 8)) ** 0.5


def test_the_advice_on_memory_fits():
    large = ("extract.estimate=full", "extract.sequences=4000")
    with pytest.raises(BadConfig) as caught:
        validate(composed("model=[tiny_a]", "hardware.memory_gb=1", *large, "extract.rows=400000"))
    advice = str(caught.value).split("; ")[-1].removesuffix(" would fit")
    validate(composed("model=[tiny_a]", "hardware.memory_gb=1", *large, advice))


@pytest.mark.parametrize(
    ("words", "sequences", "rows", "at_most"),
    [
        ((), 64, 4096, ["sequences", "rows", "batch_rows"]),
        (("extract.sequences=8",), 8, 1024, ["rows", "batch_rows"]),  # one sample
        (("extract.rows=8",), 64, 8, ["sequences", "batch_rows"]),
        (("extract.sequences=8", "extract.at_most=[sequences]"), 8, 4096, ["sequences"]),
        (("extract=words",), 64, 4096, ["sequences", "rows"]),  # stretches of running text
        (("extract=words", "data=embedded_sentences"), 2048, 4096, ["sequences", "rows"]),
        (("extract=pooled",), 1024, 1024, ["sequences", "rows"]),
        (("extract=packed_1024",), 1000, 4096, []),
    ],
)
def test_of_sequences_and_rows_that_nobody_requested_there_may_be_fewer(words, sequences, rows, at_most):
    extract = validate(composed("model=[tiny_a]", "measure=[cka]", *words)).study.comparison.extract
    assert (extract.sequences, extract.rows, extract.at_most) == (sequences, rows, at_most)


@pytest.mark.parametrize(
    ("words", "length"),
    [
        ((), 160),
        (("extract.rows=5120",), 200),
        (("extract.rows=100",), 128),
        (("extract.rows=100000",), 256),  # the context of the model
        (("extract.sequences=16",), 256),
        (("extract.length=100",), 100),
        (("extract.estimate=moments", "measure=[svcca]"), 256),  # all rows are used
        (("data=embedded_sentences",), 256),
    ],
)
def test_stretches_are_no_longer_than_a_sample_of_their_words_needs(words, length):
    extract = validate(composed("model=[tiny_a]", "measure=[cka]", "extract=words", *words)).study.comparison.extract
    assert extract.length == length


def numbers_in(annotation: Any, bounds: tuple = ()) -> Iterator[tuple[type, set[str]]]:
    """Every int and float of an annotation, with the kinds of bounds that stand around it."""
    if annotation in (int, float):
        yield annotation, {kind for field in bounds for one in field.metadata for kind in vars(type(one))}
    elif get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        yield from numbers_in(inner, (*bounds, *more))
    else:
        for inner in get_args(annotation):
            yield from numbers_in(inner)


def keys_of(where: str, annotation: Any) -> Iterator[tuple[str, Any]]:
    """A setting, or where it is a group of them its keys."""
    if (inner := nested(annotation)) is None:
        yield where, annotation
    else:
        for key, parameter in inspect.signature(inner).parameters.items():
            yield from keys_of(f"{where}.{key}", parameter.annotation)


def settings() -> Iterator[tuple[str, Any]]:
    """Every setting that a configuration can hold, with its annotation."""
    for room in (registry.data, registry.models, registry.measures, registry.studies):
        for name in room.names():
            for key, parameter in inspect.signature(room.get(name).function).parameters.items():
                if room is not registry.studies or key != "seed":  # the run's own
                    yield from keys_of(f"{room.noun} {name}.{key}", parameter.annotation)
    yield from keys_of("groups", Ranked)
    for key, field in RunKeys.model_fields.items():
        yield key, Annotated[field.annotation, field]


def test_every_number_is_bounded_by_its_type():
    found = [(where, bounds) for where, annotation in settings() for _, bounds in numbers_in(annotation)]
    assert len(found) > 100
    assert [where for where, bounds in found if not (bounds & {"ge", "gt"} and bounds & {"le", "lt"})] == []
    assert list(numbers_in(dict[str, list[int]])) == [(int, set())]
