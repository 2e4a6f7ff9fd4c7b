"""Pairs from two places on disk: two files, a file and a folder, or two folders paired by stem."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from bcs_lab.errors import CorpusError, Problem, listing

#: Suffixes of what counts as an image in a folder; whether it is one is seen when it is read.
SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".jpe", ".gif", ".webp", ".tif", ".tiff", ".bmp", ".ppm", ".pgm", ".jp2", ".avif"}
)
SIDES = ("reference", "reconstruction")


@dataclass(frozen=True)
class FolderPairs:
    """What two places have in common, and what they do not.

    Attributes:
        pairs: ``pair_id, reference, reconstruction`` and, where reconstructions lie in sub-folders beside flat
            references, ``method`` (the sub-folder); sorted by ``pair_id``.
        unmatched: a problem for every file without a partner, and for every stem that is not unique.
    """

    pairs: pd.DataFrame
    unmatched: list[Problem] = field(default_factory=list)


def pair_paths(reference: str | Path, reconstruction: str | Path) -> FolderPairs:
    """Pair files by their path below the folder, without suffix.

    A single reference is paired with every file of a folder of reconstructions. Where reconstructions lie in
    sub-folders and references do not (``recs/METHOD/cat.png`` and ``refs/cat.png``), they are paired by stem and the
    sub-folder is the method.

    Args:
        reference: a file or folder; folders are read with their sub-folders, hidden files left out.
        reconstruction: likewise; a file only when ``reference`` is one.

    Raises:
        CorpusError: a path does not exist, a folder holds no image, or the two have nothing in common; lists examples.
    """
    sides = {"reference": Path(reference).expanduser(), "reconstruction": Path(reconstruction).expanduser()}
    missing = [f"{side}={path}: no such file or folder" for side, path in sides.items() if not path.exists()]
    if missing:
        raise CorpusError("\n".join(missing))
    ref, rec = sides["reference"], sides["reconstruction"]
    if ref.is_file() and rec.is_file():
        return FolderPairs(_frame([(rec.stem, str(ref), str(rec), "")]))
    if rec.is_file():
        raise CorpusError(
            f"reference={ref} is a folder, but reconstruction={rec} is a file; name two files or two folders."
        )
    found = {side: _images(path, side) for side, path in sides.items() if path.is_dir()}
    problems: list[Problem] = []
    recs = _by_key(found["reconstruction"], rec, problems)
    if ref.is_file():
        rows = [(key, str(ref), str(path), key.rpartition("/")[0]) for key, path in recs.items()]
        return FolderPairs(_frame(rows), problems)
    refs = _by_key(found["reference"], ref, problems)
    twice = list(problems)
    nested = not any("/" in key for key in refs) and not set(recs) & set(refs)
    ambiguous = {Path(problem.file) for problem in twice}
    stems = {path.relative_to(ref).with_suffix("").as_posix() for path in ambiguous if path.is_relative_to(ref)}
    rows, used = (
        [],
        {path.relative_to(rec).with_suffix("").as_posix() for path in ambiguous if path.is_relative_to(rec)},
    )
    for key, path in recs.items():
        folder, _, stem = key.rpartition("/")
        partner = stem if nested else key
        if partner in refs:
            used.add(partner)
            rows.append((key, str(refs[partner]), str(path), folder if nested else ""))
        elif partner not in stems:
            problems.append(Problem(str(path), None, f"reconstruction without a reference {partner!r} in {ref}"))
    problems += [
        Problem(str(path), None, f"reference without a reconstruction {key!r} in {rec}")
        for key, path in refs.items()
        if key not in used
    ]
    if not rows:
        raise CorpusError(
            f"{ref} ({_count(refs)}) and {rec} ({_count(recs)}) have nothing in common: files are paired by their name "
            f"without suffix, and no name is in both. References: {_examples(refs)}. Reconstructions: "
            f"{_examples(recs)}.\nRename one side, or list the pairs in a manifest (corpus=manifest corpus.root=DIR)."
            + (f"\n{listing(twice, 10)}" if twice else "")
        )
    return FolderPairs(_frame(rows), problems)


def _images(folder: Path, side: str) -> list[Path]:
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not files:
        raise CorpusError(f"{side}={folder}: holds no image ({', '.join(sorted(SUFFIXES))}).")
    return files


def _by_key(files: Iterable[Path], root: Path, problems: list[Problem]) -> dict[str, Path]:
    """Path below the folder without suffix -> file; of a stem that occurs twice nothing is taken."""
    groups: dict[str, list[Path]] = {}
    for path in files:
        groups.setdefault(path.relative_to(root).with_suffix("").as_posix(), []).append(path)
    for key, paths in groups.items():
        if len(paths) > 1:
            names = ", ".join(path.name for path in paths)
            problems += [Problem(str(path), None, f"stem {key!r} is not unique ({names}); keep one") for path in paths]
    return {key: paths[0] for key, paths in groups.items() if len(paths) == 1}


def _frame(rows: list[tuple[str, str, str, str]]) -> pd.DataFrame:
    frame = pd.DataFrame(sorted(rows), columns=["pair_id", *SIDES, "method"], dtype=object)
    return frame if (frame["method"] != "").all() else frame.drop(columns="method")


def _count(files: dict[str, Path]) -> str:
    return f"{len(files)} image{'' if len(files) == 1 else 's'}"


def _examples(files: dict[str, Path]) -> str:
    names = list(files)
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "") if names else "none with a unique name"
