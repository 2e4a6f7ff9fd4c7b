"""Real loading code on tiny random models saved to disk, against each library's own transform and forward pass."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bcs_lab.encoders import load_encoder
from bcs_lab.encoders.base import Preprocessing
from bcs_lab.errors import EncoderError
from bcs_lab.store import fingerprint_digest


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """A non-square image with structure at all scales."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return Image.fromarray(np.clip(image + rng.integers(-40, 40, image.shape), 0, 255).astype(np.uint8))


WIDE, TALL = picture(97, 50), picture(41, 88, seed=1)


def unit(rows: torch.Tensor) -> np.ndarray:
    return torch.nn.functional.normalize(rows.float(), dim=1).numpy()


# --- transformers ---


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    folder = tmp_path_factory.mktemp("siglip")
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.SiglipConfig(
        text_config={**small, "vocab_size": 50, "max_position_embeddings": 8, "projection_size": 16},
        vision_config={**small, "image_size": 32, "patch_size": 8},
    )
    transformers.SiglipModel(config).save_pretrained(folder)
    transformers.SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def hf_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import transformers

    folder = tmp_path_factory.mktemp("hf_clip")
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.CLIPConfig(
        text_config={**small, "vocab_size": 50, "max_position_embeddings": 8},
        vision_config={**small, "image_size": 32, "patch_size": 8},
        projection_dim=12,
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    processor = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["siglip", "hf_clip"])
def test_transformers_equals_the_library(kind: str, request: pytest.FixtureRequest) -> None:
    import transformers

    folder = request.getfixturevalue(kind)
    encoder = load_encoder(f"transformers:{folder}")
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    for image in (WIDE, TALL):
        theirs = processor(images=image, return_tensors="pt")["pixel_values"]
        ours = encoder.prepare(image)
        # The library may resize tensors instead of Pillow images, which rounds some pixels by a few levels.
        level = 1 / 255 / min(processor.image_std)
        difference = np.abs(ours - theirs[0].numpy())
        assert difference.max() < 6 * level
        assert difference.mean() < 0.3 * level
        with torch.no_grad():
            output = model.get_image_features(pixel_values=torch.from_numpy(ours)[None])
        tensor = output if isinstance(output, torch.Tensor) else output.pooler_output
        np.testing.assert_allclose(encoder.embed([image]), unit(tensor), atol=1e-6)


@pytest.mark.parametrize("kind", ["siglip", "hf_clip"])
def test_transformers_equals_the_pillow_processor_exactly(kind: str, request: pytest.FixtureRequest) -> None:
    import transformers

    pillow = getattr(
        transformers, {"siglip": "SiglipImageProcessorPil", "hf_clip": "CLIPImageProcessorPil"}[kind], None
    )
    if pillow is None:
        pytest.skip("this transformers has no Pillow processors of that name")
    folder = request.getfixturevalue(kind)
    processor = pillow.from_pretrained(folder)
    encoder = load_encoder(f"transformers:{folder}")
    for image in (WIDE, TALL):
        theirs = np.asarray(processor(images=image, return_tensors="np")["pixel_values"][0])
        np.testing.assert_allclose(encoder.prepare(image), theirs, atol=2e-6)


def test_transformers_poolings_differ(siglip: Path) -> None:
    vectors = [
        load_encoder(f"transformers:{siglip}", options={"pooling": pooling}).embed([WIDE])
        for pooling in ("default", "cls", "avg")
    ]
    assert len({vector.tobytes() for vector in vectors}) == 3


def test_output_object_and_tensor_are_both_understood() -> None:
    from types import SimpleNamespace

    from bcs_lab.encoders.transformers_encoder import _vector

    rows = torch.ones(2, 3)
    assert _vector(rows) is rows
    assert torch.equal(_vector(SimpleNamespace(pooler_output=rows, last_hidden_state=torch.zeros(2, 4, 3))), rows)
    assert torch.equal(_vector(SimpleNamespace(last_hidden_state=rows[:, None])), rows)


