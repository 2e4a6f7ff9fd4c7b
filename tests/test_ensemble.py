from __future__ import annotations

import json
import logging
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import Callback
from small import make_data, make_embeddings, make_pairs, make_targets

from bcs_lab.data import BCSDataModule
from bcs_lab.ensemble import (
    FORMAT_VERSION,
    Ensemble,
    MemberResult,
    combine,
    fit_thresholds,
    snap,
    train_ensemble,
    train_member,
)
from bcs_lab.errors import ConfigError, CorpusError, ModelError, RunError
from bcs_lab.heads import HEADS
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


def same(a: MemberResult, b: MemberResult) -> bool:
    return (
        np.array_equal(a.predictions, b.predictions)
        and a.history == b.history
        and (a.seed, a.best_epoch, a.epochs) == (b.seed, b.best_epoch, b.epochs)
        and all(torch.equal(a.state_dict[key], b.state_dict[key]) for key in a.state_dict)
    )


def test_same_seed_gives_identical_numbers_alone_or_among_others() -> None:
    data, *_ = make_data()
    several = train_ensemble(data, HEAD, {}, QUICK, [13, 7, 21])
    torch.rand(3)
    np.random.seed(5)  # noqa: NPY002 - the state of any generator must not matter
    alone = train_member(make_data()[0], HEAD, {}, QUICK, 7)
    assert same(several[1], alone)
    assert [member.seed for member in several] == [13, 7, 21]
    assert not np.array_equal(several[0].predictions, several[1].predictions)


def test_member_result(trained: Any) -> None:
    members, _, targets, _ = trained
    for member in members:
        assert member.predictions.shape == targets.shape
        assert member.predictions.dtype == np.float32
        assert ((member.predictions >= 0) & (member.predictions <= 1)).all()
        assert [row["epoch"] for row in member.history] == [1, 2, 3, 4]
        assert set(member.history[0]) == {"epoch", "train_loss", "val_loss", "lr"}
        assert member.epochs == 4
        assert member.wall_s > 0


def test_the_best_epoch_is_restored() -> None:
    """Weights of an earlier epoch: predictions equal those of a run that ended there."""
    data, *_ = make_data()
    optim = {"lr": 0.05, "schedule": "none"}
    long = train_member(data, HEAD, optim, {"max_epochs": 40, "patience": 5}, 7)
    losses = [row["val_loss"] for row in long.history]
    assert long.best_epoch == int(np.argmin(losses)) + 1 < long.epochs
    short = train_member(data, HEAD, optim, {"max_epochs": long.best_epoch}, 7)
    assert short.best_epoch == long.best_epoch
    assert np.array_equal(short.predictions, long.predictions)


def test_early_stopping_counts_epochs_without_improvement() -> None:
    data, *_ = make_data()
    result = train_member(data, HEAD, {"lr": 0.05}, {"max_epochs": 60, "patience": 3}, 7)
    assert result.epochs == result.best_epoch + 3
    never = train_member(data, HEAD, {"lr": 1e-3}, {"max_epochs": 60, "patience": 3, "min_delta": 10.0}, 7)
    assert (never.best_epoch, never.epochs) == (1, 4)
    whole = train_member(data, HEAD, {"lr": 0.05}, {"max_epochs": 20, "patience": None}, 7)
    assert whole.epochs == 20


@pytest.mark.parametrize("name", HEADS)
def test_every_head_trains(name: str) -> None:
    data, embeddings, targets, split = make_data()
    head = {"name": name, "hidden": 8, "snap": None}
    members = train_ensemble(data, head, {"lr": 5e-3}, {"max_epochs": 6}, [7])
    assert members[0].history[-1]["val_loss"] < members[0].history[0]["val_loss"]
    built = assemble(members, embeddings, targets, split, head=head)
    assert (built.thresholds is not None) == HEADS[name].snap
    assert built.head == {"name": name, "hidden": 8}


def test_training_on_one_pair() -> None:
    embeddings = make_embeddings(3)
    targets, weights = make_targets(make_embeddings(4))
    data = BCSDataModule(embeddings, targets[:3], weights[:3], make_split(make_pairs(3), "pair"))  # type: ignore[arg-type]
    result = train_member(data, HEAD, {}, QUICK, 7)
    assert np.isfinite(result.predictions).all()


class Poison(Callback):
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch + 1 == self.epoch:
            with torch.no_grad():
                next(pl_module.head.parameters()).fill_(float("nan"))


def test_a_loss_that_is_no_number_names_seed_and_epoch() -> None:
    data, *_ = make_data()
    with pytest.raises(RunError, match="seed 13: the validation loss became nan in epoch 3"):
        train_ensemble(data, HEAD, {}, QUICK, [13], callback_factory=lambda seed: [Poison(3)])


def test_no_answered_question_to_learn_from() -> None:
    embeddings = make_embeddings()
    targets, weights = make_targets(embeddings)
    split = make_split(make_pairs())
    targets[split.indices("val")] = np.nan
    data = BCSDataModule(embeddings, targets, weights, split)  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match="The val part has 9 pairs but no answered question"):
        train_member(data, HEAD, {}, QUICK, 7)


