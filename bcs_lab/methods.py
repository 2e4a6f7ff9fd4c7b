"""Which decoder is better, and is that more than noise? Means by method and paired differences, over concepts.

Pairs of one concept share a reference image, so what is drawn again is the concept, not the pair. Two methods are
compared on the concepts both have reconstructed, where each concept counts once, whatever the number of its pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bcs_lab.evaluate import holm
from bcs_lab.regimes import REGIMES

Floats = NDArray[np.float64]

AXES = ("t_pas", "t_sas")
RESAMPLES = 2000
#: With fewer shared concepts no flip of signs can be rarer than 5 in 100: nothing is tested, and Holm counts no test.
FEWEST = 6
#: An unknown value in a manifest.
UNKNOWN = "na"


def method_table(
    scores: pd.DataFrame, *, resamples: int = RESAMPLES, seed: int = 0, level: float = 0.95
) -> list[dict[str, Any]]:
    """Mean T-PAS and T-SAS of each method, with intervals, and the shares of its regimes.

    Args:
        scores: one row a pair: ``method``, ``t_pas``, ``t_sas``, ``regime`` and what :func:`clusters` needs.
        resamples: of whole concepts, with replacement.
        seed: of the resampling.
        level: of the intervals.

    Returns:
        One mapping a method, in order of name: ``method, pairs, concepts``, per axis the mean over pairs and ``_lo``
        and ``_hi`` (``None`` below two concepts), and the share of each regime. ``None`` as well where the model's
        protocol has no question on an axis. Empty when no method is named.
    """
    labels = clusters(scores)
    rows = []
    for method in _methods(scores):
        here = (scores["method"] == method).to_numpy()
        part, cluster = scores[here], labels[here]
        row: dict[str, Any] = {"method": method, "pairs": int(here.sum()), "concepts": len(set(cluster.tolist()))}
        for axis in AXES:
            values = part[axis].to_numpy(dtype=np.float64)
            undefined = bool(np.isnan(values).any())
            low, high = (None, None) if undefined else _mean_interval(values, cluster, resamples, seed, level)
            row |= {axis: None if undefined else float(values.mean()), f"{axis}_lo": low, f"{axis}_hi": high}
        rows.append(row | regime_shares(part["regime"]))
    return rows


def regime_shares(regimes: pd.Series) -> dict[str, float | None]:
    """Share of each regime among pairs, ``None`` where no pair has one."""
    known = regimes.isin(list(REGIMES)).any()
    return {code: float((regimes == code).mean()) if known else None for code in REGIMES}


def method_differences(
    scores: pd.DataFrame, *, resamples: int = RESAMPLES, seed: int = 0, level: float = 0.95
) -> list[dict[str, Any]]:
    """Every two methods on the concepts both have: the mean difference, its interval, and a test of no difference.

    The test flips the signs of the concepts' differences at random; its p-values are Holm's, over all pairs of methods
    of an axis.

    Args:
        scores: as in :func:`method_table`.
        resamples: of concepts, and of sign flips.
        seed: of both.
        level: of the intervals.

    Returns:
        One mapping a pair of methods: ``first, second, concepts``, per axis the mean of first minus second over shared
        concepts, ``_lo``, ``_hi`` and ``_p``. Without a shared concept all are ``None``, with one only the difference
        is known, and below :data:`FEWEST` there is no test. All are ``None`` on an axis without questions.
    """
    labels = clusters(scores)
    per_concept = {
        method: scores[here].groupby(labels[here], sort=True)[list(AXES)].mean()
        for method in _methods(scores)
        if (here := (scores["method"] == method).to_numpy()).any()
    }
    rows: list[dict[str, Any]] = []
    for first, second in combinations(per_concept, 2):
        a, b = per_concept[first], per_concept[second]
        shared = a.index.intersection(b.index)
        gap = (a.loc[shared] - b.loc[shared]).to_numpy(dtype=np.float64)
        row: dict[str, Any] = {"first": first, "second": second, "concepts": len(shared)}
        for column, axis in enumerate(AXES):
            row |= dict(
                zip(
                    (axis, f"{axis}_lo", f"{axis}_hi", f"{axis}_p"),
                    _paired(gap[:, column], resamples, seed, level),
                    strict=True,
                )
            )
        rows.append(row)
    for axis in AXES:
        _holm(rows, f"{axis}_p")
    return rows


def clusters(scores: pd.DataFrame) -> NDArray[np.object_]:
    """What is drawn again: the concept of each pair, or its reference image where no concept is known. object [n]."""
    from bcs_lab.split import concept_key

    reference = scores["reference"].astype(str)
    if "concept" not in scores:
        return reference.to_numpy(dtype=object)
    concept = scores["concept"].astype(str)
    known = ~concept.isin(["", UNKNOWN, "nan"])
    return np.where(known, "concept " + concept.map(concept_key).astype(str), "reference " + reference).astype(object)


def verdict(row: Mapping[str, Any], axis: str, alpha: float = 0.05) -> str:
    """One word or two on a difference: which method is better, or that the data do not say."""
    p = row[f"{axis}_p"]
    if p is None:
        return "undefined" if row["concepts"] and row[axis] is None else "too few concepts"
    if p >= alpha:
        return "not told apart"
    return f"{row['first'] if row[axis] > 0 else row['second']} better"


def _methods(scores: pd.DataFrame) -> list[str]:
    if "method" not in scores:
        return []
    names = scores["method"].astype(str)
    return sorted(set(names[~names.isin(["", UNKNOWN])]))


def _mean_interval(
    values: Floats, cluster: NDArray[Any], resamples: int, seed: int, level: float
) -> tuple[float | None, float | None]:
    _, of = np.unique(cluster.astype(str), return_inverse=True)
    n = int(of.max()) + 1 if len(of) else 0
    if n < 2:
        return None, None
    total, count = np.bincount(of, weights=values, minlength=n), np.bincount(of, minlength=n)
    drawn = np.random.default_rng(seed).integers(n, size=(resamples, n))
    return _percentiles(total[drawn].sum(axis=1) / count[drawn].sum(axis=1), level)


def _paired(
    gap: Floats, resamples: int, seed: int, level: float
) -> tuple[float | None, float | None, float | None, float | None]:
    if not len(gap) or np.isnan(gap).any():
        return None, None, None, None
    mean = float(gap.mean())
    if len(gap) < 2:
        return mean, None, None, None
    generator = np.random.default_rng(seed)
    low, high = _percentiles(gap[generator.integers(len(gap), size=(resamples, len(gap)))].mean(axis=1), level)
    if len(gap) < FEWEST:
        return mean, low, high, None
    flipped = np.abs((generator.choice([-1.0, 1.0], size=(resamples, len(gap))) * gap).mean(axis=1))
    # the observed signs are one of the possible flips
    p = (1 + int((flipped >= abs(mean) - 1e-12).sum())) / (1 + resamples)
    return mean, low, high, p


def _percentiles(values: Floats, level: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _holm(rows: list[dict[str, Any]], key: str) -> None:
    """Replace p-values by Holm's, which hold for all comparisons together."""
    for row, p in zip(rows, holm([row[key] for row in rows]), strict=True):
        row[key] = p
