"""How far teachers agree, and what each of them does to the consensus (Section 4.3, Tables 4 and 5, Figure 3).

An item is one question about one pair. The published statistics (unanimity, Fleiss' kappa, weighted kappa, rationale
similarity) are over the *complete* items, those that every teacher answered; beside them stand Krippendorff's alpha and
a Fleiss' kappa that use every item with two answers or more. Intervals draw whole concepts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from bcs_lab import agreement as kappas
from bcs_lab.consensus import consensus, teacher_answers
from bcs_lab.corpus.schema import Corpus
from bcs_lab.errors import CorpusError
from bcs_lab.evaluate import axis_scores, pearson, percentile_interval, resampled, spearman
from bcs_lab.methods import clusters
from bcs_lab.rationales import Cosines
from bcs_lab.regimes import regime_codes
from bcs_lab.report.page_stats import pick
from bcs_lab.results import AXES
from bcs_lab.teachers.protocol import BCS12, PERCEPTUAL, SEMANTIC, Protocol

Floats = NDArray[np.float64]

#: Axis -> the group of questions it averages.
GROUPS: Mapping[str, str] = {"t_pas": PERCEPTUAL, "t_sas": SEMANTIC}

#: Consensus values that differ by less are the same.
SAME = 1e-6

ONE_TEACHER = "one teacher alone: there is nothing to compare"
NO_ITEM = "no item that every teacher answered"
ALL_ALIKE = "every answer is the same, so that no disagreement could be expected"


@dataclass(frozen=True)
class Settings:
    """How the analysis is done.

    Attributes:
        resamples: of whole concepts.
        seed: of the resampling.
        pairs: most pairs in a gallery.
    """

    resamples: int = 1000
    seed: int = 0
    pairs: int = 6


@cache
def paper_agreement() -> dict[str, Any]:
    """What the paper reports of its own teachers and corpus."""
    return yaml.safe_load(files("bcs_lab").joinpath("assets/paper_agreement.yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Items:
    """The answers of the teachers compared, and how they are resampled.

    Attributes:
        protocol: the questions.
        teachers: names.
        answers: [n_pairs, n_teachers, n_questions], NaN where missing.
        scale: the values of the answers, ascending.
        cluster: [n_pairs] position of each pair's concept among the concepts.
        times: [n_boot, n_concepts], how often each is drawn.
    """

    protocol: Protocol
    teachers: tuple[str, ...]
    answers: Floats
    scale: Floats
    cluster: NDArray[np.int64]
    times: Floats

    @property
    def pairs_of_teachers(self) -> list[tuple[int, int]]:
        """Positions of every two teachers."""
        return list(combinations(range(len(self.teachers)), 2))

    @cached_property
    def complete(self) -> NDArray[np.bool_]:
        """Items that every teacher answered: [n_pairs, n_questions]."""
        return np.asarray(~np.isnan(self.answers).any(axis=1))

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """Positions along the scale, -1 where missing: [n_teachers, n_pairs x n_questions]."""
        flat = self.answers.transpose(1, 0, 2).reshape(len(self.teachers), -1)
        return kappas.coded(flat, self.scale.tolist())[0]

    @cached_property
    def scores(self) -> dict[str, Floats]:
        """Axis -> each teacher's own score of each pair: [n_teachers, n_pairs], NaN where undefined."""
        own = [axis_scores(self.answers[:, t], self.protocol) for t in range(len(self.teachers))]
        return {axis: np.stack([scores[at] for scores in own]) for at, axis in enumerate(AXES)}

    @property
    def group(self) -> NDArray[np.int64]:
        """Concept and question of each item as one number: [n_pairs x n_questions]."""
        n = self.answers.shape[2]
        return (self.cluster[:, None] * n + np.arange(n)).ravel()

    @property
    def shape(self) -> tuple[int, int]:
        """Concepts, questions."""
        return self.times.shape[1], self.answers.shape[2]

    def ratio(self, total: Floats, count: Floats, pair: NDArray[np.int64] | None = None) -> Estimate:
        """Mean of ``total`` over ``count``, both [n] of the pairs, or of ``pair`` positions [n]."""
        of = self.cluster if pair is None else self.cluster[pair]
        sums = np.stack([np.bincount(of, weights=w, minlength=self.shape[0]) for w in (total, count)], axis=1)
        return self.estimate(sums.astype(np.float64), _divide)[0]

    def estimate(self, counts: Floats, statistic: Callable[[Floats], Floats]) -> list[Estimate]:
        """See :func:`bcs_lab.agreement.estimate`."""
        values, intervals = kappas.estimate(counts, self.times, statistic)
        return [Estimate(value, interval) for value, interval in zip(values, intervals, strict=True)]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval; ``None`` where undefined."""

    value: float | None
    interval: list[float] | None = None

    def row(self, name: str) -> dict[str, float | None]:
        """Three columns of a table."""
        low, high = self.interval or (None, None)
        return {name: self.value, f"{name}_lo": low, f"{name}_hi": high}


def _divide(sums: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(sums[:, 1:] > 0, sums[:, :1] / sums[:, 1:], np.nan)


def prepare(corpus: Corpus, teachers: Sequence[str], settings: Settings) -> Items:
    """The items of a corpus.

    Args:
        corpus: with answers.
        teachers: those to compare, of the corpus.
        settings: of the resampling.

    Raises:
        CorpusError: none of the teachers answered any question.
    """
    answers = teacher_answers(corpus.answers, corpus.teachers, teachers).astype(np.float64)
    if np.isnan(answers).all():
        raise CorpusError(
            f"The corpus {corpus.name!r} holds no answer of {', '.join(teachers)}; expected answers of the teachers to "
            "compare. Annotate it first (bcs annotate), or choose others (teachers=…)."
        )
    # As the corpus holds them, so that a level such as 1/3 is found again.
    scale = np.unique(np.array(list(corpus.protocol.levels.values()), dtype=corpus.answers.dtype).astype(np.float64))
    reference = np.where(corpus.pairs["reference_path"] == "", corpus.pairs["pair_id"], corpus.pairs["reference_path"])
    labels = clusters(pd.DataFrame({"concept": corpus.pairs["concept"], "reference": reference}))
    names, cluster = np.unique(labels.astype(str), return_inverse=True)
    times = kappas.cluster_draws(len(names), settings.resamples, settings.seed)
    return Items(corpus.protocol, tuple(teachers), answers, scale, cluster.astype(np.int64), times)


def analyze(
    corpus: Corpus,
    teachers: Sequence[str],
    settings: Settings | None = None,
    rationales: Cosines | str = "not asked for",
) -> dict[str, Any]:
    """The content of ``agreement.json``; everything undefined is ``None``, with its reason under ``undefined``.

    Args:
        corpus: with answers.
        teachers: those to compare, of the corpus.
        settings: of intervals and galleries.
        rationales: cosines of the same teachers' rationales, or why there are none.

    Raises:
        CorpusError: none of the teachers answered any question.
    """
    settings = settings or Settings()
    items = prepare(corpus, teachers, settings)
    overall, per_item, questions = _questions(items)
    pairwise = _pairwise(items)
    by_teacher = _by_teacher(items)
    spoken = _rationales(items, rationales)
    questions.sort(key=lambda row: _order(row["unanimous"], row["kappa"]))
    result: dict[str, Any] = {
        "n_pairs": int(items.complete.any(axis=1).sum()),
        "n_items": int(items.complete.sum()),
        "teachers": list(items.teachers),
        "unanimous_rate": overall["unanimous"].value,
        "fleiss_kappa": overall["kappa"].value,
        "weighted_kappa": _matrix(items, pairwise, "weighted_kappa", _own_kappas(items)),
        "per_question": {row["id"]: {"unanimous": row["unanimous"], "kappa": row["kappa"]} for row in questions},
        "t_pas": {row["teacher"]: row["t_pas"] for row in by_teacher},
        "t_sas": {row["teacher"]: row["t_sas"] for row in by_teacher},
        "rationale_similarity": spoken["matrix"],
        "corpus": corpus.name,
        "simulated_teachers": corpus.simulated_teachers,
        "protocol": _protocol(items.protocol),
        "used": _used(items, len(corpus)),
        "settings": {
            "resamples": settings.resamples,
            "seed": settings.seed,
            "clusters": items.shape[0],
            "items": "complete: answered by every teacher",
            "fleiss": "nominal, chance from the pooled answers",
            "weighted_kappa": "Cohen's, linear weights, scale " + " < ".join(_labels(items)),
            "interval": "95 %, percentiles of a bootstrap over whole concepts",
        },
        "ci95": {
            "unanimous_rate": overall["unanimous"].interval,
            "fleiss_kappa": overall["kappa"].interval,
            "weighted_kappa": _intervals(pairwise, "weighted_kappa"),
            "per_question": {
                row["id"]: {name: _bounds(row, name) for name in ("unanimous", "kappa")} for row in questions
            },
            **{axis: {row["teacher"]: _bounds(row, axis) for row in by_teacher} for axis in AXES},
            "rationale_similarity": _intervals(spoken["pairwise"], "similarity") or None,
        },
        "fleiss": {"observed": overall["observed"].value, "chance": overall["chance"].value},
        "fleiss_per_item": per_item,
        "alpha": _alphas(items),
        "patterns": _patterns(items),
        "by_teacher": by_teacher,
        "consensus": _consensus(items),
        "pairwise": pairwise,
        "questions": questions,
        "influence": _influence(items),
        "rationales": {key: value for key, value in spoken.items() if key != "matrix"},
        "disagreement": _disagreement(corpus, items, settings.pairs),
        "paper": _paper(items.teachers, items.protocol),
    }
    result["undefined"] = _undefined(result, items)
    result["notes"] = _notes(result, items)
    return result


# --- questions and everything together --------------------------------------------------------------------------------


def _questions(items: Items) -> tuple[dict[str, Estimate], dict[str, Any], list[dict[str, Any]]]:
    """Unanimity and Fleiss' kappa over all complete items, the same with incomplete ones, and by question."""
    n_clusters, n_questions = items.shape
    k = len(items.scale)
    counts = kappas.fleiss_counts(items.codes, k, items.group, n_clusters * n_questions)
    counts = counts.reshape(n_clusters, n_questions, -1)
    names = ("unanimous", "observed", "chance", "kappa")
    overall = dict(zip(names, items.estimate(counts.sum(axis=1), kappas.fleiss_shares), strict=True))
    each = items.estimate(counts, lambda sums: kappas.fleiss_shares(sums).reshape(len(sums), -1))
    everything = kappas.fleiss_counts(items.codes, k, np.repeat(items.cluster, n_questions), n_clusters, "any")
    loose = dict(zip(names, items.estimate(everything, kappas.fleiss_shares), strict=True))
    used = int(everything[:, 0].sum())
    per_item = {
        "kappa": loose["kappa"].value,
        "ci95": loose["kappa"].interval,
        "unanimous": loose["unanimous"].value,
        "items": used,
        "dropped": items.codes.shape[1] - used,
    }
    tables = kappas.coincidence_tables(items.codes, k, items.group, n_clusters * n_questions)
    alpha = items.estimate(
        tables.reshape(n_clusters, n_questions, k, k), lambda sums: kappas.alphas_of(sums, items.scale, "ordinal")
    )
    low, high = _range(items)
    rows = []
    for q, question in enumerate(items.protocol.questions):
        own = dict(zip(names, each[4 * q : 4 * q + 4], strict=True))
        complete = items.complete[:, q]
        opposite = (high - low)[complete, q] >= items.scale[-1] - items.scale[0] - SAME
        rows.append(
            {
                "id": question.id,
                "name": question.name,
                "group": question.group,
                "items": int(complete.sum()),
                "dropped": int((~complete).sum()),
                **own["unanimous"].row("unanimous"),
                **own["kappa"].row("kappa"),
                **alpha[q].row("alpha_ordinal"),
                "opposite": float(opposite.mean()) if complete.any() and len(items.teachers) > 1 else None,
                "mean": _mean(items.answers[:, :, q]),
                "means": {name: _mean(items.answers[:, t, q]) for t, name in enumerate(items.teachers)},
                "paper": paper_agreement()["per_question"].get(question.id) if _is_bcs12(items.protocol) else None,
            }
        )
    return overall, per_item, rows