def test_factories_get_the_seed_and_loggers_get_the_epochs(tmp_path: Path) -> None:
    from pytorch_lightning.loggers import CSVLogger

    data, *_ = make_data()
    asked = []

    def loggers(seed: int) -> CSVLogger:
        asked.append(seed)
        return CSVLogger(tmp_path, name="curves", version=f"seed-{seed}")

    train_ensemble(data, HEAD, {}, QUICK, [7, 13], logger_factory=loggers)
    assert asked == [7, 13]
    lines = (tmp_path / "curves" / "seed-13" / "metrics.csv").read_text().splitlines()
    assert {"epoch", "train/loss", "val/loss", "lr"} <= set(lines[0].split(","))


def test_quiet_and_without_a_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    data, *_ = make_data()
    loud = logging.getLogger("pytorch_lightning")
    level, handler = loud.level, signal.getsignal(signal.SIGINT)
    with warnings.catch_warnings(), caplog.at_level(logging.INFO, logger="bcs_lab"):
        warnings.simplefilter("error")
        train_member(data, HEAD, {}, QUICK, 7, progress=True)
    out, err = capfd.readouterr()
    assert out == err == ""  # no terminal: the bar is silent, one line is logged
    assert [record.name for record in caplog.records] == ["bcs_lab.ensemble"]
    assert "epochs/s" in caplog.text
    assert list(tmp_path.iterdir()) == []
    assert loud.level == level
    assert signal.getsignal(signal.SIGINT) is handler


class Interrupt(Callback):
    def on_train_batch_end(self, *_: Any) -> None:
        raise KeyboardInterrupt


def test_ctrl_c_reaches_the_caller() -> None:
    data, *_ = make_data()
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train_member(data, HEAD, {}, QUICK, 7, callbacks=[Interrupt()])
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.parametrize("seeds", [[], [7, 7], [1.5], [True], [-1], ["7"]])
def test_seeds_are_checked(seeds: list[Any]) -> None:
    with pytest.raises(ConfigError, match="seeds="):
        train_ensemble(make_data()[0], HEAD, {}, QUICK, seeds)


@pytest.mark.parametrize(
    ("head", "optim", "trainer", "message"),
    [
        ({"name": "linear"}, {}, {}, "head=linear"),
        ({}, {}, {}, "head=None"),
        (HEAD, {"momentum": 1}, {}, "optim: unknown keys momentum"),
        (HEAD, {}, {"epochs": 1}, "trainer: unknown keys epochs"),
        (HEAD, {}, {"max_epochs": 0}, r"trainer\.max_epochs=0"),
        (HEAD, {}, {"patience": 0}, r"trainer\.patience=0"),
        (HEAD, {}, {"batch_size": 0}, "batch_size=0"),
    ],
)
def test_settings_are_checked(head: Any, optim: Any, trainer: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_member(make_data()[0], head, optim, trainer, 7)


# --- thresholds ---


def naive_thresholds(prediction: np.ndarray, target: np.ndarray) -> np.ndarray:
    out = []
    for q in range(target.shape[1]):
        active = ~np.isnan(target[:, q])
        x, y = prediction[active, q].astype(float), target[active, q].astype(float)

        def error(low: float, high: float, x: np.ndarray = x, y: np.ndarray = y) -> float:
            return float(np.round(np.abs(np.where(x < low, 0.0, np.where(x < high, 0.5, 1.0)) - y).sum(), 9))

        best, least = (0.25, 0.75), error(0.25, 0.75) if len(x) else 0.0
        for low in np.linspace(0.05, 0.55, 51):
            for high in np.linspace(0.45, 0.95, 51):
                if len(x) and high > low + 0.05 and error(low, high) < least:
                    best, least = (low, high), error(low, high)
        out.append(best)
    return np.array(out)


@pytest.mark.parametrize("seed", range(3))
def test_thresholds_equal_the_grid_search_written_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 5, size=(40, 3)) / 4
    prediction = np.clip(0.6 * target + 0.1 + rng.normal(0, 0.1, target.shape), 0, 1).astype(np.float32)
    target[rng.random(target.shape) < 0.2] = np.nan
    np.testing.assert_array_equal(fit_thresholds(prediction, target), naive_thresholds(prediction, target))


def test_thresholds_start_where_nothing_is_better_or_known() -> None:
    target = np.array([[0.0, np.nan], [0.5, np.nan], [1.0, np.nan]])
    prediction = np.array([[0.01, 0.5], [0.5, 0.5], [0.99, 0.5]])
    assert fit_thresholds(prediction, target).tolist() == [[0.25, 0.75]] * 2


def test_snapping_goes_up_at_a_threshold() -> None:
    thresholds = np.array([[0.25, 0.75], [0.1, 0.9]])
    prediction = np.array([[0.2499, 0.1], [0.25, 0.0999], [0.75, 0.9], [0.7499, np.nan]])
    expected = [[0, 0.5], [0.5, 0], [1, 1], [0.5, np.nan]]
    np.testing.assert_array_equal(snap(prediction, thresholds), expected)


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


# --- the ensemble ---


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
    assert manifest["encoders"][0] == {
        "name": "made0",
        "label": "made0",
        "stand_in": None,
        "fingerprint": {"model": "made up"},
        "dim": 8,
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
    assert sorted(p.name for p in folder.iterdir()) == ["ensemble.json", "member-7.safetensors"]
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

    monkeypatch.setattr("bcs_lab.ensemble.write_json", fail)
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
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


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
