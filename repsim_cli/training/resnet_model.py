"""ResNet9, the convolutional network of Gao et al. 2024 (table 3).

The table leaves strides and padding open; they are those of the public ResNet9 with the same layers, kernels and
channels (FFCV's example for CIFAR-10): module 1 has stride 2, module 7 no padding, convolutions and the classifier have
no biases, and the logits are the classifier's output times 0.2. The outputs of modules 2 and 3 (5 and 6) are added to
the input of module 2 (5).
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import safetensors.torch
import torch
from jaxtyping import Float
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor, nn

from repsim_cli.base.documents import Unreadable, read_json
from repsim_cli.base.errors import BadInput
from repsim_cli.base.files import expand_path, refuse
from repsim_cli.base.registry import models
from repsim_cli.base.settings import Medium, Seed
from repsim_cli.data.images import Patches
from repsim_cli.models.checkpoints import hash_files
from repsim_cli.models.configs import hash_config
from repsim_cli.models.loading import WHOLE, place_model
from repsim_cli.models.points import Architecture, Point, resolve_points
from repsim_cli.models.source import Source

CONFIG, WEIGHTS, MODEL_TYPE = "config.json", "model.safetensors", "resnet9"
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # of pixels from 0 to 1, as the public ResNet9 has them
LOGITS = 0.2  # by which the classifier's output is multiplied


@dataclass(frozen=True, kw_only=True)
class ResNetShape:
    """The size of a ResNet9. Raises BadInput for images that the last convolution does not fit on.

    widths: channels of module 0, of modules 1 to 3, of modules 4 to 6, and of module 7.
    image_size: height and width of the images, in pixels; 11 or more.
    classes: how many labels there are.
    """

    widths: Annotated[list[Medium], Field(min_length=4, max_length=4)]
    image_size: Annotated[int, Field(ge=11, le=1024)] = 32
    classes: Annotated[int, Field(ge=2, le=10_000)] = 10

    @property
    def num_channels(self) -> int:
        return len(MEAN)


def make_single_place(value: Tensor, heads: int) -> Float[Tensor, "b 1 d"]:
    """Features of a whole image, as those of a single place."""
    return value[:, None]


ARCHITECTURE = Architecture(
    blocks="blocks",
    block={
        "conv": Point("conv"),
        "norm": Point("norm"),
        "relu": Point("relu"),
        "pool": Point("pool"),
        "linear": Point("linear", pick=make_single_place),
    },
    lacks=dict.fromkeys(("resid_pre", "resid_post"), "it has conv, norm, relu, pool and linear, as in extract=resnet9"),
)


class Module(nn.Module):
    """A convolution, its batch norm, ReLU, and where there is one, max pooling."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        padding: int = 1,
        pool: nn.Module | None = None,
    ):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
        self.norm, self.relu = nn.BatchNorm2d(outputs), nn.ReLU()
        if pool is not None:
            self.pool = pool

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d i j"]:
        x = self.relu(self.norm(self.conv(x)))
        return self.pool(x) if hasattr(self, "pool") else x


class Classifier(nn.Module):
    def __init__(self, inputs: int, classes: int):
        super().__init__()
        self.linear = nn.Linear(inputs, classes, bias=False)

    def forward(self, x: Float[Tensor, "b c 1 1"]) -> Float[Tensor, "b classes"]:
        return self.linear(x.flatten(1))


class ResNet9(nn.Module):
    """Pixels -> logits."""

    main_input_name = "pixel_values"

    def __init__(self, shape: ResNetShape):
        super().__init__()
        self.config = shape
        a, b, c, d = shape.widths
        self.blocks = nn.ModuleList(
            [
                Module(shape.num_channels, a),
                Module(a, b, kernel=5, stride=2, padding=2),
                Module(b, b),
                Module(b, b),
                Module(b, c, pool=nn.MaxPool2d(2)),
                Module(c, c),
                Module(c, c),
                Module(c, d, padding=0, pool=nn.AdaptiveMaxPool2d(1)),
                Classifier(d, shape.classes),
            ]
        )

    def forward(self, pixel_values: Float[Tensor, "b c h w"]) -> Float[Tensor, "b classes"]:
        first, second, *residual, widening, inner, outer, last, classifier = self.blocks
        x = second(first(pixel_values))
        x = x + residual[1](residual[0](x))
        x = widening(x)
        x = x + outer(inner(x))
        return LOGITS * classifier(last(x))


class WithLogits(nn.Module):
    """A classifier whose output holds its logits by name, as those of transformers do."""

    def __init__(self, model: ResNet9):
        super().__init__()
        self.model = model

    def forward(self, pixel_values: Float[Tensor, "b c h w"]) -> SimpleNamespace:
        return SimpleNamespace(logits=self.model(pixel_values))


