"""Manifests: every cell stays its text, every bad row is found, no good row is lost."""

from __future__ import annotations

import json
import logging
import time
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_files import Make, pair, picture, record, write_csv, write_jsonl

from bcs_lab.corpus import PAIR_COLUMNS, Corpus, load_corpus, summary, write_skipped
from bcs_lab.corpus.paths import resolve_path
from bcs_lab.corpus.summary import left_out
from bcs_lab.errors import ConfigError, CorpusError, Problem, RunError
from bcs_lab.teachers.protocol import BCS12


def fails(root: Path | str | None, **options: object) -> str:
    with pytest.raises(CorpusError) as caught:
        load_corpus("manifest", root, **options)  # type: ignore[arg-type]
    return str(caught.value)


def skips(root: Path, **options: object) -> Corpus:
    return load_corpus("manifest", root, on_bad_row="skip", **options)  # type: ignore[arg-type]


# --- a good corpus ---------------------------------------------------------------------------------------------------


def test_good_corpus(make_corpus: Make) -> None:
    rows = [pair("b", note="x, y"), pair("a", note="NA"), pair("C", note="")]
    root = make_corpus(rows)
    corpus = load_corpus("manifest", root)
    assert corpus.name == "mine"
    assert corpus.pairs["pair_id"].tolist() == ["C", "a", "b"]
    assert corpus.pairs.columns.tolist() == [*PAIR_COLUMNS, "note"]
    assert corpus.pairs["note"].tolist() == ["", "NA", "x, y"]
    assert list(corpus.pairs.index) == [0, 1, 2]
    assert corpus.where == ["manifest.csv:4", "manifest.csv:3", "manifest.csv:2"]
    assert corpus.root == root
    assert corpus.reference_file(1) == root / "img/ref_a.png"
    assert corpus.reconstruction_file(1) == root / "img/rec_a.png"
    assert corpus.teachers == ("anna", "bert")
    assert corpus.answers.dtype == np.float32
    assert corpus.answers.shape == (3, 2, 12)
    assert (corpus.answers[:, 0] == 1).all()
    assert (corpus.answers[:, 1] == 0).all()
    assert corpus.rationales[1, 0, 2] == "P3 of a"
    assert corpus.skipped == []
    assert not corpus.stand_ins
    assert corpus.shipped == {}
    assert len(corpus) == 3


def test_subset(make_corpus: Make) -> None:
    corpus = load_corpus("manifest", make_corpus())
    part = corpus.subset(np.array([True, False, True]))
    assert part.pairs["pair_id"].tolist() == ["p1", "p3"]
    assert list(part.pairs.index) == [0, 1]
    assert part.answers.shape == (2, 2, 12)
    assert part.rationales[1, 0, 0] == "P1 of p3"
    assert part.where == ["manifest.csv:2", "manifest.csv:4"]
    with pytest.raises(ValueError, match="bool array"):
        corpus.subset(np.array([0, 2]))


