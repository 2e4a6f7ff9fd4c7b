from __future__ import annotations

import doctest
import time
from typing import Any

import numpy as np
import pytest
import scipy.stats
from small import Embeddings

from bcs_lab import evaluate as module
from bcs_lab.errors import RunError
from bcs_lab.evaluate import (
    METRICS,
    axis_scores,
    bootstrap_ci,
    cosine_baseline,
    cosine_line,
    cosine_scores,
    evaluate,
    mae,
    paired_difference,
    pearson,
    spearman,
    train_mean_baseline,
)
from bcs_lab.teachers.protocol import BCS12


def made_up(n: int = 60, seed: int = 0, missing: float = 0.1, levels: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    target = rng.integers(0, levels, size=(n, 12)) / (levels - 1)
    prediction = np.clip(target + rng.normal(0, 0.4, size=target.shape), 0, 1).astype(np.float32)
    target[rng.random(target.shape) < missing] = np.nan
    return prediction, target.astype(np.float32)


# Case S01: a constant, nearly constant or tiny side.
TARGET = [0, 0.5, 1, 0.5, 0, 1]


def test_s01_constant_prediction_has_an_error_but_no_correlation() -> None:
    prediction = [0.5] * 6
    assert mae(prediction, TARGET) == pytest.approx(0.333333, abs=1e-6)
    assert pearson(prediction, TARGET) is None
    assert spearman(prediction, TARGET) is None
    assert pearson(TARGET, prediction) is None


def test_s01_nearly_constant_prediction_is_undefined() -> None:
    prediction = [0.1 + 0.2, 0.3, 0.3, 0.3, 0.3, 0.3]
    assert prediction[0] != prediction[1]
    assert pearson(prediction, TARGET) is None
    assert spearman(prediction, TARGET) is None


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-12, 1e-160, 1e5])
def test_s01_scale_does_not_matter(scale: float) -> None:
    prediction = np.array([1e-05, 3.5e-05, 2e-05, 8e-05, 6.5e-05, 5e-05, 9.5e-05, 4e-05]) * scale
    target = np.array([1.5e-05, 3e-05, 2.5e-05, 7e-05, 7.5e-05, 4.5e-05, 9e-05, 5.5e-05]) * scale
    assert pearson(prediction, target) == pytest.approx(0.955107, abs=1e-6)
    assert spearman(prediction, target) == pytest.approx(scipy.stats.spearmanr(prediction, target)[0])


def test_s01_one_cell_and_none() -> None:
    assert mae([0.4], [0.5]) == pytest.approx(0.1)
    assert pearson([0.4], [0.5]) is None
    assert spearman([0.4], [0.5]) is None
    assert mae([], []) is None
    assert pearson([], []) is None
    assert spearman([], []) is None


# Case S08: parts that are undefined or missing.
def test_s08_a_constant_part_is_undefined_alone_and_counts_when_pooled() -> None:
    subjects = [
        ([0, 0.5, 1, 0.5], [0.1, 0.4, 0.9, 0.6]),
        ([1, 1, 1, 1], [0.8, 0.9, 0.7, 0.6]),
        ([0, 1, 0.5, 0], [0.3, 0.6, 0.5, 0.1]),
    ]
    values = [pearson(y, x) for x, y in subjects]
    assert values[0] == pytest.approx(0.970143, abs=1e-6)
    assert values[1] is None
    assert values[2] == pytest.approx(0.902829, abs=1e-6)
    pooled = pearson(np.ravel([y for _, y in subjects]), np.ravel([x for x, _ in subjects]))
    assert pooled == pytest.approx(0.908062, abs=1e-6)


def test_s08_a_missing_target_is_dropped_not_zero() -> None:
    assert mae([0.9, 0.2, 0.55, 0.75, 0.05], [1, 0.25, np.nan, 0.5, 0]) == pytest.approx(0.1125)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_correlations_equal_scipys(seed: int, ties: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=300)
    y = 0.3 * x + rng.normal(size=300)
    if ties:
        x, y = np.round(x), np.round(y)
    assert pearson(x, y) == pytest.approx(scipy.stats.pearsonr(x, y)[0], abs=1e-12)
    assert spearman(x, y) == pytest.approx(scipy.stats.spearmanr(x, y)[0], abs=1e-12)
    assert pearson(x, 3 * x - 1) == pytest.approx(1.0)
    assert spearman(x, -np.exp(x)) == pytest.approx(-1.0)


