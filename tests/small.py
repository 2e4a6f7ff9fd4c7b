"""Small made-up inputs shared by the tests of training: embeddings, answers and a split, learnable and quick."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from bcs_lab.split import Split, make_split


@dataclass(frozen=True)
class Embeddings:
    """The fields of ``PairEmbeddings`` that training reads."""

    name: str
    images: np.ndarray
    reference: np.ndarray
    reconstruction: np.ndarray
    stand_in: str | None = None
    fingerprint: dict[str, Any] = field(default_factory=lambda: {"model": "made up"})

    @property
    def label(self) -> str:
        return self.name if self.stand_in is None else f"{self.name} (stand-in {self.stand_in})"

    @property
    def dim(self) -> int:
        return int(self.images.shape[1])


@dataclass(frozen=True)
class Similarities:
    """The fields of ``PairSimilarities``."""

    name: str
    values: np.ndarray
    names: tuple[str, ...]
    stand_in: str | None = None
    fingerprint: dict[str, Any] = field(default_factory=lambda: {"model": "made up", "similarities": "1"})

    @property
    def label(self) -> str:
        return self.name if self.stand_in is None else f"{self.name} (stand-in {self.stand_in})"


def make_pairs(n: int = 60, concepts: int = 20, methods: int = 6, subjects: int = 8) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "pair_id": [f"p{i:04d}" for i in range(n)],
            "method": [f"Method{i % methods}" for i in range(n)],
            "subject": [f"sub-{i % subjects:02d}" for i in range(n)],
            "concept": [f"concept_{(7 * i) % concepts}" for i in range(n)],
            "rank": "1",
            "candidate": "1",
            "reference_path": "",
            "reconstruction_path": "",
        }
    )
    return frame.astype(object)


def make_embeddings(n: int = 60, dims: tuple[int, ...] = (8, 5), seed: int = 0) -> list[Embeddings]:
    rng = np.random.default_rng(seed)
    n_references = max(n // 4, 1)
    out = []
    for k, dim in enumerate(dims):
        images = rng.normal(size=(n_references + n, dim)).astype(np.float32)
        reference = np.arange(n, dtype=np.int64) % n_references
        reconstruction = n_references + np.arange(n, dtype=np.int64)
        closeness = np.linspace(0, 2, n)[:, None]
        images[reconstruction] += closeness * images[reference]
        images /= np.linalg.norm(images, axis=1, keepdims=True)
        out.append(Embeddings(f"made{k}", images, reference, reconstruction))
    return out


def make_targets(embeddings: list[Embeddings], questions: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Consensus that follows the cosine, on the grid of five values, with one gap; and weights."""
    first = embeddings[0]
    cosine = (first.images[first.reference] * first.images[first.reconstruction]).sum(axis=1)
    shift = np.linspace(-0.2, 0.2, questions)
    targets = np.clip(np.round(4 * (0.5 + 0.5 * cosine[:, None] + shift)) / 4, 0, 1).astype(np.float32)
    weights = np.where(np.isin(targets, (0.25, 0.75)), 0.75, 1.0).astype(np.float32)
    targets[3, 1] = np.nan
    weights[3, 1] = 0.0
    return targets, weights


def make_similarities(embeddings: list[Embeddings], noise: int = 4) -> list[Similarities]:
    """An encoder's cosine, its squared difference and columns that say nothing, the last of them a constant."""
    out = []
    for k, part in enumerate(embeddings):
        a, b = part.images[part.reference], part.images[part.reconstruction]
        columns = [(a * b).sum(axis=1), ((a - b) ** 2).mean(axis=1)]
        columns += [*np.random.default_rng(100 + k).normal(size=(noise, len(a))), np.full(len(a), 0.3)]
        names = ("pooled_cosine", "mse", *(f"noise{i}" for i in range(noise)), "constant")
        out.append(Similarities(part.name, np.stack(columns, axis=1).astype(np.float32), names))
    return out


def make_similarity_data(n: int = 60, questions: int = 12, batch_size: int = 16, **changes: Any) -> Any:
    """Data module over similarities, embeddings, similarities, targets, split."""
    from bcs_lab.data import BCSDataModule

    embeddings = make_embeddings(n)
    targets, weights = make_targets(embeddings, questions)
    split: Split = make_split(make_pairs(n))
    similarities = make_similarities(embeddings)
    settings: dict[str, Any] = {"batch_size": batch_size, "similarities": similarities} | changes
    return BCSDataModule(embeddings, targets, weights, split, **settings), embeddings, similarities, targets, split


def make_data(n: int = 60, dims: tuple[int, ...] = (8, 5), questions: int = 12, batch_size: int = 16) -> Any:
    """Data module, embeddings, targets, split."""
    from bcs_lab.data import BCSDataModule

    embeddings = make_embeddings(n, dims)
    targets, weights = make_targets(embeddings, questions)
    split: Split = make_split(make_pairs(n))
    return BCSDataModule(embeddings, targets, weights, split, batch_size=batch_size), embeddings, targets, split
