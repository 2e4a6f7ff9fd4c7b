"""Embeddings, targets and weights as batches for Lightning, by index: no features are kept, no workers are needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from bcs_lab.errors import ConfigError, CorpusError
from bcs_lab.features import feature_dim
from bcs_lab.split import Split

if TYPE_CHECKING:
    from bcs_lab.embeddings import PairEmbeddings

#: One batch: ``ref`` and ``rec`` (a list of [n, dim] an encoder each), ``target`` and ``weight`` [n, Q], ``index`` [n].
Batch = dict[str, Any]


class _ByIndex(Dataset):
    """Takes a whole batch of positions at once."""

    def __init__(self, data: BCSDataModule) -> None:
        self.data = data

    def __len__(self) -> int:
        return self.data.n_pairs

    def __getitem__(self, index: Tensor) -> Batch:
        return self.data.batch(index)


class _IndexBatches(Sampler[Tensor]):
    """Index tensors of up to ``batch_size`` positions; the last, shorter one is kept."""

    def __init__(self, indices: Tensor, batch_size: int, seed: int | None = None) -> None:
        self.indices = indices
        self.batch_size = batch_size
        self.generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch_size)

    def __iter__(self) -> Iterator[Tensor]:
        indices = self.indices
        if self.generator is not None:
            indices = indices[torch.randperm(len(indices), generator=self.generator)]
        yield from indices.split(self.batch_size)


class BCSDataModule(pl.LightningDataModule):
    """Everything a member trains on, held once in memory and shared by all members.

    Holds the embedding of each *distinct* image per encoder, in float32 under the one canonical rounding, and two index
    vectors a pair. Pair features are made by the module from each batch. Missing targets become 0 with weight 0.

    Args:
        embeddings: per encoder, in fusion order.
        targets: [n_pairs, n_questions] consensus in [0, 1], NaN where missing.
        weights: [n_pairs, n_questions] agreement weights, 0 where missing.
        split: which pairs are train, val and test.
        batch_size: pairs a step (512 in Table 13).
        seed: seed of the order of training pairs; set anew for every member.

    Raises:
        CorpusError: the parts do not fit together.
        ConfigError: the batch size is not a positive whole number.
    """

    def __init__(
        self,
        embeddings: Sequence[PairEmbeddings],
        targets: NDArray[np.floating],
        weights: NDArray[np.floating],
        split: Split,
        batch_size: int = 512,
        seed: int = 42,
    ) -> None:
        super().__init__()
        from bcs_lab.embeddings import canonical

        if not embeddings:
            raise CorpusError("There are no embeddings to train on; expected those of at least one encoder.")
        targets = np.asarray(targets, dtype=np.float32)
        weights = np.asarray(weights, dtype=np.float32)
        n = len(split.assignment)
        if targets.ndim != 2 or targets.shape != weights.shape or len(targets) != n:
            raise CorpusError(
                f"Expected targets and weights of shape [{n}, n_questions], as the split has {n} pairs, "
                f"but got {targets.shape} and {weights.shape}."
            )
        for part in embeddings:
            if len(part.reference) != n or len(part.reconstruction) != n:
                raise CorpusError(
                    f"encoder {part.label}: embeddings of {len(part.reference)} pairs, but the split has {n}; "
                    "they do not belong to the same corpus."
                )
        self.split = split
        self.batch_size = batch_size
        self.seed = seed
        self.dims = [int(part.images.shape[1]) for part in embeddings]
        self.images = [torch.from_numpy(canonical(np.asarray(part.images))) for part in embeddings]
        self.reference = [torch.from_numpy(np.asarray(part.reference, dtype=np.int64)) for part in embeddings]
        self.reconstruction = [torch.from_numpy(np.asarray(part.reconstruction, dtype=np.int64)) for part in embeddings]
        missing = np.isnan(targets)
        self.targets = torch.from_numpy(np.where(missing, np.float32(0), targets))
        self.weights = torch.from_numpy(np.where(missing, np.float32(0), weights))
        self.part = {name: torch.from_numpy(split.indices(name)) for name in ("train", "val", "test")}

    @property
    def batch_size(self) -> int:
        """Pairs a step."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ConfigError(f"batch_size={value}: expected a whole number of at least 1.")
        self._batch_size = int(value)

    @property
    def n_pairs(self) -> int:
        """Pairs of all parts."""
        return len(self.targets)

    @property
    def n_questions(self) -> int:
        """Questions a pair."""
        return int(self.targets.shape[1])

    @property
    def in_dim(self) -> int:
        """Length of the fused pair features."""
        return feature_dim(self.dims)

    def batch(self, index: Tensor) -> Batch:
        """The pairs at these positions (int64 [n])."""
        return {
            "ref": [images[rows[index]] for images, rows in zip(self.images, self.reference, strict=True)],
            "rec": [images[rows[index]] for images, rows in zip(self.images, self.reconstruction, strict=True)],
            "target": self.targets[index],
            "weight": self.weights[index],
            "index": index,
        }

    def digest(self) -> str:
        """sha256 over everything a member learns from: embeddings, pairs, targets, weights and parts."""
        content = hashlib.sha256()
        parts = [*self.images, *self.reference, *self.reconstruction, self.targets, self.weights, *self.part.values()]
        for tensor in parts:
            content.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
            content.update(np.ascontiguousarray(tensor.numpy()).data)
        return content.hexdigest()

    def batches(self, batch_size: int = 1024) -> Iterator[Batch]:
        """All pairs in corpus order."""
        for index in torch.arange(self.n_pairs).split(batch_size):
            yield self.batch(index)

    def train_dataloader(self) -> DataLoader:
        """Training pairs in an order that is new every epoch and depends on the seed alone."""
        return self._loader("train", self.seed)

    def val_dataloader(self) -> DataLoader:
        """Validation pairs in corpus order."""
        return self._loader("val")

    def test_dataloader(self) -> DataLoader:
        """Test pairs in corpus order."""
        return self._loader("test")

    def _loader(self, part: str, seed: int | None = None) -> DataLoader:
        sampler = _IndexBatches(self.part[part], self.batch_size, seed)
        return DataLoader(_ByIndex(self), sampler=sampler, batch_size=None, num_workers=0)
