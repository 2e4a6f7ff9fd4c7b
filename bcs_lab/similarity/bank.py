"""Similarity against what is to be expected: how much nearer is the reconstruction than pictures of other things?

Some pictures are near everything (blurred ones, busy ones), so one and the same cosine means much for one pair and
nothing for another. A fixed bank of seen pictures and of reconstructions of other things says what is usual. With c the
cosine of a pair's standardised channels in a layer, u the cosines of its reference with the bank's reconstructions, and
w those of its reconstruction with the bank's seen pictures:

``above_reference``, ``above_reconstruction``
    (c - mean u) / standard deviation of u, and the same with w
``above_both``
    c - (mean u + mean w) / 2
``above_nearest``
    2 c - mean of the ten largest u - mean of the ten largest w, the correction for hubs of Conneau et al. (2018)
``nearer_than_reference``, ``nearer_than_reconstruction``
    share of u, and of w, below c, as in identification among many

Pictures of the bank that show the same as the pair, because one of the pair's images is itself in the bank, are left
out. The bank's embeddings are shipped; ``scripts/make_stage_statistics.py`` makes them from the images of a corpus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bcs_lab.similarity.statistics import networks, read_arrays

if TYPE_CHECKING:
    import torch

#: Where the package keeps them.
FOLDER = Path(__file__).resolve().parent.parent / "assets" / "similarity_bank"
#: Last stages that are compared with the bank; earlier ones say little about what is seen.
STAGES = 5
NEAREST = 10
#: Cosine of the last layer from which on two images are taken for the same.
SAME = 0.999
KINDS = (
    "above_reference",
    "above_reconstruction",
    "above_both",
    "above_nearest",
    "nearer_than_reference",
    "nearer_than_reconstruction",
)
#: Rows of pooled features: the channels' means, and their standard deviations, over positions.
ROWS = ("mean", "spread")


@dataclass(frozen=True)
class Bank:
    """Standardised features of pictures of other things.

    Attributes:
        digest: SHA-256 of the file they came from.
        layers: per layer its stage and row (0: means, 1: spreads) of pooled features.
        rows: per layer float32 ``[n, channels]``, unit rows.
        reconstruction: bool ``[n]``, whether a picture is a reconstruction.
        group: int64 ``[n]``, equal for pictures that show the same.
    """

    digest: str
    layers: tuple[tuple[str, int], ...]
    rows: tuple[torch.Tensor, ...]
    reconstruction: torch.Tensor
    group: torch.Tensor

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the similarities, in their order."""
        return tuple(f"{stage}.bank_{ROWS[row]}_{kind}" for stage, row in self.layers for kind in KINDS)

    def compare(self, one: Sequence[torch.Tensor], two: Sequence[torch.Tensor]) -> torch.Tensor:
        """The similarities of a pair.

        Args:
            one: per layer the reference's standardised features, float32 ``[channels]``.
            two: likewise the reconstruction's.

        Returns:
            float32 ``[len(names)]``, finite.
        """
        import torch

        a, b = ([part / torch.linalg.vector_norm(part).clamp_min(1e-6) for part in side] for side in (one, two))
        last = self.rows[-1]
        known = ((last @ a[-1]) > SAME) | ((last @ b[-1]) > SAME)
        other = ~torch.isin(self.group, self.group[known])
        seen, made = other & ~self.reconstruction, other & self.reconstruction
        if int(seen.sum()) <= NEAREST or int(made.sum()) <= NEAREST:
            return torch.zeros(len(self.names))  # nothing to expect anything from
        found = []
        for rows, x, y in zip(self.rows, a, b, strict=True):
            c, u, w = x @ y, (rows @ x)[made], (rows @ y)[seen]
            means, spreads = torch.stack([u.mean(), w.mean()]), torch.stack([u.std(), w.std()]).clamp_min(1e-6)
            nearest = u.topk(NEAREST).values.mean() + w.topk(NEAREST).values.mean()
            below = torch.stack([(u < c).float().mean(), (w < c).float().mean()])
            found += [(c - means) / spreads, (c - means.mean())[None], (2 * c - nearest)[None], below]
        return torch.cat(found)


def bank_layers(stages: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """The layers that are compared: means of the last stages, and spreads of all of these but the last."""
    last = list(stages)[-STAGES:]
    return tuple((stage, row) for stage in last for row in (0, 1) if row == 0 or stage != last[-1])


def shipped_bank(fingerprint: Mapping[str, Any]) -> Bank | None:
    """That of an encoder's weights and preprocessing, or ``None`` if none is shipped.

    Raises:
        EncoderError: the package's own file is missing or damaged.
    """
    for entry in networks(FOLDER):
        if all(entry[key] == fingerprint.get(key) for key in ("weights", "preprocessing")):
            return _read(FOLDER / entry["file"], entry["sha256"], tuple(entry["stages"]))
    return None


def bank_bytes(
    layers: Sequence[tuple[str, int]], rows: Sequence[np.ndarray], reconstruction: np.ndarray, group: np.ndarray
) -> bytes:
    """The content of a bank's file; arguments as the attributes of :class:`Bank`."""
    from safetensors.numpy import save

    arrays = {
        f"{stage}.{ROWS[row]}": np.ascontiguousarray(part.astype(np.float16))
        for (stage, row), part in zip(layers, rows, strict=True)
    }
    return save({**arrays, "reconstruction": reconstruction.astype(np.uint8), "group": group.astype(np.int64)})


@lru_cache(maxsize=8)
def _read(path: Path, digest: str, stages: tuple[str, ...]) -> Bank:
    import torch

    arrays = read_arrays(path, digest)
    layers = bank_layers(stages)
    rows = []
    for stage, row in layers:
        part = torch.from_numpy(arrays[f"{stage}.{ROWS[row]}"].astype(np.float32))
        rows.append(part / torch.linalg.vector_norm(part, dim=1, keepdim=True).clamp_min(1e-6))
    return Bank(
        digest,
        layers,
        tuple(rows),
        torch.from_numpy(arrays["reconstruction"].astype(bool)),
        torch.from_numpy(arrays["group"]),
    )
