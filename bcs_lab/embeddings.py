"""Embeddings of a corpus' pairs: found where they travel with the corpus, brought in, stored, or computed.

For each encoder asked for, in this order: embeddings shipped with the corpus; embeddings imported under that name for
these pairs; the store, filled from the images; on embedded corpora only, a stand-in, which every label then shows.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bcs_lab.corpus.images import file_sha256, load_image
from bcs_lab.corpus.schema import Corpus
from bcs_lab.encoders import LIBRARIES, encoder_spec, list_encoders, load_encoder, unknown_encoder
from bcs_lab.encoders.base import FrozenEncoder, normalise
from bcs_lab.encoders.npz import ROLES, read_npz
from bcs_lab.errors import CorpusError, EncoderError, ImageError, StoreError, listing
from bcs_lab.store import EmbeddingStore

logger = logging.getLogger(__name__)

#: Library that fingerprints of imported embeddings name.
IMPORTED = "npz"
#: Threads that decode and resize while the network computes.
DECODERS = 2
_NOT_NAMES = frozenset({"fusion", "embedded", "stored", "all", *LIBRARIES})


@dataclass(frozen=True)
class PairEmbeddings:
    """One encoder's embeddings of a corpus' pairs; images that recur are held once.

    Attributes:
        name: the encoder asked for.
        label: what tables show: the name, with ``(stand-in …)`` where another encoder's embeddings are used.
        stand_in: that other encoder, or ``None``.
        fingerprint: what made the numbers.
        images: ``[n_images, dim]`` unit vectors as stored: float16 from a bundle, float32 otherwise.
        reference: int64 ``[n_pairs]``, row of ``images``, in the corpus' order of pairs.
        reconstruction: int64 ``[n_pairs]``, likewise.
    """

    name: str
    label: str
    stand_in: str | None
    fingerprint: dict[str, Any]
    images: np.ndarray
    reference: np.ndarray
    reconstruction: np.ndarray

    @property
    def dim(self) -> int:
        """Length of one embedding."""
        return int(self.images.shape[1])


@dataclass(frozen=True)
class ImportSummary:
    """What :func:`import_npz` did.

    Attributes:
        name: the name the embeddings now have.
        pairs: number of pairs of the corpus.
        dim: length of a vector.
        added: pairs that were new under this name.
        unchanged: pairs that were there with the same values.
        replaced: pairs whose values were replaced (``overwrite``).
    """

    name: str
    pairs: int
    dim: int
    added: int
    unchanged: int
    replaced: int

    def __str__(self) -> str:
        return (
            f"{self.name}: {_count(self.pairs, 'pair')} of {_count(self.dim, 'value')} "
            f"({self.added} new, {self.unchanged} unchanged, {self.replaced} replaced)"
        )


def canonical(vectors: np.ndarray) -> np.ndarray:
    """Float32 unit rows, rounded to float16 first.

    The one rule by which a float16 bundle, the float32 store and a computation on another machine give a model the same
    numbers.

    Args:
        vectors: ``[n, dim]`` of any float type.
    """
    return normalise(np.asarray(vectors).astype(np.float16).astype(np.float32))


def pair_embeddings(
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
) -> tuple[Corpus, list[PairEmbeddings]]:
    """Embeddings of a corpus' pairs by each of the named encoders.

    Args:
        corpus: the pairs.
        names: encoders or imported names, in the order wanted.
        store: where vectors are looked up and kept; ``None`` computes without keeping.
        options: per name, see :func:`bcs_lab.encoders.load_encoder`.
        stand_in: encoder -> replacement, used only on corpora with ``stand_ins``.
        device: where encoders run.
        batch_size: images a batch, 1 or more.
        dtype: of encoders without an option ``dtype``.
        progress: show a bar with rate and remaining time when standard error is a terminal.
        only_stored: compute nothing; use only what is shipped, imported or stored.

    Returns:
        The corpus, without the pairs of broken images under ``on_bad_row=skip``, and one item a name.

    Raises:
        EncoderError: names are unknown, or their embeddings cannot be had; lists every one, and nothing is computed.
        CorpusError: images are missing or broken under ``on_bad_row=error``; lists every one. What could be embedded is
            in the store by then.
        StoreError: the store cannot be read or written.
    """
    if batch_size < 1:
        raise EncoderError(f"Expected encoder.batch_size to be 1 or more but got {batch_size}.")
    repeated = sorted({name for name in names if list(names).count(name) > 1})
    if repeated:
        raise EncoderError(f"Expected each encoder once but got {', '.join(repeated)} more than once.")
    if not only_stored:
        # Before a good name's weights are fetched, which may take minutes.
        all_or_error(names, lambda name: _check_known(name, corpus, store))
    if store is None:
        with tempfile.TemporaryDirectory() as folder:
            return pair_embeddings(
                corpus, names, store=EmbeddingStore(folder), options=options, stand_in=stand_in, device=device,
                batch_size=batch_size, dtype=dtype, progress=progress, only_stored=only_stored,
            )  # fmt: skip
    job = _Job(corpus, store, options or {}, stand_in or {}, device, batch_size, dtype, progress, only_stored)
    found = all_or_error(names, job.resolve)
    filled: list[PairEmbeddings | _Pending] = []
    while found:
        # Taken off the list, so that a network's memory is free again before the next one computes.
        item = found.pop(0)
        filled.append(job.fill(item) if isinstance(item, _Loaded) else item)
    return job.finish(filled)


_T = TypeVar("_T")


def all_or_error(names: Sequence[str], work: Callable[[str], _T]) -> list[_T]:
    """``work`` of every name; one error that lists those of all names that have one."""
    done, errors = [], []
    for name in names:
        try:
            done.append(work(name))
        except EncoderError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        parts = "\n".join("- " + str(error).replace("\n", "\n  ") for error in errors)
        raise EncoderError(f"{len(errors)} of {len(names)} encoders cannot be had:\n{parts}") from errors[0]
    return done


def stored_names(store: EmbeddingStore, corpus: Corpus) -> list[str]:
    """Names under which embeddings of all of the corpus' pairs were imported, in alphabetical order."""
    keys = _import_keys(corpus)
    return sorted({name for name, item in _imports(store) if store.get(item, keys)[1].all()})