def test_relative_root_and_working_directory(make_corpus: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_corpus()
    monkeypatch.chdir(root.parent)
    corpus = load_corpus("manifest", "mine")
    monkeypatch.chdir("/")
    assert corpus.root == root
    assert corpus.reference_file(0).is_file()


# --- text stays text -------------------------------------------------------------------------------------------------

HARD = [
    "NA",
    "null",
    "None",
    "nan",
    "NaN",
    "01",
    "1e5",
    "1.0",
    "true",
    "-",
    "#N/A",
    "ünï",
    "a,b",
    'say "hi"',
    "two\nlines",
]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_names_that_look_like_something_else(make_corpus: Make, suffix: str) -> None:
    rows = [pair(f"p{i:02d}", concept=text, subject=text, rank=text, extra=text) for i, text in enumerate(HARD)]
    root = make_corpus(rows)
    if suffix != "csv":
        (root / "manifest.csv").unlink()
    if suffix == "jsonl":
        write_jsonl(root / "manifest.jsonl", rows)
    elif suffix == "parquet":
        pd.DataFrame(rows).to_parquet(root / "manifest.parquet")
    corpus = load_corpus("manifest", root)
    for column in ("concept", "subject", "rank", "extra"):
        assert corpus.pairs[column].tolist() == HARD
    first = {"csv": 2, "jsonl": 1, "parquet": 1}[suffix]
    assert corpus.where[3] == f"manifest.{suffix}:{first + 3}"


def test_numbers_of_parquet_and_jsonl_become_text(make_corpus: Make) -> None:
    rows = [pair("1"), pair("2"), pair("3")]
    root = make_corpus(rows, name="parquet")
    (root / "manifest.csv").unlink()
    frame = pd.DataFrame(rows)
    frame["pair_id"] = [1, 2, 3]
    frame["rank"] = [1.0, None, 3.0]
    frame["score"] = np.array([0.1, 2.0, np.nan], dtype=np.float32)
    frame["flag"] = [True, False, True]
    frame["concept"] = pd.Categorical(["cat", "dog", "cat"])
    frame.to_parquet(root / "manifest.parquet")
    pairs = load_corpus("manifest", root).pairs
    assert pairs["pair_id"].tolist() == ["1", "2", "3"]
    assert pairs["rank"].tolist() == ["1", "na", "3"]
    assert pairs["score"].tolist() == ["0.1", "2.0", ""]
    assert pairs["flag"].tolist() == ["true", "false", "true"]
    assert pairs["concept"].tolist() == ["cat", "dog", "cat"]
    assert all(isinstance(cell, str) for cell in pairs.to_numpy().ravel())
    (root / "manifest.parquet").unlink()
    lines = [
        json.dumps({**row, "pair_id": int(row["pair_id"]), "rank": rank, "flag": True, "score": score})
        for row, rank, score in zip(rows, [1.0, None, 3.0], [0.5, 2.0, 1e5], strict=True)
    ]
    (root / "manifest.jsonl").write_text("\n".join(lines).replace("100000.0", "1e5"), encoding="utf-8")
    pairs = load_corpus("manifest", root).pairs
    assert pairs["pair_id"].tolist() == ["1", "2", "3"]
    assert pairs["rank"].tolist() == ["1", "na", "3"]
    assert pairs["score"].tolist() == ["0.5", "2.0", "1e5"]
    assert pairs["flag"].tolist() == ["true"] * 3


def test_unknown_cells_become_na_but_needed_ones_are_problems(make_corpus: Make) -> None:
    rows = [pair("p1", subject="", rank=" "), pair("p2", concept=""), pair("p3", reference_path="")]
    root = make_corpus(rows)
    message = fails(root)
    assert message.startswith("2 problems")
    assert "manifest.csv:3: pair 'p2': column concept is empty" in message
    assert "manifest.csv:4: pair 'p3': column reference_path is empty" in message
    corpus = skips(root)
    assert corpus.pairs.loc[0, ["subject", "rank"]].tolist() == ["na", "na"]


def test_folders_named_like_partitions_add_no_columns(make_corpus: Make) -> None:
    root = make_corpus(name="year=2024")
    frame = pd.read_csv(root / "manifest.csv", dtype=str)
    (root / "manifest.csv").unlink()
    frame.to_parquet(root / "manifest.parquet", index=False)
    assert load_corpus("manifest", root).pairs.columns.tolist() == list(PAIR_COLUMNS)


# --- files -----------------------------------------------------------------------------------------------------------


def test_root(make_corpus: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_corpus()
    assert "corpus.root=DIR" in fails(None)
    assert "/nowhere" in fails("/nowhere")
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path / "elsewhere") in fails("elsewhere")
    assert f"Did you mean {root}" in fails("mines")
    assert f"corpus.root={root}?" in fails(root / "manifest.csv")


def test_exactly_one_manifest(make_corpus: Make) -> None:
    root = make_corpus()
    write_jsonl(root / "manifest.jsonl", [pair("p1")])
    message = fails(root)
    assert "found manifest.csv and manifest.jsonl" in message
    (root / "manifest.jsonl").unlink()
    (root / "manifest.csv").rename(root / "Manifest.CSV")
    message = fails(root)
    assert "manifest.csv, manifest.parquet, manifest.jsonl" in message
    assert "annotations/" in message
    assert "Did you mean Manifest.CSV" in message


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty (0 bytes)"),
        (b"\n\n", "only blank lines"),
        (",".join(PAIR_COLUMNS).encode() + b"\n", "empty manifest"),
        (";".join(PAIR_COLUMNS).encode() + b"\na;b;c;d;e;f;g;h\n", "semicolons"),
        ("\t".join(PAIR_COLUMNS).encode() + b"\n", "tabs"),
        ((",".join(PAIR_COLUMNS) + ",method\n").encode(), "names 'method' more than once"),
        (",".join(PAIR_COLUMNS).encode("utf-16"), "UTF-16"),
        (",".join(PAIR_COLUMNS).encode() + b'\np1,"never closed,a,b\n', "manifest.csv:2: a quote"),
    ],
)
def test_unusable_csv(make_corpus: Make, content: bytes, part: str) -> None:
    root = make_corpus()
    (root / "manifest.csv").write_bytes(content)
    message = fails(root)
    assert part in message
    assert "manifest.csv" in message
    assert str(root) in message
    assert part in fails(root, on_bad_row="skip")


