"""Forests and boosted trees, grown by scikit-learn and kept as plain arrays: no pickles, no scikit-learn to predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bcs_lab.errors import ConfigError, RunError
from bcs_lab.heads.base import HeadOutput, Stored, TrainingRows, check_flag, check_number, check_whole
from bcs_lab.heads.fitted import FittedHead, Floats, question_groups

#: Largest difference to scikit-learn's own predictions that a stored forest may have.
TOLERANCE = 1e-6
#: Cells of rows times trees that are walked at once.
_AT_ONCE = 1 << 19


@dataclass(frozen=True)
class Tree:
    """One grown tree; nodes in any order, the first is the root.

    Attributes:
        left: [n_nodes] node of the rows with ``x[feature] <= threshold``, negative at a leaf.
        right: [n_nodes] node of the others.
        feature: [n_nodes].
        threshold: [n_nodes] float64.
        value: [n_nodes, n_outputs] what the tree adds at a leaf.
    """

    left: NDArray[np.integer]
    right: NDArray[np.integer]
    feature: NDArray[np.integer]
    threshold: NDArray[np.floating]
    value: NDArray[np.floating]


class Forest(Stored):
    """Trees whose values add up, for one or more groups of questions, walked together level by level.

    Nodes of all trees stand in one list, the roots first and each level after the one above; the two children of a node
    are neighbours. ``child`` is the position of the left one, or ``-1 - offset`` at a leaf, whose values begin at
    ``offset``. Thresholds are rounded down to float32, which decides every float32 feature as the exact ones do.

    Args:
        in_dim: number of features.
        n_questions: outputs.
    """

    feature: Tensor
    threshold: Tensor
    child: Tensor
    values: Tensor
    tree_group: Tensor
    question_group: Tensor
    base: Tensor

    def __init__(self, in_dim: int, n_questions: int) -> None:
        super().__init__()
        self.in_dim, self.n_questions = in_dim, n_questions
        self.register_buffer("feature", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("threshold", torch.zeros(0))
        self.register_buffer("child", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("values", torch.zeros(0))
        self.register_buffer("tree_group", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("question_group", torch.zeros(n_questions, dtype=torch.int32))
        self.register_buffer("base", torch.zeros(n_questions, dtype=torch.float64))

    def grow(self, groups: Sequence[tuple[NDArray[np.integer], Sequence[Tree]]], base: Floats) -> None:
        """Take trees over.

        Args:
            groups: questions and the trees whose ``value`` has a column for each of them.
            base: [n_questions], what the trees' values are added to.
        """
        parts = [_levels(trees) for _, trees in groups]
        counts = [len(trees) for _, trees in groups]
        feature, threshold, child, values = _joined(parts, counts)
        question_group = np.zeros(self.n_questions, dtype=np.int32)
        for index, (questions, _) in enumerate(groups):
            question_group[questions] = index
        self.feature, self.threshold = torch.from_numpy(feature), torch.from_numpy(threshold)
        self.child, self.values = torch.from_numpy(child), torch.from_numpy(values)
        self.tree_group = torch.from_numpy(np.repeat(np.arange(len(groups), dtype=np.int32), counts))
        self.question_group = torch.from_numpy(question_group)
        self.base = torch.from_numpy(np.asarray(base, dtype=np.float64))

    def problems(self) -> list[str]:
        """Arrays of different lengths, and indices that lead nowhere."""
        nodes, trees = len(self.child), len(self.tree_group)
        if not len(self.feature) == len(self.threshold) == nodes or nodes < trees:
            return [f"{len(self.feature)}, {len(self.threshold)} and {nodes} nodes of {trees} trees do not fit"]
        if len(self.question_group) != self.n_questions or len(self.base) != self.n_questions:
            return [f"made for {len(self.question_group)} questions, expected {self.n_questions}"]
        if not nodes:
            return []
        out = []
        inner = self.child >= 0
        here = torch.arange(nodes)
        if bool((self.child[inner] <= here[inner]).any()) or bool((self.child[inner] + 1 >= nodes).any()):
            out.append("a node's children do not come after it")
        width = int(torch.bincount(self.question_group.long()).max())
        if bool((-1 - self.child[~inner]).max() >= len(self.values)) or len(self.values) < width:
            out.append("a leaf's values are missing")
        if bool((self.feature < 0).any()) or bool((self.feature >= self.in_dim).any()):
            out.append(f"asks for feature {int(self.feature.max())} of {self.in_dim}")
        return out

    def forward(self, x: Tensor) -> Tensor:
        """[n, in_dim] -> [n, n_questions] float64."""
        rows = max(_AT_ONCE // max(len(self.tree_group), 1), 1)
        return torch.cat([self._sums(part) for part in x.split(rows)]) if len(x) else self.base.expand(0, -1)

    def _sums(self, x: Tensor) -> Tensor:
        out = self.base.to(torch.float64).repeat(len(x), 1)
        if not len(self.tree_group):
            return out
        offset = -1 - self.child[self._leaves(x)].long()
        for group in range(int(self.question_group.max()) + 1):
            questions = torch.nonzero(self.question_group == group)[:, 0]
            trees = torch.nonzero(self.tree_group == group)[:, 0]
            place = offset[:, trees, None] + torch.arange(len(questions), device=x.device)
            out[:, questions] += self.values[place].sum(dim=1, dtype=torch.float64)
        return out

    def _leaves(self, x: Tensor) -> Tensor:
        """The leaf of every row in every tree: int64 [n, n_trees]."""
        node = torch.arange(len(self.tree_group), device=x.device).expand(len(x), -1)
        while True:
            child = self.child[node].long()
            inner = child >= 0
            if not bool(inner.any()):
                return node
            right = x.gather(1, self.feature[node].long()) > self.threshold[node]
            node = torch.where(inner, child + right, node)


class TreesHead(FittedHead):
    """Extremely randomised trees (Geurts, Ernst and Wehenkel 2006): splits drawn at random, predictions averaged.

    Members differ by the seed of the splits. Questions answered in the same pairs share their trees, a pair weighing
    the mean of its questions' weights; with ``joint=false`` each question has trees, and weights, of its own.

    Args:
        in_dim: length of the features.
        n_questions: outputs.
        trees: how many.
        min_leaf: least number of training pairs in a leaf.
        max_features: share of the features that a split may choose from.
        joint: see above.
        monotone: whether a pair that is more alike by some similarity, and the same by all others, may never score
            lower; implies trees of their own for each question.
    """

    def __init__(
        self,
        in_dim: int,
        n_questions: int,
        trees: int = 300,
        min_leaf: int = 3,
        max_features: float = 0.33,
        joint: bool = True,
        monotone: bool = False,
    ) -> None:
        super().__init__(in_dim, n_questions)
        check_whole("trees", trees)
        check_whole("min_leaf", min_leaf)
        check_number("max_features", max_features, most=1.0)
        check_flag("joint", joint)
        check_flag("monotone", monotone)
        self.trees, self.min_leaf, self.max_features = trees, min_leaf, float(max_features)
        self.joint, self.monotone = joint and not monotone, monotone
        self.forest = Forest(in_dim, n_questions)

    def _fit(self, rows: TrainingRows, seed: int) -> None:
        from sklearn.ensemble import ExtraTreesRegressor

        signs = _signs(rows, self.monotone)
        groups: list[tuple[NDArray[np.integer], list[Tree]]] = []
        models = []
        for questions, used in _together(rows, self.joint):
            model = ExtraTreesRegressor(
                n_estimators=self.trees,
                min_samples_leaf=self.min_leaf,
                max_features=self.max_features,
                monotonic_cst=signs,
                random_state=seed,
            )
            y = rows.y[np.ix_(used, questions)]
            weight = rows.weight[np.ix_(used, questions)].mean(axis=1)
            model.fit(rows.x[used], y[:, 0] if len(questions) == 1 else y, sample_weight=weight)
            grown = [_averaged(estimator.tree_, self.trees) for estimator in model.estimators_]
            groups.append((questions, grown))
            models.append((questions, model))
        self.forest.grow(groups, np.zeros(self.n_questions))
        _compare(self.forest, models, rows)

    def shift(self, offset: Floats) -> None:
        """See the base class."""
        self.forest.base += torch.from_numpy(offset)

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1]."""
        return HeadOutput(self.forest(x).clamp(0.0, 1.0).to(x.dtype))


