"""Every error the package raises on purpose, as one tree under :class:`BCSError`.

A message names the file, row or config key, what was expected, what was found, and what to do. The command line prints
such an error as one message and exits with status 2; anything else is a bug and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class BCSError(Exception):
    """Base of every deliberate error."""


class ConfigError(BCSError):
    """A config key has a value that cannot be used."""


class CorpusError(BCSError):
    """A corpus cannot be read, or holds bad rows."""


class ImageError(BCSError):
    """An image file cannot be used; the message names the path and the reason."""


class EncoderError(BCSError):
    """An encoder is unknown, or its weights cannot be had."""


class TeacherError(BCSError):
    """A teacher's model or server cannot be had or used."""


class StoreError(BCSError):
    """The embedding store cannot be read or written."""


class SplitError(BCSError):
    """A split cannot be made from this corpus."""


class ModelError(BCSError):
    """A saved ensemble cannot be read, or does not fit what it is used on."""


class RunError(BCSError):
    """A run folder cannot be written or read, or a job of a sweep failed."""


class StudyError(BCSError):
    """A study with people cannot be made, or its pictures or ratings cannot be used."""


@dataclass(frozen=True)
class Problem:
    """One bad row of an input.

    Attributes:
        file: the file that holds the row, as the user would name it.
        row: its line in a text file (the header of a CSV is line 1), or its row counted from 1 in a Parquet table;
            ``None`` when the problem concerns the whole file.
        message: what was expected and what was found.
        pair_id: the pair concerned, when there is one.
    """

    file: str
    row: int | None
    message: str
    pair_id: str | None = None

    def __str__(self) -> str:
        where = self.file if self.row is None else f"{self.file}:{self.row}"
        return f"{where}: {self.message}" if self.pair_id is None else f"{where}: pair {self.pair_id!r}: {self.message}"


def listing(problems: Iterable[Problem], limit: int = 50) -> str:
    """One line a problem, at most ``limit`` lines, then a count of the rest."""
    lines = [str(problem) for problem in problems]
    shown = [f"  - {line}" for line in lines[:limit]]
    if len(lines) > limit:
        shown.append(f"  … and {len(lines) - limit} more")
    return "\n".join(shown)
