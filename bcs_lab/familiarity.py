"""Is a picture like those a model was trained on? Distance to the nearest training embeddings, with a threshold.

The rule is the nearest-neighbour one of Sun et al. (2022): with unit embeddings, the distance is one minus the cosine
to the nearest training image, averaged over the encoders first. References and reconstructions are judged apart, since
decoders draw pictures that no camera takes. A new picture shows something new, so the threshold of each side comes from
the training images' distances to those of other concepts: it lets pass 99 in 100 of them, and about one familiar
picture in a hundred is flagged as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bcs_lab.errors import ModelError

SIDES = ("reference", "reconstruction")
#: Share of familiar images that the threshold lets pass.
PASS = 0.99
#: Training images kept a side; more would make the model's folder large and change the distances little.
MAX_KEPT = 1024


@dataclass(frozen=True)
class Familiarity:
    """Training embeddings of both sides and how far away is far.

    Attributes:
        kept: side -> per encoder float16 [n_kept, dim], unit rows.
        thresholds: side -> largest distance that still counts as familiar, in [0, 2].
    """

    kept: Mapping[str, list[NDArray[np.float16]]]
    thresholds: Mapping[str, float]

    @classmethod
    def fit(
        cls,
        images: Mapping[str, Sequence[ArrayLike]],
        concepts: Mapping[str, Sequence[str] | NDArray[np.object_]],
        seed: int = 0,
        max_kept: int = MAX_KEPT,
    ) -> Familiarity:
        """Keep training embeddings and set the thresholds.

        Args:
            images: side -> per encoder unit rows [n, dim] of distinct training images.
            concepts: side -> [n], what each image belongs to.
            seed: which images are kept where there are more than ``max_kept``.
            max_kept: see there.
        """
        kept: dict[str, list[NDArray[np.float16]]] = {}
        thresholds: dict[str, float] = {}
        for side in SIDES:
            parts = [np.asarray(part, dtype=np.float32) for part in images[side]]
            labels = np.asarray(concepts[side], dtype=object)
            rows = np.sort(np.random.default_rng(seed).permutation(len(labels))[:max_kept])
            kept[side] = [part[rows].astype(np.float16) for part in parts]
            distance = 1.0 - _cosine(parts, kept[side])
            distance[labels[:, None] == labels[rows][None, :]] = np.inf
            nearest = distance.min(axis=1, initial=np.inf)
            nearest = nearest[np.isfinite(nearest)]
            # With a single concept nothing is known about another one: nothing is flagged.
            thresholds[side] = float(np.quantile(nearest, PASS, method="higher")) if len(nearest) else 2.0
        return cls(kept, thresholds)

    def distances(
        self, reference: Sequence[ArrayLike], reconstruction: Sequence[ArrayLike]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Distance of each image of each pair to the training images of its side.

        Args:
            reference: per encoder unit rows [n, dim], in the model's order.
            reconstruction: likewise.

        Returns:
            Two float32 [n] in [0, 2].
        """
        return self._distance("reference", reference), self._distance("reconstruction", reconstruction)

    def unfamiliar(self, reference: Sequence[ArrayLike], reconstruction: Sequence[ArrayLike]) -> NDArray[np.bool_]:
        """Pairs of which either image is further than its threshold, bool [n]; arguments as in :meth:`distances`."""
        a, b = self.distances(reference, reconstruction)
        # an image on the threshold itself stays within it, whatever the order of the sums
        return (a > self.thresholds["reference"] + 1e-6) | (b > self.thresholds["reconstruction"] + 1e-6)

    def _distance(self, side: str, parts: Sequence[ArrayLike]) -> NDArray[np.float32]:
        kept = self.kept[side]
        rows = [np.asarray(part, dtype=np.float32) for part in parts]
        if [part.shape[1] for part in rows] != [part.shape[1] for part in kept]:
            raise ModelError(
                f"Expected embeddings of sizes {[part.shape[1] for part in kept]} but got "
                f"{[part.shape[1] for part in rows]}."
            )
        return (1.0 - _cosine(rows, self._single[side])).min(axis=1, initial=2.0)

    @cached_property
    def _single(self) -> dict[str, list[NDArray[np.float32]]]:
        """What is kept, in the precision of the arithmetic: widening it takes longer than the arithmetic itself."""
        return {side: [part.astype(np.float32) for part in parts] for side, parts in self.kept.items()}


def _cosine(rows: Sequence[NDArray[np.float32]], kept: Sequence[NDArray[np.floating]]) -> NDArray[np.float32]:
    """Cosine of every row with every kept image, averaged over the encoders: float32 [n, n_kept]."""
    total = np.zeros((len(rows[0]), len(kept[0])), dtype=np.float32)
    for a, b in zip(rows, kept, strict=True):
        total += a @ b.astype(np.float32, copy=False).T
    return total / np.float32(len(rows))
