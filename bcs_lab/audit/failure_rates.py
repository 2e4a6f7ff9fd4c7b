"""How often a metric is harsh (calls a right pair bad) or blind (calls a wrong pair good): equations 3 and 4.

Which pairs are right is said by a semantic score: the cosine of captions (Table 1), or the teachers' T-SAS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bcs_lab.agreement import estimate
from bcs_lab.audit.correlations import without_infinity
from bcs_lab.regimes import THRESHOLD

Floats = NDArray[np.float64]
Interval = list[float] | None


@dataclass(frozen=True)
class FailureRates:
    """Harshness and blind spots of one metric against one semantic score.

    Attributes:
        n: pairs that have both.
        low_cut: lower quartile of the metric, oriented; ``None`` without a pair.
        high_cut: upper quartile.
        right: pairs that the semantic score calls right.
        harsh: those of them below ``low_cut``.
        harshness: harsh / right, ``None`` where no pair is right.
        top: pairs at or above ``high_cut``.
        blind: those of them that the semantic score calls wrong.
        blind_spot: blind / top, ``None`` without a pair.
        harsh_chance: what ``harshness`` would be if metric and score had nothing to do with each other: the share of
            pairs below ``low_cut``.
        blind_chance: likewise, the share of wrong pairs.
        harsh_interval: 95 %, from drawing whole clusters while the cuts stay; ``None`` where undefined.
        blind_interval: likewise.
        notes: what makes the numbers say less than they seem to.
        reason: why one or both are undefined, or ``""``.
    """

    n: int
    low_cut: float | None = None
    high_cut: float | None = None
    right: int = 0
    harsh: int = 0
    harshness: float | None = None
    top: int = 0
    blind: int = 0
    blind_spot: float | None = None
    harsh_chance: float | None = None
    blind_chance: float | None = None
    harsh_interval: Interval = None
    blind_interval: Interval = None
    notes: tuple[str, ...] = ()
    reason: str = ""


def quartile_rates(
    quality: ArrayLike, score: ArrayLike, cluster: NDArray[np.int64] | None = None, times: Floats | None = None
) -> FailureRates:
    """Both rates with quartiles of metric and score (equations 3 and 4 of the paper).

    Right is a score at or above its upper quartile, wrong one below its lower quartile. Quartiles interpolate linearly
    between the pairs that have both values. Both rates are near 0.25 for a metric that has nothing to do with the
    score, unless many pairs tie at a cut, which is noted.

    Args:
        quality: [n] metric, oriented so that larger is better; NaN where undefined.
        score: [n] semantic score, larger is better; NaN where undefined.
        cluster: [n] position of each pair's cluster, for intervals.
        times: [n_boot, n_clusters], how often each cluster is drawn.

    Example:
        >>> found = quartile_rates([1, 2, 3, 4], [4, 3, 2, 1])  # the wrong way round
        >>> found.harshness, found.blind_spot
        (1.0, 1.0)
    """
    q, c, of = _pairs(quality, score, cluster)
    if not len(q):
        return FailureRates(0, reason=_NO_PAIR)
    low, high = (float(cut) for cut in np.quantile(c, [0.25, 0.75]))
    notes = _ties("the score", c, low, high)
    return _rates(q, c >= high, c < low, notes, of, times)


def threshold_rates(
    quality: ArrayLike,
    score: ArrayLike,
    cluster: NDArray[np.int64] | None = None,
    times: Floats | None = None,
    *,
    threshold: float = THRESHOLD,
) -> FailureRates:
    """Both rates with quartiles of the metric and a threshold of the score.

    Right is a score at or above ``threshold``, wrong one below it. Where few pairs are right, most of *any* metric's
    top quarter is wrong: compare ``blind_spot`` with ``blind_chance``.

    Args:
        quality: as in :func:`quartile_rates`.
        score: [n] in [0, 1], such as T-SAS; NaN where undefined.
        cluster: as in :func:`quartile_rates`.
        times: likewise.
        threshold: where right begins.

    Example:
        >>> found = threshold_rates([-0.1, -0.15, -0.22, -0.3, -0.35, -0.41, -0.55, -0.6],
        ...                         [1, 0.25, 0.75, 0.5, 0, 0.5, 0.75, 1])
        >>> found.harsh, found.right, found.blind_spot
        (2, 6, 0.5)
    """
    q, c, of = _pairs(quality, score, cluster)
    if not len(q):
        return FailureRates(0, reason=_NO_PAIR)
    return _rates(q, c >= threshold, c < threshold, [], of, times)


_NO_PAIR = "no pair has both the metric and the score"


def _pairs(
    quality: ArrayLike, score: ArrayLike, cluster: NDArray[np.int64] | None
) -> tuple[Floats, Floats, NDArray[np.int64] | None]:
    q, c = np.asarray(quality, dtype=np.float64), np.asarray(score, dtype=np.float64)
    if q.shape != c.shape or q.ndim != 1:
        raise ValueError(f"Expected `quality` and `score` of one shape [n] but got {q.shape} and {c.shape}.")
    both = ~np.isnan(q) & np.isfinite(c)
    return without_infinity(q[both]), c[both], None if cluster is None else cluster[both]


def _rates(
    q: Floats,
    right: NDArray[np.bool_],
    wrong: NDArray[np.bool_],
    notes: Sequence[str],
    cluster: NDArray[np.int64] | None,
    times: Floats | None,
) -> FailureRates:
    low, high = (float(cut) for cut in np.quantile(q, [0.25, 0.75]))
    below, above = q < low, q >= high
    flags = np.stack([right, right & below, above, above & wrong], axis=1).astype(np.float64)
    n_right, harsh, top, blind = (int(n) for n in flags.sum(axis=0))
    bounds: list[Interval] = [None, None]
    if cluster is not None and times is not None and len(np.unique(cluster)) > 1:
        counts = [np.bincount(cluster, weights=column, minlength=times.shape[1]) for column in flags.T]
        bounds = estimate(np.stack(counts, axis=1).astype(np.float64), times, _shares)[1]
    constant = np.ptp(q) == 0
    said = ["the metric is the same throughout: its quartiles mean nothing"] if constant else []
    if not constant:
        said += _ties("the metric", q, low, high)
    return FailureRates(
        n=len(q),
        low_cut=low,
        high_cut=high,
        right=n_right,
        harsh=harsh,
        harshness=harsh / n_right if n_right else None,
        top=top,
        blind=blind,
        blind_spot=blind / top if top else None,
        harsh_chance=float(below.mean()),
        blind_chance=float(wrong.mean()),
        harsh_interval=bounds[0],
        blind_interval=bounds[1],
        notes=(*said, *notes),
        reason="" if n_right else "no pair is right by the score",
    )


def _shares(sums: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(sums[:, [0, 2]] > 0, sums[:, [1, 3]] / sums[:, [0, 2]], np.nan)


def _ties(what: str, values: Floats, low: float, high: float) -> list[str]:
    """Pairs that tie at a cut and thereby move the share on its far side away from a quarter."""
    notes = []
    n = len(values)
    below, above = int((values < low).sum()), int((values >= high).sum())
    at_low, at_high = int((values == low).sum()), int((values == high).sum())
    if at_low > 1 and below < 0.2 * n:
        rest = "the lower set is empty" if not below else f"the lower set holds {below / n:.0%} of the pairs"
        notes.append(f"{at_low} of {n} tie at the lower quartile of {what}: {rest}".replace("%", " %"))
    if at_high > 1 and above > 0.3 * n:
        rest = f"the upper set holds {above / n:.0%} of the pairs"
        notes.append(f"{at_high} of {n} tie at the upper quartile of {what}: {rest}".replace("%", " %"))
    return notes
