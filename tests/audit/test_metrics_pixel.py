"""Pixel metrics against scikit-image, scipy and numpy, on natural and degenerate pictures (cases D03, D04, D06)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from audit_pictures import flat, scene
from PIL import Image, ImageOps
from scipy import ndimage
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity

from bcs_lab.audit.metrics import load_metric, load_metrics
from bcs_lab.audit.metrics.pixel import NAMES, PixelFamily
from bcs_lab.corpus.images import load_image
from bcs_lab.encoders import load_encoder
from bcs_lab.files import json_safe


def fitted(image: Image.Image) -> np.ndarray:
    return np.asarray(ImageOps.fit(image, (256, 256), Image.Resampling.LANCZOS))


def expected(one: Image.Image, two: Image.Image) -> dict[str, float]:
    """The same definitions, one pair at a time, by other libraries."""
    a, b = fitted(one), fitted(two)
    x, y = a / 255, b / 255
    with np.errstate(divide="ignore", invalid="ignore"):
        psnr = peak_signal_noise_ratio(x, y, data_range=1)
    correlation = np.nan if np.ptp(a) == 0 or np.ptp(b) == 0 else np.corrcoef(a.ravel(), b.ravel())[0, 1]
    edges = []
    for image in (a, b):
        grey = np.asarray(Image.fromarray(image).convert("L")).astype(np.float64)
        edges.append(np.concatenate([ndimage.sobel(grey, axis=k, mode="mirror").ravel() for k in (1, 0)]))
    lengths = [np.linalg.norm(edge) for edge in edges]
    cosine = 0.0 if min(lengths) == 0 else float(edges[0] @ edges[1] / np.prod(lengths))
    bins = [np.histogramdd(image.reshape(-1, 3), bins=(8,) * 3, range=((0, 256),) * 3)[0] / 256**2 for image in (a, b)]
    return {
        "mse": mean_squared_error(x, y),
        "psnr": psnr,
        "ssim": structural_similarity(x, y, data_range=1, channel_axis=2),
        "pixcorr": correlation,
        "edge_cosine": np.nan if max(lengths) == 0 else cosine,
        "color_histogram": np.minimum(*bins).sum(),
    }


def native(name: str, one: Image.Image, two: Image.Image) -> float:
    """The metric of two pictures as they are."""
    family = PixelFamily()
    features = family.features([np.asarray(one), np.asarray(two)])
    return float(family.compare([name], features[:1], features[1:])[name].values[0])


PAIRS = {
    "natural": (scene(1), scene(2)),
    "alike": (scene(1), Image.blend(scene(1), scene(2), 0.2)),
    "inverted": (scene(3), ImageOps.invert(scene(3))),
    "constant": (flat(100), flat(150)),
    "one constant": (scene(4), flat((200, 30, 60))),
    "black and white": (flat(0), flat(255)),
    "tiny": (scene(5, (3, 5)), scene(6, (8, 2))),
    "one pixel": (flat(10, (1, 1)), scene(7, (9, 9))),
    "non-square": (scene(8, (400, 90)), scene(9, (70, 333))),
    "square": (scene(10, (256, 256)), scene(11, (256, 256))),
    "identical": (scene(12), scene(12)),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_pixel_metrics_equal_other_libraries(kind: str) -> None:
    one, two = PAIRS[kind]
    wanted = expected(one, two)
    metrics, unavailable = load_metrics(NAMES)
    assert not unavailable
    assert [metric.spec.name for metric in metrics] == list(NAMES)
    for metric in metrics:
        value = metric.compute([one], [two])[0]
        assert value == pytest.approx(wanted[metric.spec.name], abs=2e-7, nan_ok=True), metric.spec.name


def test_a_batch_gives_what_single_pairs_give() -> None:
    ones, twos = (list(side) for side in zip(*PAIRS.values(), strict=True))
    for name in NAMES:
        metric = load_metric(name)
        together = metric.compute(ones, twos)
        apart = [metric.compute([one], [two])[0] for one, two in zip(ones, twos, strict=True)]
        np.testing.assert_array_equal(together, apart)


def test_gaussian_window_is_scikit_images() -> None:
    metric = load_metric("ssim", options={"window": "gaussian"})
    for one, two in PAIRS.values():
        value = metric.compute([one], [two])[0]
        wanted = structural_similarity(
            fitted(one) / 255, fitted(two) / 255, data_range=1, channel_axis=2, gaussian_weights=True, sigma=1.5,
            use_sample_covariance=False,
        )  # fmt: skip
        assert value == pytest.approx(wanted, abs=1e-9)


def test_constant_pictures_d03() -> None:
    one, two = flat(100), flat(150)
    found = {name: load_metric(name) for name in NAMES}
    assert found["mse"].compute([one], [two])[0] * 255**2 == pytest.approx(2500, rel=1e-12)
    assert found["psnr"].compute([one], [two])[0] == pytest.approx(14.1514, abs=1e-4)
    assert found["ssim"].compute([one], [two])[0] == pytest.approx(0.923092, abs=1e-6)
    metric = found["pixcorr"]
    values = metric.compare(metric.describe([one]), metric.describe([two]))
    assert np.isnan(values.values[0])
    assert "constant" in values.reasons[0]
    base = scene(20, (96, 64))
    inverted = ImageOps.invert(base)
    # In their own pixels, without the square, the correlation is exact.
    assert native("pixcorr", base, inverted) == -1.0
    wanted = structural_similarity(
        np.asarray(base) / 255, np.asarray(inverted) / 255, data_range=1, channel_axis=2
    )  # fmt: skip
    assert native("ssim", base, inverted) == pytest.approx(wanted, abs=1e-7)
    assert wanted < -0.3
    assert metric.compute([base], [inverted])[0] == pytest.approx(-1.0, abs=1e-3)


def test_identical_pictures_d04() -> None:
    one, two = scene(21, (96, 64)), scene(21, (96, 64))
    assert load_metric("mse").compute([one], [two])[0] == 0
    assert load_metric("psnr").compute([one], [two])[0] == math.inf
    assert load_metric("psnr", compat="reference").compute([one], [two])[0] == 100.0
    assert load_metric("ssim").compute([one], [two])[0] == 1.0
    text = json.dumps(json_safe({"psnr": load_metric("psnr").compute([one], [two])}), allow_nan=False)
    assert json.loads(text) == {"psnr": [None]}
    capped = np.array([load_metric("psnr", compat="reference").compute([one], [two])[0], 20.0, 30.0])
    assert capped.mean() == 50.0
    apart = np.array([load_metric("psnr").compute([one], [two])[0], 20.0, 30.0])
    assert apart[np.isfinite(apart)].mean() == 25.0


def test_colour_order_d06(tmp_path: Path) -> None:
    # A quarter blue, the rest orange: mean (160, 105, 85).
    pixels = np.full((32, 32, 3), (200, 120, 40), dtype=np.uint8)
    pixels[:16, :16] = (40, 60, 220)
    path = tmp_path / "colour.png"
    Image.fromarray(pixels).save(path)
    right, wrong = load_image(path), Image.fromarray(pixels[:, :, ::-1].copy())
    assert native("mse", right, wrong) * 255**2 == pytest.approx(18200, rel=1e-12)
    assert native("psnr", right, wrong) == pytest.approx(5.5301, abs=1e-4)
    assert load_metric("mse").compute([right], [wrong])[0] * 255**2 > 10_000
    assert load_metric("mse").compute([right], [Image.open(path).convert("RGB")])[0] == 0
    # The metrics' square and an encoder's input hold the same colours in the same order.
    square = load_metric("mse").prepare(right)
    assert square.reshape(-1, 3).mean(axis=0).round().astype(int).tolist() == [160, 105, 85]
    encoder = load_encoder("efficientnet_lite0", device="cpu")
    assert np.argsort(encoder.prepare(right).mean(axis=(1, 2))).tolist() == [2, 1, 0]


def test_edges_where_there_are_none() -> None:
    correct, reference = load_metric("edge_cosine"), load_metric("edge_cosine", compat="reference")
    values = correct.compare(correct.describe([flat(10)]), correct.describe([flat(90)]))
    assert np.isnan(values.values[0])
    assert "edge" in values.reasons[0]
    assert reference.compute([flat(10)], [flat(90)])[0] == 0.0
    assert correct.compute([flat(10)], [scene(1)])[0] == 0.0


def test_compat_changes_the_identity() -> None:
    one, two = load_metric("psnr").identity, load_metric("psnr", compat="reference").identity
    assert one != two
    assert load_metric("ssim").identity != load_metric("ssim", options={"window": "gaussian"}).identity
