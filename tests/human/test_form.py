"""The form in a browser: rate, resume, download, analyse; and what it must not say or do."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from browser import console_errors, prefer_dark, resize, scrolls_sideways
from drawn_corpus import draw_corpus
from PIL import Image
from raters import draw_study
from sklearn.metrics import cohen_kappa_score

from bcs_lab.errors import StudyError
from bcs_lab.human.form import group_order, item_order, keep_questionnaire, render
from bcs_lab.human.questionnaire import Questionnaire, checked, default_text
from bcs_lab.human.study import STRATA, Study

SMALL = ("stimuli=2", "high_perceptual=1", "high_semantic=1", "highest=1", "lowest=1")


def press(browser: Any, *keys: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(browser, duration=0).send_keys(*keys).perform()


def begin(browser: Any, rater: str) -> None:
    from selenium.webdriver.common.by import By

    browser.find_element(By.ID, "rater").send_keys(rater)
    browser.find_element(By.ID, "consent").click()
    browser.find_element(By.ID, "start").click()


def click(browser: Any, name: str) -> None:
    from selenium.webdriver.common.by import By

    browser.find_element(By.ID, name).click()


def shown(browser: Any, name: str) -> str:
    from selenium.webdriver.common.by import By

    return browser.find_element(By.ID, name).text


def downloaded(browser: Any, rater: str) -> dict[str, Any]:
    """Press the button and read the file."""
    path = browser.downloads / f"ratings-{rater}.json"
    path.unlink(missing_ok=True)
    click(browser, "download")
    for _ in range(100):
        if path.exists():
            return json.loads(path.read_text())
        time.sleep(0.05)
    raise AssertionError(f"no {path.name} among {list(browser.downloads.iterdir())}")


def session_button(browser: Any, rater: str) -> Any:
    """The button that goes on with a rater's session, once the page has drawn it."""
    from selenium.webdriver.common.by import By

    for _ in range(100):
        found = [one for one in browser.find_elements(By.CSS_SELECTOR, "#sessions button") if rater in one.text]
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError(f"no session of {rater}")


def typed(study: Study, asked: Questionnaire, rater: str, keys: str) -> dict[str, dict[str, float | None]]:
    """The answers that the keys give in this rater's order."""
    values = {str(k + 1): value for k, value in enumerate(asked.scale.values)} | {"0": None}
    originals = {item.item: item.stimulus for item in study.items}
    questions = {group.id: [question.id for question in group.questions] for group in asked.groups}
    groups = group_order(study.digest, rater, list(questions))
    left = iter(keys)
    return {
        item: {question: values[next(left)] for group in groups for question in questions[group]}
        for item in item_order(study.digest, rater, originals)
    }


