"""Members, their mean and spread, and the ensemble as files: safetensors and JSON, no pickles.

The ensemble is the plain mean of the members' raw predictions (Appendix 0.C.3); the members' spread says how far they
disagree.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bcs_lab import __version__
from bcs_lab.errors import ConfigError, ModelError, RunError
from bcs_lab.features import feature_dim, fused_features
from bcs_lab.files import write_json
from bcs_lab.fit import head_and_settings
from bcs_lab.heads import HEADS, build_head
from bcs_lab.members import MemberResult
from bcs_lab.snapping import Thresholds, fit_thresholds, snap_to_levels
from bcs_lab.split import Split
from bcs_lab.teachers.protocol import Protocol

if TYPE_CHECKING:
    from bcs_lab.embeddings import PairEmbeddings

#: Version of the files written by :meth:`Ensemble.save`.
FORMAT_VERSION = 1
MANIFEST = "ensemble.json"


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
        name, settings = head_and_settings(head)
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
        return np.asarray(mean, dtype=np.float32) if self.thresholds is None else snap_to_levels(mean, self.thresholds)

    def _head(self, state: Mapping[str, Tensor]) -> torch.nn.Module:
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
