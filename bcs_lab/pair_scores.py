"""Scores of pairs as data: one pair or a batch, how they follow from embeddings, and the table they become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from bcs_lab.conformal import DEFAULT_COVERAGE
from bcs_lab.errors import ModelError
from bcs_lab.evaluate import axis_scores
from bcs_lab.regimes import REGIMES, regime_codes
from bcs_lab.teachers.protocol import BCS12, Protocol, Question

if TYPE_CHECKING:
    from bcs_lab.ensemble import Ensemble

SIDES = ("reference", "reconstruction")
AXES = ("t_pas", "t_sas")


@dataclass(frozen=True, eq=False)
class BCSScore:
    """What a model says about one pair, or about a batch of n.

    For one pair the values are Python numbers, for a batch arrays [n]. A batch has a length, can be indexed and walked
    through (single scores come out), and becomes a table with :meth:`to_frame`.

    Attributes:
        t_pas: perceptual score in [0, 1], the mean over the perceptual questions (eq. 19).
        t_sas: semantic score in [0, 1], likewise (eq. 20).
        t_pas_std: standard deviation over the members' own scores.
        t_sas_std: likewise.
        t_pas_interval: lower and upper end of the conformal interval around ``t_pas``; NaN where the model knows none.
        t_sas_interval: likewise.
        regime: code of the regime, a key of :data:`bcs_lab.regimes.REGIMES`; ``""`` where an axis is undefined.
        questions: id -> answer in [0, 1], snapped to 0, 0.5 and 1 by models that do so.
        questions_std: id -> standard deviation over the members' raw answers.
        ood: whether either image is unlike those of training; ``None`` if the model cannot tell.
        coverage: share of pairs whose consensus the intervals are made to hold.
        simulated_teachers: whether the model has learned from simulated teachers, so that its scores mean nothing
            about people or real annotators.
        encoders: labels of the encoders used.

    Example:
        >>> score = BCSScore(
        ...     t_pas=0.75, t_sas=0.25, t_pas_std=0.02, t_sas_std=0.05, t_pas_interval=(0.6, 0.9),
        ...     t_sas_interval=(0.0, 0.5), regime="hl", questions={"P1": 0.75, "S1": 0.25},
        ...     questions_std={"P1": 0.02, "S1": 0.05}, ood=False, coverage=0.9, simulated_teachers=False,
        ...     encoders=("siglip",),
        ... )
        >>> print(score)
        T-PAS 0.750  90 % interval 0.600 to 0.900, members ± 0.020
        T-SAS 0.250  90 % interval 0.000 to 0.500, members ± 0.050
        regime: high P, low S
        P1 0.75, S1 0.25
        >>> score.to_frame()[["P1", "S1", "t_pas", "t_sas", "regime"]].to_dict("records")
        [{'P1': 0.75, 'S1': 0.25, 't_pas': 0.75, 't_sas': 0.25, 'regime': 'hl'}]
    """

    t_pas: Any
    t_sas: Any
    t_pas_std: Any
    t_sas_std: Any
    t_pas_interval: tuple[Any, Any]
    t_sas_interval: tuple[Any, Any]
    regime: Any
    questions: Mapping[str, Any]
    questions_std: Mapping[str, Any]
    ood: Any
    coverage: float
    simulated_teachers: bool
    encoders: tuple[str, ...]

    @property
    def batched(self) -> bool:
        """Whether this is a batch."""
        return isinstance(self.t_pas, np.ndarray)

    def __len__(self) -> int:
        return len(self.t_pas) if self.batched else 1

    def __getitem__(self, index: int) -> BCSScore:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{index} is not one of {len(self)} pairs")
        return self._each(lambda values: values[index : index + 1 or None].tolist()[0]) if self.batched else self

    def __iter__(self) -> Iterator[BCSScore]:
        return (self[index] for index in range(len(self)))

    def _each(self, change: Any) -> BCSScore:
        """The same with every array changed."""

        def of(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return change(value)
            if isinstance(value, tuple) and value and isinstance(value[0], np.ndarray):
                return tuple(change(part) for part in value)
            if isinstance(value, Mapping):
                return {key: of(part) for key, part in value.items()}
            return value

        return replace(self, **{field.name: of(getattr(self, field.name)) for field in fields(self)})

    def to_frame(self) -> pd.DataFrame:
        """One row a pair, the columns of :func:`score_table` without ids, paths and others."""
        return pd.DataFrame({name: np.atleast_1d(values) for name, values in _columns(self).items()})

    def __str__(self) -> str:
        lines = _batch_lines(self) if self.batched else _single_lines(self)
        if self.simulated_teachers:
            lines.append("SIMULATED TEACHERS: the model has learned from computed answers, not from annotators.")
        return "\n".join(lines)


def _columns(score: BCSScore) -> dict[str, Any]:
    n = len(score)
    out: dict[str, Any] = dict(score.questions)
    out |= {axis: getattr(score, axis) for axis in AXES}
    out |= {f"{axis}_std": getattr(score, f"{axis}_std") for axis in AXES}
    for axis in AXES:
        out[f"{axis}_lo"], out[f"{axis}_hi"] = getattr(score, f"{axis}_interval")
    out["regime"] = np.array(score.regime, dtype=object)
    out["ood"] = pd.array([pd.NA] * n, dtype="boolean") if score.ood is None else score.ood
    out["simulated_teachers"] = np.full(n, score.simulated_teachers)
    return out


def _single_lines(score: BCSScore) -> list[str]:
    lines = []
    for axis, name in zip(AXES, ("T-PAS", "T-SAS"), strict=True):
        low, high = getattr(score, f"{axis}_interval")
        if np.isnan(getattr(score, axis)):
            lines.append(f"{name} undefined: the model has no question of it")
            continue
        interval = "no interval" if np.isnan(low) else f"{100 * score.coverage:g} % interval {low:.3f} to {high:.3f}"
        lines.append(f"{name} {getattr(score, axis):.3f}  {interval}, members ± {getattr(score, f'{axis}_std'):.3f}")
    lines.append(f"regime: {REGIMES.get(score.regime, 'undefined')}")
    lines.append(", ".join(f"{name} {value:.2f}" for name, value in score.questions.items()))
    if score.ood:
        lines.append("UNFAMILIAR: an image is unlike those the model was trained on; the interval may not hold.")
    return lines


def _batch_lines(score: BCSScore) -> list[str]:
    if not len(score):
        return ["no pairs"]
    counts = Counter(score.regime.tolist())
    regimes = ", ".join(f"{name} {counts[code]}" for code, name in REGIMES.items())
    means = [float(axis.mean()) for axis in (score.t_pas, score.t_sas)]
    p, s = ("undefined" if np.isnan(mean) else f"{mean:.3f}" for mean in means)
    lines = [f"{count(len(score), 'pair')}: mean T-PAS {p}, mean T-SAS {s}"]
    lines.append(f"regimes: {regimes}")
    if score.ood is not None and score.ood.any():
        lines.append(f"UNFAMILIAR: {int(score.ood.sum())} with an image unlike those the model was trained on")
    return lines


def scores_of(
    ensemble: Ensemble,
    reference: Sequence[ArrayLike],
    reconstruction: Sequence[ArrayLike],
    coverage: float = DEFAULT_COVERAGE,
    *,
    similarities: ArrayLike | None = None,
) -> BCSScore:
    """Scores of a batch from embeddings, or similarities, that are there already.

    Args:
        ensemble: the model.
        reference: per encoder [n, dim], in the model's order; not looked at where similarities are given to a model
            that cannot tell what is unfamiliar.
        reconstruction: likewise.
        coverage: of the intervals, between 0 and 1.
        similarities: [n, in_dim], of models that were trained on them.

    Returns:
        A batch of n.

    Raises:
        ModelError: number or sizes of what is given do not fit.
    """
    from bcs_lab.ensemble import combine

    check_coverage(coverage)
    with normal_tensors():
        if similarities is None:
            members = ensemble.predict_members(reference, reconstruction)
        else:
            members = ensemble.predict_features(similarities)
    raw, std = combine(list(members))
    reported = ensemble.report(raw)
    protocol = protocol_of(ensemble)
    axes = axis_scores(reported, protocol)
    spread = np.std([axis_scores(member, protocol) for member in members], axis=0)
    if ensemble.conformal is None:
        intervals = [(np.full(len(axis), np.nan), np.full(len(axis), np.nan)) for axis in axes]
    else:
        intervals = [ensemble.conformal.interval(name, axis, coverage) for name, axis in zip(AXES, axes, strict=True)]
    ood = None if ensemble.familiarity is None else ensemble.familiarity.unfamiliar(reference, reconstruction)
    return BCSScore(
        t_pas=axes[0],
        t_sas=axes[1],
        t_pas_std=spread[0],
        t_sas_std=spread[1],
        t_pas_interval=intervals[0],
        t_sas_interval=intervals[1],
        regime=regime_codes(*axes),
        questions={name: reported[:, index] for index, name in enumerate(protocol.ids)},
        questions_std={name: std[:, index] for index, name in enumerate(protocol.ids)},
        ood=ood,
        coverage=float(coverage),
        simulated_teachers=ensemble.simulated_teachers,
        encoders=tuple(encoder["label"] for encoder in ensemble.encoders),
    )


def protocol_of(ensemble: Ensemble) -> Protocol:
    """The model's questions, in output order."""
    return protocol_of_questions(ensemble.protocol, ensemble.questions)


