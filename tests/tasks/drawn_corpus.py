"""A manifest corpus with images, made from a seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bcs_lab.teachers.protocol import BCS12, Protocol, protocol_text

LEVELS = ("no", "somewhat", "yes")


def draw_corpus(
    root: Path,
    *,
    concepts: int = 12,
    per_concept: int = 2,
    teachers: tuple[str, ...] = ("a", "b", "c", "d"),
    protocol: Protocol = BCS12,
) -> Path:
    """A manifest corpus of coloured gratings; the reconstruction is the reference with noise, and answers follow it."""
    levels = {score: label for label, score in protocol.levels.items()}
    generator = np.random.default_rng(0)
    images = root / "images"
    images.mkdir(parents=True)
    rows: list[list[str]] = []
    answers: dict[str, list[dict[str, Any]]] = {teacher: [] for teacher in teachers}
    for concept in range(concepts):
        angle = np.add.outer(np.arange(24) * (concept + 1), np.arange(32) * 3)
        reference = (127 + 90 * np.sin(angle[..., None] / 20 + generator.uniform(0, 6, 3))).astype(np.uint8)
        Image.fromarray(reference).save(images / f"ref{concept}.png")
        for candidate in range(per_concept):
            noise = generator.uniform(0, 1)
            mixed = (1 - noise) * reference + noise * generator.uniform(0, 255, reference.shape)
            name = f"rec{concept}_{candidate}.png"
            Image.fromarray(mixed.astype(np.uint8)).save(images / name)
            pair = f"p{concept:02d}_{candidate}"
            rows.append([pair, f"m{candidate}", f"sub-0{concept % 3}", f"c{concept}", "1", str(candidate)])
            rows[-1] += [f"images/ref{concept}.png", f"images/{name}"]
            for teacher in teachers:
                value = np.clip(1 - noise + generator.normal(0, 0.15, len(protocol.ids)), 0, 0.999)
                given = {
                    question: {"answer": levels[int(3 * v) / 2], "reasoning": "seen"}
                    for question, v in zip(protocol.ids, value, strict=True)
                }
                answers[teacher].append({"pair_id": pair, "answers": given})
    header = "pair_id,method,subject,concept,rank,candidate,reference_path,reconstruction_path"
    (root / "manifest.csv").write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    (root / "annotations").mkdir()
    for teacher, records in answers.items():
        text = "\n".join(json.dumps(record) for record in records) + "\n"
        (root / "annotations" / f"{teacher}.jsonl").write_text(text)
    if protocol is not BCS12:
        (root / "protocol.yaml").write_text(protocol_text(protocol), encoding="utf-8")
    return root


def only(folder: Path, pattern: str) -> Path:
    """The one path that matches."""
    (path,) = folder.glob(pattern)
    return path
