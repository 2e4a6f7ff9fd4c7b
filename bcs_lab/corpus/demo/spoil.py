"""Spoil a picture as a brain decoder's output is: soft, pale, grainy, and faulty in structured ways.

Integers only, in one thread, randomness from the raw output of PCG64: the same picture, decoder and size give the same
pixels on every machine, whatever was spoiled before. (What a JPEG photograph decodes to may itself differ by a
grey level from one JPEG library to the next.)

Every strength runs from 0, which leaves the pixels as they are, to 1: all detail blurred away, all contrast gone, only
grain, the fault over the whole picture. A greater strength takes the picture further from what it was.

Large photographs are better made smaller first: spoiling one takes up to 200 bytes a pixel.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral, Real

import numpy as np
from PIL import Image

from bcs_lab.corpus.demo.concepts import ARTIFACTS
from bcs_lab.corpus.demo.scene import Decoder

#: What a decoder that makes no structured fault has in place of one.
NO_ARTIFACT = "none"


def spoil(image: Image.Image, decoder: Decoder) -> Image.Image:
    """Spoil a picture.

    The order is that of a decoder: detail is lost first, then faults appear in what is left, then colours fade, and the
    grain of the output lies over everything.

    Args:
        image: any picture; other modes are converted to RGB. Effects scale with its shorter side.
        decoder: how much of each fault.

    Returns:
        RGB of the same size; a copy of the input when every strength is 0.

    Raises:
        ValueError: when a strength is not from 0 to 1, or the artifact is unknown.
    """
    check_decoder(decoder)
    pixels = np.asarray(image.convert("RGB")).astype(np.int32)
    side = min(pixels.shape[:2])
    pixels = _blur(pixels, _permille(decoder.blur), side)
    strength = _permille(decoder.artifact_strength)
    if decoder.artifact != NO_ARTIFACT and strength:
        pixels = _FAULTS[decoder.artifact](pixels, strength, side, _numbers(decoder.seed, 1))
    pixels = _fade(pixels, _permille(decoder.fade))
    pixels = _noise(pixels, _permille(decoder.noise), side, decoder.seed)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def check_decoder(decoder: Decoder) -> None:
    """See that a decoder's strengths and artifact have a meaning.

    Raises:
        ValueError: naming the field, what was expected and what was found.
    """
    for field in ("blur", "fade", "noise", "artifact_strength"):
        value = getattr(decoder, field)
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
            raise ValueError(f"decoder.{field} is a strength from 0 (not at all) to 1 (nothing is left); got {value!r}")
    if decoder.artifact != NO_ARTIFACT and decoder.artifact not in ARTIFACTS:
        known = ", ".join((NO_ARTIFACT, *ARTIFACTS))
        raise ValueError(f"decoder.artifact: unknown name {decoder.artifact!r}; expected one of {known}")
    if not isinstance(decoder.seed, Integral) or decoder.seed < 0:
        raise ValueError(f"decoder.seed is a whole number, 0 or more; got {decoder.seed!r}")


def _permille(share: float) -> int:
    return round(share * 1000)


def _numbers(*seed: int) -> np.ndarray:
    """64 whole numbers, int64."""
    return (np.random.PCG64(list(seed)).random_raw(64) >> np.uint64(33)).astype(np.int64)


def _grey(pixels: np.ndarray) -> np.ndarray:
    """Brightness, int32 ``[h, w, 1]``."""
    return ((pixels[..., 0] * 77 + pixels[..., 1] * 150 + pixels[..., 2] * 29) >> 8)[..., None]


def _lean(a: np.ndarray, b: np.ndarray, share: np.ndarray | int) -> np.ndarray:
    """``share`` thousandths of the way from ``a`` to ``b``, int32."""
    return a + ((b - a) * share + 500) // 1000


# ---------------------------------------------------------------------------------------------------- blur, fade, noise


def _box(pixels: np.ndarray, reach: int) -> np.ndarray:
    """Mean over a square that reaches ``reach`` / 256 pixels from its centre; edges repeated, int32 in and out."""
    whole, part = divmod(reach, 256)
    weight = 256 * (2 * whole + 1) + 2 * part
    # Sums of up to 4080 * weight must fit.
    out = pixels if weight < 500_000 else pixels.astype(np.int64)
    for axis in (0, 1):
        length = out.shape[axis]
        around = [(0, 0), (0, 0), (0, 0)]
        around[axis] = (whole + 2, whole + 1)
        wide = np.pad(out, around, mode="edge")
        total = np.cumsum(wide, axis=axis, dtype=wide.dtype)
        wide, total = np.moveaxis(wide, axis, 0), np.moveaxis(total, axis, 0)
        inner = total[2 * whole + 2 : 2 * whole + 2 + length] - total[1 : 1 + length]
        ends = wide[1 : 1 + length] + wide[2 * whole + 3 : 2 * whole + 3 + length]
        out = np.moveaxis((inner * 256 + ends * part + weight // 2) // weight, 0, axis)
    return out.astype(np.int32)


def _blur(pixels: np.ndarray, strength: int, side: int) -> np.ndarray:
    """Three boxes, near to a Gaussian; at full strength each reaches a quarter of the picture."""
    if not strength:
        return pixels
    # Most of the scale is spent where a viewer still sees something.
    reach = side * 256 * (strength * 200 + strength * strength // 1000 * 800) // 1000 // 1000 // 4
    # Sixteenths of a grey level are kept, or three roundings would show as bands.
    out = pixels * 16
    for _ in range(3):
        out = _box(out, max(reach, 1))
    return (out + 8) // 16


def _fade(pixels: np.ndarray, strength: int) -> np.ndarray:
    """Towards grey first, then towards the picture's mean."""
    if not strength:
        return pixels
    grey = _grey(pixels)
    mean = np.array([int(grey.sum(dtype=np.int64)) // grey.size], np.int32)
    return _lean(_lean(pixels, grey + 0 * pixels, strength), mean, strength)


def _noise(pixels: np.ndarray, strength: int, side: int, seed: int) -> np.ndarray:
    """Grain of one and of a few pixels, partly coloured; at full strength it replaces the picture."""
    if not strength:
        return pixels
    height, width = pixels.shape[:2]
    raw = np.random.PCG64([seed, 2]).random_raw((height * width * 3 + 1) // 2)
    # Sums of four bytes are nearer to a bell than to a box, as sensor noise is.
    cells = np.frombuffer(raw.astype("<u8").tobytes(), "<u2")[: height * width * 6].astype(np.int32)
    cells = (cells & 255) + (cells >> 8)
    fine = (cells[0::2] + cells[1::2] - 510).reshape(height, width, 3)
    grey = (fine[..., 0] + fine[..., 1] + fine[..., 2])[..., None] // 3
    coarse = _box(fine, 256 * max(1, side // 100))
    grain = (fine + 2 * grey) // 5 + coarse
    noisy = pixels + grain * strength // 1000
    return _lean(noisy, 128 + grain, strength * strength // 1000)


# --------------------------------------------------------------------------------------------------------------- faults


def _cover(shape: tuple[int, ...], strength: int, numbers: np.ndarray) -> np.ndarray:
    """How strongly a fault acts at each place, thousandths, int32 ``[h, w, 1]``.

    It starts at one spot and spreads over the picture as the strength grows, with a soft border; at 1000 it is full
    everywhere.
    """
    height, width = shape[:2]
    cy, cx = 250 + int(numbers[0] % 500), 250 + int(numbers[1] % 500)
    y = (np.arange(height, dtype=np.int32) * 1000 // height - cy)[:, None]
    x = (np.arange(width, dtype=np.int32) * 1000 // width - cx)[None, :]
    # Between a diamond and a square, with an uneven border.
    far = np.abs(x) + np.abs(y) + _steps((height, width), 5, numbers[2:34]) * 2 // 5
    near = np.clip(strength * 2600 // 1000 + 100 - far, 0, 400) * 1000 // 400
    return np.minimum(near, 300 + strength * 7 // 10).astype(np.int32)[..., None]


def _steps(shape: tuple[int, int], cells: int, numbers: np.ndarray) -> np.ndarray:
    """A smooth random field from 0 to 999 on a grid of ``cells`` cells a side, int32 ``[h, w]``."""
    grid = np.resize(numbers % 1000, (cells + 1, cells + 1)).astype(np.int32)
    height, width = shape
    y, x = np.arange(height) * cells * 256 // height, np.arange(width) * cells * 256 // width
    i, j, fy, fx = (y >> 8)[:, None], (x >> 8)[None, :], (y & 255)[:, None], (x & 255)[None, :]
    upper = grid[i, j] * (256 - fx) + grid[i, j + 1] * fx
    lower = grid[i + 1, j] * (256 - fx) + grid[i + 1, j + 1] * fx
    return ((upper * (256 - fy) + lower * fy) >> 16).astype(np.int32)


def _grid(pixels: np.ndarray, strength: int, side: int, numbers: np.ndarray) -> np.ndarray:
    """The checkerboard of upsampling layers: blocks of one colour under a lattice."""
    height, width = pixels.shape[:2]
    cell = max(3, side // 22)
    rows, columns = np.arange(height) // cell, np.arange(width) // cell
    blocks = pixels[np.minimum(rows * cell + cell // 2, height - 1)][
        :, np.minimum(columns * cell + cell // 2, width - 1)
    ]
    sway = np.where((rows[:, None] + columns[None, :]) % 2 == 0, 34, -34)[..., None]
    line = max(1, cell // 5)
    lattice = (np.arange(height) % cell < line)[:, None] | (np.arange(width) % cell < line)[None, :]
    lattice_colour = np.array([40, 34, 60] if numbers[40] % 2 else [226, 232, 214], np.int32)
    faulty = np.where(lattice[..., None], _lean(blocks, lattice_colour, 640), blocks + sway)
    return _lean(pixels, faulty, _cover(pixels.shape, strength, numbers))


def _stripes(pixels: np.ndarray, strength: int, side: int, numbers: np.ndarray) -> np.ndarray:
    """Bands across the picture, each of its own tint and shifted sideways."""
    height, width = pixels.shape[:2]
    band = max(2, side // 26)
    at = (np.arange(height) + int(numbers[41] % band)) // band
    shift = (numbers[at % 64] % 7 - 3) * side // 60
    torn = pixels[np.arange(height)[:, None], np.clip(np.arange(width)[None, :] + shift[:, None], 0, width - 1)]
    tints = np.array([[70, -50, 40], [-60, 50, 60], [60, 50, -60], [-50, -40, 60]], np.int32)
    faulty = torn + np.where((at % 2 == 0)[:, None], tints[numbers[42] % 4], -tints[numbers[42] % 4] // 2)[:, None]
    return _lean(pixels, faulty, _cover(pixels.shape, strength, numbers))


def _tiling(pixels: np.ndarray, strength: int, side: int, numbers: np.ndarray) -> np.ndarray:
    """One patch of the picture, over and over."""
    height, width = pixels.shape[:2]
    tile = max(4, side // 5)
    top = int(numbers[43] % max(1, height - tile))
    left = int(numbers[44] % max(1, width - tile))
    # Mirrored on alternate tiles, so that edges meet and the repetition looks grown rather than cut.
    rows, columns = np.arange(height), np.arange(width)
    y = np.where(rows // tile % 2 == 0, rows % tile, tile - 1 - rows % tile)
    x = np.where(columns // tile % 2 == 0, columns % tile, tile - 1 - columns % tile)
    faulty = pixels[np.minimum(top + y, height - 1)][:, np.minimum(left + x, width - 1)]
    return _lean(pixels, faulty, _cover(pixels.shape, strength, numbers))


def _colour_bleed(pixels: np.ndarray, strength: int, side: int, numbers: np.ndarray) -> np.ndarray:
    """Colours that run sideways out of their things, in clouds of false hue."""
    height, width = pixels.shape[:2]
    grey = _grey(pixels)
    colour = pixels - grey
    reach = max(1, side // 8)
    run = np.stack(
        [np.roll(_box(colour, 256 * reach)[..., k], (int(numbers[45 + k] % 3) - 1) * reach, axis=1) for k in range(3)],
        axis=2,
    )
    clouds = np.stack([_steps((height, width), 4, numbers[10 * k : 10 * k + 30]) for k in range(3)], axis=2)
    hue = clouds - (clouds.sum(axis=2, keepdims=True) // 3)
    faulty = grey * 3 // 4 + 32 + run * 3 + hue * 210 // 1000
    return _lean(pixels, np.clip(faulty, 0, 255), _cover(pixels.shape, strength, numbers))


def _fragments(pixels: np.ndarray, strength: int, side: int, numbers: np.ndarray) -> np.ndarray:
    """Blocks of the picture in the wrong places."""
    height, width = pixels.shape[:2]
    cell = max(3, side // 9)
    rows, columns = np.arange(height) // cell, np.arange(width) // cell
    pick = numbers[(rows[:, None] * 7 + columns[None, :] * 13) % 64]
    dy, dx = (pick % 7 - 3) * cell * 2 // 3, (pick // 7 % 7 - 3) * cell * 2 // 3
    y = (np.arange(height)[:, None] + dy) % height
    x = (np.arange(width)[None, :] + dx) % width
    faulty = pixels[y, x] + ((pick // 49 % 3 - 1) * 18)[..., None]
    return _lean(pixels, faulty, _cover(pixels.shape, strength, numbers))


_FAULTS: dict[str, Callable[[np.ndarray, int, int, np.ndarray], np.ndarray]] = {
    "grid": _grid,
    "stripes": _stripes,
    "tiling": _tiling,
    "colour_bleed": _colour_bleed,
    "fragments": _fragments,
}