def protocol_of_questions(name: str, questions: Sequence[Mapping[str, str]]) -> Protocol:
    """A protocol from what a model keeps of it: ``id``, ``group`` and, since some time, ``name`` of each question."""
    names = {question.id: question.name for question in BCS12.questions} if name == BCS12.name else {}
    return Protocol(
        name,
        tuple(
            Question(item["id"], item["group"], item.get("name") or names.get(item["id"], item["id"]))
            for item in questions
        ),
    )


def joined(parts: Sequence[BCSScore]) -> BCSScore:
    """Batches as one."""
    if len(parts) == 1:
        return parts[0]

    def of(values: Sequence[Any]) -> Any:
        first = values[0]
        if isinstance(first, np.ndarray):
            return np.concatenate(values)
        if isinstance(first, tuple) and first and isinstance(first[0], np.ndarray):
            return tuple(np.concatenate(side) for side in zip(*values, strict=True))
        if isinstance(first, Mapping):
            return {key: of([value[key] for value in values]) for key in first}
        return first

    return replace(
        parts[0], **{field.name: of([getattr(part, field.name) for part in parts]) for field in fields(parts[0])}
    )


def check_coverage(coverage: float) -> None:
    """Raise a ModelError unless this is a share between 0 and 1."""
    if isinstance(coverage, bool) or not isinstance(coverage, (int, float)) or not 0 < coverage < 1:
        raise ModelError(f"Expected `coverage` between 0 and 1, such as 0.9, but got {coverage!r}.")


