"""Kernel ridge regression: every training pair votes, the nearer the louder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bcs_lab.heads.base import HeadOutput, Stored, TrainingRows, check_flag, check_whole
from bcs_lab.heads.fitted import FittedHead, Floats, Standardiser, choose, numbers, question_groups, resample
from bcs_lab.heads.linear import solve


class KernelHead(Stored, FittedHead):
    """Ridge regression under the kernel ``exp(-gamma |a - b|^2)`` of clipped z-scores, around each question's mean.

    Far from all training pairs it says the mean. Members differ by a bootstrap of whole concepts; pairs that are drawn
    twice count twice. The training pairs' z-scores are part of the model.

    Args:
        in_dim: length of the features.
        n_questions: outputs.
        alpha: of the penalty; of several, the one with the least error on held-out concepts of the training part.
        gamma: of the kernel, times ``in_dim``: 1 is scikit-learn's default of one over the number of features. Several
            are chosen from together with ``alpha``.
        clip: largest z-score.
        folds: inner folds of that choice.
        bootstrap: ``False`` fits every member to the training part as it is, which makes them all the same.
    """

    support: Tensor
    dual: Tensor
    means: Tensor
    rate: Tensor

    def __init__(
        self,
        in_dim: int,
        n_questions: int,
        alpha: float | Sequence[float] = (0.1, 0.3, 1.0, 3.0, 10.0),
        gamma: float | Sequence[float] = (0.1, 0.3, 1.0),
        clip: float = 4.0,
        folds: int = 5,
        bootstrap: bool = True,
    ) -> None:
        super().__init__(in_dim, n_questions)
        self.alpha, self.gamma = numbers("alpha", alpha), numbers("gamma", gamma)
        check_whole("folds", folds, 2)
        check_flag("bootstrap", bootstrap)
        self.folds, self.bootstrap = folds, bootstrap
        self.standardiser = Standardiser(in_dim, clip)
        self.register_buffer("support", torch.zeros(0, in_dim))
        # double: with little penalty the votes are large and cancel
        self.register_buffer("dual", torch.zeros(0, n_questions, dtype=torch.float64))
        self.register_buffer("means", torch.zeros(n_questions, dtype=torch.float64))
        self.register_buffer("rate", torch.zeros((), dtype=torch.float64))

    def problems(self) -> list[str]:
        """Parts that do not belong together."""
        shapes = tuple(self.support.shape), tuple(self.dual.shape), tuple(self.means.shape)
        n = len(self.support)
        if shapes != ((n, self.in_dim), (n, self.n_questions), (self.n_questions,)):
            return [f"support, dual and means of shapes {shapes} do not fit"]
        return []

    def _fit(self, rows: TrainingRows, seed: int) -> None:
        self.standardiser.fit(rows)
        z = self.standardiser.values(rows.x)
        distance = squared_distances(torch.from_numpy(z), torch.from_numpy(z)).numpy()
        options = [(gamma / self.in_dim, alpha) for gamma in self.gamma for alpha in self.alpha]
        rate, alpha = choose(options, rows, self.folds, lambda held: self._held_out(distance, rows, held))
        if self.bootstrap:
            rows = resample(rows, seed)
        kept = (rows.weight > 0).any(axis=1)
        kernel = np.exp(-rate * distance[np.ix_(kept, kept)])
        y, weight = rows.y[kept], rows.weight[kept]
        dual = np.zeros((len(y), self.n_questions))
        means = np.zeros(self.n_questions)
        for question in range(self.n_questions):
            used = weight[:, question] > 0
            w = weight[used, question]
            means[question] = np.average(y[used, question], weights=w)
            centred = y[used, question : question + 1] - means[question]
            dual[used, question] = votes(kernel[np.ix_(used, used)], centred, w, [alpha])[0, :, 0]
        self.support = torch.from_numpy(z[kept].astype(np.float32))
        self.dual, self.means = torch.from_numpy(dual), torch.from_numpy(means)
        self.rate = torch.tensor(rate, dtype=torch.float64)

    def _held_out(self, distance: Floats, rows: TrainingRows, held: Any) -> list[Floats]:
        """Predictions for a fold under every pair of gamma and alpha, in the order of the options."""
        out = np.zeros((len(self.gamma), len(self.alpha), int(held.sum()), self.n_questions))
        for questions, answered in question_groups(rows):
            used = answered & ~held
            if not used.any():
                continue
            y = rows.y[np.ix_(used, questions)]
            weight = rows.weight[np.ix_(used, questions)].mean(axis=1)
            mean = np.average(y, axis=0, weights=weight)
            for index, gamma in enumerate(self.gamma):
                kernel = np.exp(-gamma / self.in_dim * distance[:, used])
                found = votes(kernel[used], y - mean, weight, self.alpha)
                out[index][:, :, questions] = kernel[held] @ found + mean
        return list(out.reshape(-1, *out.shape[2:]))

    def shift(self, offset: Floats) -> None:
        """See the base class."""
        self.means += torch.from_numpy(offset)

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1]."""
        z = self.standardiser(x).to(self.dual.dtype)
        kernel = torch.exp(-self.rate * squared_distances(z, self.support.to(z.dtype)))
        return HeadOutput((kernel @ self.dual + self.means).clamp(0.0, 1.0).to(x.dtype))


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """Squared Euclidean distances, [n, d] and [m, d] -> [n, m], not below 0."""
    return ((a**2).sum(dim=1)[:, None] + (b**2).sum(dim=1)[None, :] - 2.0 * a @ b.T).clamp_min(0.0)


def votes(kernel: Floats, y: Floats, weight: Floats, alphas: Sequence[float]) -> Floats:
    """Dual coefficients of weighted kernel ridge regression: [n_alphas, n, q].

    Args:
        kernel: [n, n].
        y: [n, q].
        weight: [n], above 0.
        alphas: penalties, above 0.
    """
    root = np.sqrt(weight)[:, None]
    return root * solve(root * kernel * root.T, root * y, alphas)
