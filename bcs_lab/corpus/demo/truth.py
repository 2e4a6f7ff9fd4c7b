"""The true answers to the twelve questions, by rules over the two scenes and the decoder (Table 3, Appendix B).

Every rule looks only at what its question asks about. What Appendix B lists as tolerated (blur, approximate places, a
muted palette, one weak dimension) costs nothing or half; what it lists as penalised costs all.
"""

from __future__ import annotations

import functools
import math

from bcs_lab.corpus.demo.concepts import (
    CATEGORY_NEIGHBOURS,
    COLOUR_NEIGHBOURS,
    CONCEPTS,
    ENVIRONMENT_NEIGHBOURS,
    LAYOUTS,
    ROLE_NEIGHBOURS,
    TEXTURE_NEIGHBOURS,
    silhouette_similarity,
)
from bcs_lab.corpus.demo.scene import Decoder, Scene

NO, SOMEWHAT, YES = 0.0, 0.5, 1.0

#: How much is left to see (:func:`visibility`): from CLEAR up all of it counts, below NOTHING none of it does.
CLEAR, NOTHING = 0.4, 0.2
#: P1: how far objects may move, as a share of the picture's side, and by what factor their height may change.
NEAR_PLACE, FAR_PLACE = 0.16, 0.28
NEAR_SIZE, FAR_SIZE = 1.5, 2.2
#: P2: bending that still leaves the silhouette, or something of it; S1 to S3 need something of it too.
MILD_DEFORM, STRONG_DEFORM, COLLAPSED = 0.35, 0.65, 0.9
#: P2: overlap from which another concept's silhouette is alike, or partly alike.
ALIKE, PARTLY_ALIKE = 0.75, 0.6
#: P3: blur from which the surface is uncertain, or lost.
FLAT_BLUR, LOST_BLUR = 0.35, 0.55
#: P4: fading from which the colours are uncertain, or absent.
MUTED, COLOURLESS = 0.5, 0.7
#: P5: strength of an artifact, and of grain, that shows, or that dominates.
ARTIFACT_SHOWS, ARTIFACT_DOMINATES = 0.25, 0.55
GRAIN_SHOWS, GRAIN_DOMINATES = 0.25, 0.45
#: How much of what lies under it an artifact of full strength hides.
HIDES = {"tiling": 1.0, "fragments": 0.9, "grid": 0.6, "stripes": 0.6, "colour_bleed": 0.4}
#: S4: from this many on, one more or less is "somewhat"; from CROWD on nobody counts.
UNCERTAIN_COUNT, CROWD = 3, 5
#: P6 and S6: means of the single answers for "yes" and "somewhat".
P6_YES, P6_SOMEWHAT = 0.625, 0.25
S6_YES, S6_SOMEWHAT = 0.75, 0.3


def true_answers(reference: Scene, reconstruction: Scene, decoder: Decoder) -> tuple[float, ...]:
    """The right answer to each question of ``BCS12``, in protocol order.

    Args:
        reference: what was seen.
        reconstruction: what the decoder made of it, before it is spoiled.
        decoder: how its picture is spoiled.

    Returns:
        12 values, each 0, 0.5 or 1 (eq. 7).
    """
    return (
        *perceptual_answers(reference, reconstruction, decoder),
        *semantic_answers(reference, reconstruction, decoder),
    )


def perceptual_answers(reference: Scene, reconstruction: Scene, decoder: Decoder) -> tuple[float, ...]:
    """P1 to P6; see :func:`true_answers`."""
    artifacts = free_of_artifacts(decoder)
    seen = visibility(decoder)
    if seen < NOTHING:
        return (NO, NO, NO, NO, artifacts, NO)
    single = (
        layout(reference, reconstruction),
        shape(reference, reconstruction),
        texture(reference, reconstruction, decoder),
        colour(reference, reconstruction, decoder),
    )
    return (*single, artifacts, _whole(sum(single) / len(single), P6_YES, P6_SOMEWHAT, seen))


def semantic_answers(reference: Scene, reconstruction: Scene, decoder: Decoder) -> tuple[float, ...]:
    """S1 to S6; see :func:`true_answers`."""
    seen = visibility(decoder)
    if seen < NOTHING:
        return (NO,) * 6
    single = (
        category(reference, reconstruction),
        identity(reference, reconstruction),
        function(reference, reconstruction),
        quantity(reference, reconstruction),
        environment(reference, reconstruction),
    )
    return (*single, meaning(single, seen))


