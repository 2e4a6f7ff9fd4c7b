"""Means by method and paired differences, against direct computations."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import permutation_test

from bcs_lab.methods import clusters, method_differences, method_table, verdict


def table(n_concepts: int = 30, gap: float = 0.1, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    rows = []
    for concept in range(n_concepts):
        hard = generator.random()
        for method, shift in (("A", gap), ("B", 0.0), ("C", 0.0)):
            if method == "C" and concept % 3:
                continue
            for _ in range(generator.integers(1, 4)):
                value = np.clip(0.3 * hard + 0.3 + shift + generator.normal(0, 0.05), 0, 1)
                rows.append({"method": method, "concept": f"c{concept}", "reference": "r", "t_pas": value,
                             "t_sas": generator.random(), "regime": "hl" if value > 0.5 else "ll"})  # fmt: skip
    return pd.DataFrame(rows)


def test_table_of_methods() -> None:
    scores = table()
    rows = {row["method"]: row for row in method_table(scores)}
    assert list(rows) == ["A", "B", "C"]
    for name, row in rows.items():
        part = scores[scores["method"] == name]
        assert row["pairs"] == len(part)
        assert row["concepts"] == part["concept"].nunique()
        assert row["t_pas"] == pytest.approx(part["t_pas"].mean())
        assert row["t_pas_lo"] < row["t_pas"] < row["t_pas_hi"]
        assert row["hl"] == pytest.approx((part["regime"] == "hl").mean())
    # the linearised standard error of a ratio of cluster totals
    groups = scores[scores["method"] == "B"].groupby("concept")["t_pas"]
    rest = groups.sum() - rows["B"]["t_pas"] * groups.count()
    error = np.sqrt((rest**2).sum()) / groups.count().sum()
    assert rows["B"]["t_pas_hi"] - rows["B"]["t_pas_lo"] == pytest.approx(2 * 1.96 * error, rel=0.1)


def test_differences_are_paired_by_concept() -> None:
    scores = table()
    rows = {(row["first"], row["second"]): row for row in method_differences(scores)}
    assert list(rows) == [("A", "B"), ("A", "C"), ("B", "C")]
    means = scores.groupby(["method", "concept"])["t_pas"].mean()
    gap = means["A"] - means["B"]
    row = rows["A", "B"]
    assert row["concepts"] == 30
    assert row["t_pas"] == pytest.approx(gap.mean())
    assert row["t_pas_lo"] < 0.1 < row["t_pas_hi"]
    assert verdict(row, "t_pas") == "A better"
    assert verdict(row, "t_sas") == "not told apart"
    assert rows["B", "C"]["concepts"] == 10
    # pairing removes the concepts' own difficulty: narrower than the two methods' intervals suggest
    alone = {entry["method"]: entry["t_pas_hi"] - entry["t_pas_lo"] for entry in method_table(scores)}
    assert row["t_pas_hi"] - row["t_pas_lo"] < 0.7 * alone["B"]


def test_p_values_against_scipy_and_holm() -> None:
    scores = table(n_concepts=12, gap=0.02, seed=1)
    scores = scores[scores["method"] != "C"]
    means = scores.groupby(["method", "concept"])["t_pas"].mean()
    gap = (means["A"] - means["B"]).to_numpy()
    exact = permutation_test((gap,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
    (row,) = method_differences(scores, resamples=20000)
    assert row["t_pas_p"] == pytest.approx(exact, abs=0.015)
    from statsmodels.stats.multitest import multipletests

    many = method_differences(table(n_concepts=20, gap=0.03, seed=2))
    one_by_one = []
    for entry in many:
        part = table(n_concepts=20, gap=0.03, seed=2)
        part = part[part["method"].isin([entry["first"], entry["second"]])]
        one_by_one.append(method_differences(part)[0]["t_pas_p"])
    np.testing.assert_allclose([entry["t_pas_p"] for entry in many], multipletests(one_by_one, method="holm")[1])


def test_no_difference_is_found_no_more_often_than_said() -> None:
    found = 0
    for seed in range(200):
        scores = table(n_concepts=15, gap=0.0, seed=seed)
        (row,) = method_differences(scores[scores["method"] != "C"], resamples=400, seed=seed)
        found += row["t_pas_p"] < 0.05
    assert found < 22  # 10 expected; more than 21 has a chance below 1 in 1,000


def test_edges() -> None:
    scores = table()
    assert method_table(scores.drop(columns="method")) == []
    assert method_table(scores.assign(method="na")) == []
    assert method_differences(scores.assign(method="only")) == []
    apart = pd.concat([scores[(scores["method"] == "A") & (scores["concept"] == "c0")],
                       scores[(scores["method"] == "B") & (scores["concept"] == "c1")]])  # fmt: skip
    (row,) = method_differences(apart)
    assert row["concepts"] == 0
    assert row["t_pas"] is None
    assert verdict(row, "t_pas") == "too few concepts"
    assert [entry["t_pas_lo"] for entry in method_table(apart)] == [None, None]
    assert set(clusters(scores.assign(concept="na"))) == {"reference r"}
    assert set(clusters(scores.drop(columns="concept"))) == {"r"}
