"""Networks of the field's set-level metrics, as the evaluation notebooks of MindEye and ATM use them.

=================  =================================  ======  =====================================================
metric             what is compared                   input   the notebooks' number
=================  =================================  ======  =====================================================
alexnet2           AlexNet, ``features.4``            256     two-way identification
alexnet5           AlexNet, ``features.11``           256     two-way identification
inception          Inception v3, ``avgpool``          342     two-way identification
clip               CLIP ViT-L/14, image embedding     224     two-way identification
efficientnet_b     EfficientNet-B1, ``avgpool``       255     mean correlation distance
swav               ResNet-50 by SwAV, ``avgpool``     224     mean correlation distance
=================  =================================  ======  =====================================================

The centred square of 256 x 256 is resized to the input (bilinear, antialiased) and normalised. How the features become
one number of a set is in :mod:`bcs_lab.audit.set_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bcs_lab.audit.metrics.base import SQUARE, Family, MetricSpec, Values, batches
from bcs_lab.audit.metrics.weights import fill, read_tensors, state_digest, torch_file
from bcs_lab.encoders.base import pick_device

if TYPE_CHECKING:
    import torch

#: The server's address of SwAV's weights after 800 epochs, those of its own hub entry.
SWAV = "https://dl.fbaipublicfiles.com/deepcluster/swav_800ep_pretrain.pth.tar"
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def load(spec: MetricSpec, options: Mapping[str, Any], device: str, compat: str, shared: dict[str, Any]) -> Family:
    """The network of one metric.

    Raises:
        MetricUnavailable: its weights cannot be had.
        EncoderError: CLIP's weights cannot be had.
    """
    source = options.get("source")
    if spec.name == "clip":
        return _clip(source, device, shared)
    network, node, size = _BUILD[spec.name](spec, source, shared)
    from torchvision.models.feature_extraction import create_feature_extractor

    # Named nodes are found by tracing, which takes seconds; what comes after the node is cut off.
    extractor = create_feature_extractor(network.eval(), [node])
    where = pick_device(device)
    identity = {
        "library": "torchvision", "network": spec.name.rstrip("25"), "node": node, "size": size,
        "weights": state_digest(extractor),
    }  # fmt: skip
    extractor.requires_grad_(False).to(where)
    return SetFamily(lambda images: extractor(images)[node], identity, size, IMAGENET, where)


def _clip(source: Any, device: str, shared: dict[str, Any]) -> Family:
    from bcs_lab.encoders import load_encoder

    key = f"set clip {source} {device}"
    if key not in shared:
        shared[key] = load_encoder("clip", options={"source": source}, device=device)
    encoder = shared[key]
    size = encoder.preprocessing.size[0]

    def features(images: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.from_numpy(encoder.forward(images.cpu().numpy()))

    identity = {"library": "open_clip", "network": "clip", "encoder": encoder.fingerprint, "size": size}
    return SetFamily(features, identity, size, CLIP, pick_device("cpu"))


class SetFamily(Family):
    """Features of a network's node, standardised so that the dot product of two of them is their correlation.

    Args:
        network: from normalised float32 [n, 3, size, size] to [n, ...].
        identity: what changes a feature.
        size: of the input.
        normal: mean and standard deviation of each channel.
        device: of the input.
    """

    batch = 8

    def __init__(
        self, network: Callable[[torch.Tensor], torch.Tensor], identity: Mapping[str, Any], size: int,
        normal: tuple[tuple[float, ...], tuple[float, ...]], device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__({**identity, "normal": [list(part) for part in normal]}, SQUARE)
        self.network, self.size, self.normal, self.device = network, size, normal, device

    def features(self, inputs: Sequence[Any]) -> list[Any]:
        """Float32 [d] of mean 0 and length 1 of each image; all zero where the network gives one value everywhere."""
        # One at a time on the CPU: see LPIPS.
        size = 1 if self.device.type == "cpu" else len(inputs)
        return [row for group in batches(inputs, size) for row in self._rows(group)]

    def _rows(self, inputs: Sequence[Any]) -> list[Any]:
        import torch
        from torch.nn.functional import interpolate

        with torch.inference_mode():
            images = torch.from_numpy(np.stack(inputs)).to(self.device).permute(0, 3, 1, 2).float() / 255
            if images.shape[-1] != self.size:
                images = interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)
            mean, std = (images.new_tensor(values).view(3, 1, 1) for values in self.normal)
            rows = self.network((images - mean) / std).flatten(1).double()
            rows -= rows.mean(dim=1, keepdim=True)
            lengths = rows.norm(dim=1, keepdim=True)
            rows = torch.where(lengths > 0, rows / lengths.clamp_min(1e-300), 0.0)
            return [row.float().cpu().numpy().copy() for row in rows]

    def compare(
        self, names: Sequence[str], references: Sequence[Any], reconstructions: Sequence[Any]
    ) -> dict[str, Values]:
        """Correlation of each pair's features; what a set makes of all of them is not known here."""
        values = np.array(
            [float(np.dot(one, two)) if one.any() and two.any() else np.nan
             for one, two in zip(references, reconstructions, strict=True)]
        )  # fmt: skip
        return {name: Values(values) for name in names}


def _torchvision(name: str, weights: str, node: str, size: int, part: str = "") -> Callable[..., Any]:
    """How to build a torchvision network; with ``part`` only that part of its weights is needed."""

    def build(spec: MetricSpec, source: str | Path | None, shared: dict[str, Any]) -> tuple[Any, str, int]:
        from torchvision import models

        path = torch_file(spec, models.get_model_weights(name)[weights].url, source)
        key = f"torchvision {name} {path}"
        if key not in shared:
            extra = {"init_weights": False} if name == "inception_v3" else {}
            network = models.get_model(name, weights=None, **extra)
            if name == "inception_v3":
                network.transform_input = True  # as with torchvision's own weights
                network.AuxLogits = None
                network.aux_logits = False
            tensors = read_tensors(spec, path)
            if part:
                fill(spec, getattr(network, part), tensors, path, f"{part}.")
            else:
                fill(spec, network, tensors, path)
            shared[key] = network
        return shared[key], node, size

    return build


def _swav(spec: MetricSpec, source: str | Path | None, shared: dict[str, Any]) -> tuple[Any, str, int]:
    import torch
    from torchvision import models

    path = torch_file(spec, SWAV, source)
    tensors = {name.removeprefix("module."): value for name, value in read_tensors(spec, path).items()}
    network = models.resnet50(weights=None)
    network.fc = torch.nn.Identity()  # its projection head and prototypes take no part
    fill(spec, network, tensors, path)
    return network, "avgpool", 224


_BUILD: Mapping[str, Callable[..., Any]] = {
    "alexnet2": _torchvision("alexnet", "IMAGENET1K_V1", "features.4", 256, "features"),
    "alexnet5": _torchvision("alexnet", "IMAGENET1K_V1", "features.11", 256, "features"),
    "inception": _torchvision("inception_v3", "IMAGENET1K_V1", "avgpool", 342),
    "efficientnet_b": _torchvision("efficientnet_b1", "IMAGENET1K_V2", "avgpool", 255),
    "swav": _swav,
}