class BoostingHead(FittedHead):
    """Gradient-boosted histogram trees, for each question its own, with its own weights (scikit-learn).

    Members differ by the features that each split may choose from.

    Args:
        in_dim: length of the features.
        n_questions: outputs.
        trees: a question.
        learning_rate: share of each tree that is added.
        max_leaves: of one tree.
        min_leaf: least number of training pairs in a leaf.
        max_features: share of the features that a split may choose from.
        l2: penalty on the leaves' values.
        monotone: whether a pair that is more alike by some similarity, and the same by all others, may never score
            lower.
    """

    def __init__(
        self,
        in_dim: int,
        n_questions: int,
        trees: int = 120,
        learning_rate: float = 0.06,
        max_leaves: int = 8,
        min_leaf: int = 8,
        max_features: float = 0.3,
        l2: float = 1.0,
        monotone: bool = False,
    ) -> None:
        super().__init__(in_dim, n_questions)
        check_whole("trees", trees)
        check_number("learning_rate", learning_rate, most=1.0)
        check_whole("max_leaves", max_leaves, 2)
        check_whole("min_leaf", min_leaf)
        check_number("max_features", max_features, most=1.0)
        check_number("l2", l2, above=-1e-12)
        check_flag("monotone", monotone)
        self.settings: dict[str, Any] = {
            "max_iter": trees,
            "learning_rate": learning_rate,
            "max_leaf_nodes": max_leaves,
            "min_samples_leaf": min_leaf,
            "max_features": float(max_features),
            "l2_regularization": max(float(l2), 0.0),
        }
        self.monotone = monotone
        self.forest = Forest(in_dim, n_questions)

    def _fit(self, rows: TrainingRows, seed: int) -> None:
        from sklearn.ensemble import HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits

        signs = _signs(rows, self.monotone)
        groups: list[tuple[NDArray[np.integer], list[Tree]]] = []
        base, models = np.zeros(self.n_questions), []
        # one thread: sums in one order on any machine, and faster on a few hundred rows
        with threadpool_limits(1):
            for questions, used in _together(rows, joint=False):
                (question,) = questions
                model = HistGradientBoostingRegressor(
                    **self.settings, early_stopping=False, monotonic_cst=signs, random_state=seed
                )
                x, y, weight = rows.x[used], rows.y[used, question], rows.weight[used, question]
                if np.ptp(y) > 0:
                    model.fit(x, y, sample_weight=weight)
                    groups.append((questions, [_boosted(part[0].nodes) for part in model._predictors]))
                    base[question] = float(np.ravel(model._baseline_prediction)[0])
                    models.append((questions, model))
                else:
                    groups.append((questions, []))
                    base[question] = float(y[0])
            self.forest.grow(groups, base)
            _compare(self.forest, models, rows)

    def shift(self, offset: Floats) -> None:
        """See the base class."""
        self.forest.base += torch.from_numpy(offset)

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1]."""
        return HeadOutput(self.forest(x).clamp(0.0, 1.0).to(x.dtype))


def _signs(rows: TrainingRows, monotone: bool) -> NDArray[np.integer] | None:
    """The constraint on every feature, in scikit-learn's terms, which are those of the directions."""
    if not monotone:
        return None
    if rows.directions is None:
        raise ConfigError(
            "head.monotone=true: only of similarities is it known which way they point; choose features=similarity."
        )
    return rows.directions


