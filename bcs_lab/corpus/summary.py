"""Small tables about a corpus: counts per method and subject, and the rows left out."""

from __future__ import annotations

import csv
import secrets
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from bcs_lab.corpus.schema import Corpus
from bcs_lab.errors import Problem, RunError


def summary(corpus: Corpus) -> pd.DataFrame:
    """Counts per method and subject.

    Returns:
        One row a method and subject, sorted: ``method, subject, pairs, concepts, references`` (distinct reference
        images; <NA> where the corpus has neither paths nor embeddings to tell) and, for each teacher,
        ``answered_<teacher>``, the share of questions it answered, 0 to 1.
    """
    pairs = corpus.pairs
    references: list[object] | None = None
    if pairs["reference_path"].astype(bool).all():
        references = pairs["reference_path"].tolist()
    elif corpus.shipped:
        references = next(iter(corpus.shipped.values())).reference.tolist()
    answered = (~np.isnan(corpus.answers)).mean(axis=2)
    rows = []
    groups: dict[tuple[str, str], list[int]] = {}
    for i, key in enumerate(zip(pairs["method"], pairs["subject"], strict=True)):
        groups.setdefault(key, []).append(i)
    for (method, subject), at in sorted(groups.items()):
        row: dict[str, object] = {
            "method": method,
            "subject": subject,
            "pairs": len(at),
            "concepts": int(pairs["concept"].iloc[at].nunique()),
            "references": pd.NA if references is None else len({references[i] for i in at}),
        }
        row |= {f"answered_{name}": float(answered[at, t].mean()) for t, name in enumerate(corpus.teachers)}
        rows.append(row)
    return pd.DataFrame(rows).astype({"references": "Int64"})


def left_out(problems: Sequence[Problem]) -> str:
    """How much problems concern, such as ``2 manifest rows and 11 annotation records``; several may be of one row.

    Problems without a row are counted as files.
    """
    places = {(problem.file, problem.row) for problem in problems}
    files = sum(row is None for _, row in places)
    records = sum(row is not None and file.startswith("annotations/") for file, row in places)
    counts = {"manifest row": len(places) - files - records, "annotation record": records, "file": files}
    parts = [f"{n} {noun}{'' if n == 1 else 's'}" for noun, n in counts.items() if n]
    return " and ".join(parts) or "nothing"


def write_skipped(problems: Sequence[Problem], path: str | Path) -> None:
    """Write the rows left out as CSV with the columns ``file, row, pair_id, problem``.

    Raises:
        RunError: the file cannot be written.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["file", "row", "pair_id", "problem"])
            for problem in problems:
                row = "" if problem.row is None else problem.row
                writer.writerow([problem.file, row, problem.pair_id or "", problem.message])
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RunError(f"{path}: the list of skipped rows cannot be written ({error.strerror or error})") from error
