"""A classical descriptor of colours, edges and layout: numpy only, no weights, the same numbers everywhere.

The image is squashed to 64 x 64 and described by three blocks, each divided by its own length, then weighted:

==========  =========================================  ====  ======
block       what                                       size  weight
==========  =========================================  ====  ======
colours     joint RGB histogram 4 x 4 x 4, square root   64   1.0
edges       4 x 4 cells of 8 unsigned orientations,     128   1.0
            weighted by gradient magnitude, square root
layout      8 x 8 thumbnail per channel, minus 1/2      192   1.0
==========  =========================================  ====  ======

The histogram is never empty, so no image gives a zero vector. The lengths of the other blocks have a floor, so that the
rounding noise of a flat image is not blown up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from bcs_lab.encoders.base import FrozenEncoder, loader_fingerprint

if TYPE_CHECKING:
    from bcs_lab.encoders import EncoderSpec

SIZE = 64
COLOURS = 4
CELLS = 4
ORIENTATIONS = 8
THUMBNAIL = 8
WEIGHTS = {"colours": 1.0, "edges": 1.0, "layout": 1.0}
DIM = COLOURS**3 + CELLS**2 * ORIENTATIONS + 3 * THUMBNAIL**2
#: Smallest length a block is divided by.
FLOOR = 0.05


def load(spec: EncoderSpec, *, options: Mapping[str, Any], device: str, dtype: str | None) -> FrozenEncoder:
    """The descriptor; device and dtype do not concern it."""
    fingerprint = {
        "library": "bcs_lab.lowlevel",
        "library_version": spec.revision,
        "model": spec.model,
        "revision": spec.revision,
        "pooling": spec.pooling,
        "weights": WEIGHTS,
        "preprocessing": {"size": [SIZE, SIZE], "resize": "squash", "interpolation": "bicubic"},
        "dtype": "float32",
        "loader": loader_fingerprint(),
        "dim": DIM,
    }
    return FrozenEncoder(name=spec.name, dim=DIM, fingerprint=fingerprint, prepare=describe, forward=lambda rows: rows)


def describe(image: Image.Image) -> np.ndarray:
    """Float32 ``[DIM]`` descriptor of one RGB image, of unit length up to rounding."""
    small = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    pixels = np.asarray(small, dtype=np.uint8)
    blocks = {
        "colours": np.sqrt(colour_histogram(pixels)),
        "edges": np.sqrt(edge_histograms(pixels)).ravel(),
        "layout": colour_layout(pixels).ravel(),
    }
    vector = np.concatenate(
        [WEIGHTS[name] * block / max(float(np.linalg.norm(block)), FLOOR) for name, block in blocks.items()]
    )
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def colour_histogram(pixels: np.ndarray) -> np.ndarray:
    """Share of pixels in each joint RGB bin.

    Args:
        pixels: uint8 ``[h, w, 3]``.

    Returns:
        float64 ``[COLOURS ** 3]``, sums to 1; red varies slowest.
    """
    bins = pixels.reshape(-1, 3).astype(np.int64) * COLOURS // 256
    codes = (bins[:, 0] * COLOURS + bins[:, 1]) * COLOURS + bins[:, 2]
    return np.bincount(codes, minlength=COLOURS**3) / len(codes)


def edge_histograms(pixels: np.ndarray) -> np.ndarray:
    """Mean gradient magnitude per cell and orientation.

    Gradients are central differences of luma (ITU-R 601); an orientation is shared between its two nearest bins, so
    that a small rotation moves the descriptor a little, not by a jump.

    Args:
        pixels: uint8 ``[SIZE, SIZE, 3]``.

    Returns:
        float64 ``[CELLS * CELLS, ORIENTATIONS]``, 0 or more; bin 0 is a horizontal gradient.
    """
    grey = pixels.astype(np.float64) @ np.array([0.299, 0.587, 0.114]) / 255
    down, right = np.gradient(grey)
    magnitude = np.hypot(down, right)
    position = np.mod(np.arctan2(down, right), np.pi) / np.pi * ORIENTATIONS
    low = np.floor(position).astype(np.int64)
    share = position - low
    side = SIZE // CELLS
    rows = np.arange(SIZE) // side
    cell = (rows[:, None] * CELLS + rows[None, :]).ravel()
    histogram = np.zeros((CELLS * CELLS, ORIENTATIONS))
    for bins, weight in ((low, 1 - share), (low + 1, share)):
        np.add.at(histogram, (cell, bins.ravel() % ORIENTATIONS), (magnitude * weight).ravel())
    return histogram / side**2


def colour_layout(pixels: np.ndarray) -> np.ndarray:
    """Mean colour of each cell of a coarse grid, centred: float64 ``[THUMBNAIL, THUMBNAIL, 3]`` in -0.5 to 0.5."""
    side = SIZE // THUMBNAIL
    grid = pixels.reshape(THUMBNAIL, side, THUMBNAIL, side, 3).astype(np.float64)
    return grid.mean(axis=(1, 3)) / 255 - 0.5
