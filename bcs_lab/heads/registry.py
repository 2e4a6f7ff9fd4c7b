"""Every head by its name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from bcs_lab.errors import ConfigError
from bcs_lab.heads.base import Head
from bcs_lab.heads.few_labels import CosineResidualHead, SimilarityMLPHead
from bcs_lab.heads.kernel import KernelHead
from bcs_lab.heads.linear import RidgeHead
from bcs_lab.heads.network import ContinuousHead, CoralHead, MLPHead, OrdinalHead, PrototypeHead
from bcs_lab.heads.stack import StackHead
from bcs_lab.heads.trees import BoostingHead, TreesHead

#: Every head by the name ``head=`` takes.
HEADS: dict[str, type[Head]] = {
    "continuous": ContinuousHead,
    "ordinal": OrdinalHead,
    "prototype": PrototypeHead,
    "coral": CoralHead,
    "mlp": MLPHead,
    "ridge": RidgeHead,
    "trees": TreesHead,
    "boosting": BoostingHead,
    "kernel": KernelHead,
    "stack": StackHead,
    "similarity_mlp": SimilarityMLPHead,
    "cosine_residual": CosineResidualHead,
}
#: Settings that stand beside a head's own: how predictions are reported, and what known negatives weigh.
NOT_OF_THE_HEAD = ("snap", "negatives")


def build_head(name: str, in_dim: int, n_questions: int, **kwargs: Any) -> Head:
    """A freshly initialised head of the registry.

    Args:
        name: one of :data:`HEADS`.
        in_dim: length of the features.
        n_questions: outputs.
        kwargs: settings of that head, see its class.

    Raises:
        ConfigError: unknown name or setting, or a value out of range; the valid ones are named.
    """
    kind = _known(name)
    settings = list(inspect.signature(kind.__init__).parameters)[3:]
    unknown = sorted(set(kwargs) - set(settings))
    if unknown:
        raise ConfigError(
            f"head={name}: unknown settings {', '.join(f'head.{key}' for key in unknown)}; "
            f"it takes {', '.join(f'head.{key}' for key in settings)}."
        )
    return kind(in_dim, n_questions, **kwargs)


def head_and_settings(head: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name of a head and what it is built with; :data:`NOT_OF_THE_HEAD` is left out.

    Raises:
        ConfigError: there is no such head.
    """
    settings = {key: value for key, value in head.items() if key not in NOT_OF_THE_HEAD}
    name = settings.pop("name", None)
    _known(name)
    return name, settings


def check_features(name: str, kind: str) -> None:
    """Refuse a head on features that it cannot work on.

    Args:
        name: of the head.
        kind: ``embedding`` or ``similarity``.

    Raises:
        ConfigError: names the features it takes.
    """
    takes = _known(name).FEATURES
    if kind not in takes:
        raise ConfigError(f"head={name} works on features={' or '.join(takes)}, not on features={kind}.")


def _known(name: Any) -> type[Head]:
    if name not in HEADS:
        raise ConfigError(f"head={name}: expected one of {', '.join(HEADS)}.")
    return HEADS[name]
