"""Pictures unlike the training images are flagged, familiar ones are not."""

from __future__ import annotations

import numpy as np
import pytest

from bcs_lab.encoders.base import normalise
from bcs_lab.errors import ModelError
from bcs_lab.familiarity import SIDES, Familiarity

DIMS = (24, 12)


def around(centres: list[np.ndarray], labels: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
    return [
        normalise(centre[labels] + 0.5 * generator.normal(size=(len(labels), centre.shape[1])).astype(np.float32))
        for centre in centres
    ]


@pytest.fixture
def source() -> tuple[Familiarity, list[np.ndarray], np.random.Generator]:
    generator = np.random.default_rng(0)
    # concepts share a direction, as natural pictures do
    centres = [(generator.normal(size=(1, d)) * 2 + generator.normal(size=(80, d))).astype(np.float32) for d in DIMS]
    labels = generator.integers(0, 40, size=300)
    images = {side: around(centres, labels, generator) for side in SIDES}
    names = {side: np.array([f"c{i}" for i in labels], dtype=object) for side in SIDES}
    return Familiarity.fit(images, names, max_kept=200), centres, generator


def test_new_concepts_pass_and_strangers_do_not(
    source: tuple[Familiarity, list[np.ndarray], np.random.Generator],
) -> None:
    familiarity, centres, generator = source
    new = around(centres, generator.integers(40, 80, size=400), generator)
    other = around(centres, generator.integers(40, 80, size=400), generator)
    strangers = [
        normalise(generator.normal(size=(400, d)).astype(np.float32) - centre.mean(axis=0))
        for d, centre in zip(DIMS, centres, strict=True)
    ]
    assert familiarity.unfamiliar(new, other).mean() < 0.08
    assert familiarity.unfamiliar(strangers, other).mean() > 0.95
    assert familiarity.unfamiliar(new, strangers).mean() > 0.95


def test_distance_is_one_minus_the_largest_mean_cosine(
    source: tuple[Familiarity, list[np.ndarray], np.random.Generator],
) -> None:
    familiarity, centres, generator = source
    rows = around(centres, generator.integers(0, 80, size=5), generator)
    expected = [
        min(
            1
            - np.mean(
                [
                    part[i].astype(float) @ kept[j].astype(float)
                    for part, kept in zip(rows, familiarity.kept["reference"], strict=True)
                ]
            )
            for j in range(200)
        )
        for i in range(5)
    ]
    np.testing.assert_allclose(familiarity.distances(rows, rows)[0], expected, atol=1e-5)
    kept = familiarity.kept["reconstruction"]
    assert familiarity.distances(rows, kept)[1].max() < 2e-3  # a training image is at home


def test_edges() -> None:
    one = {side: [np.eye(4, dtype=np.float32)] for side in SIDES}
    single = Familiarity.fit(one, {side: ["cat"] * 4 for side in SIDES})
    assert single.thresholds == dict.fromkeys(SIDES, 2.0)  # nothing is known about another concept
    assert not single.unfamiliar([-np.eye(4)], [np.eye(4)]).any()
    assert single.distances([np.zeros((0, 4))], [np.zeros((0, 4))])[0].shape == (0,)
    with pytest.raises(ModelError, match="sizes"):
        single.distances([np.eye(3)], [np.eye(3)])
