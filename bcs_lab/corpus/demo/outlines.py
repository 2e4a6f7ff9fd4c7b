"""Outlines of the icon font as polygons, and their fill: integers only, no font rasteriser.

Curves are cut into straight pieces in exact integer arithmetic and filled by the non-zero winding rule at 4 x 4 samples
a pixel, so a coverage is the same on every machine that has the same font file.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bcs_lab.errors import CorpusError

#: What to type when the font is missing.
INSTALL = "pip install 'fontawesomefree==6.6.0' fonttools"
#: Units of a polygon's coordinates in one unit of the font: pieces of a curve then end on whole numbers.
UNITS = 16
#: Straight pieces a curve is cut into.
PIECES = 4
#: Units of a coordinate in one pixel, when a polygon is filled.
PIXEL = 256
#: Samples along one side of a pixel; coverage runs from 0 to its square.
SAMPLES = 4
FULL = SAMPLES * SAMPLES

#: Side of the grid that silhouettes are compared on.
SILHOUETTE = 64


@dataclass(frozen=True)
class Outline:
    """Closed polygons: consecutive runs of one array of points.

    Attributes:
        points: int64 ``[n, 2]``, x to the right, y down.
        starts: first point of each polygon, then ``n``.
    """

    points: np.ndarray
    starts: tuple[int, ...]

    @property
    def polygons(self) -> list[np.ndarray]:
        """The points of each polygon."""
        return [self.points[a:b] for a, b in pairwise(self.starts)]


def outline_of(polygons: list[np.ndarray]) -> Outline:
    """One outline from separate polygons, int64 ``[n, 2]`` each."""
    starts = [0]
    for polygon in polygons:
        starts.append(starts[-1] + len(polygon))
    points = np.concatenate(polygons) if polygons else np.zeros((0, 2), np.int64)
    return Outline(points, tuple(starts))


# ----------------------------------------------------------------------------------------------------------------- font


def _missing(what: str) -> CorpusError:
    return CorpusError(
        f"the demo draws with the icons of Font Awesome Free 6.6.0, and {what}; install them with: {INSTALL}"
    )


@cache
def _font() -> Mapping[str, Any]:
    """The table of glyphs by icon name."""
    try:
        from fontTools.ttLib import TTFont, TTLibError  # type: ignore[import-untyped]
    except ImportError as error:
        raise _missing("the package fonttools is not installed") from error
    spec = importlib.util.find_spec("fontawesomefree")
    if spec is None or not spec.submodule_search_locations:
        raise _missing("the package fontawesomefree is not installed")
    path = Path("static", "fontawesomefree", "webfonts", "fa-solid-900.ttf")
    found = [Path(root) / path for root in spec.submodule_search_locations if (Path(root) / path).is_file()]
    if not found:
        raise _missing(f"the installed package fontawesomefree has no file {path.as_posix()}")
    try:
        return TTFont(found[0], lazy=True)["glyf"]
    except (TTLibError, OSError) as error:
        raise _missing(f"its font {found[0].name} cannot be read ({error})") from error


@cache
def glyph(icon: str) -> Outline:
    """An icon's outline.

    Args:
        icon: name of a solid icon, such as ``mug-saucer``.

    Returns:
        Polygons in ``UNITS`` of a font unit, the middle of the bounding box at the origin. Outer contours and holes run
        in opposite directions.

    Raises:
        CorpusError: when the font is not installed, or has no such icon.
    """
    table = _font()
    try:
        coordinates, ends, flags = table[icon].getCoordinates(table)[:3]
    except KeyError as error:
        raise _missing(f"the installed version has no icon {icon!r}") from error
    polygons = []
    first = 0
    for end in ends:
        points = [
            (int(x), -int(y), bool(on & 1)) for (x, y), on in zip(*_span(coordinates, flags, first, end), strict=True)
        ]
        polygons.append(_flatten(points))
        first = end + 1
    outline = outline_of(polygons)
    low, high = outline.points.min(axis=0), outline.points.max(axis=0)
    return Outline(outline.points - (low + high) // 2, outline.starts)


def _span(coordinates: Any, flags: Any, first: int, end: int) -> tuple[list[Any], list[int]]:
    return [coordinates[i] for i in range(first, end + 1)], [int(flags[i]) for i in range(first, end + 1)]


def _flatten(points: list[tuple[int, int, bool]]) -> np.ndarray:
    """One TrueType contour (on-curve points and quadratic controls) as a polygon in ``UNITS`` of a font unit."""
    full: list[tuple[int, int, bool]] = []
    for here, then in zip(points, [*points[1:], points[0]], strict=True):
        # Doubled coordinates keep the implied point between two controls a whole number.
        full.append((2 * here[0], 2 * here[1], here[2]))
        if not here[2] and not then[2]:
            full.append((here[0] + then[0], here[1] + then[1], True))
    start = next(i for i, point in enumerate(full) if point[2])
    full = [*full[start:], *full[:start]]
    out: list[tuple[int, int]] = []
    scale = UNITS // 2
    for i, (x, y, on) in enumerate(full):
        if on:
            out.append((x * scale, y * scale))
            continue
        (ax, ay, _), (bx, by, _) = full[i - 1], full[(i + 1) % len(full)]
        for t in range(1, PIECES):
            s = PIECES - t
            px = (s * s * ax + 2 * s * t * x + t * t * bx) * scale
            py = (s * s * ay + 2 * s * t * y + t * t * by) * scale
            out.append((px // PIECES**2, py // PIECES**2))
    return np.array(out, np.int64)


def doubled_area(polygon: np.ndarray) -> int:
    """Twice the signed area of a polygon, int64 ``[n, 2]``."""
    x, y = polygon[:, 0], polygon[:, 1]
    return int((x * np.roll(y, -1) - np.roll(x, -1) * y).sum())


@cache
def is_hole(icon: str) -> tuple[bool, ...]:
    """For each polygon of an icon, whether it runs against the outer contours."""
    areas = [doubled_area(polygon) for polygon in glyph(icon).polygons]
    outer = max(areas, key=abs) > 0
    return tuple((area > 0) != outer for area in areas)


# ----------------------------------------------------------------------------------------------------------------- fill


def coverage(outline: Outline, width: int, height: int) -> np.ndarray:
    """How much of each pixel an outline covers, by the non-zero winding rule.

    Args:
        outline: polygons in ``PIXEL`` units, the origin at the upper left corner; they may reach outside.
        width: in pixels.
        height: in pixels.

    Returns:
        int16 ``[height, width]``, 0 to ``FULL``.
    """
    rows, columns = height * SAMPLES, width * SAMPLES
    step, half = PIXEL // SAMPLES, PIXEL // SAMPLES // 2
    here = outline.points
    follow = np.arange(1, len(here) + 1)
    starts = np.array(outline.starts)
    follow[starts[1:] - 1] = starts[:-1]
    there = here[follow]
    down = here[:, 1] < there[:, 1]
    top, bottom = np.where(down, here[:, 1], there[:, 1]), np.where(down, there[:, 1], here[:, 1])
    # The sample rows that each edge crosses: those whose centre lies in [top, bottom).
    first = np.clip(-((half - top) // step), 0, rows)
    last = np.clip(-((half - bottom) // step), 0, rows)
    count = last - first
    edge = np.repeat(np.arange(len(here)), count)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + first[edge]
    rise = there[edge, 1] - here[edge, 1]
    x = here[edge, 0] + (row * step + half - here[edge, 1]) * (there[edge, 0] - here[edge, 0]) // rise
    column = np.clip(-((half - x) // step), 0, columns)
    place = row * (columns + 1) + column
    cells = rows * (columns + 1)
    downwards = down[edge]
    winding = np.bincount(place[downwards], minlength=cells) - np.bincount(place[~downwards], minlength=cells)
    inside = np.cumsum(winding.astype(np.int8).reshape(rows, columns + 1), axis=1, dtype=np.int8)[:, :columns] != 0
    samples = inside.view(np.uint8)
    tall = samples[0::4] + samples[1::4] + samples[2::4] + samples[3::4]
    return (tall[:, 0::4] + tall[:, 1::4] + tall[:, 2::4] + tall[:, 3::4]).astype(np.int16)


@cache
def silhouette(icon: str) -> np.ndarray:
    """An icon fitted into a square, bool ``[SILHOUETTE, SILHOUETTE]``."""
    outline = glyph(icon)
    side = int((outline.points.max(axis=0) - outline.points.min(axis=0)).max())
    points = outline.points * (SILHOUETTE * PIXEL) // side + SILHOUETTE * PIXEL // 2
    return coverage(Outline(points, outline.starts), SILHOUETTE, SILHOUETTE) * 2 >= FULL
