"""The command line called from an empty folder, and a small corpus drawn on the spot."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from drawn_corpus import draw_corpus

from bcs_lab.cli import main


@pytest.fixture
def bcs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """``bcs("train", …)`` from an empty folder."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["bcs"])

    def call(*arguments: str) -> int:
        return main(list(arguments))

    return call


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    return draw_corpus(tmp_path / "drawn")
