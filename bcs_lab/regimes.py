"""The four regimes of T-PAS and T-SAS (Section 4.4, Table 9): alike to the eye, in meaning, in both or in neither."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

#: Where "high" begins, on both axes (Table 9).
THRESHOLD = 0.5

#: Code -> what it says, in Table 9's order; the first letter is T-PAS, the second T-SAS.
REGIMES: Mapping[str, str] = {
    "hh": "high P, high S",
    "hl": "high P, low S",
    "lh": "low P, high S",
    "ll": "low P, low S",
}


def regime_codes(t_pas: ArrayLike, t_sas: ArrayLike, threshold: float = THRESHOLD) -> NDArray[np.object_]:
    """Regime of each pair.

    Args:
        t_pas: [n] in [0, 1], NaN where undefined.
        t_sas: likewise.
        threshold: a score at or above it is high.

    Returns:
        object [n]: a key of :data:`REGIMES`, or ``""`` where a score is undefined.

    >>> regime_codes([0.5, 0.9, 0.2, float("nan")], [0.5, 0.1, 0.4, 0.4]).tolist()
    ['hh', 'hl', 'll', '']
    """
    p, s = np.asarray(t_pas, dtype=np.float64), np.asarray(t_sas, dtype=np.float64)
    codes = np.array(list(REGIMES), dtype=object)[2 * (p < threshold) + (s < threshold)]
    return np.where(np.isnan(p) | np.isnan(s), "", codes).astype(object)
