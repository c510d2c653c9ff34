"""Dry runs: published models from shipped shapes without a hub, what does not fit here, and the run that is refused."""

import json
import math
import re

import pytest
from helpers.composing import EXPERIMENTS, composed
from helpers.nights import slow

from repsim_cli.activations import readings
from repsim_cli.activations.inputs import load_tokenizers
from repsim_cli.base.errors import BadConfig, BadInput
from repsim_cli.base.planning import collect_unfit, note_unfit
from repsim_cli.base.registry import models
from repsim_cli.base.settings import Extract, Hardware
from repsim_cli.config.presets import read_table_entries
from repsim_cli.config.run import validate
from repsim_cli.data import network
from repsim_cli.engine import cost
from repsim_cli.engine.bounds import check_rows_fit
from repsim_cli.models import configs, shapes
from repsim_cli.runs.results import quiet

# trainings on data of the hub alone, which their entries in conf/models.yaml time
UNTIMED = {"finetune_nli", "glue_freezing", "modsum_training", "yelp_freeze", "yelp_prune"}
PUBLISHED = [name for name in EXPERIMENTS if not name.startswith("tiny/")]
ALIKE = {name for name in PUBLISHED if name.startswith(("yelp_", "grounding_", "universality_"))} - {"yelp_gw"}


@pytest.fixture
def no_hub(monkeypatch):
    """The hub cannot be reached, and no flag says so; gives the addresses that were asked for."""
    asked = []

    def refused(address, timeout):
        asked.append(address)
        raise OSError("no route to it")

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("socket.create_connection", refused)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    return asked


def hub_ids():
    for label, entry in read_table_entries("model").items():
        if entry.get("hub"):
            yield label, entry["hub"]


def test_every_published_model_has_a_shape():
    found = dict(hub_ids())
    assert len(found) >= 35
    for label, hub in found.items():
        assert shapes.find_shipped_shape(hub.replace("{number}", "99")), f"{label}: {hub}"


@pytest.mark.parametrize("name", slow(PUBLISHED, *ALIKE))
def test_a_published_study_is_planned_without_a_hub(no_hub, name):
    config = validate(composed(f"experiment={name}", "dry_run=true"))
    plan = config.plan()
    assert plan.get("models") or plan.get("model")
    assert not config.unknown
    assert not no_hub
    untimed = name in UNTIMED or plan.get("weights") == "none"  # read from configs
    assert "GFLOP/s in float32, " in str(plan.get("time, roughly")) or untimed
    assert str(plan.get("trainings", "not known before")).startswith("not known before") or name == "modsum_training"
    assert untimed or all(plan[part] for part in ("memory, GB", "disk, GB", "operations"))
    models_shown = plan.get("models", {}).values() if plan.get("weights") != "none" else []
    assert all(
        ("parameters" in str(shown) and " GB in " in str(shown)) or "precomputed" in shown for shown in models_shown
    )


def test_the_numbers_of_published_models():
    """Parameters of backbones, as published: the first Pythia, GPT-2 small, and BERT-base with its pooler."""
    with collect_unfit(dry=True):
        found = {hub: models.get("transformers").function(hub=hub) for hub in (
            "EleutherAI/pythia-70m-deduped", "openai-community/gpt2", "google-bert/bert-base-uncased"
        )}  # fmt: skip
    assert [one.parameters for one in found.values()] == [44_670_976, 124_439_808, 109_482_240]
    assert [one.context for one in found.values()] == [2048, 1024, 512]


def test_shipped_shapes_are_those_of_the_random_models():
    """The models pythia_*_shape say the same of the Pythia models."""
    seen = 0
    for label, entry in read_table_entries("model").items():
        if not label.startswith("pythia_") or not label.endswith("_shape"):
            continue
        size = label.removeprefix("pythia_").removesuffix("_shape").replace("_", ".")
        given = {key: value for key, value in entry["config"].items() if key != "rope_parameters"}
        assert given == shapes.load_model_shapes()[f"EleutherAI/pythia-{size}-deduped"].config, label
        seen += 1
    assert seen == 8


