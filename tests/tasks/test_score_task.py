"""``bcs score`` from the command line: what goes in, what comes out, and what is said about bad input."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn_corpus import draw_corpus, only
from PIL import Image

from bcs_lab.ensemble import Ensemble
from bcs_lab.launch import quoted
from bcs_lab.model_files import MANIFEST, _digest
from bcs_lab.regimes import REGIMES, regime_codes
from bcs_lab.teachers.protocol import BCS12

COLUMNS = [
    "pair_id", "reference", "reconstruction", *BCS12.ids, "t_pas", "t_sas", "t_pas_std", "t_sas_std",
    "t_pas_lo", "t_pas_hi", "t_sas_lo", "t_sas_hi", "regime",
]  # fmt: skip
QUICK = ("bootstrap.resamples=100",)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run on drawn pictures, beside its corpus."""
    from bcs_lab.cli import main

    root = tmp_path_factory.mktemp("trained")
    draw_corpus(root / "corpus", concepts=20)
    given = ("corpus=manifest", f"corpus.root={root / 'corpus'}", "encoder=lowlevel", "trainer=debug", "seeds=[7,13]")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr(sys, "argv", ["bcs"])
        quick = ("logger=none", "bootstrap.resamples=100", f"store={root / 'store'}", f"hydra.run.dir={root / 'run'}")
        assert main(["train", *given, *quick]) == 0
    return root / "run"


@pytest.fixture
def corpus(run: Path) -> Path:
    return run.parent / "corpus"


@pytest.fixture
def folders(corpus: Path, tmp_path: Path) -> tuple[Path, Path]:
    """References by name, reconstructions by method and name."""
    for method in ("m0", "m1"):
        (tmp_path / "recs" / method).mkdir(parents=True)
    (tmp_path / "refs").mkdir()
    for concept in range(6):
        shutil.copy(corpus / f"images/ref{concept}.png", tmp_path / "refs" / f"c {concept}.png")
        for method in (0, 1):
            shutil.copy(corpus / f"images/rec{concept}_{method}.png", tmp_path / f"recs/m{method}/c {concept}.png")
    return tmp_path / "refs", tmp_path / "recs"


def test_training_reports_coverage(run: Path) -> None:
    coverage = json.loads((run / "coverage.json").read_text())
    assert coverage["coverage"] == 0.9
    assert set(coverage["axes"]) == {"t_pas", "t_sas"}
    # three validation concepts are too few for nine in ten
    assert coverage["axes"]["t_pas"]["half_width"] is None
    assert coverage["axes"]["t_pas"]["held_out_concepts"] == 1.0
    assert "the whole range" in (run / "results.txt").read_text()
    assert "the whole range" in (run / "ensemble" / "README.md").read_text()


def test_test_part_of_a_corpus_gets_what_training_said(run: Path, corpus: Path, bcs: Callable[..., int]) -> None:
    given = ("corpus=manifest", f"corpus.root={corpus}", "part=test", "out=scores.parquet")
    assert bcs("score", f"model={run}", *given, *QUICK) == 0
    scores = pd.read_parquet("scores.parquet")
    predictions = pd.read_parquet(run / "predictions.parquet")
    test = predictions[predictions["split"] == "test"].set_index("pair_id")
    assert scores["pair_id"].tolist() == test.index.tolist()
    for column in (*BCS12.ids, "t_pas", "t_sas"):
        np.testing.assert_allclose(scores[column], test[f"{column}_prediction"], atol=1e-5)
        if column.startswith("t_"):
            np.testing.assert_allclose(scores[f"{column}_std"], test[f"{column}_std"], atol=1e-5)
    summary = json.loads((only(Path("runs/score"), "*") / "score.json").read_text())
    metrics = json.loads((run / "metrics.json").read_text())
    for key in ("q_mae", "pas_r", "sas_rho"):
        assert summary["against_consensus"][key] == pytest.approx(metrics["ensemble"][key], abs=1e-5)
    assert summary["warnings"] == [] or "ood" in summary["warnings"][0]


