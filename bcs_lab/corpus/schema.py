"""What a corpus is once it is read: pairs, answers, rationales, and how to find the images."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bcs_lab.corpus.images import DEFAULT_MAX_IMAGE_PIXELS
from bcs_lab.errors import CorpusError, Problem
from bcs_lab.teachers.protocol import BCS12, Protocol

#: The two columns that hold image paths.
PATH_COLUMNS = ("reference_path", "reconstruction_path")

#: The columns every manifest has, in this order; all text. An unknown value is the text ``na``.
PAIR_COLUMNS = ("pair_id", "method", "subject", "concept", "rank", "candidate", *PATH_COLUMNS)


@dataclass(frozen=True)
class ShippedEmbeddings:
    """Embeddings that travel with a bundle.

    Attributes:
        name: the encoder's name, such as ``efficientnet_lite2``.
        fingerprint: what produced the numbers (JSON-able).
        images: float16 ``[n_images, dim]``, one row a distinct image, exactly as stored (a read-only memory map).
        reference: int64 ``[n_pairs]``, the row of ``images`` of each pair's reference.
        reconstruction: int64 ``[n_pairs]``, likewise for the reconstruction.
    """

    name: str
    fingerprint: dict[str, Any]
    images: np.ndarray
    reference: np.ndarray
    reconstruction: np.ndarray


@dataclass(frozen=True)
class ShippedNegatives:
    """Similarities of known negatives, see :mod:`bcs_lab.negatives`.

    Attributes:
        pairs: int64 ``[m, 2]``, the pair whose reference, and the pair whose reconstruction.
        values: float32 ``[m, n_names]``, columns as those of the corpus' pairs.
    """

    pairs: np.ndarray
    values: np.ndarray

    def subset(self, rows: np.ndarray, n: int) -> ShippedNegatives:
        """Those of which both pairs are among ``rows`` (positions, ascending) of ``n``, numbered anew."""
        place = np.full(n, -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        pairs = place[self.pairs]
        kept = (pairs >= 0).all(axis=1)
        return ShippedNegatives(pairs[kept], self.values[kept])


@dataclass(frozen=True)
class ShippedSimilarities:
    """Similarities of the pairs that travel with a bundle.

    Attributes:
        name: the encoder's name.
        fingerprint: what produced the numbers (JSON-able).
        names: of the similarities, in the order of the columns.
        values: float32 ``[n_pairs, n_names]``, exactly as stored (a read-only memory map), in the corpus' order.
        negatives: the same of known negatives, where these travel too.
    """

    name: str
    fingerprint: dict[str, Any]
    names: tuple[str, ...]
    values: np.ndarray
    negatives: ShippedNegatives | None = None


@dataclass
class Corpus:
    """Pairs with their teachers' answers.

    Attributes:
        name: ``brainbank``, or the folder name of a manifest; a bundle keeps the name of the corpus it was made from.
        pairs: ``PAIR_COLUMNS`` then any extra columns, all text (object dtype), sorted by ``pair_id`` (code point
            order) with a RangeIndex. Without images the two path columns hold ``""``.
        teachers: names in declared order.
        answers: float32 ``[n_pairs, n_teachers, n_questions]``, values 0, 0.5, 1 (eq. 7); NaN where missing.
        rationales: object ``[n_pairs, n_teachers, n_questions]``, text, ``""`` where there is none.
        protocol: the questions, in the order of the last axis.
        root: folder that relative image paths start at; ``None`` for a corpus without images.
        where: origin of each pair for messages, such as ``manifest.csv:7``.
        shipped: embeddings that travel with the corpus, by encoder name.
        shipped_similarities: likewise similarities of the pairs.
        stand_ins: whether another encoder's embeddings may stand in for those of a missing one.
        simulated_teachers: whether the answers were computed rather than given by annotators.
        card: data card of a bundle.
        skipped: rows and records left out under ``on_bad_row=skip``.
        on_bad_row: ``error`` or ``skip``.
        max_image_pixels: size limit handed to :func:`bcs_lab.corpus.images.load_image`.
        found_paths: manifest path text -> the file really meant, where the two differ in Unicode composition.
        sources: text of ``sources.csv``, where the corpus has one.
        card_extra: the free text of a bundle's data card.
        truth: float32 ``[n_pairs, n_questions]``, the right answers where they are known by construction (0, 0.5, 1;
            NaN where they cannot be known); ``None`` for a corpus of real pairs.
    """

    name: str
    pairs: pd.DataFrame
    teachers: tuple[str, ...]
    answers: np.ndarray
    rationales: np.ndarray
    protocol: Protocol = BCS12
    root: Path | None = None
    where: list[str] = field(default_factory=list)
    shipped: dict[str, ShippedEmbeddings] = field(default_factory=dict)
    stand_ins: bool = False
    simulated_teachers: bool = False
    card: str | None = None
    skipped: list[Problem] = field(default_factory=list)
    on_bad_row: str = "error"
    max_image_pixels: int = DEFAULT_MAX_IMAGE_PIXELS
    found_paths: dict[str, Path] = field(default_factory=dict)
    sources: str | None = None
    card_extra: str | None = None
    truth: np.ndarray | None = None
    shipped_similarities: dict[str, ShippedSimilarities] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.pairs)

    def subset(self, keep: np.ndarray) -> Corpus:
        """The pairs where ``keep`` (bool ``[n_pairs]``) is true, in the same order; everything else is unchanged."""
        keep = np.asarray(keep)
        if keep.dtype != bool or keep.shape != (len(self),):
            raise ValueError(
                f"Expected `keep` to be a bool array of shape ({len(self)},) but got {keep.dtype} {keep.shape}."
            )
        rows = np.flatnonzero(keep)
        shipped = {
            name: replace(item, reference=item.reference[rows], reconstruction=item.reconstruction[rows])
            for name, item in self.shipped.items()
        }
        similarities = {
            name: replace(
                item,
                values=item.values[rows],
                negatives=None if item.negatives is None else item.negatives.subset(rows, len(self)),
            )
            for name, item in self.shipped_similarities.items()
        }
        return replace(
            self,
            pairs=self.pairs.iloc[rows].reset_index(drop=True),
            answers=self.answers[rows],
            rationales=self.rationales[rows],
            where=[self.where[row] for row in rows] if self.where else [],
            shipped=shipped,
            shipped_similarities=similarities,
            truth=None if self.truth is None else self.truth[rows],
        )

    def reference_file(self, i: int) -> Path:
        """Absolute path of the reference image of pair ``i``."""
        return self._file("reference_path", i)

    def reconstruction_file(self, i: int) -> Path:
        """Absolute path of the reconstruction of pair ``i``."""
        return self._file("reconstruction_path", i)

    def problem(self, i: int, message: str) -> Problem:
        """A problem of pair ``i``, placed at its row where that is known."""
        where = self.where[i] if self.where else self.name
        file, colon, row = where.rpartition(":")
        pair_id = str(self.pairs["pair_id"].iloc[i])
        if colon and row.isdigit():
            return Problem(file, int(row), message, pair_id)
        return Problem(where, None, message, pair_id)

    def _file(self, column: str, i: int) -> Path:
        text = str(self.pairs[column].iloc[i])
        if self.root is None or not text:
            raise CorpusError(
                f"The corpus {self.name!r} has no images (pair {self.pairs['pair_id'].iloc[i]!r}): it ships embeddings "
                "only. Use one of its encoders, or a corpus with images (corpus=manifest corpus.root=DIR)."
            )
        return self.found_paths.get(text) or self.root / text
