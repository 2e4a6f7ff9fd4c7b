"""Cosine of two images' embeddings, by any encoder of the project, by imported embeddings, or by a group of encoders.

The cosine of a group (``cosine:embedded``, ``cosine:fusion``) is the mean of its networks' cosines: each counts the
same, however long its vectors. ``lowlevel``, which belongs to ``embedded``, is no network and stays out of that mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bcs_lab.audit.metrics.base import Family, Floats, MetricSpec, Preparation, Values, digest
from bcs_lab.encoders import ENCODER_GROUPS, EncoderSpec, FrozenEncoder, encoder_spec, load_encoder
from bcs_lab.errors import EncoderError

PREFIX = "cosine:"
#: Of a group, those that are no network.
NO_NETWORK = ("lowlevel",)


def cosine_spec(name: str) -> MetricSpec:
    """The facts about ``cosine:<encoder>``; embeddings of an encoder that is unknown here may be imported."""
    encoder = name.removeprefix(PREFIX)
    parts = encoders_of(encoder)
    facts: list[EncoderSpec | None] = []
    for part in parts:
        try:
            facts.append(encoder_spec(part))
        except EncoderError:
            facts.append(None)
    weights = [f"{fact.model} ({fact.revision})" for fact in facts if fact is not None and fact.pooling != "none"]
    licences = dict.fromkeys(fact.licence for fact in facts if fact is not None and fact.licence)
    kind = " and ".join(parts)
    return MetricSpec(
        name=name,
        title=f"cosine, {encoder}",
        higher_is_better=True,
        input="RGB, 8 bits, whole image; each encoder's own preprocessing",
        library=" and ".join(dict.fromkeys(fact.library if fact is not None else "imported" for fact in facts)),
        weights=", ".join(weights) or None,
        licence=", ".join(licences) or "that of the encoder",
        kind="network",
        loader="cosine",
        note=f"Mean of the cosines of {kind}." if len(parts) > 1 else "",
    )


def encoders_of(name: str) -> tuple[str, ...]:
    """The encoders behind the name of an encoder or of a group.

    >>> encoders_of("embedded")
    ('efficientnet_lite2', 'efficientnet_lite0')
    """
    if name in ENCODER_GROUPS:
        return tuple(member for member in ENCODER_GROUPS[name] if member not in NO_NETWORK)
    return (name,)


def load(spec: MetricSpec, options: Mapping[str, Any], device: str, compat: str, shared: dict[str, Any]) -> Family:
    """Encoders by name; ``openclip``, ``dinov2``, ``clip_l14`` and ``siglip`` name theirs in their options.

    Raises:
        EncoderError: an encoder is unknown or its weights cannot be had.
    """
    given = dict(options)
    name = str(given.pop("encoder", spec.name.removeprefix(PREFIX)))
    dtype = given.pop("dtype", None)
    given = {key: value for key, value in given.items() if value is not None}
    parts = encoders_of(name)
    encoders = []
    for part in parts:
        own = given.get(part, {}) if len(parts) > 1 else given
        key = f"encoder {part} {digest(own)} {device} {dtype}"
        if key not in shared:
            shared[key] = load_encoder(part, options=own, device=device, dtype=dtype)
        encoders.append(shared[key])
    return CosineFamily(encoders)


class CosineFamily(Family):
    """The mean of several encoders' cosines.

    Args:
        encoders: one or more.
    """

    def __init__(self, encoders: Sequence[FrozenEncoder]) -> None:
        prints = [dict(encoder.fingerprint) for encoder in encoders]
        preparation = Preparation(
            "encoders " + digest(prints), lambda image: tuple(encoder.prepare(image) for encoder in encoders)
        )
        super().__init__({"library": "bcs_lab.cosine", "encoders": prints}, preparation)
        self.encoders = tuple(encoders)
        self.embeds = tuple(prints)

    def features(self, inputs: Sequence[Any]) -> list[Any]:
        """Unit vectors, one an encoder, of each image."""
        parts = [
            encoder.compute(np.stack([one[place] for one in inputs])) for place, encoder in enumerate(self.encoders)
        ]
        return [tuple(part[row].copy() for part in parts) for row in range(len(inputs))]

    def compare(
        self, names: Sequence[str], references: Sequence[Any], reconstructions: Sequence[Any]
    ) -> dict[str, Values]:
        """Means of the cosines."""
        parts = [
            cosines([one[place] for one in references], [two[place] for two in reconstructions])
            for place in range(len(self.encoders))
        ]
        mean = np.mean(parts, axis=0)
        reasons = dict.fromkeys(np.flatnonzero(np.isnan(mean)).tolist(), "an embedding is zero")
        return {name: Values(mean, reasons) for name in names}


def cosines(first: Any, second: Any) -> Floats:
    """Cosine of each pair of vectors, float64 [n]; exactly 1 where both are the same, NaN where one is zero."""
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    above = np.einsum("nd,nd->n", one, two)
    lengths = np.einsum("nd,nd->n", one, one) * np.einsum("nd,nd->n", two, two)
    with np.errstate(invalid="ignore"):
        return np.clip(above / np.sqrt(lengths), -1.0, 1.0)