def import_npz(
    corpus: Corpus, path: str | Path, name: str, store: EmbeddingStore, overwrite: bool = False
) -> ImportSummary:
    """Put embeddings computed elsewhere into the store, tied to the corpus' pairs.

    Other pairs may have the same ids and relative paths, so the vectors are also tied to the corpus' folder, or to the
    corpus' name where it has no folder of images (bundles, brainbank). A folder that was moved needs a new import.

    Args:
        corpus: whose pairs the file describes; its images may be absent.
        path: an ``.npz`` with ``ids`` (pair ids, text ``[n]``, any order), ``reference`` and ``reconstruction`` (float
            ``[n, dim]``). Rows are L2-normalised and kept as float32.
        name: what to call them, as in ``encoder=stored encoder.names=[NAME]``.
        store: where they go.
        overwrite: replace other values of the same pairs under this name.

    Raises:
        EncoderError: the name is taken or not a plain identifier.
        CorpusError: everything wrong with the file, at once.
        StoreError: other values are stored under this name (without ``overwrite``), or the store cannot be written.
    """
    _check_name(name)
    path = Path(path)
    reference, reconstruction = read_npz(path, [str(pair_id) for pair_id in corpus.pairs["pair_id"]])
    vectors = normalise(np.concatenate([reference, reconstruction]))
    dim = vectors.shape[1]
    fingerprint = {"library": IMPORTED, "name": name, "model": f"{IMPORTED}-{name}", "dim": dim}
    for taken, other in _imports(store):
        if taken == name and other.get("dim") != dim:
            raise StoreError(
                f"{path}: its vectors have {dim} values, those stored under {name!r} have {other.get('dim')}; choose "
                "another encoder.name."
            )
    keys = _import_keys(corpus)
    stored, present = store.get(fingerprint, keys)
    n = len(corpus)
    here = present[:n] & present[n:]
    same = np.isclose(stored, vectors, rtol=0, atol=1e-6).all(axis=1)
    equal = here & same[:n] & same[n:]
    changed = (present[:n] | present[n:]) & ~equal
    if changed.any() and not overwrite:
        examples = ", ".join(corpus.pairs["pair_id"][changed].head(3))
        raise StoreError(
            f"{path}: other values are stored under {name!r} for {int(changed.sum())} of these pairs ({examples}…); "
            "choose another encoder.name, or overwrite=true to replace them."
        )
    write = np.flatnonzero(np.tile(~equal, 2))
    if len(write):
        store.put(fingerprint, [keys[i] for i in write], vectors[write])
    summary = ImportSummary(name, n, dim, int((~equal & ~changed).sum()), int(equal.sum()), int(changed.sum()))
    logger.info("imported from %s: %s", path, summary)
    return summary