def _order(unanimous: float | None, kappa: float | None) -> tuple[float, float]:
    """Least agreement first, undefined last."""
    return (2.0 if unanimous is None else unanimous, 2.0 if kappa is None else kappa)


def _alphas(items: Items) -> dict[str, Any]:
    """Krippendorff's alpha of all items with two answers or more, by level of measurement."""
    tables = kappas.coincidence_tables(
        items.codes, len(items.scale), np.repeat(items.cluster, items.shape[1]), items.shape[0]
    )

    def statistic(sums: Floats) -> Floats:
        return np.stack([kappas.alphas_of(sums, items.scale, level) for level in kappas.LEVELS], axis=-1)

    found = items.estimate(tables, statistic)
    return {
        level: {"value": own.value, "ci95": own.interval} for level, own in zip(kappas.LEVELS, found, strict=True)
    } | {"items": int(((items.codes >= 0).sum(axis=0) >= 2).sum())}


def _patterns(items: Items) -> dict[str, Any]:
    """Shares of the complete items by how many distinct answers they got, and with both ends of the scale."""
    if len(items.teachers) < 2 or not items.complete.any():
        return {"distinct_answers": None, "opposite": None}
    codes = items.codes[:, items.complete.ravel()]
    distinct = (codes[:, :, None] == np.arange(len(items.scale))).any(axis=0).sum(axis=1)
    most = min(len(items.scale), len(items.teachers))
    span = codes.max(axis=0) - codes.min(axis=0)
    return {
        "distinct_answers": {str(n): float((distinct == n).mean()) for n in range(1, most + 1)},
        "opposite": float((span == len(items.scale) - 1).mean()),
    }


