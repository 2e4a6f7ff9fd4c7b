"""Networks of the metrics: the real loading code on random weights, against the libraries and formulas of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audit_pictures import flat, scene
from PIL import Image, ImageOps
from small_networks import WORDS, bert_folder, blip_folder, features_file, reward_file

from bcs_lab.audit.metrics import MetricUnavailable, load_metric

PAIRS = [(scene(1), scene(2)), (scene(3, (90, 200)), scene(4, (64, 64))), (scene(5), scene(5)), (flat(0), flat(255))]


@pytest.fixture(scope="module")
def torch_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Torch's cache with files under the names of torchvision's server."""
    home = tmp_path_factory.mktemp("torch")
    features_file("alexnet", home / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth")
    features_file("vgg16", home / "hub" / "checkpoints" / "vgg16-397923af.pth", 1)
    return home


@pytest.fixture
def cached(torch_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(torch_home))
    return torch_home / "hub" / "checkpoints"


def unit(image: Image.Image) -> torch.Tensor:
    fitted = ImageOps.fit(image, (256, 256), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(fitted).astype(np.float32) / 255).permute(2, 0, 1)[None]


def lpips_by_hand(weights: dict[str, torch.Tensor], one: torch.Tensor, two: torch.Tensor) -> float:
    """From pixels in -1 to 1: five layers of AlexNet, unit channels, weighted squared differences, means."""
    import torchmetrics.functional.image.lpips as library

    heads = torch.load(Path(library.__file__).parent / "lpips_models" / "alex.pth", "cpu", weights_only=True)
    shift, scale = torch.tensor([-0.030, -0.088, -0.188]), torch.tensor([0.458, 0.448, 0.450])
    layers = [(0, 4, 2), (3, 1, 2), (6, 1, 1), (8, 1, 1), (10, 1, 1)]  # index, stride, padding

    def maps(image: torch.Tensor) -> list[np.ndarray]:
        x = (image - shift[None, :, None, None]) / scale[None, :, None, None]
        out = []
        for number, (index, stride, padding) in enumerate(layers):
            x = torch.nn.functional.conv2d(
                x, weights[f"features.{index}.weight"], weights[f"features.{index}.bias"], stride, padding
            ).relu()
            out.append(x[0].double().numpy())
            if number < 2:
                x = torch.nn.functional.max_pool2d(x, 3, 2)
        return out

    total = 0.0
    for number, (a, b) in enumerate(zip(maps(one), maps(two), strict=True)):
        a, b = (m / np.sqrt(1e-8 + (m**2).sum(axis=0)) for m in (a, b))
        weight = heads[f"lin{number}.model.1.weight"].double().numpy().ravel()
        total += float((weight[:, None, None] * (a - b) ** 2).sum(axis=0).mean())
    return total


def test_lpips_is_its_formula_and_torchmetrics(cached: Path) -> None:
    metric = load_metric("lpips", device="cpu")
    weights = torch.load(cached / "alexnet-owt-7be5be79.pth", weights_only=True)
    values = metric.compute(*(list(side) for side in zip(*PAIRS, strict=True)))
    network: Any = metric.family.network
    for value, (one, two) in zip(values, PAIRS, strict=True):
        a, b = 2 * unit(one) - 1, 2 * unit(two) - 1
        assert value == pytest.approx(lpips_by_hand(weights, a, b), rel=2e-4, abs=1e-7)
        with torch.inference_mode():
            assert value == pytest.approx(float(network(a, b)), rel=1e-5, abs=1e-8)
    assert values[2] == 0.0


def test_dists_is_torchmetrics(cached: Path) -> None:
    metric = load_metric("dists", device="cpu")
    network: Any = metric.family.network
    values = metric.compute(*(list(side) for side in zip(*PAIRS[:3], strict=True)))
    for value, (one, two) in zip(values, PAIRS[:3], strict=True):
        with torch.inference_mode():
            assert value == pytest.approx(float(network(unit(one), unit(two))), abs=2e-4)
    assert values[2] == pytest.approx(0.0, abs=1e-6)
    # The weights of structure and texture are the published ones, not random.
    assert float(network.alpha.sum() + network.beta.sum()) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize(
    ("name", "compat", "wanted"),
    [
        ("lpips", "correct", (-1.0, 1.0)),
        ("dists", "correct", (0.0, 1.0)),
        ("lpips", "reference", (0.0, 1.0)),
        ("dists", "reference", (-1.0, 1.0)),
    ],
)
def test_ranges_d05(cached: Path, name: str, compat: str, wanted: tuple[float, float]) -> None:
    metric = load_metric(name, device="cpu", compat=compat)
    seen: list[torch.Tensor] = []

    def record(images: torch.Tensor) -> list[torch.Tensor]:
        seen.append(images)
        return [images]

    metric.family._maps = record  # type: ignore[attr-defined]
    metric.describe([flat(0), flat(255), flat((255, 0, 0))])
    inputs = torch.cat(seen)
    assert (float(inputs.min()), float(inputs.max())) == wanted
    assert inputs.dtype == torch.float32
    assert tuple(inputs.shape) == (3, 3, 256, 256)
    assert inputs[2].mean(dim=(1, 2)).tolist() == [wanted[1], wanted[0], wanted[0]]


def test_weights_decide_the_identity(cached: Path, tmp_path: Path) -> None:
    features_file("alexnet", tmp_path / "other.pth", seed=9)
    one = load_metric("lpips", device="cpu").identity
    two = load_metric("lpips", options={"source": str(tmp_path / "other.pth")}, device="cpu").identity
    assert one != two
    assert str(tmp_path) not in str(two)


def test_values_do_not_depend_on_the_batch(cached: Path) -> None:
    metric = load_metric("lpips", device="cpu")
    ones, twos = (list(side) for side in zip(*PAIRS, strict=True))
    apart = [metric.compute([one], [two])[0] for one, two in zip(ones, twos, strict=True)]
    np.testing.assert_array_equal(metric.compute(ones, twos), apart)


# --- DreamSim --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_dreamsim_is_its_package(tmp_path: Path) -> None:
    dreamsim = pytest.importorskip("dreamsim")
    peft = pytest.importorskip("peft")
    from dreamsim.config import dreamsim_args
    from dreamsim.feature_extraction.vision_transformer import vit_base

    torch.manual_seed(0)
    tower = vit_base(patch_size=32)
    tower.pos_drop = torch.nn.LayerNorm(tower.embed_dim)
    state = {
        key: torch.randn(value.shape) * 0.03 if value.ndim > 1 else value for key, value in tower.state_dict().items()
    }
    state["proj"] = torch.randn(768, 512) * 0.03
    torch.save({"state_dict": state}, tmp_path / "clip_vitb32_pretrain.pth.tar")
    settings = dreamsim_args["model_config"]["clip_vitb32"]
    plain = dreamsim.model.PerceptualModel(**settings, device="cpu", load_dir=str(tmp_path), normalize_embeds=True)
    adapted = peft.get_peft_model(plain, peft.LoraConfig(r=4, target_modules=["qkv"]))
    adapted.save_pretrained(tmp_path / "clip_vitb32_single_lora")
    cache = torch.hub.get_dir()
    metric = load_metric("dreamsim", options={"type": "clip_vitb32", "source": str(tmp_path)}, device="cpu")
    assert torch.hub.get_dir() == cache
    one, two = scene(1), scene(2)
    values = metric.compute([one, one], [two, one])
    network, prepare = dreamsim.dreamsim(device="cpu", cache_dir=str(tmp_path), dreamsim_type="clip_vitb32")
    with torch.inference_mode():
        assert values[0] == pytest.approx(float(network(prepare(one), prepare(two))), abs=1e-6)
    assert values[1] == pytest.approx(0.0, abs=1e-6)


# --- PieAPP ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_pieapp_is_piq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    piq = pytest.importorskip("piq.pieapp")
    torch.manual_seed(0)
    model = piq.PieAPPModel()
    state = dict(model.state_dict())
    state["ref_score_subtract.weight"] = state["ref_score_subtract.weight"].squeeze(1)  # as the published file has it
    file = tmp_path / "hub" / "checkpoints" / "PieAPPv0.1.pth"
    file.parent.mkdir(parents=True)
    torch.save(state, file)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    metric = load_metric("pieapp", device="cpu")
    one, two = scene(1, (110, 96)), scene(2, (110, 96))
    library = piq.PieAPP(reduction="none")  # finds the same file in torch's cache
    pixels = [torch.from_numpy(np.asarray(im).astype(np.float32) / 255).permute(2, 0, 1)[None] for im in (one, two)]
    assert metric.compute([one], [two])[0] == pytest.approx(float(library(pixels[1], pixels[0])), rel=1e-5)
    # Neither resized nor cropped: sizes must agree.
    values = metric.compare(metric.describe([one]), metric.describe([scene(3, (64, 64))]))
    assert np.isnan(values.values[0])
    assert "110 x 96 and 64 x 64" in values.reasons[0]
    small = metric.compare(metric.describe([flat(1, (32, 32))]), metric.describe([flat(2, (32, 32))]))
    assert "at least 64" in small.reasons[0]


# --- captions --------------------------------------------------------------------------------------------------------


def test_blip_sbert_is_the_cosine_of_captions(tmp_path: Path) -> None:
    from bcs_lab.audit.captions import clean_caption
    from bcs_lab.audit.metrics.blip import load_captioner
    from bcs_lab.rationales import load_sentence_encoder

    folder = blip_folder(tmp_path / "blip")
    metric = load_metric("blip_sbert", options={"captioner": str(folder)}, device="cpu")
    captioner, encoder = load_captioner(folder, device="cpu"), load_sentence_encoder("auto", "cpu")
    pictures = [scene(1), scene(2), flat(0), flat((250, 0, 0))]
    said = [clean_caption(text) for text in captioner.caption(pictures)]
    assert all(said)
    assert len(set(said)) > 1
    path = tmp_path / "picture.png"
    pictures[0].save(path)
    assert captioner.caption_files([path]) == captioner.caption(pictures[:1])
    values = metric.compare(metric.describe(pictures[:2]), metric.describe(pictures[2:]))
    vectors = encoder.embed(said).astype(np.float64)
    for at in range(2):
        assert values.values[at] == pytest.approx(vectors[at] @ vectors[at + 2], abs=1e-6)
    assert metric.compute(pictures[:1], pictures[:1])[0] == 1.0
    mute = type("Mute", (), {"caption": lambda self, images: ["."] * len(images)})()
    metric.family.captioner = mute  # type: ignore[attr-defined]
    silent = metric.compare(metric.describe(pictures[:1]), metric.describe(pictures[1:2]))
    assert np.isnan(silent.values[0])
    assert "nothing" in silent.reasons[0]


def test_image_reward_is_its_formula(tmp_path: Path) -> None:
    tensors = reward_file(tmp_path / "ImageReward.pt")
    options = {
        "source": str(tmp_path / "ImageReward.pt"), "tokenizer": str(bert_folder(tmp_path / "bert")),
        "captioner": str(blip_folder(tmp_path / "blip")),
    }  # fmt: skip
    metric = load_metric("imagereward", options=options, device="cpu")
    family: Any = metric.family
    family.captioner = type("Says", (), {"caption": lambda self, images: ["A dog, on the boat!"] * len(images)})()
    image = scene(1, (50, 40))
    value = metric.compute([scene(2)], [image])[0]
    assert value == pytest.approx(reward_by_hand(tensors, image), rel=1e-3, abs=1e-4)
    family.captioner = type("Mute", (), {"caption": lambda self, images: [" ."] * len(images)})()
    assert np.isnan(metric.compute([scene(2)], [image])[0])


def reward_by_hand(tensors: dict[str, torch.Tensor], image: Image.Image) -> float:
    """The published network in plain torch: pre-norm vision transformer, BERT with cross attention, linear layers."""
    from torch.nn.functional import gelu, layer_norm, linear

    size = 32
    scale = size / min(image.size)
    resized = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = round((resized.width - size) / 2), round((resized.height - size) / 2)
    pixels = np.asarray(resized.crop((left, top, left + size, top + size))).astype(np.float32) / 255
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    x = torch.from_numpy(((pixels - np.float32(mean)) / np.float32(std)).transpose(2, 0, 1))[None]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5  # one head of 64
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -torch.inf)
        return scores.softmax(dim=-1) @ v

    see = {key.removeprefix("blip.visual_encoder."): value for key, value in tensors.items()}

    def lin(source: dict[str, torch.Tensor], name: str, value: torch.Tensor) -> torch.Tensor:
        return linear(value, source[f"{name}.weight"], source[f"{name}.bias"])

    def norm(source: dict[str, torch.Tensor], name: str, value: torch.Tensor, eps: float) -> torch.Tensor:
        return layer_norm(value, value.shape[-1:], source[f"{name}.weight"], source[f"{name}.bias"], eps)

    patches = torch.nn.functional.conv2d(x, see["patch_embed.proj.weight"], see["patch_embed.proj.bias"], 16)
    h = torch.cat([see["cls_token"], patches.flatten(2).transpose(1, 2)], dim=1) + see["pos_embed"]
    for at in range(2):
        q, k, v = lin(see, f"blocks.{at}.attn.qkv", norm(see, f"blocks.{at}.norm1", h, 1e-6)).chunk(3, dim=-1)
        h = h + lin(see, f"blocks.{at}.attn.proj", attend(q, k, v))
        inner = gelu(lin(see, f"blocks.{at}.mlp.fc1", norm(see, f"blocks.{at}.norm2", h, 1e-6)))
        h = h + lin(see, f"blocks.{at}.mlp.fc2", inner)
    seen = norm(see, "norm", h, 1e-6)

    text = {key.removeprefix("blip.text_encoder."): value for key, value in tensors.items()}
    tokens = [WORDS.index(word) for word in ["[CLS]", "a", "dog", "on", "the", "boat", "[SEP]"]]
    ids = torch.tensor(tokens + [0] * (35 - len(tokens)))
    mask = torch.tensor([1] * len(tokens) + [0] * (35 - len(tokens)))
    h = text["embeddings.word_embeddings.weight"][ids] + text["embeddings.position_embeddings.weight"][:35]
    h = norm(text, "embeddings.LayerNorm", h, 1e-12)[None]
    for at in range(2):
        for kind, source in (("attention", None), ("crossattention", seen)):
            base = f"encoder.layer.{at}.{kind}."
            other = h if source is None else source
            q, k, v = lin(text, base + "self.query", h), lin(text, base + "self.key", other), None
            v = lin(text, base + "self.value", other)
            out = attend(q, k, v, mask if source is None else None)
            h = norm(text, base + "output.LayerNorm", lin(text, base + "output.dense", out) + h, 1e-12)
        base = f"encoder.layer.{at}."
        out = lin(text, base + "output.dense", gelu(lin(text, base + "intermediate.dense", h)))
        h = norm(text, base + "output.LayerNorm", out + h, 1e-12)
    reward = h[:, 0]
    for place in "02467":
        reward = lin(tensors, f"mlp.layers.{place}", reward)
    return (float(reward) - 0.16717362830052426) / 1.0333394966054072


