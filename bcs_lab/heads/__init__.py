"""Heads: from pair features to one prediction a question, in a registry by name.

The paper's networks are in :mod:`~bcs_lab.heads.network`; those for few labels in the other modules.
"""

from bcs_lab.heads.base import NO_GROUP, ExtraRows, Head, HeadOutput, TrainingRows
from bcs_lab.heads.few_labels import CosineResidualHead, SimilarityMLPHead
from bcs_lab.heads.fitted import FittedHead
from bcs_lab.heads.kernel import KernelHead
from bcs_lab.heads.linear import RidgeHead
from bcs_lab.heads.network import (
    N_LEVELS,
    ContinuousHead,
    CoralHead,
    LevelHead,
    MLPHead,
    NormLinear,
    OrdinalHead,
    PrototypeHead,
    ResidualBlock,
    Trunk,
    soft_levels,
)
from bcs_lab.heads.registry import HEADS, build_head, check_features, head_and_settings
from bcs_lab.heads.stack import StackHead
from bcs_lab.heads.trees import BoostingHead, TreesHead

__all__ = [
    "HEADS",
    "NO_GROUP",
    "N_LEVELS",
    "BoostingHead",
    "ContinuousHead",
    "CoralHead",
    "CosineResidualHead",
    "ExtraRows",
    "FittedHead",
    "Head",
    "HeadOutput",
    "KernelHead",
    "LevelHead",
    "MLPHead",
    "NormLinear",
    "OrdinalHead",
    "PrototypeHead",
    "ResidualBlock",
    "RidgeHead",
    "SimilarityMLPHead",
    "StackHead",
    "TrainingRows",
    "TreesHead",
    "Trunk",
    "build_head",
    "check_features",
    "head_and_settings",
    "soft_levels",
]
