"""All pairs of two numbers, in order: the input of the models of modular sums."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Int

from repsim_cli.base.errors import BadInput
from repsim_cli.base.registry import data
from repsim_cli.base.settings import Extract, Modulus
from repsim_cli.data.base import Data, Modality, Sequences, draw


class Numbers(NamedTuple):
    """The vocabulary of a model of numbers: those below `count`."""

    count: int  # pyright: ignore[reportIncompatibleMethodOverride] - nothing counts items of it


def list_number_pairs(numbers: int) -> Int[np.ndarray, "n 2"]:
    """Lists the pairs (0, 0), (0, 1), ...: row `numbers * a + b` is (a, b)."""
    return np.indices((numbers, numbers)).reshape(2, -1).T


@dataclass(frozen=True)
class ModularPairs(Data):
    modality: ClassVar[Modality] = "numbers"

    numbers: int
    source: str

    def sequences(self, tokenizer: Any, extract: Extract, seed: int) -> Sequences:
        if tokenizer.count < self.numbers:
            raise BadInput(
                f"data.numbers: more than the model knows, got {self.numbers} for {tokenizer.count}; lower it"
            )
        everything = list_number_pairs(self.numbers)
        drawn = draw(len(everything), extract.sequences, seed)
        whole = np.ones((len(drawn), 2), bool)
        return Sequences(
            inputs=everything[drawn],
            mask=whole,
            text=whole,
            document=np.repeat(drawn[:, None], 2, 1),
            position=np.tile(np.arange(2), (len(drawn), 1)),
            documents=len(drawn),
            available=len(everything),
            example=drawn,
        )


@data.register("modular_pairs")
def modular_pairs(*, numbers: Modulus = 59) -> ModularPairs:
    """The pairs (a, b) of all whole numbers below a limit, each a sequence of two tokens.

    numbers: the numbers are 0, 1, ... up to one below this.
    """
    return ModularPairs(numbers, f"all pairs of the numbers below {numbers}")
