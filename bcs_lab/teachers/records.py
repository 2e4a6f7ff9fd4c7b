"""Raw replies on the disk: one JSON object a line, only ever appended, safe against being killed at any moment.

The first line says what was asked of whom (:class:`Header`). Then comes a line for each reply, in the order of arrival,
and a line ``{"kind": "end"}`` where a run came to its end, so that a run which was killed can be told from one that is
over. A line is written in one piece and ends with a newline; what follows the last newline is the rest of a line that a
killed run did not finish, and is cut off before anything is appended.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, cast

from filelock import FileLock, Timeout

from bcs_lab import __version__
from bcs_lab.errors import RunError

FORMAT, VERSION = "bcs_lab raw replies", 1
HEADER, REPLY, END = "header", "reply", "end"
#: Seconds between two moments at which the file is forced to the disk; kills lose nothing either way, power cuts may.
SYNC_S = 5.0


@dataclass(frozen=True)
class Header:
    """What all replies of a file have in common.

    Attributes:
        teacher: its name in file names.
        corpus: the corpus' name; which pairs and images were seen is in each reply.
        mode: ``joint`` or ``single``.
        protocol: of the protocol: ``name``, ``digest``, ``questions`` (ids) and ``levels`` (answer -> score).
        prompts: digest of each prompt, in order.
        settings: who was asked, by the settings (JSON-able).
        backend: who was asked, by the backend's own account (JSON-able).
        simulated: whether the replies are computed.
    """

    teacher: str
    corpus: str
    mode: Literal["joint", "single"]
    protocol: Mapping[str, Any]
    prompts: tuple[str, ...]
    settings: Mapping[str, Any]
    backend: Mapping[str, Any]
    simulated: bool = False

    def record(self) -> dict[str, Any]:
        """The first line of a file."""
        return {
            "kind": HEADER,
            "format": FORMAT,
            "version": VERSION,
            "teacher": self.teacher,
            "corpus": self.corpus,
            "mode": self.mode,
            "protocol": dict(self.protocol),
            "prompts": list(self.prompts),
            "settings": dict(self.settings),
            "backend": dict(self.backend),
            "simulated": self.simulated,
            "bcs_lab": __version__,
            "time": now(),
        }

    def differences(self, other: Header) -> list[str]:
        """Where these replies would be others than the recorded ones (``other``); the corpus' name does not matter."""
        keys = ("teacher", "mode", "protocol", "prompts", "settings", "backend", "simulated")
        ours, theirs = ({key: _plain(getattr(header, key)) for key in keys} for header in (self, other))
        if not self.backend or not other.backend:
            ours["backend"] = theirs["backend"] = None
        return [
            f"{key}: recorded {_shown(theirs_at)}, now {_shown(ours_at)}"
            for key, ours_at, theirs_at in _unequal("", ours, theirs)
        ]


@dataclass(frozen=True)
class Line:
    """One whole line of a raw file.

    Attributes:
        number: counted from 1.
        offset: of its first byte.
        record: its object; ``None`` where it is damaged.
        damage: what is wrong with it.
    """

    number: int
    offset: int
    record: dict[str, Any] | None
    damage: str = ""


@dataclass
class RawFile:
    """A raw file that this process alone may write to.

    Attributes:
        path: the file.
        repaired: bytes of an unfinished line that were cut off.
    """

    path: Path
    repaired: int = 0
    _lock: FileLock | None = field(default=None, repr=False)
    _handle: IO[bytes] | None = field(default=None, repr=False)
    _synced: float = field(default=0.0, repr=False)

    def __enter__(self) -> RawFile:
        """Lock the file, and cut off what a killed run left of its last line.

        Raises:
            RunError: another process holds it.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(str(self.path.with_name(f".{self.path.name}.lock")))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunError(
                f"{self.path}: another run is asking this teacher about this corpus; wait for it, or choose another "
                "folder with out=DIR."
            ) from None
        self._lock = lock
        try:
            if self.path.exists():
                self.repaired = _repair(self.path)
        except BaseException:
            lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Force everything to the disk and let go of the lock."""
        try:
            if self._handle is not None:
                self._sync()
                self._handle.close()
        finally:
            self._handle = None
            if self._lock is not None:
                self._lock.release()

    def append(self, record: Mapping[str, Any]) -> int:
        """Write one line; returns its offset.

        Raises:
            OSError: the disk is full, say; what was written of the line is taken back.
        """
        if self._handle is None:
            self._handle = self.path.open("ab", buffering=0)
            self._synced = time.monotonic()
        offset = self._handle.seek(0, os.SEEK_END)
        rest = memoryview(encode(record))
        try:
            while rest:
                rest = rest[self._handle.write(rest) :]
        except OSError:
            self._handle.truncate(offset)
            raise
        if time.monotonic() - self._synced > SYNC_S:
            self._sync()
        return offset

    def end(self, **facts: Any) -> None:
        """Mark that a run came to its end."""
        self.append({"kind": END, **facts, "time": now()})

    def set_aside(self) -> Path:
        """Rename the file to ``<name>.<n>.old`` so that another can begin; returns the new path."""
        number = 1
        while (target := self.path.with_name(f"{self.path.name}.{number}.old")).exists():
            number += 1
        self.path.rename(target)
        return target

    def _sync(self) -> None:
        assert self._handle is not None
        os.fsync(self._handle.fileno())
        self._synced = time.monotonic()