@pytest.mark.parametrize(
    ("suffix", "content", "part"),
    [
        ("parquet", b"", "empty (0 bytes)"),
        ("parquet", b"PAR1 garbage PAR1", "not a readable Parquet file"),
        ("jsonl", b"", "empty (0 bytes)"),
        ("jsonl", b"\n", "empty manifest"),
        ("jsonl", b'[{"pair_id": "p1"}]', "expected JSON Lines"),
        ("jsonl", b'{\n "pair_id": "p1"\n}\n', "expected JSON Lines"),
    ],
)
def test_unusable_parquet_and_jsonl(make_corpus: Make, suffix: str, content: bytes, part: str) -> None:
    root = make_corpus()
    (root / "manifest.csv").unlink()
    (root / f"manifest.{suffix}").write_bytes(content)
    assert part in fails(root)


def test_truncated_parquet(make_corpus: Make) -> None:
    root = make_corpus()
    frame = pd.read_csv(root / "manifest.csv", dtype=str)
    (root / "manifest.csv").unlink()
    frame.to_parquet(root / "manifest.parquet", index=False)
    data = (root / "manifest.parquet").read_bytes()
    (root / "manifest.parquet").write_bytes(data[: len(data) // 2])
    assert "manifest.parquet: not a readable Parquet file" in fails(root)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("generated_path", "reconstruction_path"),
        ("methd", "method"),
        ("Pair_ID", "pair_id"),
        (" subject", "subject"),
        ("class_name", "concept"),
        ("gt_path", "reference_path"),
    ],
)
def test_unknown_columns(make_corpus: Make, wrong: str, right: str) -> None:
    root = make_corpus()
    text = (root / "manifest.csv").read_text()
    header, rest = text.split("\n", 1)
    columns = [wrong if name == right else name for name in header.strip().split(",")]
    (root / "manifest.csv").write_text(",".join([*columns]) + "\n" + rest)
    message = fails(root)
    assert f"missing column {right} (did you mean to rename {wrong!r}?)" in message
    assert repr(wrong) in message


def test_missing_columns_do_not_hide_other_problems(make_corpus: Make) -> None:
    rows = [{k: v for k, v in pair(i).items() if k not in ("rank", "candidate")} for i in ("p1", "p2", "p1")]
    rows[2]["concept"] = "other"
    message = fails(make_corpus(rows))
    assert "missing columns rank, candidate" in message
    assert "used in lines 2, 4" in message


# --- rows ------------------------------------------------------------------------------------------------------------


