"""The embedding store: a vector for each distinct image and encoder, computed once, safe for many processes.

Layout::

    <root>/<model>-<digest of the fingerprint>/encoder.json              the fingerprint
                                               segment-000001-….safetensors
                                               segment-000002-….safetensors

A segment is written once, under a temporary name, flushed and renamed; it is never changed afterwards and never
deleted. It holds `keys` (uint8 [n, 32], SHA-256 of an image file's bytes), `embeddings` (float32 [n, dim]) and a
checksum of both. Readers map segments into memory and need no lock. One process at a time fills a folder, under a
file lock that the system frees when the process dies; the others wait, then find the work done. A damaged segment is
named in the log, moved aside as `*.corrupt` by the next writer, and what it held is computed again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bcs_lab.errors import StoreError

logger = logging.getLogger(__name__)

KEY_BYTES = 32
FORMAT = "bcs-embeddings-1"
#: A segment is written when this many rows have come together, or this many seconds have passed.
FLUSH_ROWS = 512
FLUSH_SECONDS = 30.0

#: Given the positions of missing keys, yields (positions, vectors) in any portions; positions left out stay missing.
Compute = Callable[[list[int]], Iterable[tuple[Sequence[int], np.ndarray]]]


def fingerprint_digest(fingerprint: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of a fingerprint's canonical JSON; the order of keys does not matter."""
    text = json.dumps(fingerprint, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Filled:
    """What :meth:`EmbeddingStore.fill` found and made.

    Attributes:
        embeddings: float32 ``[n_keys, dim]``; zeros where ``present`` is false.
        present: bool ``[n_keys]``; false where ``compute`` gave nothing.
        hits: distinct keys that were in the store (or that another process computed meanwhile).
        computed: distinct keys computed by this call.
    """

    embeddings: np.ndarray
    present: np.ndarray
    hits: int
    computed: int


class _DamagedError(Exception):
    """A segment that cannot be trusted; the text is the reason."""


@dataclass(frozen=True)
class _Segment:
    keys: list[bytes]
    embeddings: np.ndarray


class EmbeddingStore:
    """A folder of embeddings.

    Args:
        root: the store's folder; made when something is first written. A store that only serves hits may be read-only.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._segments: dict[Path, tuple[tuple[int, int], _Segment | None]] = {}

    def folder(self, fingerprint: Mapping[str, Any]) -> Path:
        """Where the vectors of one fingerprint live."""
        title = str(fingerprint.get("model") or fingerprint.get("name") or "encoder")
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40] or "encoder"
        return self.root / f"{slug}-{fingerprint_digest(fingerprint)[:12]}"

    def fingerprints(self) -> list[dict[str, Any]]:
        """Fingerprints of all folders of the store, in name order; unreadable ones are left out with a warning."""
        found = []
        for path in sorted(self.root.glob("*/encoder.json")):
            try:
                value = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                logger.warning("%s: cannot be read (%s); it is written again when its folder is filled", path, error)
                continue
            if isinstance(value, dict):
                found.append(value)
        return found

    def get(self, fingerprint: Mapping[str, Any], keys: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
        """Look up vectors; never computes, writes or locks.

        Args:
            fingerprint: the encoder's; must hold ``dim``.
            keys: 32 bytes each; may repeat.

        Returns:
            float32 ``[n_keys, dim]`` (zeros where missing) and a bool mask ``[n_keys]`` of those present.

        Raises:
            StoreError: a folder cannot be read.
        """
        segments = self._scan(self.folder(fingerprint), int(fingerprint["dim"]))
        return _gather(segments, keys, int(fingerprint["dim"]))

    def fill(self, fingerprint: Mapping[str, Any], keys: Sequence[bytes], compute: Compute, label: str = "") -> Filled:
        """Look up vectors and compute the missing ones, each distinct key once over all processes.

        Args:
            fingerprint: the encoder's; must hold ``dim``.
            keys: 32 bytes each; may repeat.
            compute: called with the positions (in ``keys``) of missing distinct keys while the lock is held. What it
                yields is written every :data:`FLUSH_ROWS` rows or :data:`FLUSH_SECONDS`, and also when it raises, so
                that a killed process loses at most that much.
            label: what the log calls the encoder.

        Raises:
            StoreError: the store cannot be written, or the disk is full; what was written before stays readable.
        """
        dim, folder = int(fingerprint["dim"]), self.folder(fingerprint)
        label = label or folder.name
        embeddings, present = _gather(self._scan(folder, dim), keys, dim)
        first = {key: position for position, key in reversed(list(enumerate(keys)))}
        missing = [position for position in sorted(first.values()) if not present[position]]
        computed = 0
        if missing:
            with self._writing(fingerprint, label):
                # Another process may have done the work while this one waited.
                _, present = _gather(self._scan(folder, dim, repair=True), keys, dim)
                missing = [position for position in missing if not present[position]]
                if missing:
                    computed = self._run(folder, keys, missing, compute, dim)
            embeddings, present = _gather(self._scan(folder, dim), keys, dim)
        hits = int(sum(present[position] for position in first.values())) - computed
        logger.info(
            "store: %s: %d hits, %d computed, %d without a vector (%d distinct keys, %s)",
            label, hits, computed, len(first) - hits - computed, len(first), folder,
        )  # fmt: skip
        return Filled(embeddings, present, hits, computed)

    def put(self, fingerprint: Mapping[str, Any], keys: Sequence[bytes], embeddings: np.ndarray) -> None:
        """Write vectors made elsewhere; they take precedence over earlier ones of the same keys.

        Raises:
            StoreError: as :meth:`fill`.
        """
        folder, dim = self.folder(fingerprint), int(fingerprint["dim"])
        with self._writing(fingerprint, folder.name):
            self._scan(folder, dim, repair=True)
            self._write(folder, list(keys), np.asarray(embeddings, dtype=np.float32), dim)

    # --- reading -----------------------------------------------------------------------------------------------------

    def _scan(self, folder: Path, dim: int, repair: bool = False) -> list[_Segment]:
        """All sound segments, oldest first. With ``repair`` (lock held) damaged ones are moved aside."""
        try:
            paths = sorted(folder.glob("segment-*.safetensors"))
        except OSError as error:
            raise StoreError(f"The embedding store {folder} cannot be read ({error}).") from error
        sound = []
        for path in paths:
            try:
                status = path.stat()
                stamp = (status.st_size, status.st_mtime_ns)
                known = self._segments.get(path)
                if known is None or known[0] != stamp:
                    known = (stamp, self._open(path, dim))
                    self._segments[path] = known
            except FileNotFoundError:
                # A writer moved it aside between the listing and now.
                continue
            except OSError as error:
                raise StoreError(f"The embedding store's file {path} cannot be read ({error}).") from error
            if known[1] is not None:
                sound.append(known[1])
            elif repair:
                _move_aside(path)
        return sound

    def _open(self, path: Path, dim: int) -> _Segment | None:
        try:
            return _read_segment(path, dim)
        except _DamagedError as error:
            logger.warning("%s is damaged (%s); what it held will be computed again", path, error)
            return None

    # --- writing -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self, fingerprint: Mapping[str, Any], label: str) -> Iterator[None]:
        """Hold the folder's lock, with the folder made, tidied and described."""
        from filelock import FileLock, Timeout

        folder = self.folder(fingerprint)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(str(folder / ".lock"))
            try:
                lock.acquire(timeout=0)
            except Timeout:
                logger.info("store: %s: another process is filling %s; waiting for it", label, folder)
                lock.acquire(poll_interval=0.1)
        except (OSError, NotImplementedError) as error:
            raise _cannot_write(folder, error) from error
        try:
            for stale in folder.glob(".*.tmp"):
                # Only a killed writer leaves one, since a living one would hold the lock.
                stale.unlink(missing_ok=True)
            _describe(folder, fingerprint)
            yield
        finally:
            lock.release()

    def _run(self, folder: Path, keys: Sequence[bytes], missing: list[int], compute: Compute, dim: int) -> int:
        computed, rows, parts, since = 0, [], [], time.monotonic()  # type: int, list[int], list[np.ndarray], float

        def flush() -> None:
            nonlocal computed, rows, parts, since
            if rows:
                self._write(folder, [keys[row] for row in rows], np.concatenate(parts), dim)
                computed += len(rows)
            rows, parts, since = [], [], time.monotonic()

        try:
            for positions, vectors in compute(missing):
                if len(positions):
                    rows.extend(positions)
                    parts.append(np.asarray(vectors, dtype=np.float32))
                if len(rows) >= FLUSH_ROWS or time.monotonic() - since >= FLUSH_SECONDS:
                    flush()
        except StoreError:
            raise
        except BaseException:
            flush()
            raise
        flush()
        return computed

    def _write(self, folder: Path, keys: list[bytes], embeddings: np.ndarray, dim: int) -> None:
        from safetensors.numpy import save

        if embeddings.shape != (len(keys), dim):
            raise StoreError(f"{folder}: expected vectors of shape ({len(keys)}, {dim}) but got {embeddings.shape}.")
        if any(len(key) != KEY_BYTES for key in keys):
            raise StoreError(f"{folder}: expected keys of {KEY_BYTES} bytes.")
        packed = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), KEY_BYTES)
        embeddings = np.ascontiguousarray(embeddings)
        content = save(
            {"keys": packed, "embeddings": embeddings},
            metadata={"format": FORMAT, "sha256": _checksum(packed, embeddings)},
        )
        numbers = [int(path.name.split("-")[1]) for path in folder.glob("segment-[0-9]*-*.safetensors*")]
        # Numbered, so that the order of writing is the order of names; random, so that no name is ever used twice.
        name = f"segment-{max(numbers, default=0) + 1:06d}-{secrets.token_hex(4)}.safetensors"
        _write_whole(folder / name, content)


