"""Write small corpora to disk."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bcs_lab.corpus.schema import PAIR_COLUMNS
from bcs_lab.teachers.protocol import BCS12


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (12, 10)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def pair(pair_id: str, **cells: str) -> dict[str, str]:
    row = {
        "pair_id": pair_id,
        "method": "ATM",
        "subject": "sub-01",
        "concept": "cat",
        "rank": "1",
        "candidate": "0",
        "reference_path": f"img/ref_{pair_id}.png",
        "reconstruction_path": f"img/rec_{pair_id}.png",
    }
    return {**row, **cells}


def record(pair_id: Any, answer: Any = "yes", **answers: Any) -> dict[str, Any]:
    full: dict[str, Any] = {q: {"answer": answer, "reasoning": f"{q} of {pair_id}"} for q in BCS12.ids}
    return {"pair_id": pair_id, "answers": {**full, **answers}}


def write_jsonl(path: Path, records: Sequence[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in records), encoding="utf-8")
    return path


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns or list(rows[0]) if rows else list(PAIR_COLUMNS))
        writer.writeheader()
        writer.writerows(rows)
    return path


Make = Callable[..., Path]
