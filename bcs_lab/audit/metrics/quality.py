"""Learned image quality against a reference, at the images' own size: PieAPP (piq) and TOPIQ-FR (pyiqa).

Both compare position by position, so both images of a pair need one size. pyiqa's licence is non-commercial: it is no
dependency of this package, and is used only where it was installed on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from bcs_lab.audit.metrics.base import WHOLE, Family, MetricSpec, MetricUnavailable, Values
from bcs_lab.audit.metrics.perceptual import pixels_tensor
from bcs_lab.audit.metrics.weights import fill, read_tensors, state_digest, torch_file
from bcs_lab.encoders.base import pick_device

#: Smallest side that PieAPP's patches fit in.
PATCH = 64


def load(spec: MetricSpec, options: Mapping[str, Any], device: str, compat: str, shared: dict[str, Any]) -> Family:
    """PieAPP by piq, or by pyiqa with ``compat=reference`` as published; TOPIQ-FR by pyiqa.

    Raises:
        MetricUnavailable: the package or its weights are missing.
    """
    if spec.loader == "pieapp" and compat == "correct":
        return _pieapp(spec, options.get("source"), device)
    return _pyiqa(spec, device)


def _pieapp(spec: MetricSpec, source: str | Path | None, device: str) -> Family:
    try:
        from piq.pieapp import PieAPP, PieAPPModel
    except ImportError as error:
        raise MetricUnavailable(
            f"{spec.title}: needs the package piq ({error}); pip install 'bcs_lab[audit]'"
        ) from error
    import torch

    path = torch_file(spec, PieAPP._weights_url, source)
    tensors = read_tensors(spec, path)
    scale = tensors.get("ref_score_subtract.weight")
    if scale is not None and scale.ndim == 1:
        tensors["ref_score_subtract.weight"] = scale.unsqueeze(1)  # stored without its second dimension
    model = PieAPPModel()
    fill(spec, model, tensors, path)
    # Its constructor downloads and loads the weights itself, without a time-out; they are there already.
    network = PieAPP.__new__(PieAPP)
    torch.nn.Module.__init__(network)
    network.model = model.eval().requires_grad_(False)
    network.data_range, network.reduction, network.stride, network.enable_grad = 1.0, "none", 27, False

    def measure(reference: Any, reconstruction: Any) -> Any:
        return network(reconstruction, reference)

    identity = {"library": f"piq {version('piq')}", "network": "pieapp", "weights": state_digest(network.model)}
    network.to(pick_device(device))
    return NativeFamily(measure, identity, device, smallest=PATCH)


def _pyiqa(spec: MetricSpec, device: str) -> Family:
    try:
        import pyiqa
    except ImportError as error:
        raise MetricUnavailable(
            f"{spec.title}: needs the package pyiqa ({error}), whose licence allows non-commercial use only; "
            "where that suits you: pip install pyiqa"
        ) from error
    where = pick_device(device)
    try:
        network = pyiqa.create_metric(spec.name, device=where, as_loss=False)
    except Exception as error:  # it downloads in its constructor, and whatever its clients raise comes out
        raise MetricUnavailable(
            f"{spec.title}: pyiqa cannot make {spec.name} "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        ) from error

    def measure(reference: Any, reconstruction: Any) -> Any:
        return network(reconstruction, reference)

    identity = {"library": f"pyiqa {version('pyiqa')}", "network": spec.name, "weights": state_digest(network)}
    return NativeFamily(measure, identity, device)


class NativeFamily(Family):
    """A function of two tensors of one size, pair by pair.

    Args:
        measure: from reference and reconstruction, float32 [1, 3, height, width] in 0 to 1, to one value.
        identity: what changes a value.
        device: where it computes.
        smallest: side that both images need.
    """

    batch = 4

    def __init__(self, measure: Any, identity: Mapping[str, Any], device: str, smallest: int = 1) -> None:
        super().__init__(identity, WHOLE)
        self.measure, self.device, self.smallest = measure, pick_device(device), smallest

    def compare(
        self, names: Sequence[str], references: Sequence[Any], reconstructions: Sequence[Any]
    ) -> dict[str, Values]:
        """Values; undefined where sizes differ or are too small."""
        import torch

        values, reasons = np.full(len(references), np.nan), {}
        for row, (one, two) in enumerate(zip(references, reconstructions, strict=True)):
            sizes = [f"{image.shape[1]} x {image.shape[0]}" for image in (one, two)]
            if one.shape != two.shape:
                reasons[row] = f"needs two images of one size, not {sizes[0]} and {sizes[1]}"
            elif min(one.shape[:2]) < self.smallest:
                reasons[row] = f"needs images of at least {self.smallest} pixels a side, not {sizes[0]}"
            else:
                with torch.inference_mode():
                    pair = [pixels_tensor([image], (0.0, 1.0), self.device) for image in (one, two)]
                    values[row] = float(self.measure(*pair))
        return {name: Values(values, reasons) for name in names}