def test_a_file_that_is_no_image_reward(tmp_path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, tmp_path / "ImageReward.pt")
    options = {
        "source": str(tmp_path / "ImageReward.pt"), "tokenizer": str(bert_folder(tmp_path / "bert")),
        "captioner": str(blip_folder(tmp_path / "blip")),
    }  # fmt: skip
    with pytest.raises(MetricUnavailable, match="no checkpoint of ImageReward"):
        load_metric("imagereward", options=options, device="cpu")


# --- BCS -------------------------------------------------------------------------------------------------------------


def test_bcs_is_the_evaluator(tmp_path: Path) -> None:
    from tiny_model import tiny_ensemble

    from bcs_lab.audit.metrics import load_metrics
    from bcs_lab.score import BCS

    tiny_ensemble(["lowlevel"]).save(tmp_path / "model")
    options = {"bcs": {"model": str(tmp_path / "model")}}
    metrics, unavailable = load_metrics(["bcs"], options=options, device="cpu")
    assert not unavailable
    assert [metric.spec.name for metric in metrics] == ["bcs_pas", "bcs_sas"]
    assert metrics[0].family is metrics[1].family
    ones, twos = [scene(1), scene(2)], [scene(3), scene(4)]
    score = BCS.load(tmp_path / "model", device="cpu", options={}).score(ones, twos)
    np.testing.assert_allclose(metrics[0].compute(ones, twos), score.t_pas)
    np.testing.assert_allclose(metrics[1].compute(ones, twos), score.t_sas)
    with pytest.raises(MetricUnavailable, match="no such folder"):
        load_metric("bcs_pas", options={"model": str(tmp_path / "none")})
