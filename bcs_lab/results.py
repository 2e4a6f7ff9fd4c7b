"""What a training is worth and how it is written down: metrics, predictions, tables and figures of one run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bcs_lab.config import TrainConfig
from bcs_lab.corpus import Corpus
from bcs_lab.embeddings import PairEmbeddings
from bcs_lab.evaluate import (
    axis_scores,
    bootstrap_ci,
    cosine_baseline,
    cosine_line,
    cosine_scores,
    evaluate,
    train_mean_baseline,
)
from bcs_lab.files import replacing, write_json, write_text
from bcs_lab.report.table import BASELINE, HEADINGS, MEMBER, RUN, Row, number, paper_rows, text_table
from bcs_lab.snapping import fit_thresholds, snap_to_levels
from bcs_lab.split import Split, concept_key
from bcs_lab.teachers.protocol import Protocol

if TYPE_CHECKING:
    from bcs_lab.ensemble import Ensemble
    from bcs_lab.members import MemberResult

Floats = NDArray[np.floating]

#: Column prefix -> name of the axis.
AXES: Mapping[str, str] = {"t_pas": "T-PAS", "t_sas": "T-SAS"}


#: Name of the strongest plain baseline: the mean of the networks' cosines.
COSINE_MEAN = "cosine mean"


@dataclass(frozen=True)
class Scores:
    """Targets and predictions of all pairs, in corpus order.

    Attributes:
        target: float32 [n_pairs, n_questions], NaN where missing.
        prediction: what is reported and evaluated, float32 [n_pairs, n_questions]; levels when the ensemble snaps.
        raw: the members' mean, float32 [n_pairs, n_questions].
        std: population standard deviation over the members, float32 [n_pairs, n_questions].
        members: raw predictions, float32 [n_members, n_pairs, n_questions].
        snapped: whether ``prediction`` differs from ``raw``.
        split: parts of the pairs.
    """

    target: Floats
    prediction: Floats
    raw: Floats
    std: Floats
    members: Floats
    snapped: bool
    split: Split

    @classmethod
    def of(cls, members: Sequence[MemberResult], ensemble: Ensemble, targets: Floats, split: Split) -> Scores:
        """Combine the members as the ensemble does."""
        from bcs_lab.ensemble import combine

        raw, std = combine([member.predictions for member in members])
        stack = np.stack([member.predictions for member in members])
        return cls(targets, ensemble.report(raw), raw, std, stack, ensemble.thresholds is not None, split)

    def member(self, index: int) -> Floats:
        """What one member would report on its own, snapped by its own validation thresholds if the ensemble snaps."""
        raw = self.members[index]
        if not self.snapped:
            return raw
        val = self.split.indices("val")
        return snap_to_levels(raw, fit_thresholds(raw[val], self.target[val]))


def evaluate_parts(
    scores: Scores,
    members: Sequence[MemberResult],
    embeddings: Sequence[PairEmbeddings],
    corpus: Corpus,
    config: TrainConfig,
) -> dict[str, Any]:
    """Test metrics of the ensemble with intervals, of every member, and of the baselines.

    Returns:
        The keys ``ensemble``, ``ci95``, ``members``, ``baseline``, ``baselines`` and ``n`` of ``metrics.json``.
    """
    train, target = scores.split.indices("train"), scores.target
    plain = cosines(embeddings)
    lines = {name: cosine_line(cosine, target, train) for name, cosine in plain.items()}
    epochs = [(member.seed, member.best_epoch, member.epochs) for member in members]
    return evaluate_test(scores, epochs, plain, lines, train_mean_baseline(target, train), corpus, config) | {
        "n": scores.split.counts()
    }


def evaluate_test(
    scores: Scores,
    epochs: Sequence[tuple[int, int, int]],
    plain: Mapping[str, Floats],
    lines: Mapping[str, Floats],
    mean: Floats,
    corpus: Corpus,
    config: TrainConfig,
) -> dict[str, Any]:
    """The same without ``n``, from baselines that are predictions already.

    Args:
        scores: of the run.
        epochs: seed, best epoch and epochs of every member.
        plain: of :func:`cosines`.
        lines: name -> the line through it, [n_pairs, n_questions].
        mean: each question's training mean, [n_pairs, n_questions].
        corpus: the pairs.
        config: settings of the bootstrap.
    """
    test, target, protocol = scores.split.indices("test"), scores.target, corpus.protocol

    def on_test(prediction: Floats) -> dict[str, float | None]:
        return evaluate(prediction[test], target[test], protocol)

    concepts = corpus.pairs["concept"].map(concept_key).to_numpy()
    baselines: dict[str, Any] = {}
    for name, cosine in plain.items():
        baselines[name] = cosine_baseline(cosine[test], target[test], protocol)
        baselines[f"{name}, fitted"] = on_test(lines[name])
    return {
        "ensemble": on_test(scores.prediction),
        "ci95": bootstrap_ci(
            scores.prediction[test],
            target[test],
            concepts[test],
            protocol,
            n_boot=config.bootstrap.resamples,
            seed=config.bootstrap.seed,
        ),
        "members": [
            {"seed": seed, "best_epoch": best, "epochs": count, **on_test(scores.member(index))}
            for index, (seed, best, count) in enumerate(epochs)
        ],
        "baseline": on_test(mean),
        "baselines": baselines,
    }


def cosines(embeddings: Sequence[PairEmbeddings]) -> dict[str, Floats]:
    """The plain baselines: each encoder's cosine, and the mean over the encoders that are networks.

    The low-level statistics are left out of the mean, since they rank pairs far worse than any network.

    Returns:
        Name -> float64 [n_pairs]; ``cosine mean`` only where there are two networks or more.
    """
    found: dict[str, Floats] = {f"cosine {part.label}": cosine_scores(part) for part in embeddings}
    networks = [f"cosine {part.label}" for part in embeddings if (part.stand_in or part.name) != "lowlevel"]
    return with_mean(found, networks)


def with_mean(found: Mapping[str, Floats], networks: Sequence[str]) -> dict[str, Floats]:
    """The same cosines and, of two networks or more, their mean."""
    mean = {COSINE_MEAN: np.mean([found[name] for name in networks], axis=0)} if len(networks) >= 2 else {}
    return {**found, **mean}


def evaluate_truth(
    scores: Scores, answers: Floats, teachers: Sequence[str], truth: Floats, corpus: Corpus, config: TrainConfig
) -> dict[str, Any]:
    """How near the known truth come the consensus, each teacher and the ensemble, on the test part.

    Args:
        scores: of the run.
        answers: [n_pairs, n_teachers, n_questions] of the chosen teachers.
        teachers: their names.
        truth: [n_pairs, n_questions], NaN where it is not known.
        corpus: the pairs.
        config: settings of the bootstrap.

    Returns:
        ``consensus``, ``ensemble`` and, below ``each_teacher``, every teacher: Table 6's keys against the truth, and
        ``ci95`` with concept-clustered intervals of the same keys.
    """
    test = scores.split.indices("test")
    concepts = corpus.pairs["concept"].map(concept_key).to_numpy()[test]

    def against_truth(values: Floats) -> dict[str, Any]:
        known = np.where(np.isnan(values), np.nan, truth)[test]
        filled = np.nan_to_num(values[test])
        intervals = bootstrap_ci(
            filled, known, concepts, corpus.protocol, n_boot=config.bootstrap.resamples, seed=config.bootstrap.seed
        )
        return {**evaluate(filled, known, corpus.protocol), "ci95": intervals}

    return {
        "consensus": against_truth(scores.target),
        "ensemble": against_truth(scores.prediction),
        "each_teacher": {name: against_truth(answers[:, index]) for index, name in enumerate(teachers)},
        "n_test": len(test),
    }


def prediction_table(scores: Scores, corpus: Corpus) -> pd.DataFrame:
    """One row a pair: ``pair_id, split``, then ``<column>_target``, ``_prediction`` and ``_std`` for every question and
    for ``t_pas`` and ``t_sas``; a snapped ensemble adds ``<question>_raw``, a corpus with known truth
    ``<question>_truth``. Undefined cells are null.
    """
    columns: dict[str, Any] = {"pair_id": corpus.pairs["pair_id"].to_numpy(), "split": scores.split.assignment}
    for index, question in enumerate(corpus.protocol.ids):
        columns[f"{question}_target"] = scores.target[:, index]
        columns[f"{question}_prediction"] = scores.prediction[:, index]
        columns[f"{question}_std"] = scores.std[:, index]
        if scores.snapped:
            columns[f"{question}_raw"] = scores.raw[:, index]
        if corpus.truth is not None:
            columns[f"{question}_truth"] = corpus.truth[:, index]
    for axis, (target, prediction, std) in axis_columns(scores, corpus.protocol).items():
        columns |= {f"{axis}_target": target, f"{axis}_prediction": prediction, f"{axis}_std": std}
    return pd.DataFrame(columns)


def axis_columns(scores: Scores, protocol: Protocol) -> dict[str, tuple[Floats, Floats, Floats]]:
    """Axis -> consensus, reported prediction, and standard deviation over the members' own axis scores, [n_pairs]."""
    targets = axis_scores(scores.target, protocol)

    def of(values: Floats) -> tuple[Floats, Floats]:
        """Over the questions that the target has, as the metrics are; over all where the target is undefined."""
        active, everything = (axis_scores(part, protocol) for part in (np.where(missing, np.nan, values), values))
        return tuple(np.where(np.isnan(a), e, a) for a, e in zip(active, everything, strict=True))  # type: ignore[return-value]

    missing = np.isnan(scores.target)
    predictions = of(scores.prediction)
    members = [of(raw) for raw in scores.members]
    return {
        name: (targets[index], predictions[index], np.std([member[index] for member in members], axis=0))
        for index, name in enumerate(AXES)
    }


