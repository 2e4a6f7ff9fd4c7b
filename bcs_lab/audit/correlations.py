"""How far a metric goes with a score: over all pairs, and within each method (Table 12).

Methods differ in how good they are, and a metric that only tells the methods apart correlates with any score that does
the same. So every correlation over all pairs stands beside those within the methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bcs_lab.evaluate import pearson, percentile_interval, resampled, spearman

#: Two pairs always lie on a line.
MIN_PAIRS = 3

#: A correlation over all pairs that differs from the one within methods by less is no other reading.
NOTABLE = 0.1

Floats = NDArray[np.float64]
Interval = list[float] | None


def without_infinity(values: Floats) -> Floats:
    """Infinite values, such as the PSNR of identical pictures, placed just beyond the finite ones.

    Ranks and quantiles then see them where they belong; NaN stays.

    >>> without_infinity(np.array([20.0, np.inf, 30.0, np.nan])).tolist()
    [20.0, 40.0, 30.0, nan]
    """
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 0.0)
    step = (high - low) or 1.0
    return np.where(values == np.inf, high + step, np.where(values == -np.inf, low - step, values))


@dataclass(frozen=True)
class Correlation:
    """Rank and linear correlation of a metric with a score.

    Attributes:
        n: pairs that have both.
        rho: Spearman's, ``None`` where undefined.
        r: Pearson's, over the pairs whose metric is finite; likewise.
        rho_interval: 95 %, from drawing whole clusters; ``None`` where undefined.
        r_interval: likewise.
        reason: why the correlations are undefined, or ``""``.
    """

    n: int
    rho: float | None
    r: float | None
    rho_interval: Interval = None
    r_interval: Interval = None
    reason: str = ""


@dataclass(frozen=True)
class WithinMethods:
    """Correlations within each method, and their means.

    Attributes:
        methods: method -> its correlation.
        rho: mean over the methods that have one, each weighted by its pairs.
        r: likewise.
        rho_interval: 95 %, from drawing whole clusters.
        r_interval: likewise.
        rho_plain: mean in which each method counts once.
        r_plain: likewise.
        defined: how many methods have a correlation.
        n: pairs of those methods.
        reason: why there is no mean, or ``""``.
    """

    methods: dict[str, Correlation] = field(default_factory=dict)
    rho: float | None = None
    r: float | None = None
    rho_interval: Interval = None
    r_interval: Interval = None
    rho_plain: float | None = None
    r_plain: float | None = None
    defined: int = 0
    n: int = 0
    reason: str = ""


def correlation(quality: Floats, score: Floats, cluster: NDArray[np.int64], times: Floats) -> Correlation:
    """Correlation of an oriented metric with a score, over the pairs that have both.

    Args:
        quality: [n], larger is better; NaN where undefined. Infinite values have a rank, but no part in ``r``.
        score: [n], NaN where undefined.
        cluster: [n] position of each pair's cluster (its concept).
        times: [n_boot, n_clusters], how often each cluster is drawn (:func:`bcs_lab.agreement.cluster_draws`).

    Example:
        >>> one = correlation(np.array([1, 2, 3, np.nan]), np.array([0, 0.5, 1, 1]), np.arange(4), np.zeros((0, 4)))
        >>> one.n, one.rho, one.r
        (3, 1.0, 1.0)
        >>> correlation(np.array([1, 2, 3]), np.full(3, 0.5), np.arange(3), np.zeros((0, 3))).reason
        'the score is the same throughout'
    """
    one, drawn = _correlation(quality, score, cluster, times)
    if drawn is None:
        return one
    bounds = {key: percentile_interval(drawn[key]) for key in ("rho", "r")}
    return Correlation(one.n, one.rho, one.r, bounds["rho"], bounds["r"])


def within_methods(
    quality: Floats, score: Floats, methods: Sequence[str], cluster: NDArray[np.int64], times: Floats
) -> WithinMethods:
    """Correlations within each method of two or more.

    Args:
        quality: [n], larger is better; NaN where undefined.
        score: [n], likewise.
        methods: [n] names; ``""`` where unknown, which is no method.
        cluster: as in :func:`correlation`.
        times: likewise.

    Returns:
        Methods in order of name. A method of fewer than :data:`MIN_PAIRS` pairs, or in which metric or score does not
        vary, has no correlation and no part in the means. In a resample the means pass over methods that have none.
    """
    names = np.asarray(methods, dtype=object)
    known = sorted({str(name) for name in names if name})
    if len(known) < 2:
        only = "one method only" if known else "no method is named"
        return WithinMethods(reason=only)
    found: dict[str, Correlation] = {}
    parts: list[tuple[int, dict[str, Floats]]] = []
    for name in known:
        here = names == name
        one, drawn = _correlation(quality[here], score[here], cluster[here], times)
        if drawn is not None:
            parts.append((one.n, drawn))
            one = Correlation(one.n, one.rho, one.r, percentile_interval(drawn["rho"]), percentile_interval(drawn["r"]))
        found[name] = one
    defined = [one for one in found.values() if one.rho is not None]
    if not defined:
        return WithinMethods(found, reason="no method has a correlation of its own")
    weights = np.array([one.n for one in defined], dtype=np.float64)
    values = {key: np.array([getattr(one, key) for one in defined], dtype=np.float64) for key in ("rho", "r")}
    mean = {key: _average(own, weights) for key, own in values.items()}
    bounds = {key: _mean_interval(parts, key) for key in ("rho", "r")}
    return WithinMethods(
        found,
        mean["rho"],
        mean["r"],
        bounds["rho"],
        bounds["r"],
        _average(values["rho"], np.ones(len(defined))),
        _average(values["r"], np.ones(len(defined))),
        len(defined),
        int(weights.sum()),
    )


def pooling(pooled: Correlation, within: WithinMethods) -> str:
    """What the pairs of all methods together say that no method says, or do not say that each does.

    Returns:
        ``"made"`` where the pooled rank correlation is clear of zero and, within methods, at most half of it is left
        (or its sign changes); ``"hidden"`` where the one within methods is clear of zero and the pooled one at most
        half of it; else ``""``. Differences below :data:`NOTABLE` are none.
    """
    if pooled.rho is None or within.rho is None or abs(pooled.rho - within.rho) < NOTABLE:
        return ""
    if _clear(pooled.rho_interval) and np.sign(pooled.rho) * within.rho <= abs(pooled.rho) / 2:
        return "made"
    if _clear(within.rho_interval) and np.sign(within.rho) * pooled.rho <= abs(within.rho) / 2:
        return "hidden"
    return ""


def _clear(bounds: Interval) -> bool:
    """Whether an interval leaves zero out."""
    return bounds is not None and (bounds[0] > 0 or bounds[1] < 0)


def _correlation(
    quality: Floats, score: Floats, cluster: NDArray[np.int64], times: Floats
) -> tuple[Correlation, dict[str, Floats] | None]:
    """The correlation without intervals, and both statistics of every resample where they make sense."""
    both = ~np.isnan(quality) & np.isfinite(score)
    x, y, of = quality[both], score[both], cluster[both]
    if len(x) < MIN_PAIRS:
        return Correlation(len(x), None, None, reason=f"{len(x)} pairs have both, {MIN_PAIRS} are needed"), None
    finite, ranked = np.isfinite(x), without_infinity(x)
    rho = spearman(ranked, y)
    if rho is None:
        still = "the metric" if spearman(ranked, np.arange(len(x))) is None else "the score"
        return Correlation(len(x), None, None, reason=f"{still} is the same throughout"), None
    r = pearson(x[finite], y[finite])
    if not len(times) or len(np.unique(of)) < 2:
        return Correlation(len(x), rho, r), None
    drawn = resampled(ranked, y, of, times)
    if not finite.all():
        drawn["r"] = resampled(x[finite], y[finite], of[finite], times)["r"] if r is not None else drawn["r"] * np.nan
    return Correlation(len(x), rho, r), drawn


def _average(values: Floats, weights: Floats) -> float | None:
    known = ~np.isnan(values)
    return float(np.average(values[known], weights=weights[known])) if known.any() else None


def _mean_interval(parts: list[tuple[int, dict[str, Floats]]], key: str) -> Interval:
    if not parts:
        return None
    values = np.stack([drawn[key] for _, drawn in parts])
    weights = np.array([n for n, _ in parts], dtype=np.float64)[:, None] * ~np.isnan(values)
    total = weights.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = np.where(total > 0, (weights * np.nan_to_num(values)).sum(axis=0) / total, np.nan)
    return percentile_interval(means)