# --- finding ---------------------------------------------------------------------------------------------------------


class _Job:
    """One call of :func:`pair_embeddings`: what several encoders share is done once."""

    def __init__(
        self, corpus: Corpus, store: EmbeddingStore, options: Mapping[str, Mapping[str, Any]],
        stand_in: Mapping[str, str], device: str, batch_size: int, dtype: str | None, progress: bool, only_stored: bool,
    ) -> None:  # fmt: skip
        self.corpus, self.store, self.options, self.stand_in = corpus, store, options, stand_in
        self.device, self.batch_size, self.dtype = device, batch_size, dtype
        self.progress, self.only_stored = progress, only_stored
        self._hashed: CorpusImages | None = None

    def resolve(self, name: str) -> PairEmbeddings | _Pending | _Loaded:
        """Find one encoder's vectors, or load what computes them; with a stand-in where that is allowed."""
        try:
            return self._own(name)
        except EncoderError as error:
            other = self.stand_in.get(name) if self.corpus.stand_ins else None
            if other is None:
                raise
            logger.warning(
                "STAND-IN: corpus %s cannot give %s, so %s takes its place; results are labelled '%s (stand-in %s)'.",
                self.corpus.name, name, other, name, other,
            )  # fmt: skip
            logger.debug("why %s cannot be had: %s", name, error)
            try:
                own = self._own(other)
            except EncoderError as second:
                raise EncoderError(f"{error}\nIts stand-in {other!r} cannot be had either: {second}") from second
            return replace(own, name=name, label=f"{name} (stand-in {other})", stand_in=other)

    def _own(self, name: str) -> PairEmbeddings | _Pending | _Loaded:
        shipped = self.corpus.shipped.get(name)
        if shipped is not None:
            if self._agrees(name, shipped.fingerprint):
                return PairEmbeddings(
                    name, name, None, dict(shipped.fingerprint), shipped.images, shipped.reference,
                    shipped.reconstruction,
                )  # fmt: skip
            if self.corpus.root is None:
                raise EncoderError(
                    f"The corpus {self.corpus.name!r} ships {name} made with "
                    f"{ {key: shipped.fingerprint.get(key) for key in self._wanted(name)} }, not with the asked "
                    f"{self._wanted(name)}, and has no images to compute it from; leave the options out."
                )
        imported = self._imported(name)
        if imported is not None:
            return imported
        if self.corpus.root is None or not _is_encoder(name):
            raise EncoderError(_absent(name, self.corpus, self.store))
        if self.only_stored:
            return self._stored(name)
        encoder = load_encoder(name, options=self.options.get(name), device=self.device, dtype=self.dtype)
        return _Loaded(name, name, None, encoder)

    def _wanted(self, name: str) -> dict[str, Any]:
        """Options that a fingerprint answers for."""
        given = self.options.get(name) or {}
        return {key: given[key] for key in ("pooling", "revision", "dtype") if given.get(key) is not None}

    def _agrees(self, name: str, fingerprint: Mapping[str, Any]) -> bool:
        return all(str(fingerprint.get(key)) == str(value) for key, value in self._wanted(name).items())

    def _imported(self, name: str) -> PairEmbeddings | None:
        keys = _import_keys(self.corpus)
        n = len(self.corpus)
        for imported, fingerprint in _imports(self.store):
            if imported != name:
                continue
            vectors, present = self.store.get(fingerprint, keys)
            if present.all():
                data = hashlib.sha256(np.ascontiguousarray(vectors).data).hexdigest()
                rows = np.arange(2 * n, dtype=np.int64)
                return PairEmbeddings(
                    name, name, None, {**fingerprint, "data": f"sha256:{data}"}, vectors, rows[:n], rows[n:]
                )
        return None

    # --- from images -------------------------------------------------------------------------------------------------

    @property
    def images(self) -> CorpusImages:
        """The corpus' distinct images, hashed once."""
        if self._hashed is None:
            self._hashed = hash_images(self.corpus)
        return self._hashed

    def fill(self, loaded: _Loaded) -> _Pending:
        """Vectors of all distinct images, from the store or computed."""
        encoder = loaded.encoder
        images, begun = self.images, time.monotonic()
        filled = self.store.fill(
            encoder.fingerprint, images.keys, lambda todo: self._compute(encoder, todo), label=encoder.name
        )
        seconds = time.monotonic() - begun
        logger.info(
            "%s: %d image slots, %d distinct images, %d from the store, %d embedded in %.1f s (%.1f images/s)",
            encoder.name, 2 * len(self.corpus), len(images.keys), filled.hits, filled.computed, seconds,
            filled.computed / seconds if seconds > 0 else 0.0,
        )  # fmt: skip
        return _Pending(
            loaded.name, loaded.label, loaded.stand_in, encoder.fingerprint, filled.embeddings, filled.present
        )

    def _stored(self, name: str) -> _Pending:
        """Vectors of an earlier run, without loading the encoder."""
        spec = encoder_spec(name)
        matches = []
        for fingerprint in self.store.fingerprints():
            model = str(fingerprint.get("model", ""))
            names = {spec.model, f"{spec.model}/{spec.pretrained}"}
            if str(fingerprint.get("library", "")).removesuffix("_pytorch").removeprefix("bcs_lab.") != spec.library:
                continue
            if model not in names or not self._agrees(name, fingerprint):
                continue
            vectors, present = self.store.get(fingerprint, self.images.keys)
            if present.all():
                matches.append(_Pending(name, name, None, fingerprint, vectors, present))
        if len(matches) == 1:
            return matches[0]
        if matches:
            variants = "\n".join(f"  - {json.dumps(match.fingerprint, sort_keys=True)}" for match in matches)
            raise EncoderError(
                f"The store holds {len(matches)} variants of {name!r} for this corpus; name one with "
                f"encoder.options.{name}.{{pooling,revision,dtype}}:\n{variants}"
            )
        raise EncoderError(
            f"The store {self.store.root} does not hold {name!r} for all {len(self.images.keys)} images of corpus "
            f"{self.corpus.name!r}, and encoder=stored computes nothing; fill it with bcs embed encoder={name}. "
            f"Imported for these pairs: {', '.join(stored_names(self.store, self.corpus)) or 'none'}."
        )

    def _compute(self, encoder: FrozenEncoder, todo: list[int]) -> Iterator[tuple[list[int], np.ndarray]]:
        images = self.images
        batches = [todo[i : i + self.batch_size] for i in range(0, len(todo), self.batch_size)]
        show = self.progress and sys.stderr.isatty()
        if not show:
            logger.info("%s: embedding %s on %s", encoder.name, _count(len(todo), "image"), encoder.device)
        from tqdm import tqdm

        with (
            tqdm(total=len(todo), desc=encoder.name, unit="image", disable=not show) as bar,
            ThreadPoolExecutor(DECODERS, thread_name_prefix="decode") as pool,
        ):
            try:
                for batch, results in _ahead(pool, batches, lambda position: self._prepare(encoder, position)):
                    good = [
                        (position, array) for position, array in zip(batch, results, strict=True) if array is not None
                    ]
                    if good:
                        positions = [position for position, _ in good]
                        names = [str(images.files[position]) for position in positions]
                        yield positions, encoder.compute(np.stack([array for _, array in good]), names)
                    bar.update(len(batch))
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, encoder: FrozenEncoder, position: int) -> np.ndarray | None:
        path = self.images.files[position]
        try:
            return encoder.prepare(load_image(path, max_pixels=self.corpus.max_image_pixels))
        except ImageError as error:
            # Collected, so that one broken image hides neither the others nor the good ones.
            self.images.broken[self.images.keys[position]] = str(error)
            return None

    # --- bad images --------------------------------------------------------------------------------------------------

    def finish(self, found: Sequence[PairEmbeddings | _Pending]) -> tuple[Corpus, list[PairEmbeddings]]:
        """Leave out or report pairs of broken images, and give every encoder its rows of the rest."""
        if self._hashed is None:
            return self.corpus, [item for item in found if isinstance(item, PairEmbeddings)]
        images = self._hashed
        corpus, bad = without_broken(self.corpus, images)
        kept = np.array(
            [slots for slots, left_out in zip(images.slots, bad, strict=True) if not left_out], dtype=np.int64
        )
        used, inverse = np.unique(kept, return_inverse=True)
        inverse = inverse.reshape(kept.shape).astype(np.int64)
        result = []
        for item in found:
            if isinstance(item, _Pending):
                result.append(
                    PairEmbeddings(
                        item.name, item.label, item.stand_in, item.fingerprint, item.vectors[used],
                        inverse[:, 0].copy(), inverse[:, 1].copy(),
                    )
                )  # fmt: skip
            else:
                result.append(replace(item, reference=item.reference[~bad], reconstruction=item.reconstruction[~bad]))
        return corpus, result


