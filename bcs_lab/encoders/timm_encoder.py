"""Any timm model as an encoder."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcs_lab.encoders.base import (
    MOST_STAGES,
    RESIZES,
    FrozenEncoder,
    Preprocessing,
    Stages,
    Staging,
    check_choice,
    check_size,
    evenly,
    torch_encoder,
)
from bcs_lab.encoders.hub import fetch_file, local_source, no_config, unavailable
from bcs_lab.errors import EncoderError

if TYPE_CHECKING:
    import torch

    from bcs_lab.encoders import EncoderSpec

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
POOLINGS = ("default", "cls", "avg")


def load(spec: EncoderSpec, *, options: Mapping[str, Any], device: str, dtype: str | None) -> FrozenEncoder:
    """Load a timm model without its classifier.

    ``pooling=default`` is the model's own (``forward_head``), ``cls`` the class token, ``avg`` the mean of the patch
    tokens (class and register tokens excluded).

    Raises:
        EncoderError: unknown model or pooling, or weights that cannot be had.
    """
    pooling = options.get("pooling", spec.pooling)
    check_choice(spec.name, "pooling", pooling, POOLINGS)
    size = check_size(spec.name, options.get("image_size"))
    revision = options.get("revision", spec.revision)
    source = local_source(spec, options.get("source"))

    import timm

    if source is not None and source.is_dir() and (source / "config.json").is_file():
        model, overlay = _from_folder(spec, source)
    else:
        model = spec.model
        if not timm.is_model(model.partition(".")[0]):
            if source is not None and "source" not in options:
                raise no_config(spec, source, "config.json")
            near = get_close_matches(model, timm.list_pretrained(), n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise EncoderError(
                f"timm {timm.__version__} has no model {model!r}.{hint} "
                "Expected a name of timm.list_pretrained(), or a local folder with config.json and weights."
            )
        file = source if source is not None else _from_hub(spec, model, revision)
        overlay = {"file": str(_weights_in(spec, file))}
    extra: dict[str, Any] = {} if size is None else {"img_size": size}
    try:
        network: Any = timm.create_model(model, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay, **extra)
    except Exception as error:
        raise EncoderError(
            f"Encoder {spec.name!r}: timm cannot load {overlay['file']} as {model} ({type(error).__name__}: {error})."
        ) from error
    pool = _pooled(spec.name, network, pooling)
    return torch_encoder(
        name=spec.name,
        module=network,
        features=lambda inputs: pool(network.forward_features(inputs)),
        preprocessing=preprocessing_of(network, size, options.get("resize")),
        identity={
            "library": "timm",
            "library_version": timm.__version__,
            "model": model,
            "revision": revision,
            "pooling": pooling,
        },
        device=device,
        dtype=dtype,
        staging=(lambda: _staging(network, pool)) if hasattr(network, "forward_intermediates") else None,
    )


def preprocessing_of(network: Any, size: int | None = None, resize: str | None = None) -> Preprocessing:
    """timm's evaluation transform of a model, as data; ``size`` and ``resize`` replace its own."""
    from timm.data import resolve_model_data_config

    config = resolve_model_data_config(network)
    height, width = (size, size) if size is not None else config["input_size"][1:]
    crop = config["crop_pct"]
    mode = {"center": "crop"}.get(config["crop_mode"], config["crop_mode"])
    if mode not in RESIZES and resize is None:
        raise EncoderError(f"timm's crop mode {mode!r} of this model is not supported; set the option resize=squash.")
    return Preprocessing(
        size=(height, width),
        resize=mode if resize is None else "crop",
        resized=(math.floor(height / crop), math.floor(width / crop)),
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    ).with_resize(resize)


def _staging(network: Any, pool: Callable[[torch.Tensor], torch.Tensor]) -> Staging:
    """The stages that timm lists of a model: of a transformer, some of its blocks, their tokens laid out as a grid."""
    listed = network.feature_info
    positions = evenly(len(listed), MOST_STAGES)

    def run(inputs: torch.Tensor) -> Stages:
        last, grids = network.forward_intermediates(inputs, indices=positions)
        return Stages(pool(last), tuple(grids))

    return Staging(tuple(str(listed[position]["module"]) for position in positions), run)


def _pooled(name: str, network: Any, pooling: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """What becomes of the output of ``forward_features``."""
    tokens = isinstance(getattr(network, "global_pool", None), str) and hasattr(network, "num_prefix_tokens")
    if pooling == "cls":
        if not tokens or network.num_prefix_tokens < 1:
            raise EncoderError(f"Encoder {name!r} has no class token; choose pooling default or avg.")
        network.global_pool = "token"
    elif pooling == "avg" and tokens:
        network.global_pool = "avg"
    elif pooling == "avg":
        # Convolutional networks: the mean over positions is what their own head does, or should do here.
        return lambda features: _mean_over_positions(name, features)
    return lambda features: network.forward_head(features, pre_logits=True)


def _mean_over_positions(name: str, features: torch.Tensor) -> torch.Tensor:
    if features.ndim != 4:
        raise EncoderError(f"Encoder {name!r} has no positions to average; choose pooling default.")
    return features.mean(dim=(2, 3))


def _from_hub(spec: EncoderSpec, model: str, revision: str) -> Path:
    import timm

    tags = timm.list_pretrained(model.partition(".")[0] + ".*")
    try:
        config = timm.get_pretrained_cfg(model)
    except RuntimeError:
        config = None
    if config is None:
        raise EncoderError(f"timm has no weights {model!r}; expected one of {', '.join(tags) or '(none)'}.")
    repo = config.hf_hub_id
    if not repo:
        raise unavailable(spec, model, WEIGHT_FILES, "timm names no repository for these weights")
    return fetch_file(spec, repo, revision, WEIGHT_FILES)


def _from_folder(spec: EncoderSpec, folder: Path) -> tuple[str, dict[str, Any]]:
    """The architecture and the pretrained config of a folder as timm saves it."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model = config["architecture"]
    except (ValueError, KeyError, TypeError) as error:
        raise EncoderError(
            f"Encoder {spec.name!r}: {folder / 'config.json'} is not a timm model config (no architecture: {error}); "
            "for a folder saved by transformers use encoder=transformers."
        ) from None
    overlay = dict(config.get("pretrained_cfg") or {})
    for key in ("num_classes", "tag", "source", "url", "hf_hub_id"):
        overlay.pop(key, None)
    return model, {**overlay, "file": str(_weights_in(spec, folder))}


def _weights_in(spec: EncoderSpec, path: Path) -> Path:
    if path.is_file():
        return path
    for pattern in (*WEIGHT_FILES, "*.safetensors", "*.pth", "*.bin"):
        found = sorted(path.glob(pattern))
        if found:
            return found[0]
    raise EncoderError(f"Encoder {spec.name!r}: no weight file (*.safetensors, *.pth, *.bin) in {path}.")