def _range(items: Items) -> tuple[Floats, Floats]:
    """Lowest and highest answer of each item, NaN where fewer than two teachers answered: [n_pairs, n_questions]."""
    present = ~np.isnan(items.answers)
    several = present.sum(axis=1) >= 2
    low = np.where(present, items.answers, np.inf).min(axis=1)
    high = np.where(present, items.answers, -np.inf).max(axis=1)
    return np.where(several, low, np.nan), np.where(several, high, np.nan)


# --- pairs of teachers ------------------------------------------------------------------------------------------------


def _pairwise(items: Items) -> list[dict[str, Any]]:
    """One row for every two teachers: agreement of their answers on complete items, and of their T-PAS and T-SAS."""
    pairs = items.pairs_of_teachers
    if not pairs:
        return []
    codes = np.where(items.complete.ravel(), items.codes, -1)
    cluster = np.repeat(items.cluster, items.shape[1])
    k, n = len(items.scale), items.shape[0]
    found = items.estimate(kappas.pair_tables(codes, k, cluster, n), _pair_statistics(items.scale))
    loose = items.estimate(
        kappas.pair_tables(items.codes, k, cluster, n), lambda tables: kappas.kappas_of(tables, "linear")
    )
    names = ("weighted_kappa", "exact", "adjacent", "opposite", "mean_difference")
    rows = []
    for at, (a, b) in enumerate(pairs):
        own = dict(zip(names, found[5 * at : 5 * at + 5], strict=True))
        both = int(((items.codes[a] >= 0) & (items.codes[b] >= 0)).sum())
        row: dict[str, Any] = {"first": items.teachers[a], "second": items.teachers[b]}
        row["items"] = int(items.complete.sum())
        for name, value in own.items():
            row |= value.row(name)
        row |= {"items_both": both, **loose[at].row("weighted_kappa_both")}
        for axis in AXES:
            row |= _correlated(items, axis, a, b)
        rows.append(row)
    return rows


