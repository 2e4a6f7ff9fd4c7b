"""Training on corpora that are made: the demo, and a folder of pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bcs_lab.corpus.demo import make as demo
from bcs_lab.corpus.demo.plan import plan_demo

FAST = ("trainer=debug", "seeds=[7]", "logger=none", "bootstrap.resamples=100")


@pytest.fixture
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "plan_demo", lambda size, seed: plan_demo(size, seed)[::20])


def trained(bcs: Callable[..., int], *arguments: str) -> tuple[Path, dict[str, object]]:
    folder = Path("here").resolve()
    assert bcs("train", *FAST, f"hydra.run.dir={folder}", *arguments) == 0
    return folder, json.loads((folder / "metrics.json").read_text())


@pytest.mark.usefixtures("_tiny")
def test_training_on_the_demo(bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    _, metrics = trained(bcs, "corpus=demo", "encoder=lowlevel", "teachers=[internvl3,ovis2]")
    assert metrics["simulated_teachers"] is True
    assert metrics["teachers"] == ["internvl3", "ovis2"]
    assert metrics["encoders"] == ["lowlevel"]
    assert "simulated" in capsys.readouterr().out.lower()


@pytest.mark.usefixtures("_tiny")
def test_an_encoder_that_cannot_be_had_is_stood_in_for(
    bcs: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    folder, metrics = trained(bcs, "corpus=demo", "encoder=dinov3")
    assert metrics["stand_in"] is True
    assert metrics["encoders"] == ["dinov3 (stand-in lowlevel)"]
    assert "dinov3 (stand-in lowlevel)" in (folder / "results.txt").read_text()


def test_training_on_a_folder_of_pictures(
    bcs: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    for concept in "abcdef":
        (tmp_path / "photos" / concept).mkdir(parents=True)
        for i in range(2):
            pixels = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / concept / f"{i}.png")
    (tmp_path / "photos" / "a" / "torn.jpg").write_bytes(b"\xff\xd8\xff")
    images = f"corpus.images={tmp_path / 'photos'}"
    assert bcs("train", *FAST, "corpus=simulated", images, "encoder=lowlevel") == 2
    assert "a/torn.jpg" in capsys.readouterr().err
    folder, metrics = trained(bcs, "corpus=simulated", images, "encoder=lowlevel", "corpus.on_bad_row=skip")
    assert metrics["simulated_teachers"] is True
    assert metrics["stand_in"] is False
    assert (folder / "skipped.csv").read_text().count("a/torn.jpg") == 1
    # A picture folder is the user's own: no stand-ins.
    assert bcs("train", *FAST, "corpus=simulated", images, "encoder=dinov3", "corpus.on_bad_row=skip") == 2
