"""Similarities by the stages of a network: of every stage, and of the classes it was trained to tell apart.

Of each stage, on a grid of at most 7 x 7 positions or pooled over all of them:

============================  =====================================================================================
aligned                       cosine at each position, averaged over positions
aligned_centred               the same after a fixed mean was taken off every channel
pooled_mean, pooled_spread    cosine of the channels' means, and of their standard deviations, over positions
..._standardised              the same of standard scores: fixed mean and standard deviation of every channel
match_reference               cosine of each of the reference's positions with the nearest one of the reconstruction,
                              averaged
match_reconstruction          the other way round
..._low                       10 % quantile instead of the average
============================  =====================================================================================

With a bank of other pictures, also what :mod:`bcs_lab.similarity.bank` says.

The fixed numbers are shipped (:mod:`bcs_lab.similarity.statistics`). Without them there are no centred and standardised
variants, and nearest positions are looked for as they are; with them, after centring.

Of the probabilities p and q of the network's own classes, at temperatures 1 and 2: ``overlap`` (sum of the smaller
ones), ``bhattacharyya`` (sum of sqrt(p q)) and ``agreement`` (p S q over the root of (p S p)(q S q), with S the cosines
of centred classifier weights, where positive); ``entropy`` of both at temperature 1; ``largest_logit`` of the
reconstruction; ``logit_cosine`` of centred logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bcs_lab.encoders.base import FrozenEncoder, Stages, Staging, image_workers, normalise

if TYPE_CHECKING:
    import torch

    from bcs_lab.similarity.bank import Bank
    from bcs_lab.similarity.statistics import StageStatistics

#: Most rows and columns of a grid that is kept.
GRID = 7
LOW = 0.1
TEMPERATURES = (1, 2)
#: Shortest length a vector is divided by.
FLOOR = 1e-6
#: Largest value that float16 holds.
_LARGEST = 65504.0


@dataclass(frozen=True)
class ClassDescription:
    """What a network's own classifier says of an image.

    Attributes:
        logits: float32 ``[classes]``.
        probabilities: float32 ``[temperatures, classes]``.
        spread: the same handed on to similar classes: ``S p``.
        entropy: float32 scalar, of the probabilities at temperature 1, in nats.
    """

    logits: torch.Tensor
    probabilities: torch.Tensor
    spread: torch.Tensor
    entropy: torch.Tensor


@dataclass(frozen=True)
class StageDescription:
    """What is kept of an image.

    Attributes:
        embedding: float32 ``[dim]`` of unit length.
        grids: float16 ``[positions, channels]`` on the CPU, one for each run of stages with as many positions, whose
            channels are side by side.
        pooled: per stage float32 ``[2, channels]``, mean and standard deviation over all positions.
        classes: where the network has a classifier.
    """

    embedding: np.ndarray
    grids: tuple[torch.Tensor, ...]
    pooled: tuple[torch.Tensor, ...]
    classes: ClassDescription | None

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        found = [*self.grids, *self.pooled]
        if self.classes is not None:
            found += [self.classes.logits, self.classes.probabilities, self.classes.spread, self.classes.entropy]
        return self.embedding.nbytes + sum(tensor.numel() * tensor.element_size() for tensor in found)


class StageComparer:
    """Describes and compares images by a network's stages.

    Args:
        encoder: the network's encoder.
        staging: its stages.
        statistics: fixed numbers of every stage, if there are any.
        bank: pictures of other things to compare with, if there are any; needs statistics.
        mirror: also pool over the mirror image.
    """

    def __init__(
        self,
        encoder: FrozenEncoder,
        staging: Staging,
        statistics: StageStatistics | None,
        bank: Bank | None = None,
        *,
        mirror: bool = False,
    ) -> None:
        import torch

        self.staging, self.mirror = staging, mirror
        self.names = stage_names(staging.names, statistics is not None, staging.classifier is not None)
        self._bank = bank if statistics is not None else None
        if self._bank is not None:
            self.names += self._bank.names
            self._layers = [(staging.names.index(stage), row) for stage, row in self._bank.layers]
        self._device = torch.device(encoder.device)
        self._kind = getattr(torch, str(encoder.fingerprint["dtype"]))
        self._mean: list[torch.Tensor] | None = None
        self._fixed: tuple[torch.Tensor, torch.Tensor] | None = None
        if statistics is not None:
            self._mean = [torch.from_numpy(statistics.mean[name]) for name in staging.names]
            self._sd = [torch.from_numpy(statistics.sd[name]) for name in staging.names]
            self._fixed = torch.cat(self._mean, dim=1), torch.cat(self._sd, dim=1)
        self._workers = image_workers()
        # In a worker, as all arithmetic here: with one thread it gives the same bits everywhere.
        self._similar = self._workers.submit(_class_similarity, staging.classifier).result()

    def describe(self, inputs: np.ndarray) -> list[StageDescription]:
        """One description an image; inputs as the encoder prepares them, ``[n, 3, height, width]``."""
        import torch

        tensor = torch.from_numpy(inputs)
        if self._device.type == "cpu":
            return [found for part in self._workers.map(self._describe, tensor.split(1)) for found in part]
        return self._workers.submit(self._describe, tensor).result()

    def compare_all(self, pairs: Sequence[tuple[StageDescription, StageDescription]]) -> np.ndarray:
        """Float32 ``[n_pairs, len(names)]``."""
        rows = list(self._workers.map(self._compare, pairs))
        return np.stack(rows) if rows else np.zeros((0, len(self.names)), dtype=np.float32)

    # --- one image ---------------------------------------------------------------------------------------------------

    def _describe(self, inputs: torch.Tensor) -> list[StageDescription]:
        import torch

        n = len(inputs)
        with torch.inference_mode():
            inputs = inputs.to(device=self._device, dtype=self._kind)
            if self.mirror:
                inputs = torch.cat([inputs, inputs.flip(3)])
            stages = self.staging.run(inputs)
            features = stages.features[:n].float().cpu()
            embeddings = normalise(features.numpy())
            grids = _side_by_side([_small(grid[:n]) for grid in stages.grids])
            pooled = [_pool(grid, n) for grid in stages.grids]
            classes: list[ClassDescription | None] = [None] * n
            if self.staging.classifier is not None:
                heads = self._class_features(stages, n)
                classes = [self._classes(head) for head in heads]
            return [
                StageDescription(
                    embeddings[i],
                    tuple(grid[i].clone() for grid in grids),
                    tuple(part[i].clone() for part in pooled),
                    classes[i],
                )
                for i in range(n)
            ]

    @staticmethod
    def _class_features(stages: Stages, n: int) -> torch.Tensor:
        """What the classifier looks at: the features, over the image and its mirror image."""
        features = stages.features.float().cpu()
        return features.unflatten(0, (-1, n)).mean(dim=0)

    def _classes(self, features: torch.Tensor) -> ClassDescription:
        import torch

        assert self.staging.classifier is not None
        assert self._similar is not None
        weight, bias = self.staging.classifier
        logits = weight @ features + bias
        scaled = torch.stack([logits / temperature for temperature in TEMPERATURES])
        probabilities = scaled.softmax(dim=1)
        entropy = -(probabilities[0] * scaled[0].log_softmax(dim=0)).sum()
        return ClassDescription(logits, probabilities, probabilities @ self._similar, entropy)

    # --- one pair ----------------------------------------------------------------------------------------------------

    def _compare(self, pair: tuple[StageDescription, StageDescription]) -> np.ndarray:
        import torch

        one, two = pair
        with torch.inference_mode():
            parts = [self._stages(one, two)]
            if one.classes is not None and two.classes is not None:
                parts.append(_compare_classes(one.classes, two.classes))
            if self._bank is not None:
                parts.append(self._bank.compare(self.standardised(one), self.standardised(two)))
            return torch.cat(parts).numpy()

    def standardised(self, description: StageDescription) -> list[torch.Tensor]:
        """Per layer of the bank its standard scores: float32 ``[channels]``."""
        assert self._mean is not None
        return [
            (description.pooled[number][row] - self._mean[number][row]) / self._sd[number][row]
            for number, row in self._layers
        ]

    def _stages(self, one: StageDescription, two: StageDescription) -> torch.Tensor:
        """Of every stage in turn; computed all at once, since many small operations cost more than a few large ones."""
        import torch

        widths = [part.shape[1] for part in one.pooled]
        x, y = torch.cat(one.pooled, dim=1), torch.cat(two.pooled, dim=1)
        pooled = [_cosines(x, y, widths)]
        if self._fixed is not None:
            mean, sd = self._fixed
            pooled.append(_cosines((x - mean) / sd, (y - mean) / sd, widths))
        rows, first = [], 0
        for a, b in zip(one.grids, two.grids, strict=True):
            start = sum(widths[:first])
            last = first
            while sum(widths[first:last]) < a.shape[1]:
                last += 1
            centre = None if self._fixed is None else self._fixed[0][0, start : start + a.shape[1]]
            rows.append(_compare_grids(a.float(), b.float(), widths[first:last], centre))
            first = last
        aligned, matches = (torch.cat(parts) for parts in zip(*rows, strict=True))
        return torch.cat([aligned, *(part.T for part in pooled), matches], dim=1).flatten()


def stage_names(stages: Sequence[str], centred: bool, classes: bool) -> tuple[str, ...]:
    """Names of the similarities, in their order."""
    matches = [f"match_{side}{which}" for which in ("", "_low") for side in ("reference", "reconstruction")]
    pooled = ["pooled_mean", "pooled_spread"]
    kinds = ["aligned", *pooled, *matches]
    if centred:
        kinds = ["aligned", "aligned_centred", *pooled, *(f"{name}_standardised" for name in pooled), *matches]
    names = [f"{stage}.{kind}" for stage in stages for kind in kinds]
    if classes:
        for kind in ("overlap", "bhattacharyya", "agreement"):
            names += [f"classes.{kind}_t{temperature}" for temperature in TEMPERATURES]
        names += ["classes.entropy_reference", "classes.entropy_reconstruction"]
        names += ["classes.largest_logit", "classes.logit_cosine"]
    return tuple(names)


def _small(grid: torch.Tensor) -> torch.Tensor:
    """Float16 ``[n, positions, channels]`` on the CPU."""
    import torch

    height, width = min(GRID, grid.shape[2]), min(GRID, grid.shape[3])
    pooled = grid.float()
    if (height, width) != tuple(grid.shape[2:]):
        pooled = torch.nn.functional.adaptive_avg_pool2d(pooled, (height, width))
    return pooled.clamp(-_LARGEST, _LARGEST).flatten(2).transpose(1, 2).half().cpu().contiguous()


def _pool(grid: torch.Tensor, n: int) -> torch.Tensor:
    """Float32 ``[n, 2, channels]`` on the CPU, averaged over an image and its mirror image."""
    import torch

    # By hand over rows of channels: ten times as fast as `var_mean` where channels come last in memory.
    rows = grid.float().permute(0, 2, 3, 1).flatten(1, 2)
    mean = rows.mean(dim=1)
    spread = (rows - mean[:, None]).square_().mean(dim=1).sqrt_()
    both = torch.stack([mean, spread], dim=1)
    return both.unflatten(0, (-1, n)).mean(dim=0).cpu()


def _class_similarity(classifier: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor | None:
    """Cosines of centred weight rows, where positive: float32 ``[classes, classes]``."""
    if classifier is None:
        return None
    rows = _unit(classifier[0] - classifier[0].mean(dim=0))
    return (rows @ rows.T).relu()


def _unit(rows: torch.Tensor) -> torch.Tensor:
    import torch

    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(FLOOR)


def _side_by_side(grids: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Grids ``[n, positions, channels]``, neighbours of as many positions joined along their channels."""
    import torch

    runs: list[list[torch.Tensor]] = []
    for grid in grids:
        if not runs or runs[-1][0].shape[1] != grid.shape[1]:
            runs.append([])
        runs[-1].append(grid)
    return [torch.cat(run, dim=2) for run in runs]


