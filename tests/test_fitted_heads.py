"""Heads that fit themselves, against scikit-learn; and the networks that start from something known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from small import make_data

from bcs_lab.errors import ConfigError, CorpusError
from bcs_lab.evaluate import cosine_line, cosine_scores
from bcs_lab.heads import HEADS, NO_GROUP, ExtraRows, FittedHead, TrainingRows, build_head
from bcs_lab.heads.fitted import concept_folds, resample
from bcs_lab.heads.stack import convex_weights

FITTED = [name for name, head in HEADS.items() if head.FITS_ITSELF]
QUICK: dict[str, dict[str, Any]] = {
    "ridge": {"alpha": [1.0, 10.0]},
    "trees": {"trees": 12},
    "boosting": {"trees": 12, "min_leaf": 4, "learning_rate": 0.2},
    "kernel": {"alpha": [0.1, 1.0], "gamma": 0.5},
    "stack": {"of": [{"ridge": {"alpha": 3.0}}, {"trees": {"trees": 5}}], "folds": 3},
}
Array = np.ndarray


def rows(n: int = 40, dim: int = 7, questions: int = 4, gaps: bool = True, seed: int = 0) -> tuple[Array, ...]:
    """Features, answers with or without gaps, weights and concepts of three or so pairs."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, dim)).astype(np.float32) * rng.uniform(0.1, 20, dim).astype(np.float32) + 3
    lean = (x - x.mean(0)) / x.std(0) @ rng.normal(size=(dim, questions))
    y = np.clip(np.round(4 * (0.5 + 0.2 * lean)) / 4, 0, 1).astype(np.float32)
    weight = rng.uniform(0.75, 1.0, y.shape).astype(np.float32)
    if gaps:
        y[rng.random(n) < 0.3, 1:] = np.nan
        y[rng.random(n) < 0.2, questions - 1] = np.nan
        weight[np.isnan(y)] = 0.0
    return x, y, weight, np.arange(n) // 3


def fitted(name: str, data: tuple[Array, ...], seed: int = 7, extra: ExtraRows | None = None, **settings: Any) -> Any:
    x, y, weight, groups = data
    head = build_head(name, x.shape[1], y.shape[1], **(settings or QUICK[name]))
    assert isinstance(head, FittedHead)
    head.fit(x, y, weight, seed, groups=groups, extra=extra)
    return head


def predict(head: Any, x: Array) -> Array:
    with torch.inference_mode():
        return head(torch.from_numpy(np.asarray(x, dtype=np.float32))).prediction.numpy()


def standardised(x: Array, like: Array, clip: float) -> Array:
    return np.clip((x.astype(float) - like.astype(float).mean(0)) / like.astype(float).std(0), -clip, clip)


# --- against scikit-learn ---


@pytest.mark.parametrize("dim", [7, 60])
def test_ridge_is_scikit_learns(dim: int) -> None:
    x, y, weight, _ = data = rows(dim=dim)
    head = fitted("ridge", data, alpha=5.0, clip=1.5, bootstrap=False)
    new = rows(30, dim, seed=1)[0]
    z, z_new = standardised(x, x, 1.5), standardised(new, x, 1.5)
    for question in range(4):
        used = weight[:, question] > 0
        model = Ridge(5.0).fit(z[used], y[used, question], weight[used, question])
        np.testing.assert_allclose(predict(head, new)[:, question], np.clip(model.predict(z_new), 0, 1), atol=1e-5)


def test_kernel_is_scikit_learns_around_the_mean() -> None:
    x, y, weight, _ = data = rows()
    head = fitted("kernel", data, alpha=0.05, gamma=0.7, bootstrap=False)
    new = rows(30, seed=1)[0]
    z, z_new = standardised(x, x, 4.0), standardised(new, x, 4.0)
    for question in range(4):
        used = weight[:, question] > 0
        mean = np.average(y[used, question], weights=weight[used, question])
        model = KernelRidge(alpha=0.05, kernel="rbf", gamma=0.7 / 7)
        model.fit(z[used], y[used, question] - mean, weight[used, question])
        expected = np.clip(model.predict(z_new) + mean, 0, 1)
        np.testing.assert_allclose(predict(head, new)[:, question], expected, atol=1e-5)


