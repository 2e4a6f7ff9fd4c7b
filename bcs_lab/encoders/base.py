"""What every frozen encoder shares: the preprocessing that travels with its weights, and the way images become rows."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from bcs_lab.errors import EncoderError

if TYPE_CHECKING:
    import torch

INTERPOLATIONS: Mapping[str, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
#: Those that torch can compute too, with the arguments that make it agree with Pillow.
_TORCH_INTERPOLATIONS: Mapping[str, dict[str, Any]] = {
    "bilinear": {"mode": "bilinear", "antialias": True},
    "bicubic": {"mode": "bicubic", "antialias": True},
}
RESIZES = ("squash", "crop")
DTYPES = ("float32", "bfloat16", "float16")
#: Stages shown by a network of any library; of one that has more, as many, evenly spaced.
MOST_STAGES = 6
#: Bytes, just below the size from which on glibc no longer learns from a block.
_LARGE_BLOCK = 31 * 2**20


@dataclass(frozen=True)
class Preprocessing:
    """How a PIL image becomes the input of a network. Exactly this is part of the encoder's fingerprint.

    Attributes:
        size: height and width of the network's input.
        resize: ``squash`` (to ``resized``, whatever the proportions) or ``crop`` (shortest edge to ``resized[0]``,
            proportions kept). Both then cut ``size`` from the centre, which is the whole image after a plain squash.
        resized: height and width of the image before the cut; larger than ``size`` where a library trims a border.
        interpolation: a key of :data:`INTERPOLATIONS`; always antialiased, by Pillow.
        mean: per channel, in units of a pixel value divided by ``scale``.
        std: per channel, same units.
        scale: what 8-bit values are divided by.
        cut: how half a pixel of an odd margin is rounded, ``round`` (torchvision: to even) or ``floor`` (transformers).
    """

    size: tuple[int, int]
    resize: str
    resized: tuple[int, int]
    interpolation: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    scale: float = 255.0
    cut: str = "round"

    def __post_init__(self) -> None:
        if self.resize not in RESIZES:
            raise EncoderError(f"Unknown resize mode {self.resize!r}; choose one of {', '.join(RESIZES)}.")
        if self.interpolation not in INTERPOLATIONS:
            raise EncoderError(
                f"Unknown interpolation {self.interpolation!r}; choose one of {', '.join(INTERPOLATIONS)}."
            )
        if self.resize == "crop" and self.resized[0] != self.resized[1]:
            raise EncoderError(
                f"A crop to the non-square size {self.resized} is not supported; set the option resize=squash."
            )
        if self.size[0] > self.resized[0] or self.size[1] > self.resized[1]:
            raise EncoderError(f"The input size {self.size} exceeds the resized image {self.resized}.")

    def with_resize(self, resize: str | None) -> Preprocessing:
        """The same with another ``resize``, which then goes straight to the input size."""
        return self if resize is None else replace(self, resize=resize, resized=self.size)

    def apply(self, image: Image.Image) -> np.ndarray:
        """Resize, cut and normalise one RGB image.

        Returns:
            float32 ``[3, height, width]``.
        """
        height, width = self._target(image.height, image.width)
        image = _rgb(image).resize((width, height), INTERPOLATIONS[self.interpolation])
        top, left = self._margin(height, self.size[0]), self._margin(width, self.size[1])
        if image.size != (self.size[1], self.size[0]):
            image = image.crop((left, top, left + self.size[1], top + self.size[0]))
        # One channel at a time and in place: rows of three values would cost four times as much.
        pixels = np.asarray(image, dtype=np.uint8).transpose(2, 0, 1).astype(np.float32, order="C")
        for channel, mean, std in zip(pixels, self.mean, self.std, strict=True):
            channel /= np.float32(self.scale)
            channel -= np.float32(mean)
            channel /= np.float32(std)
        return pixels

    def apply_tensor(self, images: torch.Tensor) -> torch.Tensor:
        """The same as :meth:`apply` in torch, differentiable, for a batch.

        Pillow keeps 8 bits between its two passes and at the end, torch rounds nothing: on photographs the inputs of a
        network differ by about half an 8-bit level.

        Args:
            images: float ``[n, 3, height, width]`` in [0, 1].

        Returns:
            ``[n, 3, *size]``, normalised, in the dtype given.

        Raises:
            EncoderError: torch has no such interpolation.
        """
        from torch.nn.functional import interpolate

        if self.interpolation not in _TORCH_INTERPOLATIONS:
            raise EncoderError(
                f"Interpolation {self.interpolation!r} cannot be differentiated; torch has "
                f"{', '.join(_TORCH_INTERPOLATIONS)}."
            )
        height, width = images.shape[-2:]
        target = self._target(height, width)
        if target != (height, width):
            images = interpolate(images, target, **_TORCH_INTERPOLATIONS[self.interpolation])
        top, left = (self._margin(length, kept) for length, kept in zip(target, self.size, strict=True))
        images = images[..., top : top + self.size[0], left : left + self.size[1]]
        # A bicubic kernel overshoots at edges; 8-bit pixels cannot.
        images = images.clamp(0, 1)
        mean, std = (images.new_tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        return (images * (255 / self.scale) - mean) / std

    def _target(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the image before the cut."""
        if self.resize == "squash":
            return self.resized
        edge, short = self.resized[0], min(width, height)
        return int(edge * height / short), int(edge * width / short)

    def _margin(self, length: int, kept: int) -> int:
        margin = (length - kept) / 2
        return round(margin) if self.cut == "round" else math.floor(margin)


