from __future__ import annotations

import itertools
import statistics
import warnings

import numpy as np
import pytest

from bcs_lab.consensus import WEIGHT_SCHEMES, agreement_weight, consensus, select_teachers, teacher_answers
from bcs_lab.errors import ConfigError

TEACHERS = ("literal", "conservative", "lenient", "decisive")
GAP = np.nan


def cell(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32).reshape(1, -1, 1)


@pytest.fixture
def random_answers() -> np.ndarray:
    rng = np.random.default_rng(0)
    answers = rng.choice([0.0, 0.5, 1.0], size=(200, 5, 12)).astype(np.float32)
    answers[rng.random(answers.shape) < 0.3] = np.nan
    answers[0] = np.nan
    return answers


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (1, TEACHERS[:1]),
        (3, TEACHERS[:3]),
        (np.int64(4), TEACHERS),
        ("4", TEACHERS),
        ("all", TEACHERS),
        ("lenient", ("lenient",)),
        (["lenient", "literal"], ("literal", "lenient")),
        (("decisive",), ("decisive",)),
    ],
)
def test_select_teachers(wanted: object, expected: tuple[str, ...]) -> None:
    assert select_teachers(TEACHERS, wanted) == expected  # type: ignore[arg-type]


def test_a_teacher_may_be_called_like_a_number_or_all() -> None:
    assert select_teachers(["7", "all", "b"], "7") == ("7",)
    assert select_teachers(["7", "all", "b"], "all") == ("all",)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (0, "at least one"),
        (-2, "at least one"),
        (5, "that many"),
        ("5", "that many"),
        (True, "whole number"),
        (2.0, "whole number"),
        (None, "whole number"),
        (object(), "whole number"),
        ([], "empty"),
        ("siglip", "no teacher of that name"),
        (["literal", "Lenient"], "'Lenient'"),
        (["literal", "literal"], "more than once"),
        ([1, 2], "no teacher called '1', '2'"),
    ],
)
def test_select_teachers_says_what_was_asked_and_what_there_is(wanted: object, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        select_teachers(TEACHERS, wanted)  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.startswith("teachers=")
    assert reason in message
    assert "literal, conservative, lenient, decisive" in message


def test_all_of_no_teachers_is_an_error() -> None:
    with pytest.raises(ConfigError, match="at least one annotated teacher"):
        select_teachers([], "all")


def test_teacher_answers_picks_columns() -> None:
    answers = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    assert np.array_equal(teacher_answers(answers, TEACHERS, ("literal", "lenient")), answers[:, [0, 2]])


def test_consensus_equals_the_standard_library(random_answers: np.ndarray) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = consensus(random_answers)
    assert found.dtype == np.float32
    for i, q in itertools.product(range(found.shape[0]), range(found.shape[1])):
        present = [float(v) for v in random_answers[i, :, q] if not np.isnan(v)]
        assert np.isnan(found[i, q]) if not present else found[i, q] == statistics.median(present)
    assert np.isnan(found[0]).all()


@pytest.mark.parametrize(
    ("answers", "median"),
    [
        ((0, 0, 0.5, 1), 0.25),
        ((0, 0.5, 1, 1), 0.75),
        ((0, 1, 0.5), 0.5),
        ((GAP, 1, GAP, 0.5), 0.75),
        ((GAP, GAP, 1), 1.0),
    ],
)
def test_medians(answers: tuple[float, ...], median: float) -> None:
    assert consensus(cell(*answers))[0, 0] == median


def test_variance_weight_is_eq_18(random_answers: np.ndarray) -> None:
    weight = agreement_weight(random_answers, "variance")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = 1 - np.nanvar(random_answers.astype(np.float64), axis=1)
    missing = np.isnan(random_answers).all(axis=1)
    np.testing.assert_allclose(weight[~missing], expected[~missing], atol=1e-7)
    assert (weight[missing] == 0).all()
    assert weight.dtype == np.float32


@pytest.mark.parametrize(
    ("answers", "variance", "step"),
    [
        ((0, 0, 0, 0), 1.0, 1.0),
        ((0, 0, 0, 1), 0.8125, 0.75),
        ((0, 0, 1, 1), 0.75, 0.75),
        ((0, 0, 0.5, 0.5), 0.9375, 0.75),
        ((0, 0, 0.5, 1), 1 - 0.171875, 0.75),
        ((0, 0.5, 1), 1 - 1 / 6, 0.40),
        ((0, 1), 0.75, 0.40),
        ((1, 1), 1.0, 1.0),
        ((0.5,), 1.0, 1.0),
        ((GAP, 0, GAP), 1.0, 1.0),
        ((0, GAP, 0.5), 0.9375, 0.40),
        ((GAP, GAP), 0.0, 0.0),
    ],
)
def test_weights_by_hand(answers: tuple[float, ...], variance: float, step: float) -> None:
    assert agreement_weight(cell(*answers), "variance")[0, 0] == pytest.approx(variance)
    assert agreement_weight(cell(*answers), "step")[0, 0] == pytest.approx(step)
    assert agreement_weight(cell(*answers), "uniform")[0, 0] == (0.0 if np.isnan(answers).all() else 1.0)


def test_step_never_reaches_its_lowest_value_with_four_teachers() -> None:
    grid = np.array(list(itertools.product([0, 0.5, 1], repeat=4)), dtype=np.float32)[:, :, None]
    assert set(np.unique(agreement_weight(grid, "step"))) == {np.float32(0.75), np.float32(1.0)}


def test_unknown_scheme_names_the_key_and_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"consensus\.weight=var: expected one of variance, step, uniform"):
        agreement_weight(cell(0, 1), "var")


@pytest.mark.parametrize("scheme", WEIGHT_SCHEMES)
def test_no_pairs_and_no_teachers(scheme: str) -> None:
    assert consensus(np.empty((0, 4, 12))).shape == (0, 12)
    assert agreement_weight(np.empty((0, 4, 12)), scheme).shape == (0, 12)
    assert np.isnan(consensus(np.empty((2, 0, 12)))).all()
    assert (agreement_weight(np.empty((2, 0, 12)), scheme) == 0).all()


def test_wrong_shape() -> None:
    with pytest.raises(ValueError, match="n_pairs, n_teachers, n_questions"):
        consensus(np.zeros((3, 4)))
