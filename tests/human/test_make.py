"""``bcs study select``: sources of scores, identity by content, clear answers to what cannot be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn_corpus import draw_corpus

from bcs_lab.corpus import Corpus, load_corpus
from bcs_lab.errors import Problem, StudyError
from bcs_lab.human.study import Study

SMALL = ("stimuli=2", "high_perceptual=1", "high_semantic=1", "highest=1", "lowest=1")


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    return draw_corpus(tmp_path / "drawn", concepts=5)


@pytest.fixture
def select(bcs: Callable[..., int], drawn: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The command without its overview, which takes most of its time; the test of the form looks at that."""
    monkeypatch.setattr("bcs_lab.human.make.overview", lambda study, folder: None)

    def call(*settings: str) -> int:
        return bcs("study", "select", "corpus=manifest", f"corpus.root={drawn}", *settings)

    return call


def scores_of(drawn: Path, **columns: Any) -> pd.DataFrame:
    pairs = load_corpus("manifest", drawn).pairs
    rng = np.random.default_rng(0)
    n = len(pairs)
    table = {"pair_id": pairs["pair_id"], "t_pas": rng.uniform(0, 1, n), "t_sas": rng.uniform(0, 1, n)}
    return pd.DataFrame({**table, **columns})


def test_same_seed_same_study(select: Callable[..., int]) -> None:
    for out, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert select(*SMALL, f"out={out}", f"seed={seed}") == 0
    a, b, c = (Study.read(Path(name)) for name in "abc")
    assert a == b
    assert {item.item for item in a.items}.isdisjoint(item.item for item in c.items)
    assert a.digest != c.digest
    assert Counter(item.stratum for item in a.items) == {
        "high_perceptual": 1,
        "high_semantic": 1,
        "highest": 1,
        "lowest": 1,
    }
    assert set(Counter(item.stimulus for item in a.items).values()) == {2}
    assert a.scores == {"source": "consensus of the teachers", "teachers": ["a", "b", "c", "d"]}


