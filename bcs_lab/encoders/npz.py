"""Embeddings computed elsewhere, as an ``.npz`` file: read and checked, never unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from bcs_lab.errors import CorpusError, Problem, listing

ROLES = ("reference", "reconstruction")

#: First bytes of a single array saved by numpy, and of a zip archive with and without members.
_ARRAY = b"\x93NUMPY"
_ARCHIVE = (b"PK\x03\x04", b"PK\x05\x06")


def read_npz(path: Path, wanted: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Read ``ids``, ``reference`` and ``reconstruction`` of an ``.npz`` file; pickles are refused.

    Args:
        path: the file.
        wanted: pair ids; the file must hold exactly these, in any order.

    Returns:
        Reference and reconstruction vectors, float32 ``[n, dim]`` scaled to a largest magnitude of 1, in the order of
        ``wanted``.

    Raises:
        CorpusError: lists everything that is wrong.
    """
    arrays, problems = _load_arrays(path)
    ids = _texts(arrays.get("ids"), problems)
    vectors = {role: _vectors(role, arrays[role], problems) for role in ROLES if role in arrays}
    shapes = {role: array.shape for role, array in vectors.items() if array is not None}
    if len(set(shapes.values())) > 1:
        problems.append(f"reference has shape {shapes['reference']}, reconstruction {shapes['reconstruction']}")
    for role, shape in shapes.items():
        if ids is not None and shape[0] != len(ids):
            problems.append(f"{role} has {shape[0]} rows for {len(ids)} ids")
    if ids is not None:
        problems.extend(_id_problems(ids, wanted))
    if problems or ids is None:
        raise CorpusError(
            f"{path} cannot be imported. Expected arrays ids (text [n]), reference and reconstruction "
            "(float [n, dim]), one row a pair of the corpus:\n"
            + listing(Problem(path.name, None, text) for text in problems)
        )
    row = {pair_id: i for i, pair_id in enumerate(ids)}
    order = np.array([row[pair_id] for pair_id in wanted], dtype=np.int64)
    reference, reconstruction = vectors["reference"], vectors["reconstruction"]
    if reference is None or reconstruction is None:
        raise CorpusError(f"{path} cannot be imported.")
    return reference[order], reconstruction[order]


def _load_arrays(path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    arrays: dict[str, np.ndarray] = {}
    problems: list[str] = []
    try:
        with path.open("rb") as opened:
            start = opened.read(len(_ARRAY))
        # Looked at first, since numpy takes whatever it does not know for a pickle.
        if start == _ARRAY:
            raise CorpusError(f"{path}: expected an .npz archive, found a single array.")
        if not start.startswith(_ARCHIVE):
            raise CorpusError(
                f"{path}: is no .npz file{'' if start else ', it is empty'}; expected an archive with the arrays ids, "
                "reference and reconstruction, as numpy.savez writes it."
            )
        with np.load(path, allow_pickle=False) as file:
            for name in ("ids", *ROLES):
                if name not in file.files:
                    problems.append(f"array {name!r} is missing (found {', '.join(file.files) or 'none'})")
                    continue
                try:
                    arrays[name] = file[name]
                except ValueError as error:
                    problems.append(f"array {name!r} cannot be read: {_without_pickles(error)}")
                except (zipfile.BadZipFile, OSError, EOFError) as error:
                    problems.append(f"array {name!r} is damaged ({error})")
    except FileNotFoundError:
        raise CorpusError(
            f"{path}: no such file; expected an .npz archive with ids, reference, reconstruction."
        ) from None
    except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
        raise CorpusError(f"{path}: expected an .npz archive, found a damaged or unreadable file ({error}).") from None
    return arrays, problems


def _without_pickles(error: Exception) -> str:
    if "pickle" in str(error) or "Object" in str(error):
        return "it holds Python objects (a pickle), which are never loaded; save text as np.array(ids, dtype=str)"
    return str(error)


def _texts(ids: np.ndarray | None, problems: list[str]) -> list[str] | None:
    if ids is None:
        return None
    if ids.ndim != 1 or ids.dtype.kind not in "US":
        problems.append(f"ids: expected a text array [n], found {ids.dtype} of shape {ids.shape}")
        return None
    try:
        return [value.decode() if isinstance(value, bytes) else str(value) for value in ids.tolist()]
    except UnicodeDecodeError as error:
        problems.append(f"ids: expected UTF-8 ({error})")
        return None


def _vectors(role: str, array: np.ndarray, problems: list[str]) -> np.ndarray | None:
    if array.ndim != 2 or array.shape[1] == 0 or array.dtype.kind != "f" or array.dtype.itemsize > 8:
        problems.append(f"{role}: expected float16, float32 or float64 [n, dim], found {array.dtype} {array.shape}")
        return None
    values = array.astype(np.float64)
    finite = np.asarray(np.isfinite(values).all(axis=1))
    if not finite.all():
        problems.append(f"{role}: {_rows(~finite)} hold NaN or infinity")
    zero = np.asarray(finite & ~values.any(axis=1))
    if zero.any():
        problems.append(f"{role}: {_rows(zero)} are all zero")
    # In float64, so that neither tiny nor huge rows are lost on the way to unit length.
    largest = np.abs(np.where(finite[:, None], values, 1.0)).max(axis=1, keepdims=True)
    return (values / np.where(largest > 0, largest, 1.0)).astype(np.float32)


def _rows(mask: np.ndarray) -> str:
    rows = np.flatnonzero(mask)
    return f"{len(rows)} rows ({', '.join(map(str, rows[:5]))}{'…' if len(rows) > 5 else ''})"


def _id_problems(ids: Sequence[str], wanted: Sequence[str]) -> Iterable[str]:
    counts: dict[str, int] = {}
    for pair_id in ids:
        counts[pair_id] = counts.get(pair_id, 0) + 1
    known = set(wanted)
    for found, text in (
        ([pair_id for pair_id, count in counts.items() if count > 1], "appear more than once"),
        ([pair_id for pair_id in counts if pair_id not in known], "are not pairs of the corpus"),
        ([pair_id for pair_id in wanted if pair_id not in counts], "are pairs of the corpus but not in the file"),
    ):
        if found:
            yield f"ids: {len(found)} {text}: {', '.join(found[:5])}{'…' if len(found) > 5 else ''}"