def answers(ratings: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    return {item: {q: one["value"] for q, one in given.items()} for item, given in ratings["answers"].items()}


# Among the slow ones, since after a long run of other pages the browser now and then loses what a file's page has kept.
@pytest.mark.slow
def test_from_selection_to_results(
    browser: Any, bcs: Callable[..., int], tmp_path: Path, asked: Questionnaire, capsys: pytest.CaptureFixture[str]
) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    root = draw_corpus(tmp_path / "drawn", concepts=5)
    assert bcs("study", "select", "corpus=manifest", f"corpus.root={root}", "out=study", *SMALL) == 0
    assert bcs("study", "form", "study=study", "out=form.html") == 0
    study = Study.read(Path("study"))
    assert Image.open("study/overview.png").width > 600
    rng = np.random.default_rng(0)
    keys = {rater: "".join(rng.choice(list("123"), 36)) for rater in ("r1", "r2")}
    keys["r3"] = "0" + keys["r1"][1:]

    browser.get(Path("form.html").resolve().as_uri())
    click(browser, "start")
    assert "code" in shown(browser, "problem")
    begin(browser, "R1")
    press(browser, keys["r1"])
    first = downloaded(browser, "r1")
    assert first["complete"]
    assert answers(first) == typed(study, asked, "r1", keys["r1"])
    assert first["item_order"] == list(first["answers"])
    assert all(one["ms"] >= 0 and one["changes"] == 0 for given in first["answers"].values() for one in given.values())
    again = downloaded(browser, "r1")
    assert again["submission"] == first["submission"]

    # A reload in the middle keeps what was answered; arrows move; an answer can be changed.
    browser.refresh()
    begin(browser, "r2")
    press(browser, keys["r2"][:10])
    assert shown(browser, "count") == "10 of 36 answered"
    time.sleep(0.3)  # the browser hands what is kept to another process
    browser.refresh()
    resume = session_button(browser, "r2")
    assert "10 of 36" in resume.text
    resume.click()
    assert shown(browser, "where") == "Pair 2 of 4"
    press(browser, Keys.ARROW_LEFT, "1" if keys["r2"][6] != "1" else "2")
    assert shown(browser, "count") == "10 of 36 answered"
    press(browser, Keys.ARROW_UP, keys["r2"][6], Keys.ENTER)
    assert shown(browser, "where") == "Pair 2 of 4"
    press(browser, Keys.ENTER)
    assert "Please answer" in shown(browser, "unanswered")
    press(browser, keys["r2"][10:])
    second = downloaded(browser, "r2")
    assert answers(second) == typed(study, asked, "r2", keys["r2"])
    changes = [one["changes"] for given in second["answers"].values() for one in given.values()]
    assert sorted(changes)[-2:] == [0, 2]
    assert second["submission"] != first["submission"]

    # Skipped questions are named before the download.
    browser.refresh()
    begin(browser, "r3")
    press(browser, keys["r3"][:33], Keys.ARROW_RIGHT)
    assert "3 of 36 answers are missing" in shown(browser, "missing-title")
    assert "although" in shown(browser, "download")
    assert not downloaded(browser, "r3")["complete"]
    browser.find_element(By.CSS_SELECTOR, "#missing-list button").click()
    press(browser, keys["r3"][33:])
    browser.find_element(By.ID, "comment").send_keys("fine 12")
    third = downloaded(browser, "r3")
    assert third["complete"]
    assert third["comment"] == "fine 12"
    assert len({tuple(one["item_order"]) for one in (first, second, third)}) > 1
    assert console_errors(browser) == []

    folder = browser.downloads
    assert bcs("study", "analyze", f"ratings={folder}", "study=study", "out=results", "bootstrap.resamples=100") == 0
    result = json.loads(Path("results/study_results.json").read_text(), parse_constant=pytest.fail)
    assert result["raters"] == 3
    tables = [answers(one) for one in (first, second, third)]
    for row in result["groups"]:
        ids = [question.id for group in asked.groups if group.id == row["group"] for question in group.questions]
        kappas = []
        for i, j in ((0, 1), (0, 2), (1, 2)):
            both = [
                (tables[i][item][q], tables[j][item][q])
                for item in tables[0]
                for q in ids
                if tables[i][item][q] is not None and tables[j][item][q] is not None
            ]
            kappas.append(cohen_kappa_score(*np.array(both).T.astype(str)))
        assert row["kappa_mean"] == pytest.approx(np.mean(kappas))
        assert row["kappa_std"] == pytest.approx(np.std(kappas, ddof=1))
    assert sum(row["missing"] for row in result["groups"]) == 1
    out = capsys.readouterr().out
    assert "3 raters, 4 pairs of 2 stimuli" in out
    assert "paper: kappa" in out


def test_the_form_says_nothing_of_methods_or_strata(tmp_path: Path, asked: Questionnaire) -> None:
    study = draw_study(tmp_path / "study", corpus="secret_corpus")
    html = render(study, tmp_path / "study", asked)
    text = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", html)
    for item in study.items:
        for told in (item.pair_id, item.method, item.concept, f"{item.t_pas:.3f}", f"{item.t_sas:.3f}"):
            assert told not in text
    for told in (*STRATA, "secret_corpus", "t_pas", "coherence_score", "stratum"):
        assert told not in text, told
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html)[1])
    assert [set(item) for item in data["items"]] == [{"id", "original", "reconstruction"}] * len(study.items)
    assert [item["id"] for item in data["items"]] == sorted(item["id"] for item in data["items"])
    assert "http" not in re.sub(r"http-equiv", "", text)


def test_pictures_hold_pixels_only(bcs: Callable[..., int], tmp_path: Path) -> None:
    root = draw_corpus(tmp_path / "drawn", concepts=3)
    for path in (root / "images").iterdir():
        with Image.open(path) as image:
            exif = image.getexif()
            exif[0x010E] = "made by ATM"
            image.resize((600, 300), Image.Resampling.NEAREST).save(path, exif=exif, dpi=(72, 72))
    assert bcs("study", "select", "corpus=manifest", f"corpus.root={root}", "out=study", *SMALL) == 0
    pictures = sorted(Path("study/images").iterdir())
    assert len(pictures) == 2 + 4
    study = Study.read(Path("study"))
    assert {path.stem for path in pictures} == {x for item in study.items for x in (item.item, item.stimulus)}
    for path in pictures:
        assert b"ATM" not in path.read_bytes()
        with Image.open(path) as image:
            assert (image.format, image.size, image.info) == ("PNG", (512, 256), {})


def test_words_are_text_and_never_script(browser: Any, tmp_path: Path, asked: Questionnaire) -> None:
    from selenium.webdriver.common.by import By

    bad = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=2>{{7*7}}<!--"
    value = yaml.safe_load(default_text())
    value.update(title=bad, intro=[bad], consent=bad)
    value["scale"]["cannot_say"] = bad
    value["groups"][0].update(title=bad, hint=bad)
    for group in value["groups"]:
        group["questions"][0]["text"] = bad
    value["ui"] = dict.fromkeys(value["ui"], bad)
    hostile = checked(value, "hostile")
    study = draw_study(tmp_path / "study", corpus=bad)
    page = tmp_path / "form.html"
    page.write_text(render(study, tmp_path / "study", hostile), encoding="utf-8")
    browser.get(page.as_uri())
    assert browser.title == bad
    begin(browser, "x")
    assert browser.find_element(By.CSS_SELECTOR, "legend").text.startswith("</script><script>window.pwned=1")
    press(browser, "1", "2", "3")
    assert browser.execute_script("return window.pwned") is None
    assert browser.execute_script("return document.querySelectorAll('#questions img').length") == 0
    # Even a script that got into the page would not run.
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.pwned = 3'; document.body.append(s);"
    )
    assert browser.execute_script("return window.pwned") is None
    assert any("Content Security Policy" in message for message in console_errors(browser))


