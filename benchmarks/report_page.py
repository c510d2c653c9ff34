"""Size of report pages with large maps, and what each interaction costs in Chromium.

Command: python benchmarks/report_page.py     (about five minutes; needs Chromium)
Runs with made-up numbers, two measures with standard errors: 60 models with 12 layers (518 400 cells, mirrored), 2
models with 300 layers, and 200 models with 12 layers, which are shown as block means. Of each interaction the median
and the largest of nine turns: time of the page's thread on the CPU, with layout and painting, and time on the clock
until the next frame is there, which other processes make longer.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.browser import Browser, browser

from repsim_cli import report
from repsim_cli.runs import results
from repsim_cli.runs.content import Matrix, Measured, Results, Side

TURNS = 9
FRAME = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
CARD = {
    **{"larger_is_closer": True, "bounds": [None, 1.0], "symmetric": True, "is_metric": False},
    **{"source": "", "note": "", "invariant_to": []},
}


def made(folder: Path, models: int, layers: int) -> Path:
    run = results.create(folder, name=folder.name, study="similarity", seed=0, command=["repsim", "run"], overrides=[])
    rng = np.random.default_rng(0)
    sides = [Side(model=f"model_{i}", layers=[f"resid_post@{k}" for k in range(layers)]) for i in range(models)]
    measures = []
    for label in ("cka", "mutual_knn"):
        matrices = []
        for i, rows in enumerate(sides):
            for j in range(i, models):
                values = rng.uniform(size=(layers, layers))
                values = (values + values.T) / 2 if i == j else values
                array = run.write_array(f"{label}-{i}-{j}", values)
                se = run.write_array(f"{label}-{i}-{j}-se", values / 10)
                matrices.append(Matrix(rows=rows, columns=sides[j], values=array, se=se, n=100))
        estimate = {"kind": "per_batch", "rows": 100, "rows_available": 100, "batches": 2}
        card = {**CARD, "label": label.upper()}
        measures.append(Measured(name=label, label=label, settings={}, estimate=estimate, card=card, matrices=matrices))
    run.write_text("config.yaml", "{}")
    run.write_results(Results(study="similarity", measures=measures))
    run.finish("complete")
    return folder


def timed(page: Browser, act: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of the thread's CPU and of the clock."""

    def spent() -> float:
        metrics = page.call("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")

    before = spent()
    begun = page.evaluate("performance.now()")
    act()
    ended = page.evaluate(f"{FRAME}.then(() => performance.now())")
    return 1000 * (spent() - before), ended - begun


def main() -> None:
    with tempfile.TemporaryDirectory() as place, browser() as page:
        page.call("Performance.setTimeDomain", timeDomain="threadTicks")
        page.call("Performance.enable")
        for models, layers in ((60, 12), (2, 300), (200, 12)):
            folder = made(Path(place) / f"{models} x {layers}", models, layers)
            file = report.save([folder], folder / report.FILE)
            page.open(file)
            loaded = page.evaluate("performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
            print(f"{models} models x {layers} layers: {file.stat().st_size / 1e6:.2f} MB, shown after {loaded:.0f} ms")
            page.evaluate("new Promise((done) => setTimeout(done, 3000))")
            for name, turns in interactions(page).items():
                times = np.array([timed(page, act) for act in turns])
                (cpu, clock), (most, longest) = np.median(times, 0), times.max(0)
                print(f"  {name:16} CPU {cpu:5.0f} ms (most {most:5.0f})   clock {clock:5.0f} ms (most {longest:5.0f})")
    parts = [report.ASSETS / name for name in ("page.html", *report.STYLES, *report.SCRIPTS)]
    print(f"the page without its data: {sum(part.stat().st_size for part in parts) / 1e6:.2f} MB")


def interactions(page: Browser) -> dict[str, list[Callable[[], object]]]:
    left, top, width, height = page.evaluate(
        "(() => { const e = document.querySelector('.map canvas'); e.scrollIntoView({block: 'center'});"
        "const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()"
    )

    def at(act: Callable[[float, float], None], turn: int) -> Callable[[], None]:
        return lambda: act(left + width * (0.2 + 0.07 * turn), top + height * (0.5 + 0.03 * turn))

    def choosing(name: str, option: int) -> Callable[[], object]:
        return lambda: page.evaluate(
            f"(() => {{ const s = document.querySelector('select[name={name}]'); s.selectedIndex = {option};"
            "s.dispatchEvent(new Event('change')); })()"
        )

    def chosen(name: str, options: tuple[int, ...]) -> list[Callable[[], object]]:
        return [choosing(name, options[turn % len(options)]) for turn in range(TURNS)]

    return {
        "hover": [at(lambda x, y: page.mouse("mouseMoved", x, y), turn) for turn in range(TURNS)],
        "click on a row": [at(page.click, turn) for turn in range(TURNS)],
        "another measure": chosen("measure", (1, 0)),
        "standard error": chosen("what", (1, 0)),
        "two models": chosen("rows", (1, 0)),
        "by depth": chosen("order", (1, 0)),
        "by cluster": chosen("order", (2, 0)),
    }


if __name__ == "__main__":
    main()
