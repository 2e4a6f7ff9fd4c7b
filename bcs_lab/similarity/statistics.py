"""Fixed mean and standard deviation of every channel of a network's stages, measured once and shipped.

They belong to a network's weights, whatever size, device or dtype it computes with.
``scripts/make_stage_statistics.py`` measures them over the distinct images of a corpus.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from bcs_lab.errors import EncoderError

#: Where the package keeps them.
FOLDER = Path(__file__).resolve().parent.parent / "assets" / "stage_statistics"
INDEX = "index.json"
#: A channel's standard deviation is at least this share of the median one of its stage: a channel that hardly ever
#: fires would drown all others when it does.
LEAST = 0.05


@dataclass(frozen=True)
class StageStatistics:
    """Fixed numbers of a network's stages; first the channels' means over positions, then their standard deviations.

    Attributes:
        digest: SHA-256 of the file they came from.
        mean: stage -> float32 ``[2, channels]``, over images.
        sd: stage -> the standard deviations over images, none of them near 0.
    """

    digest: str
    mean: Mapping[str, np.ndarray]
    sd: Mapping[str, np.ndarray]


def shipped_statistics(fingerprint: Mapping[str, Any]) -> StageStatistics | None:
    """Those of an encoder's weights, or ``None`` if none are shipped.

    Raises:
        EncoderError: the package's own file is missing or damaged.
    """
    weights = fingerprint.get("weights")
    for entry in networks(FOLDER):
        if entry["weights"] == weights:
            return _read(FOLDER / entry["file"], entry["sha256"])
    return None


def read_statistics(folder: Path, name: str) -> StageStatistics:
    """Those of one entry of an index, by its name."""
    entry = json.loads((folder / INDEX).read_text(encoding="utf-8"))["networks"][name]
    return _read(folder / entry["file"], entry["sha256"])


@lru_cache(maxsize=4)
def networks(folder: Path) -> tuple[dict[str, Any], ...]:
    """Entries of a folder of shipped arrays, one a network; none where there is no such folder."""
    path = folder / INDEX
    if not path.is_file():
        return ()
    return tuple(json.loads(path.read_text(encoding="utf-8"))["networks"].values())


def read_arrays(path: Path, digest: str) -> dict[str, np.ndarray]:
    """The arrays of a shipped file.

    Raises:
        EncoderError: it is missing or damaged.
    """
    from safetensors.numpy import load

    try:
        content = path.read_bytes()
    except OSError as error:
        raise EncoderError(f"{path}: cannot be read ({error.strerror or error}); install bcs_lab again.") from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise EncoderError(f"{path}: is damaged (its SHA-256 differs from {INDEX}); install bcs_lab again.")
    return load(content)


@lru_cache(maxsize=8)
def _read(path: Path, digest: str) -> StageStatistics:
    arrays = read_arrays(path, digest)
    stages = list(dict.fromkeys(name.rpartition(".")[0] for name in arrays))
    sd = {stage: arrays[f"{stage}.sd"] for stage in stages}
    least = {stage: LEAST * np.median(values, axis=1, keepdims=True) for stage, values in sd.items()}
    return StageStatistics(
        digest,
        {stage: arrays[f"{stage}.mean"] for stage in stages},
        {stage: np.maximum(values, np.maximum(least[stage], 1e-6)).astype(np.float32) for stage, values in sd.items()},
    )


def measure(stages: Iterable[str], images: Iterable[Iterable[np.ndarray]]) -> dict[str, np.ndarray]:
    """The arrays of a statistics file.

    Args:
        stages: names of the stages.
        images: per image, per stage, float32 ``[2, channels]`` pooled over positions.

    Returns:
        ``STAGE.mean`` and ``STAGE.sd``, float32 ``[2, channels]``.
    """
    pooled = [[np.asarray(part, dtype=np.float64) for part in image] for image in images]
    arrays = {}
    for number, stage in enumerate(stages):
        values = np.stack([image[number] for image in pooled])
        arrays[f"{stage}.mean"] = values.mean(axis=0).astype(np.float32)
        arrays[f"{stage}.sd"] = values.std(axis=0).astype(np.float32)
    return arrays
