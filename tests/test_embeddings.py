"""Embeddings of a corpus: each image once, stale entries never used, broken images, imports, stand-ins."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from bcs_lab import embeddings
from bcs_lab.corpus.schema import PAIR_COLUMNS, Corpus, ShippedEmbeddings
from bcs_lab.embeddings import canonical, import_npz, pair_embeddings, stored_names
from bcs_lab.encoders.base import FrozenEncoder
from bcs_lab.errors import CorpusError, EncoderError, StoreError
from bcs_lab.store import EmbeddingStore

PAIRS = 6
IDS = [f"p{i:02d}" for i in range(PAIRS)]


def corpus_of(root: Path | None, ids: Sequence[str] = tuple(IDS), **changes: Any) -> Corpus:
    rows = [
        (pair_id, "m", "s", "c", "1", "1", f"ref{i % 2}.png" if root else "", f"rec {i}.png" if root else "")
        for i, pair_id in enumerate(ids)
    ]
    corpus = Corpus(
        name="test",
        pairs=pd.DataFrame(rows, columns=list(PAIR_COLUMNS), dtype=object),
        teachers=("a",),
        answers=np.ones((len(ids), 1, 12), dtype=np.float32),
        rationales=np.full((len(ids), 1, 12), "", dtype=object),
        root=root,
        where=[f"manifest.csv:{i + 2}" for i in range(len(ids))],
    )
    return replace(corpus, **changes)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """Six pairs, two references, and one reconstruction that equals another: 7 distinct images in 12 slots."""
    root = tmp_path / "corpus"
    root.mkdir()
    rng = np.random.default_rng(0)
    for name in [*(f"ref{i}.png" for i in range(2)), *(f"rec {i}.png" for i in range(PAIRS))]:
        Image.fromarray(rng.integers(0, 256, (9, 13, 3), dtype=np.uint8)).save(root / name)
    shutil.copy(root / "rec 0.png", root / "rec 5.png")
    return corpus_of(root)


@pytest.fixture
def store(tmp_path: Path) -> EmbeddingStore:
    return EmbeddingStore(tmp_path / "store")


class Recorder:
    """A stand-in for load_encoder whose encoders count the images they see."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        self.missing: set[str] = set()
        self.fingerprint: dict[str, Any] = {"revision": "r1", "dtype": "float32", "preprocessing": {"size": 224}}

    def __call__(
        self, name: str, *, options: Any = None, device: str = "auto", dtype: str | None = None
    ) -> FrozenEncoder:
        if name in self.missing:
            raise EncoderError(f"The weights of encoder {name!r} cannot be had.")
        fingerprint = {"library": "fake", "model": name, "dim": 4, **self.fingerprint, **(options or {})}
        # Every field of the fingerprint changes the numbers, as in a real encoder.
        turn = np.random.default_rng(abs(hash(str(sorted(fingerprint.items())))) % 2**32).normal(size=(3, 4))

        def forward(inputs: np.ndarray) -> np.ndarray:
            self.seen[name] = self.seen.get(name, 0) + len(inputs)
            return inputs.astype(np.float64) @ turn

        def prepare(image: Image.Image) -> np.ndarray:
            return np.asarray(image, dtype=np.float32).mean(axis=(0, 1)) / 255

        return FrozenEncoder(name, 4, fingerprint, prepare, forward)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(embeddings, "load_encoder", made)
    return made


def rows(item: embeddings.PairEmbeddings) -> np.ndarray:
    """Vectors by pair: [2, n_pairs, dim]."""
    return np.stack([item.images[item.reference], item.images[item.reconstruction]])


