"""Run folders for the report's tests, written by hand to the files' documented contents, over a small drawn corpus."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from PIL import Image, ImageDraw

from bcs_lab.consensus import consensus
from bcs_lab.corpus import PAIR_COLUMNS, Corpus, load_corpus
from bcs_lab.evaluate import METRICS, axis_scores, bootstrap_ci, evaluate
from bcs_lab.files import write_json
from bcs_lab.methods import method_differences, method_table
from bcs_lab.regimes import REGIMES, regime_codes
from bcs_lab.teachers.protocol import BCS12

LEVELS = ("no", "somewhat", "yes")
TEACHERS = ("a", "b", "c", "d")

#: Texts that would run, or break out of where they stand, if anything forgot to escape them.
SCRIPT = "<script>window.pwned=1</script>"
IMAGE = "\"><img src=x onerror='window.pwned=2'>"
CLOSING = "</script><script>window.pwned=3</script> & \u2028 'quotes'"


def draw(root: Path, *, concepts: Sequence[str], methods: Sequence[str], said: str = "seen") -> Path:
    """A manifest corpus: a coloured square a concept, its reconstructions by each method fainter and moved."""
    generator = np.random.default_rng(3)
    (root / "images").mkdir(parents=True)
    (root / "annotations").mkdir()
    rows, records = [], {teacher: [] for teacher in TEACHERS}
    for c, concept in enumerate(concepts):
        colour = tuple(int(value) for value in generator.integers(40, 220, 3))
        for m, method in enumerate((None, *methods)):
            image = Image.new("RGB", (96, 80), "white")
            shift = 6 * m
            ImageDraw.Draw(image).rectangle((15 + shift, 15, 60 + shift, 55 + 2 * m), fill=colour)
            name = f"images/{'ref' if method is None else 'rec'}{c}_{m}.png"
            image.save(root / name)
            if method is None:
                reference = name
                continue
            pair = f"p{c:02d}_{m}"
            rows.append([pair, method, f"sub-0{m}", concept, "1", "0", reference, name])
            quality = generator.uniform()
            for teacher in TEACHERS:
                value = np.clip(quality + generator.normal(0, 0.25, 12), 0, 0.999)
                answers = {
                    question: {"answer": LEVELS[int(3 * v)], "reasoning": f"{said} {question} by {teacher}"}
                    for question, v in zip(BCS12.ids, value, strict=True)
                }
                records[teacher].append({"pair_id": pair, "answers": answers})
    with (root / "manifest.csv").open("w", newline="", encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(PAIR_COLUMNS)
        writer.writerows(rows)
    for teacher, items in records.items():
        (root / "annotations" / f"{teacher}.jsonl").write_text("\n".join(json.dumps(item) for item in items) + "\n")
    return root


def open_drawn(root: Path) -> Corpus:
    return load_corpus("manifest", root)


def predict(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """Consensus, and a prediction near it."""
    target = consensus(corpus.answers)
    noise = np.random.default_rng(5).normal(0, 0.12, target.shape)
    return target, np.clip(0.15 + 0.7 * np.nan_to_num(target, nan=0.5) + noise, 0, 1).astype(np.float32)


def corpus_settings(root: Path | str) -> dict[str, Any]:
    return {
        "kind": "manifest",
        "root": str(root),
        "teachers": None,
        "on_bad_row": "error",
        "max_image_pixels": 64_000_000,
    }


def _write_settings(folder: Path, settings: dict[str, Any]) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(settings, allow_unicode=True), encoding="utf-8")


def train_run(folder: Path, root: Path, *, written_root: str | None = None, **changes: Any) -> Path:
    """A training run; a key of ``metrics.json`` in ``changes`` replaces what was computed."""
    corpus = open_drawn(root)
    target, prediction = predict(corpus)
    concepts = corpus.pairs["concept"].to_numpy()
    order = {concept: index for index, concept in enumerate(dict.fromkeys(concepts))}
    part = np.array([("test", "train", "val")[order[concept] % 3] for concept in concepts], dtype=object)
    test = part == "test"
    columns: dict[str, Any] = {"pair_id": corpus.pairs["pair_id"], "split": part}
    for index, question in enumerate(BCS12.ids):
        columns |= {f"{question}_target": target[:, index], f"{question}_prediction": prediction[:, index]}
        columns[f"{question}_std"] = np.linspace(0, 0.2, len(corpus))
    for axis, goal, score in zip(
        ("t_pas", "t_sas"), axis_scores(target, BCS12), axis_scores(prediction, BCS12), strict=True
    ):
        columns |= {
            f"{axis}_target": goal,
            f"{axis}_prediction": score,
            f"{axis}_std": np.linspace(0, 0.1, len(corpus)),
        }
    folder.mkdir(parents=True)
    pd.DataFrame(columns).to_parquet(folder / "predictions.parquet")
    pd.DataFrame({"pair_id": corpus.pairs["pair_id"], "concept": concepts, "split": part}).to_parquet(
        folder / "split.parquet"
    )
    values = evaluate(prediction[test], target[test], BCS12)
    metrics = {
        "ensemble": values,
        "ci95": bootstrap_ci(prediction[test], target[test], concepts[test], BCS12, n_boot=100),
        "members": [{"seed": 7, "best_epoch": 3, "epochs": 9, **values}],
        "baseline": {**values, "pas_r": None, "sas_r": None},
        "baselines": {"cosine lowlevel": {**values, "q_mae": None, "pas_rho": 0.999}},
        "n": {name: int((part == name).sum()) for name in ("train", "val", "test")},
        "encoders": ["lowlevel"],
        "stand_in": False,
        "simulated_teachers": False,
        "teachers": list(TEACHERS),
        "head": "continuous",
        "split": "concept",
        "wall_s": 1.0,
        **changes,
    }
    axis = {"half_width": 0.2, "held_out_concepts": 0.875, "held_out_pairs": 0.86, "val_concepts": 9}
    curve = [{"level": level, "t_pas": level - 0.05, "t_sas": None} for level in (0.5, 0.8, 0.9)]
    axes = {
        "t_pas": {**axis, "test_concepts": 8, "test_pairs": int(test.sum())},
        "t_sas": {**axis, "half_width": None, "held_out_concepts": None, "held_out_pairs": None, "test_concepts": 8,
                  "test_pairs": int(test.sum())},
    }  # fmt: skip
    write_json(folder / "coverage.json", {"coverage": 0.9, "axes": axes, "curve": curve})
    _write_settings(folder, {"corpus": corpus_settings(written_root or root), "store": str(folder / "no store")})
    write_json(folder / "run.json", {"task": "train", "state": "finished", "corpus": corpus.name, "bcs_lab": "0"})
    write_json(folder / "metrics.json", metrics)
    return folder


def score_run(folder: Path, root: Path, *, answers: bool = True, ood: int = 0, **changes: Any) -> Path:
    """A scoring run of all pairs of a drawn corpus."""
    corpus = open_drawn(root)
    target, prediction = predict(corpus)
    scores = dict(zip(("t_pas", "t_sas"), axis_scores(prediction, BCS12), strict=True))
    frame = pd.DataFrame({"pair_id": corpus.pairs["pair_id"]})
    frame["reference"] = [str(corpus.reference_file(i)) for i in range(len(corpus))]
    frame["reconstruction"] = [str(corpus.reconstruction_file(i)) for i in range(len(corpus))]
    frame[list(BCS12.ids)] = prediction
    for axis, values in scores.items():
        frame[axis], frame[f"{axis}_std"] = values, np.linspace(0, 0.1, len(frame))
        frame[f"{axis}_lo"], frame[f"{axis}_hi"] = np.clip(values - 0.2, 0, 1), np.clip(values + 0.2, 0, 1)
    frame["regime"] = regime_codes(*scores.values())
    for column in corpus.pairs.columns[1:]:
        frame[column] = corpus.pairs[column]
    frame["ood"] = np.arange(len(frame)) < ood
    frame["simulated_teachers"] = False
    folder.mkdir(parents=True)
    frame.to_parquet(folder / "scores.parquet")
    counts = frame["regime"].value_counts()
    model = {"path": "somewhere", "digest": "abc123", "encoders": ["lowlevel"], "head": "continuous"}
    model |= {
        "teachers": list(TEACHERS),
        "simulated_teachers": False,
        "corpus": "other",
        "metrics": None,
        "created": "now",
    }
    judged = {**evaluate(prediction, target, BCS12), "ci95": dict.fromkeys(METRICS), "teachers": list(TEACHERS)}
    summary = {
        "model": model,
        "corpus": corpus.name,
        "corpus_simulated_teachers": False,
        "pairs": len(frame),
        "skipped": 2,
        "coverage": 0.9,
        "mean": {axis: float(values.mean()) for axis, values in scores.items()},
        "regimes": {code: {"n": int(counts.get(code, 0)), "share": 0.0} for code in REGIMES},
        "ood": {"n": ood, "share": ood / len(frame)},
        "methods": method_table(frame, resamples=100),
        "differences": method_differences(frame, resamples=100),
        "against_consensus": judged if answers else None,
        "warnings": [],
        **changes,
    }
    _write_settings(folder, {"corpus": corpus_settings(root) if answers else None, "store": str(folder / "no store")})
    write_json(folder / "run.json", {"task": "score", "state": "finished", "corpus": corpus.name})
    write_json(folder / "score.json", summary)
    return folder
