"""Train the members of an ensemble: one head a seed, stopped at its best validation loss (Table 13).

A head that fits itself has no epochs to stop at: it is fitted to the training part once, and its history is one line.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from pytorch_lightning.callbacks import Callback, EarlyStopping
from pytorch_lightning.loggers import Logger
from torch import Tensor

from bcs_lab.data import Batch, BCSDataModule, features_of
from bcs_lab.errors import ConfigError, CorpusError, RunError
from bcs_lab.heads import HEADS, FittedHead, build_head, check_features, head_and_settings
from bcs_lab.members import MemberResult, load_member, member_key, save_member
from bcs_lab.module import VAL_LOSS, BCSModule

logger = logging.getLogger(__name__)

#: Seeds of the paper's five members (Table 13).
SEEDS = (7, 13, 21, 37, 42)

_TRAINER_DEFAULTS: dict[str, Any] = {
    "max_epochs": 120,
    "patience": 16,
    "min_delta": 1e-6,
    "batch_size": None,
    "gradient_clip_val": 1.0,
    "accelerator": "auto",
    "precision": "32-true",
}
_OPTIM_KEYS = ("lr", "weight_decay", "schedule", "eta_min_ratio")

CallbackFactory = Callable[[int], Sequence[Callback]]
LoggerFactory = Callable[[int], "Logger | Sequence[Logger] | bool | None"]


def train_ensemble(
    data: BCSDataModule,
    head: Mapping[str, Any],
    optim: Mapping[str, Any],
    trainer: Mapping[str, Any],
    seeds: Sequence[int] = SEEDS,
    *,
    logger_factory: LoggerFactory | None = None,
    callback_factory: CallbackFactory | None = None,
    progress: bool = False,
    keep: Path | None = None,
) -> list[MemberResult]:
    """Train one member a seed, each independent of the others and of their order.

    Args:
        data: features, targets, weights and split; shared by all members.
        head: ``name`` of the head and its settings (``snap`` and ``negatives`` are ignored here).
        optim: any of ``lr``, ``weight_decay``, ``schedule``, ``eta_min_ratio``; defaults as in Table 13.
        trainer: any of ``max_epochs``, ``patience``, ``min_delta``, ``batch_size``, ``gradient_clip_val``,
            ``accelerator``, ``precision``; defaults as in Table 13.
        seeds: distinct whole numbers.
        logger_factory: gives the Lightning logger(s) for the member of a seed, or ``None``.
        callback_factory: gives further Lightning callbacks for the member of a seed.
        progress: show a bar an epoch on a terminal.
        keep: folder for finished members. One that is already there, from the same data and settings, is taken over.

    Returns:
        The members in the order of ``seeds``. Same seed, same machine, same thread count: identical numbers.

    Raises:
        ConfigError: a setting cannot be used.
        CorpusError: the training or validation part has no answered question.
        RunError: a loss stopped being a finite number; the message names seed and epoch.
    """
    checked = _checked_seeds(seeds)
    digest = "" if keep is None else learned_digest(data, head)
    results = []
    for number, seed in enumerate(checked, start=1):
        path = None if keep is None else keep / f"member-{seed}.safetensors"
        key = member_key(digest, head, optim, trainer, seed)
        finished = None if path is None else load_member(path, key)
        if finished is not None:
            logger.info("member %d/%d (seed %d): already trained, kept from %s", number, len(checked), seed, path)
            results.append(finished)
            continue
        result = train_member(
            data,
            head,
            optim,
            trainer,
            seed,
            callbacks=callback_factory(seed) if callback_factory else (),
            loggers=logger_factory(seed) if logger_factory else None,
            progress=progress,
            label=f"member {number}/{len(checked)} (seed {seed})",
        )
        if path is not None:
            save_member(result, path, key)
        results.append(result)
    return results


def train_member(
    data: BCSDataModule,
    head: Mapping[str, Any],
    optim: Mapping[str, Any],
    trainer: Mapping[str, Any],
    seed: int,
    *,
    callbacks: Sequence[Callback] = (),
    loggers: Logger | Sequence[Logger] | bool | None = None,
    progress: bool = False,
    label: str | None = None,
) -> MemberResult:
    """Train one member; arguments and errors as in :func:`train_ensemble`."""
    start = time.perf_counter()
    (seed,) = _checked_seeds([seed])
    settings = _checked_settings(trainer)
    name, head_kwargs = head_and_settings(head)
    check_features(name, data.kind)
    unknown = sorted(set(optim) - set(_OPTIM_KEYS))
    if unknown:
        raise ConfigError(f"optim: unknown keys {', '.join(unknown)}; expected {', '.join(_OPTIM_KEYS)}.")
    for part in ("train", "val"):
        if not bool((data.weights[data.part[part]] > 0).any()):
            raise CorpusError(
                f"The {part} part has {len(data.part[part])} pairs but no answered question to learn from; "
                "choose other teachers or another split."
            )
    if settings["batch_size"] is not None:
        data.batch_size = settings["batch_size"]
    data.seed = seed
    label = label or f"seed {seed}"
    if HEADS[name].FITS_ITSELF:
        fitted = build_head(name, data.in_dim, data.n_questions, **head_kwargs)
        assert isinstance(fitted, FittedHead)
        return _fit_member(fitted, data, seed, label, start)
    with _quiet():
        pl.seed_everything(seed, workers=False, verbose=False)
        module = BCSModule(
            name, data.in_dim, data.n_questions, head_kwargs, max_epochs=settings["max_epochs"], **dict(optim)
        )
        if module.head.PREPARES:
            module.head.prepare(data.training_rows())
        best, history = BestWeights(settings["min_delta"]), History(seed)
        extra: list[Callback] = [history, best]
        if settings["patience"] is not None:
            extra.append(EarlyStopping(VAL_LOSS, min_delta=settings["min_delta"], patience=settings["patience"]))
        if progress:
            extra.append(_ProgressBar(label))
        fit = _trainer(
            accelerator=settings["accelerator"],
            devices=1,
            precision=settings["precision"],
            max_epochs=settings["max_epochs"],
            gradient_clip_val=settings["gradient_clip_val"],
            callbacks=[*extra, *callbacks],
            logger=loggers if loggers is not None else False,
            log_every_n_steps=1,
            num_sanity_val_steps=0,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            use_distributed_sampler=False,
        )
        _fit(fit, module, data)
    state = {key: value.detach().cpu().contiguous() for key, value in best.state.items()}
    module.head.cpu().load_state_dict(state)
    predictions = _predict(module.head, data.batches())
    result = MemberResult(
        seed=seed,
        best_epoch=best.epoch,
        epochs=len(history.records),
        state_dict=state,
        history=history.records,
        predictions=predictions,
        wall_s=time.perf_counter() - start,
    )
    logger.info(
        "%s: best validation loss %.5f at epoch %d of %d, %.1f s (%.2f epochs/s)",
        label,
        best.loss,
        result.best_epoch,
        result.epochs,
        result.wall_s,
        result.epochs / max(result.wall_s, 1e-9),
    )
    return result


def _fit_member(head: FittedHead, data: BCSDataModule, seed: int, label: str, start: float) -> MemberResult:
    rows = data.training_rows()
    head.fit(rows.x, rows.y, rows.weight, seed, groups=rows.groups, directions=rows.directions)
    head.eval()
    predictions = _predict(head, data.batches())
    losses = {"epoch": 1, **{f"{part}_loss": _loss(predictions, data, part) for part in ("train", "val")}}
    result = MemberResult(
        seed=seed,
        best_epoch=1,
        epochs=1,
        state_dict={key: value.detach().clone().contiguous() for key, value in head.state_dict().items()},
        history=[losses],
        predictions=predictions,
        wall_s=time.perf_counter() - start,
    )
    logger.info("%s: fitted, validation loss %.5f, %.1f s", label, losses["val_loss"], result.wall_s)
    return result


def _loss(predictions: NDArray[np.float32], data: BCSDataModule, part: str) -> float:
    """Weighted squared error over the pairs of one part."""
    index = data.part[part].numpy()
    weight, target = data.weights.numpy()[index], data.targets.numpy()[index]
    square = (predictions[index].astype(np.float64) - target) ** 2
    return float((weight * square).sum() / weight.sum())


def learned_digest(data: BCSDataModule, head: Mapping[str, Any]) -> str:
    """What a member is made from; of a head that fits itself also the library that grows its trees."""
    name, _ = head_and_settings(head)
    if not HEADS[name].FITS_ITSELF:
        return data.digest()
    from sklearn import __version__

    return f"{data.digest()} scikit-learn {__version__}"


def _trainer(**settings: Any) -> pl.Trainer:
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    try:
        return pl.Trainer(**settings)
    except (MisconfigurationException, ValueError) as error:
        raise ConfigError(
            f"trainer.accelerator={settings['accelerator']} with trainer.precision={settings['precision']} cannot be "
            f"used here: {str(error).splitlines()[0]}"
        ) from None


class BestWeights(Callback):
    """Keeps the head's weights of the best epoch in memory, under the rule early stopping uses.

    Attributes:
        state: weights of the best epoch.
        epoch: that epoch, counted from 1.
        loss: its validation loss.
    """

    def __init__(self, min_delta: float) -> None:
        self.min_delta = min_delta
        self.state: dict[str, Tensor] = {}
        self.epoch = 0
        self.loss = math.inf

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare and copy."""
        module = _own(pl_module)
        loss = module.val_loss
        if loss < self.loss - self.min_delta:
            self.loss, self.epoch = loss, trainer.current_epoch + 1
            self.state = {key: value.detach().clone() for key, value in module.head.state_dict().items()}