def test_a_prediction_that_is_no_number_is_not_hidden() -> None:
    with pytest.raises(RunError, match="1 of 3 predictions are not finite"):
        mae([0.1, np.nan, 0.2, np.nan], [0, 0.5, 1, np.nan])
    prediction, target = made_up()
    prediction[0, 0], target[0, 0] = np.inf, 1
    with pytest.raises(RunError, match="not finite"):
        evaluate(prediction, target, BCS12)


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="one shape"):
        pearson([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"\[n_pairs, 12\]"):
        evaluate(np.zeros((3, 11)), np.zeros((3, 11)), BCS12)


@pytest.mark.parametrize("seed", range(3))
def test_evaluate_equals_a_loop_with_scipy(seed: int) -> None:
    prediction, target = made_up(seed=seed, missing=0.4)
    target[0] = np.nan
    target[1, :6] = np.nan
    found = evaluate(prediction, target, BCS12)
    assert tuple(found) == METRICS
    active = ~np.isnan(target)
    sides = {"q": (prediction[active].astype(float), target[active].astype(float))}
    for name, columns in (("pas", range(6)), ("sas", range(6, 12))):
        xs, ys = [], []
        for row in range(len(target)):
            here = [c for c in columns if active[row, c]]
            if len(here) >= 3:  # half of an axis
                xs.append(np.mean(prediction[row, here].astype(float)))
                ys.append(np.mean(target[row, here].astype(float)))
        sides[name] = (np.array(xs), np.array(ys))
    for name, (x, y) in sides.items():
        assert found[f"{name}_mae"] == pytest.approx(np.abs(x - y).mean())
        assert found[f"{name}_r"] == pytest.approx(scipy.stats.pearsonr(x, y)[0])
        assert found[f"{name}_rho"] == pytest.approx(scipy.stats.spearmanr(x, y)[0])


def test_evaluate_of_nothing_and_of_one_axis() -> None:
    assert evaluate(np.zeros((0, 12)), np.zeros((0, 12)), BCS12) == dict.fromkeys(METRICS)
    prediction, target = made_up()
    target[:, 6:] = np.nan
    found = evaluate(prediction, target, BCS12)
    assert found["pas_r"] is not None
    assert [found[key] for key in METRICS[6:]] == [None] * 3
    collapsed = evaluate(np.full_like(prediction, 0.5), target, BCS12)
    assert collapsed["q_mae"] is not None
    assert collapsed["q_r"] is None
    assert collapsed["pas_rho"] is None


def test_axis_scores() -> None:
    values = np.full((4, 12), np.nan)
    values[0] = np.r_[np.full(6, 0.5), np.full(6, 1.0)]
    values[1, [0, 1, 5]] = [0.0, 0.5, 1.0]
    values[2, [0, 5, 6, 7, 8, 9, 10]] = 1.0
    pas, sas = axis_scores(values, BCS12)
    np.testing.assert_array_equal(pas, [0.5, 0.5, np.nan, np.nan])
    np.testing.assert_array_equal(sas, [1.0, np.nan, 1.0, np.nan])


def test_which_questions_were_asked_does_not_make_a_score() -> None:
    """A constant prediction has no correlation with axes, even where pairs have one answer or all."""
    rng = np.random.default_rng(0)
    target = np.where(rng.uniform(size=(60, 1)) < 0.5, rng.choice([0.5, 1.0], size=(60, 12)), np.nan)
    target[np.isnan(target[:, 7]), 7] = 0.0
    constant = np.broadcast_to(np.linspace(0.1, 0.9, 12), target.shape)
    found = evaluate(constant, target, BCS12)
    assert found["sas_r"] is None
    assert found["sas_rho"] is None


def naive_bootstrap(
    prediction: np.ndarray, target: np.ndarray, clusters: np.ndarray, n_boot: int, seed: int
) -> dict[str, Any]:
    """Every resample built row by row and evaluated in full."""
    names = np.unique(clusters)
    rows_of = [np.flatnonzero(clusters == name) for name in names]
    draws = np.random.default_rng(seed).integers(len(names), size=(n_boot, len(names)))
    values = []
    for draw in draws:
        rows = np.concatenate([rows_of[k] for k in draw])
        values.append([np.nan if v is None else v for v in evaluate(prediction[rows], target[rows], BCS12).values()])
    out: dict[str, Any] = {}
    for key, column in zip(METRICS, np.array(values).T, strict=True):
        defined = column[~np.isnan(column)]
        out[key] = list(np.quantile(defined, [0.025, 0.975])) if len(defined) >= 0.9 * n_boot else None
    return out


@pytest.mark.parametrize("case", ["plain", "snapped", "missing", "few clusters", "half constant", "tiny"])
def test_bootstrap_equals_the_naive_one(case: str) -> None:
    prediction, target = made_up(50, seed=3)
    clusters = np.array([f"c{i % 17}" for i in range(50)])
    if case == "snapped":
        prediction = np.round(2 * prediction) / 2
    elif case == "missing":
        target[np.random.default_rng(1).random(target.shape) < 0.7] = np.nan
    elif case == "few clusters":
        clusters = np.array([f"c{min(i // 10, 2)}" for i in range(50)])
    elif case == "half constant":  # about a tenth of resamples have no spread
        prediction[clusters != "c3"] = 0.5
    elif case == "tiny":
        prediction = (1e-9 * prediction).astype(np.float64)
    found = bootstrap_ci(prediction, target, clusters, BCS12, n_boot=200, seed=5)
    expected = naive_bootstrap(prediction, target, clusters, 200, 5)
    assert tuple(found) == METRICS
    for key in METRICS:
        if expected[key] is None:
            assert found[key] is None, key
        else:
            assert found[key] == pytest.approx(expected[key], rel=1e-9, abs=1e-12), key


def test_bootstrap_intervals_hold_the_estimate_and_are_seeded() -> None:
    prediction, target = made_up(120)
    clusters = np.arange(120) % 30
    found = bootstrap_ci(prediction, target, clusters, BCS12)
    point = evaluate(prediction, target, BCS12)
    for key, interval in found.items():
        assert interval is not None
        assert interval[0] < point[key] < interval[1]  # type: ignore[operator]
    assert found == bootstrap_ci(prediction, target, clusters, BCS12)
    assert found != bootstrap_ci(prediction, target, clusters, BCS12, seed=1)
    narrow = bootstrap_ci(prediction, target, clusters, BCS12, level=0.5)
    assert narrow["q_mae"][0] > found["q_mae"][0]  # type: ignore[index]


def test_bootstrap_resamples_whole_clusters() -> None:
    """Copies of one pair within a concept add no information, so the interval must not shrink."""
    prediction, target = made_up(40)
    once = bootstrap_ci(prediction, target, np.arange(40), BCS12)
    often = bootstrap_ci(np.tile(prediction, (5, 1)), np.tile(target, (5, 1)), np.tile(np.arange(40), 5), BCS12)
    assert often["q_mae"] == pytest.approx(once["q_mae"])
    assert often["sas_r"] == pytest.approx(once["sas_r"])


def test_bootstrap_without_enough_to_resample_is_undefined() -> None:
    prediction, target = made_up(10)
    nothing = dict.fromkeys(METRICS)
    assert bootstrap_ci(prediction, target, np.zeros(10), BCS12) == nothing
    assert bootstrap_ci(prediction[:0], target[:0], np.zeros(0), BCS12) == nothing
    assert bootstrap_ci(prediction, np.full_like(target, np.nan), np.arange(10), BCS12) == nothing
    target[1:, 6:] = np.nan  # the semantic axis in one cluster only
    found = bootstrap_ci(prediction, target, np.arange(10), BCS12)
    assert found["sas_mae"] is None
    assert found["pas_mae"] is not None
    # a collapsed model has an error, and no correlation to give an interval for
    found = bootstrap_ci(np.full_like(prediction, 0.5), target, np.arange(10), BCS12)
    assert found["q_mae"] is not None
    assert found["q_r"] is None
    assert found["q_rho"] is None
    with pytest.raises(ValueError, match="clusters"):
        bootstrap_ci(prediction, target, np.zeros(9), BCS12)


def test_bootstrap_is_fast_at_the_papers_size() -> None:
    prediction, target = made_up(1050)
    start = time.perf_counter()
    bootstrap_ci(prediction, target, np.arange(1050) % 31, BCS12, n_boot=1000)
    assert time.perf_counter() - start < 5.0


def test_train_mean() -> None:
    _, target = made_up()
    target[:40, 2] = np.nan
    train = np.arange(40)
    found = train_mean_baseline(target, train)
    assert found.shape == target.shape
    assert np.array_equal(found[0], found[-1])
    assert found[0, 0] == pytest.approx(np.nanmean(target[:40, 0]))
    assert found[0, 2] == pytest.approx(np.nanmean(target[:40]))
    with pytest.raises(RunError, match="no answered question"):
        train_mean_baseline(np.full((4, 12), np.nan), np.arange(2))


def test_cosine_scores() -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(7, 16)).astype(np.float32)
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    part = Embeddings("e", images, np.array([0, 1, 2]), np.array([0, 5, 6]))
    found = cosine_scores(part)  # type: ignore[arg-type]
    assert found[0] == pytest.approx(1.0, abs=1e-6)
    assert found[1:] == pytest.approx((images[[1, 2]] * images[[5, 6]]).sum(axis=1), abs=2e-3)


