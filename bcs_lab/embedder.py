"""Images in, embeddings or descriptions out, in order and as they come: each content decoded once, memory bounded.

Threads read, decode and prepare what comes next for all encoders at once while the networks compute. What came out for
the latest images is remembered, so that a reference that recurs costs its checksum and no more.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from bcs_lab.corpus.images import DEFAULT_MAX_IMAGE_PIXELS
from bcs_lab.encoders.base import FrozenEncoder
from bcs_lab.errors import ImageError
from bcs_lab.pixels import Picture
from bcs_lab.store import EmbeddingStore

if TYPE_CHECKING:
    from bcs_lab.similarity import Describer

#: Images that are remembered; 50 MB for three encoders of 1,000 values.
REMEMBERED = 4096
#: Bytes that are remembered at most; descriptions are larger than embeddings: about 1,000 images of two networks.
REMEMBERED_BYTES = 512 * 2**20
#: Images looked up in the store at once.
LOOKED_UP = 512
#: Images of the first batch; each further one is twice as large, up to the batch size.
FIRST_BATCH = 8

#: What came out for one image: per encoder its embedding, float32 [dim], or per describer its description.
Vectors = tuple[Any, ...]

_Result = TypeVar("_Result")


@dataclass
class _Slot:
    """An image that was asked for; ``result`` is ``None`` until its batch is computed."""

    key: bytes | None
    result: Vectors | ImageError | None = None


class ImageEmbedder:
    """Several encoders or describers over a stream of images.

    Args:
        encoders: in the order of the results.
        batch_size: images a network takes at once.
        remembered: how many images' results are kept for when they recur.
        remembered_bytes: how much of them at most.
    """

    def __init__(
        self,
        encoders: Sequence[FrozenEncoder | Describer],
        batch_size: int = 32,
        remembered: int = REMEMBERED,
        remembered_bytes: int = REMEMBERED_BYTES,
    ) -> None:
        self.encoders = list(encoders)
        self.batch_size = batch_size
        self.remembered, self.remembered_bytes = remembered, remembered_bytes
        self._bytes = 0
        self._memory: OrderedDict[bytes, Vectors] = OrderedDict()
        self._lock = threading.Lock()

    def embed(
        self,
        images: Iterable[Picture],
        *,
        max_pixels: int = DEFAULT_MAX_IMAGE_PIXELS,
        store: EmbeddingStore | None = None,
    ) -> Iterator[Vectors | ImageError]:
        """Embed images in the order they come.

        Args:
            images: any number; not more than a few batches are held at a time.
            max_pixels: largest accepted width x height of a file.
            store: embeddings found there are used; nothing is written. Descriptions are in no store.

        Yields:
            Per image its embeddings and descriptions, or what is wrong with it.

        Raises:
            EncoderError: a network gave values that are not finite.
        """
        claimed: set[bytes] = set()
        todo: dict[bytes, list[np.ndarray]] = {}
        names: dict[bytes, str] = {}
        slots: deque[_Slot] = deque()
        # The first batches are smaller, so that the networks need not wait for a whole one to be decoded.
        size = min(FIRST_BATCH, self.batch_size)

        with ThreadPoolExecutor(self._threads(), thread_name_prefix="decode") as pool:
            try:
                if store is not None and all(isinstance(encoder, FrozenEncoder) for encoder in self.encoders):
                    images = self._looked_up(images, store, pool)

                def work(image: Picture) -> tuple[bytes, list[np.ndarray] | None]:
                    key = image.identity()
                    with self._lock:
                        if key in self._memory or key in claimed:
                            return key, None
                        claimed.add(key)
                    return key, self._prepare(image, max_pixels)

                for image, future in _ahead(pool, images, work, 2 * self.batch_size):
                    slot = _Slot(None)
                    try:
                        slot.key, inputs = future.result()
                        slot.result = self._recall(slot.key)
                        if slot.result is None and slot.key not in todo:
                            # Claimed by a later picture of the same content, forgotten meanwhile, or damaged.
                            todo[slot.key] = self._prepare(image, max_pixels) if inputs is None else inputs
                            names[slot.key] = image.name
                    except ImageError as error:
                        slot.result = error
                    slots.append(slot)
                    if len(todo) >= size or (todo and len(slots) >= 4 * self.batch_size):
                        self._compute(todo, names, slots, claimed)
                        size = min(2 * size, self.batch_size)
                    while slots and slots[0].result is not None:
                        yield slots.popleft().result  # type: ignore[misc]
                if todo:
                    self._compute(todo, names, slots, claimed)
                while slots:
                    yield slots.popleft().result  # type: ignore[misc]
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _threads(self) -> int:
        """An eighth of the cores keeps up with networks on the others; an accelerator takes all there are."""
        cores = os.cpu_count() or 2
        return max(2, cores // 8) if all(encoder.device == "cpu" for encoder in self.encoders) else min(16, cores)

    def _prepare(self, image: Picture, max_pixels: int) -> list[np.ndarray]:
        decoded = image.load(max_pixels)
        return [encoder.prepare(decoded) for encoder in self.encoders]

    def _compute(
        self, todo: dict[bytes, list[np.ndarray]], names: dict[bytes, str], slots: Iterable[_Slot], claimed: set[bytes]
    ) -> None:
        """Run the networks over what waits, and give the slots that wait for it their results."""
        keys = list(todo)
        called = [names[key] for key in keys]
        parts = [
            _rows(encoder, np.stack([todo[key][number] for key in keys]), called)
            for number, encoder in enumerate(self.encoders)
        ]
        fresh = {key: tuple(part[row] for part in parts) for row, key in enumerate(keys)}
        with self._lock:
            for key, vectors in fresh.items():
                self._remember(key, vectors)
            claimed.difference_update(fresh)
        for slot in slots:
            if slot.result is None and slot.key is not None:
                slot.result = fresh[slot.key]
        todo.clear()
        names.clear()

    def _remember(self, key: bytes, vectors: Vectors) -> None:
        self._bytes += _nbytes(vectors) - _nbytes(self._memory.pop(key, ()))
        self._memory[key] = vectors
        while len(self._memory) > self.remembered or self._bytes > self.remembered_bytes:
            self._bytes -= _nbytes(self._memory.popitem(last=False)[1])

    def _recall(self, key: bytes) -> Vectors | None:
        with self._lock:
            if key in self._memory:
                self._memory.move_to_end(key)
            return self._memory.get(key)

    def _looked_up(
        self, images: Iterable[Picture], store: EmbeddingStore, pool: ThreadPoolExecutor
    ) -> Iterator[Picture]:
        """The same images, those that the store holds for every encoder being remembered by then."""
        source = iter(images)
        while chunk := list(islice(source, LOOKED_UP)):
            keys = list(pool.map(_identity, chunk))
            known = sorted({key for key in keys if key is not None})
            found = [store.get(encoder.fingerprint, known) for encoder in self.encoders]
            with self._lock:
                for row in np.flatnonzero(np.all([present for _, present in found], axis=0)).tolist():
                    self._remember(known[row], tuple(vectors[row].copy() for vectors, _ in found))
            yield from (replace(image, key=key) for image, key in zip(chunk, keys, strict=True))


def _rows(encoder: FrozenEncoder | Describer, inputs: np.ndarray, names: Sequence[str]) -> Sequence[Any]:
    """What an encoder makes of each image."""
    if isinstance(encoder, FrozenEncoder):
        # Copies, since a view would keep its whole batch alive.
        return [row.copy() for row in encoder.compute(inputs, names)]
    return encoder.forward(inputs, names)


def _nbytes(vectors: Vectors) -> int:
    return sum(int(part.nbytes) for part in vectors)


def _identity(image: Picture) -> bytes | None:
    try:
        return image.identity()
    except ImageError:
        return None  # reported when its turn comes


def _ahead(
    pool: ThreadPoolExecutor, images: Iterable[Picture], work: Callable[[Picture], _Result], ahead: int
) -> Iterator[tuple[Picture, Future[_Result]]]:
    """Each image with its work, which is handed out up to ``ahead`` images before it is waited for."""
    source = iter(images)
    waiting: deque[tuple[Picture, Future[_Result]]] = deque()
    while True:
        for image in islice(source, ahead - len(waiting)):
            waiting.append((image, pool.submit(work, image)))
        if not waiting:
            return
        yield waiting.popleft()
