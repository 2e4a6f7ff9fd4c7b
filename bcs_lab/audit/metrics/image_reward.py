"""ImageReward (Xu et al., 2023): how well people would like an image for a prompt, here the caption of the reference.

Its own package needs versions of timm and transformers from years ago, so its checkpoint is read here into the BLIP of
transformers: a ViT-L/16 whose tokens the text encoder attends to, and a small network on the first token of the text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bcs_lab.audit.captions import clean_caption
from bcs_lab.audit.metrics.base import Family, MetricSpec, MetricUnavailable, Preparation, Values
from bcs_lab.audit.metrics.blip import NO_CAPTION, hub_folder, shared_captioner
from bcs_lab.audit.metrics.weights import fill, read_tensors, state_digest
from bcs_lab.encoders.base import Preprocessing, pick_device

if TYPE_CHECKING:
    import torch

#: The checkpoint and its tokenizer on the hub.
CHECKPOINT, TOKENIZER = "zai-org/ImageReward", "google-bert/bert-base-uncased"
#: Tokens of a prompt.
LENGTH = 35
#: Mean and standard deviation of the raw reward, by which the published score is normalised.
MEAN, STD = 0.16717362830052426, 1.0333394966054072
WIDTHS = (1024, 128, 64, 16, 1)

#: Names in the checkpoint and in transformers.
_RENAMED = (
    (r"^cls_token$", "embeddings.class_embedding"),
    (r"^pos_embed$", "embeddings.position_embedding"),
    (r"^patch_embed\.proj\.", "embeddings.patch_embedding."),
    (r"^blocks\.", "encoder.layers."),
    (r"\.norm1\.", ".layer_norm1."),
    (r"\.norm2\.", ".layer_norm2."),
    (r"\.attn\.proj\.", ".self_attn.projection."),
    (r"\.attn\.", ".self_attn."),
    (r"^norm\.", "post_layernorm."),
)


def load(spec: MetricSpec, options: Mapping[str, Any], device: str, compat: str, shared: dict[str, Any]) -> Family:
    """ImageReward with captions by BLIP.

    Raises:
        MetricUnavailable: the checkpoint, the tokenizer or the captioner cannot be had.
    """
    source = options.get("source")
    path = Path(source).expanduser() if source is not None else None
    if path is None:
        path = hub_file(spec.title)
    if not path.is_file():
        raise MetricUnavailable(f"{spec.title}: expected the checkpoint ImageReward.pt at {path}, found none.")
    vocabulary = hub_folder(spec.title, TOKENIZER, options.get("tokenizer"), (("*.json", "vocab.txt"),))
    captioner = shared_captioner({"captioner": options.get("captioner")}, device, spec.title, shared)
    network = reward_network(spec, read_tensors(spec, path), path)
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(str(vocabulary), local_files_only=True)
    return RewardFamily(network, tokenizer, captioner, device)


def hub_file(title: str) -> Path:
    """The checkpoint from the local cache or the hub."""
    from bcs_lab.encoders.hub import cached_or_downloaded

    folder, reason = cached_or_downloaded(CHECKPOINT, None, "ImageReward.pt", (("ImageReward.pt",),), title)
    if folder is None:
        raise MetricUnavailable(
            f"{title}: the checkpoint of {CHECKPOINT} cannot be had: not in the local cache, and the hub does not give "
            f"it ({reason}). Ways out: `hf download {CHECKPOINT}` on a machine with a network and point HF_HOME at its "
            "cache, or name a local copy with the option source."
        )
    return folder / "ImageReward.pt"


def reward_network(spec: MetricSpec, tensors: Mapping[str, torch.Tensor], path: Path) -> torch.nn.Module:
    """The network of a checkpoint; sizes are read off its tensors.

    Raises:
        MetricUnavailable: it is no checkpoint of ImageReward.
    """
    import torch
    import transformers
    from transformers.models.blip.modeling_blip_text import BlipTextModel

    try:
        words = tensors["blip.text_encoder.embeddings.word_embeddings.weight"]
        patches = tensors["blip.visual_encoder.patch_embed.proj.weight"]
        places = tensors["blip.visual_encoder.pos_embed"]
        vision = transformers.BlipVisionConfig(
            hidden_size=patches.shape[0],
            intermediate_size=tensors["blip.visual_encoder.blocks.0.mlp.fc1.weight"].shape[0],
            num_hidden_layers=_layers(tensors, r"blip\.visual_encoder\.blocks\.(\d+)\."),
            num_attention_heads=max(patches.shape[0] // 64, 1),
            image_size=round((places.shape[1] - 1) ** 0.5) * patches.shape[-1],
            patch_size=patches.shape[-1],
            layer_norm_eps=1e-6,
        )
        text = transformers.BlipTextConfig(
            vocab_size=words.shape[0],
            hidden_size=words.shape[1],
            encoder_hidden_size=patches.shape[0],
            intermediate_size=tensors["blip.text_encoder.encoder.layer.0.intermediate.dense.weight"].shape[0],
            num_hidden_layers=_layers(tensors, r"blip\.text_encoder\.encoder\.layer\.(\d+)\."),
            num_attention_heads=max(words.shape[1] // 64, 1),
            max_position_embeddings=tensors["blip.text_encoder.embeddings.position_embeddings.weight"].shape[0],
        )
    except KeyError as error:
        raise MetricUnavailable(f"{spec.title}: {path} is no checkpoint of ImageReward ({error} is missing).") from None
    network = torch.nn.Module()
    network.vision = transformers.BlipVisionModel(vision)
    network.text = BlipTextModel(text, add_pooling_layer=False)
    widths = (text.hidden_size, *WIDTHS)
    # Dropout layers of training count in the checkpoint's names: 0, 2, 4, 6, 7.
    network.reward = torch.nn.ModuleDict(
        {place: torch.nn.Linear(a, b) for place, a, b in zip("02467", widths[:-1], widths[1:], strict=True)}
    )
    seen = {_renamed(name.removeprefix("blip.visual_encoder.")): value for name, value in tensors.items()
            if name.startswith("blip.visual_encoder.")}  # fmt: skip
    fill(spec, network.vision, seen, path)
    fill(spec, network.text, tensors, path, "blip.text_encoder.")
    fill(spec, network.reward, tensors, path, "mlp.layers.")
    return network.eval().requires_grad_(False)


def _layers(tensors: Mapping[str, Any], pattern: str) -> int:
    return 1 + max(int(found.group(1)) for name in tensors if (found := re.match(pattern, name)))


def _renamed(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


class RewardFamily(Family):
    """The normalised reward of a reconstruction for the caption of its reference.

    Args:
        network: of :func:`reward_network`.
        tokenizer: BERT's.
        captioner: of references.
        device: where the network computes.
    """

    batch = 8

    def __init__(self, network: Any, tokenizer: Any, captioner: Any, device: str) -> None:
        size = network.vision.config.image_size
        prepared = Preprocessing(
            size=(size, size), resize="crop", resized=(size, size), interpolation="bicubic",
            mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711),
        )  # fmt: skip
        super().__init__(
            {
                "library": "bcs_lab.image_reward", "weights": state_digest(network), "captioner": captioner.identity,
                "length": LENGTH,
            },
            Preparation(f"image_reward {size}", lambda image: (image, prepared.apply(image))),
        )  # fmt: skip
        self.device = pick_device(device)
        self.network, self.tokenizer, self.captioner = network.to(self.device), tokenizer, captioner

    def features(self, inputs: Sequence[Any]) -> list[Any]:
        """Of references, the cleaned captions."""
        return [clean_caption(text) for text in self.captioner.caption([image for image, _ in inputs])]

    def reconstruction_features(self, inputs: Sequence[Any]) -> list[Any]:
        """Of reconstructions, the tokens of the image: float32 [tokens, width]."""
        import torch

        with torch.inference_mode():
            batch = torch.from_numpy(np.stack([array for _, array in inputs])).to(self.device)
            return [row.clone() for row in self.network.vision(pixel_values=batch).last_hidden_state]

    def compare(
        self, names: Sequence[str], references: Sequence[Any], reconstructions: Sequence[Any]
    ) -> dict[str, Values]:
        """Rewards; undefined where the caption is empty."""
        values = np.full(len(references), np.nan)
        reasons = {row: NO_CAPTION for row, text in enumerate(references) if not text}
        for row, (prompt, seen) in enumerate(zip(references, reconstructions, strict=True)):
            if prompt:
                values[row] = self.reward(prompt, seen)
        return {name: Values(values, reasons) for name in names}

    def reward(self, prompt: str, seen: torch.Tensor) -> float:
        """The reward of one image's tokens for one prompt."""
        import torch

        with torch.inference_mode():
            tokens = self.tokenizer(
                prompt, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
            ).to(self.device)
            hidden = self.network.text(
                input_ids=tokens["input_ids"],
                attention_mask=tokens["attention_mask"],
                encoder_hidden_states=seen.unsqueeze(0),
                encoder_attention_mask=torch.ones(1, len(seen), dtype=torch.long, device=self.device),
                is_decoder=False,
            ).last_hidden_state[:, 0]
            # No activation in between: that is how it was trained.
            for layer in self.network.reward.values():
                hidden = layer(hidden)
            return (float(hidden) - MEAN) / STD
