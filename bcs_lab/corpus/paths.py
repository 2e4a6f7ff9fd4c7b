"""Find the file a manifest means, and say what is nearby when there is none."""

from __future__ import annotations

import difflib
import os
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
    if os.path.exists(wanted):
        return Resolved(wanted)
    composed = _walk(text, root, _same_composition, listings)
    if composed is not None and os.path.exists(composed):
        return Resolved(
            composed, warning=f"{text!r} is written {_shown(composed, root)!r} on the disk (Unicode composition)"
        )
    link = _dangling(wanted if os.path.islink(wanted) else composed)
    if link:
        return Resolved(None, problem=f"{text!r} {link}")
    start = "an absolute path" if Path(text).is_absolute() else f"relative paths start at {root}"
    hint = _suggestion(text, root, listings)
    return Resolved(None, problem=f"no file {text!r} (looked for {wanted}; {start}){hint}")


def _suggestion(text: str, root: Path, listings: dict[Path, list[str]]) -> str:
    if "://" in text and not text.startswith("file://"):
        return "; addresses are not opened, download the file first"
    slashes = "; use / instead of \\" if "\\" in text else ""
    variants = (text, text.strip(), text.replace("\\", "/").strip(), unquote(text), unquote(text).removeprefix("file://"))
    for variant in variants:
        near = _walk(variant, root, _alike, listings)
        if near is not None and os.path.exists(near):
            return f"{slashes}; did you mean {_shown(near, root)!r}?"
    if slashes:
        return slashes
    return _close_names(text, root, listings)


def _close_names(text: str, root: Path, listings: dict[Path, list[str]]) -> str:
    here = root
    for part in Path(text).parts:
        if os.path.lexists(here / part):
            here = here / part
            continue
        if not here.is_dir():
            return f"; {here} is not a folder"
        close = difflib.get_close_matches(part, _names(here, listings)[:5000], n=2, cutoff=0.75)
        if close:
            return f"; similar in {here}: {', '.join(map(repr, close))}"
        return "" if here == root else f"; {here} has no {part!r}"
    return ""


def _walk(
    text: str, root: Path, same: Callable[[str, str], bool], listings: dict[Path, list[str]]
) -> Path | None:
    """Follow ``text`` part by part; a missing part may be replaced by the only sibling that is ``same``."""
    here = root
    for part in Path(text).parts:
        child = here / part
        if not os.path.lexists(child):
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
    if path is None or not os.path.islink(path):
        return None
    target = os.readlink(path)
    full = (path.parent / target).absolute()
    why = "is a loop of links" if os.path.lexists(full) else "does not exist"
    return f"is a link ({path}) to {target!r}, and its target {full} {why}"


def _names(folder: Path, listings: dict[Path, list[str]]) -> list[str]:
    if folder not in listings:
        try:
            listings[folder] = sorted(os.listdir(folder))
        except OSError:
            listings[folder] = []
    return listings[folder]


def _shown(path: Path, root: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
