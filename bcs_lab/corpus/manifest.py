"""Read pairs of one's own: ``DIR/manifest.{csv,parquet,jsonl}``, ``DIR/annotations/*`` and the images they name.

``DIR/protocol.yaml`` says which questions were asked, if they are not the paper's. Answers may lie in another folder,
which then may have a protocol of its own, beside the answers or above the folder ``annotations`` that holds them.

Cells are text and stay what they are; only an empty or null cell of method, subject, rank or candidate becomes the text
``na`` (unknown). All problems of manifest, annotations and images come in one report.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np
import pandas as pd

from bcs_lab.corpus.annotations import Annotations, order_teachers, read_annotations, teacher_files
from bcs_lab.corpus.images import DEFAULT_MAX_IMAGE_PIXELS, check_image_file, inspect_image
from bcs_lab.corpus.paths import Resolved, resolve_path
from bcs_lab.corpus.readers import Findings, Table, read_table
from bcs_lab.corpus.schema import PAIR_COLUMNS, PATH_COLUMNS, Corpus
from bcs_lab.corpus.summary import left_out
from bcs_lab.errors import CorpusError, ImageError, Problem, listing
from bcs_lab.teachers.protocol import BCS12, PROTOCOL_FILE, Protocol, corpus_protocol

logger = logging.getLogger(__name__)

FORMATS = (".csv", ".parquet", ".jsonl")
UNKNOWN = "na"
#: Columns that pairs without answers may lack.
OPTIONAL = ("method", "subject", "concept", "rank", "candidate")

#: Written into the folder of a corpus that was made rather than collected (see :mod:`bcs_lab.corpus.made`).
MADE_INDEX = "made.json"

#: How other tools call these columns, for the "did you mean".
ALIASES: Mapping[str, tuple[str, ...]] = {
    "pair_id": ("id", "pair", "pairid", "key"),
    "method": ("model", "decoder", "algorithm", "approach"),
    "subject": ("sub", "subj", "subject_id", "participant"),
    "concept": ("class", "class_name", "label", "category", "object"),
    "candidate": ("cand", "sample", "candidate_id"),
    "reference_path": ("reference", "ref_path", "gt_path", "ground_truth_path", "stimulus_path", "target_path"),
    "reconstruction_path": ("reconstruction", "generated_path", "recon_path", "rec_path", "reconstructed_path"),
}

#: Most problems printed in one message; the count in its first line is of all.
SHOWN = 200


def load_manifest(
    root: str | Path | None,
    *,
    teachers_order: Sequence[str] | None = None,
    on_bad_row: str = "error",
    max_image_pixels: int = DEFAULT_MAX_IMAGE_PIXELS,
    protocol: Protocol | None = None,
    need_images: bool = True,
    need_answers: bool = True,
    annotations: str | Path | None = None,
) -> Corpus:
    """Read a corpus of one's own.

    Args:
        root: the folder; relative image paths start here.
        teachers_order: declared order of the teachers, all or some of the annotation files; by default the paper's
            teachers first, then the others by name.
        on_bad_row: ``error`` stops with every problem listed; ``skip`` leaves bad rows and records out.
        max_image_pixels: size limit of an image.
        protocol: the questions; by default those of ``protocol.yaml``, else the paper's.
        need_images: ``False`` passes over all checks of paths and files, for embeddings computed elsewhere.
        need_answers: ``False`` takes pairs that no teacher has answered, a folder without ``annotations/``, and a
            manifest with nothing but ids and paths.
        annotations: folder of the answers, or one that holds ``annotations/``; by default ``root/annotations``.

    Returns:
        The corpus. Headers of all images were read; every pixel is decoded only when it is used, or when a report is
        written anyway.

    Raises:
        CorpusError: with all problems at once.
        ConfigError: ``teachers_order`` does not fit, or a ``protocol.yaml`` holds no protocol.
    """
    folder = corpus_folder(root, "manifest", "that holds manifest.csv and annotations/")
    answers = _answers_folder(folder, annotations)
    protocol = protocol or _protocol(folder, answers)
    path = _manifest_file(folder)
    found = Findings()
    table = read_table(path, path.name, found)
    # An annotation that was killed may leave an empty folder.
    annotated = need_answers or teachers_order is not None or any(answers.glob("[!.]*"))
    files = teacher_files(answers, found) if annotated else {}
    order = order_teachers(list(files), teachers_order) if files else ()
    if table is None:
        _stop(folder, path.name, found)
    if not table.rows:
        found.file(path.name, "no row can be read" if found.rows else "empty manifest: it holds no pair")
        _stop(folder, path.name, found)
    rows = _Rows(table, path.name)
    if not need_answers:
        _fill_optional(table, path.name)
    missing = _check_columns(table, path.name, found)
    if "pair_id" in missing:
        _stop(folder, path.name, found)
    _check_cells(rows, missing, found, need_images=need_images)
    if need_images:
        _check_images(rows, folder, max_image_pixels, found)
    ids = {rows.text("pair_id", i): i for i in rows.usable_ids()}
    known = table.lost_ids | {rows.text("pair_id", i) for i in range(len(rows))}
    read = read_annotations({teacher: files[teacher] for teacher in order}, ids, len(rows), known, protocol, found)
    if not found.files and need_answers:
        _check_answered(rows, read, found, skip=on_bad_row == "skip")
    if found.files or (found.rows and on_bad_row == "error"):
        if need_images:
            _decode_all(rows, max_image_pixels, found)
        _stop(folder, path.name, found)
    keep = _usable(rows, folder, found)
    return Corpus(
        name=folder.name,
        pairs=_pairs(rows, keep),
        teachers=read.teachers,
        answers=read.answers[keep],
        rationales=read.rationales[keep],
        protocol=protocol,
        root=folder,
        where=[rows.where(i) for i in keep],
        skipped=_ordered(found.rows, path.name),
        simulated_teachers=(folder / MADE_INDEX).is_file(),
        on_bad_row=on_bad_row,
        max_image_pixels=max_image_pixels,
        found_paths=rows.found_paths,
        sources=_sources(folder),
    )


def _answers_folder(folder: Path, annotations: str | Path | None) -> Path:
    """Where the teachers' files are."""
    if annotations is None or not str(annotations).strip():
        return folder / "annotations"
    given = corpus_folder(annotations, "manifest", "of the teachers' answers", key="corpus.annotations")
    inner = given / "annotations"
    return inner if inner.is_dir() else given