def visibility(decoder: Decoder) -> float:
    """Share of the content that is left to see, 0 to 1: what blur, fading, grain and artifacts each leave, multiplied.

    Grain hides the more the less contrast it has against it; fading alone leaves outlines.
    """
    detail = (1 - decoder.blur) ** 1.5
    contrast = 1 - 0.7 * decoder.fade**2
    grain = decoder.noise * 2 / max(1 - decoder.fade, 1e-3)
    under_grain = (1 - decoder.noise**2) / (1 + grain**2)
    under_artifact = 1 - HIDES.get(decoder.artifact, 0.0) * _artifact_strength(decoder) ** 1.5
    return detail * contrast * under_grain * under_artifact


# --- Perceptual ------------------------------------------------------------------------------------------------------


def layout(reference: Scene, reconstruction: Scene) -> float:
    """P1: places and sizes of the main regions.

    Tolerated: approximate places and sizes. Somewhat: a clear shift or change of size, or many objects for few.
    Penalised: a completely different place or scale.
    """
    return min(
        place(reference, reconstruction),
        _below(_ratio(seen_size(reference), seen_size(reconstruction)), NEAR_SIZE, FAR_SIZE),
        YES if abs(reference.count - reconstruction.count) < 3 else SOMEWHAT,
    )


def place(reference: Scene, reconstruction: Scene) -> float:
    """The part of P1 that looks at places alone; a layout is in the same place whatever it holds."""
    if reference.layout == reconstruction.layout:
        return YES
    moved = displacement(reference.layout, reference.count, reconstruction.layout, reconstruction.count)
    return _below(moved, NEAR_PLACE, FAR_PLACE)


@functools.cache
def displacement(layout: str, count: int, other_layout: str, other_count: int) -> float:
    """How far an arrangement moved: mean distance to the nearest object of the other one, as a share of the side."""
    first, second = LAYOUTS[layout].anchors[count - 1], LAYOUTS[other_layout].anchors[other_count - 1]
    there = sum(min(math.dist(a, b) for b in second) for a in first) / len(first)
    back = sum(min(math.dist(a, b) for a in first) for b in second) / len(second)
    return (there + back) / 2000


def seen_size(scene: Scene) -> float:
    """Height of one object as drawn, as a share of the picture's: an arrangement leaves each only so much room."""
    return min(scene.size, LAYOUTS[scene.layout].room[scene.count - 1] / 1000)


def shape(reference: Scene, reconstruction: Scene) -> float:
    """P2: silhouette of the main object, whatever it is.

    Tolerated: mild deformation. Somewhat: strong deformation, or another object of a partly alike outline. Penalised:
    a collapsed form or the silhouette of an unlike object.
    """
    bent = _below(reconstruction.deform - reference.deform, MILD_DEFORM, STRONG_DEFORM)
    if reference.concept == reconstruction.concept:
        return bent
    alike = silhouette_similarity(reference.concept, reconstruction.concept)
    return min(bent, _above(alike, ALIKE, PARTLY_ALIKE))


def texture(reference: Scene, reconstruction: Scene, decoder: Decoder) -> float:
    """P3: surface of the main object.

    Tolerated: a softer surface. Somewhat: an approximate material, or a surface blurred flat. Penalised: another
    material, or no surface left.
    """
    same = _match(reference.texture, reconstruction.texture, TEXTURE_NEIGHBOURS)
    return min(same, _below(decoder.blur, FLAT_BLUR, LOST_BLUR))


def colour(reference: Scene, reconstruction: Scene, decoder: Decoder) -> float:
    """P4: dominant colour of the main object.

    Tolerated: a muted palette. Somewhat: a neighbouring colour, or colours nearly faded away or bleeding over the
    whole picture. Penalised: another colour, or none.
    """
    same = _match(reference.colour, reconstruction.colour, COLOUR_NEIGHBOURS)
    bleeds = decoder.artifact == "colour_bleed" and _artifact_strength(decoder) > ARTIFACT_DOMINATES
    return min(same, _below(decoder.fade, MUTED, COLOURLESS), SOMEWHAT if bleeds else YES)