def _gather(segments: Sequence[_Segment], keys: Sequence[bytes], dim: int) -> tuple[np.ndarray, np.ndarray]:
    place: dict[bytes, tuple[int, int]] = {}
    for number, segment in enumerate(segments):
        place.update((key, (number, row)) for row, key in enumerate(segment.keys))
    vectors = np.zeros((len(keys), dim), dtype=np.float32)
    found = np.array([place.get(key, (-1, -1)) for key in keys], dtype=np.int64).reshape(len(keys), 2)
    for number, segment in enumerate(segments):
        here = np.flatnonzero(found[:, 0] == number)
        vectors[here] = segment.embeddings[found[here, 1]]
    return vectors, found[:, 0] >= 0


def _read_segment(path: Path, dim: int) -> _Segment:
    """Map one segment and check all of it.

    Raises:
        _DamagedError: it is not exactly what was written.
    """
    size = path.stat().st_size
    if size < 8:
        raise _DamagedError(f"{size} bytes")
    data = np.memmap(path, dtype=np.uint8, mode="r")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    if length > size - 8:
        raise _DamagedError(f"its header should be {length} bytes long, the file has {size}")
    try:
        header = json.loads(data[8 : 8 + length].tobytes())
        metadata = header["__metadata__"]
        arrays = {
            name: _array(data[8 + length :], header[name], kind)
            for name, kind in (("keys", np.uint8), ("embeddings", np.float32))
        }
        expected = max(header[name]["data_offsets"][1] for name in arrays)
        checksum = metadata["sha256"]
        known = metadata["format"] == FORMAT
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise _DamagedError(f"its header cannot be read: {type(error).__name__}: {error}") from None
    keys, embeddings = arrays["keys"], arrays["embeddings"]
    if not known or keys.shape != (len(embeddings), KEY_BYTES) or embeddings.shape[1:] != (dim,):
        raise _DamagedError(
            f"expected format {FORMAT} with {dim} values a row, found shapes {keys.shape}, {embeddings.shape}"
        )
    if size != 8 + length + expected:
        raise _DamagedError(f"expected {8 + length + expected} bytes, found {size}")
    if _checksum(keys, embeddings) != checksum:
        raise _DamagedError("its checksum does not match its content")
    packed = keys.tobytes()
    return _Segment([packed[i : i + KEY_BYTES] for i in range(0, len(packed), KEY_BYTES)], embeddings)


