"""What ratings say: agreement between raters as in Table 7, and agreement of their means with T-PAS and T-SAS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from bcs_lab.agreement import agreement, cluster_draws, pair_kappas
from bcs_lab.evaluate import pearson, percentile_interval, spearman
from bcs_lab.human.questionnaire import Group, Questionnaire
from bcs_lab.human.ratings import Ratings
from bcs_lab.human.select import joint_coherence
from bcs_lab.human.study import STRATA, Study
from bcs_lab.report.table import number

Floats = NDArray[np.float64]

#: Scores the raters' means are compared with, and their names.
SCORES: Mapping[str, str] = {"t_pas": "T-PAS", "t_sas": "T-SAS", "coherence": "joint coherence"}

#: Which score a group of questions should follow.
MATCHING: Mapping[str, str] = {"semantic": "t_sas", "perceptual": "t_pas", "coherence": "coherence"}

#: A rater who gives one answer in at least this share of cases is pointed out.
CONSTANT = 0.95

#: A rater who leaves out more than this share is pointed out.
MISSING = 0.05


@dataclass(frozen=True)
class Settings:
    """How agreement is counted.

    Attributes:
        weights: of Cohen's kappa.
        level: of Krippendorff's alpha; nominal is reported beside it.
        resamples: of whole stimuli.
        seed: of the resampling.
        fast_seconds: a median time below this is pointed out.
    """

    weights: str = "none"
    level: str = "ordinal"
    resamples: int = 1000
    seed: int = 0
    fast_seconds: float = 1.0


@cache
def paper_table7() -> dict[str, dict[str, float]]:
    """Table 7 as published."""
    return yaml.safe_load(files("bcs_lab").joinpath("assets/paper_table7.yaml").read_text(encoding="utf-8"))


def analyze(study: Study, questionnaire: Questionnaire, ratings: Ratings, settings: Settings) -> dict[str, Any]:
    """The content of ``study_results.json``; everything undefined is ``None``.

    Args:
        study: what was rated and what its pairs score.
        questionnaire: what was asked.
        ratings: what was answered.
        settings: how agreement is counted.
    """
    groups = ordered_groups(questionnaire)
    stimuli = np.array([item.stimulus for item in study.items])
    means = {group.id: item_means(ratings, group) for group in groups}
    result: dict[str, Any] = {
        "study": study.digest,
        "corpus": study.corpus,
        "simulated_scores": study.simulated,
        "scores": dict(study.scores),
        "questionnaire": {"digest": questionnaire.digest, **questionnaire.structure},
        "raters": len(ratings.raters),
        "items": len(study.items),
        "stimuli": len(set(stimuli.tolist())),
        "settings": {
            "kappa_weights": settings.weights,
            "alpha_level": settings.level,
            "resamples": settings.resamples,
            "seed": settings.seed,
            "coherence": study.coherence,
        },
        "groups": [
            {**_reliability(ratings, questionnaire, stimuli, [q.id for q in group.questions], settings, group=group.id),
             "paper": paper_table7().get(group.id)}
            for group in groups
        ],
        "questions": [
            {**_reliability(ratings, questionnaire, stimuli, [q.id], settings, group=group.id, question=q.id),
             "mean": _optional(_nanmean(ratings.group([q.id])))}
            for group in groups
            for q in group.questions
        ],
        "correlations": correlations(study, means, settings),
        "strata": _strata(study, means),
        "pairs": _pairs(study, means),
        "rater_diagnostics": diagnostics(ratings, questionnaire, settings),
        "excluded": list(ratings.excluded),
        "left_out": [str(problem) for problem in ratings.problems],
    }  # fmt: skip
    result["warnings"] = _warnings(study, ratings, result)
    return result


def ordered_groups(questionnaire: Questionnaire) -> list[Group]:
    """Groups in Table 7's order, others after them."""
    known = list(paper_table7())
    return sorted(questionnaire.groups, key=lambda group: known.index(group.id) if group.id in known else len(known))


