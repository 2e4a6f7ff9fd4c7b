"""Any transformers model with an image tower as an encoder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bcs_lab.encoders.base import (
    MOST_STAGES,
    FrozenEncoder,
    Preprocessing,
    Stages,
    Staging,
    check_choice,
    evenly,
    torch_encoder,
)
from bcs_lab.encoders.hub import fetch_folder, local_source, no_config
from bcs_lab.errors import EncoderError

if TYPE_CHECKING:
    import torch

    from bcs_lab.encoders import EncoderSpec

POOLINGS = ("default", "cls", "avg")
_CONFIGS = ("config.json", "preprocessor_config.json", "processor_config.json")
_FILES = ((*_CONFIGS, "model*.safetensors.index.json", "model*.safetensors"), (*_CONFIGS, "pytorch_model*.bin"))
_INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def load(spec: EncoderSpec, *, options: Mapping[str, Any], device: str, dtype: str | None) -> FrozenEncoder:
    """Load a model and its image processor's settings.

    ``pooling=default`` is ``get_image_features`` of models with two towers, else the pooled output, else the first
    token; ``cls`` is the first token and ``avg`` the mean of all tokens of the last layer.

    Raises:
        EncoderError: unknown pooling, weights that cannot be had, or a model without an image tower.
    """
    pooling = options.get("pooling", spec.pooling)
    check_choice(spec.name, "pooling", pooling, POOLINGS)
    revision = options.get("revision", spec.revision)
    folder = local_source(spec, options.get("source"))
    model = spec.model if folder is None or "source" in options else ""
    if folder is None:
        # Before the import of transformers, so that a missing hub is reported at once.
        folder = fetch_folder(spec, spec.model, revision, "config.json", _FILES)
    if not (folder / "config.json").is_file():
        raise no_config(spec, folder, "config.json")

    import transformers

    try:
        processor = transformers.AutoImageProcessor.from_pretrained(str(folder), local_files_only=True)
        network = transformers.AutoModel.from_pretrained(str(folder), local_files_only=True, dtype="float32")
    except Exception as error:
        raise EncoderError(
            f"Encoder {spec.name!r}: transformers {transformers.__version__} cannot load the folder {folder} "
            f"({type(error).__name__}: {' '.join(str(error).split())[:300]})."
        ) from error
    # The text tower takes no part in the features.
    if getattr(network, "text_model", None) is not None:
        network.text_model = None
    preprocessing = preprocessing_of(spec.name, processor, options.get("resize"))
    return torch_encoder(
        name=spec.name,
        module=network,
        features=_pooled(network, pooling),
        preprocessing=preprocessing,
        identity={
            "library": "transformers",
            "library_version": transformers.__version__,
            "model": model or type(network).__name__,
            "revision": revision,
            "pooling": pooling,
        },
        device=device,
        dtype=dtype,
        staging=lambda: _staging(spec.name, network, pooling, preprocessing.size),
    )


def preprocessing_of(name: str, processor: Any, resize: str | None = None) -> Preprocessing:
    """The settings of an image processor, as data.

    Raises:
        EncoderError: the processor does something that :class:`Preprocessing` cannot express.
    """
    size, crop = _sizes(processor.size), _sizes(getattr(processor, "crop_size", None))
    if not (processor.do_resize and processor.do_normalize and processor.do_rescale):
        raise EncoderError(f"Encoder {name!r}: its image processor does not resize, rescale and normalise.")
    cropped = bool(getattr(processor, "do_center_crop", False)) and crop is not None and "height" in crop
    if size is not None and "height" in size:
        mode, resized = "squash", (size["height"], size["width"])
    elif size is not None and set(size) == {"shortest_edge"} and cropped:
        mode, resized = "crop", (size["shortest_edge"],) * 2
    else:
        raise EncoderError(
            f"Encoder {name!r}: its image processor's size {processor.size} is not supported; expected height and "
            "width, or shortest_edge with a centre crop."
        )
    final = (crop["height"], crop["width"]) if cropped and crop is not None else resized
    return Preprocessing(
        size=final,
        resize=mode,
        resized=resized,
        interpolation=_INTERPOLATIONS[int(processor.resample)],
        mean=_three(processor.image_mean),
        std=_three(processor.image_std),
        scale=round(1 / processor.rescale_factor, 6),
        cut="floor",
    ).with_resize(resize)


def _sizes(size: Any) -> dict[str, int] | None:
    if size is None:
        return None
    items = size.items() if isinstance(size, Mapping) else vars(size).items()
    return {key: int(value) for key, value in items if value is not None}


def _three(values: Any) -> tuple[float, float, float]:
    red, green, blue = values
    return (float(red), float(green), float(blue))


def _pooled(network: Any, pooling: str) -> Any:
    tower = getattr(network, "vision_model", network)

    def default(inputs: torch.Tensor) -> torch.Tensor:
        if hasattr(network, "get_image_features"):
            return _vector(network.get_image_features(pixel_values=inputs))
        return _vector(network(pixel_values=inputs))

    def tokens(inputs: torch.Tensor) -> torch.Tensor:
        return tower(pixel_values=inputs).last_hidden_state

    if pooling == "cls":
        return lambda inputs: tokens(inputs)[:, 0]
    if pooling == "avg":
        return lambda inputs: tokens(inputs).mean(dim=1)
    return default


def _staging(name: str, network: Any, pooling: str, size: tuple[int, int]) -> Staging:
    """Hidden states as stages, tokens without the first ones (class, registers) laid out as a grid.

    Raises:
        EncoderError: the model shows no hidden states, or tokens that are no grid.
    """
    import torch

    tower = getattr(network, "vision_model", network)

    def outputs(inputs: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The features, and what holds the hidden states."""
        if pooling != "default":
            found = tower(pixel_values=inputs, output_hidden_states=True)
            tokens = found.last_hidden_state
            return (tokens[:, 0] if pooling == "cls" else tokens.mean(dim=1)), found
        if not hasattr(network, "get_image_features"):
            found = network(pixel_values=inputs, output_hidden_states=True)
            return _vector(found), found
        found = network.get_image_features(pixel_values=inputs, output_hidden_states=True)
        if getattr(found, "hidden_states", None) is None:  # transformers 4 gives the features only
            return _vector(found), tower(pixel_values=inputs, output_hidden_states=True)
        return _vector(found), found

    parameter = next(network.parameters())
    with torch.inference_mode():
        try:
            _, probe = outputs(torch.zeros(1, 3, *size, dtype=parameter.dtype, device=parameter.device))
            first, states = _hidden_states(probe)
        except (TypeError, AttributeError, KeyError) as error:
            raise EncoderError(f"Encoder {name!r} shows no stages: {type(network).__name__} ({error}).") from error
    positions = evenly(len(states), MOST_STAGES)
    patch = getattr(getattr(tower, "config", None), "patch_size", None)
    shape = _grid_shape(name, states[-1], patch, size)

    def run(inputs: torch.Tensor) -> Stages:
        features, found = outputs(inputs)
        _, states = _hidden_states(found)
        return Stages(features, tuple(_grid(states[position], shape) for position in positions))

    return Staging(tuple(f"layer{first + position}" for position in positions), run)


