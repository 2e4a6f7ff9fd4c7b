from __future__ import annotations

import doctest
import hashlib
import itertools
import random
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
from small import make_pairs

from bcs_lab import split as module
from bcs_lab.errors import ConfigError, SplitError
from bcs_lab.split import PARTS, SCHEMES, Split, concept_key, make_split


def frame(rows: Sequence[tuple[str, str, str, str]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["pair_id", "method", "subject", "concept"], dtype=object)


def paper_like(concepts: int, extra: int = 0) -> pd.DataFrame:
    rows = []
    for c, method, subject in itertools.product(
        range(concepts), ("ATM", "ENIGMA", "dreamdiffusion"), ("sub-01", "sub-02")
    ):
        name = f"concept_{(c * 101) % concepts}"
        rows.append((f"{method}__{subject}__{name}__rank1__cand{c % 4}", method, subject, name))
    for e in range(extra):
        rows.append((f"mindvis__extra__Extra{e}__rank_unknown__cand1__row{e}", "mindvis", "na", f"Extra{e}"))
    rows.sort()
    return frame(rows)


def reference_split(pairs: pd.DataFrame, seed: int = 42) -> dict[str, str]:
    """Written anew from the description of the authors' code: a list of distinct concepts, shuffled and cut."""
    records = pairs.sort_values("pair_id").to_dict("records")
    names: list[str] = []
    for record in records:
        if record["concept"] not in names:
            names.append(record["concept"])
    random.Random(seed).shuffle(names)
    one, two = int(round(len(names) * 0.70)), int(round(len(names) * (0.70 + 0.15)))  # noqa: RUF046
    train, val = set(names[:one]), set(names[one:two])
    return {
        r["pair_id"]: "train" if r["concept"] in train else "val" if r["concept"] in val else "test" for r in records
    }


@pytest.mark.parametrize(
    ("concepts", "extra", "sizes"), [(200, 0, (140, 30, 30)), (199, 0, (139, 30, 30)), (200, 46, (172, 37, 37))]
)
def test_concept_split_is_the_published_one(concepts: int, extra: int, sizes: tuple[int, int, int]) -> None:
    pairs = paper_like(concepts, extra)
    split = make_split(pairs, "concept")
    assert dict(zip(pairs["pair_id"], split.assignment, strict=True)) == reference_split(pairs)
    by_part = pairs.groupby(split.assignment)["concept"].nunique()
    assert tuple(int(by_part[part]) for part in PARTS) == sizes


@pytest.mark.parametrize("concepts", range(6, 60))
def test_concept_split_is_the_published_one_for_every_number_of_concepts(concepts: int) -> None:
    pairs = paper_like(concepts)
    split = make_split(pairs, "concept", seed=concepts)
    assert dict(zip(pairs["pair_id"], split.assignment, strict=True)) == reference_split(pairs, seed=concepts)


@pytest.mark.parametrize("concepts", [3, 4, 5])
def test_few_concepts_still_fill_every_part(concepts: int) -> None:
    assert min(make_split(paper_like(concepts), "concept").counts().values()) > 0


@pytest.mark.parametrize(
    "spelling",
    [
        "aircraft carrier",
        "aircraft_carrier",
        "aircraft-carrier",
        "Aircraft  Carrier ",
        "00001_aircraft_carrier",
        "00001 Aircraft-Carrier",
        "ＡＩＲＣＲＡＦＴ＿carrier",
        "aircraft\u2010carrier",
        "aircraft\u00a0carrier",
    ],
)
def test_spellings_of_one_concept(spelling: str) -> None:
    assert concept_key(spelling) == "aircraft_carrier"


def test_composed_and_decomposed_accents_are_one() -> None:
    assert concept_key("cafe\u0301") == concept_key("café") == concept_key("CAFÉ")


def test_what_must_stay_apart() -> None:
    names = [
        "01",
        "1",
        "NA",
        "null",
        "747_airliner",
        "airliner",
        "chest",
        "chest1",
        "chest2",
        "00001",
        "00002",
        "-",
        "_",
    ]
    assert len({concept_key(name) for name in names}) == len(names)
    assert concept_key("01") == "01"
    assert concept_key("747_airliner") == "747_airliner"
    assert concept_key("00001") == "00001"


def test_spellings_of_one_concept_never_part() -> None:
    rows = [(f"a{i}", "A", "na", name) for i, name in enumerate(["Alarm Clock", "00003_alarm_clock", "alarm-clock"])]
    rows += [(f"b{i}", "B", "na", f"thing{i}") for i in range(30)]
    for seed in range(20):
        split = make_split(frame(rows), "concept", seed=seed)
        assert len(set(split.assignment[:3])) == 1


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("seed", [0, 42])
def test_every_scheme_is_disjoint_seeded_and_independent_of_row_order(scheme: str, seed: int) -> None:
    pairs = make_pairs(120)
    split = make_split(pairs, scheme, seed=seed)
    assert min(split.counts().values()) > 0
    assert sum(split.counts().values()) == 120
    column = {"kfold": "concept", "pair": "pair_id"}.get(scheme, scheme)
    assert (pairs.groupby(column)["pair_id"].size() > 0).all()
    assert pd.Series(split.assignment).groupby(pairs[column].to_numpy()).nunique().max() == 1
    assert make_split(pairs, scheme, seed=seed).hash == split.hash
    shuffled = pairs.sample(frac=1, random_state=1).reset_index(drop=True)
    assert make_split(shuffled, scheme, seed=seed).hash == split.hash
    others = {make_split(pairs, scheme, seed=other).hash for other in range(10)}
    assert len(others) > 3


BRAINBANK_METHODS = (106, 59, 35, 25, 14, 14, 12, 11, 8, 8, 7, 7, 5)


@pytest.mark.parametrize("seed", range(8))
def test_methods_of_very_different_sizes_come_close_to_the_fractions_in_pairs(seed: int) -> None:
    rows = []
    for m, size in enumerate(BRAINBANK_METHODS):
        rows += [(f"m{m:02d}_{i:03d}", f"Method-{m}", "na", f"c{i}") for i in range(size)]
    counts = make_split(frame(rows), "method", seed=seed).counts()
    assert abs(counts["train"] - 0.70 * 311) <= 4
    assert abs(counts["val"] - 0.15 * 311) <= 4
    assert abs(counts["test"] - 0.15 * 311) <= 4


def test_one_huge_group_leaves_the_others_for_val_and_test() -> None:
    rows = [(f"a{i}", "A", s, "c") for i, s in enumerate(["sub-01"] * 50 + ["sub-02", "sub-03"])]
    counts = make_split(frame(rows), "subject").counts()
    assert counts == {"train": 50, "val": 1, "test": 1}


def test_pairs_without_a_subject_are_one_group_and_spellings_of_subjects_are_unified() -> None:
    subjects = ["na", "NA", "", "n/a", "unknown", "sub-01", "Sub_01", "sub 01", "sub-02", "sub-03", "sub-04"]
    split = make_split(frame([(f"p{i:02d}", "A", s, f"c{i}") for i, s in enumerate(subjects)]), "subject")
    assert len(set(split.assignment[:5])) == 1
    assert len(set(split.assignment[5:8])) == 1


def test_unknown_subjects_are_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    rows = [(f"p{i}", "A", s, f"c{i}") for i, s in enumerate(["na", "NA", "sub-01", "sub-02", "sub-03"])]
    make_split(frame(rows), "subject")
    (warning,) = caplog.messages
    for part in ("2 of 5 pairs", "no known subject", "together as one group", "same brains"):
        assert part in warning
    caplog.clear()
    make_split(frame(rows), "concept")
    make_split(frame(rows[2:]), "subject")
    assert caplog.messages == []


@pytest.mark.parametrize("folds", [3, 5, 7])
def test_every_pair_is_tested_once_and_validated_once(folds: int) -> None:
    pairs = make_pairs(140, concepts=23)
    splits = [make_split(pairs, "kfold", folds=folds, fold=k) for k in range(folds)]
    tested = np.sum([split.assignment == "test" for split in splits], axis=0)
    validated = np.sum([split.assignment == "val" for split in splits], axis=0)
    assert (tested == 1).all()
    assert (validated == 1).all()
    for k, split in enumerate(splits):
        assert np.array_equal(split.assignment == "val", splits[(k + 1) % folds].assignment == "test")
        assert split.fold == k
        assert split.folds == folds
    sizes = [split.counts()["test"] for split in splits]
    assert max(sizes) - min(sizes) <= pairs["concept"].value_counts().max()


def test_hash_is_over_sorted_lines_of_id_and_part() -> None:
    pairs = make_pairs(30)
    split = make_split(pairs)
    lines = sorted(f"{i}\t{p}" for i, p in zip(pairs["pair_id"], split.assignment, strict=True))
    assert split.hash == hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


def test_frame_and_indices() -> None:
    pairs = make_pairs(30)
    split = make_split(pairs)
    table = split.to_frame(pairs)
    assert list(table.columns) == ["pair_id", "concept", "split"]
    assert list(table["split"]) == list(split.assignment)
    parts = [split.indices(part) for part in PARTS]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(30))
    assert all((np.diff(part) > 0).all() for part in parts)
    with pytest.raises(ValueError, match="train, val, test"):
        split.indices("validation")
    with pytest.raises(SplitError, match="not those"):
        split.to_frame(pairs.iloc[1:])


