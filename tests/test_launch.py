"""Run folders, job records and what a sweep does when a job fails, stops or is started again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bcs_lab import launch as launch_module
from bcs_lab.catalogue import Task
from bcs_lab.cli import main
from bcs_lab.errors import CorpusError
from bcs_lab.launch import RECORD, job_records, launch

FAKE = Task("train", "", "fake_task", "train", ())


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, Path]]:
    """A task that records its calls and fails or stops when the seed says so; the current folder is empty."""
    calls: list[tuple[Any, Path]] = []
    module = ModuleType("fake_task")

    def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
        calls.append((values, out))
        (seed,) = values["seeds"]
        if seed == 3:
            raise CorpusError("row 5 is bad")
        if seed == 4:
            raise ZeroDivisionError("a bug")
        if seed == 5:
            raise KeyboardInterrupt
        (out / "result.txt").write_text(f"{seed} {len(calls)}")
        return {"corpus": "fake"}

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_task", module)
    monkeypatch.setattr(sys, "argv", ["bcs"])
    monkeypatch.chdir(tmp_path)
    return calls


def states(folder: Path) -> dict[str, Any]:
    return {number: record["state"] for number, record in job_records(folder).items()}


def test_a_run_gets_a_folder_of_its_own_and_a_record(task: list[Any], tmp_path: Path) -> None:
    assert launch(FAKE, ["seeds=[1]"]) == 0
    assert launch(FAKE, ["seeds=[1]"]) == 0
    folders = {out for _, out in task}
    assert len(folders) == 2
    for folder in folders:
        assert folder.parent == tmp_path / "runs" / "train"
        record = json.loads((folder / RECORD).read_text())
        assert record["state"] == "finished"
        assert record["corpus"] == "fake"
        assert record["overrides"] == ["seeds=[1]"]


def test_an_error_is_one_message_and_status_2(task: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(FAKE, ["seeds=[3]"]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1] == "bcs: row 5 is bad"
    assert json.loads((task[0][1] / RECORD).read_text())["state"] == "failed"


def test_a_bug_keeps_its_traceback(task: list[Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        launch(FAKE, ["seeds=[4]"])


def test_a_sweep_goes_on_after_a_failure_and_repeats_only_what_is_missing(
    task: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["-m", "seeds=[1],[2],[3],[6]", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    assert launch(FAKE, sweep) == 1
    assert states(tmp_path / "sweep") == {"0": "finished", "1": "finished", "2": "failed", "3": "finished"}
    text = capsys.readouterr().out
    assert "row 5 is bad" in text
    assert f"hydra.sweep.dir={tmp_path / 'sweep'}" in text
    before = {path: path.read_bytes() for path in (tmp_path / "sweep").glob("*/result.txt")}

    task.clear()
    assert launch(FAKE, sweep) == 1
    assert [values["seeds"] for values, _ in task] == [[3]]
    assert {path: path.read_bytes() for path in before} == before
    assert launch(FAKE, [*sweep, "force=true"]) == 1
    assert len(task) == 5


def test_an_interrupted_sweep_says_so_and_can_go_on(
    task: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["-m", "seeds=[1],[5],[2]", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    assert launch(FAKE, sweep) == 130
    assert states(tmp_path / "sweep") == {"0": "finished", "1": "interrupted"}
    assert "go on" in capsys.readouterr().err


def test_a_folder_with_other_settings_is_not_overwritten(
    task: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = f"hydra.run.dir={tmp_path / 'here'}"
    assert launch(FAKE, ["seeds=[1]", here]) == 0
    assert launch(FAKE, ["seeds=[2]", here]) == 2
    assert "other settings" in capsys.readouterr().err
    assert launch(FAKE, ["seeds=[2]", here, "force=true"]) == 0


def test_settings_that_do_not_change_a_result_do_not_count(task: list[Any], tmp_path: Path) -> None:
    here = f"hydra.run.dir={tmp_path / 'here'}"
    assert launch(FAKE, ["seeds=[1]", here]) == 0
    assert launch(FAKE, ["seeds=[1]", here, "logger=none", "store=elsewhere"]) == 0
    assert len(task) == 1


def test_two_runs_cannot_share_a_folder(task: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with launch_module.only_run_in(tmp_path):
        assert launch(FAKE, ["seeds=[1]", f"hydra.run.dir={tmp_path}"]) == 2
    assert "another run is going on" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["encoder=siglipp"], ["encoder=siglipp", "Did you mean encoder=siglip?", "fusion"]),
        (["head=linear"], ["head=linear", "continuous"]),
        (["corpus=manifest"], ["corpus.root=…"]),
        (["teacher=3"], ["teacher"]),
        (["seeds=[1"], ["seeds"]),
        (["corpus=manifest", "corpus.size=paper"], ["corpus.size is a setting of corpus=demo only"]),
        (["experiment=table7"], ["Did you mean experiment=table6?"]),
    ],
)
def test_a_wrong_override_is_named(
    task: list[Any], overrides: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert launch(FAKE, overrides) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words), error
    assert "Traceback" not in error
    assert not task


def test_an_unwritable_folder_is_named(task: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert launch(FAKE, ["seeds=[1]", f"hydra.run.dir={tmp_path / 'file' / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert "cannot use" in error
    assert "hydra.run.dir" in error


@pytest.mark.parametrize("target", ["file", "x" * 300])
def test_a_run_folder_that_cannot_be_made_is_named(
    task: list[Any], tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for override in (["hydra.run.dir="], ["-m", "hydra.sweep.dir="]):
        arguments = [*override[:-1], "seeds=[1]", f"{override[-1]}{tmp_path / target}"]
        assert launch(FAKE, arguments) == 2
        error = capsys.readouterr().err
        assert "cannot use" in error
        assert "Traceback" not in error
    assert not task


def test_an_experiment_without_m_is_refused(task: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert launch(FAKE, ["experiment=table6"]) == 2
    assert "add -m" in capsys.readouterr().err
    assert not task


def test_a_finished_run_is_repeated_when_its_corpus_has_changed(task: list[Any], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "manifest.csv").write_text("a")
    arguments = ["seeds=[1]", "corpus=manifest", f"corpus.root={corpus}", f"hydra.run.dir={tmp_path / 'run'}"]
    for calls in (1, 1):
        assert launch(FAKE, arguments) == 0
        assert len(task) == calls
    (corpus / "manifest.csv").write_text("ab")
    assert launch(FAKE, arguments) == 0
    assert len(task) == 2


def test_paths_do_not_depend_on_hydras_working_folder(task: list[Any], tmp_path: Path) -> None:
    assert launch(FAKE, ["seeds=[1]", "hydra.job.chdir=true"]) == 0
    assert Path.cwd() == tmp_path


def test_python_train_is_bcs_train(repository: Path) -> None:
    """From another folder, with the script's own path."""
    done = subprocess.run(
        [sys.executable, str(repository / "train.py"), "--cfg", "job"],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "brainbank" in done.stdout


def test_teachers_beyond_the_corpus_are_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bcs"])
    assert main(["train", "teachers=5", "logger=none"]) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in ("literal", "conservative", "lenient", "decisive", "teachers"))
    assert "Traceback" not in error


def test_the_log_of_a_run_is_let_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import logging
    import shutil

    from bcs_lab.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["bcs"])
    assert main(["corpus", "show", "corpus=brainbank", "n=1", "hydra.run.dir=kept"]) in (0, 2)
    shutil.rmtree("kept")
    logging.getLogger("bcs_lab").warning("still here")  # a handler of a folder that is gone would raise
    assert not [handler for handler in logging.getLogger().handlers if type(handler) is logging.FileHandler]
