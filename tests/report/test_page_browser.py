"""The report's page in a real browser: it loads clean, filters, sorts, opens pairs by keyboard, and runs no text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import console_errors, prefer_dark, resize, screenshot, scrolls_sideways
from PIL import Image
from report_runs import CLOSING, IMAGE, SCRIPT, draw, score_run, train_run

from bcs_lab.report.page import Options, write_report


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A page about one run whose texts are hostile, and one about two runs."""
    folder = tmp_path_factory.mktemp("pages")
    said = f"{SCRIPT}{IMAGE}{CLOSING}"
    names = [SCRIPT, IMAGE, CLOSING, *(f"thing_{index}" for index in range(60))]
    root = draw(folder / "corpus", concepts=names, methods=(IMAGE, "good_one"), said=said)
    run = train_run(folder / "one", root)
    scored = score_run(folder / "two", root, ood=7, warnings=[SCRIPT])
    one, two = folder / "one.html", folder / "two.html"
    write_report([run], one, Options(), start=folder)
    write_report([run, scored], two, Options(max_mb=1.5), start=folder)
    return one, two


def keys(browser: Any, *pressed: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    chain = ActionChains(browser)
    for key in pressed:
        chain.send_keys(key)
    chain.perform()


def column(browser: Any, number: int, run: int = 0) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll(`section[data-run='${arguments[1]}'] .pairs tbody tr`)]"
        ".map((row) => row.cells[arguments[0]].textContent)",
        number,
        run,
    )


def focused(browser: Any) -> str:
    return browser.execute_script("return document.activeElement.textContent")


def heads(browser: Any) -> list[str]:
    return browser.execute_script("return [...document.querySelectorAll('.pairs th')].map((th) => th.textContent)")


def status(browser: Any) -> str:
    return browser.find_element("css selector", "[data-count]").text


def choose(browser: Any, name: str, text: str, run: int = 0) -> None:
    from selenium.webdriver.support.ui import Select

    Select(
        browser.find_element("css selector", f"section[data-run='{run}'] [data-filter='{name}']")
    ).select_by_visible_text(text)


