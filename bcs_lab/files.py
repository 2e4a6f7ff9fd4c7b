"""Files that are either whole or absent: write to a temporary name, flush, rename."""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bcs_lab.errors import ConfigError, RunError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary sibling of ``path`` to write to; on success it takes the place of ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(path: Path, key: str) -> None:
    """Make sure before any long work that a file can be written, and make its folder.

    Args:
        path: the file.
        key: the setting that names it, for the message.

    Raises:
        ConfigError: the folder cannot be made or written to, or the path is a folder.
    """
    if path.is_dir():
        raise ConfigError(f"{key}={path}: is a folder; expected the name of a file.")
    probe = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"{key}={path}: cannot be written ({reason}); choose another place.") from None


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text in one step."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON in one step; an undefined number becomes ``null``, never ``NaN``."""
    write_text(path, json.dumps(json_safe(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        RunError: the file is not JSON.
        OSError: the file cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path}: expected JSON, found a damaged file ({error}); run the job again") from None


def json_safe(value: Any) -> Any:
    """The same containers with NaN and infinities as ``None``, arrays as lists and numpy numbers as Python numbers.

    Example:
        >>> json_safe({"r": float("nan"), "n": (1, 2.5)})
        {'r': None, 'n': [1, 2.5]}
    """
    if isinstance(value, dict):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_safe(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch, without importing either
        return json_safe(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value
