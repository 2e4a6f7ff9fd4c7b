"""Captions by BLIP, and the metric made of them: the cosine of what the captions of both images say.

The captioner is BLIP-base without a prompt, at most 32 new tokens, no sampling. Captions are cleaned, then embedded by
all-MiniLM-L6-v2 (:mod:`bcs_lab.rationales`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bcs_lab.audit.captions import BLIP, MAX_NEW_TOKENS, clean_caption
from bcs_lab.audit.metrics.base import PICTURE, Family, MetricSpec, MetricUnavailable, Values
from bcs_lab.audit.metrics.cosine import cosines
from bcs_lab.audit.metrics.weights import state_digest
from bcs_lab.corpus.images import DEFAULT_MAX_IMAGE_PIXELS, load_image
from bcs_lab.encoders.base import pick_device
from bcs_lab.encoders.hub import cached_or_downloaded

_CONFIGS = ("*.json", "*.txt")
_FILES = ((*_CONFIGS, "model*.safetensors"), (*_CONFIGS, "pytorch_model*.bin"))
NO_CAPTION = "the captioner says nothing about an image"


@dataclass(frozen=True)
class Captioner:
    """A captioning model that is ready.

    Attributes:
        network: of transformers.
        processor: its preprocessing and tokenizer.
        identity: model, weights and settings, JSON-able.
        device: where it computes.
        batch: images at once.
    """

    network: Any
    processor: Any
    identity: dict[str, Any]
    device: Any
    batch: int = 8

    def caption(self, images: Sequence[Image.Image]) -> list[str]:
        """One caption an RGB image, as the model says it."""
        import torch

        said: list[str] = []
        with torch.inference_mode():
            for start in range(0, len(images), self.batch):
                inputs = self.processor(images=list(images[start : start + self.batch]), return_tensors="pt")
                tokens = self.network.generate(
                    pixel_values=inputs["pixel_values"].to(self.device), max_new_tokens=MAX_NEW_TOKENS, do_sample=False
                )
                said += self.processor.batch_decode(tokens, skip_special_tokens=True)
        return said

    def caption_files(
        self, paths: Sequence[Path], *, max_pixels: int = DEFAULT_MAX_IMAGE_PIXELS, progress: bool = True
    ) -> list[str]:
        """One caption a file, holding no more than a batch of images.

        Raises:
            ImageError: a file is no image.
        """
        import sys

        from tqdm import tqdm

        said: list[str] = []
        with tqdm(
            total=len(paths), desc="captions", unit="image", disable=not (progress and sys.stderr.isatty())
        ) as bar:
            for start in range(0, len(paths), self.batch):
                batch = paths[start : start + self.batch]
                said += self.caption([load_image(path, max_pixels=max_pixels) for path in batch])
                bar.update(len(batch))
        return said


def load_captioner(
    source: str | Path | None = None, *, device: str = "auto", title: str = "BLIP captions"
) -> Captioner:
    """Load BLIP-base.

    Args:
        source: a local folder of a BLIP captioner; by default the paper's from the cache or the hub.
        device: ``auto``, ``cpu``, ``cuda``, …
        title: what needs it, for messages.

    Raises:
        MetricUnavailable: its weights cannot be had.
        EncoderError: the device is not there.
    """
    folder = hub_folder(title, BLIP, source, _FILES)
    import transformers

    try:
        processor = transformers.AutoProcessor.from_pretrained(str(folder), local_files_only=True)
        network = transformers.BlipForConditionalGeneration.from_pretrained(
            str(folder), local_files_only=True, dtype="float32"
        )
    except Exception as error:  # a damaged folder can raise almost anything
        raise MetricUnavailable(
            f"{title}: transformers {transformers.__version__} cannot load {folder} "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        ) from error
    where = pick_device(device)
    identity = {
        "model": BLIP if source is None else type(network).__name__,
        "library": f"transformers {transformers.__version__}",
        "weights": state_digest(network),
        "max_new_tokens": MAX_NEW_TOKENS,
    }
    return Captioner(network.eval().requires_grad_(False).to(where), processor, identity, where)


def hub_folder(title: str, repo: str, source: str | Path | None, patterns: Sequence[Sequence[str]]) -> Path:
    """A local folder with a hub repository's files.

    Args:
        title: of the metric, for messages.
        repo: on the hub.
        source: a local copy instead.
        patterns: as in :func:`bcs_lab.encoders.hub.fetch_folder`.

    Raises:
        MetricUnavailable: it cannot be had; says what was tried.
    """
    if source is not None:
        path = Path(source).expanduser()
        if not path.is_dir():
            raise MetricUnavailable(f"{title}: expected a folder at {path}, found none.")
        return path
    folder, reason = cached_or_downloaded(repo, None, "config.json", patterns, title)
    if folder is None:
        raise MetricUnavailable(
            f"{title}: the weights of {repo} cannot be had: not in the local cache, and the hub does not give them "
            f"({reason}). Ways out: `hf download {repo}` on a machine with a network and point HF_HOME at its cache, "
            "or name a local copy with the metric's option."
        )
    return folder


def load(spec: MetricSpec, options: Mapping[str, Any], device: str, compat: str, shared: dict[str, Any]) -> Family:
    """The metric BLIP-SBERT.

    Raises:
        MetricUnavailable: the captioner cannot be had.
        EncoderError: the sentence encoder cannot be had.
    """
    from bcs_lab.rationales import load_sentence_encoder

    captioner = shared_captioner(options, device, spec.title, shared)
    encoder = load_sentence_encoder(str(options.get("sentences") or "auto"), device)
    return CaptionFamily(captioner, encoder)


def shared_captioner(options: Mapping[str, Any], device: str, title: str, shared: dict[str, Any]) -> Captioner:
    """The captioner of the option ``source`` (or ``captioner``), loaded once for all metrics."""
    source = options.get("captioner") or options.get("source")
    key = f"captioner {source} {device}"
    if key not in shared:
        shared[key] = load_captioner(source, device=device, title=title)
    return shared[key]


class CaptionFamily(Family):
    """Cosine of the sentence embeddings of both captions.

    Args:
        captioner: from images to text.
        encoder: from text to unit vectors.
    """

    batch = 8

    def __init__(self, captioner: Captioner, encoder: Any) -> None:
        super().__init__(
            {"library": "bcs_lab.captions", "captioner": captioner.identity, "sentences": encoder.identity}, PICTURE
        )
        self.captioner, self.encoder = captioner, encoder

    def features(self, inputs: Sequence[Any]) -> list[Any]:
        """Cleaned caption and its vector."""
        texts = [clean_caption(text) for text in self.captioner.caption(inputs)]
        return list(zip(texts, np.asarray(self.encoder.embed(texts)), strict=True))

    def compare(
        self, names: Sequence[str], references: Sequence[Any], reconstructions: Sequence[Any]
    ) -> dict[str, Values]:
        """Cosines; undefined where a caption is empty."""
        values = cosines([vector for _, vector in references], [vector for _, vector in reconstructions])
        reasons = {
            row: NO_CAPTION
            for row, (one, two) in enumerate(zip(references, reconstructions, strict=True))
            if not (one[0] and two[0])
        }
        values[list(reasons)] = np.nan
        return {name: Values(values, reasons) for name in names}
