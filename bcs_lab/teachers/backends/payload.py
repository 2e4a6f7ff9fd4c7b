"""Images as a server gets them: data URIs, without loss unless asked for."""

from __future__ import annotations

import base64
import io
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from bcs_lab.corpus.images import load_image

_ORIENTATION = 0x0112
_MIME = {"PNG": "image/png", "JPEG": "image/jpeg"}


@dataclass(frozen=True)
class ImageForm:
    """How images are sent.

    Attributes:
        max_side: longest side in pixels; larger images are shrunk (Lanczos), with their proportions kept.
        format: ``auto`` sends PNG and JPEG files that need no change byte for byte and everything else as PNG; ``png``
            and ``jpeg`` encode every image anew.
        quality: of ``jpeg``, 1 to 100, without chroma subsampling.
        max_pixels: larger images are refused before they are decoded.
    """

    max_side: int | None
    format: str
    quality: int
    max_pixels: int


def data_uri(path: Path, form: ImageForm) -> str:
    """One image as ``data:image/…;base64,…``.

    The file is decoded in any case, so that a damaged one is never sent.

    Raises:
        ImageError: the file is missing, damaged or too large.
    """
    image = load_image(path, max_pixels=form.max_pixels)
    longest = max(image.size)
    if form.max_side is not None and longest > form.max_side:
        width, height = (max(1, round(side * form.max_side / longest)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    elif form.format == "auto" and (kind := _as_it_is(path)):
        return _uri(path.read_bytes(), kind)
    buffer = io.BytesIO()
    if form.format == "jpeg":
        image.save(buffer, "JPEG", quality=form.quality, subsampling=0)
        return _uri(buffer.getvalue(), "JPEG")
    image.save(buffer, "PNG", compress_level=3)
    return _uri(buffer.getvalue(), "PNG")


def _as_it_is(path: Path) -> str | None:
    """The format of a file that any decoder reads as :func:`bcs_lab.corpus.images.load_image` does, else ``None``."""
    with Image.open(path) as image:
        plain = (
            image.format in _MIME
            and image.mode in ("RGB", "L")
            and "transparency" not in image.info
            and getattr(image, "n_frames", 1) == 1
            and not any(";16" in str(tile[3]) for tile in image.tile)
            and image.getexif().get(_ORIENTATION, 1) == 1
        )
        return image.format if plain else None


def _uri(data: bytes, kind: str) -> str:
    return f"data:{_MIME[kind]};base64,{base64.b64encode(data).decode('ascii')}"


class ImageCache:
    """The latest images as data URIs: requests about one pair, or one reference, follow each other.

    Args:
        form: how images are sent.
        most: images kept.
    """

    def __init__(self, form: ImageForm, most: int) -> None:
        self._form, self._most = form, most
        self._kept: OrderedDict[Path, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: Path) -> str:
        """As :func:`data_uri`."""
        with self._lock:
            if path in self._kept:
                self._kept.move_to_end(path)
                return self._kept[path]
        uri = data_uri(path, self._form)
        with self._lock:
            self._kept[path] = uri
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return uri
