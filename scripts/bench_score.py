"""What scoring costs beyond the encoders' own forward passes, and whether its memory grows with the number of pairs.

    python scripts/bench_score.py [--pairs 1000] [--rounds 5] [--encoders efficientnet_lite2 efficientnet_lite0]
    python scripts/bench_score.py --memory 500 4000

Pictures of 256 to 500 px are drawn, half of them PNG and half JPEG, one reference for five reconstructions. A round
takes a share of the pairs and times, one right after the other and in turn: the encoders' forward passes over as many
prepared inputs as the share has images that are new; and `BCS.score_pairs` from files to the table, with five members
of the paper's head. The overhead is the ratio of the two minus one. CPU time is given beside the time on the clock,
since other work on the machine moves the latter.

With `--memory` each number of pairs is scored in a process of its own, at 96 px to save time, and its peak is printed.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw

PER_REFERENCE = 5


def draw(seed: int) -> Image.Image:
    """Discs on a background with some grain, 256 to 500 px."""
    rng = np.random.default_rng(seed)
    width, height = rng.integers(256, 501, 2).tolist()
    image = Image.new("RGB", (width, height), tuple(rng.integers(0, 256, 3).tolist()))
    pen = ImageDraw.Draw(image)
    for _ in range(12):
        x, y, r = rng.integers(0, width), rng.integers(0, height), rng.integers(10, 90)
        pen.ellipse([int(x - r), int(y - r), int(x + r), int(y + r)], fill=tuple(rng.integers(0, 256, 3).tolist()))
    grain = np.asarray(image).astype(np.int16) + rng.integers(-8, 9, (height, width, 3))
    return Image.fromarray(np.clip(grain, 0, 255).astype(np.uint8))


def draw_pairs(folder: Path, n: int) -> pd.DataFrame:
    def file(kind: str, i: int, seed: int) -> str:
        path = folder / f"{kind}{i}.{'png' if i % 2 else 'jpg'}"
        if not path.exists():
            draw(seed).save(path)
        return str(path)

    return pd.DataFrame(
        {
            "reference": [file("ref", i // PER_REFERENCE, i // PER_REFERENCE) for i in range(n)],
            "reconstruction": [file("rec", i, 10**6 + i) for i in range(n)],
            "method": [f"m{i % 4}" for i in range(n)],
        }
    )


def evaluator(names: list[str], size: int | None = None) -> Any:
    """A model with the paper's head and random weights, its intervals and its training embeddings."""
    from bcs_lab import BCS
    from bcs_lab.conformal import Conformal
    from bcs_lab.encoders import load_encoder
    from bcs_lab.ensemble import Ensemble
    from bcs_lab.familiarity import Familiarity
    from bcs_lab.features import feature_dim
    from bcs_lab.heads import build_head
    from bcs_lab.teachers.protocol import BCS12

    options = {name: {"image_size": size} if size and name != "lowlevel" else {} for name in names}
    encoders = [load_encoder(name, options=options[name]) for name in names]
    width = feature_dim([encoder.dim for encoder in encoders])
    rng = np.random.default_rng(0)
    kept = [rng.normal(size=(1024, encoder.dim)).astype(np.float32) for encoder in encoders]
    kept = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in kept]
    sides, seeds = ("reference", "reconstruction"), [7, 13, 21, 37, 42]
    residuals = rng.uniform(0, 0.2, (30, 5)).tolist()
    ensemble = Ensemble(
        head={"name": "continuous"},
        encoders=[
            {
                "name": encoder.name, "label": encoder.name, "stand_in": None, "dim": encoder.dim,
                "fingerprint": encoder.fingerprint, "options": options[encoder.name],
            }
            for encoder in encoders
        ],
        protocol=BCS12.name,
        questions=[{"id": question.id, "group": question.group} for question in BCS12.questions],
        teachers=["none"],
        weight_scheme="variance",
        split={"scheme": "concept", "seed": 42, "hash": "0"},
        seeds=seeds,
        states=[build_head("continuous", width, 12).state_dict() for _ in seeds],
        conformal=Conformal({"t_pas": residuals, "t_sas": residuals}),
        familiarity=Familiarity.fit(
            dict.fromkeys(sides, kept), {side: [str(i) for i in range(1024)] for side in sides}
        ),
    )  # fmt: skip
    return BCS(ensemble)


