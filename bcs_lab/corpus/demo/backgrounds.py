"""The places behind a scene's objects, drawn with integers only.

Coordinates are thousandths of the picture's side; ``h`` is the height of the horizon. Each element is a function that
paints on a canvas and takes its small differences from a :class:`Chance`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np

from bcs_lab.corpus.demo.concepts import ENVIRONMENTS, RGB, Environment
from bcs_lab.corpus.demo.outlines import FULL, PIXEL, Outline, coverage, outline_of

#: Backgrounds of one environment that differ in small things.
BACKGROUNDS = 8

#: Cosines of 32 equal steps around a circle, times 1000: a table, because libraries differ in the last bit of cos.
_QUARTER = (1000, 981, 924, 831, 707, 556, 383, 195)
_COSINES = np.array(
    [*_QUARTER, 0, *(-c for c in reversed(_QUARTER[1:])), *(-c for c in _QUARTER), 0, *reversed(_QUARTER[1:])]
)
_CIRCLE = np.stack([_COSINES, np.roll(_COSINES, 8)], axis=1).astype(np.int64)

Polygon = np.ndarray
WHITE: RGB = (255, 255, 255)


class Chance:
    """Whole numbers from the raw output of PCG64, which is the same in every version of NumPy."""

    def __init__(self, *seed: int) -> None:
        self._source = np.random.PCG64(list(seed))
        self._left: list[int] = []

    def between(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, both included."""
        if not self._left:
            self._left = (self._source.random_raw(64) >> np.uint64(33)).tolist()
        return low + self._left.pop() % (high - low + 1)