def test_cosine_baseline_has_correlations_only() -> None:
    _, target = made_up()
    cosine = np.nanmean(target, axis=1) * 0.3 - 0.1
    found = cosine_baseline(cosine, target, BCS12)
    assert tuple(found) == METRICS
    assert [found[key] for key in ("q_mae", "pas_mae", "sas_mae")] == [None] * 3
    active = ~np.isnan(target)
    spread = np.repeat(cosine[:, None], 12, axis=1)
    assert found["q_r"] == pytest.approx(scipy.stats.pearsonr(spread[active], target[active])[0])
    assert found["sas_rho"] == pytest.approx(scipy.stats.spearmanr(cosine, axis_scores(target, BCS12)[1])[0])


def test_cosine_line_is_least_squares_on_training_pairs() -> None:
    _, target = made_up()
    rng = np.random.default_rng(0)
    cosine = rng.random(60)
    train = np.arange(0, 40)
    found = cosine_line(cosine, target, train)
    for q in range(12):
        active = ~np.isnan(target[:40, q])
        slope, intercept = np.polyfit(cosine[:40][active], target[:40, q][active].astype(float), 1)
        np.testing.assert_allclose(found[:, q], np.clip(slope * cosine + intercept, 0, 1), atol=1e-6)
    assert all(value is not None for value in evaluate(found, target, BCS12).values())
    target[:40, 0] = np.nan
    target[1:40, 1] = np.nan
    target[0, 1] = 1.0
    found = cosine_line(cosine, target, train)
    assert found[:, 0] == pytest.approx(np.nanmean(target[:40]))
    assert (found[:, 1] == 1).all()
    assert np.ptp(cosine_line(np.full(60, 0.3), target, train), axis=0).max() == 0


