"""What a report says, that it says it safely, and that it is made whatever is missing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from report_runs import CLOSING, IMAGE, SCRIPT, TEACHERS, draw, open_drawn, predict, score_run, train_run

from bcs_lab.cli import main
from bcs_lab.errors import ConfigError, RunError
from bcs_lab.files import write_json
from bcs_lab.report.page import Options, embed_json, write_report
from bcs_lab.report.page_corpus import ssim
from bcs_lab.report.page_stats import (
    covered,
    cross_regimes,
    galleries,
    pairwise_agreement,
    question_rows,
    ranks,
    reliability,
    unanimous,
)
from bcs_lab.report.table import HEADINGS
from bcs_lab.teachers.protocol import BCS12

CONCEPTS = [f"thing_{index}" for index in range(9)]


class Parsed(HTMLParser):
    """Tags with their attributes, texts of scripts, and rows of cells of every table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self._script: dict[str, str | None] | None = None
        self._style = self._cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs)
        self._style = tag == "style"
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True
        if tag == "small" and self._cell and self.rows[-1][-1]:
            self.rows[-1][-1] += " | "

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None
        if tag == "style":
            self._style = False
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts.append((self._script, data))
        elif not self._style:
            self.words.append(data)
            if self._cell:
                self.rows[-1][-1] += data.strip()

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def data(self, name: str) -> Any:
        return next(json.loads(text) for attributes, text in self.scripts if attributes.get("id") == name)

    def row(self, label: str) -> list[str]:
        return next(row for row in self.rows if row and row[0].startswith(label))