# --- open_clip ---

TINY_CLIP = {
    "embed_dim": 12,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8},
    "text_cfg": {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="module")
def open_clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import open_clip
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("open_clip")
    torch.manual_seed(0)
    model = open_clip.CLIP(**TINY_CLIP)
    save_file(
        {key: value.contiguous() for key, value in model.state_dict().items()}, folder / "open_clip_model.safetensors"
    )
    config = {"model_cfg": TINY_CLIP, "preprocess_cfg": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return folder


def test_open_clip_equals_the_library(open_clip_folder: Path) -> None:
    import open_clip

    encoder = load_encoder(f"open_clip:{open_clip_folder}")
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{open_clip_folder}")
    model.eval()
    for image in (WIDE, TALL):
        theirs = transform(image)
        np.testing.assert_allclose(encoder.prepare(image), theirs.numpy(), atol=1e-6)
        with torch.no_grad():
            expected = unit(model.encode_image(theirs[None]))
        np.testing.assert_allclose(encoder.embed([image]), expected, atol=1e-6)
    assert encoder.prepare(WIDE).shape == (3, 32, 32)


def test_clip_uses_quick_gelu_crop_and_its_own_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in name `clip`, with the tag's settings, on a small stand-in for its architecture."""
    import open_clip
    from open_clip import factory
    from safetensors.torch import save_file

    import bcs_lab.encoders as encoders

    monkeypatch.setitem(factory._MODEL_CONFIGS, "ViT-L-14", TINY_CLIP)
    spec = encoders.encoder_spec("clip")
    monkeypatch.setitem(encoders._registry(), "clip", replace(spec, dim=12))
    torch.manual_seed(0)
    model = open_clip.CLIP(**TINY_CLIP, quick_gelu=True).eval()
    file = tmp_path / "open_clip_model.safetensors"
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, file)
    encoder = load_encoder("clip", options={"source": str(file)})
    assert encoder.fingerprint["quick_gelu"] is True
    assert encoder.fingerprint["preprocessing"]["resize"] == "crop"
    assert encoder.fingerprint["preprocessing"]["mean"] == pytest.approx([0.48145466, 0.4578275, 0.40821073])
    with torch.no_grad():
        expected = unit(model.encode_image(torch.from_numpy(encoder.prepare(WIDE))[None]))
    np.testing.assert_allclose(encoder.embed([WIDE]), expected, atol=1e-6)


def test_real_clip_needs_quick_gelu_and_open_clip_does_not_apply_it_alone() -> None:
    import open_clip

    assert open_clip.get_pretrained_cfg("ViT-L-14", "openai")["quick_gelu"] is True
    assert not open_clip.get_model_config("ViT-L-14").get("quick_gelu", False)


# --- timm ---

TIMM_CONFIG = {
    "input_size": [3, 32, 32],
    "crop_pct": 0.9,
    "crop_mode": "center",
    "interpolation": "bicubic",
    "mean": [0.4, 0.5, 0.6],
    "std": [0.2, 0.3, 0.4],
}


@pytest.fixture(scope="module")
def timm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import timm
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("timm")
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", num_classes=0)
    save_file(model.state_dict(), folder / "model.safetensors")
    config = {"architecture": "resnet10t", "num_classes": 0, "pretrained_cfg": TIMM_CONFIG}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("mode", ["center", "squash"])
