"""``bcs audit`` from the command line: its files, a rerun, captions, odd pictures, and what it refuses."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

sys.path.append(str(Path(__file__).parents[1] / "tasks"))

from drawn_corpus import draw_corpus

from bcs_lab import rationales
from bcs_lab.audit.metrics import blip
from bcs_lab.cli import main

PIXELS = "metrics=[mse,ssim,edge_cosine]"
QUICK = ("bootstrap.resamples=100", "degradation.images=2", "pairs=2")
TABLES = ("metric_list", "consensus", "failures", "degradation", "regimes", "regimes_questions")
FILES = {
    "audit.json", "audit.html", "audit.txt", "pairs.csv", "within_methods.csv", "metrics.parquet",
    "metrics_failures.csv", "degradation_values.parquet", "cells",
    *(f"{name}.{kind}" for name in TABLES for kind in ("csv", "md", "tex")),
    *(f"{name}.{kind}" for name in ("correlations", "consensus", "degradation", "regimes") for kind in ("png", "svg")),
}  # fmt: skip


@pytest.fixture
def bcs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["bcs"])
    return lambda *arguments: main(["audit", *arguments])


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    return draw_corpus(tmp_path / "drawn", concepts=8)


def strict(path: Path) -> Any:
    """JSON without the tokens that are none."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{path} holds {token}")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def test_every_file_is_there_and_says_the_same_again(
    bcs: Callable[..., int], drawn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("corpus=manifest", f"corpus.root={drawn}", "out=audit", PIXELS, *QUICK)
    assert bcs(*given) == 0
    out = Path("audit")
    assert {path.name for path in out.iterdir()} - {"set_metrics.csv", "sets"} == FILES
    printed = capsys.readouterr().out
    assert (out / "audit.txt").read_text().strip() in printed
    result = strict(out / "audit.json")
    assert list(result["metric_consensus"]) == ["mse", "ssim", "edge_cosine"]
    assert result["caption"] is None
    assert "Captions can be brought in as a file" in result["undefined"]["captions"]
    assert result["metric_consensus"]["mse"]["rho_sas"] > 0.3  # answers follow the noise that was mixed in
    rows = rows_of(out / "consensus.csv")
    assert [row["metric"] for row in rows] == ["mse", "ssim", "edge_cosine"]
    assert float(rows[0]["rho_sas"]) == result["metric_consensus"]["mse"]["rho_sas"]
    assert float(rows[0]["paper_rho_sas"]) == 0.074
    regimes = rows_of(out / "regimes.csv")
    assert [row["group"] for row in regimes] == ["overall", "m0", "m1"]
    assert sum(int(regimes[0][code]) for code in ("hh", "hl", "lh", "ll")) == result["regimes"]["overall"]["n"] == 16
    assert len(rows_of(out / "pairs.csv")) == 16
    table = pd.read_parquet(out / "metrics.parquet")
    pairs = pd.read_csv(out / "pairs.csv")
    assert result["metric_consensus"]["mse"]["rho_sas"] == pytest.approx(
        (-table["mse"]).corr(pairs["t_sas"], method="spearman")
    )
    before = (out / "audit.json").read_bytes()
    assert bcs(*given) == 0
    assert (out / "audit.json").read_bytes() == before
    # the probe's values are found again, and further metrics are added to them
    kept = pd.read_parquet(out / "degradation_values.parquet")
    assert set(kept["metric"]) == {"mse", "ssim", "edge_cosine"}
    assert len(kept) == 3 * 2 * 24


def test_a_second_run_leaves_nothing_of_the_first_that_it_did_not_make(bcs: Callable[..., int], drawn: Path) -> None:
    given = ("corpus=manifest", f"corpus.root={drawn}", "out=audit", "captions=none", *QUICK)
    assert bcs(*given, PIXELS) == 0
    out = Path("audit")
    (out / "mine.csv").write_text("a note of the user\n", encoding="utf-8")
    assert bcs(*given, "metrics=[mse]", "analyses=[regimes]", "consensus_of=questions") == 0
    kept = {
        "audit.json", "audit.html", "audit.txt", "pairs.csv", "metrics.parquet", "metrics_failures.csv", "cells",
        "degradation_values.parquet", "mine.csv", "regimes.png", "regimes.svg",
        *(f"{name}.{kind}" for name in ("metric_list", "regimes", "regimes_teachers") for kind in ("csv", "md", "tex")),
    }  # fmt: skip
    assert {path.name for path in out.iterdir()} - {"set_metrics.csv", "sets"} == kept


def test_unavailable_metrics_are_said_and_the_rest_goes_on(bcs: Callable[..., int], drawn: Path) -> None:
    corpus = ("corpus=manifest", f"corpus.root={drawn}", "out=audit")
    assert bcs(*corpus, "metrics=[mse,siglip,blip_sbert]", "analyses=[consensus,regimes]", *QUICK) == 0
    result = strict(Path("audit/audit.json"))
    assert set(result["unavailable"]) == {"siglip", "blip_sbert"}
    assert result["metric_consensus"]["siglip"]["rho_sas"] is None
    assert result["metric_consensus"]["mse"]["rho_sas"] is not None
    assert result["degradation"] is None
    assert result["undefined"]["degradation"] == "not asked for (analyses)"
    assert "SigLIP (unavailable)" in Path("audit/consensus.md").read_text(encoding="utf-8").replace("\\", "")
    assert "SigLIP" in Path("audit/audit.txt").read_text(encoding="utf-8")


def test_captions_from_a_file(
    bcs: Callable[..., int], drawn: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Encoder:
        identity = {"model": "made up"}  # noqa: RUF012
        source = "a test"

        def embed(self, texts: list[str], store: Any = None) -> np.ndarray:
            turn = np.array([float(text.split()[-1]) for text in texts]) * np.pi / 20
            return np.stack([np.cos(turn), np.sin(turn)], axis=1)

    lines = [
        {"pair_id": f"p{c:02d}_{k}", "reference": "thing 0", "reconstruction": f"thing {c + k}"}
        for c in range(8)
        for k in range(2)
    ]
    Path("captions.jsonl").write_text("\n".join(map(json.dumps, lines[:-1])), encoding="utf-8")
    given = ("corpus=manifest", f"corpus.root={drawn}", "out=audit", "captions=captions.jsonl", "metrics=[mse]")
    monkeypatch.setattr(rationales, "load_sentence_encoder", lambda *_: Encoder())
    assert bcs(*given, "analyses=[captions,gallery]", *QUICK) == 0
    result = strict(Path("audit/audit.json"))
    assert result["caption_facts"]["pairs"] == 15
    cosine = pd.Series([np.cos(int(line["reconstruction"].split()[-1]) * np.pi / 20) for line in lines[:-1]])
    quality = -pd.read_parquet("audit/metrics.parquet")["mse"][:15]
    own = result["caption"]["mse"]
    assert own["rho"] == pytest.approx(cosine.corr(quality, method="spearman"))
    assert own["hr"] == pytest.approx((quality < quality.quantile(0.25))[cosine >= cosine.quantile(0.75)].mean())
    assert {row["caption_cosine"] for row in rows_of(Path("audit/pairs.csv"))} >= {"1.0", ""}
    Path("captions.jsonl").write_text("[]", encoding="utf-8")
    assert bcs(*given, *QUICK) == 2
    assert "captions.jsonl:1: expected a JSON object" in capsys.readouterr().err


def test_pictures_of_all_shapes(bcs: Callable[..., int], tmp_path: Path) -> None:
    root = tmp_path / "odd"
    (root / "images").mkdir(parents=True)
    generator = np.random.default_rng(0)

    def noise(width: int, height: int) -> Image.Image:
        return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))

    same, grey = noise(50, 90), Image.new("RGB", (80, 80), (100, 100, 100))
    images = {
        "wide": (noise(300, 200), noise(300, 200)),
        "tall": (noise(64, 96), noise(120, 40)),
        "tiny": (noise(17, 23), noise(17, 23)),
        "same": (same, same),
        "flat": (grey, Image.new("RGB", (120, 80), (150, 150, 150))),
        "collapsed": (noise(128, 128), Image.new("RGB", (128, 128))),
    }
    rows = ["pair_id,concept,reference_path,reconstruction_path"]
    for name, (one, two) in images.items():
        one.save(root / "images" / f"{name}_a.png")
        two.save(root / "images" / f"{name}_b.png")
        rows.append(f"{name},{name},images/{name}_a.png,images/{name}_b.png")
    (root / "manifest.csv").write_text("\n".join(rows) + "\n")
    assert bcs("corpus=manifest", f"corpus.root={root}", "out=audit", "metrics=[ssim,psnr,pixcorr]", *QUICK) == 0
    result = strict(Path("audit/audit.json"))
    assert result["n_pairs"] == 6
    assert result["metric_consensus"] is None
    facts = {row["metric"]: row for row in result["metrics"]}
    assert (facts["ssim"]["pairs"], facts["psnr"]["infinite"], facts["pixcorr"]["without_value"]) == (6, 1, 2)
    notes = " ".join(result["notes"])
    assert "one flat colour (collapsed, flat)" in notes
    assert "same, pixel by pixel (same)" in notes
    assert result["degradation"]["ssim"]["blur"] is not None