@pytest.mark.parametrize("joint", [True, False])
def test_trees_are_scikit_learns(joint: bool) -> None:
    x, y, weight, _ = data = rows(80)
    head = fitted("trees", data, trees=15, min_leaf=2, max_features=0.5, joint=joint)
    new = np.concatenate([rows(300, seed=1)[0], x])
    # rows 0 has no gap, 1 and 2 have the same ones, 3 has more
    for questions in ([0], [1, 2], [3]) if joint else ([0], [1], [2], [3]):
        used = weight[:, questions[0]] > 0
        model = ExtraTreesRegressor(15, min_samples_leaf=2, max_features=0.5, random_state=7)
        answers = y[np.ix_(used, questions)]
        model.fit(x[used], answers.squeeze(1) if len(questions) == 1 else answers, weight[used][:, questions].mean(1))
        np.testing.assert_allclose(
            predict(head, new)[:, questions], model.predict(new).reshape(len(new), -1), atol=1e-6
        )


def test_boosting_is_scikit_learns() -> None:
    x, y, weight, _ = data = rows(80)
    settings = {"trees": 20, "learning_rate": 0.1, "max_leaves": 5, "min_leaf": 4, "max_features": 0.5, "l2": 0.3}
    head = fitted("boosting", data, **settings)
    new = np.concatenate([rows(300, seed=1)[0], x])
    for question in range(4):
        used = weight[:, question] > 0
        model = HistGradientBoostingRegressor(
            max_iter=20, learning_rate=0.1, max_leaf_nodes=5, min_samples_leaf=4, max_features=0.5,
            l2_regularization=0.3, early_stopping=False, random_state=7,
        )  # fmt: skip
        model.fit(x[used], y[used, question], weight[used, question])
        np.testing.assert_allclose(predict(head, new)[:, question], np.clip(model.predict(new), 0, 1), atol=1e-6)


def test_a_feature_on_a_threshold_goes_where_scikit_learn_sends_it() -> None:
    """Thresholds are kept in float32; values just at and beside every one of them must not change sides."""
    x, y, weight, _ = data = rows(60, dim=2, gaps=False)
    head = fitted("trees", data, trees=20, min_leaf=1, max_features=1.0)
    model = ExtraTreesRegressor(20, min_samples_leaf=1, max_features=1.0, random_state=7).fit(x, y, weight.mean(1))
    edges = np.concatenate([e.tree_.threshold[e.tree_.feature >= 0] for e in model.estimators_]).astype(np.float32)
    near = np.concatenate([edges, np.nextafter(edges, np.float32(99)), np.nextafter(edges, np.float32(-99))])
    new = np.stack([near, near[::-1]], axis=1)
    np.testing.assert_allclose(predict(head, new), model.predict(new), atol=1e-6)


def test_members_differ_by_a_bootstrap_of_whole_concepts() -> None:
    x, y, weight, groups = data = rows()
    drawn = resample(TrainingRows(x, y, weight, groups), seed=3)
    times = np.nanmean(np.where(weight > 0, drawn.weight / np.where(weight > 0, weight, 1), np.nan), axis=1)
    of_concept = [np.unique(times[groups == concept].round(4)) for concept in np.unique(groups)]
    assert all(len(values) == 1 for values in of_concept)
    assert sum(float(values[0]) for values in of_concept) == len(of_concept)
    assert {0.0, 1.0, 2.0} <= {float(values[0]) for values in of_concept}
    # the ridge of a member is that of its drawn rows, each as often as it came
    often = np.repeat(np.arange(len(x)), times.round().astype(int))
    z = standardised(x, x, 4.0)
    head = fitted("ridge", data, seed=3, alpha=5.0)
    for question in range(4):
        used = often[weight[often, question] > 0]
        model = Ridge(5.0).fit(z[used], y[used, question], weight[used, question])
        np.testing.assert_allclose(predict(head, x)[:, question], np.clip(model.predict(z), 0, 1), atol=1e-5)


