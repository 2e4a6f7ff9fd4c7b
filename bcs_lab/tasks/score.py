"""``bcs score``: T-PAS, T-SAS and the answers to all questions about new pairs, by a trained ensemble."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml

from bcs_lab.config import ScoreConfig, absolute, parse
from bcs_lab.corpus import Corpus, write_skipped
from bcs_lab.corpus.folders import FolderPairs, pair_paths
from bcs_lab.errors import ConfigError, CorpusError, Problem, RunError, listing
from bcs_lab.files import check_writable, replacing, write_json, write_text
from bcs_lab.methods import method_differences, method_table, regime_shares, verdict
from bcs_lab.models import HUB, known_split, resolve_model, trained_on
from bcs_lab.regimes import REGIMES
from bcs_lab.tasks.inputs import open_corpus, open_store

if TYPE_CHECKING:
    from bcs_lab.ensemble import Ensemble
    from bcs_lab.score import BCS

log = logging.getLogger(__name__)

SUFFIXES = (".csv", ".parquet", ".jsonl")
#: More out-of-distribution pairs than this share are worth a warning; one in fifty is to be expected.
MANY_OOD = 0.05
AXES = {"t_pas": "T-PAS", "t_sas": "T-SAS"}


@dataclass
class _Scored:
    """The table of scores and what was left out of it."""

    frame: pd.DataFrame
    failed: list[Problem] = field(default_factory=list)
    unmatched: list[Problem] = field(default_factory=list)
    corpus: Corpus | None = None
    cosines: Mapping[str, Sequence[float]] = field(default_factory=dict)


def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
    """Entry of the command line.

    Returns:
        Facts for the record; ``exit_status`` 1 when there were pairs that could not be scored.

    Raises:
        ConfigError: it is not clear what to score, or ``out`` has an unknown suffix.
        CorpusError: no pair can be scored.
        ModelError: the model is damaged, or its encoders differ from those here.
    """
    config = parse(ScoreConfig, values)
    _check(config)
    table = absolute(config.out, start)
    if table is not None:
        check_writable(table, "out")
    folder = resolve_model(config.model if config.model.startswith(HUB) else absolute(config.model, start) or "")
    source = _source(config, folder, start)

    from bcs_lab.score import BCS

    bcs = BCS.load(
        folder,
        device=config.encoder.device,
        dtype=config.encoder.dtype,
        batch_size=config.encoder.batch_size,
        options=config.encoder.options,
        on_encoder_mismatch=config.encoder.mismatch,
        max_image_pixels=config.max_image_pixels,
    )
    single = isinstance(source, FolderPairs) and Path(str(absolute(config.reconstruction, start))).is_file()
    if single and table is None:
        pair = source.pairs.iloc[0]
        print(bcs.score(pair["reference"], pair["reconstruction"], coverage=config.coverage))
        return {"transient": True}
    scored = _score(bcs, source, config, start)
    if scored.frame.empty:
        raise CorpusError(f"none of {len(scored.failed)} pair(s) could be scored:\n{listing(scored.failed)}")
    if single:
        pair = scored.frame.iloc[0]
        print(bcs.score(pair["reference"], pair["reconstruction"], coverage=config.coverage))
    summary = summarise(bcs, scored, config, folder)
    paths = _write(scored, summary, values, out, table)
    if not single:
        print(text_summary(summary))
    print("\n".join(f"Written: {path}" for path in paths))
    return {
        "model": bcs.ensemble.digest,
        "corpus": summary["corpus"],
        "pairs": summary["pairs"],
        "skipped": summary["skipped"],
        "simulated_teachers": bcs.ensemble.simulated_teachers,
        "exit_status": 1 if scored.failed else 0,
    }


def _check(config: ScoreConfig) -> None:
    """Say everything that is wrong with the choice of input and output at once."""
    problems = []
    sides = {"reference": config.reference, "reconstruction": config.reconstruction}
    given = [name for name, value in sides.items() if value]
    if config.corpus is not None and given:
        problems.append(f"corpus and {' and '.join(given)} were both given; name one of them")
    elif config.corpus is None and len(given) < 2:
        missing = " and ".join(f"{name}=…" for name in sides if name not in given)
        problems.append(f"needs {missing} (two images or two folders), or corpus=…")
    if config.part is not None and config.corpus is None:
        problems.append("part: only pairs of a corpus have parts; add corpus=…, or leave part out")
    if config.out is not None and Path(config.out).suffix.lower() not in SUFFIXES:
        problems.append(f"out: expected a file that ends in {', '.join(SUFFIXES)}, got {config.out!r}")
    if problems:
        raise ConfigError("\n".join(f"score: {problem}" for problem in problems))


def _source(config: ScoreConfig, model: Path, start: Path) -> FolderPairs | Corpus:
    if config.corpus is None:
        # As typed, so that the table names files as its reader does.
        return pair_paths(str(config.reference), str(config.reconstruction))
    corpus = open_corpus(config.corpus, start, need_answers=False, skip=True)
    return corpus if config.part is None else _part(corpus, config.part, model)


def _part(corpus: Corpus, part: str, model: Path) -> Corpus:
    """The pairs that were in one part when the model was trained, by the run's ``split.parquet``."""
    frame = known_split(model)
    if frame is None:
        raise RunError(
            f"part={part}: split.parquet is not there, neither beside {model} nor in it; a part is known only where "
            "the model lies in its run's folder."
        )
    wanted = set(frame.loc[frame["split"] == part, "pair_id"])
    if not wanted:
        counts = ", ".join(f"{n} {name}" for name, n in frame["split"].value_counts().items())
        raise RunError(f"part={part}: the model's run has no such pairs, only {counts}.")
    keep = corpus.pairs["pair_id"].astype(str).isin(wanted).to_numpy()
    unknown = wanted - set(corpus.pairs["pair_id"].astype(str))
    if not keep.any() or unknown:
        raise RunError(
            f"part={part}: {len(unknown)} of the {len(wanted)} {part} pairs of the model's run are not in corpus "
            f"{corpus.name!r}; name the corpus the model was trained on."
        )
    return corpus.subset(keep)