def test_filter_sort_and_open(browser: Any, pages: tuple[Path, Path], tmp_path: Path) -> None:
    browser.get(pages[0].as_uri())
    assert browser.find_element("css selector", "html").get_attribute("data-ready") == "true"
    assert console_errors(browser) == []
    assert (
        len(np.unique(np.asarray(Image.open(screenshot(browser, tmp_path / "page.png"))).reshape(-1, 4), axis=0)) > 50
    )

    # The test part first, the others on request, fifty a page.
    assert status(browser) == "42 of 126 pairs"
    choose(browser, "part", "all parts")
    assert status(browser) == "126 of 126 pairs, page 1 of 3"
    browser.execute_script("document.querySelector('[data-page=\"1\"]').click()")
    assert status(browser) == "126 of 126 pairs, page 2 of 3"
    keys(browser, "]", "[", "]")
    assert status(browser) == "126 of 126 pairs, page 3 of 3"
    choose(browser, "method", "good_one")
    assert status(browser) == "63 of 126 pairs, page 1 of 2"
    assert set(column(browser, heads(browser).index("method"))) == {"good_one"}
    choose(browser, "regime", "low P, low S")
    assert set(column(browser, heads(browser).index("regime"))) == {"low P, low S"}
    choose(browser, "regime", "all regimes")
    keys(browser, "/")
    keys(browser, *"thing_7")
    assert column(browser, heads(browser).index("concept")) == ["thing 7"]
    keys(browser, "\ue00c")
    assert status(browser) == "63 of 126 pairs, page 1 of 2"
    # Esc left the box: a key moves and is not typed. Enter goes to the first of what was found.
    keys(browser, "j", "j")
    assert focused(browser) == column(browser, 0)[1]
    assert browser.find_element("css selector", "[data-filter='text']").get_attribute("value") == ""
    keys(browser, "/", *"thing", "\ue007")
    assert focused(browser) == column(browser, 0)[0]
    keys(browser, "j")
    assert focused(browser) == column(browser, 0)[1]
    keys(browser, "/", "\ue00c", "?")
    assert browser.find_element("css selector", "#help").get_attribute("open") is not None
    keys(browser, "\ue00c", "/", *"no such", "\ue007", "/", "\ue00c")
    assert status(browser) == "63 of 126 pairs, page 1 of 2"

    # Sorting: highest first, lowest first on the second press, and the head says so.
    place = heads(browser).index("T-PAS")
    head = browser.find_elements("css selector", ".pairs th button")[place]
    browser.execute_script("arguments[0].click()", head)
    values = [float(text) for text in column(browser, place)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 10
    browser.execute_script("arguments[0].click()", head)
    values = [float(text) for text in column(browser, place)]
    assert values == sorted(values)
    assert head.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"

    browser.execute_script(
        "[...document.querySelectorAll('.questions th button')].find((head) => head.textContent === 'MAE').click()"
    )
    errors = browser.execute_script(
        "return [...document.querySelectorAll('.questions tbody tr')].map((row) => Number(row.cells[4].textContent))"
    )
    assert errors == sorted(errors, reverse=True)
    assert console_errors(browser) == []


def test_a_pair_opens_by_keyboard_and_no_text_runs(browser: Any, pages: tuple[Path, Path]) -> None:
    browser.get(pages[0].as_uri())
    keys(browser, "j", "j", "j")
    assert browser.execute_script("return document.activeElement.textContent") == column(browser, 0)[2]
    keys(browser, "k", "\ue015", "\ue015")  # up, then twice the arrow down
    wanted = column(browser, 0)[3]
    keys(browser, "\ue007")
    dialog = browser.find_element("css selector", "#sheet")
    assert dialog.get_attribute("open") is not None
    assert wanted in dialog.text
    assert len(dialog.find_elements("css selector", ".full tbody tr")) == 12
    assert len(dialog.find_elements("css selector", ".pictures img")) == 2
    assert browser.execute_script(
        "return [...document.querySelectorAll('#sheet img')].every((i) => i.naturalWidth > 0)"
    )
    keys(browser, "\ue014")
    assert column(browser, 0)[4] in dialog.text
    browser.execute_script("document.querySelector('#sheet summary').click()")
    browser.execute_script("document.querySelectorAll('.card summary').forEach((summary) => summary.click())")
    said = browser.execute_script("return document.querySelector('#sheet .reasons dd').textContent")
    assert said == f"a: {SCRIPT}{IMAGE}{CLOSING} P1 by a"
    assert browser.execute_script("return document.querySelectorAll('.card .reasons dd').length") > 48
    keys(browser, "\ue00c")
    assert dialog.get_attribute("open") is None
    assert browser.execute_script("return document.activeElement.closest('.pairs') !== null")

    assert browser.execute_script("return window.pwned === undefined")
    assert browser.execute_script("return document.querySelectorAll('img[src=x], script').length") == 4
    assert console_errors(browser) == []
    # The policy would stop what slipped through.
    browser.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.pwned = 4'; document.body.append(s);"
        "const i = new Image(); i.src = 'https://example.invalid/x.png'; document.body.append(i);"
        "document.body.insertAdjacentHTML('beforeend', '<b onclick=\"window.pwned=5\" id=\"hit\">x</b>');"
        "document.getElementById('hit').click()"
    )
    assert browser.execute_script("return window.pwned === undefined")
    assert len([line for line in console_errors(browser) if "Content Security Policy" in line]) >= 3


def test_dark_and_narrow(browser: Any, pages: tuple[Path, Path], tmp_path: Path) -> None:
    def brightness() -> float:
        return float(np.asarray(Image.open(screenshot(browser, tmp_path / "shot.png")).convert("L")).mean())

    resize(browser, 390, 844, mobile=True)
    prefer_dark(browser, True)
    browser.get(pages[0].as_uri())
    assert not scrolls_sideways(browser)
    assert brightness() < 80
    browser.find_element("css selector", "#theme").click()
    assert brightness() > 180
    browser.refresh()
    assert brightness() > 180, "the choice is kept"
    keys(browser, "t")
    assert brightness() < 80
    browser.execute_script("document.querySelector('.card button.pictures').click()")
    assert not scrolls_sideways(browser)
    box = browser.execute_script(
        "const r = document.querySelector('#sheet').getBoundingClientRect(); return [r.left, r.right, "
        "document.querySelector('#sheet').scrollWidth <= document.querySelector('#sheet').clientWidth]"
    )
    assert box[0] >= 0
    assert box[1] <= 390
    assert box[2]
    assert console_errors(browser) == []


