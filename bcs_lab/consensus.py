"""What the teachers agree on: teacher sets, median targets (eq. 12) and agreement weights (eq. 18)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bcs_lab.errors import ConfigError

#: Names of the agreement weights, the paper's first.
WEIGHT_SCHEMES: tuple[str, ...] = ("variance", "step", "uniform")


def select_teachers(corpus_teachers: Sequence[str], wanted: int | str | Sequence[str]) -> tuple[str, ...]:
    """Names of the teachers to learn from, always in the corpus' declared order.

    Args:
        corpus_teachers: the teachers a corpus has, in its declared order.
        wanted: ``N`` (the first N of that order), ``"all"``, one name, or a list of names in any order.

    Returns:
        A non-empty tuple of names. The order of a list is not kept: a median does not depend on it, and one set of
        teachers then has one spelling in every table.

    Raises:
        ConfigError: ``teachers`` asks for none, for more than there are, for unknown names, or twice for one.

    Example:
        >>> select_teachers(["internvl3", "sail_vl", "ola"], 2)
        ('internvl3', 'sail_vl')
        >>> select_teachers(["internvl3", "sail_vl", "ola"], ["ola", "internvl3"])
        ('internvl3', 'ola')
    """
    available = tuple(corpus_teachers)
    has = f"this corpus has {len(available)}, in this order: {', '.join(available) or '(none)'}"
    ways = "give a number (the first N), a list of names, or all"
    if isinstance(wanted, str):
        text = wanted.strip()
        if text in available:
            return (text,)
        if text == "all":
            if not available:
                raise ConfigError(f"teachers=all: {has}. A corpus needs at least one annotated teacher.")
            return available
        if re.fullmatch(r"[+-]?\d+", text):
            wanted = int(text)
        else:
            raise ConfigError(f"teachers={text}: no teacher of that name; {has}. Please {ways}.")
    if isinstance(wanted, (bool, float)) or wanted is None:
        raise ConfigError(f"teachers={wanted}: expected a whole number, a list of names or all; {has}.")
    if isinstance(wanted, (int, np.integer)):
        if wanted < 1:
            raise ConfigError(f"teachers={wanted}: at least one teacher is needed; {has}.")
        if wanted > len(available):
            raise ConfigError(f"teachers={wanted}: that many were asked for, but {has}.")
        return available[: int(wanted)]
    try:
        names = [str(name) for name in wanted]
    except TypeError:
        raise ConfigError(f"teachers={wanted!r}: expected a whole number, a list of names or all; {has}.") from None
    shown = f"teachers=[{','.join(names)}]"
    if not names:
        raise ConfigError(f"{shown}: the list is empty; {has}. Please {ways}.")
    problems = []
    unknown = sorted({name for name in names if name not in available})
    if unknown:
        problems.append(f"no teacher called {', '.join(map(repr, unknown))}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        problems.append(f"named more than once: {', '.join(map(repr, twice))}")
    if problems:
        raise ConfigError(f"{shown}: {'; '.join(problems)}; {has}.")
    return tuple(name for name in available if name in names)


def teacher_answers(answers: NDArray[np.floating], corpus_teachers: Sequence[str], chosen: Sequence[str]) -> NDArray:
    """The columns of ``answers`` [n_pairs, n_teachers, n_questions] that belong to the ``chosen`` teachers."""
    position = {name: index for index, name in enumerate(corpus_teachers)}
    return answers[:, [position[name] for name in chosen], :]


def consensus(answers: NDArray[np.floating]) -> NDArray[np.float32]:
    """Consensus targets: the median over the teachers that answered (Section 5.1, eq. 12).

    Args:
        answers: [n_pairs, n_teachers, n_questions], values 0, .5 or 1, NaN where an answer is missing.

    Returns:
        float32 [n_pairs, n_questions] in [0, 1]; an even number of answers gives the mean of the middle two (.25 and
        .75 are possible). NaN where no teacher answered: a missing answer is a mask, never a 0.

    Example:
        >>> answers = np.array([[[0.0], [0.5], [1.0], [1.0]], [[0.0], [np.nan], [0.5], [0.5]]])  # 2 pairs, 4 teachers
        >>> consensus(answers).ravel().tolist()
        [0.75, 0.5]
    """
    answers = _checked(answers)
    ordered = np.sort(answers, axis=1)  # NaN sorts last, so the answers that exist come first
    present = np.isfinite(answers).sum(axis=1)
    if answers.shape[1] == 0:
        return np.full((answers.shape[0], answers.shape[2]), np.nan, dtype=np.float32)
    low = np.maximum(present - 1, 0) // 2
    high = np.minimum(present // 2, answers.shape[1] - 1)
    pick = np.take_along_axis(ordered, np.stack([low, high], axis=1), axis=1)
    median = pick.mean(axis=1, dtype=np.float64).astype(np.float32)
    return np.where(present > 0, median, np.float32(np.nan))


def agreement_weight(answers: NDArray[np.floating], scheme: str = "variance") -> NDArray[np.float32]:
    """How far each question's label can be trusted, from the spread of the teachers' answers.

    Args:
        answers: [n_pairs, n_teachers, n_questions], values 0, .5 or 1, NaN where an answer is missing.
        scheme: ``variance`` is 1 - population variance (eq. 18; .75 to 1). ``step`` is the table of the authors' code:
            1 if all answers are equal, .75 if some answer was given twice or more, .4 if all differ. ``uniform`` is 1.
            A single answer has nothing to disagree with, so it weighs 1 in every scheme.

    Returns:
        float32 [n_pairs, n_questions]; 0 where no teacher answered, which is also the mask of the loss.

    Raises:
        ConfigError: unknown scheme.

    Example:
        >>> answers = np.array([[[0.0], [0.0], [1.0], [1.0]], [[0.5], [0.5], [0.5], [0.5]]])
        >>> agreement_weight(answers).ravel().tolist(), agreement_weight(answers, "step").ravel().tolist()
        ([0.75, 1.0], [0.75, 1.0])
    """
    answers = _checked(answers)
    present = np.isfinite(answers)
    count = present.sum(axis=1)
    if scheme == "uniform":
        weight = np.ones(count.shape)
    elif scheme == "variance":
        filled = np.where(present, answers, 0.0).astype(np.float64)
        n = np.maximum(count, 1)
        mean = filled.sum(axis=1) / n
        deviation = np.where(present, filled - mean[:, None, :], 0.0)
        weight = 1.0 - (deviation**2).sum(axis=1) / n
    elif scheme == "step":
        low = np.where(present, answers, np.inf).min(axis=1, initial=np.inf)
        high = np.where(present, answers, -np.inf).max(axis=1, initial=-np.inf)
        ordered = np.sort(answers, axis=1)
        repeated = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)  # NaN equals nothing, so gaps never count
        weight = np.where(low >= high, 1.0, np.where(repeated, 0.75, 0.4))
    else:
        raise ConfigError(f"consensus.weight={scheme}: expected one of {', '.join(WEIGHT_SCHEMES)}.")
    return np.where(count > 0, weight, 0.0).astype(np.float32)


def _checked(answers: NDArray[np.floating]) -> NDArray[np.floating]:
    answers = np.asarray(answers)
    if answers.ndim != 3:
        raise ValueError(f"Expected `answers` to be [n_pairs, n_teachers, n_questions] but got shape {answers.shape}.")
    return answers