def timed(work: Callable[[], object]) -> np.ndarray:
    """Seconds on the clock and of CPU, all threads together."""
    clock, cpu = time.perf_counter(), time.process_time()
    work()
    return np.array([time.perf_counter() - clock, time.process_time() - cpu])


def overhead(pairs: pd.DataFrame, names: list[str], rounds: int) -> None:
    bcs = evaluator(names)
    computed = 0

    def counting(forward: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
        def run(inputs: np.ndarray) -> np.ndarray:
            nonlocal computed
            computed += len(inputs)
            return forward(inputs)

        return run

    pictures = [draw(seed) for seed in range(bcs.batch_size)]
    plain = list(bcs.encoders)
    inputs = [np.stack([encoder.prepare(picture) for picture in pictures]) for encoder in plain]
    bcs._embedder.encoders = [replace(encoder, forward=counting(encoder.forward)) for encoder in plain]

    def forward(images: int) -> None:
        for start in range(0, images, bcs.batch_size):
            for encoder, batch in zip(plain, inputs, strict=True):
                encoder.forward(batch[: images - start])

    forward(bcs.batch_size)  # first calls are slower
    bcs.score_pairs(pairs.head(2), progress=False)
    bcs._embedder._memory.clear()
    shares = np.array_split(np.arange(len(pairs)), rounds)
    rows = []
    for number, share in enumerate(shares):
        part = pairs.iloc[share]
        images = len(share) + part["reference"].nunique()
        computed, times = 0, {}
        for turn in ("forward", "score") if number % 2 else ("score", "forward"):
            work = (lambda: forward(images)) if turn == "forward" else (lambda: bcs.score_pairs(part, progress=False))  # noqa: B023
            times[turn] = timed(work)
        assert computed == images * len(plain), (computed, images)
        rows.append((times["forward"], times["score"]))
        ratio = times["score"] / times["forward"] - 1
        print(
            f"  {len(share)} pairs, {images} images: forward {times['forward'][0]:6.1f} s, "
            f"scoring {times['score'][0]:6.1f} s; overhead {ratio[0]:+.1%} on the clock, {ratio[1]:+.1%} of CPU time",
            flush=True,
        )
    ratios = np.array([score / base - 1 for base, score in rows])
    total = np.sum([score for _, score in rows], axis=0) / np.sum([base for base, _ in rows], axis=0) - 1
    for column, what in enumerate(("clock", "CPU")):
        print(
            f"{len(pairs)} pairs, {what}: overhead {total[column]:.1%} in all; of {rounds} rounds "
            f"min {ratios[:, column].min():.1%}, median {statistics.median(ratios[:, column]):.1%}"
        )


def memory(pairs: pd.DataFrame) -> None:
    bcs = evaluator(["efficientnet_lite0", "lowlevel"], size=96)
    bcs.score_pairs(pairs.head(8), progress=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = timed(lambda: bcs.score_pairs(pairs, progress=False))[0]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{len(pairs)} pairs: peak {peak:.0f} MiB, of which {before:.0f} MiB before; {seconds:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--encoders", nargs="+", default=["efficientnet_lite2", "efficientnet_lite0"])
    parser.add_argument("--memory", type=int, nargs="+", help="numbers of pairs, instead of the overhead")
    parser.add_argument("--folder", type=Path, help="where pictures are drawn and found again; a temporary one else")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if arguments.child:
            memory(draw_pairs(folder, arguments.memory[0]))
            return
        pairs = draw_pairs(folder, max([arguments.pairs] if arguments.memory is None else arguments.memory))
        for n in arguments.memory or ():
            command = [sys.executable, __file__, "--child", "--memory", str(n), "--folder", str(folder)]
            subprocess.run(command, check=True)
        if arguments.memory is None:
            overhead(pairs, arguments.encoders, arguments.rounds)


if __name__ == "__main__":
    main()
