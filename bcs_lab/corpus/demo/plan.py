"""What each pair of the demo is made of, drawn at random but in the paper's composition (Tables 8 and 9).

A pair has two latent qualities, of what it looks like and of what it means, that depend on its decoder. Each attribute
the questions ask about is then kept, nearly kept or lost, the more likely kept the higher the quality, and otherwise
independently of the others. The true answers are read off the scenes by :mod:`bcs_lab.corpus.demo.truth`.

A pair depends on the seed and its own id only, a reference on the seed, its set of stimuli and its concept.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

from bcs_lab.corpus.demo import truth
from bcs_lab.corpus.demo.concepts import (
    ARTIFACTS,
    CATEGORY_NEIGHBOURS,
    COLOUR_NEIGHBOURS,
    COLOURS,
    CONCEPTS,
    ENVIRONMENT_NEIGHBOURS,
    ENVIRONMENTS,
    LAYOUTS,
    MAX_COUNT,
    TEXTURE_NEIGHBOURS,
    TEXTURES,
    USUAL_ENVIRONMENTS,
    silhouette_similarity,
)
from bcs_lab.corpus.demo.scene import Decoder, PairPlan, Scene
from bcs_lab.errors import ConfigError

SIZES = ("small", "paper")


@dataclass(frozen=True)
class Profile:
    """What a decoder's output is like.

    Attributes:
        looks: mean of the perceptual quality; its spread is 1, and from 0 on most of what is seen is kept.
        means: mean of the semantic quality, on the same scale.
        blur: typical blur of its pictures, 0 to 1.
    """

    looks: float
    means: float
    blur: float


#: By method, after its row of Table 9: BrainVis outputs mostly good, DreamDiffusion's nearly all low on both axes.
PROFILES: Mapping[str, Profile] = {
    "ATM": Profile(looks=-1.4, means=-1.28, blur=0.13),
    "ENIGMA": Profile(looks=-1.48, means=-1.35, blur=0.14),
    "brainvis": Profile(looks=0.25, means=1.8, blur=0.08),
    "cvpr40_brainvis": Profile(looks=0.3, means=1.9, blur=0.08),
    "cvpr40_dreamdiffusion": Profile(looks=-0.75, means=-0.5, blur=0.18),
    "dreamdiffusion": Profile(looks=-2.6, means=-2.4, blur=0.24),
    "thingseeg_brainvis": Profile(looks=0.25, means=1.8, blur=0.08),
    "thingseeg_dreamdiffusion": Profile(looks=-2.6, means=-2.4, blur=0.24),
}

#: Correlation of the two latent qualities of a pair.
QUALITY_CORRELATION = 0.75

#: Methods with one picture, or two, for each of their subjects and concepts.
_CANDIDATES = {"ATM": 1, "ENIGMA": 2}
#: The methods of the second set of stimuli, which shares no concept with the first.
_CVPR40 = ("cvpr40_brainvis", "cvpr40_dreamdiffusion")


@dataclass(frozen=True)
class _Composition:
    subjects: int
    concepts: int
    extra: int
    cvpr40: tuple[int, int]
    left_out: bool


_COMPOSITIONS = {
    "paper": _Composition(subjects=10, concepts=200, extra=200, cvpr40=(39, 46), left_out=True),
    "small": _Composition(subjects=4, concepts=56, extra=24, cvpr40=(14, 14), left_out=False),
}
_THINGS = _COMPOSITIONS["paper"].concepts


def plan_demo(size: str = "small", seed: int = 0) -> list[PairPlan]:
    """Plan the demo corpus.

    Args:
        size: ``small`` (796 pairs, 70 concepts) or ``paper`` (6,855 pairs, 246 concepts, the composition of Table 8).
        seed: another seed gives other scenes, changes and degradations of the same pairs.

    Returns:
        The pairs, sorted by id. Table 8 gives ATM 1,990 pairs of 10 subjects and 200 concepts: each subject lacks one
        concept, another one each, and so for ENIGMA's 3,980 with two candidates.

    Raises:
        ConfigError: an unknown size.
    """
    if size not in _COMPOSITIONS:
        raise ConfigError(f"corpus.size={size}: expected one of {', '.join(SIZES)}.")
    plans = [_pair(slot, seed) for slot in _slots(_COMPOSITIONS[size])]
    return sorted(plans, key=lambda plan: plan.pair_id)


@dataclass(frozen=True)
class _Slot:
    """A pair before anything is drawn."""

    pair_id: str
    method: str
    subject: str
    concept: str
    candidate: int


def _slots(composition: _Composition) -> Iterator[_Slot]:
    things, cvpr40 = _stimuli()
    things = things[: composition.concepts]
    for method, candidates in _CANDIDATES.items():
        for subject in range(composition.subjects):
            name = f"sub-{subject + 1:02d}"
            for number, concept in enumerate(things):
                # Another concept each, so that all are still there for nine subjects, and none that "small" has.
                if composition.left_out and number == len(things) - 1 - 10 * subject:
                    continue
                for candidate in range(candidates):
                    pair_id = f"{method}__{name}__{concept}__rank1__cand{candidate}"
                    yield _Slot(pair_id, method, name, concept, candidate)
    extra = {method: things[: composition.extra] for method in PROFILES if method not in (*_CANDIDATES, *_CVPR40)}
    extra |= {method: cvpr40[:count] for method, count in zip(_CVPR40, composition.cvpr40, strict=True)}
    for method, concepts in extra.items():
        for row, concept in enumerate(concepts):
            yield _Slot(f"{method}__extra__{concept}__rank1__cand0__row{row}", method, "na", concept, 0)


@functools.cache
def _stimuli() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The concepts of the two sets of stimuli, each in an order that mixes the categories."""
    mixed = sorted(CONCEPTS, key=lambda name: hashlib.sha256(name.encode()).digest())
    cvpr40 = max(_COMPOSITIONS["paper"].cvpr40)
    if len(mixed) < _THINGS + cvpr40:
        raise ConfigError(f"The demo needs {_THINGS + cvpr40} concepts, but the table has {len(mixed)}.")
    return tuple(mixed[:_THINGS]), tuple(mixed[_THINGS : _THINGS + cvpr40])


