"""The folder that the pages' commands speak of: pictures, a corpus, a small trained model, ratings of a study."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from raters import simulate, write_ratings
from tiny_model import draw

from bcs_lab.cli import main
from bcs_lab.human.study import Study

sys.path.append(str(Path(__file__).parent / "tasks"))

CONCEPTS = 10


def make_folder(folder: Path) -> Path:
    """Fill ``folder``; to be called with it as the working directory."""
    from drawn_corpus import draw_corpus

    draw_corpus(folder / "pairs", concepts=CONCEPTS)
    images = folder / "pairs" / "images"
    for method in ("A", "B"):
        (folder / "recs" / method).mkdir(parents=True)
    (folder / "refs").mkdir()
    for concept in range(CONCEPTS):
        shutil.copy(images / f"ref{concept}.png", folder / "refs" / f"scene{concept}.png")
        for at, method in enumerate(("A", "B")):
            shutil.copy(images / f"rec{concept}_{at}.png", folder / "recs" / method / f"scene{concept}.png")
    shutil.copy(images / "ref0.png", folder / "ref.png")
    shutil.copy(images / "rec0_0.png", folder / "rec.png")
    for i in range(10):
        path = folder / "photos" / f"concept{i // 2}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        draw(i, (48, 40)).save(path)
    ids = pd.read_csv(folder / "pairs" / "manifest.csv")["pair_id"].to_numpy(dtype=str)
    rng = np.random.default_rng(0)
    np.savez(
        folder / "vectors.npz", ids=ids, reference=rng.normal(size=(len(ids), 8)),
        reconstruction=rng.normal(size=(len(ids), 8)),
    )  # fmt: skip
    _train(folder)
    _rate(folder)
    return folder


def _train(folder: Path) -> None:
    corpus = ("corpus=manifest", "corpus.root=pairs", "encoder=lowlevel", "trainer=debug", "logger=none")
    for name, head in (("first", "continuous"), ("second", "coral")):
        run = (
            f"hydra.run.dir=runs/{name}",
            f"head={head}",
            "seeds=[7,13]",
            "head.hidden=16",
            "bootstrap.resamples=100",
        )
        assert main(["train", *corpus, *run]) == 0


def _rate(folder: Path) -> None:
    """Ratings of the study that the page selects: its ids follow from corpus and seed alone."""
    study = folder / "draft"
    assert main(["study", "select", "corpus=manifest", "corpus.root=pairs", "model=runs/first", f"out={study}"]) == 0
    write_ratings(folder / "ratings", simulate(Study.read(study), n_raters=4))
    shutil.rmtree(study)
    for left in ("study_select", "score"):
        shutil.rmtree(folder / "runs" / left, ignore_errors=True)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A filled folder, made once; each page works in a copy. Embeddings are shared through one store beside it."""
    root = tmp_path_factory.mktemp("docs")
    folder = root / "folder"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["bcs"])
        patch.setenv("BCS_STORE", str(root / "store"))
        make_folder(folder)
    return folder
