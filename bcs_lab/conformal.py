"""Intervals around T-PAS and T-SAS that hold what they promise: split-conformal prediction over concepts.

Pairs of one concept share a reference image and err together, so what is exchangeable is the concept, not the pair.
The interval is the hierarchical one of Lee, Barber and Willett (2023): with K validation concepts of n_k pairs,
residual i of concept k weighs 1 / ((K + 1) n_k), a residual of infinity weighs 1 / (K + 1), and the half width is the
weighted quantile. For a pair of a new concept from the same source the interval then covers the consensus with at least
the probability asked for, whatever the errors look like.

Two things loosen the promise and are why coverage is also measured on the test part: the validation part has chosen the
epoch (and a snapped head's thresholds), and other decoders or images are another source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

DEFAULT_COVERAGE = 0.9
#: Coverages at which a training run measures what is really covered.
LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class Conformal:
    """Validation residuals, kept so that an interval of any coverage can be given later.

    Attributes:
        residuals: axis (``t_pas``, ``t_sas``) -> per validation concept
            the absolute differences of score and consensus.
    """

    residuals: Mapping[str, list[list[float]]]

    @classmethod
    def fit(
        cls, scores: Mapping[str, ArrayLike], consensus: Mapping[str, ArrayLike], concepts: Sequence[Any] | NDArray[Any]
    ) -> Conformal:
        """Collect the residuals of validation pairs.

        Args:
            scores: axis -> reported scores [n].
            consensus: axis -> the teachers' [n], NaN where undefined: such a pair is left out.
            concepts: [n] labels.

        >>> Conformal.fit({"t_pas": [0.5, 0.75]}, {"t_pas": [0.25, float("nan")]}, ["cat", "dog"]).residuals
        {'t_pas': [[0.25]]}
        """
        labels = np.asarray(concepts, dtype=object)
        residuals: dict[str, list[list[float]]] = {}
        for axis, values in scores.items():
            error = np.abs(np.asarray(values, dtype=np.float64) - np.asarray(consensus[axis], dtype=np.float64))
            groups = [error[(labels == label) & ~np.isnan(error)] for label in dict.fromkeys(labels.tolist())]
            residuals[axis] = [sorted(group.tolist()) for group in groups if len(group)]
        return cls(residuals)

    def half_width(self, axis: str, coverage: float = DEFAULT_COVERAGE) -> float:
        """Half the length of an axis' interval before it is cut at 0 and 1.

        Args:
            axis: ``t_pas`` or ``t_sas``.
            coverage: between 0 and 1.

        Returns:
            0 or more; infinite where the concepts are too few for the coverage (fewer than 9 for 0.9).
        """
        if not 0 < coverage < 1:
            raise ValueError(f"Expected `coverage` between 0 and 1 but got {coverage}.")
        groups = [group for group in self.residuals[axis] if group]
        if not groups:
            return float("inf")
        values = np.concatenate(groups)
        weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in groups]) / (len(groups) + 1)
        order = np.argsort(values, kind="stable")
        reached = np.cumsum(weights[order])
        # Sums of many small weights: a rounding error must not turn "exactly enough" into "one more".
        at = int(np.searchsorted(reached, coverage - 1e-9))
        return float(values[order][at]) if at < len(values) else float("inf")

    def interval(self, axis: str, scores: ArrayLike, coverage: float = DEFAULT_COVERAGE) -> tuple[Floats, Floats]:
        """Lower and upper ends around scores, float64 of their shape, cut to [0, 1]; NaN where the score is."""
        values, half = np.asarray(scores, dtype=np.float64), self.half_width(axis, coverage)
        defined = ~np.isnan(values)
        low, high = (np.where(defined, np.clip(values + sign * half, 0.0, 1.0), np.nan) for sign in (-1, 1))
        return low, high


def covered(
    low: ArrayLike, high: ArrayLike, consensus: ArrayLike, concepts: Sequence[Any] | NDArray[Any]
) -> tuple[float | None, float | None]:
    """Share of held-out pairs whose consensus lies within their interval.

    Returns:
        The share averaged over concepts, which is what the guarantee speaks of, and the share over pairs; ``None``
        where no pair has a consensus.

    >>> covered([0, 0, 0], [0.5, 0.5, 0.5], [0.4, 0.6, 0.5], ["cat", "cat", "dog"])
    (0.75, 0.6666666666666666)
    """
    target = np.asarray(consensus, dtype=np.float64)
    known = ~np.isnan(target)
    if not known.any():
        return None, None
    # float32 scores and a consensus in eighths: equality must count as within
    within = (np.asarray(low) - 1e-9 <= target) & (target <= np.asarray(high) + 1e-9)
    labels = np.asarray(concepts, dtype=object)
    shares = [within[known & (labels == label)].mean() for label in dict.fromkeys(labels[known].tolist())]
    return float(np.mean(shares)), float(within[known].mean())


def coverage_report(
    conformal: Conformal,
    scores: Mapping[str, ArrayLike],
    consensus: Mapping[str, ArrayLike],
    concepts: Sequence[Any] | NDArray[Any],
    coverage: float = DEFAULT_COVERAGE,
) -> dict[str, Any]:
    """What the intervals really cover on pairs that took no part in fitting anything.

    Args:
        conformal: fitted on validation pairs.
        scores: axis -> reported scores of test pairs [n].
        consensus: axis -> theirs, NaN where undefined.
        concepts: [n] labels.
        coverage: the one that is reported in full.

    Returns:
        The content of ``coverage.json``: ``coverage``, ``axes`` and ``curve``.
    """

    def held_out(axis: str, level: float) -> tuple[float | None, float | None]:
        return covered(*conformal.interval(axis, scores[axis], level), consensus[axis], concepts)

    axes = {}
    for axis in scores:
        by_concept, by_pair = held_out(axis, coverage)
        known = ~np.isnan(np.asarray(consensus[axis], dtype=np.float64))
        axes[axis] = {
            "half_width": conformal.half_width(axis, coverage),
            "held_out_concepts": by_concept,
            "held_out_pairs": by_pair,
            "val_concepts": len(conformal.residuals[axis]),
            "test_concepts": len({label for label, use in zip(concepts, known.tolist(), strict=True) if use}),
            "test_pairs": int(known.sum()),
        }
    curve = [{"level": level, **{axis: held_out(axis, level)[0] for axis in scores}} for level in LEVELS]
    return {"coverage": coverage, "axes": axes, "curve": curve}
