"""A model with random heads over encoders that need no download, and pictures to score with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw

from bcs_lab.conformal import Conformal
from bcs_lab.encoders import load_encoder
from bcs_lab.encoders.base import FrozenEncoder
from bcs_lab.ensemble import Ensemble
from bcs_lab.features import feature_dim
from bcs_lab.heads import build_head
from bcs_lab.teachers.protocol import BCS12

HEAD = {"name": "continuous", "hidden": 8, "blocks": 1}
#: A network of its own size, so that a test does not wait for it.
SMALL = {"efficientnet_lite0": {"image_size": 64}}
CONFORMAL = Conformal({"t_pas": [[0.01 * i] for i in range(1, 21)], "t_sas": [[0.02 * i] for i in range(1, 21)]})


def tiny_ensemble(
    names: Sequence[str] = ("lowlevel",),
    *,
    options: Mapping[str, Mapping[str, Any]] = SMALL,
    encoders: Sequence[FrozenEncoder] | None = None,
    members: int = 2,
    **changes: Any,
) -> Ensemble:
    """An ensemble whose answers differ from pair to pair, though they mean nothing."""
    loaded = encoders or [load_encoder(name, options=options.get(name), device="cpu") for name in names]
    width = feature_dim([encoder.dim for encoder in loaded])
    states = []
    for seed in range(members):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            settings = {key: value for key, value in HEAD.items() if key != "name"}
            state = build_head(str(HEAD["name"]), width, len(BCS12.questions), **settings).state_dict()  # type: ignore[arg-type]
        state["out.weight"] *= 3  # untrained heads would answer 0.5 to everything
        states.append(state)
    settings = {
        "head": dict(HEAD),
        "encoders": [
            {
                "name": encoder.name,
                "label": encoder.name,
                "stand_in": None,
                "fingerprint": encoder.fingerprint,
                "dim": encoder.dim,
                "options": dict(options.get(encoder.name, {})),
            }
            for encoder in loaded
        ],
        "protocol": BCS12.name,
        "questions": [{"id": question.id, "group": question.group} for question in BCS12.questions],
        "teachers": ["a", "b"],
        "weight_scheme": "variance",
        "split": {"scheme": "concept", "seed": 42, "hash": "0"},
        "seeds": list(range(members)),
        "states": states,
        "conformal": CONFORMAL,
    }
    return Ensemble(**{**settings, **changes})  # type: ignore[arg-type]


def draw(seed: int, size: tuple[int, int] = (80, 64)) -> Image.Image:
    """A picture of coloured discs."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, tuple(rng.integers(0, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(6):
        x, y, r = rng.integers(0, size[0]), rng.integers(0, size[1]), rng.integers(4, 24)
        box = [int(x - r), int(y - r), int(x + r), int(y + r)]
        pen.ellipse(box, fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


def draw_files(folder: Path, n: int, references: int | None = None) -> tuple[list[Path], list[Path]]:
    """Files of ``n`` pairs; the first ``references`` references recur."""
    folder.mkdir(parents=True, exist_ok=True)
    references = references or n
    for i in range(n):
        draw(1000 + i, (90, 60)).save(folder / f"rec{i}.png")
    for i in range(references):
        draw(i).save(folder / f"ref{i}.png")
    return [folder / f"ref{i % references}.png" for i in range(n)], [folder / f"rec{i}.png" for i in range(n)]
