"""``bcs compare DIR [DIR …] [out=DIR]``: one table and page from finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bcs_lab.errors import ConfigError


def run(arguments: Sequence[str]) -> int:
    """Compare the runs at or below the given folders.

    Args:
        arguments: folders, and at most one ``out=DIR`` (default: the folder itself when there is one, else
            ``comparison`` in the current folder).

    Raises:
        ConfigError: no folder given, or an unknown option.
        RunError: no finished run found there.
    """
    out: Path | None = None
    folders: list[Path] = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key == "out":
            out = Path(value)
        elif (equals and not Path(argument).exists()) or argument.startswith("-"):
            raise ConfigError(f"compare: unknown option {argument!r}; usage: bcs compare DIR [DIR ...] [out=DIR]")
        else:
            folders.append(Path(argument))
    if not folders:
        raise ConfigError("compare: expected at least one run folder; usage: bcs compare DIR [DIR ...] [out=DIR]")

    from bcs_lab.report.compare import compare

    print(compare(folders, out or (folders[0] if len(folders) == 1 else Path("comparison"))))
    return 0
