"""Members, their mean and spread, and all that is known of them.

The ensemble is the plain mean of the members' raw predictions (Appendix 0.C.3); the members' spread says how far they
disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bcs_lab.conformal import Conformal
from bcs_lab.errors import ModelError
from bcs_lab.familiarity import Familiarity
from bcs_lab.features import feature_dim, fused_features
from bcs_lab.heads import HEADS, build_head, check_features, head_and_settings
from bcs_lab.members import MemberResult
from bcs_lab.snapping import Thresholds, fit_thresholds, snap_to_levels
from bcs_lab.split import Split
from bcs_lab.teachers.protocol import Protocol

if TYPE_CHECKING:
    from bcs_lab.embeddings import PairEmbeddings
    from bcs_lab.similarity import PairSimilarities


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


def _features(
    similarities: Sequence[PairSimilarities] | None, options: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The record of what members take, see :class:`Ensemble`."""
    if similarities is None:
        return {"kind": "embedding"}
    return {
        "kind": "similarity",
        "names": [f"{part.name}.{name}" for part in similarities for name in part.names],
        "parts": [
            {
                "name": part.name,
                "label": part.label,
                "stand_in": part.stand_in,
                "fingerprint": dict(part.fingerprint),
                "names": list(part.names),
                "options": dict(options.get(part.stand_in or part.name, {})),
            }
            for part in similarities
        ],
    }


