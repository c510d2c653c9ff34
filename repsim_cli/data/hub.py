"""Records of the Hugging Face hub, of parquet files in its format, and files from the web, kept in its cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from repsim_cli.data.text import parquet
from repsim_cli.errors import BadInput

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
    with _reaching(table.hub):
        found = datasets.load_dataset(table.hub, table.config, split=split, revision=table.revision)
    for name, feature in found.features.items():
        if isinstance(feature, datasets.Image):
            found = found.cast_column(name, datasets.Image(decode=False))
    for number, fields in enumerate(found):
        yield Record(f"{table.hub}, {split} {number}", _named(dict(fields), found.features))


def parquet_records(file: Path) -> Iterator[Record]:
    import datasets

    with parquet(file) as table:
        features = datasets.Features.from_arrow_schema(table.schema_arrow)
        number = 0
        for batch in table.iter_batches():
            for fields in batch.to_pylist():
                yield Record(f"{file}, row {number}", _named(fields, features))
                number += 1


def _named(fields: dict[str, Any], features: Any) -> dict[str, Any]:
    """The fields with class labels as their names."""
    import datasets

    labels = {name: feature for name, feature in features.items() if isinstance(feature, datasets.ClassLabel)}
    names = {n: NO_LABEL if fields[n] in (-1, None) else feature.int2str(fields[n]) for n, feature in labels.items()}
    return {**fields, **names}


def download(url: str) -> Path:
    """The file of this address, in the cache of `datasets`."""
    import datasets

    datasets.disable_progress_bars()
    with _reaching(url):
        return Path(str(datasets.DownloadManager().download(url)))


@contextmanager
def _reaching(where: str) -> Iterator[None]:
    import datasets.exceptions

    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise BadInput(
            f"data: it could not be read, got '{where}' ({reason}); check the network, or download it and set data.path"
        ) from error
