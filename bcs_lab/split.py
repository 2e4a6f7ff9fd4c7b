"""Train, validation and test parts that share no concept, subject or method (Section 5.3)."""

from __future__ import annotations

import hashlib
import logging
import math
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bcs_lab.errors import ConfigError, SplitError

logger = logging.getLogger(__name__)

PARTS = ("train", "val", "test")
#: What a pair is that ``split.train_pairs`` leaves out: in no part.
UNUSED = "unused"
SCHEMES = ("concept", "subject", "method", "pair", "kfold")

#: Seeded draws of which the best-balanced one is kept where groups differ much in size.
_DRAWS = 256
#: Key of the group of pairs whose subject is unknown.
_UNKNOWN_SUBJECT = "na"
#: Spellings of "no subject is known", compared after folding.
_NO_SUBJECT = frozenset({"", "na", "n/a", "nan", "none", "null", "unknown"})


@dataclass
class Split:
    """Which part every pair of a corpus belongs to; checked for leaks when it is made.

    Attributes:
        scheme: ``concept``, ``subject``, ``method``, ``pair`` or ``kfold``.
        seed: seed of the shuffle.
        assignment: [n_pairs] of ``"train"``, ``"val"``, ``"test"`` or ``"unused"`` (in no part), in corpus order.
        pair_ids: [n_pairs], in corpus order.
        groups: [n_pairs] key of the group a pair was assigned with; no group is in two parts.
        fold: the test fold of ``kfold``, else ``None``.
        folds: the number of folds of ``kfold``, else ``None``.
        hash: sha256 (64 hex digits) over the sorted lines ``pair_id<TAB>part``, each ended by a newline; two splits
            with one hash are the same split.
    """

    scheme: str
    seed: int
    assignment: NDArray[np.str_]
    pair_ids: NDArray[np.object_]
    groups: NDArray[np.object_]
    fold: int | None = None
    folds: int | None = None
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        if not len(self.assignment) == len(self.pair_ids) == len(self.groups):
            raise SplitError(
                f"split={self.scheme}: {len(self.assignment)} parts for {len(self.pair_ids)} pairs in "
                f"{len(self.groups)} groups; expected one of each a pair."
            )
        part_of: dict[Hashable, str] = {}
        for group, part in zip(self.groups, self.assignment, strict=True):
            if part == UNUSED:
                continue  # the pairs left over of a group that was cut
            if part not in PARTS:
                raise SplitError(f"split={self.scheme}: unknown part {part!r}, expected one of {', '.join(PARTS)}.")
            if part_of.setdefault(group, str(part)) != part:
                raise SplitError(f"split={self.scheme}: group {group!r} is in both {part_of[group]} and {part}.")
        lines = sorted(f"{pair}\t{part}\n" for pair, part in zip(self.pair_ids, self.assignment, strict=True))
        self.hash = hashlib.sha256("".join(lines).encode()).hexdigest()

    def indices(self, part: str) -> NDArray[np.int64]:
        """Positions of the pairs of one part, ascending."""
        if part not in PARTS:
            raise ValueError(f"Expected `part` to be one of {', '.join(PARTS)} but got {part!r}.")
        return np.flatnonzero(self.assignment == part).astype(np.int64)

    def counts(self) -> dict[str, int]:
        """Number of pairs of every part."""
        return {part: int((self.assignment == part).sum()) for part in PARTS}

    @property
    def test_hash(self) -> str:
        """sha256 over the sorted ids of the test pairs: what two runs must share to be compared pair by pair."""
        lines = sorted(f"{self.pair_ids[index]}\n" for index in self.indices("test"))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def to_frame(self, pairs: pd.DataFrame) -> pd.DataFrame:
        """The table ``pair_id, concept, split`` of the pairs this split was made from."""
        if list(pairs["pair_id"]) != list(self.pair_ids):
            raise SplitError("The pairs given are not those this split was made from; pair ids or their order differ.")
        return pd.DataFrame(
            {
                "pair_id": pairs["pair_id"].to_numpy(dtype=object),
                "concept": pairs["concept"].to_numpy(dtype=object),
                "split": self.assignment.astype(object),
            }
        )


