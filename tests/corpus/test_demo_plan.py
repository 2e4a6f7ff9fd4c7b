"""The demo's plan and its true answers: every rule alone, the composition, what a pair depends on."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import time

import numpy as np
import pytest

from bcs_lab.corpus.demo import plan as plan_module
from bcs_lab.corpus.demo import truth
from bcs_lab.corpus.demo.concepts import (
    ARTIFACTS,
    CATEGORY_NEIGHBOURS,
    COLOUR_NEIGHBOURS,
    COLOURS,
    CONCEPTS,
    ENVIRONMENT_NEIGHBOURS,
    ENVIRONMENTS,
    LAYOUTS,
    ROLE_NEIGHBOURS,
    TEXTURE_NEIGHBOURS,
    TEXTURES,
    silhouette_similarity,
)
from bcs_lab.corpus.demo.plan import PROFILES, plan_demo
from bcs_lab.corpus.demo.scene import Decoder, PairPlan, Scene
from bcs_lab.errors import ConfigError
from bcs_lab.teachers.protocol import BCS12

#: Table 8: method -> pairs, subjects, concepts.
TABLE8 = {
    "ATM": (1990, 10, 200),
    "ENIGMA": (3980, 10, 200),
    "brainvis": (200, 1, 200),
    "cvpr40_brainvis": (39, 1, 39),
    "cvpr40_dreamdiffusion": (46, 1, 46),
    "dreamdiffusion": (200, 1, 200),
    "thingseeg_brainvis": (200, 1, 200),
    "thingseeg_dreamdiffusion": (200, 1, 200),
}

CLEAN = Decoder(blur=0.1, fade=0.1, noise=0.05, artifact="none", artifact_strength=0.0, seed=1)
#: Three objects, so that counts can go both ways.
SEEN = Scene("car", 3, "centre", 0.3, "red", "flat", "street", variant=1)


def answers(decoder: Decoder = CLEAN, **changed: object) -> dict[str, float]:
    values = truth.true_answers(SEEN, dataclasses.replace(SEEN, **changed), decoder)  # type: ignore[arg-type]
    return dict(zip(BCS12.ids, values, strict=True))


def spoiled(**changed: object) -> Decoder:
    return dataclasses.replace(CLEAN, **changed)  # type: ignore[arg-type]


def concept_like(**wanted: object) -> str:
    """A concept that relates to the car as told."""
    car = CONCEPTS["car"]
    for other in CONCEPTS.values():
        relations = {
            "same_family": other.family == car.family,
            "same_category": other.category == car.category,
            "near_category": frozenset((other.category, car.category)) in CATEGORY_NEIGHBOURS,
            "same_role": other.role == car.role,
            "near_role": frozenset((other.role, car.role)) in ROLE_NEIGHBOURS,
        }
        if other.name != "car" and all(relations[key] == value for key, value in wanted.items()):
            return other.name
    pytest.fail(f"no concept is related to the car as {wanted}")


@pytest.fixture(scope="module")
def paper() -> list[PairPlan]:
    return plan_demo("paper", 0)


@pytest.fixture(scope="module")
def small() -> list[PairPlan]:
    return plan_demo("small", 0)


# --- The rules -------------------------------------------------------------------------------------------------------


def test_same_scene_is_right_in_everything() -> None:
    assert set(answers().values()) == {1.0}
    assert set(answers(variant=99).values()) == {1.0}


def test_p1_places() -> None:
    assert answers(layout="centre")["P1"] == 1
    far = {name: truth.displacement("centre", 3, name, 3) for name in LAYOUTS}
    assert truth.NEAR_PLACE < far["left"] <= truth.FAR_PLACE < far["corners"]
    assert answers(layout="left")["P1"] == 0.5
    assert answers(layout="corners")["P1"] == 0
    assert truth.displacement("left", 1, "right", 1) == pytest.approx(0.49)
    assert truth.displacement("left", 3, "row", 5) == truth.displacement("row", 5, "left", 3)


def test_p1_sizes() -> None:
    assert answers(size=0.3 / 1.4)["P1"] == 1
    assert answers(size=0.3 / 1.8)["P1"] == 0.5
    assert answers(size=0.3 / 2.5)["P1"] == 0
    # Only three hundredths more fit between three objects at the centre, whatever size is asked for.
    assert answers(size=0.7)["P1"] == 1


def test_p1_many_for_few_is_somewhat() -> None:
    single = dataclasses.replace(SEEN, count=1, size=0.26)
    for count, expected in ((1, 1.0), (3, 1.0), (6, 0.5)):
        assert truth.layout(single, dataclasses.replace(single, count=count)) == expected


def test_p1_looks_at_nothing_else() -> None:
    other = {"concept": "dog", "colour": "blue", "texture": "woolly", "environment": "forest", "deform": 1.0}
    assert answers(**other)["P1"] == 1


def test_p2_deformation() -> None:
    assert [answers(deform=d)["P2"] for d in (0.2, 0.5, 0.8)] == [1, 0.5, 0]


def test_p2_silhouette_of_another_concept() -> None:
    alike = {name: silhouette_similarity("car", name) for name in CONCEPTS if name != "car"}
    seen = set()
    for name, similarity in alike.items():
        expected = 1 if similarity >= truth.ALIKE else 0.5 if similarity >= truth.PARTLY_ALIKE else 0
        assert answers(concept=name)["P2"] == expected
        assert answers(concept=name, deform=0.5)["P2"] == min(expected, 0.5)
        seen.add(expected)
    assert {0, 0.5} <= seen
    best = max(itertools.combinations(sorted(CONCEPTS)[:80], 2), key=lambda pair: silhouette_similarity(*pair))
    assert silhouette_similarity(*best) >= truth.ALIKE
    assert truth.shape(dataclasses.replace(SEEN, concept=best[0]), dataclasses.replace(SEEN, concept=best[1])) == 1


@pytest.mark.parametrize(
    ("question", "attribute", "names", "neighbours"),
    [
        ("P3", "texture", TEXTURES, TEXTURE_NEIGHBOURS),
        ("P4", "colour", COLOURS, COLOUR_NEIGHBOURS),
        ("S5", "environment", ENVIRONMENTS, ENVIRONMENT_NEIGHBOURS),
    ],
)
def test_neighbours_are_somewhat(question: str, attribute: str, names: dict, neighbours: frozenset) -> None:
    was = getattr(SEEN, attribute)
    found = {name: answers(**{attribute: name})[question] for name in names}
    assert found[was] == 1
    assert {name for name, answer in found.items() if answer == 0.5} == {
        name for name in names if frozenset((was, name)) in neighbours
    }
    assert sorted(set(found.values())) == [0, 0.5, 1]
    # Only this question and the holistic one of its axis look at it.
    other = next(name for name, answer in found.items() if answer == 0)
    changed = {q for q, answer in answers(**{attribute: other}).items() if answer != 1}
    assert question in changed
    assert changed <= {question, f"{question[0]}6"}


def test_p3_blur_flattens_then_hides_the_surface() -> None:
    assert [answers(spoiled(blur=b))["P3"] for b in (0.3, 0.45, 0.6)] == [1, 0.5, 0]
    assert answers(spoiled(blur=0.45), texture="woolly")["P3"] == 0


def test_p4_fading_takes_the_colour() -> None:
    assert [answers(spoiled(fade=f))["P4"] for f in (0.4, 0.6, 0.8)] == [1, 0.5, 0]
    assert answers(spoiled(artifact="colour_bleed", artifact_strength=0.7))["P4"] == 0.5
    assert answers(spoiled(artifact="colour_bleed", artifact_strength=0.4))["P4"] == 1
    assert answers(spoiled(artifact="grid", artifact_strength=0.7))["P4"] == 1


@pytest.mark.parametrize("artifact", sorted(ARTIFACTS))
def test_p5_artifacts(artifact: str) -> None:
    found = [answers(spoiled(artifact=artifact, artifact_strength=s))["P5"] for s in (0.1, 0.4, 0.8)]
    assert found == [1, 0.5, 0]
    assert artifact in truth.HIDES


def test_p5_grain_counts_but_blur_fading_and_wrong_content_do_not() -> None:
    assert [answers(spoiled(noise=n))["P5"] for n in (0.1, 0.35, 0.6)] == [1, 0.5, 0]
    assert answers(spoiled(blur=0.95, fade=0.95), concept="dog")["P5"] == 1
    assert answers(spoiled(artifact="none", artifact_strength=0.9))["P5"] == 1


def test_p6_goes_by_the_mean_of_p1_to_p4() -> None:
    assert answers(colour="blue")["P6"] == 1  # one weak dimension is tolerated
    assert answers(colour="blue", texture="woolly")["P6"] == 0.5
    assert answers(colour="blue", texture="woolly", deform=0.8)["P6"] == 0.5
    assert answers(colour="blue", texture="woolly", deform=0.8, layout="corners")["P6"] == 0
    assert answers(concept="dog", environment="forest", count=1, size=0.3)["P6"] == 1  # meaning plays no part


def test_s1_category() -> None:
    assert answers(concept=concept_like(same_category=True, same_family=False))["S1"] == 1
    assert answers(concept=concept_like(same_category=False, near_category=False))["S1"] == 0
    pairs = [tuple(pair) for pair in CATEGORY_NEIGHBOURS]
    for a, b in pairs:
        names = [next(c.name for c in CONCEPTS.values() if c.category == category) for category in (a, b)]
        scenes = [dataclasses.replace(SEEN, concept=name) for name in names]
        assert truth.category(*scenes) == truth.category(*scenes[::-1]) == 0.5


def test_s2_identity() -> None:
    assert answers()["S2"] == 1
    assert answers(concept=concept_like(same_family=True))["S2"] == 0.5
    assert answers(concept=concept_like(same_category=True, same_family=False))["S2"] == 0


def test_s3_function() -> None:
    assert answers(concept=concept_like(same_role=True))["S3"] == 1
    assert answers(concept=concept_like(near_role=True))["S3"] == 0.5
    assert answers(concept=concept_like(same_role=False, near_role=False))["S3"] == 0


def test_s1_to_s3_need_some_form() -> None:
    found = answers(deform=0.95)
    assert [found[q] for q in ("S1", "S2", "S3", "S6")] == [0, 0, 0, 0]
    assert found["S4"] == found["S5"] == 1


@pytest.mark.parametrize(
    ("was", "now", "expected"),
    [(1, 1, 1), (1, 2, 0), (2, 1, 0), (2, 3, 0), (3, 2, 0.5), (3, 4, 0.5), (3, 1, 0), (4, 6, 0), (5, 6, 1), (6, 5, 1)],
)
def test_s4_quantity(was: int, now: int, expected: float) -> None:
    scenes = [dataclasses.replace(SEEN, count=count) for count in (was, now)]
    assert truth.quantity(*scenes) == expected


def test_s6_holistic() -> None:
    other = concept_like(same_category=False, near_category=False, same_role=False, near_role=False)
    assert answers(environment="forest", count=1)["S6"] == 1  # the right kind carries the meaning
    assert answers(concept=other)["S6"] == 0  # suggests another concept, though count and place are right
    kin = concept_like(same_family=True)
    assert answers(concept=kin)["S6"] == 1  # category, role, count and place right, kind nearly
    assert answers(concept=kin, environment="forest")["S6"] == 0.5
    assert answers(concept=concept_like(same_category=True, near_role=True), environment="forest", count=1)["S6"] == 0.5


@pytest.mark.parametrize(
    "nothing",
    [{"blur": 0.9}, {"noise": 0.9}, {"blur": 0.5, "noise": 0.5}, {"artifact": "tiling", "artifact_strength": 1.0}],
)
def test_nothing_to_see_is_no_to_every_question_of_content(nothing: dict) -> None:
    found = answers(spoiled(**nothing))
    assert {answer for question, answer in found.items() if question != "P5"} == {0.0}


def test_holistic_answers_are_at_most_somewhat_where_little_is_left() -> None:
    faint = spoiled(blur=0.3, noise=0.3)
    assert truth.NOTHING <= truth.visibility(faint) < truth.CLEAR
    found = answers(faint)
    assert found["P6"] == found["S6"] == 0.5
    assert found["S1"] == found["P1"] == 1


def test_visibility_falls_with_every_fault() -> None:
    nothing_wrong = Decoder(0.0, 0.0, 0.0, "none", 0.0, 0)
    assert truth.visibility(nothing_wrong) == 1
    steps = np.linspace(0, 1, 11)
    for field in ("blur", "fade", "noise"):
        seen = [truth.visibility(dataclasses.replace(nothing_wrong, **{field: s})) for s in steps]
        assert all(a > b for a, b in itertools.pairwise(seen))
    for artifact in ARTIFACTS:
        seen = [truth.visibility(Decoder(0.0, 0.0, 0.0, artifact, s, 0)) for s in steps]
        assert all(a > b for a, b in itertools.pairwise(seen))
        assert min(seen) >= 0


# --- The plan --------------------------------------------------------------------------------------------------------


def test_paper_has_the_composition_of_table_8(paper: list[PairPlan]) -> None:
    assert len(paper) == 6855
    found = {
        method: (len(pairs), len({p.subject for p in pairs}), len({p.concept for p in pairs}))
        for method in PROFILES
        for pairs in [[p for p in paper if p.method == method]]
    }
    assert found == TABLE8
    # 200 concepts and 46 of the second set of stimuli, one reference each: distinct pictures are far fewer than slots.
    assert len({p.concept for p in paper}) == len({p.reference for p in paper}) == 246


def test_no_concept_is_left_out_by_more_than_one_subject(paper: list[PairPlan]) -> None:
    for method, candidates in (("ATM", 1), ("ENIGMA", 2)):
        count = collections.Counter(p.concept for p in paper if p.method == method)
        assert sorted(set(count.values())) == [9 * candidates, 10 * candidates]


def test_ids_are_in_the_authors_form(paper: list[PairPlan]) -> None:
    assert [p.pair_id for p in paper] == sorted({p.pair_id for p in paper})
    for p in paper:
        parts = p.pair_id.split("__")
        assert parts[0] == p.method
        assert parts[2:5] == [p.concept, f"rank{p.rank}", f"cand{p.candidate}"]
        if p.method in ("ATM", "ENIGMA"):
            assert parts[1] == p.subject
            assert len(parts) == 5
        else:
            assert (parts[1], p.subject) == ("extra", "na")
            assert parts[5].startswith("row")


def test_small_has_every_method_in_proportion(small: list[PairPlan], paper: list[PairPlan]) -> None:
    assert len(small) == 796
    shares = collections.Counter(p.method for p in small)
    assert set(shares) == set(TABLE8)
    assert min(shares.values()) >= 14
    for method, (pairs, _, _) in TABLE8.items():
        assert shares[method] / 796 == pytest.approx(pairs / 6855, abs=0.025)
    concepts = {p.concept for p in small}
    assert len(concepts) == 70
    assert len({CONCEPTS[name].category for name in concepts}) >= 12
    # A pair depends on the seed and its id only.
    whole = {p.pair_id: p for p in paper}
    assert all(whole[p.pair_id] == p for p in small)


def test_same_seed_same_plan_other_seed_other_plan(small: list[PairPlan]) -> None:
    plan_module._reference.cache_clear()
    assert plan_demo("small", 0) == small
    other = plan_demo("small", 1)
    assert [p.pair_id for p in other] == [p.pair_id for p in small]
    assert not {p.reference for p in other} & {p.reference for p in small}
    assert sum(a.truth == b.truth for a, b in zip(small, other, strict=True)) < 0.1 * len(small)
    assert all(a.decoder != b.decoder for a, b in zip(small, other, strict=True))


def test_scenes_are_valid(paper: list[PairPlan]) -> None:
    for p in paper:
        for scene in (p.reference, p.reconstruction):
            assert scene.concept in CONCEPTS
            assert 1 <= scene.count <= 6
            assert LAYOUTS[scene.layout].min_count <= scene.count
            assert 0.15 <= scene.size <= 0.7
            assert scene.colour in COLOURS
            assert scene.texture in TEXTURES
            assert scene.environment in ENVIRONMENTS
            assert 0 <= scene.deform <= 1
        assert p.reference.deform == 0
        assert p.reference.concept == p.concept
        assert p.decoder.artifact in {"none", *ARTIFACTS}
        for strength in (p.decoder.blur, p.decoder.fade, p.decoder.noise, p.decoder.artifact_strength):
            assert 0 <= strength <= 1
        assert p.truth == truth.true_answers(p.reference, p.reconstruction, p.decoder)


def test_every_answer_occurs_and_methods_differ(paper: list[PairPlan]) -> None:
    values = np.array([p.truth for p in paper])
    for level in (0, 0.5, 1):
        assert ((values == level).mean(0) > 0.01).all()
    means = {m: values[[p.method == m for p in paper]].mean() for m in TABLE8}
    for good in ("brainvis", "cvpr40_brainvis", "thingseeg_brainvis"):
        for bad in ("ATM", "ENIGMA"):
            for worst in ("dreamdiffusion", "thingseeg_dreamdiffusion"):
                assert means[good] > means[bad] + 0.2 > means[worst] + 0.2
    # Seeing and meaning are related, but not one thing.
    assert 0.3 < np.corrcoef(values[:, :6].mean(1), values[:, 6:].mean(1))[0, 1] < 0.85


def test_paper_is_planned_in_seconds() -> None:
    start = time.process_time()
    plan_demo("paper", 5)
    assert time.process_time() - start < 10


def test_unknown_size() -> None:
    with pytest.raises(ConfigError, match=r"corpus\.size=huge: expected one of small, paper"):
        plan_demo("huge")
