"""A teacher's files: a local folder, the local hub cache, or the hub, in that order, and what identifies them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcs_lab.errors import TeacherError

logger = logging.getLogger(__name__)

#: Seconds for the hub to answer the first request; its client alone would retry for half a minute.
HUB_TIMEOUT = 3.0

_COMMIT = re.compile(r"[0-9a-f]{40}")
_INDEX = "*.index.json"
_SMALL = ("*.json", "*.jinja", "*.txt", "*.model")
_WEIGHTS = ("*.safetensors", "*.bin")
#: Files up to this size are hashed whole; of larger ones, evenly spaced blocks.
_WHOLE = 64 << 20
_BLOCK = 1 << 20
_BLOCKS = 16


@dataclass(frozen=True)
class Checkpoint:
    """A folder with everything that makes a model.

    Attributes:
        folder: where it lies on this machine.
        name: how records call it; a local folder's own name, since the rest of a path says nothing about the model.
        revision: the commit, or ``sha256:…`` over the files of a local folder.
    """

    folder: Path
    name: str
    revision: str

    @property
    def config(self) -> dict[str, Any]:
        """Content of ``config.json``."""
        return _json(self.folder / "config.json")


def find_checkpoint(model: str, revision: str | None, *, code: bool = False) -> Checkpoint:
    """The files of a model, downloaded only if the local cache lacks them.

    Args:
        model: a folder, or a hub repository.
        revision: commit, tag or branch on the hub; ``None`` is what the cache calls ``main``, else the newest.
        code: also fetch Python files.

    Raises:
        TeacherError: the files are neither here nor on the hub; says what was tried and what to do.
    """
    path = Path(model).expanduser()
    if path.exists() or model.startswith(("/", "./", "../", "~")):
        return _local(path, model, revision)
    folder = _cached(model, revision) or _download(model, revision, code)
    return Checkpoint(folder, model, folder.name if _COMMIT.fullmatch(folder.name) else (revision or "main"))


def is_commit(revision: str | None) -> bool:
    """Whether a revision is a whole commit hash, which nobody can move."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def check_code(checkpoint: Checkpoint) -> None:
    """Python code of a checkpoint has to lie in its own folder: code of another repository is not pinned with it.

    Raises:
        TeacherError: ``auto_map`` of a config refers to another repository.
    """
    for file in sorted(checkpoint.folder.glob("*.json")):
        mapping = _json(file).get("auto_map")
        values = mapping.values() if isinstance(mapping, dict) else []
        names = [name for value in values for name in (value if isinstance(value, list) else [value])]
        foreign = sorted({str(name) for name in names if name is not None and "--" in str(name)})
        if foreign:
            raise TeacherError(
                f"teacher.model={checkpoint.name}: {file.name} takes Python code from another repository "
                f"({', '.join(foreign)}), which teacher.revision does not pin. Download the model, copy that code "
                "beside it, take the repository's name out of auto_map and give the folder: teacher.model=/folder."
            )


def folder_digest(folder: Path) -> str:
    """``sha256:…`` over a model's files: texts whole, weights whole up to 64 MB, else their size and 16 blocks of 1 MB.

    Names are relative to the folder, so that a copy elsewhere is the same model.
    """
    digest = hashlib.sha256()
    patterns = (*_SMALL, "*.py", *_WEIGHTS)
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        for block in _blocks(path, size):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def _blocks(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        if size <= _WHOLE:
            while block := file.read(_BLOCK):
                yield block
            return
        for i in range(_BLOCKS):
            file.seek(i * (size - _BLOCK) // (_BLOCKS - 1))
            yield file.read(_BLOCK)


def _local(path: Path, model: str, revision: str | None) -> Checkpoint:
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise TeacherError(
            f"teacher.model={model}: expected a folder with config.json and weights at {path}, found {found}."
        )
    if revision is not None:
        raise TeacherError(
            f"teacher.revision={revision}: {path} is a folder, and folders have no revisions; leave it out "
            "(records hold a digest of the folder's files)."
        )
    missing = _missing(path)
    if missing:
        inside = sorted(item.name for item in path.iterdir())
        shown = ", ".join(inside[:10]) + ("…" if len(inside) > 10 else "")
        raise TeacherError(f"teacher.model={model}: {path} lacks {missing}; found {shown or 'an empty folder'}.")
    return Checkpoint(path.resolve(), path.resolve().name, folder_digest(path))


def _missing(folder: Path) -> str | None:
    """What a model's folder lacks, or ``None``."""
    if not (folder / "config.json").is_file():
        return "config.json"
    for index in sorted(folder.glob(_INDEX)):
        shards = sorted(set(_json(index).get("weight_map", {}).values()))
        absent = [shard for shard in shards if not (folder / shard).is_file()]
        if absent:
            return f"{len(absent)} of {len(shards)} weight files ({absent[0]}{', …' if len(absent) > 1 else ''})"
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        return "weights (*.safetensors)"
    return None


def _cached(model: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError as error:
        raise TeacherError(
            f"teacher.model={model!r} is neither a folder nor the name of a hub repository ({error})."
        ) from None
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    return folder if _missing(folder) is None else None


def _download(model: str, revision: str | None, code: bool) -> Path:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download

    try:
        get_hf_file_metadata(hf_hub_url(model, "config.json", revision=revision), timeout=HUB_TIMEOUT)
        small = [*_SMALL, *(["*.py"] if code else [])]
        logger.info("teacher: downloading %s@%s", model, revision or "main")
        for weights in _WEIGHTS:
            found = snapshot_download(model, revision=revision, allow_patterns=[*small, weights])
            folder = Path(found)
            if _missing(folder) is None:
                return folder
        reason = f"the repository lacks {_missing(folder)}"
    except Exception as error:
        # Whatever the client raises (its HTTP library changes between versions), the user needs the same answer.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
    raise _unavailable(model, revision, reason)


def _unavailable(model: str, revision: str | None, reason: str) -> TeacherError:
    from huggingface_hub import constants

    offline = "; HF_HUB_OFFLINE is set, so nothing is downloaded" if os.environ.get("HF_HUB_OFFLINE") else ""
    at = f" --revision {revision}" if revision else ""
    return TeacherError(
        f"The weights of teacher.model={model} (revision {revision or 'main'}) cannot be had.\n"
        f"Tried: the local cache ({constants.HF_HUB_CACHE}): not all files are there; the hub ({constants.ENDPOINT}): "
        f"{reason}{offline}.\n"
        "Ways out:\n"
        f"  - download it where there is a network (`hf download {model}{at}`), copy the cache folder here and point "
        "HF_HOME at it\n"
        "  - name a folder that holds the model: teacher.model=/folder\n"
        "  - ask a server that has it: backend=openai backend.base_url=http://HOST:PORT/v1"
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TeacherError(f"{path}: expected JSON of a model ({error}); fetch the model again.") from None
    return values if isinstance(values, dict) else {}