@dataclass(frozen=True)
class Stages:
    """What a network computed on its way to its features.

    Attributes:
        features: ``[n, dim]``, what ``FrozenEncoder.forward`` gives, up to rounding.
        grids: per stage ``[n, channels, height, width]``, from the input to the output.
    """

    features: torch.Tensor
    grids: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Staging:
    """A network that shows its stages.

    Attributes:
        names: of the stages, distinct.
        run: the network's input to its stages, on the encoder's device and in its dtype.
        classifier: weight float32 ``[classes, dim]`` and bias float32 ``[classes]`` on the CPU, by which the original
            network scored classes from its features; ``None`` where there is none.
    """

    names: tuple[str, ...]
    run: Callable[[torch.Tensor], Stages]
    classifier: tuple[torch.Tensor, torch.Tensor] | None = None


@dataclass(frozen=True)
class FrozenEncoder:
    """A named function from images to unit vectors, in two steps so that the first can run in threads.

    Attributes:
        name: as asked for.
        dim: length of a vector.
        fingerprint: everything that changes the numbers, JSON-able; two encoders with equal fingerprints are
            interchangeable. Holds no paths.
        prepare: one RGB image to the float32 input of one image.
        forward: stacked inputs to float ``[n, dim]``, not normalised.
        device: where ``forward`` computes, such as ``cpu`` or ``cuda:0``.
        preprocessing: what ``prepare`` does, where :meth:`Preprocessing.apply_tensor` can do it too.
        differentiable: the network as a function of a tensor that came out of ``preprocessing``, to features
            ``[n, dim]`` that are not normalised, with gradients down to its input; ``None`` where there is none. It
            computes on ``device``; its weights take no gradient.
        staging: makes access to the network's stages; ``None`` where it shows none.
    """

    name: str
    dim: int
    fingerprint: dict[str, Any]
    prepare: Callable[[Image.Image], np.ndarray]
    forward: Callable[[np.ndarray], np.ndarray]
    device: str = "cpu"
    preprocessing: Preprocessing | None = None
    differentiable: Callable[[torch.Tensor], torch.Tensor] | None = None
    staging: Callable[[], Staging] | None = None

    def embed(self, images: Sequence[Image.Image], names: Sequence[str] | None = None) -> np.ndarray:
        """Embed images.

        Args:
            images: RGB images of any size.
            names: what to call each image in an error message; its position by default.

        Returns:
            float32 ``[n, dim]`` with L2-normalised rows. On the CPU a row does not depend on the other images of the
            call nor on the number of cores, to the last bit; on CUDA it may differ by rounding (cosine above 0.999 in
            bfloat16).

        Raises:
            EncoderError: an output is not finite.
        """
        if not images:
            return np.zeros((0, self.dim), dtype=np.float32)
        return self.compute(np.stack([self.prepare(image) for image in images]), names)

    def embed_tensor(self, images: torch.Tensor) -> torch.Tensor:
        """Embed a batch with gradients down to its pixels; nothing is rounded to 8 bits on the way.

        Args:
            images: float ``[n, 3, height, width]`` in [0, 1], on any device.

        Returns:
            ``[n, dim]`` with L2-normalised rows, in the dtype of ``images`` (float32 for half precision), on the
            encoder's device.

        Raises:
            EncoderError: this encoder cannot be differentiated.
        """
        import torch

        if self.preprocessing is None or self.differentiable is None:
            raise EncoderError(f"Encoder {self.name!r} cannot be differentiated: it has no version in torch.")
        kind = torch.float64 if images.dtype == torch.float64 else torch.float32
        inputs = self.preprocessing.apply_tensor(images.to(device=self.device, dtype=kind))
        return torch.nn.functional.normalize(self.differentiable(inputs).to(kind), dim=1)

    def compute(self, inputs: np.ndarray, names: Sequence[str] | None = None) -> np.ndarray:
        """The second half of :meth:`embed`, for inputs made by ``prepare``."""
        vectors = np.asarray(self.forward(inputs), dtype=np.float32)
        if vectors.shape != (len(inputs), self.dim):
            raise EncoderError(
                f"Encoder {self.name!r}: expected {self.dim} values for each of {len(inputs)} images but got an array "
                f"of shape {vectors.shape}."
            )
        finite = np.isfinite(vectors).all(axis=1)
        if not finite.all():
            bad = [names[i] if names else f"image {i} of the batch" for i in np.flatnonzero(~finite).tolist()]
            raise EncoderError(
                f"Encoder {self.name!r} gave values that are not finite for {', '.join(bad[:5])}"
                f"{f' and {len(bad) - 5} more' if len(bad) > 5 else ''}; its weights may be damaged, or "
                f"{self.fingerprint.get('dtype')} too narrow for it (encoder.dtype=float32)."
            )
        return normalise(vectors)