def _protocol(folder: Path, answers: Path) -> Protocol:
    """The questions that were asked: what lies nearest to the answers says so."""
    above = [answers.parent] if answers.name == "annotations" else []
    for place in (answers, *above, folder):
        if (place / PROTOCOL_FILE).exists() or (place / PROTOCOL_FILE).is_symlink():
            return corpus_protocol(place)
    return BCS12


def corpus_folder(root: str | Path | None, kind: str, what: str, key: str = "corpus.root") -> Path:
    """The absolute folder that ``corpus.root`` (or another ``key``) names.

    Raises:
        CorpusError: it is not given, does not exist, or is a file.
    """
    if root is None or not str(root).strip():
        raise CorpusError(f"corpus={kind} needs {key}=DIR, the folder {what}.")
    folder = Path(os.path.abspath(Path(root).expanduser()))  # noqa: PTH100 - a link keeps its name
    tried = f"{key}={root}" + ("" if str(root) == str(folder) else f" (that is {folder})")
    if not folder.exists():
        parent = next(p for p in folder.parents if p.exists())
        near = (
            difflib.get_close_matches(folder.name, _entries(parent), n=1, cutoff=0.75)
            if folder.parent == parent
            else []
        )
        hint = f" Did you mean {parent / near[0]}?" if near else f" The nearest folder that exists is {parent}."
        raise CorpusError(f"{tried}: no such folder; expected the folder {what}.{hint}")
    if not folder.is_dir():
        raise CorpusError(f"{tried}: is a file; expected the folder {what}. Did you mean {key}={folder.parent}?")
    return folder


def _entries(folder: Path) -> list[str]:
    try:
        return sorted(entry.name + ("/" if entry.is_dir() else "") for entry in folder.iterdir())
    except OSError:
        return []


