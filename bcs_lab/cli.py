"""``bcs <task> [Hydra overrides]``: a table of tasks, their help, and nothing heavy.

Help answers without importing Hydra or torch: it reads the names of the config files.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from bcs_lab import __version__


@dataclass(frozen=True)
class Task:
    """One task of the command line.

    Attributes:
        name: one or two words after ``bcs``.
        summary: one line for the overview.
        module: module with ``run``; imported only when the task runs.
        config: primary Hydra config, or ``None`` for a task that takes plain arguments.
        examples: commands shown by ``--help``.
    """

    name: str
    summary: str
    module: str
    config: str | None
    examples: tuple[str, ...]


TASKS: tuple[Task, ...] = (
    Task(
        "train",
        "train a BCS ensemble and evaluate it on held-out pairs",
        "bcs_lab.tasks.train",
        "train",
        (
            "bcs train                                          # 311 real pairs that ship with the package",
            "bcs train -m encoder=siglip,fusion teachers=3,4    # a sweep, compared at its end",
            "bcs train -m experiment=table6                     # the rows of the paper's Table 6",
            "bcs train corpus=manifest corpus.root=DIR encoder=embedded teachers=all",
        ),
    ),
    Task(
        "compare",
        "one table and page from finished runs",
        "bcs_lab.tasks.compare",
        None,
        ("bcs compare runs/sweep/DIR", "bcs compare RUN1 RUN2 out=comparison"),
    ),
    Task(
        "embed",
        "fill the embedding store, or bring in embeddings computed elsewhere",
        "bcs_lab.tasks.embed",
        "embed",
        (
            "bcs embed corpus=manifest corpus.root=DIR encoder=fusion",
            "bcs embed corpus=manifest corpus.root=DIR source=npz path=FILE.npz encoder.name=mine",
        ),
    ),
    Task(
        "corpus export",
        "write a corpus without its images: labels and embeddings in one folder",
        "bcs_lab.tasks.corpus_export",
        "corpus_export",
        ("bcs corpus export corpus=manifest corpus.root=DIR out=BUNDLE encoders=[efficientnet_lite0,lowlevel]",),
    ),
)

_HELP_FLAGS = {"-h", "--help", "help"}


def config_dir() -> Path:
    """The folder of Hydra configs: ``conf/`` beside the package in a checkout, else the copy inside the wheel."""
    package = Path(__file__).resolve().parent
    checkout = package.parent / "conf"
    return checkout if (checkout / "train.yaml").is_file() else package / "conf"


def choices(group: str) -> list[str]:
    """Options of one config group; names that start with an underscore are shared parts, not options."""
    folder = config_dir() / group
    return sorted(path.stem for path in folder.glob("*.yaml") if not path.stem.startswith("_"))


def _overview() -> str:
    width = max(len(task.name) for task in TASKS)
    lines = [
        f"bcs_lab {__version__}: judge images reconstructed from brain signals with the BCI-Coherence Score",
        "",
        "usage: bcs TASK [KEY=VALUE ...]",
        "",
        "tasks:",
        *(f"  {task.name:<{width}}  {task.summary}" for task in TASKS),
        "",
        "bcs TASK --help shows the settings of a task. First steps: bcs train",
    ]
    return "\n".join(lines)


def _task_help(task: Task) -> str:
    lines = [f"bcs {task.name}: {task.summary}", ""]
    if task.config is None:
        lines += ["usage: bcs " + task.name + " DIR [DIR ...] [out=DIR]", ""]
    else:
        lines += [f"usage: bcs {task.name} [-m] [KEY=VALUE ...]", "", "groups (GROUP=OPTION):"]
        primary = config_dir() / f"{task.config}.yaml"
        text = primary.read_text(encoding="utf-8")
        groups = [line.strip()[2:] for line in text.splitlines() if line.startswith("  - ") and ": " in line]
        for entry in groups:
            group, default = (part.strip() for part in entry.split(":", 1))
            if group.startswith("override "):
                continue
            shown = [f"[{name}]" if name == default else name for name in choices(group)]
            lines.append(f"  {group:<11} {' '.join(shown)}")
        lines += ["", "settings and their defaults:"]
        lines += [f"  {line}" for line in _settings(text)]
        lines += [
            "",
            "-m runs every combination of comma-separated values (a=1,2 b=x,y). --cfg job prints the composed config,",
            "--info defaults how it was composed, --hydra-help Hydra's own flags.",
        ]
    lines += ["", "examples:", *(f"  {example}" for example in task.examples)]
    return "\n".join(lines)


def _settings(text: str) -> list[str]:
    """The lines of a primary config between its defaults list and its Hydra block."""
    body: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("defaults:"):
            inside = True
        elif inside and line and not line.startswith(("  -", "#")):
            inside = False
            body = [line]
        elif line.startswith("hydra:"):
            break
        elif not inside and body:
            body.append(line)
    if body and body[0].startswith("hydra:"):
        return []
    return [line for line in body if line.strip()]


def find_task(arguments: Sequence[str]) -> tuple[Task | None, list[str]]:
    """Match the leading words of a command line to a task; the rest are its arguments."""
    for task in TASKS:
        words = task.name.split()
        if list(arguments[: len(words)]) == words:
            return task, list(arguments[len(words) :])
    return None, list(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one task and return its exit status (0 done, 1 a job of a sweep failed, 2 bad input, 130 interrupted)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in _HELP_FLAGS:
        print(_overview())
        return 0
    if arguments[0] in {"--version", "-V"}:
        print(f"bcs_lab {__version__}")
        return 0
    task, rest = find_task(arguments)
    if task is None:
        names = [candidate.name for candidate in TASKS]
        starts = [name for name in names if name.split()[0] == arguments[0]]
        near = (
            starts or get_close_matches(" ".join(arguments[:2]), names, n=1) or get_close_matches(arguments[0], names)
        )
        hint = f"Did you mean: bcs {near[0]}?" if near else f"Tasks: {', '.join(names)}."
        print(f"bcs: no task {' '.join(arguments[:1])!r}. {hint}", file=sys.stderr)
        return 2
    if any(flag in {"-h", "--help"} for flag in rest):
        print(_task_help(task))
        return 0
    from bcs_lab.launch import launch

    return launch(task, rest)


if __name__ == "__main__":
    sys.exit(main())
