"""The degradation probe: its pictures pixel by pixel, its seeds, its statistics against scipy."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import stats

sys.path.append(str(Path(__file__).parents[1] / "tasks"))

from drawn_corpus import draw_corpus

from bcs_lab.audit.degradation import (
    SEVERITIES,
    degrade,
    degraded,
    fitted,
    measure_images,
    probe_images,
    sampled,
    tracking,
)
from bcs_lab.corpus import load_corpus


def picture(seed: int = 0, side: int = 256) -> Image.Image:
    generator = np.random.default_rng(seed)
    small = Image.fromarray(generator.integers(0, 256, (9, 9, 3), dtype=np.uint8))
    return small.resize((side, side), Image.Resampling.BICUBIC)


def mse(one: Image.Image, two: Image.Image) -> float:
    return float(((np.asarray(one, float) - np.asarray(two, float)) ** 2).mean() / 255**2)


@pytest.mark.parametrize("kind", SEVERITIES)
def test_every_severity_takes_more_away(kind: str) -> None:
    image = picture()
    lost = [mse(image, degrade(image, kind, level)) for level in range(4)]
    assert 0 < lost[0] < lost[1] < lost[2] < lost[3]


def test_shift_mirrors_without_repeating_the_edge() -> None:
    image = picture(1)
    pixels = np.asarray(image)
    moved = np.asarray(degrade(image, "shift", 1))  # 8 pixels
    assert (moved[8:, 8:] == pixels[:-8, :-8]).all()
    assert (moved[8:, 7] == pixels[:-8, 1]).all()
    assert (moved[0, 8:] == pixels[8, :-8]).all()


def test_colour_loss_ends_in_grey_and_downsampling_keeps_the_size() -> None:
    grey = np.asarray(degrade(picture(2), "color", 3))
    assert (grey[..., 0] == grey[..., 1]).all()
    assert (grey[..., 1] == grey[..., 2]).all()
    assert degrade(picture(3, 40), "downsample", 3).size == (40, 40)  # an eighth would be 5 pixels: 8 are kept


def test_jpeg_is_pillows_at_that_quality() -> None:
    image = picture(4)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=10)
    assert (np.asarray(Image.open(buffer)) == np.asarray(degrade(image, "jpeg", 3))).all()


def test_noise_is_each_pictures_own_and_the_reference_codes_is_shared() -> None:
    grey, other = Image.new("RGB", (256, 256), (90, 128, 128)), Image.new("RGB", (256, 256), (90, 128, 129))

    def field(image: Image.Image, level: int, **options: object) -> np.ndarray:
        return np.asarray(degrade(image, "noise", level, **options), int)[..., 0] - 90  # type: ignore[arg-type]

    assert (field(grey, 1) == field(grey, 1)).all()
    assert (field(grey, 1) != field(other, 1)).mean() > 0.9
    assert (field(grey, 1) != field(grey, 1, seed=1)).mean() > 0.9
    assert (field(grey, 1, compat="reference") == field(other, 1, compat="reference")).all()
    # independent from one severity to the next, and as strong as it says
    noise = [field(grey, level) / 255 for level in range(2)]
    assert abs(np.corrcoef(noise[0].ravel(), noise[1].ravel())[0, 1]) < 0.02
    assert [own.std() for own in noise] == pytest.approx([0.03, 0.06], rel=0.02)
    assert abs(noise[1].mean()) < 0.002


def test_distinct_references_are_told_by_content(tmp_path: Path) -> None:
    root = draw_corpus(tmp_path / "drawn", concepts=4)
    shutil.copy(root / "images" / "ref0.png", root / "images" / "ref3.png")
    Image.open(root / "images" / "ref1.png").save(root / "images" / "ref2.png", compress_level=0)  # other bytes
    corpus = load_corpus("manifest", root)
    found, counted = probe_images(corpus)
    assert len(found) == 2
    assert counted == {"paths": 4, "repeated": 2, "broken": 0}
    assert [probe.digest for probe in found] == sorted(probe.digest for probe in found)
    by_path, _ = probe_images(corpus, compat="reference")
    assert [probe.path.name for probe in by_path] == ["ref0.png", "ref1.png", "ref2.png", "ref3.png"]
    assert sampled(by_path, 2, compat="reference") == by_path[:2]
    drawn = sampled(by_path, 2, seed=1)
    assert len(set(drawn)) == 2
    assert drawn == sampled(by_path, 2, seed=1)
    assert found[0].open(10**6).size == (256, 256)


def test_values_come_in_the_order_of_the_table() -> None:
    images = [picture(5), picture(6)]
    ((name, values),) = measure_images(images, [lambda a, b: {"mse": np.array(list(map(mse, a, b)))}])
    assert (name, values.shape) == ("mse", (2, 6, 4))
    kinds = list(SEVERITIES)
    assert values[1, kinds.index("blur"), 2] == mse(images[1], degrade(images[1], "blur", 2))
    assert len(degraded(images[0])) == 24
    assert fitted(Image.new("RGB", (300, 200))).size == (256, 256)


def test_pooled_and_per_image_against_scipy() -> None:
    generator = np.random.default_rng(0)
    quality = generator.normal(size=(20, 1)) * 2 - 0.4 * np.arange(4) + 0.3 * generator.normal(size=(20, 4))
    quality = quality.round(1)
    quality[3, 2], quality[4] = np.nan, 1.0
    found = tracking(quality, resamples=300)
    severity = np.broadcast_to(-np.arange(4.0), quality.shape)
    known = ~np.isnan(quality)
    assert found.rho == pytest.approx(stats.spearmanr(quality[known], severity[known])[0])
    own = [stats.spearmanr(q[~np.isnan(q)], -np.arange(4.0)[~np.isnan(q)])[0] for i, q in enumerate(quality) if i != 4]
    assert found.per_image == pytest.approx(np.mean(own))
    assert (found.images, found.still_images) == (20, 1)
    assert found.reading == "steadier"
    assert found.rho_interval[0] < found.rho < found.rho_interval[1]
    assert found.means == pytest.approx(
        [np.nanmean(((stats.rankdata(quality, nan_policy="omit") - 1) / (known.sum() - 1)).reshape(20, 4)[:, k])
         for k in range(4)]
    )  # fmt: skip


def test_undefined_tracking_has_its_reason() -> None:
    assert tracking(np.full((3, 4), np.nan)).reason == "no image has a value"
    still = tracking(np.full((3, 4), 0.5), resamples=100)
    assert (still.rho, still.per_image, still.still_images) == (None, None, 3)
    assert "the same for every image" in still.reason
    with pytest.raises(ValueError, match=r"\[n_images, 4\]"):
        tracking(np.zeros((3, 5)))
