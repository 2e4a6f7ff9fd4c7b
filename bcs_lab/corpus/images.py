"""The one image loader of every stage: whatever the file holds, 8-bit RGB comes out, or an error that names the file.

- The content decides the format, not the suffix. Only raster formats are tried, never one that starts another program.
- EXIF orientation is applied.
- Transparency (alpha, palette entries, colour keys) is composited on white, :data:`BACKGROUND`.
- Grey is replicated. 16-bit samples keep their high byte, in grey and in colour alike.
- CMYK goes through the embedded ICC profile to sRGB, or through the plain formula when there is none. RGB values are
  taken as they are, whatever their profile.
- Of an animation the first frame is used, with a warning.
- The pixel count is checked from the header, before anything is decoded.
"""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from PIL import Image, ImageFile, ImageOps

from bcs_lab.errors import ImageError

logger = logging.getLogger(__name__)

#: Colour behind transparent pixels, the same for both images of a pair.
BACKGROUND = (255, 255, 255)

#: Part of every encoder fingerprint: raise it when the pixels this module returns change.
LOADER_VERSION = "1"

#: Largest accepted width x height; 240 MB as RGB.
DEFAULT_MAX_IMAGE_PIXELS = 80_000_000

#: Formats tried, by Pillow's names; one that this Pillow was built without is left out.
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "JPEG2000", "AVIF")

