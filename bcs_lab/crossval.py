"""``split=kfold split.fold=all``: one ensemble a fold, and every pair judged once, by what had not seen its concept.

Few labels leave few test pairs; pooling what the folds held out makes all of them count. Such a run keeps no model: it
has trained as many as there are folds.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bcs_lab.config import TrainConfig
from bcs_lab.corpus import Corpus
from bcs_lab.evaluate import cosine_line, train_mean_baseline
from bcs_lab.files import replacing, write_json
from bcs_lab.members import MemberResult, load_member, member_key, save_member
from bcs_lab.paired import PAIRED, against_cosines
from bcs_lab.results import Scores, cosines, draw_predictions, evaluate_test, prediction_table
from bcs_lab.snapping import fit_thresholds, snap_to_levels
from bcs_lab.split import Folds, Split, concept_key

if TYPE_CHECKING:
    from bcs_lab.embeddings import PairEmbeddings
    from bcs_lab.heads import ExtraRows
    from bcs_lab.similarity import PairSimilarities

log = logging.getLogger(__name__)

Floats = NDArray[np.floating]

#: More processes than this are not started unasked.
MAX_WORKERS = 8
#: What is said where a model would be.
NO_MODEL = "Every pair was tested once, by a fold that did not know its concept; no model is kept."


@dataclass(frozen=True)
class PooledScores(Scores):
    """What the folds said of the pairs they held out; all pairs are test pairs.

    Attributes:
        reported: what each member reports on its own, float32 [n_members, n_pairs, n_questions].
    """

    reported: Floats

    def member(self, index: int) -> Floats:
        """What one member would report on its own."""
        return self.reported[index]


@dataclass(frozen=True)
class _Fold:
    """All that one fold learns from, to be sent to a process."""

    embeddings: Sequence[PairEmbeddings]
    similarities: Sequence[PairSimilarities] | None
    targets: Floats
    weights: Floats
    concepts: NDArray[np.object_]
    split: Split
    extra: ExtraRows | None
    head: Mapping[str, Any]
    config: TrainConfig
    keep: Path


def cross_validate(
    corpus: Corpus,
    embeddings: Sequence[PairEmbeddings],
    similarities: Sequence[PairSimilarities] | None,
    targets: Floats,
    weights: Floats,
    folds: Folds,
    config: TrainConfig,
    out: Path,
    extra: Callable[[Split], ExtraRows | None],
) -> tuple[PooledScores, dict[str, Any]]:
    """Train an ensemble a fold and measure the pooled predictions.

    Args:
        corpus: the pairs.
        embeddings: one an encoder.
        similarities: likewise, where they are the features.
        targets: [n_pairs, n_questions], NaN where missing.
        weights: [n_pairs, n_questions].
        folds: who tests what.
        config: checked settings.
        out: folder of the run; folds that an earlier, killed run finished there are taken over.
        extra: further training rows of a fold.

    Returns:
        The pooled predictions, and the keys ``ensemble``, ``ci95``, ``members``, ``baseline``, ``baselines`` and ``n``
        of ``metrics.json``. Lines and means are fitted fold by fold, and ``n`` counts the fewest training and
        validation pairs of a fold; a member's epochs are the median over the folds.
    """
    head = {"name": config.head.name, "snap": config.head.snap, **config.head.settings}
    concepts = corpus.pairs["concept"].map(concept_key).to_numpy(dtype=object)
    jobs = [
        _Fold(
            embeddings if similarities is None else [],
            similarities,
            targets,
            weights,
            concepts,
            split,
            extra(split),
            head,
            config,
            out / "members" / f"fold-{index}",
        )
        for index, split in enumerate(folds.splits)
    ]
    members = _train(jobs, config.workers)
    scores = pooled(members, targets, folds, snap=config.head.snap)
    plain = cosines(embeddings)
    lines = {name: _by_fold(folds, partial(cosine_line, cosine, targets)) for name, cosine in plain.items()}
    mean = _by_fold(folds, partial(train_mean_baseline, targets))
    epochs = [
        (
            seed,
            round(float(np.median([fold[index].best_epoch for fold in members]))),
            round(float(np.median([fold[index].epochs for fold in members]))),
        )
        for index, seed in enumerate(config.seeds)
    ]
    return scores, evaluate_test(scores, epochs, plain, lines, mean, corpus, config) | {"n": folds.counts()}


def _by_fold(folds: Folds, predict: Callable[[NDArray[np.int64]], Floats]) -> Floats:
    """Predictions of every pair by what is fitted to its own fold's training pairs."""
    of_folds = np.stack([predict(split.indices("train")) for split in folds.splits])
    return of_folds[folds.fold, np.arange(len(folds.fold))]


