"""Tiny vision-language models with random weights, of the classes that real teachers load with, saved as folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config

TURN = ("<|im_start|>", "<|im_end|>")
PAD = "<|endoftext|>"
TILE = 28

#: The templates' own texts are short; what matters is where they put system text and images.
_TURNS = (
    "{%% for message in messages %%}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{%% for part in message['content'] %%}{%% if part['type'] == 'image' %%}{{ '%s\\n' }}"
    "{%% else %%}{{ part['text'] }}{%% endif %%}{%% endfor %%}{{ '<|im_end|>\\n' }}{%% endfor %%}"
    "{%% if add_generation_prompt %%}{{ '<|im_start|>assistant\\n' }}{%% endif %%}"
)
INTERNVL_TEMPLATE = _TURNS % "<IMG_CONTEXT>"
#: Ovis2's opens with a system turn of its own, whatever the messages are.
OVIS2_TEMPLATE = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + _TURNS % "<image>"
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tokenizer(special: tuple[str, ...], named: dict[str, str] | None = None) -> PreTrainedTokenizerFast:
    """Bytes as tokens, and special tokens for turns and images."""
    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token=TURN[1],
        pad_token=PAD,
        padding_side="right",  # as some published tokenizers; the backend has to turn it
        extra_special_tokens=named or {},
    )
    made.add_tokens([*TURN, *special], special_tokens=True)
    return made


def internvl(folder: Path, seed: int = 0) -> Path:
    """InternVL with 4 image tokens for a tile of 28 x 28 pixels."""
    from transformers import (
        GotOcr2ImageProcessor,
        InternVLConfig,
        InternVLForConditionalGeneration,
        InternVLProcessor,
        InternVLVideoProcessor,
        InternVLVisionConfig,
    )

    tokens = tokenizer(
        ("<video>",),
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    )
    places = (TILE // 7 // 2) ** 2
    config = InternVLConfig(
        vision_config=InternVLVisionConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=[TILE, TILE],
            patch_size=[7, 7],
        ),
        text_config=language(len(tokens)),
        image_token_id=tokens.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=places,
        tie_word_embeddings=False,
    )
    processor = InternVLProcessor(
        image_processor=GotOcr2ImageProcessor(size={"height": TILE, "width": TILE}),
        tokenizer=tokens,
        video_processor=InternVLVideoProcessor(size={"height": TILE, "width": TILE}),
        image_seq_length=places,
        chat_template=INTERNVL_TEMPLATE,
    )
    _save(InternVLForConditionalGeneration, config, folder, seed)
    processor.save_pretrained(folder)
    return folder


def ovis2(folder: Path, seed: int = 0) -> Path:
    """Ovis2, whose template has no place for a system text and whose tokenizer pads on the right."""
    from transformers import Ovis2Config, Ovis2ForConditionalGeneration, Ovis2ImageProcessor, Ovis2Processor
    from transformers.models.ovis2.configuration_ovis2 import Ovis2VisionConfig

    names = ("<image>", "<IMG_ATOM>", "<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>")
    tokens = tokenizer(names)
    places = (TILE // 7 // 2) ** 2
    config = Ovis2Config(
        vision_config=Ovis2VisionConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=TILE,
            patch_size=7,
            hidden_stride=2,
            vocab_size=64,
        ),
        text_config=language(len(tokens)),
        image_token_id=tokens.convert_tokens_to_ids("<IMG_ATOM>"),
        visual_indicator_token_ids=tokens.convert_tokens_to_ids(list(names[2:])),
        vocab_size=len(tokens),
        hidden_size=32,
        tie_word_embeddings=False,
    )
    processor = Ovis2Processor(
        image_processor=Ovis2ImageProcessor(size={"height": TILE, "width": TILE}, crop_to_patches=True),
        tokenizer=tokens,
        chat_template=OVIS2_TEMPLATE,
        image_seq_length=places,
    )
    _save(Ovis2ForConditionalGeneration, config, folder, seed)
    processor.save_pretrained(folder)
    return folder


#: A model with its own code: what SAIL-VL's has in common with InternVL's first releases, and no more.
_OWN_CODE = """
import torch
from transformers import PreTrainedConfig, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM


class TinyConfig(PreTrainedConfig):
    model_type = "tiny_own_code"

    def __init__(self, llm_config=None, vision_config=None, **settings):
        self.llm_config = Qwen2Config(**(llm_config or {}))
        self.vision_config = PreTrainedConfig(**(vision_config or {"image_size": 28}))
        super().__init__(**settings)


class TinyChatModel(PreTrainedModel):
    config_class = TinyConfig
    main_input_name = "pixel_values"

    def __init__(self, config):
        super().__init__(config)
        self.num_image_token = 4
        self.img_context_token_id = None
        self.language_model = Qwen2ForCausalLM(config.llm_config)
        self.patches = torch.nn.Conv2d(3, config.llm_config.hidden_size, 14, 14)
        self.post_init()

    @torch.no_grad()
    def generate(self, pixel_values=None, input_ids=None, attention_mask=None, generation_config=None, **settings):
        assert self.img_context_token_id is not None
        images = self.patches(pixel_values).flatten(2).transpose(1, 2)
        embeds = self.language_model.get_input_embeddings()(input_ids)
        places = input_ids == self.img_context_token_id
        embeds[places] = images.reshape(-1, images.shape[-1]).to(embeds)
        return self.language_model.generate(
            inputs_embeds=embeds, attention_mask=attention_mask, generation_config=generation_config, **settings
        )
"""


def own_code(folder: Path, seed: int = 0) -> Path:
    """A folder whose model is in its Python file."""
    import sys
    import types

    module = types.ModuleType("modeling_tiny")
    exec(compile(_OWN_CODE, "modeling_tiny.py", "exec"), module.__dict__)
    sys.modules.setdefault("modeling_tiny", module)
    tokens = tokenizer(("<img>", "</img>", "<IMG_CONTEXT>"))
    tokens.chat_template = PLAIN_TEMPLATE
    config = module.TinyConfig(llm_config=language(len(tokens)).to_dict())
    _save(module.TinyChatModel, config, folder, seed)
    tokens.save_pretrained(folder)
    (folder / "modeling_tiny.py").write_text(_OWN_CODE)
    values = json.loads((folder / "config.json").read_text())
    values["auto_map"] = {"AutoConfig": "modeling_tiny.TinyConfig", "AutoModel": "modeling_tiny.TinyChatModel"}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def language(vocab: int) -> Qwen2Config:
    """A language model's settings."""
    return Qwen2Config(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16384,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def _save(kind: Any, config: Any, folder: Path, seed: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config)
        # With usual, small weights it would repeat one token for ever, whatever the images are.
        for parameter in model.parameters():
            parameter.data.normal_(0, 0.5)
    model.save_pretrained(folder)
