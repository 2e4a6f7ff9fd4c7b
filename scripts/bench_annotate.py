"""How many pairs a second `bcs annotate` gets out of a server that answers at once, and whether its memory grows.

    python scripts/bench_annotate.py [--pairs 10000] [--single 500] [--concurrency 16] [--wait 0.0] [--folder DIR]

The scripted server of the tests answers in this process; each annotation runs in a process of its own, whose peak
memory is printed: of a tenth of the pairs and of all of them in `mode=joint`, and of fewer in `mode=single`. Pictures
are PNG files of 96 px, one reference for five reconstructions. Model calls and image encodes a pair are counted by the
server and compared with those of the authors' runners.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from bcs_lab.teachers.summary import REFERENCE_CALLS, REFERENCE_ENCODES  # noqa: E402

scripted: Any = importlib.import_module("chat_server")

PER_REFERENCE = 5


def draw(folder: Path, n: int) -> Path:
    """A corpus of ``n`` pairs without annotations."""
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    names = ["pair_id", "method", "subject", "concept", "rank", "candidate", "reference_path", "reconstruction_path"]
    with (folder / "manifest.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for i in range(n):
            files = [f"images/ref{i // PER_REFERENCE}.png", f"images/rec{i}.png"]
            for seed, name in ((i // PER_REFERENCE, files[0]), (10**6 + i, files[1])):
                if not (folder / name).exists():
                    small = np.random.default_rng(seed).integers(0, 255, (6, 6, 3), dtype=np.uint8)
                    Image.fromarray(small).resize((96, 96), Image.Resampling.BICUBIC).save(folder / name)
            writer.writerow([f"p{i:06d}", "m", "s", f"c{i // PER_REFERENCE}", "1", str(i), *files])
    return folder


def child(arguments: list[str]) -> None:
    """Annotate in this process, then say what it took."""
    from bcs_lab.cli import main
    from bcs_lab.corpus import load_corpus

    # What reading the corpus takes is there before anyone is asked, and grows with the pairs.
    root = next(word.partition("=")[2] for word in arguments if word.startswith("corpus.root="))
    load_corpus("manifest", root, need_answers=False)
    read = peak()
    started = time.perf_counter()
    status = main(arguments)
    print(json.dumps({"status": status, "seconds": time.perf_counter() - started, "read": read, "peak": peak()}))


def peak() -> float:
    """Most memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(folder: Path, pairs: int, mode: str, concurrency: int, wait: float) -> None:
    corpus = draw(folder / f"pairs{pairs}", pairs)
    served = encoded = 0
    lock = threading.Lock()

    def reply(call: Any) -> Any:
        nonlocal served, encoded
        with lock:
            served += 1
            encoded += len(call.images)
        return scripted.Say(scripted.good(call).text, wait_s=wait)

    with scripted.serving(reply, keep=False) as server, tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable, __file__, "--child", "annotate", "corpus=manifest", f"corpus.root={corpus}", "teacher=any",
            "teacher.model=scripted", "backend=openai", f"backend.base_url={server.url}", f"mode={mode}",
            f"backend.concurrency={concurrency}", f"out={out}/out", f"hydra.run.dir={out}/run", "log_every=20",
            "backend.api_key_env=null",
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        took = json.loads(done.stdout.splitlines()[-1])
        rate = re.findall(r": [\d,]+ of [\d,]+, ([\d.e+]+)/s", done.stderr)[-1]
        per_pair = float(rate) / (1 if mode == "joint" else REFERENCE_CALLS)
        print(
            f"mode={mode}: {pairs:,} pairs, {concurrency} calls at once: {per_pair:.1f} pairs/s while asking, "
            f"{took['seconds']:.1f} s in all, peak memory {took['peak']:.0f} MiB, {took['read']:.0f} "
            f"MiB of it for reading the corpus alone; a pair took {served / pairs:g} model "
            f"calls and {encoded / pairs:g} image encodes (the authors' runners: {REFERENCE_CALLS} and "
            f"{REFERENCE_ENCODES}); exit status {took['status']}",
            flush=True,
        )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--single", type=int, default=500, help="pairs in mode=single")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--wait", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--folder", type=Path, help="where pictures are drawn and found again; a temporary one else")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        for pairs, mode in ((given.pairs // 10, "joint"), (given.pairs, "joint"), (given.single, "single")):
            measure(folder, pairs, mode, given.concurrency, given.wait)


if __name__ == "__main__":
    main()
