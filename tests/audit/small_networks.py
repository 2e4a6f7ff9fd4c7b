"""Weight files with random values under the names the libraries' servers have, and small models of the same classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

#: Of the small tokenizers.
WORDS = (
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "a",
    "dog",
    "cat",
    "on",
    "the",
    "red",
    "big",
    "small",
    "boat",
    "in",
    "snow",
)


def features_file(name: str, path: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights of the ``features`` of torchvision's AlexNet or VGG-16; its large last layers are left out."""
    from torchvision import models

    with torch.device("meta"):
        network = models.get_model(name, weights=None)
    network.features.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for key, value in network.features.state_dict().items():
        scale = (2 / value[0].numel()) ** 0.5 if value.ndim == 4 else 0.05
        tensors[f"features.{key}"] = torch.randn(value.shape, generator=generator) * scale
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, path)
    return tensors


def whole_file(network: torch.nn.Module, path: Path, prefix: str = "") -> None:
    """All weights of a network as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({prefix + key: value for key, value in network.state_dict().items()}, path)


def blip_folder(folder: Path) -> Path:
    """A captioner of the same classes as BLIP-base, with random weights and a dozen words."""
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    text = transformers.BlipTextConfig(
        vocab_size=len(WORDS), hidden_size=32, encoder_hidden_size=32, intermediate_size=48, projection_dim=16,
        num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=64, bos_token_id=2, eos_token_id=3,
        sep_token_id=3, pad_token_id=0,
    )  # fmt: skip
    # The class starts from almost nothing, as it is meant to be loaded.
    vision = transformers.BlipVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=16,
        initializer_range=0.05,
    )  # fmt: skip
    torch.manual_seed(1)
    config = transformers.BlipConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=16)
    network = transformers.BlipForConditionalGeneration(config)
    with torch.no_grad():
        # So that different pictures are told apart: what is seen counts for much, words and places for little.
        for name, value in network.named_parameters():
            if "crossattention" in name or "patch_embedding" in name:
                value.mul_(30)
            elif "predictions" in name:
                value.mul_(20)
        network.text_decoder.cls.predictions.bias[:5] = -1e4  # words only, and no end before the longest caption
    network.save_pretrained(folder)
    tokenizer = transformers.BertTokenizer(str(vocabulary))
    processor = transformers.BlipImageProcessor(size={"height": 32, "width": 32})
    transformers.BlipProcessor(processor, tokenizer).save_pretrained(folder)
    return folder


def reward_file(path: Path) -> dict[str, torch.Tensor]:
    """A checkpoint with the names of ImageReward's, small sizes and random weights."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * 0.2

    see, text, inner, patch, places = 64, 64, 80, 16, 5
    found: dict[str, torch.Tensor] = {
        "cls_token": draw(1, 1, see), "pos_embed": draw(1, places, see),
        "patch_embed.proj.weight": draw(see, 3, patch, patch), "patch_embed.proj.bias": draw(see),
        "norm.weight": draw(see) + 1, "norm.bias": draw(see),
    }  # fmt: skip
    for at in range(2):
        block = f"blocks.{at}."
        for norm in ("norm1", "norm2"):
            found |= {f"{block}{norm}.weight": draw(see) + 1, f"{block}{norm}.bias": draw(see)}
        for name, (rows, columns) in {
            "attn.qkv": (3 * see, see), "attn.proj": (see, see), "mlp.fc1": (inner, see), "mlp.fc2": (see, inner)
        }.items():  # fmt: skip
            found |= {f"{block}{name}.weight": draw(rows, columns), f"{block}{name}.bias": draw(rows)}
    tensors = {f"blip.visual_encoder.{key}": value for key, value in found.items()}
    found = {
        "embeddings.word_embeddings.weight": draw(len(WORDS), text),
        "embeddings.position_embeddings.weight": draw(64, text),
        "embeddings.LayerNorm.weight": draw(text) + 1, "embeddings.LayerNorm.bias": draw(text),
    }  # fmt: skip
    for at in range(2):
        layer = f"encoder.layer.{at}."
        sizes = {"intermediate.dense": (inner, text), "output.dense": (text, inner)}
        for kind, width in (("attention", text), ("crossattention", see)):
            sizes |= {f"{kind}.self.query": (text, text), f"{kind}.output.dense": (text, text)}
            sizes |= {f"{kind}.self.key": (text, width), f"{kind}.self.value": (text, width)}
            found |= {f"{layer}{kind}.output.LayerNorm.weight": draw(text) + 1}
            found |= {f"{layer}{kind}.output.LayerNorm.bias": draw(text)}
        found |= {f"{layer}output.LayerNorm.weight": draw(text) + 1, f"{layer}output.LayerNorm.bias": draw(text)}
        for name, (rows, columns) in sizes.items():
            found |= {f"{layer}{name}.weight": draw(rows, columns), f"{layer}{name}.bias": draw(rows)}
    tensors |= {f"blip.text_encoder.{key}": value for key, value in found.items()}
    widths = (text, 1024, 128, 64, 16, 1)
    for place, one, two in zip("02467", widths[:-1], widths[1:], strict=True):
        tensors |= {f"mlp.layers.{place}.weight": draw(two, one), f"mlp.layers.{place}.bias": draw(two)}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, path)
    return tensors


def bert_folder(folder: Path) -> Path:
    """A tokenizer with the words of :func:`blip_folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    settings: dict[str, Any] = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": len(WORDS)}), encoding="utf-8")
    return folder
