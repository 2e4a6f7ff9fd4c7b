"""What the README says can be run and found."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from bcs_lab.catalogue import config_dir, find_task

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]


def test_set_up_is_two_commands() -> None:
    assert COMMANDS[:2] == ["make run", "make test"]


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith("make")])
def test_make_targets_exist(command: str) -> None:
    assert re.search(rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("command", [line for line in COMMANDS if line.startswith(("python train.py", "bcs "))])
def test_commands_compose(command: str) -> None:
    words = shlex.split(command)
    arguments = ["train", *words[2:]] if words[0] == "python" else words[1:]
    task, rest = find_task(arguments)
    assert task is not None
    if task.config is None or "--help" in rest:
        return
    overrides = [word for word in rest if word != "-m"]
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        # A sweep composes once a combination; the first value of each is enough to know that names exist.
        single = [re.sub(r"=([^\[\]]*?),.*$", r"=\1", word) for word in overrides]
        compose(task.config, single)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README))))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:scripts|conf|bcs_lab|tests)/[\w./]+)`", README))))
def test_named_files_exist(path: str) -> None:
    assert (ROOT / path).exists()