def free_of_artifacts(decoder: Decoder) -> float:
    """P5: no structured fault or grain over the content. Blur and fading are not artifacts; mild grain is tolerated."""
    return min(
        _below(_artifact_strength(decoder), ARTIFACT_SHOWS, ARTIFACT_DOMINATES),
        _below(decoder.noise, GRAIN_SHOWS, GRAIN_DOMINATES),
    )


# --- Semantic --------------------------------------------------------------------------------------------------------


def category(reference: Scene, reconstruction: Scene) -> float:
    """S1: basic-level category. Somewhat: a neighbouring category. Penalised: another one, or a collapsed object."""
    a, b = CONCEPTS[reference.concept].category, CONCEPTS[reconstruction.concept].category
    return _recognised(_match(a, b, CATEGORY_NEIGHBOURS), reconstruction)


def identity(reference: Scene, reconstruction: Scene) -> float:
    """S2: the specific kind. Somewhat: closer kin of one family. Penalised: any other kind, or a collapsed object."""
    if reference.concept == reconstruction.concept:
        return _recognised(YES, reconstruction)
    kin = CONCEPTS[reference.concept].family == CONCEPTS[reconstruction.concept].family
    return _recognised(SOMEWHAT if kin else NO, reconstruction)


def function(reference: Scene, reconstruction: Scene) -> float:
    """S3: what the object is for. Somewhat: a related role. Penalised: another role, or a collapsed object."""
    a, b = CONCEPTS[reference.concept].role, CONCEPTS[reconstruction.concept].role
    return _recognised(_match(a, b, ROLE_NEIGHBOURS), reconstruction)


def quantity(reference: Scene, reconstruction: Scene) -> float:
    """S4: number of main objects.

    Yes: equal, or a crowd for a crowd. Somewhat: off by one from three on. Penalised: any other difference, one for
    several above all.
    """
    a, b = reference.count, reconstruction.count
    if a == b or min(a, b) >= CROWD:
        return YES
    return SOMEWHAT if a >= UNCERTAIN_COUNT and abs(a - b) == 1 else NO


def environment(reference: Scene, reconstruction: Scene) -> float:
    """S5: the setting. Somewhat: a neighbouring one (tolerated as approximate). Penalised: any other."""
    return _match(reference.environment, reconstruction.environment, ENVIRONMENT_NEIGHBOURS)


def meaning(single: tuple[float, ...], seen: float) -> float:
    """S6 from the answers to S1 to S5 and what is left to see.

    Yes needs the right kind or nearly everything else. Tolerated: single dimensions missing, down to somewhat for
    partial evidence. Penalised: a picture that suggests another concept (neither category nor role is kept).
    """
    right_category, right_kind, right_role = single[:3]
    if max(right_category, right_role) == NO:
        return NO
    share = 1.0 if right_kind == YES else sum(single) / len(single)
    return _whole(share, S6_YES, S6_SOMEWHAT, seen)


# --- Helpers ---------------------------------------------------------------------------------------------------------


def _artifact_strength(decoder: Decoder) -> float:
    return 0.0 if decoder.artifact == "none" else decoder.artifact_strength


def _match(a: str, b: str, neighbours: frozenset[frozenset[str]]) -> float:
    if a == b:
        return YES
    return SOMEWHAT if frozenset((a, b)) in neighbours else NO


def _below(value: float, good: float, bad: float) -> float:
    """Yes up to ``good``, no beyond ``bad``."""
    return YES if value <= good else SOMEWHAT if value <= bad else NO


def _above(value: float, good: float, bad: float) -> float:
    """Yes from ``good`` on, no below ``bad``."""
    return YES if value >= good else SOMEWHAT if value >= bad else NO


def _ratio(a: float, b: float) -> float:
    return max(a, b) / min(a, b)


def _recognised(answer: float, reconstruction: Scene) -> float:
    return answer if reconstruction.deform < COLLAPSED else NO


def _whole(share: float, good: float, bad: float, seen: float) -> float:
    """A holistic answer: by the mean of the single ones, at most somewhat where little is left to see."""
    return min(_above(share, good, bad), YES if seen >= CLEAR else SOMEWHAT)
