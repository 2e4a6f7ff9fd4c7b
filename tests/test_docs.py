"""What the README and the pages under docs/ say can be run and found, and their code blocks run."""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent / "human"))

from docs_folder import prepared
from docs_pages import Block, arguments, blocks, commands, composes, quickened

from bcs_lab.cli import main

__all__ = ["prepared"]

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = sorted((ROOT / "docs").glob("*.md"))
TEXTS = {page: page.read_text(encoding="utf-8") for page in [README, *PAGES]}

#: Every block that is not run, and why.
NOT_RUN = {
    ("annotate.md", "composed: draws hundreds of scenes"),
    ("annotate.md", "composed: needs a model"),
    ("annotate.md", "composed: needs earlier replies"),
    ("corpora.md", "composed: draws hundreds of scenes"),
    ("encoders.md", "composed: needs a model hub"),
    ("score.md", "composed: needs the Hugging Face hub"),
    ("start.md", "not run: installs packages"),
    ("train.md", "composed: many trainings"),
}

SHELL = [block for page in TEXTS for block in blocks(page) if block.language == "sh"]
LINES = [(block, command) for block in SHELL if block.kind != "not run" for command in commands(block)]


def test_set_up_is_two_commands() -> None:
    first = [command for block, command in LINES if block.page == README]
    assert first[:2] == ["make run", "make test"]


@pytest.mark.parametrize("command", sorted({command for _, command in LINES if command.startswith("make ")}))
def test_make_targets_exist(command: str) -> None:
    assert re.search(rf"^{command.split()[1]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_commands_compose(page: Path) -> None:
    """Those of the README, and those of pages that are not run."""
    for block, command in LINES:
        called = arguments(command)
        if block.page == page and called is not None and (page == README or block.kind == "composed"):
            composes(called)


def test_blocks_that_are_not_run_say_why() -> None:
    marked = {(block.page.name, block.marker) for page in PAGES for block in blocks(page) if block.marker}
    assert marked == NOT_RUN


def test_no_block_goes_unseen() -> None:
    """A fence that the tests do not recognise would hide a block from them."""
    for page in PAGES:
        fences = re.findall(r"^```(?!\{)(.+)$", TEXTS[page], flags=re.MULTILINE)
        assert len(fences) == len(blocks(page)), page
        assert {block.language for block in blocks(page)} <= {"sh", "python", "pycon", "text"}, page


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem)
def test_page_runs(page: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "page"
    shutil.copytree(prepared, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["bcs"])
    monkeypatch.setenv("BCS_STORE", str(prepared.parent / "store"))
    monkeypatch.setenv("MPLBACKEND", "Agg")
    # A page is read from top to bottom, so its Python blocks share their names.
    names: dict[str, Any] = {"__name__": "page"}
    runners: dict[str, Callable[[Block], None]] = {
        "sh": _shell,
        "python": lambda block: exec(compile(_placed(block), str(block.page), "exec"), names),
        "pycon": lambda block: _session(block, names),
    }
    for block in blocks(page):
        if block.kind == "run" and block.language in runners:
            try:
                runners[block.language](block)
            except BaseException as error:
                error.add_note(f"in the block at {block}")
                raise


def _placed(block: Block) -> str:
    """The code, with the line numbers of its page."""
    return "\n" * (block.line - 1) + block.code


def _session(block: Block, names: dict[str, Any]) -> None:
    """Compare what a session prints with what the page says."""
    test = doctest.DocTestParser().get_doctest(block.code, names, str(block), str(block.page), block.line - 1)
    said = io.StringIO()
    result = doctest.DocTestRunner(verbose=False).run(test, out=said.write, clear_globs=False)
    assert not result.failed, said.getvalue()
    names.update(test.globs)


def _shell(block: Block) -> None:
    for command in commands(block):
        called = arguments(command)
        words = shlex.split(command)
        if called is not None:
            _bcs(quickened(called), command)
        elif words[0] == "python":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "argv", words[1:])
                runpy.run_path(str(ROOT / words[1]), run_name="__main__")
        else:
            assert words[0] == "make", f"{command!r}: nothing here can run this; mark its block"


def _bcs(called: list[str], command: str) -> None:
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors):
        status = main(called)
    assert status == 0, f"{command}\n{errors.getvalue()}"


@pytest.mark.parametrize(
    ("page", "target"),
    sorted({(page.name, target) for page in TEXTS for target in re.findall(r"\]\((?!http)([^)#]+)", TEXTS[page])}),
)
def test_links_lead_somewhere(page: str, target: str) -> None:
    folder = ROOT if page == README.name else ROOT / "docs"
    assert (folder / target).exists()


@pytest.mark.parametrize(
    "path",
    sorted(
        {path for text in TEXTS.values() for path in re.findall(r"`((?:scripts|conf|bcs_lab|tests)/[\w./]+)`", text)}
    ),
)
def test_named_files_exist(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_is_listed(page: Path) -> None:
    trees = re.findall(r"```\{toctree\}\n(.*?)```", TEXTS[ROOT / "docs" / "index.md"], flags=re.DOTALL)
    listed = re.findall(r"(?:^|<)([a-z_]+)>?$", "\n".join(trees), flags=re.MULTILINE)
    assert page.stem == "index" or page.stem in listed
