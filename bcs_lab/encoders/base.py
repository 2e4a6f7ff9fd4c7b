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
RESIZES = ("squash", "crop")
DTYPES = ("float32", "bfloat16", "float16")


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
        width, height = image.size
        if self.resize == "squash":
            target = (self.resized[1], self.resized[0])
        else:
            edge, short = self.resized[0], min(width, height)
            target = (int(edge * width / short), int(edge * height / short))
        image = image.convert("RGB").resize(target, INTERPOLATIONS[self.interpolation])
        top, left = (self._margin(image.size[1 - axis], self.size[axis]) for axis in (0, 1))
        if image.size != (self.size[1], self.size[0]):
            image = image.crop((left, top, left + self.size[1], top + self.size[0]))
        pixels: np.ndarray = np.asarray(image, dtype=np.float32) / np.float32(self.scale)
        pixels = (pixels - np.array(self.mean, dtype=np.float32)) / np.array(self.std, dtype=np.float32)
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def _margin(self, length: int, kept: int) -> int:
        margin = (length - kept) / 2
        return round(margin) if self.cut == "round" else math.floor(margin)


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
    """

    name: str
    dim: int
    fingerprint: dict[str, Any]
    prepare: Callable[[Image.Image], np.ndarray]
    forward: Callable[[np.ndarray], np.ndarray]
    device: str = "cpu"

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
        # One image a thread and one thread an image: the numbers then depend neither on the batch nor on how many cores
        # there are, and busy cores do no harm (several threads within one small layer mostly wait for each other).
        workers = ThreadPoolExecutor(torch.get_num_threads(), "embed", lambda: torch.set_num_threads(1))

    def forward(inputs: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(inputs)
        if place.type != "cpu":
            return run(tensor).numpy()
        return torch.cat(list(workers.map(run, tensor.split(1)))).numpy()

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


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