@dataclass
class Folds:
    """All folds of a k-fold split: every pair is tested once, by what was learned from other concepts.

    Attributes:
        splits: one a fold, over the same pairs in the same order.
        fold: int64 [n_pairs], the fold that tests each pair.
        hash: sha256 over the sorted lines ``pair_id<TAB>fold``; it does not depend on ``train_pairs``.
    """

    splits: tuple[Split, ...]
    fold: NDArray[np.int64] = field(init=False)
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        tested = np.stack([split.assignment == "test" for split in self.splits])
        if not (tested.sum(axis=0) == 1).all():
            raise SplitError("The folds do not test every pair exactly once.")
        self.fold = tested.argmax(axis=0).astype(np.int64)
        ids = self.splits[0].pair_ids
        lines = sorted(f"{pair}\t{fold}\n" for pair, fold in zip(ids, self.fold, strict=True))
        self.hash = hashlib.sha256("".join(lines).encode()).hexdigest()

    def counts(self) -> dict[str, int]:
        """The fewest training and validation pairs of a fold, and all pairs as tested."""
        counts = [split.counts() for split in self.splits]
        return {
            "train": min(count["train"] for count in counts),
            "val": min(count["val"] for count in counts),
            "test": len(self.fold),
        }

    def to_frame(self, pairs: pd.DataFrame) -> pd.DataFrame:
        """One row a fold and pair: ``pair_id, concept, split, fold``."""
        return pd.concat(
            [split.to_frame(pairs).assign(fold=fold) for fold, split in enumerate(self.splits)], ignore_index=True
        )


def concept_key(name: str) -> str:
    """One key for all spellings of a concept, so that two sources cannot leak it from train to test.

    Unifies case, Unicode form (NFKC), spaces, hyphens and underscores, and drops the five-digit prefix of THINGS
    folders: ``Aircraft Carrier``, ``aircraft-carrier`` and ``00001_aircraft_carrier`` are one concept. Other digits
    mean something: ``01``, ``747_airliner``, ``chest1`` and ``chest2`` stay themselves, as does ``NA``.

    >>> concept_key("Aircraft Carrier")
    'aircraft_carrier'
    >>> concept_key("00001_aircraft-carrier")
    'aircraft_carrier'
    >>> concept_key("747_airliner")
    '747_airliner'
    """
    return re.sub(r"^\d{5}_(?=.)", "", _fold(name))


def _fold(text: str) -> str:
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", str(text)).casefold())
    return re.sub(r"[\s_\-\u2010-\u2015]+", "_", plain).strip("_") or plain.strip()


def _subject_key(name: str) -> str:
    key = _fold(name)
    return _UNKNOWN_SUBJECT if key in _NO_SUBJECT else key


_KEYS: dict[str, tuple[str, Callable[[str], str]]] = {
    "concept": ("concept", concept_key),
    "kfold": ("concept", concept_key),
    "subject": ("subject", _subject_key),
    "method": ("method", _fold),
    "pair": ("pair_id", str),
}