def _pair_statistics(scale: Floats) -> Callable[[Floats], Floats]:
    """From tables [n, m, k, k] to kappa, exact, adjacent and opposite rate and mean difference: [n, 5 m]."""
    k = len(scale)
    step = np.abs(np.subtract.outer(np.arange(k), np.arange(k)))
    opposite = (step == k - 1) & (step > 0)
    weights = [step == 0, (step == 1) & ~opposite, opposite, np.abs(np.subtract.outer(scale, scale))]

    def statistic(tables: Floats) -> Floats:
        total = tables.sum(axis=(-1, -2))
        with np.errstate(invalid="ignore", divide="ignore"):
            shares = [np.where(total > 0, (tables * weight).sum(axis=(-1, -2)) / total, np.nan) for weight in weights]
        return np.stack([kappas.kappas_of(tables, "linear"), *shares], axis=-1).reshape(len(tables), -1)

    return statistic


def _correlated(items: Items, axis: str, a: int, b: int) -> dict[str, Any]:
    """Pearson, Spearman and mean difference of two teachers' own scores, over the pairs that have both."""
    x, y = items.scores[axis][a], items.scores[axis][b]
    use = ~np.isnan(x) & ~np.isnan(y)
    x, y = x[use], y[use]
    drawn = resampled(x, y, items.cluster[use], items.times) if len(x) and len(items.times) else {}
    row: dict[str, Any] = {f"{axis}_pairs": int(use.sum())}
    difference = float(np.abs(x - y).mean()) if len(x) else None
    for name, key, value in (
        ("pearson", "r", pearson(x, y)),
        ("spearman", "rho", spearman(x, y)),
        ("difference", "mae", difference),
    ):
        interval = None if value is None else percentile_interval(drawn.get(key))
        row |= Estimate(value, interval).row(f"{axis}_{name}")
    return row


