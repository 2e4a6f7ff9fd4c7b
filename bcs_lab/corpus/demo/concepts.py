"""What the demo's scenes are made of: concepts, layouts, colours, textures, environments and faults.

A concept is a solid icon of Font Awesome Free 6.6.0 (SIL OFL 1.1), named as a thing. Its *category* is the basic level
of question S1 (supplement B.3), its *family* holds its closer kin (S2), its *role* is what it is for (S3). Two names
that are neither the same nor plainly different are *neighbours*: the answer to the question about them is "somewhat".

All positions are in thousandths of the picture's side, so that nothing here depends on floating-point rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import yaml

from bcs_lab.errors import CorpusError

#: A colour, red, green and blue from 0 to 255.
RGB = tuple[int, int, int]
#: Unordered pairs of names.
Pairs = frozenset[frozenset[str]]

#: Most objects a scene can hold.
MAX_COUNT = 6


@dataclass(frozen=True)
class Concept:
    """One nameable thing.

    Attributes:
        name: lower-case words joined by underscores.
        icon: name of the Font Awesome solid icon that depicts it.
        category: basic-level category (S1).
        role: what it is for, or does (S3).
        family: its closer kin within the category (S2).
    """

    name: str
    icon: str
    category: str
    role: str
    family: str


@dataclass(frozen=True)
class Layout:
    """Where objects stand.

    Attributes:
        anchors: for 1 to 6 objects, the centre of each as thousandths ``(x, y)`` of the picture, from the upper left.
        room: for 1 to 6 objects, the greatest height of one in thousandths of the picture; see ``draw.drawn_size``.
        min_count: smallest number of objects whose arrangement a viewer would call by this name.
    """

    anchors: tuple[tuple[tuple[int, int], ...], ...]
    room: tuple[int, ...]
    min_count: int = 1


@dataclass(frozen=True)
class Colour:
    """A colour of objects: its base, and the ends of its shading.

    Attributes:
        rgb: the colour itself.
        light: where light falls.
        dark: in the shade, and the second colour of patterns.
    """

    rgb: RGB
    light: RGB
    dark: RGB


@dataclass(frozen=True)
class Environment:
    """A background: two gradients that meet at a horizon, and what stands there.

    Attributes:
        horizon: height of the horizon in thousandths from the top; 1000 means there is no ground.
        sky: colours at the top and at the horizon.
        ground: colours at the horizon and at the bottom.
        elements: drawn things, back to front, each a name that ``draw`` knows.
        setting: ``nature``, ``water``, ``town``, ``indoors`` or ``air``, the coarse kind of place (S5).
    """

    horizon: int
    sky: tuple[RGB, RGB]
    ground: tuple[RGB, RGB]
    elements: tuple[str, ...]
    setting: str


def _pairs(names: Iterable[Iterable[str]]) -> Pairs:
    return frozenset(frozenset(pair) for pair in names)


# ------------------------------------------------------------------------------------------------------------- concepts


def _read() -> tuple[Mapping[str, Concept], Pairs, Pairs]:
    """Concepts sorted by name, category neighbours and role neighbours, from ``concepts.yaml``."""
    data = yaml.safe_load(Path(__file__).with_name("concepts.yaml").read_text(encoding="utf-8"))
    found = [
        Concept(name=name, icon=icon, category=category, role=role, family=f"{category}/{family}")
        for category, families in data["concepts"].items()
        for family, concepts in families.items()
        for name, (icon, role) in concepts.items()
    ]
    table = {concept.name: concept for concept in sorted(found, key=lambda concept: concept.name)}
    return MappingProxyType(table), _pairs(data["category_neighbours"]), _pairs(data["role_neighbours"])


#: Every concept by name, sorted; pairs of categories, and of roles, that count as "somewhat".
CONCEPTS, CATEGORY_NEIGHBOURS, ROLE_NEIGHBOURS = _read()


# -------------------------------------------------------------------------------------------------------------- layouts

#: Offsets of a close group of 1 to 6 objects around its middle, in units of the distance between neighbours / 1000.
_CLUSTERS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0, 0),),
    ((-500, 0), (500, 0)),
    ((-520, 300), (520, 300), (0, -420)),
    ((-500, -450), (500, -450), (-500, 450), (500, 450)),
    ((-900, -450), (0, -500), (900, -450), (-480, 480), (480, 480)),
    ((-960, -470), (0, -470), (960, -470), (-960, 470), (0, 470), (960, 470)),
)


def _cluster(x: int, y: int, step: int, room: tuple[int, ...]) -> Layout:
    """A close group around a point; ``step`` is the distance between neighbours in thousandths."""
    anchors = tuple(
        tuple((x + dx * step // 1000, y + dy * step // 1000) for dx, dy in offsets[:MAX_COUNT]) for offsets in _CLUSTERS
    )
    return Layout(anchors=anchors, room=room)


#: Arrangements of 1 to 6 objects.
LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "centre": _cluster(500, 540, 320, (700, 310, 290, 270, 265, 265)),
        "left": _cluster(255, 560, 205, (480, 200, 185, 180, 165, 165)),
        "right": _cluster(745, 560, 205, (480, 200, 185, 180, 165, 165)),
        "upper": _cluster(500, 265, 245, (480, 240, 220, 210, 200, 200)),
        "lower": _cluster(500, 745, 245, (480, 240, 220, 210, 200, 200)),
        "row": Layout(
            anchors=(
                ((300, 640),),
                ((260, 640), (740, 640)),
                ((180, 640), (500, 640), (820, 640)),
                ((140, 640), (380, 640), (620, 640), (860, 640)),
                ((110, 640), (305, 640), (500, 640), (695, 640), (890, 640)),
                ((95, 640), (257, 640), (419, 640), (581, 640), (743, 640), (905, 640)),
            ),
            room=(500, 380, 255, 190, 156, 150),
            min_count=2,
        ),
        "column": Layout(
            anchors=(
                ((500, 330),),
                ((500, 270), (500, 750)),
                ((500, 190), (500, 510), (500, 830)),
                ((500, 150), (500, 390), (500, 630), (500, 870)),
                ((500, 120), (500, 315), (500, 510), (500, 705), (500, 900)),
                ((500, 100), (500, 262), (500, 424), (500, 586), (500, 748), (500, 910)),
            ),
            room=(500, 420, 280, 210, 172, 150),
            min_count=2,
        ),
        "diagonal": Layout(
            anchors=(
                ((320, 350),),
                ((270, 290), (730, 750)),
                ((200, 220), (500, 520), (800, 820)),
                ((160, 170), (390, 400), (620, 630), (850, 860)),
                ((130, 140), (315, 325), (500, 510), (685, 695), (870, 880)),
                ((110, 120), (266, 276), (422, 432), (578, 588), (734, 744), (890, 900)),
            ),
            room=(500, 420, 330, 250, 200, 170),
            min_count=2,
        ),
        "corners": Layout(
            anchors=(
                ((210, 230),),
                ((210, 230), (790, 230)),
                ((210, 230), (790, 230), (500, 790)),
                ((210, 230), (790, 230), (210, 780), (790, 780)),
                ((190, 210), (810, 210), (500, 510), (190, 800), (810, 800)),
                ((180, 200), (820, 200), (180, 500), (820, 500), (180, 810), (820, 810)),
            ),
            room=(360, 360, 340, 330, 300, 260),
            min_count=3,
        ),
        "scattered": Layout(
            anchors=(
                ((660, 400),),
                ((300, 660), (720, 360)),
                ((240, 320), (700, 440), (400, 790)),
                ((230, 300), (620, 230), (420, 620), (800, 760)),
                ((180, 280), (540, 200), (820, 460), (330, 620), (640, 810)),
                ((160, 240), (480, 170), (830, 320), (270, 560), (600, 550), (440, 850)),
            ),
            room=(420, 360, 310, 260, 235, 215),
            min_count=3,
        ),
    }
)

#: Pairs of layouts that put things in roughly the same place.
LAYOUT_NEIGHBOURS: Pairs = _pairs(
    [
        ("centre", "lower"),
        ("centre", "row"),
        ("centre", "column"),
        ("centre", "upper"),
        ("corners", "scattered"),
        ("diagonal", "scattered"),
        ("lower", "row"),
    ]
)


# ------------------------------------------------------------------------------------------------- colours and textures

#: Colours of objects.
COLOURS: Mapping[str, Colour] = MappingProxyType(
    {
        "red": Colour((206, 48, 44), (240, 104, 88), (138, 22, 30)),
        "orange": Colour((233, 124, 34), (255, 172, 88), (168, 78, 12)),
        "yellow": Colour((240, 198, 48), (255, 230, 124), (190, 140, 16)),
        "green": Colour((74, 158, 66), (134, 204, 112), (34, 100, 40)),
        "teal": Colour((28, 152, 150), (94, 204, 196), (10, 96, 102)),
        "blue": Colour((44, 98, 204), (104, 156, 240), (20, 54, 134)),
        "purple": Colour((126, 70, 176), (176, 126, 218), (76, 34, 118)),
        "pink": Colour((232, 112, 164), (252, 172, 204), (176, 62, 116)),
        "brown": Colour((132, 84, 50), (178, 128, 88), (82, 48, 26)),
        "black": Colour((46, 46, 54), (92, 92, 104), (16, 16, 22)),
        "grey": Colour((136, 140, 148), (186, 190, 196), (88, 92, 100)),
        "white": Colour((238, 236, 230), (255, 255, 254), (182, 180, 178)),
    }
)

COLOUR_NEIGHBOURS: Pairs = _pairs(
    [
        ("red", "orange"),
        ("red", "pink"),
        ("red", "brown"),
        ("orange", "yellow"),
        ("orange", "brown"),
        ("green", "teal"),
        ("teal", "blue"),
        ("blue", "purple"),
        ("purple", "pink"),
        ("black", "grey"),
        ("grey", "white"),
    ]
)

#: Surfaces of objects, and what a sentence may call them.
TEXTURES: Mapping[str, str] = MappingProxyType(
    {
        "flat": "flat and matte",
        "shiny": "smooth with a gloss",
        "metallic": "polished metal",
        "striped": "striped",
        "checked": "checked",
        "dotted": "dotted",
        "rough": "rough and grainy",
        "woolly": "woolly",
        "wooden": "wooden with a grain",
    }
)

TEXTURE_NEIGHBOURS: Pairs = _pairs(
    [
        ("flat", "shiny"),
        ("shiny", "metallic"),
        ("striped", "checked"),
        ("striped", "wooden"),
        ("checked", "dotted"),
        ("rough", "woolly"),
        ("rough", "wooden"),
    ]
)


# --------------------------------------------------------------------------------------------------------- environments

#: Places.
ENVIRONMENTS: Mapping[str, Environment] = MappingProxyType(
    {
        "meadow": Environment(
            560,
            ((112, 176, 232), (212, 234, 246)),
            ((146, 196, 92), (92, 152, 62)),
            ("clouds", "hills", "bushes", "flowers"),
            "nature",
        ),
        "forest": Environment(
            620,
            ((150, 190, 170), (206, 224, 190)),
            ((88, 122, 66), (52, 82, 44)),
            ("far_trees", "trunks", "grass"),
            "nature",
        ),
        "mountains": Environment(
            640,
            ((120, 166, 218), (226, 232, 240)),
            ((140, 162, 110), (98, 124, 84)),
            ("clouds", "peaks", "stones"),
            "nature",
        ),
        "desert": Environment(
            580,
            ((242, 186, 120), (252, 226, 176)),
            ((232, 190, 122), (204, 150, 88)),
            ("low_sun", "dunes", "cacti"),
            "nature",
        ),
        "snow": Environment(
            560,
            ((158, 184, 212), (222, 232, 242)),
            ((244, 248, 252), (204, 216, 232)),
            ("snow_hills", "firs", "snowfall"),
            "nature",
        ),
        "beach": Environment(
            420,
            ((92, 178, 232), (206, 238, 248)),
            ((70, 160, 196), (120, 204, 210)),
            ("sun", "clouds", "sand", "palm"),
            "water",
        ),
        "sea": Environment(
            460,
            ((140, 190, 228), (228, 238, 240)),
            ((58, 120, 168), (18, 62, 112)),
            ("clouds", "waves"),
            "water",
        ),
        "underwater": Environment(
            860,
            ((62, 168, 196), (12, 72, 122)),
            ((150, 150, 116), (104, 112, 92)),
            ("light_rays", "seaweed", "bubbles"),
            "water",
        ),
        "sky": Environment(
            1000,
            ((66, 138, 218), (202, 228, 246)),
            ((202, 228, 246), (202, 228, 246)),
            ("big_clouds",),
            "air",
        ),
        "night_sky": Environment(
            1000,
            ((14, 18, 52), (68, 56, 112)),
            ((68, 56, 112), (68, 56, 112)),
            ("stars", "moon"),
            "air",
        ),
        "street": Environment(
            600,
            ((166, 196, 222), (224, 228, 226)),
            ((128, 130, 134), (88, 90, 96)),
            ("houses", "pavement", "lane_marks"),
            "town",
        ),
        "night_city": Environment(
            640,
            ((20, 22, 56), (96, 66, 116)),
            ((44, 44, 68), (26, 26, 44)),
            ("stars", "towers", "street_lights"),
            "town",
        ),
        "living_room": Environment(
            680,
            ((232, 214, 186), (224, 202, 170)),
            ((172, 124, 82), (136, 92, 58)),
            ("window", "picture_frame", "floor_lamp", "skirting", "carpet"),
            "indoors",
        ),
        "kitchen": Environment(
            620,
            ((226, 236, 232), (210, 224, 220)),
            ((198, 176, 148), (160, 134, 106)),
            ("wall_tiles", "shelf", "counter"),
            "indoors",
        ),
        "office": Environment(
            660,
            ((206, 214, 224), (190, 200, 212)),
            ((122, 130, 142), (92, 98, 110)),
            ("blinds", "bookcase", "skirting"),
            "indoors",
        ),
        "studio": Environment(
            700,
            ((190, 186, 196), (226, 222, 226)),
            ((216, 212, 216), (174, 170, 180)),
            ("spot_light",),
            "indoors",
        ),
    }
)

ENVIRONMENT_NEIGHBOURS: Pairs = _pairs(
    [
        ("meadow", "forest"),
        ("meadow", "mountains"),
        ("forest", "mountains"),
        ("mountains", "snow"),
        ("mountains", "desert"),
        ("desert", "beach"),
        ("beach", "sea"),
        ("sea", "underwater"),
        ("sky", "sea"),
        ("sky", "night_sky"),
        ("street", "night_city"),
        ("night_city", "night_sky"),
        ("living_room", "kitchen"),
        ("living_room", "office"),
        ("office", "studio"),
    ]
)

_NATURE = ("meadow", "forest", "mountains", "beach", "snow")
_INDOORS = ("living_room", "kitchen", "office", "studio")

#: Places where things of a category may be seen, most usual first; see ``usual_environments``.
USUAL_ENVIRONMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "animal": ("meadow", "forest", "desert", "snow", "beach", "mountains"),
        "vehicle": ("street", "night_city", "mountains", "desert", "snow"),
        "food": ("kitchen", "living_room", "studio", "meadow"),
        "drinkware": ("kitchen", "living_room", "beach", "office"),
        "kitchenware": ("kitchen", "studio"),
        "furniture": ("living_room", "office", "studio"),
        "household_object": _INDOORS,
        "container": ("street", "living_room", "beach", "office"),
        "tool": ("studio", "kitchen", "meadow", "office"),
        "stationery": ("office", "living_room", "studio"),
        "clothing": ("studio", "living_room", "street", "beach"),
        "building": ("meadow", "street", "mountains", "night_city", "snow", "desert"),
        "plant": ("meadow", "forest", "living_room", "mountains"),
        "person": ("street", "beach", "meadow", "snow", "office", "mountains"),
        "body_part": ("studio", "office"),
        "electronic_device": ("office", "living_room", "studio"),
        "toy": ("living_room", "meadow", "studio", "beach"),
        "sports_equipment": ("meadow", "beach", "street", "studio"),
        "musical_instrument": ("living_room", "studio", "street", "night_city"),
        "medical_equipment": ("studio", "office"),
        "natural_scene": ("sky", "night_sky", "sea", *_NATURE),
        "street_object": ("street", "night_city", "mountains"),
    }
)


#: Families at home elsewhere than the rest of their category.
FAMILY_ENVIRONMENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "animal/fish": ("underwater", "sea"),
        "animal/shellfish": ("underwater", "sea", "beach"),
        "animal/bird": ("sky", "forest", "meadow", "beach"),
        "animal/dragon": ("night_sky", "mountains", "sky"),
        "animal/otter": ("underwater", "sea", "forest"),
        "vehicle/aeroplane": ("sky", "night_sky", "mountains"),
        "vehicle/helicopter": ("sky", "night_city", "mountains"),
        "vehicle/spacecraft": ("night_sky", "sky", "desert"),
        "vehicle/boat": ("sea", "beach"),
        "vehicle/cable_car": ("mountains", "snow", "sky"),
        "tool/anchor": ("underwater", "sea", "beach"),
        "sports_equipment/rescue": ("sea", "beach"),
        "electronic_device/space_technology": ("night_sky", "night_city", "sky"),
        "natural_scene/ice": ("snow", "mountains", "sky"),
        "natural_scene/fire": ("forest", "night_city", "beach"),
        "natural_scene/beach": ("beach",),
    }
)


def usual_environments(name: str) -> tuple[str, ...]:
    """Places where a concept may be seen, most usual first."""
    this = concept(name)
    return FAMILY_ENVIRONMENTS.get(this.family) or USUAL_ENVIRONMENTS[this.category]


# --------------------------------------------------------------------------------------------------------------- faults

#: Structured faults of a decoder's output, and what a sentence may call them.
ARTIFACTS: Mapping[str, str] = MappingProxyType(
    {
        "grid": "a grid pattern",
        "stripes": "horizontal stripes",
        "tiling": "a repeated, tiled pattern",
        "colour_bleed": "colours that bleed across edges",
        "fragments": "displaced fragments",
    }
)


# ------------------------------------------------------------------------------------------------- silhouettes


def concept(name: str) -> Concept:
    """The concept of a name.

    Raises:
        CorpusError: when there is none.
    """
    if name not in CONCEPTS:
        raise CorpusError(f"unknown concept {name!r}: expected one of {len(CONCEPTS)} names such as 'dog', 'aircraft'")
    return CONCEPTS[name]


@cache
def silhouette_similarity(a: str, b: str) -> float:
    """How much two concepts' outlines have in common.

    Both silhouettes are fitted into the same square, centred, and compared on a 64 x 64 grid.

    Args:
        a: name of a concept.
        b: name of another.

    Returns:
        Intersection over union, 0 (nothing in common) to 1 (the same outline); the same for ``(b, a)``.

    Raises:
        CorpusError: for an unknown name, or when the icon font is not installed.
    """
    from bcs_lab.corpus.demo.outlines import silhouette

    first, second = silhouette(concept(a).icon), silhouette(concept(b).icon)
    return int((first & second).sum()) / int((first | second).sum())