class Canvas:
    """A square picture under the brush: int16 ``[size, size, 3]``."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pixels = np.zeros((size, size, 3), np.int16)

    def paint(self, polygons: Iterable[Polygon], colour: RGB, alpha: int = 256) -> None:
        """Fill polygons, in thousandths of the side, with one colour; ``alpha`` 256 covers."""
        outline = outline_of(list(polygons))
        points = outline.points * (self.size * PIXEL) // 1000
        low = np.clip(points.min(axis=0) // PIXEL, 0, self.size)
        high = np.clip(-(-points.max(axis=0) // PIXEL), 0, self.size)
        (x0, y0), (x1, y1) = low.tolist(), high.tolist()
        if x0 >= x1 or y0 >= y1:
            return
        cover = coverage(Outline(points - low * PIXEL, outline.starts), x1 - x0, y1 - y0)
        mix(self.pixels[y0:y1, x0:x1], np.array(colour, np.int16), cover * (alpha // FULL))


def mix(under: np.ndarray, over: np.ndarray, alpha: np.ndarray) -> None:
    """Lay ``over`` on ``under`` (int16 ``[h, w, 3]``, in place); ``alpha`` int16 ``[h, w]``, 0 to 256."""
    under += (((over - under).astype(np.int32) * alpha[..., None] + 128) >> 8).astype(np.int16)


# --------------------------------------------------------------------------------------------------------------- shapes


def ellipse(x: int, y: int, rx: int, ry: int) -> Polygon:
    """An ellipse of 32 corners."""
    return np.array([x, y]) + _CIRCLE * np.array([rx, ry]) // 1000


def box(x0: int, y0: int, x1: int, y1: int) -> Polygon:
    """An upright rectangle."""
    return np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], np.int64)


def shape(*corners: tuple[int, int]) -> Polygon:
    """A polygon; turned if need be, so that overlapping shapes of one outline add up."""
    polygon = np.array(corners, np.int64)
    x, y = polygon[:, 0], polygon[:, 1]
    return polygon if int((x * np.roll(y, -1) - np.roll(x, -1) * y).sum()) > 0 else polygon[::-1]


def swell(base: int, crest: int, middle: int, reach: int) -> Polygon:
    """A rounded hill: a parabola of height ``crest`` over ``base`` around ``middle``, down to the lower edge."""
    steps = range(-8, 9)
    curve = [(middle + reach * i // 8, base - crest * (64 - i * i) // 64) for i in steps]
    return shape(*curve, (middle + reach, 1010), (middle - reach, 1010))


def blend(a: RGB, b: RGB, share: int) -> RGB:
    """``share`` thousandths of ``b`` in ``a``."""
    red, green, blue = (x + (y - x) * share // 1000 for x, y in zip(a, b, strict=True))
    return red, green, blue


# ------------------------------------------------------------------------------------------------------------- elements


def _cloud(x: int, y: int, w: int) -> list[Polygon]:
    return [
        ellipse(x, y, w, w * 30 // 100),
        ellipse(x - w * 35 // 100, y - w * 18 // 100, w * 38 // 100, w * 32 // 100),
        ellipse(x + w * 18 // 100, y - w * 26 // 100, w * 48 // 100, w * 42 // 100),
    ]


def _clouds(c: Canvas, e: Environment, r: Chance) -> None:
    places = ((150, 110), (520, 180), (860, 90))
    c.paint(
        [p for x, y in places for p in _cloud(x + r.between(-60, 60), y + r.between(-30, 30), r.between(80, 120))],
        WHITE,
        208,
    )


def _big_clouds(c: Canvas, e: Environment, r: Chance) -> None:
    for y, w, alpha in ((190, 150, 112), (480, 210, 160), (820, 290, 224)):
        for x in (120, 560, 980):
            dx = r.between(-130, 130)
            c.paint(_cloud(x + dx, y + r.between(-60, 60) + 14, w), (206, 222, 240), alpha)
            c.paint(_cloud(x + dx, y + r.between(-60, 60), w * 9 // 10), WHITE, alpha)


def _hills(c: Canvas, e: Environment, r: Chance) -> None:
    h = e.horizon
    c.paint([swell(h + 20, 130, 230 + r.between(-80, 80), 520)], blend(e.ground[0], e.sky[1], 560))
    c.paint([swell(h + 20, 90, 780 + r.between(-80, 80), 560)], blend(e.ground[0], e.sky[1], 320))
    c.paint([swell(h + 40, 40, 400 + r.between(-80, 80), 900)], e.ground[0])


def _bushes(c: Canvas, e: Environment, r: Chance) -> None:
    h = e.horizon
    for x in (60, 210, 820, 950):
        x += r.between(-40, 40)
        w = r.between(40, 70)
        c.paint([ellipse(x, h + 4, w, w * 3 // 4), ellipse(x + w * 2 // 3, h + 12, w * 2 // 3, w // 2)], (72, 128, 66))
        c.paint([ellipse(x - w // 5, h - w // 5, w // 2, w // 3)], (98, 156, 82))


def _flowers(c: Canvas, e: Environment, r: Chance) -> None:
    for colour in ((252, 240, 150), (248, 248, 244), (240, 150, 176)):
        spots = [(r.between(20, 980), r.between(e.horizon + 70, 985)) for _ in range(9)]
        c.paint([ellipse(x, y, 5 + (y - e.horizon) // 60, 5 + (y - e.horizon) // 60) for x, y in spots], colour, 224)


def _far_trees(c: Canvas, e: Environment, r: Chance) -> None:
    for share, low, tall in ((620, 20, 330), (380, 40, 270)):
        trees = []
        for x in range(-20, 1040, 86):
            x, top = x + r.between(-25, 25), e.horizon - tall + r.between(-60, 60)
            trees.append(shape((x - 70, e.horizon + low), (x, top), (x + 70, e.horizon + low)))
        c.paint(trees, blend((50, 92, 58), e.sky[1], share))


def _trunks(c: Canvas, e: Environment, r: Chance) -> None:
    for x, w in ((60, 46), (925, 54), (235, 26), (800, 24)):
        x += r.between(-30, 30)
        foot = e.horizon + 30 + w * 3
        c.paint([shape((x - w, foot), (x - w * 2 // 3, -10), (x + w * 2 // 3, -10), (x + w, foot))], (84, 62, 46))
        c.paint([shape((x + w // 5, foot), (x + w // 5, -10), (x + w * 2 // 3, -10), (x + w, foot))], (62, 44, 34))
    leaves = [ellipse(x + r.between(-30, 30), r.between(-10, 40), 120, 76) for x in range(0, 1050, 130)]
    c.paint(leaves, (62, 108, 56))
    c.paint([ellipse(x, r.between(-30, 10), 90, 56) for x in range(40, 1050, 150)], (92, 140, 74))


def _blades(c: Canvas, r: Chance, top: int, colour: RGB, many: int) -> None:
    blades = []
    for _ in range(many):
        x, y = r.between(0, 1000), r.between(top, 1000)
        t = 14 + (y - top) // 14
        blades.append(shape((x - 6, y), (x + r.between(-12, 12), y - t), (x + 6, y)))
    c.paint(blades, colour, 208)


def _grass(c: Canvas, e: Environment, r: Chance) -> None:
    _blades(c, r, e.horizon + 60, (116, 152, 80), 46)


def _peaks(c: Canvas, e: Environment, r: Chance) -> None:
    for x, top, w, share in ((180, 240, 330, 420), (800, 200, 380, 300), (500, 330, 300, 120)):
        x, top = x + r.between(-60, 60), top + r.between(-30, 30)
        foot = e.horizon + 20
        rise = foot - top
        c.paint([shape((x - w, foot), (x, top), (x + w, foot))], blend((98, 110, 138), e.sky[1], share))
        c.paint([shape((x, top), (x + w, foot), (x + w // 5, foot))], blend((72, 84, 114), e.sky[1], share))
        k, y = w * 30 // 100, top + rise * 30 // 100
        cap = (
            (x, top),
            (x + k, y),
            (x + k // 3, y - rise // 16),
            (x, y + rise // 14),
            (x - k // 2, y - rise // 20),
            (x - k, y),
        )
        c.paint([shape(*cap)], (248, 250, 254))
    c.paint([swell(e.horizon + 30, 46, 300 + r.between(-80, 80), 800)], e.ground[0])


def _stones(c: Canvas, e: Environment, r: Chance) -> None:
    for _ in range(7):
        x, y = r.between(10, 990), r.between(e.horizon + 80, 980)
        w = 14 + (y - e.horizon) // 12
        c.paint([ellipse(x, y, w, w * 2 // 3)], (128, 130, 128))
        c.paint([ellipse(x - w // 5, y - w // 5, w * 3 // 5, w // 3)], (164, 166, 164))


def _sun(c: Canvas, e: Environment, r: Chance) -> None:
    x, y = 800 + r.between(-80, 80), 130 + r.between(-20, 20)
    c.paint([ellipse(x, y, 120, 120)], (255, 246, 200), 80)
    c.paint([ellipse(x, y, 78, 78)], (255, 240, 170))


def _low_sun(c: Canvas, e: Environment, r: Chance) -> None:
    x, y = 700 + r.between(-120, 120), e.horizon - 170
    for radius, alpha in ((190, 64), (140, 80), (92, 240)):
        c.paint([ellipse(x, y, radius, radius)], (255, 242, 204), alpha)


def _dunes(c: Canvas, e: Environment, r: Chance) -> None:
    h = e.horizon
    c.paint([swell(h + 30, 110, 150 + r.between(-60, 60), 560)], blend(e.ground[0], e.ground[1], 300))
    c.paint([swell(h + 40, 90, 830 + r.between(-60, 60), 520)], blend(e.ground[0], (250, 220, 160), 300))
    c.paint([swell(h + 190, 90, 420 + r.between(-90, 90), 800)], blend(e.ground[0], e.ground[1], 350))
    c.paint([swell(h + 330, 70, 700 + r.between(-90, 90), 900)], blend(e.ground[0], e.ground[1], 800))


def _cacti(c: Canvas, e: Environment, r: Chance) -> None:
    for x, y, s in ((110, 690, 100), (880, 650, 70)):
        x += r.between(-50, 50)
        parts = [
            box(x - s // 6, y - s * 2, x + s // 6, y),
            ellipse(x, y - s * 2, s // 6, s // 6),
            box(x - s * 2 // 3, y - s * 3 // 2, x - s * 2 // 5, y - s * 4 // 5),
            box(x - s * 2 // 3, y - s, x, y - s * 4 // 5),
            box(x + s * 2 // 5, y - s * 5 // 3, x + s * 2 // 3, y - s * 11 // 10),
            box(x, y - s * 13 // 10, x + s * 2 // 3, y - s * 11 // 10),
        ]
        c.paint(parts, (84, 134, 84))
        c.paint([box(x - s // 9, y - s * 2, x - s // 24, y)], (126, 170, 110))


def _snow_hills(c: Canvas, e: Environment, r: Chance) -> None:
    h = e.horizon
    c.paint([swell(h + 20, 150, 260 + r.between(-80, 80), 560)], (206, 220, 236))
    c.paint([swell(h + 30, 110, 800 + r.between(-80, 80), 520)], (222, 232, 244))
    c.paint([swell(h + 60, 50, 400 + r.between(-80, 80), 900)], (240, 245, 250))


def _firs(c: Canvas, e: Environment, r: Chance) -> None:
    for x, y, s in ((70, 640, 150), (220, 590, 90), (800, 600, 100), (930, 650, 160)):
        x += r.between(-30, 30)
        c.paint([box(x - s // 14, y - s // 5, x + s // 14, y)], (88, 68, 54))
        for k in (0, 1, 2):
            foot, w = y - s // 6 - k * s // 2, s * (10 - 2 * k) // 20
            c.paint([shape((x - w, foot), (x, foot - s * 4 // 5), (x + w, foot))], (58, 96, 88))
            tip = (x, foot - s * 4 // 5)
            c.paint(
                [shape((x - w * 2 // 5, foot - s * 12 // 25), tip, (x + w * 2 // 5, foot - s * 12 // 25))],
                (238, 244, 250),
            )


def _snowfall(c: Canvas, e: Environment, r: Chance) -> None:
    flakes = [(r.between(0, 1000), r.between(0, 1000), r.between(4, 10)) for _ in range(38)]
    c.paint([ellipse(x, y, w, w) for x, y, w in flakes], WHITE, 208)


def _sand(c: Canvas, e: Environment, r: Chance) -> None:
    middle = 350 + r.between(-150, 150)
    c.paint([swell(620, 30, middle, 1100)], (240, 250, 248), 224)
    c.paint([swell(645, 30, middle, 1100)], (216, 190, 146))
    c.paint([swell(664, 30, middle, 1100)], (240, 216, 168))
    c.paint([swell(900, 50, 800 - middle // 2, 900)], (228, 200, 150))


def _palm(c: Canvas, e: Environment, r: Chance) -> None:
    x = r.between(50, 130) if r.between(0, 1) else r.between(870, 950)
    c.paint([shape((x - 26, 690), (x - 6, 250), (x + 14, 250), (x + 22, 690))], (140, 102, 66))
    leaves = []
    for dx, dy in ((-190, 20), (-150, 110), (-120, -80), (190, 20), (150, 110), (120, -80), (10, -120)):
        leaves.append(
            shape((x - 10, 244), (x + dx // 2, 226 + dy // 3 - 44), (x + dx, 250 + dy), (x + dx // 2, 250 + dy // 3))
        )
    c.paint(leaves, (66, 136, 74))


def _waves(c: Canvas, e: Environment, r: Chance) -> None:
    crests, troughs = [], []
    for _ in range(22):
        y = r.between(e.horizon + 20, 985)
        near = y - e.horizon
        x, w, t = r.between(0, 1000), 30 + near // 5, 4 + near // 40
        curve = [(x + w * i // 4, y - t * (16 - i * i) // 10) for i in range(-4, 5)]
        crests.append(shape(*curve, *[(a, y - t * 6 // 10 + (b - y) // 3) for a, b in reversed(curve)]))
        troughs.append(ellipse(x, y + t * 2, w, t))
    c.paint(troughs, (14, 54, 100), 64)
    c.paint(crests, (196, 222, 236), 144)


def _light_rays(c: Canvas, e: Environment, r: Chance) -> None:
    for x in (100, 330, 560, 800):
        x += r.between(-60, 60)
        c.paint([shape((x, -10), (x + 70, -10), (x + 200, 880), (x + 40, 880))], (190, 236, 240), 32)


def _seaweed(c: Canvas, e: Environment, r: Chance) -> None:
    for x in (60, 130, 210, 800, 880, 950):
        x, tall = x + r.between(-20, 20), r.between(180, 340)
        bends = [(x + (16 if i % 2 else -16), 930 - tall * i // 6) for i in range(7)]
        back = [(a + 26 - 3 * i, b) for i, (a, b) in reversed(list(enumerate(bends)))]
        c.paint([shape(*bends, *back)], (44, 116, 88) if x % 2 else (72, 134, 78))
    for _ in range(6):
        x, w = r.between(0, 1000), r.between(24, 60)
        c.paint([ellipse(x, 945, w, w // 2)], (118, 124, 116))


def _bubbles(c: Canvas, e: Environment, r: Chance) -> None:
    for _ in range(14):
        x, y, w = r.between(0, 1000), r.between(20, 820), r.between(8, 22)
        c.paint([ellipse(x, y, w, w)], (200, 238, 244), 96)
        c.paint([ellipse(x - w // 3, y - w // 3, w // 3, w // 3)], WHITE, 208)


def _stars(c: Canvas, e: Environment, r: Chance) -> None:
    limit = min(e.horizon, 960)
    spots = [(r.between(0, 1000), r.between(0, limit), r.between(3, 8)) for _ in range(40)]
    c.paint([shape((x - w, y), (x, y - w), (x + w, y), (x, y + w)) for x, y, w in spots], (252, 246, 220))


def _moon(c: Canvas, e: Environment, r: Chance) -> None:
    x, y = 780 + r.between(-100, 100), 190 + r.between(-40, 40)
    c.paint([ellipse(x, y, 150, 150)], (180, 176, 216), 48)
    c.paint([ellipse(x, y, 96, 96)], (244, 238, 214))
    c.paint([ellipse(x - 30, y - 20, 22, 22), ellipse(x + 34, y + 26, 16, 16)], (222, 214, 188))


def _houses(c: Canvas, e: Environment, r: Chance) -> None:
    x = -60 + r.between(-40, 0)
    paints = ((206, 138, 112), (222, 196, 150), (154, 168, 178), (190, 112, 98), (226, 214, 190), (140, 158, 140))
    first = r.between(0, 5)
    for i in range(7):
        w, top = r.between(140, 190), e.horizon - r.between(230, 400)
        c.paint([box(x, top, x + w, e.horizon + 10)], blend(paints[(first + i) % 6], e.sky[1], 250))
        c.paint([shape((x - 8, top), (x + w // 2, top - 70), (x + w + 8, top))], blend((112, 74, 66), e.sky[1], 250))
        panes = [
            box(x + k, y, x + k + 34, y + 46)
            for y in range(top + 28, e.horizon - 70, 84)
            for k in (w // 6, w * 6 // 10)
        ]
        c.paint(panes, (92, 116, 142))
        x += w


def _pavement(c: Canvas, e: Environment, r: Chance) -> None:
    h = e.horizon
    c.paint([box(-10, h - 4, 1010, h + 56)], (188, 184, 178))
    c.paint([box(-10, h + 50, 1010, h + 64)], (148, 146, 144))


def _lane_marks(c: Canvas, e: Environment, r: Chance) -> None:
    shift = r.between(-100, 100)
    c.paint(
        [shape((x, 842), (x + 130, 842), (x + 118, 866), (x - 14, 866)) for x in range(shift - 240, 1100, 260)],
        (226, 224, 214),
    )


def _towers(c: Canvas, e: Environment, r: Chance) -> None:
    for share, low, high in ((430, 240, 470), (120, 130, 330)):
        x = -40 + r.between(-30, 0)
        lights = []
        while x < 1010:
            w, tall = r.between(90, 150), r.between(low, high)
            top = e.horizon - tall
            c.paint([box(x, top, x + w, e.horizon + 6)], blend((30, 32, 58), e.sky[1], share))
            for y in range(top + 22, e.horizon - 24, 44):
                lights += [box(k, y, k + 15, y + 22) for k in range(x + 14, x + w - 20, 30) if r.between(0, 2) == 0]
            x += w + r.between(-6, 26)
        c.paint(lights, (250, 214, 130) if share < 300 else (198, 164, 140))


def _street_lights(c: Canvas, e: Environment, r: Chance) -> None:
    c.paint([box(-10, e.horizon, 1010, e.horizon + 26)], (74, 72, 96))
    for x in (90, 910):
        x += r.between(-40, 40)
        c.paint([box(x - 6, 400, x + 6, e.horizon + 40)], (20, 20, 32))
        c.paint([ellipse(x, 400, 76, 76)], (255, 226, 150), 64)
        c.paint([ellipse(x, 400, 24, 24)], (255, 240, 196))
        c.paint([ellipse(x, e.horizon + 70, 180, 30)], (255, 220, 150), 48)


def _window(c: Canvas, e: Environment, r: Chance) -> None:
    x, y = 110 + r.between(-40, 40), 100 + r.between(-20, 20)
    c.paint([box(x - 24, y - 24, x + 284, y + 344)], (250, 248, 240))
    c.paint([box(x, y, x + 260, y + 320)], (166, 208, 238))
    c.paint([ellipse(x + 130, y + 320, 130, 90)], (136, 180, 120))
    c.paint([box(x + 121, y, x + 139, y + 320), box(x, y + 151, x + 260, y + 169)], (250, 248, 240))
    c.paint([box(x - 40, y + 340, x + 300, y + 366)], (232, 228, 216))


def _picture_frame(c: Canvas, e: Environment, r: Chance) -> None:
    x, y = 540 + r.between(-40, 40), 130 + r.between(-30, 30)
    c.paint([box(x, y, x + 190, y + 150)], (150, 108, 66))
    c.paint([box(x + 16, y + 16, x + 174, y + 134)], (240, 232, 214))
    c.paint(
        [shape((x + 16, y + 134), (x + 70, y + 60), (x + 110, y + 100), (x + 140, y + 74), (x + 174, y + 134))],
        (128, 154, 150),
    )


def _floor_lamp(c: Canvas, e: Environment, r: Chance) -> None:
    x = 880 + r.between(-30, 30)
    c.paint([ellipse(x, 300, 170, 150)], (255, 244, 204), 64)
    c.paint([box(x - 7, 330, x + 7, 800), box(x - 56, 790, x + 56, 806)], (92, 80, 72))
    c.paint([shape((x - 50, 220), (x + 50, 220), (x + 88, 350), (x - 88, 350))], (246, 222, 158))


def _skirting(c: Canvas, e: Environment, r: Chance) -> None:
    c.paint([box(-10, e.horizon - 26, 1010, e.horizon + 4)], blend(e.sky[1], WHITE, 550))


def _carpet(c: Canvas, e: Environment, r: Chance) -> None:
    x = 500 + r.between(-60, 60)
    c.paint([ellipse(x, 860, 430, 110)], (176, 96, 88))
    c.paint([ellipse(x, 860, 390, 92)], (214, 178, 150))
    c.paint([ellipse(x, 860, 360, 80)], (190, 116, 104))


def _wall_tiles(c: Canvas, e: Environment, r: Chance) -> None:
    shift = r.between(0, 100)
    lines = [box(-10, y, 1010, y + 8) for y in range(20, e.horizon, 100)]
    for i, y in enumerate(range(20, e.horizon, 100)):
        lines += [box(x, y, x + 8, min(y + 100, e.horizon)) for x in range(shift - 100 + 70 * (i % 2), 1010, 140)]
    c.paint(lines, (246, 250, 248), 192)


def _shelf(c: Canvas, e: Environment, r: Chance) -> None:
    x = r.between(30, 110) if r.between(0, 1) else r.between(480, 560)
    things = ((194, 88, 72), (222, 176, 84), (108, 146, 110), (120, 148, 180))
    for i, colour in enumerate(things):
        left, tall = x + 30 + i * 92, 70 + r.between(0, 50)
        c.paint(
            [box(left, 250 - tall, left + 62, 250), ellipse(left + 31, 250 - tall, 31, 10)], blend(colour, WHITE, 150)
        )
        c.paint([box(left + 8, 250 - tall - 20, left + 54, 250 - tall - 4)], (150, 116, 84))
    c.paint([box(x, 250, x + 400, 274)], (176, 134, 92))
    c.paint([box(x, 274, x + 400, 284)], (132, 98, 66))


def _counter(c: Canvas, e: Environment, r: Chance) -> None:
    h = e.horizon
    c.paint([box(-10, h - 6, 1010, h + 20)], (226, 208, 182))
    for y in (h + 130, h + 250):
        c.paint([box(-10, y, 1010, y + 6)], (146, 120, 92), 112)


def _blinds(c: Canvas, e: Environment, r: Chance) -> None:
    x = 520 + r.between(-60, 60)
    c.paint([box(x - 20, 70, x + 400, 430)], (240, 242, 244))
    c.paint([box(x, 90, x + 380, 410)], (176, 206, 230))
    c.paint([box(x, y, x + 380, y + 18) for y in range(96, 300, 36)], (246, 248, 250))


def _bookcase(c: Canvas, e: Environment, r: Chance) -> None:
    x = 60 + r.between(-30, 50)
    c.paint([box(x, 110, x + 320, e.horizon)], (140, 104, 72))
    paints = ((176, 72, 66), (70, 108, 150), (214, 176, 92), (92, 134, 100), (224, 216, 202), (120, 88, 132))
    for top in (130, 305, 480):
        c.paint([box(x + 18, top, x + 302, top + 150)], (100, 72, 50))
        left = x + 22
        while left < x + 262:
            w, tall = r.between(22, 38), r.between(96, 138)
            c.paint([box(left, top + 150 - tall, left + w, top + 150)], paints[r.between(0, 5)])
            left += w + 4


def _spot_light(c: Canvas, e: Environment, r: Chance) -> None:
    x = 500 + r.between(-70, 70)
    for i in range(6):
        c.paint([ellipse(x, 430, 520 - 70 * i, 420 - 56 * i)], (255, 252, 248), 32)
    c.paint([ellipse(x, 850, 420, 90)], (250, 247, 246), 96)


_ELEMENTS: dict[str, Callable[[Canvas, Environment, Chance], None]] = {
    "clouds": _clouds,
    "big_clouds": _big_clouds,
    "hills": _hills,
    "bushes": _bushes,
    "flowers": _flowers,
    "far_trees": _far_trees,
    "trunks": _trunks,
    "grass": _grass,
    "peaks": _peaks,
    "stones": _stones,
    "sun": _sun,
    "low_sun": _low_sun,
    "dunes": _dunes,
    "cacti": _cacti,
    "snow_hills": _snow_hills,
    "firs": _firs,
    "snowfall": _snowfall,
    "sand": _sand,
    "palm": _palm,
    "waves": _waves,
    "light_rays": _light_rays,
    "seaweed": _seaweed,
    "bubbles": _bubbles,
    "stars": _stars,
    "moon": _moon,
    "houses": _houses,
    "pavement": _pavement,
    "lane_marks": _lane_marks,
    "towers": _towers,
    "street_lights": _street_lights,
    "window": _window,
    "picture_frame": _picture_frame,
    "floor_lamp": _floor_lamp,
    "skirting": _skirting,
    "carpet": _carpet,
    "wall_tiles": _wall_tiles,
    "shelf": _shelf,
    "counter": _counter,
    "blinds": _blinds,
    "bookcase": _bookcase,
    "spot_light": _spot_light,
}


# ------------------------------------------------------------------------------------------------------------ the place


def _gradient(top: RGB, bottom: RGB, rows: int) -> np.ndarray:
    """int16 ``[rows, 3]`` from one colour to another."""
    share = np.arange(rows, dtype=np.int64)[:, None] * 1000 // max(rows - 1, 1)
    first, last = np.array(top, np.int64), np.array(bottom, np.int64)
    return (first + (last - first) * share // 1000).astype(np.int16)


def soften(pixels: np.ndarray, radius: int) -> np.ndarray:
    """Mean over a square of ``2 * radius + 1`` pixels a side, edges repeated; integers ``[h, w, ...]`` in and out."""
    out = pixels.astype(np.int32)
    side = 2 * radius + 1
    for axis in (0, 1):
        around = [(0, 0)] * out.ndim
        around[axis] = (radius + 1, radius)
        total = np.cumsum(np.pad(out, around, mode="edge"), axis=axis, dtype=np.int32)
        length = pixels.shape[axis]
        head = [slice(None)] * out.ndim
        tail = list(head)
        head[axis], tail[axis] = slice(side, side + length), slice(0, length)
        out = (total[tuple(head)] - total[tuple(tail)] + side // 2) // side
    return out.astype(pixels.dtype)


@lru_cache(maxsize=256)
def background(environment: str, variant: int, size: int) -> np.ndarray:
    """An empty place.

    Args:
        environment: a key of ``ENVIRONMENTS``.
        variant: 0 to ``BACKGROUNDS`` - 1, small differences.
        size: side of the picture in pixels.

    Returns:
        int16 ``[size, size, 3]``, read-only, 0 to 255.
    """
    place = ENVIRONMENTS[environment]
    canvas = Canvas(size)
    line = size * place.horizon // 1000
    canvas.pixels[:line] = _gradient(*place.sky, line)[:, None]
    canvas.pixels[line:] = _gradient(*place.ground, size - line)[:, None]
    chance = Chance(variant, zlib.crc32(environment.encode()))
    for element in place.elements:
        _ELEMENTS[element](canvas, place, chance)
    pixels = soften(canvas.pixels, max(1, size // 128))
    # Corners a little darker, as a lens makes them.
    across = (2 * np.arange(size, dtype=np.int64) + 1 - size) * 1000 // size
    away = np.maximum(0, (across[:, None] ** 2 + across[None, :] ** 2) // 1000 - 700)
    pixels = (pixels * (1000 - away // 6)[..., None] // 1000).astype(np.int16)
    pixels.flags.writeable = False
    return pixels
