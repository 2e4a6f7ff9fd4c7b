"""Draw a scene: objects of a colour and surface, arranged in a place.

Everything is integer arithmetic on NumPy arrays in one thread: outlines come from :mod:`outlines`, not from a font
rasteriser, randomness from the raw output of PCG64, circles from a table. The one exception is the square root in
``deform``, which IEEE 754 defines to the last bit. So the pixels depend on the scene, the size and the font file (a
pinned version) and on nothing else: not on processor, library build, threads, or what was drawn before. What remains is
the file format: a PNG's bytes depend on the zlib that wrote it, so compare pixels.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from itertools import pairwise
from numbers import Integral

import numpy as np
from PIL import Image

from bcs_lab.corpus.demo.backgrounds import BACKGROUNDS, Chance, background, ellipse, mix, soften
from bcs_lab.corpus.demo.concepts import COLOURS, CONCEPTS, ENVIRONMENTS, LAYOUTS, MAX_COUNT, RGB, TEXTURES
from bcs_lab.corpus.demo.outlines import FULL, PIXEL, UNITS, Outline, coverage, doubled_area, glyph, is_hole, outline_of
from bcs_lab.corpus.demo.scene import Scene

#: Smallest and largest height of an object, as a share of the picture's height.
SIZES = (0.15, 0.7)
#: Smallest and largest side of a picture, in pixels.
PICTURE_SIDES = (32, 1024)

#: A hole smaller than this share of the icon's box (1/n) is part of the thing (a window, an eye) and gets a colour.
_SMALL_HOLE = 9
#: Coordinates inside an object run over this many steps a height.
_LOCAL = 1024


def draw(scene: Scene, size: int = 128) -> Image.Image:
    """Draw a scene.

    Args:
        scene: what to draw.
        size: side of the picture in pixels, 32 to 1024.

    Returns:
        RGB, ``size`` x ``size``; the same pixels for the same arguments, whatever was drawn before.

    Raises:
        ValueError: when a field of the scene has no meaning; the message says what was expected.
        CorpusError: when the icon font is not installed.
    """
    check_scene(scene)
    if not isinstance(size, int) or not PICTURE_SIDES[0] <= size <= PICTURE_SIDES[1]:
        raise ValueError(
            f"size is the picture's side in pixels, {PICTURE_SIDES[0]} to {PICTURE_SIDES[1]}; got {size!r}"
        )
    chance = Chance(scene.variant)
    # Large ones are not kept: a cache of them would take gigabytes.
    empty = background if size <= 256 else background.__wrapped__
    pixels = empty(scene.environment, chance.between(0, BACKGROUNDS - 1), size).copy()
    height = drawn_size(scene)
    places = []
    for index, (x, y) in enumerate(LAYOUTS[scene.layout].anchors[scene.count - 1]):
        near = height // 24
        places.append(
            (
                y + chance.between(-near, near),
                x + chance.between(-near, near),
                height * (1000 + chance.between(-35, 35)) // 1000,
                chance.between(-90, 90),
                index,
            )
        )
    floor = ENVIRONMENTS[scene.environment].horizon
    # Shadows first, then objects from far to near.
    placed = [_Object(scene, size, x, y, tall, tilt, index) for y, x, tall, tilt, index in sorted(places)]
    for item in placed:
        if floor < 1000:
            item.cast_shadow(pixels, floor)
    for item in placed:
        item.paint(pixels, dark_place=sum(ENVIRONMENTS[scene.environment].ground[1]) < 240)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def check_scene(scene: Scene) -> None:
    """See that every field of a scene has a meaning.

    Raises:
        ValueError: naming the field, what was expected and what was found.
    """
    for field, table in (
        ("concept", CONCEPTS),
        ("layout", LAYOUTS),
        ("colour", COLOURS),
        ("texture", TEXTURES),
        ("environment", ENVIRONMENTS),
    ):
        value = getattr(scene, field)
        if value not in table:
            known = ", ".join(table) if len(table) < 30 else f"{len(table)} names such as {next(iter(table))!r}"
            raise ValueError(f"scene.{field}: unknown name {value!r}; expected one of {known}")
    if not isinstance(scene.count, Integral) or not 1 <= scene.count <= MAX_COUNT:
        raise ValueError(f"scene.count is the number of objects, 1 to {MAX_COUNT}; got {scene.count!r}")
    if not SIZES[0] <= scene.size <= SIZES[1]:
        raise ValueError(f"scene.size is a share of the picture's height, {SIZES[0]} to {SIZES[1]}; got {scene.size!r}")
    if not 0 <= scene.deform <= 1:
        raise ValueError(f"scene.deform is a share, 0 (not bent) to 1 (collapsed); got {scene.deform!r}")
    if not isinstance(scene.variant, Integral) or scene.variant < 0:
        raise ValueError(f"scene.variant is a seed, 0 or more; got {scene.variant!r}")


def drawn_size(scene: Scene) -> int:
    """Height at which an object is drawn, in thousandths of the picture.

    Several objects in one layout have only so much room; beyond it, a size grows at a twenty-fifth of the rate.
    """
    wanted = _permille(scene.size)
    room = LAYOUTS[scene.layout].room[scene.count - 1]
    return wanted if wanted <= room else room + (wanted - room) // 25


def _permille(share: float) -> int:
    return round(share * 1000)


# -------------------------------------------------------------------------------------------------------------- objects


class _Object:
    """One object at its place in the picture, ready to be painted."""

    def __init__(self, scene: Scene, size: int, x: int, y: int, tall: int, tilt: int, index: int) -> None:
        self.scene = scene
        body, windows = _parts(scene.concept, _permille(scene.deform), scene.variant % 4)
        low, high = body.points.min(axis=0), body.points.max(axis=0)
        wide, deep = (high - low).tolist()
        # A wide thing that stands alone may be a quarter wider than it is "high".
        extent = max(deep, wide * 4 // 5 if scene.count == 1 else wide)
        self.height = max(4, tall * size // 1000)
        turn = _rotation(tilt)
        centre = np.array([x, y]) * (size * PIXEL) // 1000
        scaled = [_place(part, turn, tall * size * PIXEL // 1000, extent, centre) for part in (body, windows)]
        scaled = _inside(scaled, size)
        self.margin = max(1, size // 100)
        corner = scaled[0].points.min(axis=0) // PIXEL - self.margin - 1
        far = -(-scaled[0].points.max(axis=0) // PIXEL) + self.margin + 1
        self.x0, self.y0 = corner.tolist()
        self.width, self.depth = (far - corner).tolist()
        self.parts = [Outline(part.points - corner * PIXEL, part.starts) for part in scaled]
        self.size = size

    def _window(self) -> tuple[slice, slice, slice, slice] | None:
        """The part of the object's box that is inside the picture: rows and columns there and here."""
        top, left = max(0, -self.y0), max(0, -self.x0)
        bottom, right = min(self.depth, self.size - self.y0), min(self.width, self.size - self.x0)
        if top >= bottom or left >= right:
            return None
        there = slice(self.y0 + top, self.y0 + bottom), slice(self.x0 + left, self.x0 + right)
        return *there, slice(top, bottom), slice(left, right)

    def cast_shadow(self, pixels: np.ndarray, floor: int) -> None:
        """A soft ellipse on the ground under the object, if it stands on the ground."""
        size = pixels.shape[0]
        foot = self.y0 + self.depth - self.margin - 1
        if foot * 1000 < floor * size:
            return
        rx, ry = max(2, self.width * 54 // 100), max(2, self.height * 9 // 100)
        cx, cy = self.x0 + self.width // 2 + self.height // 16, foot - ry // 3
        x0, x1, y0, y1 = max(0, cx - rx), min(size, cx + rx + 1), max(0, cy - ry), min(size, cy + ry + 1)
        if x0 >= x1 or y0 >= y1:
            return
        across = ((np.arange(x0, x1) - cx) ** 2 * 1000) // (rx * rx)
        down = ((np.arange(y0, y1) - cy) ** 2 * 1000) // (ry * ry)
        strength = np.maximum(0, 1000 - across[None, :] - down[:, None])
        alpha = (strength * (2000 - strength) // 1000 * 135 // 1000).astype(np.int16)
        mix(pixels[y0:y1, x0:x1], np.array((24, 24, 36), np.int16), alpha)

    def paint(self, pixels: np.ndarray, dark_place: bool) -> None:
        """Lay the object on the picture."""
        window = self._window()
        if window is None:
            return
        rows, columns, own_rows, own_columns = window
        target = pixels[rows, columns]
        colour = COLOURS[self.scene.colour]
        body = coverage(self.parts[0], self.width, self.depth)
        whole = body
        if len(self.parts[1].points):
            panes = coverage(self.parts[1], self.width, self.depth)
            whole = np.minimum(FULL, body + panes)
        rim: RGB = tuple(c * 3 // 5 for c in colour.dark)  # type: ignore[assignment]
        if dark_place and sum(colour.rgb) < 330:
            rim = (206, 206, 222)
        edge = _grown(whole, self.margin)
        mix(target, np.array(rim, np.int16), (edge * 12)[own_rows, own_columns])
        if whole is not body:
            pane: RGB = (66, 74, 96) if sum(colour.rgb) > 540 else (224, 236, 242)
            mix(target, np.array(pane, np.int16), (whole * 16)[own_rows, own_columns])
        shade = self._shade(body)
        mix(target, _ramp(self.scene.colour)[shade[own_rows, own_columns]], (body * 16)[own_rows, own_columns])

    def _shade(self, body: np.ndarray) -> np.ndarray:
        """The step of the colour's ramp that each pixel takes, uint8 ``[h, w]``: light from the upper left, surface."""
        reach = max(1, self.height // 14)
        thick = soften(soften(body * 16, reach), reach)
        bevel = _moved(thick, -reach) - _moved(thick, reach)
        rows, columns = body.shape
        fall = 40 - (np.arange(rows)[:, None] * 64 + np.arange(columns)[None, :] * 16) // max(1, rows)
        side = -(-max(rows, columns) // 16) * 16
        # Large ones are not kept: a cache of them would take gigabytes.
        pattern = _surface if side <= 256 else _surface.__wrapped__
        surface = pattern(self.scene.texture, self.height, side)[:rows, :columns]
        return np.clip(128 + fall + bevel * 2 // 5 + surface, 0, 255).astype(np.uint8)


@lru_cache(maxsize=4096)
def _parts(concept: str, deform: int, bend: int) -> tuple[Outline, Outline]:
    """A concept's outline, bent, and its small holes apart; integers around the origin."""
    icon = CONCEPTS[concept].icon
    outline = glyph(icon)
    polygons, holes = outline.polygons, is_hole(icon)
    if deform:
        polygons = _bend(polygons, holes, deform, zlib.crc32(concept.encode()) % 65521 + bend)
    wide, deep = (outline.points.max(axis=0) - outline.points.min(axis=0)).tolist()
    limit = 2 * wide * deep // _SMALL_HOLE
    panes = [
        polygon
        for polygon, hole in zip(polygons, [*holes, False][: len(polygons)], strict=True)
        if hole and 0 < abs(doubled_area(polygon)) < limit
    ]
    return outline_of(polygons), outline_of(panes)


def _bend(polygons: list[np.ndarray], holes: tuple[bool, ...], deform: int, seed: int) -> list[np.ndarray]:
    """Bend outlines: waves across the shape, holes that close, and in the end a lump.

    Args:
        polygons: int64 ``[n, 2]`` each, around the origin.
        holes: which of them are holes.
        deform: 1 to 1000.
        seed: of the waves.

    Returns:
        The polygons, and the lump that the shape collapses into when ``deform`` is above 450.
    """
    chance = Chance(seed, 77)
    radius = 200 * UNITS
    waves = [
        (chance.between(0, 1023), chance.between(0, 1023), chance.between(500, 1000), chance.between(500, 1000))
        for _ in range(4)
    ]
    pull = deform * deform // 1000
    lump = _lump(chance, radius)

    def moved(points: np.ndarray) -> np.ndarray:
        x, y = points[:, 0], points[:, 1]
        # Two waves along each axis; a period of one and of half the shape.
        dx = _wave(y * 1024 // (2 * radius) + waves[0][0]) * waves[0][2] + _wave(y * 1024 // radius + waves[1][0]) * (
            waves[1][2] // 2
        )
        dy = _wave(x * 1024 // (2 * radius) + waves[2][1]) * waves[2][3] + _wave(x * 1024 // radius + waves[3][1]) * (
            waves[3][3] // 2
        )
        bent = points + np.stack([dx, dy], axis=1) * (radius * 4 // 10) // 1_000_000 * deform // 1000
        # The square root of a whole number is rounded correctly everywhere (IEEE 754).
        far = np.maximum(1, np.sqrt((bent**2).sum(axis=1).astype(np.float64)).astype(np.int64))
        round_ = bent * (radius * 8 // 10) // far[:, None]
        return bent + (round_ - bent) * pull // 1000

    out = []
    for polygon, hole in zip(polygons, holes, strict=True):
        points = polygon
        if hole:
            middle = (points.min(axis=0) + points.max(axis=0)) // 2
            points = middle + (points - middle) * (1000 - deform) // 1000
        out.append(moved(points))
    if deform > 450:
        grown = lump * min(1000, (deform - 450) * 2) // 1000
        outer = next(polygon for polygon, hole in zip(polygons, holes, strict=True) if not hole)
        out.append(grown if (doubled_area(grown) > 0) == (doubled_area(outer) > 0) else grown[::-1])
    return out


def _lump(chance: Chance, radius: int) -> np.ndarray:
    """A rounded, uneven shape, int64 ``[32, 2]``."""
    points = ellipse(0, 0, radius, radius * 9 // 10)
    step = np.arange(32) * 32
    swing = (
        900
        + _wave(2 * step + chance.between(0, 1023)) * 90 // 1000
        + _wave(3 * step + chance.between(0, 1023)) * 60 // 1000
    )
    return points * swing[:, None] // 1000


def _wave(t: np.ndarray) -> np.ndarray:
    """A smooth wave of period 1024 from -1000 to 1000: two parabolas instead of a sine."""
    t = t % 1024
    half = t % 512
    arch = half * (512 - half) * 1000 // 65536
    return np.where(t < 512, arch, -arch)


def _rotation(tilt: int) -> tuple[int, int]:
    """Cosine and sine, times 65536, of about ``tilt`` / 1000 radians, by the rational half-angle form."""
    below = 4_000_000 + tilt * tilt
    return (4_000_000 - tilt * tilt) * 65536 // below, 4000 * tilt * 65536 // below


def _place(part: Outline, turn: tuple[int, int], height: int, extent: int, centre: np.ndarray) -> Outline:
    """Turn, scale and move an outline into the picture, in ``PIXEL`` units."""
    cosine, sine = turn
    x, y = part.points[:, 0], part.points[:, 1]
    turned = np.stack([x * cosine - y * sine, x * sine + y * cosine], axis=1) >> 16
    return Outline(turned * height // extent + centre, part.starts)


def _inside(parts: list[Outline], size: int) -> list[Outline]:
    """Move an object so that it does not leave the picture; one that is too large stays where it is."""
    low, high = parts[0].points.min(axis=0), parts[0].points.max(axis=0)
    edge = size * PIXEL // 60
    shift = np.maximum(0, edge - low) - np.maximum(0, high - (size * PIXEL - edge))
    shift[high - low > size * PIXEL - 2 * edge] = 0
    return [Outline(part.points + shift, part.starts) for part in parts]


def _moved(pixels: np.ndarray, by: int) -> np.ndarray:
    """``pixels`` moved diagonally by ``by`` pixels (down and right), zero outside."""
    out = np.zeros_like(pixels)
    if by >= 0:
        out[by:, by:] = pixels[: pixels.shape[0] - by, : pixels.shape[1] - by]
    else:
        out[:by, :by] = pixels[-by:, -by:]
    return out


def _grown(cover: np.ndarray, by: int) -> np.ndarray:
    """Coverage widened by ``by`` pixels on every side."""
    out = cover.copy()
    for _ in range(by):
        tall = out.copy()
        np.maximum(tall[1:], out[:-1], out=tall[1:])
        np.maximum(tall[:-1], out[1:], out=tall[:-1])
        np.maximum(tall[:, 1:], out[:, :-1], out=tall[:, 1:])
        np.maximum(tall[:, :-1], out[:, 1:], out=tall[:, :-1])
        out = tall
    return out


# ------------------------------------------------------------------------------------------------------------- surfaces


@lru_cache(maxsize=16)
def _ramp(colour: str) -> np.ndarray:
    """int16 ``[256, 3]``: dark at 0, the colour at 128, light at 215, nearly white at 255."""
    c = COLOURS[colour]
    white: RGB = tuple(x + (255 - x) * 3 // 4 for x in c.light)  # type: ignore[assignment]
    stops = ((0, c.dark), (128, c.rgb), (215, c.light), (255, white))
    out = np.zeros((256, 3), np.int16)
    for (a, first), (b, last) in pairwise(stops):
        steps = np.arange(b - a + 1)[:, None]
        out[a : b + 1] = np.array(first) + (np.array(last) - np.array(first)) * steps // (b - a)
    return out


@lru_cache(maxsize=512)
def _surface(texture: str, height: int, side: int) -> np.ndarray:
    """Lightness that a surface adds, int16 ``[side, side]``, for an object ``height`` pixels high.

    Patterns are computed at twice the resolution and averaged, so that fine ones do not flicker.
    """
    step = (2 * np.arange(2 * side) + 1) * _LOCAL // (4 * height)
    fine = _SURFACES[texture](step[None, :], step[:, None]).astype(np.int64)
    fine = np.broadcast_to(fine, (2 * side, 2 * side))
    return ((fine[0::2, 0::2] + fine[1::2, 0::2] + fine[0::2, 1::2] + fine[1::2, 1::2]) // 4).astype(np.int16)


@lru_cache(maxsize=4)
def _grain(seed: int) -> np.ndarray:
    """Random whole numbers from -128 to 127 on a 256 x 256 grid."""
    raw = np.random.PCG64(seed).random_raw(256 * 256)
    return (raw >> np.uint64(40)).astype(np.int64).reshape(256, 256) % 256 - 128


def _grained(u: np.ndarray, v: np.ndarray, cell: int, seed: int) -> np.ndarray:
    """Smoothly joined random values, one a ``cell``, from -128 to 127."""
    grid = _grain(seed)
    i, j, fu, fv = v // cell % 256, u // cell % 256, u % cell, v % cell
    i2, j2 = (i + 1) % 256, (j + 1) % 256
    upper = grid[i, j] * (cell - fu) + grid[i, j2] * fu
    lower = grid[i2, j] * (cell - fu) + grid[i2, j2] * fu
    return (upper * (cell - fv) + lower * fv) // (cell * cell)


def _flat(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return 0 * (u + v)


def _shiny(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    spot = np.maximum(0, 1000 - (u - 340) ** 2 // 60 - (v - 250) ** 2 // 22)
    low = np.maximum(0, 1000 - (u - 620) ** 2 // 90 - (v - 850) ** 2 // 12)
    band = np.maximum(0, 70 - abs((u + v) - 760))
    return spot * 150 // 1000 + low * 60 // 1000 + band - 22


def _metallic(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    at = np.array([0, 150, 300, 400, 470, 600, 720, 860, 1000, 1200, 1500, 2000])
    shine = np.array([20, 96, 126, 30, -120, -60, 64, 112, -30, -100, 60, 0])
    t = np.clip(v + u // 4, 0, 1999)
    k = np.searchsorted(at, t, side="right") - 1
    return shine[k] + (shine[k + 1] - shine[k]) * (t - at[k]) // (at[k + 1] - at[k])


def _striped(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.where((u + v) % 200 < 100, 70, -110)


def _checked(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.where((u // 105 + v // 105) % 2 == 0, 76, -100)


def _dotted(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    row = v // 130
    x, y = (u + row % 2 * 80) % 160 - 80, v % 130 - 65
    return np.where(x * x + y * y < 44 * 44, 118, -44)


def _rough(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    return _grained(u, v, 24, 1) * 9 // 10 + _grained(u, v, 70, 2) * 6 // 10 - 14


def _woolly(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    u, v = u + _grained(u, v, 60, 3) // 5, v + _grained(u, v, 60, 4) // 5
    row = v // 84
    x, y = (u + row % 2 * 56) % 112 - 56, v % 84 - 34
    far = x * x + y * y * 3 // 2
    return np.where(far < 240, -24, 84 - np.minimum(far, 4200) * 150 // 4200)


def _wooden(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    t = v * 3 // 2 + _grained(u // 5, v, 80, 5) // 2 + _wave(u // 2 + 100) * 40 // 1000
    ring = t % 150
    return np.where(ring < 26, -104, 44 - ring * 70 // 150) + _grained(u // 8, v, 10, 6) // 5


_SURFACES = {
    "flat": _flat,
    "shiny": _shiny,
    "metallic": _metallic,
    "striped": _striped,
    "checked": _checked,
    "dotted": _dotted,
    "rough": _rough,
    "woolly": _woolly,
    "wooden": _wooden,
}