def _score(bcs: BCS, source: FolderPairs | Corpus, config: ScoreConfig, start: Path) -> _Scored:
    if isinstance(source, Corpus):
        frame, failed = bcs.score_corpus(source, store=open_store(config.store, start), coverage=config.coverage)
        cosines = frame.attrs.pop("cosines")  # not for the table's file
        return _Scored(frame, [*source.skipped, *failed], corpus=source, cosines=cosines)
    frame = bcs.score_pairs(source.pairs, coverage=config.coverage, on_bad_row="skip")
    files = dict(zip(source.pairs["pair_id"], source.pairs["reconstruction"], strict=True))
    failed = [
        Problem(files[item["pair_id"]], None, item["message"], item["pair_id"])
        for item in frame.attrs.pop("skipped", [])
    ]
    return _Scored(frame, failed, source.unmatched)


def summarise(bcs: BCS, scored: _Scored, config: ScoreConfig, folder: Path) -> dict[str, Any]:
    """The content of ``score.json``; ``folder`` is the model's."""
    ensemble, frame, corpus = bcs.ensemble, scored.frame, scored.corpus
    settings = {"resamples": config.bootstrap.resamples, "seed": config.bootstrap.seed}
    simulated = corpus is not None and corpus.simulated_teachers
    counts = frame["regime"].value_counts()
    summary: dict[str, Any] = {
        "model": {
            "path": config.model,
            "digest": ensemble.digest,
            "encoders": [encoder["label"] for encoder in ensemble.encoders],
            "head": ensemble.head["name"],
            "protocol": ensemble.protocol,
            "questions": ensemble.questions,
            "members": len(ensemble.seeds),
            "teachers": ensemble.teachers,
            "simulated_teachers": ensemble.simulated_teachers,
            "corpus": ensemble.provenance.get("corpus"),
            "created": ensemble.provenance.get("created"),
            "pairs": ensemble.provenance.get("counts"),
            "validated": ensemble.provenance.get("validated"),
            "held_out_coverage": ensemble.provenance.get("held_out_coverage"),
            "metrics": ensemble.metrics,
        },
        "corpus": None if corpus is None else corpus.name,
        "corpus_simulated_teachers": simulated,
        "part": config.part,
        "pairs": len(frame),
        "skipped": len(scored.failed),
        "unmatched": len(scored.unmatched),
        "trained_on": trained_on(frame, folder),
        "held_out": (folder.parent / "split.parquet").is_file(),
        "coverage": config.coverage,
        "mean": {axis: None if frame[axis].isna().all() else float(frame[axis].mean()) for axis in AXES},
        "regimes": {
            code: {"n": int(counts.get(code, 0)), "share": share}
            for code, share in regime_shares(frame["regime"]).items()
        },
        "ood": _ood(frame),
        "methods": method_table(frame, **settings),
        "differences": method_differences(frame, **settings),
        "against_consensus": None if corpus is None else _against_consensus(scored, corpus, ensemble, config),
    }
    other = []
    if corpus is not None and corpus.teachers and not _same_questions(ensemble, corpus):
        other.append(
            f"the corpus was asked other questions ({corpus.protocol.name}) than the model answers "
            f"({ensemble.protocol}): the scores are not compared with its teachers."
        )
    return summary | {"warnings": [*_warnings(summary), *other, *bcs.warnings]}