def report(*folders: Path, start: Path | None = None, out: Path | None = None, **options: Any) -> Parsed:
    page = out or folders[0].parent / "page.html"
    write_report(list(folders), page, Options(**options), start=start or folders[0].parent)
    return Parsed(page.read_text(encoding="utf-8"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return draw(tmp_path / "corpus", concepts=CONCEPTS, methods=("m1", "m2"))


# --- content ----------------------------------------------------------------------------------------------------------


def test_numbers_are_those_of_the_run(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    metrics = json.loads((run / "metrics.json").read_text())
    page = report(run)
    row = page.row("BCS ensemble, continuous")
    for cell, key in zip(row[1:], HEADINGS, strict=True):
        low, high = metrics["ci95"][key]
        assert cell == f"{metrics['ensemble'][key]:.3f} | {low:.2f}–{high:.2f}"
    assert "seed 7 (epoch 3)" in page.row("seed 7")[0]
    assert page.row("4-VLM continuous ensemble")[4] == "0.079"
    assert "another corpus" in page.text
    assert "On T-PAS a plain baseline ranks pairs better than this ensemble: cosine lowlevel (ρ 0.999" in page.text
    assert page.row("half width")[1:] == ["0.200", "–"]
    assert page.row("held-out coverage, mean over concepts")[1:] == ["88 %", "–"]


def test_an_undefined_statistic_is_a_dash(tmp_path: Path, corpus: Path) -> None:
    undefined = dict.fromkeys(HEADINGS)
    page = report(train_run(tmp_path / "run", corpus, ensemble=undefined, ci95=undefined))
    assert page.row("BCS ensemble, continuous")[1:] == ["–"] * 9
    assert "None" not in page.text
    assert "nan" not in page.text.lower().split()


def test_questions_show_error_and_agreement(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    frame = pd.read_parquet(run / "predictions.parquet")
    test = frame[frame["split"] == "test"]
    row = report(run).row("P4")
    error = (test["P4_target"] - test["P4_prediction"]).abs().mean()
    assert row[1] == str(len(test))
    assert row[4] == f"{error:.3f}"
    assert row[5] == f"{test['P4_target'].corr(test['P4_prediction']):.3f}"
    answers = open_drawn(corpus).answers[frame["split"] == "test"][:, :, 3]
    assert row[7] == f"{np.mean([len(set(given)) == 1 for given in answers.tolist()]):.0%}".replace("%", " %")


def test_every_pair_is_in_the_data(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    frame = pd.read_parquet(run / "predictions.parquet")
    data = report(run).data("run-0")
    rows = data["rows"]
    assert rows["id"] == frame["pair_id"].tolist()
    assert rows["p"][0] == [round(1000 * float(frame[f"{q}_prediction"][0])) for q in BCS12.ids]
    assert rows["ax"]["t_pas"]["lo"][0] == round(1000 * max(0.0, frame["t_pas_prediction"][0] - 0.2))
    assert rows["ax"]["t_sas"]["lo"][0] is None
    assert [data["concepts"][c] for c in rows["c"]] == open_drawn(corpus).pairs["concept"].tolist()
    answers = open_drawn(corpus).answers[0]
    assert rows["a"][0] == "".join(str(int(2 * value)) for value in answers.ravel().tolist())
    assert [item["key"] for item in data["galleries"]] == ["best", "worst", "uncertain", "wrong", "harsh", "blind"]
    for gallery in data["galleries"]:
        assert {data["parts"][rows["part"][row]] for row in gallery["rows"]} == {"test"}
        for row in gallery["rows"]:
            assert len(rows["img"][str(row)]) == 2
            said = [data["texts"][index] for index in rows["r"][str(row)]]
            assert said[13] == "seen P2 by b"


def test_best_is_best_and_pictures_are_stored_once(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    page = report(run, part="all", pairs=3)
    data, images = page.data("run-0"), page.data("images")
    axes = data["rows"]["ax"]
    overall = [p + s for p, s in zip(axes["t_pas"]["v"], axes["t_sas"]["v"], strict=True)]
    assert data["galleries"][0]["rows"][0] == int(np.argmax(overall))
    assert len(images) == len(set(images)) == 27
    assert len(data["rows"]["img"]) == 18
    assert all(uri.startswith("data:image/") for uri in images)
    assert "Seen in training." in page.text


def test_a_scoring_run_with_answers(tmp_path: Path, corpus: Path) -> None:
    page = report(score_run(tmp_path / "run", corpus, ood=5))
    assert "BCS scores of corpus" in page.text
    assert "2 skipped" in page.text
    assert "5) are far from the images" in page.text
    frame = pd.read_parquet(tmp_path / "run" / "scores.parquet")
    row = page.row("m1")
    assert row[3].startswith(f"{frame.loc[frame['method'] == 'm1', 't_pas'].mean():.3f} | ")
    assert "Differences between methods" in page.text
    assert "consensus ↓ predicted →" in page.text
    target, prediction = predict(open_drawn(corpus))
    inside = np.abs(target[:, :6].mean(axis=1) - prediction[:, :6].mean(axis=1)) <= 0.2
    assert page.row("holds the consensus, over pairs")[1] == f"{inside.mean():.0%}".replace("%", " %")


def test_a_scoring_run_of_files_without_answers(tmp_path: Path, corpus: Path) -> None:
    page = report(score_run(tmp_path / "run", corpus, answers=False, warnings=["STAND-INS: something else was used."]))
    assert "Against the teachers’ consensus" not in page.text
    assert "Stand-ins. Something else was used." in page.text
    assert "no teachers’ answers that calibration" in page.text
    charts = [attributes.get("aria-label") for tag, attributes in page.tags if tag == "svg"]
    assert any("Distribution of T-PAS" in (label or "") for label in charts)
    data = page.data("run-0")
    assert data["rows"]["img"], "the table's own paths give the pictures"
    assert data["rows"]["a"] is None
    assert [item["key"] for item in data["galleries"]] == ["best", "worst", "uncertain", "harsh", "blind"]


def test_simulated_teachers_and_stand_ins_have_a_banner(tmp_path: Path, corpus: Path) -> None:
    page = report(train_run(tmp_path / "run", corpus, simulated_teachers=True, encoders=["siglip (stand-in lowlevel)"]))
    assert "Simulated teachers." in page.text
    assert "Stand-in encoders. Not the encoders asked for: siglip (stand-in lowlevel)." in page.text


def test_several_runs_stand_beside_each_other(tmp_path: Path, corpus: Path) -> None:
    first = train_run(tmp_path / "one", corpus)
    second = train_run(tmp_path / "two", corpus, head="coral")
    third = score_run(tmp_path / "three", corpus)
    page = report(first, second, third)
    assert "Comparison of 3 runs" in page.text
    assert [attributes["id"] for tag, attributes in page.tags if attributes.get("role") == "tab"] == [
        "tab-0", "tab-1", "tab-2",
    ]  # fmt: skip
    # Runs go by corpus and folder, in the tables and on the tabs; what the model is stands beneath.
    assert page.row("corpus · one")[0] == "corpus · one | lowlevel · continuous"
    assert page.row("corpus · two")[0] == "corpus · two | lowlevel · coral"
    assert page.row("corpus · three")[0] == "corpus · three | lowlevel"
    assert "corpus · one corpus · two corpus · three" in page.text
    assert page.data("run-2")["rows"]["id"] == page.data("run-0")["rows"]["id"]
    images = page.data("images")
    assert len(images) == len(set(images)) == 27


def test_runs_of_one_name_are_told_apart_by_the_folder_above(tmp_path: Path, corpus: Path) -> None:
    folders = [train_run(tmp_path / above / "run", corpus, encoders=["one", "two"]) for above in ("a", "b")]
    page = report(*folders, out=tmp_path / "page.html")
    for above in ("a", "b"):
        assert page.row(f"corpus · {above}/run")[0] == f"corpus · {above}/run | one + two"


def test_one_pair_is_no_pairs(tmp_path: Path) -> None:
    root = draw(tmp_path / "corpus", concepts=["thing"], methods=("m",))
    run, scored = train_run(tmp_path / "run", root), score_run(tmp_path / "scored", root, ood=1)
    assert not re.findall(r"\b1 (?:[\w-]+ )?pairs", report(run, part="test").text)
    page = report(scored)
    assert not re.findall(r"\b1 (?:[\w-]+ )?pairs", page.text)
    assert "1 pair unlike the training images" in page.text
    written = write_report([scored], tmp_path / "again.html", start=tmp_path)
    assert "MB: 1 pair, 2 pictures, 1 pair with all details" in written.summary


# --- safety -----------------------------------------------------------------------------------------------------------


def hostile(tmp_path: Path) -> tuple[Path, Path]:
    root = draw(tmp_path / "co&r'pus", concepts=[SCRIPT, IMAGE, CLOSING, "plain"], methods=(IMAGE, "m"), said=CLOSING)
    return train_run(tmp_path / "a<b>'run", root, teachers=list(TEACHERS), head=SCRIPT), root


def test_what_comes_from_elsewhere_is_escaped(tmp_path: Path) -> None:
    run, root = hostile(tmp_path)
    scored = score_run(tmp_path / "scored", root, warnings=[SCRIPT])
    page = report(run, scored, out=tmp_path / "page.html")
    raw = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert raw.count("<script") == 5  # theme, behaviour, pictures, two runs
    assert "<script>window.pwned" not in raw
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    data = page.data("run-0")
    assert set(data["concepts"]) == {SCRIPT, IMAGE, CLOSING, "plain"}
    assert f"{CLOSING} P1 by a" in data["texts"]
    assert SCRIPT in page.text
    assert str(run) in page.text


def test_json_cannot_leave_its_element() -> None:
    text = embed_json({"k": [CLOSING, SCRIPT, float("nan")]})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"k": [CLOSING, SCRIPT, None]}


def test_nothing_is_fetched_and_the_policy_names_the_scripts(tmp_path: Path, corpus: Path) -> None:
    page = report(train_run(tmp_path / "run", corpus))
    raw = (tmp_path / "page.html").read_text(encoding="utf-8")
    for tag, attributes in page.tags:
        for name in ("src", "href", "action", "poster", "data", "srcset"):
            assert (attributes.get(name) or "#").startswith("#"), (tag, attributes)
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org)", raw)
    assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "object", "embed", "base", "form")]
    policy = next(attributes["content"] or "" for _, attributes in page.tags if attributes.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-")
    running = [text for attributes, text in page.scripts if attributes.get("type") != "application/json"]
    assert len(running) == 2
    for text in running:
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert "innerHTML" not in raw
    assert "insertAdjacentHTML" not in raw


# --- size -------------------------------------------------------------------------------------------------------------


def test_the_bound_is_kept_and_what_is_left_out_is_said(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    whole = report(run, out=tmp_path / "whole.html")
    size = (tmp_path / "whole.html").stat().st_size
    bare = size - len(json.dumps(whole.data("images")))
    bound = bare + 3_000
    page = report(run, out=tmp_path / "small.html", max_mb=bound / 1e6)
    assert (tmp_path / "small.html").stat().st_size <= bound
    assert 0 < len(page.data("images")) < len(whole.data("images"))
    assert "To keep the page small: The galleries lack" in page.text
    shown = [row for gallery in page.data("run-0")["galleries"] for row in gallery["rows"]]
    assert {str(row) for row in shown} <= page.data("run-0")["rows"]["img"].keys()


def test_rows_go_when_pictures_are_not_enough(tmp_path: Path) -> None:
    root = draw(tmp_path / "corpus", concepts=[f"c{i}" for i in range(60)], methods=("m",))
    run = train_run(tmp_path / "run", root)
    report(run, out=tmp_path / "whole.html")
    rows = len(embed_json(Parsed((tmp_path / "whole.html").read_text(encoding="utf-8")).data("run-0")["rows"]))
    texts = len(embed_json(Parsed((tmp_path / "whole.html").read_text(encoding="utf-8")).data("images")))
    bound = (tmp_path / "whole.html").stat().st_size - texts - rows // 2
    page = report(run, out=tmp_path / "small.html", max_mb=bound / 1e6)
    assert (tmp_path / "small.html").stat().st_size <= bound
    assert len(page.data("run-0")["rows"]["id"]) == 20
    assert "40 pairs are left out of the table of pairs." in page.text


def test_a_bound_that_cannot_be_kept_is_refused(tmp_path: Path, corpus: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_mb=0\.01: this report needs about 0\.\d MB"):
        report(train_run(tmp_path / "run", corpus), max_mb=0.01)
    assert not (tmp_path / "page.html").exists()


# --- what may be missing ----------------------------------------------------------------------------------------------


def test_a_corpus_that_is_gone_is_said(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    shutil.rmtree(corpus)
    page = report(run)
    assert "The corpus folder of this run was not found" in page.text
    assert "Unknown here, since the corpus could not be opened." in page.text
    assert page.row("P4")[7:] == ["–", "–"]
    assert page.data("images") == []
    assert "there is no metric to hold the scores against" in page.text
    assert page.data("run-0")["galleries"]


def test_a_corpus_that_cannot_be_read_is_said(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    (corpus / "manifest.csv").unlink()
    assert "The corpus of this run could not be opened" in report(run).text


def test_lost_pictures_leave_the_answers(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    shutil.rmtree(corpus / "images")
    page = report(run)
    assert "The corpus' images cannot be used" in page.text
    assert page.data("run-0")["rows"]["r"]
    assert page.row("P4")[7] != "–"


def test_a_changed_corpus_is_said(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    path = corpus / "annotations" / "a.jsonl"
    path.write_text(path.read_text().replace('"yes"', '"no"'))
    assert "The consensus in the corpus differs from the one this run learned" in report(run).text


@pytest.mark.parametrize("where", ["recorded", "above", "current"])
def test_a_relative_corpus_is_found_where_the_run_was_started(tmp_path: Path, where: str) -> None:
    home = tmp_path / "home"
    root = draw(home / "corpus", concepts=CONCEPTS[:6], methods=("m",))
    folder = {"above": home / "runs" / "train" / "x"}.get(where, tmp_path / "elsewhere" / "x")
    run = train_run(folder, root, written_root="corpus")
    if where == "recorded":
        write_json(run / "run.json", {"state": "finished", "corpus": "corpus", "start": str(home)})
    page = report(run, start=home if where == "current" else tmp_path)
    assert page.data("images")


def test_a_run_without_coverage_is_said(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    (run / "coverage.json").unlink()
    page = report(run)
    assert "No prediction intervals" in page.text
    assert page.data("run-0")["rows"]["ax"]["t_pas"]["lo"][0] is None


# --- errors -----------------------------------------------------------------------------------------------------------


def test_what_is_no_finished_run_is_named(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    (tmp_path / "empty").mkdir()
    write_json(tmp_path / "going" / "run.json", {"state": "running"})
    failed = train_run(tmp_path / "failed", corpus)
    write_json(failed / "run.json", {"state": "failed", "error": "RunError: boom"})
    damaged = train_run(tmp_path / "damaged", corpus)
    (damaged / "metrics.json").write_text("{")
    with pytest.raises(RunError) as caught:
        report(run, tmp_path / "missing", tmp_path / "empty", tmp_path / "going", failed, damaged)
    message = str(caught.value)
    assert message.startswith("5 of 6 runs cannot be reported:")
    assert "missing: no such folder" in message
    assert "holds neither metrics.json (`bcs train`) nor score.json (`bcs score`)" in message
    assert "it is still going on" in message
    assert "run.json says 'failed' (RunError: boom)" in message
    assert f"{damaged / 'metrics.json'}: expected JSON, found a damaged file" in message
    with pytest.raises(RunError, match=r"'runs=\[.*going|holds \d run"):
        report(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ensemble": {}}, r"metrics\.json: lacks ensemble\.q_mae, ensemble\.q_r"),
        ({"ensemble": []}, r"metrics\.json: wrong type: ensemble is list"),
        ({"encoders": "lowlevel"}, r"metrics\.json: wrong type: encoders is str"),
    ],
)
def test_wrong_content_is_named(tmp_path: Path, corpus: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(RunError, match=message):
        report(train_run(tmp_path / "run", corpus, **change))


def test_a_damaged_table_is_named(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    frame = pd.read_parquet(run / "predictions.parquet")
    frame.drop(columns=["P3_target", "t_sas_prediction"]).to_parquet(run / "predictions.parquet")
    with pytest.raises(RunError, match=r"predictions\.parquet: lacks the column\(s\) P3_target, t_sas_prediction"):
        report(run)
    (run / "predictions.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunError, match=r"predictions\.parquet: cannot be read"):
        report(run)


def test_an_empty_part_is_named(tmp_path: Path, corpus: Path) -> None:
    run = train_run(tmp_path / "run", corpus)
    frame = pd.read_parquet(run / "predictions.parquet")
    frame.assign(split="train").to_parquet(run / "predictions.parquet")
    with pytest.raises(ConfigError, match=r"part=test: .* has no pair in that part"):
        report(run)


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_ssim_is_its_formula_in_every_window() -> None:
    generator = np.random.default_rng(0)
    first = generator.uniform(size=(20, 26))
    second = np.clip(first + generator.normal(0, 0.2, first.shape), 0, 1)
    line = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    weights = np.outer(line, line) / line.sum() ** 2
    values = []
    for top in range(20 - 10):
        for left in range(26 - 10):
            x, y = (image[top : top + 11, left : left + 11] for image in (first, second))
            mean_x, mean_y = (weights * x).sum(), (weights * y).sum()
            spread = (weights * ((x - mean_x) ** 2 + (y - mean_y) ** 2)).sum()
            together = (weights * (x - mean_x) * (y - mean_y)).sum()
            light = (2 * mean_x * mean_y + 1e-4) / (mean_x**2 + mean_y**2 + 1e-4)
            values.append(light * (2 * together + 9e-4) / (spread + 9e-4))
    assert ssim(first, second) == pytest.approx(np.mean(values), abs=1e-9)
    assert ssim(first, first) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="one shape"):
        ssim(first, second[:, :20])


def test_question_rows_against_pandas() -> None:
    generator = np.random.default_rng(1)
    target = np.round(4 * generator.uniform(size=(50, 12))) / 4
    target[generator.uniform(size=target.shape) < 0.1] = np.nan
    target[:, 7] = 0.5
    prediction = generator.uniform(size=target.shape)
    answers = np.round(2 * generator.uniform(size=(50, 3, 12))) / 2
    answers[0] = np.nan
    rows = question_rows(prediction, target, answers, BCS12)
    for index, row in enumerate(rows):
        x, y = pd.Series(prediction[:, index]), pd.Series(target[:, index])
        assert row.n == y.notna().sum()
        assert row.mae == pytest.approx((x - y).abs().mean())
        if index == 7:
            assert row.r is None
            assert row.rho is None
        else:
            assert row.r == pytest.approx(x.corr(y))
            assert row.rho == pytest.approx(x.where(y.notna()).corr(y, method="spearman"))
        given = answers[1:, :, index]
        assert row.unanimous == pytest.approx(np.mean([len(set(line)) == 1 for line in given.tolist()]))
        equal = [(given[:, a] == given[:, b]).mean() for a, b in ((0, 1), (0, 2), (1, 2))]
        assert row.agreement == pytest.approx(np.mean(equal))


def test_agreement_is_undefined_for_one_teacher() -> None:
    one = np.array([[1.0], [0.0]])
    assert unanimous(one) is None
    assert pairwise_agreement(one) is None


def test_reliability_against_pandas() -> None:
    generator = np.random.default_rng(2)
    x = generator.uniform(size=400)
    y = np.where(generator.uniform(size=400) < 0.1, np.nan, x**2)
    bins, gap = reliability(x, y)
    frame = pd.DataFrame({"x": x, "y": y}).dropna()
    means = frame.groupby(pd.cut(frame["x"], np.linspace(0, 1, 11)), observed=True)[["x", "y"]].mean()
    assert [item.predicted for item in bins] == pytest.approx(means["x"].tolist())
    assert [item.observed for item in bins] == pytest.approx(means["y"].tolist())
    counts = np.array([item.n for item in bins])
    assert gap == pytest.approx(float((counts * (means["x"] - means["y"]).abs()).sum() / counts.sum()))
    assert reliability(x, np.full(400, np.nan)) == ([], None)


def test_coverage_counts_concepts_and_pairs() -> None:
    low, high = np.zeros(4), np.full(4, 0.5)
    target = np.array([0.2, 0.9, 0.3, np.nan])
    assert covered(low, high, target, ["a", "a", "b", "b"]) == (0.75, pytest.approx(2 / 3))
    assert covered(low, high, np.full(4, np.nan), ["a"] * 4) == (None, None)


def test_crossed_regimes() -> None:
    predicted = np.array(["hh", "hh", "ll", ""], dtype=object)
    target = np.array(["hh", "ll", "ll", "hh"], dtype=object)
    crossed = cross_regimes(predicted, target)
    assert crossed.n == 3
    assert crossed.counts["ll"] == {"hh": 1, "hl": 0, "lh": 0, "ll": 1}
    assert crossed.agreement == pytest.approx(2 / 3)


def test_ranks_against_pandas() -> None:
    values = np.array([3.0, 1.0, np.nan, 1.0, 7.0])
    expected = (pd.Series(values).rank() - 1) / 3
    assert ranks(values).tolist() == pytest.approx(expected.tolist(), nan_ok=True)


def test_harsh_and_blind_are_told_apart() -> None:
    target = np.array([1.0, 0.9, 0.5, 0.1, 0.0])
    metric = np.array([0.0, 0.9, 0.5, 0.2, 1.0])
    found = {
        item.key: item.pairs
        for item in galleries(np.arange(5), target, target, np.arange(5.0), list("abcde"), ("SSIM", metric), n=1)
    }
    assert found["harsh"] == [0]
    assert found["blind"] == [4]
    assert found["uncertain"] == [4]
    assert found["best"] == [0]


def test_a_gallery_prefers_other_concepts() -> None:
    overall = np.array([0.9, 0.8, 0.7, 0.1])
    best = galleries(np.arange(4), overall, overall * np.nan, overall, ["a", "a", "b", "c"], None, n=3)[0]
    assert best.pairs == [0, 2, 3]


# --- command line -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cwd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_command(tmp_path: Path, corpus: Path, cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_run(tmp_path / "run", corpus)
    other = score_run(tmp_path / "other", corpus)
    assert main(["report", f"run={run}"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0] == str(run / "report.html")
    assert len(lines) == 3
    assert "6 test pairs" in lines[1]
    assert "MB: 18 pairs" in lines[2]
    assert (run / "report.html").is_file()
    assert main(["report", f"runs=[{run},{other}]"]) == 0
    page = Path(capsys.readouterr().out.splitlines()[0])
    assert page.is_relative_to(cwd / "runs" / "report")
    assert page.is_file()
    record = yaml.safe_load((page.parent / "run.json").read_text())
    assert record["state"] == "finished"
    assert main(["report", f"run={run}", "out=here.html", "pairs=2"]) == 0
    assert (cwd / "here.html").is_file()


def test_command_errors(tmp_path: Path, corpus: Path, cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_run(tmp_path / "run", corpus)
    Path("file").write_text("")
    for arguments, message in (
        ([], "expected run=DIR for one run or runs=[DIR,DIR] for several, got neither"),
        ([f"run={run}", f"runs=[{run}]"], "got both"),
        ([f"run={run}", f"out={run}/metrics.json"], "out: expected an HTML file"),
        ([f"run={run}", "part=dev"], "part: "),
        (["run=nowhere"], "no such folder"),
        (["run=nowhere", "out=file/page.html"], "no such folder"),
        ([f"run={run}", "out=file/page.html"], "out="),
        ([f"run={run}", "out=file/page.html"], "cannot be written"),
    ):
        assert main(["report", *arguments]) == 2
        assert message in capsys.readouterr().err
    assert json.loads((run / "metrics.json").read_text())["head"] == "continuous"