@pytest.mark.parametrize("name", ["ridge", "kernel"])
def test_the_penalty_is_chosen_on_held_out_concepts(name: str) -> None:
    x, y, _, groups = rows(60, gaps=False)
    y = np.clip(y + np.random.default_rng(1).normal(size=y.shape), 0, 1).astype(np.float32)
    weight = np.ones_like(y)
    options = [0.01, 3.0, 300.0]
    errors = []
    for alpha in options:
        total = 0.0
        for held in concept_folds(groups, 4, seed=0):
            z, z_held = (standardised(part, x, 4.0) for part in (x[~held], x[held]))
            mean = y[~held].mean(0)
            model = Ridge(alpha) if name == "ridge" else KernelRidge(alpha=alpha, kernel="rbf", gamma=0.5 / 7)
            model.fit(z, y[~held] - mean)
            total += float(((np.clip(model.predict(z_held) + mean, 0, 1) - y[held]) ** 2).sum())
        errors.append(total)
    best = options[int(np.argmin(errors))]
    assert best != options[0], errors  # else the test would also pass without a choice
    extra = {"gamma": 0.5} if name == "kernel" else {}
    chosen, alone = (
        fitted(name, (x, y, weight, groups), alpha=alpha, folds=4, bootstrap=False, **extra)
        for alpha in (options, best)
    )
    np.testing.assert_array_equal(predict(chosen, x), predict(alone, x))


# --- what all of them must do ---


@pytest.mark.parametrize("name", FITTED)
def test_same_seed_same_head_and_members_differ(name: str) -> None:
    data = rows()
    a, b, other = (fitted(name, data, seed=seed) for seed in (7, 7, 8))
    assert a.state_dict().keys() == b.state_dict().keys()
    assert all(torch.equal(a.state_dict()[key], b.state_dict()[key]) for key in a.state_dict())
    assert not np.array_equal(predict(a, data[0]), predict(other, data[0]))


@pytest.mark.parametrize("name", FITTED)
def test_it_learns_and_stays_in_range(name: str) -> None:
    x, y, weight, groups = rows(120, gaps=False)
    head = fitted(name, (x, y, weight, groups))
    found = predict(head, x)
    assert found.shape == y.shape
    assert found.dtype == np.float32
    assert ((found >= 0) & (found <= 1)).all()
    assert np.abs(found - y).mean() < 0.7 * np.abs(y - y.mean(0)).mean()
    wild = predict(head, 1e6 * np.ones((1, 7)))
    assert ((wild >= 0) & (wild <= 1)).all()
    assert predict(head, x[:0]).shape == (0, 4)


@pytest.mark.parametrize("name", FITTED)
def test_cells_of_weight_0_are_not_learned_from(name: str) -> None:
    x, y, weight, groups = rows()
    head = fitted(name, (x, y, weight, groups))
    other = np.where(weight > 0, y, 1.0)  # an answer that nobody trusts
    again = fitted(name, (x, other, weight, groups))
    assert np.array_equal(predict(head, x), predict(again, x))
    full = fitted(name, (x, other, np.ones_like(weight), groups))
    assert not np.array_equal(predict(head, x), predict(full, x))


@pytest.mark.parametrize("name", FITTED)
def test_agreement_weights_count(name: str) -> None:
    x, y, weight, groups = rows(gaps=False)
    trusted = np.where(np.arange(len(x)) % 2 == 0, 1.0, 1e-3)[:, None] * np.ones_like(weight)
    wrong = y.copy()
    wrong[1::2] = 1 - wrong[1::2]
    found = predict(fitted(name, (x, wrong, trusted, groups)), x[::2])
    even = predict(fitted(name, (x, wrong, np.ones_like(weight), groups)), x[::2])
    assert np.abs(found - y[::2]).mean() < np.abs(even - y[::2]).mean()


