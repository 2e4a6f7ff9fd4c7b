from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from bcs_lab.corpus.demo import concepts as tables
from bcs_lab.corpus.demo import outlines
from bcs_lab.corpus.demo.backgrounds import BACKGROUNDS, Chance, background, soften
from bcs_lab.corpus.demo.concepts import ARTIFACTS, CONCEPTS, ENVIRONMENTS, LAYOUTS, TEXTURES, silhouette_similarity
from bcs_lab.corpus.demo.draw import draw, drawn_size
from bcs_lab.corpus.demo.outlines import FULL, PIXEL, coverage, glyph, outline_of, silhouette
from bcs_lab.corpus.demo.scene import Decoder, Scene
from bcs_lab.corpus.demo.spoil import _box, spoil
from bcs_lab.errors import CorpusError

SCENE = Scene("dog", 1, "centre", 0.6, "orange", "shiny", "meadow", 5)
CLEAN = Decoder(0, 0, 0, "none", 0, seed=3)
STRENGTHS = (0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 1.0)

#: SHA-256 over RGB pixels. A change here means that every demo corpus changes: say so in the changelog.
GOLDEN_SCENES = {
    "car": (Scene("car", 2, "row", 0.4, "red", "shiny", "street", 11), 128),
    "cat": (Scene("cat", 1, "left", 0.5, "brown", "woolly", "living_room", 0), 64),
    "goldfish": (Scene("goldfish", 5, "scattered", 0.25, "yellow", "dotted", "underwater", 7), 224),
    "bent": (Scene("bicycle", 1, "centre", 0.7, "black", "metallic", "night_city", 123456789, 0.6), 128),
}
GOLDEN_DECODERS = {
    "soft": Decoder(0.12, 0.2, 0.08, "none", 0, 1),
    **{name: Decoder(0.05, 0.1, 0.03, name, 0.6, 2) for name in ARTIFACTS},
}


def _pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(np.int64)


def _difference(a: Image.Image, b: Image.Image) -> float:
    return float(np.abs(_pixels(a) - _pixels(b)).mean())


def _digest(image: Image.Image) -> str:
    return hashlib.sha256(image.tobytes()).hexdigest()[:16]


def _photo(width: int, height: int) -> Image.Image:
    pixels = np.random.PCG64(1).random_raw(width * height * 3) % np.uint64(256)
    rough = pixels.astype(np.int32).reshape(height, width, 3)
    return Image.fromarray(soften(rough, 2).astype(np.uint8))


# ------------------------------------------------------------ tables


def test_there_are_enough_concepts_in_enough_categories() -> None:
    assert len(CONCEPTS) >= 200
    assert list(CONCEPTS) == sorted(CONCEPTS)
    categories = Counter(concept.category for concept in CONCEPTS.values())
    assert len(categories) >= 12
    assert min(categories.values()) >= 5
    assert len({concept.icon for concept in CONCEPTS.values()}) == len(CONCEPTS)
    for concept in CONCEPTS.values():
        assert concept.name.replace("_", "").isalnum()
        assert concept.name == concept.name.lower()
        assert concept.family.startswith(concept.category + "/")


def test_neighbours_are_pairs_of_known_names() -> None:
    for pairs, names in (
        (tables.CATEGORY_NEIGHBOURS, {c.category for c in CONCEPTS.values()}),
        (tables.ROLE_NEIGHBOURS, {c.role for c in CONCEPTS.values()}),
        (tables.COLOUR_NEIGHBOURS, set(tables.COLOURS)),
        (tables.TEXTURE_NEIGHBOURS, set(TEXTURES)),
        (tables.ENVIRONMENT_NEIGHBOURS, set(ENVIRONMENTS)),
        (tables.LAYOUT_NEIGHBOURS, set(LAYOUTS)),
    ):
        assert pairs
        assert all(len(pair) == 2 and pair <= names for pair in pairs)


def test_every_concept_has_usual_places() -> None:
    families = {concept.family for concept in CONCEPTS.values()}
    assert set(tables.FAMILY_ENVIRONMENTS) <= families
    seen = set()
    for name in CONCEPTS:
        places = tables.usual_environments(name)
        assert places
        assert set(places) <= set(ENVIRONMENTS)
        seen |= set(places)
    assert seen == set(ENVIRONMENTS)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_place_one_to_six_objects_inside_the_picture(name: str) -> None:
    layout = LAYOUTS[name]
    assert len(layout.anchors) == len(layout.room) == tables.MAX_COUNT
    for count, anchors in enumerate(layout.anchors, start=1):
        assert len(set(anchors)) == count
        assert all(30 < x < 970 and 30 < y < 970 for x, y in anchors)


