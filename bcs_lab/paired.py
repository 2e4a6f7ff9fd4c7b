"""Is an ensemble better than a plain cosine, or was it luck? Differences on the same pairs, concepts resampled whole.

A plain cosine needs no labels, so it is what few labels have to beat, and the mean of the networks' cosines is strong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bcs_lab.evaluate import axis_scores, cluster_draws, pearson, percentile_interval, resampled, spearman
from bcs_lab.results import AXES, COSINE_MEAN
from bcs_lab.teachers.protocol import Protocol

Floats = NDArray[np.float64]

#: Statistics that are compared; a cosine is not on the answers' scale, so an error would say nothing.
STATISTICS = {"rho": spearman, "r": pearson}
#: The file that a cross-validation writes it into.
PAIRED = "paired.json"
#: The opponents.
BEST, MEAN = "best cosine", COSINE_MEAN


def against_cosines(
    prediction: NDArray[np.floating],
    plain: Mapping[str, NDArray[np.floating]],
    target: NDArray[np.floating],
    clusters: ArrayLike,
    protocol: Protocol,
    n_boot: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """How much better an ensemble ranks pairs than plain cosines do, axis by axis.

    The best cosine is the one that is best on these very pairs by this very statistic: it is chosen with hindsight,
    which favours the opponent. Each resample draws the same concepts for both sides. The p value is two-sided, twice
    the smaller share of resampled differences on one side of zero (each count plus one, at most 1): it is below .05
    where the 95 % interval leaves out zero.

    Args:
        prediction: [n_pairs, n_questions] of the ensemble, of held-out pairs.
        plain: name -> cosine [n_pairs]; with :data:`MEAN` where there are several networks.
        target: [n_pairs, n_questions], NaN where missing.
        clusters: [n_pairs] concepts.
        protocol: the questions, in column order.
        n_boot: resamples.
        seed: of the resampling.

    Returns:
        ``pairs``, ``concepts``, ``resamples`` and ``seed``; and per axis and statistic (``rho``, ``r``) the
        ``ensemble`` and each cosine under ``cosines`` as ``value`` and ``interval``; under ``against`` each opponent
        as ``name``, ``difference`` (ensemble minus opponent), ``interval`` and ``p``. What is undefined is ``None``.
    """
    masked = np.where(np.isnan(target), np.nan, prediction)
    out: dict[str, Any] = {
        "pairs": len(target),
        "concepts": len(np.unique(np.asarray(clusters))),
        "resamples": n_boot,
        "seed": seed,
    }
    for axis, mine, wanted in zip(AXES, axis_scores(masked, protocol), axis_scores(target, protocol), strict=True):
        has = ~np.isnan(wanted)
        sides = {"": mine, **plain}
        found = {
            name: _side(np.asarray(side, dtype=np.float64)[has], wanted[has], clusters, has, n_boot, seed)
            for name, side in sides.items()
        }
        out[axis] = {key: _statistic(found, key) for key in STATISTICS}
    return out


_Side = dict[str, tuple["float | None", "Floats | None"]]


def _side(x: Floats, y: Floats, clusters: ArrayLike, has: NDArray[np.bool_], n_boot: int, seed: int) -> _Side:
    """Per statistic its value and its value under every resample."""
    _, cluster = np.unique(np.asarray(clusters), return_inverse=True)
    n_clusters = int(cluster.max()) + 1 if len(cluster) else 0
    drawn: Mapping[str, Floats] = {}
    if n_clusters >= 2 and len(np.unique(cluster[has])) >= 2:
        drawn = resampled(x, y, cluster[has], cluster_draws(n_clusters, n_boot, seed))
    return {key: (of(x, y), drawn.get(key)) for key, of in STATISTICS.items()}


def _statistic(found: Mapping[str, _Side], key: str) -> dict[str, Any]:
    value, drawn = found[""][key]
    cosines = {name: side[key] for name, side in found.items() if name}
    single = [name for name in cosines if name != MEAN and cosines[name][0] is not None]
    best = max(single, key=lambda name: cosines[name][0] or 0.0, default=None)
    opponents = {label: name for label, name in ((BEST, best), (MEAN, MEAN)) if name in cosines}
    return {
        "ensemble": {"value": value, "interval": percentile_interval(drawn)},
        "cosines": {
            name: {"value": one, "interval": percentile_interval(values)} for name, (one, values) in cosines.items()
        },
        "against": {
            label: {"name": name, **_difference(value, drawn, *cosines[name])} for label, name in opponents.items()
        },
    }


def _difference(
    value: float | None, drawn: Floats | None, other: float | None, others: Floats | None
) -> dict[str, Any]:
    gap = None if drawn is None or others is None else drawn - others
    interval = percentile_interval(gap)
    return {
        "difference": None if value is None or other is None else value - other,
        "interval": interval,
        "p": None if gap is None or interval is None else bootstrap_p(gap),
    }


def bootstrap_p(differences: Floats) -> float:
    """Two-sided p value of "no difference" from bootstrap differences [n_boot]; undefined ones are left out.

    >>> bootstrap_p(np.array([0.1, 0.2, 0.3])), bootstrap_p(np.array([-0.1, 0.1]))
    (0.5, 1.0)
    """
    known = differences[np.isfinite(differences)]
    low, high = int((known <= 0).sum()) + 1, int((known >= 0).sum()) + 1
    return min(1.0, 2 * min(low, high) / (len(known) + 1))
