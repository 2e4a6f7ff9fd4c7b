"""The degradation probe: does a metric fall as a known corruption of the reference grows (Section 3.3, Table 2)?

Six degradations in four severities each; the clean picture itself takes no part. Beside the paper's correlation over
all images and severities stands the one within each image, averaged: the first also asks whether a degradation costs
all images the same, the second only whether the metric falls.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from bcs_lab.agreement import cluster_draws, estimate
from bcs_lab.audit.correlations import without_infinity
from bcs_lab.corpus.images import file_sha256, load_image
from bcs_lab.corpus.schema import Corpus
from bcs_lab.errors import ImageError
from bcs_lab.evaluate import percentile_interval, resampled, spearman

log = logging.getLogger(__name__)

#: Side of the square that every reference is cropped and scaled to.
SIDE = 256

#: Degradation -> its four severities, mildest first. Blur: radius in pixels; noise: standard deviation, pixels in
#: [0, 1]; downsample: scale, there and back; jpeg: quality; color: what is left of the saturation; shift: pixels right
#: and down.
SEVERITIES: Mapping[str, tuple[float, ...]] = {
    "blur": (1, 2, 4, 8),
    "noise": (0.03, 0.06, 0.12, 0.24),
    "downsample": (0.75, 0.5, 0.25, 0.125),
    "jpeg": (60, 40, 25, 10),
    "color": (0.75, 0.5, 0.25, 0.0),
    "shift": (4, 8, 16, 32),
}

#: Degradation -> what tables call it.
TITLES: Mapping[str, str] = {
    "blur": "blur",
    "noise": "noise",
    "downsample": "downsampling",
    "jpeg": "JPEG",
    "color": "colour loss",
    "shift": "shift",
}

LEVELS = 4

#: Shortest side of a downsampled picture.
SMALLEST = 8

#: Pooled and per-image correlations that differ by less read alike.
NOTABLE = 0.15

#: Raised when the degraded pictures change, so that kept values are not mistaken for new ones.
VERSION = 1

#: References and degraded pictures of one length -> metric -> its values, not oriented, NaN where undefined.
Measure = Callable[[Sequence[Image.Image], Sequence[Image.Image]], Mapping[str, NDArray[np.floating]]]

Floats = NDArray[np.float64]
Interval = list[float] | None


# --- pictures -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """One reference of the probe.

    Attributes:
        path: of its file.
        digest: SHA-256 of its pixels as probed, 64 hex digits.
    """

    path: Path
    digest: str

    def open(self, max_pixels: int) -> Image.Image:
        """Its picture, cropped and scaled."""
        return fitted(load_image(self.path, max_pixels=max_pixels))


def fitted(image: Image.Image) -> Image.Image:
    """Centre square of an RGB picture at :data:`SIDE` pixels, Lanczos."""
    return ImageOps.fit(image, (SIDE, SIDE), Image.Resampling.LANCZOS)


def probe_images(corpus: Corpus, *, compat: str = "correct") -> tuple[list[Probe], dict[str, int]]:
    """The distinct references of a corpus.

    Args:
        corpus: with images.
        compat: ``correct`` counts a picture once however often and under whatever name it occurs, in the order of its
            content; ``reference`` counts every path, in the order of their names, as the authors' code does.

    Returns:
        The references, and how many ``paths`` there were, how many were ``repeated`` and how many ``broken``.
    """
    paths: dict[Path, None] = dict.fromkeys(corpus.reference_file(i) for i in range(len(corpus)))
    found: dict[str, Probe] = {}
    by_file: dict[bytes, str] = {}
    out: list[Probe] = []
    broken = 0
    for path in sorted(paths, key=str):
        try:
            content = file_sha256(path)
            digest = by_file.get(content)
            if digest is None:
                picture = fitted(load_image(path, max_pixels=corpus.max_image_pixels))
                digest = by_file[content] = hashlib.sha256(picture.tobytes()).hexdigest()
        except ImageError as error:
            log.warning("degradation probe: %s", error)
            broken += 1
            continue
        out.append(Probe(path, digest))
        found.setdefault(digest, out[-1])
    chosen = out if compat == "reference" else sorted(found.values(), key=lambda probe: probe.digest)
    return chosen, {"paths": len(paths), "repeated": len(out) - len(found), "broken": broken}


def sampled(images: Sequence[Probe], most: int | None, *, seed: int = 0, compat: str = "correct") -> list[Probe]:
    """At most ``most`` of the references, drawn at random; under ``compat=reference`` the first ones."""
    if most is None or len(images) <= most:
        return list(images)
    if compat == "reference":
        return list(images[:most])
    drawn = np.random.default_rng(seed).permutation(len(images))[:most]
    return [images[at] for at in sorted(drawn.tolist())]


def degrade(image: Image.Image, kind: str, level: int, *, seed: int = 0, compat: str = "correct") -> Image.Image:
    """One degraded version of a picture.

    Args:
        image: RGB.
        kind: key of :data:`SEVERITIES`.
        level: 0 (mildest) to 3.
        seed: of the noise.
        compat: ``correct`` draws noise of its own for every picture and severity; ``reference`` as the authors' code
            does, one noise for all pictures that share severity and red value of the first pixel.

    Returns:
        RGB of the same size.
    """
    amount = SEVERITIES[kind][level]
    if kind == "blur":
        return image.filter(ImageFilter.GaussianBlur(amount))
    if kind == "noise":
        return _noisy(image, amount, _noise_seed(image, amount, level, seed, compat))
    if kind == "downsample":
        small = (max(SMALLEST, round(image.width * amount)), max(SMALLEST, round(image.height * amount)))
        return image.resize(small, Image.Resampling.BICUBIC).resize(image.size, Image.Resampling.BICUBIC)
    if kind == "jpeg":
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=int(amount))
        with Image.open(buffer) as coded:
            return coded.convert("RGB")
    if kind == "color":
        return ImageEnhance.Color(image).enhance(amount)
    if kind == "shift":
        by = int(amount)
        width, height = image.size
        # mirrored without repeating the edge
        padded = np.pad(np.asarray(image), ((by, 0), (by, 0), (0, 0)), mode="reflect")
        return Image.fromarray(np.ascontiguousarray(padded[:height, :width]))
    raise ValueError(f"Expected `kind` to be one of {', '.join(SEVERITIES)} but got {kind!r}.")


def _noise_seed(image: Image.Image, sigma: float, level: int, seed: int, compat: str) -> Any:
    if compat == "reference":
        first = image.getpixel((0, 0))
        red = first[0] if isinstance(first, tuple) else first
        return int(sigma * 1e5) + int(float(red or 0) / 255 * 1000)
    content = hashlib.sha256(image.tobytes()).digest()
    return [seed, level, int.from_bytes(content[:8], "big")]


def _noisy(image: Image.Image, sigma: float, seed: Any) -> Image.Image:
    clean = np.asarray(image, dtype=np.float64) / 255
    noise = np.random.default_rng(seed).normal(0.0, sigma, clean.shape)
    return Image.fromarray((np.clip(clean + noise, 0.0, 1.0) * 255 + 0.5).astype(np.uint8))


def degraded(image: Image.Image, *, seed: int = 0, compat: str = "correct") -> list[Image.Image]:
    """All degraded versions of a picture: degradations in the order of :data:`SEVERITIES`, mildest first in each."""
    return [degrade(image, kind, level, seed=seed, compat=compat) for kind in SEVERITIES for level in range(LEVELS)]


# --- values ---------------------------------------------------------------------------------------------------------


def measure_images(
    images: Sequence[Image.Image], measures: Sequence[Measure], *, seed: int = 0, compat: str = "correct"
) -> Iterator[tuple[str, Floats]]:
    """Values of every metric on all degraded versions of some pictures.

    Args:
        images: references.
        measures: each gives the values of one or more metrics for references and degraded pictures.
        seed: of the noise.
        compat: as in :func:`degrade`.

    Yields:
        Name and values [n_images, n_degradations, 4], not oriented.
    """
    variants = [degraded(image, seed=seed, compat=compat) for image in images]
    each = len(SEVERITIES) * LEVELS
    references = [image for image in images for _ in range(each)]
    flat = [variant for own in variants for variant in own]
    for measure in measures:
        for name, values in measure(references, flat).items():
            yield name, np.asarray(values, dtype=np.float64).reshape(len(images), len(SEVERITIES), LEVELS)


# --- statistics -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tracking:
    """How well a metric tracks one degradation.

    Attributes:
        images: references with a value.
        rho: Spearman of quality and negative severity over all images and severities; the paper's; ``None`` where
            undefined.
        rho_interval: 95 %, from drawing whole images.
        per_image: the same within each image, averaged over the images where it is defined.
        per_image_interval: 95 %, likewise.
        still_images: images on which the metric gives all severities the same value, so that there is none.
        means: quality as mean rank among all values of this degradation, 0 to 1, at each severity.
        reason: why ``rho`` is undefined, or ``""``.
    """

    images: int
    rho: float | None = None
    rho_interval: Interval = None
    per_image: float | None = None
    per_image_interval: Interval = None
    still_images: int = 0
    means: tuple[float, ...] = ()
    reason: str = ""

    @property
    def reading(self) -> str:
        """``"steadier"`` where the metric falls on each image more surely than the pooled correlation says,
        ``"unsteadier"`` for the opposite, ``""`` where both read alike."""
        if self.rho is None or self.per_image is None or abs(self.per_image - self.rho) < NOTABLE:
            return ""
        return "steadier" if self.per_image > self.rho else "unsteadier"


def tracking(quality: Floats, *, resamples: int = 0, seed: int = 0) -> Tracking:
    """How well a metric tracks one degradation.

    Args:
        quality: [n_images, 4] oriented so that larger is better, mildest first; NaN where undefined.
        resamples: of whole images, for intervals.
        seed: of the resampling.

    Example:
        >>> levels = np.array([0.0, 10.0, 20.0])[:, None]  # three images that differ more than severities do
        >>> found = tracking(levels + np.array([0.4, 0.3, 0.2, 0.1]))
        >>> round(found.rho, 3), found.per_image, found.reading
        (0.324, 1.0, 'steadier')
    """
    if quality.ndim != 2 or quality.shape[1] != LEVELS:
        raise ValueError(f"Expected `quality` of shape [n_images, {LEVELS}] but got {quality.shape}.")
    known = ~np.isnan(quality)
    some = known.any(axis=1)
    x, known = without_infinity(quality)[some], known[some]
    if not len(x):
        return Tracking(0, reason="no image has a value")
    severity = -np.broadcast_to(np.arange(LEVELS, dtype=np.float64), x.shape)
    image = np.broadcast_to(np.arange(len(x))[:, None], x.shape)
    rho = spearman(x[known], severity[known])
    own = [spearman(row[there], -np.flatnonzero(there).astype(np.float64)) for row, there in zip(x, known, strict=True)]
    each = np.array([np.nan if value is None else value for value in own])
    defined = ~np.isnan(each)
    times = cluster_draws(len(x), resamples, seed) if resamples else np.zeros((0, len(x)))
    bounds = None
    if rho is not None and len(times) and len(x) > 1:
        bounds = percentile_interval(resampled(x[known], severity[known], image[known], times)["rho"])
    sums = np.stack([np.where(defined, each, 0.0), defined], axis=1).astype(np.float64)
    (mean,), (mean_bounds,) = estimate(sums, times, _ratio)
    return Tracking(
        images=len(x),
        rho=rho,
        rho_interval=bounds,
        per_image=mean,
        per_image_interval=mean_bounds,
        still_images=int((~defined).sum()),
        means=_mean_ranks(x, known),
        reason="" if rho is not None else "the metric is the same for every image and severity",
    )


def _ratio(sums: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(sums[:, 1:] > 0, sums[:, :1] / sums[:, 1:], np.nan)


def _mean_ranks(x: Floats, known: NDArray[np.bool_]) -> tuple[float, ...]:
    """Mean rank at each severity, 0 for the worst value of all and 1 for the best."""
    values = x[known]
    order = np.sort(values)
    low, high = np.searchsorted(order, values, "left"), np.searchsorted(order, values, "right")
    ranks = np.full(x.shape, np.nan)
    ranks[known] = (low + high - 1) / 2 / max(len(values) - 1, 1)
    return tuple(float(ranks[known[:, k], k].mean()) for k in range(LEVELS) if known[:, k].any())