def test_timm_equals_the_library(timm_folder: Path, tmp_path: Path, mode: str) -> None:
    import timm
    from timm.data import create_transform, resolve_model_data_config

    folder = tmp_path / "copy"
    shutil.copytree(timm_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"]["crop_mode"] = mode
    (folder / "config.json").write_text(json.dumps(config))
    encoder = load_encoder(f"timm:{folder}")
    model = timm.create_model("local-dir:" + str(folder), pretrained=True, num_classes=0).eval()
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    for image in (WIDE, TALL):
        theirs = transform(image)
        np.testing.assert_allclose(encoder.prepare(image), theirs.numpy(), atol=1e-6)
        with torch.no_grad():
            np.testing.assert_allclose(encoder.embed([image]), unit(model(theirs[None])), atol=1e-5)


@pytest.fixture(scope="module")
def dinov3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    """A DINOv3-like network: class token, four registers, rotary positions, average pooling by default."""
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch16_dinov3", num_classes=0, img_size=32).eval()
    file = tmp_path_factory.mktemp("dinov3") / "model.safetensors"
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, file)
    return file, model


def test_dinov3_poolings(dinov3: tuple[Path, torch.nn.Module]) -> None:
    file, model = dinov3
    name = "timm:vit_small_patch16_dinov3.lvd1689m"
    made = {
        pooling: load_encoder(name, options={"source": str(file), "pooling": pooling, "image_size": 32})
        for pooling in ("default", "cls", "avg")
    }
    inputs = torch.from_numpy(made["default"].prepare(WIDE))[None]
    with torch.no_grad():
        tokens = model.forward_features(inputs)
        # Five prefix tokens: the class token and four registers.
        average = unit(model.fc_norm(tokens[:, 5:].mean(dim=1)))
        first = unit(model.fc_norm(tokens[:, 0]))
    np.testing.assert_allclose(made["default"].embed([WIDE]), average, atol=1e-6)
    np.testing.assert_allclose(made["avg"].embed([WIDE]), average, atol=1e-6)
    np.testing.assert_allclose(made["cls"].embed([WIDE]), first, atol=1e-6)
    assert made["default"].fingerprint["preprocessing"]["mean"] == pytest.approx([0.485, 0.456, 0.406])


def test_unknown_names_and_poolings(timm_folder: Path) -> None:
    with pytest.raises(EncoderError, match=r"no model 'resnett50'.*Did you mean resnet50"):
        load_encoder("timm:resnett50")
    with pytest.raises(EncoderError, match="no class token"):
        load_encoder(f"timm:{timm_folder}", options={"pooling": "cls"})
    with pytest.raises(EncoderError, match=r"pooling to be one of default, cls, avg but got 'sum'"):
        load_encoder(f"timm:{timm_folder}", options={"pooling": "sum"})
    with pytest.raises(EncoderError, match="has no option 'poling'"):
        load_encoder(f"timm:{timm_folder}", options={"poling": "avg"})
    with pytest.raises(EncoderError, match=r"ViT-B-32.*expected one of"):
        load_encoder("open_clip:ViT-B-32/nobody")
    with pytest.raises(EncoderError, match="found none"):
        load_encoder("transformers:/nowhere/at/all")


# --- local folders ---