def test_layouts_differ_for_every_count_they_hold() -> None:
    for count in range(1, 7):
        named = [layout.anchors[count - 1] for layout in LAYOUTS.values() if layout.min_count <= count]
        assert len(set(named)) == len(named)


# ------------------------------------------------------------ outlines


def test_coverage_is_exact_for_a_rectangle() -> None:
    corners = np.array([(PIXEL, PIXEL // 2), (3 * PIXEL, PIXEL // 2), (3 * PIXEL, 2 * PIXEL), (PIXEL, 2 * PIXEL)])
    expected = np.zeros((3, 4), np.int16)
    expected[0, 1:3], expected[1, 1:3] = FULL // 2, FULL
    np.testing.assert_array_equal(coverage(outline_of([corners]), 4, 3), expected)
    np.testing.assert_array_equal(coverage(outline_of([corners[::-1]]), 4, 3), expected)


def test_winding_joins_overlaps_and_cuts_opposite_contours() -> None:
    outer = np.array([(0, 0), (8, 0), (8, 8), (0, 8)]) * PIXEL
    inner = np.array([(2, 2), (6, 2), (6, 6), (2, 6)]) * PIXEL
    assert coverage(outline_of([outer, inner]), 8, 8).sum() == 64 * FULL
    assert coverage(outline_of([outer, inner[::-1]]), 8, 8).sum() == (64 - 16) * FULL


def test_coverage_clips_what_reaches_outside() -> None:
    corners = np.array([(-5, -7), (90, -7), (90, 80), (-5, 80)]) * PIXEL
    assert coverage(outline_of([corners]), 6, 5).tolist() == [[FULL] * 6] * 5


def test_coverage_agrees_with_a_circle_s_area() -> None:
    icon = silhouette("circle")
    assert icon.mean() == pytest.approx(np.pi / 4, abs=0.01)


@pytest.mark.parametrize("name", CONCEPTS)
def test_every_silhouette_covers_a_sensible_share(name: str) -> None:
    assert 0.12 < silhouette(CONCEPTS[name].icon).mean() < 0.97


def test_silhouette_similarity() -> None:
    assert silhouette_similarity("dog", "dog") == 1
    assert silhouette_similarity("dog", "pen") == silhouette_similarity("pen", "dog")
    assert silhouette_similarity("jeep", "van") > 0.6 > silhouette_similarity("snowflake", "baby")
    assert 0 < silhouette_similarity("pen", "fork_and_knife") < 1
    with pytest.raises(CorpusError, match="unknown concept 'dgo'"):
        silhouette_similarity("dog", "dgo")


def test_a_missing_font_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlines.importlib.util, "find_spec", lambda name: None)
    outlines._font.cache_clear()
    try:
        with pytest.raises(
            CorpusError, match=r"fontawesomefree is not installed.*pip install 'fontawesomefree==6\.6\.0'"
        ):
            outlines._font()
    finally:
        outlines._font.cache_clear()


def test_an_icon_the_font_lacks_names_the_command() -> None:
    with pytest.raises(CorpusError, match=r"no icon 'unicorn'.*pip install"):
        glyph("unicorn")


# ------------------------------------------------------------ drawing


@pytest.mark.parametrize("name", CONCEPTS)
def test_every_concept_draws(name: str) -> None:
    scene = replace(SCENE, concept=name)
    empty = background("meadow", Chance(scene.variant).between(0, BACKGROUNDS - 1), 64)
    touched = np.abs(_pixels(draw(scene, 64)) - empty).max(axis=2) > 8
    assert 0.05 < touched.mean() < 0.7


@pytest.mark.parametrize("size", [64, 128, 224, 300])
def test_sizes(size: int) -> None:
    image = draw(replace(SCENE, count=3), size)
    assert image.mode == "RGB"
    assert image.size == (size, size)
    # The same scene at another size is the same picture.
    small = image.resize((32, 32), Image.Resampling.BOX)
    assert _difference(small, draw(replace(SCENE, count=3), 128).resize((32, 32), Image.Resampling.BOX)) < 6


@pytest.mark.parametrize(
    "change",
    [
        {"concept": "cat"},
        {"count": 2},
        {"layout": "left"},
        {"size": 0.5},
        {"colour": "blue"},
        {"texture": "rough"},
        {"environment": "forest"},
        {"variant": 6},
        {"deform": 0.05},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_field_changes_pixels(change: dict[str, object]) -> None:
    assert _difference(draw(SCENE), draw(replace(SCENE, **change))) > 0.3


@pytest.mark.parametrize("field", ["layout", "colour", "texture", "environment"])
def test_every_name_of_a_table_looks_different(field: str) -> None:
    names = {"layout": LAYOUTS, "colour": tables.COLOURS, "texture": TEXTURES, "environment": ENVIRONMENTS}[field]
    images = [draw(replace(SCENE, **{field: name, "size": 0.35}), 64) for name in names]
    for i, first in enumerate(images):
        for second in images[:i]:
            assert _difference(first, second) > 0.3


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sizes_beyond_the_room_still_grow(layout: str) -> None:
    scenes = [replace(SCENE, layout=layout, count=6, size=size) for size in (0.15, 0.2, 0.45, 0.7)]
    heights = [drawn_size(scene) for scene in scenes]
    assert heights == sorted(set(heights))
    assert len({_digest(draw(scene)) for scene in scenes}) == len(scenes)


def test_variants_look_alike_and_deforming_goes_on() -> None:
    first = draw(SCENE)
    assert max(_difference(first, draw(replace(SCENE, variant=v))) for v in range(6, 12)) < 25
    bent = [_difference(first, draw(replace(SCENE, deform=d))) for d in (0.0, 0.1, 0.4, 1.0)]
    assert bent == sorted(set(bent))


@pytest.mark.parametrize("concept", list(CONCEPTS)[::9])
def test_a_collapsed_shape_is_a_lump(concept: str) -> None:
    whole = draw(replace(SCENE, concept=concept, deform=1.0), 64)
    empty = background("meadow", Chance(SCENE.variant).between(0, BACKGROUNDS - 1), 64)
    assert 0.15 < (np.abs(_pixels(whole) - empty).max(axis=2) > 8).mean() < 0.6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"concept": "dgo"}, r"scene\.concept: unknown name 'dgo'; expected one of \d+ names"),
        ({"layout": "circle"}, r"scene\.layout: unknown name 'circle'; expected one of centre, left"),
        ({"colour": "mauve"}, r"scene\.colour: unknown name 'mauve'"),
        ({"texture": ""}, r"scene\.texture: unknown name ''"),
        ({"environment": "moon"}, r"scene\.environment: unknown name 'moon'"),
        ({"count": 0}, r"scene\.count is the number of objects, 1 to 6; got 0"),
        ({"count": 7}, r"scene\.count .* got 7"),
        ({"count": 1.5}, r"scene\.count .* got 1\.5"),
        ({"size": 0.1}, r"scene\.size .* 0\.15 to 0\.7; got 0\.1"),
        ({"size": float("nan")}, r"scene\.size .* got nan"),
        ({"deform": 1.2}, r"scene\.deform is a share.*got 1\.2"),
        ({"variant": -1}, r"scene\.variant is a seed, 0 or more; got -1"),
    ],
)
def test_scenes_without_meaning_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(replace(SCENE, **change))


