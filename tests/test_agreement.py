"""Kappa and alpha against scikit-learn, the krippendorff package, and the definition written out."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import cohen_kappa_score

from bcs_lab.agreement import (
    LEVELS,
    WEIGHTS,
    agreement,
    cluster_draws,
    cohen_kappa,
    krippendorff_alpha,
    pair_kappas,
)
from bcs_lab.evaluate import percentile_interval

SCALE = (0.0, 0.5, 1.0)


def random_ratings(seed: int, raters: int = 5, units: int = 24, missing: float = 0.2) -> NDArray[np.float64]:
    """Raters who follow a common truth more or less, some ratings left out."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, units)
    noise = rng.integers(-1, 2, (raters, units)) * (rng.random((raters, units)) < 0.5)
    ratings = np.clip(truth + noise, 0, 2) / 2
    ratings[rng.random((raters, units)) < missing] = np.nan
    return ratings


def alpha_by_definition(ratings: NDArray[np.float64], level: str) -> float:
    """Every pair of ratings of one unit against every pair of ratings at all."""
    units = [column[~np.isnan(column)] for column in ratings.T]
    units = [unit for unit in units if len(unit) > 1]
    everything = np.concatenate(units)

    def distance(a: float, b: float) -> float:
        if level == "nominal":
            return float(a != b)
        if level == "interval":
            return float((a - b) ** 2)
        low, high = min(a, b), max(a, b)
        between = ((everything >= low) & (everything <= high)).sum()
        return float(between - ((everything == low).sum() + (everything == high).sum()) / 2) ** 2 if a != b else 0.0

    within = sum(sum(distance(a, b) for a, b in combinations(unit, 2)) * 2 / (len(unit) - 1) for unit in units)
    overall = 2 * sum(distance(a, b) for a, b in combinations(everything, 2)) / (len(everything) - 1)
    return 1 - within / overall


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("weights", WEIGHTS)
def test_kappa_is_that_of_scikit_learn(seed: int, weights: str) -> None:
    ratings = random_ratings(seed)
    kappas = pair_kappas(ratings, SCALE, weights)
    for (i, j), value in zip(kappas.pairs, kappas.values, strict=True):
        both = ~np.isnan(ratings[i]) & ~np.isnan(ratings[j])
        first, second = (2 * ratings[i][both]).astype(int), (2 * ratings[j][both]).astype(int)
        expected = cohen_kappa_score(first, second, labels=[0, 1, 2], weights=None if weights == "none" else weights)
        assert value == pytest.approx(expected, abs=1e-12)
        assert cohen_kappa(ratings[i], ratings[j], SCALE, weights) == value
    assert kappas.mean == pytest.approx(np.mean(kappas.values))
    assert kappas.std == pytest.approx(np.std(kappas.values, ddof=1))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("missing", [0.0, 0.3, 0.7])
def test_alpha_is_that_of_two_others(seed: int, level: str, missing: float) -> None:
    other = pytest.importorskip("krippendorff")
    ratings = random_ratings(seed, missing=missing)
    value = krippendorff_alpha(ratings, level)
    assert value == pytest.approx(other.alpha(reliability_data=ratings, level_of_measurement=level), abs=1e-12)
    assert value == pytest.approx(alpha_by_definition(ratings, level), abs=1e-12)
    assert krippendorff_alpha(ratings, level, (-1.0, *SCALE, 2.0)) == pytest.approx(value, abs=1e-12)


def test_uneven_categories_count_by_value_or_by_step() -> None:
    ratings = random_ratings(1)
    stretched = np.where(ratings == 1.0, 9.0, ratings)
    assert krippendorff_alpha(stretched, "interval") == pytest.approx(alpha_by_definition(stretched, "interval"))
    assert krippendorff_alpha(stretched, "interval") != pytest.approx(krippendorff_alpha(ratings, "interval"))
    assert krippendorff_alpha(stretched, "ordinal") == pytest.approx(krippendorff_alpha(ratings, "ordinal"))
    assert pair_kappas(stretched, weights="linear") == pair_kappas(ratings, weights="linear")


