"""Annotations: missing is a mask, wrong is a problem, and nothing is guessed."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_files import Make, pair, record, write_jsonl

from bcs_lab.corpus import Corpus, load_corpus
from bcs_lab.errors import ConfigError, CorpusError
from bcs_lab.teachers.protocol import BCS12

NO_IMAGES: dict[str, Any] = {"need_images": False}


def load(root: Path, **options: Any) -> Corpus:
    return load_corpus("manifest", root, **NO_IMAGES, **options)


def fails(root: Path, **options: Any) -> str:
    with pytest.raises(CorpusError) as caught:
        load(root, **options)
    return str(caught.value)


def test_answers_and_rationales(make_corpus: Make) -> None:
    answers = {
        "P1": {"answer": " YES ", "reasoning": "a"},
        "P2": {"answer": "Somewhat", "rationale": "b"},
        "P3": {"answer": "no", "reason": "c"},
        "P4": "yes",
        "P5": None,
        "P6": {"answer": None, "reasoning": "unsure"},
        "S1": {"reasoning": "only words"},
        "S2": {"answer": "no", "reasoning": None, "rationale": "d"},
    }
    root = make_corpus([pair("p1")], {"t": [{"pair_id": "p1", "answers": answers, "status": "ok", "teacher": "x"}]})
    corpus = load(root)
    expected = [1, 0.5, 0, 1, np.nan, np.nan, np.nan, 0, np.nan, np.nan, np.nan, np.nan]
    np.testing.assert_array_equal(corpus.answers[0, 0], np.array(expected, dtype=np.float32))
    assert corpus.rationales[0, 0].tolist() == ["a", "b", "c", "", "", "unsure", "only words", "d", "", "", "", ""]


def test_pair_missing_from_some_teachers_is_a_mask(make_corpus: Make) -> None:
    root = make_corpus([pair("p1"), pair("p2")], {"a": [record("p1"), record("p2")], "b": [record("p2", "no")]})
    corpus = load(root)
    assert np.isnan(corpus.answers[0, 1]).all()
    assert (corpus.answers[1] == [[1], [0]]).all()


@pytest.mark.parametrize("value", ["maybe", "", "yes|no", 1, 0.5, True, ["yes"], {"answer": "no"}])
@pytest.mark.parametrize("plain", [True, False])
def test_label_outside_the_scale(make_corpus: Make, value: Any, plain: bool) -> None:
    if plain and isinstance(value, dict):
        return
    bad = record("p2", S3=value if plain else {"answer": value, "reasoning": ""})
    root = make_corpus([pair("p1"), pair("p2")], {"a": [record("p1"), bad], "b": [record("p1"), record("p2")]})
    message = fails(root)
    assert message.startswith("1 problem ")
    assert "annotations/a.jsonl:2: pair 'p2': answer outside the scale: S3 is" in message
    assert "no, somewhat, yes" in message
    corpus = load(root, on_bad_row="skip")
    assert len(corpus) == 2
    assert np.isnan(corpus.answers[1, 0]).all()
    assert not np.isnan(corpus.answers[1, 1]).any()
    assert corpus.rationales[1, 0].tolist() == [""] * 12
    assert [(p.file, p.row, p.pair_id) for p in corpus.skipped] == [("annotations/a.jsonl", 2, "p2")]


def test_unknown_questions_and_pairs(make_corpus: Make) -> None:
    records = [record("p1", P7="yes"), record("P2"), record("zz"), record("p2")]
    root = make_corpus([pair("p1"), pair("p2")], {"a": records, "b": [record("p1"), record("p2")]})
    message = fails(root)
    assert message.startswith("3 problems")
    assert "a.jsonl:1: pair 'p1': unknown question 'P7'" in message
    assert "a.jsonl:2: pair 'P2': the manifest has no such pair; did you mean 'p2'?" in message
    assert "a.jsonl:3: pair 'zz': the manifest has no such pair" in message


def test_pair_without_annotations(make_corpus: Make) -> None:
    nothing = {"pair_id": "p3", "answers": {"P1": None}}
    root = make_corpus([pair("p1"), pair("p2"), pair("p3")], {"a": [record("p1"), nothing]})
    message = fails(root)
    assert message.startswith("2 problems")
    assert "manifest.csv:3: pair 'p2': pair without annotations" in message
    assert "manifest.csv:4: pair 'p3': pair without annotations" in message
    assert load(root, on_bad_row="skip").pairs["pair_id"].tolist() == ["p1"]


def test_pair_whose_only_record_is_bad_is_skipped(make_corpus: Make) -> None:
    root = make_corpus([pair("p1"), pair("p2")], {"a": [record("p1"), record("p2", P1="maybe")]})
    assert fails(root).startswith("1 problem ")
    corpus = load(root, on_bad_row="skip")
    assert corpus.pairs["pair_id"].tolist() == ["p1"]
    assert [p.file for p in corpus.skipped] == ["manifest.csv", "annotations/a.jsonl"]


def test_duplicate_records(make_corpus: Make) -> None:
    records = [record("p1"), record("p2"), record("p1"), record("p2", "no")]
    root = make_corpus([pair("p1"), pair("p2")], {"a": records, "b": [record("p1"), record("p2")]})
    message = fails(root)
    assert message.startswith("3 problems")
    assert "a.jsonl:3: pair 'p1': repeats the record of line 1" in message
    assert "a.jsonl:2: pair 'p2': 2 different records of this pair (lines 2, 4)" in message
    assert "a.jsonl:4: pair 'p2': 2 different records of this pair (lines 2, 4)" in message
    corpus = load(root, on_bad_row="skip")
    assert not np.isnan(corpus.answers[0, 0]).any()
    assert np.isnan(corpus.answers[1, 0]).all()


@pytest.mark.parametrize("bad", [{"pair_id": None}, {"pair_id": True}, {"pair_id": ""}, {"pair_id": ["p1"]}])
def test_pair_id_of_a_record(make_corpus: Make, bad: dict[str, Any]) -> None:
    root = make_corpus([pair("p1")], {"a": [record("p1"), {**record("p1"), **bad}]})
    assert "a.jsonl:2: expected `pair_id` to be a text" in fails(root)


def test_number_as_pair_id(make_corpus: Make) -> None:
    assert (load(make_corpus([pair("7")], {"a": [record(7)]})).answers == 1).all()


@pytest.mark.parametrize("answers", ["yes", ["yes"], 3])
def test_answers_must_be_an_object(make_corpus: Make, answers: Any) -> None:
    root = make_corpus([pair("p1")], {"a": [{"pair_id": "p1", "answers": answers}], "b": [record("p1")]})
    assert "a.jsonl:1: pair 'p1': expected `answers` to be an object" in fails(root)


def test_record_without_its_keys(make_corpus: Make) -> None:
    root = make_corpus([pair("p1")], {"a": [{"pair_id": "p1", "P1": "yes"}], "b": [record("p1"), {"answers": {}}]})
    message = fails(root)
    assert "a.jsonl:1: pair 'p1': expected `answers` in the record, found pair_id, P1" in message
    assert "b.jsonl:2: expected `pair_id` in the record, found answers" in message


# --- torn files ------------------------------------------------------------------------------------------------------


def test_torn_last_line(make_corpus: Make) -> None:
    root = make_corpus([pair("p1"), pair("p2")], {"b": [record("p1"), record("p2")]})
    text = json.dumps({"pair_id": "p1", "answers": {"P1": "yes"}}) + "\n" + '{"pair_id":"p2","status":"ok","answ'
    (root / "annotations/a.jsonl").write_text(text)
    message = fails(root)
    assert message.startswith("1 problem ")
    assert "annotations/a.jsonl:2: pair 'p2': incomplete last line" in message
    corpus = load(root, on_bad_row="skip")
    assert len(corpus) == 2
    assert np.isnan(corpus.answers[1, 0]).all()


def test_tail_of_nul_bytes(make_corpus: Make, caplog: pytest.LogCaptureFixture) -> None:
    root = make_corpus([pair("p1")], {})
    (root / "annotations").mkdir()
    line = json.dumps({"pair_id": "p1", "answers": {"P1": "yes"}}).encode() + b"\n"
    (root / "annotations/a.jsonl").write_bytes(line + bytes(120))
    assert "annotations/a.jsonl:2: 120 NUL bytes" in fails(root)
    with caplog.at_level(logging.WARNING):
        corpus = load(root, on_bad_row="skip")
    assert len(corpus) == 1
    assert "120 NUL bytes" in caplog.text


def test_other_damage(make_corpus: Make) -> None:
    root = make_corpus([pair("p1"), pair("p2"), pair("p3")], {"b": [record("p1"), record("p2"), record("p3")]})
    good = json.dumps(record("p1")).encode()
    lines = [
        good,
        good.replace(b"p1", b"p\xe9"),
        b"{not json}",
        b'"text"',
        b"[" * 100_000,
        b'{"pair_id": "p3", "pair_id": 1}',
    ]
    (root / "annotations/a.jsonl").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join([lines[0], b"", *lines[1:]]) + b"\n")
    message = fails(root)
    assert message.startswith("5 problems")
    assert "a.jsonl:3: " in message
    assert "not UTF-8: byte 0xe9" in message
    assert "a.jsonl:4: not valid JSON" in message
    assert "a.jsonl:5: expected a JSON object, found a text" in message
    assert "a.jsonl:6: not valid JSON" in message
    assert "key 'pair_id' appears twice" in message


def test_half_a_surrogate_in_a_rationale(make_corpus: Make) -> None:
    root = make_corpus([pair("p1")], {})
    (root / "annotations").mkdir()
    (root / "annotations/a.jsonl").write_text(
        '{"pair_id": "p1", "answers": {"P1": {"answer": "yes", "reasoning": "cut \\ud83d"}}}'
    )
    load(root).rationales[0, 0, 0].encode("utf-8")


# --- files and teachers ----------------------------------------------------------------------------------------------


def test_no_annotations(make_corpus: Make) -> None:
    root = make_corpus([pair("p1")], {})
    message = fails(root)
    assert "no such folder" in message
    assert "annotations/internvl3.jsonl" in message
    (root / "annotations").mkdir()
    assert "found an empty folder" in fails(root)
    (root / "annotations/a.csv").write_text("pair_id\n")
    assert "found a.csv" in fails(root)


def test_files_that_are_not_annotations(make_corpus: Make, caplog: pytest.LogCaptureFixture) -> None:
    root = make_corpus()
    for name in (".DS_Store", "._anna.jsonl", "notes.txt"):
        (root / "annotations" / name).write_text("x")
    with caplog.at_level(logging.WARNING):
        assert load(root).teachers == ("anna", "bert")
    assert "notes.txt" in caplog.text


def test_empty_teacher_file_and_two_of_one_name(make_corpus: Make) -> None:
    root = make_corpus()
    (root / "annotations/empty.jsonl").write_text("")
    assert "annotations/empty.jsonl: the file is empty (0 bytes)" in fails(root, on_bad_row="skip")
    (root / "annotations/empty.jsonl").write_text("\n")
    assert "annotations/empty.jsonl: holds no records" in fails(root)
    (root / "annotations/empty.jsonl").unlink()
    pq.write_table(pa.table({"pair_id": ["p1"]}), root / "annotations/anna.parquet")
    assert "teacher 'anna' is also anna.jsonl" in fails(root)


def test_order_of_teachers(make_corpus: Make) -> None:
    ids = ["p1"]
    names = ["zoe", "ovis2", "abe", "internvl3", "ola", "sail_vl"]
    root = make_corpus([pair("p1")], {name: [record(i) for i in ids] for name in names})
    assert load(root).teachers == ("internvl3", "sail_vl", "ola", "ovis2", "abe", "zoe")
    assert load(root, teachers_order=["zoe", "ola"]).teachers == ("zoe", "ola")
    for wrong in (["zoe", "zack"], ["zoe", "zoe"], []):
        with pytest.raises(ConfigError, match="abe, internvl3, ola, ovis2, sail_vl, zoe"):
            load(root, teachers_order=wrong)


# --- Parquet ---------------------------------------------------------------------------------------------------------


def parquet_forms(records: list[dict[str, Any]]) -> dict[str, pa.Table]:
    long = [
        {"pair_id": r["pair_id"], "question": q, "answer": c["answer"], "rationale": c["reasoning"]}
        for r in records
        for q, c in r["answers"].items()
    ]
    ids = [r["pair_id"] for r in records]
    cell = pa.struct([("answer", pa.string()), ("reasoning", pa.string())])
    entries = [list(r["answers"].items()) for r in records]
    return {
        "struct": pa.Table.from_pylist(records),
        "map": pa.table({"pair_id": ids, "answers": pa.array(entries, type=pa.map_(pa.string(), cell))}),
        "json": pa.table({"pair_id": ids, "answers": [json.dumps(r["answers"]) for r in records]}),
        "long": pa.Table.from_pylist(long),
        "wide": pa.Table.from_pylist(
            [{"pair_id": r["pair_id"], **{q: c["answer"] for q, c in r["answers"].items()}} for r in records]
        ),
    }


@pytest.mark.parametrize("form", ["struct", "map", "json", "long", "wide"])
def test_parquet_equals_jsonl(make_corpus: Make, form: str) -> None:
    records = [record("p1"), {"pair_id": "p2", "answers": {"P2": {"answer": "somewhat", "reasoning": "r"}}}]
    root = make_corpus([pair("p1"), pair("p2")], {"a": records})
    expected = load(root)
    (root / "annotations/a.jsonl").unlink()
    pq.write_table(parquet_forms(records)[form], root / "annotations/a.parquet")
    corpus = load(root)
    np.testing.assert_array_equal(corpus.answers, expected.answers)
    if form != "wide":
        np.testing.assert_array_equal(corpus.rationales, expected.rationales)


def test_problems_of_parquet(make_corpus: Make) -> None:
    root = make_corpus([pair("p1"), pair("p2")], {"b": [record("p1"), record("p2")]})
    path = root / "annotations/a.parquet"
    rows = [("p1", "P1", "yes"), ("p1", "P2", "maybe"), ("p2", "P1", "no"), ("p2", "P1", "no"), ("p9", "P1", "no")]
    pd.DataFrame(rows, columns=["pair_id", "question", "answer"]).to_parquet(path)
    message = fails(root)
    assert "a.parquet:1: pair 'p1': answer outside the scale: P2 is 'maybe'" in message
    assert "a.parquet:4: pair 'p2': question 'P1' is also answered in row 3" in message
    assert "a.parquet:5: pair 'p9': the manifest has no such pair" in message
    # One record is left out, however many of its questions come twice.
    rows = [("p1", "P1", "yes"), *[("p2", question, "no") for question in ("P1", "P1", "P2", "P2")]]
    pd.DataFrame(rows, columns=["pair_id", "question", "answer"]).to_parquet(path)
    (problem,) = load(root, on_bad_row="skip").skipped
    assert (problem.row, problem.pair_id) == (3, "p2")
    assert problem.message == (
        "question 'P1' is also answered in row 2; question 'P2' is also answered in row 4 (row 5)"
    )
    pq.write_table(pa.table({"pair_id": ["p1"], "score": [1.0]}), path)
    assert "annotations/a.parquet: expected the columns pair_id and answers" in fails(root)
    path.write_bytes(path.read_bytes()[:50])
    assert "annotations/a.parquet: not a readable Parquet file" in fails(root)


def test_everything_at_once(make_corpus: Make) -> None:
    rows = [pair("p1"), pair("p2", concept=""), pair("p3"), pair("p4")]
    root = make_corpus(rows, {"a": [record("p1"), record("p2"), record("p9")], "b": [record("p1", P1="?")]})
    (root / "img/ref_p3.png").write_bytes(b"")
    with pytest.raises(CorpusError) as caught:
        load_corpus("manifest", root)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"6 problems in the corpus {root}:"
    where = [line.split(": ")[0].removeprefix("  - ") for line in lines[1:-1]]
    assert where == [
        "manifest.csv:3",
        "manifest.csv:4",
        "manifest.csv:4",
        "manifest.csv:5",
        "annotations/a.jsonl:3",
        "annotations/b.jsonl:1",
    ]
    assert lines[-1].endswith("corpus.on_bad_row=skip")
    corpus = load_corpus("manifest", root, on_bad_row="skip")
    assert corpus.pairs["pair_id"].tolist() == ["p1"]


def test_random_answers_round_trip(make_corpus: Make) -> None:
    rng = np.random.default_rng(3)
    ids = [f"p{i:02d}" for i in range(40)]
    labels = np.array(["no", "somewhat", "yes"])
    codes = rng.integers(-1, 3, (40, 3, 12))
    codes[:, 0] = np.abs(codes[:, 0])
    teachers = {
        name: [
            {"pair_id": i, "answers": {q: labels[c] for q, c in zip(BCS12.ids, codes[n, t], strict=True) if c >= 0}}
            for n, i in enumerate(ids)
        ]
        for t, name in enumerate(("a", "b", "c"))
    }
    for records in teachers.values():
        rng.shuffle(records)  # type: ignore[arg-type]
    corpus = load(make_corpus([pair(i) for i in rng.permutation(ids)], teachers, images=False))
    np.testing.assert_array_equal(corpus.answers, np.where(codes < 0, np.nan, codes / 2).astype(np.float32))


def test_jsonl_helper_writes_what_is_read(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x.jsonl", [record("p1")])
    assert json.loads(path.read_text())["pair_id"] == "p1"