def make_split(
    pairs: pd.DataFrame,
    scheme: str = "concept",
    fractions: Sequence[float] = (0.70, 0.15, 0.15),
    seed: int = 42,
    folds: int = 5,
    fold: int = 0,
    train_pairs: int | None = None,
) -> Split:
    """Assign every pair to train, val or test.

    ``concept`` shuffles concepts and cuts them at 0.70 and 0.85 of their number, exactly as the authors' code does for
    the same pair ids. ``subject`` and ``method`` have few groups of very different sizes, so cutting their number
    would give odd parts: of 256 seeded draws the one closest to the fractions *in pairs* is kept. Pairs without a
    subject form one group, since two of them may show the same brain, and a warning says how many. ``kfold`` groups by
    concept, balances the folds in pairs, tests on fold ``fold`` and validates on the next one; over all folds every
    pair is tested exactly once. ``pair`` ignores groups, so concepts leak; it is there to measure by how much.

    Args:
        pairs: the corpus' pairs; columns pair_id, method, subject, concept are used.
        scheme: ``concept``, ``subject``, ``method``, ``pair`` or ``kfold``.
        fractions: train, val and test shares, each above 0, sum 1; not used by ``kfold``.
        seed: seed of the shuffle.
        folds: number of folds of ``kfold``, at least 3.
        fold: the test fold of ``kfold``, 0 to ``folds - 1``.
        train_pairs: cut the training part to so many pairs, see :func:`limited`; ``None`` keeps all.

    Returns:
        The split, group-disjoint, with no part empty.

    Raises:
        ConfigError: a setting cannot be used.
        SplitError: the corpus has too few groups for this scheme, and the message says which scheme would work; or the
            training part has fewer than ``train_pairs`` pairs.
    """
    fractions = _checked_fractions(fractions)
    if scheme not in SCHEMES:
        raise ConfigError(f"split={scheme}: expected one of {', '.join(SCHEMES)}.")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise ConfigError(f"split.seed={seed!r}: expected a whole number.")
    ids = [str(pair) for pair in pairs["pair_id"]]
    if len(set(ids)) != len(ids):
        twice = [pair for pair, count in sorted(Counter(ids).items()) if count > 1][:5]
        raise SplitError(f"split={scheme}: pair ids must be unique, found more than once: {', '.join(twice)}.")
    column, key = _KEYS[scheme]
    groups = [key(value) for value in pairs[column]]

    sizes: dict[str, int] = {}
    for _, group in sorted(zip(ids, groups, strict=True)):  # first appearance in the order of pair ids
        sizes[group] = sizes.get(group, 0) + 1
    needed = len(PARTS)
    if scheme == "kfold":
        needed = _checked_folds(folds, fold)
    if len(sizes) < needed:
        raise SplitError(_too_few(pairs, scheme, column, list(sizes), needed))

    unknown = sizes.get(_UNKNOWN_SUBJECT, 0) if scheme == "subject" else 0
    if unknown:
        logger.warning(
            "split=subject: %d of %d pairs have no known subject; they are kept together as one group, and may show "
            "the same brains as pairs of the other groups",
            unknown, len(ids),
        )  # fmt: skip

    if scheme == "kfold":
        part_of = _kfold(sizes, int(seed), folds, fold)
    elif scheme in ("subject", "method"):
        part_of = _balanced(sizes, fractions, int(seed))
    else:
        part_of = _cut(list(sizes), fractions, int(seed))
    split = Split(
        scheme=scheme,
        seed=int(seed),
        assignment=np.array([part_of[group] for group in groups], dtype="<U6"),
        pair_ids=np.array(ids, dtype=object),
        groups=np.array(groups, dtype=object),
        fold=fold if scheme == "kfold" else None,
        folds=folds if scheme == "kfold" else None,
    )
    return split if train_pairs is None else limited(split, pairs, train_pairs)


def make_folds(pairs: pd.DataFrame, folds: int = 5, seed: int = 42, train_pairs: int | None = None) -> Folds:
    """Every fold of ``kfold``; arguments and errors as of :func:`make_split`."""
    _checked_folds(folds, 0)
    return Folds(
        tuple(
            make_split(pairs, "kfold", seed=seed, folds=folds, fold=fold, train_pairs=train_pairs)
            for fold in range(folds)
        )
    )


def limited(split: Split, pairs: pd.DataFrame, train_pairs: int) -> Split:
    """The split with a training part of exactly ``train_pairs`` pairs, and a validation part to go with it.

    Whole concepts are taken in an order that depends on the seed alone until the number is reached; of the last one
    only as many pairs as are still wanted, in order of pair id. So the 25 are among the 50. Validation is cut in the
    same way to a fifth of ``train_pairs``, rounded up and at least 2, where it has more: who has few labels has few to
    stop by, too. What is left out is ``unused``; the test part stays whole.

    Args:
        split: to cut.
        pairs: the corpus' pairs it was made from.
        train_pairs: 2 or more.

    Raises:
        ConfigError: ``train_pairs`` is no such number.
        SplitError: the training part has fewer pairs.
    """
    if isinstance(train_pairs, bool) or not isinstance(train_pairs, (int, np.integer)) or train_pairs < 2:
        raise ConfigError(f"split.train_pairs={train_pairs}: expected a whole number of at least 2, or null for all.")
    have = int((split.assignment == "train").sum())
    if have < train_pairs:
        where = f" of fold {split.fold}" if split.fold is not None else ""
        raise SplitError(
            f"split.train_pairs={train_pairs}: the training part{where} has {have} pairs; ask for at most {have}, or "
            "null for all."
        )
    concepts = [concept_key(value) for value in pairs["concept"]]
    assignment = split.assignment.copy()
    for part, wanted in (("train", int(train_pairs)), ("val", max(2, math.ceil(train_pairs / 5)))):
        rows = split.indices(part).tolist()
        names = sorted({concepts[row] for row in rows})
        random.Random(split.seed).shuffle(names)
        place = {name: position for position, name in enumerate(names)}
        rows.sort(key=lambda row: (place[concepts[row]], split.pair_ids[row]))
        assignment[rows[wanted:]] = UNUSED
    return replace(split, assignment=assignment)


