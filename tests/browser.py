"""A headless Chromium for tests of pages: the fixture ``browser``, and what tests ask it.

A folder whose tests need it says ``from browser import browser`` in its ``conftest.py``.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def _program(*names: str) -> str | None:
    return next((path for name in names if (path := shutil.which(name, path="/usr/bin:/usr/local/bin"))), None)


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A selenium driver, 1280 x 900; its downloads go to the folder ``browser.downloads``.

    Skipped with the reason where selenium, Chromium or chromedriver is missing.
    """
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium installed")
    chromium, chromedriver = _program("chromium", "google-chrome"), _program("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("no Chromium on this machine" if chromium is None else "no chromedriver on this machine")
    folder = tmp_path_factory.mktemp("browser")
    downloads = folder / "downloads"
    downloads.mkdir()
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}", "--window-size=1280,900"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_experimental_option(
        "prefs", {"download.default_directory": str(downloads), "download.prompt_for_download": False}
    )
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=chromedriver))
    driver.downloads = downloads
    try:
        driver.set_page_load_timeout(60)
        yield driver
    finally:
        driver.quit()


def console_errors(browser: Any) -> list[str]:
    """What the page complained about since the last call: errors of scripts, refused content, failed loads."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def resize(browser: Any, width: int, height: int = 900, *, mobile: bool = False, scale: float = 1.0) -> None:
    """Give the page a viewport of this size, also below the smallest window (a phone: 390 x 844)."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def prefer_dark(browser: Any, dark: bool) -> None:
    """What the page's ``prefers-color-scheme`` sees."""
    feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def screenshot(browser: Any, path: Path, *, whole: bool = False) -> Path:
    """Save what is in the viewport, or the whole page, as a PNG."""
    options: dict[str, Any] = {"format": "png"}
    if whole:
        size = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        options.update(captureBeyondViewport=True, clip={**size, "x": 0, "y": 0, "scale": 1})
    path.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", options)["data"]))
    return path


def scrolls_sideways(browser: Any) -> bool:
    """Whether the page is wider than its viewport."""
    return bool(browser.execute_script("return document.documentElement.scrollWidth > window.innerWidth"))