def make_fresh_resnet(shape: ResNetShape, seed: int) -> ResNet9:
    """Random weights under the seed; running means of 0 and variances of 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ResNet9(shape)


def save(model: ResNet9, folder: Path) -> None:
    """Writes the model in the format that `load` reads."""
    state = {name: values.detach().cpu().contiguous() for name, values in model.state_dict().items()}
    safetensors.torch.save_file(state, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps({"model_type": MODEL_TYPE, **asdict(model.config)}, indent=1) + "\n")


def load(folder: Path) -> ResNet9:
    """Loads a model from its folder, frozen. Raises BadInput for weights of another shape."""
    model = ResNet9(read_resnet_shape(folder))
    file = folder / WEIGHTS
    with refuse(f"{file}: not the weights of this config", file.name, "save the model again"):
        model.load_state_dict(safetensors.torch.load_file(file))
    return freeze_model(model)


def freeze_model(model: ResNet9) -> ResNet9:
    return model.eval().requires_grad_(False)


def read_resnet_shape(folder: Path) -> ResNetShape:
    """The shape of a saved model. Raises BadInput where its config.json cannot be used."""
    try:
        settings = read_json(folder / CONFIG)
        if not isinstance(settings, dict) or settings.pop("model_type", None) != MODEL_TYPE:
            raise Unreadable(f"no model_type {MODEL_TYPE}")
        return TypeAdapter(ResNetShape).validate_python(settings)
    except ValidationError as error:
        first = error.errors()[0]
        why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except Unreadable as error:
        why = str(error)
    raise BadInput(f"{folder / CONFIG}: not of a ResNet9, got {why}; name a folder that was saved as one")


def make_resnet_source(
    shape: ResNetShape, load: Callable[[], ResNet9], identity: Callable[[], dict[str, Any]], **more: Any
) -> Source:
    """The Source of a ResNet9 of this shape, which need not exist before it is loaded."""
    with torch.device("meta"):
        skeleton = freeze_model(ResNet9(shape))
    size = (shape.image_size, shape.image_size)
    return Source(
        layers=len(skeleton.blocks),
        heads=0,
        kv_heads=0,
        width=max(shape.widths),
        context=1,
        parameters=sum(weights.numel() for weights in skeleton.parameters()),
        vocabulary=0,
        architecture=resolve_points(ARCHITECTURE, skeleton),
        model_type=MODEL_TYPE,
        build=lambda: skeleton,
        # an image is a single place: layers have places of their own
        tokenizer=lambda: Patches(size, size, shape.num_channels, MEAN, STD, before=0),
        load=lambda eager, how=WHOLE: place_model(load(), how),
        identity=identity,
        head_width=0,
        modality="images",
        **more,
    )


@models.register("resnet9")
def resnet9(*, path: str | None = None, shape: ResNetShape | None = None, seed: Seed = 0) -> Source:
    """A ResNet9 with random weights, or one that was saved by `trained_resnet9`; read in evaluation mode.

    Batch norm uses running statistics. With random weights they are as at the start of training, means of 0 and
    variances of 1, so that it passes on its input, but for a factor of 1 / sqrt(1 + 1e-5).

    path: a folder with config.json and model.safetensors; give one of path and shape.
    shape: the size of a network with random weights.
    seed: of random weights. A model that is trained from this shape and seed starts from them.
    Example: repsim run model=[] +model.mine='{kind: resnet9, shape: {widths: [8, 16, 16, 8]}}' data=digits
        data.side=32 data.channels=3 extract=resnet9
    """
    if (path is None) == (shape is None):
        got = "" if path is None else f", got {path} and {shape}"
        raise BadInput(f"path, shape: give exactly one of them{got}; path is a folder, shape has keys of its own")
    if shape is not None:
        config = hash_config({"model_type": MODEL_TYPE, **asdict(shape)})
        identity = {
            "source": f"random weights, seed {seed}, {MODEL_TYPE}",
            "weights_hash": f"seed {seed}, config {config}",
        }
        return make_resnet_source(
            shape, lambda: freeze_model(make_fresh_resnet(shape, seed)), lambda: identity, trained=False
        )
    folder = expand_path(str(path))
    return make_resnet_source(read_resnet_shape(folder), lambda: load(folder), lambda: identify_weights(folder))


def identify_weights(folder: Path) -> dict[str, Any]:
    return {"source": str(folder), "weights_hash": hash_files([folder / CONFIG, folder / WEIGHTS])}