@dataclass(frozen=True)
class _Loaded:
    """An encoder that is ready to compute."""

    name: str
    label: str
    stand_in: str | None
    encoder: FrozenEncoder


@dataclass(frozen=True)
class _Pending:
    """Vectors of all distinct images, before pairs with broken ones are left out."""

    name: str
    label: str
    stand_in: str | None
    fingerprint: dict[str, Any]
    vectors: np.ndarray
    present: np.ndarray


@dataclass(frozen=True)
class CorpusImages:
    """Distinct image contents of a corpus.

    Attributes:
        keys: SHA-256 of each, in order of first use.
        files: a file with that content.
        slots: per pair, reference and reconstruction: position in ``keys``, or why the file cannot be read.
        broken: key -> why its content is not an image.
    """

    keys: list[bytes]
    files: list[Path]
    slots: list[tuple[int | str, int | str]]
    broken: dict[bytes, str]


def hash_images(corpus: Corpus) -> CorpusImages:
    """The distinct images behind a corpus' pairs; files that cannot be read are remembered, not reported."""
    position: dict[bytes, int] = {}
    files: list[Path] = []
    known: dict[Path, int | str] = {}

    def slot(path: Path) -> int | str:
        if path not in known:
            try:
                key = file_sha256(path)
            except ImageError as error:
                known[path] = str(error)
            else:
                if key not in position:
                    position[key] = len(files)
                    files.append(path)
                known[path] = position[key]
        return known[path]

    slots = [(slot(corpus.reference_file(i)), slot(corpus.reconstruction_file(i))) for i in range(len(corpus))]
    return CorpusImages(list(position), files, slots, {})