@pytest.mark.parametrize("name", FITTED)
def test_a_question_without_answers_gets_the_mean_of_all(name: str) -> None:
    x, y, weight, groups = rows(gaps=False)
    y[:, 2], weight[:, 2] = np.nan, 0.0
    found = predict(fitted(name, (x, y, weight, groups)), x)[:, 2]
    others = [0, 1, 3]
    np.testing.assert_allclose(found, np.average(y[:, others], weights=weight[:, others]), atol=1e-5)


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_few_rows(name: str, n: int) -> None:
    x, y, weight, groups = (part[:n] for part in rows(gaps=False))
    found = predict(fitted(name, (x, y, weight, groups)), rows()[0])
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", FITTED)
def test_extra_rows_are_learned_from(name: str) -> None:
    x, y, weight, groups = rows(gaps=False)
    far = np.tile(x.mean(0) + 3 * x.std(0), (20, 1)).astype(np.float32)
    none = np.zeros((20, 4), dtype=np.float32)
    before = predict(fitted(name, (x, np.maximum(y, 0.5), weight, groups)), far[:1]).mean()
    after = predict(
        fitted(name, (x, np.maximum(y, 0.5), weight, groups), extra=ExtraRows(far, none, none + 1)), far[:1]
    ).mean()
    assert after < before - 0.1


def test_extra_rows_belong_to_no_fold_and_no_draw() -> None:
    groups = np.array([0, 0, 1, 1, 2, NO_GROUP, NO_GROUP])
    folds = concept_folds(groups, 5, seed=1)
    assert len(folds) == 3
    assert np.array_equal(np.sum(folds, axis=0), [1, 1, 1, 1, 1, 0, 0])
    assert all(len(np.unique(groups[held])) == 1 for held in folds)
    assert concept_folds(groups[-3:], 5, seed=1) == []
    cells = np.ones((7, 2))
    for seed in range(5):
        drawn = resample(TrainingRows(cells, cells, cells, groups), seed)
        assert (drawn.weight[-2:] == 1).all()
        assert drawn.weight[[0, 2, 4], 0].sum() == 3


def test_rows_that_do_not_fit() -> None:
    x, y, weight, groups = rows()
    head = build_head("ridge", 7, 4)
    assert isinstance(head, FittedHead)
    with pytest.raises(CorpusError, match=r"Expected features \[n, 7\]"):
        head.fit(x[:, :6], y, weight, 7)
    with pytest.raises(CorpusError, match="and groups"):
        head.fit(x, y, weight, 7, groups=groups[:3])
    with pytest.raises(CorpusError, match="no answered question"):
        head.fit(x, np.full_like(y, np.nan), weight, 7)
    x[3, 2] = np.nan
    with pytest.raises(CorpusError, match="1 features of training pairs are not finite"):
        head.fit(x, y, weight, 7)


@pytest.mark.parametrize("name", FITTED)
def test_a_head_is_its_state(name: str) -> None:
    """Shapes come from the state; nothing else is needed, and what does not fit is refused."""
    data = rows()
    head = fitted(name, data)
    state = {key: value.clone() for key, value in head.state_dict().items()}
    again = build_head(name, 7, 4, **QUICK[name])
    again.load_state_dict(state)
    assert np.array_equal(predict(again, data[0]), predict(head, data[0]))
    with pytest.raises(RuntimeError):
        build_head(name, 6, 4, **QUICK[name]).load_state_dict(state)
    with pytest.raises(RuntimeError):
        build_head(name, 7, 5, **QUICK[name]).load_state_dict(state)
    with pytest.raises(RuntimeError, match="Missing key"):
        build_head(name, 7, 4, **QUICK[name]).load_state_dict({})


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("forest.child", lambda t: t.clamp_max(0), "children do not come after it"),
        ("forest.child", lambda t: torch.where(t >= 0, 10**6, t).int(), "children do not come after it"),
        ("forest.child", lambda t: torch.where(t < 0, -(10**6), t).int(), "values are missing"),
        ("forest.feature", lambda t: t + 7, "asks for feature"),
        ("forest.threshold", lambda t: t[:-1], "do not fit"),
        ("forest.values", lambda t: t.double(), "expected 1 dimension"),
    ],
)
def test_a_damaged_forest_is_refused(key: str, change: Any, message: str) -> None:
    state = dict(fitted("trees", rows()).state_dict())
    state[key] = change(state[key].clone())
    with pytest.raises(RuntimeError, match=message):
        build_head("trees", 7, 4).load_state_dict(state)