# --- Reference -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _reference(stimuli: str, concept: str, seed: int) -> Scene:
    """What was seen: one scene a concept, shared by all decoders of one set of stimuli."""
    rng = _rng("reference", seed, stimuli, concept)
    count = _weighted(rng, {1: 62, 2: 14, 3: 12, 4: 6, 5: 3, 6: 3})
    layout = rng.choice([name for name, layout in LAYOUTS.items() if layout.min_count <= count])
    room = LAYOUTS[layout].room[count - 1] / 1000
    return Scene(
        concept=concept,
        count=count,
        layout=layout,
        size=round(max(0.15, room * _between(rng, 0.7, 1.0)), 3),
        colour=rng.choice(list(COLOURS)),
        texture=rng.choice(list(TEXTURES)),
        environment=rng.choice(USUAL_ENVIRONMENTS[CONCEPTS[concept].category]),
        variant=rng.getrandbits(31),
    )


# --- Reconstruction --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Attribute:
    """How far an attribute follows a quality.

    Attributes:
        loading: correlation with the quality, 0 to 1.
        same: from here on it is kept.
        near: from here on it is nearly kept.
    """

    loading: float
    same: float
    near: float


_PLACE = _Attribute(loading=0.75, same=-0.7, near=-1.5)
_SIZE = _Attribute(loading=0.6, same=-1.3, near=-2.0)
_FORM = _Attribute(loading=0.8, same=-0.3, near=-0.9)
_TEXTURE = _Attribute(loading=0.75, same=-0.4, near=-1.0)
_COLOUR = _Attribute(loading=0.7, same=-0.4, near=-1.1)
_CLEAN = _Attribute(loading=0.6, same=-1.0, near=-2.0)
_COUNT = _Attribute(loading=0.5, same=-0.9, near=-1.3)
_ENVIRONMENT = _Attribute(loading=0.8, same=0.2, near=-0.1)
#: The concept: itself, its family, its category, a neighbouring category; below the last, anything.
_CONCEPT_LOADING, _CONCEPT_CUTS = 0.95, (0.0, -0.15, -0.5, -0.8)
#: From here on (with the loading of ``_FORM``) a wrong concept at least has an outline like the right one's.
_LOOKALIKE = -0.6
#: Concepts looked at to find one of a like outline.
_LOOKALIKE_TRIES = 24


