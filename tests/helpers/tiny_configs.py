"""Tiny configs of every model type, from tiny_configs.yaml."""

from pathlib import Path
from typing import Any

import yaml

_FILE = yaml.safe_load((Path(__file__).parent / "tiny_configs.yaml").read_text())
GROUPS = ("text", "encoder_decoder", "images", "variants")
NAMES: dict[str, list[str]] = {group: list(_FILE[group]) for group in GROUPS}


def _given(name: str) -> dict[str, Any]:
    return next(_FILE[group][name] for group in GROUPS if name in _FILE[group])


def model_type(name: str) -> str:
    """That of a type or variant; imports no library."""
    return _given(name).get("model_type", name)


def tiny_config(name: str) -> dict[str, Any]:
    """The settings of a type or variant, with its model_type."""
    from transformers import AutoConfig

    given, kind = _given(name), model_type(name)
    default = AutoConfig.for_model(kind)
    known = {*default.to_dict(), *default.attribute_map}
    settings = {**{key: value for key, value in _FILE["shared"].items() if key in known}, **given}
    return {"model_type": kind, **{key: value for key, value in settings.items() if value is not None}}
