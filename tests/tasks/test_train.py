"""``bcs train`` from the command line: files, numbers, sweeps, and bad input."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import yaml
from drawn_corpus import draw_corpus, only

from bcs_lab.corpus import load_corpus
from bcs_lab.ensemble import Ensemble
from bcs_lab.evaluate import METRICS
from bcs_lab.teachers.protocol import BCS12

FAST = ("trainer=debug", "seeds=[7,13]", "logger=none", "bootstrap.resamples=100")
METRIC_KEYS = {
    "ensemble",
    "ci95",
    "members",
    "baseline",
    "baselines",
    "n",
    "encoders",
    "stand_in",
    "simulated_teachers",
    "teachers",
    "head",
    "split",
    "wall_s",
}


def strict(path: Path) -> Any:
    """JSON that holds no NaN or Infinity."""

    def refuse(token: str) -> float:
        raise ValueError(token)

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def trained(*arguments: str, bcs: Callable[..., int]) -> tuple[Path, Any]:
    assert bcs("train", *FAST, *arguments) == 0
    folder = max(Path("runs/train").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return folder, strict(folder / "metrics.json")


@pytest.mark.parametrize("head", ["continuous", "ordinal", "prototype", "coral", "mlp"])
def test_files_and_numbers_of_a_run(head: str, bcs: Callable[..., int]) -> None:
    folder, metrics = trained(f"head={head}", bcs=bcs)
    assert set(metrics) == METRIC_KEYS
    for name in (
        "predictions.parquet",
        "split.parquet",
        "config.yaml",
        "results.txt",
        "curves.csv",
        "training_curves.png",
        "prediction_vs_consensus.png",
        "ensemble/ensemble.json",
        "ensemble/member-7.safetensors",
        "ensemble/member-13.safetensors",
    ):
        assert (folder / name).is_file(), name
    assert set(metrics["ensemble"]) == set(metrics["ci95"]) == set(metrics["baseline"]) == set(METRICS)
    assert [member["seed"] for member in metrics["members"]] == [7, 13]
    assert metrics["encoders"] == ["efficientnet_lite2", "efficientnet_lite0", "lowlevel"]
    assert metrics["teachers"] == ["literal", "conservative", "lenient", "decisive"]
    assert (metrics["stand_in"], metrics["simulated_teachers"]) == (False, False)
    assert (metrics["head"], metrics["split"]) == (head, "concept")
    assert sum(metrics["n"].values()) == 311
    assert any(name.startswith("cosine efficientnet_lite0") for name in metrics["baselines"])
    assert "features" not in metrics  # said only where they are not the paper's
    corpus = load_corpus("brainbank")
    lite = [corpus.shipped[name] for name in ("efficientnet_lite0", "efficientnet_lite2")]
    images = [np.asarray(part.images, dtype=float) for part in lite]
    cosine = np.mean(
        [np.sum(i[p.reference] * i[p.reconstruction], axis=1) for i, p in zip(images, lite, strict=True)], axis=0
    )
    held = (pd.read_parquet(folder / "split.parquet")["split"] == "test").to_numpy()
    perceptual = pd.read_parquet(folder / "predictions.parquet")["t_pas_target"].to_numpy()
    rho = scipy.stats.spearmanr(cosine[held], perceptual[held]).statistic
    assert metrics["baselines"]["cosine mean"]["pas_rho"] == pytest.approx(rho, abs=2e-3)
    assert metrics["baselines"]["cosine mean"]["pas_mae"] is None
    assert metrics["baselines"]["cosine mean, fitted"]["pas_rho"] is not None
    assert all(set(values) == set(METRICS) for values in metrics["baselines"].values())
    assert yaml.safe_load((folder / "config.yaml").read_text())["head"]["name"] == head

    frame = pd.read_parquet(folder / "predictions.parquet")
    test = frame[frame["split"] == "test"]
    assert len(frame) == 311
    assert len(test) == metrics["n"]["test"]
    recomputed = {}
    target = test[[f"{question}_target" for question in BCS12.ids]].to_numpy(float)
    prediction = test[[f"{question}_prediction" for question in BCS12.ids]].to_numpy(float)
    for name, x, y in (
        ("q", prediction.ravel(), target.ravel()),
        ("pas", prediction[:, :6].mean(1), target[:, :6].mean(1)),
        ("sas", prediction[:, 6:].mean(1), target[:, 6:].mean(1)),
    ):
        recomputed[f"{name}_mae"] = np.abs(x - y).mean()
        recomputed[f"{name}_r"] = scipy.stats.pearsonr(x, y).statistic if np.ptp(x) > 1e-6 else None
        recomputed[f"{name}_rho"] = scipy.stats.spearmanr(x, y).statistic if np.ptp(x) > 1e-6 else None
    for key, value in recomputed.items():
        if value is None:
            assert metrics["ensemble"][key] is None
        else:
            assert metrics["ensemble"][key] == pytest.approx(value, abs=1e-6), key
    np.testing.assert_allclose(test["t_pas_prediction"], prediction[:, :6].mean(1), atol=1e-6)

    if head == "ordinal":
        assert set(np.unique(prediction)) <= {0.0, 0.5, 1.0}
        assert {"P1_raw", "S6_raw"} <= set(frame.columns)

    ensemble = Ensemble.load(folder / "ensemble")
    parts = [corpus.shipped[entry["name"]] for entry in ensemble.encoders]
    mean, std = ensemble.predict(
        [part.images[part.reference] for part in parts], [part.images[part.reconstruction] for part in parts]
    )
    column = "raw" if ensemble.thresholds is not None else "prediction"
    np.testing.assert_allclose(mean[:, 0], frame[f"P1_{column}"], atol=1e-5)
    np.testing.assert_allclose(std[:, 11], frame["S6_std"], atol=1e-5)

    split = pd.read_parquet(folder / "split.parquet")
    assert list(split.columns) == ["pair_id", "concept", "split"]
    assert split.groupby("concept")["split"].nunique().max() == 1


def test_same_seed_same_numbers(bcs: Callable[..., int]) -> None:
    first, a = trained(bcs=bcs)
    second, b = trained(bcs=bcs)
    assert first != second
    assert {**a, "wall_s": 0} == {**b, "wall_s": 0}
    pd.testing.assert_frame_equal(*(pd.read_parquet(folder / "predictions.parquet") for folder in (first, second)))


def test_teachers_decide_the_targets(bcs: Callable[..., int]) -> None:
    folder, metrics = trained("teachers=[literal,lenient]", "seeds=[7]", bcs=bcs)
    assert metrics["teachers"] == ["literal", "lenient"]
    corpus = load_corpus("brainbank")
    expected = np.nanmedian(corpus.answers[:, [0, 2]], axis=1)
    frame = pd.read_parquet(folder / "predictions.parquet")
    np.testing.assert_allclose(frame[[f"{q}_target" for q in BCS12.ids]].to_numpy(), expected)


@pytest.mark.parametrize("scheme", ["method", "subject", "pair", "kfold"])
def test_other_splits(scheme: str, bcs: Callable[..., int]) -> None:
    folder, metrics = trained(f"split={scheme}", "seeds=[7]", bcs=bcs)
    assert metrics["split"] == scheme
    if scheme in {"method", "subject"}:
        frame = pd.read_parquet(folder / "split.parquet")
        groups = load_corpus("brainbank").pairs.set_index("pair_id").loc[frame["pair_id"], scheme].to_numpy()
        assert frame.groupby(groups)["split"].nunique().max() == 1


def test_the_main_sweep_offline(bcs: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fast = [item for item in FAST if not item.startswith("logger")]
    assert bcs("train", "-m", "encoder=siglip,fusion", "teachers=3,4", *fast) == 0
    import wandb

    assert wandb.run is None
    sweep = only(Path("runs/sweep"), "*")
    assert len(list(sweep.glob("*/wandb/offline-run-*"))) == 4
    assert not Path("wandb").exists()
    frame = pd.read_csv(sweep / "comparison.csv")
    runs = frame[frame["kind"] == "run"]
    assert len(runs) == 4
    assert set(runs["encoders"]) == {
        "siglip (stand-in efficientnet_lite2)",
        "siglip (stand-in efficientnet_lite2) + clip (stand-in efficientnet_lite0) + dinov3 (stand-in lowlevel)",
    }
    assert set(runs["stand_in"].astype(str).str.lower()) == {"true"}
    assert len(frame[frame["kind"] == "paper"]) == 4
    text = capsys.readouterr().out
    assert "siglip (stand-in efficientnet_lite2)" in text
    assert "another corpus" in text
    for job in ("0", "1", "2", "3"):
        folder = sweep / job
        for name in ("metrics.json", "config.yaml", "run.json", "results.txt", "ensemble/ensemble.json"):
            assert "siglip (stand-in efficientnet_lite2)" in (folder / name).read_text(encoding="utf-8"), name
        attrs = pd.read_parquet(folder / "predictions.parquet").attrs
        assert attrs["encoders"][0] == "siglip (stand-in efficientnet_lite2)"
        (mirror,) = folder.glob("wandb/offline-run-*/*.wandb")
        assert b"siglip (stand-in efficientnet_lite2)" in mirror.read_bytes()
    for name in ("comparison.md", "comparison.html"):
        assert "stand-in efficientnet" in (sweep / name).read_text(encoding="utf-8").replace("\\", "")


def test_images_bundle_and_npz_give_the_same_result(bcs: Callable[..., int], drawn: Path, tmp_path: Path) -> None:
    """The same pairs from images, from a bundle without images, and from embeddings brought in."""
    corpus = ("corpus=manifest", f"corpus.root={drawn}")
    _, images = trained(*corpus, "encoder=lowlevel", "teachers=all", bcs=bcs)
    bundle = tmp_path / "bundle"
    assert bcs("corpus", "export", *corpus, f"out={bundle}", "encoders=[lowlevel]") == 0
    _, exported = trained("corpus=bundle", f"corpus.root={bundle}", "encoder=lowlevel", "teachers=all", bcs=bcs)
    assert {**exported, "wall_s": 0} == {**images, "wall_s": 0}

    loaded = load_corpus("bundle", bundle)
    part = loaded.shipped["lowlevel"]
    np.savez(
        tmp_path / "mine.npz",
        ids=loaded.pairs["pair_id"].to_numpy(str),
        reference=np.asarray(part.images, dtype=np.float32)[part.reference],
        reconstruction=np.asarray(part.images, dtype=np.float32)[part.reconstruction],
    )
    for image in (drawn / "images").iterdir():
        image.unlink()
    assert bcs("embed", *corpus, "source=npz", f"path={tmp_path / 'mine.npz'}", "encoder.name=mine") == 0
    _, stored = trained(*corpus, "encoder=stored", "encoder.names=[mine]", "teachers=all", bcs=bcs)
    assert stored["encoders"] == ["mine"]
    for key in METRICS:
        a, b = stored["ensemble"][key], images["ensemble"][key]
        assert (a is None and b is None) or math.isclose(a, b, abs_tol=2e-3), key


def test_bad_rows_are_listed_or_skipped(
    bcs: Callable[..., int], drawn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = drawn / "images"
    (images / "rec0_0.png").write_bytes(b"")
    torn = (images / "rec1_0.png").read_bytes()
    (images / "rec1_0.png").write_bytes(torn[: len(torn) // 2])
    (images / "rec2_0.png").unlink()
    annotations = drawn / "annotations" / "a.jsonl"
    lines = annotations.read_text().splitlines()
    lines[8] = lines[8].replace('"answer": "yes"', '"answer": "maybe"').replace('"answer": "no"', '"answer": "maybe"')
    lines[8] = lines[8].replace('"answer": "somewhat"', '"answer": "maybe"')
    annotations.write_text("\n".join(lines) + "\n")
    arguments = ("corpus=manifest", f"corpus.root={drawn}", "encoder=lowlevel", "teachers=all")
    assert bcs("train", *FAST, *arguments) == 2
    error = capsys.readouterr().err
    for words in ("manifest.csv:2", "manifest.csv:4", "manifest.csv:6", "a.jsonl:9", "maybe", "rec1_0.png", "skip"):
        assert words in error, words
    folder, metrics = trained(*arguments, "corpus.on_bad_row=skip", bcs=bcs)
    skipped = pd.read_csv(folder / "skipped.csv", dtype=str)
    assert {"p00_0", "p01_0", "p02_0"} <= set(skipped["pair_id"])
    assert sum(metrics["n"].values()) == 21


def test_missing_weights_are_an_error_on_ones_own_corpus(
    bcs: Callable[..., int], drawn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bcs("train", *FAST, "corpus=manifest", f"corpus.root={drawn}", "encoder=siglip", "teachers=all") == 2
    error = capsys.readouterr().err
    assert "siglip" in error
    assert "google/siglip-base-patch16-224" in error
    assert "Traceback" not in error


def test_a_device_that_is_not_there_is_an_error(bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert bcs("train", *FAST, "trainer.accelerator=mps") == 2
    assert "trainer.accelerator=mps" in capsys.readouterr().err


def test_one_concept_cannot_be_split(
    bcs: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = draw_corpus(tmp_path / "one", concepts=1, per_concept=6)
    assert bcs("train", *FAST, "corpus=manifest", f"corpus.root={root}", "encoder=lowlevel", "teachers=all") == 2
    assert "split" in capsys.readouterr().err


def test_a_failed_job_leaves_no_wandb_run_open(bcs: Callable[..., int], drawn: Path) -> None:
    import wandb

    assert bcs("train", "corpus=manifest", f"corpus.root={drawn}", "encoder=lowlevel", "teachers=9") == 2
    assert wandb.run is None
    assert wandb.__version__


def test_compare_puts_any_runs_side_by_side(bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    first, _ = trained("seeds=[7]", bcs=bcs)
    second, _ = trained("seeds=[13]", "head=coral", bcs=bcs)
    assert bcs("compare", str(first), str(second), "out=table") == 0
    assert {path.name for path in Path("table").iterdir()} == {"comparison.csv", "comparison.md", "comparison.html"}
    assert "coral" in capsys.readouterr().out
    assert bcs("compare", "nowhere") == 2
    assert bcs("compare") == 2


def test_the_file_and_the_metrics_have_one_rule_for_pairs_that_are_answered_in_part(
    bcs: Callable[..., int], tmp_path: Path
) -> None:
    root = draw_corpus(tmp_path / "partly")
    for path in (root / "annotations").iterdir():
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records[::2]:
            for question in ("S1", "S3", "S4", "S5", "S6"):
                del record["answers"][question]
        path.write_text("\n".join(json.dumps(record) for record in records) + "\n")
    folder, metrics = trained("corpus=manifest", f"corpus.root={root}", "encoder=lowlevel", "teachers=all", bcs=bcs)
    frame = pd.read_parquet(folder / "predictions.parquet")
    assert frame["t_sas_target"].isna().sum() == len(frame) // 2
    assert frame["t_sas_prediction"].notna().all()
    test = frame[(frame["split"] == "test") & frame["t_sas_target"].notna()]
    gap = (test["t_sas_prediction"] - test["t_sas_target"]).abs().mean()
    assert metrics["ensemble"]["sas_mae"] == pytest.approx(gap, abs=1e-6)
    assert metrics["baseline"]["sas_r"] is None


# --- similarities and heads for few labels ---


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    root = draw_corpus(tmp_path_factory.mktemp("pictures") / "drawn", concepts=18, per_concept=3)
    return ("corpus=manifest", f"corpus.root={root}", "encoder=lowlevel", "teachers=all", "features=similarity")


SMALLER = {
    "trees": ("head.trees=10",),
    "boosting": ("head.trees=10", "head.monotone=true"),
    "stack": ("head.of=[ridge,{trees: {trees: 5}}]", "head.folds=2"),
}


@pytest.mark.parametrize("head", ["ridge", "trees", "boosting", "kernel", "stack", "similarity_mlp"])
def test_similarities_and_few_labels(head: str, pictures: tuple[str, ...], bcs: Callable[..., int]) -> None:
    folder, metrics = trained(*pictures, f"head={head}", *SMALLER.get(head, ()), bcs=bcs)
    assert set(metrics) == METRIC_KEYS | {"features"}
    assert (metrics["features"], metrics["head"]) == ("similarity", head)
    assert set(metrics["baselines"]) == {"cosine lowlevel", "cosine lowlevel, fitted"}  # no mean of one
    assert f"{head} on similarities" in (folder / "results.txt").read_text()
    ensemble = Ensemble.load(folder / "ensemble")
    assert ensemble.kind == "similarity"
    assert (folder / "training_curves.png").exists() == (head == "similarity_mlp")
    assert ensemble.conformal is not None
    assert ensemble.familiarity is not None
    assert ensemble.encoders[0]["dim"] == 384
    frame = pd.read_parquet(folder / "predictions.parquet")
    assert frame.attrs["features"] == "similarity"

    from bcs_lab.similarity import pair_similarities, similarity_matrix, similarity_names

    corpus = load_corpus("manifest", pictures[1].split("=")[1])
    _, parts = pair_similarities(corpus, ["lowlevel"], store=None, progress=False)
    assert ensemble.features["names"] == similarity_names(parts)
    assert ensemble.features["parts"][0]["fingerprint"] == parts[0].fingerprint
    members = ensemble.predict_features(similarity_matrix(parts))
    np.testing.assert_allclose(members[:, :, 0].mean(axis=0), frame["P1_prediction"], atol=1e-5)
    np.testing.assert_allclose(members[:, :, 11].std(axis=0), frame["S6_std"], atol=1e-5)
    assert members[:, :, 0].std(axis=0).max() > 0  # members differ


def test_a_killed_training_of_fitted_heads_goes_on(
    pictures: tuple[str, ...], bcs: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from bcs_lab import fit

    arguments = ("train", *FAST, *pictures, "head=trees", "head.trees=5")
    assert bcs(*arguments, f"hydra.run.dir={tmp_path / 'clean'}") == 0
    real = fit._fit_member
    seen: list[int] = []

    def killed(head: Any, data: Any, seed: int, *rest: Any) -> Any:
        seen.append(seed)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(head, data, seed, *rest)

    monkeypatch.setattr(fit, "_fit_member", killed)
    assert bcs(*arguments, f"hydra.run.dir={tmp_path / 'killed'}") != 0
    assert only(tmp_path / "killed" / "members", "*.safetensors").name == "member-7.safetensors"
    assert bcs(*arguments, f"hydra.run.dir={tmp_path / 'killed'}") == 0
    assert seen == [7, 13, 13]
    clean, again = (strict(tmp_path / name / "metrics.json") for name in ("clean", "killed"))
    assert {**clean, "wall_s": 0} == {**again, "wall_s": 0}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("head=cosine_residual",), "head=cosine_residual works on features=embedding, not on features=similarity"),
        (("head=similarity_mlp", "features=embedding"), "head=similarity_mlp works on features=similarity"),
        (("head=trees", "head.monotone=true", "features=embedding"), "choose features=similarity"),
        (("head=ridge", "head.alpha=-1"), "head.alpha=-1"),
        (("head=ridge", "head.negatives=0.5", "features=embedding"), "head.negatives=0.5"),
        (("head=ridge", "head.negatives=-1"), "head.negatives"),
        (("features.kind=pixels",), "features.kind"),
    ],
)
def test_settings_that_do_not_go_together(
    arguments: tuple[str, ...],
    words: str,
    pictures: tuple[str, ...],
    bcs: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bcs("train", *FAST, *pictures, *arguments) == 2
    assert words in capsys.readouterr().err


def test_a_broken_picture_is_skipped_under_both_kinds_alike(bcs: Callable[..., int], drawn: Path) -> None:
    torn = (drawn / "images" / "rec1_0.png").read_bytes()
    (drawn / "images" / "rec1_0.png").write_bytes(torn[: len(torn) // 2])
    arguments = ("corpus=manifest", f"corpus.root={drawn}", "encoder=lowlevel", "teachers=all")
    folder, metrics = trained(
        *arguments, "features=similarity", "head=ridge", "corpus.on_bad_row=skip", "seeds=[7]", bcs=bcs
    )
    assert sum(metrics["n"].values()) == 23
    assert pd.read_csv(folder / "skipped.csv", dtype=str)["pair_id"].tolist() == ["p01_0"]
