"""Members, their mean and spread, and the ensemble as files: safetensors and JSON, no pickles.

A member is one head trained from one seed and stopped at its best validation loss (Table 13). The ensemble is the plain
mean of the members' raw predictions (Appendix 0.C.3); the members' spread says how far they disagree.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import re
import secrets
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import ArrayLike, NDArray
from pytorch_lightning.callbacks import Callback, EarlyStopping
from pytorch_lightning.loggers import Logger
from torch import Tensor

from bcs_lab import __version__
from bcs_lab.data import BCSDataModule
from bcs_lab.errors import ConfigError, CorpusError, ModelError, RunError
from bcs_lab.features import feature_dim, fused_features
from bcs_lab.files import write_json
from bcs_lab.heads import HEADS, build_head
from bcs_lab.module import VAL_LOSS, BCSModule
from bcs_lab.split import Split
from bcs_lab.teachers.protocol import Protocol

if TYPE_CHECKING:
    from bcs_lab.embeddings import PairEmbeddings

logger = logging.getLogger(__name__)

#: Version of the files written by :meth:`Ensemble.save`.
FORMAT_VERSION = 1
MANIFEST = "ensemble.json"

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

Thresholds = NDArray[np.float64]
CallbackFactory = Callable[[int], Sequence[Callback]]
LoggerFactory = Callable[[int], "Logger | Sequence[Logger] | bool | None"]


@dataclass
class MemberResult:
    """One trained member.

    Attributes:
        seed: of its initialisation, dropout and order of pairs.
        best_epoch: the epoch its weights are from, counted from 1.
        epochs: epochs that ran.
        state_dict: weights of the head at ``best_epoch``, on the CPU.
        history: a record an epoch: ``epoch`` (from 1), ``train_loss``, ``val_loss``, ``lr``.
        predictions: float32 [n_pairs, n_questions], raw, for all pairs in corpus order.
        wall_s: seconds for training and predicting.
    """

    seed: int
    best_epoch: int
    epochs: int
    state_dict: dict[str, Tensor]
    history: list[dict[str, float]]
    predictions: NDArray[np.float32]
    wall_s: float


# --- training -------------------------------------------------------------------------------------------------------


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
) -> list[MemberResult]:
    """Train one member a seed, each independent of the others and of their order.

    Args:
        data: embeddings, targets, weights and split; shared by all members.
        head: ``name`` of the head and its settings (``snap`` is ignored here).
        optim: any of ``lr``, ``weight_decay``, ``schedule``, ``eta_min_ratio``; defaults as in Table 13.
        trainer: any of ``max_epochs``, ``patience``, ``min_delta``, ``batch_size``, ``gradient_clip_val``,
            ``accelerator``, ``precision``; defaults as in Table 13.
        seeds: distinct whole numbers.
        logger_factory: gives the Lightning logger(s) for the member of a seed, or ``None``.
        callback_factory: gives further Lightning callbacks for the member of a seed.
        progress: show a bar an epoch on a terminal.

    Returns:
        The members in the order of ``seeds``. Same seed, same machine, same thread count: identical numbers.

    Raises:
        ConfigError: a setting cannot be used.
        CorpusError: the training or validation part has no answered question.
        RunError: a loss stopped being a finite number; the message names seed and epoch.
    """
    checked = _checked_seeds(seeds)
    results = []
    for number, seed in enumerate(checked, start=1):
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
    name, head_kwargs = _head_and_settings(head)
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
    with _quiet():
        pl.seed_everything(seed, workers=False, verbose=False)
        module = BCSModule(
            name, data.in_dim, data.n_questions, head_kwargs, max_epochs=settings["max_epochs"], **dict(optim)
        )
        best, history = BestWeights(settings["min_delta"]), History(seed)
        extra: list[Callback] = [history, best]
        if settings["patience"] is not None:
            extra.append(EarlyStopping(VAL_LOSS, min_delta=settings["min_delta"], patience=settings["patience"]))
        if progress:
            extra.append(_ProgressBar(label))
        fit = pl.Trainer(
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
    predictions = _predict(module.head, (list(zip(b["ref"], b["rec"], strict=True)) for b in data.batches()))
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


def _head_and_settings(head: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    settings = dict(head)
    settings.pop("snap", None)
    name = settings.pop("name", None)
    if name not in HEADS:
        raise ConfigError(f"head={name}: expected one of {', '.join(HEADS)}.")
    return name, settings


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


# --- thresholds -----------------------------------------------------------------------------------------------------


def fit_thresholds(prediction: NDArray[np.floating], target: NDArray[np.floating]) -> Thresholds:
    """Per question the two thresholds whose snapped predictions have the least absolute error.

    The authors' grid: low from .05 to .55 and high from .45 to .95 in steps of .01, with high above low + .05. (.25,
    .75) is kept unless a pair of the grid is strictly better; among equals the first (lowest low, then lowest high)
    wins.

    Args:
        prediction: [n, n_questions] raw predictions, of validation pairs.
        target: [n, n_questions] fractional consensus, NaN where missing.

    Returns:
        float64 [n_questions, 2].
    """
    prediction = np.asarray(prediction, dtype=np.float64)
    target = np.asarray(target, dtype=np.float64)
    if prediction.shape != target.shape or prediction.ndim != 2:
        raise ValueError(f"Expected two arrays [n, n_questions] but got {prediction.shape} and {target.shape}.")
    lows, highs = np.linspace(0.05, 0.55, 51), np.linspace(0.45, 0.95, 51)
    allowed = highs[None, :] > lows[:, None] + 0.05
    out = np.tile([0.25, 0.75], (target.shape[1], 1))
    for question in range(target.shape[1]):
        active = ~np.isnan(target[:, question])
        if not active.any():
            continue
        order = np.argsort(prediction[active, question], kind="stable")
        x, y = prediction[active, question][order], target[active, question][order]
        # cost of calling the first k predictions by one level, for every k
        zero, half, one = (np.r_[0.0, np.cumsum(np.abs(level - y))] for level in (0.0, 0.5, 1.0))

        def cost(low: ArrayLike, high: ArrayLike) -> NDArray[np.float64]:
            a, b = np.searchsorted(x, low), np.searchsorted(x, high)  # noqa: B023 - called within this turn
            return zero[a] + (half[b] - half[a]) + (one[-1] - one[b])  # noqa: B023

        grid = np.where(allowed, cost(lows[:, None], highs[None, :]), np.inf)
        # sums of the same cells in another order differ in the last digits; such a tie is not an improvement
        slack = 1e-9 * len(x)
        if grid.min() < cost(0.25, 0.75) - slack:
            low, high = np.unravel_index(np.argmax(grid <= grid.min() + slack), grid.shape)
            out[question] = lows[low], highs[high]
    return out


def snap(prediction: NDArray[np.floating], thresholds: Thresholds) -> NDArray[np.float32]:
    """Levels 0, .5 and 1: below the low threshold 0, below the high one .5, else 1.

    Args:
        prediction: [n, n_questions].
        thresholds: [n_questions, 2].

    Returns:
        float32 [n, n_questions]; NaN stays NaN.
    """
    prediction = np.asarray(prediction, dtype=np.float64)
    levels = 0.5 * ((prediction >= thresholds[:, 0]).astype(np.float32) + (prediction >= thresholds[:, 1]))
    return np.where(np.isnan(prediction), np.nan, levels).astype(np.float32)


# --- the ensemble ---------------------------------------------------------------------------------------------------


def combine(predictions: Sequence[NDArray[np.floating]]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Equal-weight mean of the members' raw predictions and their population standard deviation.

    Args:
        predictions: per member [n, n_questions].

    Returns:
        Mean and standard deviation, float32 [n, n_questions]; the latter is 0 for a single member.
    """
    if not len(predictions):
        raise ValueError("Expected predictions of at least one member but got none.")
    stack = np.stack([np.asarray(part, dtype=np.float64) for part in predictions])
    return stack.mean(axis=0).astype(np.float32), stack.std(axis=0).astype(np.float32)


