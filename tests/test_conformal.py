"""Split-conformal intervals over concepts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bcs_lab.conformal import Conformal, coverage_report, covered


def plain_quantile(residuals: np.ndarray, coverage: float) -> float:
    """The textbook split-conformal half width: the ceil((n + 1) c)-th smallest residual."""
    rank = math.ceil((len(residuals) + 1) * coverage - 1e-9)
    return float(np.sort(residuals)[rank - 1]) if rank <= len(residuals) else math.inf


@pytest.mark.parametrize("n", [1, 8, 9, 10, 19, 200])
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9, 0.95])
def test_one_pair_a_concept_is_the_textbook_quantile(n: int, coverage: float) -> None:
    residuals = np.random.default_rng(n).random(n)
    conformal = Conformal.fit({"t_pas": residuals}, {"t_pas": np.zeros(n)}, [f"c{i}" for i in range(n)])
    assert conformal.half_width("t_pas", coverage) == pytest.approx(plain_quantile(residuals, coverage))


def test_a_concept_counts_once_whatever_its_size() -> None:
    # ten concepts err by 0.1, one with a thousand pairs by 0.9
    residuals = {"t_pas": [[0.1]] * 10 + [[0.9] * 1000]}
    assert Conformal(residuals).half_width("t_pas", 0.8) == pytest.approx(0.1)
    assert Conformal(residuals).half_width("t_pas", 0.9) == pytest.approx(0.9)


def test_too_few_concepts_give_the_whole_range() -> None:
    conformal = Conformal({"t_pas": [[0.1]] * 8, "t_sas": []})
    assert conformal.half_width("t_pas", 0.9) == math.inf
    low, high = conformal.interval("t_pas", np.array([0.2, np.nan]), 0.9)
    np.testing.assert_array_equal(low, [0.0, np.nan])
    np.testing.assert_array_equal(high, [1.0, np.nan])
    assert conformal.half_width("t_sas", 0.1) == math.inf
    with pytest.raises(ValueError, match="between 0 and 1"):
        conformal.half_width("t_pas", 1.0)


def test_missing_consensus_is_left_out_and_ends_are_cut() -> None:
    conformal = Conformal.fit({"t_pas": [0.2, 0.9, 0.4]}, {"t_pas": [0.1, math.nan, 0.8]}, ["a", "a", "b"])
    assert conformal.residuals == {"t_pas": [pytest.approx([0.1]), pytest.approx([0.4])]}
    low, high = conformal.interval("t_pas", [0.05, 0.5, 0.95], 0.6)
    np.testing.assert_allclose(low, [0.0, 0.1, 0.55])
    np.testing.assert_allclose(high, [0.45, 0.9, 1.0])


def test_new_concepts_are_covered_as_promised() -> None:
    """Errors that differ from concept to concept: the mean coverage over many draws reaches the level, hardly more."""
    generator = np.random.default_rng(0)
    shares = []
    for _ in range(300):
        scale = generator.gamma(2.0, 0.05, size=60)
        residuals = [np.abs(generator.normal(0, s, size=generator.integers(1, 12))).tolist() for s in scale]
        conformal = Conformal({"t_pas": residuals[:40]})
        half = conformal.half_width("t_pas", 0.8)
        shares.append(np.mean([np.mean(np.array(group) <= half) for group in residuals[40:]]))
    assert 0.79 < np.mean(shares) < 0.84


def test_coverage_report_against_counting() -> None:
    generator = np.random.default_rng(3)
    concepts = generator.integers(0, 12, size=80).astype(str)
    target = {axis: np.where(generator.random(80) < 0.1, np.nan, generator.random(80)) for axis in ("t_pas", "t_sas")}
    scores = {
        axis: np.clip(np.nan_to_num(values) + generator.normal(0, 0.2, 80), 0, 1) for axis, values in target.items()
    }
    conformal = Conformal.fit(scores, target, concepts)
    report = coverage_report(conformal, scores, target, concepts, coverage=0.7)
    for axis in target:
        half, known = conformal.half_width(axis, 0.7), ~np.isnan(target[axis])
        within = np.abs(scores[axis] - target[axis]) <= half + 1e-9
        by_concept = [within[known & (concepts == name)].mean() for name in set(concepts[known])]
        assert report["axes"][axis]["held_out_concepts"] == pytest.approx(np.mean(by_concept))
        assert report["axes"][axis]["held_out_pairs"] == pytest.approx(within[known].mean())
        assert report["axes"][axis]["test_pairs"] == known.sum()
    curve = [row["t_pas"] for row in report["curve"]]
    assert curve == sorted(curve)
    assert covered([], [], [], []) == (None, None)
