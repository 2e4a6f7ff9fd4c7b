"""Heads that fit themselves: what they share, from checked rows to folds and bootstraps of whole concepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from bcs_lab.errors import ConfigError, CorpusError
from bcs_lab.heads.base import NO_GROUP, ExtraRows, Head, HeadOutput, TrainingRows, check_number

Floats = NDArray[np.float64]
Setting = TypeVar("Setting")


class FittedHead(Head):
    """Base of the heads that are fitted at once, without epochs; subclasses give ``_fit`` and ``forward``.

    The state dict is all there is of a fitted head: no object of another library is kept.
    """

    FITS_ITSELF: ClassVar[bool] = True

    def __init__(self, in_dim: int, n_questions: int) -> None:
        super().__init__()
        self.in_dim, self.n_questions = in_dim, n_questions

    def fit(
        self,
        x: ArrayLike,
        y: ArrayLike,
        weight: ArrayLike,
        seed: int,
        *,
        groups: ArrayLike | None = None,
        extra: ExtraRows | None = None,
        directions: ArrayLike | None = None,
    ) -> None:
        """Learn from rows; the same rows and seed give the same head.

        Args:
            x: [n, in_dim].
            y: [n, n_questions] in [0, 1], NaN where missing.
            weight: [n, n_questions] of 0 or more; a cell of weight 0 is not learned from.
            seed: of whatever the head draws.
            groups: [n] whole numbers, the concept of each row; by default each row is its own. Bootstraps and inner
                folds take a concept as a whole.
            extra: further rows that belong to no concept: no bootstrap drops them and no inner fold holds them out.
            directions: see :class:`TrainingRows`; a head with monotone constraints needs them.

        Raises:
            ConfigError: the head needs directions.
            CorpusError: shapes that do not fit, features that are no numbers, or no answered cell.
        """
        x, y, weight = (np.asarray(part, dtype=np.float32) for part in (x, y, weight))
        labels = np.arange(len(x)) if groups is None else np.asarray(groups, dtype=np.int64)
        if extra is not None:
            x, y, weight = (
                np.concatenate([mine, np.asarray(more, dtype=np.float32)])
                for mine, more in ((x, extra.x), (y, extra.y), (weight, extra.weight))
            )
            labels = np.concatenate([labels, np.full(len(extra.x), NO_GROUP)])
        cells = (len(x), self.n_questions)
        if x.shape != (len(x), self.in_dim) or y.shape != cells or weight.shape != cells or labels.shape != cells[:1]:
            raise CorpusError(
                f"Expected features [n, {self.in_dim}], answers and weights [n, {self.n_questions}] and groups [n], "
                f"got {x.shape}, {y.shape}, {weight.shape} and {labels.shape}."
            )
        if not np.isfinite(x).all():
            raise CorpusError(f"{int((~np.isfinite(x)).sum())} features of training pairs are not finite numbers.")
        ways = None if directions is None else np.asarray(directions, dtype=np.int64)
        rows = with_every_question(TrainingRows(x, y, weight, labels, directions=ways))
        # Small systems gain nothing from several threads, which spin while they wait: on a busy machine a ridge took 60
        # times as long. And one thread gives the same digits however many cores there are.
        with threadpool_limits(limits=1, user_api="blas"):
            self._fit(rows, seed)
            if extra is not None:
                self._level(rows)

    def _level(self, rows: TrainingRows) -> None:
        """Give the corpus' own rows their mean again, question by question, which extra rows have pulled away.

        Known negatives are to teach which pair is worse, not that all are; a constant a question changes no order.
        """
        own = rows.part(rows.groups != NO_GROUP)
        with torch.inference_mode():
            found = self(torch.from_numpy(np.ascontiguousarray(own.x, dtype=np.float32))).prediction.double().numpy()
        total = own.weight.sum(axis=0)
        gap = (own.weight * np.where(own.weight > 0, own.y - found, 0.0)).sum(axis=0)
        self.shift(np.divide(gap, total, out=np.zeros_like(gap), where=total > 0))

    def shift(self, offset: Floats) -> None:
        """Add a constant to every question's prediction, before it is clipped: float64 [n_questions]."""
        raise NotImplementedError

    def _fit(self, rows: TrainingRows, seed: int) -> None:
        """Fit on rows in which every question has an answer."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1]."""
        raise NotImplementedError


