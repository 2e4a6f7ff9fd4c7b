"""``bcs corpus show``: a contact sheet of some pairs, and a table of what the corpus holds."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pandas as pd

from bcs_lab.config import ShowConfig, absolute, parse
from bcs_lab.corpus import Corpus, summary
from bcs_lab.tasks.inputs import open_corpus, report_skipped

log = logging.getLogger(__name__)


def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
    """Entry of the command line.

    Raises:
        CorpusError: the corpus cannot be read.
    """
    config = parse(ShowConfig, values)
    corpus = open_corpus(config.corpus, start)
    report_skipped(corpus, out)

    from bcs_lab.report.contact_sheet import choose_pairs, contact_sheet, truth_note
    from bcs_lab.report.figures import save

    path = absolute(config.out, start) or out / "contact_sheet.png"
    if path.is_dir():
        path = path / "contact_sheet.png"
    rows = choose_pairs(corpus, config.n, config.seed)
    save(contact_sheet(corpus, rows), path)
    print(table(corpus))
    teachers = f"{len(corpus.teachers)} teacher{'s' * (len(corpus.teachers) != 1)}"
    notes = [
        f"{len(corpus):,} pairs, {corpus.pairs['concept'].nunique()} concepts{_images(corpus)}",
        f"{teachers}{' (SIMULATED)' if corpus.simulated_teachers else ''}: " + ", ".join(corpus.teachers),
        truth_note(corpus),
    ]
    print("\n".join(note for note in notes if note))
    print(f"Contact sheet of {len(rows)} pairs: {path}")
    return {
        "corpus": corpus.name,
        "simulated_teachers": corpus.simulated_teachers,
        "sheet": str(path),
        "pairs": corpus.pairs["pair_id"].iloc[rows].tolist(),
    }


def table(corpus: Corpus) -> str:
    """The counts of :func:`bcs_lab.corpus.summary` as text, shares in per cent."""
    frame = summary(corpus)
    shares = [name for name in frame.columns if name.startswith("answered_")]
    for name in shares:
        frame[name] = [f"{value:.0%}" for value in frame[name]]
    frame["references"] = ["–" if pd.isna(value) else str(value) for value in frame["references"]]
    return frame.rename(columns={name: name.replace("answered_", "answered by ") for name in shares}).to_string(
        index=False
    )


def _images(corpus: Corpus) -> str:
    if corpus.root is None:
        return ", no images"
    images = {*corpus.pairs["reference_path"], *corpus.pairs["reconstruction_path"]}
    return f", {len(images):,} image files in {2 * len(corpus):,} slots"
