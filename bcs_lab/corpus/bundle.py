"""Bundles: a corpus without its images, self-contained through the embeddings that travel with it.

::

    BUNDLE/
      bundle.json                       format, teachers, questions, encoders with fingerprints, SHA-256 of every file
      manifest.parquet                  the pairs, without paths
      annotations.parquet               pair_id, teacher, question, answer, rationale
      embeddings-<encoder>.safetensors  images float16 [m, d]; reference, reconstruction int32 [n]
      similarities-<encoder>.safetensors  values float32 [n, d], where similarities travel too; names in bundle.json;
                                        with known negatives also negatives float32 [m, d], negative_pairs int32 [m, 2]
      truth.parquet                     pair_id and the right answer to each question, if known
      protocol.yaml                     the questions, if they are not the paper's
      sources.csv                       where the pairs come from, if known
      README.md                         the data card

Writing the same corpus twice gives the same bytes (with the same version of pyarrow): no dates, one order everywhere.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from bcs_lab.corpus.annotations import order_teachers
from bcs_lab.corpus.images import DEFAULT_MAX_IMAGE_PIXELS
from bcs_lab.corpus.manifest import corpus_folder
from bcs_lab.corpus.schema import (
    PAIR_COLUMNS,
    PATH_COLUMNS,
    Corpus,
    ShippedEmbeddings,
    ShippedNegatives,
    ShippedSimilarities,
)
from bcs_lab.corpus.truth import TRUTH, read_truth, write_truth
from bcs_lab.errors import ConfigError, CorpusError, RunError
from bcs_lab.teachers.protocol import BCS12, PERCEPTUAL, PROTOCOL_FILE, SEMANTIC, corpus_protocol, protocol_text
from bcs_lab.teachers.protocol import Protocol as Questions

logger = logging.getLogger(__name__)

FORMAT = "bcs_lab bundle"
VERSION = 1
INDEX = "bundle.json"

#: Where the package keeps its embedded corpus.
BRAINBANK = Path(__file__).resolve().parent.parent / "assets" / "brainbank"

_WHAT = "made by `bcs corpus export`, with bundle.json"


class _Embeddings(Protocol):
    """What :func:`write_bundle` needs of embeddings; ``ShippedEmbeddings`` and ``PairEmbeddings`` both have it."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> dict[str, Any]: ...
    @property
    def images(self) -> np.ndarray: ...
    @property
    def reference(self) -> np.ndarray: ...
    @property
    def reconstruction(self) -> np.ndarray: ...


