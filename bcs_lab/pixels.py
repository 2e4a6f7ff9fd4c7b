"""What may stand for an image, and how it becomes one: paths, PIL images, arrays and tensors, single or in batches.

Conventions, declared and checked rather than guessed: ``uint8`` runs from 0 to 255; floats run from 0 to 1 unless
``value_range`` says otherwise; torch tensors are CHW or NCHW, numpy arrays HWC or NHWC unless ``layout`` says
otherwise; there are three channels, or one that is replicated. Whatever is outside is an error, never a clipped
picture.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from bcs_lab.corpus.images import DEFAULT_MAX_IMAGE_PIXELS, file_sha256, load_image, to_rgb
from bcs_lab.errors import ImageError

if TYPE_CHECKING:
    from torch import Tensor

LAYOUTS = ("CHW", "HWC")
#: Values may exceed a range by one 8-bit level: rounding to half precision does, another range does more.
TOLERANCE = 1 / 255
_UNIT = (0.0, 1.0)


@dataclass(frozen=True)
class Picture:
    """One image, decoded when it is needed.

    Attributes:
        name: what messages call it.
        path: its file, or ``None``.
        image: 8-bit RGB pixels where there is no file.
        key: identity of its content, where that is known already.
    """

    name: str
    path: Path | None = None
    image: Image.Image | None = None
    key: bytes | None = None

    def identity(self) -> bytes:
        """SHA-256 of the file, or of size and pixels: equal for equal pictures.

        Raises:
            ImageError: the file cannot be read.
        """
        if self.key is not None:
            return self.key
        if self.path is not None:
            return file_sha256(self.path)
        assert self.image is not None
        return hashlib.sha256(f"pixels {self.image.size} ".encode() + self.image.tobytes()).digest()

    def load(self, max_pixels: int = DEFAULT_MAX_IMAGE_PIXELS) -> Image.Image:
        """The 8-bit RGB image.

        Raises:
            ImageError: the file is not an image, damaged or too large.
        """
        if self.image is not None:
            return self.image
        assert self.path is not None
        return load_image(self.path, max_pixels=max_pixels)


def pictures(
    given: Any, side: str = "image", *, value_range: tuple[float, float] | None = None, layout: str | None = None
) -> tuple[list[Picture], bool]:
    """Take whatever stands for one image or several.

    Args:
        given: a path, a PIL image, an array or tensor (a batch where it has one dimension more), or a sequence of
            single ones.
        side: what messages call it, such as ``reference``.
        value_range: lowest and highest value of floats; 0 and 1 by default. ``uint8`` is 0 to 255 in any case.
        layout: ``CHW`` or ``HWC``, a batch dimension in front of it; by default that of the library.

    Returns:
        The pictures, and whether a batch was given.

    Raises:
        ImageError: the range, rank, number of channels or type does not fit; lists what is wrong with each image.

    Example:
        >>> found, batch = pictures(np.zeros((2, 8, 8, 3), dtype=np.uint8))
        >>> len(found), batch, found[0].load().size
        (2, True, (8, 8))
    """
    limits = check_range(value_range)
    if layout not in (None, *LAYOUTS):
        raise ImageError(f"Expected `layout` to be CHW or HWC (a batch dimension is added) but got {layout!r}.")
    return _pictures(given, side, limits, layout)


def _pictures(
    given: Any, side: str, limits: tuple[float, float] | None, layout: str | None
) -> tuple[list[Picture], bool]:
    if isinstance(given, (str, os.PathLike)):
        return [Picture(os.fspath(given), path=Path(given))], False
    if isinstance(given, Image.Image):
        try:
            return [Picture(side, image=to_rgb(given))], False
        except Exception as error:  # decoding is lazy: a torn file shows only now
            raise ImageError(f"{side}: {error}") from error
    if is_tensor(given):
        return _from_array(_to_numpy(given), side, limits, layout or "CHW")
    if hasattr(given, "__array__") and np.asarray(given).dtype.kind not in "OUS":
        return _from_array(np.asarray(given), side, limits, layout or "HWC")
    if isinstance(given, Iterable) and not isinstance(given, (bytes, dict)):
        return _from_sequence(list(given), side, limits, layout), True
    raise ImageError(
        f"{side}: expected a path, a PIL image, an array, a tensor or a sequence of them "
        f"but got {type(given).__name__}."
    )


def _from_sequence(
    items: Sequence[Any], side: str, limits: tuple[float, float] | None, layout: str | None
) -> list[Picture]:
    found: list[Picture] = []
    problems = []
    for i, item in enumerate(items):
        try:
            one, batch = _pictures(item, f"{side} {i}", limits, layout)
            if batch:
                raise ImageError(f"{side} {i}: expected one image at each place of the sequence but got a batch.")
        except ImageError as error:
            problems.append(str(error))
        else:
            found += one
    if problems:
        raise image_error(problems)
    if not found:
        raise ImageError(f"{side}: expected at least one image but got an empty sequence.")
    return found


def image_error(messages: Sequence[str]) -> ImageError:
    """One error for all of these."""
    if len(messages) == 1:
        return ImageError(messages[0])
    return ImageError(f"{len(messages)} images cannot be used:\n{_listed(messages)}")


def _listed(messages: Sequence[str], limit: int = 50) -> str:
    lines = [f"  - {message}" for message in messages[:limit]]
    return "\n".join([*lines, f"  … and {len(messages) - limit} more"] if len(messages) > limit else lines)


def is_tensor(value: Any) -> bool:
    """Whether it is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _to_numpy(tensor: Tensor) -> np.ndarray:
    import torch

    plain = tensor.detach().cpu()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()


