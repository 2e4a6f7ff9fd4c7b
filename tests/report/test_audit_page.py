"""The page of an audit in a real browser: it loads clean, sorts, shows one gallery at a time, and runs no text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import console_errors, prefer_dark, resize, scrolls_sideways
from report_runs import CLOSING, IMAGE, SCRIPT, draw

from bcs_lab.audit.analysis import Measured, Probed, Settings, analyze
from bcs_lab.audit.metrics import MetricSpec
from bcs_lab.corpus import load_corpus
from bcs_lab.report.audit_figures import write_figures
from bcs_lab.report.audit_page import write_page


def _spec(name: str, title: str, kind: str = "pixel") -> MetricSpec:
    return MetricSpec(name, title, True, "RGB", "none", None, "none", kind, paper="ssim")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A page about a corpus whose texts are hostile, and what it shows."""
    folder = tmp_path_factory.mktemp("audit")
    names = [SCRIPT, IMAGE, CLOSING, *(f"thing_{index}" for index in range(9))]
    corpus = load_corpus("manifest", draw(folder / "corpus", concepts=names, methods=(IMAGE, "good_one")))
    generator = np.random.default_rng(0)
    n = len(corpus)
    measured = Measured(
        specs={"one": _spec("one", "metric one"), "two": _spec("two", SCRIPT), "sets": _spec("sets", "sets", "set")},
        values={"one": generator.uniform(size=n), "two": generator.uniform(size=n)},
        unavailable={"gone": f"{SCRIPT}{IMAGE}{CLOSING}"},
        captions=generator.uniform(size=n),
        probed=Probed({"one": generator.uniform(size=(5, 6, 4))}, {"two": IMAGE}, {"distinct": 5}),
        flags={SCRIPT: [IMAGE]},
        sets=[{"group": IMAGE, "metric": "sets", "pairs": 12, "references": 9, "two_way": 0.8, "distance": 0.2}],
    )
    result = analyze(corpus, corpus.teachers, measured, Settings(resamples=100, pairs=2))
    return write_page(result, corpus, folder / "page.html"), result


def test_it_loads_clean_and_runs_nothing(browser: Any, made: tuple[Path, dict[str, Any]]) -> None:
    page, result = made
    browser.get(page.as_uri())
    assert browser.find_element("css selector", "html").get_attribute("data-ready") == "true"
    assert console_errors(browser) == []
    assert browser.execute_script("return window.pwned") is None
    widths = browser.execute_script("return [...document.images].map((image) => image.naturalWidth)")
    shown = [pair for gallery in result["gallery"] for kind in ("harsh", "blind") for pair in gallery[kind]]
    assert len(widths) == 2 * len(shown) > 0
    assert min(widths) > 0
    titles = browser.execute_script("return [...document.querySelectorAll('.card h4')].map((h4) => h4.textContent)")
    assert titles == [pair["concept"].replace("_", " ") for pair in shown]
    text = page.read_text(encoding="utf-8")
    assert "https://" not in text
    assert "http://" not in text


def test_tables_sort_and_galleries_change(browser: Any, made: tuple[Path, dict[str, Any]]) -> None:
    page, result = made
    browser.get(page.as_uri())
    rows = (
        "return [...document.querySelectorAll('table.consensus tbody tr')]"
        ".map((row) => row.cells[0].textContent.trim())"
    )
    best = sorted((row for row in result["consensus"] if row["rho_sas"] is not None), key=lambda row: -row["rho_sas"])
    assert browser.execute_script(rows)[: len(best)] == [row["title"] for row in best]
    button = browser.find_elements("css selector", "table.consensus thead button")[2]
    browser.execute_script("arguments[0].click(); arguments[0].click()", button)
    assert browser.execute_script(rows)[: len(best)] == [row["title"] for row in reversed(best)]
    panels = "return [...document.querySelectorAll('[role=tabpanel]')].map((panel) => panel.hidden)"
    assert browser.execute_script(panels) == [False, True]
    browser.execute_script("document.querySelectorAll('[role=tab]')[1].click()")
    assert browser.execute_script(panels) == [True, False]


def test_narrow_and_dark(browser: Any, made: tuple[Path, dict[str, Any]]) -> None:
    page, _ = made
    resize(browser, 390, 844, mobile=True)
    browser.get(page.as_uri())
    assert not scrolls_sideways(browser)
    resize(browser, 1280)
    prefer_dark(browser, True)
    browser.get(page.as_uri())
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert colour == "rgb(16, 20, 28)"


def test_the_page_and_figures_of_little(tmp_path: Path) -> None:
    corpus = load_corpus("manifest", draw(tmp_path / "corpus", concepts=["one", "two"], methods=("m",)))
    flat = Measured({"flat": _spec("flat", "flat")}, {"flat": np.full(len(corpus), 0.5)})
    for teachers, measured in ((corpus.teachers, flat), ((), flat), (corpus.teachers, Measured({}, {}))):
        result = analyze(corpus, teachers, measured, Settings(resamples=100))
        text = write_page(result, corpus, tmp_path / "page.html").read_text(encoding="utf-8")
        assert ">nan<" not in text.lower()
        assert "None" not in text
        for path in write_figures(result, tmp_path):
            assert path.stat().st_size > 1000


def test_a_corpus_without_images_says_so(tmp_path: Path) -> None:
    corpus = load_corpus("brainbank")
    values = np.random.default_rng(0).uniform(size=len(corpus))
    measured = Measured({"one": _spec("one", "one")}, {"one": values}, probed="this corpus ships without its images")
    result = analyze(corpus, corpus.teachers, measured, Settings(resamples=100, pairs=1))
    text = write_page(result, corpus, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "ships without its images" in text
    assert "<img" not in text
