"""Seconds an epoch and peak memory of training at the paper's shape, ours against plain PyTorch loops, in one run.

    python scripts/bench_train.py [--epochs 8] [--threads 2]

Each way trains in its own process on the same made-up embeddings (4,785 training and 1,035 validation pairs, three
encoders of 768, 9,219 features, twelve questions):

* ``bcs_lab``: features on the fly, the package's module under Lightning;
* ``plain``: a bare loop over features materialised once for the whole corpus;
* ``loader``: the same with PyTorch's ``DataLoader`` over single rows, as published training code has it.

The first epoch of each is left out. The ratios, not the seconds, carry over to another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

TRAIN, VAL, TEST, QUESTIONS, DIM, ENCODERS, BATCH = 4785, 1035, 1035, 12, 768, 3, 512
WAYS = ("bcs_lab", "plain", "loader")


@dataclass(frozen=True)
class MadeUp:
    """The fields of ``PairEmbeddings`` that training reads."""

    name: str
    images: Any
    reference: Any
    reconstruction: Any
    stand_in: str | None = None
    fingerprint: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.name


def make_inputs() -> tuple[list[MadeUp], Any, Any]:
    """Embeddings of 200 references and one reconstruction a pair, float16 as in a bundle; targets and weights."""
    import numpy as np

    rng = np.random.default_rng(0)
    n = TRAIN + VAL + TEST
    reference = np.arange(n) % 200
    out = []
    for k in range(ENCODERS):
        images = rng.normal(size=(200 + n, DIM)).astype(np.float32)
        images[200:] += rng.uniform(0, 2, size=(n, 1)) * images[reference]
        images /= np.linalg.norm(images, axis=1, keepdims=True)
        out.append(MadeUp(f"made{k}", images.astype(np.float16), reference, 200 + np.arange(n)))
    targets = rng.integers(0, 5, size=(n, QUESTIONS)).astype(np.float32) / 4
    weights = rng.uniform(0.75, 1, size=(n, QUESTIONS)).astype(np.float32)
    return out, targets, weights


def ours(epochs: int) -> list[float]:
    import numpy as np
    from pytorch_lightning.callbacks import Callback

    from bcs_lab.data import BCSDataModule
    from bcs_lab.fit import train_member
    from bcs_lab.split import Split

    embeddings, targets, weights = make_inputs()
    ids = np.array([f"{i:05d}" for i in range(len(targets))], dtype=object)
    parts = np.array(["train"] * TRAIN + ["val"] * VAL + ["test"] * TEST)
    data = BCSDataModule(embeddings, targets, weights, Split("pair", 0, parts, ids, ids), batch_size=BATCH)  # type: ignore[arg-type]
    del embeddings

    class Clock(Callback):
        marks: list[float] = []  # noqa: RUF012

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            self.marks.append(time.perf_counter())

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self.marks.append(time.perf_counter())

    clock = Clock()
    settings = {"max_epochs": epochs, "patience": None, "accelerator": "cpu"}
    train_member(data, {"name": "continuous"}, {}, settings, 7, callbacks=[clock])
    return [b - a for a, b in zip(clock.marks, clock.marks[1:], strict=False)]


def plain_parts() -> tuple[Any, Callable[[Any, Any, Any], Any], Any, Any, Any]:
    import torch
    from torch import nn

    from bcs_lab.embeddings import canonical

    embeddings, targets, weights = make_inputs()
    blocks = []
    for part in embeddings:
        images = torch.from_numpy(canonical(part.images))
        a, b = images[torch.from_numpy(part.reference)], images[torch.from_numpy(part.reconstruction)]
        blocks += [a, b, (a - b).abs(), a * b, (a * b).sum(1, keepdim=True)]
    features = torch.cat(blocks, dim=1)
    torch.manual_seed(7)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.f = nn.Sequential(
                nn.LayerNorm(512),
                nn.Linear(512, 1024),
                nn.GELU(),
                nn.Dropout(0.2),
                nn.Linear(1024, 512),
                nn.Dropout(0.2),
            )

        def forward(self, x: Any) -> Any:
            return x + self.f(x)

    width = features.shape[1]
    head = (nn.LayerNorm(512), nn.Linear(512, QUESTIONS), nn.Sigmoid())
    model = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 512), nn.GELU(), Block(), Block(), *head)

    def loss(x: Any, z: Any, w: Any) -> Any:
        return (w * (model(x) - z) ** 2).sum() / w.sum().clamp_min(1e-6)

    return model, loss, features, torch.from_numpy(targets), torch.from_numpy(weights)


def loops(epochs: int, loader: bool) -> list[float]:
    import torch
    from torch.utils.data import DataLoader, Subset, TensorDataset

    model, loss, features, targets, weights = plain_parts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs, 2.5e-5)

    def batches(start: int, stop: int, shuffle: bool) -> Any:
        if loader:
            rows = Subset(TensorDataset(features, targets, weights), range(start, stop))
            return DataLoader(rows, batch_size=BATCH, shuffle=shuffle)
        order = start + (torch.randperm(stop - start) if shuffle else torch.arange(stop - start))
        return ((features[i], targets[i], weights[i]) for i in order.split(BATCH))

    times = []
    for _ in range(epochs):
        begin = time.perf_counter()
        model.train()
        for x, z, w in batches(0, TRAIN, shuffle=True):
            optimizer.zero_grad(set_to_none=True)
            loss(x, z, w).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.step()
        model.eval()
        with torch.no_grad():
            for x, z, w in batches(TRAIN, TRAIN + VAL, shuffle=False):
                loss(x, z, w)
        times.append(time.perf_counter() - begin)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        import pytorch_lightning  # noqa: F401 - in every process, so that peaks differ by what training needs
        import torch

        torch.set_num_threads(args.threads)
        times = ours(args.epochs) if args.way == "bcs_lab" else loops(args.epochs, loader=args.way == "loader")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print("RESULT " + json.dumps({"times": times[1:], "peak": peak}))
        return
    results = {}
    for way in WAYS:
        command = [sys.executable, __file__, "--way", way, "--epochs", str(args.epochs), "--threads", str(args.threads)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        out = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        results[way] = json.loads(out.split("RESULT ")[1])
    reference = sorted(results["plain"]["times"])
    print(f"{TRAIN} training pairs, {ENCODERS} x {DIM}, batch {BATCH}, {args.threads} thread(s), {args.epochs} epochs")
    print(f"{'way':10s} {'s/epoch min':>12s} {'median':>8s} {'x plain':>8s} {'peak MiB':>9s}")
    for way, result in results.items():
        times = sorted(result["times"])
        ratio = times[0] / reference[0]
        print(f"{way:10s} {times[0]:12.2f} {times[len(times) // 2]:8.2f} {ratio:8.2f} {result['peak']:9.0f}")


if __name__ == "__main__":
    main()