@dataclass
class Ensemble:
    """Trained members with all that is needed to score later, and to know what they are.

    Attributes:
        head: ``name`` of the head and its settings.
        encoders: per encoder in fusion order ``name``, ``label``, ``stand_in``, ``fingerprint``, ``dim``.
        protocol: name of the protocol.
        questions: per output ``id`` and ``group``.
        teachers: whose consensus was learned.
        weight_scheme: agreement weights used.
        split: ``scheme``, ``seed``, ``hash``, and ``fold``, ``folds`` for k-fold.
        seeds: per member.
        states: per member the weights of its head.
        thresholds: [n_questions, 2] if reported predictions are snapped to levels, else ``None``.
        simulated_teachers: whether the answers learned from were simulated.
        metrics: results kept with the model, if any.
    """

    head: dict[str, Any]
    encoders: list[dict[str, Any]]
    protocol: str
    questions: list[dict[str, str]]
    teachers: list[str]
    weight_scheme: str
    split: dict[str, Any]
    seeds: list[int]
    states: list[dict[str, Tensor]] = field(repr=False)
    thresholds: Thresholds | None = None
    simulated_teachers: bool = False
    metrics: dict[str, Any] | None = None

    @classmethod
    def from_members(
        cls,
        members: Sequence[MemberResult],
        *,
        head: Mapping[str, Any],
        embeddings: Sequence[PairEmbeddings],
        protocol: Protocol,
        teachers: Sequence[str],
        weight_scheme: str,
        split: Split,
        targets: NDArray[np.floating],
        snap: bool | None = None,
        simulated_teachers: bool = False,
        metrics: Mapping[str, Any] | None = None,
    ) -> Ensemble:
        """Put trained members together; thresholds are fitted on validation if predictions are to be snapped.

        Args:
            members: of :func:`train_ensemble`.
            head: ``name`` of the head and its settings.
            embeddings: what they were trained on, in fusion order.
            protocol: the questions, in output order.
            teachers: whose consensus was learned.
            weight_scheme: agreement weights used.
            split: the split they were trained under.
            targets: [n_pairs, n_questions] consensus, NaN where missing.
            snap: whether reported predictions are snapped to levels; ``None`` is ``snap`` of ``head``, else the head's
                own habit.
            simulated_teachers: whether the answers were simulated.
            metrics: results to keep with the model.
        """
        name, settings = _head_and_settings(head)
        if snap is None:
            snap = HEADS[name].snap if head.get("snap") is None else bool(head["snap"])
        thresholds = None
        if snap:
            mean, _ = combine([member.predictions for member in members])
            val = split.indices("val")
            thresholds = fit_thresholds(mean[val], np.asarray(targets)[val])
        record: dict[str, Any] = {"scheme": split.scheme, "seed": split.seed, "hash": split.hash}
        if split.folds is not None:
            record |= {"fold": split.fold, "folds": split.folds}
        return cls(
            head={"name": name, **settings},
            encoders=[
                {
                    "name": part.name,
                    "label": part.label,
                    "stand_in": part.stand_in,
                    "fingerprint": dict(part.fingerprint),
                    "dim": int(part.images.shape[1]),
                }
                for part in embeddings
            ],
            protocol=protocol.name,
            questions=[{"id": question.id, "group": question.group} for question in protocol.questions],
            teachers=list(teachers),
            weight_scheme=weight_scheme,
            split=record,
            seeds=[member.seed for member in members],
            states=[member.state_dict for member in members],
            thresholds=thresholds,
            simulated_teachers=simulated_teachers,
            metrics=dict(metrics) if metrics is not None else None,
        )

    @property
    def dims(self) -> list[int]:
        """Embedding size an encoder."""
        return [int(encoder["dim"]) for encoder in self.encoders]

    @property
    def in_dim(self) -> int:
        """Length of the pair features the members take."""
        return feature_dim(self.dims)

    def predict_members(
        self,
        reference: Sequence[ArrayLike | Tensor],
        reconstruction: Sequence[ArrayLike | Tensor],
        batch_size: int = 1024,
    ) -> NDArray[np.float32]:
        """Raw predictions of every member; arguments as in :meth:`predict`.

        Returns:
            float32 [n_members, n_pairs, n_questions].
        """
        pairs = self._checked_embeddings(reference, reconstruction)
        heads = [self._head(state) for state in self.states]
        parts: list[list[NDArray[np.float32]]] = [[] for _ in heads]
        for start in range(0, max(len(pairs[0][0]), 1), batch_size):
            batch = [(a[start : start + batch_size], b[start : start + batch_size]) for a, b in pairs]
            features = fused_features(batch)  # once for all members
            with torch.inference_mode():
                for head, part in zip(heads, parts, strict=True):
                    part.append(head(features).prediction.numpy())
        return np.stack([np.concatenate(part) for part in parts]).astype(np.float32)

    def predict(
        self,
        reference: Sequence[ArrayLike | Tensor],
        reconstruction: Sequence[ArrayLike | Tensor],
        batch_size: int = 1024,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Mean and spread over the members' raw predictions; :meth:`report` gives what metrics are computed from.

        Args:
            reference: per encoder [n, dim], as the encoder or the store gives them: the canonical rounding the members
                were trained under is applied here, and only here.
            reconstruction: likewise.
            batch_size: pairs at a time.

        Returns:
            Mean in [0, 1] and population standard deviation, float32 [n, n_questions].

        Raises:
            ModelError: number or sizes of the embeddings do not fit this ensemble.
        """
        return combine(list(self.predict_members(reference, reconstruction, batch_size)))

    def report(self, mean: NDArray[np.floating]) -> NDArray[np.float32]:
        """Predictions as they are reported: snapped to the levels if this ensemble has thresholds, else unchanged."""
        return np.asarray(mean, dtype=np.float32) if self.thresholds is None else snap(mean, self.thresholds)

    def _head(self, state: Mapping[str, Tensor]) -> torch.nn.Module:
        name, settings = _head_and_settings(self.head)
        with torch.random.fork_rng(devices=[]):  # the initial weights are thrown away; leave no trace of drawing them
            head = build_head(name, self.in_dim, len(self.questions), **settings)
        head.load_state_dict(state)
        return head.eval()

    def _checked_embeddings(
        self, reference: Sequence[ArrayLike | Tensor], reconstruction: Sequence[ArrayLike | Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        from bcs_lab.embeddings import canonical

        names = ", ".join(encoder["label"] for encoder in self.encoders)
        if len(reference) != len(self.encoders) or len(reconstruction) != len(self.encoders):
            raise ModelError(
                f"The ensemble needs embeddings of {len(self.encoders)} encoders ({names}), in this order; "
                f"got {len(reference)} of references and {len(reconstruction)} of reconstructions."
            )
        sides = [[np.asarray(part) for part in side] for side in (reference, reconstruction)]
        shapes = [part.shape for side in sides for part in side]
        if any(len(shape) != 2 for shape in shapes) or len({shape[0] for shape in shapes}) != 1:
            raise ModelError(f"Expected embeddings of shape [n, dim] with one n for all encoders, got {shapes}.")
        for side in sides:
            found = [part.shape[1] for part in side]
            if found != self.dims:
                raise ModelError(
                    f"checkpoint expects D={self.in_dim}, features have D={feature_dim(found)}: the ensemble was "
                    f"trained on {names} with embedding sizes {self.dims}, the embeddings given have {found}. "
                    "Use the encoders it was trained with."
                )
        tensors = [[torch.from_numpy(canonical(part)) for part in side] for side in sides]
        return list(zip(tensors[0], tensors[1], strict=True))

    # --- files ------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> Path:
        """Write ``ensemble.json`` and one ``member-<seed>.safetensors`` a member, all at once.

        Everything is written to a temporary sibling that is then renamed; an earlier ensemble in ``folder`` is
        replaced as a whole, any other content is left alone.

        Args:
            folder: where to; its parents are made.

        Returns:
            The folder.

        Raises:
            ModelError: ``folder`` holds something that is not an ensemble.
            RunError: it cannot be written.
        """
        from safetensors.torch import save as to_bytes

        folder = Path(folder)
        if folder.exists() and not _replaceable(folder):
            raise ModelError(f"{folder}: holds files that are not part of an ensemble; choose another folder.")
        temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
        try:
            temporary.mkdir(parents=True)
            members = []
            for seed, state in zip(self.seeds, self.states, strict=True):
                content = to_bytes({key: value.contiguous() for key, value in state.items()})
                name = f"member-{seed}.safetensors"
                (temporary / name).write_bytes(content)
                members.append({"seed": seed, "file": name, "sha256": hashlib.sha256(content).hexdigest()})
            write_json(temporary / MANIFEST, self._manifest(members))
            if folder.exists():
                old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
                folder.rename(old)
                temporary.rename(folder)
                shutil.rmtree(old, ignore_errors=True)
            else:
                temporary.rename(folder)
        except OSError as error:
            raise RunError(f"{folder}: the ensemble cannot be written ({error.strerror or error}).") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return folder

    def _manifest(self, members: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "format": "bcs_lab ensemble",
            "format_version": FORMAT_VERSION,
            "package_version": __version__,
            "head": self.head,
            "encoders": self.encoders,
            "in_dim": self.in_dim,
            "protocol": self.protocol,
            "questions": self.questions,
            "teachers": self.teachers,
            "simulated_teachers": self.simulated_teachers,
            "weight_scheme": self.weight_scheme,
            "split": self.split,
            "seeds": self.seeds,
            "thresholds": None if self.thresholds is None else self.thresholds.tolist(),
            "members": members,
            "metrics": self.metrics,
        }

    @classmethod
    def load(cls, folder: str | Path) -> Ensemble:
        """Read an ensemble and verify it: format, digests, and the shape of every tensor.

        Raises:
            ModelError: a file is missing, damaged, of a later format, or does not fit the head it claims to be.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load as from_bytes

        folder = Path(folder)
        manifest = _read_manifest(folder)
        try:
            thresholds = manifest["thresholds"]
            ensemble = cls(
                head=dict(manifest["head"]),
                encoders=[dict(encoder) for encoder in manifest["encoders"]],
                protocol=manifest["protocol"],
                questions=[dict(question) for question in manifest["questions"]],
                teachers=list(manifest["teachers"]),
                weight_scheme=manifest["weight_scheme"],
                split=dict(manifest["split"]),
                seeds=[int(member["seed"]) for member in manifest["members"]],
                states=[],
                thresholds=None if thresholds is None else np.asarray(thresholds, dtype=np.float64),
                simulated_teachers=bool(manifest["simulated_teachers"]),
                metrics=manifest["metrics"],
            )
            files = [(str(member["file"]), str(member["sha256"])) for member in manifest["members"]]
            in_dim, head_name = ensemble.in_dim, ensemble.head["name"]
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"{folder / MANIFEST}: incomplete or damaged ({error!r}); restore or retrain it."
            ) from None
        if not files:
            raise ModelError(f"{folder / MANIFEST}: lists no members; restore or retrain it.")
        if thresholds is not None and np.shape(thresholds) != (len(ensemble.questions), 2):
            raise ModelError(f"{folder / MANIFEST}: expected two thresholds a question; restore or retrain it.")
        for name, digest in files:
            path = folder / name
            if not re.fullmatch(r"member-\d+\.safetensors", name):
                raise ModelError(f"{folder / MANIFEST}: {name!r} is not the name of a member file.")
            try:
                content = path.read_bytes()
            except OSError as error:
                raise ModelError(
                    f"{path}: cannot be read ({error.strerror or error}); restore or retrain it."
                ) from None
            if hashlib.sha256(content).hexdigest() != digest:
                raise ModelError(
                    f"{path}: damaged, its {len(content)} bytes do not have the sha256 that {MANIFEST} records; "
                    "restore it from a copy, or retrain the ensemble."
                )
            try:
                state = from_bytes(content)
                ensemble._head(state)
            except (SafetensorError, RuntimeError, ConfigError) as error:
                raise ModelError(
                    f"{path}: does not fit a head {head_name!r} with D={in_dim}: {_first_line(error)}"
                ) from None
            ensemble.states.append(state)
        return ensemble


def _predict(head: torch.nn.Module, batches: Iterator[list[tuple[Tensor, Tensor]]]) -> NDArray[np.float32]:
    head.eval()
    with torch.inference_mode():
        parts = [head(fused_features(batch)).prediction for batch in batches]
    return torch.cat(parts).float().numpy()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror or error}); expected the folder of a saved ensemble."
        ) from None
    except ValueError as error:
        raise ModelError(f"{path}: damaged, it is not JSON ({error}); restore or retrain it.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != "bcs_lab ensemble":
        raise ModelError(f"{path}: is not the manifest of a bcs_lab ensemble.")
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        raise ModelError(
            f"{path}: format version {version}, but bcs_lab {__version__} reads version {FORMAT_VERSION}; "
            f"it was written by bcs_lab {manifest.get('package_version')}, install that version or a later one."
        )
    return manifest


def _replaceable(folder: Path) -> bool:
    names = [item.name for item in folder.iterdir()] if folder.is_dir() else ["?"]
    return all(name == MANIFEST or re.fullmatch(r"member-\d+\.safetensors", name) for name in names)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[1:3] if len(lines) > 1 else lines) or type(error).__name__
