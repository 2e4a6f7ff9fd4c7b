"""Metrics of pixels, without any network: MSE, PSNR, SSIM, pixel correlation, edge cosine and colour histogram.

All look at the centred square of 256 x 256 (Lanczos), 8-bit RGB; values of pixels run from 0 to 1.

===============  ===================================================================================================
mse              mean squared difference over pixels and channels
psnr             10 log10(1 / mse), in dB; identical pictures have none: infinite, or 100 with ``compat=reference``
ssim             Wang et al. (2004), averaged over channels and windows that lie inside: 7 x 7 uniform with the sample
                 covariance (scikit-image's default), or Gaussian of 11 pixels and sigma 1.5 (``window=gaussian``)
pixcorr          Pearson correlation over pixels and channels; undefined where a picture is constant
edge_cosine      cosine of the signed 3 x 3 Sobel gradients of luma, both directions as one vector; 0 where one picture
                 has no edge, undefined where neither has one (0 with ``compat=reference``)
color_histogram  intersection of joint RGB histograms of 8 x 8 x 8 bins, each of sum 1
===============  ===================================================================================================

8-bit values are whole numbers, so that sums of them, of their squares and of their products are exact: a constant
picture has a variance of exactly 0 rather than one of rounding errors, and an inverted one a correlation of exactly -1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcs_lab.audit.metrics.base import SQUARE, Family, Floats, MetricSpec, Values
from bcs_lab.errors import ConfigError

NAMES = ("mse", "psnr", "ssim", "pixcorr", "edge_cosine", "color_histogram")
WINDOWS = ("uniform", "gaussian")
BINS = 8
#: What ``compat=reference`` calls the PSNR of pictures that differ by less than this MSE.
CAP, IDENTICAL = 100.0, 1e-12

SAME_PICTURES = "identical pictures"
CONSTANT = "a constant picture (standard deviation 0) has no correlation"
NO_EDGES = "neither picture has an edge"

#: Bytes, just below the size from which on glibc no longer learns from a block.
_LARGE_BLOCK = 31 * 2**20
_UNIFORM, _GAUSSIAN, _SIGMA = 7, 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2


def load(spec: MetricSpec, options: Mapping[str, Any], device: str, compat: str, shared: dict[str, Any]) -> PixelFamily:
    """The pixel metrics; those with the same options are one family.

    Raises:
        ConfigError: an unknown window.
    """
    window = str(options.get("window", "uniform"))
    if window not in WINDOWS:
        raise ConfigError(f"metric ssim: expected window to be {' or '.join(WINDOWS)} but got {window!r}.")
    return shared.setdefault(f"pixel {window} {compat}", PixelFamily(window, compat))


class PixelFamily(Family):
    """All pixel metrics of a pair at once; they share conversions, sums and products."""

    threaded = True

    def __init__(self, window: str = "uniform", compat: str = "correct") -> None:
        super().__init__({"library": "bcs_lab.pixel", "window": window, "compat": compat}, SQUARE)
        # The C library keeps freed memory up to twice the largest block it has seen freed; with a small one, every
        # array of an image is asked of the system anew, which takes twice as long as the arithmetic.
        np.empty(_LARGE_BLOCK, dtype=np.uint8)
        self.window, self.compat = window, compat

    def features(self, inputs: Sequence[Any]) -> list[PixelFeatures]:
        """From uint8 [height, width, 3] each."""
        return [PixelFeatures(pixels, self.window) for pixels in inputs]

    def compare(
        self, names: Sequence[str], references: Sequence[Any], reconstructions: Sequence[Any]
    ) -> dict[str, Values]:
        """Values of the named metrics; both images of a pair have the same size."""
        out: dict[str, Floats] = {name: np.full(len(references), np.nan) for name in names}
        reasons: dict[str, dict[int, str]] = {name: {} for name in names}
        for row, (one, two) in enumerate(zip(references, reconstructions, strict=True)):
            pair = _Pair(one, two)
            for name in names:
                value = _MEASURES[name](pair, self.compat)
                if isinstance(value, str):
                    reasons[name][row] = value
                else:
                    out[name][row] = value
        return {name: Values(out[name], reasons[name]) for name in names}


class PixelFeatures:
    """What is kept of an image; each part is made when it is first asked for.

    Args:
        pixels: uint8 [height, width, 3], RGB.
        window: of the SSIM.
    """

    def __init__(self, pixels: NDArray[np.uint8], window: str = "uniform") -> None:
        # One channel after the other, so that rows of a channel lie side by side.
        self.planes: NDArray[np.uint8] = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        self.window = window

    @cached_property
    def size(self) -> int:
        """Pixels times channels."""
        return int(self.planes.size)

    @cached_property
    def total(self) -> int:
        """Sum of all values."""
        return int(self.planes.sum(dtype=np.int64))

    @cached_property
    def squares(self) -> int:
        """Sum of all squared values."""
        return int(np.square(self.planes, dtype=np.uint16).sum(dtype=np.int64))

    @cached_property
    def local(self) -> tuple[Any, Any]:
        """Per channel, sums over the windows and, times a constant, variances; see :func:`_moments`."""
        return _moments(self.planes, self.window)

    @cached_property
    def gradient(self) -> Floats:
        """Whole numbers as float64 [2 * height * width], right then down."""
        return sobel(self.planes).ravel()

    @cached_property
    def steepness(self) -> float:
        """Sum of the squared gradient, exact."""
        return _product(self.gradient, self.gradient)

    @cached_property
    def histogram(self) -> NDArray[np.int64]:
        """Counts [512]; red varies slowest."""
        red, green, blue = self.planes.astype(np.uint16) >> 5
        codes = ((red << 3 | green) << 3 | blue).ravel()
        return np.bincount(codes, minlength=BINS**3)


@dataclass(frozen=True)
class _Pair:
    """Two images of one size, and what several metrics need of both."""

    one: PixelFeatures
    two: PixelFeatures

    @cached_property
    def products(self) -> NDArray[np.int32]:
        """Of the values, [3, height, width]."""
        # 255 squared fits 16 bits without a sign.
        return np.multiply(self.one.planes, self.two.planes, dtype=np.uint16).astype(np.int32)

    @cached_property
    def product(self) -> int:
        """Sum of the products."""
        return int(self.products.sum(dtype=np.int64))

    @cached_property
    def distance(self) -> int:
        """Sum of the squared differences."""
        return self.one.squares + self.two.squares - 2 * self.product


def _mse(pair: _Pair, compat: str) -> float:
    return pair.distance / (pair.one.size * 255**2)


def _psnr(pair: _Pair, compat: str) -> float:
    mse = _mse(pair, compat)
    if compat == "reference" and mse <= IDENTICAL:
        return CAP
    return math.inf if mse == 0 else -10 * math.log10(mse)


def _pixcorr(pair: _Pair, compat: str) -> float | str:
    one, two, n = pair.one, pair.two, pair.one.size
    first, second = n * one.squares - one.total**2, n * two.squares - two.total**2
    if first == 0 or second == 0:
        return CONSTANT
    # Python's whole numbers have no limit, and the root of a product of equal ones is exact.
    return (n * pair.product - one.total * two.total) / math.sqrt(first * second)


def _edge_cosine(pair: _Pair, compat: str) -> float | str:
    one, two = pair.one, pair.two
    if one.steepness == 0 and two.steepness == 0 and compat == "correct":
        return NO_EDGES
    if one.steepness == 0 or two.steepness == 0:
        return 0.0
    return _product(one.gradient, two.gradient) / math.sqrt(one.steepness * two.steepness)


def _color_histogram(pair: _Pair, compat: str) -> float:
    return float(np.minimum(pair.one.histogram, pair.two.histogram).sum()) / (pair.one.size // 3)


def _product(one: Floats, two: Floats) -> float:
    # Not BLAS, whose own threads would get in the way of those that work on other pairs.
    return float(np.einsum("i,i->", one, two))


def sobel(planes: NDArray[np.uint8]) -> Floats:
    """Signed 3 x 3 Sobel gradients of luma (ITU-R 601, 8 bits), the border mirrored without its outermost row.

    Args:
        planes: uint8 [3, height, width], RGB, at least 2 x 2.

    Returns:
        float64 [2, height, width], whole numbers: right, then down.
    """
    red, green, blue = planes.astype(np.uint32)
    # As Pillow computes it, in whole numbers.
    luma = ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).astype(np.int16)
    grey = np.pad(luma, 1, mode="reflect")
    down, across = grey[2:] - grey[:-2], grey[2:] + 2 * grey[1:-1] + grey[:-2]
    return np.stack([across[:, 2:] - across[:, :-2], down[:, 2:] + 2 * down[:, 1:-1] + down[:, :-2]]).astype(np.float64)


# --- structural similarity -------------------------------------------------------------------------------------------


def _ssim(pair: _Pair, compat: str) -> float:
    uniform = pair.one.window == "uniform"
    return _uniform_ssim(pair) if uniform else _gaussian_ssim(pair)


def _moments(planes: NDArray[np.uint8], window: str) -> tuple[Any, Any]:
    """Sums over windows and variances times n squared, both per channel; in units of 8-bit values."""
    if window == "gaussian":
        values = planes.astype(np.float64)
        mean = _blurred(values)
        return mean, _blurred(values * values) - mean * mean
    n = _UNIFORM**2
    sums, spreads = [], []
    for plane in planes:
        total = _box(plane.astype(np.int32))
        sums.append(total)
        spreads.append(n * _box(np.square(plane, dtype=np.uint16).astype(np.int32)) - total * total)
    return sums, spreads


def _uniform_ssim(pair: _Pair) -> float:
    """Everything times the square of the window's pixels, so that it stays in whole numbers as long as possible."""
    n = _UNIFORM**2
    c1 = np.float32(_C1 * 255**2 * n * n)
    c2 = np.float32(_C2 * 255**2 * n * (n - 1))
    total = 0.0
    for channel, products in enumerate(pair.products):
        x, y = pair.one.local[0][channel], pair.two.local[0][channel]
        xx, yy = pair.one.local[1][channel], pair.two.local[1][channel]
        means = x * y
        covariance = n * _box(products) - means
        above = (2 * means).astype(np.float32)
        above += c1
        above *= (2 * covariance).astype(np.float32) + c2
        below = (x * x + y * y).astype(np.float32)
        below += c1
        below *= (xx + yy).astype(np.float32) + c2
        above /= below
        total += float(above.mean(dtype=np.float64))
    return total / len(pair.products)


