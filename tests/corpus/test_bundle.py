"""Bundles: what goes in comes out, twice the same bytes, and damage is named."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus_files import Make, pair, record
from safetensors.numpy import load_file

from bcs_lab.corpus import bundle as bundle_module
from bcs_lab.corpus import bundle_differences, load_corpus, read_bundle, summary, write_bundle
from bcs_lab.corpus.schema import PAIR_COLUMNS, Corpus
from bcs_lab.errors import ConfigError, CorpusError, RunError


@dataclass(frozen=True)
class Embedded:
    name: str
    fingerprint: dict[str, Any]
    images: np.ndarray
    reference: np.ndarray
    reconstruction: np.ndarray
    stand_in: str | None = None


@dataclass(frozen=True)
class Compared:
    name: str
    fingerprint: dict[str, Any]
    names: tuple[str, ...]
    values: np.ndarray
    stand_in: str | None = None


def compared(n: int, name: str = "lite0", seed: int = 0) -> Compared:
    values = np.random.default_rng(seed).normal(size=(n, 3)).astype(np.float32)
    names = ("head.aligned", "head.match", "mse")
    return Compared(name, {"version": "1", "names": list(names)}, names, values)


def embedded(n: int, name: str = "lite0", dim: int = 8, seed: int = 0) -> Embedded:
    """``n`` pairs that share references two by two, rows in a shuffled order with unused ones among them."""
    rng = np.random.default_rng(seed)
    images = rng.normal(size=(2 * n + 3, dim)).astype(np.float32)
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    rows = rng.permutation(2 * n + 3)
    return Embedded(name, {"weights": "abc", "size": [224, 224]}, images, rows[np.arange(n) // 2], rows[n : 2 * n])


@pytest.fixture
def corpus(make_corpus: Make) -> Corpus:
    rows = [
        pair(f"p{i}", concept=["NA", "null", "01"][i % 3], modality="EEG", subject="na" if i else "sub-01")
        for i in range(7)
    ]
    teachers = {
        "zoe": [record(f"p{i}", "somewhat", P2=None) for i in range(7)],
        "abe": [record(f"p{i}", "no") for i in range(1, 7)],
    }
    root = make_corpus(rows, teachers)
    (root / "sources.csv").write_text("repo,licence\na/b|c,MIT\n", encoding="utf-8")
    return load_corpus("manifest", root, teachers_order=["zoe", "abe"])


@pytest.fixture
def bundle(corpus: Corpus, tmp_path: Path) -> Path:
    items = [embedded(7), embedded(7, "timm:model/x@rev", dim=5, seed=1)]
    return write_bundle(corpus, items, tmp_path / "bundle", card_extra="What it is not: a benchmark.")


def same(a: Path, b: Path) -> bool:
    names = sorted(p.name for p in a.iterdir())
    return names == sorted(p.name for p in b.iterdir()) and all(
        (a / name).read_bytes() == (b / name).read_bytes() for name in names
    )


def test_round_trip(corpus: Corpus, bundle: Path) -> None:
    back = load_corpus("bundle", bundle)
    assert back.name == "mine"
    assert back.root is None
    assert back.teachers == ("zoe", "abe")
    assert back.pairs.columns.tolist() == [*PAIR_COLUMNS, "modality"]
    for column in back.pairs.columns:
        if column.endswith("_path"):
            assert set(back.pairs[column]) == {""}
        else:
            assert back.pairs[column].tolist() == corpus.pairs[column].tolist()
    np.testing.assert_array_equal(back.answers, corpus.answers)
    np.testing.assert_array_equal(back.rationales, corpus.rationales)
    assert back.answers.dtype == np.float32
    assert not back.stand_ins
    assert back.where[2] == "manifest.parquet:3"
    given = {e.name: e for e in (embedded(7), embedded(7, "timm:model/x@rev", dim=5, seed=1))}
    assert list(back.shipped) == list(given)
    for name, item in back.shipped.items():
        assert item.images.dtype == np.float16
        assert isinstance(item.images, np.memmap)
        assert item.reference.dtype == item.reconstruction.dtype == np.int64
        for side in ("reference", "reconstruction"):
            expected = given[name].images[getattr(given[name], side)].astype(np.float16)
            np.testing.assert_array_equal(item.images[getattr(item, side)], expected)
        assert item.fingerprint == given[name].fingerprint
        assert len(item.images) == 4 + 7  # shared references once, unused rows left out
        assert item.reference[0] == 0
        assert item.reconstruction[0] == 1
    with pytest.raises(CorpusError, match="has no images"):
        back.reference_file(0)


def test_exporting_twice_and_exporting_an_import_give_the_same_bytes(
    corpus: Corpus, bundle: Path, tmp_path: Path
) -> None:
    items = [embedded(7), embedded(7, "timm:model/x@rev", dim=5, seed=1)]
    again = write_bundle(corpus, items, tmp_path / "again", card_extra="What it is not: a benchmark.")
    assert same(bundle, again)
    back = read_bundle(bundle)
    third = write_bundle(back, list(back.shipped.values()), tmp_path / "third")
    assert same(bundle, third)
    assert bundle_differences(back, read_bundle(third)) == []


def test_similarities_travel_too(corpus: Corpus, bundle: Path, tmp_path: Path) -> None:
    similarities = [compared(7), compared(7, "timm:model/x@rev", seed=1)]
    assert read_bundle(bundle).shipped_similarities == {}
    embeddings = [embedded(7), embedded(7, "timm:model/x@rev", dim=5, seed=1)]
    card = "What it is not: a benchmark."
    out = write_bundle(corpus, embeddings, tmp_path / "out", similarities=similarities, card_extra=card)
    back = read_bundle(out)
    assert list(back.shipped_similarities) == ["lite0", "timm:model/x@rev"]
    for given in similarities:
        item = back.shipped_similarities[given.name]
        assert isinstance(item.values, np.memmap)
        assert item.values.dtype == np.float32
        np.testing.assert_array_equal(item.values, given.values)
        assert (item.names, item.fingerprint) == (given.names, given.fingerprint)
    # What was there before is unchanged, byte by byte.
    for path in bundle.iterdir():
        if path.name not in ("bundle.json", "README.md"):
            assert (out / path.name).read_bytes() == path.read_bytes()
    assert set(json.loads((bundle / "bundle.json").read_text())) == set(
        json.loads((out / "bundle.json").read_text())
    ) - {"similarities"}
    assert "## Similarities" in (out / "README.md").read_text()
    assert "## Similarities" not in (bundle / "README.md").read_text()
    kept = back.subset(np.array([True, False] * 3 + [True]))
    np.testing.assert_array_equal(kept.shipped_similarities["lite0"].values, similarities[0].values[::2])
    third = write_bundle(
        back, list(back.shipped.values()), tmp_path / "third", similarities=list(back.shipped_similarities.values())
    )
    assert same(out, third)
    assert bundle_differences(back, read_bundle(third)) == []
    assert bundle_differences(back, read_bundle(bundle)) == [
        "similarities of lite0 are in one only",
        "similarities of timm:model/x@rev are in one only",
    ]
    moved = replace(similarities[0], values=similarities[0].values + np.float32(0.5))
    other = write_bundle(corpus, embeddings, tmp_path / "other", similarities=[moved, similarities[1]])
    assert bundle_differences(back, read_bundle(other)) == ["similarities of lite0 (largest difference 0.5)"]
    assert bundle_differences(back, read_bundle(other), atol=0.6) == []
    damaged = out / "similarities-lite0.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CorpusError, match=r"similarities-lite0\.safetensors: is damaged"):
        read_bundle(out)
    damaged.unlink()
    with pytest.raises(CorpusError, match=r"similarities-lite0\.safetensors: is missing"):
        read_bundle(out)


def test_similarities_that_do_not_fit_are_refused(corpus: Corpus, tmp_path: Path) -> None:
    good = compared(7)
    for bad, message in (
        (compared(6), r"do not fit the corpus: expected shape \(7, 3\) but got \(6, 3\)"),
        (replace(good, names=("a", "b", "c")), "not the ones that their fingerprint names"),
        (replace(good, values=np.full((7, 3), np.nan)), "not finite"),
        (replace(good, stand_in="lite2"), "are a stand-in"),
    ):
        with pytest.raises(CorpusError, match=message):
            write_bundle(corpus, [embedded(7)], tmp_path / "out", similarities=[bad])
    with pytest.raises(ConfigError, match="each encoder once"):
        write_bundle(corpus, [embedded(7)], tmp_path / "out", similarities=[good, good])
    assert not (tmp_path / "out").exists()


def test_order_of_input_rows_does_not_matter(corpus: Corpus, tmp_path: Path) -> None:
    item = embedded(7)
    shuffle = np.random.default_rng(9).permutation(len(item.images))
    where = np.argsort(shuffle)
    other = replace(
        item, images=item.images[shuffle], reference=where[item.reference], reconstruction=where[item.reconstruction]
    )
    slots = replace(
        item,
        images=np.concatenate([item.images[item.reference], item.images[item.reconstruction]]),
        reference=np.arange(7),
        reconstruction=np.arange(7, 14),
    )
    first = write_bundle(corpus, [item], tmp_path / "a")
    assert same(first, write_bundle(corpus, [other], tmp_path / "b"))
    assert same(first, write_bundle(corpus, [slots], tmp_path / "c"))


def test_files_are_plain_and_small(bundle: Path) -> None:
    names = sorted(p.name for p in bundle.iterdir())
    assert len(names) == 7
    assert "embeddings-lite0.safetensors" in names
    arrays = load_file(bundle / "embeddings-lite0.safetensors")
    assert arrays["images"].dtype == np.float16
    assert arrays["reference"].dtype == np.int32
    index = json.loads((bundle / "bundle.json").read_text())
    assert index["counts"] == {"pairs": 7, "concepts": 3}
    assert set(index["sha256"]) == {n for n in names if n not in ("bundle.json", "README.md")}
    assert not any("_path" in name for name in _columns(bundle / "manifest.parquet"))


def _columns(path: Path) -> list[str]:
    import pyarrow.parquet as pq

    return list(pq.read_schema(path).names)


def test_data_card(bundle: Path) -> None:
    card = read_bundle(bundle).card or ""
    for part in (
        "7 pairs",
        "3 concepts",
        "1 known subjects",
        "What it is not: a benchmark.",
        "No image is included",
        "| zoe | 0.917 | 0.000 | 1.000 | 0.000 | 0.500 | 0.500 |",
        "| abe | 0.857 | 1.000 | 0.000 | 0.000 | 0.000 | 0.000 |",
        "| EEG | 7 | 3 |",
        "a/b\\|c",
        "timm:model/x@rev",
    ):
        assert part in card, part
    # Consensus: (6 x .25 + .5) / 7 semantically; P2 of p0 is missing, of the others 0.
    assert "| consensus |" in card
    assert f"{(6 * 0.25 + 0.5) / 7:.3f} |" in card


def test_teachers_of_a_bundle(bundle: Path) -> None:
    part = load_corpus("bundle", bundle, teachers_order=["abe"])
    assert part.teachers == ("abe",)
    assert part.answers.shape == (7, 1, 12)
    assert np.isnan(part.answers[0]).all()
    with pytest.raises(ConfigError, match="zoe, abe"):
        load_corpus("bundle", bundle, teachers_order=["eve"])


def test_subset_and_summary_of_a_bundle(bundle: Path, tmp_path: Path) -> None:
    corpus = read_bundle(bundle)
    keep = np.array([True, False, True, True, False, False, True])
    part = corpus.subset(keep)
    item, whole = part.shipped["lite0"], corpus.shipped["lite0"]
    np.testing.assert_array_equal(item.images[item.reference], whole.images[whole.reference][keep])
    again = read_bundle(write_bundle(part, list(part.shipped.values()), tmp_path / "part"))
    assert bundle_differences(corpus, again) == []
    assert summary(corpus)["references"].sum() == 4 + 1  # p0 alone in its group shares its reference with p1


def test_differences_are_found(bundle: Path) -> None:
    a, b = read_bundle(bundle), read_bundle(bundle)
    b.answers[0, 0, 0] = 0
    b.pairs.loc[0, "concept"] = "other"
    images = np.array(b.shipped["lite0"].images)
    images[0] += 0.25
    b.shipped["lite0"] = replace(b.shipped["lite0"], images=images)
    found = bundle_differences(a, b)
    assert "answers" in found
    assert "column concept" in found
    assert any("reference embeddings of lite0" in text for text in found)
    assert len(found) == 3


# --- refusing --------------------------------------------------------------------------------------------------------


def test_existing_output(corpus: Corpus, bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"not empty.*overwrite=true"):
        write_bundle(corpus, [embedded(7)], bundle)
    write_bundle(corpus, [embedded(7)], bundle, overwrite=True)
    assert list(read_bundle(bundle).shipped) == ["lite0"]
    (tmp_path / "mine too").mkdir()
    write_bundle(corpus, [embedded(7)], tmp_path / "mine too")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/thesis.tex").write_text("x")
    with pytest.raises(RunError, match="not a bundle"):
        write_bundle(corpus, [embedded(7)], tmp_path / "precious", overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file"):
        write_bundle(corpus, [embedded(7)], tmp_path / "file")
    with pytest.raises(RunError, match="cannot be written"):
        write_bundle(corpus, [embedded(7)], tmp_path / "file" / "below")
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_nothing_is_left_after_a_failure(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle_module, "_write_parquet", full)
    with pytest.raises(RunError, match="No space left"):
        write_bundle(corpus, [embedded(7)], tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine"]


def test_embeddings_that_do_not_fit(corpus: Corpus, tmp_path: Path) -> None:
    item = embedded(7)
    bad = item.images.copy()
    bad[item.reference[0], 0] = np.nan
    for wrong, error, part in (
        ([], ConfigError, "at least one"),
        ([item, item], ConfigError, "once"),
        ([embedded(6)], CorpusError, "7 pairs"),
        ([replace(item, reference=item.reference + 100)], CorpusError, "do not fit"),
        ([replace(item, images=bad)], CorpusError, "not finite"),
        ([replace(item, stand_in="lowlevel")], CorpusError, "stand-in"),
        ([replace(item, fingerprint={"x": object()})], CorpusError, "not JSON"),
    ):
        with pytest.raises(error, match=part):
            write_bundle(corpus, wrong, tmp_path / "out")
    with pytest.raises(CorpusError, match=r"nix\.csv"):
        write_bundle(corpus, [item], tmp_path / "out", sources_csv=tmp_path / "nix.csv")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name", ["manifest.parquet", "annotations.parquet", "embeddings-lite0.safetensors", "sources.csv"]
)
@pytest.mark.parametrize("damage", ["missing", "flipped", "truncated", "empty"])
def test_damaged_files_are_named(bundle: Path, name: str, damage: str) -> None:
    path = bundle / name
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "truncated" else b"")
    with pytest.raises(CorpusError) as caught:
        read_bundle(bundle)
    assert str(path) in str(caught.value)
    assert ("missing" if damage == "missing" else "damaged") in str(caught.value)


def test_index(bundle: Path, tmp_path: Path) -> None:
    path = bundle / "bundle.json"
    index = json.loads(path.read_text())

    def error(**changes: Any) -> str:
        path.write_text(json.dumps({k: v for k, v in {**index, **changes}.items() if v is not None}))
        with pytest.raises(CorpusError) as caught:
            read_bundle(bundle)
        return str(caught.value)

    assert "upgrade" in error(version=2)
    assert "no bundle" in error(format="other")
    assert "entries of a bundle" in error(encoders=None)
    assert "entries of a bundle" in error(teachers=None)
    assert "expected bcs12" in error(protocol={"name": "mine", "questions": ["Q1"]})
    assert "unknown teacher" in error(teachers=["zoe", "eve"])
    assert "is damaged" in error(sha256={})
    encoders = [{**index["encoders"][0], "dim": 9}]
    assert "expected images float16 (11, 9)" in error(encoders=encoders)
    path.write_text("{torn")
    with pytest.raises(CorpusError, match=r"bundle\.json: is damaged"):
        read_bundle(bundle)
    path.unlink()
    with pytest.raises(CorpusError, match=r"bundle\.json is missing"):
        read_bundle(bundle)
    with pytest.raises(CorpusError, match="corpus=manifest"):
        read_bundle(tmp_path / "mine")
    with pytest.raises(CorpusError, match=r"corpus=bundle needs corpus\.root"):
        load_corpus("bundle")
    with pytest.raises(CorpusError, match="no such folder"):
        load_corpus("bundle", tmp_path / "nix")


def test_brainbank_location(bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bundle_module, "BRAINBANK", bundle)
    corpus = load_corpus("brainbank")
    assert corpus.stand_ins
    assert len(corpus) == 7
    with pytest.raises(ConfigError, match=r"takes no corpus\.root"):
        load_corpus("brainbank", bundle)
    monkeypatch.setattr(bundle_module, "BRAINBANK", tmp_path / "gone")
    with pytest.raises(CorpusError, match=r"make_brainbank\.py"):
        load_corpus("brainbank")