def test_ragged_quoted_and_damaged_rows_with_physical_lines(make_corpus: Make) -> None:
    root = make_corpus([pair(f"p{i}") for i in range(1, 9)])
    lines = (root / "manifest.csv").read_text().splitlines()
    lines[1] = lines[1].replace("cat", '"a cat\non two lines"')  # p1: lines 2 and 3
    lines[2] += ",surplus"  # p2: line 4
    lines[3] = lines[3].rsplit(",", 1)[0]  # p3: line 5
    lines[4] = "\n" + lines[4]  # p4: after a blank line, line 7
    lines[5] = lines[5].replace("cat", "caf\udce9")  # p5: line 8, Latin-1
    lines[6] = lines[6].replace("cat", "c\0at")  # p6: line 9
    lines[7] = lines[7].replace("cat", 'c"a"t"')  # p7: a stray quote inside is plain text
    lines[8] = lines[8].replace("cat", '"cat"s')  # p8: line 11
    data = "\n".join(lines).encode("utf-8", "surrogateescape")
    (root / "manifest.csv").write_bytes(b"\xef\xbb\xbf" + data)
    message = fails(root)
    assert message.startswith("5 problems"), message
    assert "manifest.csv:4: pair 'p2': has 9 cells, but the header has 8" in message
    assert "manifest.csv:5: pair 'p3': has 7 cells" in message
    offset = 3 + data.index(b"\xe9")
    assert f"manifest.csv:8: pair 'p5': is not UTF-8: byte 0xe9 at offset {offset}" in message
    assert "manifest.csv:9: pair 'p6': holds NUL bytes" in message
    assert "manifest.csv:11: pair 'p8': not valid CSV" in message
    corpus = skips(root)
    assert corpus.pairs["pair_id"].tolist() == ["p1", "p4", "p7"]
    assert corpus.pairs["concept"].tolist() == ["a cat\non two lines", "cat", 'c"a"t"']
    assert corpus.where == ["manifest.csv:2", "manifest.csv:7", "manifest.csv:10"]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends_and_blank_lines(make_corpus: Make, end: str) -> None:
    root = make_corpus()
    text = (root / "manifest.csv").read_text()
    (root / "manifest.csv").write_bytes((end + text.replace("\n", end) + end + "  " + end + ",,,,,,," + end).encode())
    corpus = load_corpus("manifest", root)
    assert corpus.where == ["manifest.csv:3", "manifest.csv:4", "manifest.csv:5"]


def test_bad_lines_of_jsonl(make_corpus: Make) -> None:
    root = make_corpus([pair(f"p{i}") for i in range(1, 6)])
    (root / "manifest.csv").unlink()
    rows = [json.dumps(pair(f"p{i}")) for i in range(1, 6)]
    rows[1] = rows[1].replace('"method"', '"pair_id"', 1)
    rows[2] = "[1, 2]"
    rows[4] = rows[4][:40]
    (root / "manifest.jsonl").write_text("\n".join([rows[0], "", *rows[1:]]))
    message = fails(root)
    assert "manifest.jsonl:3" in message
    assert "key 'pair_id' appears twice" in message
    assert "manifest.jsonl:4: expected a JSON object, found an array" in message
    assert "manifest.jsonl:6: pair 'p5': incomplete last line" in message
    assert skips(root).pairs["pair_id"].tolist() == ["p1", "p4"]


def test_duplicates_and_counts(make_corpus: Make, caplog: pytest.LogCaptureFixture) -> None:
    def row(pair_id: str, concept: str, ref: str, rec: str, subject: str = "sub-01") -> dict[str, str]:
        paths = {"reference_path": f"img/{ref}.png", "reconstruction_path": f"img/{rec}.png"}
        return pair(pair_id, concept=concept, subject=subject, **paths)

    rows = [
        row("p1", "cat", "r0", "g0"),
        row("p1", "cat", "r0", "g1"),
        row("p2", "dog", "r1", "g1"),
        row("p3", "dog", "r1", "g1"),
        row("p4", "cow", "r2", "missing", "sub-02"),
        row("p5", "hen", "r3", "r3", "sub-02"),
    ]
    root = make_corpus(rows)
    (root / "img/missing.png").unlink()
    with caplog.at_level(logging.WARNING):
        message = fails(root)
    assert message.startswith("4 problems")
    assert "manifest.csv:2: pair 'p1': duplicate pair id: used in lines 2, 3" in message
    assert "manifest.csv:3: pair 'p1': duplicate pair id: used in lines 2, 3" in message
    assert "manifest.csv:6: pair 'p4'" in message
    assert "img/missing.png" in message
    assert "manifest.csv:7: pair 'p5': reference and reconstruction are the same file" in message
    assert "corpus.on_bad_row=skip" in message
    assert "p2 (manifest.csv:4), p3 (manifest.csv:5)" in caplog.text
    corpus = skips(root)
    assert corpus.pairs["pair_id"].tolist() == ["p2", "p3"]
    assert len(corpus.skipped) == 4
    table = summary(corpus)
    assert table.to_dict("records") == [
        {
            "method": "ATM",
            "subject": "sub-01",
            "pairs": 2,
            "concepts": 1,
            "references": 1,
            "answered_anna": 1.0,
            "answered_bert": 1.0,
        }
    ]