def _own_kappas(items: Items) -> list[float | None]:
    """Kappa of each teacher with itself: 1, or undefined for one that gave the same answer throughout."""
    codes = np.where(items.complete.ravel(), items.codes, -1)
    return [1.0 if len(np.unique(row[row >= 0])) > 1 else None for row in codes]


def _matrix(
    items: Items, rows: Sequence[Mapping[str, Any]], key: str, diagonal: Sequence[float | None]
) -> dict[str, dict[str, float | None]]:
    """Teacher -> teacher -> value, both ways."""
    values = {(row["first"], row["second"]): row[key] for row in rows}
    own = dict(zip(items.teachers, diagonal, strict=True))
    return {
        a: {b: own[a] if a == b else values.get((a, b), values.get((b, a))) for b in items.teachers}
        for a in items.teachers
    }


def _intervals(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, dict[str, list[float] | None]]:
    """First -> second -> interval, each two teachers once."""
    out: dict[str, dict[str, list[float] | None]] = {}
    for row in rows:
        out.setdefault(row["first"], {})[row["second"]] = _bounds(row, key)
    return out


def _bounds(row: Mapping[str, Any], name: str) -> list[float] | None:
    low, high = row[f"{name}_lo"], row[f"{name}_hi"]
    return None if low is None else [low, high]


# --- rationales -------------------------------------------------------------------------------------------------------


def _rationales(items: Items, given: Cosines | str) -> dict[str, Any]:
    """Mean cosine of every two teachers' rationales, where they answered alike and where not, and by chance."""
    if isinstance(given, str):
        return {"matrix": None, "reason": given, "pairwise": []}
    if len(items.teachers) < 2 or not given.used.any():
        reason = ONE_TEACHER if len(items.teachers) < 2 else "no item for which every teacher gave a rationale"
        return {"matrix": None, "reason": reason, **given.facts, "pairwise": []}
    pair, question = np.nonzero(given.used)
    rows = []
    for at, (a, b) in enumerate(items.pairs_of_teachers):
        same = items.answers[pair, a, question] == items.answers[pair, b, question]
        cosine, other = given.values[:, at], given.shuffled[:, at]
        row: dict[str, Any] = {"first": items.teachers[a], "second": items.teachers[b], "items": len(cosine)}
        row |= items.ratio(cosine, np.ones_like(cosine), pair).row("similarity")
        row["same_answer"] = _mean(cosine[same])
        row["other_answer"] = _mean(cosine[~same])
        row["other_pair"] = _mean(other)
        rows.append(row)
    matrix = _matrix(items, rows, "similarity", [1.0] * len(items.teachers))
    return {"matrix": matrix, "reason": None, **given.facts, "pairwise": rows}


# --- teachers ---------------------------------------------------------------------------------------------------------


def _by_teacher(items: Items) -> list[dict[str, Any]]:
    """One row a teacher: Table 4, and how it uses the scale."""
    paper = paper_agreement()
    rows = []
    for t, name in enumerate(items.teachers):
        row: dict[str, Any] = {"teacher": name}
        for axis in AXES:
            scores = items.scores[axis][t]
            known = ~np.isnan(scores)
            row |= items.ratio(np.where(known, scores, 0.0), known.astype(np.float64)).row(axis)
            row[f"{axis}_pairs"] = int(known.sum())
        given = items.codes[t][items.codes[t] >= 0]
        row["answers"], row["missing"] = len(given), int(items.codes.shape[1] - len(given))
        for code, label in enumerate(_labels(items)):
            row[f"share_{label}"] = float((given == code).mean()) if len(given) else None
        row["same_answer_throughout"] = bool(len(given)) and len(np.unique(given)) == 1
        row["paper"] = {axis: paper[axis].get(name) for axis in AXES} if name in paper["t_pas"] else None
        rows.append(row)
    return rows


def _labels(items: Items) -> list[str]:
    """The label of each value of the scale, ascending."""
    levels = items.protocol.levels
    return [next(label for label, score in levels.items() if abs(score - value) < SAME) for value in items.scale]