def _together(rows: TrainingRows, joint: bool) -> list[tuple[NDArray[np.integer], NDArray[np.bool_]]]:
    if joint:
        return list(question_groups(rows))
    return [(np.array([question]), rows.weight[:, question] > 0) for question in range(rows.y.shape[1])]


def _averaged(tree: Any, count: int) -> Tree:
    """A tree of a forest of ``count`` that is averaged."""
    value = tree.value[:, :, 0] / count
    return Tree(tree.children_left, tree.children_right, tree.feature, tree.threshold, value)


def _boosted(nodes: Any) -> Tree:
    """A tree of scikit-learn's histogram boosting, whose nodes are one structured array."""
    leaf = nodes["is_leaf"].astype(bool)
    left, right = (np.where(leaf, -1, nodes[side].astype(np.int64)) for side in ("left", "right"))
    return Tree(left, right, nodes["feature_idx"], nodes["num_threshold"], nodes["value"][:, None])


def _levels(trees: Sequence[Tree]) -> list[tuple[Any, ...]]:
    """Nodes of all trees level by level: per level which are inner, features, thresholds, and the leaves' values."""
    if not trees:
        return []
    start = np.cumsum([0, *(len(tree.left) for tree in trees)])
    left, right = (
        np.concatenate(
            [
                np.where(getattr(tree, side) < 0, -1, getattr(tree, side) + at)
                for tree, at in zip(trees, start[:-1], strict=True)
            ]
        )
        for side in ("left", "right")
    )
    feature, threshold, value = (
        np.concatenate([getattr(tree, name) for tree in trees]) for name in ("feature", "threshold", "value")
    )
    out, nodes = [], start[:-1]
    while len(nodes):
        inner = left[nodes] >= 0
        out.append((inner, feature[nodes], threshold[nodes], value[nodes[~inner]]))
        nodes = np.stack([left[nodes[inner]], right[nodes[inner]]], axis=1).ravel()
    return out


