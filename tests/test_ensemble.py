"""Mean, spread, and the ensemble as files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import make_data, make_embeddings, make_pairs, make_similarity_data

from bcs_lab.ensemble import Ensemble, combine
from bcs_lab.errors import ConfigError, ModelError, RunError
from bcs_lab.fit import train_ensemble
from bcs_lab.heads import HEADS
from bcs_lab.members import MemberResult
from bcs_lab.model_files import FORMAT_VERSION, _digest
from bcs_lab.snapping import fit_thresholds
from bcs_lab.split import Split, make_split
from bcs_lab.teachers.protocol import BCS12

HEAD = {"name": "continuous", "hidden": 8}
QUICK = {"max_epochs": 4}


def assemble(
    members: list[MemberResult], embeddings: Any, targets: np.ndarray, split: Split, **changes: Any
) -> Ensemble:
    settings: dict[str, Any] = {"head": HEAD, "teachers": ("a", "b"), "weight_scheme": "variance"} | changes
    return Ensemble.from_members(
        members, embeddings=embeddings, protocol=BCS12, split=split, targets=targets, **settings
    )


@pytest.fixture(scope="module")
def trained() -> tuple[list[MemberResult], Any, np.ndarray, Split]:
    data, embeddings, targets, split = make_data()
    return train_ensemble(data, HEAD, {"lr": 1e-2}, QUICK, [7, 13]), embeddings, targets, split


@pytest.fixture
def ensemble(trained: Any) -> Ensemble:
    return assemble(*trained)


def sides(embeddings: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [e.images[e.reference] for e in embeddings], [e.images[e.reconstruction] for e in embeddings]


# --- training ---


def test_thresholds_are_chosen_on_validation_only(trained: Any) -> None:
    members, embeddings, targets, split = trained
    built = assemble(members, embeddings, targets, split, snap=True)
    changed = targets.copy()
    changed[np.r_[split.indices("train"), split.indices("test")]] = 0.0
    again = assemble(members, embeddings, changed, split, snap=True)
    assert built.thresholds is not None
    assert np.array_equal(built.thresholds, again.thresholds)  # type: ignore[arg-type]
    mean, _ = combine([member.predictions for member in members])
    val = split.indices("val")
    assert np.array_equal(built.thresholds, fit_thresholds(mean[val], targets[val]))
    assert set(np.unique(built.report(mean))) <= {0.0, 0.5, 1.0}


def test_mean_and_population_spread() -> None:
    parts = [np.full((2, 3), value, dtype=np.float32) for value in (0.1, 0.2, 0.6)]
    mean, std = combine(parts)
    np.testing.assert_allclose(mean, 0.3, atol=1e-6)
    np.testing.assert_allclose(std, np.std([0.1, 0.2, 0.6]), atol=1e-6)
    assert (combine(parts[:1])[1] == 0).all()
    with pytest.raises(ValueError, match="at least one member"):
        combine([])


def test_saved_and_loaded_predicts_what_training_said(trained: Any, ensemble: Ensemble, tmp_path: Path) -> None:
    members, embeddings, *_ = trained
    folder = ensemble.save(tmp_path / "run" / "ensemble")
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "ensemble.json",
        "member-13.safetensors",
        "member-7.safetensors",
    ]
    assert [p.name for p in folder.parent.iterdir()] == ["ensemble"]
    loaded = Ensemble.load(folder)
    state = torch.random.get_rng_state()
    mean, std = loaded.predict(*sides(embeddings), batch_size=1024)
    assert torch.equal(torch.random.get_rng_state(), state)
    expected = combine([member.predictions for member in members])
    np.testing.assert_array_equal(mean, expected[0])
    np.testing.assert_array_equal(std, expected[1])
    np.testing.assert_allclose(loaded.predict(*sides(embeddings), batch_size=7)[0], mean, atol=1e-6)
    assert loaded.predict_members(*sides(embeddings)).shape == (2, 60, 12)
    assert np.array_equal(loaded.report(mean), mean)
    for name in ("head", "encoders", "protocol", "questions", "teachers", "weight_scheme", "split", "seeds", "metrics"):
        assert getattr(loaded, name) == getattr(ensemble, name)


def test_manifest_is_complete_and_plain(trained: Any, tmp_path: Path) -> None:
    members, embeddings, targets, split = trained
    built = assemble(members, embeddings, targets, split, snap=True, simulated_teachers=True, metrics={"q_r": np.nan})
    manifest = json.loads((built.save(tmp_path / "e") / "ensemble.json").read_text())
    assert manifest["format_version"] == FORMAT_VERSION
    assert manifest["in_dim"] == 4 * 8 + 1 + 4 * 5 + 1
    assert manifest["features"] == {"kind": "embedding"}
    assert manifest["encoders"][0] == {
        "name": "made0",
        "label": "made0",
        "stand_in": None,
        "fingerprint": {"model": "made up"},
        "dim": 8,
        "options": {},
    }
    assert manifest["split"] == {"scheme": "concept", "seed": 42, "hash": split.hash}
    assert manifest["teachers"] == ["a", "b"]
    assert manifest["simulated_teachers"] is True
    assert manifest["metrics"] == {"q_r": None}
    assert [member["seed"] for member in manifest["members"]] == [7, 13]
    loaded = Ensemble.load(tmp_path / "e")
    np.testing.assert_array_equal(loaded.thresholds, built.thresholds)  # type: ignore[arg-type]


def test_kfold_is_recorded(trained: Any) -> None:
    members, embeddings, targets, _ = trained
    built = assemble(members, embeddings, targets, make_split(make_pairs(), "kfold", folds=4, fold=2))
    assert built.split["fold"] == 2
    assert built.split["folds"] == 4


def test_saving_again_replaces_the_whole_and_nothing_else(trained: Any, ensemble: Ensemble, tmp_path: Path) -> None:
    members, embeddings, targets, split = trained
    folder = ensemble.save(tmp_path / "e")
    assemble(members[:1], embeddings, targets, split).save(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "ensemble.json", "member-7.safetensors"]
    assert [p.name for p in tmp_path.iterdir()] == ["e"]
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match="not part of an ensemble"):
        ensemble.save(folder)
    assert (folder / "notes.txt").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="not part of an ensemble"):
        ensemble.save(tmp_path / "file")
    with pytest.raises(RunError, match="cannot be written"):
        ensemble.save(tmp_path / "file" / "e")


def test_a_crash_while_saving_leaves_the_old_one(
    ensemble: Ensemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ensemble.save(tmp_path / "e")
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("bcs_lab.model_files.write_json", fail)
    with pytest.raises(KeyboardInterrupt):
        ensemble.save(folder)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["e"]


def test_r05_other_dimension(ensemble: Ensemble) -> None:
    other = make_embeddings(60, dims=(8, 6))
    with pytest.raises(ModelError, match=r"checkpoint expects D=54, features have D=58") as caught:
        ensemble.predict(*sides(other))
    assert "made0, made1" in str(caught.value)
    with pytest.raises(ModelError, match="2 encoders"):
        ensemble.predict(*sides(make_embeddings(60, dims=(8,))))
    a, b = sides(make_embeddings(60))
    with pytest.raises(ModelError, match="one n"):
        ensemble.predict(a, [part[:3] for part in b])


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_r05_cut_file_is_damaged_by_name(ensemble: Ensemble, tmp_path: Path, share: float) -> None:
    folder = ensemble.save(tmp_path / "e")
    path = folder / "member-13.safetensors"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ModelError, match=r"member-13\.safetensors: damaged"):
        Ensemble.load(folder)


def test_one_changed_byte_is_found(ensemble: Ensemble, tmp_path: Path) -> None:
    folder = ensemble.save(tmp_path / "e")
    path = folder / "member-7.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ModelError, match=r"member-7\.safetensors: damaged"):
        Ensemble.load(folder)


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "ensemble.json"
    manifest = json.loads(path.read_text()) | changes
    manifest["sha256"] = _digest(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 99}, "format version 99"),
        ({"format": "other"}, "not the manifest of a bcs_lab ensemble"),
        ({"head": {"name": "continuous", "hidden": 16}}, "does not fit a head 'continuous' with D=54"),
        ({"head": {"name": "gone"}}, "head=gone"),
        ({"encoders": [{"name": "a", "label": "a", "stand_in": None, "fingerprint": {}, "dim": 9}]}, "D=37"),
        ({"members": []}, "lists no members"),
        ({"thresholds": [[0.2, 0.8]]}, "two thresholds a question"),
        ({"questions": None}, "incomplete or damaged"),
        ({"features": {"kind": "pixels"}}, "incomplete or damaged"),
        ({"features": {"kind": "similarity", "names": ["a"], "parts": []}}, "incomplete or damaged"),
        ({"members": [{"seed": 7, "file": "../x.safetensors", "sha256": ""}]}, "not the name of a member file"),
    ],
)
def test_a_manifest_that_does_not_fit(
    ensemble: Ensemble, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = ensemble.save(tmp_path / "e")
    edit(folder, **changes)
    with pytest.raises(ModelError, match=message):
        Ensemble.load(folder)


def test_missing_and_broken_files(ensemble: Ensemble, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="expected the folder of a saved ensemble"):
        Ensemble.load(tmp_path / "nowhere")
    folder = ensemble.save(tmp_path / "e")
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "member-7.safetensors").unlink()
    with pytest.raises(ModelError, match=r"member-7\.safetensors: cannot be read"):
        Ensemble.load(copy)
    (folder / "ensemble.json").write_text((folder / "ensemble.json").read_text()[:100])
    with pytest.raises(ModelError, match="damaged, it is not JSON"):
        Ensemble.load(folder)


# --- similarities ---

ON_SIMILARITIES = {
    "similarity_mlp": {"hidden": 8},
    "ridge": {},
    "trees": {"trees": 9},
    "boosting": {"trees": 5},
    "kernel": {"alpha": [0.1, 1.0]},
    "stack": {"of": [{"ridge": {"alpha": 3.0}}, {"trees": {"trees": 5}}]},
}


@pytest.mark.parametrize("name", ON_SIMILARITIES)
def test_saved_and_loaded_on_similarities(name: str, tmp_path: Path) -> None:
    data, embeddings, similarities, targets, split = make_similarity_data()
    head = {"name": name, **ON_SIMILARITIES[name]}
    members = train_ensemble(data, head, {}, QUICK, [7, 13])
    options = {"made1": {"image_size": 64}}
    built = assemble(members, embeddings, targets, split, head=head, similarities=similarities, options=options)
    folder = built.save(tmp_path / "e")
    assert {path.suffix for path in folder.iterdir()} == {".md", ".json", ".safetensors"}
    loaded = Ensemble.load(folder)
    assert data.similarity is not None
    matrix = data.similarity.numpy()
    found = loaded.predict_features(matrix)
    assert np.array_equal(found, np.stack([member.predictions for member in members]))
    assert np.array_equal(found, built.predict_features(matrix))
    np.testing.assert_allclose(loaded.predict_features(matrix, batch_size=7), found, atol=1e-6)
    assert loaded.predict_features(matrix[:0]).shape == (2, 0, 12)
    assert loaded.features == built.features
    assert loaded.features["names"] == data.names
    assert loaded.features["parts"][1] == {
        "name": "made1",
        "label": "made1",
        "stand_in": None,
        "fingerprint": {"model": "made up", "similarities": "1"},
        "names": list(similarities[1].names),
        "options": {"image_size": 64},
    }
    assert (loaded.kind, loaded.in_dim, loaded.dims) == ("similarity", 14, [8, 5])
    with pytest.raises(ModelError, match="use predict_features"):
        loaded.predict(*sides(embeddings))
    with pytest.raises(ModelError, match=r"similarity features of shape \[n, 14\], got \[60, 13\]"):
        loaded.predict_features(matrix[:, 1:])
    wild = matrix.copy()
    wild[3, 1] = np.inf
    with pytest.raises(ModelError, match="1 features are not finite"):
        loaded.predict_features(wild)


@pytest.mark.parametrize("name", [name for name, head in HEADS.items() if "embedding" in head.FEATURES])
def test_saved_and_loaded_on_embeddings(name: str, tmp_path: Path) -> None:
    data, embeddings, targets, split = make_data()
    settings = ON_SIMILARITIES.get(name, {"hidden": 8})
    members = train_ensemble(data, {"name": name, **settings}, {}, QUICK, [7])
    loaded = Ensemble.load(
        assemble(members, embeddings, targets, split, head={"name": name, **settings}).save(tmp_path / "e")
    )
    assert np.array_equal(loaded.predict_members(*sides(embeddings))[0], members[0].predictions)


def test_features_of_another_kind_or_width_are_found(tmp_path: Path) -> None:
    data, embeddings, similarities, targets, split = make_similarity_data()
    head = {"name": "trees", "trees": 9}
    members = train_ensemble(data, head, {}, QUICK, [7])
    built = assemble(members, embeddings, targets, split, head=head, similarities=similarities)
    folder = built.save(tmp_path / "e")
    parts = [{**built.features["parts"][0], "names": ["pooled_cosine", "mse"]}]
    edit(folder, features={"kind": "similarity", "names": ["made0.pooled_cosine", "made0.mse"], "parts": parts})
    with pytest.raises(ModelError, match=r"does not fit a head 'trees' with D=2"):
        Ensemble.load(folder)
    with pytest.raises(ConfigError, match="head=cosine_residual works on features=embedding"):
        assemble(members, embeddings, targets, split, head={"name": "cosine_residual"}, similarities=similarities)


def test_features_of_embeddings_can_be_given_too(trained: Any, ensemble: Ensemble) -> None:
    from bcs_lab.features import fused_features

    _, embeddings, *_ = trained
    pairs = [tuple(map(torch.from_numpy, side)) for side in zip(*sides(embeddings), strict=True)]
    found = ensemble.predict_features(fused_features(pairs))  # type: ignore[arg-type]
    np.testing.assert_allclose(found, ensemble.predict_members(*sides(embeddings)), atol=1e-3)