def test_a_plan_says_what_does_not_fit_and_the_run_is_refused(repsim, tmp_path):
    words = ["run", "model=[pythia_410m_shape]", "model.pythia_410m_shape.tokenizer=tiny_a", "hardware.memory_gb=1.5"]
    words += ["hardware.device=cuda:9"]
    problems = [
        "hardware.device: not usable here, got 'cuda:9' (",
        "hardware.memory_gb: the run needs about 2.",
    ]
    code, out, err = repsim(*words, "dry_run=true")
    assert (code, err) == (0, "")
    plan, misfits = out.split("  does not run here\n")
    assert "pythia_410m_shape: gpt_neox, 24 blocks of 1024, 353,822,720 parameters" in plan
    for line, problem in zip(misfits.splitlines(), problems, strict=True):
        assert line.startswith(f"    {problem}")
    assert "hardware.memory_gb=" in misfits
    code, out, err = repsim(*words)
    assert (code, out) == (2, "")
    for line, problem in zip(err.splitlines(), problems, strict=True):
        assert line.startswith(f"error: {problem}")
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["study=outputs", "model=[tiny_a,tiny_b]", "measure=[]"], "would do, or use smaller models"),
        (["experiment=tiny/ptb_attention", "hardware.resident=one"], "or lower hardware.batch_size or extract.length"),
        (["experiment=tiny/ptb_attention", "hardware.resident=all"], "would do, hardware.resident=one needs less, or lower"),
        (["study=pretrain", "model=[]", "measure=[]", "data=embedded_train", "+options.recipe={config: {model_type: gpt_neox, hidden_size: 64, num_hidden_layers: 6, num_attention_heads: 4, intermediate_size: 256}}"], "or lower options.recipe.batch_size"),
    ],
)  # fmt: skip
def test_every_study_says_which_setting_would_fit(repsim, tmp_path, words, advice):
    words = ["run", *words, "hardware.memory_gb=0.1"]
    code, out, err = repsim(*words, "dry_run=true")
    assert (code, err) == (0, "")
    misfit = out.partition("  does not run here\n")[2].strip()
    need = re.match(r"hardware.memory_gb: the run needs about (\S+) GB, got a limit of 0.10 GB; ", misfit)
    assert need, out
    assert advice in misfit
    enough = re.search(r"hardware.memory_gb=(\S+) would do", misfit)
    assert enough, misfit
    assert 0 < float(enough[1]) - float(need[1]) < 0.2
    words[-1] = enough[0].split()[0]
    assert "does not run here" not in repsim(*words, "dry_run=true")[1]
    words[-1] = "hardware.memory_gb=0.1"
    code, out, err = repsim(*words)
    assert (code, out, err) == (2, "", f"error: {misfit}\n")
    assert not (tmp_path / "outputs").exists()


def test_the_published_command_on_a_small_machine(repsim, tmp_path, no_hub):
    words = ["run", "experiment=pythia_cka", "hardware.memory_gb=20"]
    code, out, _ = repsim(*words, "dry_run=true")
    assert code == 0
    assert "pythia_6_9b: gpt_neox, 32 blocks of 4096, 6,650,732,544 parameters" in out
    assert "got a limit of 20.00 GB; hardware.batch_size=5 would fit, hardware.memory_gb=27.8 would do" in out
    assert "  by block: pythia_2_8b, pythia_6_9b\n" in out
    fewer = "model=[pythia_70m,pythia_160m,pythia_410m,pythia_1b]"
    code, out, err = repsim(*words, fewer, "dry_run=true")
    assert code == 0, err
    assert "does not run here" not in out
    assert not no_hub
    code, out, err = repsim(*words)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith(
        "error: model: the hub cannot be reached (no route to it), got models of it: pythia_70m (Eleu"
    )
    assert "pythia_6_9b (EleutherAI/pythia-6.9b-deduped)" in line
    assert "set model.pythia_70m.hub=null model.pythia_70m.path=FOLDER" in line
    assert line.endswith("; experiment=tiny/pythia_cka needs no network, and dry_run=true plans this one")
    assert no_hub == [("huggingface.co", 443)]
    assert not (tmp_path / "outputs").exists()


