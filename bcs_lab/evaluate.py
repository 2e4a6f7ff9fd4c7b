"""How well predictions match the consensus: the numbers of Table 6, their intervals, and the baselines beside them.

A statistic that is undefined is ``None``: fewer than two cells, or no spread. Nothing here turns it into 0 or NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bcs_lab.errors import RunError
from bcs_lab.teachers.protocol import PERCEPTUAL, SEMANTIC, Protocol

if TYPE_CHECKING:
    from bcs_lab.embeddings import PairEmbeddings

#: Keys of every result, in table order: question level, then the perceptual and the semantic axis (Table 6).
METRICS = ("q_mae", "q_r", "q_rho", "pas_mae", "pas_r", "pas_rho", "sas_mae", "sas_r", "sas_rho")

#: A side whose range is at most this share of its largest magnitude has no spread worth correlating.
RELATIVE_RANGE = 1e-6

#: More undefined bootstrap resamples than this share leave an interval undefined.
MAX_UNDEFINED = 0.10

Metrics = dict[str, "float | None"]
Floats = NDArray[np.float64]


# --- statistics -----------------------------------------------------------------------------------------------------


def mae(prediction: ArrayLike, target: ArrayLike) -> float | None:
    """Mean absolute error over the cells with a target (NaN is missing), ``None`` when there is none.

    >>> mae([0.5, 0.25, 0.9], [1.0, 0.25, float("nan")])
    0.25
    >>> mae([0.5], [float("nan")]) is None
    True
    """
    x, y = _cells(prediction, target)
    return float(np.abs(x - y).mean()) if len(x) else None


def pearson(prediction: ArrayLike, target: ArrayLike) -> float | None:
    """Pearson correlation over the cells with a target (NaN is missing).

    ``None`` below two cells, and when one side is constant or so nearly constant that its range is at most one
    millionth of its largest magnitude: what is left then is rounding, not signal.

    >>> round(pearson([0.1, 0.4, 0.9, 0.6], [0, 0.5, 1, 0.5]), 6)
    0.970143
    >>> pearson([0.1, 0.4, 0.9], [0.5, 0.5, 0.5]) is None
    True
    """
    x, y = _cells(prediction, target)
    return _correlation(x, y) if _spread(x) and _spread(y) else None


def spearman(prediction: ArrayLike, target: ArrayLike) -> float | None:
    """Spearman correlation: Pearson of average ranks, which is right under ties. ``None`` as in :func:`pearson`.

    >>> spearman([1, 2, 3], [0, 0.5, 1])
    1.0
    >>> spearman([1, 2, 3, 4], [0, 1, 0, 1]) == pearson([1, 2, 3, 4], [0, 1, 0, 1])
    True
    """
    x, y = _cells(prediction, target)
    return _correlation(_ranks(x), _ranks(y)) if _spread(x) and _spread(y) else None


def _cells(prediction: ArrayLike, target: ArrayLike) -> tuple[Floats, Floats]:
    x = np.asarray(prediction, dtype=np.float64)
    y = np.asarray(target, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"Expected `prediction` and `target` of one shape but got {x.shape} and {y.shape}.")
    active = ~np.isnan(y)
    x, y = x[active], y[active]
    bad = int((~np.isfinite(x)).sum())
    if bad:
        raise RunError(f"{bad} of {len(x)} predictions are not finite numbers; a metric over them would hide it.")
    return x, y


def _spread(x: Floats) -> bool:
    return len(x) >= 2 and bool(np.ptp(x) > RELATIVE_RANGE * np.abs(x).max())


def _correlation(x: Floats, y: Floats) -> float:
    x = x - x.mean()
    y = y - y.mean()
    # scaled first: squares of tiny values underflow
    x /= np.abs(x).max()
    y /= np.abs(y).max()
    return float(np.clip(x @ y / math.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def _ranks(x: Floats) -> Floats:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


# --- Table 6 --------------------------------------------------------------------------------------------------------


def axis_scores(values: NDArray[np.floating], protocol: Protocol) -> tuple[Floats, Floats]:
    """T-PAS and T-SAS: the mean over the perceptual and over the semantic questions (eqs. 19 and 20).

    Args:
        values: [n_pairs, n_questions], NaN where missing.
        protocol: says which question belongs to which axis.

    Returns:
        Two float64 [n_pairs] in [0, 1], each the mean over the questions present; NaN where fewer than half of an
        axis' questions are, since the mean of one or two answers says which questions were asked, not how good a
        pair is.
    """
    exact = np.asarray(values, dtype=np.float64)
    return _axis(exact, protocol.indices(PERCEPTUAL)), _axis(exact, protocol.indices(SEMANTIC))


def _axis(values: Floats, columns: list[int]) -> Floats:
    part = values[:, columns]
    active = ~np.isnan(part)
    count = active.sum(axis=1)
    total = np.where(active, part, 0.0).sum(axis=1)
    enough = (count > 0) & (2 * count >= len(columns))
    return np.where(enough, total / np.maximum(count, 1), np.nan)


def _levels(
    prediction: NDArray[np.floating], target: NDArray[np.floating], protocol: Protocol
) -> dict[str, tuple[Floats, Floats, NDArray[np.int64]]]:
    """Per level of Table 6 (``q``, ``pas``, ``sas``): predictions, targets, and the pair each comes from."""
    x = np.asarray(prediction, dtype=np.float64)
    y = np.asarray(target, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 2 or x.shape[1] != len(protocol.questions):
        raise ValueError(
            f"Expected `prediction` and `target` of shape [n_pairs, {len(protocol.questions)}] "
            f"but got {x.shape} and {y.shape}."
        )
    active = ~np.isnan(y)
    if not np.isfinite(x[active]).all():
        _cells(x, y)  # raises
    pair = np.arange(len(x))
    out = {"q": (x[active], y[active], np.broadcast_to(pair[:, None], x.shape)[active])}
    masked = np.where(active, x, np.nan)
    axes = zip(("pas", "sas"), axis_scores(masked, protocol), axis_scores(y, protocol), strict=True)
    for name, of_prediction, of_target in axes:
        has = ~np.isnan(of_target)
        out[name] = (of_prediction[has], of_target[has], pair[has])
    return out


def evaluate(prediction: NDArray[np.floating], target: NDArray[np.floating], protocol: Protocol) -> Metrics:
    """The nine numbers of Table 6 (with Spearman on all three levels), unweighted.

    Question-level numbers pool all cells with a target. T-PAS and T-SAS are means over a pair's *active* questions, of
    the prediction as of the target, so a missing answer removes the same question from both; pairs with fewer than half
    of an axis' questions answered take no part in it (see :func:`axis_scores`).

    Args:
        prediction: [n_pairs, n_questions] in [0, 1].
        target: [n_pairs, n_questions] consensus in [0, 1], NaN where missing.
        protocol: the questions, in column order.

    Returns:
        The keys of :data:`METRICS`; ``None`` where undefined.

    Raises:
        RunError: a prediction with a target is not finite.

    >>> from bcs_lab.teachers.protocol import BCS12
    >>> target = np.repeat([[0.0], [0.5], [1.0]], 12, axis=1)
    >>> evaluate(target / 2 + 0.25, target, BCS12)["pas_mae"]
    0.16666666666666666
    >>> evaluate(np.full((3, 12), 0.5), target, BCS12)["pas_r"] is None
    True
    """
    out: Metrics = {}
    for level, (x, y, _) in _levels(prediction, target, protocol).items():
        out[f"{level}_mae"] = mae(x, y)
        out[f"{level}_r"] = pearson(x, y)
        out[f"{level}_rho"] = spearman(x, y)
    return {key: out[key] for key in METRICS}


# --- intervals ------------------------------------------------------------------------------------------------------


def bootstrap_ci(
    prediction: NDArray[np.floating],
    target: NDArray[np.floating],
    clusters: ArrayLike,
    protocol: Protocol,
    n_boot: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, list[float] | None]:
    """Percentile intervals of :func:`evaluate` from resampling whole clusters with replacement.

    Pairs of one concept share a reference image, so pairs are not independent and concepts are what is drawn. A
    resample is a multiplicity per cluster; all statistics follow from weighted sums and weighted ranks, without
    copying a cell.

    Args:
        prediction: [n_pairs, n_questions].
        target: [n_pairs, n_questions], NaN where missing.
        clusters: [n_pairs] labels, such as concept keys.
        protocol: the questions, in column order.
        n_boot: resamples.
        seed: of the resampling.
        level: of the interval.

    Returns:
        For every key of :data:`METRICS` ``[low, high]``, or ``None`` when fewer than two clusters have cells, or when
        more than a tenth of the resamples leave the statistic undefined (others are dropped).
    """
    resamples = _resamples(prediction, target, clusters, protocol, n_boot, seed)
    return {key: percentile_interval(resamples.get(key), level) for key in METRICS}


def paired_difference(
    first: NDArray[np.floating],
    second: NDArray[np.floating],
    target: NDArray[np.floating],
    clusters: ArrayLike,
    protocol: Protocol,
    n_boot: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, dict[str, Any]]:
    """How much better or worse one prediction is than another on the same pairs, and whether that is more than noise.

    Args:
        first: [n_pairs, n_questions] predictions.
        second: [n_pairs, n_questions] predictions of the same pairs.
        target: [n_pairs, n_questions], NaN where missing.
        clusters: [n_pairs] labels, such as concept keys; each resample draws the same clusters for both.
        protocol: the questions, in column order.
        n_boot: resamples.
        seed: of the resampling.
        level: of the interval.

    Returns:
        For every key of :data:`METRICS` ``difference`` (first minus second, ``None`` where undefined) and ``interval``
        (``[low, high]`` or ``None``, as in :func:`bootstrap_ci`).
    """
    sides = [_resamples(side, target, clusters, protocol, n_boot, seed) for side in (first, second)]
    a, b = (evaluate(side, target, protocol) for side in (first, second))
    out: dict[str, dict[str, Any]] = {}
    for key in METRICS:
        x, y = a[key], b[key]
        drawn = sides[0][key] - sides[1][key] if key in sides[0] and key in sides[1] else None
        out[key] = {
            "difference": None if x is None or y is None else x - y,
            "interval": percentile_interval(drawn, level),
        }
    return out


def _resamples(
    prediction: NDArray[np.floating],
    target: NDArray[np.floating],
    clusters: ArrayLike,
    protocol: Protocol,
    n_boot: int,
    seed: int,
) -> dict[str, Floats]:
    """Every statistic under every resample of the clusters: [n_boot], NaN where undefined."""
    labels = np.asarray(clusters)
    if labels.shape != (len(prediction),):
        raise ValueError(f"Expected `clusters` of shape [{len(prediction)}] but got {labels.shape}.")
    if n_boot < 1:
        raise ValueError(f"Expected `n_boot` above 0 but got {n_boot}.")
    _, cluster_of_pair = np.unique(labels, return_inverse=True)
    n_clusters = int(cluster_of_pair.max()) + 1 if len(labels) else 0
    levels = _levels(prediction, target, protocol)
    if n_clusters < 2:
        return {}
    times = cluster_draws(n_clusters, n_boot, seed)
    out: dict[str, Floats] = {}
    for name, (x, y, pair) in levels.items():
        cluster = cluster_of_pair[pair]
        if len(np.unique(cluster)) >= 2:
            out |= {f"{name}_{key}": values for key, values in resampled(x, y, cluster, times).items()}
    return out


def cluster_draws(n_clusters: int, n_boot: int, seed: int) -> Floats:
    """How often every resample with replacement draws each cluster: [n_boot, n_clusters]."""
    draws = np.random.default_rng(seed).integers(n_clusters, size=(n_boot, n_clusters))
    times = np.zeros((n_boot, n_clusters))
    np.add.at(times, (np.arange(n_boot)[:, None], draws), 1.0)
    return times


def percentile_interval(values: Floats | None, level: float = 0.95) -> list[float] | None:
    """``[low, high]`` of bootstrap values [n_boot].

    ``None`` when there are no values, or when more than a tenth of them are undefined (NaN).
    """
    if not 0 < level < 1:
        raise ValueError(f"Expected `level` in (0, 1) but got {level}.")
    if values is None:
        return None
    defined = values[np.isfinite(values)]
    if not len(defined) or len(defined) < (1.0 - MAX_UNDEFINED) * len(values):
        return None
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(defined, [tail, 1.0 - tail])
    return [float(low), float(high)]


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's (1979) adjusted p values of a family of tests; undefined ones stay so and do not count.

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    order = sorted((index for index, p in enumerate(p_values) if p is not None), key=lambda index: p_values[index] or 0)
    out: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - place) * float(p_values[index] or 0.0)))
        out[index] = highest
    return out


def resampled(x: Floats, y: Floats, cluster: NDArray[np.int64], times: Floats) -> dict[str, Floats]:
    """Mean absolute difference and correlations of two sides in every resample of their clusters.

    Args:
        x: [n], finite, at least one value.
        y: [n], likewise.
        cluster: [n] position of each value's cluster.
        times: [n_boot, n_clusters], how often each cluster is drawn.

    Returns:
        ``mae``, ``r`` and ``rho`` [n_boot], NaN where undefined.
    """
    n_clusters = times.shape[1]

    def per_cluster(values: Floats) -> Floats:
        return np.bincount(cluster, weights=values, minlength=n_clusters).astype(np.float64)

    count = times @ per_cluster(np.ones_like(x))
    drawn = (times > 0) & (per_cluster(np.ones_like(x)) > 0)
    defined = count >= 2
    for side in (x, y):
        low = np.full(n_clusters, np.inf)
        high = np.full(n_clusters, -np.inf)
        np.minimum.at(low, cluster, side)
        np.maximum.at(high, cluster, side)
        least = np.where(drawn, low, np.inf).min(axis=1)
        most = np.where(drawn, high, -np.inf).max(axis=1)
        with np.errstate(invalid="ignore"):
            defined &= (most - least) > RELATIVE_RANGE * np.maximum(np.abs(least), np.abs(most))

    def correlation(sums: tuple[Floats, Floats, Floats, Floats, Floats]) -> Floats:
        sx, sy, sxx, syy, sxy = sums
        with np.errstate(invalid="ignore", divide="ignore"):
            covariance = sxy - sx * sy / count
            variances = (sxx - sx**2 / count) * (syy - sy**2 / count)
            return np.where(defined & (variances > 0), np.clip(covariance / np.sqrt(variances), -1, 1), np.nan)

    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(count > 0, times @ per_cluster(np.abs(x - y)) / count, np.nan)
    # centred and scaled once for all resamples, so that no sum of squares loses its digits
    cx, cy = (_standard(side) for side in (x, y))
    plain = [times @ per_cluster(values) for values in (cx, cy, cx * cx, cy * cy, cx * cy)]
    ranked = _rank_sums(x, y, cluster, times)
    return {"mae": error, "r": correlation(tuple(plain)), "rho": correlation(ranked)}  # type: ignore[arg-type]


def _standard(values: Floats) -> Floats:
    centred = values - values.mean()
    scale = np.abs(centred).max()
    return centred / scale if scale > 0 else centred


def _rank_sums(
    x: Floats, y: Floats, cluster: NDArray[np.int64], times: Floats
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Weighted sums (x, y, xx, yy, xy) of the average ranks of every resample.

    A value drawn m times takes m consecutive ranks, so its average rank is (m drawn up to and with it) - (m - 1) / 2.
    The values are sorted once; only the multiplicities change from one resample to the next.
    """
    _, of_x = np.unique(x, return_inverse=True)
    values_y, of_y = np.unique(y, return_inverse=True)
    order = np.argsort(of_x, kind="stable")  # cells in order of x: equal values are neighbours
    of_x, of_y, cluster = of_x[order], of_y[order], cluster[order]
    starts = np.flatnonzero(np.r_[True, of_x[1:] != of_x[:-1]])
    tied_x = len(starts) < len(of_x)
    out = np.empty((5, len(times)))
    for b, drawn in enumerate(times):
        m = drawn[cluster]
        m_x = np.add.reduceat(m, starts) if tied_x else m
        rank_x = np.cumsum(m_x) - (m_x - 1) / 2
        if tied_x:
            rank_x = rank_x[of_x]
        m_y = np.bincount(of_y, weights=m, minlength=len(values_y))
        rank_y = (np.cumsum(m_y) - (m_y - 1) / 2)[of_y]
        # ranks around their known mean, (n + 1) / 2
        middle = (m.sum() + 1) / 2
        rank_x -= middle
        rank_y -= middle
        weighted_x, weighted_y = m * rank_x, m * rank_y
        out[:, b] = (
            weighted_x.sum(),
            weighted_y.sum(),
            weighted_x @ rank_x,
            weighted_y @ rank_y,
            weighted_x @ rank_y,
        )
    return out[0], out[1], out[2], out[3], out[4]


