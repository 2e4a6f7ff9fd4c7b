"""Correlations of metrics with scores, against scipy, over all pairs and within methods."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bcs_lab.agreement import cluster_draws
from bcs_lab.audit.consensus_scores import consensus_scores
from bcs_lab.audit.correlations import Correlation, WithinMethods, correlation, pooling, within_methods
from bcs_lab.teachers.protocol import BCS12

NONE = np.zeros((0, 1))


def test_against_scipy_with_gaps_and_ties() -> None:
    generator = np.random.default_rng(3)
    quality = generator.normal(size=60).round(1)
    score = np.clip(quality + generator.normal(size=60), -1, 1).round(1)
    quality[::7], score[3] = np.nan, np.nan
    both = ~np.isnan(quality) & ~np.isnan(score)
    cluster = np.arange(60) // 3
    found = correlation(quality, score, cluster, cluster_draws(20, 400, 0))
    assert found.n == both.sum()
    assert found.rho == pytest.approx(stats.spearmanr(quality[both], score[both])[0])
    assert found.r == pytest.approx(stats.pearsonr(quality[both], score[both])[0])
    assert found.rho_interval[0] < found.rho < found.rho_interval[1]


def test_intervals_are_those_of_resampled_pairs() -> None:
    generator = np.random.default_rng(5)
    x, y, cluster = generator.normal(size=30), generator.normal(size=30), np.arange(30) // 3
    times = cluster_draws(10, 200, 1)
    found = correlation(x, y, cluster, times)
    drawn = []
    for row in times:
        rows = np.repeat(np.arange(30), row[cluster].astype(int))
        drawn.append(stats.spearmanr(x[rows], y[rows])[0])
    assert found.rho_interval == pytest.approx(np.quantile(drawn, [0.025, 0.975]).tolist())


@pytest.mark.parametrize(
    ("quality", "score", "why"),
    [
        ([1, 2], [1, 2], "2 pairs have both, 3 are needed"),
        ([1, 1, 1, 1], [1, 2, 3, 4], "the metric is the same throughout"),
        ([1, 2, 3, 4], [0.5] * 4, "the score is the same throughout"),
        ([np.nan] * 4, [1, 2, 3, 4], "0 pairs have both, 3 are needed"),
        ([0.1 + 0.2, 0.3, 0.3, 0.3], [0, 0.5, 1, 0.5], "the metric is the same throughout"),
    ],
)
def test_undefined_with_its_reason(quality: list[float], score: list[float], why: str) -> None:
    found = correlation(np.array(quality, float), np.array(score, float), np.arange(len(score)), NONE)
    assert (found.rho, found.r, found.rho_interval, found.reason) == (None, None, None, why)


def test_identical_pictures_keep_their_rank() -> None:
    psnr = np.array([10.0, 12, 15, 20, np.inf, np.inf])
    score = np.array([0.0, 0.2, 0.1, 0.5, 1.0, 0.9])
    found = correlation(psnr, score, np.arange(6), cluster_draws(6, 200, 0))
    assert found.n == 6
    assert found.rho == pytest.approx(stats.spearmanr([1, 2, 3, 4, 5.5, 5.5], score)[0])
    assert found.r == pytest.approx(stats.pearsonr(psnr[:4], score[:4])[0])
    assert np.isfinite(found.rho_interval).all()


def test_within_methods_and_both_means() -> None:
    generator = np.random.default_rng(7)
    methods = np.array(["a"] * 40 + ["b"] * 10 + ["c"] * 5 + ["d"] * 2 + [""] * 3)
    quality, score = generator.normal(size=60), generator.normal(size=60)
    score[50:55] = 0.5  # c says nothing, d is too small, the last have no method
    cluster = np.arange(60)
    found = within_methods(quality, score, methods, cluster, cluster_draws(60, 200, 0))
    a = stats.spearmanr(quality[:40], score[:40])[0]
    b = stats.spearmanr(quality[40:50], score[40:50])[0]
    assert list(found.methods) == ["a", "b", "c", "d"]
    assert found.methods["c"].reason == "the score is the same throughout"
    assert found.methods["d"].reason == "2 pairs have both, 3 are needed"
    assert (found.defined, found.n) == (2, 50)
    assert found.rho == pytest.approx((40 * a + 10 * b) / 50)
    assert found.rho_plain == pytest.approx((a + b) / 2)
    assert found.rho_interval[0] < found.rho < found.rho_interval[1]
    assert within_methods(quality, score, ["a"] * 60, cluster, NONE).reason == "one method only"
    assert within_methods(quality, score, [""] * 60, cluster, NONE).reason == "no method is named"


def test_pooling_methods_can_make_or_hide_a_correlation() -> None:
    generator = np.random.default_rng(0)
    methods = np.repeat(["good", "bad"], 150)
    level = np.where(methods == "good", 1.0, 0.0)
    cluster = np.tile(np.arange(50), 6)
    times = cluster_draws(50, 300, 0)
    quality, score = level + 0.3 * generator.normal(size=300), level + 0.3 * generator.normal(size=300)
    pooled = correlation(quality, score, cluster, times)
    within = within_methods(quality, score, methods, cluster, times)
    assert pooled.rho > 0.5
    assert abs(within.rho) < 0.2
    assert pooling(pooled, within) == "made"
    shared = generator.normal(size=300)
    quality, score = shared + 1.7 * level, shared - 1.7 * level
    pooled = correlation(quality, score, cluster, times)
    within = within_methods(quality, score, methods, cluster, times)
    assert within.rho > 0.95
    assert pooled.rho < 0.3
    assert pooling(pooled, within) == "hidden"
    same = within_methods(shared, shared, methods, cluster, times)
    assert pooling(correlation(shared, shared, cluster, times), same) == ""
    assert pooling(Correlation(0, None, None), WithinMethods()) == ""


def test_both_definitions_of_the_consensus_by_hand() -> None:
    nan = np.nan
    answers = np.full((2, 3, 12), nan)
    answers[0, 0, :6], answers[0, 1, :6], answers[0, 2, :6] = [1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1]
    answers[1, 0, :6] = [1, 0.5, nan, nan, nan, nan]  # fewer than half: no score of this teacher
    answers[1, 1, :6] = [1, 1, 1, 0, nan, nan]
    answers[1, 2, :6] = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    teachers = consensus_scores(answers, BCS12, "teachers")
    assert teachers["t_pas"] == pytest.approx([1 / 3, np.median([0.75, 0.5])])
    questions = consensus_scores(answers, BCS12, "questions")
    medians = [1, 0.5, 0.75, 0.25, 0.5, 0.5]
    assert questions["t_pas"] == pytest.approx([0.0, np.mean(medians)])
    assert np.isnan(teachers["t_sas"]).all()
    assert np.isnan(questions["t_sas"]).all()
    with pytest.raises(ValueError, match="teachers, questions"):
        consensus_scores(answers, BCS12, "mean")
