"""One trained member, in memory and as a file, so that a training that is killed keeps the members it has finished."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bcs_lab.files import json_safe, replacing

logger = logging.getLogger(__name__)


@dataclass
class MemberResult:
    """One trained member.

    Attributes:
        seed: of its initialisation, dropout and order of pairs.
        best_epoch: the epoch its weights are from, counted from 1.
        epochs: epochs that ran.
        state_dict: weights of the head at ``best_epoch``, on the CPU.
        history: a record an epoch: ``epoch`` (from 1), ``train_loss``, ``val_loss``, ``lr``; of a head that fits
            itself a single one, without ``lr``.
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


def member_key(
    data: str, head: Mapping[str, Any], optim: Mapping[str, Any], trainer: Mapping[str, Any], seed: int
) -> str:
    """Digest of everything that decides a member; only a member with the same key is taken over.

    Args:
        data: digest of embeddings, targets, weights and split.
        head: name and settings of the head.
        optim: settings of the optimiser.
        trainer: settings of the training.
        seed: of the member.
    """
    from torch import __version__ as torch_version

    parts = [data, dict(head), dict(optim), dict(trainer), seed, str(torch_version)]
    return hashlib.sha256(json.dumps(json_safe(parts), sort_keys=True).encode()).hexdigest()


def save_member(result: MemberResult, path: Path, key: str) -> None:
    """Write a member in one step: weights and predictions as safetensors, the rest in its header."""
    from safetensors.torch import save
    from torch import from_numpy

    tensors = {f"state.{name}": value.contiguous() for name, value in result.state_dict.items()}
    facts = {
        "seed": result.seed,
        "best_epoch": result.best_epoch,
        "epochs": result.epochs,
        "history": result.history,
        "wall_s": result.wall_s,
    }
    content = save(
        {**tensors, "predictions": from_numpy(np.ascontiguousarray(result.predictions))},
        {"key": key, "facts": json.dumps(facts)},
    )
    with replacing(path) as temporary:
        temporary.write_bytes(hashlib.sha256(content).digest() + content)


def load_member(path: Path, key: str) -> MemberResult | None:
    """A finished member with this key, or ``None`` when there is none; a damaged file is named in a warning."""
    from safetensors.torch import load

    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    digest, content = content[:32], content[32:]
    if hashlib.sha256(content).digest() != digest:
        logger.warning("%s: damaged, perhaps by a run that was killed; the member is trained again", path)
        return None
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    if header["key"] != key:
        logger.info("%s: from other settings or data; the member is trained again", path)
        return None
    tensors: dict[str, Tensor] = load(content)
    predictions: NDArray[np.float32] = tensors.pop("predictions").numpy()
    state = {name.removeprefix("state."): value for name, value in tensors.items()}
    return MemberResult(state_dict=state, predictions=predictions, **json.loads(header["facts"]))
