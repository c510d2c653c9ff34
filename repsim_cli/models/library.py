"""transformers, imported when first needed, and what must not happen twice at a time in it."""

import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any


def import_transformers() -> Any:
    """Imports transformers when it is first needed, since that takes seconds, and silences its messages."""
    for name in ("torchao", "torch.utils._pytree"):  # imported with it where torchao is installed
        _set_level(logging.getLogger(name), logging.ERROR)
    import transformers

    _set_level(logging.getLogger("transformers"), logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    return transformers


def _set_level(logger: logging.Logger, level: int) -> None:
    """Sets a level where it is another one: logging then asks anew for each of thousands of loggers."""
    if logger.level != level:
        logger.setLevel(level)


LOADING = threading.Lock()


@contextmanager
def hold_loading_lock() -> Iterator[None]:
    """Holds a lock in its block, so that one model is built or loaded at a time.

    While transformers loads a model, it replaces `PreTrainedModel.tie_weights` for the whole process. A model that is
    built meanwhile keeps an untied head. Of two loads that overlap, the later to end leaves the replacement in place:
    from then on every checkpoint with tied weights seems to lack its lm_head.weight.
    """
    with LOADING, silence_transformers():
        yield


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Silences the load report, which transformers logs as an error; missing weights are reported here."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    # filters belong to the process: a thread that loads must not reset them while another computes
    in_main_thread = threading.current_thread() is threading.main_thread()
    try:
        with warnings.catch_warnings(action="ignore") if in_main_thread else nullcontext():
            yield
    finally:
        logger.setLevel(level)
