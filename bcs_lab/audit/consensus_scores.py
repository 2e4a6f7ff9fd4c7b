"""T-PAS and T-SAS of the teachers together, in both orders of taking means and medians."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bcs_lab.consensus import consensus
from bcs_lab.evaluate import axis_scores
from bcs_lab.results import AXES
from bcs_lab.teachers.protocol import Protocol

#: Definition -> what it says. The paper's Tables 9 and 12 use the first, its training targets the second.
DEFINITIONS: Mapping[str, str] = {
    "teachers": "median over teachers of each teacher's mean over questions",
    "questions": "mean over questions of the median over teachers",
}

# Finer than any difference of two scores, coarser than rounding: equal scores must tie, and 0.5 must be high.
_DECIMALS = 10

Floats = NDArray[np.float64]


def consensus_scores(
    answers: NDArray[np.floating], protocol: Protocol, definition: str = "teachers"
) -> dict[str, Floats]:
    """T-PAS and T-SAS of every pair.

    Args:
        answers: [n_pairs, n_teachers, n_questions], NaN where missing.
        protocol: says which question belongs to which axis.
        definition: one of :data:`DEFINITIONS`.

    Returns:
        ``t_pas`` and ``t_sas``, each [n_pairs] in [0, 1]; NaN where no teacher answered half of an axis' questions
        (``teachers``), or where fewer than half of them have an answer (``questions``).

    Example:
        >>> from bcs_lab.teachers.protocol import BCS12
        >>> answers = np.zeros((1, 3, 12))  # one pair, three teachers
        >>> answers[0, 0, :2] = answers[0, 1, 2:4] = answers[0, 2, 4:6] = 1  # yes to two of six questions, other ones
        >>> [round(consensus_scores(answers, BCS12, name)["t_pas"].item(), 3) for name in ("teachers", "questions")]
        [0.333, 0.0]
    """
    if definition not in DEFINITIONS:
        raise ValueError(f"Expected `definition` to be one of {', '.join(DEFINITIONS)} but got {definition!r}.")
    exact = np.asarray(answers, dtype=np.float64)
    if definition == "questions":
        both = list(axis_scores(consensus(exact), protocol))
    else:
        own = [axis_scores(exact[:, t], protocol) for t in range(exact.shape[1])]
        both = [_median(np.stack([scores[at] for scores in own], axis=1)) for at in range(len(AXES))]
    return {axis: np.round(scores, _DECIMALS) for axis, scores in zip(AXES, both, strict=True)}


def _median(values: Floats) -> Floats:
    """Median of the values of each row [n, k] that are there; NaN where none is."""
    known = ~np.isnan(values).all(axis=1)
    out = np.full(len(values), np.nan)
    out[known] = np.nanmedian(values[known], axis=1)
    return out
