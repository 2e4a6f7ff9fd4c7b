"""Rating files: what is read, what is refused, and that all problems come at once; Label Studio both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

import numpy as np
import pytest
from raters import draw_study, simulate, write_ratings

from bcs_lab.errors import StudyError
from bcs_lab.human.label_studio import labelling_config, tasks, write_project
from bcs_lab.human.questionnaire import Questionnaire
from bcs_lab.human.ratings import read_ratings
from bcs_lab.human.study import STRATA, Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return draw_study(tmp_path / "study", stimuli=3)


def test_good_files_become_one_array(tmp_path: Path, study: Study, asked: Questionnaire) -> None:
    given = simulate(study, 3, missing=0.1)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "notes.txt").write_text("not ratings")
    ratings = read_ratings(write_ratings(tmp_path / "r", given), study, asked)
    assert ratings.values.shape == (3, 6, 9)
    assert [rater.code for rater in ratings.raters] == ["r01", "r02", "r03"]
    for r, one in enumerate(given):
        for item, answers in one["answers"].items():
            for question, answer in answers.items():
                value = ratings.values[r, ratings.items.index(item), ratings.questions.index(question)]
                assert np.isnan(value) if answer["value"] is None else value == answer["value"]
    assert len(ratings.raters[0].seconds) == 54
    left = read_ratings(tmp_path / "r", study, asked, exclude=["R02"])
    assert [rater.code for rater in left.raters] == ["r01", "r03"]
    assert left.excluded == ("r02",)
    with pytest.raises(StudyError, match=r"exclude: every rater in .* is excluded \(r01, r02, r03\)"):
        read_ratings(tmp_path / "r", study, asked, exclude=["r01", "r02", "r03"])
    with pytest.raises(StudyError, match="no ratings of r09"):
        read_ratings(tmp_path / "r", study, asked, exclude=["r09"])


def test_all_problems_come_at_once_and_the_good_remain(tmp_path: Path, study: Study, asked: Questionnaire) -> None:
    given = simulate(study, 8)
    item = study.items[0].item
    given[2]["study"] = "0" * 16
    given[3]["questionnaire"]["digest"] = "f" * 16
    given[4]["answers"]["p999999"] = {"realism": {"value": 1}}
    given[4]["answers"][item]["realism"]["value"] = 0.7
    given[4]["answers"][item]["layout"]["value"] = True
    given[4]["answers"][item]["beauty"] = {"value": 1}
    given[4]["answers"][study.items[1].item] = 3
    given[5]["version"] = 9
    folder = write_ratings(tmp_path / "r", given)
    (folder / "again.json").write_text(json.dumps({**given[6], "saved": "2026-01-01T09:00:00.000Z"}))
    (folder / "other.json").write_text(json.dumps({**given[7], "submission": "another"}))
    (folder / "torn.json").write_text(json.dumps(given[0])[:300])
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "list.json").write_text(json.dumps([{"item": item, "realism": "yes", "annotator": 1}]))
    (folder / "mapping.json").write_text("{}")
    with pytest.raises(StudyError) as caught:
        read_ratings(folder, study, asked)
    message = str(caught.value)
    for words in (
        "15 problem(s)",
        "ratings-r03.json: ratings of another study",
        "ratings-r04.json: other questions or another scale",
        "unknown pair 'p999999'",
        f"pair {item}, realism: 0.7 is not on the scale [0.0, 0.5, 1.0]",
        "layout: True is not on the scale",
        "unknown question 'beauty'",
        "expected answers by question, got 3",
        "ratings-r06.json: ratings of version 9, expected 1",
        "again.json: rater r07: an earlier download of the submission in ratings-r07.json",
        "other.json: rater r08 is also in ratings-r08.json",
        "ratings-r08.json: rater r08 is also in other.json",
        "torn.json: cannot be read as JSON",
        "deep.json: cannot be read as JSON",
        "list.json: a list without tasks, perhaps Label Studio's JSON-MIN",
        "mapping.json: neither ratings of the form",
        "on_bad_row=skip",
    ):
        assert words in message, words
    ratings = read_ratings(folder, study, asked, on_bad_row="skip")
    assert [rater.code for rater in ratings.raters] == ["r01", "r02", "r05", "r07"]
    assert len(ratings.problems) == 15
    fifth = ratings.values[2]
    assert np.isnan(fifth[0, :2]).all()
    assert not np.isnan(fifth[0, 2:]).any()
    assert np.isnan(fifth[1]).all()
    assert not np.isnan(fifth[2:]).any()


def test_nothing_to_read_is_said(tmp_path: Path, study: Study, asked: Questionnaire) -> None:
    with pytest.raises(StudyError, match="no such folder"):
        read_ratings(tmp_path / "nowhere", study, asked)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StudyError, match=r"none of 0 \.json"):
        read_ratings(tmp_path / "empty", study, asked)
    (tmp_path / "empty" / "a.json").write_text("[]")
    with pytest.raises(StudyError, match=r"none of 1 \.json[\s\S]*a\.json"):
        read_ratings(tmp_path / "empty", study, asked, on_bad_row="skip")


def test_label_studio_project_is_blind_and_whole(tmp_path: Path, study: Study, asked: Questionnaire) -> None:
    out = write_project(study, tmp_path / "study", asked)
    view = xml.parse(out / "config.xml").getroot()
    assert [one.get("name") for one in view.iter("Image")] == ["original", "reconstruction"]
    choices = list(view.iter("Choices"))
    assert [one.get("name") for one in choices] == asked.question_ids
    assert {one.get("toName") for one in choices} == {"reconstruction"}
    assert [one.get("alias") for one in choices[0]] == ["0", "0.5", "1", "cannot_say"]
    listed = json.loads((out / "tasks.json").read_text())
    assert [task["data"]["item"] for task in listed] == [item.item for item in study.items]
    assert {key for task in listed for key in task["data"]} == {
        "item",
        "study",
        "questionnaire",
        "original",
        "reconstruction",
    }
    assert all(task["data"]["original"].startswith("data:image/png;base64,") for task in listed)
    local = json.dumps(tasks(study, tmp_path / "study", asked, inline=False)) + labelling_config(asked)
    assert f"/data/local-files/?d=study/{study.items[0].reconstruction}" in local
    for item in study.items:
        assert item.method not in local
        assert item.concept not in local
    assert not any(name in local for name in STRATA)


def exported(study: Study, asked: Questionnaire, folder: Path, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Label Studio exports after the same answers, one person by id and one by record."""
    out = tasks(study, folder, asked, inline=False)
    for number, task in enumerate(out, start=1):
        task["id"] = number
        task["annotations"] = []
        for r, one in enumerate(given):
            answers = one["answers"][task["data"]["item"]]
            result = [
                {
                    "id": f"x{q}",
                    "type": "choices",
                    "from_name": question,
                    "to_name": "reconstruction",
                    "value": {"choices": ["cannot_say" if a["value"] is None else f"{a['value']:g}"]},
                }
                for q, (question, a) in enumerate(answers.items())
            ]
            who = r + 1 if r else {"id": 1, "email": "someone@example.org"}
            entry = {"id": 10 * number + r, "completed_by": who, "result": result, "was_cancelled": False}
            task["annotations"].append({**entry, "lead_time": 18.0, "ground_truth": False})
        task["annotations"].append({"completed_by": 9, "was_cancelled": True, "result": []})
    return out


