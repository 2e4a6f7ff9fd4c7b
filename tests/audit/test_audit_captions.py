"""Captions brought in: both kinds of lines, what is refused, and cosines of sentence embeddings."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "tasks"))

from drawn_corpus import draw_corpus

from bcs_lab.audit.captions import Captions, caption_cosines, clean_caption, read_captions
from bcs_lab.corpus import Corpus, load_corpus
from bcs_lab.errors import ConfigError


class Words:
    """A sentence encoder that counts words of a small vocabulary."""

    vocabulary = ("a", "cat", "dog", "red", "car")

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str], store: Any = None) -> np.ndarray:
        self.texts += texts
        counts = np.array([[text.split().count(word) for word in self.vocabulary] for text in texts], dtype=np.float32)
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return load_corpus("manifest", draw_corpus(tmp_path / "drawn", concepts=3))


def write(path: Path, *records: Any) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records), encoding="utf-8")
    return path


def test_cleaning() -> None:
    assert clean_caption("  A Red-Car, isn’t it?\n") == "a red car isn t it"
    assert clean_caption("!?…") == ""


def test_lines_about_pairs_and_about_images(corpus: Corpus, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert corpus.root is not None
    path = write(
        tmp_path / "captions.jsonl",
        {"pair_id": "p00_0", "reference": "A cat.", "reconstruction": "a dog"},
        {"pair_id": "p01_0", "reconstruction": "a car"},
        "",
        {"image": "images/ref0.png", "caption": "a red car"},
        {"image": str(corpus.root / "images" / "ref1.png"), "caption": "a car"},
        {"image": "images/elsewhere.png", "caption": "nobody"},
        {"pair_id": "p99", "reference": "x", "reconstruction": "y"},
        {"pair_id": "p02_0", "reference": None, "reconstruction": "a cat"},
    )
    with caplog.at_level(logging.WARNING):
        found = read_captions(path, corpus)
    ids = corpus.pairs["pair_id"].tolist()
    by_id = {pair: (found.reference[i], found.reconstruction[i]) for i, pair in enumerate(ids)}
    assert by_id["p00_0"] == ("a cat", "a dog")  # what is said about the pair comes first
    assert by_id["p00_1"] == ("a red car", "")
    assert by_id["p01_0"] == ("a car", "a car")
    assert by_id["p02_0"] == ("", "a cat")
    assert found.complete.tolist() == [pair in ("p00_0", "p01_0") for pair in ids]
    assert found.facts["lines_about_others"] == 2
    assert "2 of 7 lines are about no pair" in caplog.text


@pytest.mark.parametrize(
    ("records", "said"),
    [
        (["{not json"], r"captions.jsonl:1: expected a JSON object, found '{not json'"),
        ([{"pair": 1}], r"expected either pair_id or image, found the keys pair"),
        ([{"pair_id": 3, "reference": "a"}], r"pair_id: expected text, found 3"),
        ([{"image": "x.png"}], r"caption: expected text, found None"),
        (
            [{"pair_id": "p00_0", "reference": "a", "reconstructed": "b"}],
            r"captions.jsonl:1: expected the keys pair_id, reference, reconstruction only, found also reconstructed",
        ),
        ([{"image": "x.png", "caption": "a", "model": "b"}], r"keys image, caption only, found also model"),
        ([{"pair_id": "p00_0", "reference": "a", "reconstruction": " . "}], r"expected words, found ' . '"),
        ([{"image": "x.png", "caption": ""}], r"captions.jsonl:1: caption: expected words, found ''"),
        ([{"pair_id": "p00_0"}], r"expected a caption under reference or reconstruction, found neither"),
        ([{"pair_id": "p00_0", "reference": "a"}] * 2, r"captions.jsonl:2: the same pair or image as in line 1"),
        ([{"pair_id": "other", "reference": "a", "reconstruction": "b"}], r"found none in 1 lines"),
    ],
)
def test_what_is_refused(corpus: Corpus, tmp_path: Path, records: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("{", r"\{")):
        read_captions(write(tmp_path / "captions.jsonl", *records), corpus)


def test_a_file_that_is_not_there(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_captions(tmp_path / "none.jsonl", corpus)


def test_cosines_by_hand() -> None:
    captions = Captions(("a cat", "a cat", "", "dog"), ("a cat", "a dog", "dog", "red car"))
    encoder = Words()
    found = caption_cosines(captions, encoder)  # type: ignore[arg-type]
    assert found[0] == 1.0
    assert found[1] == pytest.approx(0.5)
    assert np.isnan(found[2])
    assert found[3] == 0.0
    assert "" not in encoder.texts
    assert np.isnan(caption_cosines(Captions(("", ""), ("", "")), encoder)).all()  # type: ignore[arg-type]