# --- baselines ------------------------------------------------------------------------------------------------------


def train_mean_baseline(targets: NDArray[np.floating], train_index: NDArray[np.integer]) -> NDArray[np.float32]:
    """Predicts each question's mean over the training pairs, for all pairs.

    Args:
        targets: [n_pairs, n_questions], NaN where missing.
        train_index: positions of the training pairs.

    Returns:
        float32 [n_pairs, n_questions]. A question without any training answer gets the mean over all training cells.

    Raises:
        RunError: no training cell has a target.
    """
    mean = _train_means(targets, train_index)
    return np.broadcast_to(mean.astype(np.float32), np.shape(targets)).copy()


def cosine_scores(embeddings: PairEmbeddings) -> Floats:
    """Cosine of reference and reconstruction under one encoder: float64 [n_pairs] in [-1, 1]."""
    from bcs_lab.embeddings import canonical

    images = canonical(np.asarray(embeddings.images)).astype(np.float64)
    return np.einsum("nd,nd->n", images[embeddings.reference], images[embeddings.reconstruction])


def cosine_baseline(cosine: NDArray[np.floating], target: NDArray[np.floating], protocol: Protocol) -> Metrics:
    """What a plain cosine is worth: its correlations with the question cells and with both axes.

    A cosine is not on the answers' scale, so the MAE keys are ``None``; :func:`cosine_line` puts it there.

    Args:
        cosine: [n_pairs].
        target: [n_pairs, n_questions], NaN where missing.
        protocol: the questions, in column order.
    """
    spread = np.repeat(np.asarray(cosine, dtype=np.float64)[:, None], np.shape(target)[1], axis=1)
    return {key: None if key.endswith("mae") else value for key, value in evaluate(spread, target, protocol).items()}


