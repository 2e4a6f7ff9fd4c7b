"""What an encoder offers for similarities: a small description of each image, and numbers that compare two of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PIL import Image

from bcs_lab.encoders import load_encoder
from bcs_lab.encoders.base import FrozenEncoder
from bcs_lab.errors import EncoderError

#: Part of every fingerprint: raise it when a similarity of the same name means another number.
SIMILARITY_VERSION = "1"
#: Library that fingerprints of similarities name.
LIBRARY = "bcs_lab.similarity"
#: Bytes of descriptions that are remembered: about 1,200 images of two networks.
MEMORY = 512 * 2**20


class Description(Protocol):
    """What is kept of an image; which fields there are, its describer knows."""

    @property
    def embedding(self) -> np.ndarray:
        """float32 ``[dim]`` of unit length: what the encoder itself gives, up to rounding."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes it takes."""
        ...


@dataclass(frozen=True)
class Describer:
    """Describes images, and compares two descriptions.

    Attributes:
        name: of the encoder, as asked for.
        fingerprint: everything that changes the numbers, JSON-able: ``library``, ``version``, ``model``, ``encoder``
            (the encoder's fingerprint), ``mirror``, ``statistics``, ``bank``, ``names``, ``dim``.
        names: of the similarities, distinct.
        encoder: whose network this is.
        prepare: one RGB image to its input.
        describe: stacked inputs to one description an image.
        compare_all: pairs of descriptions, the reference first, to float32 ``[n_pairs, len(names)]``.
    """

    name: str
    fingerprint: dict[str, Any]
    names: tuple[str, ...]
    encoder: FrozenEncoder
    prepare: Callable[[Image.Image], np.ndarray]
    describe: Callable[[np.ndarray], list[Any]]
    compare_all: Callable[[Sequence[tuple[Any, Any]]], np.ndarray]

    @property
    def device(self) -> str:
        """Where the network computes."""
        return self.encoder.device

    def forward(self, inputs: np.ndarray, names: Sequence[str] | None = None) -> list[Description]:
        """Describe images.

        Args:
            inputs: stacked outputs of ``prepare``.
            names: what to call each image in an error message.

        Raises:
            EncoderError: a network gave values that are not finite.
        """
        found = self.describe(inputs)
        bad = [i for i, description in enumerate(found) if not np.isfinite(description.embedding).all()]
        if bad:
            called = [names[i] if names else f"image {i} of the batch" for i in bad]
            raise EncoderError(
                f"Encoder {self.name!r} gave values that are not finite for {', '.join(called[:5])}"
                f"{f' and {len(bad) - 5} more' if len(bad) > 5 else ''}; its weights may be damaged, or "
                f"{self.encoder.fingerprint.get('dtype')} too narrow for it (encoder.dtype=float32)."
            )
        return found

    def compare(self, reference: Description, reconstruction: Description) -> np.ndarray:
        """The similarities of one pair: float32 ``[len(names)]``, finite."""
        return self.compare_all([(reference, reconstruction)])[0]


def load_describer(
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    device: str = "auto",
    dtype: str | None = None,
    mirror: bool = False,
) -> Describer:
    """Load an encoder and what it takes to compare images by its stages.

    Args:
        name: as in :func:`bcs_lab.encoders.load_encoder`; ``lowlevel`` compares pixels.
        options: as there.
        device: as there.
        dtype: as there.
        mirror: average what is pooled over the image and its mirror image, in twice the time; pixels are not pooled.

    Raises:
        EncoderError: as there, or the encoder shows no stages.
    """
    encoder = load_encoder(name, options=options, device=device, dtype=dtype)
    if encoder.fingerprint["library"] == "bcs_lab.lowlevel":
        from bcs_lab.similarity.pixels import PixelComparer

        pixels = PixelComparer()
        return _describer(encoder, pixels, pixels.prepare, {"sizes": [pixels.SIZE, pixels.LUMA_SIZE]})
    if encoder.staging is None:
        raise EncoderError(
            f"Encoder {name!r} shows no stages, so features=similarity cannot use it; use efficientnet_lite0, "
            "efficientnet_lite2, lowlevel, or a model of timm or transformers that gives intermediate features."
        )
    from bcs_lab.similarity.bank import shipped_bank
    from bcs_lab.similarity.stages import StageComparer
    from bcs_lab.similarity.statistics import shipped_statistics

    statistics = shipped_statistics(encoder.fingerprint)
    bank = None if statistics is None else shipped_bank(encoder.fingerprint)
    comparer = StageComparer(encoder, encoder.staging(), statistics, bank, mirror=mirror)
    digests = {
        "statistics": None if statistics is None else statistics.digest,
        "bank": None if bank is None else bank.digest,
    }
    extra = {"mirror": mirror, **digests}
    return _describer(encoder, comparer, encoder.prepare, extra)


class _Comparer(Protocol):
    @property
    def names(self) -> tuple[str, ...]: ...

    def describe(self, inputs: np.ndarray) -> list[Any]: ...

    def compare_all(self, pairs: Sequence[tuple[Any, Any]]) -> np.ndarray: ...


def _describer(
    encoder: FrozenEncoder,
    comparer: _Comparer,
    prepare: Callable[[Image.Image], np.ndarray],
    extra: Mapping[str, Any],
) -> Describer:
    fingerprint = {
        "library": LIBRARY,
        "version": SIMILARITY_VERSION,
        "model": f"similarity-{encoder.fingerprint['model']}",
        "encoder": encoder.fingerprint,
        **extra,
        "names": list(comparer.names),
        "dim": len(comparer.names),
    }
    return Describer(
        encoder.name, fingerprint, comparer.names, encoder, prepare, comparer.describe, comparer.compare_all
    )


_DIFFERENCES = ("difference", "mse")
_NEITHER = ("entropy", "largest_logit", "sharpness")


def directions(names: Sequence[str]) -> np.ndarray:
    """Which way a similarity points: int64, 1 where more means more alike, -1 where less does, 0 where neither does.

    Example:
        >>> directions(["lowlevel.mse", "lowlevel.ssim", "efficientnet_lite0.classes.entropy_reference"]).tolist()
        [-1, 1, 0]
    """

    def one(name: str) -> int:
        last = name.rpartition(".")[2]
        return -1 if last.endswith(_DIFFERENCES) else 0 if last.startswith(_NEITHER) else 1

    return np.array([one(name) for name in names], dtype=np.int64)


class DescriptionMemory:
    """The latest descriptions, as many as fit.

    Args:
        budget: bytes; the latest one is kept whatever it takes.
    """

    def __init__(self, budget: int = MEMORY) -> None:
        self.budget = budget
        self.nbytes = 0
        self._kept: OrderedDict[Any, Description] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: Any) -> bool:
        return key in self._kept

    def get(self, key: Any) -> Description | None:
        """The description kept under ``key``, which thereby is the latest; ``None`` if there is none."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: Any, description: Description) -> None:
        """Keep a description, and forget the oldest ones that no longer fit."""
        old = self._kept.pop(key, None)
        self.nbytes += description.nbytes - (0 if old is None else old.nbytes)
        self._kept[key] = description
        while self.nbytes > self.budget and len(self._kept) > 1:
            self.nbytes -= self._kept.popitem(last=False)[1].nbytes