def _rgb(image: Image.Image) -> Image.Image:
    return image if image.mode == "RGB" else image.convert("RGB")


def normalise(vectors: np.ndarray, eps: float = 1e-12) -> np.ndarray:
    """Divide each row of float32 ``[n, d]`` by its L2 norm, or by ``eps`` where that is larger."""
    vectors = np.asarray(vectors, dtype=np.float32)
    norms = np.sqrt(np.square(vectors, dtype=np.float64).sum(axis=1, keepdims=True))
    return (vectors / np.maximum(norms, eps)).astype(np.float32)


def loader_fingerprint() -> dict[str, Any]:
    """The image loader's part of a fingerprint: rules that change pixels change every encoder."""
    from bcs_lab.corpus.images import BACKGROUND, LOADER_VERSION

    return {"version": LOADER_VERSION, "background": list(BACKGROUND)}


def weights_digest(state: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, in name order."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return f"sha256:{digest.hexdigest()}"


def pick_device(device: str) -> torch.device:
    """``auto`` is CUDA where there is one, else the CPU.

    Raises:
        EncoderError: the device is unknown or not on this machine.
    """
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise EncoderError(
            f"encoder.device={device!r} cannot be used here ({str(error).splitlines()[0]}); choose auto, cpu, cuda, "
            "cuda:N or mps."
        ) from None
    return chosen


def image_workers() -> ThreadPoolExecutor:
    """Threads for work on the CPU: one image a thread and one thread an image.

    The numbers then depend neither on the batch nor on how many cores there are, and busy cores do no harm (several
    threads within one small layer mostly wait for each other).
    """
    import torch

    # The C library keeps freed memory up to twice the largest block it has seen freed; with a small one, every layer
    # asks the system for its memory anew, which takes a quarter of a small network's time.
    torch.empty(_LARGE_BLOCK, dtype=torch.uint8)
    return ThreadPoolExecutor(torch.get_num_threads(), "embed", lambda: torch.set_num_threads(1))


def torch_encoder(
    *,
    name: str,
    module: torch.nn.Module,
    features: Callable[[torch.Tensor], torch.Tensor],
    preprocessing: Preprocessing,
    identity: Mapping[str, Any],
    device: str,
    dtype: str | None,
    cuda_dtype: str = "bfloat16",
    staging: Callable[[], Staging] | None = None,
) -> FrozenEncoder:
    """Make an encoder of a loaded network.

    Args:
        name: as asked for.
        module: the network with float32 weights, still on the CPU; holds only what takes part in the computation.
        features: the network's input ``[n, 3, height, width]`` to pooled features ``[n, dim]``.
        preprocessing: how images become inputs.
        identity: library, library_version, model, revision and pooling, for the fingerprint.
        device: see :func:`pick_device`.
        dtype: of weights and computation; ``None`` is ``cuda_dtype`` on CUDA and float32 elsewhere.
        cuda_dtype: see ``dtype``.
        staging: see :class:`FrozenEncoder`; called once the module is where it computes.

    Raises:
        EncoderError: unknown dtype or device.
    """
    import torch

    place = pick_device(device)
    if place.type == "cuda" and place.index is None:
        place = torch.device("cuda", torch.cuda.current_device())
    dtype = dtype or (cuda_dtype if place.type == "cuda" else "float32")
    if dtype not in DTYPES:
        raise EncoderError(f"Encoder {name!r}: unknown dtype {dtype!r}; choose one of {', '.join(DTYPES)}.")
    kind = getattr(torch, dtype)
    digest = weights_digest(module.state_dict())
    module.eval().requires_grad_(False).to(device=place, dtype=kind)

    def run(inputs: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return features(inputs.to(device=place, dtype=kind)).float().cpu()

    if place.type == "cpu":
        workers = image_workers()

    def forward(inputs: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(inputs)
        if place.type != "cpu":
            return run(tensor).numpy()
        return torch.cat(list(workers.map(run, tensor.split(1)))).numpy()

    def differentiable(inputs: torch.Tensor) -> torch.Tensor:
        return features(inputs.to(device=place, dtype=kind))

    dim = int(forward(np.zeros((1, 3, *preprocessing.size), dtype=np.float32)).shape[1])
    fingerprint = {
        **identity,
        "weights": digest,
        "preprocessing": _plain(asdict(preprocessing)),
        "dtype": dtype,
        "loader": loader_fingerprint(),
        "dim": dim,
    }
    return FrozenEncoder(
        name=name,
        dim=dim,
        fingerprint=fingerprint,
        prepare=preprocessing.apply,
        forward=forward,
        device=str(place),
        preprocessing=preprocessing,
        differentiable=differentiable,
        staging=staging,
    )


def check_choice(name: str, option: str, value: Any, choices: Sequence[str]) -> None:
    """Raise an EncoderError that lists the choices of an option unless ``value`` is one of them."""
    if value not in choices:
        raise EncoderError(
            f"Encoder {name!r}: expected the option {option} to be one of {', '.join(choices)} but got {value!r}."
        )


def check_size(name: str, value: Any) -> int | None:
    """The option ``image_size``: a whole number of pixels, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise EncoderError(
            f"Encoder {name!r}: expected the option image_size to be a whole number of pixels but got {value!r}."
        )
    return value


def evenly(n: int, most: int) -> list[int]:
    """At most ``most`` of the positions 0 to ``n`` - 1, evenly spaced, the last one among them.

    Example:
        >>> evenly(5, 6), evenly(12, 4)
        ([0, 1, 2, 3, 4], [2, 5, 8, 11])
    """
    count = min(n, most)
    return [(i + 1) * n // count - 1 for i in range(count)]


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