def test_keys() -> None:
    assert METRICS == ("q_mae", "q_r", "q_rho", "pas_mae", "pas_r", "pas_rho", "sas_mae", "sas_r", "sas_rho")
    assert module.RELATIVE_RANGE == 1e-6


def test_a_paired_difference_equals_the_bootstrap_written_out() -> None:
    generator = np.random.default_rng(3)
    target = generator.choice([0.0, 0.5, 1.0], size=(40, 12))
    first = np.clip(target + generator.normal(0, 0.3, target.shape), 0, 1)
    second = np.clip(target + generator.normal(0, 0.4, target.shape), 0, 1)
    clusters = np.repeat(np.arange(10), 4)
    got = paired_difference(first, second, target, clusters, BCS12, n_boot=200, seed=5)
    draws = np.random.default_rng(5).integers(10, size=(200, 10))
    naive = []
    for draw in draws:
        rows = np.concatenate([np.flatnonzero(clusters == cluster) for cluster in draw])
        a, b = (evaluate(side[rows], target[rows], BCS12)["sas_r"] for side in (first, second))
        assert a is not None
        assert b is not None
        naive.append(a - b)
    assert got["sas_r"]["interval"] == pytest.approx(np.quantile(naive, [0.025, 0.975]))
    whole = [evaluate(side, target, BCS12)["sas_r"] for side in (first, second)]
    assert got["sas_r"]["difference"] == pytest.approx(whole[0] - whole[1])  # type: ignore[operator]


def test_a_difference_of_equal_predictions_is_nothing_and_of_collapsed_ones_undefined() -> None:
    target = np.random.default_rng(0).choice([0.0, 0.5, 1.0], size=(30, 12))
    clusters = np.arange(30) // 3
    same = paired_difference(target, target, target, clusters, BCS12, n_boot=100)
    assert same["q_mae"] == {"difference": 0.0, "interval": [0.0, 0.0]}
    flat = paired_difference(np.full_like(target, 0.5), target, target, clusters, BCS12, n_boot=100)
    assert flat["pas_r"] == {"difference": None, "interval": None}


def test_examples() -> None:
    result = doctest.testmod(module)
    assert result.failed == 0
    assert result.attempted >= 8
