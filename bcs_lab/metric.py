"""The score inside a training loop: a torchmetrics ``Metric`` around a trained model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from bcs_lab.errors import ImageError, ModelError
from bcs_lab.pair_scores import AXES, BCSScore, protocol_of
from bcs_lab.pixels import check_range, is_tensor
from bcs_lab.regimes import REGIMES
from bcs_lab.score import BCS
from bcs_lab.teachers.protocol import PERCEPTUAL, SEMANTIC

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Scores are summed as whole numbers of 2^-32. Such sums are exact, so they depend neither on the order of batches nor
#: on the number of processes, and no conversion to half precision can touch them; 2^31 pairs fit.
_UNIT = 2.0**-32


class BCSMetric(Metric):
    """Mean T-PAS and T-SAS of reconstructions, and the shares of the four regimes.

    The pair (eqs. 19 and 20) is scored by a trained model in 8 bits, exactly as :meth:`bcs_lab.score.BCS.score` does.
    The encoders are no submodules: they take no part in ``state_dict``, ``to`` or ``half``.

    ``compute`` gives float32 scalars ``t_pas`` and ``t_sas`` (means over all pairs, in [0, 1]) and ``hh``, ``hl``,
    ``lh``, ``ll`` (shares of the pairs, see :data:`bcs_lab.regimes.REGIMES`). Before the first update they are NaN, and
    torchmetrics warns.

    Args:
        model: a model's folder, the folder of a training run, ``hf:user/repo``, or a :class:`bcs_lab.score.BCS` that is
            loaded already; several metrics may share one.
        value_range: lowest and highest value of float images; ``uint8`` is 0 to 255 in any case.
        device: where the encoders compute, whatever the device of the metric.
        dtype: of the encoders; by default what the model was trained with.
        batch_size: images an encoder takes at once.
        options: per encoder, see :class:`bcs_lab.score.BCS`.
        on_encoder_mismatch: see there.
        kwargs: of ``torchmetrics.Metric``, such as ``sync_on_compute``.

    Attributes:
        simulated_teachers: whether the model has learned from simulated teachers; the constructor then warns.

    Raises:
        ModelError: there is no such model, or an argument cannot be used.
        ImageError: ``value_range`` is not a range.

    Example:
        >>> metric = BCSMetric("runs/train/X")  # doctest: +SKIP
        >>> metric.update(reconstruction, reference)  # doctest: +SKIP
        >>> metric.compute()["t_sas"]  # doctest: +SKIP
        tensor(0.4375)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    plot_lower_bound = 0.0
    plot_upper_bound = 1.0

    t_pas_sum: Tensor
    t_sas_sum: Tensor
    regime_counts: Tensor
    pairs: Tensor

    def __init__(
        self,
        model: str | Path | BCS,
        *,
        value_range: tuple[float, float] = (0.0, 1.0),
        device: str = "auto",
        dtype: str | None = None,
        batch_size: int = 32,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        on_encoder_mismatch: str = "refuse",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.value_range = check_range(value_range)
        if isinstance(model, BCS):
            self.bcs = model
        else:
            self.bcs = BCS.load(
                model,
                device=device,
                dtype=dtype,
                batch_size=batch_size,
                options=options,
                on_encoder_mismatch=on_encoder_mismatch,
            )
        protocol = protocol_of(self.bcs.ensemble)
        if not (protocol.indices(PERCEPTUAL) and protocol.indices(SEMANTIC)):
            raise ModelError(f"{self.bcs!r} has no questions on one of the two axes, so there is no regime to count.")
        self.simulated_teachers = self.bcs.simulated_teachers
        if self.simulated_teachers:
            warnings.warn(
                "SIMULATED TEACHERS: the model of this BCSMetric has learned from computed answers, not from "
                "annotators; its values are for trying things out only.",
                stacklevel=2,
            )
        for axis in AXES:
            self.add_state(f"{axis}_sum", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("regime_counts", torch.zeros(len(REGIMES), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("pairs", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, reconstruction: Tensor, reference: Tensor) -> None:
        """Score a batch and add it.

        Args:
            reconstruction: ``[n, 3 or 1, height, width]``, floats within ``value_range`` or ``uint8``, on any device.
            reference: likewise, of any height and width.

        Raises:
            ImageError: rank, channels, number or values do not fit.
            EncoderError: an encoder's weights cannot be had.
            ModelError: an encoder is not the one of training.
        """
        for name, images in (("reconstruction", reconstruction), ("reference", reference)):
            if not is_tensor(images) or images.ndim != 4:
                found = f"shape {list(images.shape)}" if is_tensor(images) else type(images).__name__
                raise ImageError(f"{name}: expected a tensor [N, C, H, W] but got {found}.")
        scores = self.bcs.score(reference, reconstruction, value_range=self.value_range)
        # Not in place: a state that was reset in inference mode could not be changed outside of it.
        for axis in AXES:
            whole = int(np.rint(getattr(scores, axis) / _UNIT).astype(np.int64).sum())
            setattr(self, f"{axis}_sum", getattr(self, f"{axis}_sum") + whole)
        self.regime_counts = self.regime_counts + torch.tensor(_counts(scores), device=self.regime_counts.device)
        self.pairs = self.pairs + len(scores)

    def compute(self) -> dict[str, Tensor]:
        """Means and shares over all pairs so far, of all processes."""
        pairs = int(self.pairs)
        sums = {axis: int(getattr(self, f"{axis}_sum")) * _UNIT for axis in AXES}
        shares = dict(zip(REGIMES, self.regime_counts.tolist(), strict=True))
        return {
            name: torch.tensor(value / pairs if pairs else torch.nan, dtype=torch.float32, device=self.pairs.device)
            for name, value in {**sums, **shares}.items()
        }

    def set_dtype(self, dst_type: str | torch.dtype) -> BCSMetric:
        """Does nothing: the sums are whole numbers, which no other type could hold."""
        return self

    def plot(
        self, val: Mapping[str, Tensor] | Sequence[Mapping[str, Tensor]] | None = None, ax: Axes | None = None
    ) -> tuple[Figure, Axes | np.ndarray]:
        """Plot one result or several, such as one an epoch; by default that of :meth:`compute`.

        Args:
            val: results of :meth:`compute` or of ``forward``.
            ax: where to; a new figure by default.

        Returns:
            Figure and axes.
        """
        return self._plot(val, ax)  # type: ignore[arg-type]


def _counts(scores: BCSScore) -> list[int]:
    return [int((scores.regime == code).sum()) for code in REGIMES]
