"""``corpus=simulated``: pairs from a folder of pictures, and no answer that cannot be known."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

from bcs_lab.corpus import Corpus, load_corpus, simulated
from bcs_lab.corpus.demo import truth as rules
from bcs_lab.corpus.demo.scene import Decoder
from bcs_lab.corpus.made import INDEX
from bcs_lab.errors import ConfigError, CorpusError
from bcs_lab.teachers.protocol import BCS12

CLEAR = Decoder(blur=0.1, fade=0.1, noise=0.0, artifact="none", artifact_strength=0.0, seed=1)
Q = {question: i for i, question in enumerate(BCS12.ids)}


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("BCS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def photo(path: Path, seed: int, size: tuple[int, int] = (64, 48)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    picture = Image.new("RGB", size, tuple(generator.integers(0, 256, 3).tolist()))
    x, y = generator.integers(0, 30, 2).tolist()
    ImageDraw.Draw(picture).ellipse((x, y, x + 20, y + 15), fill=tuple(generator.integers(0, 256, 3).tolist()))
    picture.save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three concepts of four pictures."""
    for c, concept in enumerate(("cat", "dog", "red car")):
        for i in range(4):
            photo(tmp_path / "photos" / concept / f"{i}.png", 10 * c + i)
    return tmp_path / "photos"


def index(corpus: Corpus) -> Mapping[str, object]:
    assert corpus.root is not None
    return json.loads((corpus.root / INDEX).read_text())


def test_sub_folders_are_concepts(photos: Path) -> None:
    (photos / "notes.txt").write_text("not a picture")
    (photos / ".hidden.png").write_text("")
    corpus = load_corpus("simulated", images=photos)
    assert len(corpus) == 12 * 4
    assert (corpus.stand_ins, corpus.simulated_teachers) == (False, True)
    assert corpus.name == "simulated photos"
    assert corpus.teachers == ("internvl3", "sail_vl", "ola", "ovis2")
    assert set(corpus.pairs["concept"]) == {"cat", "dog", "red car"}
    assert set(corpus.pairs["method"]) == {"degraded", "swapped_within", "swapped_across"}
    assert corpus.pairs["pair_id"].is_unique
    for _, pair in corpus.pairs.iterrows():
        same = pair["source"] == pair["source_shown"]
        assert same == (pair["method"] == "degraded")
        assert (pair["shows"] == pair["concept"]) == (pair["method"] != "swapped_across")
    counts = corpus.pairs.groupby("source")["method"].value_counts().unstack()
    assert (counts == [2, 1, 1]).all(axis=None)


def test_flat_folder_each_picture_is_a_concept(tmp_path: Path) -> None:
    for i in range(10):
        photo(tmp_path / "flat" / f"thing {i}.png", i)
    corpus = load_corpus("simulated", images=tmp_path / "flat", per_image=2)
    assert len(corpus) == 20
    assert set(corpus.pairs["concept"]) == {f"thing {i}" for i in range(10)}
    assert set(corpus.pairs["method"]) == {"degraded", "swapped_across"}


def test_unknown_answers_are_absent_from_truth_and_teachers(photos: Path) -> None:
    corpus = load_corpus("simulated", images=photos)
    truth = corpus.truth
    assert truth is not None
    absent = np.isnan(truth)
    np.testing.assert_array_equal(np.isnan(corpus.answers), np.repeat(absent[:, None], 4, axis=1))
    assert ((corpus.rationales == "") == np.isnan(corpus.answers)).all()
    method = corpus.pairs["method"].to_numpy()
    assert not absent[method == "degraded"].any()
    assert absent[method != "degraded"].any()
    assert (truth[method == "swapped_across", Q["S2"]] == 0).all()
    assert not absent[:, Q["P5"]].any()