def test_series_and_families_out_of_reach(no_hub):
    with pytest.raises(BadConfig, match=r"pythia_2_8b_series \(EleutherAI/pythia-2.8b-deduped@step143000\); connect, .* set model.pythia_70m_series.hub=null model.pythia_70m_series.folder=FOLDER"):  # fmt: skip
        validate(composed("experiment=pythia_convergence"))
    with pytest.raises(BadConfig, match=r"feather_berts \(connectivity/feather_berts_99\); connect, or download them and set model.feather_berts.hub=null model.feather_berts.path=FOLDER_{number} "):  # fmt: skip
        validate(composed("experiment=mnli_cka"))
    assert len(no_hub) == 1


def test_a_shape_that_ships_with_nothing_is_said_to_be_unknown(repsim, no_hub):
    words = ["run", "model=[tiny_a]", "+model.x={kind: transformers, hub: nobody/nothing}"]
    code, out, _ = repsim(*words, "dry_run=true")
    assert code == 0
    assert "x: shape unknown: nobody/nothing ships with none, and the hub cannot be reached (no route to it)" in out
    assert "memory: not known without these shapes" in out
    assert repsim(*words)[0] == 2


def test_the_hub_has_the_last_word(monkeypatch):
    """A run uses its config where that is not the shape that ships, and says so, once."""
    hub = "EleutherAI/pythia-70m-deduped"
    said = configs.inline_config({**shapes.load_model_shapes()[hub].config, "hidden_size": 256})
    warned = []
    monkeypatch.setattr(configs, "read_config", lambda where, revision: said)
    monkeypatch.setattr(shapes.log, "warning", lambda text, *values: warned.append(text % values))
    shapes.compare_with_shipped.cache_clear()
    assert configs.find_config(hub) is said
    assert configs.find_config(hub, "step1000") is said
    assert warned == [
        f"{hub}: the config on the hub differs from the shipped shape, got hidden_size 256 for 512; runs use the "
        "hub's, dry runs the shipped one"
    ]
    with collect_unfit(dry=True):
        assert configs.find_config(hub).hidden_size == 512


def test_steps_of_a_published_training():
    make = models.get("series").function
    hub = "EleutherAI/pythia-70m-deduped"
    assert len(shapes.load_model_shapes()[hub].steps) == 154
    with pytest.raises(BadInput, match=f"steps: {hub} was published without this step, got 1500; the nearest is 1000"):
        make(hub=hub, steps=[0, 1500])
    assert len(make(hub="nobody/nothing", steps=[0, 1500]).checkpoints) == 2


def test_tokenizers_are_shared_by_name():
    def found(*hubs):
        with collect_unfit(dry=True):
            live = {hub: models.get("transformers").function(hub=hub) for hub in hubs}
            return load_tokenizers(live, text, extract)

    text, extract = validate(composed("dry_run=true")).study.comparison.data, Extract(hook_points=["resid_post"])
    assert len(found("openai-community/gpt2", "openai-community/gpt2-medium")) == 2
    with pytest.raises(
        BadInput, match="model: tokenizers differ, got a different vocabulary for 'openai-community/gpt2'"
    ):
        found("EleutherAI/pythia-70m-deduped", "openai-community/gpt2")


def test_which_setting_would_fit():
    source = models.get("shipped").function(name="tiny_a")

    def said(limit, weights=0.0):
        with collect_unfit(dry=True) as misfits:
            check_rows_fit(
                lambda rows: {"forward": 4e9, "weights": weights, "rows": 1e6 * rows},
                1000,
                Hardware(memory_gb=limit, batch_size=8),
                {"a": source, "b": source},
            )
        return misfits

    assert said(6.0) == []
    assert said(4.5)[0].endswith("; extract.rows=500 would fit")
    assert said(2.4)[0].endswith(
        "; hardware.batch_size=2 would fit, hardware.memory_gb=5.1 would do, or use smaller models"
    )
    assert said(3.4)[0].endswith("; hardware.batch_size=4 would fit, hardware.memory_gb=5.1 would do, or leave out b")
    with pytest.raises(BadInput, match="too much"):
        note_unfit("x: too much, got 2; use 1")


