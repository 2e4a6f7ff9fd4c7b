"""Find the file a manifest means, and say what is nearby when there is none."""

from __future__ import annotations

import difflib
import stat
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote


@dataclass(frozen=True)
class Resolved:
    """A path of a manifest, looked up on the disk.

    Attributes:
        path: absolute path of the file, ``None`` when there is none.
        warning: what to tell the user although a file was found.
        problem: why no file was found, with a suggestion where there is one.
    """

    path: Path | None
    warning: str | None = None
    problem: str | None = None


def resolve_path(text: str, root: Path, listings: dict[Path, list[str]] | None = None) -> Resolved:
    """Look up ``text`` relative to ``root`` (an absolute path stays as it is).

    The literal name always wins: ``#``, ``%20``, ``&`` and blanks mean themselves. Otherwise a file whose name differs
    only in Unicode composition (NFC or NFD) is used, with a warning. Anything further off, such as another case, a
    trailing blank or a back-slash, is a problem that names the look-alike; nothing is guessed.

    Args:
        text: the cell of the manifest.
        root: absolute folder that relative paths start at.
        listings: cache of folder listings, shared between calls.
    """
    listings = {} if listings is None else listings
    wanted = root / text
    if _exists(wanted):
        return Resolved(wanted)
    composed = _walk(text, root, _same_composition, listings)
    if composed is not None and _exists(composed):
        return Resolved(
            composed,
            warning=f"{text} is {text!a} here, {_shown(composed, root)!a} on the disk (Unicode composition)",
        )
    link = _dangling(wanted if _is_link(wanted) else composed)
    if link:
        return Resolved(None, problem=f"{text!r} {link}")
    start = "an absolute path" if Path(text).is_absolute() else f"relative paths start at {root}"
    hint = _suggestion(text, root, listings)
    return Resolved(None, problem=f"no file {text!r} (looked for {wanted}; {start}){hint}")


def _suggestion(text: str, root: Path, listings: dict[Path, list[str]]) -> str:
    if "://" in text and not text.startswith("file://"):
        return "; addresses are not opened, download the file first"
    slashes = "; use / instead of \\" if "\\" in text else ""
    variants = (
        text,
        text.strip(),
        text.replace("\\", "/").strip(),
        unquote(text),
        unquote(text).removeprefix("file://"),
    )
    for variant in variants:
        near = _walk(variant, root, _alike, listings)
        if near is not None and _exists(near):
            return f"{slashes}; did you mean {_shown(near, root)!r}?"
    if slashes:
        return slashes
    return _close_names(text, root, listings)


def _close_names(text: str, root: Path, listings: dict[Path, list[str]]) -> str:
    here = root
    for part in Path(text).parts:
        if _lexists(here / part):
            here = here / part
            continue
        if not here.is_dir():
            return f"; {here} is not a folder"
        close = difflib.get_close_matches(part, _names(here, listings)[:5000], n=2, cutoff=0.75)
        if close:
            return f"; similar in {here}: {', '.join(map(repr, close))}"
        return "" if here / part == root / text else f"; there is no folder {here / part}"
    return ""


def _walk(text: str, root: Path, same: Callable[[str, str], bool], listings: dict[Path, list[str]]) -> Path | None:
    """Follow ``text`` part by part; a missing part may be replaced by the only sibling that is ``same``."""
    here = root
    for part in Path(text).parts:
        child = here / part
        if not _lexists(child):
            alike = [name for name in _names(here, listings) if same(name, part)]
            if len(alike) != 1:
                return None
            child = here / alike[0]
        here = child
    return here


def _same_composition(a: str, b: str) -> bool:
    return unicodedata.normalize("NFC", a) == unicodedata.normalize("NFC", b)


def _alike(a: str, b: str) -> bool:
    return unicodedata.normalize("NFKC", a).casefold().strip() == unicodedata.normalize("NFKC", b).casefold().strip()


def _dangling(path: Path | None) -> str | None:
    if path is None or not _is_link(path):
        return None
    target = str(path.readlink())
    full = (path.parent / target).absolute()
    why = "is a loop of links" if _lexists(full) else "does not exist"
    return f"is a link ({path}) to {target!r}, and its target {full} {why}"


def _names(folder: Path, listings: dict[Path, list[str]]) -> list[str]:
    if folder not in listings:
        try:
            listings[folder] = sorted(entry.name for entry in folder.iterdir())
        except OSError:
            listings[folder] = []
    return listings[folder]


def _exists(path: Path) -> bool:
    # Not `Path.exists`, which raises for names that are too long or folders that may not be searched.
    try:
        path.stat()
    except (OSError, ValueError, RuntimeError):
        return False
    return True


def _lexists(path: Path) -> bool:
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True


def _is_link(path: Path) -> bool:
    return _lexists(path) and stat.S_ISLNK(path.lstat().st_mode)


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
