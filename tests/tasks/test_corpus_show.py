"""``bcs corpus show``: a contact sheet, for corpora with and without images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from drawn_corpus import only
from PIL import Image

from bcs_lab.consensus import consensus
from bcs_lab.corpus import Corpus, load_corpus
from bcs_lab.corpus.demo import make as demo
from bcs_lab.corpus.demo.plan import plan_demo
from bcs_lab.regimes import REGIMES
from bcs_lab.report.contact_sheet import (
    NO,
    SOMEWHAT,
    UNKNOWN,
    YES,
    choose_pairs,
    contact_sheet,
    regimes,
    truth_note,
)
from bcs_lab.report.figures import save
from bcs_lab.teachers.protocol import BCS12


@pytest.fixture
def tiny_demo(monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setattr(demo, "plan_demo", lambda size, seed: plan_demo(size, seed)[::25])
    return load_corpus("demo")


def words(corpus: Corpus, rows: list[int]) -> list[str]:
    return [text.get_text() for text in contact_sheet(corpus, rows).axes[0].texts]


def colours(path: Path) -> set[str]:
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3)
    return {"#" + bytes(pixel).hex() for pixel in np.unique(pixels, axis=0)}


@pytest.mark.usefixtures("tiny_demo")
def test_sheet_of_the_demo(bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert bcs("corpus", "show", "corpus=demo", "n=5") == 0
    sheet = only(Path("runs/corpus_show"), "*/contact_sheet.png")
    assert min(Image.open(sheet).size) > 600
    assert {NO.lower(), SOMEWHAT.lower(), YES.lower()} <= colours(sheet)
    out = capsys.readouterr().out
    assert str(sheet.resolve()) in out
    assert "4 teachers (SIMULATED): internvl3, sail_vl, ola, ovis2" in out
    assert "the consensus is the truth in" in out
    assert "answered by ovis2" in out
    record = json.loads((sheet.parent / "run.json").read_text())
    assert record["state"] == "finished"
    assert record["simulated_teachers"] is True
    assert len(record["pairs"]) == 5


def test_out_and_seed(bcs: Callable[..., int], drawn: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        settings = ["corpus=manifest", f"corpus.root={drawn}", f"out={name}.png", f"seed={seed}", "n=2"]
        assert bcs("corpus", "show", *settings) == 0
    first, second, third = (Path(f"{name}.png").read_bytes() for name in "abc")
    assert first == second
    assert first != third


def test_brainbank_has_no_images_and_says_so(bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert bcs("corpus", "show", "corpus=brainbank", "out=sheet.png") == 0
    out = capsys.readouterr().out
    assert "no images" in out
    assert "SIMULATED" not in out
    assert Path("sheet.png").is_file()
    corpus = load_corpus("brainbank")
    texts = words(corpus, [0, 1])
    assert any("This corpus has no images" in text for text in texts)
    assert "seen" not in texts
    assert "SIMULATED" not in " ".join(texts)


def test_what_a_sheet_says(tiny_demo: Corpus) -> None:
    rows = choose_pairs(tiny_demo, 4, 0)
    texts = words(tiny_demo, rows)
    assert texts.count("SIMULATED") == 4
    assert "SIMULATED TEACHERS" in texts
    for name in ("seen", "decoded", "consensus", "truth", *tiny_demo.teachers):
        assert texts.count(name) == 4, name
    assert texts.count("P1") == texts.count("S6") == 4
    assert any("P1 spatial layout" in text and "P6 visual recoverability" in text for text in texts)
    for row in rows:
        assert any(str(tiny_demo.pairs["pair_id"].iloc[row])[:40] in text for text in texts)


def test_pairs_are_spread_over_the_regimes() -> None:
    corpus = load_corpus("brainbank")
    rows = choose_pairs(corpus, 12, 3)
    assert len(set(rows)) == 12
    regime = regimes(consensus(corpus.answers), corpus.protocol)
    assert [regime[row] for row in rows] == [name for name in REGIMES.values() for _ in range(3)]
    assert corpus.pairs["concept"].iloc[rows].nunique() == 12
    assert choose_pairs(corpus, 12, 3) == rows
    assert choose_pairs(corpus, 12, 4) != rows
    assert sorted(choose_pairs(corpus, 1000, 0)) == list(range(311))


def test_regimes_follow_table_9() -> None:
    scores = np.zeros((5, 12), dtype=np.float32)
    scores[0], scores[1, :6], scores[2, 6:] = 0.5, 1.0, 1.0
    scores[4] = np.nan
    assert regimes(scores, BCS12) == [*REGIMES.values(), UNKNOWN]
    scores[3, :4] = np.nan  # two of six perceptual answers are no T-PAS
    assert regimes(scores, BCS12)[3] == UNKNOWN


def test_missing_answers_and_broken_images_are_drawn(tiny_demo: Corpus, tmp_path: Path) -> None:
    assert tiny_demo.truth is not None
    tiny_demo.answers[:, 1:] = np.nan
    tiny_demo.answers[0] = np.nan
    tiny_demo.truth[0] = np.nan
    tiny_demo.reconstruction_file(0).write_text("no picture")
    texts = words(tiny_demo, [0, 1])
    assert "cannot be read" in texts
    assert "–" in texts
    assert save(contact_sheet(tiny_demo, [0]), tmp_path / "one.png").is_file()
    tiny_demo.truth[:] = np.nan
    assert truth_note(tiny_demo) == ""


def test_bad_settings_are_named(bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert bcs("corpus", "show", "n=0", "corpus.size=tiny") == 2
    message = capsys.readouterr().err
    assert "corpus.size" in message
    assert "n: " in message
    assert bcs("corpus", "show", "corpus=simulated") == 2
    assert "corpus.images=…" in capsys.readouterr().err
