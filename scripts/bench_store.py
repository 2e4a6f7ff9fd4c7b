"""Time the embedding store against its alternatives, in one run, so that load on the machine does not move the ratios.

    python scripts/bench_store.py [--images 1800] [--dim 768] [--rounds 5] [--corpus DIR]

Synthetic part: a corpus of the paper's shape (6,855 pairs, 13,710 image slots over far fewer distinct images). One
round times, one after the other: opening the store and reading every vector (checksums included), reading it again in
the same process, `np.load` of an uncompressed .npz with one row a slot, and computing the vectors with a matrix product
that stands in for a network of about 2 ms an image. With `--corpus` the embedded encoders are then run on the images of
a manifest, and the time, rate, number of distinct images and peak memory are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from bcs_lab.embeddings import canonical, pair_embeddings
from bcs_lab.encoders import EMBEDDED
from bcs_lab.store import EmbeddingStore

PAIRS = 6855


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def synthetic(images: int, dim: int, rounds: int, folder: Path) -> None:
    rng = np.random.default_rng(0)
    slots = rng.integers(0, images, 2 * PAIRS)
    keys = [hashlib.sha256(str(number).encode()).digest() for number in range(images)]
    pixels = rng.normal(size=(64, 3 * 64 * 64)).astype(np.float32)
    weights = rng.normal(size=(3 * 64 * 64, dim)).astype(np.float32)

    def embed(count: int) -> np.ndarray:
        return np.concatenate([pixels[: min(64, count - start)] @ weights for start in range(0, count, 64)])

    fingerprint = {"model": "bench", "dim": dim}
    store = EmbeddingStore(folder / "store")

    def compute(missing: list[int]) -> Iterator[tuple[list[int], np.ndarray]]:
        yield missing, embed(len(missing))

    filling = timed(lambda: store.fill(fingerprint, keys, compute))
    vectors, _ = store.get(fingerprint, keys)
    np.savez(folder / "slots.npz", rows=vectors[slots])
    ways: dict[str, Callable[[], object]] = {
        "store, opened anew": lambda: EmbeddingStore(folder / "store").get(fingerprint, keys),
        "store, open": lambda: store.get(fingerprint, keys),
        "np.load, a row a slot": lambda: np.load(folder / "slots.npz", allow_pickle=False)["rows"],
        "recompute distinct images": lambda: embed(images),
        "recompute every slot": lambda: embed(2 * PAIRS),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            times[name].append(timed(work))
    base = statistics.median(times["store, opened anew"])
    print(
        f"{PAIRS} pairs, {2 * PAIRS} slots, {images} distinct images, {dim} values; first fill {filling * 1e3:.0f} ms"
    )
    print(f"{'way':28}{'min ms':>10}{'median ms':>12}{'x store':>10}")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:28}{min(values) * 1e3:10.1f}{median * 1e3:12.1f}{median / base:10.2f}")
    sizes = {"store": sum(path.stat().st_size for path in (folder / "store").rglob("*.safetensors"))}
    sizes["npz"] = (folder / "slots.npz").stat().st_size
    print(", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in sizes.items()))


def real(root: Path, folder: Path) -> None:
    from scipy.stats import spearmanr

    from bcs_lab.corpus import load_corpus

    corpus = load_corpus("manifest", root)
    consensus = np.nanmedian(corpus.answers, axis=1)
    axes = {
        axis: np.nanmean(consensus[:, corpus.protocol.indices(group)], axis=1)
        for axis, group in (("T-PAS", "perceptual"), ("T-SAS", "semantic"))
    }
    store = EmbeddingStore(folder / "real")
    for name in EMBEDDED:
        begun = time.perf_counter()
        (item,) = pair_embeddings(corpus, [name], store=store)[1]
        seconds = time.perf_counter() - begun
        again = timed(lambda: pair_embeddings(corpus, [name], store=EmbeddingStore(store.root)))  # noqa: B023
        vectors = canonical(item.images)
        cosine = (vectors[item.reference] * vectors[item.reconstruction]).sum(axis=1)
        rank = ", ".join(f"{axis} {spearmanr(cosine, values).statistic:.3f}" for axis, values in axes.items())
        print(
            f"{name}: {2 * len(corpus)} slots, {len(vectors)} distinct images, {seconds:.1f} s "
            f"({len(vectors) / seconds:.1f} images/s), all hits {again:.2f} s; Spearman of its cosine with {rank}"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1800)
    parser.add_argument("--dim", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--corpus", type=Path)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        synthetic(arguments.images, arguments.dim, arguments.rounds, Path(folder))
        if arguments.corpus is not None:
            real(arguments.corpus, Path(folder))


if __name__ == "__main__":
    main()
