"""Fleiss' kappa against statsmodels and exact fractions, missing answers, and intervals of counts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import aggregate_raters
from statsmodels.stats.inter_rater import fleiss_kappa as statsmodels_fleiss

from bcs_lab.agreement import (
    UNITS,
    cluster_draws,
    cohen_kappa,
    estimate,
    fleiss_counts,
    fleiss_kappa,
    fleiss_shares,
    krippendorff_alpha,
)

LEVELS = {"no": 0.0, "somewhat": 0.5, "yes": 1.0, None: np.nan}
SCALE = (0.0, 0.5, 1.0)

#: Six items, four teachers; two answers are missing.
GAPS = [
    ["yes", "yes", "yes", "somewhat"],
    ["no", "no", "somewhat", "no"],
    ["somewhat", "somewhat", "yes", None],
    ["yes", "somewhat", "yes", "yes"],
    ["no", "no", "no", "no"],
    ["somewhat", None, "somewhat", "no"],
]


def given(items: list[list[str | None]]) -> NDArray[np.float64]:
    """[n_raters, n_items]."""
    return np.array([[LEVELS[answer] for answer in item] for item in items]).T


def random_answers(seed: int, raters: int = 4, items: int = 200, missing: float = 0.0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, items)
    answers = np.clip(truth + rng.integers(-1, 2, (raters, items)) * (rng.random((raters, items)) < 0.6), 0, 2) / 2
    answers[rng.random((raters, items)) < missing] = np.nan
    return answers


@pytest.mark.parametrize("raters", [2, 3, 4, 7])
@pytest.mark.parametrize("seed", range(3))
def test_complete_ratings_are_those_of_statsmodels(seed: int, raters: int) -> None:
    answers = random_answers(seed, raters)
    table, _ = aggregate_raters((2 * answers).astype(int).T)
    found = fleiss_kappa(answers, SCALE)
    assert found.kappa == pytest.approx(statsmodels_fleiss(table), abs=1e-12)
    assert found.kappa == fleiss_kappa(answers, SCALE, "any").kappa
    assert found.unanimous == pytest.approx((answers == answers[0]).all(axis=0).mean())
    assert (found.used, found.dropped) == (200, 0)


@pytest.mark.parametrize("seed", range(3))
def test_incomplete_items_are_dropped_or_counted_by_their_own_number(seed: int) -> None:
    answers = random_answers(seed, missing=0.2)
    complete = ~np.isnan(answers).any(axis=0)
    table, _ = aggregate_raters((2 * answers[:, complete]).astype(int).T)
    found = fleiss_kappa(answers, SCALE)
    assert found.kappa == pytest.approx(statsmodels_fleiss(table), abs=1e-12)
    assert (found.used, found.dropped) == (complete.sum(), (~complete).sum())

    agreeing, totals = [], np.zeros(3)
    for item in answers.T:
        counts = np.array([(item == value).sum() for value in SCALE])
        n = counts.sum()
        if n >= 2:
            agreeing.append(((counts**2).sum() - n) / (n * (n - 1)))
            totals += counts
    chance = ((totals / totals.sum()) ** 2).sum()
    loose = fleiss_kappa(answers, SCALE, "any")
    assert loose.kappa == pytest.approx((np.mean(agreeing) - chance) / (1 - chance), abs=1e-12)
    assert loose.used == len(agreeing)


def test_case_s04() -> None:
    """A gap is neither a no nor a category of its own."""
    answers = given(GAPS)
    complete, loose = fleiss_kappa(answers, SCALE), fleiss_kappa(answers, SCALE, "any")
    assert complete.kappa == pytest.approx(float(Fraction(11, 27)), abs=1e-12)
    assert (complete.used, complete.dropped) == (4, 2)
    assert loose.kappa == pytest.approx(float(Fraction(841, 2898)), abs=1e-12)
    assert (loose.used, loose.dropped) == (6, 0)
    expected = {"nominal": Fraction(8, 23), "ordinal": Fraction(377, 550), "interval": Fraction(32, 47)}
    for level, value in expected.items():
        assert krippendorff_alpha(answers, level, SCALE) == pytest.approx(float(value), abs=1e-12)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            "no no somewhat yes yes yes no somewhat yes no somewhat yes",
            "no somewhat somewhat yes somewhat yes no no yes no yes yes",
            {"none": Fraction(23, 47), "linear": Fraction(43, 67), "quadratic": Fraction(83, 107)},
        ),
        (  # the first never says somewhat
            "no no yes yes no yes yes no no yes",
            "no somewhat yes yes no somewhat yes somewhat no yes",
            {"none": Fraction(7, 13), "linear": Fraction(7, 10), "quadratic": Fraction(14, 17)},
        ),
    ],
)
def test_case_s05(first: str, second: str, expected: dict[str, Fraction]) -> None:
    """The scale is no < somewhat < yes, whatever comes first and whoever uses all of it."""
    a, b = ([LEVELS[word] for word in text.split()] for text in (first, second))
    for weights, value in expected.items():
        assert cohen_kappa(a, b, SCALE, weights) == pytest.approx(float(value), abs=1e-12)
        codes = [(2 * np.array(side)).astype(int) for side in (a, b)]
        other = cohen_kappa_score(*codes, labels=[0, 1, 2], weights=None if weights == "none" else weights)
        assert cohen_kappa(a, b, SCALE, weights) == pytest.approx(other, abs=1e-12)


def test_undefined_is_none() -> None:
    same = fleiss_kappa(np.ones((3, 5)), SCALE)
    assert (same.kappa, same.unanimous, same.chance) == (None, 1.0, 1.0)
    thirds = fleiss_kappa(np.full((3, 7), 1 / 3), (0, 1 / 3, 2 / 3))
    assert thirds.kappa is None
    for empty in (np.zeros((4, 0)), np.full((4, 3), np.nan), np.zeros((0, 3)), np.array([[0.0, 1.0]])):
        found = fleiss_kappa(empty)
        assert (found.kappa, found.unanimous, found.observed, found.chance, found.used) == (None, None, None, None, 0)
        assert found.dropped == empty.shape[1]
    with pytest.raises(ValueError, match="units"):
        fleiss_kappa([[0, 1], [0, 1]], units="most")


@pytest.mark.parametrize("units", UNITS)
def test_intervals_are_those_of_items_copied_by_hand(units: str) -> None:
    answers = random_answers(1, items=40, missing=0.15)
    clusters = np.arange(40) // 5
    times = cluster_draws(8, 50, 3)
    codes = np.where(np.isnan(answers), -1, 2 * np.nan_to_num(answers)).astype(int)
    counts = fleiss_counts(codes, 3, clusters, 8, units)
    values, intervals = estimate(counts, times, fleiss_shares, level=0.9)
    drawn = []
    for row in times:
        columns = np.concatenate([np.flatnonzero(clusters == c).repeat(int(n)) for c, n in enumerate(row)])
        found = fleiss_kappa(answers[:, columns], SCALE, units)
        drawn.append([found.unanimous, found.observed, found.chance, found.kappa])
    whole = fleiss_kappa(answers, SCALE, units)
    assert values == pytest.approx([whole.unanimous, whole.observed, whole.chance, whole.kappa])
    for at, interval in enumerate(intervals):
        assert interval == pytest.approx(np.quantile(np.array(drawn)[:, at], [0.05, 0.95]).tolist())


def test_an_interval_needs_clusters_and_a_value() -> None:
    counts = fleiss_counts(np.array([[0, 1], [0, 2]]), 3, np.zeros(2, dtype=int), 1)
    values, intervals = estimate(counts, cluster_draws(1, 50, 0), fleiss_shares)
    assert values[0] == 0.5
    assert intervals == [None] * 4
    nothing = fleiss_counts(np.full((2, 6), -1), 3, np.arange(6), 6)
    assert estimate(nothing, cluster_draws(6, 50, 0), fleiss_shares) == ([None] * 4, [None] * 4)