def _hidden_states(output: Any) -> tuple[int, Sequence[torch.Tensor]]:
    """The states, and the number of the first one; embeddings of patches that have not met yet are left out."""
    states = getattr(output, "reshaped_hidden_states", None) or output.hidden_states
    return (0, states) if states[0].ndim == 4 else (1, states[1:])


def _grid_shape(name: str, state: torch.Tensor, patch: Any, size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of tokens."""
    if state.ndim == 4:
        return int(state.shape[2]), int(state.shape[3])
    tokens = int(state.shape[1])
    if patch is None:
        shape = (math.isqrt(tokens),) * 2
    else:
        down, right = (patch, patch) if isinstance(patch, int) else patch
        shape = (size[0] // down, size[1] // right)
    if not 0 < shape[0] * shape[1] <= tokens:
        raise EncoderError(f"Encoder {name!r} shows no stages: its {tokens} tokens are no grid of {shape}.")
    return shape


def _grid(state: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    if state.ndim == 4:
        return state
    patches = state[:, state.shape[1] - shape[0] * shape[1] :]
    return patches.transpose(1, 2).unflatten(2, shape)


def _vector(output: Any) -> torch.Tensor:
    """A pooled tensor out of what the library version returns: a tensor (transformers 4) or an output object (5)."""
    if hasattr(output, "shape"):
        return output
    for key in ("image_embeds", "pooler_output"):
        value = getattr(output, key, None)
        if value is not None:
            return value.flatten(1)
    return output.last_hidden_state[:, 0]