def test_a_study_is_not_replaced_by_accident(select: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert select(*SMALL, "out=a") == 0
    assert select(*SMALL, "out=a", "seed=2") == 2
    assert "overwrite=true" in capsys.readouterr().err
    assert select(*SMALL, "out=a", "seed=2", "overwrite=true") == 0
    assert Study.read(Path("a")).seed == 2


def test_stimuli_go_by_content_not_by_concept(select: Callable[..., int], drawn: Path) -> None:
    """The second pair of each concept gets a copy of the reference under another name; concepts are all one."""
    lines = (drawn / "manifest.csv").read_text().splitlines()
    for i, line in enumerate(lines[1:], start=1):
        cells = line.split(",")
        copy = f"images/copy{i}.png"
        (drawn / copy).write_bytes((drawn / cells[6]).read_bytes())
        cells[3], cells[6] = "same", copy
        lines[i] = ",".join(cells)
    (drawn / "manifest.csv").write_text("\n".join(lines) + "\n")
    assert select(*SMALL, "out=study") == 0
    study = Study.read(Path("study"))
    assert len({item.stimulus for item in study.items}) == 2
    assert {item.concept for item in study.items} == {"same"}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_scores_from_a_table(select: Callable[..., int], drawn: Path, suffix: str) -> None:
    frame = scores_of(drawn, simulated_teachers=True, regime="hh").iloc[:-2]
    frame.to_csv("s.csv", index=False) if suffix == "csv" else frame.to_parquet("s.parquet")
    assert select(*SMALL, "out=study", f"scores=s.{suffix}", "coherence=min") == 0
    study = Study.read(Path("study"))
    by_pair = frame.set_index("pair_id")
    for item in study.items:
        assert item.t_pas == pytest.approx(by_pair.loc[item.pair_id, "t_pas"])
        assert item.coherence == pytest.approx(min(item.t_pas, item.t_sas))
    assert study.simulated
    assert study.scores["source"] == "file"


def test_a_table_that_cannot_be_used_lists_why(
    select: Callable[..., int], drawn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = scores_of(drawn)
    frame.loc[0, "t_pas"] = 1.5
    frame.loc[3, "pair_id"] = frame.loc[2, "pair_id"]
    frame.to_csv("s.csv", index=False)
    assert select(*SMALL, "scores=s.csv") == 2
    error = capsys.readouterr().err
    assert "2 problem(s)" in error
    assert "row 1: t_pas '1.5' is no number in [0, 1]" in error
    assert "more than one row" in error
    frame.drop(columns="t_sas").to_csv("s.csv", index=False)
    assert select(*SMALL, "scores=s.csv") == 2
    assert "lacks t_sas" in capsys.readouterr().err
    scores_of(drawn, pair_id="x").iloc[:1].to_csv("s.csv", index=False)
    assert select(*SMALL, "scores=s.csv") == 2
    assert "none of its pairs" in capsys.readouterr().err
    assert select(*SMALL, "scores=nowhere.csv") == 2
    assert "nowhere.csv" in capsys.readouterr().err


def test_scores_from_a_model(
    select: Callable[..., int], drawn: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import bcs_lab.score

    frame = scores_of(drawn)

    class Fake:
        ensemble = SimpleNamespace(digest="abc123", provenance={"corpus": "other"})
        labels = ("lowlevel",)
        simulated_teachers = True

        @classmethod
        def load(cls, model: Path) -> Fake:
            assert model == Path("cache/model")
            return cls()

        def score_corpus(self, corpus: Corpus, store: Any = None) -> tuple[pd.DataFrame, list[Problem]]:
            assert store is not None
            return frame.iloc[1:], [corpus.problem(0, "cannot be decoded")]

    monkeypatch.setattr(bcs_lab.score, "BCS", Fake)
    monkeypatch.setattr("bcs_lab.tasks.study_select.resolve_model", {"hf:me/mine": Path("cache/model")}.get)
    assert select(*SMALL, "out=study", "model=hf:me/mine") == 2
    assert "cannot be decoded" in capsys.readouterr().err
    assert select(*SMALL, "out=study", "model=hf:me/mine", "corpus.on_bad_row=skip") == 0
    study = Study.read(Path("study"))
    assert study.scores == {"source": "model", "model": "hf:me/mine", "digest": "abc123", "encoders": ["lowlevel"]}
    assert study.simulated
    assert frame["pair_id"].iloc[0] not in {item.pair_id for item in study.items}


@pytest.fixture
def trained(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, pd.DataFrame]:
    """A run's folder whose model gives made-up scores, and those: four concepts test, two train, one val."""
    import bcs_lab.score

    frame = scores_of(drawn)
    frame["ood"] = np.arange(len(frame)) % 3 == 0
    run = tmp_path / "run"
    (run / "ensemble").mkdir(parents=True)
    (run / "ensemble" / "ensemble.json").write_text("{}")
    parts = {"p00": "test", "p01": "test", "p02": "train", "p03": "train", "p04": "val"}
    split = [parts[pair_id[:3]] for pair_id in frame["pair_id"]]
    pd.DataFrame({"pair_id": frame["pair_id"], "split": split}).to_parquet(run / "split.parquet")

    class Fake:
        ensemble = SimpleNamespace(digest="abc123", provenance={"corpus": "drawn"})
        labels = ("lowlevel",)
        simulated_teachers = False

        @classmethod
        def load(cls, model: Path) -> Fake:
            assert model == run / "ensemble"
            return cls()

        def score_corpus(self, corpus: Corpus, store: Any = None) -> tuple[pd.DataFrame, list[Problem]]:
            return frame[frame["pair_id"].isin(corpus.pairs["pair_id"])], []

    monkeypatch.setattr(bcs_lab.score, "BCS", Fake)
    return run, frame


def test_pairs_seen_in_training_are_counted(
    select: Callable[..., int], trained: tuple[Path, pd.DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = trained
    sizes = ("stimuli=5", "high_perceptual=3", "high_semantic=3", "highest=2", "lowest=2")
    assert select(*sizes, "out=all", f"model={run}") == 0
    said = "Of the 10 chosen pairs the model was trained on 4 and validated on 2 (split.parquet of its run)"
    study = Study.read(Path("all"))
    assert study.scores["parts"] == {"train": 4, "val": 2, "test": 4}
    assert any(said in note for note in study.warnings)
    assert f"Note: {said}" in capsys.readouterr().out

    assert select(*SMALL, "out=held", f"model={run}", "part=test") == 0
    study = Study.read(Path("held"))
    assert {item.pair_id for item in study.items} == {"p00_0", "p00_1", "p01_0", "p01_1"}
    assert study.scores["part"] == "test"
    assert study.scores["parts"] == {"test": 4}
    assert "trained on" not in capsys.readouterr().out

    (run / "split.parquet").unlink()
    assert select(*SMALL, "out=lost", f"model={run}") == 0
    assert "which of the chosen pairs it has seen is unknown" in capsys.readouterr().out
    assert select(*SMALL, "out=none", f"model={run}", "part=test") == 2
    assert "split.parquet is not there" in capsys.readouterr().err
    assert select(*SMALL, "out=none", "part=test") == 2
    assert "expected model=RUN beside it" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["model", "csv", "parquet"])
def test_pairs_out_of_distribution_are_counted(
    select: Callable[..., int], trained: tuple[Path, pd.DataFrame], capsys: pytest.CaptureFixture[str], form: str
) -> None:
    run, frame = trained
    frame.to_csv("s.csv", index=False) if form == "csv" else frame.to_parquet("s.parquet")
    assert select(*SMALL, "out=study", f"model={run}" if form == "model" else f"scores=s.{form}") == 0
    study = Study.read(Path("study"))
    strange = set(frame.loc[frame["ood"], "pair_id"])
    mine = sum(item.pair_id in strange for item in study.items)
    assert study.scores["ood"] == {"chosen": {"n": mine, "pairs": 4}, "all": {"n": 4, "pairs": 10}}
    said = f"Out of distribution (ood) for the model: {mine} of 4 chosen pairs ({mine / 4:.0%}".replace("%", " %")
    assert f"Note: {said}), 4 of 10 scored pairs (40 %)" in capsys.readouterr().out
    assert any(note.startswith(said) for note in study.warnings)


def test_a_model_that_cannot_tell_gives_no_share(
    select: Callable[..., int], trained: tuple[Path, pd.DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    _, frame = trained
    frame.assign(ood=None).to_csv("s.csv", index=False)
    assert select(*SMALL, "out=study", "scores=s.csv") == 0
    assert "distribution" not in capsys.readouterr().out
    assert "ood" not in Study.read(Path("study")).scores


def test_a_place_that_cannot_be_written_is_named_first(
    select: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("")
    assert select(*SMALL, "out=file/study") == 2
    error = capsys.readouterr().err
    assert "out=" in error
    assert "cannot be written" in error


def test_plain_strata_are_not_called_dominant(select: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert select(*SMALL, "out=a", "high=plain") == 0
    out = capsys.readouterr().out
    assert "dominant" not in out
    assert "high T-PAS" in out


def test_what_cannot_be_is_said(
    bcs: Callable[..., int], select: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bcs("study", "select", "corpus=brainbank") == 2
    assert "has no images" in capsys.readouterr().err
    assert select() == 2
    assert "5 reference pictures have at least 2 distinct" in capsys.readouterr().err
    assert select("stimuli=4") == 2
    error = capsys.readouterr().err
    assert "is 18, expected stimuli=4 x per_stimulus=2 = 8" in error
    assert select(*SMALL, "model=a", "scores=b") == 2
    assert "not both" in capsys.readouterr().err
    assert not list(Path().glob("**/study.json"))


def test_torn_pictures_are_errors_or_left_out(
    select: Callable[..., int], drawn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert select(*SMALL, "out=whole") == 0
    chosen = Study.read(Path("whole")).items[0].pair_id
    torn = drawn / f"images/rec{int(chosen[1:3])}_{chosen[-1]}.png"
    torn.write_bytes(torn.read_bytes()[:-600])
    assert select(*SMALL, "out=torn") == 2
    assert torn.name in capsys.readouterr().err
    assert select(*SMALL, "out=torn", "corpus.on_bad_row=skip") == 0
    assert chosen not in {item.pair_id for item in Study.read(Path("torn")).items}


def test_a_study_is_found_where_it_may_be_expected(tmp_path: Path) -> None:
    from bcs_lab.human.study import FILE, find_study

    def made(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / FILE).write_text("{}")
        return folder

    ratings = tmp_path / "ratings"
    with pytest.raises(StudyError, match="study=DIR"):
        find_study(None, tmp_path, ratings, ratings.parent)
    latest = made(tmp_path / "runs" / "study_select" / "b")
    assert find_study(None, tmp_path, ratings) == latest
    beside = made(tmp_path / "study")
    assert find_study(None, tmp_path, ratings) == beside
    inside = made(ratings)
    assert find_study(None, tmp_path, ratings) == inside
    assert find_study(tmp_path / "named", tmp_path, ratings) == tmp_path / "named"
