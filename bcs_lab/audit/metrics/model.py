"""BCS as a metric among the others: T-PAS and T-SAS of a trained ensemble, two columns of one computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from bcs_lab.audit.metrics.base import PICTURE, Family, MetricSpec, Values

if TYPE_CHECKING:
    pass

AXES: Mapping[str, str] = {"bcs_pas": "t_pas", "bcs_sas": "t_sas"}


def load(spec: MetricSpec, options: Mapping[str, Any], device: str, compat: str, shared: dict[str, Any]) -> Family:
    """The ensemble of the option ``model``; both columns share it.

    Raises:
        ModelError: there is no model, or its encoders are not those of training.
        EncoderError: the weights of an encoder cannot be had.
    """
    model, encoders = str(options["model"]), dict(options.get("encoders") or {})
    key = f"bcs {model} {device}"
    if key not in shared:
        from bcs_lab.score import BCS

        bcs = BCS.load(model, device=device, options=encoders)
        bcs.load_encoders()
        shared[key] = BCSFamily(bcs)
    return shared[key]


class BCSFamily(Family):
    """A trained ensemble with its encoders.

    Args:
        bcs: loaded, with its encoders.
    """

    batch = 32

    def __init__(self, bcs: Any) -> None:
        super().__init__({"library": "bcs_lab.score", "model": bcs.ensemble.digest}, PICTURE)
        self.bcs = bcs

    def compare(
        self, names: Sequence[str], references: Sequence[Image.Image], reconstructions: Sequence[Image.Image]
    ) -> dict[str, Values]:
        """T-PAS and T-SAS; undefined where the model has no question of a group."""
        score = self.bcs.score(list(references), list(reconstructions))
        out = {}
        for name in names:
            values = np.asarray(getattr(score, AXES[name]), dtype=np.float64)
            reasons = dict.fromkeys(np.flatnonzero(np.isnan(values)).tolist(), "the model has no question of it")
            out[name] = Values(values, reasons)
        return out