def test_a_relative_folder_is_taken_as_local(
    timm_folder: Path, siglip: Path, open_clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library, folder in (("timm", timm_folder), ("transformers", siglip), ("open_clip", open_clip_folder)):
        shutil.copytree(folder, tmp_path / f"my_{library}")
    monkeypatch.chdir(tmp_path)
    for library, folder in (("timm", timm_folder), ("transformers", siglip), ("open_clip", open_clip_folder)):
        expected = load_encoder(f"{library}:{folder}")
        encoder = load_encoder(f"{library}:my_{library}")
        assert encoder.fingerprint == expected.fingerprint
        assert np.array_equal(encoder.embed([WIDE]), expected.embed([WIDE]))


@pytest.mark.parametrize(
    ("library", "config"),
    [("timm", "config.json"), ("transformers", "config.json"), ("open_clip", "open_clip_config.json")],
)
def test_a_folder_without_its_config_names_the_file(library: str, config: str, tmp_path: Path) -> None:
    weights = tmp_path / "mine/weights.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"x")
    with pytest.raises(EncoderError) as caught:
        load_encoder(f"{library}:{weights.parent}")
    assert f"expected {weights.parent / config} beside the weights; found weights.safetensors" in str(caught.value)
    with pytest.raises(EncoderError) as caught:
        load_encoder(f"{library}:{weights}")
    assert f"{weights} does not say its architecture" in str(caught.value)
    assert config in str(caught.value)


def test_the_device_really_used_is_known(timm_folder: Path) -> None:
    expected = "cuda:0" if torch.cuda.is_available() else "cpu"
    assert load_encoder(f"timm:{timm_folder}").device == expected
    assert load_encoder(f"timm:{timm_folder}", device="cpu").device == "cpu"


# --- fingerprints ---


def test_fingerprint_follows_everything_that_changes_the_numbers(timm_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    name = f"timm:{timm_folder}"
    base = load_encoder(name)
    other = tmp_path / "other"
    shutil.copytree(timm_folder, other)
    state = load_file(other / "model.safetensors")
    state["conv1.0.weight"] = state["conv1.0.weight"] + 1e-3
    save_file(state, other / "model.safetensors")
    variants = [
        base,
        load_encoder(f"timm:{other}"),
        load_encoder(name, options={"revision": "v2"}),
        load_encoder(name, options={"dtype": "bfloat16"}),
        load_encoder(name, dtype="float16"),
        load_encoder(name, options={"resize": "squash"}),
        load_encoder(name, options={"pooling": "avg"}),
    ]
    assert len({fingerprint_digest(encoder.fingerprint) for encoder in variants}) == len(variants)
    for encoder in variants:
        assert encoder.fingerprint == json.loads(json.dumps(encoder.fingerprint))
        assert str(timm_folder) not in json.dumps(encoder.fingerprint)
        assert encoder.fingerprint["loader"] == {"version": "1", "background": [255, 255, 255]}


def test_a_moved_folder_has_the_same_fingerprint(
    timm_folder: Path, siglip: Path, open_clip_folder: Path, tmp_path: Path
) -> None:
    for library, folder in (("timm", timm_folder), ("transformers", siglip), ("open_clip", open_clip_folder)):
        moved = tmp_path / library
        shutil.copytree(folder, moved)
        assert load_encoder(f"{library}:{moved}").fingerprint == load_encoder(f"{library}:{folder}").fingerprint


def test_a_row_does_not_depend_on_its_batch_or_on_threads(timm_folder: Path) -> None:
    encoder = load_encoder(f"timm:{timm_folder}")
    together = encoder.embed([WIDE, TALL, WIDE])
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert np.array_equal(together[1], encoder.embed([TALL])[0])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert np.array_equal(together, load_encoder(f"timm:{timm_folder}").embed([WIDE, TALL, WIDE]))
    finally:
        torch.set_num_threads(before)


def test_values_that_are_not_finite_name_the_image(timm_folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "damaged"
    shutil.copytree(timm_folder, folder)
    state = load_file(folder / "model.safetensors")
    state["conv1.0.weight"].fill_(float("nan"))
    save_file(state, folder / "model.safetensors")
    with pytest.raises(EncoderError, match=r"not finite for a\.png"):
        load_encoder(f"timm:{folder}").embed([WIDE], names=["a.png"])


def test_preprocessing_refuses_what_it_cannot_do() -> None:
    good = {"size": (4, 4), "resize": "squash", "resized": (4, 4), "interpolation": "bicubic"}
    statistics = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    for change, message in (
        ({"resize": "stretch"}, "squash, crop"),
        ({"interpolation": "magic"}, "bicubic"),
        ({"resize": "crop", "resized": (4, 5)}, "non-square"),
        ({"size": (5, 5)}, "exceeds"),
    ):
        with pytest.raises(EncoderError, match=message):
            Preprocessing(**{**good, **statistics, **change})  # type: ignore[arg-type]
