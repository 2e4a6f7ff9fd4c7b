"""One member of the ensemble as a LightningModule: features, loss, optimiser and schedule (Table 13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from bcs_lab.data import Batch, features_of
from bcs_lab.errors import ConfigError
from bcs_lab.heads import HeadOutput, build_head

#: Names of what is logged and monitored, each written here once.
TRAIN_LOSS = "train/loss"
VAL_LOSS = "val/loss"
LEARNING_RATE = "lr"

SCHEDULES = ("cosine", "none")
#: The least sum of weights a loss is divided by.
MIN_WEIGHT = 1e-6


class BCSModule(pl.LightningModule):
    """A head with its loss, AdamW and a cosine schedule stepped once an epoch.

    All arguments are plain Python, so checkpoints load under ``weights_only``.

    Args:
        head: name in the registry of heads.
        in_dim: length of the pair features.
        n_questions: outputs.
        head_kwargs: settings of the head.
        lr: learning rate.
        weight_decay: decoupled, on all parameters including norms and biases.
        schedule: ``cosine`` from ``lr`` to ``eta_min_ratio * lr`` over ``max_epochs``, or ``none``.
        eta_min_ratio: final learning rate over the first.
        max_epochs: length of the schedule, also if training stops earlier.

    Raises:
        ConfigError: a setting cannot be used.
    """

    def __init__(
        self,
        head: str,
        in_dim: int,
        n_questions: int,
        head_kwargs: Mapping[str, Any] | None = None,
        lr: float = 5e-4,
        weight_decay: float = 5e-4,
        schedule: str = "cosine",
        eta_min_ratio: float = 0.05,
        max_epochs: int = 120,
    ) -> None:
        super().__init__()
        head_kwargs = dict(head_kwargs or {})
        if not lr > 0:
            raise ConfigError(f"optim.lr={lr}: expected a number above 0.")
        if not weight_decay >= 0:
            raise ConfigError(f"optim.weight_decay={weight_decay}: expected a number of at least 0.")
        if schedule not in SCHEDULES:
            raise ConfigError(f"optim.schedule={schedule}: expected one of {', '.join(SCHEDULES)}.")
        if not 0 <= eta_min_ratio <= 1:
            raise ConfigError(f"optim.eta_min_ratio={eta_min_ratio}: expected a number from 0 to 1.")
        self.save_hyperparameters(logger=False)  # the run logs its resolved config once
        self.head = build_head(head, in_dim, n_questions, **head_kwargs)
        self.lr, self.weight_decay = lr, weight_decay
        self.schedule, self.eta_min_ratio, self.max_epochs = schedule, eta_min_ratio, max_epochs
        #: Validation loss of the last epoch, pooled over all cells; NaN before.
        self.val_loss = float("nan")
        #: Learning rate of the epoch that runs.
        self.current_lr = lr
        self._train_sums: list[tuple[Tensor, Tensor]] = []
        self._val_sums: list[tuple[Tensor, Tensor]] = []

    def forward(self, batch: Batch) -> HeadOutput:
        """Predictions for one batch of the data module."""
        return self.head(features_of(batch))

    def _sums(self, batch: Batch) -> tuple[Tensor, Tensor]:
        return self.head.loss(self(batch), batch["target"], batch["weight"])

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Weighted loss of one batch."""
        numerator, denominator = self._sums(batch)
        self._train_sums.append((numerator.detach(), denominator))
        return numerator / denominator.clamp_min(MIN_WEIGHT)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Collects the sums of one batch; the loss is formed once, over all validation cells."""
        self._val_sums.append(self._sums(batch))

    def on_validation_epoch_end(self) -> None:
        """Forms the monitored loss."""
        self.val_loss = self._pooled(self._val_sums)
        self.log(VAL_LOSS, self.val_loss, batch_size=1)

    def on_train_epoch_start(self) -> None:
        """Starts the sums anew and notes the learning rate, which steps before the epoch is reported."""
        self._train_sums.clear()
        self.current_lr = float(self.trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_epoch_start(self) -> None:
        """Starts the sums anew."""
        self._val_sums.clear()

    def on_train_epoch_end(self) -> None:
        """Logs the training loss and the learning rate of the epoch."""
        self.log_dict({TRAIN_LOSS: self.pooled_train_loss(), LEARNING_RATE: self.current_lr}, batch_size=1)

    def pooled_train_loss(self) -> float:
        """Training loss of the epoch over all cells, with dropout and while the weights moved."""
        return self._pooled(self._train_sums)

    def _pooled(self, sums: list[tuple[Tensor, Tensor]]) -> float:
        numerator = torch.stack([part[0] for part in sums]).sum()
        denominator = torch.stack([part[1] for part in sums]).sum()
        both = self.trainer.strategy.reduce(torch.stack([numerator, denominator]), reduce_op="sum")
        assert isinstance(both, Tensor)
        return float(both[0] / both[1].clamp_min(MIN_WEIGHT))

    def configure_optimizers(self) -> Any:
        """AdamW with one parameter group; the schedule steps once an epoch."""
        optimizer = self._adamw()
        if self.schedule == "none":
            return optimizer
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=self.max_epochs, eta_min=self.eta_min_ratio * self.lr
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "epoch"}}

    def _adamw(self) -> torch.optim.AdamW:
        # The fused kernel passes once over 6.8 M parameters (2 ms a step instead of 8 on one CPU core).
        # Lightning cannot clip gradients with it under mixed precision.
        fused = "mixed" not in str(self.trainer.precision)
        try:
            return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=self.weight_decay, fused=fused)
        except RuntimeError:  # no fused kernel for this device in this torch
            return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=self.weight_decay)
