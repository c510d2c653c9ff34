"""Records from the Hugging Face hub, and from parquet files in its format."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import refuse
from repsim_cli.base.registry import did_you_mean
from repsim_cli.data.files import parquet, read_parquet_rows, read_saved
from repsim_cli.data.network import check_hub, reach

NO_LABEL = "-"  # in MNLI, where the annotators did not agree; -1 on the hub


class DataRow(NamedTuple):
    """A row of a data set.

    where: its place, for error messages.
    fields: by column; class labels are names, never the hub's numbers, images are bytes.
    """

    where: str
    fields: dict[str, Any]


class HubTable(NamedTuple):
    """A data set on the hub, in a format that is read without running its code."""

    hub: str
    config: str | None = None
    revision: str | None = None


def read_hub_records(table: HubTable, split: str) -> Iterator[DataRow]:
    """The rows of a split. Raises BadInput where the hub cannot be reached and its cache lacks the data."""
    import datasets

    datasets.disable_progress_bars()
    with reach(table.hub):
        check_hub()
        records = datasets.load_dataset(table.hub, table.config, split=split, revision=table.revision)
    yield from _convert_records(records, f"{table.hub}, {split}")


def read_stored(folder: Path, split: str) -> Iterator[DataRow]:
    """The rows of a folder written by `Dataset.save_to_disk`, or those of a split by `DatasetDict.save_to_disk`."""
    import datasets

    with refuse("path: not a folder of a data set", folder, "write it with Dataset.save_to_disk"):
        records = read_saved(folder)
    if isinstance(records, datasets.DatasetDict):
        if split not in records:
            raise BadInput(f"split: no such split, got '{split}'; {did_you_mean(split, map(str, records))}")
        records = records[split]
    yield from _convert_records(records, str(folder))


def _convert_records(records: Any, source: str) -> Iterator[DataRow]:
    import datasets

    for name, feature in records.features.items():
        if isinstance(feature, datasets.Image):
            records = records.cast_column(name, datasets.Image(decode=False))
    for number, fields in enumerate(records):
        yield DataRow(f"{source} {number}", _name_classes(dict(fields), records.features))


def read_parquet_records(file: Path) -> Iterator[DataRow]:
    import datasets

    with parquet(file) as table:
        with refuse(f"{file}: its columns cannot be read", file.name, "write it again"):
            features = datasets.Features.from_arrow_schema(table.schema_arrow)
        for number, fields in enumerate(read_parquet_rows(file, table)):
            where = f"{file}, row {number}"
            with refuse(f"{where}: not a row of its columns", str(fields)[:60], "write it again"):
                named = _name_classes(fields, features)
            yield DataRow(where, named)


def _name_classes(fields: dict[str, Any], features: Any) -> dict[str, Any]:
    """The fields, with names for class labels."""
    import datasets

    labels = {name: feature for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)}
    names = {n: NO_LABEL if fields[n] in (-1, None) else feature.int2str(fields[n]) for n, feature in labels.items()}
    return {**fields, **names}