def _pair(slot: _Slot, seed: int) -> PairPlan:
    stimuli = "cvpr40" if slot.method in _CVPR40 else "things"
    reference = _reference(stimuli, slot.concept, seed)
    rng = _rng("pair", seed, slot.pair_id)
    profile = PROFILES[slot.method]
    shared = _normal(rng)
    looks = profile.looks + shared
    means = profile.means + QUALITY_CORRELATION * shared + (1 - QUALITY_CORRELATION**2) ** 0.5 * _normal(rng)
    reconstruction = _reconstruction(reference, looks, means, rng)
    decoder = _decoder(profile, looks, rng)
    return PairPlan(
        pair_id=slot.pair_id,
        method=slot.method,
        subject=slot.subject,
        concept=slot.concept,
        rank="1",
        candidate=str(slot.candidate),
        reference=reference,
        reconstruction=reconstruction,
        decoder=decoder,
        truth=truth.true_answers(reference, reconstruction, decoder),
    )


def _reconstruction(reference: Scene, looks: float, means: float, rng: random.Random) -> Scene:
    form = _follow(rng, looks, _FORM.loading)
    concept = _concept(reference.concept, _follow(rng, means, _CONCEPT_LOADING), form, rng)
    count = _count(reference.count, _level(rng, means, _COUNT), rng)
    layout = _layout(reference, count, _level(rng, looks, _PLACE), rng)
    deform = (_between(rng, 0.7, 1.0), _between(rng, 0.4, 0.6), _between(rng, 0.0, 0.3))[_cut(form, _FORM)]
    factor = (_between(rng, 2.3, 3.0), _between(rng, 1.6, 2.1), _between(rng, 1.0, 1.35))[_level(rng, looks, _SIZE)]
    room = LAYOUTS[layout].room[count - 1] / 1000
    size = truth.seen_size(reference)
    # Larger only where there is room for it, or the change would not be seen.
    size = size * factor if size * factor <= room and rng.random() < 0.5 else size / factor
    return Scene(
        concept=concept,
        count=count,
        layout=layout,
        size=round(min(max(size, 0.15), 0.7), 3),
        colour=_other(rng, reference.colour, COLOURS, COLOUR_NEIGHBOURS, _level(rng, looks, _COLOUR)),
        texture=_other(rng, reference.texture, TEXTURES, TEXTURE_NEIGHBOURS, _level(rng, looks, _TEXTURE)),
        environment=_other(
            rng, reference.environment, ENVIRONMENTS, ENVIRONMENT_NEIGHBOURS, _level(rng, means, _ENVIRONMENT)
        ),
        # Alike where most is kept: the same small things stand in the same places.
        variant=reference.variant if looks > 0 else rng.getrandbits(31),
        deform=round(deform, 3),
    )


def _concept(name: str, value: float, form: float, rng: random.Random) -> str:
    kin, same_category, neighbours, others = _relations(name)
    for cut, names in zip(_CONCEPT_CUTS, ((name,), kin, same_category, neighbours), strict=True):
        if value >= cut and names:
            return rng.choice(names)
    if form < _LOOKALIKE:
        return rng.choice(others)
    tries = [rng.choice(others) for _ in range(_LOOKALIKE_TRIES)]
    return max(tries, key=lambda other: silhouette_similarity(name, other))


