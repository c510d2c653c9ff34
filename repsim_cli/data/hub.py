"""Records of the Hugging Face hub, and of parquet files in its format."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from repsim_cli.data.files import parquet, parquet_rows
from repsim_cli.data.network import knock, reaching
from repsim_cli.files import refusing

NO_LABEL = "-"  # MNLI's mark where its annotators did not agree; the hub writes -1


class Record(NamedTuple):
    """where: for messages. fields: by column, class labels as names (never the hub's numbers), images as bytes."""

    where: str
    fields: dict[str, Any]


class HubTable(NamedTuple):
    """Where a data set lies on the hub, in a format that needs no code of its own."""

    hub: str
    config: str | None = None
    revision: str | None = None


def hub_records(table: HubTable, split: str) -> Iterator[Record]:
    """Raises BadInput where the hub cannot be reached and the data is not in its cache."""
    import datasets

    datasets.disable_progress_bars()
    with reaching(table.hub):
        knock()
        found = datasets.load_dataset(table.hub, table.config, split=split, revision=table.revision)
    for name, feature in found.features.items():
        if isinstance(feature, datasets.Image):
            found = found.cast_column(name, datasets.Image(decode=False))
    for number, fields in enumerate(found):
        yield Record(f"{table.hub}, {split} {number}", _named(dict(fields), found.features))


def parquet_records(file: Path) -> Iterator[Record]:
    import datasets

    with parquet(file) as table:
        with refusing(f"{file}: its columns cannot be read", file.name, "write it again"):
            features = datasets.Features.from_arrow_schema(table.schema_arrow)
        for number, fields in enumerate(parquet_rows(file, table)):
            where = f"{file}, row {number}"
            with refusing(f"{where}: not a row of its columns", str(fields)[:60], "write it again"):
                named = _named(fields, features)
            yield Record(where, named)


def _named(fields: dict[str, Any], features: Any) -> dict[str, Any]:
    """The fields with class labels as their names."""
    import datasets

    labels = {name: feature for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)}
    names = {n: NO_LABEL if fields[n] in (-1, None) else feature.int2str(fields[n]) for n, feature in labels.items()}
    return {**fields, **names}