def test_an_export_says_the_same_as_the_form(tmp_path: Path, study: Study, asked: Questionnaire) -> None:
    given = simulate(study, 3, missing=0.1)
    form = read_ratings(write_ratings(tmp_path / "form", given), study, asked)
    export = exported(study, asked, tmp_path / "study", given)
    (tmp_path / "ls").mkdir()
    (tmp_path / "ls" / "project-1.json").write_text(json.dumps(export))
    read = read_ratings(tmp_path / "ls", study, asked)
    assert [rater.code for rater in read.raters] == ["ls-1", "ls-2", "ls-3"]
    np.testing.assert_array_equal(read.values, form.values)
    assert read.raters[0].seconds == pytest.approx([2.0] * 54)
    labels = json.dumps(export).replace('["cannot_say"]', '["cannot say"]').replace('["0.5"]', '["somewhat"]')
    (tmp_path / "ls" / "project-1.json").write_text(labels)
    np.testing.assert_array_equal(read_ratings(tmp_path / "ls", study, asked).values, form.values)


def test_a_bad_export_is_listed(tmp_path: Path, study: Study, asked: Questionnaire) -> None:
    export = exported(study, asked, tmp_path / "study", simulate(study, 2))
    export[0]["annotations"].append(export[0]["annotations"][1])
    export[1]["annotations"][0]["result"][0]["value"] = {"choices": ["perhaps"]}
    export[2]["data"]["study"] = "old"
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "e.json").write_text(json.dumps(export))
    with pytest.raises(StudyError) as caught:
        read_ratings(tmp_path / "r", study, asked)
    for words in ("4 problem(s)", "task 1", "more than once", "'perhaps' is not on the scale", "another study"):
        assert words in str(caught.value), words
    assert len(read_ratings(tmp_path / "r", study, asked, on_bad_row="skip").raters) == 2