def result_rows(metrics: Mapping[str, Any]) -> list[Row]:
    """The ensemble, its members, the baselines and, where the paper's questions were asked, its rows as one table."""
    label = " + ".join(metrics["encoders"])
    head = head_label(metrics)
    rows = [Row(RUN, f"BCS ensemble, {head}", metrics["ensemble"], metrics["ci95"], label)]
    rows += [Row(MEMBER, _member_label(member), member) for member in metrics["members"]]
    rows += [Row(BASELINE, "train mean of each question", metrics["baseline"])]
    rows += [Row(BASELINE, name, values) for name, values in metrics["baselines"].items()]
    return rows if "protocol" in metrics else [*rows, *paper_rows()]


def head_label(metrics: Mapping[str, Any]) -> str:
    """The head, and what it works on where that is not the paper's features."""
    return f"{metrics['head']} on similarities" if metrics.get("features") == "similarity" else str(metrics["head"])


def _member_label(member: Mapping[str, Any]) -> str:
    # a head that fits itself has one epoch, which says nothing
    return f"seed {member['seed']}" + (f" (epoch {member['best_epoch']})" if member["epochs"] > 1 else "")


def summary_line(metrics: Mapping[str, Any]) -> str:
    """The headline numbers of one run."""
    parts = [
        f"{HEADINGS[key]} {number(metrics['ensemble'][key])}"
        for key in ("q_mae", "pas_mae", "pas_r", "sas_mae", "sas_r")
    ]
    return (
        f"{' + '.join(metrics['encoders'])}; {len(metrics['teachers'])} teachers; {head_label(metrics)}: "
        f"{', '.join(parts)}"
    )