def test_it_fits_a_phone_and_the_dark(browser: Any, tmp_path: Path, asked: Questionnaire) -> None:
    study = draw_study(tmp_path / "study")
    page = tmp_path / "form.html"
    page.write_text(render(study, tmp_path / "study", asked), encoding="utf-8")
    browser.get(page.as_uri())
    resize(browser, 390, 844, mobile=True)
    colours = set()
    for dark in (False, True):
        prefer_dark(browser, dark)
        colours.add(browser.execute_script("return getComputedStyle(document.body).backgroundColor"))
        assert not scrolls_sideways(browser)
    assert len(colours) == 2
    begin(browser, "phone")
    assert not scrolls_sideways(browser)
    smallest = browser.execute_script(
        "const buttons = [...document.querySelectorAll('#questions button')];"
        "return Math.min(...buttons.map((button) => button.getBoundingClientRect().height));"
    )
    assert smallest >= 35
    click(browser, "original")
    assert browser.execute_script("return document.getElementById('large').open")
    click(browser, "close")
    press(browser, "3" * 9)
    assert shown(browser, "where") == "Pair 2 of 18"
    assert console_errors(browser) == []


def test_a_scale_of_five_and_no_way_out(browser: Any, tmp_path: Path) -> None:
    value = yaml.safe_load(default_text())
    value["scale"] = {"level": "interval", "options": [{"value": k / 4, "label": f"n{k}"} for k in range(5)]}
    five = checked(value, "five")
    study = draw_study(tmp_path / "study", stimuli=1)
    page = tmp_path / "form.html"
    page.write_text(render(study, tmp_path / "study", five), encoding="utf-8")
    browser.get(page.as_uri())
    begin(browser, "r1")
    press(browser, "0", "6", "9")
    assert shown(browser, "count") == "0 of 18 answered"
    press(browser, "512345123" * 2)
    ratings = downloaded(browser, "r1")
    assert ratings["questionnaire"]["values"] == [0, 0.25, 0.5, 0.75, 1]
    assert ratings["questionnaire"]["level"] == "interval"
    given = answers(ratings)
    assert given == typed(study, five, "r1", "512345123" * 2)


def test_orders_differ_between_raters_and_part_the_pairs_of_a_stimulus(tmp_path: Path) -> None:
    study = draw_study(tmp_path / "study")
    originals = {item.item: item.stimulus for item in study.items}
    orders = [item_order(study.digest, f"r{r}", originals) for r in range(300)]
    assert all(sorted(order) == sorted(originals) for order in orders)
    for order in orders:
        assert all(originals[a] != originals[b] for a, b in pairwise(order))
    counts = [sum(order[0] == item for order in orders) for item in originals]
    assert max(counts) < 40
    assert min(counts) > 4
    groups = {tuple(group_order(study.digest, f"r{r}", ["a", "b", "c"])) for r in range(60)}
    assert len(groups) == 6


def test_questions_do_not_change_under_a_study(tmp_path: Path, asked: Questionnaire) -> None:
    value = yaml.safe_load(default_text())
    value["scale"]["options"][1]["value"] = 0.25
    other = checked(value, "other")
    keep_questionnaire(tmp_path, asked)
    keep_questionnaire(tmp_path, asked)
    with pytest.raises(StudyError, match="overwrite=true"):
        keep_questionnaire(tmp_path, other)
    keep_questionnaire(tmp_path, other, overwrite=True)


def test_a_form_that_cannot_be_written_is_said_before_anything_is(
    bcs: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw_study(tmp_path / "study", stimuli=2)
    before = sorted(tmp_path.glob("study/*"))
    Path("file").write_text("")
    assert bcs("study", "form", f"study={tmp_path / 'study'}", "out=file/form.html") == 2
    error = capsys.readouterr().err
    assert f"out={Path('file/form.html').resolve()}: cannot be written" in error
    assert sorted(tmp_path.glob("study/*")) == before


def test_form_task_needs_a_whole_study(
    bcs: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bcs("study", "form", "study=nowhere") == 2
    assert "bcs study select" in capsys.readouterr().err
    study = draw_study(tmp_path / "study")
    Image.new("RGB", (4, 4)).save(tmp_path / "study" / study.items[0].reconstruction)
    (tmp_path / "study" / study.items[1].reconstruction).unlink()
    assert bcs("study", "form", f"study={tmp_path / 'study'}") == 2
    error = capsys.readouterr().err
    assert "2 problem(s)" in error
    assert "has changed" in error
    text = (tmp_path / "study" / "study.json").read_text()
    (tmp_path / "study" / "study.json").write_text(text.replace(study.items[0].item, "p000000"))
    assert bcs("study", "form", f"study={tmp_path / 'study'}") == 2
    assert "altered" in capsys.readouterr().err
