"""What can be selected: the files of conf/, and the models and measures of its two tables."""

import re
from functools import cache
from pathlib import Path
from typing import Any

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import data, did_you_mean, measures, name_package

GROUPS = ("experiment", "model", "data", "measure", "extract", "significance", "hardware")
UNSELECTED = ("study", "analysis")  # named by a key of the run, not a group of files
TABLES = {"model": "models.yaml", "measure": "measures.yaml"}  # groups of which several may be selected, by label
LABEL = re.compile(r"(\w+):")


def find_conf_folder() -> Path:
    """The configs: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def describe_group(group: str) -> dict[str, list[str]]:
    """The names of a group, sorted, each with the lines of its comment.

    In a table a comment describes the labels below it, up to the next comment.
    """
    if group in TABLES:
        return dict(
            sorted([*_list_plugins(group), *_list_label_comments((find_conf_folder() / TABLES[group]).read_text())])
        )
    root = find_conf_folder() / group
    files = {
        str(file.relative_to(root).with_suffix("")): [line for line in file.read_text().splitlines() if line[:1] == "#"]
        for file in root.rglob("*.yaml")
    }
    return dict(sorted({**dict(_list_plugins(group)), **files}.items()))


def _list_label_comments(text: str) -> list[tuple[str, list[str]]]:
    comment: list[str] = []
    labels: list[tuple[str, list[str]]] = []
    before = ""
    for line in text.splitlines():
        if line.startswith("#"):
            comment = [*comment, line] if before.startswith("#") else [line]
        elif key := LABEL.match(line):
            labels.append((key[1], comment))
        before = line
    return labels


STORED = (".npy", ".npz", ".safetensors", ".hdf5", ".h5", ".parquet")  # activations
FILES = (".gguf", *STORED)


def find_model_entry(name: str, key: str = "MODEL") -> dict[str, Any]:
    """The entry of a model that is named by an entry of `repsim list model`, a folder, a file, or a hub id.

    Raises BadInput for what is none of these, under the key of the name.
    """
    from repsim_cli.base.files import expand_path
    from repsim_cli.data.network import is_legacy

    known = read_table_entries("model")
    if name in known:
        return known[name]
    if name.startswith((".", "/", "~")) or name.lower().endswith(("/", *FILES)) or expand_path(name).exists():
        place = expand_path(name)
        if place.is_file() and not name.lower().endswith(FILES):
            raise BadInput(f"{key}: unknown kind of file, got '{name}'; use a folder, or {', '.join(FILES)}")
        from repsim_cli.models.series import is_native  # starts torch

        stored = "precomputed" if place.suffix.lower() in STORED or (place / "dataset_info.json").is_file() else None
        return {"kind": stored or ("transformer_lens" if is_native(place) else "transformers"), "path": str(place)}
    if name.count("/") == 1 or is_legacy(name):
        return {"kind": "transformers", "hub": name}
    hint = did_you_mean(name, known)
    raise BadInput(f"{key}: neither a model nor a folder, got '{name}'; {hint} (an id of the hub is OWNER/NAME)")


def read_preset(group: str, selected: Any) -> dict[str, Any]:
    """The keys of a file of a group; of a table the entries by label. selected: its name, or a list of labels."""
    if group in TABLES:
        labels = [selected] if isinstance(selected, str) else selected
        return {label: read_table_entries(group)[label] for label in labels}
    return read_shipped(find_conf_folder() / group / f"{selected}.yaml")


@cache
def read_table_entries(group: str) -> dict[str, Any]:
    """The entries of a table, by label, and the measures of other packages with their defaults."""
    return {name: {"kind": name} for name, _ in _list_plugins(group)} | read_shipped(find_conf_folder() / TABLES[group])


def _list_plugins(group: str) -> list[tuple[str, list[str]]]:
    """Lists the measures and data of other packages, each with a comment, without importing these."""
    room = {"measure": measures, "data": data}.get(group)
    points = room.plugins.items() if room is not None else ()
    return [(name, [f"# From the package {name_package(point)}"]) for name, point in points]


def read_shipped(file: Path) -> dict[str, Any]:
    """The keys of a file of `conf`."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(file.read_text(), loader)
