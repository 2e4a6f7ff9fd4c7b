"""Fixtures of the corpus tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from corpus_files import Make, pair, picture, record, write_csv, write_jsonl


@pytest.fixture
def make_corpus(tmp_path: Path) -> Make:
    """``make(rows, teachers, images=True)`` writes a corpus folder and returns it."""

    def make(
        rows: Sequence[Mapping[str, str]] | None = None,
        teachers: Mapping[str, Sequence[Any]] | None = None,
        *,
        images: bool = True,
        name: str = "mine",
    ) -> Path:
        root = tmp_path / name
        rows = [pair("p1"), pair("p2", concept="dog"), pair("p3", method="MindEye")] if rows is None else rows
        write_csv(root / "manifest.csv", rows)
        if images:
            for i, row in enumerate(rows):
                for j, column in enumerate(("reference_path", "reconstruction_path")):
                    text = row.get(column, "")
                    if text and not (root / text).exists():
                        picture(root / text, seed=2 * i + j)
        if teachers is None:
            ids = list(dict.fromkeys(row["pair_id"] for row in rows))
            teachers = {"anna": [record(i) for i in ids], "bert": [record(i, "no") for i in ids]}
        for teacher, records in teachers.items():
            write_jsonl(root / "annotations" / f"{teacher}.jsonl", records)
        return root

    return make
