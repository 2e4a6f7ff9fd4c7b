"""Pairing of files and folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from bcs_lab.corpus.folders import pair_paths
from bcs_lab.errors import CorpusError


def touch(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return root


def test_two_files(tmp_path: Path) -> None:
    a, b = touch(tmp_path, "a.png") / "a.png", touch(tmp_path, "b.jpg") / "b.jpg"
    found = pair_paths(a, b)
    assert found.pairs.to_dict("records") == [{"pair_id": "b", "reference": str(a), "reconstruction": str(b)}]


def test_folders_by_stem_with_mismatches(tmp_path: Path) -> None:
    refs = touch(tmp_path / "refs", "cat.png", "dog.jpg", "x.y.png", "sub/cat.png", ".hidden.png", "notes.txt")
    recs = touch(tmp_path / "recs", "cat.JPG", "x.y.webp", "sub/cat.png", "bird.png", "dog.png", "dog.jpg")
    found = pair_paths(refs, recs)
    assert found.pairs["pair_id"].tolist() == ["cat", "sub/cat", "x.y"]
    assert found.pairs["reconstruction"].tolist() == [
        str(recs / name) for name in ("cat.JPG", "sub/cat.png", "x.y.webp")
    ]
    assert "method" not in found.pairs
    text = "\n".join(map(str, found.unmatched))
    assert "bird.png: reconstruction without a reference 'bird'" in text
    assert "recs/dog.png: stem 'dog' is not unique (dog.jpg, dog.png)" in text
    assert "'dog'" not in text.replace("stem 'dog'", "")  # there is a partner, even two
    assert len(found.unmatched) == 3


def test_sub_folders_are_methods(tmp_path: Path) -> None:
    refs = touch(tmp_path / "refs", "cat.png", "dog.png")
    recs = touch(tmp_path / "recs", "ATM/cat.png", "ATM/dog.png", "ENIGMA/s1/cat.png")
    found = pair_paths(refs, recs)
    assert found.pairs["method"].tolist() == ["ATM", "ATM", "ENIGMA/s1"]
    assert found.pairs["pair_id"].tolist() == ["ATM/cat", "ATM/dog", "ENIGMA/s1/cat"]
    assert found.unmatched == []


def test_one_reference_for_many(tmp_path: Path) -> None:
    ref = touch(tmp_path, "ref.png") / "ref.png"
    recs = touch(tmp_path / "recs", "1.png", "2.png")
    assert pair_paths(ref, recs).pairs["reference"].tolist() == [str(ref)] * 2
    nested = touch(tmp_path / "nested", "A/1.png", "B/1.png")
    assert pair_paths(ref, nested).pairs["method"].tolist() == ["A", "B"]


def test_paths_stay_as_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "refs", "a.png")
    touch(tmp_path / "recs", "a.png")
    monkeypatch.chdir(tmp_path)
    assert pair_paths("refs/", "./recs").pairs.iloc[0].tolist() == ["a", "refs/a.png", "recs/a.png"]


def test_errors(tmp_path: Path) -> None:
    refs, recs = touch(tmp_path / "refs", "a.png"), touch(tmp_path / "recs", "b.png")
    with pytest.raises(CorpusError, match=r"nothing in common.*\n?.*References: a\. Reconstructions: b"):
        pair_paths(refs, recs)
    with pytest.raises(CorpusError, match=r"reference=.*nowhere.*\n.*reconstruction=.*gone"):
        pair_paths(tmp_path / "nowhere", tmp_path / "gone")
    with pytest.raises(CorpusError, match="is a folder, but reconstruction="):
        pair_paths(refs, recs / "b.png")
    with pytest.raises(CorpusError, match="holds no image"):
        pair_paths(refs, touch(tmp_path / "text", "a.txt"))
    with pytest.raises(CorpusError, match=r"nothing in common[\s\S]*not unique"):
        pair_paths(refs, touch(tmp_path / "twice", "a.png", "a.jpg"))
