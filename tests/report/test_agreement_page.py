"""The page about agreement in a real browser: it loads clean, sorts, fits a phone, and runs no text of a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import console_errors, prefer_dark, resize, scrolls_sideways
from PIL import Image
from report_runs import CLOSING, IMAGE, SCRIPT, draw

from bcs_lab.corpus import load_corpus
from bcs_lab.rationales import Cosines
from bcs_lab.report.agreement_figures import write_figures
from bcs_lab.report.agreement_page import write_page
from bcs_lab.teacher_agreement import Settings, analyze

SETTINGS = Settings(resamples=100, pairs=4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A page about a corpus whose texts are hostile, and what it shows."""
    folder = tmp_path_factory.mktemp("agreement")
    names = [SCRIPT, IMAGE, CLOSING, *(f"thing_{index}" for index in range(9))]
    said = f"{SCRIPT}{IMAGE}{CLOSING}"
    corpus = load_corpus("manifest", draw(folder / "corpus", concepts=names, methods=(IMAGE, "good_one"), said=said))
    used = np.ones((len(corpus), 12), dtype=bool)
    values = np.random.default_rng(0).uniform(0.3, 0.9, (used.sum(), 6))
    facts = {
        "model": "made/up", "source": SCRIPT, "weights_sha256": "0" * 64, "pooling": "mean", "max_length": 128,
        "items": 288, "items_with_all_rationales": 288, "texts": 1152, "distinct_texts": 48, "cut_texts": 0,
    }  # fmt: skip
    result = analyze(corpus, corpus.teachers, SETTINGS, Cosines(used, values, values / 2, facts))
    return write_page(result, corpus, folder / "page.html"), result


def column(browser: Any, table: str, number: int) -> list[str]:
    return browser.execute_script(
        "return [...document.querySelectorAll(`table.${arguments[0]} tbody tr`)]"
        ".map((row) => row.cells[arguments[1]].textContent.trim())",
        table,
        number,
    )


def test_it_loads_clean_and_runs_nothing(browser: Any, made: tuple[Path, dict[str, Any]]) -> None:
    page, result = made
    browser.get(page.as_uri())
    assert browser.find_element("css selector", "html").get_attribute("data-ready") == "true"
    assert console_errors(browser) == []
    assert browser.execute_script("return window.pwned") is None
    shown = browser.execute_script("return [...document.querySelectorAll('.card h4')].map((h4) => h4.textContent)")
    chosen = [pair for gallery in result["disagreement"]["galleries"] for pair in gallery["pairs"]]
    assert shown == [pair["concept"].replace("_", " ") for pair in chosen]
    widths = browser.execute_script("return [...document.images].map((image) => image.naturalWidth)")
    assert len(widths) == 2 * len(chosen)
    assert min(widths) > 0
    text = page.read_text(encoding="utf-8")
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text


def test_tables_sort_and_rationales_open(browser: Any, made: tuple[Path, dict[str, Any]]) -> None:
    page, result = made
    browser.get(page.as_uri())
    ids = [text.split()[0] for text in column(browser, "questions", 0)]
    assert ids == list(result["per_question"])
    kappas = browser.find_elements("css selector", "table.questions thead button")[3]
    assert kappas.text.startswith("Fleiss")
    browser.execute_script("arguments[0].click()", kappas)
    ordered = sorted(result["questions"], key=lambda row: -row["kappa"])
    assert [text.split()[0] for text in column(browser, "questions", 0)] == [row["id"] for row in ordered]
    browser.execute_script("document.getElementById('open-all').click()")
    cards = browser.find_elements("css selector", ".card details[open]")
    assert len(cards) == len(browser.find_elements("css selector", ".card"))
    assert "P1 by a" in cards[0].text


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
    browser.execute_script("document.getElementById('theme').click()")
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_page_and_figures_of_undefined_statistics(tmp_path: Path) -> None:
    corpus = load_corpus("manifest", draw(tmp_path / "corpus", concepts=["one", "two"], methods=("m",)))
    corpus.answers[:, 1:] = 0.5
    corpus.answers[:, :, 3] = np.nan
    for teachers in (corpus.teachers, corpus.teachers[1:3], corpus.teachers[:1]):
        result = analyze(corpus, teachers, SETTINGS)
        text = write_page(result, corpus, tmp_path / "page.html").read_text(encoding="utf-8")
        assert "Undefined statistics" in text
        assert ">nan<" not in text.lower()
        assert "None" not in text
        for path in write_figures(result, tmp_path):
            assert path.stat().st_size > 1000
        with Image.open(tmp_path / "teachers.png") as drawn:
            assert len(np.unique(np.asarray(drawn.convert("L")))) > 20


def test_a_corpus_without_images_says_so(tmp_path: Path) -> None:
    corpus = load_corpus("brainbank")
    result = analyze(corpus, corpus.teachers[:2], SETTINGS)
    text = write_page(result, corpus, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "ships without its images" in text
    assert "<img" not in text
    assert corpus.rationales[int(result["disagreement"]["galleries"][0]["pairs"][0]["row"]), 0, 0] in text
