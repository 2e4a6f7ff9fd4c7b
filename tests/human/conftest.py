"""Fixtures of the tests of studies with people."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import browser

from bcs_lab.cli import main
from bcs_lab.human.questionnaire import Questionnaire, read_questionnaire

__all__ = ["browser"]

# The corpus drawn for the tests of tasks serves here, too.
sys.path.append(str(Path(__file__).parents[1] / "tasks"))


@pytest.fixture
def bcs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """``bcs("study", "form", …)`` from an empty folder."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["bcs"])

    def call(*arguments: str) -> int:
        return main(list(arguments))

    return call


@pytest.fixture(scope="session")
def asked() -> Questionnaire:
    """The questions that come with the package."""
    return read_questionnaire()