def test_a_leak_cannot_be_constructed() -> None:
    ids = np.array(["a", "b", "c"], dtype=object)
    with pytest.raises(SplitError, match="group 'x' is in both train and test"):
        Split("concept", 0, np.array(["train", "test", "val"]), ids, np.array(["x", "x", "y"], dtype=object))
    with pytest.raises(SplitError, match="unknown part"):
        Split("concept", 0, np.array(["train", "dev", "val"]), ids, ids)
    with pytest.raises(SplitError, match="one of each a pair"):
        Split("concept", 0, np.array(["train"]), ids, ids)


def test_one_concept_names_counts_and_ways_out() -> None:
    pairs = make_pairs(20, concepts=1)
    with pytest.raises(SplitError) as caught:
        make_split(pairs, "concept")
    message = str(caught.value)
    assert "split=concept: 1 concept ('concept_0') cannot be divided into 3 parts" in message
    assert "6 methods, 8 subjects, 20 pairs" in message
    assert "split=method or split=subject or split=pair" in message


@pytest.mark.parametrize("scheme", SCHEMES)
def test_two_groups_are_too_few(scheme: str) -> None:
    pairs = make_pairs(2, concepts=2, methods=2, subjects=2)
    with pytest.raises(SplitError, match="add pairs"):
        make_split(pairs, scheme)
    with pytest.raises(SplitError, match="0 pairs: add pairs"):
        make_split(pairs.iloc[:0], scheme)


