"""Similarities of a corpus' pairs: shipped with the corpus, stored, or computed from the images.

The store keeps one row a pair and describer, under the SHA-256 of both images' keys, reference first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bcs_lab.corpus.images import load_image
from bcs_lab.corpus.schema import Corpus
from bcs_lab.embeddings import DECODERS, CorpusImages, all_or_error, hash_images, without_broken
from bcs_lab.encoders import encoder_spec
from bcs_lab.errors import EncoderError, ImageError
from bcs_lab.similarity.describer import LIBRARY, Describer, Description, DescriptionMemory, load_describer
from bcs_lab.store import EmbeddingStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PairSimilarities:
    """One encoder's similarities of a corpus' pairs.

    Attributes:
        name: the encoder asked for.
        label: what tables show: the name, with ``(stand-in …)`` where another encoder's similarities are used.
        stand_in: that other encoder, or ``None``.
        fingerprint: what made the numbers.
        names: of the similarities, distinct.
        values: float32 ``[n_pairs, n_names]``, in the corpus' order of pairs.
    """

    name: str
    label: str
    stand_in: str | None
    fingerprint: dict[str, Any]
    names: tuple[str, ...]
    values: np.ndarray


def similarity_matrix(parts: Sequence[PairSimilarities]) -> np.ndarray:
    """All similarities of the pairs side by side: float32 ``[n_pairs, d]``."""
    return np.concatenate([part.values for part in parts], axis=1).astype(np.float32)


def similarity_names(parts: Sequence[PairSimilarities]) -> list[str]:
    """Names of the columns of :func:`similarity_matrix`: ``encoder.similarity``."""
    return [f"{part.name}.{name}" for part in parts for name in part.names]


def pair_key(reference: bytes, reconstruction: bytes) -> bytes:
    """Identity of a pair in the store, from the identities of its images (32 bytes each)."""
    return hashlib.sha256(reference + reconstruction).digest()


def pair_similarities(
    corpus: Corpus,
    names: Sequence[str],
    *,
    store: EmbeddingStore | None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    stand_in: Mapping[str, str] | None = None,
    device: str = "auto",
    batch_size: int = 32,
    dtype: str | None = None,
    progress: bool = True,
    only_stored: bool = False,
    mirror: bool = False,
) -> tuple[Corpus, list[PairSimilarities]]:
    """Similarities of a corpus' pairs by each of the named encoders.

    Args:
        corpus: the pairs.
        names: encoders, in the order wanted.
        store: where similarities are looked up and kept; ``None`` computes without keeping.
        options: per name, see :func:`bcs_lab.similarity.load_describer`.
        stand_in: encoder -> replacement, used only on corpora with ``stand_ins``.
        device: where encoders run.
        batch_size: images a batch, 1 or more.
        dtype: of encoders without an option ``dtype``.
        progress: show a bar with rate and remaining time when standard error is a terminal.
        only_stored: compute nothing; use only what is shipped or stored.
        mirror: see :func:`bcs_lab.similarity.load_describer`.

    Returns:
        The corpus, without the pairs of broken images under ``on_bad_row=skip``, and one item a name.

    Raises:
        EncoderError: names are unknown, an encoder shows no stages, or its similarities cannot be had; lists every one,
            and nothing is computed.
        CorpusError: images are missing or broken under ``on_bad_row=error``; lists every one. What could be compared is
            in the store by then.
        StoreError: the store cannot be read or written.
    """
    if batch_size < 1:
        raise EncoderError(f"Expected encoder.batch_size to be 1 or more but got {batch_size}.")
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise EncoderError(f"Expected each encoder once but got {', '.join(repeated)} more than once.")
    if store is None:
        with tempfile.TemporaryDirectory() as folder:
            return pair_similarities(
                corpus, names, store=EmbeddingStore(folder), options=options, stand_in=stand_in, device=device,
                batch_size=batch_size, dtype=dtype, progress=progress, only_stored=only_stored, mirror=mirror,
            )  # fmt: skip
    job = _Job(corpus, store, options or {}, stand_in or {}, device, batch_size, dtype, progress, only_stored, mirror)
    found = all_or_error(names, job.resolve)
    filled = []
    while found:
        # Taken off the list, so that a network's memory is free again before the next one computes.
        item = found.pop(0)
        filled.append(job.fill(item) if isinstance(item, _Loaded) else item)
    return job.finish(filled)


@dataclass(frozen=True)
class _Loaded:
    """A describer that is ready to compute."""

    name: str
    label: str
    stand_in: str | None
    describer: Describer


class _Job:
    """One call of :func:`pair_similarities`: what several encoders share is done once."""

    def __init__(
        self, corpus: Corpus, store: EmbeddingStore, options: Mapping[str, Mapping[str, Any]],
        stand_in: Mapping[str, str], device: str, batch_size: int, dtype: str | None, progress: bool, only_stored: bool,
        mirror: bool,
    ) -> None:  # fmt: skip
        self.corpus, self.store, self.options, self.stand_in = corpus, store, options, stand_in
        self.device, self.batch_size, self.dtype = device, batch_size, dtype
        self.progress, self.only_stored, self.mirror = progress, only_stored, mirror
        self._pairs: _Pairs | None = None

    def resolve(self, name: str) -> PairSimilarities | _Loaded:
        """Find one encoder's similarities, or load what computes them; with a stand-in where that is allowed."""
        try:
            return self._own(name)
        except EncoderError as error:
            other = self.stand_in.get(name) if self.corpus.stand_ins else None
            if other is None:
                raise
            logger.warning(
                "STAND-IN: corpus %s cannot give similarities of %s, so %s takes its place; results are labelled "
                "'%s (stand-in %s)'.", self.corpus.name, name, other, name, other,
            )  # fmt: skip
            logger.debug("why %s cannot be had: %s", name, error)
            try:
                own = self._own(other)
            except EncoderError as second:
                raise EncoderError(f"{error}\nIts stand-in {other!r} cannot be had either: {second}") from second
            return replace(own, name=name, label=f"{name} (stand-in {other})", stand_in=other)

    def _own(self, name: str) -> PairSimilarities | _Loaded:
        shipped = self.corpus.shipped_similarities.get(name)
        if shipped is not None and self._agrees(name, shipped.fingerprint):
            return PairSimilarities(name, name, None, dict(shipped.fingerprint), shipped.names, shipped.values)
        if self.corpus.root is None:
            if shipped is not None:
                raise EncoderError(
                    f"The corpus {self.corpus.name!r} ships similarities of {name}, but not made with the asked "
                    f"{ {**self._wanted(name), 'mirror': self.mirror} }, and has no images to compute them from; leave "
                    "the options out."
                )
            raise EncoderError(
                f"Similarities of encoder {name!r} cannot be had: corpus {self.corpus.name!r} has no images to compute "
                f"them from. It ships: {', '.join(self.corpus.shipped_similarities) or 'none'}. Choose one of these, "
                "use a corpus with images (corpus=manifest corpus.root=DIR), or export the bundle again with "
                f"similarities=[{name}]."
            )
        spec = encoder_spec(name)
        if self.only_stored:
            return self._stored(name, spec.library, {spec.model, f"{spec.model}/{spec.pretrained}"})
        describer = load_describer(
            name, options=self.options.get(name), device=self.device, dtype=self.dtype, mirror=self.mirror
        )
        return _Loaded(name, name, None, describer)

    def _wanted(self, name: str) -> dict[str, Any]:
        """What is asked for that a fingerprint answers for."""
        given = self.options.get(name) or {}
        return {key: given[key] for key in ("pooling", "revision", "dtype") if given.get(key) is not None}

    def _agrees(self, name: str, fingerprint: Mapping[str, Any]) -> bool:
        # Pixels are not pooled and have no such entry.
        if fingerprint.get("mirror", self.mirror) != self.mirror:
            return False
        return all(str(fingerprint["encoder"].get(key)) == str(value) for key, value in self._wanted(name).items())

    # --- from images -------------------------------------------------------------------------------------------------

    @property
    def pairs(self) -> _Pairs:
        """The corpus' distinct pairs of images, hashed once."""
        if self._pairs is None:
            self._pairs = _Pairs(hash_images(self.corpus))
        return self._pairs

    def _stored(self, name: str, library: str, models: set[str]) -> PairSimilarities:
        """Similarities of an earlier run, without loading the encoder."""
        matches = []
        for fingerprint in self.store.fingerprints():
            if fingerprint.get("library") != LIBRARY or not self._agrees(name, fingerprint):
                continue
            encoder = fingerprint["encoder"]
            made_by = str(encoder.get("library", "")).removesuffix("_pytorch").removeprefix("bcs_lab.")
            if made_by != library or encoder.get("model") not in models:
                continue
            values, present = self.store.get(fingerprint, self.pairs.keys)
            if present.all():
                matches.append(self._of(name, name, None, fingerprint, values))
        if len(matches) == 1:
            return matches[0]
        if matches:
            variants = "\n".join(f"  - {json.dumps(match.fingerprint, sort_keys=True)}" for match in matches)
            raise EncoderError(
                f"The store holds {len(matches)} variants of the similarities of {name!r} for this corpus; name one "
                f"with encoder.options.{name}:\n{variants}"
            )
        raise EncoderError(
            f"The store {self.store.root} does not hold similarities of {name!r} for all {len(self.pairs.keys)} pairs "
            f"of corpus {self.corpus.name!r}, and encoder=stored computes nothing; use encoder={name}."
        )

    def _of(
        self, name: str, label: str, stand_in: str | None, fingerprint: Mapping[str, Any], values: np.ndarray
    ) -> PairSimilarities:
        """Values of the distinct pairs, spread over the corpus' rows; those of pairs that have none are zeros."""
        rows = np.zeros((len(self.corpus), values.shape[1]), dtype=np.float32)
        where = self.pairs.rows
        rows[where >= 0] = values[where[where >= 0]]
        return PairSimilarities(name, label, stand_in, dict(fingerprint), tuple(fingerprint["names"]), rows)

    def fill(self, loaded: _Loaded) -> PairSimilarities:
        """Similarities of all pairs, from the store or computed."""
        describer, begun = loaded.describer, time.monotonic()
        label = f"similarities of {describer.name}"
        filled = self.store.fill(
            describer.fingerprint, self.pairs.keys, lambda todo: self._compute(describer, todo), label=label
        )
        seconds = time.monotonic() - begun
        logger.info(
            "%s: %d pairs, %d distinct, %d from the store, %d compared in %.1f s (%.1f pairs/s)",
            label, len(self.corpus), len(self.pairs.keys), filled.hits, filled.computed, seconds,
            filled.computed / seconds if seconds > 0 else 0.0,
        )  # fmt: skip
        return self._of(loaded.name, loaded.label, loaded.stand_in, describer.fingerprint, filled.embeddings)

    def _compute(self, describer: Describer, todo: list[int]) -> Iterator[tuple[list[int], np.ndarray]]:
        # Pairs of one reference come together, so that it is described once and need not be kept for long.
        ordered = sorted(todo, key=lambda position: self.pairs.images[position])
        size = max(self.batch_size // 2, 1)
        chunks = [ordered[start : start + size] for start in range(0, len(ordered), size)]
        show = self.progress and sys.stderr.isatty()
        if not show:
            logger.info("%s: comparing %d pairs on %s", describer.name, len(todo), describer.device)
        from tqdm import tqdm

        with (
            tqdm(total=len(todo), desc=describer.name, unit="pair", disable=not show) as bar,
            ThreadPoolExecutor(DECODERS, thread_name_prefix="decode") as pool,
        ):
            work = _Work(describer, self.pairs, self.corpus.max_image_pixels, pool)
            try:
                for number, chunk in enumerate(chunks):
                    work.decode(chunk)
                    # The next images are decoded while the network computes.
                    work.decode(chunks[number + 1] if number + 1 < len(chunks) else [])
                    yield work.compare(chunk)
                    bar.update(len(chunk))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    # --- bad images --------------------------------------------------------------------------------------------------

    def finish(self, found: Sequence[PairSimilarities]) -> tuple[Corpus, list[PairSimilarities]]:
        """Leave out or report pairs of broken images."""
        if self._pairs is None:
            return self.corpus, list(found)
        corpus, bad = without_broken(self.corpus, self._pairs.corpus_images)
        return corpus, [replace(item, values=item.values[~bad]) for item in found]


class _Pairs:
    """Distinct pairs of images of a corpus, without those of which a file cannot be read.

    Attributes:
        corpus_images: the images, and what is wrong with some.
        images: per distinct pair, positions of reference and reconstruction among the images.
        keys: per distinct pair, its key in the store.
        rows: int64, per pair of the corpus, its distinct pair, or -1.
    """

    def __init__(self, images: CorpusImages) -> None:
        position: dict[tuple[int, int], int] = {}
        rows = []
        for reference, reconstruction in images.slots:
            if isinstance(reference, str) or isinstance(reconstruction, str):
                rows.append(-1)
            else:
                rows.append(position.setdefault((reference, reconstruction), len(position)))
        self.corpus_images = images
        self.images = list(position)
        self.keys = [pair_key(images.keys[one], images.keys[two]) for one, two in position]
        self.rows = np.array(rows, dtype=np.int64)


class _Work:
    """Describes images as pairs need them, each one once as long as memory allows."""

    def __init__(self, describer: Describer, pairs: _Pairs, max_pixels: int, pool: ThreadPoolExecutor) -> None:
        self.describer, self.pairs, self.max_pixels, self.pool = describer, pairs, max_pixels, pool
        self.memory = DescriptionMemory()
        self.decoding: dict[int, Future[np.ndarray | None]] = {}

    def decode(self, chunk: Sequence[int]) -> None:
        """Begin to decode the images of these pairs, as far as they are not known."""
        for image in self._images(chunk):
            if image not in self.memory and image not in self.decoding and not self._broken(image):
                self.decoding[image] = self.pool.submit(self._prepare, image)

    def compare(self, chunk: list[int]) -> tuple[list[int], np.ndarray]:
        """Positions of the pairs of which both images are good, and their similarities."""
        self.decode(chunk)
        known: dict[int, Description] = {}
        inputs: dict[int, np.ndarray] = {}
        for image in self._images(chunk):
            description = self.memory.get(image)
            if description is not None:
                known[image] = description
            elif image in self.decoding:
                array = self.decoding.pop(image).result()
                if array is not None:
                    inputs[image] = array
        if inputs:
            names = [str(self.pairs.corpus_images.files[image]) for image in inputs]
            found = self.describer.forward(np.stack(list(inputs.values())), names)
            known |= dict(zip(inputs, found, strict=True))
            for image in inputs:
                self.memory.put(image, known[image])
        good = [position for position in chunk if all(image in known for image in self.pairs.images[position])]
        pairs = [(known[one], known[two]) for one, two in (self.pairs.images[position] for position in good)]
        return good, self.describer.compare_all(pairs)

    def _images(self, chunk: Sequence[int]) -> list[int]:
        return list(dict.fromkeys(image for position in chunk for image in self.pairs.images[position]))

    def _broken(self, image: int) -> bool:
        images = self.pairs.corpus_images
        return images.keys[image] in images.broken

    def _prepare(self, image: int) -> np.ndarray | None:
        images = self.pairs.corpus_images
        try:
            return self.describer.prepare(load_image(images.files[image], max_pixels=self.max_pixels))
        except ImageError as error:
            # Collected, so that one broken image hides neither the others nor the good ones.
            images.broken[images.keys[image]] = str(error)
            return None
