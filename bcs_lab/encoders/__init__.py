"""Frozen encoders by name. Importing this package loads no deep-learning library; loading an encoder does."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any

from bcs_lab.encoders.base import FrozenEncoder
from bcs_lab.errors import EncoderError

#: The paper's fusion, in its order (Section 5.2).
FUSION = ("siglip", "clip", "dinov3")
#: Encoders whose weights come with the package's dependencies.
EMBEDDED = ("efficientnet_lite2", "efficientnet_lite0", "lowlevel")
#: Groups of encoders with a name of their own, as in conf/encoder.
ENCODER_GROUPS: Mapping[str, tuple[str, ...]] = {"fusion": FUSION, "embedded": EMBEDDED}
#: Libraries that load any of their models by `LIBRARY:MODEL[@revision]`.
LIBRARIES = ("timm", "open_clip", "transformers")

_LOADERS = {
    "transformers": "bcs_lab.encoders.transformers_encoder",
    "open_clip": "bcs_lab.encoders.open_clip_encoder",
    "timm": "bcs_lab.encoders.timm_encoder",
    "efficientnet_lite": "bcs_lab.encoders.efficientnet_lite",
    "lowlevel": "bcs_lab.encoders.lowlevel",
}
_GENERIC_OPTIONS = {
    "timm": ("pooling", "revision", "dtype", "resize", "image_size", "source"),
    "open_clip": ("pooling", "revision", "dtype", "resize", "image_size", "source"),
    "transformers": ("pooling", "revision", "dtype", "resize", "source"),
}


def group_label(names: Sequence[str]) -> str:
    """What a table calls these encoders: the name of their group, else their names.

    Example:
        >>> group_label(["siglip", "clip", "dinov3"]), group_label(["siglip", "lowlevel"])
        ('fusion', 'siglip+lowlevel')
    """
    return next((group for group, members in ENCODER_GROUPS.items() if members == tuple(names)), "+".join(names))


@dataclass(frozen=True)
class EncoderSpec:
    """What a name stands for.

    Attributes:
        name: the encoder's name.
        library: which loader makes it.
        model: the library's name of the model, a hub id, or a local path.
        options: names of the accepted options.
        pretrained: open_clip's tag of the weights.
        revision: branch, tag or commit on the hub.
        pooling: how tokens become one vector.
        dim: expected length, ``None`` if not known beforehand.
        licence: of the weights.
        note: where they come from, and what is done with an image.
    """

    name: str
    library: str
    model: str
    options: tuple[str, ...]
    pretrained: str | None = None
    revision: str = "main"
    pooling: str = "default"
    dim: int | None = None
    licence: str = ""
    note: str = ""


def list_encoders() -> list[str]:
    """Names that :func:`load_encoder` accepts besides ``timm:…``, ``open_clip:…`` and ``transformers:…``."""
    return list(_registry())


def encoder_spec(name: str) -> EncoderSpec:
    """What a name stands for.

    Raises:
        EncoderError: unknown; suggests near names and lists them all.
    """
    known = _registry()
    if name in known:
        return known[name]
    library, colon, model = name.partition(":")
    if colon and library in LIBRARIES and model:
        model, revision = _split_revision(model)
        return EncoderSpec(name, library, model, options=_GENERIC_OPTIONS[library], revision=revision)
    raise EncoderError(unknown_encoder(name))


def unknown_encoder(name: str, others: Sequence[str] = ()) -> str:
    """The message for a name nobody knows; ``others`` are names known only here and now, such as imported ones."""
    names = list(dict.fromkeys([*list_encoders(), *others]))
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return (
        f"Unknown encoder {name!r}.{hint} Known: {', '.join(names)}; any other model by "
        "encoder=timm|open_clip|transformers encoder.name=MODEL, with @revision if wanted."
    )


def load_encoder(
    name: str, *, options: Mapping[str, Any] | None = None, device: str = "auto", dtype: str | None = None
) -> FrozenEncoder:
    """Load an encoder, ready to embed.

    Args:
        name: a name of :func:`list_encoders`, ``timm:MODEL[@rev]``, ``open_clip:ARCH[/PRETRAINED][@rev]`` or
            ``transformers:MODEL[@rev]``; MODEL may be a local folder.
        options: ``pooling``, ``revision``, ``dtype``, ``resize`` (squash or crop), ``image_size``, ``source`` (a local
            folder or weight file in place of the hub), as far as the encoder has them. ``None`` values are ignored.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        dtype: of weights and computation; by default bfloat16 on CUDA and float32 elsewhere. Embeddings are float32.

    Raises:
        EncoderError: unknown name or option, a package that is missing, or weights that cannot be had; in the last case
            within seconds, also without a network.
    """
    spec = encoder_spec(name)
    given = {key: value for key, value in (options or {}).items() if value is not None}
    unknown = sorted(set(given) - set(spec.options))
    if unknown:
        raise EncoderError(
            f"Encoder {name!r} has no option {', '.join(map(repr, unknown))}; "
            + (f"it has {', '.join(spec.options)}." if spec.options else "it has none.")
        )
    if "revision" in given:
        given["revision"] = str(given["revision"])
    dtype = given.pop("dtype", None) or dtype
    encoder: FrozenEncoder = import_module(_LOADERS[spec.library]).load(spec, options=given, device=device, dtype=dtype)
    if spec.dim is not None and encoder.dim != spec.dim:
        raise EncoderError(
            f"Encoder {name!r} gives {spec.dim} values an image, but its source gives {encoder.dim}: another model is "
            f"there. Use it under its own name: encoder={spec.library} encoder.name=/folder."
        )
    return encoder


def _split_revision(model: str) -> tuple[str, str]:
    head, at, revision = model.rpartition("@")
    if at and head and revision and not Path(model).expanduser().exists():
        return head, revision
    return model, "main"


@lru_cache(maxsize=1)
def _registry() -> dict[str, EncoderSpec]:
    import yaml

    text = resources.files("bcs_lab.encoders").joinpath("registry.yaml").read_text(encoding="utf-8")
    return {
        name: EncoderSpec(name=name, **{**entry, "options": tuple(entry["options"])})
        for name, entry in yaml.safe_load(text).items()
    }