def without_broken(corpus: Corpus, images: CorpusImages) -> tuple[Corpus, np.ndarray]:
    """The corpus without the pairs of broken images, and which pairs these are (bool ``[n_pairs]``).

    Raises:
        CorpusError: there are some and ``on_bad_row`` is ``error``, or no pair is left; lists them all.
    """
    bad = np.zeros(len(corpus), dtype=bool)
    problems = []
    for pair, slots in enumerate(images.slots):
        for role, slot in zip(ROLES, slots, strict=True):
            reason = slot if isinstance(slot, str) else images.broken.get(images.keys[slot])
            if reason is not None:
                bad[pair] = True
                problems.append(corpus.problem(pair, f"{role} image: {reason}"))
    if not problems:
        return corpus, bad
    if corpus.on_bad_row != "skip":
        raise CorpusError(
            f"{_count(len(problems), 'image')} of corpus {corpus.name!r} cannot be used "
            f"({_count(int(bad.sum()), 'pair')}); mend what is listed, or leave these pairs out with "
            f"corpus.on_bad_row=skip:\n{listing(problems, 500)}"
        )
    if bad.all():
        raise CorpusError(f"No pair of corpus {corpus.name!r} has two usable images:\n{listing(problems)}")
    logger.warning("%s left out because of broken images:\n%s", _count(int(bad.sum()), "pair"), listing(problems, 10))
    return replace(corpus.subset(~bad), skipped=[*corpus.skipped, *problems]), bad


