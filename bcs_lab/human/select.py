"""Choose the pairs of a study: the stratified subset of Section 5.6, as an exact optimisation.

Each stratum looks for something (:func:`criteria`). A pair's suitability is its rank by that among all pairs that can
be chosen, so that strata compare. The choice is the one with the largest total among all that give every stratum its
size and every chosen stimulus the same number of pairs. The seed decides between choices of one total only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array
from scipy.stats import rankdata

from bcs_lab.errors import StudyError
from bcs_lab.human.study import STRATA
from bcs_lab.regimes import THRESHOLD

Floats = NDArray[np.float64]

#: Formulas of the joint coherence of T-PAS and T-SAS.
COHERENCE = ("mean", "min", "harmonic", "geometric")

#: What the two "high" strata look for.
HIGH = ("dominant", "plain")


def joint_coherence(t_pas: ArrayLike, t_sas: ArrayLike, formula: str = "mean") -> Floats:
    """How far a pair is alike to the eye *and* in meaning. The paper names joint coherence without a formula.

    Args:
        t_pas: [n] in [0, 1], NaN where undefined.
        t_sas: likewise.
        formula: one of :data:`COHERENCE`. The mean is the default since it alone keeps pairs that are alike in one way
            only away from both extremes; the others put them near the bottom.

    Returns:
        [n] in [0, 1].

    >>> joint_coherence([0.75, 0.0], [0.25, 0.0]).tolist()
    [0.5, 0.0]
    >>> joint_coherence([0.75, 0.0], [0.25, 0.0], "harmonic").tolist()
    [0.375, 0.0]
    """
    p, s = np.asarray(t_pas, dtype=np.float64), np.asarray(t_sas, dtype=np.float64)
    if formula == "mean":
        return (p + s) / 2
    if formula == "min":
        return np.minimum(p, s)
    if formula == "geometric":
        return np.sqrt(p * s)
    if formula == "harmonic":
        total = p + s
        return np.divide(2 * p * s, total, out=np.where(np.isnan(total), np.nan, 0.0), where=total > 0)
    raise ValueError(f"Expected `formula` to be one of {', '.join(COHERENCE)} but got {formula!r}.")


def criteria(t_pas: ArrayLike, t_sas: ArrayLike, coherence: str = "mean", high: str = "dominant") -> dict[str, Floats]:
    """What each stratum wants to be large, by stratum.

    Args:
        t_pas: [n] in [0, 1].
        t_sas: likewise.
        coherence: formula of the joint coherence.
        high: ``dominant`` asks for one axis without the other, p (1 - s) and s (1 - p), since the strata are to show
            where the axes part; p and s are the scores' ranks in [0, 1], so that a model that uses a small part of the
            scale selects as well as another. ``plain`` asks for T-PAS and T-SAS themselves.
    """
    p, s = np.asarray(t_pas, dtype=np.float64), np.asarray(t_sas, dtype=np.float64)
    joint = joint_coherence(p, s, coherence)
    if high not in HIGH:
        raise ValueError(f"Expected `high` to be one of {', '.join(HIGH)} but got {high!r}.")
    rank_p, rank_s = (rankdata(axis, nan_policy="omit") / max(np.count_nonzero(~np.isnan(axis)), 1) for axis in (p, s))
    alone = high == "dominant"
    return {
        "high_perceptual": rank_p * (1 - rank_s) if alone else p,
        "high_semantic": rank_s * (1 - rank_p) if alone else s,
        "highest": joint,
        "lowest": -joint,
    }


@dataclass(frozen=True)
class Pool:
    """What can be chosen from.

    Attributes:
        rows: int64 [n], positions of the pairs in their corpus.
        stimulus: [n], identity of each pair's reference picture.
        t_pas: [n] in [0, 1].
        t_sas: likewise.
        lonely: how many stimuli have scored pairs, but too few of them.
    """

    rows: NDArray[np.int64]
    stimulus: Sequence[str]
    t_pas: Floats
    t_sas: Floats
    lonely: int = 0

    @property
    def n_stimuli(self) -> int:
        """Stimuli with enough pairs."""
        return len(set(self.stimulus))


def pool(
    references: Sequence[str],
    reconstructions: Sequence[str],
    t_pas: ArrayLike,
    t_sas: ArrayLike,
    per_stimulus: int,
) -> Pool:
    """Pairs of the stimuli that have enough distinct reconstructions with both scores.

    Args:
        references: [n] identities of the reference pictures, such as hashes of their content.
        reconstructions: [n] likewise; of equal ones for one stimulus the first counts.
        t_pas: [n], NaN where undefined.
        t_sas: likewise.
        per_stimulus: how many reconstructions are enough.
    """
    p, s = np.asarray(t_pas, dtype=np.float64), np.asarray(t_sas, dtype=np.float64)
    by_stimulus: dict[str, dict[str, int]] = {}
    for row in np.flatnonzero(np.isfinite(p) & np.isfinite(s)).tolist():
        by_stimulus.setdefault(references[row], {}).setdefault(reconstructions[row], row)
    enough = {name: found for name, found in by_stimulus.items() if len(found) >= per_stimulus}
    rows = np.array(sorted(row for found in enough.values() for row in found.values()), dtype=np.int64)
    return Pool(rows, [references[row] for row in rows.tolist()], p[rows], s[rows], len(by_stimulus) - len(enough))


def choose(
    pool: Pool,
    sizes: Mapping[str, int],
    per_stimulus: int,
    *,
    coherence: str = "mean",
    high: str = "dominant",
    seed: int = 0,
) -> dict[int, str]:
    """The pairs of a study.

    Args:
        pool: what can be chosen from.
        sizes: stratum -> number of pairs; their sum is ``per_stimulus`` times the number of stimuli.
        per_stimulus: pairs of each chosen stimulus.
        coherence: formula of the joint coherence.
        high: see :func:`criteria`.
        seed: decides between choices of one total.

    Returns:
        Position in the pool -> stratum, in the order of the strata and then of the pool.

    Raises:
        StudyError: too few stimuli; says how many there are and what would fit.
    """
    total = sum(sizes.values())
    n_stimuli = total // per_stimulus
    if total != n_stimuli * per_stimulus or total < 1:
        raise ValueError(f"Expected `sizes` to sum to a multiple of {per_stimulus} but got {dict(sizes)}.")
    if pool.n_stimuli < n_stimuli:
        raise StudyError(_too_few(pool, sizes, per_stimulus))
    suitability = _suitability(pool, sizes, coherence, high, seed, total)
    candidates = _candidates(pool, suitability, per_stimulus)
    chosen = _solve(pool, suitability, candidates, sizes, per_stimulus, n_stimuli)
    order = list(sizes)
    return dict(sorted(chosen.items(), key=lambda entry: (order.index(entry[1]), entry[0])))


def _suitability(
    pool: Pool, sizes: Mapping[str, int], coherence: str, high: str, seed: int, total: int
) -> dict[str, Floats]:
    """Rank of each pair in each stratum, plus less than half a rank in all that only tells equals apart."""
    rng = np.random.default_rng(seed)
    wanted = criteria(pool.t_pas, pool.t_sas, coherence, high)
    return {
        # Rounded, so that scores that are equal but for their last bit are equal.
        name: rankdata(np.round(wanted[name], 9)) + rng.uniform(0, 0.4 / total, len(pool.rows))
        for name in sizes
    }


def _candidates(pool: Pool, suitability: Mapping[str, Floats], per_stimulus: int) -> list[tuple[int, str]]:
    """Pair and stratum of every choice that can be best.

    Of one stimulus only the ``per_stimulus`` best pairs of a stratum can: if another were chosen there, one of those
    would be free and better.
    """
    members: dict[str, list[int]] = {}
    for at, stimulus in enumerate(pool.stimulus):
        members.setdefault(stimulus, []).append(at)
    return [
        (at, stratum)
        for group in members.values()
        for stratum, value in suitability.items()
        for at in sorted(group, key=lambda one: -value[one])[:per_stimulus]
    ]


def _solve(
    pool: Pool,
    suitability: Mapping[str, Floats],
    candidates: Sequence[tuple[int, str]],
    sizes: Mapping[str, int],
    per_stimulus: int,
    n_stimuli: int,
) -> dict[int, str]:
    """Mixed-integer programme: one binary a candidate, then one a stimulus."""
    stimuli = list(dict.fromkeys(pool.stimulus))
    strata = list(sizes)
    pairs = sorted({at for at, _ in candidates})
    n, k = len(candidates), len(stimuli)
    # Rows: size of each stratum; pairs of each stimulus; one stratum a pair; number of stimuli.
    of_stimulus, of_pair = len(strata), len(strata) + k
    last = of_pair + len(pairs)
    row_of_stimulus = {name: of_stimulus + i for i, name in enumerate(stimuli)}
    row_of_pair = {at: of_pair + i for i, at in enumerate(pairs)}
    entries: list[tuple[int, int, float]] = []
    for column, (at, stratum) in enumerate(candidates):
        entries.append((strata.index(stratum), column, 1.0))
        entries.append((row_of_stimulus[pool.stimulus[at]], column, 1.0))
        entries.append((row_of_pair[at], column, 1.0))
    for i, name in enumerate(stimuli):
        entries.append((row_of_stimulus[name], n + i, -float(per_stimulus)))
        entries.append((last, n + i, 1.0))
    rows, columns, values = zip(*entries, strict=True)
    low = np.zeros(last + 1)
    high = np.zeros(last + 1)
    low[: len(strata)] = high[: len(strata)] = [sizes[name] for name in strata]
    high[of_pair:last] = 1.0
    low[last] = high[last] = n_stimuli
    gain = np.array([suitability[stratum][at] for at, stratum in candidates] + [0.0] * k)
    solved = milp(
        -gain,
        integrality=np.ones(n + k),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(csr_array((values, (rows, columns)), shape=(last + 1, n + k)), low, high),
        options={"mip_rel_gap": 0.0},
    )
    if solved.x is None:
        raise StudyError(f"The pairs of the study could not be chosen: {solved.message}")
    return {at: stratum for (at, stratum), value in zip(candidates, solved.x[:n], strict=True) if value > 0.5}


def _too_few(pool: Pool, sizes: Mapping[str, int], per_stimulus: int) -> str:
    total = sum(sizes.values())
    has = pool.n_stimuli
    message = (
        f"stimuli={total // per_stimulus}: {has} reference picture{'s have' if has != 1 else ' has'} at least "
        f"{per_stimulus} distinct scored reconstructions"
        + (f", {pool.lonely} more have fewer" if pool.lonely else "")
        + ". "
    )
    if has:
        fit = fitting_sizes(sizes, has * per_stimulus)
        settings = " ".join(f"{name}={size}" for name, size in fit.items())
        message += f"What would fit: stimuli={has} {settings}"
    elif per_stimulus > 1:
        message += "What may fit: a smaller per_stimulus, or a corpus with several reconstructions of one picture"
    else:
        message += "No pair has both scores"
    return message


def fitting_sizes(sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """Sizes in the same proportion that sum to ``total``, by largest remainder.

    >>> fitting_sizes({"a": 6, "b": 6, "c": 3, "d": 3}, 8)
    {'a': 3, 'b': 3, 'c': 1, 'd': 1}
    """
    exact = {name: total * size / sum(sizes.values()) for name, size in sizes.items()}
    fit = {name: int(value) for name, value in exact.items()}
    for name in sorted(exact, key=lambda key: fit[key] - exact[key])[: total - sum(fit.values())]:
        fit[name] += 1
    return fit


def doubts(chosen: Mapping[int, str], pool: Pool, coherence: str) -> list[str]:
    """Where a stratum got pairs that are not what its name says: beside the other pairs, or on the scale itself.

    Beside the others: the wrong axis is ahead, or the joint coherence is on the wrong side of the median. On the scale:
    what should be high lies below 0.5, where "high" begins (Table 9), and the other way round for ``lowest``.
    """
    joint = joint_coherence(pool.t_pas, pool.t_sas, coherence)
    middle = float(np.median(joint))
    beside = {
        "high_perceptual": (pool.t_pas <= pool.t_sas, "T-PAS not above T-SAS"),
        "high_semantic": (pool.t_sas <= pool.t_pas, "T-SAS not above T-PAS"),
        "highest": (joint < middle, f"joint coherence below the median {middle:.2f}"),
        "lowest": (joint > middle, f"joint coherence above the median {middle:.2f}"),
    }
    on_the_scale = {
        "high_perceptual": (pool.t_pas, "T-PAS", "below"),
        "high_semantic": (pool.t_sas, "T-SAS", "below"),
        "highest": (joint, "joint coherence", "below"),
        "lowest": (joint, "joint coherence", "above"),
    }
    out = []
    for stratum in STRATA:
        mine = np.array([at for at, name in chosen.items() if name == stratum], dtype=np.int64)
        wrong, what = beside[stratum]
        count = int(np.count_nonzero(wrong[mine]))
        if count:
            out.append(f"{stratum}: {_of(count, len(mine))} {what}")
        values, name, side = on_the_scale[stratum]
        found = values[mine]
        off = found < THRESHOLD if side == "below" else found > THRESHOLD
        if off.any():
            low, high = (f"{bound:.2f}" for bound in (found[off].min(), found[off].max()))
            span = low if low == high else f"{low}–{high}"
            out.append(f"{stratum}: {_of(int(off.sum()), len(mine))} {name} {side} {THRESHOLD:g} ({span})")
    return out


def _of(count: int, total: int) -> str:
    """How many pairs of a stratum, up to the verb."""
    return f"{count} of {total} pair{'s' * (total != 1)} ha{'s' if count == 1 else 've'}"
