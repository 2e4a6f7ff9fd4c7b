"""Embeddings or similarities, targets and weights as batches for Lightning, by index: no workers are needed.

Pair features of embeddings are made from each batch and never kept; similarities are features already.
"""

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
from bcs_lab.features import feature_dim, fused_features
from bcs_lab.heads.base import NO_GROUP, ExtraRows, TrainingRows
from bcs_lab.split import Split

if TYPE_CHECKING:
    from bcs_lab.embeddings import PairEmbeddings
    from bcs_lab.similarity import PairSimilarities

#: One batch: ``ref`` and ``rec`` (a list of [n, dim] an encoder each) or ``similarity`` [n, dim], ``target`` and
#: ``weight`` [n, Q], ``index`` [n].
Batch = dict[str, Any]


def features_of(batch: Batch) -> Tensor:
    """What a head takes of a batch: [n, in_dim]."""
    if "similarity" in batch:
        return batch["similarity"]
    return fused_features(list(zip(batch["ref"], batch["rec"], strict=True)))


class _ByIndex(Dataset):
    """Takes a whole batch of positions at once."""

    def __init__(self, data: BCSDataModule) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data.targets)

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
        embeddings: per encoder, in fusion order; not looked at where similarities are given.
        targets: [n_pairs, n_questions] consensus in [0, 1], NaN where missing.
        weights: [n_pairs, n_questions] agreement weights, 0 where missing.
        split: which pairs are train, val and test.
        batch_size: pairs a step (512 in Table 13).
        seed: seed of the order of training pairs; set anew for every member.
        similarities: per encoder; they are the features then, side by side in this order.
        concepts: [n_pairs] labels, for heads that draw or hold out whole concepts; by default the split's groups.
        extra: further training rows over the same similarities, that are no pairs of the corpus.

    Raises:
        CorpusError: the parts do not fit together, or a similarity is no number.
        ConfigError: the batch size is not a positive whole number, or extra rows are given for embeddings.
    """

    def __init__(
        self,
        embeddings: Sequence[PairEmbeddings],
        targets: NDArray[np.floating],
        weights: NDArray[np.floating],
        split: Split,
        batch_size: int = 512,
        seed: int = 42,
        *,
        similarities: Sequence[PairSimilarities] | None = None,
        concepts: Sequence[Any] | NDArray[Any] | None = None,
        extra: ExtraRows | None = None,
    ) -> None:
        super().__init__()
        from bcs_lab.embeddings import canonical

        #: Kind of the features, ``embedding`` or ``similarity``.
        self.kind = "embedding" if similarities is None else "similarity"
        if similarities is not None:
            embeddings = ()
        if not (embeddings or similarities):
            what = "embeddings" if similarities is None else "similarities"
            raise CorpusError(f"There are no {what} to train on; expected those of at least one encoder.")
        if extra is not None and similarities is None:
            raise ConfigError("head.negatives: further training rows are for features=similarity only.")
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
        labels = split.groups if concepts is None else np.asarray(concepts, dtype=object)
        if labels.shape != (n,):
            raise CorpusError(f"Expected one concept for each of {n} pairs, got {labels.shape}.")
        _, groups = np.unique([str(label) for label in labels], return_inverse=True)
        self.groups = torch.from_numpy(np.asarray(groups, dtype=np.int64))
        #: Positions of what is learned from: the training part, and the extra rows behind the corpus' pairs.
        self.learned = self.part["train"]
        #: ``encoder.name`` of every similarity.
        self.names = [f"{part.name}.{name}" for part in similarities or () for name in part.names]
        self.similarity = None if similarities is None else torch.from_numpy(_matrix(similarities, n))
        if extra is not None:
            self._append(extra)

    def _append(self, extra: ExtraRows) -> None:
        assert self.similarity is not None
        x, y, weight = (np.asarray(part, dtype=np.float32) for part in (extra.x, extra.y, extra.weight))
        cells = (len(x), self.n_questions)
        if x.shape != (len(x), self.in_dim) or y.shape != cells or weight.shape != cells or not np.isfinite(x).all():
            raise CorpusError(
                f"Expected further training rows as finite [m, {self.in_dim}] with answers and weights "
                f"[m, {self.n_questions}], got {x.shape}, {y.shape} and {weight.shape}."
            )
        missing = np.isnan(y)
        self.learned = torch.cat([self.learned, torch.arange(self.n_pairs, self.n_pairs + len(x))])
        self.similarity = torch.cat([self.similarity, torch.from_numpy(x)])
        self.targets = torch.cat([self.targets, torch.from_numpy(np.where(missing, np.float32(0), y))])
        self.weights = torch.cat([self.weights, torch.from_numpy(np.where(missing, np.float32(0), weight))])
        self.groups = torch.cat([self.groups, torch.full((len(x),), NO_GROUP)])

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
        return len(self.split.assignment)

    @property
    def n_questions(self) -> int:
        """Questions a pair."""
        return int(self.targets.shape[1])

    @property
    def in_dim(self) -> int:
        """Length of the features."""
        return feature_dim(self.dims) if self.similarity is None else int(self.similarity.shape[1])

    def batch(self, index: Tensor) -> Batch:
        """The pairs at these positions (int64 [n])."""
        answers = {"target": self.targets[index], "weight": self.weights[index], "index": index}
        if self.similarity is not None:
            return {"similarity": self.similarity[index], **answers}
        return {
            "ref": [images[rows[index]] for images, rows in zip(self.images, self.reference, strict=True)],
            "rec": [images[rows[index]] for images, rows in zip(self.images, self.reconstruction, strict=True)],
            **answers,
        }

    def training_rows(self) -> TrainingRows:
        """All that may be learned from at once, for heads that do not take it in batches."""
        batch = self.batch(self.learned)
        weight = batch["weight"].numpy()
        ends = np.cumsum([4 * dim + 1 for dim in self.dims])
        return TrainingRows(
            x=features_of(batch).numpy(),
            y=np.where(weight > 0, batch["target"].numpy(), np.float32(np.nan)),
            weight=weight,
            groups=self.groups[self.learned].numpy(),
            cosines=tuple((ends - 1).tolist()),
            directions=self._directions(),
        )

    def _directions(self) -> NDArray[np.integer] | None:
        if self.similarity is None:
            return None
        from bcs_lab.similarity import directions

        return directions(self.names)

    def digest(self) -> str:
        """sha256 over everything a member learns from: features, targets, weights, parts and concepts."""
        content = hashlib.sha256()
        features = [*self.images, *self.reference, *self.reconstruction]
        if self.similarity is not None:
            features.append(self.similarity)
        parts = [*features, self.targets, self.weights, *self.part.values(), self.groups]
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
        return self._loader(self.learned, self.seed)

    def val_dataloader(self) -> DataLoader:
        """Validation pairs in corpus order."""
        return self._loader(self.part["val"])

    def test_dataloader(self) -> DataLoader:
        """Test pairs in corpus order."""
        return self._loader(self.part["test"])

    def _loader(self, indices: Tensor, seed: int | None = None) -> DataLoader:
        sampler = _IndexBatches(indices, self.batch_size, seed)
        return DataLoader(_ByIndex(self), sampler=sampler, batch_size=None, num_workers=0)


def _matrix(similarities: Sequence[PairSimilarities], n: int) -> NDArray[np.float32]:
    """The similarities of all encoders side by side."""
    for part in similarities:
        if np.shape(part.values) != (n, len(part.names)):
            raise CorpusError(
                f"encoder {part.label}: similarities of shape {np.shape(part.values)}, expected [{n}, "
                f"{len(part.names)}] as the split has {n} pairs; they do not belong to the same corpus."
            )
        if not np.isfinite(part.values).all():
            count = int((~np.isfinite(part.values)).sum())
            raise CorpusError(f"encoder {part.label}: {count} similarities are not finite numbers; compute them again.")
    return np.concatenate([np.asarray(part.values, dtype=np.float32) for part in similarities], axis=1)