def _joined(parts: Sequence[list[tuple[Any, ...]]], counts: Sequence[int]) -> tuple[Any, Any, Any, Any]:
    """All groups' levels as the four arrays of a :class:`Forest`."""
    feature, threshold, child, values = [], [], [], []
    position, offset = sum(counts), 0
    for level in range(max((len(part) for part in parts), default=0)):
        for part in parts:
            if level >= len(part):
                continue
            inner, features, thresholds, leaves = part[level]
            here = np.empty(len(inner), dtype=np.int64)
            here[inner] = position + 2 * np.arange(int(inner.sum()))
            here[~inner] = -1 - (offset + leaves.shape[1] * np.arange(len(leaves)))
            position += 2 * int(inner.sum())
            offset += leaves.size
            feature.append(np.where(inner, features, 0).astype(np.int32))
            threshold.append(np.where(inner, _rounded_down(thresholds), 0).astype(np.float32))
            child.append(here.astype(np.int32))
            values.append(leaves.astype(np.float32).ravel())

    def joined(some: list[Any], kind: Any) -> Any:
        return np.concatenate([np.zeros(0, dtype=kind), *some])

    return joined(feature, np.int32), joined(threshold, np.float32), joined(child, np.int32), joined(values, np.float32)


def _rounded_down(values: NDArray[np.floating]) -> NDArray[np.float32]:
    """The largest float32 that is not above: for a float32 x, ``x <= value`` says the same of both."""
    near = values.astype(np.float32)
    return np.where(near > values, np.nextafter(near, np.float32(-np.inf)), near)


def _compare(forest: Forest, models: Sequence[tuple[Any, Any]], rows: TrainingRows) -> None:
    """A version of scikit-learn that keeps its trees in another way must not pass unseen."""
    x = np.ascontiguousarray(rows.x[:64], dtype=np.float32)
    with torch.no_grad():
        mine = forest(torch.from_numpy(x)).numpy()
    for questions, model in models:
        gap = float(np.abs(mine[:, questions] - model.predict(x).reshape(len(x), -1)).max())
        if not gap <= TOLERANCE:
            import sklearn

            raise RunError(
                f"The trees taken over from scikit-learn {sklearn.__version__} predict {gap:.1e} off its own "
                "predictions; install a version this release was tested with."
            )