class _Similarities(Protocol):
    """What :func:`write_bundle` needs of similarities; those shipped and those of pairs both have it."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> dict[str, Any]: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def values(self) -> np.ndarray: ...


# --- writing ---------------------------------------------------------------------------------------------------------


def write_bundle(
    corpus: Corpus,
    embeddings: Sequence[_Embeddings],
    out: str | Path,
    *,
    similarities: Sequence[_Similarities] = (),
    negatives: Mapping[str, ShippedNegatives] | None = None,
    sources_csv: str | Path | None = None,
    card_extra: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a corpus and its embeddings as one folder without images.

    Args:
        corpus: the pairs and answers.
        embeddings: one a encoder, rows in the corpus' order (``images`` ``[m, d]``, ``reference`` and
            ``reconstruction`` ``[n_pairs]``). Stored as float16, each distinct row once.
        out: the folder to make; written under a temporary name beside it and renamed.
        similarities: of the pairs, in the corpus' order; stored as float32.
        negatives: encoder -> similarities of known negatives; by default those that ``similarities`` came with.
        sources_csv: a table of sources to ship; by default the corpus' own.
        card_extra: Markdown that says what the corpus is and is not; by default the corpus' own.
        overwrite: replace an existing bundle.

    Returns:
        The absolute path of the bundle.

    Raises:
        RunError: ``out`` exists and is not empty, or cannot be written.
        CorpusError: embeddings or similarities do not fit the corpus, or ``sources_csv`` cannot be read.
    """
    target = Path(os.path.abspath(Path(out).expanduser()))  # noqa: PTH100 - a link keeps its name
    _check_target(target, overwrite)
    sources = corpus.sources
    if sources_csv is not None:
        try:
            sources = Path(sources_csv).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise CorpusError(f"{sources_csv}: the table of sources cannot be read ({error})") from error
    card_extra = corpus.card_extra if card_extra is None else card_extra
    packed = _pack_all(corpus, embeddings)
    compared = _pack_similarities(corpus, similarities, negatives)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        _write_files(corpus, packed, compared, partial, sources, card_extra)
        _put_in_place(partial, target)
    except OSError as error:
        raise RunError(f"{target}: the bundle cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise RunError(f"{target}: is a file; expected a folder to make for the bundle.")
    if any(target.iterdir()):
        if not overwrite:
            raise RunError(f"{target}: exists and is not empty; choose another folder, or set overwrite=true.")
        if not (target / INDEX).is_file():
            raise RunError(f"{target}: is not a bundle (no {INDEX}), so it is not overwritten; choose another folder.")


def _put_in_place(partial: Path, target: Path) -> None:
    old = None
    if target.exists():
        old = target.with_name(f".{target.name}.{secrets.token_hex(4)}.old")
        target.rename(old)
    try:
        partial.rename(target)
    except OSError:
        if old is not None:
            old.rename(target)
        raise
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def _pack_all(corpus: Corpus, embeddings: Sequence[_Embeddings]) -> list[ShippedEmbeddings]:
    if not embeddings:
        raise ConfigError("A bundle needs the embeddings of at least one encoder, since it ships no images.")
    names = [item.name for item in embeddings]
    if len(set(names)) < len(names):
        raise ConfigError(f"Expected each encoder once in a bundle but got {', '.join(names)}.")
    return [_pack(corpus, item) for item in embeddings]


def _pack(corpus: Corpus, item: _Embeddings) -> ShippedEmbeddings:
    """Distinct rows only, float16, in order of first use: pair by pair, reference before reconstruction."""
    if getattr(item, "stand_in", None):
        raise CorpusError(f"Embeddings of {item.name} are a stand-in ({item.stand_in}); export the encoder itself.")  # type: ignore[attr-defined]
    images, n = np.asarray(item.images), len(corpus)
    slots = np.stack([np.asarray(item.reference), np.asarray(item.reconstruction)], axis=1).astype(np.int64)
    if images.ndim != 2 or slots.shape != (n, 2) or (n and (slots.min() < 0 or slots.max() >= len(images))):
        raise CorpusError(
            f"Embeddings of {item.name} do not fit the corpus: expected rows for {n} pairs but got images "
            f"{images.shape}, reference {np.shape(item.reference)}, reconstruction {np.shape(item.reconstruction)}."
        )
    stored = np.ascontiguousarray(images.astype(np.float16))
    rows: dict[bytes, int] = {}
    order: list[int] = []
    row_of: dict[int, int] = {}
    for slot in dict.fromkeys(slots.ravel().tolist()):
        content = stored[slot].tobytes()
        if content not in rows:
            rows[content] = len(order)
            order.append(slot)
        row_of[slot] = rows[content]
    kept = stored[order]
    if not np.isfinite(kept).all():
        raise CorpusError(f"Embeddings of {item.name} hold values that are not finite in float16.")
    indices = np.array([[row_of[a], row_of[b]] for a, b in slots.tolist()], dtype=np.int64).reshape(n, 2)
    fingerprint = _plain_fingerprint(item.name, item.fingerprint)
    return ShippedEmbeddings(item.name, fingerprint, kept, indices[:, 0].copy(), indices[:, 1].copy())


def _pack_similarities(
    corpus: Corpus, similarities: Sequence[_Similarities], negatives: Mapping[str, ShippedNegatives] | None
) -> list[ShippedSimilarities]:
    given = dict(negatives or {})
    # A bundle that is written again keeps those it came with.
    for item in similarities:
        own = getattr(item, "negatives", None)
        if own is not None:
            given.setdefault(item.name, own)
    names = [item.name for item in similarities]
    if len(set(names)) < len(names):
        raise ConfigError(f"Expected similarities of each encoder once in a bundle but got {', '.join(names)}.")
    packed = []
    for item in similarities:
        if getattr(item, "stand_in", None):
            raise CorpusError(
                f"Similarities of {item.name} are a stand-in ({item.stand_in}); export those of the encoder itself."  # type: ignore[attr-defined]
            )
        values = np.ascontiguousarray(item.values, dtype=np.float32)
        if values.shape != (len(corpus), len(item.names)):
            raise CorpusError(
                f"Similarities of {item.name} do not fit the corpus: expected shape ({len(corpus)}, "
                f"{len(item.names)}) but got {values.shape}."
            )
        if not np.isfinite(values).all():
            raise CorpusError(f"Similarities of {item.name} hold values that are not finite.")
        fingerprint = _plain_fingerprint(item.name, item.fingerprint)
        if fingerprint.get("names") != list(item.names):
            raise CorpusError(f"Similarities of {item.name} are not the ones that their fingerprint names.")
        known = _pack_negatives(item.name, given.get(item.name), values.shape)
        packed.append(ShippedSimilarities(item.name, fingerprint, tuple(item.names), values, known))
    return packed


def _pack_negatives(name: str, item: ShippedNegatives | None, shape: tuple[int, ...]) -> ShippedNegatives | None:
    if item is None or not len(item.pairs):
        return None
    pairs, values = np.asarray(item.pairs, dtype=np.int64), np.ascontiguousarray(item.values, dtype=np.float32)
    if (
        values.shape != (len(pairs), shape[1])
        or pairs.shape != (len(pairs), 2)
        or (len(pairs) and (pairs.min() < 0 or pairs.max() >= shape[0]))
        or not np.isfinite(values).all()
    ):
        raise CorpusError(
            f"Known negatives of {name} do not fit the corpus: expected finite values (m, {shape[1]}) and rows of "
            f"{shape[0]} pairs (m, 2) but got {values.shape} and {pairs.shape}."
        )
    return ShippedNegatives(pairs, values)


def _plain_fingerprint(name: str, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return json.loads(json.dumps(fingerprint, sort_keys=True))
    except (TypeError, ValueError) as error:
        raise CorpusError(f"The fingerprint of encoder {name} is not JSON ({error}).") from error


def _write_files(
    corpus: Corpus,
    packed: Sequence[ShippedEmbeddings],
    compared: Sequence[ShippedSimilarities],
    folder: Path,
    sources: str | None,
    card_extra: str | None,
) -> None:
    from safetensors.numpy import save

    columns = [name for name in corpus.pairs.columns if name not in PATH_COLUMNS]
    _write_parquet(folder / "manifest.parquet", {name: corpus.pairs[name].tolist() for name in columns})
    _write_parquet(folder / "annotations.parquet", _long_answers(corpus))
    encoders: list[dict[str, Any]] = []
    taken: set[str] = set()
    for item in packed:
        file = _file("embeddings", item.name, taken)
        tensors = {
            "images": item.images,
            "reference": item.reference.astype(np.int32),
            "reconstruction": item.reconstruction.astype(np.int32),
        }
        (folder / file).write_bytes(save(tensors))
        encoders.append(
            {
                "name": item.name,
                "file": file,
                "dim": int(item.images.shape[1]),
                "images": len(item.images),
                "fingerprint": item.fingerprint,
            }
        )
    similarities = [_write_similarities(folder, item, taken) for item in compared]
    if corpus.truth is not None:
        write_truth(folder / TRUTH, corpus.pairs["pair_id"].tolist(), corpus.truth, corpus.protocol)
    if corpus.protocol.digest != BCS12.digest:
        (folder / PROTOCOL_FILE).write_text(protocol_text(corpus.protocol), encoding="utf-8", newline="\n")
    if sources is not None:
        (folder / "sources.csv").write_text(sources, encoding="utf-8", newline="\n")
    files = {path.name: path for path in sorted(folder.iterdir())}
    index = {
        "format": FORMAT,
        "version": VERSION,
        "name": corpus.name,
        "teachers": list(corpus.teachers),
        "simulated_teachers": corpus.simulated_teachers,
        "protocol": {"name": corpus.protocol.name, "questions": list(corpus.protocol.ids)},
        "counts": {"pairs": len(corpus), "concepts": int(corpus.pairs["concept"].nunique())},
        "encoders": encoders,
        # Left out where there are none, as bundles had no such entry before.
        **({"similarities": similarities} if similarities else {}),
        "card_extra": card_extra,
        "sha256": {name: _sha256(path) for name, path in files.items()},
    }
    text = json.dumps(index, indent=2, ensure_ascii=False) + "\n"
    sizes = {name: path.stat().st_size for name, path in files.items()}
    card = _card(corpus, packed, compared, sizes, sources, card_extra)
    (folder / "README.md").write_text(card, encoding="utf-8", newline="\n")
    # Last, since its presence says that the bundle is complete.
    (folder / INDEX).write_text(text, encoding="utf-8", newline="\n")


def _write_parquet(path: Path, columns: Mapping[str, list[Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Plain text columns, no pandas metadata: nothing that depends on the writer's pandas.
    table = pa.table({name: pa.array(values, type=pa.string()) for name, values in columns.items()})
    pq.write_table(table, path, compression="zstd")


def _long_answers(corpus: Corpus) -> dict[str, list[Any]]:
    label = {value: name for name, value in corpus.protocol.levels.items()}
    given = ~np.isnan(corpus.answers)
    present = given | (corpus.rationales != "")
    pair, teacher, question = np.nonzero(present)
    values = corpus.answers[present].tolist()
    try:
        answers = [label[value] if value == value else None for value in values]
    except KeyError as error:
        raise CorpusError(f"Expected answers of {sorted(label)} in the corpus but got {error}.") from error
    ids = corpus.pairs["pair_id"].tolist()
    return {
        "pair_id": [ids[i] for i in pair.tolist()],
        "teacher": [corpus.teachers[i] for i in teacher.tolist()],
        "question": [corpus.protocol.ids[i] for i in question.tolist()],
        "answer": answers,
        "rationale": corpus.rationales[present].tolist(),
    }


def _write_similarities(folder: Path, item: ShippedSimilarities, taken: set[str]) -> dict[str, Any]:
    """Write one file; its entry in the index. The names of the columns are in the fingerprint."""
    from safetensors.numpy import save

    file = _file("similarities", item.name, taken)
    arrays = {"values": item.values}
    if item.negatives is not None:
        arrays |= {"negatives": item.negatives.values, "negative_pairs": item.negatives.pairs.astype(np.int32)}
    (folder / file).write_bytes(save(arrays))
    return {"name": item.name, "file": file, "fingerprint": item.fingerprint}


def _file(kind: str, name: str, taken: set[str]) -> str:
    """The file of an encoder's numbers, which no other has."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "encoder"
    if plain != name:
        # Two names may differ only in characters that file names cannot hold.
        plain = f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    file = f"{kind}-{plain}.safetensors"
    if file.lower() in taken:
        raise ConfigError(f"Two encoders of the bundle would be stored as {file}; rename one.")
    taken.add(file.lower())
    return file


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


# --- data card -------------------------------------------------------------------------------------------------------


def _card(
    corpus: Corpus,
    packed: Sequence[ShippedEmbeddings],
    compared: Sequence[ShippedSimilarities],
    sizes: Mapping[str, int],
    sources: str | None,
    card_extra: str | None,
) -> str:
    pairs = corpus.pairs
    images = f", {len(packed[0].images)} distinct images" if packed else ""
    # Only what was made on purpose has a known truth.
    what = "its reconstruction from brain signals" if corpus.truth is None else "a made-up reconstruction of it"
    parts = [
        f"# Corpus {corpus.name}",
        f"{len(pairs)} pairs of a reference and {what}, {pairs['concept'].nunique()} "
        f"concepts, {pairs['method'].nunique()} methods, {_known(pairs['subject'])} known subjects{images}. "
        f"Answers of {len(corpus.teachers)} teachers to the {len(corpus.protocol.ids)} questions of "
        f"{corpus.protocol.name}.",
    ]
    if corpus.simulated_teachers:
        parts.append("**The teachers are simulated:** their answers are computed, nobody gave them.")
    if card_extra and card_extra.strip():
        parts.append(card_extra.strip())
    parts += [
        "## Images and licence",
        "No image is included, only numbers computed from images (embeddings) and answers about them. "
        "The images stay with their owners; whoever has a right to them can embed them again.",
        "## Pairs",
        _counts(pairs, "method"),
    ]
    parts += [_counts(pairs, "modality")] if "modality" in pairs.columns else []
    parts += ["## Teachers", _teacher_table(corpus), _NOTE]
    parts += ["## Embeddings", _encoder_table(packed), _ENCODER_NOTE]
    parts += ["## Similarities", _similarity_table(compared), _SIMILARITY_NOTE] if compared else []
    if sources:
        parts += ["## Sources", _sources_table(sources)]
    parts += ["## Files", _markdown(["file", "bytes"], [[name, str(size)] for name, size in sizes.items()])]
    return "\n\n".join(parts) + "\n"


_NOTE = (
    "Shares are of the answers given. T-PAS and T-SAS are the means of the six perceptual and the six semantic answers "
    "of a pair (no 0, somewhat 0.5, yes 1), averaged over pairs; the consensus takes the median over teachers of each "
    "question first."
)
_ENCODER_NOTE = "float16, one row a distinct image; the full fingerprints are in bundle.json."
_SIMILARITY_NOTE = (
    "float32, one row a pair in the order of the manifest; their names are in bundle.json. Known negatives, where they "
    "travel too, are references beside reconstructions of other concepts."
)


def _known(values: pd.Series) -> int:
    return len(set(values) - {"na"})


def _counts(pairs: pd.DataFrame, column: str) -> str:
    groups = pairs.groupby(column, sort=True)
    rows = [[str(name), str(len(group)), str(group["concept"].nunique())] for name, group in groups]
    return _markdown([column, "pairs", "concepts"], rows)


def _teacher_table(corpus: Corpus) -> str:
    rows = [[name, *_teacher_row(corpus, corpus.answers[:, t])] for t, name in enumerate(corpus.teachers)]
    with np.errstate(all="ignore"):
        median = _quiet(np.nanmedian, corpus.answers, axis=1)
    rows.append(["consensus", "", *[""] * len(corpus.protocol.levels), *_scores(corpus, median)])
    return _markdown(["teacher", "answered", *corpus.protocol.levels, "T-PAS", "T-SAS"], rows)


def _teacher_row(corpus: Corpus, answers: np.ndarray) -> list[str]:
    given = ~np.isnan(answers)
    n = int(given.sum())
    shares = [_number((answers == value).sum() / n if n else None) for value in corpus.protocol.levels.values()]
    return [_number(float(given.mean()) if answers.size else None), *shares, *_scores(corpus, answers)]


def _scores(corpus: Corpus, answers: np.ndarray) -> list[str]:
    scores = []
    for group in (PERCEPTUAL, SEMANTIC):
        columns = corpus.protocol.indices(group)
        per_pair = _quiet(np.nanmean, answers[:, columns].astype(np.float64), axis=1) if columns else np.array([])
        per_pair = per_pair[~np.isnan(per_pair)]
        scores.append(_number(float(per_pair.mean()) if per_pair.size else None))
    return scores


def _quiet(function: Any, values: np.ndarray, axis: int) -> np.ndarray:
    """Without numpy's warning about slices that are missing altogether; they stay NaN."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return function(values, axis=axis)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _encoder_table(packed: Sequence[ShippedEmbeddings]) -> str:
    rows = [
        [item.name, str(item.images.shape[1]), str(len(item.images)), _short_digest(item.fingerprint)]
        for item in packed
    ]
    return _markdown(["encoder", "dimensions", "distinct rows", "fingerprint (SHA-256)"], rows)


def _similarity_table(compared: Sequence[ShippedSimilarities]) -> str:
    rows = [[item.name, str(len(item.names)), _short_digest(item.fingerprint)] for item in compared]
    return _markdown(["encoder", "similarities", "fingerprint (SHA-256)"], rows)


def _short_digest(fingerprint: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()[:12]


def _sources_table(sources: str) -> str:
    rows = [row for row in csv.reader(io.StringIO(sources, newline="")) if row]
    width = max((len(row) for row in rows), default=0)
    return _markdown(_padded(rows[0], width), [_padded(row, width) for row in rows[1:]]) if rows else ""


def _padded(row: list[str], width: int) -> list[str]:
    return row + [""] * (width - len(row))


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(header), ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(" ".join(c.replace("|", "\\|").split()) for c in line) + " |" for line in lines)


# --- reading ---------------------------------------------------------------------------------------------------------


def read_bundle(
    root: str | Path | None,
    *,
    teachers_order: Sequence[str] | None = None,
    on_bad_row: str = "error",
    max_image_pixels: int = DEFAULT_MAX_IMAGE_PIXELS,
    protocol: Questions | None = None,
    need_images: bool = True,
    stand_ins: bool = False,
) -> Corpus:
    """Read a bundle; every file is checked against its SHA-256, embeddings are memory-mapped.

    Args:
        root: the bundle's folder.
        teachers_order: all or some of the bundle's teachers, in another order; by default the declared order.
        on_bad_row: kept in the corpus; a bundle holds good rows only.
        max_image_pixels: kept in the corpus.
        protocol: the questions, of which the bundle must answer the same; by default its own.
        need_images: has no effect, a bundle never has images.
        stand_ins: whether its embeddings may stand in for those of encoders it lacks.

    Raises:
        CorpusError: a file is missing, damaged, of a newer version, or does not fit; the message names it.
        ConfigError: ``teachers_order`` does not fit, or its ``protocol.yaml`` holds no protocol.
    """
    folder = corpus_folder(root, "bundle", _WHAT)
    index = _read_index(folder)
    try:
        return _read(folder, index, teachers_order, on_bad_row, max_image_pixels, protocol, stand_ins)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise CorpusError(
            f"{folder / INDEX}: does not have the entries of a bundle ({type(error).__name__}: {error})."
        ) from error


def read_brainbank(root: str | Path | None = None, **options: Any) -> Corpus:
    """The embedded corpus of real pairs; options as in :func:`read_bundle`.

    Raises:
        CorpusError: this installation lacks the data.
        ConfigError: a root was given.
    """
    if root is not None and str(root).strip():
        raise ConfigError(
            f"corpus=brainbank ships with the package and takes no corpus.root (got {root}); for a folder of yours use "
            "corpus=manifest or corpus=bundle."
        )
    if not (BRAINBANK / INDEX).is_file():
        raise CorpusError(
            f"{BRAINBANK}: the embedded corpus is missing from this installation; install bcs_lab again, or make it "
            "with scripts/make_brainbank.py."
        )
    return read_bundle(BRAINBANK, stand_ins=True, **options)


def _read_index(folder: Path) -> dict[str, Any]:
    path = folder / INDEX
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        hint = ""
        if any((folder / f"manifest.{suffix}").exists() for suffix in ("csv", "jsonl")):
            hint = " This looks like a corpus with images: corpus=manifest."
        raise CorpusError(f"{folder}: not a bundle, {INDEX} is missing.{hint}") from error
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:
        raise CorpusError(f"{path}: is damaged, expected JSON ({error})") from error
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise CorpusError(f'{path}: expected "format": "{FORMAT}"; this is no bundle.')
    version = index.get("version")
    if not isinstance(version, int) or version > VERSION or version < 1:
        raise CorpusError(f"{path}: bundle version {version!r}, this package reads up to {VERSION}; upgrade bcs_lab.")
    return index


def _read(
    folder: Path,
    index: Mapping[str, Any],
    teachers_order: Sequence[str] | None,
    on_bad_row: str,
    max_image_pixels: int,
    protocol: Questions | None,
    stand_ins: bool,
) -> Corpus:
    _verify(folder, index)
    if protocol is None:
        protocol = corpus_protocol(folder) if PROTOCOL_FILE in index["sha256"] else BCS12
    questions = tuple(index["protocol"]["questions"])
    if questions != protocol.ids:
        raise CorpusError(
            f"{folder / INDEX}: answers {index['protocol']['name']} ({', '.join(questions)}), expected {protocol.name} "
            f"({', '.join(protocol.ids)})."
        )
    pairs = _read_pairs(folder / "manifest.parquet")
    teachers = tuple(index["teachers"])
    answers, rationales = _read_answers(folder / "annotations.parquet", pairs["pair_id"].tolist(), teachers, protocol)
    if teachers_order is not None:
        order = order_teachers(teachers, teachers_order)
        at = [teachers.index(name) for name in order]
        teachers, answers, rationales = order, answers[:, at], rationales[:, at]
    card, sources = folder / "README.md", folder / "sources.csv"
    return Corpus(
        name=index["name"],
        pairs=pairs,
        teachers=teachers,
        answers=answers,
        rationales=rationales,
        protocol=protocol,
        root=None,
        where=[f"manifest.parquet:{i}" for i in range(1, len(pairs) + 1)],
        shipped={item["name"]: _read_embeddings(folder, item, len(pairs)) for item in index["encoders"]},
        stand_ins=stand_ins,
        simulated_teachers=bool(index["simulated_teachers"]),
        card=card.read_text(encoding="utf-8", errors="replace") if card.is_file() else None,
        on_bad_row=on_bad_row,
        max_image_pixels=max_image_pixels,
        sources=sources.read_text(encoding="utf-8") if "sources.csv" in index["sha256"] else None,
        card_extra=index.get("card_extra"),
        shipped_similarities={
            item["name"]: _read_similarities(folder, item, len(pairs)) for item in index.get("similarities", [])
        },
        truth=read_truth(folder / TRUTH, pairs["pair_id"].tolist(), protocol) if TRUTH in index["sha256"] else None,
    )


def _verify(folder: Path, index: Mapping[str, Any]) -> None:
    """Every file is there and holds what was written; all that are not are named at once."""
    bad = []
    wanted: dict[str, str] = dict(index["sha256"])
    numbers = [*index["encoders"], *index.get("similarities", [])]
    named = ["manifest.parquet", "annotations.parquet", *(item["file"] for item in numbers)]
    for name in [*wanted, *(name for name in named if name not in wanted)]:
        path = folder / name
        try:
            found = _sha256(path) if name in wanted and Path(name).name == name else None
        except OSError as error:
            bad.append(f"  - {path}: {'is missing' if isinstance(error, FileNotFoundError) else error.strerror}")
            continue
        if found is None or found != wanted[name]:
            bad.append(f"  - {path}: is damaged (its SHA-256 differs from {INDEX})")
    if bad:
        raise CorpusError(
            f"{folder}: {len(bad)} file{'s' if len(bad) > 1 else ''} of the bundle cannot be used; copy it again:\n"
            + "\n".join(bad)
        )


def _read_pairs(path: Path) -> pd.DataFrame:
    table = _parquet(path)
    missing = [name for name in PAIR_COLUMNS if name not in table.column_names and name not in PATH_COLUMNS]
    if missing:
        raise CorpusError(f"{path}: missing columns {', '.join(missing)}.")
    cells = {name: table[name].to_pylist() for name in table.column_names}
    cells |= {name: [""] * table.num_rows for name in PATH_COLUMNS}
    columns = [*PAIR_COLUMNS, *(name for name in table.column_names if name not in PAIR_COLUMNS)]
    ids = cells["pair_id"]
    if not ids or ids != sorted(set(ids)):
        raise CorpusError(f"{path}: expected one or more rows, sorted by distinct pair ids.")
    return pd.DataFrame({name: cells[name] for name in columns}, dtype=object)


def _read_answers(
    path: Path, ids: list[str], teachers: Sequence[str], protocol: Questions
) -> tuple[np.ndarray, np.ndarray]:
    table = _parquet(path)
    shape = (len(ids), len(teachers), len(protocol.ids))
    answers = np.full(shape, np.nan, dtype=np.float32)
    rationales = np.full(shape, "", dtype=object)
    where = []
    for column, names in (("pair_id", ids), ("teacher", teachers), ("question", protocol.ids)):
        position = pd.Index(list(names), dtype=object).get_indexer(table[column].to_pylist())
        if (position < 0).any():
            row = int(np.argmax(position < 0))
            raise CorpusError(f"{path}: row {row + 1}: unknown {column} {table[column][row].as_py()!r}.")
        where.append(position)
    levels: dict[str | None, float] = {None: np.nan}
    levels.update(protocol.levels)
    given = table["answer"].to_pylist()
    unknown = next((i for i, answer in enumerate(given) if answer not in levels), None)
    if unknown is not None:
        raise CorpusError(f"{path}: row {unknown + 1}: answer {given[unknown]!r} is outside the scale.")
    answers[tuple(where)] = [levels[answer] for answer in given]
    rationales[tuple(where)] = np.array(table["rationale"].to_pylist(), dtype=object)
    return answers, rationales


def _parquet(path: Path) -> Any:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as parquet:
            return parquet.read()
    except Exception as error:
        raise CorpusError(f"{path}: not a readable Parquet file ({error})") from error


def _read_embeddings(folder: Path, item: Mapping[str, Any], n: int) -> ShippedEmbeddings:
    path = folder / item["file"]
    arrays = _map_safetensors(path)
    images, reference, reconstruction = (arrays.get(k) for k in ("images", "reference", "reconstruction"))
    if images is None or reference is None or reconstruction is None:
        raise CorpusError(f"{path}: expected the arrays images, reference, reconstruction; found {', '.join(arrays)}.")
    rows = np.concatenate([reference, reconstruction]).astype(np.int64)
    if (
        images.dtype != np.float16
        or images.shape != (item["images"], item["dim"])
        or reference.shape != (n,)
        or reconstruction.shape != (n,)
        or (n and (rows.min() < 0 or rows.max() >= len(images)))
    ):
        raise CorpusError(
            f"{path}: expected images float16 ({item['images']}, {item['dim']}) and rows of {n} pairs; found images "
            f"{images.dtype} {images.shape}, reference {reference.shape}, reconstruction {reconstruction.shape}."
        )
    return ShippedEmbeddings(item["name"], dict(item["fingerprint"]), images, rows[:n], rows[n:])


def _read_similarities(folder: Path, item: Mapping[str, Any], n: int) -> ShippedSimilarities:
    path = folder / item["file"]
    names = tuple(item["fingerprint"]["names"])
    arrays = _map_safetensors(path)
    values = arrays.get("values")
    if values is None or values.dtype != np.float32 or values.shape != (n, len(names)):
        found = "no such array" if values is None else f"{values.dtype} {values.shape}"
        raise CorpusError(f"{path}: expected values float32 ({n}, {len(names)}); found {found}.")
    return ShippedSimilarities(
        item["name"], dict(item["fingerprint"]), names, values, _read_negatives(path, arrays, values.shape)
    )


def _read_negatives(path: Path, arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> ShippedNegatives | None:
    values, pairs = arrays.get("negatives"), arrays.get("negative_pairs")
    if values is None and pairs is None:
        return None
    if (
        values is None
        or pairs is None
        or values.dtype != np.float32
        or pairs.dtype != np.int32
        or values.shape != (len(pairs), shape[1])
        or pairs.shape != (len(values), 2)
        or (len(pairs) and (pairs.min() < 0 or pairs.max() >= shape[0]))
    ):
        found = [f"{array.dtype} {array.shape}" if array is not None else "nothing" for array in (values, pairs)]
        raise CorpusError(
            f"{path}: expected negatives float32 (m, {shape[1]}) and negative_pairs int32 (m, 2) below {shape[0]}; "
            f"found {' and '.join(found)}."
        )
    return ShippedNegatives(pairs.astype(np.int64), values)


_DTYPES: dict[str, np.dtype[Any]] = {"F16": np.dtype("<f2"), "I32": np.dtype("<i4"), "F32": np.dtype("<f4")}


def _map_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Arrays of a safetensors file as read-only memory maps (the library's own reader copies them)."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        arrays: dict[str, np.ndarray] = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            start = 8 + length + entry["data_offsets"][0]
            arrays[name] = np.memmap(
                path, dtype=_DTYPES[entry["dtype"]], mode="r", offset=start, shape=tuple(entry["shape"])
            )
    except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise CorpusError(f"{path}: not a readable safetensors file ({error})") from error
    return arrays


# --- comparing -------------------------------------------------------------------------------------------------------


def bundle_differences(first: Corpus, second: Corpus, *, atol: float = 0.0) -> list[str]:
    """Where the contents of two bundles differ, for pairs that both have; empty when they agree.

    Args:
        first: one corpus read by :func:`read_bundle`.
        second: the other.
        atol: largest accepted difference of an embedding value or a similarity; another processor may round the last
            bit differently.
    """
    shared = sorted(set(first.pairs["pair_id"]) & set(second.pairs["pair_id"]))
    if not shared:
        return ["no pair is in both"]
    a = first.subset(first.pairs["pair_id"].isin(shared).to_numpy(dtype=bool))
    b = second.subset(second.pairs["pair_id"].isin(shared).to_numpy(dtype=bool))
    found = []
    for name in dict.fromkeys([*a.pairs.columns, *b.pairs.columns]):
        if name not in a.pairs.columns or name not in b.pairs.columns:
            found.append(f"column {name} is in one only")
        elif a.pairs[name].tolist() != b.pairs[name].tolist():
            found.append(f"column {name}")
    if a.protocol.digest != b.protocol.digest:
        found.append(f"protocols {a.protocol.name} and {b.protocol.name}")
    if a.teachers != b.teachers:
        found.append(f"teachers {a.teachers} and {b.teachers}")
    elif a.protocol.ids == b.protocol.ids:
        found += [] if np.array_equal(a.answers, b.answers, equal_nan=True) else ["answers"]
        found += [] if np.array_equal(a.rationales, b.rationales) else ["rationales"]
    for name in dict.fromkeys([*a.shipped, *b.shipped]):
        if name not in a.shipped or name not in b.shipped:
            found.append(f"encoder {name} is in one only")
            continue
        x, y = a.shipped[name], b.shipped[name]
        if x.fingerprint != y.fingerprint:
            found.append(f"fingerprint of {name}")
        if x.images.shape[1] != y.images.shape[1]:
            found.append(f"dimensions of {name}")
            continue
        for side in ("reference", "reconstruction"):
            gap = np.abs(
                x.images[getattr(x, side)].astype(np.float32) - y.images[getattr(y, side)].astype(np.float32)
            ).max()
            if gap > atol:
                found.append(f"{side} embeddings of {name} (largest difference {gap:.2g})")
    found += _similarity_differences(a, b, atol)
    if len(shared) == len(first) == len(second):  # which negatives there are depends on all pairs
        found += _negative_differences(a, b, atol)
    return found


def _similarity_differences(a: Corpus, b: Corpus, atol: float) -> list[str]:
    found = []
    for name in dict.fromkeys([*a.shipped_similarities, *b.shipped_similarities]):
        if name not in a.shipped_similarities or name not in b.shipped_similarities:
            found.append(f"similarities of {name} are in one only")
            continue
        x, y = a.shipped_similarities[name], b.shipped_similarities[name]
        if x.fingerprint != y.fingerprint:
            found.append(f"fingerprint of the similarities of {name}")
        if x.names != y.names:
            found.append(f"names of the similarities of {name}")
            continue
        gap = np.abs(x.values - y.values).max()
        if gap > atol:
            found.append(f"similarities of {name} (largest difference {gap:.2g})")
    return found


def _negative_differences(a: Corpus, b: Corpus, atol: float) -> list[str]:
    found = []
    for name in a.shipped_similarities.keys() & b.shipped_similarities.keys():
        x, y = (corpus.shipped_similarities[name].negatives for corpus in (a, b))
        if x is None or y is None:
            found += [] if x is y else [f"known negatives of {name} are in one only"]
        elif not np.array_equal(x.pairs, y.pairs):
            found.append(f"pairs of the known negatives of {name}")
        elif (gap := np.abs(x.values - y.values).max(initial=0.0)) > atol:
            found.append(f"known negatives of {name} (largest difference {gap:.2g})")
    return sorted(found)