@dataclass
class Ensemble:
    """Trained members with all that is needed to score later, and to know what they are.

    Attributes:
        head: ``name`` of the head and its settings.
        encoders: per encoder in fusion order ``name``, ``label``, ``stand_in``, ``fingerprint``, ``dim`` and the
            ``options`` it was loaded with.
        protocol: name of the protocol.
        questions: per output ``id``, ``group`` and ``name`` (models of earlier versions lack the name).
        teachers: whose consensus was learned.
        weight_scheme: agreement weights used.
        split: ``scheme``, ``seed``, ``hash``, and ``fold``, ``folds`` for k-fold.
        seeds: per member.
        states: per member the weights of its head.
        thresholds: [n_questions, 2] if reported predictions are snapped to levels, else ``None``.
        simulated_teachers: whether the answers learned from were simulated.
        metrics: results kept with the model, if any.
        conformal: validation residuals, for intervals.
        familiarity: training embeddings, to tell pictures unlike them.
        provenance: corpus, its size, versions, date.
        features: what the members take. ``kind`` is ``embedding``, or ``similarity`` with ``names`` of the columns in
            order (``encoder.name``) and ``parts``: per encoder ``name``, ``label``, ``stand_in``, ``fingerprint``,
            ``names`` and ``options``.
        digest: identity of the saved model; empty before it is saved.
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
    conformal: Conformal | None = None
    familiarity: Familiarity | None = field(default=None, repr=False)
    provenance: dict[str, Any] = field(default_factory=dict)
    features: dict[str, Any] = field(default_factory=lambda: {"kind": "embedding"})
    digest: str = ""

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
        options: Mapping[str, Mapping[str, Any]] | None = None,
        conformal: Conformal | None = None,
        familiarity: Familiarity | None = None,
        provenance: Mapping[str, Any] | None = None,
        similarities: Sequence[PairSimilarities] | None = None,
    ) -> Ensemble:
        """Put trained members together; thresholds are fitted on validation if predictions are to be snapped.

        Args:
            members: of :func:`train_ensemble`.
            head: ``name`` of the head and its settings.
            embeddings: what they were trained on, in fusion order; with similarities, what familiarity is told by.
            protocol: the questions, in output order.
            teachers: whose consensus was learned.
            weight_scheme: agreement weights used.
            split: the split they were trained under.
            targets: [n_pairs, n_questions] consensus, NaN where missing.
            snap: whether reported predictions are snapped to levels; ``None`` is ``snap`` of ``head``, else the head's
                own habit.
            simulated_teachers: whether the answers were simulated.
            metrics: results to keep with the model.
            options: encoder -> what it was loaded with.
            conformal: see the attribute.
            familiarity: likewise.
            provenance: likewise.
            similarities: what they were trained on in place of embeddings, in the order of the columns.

        Raises:
            ConfigError: the head does not work on such features.
        """
        name, settings = head_and_settings(head)
        features = _features(similarities, options or {})
        check_features(name, features["kind"])
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
                    "options": dict((options or {}).get(part.stand_in or part.name, {})),
                }
                for part in embeddings
            ],
            protocol=protocol.name,
            questions=[{"id": q.id, "group": q.group, "name": q.name} for q in protocol.questions],
            teachers=list(teachers),
            weight_scheme=weight_scheme,
            split=record,
            seeds=[member.seed for member in members],
            states=[member.state_dict for member in members],
            thresholds=thresholds,
            simulated_teachers=simulated_teachers,
            metrics=dict(metrics) if metrics is not None else None,
            conformal=conformal,
            familiarity=familiarity,
            provenance=dict(provenance or {}),
            features=features,
        )

    @property
    def dims(self) -> list[int]:
        """Embedding size an encoder."""
        return [int(encoder["dim"]) for encoder in self.encoders]

    @property
    def in_dim(self) -> int:
        """Length of the features the members take."""
        return len(self.features["names"]) if self.kind == "similarity" else feature_dim(self.dims)

    @property
    def kind(self) -> str:
        """Kind of the features: ``embedding`` or ``similarity``."""
        return str(self.features["kind"])

    def predict_members(
        self,
        reference: Sequence[ArrayLike | Tensor],
        reconstruction: Sequence[ArrayLike | Tensor],
        batch_size: int = 1024,
    ) -> NDArray[np.float32]:
        """Raw predictions of every member from embeddings; arguments as in :meth:`predict`.

        Returns:
            float32 [n_members, n_pairs, n_questions].

        Raises:
            ModelError: the embeddings do not fit, or the members take similarities.
        """
        if self.kind != "embedding":
            raise ModelError(
                "The ensemble was trained with features=similarity: embeddings do not tell the similarities of a pair. "
                "Compute those of the images and use predict_features."
            )
        pairs = self._checked_embeddings(reference, reconstruction)
        starts = range(0, max(len(pairs[0][0]), 1), batch_size)
        batches = ([(a[s : s + batch_size], b[s : s + batch_size]) for a, b in pairs] for s in starts)
        return self._predict(fused_features(batch) for batch in batches)

    def predict_features(self, features: ArrayLike | Tensor, batch_size: int = 1024) -> NDArray[np.float32]:
        """Raw predictions of every member from the features themselves.

        Args:
            features: [n, in_dim]: similarities in the order of ``features["names"]``, or fused embeddings.
            batch_size: pairs at a time.

        Returns:
            float32 [n_members, n, n_questions].

        Raises:
            ModelError: there are more or fewer features a pair than the members take, or some are not finite.
        """
        values = torch.as_tensor(np.asarray(features, dtype=np.float32))
        if values.ndim != 2 or values.shape[1] != self.in_dim:
            raise ModelError(
                f"Expected {self.kind} features of shape [n, {self.in_dim}], got {list(values.shape)}; use the "
                "encoders and the version of similarities that the ensemble was trained with."
            )
        if not bool(torch.isfinite(values).all()):
            raise ModelError(f"{int((~torch.isfinite(values)).sum())} features are not finite numbers.")
        return self._predict(values.split(batch_size) if len(values) else [values])

    def _predict(self, batches: Iterable[Tensor]) -> NDArray[np.float32]:
        parts: list[list[NDArray[np.float32]]] = [[] for _ in self.heads]
        for features in batches:  # once for all members
            with torch.inference_mode():
                for head, part in zip(self.heads, parts, strict=True):
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
        return np.asarray(mean, dtype=np.float32) if self.thresholds is None else snap_to_levels(mean, self.thresholds)

    @cached_property
    def heads(self) -> list[torch.nn.Module]:
        """The members' networks in evaluation mode, in the order of ``seeds``."""
        return [self.build(state) for state in self.states]

    def build(self, state: Mapping[str, Tensor]) -> torch.nn.Module:
        """The head of one member with its weights, in evaluation mode."""
        name, settings = head_and_settings(self.head)
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
        """Write the model's folder, see :func:`bcs_lab.model_files.write_model`."""
        from bcs_lab.model_files import write_model

        return write_model(self, Path(folder))

    @classmethod
    def load(cls, folder: str | Path) -> Ensemble:
        """Read and verify a model's folder, see :func:`bcs_lab.model_files.read_model`."""
        from bcs_lab.model_files import read_model

        return read_model(Path(folder))
