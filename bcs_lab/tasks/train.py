"""``bcs train``: from a corpus to a trained ensemble, its test metrics and everything needed to read them.

The function :func:`train` does the work and knows nothing of Hydra; :func:`run` is what the command line calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
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
from bcs_lab.split import Split, concept_key, make_split
from bcs_lab.store import EmbeddingStore
from bcs_lab.tasks.inputs import compare, embed, open_corpus, open_store, report_skipped
from bcs_lab.tracking import Tracker, tracking

if TYPE_CHECKING:
    from bcs_lab.heads import ExtraRows
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
        split: parts of the corpus' pairs.
    """

    corpus: Corpus
    teachers: tuple[str, ...]
    split: Split


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
    print(f"Written: {out}")
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
    """Train an ensemble and evaluate it on the test part.

    Args:
        config: checked settings.
        out: folder of the run; gets ``metrics.json``, ``coverage.json``, ``predictions.parquet``, ``split.parquet``,
            ``curves.csv``, ``results.txt``, ``ensemble/`` and figures. Members that an earlier, killed run finished
            there are kept.
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

    corpus, embeddings, similarities = describe(prepared.corpus, config, open_store(config.store, base))
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
    tracker.note({**used, "corpus": corpus.name, "split_hash": split.hash})

    data = BCSDataModule(
        embeddings,
        targets,
        weights,
        split,
        batch_size=config.trainer.batch_size,
        similarities=similarities,
        concepts=corpus.pairs["concept"].map(concept_key).to_numpy(dtype=object),
        extra=known_negatives(corpus, split, config),
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
    metrics: dict[str, Any] = {
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
    tracker.results(
        [{"kind": row.kind, "model": row.label, **dict(row.values)} for row in rows], metrics["ensemble"], figures
    )
    facts = {**used, "corpus": corpus.name, "split_hash": split.hash, "skipped": len(corpus.skipped)}
    table = f"{report(rows, metrics, corpus)}\n{coverage_line(coverage)}"
    write_text(out / "results.txt", table + "\n")
    return TrainResult(metrics, predictions, table, facts)


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


def known_negatives(corpus: Corpus, split: Split, config: TrainConfig) -> ExtraRows | None:
    """Further training rows whose answers are known: references beside reconstructions of other concepts.

    Raises:
        ConfigError: ``head.negatives`` asks for them, but there are none.
    """
    if config.head.negatives == 0.0:
        return None
    raise ConfigError(
        f"head.negatives={config.head.negatives}: corpus {corpus.name} has no known negatives; use head.negatives=0."
    )


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


def divide(corpus: Corpus, config: TrainConfig) -> Split:
    """The split of the settings, over the corpus as it stands."""
    return make_split(
        corpus.pairs,
        config.split.scheme,
        fractions=config.split.fractions,
        seed=config.split.seed,
        folds=config.split.folds,
        fold=config.split.fold,
    )


def _announce(
    corpus: Corpus, teachers: Sequence[str], split: Split, embeddings: Sequence[PairEmbeddings], config: TrainConfig
) -> None:
    counts = split.counts()
    log.info(
        "corpus %s: %d pairs, %d concepts; split %s: %d train, %d val, %d test; teachers %s%s",
        corpus.name,
        len(corpus),
        corpus.pairs["concept"].map(concept_key).nunique(),
        split.scheme,
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