@pytest.mark.parametrize("size", [0, 31, 2000, 64.0])
def test_picture_sizes_are_checked(size: int) -> None:
    with pytest.raises(ValueError, match="side in pixels, 32 to 1024; got"):
        draw(SCENE, size)


# ------------------------------------------------------------ spoiling


@pytest.mark.parametrize("artifact", ["none", *ARTIFACTS])
def test_strength_zero_leaves_pixels_unchanged(artifact: str) -> None:
    image = draw(SCENE)
    assert _digest(spoil(image, replace(CLEAN, artifact=artifact))) == _digest(image)
    photo = _photo(61, 40)
    assert _digest(spoil(photo, replace(CLEAN, artifact=artifact))) == _digest(photo)


@pytest.mark.parametrize("field", ["blur", "fade", "noise", *ARTIFACTS])
def test_more_strength_takes_the_picture_further_away(field: str) -> None:
    image = draw(replace(SCENE, environment="street"))
    change = {"artifact": field, "artifact_strength": 0.0} if field in ARTIFACTS else {}
    knob = "artifact_strength" if field in ARTIFACTS else field
    away = [_difference(image, spoil(image, replace(CLEAN, **{**change, knob: s}))) for s in STRENGTHS]
    assert away[0] == 0
    assert all(later >= before for before, later in pairwise(away))
    assert away[2] > 0
    assert away[-1] > 15


def test_full_strength_leaves_nothing() -> None:
    first, second = draw(SCENE), draw(replace(SCENE, concept="car", colour="blue"))
    for field in ("fade", "noise"):
        a, b = (spoil(image, replace(CLEAN, **{field: 1.0})) for image in (first, second))
        assert _difference(a, b) < 20
    assert _pixels(spoil(first, replace(CLEAN, fade=1.0))).std() == 0
    assert np.abs(np.diff(_pixels(spoil(first, replace(CLEAN, blur=1.0))), axis=0)).max() <= 3


def test_fading_keeps_the_mean_brightness() -> None:
    image = draw(SCENE)
    grey = np.array([77, 150, 29]) / 256
    before, after = (float((_pixels(im) @ grey).mean()) for im in (image, spoil(image, replace(CLEAN, fade=0.6))))
    assert after == pytest.approx(before, abs=1.5)