def test_the_reference_codes_ways(bcs: Callable[..., int], drawn: Path) -> None:
    given = ("corpus=manifest", f"corpus.root={drawn}", "metrics=[ssim,psnr]", "analyses=[degradation]", *QUICK)
    assert bcs(*given, "out=theirs", "compat=reference") == 0
    assert bcs(*given, "out=ours") == 0
    theirs, ours = (strict(Path(name) / "audit.json") for name in ("theirs", "ours"))
    assert theirs["settings"]["compat"] == "reference"
    values = {name: pd.read_parquet(Path(name) / "degradation_values.parquet") for name in ("theirs", "ours")}
    ssim = {name: table[table["metric"] == "ssim"]["value"].to_numpy() for name, table in values.items()}
    assert not np.allclose(ssim["theirs"], ssim["ours"])  # another window, and other noise
    assert ours["degradation_facts"]["compat"] == "correct"


def test_list_says_what_can_run(bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert bcs("metrics=list") == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line[:1].isalpha()}
    assert lines["ssim"][1:4] == ["yes", "higher", "pair"]
    assert lines["mse"][2] == "lower"
    assert lines["siglip"][1] == "no"
    assert lines["alexnet2"][3] == "set"
    assert lines["cosine:embedded"][1] == "yes"
    assert not list(Path("runs/audit").glob("*")) if Path("runs/audit").exists() else True


