"""Training of members: same numbers for a seed, best weights, clear errors."""

from __future__ import annotations

import logging
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import Callback
from small import make_data, make_embeddings, make_pairs, make_similarity_data, make_targets

from bcs_lab.data import BCSDataModule
from bcs_lab.ensemble import Ensemble
from bcs_lab.errors import ConfigError, CorpusError, RunError
from bcs_lab.fit import train_ensemble, train_member
from bcs_lab.heads import HEADS, ExtraRows
from bcs_lab.members import MemberResult
from bcs_lab.split import Split, make_split
from bcs_lab.teachers.protocol import BCS12

HEAD = {"name": "continuous", "hidden": 8}
QUICK = {"max_epochs": 4}


@pytest.fixture(scope="module")
def trained() -> tuple[list[MemberResult], Any, np.ndarray, Split]:
    data, embeddings, targets, split = make_data()
    return train_ensemble(data, HEAD, {"lr": 1e-2}, QUICK, [7, 13]), embeddings, targets, split


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


#: Every head on every kind of features it takes.
COMBINATIONS = [(name, kind) for name, head in HEADS.items() for kind in head.FEATURES]


def of_kind(kind: str, **changes: Any) -> tuple[BCSDataModule, Any, Any, np.ndarray, Split]:
    """Data module, embeddings, similarities or ``None``, targets, split."""
    if kind == "similarity":
        return make_similarity_data(**changes)
    data, embeddings, targets, split = make_data(**changes)
    return data, embeddings, None, targets, split


def small(name: str) -> dict[str, Any]:
    if not HEADS[name].FITS_ITSELF:
        return {"name": name, "hidden": 8}
    few = {
        "trees": {"trees": 8},
        "boosting": {"trees": 5},
        "kernel": {"alpha": 0.3},
        "stack": {"of": ["ridge", "kernel"]},
    }
    return {"name": name, **few.get(name, {})}


@pytest.mark.parametrize(("name", "kind"), COMBINATIONS)
def test_every_head_trains(name: str, kind: str) -> None:
    data, embeddings, similarities, targets, split = of_kind(kind)
    head = {**small(name), "snap": None, "negatives": 0.0}
    members = train_ensemble(data, head, {"lr": 5e-3}, {"max_epochs": 6}, [7])
    history = members[0].history
    if HEADS[name].FITS_ITSELF:
        assert [sorted(row) for row in history] == [["epoch", "train_loss", "val_loss"]]
        mean = float(np.nanvar(targets[split.indices("val")], axis=0).mean())
        assert history[0]["val_loss"] < mean
    else:
        # these answers follow the cosine, so one that starts there has nothing to win on other pairs
        loss = "train_loss" if name == "cosine_residual" else "val_loss"
        assert history[-1][loss] < history[0][loss]
    built = Ensemble.from_members(
        members,
        head=head,
        embeddings=embeddings,
        similarities=similarities,
        protocol=BCS12,
        teachers=("a", "b"),
        weight_scheme="variance",
        split=split,
        targets=targets,
    )
    assert (built.thresholds is not None) == HEADS[name].snap
    assert built.head == small(name)
    assert built.kind == kind


@pytest.mark.parametrize("name", [name for name, head in HEADS.items() if head.FITS_ITSELF])
def test_no_other_part_is_looked_at(name: str) -> None:
    """Nothing of a head that fits itself, such as the weights of a stack, depends on validation or test pairs."""
    data, _, _, _, split = make_similarity_data()
    plain = train_member(data, small(name), {}, {}, 7)
    others = np.r_[split.indices("val"), split.indices("test")]
    data.targets[others] = 1 - data.targets[others]
    data.weights[others] = 0.3
    assert data.similarity is not None
    data.similarity[split.indices("test")] += 1
    again = train_member(data, small(name), {}, {}, 7)
    assert again.history[0]["val_loss"] != plain.history[0]["val_loss"]
    assert all(torch.equal(again.state_dict[key], plain.state_dict[key]) for key in plain.state_dict)


def test_the_loss_of_a_head_that_fits_itself_is_that_of_the_others() -> None:
    data, _, _, targets, split = make_similarity_data()
    member = train_member(data, {"name": "ridge", "alpha": 3.0}, {}, {}, 7)
    for part in ("train", "val"):
        index = split.indices(part)
        weight = data.weights.numpy()[index]
        square = (member.predictions[index] - np.nan_to_num(targets[index])) ** 2
        assert member.history[0][f"{part}_loss"] == pytest.approx((weight * square).sum() / weight.sum(), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("cosine_residual", "similarity", "head=cosine_residual works on features=embedding, not on features=similari"),
        ("similarity_mlp", "embedding", "head=similarity_mlp works on features=similarity, not on features=embedding"),
    ],
)
def test_a_head_on_features_it_cannot_use(name: str, kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train_member(of_kind(kind)[0], small(name), {}, {}, 7)


@pytest.mark.parametrize("name", ["ridge", "stack", "similarity_mlp"])
def test_extra_rows_are_trained_on_and_not_predicted(name: str) -> None:
    plain = make_similarity_data()[0]
    rows = np.repeat(plain.similarity[:1].numpy(), 200, axis=0)
    answers = np.zeros((200, 12), dtype=np.float32)

    def train(weight: float) -> MemberResult:
        extra = ExtraRows(rows, answers, np.full_like(answers, weight))
        return train_member(make_similarity_data(extra=extra)[0], small(name), {"lr": 0.05}, {"max_epochs": 20}, 7)

    without, none, many = train_member(plain, small(name), {"lr": 0.05}, {"max_epochs": 20}, 7), train(0.0), train(3.0)
    assert none.predictions.shape == many.predictions.shape == without.predictions.shape
    if name != "similarity_mlp":  # a network sees them in its batches, though they weigh nothing
        np.testing.assert_allclose(none.predictions, without.predictions, atol=1e-6)
    assert many.predictions[0].mean() < without.predictions[0].mean() - 0.05


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
    assert [record.name for record in caplog.records] == ["bcs_lab.fit"]
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