def cosine_line(
    cosine: NDArray[np.floating], targets: NDArray[np.floating], train_index: NDArray[np.integer]
) -> NDArray[np.float32]:
    """Predicts each question by a line in the cosine, fitted to the training cells and clipped to [0, 1].

    Args:
        cosine: [n_pairs].
        targets: [n_pairs, n_questions], NaN where missing.
        train_index: positions of the training pairs.

    Returns:
        float32 [n_pairs, n_questions]; a question whose line is not determined is predicted by its training mean.

    Raises:
        RunError: no training cell has a target.
    """
    cosine = np.asarray(cosine, dtype=np.float64)
    targets = np.asarray(targets, dtype=np.float64)
    means = _train_means(targets, train_index)
    out = np.empty(targets.shape, dtype=np.float64)
    for question, mean in enumerate(means):
        y = targets[train_index, question]
        x, y = cosine[train_index][~np.isnan(y)], y[~np.isnan(y)]
        if _spread(x):
            slope = ((x - x.mean()) @ (y - y.mean())) / ((x - x.mean()) @ (x - x.mean()))
            out[:, question] = y.mean() + slope * (cosine - x.mean())
        else:
            out[:, question] = mean
    return np.clip(out, 0.0, 1.0).astype(np.float32)


def _train_means(targets: NDArray[np.floating], train_index: NDArray[np.integer]) -> Floats:
    train = np.asarray(targets, dtype=np.float64)[train_index]
    active = ~np.isnan(train)
    if not active.any():
        raise RunError("The training part has no answered question, so there is no mean to predict.")
    count = active.sum(axis=0)
    total = np.where(active, train, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), total.sum() / count.sum())