def _consensus(items: Items) -> dict[str, Any]:
    """Mean T-PAS and T-SAS of the consensus, as in training."""
    row: dict[str, Any] = {}
    for axis, scores in zip(AXES, axis_scores(consensus(items.answers), items.protocol), strict=True):
        known = ~np.isnan(scores)
        row |= items.ratio(np.where(known, scores, 0.0), known.astype(np.float64)).row(axis)
        row[f"{axis}_pairs"] = int(known.sum())
    return row


def _influence(items: Items) -> list[dict[str, Any]]:
    """One row a teacher: what the consensus would be without it, against what it is; and its distance to that.

    An even number of teachers has the mean of the middle two answers as its median; without any one of them the median
    is one of the two. So all teachers move an answer equally far, and only the direction (``shift``) tells them apart.
    """
    if len(items.teachers) < 2:
        return []
    full = consensus(items.answers).astype(np.float64)
    full_scores = dict(zip(AXES, axis_scores(full, items.protocol), strict=True))
    rows = []
    for t, name in enumerate(items.teachers):
        rest = consensus(np.delete(items.answers, t, axis=1)).astype(np.float64)
        rest_scores = dict(zip(AXES, axis_scores(rest, items.protocol), strict=True))
        both = ~np.isnan(full) & ~np.isnan(rest)
        pair = np.nonzero(both)[0]
        row: dict[str, Any] = {"teacher": name, **_moved(items, "questions", full[both], rest[both], pair)}
        answered = ~np.isnan(items.answers[:, t]) & ~np.isnan(rest)
        gap, where = (items.answers[:, t] - rest)[answered], np.nonzero(answered)[0]
        row |= items.ratio(np.abs(gap), np.ones_like(gap), where).row("distance")
        row |= items.ratio(gap, np.ones_like(gap), where).row("offset")
        row["questions_lost"] = int((~np.isnan(full) & np.isnan(rest)).sum())
        for axis, scores in full_scores.items():
            known = np.flatnonzero(~np.isnan(scores) & ~np.isnan(rest_scores[axis]))
            row |= _moved(items, axis, scores[known], rest_scores[axis][known], known)
        before, after = (regime_codes(s["t_pas"], s["t_sas"]) for s in (full_scores, rest_scores))
        judged = (before != "") & (after != "")
        row["regime_pairs"] = int(judged.sum())
        row["regime_changed"] = float((before != after)[judged].mean()) if judged.any() else None
        row["per_question"] = {
            question.id: {
                "change": _mean(np.abs(full - rest)[both[:, q], q]),
                "changed": _mean(np.abs(full - rest)[both[:, q], q] > SAME),
                "shift": _mean((full - rest)[both[:, q], q]),
            }
            for q, question in enumerate(items.protocol.questions)
        }
        rows.append(row)
    return rows


def _moved(items: Items, name: str, full: Floats, rest: Floats, pair: NDArray[np.int64]) -> dict[str, Any]:
    """Mean absolute change with interval, share changed, mean shift (with minus without) and rank correlation."""
    change = np.abs(full - rest)
    one = np.ones_like(change)
    return {
        f"{name}_n": len(change),
        **items.ratio(change, one, pair).row(f"{name}_change"),
        f"{name}_changed": _mean(change > SAME),
        f"{name}_shift": _mean(full - rest),
        f"{name}_largest": float(change.max()) if len(change) else None,
        f"{name}_spearman": spearman(full, rest),
    }


# --- disagreement -----------------------------------------------------------------------------------------------------


def pair_disagreement(items: Items) -> dict[str, Floats]:
    """How far the teachers are apart on each pair.

    Returns:
        ``range``: mean over the questions of highest minus lowest answer, NaN where fewer than half of the questions
        have two answers; ``opposite``: number of questions answered with both ends of the scale; ``t_pas`` and
        ``t_sas``: highest minus lowest score of the teachers, NaN below two; each [n_pairs].
    """
    low, high = _range(items)
    span = high - low
    known = ~np.isnan(span)
    count = known.sum(axis=1)
    total = np.where(known, span, 0.0).sum(axis=1)
    out = {
        "range": np.where((count > 0) & (2 * count >= span.shape[1]), total / np.maximum(count, 1), np.nan),
        "opposite": (span >= items.scale[-1] - items.scale[0] - SAME).sum(axis=1).astype(np.float64),
    }
    for axis, scores in items.scores.items():
        several = (~np.isnan(scores)).sum(axis=0) >= 2
        highest = np.where(np.isnan(scores), -np.inf, scores).max(axis=0)
        lowest = np.where(np.isnan(scores), np.inf, scores).min(axis=0)
        out[axis] = np.where(several, np.where(several, highest, 0) - np.where(several, lowest, 0), np.nan)
    return out


