"""bcs_lab: judge images reconstructed from brain signals with the BCI-Coherence Score (BCS).

``from bcs_lab import BCS`` scores pairs of images with a trained model; ``from bcs_lab import BCSMetric`` does so in a
training loop. Importing the package loads nothing heavy; see ``bcs --help`` for the tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bcs_lab.metric import BCSMetric
    from bcs_lab.score import BCS, BCSScore

__version__ = "0.1.0"

__all__ = ["BCS", "BCSMetric", "BCSScore", "__version__"]

#: Name -> the module that holds it, imported when the name is first used.
_LAZY = {"BCS": "bcs_lab.score", "BCSScore": "bcs_lab.score", "BCSMetric": "bcs_lab.metric"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