@pytest.mark.parametrize("name", ["trees", "boosting"])
def test_monotone_more_alike_never_scores_lower(name: str) -> None:
    x, y, weight, groups = rows(100, gaps=False)
    ways = np.array([1, -1, 0, 1, -1, 1, 0])
    free, held = (build_head(name, 7, 4, **QUICK[name], monotone=flag) for flag in (False, True))
    for head in (free, held):
        assert isinstance(head, FittedHead)
        head.fit(x, y, weight, 7, groups=groups, directions=ways)

    def falls(head: Any) -> float:
        """The deepest fall over all single steps towards more alike."""
        worst = 0.0
        for feature in np.flatnonzero(ways):
            grid = np.repeat(x[:20, None], 25, axis=1)
            grid[:, :, feature] = np.linspace(x[:, feature].min(), x[:, feature].max(), 25)[:: ways[feature]]
            found = predict(head, grid.reshape(-1, 7)).reshape(20, 25, 4)
            worst = min(worst, float(np.diff(found, axis=1).min()))
        return worst

    assert falls(held) >= -1e-6
    assert falls(free) < -1e-3
    with pytest.raises(ConfigError, match="choose features=similarity"):
        fitted(name, (x, y, weight, groups), monotone=True, trees=3)


def test_stack_weights_are_the_best_convex_ones() -> None:
    rng = np.random.default_rng(0)
    for k in (2, 3, 5):
        target = rng.random(80)
        predictions = target[:, None] + rng.normal(size=(80, k)) * rng.uniform(0.1, 0.5, k) + rng.normal(size=k) * 0.1
        weight = rng.uniform(0.5, 1, 80)

        def error(v: Array, p: Array = predictions, t: Array = target, w: Array = weight) -> float:
            return float((w * (p @ v - t) ** 2).sum() / w.sum())

        found = convex_weights(predictions, target, weight)
        assert (found >= 0).all()
        assert found.sum() == pytest.approx(1)
        best = scipy.optimize.minimize(
            error, np.full(k, 1 / k), bounds=[(0, 1)] * k, constraints={"type": "eq", "fun": lambda v: v.sum() - 1},
            options={"ftol": 1e-12},
        )  # fmt: skip
        assert error(found) <= best.fun + 1e-9
        np.testing.assert_allclose(found, best.x, atol=1e-3)
    twice = np.repeat(rng.random((20, 1)), 2, axis=1)
    assert convex_weights(twice, rng.random(20), np.ones(20)).tolist() == [1.0, 0.0]  # the first of equal ones


def test_a_stack_is_the_weighted_mean_of_its_heads() -> None:
    data = rows()
    head = fitted("stack", data)
    parts = [predict(part, data[0]) for part in head.parts.values()]
    weights = head.weights.numpy()
    np.testing.assert_allclose(predict(head, data[0]), np.tensordot(weights, parts, axes=1), atol=1e-6)
    alone = fitted("ridge", data, alpha=3.0)
    assert np.array_equal(parts[0], predict(alone, data[0]))


def test_a_useless_head_gets_no_weight() -> None:
    x, y, weight, groups = rows(90, gaps=False)
    y = np.clip(0.5 + 0.1 * standardised(x, x, 9.0)[:, :4], 0, 1).astype(np.float32)  # lines, which a stump cannot draw
    of = [{"ridge": {"alpha": 0.1}}, {"trees": {"trees": 1, "min_leaf": 40}}]
    assert fitted("stack", (x, y, weight, groups), of=of).weights[0] > 0.95


# --- networks that start from something known ---


def test_cosine_residual_starts_as_the_calibrated_cosine() -> None:
    data, embeddings, targets, split = make_data(dims=(8,))
    data.weights = (data.weights > 0).float()
    head = build_head("cosine_residual", data.in_dim, 12).eval()
    head.prepare(data.training_rows())
    expected = cosine_line(cosine_scores(embeddings[0]), targets, split.indices("train"))
    from bcs_lab.data import features_of

    with torch.no_grad():
        (found,) = [head(features_of(batch)) for batch in data.batches()]
    np.testing.assert_allclose(found.prediction.numpy(), expected, atol=1e-5)


