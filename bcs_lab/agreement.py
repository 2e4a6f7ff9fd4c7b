"""How far raters agree: Cohen's kappa of pairs of raters, Fleiss' kappa, Krippendorff's alpha, and their intervals.

Ratings are numbers ``[n_raters, n_units]`` with NaN where a rater gave none; a unit is one thing that each rater judged
once (an image, or one question about an image). A statistic that is undefined is ``None``, never 0 or NaN.

All of them follow from counts that add up over units. So they are counted once for each cluster of units, and a
bootstrap that draws whole clusters costs one matrix product (:func:`estimate`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bcs_lab.evaluate import percentile_interval

#: How Cohen's kappa counts a disagreement: all alike, by the distance of the categories, or by its square.
WEIGHTS: tuple[str, ...] = ("none", "linear", "quadratic")

#: Levels of measurement of Krippendorff's alpha.
LEVELS: tuple[str, ...] = ("nominal", "ordinal", "interval")

#: Which units Fleiss' kappa counts: those that every rater rated, or those with two ratings or more.
UNITS: tuple[str, ...] = ("complete", "any")

Floats = NDArray[np.float64]
Interval = list[float] | None


# --- Cohen's kappa --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairKappas:
    """Cohen's kappa of every pair of raters.

    Attributes:
        pairs: positions of the two raters, in the order of :func:`itertools.combinations`.
        values: kappa of each pair; ``None`` where it is undefined.
    """

    pairs: tuple[tuple[int, int], ...]
    values: tuple[float | None, ...]

    @property
    def defined(self) -> list[float]:
        """The values that exist."""
        return [value for value in self.values if value is not None]

    @property
    def undefined(self) -> int:
        """How many pairs have no kappa."""
        return len(self.values) - len(self.defined)

    @property
    def mean(self) -> float | None:
        """Mean over the pairs that have a kappa."""
        return float(np.mean(self.defined)) if self.defined else None

    @property
    def std(self) -> float | None:
        """Standard deviation (n - 1) over the pairs that have a kappa; ``None`` below two."""
        return float(np.std(self.defined, ddof=1)) if len(self.defined) > 1 else None

    def of_rater(self, rater: int) -> float | None:
        """Mean kappa of one rater with all the others."""
        mine = [v for pair, v in zip(self.pairs, self.values, strict=True) if rater in pair and v is not None]
        return float(np.mean(mine)) if mine else None


def cohen_kappa(
    first: ArrayLike, second: ArrayLike, categories: Sequence[float] | None = None, weights: str = "none"
) -> float | None:
    """Cohen's kappa of two raters over the units that both rated.

    Args:
        first: [n_units], NaN where missing.
        second: [n_units], NaN where missing.
        categories: the whole scale in order; by default the values that occur. Matters for weights only.
        weights: one of :data:`WEIGHTS`; distances count steps along ``categories``.

    Returns:
        Kappa, at most 1; ``None`` when the raters share no unit, or when no disagreement could be expected because both
        gave one and the same answer throughout.

    >>> cohen_kappa([0, 0, 1, 1], [0, 1, 1, 1])
    0.5
    >>> cohen_kappa([1, 1, 1], [1, 1, 1]) is None
    True
    """
    return pair_kappas(np.stack([np.asarray(first, float), np.asarray(second, float)]), categories, weights).values[0]


def pair_kappas(ratings: ArrayLike, categories: Sequence[float] | None = None, weights: str = "none") -> PairKappas:
    """Cohen's kappa of every pair of raters, each over the units that both rated.

    Args:
        ratings: [n_raters, n_units], NaN where missing.
        categories: as in :func:`cohen_kappa`.
        weights: one of :data:`WEIGHTS`.
    """
    codes, values = coded(ratings, categories)
    pairs = tuple(combinations(range(len(codes)), 2))
    tables = pair_tables(codes, len(values), np.zeros(codes.shape[1], dtype=np.int64), 1)[0]
    return PairKappas(pairs, tuple(_optional(kappa) for kappa in kappas_of(tables, weights)))


def pair_tables(codes: NDArray[np.int64], k: int, cluster: NDArray[np.int64], n_clusters: int) -> Floats:
    """How often each pair of raters gave each pair of answers, by cluster: [n_clusters, n_pairs, k, k]."""
    pairs = list(combinations(range(len(codes)), 2))
    tables = np.zeros((n_clusters, len(pairs), k * k))
    for at, (i, j) in enumerate(pairs):
        both = (codes[i] >= 0) & (codes[j] >= 0)
        np.add.at(tables, (cluster[both], at, k * codes[i][both] + codes[j][both]), 1.0)
    return tables.reshape(n_clusters, len(pairs), k, k)


def kappas_of(tables: Floats, weights: str) -> Floats:
    """Kappa of every table [..., k, k]; NaN where undefined."""
    if weights not in WEIGHTS:
        raise ValueError(f"Expected `weights` to be one of {', '.join(WEIGHTS)} but got {weights!r}.")
    steps = np.abs(np.subtract.outer(np.arange(tables.shape[-1]), np.arange(tables.shape[-1]))).astype(np.float64)
    penalty = {"none": (steps > 0).astype(np.float64), "linear": steps, "quadratic": steps**2}[weights]
    observed = (tables * penalty).sum(axis=(-1, -2))
    chance = np.einsum("...i,...j,ij->...", tables.sum(axis=-1), tables.sum(axis=-2), penalty)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(chance > 0, 1.0 - tables.sum(axis=(-1, -2)) * observed / chance, np.nan)


# --- Krippendorff's alpha -------------------------------------------------------------------------------------------


def krippendorff_alpha(
    ratings: ArrayLike, level: str = "ordinal", categories: Sequence[float] | None = None
) -> float | None:
    """Krippendorff's alpha of any number of raters.

    Args:
        ratings: [n_raters, n_units], NaN where missing; units with fewer than two ratings do not count.
        level: one of :data:`LEVELS`: ``nominal`` counts every disagreement alike, ``ordinal`` by how many ratings lie
            between two categories, ``interval`` by the squared difference of the values.
        categories: the whole scale in order; by default the values that occur.

    Returns:
        Alpha, at most 1; ``None`` when no unit has two ratings, or when all ratings are the same.

    >>> krippendorff_alpha([[0, 0, 1, 1], [0, 0, 1, 1]])
    1.0
    >>> krippendorff_alpha([[1, 1], [1, 1]]) is None
    True
    """
    codes, values = coded(ratings, categories)
    table = coincidence_tables(codes, len(values), np.zeros(codes.shape[1], dtype=np.int64), 1)
    return _optional(alphas_of(table, values, level)[0])


def coincidence_tables(codes: NDArray[np.int64], k: int, cluster: NDArray[np.int64], n_clusters: int) -> Floats:
    """Coincidence matrices by cluster of units: [n_clusters, k, k]."""
    counts = (codes[:, :, None] == np.arange(k)).sum(axis=0).astype(np.float64)
    many = counts.sum(axis=1)
    use = many >= 2
    counts, many = counts[use], many[use]
    together = counts[:, :, None] * counts[:, None, :] - counts[:, :, None] * np.eye(k)
    out = np.zeros((n_clusters, k, k))
    np.add.at(out, cluster[use], together / (many - 1)[:, None, None])
    return out


def alphas_of(tables: Floats, values: Floats, level: str) -> Floats:
    """Alpha of every coincidence matrix [..., k, k]; NaN where undefined."""
    totals = tables.sum(axis=-1)
    n = totals.sum(axis=-1)
    if level == "nominal":
        distance = 1.0 - np.eye(len(values))
    elif level == "interval":
        distance = np.subtract.outer(values, values) ** 2
    elif level == "ordinal":
        # Ratings from the middle of one category to the middle of the other.
        middle = np.cumsum(totals, axis=-1) - totals / 2
        distance = (middle[..., :, None] - middle[..., None, :]) ** 2
    else:
        raise ValueError(f"Expected `level` to be one of {', '.join(LEVELS)} but got {level!r}.")
    observed = (tables * distance).sum(axis=(-1, -2))
    chance = (totals[..., :, None] * totals[..., None, :] * distance).sum(axis=(-1, -2))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(chance > 0, 1.0 - (n - 1) * observed / chance, np.nan)


# --- Fleiss' kappa --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FleissKappa:
    """Fleiss' kappa and what it is made of.

    Attributes:
        kappa: at most 1; ``None`` without a unit, or where all ratings are the same.
        unanimous: share of units with one answer from all who rated them; ``None`` without a unit.
        observed: mean share of agreeing pairs of ratings of a unit.
        chance: that share among ratings drawn from all of them.
        used: units that count.
        dropped: units that do not.
    """

    kappa: float | None
    unanimous: float | None
    observed: float | None
    chance: float | None
    used: int
    dropped: int


def fleiss_kappa(ratings: ArrayLike, categories: Sequence[float] | None = None, units: str = "complete") -> FleissKappa:
    """Fleiss' kappa of two raters or more: nominal, chance from the pooled shares of the categories.

    Args:
        ratings: [n_raters, n_units], NaN where missing. A gap is never an answer.
        categories: the whole scale; by default the values that occur. Changes nothing but the check of the values.
        units: one of :data:`UNITS`. ``complete`` drops units that lack a rating; ``any`` keeps those with n_i >= 2
            ratings, each with its own P_i = (sum of n_ij^2 - n_i) / (n_i (n_i - 1)).

    >>> both = [[1, 0, 0.5, 1], [1, 0, 0.5, 0.5], [1, 0.5, 0.5, float("nan")]]
    >>> round(fleiss_kappa(both).kappa, 6), fleiss_kappa(both).used, fleiss_kappa(both, units="any").used
    (0.653846, 3, 4)
    >>> fleiss_kappa([[1, 1], [1, 1]]).kappa is None
    True
    """
    codes, values = coded(ratings, categories)
    sums = fleiss_counts(codes, len(values), np.zeros(codes.shape[1], dtype=np.int64), 1, units)[0]
    used = int(sums[0])
    unanimous, observed, chance, kappa = (_optional(value) for value in fleiss_shares(sums))
    return FleissKappa(kappa, unanimous, observed, chance, used, codes.shape[1] - used)


def fleiss_counts(
    codes: NDArray[np.int64], k: int, group: NDArray[np.int64], n_groups: int, units: str = "complete"
) -> Floats:
    """What Fleiss' kappa is a function of, by group of units.

    Args:
        codes: [n_raters, n_units] positions along a scale, below 0 where missing.
        k: length of the scale.
        group: [n_units] group of each unit.
        n_groups: number of groups.
        units: one of :data:`UNITS`.

    Returns:
        [n_groups, 3 + k]: units, unanimous units, sum of P_i, and how often each category was given.
    """
    if units not in UNITS:
        raise ValueError(f"Expected `units` to be one of {', '.join(UNITS)} but got {units!r}.")
    given = (codes >= 0).sum(axis=0)
    use = (given >= 2) & ((given == len(codes)) | (units == "any"))
    counts = (codes[:, use, None] == np.arange(k)).sum(axis=0).astype(np.float64)
    n = given[use].astype(np.float64)
    agreeing = (counts * (counts - 1)).sum(axis=1) / (n * (n - 1))
    columns = [np.ones_like(n), (counts == n[:, None]).any(axis=1), agreeing, *counts.T]
    return np.stack([np.bincount(group[use], weights=column, minlength=n_groups) for column in columns], axis=1)


def fleiss_shares(sums: Floats) -> Floats:
    """``unanimous, observed, chance, kappa`` [..., 4] of summed :func:`fleiss_counts` [..., 3 + k]; NaN: undefined."""
    units, given = sums[..., 0], sums[..., 3:].sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        unanimous, observed = sums[..., 1] / units, sums[..., 2] / units
        # With one category only, chance is 1 by counting, not up to rounding.
        single = (sums[..., 3:] > 0).sum(axis=-1) <= 1
        chance = np.where(single, 1.0, ((sums[..., 3:] / given[..., None]) ** 2).sum(axis=-1))
        kappa = np.where(single, np.nan, (observed - chance) / (1.0 - chance))
    chance = np.where(given > 0, chance, np.nan)
    return np.stack([unanimous, observed, chance, kappa], axis=-1)


# --- any statistic of counts, with its interval ---------------------------------------------------------------------


def estimate(
    counts: Floats, times: Floats, statistic: Callable[[Floats], Floats], level: float = 0.95
) -> tuple[list[float | None], list[Interval]]:
    """Statistics of counts summed over clusters, with percentile intervals from drawing whole clusters.

    Args:
        counts: [n_clusters, ...], what adds up.
        times: [n_boot, n_clusters] of :func:`cluster_draws`.
        statistic: from summed counts [n, ...] to [n, m], NaN where undefined.
        level: of the intervals.

    Returns:
        The m values and the m intervals. An interval is ``None`` where the value is, for fewer than two clusters, or
        when more than a tenth of the resamples leave the statistic undefined.

    >>> values, intervals = estimate(np.array([[1.0, 2.0], [3.0, 4.0]]), np.eye(2), lambda s: s[:, :1] / s[:, 1:])
    >>> round(values[0], 3), intervals[0]
    (0.667, [0.50625, 0.74375])
    """
    values = [_optional(value) for value in statistic(counts.sum(axis=0, keepdims=True))[0]]
    drawn = statistic(np.tensordot(times, counts, axes=1)) if len(times) else np.zeros((0, len(values)))
    intervals = [None if value is None else percentile_interval(drawn[:, at], level) for at, value in enumerate(values)]
    return values, intervals


# --- kappa and alpha, with intervals --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """What is known about the agreement of some raters on some units.

    Attributes:
        kappas: Cohen's kappa of every pair of raters.
        weights: how kappa counted disagreements.
        kappa_interval: of the mean kappa; ``None`` where it is undefined.
        alpha: level of measurement -> Krippendorff's alpha.
        alpha_interval: level of measurement -> interval of alpha.
        ratings: how many ratings there are.
        missing: how many there are not.
    """

    kappas: PairKappas
    weights: str
    kappa_interval: Interval
    alpha: Mapping[str, float | None] = field(default_factory=dict)
    alpha_interval: Mapping[str, Interval] = field(default_factory=dict)
    ratings: int = 0
    missing: int = 0


def agreement(
    ratings: ArrayLike,
    clusters: ArrayLike,
    *,
    categories: Sequence[float] | None = None,
    weights: str = "none",
    levels: Sequence[str] = ("ordinal", "nominal"),
    n_boot: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Agreement:
    """Kappa and alpha, with percentile intervals from resampling whole clusters of units.

    Args:
        ratings: [n_raters, n_units], NaN where missing.
        clusters: [n_units] labels of what is drawn, such as the stimulus that several units share.
        categories: the whole scale in order; by default the values that occur.
        weights: of kappa, one of :data:`WEIGHTS`.
        levels: of alpha, from :data:`LEVELS`.
        n_boot: resamples.
        seed: of the resampling.
        level: of the intervals.

    Returns:
        The estimates. An interval is ``None`` for fewer than two clusters, or when more than a tenth of the resamples
        leave the statistic undefined. In a resample, as in the estimate, the mean passes over pairs without a kappa.
    """
    codes, values = coded(ratings, categories)
    labels = np.asarray(clusters)
    if labels.shape != codes.shape[1:]:
        raise ValueError(f"Expected `clusters` of shape [{codes.shape[1]}] but got {labels.shape}.")
    names, cluster = np.unique(labels, return_inverse=True)
    times = cluster_draws(len(names), n_boot, seed)
    tables = pair_tables(codes, len(values), cluster, len(names))
    coincidences = coincidence_tables(codes, len(values), cluster, len(names))
    drawn = np.einsum("bc,cij->bij", times, coincidences)
    return Agreement(
        kappas=pair_kappas(ratings, categories, weights),
        weights=weights,
        kappa_interval=percentile_interval(_mean_kappas(times, tables, weights), level),
        alpha={name: _optional(alphas_of(coincidences.sum(axis=0), values, name)) for name in levels},
        alpha_interval={name: percentile_interval(alphas_of(drawn, values, name), level) for name in levels},
        ratings=int((codes >= 0).sum()),
        missing=int((codes < 0).sum()),
    )


def _mean_kappas(times: Floats, tables: Floats, weights: str) -> Floats:
    """Mean kappa over the pairs of raters in every resample [n_boot]."""
    out = np.full(len(times), np.nan)
    for b, row in enumerate(times):
        kappas = kappas_of(np.tensordot(row, tables, axes=1), weights)
        defined = kappas[~np.isnan(kappas)]
        if len(defined):
            out[b] = defined.mean()
    return out


def cluster_draws(n_clusters: int, n_boot: int, seed: int) -> Floats:
    """How often each cluster is drawn in each resample: [n_boot, n_clusters]; no resamples below two clusters."""
    if n_boot < 1:
        raise ValueError(f"Expected `n_boot` above 0 but got {n_boot}.")
    if n_clusters < 2:
        return np.zeros((0, n_clusters))
    chosen = np.random.default_rng(seed).integers(n_clusters, size=(n_boot, n_clusters))
    times = np.zeros((n_boot, n_clusters))
    np.add.at(times, (np.arange(n_boot)[:, None], chosen), 1.0)
    return times


def coded(ratings: ArrayLike, categories: Sequence[float] | None) -> tuple[NDArray[np.int64], Floats]:
    """Positions along the scale (-1 where missing), and the scale."""
    given = np.asarray(ratings, dtype=np.float64)
    if given.ndim != 2:
        raise ValueError(f"Expected `ratings` to be [n_raters, n_units] but got shape {given.shape}.")
    present = ~np.isnan(given)
    values = np.unique(given[present]) if categories is None else np.asarray(categories, dtype=np.float64)
    if (np.diff(values) <= 0).any():
        raise ValueError(f"Expected `categories` in ascending order without repeats but got {values.tolist()}.")
    codes = np.full(given.shape, -1, dtype=np.int64)
    for code, value in enumerate(values):
        codes[given == value] = code
    stray = given[present & (codes < 0)]
    if len(stray):
        raise ValueError(f"Expected ratings among {values.tolist()} but got {np.unique(stray)[:5].tolist()}.")
    return codes, values


def _optional(value: float | np.floating | Floats) -> float | None:
    number = float(value)
    return None if np.isnan(number) else number
