"""The score as a loss: the same model in torch, with gradients down to the pixels of the reconstruction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bcs_lab.encoders.base import FrozenEncoder
from bcs_lab.errors import ImageError, ModelError
from bcs_lab.pair_scores import normal_tensors, protocol_of
from bcs_lab.pixels import tensor_pixels
from bcs_lab.teachers.protocol import PERCEPTUAL, SEMANTIC

if TYPE_CHECKING:
    from bcs_lab.ensemble import Ensemble


class PixelLoss:
    """One minus the weighted score of an ensemble over these encoders; see :meth:`bcs_lab.score.BCS.loss`."""

    def __init__(self, ensemble: Ensemble, encoders: Sequence[FrozenEncoder]) -> None:
        self.ensemble = ensemble
        self.encoders = list(encoders)
        self.protocol = protocol_of(ensemble)
        self._heads: dict[tuple[torch.device, torch.dtype], list[torch.nn.Module]] = {}

    def __call__(
        self,
        reconstruction: Tensor,
        reference: Tensor,
        value_range: tuple[float, float] | None,
        weights: tuple[float, float],
        reduction: str,
    ) -> Tensor:
        """See :meth:`bcs_lab.score.BCS.loss`."""
        perceptual, semantic = _check_weights(weights)
        for name, weight in ((PERCEPTUAL, perceptual), (SEMANTIC, semantic)):
            if weight and not self.protocol.indices(name):
                raise ModelError(f"Expected `weights` to be 0 for {name}, of which the model has no question.")
        if reduction not in ("mean", "none"):
            raise ModelError(f"Expected `reduction` to be mean or none but got {reduction!r}.")
        moved = tensor_pixels(reconstruction, "reconstruction", value_range)
        still = tensor_pixels(reference, "reference", value_range).detach().to(moved)
        if len(moved) != len(still):
            raise ImageError(f"Expected as many reconstructions as references but got {len(moved)} and {len(still)}.")
        features = pair_features([self._embed(encoder, still, moved) for encoder in self.encoders])
        with torch.autocast(features.device.type, enabled=False):
            answers = torch.stack([head(features).prediction for head in self.heads(features)]).mean(dim=0)
        score = torch.zeros(len(answers), dtype=answers.dtype, device=answers.device)
        for name, weight in ((PERCEPTUAL, perceptual), (SEMANTIC, semantic)):
            if weight:
                score = score + weight * answers[:, self.protocol.indices(name)].mean(dim=1)
        value = 1.0 - score
        return value.mean() if reduction == "mean" else value

    def _embed(self, encoder: FrozenEncoder, still: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        # Autocast would compute in another precision than the scores are computed in.
        with torch.autocast(torch.device(encoder.device).type, enabled=False):
            with torch.no_grad():
                reference = encoder.embed_tensor(still).to(moved)
            return reference, encoder.embed_tensor(moved).to(moved)

    def heads(self, like: Tensor) -> list[torch.nn.Module]:
        """The members' networks, frozen, where and as precise as these features are."""
        key = (like.device, like.dtype)
        if key not in self._heads:
            with normal_tensors():
                self._heads[key] = [
                    self.ensemble.build(state).requires_grad_(False).to(like) for state in self.ensemble.states
                ]
        return self._heads[key]


def pair_features(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The features of :func:`bcs_lab.features.fused_features`, with gradients.

    Args:
        pairs: per encoder ``(reference [n, dim], reconstruction [n, dim])``, L2-normalised.

    Returns:
        [n, sum(4 * dim + 1)].
    """
    parts = []
    for a, b in pairs:
        product = a * b
        parts += [a, b, (a - b).abs(), product, product.sum(dim=1, keepdim=True)]
    return torch.cat(parts, dim=1)


def _check_weights(weights: Any) -> tuple[float, float]:
    try:
        perceptual, semantic = (float(value) for value in weights)
    except (TypeError, ValueError):
        perceptual = semantic = -1.0
    if not (0 <= perceptual < np.inf and 0 <= semantic < np.inf and perceptual + semantic > 0):
        raise ModelError(f"Expected `weights` to be two numbers of 0 or more, not both 0, but got {weights!r}.")
    return perceptual, semantic
