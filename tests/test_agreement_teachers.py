"""The analysis of teachers against other libraries and its definitions, with gaps and degenerate teachers."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import cohen_kappa_score
from small import make_pairs
from statsmodels.stats.inter_rater import aggregate_raters
from statsmodels.stats.inter_rater import fleiss_kappa as statsmodels_fleiss

from bcs_lab.agreement import cluster_draws
from bcs_lab.consensus import consensus
from bcs_lab.corpus import Corpus
from bcs_lab.errors import CorpusError
from bcs_lab.evaluate import axis_scores
from bcs_lab.files import json_safe
from bcs_lab.rationales import Cosines
from bcs_lab.regimes import regime_codes
from bcs_lab.teacher_agreement import (
    Settings,
    analyze,
    disagreement_rows,
    pair_disagreement,
    paper_agreement,
    prepare,
)
from bcs_lab.teachers.protocol import BCS12, Protocol, Question

QUICK = Settings(resamples=100, seed=1, pairs=3)
KEYS = [
    "n_pairs", "n_items", "teachers", "unanimous_rate", "fleiss_kappa", "weighted_kappa", "per_question", "t_pas",
    "t_sas", "rationale_similarity",
]  # fmt: skip


def make_answers(
    n: int = 60, teachers: int = 4, questions: int = 12, seed: int = 0, missing: float = 0.0
) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, (n, 1, questions))
    noise = rng.integers(-1, 2, (n, teachers, questions)) * (rng.random((n, teachers, questions)) < 0.5)
    answers = (np.clip(truth + noise, 0, 2) / 2).astype(np.float32)
    answers[rng.random(answers.shape) < missing] = np.nan
    return answers


def make_corpus(answers: NDArray[Any], protocol: Protocol = BCS12, names: str = "wxyz", **changes: Any) -> Corpus:
    pairs = make_pairs(len(answers))
    said = np.where(np.isnan(answers), "", "seen").astype(object)
    return Corpus("made", pairs, tuple(names[: answers.shape[1]]), answers, said, protocol, **changes)


def analysed(answers: NDArray[Any], settings: Settings = QUICK, **changes: Any) -> dict[str, Any]:
    corpus = make_corpus(answers, **changes)
    result = analyze(corpus, corpus.teachers, settings)
    json.dumps(json_safe(result), allow_nan=False)
    assert json.dumps(result, allow_nan=False)  # not one NaN to be turned into null on the way out
    return result


def items_of(answers: NDArray[Any]) -> NDArray[Any]:
    """[n_teachers, n_items], complete ones only."""
    flat = answers.transpose(1, 0, 2).reshape(answers.shape[1], -1)
    return flat[:, ~np.isnan(flat).any(axis=0)]


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_published_statistics_are_those_of_other_libraries(missing: float) -> None:
    answers = make_answers(missing=missing)
    result = analysed(answers)
    assert list(result)[: len(KEYS)] == KEYS
    flat = items_of(answers)
    codes = (2 * flat).astype(int)
    table, _ = aggregate_raters(codes.T)
    assert result["fleiss_kappa"] == pytest.approx(statsmodels_fleiss(table), abs=1e-12)
    assert result["unanimous_rate"] == pytest.approx((flat == flat[0]).all(axis=0).mean())
    assert result["n_items"] == flat.shape[1]
    for a, b in combinations(range(4), 2):
        expected = cohen_kappa_score(codes[a], codes[b], labels=[0, 1, 2], weights="linear")
        names = "wxyz"[a], "wxyz"[b]
        assert result["weighted_kappa"][names[0]][names[1]] == pytest.approx(expected, abs=1e-12)
        assert result["weighted_kappa"][names[1]][names[0]] == result["weighted_kappa"][names[0]][names[1]]
        row = next(row for row in result["pairwise"] if (row["first"], row["second"]) == names)
        step = np.abs(codes[a] - codes[b])
        assert [row[key] for key in ("exact", "adjacent", "opposite", "mean_difference")] == pytest.approx(
            [(step == 0).mean(), (step == 1).mean(), (step == 2).mean(), step.mean() / 2]
        )
        both = ~np.isnan(answers[:, a]) & ~np.isnan(answers[:, b])
        sides = [(2 * answers[:, t][both]).astype(int) for t in (a, b)]
        expected = cohen_kappa_score(*sides, labels=[0, 1, 2], weights="linear")
        assert row["weighted_kappa_both"] == pytest.approx(expected, abs=1e-12)
        assert row["items_both"] == both.sum()
    assert result["weighted_kappa"]["w"]["w"] == 1.0
    for q, question in enumerate(BCS12.ids):
        own = items_of(answers[:, :, [q]])
        table, _ = aggregate_raters((2 * own).astype(int).T)
        found = result["per_question"][question]
        assert set(found) == {"unanimous", "kappa"}
        assert found["kappa"] == pytest.approx(statsmodels_fleiss(table), abs=1e-12)
        assert found["unanimous"] == pytest.approx((own == own[0]).all(axis=0).mean())


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_alpha_is_that_of_krippendorff(missing: float) -> None:
    other = pytest.importorskip("krippendorff")
    answers = make_answers(missing=missing)
    result = analysed(answers)
    flat = answers.transpose(1, 0, 2).reshape(4, -1).astype(float)
    for level in ("nominal", "ordinal", "interval"):
        expected = other.alpha(reliability_data=flat, level_of_measurement=level)
        assert result["alpha"][level]["value"] == pytest.approx(expected, abs=1e-12)
        low, high = result["alpha"][level]["ci95"]
        assert low < expected < high


def test_scores_and_their_correlations() -> None:
    answers = make_answers(missing=0.05)
    result = analysed(answers)
    for at, axis in enumerate(("t_pas", "t_sas")):
        own = [axis_scores(answers[:, t], BCS12)[at] for t in range(4)]
        for t, name in enumerate("wxyz"):
            assert result[axis][name] == pytest.approx(np.nanmean(own[t]))
            row = result["by_teacher"][t]
            assert row[f"{axis}_pairs"] == (~np.isnan(own[t])).sum()
            assert row[f"{axis}_lo"] < row[axis] < row[f"{axis}_hi"]
        target = axis_scores(consensus(answers), BCS12)[at]
        assert result["consensus"][axis] == pytest.approx(np.nanmean(target))
        for row in result["pairwise"]:
            x, y = (own["wxyz".index(row[side])] for side in ("first", "second"))
            use = ~np.isnan(x) & ~np.isnan(y)
            assert row[f"{axis}_pearson"] == pytest.approx(stats.pearsonr(x[use], y[use]).statistic)
            assert row[f"{axis}_spearman"] == pytest.approx(stats.spearmanr(x[use], y[use]).statistic)
            assert row[f"{axis}_difference"] == pytest.approx(np.abs(x - y)[use].mean())
            assert row[f"{axis}_pearson_lo"] < row[f"{axis}_pearson"] < row[f"{axis}_pearson_hi"]


def test_intervals_are_those_of_copied_concepts() -> None:
    answers = make_answers(n=40, missing=0.05)
    corpus = make_corpus(answers)
    result = analyze(corpus, corpus.teachers, Settings(resamples=60, seed=5))
    _, cluster = np.unique(corpus.pairs["concept"].astype(str), return_inverse=True)
    drawn: dict[str, list[float]] = {"fleiss": [], "kappa": [], "t_pas": [], "P3": []}
    for row in cluster_draws(cluster.max() + 1, 60, 5):
        pairs = np.concatenate([np.flatnonzero(cluster == c).repeat(int(n)) for c, n in enumerate(row)])
        flat = (2 * items_of(answers[pairs])).astype(int)
        drawn["fleiss"].append(statsmodels_fleiss(aggregate_raters(flat.T)[0]))
        drawn["kappa"].append(cohen_kappa_score(flat[0], flat[2], labels=[0, 1, 2], weights="linear"))
        drawn["t_pas"].append(np.nanmean(axis_scores(answers[pairs][:, 1], BCS12)[0]))
        own = (2 * items_of(answers[pairs][:, :, [2]])).astype(int)
        drawn["P3"].append(statsmodels_fleiss(aggregate_raters(own.T)[0]))
    ci = result["ci95"]
    found = {
        "fleiss": ci["fleiss_kappa"],
        "kappa": ci["weighted_kappa"]["w"]["y"],
        "t_pas": ci["t_pas"]["x"],
        "P3": ci["per_question"]["P3"]["kappa"],
    }
    for key, values in drawn.items():
        assert found[key] == pytest.approx(np.quantile(values, [0.025, 0.975]).tolist()), key


def test_questions_stand_in_the_order_of_table_5() -> None:
    result = analysed(make_answers())
    rates = [(row["unanimous"], row["kappa"]) for row in result["per_question"].values()]
    assert rates == sorted(rates)
    assert [row["id"] for row in result["questions"]] == list(result["per_question"])


def test_missing_answers_are_counted_and_named() -> None:
    answers = make_answers()
    answers[:5, 1] = np.nan  # a teacher that has not come to five pairs
    answers[7, :, 3] = np.nan  # a question nobody answered about one pair
    result = analysed(answers)
    used = result["used"]
    assert (result["n_pairs"], used["corpus_pairs"], used["pairs_dropped"]) == (55, 60, 5)
    assert used["items"] + used["items_dropped"] == used["possible_items"] == 720
    assert used["dropped"] == {"answered by no teacher": 1, "answered by some teachers only": 60}
    assert used["missing"] == {"w": 1, "x": 61, "y": 1, "z": 1}
    assert result["fleiss_per_item"]["items"] == 719
    assert any("659 of 720 items" in note and "x 61" in note for note in result["notes"])


def test_a_teacher_that_always_says_the_same() -> None:
    answers = make_answers()
    answers[:, 1] = 0.5
    result = analysed(answers)
    assert result["weighted_kappa"]["w"]["x"] == 0.0  # no better than chance, which is defined
    assert result["weighted_kappa"]["x"]["x"] is None
    assert result["t_pas"]["x"] == 0.5
    row = result["pairwise"][0]
    assert (row["first"], row["second"]) == ("w", "x")
    assert (row["t_pas_pearson"], row["t_pas_spearman"], row["t_pas_pearson_lo"]) == (None, None, None)
    assert row["t_pas_difference"] is not None
    assert "does not vary" in result["undefined"]["pairwise/w/x/t_pas"]
    assert any("x gave one and the same answer" in note for note in result["notes"])

    answers[:, 2] = 0.5
    both = analysed(answers)
    assert both["weighted_kappa"]["x"]["y"] is None
    assert "same answer throughout" in both["undefined"]["weighted_kappa/x/y"]

    everyone = analysed(np.ones_like(answers))
    assert (everyone["fleiss_kappa"], everyone["unanimous_rate"]) == (None, 1.0)
    assert everyone["alpha"]["ordinal"]["value"] is None
    assert "no disagreement could be expected" in everyone["undefined"]["fleiss_kappa"]
    assert everyone["disagreement"]["galleries"] == []


def test_one_teacher_and_two() -> None:
    answers = make_answers()
    alone = analysed(answers[:, :1])
    for key in ("unanimous_rate", "fleiss_kappa", "rationale_similarity"):
        assert alone[key] is None
        assert key in alone["undefined"]
    assert alone["n_items"] == 720
    assert alone["t_pas"]["w"] is not None
    assert (alone["pairwise"], alone["influence"], alone["disagreement"]["galleries"]) == ([], [], [])
    assert all(row["kappa"] is None for row in alone["per_question"].values())

    two = analysed(answers[:, :2])
    codes = (2 * items_of(answers[:, :2])).astype(int)
    assert two["fleiss_kappa"] == pytest.approx(statsmodels_fleiss(aggregate_raters(codes.T)[0]), abs=1e-12)
    assert len(two["pairwise"]) == 1
    assert len(two["influence"]) == 2


def test_questions_nobody_answered_and_teachers_that_share_no_item() -> None:
    answers = make_answers()
    answers[:, :, 4] = np.nan
    result = analysed(answers)
    assert result["per_question"]["P5"] == {"unanimous": None, "kappa": None}
    assert list(result["per_question"])[-1] == "P5"
    assert "every teacher answered" in result["undefined"]["per_question/P5/kappa"]

    answers = make_answers()
    answers[:30, 0] = np.nan
    answers[30:, 1] = np.nan
    apart = analysed(answers)
    assert (apart["n_pairs"], apart["n_items"], apart["fleiss_kappa"]) == (0, 0, None)
    assert apart["weighted_kappa"]["w"]["x"] is None
    assert apart["undefined"]["weighted_kappa/w/x"] == apart["undefined"]["fleiss_kappa"]
    assert apart["alpha"]["ordinal"]["value"] is not None  # pairs of the others
    assert apart["fleiss_per_item"]["kappa"] is not None
    assert apart["t_pas"]["w"] is not None

    with pytest.raises(CorpusError, match="no answer of w, x"):
        analysed(np.full((6, 2, 12), np.nan, dtype=np.float32))


def test_another_protocol_with_an_empty_group() -> None:
    questions = (Question("layout", "perceptual", "layout"), Question("hue", "perceptual", "hue"))
    protocol = Protocol("mine", questions, {"no": 0.0, "yes": 1.0})
    answers = np.round(make_answers(questions=2)).astype(np.float32)
    result = analysed(answers, protocol=protocol)
    assert set(result["per_question"]) == {"layout", "hue"}
    assert result["t_sas"] == dict.fromkeys("wxyz")
    assert "no question of T-SAS" in result["undefined"]["t_sas/w"]
    assert result["consensus"]["t_sas"] is None
    assert result["paper"] is None
    assert {gallery["key"] for gallery in result["disagreement"]["galleries"]} <= {"range", "t_pas"}
    row = result["pairwise"][0]
    assert row["exact"] + row["opposite"] == pytest.approx(1)  # of two answers none is one step away
    assert row["adjacent"] == 0
    assert set(result["by_teacher"][0]) >= {"share_no", "share_yes"}


@pytest.mark.parametrize("teachers", [2, 3, 4])
def test_influence_is_the_consensus_without_a_teacher(teachers: int) -> None:
    answers = make_answers(teachers=teachers, missing=0.03, seed=4)
    result = analysed(answers)
    full = consensus(answers).astype(float)
    for t, row in enumerate(result["influence"]):
        rest = consensus(np.delete(answers, t, axis=1)).astype(float)
        both = ~np.isnan(full) & ~np.isnan(rest)
        change = (full - rest)[both]
        assert row["questions_change"] == pytest.approx(np.abs(change).mean())
        assert row["questions_shift"] == pytest.approx(change.mean())
        assert row["questions_changed"] == pytest.approx((np.abs(change) > 0).mean())
        assert row["questions_spearman"] == pytest.approx(stats.spearmanr(full[both], rest[both]).statistic)
        assert row["questions_lost"] == (~np.isnan(full) & np.isnan(rest)).sum()
        scores = [axis_scores(values, BCS12) for values in (full, rest)]
        for at, axis in enumerate(("t_pas", "t_sas")):
            x, y = scores[0][at], scores[1][at]
            known = ~np.isnan(x) & ~np.isnan(y)
            assert row[f"{axis}_change"] == pytest.approx(np.abs(x - y)[known].mean())
            assert row[f"{axis}_largest"] == pytest.approx(np.abs(x - y)[known].max())
            assert row[f"{axis}_change_lo"] <= row[f"{axis}_change"] <= row[f"{axis}_change_hi"]
        before, after = regime_codes(*scores[0]), regime_codes(*scores[1])
        judged = (before != "") & (after != "")
        assert row["regime_changed"] == pytest.approx((before != after)[judged].mean())
        answered = ~np.isnan(answers[:, t]) & ~np.isnan(rest)
        assert row["offset"] == pytest.approx((answers[:, t] - rest)[answered].mean())
        assert row["per_question"]["S2"]["shift"] == pytest.approx((full - rest)[:, 7][both[:, 7]].mean())


def test_an_even_number_of_teachers_moves_an_answer_equally_far() -> None:
    result = analysed(make_answers())
    changes = {round(row["questions_change"], 9) for row in result["influence"]}
    assert len(changes) == 1
    odd = analysed(make_answers(teachers=3))
    assert len({round(row["questions_change"], 9) for row in odd["influence"]}) > 1


def test_the_strongest_disagreement_comes_first() -> None:
    answers = np.full((60, 4, 12), 0.5, dtype=np.float32)
    answers[9, 0, :], answers[9, 1, :] = 0.0, 1.0  # opposite on all
    answers[21, 0, :6] = 1.0  # half a scale on looks
    answers[33, 2, 6:], answers[33, 3, 6:] = 0.0, 1.0  # opposite on meaning
    corpus = make_corpus(answers)
    result = analyze(corpus, corpus.teachers, QUICK)
    galleries = {gallery["key"]: gallery["pairs"] for gallery in result["disagreement"]["galleries"]}
    assert [pair["pair_id"] for pair in galleries["range"]] == ["p0009", "p0033", "p0021"]
    assert [pair["pair_id"] for pair in galleries["t_pas"]] == ["p0009", "p0021"]
    assert [pair["pair_id"] for pair in galleries["t_sas"]] == ["p0009", "p0033"]
    first = galleries["range"][0]
    assert (first["apart_range"], first["apart_opposite"], first["t_pas"]["w"], first["t_pas"]["x"]) == (1, 12, 0, 1)
    assert first["answers"]["w"]["P1"] == 0.0
    rows = disagreement_rows(corpus, prepare(corpus, corpus.teachers, QUICK))
    assert [row["pair_id"] for row in rows[:4]] == ["p0009", "p0033", "p0021", "p0000"]
    assert len(rows) == 60


def test_a_pair_with_few_answers_does_not_lead() -> None:
    answers = np.full((4, 2, 12), 0.5, dtype=np.float32)
    answers[0, :, 1:] = np.nan
    answers[0, :, 0] = 0.0, 1.0
    corpus = make_corpus(answers)
    apart = pair_disagreement(prepare(corpus, corpus.teachers, QUICK))
    assert np.isnan(apart["range"][0])
    assert apart["opposite"].tolist() == [1, 0, 0, 0]


def test_pairs_without_a_concept_are_drawn_by_reference_picture() -> None:
    corpus = make_corpus(make_answers(n=12))
    pairs = corpus.pairs.assign(concept="na", reference_path=[f"ref{i // 3}.png" for i in range(12)])
    items = prepare(replace(corpus, pairs=pairs), corpus.teachers, QUICK)
    assert items.times.shape[1] == 4
    bare = prepare(replace(corpus, pairs=pairs.assign(reference_path="")), corpus.teachers, QUICK)
    assert bare.times.shape[1] == 12


def test_one_concept_has_no_intervals() -> None:
    corpus = make_corpus(make_answers(n=10))
    corpus = replace(corpus, pairs=corpus.pairs.assign(concept="cat"))
    result = analyze(corpus, corpus.teachers, QUICK)
    assert result["fleiss_kappa"] is not None
    assert result["ci95"]["fleiss_kappa"] is None
    assert result["ci95"]["t_pas"]["w"] is None
    assert result["pairwise"][0]["t_pas_pearson_lo"] is None
    assert any("One concept" in note for note in result["notes"])


def test_rationale_cosines_are_averaged_over_items() -> None:
    answers = make_answers(n=30, teachers=2)
    corpus = make_corpus(answers)
    used = np.zeros((30, 12), dtype=bool)
    used[:20] = True
    values = np.random.default_rng(0).uniform(0.2, 0.9, (240, 1))
    cosines = Cosines(used, values, values / 2, {"model": "made", "items": 240, "items_with_all_rationales": 240})
    result = analyze(corpus, corpus.teachers, QUICK, cosines)
    assert result["rationale_similarity"]["w"] == {"w": 1.0, "x": pytest.approx(values.mean())}
    low, high = result["ci95"]["rationale_similarity"]["w"]["x"]
    assert low < values.mean() < high
    row = result["rationales"]["pairwise"][0]
    pair, question = np.nonzero(used)
    same = answers[pair, 0, question] == answers[pair, 1, question]
    assert row["same_answer"] == pytest.approx(values[same].mean())
    assert row["other_answer"] == pytest.approx(values[~same].mean())
    assert row["other_pair"] == pytest.approx(values.mean() / 2)
    nothing = analyze(corpus, corpus.teachers, QUICK, "the encoder is not there")
    assert nothing["rationale_similarity"] is None
    assert nothing["undefined"]["rationale_similarity"] == "the encoder is not there"


def test_the_papers_values_stand_apart() -> None:
    paper = paper_agreement()
    assert (paper["unanimous_rate"], paper["fleiss_kappa"]) == (0.447, 0.363)
    result = analysed(make_answers())
    assert result["by_teacher"][0]["paper"] is None  # none of the paper's teachers
    assert {row["id"] for row in result["questions"] if row["paper"]} == set(paper["per_question"])
    answers = make_answers()
    corpus = replace(make_corpus(answers), teachers=("internvl3", "sail_vl", "ola", "ovis2"))
    own = analyze(corpus, ("internvl3", "ovis2"), QUICK)
    assert own["by_teacher"][1]["paper"] == {"t_pas": 0.337, "t_sas": 0.345}
    assert own["paper"]["weighted_kappa"] == {"internvl3": {"ovis2": 0.594}, "ovis2": {"internvl3": 0.594}}
    assert own["n_items"] == 720


def test_the_demo_of_the_papers_size_comes_near_its_tables() -> None:
    """The simulated teachers were fitted to these numbers; only truth and answers of the demo are made here."""
    from bcs_lab.corpus.demo.plan import plan_demo
    from bcs_lab.teachers.simulated import TEACHERS, simulate

    plans = plan_demo("paper", 0)
    truth = np.array([plan.truth for plan in plans], dtype=np.float32)
    ids = [plan.pair_id for plan in plans]
    answers = simulate(truth, ids, 0)
    pairs = pd.DataFrame({"pair_id": ids, "method": [plan.method for plan in plans]}).assign(
        subject="", concept=[plan.reference.concept for plan in plans], reference_path="", reconstruction_path=""
    )
    corpus = Corpus("demo", pairs.astype(object), TEACHERS, answers, np.full(answers.shape, "", dtype=object))
    result = analyze(corpus, TEACHERS)
    paper = paper_agreement()
    assert (result["n_pairs"], result["n_items"]) == (paper["pairs"], paper["items"])
    assert result["unanimous_rate"] == pytest.approx(paper["unanimous_rate"], abs=0.01)
    assert result["fleiss_kappa"] == pytest.approx(paper["fleiss_kappa"], abs=0.01)
    for axis in ("t_pas", "t_sas"):
        assert result[axis] == pytest.approx(paper[axis], abs=0.01)
    for question, own in paper["per_question"].items():
        assert result["per_question"][question] == pytest.approx(own, abs=0.04)
    for first, others in paper["weighted_kappa"].items():
        for second, value in others.items():
            assert result["weighted_kappa"][first][second] == pytest.approx(value, abs=0.02)
