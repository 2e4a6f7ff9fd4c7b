"""Harshness and blind spots: equations 3 and 4 by hand and by pandas, the threshold variant, ties, empty sets."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bcs_lab.audit.failure_rates import quartile_rates, threshold_rates

TIED = [0.2, 0.2, 0.2, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6]
RIGHT = [1, 0.25, 0.75, 0, 0.5, 1, 0.25, 0, 1, 0.25, 0.5, 0.75]
LOWER_BETTER = [0.1, 0.15, 0.22, 0.3, 0.35, 0.41, 0.55, 0.6]


def by_pandas(quality: pd.Series, score: pd.Series, high: float, low: float) -> tuple[float, float]:
    both = quality.notna() & score.notna()
    q, c = quality[both], score[both]
    right, top = c >= high, q >= q.quantile(0.75)
    return (q < q.quantile(0.25))[right].mean(), (c < low)[top].mean()


def test_ties_at_the_cuts() -> None:
    found = threshold_rates(TIED, RIGHT)
    assert (found.low_cut, found.high_cut) == (0.2, 0.6)
    assert (found.right, found.harsh, found.harshness) == (7, 0, 0.0)
    assert (found.top, found.blind, found.blind_spot) == (5, 2, 0.4)
    assert found.notes[0] == "4 of 12 tie at the lower quartile of the metric: the lower set is empty"
    assert found.harsh_chance == 0.0


def test_a_metric_that_is_better_when_lower_is_negated_first() -> None:
    score = [1, 0.25, 0.75, 0.5, 0, 0.5, 0.75, 1.0]
    found = threshold_rates(-np.array(LOWER_BETTER), score)
    assert (found.low_cut, found.high_cut) == pytest.approx((-0.445, -0.2025))
    assert (found.harsh, found.right, found.top, found.blind_spot) == (2, 6, 2, 0.5)
    assert found.harshness == pytest.approx(1 / 3)
    wrong_way = threshold_rates(LOWER_BETTER, score)
    assert (wrong_way.harshness, wrong_way.blind_spot) == (pytest.approx(1 / 6), 0.0)


def test_a_constant_metric_is_said_to_be_one() -> None:
    found = threshold_rates(np.full(8, 0.3), [1, 0] * 4)
    assert (found.harshness, found.blind_spot) == (0.0, 0.5)
    assert found.notes == ("the metric is the same throughout: its quartiles mean nothing",)


def test_no_right_pair_leaves_harshness_undefined() -> None:
    found = threshold_rates([0.1, 0.2, 0.3, 0.4], [0, 0, 0.25, 0])
    assert found.harshness is None
    assert (found.top, found.blind_spot) == (1, 1.0)
    assert found.reason == "no pair is right by the score"
    nothing = quartile_rates([np.nan, 1.0], [0.5, np.nan])
    assert (nothing.n, nothing.harshness, nothing.blind_spot) == (0, None, None)
    assert "no pair has both" in nothing.reason


def test_equations_3_and_4_by_hand() -> None:
    # Quartiles of 1..8 are 2.75 and 6.25: two below the one, two at or above the other.
    caption = np.arange(1.0, 9.0)
    metric = np.array([7, 8, 5, 6, 4, 3, 1, 2], dtype=float)  # the pairs with the best captions come last
    found = quartile_rates(metric, caption)
    assert (found.right, found.harsh, found.harshness) == (2, 2, 1.0)
    assert (found.top, found.blind, found.blind_spot) == (2, 2, 1.0)
    assert quartile_rates(caption, caption).harshness == quartile_rates(caption, caption).blind_spot == 0.0


@pytest.mark.parametrize("seed", range(8))
def test_both_variants_agree_with_pandas(seed: int) -> None:
    generator = np.random.default_rng(seed)
    n = 97
    score = generator.integers(0, 13, n) / 12
    quality = score + generator.normal(0, 0.6, n)
    if seed % 2:
        quality = quality.round(1)  # ties
    quality[generator.uniform(size=n) < 0.1] = np.nan
    score[generator.uniform(size=n) < 0.05] = np.nan
    q, c = pd.Series(quality), pd.Series(score)
    own = c[q.notna() & c.notna()]
    found = quartile_rates(quality, score)
    expected = by_pandas(q, c, own.quantile(0.75), own.quantile(0.25))
    assert (found.harshness, found.blind_spot) == pytest.approx(expected)
    found = threshold_rates(quality, score)
    assert (found.harshness, found.blind_spot) == pytest.approx(by_pandas(q, c, 0.5, 0.5))
    assert found.n == len(own)


def test_an_infinite_value_is_the_best_of_all() -> None:
    psnr = [20.0, 21, 22, 23, 24, 25, 26, np.inf]
    found = threshold_rates(psnr, [1, 1, 1, 1, 0, 0, 0, 0])
    assert (found.top, found.blind_spot, found.harshness) == (2, 1.0, 0.5)
    assert np.isfinite(found.high_cut)


def test_intervals_draw_whole_clusters() -> None:
    generator = np.random.default_rng(0)
    n, clusters = 400, 40
    cluster = np.arange(n) % clusters
    score = generator.uniform(size=n)
    quality = generator.uniform(size=n)
    times = generator.multinomial(clusters, np.full(clusters, 1 / clusters), size=500).astype(float)
    found = threshold_rates(quality, score, cluster, times)
    low, high = found.harsh_interval
    assert low < found.harshness < high
    assert high - low < 0.25
    # by hand, cuts fixed
    right = score >= 0.5
    below = quality < np.quantile(quality, 0.25)
    drawn = [(row[cluster] * (right & below)).sum() / (row[cluster] * right).sum() for row in times]
    assert [low, high] == pytest.approx(np.quantile(drawn, [0.025, 0.975]))
    assert threshold_rates(quality, score, np.zeros(n, dtype=int), times[:, :1]).harsh_interval is None


def test_scores_that_mostly_tie_are_noted() -> None:
    score = np.array([0.0] * 80 + [1.0] * 20)
    found = quartile_rates(np.random.default_rng(1).uniform(size=100), score)
    assert found.blind == 0
    assert any("lower quartile of the score" in note and "is empty" in note for note in found.notes)