def _pairs(n: int) -> str:
    return f"{n:,} pair{'' if n == 1 else 's'}"


def _ood(frame: pd.DataFrame) -> dict[str, Any]:
    """Number and share of pairs with an unfamiliar picture; ``None`` where the model cannot tell."""
    if frame["ood"].isna().any():
        return {"n": None, "share": None}
    return {"n": int(frame["ood"].sum()), "share": float(frame["ood"].mean())}


def _same_questions(ensemble: Ensemble, corpus: Corpus) -> bool:
    asked = [(question.id, question.group) for question in corpus.protocol.questions]
    return asked == [(item["id"], item["group"]) for item in ensemble.questions]


def _against_consensus(
    scored: _Scored, corpus: Corpus, ensemble: Ensemble, config: ScoreConfig
) -> dict[str, Any] | None:
    """How near the scores come to the teachers of the scored corpus, where it has any that answered these questions.

    Plain cosines stand beside them under ``baselines``.
    """
    from bcs_lab.consensus import consensus
    from bcs_lab.evaluate import bootstrap_ci, cosine_baseline, evaluate
    from bcs_lab.split import concept_key

    frame = scored.frame
    rows = pd.Index(corpus.pairs["pair_id"]).get_indexer(pd.Index(frame["pair_id"]))
    if not corpus.teachers or np.isnan(corpus.answers[rows]).all():
        return None
    if not _same_questions(ensemble, corpus):
        return None
    target = consensus(corpus.answers[rows])
    prediction = frame[list(corpus.protocol.ids)].to_numpy(dtype=np.float32)
    concepts = corpus.pairs["concept"].iloc[rows].map(concept_key).to_numpy()
    intervals = bootstrap_ci(
        prediction, target, concepts, corpus.protocol, n_boot=config.bootstrap.resamples, seed=config.bootstrap.seed
    )
    return {
        **evaluate(prediction, target, corpus.protocol),
        "ci95": intervals,
        "teachers": list(corpus.teachers),
        "simulated": corpus.simulated_teachers,
        "baselines": {
            name: cosine_baseline(np.asarray(values), target, corpus.protocol)
            for name, values in scored.cosines.items()
        },
    }


def _warnings(summary: Mapping[str, Any]) -> list[str]:
    model, found = summary["model"], []
    if model["simulated_teachers"]:
        found.append(
            "SIMULATED TEACHERS: this model learned from computed answers; do not judge reconstructions with it."
        )
    if any("stand-in" in label for label in model["encoders"]):
        found.append("STAND-INS: the model's encoders are not those asked for at training; see their names.")
    if (summary["ood"]["share"] or 0) > MANY_OOD:
        found.append(
            f"{summary['ood']['n']} of {_pairs(summary['pairs'])} with a picture unlike the model's training images "
            "(ood); look at some before you trust their scores."
        )
    if summary["trained_on"]:
        found.append(
            f"{_pairs(summary['trained_on'])} of {summary['pairs']:,} took part in the model's training: their scores "
            "flatter it" + (" (part=test leaves them out)." if summary["held_out"] else "; all of its pairs did.")
        )
    return found


def _write(
    scored: _Scored, summary: Mapping[str, Any], values: Mapping[str, Any], out: Path, table: Path | None
) -> list[Path]:
    """All files of the run, and the table where it was asked for; returns what the user is told of."""
    for path in {out / "scores.parquet", table or out / "scores.csv"}:
        write_table(scored.frame, path)
    for name in ("methods", "differences"):
        if summary[name]:
            write_text(out / f"{name}.csv", pd.DataFrame(summary[name]).to_csv(index=False))
    if scored.failed or scored.unmatched:
        write_skipped([*scored.failed, *scored.unmatched], out / "skipped.csv")
        _complain(scored, out)
    write_text(out / "config.yaml", yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True))
    write_text(out / "scores.txt", text_summary(summary) + "\n")
    write_json(out / "score.json", summary)
    return [table, out] if table else [out]


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write scores by the file's suffix; a CSV has as many digits as float32 scores mean."""
    suffix = path.suffix.lower()
    with replacing(path) as temporary:
        if suffix == ".parquet":
            frame.to_parquet(temporary, index=False)
        elif suffix == ".jsonl":
            frame.to_json(temporary, orient="records", lines=True, force_ascii=False)
        else:
            frame.to_csv(temporary, index=False, float_format="%.6g")


