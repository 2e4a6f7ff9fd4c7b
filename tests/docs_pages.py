"""The code blocks of Markdown pages, and what their lines run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from hydra import compose, initialize_config_dir

from bcs_lab.catalogue import config_dir, find_task

#: What makes a training or a bootstrap quick, added where a command does not say otherwise.
QUICK = {
    "train": ("trainer=debug", "seeds=[7]", "head.hidden=16", "bootstrap.resamples=100", "logger=none"),
    "corpus show": ("n=2",),
    "score": ("bootstrap.resamples=100",),
    "agreement": ("bootstrap.resamples=100", "rationales.items=20"),
    "audit": ("bootstrap.resamples=100", "degradation.images=2", "captions=none"),
    "study analyze": ("bootstrap.resamples=100",),
}


@dataclass(frozen=True)
class Block:
    """One fenced block of code.

    Attributes:
        page: the file.
        line: of its first line of code, from 1.
        language: first word after the fence.
        marker: the rest, such as ``composed: many trainings``, without its brackets.
        code: the text.
    """

    page: Path
    line: int
    language: str
    marker: str
    code: str

    @property
    def kind(self) -> str:
        """``run``, ``composed`` or ``not run``."""
        return self.marker.partition(":")[0] if self.marker else "run"

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^```([a-z]\w*)(?: \(([^)\n]*)\))?\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(page, line, match[1], match[2] or "", match[3]))
    return found


def commands(block: Block) -> list[str]:
    """The commands of a shell block, without comments."""
    lines = block.code.replace("\\\n", " ").splitlines()
    return [command for line in lines if (command := re.sub(r"(^|\s+)#.*", "", line).strip())]


def arguments(command: str) -> list[str] | None:
    """What ``bcs`` is called with, also for ``python train.py``; ``None`` for another program."""
    words = shlex.split(command)
    if words[:2] == ["python", "train.py"]:
        return ["train", *words[2:]]
    return words[1:] if words[0] == "bcs" else None


def quickened(given: list[str]) -> list[str]:
    """The same call, made quick."""
    task, rest = find_task(given)
    name = "" if task is None else task.name
    keys = {word.partition("=")[0] for word in rest}
    more = [*QUICK.get(name, ()), *(["corpus.per_image=2"] if "corpus=simulated" in rest else [])]
    if "features=similarity" in rest:
        more.remove("head.hidden=16")  # heads without a hidden layer
    return [*given, *(word for word in more if word.partition("=")[0] not in keys)]


def composes(given: list[str]) -> None:
    """Fail unless the call names a task, and settings that its config has."""
    task, rest = find_task(given)
    assert task is not None, f"no such task: {given}"
    if task.config is None or "--help" in rest:
        return
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        # A sweep composes once a combination; the first value of each is enough to know that names exist.
        compose(task.config, [re.sub(r"=([^\[\]]*?),.*$", r"=\1", word) for word in rest if word != "-m"])
