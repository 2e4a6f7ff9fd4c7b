"""``bcs-lite``: the shipped model, and how it is made."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bcs_lab import BCS
from bcs_lab.corpus import load_corpus
from bcs_lab.ensemble import Ensemble
from bcs_lab.evaluate import evaluate
from bcs_lab.lite import ENCODERS, HEAD, NAME, decoder_families, lite_card, train_lite
from bcs_lab.models import SHIPPED_FOLDER, resolve_model
from bcs_lab.similarity import load_describer, pair_similarities, similarity_matrix

QUICK = {"name": "ridge", "alpha": 300}


@pytest.fixture(scope="module")
def shipped() -> Ensemble:
    return Ensemble.load(resolve_model(NAME))


def test_it_is_small_and_says_what_it_is(shipped: Ensemble) -> None:
    size = sum(path.stat().st_size for path in SHIPPED_FOLDER.iterdir())
    assert size < 40e6
    assert shipped.features["kind"] == "similarity"
    assert shipped.head["name"] == HEAD["name"]
    assert len(shipped.seeds) == 5
    assert not shipped.simulated_teachers
    validation = json.loads((SHIPPED_FOLDER / "validation.json").read_text())
    assert shipped.metrics is not None
    assert shipped.metrics["ensemble"] == validation["held_out_concepts"]["ensemble"]
    card = (SHIPPED_FOLDER / "README.md").read_text()
    for text in (shipped.digest, "bcs score model=bcs-lite", "decoders left out", "By question", "EEG"):
        assert text in card
    # better than the strong opponents on both axes, on concepts and on decoders it had not seen
    for axis in ("pas_rho", "sas_rho"):
        best = max(values[axis] for values in validation["baselines"].values())
        assert validation["held_out_concepts"]["ensemble"][axis] > best
    assert validation["left_out_decoders"]["ensemble"]["pas_rho"] > validation["baselines"]["cosine mean"]["pas_rho"]


def test_it_was_fitted_to_the_shipped_pairs(shipped: Ensemble) -> None:
    corpus = load_corpus("brainbank")
    corpus, parts = pair_similarities(corpus, ENCODERS, store=None)
    mean = shipped.predict_features(similarity_matrix(parts)).mean(axis=0)
    from bcs_lab.consensus import consensus

    found = evaluate(mean, consensus(corpus.answers), corpus.protocol)
    assert found["pas_r"] is not None
    assert found["pas_r"] > 0.9  # it has seen these pairs
    held_out = json.loads((SHIPPED_FOLDER / "validation.json").read_text())["held_out_concepts"]["ensemble"]
    assert held_out["pas_r"] < found["pas_r"]


def test_it_scores_offline(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    picture = (generator.random((9, 9, 3)) * 255).astype(np.uint8)
    for name, pixels in (("a", picture), ("b", 255 - picture)):
        Image.fromarray(pixels).resize((200, 160), Image.Resampling.BICUBIC).save(tmp_path / f"{name}.png")
    bcs = BCS.load("bcs-lite")
    same = bcs.score(tmp_path / "a.png", tmp_path / "a.png")
    other = bcs.score(tmp_path / "a.png", tmp_path / "b.png")
    assert same.t_pas > other.t_pas
    assert same.t_sas > other.t_sas
    assert same.t_pas > 0.8
    assert other.t_pas_interval[0] <= other.t_pas <= other.t_pas_interval[1]


def test_it_says_that_it_has_seen_the_shipped_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bcs_lab.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["bcs"])
    assert main(["score", "corpus=brainbank", "bootstrap.resamples=100", f"store={tmp_path / 'store'}"]) == 0
    said = capsys.readouterr().out
    assert "311 pairs of 311 took part in the model's training" in said
    assert "PAS-r" in said


def test_making_it_twice_gives_the_same(tmp_path: Path) -> None:
    corpus = load_corpus("brainbank")
    corpus = corpus.subset(np.arange(len(corpus)) % 4 == 0)
    first, second = (train_lite(corpus, QUICK, seeds=(7, 13), validation_seeds=(7,), folds=4) for _ in range(2))
    assert first.validation == second.validation
    np.testing.assert_array_equal(first.held_out, second.held_out)
    for name, lite in (("a", first), ("b", second)):
        lite.ensemble.save(tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
    assert "decoders left out" in lite_card(first)


def test_nobody_is_scored_by_a_model_that_knew_the_concept() -> None:
    corpus = load_corpus("brainbank")
    corpus = corpus.subset(np.arange(len(corpus)) % 4 == 0)
    plain = train_lite(corpus, QUICK, seeds=(7,), validation_seeds=(7,), folds=4)
    concept = corpus.pairs["concept"].iloc[0]
    answers = corpus.answers.copy()
    own = (corpus.pairs["concept"] == concept).to_numpy()
    answers[own] = 1.0 - answers[own]
    corpus.answers = answers
    changed = train_lite(corpus, QUICK, seeds=(7,), validation_seeds=(7,), folds=4)
    np.testing.assert_array_equal(plain.held_out[own], changed.held_out[own])
    assert not np.array_equal(plain.held_out[~own], changed.held_out[~own])


# --- the bank ---


@pytest.fixture(scope="module")
def describer():
    return load_describer("efficientnet_lite0", device="cpu")


def test_bank_against_a_direct_computation(describer) -> None:
    from bcs_lab.similarity.bank import KINDS, NEAREST, shipped_bank
    from bcs_lab.similarity.stages import StageComparer

    bank = shipped_bank(describer.encoder.fingerprint)
    assert bank is not None
    generator = np.random.default_rng(1)
    images = [Image.fromarray((generator.random((6, 6, 3)) * 255).astype(np.uint8)).resize((90, 90)) for _ in range(2)]
    one, two = describer.describe(np.stack([describer.prepare(image) for image in images]))
    found = dict(zip(describer.names, describer.compare(one, two), strict=True))
    comparer = describer.describe.__self__
    assert isinstance(comparer, StageComparer)
    a, b = ([part.numpy().astype(float) for part in comparer.standardised(side)] for side in (one, two))
    made = bank.reconstruction.numpy()
    for (stage, row), rows, x, y in zip(bank.layers, bank.rows, a, b, strict=True):
        rows = rows.numpy().astype(float)
        x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
        c, u, w = x @ y, (rows @ x)[made], (rows @ y)[~made]
        expected = [
            (c - u.mean()) / u.std(ddof=1), (c - w.mean()) / w.std(ddof=1), c - (u.mean() + w.mean()) / 2,
            2 * c - np.sort(u)[-NEAREST:].mean() - np.sort(w)[-NEAREST:].mean(), (u < c).mean(), (w < c).mean(),
        ]  # fmt: skip
        names = [f"{stage}.bank_{('mean', 'spread')[row]}_{kind}" for kind in KINDS]
        np.testing.assert_allclose([found[name] for name in names], expected, atol=2e-3, rtol=2e-3)


def test_bank_leaves_out_pictures_of_the_same_thing() -> None:
    import torch

    from bcs_lab.similarity.bank import Bank

    rows = torch.nn.functional.normalize(torch.randn(60, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    group = torch.arange(60) // 3
    bank = Bank("", (("head", 0),), (rows,), torch.arange(60) % 2 == 1, group)
    own = bank.compare([rows[0]], [rows[1]])
    moved = rows.clone()
    moved[2] = -moved[2]  # shows the same as the pair
    same = Bank("", (("head", 0),), (moved,), bank.reconstruction, group).compare([rows[0]], [rows[1]])
    torch.testing.assert_close(own, same)
    moved[5] = -moved[5]
    other = Bank("", (("head", 0),), (moved,), bank.reconstruction, group).compare([rows[0]], [rows[1]])
    assert not torch.allclose(own, other)
    few = Bank("", (("head", 0),), (rows[:12],), bank.reconstruction[:12], group[:12])
    assert few.compare([rows[0]], [rows[1]]).abs().max() == 0


def test_parts_of_the_shipped_model_and_a_damaged_split(tmp_path: Path) -> None:
    import shutil

    from bcs_lab.errors import ModelError
    from bcs_lab.models import known_split

    frame = known_split(SHIPPED_FOLDER)
    assert frame is not None
    assert set(frame["split"]) == {"train"}
    assert len(frame) == 311
    shutil.copy(SHIPPED_FOLDER / "split.parquet", tmp_path / "split.parquet")
    (tmp_path / "split.parquet").write_bytes(b"junk")
    with pytest.raises(ModelError, match=r"split\.parquet"):
        known_split(tmp_path)


def test_variants_of_a_decoder_are_left_out_together() -> None:
    corpus = load_corpus("brainbank")
    methods = corpus.pairs["method"].to_numpy(dtype=object)
    families = decoder_families(methods)
    assert {name for name, family in zip(methods, families, strict=True) if family == "ATM"} == {
        "ATM", "ATM+contrastive", "ATM-S_SDXL-prompt", "ATM_clip-only_repro",
    }  # fmt: skip
    assert len(set(families)) == len(set(methods)) - 3


def test_cosines_stand_beside_the_scores_of_a_corpus() -> None:
    from bcs_lab.embeddings import pair_embeddings
    from bcs_lab.results import cosines

    corpus = load_corpus("brainbank")
    frame, problems = BCS.load("bcs-lite").score_corpus(corpus, progress=False)
    assert not problems
    expected = cosines(pair_embeddings(corpus, ENCODERS, store=None)[1])
    assert list(frame.attrs["cosines"]) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(frame.attrs["cosines"][name], values, atol=1e-6)
