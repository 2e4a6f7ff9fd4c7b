"""The summary of one teacher: the columns of Table 11, and what the replies took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import numpy as np
import yaml

from bcs_lab.teachers.annotate import Job, Outcome
from bcs_lab.teachers.progress import cost
from bcs_lab.teachers.protocol import PERCEPTUAL, SEMANTIC

#: Model calls and image encodes a pair of the authors' own runners: one call a question, both images each time.
REFERENCE_CALLS, REFERENCE_ENCODES = 12, 24


def summarise(job: Job, outcome: Outcome) -> dict[str, Any]:
    """The content of ``<teacher>.json``.

    ``valid`` and both means count only pairs whose every question is answered; a mean over the answers that happen to
    be there would be biased. ``mean_t_pas`` and ``mean_t_sas`` are ``None`` without such a pair, and where the protocol
    has no question of the group.
    """
    header, ledger, protocol = outcome.header, outcome.ledger, job.protocol
    valid = outcome.valid
    n, totals, settings = len(job.corpus), ledger.totals, header.settings
    answered = {
        question.id: {
            **{label: int((outcome.answers[:, q] == score).sum()) for label, score in protocol.levels.items()},
            "missing": int(np.isnan(outcome.answers[:, q]).sum()),
        }
        for q, question in enumerate(protocol.questions)
    }
    heard = len(ledger.images)
    return {
        "teacher": header.teacher,
        "checkpoint": settings.get("checkpoint"),
        "model": settings.get("model"),
        "revision": header.backend.get("revision", settings.get("revision")),
        "backend": settings.get("backend"),
        "dtype": settings.get("dtype"),
        "batch_size": job.batch_size,
        "max_new_tokens": settings.get("max_new_tokens"),
        "generation": settings.get("generation"),
        "mode": header.mode,
        "protocol": {"name": protocol.name, "digest": header.protocol.get("digest")},
        "simulated_teachers": header.simulated,
        "corpus": job.corpus.name,
        "pairs": n,
        "valid_pairs": int(valid.sum()),
        "valid": float(valid.sum() / n) if n else None,
        "mean_t_pas": _mean(outcome.answers[valid], protocol.indices(PERCEPTUAL)),
        "mean_t_sas": _mean(outcome.answers[valid], protocol.indices(SEMANTIC)),
        "paper": paper_row(settings.get("checkpoint")),
        "answers": answered,
        "left": left_counts(outcome),
        "replies": {
            "texts": totals.replies,
            "errors": totals.errors,
            "calls": totals.calls,
            "image_encodes": totals.image_encodes,
            "calls_a_pair": totals.calls / heard if heard else None,
            "image_encodes_a_pair": totals.image_encodes / heard if heard else None,
            "prompt_tokens": totals.prompt_tokens,
            "completion_tokens": totals.completion_tokens,
            "cost": cost(job.price, totals.prompt_tokens, totals.completion_tokens),
            "mean_latency_s": totals.seconds / (totals.replies + totals.errors) if totals.replies else None,
            "finish": dict(sorted(totals.finish.items())),
            "damaged_lines": len(ledger.damaged),
            "pairs_not_in_corpus": len(ledger.strangers),
        },
    }


def _mean(answers: np.ndarray, columns: Sequence[int]) -> float | None:
    if not len(answers) or not columns:
        return None
    return float(answers[:, columns].astype(np.float64).mean(axis=1).mean())


def paper_row(checkpoint: str | None) -> dict[str, Any] | None:
    """Table 11's row of a checkpoint, on the paper's own corpus; ``None`` for one it does not have."""
    text = resources.files("bcs_lab.assets").joinpath("paper_table11.yaml").read_text(encoding="utf-8")
    row: dict[str, Any] | None = yaml.safe_load(text).get(checkpoint)
    return row


def left_counts(outcome: Outcome) -> dict[str, int]:
    """Pairs without a full set of answers, by the reason."""
    counts = {"invalid": 0, "no_reply": 0, "broken_image": 0, "not_asked": 0}
    for _, kind, _ in left(outcome):
        counts[kind] += 1
    return counts


def left(outcome: Outcome) -> list[tuple[str, str, str]]:
    """Pairs without a full set of answers, in the order of the corpus: pair id, kind, reason.

    Kinds are ``invalid`` (a reply that does not answer everything), ``no_reply`` (the model or server gave none),
    ``broken_image`` and ``not_asked``.
    """
    ledger, found = outcome.ledger, []
    errors: dict[int, str] = {}
    for (row, _), message in ledger.error.items():
        errors.setdefault(row, message)
    for row in np.flatnonzero(~outcome.valid).tolist():
        if row in outcome.problems:
            kind, why = "broken_image", outcome.problems[row].message
        elif row in errors:
            kind, why = "no_reply", errors[row]
        elif row in outcome.unfit:
            kind, why = "invalid", outcome.unfit[row]
        else:
            kind, why = "not_asked", "not asked yet"
        found.append((ledger.pair_ids[row], kind, why))
    return found


def table(summary: Mapping[str, Any]) -> str:
    """Table 11's columns of this run, above the paper's row of the same checkpoint."""
    head = ["", "checkpoint", "dtype", "batch", "max tokens", "valid", "mean T-PAS", "mean T-SAS"]
    name = summary["teacher"] + (" (SIMULATED)" if summary["simulated_teachers"] else "")
    rows = [
        [
            f"{name} on {summary['corpus']}, {summary['pairs']:,} pairs",
            _shown(summary["model"]),
            _shown(summary["dtype"]),
            _shown(summary["batch_size"]),
            _shown(summary["max_new_tokens"]),
            *(_number(summary[key]) for key in ("valid", "mean_t_pas", "mean_t_sas")),
        ]
    ]
    paper = summary["paper"]
    if paper is not None:
        rows.append(
            [
                f"{paper['name']} on the paper's corpus, 6,855 pairs (Table 11)",
                _shown(summary["checkpoint"]),
                _shown(paper["dtype"]),
                _shown(paper["batch"]),
                _shown(paper["max_tokens"]),
                *(_number(paper[key]) for key in ("valid", "t_pas", "t_sas")),
            ]
        )
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if column < 3 else cell.rjust(w)
            for column, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in [head, *rows]
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _shown(value: Any) -> str:
    return "–" if value is None else str(value)
