"""Comparisons from run folders, including damaged, foreign and hostile ones."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bcs_lab.errors import RunError
from bcs_lab.files import write_json
from bcs_lab.report.compare import compare, find_runs
from bcs_lab.report.table import HEADINGS


def fake_run(folder: Path, *, shift: float = 0.0, head: str = "continuous", teachers: int = 4, **changes: Any) -> Path:
    values = {key: (0.2 - shift if key.endswith("_mae") else 0.5 + shift) for key in HEADINGS}
    metrics = {
        "ensemble": values,
        "ci95": {key: [value - 0.1, value + 0.1] for key, value in values.items()},
        "members": [{"seed": 7, "best_epoch": 3, "epochs": 9, **values}],
        "baseline": {**values, "pas_r": None, "sas_r": None},
        "baselines": {"cosine lowlevel": {**values, "q_mae": None}},
        "n": {"train": 10, "val": 2, "test": 3},
        "encoders": ["lowlevel"],
        "stand_in": False,
        "simulated_teachers": False,
        "teachers": [f"t{index}" for index in range(teachers)],
        "head": head,
        "split": "concept",
        "wall_s": 1.0,
        **changes,
    }
    write_json(folder / "metrics.json", metrics)
    write_json(folder / "run.json", {"corpus": "c", "split_hash": "h", "state": "finished"})
    return folder


def test_runs_below_a_folder_are_found_in_job_order(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        fake_run(tmp_path / str(number))
    assert [path.name for path in find_runs([tmp_path, tmp_path / "2"])] == ["0", "2", "10"]


def test_files_and_marks(tmp_path: Path) -> None:
    fake_run(tmp_path / "0", head="continuous")
    fake_run(tmp_path / "1", head="coral", shift=0.05)
    text = compare([tmp_path], tmp_path / "out")
    assert "lowlevel · coral" in text
    assert "0.550*" in text
    assert "All runs: 4 teachers" in text
    frame = pd.read_csv(tmp_path / "out" / "comparison.csv")
    assert list(frame["kind"]) == ["run"] * 2 + ["baseline"] * 2 + ["paper"] * 4
    assert "**0.550**" in (tmp_path / "out" / "comparison.md").read_text(encoding="utf-8")
    page = (tmp_path / "out" / "comparison.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 1
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", page.replace("http://www.w3.org", ""))
    assert "another corpus" in page


def test_baselines_appear_once_a_set_of_targets(tmp_path: Path) -> None:
    fake_run(tmp_path / "0", head="continuous")
    fake_run(tmp_path / "1", head="coral")
    fake_run(tmp_path / "2", teachers=3)
    compare([tmp_path], tmp_path)
    frame = pd.read_csv(tmp_path / "comparison.csv")
    labels = list(frame.loc[frame["kind"] == "baseline", "label"])
    assert sorted(labels) == [
        "cosine lowlevel · 3 teachers",
        "cosine lowlevel · 4 teachers",
        "train mean · 3 teachers",
        "train mean · 4 teachers",
    ]
    assert "different teachers" in (tmp_path / "comparison.md").read_text(encoding="utf-8")


def test_equal_settings_are_told_apart_by_folder(tmp_path: Path) -> None:
    fake_run(tmp_path / "a" / "one")
    fake_run(tmp_path / "a" / "two")
    text = compare([tmp_path], tmp_path)
    assert "[a/one]" in text
    assert "[a/two]" in text


def test_stand_ins_and_simulated_teachers_always_show(tmp_path: Path) -> None:
    used = ["siglip (stand-in efficientnet_lite2)"]
    fake_run(tmp_path / "0", encoders=used, stand_in=True, simulated_teachers=True)
    text = compare([tmp_path], tmp_path)
    for name in ("comparison.csv", "comparison.md", "comparison.html"):
        content = (tmp_path / name).read_text(encoding="utf-8").replace("\\", "")
        assert used[0] in content, name
        assert "imulated" in content, name
    assert used[0] in text


def test_what_comes_from_a_run_is_escaped(tmp_path: Path) -> None:
    fake_run(tmp_path / "0", encoders=["<script>alert(1)</script>"])
    fake_run(tmp_path / "1", encoders=['"><img src=x onerror=alert(1)>'])
    compare([tmp_path], tmp_path)
    page = (tmp_path / "comparison.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "<img" not in page


def test_undefined_statistics_stay_undefined(tmp_path: Path) -> None:
    undefined = dict.fromkeys(HEADINGS)
    fake_run(tmp_path / "0", ensemble=undefined, ci95=undefined)
    text = compare([tmp_path], tmp_path)
    assert "–" in text
    frame = pd.read_csv(tmp_path / "comparison.csv", dtype=str, keep_default_na=False)
    assert frame.loc[0, "pas_r"] == ""


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"ensemble": {}})])
def test_damaged_metrics_are_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "metrics.json").write_text(content)
    with pytest.raises(RunError, match=re.escape("metrics.json")):
        compare([tmp_path], tmp_path)


def test_a_damaged_run_does_not_hide_the_good_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fake_run(tmp_path / "0")
    fake_run(tmp_path / "1", head="coral")
    (tmp_path / "1" / "metrics.json").write_text("{")
    assert "lowlevel" in compare([tmp_path], tmp_path)
    assert str(Path("1") / "metrics.json") in caplog.text


def test_a_name_that_was_not_used_is_no_label(tmp_path: Path) -> None:
    folder = fake_run(tmp_path / "0", encoders=["efficientnet_lite2", "efficientnet_lite0", "lowlevel"])
    (folder / "config.yaml").write_text("encoder: {name: siglip}")
    assert compare([tmp_path], tmp_path).splitlines()[2].startswith("embedded ")


def test_no_run_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no metrics\.json"):
        compare([tmp_path], tmp_path)
    with pytest.raises(RunError, match="no such folder"):
        compare([tmp_path / "x"], tmp_path)


def test_the_page_opens_in_a_browser(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine")
    fake_run(tmp_path / "0")
    compare([tmp_path], tmp_path)
    shot = tmp_path / "shot.png"
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    subprocess.run(
        [
            browser,
            *flags.split(),
            "--disable-component-update",
            "--disable-sync",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--screenshot={shot}",
            (tmp_path / "comparison.html").as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert shot.stat().st_size > 5000
