"""Numbers of a report that no earlier stage has written down: per question, calibration, regimes, galleries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bcs_lab.evaluate import mae, pearson, spearman
from bcs_lab.regimes import REGIMES
from bcs_lab.split import concept_key
from bcs_lab.teachers.protocol import Protocol

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class QuestionRow:
    """One question on the pairs shown; ``None`` is undefined.

    Attributes:
        id: of the question.
        name: what it asks about.
        group: its axis.
        n: pairs with a consensus.
        mean_target: mean consensus.
        mean_prediction: mean prediction on the same pairs.
        mae: mean absolute error against the consensus.
        r: Pearson correlation.
        rho: Spearman correlation.
        unanimous: share of pairs on which all teachers that answered gave one answer.
        agreement: share of equal answers, averaged over the pairs of teachers.
    """

    id: str
    name: str
    group: str
    n: int
    mean_target: float | None
    mean_prediction: float | None
    mae: float | None
    r: float | None
    rho: float | None
    unanimous: float | None
    agreement: float | None


def question_rows(prediction: Floats, target: Floats, answers: Floats, protocol: Protocol) -> list[QuestionRow]:
    """Error of every question, and beside it how far the teachers agree.

    Args:
        prediction: [n, n_questions].
        target: [n, n_questions], NaN where missing.
        answers: [n, n_teachers, n_questions] of the teachers that the target comes from; may have no teachers.
        protocol: the questions.
    """
    rows = []
    for index, question in enumerate(protocol.questions):
        x, y = prediction[:, index], target[:, index]
        given = answers[:, :, index] if answers.shape[1] else np.zeros((len(x), 0))
        known = ~np.isnan(y)
        rows.append(
            QuestionRow(
                question.id,
                question.name,
                question.group,
                int(known.sum()),
                mean(y),
                mean(x[known]) if known.any() else mean(x),
                mae(x, y),
                pearson(x, y),
                spearman(x, y),
                unanimous(given),
                pairwise_agreement(given),
            )
        )
    return rows


def mean(values: ArrayLike) -> float | None:
    """Over what is not NaN; ``None`` for nothing."""
    array = np.asarray(values, dtype=np.float64)
    known = array[~np.isnan(array)]
    return float(known.mean()) if known.size else None


def unanimous(answers: Floats) -> float | None:
    """Share of pairs with one answer from all teachers, over pairs that two or more answered.

    >>> unanimous(np.array([[1.0, 1.0], [0.0, 0.5], [1.0, np.nan]]))
    0.5
    """
    several = answers[(~np.isnan(answers)).sum(axis=1) >= 2]
    return float((np.nanmin(several, axis=1) == np.nanmax(several, axis=1)).mean()) if len(several) else None


def pairwise_agreement(answers: Floats) -> float | None:
    """Share of equal answers of two teachers, averaged over all pairs of teachers that share a question.

    >>> pairwise_agreement(np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    0.6666666666666666
    """
    shares = []
    for a, b in combinations(range(answers.shape[1]), 2):
        both = ~np.isnan(answers[:, a]) & ~np.isnan(answers[:, b])
        if both.any():
            shares.append(float((answers[both, a] == answers[both, b]).mean()))
    return float(np.mean(shares)) if shares else None


@dataclass(frozen=True)
class Bin:
    """Pairs (or cells) whose prediction falls between two tenths.

    Attributes:
        predicted: mean prediction.
        observed: mean consensus.
        n: how many.
    """

    predicted: float
    observed: float
    n: int


def reliability(prediction: Floats, target: Floats, bins: int = 10) -> tuple[list[Bin], float | None]:
    """Mean consensus of cells with about the same prediction, and the mean gap over all cells.

    Args:
        prediction: any shape, in [0, 1].
        target: the same shape, NaN where missing.
        bins: of equal width.
    """
    known = ~np.isnan(target) & ~np.isnan(prediction)
    x, y = prediction[known], target[known]
    which = np.minimum((x * bins).astype(int), bins - 1)
    out = []
    for index in range(bins):
        inside = which == index
        if inside.any():
            out.append(Bin(float(x[inside].mean()), float(y[inside].mean()), int(inside.sum())))
    gap = sum(item.n * abs(item.predicted - item.observed) for item in out) / len(x) if len(x) else None
    return out, gap


def covered(low: Floats, high: Floats, target: Floats, concepts: Sequence[str]) -> tuple[float | None, float | None]:
    """Share of targets inside their intervals: averaged over concepts, and over pairs."""
    known = ~np.isnan(target) & ~np.isnan(low) & ~np.isnan(high)
    if not known.any():
        return None, None
    inside = ((target >= low - 1e-9) & (target <= high + 1e-9))[known]
    _, cluster = np.unique(clusters(concepts)[known], return_inverse=True)
    shares = np.bincount(cluster, weights=inside) / np.bincount(cluster)
    return float(shares.mean()), float(inside.mean())


def clusters(concepts: Sequence[str]) -> NDArray[np.object_]:
    """What the pairs are resampled by."""
    return np.array([concept_key(str(concept)) for concept in concepts], dtype=object)


# --- regimes ----------------------------------------------------------------------------------------------------------


def regime_counts(codes: NDArray[np.object_]) -> dict[str, tuple[int, float | None]]:
    """Code -> pairs in that regime and their share of the pairs with a regime."""
    total = int((codes != "").sum())
    counts = {code: int((codes == code).sum()) for code in REGIMES}
    return {code: (count, count / total if total else None) for code, count in counts.items()}


@dataclass(frozen=True)
class Crossed:
    """Predicted against consensus regimes.

    Attributes:
        counts: consensus code -> predicted code -> pairs.
        n: pairs with both.
        agreement: share of equal regimes, ``None`` without pairs.
    """

    counts: dict[str, dict[str, int]]
    n: int
    agreement: float | None


def cross_regimes(predicted: NDArray[np.object_], target: NDArray[np.object_]) -> Crossed:
    """The 4 x 4 table."""
    both = (predicted != "") & (target != "")
    counts = {
        row: {column: int((both & (target == row) & (predicted == column)).sum()) for column in REGIMES}
        for row in REGIMES
    }
    n = int(both.sum())
    return Crossed(counts, n, sum(counts[code][code] for code in REGIMES) / n if n else None)


# --- galleries --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gallery:
    """Some pairs worth looking at.

    Attributes:
        key: short name, part of an id.
        title: heading.
        lead: how they were chosen.
        pairs: positions, the most telling first.
    """

    key: str
    title: str
    lead: str
    pairs: list[int]


def ranks(values: Floats) -> Floats:
    """Average ranks as shares from 0 (lowest) to 1; NaN stays NaN."""
    out = np.full(len(values), np.nan)
    known = np.flatnonzero(~np.isnan(values))
    if len(known):
        _, place, count = np.unique(values[known], return_inverse=True, return_counts=True)
        out[known] = (np.cumsum(count) - (count + 1) / 2)[place] / max(len(known) - 1, 1)
    return out


def pick(order: Sequence[int], concepts: Sequence[str], n: int) -> list[int]:
    """The first ``n`` of an order, those of concepts that are already there only when no others are left."""
    seen: set[str] = set()
    first: list[int] = []
    rest: list[int] = []
    for index in order:
        key = concept_key(str(concepts[index])) if concepts[index] else ""
        (rest if key and key in seen else first).append(index)
        seen.add(key)
    return [*first, *rest][:n]


def galleries(
    shown: NDArray[np.int64],
    overall: Floats,
    target: Floats,
    spread: Floats,
    concepts: Sequence[str],
    metric: tuple[str, Floats] | None,
    n: int,
) -> list[Gallery]:
    """Best, worst, most uncertain, most wrong, harsh and blind pairs.

    Args:
        shown: positions of the pairs to choose from.
        overall: mean of T-PAS and T-SAS as predicted, [all pairs].
        target: the same of the consensus, NaN where unknown.
        spread: disagreement of the members.
        concepts: of the pairs.
        metric: a conventional metric, higher is better, and its name.
        n: pairs a gallery.
    """

    def ordered(values: Floats) -> list[int]:
        own = values[shown]
        order = np.argsort(-own, kind="stable")
        return [int(shown[i]) for i in order if not np.isnan(own[i])]

    def gallery(key: str, title: str, lead: str, order: list[int]) -> Gallery:
        return Gallery(key, title, lead, pick(order, concepts, n))

    out = [
        gallery("best", "Best", "The highest predicted mean of T-PAS and T-SAS.", ordered(overall)),
        gallery("worst", "Worst", "The lowest predicted mean of T-PAS and T-SAS.", ordered(-overall)),
        gallery("uncertain", "Most uncertain", "The members of the ensemble disagree most.", ordered(spread)),
    ]
    judged = ~np.isnan(target[shown])
    if judged.any():
        wrong = np.abs(overall - target)
        out.append(gallery("wrong", "Furthest off", "Prediction and consensus are furthest apart.", ordered(wrong)))
    if metric is not None:
        name, values = metric
        judge, by = (target, "the teachers’ consensus") if judged.any() else (overall, "BCS")
        among = np.full(len(overall), np.nan)
        both = shown[~np.isnan(values[shown]) & ~np.isnan(judge[shown])]
        among[both] = ranks(judge[both]) - ranks(values[both])
        out += [
            gallery(
                "harsh", "Metric too harsh",
                f"{name} ranks these low, {by} ranks them high: pictures that a conventional metric punishes although "
                "they say the right thing.",
                [i for i in ordered(among) if among[i] > 0],
            ),
            gallery(
                "blind", "Metric blind",
                f"{name} ranks these high, {by} ranks them low: alike on paper, wrong to a viewer.",
                [i for i in ordered(-among) if among[i] < 0],
            ),
        ]  # fmt: skip
    return [item for item in out if item.pairs]
