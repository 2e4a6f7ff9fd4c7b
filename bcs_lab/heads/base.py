"""What all heads are: features in, a :class:`HeadOutput` out, a loss as a pair of sums, and a state that is all of it.

A loss comes as numerator and denominator, so that a validation loss can be pooled over all cells however they are
batched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bcs_lab.errors import ConfigError

#: The group of a training row that belongs to no concept: it is in every fold's training part and never held out.
NO_GROUP = -1


@dataclass
class HeadOutput:
    """What a head says about n pairs.

    Attributes:
        prediction: [n, n_questions] in [0, 1].
        logits: what the head's own loss needs beside it: [n, n_questions, 3] level logits (ordinal, prototype),
            [n, n_questions, 2] threshold logits (coral), [n, n_questions] values before they are clipped
            (cosine_residual), or ``None``.
    """

    prediction: Tensor
    logits: Tensor | None = None


@dataclass(frozen=True)
class ExtraRows:
    """Training rows that are no pairs of the corpus, such as pairs known to have nothing in common.

    Attributes:
        x: float32 [m, in_dim], features of the kind the head takes.
        y: float32 [m, n_questions] in [0, 1], NaN where missing.
        weight: float32 [m, n_questions].
    """

    x: NDArray[np.floating]
    y: NDArray[np.floating]
    weight: NDArray[np.floating]


@dataclass(frozen=True)
class TrainingRows:
    """Everything a head may learn from, which is the training part and never another.

    Attributes:
        x: float32 [n, in_dim].
        y: float32 [n, n_questions] in [0, 1], NaN where missing.
        weight: float32 [n, n_questions], 0 where missing.
        groups: int64 [n], the concept of each row; :data:`NO_GROUP` for :class:`ExtraRows`.
        cosines: positions of the encoders' cosines among the features; empty where there are none.
        directions: [in_dim], 1 where more of a feature means more alike, -1 where less does, 0 where neither does;
            ``None`` where that is not known.
    """

    x: NDArray[np.floating]
    y: NDArray[np.floating]
    weight: NDArray[np.floating]
    groups: NDArray[np.integer]
    cosines: tuple[int, ...] = ()
    directions: NDArray[np.integer] | None = None

    def part(self, rows: NDArray[Any]) -> TrainingRows:
        """Some of the rows, by mask or position."""
        return replace(self, x=self.x[rows], y=self.y[rows], weight=self.weight[rows], groups=self.groups[rows])


class Head(nn.Module):
    """Base of all heads: called on features [n, in_dim], trained by :meth:`loss` unless it fits itself."""

    #: Whether reported predictions are snapped to the three levels unless a config says otherwise.
    snap: ClassVar[bool] = False
    #: Kinds of features that the head can work on.
    FEATURES: ClassVar[tuple[str, ...]] = ("embedding", "similarity")
    #: Whether the head has a ``fit`` of its own in place of training by gradient.
    FITS_ITSELF: ClassVar[bool] = False
    #: Whether the head wants to see all training rows before training by gradient starts.
    PREPARES: ClassVar[bool] = False

    def prepare(self, rows: TrainingRows) -> None:
        """Look at the training rows once, before training by gradient starts; called where ``PREPARES`` is true."""

    def loss(self, output: HeadOutput, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted squared error (eqs. 17 and 26) as ``(numerator, denominator)``; the loss is their quotient.

        Args:
            output: of this head.
            target: [n, n_questions] in [0, 1]; any number where the weight is 0.
            weight: [n, n_questions], 0 masks a cell.
        """
        return weighted_sums(weight, (output.prediction - target) ** 2)


class Stored(nn.Module):
    """A module whose buffers take the lengths of the state it is loaded from: trees and support rows are as many as
    they turned out to be. What does not fit all the same is reported as a load error.
    """

    def problems(self) -> list[str]:
        """What is wrong with the buffers as they are, in words."""
        return []

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        before = len(error_msgs)
        for name, buffer in list(self._buffers.items()):
            found = state_dict.get(prefix + name)
            if buffer is None or found is None:
                continue
            if found.dtype != buffer.dtype or found.ndim != buffer.ndim:
                error_msgs.append(
                    f"{prefix}{name}: expected {buffer.ndim} dimension(s) of {buffer.dtype}, "
                    f"found {found.ndim} of {found.dtype}"
                )
                continue
            self._buffers[name] = torch.empty_like(found, device=buffer.device)
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if len(error_msgs) == before and not any(key.startswith(prefix) for key in missing_keys):
            error_msgs += [f"{prefix.removesuffix('.') or type(self).__name__}: {text}" for text in self.problems()]


def weighted_sums(weight: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted sum of the cells and sum of the weights; a cell of weight 0 may hold anything."""
    # where, not only a product: a masked cell must not leak a NaN or its gradient
    active = weight > 0
    return (weight * torch.where(active, cell, 0.0)).sum(), torch.where(active, weight, 0.0).sum()


def check_sizes(hidden: int = 1, blocks: int = 0, dropout: float = 0.0) -> None:
    """Refuse sizes that make no network.

    Raises:
        ConfigError: names the key, the value and what is expected.
    """
    check_whole("hidden", hidden)
    check_whole("blocks", blocks, 0)
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise ConfigError(f"head.dropout={dropout}: expected a number from 0 to below 1.")


def check_whole(key: str, value: Any, least: int = 1) -> None:
    """Refuse what is not a whole number of at least ``least``; errors as in :func:`check_sizes`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"head.{key}={value}: expected a whole number of at least {least}.")


def check_number(key: str, value: Any, above: float = 0.0, most: float = float("inf")) -> None:
    """Refuse what is not a finite number above ``above`` and at most ``most``; errors as in :func:`check_sizes`."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(value)
    if not good or not above < value <= most:
        limit = "" if most == float("inf") else f" and at most {most:g}"
        raise ConfigError(f"head.{key}={value}: expected a number above {above:g}{limit}.")


def check_flag(key: str, value: Any) -> None:
    """Refuse what is neither true nor false; errors as in :func:`check_sizes`."""
    if not isinstance(value, bool):
        raise ConfigError(f"head.{key}={value}: expected true or false.")
