"""The shipped corpus: it re-exports to itself, and its images, where they are at hand, give the same numbers."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bcs_lab.corpus import bundle_differences, load_corpus
from bcs_lab.corpus.bundle import BRAINBANK
from bcs_lab.encoders import EMBEDDED
from bcs_lab.similarity import pair_similarities


def test_the_shipped_corpus_is_what_its_card_says() -> None:
    corpus = load_corpus("brainbank")
    assert len(corpus) == 311
    assert corpus.pairs["modality"].value_counts().to_dict() == {"EEG": 251, "fMRI": 60}
    assert corpus.pairs["concept"].nunique() == 153
    assert corpus.teachers == ("literal", "conservative", "lenient", "decisive")
    assert set(corpus.shipped) == set(corpus.shipped_similarities) == set(EMBEDDED)
    widths = {name: item.values.shape for name, item in corpus.shipped_similarities.items()}
    assert widths == {name: (311, len(item.names)) for name, item in corpus.shipped_similarities.items()}
    assert widths["efficientnet_lite0"] == widths["efficientnet_lite2"] >= (311, 100)
    assert widths["lowlevel"] == (311, 14)
    assert all(np.isfinite(item.values).all() for item in corpus.shipped_similarities.values())
    assert not np.isnan(corpus.answers).any()
    assert corpus.card is not None
    for words in ("not people", "figure", "EEG_Image_decode", "No image is included"):
        assert words in corpus.card
    assert sum(path.stat().st_size for path in BRAINBANK.iterdir()) < 5e6
    assert not [path for path in BRAINBANK.rglob("*") if path.suffix in {".png", ".jpg", ".jpeg", ".webp", ".gif"}]


def test_a_re_export_of_the_shipped_corpus_is_the_same_corpus(bcs: Callable[..., int], tmp_path: Path) -> None:
    out = tmp_path / "again"
    both = [f"{key}=[{','.join(EMBEDDED)}]" for key in ("encoders", "similarities")]
    assert bcs("corpus", "export", "corpus=brainbank", f"out={out}", *both) == 0
    assert bundle_differences(load_corpus("brainbank"), load_corpus("bundle", out)) == []
    names = [path.name for path in BRAINBANK.iterdir() if path.suffix == ".safetensors"]
    assert filecmp.cmpfiles(BRAINBANK, out, names, shallow=False)[0] == names
    assert bcs("corpus", "export", "corpus=brainbank", f"out={out}", "encoders=[lowlevel]") == 2


def test_the_images_give_the_shipped_numbers(bcs: Callable[..., int], tmp_path: Path) -> None:
    """Some of the pairs, from their images; the images are third-party and not part of the project."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "real_pairs" / "brainbank"
    images = Path(os.environ.get("BCS_BRAINBANK_IMAGES", beside))
    if not (images / "manifest.csv").is_file():
        pytest.skip("the images of brainbank are not here; BCS_BRAINBANK_IMAGES=FOLDER says where they are")
    root = tmp_path / "some"
    shutil.copytree(images / "annotations", root / "annotations")
    header, *rows = (images / "manifest.csv").read_text(encoding="utf-8").splitlines()
    kept = rows[::12]
    (root / "manifest.csv").write_text("\n".join([header, *kept]) + "\n", encoding="utf-8")
    (root / "images").symlink_to(images / "images")
    ids = {row.split(",")[0] for row in kept}
    for path in (root / "annotations").iterdir():
        path.chmod(0o644)
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.split('"')[3] in ids]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    out = tmp_path / "bundle"
    teachers = "corpus.teachers=[literal,conservative,lenient,decisive]"
    both = [f"{key}=[{','.join(EMBEDDED)}]" for key in ("encoders", "similarities")]
    assert bcs("corpus", "export", "corpus=manifest", f"corpus.root={root}", teachers, f"out={out}", *both) == 0
    # Another processor may differ in the last bits of a float16.
    assert bundle_differences(load_corpus("brainbank"), load_corpus("bundle", out), atol=2e-3) == []
    assert len(load_corpus("bundle", out)) == len(kept)


def test_similarities_are_stored_and_travel(
    bcs: Callable[..., int], drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = ["corpus=manifest", f"corpus.root={drawn}", f"store={tmp_path / 'store'}", "encoder=lowlevel"]
    assert bcs("embed", *corpus) == 0
    assert "14 similarities" not in capsys.readouterr().out
    assert bcs("embed", *corpus, "features=similarity") == 0
    assert "lowlevel: 14 similarities of 24 pairs" in capsys.readouterr().out
    assert sorted(path.name.rpartition("-")[0] for path in (tmp_path / "store").iterdir()) == [
        "colour-edge-layout",
        "similarity-colour-edge-layout",
    ]
    out = tmp_path / "bundle"
    assert bcs("corpus", "export", *corpus, f"out={out}", "similarities=[lowlevel]") == 0
    shipped = load_corpus("bundle", out).shipped_similarities["lowlevel"]
    expected = pair_similarities(load_corpus("manifest", drawn), ["lowlevel"], store=None)[1][0]
    assert shipped.names == expected.names
    assert np.array_equal(shipped.values, expected.values)
    again = tmp_path / "again"
    assert bcs("corpus", "export", "corpus=bundle", f"corpus.root={out}", "encoder=lowlevel", f"out={again}",
               "similarities=[lowlevel]") == 0  # fmt: skip
    assert bundle_differences(load_corpus("bundle", out), load_corpus("bundle", again)) == []
    assert bcs("embed", *corpus, "features=similarity", "source=npz", "path=x.npz", "encoder.name=mine") == 2
    assert "source=npz brings in embeddings only" in capsys.readouterr().err
