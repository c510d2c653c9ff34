"""How weights come into memory: their type, their device, and whether they are spread over several."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

BUDGET = 0.5  # of the memory limit, for weights
ROTARY = "inv_freq"


@dataclass(frozen=True, kw_only=True)
class Loading:
    """How a model is loaded.

    dtype: of the weights, from the first copy in memory on.
    device: where they are, unless they are spread.
    spread: the most bytes of weights on each device, in the terms of accelerate (`0` is the first GPU, `cpu`); the rest
        stays on the disk. None: all weights on `device`.
    kept: which modules have weights, by name, themselves and not their children; None: all.
    """

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    spread: Mapping[int | str, int] | None = None
    kept: Callable[[str], bool] | None = None


WHOLE = Loading()


def keep_in_one_place(how: Loading) -> Loading:
    """The loading of a whole model on one device, as is needed where its weights are changed afterwards."""
    return replace(how, spread=None, kept=None)


def place_model(model: Any, how: Loading) -> Any:
    """The model on its device in its dtype. Rotary frequencies stay float32, as transformers loads them: rounded to
    bfloat16 they shift far positions."""
    exact = {name: x for name, x in model.named_buffers() if name.endswith(ROTARY)}
    model.to(how.device, how.dtype)
    for name, frequencies in exact.items():
        module, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module), leaf, frequencies.to(how.device))
    return model


def make_input_template(model: nn.Module) -> Tensor:
    """An empty tensor in the dtype and on the device in which a model takes inputs. Of a model that is spread, weights
    may be on the device `meta`; of a quantized one, integers."""
    weights = [x for x in model.parameters() if x.is_floating_point()]
    device = next((x.device for x in weights if x.device.type != "meta"), torch.device("cpu"))
    return torch.empty(0, dtype=weights[0].dtype, device=device)


def disable_cache(model: Any) -> Any:
    """The model in eval mode, with nothing kept between forward passes."""
    model.config.use_cache = False
    model.config.use_mems_eval = False  # XLNet's name for it
    return model.eval()