def report(rows: Sequence[Row], metrics: Mapping[str, Any], corpus: Corpus) -> str:
    """The result table and what a reader must know beside it; says so where a plain cosine does better."""
    notes = [
        f"{corpus.name}: {metrics['n']['test']} test pairs, teachers {', '.join(metrics['teachers'])}. –: undefined; "
        "fitted: a line per question through the training pairs, so that a cosine is on the answers' scale."
    ]
    if COSINE_MEAN in metrics["baselines"]:
        notes.append(f"{COSINE_MEAN}: of all encoders but lowlevel.")
    if "protocol" in metrics:
        notes.append(f"Questions of the protocol {metrics['protocol']}: {', '.join(corpus.protocol.ids)}.")
    if metrics["stand_in"]:
        notes.append(
            "STAND-INS: the encoders asked for were not available; see the names above. Not the paper's encoders."
        )
    if metrics["simulated_teachers"]:
        notes.append("SIMULATED TEACHERS: these answers were computed, not given by annotators.")
    mine, cosines = metrics["ensemble"], metrics["baselines"]
    for key, name in (("pas_rho", "T-PAS"), ("sas_rho", "T-SAS")):
        # A fitted line ranks as its cosine does, so the plain cosine is the one to name.
        plain = [label for label in cosines if not label.endswith(", fitted")]
        best = max(plain, key=lambda label: cosines[label][key] if cosines[label][key] is not None else -2.0)
        if mine[key] is not None and cosines[best][key] is not None and cosines[best][key] > mine[key]:
            notes.append(
                f"On {name} a plain baseline ranks pairs better than this ensemble: {best} ({cosines[best][key]:.3f})."
            )
    return "\n".join([text_table(rows), *notes])


