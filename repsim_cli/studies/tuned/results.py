"""What models change of their base, as results.json has it."""

from collections.abc import Mapping

from repsim_cli.activations.readings import Reading
from repsim_cli.base.plain import slug
from repsim_cli.data.base import Sequences
from repsim_cli.engine.behind import may_keep_texts
from repsim_cli.engine.cached import Tensors
from repsim_cli.engine.comparison import Comparison
from repsim_cli.engine.without_value import Lacking, select_measures_with_values
from repsim_cli.measures import Measure
from repsim_cli.runs.content import (
    CARRIED,
    COSINE,
    KL,
    NEXT,
    OWN,
    RELATIVE,
    Axis,
    Curve,
    Matrix,
    Results,
    Side,
    Table,
    omit_nan,
)
from repsim_cli.runs.results import Run
from repsim_cli.studies.tuned.blocks import END
from repsim_cli.studies.tuned.changes import TEXTS, TOKENS, WITHOUT, Texts, decode_json, find_lacking
from repsim_cli.studies.tuned.tables import make_block_tables

UNITS = {
    RELATIVE: "norm of the difference / norm in the base",
    COSINE: "cosine",
    KL: "nats",
    NEXT: "id of the most likely next token",
    OWN: "norm of the block's own change / norm in the base",
    CARRIED: "norm of the carried change / norm in the base",
}


def make_results(
    run: Run, comparison: Comparison, base: Reading, changes: Mapping[str, Tensors], sequences: Sequences, examples: int
) -> Results:
    """Makes matrices token by token, curves over layers, and tables of the tokens and texts that change most, where
    texts may be kept.

    examples: how many of these are listed of each model.
    """
    matrices, curves = {}, {}
    layers = [layer.name for layer in base.layers]
    measures = _select_measures(run, comparison, base, changes)
    rows = {KL: ["logits"], NEXT: ["base", "model"]}
    depth = max((len(change[OWN]) for change in changes.values() if OWN in change), default=0)
    rows[OWN] = rows[CARRIED] = [f"{END}@{block}" for block in range(depth)]
    for number, (label, change) in enumerate(changes.items()):
        for kind in (kind for kind in UNITS if kind in change):
            values = change[kind].double().numpy()
            matrices[f"{kind}, {label}"] = Matrix(
                rows=Side(model=label, layers=rows.get(kind, layers)),
                columns=Side(model="tokens", layers=[]),
                values=run.write_array(slug(kind, f"{number:02d}", label), values),
                n=values.shape[1],
                label=UNITS[kind],
                about={"kind": kind},
            )
        for name, measure in measures.items():
            quantity, se = f"{name} with {base.label}", change.get(f"se of {name}")
            curves[f"{quantity}, {label}"] = Curve(
                x=Axis(name="layer"),
                y=Axis(name=f"{measure.card.label} with {base.label}"),
                at=layers,
                lines={"same layer": [*map(omit_nan, change[f"of {name}"].tolist())]},
                errors={} if se is None else {"same layer": [*map(omit_nan, se.tolist())]},
                bounds=list(measure.card.bounds),
                about={
                    "quantity": quantity,
                    "model": label,
                    "levels": {},
                    "estimate": comparison.extract.estimate,
                    "rows": int(change["counted"][0]),
                    "batches": int(change["counted"][1]),
                },
            )
    texts = Texts(comparison.tokenizers[base.label], sequences, comparison.extract)
    tables: dict[str, Table] = {}
    if may_keep_texts(comparison):
        tables["tokens that change most"] = Table(columns=TOKENS, rows=list(texts.tokens(changes, examples)))
        tables["texts that change most"] = Table(columns=TEXTS, rows=list(texts.texts(changes, examples)))
    else:
        run.warn("extract.keep_texts: of local files no tokens and texts that change most are listed; set it to true")
    tables |= make_block_tables(changes, texts.show)
    return Results(study="tuned", matrices=matrices, curves=curves, tables=tables)


def _select_measures(
    run: Run, comparison: Comparison, base: Reading, changes: Mapping[str, Tensors]
) -> dict[str, Measure]:
    """Selects the measures with a value at all; lists what has none."""
    layers, found = [layer.name for layer in base.layers], {}
    for name in comparison.measures:
        missing = [(label, *each) for label, x in changes.items() for each in decode_json(x[f"why of {name}"])]
        cells = len(layers) * len(changes)
        found[name] = Lacking([why for *_, why in missing], cells, len(missing) < cells)
        for label, r, why in missing:
            run.without_value.append([name, base.label, label, layers[r], layers[r], why])
    _list_undefined_tokens(run, base, changes)
    return {name: comparison.measures[name] for name in select_measures_with_values(run, found)}


def _list_undefined_tokens(run: Run, base: Reading, changes: Mapping[str, Tensors]) -> None:
    """Lists the layers of which tokens have no value, with one warning for each kind."""
    missing = dict.fromkeys(WITHOUT, 0)
    for label, change in changes.items():
        for kind, r, count, why in find_lacking(change):
            layer, tokens = base.layers[r].name, change[kind].shape[1]
            run.without_value.append([kind, base.label, label, layer, layer, f"{count:,} of {tokens:,} tokens: {why}"])
            missing[kind] += count
    for kind, count in missing.items():
        if count:
            cells = sum(change[kind].numel() for change in changes.values())
            run.warn(f"{kind}: {count:,} of {cells:,} cells without a value: {WITHOUT[kind]}")
