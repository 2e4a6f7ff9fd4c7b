"""``bcs study select``: choose the pairs that people will rate, and copy their pictures."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from bcs_lab.config import StudySelectConfig, absolute, parse
from bcs_lab.consensus import consensus
from bcs_lab.corpus import Corpus
from bcs_lab.errors import ConfigError, CorpusError, listing
from bcs_lab.evaluate import axis_scores
from bcs_lab.files import check_writable
from bcs_lab.human.study import FILE, STRATA, Study
from bcs_lab.models import resolve_model
from bcs_lab.store import EmbeddingStore
from bcs_lab.tasks.inputs import open_corpus, open_store, report_skipped
from bcs_lab.tasks.score import _part as corpus_part

if TYPE_CHECKING:
    from bcs_lab.human.make import Scored


def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
    """Entry of the command line.

    Raises:
        ConfigError: a table of scores that cannot be used.
        CorpusError: the corpus cannot be read or has no images.
        ModelError: the model cannot be read.
        RunError: ``part`` of a model whose run does not say it, or of another corpus.
        StudyError: too few stimuli, or the folder holds a study.
    """
    from bcs_lab.human.make import make_study

    config = parse(StudySelectConfig, values)
    target = absolute(config.out, start) or out
    if config.out is not None:
        check_writable(target / FILE, "out")
    corpus = open_corpus(config.corpus, start)
    report_skipped(corpus, out)
    if config.model is not None:
        corpus, scored = _from_model(config.model, config.part, corpus, start, open_store(config.store, start))
    elif config.scores is not None:
        path = absolute(config.scores, start)
        assert path is not None
        scored = _from_file(path, corpus)
    else:
        scored = _from_teachers(corpus)
    study = make_study(
        corpus,
        scored,
        target,
        sizes=config.sizes,
        per_stimulus=config.per_stimulus,
        coherence=config.coherence,
        high=config.high,
        seed=config.seed,
        overwrite=config.overwrite,
    )
    print(summary(study))
    print(f"Written: {target / 'study.json'}, images/, overview.png (these name methods and strata: not for raters)")
    print(f"Next: bcs study form study={target} out=form.html")
    return {
        "corpus": corpus.name,
        "simulated_teachers": study.simulated,
        "study": str(target),
        "digest": study.digest,
        "items": len(study.items),
    }


def _from_teachers(corpus: Corpus) -> Scored:
    from bcs_lab.human.make import Scored

    t_pas, t_sas = axis_scores(consensus(corpus.answers), corpus.protocol)
    source = {"source": "consensus of the teachers", "teachers": list(corpus.teachers)}
    return Scored(t_pas, t_sas, source, corpus.simulated_teachers)


def _from_model(
    model: str, part: str | None, corpus: Corpus, start: Path, store: EmbeddingStore
) -> tuple[Corpus, Scored]:
    """The pairs of the part asked for, and their scores."""
    from bcs_lab.human.make import Scored
    from bcs_lab.score import BCS

    local = absolute(model, start)
    folder = resolve_model(local if local is not None and local.exists() else model)
    if part is not None:
        corpus = corpus_part(corpus, part, folder)
    bcs = BCS.load(folder)
    frame, problems = bcs.score_corpus(corpus, store=store)
    if problems and corpus.on_bad_row == "error":
        raise CorpusError(
            f"{len(problems)} pair(s) cannot be scored:\n{listing(problems)}\n"
            "Correct these, or go on without them: corpus.on_bad_row=skip"
        )
    source = {"source": "model", "model": model, "digest": bcs.ensemble.digest, "encoders": list(bcs.labels)}
    if part is not None:
        source["part"] = part
    parts = _parts(folder)
    known = any(pair_id in parts for pair_id in corpus.pairs["pair_id"])
    notes = []
    if not known and bcs.ensemble.provenance.get("corpus") == corpus.name:
        notes.append(
            f"The model was trained on the corpus {corpus.name!r}; which of the chosen pairs it has seen is unknown: "
            "no split.parquet of its run lies beside it"
        )
    t_pas, t_sas, ood = _aligned(frame, corpus)
    return corpus, Scored(t_pas, t_sas, source, bool(bcs.simulated_teachers), ood, parts if known else {}, tuple(notes))


def _parts(model: Path) -> dict[str, str]:
    """Pair -> part by the run that the model lies in; empty where it lies in none."""
    from bcs_lab.models import known_split

    frame = known_split(model)
    return {} if frame is None else dict(zip(frame["pair_id"], frame["split"], strict=True))


def _from_file(path: Path, corpus: Corpus) -> Scored:
    """Scores from a table that ``bcs score`` wrote, or any with ``pair_id``, ``t_pas`` and ``t_sas``."""
    from bcs_lab.human.make import Scored

    expected = "scores: expected a .csv or .parquet table with the columns pair_id, t_pas and t_sas"
    try:
        content = path.read_bytes()
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        elif path.suffix == ".csv":
            frame = pd.read_csv(
                path, dtype={"pair_id": str}, keep_default_na=False, na_values={"t_pas": "", "t_sas": ""}
            )
        else:
            raise ConfigError(f"{expected}, got {path}")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{expected}, cannot read {path}: {error}") from None
    lacking = [name for name in ("pair_id", "t_pas", "t_sas") if name not in frame.columns]
    if lacking:
        raise ConfigError(f"{expected}; {path} lacks {', '.join(lacking)}")
    problems = []
    for name in ("t_pas", "t_sas"):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        wrong = frame[name].notna() & ~numbers.between(0, 1)
        problems += [
            f"row {row + 1}: {name} {str(frame[name].iloc[row])!r} is no number in [0, 1]"
            for row in np.flatnonzero(wrong)
        ]
        frame[name] = numbers
    twice = frame["pair_id"][frame["pair_id"].duplicated()].unique().tolist()
    problems += [f"pair {pair_id!r} has more than one row" for pair_id in twice]
    if not set(frame["pair_id"]) & set(corpus.pairs["pair_id"]):
        problems.append(f"none of its pairs is in the corpus {corpus.name!r}")
    if problems:
        shown = "\n".join(f"  - {problem}" for problem in problems[:50])
        raise ConfigError(f"scores: {len(problems)} problem(s) in {path}:\n{shown}")
    simulated = (
        "simulated_teachers" in frame.columns and frame["simulated_teachers"].astype(str).str.lower().eq("true").any()
    )
    t_pas, t_sas, ood = _aligned(frame, corpus)
    source = {"source": "file", "file": path.name, "sha256": hashlib.sha256(content).hexdigest()}
    return Scored(t_pas, t_sas, source, bool(simulated), ood)


def _aligned(frame: pd.DataFrame, corpus: Corpus) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """The two scores and ``ood`` in the order of the corpus, NaN for pairs that the table lacks and what is unknown."""
    table = frame.set_index("pair_id").reindex(corpus.pairs["pair_id"])
    t_pas, t_sas = (table[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in ("t_pas", "t_sas"))
    if "ood" not in table.columns:
        return t_pas, t_sas, None
    words = {"true": 1.0, "1": 1.0, "1.0": 1.0, "false": 0.0, "0": 0.0, "0.0": 0.0}
    ood = np.array([words.get(str(value).lower(), np.nan) for value in table["ood"]])
    return t_pas, t_sas, None if np.isnan(ood).all() else ood


def summary(study: Study) -> str:
    """What was chosen, one line a stratum."""
    stimuli = len({item.stimulus for item in study.items})
    lines = [
        f"Study {study.digest}: {len(study.items)} pairs of {stimuli} reference pictures from {study.corpus}"
        f"{' (SIMULATED teachers)' if study.simulated else ''}, scores: {study.scores['source']}",
        f"{'stratum':<16} {'pairs':>5} {'T-PAS':>11} {'T-SAS':>11} {'coherence':>11}   (lowest–highest)",
    ]
    for name in STRATA:
        mine = [item for item in study.items if item.stratum == name]
        if mine:
            spans = [[getattr(item, key) for item in mine] for key in ("t_pas", "t_sas", "coherence")]
            cells = " ".join(f"{min(span):>6.2f}–{max(span):.2f}" for span in spans)
            lines.append(f"{name.replace('_', ' '):<16} {len(mine):>5} {cells}   {study.looks_for(name)}")
    return "\n".join([*lines, *(f"Note: {text}" for text in study.warnings)])