def _disagreement(corpus: Corpus, items: Items, n: int) -> dict[str, Any]:
    """Galleries of the pairs on which the teachers are farthest apart."""
    apart = pair_disagreement(items)
    concepts = corpus.pairs["concept"].astype(str).tolist()
    rows: list[dict[str, Any]] = []
    for key, title, lead in _GALLERIES:
        value = apart[key]
        known = np.flatnonzero(~np.isnan(value) & (np.nan_to_num(value) > 0))
        # Ties: more opposite answers first, then the order of ids.
        order = sorted(known.tolist(), key=lambda i: (-round(float(value[i]), 9), -apart["opposite"][i], i))
        chosen = pick(order, concepts, n)
        if chosen:
            shown = [_pair(corpus, items, apart, i) for i in chosen]
            rows.append({"key": key, "title": title, "lead": lead, "pairs": shown})
    everything = {name: _mean(values) for name, values in apart.items()}
    return {"mean": everything, "galleries": rows}


_GALLERIES = (
    (
        "range",
        "Over all questions",
        "Largest mean distance between the highest and the lowest answer to a question.",
    ),
    ("t_pas", "On looks", "Largest distance between the highest and the lowest T-PAS of a teacher."),
    ("t_sas", "On meaning", "Largest distance between the highest and the lowest T-SAS of a teacher."),
)


def _pair(corpus: Corpus, items: Items, apart: Mapping[str, Floats], row: int) -> dict[str, Any]:
    """What a gallery says about a pair."""
    pair = corpus.pairs.iloc[row]
    return {
        "pair_id": str(pair["pair_id"]),
        "row": row,
        "concept": str(pair["concept"]),
        "method": str(pair["method"]),
        **{f"apart_{name}": _optional(values[row]) for name, values in apart.items()},
        **{
            axis: {name: _optional(scores[t][row]) for t, name in enumerate(items.teachers)}
            for axis, scores in items.scores.items()
        },
        "answers": {
            name: {q.id: _optional(items.answers[row, t, at]) for at, q in enumerate(items.protocol.questions)}
            for t, name in enumerate(items.teachers)
        },
    }


def disagreement_rows(corpus: Corpus, items: Items) -> list[dict[str, Any]]:
    """One row a pair, those with the strongest disagreement first."""
    apart = pair_disagreement(items)
    order = sorted(
        range(len(corpus)),
        key=lambda i: (np.isnan(apart["range"][i]), -np.nan_to_num(apart["range"][i]), -apart["opposite"][i], i),
    )
    rows = []
    for i in order:
        pair = corpus.pairs.iloc[i]
        row: dict[str, Any] = {key: str(pair[key]) for key in ("pair_id", "concept", "method")}
        row |= {f"apart_{name}": _optional(values[i]) for name, values in apart.items()}
        for axis, scores in items.scores.items():
            row |= {f"{axis}_{name}": _optional(scores[t][i]) for t, name in enumerate(items.teachers)}
        rows.append(row)
    return rows


# --- what was used, what is undefined, what to know -------------------------------------------------------------------


def _used(items: Items, n_pairs: int) -> dict[str, Any]:
    """How many items count, and why the others do not."""
    given = (items.codes >= 0).sum(axis=0)
    complete = int(items.complete.sum())
    return {
        "corpus_pairs": n_pairs,
        "pairs": int(items.complete.any(axis=1).sum()),
        "pairs_dropped": int(n_pairs - items.complete.any(axis=1).sum()),
        "possible_items": items.codes.shape[1],
        "items": complete,
        "items_dropped": items.codes.shape[1] - complete,
        "dropped": {
            "answered by no teacher": int((given == 0).sum()),
            "answered by some teachers only": int(((given > 0) & (given < len(items.teachers))).sum()),
        },
        "missing": {name: int((items.codes[t] < 0).sum()) for t, name in enumerate(items.teachers)},
    }


