from __future__ import annotations

import math
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from small import make_data

from bcs_lab.errors import ConfigError
from bcs_lab.features import fused_features
from bcs_lab.fit import _quiet, train_member
from bcs_lab.module import LEARNING_RATE, TRAIN_LOSS, VAL_LOSS, BCSModule

HEAD = {"name": "continuous", "hidden": 8}


class Watch(Callback):
    """Looks at the module from outside, after every epoch."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []
        self.by_hand: list[float] = []
        self.lr: list[float] = []

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.lr.append(trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        data = trainer.datamodule  # type: ignore[attr-defined]
        batch = data.batch(data.part["val"])  # all cells at once
        with torch.no_grad():
            output = pl_module.head(fused_features(list(zip(batch["ref"], batch["rec"], strict=True))))
        square = (output.prediction.double() - batch["target"]) ** 2
        self.by_hand.append(float((batch["weight"] * square).sum() / batch["weight"].sum()))

    def on_train_end(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.final = dict(trainer.callback_metrics)
        self.optimizer = trainer.optimizers[0]


@pytest.mark.parametrize("batch_size", [2, 4, 512])
def test_validation_loss_is_pooled_over_all_cells_however_batched(batch_size: int) -> None:
    data, *_ = make_data(batch_size=batch_size)
    watch = Watch()
    result = train_member(data, HEAD, {}, {"max_epochs": 3, "batch_size": batch_size}, 7, callbacks=[watch])
    assert [row["val_loss"] for row in result.history] == pytest.approx(watch.by_hand, rel=1e-5)
    assert float(watch.final[VAL_LOSS]) == pytest.approx(watch.by_hand[-1], rel=1e-5)
    assert {TRAIN_LOSS, VAL_LOSS, LEARNING_RATE} <= set(watch.final)


def test_cosine_steps_once_an_epoch_down_to_its_floor() -> None:
    data, *_ = make_data(batch_size=4)  # many steps an epoch
    watch = Watch()
    result = train_member(data, HEAD, {"lr": 1e-3}, {"max_epochs": 10, "patience": None}, 7, callbacks=[watch])
    floor = 0.05e-3
    expected = [floor + (1e-3 - floor) * (1 + math.cos(math.pi * e / 10)) / 2 for e in range(10)]
    assert watch.lr == pytest.approx(expected)
    assert [row["lr"] for row in result.history] == pytest.approx(expected)


def test_no_schedule_keeps_the_rate() -> None:
    data, *_ = make_data()
    result = train_member(data, HEAD, {"lr": 2e-3, "schedule": "none"}, {"max_epochs": 3}, 7)
    assert [row["lr"] for row in result.history] == [2e-3] * 3


def test_adamw_decays_all_parameters_in_one_group() -> None:
    data, *_ = make_data()
    watch = Watch()
    train_member(data, HEAD, {"lr": 1e-3, "weight_decay": 0.03}, {"max_epochs": 1}, 7, callbacks=[watch])
    assert isinstance(watch.optimizer, torch.optim.AdamW)
    (group,) = watch.optimizer.param_groups
    assert group["weight_decay"] == 0.03
    assert group["betas"] == (0.9, 0.999)
    assert len(group["params"]) == len(list(BCSModule("continuous", data.in_dim, 12, {"hidden": 8}).parameters()))


def test_a_step_is_that_of_plain_pytorch() -> None:
    """One epoch of two batches, against the loop written out with an unfused optimiser."""
    data, *_ = make_data(batch_size=21)
    settings = {"hidden": 8, "dropout": 0.0}
    optim = {"lr": 1e-2, "schedule": "none"}
    result = train_member(data, {"name": "continuous", **settings}, optim, {"max_epochs": 1}, 7)
    torch.manual_seed(7)
    module = BCSModule("continuous", data.in_dim, 12, settings)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=5e-4, foreach=False)
    order = data.part["train"][torch.randperm(42, generator=torch.Generator().manual_seed(7))]
    for index in order.split(21):
        batch = data.batch(index)
        output = module(batch)
        loss = (batch["weight"] * (output.prediction - batch["target"]) ** 2).sum() / batch["weight"].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
    for name, value in module.head.state_dict().items():
        torch.testing.assert_close(result.state_dict[name], value, rtol=1e-4, atol=1e-5)


def test_hyper_parameters_are_plain_so_checkpoints_load_without_pickles(tmp_path: Any) -> None:
    data, *_ = make_data()
    module = BCSModule("continuous", data.in_dim, 12, {"hidden": 8}, lr=1e-3)
    with _quiet():
        trainer = pl.Trainer(
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            accelerator="cpu",
        )
        trainer.fit(module, datamodule=data)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
    torch.load(tmp_path / "last.ckpt", weights_only=True)
    again = BCSModule.load_from_checkpoint(tmp_path / "last.ckpt")
    assert again.hparams["lr"] == 1e-3
    assert torch.equal(again.head.state_dict()["out.weight"], module.head.state_dict()["out.weight"])


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"lr": 0.0}, r"optim\.lr=0\.0"),
        ({"lr": float("nan")}, r"optim\.lr=nan"),
        ({"weight_decay": -1.0}, r"optim\.weight_decay=-1\.0"),
        ({"schedule": "linear"}, r"optim\.schedule=linear: expected one of cosine, none"),
        ({"eta_min_ratio": 2.0}, r"optim\.eta_min_ratio=2\.0"),
        ({"head_kwargs": {"width": 3}}, r"head\.width"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        BCSModule("continuous", 13, 12, **settings)