def test_what_is_refused(bcs: Callable[..., int], drawn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = ("corpus=manifest", f"corpus.root={drawn}", *QUICK)
    assert bcs(*corpus, "metrics=[simm]") == 2
    assert "Did you mean" in capsys.readouterr().err
    assert bcs(*corpus, PIXELS, "captions=none.jsonl", "out=audit") == 2
    assert "captions=" in capsys.readouterr().err
    assert bcs(*corpus, PIXELS, "teachers=[nobody]") == 2
    assert "no teacher called 'nobody'" in capsys.readouterr().err
    assert bcs(*corpus, PIXELS, "options={ssim:{windows:uniform}}") == 2
    assert "has no option windows" in capsys.readouterr().err


def test_a_model_on_its_own_training_pairs_is_said(bcs: Callable[..., int]) -> None:
    given = ("corpus=brainbank", "out=audit", "metrics=[bcs]", "analyses=[consensus]", "bootstrap.resamples=100")
    assert bcs(*given) == 0
    result = strict(Path("audit/audit.json"))
    rows = {row["metric"]: row for row in result["metrics"]}
    assert 0 < rows["bcs_pas"]["trained_on"] == rows["bcs_sas"]["trained_on"] <= result["n_pairs"]
    said = [note for note in result["notes"] if "trained the model" in note]
    assert len(said) == 1
    assert f"{rows['bcs_sas']['trained_on']:,} of {result['n_pairs']:,} pairs" in said[0]
    for name in ("audit.txt", "audit.html"):
        assert "trained the model or stopped its training" in Path("audit", name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("analyses=[everything]", "analyses: expected all or one or more distinct ones of consensus, failures, "
         "captions, degradation, regimes, gallery, got ['everything']"),
        ("analyses=[]", "gallery, got []"),
        ("analyses=[consensus,consensus]", "got ['consensus', 'consensus']"),
        ("metrics=[]", "expected all, list, or one or more distinct metrics (metrics=list shows them), got []"),
        ("metrics=3", "shows them), got 3"),
    ],
)  # fmt: skip
def test_one_line_says_what_may_be_chosen(
    bcs: Callable[..., int], capsys: pytest.CaptureFixture[str], given: str, said: str
) -> None:
    assert bcs("corpus=brainbank", given) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "1 config problem(s)" in error
    assert "validator" not in error
    assert "function" not in error


