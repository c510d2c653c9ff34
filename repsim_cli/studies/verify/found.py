"""A place where the candidate differs, and what its tensors say."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from repsim_cli.studies.verify.inputs import Batch
from repsim_cli.studies.verify.rounding import Judged
from repsim_cli.studies.verify.units import ModelUnit

OUT = "logits"


@dataclass(frozen=True)
class Finding:
    """A place where the candidate differs from the reference on the reference's own inputs.

    place: in its unit; empty: the unit as a whole, given that everything inside is right. The
    tensors are those of the candidate and of the reference there, or, of a place that is sketched, some projections of
    each row; entered: what enters the module.
    """

    key: str
    unit: ModelUnit
    place: str
    judged: Judged
    batch: Batch
    candidate: Tensor | None = None
    reference: Tensor | None = None
    entered: Tensor | None = None
    sketched: bool = False
    about: "Description | None" = None


@dataclass(frozen=True)
class Description:
    """The tensors of a finding in words, kept when they are dropped: the kind of error, a sentence, what works there,
    whether the error is a linear function of what enters, and its noise."""

    kind: str
    sentence: str
    role: str
    linear: bool | None
    noise: Any
