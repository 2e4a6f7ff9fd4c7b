"""Read the teachers' answers: one file a teacher, named by its stem.

A record answers some or all questions about one pair::

    {"pair_id": "p1", "answers": {"P1": {"answer": "yes", "reasoning": "same outline"}, "P2": "no"}}

``rationale`` and ``reason`` are read like ``reasoning``. Answers match after stripping blanks and folding case. Null or
absent means missing. Parquet files hold the same record nested, or one row an answer (``pair_id, question, answer,
rationale``), or one column a question.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bcs_lab.corpus.readers import Findings, json_records, read_parquet
from bcs_lab.errors import ConfigError
from bcs_lab.teachers.protocol import Protocol

logger = logging.getLogger(__name__)

#: The paper's annotators in the paper's order; they come first when a corpus does not declare an order.
PAPER_TEACHERS = ("internvl3", "sail_vl", "ola", "ovis2")

SUFFIXES = (".jsonl", ".parquet")
RATIONALE_KEYS = ("reasoning", "rationale", "reason")


@dataclass(frozen=True)
class Annotations:
    """Answers of all teachers.

    Attributes:
        teachers: names in declared order.
        answers: float32 ``[n_pairs, n_teachers, n_questions]``; NaN where missing.
        rationales: object array of the same shape, text.
        lost: ids of pairs that have a bad record, in any file.
    """

    teachers: tuple[str, ...]
    answers: np.ndarray
    rationales: np.ndarray
    lost: frozenset[str]


@dataclass(frozen=True)
class _Record:
    row: int
    pair_id: Any
    answers: Any


def teacher_files(folder: Path, found: Findings) -> dict[str, Path]:
    """Teacher name -> file, alphabetical; a missing or empty folder is a problem in ``found``."""
    expected = "expected one file a teacher, such as annotations/internvl3.jsonl (.jsonl or .parquet)"
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        what = "no such folder" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        found.file("annotations", f"{what} ({folder}); {expected}")
        return {}
    visible = [entry for entry in entries if not entry.name.startswith((".", "~"))]
    usable = [entry for entry in visible if entry.suffix.lower() in SUFFIXES and not entry.is_dir()]
    others = [entry.name for entry in visible if entry not in usable]
    if not usable:
        inside = ", ".join(others[:20]) or "an empty folder"
        found.file("annotations", f"no annotations ({folder}); {expected}, found {inside}")
        return {}
    if others:
        logger.warning("%s: not read, since they are neither .jsonl nor .parquet: %s", folder, ", ".join(others[:20]))
    files: dict[str, Path] = {}
    for entry in usable:
        if entry.stem in files:
            found.file(
                f"annotations/{entry.name}", f"teacher {entry.stem!r} is also {files[entry.stem].name}; keep one"
            )
        files.setdefault(entry.stem, entry)
    return files


def order_teachers(existing: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The declared order: ``wanted`` if given, else the paper's teachers first, then the others by name.

    Raises:
        ConfigError: ``wanted`` names a teacher that does not exist, or one twice.
    """
    if wanted is None:
        first = [name for name in PAPER_TEACHERS if name in existing]
        return (*first, *sorted(name for name in existing if name not in first))
    if isinstance(wanted, str):
        wanted = [wanted]
    names = [str(name) for name in wanted]
    unknown = [name for name in names if name not in existing]
    if unknown or not names or len(set(names)) < len(names):
        what = f"unknown {', '.join(map(repr, unknown))}" if unknown else f"got {names}"
        expected = f"expected distinct names of teachers this corpus has ({', '.join(existing)})"
        raise ConfigError(f"corpus.teachers_order: {expected}; {what}.")
    return tuple(names)


