"""``bcs <task> [Hydra overrides]``: find the task, show its help, or run it.

Help answers without importing Hydra or torch: it reads the names of the config files.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches

from bcs_lab import __version__
from bcs_lab.catalogue import TASKS, Task, choices, config_dir, find_task

_HELP_FLAGS = {"-h", "--help", "help"}


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
        lines.append(f"usage: bcs {task.name} {task.usage}")
    else:
        primary = config_dir() / f"{task.config}.yaml"
        text = primary.read_text(encoding="utf-8")
        entries = [line.strip()[2:] for line in text.splitlines() if line.startswith("  - ") and ": " in line]
        split = [tuple(part.split("#")[0].strip() for part in entry.split(":", 1)) for entry in entries]
        groups = [(group, default) for group, default in split if not group.startswith("override ")]
        lines += [f"usage: bcs {task.name} [-m] [KEY=VALUE ...]", ""]
        if groups:
            lines += ["groups (GROUP=OPTION):"]
            for group, default in groups:
                shown = [f"[{name}]" if name == default else name for name in choices(group)]
                lines.append(f"  {group:<11} {' '.join(shown)}")
            lines.append("")
        lines += ["settings and their defaults:", *(f"  {line}" for line in _settings(text)), ""]
        defaults = [f"  {group}.{line}" for group, default in groups for line in _group_settings(group, default)]
        if defaults:
            lines += ["settings of the groups, as in their default option:", *defaults, ""]
        lines += [
            "-m runs every combination of comma-separated values (a=1,2 b=x,y). --cfg job prints the composed config,",
            "--info defaults how it was composed, --hydra-help Hydra's own flags.",
        ]
    lines += ["", "examples:", *(f"  {example}" for example in task.examples)]
    return "\n".join(lines)


def _group_settings(group: str, option: str) -> list[str]:
    """``key: value`` lines of a group's option, those of a shared part first; nested values are left out."""
    folder = config_dir() / group
    found: dict[str, str] = {}
    for path in (folder / "_defaults.yaml", folder / f"{option}.yaml"):
        if not path.is_file():
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            key, colon, value = line.partition(":")
            if colon and key.isidentifier() and key != "defaults" and value.strip():
                found[key] = f"{key}:{value}"
    return list(found.values())


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
    family = [candidate for candidate in TASKS if candidate.name.split()[0] == arguments[0]]
    if task is None and family and (not arguments[1:] or arguments[1] in _HELP_FLAGS):
        print("\n".join(f"bcs {member.name}: {member.summary}" for member in family))
        return 0
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