def test_identical_duplicates_keep_the_first(make_corpus: Make) -> None:
    root = make_corpus([pair("p1"), pair("p2"), pair("p1")])
    message = fails(root)
    assert message.startswith("1 problem ")
    assert "manifest.csv:4: pair 'p1': duplicate pair id: repeats line 2" in message
    assert skips(root).pairs["pair_id"].tolist() == ["p1", "p2"]


def test_pair_ids_with_blanks(make_corpus: Make, caplog: pytest.LogCaptureFixture) -> None:
    root = make_corpus([pair("p1 ", reference_path="a.png", method="ATM "), pair("p2")])
    assert "manifest.csv:2: pair 'p1 ': pair_id 'p1 ' begins or ends with a blank" in fails(root)
    assert "method" in caplog.text


def test_what_is_left_out_is_counted_truly(make_corpus: Make, caplog: pytest.LogCaptureFixture) -> None:
    rows = [pair(f"p{i}") for i in range(6)]
    teachers = {"a": [record(f"p{i}") for i in range(6)], "b": [record(f"p{i}") for i in range(6)]}
    root = make_corpus(rows, teachers)
    manifest = root / "manifest.csv"
    lines = manifest.read_text().splitlines()
    # Two ragged rows, which never become cells.
    manifest.write_text("\n".join([*lines[:5], lines[5] + ",more", lines[6].rpartition(",")[0]]) + "\n")
    corpus = skips(root)
    assert len(corpus) == 4
    assert "2 manifest rows left out, 4 pairs kept" in caplog.text
    # One row with two problems, and records that are bad by themselves, one of them with two bad answers.
    caplog.clear()
    write_csv(manifest, [pair("p0", concept="", reference_path=""), *rows[1:]])
    bad = [record("p1", P1="maybe", P2="maybe"), record("p2"), record("p2", "no"), record("zz")]
    write_jsonl(root / "annotations/a.jsonl", [record("p0"), *bad, *(record(f"p{i}") for i in (3, 4, 5))])
    corpus = skips(root)
    assert len(corpus) == 5
    assert len(corpus.skipped) == 6
    assert "1 manifest row and 4 annotation records left out, 5 pairs kept" in caplog.text


def test_left_out() -> None:
    assert left_out([]) == "nothing"
    assert left_out([Problem("cat.jpg", None, "torn"), Problem("manifest.csv", 2, "a")]) == "1 manifest row and 1 file"
    row = [Problem("manifest.csv", 3, text) for text in ("reference image: torn", "reconstruction image: torn")]
    assert left_out(row) == "1 manifest row"


def test_skipped_file(make_corpus: Make, tmp_path: Path) -> None:
    root = make_corpus([pair("p1"), pair("p2", concept="")])
    corpus = skips(root)
    write_skipped(corpus.skipped, tmp_path / "skipped.csv")
    table = pd.read_csv(tmp_path / "skipped.csv", dtype=str)
    assert table.columns.tolist() == ["file", "row", "pair_id", "problem"]
    assert table.to_numpy().tolist() == [["manifest.csv", "3", "p2", "column concept is empty"]]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "skipped.csv"]
    with pytest.raises(RunError, match="nowhere"):
        write_skipped(corpus.skipped, tmp_path / "nowhere" / "skipped.csv")


def test_nothing_left(make_corpus: Make) -> None:
    message = fails(make_corpus([pair("p1", concept="")]), on_bad_row="skip")
    assert "no usable pair is left" in message
    assert "column concept is empty" in message


def test_arguments(make_corpus: Make) -> None:
    root = make_corpus()
    with pytest.raises(ConfigError, match="error or skip"):
        load_corpus("manifest", root, on_bad_row="ignore")
    with pytest.raises(ConfigError, match="Did you mean manifest"):
        load_corpus("manifst", root)
    for wrong in (0, True, "many"):
        with pytest.raises(ConfigError, match="max_image_pixels"):
            load_corpus("manifest", root, max_image_pixels=wrong)  # type: ignore[arg-type]