def _reliability(
    ratings: Ratings,
    questionnaire: Questionnaire,
    stimuli: NDArray[Any],
    questions: Sequence[str],
    settings: Settings,
    **names: str,
) -> dict[str, Any]:
    """Agreement on some questions: a unit is one question about one pair, stimuli are what is drawn."""
    part = ratings.group(questions)
    levels = list(dict.fromkeys([settings.level, "nominal"]))
    found = agreement(
        part.reshape(len(part), -1),
        np.repeat(stimuli, len(questions)),
        categories=questionnaire.scale.values,
        weights=settings.weights,
        levels=levels,
        n_boot=settings.resamples,
        seed=settings.seed,
    )

    def bounds(name: str, interval: list[float] | None) -> dict[str, float | None]:
        low, high = interval or (None, None)
        return {f"{name}_lo": low, f"{name}_hi": high}

    return {
        **names,
        "questions": len(questions),
        "ratings": found.ratings,
        "missing": found.missing,
        "kappa_mean": found.kappas.mean,
        "kappa_std": found.kappas.std,
        **bounds("kappa", found.kappa_interval),
        "rater_pairs": len(found.kappas.pairs),
        "rater_pairs_undefined": found.kappas.undefined,
        "alpha_level": settings.level,
        "alpha": found.alpha[settings.level],
        **bounds("alpha", found.alpha_interval[settings.level]),
        "alpha_nominal": found.alpha["nominal"],
        **bounds("alpha_nominal", found.alpha_interval["nominal"]),
    }


# --- means and scores -----------------------------------------------------------------------------------------------


def item_means(ratings: Ratings, group: Group) -> Floats:
    """Raters' mean of every pair in a group of questions: [n_items], NaN where there is no rating.

    It is the mean over the group's questions of each question's mean over the raters who answered it, so that each
    question counts alike, however many raters answered it; a question that nobody answered is left out.
    """
    part = ratings.group([question.id for question in group.questions])
    per_question = np.array([[_nanmean(part[:, i, q]) for q in range(part.shape[2])] for i in range(part.shape[1])])
    return np.array([_nanmean(row) for row in per_question])


def correlations(study: Study, means: Mapping[str, Floats], settings: Settings) -> list[dict[str, Any]]:
    """Pearson and Spearman of every group's means with every score, with intervals over stimuli."""
    scores = {key: np.array([getattr(item, key) for item in study.items]) for key in SCORES}
    _, cluster = np.unique([item.stimulus for item in study.items], return_inverse=True)
    times = cluster_draws(int(cluster.max()) + 1, settings.resamples, settings.seed)[:, cluster]
    rows = []
    for group, mean in means.items():
        for key, score in scores.items():
            use = ~np.isnan(mean) & ~np.isnan(score)
            drawn = _resampled(mean[use], score[use], times[:, use])
            row: dict[str, Any] = {"group": group, "score": key, "pairs": int(use.sum())}
            for name, estimate, values in (("pearson", pearson, drawn[0]), ("spearman", spearman, drawn[1])):
                low, high = percentile_interval(values) or (None, None)
                row |= {name: estimate(mean[use], score[use]), f"{name}_lo": low, f"{name}_hi": high}
            rows.append({**row, "matching": MATCHING.get(group) == key})
    return rows


def _resampled(x: Floats, y: Floats, times: Floats) -> tuple[Floats, Floats]:
    """Pearson and Spearman under every resample: ``times`` [n_boot, n] says how often each pair was drawn."""

    def ranks(values: Floats) -> Floats:
        """Average rank of each value among those drawn: all below it, and half of its equals."""
        below = (values[None, :] < values[:, None]) + 0.5 * (values[None, :] == values[:, None])
        return times @ below.T

    n = times.shape[0]
    plain = _weighted_pearson(np.broadcast_to(x, (n, len(x))), np.broadcast_to(y, (n, len(y))), times)
    return plain, _weighted_pearson(ranks(x), ranks(y), times)