def test_fewer_concepts_than_folds_offers_fewer_folds() -> None:
    with pytest.raises(SplitError, match=r"split\.folds=4"):
        make_split(make_pairs(20, concepts=4), "kfold", folds=5)


@pytest.mark.parametrize(
    "fractions",
    [(0.7, 0.3), (0.7, 0.15, 0.2), (1.0, 0.0, 0.0), (0.7, -0.1, 0.4), (float("nan"), 0.5, 0.5), ("a",), 0.7],
)
def test_fractions_are_checked(fractions: Sequence[float]) -> None:
    with pytest.raises(ConfigError, match=r"split\.fractions="):
        make_split(make_pairs(), fractions=fractions)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"scheme": "random"}, "split=random: expected one of concept, subject, method, pair, kfold"),
        ({"scheme": "kfold", "folds": 2}, "split.folds=2"),
        ({"scheme": "kfold", "fold": 5}, "split.fold=5"),
        ({"scheme": "kfold", "fold": -1}, "split.fold=-1"),
        ({"seed": "42"}, "split.seed='42'"),
    ],
)
def test_settings_are_checked(settings: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        make_split(make_pairs(), **settings)  # type: ignore[arg-type]


def test_duplicate_pair_ids() -> None:
    with pytest.raises(SplitError, match="more than once: a"):
        make_split(frame([("a", "m", "s", "c"), ("a", "m", "s", "d"), ("b", "m", "s", "e")]))


def test_odd_fractions_are_met_in_concepts() -> None:
    split = make_split(paper_like(100), fractions=(0.5, 0.2, 0.3))
    counts = split.counts()
    assert (counts["train"], counts["val"], counts["test"]) == (300, 120, 180)


def test_examples() -> None:
    assert doctest.testmod(module) == (0, 3)
