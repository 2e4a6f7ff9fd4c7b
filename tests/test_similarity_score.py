"""Scoring with a model over similarities: from images, from what is shipped, and what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tiny_model import CONFORMAL, SMALL, draw, draw_files

from bcs_lab.corpus import read_bundle, write_bundle
from bcs_lab.corpus.schema import PAIR_COLUMNS, Corpus
from bcs_lab.embeddings import pair_embeddings
from bcs_lab.encoders.base import normalise
from bcs_lab.ensemble import Ensemble
from bcs_lab.errors import EncoderError, ImageError, ModelError
from bcs_lab.familiarity import Familiarity
from bcs_lab.heads import build_head
from bcs_lab.score import BCS, scores_of
from bcs_lab.similarity import Describer, load_describer, pair_similarities, similarity_matrix
from bcs_lab.store import EmbeddingStore
from bcs_lab.teachers.protocol import BCS12

BOTH = ("efficientnet_lite0", "lowlevel")
HEAD = {"name": "similarity_mlp", "hidden": 8}


def describers(names: Sequence[str] = BOTH) -> list[Describer]:
    return [load_describer(name, options=SMALL.get(name), device="cpu") for name in names]


def familiarity(found: Sequence[Describer], seeds: range) -> Familiarity:
    """One that knows the drawings of these seeds on both sides."""
    vectors = [
        np.stack([part.embedding for part in one.forward(np.stack([one.prepare(draw(seed)) for seed in seeds]))])
        for one in found
    ]
    sides = {"reference": vectors, "reconstruction": vectors}
    return Familiarity.fit(sides, {side: [str(seed) for seed in seeds] for side in sides})


def ensemble_of(found: Sequence[Describer], *, known: range | None = range(8), **changes: Any) -> Ensemble:
    """An ensemble over similarities with random heads."""
    width = sum(len(one.names) for one in found)
    states = []
    for seed in range(2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            head = build_head("similarity_mlp", width, len(BCS12.questions), hidden=8)
        states.append({
            key: value + 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(seed))
            if value.is_floating_point() and key.endswith("weight") else value
            for key, value in head.state_dict().items()
        })  # fmt: skip
    record = {"stand_in": None}
    settings = {
        "head": dict(HEAD),
        "encoders": [
            {**record, "name": one.name, "label": one.name, "fingerprint": one.encoder.fingerprint,
             "dim": one.encoder.dim, "options": SMALL.get(one.name, {})} for one in found
        ],
        "protocol": BCS12.name,
        "questions": [{"id": question.id, "group": question.group} for question in BCS12.questions],
        "teachers": ["a"],
        "weight_scheme": "variance",
        "split": {"scheme": "concept", "seed": 42, "hash": "0"},
        "seeds": [0, 1],
        "states": states,
        "conformal": CONFORMAL,
        "familiarity": None if known is None else familiarity(found, known),
        "features": {
            "kind": "similarity",
            "names": [f"{one.name}.{name}" for one in found for name in one.names],
            "parts": [
                {**record, "name": one.name, "label": one.name, "fingerprint": one.fingerprint,
                 "names": list(one.names), "options": SMALL.get(one.name, {})} for one in found
            ],
        },
    }  # fmt: skip
    return Ensemble(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    return ensemble_of(describers())


@pytest.fixture(scope="module")
def bcs(ensemble: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> BCS:
    folder = ensemble.save(tmp_path_factory.mktemp("run") / "ensemble")
    return BCS.load(folder, device="cpu", batch_size=4)


def corpus_of(root: Path, n: int = 5, references: int = 2) -> Corpus:
    refs, recs = draw_files(root, n, references=references)
    rows = [(f"p{i}", "m", "s", "c", "1", "1", refs[i].name, recs[i].name) for i in range(n)]
    return Corpus(
        name="test",
        pairs=pd.DataFrame(rows, columns=list(PAIR_COLUMNS), dtype=object),
        teachers=("a",),
        answers=np.ones((n, 1, 12), dtype=np.float32),
        rationales=np.full((n, 1, 12), "", dtype=object),
        root=root,
        where=[f"manifest.csv:{i + 2}" for i in range(n)],
    )


def test_a_pair_equals_the_pipeline_by_hand(bcs: BCS, ensemble: Ensemble, tmp_path: Path) -> None:
    (ref,), (rec,) = draw_files(tmp_path, 1)
    score = bcs.score(ref, rec)
    columns, sides = [], [[], []]  # type: list[np.ndarray], list[list[np.ndarray]]
    for one in describers():
        images = [Image.open(path).convert("RGB") for path in (ref, rec)]
        a, b = one.forward(np.stack([one.prepare(image) for image in images]))
        columns.append(one.compare(a, b))
        for side, part, image in zip(sides, (a, b), images, strict=True):
            side.append(part.embedding[None])
            np.testing.assert_allclose(part.embedding, one.encoder.embed([image])[0], atol=1e-5)
    members = ensemble.predict_features(np.concatenate(columns)[None])[:, 0]
    assert list(score.questions.values()) == members.astype(float).mean(axis=0).astype(np.float32).tolist()
    assert np.ptp(members) > 0.01
    assert ensemble.familiarity is not None
    assert score.ood == bool(ensemble.familiarity.unfamiliar(*sides)[0])
    assert score.encoders == BOTH
    assert bcs.score(ref, ref).t_pas != score.t_pas


def test_a_batch_a_table_and_a_corpus_score_alike(bcs: BCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpus_of(tmp_path, 7, references=3)
    sides = [[corpus.reference_file(i) for i in range(7)], [corpus.reconstruction_file(i) for i in range(7)]]
    expected = [bcs.score(one, two) for one, two in zip(*sides, strict=True)]
    monkeypatch.setattr("bcs_lab.score.COMPARED", 3)
    batch = bcs.score(*sides)
    np.testing.assert_allclose(batch.t_sas, [score.t_sas for score in expected], atol=1e-6)
    assert batch.ood.tolist() == [score.ood for score in expected]
    frame, problems = bcs.score_corpus(corpus, progress=False)
    assert problems == []
    np.testing.assert_allclose(frame["t_sas"], batch.t_sas, atol=1e-6)
    table = pd.DataFrame({"reference": map(str, sides[0]), "reconstruction": map(str, sides[1])})
    np.testing.assert_allclose(bcs.score_pairs(table, progress=False)["t_pas"], batch.t_pas, atol=1e-6)
    assert len(bcs.score_pairs(table.iloc[:0], progress=False)) == 0
    pickled = pickle.loads(pickle.dumps(bcs))
    assert pickled.score(sides[0][0], sides[1][0]).t_pas == expected[0].t_pas
    assert copy.deepcopy(bcs).encoders is bcs.encoders
    # A store of embeddings is of no use to descriptions and does no harm.
    store = EmbeddingStore(tmp_path / "store")
    pair_embeddings(corpus, BOTH, store=store, options=SMALL, device="cpu")
    again, _ = bcs.score_corpus(corpus, store=store, progress=False)
    np.testing.assert_allclose(again["t_sas"], batch.t_sas, atol=1e-6)


def test_descriptions_are_remembered_as_far_as_they_fit(ensemble: Ensemble, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, 6, references=2)
    sides = [[corpus.reference_file(i) for i in range(6)], [corpus.reconstruction_file(i) for i in range(6)]]
    bcs = BCS(ensemble, device="cpu", batch_size=2)
    expected = bcs.score(*sides)
    assert bcs._embedder is not None
    assert len(bcs._embedder._memory) == 8
    assert bcs._embedder._bytes == sum(part.nbytes for held in bcs._embedder._memory.values() for part in held)
    short = BCS(ensemble, device="cpu", batch_size=2)
    short.load_encoders()
    assert short._embedder is not None
    short._embedder.remembered_bytes = 2 * bcs._embedder._bytes // 8
    np.testing.assert_allclose(short.score(*sides).t_sas, expected.t_sas, atol=1e-6)
    assert 1 <= len(short._embedder._memory) <= 2


def test_no_network_looks_at_an_image_twice(ensemble: Ensemble) -> None:
    bcs = BCS(ensemble, device="cpu")
    bcs.load_encoders()
    assert bcs._embedder is not None
    assert all(isinstance(step, Describer) for step in bcs._embedder.encoders)
    assert [encoder.name for encoder in bcs.encoders] == list(BOTH)
    # An encoder that only tells what is unfamiliar embeds.
    features = {**ensemble.features, "parts": ensemble.features["parts"][1:]}
    features["names"] = [f"lowlevel.{name}" for name in features["parts"][0]["names"]]
    other = ensemble_of(describers(), features=features, states=ensemble_of(describers(["lowlevel"])).states)
    mixed = BCS(other, device="cpu")
    score = mixed.score(draw(1), draw(2))
    assert mixed._embedder is not None
    assert [type(step).__name__ for step in mixed._embedder.encoders] == ["Describer", "FrozenEncoder"]
    assert isinstance(score.ood, bool)
    blind = BCS(replace(other, familiarity=None), device="cpu")
    assert blind.score(draw(1), draw(2)).ood is None
    assert blind._embedder is not None
    assert len(blind._embedder.encoders) == 1


def test_familiarity_is_told_by_the_embeddings(bcs: BCS) -> None:
    assert bcs.score(draw(1), draw(2)).ood is False
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    assert bcs.score(noise, draw(2)).ood is True


def test_broken_images_are_listed_or_skipped(bcs: BCS, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, 4)
    corpus.reconstruction_file(2).write_bytes(b"nothing")
    frame, problems = bcs.score_corpus(corpus, progress=False)
    assert frame["pair_id"].tolist() == ["p0", "p1", "p3"]
    assert [problem.pair_id for problem in problems] == ["p2"]
    with pytest.raises(ImageError, match=r"rec2\.png"):
        bcs.score(corpus.reference_file(2), corpus.reconstruction_file(2))


def test_a_corpus_without_images_is_scored_from_what_it_ships(bcs: BCS, tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus")
    options = {"options": SMALL, "device": "cpu"}
    _, embeddings = pair_embeddings(corpus, BOTH, store=None, **options)  # type: ignore[arg-type]
    _, similarities = pair_similarities(corpus, BOTH, store=None, **options)  # type: ignore[arg-type]
    expected, _ = bcs.score_corpus(corpus, progress=False)
    bundle = read_bundle(write_bundle(corpus, embeddings, tmp_path / "bundle", similarities=similarities))
    frame, problems = bcs.score_corpus(bundle, progress=False)
    assert problems == []
    np.testing.assert_allclose(frame["t_pas"], expected["t_pas"], atol=1e-6)
    assert frame["ood"].tolist() == expected["ood"].tolist()
    plain = read_bundle(write_bundle(corpus, embeddings, tmp_path / "plain"))
    with pytest.raises(EncoderError, match="Similarities of encoder 'efficientnet_lite0' cannot be had"):
        bcs.score_corpus(plain, progress=False)
    other = replace(similarities[0], fingerprint={**similarities[0].fingerprint, "version": "0"})
    old = read_bundle(write_bundle(corpus, embeddings, tmp_path / "old", similarities=[other, similarities[1]]))
    with pytest.raises(ModelError, match="efficientnet_lite0: version was '1' at training and is '0' here"):
        bcs.score_corpus(old, progress=False)
    direct = scores_of(
        bcs.ensemble,
        [normalise(part.images[part.reference]) for part in embeddings],
        [normalise(part.images[part.reconstruction]) for part in embeddings],
        similarities=similarity_matrix(similarities),
    )
    np.testing.assert_allclose(direct.t_pas, expected["t_pas"], atol=1e-6)


def test_other_encoders_are_refused(ensemble: Ensemble) -> None:
    def changed(key: str, value: Any) -> Ensemble:
        features = copy.deepcopy(ensemble.features)
        features["parts"][0]["fingerprint"]["encoder"][key] = value
        return replace(ensemble, features=features)

    with pytest.raises(ModelError, match=r"encoder\.weights was 'sha256:0' at training"):
        BCS(changed("weights", "sha256:0"), device="cpu", on_encoder_mismatch="warn").load_encoders()
    with pytest.raises(ModelError, match=r"encoder\.library_version was '9'"):
        BCS(changed("library_version", "9"), device="cpu").load_encoders()
    tolerant = BCS(changed("library_version", "9"), device="cpu", on_encoder_mismatch="warn")
    tolerant.load_encoders()
    assert len(tolerant.warnings) == 1
    features = copy.deepcopy(ensemble.features)
    features["parts"][0]["fingerprint"]["names"] = ["one"]
    with pytest.raises(ModelError) as caught:
        BCS(replace(ensemble, features=features), device="cpu").load_encoders()
    assert "names was ['one'] at training" in str(caught.value)
    assert len(str(caught.value)) < 800


def test_the_mirror_image_is_looked_at_where_training_did(ensemble: Ensemble) -> None:
    mirrored = [load_describer("efficientnet_lite0", options=SMALL["efficientnet_lite0"], device="cpu", mirror=True)]
    bcs = BCS(ensemble_of(mirrored, known=None), device="cpu")
    bcs.load_encoders()
    assert bcs._embedder is not None
    assert bcs._embedder.encoders[0].fingerprint["mirror"] is True


def test_there_is_no_loss_over_similarities(bcs: BCS) -> None:
    pixels = torch.rand(1, 3, 16, 16)
    with pytest.raises(ModelError, match="no gradient down to the pixels"):
        bcs.loss(pixels, pixels)


def test_in_inference_mode_and_out_of_it(ensemble: Ensemble) -> None:
    bcs = BCS(ensemble, device="cpu")
    with torch.inference_mode():
        first = bcs.score(draw(1), draw(2))
    assert bcs.score(draw(1), draw(2)).t_pas == first.t_pas
    assert bcs.score(draw(1), draw(3)).t_pas != first.t_pas