def test_the_hub_is_asked_once(no_hub):
    for _ in range(3):
        assert network.must_use_downloads()
    with pytest.raises(ConnectionError, match="no route to it"):
        network.check_hub()
    assert len(no_hub) == 1


def test_a_device_for_training_is_noted_and_refused_when_needed(repsim, tmp_path):
    """Models that are in the cache need none."""
    config = validate(composed("experiment=finetune_nli", "dry_run=true", "model.bert_mnli.recipe.device=cuda:9"))
    assert config.misfits[0].startswith("model.bert_mnli.recipe.device: not usable here, got 'cuda:9' (")
    words = ["run", "experiment=tiny/finetune_nli", "model.tiny_nli.recipe.device=cuda:9", "model.tiny_nli.seeds=[0,1]"]
    code, out, err = repsim(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: model.tiny_nli_0.recipe.device: not usable here, got 'cuda:9' (")
    assert not list((tmp_path / "outputs").rglob("manifest.json"))


@pytest.mark.slow
def test_the_plan_of_trainings(tmp_path, monkeypatch):
    """Steps and operations of what is not in the cache; the encoder that seeds share is trained once."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path))
    words = ("study=modular_training", "model=[modsum_tiny_0]", "measure=[]", "extract=modsum", "data=modular_pairs")
    config = validate(composed(*words, "model.modsum_tiny_0.recipe.epochs=2", "dry_run=true"))
    pairs = round(0.8 * 23**2)
    plan = config.plan()
    assert (plan["trainings"], plan["steps, at most"]) == ("1 not in the cache", 2 * math.ceil(pairs / 64))
    (source,) = config.models.values()
    assert float(plan["operations"]["training"]) == pytest.approx(6 * 2 * pairs * 2 * 12 * source.width**2, rel=0.05)
    source.make(quiet)
    assert config.plan()["trainings"] == "0 not in the cache"
    seeds = validate(composed("experiment=tiny/finetune_nli", "model.tiny_nli.seeds=[0,1]", "dry_run=true"))
    assert seeds.plan()["trainings"] == "3 not in the cache"


@pytest.fixture
def two_large(tmp_path):
    """Entries of two models of 12 layers of 1024 features and 200 000 rows: files of holes, which take no disk."""
    shape, entries = [200_000, 1024], []
    for label in "ab":
        size = 2 * math.prod(shape)
        header = {
            f"h{i}": {"dtype": "F16", "shape": shape, "data_offsets": [i * size, (i + 1) * size]} for i in range(12)
        }
        text = json.dumps(header).encode()
        with (tmp_path / f"{label}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + 12 * size)
        entries.append(f"+model.{label}={{kind: precomputed, path: {tmp_path / f'{label}.safetensors'}}}")
    return ["run", "model=[]", *entries, "dry_run=true"]


def test_the_plan_of_cross_products_that_do_not_fit(repsim, two_large):
    words = [*two_large, "measure=[mean_cca,linear_regression]", "extract.estimate=moments"]
    _, out, err = repsim(*words, "hardware.memory_gb=2")
    assert "passes over the rows: 2, for 300 cross products of 2.52 GB, 1.28 GB at a time" in out, err
    assert "in all: 1.98\n" in out
    assert "prepared layers: 0.403" in out
    _, out, _ = repsim(*words, "hardware.memory_gb=4")
    assert "passes over the rows: 1, for 300 cross products of 2.52 GB\n" in out
    _, out, _ = repsim(*words, "hardware.memory_gb=0.7")
    assert "hardware.memory_gb: the run needs about 0.71 GB, got a limit of 0.70 GB; " in out


def test_what_a_plan_says_of_weights_and_passes(repsim):
    """Bytes by dtype and device; operations; how often models run whose activations exceed the cache's limit."""
    words = ["run", "model=[pythia_410m_shape]", "model.pythia_410m_shape.tokenizer=tiny_a", "measure=[cka]"]
    words += ["extract.estimate=moments", "hardware.dtype=bfloat16", "hardware.memory_gb=4", "dry_run=true"]
    _, out, _ = repsim(*words, "cache=false")
    assert "353,822,720 parameters, 0.708 GB in bfloat16 on cpu" in out
    turns = int(out.partition("passes over the rows: ")[2].partition(",")[0])
    assert turns > 1
    assert f"forward passes: {8 * turns}\n" in out
    _, out, _ = repsim(*words, "cache=true")
    assert "forward passes: 8\n" in out
    assert "activations in the cache: 0.805" in out
    _, out, _ = repsim(*words, "cache=true", "extract.sequences=6400", "extract.pool=6400")
    assert "activations in the cache: none, 80.5 exceed its 20" in out
    assert f"forward passes: {800 * turns}\n" in out


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gpt_neox"])
def test_planned_widths_inside_an_mlp_are_those_of_the_config(kind, monkeypatch):
    key = {"gpt2": "n_inner"}.get(kind, "intermediate_size")
    config = {"model_type": kind, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, key: 96}
    source = models.get("random").function(config=config, seed=0)
    extract = Extract(hook_points=["mlp_pre", "mlp_post", "mlp_out"])

    def planned():
        return [layer.width for layer in readings.plan_readings({"a": source}, extract)[0].layers]

    assert planned() == [96] * 4 + [64] * 2
    monkeypatch.setattr(
        readings, "find_output_shapes", lambda *_: {}
    )  # a model of which no pass without weights is possible
    assert planned() == [96] * 4 + [64] * 2


def test_a_device_that_is_not_here_is_assumed():
    assert cost.measure_speed("cuda:9") == (1e13, "assumed for 'cuda:9', which this machine lacks")
    assert cost.measure_speed("cuda:9", "bfloat16")[0] == 1e14


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["extract.skip=1000"], "extract.skip: no row is left, as sequences have at most 128 tokens, got 1000"),
        (["study=barycentre", "extract.skip=300"], "extract.skip: no row is left"),
        (["significance=permutation", "significance.clusters=none"], "significance.clusters: no such property"),
        (["resume=nope"], "got 'nope'"),
        (["resume=latest"], "resume: no unfinished run of this configuration"),
        (["data=local_text", "data.path=FILE"], "line 2: not JSON"),
        (["study=layers", "data=local_text", "data.path=FILE"], "line 2: not JSON"),
    ],
)
def test_what_can_be_known_without_weights_is_refused_by_a_plan(repsim, tmp_path, words, refusal):
    """The refusal is that of the run, and comes before a plan is printed."""
    (tmp_path / "text.jsonl").write_text('{"text": "one two three"}\n{broken\n')
    words = [word.replace("FILE", str(tmp_path / "text.jsonl")) for word in words]
    for dry in ("true", "false"):
        code, out, err = repsim("run", "model=[tiny_a,tiny_b]", *words, f"dry_run={dry}")
        assert (code, out) == (2, "")
        assert refusal in err


@pytest.mark.parametrize(
    ("word", "refusals"),
    [
        ("figures.format=gif", ["figures.format: wrong value, got 'gif'; give a list, each one of png, svg, pdf, e.g. [png]"]),
        ("figures.format=[png,png]", ["figures.format: a name twice, got 'png' in ['png', 'png']; give each once"]),
        (
            "groups=3",
            [
                "groups: wrong value, got 3; give a mapping from text to a list, each text, or a mapping from text to any "
                "value, or null, e.g. {NAME: [TEXT]}"
            ],
        ),
        ("base=[tiny_a]", ["base: wrong value, got ['tiny_a']; give string"]),
        ("extract.layers={a: 1}", ["extract.layers: wrong value, got {'a': 1}; give all, or a list, each a whole number from -10000 to 10000, e.g. [1]"]),
    ],
)  # fmt: skip
def test_hints_name_what_a_list_or_a_mapping_holds(repsim, word, refusals):
    code, _, err = repsim("run", "dry_run=true", word)
    assert code == 2
    assert err.splitlines() == [f"error: {refusal}" for refusal in refusals]
