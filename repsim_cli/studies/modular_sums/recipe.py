"""All that decides about a model of modular sums, beside the seed."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from repsim_cli.base.errors import BadInput
from repsim_cli.base.settings import Above0, Fraction, From0, Medium, Modulus, NotNegative, Positive, Small
from repsim_cli.runs.content import BY_BLOCK, END_TO_END, ONE_SUM
from repsim_cli.studies.modular_sums.model import ModularShape

Training = Literal["end_to_end", "by_block"]


@dataclass(frozen=True, kw_only=True)
class ModularRecipe:
    """All that decides about a model of modular sums, beside the seed.

    It is trained with AdamW (betas 0.9 and 0.98). A stream of large norm saturates the attention of the next block,
    hence the penalty. The best look of a stage is chosen on the validation rows (see `choose_look`). Raises BadInput
    where stages, rows or saved epochs do not fit together.

    moduli: p1, p2, ... of the sums c1 = (a + b) mod p1, c2 = (c1 + b) mod p2, ...; a and b are whole numbers below p1.
    blocks: of the transformer; with training `by_block`, one for each sum.
    training: `end_to_end`: on the last sum alone; `by_block`: each block on its sum, with all before it frozen.
    epochs: of each stage, at most.
    batch_size: rows per step; null: all rows.
    learning_rate: of AdamW.
    weight_decay: of AdamW.
    penalty: the weight of the mean squared norm of the last trained block's output, which is added to the loss.
    average: weights are evaluated and kept as running averages over steps, of which this share is left after a step; 0:
        no average.
    train_share: the share of all pairs that is trained on.
    check: epochs between two looks at the validation rows.
    patience: looks in a row at 100 % accuracy after which a stage ends, and keeps its best look; null: it takes all
        epochs and keeps the last look.
    save: the epochs whose weights are kept as a series, counted over all stages; 0 is before the first; null: none.
    device: the torch device that the model is trained on.
    """

    moduli: Annotated[list[Modulus], Field(min_length=1)]
    blocks: Small = 1
    training: Training = "end_to_end"
    epochs: Positive = 600
    batch_size: Medium | None = 348
    learning_rate: Above0 = 2e-3
    weight_decay: From0 = 0.5
    penalty: From0 = 0.01
    average: Annotated[float, Field(ge=0, lt=1)] = 0.0
    train_share: Fraction = 0.8
    check: Positive = 10
    patience: Positive | None = 3
    save: list[NotNegative] | None = None
    device: str = "cpu"

    def __post_init__(self) -> None:
        total = round(self.train_share * self.moduli[0] ** 2)
        if not 0 < total < self.moduli[0] ** 2:
            raise BadInput(
                f"train_share: both sides need a pair, got {self.train_share} of {self.moduli[0] ** 2}; change it"
            )
        if self.training == "by_block" and self.blocks != len(self.moduli):
            raise BadInput(f"blocks: by_block trains one for each sum, got {self.blocks} for {len(self.moduli)} moduli")
        last, kept = self.epochs * len(self.stages), self.kept
        if kept and (len(set(kept)) < max(len(kept), 2) or not 0 <= kept[0] <= kept[-1] <= last):
            raise BadInput(f"save: not two or more distinct epochs from 0 to {last}, got {kept}; change them")
        if kept and self.patience is not None:
            raise BadInput(
                f"save: a training that ends early may not come there, got patience {self.patience}; give null"
            )

    @property
    def name(self) -> str:
        """The name of the training in the manifest."""
        if len(self.moduli) == 1:
            return ONE_SUM
        return BY_BLOCK if self.training == "by_block" else END_TO_END

    @property
    def kept(self) -> list[int]:
        return sorted(self.save or [])

    @property
    def shape(self) -> ModularShape:
        outputs = {f"c{k}": modulus for k, modulus in enumerate(self.moduli, 1)}
        if self.training == "end_to_end":
            outputs = {name: outputs[name] for name in list(outputs)[-1:]}
        else:
            outputs |= {f"b{k}": self.moduli[0] for k in range(1, len(self.moduli))}
        return ModularShape(numbers=self.moduli[0], blocks=self.blocks, outputs=outputs)

    @property
    def stages(self) -> list[tuple[int, list[str]]]:
        """The stages: how many blocks each runs, of which it trains the last (end to end all), and its outputs."""
        last = len(self.moduli)
        if self.training == "end_to_end":
            return [(self.blocks, [f"c{last}"])]
        return [(k, [f"c{k}"] + ([f"b{k}"] if k < last else [])) for k in range(1, last + 1)]
