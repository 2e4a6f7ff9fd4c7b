"""Snap continuous predictions to the three levels, by thresholds chosen on validation (Section 5.5)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Thresholds = NDArray[np.float64]


def fit_thresholds(prediction: NDArray[np.floating], target: NDArray[np.floating]) -> Thresholds:
    """Per question the two thresholds whose snapped predictions have the least absolute error.

    The authors' grid: low from .05 to .55 and high from .45 to .95 in steps of .01, with high above low + .05. (.25,
    .75) is kept unless a pair of the grid is strictly better; among equals the first (lowest low, then lowest high)
    wins.

    Args:
        prediction: [n, n_questions] raw predictions, of validation pairs.
        target: [n, n_questions] fractional consensus, NaN where missing.

    Returns:
        float64 [n_questions, 2].
    """
    prediction = np.asarray(prediction, dtype=np.float64)
    target = np.asarray(target, dtype=np.float64)
    if prediction.shape != target.shape or prediction.ndim != 2:
        raise ValueError(f"Expected two arrays [n, n_questions] but got {prediction.shape} and {target.shape}.")
    lows, highs = np.linspace(0.05, 0.55, 51), np.linspace(0.45, 0.95, 51)
    allowed = highs[None, :] > lows[:, None] + 0.05
    out = np.tile([0.25, 0.75], (target.shape[1], 1))
    for question in range(target.shape[1]):
        active = ~np.isnan(target[:, question])
        if not active.any():
            continue
        order = np.argsort(prediction[active, question], kind="stable")
        x, y = prediction[active, question][order], target[active, question][order]
        # cost of calling the first k predictions by one level, for every k
        zero, half, one = (np.r_[0.0, np.cumsum(np.abs(level - y))] for level in (0.0, 0.5, 1.0))

        def cost(low: ArrayLike, high: ArrayLike) -> NDArray[np.float64]:
            a, b = np.searchsorted(x, low), np.searchsorted(x, high)  # noqa: B023 - called within this turn
            return zero[a] + (half[b] - half[a]) + (one[-1] - one[b])  # noqa: B023

        grid = np.where(allowed, cost(lows[:, None], highs[None, :]), np.inf)
        # sums of the same cells in another order differ in the last digits; such a tie is not an improvement
        slack = 1e-9 * len(x)
        if grid.min() < cost(0.25, 0.75) - slack:
            low, high = np.unravel_index(np.argmax(grid <= grid.min() + slack), grid.shape)
            out[question] = lows[low], highs[high]
    return out


def snap_to_levels(prediction: NDArray[np.floating], thresholds: Thresholds) -> NDArray[np.float32]:
    """Levels 0, .5 and 1: below the low threshold 0, below the high one .5, else 1.

    Args:
        prediction: [n, n_questions].
        thresholds: [n_questions, 2].

    Returns:
        float32 [n, n_questions]; NaN stays NaN.
    """
    prediction = np.asarray(prediction, dtype=np.float64)
    levels = 0.5 * ((prediction >= thresholds[:, 0]).astype(np.float32) + (prediction >= thresholds[:, 1]))
    return np.where(np.isnan(prediction), np.nan, levels).astype(np.float32)
