"""Runs are logged to trackers, offline, by the trackers' own libraries; what fails there loses no run."""

import json

import pytest

from repsim_cli.report import tracking
from repsim_cli.report.tracking import TRACKERS, TrackedRun
from repsim_cli.runs import reader

# of the libraries themselves
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
SMALL = ("model=[tiny_a,tiny_b]", "measure=[cka]", "extract.sequences=8", "extract.batch_rows=400")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A small run, with figures."""
    import repsim_cli

    folder = tmp_path_factory.mktemp("tracked") / "run"
    settings = {"extract.sequences": 8, "extract.batch_rows": 400, "figures.format": ["png"]}
    repsim_cli.compare(["tiny_a", "tiny_b"], measures=["cka"], settings=settings, folder=folder)
    return TrackedRun(folder, reader.read_config(folder))


def test_numbers_and_tables_are_those_of_the_run(recorded):
    (measured,) = reader.read_results(recorded.folder).measures
    (matrix,) = [m for m in measured.matrices if m.rows.model != m.columns.model]
    values = reader.read_array(recorded.folder, matrix.values)
    assert recorded.numbers["cka/tiny_a x tiny_b/mean"] == pytest.approx(values.mean())
    assert recorded.numbers["cka/tiny_a x tiny_b/highest"] == values.max()
    assert len(recorded.numbers) == 3 * len(measured.matrices)
    assert {sheet.name for sheet in recorded.tables()} >= {"pairs", "table-diagnostics of layers"}
    assert "cka-all" in [file.stem for file in recorded.figures()]
    assert not {"tensorboard", "wandb", "mlruns"} & {file.name for file in recorded.folder.iterdir()}  # by default


def test_tensorboard(recorded):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracking.tensorboard(recorded)
    events = EventAccumulator(str(recorded.folder / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    found = {tag: events.Scalars(tag)[0].value for tag in tags["scalars"]}
    assert found == pytest.approx(recorded.numbers, rel=1e-6)
    assert "cka-all" in tags["images"]
    assert "config/text_summary" in tags["tensors"]


def test_mlflow(recorded, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mlflow.utils.credentials, "read_mlflow_creds", lambda: None, raising=False)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    tracking.mlflow(recorded)
    (run,) = mlflow.search_runs(experiment_names=["repsim"], output_format="list")
    assert run.data.metrics == pytest.approx(recorded.numbers)
    assert run.data.params["extract.sequences"] == "8"
    files = {file.path for kind in ("figures", "tables") for file in mlflow.artifacts.list_artifacts(run_id=run.info.run_id, artifact_path=kind)}  # fmt: skip
    assert {"figures/cka-all.png", "tables/pairs.csv"} <= files


@pytest.mark.slow  # it starts a service
def test_wandb(recorded, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    tracking.wandb(recorded)
    (folder,) = (recorded.folder / "wandb").glob("offline-run-*")
    (summary,) = folder.rglob("*.wandb")
    assert b"cka/tiny_a x tiny_b/mean" in summary.read_bytes()
    assert list(folder.rglob("media/images/figures/cka-all*.png"))


def test_a_run_that_is_logged_and_one_that_cannot_be(repsim, newest, monkeypatch):
    seen = []
    monkeypatch.setattr(tracking, "check", lambda name: None)
    monkeypatch.setitem(TRACKERS, "mlflow", seen.append)
    assert repsim("run", *SMALL, "track=mlflow")[0] == 0
    (record,) = seen
    assert record.folder == newest()
    assert record.config["model"].keys() == {"tiny_a", "tiny_b"}

    def broken(record):
        raise OSError("the server\ndoes not answer")

    monkeypatch.setitem(TRACKERS, "mlflow", broken)
    assert repsim("run", *SMALL, "track=mlflow")[0] == 0
    manifest = json.loads((newest() / "manifest.json").read_text())
    assert manifest["status"] == "complete"
    assert manifest["warnings"][-1:] == ["track: mlflow did not log the run (OSError: the server does not answer)"]


def test_bad_trackers(repsim, monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    for name in TRACKERS:
        code, _, err = repsim("run", *SMALL, f"track={name}")
        assert code == 2
        assert f"track: needs the package {name}, which is not installed; pip install -e '.[{name}]'" in err
    code, _, err = repsim("run", *SMALL, "track=neptune")
    assert code == 2
    assert "track: wrong value, got 'neptune'; give 'tensorboard', 'mlflow' or 'wandb'" in err
