"""The choice of pairs: against every possible choice on small inputs, and its properties on large ones."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import rankdata

from bcs_lab.errors import StudyError
from bcs_lab.human.select import COHERENCE, Pool, choose, criteria, doubts, fitting_sizes, joint_coherence, pool

PAPER = {"high_perceptual": 6, "high_semantic": 6, "highest": 3, "lowest": 3}


def made_pool(stimuli: int, pairs: int, seed: int = 0, grid: int | None = None) -> Pool:
    rng = np.random.default_rng(seed)
    n = stimuli * pairs
    p, s = rng.uniform(0, 1, (2, n))
    if grid:
        p, s = np.round(p * grid) / grid, np.round(s * grid) / grid
    return Pool(np.arange(n), [f"s{i % stimuli}" for i in range(n)], p, s)


def best_by_enumeration(source: Pool, sizes: dict[str, int], per_stimulus: int) -> float:
    """Largest total of ranks over every choice of stimuli, pairs and strata."""
    ranks = {name: rankdata(value) for name, value in criteria(source.t_pas, source.t_sas).items()}
    best = -np.inf
    stimuli = sorted(set(source.stimulus))
    for taken in combinations(stimuli, sum(sizes.values()) // per_stimulus):
        options = [
            list(combinations([at for at, name in enumerate(source.stimulus) if name == one], per_stimulus))
            for one in taken
        ]
        best = max(best, _assign(options, ranks, tuple(sizes.items())))
    return best


def _assign(
    options: list[list[tuple[int, ...]]], ranks: dict[str, np.ndarray], left: tuple[tuple[str, int], ...]
) -> float:
    if not options:
        return 0.0
    best = -np.inf
    for pairs in options[0]:
        for strata in _strata(len(pairs), left):
            rest = tuple((name, size - strata.count(name)) for name, size in left)
            gain = sum(ranks[name][at] for at, name in zip(pairs, strata, strict=True))
            best = max(best, gain + _assign(options[1:], ranks, rest))
    return best


def _strata(n: int, left: tuple[tuple[str, int], ...]) -> list[tuple[str, ...]]:
    if n == 0:
        return [()]
    return [
        (name, *rest)
        for name, size in left
        if size > 0
        for rest in _strata(n - 1, tuple((other, s - (other == name)) for other, s in left))
    ]


@pytest.mark.parametrize("seed", range(8))
def test_no_other_choice_is_better(seed: int) -> None:
    source = made_pool(4, 3, seed, grid=4 if seed % 2 else None)
    sizes = {"high_perceptual": 2, "high_semantic": 2, "highest": 1, "lowest": 1}
    chosen = choose(source, sizes, 2, seed=seed)
    ranks = {name: rankdata(np.round(value, 9)) for name, value in criteria(source.t_pas, source.t_sas).items()}
    assert Counter(chosen.values()) == sizes
    assert set(Counter(source.stimulus[at] for at in chosen).values()) == {2}
    total = sum(ranks[name][at] for at, name in chosen.items())
    assert total == pytest.approx(best_by_enumeration(source, sizes, 2))


def test_the_papers_study_from_a_corpus_of_its_size() -> None:
    source = made_pool(200, 34)
    chosen = choose(source, PAPER, 2)
    assert Counter(chosen.values()) == PAPER
    per_stimulus = Counter(source.stimulus[at] for at in chosen)
    assert len(per_stimulus) == 9
    assert set(per_stimulus.values()) == {2}
    wanted = criteria(source.t_pas, source.t_sas)
    for at, stratum in chosen.items():
        assert (wanted[stratum] <= wanted[stratum][at]).mean() > 0.97, stratum
    assert doubts(chosen, source, "mean") == []


def test_only_choices_of_one_total_are_left_to_the_seed() -> None:
    tied = made_pool(40, 4, seed=3, grid=2)
    assert choose(tied, PAPER, 2, seed=0) == choose(tied, PAPER, 2, seed=0)
    picks = [choose(tied, PAPER, 2, seed=seed) for seed in range(4)]
    assert len({tuple(pick.items()) for pick in picks}) > 1
    wanted = criteria(tied.t_pas, tied.t_sas)
    ranks = {name: rankdata(np.round(value, 9)) for name, value in wanted.items()}
    totals = {round(sum(ranks[name][at] for at, name in pick.items()), 6) for pick in picks}
    assert len(totals) == 1


def test_dominant_is_more_than_high() -> None:
    p = np.array([1.0, 0.8, 0.3, 0.1])
    s = np.array([0.95, 0.1, 0.0, 0.9])
    assert np.argmax(criteria(p, s)["high_perceptual"]) == 1
    assert np.argmax(criteria(p, s, high="plain")["high_perceptual"]) == 0
    assert np.argmax(criteria(p, s)["high_semantic"]) == 3
    with pytest.raises(ValueError, match="high"):
        criteria(p, s, high="most")


@pytest.mark.parametrize("formula", COHERENCE)
def test_coherence_is_a_mean_of_some_kind(formula: str) -> None:
    rng = np.random.default_rng(0)
    p, s = rng.uniform(0, 1, (2, 50))
    joint = joint_coherence(p, s, formula)
    assert ((joint >= np.minimum(p, s) - 1e-12) & (joint <= (p + s) / 2 + 1e-12)).all()
    assert joint_coherence([0.4, 0.0], [0.4, 0.0], formula) == pytest.approx([0.4, 0.0])
    assert np.isnan(joint_coherence([np.nan], [0.5], formula)[0])
    assert joint == pytest.approx(joint_coherence(s, p, formula))


def test_unknown_coherence() -> None:
    with pytest.raises(ValueError, match="formula"):
        joint_coherence([0.1], [0.2], "product")


def test_pool_goes_by_content_and_by_what_is_scored() -> None:
    nan = np.nan
    source = pool(
        ["a", "a", "a", "b", "b", "c", "c"],
        ["1", "2", "2", "3", "4", "5", "5"],
        [0.1, 0.2, 0.3, 0.4, nan, 0.5, 0.5],
        [0.1] * 7,
        per_stimulus=2,
    )
    assert source.rows.tolist() == [0, 1]
    assert source.stimulus == ["a", "a"]
    assert source.lonely == 2


def test_too_few_stimuli_say_what_fits() -> None:
    with pytest.raises(StudyError) as caught:
        choose(made_pool(4, 2), PAPER, 2)
    assert "stimuli=9: 4 reference pictures have at least 2" in str(caught.value)
    assert "stimuli=4 high_perceptual=3 high_semantic=3 highest=1 lowest=1" in str(caught.value)
    fit = {"high_perceptual": 3, "high_semantic": 3, "highest": 1, "lowest": 1}
    assert Counter(choose(made_pool(4, 2), fit, 2).values()) == fit
    with pytest.raises(StudyError, match="0 reference pictures"):
        choose(Pool(np.array([], dtype=np.int64), [], np.array([]), np.array([])), PAPER, 2)


@pytest.mark.parametrize("total", range(1, 30))
def test_fitting_sizes_sum(total: int) -> None:
    assert sum(fitting_sizes(PAPER, total).values()) == total


def test_a_stratum_may_be_empty() -> None:
    sizes = {"high_perceptual": 0, "high_semantic": 4, "highest": 0, "lowest": 2}
    chosen = choose(made_pool(5, 3), sizes, 3)
    assert Counter(chosen.values()) == {name: size for name, size in sizes.items() if size}


def test_doubtful_strata_are_named() -> None:
    source = Pool(np.arange(4), ["a", "a", "b", "b"], np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.5, 0.6, 0.7, 0.8]))
    sizes = {"high_perceptual": 2, "high_semantic": 0, "highest": 1, "lowest": 1}
    chosen = choose(source, sizes, 2)
    axis, scale = doubts(chosen, source, "mean")
    assert axis.startswith("high_perceptual: 2 of 2 pairs have T-PAS not above T-SAS")
    assert scale.startswith("high_perceptual: 2 of 2 pairs have T-PAS below 0.5 (")


def test_strata_that_are_only_relatively_what_they_say_are_named() -> None:
    """Scores that never leave a small part of the scale select as well, but nothing among them is high."""
    source = made_pool(30, 6)
    narrow = Pool(source.rows, source.stimulus, 0.2 + 0.2 * source.t_pas, 0.5 * source.t_sas)
    wide, small = (choose(one, PAPER, 2) for one in (source, narrow))
    of = {name: [at for at, stratum in small.items() if stratum == name] for name in PAPER}
    assert doubts(wide, source, "mean") == []
    lines = doubts(small, narrow, "mean")
    assert [line.partition(":")[0] for line in lines] == ["high_perceptual", "high_semantic", "highest"]
    high = narrow.t_pas[of["high_perceptual"]]
    assert f"6 of 6 pairs have T-PAS below 0.5 ({high.min():.2f}–{high.max():.2f})" in lines[0]
    assert "6 of 6 pairs have T-SAS below 0.5" in lines[1]
    assert "3 of 3 pairs have joint coherence below 0.5" in lines[2]
    upper = Pool(source.rows, source.stimulus, 0.6 + 0.4 * source.t_pas, 0.6 + 0.4 * source.t_sas)
    (line,) = doubts(choose(upper, PAPER, 2), upper, "mean")
    assert line.startswith("lowest: 3 of 3 pairs have joint coherence above 0.5 (0.6")


def test_high_begins_at_the_threshold() -> None:
    one = Pool(np.arange(4), list("aabb"), np.array([0.5, 0.49, 0.9, 0.2]), np.array([0.1, 0.1, 0.5, 0.6]))
    chosen = {0: "high_perceptual", 1: "high_perceptual", 2: "highest", 3: "lowest"}
    assert "high_perceptual: 1 of 2 pairs has T-PAS below 0.5 (0.49)" in doubts(chosen, one, "mean")
    assert not any(line.startswith("highest") for line in doubts(chosen, one, "mean"))