def read_annotations(
    files: Mapping[str, Path],
    ids: Mapping[str, int],
    n_pairs: int,
    known: set[str],
    protocol: Protocol,
    found: Findings,
) -> Annotations:
    """Read every teacher's file.

    Args:
        files: teacher -> file, in declared order.
        ids: pair id -> row of the result.
        n_pairs: number of rows of the result.
        known: pair ids that exist but are not asked for (bad rows of the manifest); their records are passed over.
        protocol: the questions.
        found: receives the problems. A bad record counts as absent.
    """
    shape = (n_pairs, len(files), len(protocol.ids))
    answers = np.full(shape, np.nan, dtype=np.float32)
    rationales = np.full(shape, "", dtype=object)
    lost: set[str] = set()
    for t, path in enumerate(files.values()):
        file = f"annotations/{path.name}"
        before = len(found.rows)
        records = _records(path, file, protocol, found, lost)
        if records is None:
            continue
        good = 0
        for record in _single(records, file, found, lost):
            pair_id = record.pair_id
            row = ids.get(pair_id)
            if row is None:
                good += pair_id in known
                if pair_id not in known:
                    found.row(file, record.row, _unknown_pair(pair_id, ids), pair_id)
                continue
            bad = _fill(record.answers, protocol, answers[row, t], rationales[row, t])
            if bad:
                answers[row, t] = np.nan
                rationales[row, t] = ""
                found.row(file, record.row, bad, pair_id)
                lost.add(pair_id)
            else:
                good += 1
        if not good and len(found.rows) == before:
            found.file(file, "holds no records; expected one a pair")
        elif not good:
            logger.warning("%s: no usable record is left; every answer of this teacher counts as missing", file)
        found.rows[before:] = sorted(found.rows[before:], key=lambda problem: problem.row or 0)
    return Annotations(tuple(files), answers, rationales, frozenset(lost))


def _unknown_pair(pair_id: str, ids: Mapping[str, int]) -> str:
    near = next((i for i in (pair_id.strip(), pair_id.lower(), pair_id.upper()) if i in ids), None)
    return "the manifest has no such pair" + (f"; did you mean {near!r}?" if near else "")


def _single(records: list[_Record], file: str, found: Findings, lost: set[str]) -> list[_Record]:
    """Records with a usable id, one a pair.

    A repeat of the same content is reported and left out, the first stays; records that differ are all doubtful.
    """
    groups: dict[str, list[_Record]] = {}
    for record in records:
        pair_id = record.pair_id
        if isinstance(pair_id, int) and not isinstance(pair_id, bool):
            pair_id = str(pair_id)
        if not isinstance(pair_id, str) or not pair_id.strip():
            found.row(file, record.row, f"expected `pair_id` to be a text but got {_shown(pair_id)}")
            continue
        groups.setdefault(pair_id, []).append(_Record(record.row, pair_id, record.answers))
    single = []
    for pair_id, group in groups.items():
        first = group[0]
        if len(group) == 1:
            single.append(first)
        elif all(other.answers == first.answers for other in group[1:]):
            single.append(first)
            for other in group[1:]:
                found.row(file, other.row, f"repeats the record of line {first.row}", pair_id)
        else:
            lost.add(pair_id)
            lines = ", ".join(str(other.row) for other in group)
            for other in group:
                found.row(file, other.row, f"{len(group)} different records of this pair (lines {lines})", pair_id)
    return single


def _fill(given: Any, protocol: Protocol, answers: np.ndarray, rationales: np.ndarray) -> str | None:
    """Write one record into ``answers`` and ``rationales``, views ``[n_questions]``; returns what is wrong with it."""
    if isinstance(given, list):
        given = dict(given) if all(isinstance(item, tuple) and len(item) == 2 for item in given) else given
    if not isinstance(given, dict):
        return f"expected `answers` to be an object with the questions as keys but got {_shown(given)}"
    levels = protocol.levels
    positions = {question: i for i, question in enumerate(protocol.ids)}
    bad: list[str] = []
    unknown: list[str] = []
    for question, cell in given.items():
        position = positions.get(question)
        if position is None:
            # A Parquet struct holds null for a question that some other record answers.
            if cell is not None:
                unknown.append(str(question))
            continue
        if isinstance(cell, dict):
            answer = cell.get("answer")
            reason = cell.get(RATIONALE_KEYS[0])
            if reason is None:
                reason = next((cell[key] for key in RATIONALE_KEYS if cell.get(key) is not None), None)
            if reason is not None:
                rationales[position] = _clean(reason)
        else:
            answer = cell
        if answer is None:
            continue
        value = levels.get(answer) if isinstance(answer, str) else None
        if value is None and isinstance(answer, str):
            value = levels.get(answer.strip().casefold())
        if value is None:
            bad.append(f"{question} is {_shown(answer)}")
        else:
            answers[position] = value
    parts = []
    if bad:
        parts.append(f"answer outside the scale: {', '.join(bad)} (expected {', '.join(levels)})")
    if unknown:
        parts.append(f"unknown question {', '.join(map(repr, unknown))} (expected {', '.join(protocol.ids)})")
    return "; ".join(parts) or None


