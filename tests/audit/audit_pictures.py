"""Pictures for tests of metrics: natural-looking, degenerate, of any size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from bcs_lab.corpus import load_corpus
from bcs_lab.corpus.schema import Corpus


def scene(seed: int, size: tuple[int, int] = (300, 260)) -> Image.Image:
    """Smooth colours with edges and grain, like a photograph; size is width, height."""
    rng = np.random.default_rng(seed)
    width, height = size
    y, x = np.mgrid[0:height, 0:width] / max(size)
    channels = []
    for _ in range(3):
        waves = rng.normal(size=(4, 3))
        value = sum(a * np.sin(6 * (b * x + c * y) + a) for a, b, c in waves)
        channels.append(128 + 40 * value)
    pixels = np.stack(channels, axis=2)
    for _ in range(5):
        left, top = rng.integers(0, max(width - 4, 1)), rng.integers(0, max(height - 4, 1))
        pixels[top : top + height // 4, left : left + width // 4] = rng.integers(0, 256, 3)
    pixels += rng.normal(size=pixels.shape) * 6
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def flat(value: int | tuple[int, int, int], size: tuple[int, int] = (64, 64)) -> Image.Image:
    return Image.new("RGB", size, (value,) * 3 if isinstance(value, int) else value)


def write_corpus(
    root: Path, pairs: Sequence[tuple[Image.Image | bytes, Image.Image | bytes]], **columns: object
) -> Corpus:
    """A manifest of pairs; bytes are written as they are, in place of a picture."""
    root.mkdir(parents=True, exist_ok=True)
    lines = ["pair_id,method,subject,concept,rank,candidate,reference_path,reconstruction_path"]
    for number, images in enumerate(pairs):
        names = []
        for side, image in zip(("ref", "rec"), images, strict=True):
            name = f"{side}_{number:04d}.png"
            if isinstance(image, bytes):
                (root / name).write_bytes(image)
            else:
                image.save(root / name)
            names.append(name)
        lines.append(f"p{number:04d},M{number % 2},sub-01,concept{number // 3},1,1,{names[0]},{names[1]}")
    (root / "manifest.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return load_corpus("manifest", root, need_answers=False, need_images=False)
