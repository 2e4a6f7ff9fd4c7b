"""Corpora that are made on this machine: kept in a cache folder, whole or absent, and made again when damaged.

::

    <cache>/<kind>/<name>/
      made.json                  what was made from which settings; sizes and SHA-256 of every file
      manifest.csv               the pairs; an image's name ends with a digest of its pixels
      images/                    one PNG a distinct image
      annotations/<teacher>.jsonl
      truth.parquet              pair_id and one column a question; null where the answer cannot be known
      README.md                  the data card

The folder is also an ordinary corpus for ``corpus=manifest``.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from bcs_lab.corpus.manifest import MADE_INDEX, load_manifest
from bcs_lab.corpus.schema import PAIR_COLUMNS, Corpus
from bcs_lab.corpus.truth import TRUTH, read_truth, write_truth
from bcs_lab.errors import Problem, RunError
from bcs_lab.files import read_json, write_json
from bcs_lab.teachers.protocol import BCS12, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

FORMAT = "bcs_lab made corpus"
VERSION = 2
INDEX = MADE_INDEX
MANIFEST, CARD, IMAGES, ANNOTATIONS = "manifest.csv", "README.md", "images", "annotations"


@dataclass(frozen=True)
class Made:
    """A corpus whose images are drawn and that is yet to be written.

    Attributes:
        rows: one mapping a pair with every column of ``PAIR_COLUMNS`` and any more, the same for all rows; sorted by
            ``pair_id``.
        teachers: names in declared order.
        answers: float32 ``[n_pairs, n_teachers, n_questions]``; NaN where missing.
        rationales: object ``[n_pairs, n_teachers, n_questions]``, text, ``""`` where there is none.
        truth: float32 ``[n_pairs, n_questions]``; NaN where it cannot be known.
        card: the data card, Markdown.
        kind: the kind of corpus that made it.
        settings: what it was made from (JSON-able).
        skipped: inputs that were left out.
    """

    rows: Sequence[Mapping[str, str]]
    teachers: tuple[str, ...]
    answers: np.ndarray
    rationales: np.ndarray
    truth: np.ndarray
    card: str
    kind: str
    settings: Mapping[str, Any]
    skipped: Sequence[Problem] = field(default_factory=tuple)


def cache_folder(cache: str | Path | None, kind: str) -> Path:
    """Where corpora of a kind are kept: below ``cache``, else ``BCS_CACHE``, else ``~/.cache/bcs_lab``."""
    root = cache or os.environ.get("BCS_CACHE") or "~/.cache/bcs_lab"
    return Path(os.path.abspath(Path(root).expanduser())) / kind  # noqa: PTH100 - a link keeps its name


def source_digest(files: Sequence[Path]) -> str:
    """Short digest of code and tables, and of the version of the glyphs: a change never meets an old cache."""
    digest = hashlib.sha256(importlib.metadata.version("fontawesomefree").encode())
    for path in files:
        digest.update(f"\n{path.name}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:10]


def ensure(folder: Path, make: Callable[[Path], Made], what: str) -> None:
    """Have ``folder`` hold a whole corpus: keep it, or make it.

    Of several processes one makes it and the others wait. It is written beside ``folder`` and renamed, so that a killed
    making leaves nothing that could be taken for a corpus.

    Args:
        folder: where it goes.
        make: draws the images into ``<the folder it is given>/images`` and returns the rest.
        what: the corpus in messages, such as ``demo (small, seed 0)``.

    Raises:
        RunError: the cache cannot be written.
    """
    reason = damage(folder)
    if reason is None:
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_maker(folder, what):
            # Another process may have made it while this one waited.
            reason = damage(folder)
            if reason is None:
                return
            if folder.exists():
                logger.warning("corpus %s: %s; it is made again", what, reason)
            _make(folder, make, what)
    except OSError as error:
        raise RunError(
            f"{folder}: the corpus {what} cannot be made there ({error.strerror or error}); choose another folder with "
            "corpus.cache=DIR or the environment variable BCS_CACHE."
        ) from error


@contextmanager
def _only_maker(folder: Path, what: str) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(str(folder.with_name(f".{folder.name}.lock")))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.info("corpus %s: another process is making it; waiting", what)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(folder: Path, make: Callable[[Path], Made], what: str) -> None:
    for left in folder.parent.glob(f".{folder.name}.*.partial"):
        shutil.rmtree(left, ignore_errors=True)  # of a making that was killed: nobody else holds the lock
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    started = time.monotonic()
    try:
        (partial / IMAGES).mkdir(parents=True)
        made = make(partial)
        _write(partial, made)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    counts = read_json(folder / INDEX)["counts"]
    logger.info(
        "corpus %s: %d pairs, %d distinct images of %d slots, made in %.1f s in %s",
        what, counts["pairs"], counts["images"], 2 * counts["pairs"], time.monotonic() - started, folder,
    )  # fmt: skip


# --- images ----------------------------------------------------------------------------------------------------------


def save_picture(image: Image.Image, folder: Path, role: str) -> str:
    """Write one picture below ``folder`` and return its path relative to it.

    Args:
        image: of mode RGB.
        folder: the corpus' folder.
        role: ``seen`` or ``decoded``; a picture that serves as both is two files, since a pair never compares a file
            with itself.

    Returns:
        ``images/<role>-<digest>.png``; the digest is of size and pixels, so that it is the same on every machine,
        whatever its PNG encoder.
    """
    digest = hashlib.sha256(f"{image.width}x{image.height}:".encode() + image.tobytes()).hexdigest()[:20]
    name = f"{IMAGES}/{role}-{digest}.png"
    path = folder / name
    if not path.exists():
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        image.save(partial, format="PNG", compress_level=3)
        partial.replace(path)
    return name


# --- writing ---------------------------------------------------------------------------------------------------------


def _write(folder: Path, made: Made) -> None:
    (folder / ANNOTATIONS).mkdir()
    texts = {MANIFEST: _manifest(made.rows), CARD: made.card}
    labels = {value: name for name, value in BCS12.levels.items()}
    for t, teacher in enumerate(made.teachers):
        texts[f"{ANNOTATIONS}/{teacher}.jsonl"] = _annotations(made, t, labels)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    ids = [row["pair_id"] for row in made.rows]
    write_truth(folder / TRUTH, ids, made.truth, BCS12)
    content = hashlib.sha256()
    for name in sorted(texts):
        content.update(f"{name}\n{texts[name]}\n".encode())
    content.update(np.ascontiguousarray(made.truth, dtype="<f4").tobytes())
    files = {name: _entry(folder / name) for name in sorted([*texts, TRUTH])}
    images, digest = _images(folder)
    write_json(
        folder / INDEX,
        {
            "format": FORMAT,
            "version": VERSION,
            "kind": made.kind,
            "settings": dict(made.settings),
            "simulated_teachers": True,
            "counts": {"pairs": len(ids), "images": images},
            "content": content.hexdigest(),  # the same on every machine, since image names hold digests of pixels
            "files": files,
            "images": digest,
            "skipped": [asdict(problem) for problem in made.skipped],
        },
    )


def _manifest(rows: Sequence[Mapping[str, str]]) -> str:
    extra = [name for name in rows[0] if name not in PAIR_COLUMNS]
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, [*PAIR_COLUMNS, *extra], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _annotations(made: Made, t: int, labels: Mapping[float, str]) -> str:
    lines = []
    for i, row in enumerate(made.rows):
        cells = zip(BCS12.ids, made.answers[i, t].tolist(), made.rationales[i, t].tolist(), strict=True)
        answers = {
            question: {"answer": labels[value], "reasoning": why} if why else labels[value]
            for question, value, why in cells
            if value == value
        }
        lines.append(json.dumps({"pair_id": row["pair_id"], "answers": answers}, ensure_ascii=False))
    return "\n".join(lines) + "\n"


# --- reading ---------------------------------------------------------------------------------------------------------


def damage(folder: Path) -> str | None:
    """Why ``folder`` is not a whole corpus, or ``None`` if it is.

    Tables and images are compared by SHA-256, which takes about a second at the paper's size.
    """
    if not folder.is_dir():
        return "it is not there"
    try:
        index = read_json(folder / INDEX)
        if (index["format"], index["version"]) != (FORMAT, VERSION):
            return f"its {INDEX} is of another format"
        for name, entry in index["files"].items():
            if _entry(folder / name) != entry:
                return f"{name} is damaged"
        if _images(folder) != (index["counts"]["images"], index["images"]):
            return "images are missing, new or damaged"
    except OSError as error:
        return f"{error.filename or INDEX} cannot be read ({error.strerror or error})"
    except (RunError, KeyError, TypeError, AttributeError):
        return f"its {INDEX} is damaged"
    return None


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _images(folder: Path) -> tuple[int, str]:
    """Number of images and a digest of their names and contents."""
    with os.scandir(folder / IMAGES) as entries:
        names = sorted(entry.name for entry in entries)
    content = hashlib.sha256()
    for name in names:
        content.update(f"{name} {hashlib.sha256((folder / IMAGES / name).read_bytes()).hexdigest()}\n".encode())
    return len(names), content.hexdigest()


def read_made(
    folder: Path,
    *,
    name: str,
    stand_ins: bool,
    teachers_order: Sequence[str] | None,
    on_bad_row: str,
    max_image_pixels: int,
    protocol: Protocol,
) -> Corpus:
    """Read a whole corpus that :func:`ensure` has made.

    Headers of images are not looked at again: names and sizes were just compared with the index.
    """
    corpus = load_manifest(
        folder,
        teachers_order=teachers_order,
        on_bad_row=on_bad_row,
        max_image_pixels=max_image_pixels,
        protocol=protocol,
        need_images=False,
    )
    index = read_json(folder / INDEX)
    card = (folder / CARD).read_text(encoding="utf-8")
    return replace(
        corpus,
        name=name,
        stand_ins=stand_ins,
        simulated_teachers=True,
        truth=read_truth(folder / TRUTH, corpus.pairs["pair_id"].tolist(), protocol),
        card=card,
        card_extra=card.partition("\n\n")[2],  # a bundle's card has a title of its own
        skipped=[Problem(**problem) for problem in index["skipped"]],
    )
