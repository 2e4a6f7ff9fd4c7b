"""Everything the audit says about one table of values, against pandas and scipy, also where there is little to say."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

sys.path.append(str(Path(__file__).parents[1] / "tasks"))

from drawn_corpus import draw_corpus

from bcs_lab.audit.analysis import ANALYSES, Measured, Probed, Settings, analyze, most_and_least, pair_rows, paper_audit
from bcs_lab.audit.consensus_scores import DEFINITIONS, consensus_scores
from bcs_lab.audit.gallery import mean_ranks, worst_pairs
from bcs_lab.audit.metrics import MetricSpec
from bcs_lab.corpus import Corpus, load_corpus
from bcs_lab.files import json_safe
from bcs_lab.report.audit_figures import write_figures
from bcs_lab.report.audit_tables import summary, tables

QUICK = Settings(resamples=100, pairs=2)
KEYS = ("metric_consensus", "caption", "degradation", "regimes", "unavailable")


def spec(name: str, *, higher: bool = True, kind: str = "pixel", paper: str | None = None) -> MetricSpec:
    return MetricSpec(name, name.upper(), higher, "RGB", "none", None, "none", kind, paper=paper)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return load_corpus("manifest", draw_corpus(tmp_path_factory.mktemp("corpus") / "drawn", concepts=20))


@pytest.fixture(scope="module")
def measured(corpus: Corpus) -> Measured:
    generator = np.random.default_rng(0)
    n = len(corpus)
    t_sas = consensus_scores(corpus.answers, corpus.protocol)["t_sas"]
    distance = 1 - t_sas + generator.normal(0, 0.1, n)
    noise = generator.uniform(size=n)
    noise[:4] = np.nan
    cosine = np.clip(t_sas + generator.normal(0, 0.2, n), -1, 1)
    cosine[-1] = np.nan
    probe = np.cumsum(generator.uniform(0, 1, (6, 6, 4)), axis=2)
    return Measured(
        specs={
            "distance": spec("distance", higher=False, kind="network", paper="lpips"),
            "noise": spec("noise", paper="ssim"),
            "missing": spec("missing"),
            "sets": spec("sets", kind="set"),
        },
        values={"distance": distance, "noise": noise},
        unavailable={"missing": "MISSING: its weights cannot be had.\nWays out: none."},
        failed={"noise": {"a damaged file": 4}},
        captions=cosine,
        caption_facts={"captioner": "a file", "sentences": "made up"},
        probed=Probed({"distance": probe, "noise": -probe}, {}, {"distinct": 6}),
        flags={"the reconstruction is one flat colour": ["p00_0"]},
        sets=[
            {"group": "overall", "metric": "sets", "pairs": n, "references": 20, "two_way": 0.7, "distance": 0.5},
            {"group": "m0", "metric": "sets", "pairs": 20, "references": 20, "two_way": np.nan, "distance": 0.4},
        ],
    )


@pytest.fixture(scope="module")
def result(corpus: Corpus, measured: Measured) -> dict[str, Any]:
    return analyze(corpus, corpus.teachers, measured, QUICK)


def test_the_documented_keys_come_first_and_are_strict_json(result: dict[str, Any]) -> None:
    assert tuple(result)[:5] == KEYS
    json.loads(json.dumps(json_safe(result), allow_nan=False))
    assert result["metric_consensus"]["missing"] == dict.fromkeys(("rho_pas", "r_pas", "rho_sas", "r_sas"))
    assert result["unavailable"] == {"missing": "MISSING: its weights cannot be had.\nWays out: none."}
    assert set(result["degradation"]["distance"]) == {"blur", "noise", "downsample", "jpeg", "color", "shift"}
    assert "sets" not in result["metric_consensus"]


def test_correlations_are_scipys_with_lower_is_better_negated(
    corpus: Corpus, measured: Measured, result: dict[str, Any]
) -> None:
    scores = consensus_scores(corpus.answers, corpus.protocol)
    own = result["metric_consensus"]
    for axis, short in (("t_pas", "pas"), ("t_sas", "sas")):
        distance = -measured.values["distance"]
        assert own["distance"][f"rho_{short}"] == pytest.approx(stats.spearmanr(distance, scores[axis])[0])
        assert own["distance"][f"r_{short}"] == pytest.approx(stats.pearsonr(distance, scores[axis])[0])
        noise = measured.values["noise"]
        assert own["noise"][f"rho_{short}"] == pytest.approx(stats.spearmanr(noise[4:], scores[axis][4:])[0])
    assert own["distance"]["rho_sas"] > 0.8
    row = next(row for row in result["consensus"] if row["metric"] == "distance")
    assert row["paper"] == paper_audit()["metric_consensus"]["lpips"]
    within = [r for r in result["within_methods"] if r["metric"] == "distance"]
    assert [r["method"] for r in within] == ["m0", "m1"]
    assert row["within_rho_sas"] == pytest.approx(np.average([r["rho_sas"] for r in within], weights=[20, 20]))
    other = consensus_scores(corpus.answers, corpus.protocol, "questions")["t_sas"]
    assert row["rho_sas_questions"] == pytest.approx(stats.spearmanr(-measured.values["distance"], other)[0])


def test_captions_are_table_1(measured: Measured, result: dict[str, Any]) -> None:
    cosine, quality = pd.Series(np.asarray(measured.captions)), pd.Series(-measured.values["distance"])
    both = cosine.notna()
    c, q = cosine[both], quality[both]
    own = result["caption"]["distance"]
    assert own["rho"] == pytest.approx(c.corr(q, method="spearman"))
    assert own["hr"] == pytest.approx((q < q.quantile(0.25))[c >= c.quantile(0.75)].mean())
    assert own["bsr"] == pytest.approx((c < c.quantile(0.25))[q >= q.quantile(0.75)].mean())
    assert result["caption"]["missing"] == dict.fromkeys(("rho", "r", "hr", "bsr"))


def test_the_captioners_own_metric_is_not_held_against_itself(corpus: Corpus, measured: Measured) -> None:
    facts = {"source": "distance"}
    again = Measured(measured.specs, measured.values, captions=measured.captions, caption_facts=facts)
    assert "distance" not in analyze(corpus, corpus.teachers, again, QUICK)["caption"]


def test_regimes_by_pandas(corpus: Corpus, result: dict[str, Any]) -> None:
    scores = consensus_scores(corpus.answers, corpus.protocol)
    table = pd.crosstab(
        corpus.pairs["method"], [np.where(scores["t_pas"] >= 0.5, "h", "l"), np.where(scores["t_sas"] >= 0.5, "h", "l")]
    )
    for method in ("m0", "m1"):
        own = result["regimes"][method]
        for p in "hl":
            for s in "hl":
                count = int(table.loc[method].get((p, s), 0))
                assert own[p + s] == count
                assert own[f"{p}{s}_share"] == pytest.approx(count / own["n"])
    assert result["regimes"]["overall"]["n"] == sum(result["regimes"][m]["n"] for m in ("m0", "m1")) == len(corpus)
    assert list(result["regime_rows"]) == ["teachers", "questions"]


def test_degradations_with_their_readings(result: dict[str, Any]) -> None:
    up = {row["degradation"]: row for row in result["degradations"] if row["metric"] == "distance"}
    assert all(row["per_image"] == 1.0 for row in up.values())  # a distance that grows is quality that falls
    assert up["blur"]["paper"] == paper_audit()["degradation"].get("lpips", {}).get("blur")
    noise = {row["degradation"]: row for row in result["degradations"] if row["metric"] == "noise"}
    assert noise["blur"]["rho"] == pytest.approx(up["blur"]["rho"])
    assert noise["blur"]["paper"] == paper_audit()["degradation"]["ssim"]["blur"]


def test_set_level_metrics_have_a_table_of_their_own(corpus: Corpus, result: dict[str, Any]) -> None:
    first, second = result["set_level"]
    assert (first["value"], second["value"]) == (0.7, None)
    t_sas = consensus_scores(corpus.answers, corpus.protocol)["t_sas"]
    assert second["t_sas"] == pytest.approx(t_sas[corpus.pairs["method"] == "m0"].mean())


def test_the_gallery_holds_the_worst_of_both_kinds(corpus: Corpus, measured: Measured, result: dict[str, Any]) -> None:
    t_sas = consensus_scores(corpus.answers, corpus.protocol)["t_sas"]
    noise = measured.values["noise"]
    low, high = np.nanquantile(noise, [0.25, 0.75])
    gallery = next(gallery for gallery in result["gallery"] if gallery["metric"] == "noise")
    assert gallery["harsh"]
    for pair in gallery["harsh"]:
        assert t_sas[pair["row"]] >= 0.5
        assert noise[pair["row"]] < low
    for pair in gallery["blind"]:
        assert t_sas[pair["row"]] < 0.5
        assert noise[pair["row"]] >= high
    gap = mean_ranks(np.where(np.isnan(noise), np.nan, t_sas)) - mean_ranks(noise)
    right = np.flatnonzero((t_sas >= 0.5) & (noise < low))
    assert gallery["harsh"][0]["row"] == right[np.argmax(gap[right])]
    pair = gallery["harsh"][0]
    assert pair["scores"]["distance"]["value"] == measured.values["distance"][pair["row"]]
    assert len({p["concept"] for p in gallery["harsh"]}) == len(gallery["harsh"])


def test_worst_pairs_of_nothing() -> None:
    nan, no = np.full(3, np.nan), np.zeros(3, dtype=bool)
    assert worst_pairs(nan, nan, no, no, ["a", "b", "c"], 2) == ([], [])
    assert mean_ranks(np.array([2.0])).tolist() == [0.5]


def test_notes_say_what_is_missing_and_flagged(result: dict[str, Any]) -> None:
    notes = " ".join(result["notes"])
    assert "NOISE: no value for 4 of 40 pairs: a damaged file (4)." in notes
    assert "1 of 40 pairs: the reconstruction is one flat colour (p00_0)." in notes
    assert "With T-SAS, DISTANCE goes most" in notes
    text = summary(result)
    assert "MISSING: its weights cannot be had" in text
    assert "nan" not in text.lower().replace("distance", "").split()


def test_pairs_that_trained_a_model_are_counted(corpus: Corpus, measured: Measured) -> None:
    for known, said in (({"noise": 3, "distance": 3}, 1), ({"noise": 0}, 0), ({"noise": None}, 0)):
        own = Measured(measured.specs, measured.values, trained_on=known)
        notes = analyze(corpus, corpus.teachers, own, QUICK)["notes"]
        assert sum("3 of 40 pairs trained the model" in note for note in notes) == said


def test_pairs_without_a_score_are_counted_on_each_axis(corpus: Corpus, measured: Measured) -> None:
    answers = corpus.answers.copy()
    answers[:5, :, 6:] = np.nan  # no semantic answer
    answers[5, :, :6] = np.nan  # no perceptual one
    result = analyze(replace(corpus, answers=answers), corpus.teachers, measured, QUICK)
    row = result["consensus"][0]
    assert (row["n_pas"], row["n_sas"]) == (39, 35)
    table = next(table for table in tables(result) if table.name == "consensus")
    assert [column.heading for column in table.columns[1:3]] == ["pairs T-PAS", "pairs T-SAS"]
    assert [column.cell(row) for column in table.columns[1:3]] == ["39", "35"]
    said = "Of 40 pairs there is no T-PAS of 1, no T-SAS of 5 and no regime of 6"
    assert any(said in note for note in result["notes"])


@pytest.mark.filterwarnings("error")
def test_a_protocol_without_semantic_questions(corpus: Corpus, measured: Measured, tmp_path: Path) -> None:
    protocol = replace(corpus.protocol, name="looks", questions=corpus.protocol.questions[:6])
    looks = replace(corpus, protocol=protocol, answers=corpus.answers[:, :, :6])
    result = analyze(looks, looks.teachers, replace(measured, captions="not asked for"), QUICK)
    why = "the protocol looks has no semantic questions"
    assert result["undefined"]["failures"] == result["undefined"]["regimes"] == why
    assert result["undefined"]["metric_consensus/noise/rho_sas"] == why
    assert result["undefined"]["gallery"] == f"{why}, and there are no captions"
    assert not [key for key in result["undefined"] if key.startswith(("regimes/", "failures/"))]
    assert result["regimes"] is None
    assert result["metric_consensus"]["noise"]["rho_pas"] is not None
    assert {table.name for table in tables(result)} == {"metric_list", "consensus", "degradation", "set_level"}
    text = summary(result)
    assert f"No failures: {why}" in text
    assert f"No regimes: {why}" in text
    assert "there is no T-SAS" in text
    assert "regimes.png" not in {path.name for path in write_figures(result, tmp_path)}


@pytest.mark.filterwarnings("error")
def test_regimes_of_no_pair_have_a_reason_for_each_consensus(corpus: Corpus, tmp_path: Path) -> None:
    answers = corpus.answers.copy()
    answers[:, :, 6:] = np.nan
    result = analyze(replace(corpus, answers=answers), corpus.teachers, Measured({}, {}), QUICK)
    keys = {key for key in result["undefined"] if key.startswith("regimes/")}
    assert keys == {f"regimes/{name}/{group}" for name in DEFINITIONS for group in ("overall", "m0", "m1")}
    assert "regimes.png" not in {path.name for path in write_figures(result, tmp_path)}


def test_most_and_least_by_one_rule() -> None:
    def rows(*values: float | None) -> list[dict[str, Any]]:
        return [{"rho": value} for value in values]

    assert most_and_least(rows(0.4, None, 0.1, -0.5), "rho") == ({"rho": 0.4}, {"rho": -0.5})
    assert most_and_least(rows(-0.4, -0.2), "rho") == ({"rho": -0.2}, {"rho": -0.4})
    assert most_and_least(rows(0.4, None), "rho") == ({"rho": 0.4}, None)
    assert most_and_least(rows(0.4, 0.4), "rho") == ({"rho": 0.4}, None)
    for values in ((), (None,), (0.09, -0.05)):
        assert most_and_least(rows(*values), "rho") == (None, None)


def test_one_metric_or_none_that_matters_has_no_most_and_least(corpus: Corpus, measured: Measured) -> None:
    one = Measured(measured.specs, {"distance": measured.values["distance"]})
    assert not [note for note in analyze(corpus, corpus.teachers, one, QUICK)["notes"] if "goes most" in note]


def test_what_costs_every_metric_its_value_is_said_once(corpus: Corpus) -> None:
    values = np.linspace(0, 1, len(corpus))
    values[3] = np.nan
    names = ("one", "two", "three")
    bad = {"reference image: cut short": 1}
    for failed, who in (
        (dict.fromkeys(names, bad), ["Every metric"]),
        ({"one": bad, "three": bad, "two": {"undefined": 1}}, ["ONE, THREE", "TWO"]),
    ):
        measured = Measured({name: spec(name) for name in names}, dict.fromkeys(names, values), failed=failed)
        notes = analyze(corpus, corpus.teachers, measured, QUICK)["notes"]
        assert [note.split(":")[0] for note in notes if "no value for 1 of 40 pairs" in note] == who


def test_a_method_called_like_all_pairs_is_no_other_group(corpus: Corpus, measured: Measured) -> None:
    names = corpus.pairs["method"].replace("m0", "overall")
    odd = replace(corpus, pairs=corpus.pairs.assign(method=names))
    result = analyze(odd, odd.teachers, measured, QUICK)
    rows = result["regime_rows"]["teachers"]
    assert [row["group"] for row in rows] == ["overall", "m1", "'overall'"]
    assert [row["n"] for row in rows] == [40, 20, 20]
    assert rows[0]["paper"] is not None
    assert rows[2]["paper"] is None
    assert list(result["regimes"]) == ["overall", "m1", "'overall'"]


def test_without_teachers_captions_judge(corpus: Corpus, measured: Measured) -> None:
    result = analyze(corpus, (), measured, QUICK)
    assert result["metric_consensus"] is None
    assert result["regimes"] is None
    assert "no teacher" in result["undefined"]["consensus"]
    assert result["caption"]["distance"]["rho"] is not None
    assert {gallery["by"] for gallery in result["gallery"]} == {"the cosine of the captions"}
    assert [table.name for table in tables(result)] == ["metric_list", "captions", "degradation", "set_level"]
    nothing = analyze(corpus, (), Measured({}, {}), QUICK)
    assert set(nothing["undefined"]) == set(ANALYSES)
    assert "No captions: not asked for" in summary(nothing)
    assert "t_sas" not in pair_rows(corpus, (), measured, QUICK)[0]


def test_a_constant_metric_and_one_of_nothing(corpus: Corpus) -> None:
    n = len(corpus)
    measured = Measured(
        {"flat": spec("flat"), "empty": spec("empty")}, {"flat": np.full(n, 0.5), "empty": np.full(n, np.nan)}
    )
    result = analyze(corpus, corpus.teachers, measured, Settings(("consensus", "failures", "gallery"), resamples=100))
    assert result["metric_consensus"]["flat"]["rho_sas"] is None
    assert result["undefined"]["metric_consensus/flat/rho_sas"] == "the metric is the same throughout"
    assert "0 pairs have both" in result["undefined"]["metric_consensus/empty/rho_sas"]
    assert "no pair has both" in result["undefined"]["failures/empty/threshold"]
    assert any("its quartiles mean nothing" in note for note in result["notes"])
    assert result["caption"] is None


def test_the_text_explains_its_brackets_and_its_headings(result: dict[str, Any]) -> None:
    text = summary(result)
    for table in tables(result)[1:]:
        heads = [(column.group, column.heading) for column in table.columns]
        assert len(set(heads)) == len(heads), table.name
        if not table.name.startswith("regimes_"):
            assert table.notes
            assert all(f"- {note}" in text for note in table.notes)
    assert "in brackets within each image" in text
    assert "harsh by chance" in text
    assert "blind by chance" in text


def test_tables_in_three_forms(result: dict[str, Any]) -> None:
    found = {table.name: table for table in tables(result)}
    assert set(found) == {
        "metric_list", "consensus", "failures", "captions", "degradation", "regimes", "regimes_questions", "set_level",
    }  # fmt: skip
    table = found["consensus"]
    assert "| MISSING \\(unavailable\\) |" in table.markdown() or "| MISSING (unavailable) |" in table.markdown()
    assert "paper's corpus: ρ T-SAS" in table.markdown()
    assert r"\multicolumn{4}{c}{paper's corpus}" in table.latex()
    assert r"$\rho$ T-SAS" in table.latex()
    assert table.flat[0]["paper_rho_sas"] == 0.239
    rows = [line for line in table.latex().splitlines() if line.endswith(r"\\")]
    assert len({line.count(" & ") for line in rows[1:]}) == 1
    # without the paper's metrics there are no columns of the paper
    assert "paper's corpus" not in found["failures"].markdown()