def _array(data: np.ndarray, entry: Mapping[str, Any], kind: Any) -> np.ndarray:
    start, stop = entry["data_offsets"]
    if entry["dtype"] != {np.uint8: "U8", np.float32: "F32"}[kind] or not 0 <= start <= stop <= len(data):
        raise ValueError(f"tensor {dict(entry)} does not fit {len(data)} bytes")
    return data[start:stop].view(kind).reshape(entry["shape"])


def _checksum(keys: np.ndarray, embeddings: np.ndarray) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(keys).data)
    digest.update(np.ascontiguousarray(embeddings).data)
    return digest.hexdigest()


def _describe(folder: Path, fingerprint: Mapping[str, Any]) -> None:
    """Write or check encoder.json."""
    path = folder / "encoder.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = None
    except (OSError, ValueError) as error:
        logger.warning("%s is damaged (%s); writing it again", path, error)
        found = None
    if found is None:
        text = json.dumps(fingerprint, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
        _write_whole(path, (text + "\n").encode())
    elif fingerprint_digest(found) != fingerprint_digest(fingerprint):
        raise StoreError(f"{path} describes another encoder than the name of its folder; move the folder away.")


def _write_whole(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(path.parent)
    except OSError as error:
        raise _cannot_write(path, error) from error


def _sync_folder(folder: Path) -> None:
    # So that the new name itself survives a power cut; not every file system allows it.
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _move_aside(path: Path) -> None:
    aside = path.with_name(path.name + ".corrupt")
    try:
        path.replace(aside)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _cannot_write(path, error) from error
    logger.warning("%s was moved aside to %s", path.name, aside)


def _cannot_write(path: Path, error: BaseException) -> StoreError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreError(
            f"There is no space left to write {path} ({error.strerror}); nothing partial was left under that name and "
            "everything stored before stays readable. Free some space, or move the store (store=DIR), and run again."
        )
    return StoreError(
        f"The embedding store cannot write {path} ({error}); choose a folder you may write to (store=DIR)."
    )
