"""The pairs a metric fails on worst: right ones that it calls bad, wrong ones that it calls good (Figure 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bcs_lab.audit.correlations import without_infinity
from bcs_lab.report.page_stats import pick

Floats = NDArray[np.float64]


def mean_ranks(values: Floats) -> Floats:
    """Where each value stands among all that are known: 0 for the least, 1 for the largest, ties in the middle.

    Args:
        values: [n], NaN where unknown.

    Returns:
        [n] in [0, 1], NaN where unknown; 0.5 for a value alone.

    >>> mean_ranks(np.array([3.0, 1.0, np.nan, 1.0])).tolist()
    [1.0, 0.25, nan, 0.25]
    """
    out = np.full(len(values), np.nan)
    known = ~np.isnan(values)
    own = values[known]
    order = np.sort(own)
    ranks = (np.searchsorted(order, own, "left") + np.searchsorted(order, own, "right") - 1) / 2
    out[known] = ranks / (len(own) - 1) if len(own) > 1 else 0.5
    return out


def worst_pairs(
    quality: Floats,
    score: Floats,
    right: NDArray[np.bool_],
    wrong: NDArray[np.bool_],
    concepts: Sequence[str],
    n: int,
) -> tuple[list[int], list[int]]:
    """Positions of the most harsh and the most blind pairs.

    Harsh are right pairs below the lower quartile of the metric, blind are wrong ones at or above its upper quartile.
    First come those whose rank by the metric is farthest from that by the score; further pairs of one concept come only
    when no other is left.

    Args:
        quality: [n_pairs] metric, oriented so that larger is better; NaN where undefined.
        score: [n_pairs] semantic score, NaN where undefined.
        right: [n_pairs] whether the score calls a pair right.
        wrong: [n_pairs] whether it calls it wrong.
        concepts: [n_pairs].
        n: most pairs of each kind.
    """
    both = ~np.isnan(quality) & np.isfinite(score)
    if not both.any():
        return [], []
    quality = without_infinity(quality)
    low, high = np.quantile(quality[both], [0.25, 0.75])
    gap = mean_ranks(np.where(both, score, np.nan)) - mean_ranks(np.where(both, quality, np.nan))
    harsh = sorted(np.flatnonzero(both & right & (quality < low)).tolist(), key=lambda i: (-gap[i], i))
    blind = sorted(np.flatnonzero(both & wrong & (quality >= high)).tolist(), key=lambda i: (gap[i], i))
    return pick(harsh, concepts, n), pick(blind, concepts, n)
