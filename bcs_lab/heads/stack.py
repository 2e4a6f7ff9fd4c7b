"""Several heads as one: combined or chosen by what they say of held-out concepts of the training part."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bcs_lab.errors import ConfigError
from bcs_lab.heads.base import NO_GROUP, HeadOutput, TrainingRows, check_whole
from bcs_lab.heads.fitted import FittedHead, Floats, concept_folds, with_every_question

#: More heads than this would make the search over all subsets long.
MAX_PARTS = 8
#: How heads become one.
COMBINE = ("weights", "best")


class StackHead(FittedHead):
    """The weighted mean of other heads; the weights are 0 or more and sum to 1.

    Concepts of the training part are divided into folds; each fold is predicted by heads fitted on the other folds, and
    the weights are those with the least weighted squared error there, one a head for all questions. Then every head is
    fitted to the whole training part. Validation and test pairs take no part in any of it.

    ``combine="best"`` gives all weight to the one head with the least error: choosing a head, as part of the training,
    so that what is measured on held-out pairs holds for the choice as well. The others are not fitted in the end.

    Args:
        in_dim: length of the features.
        n_questions: outputs.
        of: heads that fit themselves, each a name or a mapping of a name to its settings.
        folds: inner folds.
        combine: ``weights`` or ``best``.
    """

    weights: Tensor

    def __init__(
        self,
        in_dim: int,
        n_questions: int,
        of: Sequence[str | Mapping[str, Mapping[str, Any] | None]] = ("ridge", "trees"),
        folds: int = 5,
        combine: str = "weights",
    ) -> None:
        from bcs_lab.heads.registry import HEADS, build_head

        super().__init__(in_dim, n_questions)
        check_whole("folds", folds, 2)
        known = [name for name, kind in HEADS.items() if kind.FITS_ITSELF and kind is not StackHead]
        named = _named(of)
        wanted = dict(named)
        wrong = [str(name) for name, settings in named if name not in known or not isinstance(settings, Mapping)]
        if wrong or len(wanted) < len(named) or not 2 <= len(wanted) <= MAX_PARTS:
            found = ", ".join(wrong or [str(name) for name, _ in named]) or "none"
            raise ConfigError(
                f"head.of: expected two or more of {', '.join(known)}, each once, got {found}; only heads that fit "
                "themselves can be combined. Settings of one go behind its name, as in head.of=[ridge,{trees: "
                "{min_leaf: 5}}]."
            )
        if combine not in COMBINE:
            raise ConfigError(f"head.combine={combine}: expected one of {', '.join(COMBINE)}.")
        self.folds, self.combine = folds, combine
        self.parts = nn.ModuleDict(
            {name: build_head(name, in_dim, n_questions, **dict(settings)) for name, settings in wanted.items()}
        )
        self.register_buffer("weights", torch.full((len(wanted),), 1.0 / len(wanted), dtype=torch.float64))

    def _fit(self, rows: TrainingRows, seed: int) -> None:
        fresh = {name: copy.deepcopy(part) for name, part in self.parts.items()}
        held_out = np.full((len(fresh), *rows.y.shape), np.nan)
        for held in concept_folds(rows.groups, self.folds, seed):
            learned = rows.part(~held)
            if not (learned.weight > 0).any():
                continue
            for index, part in enumerate(fresh.values()):
                fitted = copy.deepcopy(part)
                _fit(fitted, learned, seed)
                held_out[index, held] = _predict(fitted, rows.x[held])
        cells = (rows.weight > 0) & ~np.isnan(held_out).any(axis=0) & (rows.groups != NO_GROUP)[:, None]
        best = self.combine == "best"
        if cells.any():
            weigh = best_weights if best else convex_weights
            weights = weigh(held_out[:, cells].T, rows.y[cells], rows.weight[cells])
            self.weights.copy_(torch.from_numpy(weights))
        elif best:  # too few concepts to hold any out
            self.weights.copy_(torch.eye(len(fresh), dtype=torch.float64)[0])
        for weight, part in zip(self.weights.tolist(), self.parts.values(), strict=True):
            if weight > 0 or not best:
                _fit(part, rows, seed)

    def shift(self, offset: Floats) -> None:
        """See the base class; weights sum to 1."""
        for part in self.parts.values():
            assert isinstance(part, FittedHead)
            part.shift(offset)

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1]."""
        parts = torch.stack([part(x).prediction for part in self.parts.values()])
        weighted = torch.einsum("k,knq->nq", self.weights, parts.to(self.weights.dtype))
        return HeadOutput(weighted.clamp(0.0, 1.0).to(x.dtype))


def _named(of: Any) -> list[tuple[Any, Any]]:
    """Names and settings in their order; what is neither is left for the caller to refuse."""
    items = list(of) if isinstance(of, Sequence) and not isinstance(of, str) else [of]
    out: list[tuple[Any, Any]] = []
    for item in items:
        out += (
            [(name, settings or {}) for name, settings in item.items()]
            if isinstance(item, Mapping)
            else [(item if isinstance(item, str) else str(item), {})]
        )
    return out


def best_weights(predictions: Floats, target: Floats, weight: Floats) -> Floats:
    """All weight to the head with the least weighted squared error, the first of equals; as :func:`convex_weights`."""
    errors = (weight[:, None] * (predictions - target[:, None]) ** 2).sum(axis=0)
    return np.eye(predictions.shape[1])[int(np.argmin(errors))]


def convex_weights(predictions: Floats, target: Floats, weight: Floats) -> Floats:
    """Weights of 0 or more that sum to 1, with the least weighted squared error.

    Exact: the best weights are those of some subset of heads under the sum alone, so all subsets are tried.

    Args:
        predictions: [n, k].
        target: [n].
        weight: [n].

    Returns:
        float64 [k].
    """
    k = predictions.shape[1]
    error = (predictions - target[:, None]) * np.sqrt(weight)[:, None]
    gram = error.T @ error / weight.sum()  # the error of weights v that sum to 1 is v' gram v
    best: tuple[float, Floats] | None = None
    for size in range(1, k + 1):
        for subset in itertools.combinations(range(k), size):
            part = gram[np.ix_(subset, subset)] + 1e-12 * np.eye(size)  # two heads may be equal
            solved = np.linalg.solve(part, np.ones(size))
            if solved.sum() <= 0 or (solved < 0).any():
                continue
            v = np.zeros(k)
            v[list(subset)] = solved / solved.sum()
            value = float(v @ gram @ v)
            if best is None or value < best[0] - 1e-12:
                best = (value, v)
    assert best is not None  # a single head always qualifies
    return best[1]


def _fit(part: nn.Module, rows: TrainingRows, seed: int) -> None:
    assert isinstance(part, FittedHead)
    part._fit(with_every_question(rows), seed)


def _predict(part: nn.Module, x: Any) -> Floats:
    with torch.inference_mode():
        return part(torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))).prediction.double().numpy()
