"""Any open_clip model's image tower as an encoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcs_lab.encoders.base import RESIZES, FrozenEncoder, Preprocessing, check_choice, check_size, torch_encoder
from bcs_lab.encoders.hub import fetch_file, local_source, no_config, unavailable
from bcs_lab.errors import EncoderError

if TYPE_CHECKING:
    import torch

    from bcs_lab.encoders import EncoderSpec

WEIGHT_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
POOLINGS = ("default",)


def load(spec: EncoderSpec, *, options: Mapping[str, Any], device: str, dtype: str | None) -> FrozenEncoder:
    """Load an image tower; its embedding is the projected image feature.

    Raises:
        EncoderError: unknown architecture or tag, or weights that cannot be had.
    """
    check_choice(spec.name, "pooling", options.get("pooling", spec.pooling), POOLINGS)
    size = check_size(spec.name, options.get("image_size"))
    revision = options.get("revision", spec.revision)
    source = local_source(spec, options.get("source"))
    model, tag = spec.model, spec.pretrained
    if source is not None and "source" not in options:
        model = ""
    elif tag is None and "/" in model:
        model, _, tag = model.partition("/")

    import open_clip

    config: dict[str, Any] = {}
    if source is not None and source.is_dir() and (source / "open_clip_config.json").is_file():
        name, model, config = f"local-dir:{source}", model or "local", _folder_config(spec, source)
        weights = None
    else:
        if source is not None and not model:
            raise no_config(spec, source, "open_clip_config.json")
        if model not in open_clip.list_models():
            near = get_close_matches(model, open_clip.list_models(), n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise EncoderError(
                f"open_clip {open_clip.__version__} has no architecture {model!r}.{hint} Expected ARCH/PRETRAINED, "
                "such as ViT-B-32/laion2b_s34b_b79k, or a local folder with open_clip_config.json and weights."
            )
        name = model
        config = _tag_config(spec, model, tag, needed=source is None)
        weights = str(_weights_in(spec, source) if source is not None else _from_hub(spec, config, revision))
    try:
        network = open_clip.create_model(
            name,
            pretrained=weights,
            precision="fp32",
            # open_clip only warns when a tag's weights need another activation than the architecture's config has.
            force_quick_gelu=bool(config.get("quick_gelu")),
            force_image_size=size,
            force_preprocess_cfg={k: config[k] for k in _PREPROCESS_KEYS if config.get(k) is not None},
            pretrained_text=False,
            require_pretrained=True,
            weights_only=True,
        )
    except Exception as error:
        raise EncoderError(
            f"Encoder {spec.name!r}: open_clip cannot load {weights or source} as {model} "
            f"({type(error).__name__}: {error})."
        ) from error
    visual = network.visual
    preprocess = preprocessing_of(visual.preprocess_cfg, options.get("resize"))

    def features(inputs: torch.Tensor) -> torch.Tensor:
        output = visual(inputs)
        return output[0] if isinstance(output, tuple) else output

    return torch_encoder(
        name=spec.name,
        module=visual,
        features=features,
        preprocessing=preprocess,
        identity={
            "library": "open_clip",
            "library_version": open_clip.__version__,
            "model": model if tag is None else f"{model}/{tag}",
            "revision": revision,
            "pooling": "default",
            "quick_gelu": bool(config.get("quick_gelu")),
        },
        device=device,
        dtype=dtype,
    )


_PREPROCESS_KEYS = ("mean", "std", "interpolation", "resize_mode")


def preprocessing_of(config: Mapping[str, Any], resize: str | None = None) -> Preprocessing:
    """open_clip's evaluation transform, as data; ``resize`` replaces its resize mode."""
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    mode = {"shortest": "crop"}.get(config["resize_mode"], config["resize_mode"])
    if mode not in RESIZES and resize is None:
        raise EncoderError(
            f"open_clip's resize mode {mode!r} of this model is not supported; set the option resize=squash."
        )
    return Preprocessing(
        size=(height, width),
        resize=resize or mode,
        resized=(height, width),
        interpolation="bilinear" if config["interpolation"] == "bilinear" else "bicubic",
        mean=_three(config["mean"]),
        std=_three(config["std"]),
    )


def _three(values: Any) -> tuple[float, float, float]:
    if isinstance(values, (int, float)):
        return (float(values),) * 3
    red, green, blue = values
    return (red, green, blue)


def _tag_config(spec: EncoderSpec, model: str, tag: str | None, *, needed: bool) -> dict[str, Any]:
    import open_clip

    tags = open_clip.list_pretrained_tags_by_model(model)
    if tag is None and needed:
        raise EncoderError(
            f"Encoder {spec.name!r}: expected ARCH/PRETRAINED; open_clip has {model} with "
            f"{', '.join(tags) or 'no weights'}."
        )
    config = dict(open_clip.get_pretrained_cfg(model, tag)) if tag is not None else {}
    if tag is not None and not config:
        raise EncoderError(
            f"open_clip has no weights {tag!r} for {model}; expected one of {', '.join(tags) or '(none)'}."
        )
    return config


def _from_hub(spec: EncoderSpec, config: Mapping[str, Any], revision: str) -> Path:
    location = str(config.get("hf_hub") or "")
    repo, _, filename = location.rpartition("/")
    if not repo:
        raise unavailable(
            spec, spec.model, WEIGHT_FILES, "open_clip names no hub repository for it; download it yourself"
        )
    return fetch_file(spec, repo, revision, (filename,) if filename else WEIGHT_FILES)


def _folder_config(spec: EncoderSpec, folder: Path) -> dict[str, Any]:
    try:
        config = json.loads((folder / "open_clip_config.json").read_text(encoding="utf-8"))
        model = config["model_cfg"]
    except (ValueError, KeyError, TypeError) as error:
        raise EncoderError(
            f"Encoder {spec.name!r}: {folder / 'open_clip_config.json'} is not an open_clip config ({error!r})."
        ) from None
    return {"quick_gelu": model.get("quick_gelu", False)}


def _weights_in(spec: EncoderSpec, path: Path) -> Path:
    if path.is_file():
        return path
    for pattern in (*WEIGHT_FILES, "*.safetensors", "*.pt", "*.pth", "*.bin"):
        found = sorted(path.glob(pattern))
        if found:
            return found[0]
    raise EncoderError(f"Encoder {spec.name!r}: no weight file (*.safetensors, *.pt, *.pth, *.bin) in {path}.")