def write_results(
    out: Path,
    metrics: Mapping[str, Any],
    predictions: pd.DataFrame,
    corpus: Corpus,
    scores: Scores,
    members: Sequence[MemberResult],
    ensemble: Ensemble,
) -> list[Path]:
    """All files of the run; ``metrics.json`` last, since its presence says the run is complete."""
    from bcs_lab.report import figures

    ensemble.save(out / "ensemble")
    for name, frame in (("predictions", predictions), ("split", scores.split.to_frame(corpus.pairs))):
        with replacing(out / f"{name}.parquet") as temporary:
            frame.to_parquet(temporary, index=False)
    curves = pd.DataFrame([{"seed": member.seed, **row} for member in members for row in member.history])
    write_text(out / "curves.csv", curves.to_csv(index=False))
    drawn = [draw_predictions(out, metrics, predictions, corpus)]
    if any(len(member.history) > 1 for member in members):  # a head that fits itself has no curve to show
        curve = figures.training_curves(
            {member.seed: member.history for member in members},
            {member.seed: member.best_epoch for member in members},
            figure_caption(metrics, corpus),
        )
        drawn.append(figures.save(curve, out / "training_curves.png"))
    write_json(out / "metrics.json", metrics)
    shutil.rmtree(out / "members", ignore_errors=True)  # now part of the ensemble
    return drawn


def figure_caption(metrics: Mapping[str, Any], corpus: Corpus) -> str:
    """What a figure of a run is about, in small print."""
    caption = (
        f"{corpus.name}, {metrics['n']['test']} test pairs; {head_label(metrics)}; {' + '.join(metrics['encoders'])}"
    )
    return f"{caption}; simulated teachers" if metrics["simulated_teachers"] else caption


def draw_predictions(out: Path, metrics: Mapping[str, Any], predictions: pd.DataFrame, corpus: Corpus) -> Path:
    """Draw prediction against consensus of the test pairs into the run's folder."""
    from bcs_lab.report import figures

    test = (predictions["split"] == "test").to_numpy()
    axes = {
        name: [predictions[f"{key}_{part}"].to_numpy()[test] for part in ("target", "prediction", "std")]
        for key, name in AXES.items()
    }
    on_test = metrics["ensemble"]
    notes = {
        name: f"r = {number(on_test[f'{key}_r'])}, MAE = {number(on_test[f'{key}_mae'])}"
        for name, key in {"T-PAS": "pas", "T-SAS": "sas"}.items()
    }
    return figures.save(
        figures.prediction_against_consensus(
            {name: parts[0] for name, parts in axes.items()},
            {name: parts[1] for name, parts in axes.items()},
            {name: parts[2] for name, parts in axes.items()},
            notes,
            figure_caption(metrics, corpus),
        ),
        out / "prediction_vs_consensus.png",
    )