def test_wide_tables_show_where_there_is_more(browser: Any, pages: tuple[Path, Path]) -> None:
    """A shadow at the edge behind which a table goes on, and none where it ends."""

    def shadows(chosen: str) -> list[float]:
        return browser.execute_script(
            "const edges = document.querySelector(arguments[0]).closest('.edges');"
            "for (const a of document.getAnimations()) a.finish();"
            "return ['::before', '::after'].map((side) => Number(getComputedStyle(edges, side).opacity))",
            chosen,
        )

    def scroll(chosen: str, to: str) -> None:
        browser.execute_async_script(
            f"const box = document.querySelector(arguments[0]).closest('.scroll'); box.scrollLeft = {to};"
            "const done = arguments[1]; requestAnimationFrame(() => requestAnimationFrame(() => done()))",
            chosen,
        )

    resize(browser, 390, 844, mobile=True)
    browser.get(pages[0].as_uri())
    for table in (".pairs", ".questions", ".table6 table"):
        scroll(table, "0")
        assert shadows(table) == [0, 1], table
    scroll(".pairs", "60")
    assert shadows(".pairs") == [1, 1]
    scroll(".pairs", "box.scrollWidth")
    assert shadows(".pairs") == [1, 0]
    resize(browser, 2400, 844)
    scroll(".questions", "0")
    assert shadows(".questions") == [0, 0]
    assert not scrolls_sideways(browser)


def test_marks_stay_clear_of_words(browser: Any, pages: tuple[Path, Path]) -> None:
    """A consensus of 1 beside the number, and the mark of strange pairs beside their regime."""
    browser.get(pages[1].as_uri())
    gap = browser.execute_script(
        "const line = document.querySelector('.card .score'), [name, track, number] = line.children;"
        "const goal = track.querySelector('.goal'), text = document.createRange();"
        "text.selectNodeContents(number);"
        "const places = ['0%', '100%'].map((left) => { goal.style.left = left; return goal.getBoundingClientRect(); });"
        "return [places[0].left - name.getBoundingClientRect().right,"
        "text.getBoundingClientRect().left - places[1].right]"
    )
    assert min(gap) >= 4
    browser.execute_script("document.querySelector('#tab-1').click()")
    gap = browser.execute_script(
        "const chip = document.querySelector('section[data-run=\"1\"] .pairs td .chip'), text = document.createRange();"
        "text.selectNode(chip.previousSibling);"
        "return chip.getBoundingClientRect().left - text.getBoundingClientRect().right"
    )
    assert gap >= 4


def test_two_runs_are_tabs(browser: Any, pages: tuple[Path, Path]) -> None:
    browser.get(pages[1].as_uri())
    assert console_errors(browser) == []
    visible = "return [...document.querySelectorAll('section[data-run]')].map((s) => s.offsetParent !== null)"
    assert browser.execute_script(visible) == [True, False]
    browser.find_element("css selector", "#tab-0").send_keys("\ue014")
    assert browser.execute_script(visible) == [False, True]
    assert browser.execute_script("return document.activeElement.id") == "tab-1"
    box = browser.find_element("css selector", "section[data-run='1'] [data-filter='ood']")
    browser.execute_script("arguments[0].click()", box)
    assert len(column(browser, 0, run=1)) == 7
    keys(browser, "j", "\ue007")
    assert "out of distribution" in browser.find_element("css selector", "#sheet").text
    keys(browser, "\ue00c", "?")
    assert "Keyboard" in browser.find_element("css selector", "#help").text
    resize(browser, 390, 844, mobile=True)
    assert not scrolls_sideways(browser)
    assert browser.execute_script("return window.pwned === undefined")