def _ahead(
    pool: ThreadPoolExecutor, batches: Sequence[list[int]], work: Callable[[int], Any]
) -> Iterator[tuple[list[int], list[Any]]]:
    """Results of ``work`` batch by batch, the next batch being worked on while the caller uses this one."""
    waiting: list[tuple[list[int], list[Future[Any]]]] = []
    for batch in batches:
        waiting.append((batch, [pool.submit(work, item) for item in batch]))
        if len(waiting) > 1:
            done, futures = waiting.pop(0)
            yield done, [future.result() for future in futures]
    for done, futures in waiting:
        yield done, [future.result() for future in futures]


# --- imported embeddings ---------------------------------------------------------------------------------------------


def _imports(store: EmbeddingStore) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and fingerprint of everything imported, for whichever corpus."""
    for fingerprint in store.fingerprints():
        if fingerprint.get("library") == IMPORTED:
            yield str(fingerprint.get("name")), fingerprint


def _is_encoder(name: str) -> bool:
    try:
        encoder_spec(name)
    except EncoderError:
        return False
    return True


def _check_known(name: str, corpus: Corpus, store: EmbeddingStore | None) -> None:
    """Raise an error for a name that is neither an encoder nor shipped nor imported, for whichever corpus."""
    if name in corpus.shipped or _is_encoder(name):
        return
    if store is not None and any(imported == name for imported, _ in _imports(store)):
        return
    here = [] if store is None else stored_names(store, corpus)
    raise EncoderError(unknown_encoder(name, [*corpus.shipped, *here]))


def _absent(name: str, corpus: Corpus, store: EmbeddingStore) -> str:
    """Why embeddings that nothing here can compute are not there, and which ones are."""
    if _is_encoder(name):
        why = "has no images to compute it from"
    else:
        why = f"has none of that name; {_import_state(name, corpus, store)}"
    ships, imported = ", ".join(corpus.shipped), ", ".join(stored_names(store, corpus))
    choose = "Choose one of these (encoder=stored encoder.names=[NAME]), bring" if ships or imported else "Bring"
    # A built-in encoder's name cannot be given to an import.
    bring = "NAME" if _is_encoder(name) else name
    return (
        f"Embeddings of encoder {name!r} cannot be had: corpus {corpus.name!r} {why}. "
        f"It ships: {ships or 'none'}. Imported for its pairs: {imported or 'none'}. "
        f"{choose} in embeddings (bcs embed source=npz path=FILE encoder.name={bring})"
        + (", or use a corpus with images (corpus=manifest corpus.root=DIR)." if corpus.root is None else ".")
    )


def _import_state(name: str, corpus: Corpus, store: EmbeddingStore) -> str:
    n, keys = len(corpus), _import_keys(corpus)
    found = [item for imported, item in _imports(store) if imported == name]
    if not found:
        return "nothing is imported under it"
    here = max(int((present[:n] & present[n:]).sum()) for _, present in (store.get(item, keys) for item in found))
    if here:
        return f"it is imported for {here} of the {_count(n, 'pair')} only; import it for all of them"
    return "imported under that name for another corpus or folder; import it again for this one"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise EncoderError(
            f"Expected encoder.name to be a plain name (a letter, then letters, digits, _ or -) but got {name!r}."
        )
    if name in list_encoders() or name in _NOT_NAMES:
        raise EncoderError(
            f"encoder.name={name!r} is taken by a built-in encoder; choose another name, such as my_{name}."
        )


def _import_keys(corpus: Corpus) -> list[bytes]:
    """Keys of imported vectors, references first: tied to corpus and pair, since the images may be absent."""
    # Ids and relative paths recur in other folders, with other images behind them.
    identity = ("name", corpus.name) if corpus.root is None else ("root", str(corpus.root.resolve()))
    columns = zip(
        corpus.pairs["pair_id"], corpus.pairs["reference_path"], corpus.pairs["reconstruction_path"], strict=True
    )
    rows = [tuple(map(str, row)) for row in columns]
    return [hashlib.sha256(json.dumps([*identity, role, *row]).encode()).digest() for role in ROLES for row in rows]
