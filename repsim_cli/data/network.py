"""Access to the hub and to files on the web: it fails fast, with an error that says what to do."""

import functools
import http.client
import os
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repsim_cli.base.errors import BadInput
from repsim_cli.runs import cache

TIMEOUT = 3.0  # seconds
OWNERS = {  # of models that the hub knows without one, from before there were any
    "openai-community": r"gpt2(-medium|-large|-xl)?|openai-gpt",
    "distilbert": r"distilgpt2|distilbert-base-[\w-]+|distilroberta-base",
    "google-bert": r"bert-(base|large)-[\w-]+",
    "FacebookAI": r"(xlm-)?roberta-(base|large)(-[\w-]+)?|xlm-(mlm|clm)-[\w-]+",
    "albert": r"albert-[\w-]+",
    "xlnet": r"xlnet-(base|large)-cased",
    "google-t5": r"t5-(small|base|large|3b|11b)",
}


def is_legacy(name: str) -> bool:
    return any(re.fullmatch(names, name) for names in OWNERS.values())


def add_owner(hub: str) -> str:
    """The id of a model on the hub, OWNER/NAME. Raises BadInput for a name whose owner is not known.

    >>> add_owner("gpt2"), add_owner("a/b")
    ('openai-community/gpt2', 'a/b')
    """
    owner = next((owner for owner, names in OWNERS.items() if re.fullmatch(names, hub)), None)
    if owner is None and "/" not in hub:
        raise BadInput(f"hub: an id has an owner, got '{hub}'; write OWNER/{hub}, as the page of the model has it")
    return hub if owner is None else f"{owner}/{hub}"


def is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


@contextmanager
def stay_offline() -> Iterator[None]:
    """Lets only what was downloaded before be read inside."""
    before = os.environ.get("HF_HUB_OFFLINE")
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HF_HUB_OFFLINE"]
        else:
            os.environ["HF_HUB_OFFLINE"] = before


def check_hub() -> None:
    """Raises OSError where the hub cannot be reached; its library would need half a minute or more to notice."""
    if not is_offline() and (why := say_why_unreachable()):
        raise ConnectionError(why)


def must_use_downloads() -> bool:
    """Tells whether the hub's library has to use what it downloaded before."""
    return is_offline() or say_why_unreachable() is not None


@functools.cache
def say_why_unreachable() -> str | None:
    """Says why the hub cannot be reached, tried once per process; None where it can, or where a proxy is used."""
    host = urllib.parse.urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co").hostname
    if urllib.request.getproxies():
        return None
    try:
        socket.create_connection((host, 443), timeout=TIMEOUT).close()
    except OSError as error:
        return str(error) or type(error).__name__
    return None


@contextmanager
def reach(where: str) -> Iterator[None]:
    """Turns errors inside into one that says that `where` cannot be read."""
    import datasets.exceptions

    library = (ValueError, KeyError, RuntimeError, datasets.exceptions.DatasetsError)
    try:
        yield
    except (OSError, http.client.HTTPException, *library) as error:
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise BadInput(
            f"data: it could not be read, got '{where}' ({reason}); check the network, or download it and set "
            "data.path (HF_HUB_OFFLINE=1 uses what was downloaded before)"
        ) from error


def download(url: str) -> Path:
    """The file at this URL, kept in the cache."""
    key = cache.make_cache_key({"url": url})
    with reach(url), cache.use("downloads", [key]) as entries:
        entry = entries[key]
        if not entry.complete:
            if is_offline():
                raise ConnectionError("HF_HUB_OFFLINE is set")
            entry.write("file", lambda path: _fetch(url, path))
            entry.finish(url=url)
        return entry.files["file"]


def _fetch(url: str, path: Path) -> None:
    with urllib.request.urlopen(url, timeout=10 * TIMEOUT) as answer:
        path.write_bytes(answer.read())  # whole: a connection that breaks is an error
