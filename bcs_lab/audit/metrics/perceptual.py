"""Learned distances: LPIPS and DISTS (torchmetrics) and DreamSim (its own package).

LPIPS expects pixels from -1 to 1 and DISTS from 0 to 1. The published code gives each the other's range, which
``compat=reference`` does too. The small heads of both come with torchmetrics, the backbones from torchvision's server.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bcs_lab.audit.metrics.base import SQUARE, Family, MetricSpec, MetricUnavailable, Preparation, Values, batches
from bcs_lab.audit.metrics.weights import fill, read_tensors, state_digest, torch_file
from bcs_lab.encoders.base import pick_device

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: What the library wants: lowest and highest value.
RANGES: Mapping[str, tuple[float, float]] = {"lpips": (-1.0, 1.0), "dists": (0.0, 1.0)}


def load(spec: MetricSpec, options: Mapping[str, Any], device: str, compat: str, shared: dict[str, Any]) -> Family:
    """LPIPS, DISTS or DreamSim.

    Raises:
        MetricUnavailable: weights or the package are missing.
    """
    if spec.loader == "dreamsim":
        return _dreamsim(spec, options, device)
    # The published code has them the wrong way round.
    low_high = RANGES[spec.loader] if compat == "correct" else RANGES["dists" if spec.loader == "lpips" else "lpips"]
    if spec.loader == "lpips":
        return LpipsFamily(lpips_network(spec, options.get("source")), low_high, device)
    return DistsFamily(dists_network(spec, options.get("source")), low_high, device)


def pixels_tensor(inputs: Sequence[np.ndarray], low_high: tuple[float, float], device: torch.device) -> torch.Tensor:
    """Float32 [n, 3, height, width] in a range, from uint8 [height, width, 3] each."""
    import torch

    batch = torch.from_numpy(np.stack(inputs)).to(device).permute(0, 3, 1, 2).float().div_(255)
    low, high = low_high
    return batch if low_high == (0.0, 1.0) else batch.mul_(high - low).add_(low)


class _BackboneFamily(Family):
    """A network whose backbone sees one image and whose head compares two lists of feature maps."""

    batch = 8

    def __init__(
        self, network: torch.nn.Module, low_high: tuple[float, float], device: str, library: str, name: str
    ) -> None:
        self.device = pick_device(device)
        identity = {"library": library, "network": name, "range": list(low_high), "weights": state_digest(network)}
        super().__init__(identity, SQUARE)
        self.network: Any = network.eval().requires_grad_(False).to(self.device)
        self.low_high = low_high

    def features(self, inputs: Sequence[Any]) -> list[Any]:
        """Feature maps of each image, the largest first."""
        import torch

        # One at a time on the CPU, so that a value does not depend on which images a resumed run meets together.
        size = 1 if self.device.type == "cpu" else len(inputs)
        out: list[Any] = []
        with torch.inference_mode():
            for group in batches(inputs, size):
                maps = self._maps(pixels_tensor(group, self.low_high, self.device))
                # Copies, since a view would keep its whole batch alive.
                out += [tuple(level[row].clone() for level in maps) for row in range(len(group))]
        return out

    def compare(
        self, names: Sequence[str], references: Sequence[Any], reconstructions: Sequence[Any]
    ) -> dict[str, Values]:
        """Distances, pair by pair: feature maps are large."""
        import torch

        values = np.empty(len(references))
        with torch.inference_mode():
            for row, (one, two) in enumerate(zip(references, reconstructions, strict=True)):
                values[row] = float(self._distance(one, two))
        return {name: Values(values) for name in names}

    def _maps(self, images: torch.Tensor) -> Sequence[torch.Tensor]:
        raise NotImplementedError

    def _distance(self, one: Any, two: Any) -> torch.Tensor:
        raise NotImplementedError


class LpipsFamily(_BackboneFamily):
    """LPIPS (Zhang et al., 2018) with the AlexNet backbone.

    Args:
        network: torchmetrics' LPIPS.
        low_high: range of the pixels it is given.
        device: where it computes.
    """

    def __init__(self, network: torch.nn.Module, low_high: tuple[float, float], device: str) -> None:
        super().__init__(network, low_high, device, f"torchmetrics {version('torchmetrics')}", "lpips alex")

    def _maps(self, images: torch.Tensor) -> Sequence[torch.Tensor]:
        # Unit length over the channels at each position, as torchmetrics does it.
        maps = self.network.net(self.network.scaling_layer(images))
        return [level / (1e-8 + (level**2).sum(dim=1, keepdim=True)).sqrt() for level in maps]

    def _distance(self, one: Any, two: Any) -> torch.Tensor:
        return sum(
            head((a - b).square().unsqueeze(0)).mean() for head, a, b in zip(self.network.lins, one, two, strict=True)
        )


class DistsFamily(_BackboneFamily):
    """DISTS (Ding et al., 2020), VGG-16 with smoothed pooling.

    Args:
        network: torchmetrics' DISTS.
        low_high: range of the pixels it is given.
        device: where it computes.
    """

    batch = 4

    def __init__(self, network: torch.nn.Module, low_high: tuple[float, float], device: str) -> None:
        super().__init__(network, low_high, device, f"torchmetrics {version('torchmetrics')}", "dists")

    def _maps(self, images: torch.Tensor) -> Sequence[torch.Tensor]:
        return self.network.forward_once(images)

    def _distance(self, one: Any, two: Any) -> torch.Tensor:
        import torch

        total = self.network.alpha.sum() + self.network.beta.sum()
        alphas = torch.split((self.network.alpha / total).flatten(), self.network.chns)
        betas = torch.split((self.network.beta / total).flatten(), self.network.chns)
        alike = torch.zeros((), device=self.device)
        for a, b, alpha, beta in zip(one, two, alphas, betas, strict=True):
            a, b = a.flatten(1), b.flatten(1)
            mean_a, mean_b = a.mean(dim=1), b.mean(dim=1)
            spread = a.var(dim=1, correction=0) + b.var(dim=1, correction=0)
            shared = ((a - mean_a[:, None]) * (b - mean_b[:, None])).mean(dim=1)
            alike = alike + (alpha * (2 * mean_a * mean_b + 1e-6) / (mean_a**2 + mean_b**2 + 1e-6)).sum()
            alike = alike + (beta * (2 * shared + 1e-6) / (spread + 1e-6)).sum()
        return 1 - alike


def lpips_network(spec: MetricSpec, source: str | Path | None = None) -> torch.nn.Module:
    """torchmetrics' LPIPS with its own heads and torchvision's AlexNet.

    Args:
        spec: for messages.
        source: a local file of AlexNet's weights; only those of ``features`` are needed.

    Raises:
        MetricUnavailable: AlexNet's weights cannot be had.
    """
    import torch
    from torchmetrics.functional.image.lpips import _NoTrainLpips
    from torchvision.models import AlexNet_Weights

    path = torch_file(spec, AlexNet_Weights.IMAGENET1K_V1.url, source)
    tensors = read_tensors(spec, path)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        network = _NoTrainLpips(pretrained=True, net="alex", pnet_rand=True)
    for stage in range(1, 6):
        fill(spec, getattr(network.net, f"slice{stage}"), tensors, path, "features.")
    return network


def dists_network(spec: MetricSpec, source: str | Path | None = None) -> torch.nn.Module:
    """torchmetrics' DISTS with its own weights and torchvision's VGG-16.

    Args:
        spec: for messages.
        source: a local file of VGG-16's weights; only those of ``features`` are needed.

    Raises:
        MetricUnavailable: VGG-16's weights cannot be had.
    """
    import torch
    from torchmetrics.functional.image import dists
    from torchvision.models import VGG16_Weights, vgg16

    path = torch_file(spec, VGG16_Weights.IMAGENET1K_V1.url, source)
    tensors = read_tensors(spec, path)
    original = dists.vgg16
    try:
        # Its constructor always asks torchvision for the pretrained network; the weights follow below.
        dists.vgg16 = lambda weights=None: _without_weights(vgg16)
        with torch.random.fork_rng(devices=[]):
            network = dists.DISTSNetwork(load_weights=True)
    finally:
        dists.vgg16 = original
    for stage in range(1, 6):
        for index, layer in getattr(network, f"stage{stage}").named_children():
            if isinstance(layer, torch.nn.Conv2d):
                fill(spec, layer, tensors, path, f"features.{index}.")
    return network


def _without_weights(build: Any) -> Any:
    """A network whose weights are allocated but not drawn: its last layers are large and thrown away."""
    import torch

    with torch.device("meta"):
        network = build(weights=None)
    network.features.to_empty(device="cpu")
    return network


# --- DreamSim --------------------------------------------------------------------------------------------------------


def _dreamsim(spec: MetricSpec, options: Mapping[str, Any], device: str) -> Family:
    try:
        import dreamsim
        from dreamsim.config import dreamsim_weights
    except ImportError as error:
        raise MetricUnavailable(
            f"{spec.title}: needs the package dreamsim ({error}); pip install 'bcs_lab[audit]'"
        ) from error
    import torch

    kind = str(options["type"])
    if kind not in dreamsim_weights:
        raise MetricUnavailable(f"{spec.title}: has no type {kind!r}; expected one of {', '.join(dreamsim_weights)}.")
    where = pick_device(device)
    folder = Path(options["source"] or Path(torch.hub.get_dir()) / "dreamsim" / kind).expanduser()
    if not list(folder.glob("*_lora")):
        if options["source"] is not None:
            raise MetricUnavailable(f"{spec.title}: {folder} (option source) does not hold the weights of {kind}.")
        # The package unpacks this archive itself where the folder lacks it; fetched first, so that nothing waits.
        archive = torch_file(spec, dreamsim_weights[kind])
        folder.mkdir(parents=True, exist_ok=True)
        _unpack(archive, folder)
    cache = torch.hub.get_dir()
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does
            network, prepare = dreamsim.dreamsim(
                pretrained=True, device=str(where), cache_dir=str(folder), dreamsim_type=kind
            )
    except Exception as error:  # the package reads several files of its own making
        raise MetricUnavailable(
            f"{spec.title}: the package dreamsim {version('dreamsim')} cannot load {folder} "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        ) from error
    finally:
        if torch.hub.get_dir() != cache:
            torch.hub.set_dir(cache)  # the package moves it
    return DreamSimFamily(network, prepare, kind, where)


def _unpack(archive: Path, folder: Path) -> None:
    import zipfile

    with zipfile.ZipFile(archive) as file:
        file.extractall(folder)


class DreamSimFamily(Family):
    """DreamSim (Fu et al., 2023): one minus the cosine of its embeddings.

    Args:
        network: of the package.
        prepare: the package's own preprocessing, from a PIL image to a tensor [1, 3, 224, 224].
        kind: of its models.
        device: where it computes.
    """

    batch = 8

    def __init__(self, network: Any, prepare: Any, kind: str, device: torch.device) -> None:
        identity = {
            "library": f"dreamsim {version('dreamsim')}", "network": kind, "weights": state_digest(network)
        }  # fmt: skip
        super().__init__(identity, Preparation(f"dreamsim {kind}", lambda image: prepare(image)[0].numpy()))
        self.network, self.device = network, device

    def features(self, inputs: Sequence[Any]) -> list[Any]:
        """Embeddings."""
        import torch

        with torch.inference_mode():
            # One image at a time: the package squeezes what it computes, whatever the batch.
            return [
                self.network.embed(torch.from_numpy(one[None]).to(self.device)).flatten().float().cpu().numpy()
                for one in inputs
            ]

    def compare(
        self, names: Sequence[str], references: Sequence[Any], reconstructions: Sequence[Any]
    ) -> dict[str, Values]:
        """Distances."""
        from bcs_lab.audit.metrics.cosine import cosines

        return {name: Values(1 - cosines(references, reconstructions)) for name in names}