def test_seed_and_artifact_matter() -> None:
    image = draw(SCENE)
    noisy = replace(CLEAN, noise=0.2)
    assert _digest(spoil(image, noisy)) != _digest(spoil(image, replace(noisy, seed=4)))
    faulty = [spoil(image, replace(CLEAN, artifact=name, artifact_strength=0.7)) for name in ARTIFACTS]
    assert len({_digest(im) for im in faulty}) == len(ARTIFACTS)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (40, 97), (640, 33)])
@pytest.mark.parametrize("artifact", ARTIFACTS)
def test_any_picture_size(shape: tuple[int, int], artifact: str) -> None:
    photo = _photo(*shape)
    for strength in (0.01, 0.5, 1.0):
        out = spoil(photo, Decoder(strength, strength, strength, artifact, strength, 0))
        assert out.size == shape
        assert out.mode == "RGB"


def test_blur_of_a_large_picture_does_not_overflow() -> None:
    white = np.full((1, 6000, 3), 255 * 16, np.int32)
    assert (_box(white, 1400 * 256) == white).all()


def test_a_box_is_the_mean_of_its_neighbours() -> None:
    pixels = np.arange(60, dtype=np.int32).reshape(4, 5, 3) ** 2
    expected = np.pad(pixels, ((1, 1), (1, 1), (0, 0)), mode="edge").astype(float)
    expected = sum(expected[i : i + 4, j : j + 5] for i in range(3) for j in range(3)) / 9
    np.testing.assert_allclose(_box(pixels, 256), expected, atol=1.1)
    np.testing.assert_allclose(soften(pixels, 1), expected, atol=1.1)


def test_other_modes_become_rgb_and_the_input_stays() -> None:
    photo = _photo(30, 30)
    before = photo.tobytes()
    assert spoil(photo.convert("L"), replace(CLEAN, noise=0.3)).mode == "RGB"
    spoil(photo, GOLDEN_DECODERS["grid"])
    assert photo.tobytes() == before


@pytest.mark.parametrize("field", ["blur", "fade", "noise", "artifact_strength"])
@pytest.mark.parametrize("value", [-0.1, 1.01, float("nan"), "much", None, True])
def test_strengths_are_checked(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"decoder\.{field} is a strength from 0 .* to 1 .*; got {value!r}"):
        spoil(draw(SCENE, 64), replace(CLEAN, **{field: value}))


def test_artifact_and_seed_are_checked() -> None:
    with pytest.raises(ValueError, match=r"decoder\.artifact: unknown name 'moire'; expected one of none, grid"):
        spoil(draw(SCENE, 64), replace(CLEAN, artifact="moire"))
    with pytest.raises(ValueError, match=r"decoder\.seed is a whole number, 0 or more; got -1"):
        spoil(draw(SCENE, 64), replace(CLEAN, seed=-1))


# ------------------------------------------------------------ determinism

GOLDEN = {
    "car": "cd99a0c5ab8aa2d9",
    "cat": "23026f65dba8582a",
    "goldfish": "752e7faa32355c23",
    "bent": "eded991540cedb68",
    "car soft": "f5431f0ac6f19b62",
    "car grid": "dc7f113983ddc5f7",
    "car stripes": "b03629047314068d",
    "car tiling": "a2d3750ab389cbc0",
    "car colour_bleed": "a67e21f7f36d6e54",
    "car fragments": "9dd268db40e33d6f",
    "photo soft": "d2fddd77170e59b0",
    "photo grid": "93865922e97bf3e2",
    "photo stripes": "0e676f699b6ac284",
    "photo tiling": "d7f423ee56930c22",
    "photo colour_bleed": "aede5096fb5504a9",
    "photo fragments": "04f49ecf37b9f757",
}


def _golden_images() -> dict[str, Image.Image]:
    images = {name: draw(scene, size) for name, (scene, size) in GOLDEN_SCENES.items()}
    spoiled = {f"car {name}": spoil(images["car"], decoder) for name, decoder in GOLDEN_DECODERS.items()}
    photo = {f"photo {name}": spoil(_photo(83, 57), decoder) for name, decoder in GOLDEN_DECODERS.items()}
    return {**images, **spoiled, **photo}


def test_golden_pixels() -> None:
    assert {name: _digest(image) for name, image in _golden_images().items()} == GOLDEN


def test_order_of_calls_does_not_matter() -> None:
    first = {name: _digest(draw(scene, size)) for name, (scene, size) in GOLDEN_SCENES.items()}
    for scene, size in reversed(GOLDEN_SCENES.values()):
        draw(replace(scene, variant=scene.variant + 1), size)
    again = {name: _digest(draw(scene, size)) for name, (scene, size) in reversed(GOLDEN_SCENES.items())}
    assert again == first