def test_answers_it_can_know() -> None:
    same = dict(zip(BCS12.ids, simulated.known_answers("degraded", CLEAR), strict=True))
    assert set(same.values()) == {1.0}
    within = dict(zip(BCS12.ids, simulated.known_answers("swapped_within", CLEAR), strict=True))
    known = {"P5", "S1", "S2", "S3", "S6"}
    assert all(within[q] == 1.0 if q in known else np.isnan(within[q]) for q in BCS12.ids)
    across = dict(zip(BCS12.ids, simulated.known_answers("swapped_across", CLEAR), strict=True))
    assert {q: v for q, v in across.items() if v == v} == {"P5": 1.0, "S2": 0.0}


@pytest.mark.parametrize("kind", ["degraded", "swapped_within", "swapped_across"])
def test_where_nothing_is_left_to_see_every_answer_but_p5_is_no(kind: str) -> None:
    gone = Decoder(blur=1.0, fade=0.5, noise=0.0, artifact="none", artifact_strength=0.0, seed=1)
    assert rules.visibility(gone) < rules.NOTHING
    values = dict(zip(BCS12.ids, simulated.known_answers(kind, gone), strict=True))
    assert {q for q, v in values.items() if v == 0.0} == set(BCS12.ids) - {"P5"}
    assert values["P5"] == 1.0


def test_colour_and_artifacts_follow_the_decoder() -> None:
    pale = Decoder(blur=0.1, fade=0.95, noise=0.0, artifact="none", artifact_strength=0.0, seed=1)
    assert simulated.known_answers("degraded", pale)[Q["P4"]] == 0.0
    faulty = Decoder(blur=0.1, fade=0.1, noise=0.0, artifact="grid", artifact_strength=0.8, seed=1)
    for kind in ("degraded", "swapped_within", "swapped_across"):
        assert simulated.known_answers(kind, faulty)[Q["P5"]] == 0.0


def test_same_settings_same_corpus_any_number_of_workers(photos: Path, tmp_path: Path) -> None:
    first = load_corpus("simulated", images=photos)
    again = load_corpus("simulated", images=photos, cache=tmp_path / "elsewhere")
    assert index(first)["content"] == index(again)["content"]
    assert index(load_corpus("simulated", images=photos, seed=1))["content"] != index(first)["content"]
    settings = index(first)["settings"]
    (tmp_path / "two" / "images").mkdir(parents=True)
    made = simulated.make_simulated(tmp_path / "two", photos, settings, "error", workers=2)  # type: ignore[arg-type]
    assert [row["reconstruction_path"] for row in made.rows] == first.pairs["reconstruction_path"].tolist()