def _sums(rows: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """Of each row within each stage: ``[rows, stages]``."""
    import torch

    return torch.stack([part.sum(dim=1) for part in rows.split(list(widths), dim=1)], dim=1)


def _lengths(rows: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """Of each row within each stage: ``[rows, stages]``."""
    return _sums(rows * rows, widths).sqrt().clamp_min(FLOOR)


def _cosines(a: torch.Tensor, b: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """Of each row of ``a`` with the same row of ``b``, within each stage: ``[rows, stages]``."""
    return _sums(a * b, widths) / (_lengths(a, widths) * _lengths(b, widths))


def _compare_grids(
    a: torch.Tensor, b: torch.Tensor, widths: Sequence[int], mean: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stages with as many positions.

    Args:
        a: float32 ``[positions, channels]``, new memory, which is aligned alike every time: a matrix product then takes
            the same way; it is changed.
        b: likewise, of the reconstruction.
        widths: channels of each stage.
        mean: float32 ``[channels]`` taken off before nearest positions are looked for.

    Returns:
        Aligned cosines ``[stages, 1]``, or 2 with a mean, and those of nearest positions ``[stages, 4]``.
    """
    import torch

    aligned = [_cosines(a, b, widths).mean(dim=0)]
    if mean is not None:
        a.sub_(mean)
        b.sub_(mean)
    products = [x @ y.T for x, y in zip(a.split(list(widths), dim=1), b.split(list(widths), dim=1), strict=True)]
    first, second = _lengths(a, widths).T, _lengths(b, widths).T
    nearest = torch.stack(products) / (first[:, :, None] * second[:, None, :])
    if mean is not None:
        aligned.append(nearest.diagonal(dim1=1, dim2=2).mean(dim=1))
    best = torch.stack([nearest.amax(dim=2), nearest.amax(dim=1)], dim=1)
    place = LOW * (best.shape[2] - 1)
    ordered = best.sort(dim=2).values
    below, above = int(place), min(int(place) + 1, best.shape[2] - 1)
    low = torch.lerp(ordered[:, :, below], ordered[:, :, above], place - below)
    return torch.stack(aligned, dim=1), torch.cat([best.mean(dim=2), low], dim=1)


def _compare_classes(one: ClassDescription, two: ClassDescription) -> torch.Tensor:
    import torch

    p, q = one.probabilities, two.probabilities
    overlap = torch.minimum(p, q).sum(dim=1)
    bhattacharyya = (p * q).sqrt().sum(dim=1)
    shared, first, second = (p * two.spread).sum(1), (p * one.spread).sum(1), (q * two.spread).sum(1)
    agreement = shared / (first * second).sqrt()
    centred = [side.logits - side.logits.mean() for side in (one, two)]
    rest = [one.entropy[None], two.entropy[None], two.logits.max()[None]]
    return torch.cat(
        [overlap, bhattacharyya, agreement, *rest, _cosines(centred[0][None], centred[1][None], [len(centred[0])])[0]]
    )