def score_table(
    ids: Sequence[str], paths: Sequence[Sequence[str]], scores: BCSScore, others: pd.DataFrame
) -> pd.DataFrame:
    """The table of scores: a row a pair, in the given order.

    Args:
        ids: pair ids.
        paths: references and reconstructions as given.
        scores: a batch.
        others: further columns, one row a pair; a name that is taken gets the prefix ``manifest_``.

    Returns:
        ``pair_id, reference, reconstruction``, the questions, ``t_pas, t_sas, t_pas_std, t_sas_std, t_pas_lo, t_pas_hi,
        t_sas_lo, t_sas_hi, regime``, the further columns, ``ood``, ``simulated_teachers``.
    """
    values = _columns(scores)
    tail = {name: values.pop(name) for name in ("ood", "simulated_teachers")}
    texts = zip(("pair_id", *SIDES), (ids, *paths), strict=True)
    columns: dict[str, Any] = {name: pd.Series(list(cells), dtype=object) for name, cells in texts}
    columns |= values
    for name in others.columns:
        free = str(name)
        while free in columns or free in tail:
            free = f"manifest_{free}"
        columns[free] = others[name].reset_index(drop=True)
    return pd.DataFrame({**columns, **tail})


def normal_tensors() -> Any:
    """Tensors made within can take part in a gradient later, even if a caller is in inference mode."""
    import torch

    return torch.inference_mode(False)


def count(n: int, noun: str) -> str:
    """A number with its noun."""
    return f"{n} {noun}{'' if n == 1 else 's'}"
