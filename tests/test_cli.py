"""The command line: help without heavy imports, clear answers to wrong words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bcs_lab.catalogue import TASKS, choices, config_dir, find_task
from bcs_lab.cli import main


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["help"], ["train", "--help"], ["embed", "-h"], ["compare", "--help"]]
)
def test_help_imports_nothing_heavy(arguments: list[str], repository: Path) -> None:
    code = (
        "import sys; from bcs_lab.cli import main; status = main(sys.argv[1:]);"
        "heavy = {'torch', 'hydra', 'omegaconf', 'pandas', 'numpy', 'transformers', 'wandb'} & set(sys.modules);"
        "print(sorted(heavy), file=sys.stderr); sys.exit(status or bool(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "bcs" in done.stdout


def test_overview_names_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(task.name in text and task.summary in text for task in TASKS)


def test_train_help_shows_groups_defaults_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    for word in (
        "[brainbank]",
        "[embedded]",
        "siglip",
        "[continuous]",
        "ordinal",
        "teachers: 4",
        "table6",
        "[7, 13, 21, 37, 42]",
    ):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["trian"], "bcs train"),
        (["corpus", "exprot"], "bcs corpus export"),
        (["zzz"], "Tasks:"),
    ],
)
def test_unknown_task_is_one_line_with_a_hint(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert hint in error
    assert error.count("\n") == 1


def test_two_word_tasks_are_found() -> None:
    task, rest = find_task(["corpus", "export", "out=x"])
    assert task is not None
    assert (task.name, rest) == ("corpus export", ["out=x"])


def test_config_choices_hide_shared_parts() -> None:
    assert config_dir().name == "conf"
    assert "siglip" in choices("encoder")
    assert not any(name.startswith("_") for name in choices("encoder"))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("bcs_lab ")


@pytest.mark.parametrize("arguments", [["corpus"], ["study", "--help"]])
def test_first_word_alone_lists_its_tasks(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [task.name for task in TASKS if task.name.startswith(f"{arguments[0]} ")]
    assert [line.split(":")[0] for line in lines] == [f"bcs {name}" for name in names]
    assert len(names) > 1