def test_columns_and_summary(
    run: Path, corpus: Path, bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(corpus, "plain")
    shutil.rmtree("plain/annotations")
    manifest = pd.read_csv("plain/manifest.csv", dtype=str).assign(regime="mine", extra="x")
    manifest.to_csv("plain/manifest.csv", index=False)
    assert bcs("score", f"model={run}/ensemble", "corpus=manifest", "corpus.root=plain", "out=scores.csv", *QUICK) == 0
    scores = pd.read_csv("scores.csv")
    own = [name if name != "regime" else "manifest_regime" for name in manifest.columns if name != "pair_id"]
    assert list(scores) == [*COLUMNS, *own, "ood", "simulated_teachers"]
    assert (scores["regime"] == regime_codes(scores["t_pas"], scores["t_sas"])).all()
    np.testing.assert_allclose(scores["t_pas"], scores[[f"P{i}" for i in range(1, 7)]].mean(axis=1), atol=1e-5)
    assert (scores["t_sas_lo"] == 0).all()  # too few validation concepts for nine in ten: the whole range
    assert not scores["simulated_teachers"].any()
    folder = only(Path("runs/score"), "*")
    summary = json.loads((folder / "score.json").read_text())
    assert summary["pairs"] == 40
    assert sum(entry["n"] for entry in summary["regimes"].values()) == 40
    assert [row["method"] for row in summary["methods"]] == ["m0", "m1"]
    assert summary["against_consensus"] is None
    (difference,) = summary["differences"]
    wide = scores.pivot_table(index="concept", columns="method", values="t_pas")
    assert difference["t_pas"] == pytest.approx((wide["m0"] - wide["m1"]).mean(), abs=1e-5)
    said = capsys.readouterr().out
    for text in ("m0 − m1", *REGIMES.values(), "40 pairs", "Written: "):
        assert text in said


def test_folders_by_stem(run: Path, folders: tuple[Path, Path], bcs: Callable[..., int], capsys: Any) -> None:
    refs, recs = folders
    (refs / "c 5.png").rename(refs / "other.png")
    assert (
        bcs("score", f"model={run}", f"reference={refs}/", f"reconstruction={recs}/", "out=my scores.csv", *QUICK) == 0
    )
    scores = pd.read_csv("my scores.csv")
    assert len(scores) == 10
    assert scores["method"].value_counts().to_dict() == {"m0": 5, "m1": 5}
    skipped = pd.read_csv(only(Path("runs/score"), "*") / "skipped.csv")
    assert len(skipped) == 3
    assert skipped["problem"].str.contains("without a reference 'c 5'").sum() == 2
    assert "other.png" in capsys.readouterr().err


def test_one_pair(
    run: Path, folders: tuple[Path, Path], bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    refs, recs = folders
    pair = (f"reference={refs / 'c 1.png'}", f"reconstruction={recs / 'm0' / 'c 1.png'}")
    assert bcs("score", f"model={run}", *pair) == 0
    said = capsys.readouterr().out
    assert "T-PAS 0." in said
    assert "P1 0." in said
    assert not Path("runs").exists()  # one pair leaves nothing behind
    assert bcs("score", f"model={run}", *pair, "out=one.jsonl") == 0
    (row,) = [json.loads(line) for line in Path("one.jsonl").read_text().splitlines()]
    assert f"T-PAS {row['t_pas']:.3f}" in said


def test_unreadable_image_among_good_ones(
    run: Path, folders: tuple[Path, Path], bcs: Callable[..., int], capsys: Any
) -> None:
    refs, recs = folders
    (recs / "m1" / "c 2.png").write_bytes((recs / "m1" / "c 2.png").read_bytes()[:200])
    (refs / "c 3.png").write_text("no picture")
    assert bcs("score", f"model={run}", f"reference={refs}", f"reconstruction={recs}", "out=scores.csv", *QUICK) == 1
    assert pd.read_csv("scores.csv")["pair_id"].tolist() == ["m0/c 0", "m0/c 1", "m0/c 2", "m0/c 4", "m0/c 5",
                                                              "m1/c 0", "m1/c 1", "m1/c 4", "m1/c 5"]  # fmt: skip
    said = capsys.readouterr().err
    assert "3 pair(s) could not be scored, the other 9 were" in said
    assert "c 2.png" in said
    assert len(pd.read_csv(only(Path("runs/score"), "*") / "skipped.csv")) == 3


def test_nothing_can_be_scored(run: Path, folders: tuple[Path, Path], bcs: Callable[..., int], capsys: Any) -> None:
    refs, recs = folders
    for path in refs.iterdir():
        path.write_text("no picture")
    assert bcs("score", f"model={run}", f"reference={refs}", f"reconstruction={recs}", *QUICK) == 2
    assert "c 0.png" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("reference=a.png",), "needs reconstruction=…"),
        ((), "needs reference=… and reconstruction=…"),
        (("reference=a", "reconstruction=b"), "no such file or folder"),
        (("corpus=demo", "reference=a"), "were both given"),
        (("corpus=demo", "out=x.xlsx"), "expected a file that ends in .csv"),
        (("reference=a", "reconstruction=b", "part=test"), "only pairs of a corpus have parts"),
        (("reference=a", "reconstruction=b", "coverage=1.5"), "coverage"),
        (("reference=a", "reconstruction=b", "model=nowhere"), "there is no such folder"),
        (("corpus=brainbank", "part=test"), "are not in corpus 'brainbank'"),
    ],
)
def test_bad_settings(
    arguments: tuple[str, ...], message: str, run: Path, bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    model = () if any(item.startswith("model=") for item in arguments) else (f"model={run}",)
    assert bcs("score", *model, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def edited(run: Path, target: Path, **changes: Any) -> Path:
    """A copy of the model whose manifest was changed by someone who knows how."""
    folder = shutil.copytree(run / "ensemble", target)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["encoders"][0]["fingerprint"].update(changes)
    manifest["sha256"] = _digest(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_other_encoder_is_refused(
    run: Path, folders: tuple[Path, Path], tmp_path: Path, bcs: Callable[..., int], capsys: Any
) -> None:
    refs, recs = folders
    pair = (f"reference={refs / 'c 1.png'}", f"reconstruction={recs / 'm0' / 'c 1.png'}")
    version = edited(run, tmp_path / "version", library_version="0")
    assert bcs("score", f"model={version}", *pair) == 2
    assert "library_version" in capsys.readouterr().err
    assert bcs("score", f"model={version}", *pair, "encoder.mismatch=warn") == 0
    pooling = edited(run, tmp_path / "pooling", pooling="other")
    assert bcs("score", f"model={pooling}", *pair, "encoder.mismatch=warn") == 2
    assert "pooling" in capsys.readouterr().err


def test_damaged_models_are_refused(
    run: Path, folders: tuple[Path, Path], tmp_path: Path, bcs: Callable[..., int], capsys: Any
) -> None:
    refs, recs = folders
    for name in ("ensemble.json", "member-7.safetensors", "familiarity.safetensors"):
        folder = shutil.copytree(run / "ensemble", tmp_path / name.split(".")[0])
        path = folder / name
        content = path.read_bytes()
        path.write_bytes(content[:-3] + b" }\n" if name.endswith("json") else content[:-1] + b"\x00")
        if name.endswith("json"):
            path.write_bytes(content.replace(b'"variance"', b'"uniform"'))
        assert bcs("score", f"model={folder}", f"reference={refs}", f"reconstruction={recs}") == 2
        error = capsys.readouterr().err
        assert name in error
        assert len(error.splitlines()) == 1


def test_simulated_teachers_are_said_everywhere(
    run: Path, folders: tuple[Path, Path], tmp_path: Path, bcs: Callable[..., int], capsys: Any
) -> None:
    refs, recs = folders
    ensemble = Ensemble.load(run / "ensemble")
    ensemble.simulated_teachers = True
    folder = ensemble.save(tmp_path / "simulated")
    assert bcs("score", f"model={folder}", f"reference={refs}", f"reconstruction={recs}", "out=s.csv", *QUICK) == 0
    assert "SIMULATED TEACHERS" in capsys.readouterr().out
    assert pd.read_csv("s.csv")["simulated_teachers"].all()
    written = only(Path("runs/score"), "*")
    assert "SIMULATED TEACHERS" in (written / "scores.txt").read_text()
    assert json.loads((written / "score.json").read_text())["model"]["simulated_teachers"] is True
    pair = (f"reference={refs / 'c 1.png'}", f"reconstruction={recs / 'm0' / 'c 1.png'}")
    assert bcs("score", f"model={folder}", *pair) == 0
    assert "SIMULATED" in capsys.readouterr().out


def test_strange_pictures_are_flagged(run: Path, folders: tuple[Path, Path], bcs: Callable[..., int]) -> None:
    refs, recs = folders
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(recs / "m0" / "c 1.png")
    assert bcs("score", f"model={run}", f"reference={refs}", f"reconstruction={recs}", "out=s.csv", *QUICK) == 0
    scores = pd.read_csv("s.csv").set_index("pair_id")
    assert scores.loc["m0/c 1", "ood"]
    assert scores["ood"].sum() <= 4


@pytest.mark.parametrize("name", ["a b.png", "x=(1),[2].png", "it's {odd}.png", 'qu"ote.png', "back\\slash.png"])
def test_any_file_name(name: str, run: Path, corpus: Path, bcs: Callable[..., int], capsys: Any) -> None:
    shutil.copy(corpus / "images/ref0.png", name)
    assert bcs("score", f"model={run}", f"reference={name}", f"reconstruction={name}") == 0, capsys.readouterr().err


def test_quoting_leaves_lists_and_sweeps_alone() -> None:
    for override in (
        "model=runs/a",
        "reference='x y'",
        'reference="x y"',
        "out=",
        "model",
        "encoder=a b",
        "model=${x}",
    ):
        assert quoted(override) == override
    assert quoted("model=a,b", sweep=True) == "model=a,b"
    assert quoted("model=a,b") == "model='a,b'"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from bcs_lab.cli import main; main(['score', '--help']); "
        "print([name for name in ('torch', 'hydra', 'pandas', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    for text in ("model", "coverage", "bcs score model="):
        assert text in done.stdout


def test_training_pairs_are_known_whatever_the_corpus_is_called(
    run: Path, corpus: Path, bcs: Callable[..., int], capsys: Any
) -> None:
    shutil.copytree(corpus, "other name")
    assert bcs("score", f"model={run}", "corpus=manifest", "corpus.root=other name", *QUICK) == 0
    split = pd.read_parquet(run / "split.parquet")
    used = int((split["split"] != "test").sum())
    assert f"{used} pairs of 40 took part in the model's training" in capsys.readouterr().out
    unrelated = Path("elsewhere") / corpus.name
    shutil.copytree(corpus, unrelated)
    manifest = pd.read_csv(unrelated / "manifest.csv", dtype=str)
    manifest.assign(concept="new " + manifest["concept"]).to_csv(unrelated / "manifest.csv", index=False)
    assert bcs("score", f"model={run}", "corpus=manifest", f"corpus.root={unrelated}", *QUICK) == 0
    assert "took part" not in capsys.readouterr().out


def test_ids_and_paths_are_enough(run: Path, corpus: Path, bcs: Callable[..., int], capsys: Any) -> None:
    shutil.copytree(corpus / "images", "least/images")
    manifest = pd.read_csv(corpus / "manifest.csv", dtype=str)
    manifest.rename(columns={"method": "decoder"})[
        ["pair_id", "decoder", "reference_path", "reconstruction_path"]
    ].to_csv("least/manifest.csv", index=False)
    assert bcs("score", f"model={run}", "corpus=manifest", "corpus.root=least", "out=s.csv", *QUICK) == 0
    scores = pd.read_csv("s.csv", dtype=str, keep_default_na=False)
    assert len(scores) == 40
    assert set(scores["method"]) == set(scores["concept"]) == {"na"}
    assert "rename 'decoder'" in capsys.readouterr().err


def test_out_is_tried_before_and_made_again(
    run: Path, folders: tuple[Path, Path], bcs: Callable[..., int], capsys: Any
) -> None:
    given = (f"model={run}", f"reference={folders[0]}", f"reconstruction={folders[1]}", *QUICK)
    assert bcs("score", *given, "out=/proc/x/y.csv") == 2
    said = capsys.readouterr()
    assert "out=/proc/x/y.csv: cannot be written" in said.err
    assert "scor" not in said.out
    assert bcs("score", *given, "out=s.csv", "hydra.run.dir=kept") == 0
    Path("s.csv").unlink()
    assert bcs("score", *given, "out=s.csv", "hydra.run.dir=kept") == 0
    assert "s.csv is no longer there" in capsys.readouterr().err
    assert len(pd.read_csv("s.csv")) == 12