# What a file that is no image looks like, so that the message can say so.
_LOOKS_LIKE = (
    (b"<!doctype html", "an HTML page, perhaps a saved error message"),
    (b"<html", "an HTML page, perhaps a saved error message"),
    (b"<svg", "an SVG drawing"),
    (b"<?xml", "XML or SVG text"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the real file with `git lfs pull`"),
    (b"%pdf", "a PDF document"),
    (b"%!ps", "a PostScript document"),
    (b"pk\x03\x04", "a ZIP archive"),
    (b"\x93numpy", "a NumPy array"),
    (b"\x1f\x8b", "gzip-compressed data"),
    (b"{", "JSON or other text"),
)


@dataclass(frozen=True)
class ImageHeader:
    """What the header of an image file says, without decoding it.

    Attributes:
        format: Pillow's format name.
        mode: Pillow's mode of the stored pixels.
        size: width and height as stored.
        frames: number of frames; 1 for a still image or a stereo photograph (MPO).
    """

    format: str
    mode: str
    size: tuple[int, int]
    frames: int


def load_image(path: str | Path, *, max_pixels: int = DEFAULT_MAX_IMAGE_PIXELS) -> Image.Image:
    """Decode an image file to RGB.

    Args:
        path: the file; its suffix does not matter.
        max_pixels: largest accepted width x height; may exceed Pillow's own limit, whose global setting is left alone.

    Returns:
        A fully decoded 8-bit image of mode ``RGB``, upright, opaque, without metadata.

    Raises:
        ImageError: the file is missing, unreadable, empty, not an image, damaged, too large, or holds floating-point
            pixels. The message names the path and the reason.
    """
    image, frames = _decode(path, max_pixels)
    if frames > 1:
        logger.warning("%s: an animation of %d frames; every stage uses its first frame only", path, frames)
    return image


def inspect_image(path: str | Path, *, max_pixels: int = DEFAULT_MAX_IMAGE_PIXELS) -> ImageHeader:
    """Read the header only, and check the size limit.

    Raises:
        ImageError: as :func:`load_image`, for what can be known without decoding.
    """
    with _opened(path, max_pixels) as image:
        return ImageHeader(str(image.format), image.mode, image.size, _frames(image))


def check_image_file(
    path: str | Path, *, max_pixels: int = DEFAULT_MAX_IMAGE_PIXELS, decode: bool = False
) -> str | None:
    """What is wrong with an image file, or ``None``.

    Args:
        path: the file.
        max_pixels: as in :func:`load_image`.
        decode: also decode every pixel; otherwise only the header is read, which is cheap but passes torn files.
    """
    try:
        if decode:
            _decode(path, max_pixels)
        else:
            inspect_image(path, max_pixels=max_pixels)
    except ImageError as error:
        return str(error)
    return None


def file_sha256(path: str | Path) -> bytes:
    """SHA-256 of a file's bytes (32 bytes): the identity of an image in the embedding store.

    Raises:
        ImageError: the file cannot be read.
    """
    digest = hashlib.sha256()
    with _binary(path) as file:
        try:
            while block := file.read(1 << 20):
                digest.update(block)
        except OSError as error:
            raise ImageError(f"{path}: cannot be read ({error.strerror or error})") from error
    return digest.digest()


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow image to upright, opaque, 8-bit RGB by the rules of this module.

    Args:
        image: of any mode except floating point; the current frame is used. It is not changed, only decoded.

    Returns:
        A new image of mode ``RGB`` without metadata.

    Raises:
        ImageError: the mode cannot be converted without guessing.
    """
    key = _colour_key(image)
    depth = _grey_depth(image)
    with _strict_decoding():
        image.load()
    try:
        upright = ImageOps.exif_transpose(image)
    except Exception as error:
        # A damaged EXIF block says nothing about the pixels.
        logger.warning("EXIF data cannot be read (%s); the image is taken as stored", error)
        upright = image
    rgb = _opaque_rgb(upright, key, depth)
    plain = Image.new("RGB", rgb.size)
    plain.paste(rgb)
    return plain


# --- opening ---------------------------------------------------------------------------------------------------------


def _decode(path: str | Path, max_pixels: int) -> tuple[Image.Image, int]:
    with _opened(path, max_pixels) as image:
        frames = _frames(image)
        kind = image.format
        try:
            return to_rgb(image), frames
        except ImageError as error:
            raise ImageError(f"{path}: {error}") from error
        except Exception as error:
            raise ImageError(f"{path}: damaged or truncated {kind} file ({_reason(error)})") from error


@contextmanager
def _opened(path: str | Path, max_pixels: int) -> Iterator[Image.Image]:
    """The image with its header read and its size checked.

    Pillow's registry is used directly rather than `Image.open`, whose size limit is a global of the process and whose
    message does not name the file.
    """
    with _binary(path) as file, _strict_decoding():
        head = file.read(512)
        factory, unsupported = _factory(head[:16])
        if factory is None:
            raise ImageError(f"{path}: {unsupported or _not_an_image(head)}")
        file.seek(0)
        try:
            image = factory(file, str(path))
        except Exception as error:
            raise ImageError(f"{path}: damaged image header ({_reason(error)})") from error
        width, height = image.size
        if width * height > max_pixels:
            raise ImageError(
                f"{path}: {width * height} pixels ({width} x {height}) exceed the limit of {max_pixels}; "
                "raise max_image_pixels (corpus.max_image_pixels of a corpus) if it is meant to be this large"
            )
        if width < 1 or height < 1:
            raise ImageError(f"{path}: the image has no pixels ({width} x {height})")
        yield image


def _factory(prefix: bytes) -> tuple[Any, str | None]:
    if not set(FORMATS) <= Image.OPEN.keys():
        Image.init()
    unsupported = None
    for name in FORMATS:
        factory, accept = Image.OPEN.get(name, (None, None))
        verdict = bool(factory) and (accept is None or accept(prefix))
        if isinstance(verdict, str):
            unsupported = verdict
        elif verdict:
            return factory, None
    return None, unsupported


def _binary(path: str | Path) -> IO[bytes]:
    """Open a regular, non-empty file for reading, or say why not."""
    try:
        status = Path(path).stat()
        if stat.S_ISDIR(status.st_mode):
            raise ImageError(f"{path}: is a folder, expected an image file")
        if not stat.S_ISREG(status.st_mode):
            # Opening a pipe would wait for ever.
            raise ImageError(f"{path}: is not a regular file")
        if status.st_size == 0:
            raise ImageError(f"{path}: the file is empty (0 bytes)")
        return Path(path).open("rb")
    except (OSError, ValueError) as error:
        _no_file(path, error)


def _no_file(path: str | Path, error: Exception) -> NoReturn:
    if isinstance(error, (FileNotFoundError, RuntimeError)) or getattr(error, "errno", None) == errno.ELOOP:
        link = Path(path).is_symlink()
        reason = f"is a link to {str(Path(path).readlink())!r}, which cannot be followed" if link else "no such file"
    elif isinstance(error, PermissionError):
        reason = "permission denied"
    else:
        reason = f"cannot be opened ({_reason(error)})"
    raise ImageError(f"{path}: {reason}") from error


def _not_an_image(head: bytes) -> str:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    found = next((text for magic, text in _LOOKS_LIKE if start.startswith(magic)), None)
    if found is None:
        found = f"the file starts with {head[:12]!r}"
    return f"not an image of a known format ({', '.join(FORMATS)}): {found}"


def _reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error)
    return text or type(error).__name__


def _frames(image: Image.Image) -> int:
    if image.format == "MPO":
        return 1
    try:
        return int(getattr(image, "n_frames", 1)) if getattr(image, "is_animated", False) else 1
    except Exception:
        # Damage behind the first frame does not concern the first frame.
        return 1


_lock = threading.Lock()
_decoders = 0
_truncated_before = False


@contextmanager
def _strict_decoding() -> Iterator[None]:
    """Hold Pillow's LOAD_TRUNCATED_IMAGES at False, so that a torn file is never filled up with grey.

    Counted, since several threads may decode at once: the first one in saves the setting, the last one out restores it.
    """
    global _decoders, _truncated_before
    with _lock:
        if _decoders == 0:
            _truncated_before = ImageFile.LOAD_TRUNCATED_IMAGES
            ImageFile.LOAD_TRUNCATED_IMAGES = False
        _decoders += 1
    try:
        yield
    finally:
        with _lock:
            _decoders -= 1
            if _decoders == 0:
                ImageFile.LOAD_TRUNCATED_IMAGES = _truncated_before


# --- pixels ----------------------------------------------------------------------------------------------------------


def _opaque_rgb(image: Image.Image, key: Any, depth: tuple[int, bool]) -> Image.Image:
    mode = image.mode
    if mode == "F":
        raise ImageError("floating-point pixels have no defined range; save the image with 8 or 16 bits a sample")
    if mode == "I" or mode.startswith("I;16"):
        return _from_integers(np.asarray(image), key, depth)
    if mode == "CMYK":
        return _from_cmyk(image)
    if mode == "LAB":
        return _from_lab(image)
    if mode in ("P", "PA", "RGBa", "La", "LA", "RGBA"):
        if mode == "La":
            image = image.convert("LA")
        return _on_background(image if image.mode == "RGBA" else image.convert("RGBA"))
    if mode in ("1", "L", "RGB") and key is not None:
        rgb = image.convert("RGB")
        return _with_key(np.array(rgb), (np.asarray(rgb) == np.asarray(key, dtype=np.int64)).all(axis=-1))
    try:
        return image.convert("RGB")
    except ValueError as error:
        raise ImageError(f"pixels of mode {mode!r} cannot be converted to RGB ({error})") from error


def _on_background(rgba: Image.Image) -> Image.Image:
    canvas = Image.new("RGB", rgba.size, BACKGROUND)
    canvas.paste(rgba.convert("RGB"), mask=rgba.getchannel("A"))
    return canvas


def _with_key(rgb: np.ndarray, transparent: np.ndarray) -> Image.Image:
    rgb[transparent] = BACKGROUND
    return Image.fromarray(rgb)


def _from_integers(values: np.ndarray, key: Any, depth: tuple[int, bool]) -> Image.Image:
    """16-bit grey (or fewer bits, by ``depth``) to RGB: keep the high byte, as Pillow does for 16-bit colour."""
    bits, white_is_zero = depth
    top = (1 << bits) - 1
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > top:
        raise ImageError(f"integer pixels run from {low} to {high}, expected 0 to {top}; save with 8 or 16 bits")
    grey = (values.astype(np.uint32) >> (bits - 8)).astype(np.uint8)
    if white_is_zero:
        grey = 255 - grey
    rgb = np.repeat(grey[:, :, None], 3, axis=2)
    if isinstance(key, int):
        return _with_key(rgb, values == key)
    return Image.fromarray(rgb)


def _from_cmyk(image: Image.Image) -> Image.Image:
    profile = image.info.get("icc_profile")
    if profile:
        from PIL import ImageCms

        try:
            source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            if source.profile.xcolor_space.strip() == "CMYK":
                converted = ImageCms.profileToProfile(image, source, ImageCms.createProfile("sRGB"), outputMode="RGB")
                if converted is not None:
                    return converted
            reason = f"it describes {source.profile.xcolor_space.strip()} colours"
        except (ImageCms.PyCMSError, OSError, ValueError) as error:
            reason = _reason(error)
        logger.warning(
            "%s: the ICC profile of a CMYK image cannot be used (%s); the plain formula is used instead",
            getattr(image, "filename", "") or "image",
            reason,
        )
    return image.convert("RGB")


def _from_lab(image: Image.Image) -> Image.Image:
    from PIL import ImageCms

    converted = ImageCms.profileToProfile(
        image, ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB"), outputMode="RGB"
    )
    if converted is None:
        raise ImageError("LAB pixels cannot be converted to RGB")
    return converted


def _rawmode(image: Image.Image) -> str:
    """Pillow's name of the stored samples (``L;4``, ``RGB;16B``); only known before decoding."""
    tile = getattr(image, "tile", None)
    if not tile:
        return ""
    args = tile[0][3]
    raw = args if isinstance(args, str) else args[0] if isinstance(args, tuple) and args else ""
    return raw if isinstance(raw, str) else ""


def _colour_key(image: Image.Image) -> Any:
    """The transparent grey level or colour of a grey or RGB image, in units of the decoded pixels."""
    key = image.info.get("transparency")
    if key is None or image.mode not in ("1", "L", "RGB", "I", "I;16", "I;16B") or isinstance(key, bytes):
        return None
    raw = _rawmode(image)
    if image.mode == "RGB":
        # Colour is decoded to 8 bits; a 16-bit key shrinks with it.
        return tuple(int(v) >> 8 for v in key) if ";16" in raw else tuple(int(v) for v in key)
    # Pillow spreads 1, 2 and 4-bit grey over 0..255 and leaves the key as stored in the file.
    factor = {"1": 255, "L;2": 85, "L;4": 17}.get(raw, 1)
    if raw == "1" and int(key) > 1:
        factor = 1
    return int(key) * factor


def _grey_depth(image: Image.Image) -> tuple[int, bool]:
    """Bits of the integer samples and whether zero means white, from a TIFF's tags; 16 and no otherwise."""
    tags = getattr(image, "tag_v2", None)
    if tags is None or not image.mode.startswith("I"):
        return 16, False
    bits = tags.get(258, 16)
    bits = bits[0] if isinstance(bits, tuple) else bits
    return (bits if 8 < bits < 16 else 16), tags.get(262) == 0