@functools.cache
def _relations(name: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Other concepts of the family, of the category, of neighbouring categories, and all the rest."""
    groups: tuple[list[str], list[str], list[str], list[str]] = ([], [], [], [])
    concept = CONCEPTS[name]
    for other in CONCEPTS.values():
        if other.name == name:
            continue
        if other.family == concept.family:
            groups[0].append(other.name)
        elif other.category == concept.category:
            groups[1].append(other.name)
        elif frozenset((other.category, concept.category)) in CATEGORY_NEIGHBOURS:
            groups[2].append(other.name)
        else:
            groups[3].append(other.name)
    return tuple(groups[0]), tuple(groups[1]), tuple(groups[2]), tuple(groups[3])


def _count(count: int, level: int, rng: random.Random) -> int:
    if level == 2:
        return count
    near = [other for other in (count - 1, count + 1) if 1 <= other <= MAX_COUNT]
    far = [other for other in range(1, MAX_COUNT + 1) if abs(other - count) > 1]
    return rng.choice(near if level == 1 else far)


def _layout(reference: Scene, count: int, level: int, rng: random.Random) -> str:
    """A layout whose place is right, nearly right or wrong."""
    fitting = [name for name, layout in LAYOUTS.items() if layout.min_count <= count]
    if level == 2 and reference.layout in fitting:
        return reference.layout
    answers = {name: truth.place(reference, _moved(reference, name, count)) for name in fitting}
    wanted = [name for name, answer in answers.items() if answer == level / 2]
    return rng.choice(wanted or fitting)


def _moved(scene: Scene, layout: str, count: int) -> Scene:
    return Scene(
        scene.concept, count, layout, scene.size, scene.colour, scene.texture, scene.environment, scene.variant
    )


def _decoder(profile: Profile, looks: float, rng: random.Random) -> Decoder:
    worse = 0.03 * (profile.looks - looks)
    clean = _level(rng, looks, _CLEAN)
    strength = (_between(rng, 0.6, 0.95), _between(rng, 0.3, 0.5), _between(rng, 0.0, 0.15))[clean]
    noise = _between(rng, 0.0, 0.1)
    if clean < 2 and rng.random() < 0.25:
        # Grain instead of a structured fault.
        noise, strength = (_between(rng, 0.5, 0.75), _between(rng, 0.28, 0.42))[clean], 0.0
    faulty = strength >= 0.1
    return Decoder(
        blur=_share(profile.blur + worse + 0.07 * _normal(rng)),
        fade=_share(0.15 + worse + 0.1 * _normal(rng)),
        noise=_share(noise),
        artifact=rng.choice(list(ARTIFACTS)) if faulty else "none",
        artifact_strength=_share(strength) if faulty else 0.0,
        seed=rng.getrandbits(31),
    )


# --- Drawing at random -----------------------------------------------------------------------------------------------

T = TypeVar("T")


def _rng(*key: object) -> random.Random:
    digest = hashlib.sha256("\0".join(map(str, key)).encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "little"))


_inverse: Callable[[float], float] = NormalDist().inv_cdf


def _normal(rng: random.Random) -> float:
    # Not rng.gauss, whose sine and cosine differ in the last digit between platforms.
    return _inverse((rng.getrandbits(40) + 0.5) / 2**40)


def _between(rng: random.Random, low: float, high: float) -> float:
    return low + (high - low) * rng.random()


def _share(value: float) -> float:
    """Between 0 and 1, to three digits."""
    return round(min(max(value, 0.0), 1.0), 3)


def _weighted(rng: random.Random, weights: Mapping[T, int]) -> T:
    return rng.choices(list(weights), list(weights.values()))[0]


def _follow(rng: random.Random, quality: float, loading: float) -> float:
    return loading * quality + (1 - loading**2) ** 0.5 * _normal(rng)


def _cut(value: float, attribute: _Attribute) -> int:
    return 2 if value >= attribute.same else 1 if value >= attribute.near else 0


def _level(rng: random.Random, quality: float, attribute: _Attribute) -> int:
    """0 lost, 1 nearly kept, 2 kept."""
    return _cut(_follow(rng, quality, attribute.loading), attribute)


def _other(
    rng: random.Random, name: str, names: Sequence[str] | Mapping[str, object], pairs: frozenset, level: int
) -> str:
    """The name itself (2), a neighbour (1) or anything else (0)."""
    if level == 2:
        return name
    near = [other for other in names if frozenset((name, other)) in pairs]
    far = [other for other in names if other != name and other not in near]
    return rng.choice(near) if level == 1 and near else rng.choice(far)