def _manifest_file(folder: Path) -> Path:
    there = [folder / f"manifest{suffix}" for suffix in FORMATS]
    there = [path for path in there if path.is_file() or path.is_symlink()]
    expected = "expected exactly one of " + ", ".join(f"manifest{suffix}" for suffix in FORMATS)
    if len(there) == 1:
        return there[0]
    if there:
        raise CorpusError(f"{folder}: {expected}; found {' and '.join(p.name for p in there)}. Remove all but one.")
    names = _entries(folder)
    close = [name for name in names if Path(name).stem.lower().startswith("manifest")]
    close = close or difflib.get_close_matches("manifest.csv", names, n=2)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    shown = ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
    raise CorpusError(f"{folder}: {expected}; found {shown or 'an empty folder'}.{hint}")


def _stop(folder: Path, file: str, found: Findings) -> NoReturn:
    problems = found.files + _ordered(found.rows, file)
    count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
    if found.files:
        advice = "Correct these and start again."
    else:
        advice = "Correct these rows, or go on without them: corpus.on_bad_row=skip"
    raise CorpusError(f"{count} in the corpus {folder}:\n{listing(problems, SHOWN)}\n{advice}")


def _ordered(problems: Sequence[Problem], file: str) -> list[Problem]:
    """The manifest's first, then by file; by row within a file."""
    return sorted(problems, key=lambda problem: (problem.file != file, problem.file, problem.row or 0))


# --- manifest --------------------------------------------------------------------------------------------------------


@dataclass
class _Rows:
    """Rows of a manifest while they are checked; ``bad`` holds the positions of those with a problem."""

    table: Table
    file: str
    bad: set[int] = field(default_factory=set)
    repeats: set[int] = field(default_factory=set)
    found_paths: dict[str, Path] = field(default_factory=dict)
    images: dict[int, dict[str, Path]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.table.rows)

    def text(self, column: str, i: int) -> str:
        return self.table.cells[i].get(column) or ""

    def line(self, i: int) -> int:
        return self.table.rows[i]

    def where(self, i: int) -> str:
        return f"{self.file}:{self.line(i)}"

    def problem(self, i: int, message: str, found: Findings) -> None:
        self.bad.add(i)
        found.row(self.file, self.line(i), message, self.text("pair_id", i) or None)

    def usable_ids(self) -> list[int]:
        """Positions whose pair id names exactly one row."""
        return [i for i in range(len(self)) if self.text("pair_id", i) and i not in self.repeats]


def _fill_optional(table: Table, file: str) -> None:
    """Without answers only the id and the two paths are needed; the other columns are then unknown."""
    missing = [name for name in OPTIONAL if name not in table.columns]
    near = {name: _meant(name, [c for c in table.columns if c not in PAIR_COLUMNS]) for name in missing}
    for name, found in near.items():
        if found is not None:
            logger.warning("%s: no column %s; rename %r if it holds it", file, name, found)
    table.columns.extend(missing)
    for cells in table.cells:
        cells.update(dict.fromkeys(missing, UNKNOWN))


def _check_columns(table: Table, file: str, found: Findings) -> list[str]:
    """Report missing columns in one problem; returns their names."""
    missing = [name for name in PAIR_COLUMNS if name not in table.columns]
    if not missing:
        return []
    extra = [name for name in table.columns if name not in PAIR_COLUMNS]
    free = list(extra)
    parts = []
    for name in missing:
        near = _meant(name, free)
        if near is not None:
            free.remove(near)
        parts.append(name if near is None else f"{name} (did you mean to rename {near!r}?)")
    plural = "s" if len(missing) > 1 else ""
    found.file(
        file,
        f"missing column{plural} {', '.join(parts)}; unknown columns here: {', '.join(map(repr, extra)) or 'none'}. "
        f"Expected {', '.join(PAIR_COLUMNS)} (write {UNKNOWN} where a value is unknown)",
    )
    return missing


def _meant(name: str, candidates: list[str]) -> str | None:
    folded = {candidate.strip().casefold().replace(" ", "_").replace("-", "_"): candidate for candidate in candidates}
    for wanted in (name, *ALIASES.get(name, ())):
        if wanted in folded:
            return folded[wanted]
    near = difflib.get_close_matches(name, folded, n=1, cutoff=0.7)
    return folded[near[0]] if near else None


