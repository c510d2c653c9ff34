"""The notebooks of the documentation run, and show what they showed when they were committed."""

import re
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
import nbformat

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NAMES = ("ten_minutes", "own_module")


def shown(cell):
    """(kind of output, text) of what a cell shows, without what is logged."""
    for output in cell.get("outputs", []):
        if output.get("name") == "stderr":
            continue
        data = output.get("data", {"text/plain": output.get("text", "")})
        yield sorted(data), data["text/plain"]


def test_all_notebooks_are_run():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)
    assert sum(path.stat().st_size for path in FOLDER.glob("*.ipynb")) < 400_000


@pytest.mark.slow  # it starts a kernel, which trains models
def test_the_notebooks(tmp_path, monkeypatch):
    """All in one process, most of whose time is its start; it forgets all names after each."""
    monkeypatch.setenv("REPSIM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    committed = [nbformat.read(FOLDER / f"{name}.ipynb", 4) for name in NAMES]
    run = nbformat.v4.new_notebook()
    for book in committed:
        run.cells += [nbformat.from_dict({**cell}) for cell in book.cells] + [nbformat.v4.new_code_cell("%reset -f")]
    client = nbclient.NotebookClient(
        run,
        timeout=120,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    cells = iter(run.cells)
    for name, book in zip(NAMES, committed, strict=True):
        for kept in book.cells:
            before, now = list(shown(kept)), list(shown(next(cells)))
            assert [kinds for kinds, _ in now] == [kinds for kinds, _ in before]
            if name == "ten_minutes":  # of shipped models; what is trained differs by machine
                numbers = [
                    [float(x) for _, text in some for x in re.findall(r"\d\.\d+", text)] for some in (now, before)
                ]
                assert numbers[0] == pytest.approx(numbers[1], abs=0.02)
        next(cells)  # %reset