def test_cosine_residual_learns_from_pairs_beyond_the_ends() -> None:
    head = build_head("cosine_residual", 9, 1, hidden=4)
    head.intercepts.fill_(1.5)
    x = torch.randn(6, 9)
    numerator, denominator = head.loss(head(x), torch.zeros(6, 1), torch.ones(6, 1))
    numerator.backward()
    assert float((numerator / denominator).detach()) == pytest.approx(1.5**2)
    assert (head.out.bias.grad.abs() > 1).all()


def test_similarity_mlp_starts_as_the_training_mean() -> None:
    x, y, weight, groups = rows()
    head = build_head("similarity_mlp", 7, 4).eval()
    head.prepare(TrainingRows(x, y, weight, groups))
    expected = [np.average(y[weight[:, q] > 0, q], weights=weight[weight[:, q] > 0, q]) for q in range(4)]
    np.testing.assert_allclose(predict(head, x), np.tile(expected, (len(x), 1)), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ridge", {"alpha": 0}, r"head\.alpha=0: expected a number above 0"),
        ("ridge", {"alpha": []}, r"head\.alpha=\[\]"),
        ("ridge", {"alpha": [1.0, "x"]}, r"head\.alpha=x"),
        ("ridge", {"clip": -1}, r"head\.clip=-1"),
        ("ridge", {"bootstrap": "no"}, r"head\.bootstrap=no: expected true or false"),
        ("kernel", {"gamma": float("nan")}, r"head\.gamma=nan"),
        ("kernel", {"folds": 1}, r"head\.folds=1"),
        ("trees", {"trees": 0}, r"head\.trees=0"),
        ("trees", {"max_features": 1.5}, r"head\.max_features=1\.5: expected a number above 0 and at most 1"),
        ("trees", {"alpha": 1}, r"head=trees: unknown settings head\.alpha"),
        ("boosting", {"max_leaves": 1}, r"head\.max_leaves=1"),
        ("boosting", {"l2": -1.0}, r"head\.l2=-1\.0"),
        ("stack", {"of": ["ridge"]}, r"head\.of: expected two or more of ridge, trees, boosting, kernel"),
        ("stack", {"of": ["ridge", "mlp"]}, "got mlp; only heads that fit themselves"),
        ("stack", {"of": ["ridge", "stack"]}, "got stack"),
        ("stack", {"of": ["ridge", "ridge"]}, "each once, got ridge, ridge"),
        ("stack", {"of": ["ridge", {"trees": 5}]}, "got trees"),
        ("stack", {"of": [{"ridge": {"alpha": -1}}, {"trees": None}]}, r"head\.alpha=-1"),
        ("similarity_mlp", {"hidden": 0}, r"head\.hidden=0"),
        ("cosine_residual", {"dropout": 1.0}, r"head\.dropout=1\.0"),
    ],
)
def test_settings_are_checked(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_head(name, 21, 5, **settings)


@pytest.mark.parametrize("name", ["ridge", "kernel", "trees", "boosting", "stack"])
def test_extra_rows_leave_the_level_of_the_others(name: str) -> None:
    """Known negatives may change the order of pairs, not the mean of the corpus' own."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(60, 4)).astype(np.float32)
    y = (0.5 + 0.3 * np.tanh(x[:, :2])).astype(np.float32)
    extra = ExtraRows(
        generator.normal(-1, 1, (60, 4)).astype(np.float32), np.zeros((60, 2), np.float32), np.ones((60, 2), np.float32)
    )
    settings = {"trees": {"trees": 20}, "boosting": {"trees": 20}, "stack": {"of": ["ridge", {"trees": {"trees": 20}}]}}
    head = build_head(name, 4, 2, **settings.get(name, {}))
    head.fit(x, y, np.ones_like(y), 0, groups=np.arange(60) // 3, extra=extra)
    with torch.inference_mode():
        found = head(torch.from_numpy(x)).prediction.numpy()
    np.testing.assert_allclose(found.mean(axis=0), y.mean(axis=0), atol=0.01)