def _check_cells(rows: _Rows, missing: Sequence[str], found: Findings, *, need_images: bool) -> None:
    """Ids, empty cells, duplicates; fills unknown cells."""
    needed = {"pair_id", "concept", *(PATH_COLUMNS if need_images else ())} - set(missing)
    untrimmed: dict[str, list[int]] = {}
    seen: dict[str, list[int]] = {}
    for i, cells in enumerate(rows.table.cells):
        for column, value in cells.items():
            if value is None or not value.strip():
                if column in needed:
                    what = "is null" if value is None else "is empty"
                    cells[column] = ""
                    rows.problem(i, f"column {column} {what}", found)
                else:
                    cells[column] = UNKNOWN if column in PAIR_COLUMNS and column not in PATH_COLUMNS else ""
            elif not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
                cells[column] = value.encode("utf-8", "replace").decode()
                rows.problem(i, f"column {column} is not valid Unicode text", found)
            elif column in ("method", "subject", "concept") and value != value.strip():
                untrimmed.setdefault(column, []).append(i)
        pair_id = rows.text("pair_id", i)
        if pair_id != pair_id.strip():
            rows.problem(i, f"pair_id {pair_id!r} begins or ends with a blank", found)
        if pair_id:
            seen.setdefault(pair_id, []).append(i)
    for column, at in untrimmed.items():
        logger.warning(
            "%s: column %s: %d values begin or end with a blank, such as %r in line %d; they are kept as they are",
            rows.file, column, len(at), rows.text(column, at[0]), rows.line(at[0]),
        )  # fmt: skip
    for same in seen.values():
        if len(same) > 1:
            _duplicates(rows, same, found)


def _duplicates(rows: _Rows, same: list[int], found: Findings) -> None:
    """One id on several rows: identical rows count once (the first stays), different ones are all doubtful."""
    first = rows.table.cells[same[0]]
    identical = all(rows.table.cells[i] == first for i in same[1:])
    lines = ", ".join(str(rows.line(i)) for i in same)
    for i in same[1:] if identical else same:
        rows.repeats.add(i)
        if identical:
            message = f"duplicate pair id: repeats line {rows.line(same[0])}"
        else:
            message = f"duplicate pair id: used in lines {lines} for different rows"
        rows.problem(i, message, found)


def _check_answered(rows: _Rows, annotations: Annotations, found: Findings, *, skip: bool) -> None:
    """A pair needs at least one answer of one teacher."""
    answered = ~np.isnan(annotations.answers).all(axis=(1, 2))
    for i in rows.usable_ids():
        if answered[i]:
            continue
        if rows.text("pair_id", i) not in annotations.lost:
            teachers = ", ".join(annotations.teachers)
            rows.problem(i, f"pair without annotations: no answer from any teacher ({teachers})", found)
        elif skip:
            rows.problem(i, "pair without annotations: all its records are bad", found)


# --- images ----------------------------------------------------------------------------------------------------------


def _check_images(rows: _Rows, root: Path, max_pixels: int, found: Findings) -> None:
    """Resolve every path, read every header, and look for pairs that compare a file with itself."""
    listings: dict[Path, list[str]] = {}
    resolved: dict[str, Resolved] = {}
    folded: list[str] = []
    for i in range(len(rows)):
        for column in PATH_COLUMNS:
            text = rows.text(column, i)
            if not text:
                continue
            if text not in resolved:
                resolved[text] = resolve_path(text, root, listings)
            item = resolved[text]
            if item.path is None:
                rows.problem(i, f"{column}: {item.problem}", found)
                continue
            if item.warning:
                folded.append(f"{rows.where(i)}: pair {rows.text('pair_id', i)!r}: {column}: {item.warning}")
                rows.found_paths[text] = item.path
            rows.images.setdefault(i, {})[column] = item.path
    distinct = list(dict.fromkeys(path for paths in rows.images.values() for path in paths.values()))
    checked = dict(zip(distinct, _parallel(_header_check, distinct, max_pixels), strict=True))
    used: dict[tuple[str, str], list[int]] = {}
    real = {path: os.path.realpath(path) for path in distinct}
    animated: dict[Path, str] = {}
    for i, paths in rows.images.items():
        for column, path in paths.items():
            reason, frames = checked[path]
            if reason is not None:
                rows.problem(i, f"{column}: {reason}", found)
            elif frames > 1:
                pair = f"{rows.where(i)}: pair {rows.text('pair_id', i)!r}"
                animated.setdefault(path, f"{pair}: {column}: {path} is an animation of {frames} frames")
        if len(paths) < len(PATH_COLUMNS):
            continue
        a, b = (real[paths[column]] for column in PATH_COLUMNS)
        if a == b:
            rows.problem(i, f"reference and reconstruction are the same file: {paths['reference_path']}", found)
        else:
            used.setdefault((a, b), []).append(i)
    _warn("file names differ from the manifest; the existing files are used", folded)
    _warn("animations: every stage uses the first frame only", list(animated.values()))
    _warn_same_files(rows, used)