# --- images ----------------------------------------------------------------------------------------------------------


def test_one_report_lists_every_broken_image(make_corpus: Make) -> None:
    root = make_corpus([pair(f"p{i}") for i in range(1, 7)])
    whole = (root / "img/ref_p1.png").read_bytes()
    (root / "img/ref_p1.png").write_bytes(b"")
    (root / "img/rec_p2.png").write_bytes(b"<html>404</html>")
    (root / "img/rec_p3.png").write_bytes(whole[: len(whole) // 2])  # its header is whole
    (root / "img/ref_p4.png").unlink()
    (root / "img/rec_p5.png").unlink()
    (root / "img/rec_p5.png").mkdir()
    message = fails(root)
    assert message.startswith("5 problems")
    for line, pair_id, part in (
        (2, "p1", "reference_path: "),
        (3, "p2", "HTML"),
        (4, "p3", "truncated"),
        (5, "p4", "no file 'img/ref_p4.png'"),
        (6, "p5", "is a folder"),
    ):
        found = next(text for text in message.splitlines() if f"manifest.csv:{line}: pair {pair_id!r}" in text)
        assert part in found
    # Without a report to write, pixels are decoded where they are used.
    for name in ("ref_p1", "rec_p2", "ref_p4"):
        picture(root / f"img/{name}.png", seed=len(name))
    (root / "img/rec_p5.png").rmdir()
    picture(root / "img/rec_p5.png")
    assert len(load_corpus("manifest", root)) == 6


def test_size_limit_names_pair_and_numbers(make_corpus: Make) -> None:
    root = make_corpus()
    picture(root / "img/rec_p2.png", size=(40, 30))
    message = fails(root, max_image_pixels=1000)
    assert message.startswith("1 problem ")
    for part in ("pair 'p2'", str(root / "img/rec_p2.png"), "1200 pixels", "limit of 1000"):
        assert part in message
    assert skips(root, max_image_pixels=1000).pairs["pair_id"].tolist() == ["p1", "p3"]
    assert load_corpus("manifest", root, max_image_pixels=1200).max_image_pixels == 1200


def test_images_may_be_absent_when_embeddings_come_from_elsewhere(make_corpus: Make) -> None:
    rows = [pair("p1"), pair("p2", reference_path="na", reconstruction_path="na"), pair("p3", reference_path="")]
    root = make_corpus(rows, images=False)
    assert len(load_corpus("manifest", root, need_images=False)) == 3
    assert fails(root).startswith("6 problems")


def test_animation_warns_with_the_pair(make_corpus: Make, caplog: pytest.LogCaptureFixture) -> None:
    from PIL import Image

    root = make_corpus()
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    frames[0].save(root / "img/ref_p1.png", "GIF", save_all=True, append_images=frames[1:])
    with caplog.at_level(logging.WARNING):
        load_corpus("manifest", root)
    for part in ("pair 'p1'", "3 frames", str(root / "img/ref_p1.png")):
        assert part in caplog.text


def test_odd_paths(make_corpus: Make, caplog: pytest.LogCaptureFixture) -> None:
    good = "two words & more.png"
    composed = unicodedata.normalize("NFC", "crème_brûlée.png")
    rows = [
        pair("A", reference_path=unicodedata.normalize("NFD", composed), reconstruction_path=good),
        pair("B", reference_path="t-shirt__ref.jpg", reconstruction_path="hash#percent%20.png"),
        pair("C", reference_path="dangling.png", reconstruction_path=good),
        pair("D", reference_path="sub\\dir\\x.png", reconstruction_path=good),
        pair("E", reference_path=good + " ", reconstruction_path=good),
    ]
    root = make_corpus(rows, images=False)
    for i, name in enumerate((composed, good, "hash#percent%20.png", "sub/dir/x.png", "t-shirt__ref.png")):
        picture(root / name, seed=i)
    (root / "t-shirt__ref.png").rename(root / "t-shirt__ref.JPG")
    (root / "dangling.png").symlink_to("gone/x.png")
    (root / "loop").mkdir()
    (root / "loop/up").symlink_to("..")
    with caplog.at_level(logging.WARNING):
        message = fails(root)
    assert message.startswith("4 problems")
    assert "pair 'A'" not in message
    assert "pair 'A'" in caplog.text
    lines = {text.split("pair ")[1][1]: text for text in message.splitlines() if "pair '" in text}
    assert "'t-shirt__ref.JPG'" in lines["B"]
    assert "'gone/x.png'" in lines["C"]
    assert str(root / "dangling.png") in lines["C"]
    assert "use / instead of \\" in lines["D"]
    assert "'sub/dir/x.png'" in lines["D"]
    assert f"did you mean {good!r}" in lines["E"]
    assert all(str(root) in text for text in lines.values())
    corpus = skips(root)
    assert corpus.pairs["pair_id"].tolist() == ["A"]
    assert corpus.reference_file(0) == root / composed
    assert corpus.reference_file(0).is_file()


def test_suggestions(tmp_path: Path) -> None:
    picture(tmp_path / "images/sub-01/ref_0001.png")
    picture(tmp_path / "images/with blank.png")

    def hint(text: str) -> str:
        return resolve_path(text, tmp_path).problem or ""

    assert "did you mean 'images/sub-01/ref_0001.png'" in hint("Images/SUB-01/ref_0001.PNG")
    assert "did you mean 'images/with blank.png'" in hint("images/with%20blank.png")
    assert "'ref_0001.png'" in hint("images/sub-01/ref_001.png")
    assert "not opened" in hint("https://example.org/a.png")
    assert "there is no folder" in hint("pictures/a.png")
    assert "absolute path" in hint("/no/such/file.png")
    assert hint("x" * 400)
    assert hint("nul\0.png")
    (tmp_path / "ring.png").symlink_to("ring.png")
    assert "loop" in hint("ring.png")
    assert resolve_path(str(tmp_path / "images/with blank.png"), Path("/")).path is not None


# --- size ------------------------------------------------------------------------------------------------------------


def test_the_papers_size_loads_quickly(tmp_path: Path) -> None:
    n = 6855
    rows = [pair(f"ATM__sub-{i % 10:02d}__c{i // 10}__rank1__cand{i}", concept=f"c{i // 10}") for i in range(n)]
    write_csv(tmp_path / "manifest.csv", rows)
    for t, teacher in enumerate(("ovis2", "ola", "internvl3", "sail_vl")):
        write_jsonl(
            tmp_path / f"annotations/{teacher}.jsonl", [record(r["pair_id"], "no" if t else "yes") for r in rows]
        )
    started = time.perf_counter()
    corpus = load_corpus("manifest", tmp_path, need_images=False)
    elapsed = time.perf_counter() - started
    assert corpus.teachers == ("internvl3", "sail_vl", "ola", "ovis2")
    assert corpus.answers.shape == (n, 4, 12)
    assert elapsed < 10, elapsed


def test_random_tables_survive_every_format(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    alphabet = list("abNA01.,;\"'\t\n \\/#%&éß漢🙂-_")
    expected = {}
    rows = []
    for i in range(200):
        text = "".join(rng.choice(alphabet, rng.integers(1, 9)))
        expected[f"p{i:03d}"] = text
        if not text.strip():
            expected[f"p{i:03d}"] = text = "x"
        rows.append(pair(f"p{i:03d}", concept=text, note=text))
    for suffix in ("csv", "jsonl", "parquet"):
        root = tmp_path / suffix
        write_jsonl(root / "annotations/t.jsonl", [{"pair_id": r["pair_id"], "answers": {"P1": "yes"}} for r in rows])
        if suffix == "csv":
            write_csv(root / "manifest.csv", rows)
        elif suffix == "jsonl":
            write_jsonl(root / "manifest.jsonl", rows)
        else:
            pq.write_table(pa.Table.from_pylist(rows), root / "manifest.parquet")
        pairs = load_corpus("manifest", root, need_images=False).pairs
        assert pairs["concept"].tolist() == list(expected.values()), suffix
        assert pairs["note"].tolist() == list(expected.values()), suffix


def test_protocol_of_a_corpus(make_corpus: Make) -> None:
    assert load_corpus("manifest", make_corpus()).protocol is BCS12