def test_an_unused_category_moves_weighted_kappa() -> None:
    """Two categories at the ends of a scale of three are two steps apart, all disagreements alike: no change; with an
    uneven choice of three out of four there is one."""
    first, second = [0, 1, 3, 3, 0, 1], [0, 3, 3, 1, 1, 1]
    assert cohen_kappa(first, second, weights="linear") != cohen_kappa(first, second, (0, 1, 2, 3), "linear")
    assert cohen_kappa(first, second, (0, 1, 2, 3), "linear") == pytest.approx(
        cohen_kappa_score(first, second, labels=[0, 1, 2, 3], weights="linear")
    )


def test_undefined_is_none() -> None:
    nan = np.nan
    assert cohen_kappa([1, 1, 1], [1, 1, 1]) is None
    assert cohen_kappa([1, nan], [nan, 1]) is None
    assert cohen_kappa([], []) is None
    assert cohen_kappa([1, 1, 1], [0, 0, 0]) == 0
    assert krippendorff_alpha([[1, 1], [1, 1]]) is None
    assert krippendorff_alpha([[1, nan], [nan, 0]]) is None
    assert krippendorff_alpha(np.zeros((0, 4))) is None


def test_constant_raters_are_left_out_and_counted() -> None:
    ratings = np.vstack([random_ratings(2, raters=3, missing=0), np.ones((2, 24))])
    kappas = pair_kappas(ratings, SCALE)
    assert kappas.undefined == 1
    assert kappas.values[kappas.pairs.index((3, 4))] is None
    assert len(kappas.defined) == 9
    assert kappas.mean == pytest.approx(np.mean(kappas.defined))
    assert kappas.of_rater(3) == pytest.approx(np.mean([kappas.values[kappas.pairs.index((i, 3))] for i in range(3)]))
    alone = pair_kappas(np.ones((2, 5)), SCALE)
    assert (alone.mean, alone.std, alone.undefined) == (None, None, 1)


@pytest.mark.parametrize("weights", WEIGHTS)
def test_intervals_are_those_of_ratings_copied_by_hand(weights: str) -> None:
    ratings = random_ratings(4, raters=4, units=18, missing=0.1)
    clusters = np.repeat(np.arange(6), 3)
    result = agreement(
        ratings, clusters, categories=SCALE, weights=weights, levels=LEVELS, n_boot=60, seed=3, level=0.9
    )
    kappas, alphas = [], {level: [] for level in LEVELS}
    for row in cluster_draws(6, 60, 3):
        columns = [
            u for cluster, times in enumerate(row) for u in np.flatnonzero(clusters == cluster).tolist() * int(times)
        ]
        kappas.append(pair_kappas(ratings[:, columns], SCALE, weights).mean)
        for level in LEVELS:
            alphas[level].append(krippendorff_alpha(ratings[:, columns], level, SCALE))
    assert result.kappa_interval == pytest.approx(np.quantile(kappas, [0.05, 0.95]).tolist())
    for level in LEVELS:
        assert result.alpha[level] == pytest.approx(krippendorff_alpha(ratings, level, SCALE))
        assert result.alpha_interval[level] == pytest.approx(np.quantile(alphas[level], [0.05, 0.95]).tolist())
    assert result.ratings + result.missing == ratings.size
    assert result.missing == np.isnan(ratings).sum()


def test_intervals_need_clusters_and_defined_resamples() -> None:
    ratings = random_ratings(5)
    single = agreement(ratings, np.zeros(24), n_boot=50)
    assert single.kappa_interval is None
    assert single.alpha_interval == {"ordinal": None, "nominal": None}
    assert single.kappas.mean is not None
    assert percentile_interval(np.array([0.0] * 89 + [np.nan] * 11)) is None
    assert percentile_interval(np.array([0.0] * 90 + [np.nan] * 10)) == [0.0, 0.0]
    assert percentile_interval(np.array([])) is None


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match=r"among \[0.0, 0.5, 1.0\] but got \[2.0\]"):
        pair_kappas([[0, 2], [0, 1]], SCALE)
    with pytest.raises(ValueError, match="weights"):
        cohen_kappa([0, 1], [0, 1], weights="cubic")
    with pytest.raises(ValueError, match="level"):
        krippendorff_alpha([[0, 1], [0, 1]], "ratio")
    with pytest.raises(ValueError, match="ascending"):
        krippendorff_alpha([[0, 1], [0, 1]], categories=(1, 0))
    with pytest.raises(ValueError, match="clusters"):
        agreement([[0, 1], [0, 1]], [1, 2, 3])
    with pytest.raises(ValueError, match="n_raters"):
        krippendorff_alpha([0, 1])
