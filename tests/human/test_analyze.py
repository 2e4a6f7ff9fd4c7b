"""What ratings say: numbers against scipy, scikit-learn and the definitions, and raters drawn from a known model."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from raters import draw_study, simulate, write_ratings
from scipy import stats
from sklearn.metrics import cohen_kappa_score

from bcs_lab.agreement import cluster_draws, krippendorff_alpha
from bcs_lab.human.analyze import Settings, _resampled, analyze, diagnostics, item_means, paper_table7
from bcs_lab.human.form import keep_questionnaire
from bcs_lab.human.questionnaire import Questionnaire
from bcs_lab.human.ratings import Ratings, read_ratings
from bcs_lab.human.study import STRATA, Study
from bcs_lab.human.tables import summary, table7_latex, table7_markdown, write_results

QUICK = Settings(resamples=100)


def rated(tmp_path: Path, asked: Questionnaire, given: list[dict[str, Any]] | None = None) -> tuple[Study, Ratings]:
    study = draw_study(tmp_path / "study")
    given = simulate(study, 4, missing=0.1) if given is None else given
    return study, read_ratings(write_ratings(tmp_path / "ratings", given), study, asked)


def test_kappa_and_alpha_of_each_group_and_question(tmp_path: Path, asked: Questionnaire) -> None:
    study, ratings = rated(tmp_path, asked)
    result = analyze(study, asked, ratings, Settings(weights="linear", resamples=100))
    assert [row["group"] for row in result["groups"]] == list(paper_table7()) == ["semantic", "perceptual", "coherence"]
    by_question = {row["question"]: [row["question"]] for row in result["questions"]}
    assert list(by_question) == [q for row in result["groups"] for q in _questions(asked, row["group"])]
    by_group = {row["group"]: _questions(asked, row["group"]) for row in result["groups"]}
    for rows, key, members in ((result["groups"], "group", by_group), (result["questions"], "question", by_question)):
        for row in rows:
            units = ratings.group(members[row[key]]).reshape(4, -1)
            kappas = []
            for a, b in combinations(units, 2):
                both = ~np.isnan(a) & ~np.isnan(b)
                pair = [(2 * side[both]).astype(int) for side in (a, b)]
                kappas.append(cohen_kappa_score(*pair, labels=[0, 1, 2], weights="linear"))
            assert row["kappa_mean"] == pytest.approx(np.mean(kappas))
            assert row["kappa_std"] == pytest.approx(np.std(kappas, ddof=1))
            assert row["alpha"] == pytest.approx(krippendorff_alpha(units, "ordinal"))
            assert row["alpha_nominal"] == pytest.approx(krippendorff_alpha(units, "nominal"))
            assert row["kappa_lo"] <= row["kappa_mean"] <= row["kappa_hi"]
            assert row["missing"] == np.isnan(units).sum()
            assert (row["rater_pairs"], row["rater_pairs_undefined"]) == (6, 0)


def _questions(asked: Questionnaire, group: str) -> list[str]:
    return next([q.id for q in one.questions] for one in asked.groups if one.id == group)


def test_correlations_are_those_of_scipy(tmp_path: Path, asked: Questionnaire) -> None:
    study, ratings = rated(tmp_path, asked)
    result = analyze(study, asked, ratings, QUICK)
    assert len(result["correlations"]) == 9
    for row in result["correlations"]:
        part = ratings.group(_questions(asked, row["group"]))
        mean = np.nanmean(np.nanmean(part, axis=0), axis=1)
        score = [getattr(item, row["score"]) for item in study.items]
        assert row["pearson"] == pytest.approx(stats.pearsonr(mean, score).statistic)
        assert row["spearman"] == pytest.approx(stats.spearmanr(mean, score).statistic)
        assert row["pearson_lo"] <= row["pearson_hi"]
    assert {(row["group"], row["score"]) for row in result["correlations"] if row["matching"]} == {
        ("perceptual", "t_pas"),
        ("semantic", "t_sas"),
        ("coherence", "coherence"),
    }


def test_resampled_correlations_are_those_of_copied_pairs() -> None:
    rng = np.random.default_rng(0)
    x, y = np.round(rng.uniform(0, 1, 12), 1), np.round(rng.uniform(0, 1, 12), 1)
    cluster = np.arange(12) // 2
    times = cluster_draws(6, 40, 1)[:, cluster]
    plain, ranked = _resampled(x, y, times)
    for b, row in enumerate(times):
        rows = np.repeat(np.arange(12), row.astype(int))
        assert plain[b] == pytest.approx(stats.pearsonr(x[rows], y[rows]).statistic)
        assert ranked[b] == pytest.approx(stats.spearmanr(x[rows], y[rows]).statistic)
    assert np.isnan(_resampled(np.ones(12), y, times)[0]).all()


def test_printed_tables_hold_minus_signs(tmp_path: Path, asked: Questionnaire) -> None:
    """One kind of minus throughout: no hyphen stands before a digit in what is printed or made for reading."""
    study = draw_study(tmp_path / "study")
    folder = write_ratings(tmp_path / "ratings", simulate(study, 4))
    turned = replace(study, items=tuple(replace(i, t_pas=1 - i.t_pas, t_sas=1 - i.t_sas) for i in study.items))
    result = analyze(turned, asked, read_ratings(folder, study, asked), QUICK)
    assert min(row["pearson"] for row in result["correlations"]) < 0
    text = summary(result)
    assert text.count("−") > 5
    assert not re.search(r"(?<![\w-])-\d", text)


def test_more_noise_is_less_agreement(tmp_path: Path, asked: Questionnaire) -> None:
    alphas, correlations = [], []
    for noise in (0.05, 0.2, 0.6):
        folder = tmp_path / str(noise)
        study = draw_study(folder / "study")
        ratings = read_ratings(write_ratings(folder / "r", simulate(study, 18, noise)), study, asked)
        result = analyze(study, asked, ratings, QUICK)
        alphas.append([row["alpha"] for row in result["groups"]])
        correlations.append([row["pearson"] for row in result["correlations"] if row["matching"]])
        assert result["raters"] == 18
        assert [row["rater_pairs"] for row in result["groups"]] == [153] * 3
    assert (np.diff(alphas, axis=0) < -0.1).all()
    assert min(alphas[0]) > 0.75
    assert min(correlations[0]) > 0.9


def test_constant_raters_are_counted_never_zero(tmp_path: Path, asked: Questionnaire) -> None:
    study = draw_study(tmp_path / "study")
    given = simulate(study, 4)
    for one in given[2:]:
        for answers in one["answers"].values():
            for answer in answers.values():
                answer.update(value=1.0, ms=300)
    _, ratings = rated(tmp_path / "again", asked, given)
    result = analyze(study, asked, ratings, QUICK)
    for row in result["groups"]:
        assert (row["rater_pairs"], row["rater_pairs_undefined"]) == (6, 1)
    assert any("1 of 6 pairs of raters have no kappa" in warning for warning in result["warnings"])
    flags = {row["rater"]: row["flags"] for row in result["rater_diagnostics"]}
    assert flags["r01"] == []
    assert flags["r03"] == ["fast: median 0.3 s an answer", "constant: one answer in 100% of cases", flags["r03"][2]]
    assert "agrees with nobody" in flags["r03"][2]
    # Only constant raters: everything that is undefined is null, and the tables still stand.
    for one in given[:2]:
        one["answers"] = given[2]["answers"]
    _, same = rated(tmp_path / "same", asked, given)
    result = analyze(study, asked, same, QUICK)
    for row in result["groups"]:
        assert [row[key] for key in ("kappa_mean", "kappa_std", "kappa_lo", "alpha", "alpha_lo")] == [None] * 5
        assert row["rater_pairs_undefined"] == 6
    assert all(row["pearson"] is None for row in result["correlations"])
    write_results(result, tmp_path / "out")
    text = (tmp_path / "out" / "study_results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["groups"][0]["alpha"] is None
    assert "NaN" not in text
    assert "–" in summary(result)


def test_one_rater_alone(tmp_path: Path, asked: Questionnaire) -> None:
    study = draw_study(tmp_path / "study")
    _, ratings = rated(tmp_path / "one", asked, simulate(study, 1, noise=0.05))
    result = analyze(study, asked, ratings, QUICK)
    assert all(row["kappa_mean"] is None and row["alpha"] is None for row in result["groups"])
    assert all(row["pearson"] > 0.8 for row in result["correlations"] if row["matching"])
    assert any("at least two" in warning for warning in result["warnings"])
    assert result["rater_diagnostics"][0]["kappa_with_others"] is None
    write_results(result, tmp_path / "out")


def test_strata_and_pairs(tmp_path: Path, asked: Questionnaire) -> None:
    study, ratings = rated(tmp_path, asked)
    result = analyze(study, asked, ratings, QUICK)
    assert [row["stratum"] for row in result["strata"]] == list(STRATA)
    means = {group.id: item_means(ratings, group) for group in asked.groups}
    for row in result["strata"]:
        mine = [at for at, item in enumerate(study.items) if item.stratum == row["stratum"]]
        assert row["t_pas"] == pytest.approx(np.mean([study.items[at].t_pas for at in mine]))
        assert row["rated_semantic"] == pytest.approx(means["semantic"][mine].mean())
    pair = result["pairs"][3]
    assert pair["rated_joint"] == pytest.approx((pair["rated_perceptual"] + pair["rated_semantic"]) / 2)


def test_diagnostics_compare_with_the_others(tmp_path: Path, asked: Questionnaire) -> None:
    _, ratings = rated(tmp_path, asked)
    flat = ratings.values.reshape(4, -1)
    (row, *_) = diagnostics(ratings, asked, QUICK)
    others = np.array(
        [column[~np.isnan(column)].mean() if np.isfinite(column).any() else np.nan for column in flat[1:].T]
    )
    use = ~np.isnan(flat[0]) & ~np.isnan(others)
    assert row["spearman_with_mean_of_others"] == pytest.approx(stats.spearmanr(flat[0][use], others[use]).statistic)
    assert row["answers"] + row["missing"] == 162
    assert row["cannot_say"] == row["missing"]
    assert any("answers missing" in flag for flag in row["flags"])


def test_tables_carry_the_papers_values_apart(tmp_path: Path, asked: Questionnaire) -> None:
    study, ratings = rated(tmp_path, asked)
    result = analyze(study, asked, ratings, QUICK)
    paths = write_results(result, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(path.name for path in paths)
    with (tmp_path / "out" / "table7.csv").open() as file:
        rows = {row["group"]: row for row in csv.DictReader(file)}
    assert float(rows["coherence"]["paper_alpha"]) == 0.882
    assert float(rows["semantic"]["paper_kappa_std"]) == 0.323
    assert float(rows["semantic"]["kappa_mean"]) == pytest.approx(result["groups"][0]["kappa_mean"])
    assert "0.110 ± 0.241" in table7_markdown(result)
    assert "paper's κ" in table7_markdown(result)
    tex = table7_latex(result)
    assert r"$0.483 \pm 0.323$" in tex
    assert tex.count(r"\\") == 5
    for name in ("reliability.png", "ratings_and_scores.png"):
        with Image.open(tmp_path / "out" / name) as image:
            assert image.width > 900
    text = summary(result)
    assert "other raters, other pictures" in text
    assert "unweighted" in text


def test_the_task_lists_problems_and_goes_on_without_them(
    bcs: Callable[..., int], tmp_path: Path, asked: Questionnaire, capsys: pytest.CaptureFixture[str]
) -> None:
    study = draw_study(tmp_path / "study", simulated=True)
    folder = write_ratings(tmp_path / "r", simulate(study, 3))
    settings = [f"ratings={folder}", f"study={tmp_path / 'study'}", "bootstrap.resamples=100", "out=results"]
    assert bcs("study", "analyze", *settings) == 2
    assert "bcs study form" in capsys.readouterr().err
    keep_questionnaire(tmp_path / "study", asked)
    (folder / "torn.json").write_text("{")
    assert bcs("study", "analyze", *settings) == 2
    assert "torn.json" in capsys.readouterr().err
    assert bcs("study", "analyze", *settings, "on_bad_row=skip", "level=interval", "kappa_weights=quadratic") == 0
    out = capsys.readouterr().out
    assert "SIMULATED" in out
    assert "quadratic weights" in out
    assert "alpha: interval" in out
    result = json.loads(Path("results/study_results.json").read_text())
    assert len(result["left_out"]) == 1
    assert result["settings"]["alpha_level"] == "interval"
    assert bcs("study", "analyze", *settings, "on_bad_row=skip", "exclude=[r02]") == 0
    assert json.loads(Path("results/study_results.json").read_text())["excluded"] == ["r02"]