def _from_array(
    array: np.ndarray, side: str, limits: tuple[float, float] | None, layout: str
) -> tuple[list[Picture], bool]:
    batch = array.ndim == 4
    images = array if batch else array[None]
    if array.ndim == 2:
        images = images[..., None]
    elif array.ndim not in (3, 4) or images.shape[1 if layout == "CHW" else 3] not in (1, 3):
        raise ImageError(_wrong_shape(array.shape, side, layout))
    elif layout == "CHW":
        images = images.transpose(0, 2, 3, 1)
    if not images.size:
        raise ImageError(f"{side}: expected at least one pixel but got shape {array.shape}.")
    names = [f"{side} {i}" for i in range(len(images))] if batch else [side]
    images = _eight_bit(images, names, limits)
    grey = images.shape[3] == 1
    return [
        Picture(name, image=Image.fromarray(np.ascontiguousarray(np.repeat(image, 3, axis=2) if grey else image)))
        for name, image in zip(names, images, strict=True)
    ], batch


def _wrong_shape(shape: tuple[int, ...], side: str, layout: str) -> str:
    other = "HWC" if layout == "CHW" else "CHW"
    place = len(shape) - 1 if layout == "CHW" else len(shape) - 3
    hint = (
        f" For channels elsewhere declare layout={other!r}." if len(shape) in (3, 4) and shape[place] in (1, 3) else ""
    )
    return (
        f"{side}: expected shape [{', '.join(layout)}] or [N, {', '.join(layout)}] with 3 channels or 1, or [H, W], "
        f"but got {list(shape)}.{hint}"
    )


def check_range(value_range: tuple[float, float] | None) -> tuple[float, float] | None:
    """The declared range of floats as two numbers.

    Raises:
        ImageError: it is not a lower and a higher number.
    """
    if value_range is None:
        return None
    try:
        low, high = (float(value) for value in value_range)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ImageError(f"Expected `value_range` to be (lowest, highest), such as (0, 255), but got {value_range!r}.")
    return low, high


def _eight_bit(images: np.ndarray, names: Sequence[str], limits: tuple[float, float] | None) -> np.ndarray:
    """Uint8 of the same shape."""
    if images.dtype == np.uint8:
        return images
    if images.dtype.kind != "f":
        raise ImageError(f"{names[0]}: {_wrong_type(str(images.dtype))}")
    low, high = limits or _UNIT
    # Half precision would lose the last of 256 levels in the arithmetic below.
    images = images.astype(np.float64 if images.itemsize > 4 else np.float32, copy=False)
    flat = images.reshape(len(images), -1)
    _check_values(flat.min(axis=1), flat.max(axis=1), names, low, high, limits is not None)
    scaled = (images - images.dtype.type(low)) * images.dtype.type(255 / (high - low))
    return np.clip(np.rint(scaled), 0, 255).astype(np.uint8)


def _check_values(
    lowest: np.ndarray, highest: np.ndarray, names: Sequence[str], low: float, high: float, declared: bool
) -> None:
    """Raise an error for NaN, and for values outside the range; both sides per image, NaN where there is one."""
    slack = TOLERANCE * (high - low)
    problems = []
    for least, most, name in zip(lowest.tolist(), highest.tolist(), names, strict=True):
        if not (math.isfinite(least) and math.isfinite(most)):
            problems.append(f"{name}: holds NaN or infinity")
        elif least < low - slack or most > high + slack:
            problems.append(f"{name}: values from {least:.4g} to {most:.4g}")
    if problems:
        how = "as declared" if declared else "the default of floats"
        raise ImageError(
            f"Expected values from {low:g} to {high:g} ({how}) but got\n"
            + _listed(problems)
            + "\nDeclare the range the values really have, such as value_range=(0, 255) or (-1, 1), or clamp them."
        )


def _wrong_type(kind: str) -> str:
    return f"expected uint8 (0 to 255) or floats but got {kind}; convert it."


def tensor_pixels(images: Any, side: str, value_range: tuple[float, float] | None = None) -> Tensor:
    """A batch of float pixels scaled to [0, 1] and three channels, with gradients.

    Args:
        images: float tensor ``[n, 3 or 1, height, width]``.
        side: what messages call it.
        value_range: lowest and highest value, 0 and 1 by default.

    Returns:
        ``[n, 3, height, width]`` of the same device, float32 or float64.

    Raises:
        ImageError: it is no such tensor, or values are outside the range or NaN.
    """
    import torch

    limits = check_range(value_range)
    low, high = limits or _UNIT
    if not is_tensor(images):
        raise ImageError(f"{side}: expected a float tensor [N, C, H, W] but got {type(images).__name__}.")
    if not images.is_floating_point():
        raise ImageError(f"{side}: expected a float tensor, which can have a gradient, but got {images.dtype}.")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.numel():
        raise ImageError(f"{side}: expected shape [N, C, H, W] with 3 channels or 1 but got {list(images.shape)}.")
    images = images if images.dtype == torch.float64 else images.float()
    flat = images.detach().flatten(1)
    lowest, highest = torch.stack([flat.amin(dim=1), flat.amax(dim=1)]).cpu().numpy()
    _check_values(lowest, highest, [f"{side} {i}" for i in range(len(flat))], low, high, limits is not None)
    return ((images - low) / (high - low)).expand(-1, 3, -1, -1)