def _cut(groups: list[str], fractions: tuple[float, float, float], seed: int) -> dict[str, str]:
    """Shuffle and cut by number of groups, as the authors' code."""
    random.Random(seed).shuffle(groups)
    n = len(groups)
    first = round(n * fractions[0])
    second = round(n * (fractions[0] + fractions[1]))
    # Below six groups the authors' cuts leave a part empty (an error there); give it one group instead.
    first = min(max(first, 1), n - 2)
    second = min(max(second, first + 1), n - 1)
    return {group: PARTS[(i >= first) + (i >= second)] for i, group in enumerate(groups)}


def _balanced(sizes: dict[str, int], fractions: tuple[float, float, float], seed: int) -> dict[str, str]:
    """The best of many seeded draws; in each, a group goes where most pairs are still wanted."""
    rng = random.Random(seed)
    targets = [fraction * sum(sizes.values()) for fraction in fractions]
    groups = list(sizes)
    best: tuple[float, dict[str, str]] | None = None
    for _ in range(_DRAWS):
        rng.shuffle(groups)
        filled = [0, 0, 0]
        part_of: dict[str, str] = {}
        for done, group in enumerate(groups):
            empty = [part for part in range(3) if filled[part] == 0]
            choices = empty if len(groups) - done <= len(empty) else [0, 1, 2]
            part = max(choices, key=lambda i: targets[i] - filled[i])
            filled[part] += sizes[group]
            part_of[group] = PARTS[part]
        off = sum(abs(target - count) for target, count in zip(targets, filled, strict=True))
        if best is None or off < best[0] - 1e-9:
            best = (off, part_of)
    assert best is not None  # _DRAWS is positive
    return best[1]


def _kfold(sizes: dict[str, int], seed: int, folds: int, fold: int) -> dict[str, str]:
    groups = list(sizes)
    random.Random(seed).shuffle(groups)
    groups.sort(key=lambda group: -sizes[group])  # largest first into the emptiest fold; ties stay shuffled
    filled = [0] * folds
    part_of = {}
    for group in groups:
        k = filled.index(min(filled))
        filled[k] += sizes[group]
        part_of[group] = "test" if k == fold else "val" if k == (fold + 1) % folds else "train"
    return part_of


def _checked_fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    try:
        values = [float(value) for value in fractions]
    except (TypeError, ValueError):
        values = []
    good = len(values) == 3 and all(math.isfinite(v) and v > 0 for v in values) and abs(sum(values) - 1) < 1e-6
    if not good:
        raise ConfigError(
            f"split.fractions={fractions}: expected three numbers above 0 for train, val and test that sum to 1, "
            "such as [0.70,0.15,0.15]."
        )
    return values[0], values[1], values[2]


def _checked_folds(folds: int, fold: int) -> int:
    if isinstance(folds, bool) or not isinstance(folds, (int, np.integer)) or folds < 3:
        raise ConfigError(f"split.folds={folds}: expected a whole number of at least 3 (train, val and test folds).")
    if isinstance(fold, bool) or not isinstance(fold, (int, np.integer)) or not 0 <= fold < folds:
        raise ConfigError(f"split.fold={fold}: expected a whole number from 0 to {folds - 1} (split.folds={folds}).")
    return int(folds)


def _too_few(pairs: pd.DataFrame, scheme: str, column: str, groups: list[str], needed: int) -> str:
    counts = {}
    for other in ("concept", "method", "subject", "pair"):
        name, key = _KEYS[other]
        counts[other] = len({key(value) for value in pairs[name]})
    ways = [f"split={other}" for other, count in counts.items() if other != scheme and count >= len(PARTS)]
    if scheme == "kfold" and len(groups) >= 3:
        ways.insert(0, f"split.folds={len(groups)}")
    word = "pair" if column == "pair_id" else column
    names = f" ({', '.join(map(repr, groups[:3]))})" if column != "pair_id" and 0 < len(groups) <= 3 else ""
    have = ", ".join(f"{count} {other}{'' if count == 1 else 's'}" for other, count in counts.items())
    advice = f"use {' or '.join(ways)}" if ways else "add pairs"
    return (
        f"split={scheme}: {len(groups)} {word}{'' if len(groups) == 1 else 's'}{names} cannot be divided into "
        f"{needed} {'folds' if scheme == 'kfold' else 'parts'}; the corpus has {have}: {advice}."
    )