def encode(record: Mapping[str, Any]) -> bytes:
    """One line. Half a surrogate pair, as a cut-off generation leaves it, becomes a question mark."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace") + b"\n"


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_header(path: Path) -> Header | None:
    """The header; ``None`` where there is no file, or not one whole line in it.

    Raises:
        RunError: the file begins otherwise.
    """
    first = next(lines(path), None) if path.is_file() else None
    if first is None:
        return None
    record = first.record or {}
    if record.get("format") != FORMAT or record.get("version") != VERSION:
        raise RunError(
            f"{path}:1: expected the header of raw replies ({FORMAT}, version {VERSION}), found "
            f"{first.damage or 'something else'}; mend this line, or move the file away."
        )
    try:
        return Header(
            teacher=str(record["teacher"]),
            corpus=str(record["corpus"]),
            mode=_mode(record["mode"]),
            protocol=dict(record["protocol"]),
            prompts=tuple(map(str, record["prompts"])),
            settings=dict(record["settings"]),
            backend=dict(record["backend"]),
            simulated=bool(record["simulated"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path}:1: the header is damaged ({error!r}); mend this line, or move the file away.") from None


def _mode(value: Any) -> Literal["joint", "single"]:
    if value not in ("joint", "single"):
        raise ValueError(f"mode {value!r}")
    return cast('Literal["joint", "single"]', value)


def lines(path: Path) -> Iterator[Line]:
    """All whole lines, one at a time; an unfinished one at the end is passed over."""
    offset = 0
    with path.open("rb") as handle:
        for number, line in enumerate(handle, start=1):
            if line.endswith(b"\n"):
                yield _line(number, offset, line)
            offset += len(line)


def read_at(handle: IO[bytes], offset: int) -> dict[str, Any]:
    """The record that begins at ``offset`` of an open raw file."""
    handle.seek(offset)
    record = json.loads(handle.readline())
    assert isinstance(record, dict)
    return record


def _line(number: int, offset: int, line: bytes) -> Line:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Line(number, offset, None, f"no JSON ({error})")
    if not isinstance(record, dict):
        return Line(number, offset, None, "no JSON object")
    if record.get("kind") == REPLY:
        wrong = [key for key, kinds in _REPLY.items() if not isinstance(record.get(key), kinds)]
        wrong += [key for key in _NUMBERS if not _number(record.get(key))]
        if wrong:
            return Line(number, offset, None, f"a reply with missing or wrong {', '.join(wrong)}")
    elif record.get("kind") not in (HEADER, END):
        return Line(number, offset, None, f"a record of unknown kind {record.get('kind')!r}")
    return Line(number, offset, record)


def _number(value: Any) -> bool:
    """Whether it is a finite number, or missing."""
    return value is None or (isinstance(value, (int, float)) and math.isfinite(value))


_REPLY: Mapping[str, type | tuple[type, ...]] = {
    "pair_id": str,
    "prompt": str,
    "images": str,
    "questions": list,
    "attempt": int,
    "text": (str, type(None)),
}
_NUMBERS = ("calls", "image_encodes", "latency_s", "prompt_tokens", "completion_tokens")


def _repair(path: Path) -> int:
    """Cut off what follows the last newline; returns the number of bytes."""
    with path.open("r+b") as handle:
        size = end = handle.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65536)
            handle.seek(start)
            at = handle.read(end - start).rfind(b"\n")
            if at >= 0:
                end = start + at + 1
                break
            end = start
        if end < size:
            handle.truncate(end)
    return size - end


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(value, default=list))


def _unequal(key: str, ours: Any, theirs: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in dict.fromkeys([*theirs, *ours]):
            yield from _unequal(f"{key}.{name}" if key else str(name), ours.get(name), theirs.get(name))
    elif ours != theirs:
        yield key, ours, theirs


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"
