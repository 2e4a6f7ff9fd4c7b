"""Ridge regression on standardised features: the plainest head, and a strong one where labels are few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray
from torch import Tensor

from bcs_lab.heads.base import HeadOutput, TrainingRows, check_flag, check_whole
from bcs_lab.heads.fitted import FittedHead, Floats, Standardiser, choose, numbers, question_groups, resample

Array = NDArray[np.floating]


class RidgeHead(FittedHead):
    """A line a question in clipped z-scores, with a squared penalty on its slopes.

    Minimises the weighted squared error plus ``alpha`` times the squared length of the slopes; the intercept is free.
    Ridge regression itself draws nothing, so members differ by a bootstrap of whole concepts.

    Args:
        in_dim: length of the features.
        n_questions: outputs.
        alpha: of the penalty; of several, the one with the least error on held-out concepts of the training part.
        clip: largest z-score.
        folds: inner folds of that choice.
        bootstrap: ``False`` fits every member to the training part as it is, which makes them all the same.
    """

    coefficients: Tensor
    intercepts: Tensor

    def __init__(
        self,
        in_dim: int,
        n_questions: int,
        alpha: float | Sequence[float] = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0),
        clip: float = 4.0,
        folds: int = 5,
        bootstrap: bool = True,
    ) -> None:
        super().__init__(in_dim, n_questions)
        self.alpha = numbers("alpha", alpha)
        check_whole("folds", folds, 2)
        check_flag("bootstrap", bootstrap)
        self.folds, self.bootstrap = folds, bootstrap
        self.standardiser = Standardiser(in_dim, clip)
        self.register_buffer("coefficients", torch.zeros(in_dim, n_questions))
        self.register_buffer("intercepts", torch.zeros(n_questions))

    def _fit(self, rows: TrainingRows, seed: int) -> None:
        self.standardiser.fit(rows)
        z = self.standardiser.values(rows.x)
        alpha = choose(self.alpha, rows, self.folds, lambda held: self._held_out(z, rows, held))
        if self.bootstrap:
            rows = resample(rows, seed)
        for question in range(self.n_questions):
            used = rows.weight[:, question] > 0
            y, weight = rows.y[used, question : question + 1], rows.weight[used, question]
            slopes, intercepts = ridge(z[used], y, weight, [alpha])
            self.coefficients[:, question] = torch.from_numpy(slopes[0, :, 0])
            self.intercepts[question] = float(intercepts[0, 0])

    def _held_out(self, z: Floats, rows: TrainingRows, held: Any) -> list[Floats]:
        """Predictions for a fold under every alpha; questions answered in the same rows share one decomposition."""
        out = np.zeros((len(self.alpha), int(held.sum()), self.n_questions))
        for questions, answered in question_groups(rows):
            used = answered & ~held
            if used.any():
                weight = rows.weight[np.ix_(used, questions)].mean(axis=1)
                slopes, intercepts = ridge(z[used], rows.y[np.ix_(used, questions)], weight, self.alpha)
                out[:, :, questions] = z[held] @ slopes + intercepts[:, None, :]
        return list(out)

    def shift(self, offset: Floats) -> None:
        """See the base class."""
        self.intercepts += torch.from_numpy(offset).to(self.intercepts.dtype)

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1]."""
        return HeadOutput((self.standardiser(x) @ self.coefficients + self.intercepts).clamp(0.0, 1.0))


def ridge(z: Array, y: Array, weight: Array, alphas: Sequence[float]) -> tuple[Floats, Floats]:
    """Weighted ridge regression with a free intercept.

    Args:
        z: [n, d].
        y: [n, q].
        weight: [n], above 0.
        alphas: penalties, above 0.

    Returns:
        Slopes [n_alphas, d, q] and intercepts [n_alphas, q].
    """
    mean_z, mean_y = np.average(z, axis=0, weights=weight), np.average(y, axis=0, weights=weight)
    root = np.sqrt(weight)[:, None]
    a, b = root * (z - mean_z), root * (y - mean_y)
    # the smaller of the two equal systems
    if len(a) < a.shape[1]:
        slopes = np.stack([a.T @ part for part in solve(a @ a.T, b, alphas)])
    else:
        slopes = solve(a.T @ a, a.T @ b, alphas)
    return slopes, mean_y - mean_z @ slopes


def solve(matrix: Array, right: Array, alphas: Sequence[float]) -> Floats:
    """``(matrix + alpha I)^-1 right`` for every alpha; one decomposition serves them all."""
    if len(alphas) == 1:
        shifted = matrix + alphas[0] * np.eye(len(matrix))
        return scipy.linalg.solve(shifted, right, assume_a="pos")[None]
    values, vectors = np.linalg.eigh(matrix)
    turned = vectors.T @ right
    return np.stack([vectors @ (turned / (np.maximum(values, 0.0) + alpha)[:, None]) for alpha in alphas])
