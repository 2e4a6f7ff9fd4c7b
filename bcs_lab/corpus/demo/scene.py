"""What a pair of the demo is made of: two scenes, how a decoder spoils the second, and the true answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scene:
    """One picture before it is drawn: what is in it, where, and what it looks like.

    Attributes:
        concept: name of the main object, a key of the concept table.
        count: number of main objects, 1 to 6.
        layout: arrangement of the objects, a key of ``LAYOUTS``.
        size: height of one object as a share of the picture's height, 0.15 to 0.7.
        colour: colour of the objects, a key of ``COLOURS``.
        texture: surface of the objects, a key of ``TEXTURES``.
        environment: where it takes place, a key of ``ENVIRONMENTS``.
        variant: seed of small differences of position, tilt and background; scenes that differ only here look alike.
        deform: how far the objects' silhouettes are bent, 0 (not) to 1 (collapsed).
    """

    concept: str
    count: int
    layout: str
    size: float
    colour: str
    texture: str
    environment: str
    variant: int
    deform: float = 0.0


@dataclass(frozen=True)
class Decoder:
    """How a decoder's output is worse than a drawing; all strengths from 0 (not at all) to 1 (nothing is left).

    Attributes:
        blur: loss of detail.
        fade: loss of contrast and saturation.
        noise: fine grain.
        artifact: kind of structured fault, a key of ``ARTIFACTS`` or ``none``.
        artifact_strength: how much of the picture it covers and how strongly.
        seed: of noise and artifact.
    """

    blur: float
    fade: float
    noise: float
    artifact: str
    artifact_strength: float
    seed: int


@dataclass(frozen=True)
class PairPlan:
    """One pair before it is drawn.

    Attributes:
        pair_id: as the authors build ids, ``METHOD__sub-XX__concept__rank1__cand0``.
        method: name of the decoder.
        subject: ``sub-01`` … or ``na``.
        concept: name of the reference's main object.
        rank: as in the manifest.
        candidate: as in the manifest.
        reference: what was seen.
        reconstruction: what the decoder made of it.
        decoder: how its output is spoiled.
        truth: the true answer to each of the twelve questions, 0, 0.5 or 1, in protocol order.
    """

    pair_id: str
    method: str
    subject: str
    concept: str
    rank: str
    candidate: str
    reference: Scene
    reconstruction: Scene
    decoder: Decoder
    truth: tuple[float, ...]