def pooled(
    members: Sequence[Sequence[MemberResult]], targets: Floats, folds: Folds, *, snap: bool = False
) -> PooledScores:
    """Every pair as the ensemble of its own test fold sees it.

    Args:
        members: per fold one a seed, all in the same order of seeds.
        targets: [n_pairs, n_questions].
        folds: who tests what.
        snap: whether predictions are snapped to levels, by thresholds of each fold's validation part.
    """
    from bcs_lab.ensemble import combine

    count = len(members[0])
    n, questions = targets.shape
    raw, std, prediction = (np.zeros((n, questions), dtype=np.float32) for _ in range(3))
    each, reported = (np.zeros((count, n, questions), dtype=np.float32) for _ in range(2))
    for split, own in zip(folds.splits, members, strict=True):
        test, val = split.indices("test"), split.indices("val")

        def report(values: Floats, val: NDArray[np.int64] = val, test: NDArray[np.int64] = test) -> Floats:
            return snap_to_levels(values, fit_thresholds(values[val], targets[val]))[test] if snap else values[test]

        mean, spread = combine([member.predictions for member in own])
        raw[test], std[test], prediction[test] = mean[test], spread[test], report(mean)
        for index, member in enumerate(own):
            each[index, test], reported[index, test] = member.predictions[test], report(member.predictions)
    first = folds.splits[0]
    everything = Split(first.scheme, first.seed, np.full(n, "test"), first.pair_ids, first.groups, folds=first.folds)
    return PooledScores(targets, prediction, raw, std, each, snap, everything, reported)


def write_cross_validation(
    out: Path,
    metrics: Mapping[str, Any],
    scores: PooledScores,
    embeddings: Sequence[PairEmbeddings],
    corpus: Corpus,
    folds: Folds,
    config: TrainConfig,
    attributes: Mapping[str, Any],
) -> tuple[pd.DataFrame, dict[str, Any], list[Path]]:
    """All files of the run, ``metrics.json`` last.

    Args:
        out: folder of the run.
        metrics: the content of ``metrics.json``.
        scores: of :func:`cross_validate`.
        embeddings: one an encoder, for the plain cosines.
        corpus: the pairs.
        folds: who tested what.
        config: settings of the bootstrap.
        attributes: what the table of predictions carries beside its columns.

    Returns:
        The table of predictions, the paired comparison with plain cosines, and the figures.
    """
    concepts = corpus.pairs["concept"].map(concept_key).to_numpy()
    found = against_cosines(
        scores.prediction,
        cosines(embeddings),
        scores.target,
        concepts,
        corpus.protocol,
        n_boot=config.bootstrap.resamples,
        seed=config.bootstrap.seed,
    )
    write_json(out / PAIRED, found)
    predictions = prediction_table(scores, corpus)
    predictions.insert(2, "fold", folds.fold)
    predictions.attrs.update(attributes)
    for name, frame in (("predictions", predictions), ("split", folds.to_frame(corpus.pairs))):
        with replacing(out / f"{name}.parquet") as temporary:
            frame.to_parquet(temporary, index=False)
    drawn = [draw_predictions(out, metrics, predictions, corpus)]
    write_json(out / "metrics.json", metrics)
    shutil.rmtree(out / "members", ignore_errors=True)
    return predictions, found, drawn