def _undefined(result: Mapping[str, Any], items: Items) -> dict[str, str]:
    """Path of every undefined published statistic -> why."""
    alone = len(items.teachers) < 2
    out: dict[str, str] = {}

    def why(n: int) -> str:
        return ONE_TEACHER if alone else NO_ITEM if n == 0 else ALL_ALIKE

    for key in ("unanimous_rate", "fleiss_kappa"):
        if result[key] is None:
            out[key] = why(result["n_items"])
    for a, values in result["weighted_kappa"].items():
        for b, value in values.items():
            if value is None and f"weighted_kappa/{b}/{a}" not in out:
                same = "gave one and the same answer throughout"
                reason = NO_ITEM if not result["n_items"] else f"{a if a == b else 'both'} {same}"
                out[f"weighted_kappa/{a}/{b}"] = reason
    for row in result["questions"]:
        for key in ("unanimous", "kappa"):
            if row[key] is None:
                nothing = "no pair for which every teacher answered it"
                out[f"per_question/{row['id']}/{key}"] = (
                    nothing if not alone and not row["items"] else why(row["items"])
                )
    for axis, name in AXES.items():
        questions = items.protocol.indices(GROUPS[axis])
        for teacher, value in result[axis].items():
            if value is None:
                half = f"no pair with at least half of its {GROUPS[axis]} questions answered"
                out[f"{axis}/{teacher}"] = half if questions else f"the protocol has no question of {name}"
        for row in result["pairwise"]:
            if row[f"{axis}_pearson"] is None:
                few = "fewer than two pairs scored by both" if row[f"{axis}_pairs"] < 2 else "one side does not vary"
                reason = few if questions else f"the protocol has no question of {name}"
                out[f"pairwise/{row['first']}/{row['second']}/{axis}"] = reason
    if result["rationale_similarity"] is None:
        out["rationale_similarity"] = result["rationales"]["reason"]
    return out


def _notes(result: Mapping[str, Any], items: Items) -> list[str]:
    """What must be known before a number is read."""
    used = result["used"]
    out = []
    if result["simulated_teachers"]:
        out.append("SIMULATED teachers: answers and rationales were computed, not given by annotators.")
    if len(items.teachers) < 2:
        out.append(f"Only {items.teachers[0]} is compared: agreement needs two teachers or more.")
    if used["items_dropped"] and len(items.teachers) > 1:
        missing = ", ".join(f"{name} {n:,}" for name, n in used["missing"].items() if n)
        out.append(
            f"{used['items']:,} of {used['possible_items']:,} items were answered by every teacher and are used; "
            f"{used['items_dropped']:,} are dropped (missing answers: {missing})."
        )
    out += [
        f"{row['teacher']} gave one and the same answer throughout."
        for row in result["by_teacher"]
        if row["same_answer_throughout"]
    ]
    if result["rationale_similarity"] is None and len(items.teachers) > 1:
        out.append(f"No rationale similarity: {result['rationales']['reason']}.")
    facts = result["rationales"]
    if facts.get("items", 0) < facts.get("items_with_all_rationales", 0):
        out.append(
            f"Rationale similarity is over {facts['items']:,} items drawn at random from "
            f"{facts['items_with_all_rationales']:,}."
        )
    if items.shape[0] < 2:
        out.append("One concept only: there are no intervals.")
    return out


# --- the paper --------------------------------------------------------------------------------------------------------


def _is_bcs12(protocol: Protocol) -> bool:
    return protocol.ids == BCS12.ids


def _paper(teachers: Sequence[str], protocol: Protocol) -> dict[str, Any] | None:
    """The paper's own values beside which these stand; ``None`` for other questions."""
    if not _is_bcs12(protocol):
        return None
    paper = paper_agreement()
    keys = ("pairs", "items", "unanimous_rate", "fleiss_kappa")
    return {
        "what": "the paper's teachers on the paper's corpus",
        **{key: paper[key] for key in keys},
        **{
            key: {
                a: {b: paper_value(key, a, b) for b in teachers if a != b and paper_value(key, a, b) is not None}
                for a in teachers
                if a in paper["t_pas"]
            }
            for key in ("weighted_kappa", "rationale_similarity")
        },
    }


def paper_value(key: str, a: str, b: str) -> float | None:
    """A value of Figure 3 for two of the paper's teachers, in either order."""
    table = paper_agreement()[key]
    return table.get(a, {}).get(b, table.get(b, {}).get(a))


def _protocol(protocol: Protocol) -> dict[str, Any]:
    return {
        "name": protocol.name,
        "digest": getattr(protocol, "digest", None),
        "levels": dict(protocol.levels),
        "questions": {question.id: question.name for question in protocol.questions},
    }


def _mean(values: NDArray[Any]) -> float | None:
    known = np.asarray(values, dtype=np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if known.size else None


def _optional(value: float | np.floating) -> float | None:
    plain = float(value)
    return None if np.isnan(plain) else plain
