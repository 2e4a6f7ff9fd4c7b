"""Similarities of colours, layout and sharpness: the ones of the encoder ``lowlevel``, without any network.

=========================  ======================================================================================
layout<n>_correlation      correlation of the mean colours of n x n cells, over cells and channels
layout<n>_difference       mean absolute difference of the same
histogram<b>               intersection of joint RGB histograms of b bins a channel
colour_mean_difference     absolute difference of the channels' means, averaged over channels
colour_spread_difference   likewise of the channels' standard deviations
mse                        mean squared difference of the pixels
ssim                       structural similarity of luma (Wang et al., 2004): Gaussian window of 11 pixels, sigma 1.5
sharpness_ratio            log ratio of the mean gradient magnitudes of luma, reconstruction over reference
sharpness_reconstruction   mean gradient magnitude of the reconstruction's luma
=========================  ======================================================================================

Colours are those of the image squashed to 64 x 64, luma (ITU-R 601, 8 bits) is squashed to 128 x 128; values run from 0
to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image

from bcs_lab.encoders.lowlevel import SIZE, describe_pixels, small_pixels

LUMA_SIZE = 128
LAYOUTS = (2, 4, 8)
BINS = (3, 6)
#: Added to both sharpnesses before their ratio is taken, so that a flat image has one.
SHARPNESS_FLOOR = 1e-3
_WINDOW = 11
_SIGMA = 1.5
_STABILITY = (0.01**2, 0.03**2)


@dataclass(frozen=True)
class PixelDescription:
    """What is kept of an image.

    Attributes:
        embedding: float32 ``[384]``, the descriptor of ``lowlevel``.
        layouts: per cell grid, float64 ``[n * n * 3]``, sums of 8-bit values: whole numbers.
        histograms: per number of bins, int64 counts.
        colours: float64 ``[2, 3]``, mean and standard deviation of each channel, 0 to 1.
        pixels: uint8 ``[64, 64, 3]``.
        luma: uint8 ``[128, 128]``.
        sharpness: mean gradient magnitude of luma, 0 to 1 a pixel.
    """

    embedding: np.ndarray
    layouts: tuple[np.ndarray, ...]
    histograms: tuple[np.ndarray, ...]
    colours: np.ndarray
    pixels: np.ndarray
    luma: np.ndarray
    sharpness: float

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        arrays = (self.embedding, *self.layouts, *self.histograms, self.colours, self.pixels, self.luma)
        return sum(array.nbytes for array in arrays)


class PixelComparer:
    """Describes and compares images by their pixels."""

    SIZE: ClassVar[int] = SIZE
    LUMA_SIZE: ClassVar[int] = LUMA_SIZE
    names: tuple[str, ...] = (
        *(f"layout{n}_{kind}" for n in LAYOUTS for kind in ("correlation", "difference")),
        *(f"histogram{bins}" for bins in BINS),
        "colour_mean_difference",
        "colour_spread_difference",
        "mse",
        "ssim",
        "sharpness_ratio",
        "sharpness_reconstruction",
    )

    def prepare(self, image: Image.Image) -> np.ndarray:
        """Uint8, the small pixels and then the luma of one RGB image."""
        luma = image.convert("L").resize((LUMA_SIZE, LUMA_SIZE), Image.Resampling.BICUBIC)
        return np.concatenate([small_pixels(image).ravel(), np.asarray(luma, dtype=np.uint8).ravel()])

    def describe(self, inputs: np.ndarray) -> list[PixelDescription]:
        """One description an image."""
        return [_describe(row) for row in inputs]

    def compare_all(self, pairs: Sequence[tuple[PixelDescription, PixelDescription]]) -> np.ndarray:
        """Float32 ``[n_pairs, len(names)]``."""
        rows = [_compare(reference, reconstruction) for reference, reconstruction in pairs]
        return np.array(rows, dtype=np.float32).reshape(len(pairs), len(self.names))


def _describe(row: np.ndarray) -> PixelDescription:
    pixels = row[: SIZE * SIZE * 3].reshape(SIZE, SIZE, 3)
    luma = row[SIZE * SIZE * 3 :].reshape(LUMA_SIZE, LUMA_SIZE)
    values = pixels.reshape(-1, 3) / 255
    return PixelDescription(
        embedding=describe_pixels(pixels),
        layouts=tuple(_cell_sums(pixels, n) for n in LAYOUTS),
        histograms=tuple(_histogram(pixels, bins) for bins in BINS),
        colours=np.stack([values.mean(axis=0), values.std(axis=0)]),
        pixels=pixels,
        luma=luma,
        sharpness=float(np.hypot(*np.gradient(luma / 255)).mean()),
    )


def _cell_sums(pixels: np.ndarray, n: int) -> np.ndarray:
    # Sums of whole numbers are exact, so that a flat image has no spread at all rather than one of rounding errors.
    side = SIZE // n
    return pixels.reshape(n, side, n, side, 3).sum(axis=(1, 3), dtype=np.int64).ravel().astype(np.float64)


def _histogram(pixels: np.ndarray, bins: int) -> np.ndarray:
    codes = pixels.reshape(-1, 3).astype(np.int64) * bins // 256
    return np.bincount((codes[:, 0] * bins + codes[:, 1]) * bins + codes[:, 2], minlength=bins**3)


def _compare(one: PixelDescription, two: PixelDescription) -> list[float]:
    values: list[float] = []
    for n, a, b in zip(LAYOUTS, one.layouts, two.layouts, strict=True):
        values += [_correlation(a, b), float(np.abs(a - b).mean()) / (255 * (SIZE // n) ** 2)]
    values += [float(np.minimum(a, b).sum()) / SIZE**2 for a, b in zip(one.histograms, two.histograms, strict=True)]
    values += np.abs(one.colours - two.colours).mean(axis=1).tolist()
    difference = one.pixels.astype(np.int64) - two.pixels
    values += [
        float(np.square(difference).mean()) / 255**2,
        structural_similarity(one.luma / 255, two.luma / 255),
        float(np.log((two.sharpness + SHARPNESS_FLOOR) / (one.sharpness + SHARPNESS_FLOOR))),
        two.sharpness,
    ]
    return values


def _correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a - a.mean(), b - b.mean()
    length = float(np.sqrt(np.square(a).sum() * np.square(b).sum()))
    return float((a * b).sum()) / length if length > 0 else 0.0


def structural_similarity(one: np.ndarray, two: np.ndarray) -> float:
    """Mean SSIM of two images of one size (Wang et al., 2004), over windows that lie inside.

    Args:
        one: float64 ``[height, width]`` in 0 to 1, at least 11 x 11.
        two: likewise.
    """
    from scipy.ndimage import correlate1d

    offsets = np.arange(_WINDOW) - _WINDOW // 2
    window = np.exp(-0.5 * np.square(offsets / _SIGMA))
    window /= window.sum()
    inside = slice(_WINDOW // 2, -(_WINDOW // 2))
    stacked = np.stack([one, two, one * one, two * two, one * two])
    down = correlate1d(stacked, window, axis=1)[:, inside]
    x, y, xx, yy, xy = correlate1d(down, window, axis=2)[:, :, inside]
    c1, c2 = _STABILITY
    structure = (2 * (xy - x * y) + c2) / (xx - x * x + yy - y * y + c2)
    return float(((2 * x * y + c1) / (x * x + y * y + c1) * structure).mean())
