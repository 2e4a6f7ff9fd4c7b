"""Files are whole or absent, JSON is strict."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from bcs_lab.errors import RunError
from bcs_lab.files import read_json, replacing, write_json


def test_undefined_numbers_become_null(tmp_path: Path) -> None:
    value = {"a": math.nan, "b": [np.float32("inf"), np.array([1.0, np.nan])], "c": (np.int64(3), Path("x"), None)}
    write_json(tmp_path / "x.json", value)
    text = (tmp_path / "x.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text) == {"a": None, "b": [None, [1.0, None]], "c": [3, "x", None]}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:  # noqa: PT012 (fails half-way)
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_damaged_json_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": ')
    with pytest.raises(RunError, match=r"x\.json"):
        read_json(tmp_path / "x.json")