def test_each_distinct_image_is_embedded_once(
    corpus: Corpus, store: EmbeddingStore, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    same, (item,) = pair_embeddings(corpus, ["siglip"], store=store, batch_size=3)
    assert same is corpus or len(same) == PAIRS
    assert recorder.seen == {"siglip": 7}
    assert item.images.shape == (7, 4)
    assert item.images.dtype == np.float32
    assert (item.name, item.label, item.stand_in, item.dim) == ("siglip", "siglip", None, 4)
    assert item.reference.dtype == item.reconstruction.dtype == np.int64
    assert item.reconstruction[0] == item.reconstruction[5]
    assert "12 image slots, 7 distinct images, 0 from the store, 7 embedded" in caplog.text
    assert "siglip: embedding 7 images on cpu" in caplog.text
    encoder = recorder("siglip")
    for i in range(PAIRS):
        expected = encoder.embed([Image.open(corpus.reconstruction_file(i))])[0]
        np.testing.assert_allclose(item.images[item.reconstruction[i]], expected, atol=1e-6)
    again = pair_embeddings(corpus, ["siglip"], store=EmbeddingStore(store.root))[1][0]
    assert np.array_equal(rows(again), rows(item))
    assert "7 from the store, 0 embedded" in caplog.text


def test_without_a_store_nothing_is_kept(corpus: Corpus, store: EmbeddingStore, recorder: Recorder) -> None:
    (kept,) = pair_embeddings(corpus, ["clip"], store=store)[1]
    (unkept,) = pair_embeddings(corpus, ["clip"], store=None)[1]
    assert np.array_equal(rows(kept), rows(unkept))


def test_stale_entries_are_never_used(
    corpus: Corpus, store: EmbeddingStore, recorder: Recorder, tmp_path: Path
) -> None:
    """R07 (1) to (6)."""
    (base,) = pair_embeddings(corpus, ["siglip"], store=store)[1]
    for name, change in (
        ("clip", {}),
        ("siglip", {"revision": "r2"}),
        ("siglip", {"dtype": "float16"}),
        ("siglip", {"preprocessing": {"size": 256}}),
    ):
        recorder.fingerprint = {"revision": "r1", "dtype": "float32", "preprocessing": {"size": 224}, **change}
        recorder.seen.clear()
        (warm,) = pair_embeddings(corpus, [name], store=store)[1]
        assert recorder.seen == {name: 7}
        (cold,) = pair_embeddings(corpus, [name], store=EmbeddingStore(tmp_path / f"{name}{change}"))[1]
        assert np.array_equal(rows(warm), rows(cold))
        assert not np.allclose(rows(warm), rows(base))
    # (5) Another picture under the same path, of the same size and time.
    recorder.fingerprint = {"revision": "r1", "dtype": "float32", "preprocessing": {"size": 224}}
    recorder.seen.clear()
    path = corpus.reconstruction_file(1)
    times, pixels = path.stat(), np.array(Image.open(path))
    Image.fromarray(np.ascontiguousarray(pixels[..., ::-1])).save(path)
    content = path.read_bytes()
    path.write_bytes(content + b"\0" * max(0, times.st_size - len(content)))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    (changed,) = pair_embeddings(corpus, ["siglip"], store=store)[1]
    assert recorder.seen == {"siglip": 1}
    assert not np.allclose(rows(changed)[1, 1], rows(base)[1, 1])
    np.testing.assert_array_equal(np.delete(rows(changed)[1], 1, axis=0), np.delete(rows(base)[1], 1, axis=0))
    # (6) The same pictures elsewhere.
    recorder.seen.clear()
    moved = tmp_path / "moved"
    shutil.move(str(corpus.root), str(moved))
    (elsewhere,) = pair_embeddings(corpus_of(moved), ["siglip"], store=store)[1]
    assert recorder.seen == {}
    assert np.array_equal(rows(elsewhere), rows(changed))


# --- broken images ---


@pytest.fixture
def broken(corpus: Corpus) -> Corpus:
    corpus.reconstruction_file(1).write_bytes(b"<html>not an image")
    corpus.reconstruction_file(3).unlink()
    whole = corpus.reconstruction_file(4).read_bytes()
    corpus.reconstruction_file(4).write_bytes(whole[: len(whole) // 2])
    return corpus


def test_broken_images_are_listed_at_once_and_hide_nothing(
    broken: Corpus, store: EmbeddingStore, recorder: Recorder
) -> None:
    with pytest.raises(CorpusError) as caught:
        pair_embeddings(broken, ["siglip", "clip"], store=store)
    message = str(caught.value)
    for row, pair in ((3, 1), (5, 3), (6, 4)):
        assert (
            f"manifest.csv:{row}: pair '{IDS[pair]}': reconstruction image: {broken.reconstruction_file(pair)}"
            in message
        )
    assert "on_bad_row=skip" in message
    # The good ones are stored for both encoders.
    assert recorder.seen == {"siglip": 4, "clip": 4}


def test_pairs_of_broken_images_can_be_skipped(broken: Corpus, store: EmbeddingStore, recorder: Recorder) -> None:
    whole = corpus_of(broken.root)
    kept, items = pair_embeddings(replace(broken, on_bad_row="skip"), ["siglip", "clip"], store=store)
    assert list(kept.pairs["pair_id"]) == [IDS[0], IDS[2], IDS[5]]
    assert [problem.row for problem in kept.skipped] == [3, 5, 6]
    assert broken.skipped == []
    for item in items:
        assert item.reference.shape == item.reconstruction.shape == (3,)
        encoder = recorder(item.name)
        expected = encoder.embed([Image.open(whole.reconstruction_file(2))])[0]
        np.testing.assert_allclose(rows(item)[1, 1], expected, atol=1e-6)
        assert np.isfinite(item.images).all()
        assert np.linalg.norm(item.images, axis=1) == pytest.approx(1, abs=1e-6)


def test_one_broken_image_is_singular(
    corpus: Corpus, store: EmbeddingStore, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    corpus.reconstruction_file(3).unlink()
    with pytest.raises(CorpusError, match=r"^1 image of corpus 'test' cannot be used \(1 pair\);"):
        pair_embeddings(corpus, ["siglip"], store=store)
    pair_embeddings(replace(corpus, on_bad_row="skip"), ["siglip"], store=store)
    assert "1 pair left out because of broken images" in caplog.text


def test_no_pair_left_is_an_error(corpus: Corpus, store: EmbeddingStore, recorder: Recorder) -> None:
    for i in range(2):
        (corpus.root / f"ref{i}.png").write_bytes(b"")  # type: ignore[operator]
    with pytest.raises(CorpusError, match="No pair of corpus 'test' has two usable images"):
        pair_embeddings(replace(corpus, on_bad_row="skip"), ["siglip"], store=store)


def test_values_that_are_not_finite_name_the_file(
    corpus: Corpus, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, **_: Any) -> FrozenEncoder:
        return FrozenEncoder(
            name, 2, {"dim": 2}, lambda _: np.zeros(1, np.float32), lambda x: np.full((len(x), 2), np.nan)
        )

    monkeypatch.setattr(embeddings, "load_encoder", load)
    with pytest.raises(EncoderError, match=r"not finite for .*ref0\.png"):
        pair_embeddings(corpus, ["siglip"], store=store)


# --- names, shipped embeddings and stand-ins ---


def shipped(name: str, seed: int = 0) -> ShippedEmbeddings:
    images = np.random.default_rng(seed).normal(size=(9, 5)).astype(np.float16)
    order = np.arange(PAIRS)
    return ShippedEmbeddings(name, {"model": name, "pooling": "avg", "dim": 5}, images, order % 2, order + 2)


def bundle(*names: str, **changes: Any) -> Corpus:
    return corpus_of(None, shipped={name: shipped(name, i) for i, name in enumerate(names)}, **changes)


def test_shipped_embeddings_are_used_as_they_are(store: EmbeddingStore) -> None:
    corpus = bundle("efficientnet_lite2", "lowlevel")
    same, items = pair_embeddings(corpus, ["lowlevel", "efficientnet_lite2"], store=store)
    assert same is corpus
    assert [item.label for item in items] == ["lowlevel", "efficientnet_lite2"]
    assert items[0].images is corpus.shipped["lowlevel"].images
    with pytest.raises(EncoderError, match="not with the asked"):
        pair_embeddings(corpus, ["lowlevel"], store=store, options={"lowlevel": {"pooling": "cls"}})


def test_an_absent_encoder_is_an_error_that_says_what_there_is(store: EmbeddingStore) -> None:
    with pytest.raises(EncoderError, match=r"'siglip' cannot be had.*It ships: lowlevel.*Imported for its pairs: none"):
        pair_embeddings(bundle("lowlevel"), ["siglip"], store=store, stand_in={"siglip": "lowlevel"})


def test_stand_ins_are_loud_and_labelled(store: EmbeddingStore, caplog: pytest.LogCaptureFixture) -> None:
    corpus = bundle("efficientnet_lite2", "lowlevel", stand_ins=True)
    names = {"siglip": "efficientnet_lite2", "dinov3": "lowlevel"}
    items = pair_embeddings(corpus, ["siglip", "dinov3", "lowlevel"], store=store, stand_in=names)[1]
    assert [item.label for item in items] == [
        "siglip (stand-in efficientnet_lite2)",
        "dinov3 (stand-in lowlevel)",
        "lowlevel",
    ]
    assert [item.stand_in for item in items] == ["efficientnet_lite2", "lowlevel", None]
    assert items[0].images is corpus.shipped["efficientnet_lite2"].images
    assert (
        sum(record.levelno == logging.WARNING and record.message.startswith("STAND-IN") for record in caplog.records)
        == 2
    )
    with pytest.raises(EncoderError, match="'clip' cannot be had"):
        pair_embeddings(corpus, ["clip"], store=store, stand_in=names)
    with pytest.raises(EncoderError, match="Its stand-in 'clip' cannot be had either"):
        pair_embeddings(corpus, ["siglip"], store=store, stand_in={"siglip": "clip"})


def test_with_images_the_real_weights_come_first(corpus: Corpus, store: EmbeddingStore, recorder: Recorder) -> None:
    demo = replace(corpus, stand_ins=True)
    names = {"siglip": "lowlevel"}
    assert pair_embeddings(demo, ["siglip"], store=store, stand_in=names)[1][0].label == "siglip"
    recorder.missing.add("siglip")
    (item,) = pair_embeddings(demo, ["siglip"], store=store, stand_in=names)[1]
    assert item.label == "siglip (stand-in lowlevel)"
    assert item.fingerprint["model"] == "lowlevel"
    with pytest.raises(EncoderError, match="weights of encoder 'siglip' cannot be had"):
        pair_embeddings(corpus, ["siglip"], store=store, stand_in=names)


def test_unknown_and_repeated_names(corpus: Corpus, store: EmbeddingStore, recorder: Recorder) -> None:
    with pytest.raises(EncoderError, match="Did you mean siglip"):
        pair_embeddings(corpus, ["clip", "siglipp"], store=store)
    assert recorder.seen == {}, "unknown names are reported before anything is computed"
    with pytest.raises(EncoderError, match="clip more than once"):
        pair_embeddings(corpus, ["clip", "clip"], store=store)


def test_every_encoder_that_cannot_be_had_is_named_before_anything_is_computed(
    corpus: Corpus, store: EmbeddingStore, recorder: Recorder
) -> None:
    recorder.missing = {"siglip", "dinov3"}
    with pytest.raises(EncoderError) as caught:
        pair_embeddings(corpus, ["siglip", "clip", "dinov3"], store=store)
    assert str(caught.value) == (
        "2 of 3 encoders cannot be had:\n"
        "- The weights of encoder 'siglip' cannot be had.\n"
        "- The weights of encoder 'dinov3' cannot be had."
    )
    assert recorder.seen == {}
    with pytest.raises(EncoderError, match=r"^The weights of encoder 'siglip' cannot be had\.$"):
        pair_embeddings(corpus, ["siglip", "clip"], store=store)
    with pytest.raises(EncoderError, match=r"^2 of 2 encoders(.|\n)*'siglipp'(.|\n)*'clipp'"):
        pair_embeddings(corpus, ["siglipp", "clipp"], store=store)


# --- imports ---


def write_npz(
    path: Path, ids: Sequence[str] | np.ndarray = tuple(IDS), dim: int = 3, seed: int = 5, **changes: Any
) -> Path:
    rng = np.random.default_rng(seed)
    arrays = {
        "ids": ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=str),
        "reference": rng.normal(size=(len(ids), dim)).astype(np.float16),
        "reconstruction": rng.normal(size=(len(ids), dim)).astype(np.float16),
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_imported_embeddings(tmp_path: Path, store: EmbeddingStore) -> None:
    corpus = corpus_of(None)
    path = write_npz(tmp_path / "mine.npz", IDS[::-1])
    summary = import_npz(corpus, path, "mine", store)
    assert (summary.pairs, summary.dim, summary.added, summary.unchanged, summary.replaced) == (6, 3, 6, 0, 0)
    assert stored_names(store, corpus) == ["mine"]
    (item,) = pair_embeddings(corpus, ["mine"], store=EmbeddingStore(store.root), only_stored=True)[1]
    arrays = np.load(path)
    for role, index in (("reference", item.reference), ("reconstruction", item.reconstruction)):
        expected = arrays[role][::-1].astype(np.float64)
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        np.testing.assert_allclose(item.images[index], expected, atol=1e-6)
    assert item.images.dtype == np.float32
    # The same again is nothing new; a part of the pairs works on its own.
    files = sorted(store.root.rglob("*.safetensors"))
    assert import_npz(corpus, path, "mine", store).unchanged == 6
    assert sorted(store.root.rglob("*.safetensors")) == files
    assert stored_names(store, corpus.subset(np.arange(6) < 3)) == ["mine"]
    assert str(summary) == "mine: 6 pairs of 3 values (6 new, 0 unchanged, 0 replaced)"
    assert stored_names(store, corpus_of(None, [*IDS, "p99"])) == []
    with pytest.raises(EncoderError, match=r"'mine' cannot be had.*for 6 of the 7 pairs only; import it for all"):
        pair_embeddings(corpus_of(None, [*IDS, "p99"]), ["mine"], store=store)


def test_imports_belong_to_one_corpus(corpus: Corpus, tmp_path: Path, store: EmbeddingStore) -> None:
    """Another folder, or another bundle, with the same ids and relative paths."""
    again = r"imported under that name for another corpus or folder; import it again for this one"
    path = write_npz(tmp_path / "mine.npz")
    import_npz(corpus, path, "mine", store)
    moved = tmp_path / "moved"
    assert corpus.root is not None
    shutil.copytree(corpus.root, moved)
    link = tmp_path / "link"
    link.symlink_to(corpus.root)
    assert stored_names(store, corpus_of(link)) == ["mine"]
    for only_stored in (False, True):
        with pytest.raises(EncoderError, match=again) as caught:
            pair_embeddings(corpus_of(moved), ["mine"], store=store, only_stored=only_stored)
        assert "Imported for its pairs: none" in str(caught.value)
    assert import_npz(corpus_of(moved), write_npz(tmp_path / "other.npz", seed=9), "mine", store).added == 6
    assert not np.allclose(
        *(rows(pair_embeddings(where, ["mine"], store=store)[1][0]) for where in (corpus, corpus_of(moved)))
    )
    import_npz(corpus_of(None), path, "shared", store)
    with pytest.raises(EncoderError, match=again):
        pair_embeddings(corpus_of(None, name="another"), ["shared"], store=store)


def test_names_that_nothing_is_stored_under(corpus: Corpus, tmp_path: Path, store: EmbeddingStore) -> None:
    bare = bundle("lowlevel")
    import_npz(corpus, write_npz(tmp_path / "a.npz"), "elsewhere", store)
    import_npz(bare, write_npz(tmp_path / "a.npz"), "theirs", store)
    with pytest.raises(EncoderError) as caught:
        pair_embeddings(bare, ["mine"], store=store, only_stored=True)
    message = str(caught.value)
    for part in (
        "'mine'",
        "nothing is imported under it",
        "It ships: lowlevel. Imported for its pairs: theirs.",
        "bcs embed source=npz path=FILE encoder.name=mine",
    ):
        assert part in message
    assert "elsewhere" not in message
    with pytest.raises(EncoderError, match="Unknown encoder 'mine'") as caught:
        pair_embeddings(bare, ["mine"], store=store)
    assert "theirs" in str(caught.value)
    assert "elsewhere" not in str(caught.value)
    assert str(caught.value).count("lowlevel") == 1
    with pytest.raises(EncoderError, match=r"^2 of 2 encoders"):
        pair_embeddings(bare, ["mine", "siglip"], store=store, only_stored=True)


def test_other_values_need_overwrite(tmp_path: Path, store: EmbeddingStore) -> None:
    corpus = corpus_of(None)
    import_npz(corpus, write_npz(tmp_path / "a.npz"), "mine", store)
    (before,) = pair_embeddings(corpus, ["mine"], store=store)[1]
    other = write_npz(tmp_path / "b.npz", seed=6)
    with pytest.raises(StoreError, match=r"other values are stored under 'mine' for 6 .*overwrite=true"):
        import_npz(corpus, other, "mine", store)
    assert import_npz(corpus, other, "mine", store, overwrite=True).replaced == 6
    (after,) = pair_embeddings(corpus, ["mine"], store=store)[1]
    assert not np.allclose(before.images, after.images)
    assert before.fingerprint != after.fingerprint
    with pytest.raises(StoreError, match="have 3"):
        import_npz(corpus, write_npz(tmp_path / "c.npz", dim=4), "mine", store, overwrite=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": None}, "array 'reference' is missing"),
        ({"ids": np.array([*IDS[:5], {}], dtype=object)}, "never loaded"),
        ({"reference": np.ones((6, 3), dtype=object)}, "never loaded"),
        ({"reference": np.ones((6, 4), np.float32)}, r"reference has shape \(6, 4\)"),
        ({"reference": np.ones((5, 3), np.float32)}, "reference has 5 rows for 6 ids"),
        ({"reference": np.ones(6, np.float32)}, r"expected float16.*\(6,\)"),
        ({"reference": np.ones((6, 3), np.int64)}, "expected float16, float32 or float64"),
        ({"reference": np.array([[np.nan, 1, 1], *np.ones((5, 3))])}, r"1 rows \(0\) hold NaN"),
        ({"reconstruction": np.array([*np.ones((5, 3)), [0, 0, 0]])}, r"1 rows \(5\) are all zero"),
        ({"ids": np.arange(6)}, "expected a text array"),
        ({"ids": np.array([*IDS[:5], IDS[0]])}, "1 appear more than once: p00"),
        ({"ids": np.array([*IDS[:5], "zz"])}, "1 are not pairs of the corpus: zz"),
        ({"ids": np.array([*IDS[:5], "zz"])}, "not in the file: p05"),
    ],
)
def test_bad_npz_files(changes: dict[str, Any], message: str, tmp_path: Path, store: EmbeddingStore) -> None:
    path = write_npz(tmp_path / "bad.npz", **changes)
    with pytest.raises(CorpusError, match=message) as caught:
        import_npz(corpus_of(None), path, "mine", store)
    assert str(path) in str(caught.value)
    assert not store.root.exists()


def test_all_problems_of_a_file_are_listed_at_once(tmp_path: Path, store: EmbeddingStore) -> None:
    path = write_npz(tmp_path / "bad.npz", reference=np.zeros((5, 3)), ids=np.array([*IDS[:5], "zz"]))
    with pytest.raises(CorpusError) as caught:
        import_npz(corpus_of(None), path, "mine", store)
    assert str(caught.value).count("\n  - ") == 5


def test_damaged_and_missing_files(tmp_path: Path, store: EmbeddingStore) -> None:
    path = write_npz(tmp_path / "torn.npz")
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(CorpusError, match="damaged"):
        import_npz(corpus_of(None), path, "mine", store)
    with pytest.raises(CorpusError, match="no such file"):
        import_npz(corpus_of(None), tmp_path / "none.npz", "mine", store)
    for name, content in (("notes.npz", b"pair_id,reference\n"), ("PK.npz", b"PK is text too"), ("empty.npz", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CorpusError, match=r"is no \.npz file") as caught:
            import_npz(corpus_of(None), tmp_path / name, "mine", store)
        assert "pickle" not in str(caught.value)
    with pytest.raises(CorpusError, match="damaged or unreadable"):
        import_npz(corpus_of(None), tmp_path, "mine", store)
    np.save(tmp_path / "single.npy", np.zeros(3))
    with pytest.raises(CorpusError, match="single array"):
        import_npz(corpus_of(None), tmp_path / "single.npy", "mine", store)


@pytest.mark.parametrize("name", ["siglip", "fusion", "timm", "a b", "../x", "", "1x"])
def test_names_that_cannot_be_imported(name: str, tmp_path: Path, store: EmbeddingStore) -> None:
    with pytest.raises(EncoderError, match=r"encoder\.name"):
        import_npz(corpus_of(None), write_npz(tmp_path / "a.npz"), name, store)


def test_huge_and_tiny_float64_rows_keep_their_direction(tmp_path: Path, store: EmbeddingStore) -> None:
    big = np.ones((6, 3)) * np.array([1e300, 1e-300, 1, 1, 1, 1])[:, None]
    import_npz(corpus_of(None), write_npz(tmp_path / "a.npz", reference=big), "mine", store)
    (item,) = pair_embeddings(corpus_of(None), ["mine"], store=store)[1]
    np.testing.assert_allclose(item.images[item.reference], np.full((6, 3), 3**-0.5), atol=1e-6)


# --- stored only ---


def test_only_stored_computes_nothing(corpus: Corpus, store: EmbeddingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EncoderError, match=r"does not hold 'lowlevel' for all 7 images.*bcs embed encoder=lowlevel"):
        pair_embeddings(corpus, ["lowlevel"], store=store, only_stored=True)
    (filled,) = pair_embeddings(corpus, ["lowlevel"], store=store)[1]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing may be loaded")

    monkeypatch.setattr(embeddings, "load_encoder", refuse)
    (found,) = pair_embeddings(corpus, ["lowlevel"], store=store, only_stored=True)[1]
    assert np.array_equal(rows(found), rows(filled))
    assert found.fingerprint == filled.fingerprint


# --- the canonical form ---


def test_canonical_is_the_same_from_float16_and_float32() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    once = canonical(vectors)
    assert once.dtype == np.float32
    assert np.array_equal(once, canonical(vectors.astype(np.float16)))
    np.testing.assert_allclose(np.linalg.norm(once, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(once, vectors, atol=1e-3)