def test_made_once_for_the_same_content(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    first = load_corpus("simulated", images=photos)
    photos.rename(tmp_path / "moved")
    (tmp_path / "moved").rename(photos)
    with monkeypatch.context() as patch:
        patch.setattr(simulated, "make_simulated", lambda *_: pytest.fail("made again"))
        assert load_corpus("simulated", images=photos).root == first.root
    photo(photos / "cat" / "0.png", 99)
    assert load_corpus("simulated", images=photos).root != first.root


def test_large_pictures_are_scaled_and_turned_upright(photos: Path) -> None:
    wide = Image.new("RGB", (900, 300), (200, 30, 30))
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn
    wide.save(photos / "cat" / "wide.jpg", exif=exif)
    corpus = load_corpus("simulated", images=photos)
    row = corpus.pairs["source"].tolist().index("cat/wide.jpg")
    assert Image.open(corpus.reference_file(row)).size == (107, 320)


# --- bad input -------------------------------------------------------------------------------------------------------


def test_broken_pictures_are_listed_together_or_left_out(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    (photos / "cat" / "torn.png").write_bytes((photos / "cat" / "0.png").read_bytes()[:120])
    (photos / "dog" / "page.jpg").write_text("<html>not found</html>")
    (photos / "dog" / "empty.png").write_bytes(b"")
    (photos / "dog" / "phone.heic").write_bytes(b"\x00\x00\x00\x18ftypheic")
    with pytest.raises(CorpusError) as caught:
        load_corpus("simulated", images=photos)
    message = str(caught.value)
    expected = ("4 pictures", "cat/torn.png: damaged", "dog/page.jpg: not an image", "dog/empty.png: the file is empty")
    for words in (*expected, "dog/phone.heic", "corpus.on_bad_row=skip"):
        assert words in message
    for _ in range(2):  # made, then read from the cache
        corpus = load_corpus("simulated", images=photos, on_bad_row="skip")
        assert len(corpus) == 12 * 4
        assert [problem.file for problem in corpus.skipped] == [
            "cat/torn.png", "dog/empty.png", "dog/page.jpg", "dog/phone.heic",
        ]  # fmt: skip
    # The cache of the lenient reading does not make the strict one pass.
    with pytest.raises(CorpusError, match="4 pictures"):
        load_corpus("simulated", images=photos)


def test_the_same_picture_twice(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    (photos / "cat" / "copy.png").write_bytes((photos / "cat" / "0.png").read_bytes())
    corpus = load_corpus("simulated", images=photos)
    assert len(corpus) == 12 * 4
    assert "cat/copy.png is the same picture as cat/0.png" in caplog.text
    (photos / "dog" / "cat.png").write_bytes((photos / "cat" / "0.png").read_bytes())
    with pytest.raises(CorpusError, match=r"dog/cat.png: is the same picture as cat/0.png, under another concept"):
        load_corpus("simulated", images=photos)


def test_one_concept_only(tmp_path: Path) -> None:
    for i in range(12):
        photo(tmp_path / "one" / "cat" / f"{i}.png", i)
    with pytest.raises(CorpusError, match=r"12 pictures are of one concept \(cat\), expected at least two"):
        load_corpus("simulated", images=tmp_path / "one")


def test_too_few_pictures(tmp_path: Path) -> None:
    for i in range(7):
        photo(tmp_path / "few" / f"{'ab'[i % 2]}" / f"{i}.png", i)
    with pytest.raises(CorpusError, match=r"7 pictures, expected at least 10.*Add 3 more"):
        load_corpus("simulated", images=tmp_path / "few")
    (tmp_path / "few" / "a" / "bad.png").write_text("x")
    with pytest.raises(CorpusError, match=r"7 pictures that can be used \(1 cannot\)"):
        load_corpus("simulated", images=tmp_path / "few", on_bad_row="skip")


def test_folder_missing_empty_a_file_or_mixed(tmp_path: Path, photos: Path) -> None:
    with pytest.raises(CorpusError, match=r"corpus=simulated needs corpus.images=DIR"):
        load_corpus("simulated")
    with pytest.raises(CorpusError, match=r"no such folder.*Did you mean .*photos"):
        load_corpus("simulated", images=tmp_path / "photo")
    with pytest.raises(CorpusError, match=r"is a file.*corpus.images="):
        load_corpus("simulated", images=photos / "cat" / "0.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=r"holds no pictures \(it is empty\)"):
        load_corpus("simulated", images=tmp_path / "empty")
    (tmp_path / "empty" / "notes.txt").write_text("x")
    with pytest.raises(CorpusError, match=r"only notes.txt"):
        load_corpus("simulated", images=tmp_path / "empty")
    photo(photos / "loose.png", 77)
    with pytest.raises(CorpusError, match=r"found pictures \(loose.png.*beside sub-folders"):
        load_corpus("simulated", images=photos)


def test_a_name_that_is_not_utf_8(photos: Path) -> None:
    try:
        (photos / "cat" / "0.png").rename(os.fsdecode(os.fsencode(photos) + b"/cat/caf\xe9.png"))
    except OSError:
        pytest.skip("this file system allows UTF-8 names only")
    with pytest.raises(CorpusError, match=r"1 file names are not UTF-8.*caf"):
        load_corpus("simulated", images=photos)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"per_image": 0}, "corpus.per_image"),
        ({"seed": -3}, "corpus.seed"),
        ({"root": "x"}, "corpus.images"),
        ({"size": "small"}, "size is a setting of corpus=demo"),
    ],
)
def test_wrong_settings(options: dict[str, object], words: str, photos: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        load_corpus("simulated", images=photos, **options)  # type: ignore[arg-type]