class History(Callback):
    """One record an epoch, and the guard against losses that are no numbers."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.records: list[dict[str, float]] = []

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop at a validation loss that is not finite, before early stopping reads it."""
        self._check(trainer, "validation", _own(pl_module).val_loss)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Record the epoch."""
        module = _own(pl_module)
        train_loss = module.pooled_train_loss()
        self._check(trainer, "training", train_loss)
        self.records.append(
            {
                "epoch": trainer.current_epoch + 1,
                "train_loss": train_loss,
                "val_loss": module.val_loss,
                "lr": module.current_lr,
            }
        )

    def _check(self, trainer: pl.Trainer, what: str, loss: float) -> None:
        if not math.isfinite(loss):
            raise RunError(
                f"seed {self.seed}: the {what} loss became {loss} in epoch {trainer.current_epoch + 1}; "
                "lower optim.lr, or look for values that are not numbers in the embeddings."
            )


def _own(module: pl.LightningModule) -> BCSModule:
    return cast(BCSModule, module)


class _ProgressBar(Callback):
    def __init__(self, label: str) -> None:
        self.label = label

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        from tqdm import tqdm

        # disable=None: no bar where there is no terminal; the line logged at the end is then the only one
        self.bar = tqdm(total=trainer.max_epochs, desc=self.label, unit="epoch", leave=False, disable=None)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.bar.set_postfix({"val loss": f"{_own(pl_module).val_loss:.5f}"}, refresh=False)
        self.bar.update()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.bar.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        if hasattr(self, "bar"):
            self.bar.close()


def _fit(trainer: pl.Trainer, module: BCSModule, data: BCSDataModule) -> None:
    try:
        handler = signal.getsignal(signal.SIGINT)
    except ValueError:
        handler = None
    try:
        trainer.fit(module, datamodule=data)
    except SystemExit as error:
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        # Lightning answers Ctrl+C by ignoring further ones and leaving the process; give it back to the caller
        if handler is not None:
            with contextlib.suppress(ValueError):
                signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence what Lightning says about every small run, for our own calls only."""
    names = [logging.getLogger(name) for name in ("pytorch_lightning", "lightning_fabric")]
    names += [logging.getLogger("pytorch_lightning.utilities.rank_zero"), logging.getLogger("lightning.fabric")]
    levels = [log.level for log in names]
    with warnings.catch_warnings():
        for message in (
            r".*does not have many workers.*",
            r".*smaller than the logging interval.*",
            r".*You defined a `validation_step` but have no `val_dataloader`.*",
            r".*GPU available but not used.*",
            r".*isinstance\(treespec, LeafSpec\).*",
        ):
            warnings.filterwarnings("ignore", message=message)
        try:
            for log in names:
                log.setLevel(logging.ERROR)
            yield
        finally:
            for log, level in zip(names, levels, strict=True):
                log.setLevel(level)


def _checked_seeds(seeds: Sequence[int]) -> list[int]:
    values = list(seeds)
    good = values and all(
        isinstance(seed, (int, np.integer)) and not isinstance(seed, bool) and 0 <= seed < 2**32 for seed in values
    )
    if not good or len(set(values)) != len(values):
        raise ConfigError(f"seeds={values}: expected a list of distinct whole numbers from 0 to {2**32 - 1}.")
    return [int(seed) for seed in values]


def _checked_settings(trainer: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(trainer) - set(_TRAINER_DEFAULTS))
    if unknown:
        raise ConfigError(f"trainer: unknown keys {', '.join(unknown)}; expected {', '.join(_TRAINER_DEFAULTS)}.")
    settings = {**_TRAINER_DEFAULTS, **trainer}
    for key in ("max_epochs", "patience"):
        value = settings[key]
        if value is None and key == "patience":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"trainer.{key}={value}: expected a whole number of at least 1.")
    return settings


def _predict(head: torch.nn.Module, batches: Iterator[Batch]) -> NDArray[np.float32]:
    head.eval()
    with torch.inference_mode():
        parts = [head(features_of(batch)).prediction for batch in batches]
    return torch.cat(parts).float().numpy()
