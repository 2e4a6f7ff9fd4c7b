"""A small study, and raters who follow what a pair is really like with some noise of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bcs_lab.corpus.images import file_sha256
from bcs_lab.human.form import RATINGS_FORMAT, RATINGS_VERSION, group_order, item_order
from bcs_lab.human.questionnaire import Questionnaire, read_questionnaire
from bcs_lab.human.study import STRATA, Item, Study


def draw_study(folder: Path, stimuli: int = 9, seed: int = 0, **changes: Any) -> Study:
    """A study of two tiny pictures a stimulus, the scores drawn at random, written to ``folder``."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    names = [name for name, size in zip(STRATA, (6, 6, 3, 3), strict=True) for _ in range(size)]
    items = []
    for i in range(2 * stimuli):
        stimulus, item = f"s{i // 2:06x}", f"p{int(rng.integers(16**6)):06x}"
        for name in (stimulus, item):
            path = folder / "images" / f"{name}.png"
            if not path.exists():
                Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).save(path)
        p, s = rng.uniform(0, 1, 2).tolist()
        files = [f"images/{name}.png" for name in (stimulus, item)]
        hashes = [file_sha256(folder / name).hex() for name in files]
        stratum = names[i % len(names)]
        items.append(
            Item(item, stimulus, stratum, f"pair{i}", f"method{i % 2}", "na", f"concept{i // 2}", p, s, (p + s) / 2,
                 *files, *hashes)
        )  # fmt: skip
    study = Study(
        **{
            "items": tuple(sorted(items, key=lambda item: item.item)),
            "corpus": "drawn",
            "simulated": False,
            "seed": seed,
            "sizes": {name: names.count(name) for name in STRATA},
            "per_stimulus": 2,
            "coherence": "mean",
            "high": "dominant",
            "scores": {"source": "made up"},
            **changes,
        }
    )
    study.write(folder)
    return study


def submission(study: Study, questionnaire: Questionnaire, rater: str, answers: Mapping[str, Any]) -> dict[str, Any]:
    """What the form downloads."""
    return {
        "format": RATINGS_FORMAT,
        "version": RATINGS_VERSION,
        "study": study.digest,
        "questionnaire": {"digest": questionnaire.digest, **questionnaire.structure},
        "rater": rater,
        "submission": f"session-{rater}",
        "started": "2026-01-01T10:00:00.000Z",
        "item_order": item_order(study.digest, rater, {item.item: item.stimulus for item in study.items}),
        "group_order": group_order(study.digest, rater, [group.id for group in questionnaire.groups]),
        "answers": answers,
        "comment": "",
        "saved": "2026-01-01T10:20:00.000Z",
        "complete": True,
        "missing": 0,
    }


def simulate(
    study: Study,
    n_raters: int = 18,
    noise: float = 0.2,
    seed: int = 0,
    questionnaire: Questionnaire | None = None,
    missing: float = 0.0,
) -> list[dict[str, Any]]:
    """Raters from a latent model.

    What a pair is like on each group of questions is its score (T-PAS, T-SAS, joint coherence). A rater adds a leaning
    of their own, each answer its own noise, both of size ``noise``, and the sum falls into one of the answers.
    """
    asked = questionnaire or read_questionnaire()
    rng = np.random.default_rng(seed)
    values = asked.scale.values
    latent = {"perceptual": "t_pas", "semantic": "t_sas", "coherence": "coherence"}
    out = []
    for r in range(n_raters):
        leaning = rng.normal(0, noise / 2)
        answers: dict[str, Any] = {}
        for item in study.items:
            given = answers.setdefault(item.item, {})
            for group in asked.groups:
                for question in group.questions:
                    felt = getattr(item, latent[group.id]) + leaning + rng.normal(0, noise)
                    value = values[int(np.clip(felt * len(values), 0, len(values) - 1))]
                    ms = int(rng.lognormal(8.2, 0.5))
                    if rng.random() < missing:
                        given[question.id] = {"value": None, "ms": ms, "changes": 0}
                    else:
                        given[question.id] = {"value": value, "ms": ms, "changes": 0}
        out.append(submission(study, asked, f"r{r + 1:02d}", answers))
    return out


def write_ratings(folder: Path, submissions: list[dict[str, Any]]) -> Path:
    """One file a rater, as the form names them."""
    folder.mkdir(parents=True, exist_ok=True)
    for one in submissions:
        (folder / f"ratings-{one['rater']}.json").write_text(json.dumps(one), encoding="utf-8")
    return folder
