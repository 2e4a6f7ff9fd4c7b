"""Thresholds and levels against the grid search written out."""

from __future__ import annotations

import numpy as np
import pytest

from bcs_lab.snapping import fit_thresholds, snap_to_levels


def naive_thresholds(prediction: np.ndarray, target: np.ndarray) -> np.ndarray:
    out = []
    for q in range(target.shape[1]):
        active = ~np.isnan(target[:, q])
        x, y = prediction[active, q].astype(float), target[active, q].astype(float)

        def error(low: float, high: float, x: np.ndarray = x, y: np.ndarray = y) -> float:
            return float(np.round(np.abs(np.where(x < low, 0.0, np.where(x < high, 0.5, 1.0)) - y).sum(), 9))

        best, least = (0.25, 0.75), error(0.25, 0.75) if len(x) else 0.0
        for low in np.linspace(0.05, 0.55, 51):
            for high in np.linspace(0.45, 0.95, 51):
                if len(x) and high > low + 0.05 and error(low, high) < least:
                    best, least = (low, high), error(low, high)
        out.append(best)
    return np.array(out)


@pytest.mark.parametrize("seed", range(3))
def test_thresholds_equal_the_grid_search_written_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 5, size=(40, 3)) / 4
    prediction = np.clip(0.6 * target + 0.1 + rng.normal(0, 0.1, target.shape), 0, 1).astype(np.float32)
    target[rng.random(target.shape) < 0.2] = np.nan
    np.testing.assert_array_equal(fit_thresholds(prediction, target), naive_thresholds(prediction, target))


def test_thresholds_start_where_nothing_is_better_or_known() -> None:
    target = np.array([[0.0, np.nan], [0.5, np.nan], [1.0, np.nan]])
    prediction = np.array([[0.01, 0.5], [0.5, 0.5], [0.99, 0.5]])
    assert fit_thresholds(prediction, target).tolist() == [[0.25, 0.75]] * 2


def test_snapping_goes_up_at_a_threshold() -> None:
    thresholds = np.array([[0.25, 0.75], [0.1, 0.9]])
    prediction = np.array([[0.2499, 0.1], [0.25, 0.0999], [0.75, 0.9], [0.7499, np.nan]])
    expected = [[0, 0.5], [0.5, 0], [1, 1], [0.5, np.nan]]
    np.testing.assert_array_equal(snap_to_levels(prediction, thresholds), expected)