def _warn_same_files(rows: _Rows, used: Mapping[tuple[str, str], list[int]]) -> None:
    groups = [same for same in used.values() if len({rows.text("pair_id", i) for i in same}) > 1]
    lines = [", ".join(f"{rows.text('pair_id', i)} ({rows.where(i)})" for i in same) for same in groups]
    _warn("the same two files have several pair ids", lines)


def _warn(what: str, lines: Sequence[str], shown: int = 10) -> None:
    if lines:
        rest = f"\n  … and {len(lines) - shown} more" if len(lines) > shown else ""
        logger.warning("%s:\n%s%s", what, "\n".join(f"  - {line}" for line in lines[:shown]), rest)


_Check = Callable[[Path, int], tuple[str | None, int]]


def _header_check(path: Path, max_pixels: int) -> tuple[str | None, int]:
    try:
        return None, inspect_image(path, max_pixels=max_pixels).frames
    except ImageError as error:
        return str(error), 0


def _full_check(path: Path, max_pixels: int) -> tuple[str | None, int]:
    return check_image_file(path, max_pixels=max_pixels, decode=True), 0


def _parallel(check: _Check, paths: list[Path], max_pixels: int) -> list[tuple[str | None, int]]:
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(lambda path: check(path, max_pixels), paths))


def _decode_all(rows: _Rows, max_pixels: int, found: Findings) -> None:
    """A report is due anyway: decode every image too, so that it is the only one."""
    bad_texts = {problem.message for problem in found.rows}
    distinct = list(dict.fromkeys(path for paths in rows.images.values() for path in paths.values()))
    logger.info("decoding %d images, to list every problem at once", len(distinct))
    checked = dict(zip(distinct, _parallel(_full_check, distinct, max_pixels), strict=True))
    for i, paths in rows.images.items():
        for column, path in paths.items():
            reason, _ = checked[path]
            if reason is not None and f"{column}: {reason}" not in bad_texts:
                rows.problem(i, f"{column}: {reason}", found)


# --- result ----------------------------------------------------------------------------------------------------------


def _usable(rows: _Rows, folder: Path, found: Findings) -> list[int]:
    """Positions of the good rows, sorted by pair id."""
    keep = [i for i in range(len(rows)) if i not in rows.bad]
    problems = _ordered(found.rows, rows.file)
    if not keep:
        raise CorpusError(
            f"no usable pair is left in the corpus {folder}: {len(problems)} problems\n{listing(problems, SHOWN)}"
        )
    if problems:
        logger.warning(
            "%s: %s left out, %d pairs kept (corpus.on_bad_row=skip):\n%s",
            folder, left_out(problems), len(keep), listing(problems, 20),
        )  # fmt: skip
    return sorted(keep, key=lambda i: rows.text("pair_id", i))


def _pairs(rows: _Rows, keep: Sequence[int]) -> pd.DataFrame:
    columns = [*PAIR_COLUMNS, *(name for name in rows.table.columns if name not in PAIR_COLUMNS)]
    return pd.DataFrame({name: [rows.text(name, i) for i in keep] for name in columns}, dtype=object)


def _sources(folder: Path) -> str | None:
    path = folder / "sources.csv"
    return path.read_text(encoding="utf-8-sig", errors="replace") if path.is_file() else None