def test_a_single_name_needs_no_brackets(bcs: Callable[..., int], drawn: Path) -> None:
    given = ("corpus=manifest", f"corpus.root={drawn}", "out=audit", *QUICK)
    assert bcs(*given, "metrics=mse", "analyses=regimes") == 0
    result = strict(Path("audit/audit.json"))
    assert [row["metric"] for row in result["metrics"]] == ["mse"]
    assert result["settings"]["analyses"] == ["regimes"]


def test_options_of_a_metric_that_is_not_asked_for_are_refused(
    bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bcs("corpus=brainbank", PIXELS, "options={sism:{window:uniform}}") == 2
    assert "found 'sism'. Did you mean ssim?" in capsys.readouterr().err
    assert bcs("corpus=brainbank", PIXELS, "options={bcs:{model:elsewhere}}") == 2
    assert "found 'bcs'. Asked for: mse, ssim" in capsys.readouterr().err


def test_the_cosine_of_an_unknown_encoder_is_refused(
    bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bcs("corpus=brainbank", "metrics=[cosine:nope,cosine:siglipp,mse]") == 2
    error = capsys.readouterr().err
    assert "cosine:nope" in error
    assert "Did you mean siglip" in error
    assert "efficientnet_lite0" in error
    assert "any other model by cosine:timm:MODEL" in error
    # what may exist elsewhere is not refused, but unavailable; what the corpus ships is there
    given = ("metrics=[cosine:timm:resnet18,cosine:efficientnet_lite0]", "analyses=[consensus]", QUICK[0])
    assert bcs("corpus=brainbank", "out=audit", *given) == 0
    assert set(strict(Path("audit/audit.json"))["unavailable"]) == {"cosine:timm:resnet18"}


def test_the_captioner_is_tried_quietly_and_only_for_captions(
    bcs: Callable[..., int], drawn: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    known = blip.load

    def load(spec: Any, *rest: Any) -> Any:
        tried.append(spec.name)
        return known(spec, *rest)

    monkeypatch.setattr(blip, "load", load)
    given = ("corpus=manifest", f"corpus.root={drawn}", "out=audit", *QUICK)
    assert bcs(*given, "metrics=mse", "analyses=regimes") == 0
    assert tried == []
    assert bcs(*given, "metrics=mse", "analyses=captions") == 0
    assert tried == ["blip_sbert"]
    assert "blip_sbert" not in capsys.readouterr().err
    assert bcs(*given, "metrics=blip_sbert", "analyses=captions") == 0
    assert "metric blip_sbert is unavailable" in capsys.readouterr().err
