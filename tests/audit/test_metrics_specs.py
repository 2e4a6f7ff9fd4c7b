"""What the metrics say about themselves, and what happens when one cannot run."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml
from audit_pictures import scene

from bcs_lab.audit.metrics import (
    LOADERS,
    MetricUnavailable,
    expand,
    list_metrics,
    load_metric,
    load_metrics,
    metric_spec,
)
from bcs_lab.catalogue import choices, config_dir
from bcs_lab.errors import ConfigError

NAMES = {
    "mse", "psnr", "ssim", "pixcorr", "edge_cosine", "color_histogram", "lpips", "dists", "dreamsim", "openclip",
    "dinov2", "topiq_fr", "pieapp", "imagereward", "blip_sbert", "clip_l14", "siglip", "alexnet2", "alexnet5",
    "inception", "clip", "efficientnet_b", "swav", "bcs_pas", "bcs_sas",
}  # fmt: skip
#: As the published tables orient them.
LOWER = {"mse", "lpips", "dists", "dreamsim", "pieapp", "efficientnet_b", "swav"}


def test_every_metric_declares_itself() -> None:
    specs = list_metrics()
    assert {spec.name for spec in specs} == NAMES == set(choices("metric"))
    assert {spec.name for spec in specs if not spec.higher_is_better} == LOWER
    for spec in specs:
        assert spec.title
        assert spec.input.startswith("RGB")
        assert spec.library
        assert spec.licence
        assert spec.loader in LOADERS
        assert spec.sign == (1 if spec.higher_is_better else -1)
        first = (config_dir() / "metric" / f"{spec.name}.yaml").read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith("# ")
    assert [spec.name for spec in specs[:3]] == ["mse", "psnr", "ssim"]
    assert [spec.kind for spec in specs] == sorted(
        (spec.kind for spec in specs), key=["pixel", "network", "set", "caption", "model"].index
    )
    assert {name for name in NAMES if metric_spec(name).kind == "set"} == {
        "alexnet2", "alexnet5", "inception", "clip", "efficientnet_b", "swav"
    }  # fmt: skip
    assert {spec.name for spec in specs if spec.needs_captions} == {"imagereward", "blip_sbert"}


def test_names_of_the_papers_tables() -> None:
    table12 = {"mse", "psnr", "ssim", "lpips", "dists", "dreamsim", "openclip", "dinov2", "topiq_fr", "pieapp",
               "imagereward", "blip_sbert"}  # fmt: skip
    table2 = {"mse", "psnr", "ssim", "edge_cosine", "color_histogram", "clip", "siglip"}
    assert table12 | table2 == {spec.paper for spec in list_metrics() if spec.paper}
    assert metric_spec("clip_l14").paper == "clip"


def test_files_hold_plain_data() -> None:
    for path in (config_dir() / "metric").glob("*.yaml"):
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert values["name"] == path.stem


def test_unknown_names_and_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean ssim"):
        load_metric("sssim")
    with pytest.raises(ConfigError, match="windw"):
        load_metric("ssim", options={"windw": "gaussian"})
    with pytest.raises(ConfigError, match="window to be"):
        load_metric("ssim", options={"window": "square"})
    with pytest.raises(ConfigError, match="compat"):
        load_metric("ssim", compat="published")
    with pytest.raises(ConfigError, match=r"nope[\s\S]*nada"):
        expand(["nope", "ssim", "nada"])


def test_cosine_of_an_encoder() -> None:
    spec = metric_spec("cosine:efficientnet_lite0")
    assert (spec.kind, spec.higher_is_better, spec.licence) == ("network", True, "Apache-2.0")
    one, two = scene(1), scene(2)
    metric = load_metric("cosine:lowlevel", device="cpu")
    from bcs_lab.encoders import load_encoder

    vectors = load_encoder("lowlevel").embed([one, two]).astype(np.float64)
    assert metric.compute([one], [two])[0] == pytest.approx(vectors[0] @ vectors[1], abs=1e-6)
    assert metric.compute([one], [one])[0] == 1.0
    with pytest.raises(MetricUnavailable, match="Unknown encoder"):
        load_metric("cosine:nothing_known")


def test_cosine_of_a_group_is_the_mean_of_its_networks() -> None:
    one, two = scene(1), scene(2)
    small = {"image_size": 64}
    parts = [
        load_metric(f"cosine:{name}", options=small, device="cpu").compute([one], [two])[0]
        for name in ("efficientnet_lite2", "efficientnet_lite0")
    ]
    options = {"efficientnet_lite2": small, "efficientnet_lite0": small}
    mean = load_metric("cosine:embedded", options=options, device="cpu").compute([one], [two])[0]
    assert mean == pytest.approx(np.mean(parts), abs=1e-12)
    assert "lowlevel" not in str(load_metric("cosine:embedded", options=options, device="cpu").identity)


def test_what_cannot_run_is_named_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    names = ["lpips", "mse", "dists", "openclip", "dinov2", "blip_sbert", "imagereward", "pieapp", "alexnet2", "swav"]
    metrics, unavailable = load_metrics(names, device="cpu")
    assert [metric.spec.name for metric in metrics] == ["mse"]
    assert set(unavailable) == set(names) - {"mse"}
    assert "alexnet-owt" in unavailable["lpips"]
    assert "source" in unavailable["lpips"]
    assert "vgg16" in unavailable["dists"]
    assert "laion" in unavailable["openclip"]
    assert all("\n" not in reason for reason in unavailable.values())


@pytest.mark.skipif(find_spec("pyiqa") is not None, reason="pyiqa is installed here")
def test_pyiqa_is_never_taken_for_granted() -> None:
    with pytest.raises(MetricUnavailable, match="non-commercial"):
        load_metric("topiq_fr")
    with pytest.raises(MetricUnavailable, match="pyiqa"):
        load_metric("pieapp", compat="reference")


def test_a_local_copy_that_is_not_there_or_is_another(tmp_path: Path) -> None:
    import torch

    with pytest.raises(MetricUnavailable, match="expected a weight file"):
        load_metric("lpips", options={"source": str(tmp_path / "none.pth")})
    (tmp_path / "text.pth").write_text("no weights")
    with pytest.raises(MetricUnavailable, match="cannot be read as tensors"):
        load_metric("lpips", options={"source": str(tmp_path / "text.pth")})
    torch.save({"features.0.weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(MetricUnavailable, match="names are missing"):
        load_metric("lpips", options={"source": str(tmp_path / "other.pth")})