def paired_line(found: Mapping[str, Any]) -> str:
    """The Spearman differences in one sentence an opponent."""
    from bcs_lab.report.labels import difference, p_value

    lines = []
    for opponent in found["t_pas"]["rho"]["against"]:
        said = []
        for axis, name in (("t_pas", "T-PAS"), ("t_sas", "T-SAS")):
            values = found[axis]["rho"]["against"].get(opponent)
            if values is not None:
                whose = "" if values["name"] == opponent else f" ({values['name']})"
                said.append(f"{name} {difference(values)}, p {p_value(values['p'])}{whose}")
        lines.append(f"Spearman's ρ minus that of the {opponent}: {'; '.join(said)}.")
    return "\n".join(lines)


# --- training ---------------------------------------------------------------------------------------------------------


def _train(jobs: Sequence[_Fold], workers: int | None) -> list[list[MemberResult]]:
    """Members of every fold. One thread computes each, so that the numbers do not depend on how many work at once."""
    from tqdm import tqdm

    started = time.monotonic()
    count = min(workers or min(_cores(), MAX_WORKERS), len(jobs))
    out: list[list[MemberResult]] = [[] for _ in jobs]
    with _stream(jobs, count) as results, tqdm(total=len(jobs), unit="fold", leave=False, disable=None) as bar:
        for index, members in results:
            out[index] = members
            bar.update()
    log.info(
        "%d folds, %d members each, %d at a time: %.1f s", len(jobs), len(out[0]), count, time.monotonic() - started
    )
    return out


@contextlib.contextmanager
def _stream(jobs: Sequence[_Fold], workers: int) -> Iterator[Iterator[tuple[int, list[MemberResult]]]]:
    if workers == 1:
        yield map(_numbered, enumerate(jobs))
        return
    from joblib import Parallel, delayed, parallel_config

    # The processes stay for the next job of a sweep, which then need not start any.
    with parallel_config(backend="loky", n_jobs=workers, inner_max_num_threads=1), warnings.catch_warnings():
        # One that has grown is replaced by a fresh one, which takes seconds and changes no number.
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs")
        yield Parallel(return_as="generator_unordered")(delayed(_numbered)(job) for job in enumerate(jobs))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _numbered(job: tuple[int, _Fold]) -> tuple[int, list[MemberResult]]:
    with _alone():
        return job[0], _members(job[1])


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """One thread, and no line for each of many members."""
    import torch
    from threadpoolctl import threadpool_limits

    said = logging.getLogger("bcs_lab.fit")
    threads, level = torch.get_num_threads(), said.level
    torch.set_num_threads(1)
    said.setLevel(logging.WARNING)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)
        said.setLevel(level)


def _members(fold: _Fold) -> list[MemberResult]:
    """Members of a fold without their weights, which nobody will use."""
    from bcs_lab.data import BCSDataModule
    from bcs_lab.fit import learned_digest, train_member
    from bcs_lab.heads import HEADS

    config = fold.config
    data = BCSDataModule(
        fold.embeddings,
        fold.targets,
        fold.weights,
        fold.split,
        batch_size=config.trainer.batch_size,
        similarities=fold.similarities,
        concepts=fold.concepts,
        extra=fold.extra,
    )
    digest = learned_digest(data, fold.head)
    fitted = HEADS[fold.config.head.name].FITS_ITSELF
    optim, trainer = config.optim.model_dump(), config.trainer.model_dump()
    out = []
    for seed in config.seeds:
        path, key = fold.keep / f"member-{seed}.safetensors", member_key(digest, fold.head, optim, trainer, seed)
        member = load_member(path, key)
        if member is None:
            member = replace(train_member(data, fold.head, optim, trainer, seed), state_dict={})
            save_member(member, path, key)
            if not fitted:
                gc.collect()  # a trainer and its weights refer to each other; many in a row should not pile up
        out.append(member)
    return out