def _clean(text: Any) -> str:
    if not isinstance(text, str):
        return json.dumps(text, ensure_ascii=False, default=str)
    # Half a surrogate pair, as a cut-off generation leaves it, could not be written to any file.
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _records(path: Path, file: str, protocol: Protocol, found: Findings, lost: set[str]) -> list[_Record] | None:
    if path.suffix.lower() == ".parquet":
        return _parquet_records(path, file, protocol, found, lost)
    read = json_records(path, file, found)
    if read is None:
        return None
    records, torn = read
    lost |= torn
    result = []
    for row, record in records:
        if "pair_id" in record and "answers" in record:
            result.append(_Record(row, record["pair_id"], record["answers"] if record["answers"] is not None else {}))
            continue
        missing = " and ".join(f"`{key}`" for key in ("pair_id", "answers") if key not in record)
        pair_id = record.get("pair_id")
        if isinstance(pair_id, str):
            lost.add(pair_id)
        keys = ", ".join(record) or "nothing"
        found.row(
            file, row, f"expected {missing} in the record, found {keys}", pair_id if isinstance(pair_id, str) else None
        )
    return result


def _parquet_records(
    path: Path, file: str, protocol: Protocol, found: Findings, lost: set[str]
) -> list[_Record] | None:
    table = read_parquet(path, file, found)
    if table is None:
        return None
    columns = set(table.column_names)
    wide = [question for question in protocol.ids if question in columns]
    if "pair_id" in columns and "answers" in columns:
        rows = zip(table["pair_id"].to_pylist(), table["answers"].to_pylist(), strict=True)
        return [_Record(i, pair_id, _nested(value)) for i, (pair_id, value) in enumerate(rows, start=1)]
    if {"pair_id", "question", "answer"} <= columns:
        return _long_records(table, file, found, lost)
    if "pair_id" in columns and wide:
        ids = table["pair_id"].to_pylist()
        values = [table[question].to_pylist() for question in wide]
        return [_Record(i + 1, ids[i], {q: v[i] for q, v in zip(wide, values, strict=True)}) for i in range(len(ids))]
    found.file(
        file,
        "expected the columns pair_id and answers, or pair_id, question, answer, rationale, or pair_id and one column "
        f"a question; found {', '.join(table.column_names)}",
    )
    return None


def _nested(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return {} if value is None else value


def _long_records(table: Any, file: str, found: Findings, lost: set[str]) -> list[_Record]:
    rationale = next((key for key in RATIONALE_KEYS if key in table.column_names), None)
    ids, questions, answers = (table[name].to_pylist() for name in ("pair_id", "question", "answer"))
    reasons = table[rationale].to_pylist() if rationale else [None] * len(ids)
    records: dict[Any, _Record] = {}
    twice: dict[Any, tuple[int, list[str]]] = {}
    rows: dict[tuple[Any, Any], int] = {}
    for row, (pair_id, question, answer, reason) in enumerate(zip(ids, questions, answers, reasons, strict=True), 1):
        record = records.setdefault(pair_id, _Record(row, pair_id, {}))
        if question in record.answers:
            _, parts = twice.setdefault(pair_id, (row, []))
            again = f" (row {row})" if parts else ""
            parts.append(f"question {question!r} is also answered in row {rows[pair_id, question]}{again}")
            lost.add(str(pair_id))
        record.answers[question] = {"answer": answer, "reasoning": reason}
        rows[pair_id, question] = row
    for pair_id, (row, parts) in twice.items():
        # One problem, since what is left out is one record.
        found.row(file, row, "; ".join(parts), str(pair_id))
    return [record for pair_id, record in records.items() if pair_id not in twice]