class Standardiser(nn.Module):
    """``clip((x - mean) / scale, -limit, limit)`` with the training rows' mean and scale.

    A feature that does not vary there becomes 0. The limit keeps an unusual pair from being extrapolated to absurdity.

    Args:
        dim: number of features.
        limit: in standard deviations.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, dim: int, limit: float) -> None:
        super().__init__()
        check_number("clip", limit)
        self.limit = float(limit)
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("scale", torch.ones(dim))

    def fit(self, rows: TrainingRows) -> None:
        """Take mean and scale from the corpus' own rows; extra ones would move them."""
        x = np.asarray(rows.x, dtype=np.float64)
        x = x[rows.groups != NO_GROUP] if (rows.groups != NO_GROUP).any() else x
        mean, scale = x.mean(axis=0), x.std(axis=0)
        # below this a column of one float32 value, which is a constant, seems to vary
        constant = scale <= 1e-6 * np.maximum(np.abs(mean), 1e-3)
        self.mean.copy_(torch.from_numpy(mean))
        self.scale.copy_(torch.from_numpy(np.where(constant, np.inf, scale)))

    def forward(self, x: Tensor) -> Tensor:
        """[n, dim] -> [n, dim]."""
        return ((x - self.mean) / self.scale).clamp(-self.limit, self.limit)

    def values(self, x: NDArray[np.floating]) -> Floats:
        """The same for the fit: float64 of exactly what :meth:`forward` gives for float32."""
        with torch.no_grad():
            return self(torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))).double().numpy()


def with_every_question(rows: TrainingRows) -> TrainingRows:
    """The rows with missing cells marked as such everywhere; a question that no row answers gets the mean of all.

    Raises:
        CorpusError: no cell is answered at all.
    """
    active = (np.asarray(rows.weight) > 0) & ~np.isnan(rows.y)
    if not active.any():
        raise CorpusError(f"{len(rows.y)} training pairs have no answered question to learn from.")
    y = np.where(active, rows.y, np.nan).astype(np.float64)
    weight = np.where(active, rows.weight, 0.0).astype(np.float64)
    for question in np.flatnonzero(~active.any(axis=0)):
        y[:, question], weight[:, question] = np.average(y[active], weights=weight[active]), 1.0
    return replace(rows, y=y, weight=weight)


def question_groups(rows: TrainingRows) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
    """Questions that are answered in the same rows, and those rows; one group where nothing is missing."""
    active = rows.weight > 0
    patterns, group = np.unique(active, axis=1, return_inverse=True)
    for index in range(patterns.shape[1]):
        yield np.flatnonzero(np.ravel(group) == index), patterns[:, index]


def resample(rows: TrainingRows, seed: int) -> TrainingRows:
    """Draw as many concepts as there are, with replacement: the weight of a row times how often its concept came.

    A question that would be left without an answer keeps its weights. Rows of no concept keep theirs.
    """
    labels, position = np.unique(rows.groups, return_inverse=True)
    own = labels != NO_GROUP
    times = np.ones(len(labels))
    count = int(own.sum())
    if count:
        times[own] = np.bincount(np.random.default_rng(seed).integers(count, size=count), minlength=count)
    weight = rows.weight * times[position][:, None]
    lost = ~(weight > 0).any(axis=0)
    weight[:, lost] = rows.weight[:, lost]
    return replace(rows, weight=weight, y=np.where(weight > 0, rows.y, np.nan))


def concept_folds(groups: NDArray[np.integer], folds: int, seed: int) -> list[NDArray[np.bool_]]:
    """Which rows each inner fold holds out: concepts whole, each held out once, as equal in number as can be.

    Args:
        groups: [n], see :class:`TrainingRows`.
        folds: at most this many; fewer where there are fewer concepts, none below two.
        seed: of the order of concepts.

    Returns:
        Boolean [n] masks.
    """
    labels = np.unique(groups[groups != NO_GROUP])
    count = min(folds, len(labels))
    if count < 2:
        return []
    order = np.random.default_rng(seed).permutation(labels)
    return [np.isin(groups, order[start::count]) for start in range(count)]


def choose(
    options: Sequence[Setting],
    rows: TrainingRows,
    folds: int,
    predict: Callable[[NDArray[np.bool_]], Sequence[Floats]],
) -> Setting:
    """The option with the least weighted squared error on held-out training concepts; the first without folds.

    Args:
        options: what can be chosen.
        rows: of the training part.
        folds: see :func:`concept_folds`; the same whatever the member's seed, so that all choose alike.
        predict: held-out mask -> per option predictions [n_held, n_questions], of a fit on the other rows.
    """
    errors = np.zeros(len(options))
    for held in concept_folds(rows.groups, folds, seed=0) if len(options) > 1 else []:
        y, weight = rows.y[held], rows.weight[held]
        active = weight > 0
        if not active.any() or not (rows.weight[~held] > 0).any():
            continue
        for index, prediction in enumerate(predict(held)):
            square = (np.clip(prediction, 0.0, 1.0) - y) ** 2
            errors[index] += float((weight[active] * square[active]).sum())
    return options[int(np.argmin(errors))]


def numbers(key: str, value: Any) -> tuple[float, ...]:
    """One number or several to choose from, each above 0.

    Raises:
        ConfigError: it is neither.
    """
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if not values:
        raise ConfigError(f"head.{key}=[]: expected a number, or a list to choose from.")
    for one in values:
        check_number(key, one)
    return tuple(float(one) for one in values)