def _complain(scored: _Scored, out: Path) -> None:
    if scored.failed:
        log.error(
            "%d pair(s) could not be scored, the other %d were:\n%s",
            len(scored.failed), len(scored.frame), listing(scored.failed, 20),
        )  # fmt: skip
    if scored.unmatched:
        log.warning("%d file(s) without a partner:\n%s", len(scored.unmatched), listing(scored.unmatched, 20))
    log.warning("all of them are listed in %s", out / "skipped.csv")


def text_summary(summary: Mapping[str, Any]) -> str:
    """What is printed: means, intervals and regimes by method, differences, agreement with teachers, warnings."""
    model = summary["model"]
    what = f" of {summary['corpus']}" if summary["corpus"] else ""
    lines = [
        f"{_pairs(summary['pairs'])}{what} scored by {model['digest']} ({' + '.join(model['encoders'])}; "
        f"{model['head']}, {model['members']} members; teachers {', '.join(model['teachers'])})",
        "",
        *_methods_text(summary),
    ]
    if summary["differences"]:
        lines += ["", *_differences_text(summary["differences"])]
    if summary["against_consensus"]:
        lines += ["", _consensus_text(summary["against_consensus"])]
    if summary["warnings"]:
        lines += ["", *summary["warnings"]]
    return "\n".join(lines)


def _methods_text(summary: Mapping[str, Any]) -> list[str]:
    everything = {
        "method": "all pairs",
        "pairs": summary["pairs"],
        "concepts": "",
        **summary["mean"],
        **{code: values["share"] for code, values in summary["regimes"].items()},
    }
    rows = [["", "pairs", "concepts", *AXES.values(), *REGIMES.values()]]
    for row in [*summary["methods"], everything]:
        rows.append(
            [
                str(row["method"]),
                f"{row['pairs']:,}",
                str(row["concepts"]),
                *("–" if row[axis] is None else f"{row[axis]:.3f}{_bounds(row, axis)}" for axis in AXES),
                *("–" if row[code] is None else f"{row[code]:.1%}" for code in REGIMES),
            ]
        )
    return _aligned(rows)


def _differences_text(differences: Sequence[Mapping[str, Any]], limit: int = 30) -> list[str]:
    rows = [
        ["first − second, on shared concepts", "concepts", *AXES.values(), *(f"{n}: verdict" for n in AXES.values())]
    ]
    shared = [row for row in differences if row["concepts"]]
    if not shared:
        return ["No two methods share a concept, so that they cannot be compared."]
    for row in shared[:limit]:
        rows.append(
            [
                f"{row['first']} − {row['second']}",
                str(row["concepts"]),
                *("–" if row[axis] is None else _minus(f"{row[axis]:+.3f}{_bounds(row, axis)}") for axis in AXES),
                *(verdict(row, axis) for axis in AXES),
            ]
        )
    more = [f"… and {len(shared) - limit} more in differences.csv"] if len(shared) > limit else []
    if len(shared) < len(differences):
        more.append(f"{len(differences) - len(shared)} pair(s) of methods share no concept.")
    return [*_aligned(rows), *more, "(95 % intervals over concepts; verdicts at 5 % by sign flips, Holm-corrected)"]


def _consensus_text(against: Mapping[str, Any]) -> str:
    from bcs_lab.report.table import HEADINGS, number

    parts = [f"{HEADINGS[key]} {number(against[key])}" for key in ("q_mae", "pas_r", "pas_rho", "sas_r", "sas_rho")]
    simulated = " (simulated)" if against["simulated"] else ""
    lines = [f"Against the corpus' own teachers{simulated}, {', '.join(against['teachers'])}: {', '.join(parts)}"]
    keys = ("pas_r", "pas_rho", "sas_r", "sas_rho")
    lines += [
        f"  {name}: " + ", ".join(f"{HEADINGS[key]} {number(values[key])}" for key in keys)
        for name, values in against["baselines"].items()
    ]
    return "\n".join(lines)


def _bounds(row: Mapping[str, Any], axis: str) -> str:
    low, high = row.get(f"{axis}_lo"), row.get(f"{axis}_hi")
    return "" if low is None else f" [{low:.3f}, {high:.3f}]"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join([f"{row[0]:<{widths[0]}}", *(f"{cell:>{w}}" for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