def _box(values: NDArray[np.int32]) -> NDArray[np.int32]:
    """Sums over all 7 x 7 windows that lie inside, [height - 6, width - 6]; 7 = 4 + 2 + 1, so that few additions do."""
    two = values[:-1] + values[1:]
    four = two[:-2] + two[2:]
    rows = four[:-3] + two[4:-1]
    rows += values[6:]
    two = rows[:, :-1] + rows[:, 1:]
    four = two[:, :-2] + two[:, 2:]
    out = four[:, :-3] + two[:, 4:-1]
    out += rows[:, 6:]
    return out


def _gaussian_ssim(pair: _Pair) -> float:
    c1, c2 = _C1 * 255**2, _C2 * 255**2
    x, xx = pair.one.local
    y, yy = pair.two.local
    xy = _blurred(pair.products.astype(np.float64)) - x * y
    return float(np.mean((2 * x * y + c1) * (2 * xy + c2) / ((x * x + y * y + c1) * (xx + yy + c2))))


def _blurred(values: Floats) -> Floats:
    """Gaussian means over windows that lie inside, of [3, height, width]."""
    from scipy.ndimage import correlate1d

    reach = _GAUSSIAN // 2
    offsets = np.arange(_GAUSSIAN) - reach
    window = np.exp(-0.5 * np.square(offsets / _SIGMA))
    window /= window.sum()
    inside = slice(reach, -reach)
    down = correlate1d(values, window, axis=1)[:, inside]
    return correlate1d(down, window, axis=2)[:, :, inside]


def _flat(pair: _Pair, compat: str) -> float:
    rows = pair.two.planes.reshape(3, -1)
    return float((rows.min(axis=1) == rows.max(axis=1)).all())


def _identical(pair: _Pair, compat: str) -> float:
    return float(pair.distance == 0)


_MEASURES: Mapping[str, Callable[[_Pair, str], float | str]] = {
    "mse": _mse,
    "psnr": _psnr,
    "ssim": _ssim,
    "pixcorr": _pixcorr,
    "edge_cosine": _edge_cosine,
    "color_histogram": _color_histogram,
    # Facts about a pair that the table flags.
    "flat_reconstruction": _flat,
    "identical_pictures": _identical,
}
