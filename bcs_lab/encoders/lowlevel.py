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

from bcs_lab.encoders.base import FrozenEncoder, Preprocessing, loader_fingerprint

if TYPE_CHECKING:
    import torch

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
#: The slope of a square root is taken as it is at this height where the root is lower: it has no bound at 0.
STEEPEST = 0.01


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
    return FrozenEncoder(
        name=spec.name,
        dim=DIM,
        fingerprint=fingerprint,
        prepare=describe,
        forward=lambda rows: rows,
        preprocessing=Preprocessing(
            size=(SIZE, SIZE),
            resize="squash",
            resized=(SIZE, SIZE),
            interpolation="bicubic",
            mean=(0.0,) * 3,
            std=(1.0,) * 3,
        ),
        differentiable=describe_tensor,
    )


def describe(image: Image.Image) -> np.ndarray:
    """Float32 ``[DIM]`` descriptor of one RGB image, of unit length up to rounding."""
    return describe_pixels(small_pixels(image))


def small_pixels(image: Image.Image) -> np.ndarray:
    """Uint8 ``[SIZE, SIZE, 3]``: the squashed image."""
    return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC), dtype=np.uint8)


def describe_pixels(pixels: np.ndarray) -> np.ndarray:
    """The descriptor of what :func:`small_pixels` gave."""
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


# --- the same in torch, with gradients -------------------------------------------------------------------------------


def describe_tensor(pixels: torch.Tensor) -> torch.Tensor:
    """The descriptor as a function that pixels can be moved along.

    Edges and layout are the same functions as in :func:`describe`. A histogram of colours is a step function of the
    pixels, without a useful slope: its value is kept, counted on 8-bit colours, and its slope is that of a histogram
    in which each pixel is shared between the nearest bins of each channel. Square roots have no bounded slope at 0 and
    get one, see :data:`STEEPEST`.

    Args:
        pixels: float ``[n, 3, SIZE, SIZE]`` in [0, 1].

    Returns:
        ``[n, DIM]`` of unit length.
    """
    import torch

    blocks = {
        "colours": _root(_colours(pixels)),
        "edges": _root(_edges(pixels)).flatten(1),
        "layout": _layout(pixels),
    }
    parts = []
    for name, block in blocks.items():
        length = torch.linalg.vector_norm(block, dim=1, keepdim=True)
        parts.append(WEIGHTS[name] * block / length.clamp_min(FLOOR))
    return torch.nn.functional.normalize(torch.cat(parts, dim=1), dim=1)


def _root(values: torch.Tensor) -> torch.Tensor:
    import torch

    steep = values < STEEPEST**2
    gentle = values.detach().clamp_min(0).sqrt() + (values - values.detach()) / (2 * STEEPEST)
    return torch.where(steep, gentle, torch.where(steep, 1.0, values).sqrt())


def _colours(pixels: torch.Tensor) -> torch.Tensor:
    import torch

    # Whole levels, as an 8-bit image has them; bins are a quarter of 256 of them.
    levels = (pixels.detach() * 255).round()
    hard = torch.nn.functional.one_hot((levels * COLOURS / 256).long(), COLOURS).to(pixels.dtype)
    centres = (torch.arange(COLOURS, dtype=pixels.dtype, device=pixels.device) + 0.5) / COLOURS
    position = pixels.clamp(float(centres[0]), float(centres[-1])).unsqueeze(-1)
    soft = (1 - (position - centres).abs() * COLOURS).clamp_min(0)

    def joint(shares: torch.Tensor) -> torch.Tensor:
        red, green, blue = shares.flatten(2, 3).unbind(1)
        return torch.einsum("npr,npg,npb->nrgb", red, green, blue).flatten(1) / red.shape[1]

    smooth = joint(soft)
    return smooth + (joint(hard) - smooth).detach()


def _edges(pixels: torch.Tensor) -> torch.Tensor:
    import torch

    luma = pixels.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    down, right = torch.gradient((pixels * luma).sum(dim=1), dim=(1, 2))
    flat = (down == 0) & (right == 0)
    # Neither length nor angle of a gradient of 0 has a slope: both are computed elsewhere and masked.
    right = torch.where(flat, 1.0, right)
    magnitude = torch.where(flat, 0.0, (down**2 + right**2).sqrt())
    position = torch.remainder(torch.atan2(down, right), np.pi) / np.pi * ORIENTATIONS
    low = position.detach().floor()
    share = position - low
    side = SIZE // CELLS
    rows = torch.arange(SIZE, device=pixels.device) // side
    cell = (rows[:, None] * CELLS + rows[None, :]) * ORIENTATIONS
    histogram = pixels.new_zeros(len(pixels), CELLS**2 * ORIENTATIONS)
    for bins, weight in ((low, 1 - share), (low + 1, share)):
        index = cell + bins.long() % ORIENTATIONS
        histogram = histogram.scatter_add(1, index.flatten(1), (magnitude * weight).flatten(1))
    return histogram / side**2


def _layout(pixels: torch.Tensor) -> torch.Tensor:
    import torch

    means = torch.nn.functional.avg_pool2d(pixels, SIZE // THUMBNAIL)
    return means.permute(0, 2, 3, 1).flatten(1) - 0.5
