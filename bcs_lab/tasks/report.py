"""``bcs report``: one self-contained page about a training or scoring run, or about several beside each other."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from bcs_lab.config import ReportConfig, absolute, parse
from bcs_lab.errors import ConfigError
from bcs_lab.files import check_writable

log = logging.getLogger(__name__)

PAGE = "report.html"


def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
    """Entry of the command line.

    Raises:
        ConfigError: neither or both of ``run`` and ``runs``, or a page that is no HTML file, cannot be written there or
            cannot be small enough.
        RunError: a folder is no finished run, or its files are damaged.
    """
    config = parse(ReportConfig, values)
    given = [config.run] if config.run is not None else config.runs or []
    folders = [path for text in given if (path := absolute(text, start)) is not None]
    page = _page(config, folders, out, start)
    if all(folder.is_dir() for folder in folders):  # else what the runs lack is the first thing to say
        check_writable(page, "out")

    from bcs_lab.report.page import Options, write_report

    written = write_report(folders, page, Options(config.max_mb, config.pairs, config.part), start=start)
    print(written.path)
    print(written.summary)
    return {"page": str(written.path), "bytes": written.size, "runs": [str(folder) for folder in folders]}


def _page(config: ReportConfig, folders: list[Path], out: Path, start: Path) -> Path:
    """Where the page goes: as asked, else into the one run's folder, else into the folder of this job."""
    asked = absolute(config.out, start)
    if asked is None:
        return (folders[0] if len(folders) == 1 else out) / PAGE
    if asked.is_dir():
        return asked / PAGE
    if asked.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"out: expected an HTML file (out=FILE.html) or a folder that exists, got {config.out!r}")
    return asked