def _weighted_pearson(x: Floats, y: Floats, times: Floats) -> Floats:
    count = times.sum(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        x = x - (times * x).sum(axis=1, keepdims=True) / count
        y = y - (times * y).sum(axis=1, keepdims=True) / count
        xx, yy, xy = ((times * product).sum(axis=1) for product in (x * x, y * y, x * y))
        return np.where((xx > 1e-12) & (yy > 1e-12), xy / np.sqrt(xx * yy), np.nan)


def _strata(study: Study, means: Mapping[str, Floats]) -> list[dict[str, Any]]:
    rows = []
    for name in STRATA:
        mine = np.array([item.stratum == name for item in study.items])
        if mine.any():
            scores = {
                key: float(np.mean([getattr(i, key) for i in study.items if i.stratum == name])) for key in SCORES
            }
            ratings = {f"rated_{group}": _optional(_nanmean(mean[mine])) for group, mean in means.items()}
            rows.append({"stratum": name, "pairs": int(mine.sum()), **scores, **ratings})
    return rows


def _pairs(study: Study, means: Mapping[str, Floats]) -> list[dict[str, Any]]:
    keys = ("item", "stimulus", "stratum", "pair_id", "method", "concept", "t_pas", "t_sas", "coherence")
    return [
        {
            **{key: getattr(item, key) for key in keys},
            **{f"rated_{group}": _optional(mean[at]) for group, mean in means.items()},
            "rated_joint": _rated_joint(study, means, at),
        }
        for at, item in enumerate(study.items)
    ]


def _rated_joint(study: Study, means: Mapping[str, Floats], at: int) -> float | None:
    """The joint coherence of what people said about looks and meaning, by the formula used for the scores."""
    if not {"perceptual", "semantic"} <= set(means):
        return None
    return _optional(float(joint_coherence(means["perceptual"][at], means["semantic"][at], study.coherence)))


# --- raters ---------------------------------------------------------------------------------------------------------


def diagnostics(ratings: Ratings, questionnaire: Questionnaire, settings: Settings) -> list[dict[str, Any]]:
    """One row a rater: speed, missing and constant answers, and agreement with the others.

    Nobody is left out because of it; whoever runs the study decides (``exclude=[…]``).
    """
    flat = ratings.values.reshape(len(ratings.raters), -1)
    kappas = pair_kappas(flat, questionnaire.scale.values, settings.weights)
    rows = []
    for r, rater in enumerate(ratings.raters):
        given = flat[r][~np.isnan(flat[r])]
        rest = [_nanmean(column) for column in np.delete(flat, r, axis=0).T]
        counts = np.unique(given, return_counts=True)[1]
        use = ~np.isnan(flat[r]) & ~np.isnan(rest)
        kappa = kappas.of_rater(r)
        row = {
            "rater": rater.code,
            "file": rater.file,
            "answers": len(given),
            "missing": int(np.isnan(flat[r]).sum()),
            "cannot_say": sum(value is None for value in rater.answers.values()),
            "median_seconds": float(np.median(rater.seconds)) if rater.seconds else None,
            "mean": _optional(_nanmean(given)),
            "same_answer_share": float(counts.max() / len(given)) if len(given) else None,
            "kappa_with_others": kappa,
            "spearman_with_mean_of_others": spearman(flat[r][use], np.array(rest)[use]),
            "comment": rater.comment,
        }
        rows.append({**row, "flags": _flags(row, settings)})
    return rows


def _flags(row: Mapping[str, Any], settings: Settings) -> list[str]:
    flags = []
    seconds, same, kappa = row["median_seconds"], row["same_answer_share"], row["kappa_with_others"]
    if seconds is not None and seconds < settings.fast_seconds:
        flags.append(f"fast: median {seconds:.1f} s an answer")
    if same is not None and same >= CONSTANT:
        flags.append(f"constant: one answer in {same:.0%} of cases")
    if kappa is not None and kappa <= 0:
        flags.append(f"agrees with nobody: mean kappa {number(kappa)}")
    if row["missing"] > MISSING * (row["answers"] + row["missing"]):
        flags.append(f"{row['missing']} of {row['answers'] + row['missing']} answers missing")
    return flags


def _warnings(study: Study, ratings: Ratings, result: Mapping[str, Any]) -> list[str]:
    out = list(study.warnings)
    if study.simulated:
        out.append("T-PAS and T-SAS come from SIMULATED teachers.")
    if len(ratings.raters) < 2:
        out.append("One rater agrees with nobody: kappa and alpha need at least two.")
    for row in result["groups"]:
        if row["rater_pairs_undefined"]:
            out.append(
                f"{row['group']}: {row['rater_pairs_undefined']} of {row['rater_pairs']} pairs of raters have no kappa "
                "(no pair rated by both, or one and the same answer throughout) and are left out of its mean."
            )
    if ratings.excluded:
        out.append(f"Excluded on request: {', '.join(ratings.excluded)}.")
    if ratings.problems:
        out.append(f"{len(ratings.problems)} bad file(s) or answer(s) were left out, listed under left_out.")
    return out


def _nanmean(values: Floats) -> float:
    """Mean of what is there; NaN for nothing, without a warning."""
    present = values[~np.isnan(values)]
    return float(present.mean()) if len(present) else float("nan")


def _optional(value: float | np.floating) -> float | None:
    plain = float(value)
    return None if np.isnan(plain) else plain
