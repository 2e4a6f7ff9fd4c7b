"""``bcs train``: from a corpus to a trained ensemble, its test metrics and everything needed to read them.

The function :func:`train` does the work and knows nothing of Hydra; :func:`run` is what the command line calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml

from bcs_lab.config import TrainConfig, parse
from bcs_lab.consensus import agreement_weight, consensus, select_teachers, teacher_answers
from bcs_lab.corpus import Corpus
from bcs_lab.embeddings import PairEmbeddings
from bcs_lab.errors import ConfigError, CorpusError, listing
from bcs_lab.files import write_json, write_text
from bcs_lab.results import (
    Scores,
    evaluate_parts,
    evaluate_truth,
    prediction_table,
    report,
    result_rows,
    summary_line,
    write_results,
)
from bcs_lab.split import Folds, Split, concept_key, make_folds, make_split
from bcs_lab.store import EmbeddingStore
from bcs_lab.tasks.inputs import compare, embed, open_corpus, open_store, report_skipped
from bcs_lab.teachers.protocol import BCS12, same_questions
from bcs_lab.tracking import Tracker, tracking

if TYPE_CHECKING:
    from bcs_lab.heads import ExtraRows
    from bcs_lab.report.table import Row
    from bcs_lab.similarity import PairSimilarities

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """What a training leaves behind, beside the files in its folder.

    Attributes:
        metrics: the content of ``metrics.json``.
        predictions: the content of ``predictions.parquet``.
        table: the result table as text.
        facts: what the run record adds (corpus, split hash, counts).
    """

    metrics: dict[str, Any]
    predictions: pd.DataFrame
    table: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class Prepared:
    """What is known before anything heavy is imported or computed.

    Attributes:
        corpus: pairs that have at least one answer of the chosen teachers.
        teachers: whose consensus is learned, in the corpus' order.
        split: parts of the corpus' pairs, or all folds of them under ``split.fold=all``.
    """

    corpus: Corpus
    teachers: tuple[str, ...]
    split: Split | Folds


def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
    """Entry of the command line: check the settings, train below the mirror, print the table."""
    config = parse(TrainConfig, values)
    config.encoder.check_name()
    prepared = prepare(config, start)
    wanted = config.teachers if isinstance(config.teachers, list) else [str(config.teachers)]
    tags = [config.encoder.label, f"teachers-{'+'.join(wanted)}", config.head.name]
    if config.features.kind != "embedding":
        tags.append(config.features.kind)
    sweep = out.parent.name if (out.parent / "multirun.yaml").is_file() else None
    name = f"{sweep}-{out.name}" if sweep else out.name
    with tracking(config.logger, out, settings=values, tags=tags, group=sweep, name=name) as tracker:
        result = train(config, out, start, tracker=tracker, prepared=prepared)
    settings = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    write_text(out / "config.yaml", f"# encoders used: {' + '.join(result.metrics['encoders'])}\n{settings}")
    # A sweep ends with one table of all jobs; a job of it says only how it went.
    print(summary_line(result.metrics) if sweep else result.table)
    print(f"Written: {out}{' (cross-validation: no model)' if 'folds' in result.facts else ''}")
    return result.facts


def prepare(config: TrainConfig, base: Path) -> Prepared:
    """Read the corpus and make sure that teachers and split fit it, which takes a second and no encoder.

    Args:
        config: checked settings.
        base: folder that relative paths of the settings start at.

    Raises:
        ConfigError: the teachers do not fit the corpus.
        CorpusError: the corpus has bad rows (see ``corpus.on_bad_row``).
        SplitError: the corpus cannot be divided as asked.
    """
    corpus = open_corpus(config.corpus, base, need_images=not config.encoder.only_stored)
    teachers = select_teachers(corpus.teachers, config.teachers)
    corpus = with_targets(corpus, teachers)
    return Prepared(corpus, teachers, divide(corpus, config))


def train(
    config: TrainConfig,
    out: Path,
    base: Path,
    *,
    tracker: Tracker | None = None,
    prepared: Prepared | None = None,
) -> TrainResult:
    """Train an ensemble and evaluate it on the test part; one a fold under ``split.fold=all``, which keeps no model.

    Args:
        config: checked settings.
        out: folder of the run; gets ``metrics.json``, ``coverage.json``, ``predictions.parquet``, ``split.parquet``,
            ``curves.csv``, ``results.txt``, ``ensemble/`` and figures. Members that an earlier, killed run finished
            there are kept. A cross-validation writes ``paired.json`` and neither intervals, curves nor an ensemble.
        base: folder that relative paths of the settings start at.
        tracker: mirror for curves, table and figures.
        prepared: of :func:`prepare`, if it was called already.

    Raises:
        ConfigError: the head does not take its settings, or not such features; further errors as :func:`prepare`.
        EncoderError: an encoder's weights cannot be had.
    """
    from bcs_lab.calibrate import calibrate, coverage_line
    from bcs_lab.data import BCSDataModule
    from bcs_lab.ensemble import Ensemble
    from bcs_lab.fit import train_ensemble
    from bcs_lab.heads import build_head, check_features

    started = time.monotonic()
    tracker = tracker or Tracker()
    prepared = prepared or prepare(config, base)
    teachers = prepared.teachers
    # A wrong setting of the head should not cost an embedding run.
    check_features(config.head.name, config.features.kind)
    build_head(config.head.name, 5, 1, **config.head.settings)

    store = open_store(config.store, base)
    corpus, embeddings, similarities = describe(prepared.corpus, config, store)
    # Pairs with broken images are gone by now, if rows are skipped.
    split = prepared.split if len(corpus) == len(prepared.corpus) else divide(corpus, config)
    report_skipped(corpus, out)

    answers = teacher_answers(corpus.answers, corpus.teachers, teachers)
    targets = consensus(answers)
    weights = agreement_weight(answers, config.consensus.weight)
    _announce(corpus, teachers, split, embeddings, config)
    used: dict[str, Any] = {
        "encoders": [part.label for part in embeddings],
        "stand_in": any(part.stand_in for part in embeddings),
        "simulated_teachers": corpus.simulated_teachers,
        "teachers": list(teachers),
    }
    if config.features.kind != "embedding":
        used["features"] = config.features.kind
    if not same_questions(corpus.protocol, BCS12):
        used["protocol"] = corpus.protocol.name
    tracker.note({**used, "corpus": corpus.name, "split_hash": split.hash})
    facts = {**used, "corpus": corpus.name, "split_hash": split.hash, "skipped": len(corpus.skipped)}

    def extra(part: Split) -> ExtraRows | None:
        return known_negatives(corpus, part, config, similarities, store)

    if isinstance(split, Folds):
        from bcs_lab.crossval import NO_MODEL, cross_validate, paired_line, write_cross_validation

        pooled, found = cross_validate(corpus, embeddings, similarities, targets, weights, split, config, out, extra)
        metrics = {**found, **used, "head": config.head.name, "split": "kfold"}
        metrics["wall_s"] = round(time.monotonic() - started, 3)
        if corpus.truth is not None:
            write_json(
                out / "truth.json", evaluate_truth(pooled, answers, teachers, corpus.truth, corpus, config) | used
            )
        predictions, paired, figures = write_cross_validation(
            out, metrics, pooled, embeddings, corpus, split, config, used
        )
        rows = result_rows(metrics)
        mirror(tracker, rows, metrics, figures)
        table = f"{report(rows, metrics, corpus)}\n{paired_line(paired)}\n{NO_MODEL}"
        write_text(out / "results.txt", table + "\n")
        return TrainResult(metrics, predictions, table, facts | {"test_hash": split.hash, "folds": len(split.splits)})

    facts["test_hash"] = split.test_hash
    data = BCSDataModule(
        embeddings,
        targets,
        weights,
        split,
        batch_size=config.trainer.batch_size,
        similarities=similarities,
        concepts=corpus.pairs["concept"].map(concept_key).to_numpy(dtype=object),
        extra=extra(split),
    )
    head = {"name": config.head.name, "snap": config.head.snap, **config.head.settings}
    members = train_ensemble(
        data,
        head,
        config.optim.model_dump(),
        config.trainer.model_dump(),
        config.seeds,
        logger_factory=tracker.member_logger,
        progress=True,
        keep=out / "members",
    )
    ensemble = Ensemble.from_members(
        members,
        head=head,
        embeddings=embeddings,
        protocol=corpus.protocol,
        teachers=teachers,
        weight_scheme=config.consensus.weight,
        split=split,
        targets=targets,
        simulated_teachers=corpus.simulated_teachers,
        options=config.encoder.given_options,
        similarities=similarities,
    )
    scores = Scores.of(members, ensemble, targets, split)
    coverage = calibrate(ensemble, scores, embeddings, corpus)
    if config.head.negatives:
        ensemble.provenance["negatives"] = config.head.negatives
    metrics = {
        **evaluate_parts(scores, members, embeddings, corpus, config),
        **used,
        "head": config.head.name,
        "split": split.scheme,
        "wall_s": round(time.monotonic() - started, 3),
    }
    if corpus.truth is not None:
        write_json(out / "truth.json", evaluate_truth(scores, answers, teachers, corpus.truth, corpus, config) | used)
    ensemble.metrics = {key: metrics[key] for key in ("ensemble", "ci95", "n")}
    write_json(out / "coverage.json", coverage)
    predictions = prediction_table(scores, corpus)
    predictions.attrs.update(used)  # travels in the Parquet file
    rows = result_rows(metrics)
    figures = write_results(out, metrics, predictions, corpus, scores, members, ensemble)
    mirror(tracker, rows, metrics, figures)
    table = f"{report(rows, metrics, corpus)}\n{coverage_line(coverage)}"
    write_text(out / "results.txt", table + "\n")
    return TrainResult(metrics, predictions, table, facts)


def mirror(tracker: Tracker, rows: Sequence[Row], metrics: Mapping[str, Any], figures: Sequence[Path]) -> None:
    """Tell the mirror what came out."""
    tracker.results(
        [{"kind": row.kind, "model": row.label, **dict(row.values)} for row in rows], metrics["ensemble"], figures
    )


def describe(
    corpus: Corpus, config: TrainConfig, store: EmbeddingStore
) -> tuple[Corpus, list[PairEmbeddings], list[PairSimilarities] | None]:
    """What the encoders say of all pairs; the corpus may lose pairs with broken images if bad rows are skipped.

    Embeddings are needed under ``features=similarity`` too: for the plain cosines, and to tell what is unfamiliar.

    Returns:
        The pairs that are left, their embeddings, and their similarities where these are the features.
    """
    if config.features.kind == "embedding":
        return *embed(corpus, config.encoder, store), None
    while True:
        corpus, similarities = compare(corpus, config.encoder, store)
        left, embeddings = embed(corpus, config.encoder, store)
        if len(left) == len(corpus):
            return corpus, embeddings, similarities
        corpus = left  # an image that only the embeddings had to read is broken; the rest is in the store by now


def known_negatives(
    corpus: Corpus,
    split: Split,
    config: TrainConfig,
    similarities: Sequence[PairSimilarities] | None,
    store: EmbeddingStore,
) -> ExtraRows | None:
    """Further training rows whose answers are known; ``None`` where ``head.negatives`` is 0.

    Raises:
        ConfigError: they are asked for, but the features are embeddings or the corpus cannot give them.
    """
    if config.head.negatives == 0.0:
        return None
    if similarities is None:
        raise ConfigError(
            f"head.negatives={config.head.negatives}: known negatives are for features=similarity; "
            "use head.negatives=0."
        )
    from bcs_lab.negatives import compare_negatives, negative_rows

    items, pairs = compare_negatives(corpus, similarities, lambda made: compare(made, config.encoder, store)[1])
    teachers = select_teachers(corpus.teachers, config.teachers)
    targets = consensus(teacher_answers(corpus.answers, corpus.teachers, teachers))
    return negative_rows(items, pairs, targets, split.indices("train"), corpus.protocol, config.head.negatives)


def with_targets(corpus: Corpus, teachers: Sequence[str]) -> Corpus:
    """The corpus without pairs that none of the chosen teachers has answered.

    Raises:
        CorpusError: there are such pairs and ``corpus.on_bad_row`` is ``error``, or no other pairs are left.
    """
    answered = ~np.isnan(teacher_answers(corpus.answers, corpus.teachers, teachers)).all(axis=(1, 2))
    if answered.all():
        return corpus
    problems = [
        corpus.problem(index, f"no answer from {', '.join(teachers)}") for index in np.flatnonzero(~answered).tolist()
    ]
    if corpus.on_bad_row == "error" or not answered.any():
        raise CorpusError(
            f"{len(problems)} pair(s) without a single answer of the chosen teachers:\n{listing(problems)}\n"
            "Choose other teachers, or leave these pairs out with corpus.on_bad_row=skip."
        )
    kept = corpus.subset(answered)
    kept.skipped = [*corpus.skipped, *problems]
    return kept


def divide(corpus: Corpus, config: TrainConfig) -> Split | Folds:
    """The split of the settings, or all its folds, over the corpus as it stands."""
    wanted = config.split
    if not isinstance(wanted.fold, int):
        return make_folds(corpus.pairs, wanted.folds, wanted.seed, wanted.train_pairs)
    return make_split(
        corpus.pairs,
        wanted.scheme,
        fractions=wanted.fractions,
        seed=wanted.seed,
        folds=wanted.folds,
        fold=wanted.fold,
        train_pairs=wanted.train_pairs,
    )


def _announce(
    corpus: Corpus,
    teachers: Sequence[str],
    split: Split | Folds,
    embeddings: Sequence[PairEmbeddings],
    config: TrainConfig,
) -> None:
    counts = split.counts()
    log.info(
        "corpus %s: %d pairs, %d concepts; split %s%s: %d train, %d val, %d test; teachers %s%s",
        corpus.name,
        len(corpus),
        corpus.pairs["concept"].map(concept_key).nunique(),
        config.split.scheme,
        "" if isinstance(split, Split) else f", {len(split.splits)} folds",
        *(counts[part] for part in ("train", "val", "test")),
        ", ".join(teachers),
        " (simulated)" if corpus.simulated_teachers else "",
    )
    log.info(
        "encoders %s; features %s; head %s; %d member(s)",
        " + ".join(part.label for part in embeddings),
        config.features.kind,
        config.head.name,
        len(config.seeds),
    )
