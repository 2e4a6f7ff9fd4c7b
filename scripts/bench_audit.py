"""How fast the metric table is, and whether its memory stays flat.

    python scripts/bench_audit.py speed [pairs=300] [size=512]
    python scripts/bench_audit.py memory [small=1000] [large=20000]

``speed`` compares pairs a second of all pixel metrics with plain loops over the same definitions, one pair at a time
with scikit-image, scipy and numpy: one that decodes both images once a pair, and one that decodes them anew for each
metric, as published code does. Both loops' values must agree with the table's. ``memory`` reports the peak resident
memory of one process for each number of pairs. Images are drawn here; nothing is downloaded.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from bcs_lab.audit.table import compute_table
from bcs_lab.corpus import load_corpus
from bcs_lab.corpus.schema import Corpus

METRICS = ("mse", "psnr", "ssim", "pixcorr", "edge_cosine", "color_histogram")
#: Reconstructions of a reference.
EACH = 10


def draw(seed: int, size: int) -> Image.Image:
    """A picture of smooth colours with grain."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)).astype(np.int16)
    return Image.fromarray(np.clip(pixels + rng.integers(-8, 9, pixels.shape), 0, 255).astype(np.uint8))


def drawn_corpus(root: Path, pairs: int, size: int) -> Corpus:
    """A folder of drawn pairs, each reference with several reconstructions."""
    rows = ["pair_id,method,subject,concept,rank,candidate,reference_path,reconstruction_path"]
    for number in range(pairs):
        reference, reconstruction = f"ref_{number // EACH}.png", f"rec_{number}.png"
        if number % EACH == 0:
            draw(number // EACH, size).save(root / reference, compress_level=1)
        draw(10**6 + number, size).save(root / reconstruction, compress_level=1)
        rows.append(f"p{number},M,sub-01,c{number // EACH},1,{number % EACH},{reference},{reconstruction}")
    (root / "manifest.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return load_corpus("manifest", root, need_answers=False, need_images=False)


# --- one pair at a time ----------------------------------------------------------------------------------------------


def load(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(ImageOps.fit(image.convert("RGB"), (256, 256), Image.Resampling.LANCZOS))


def mse(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.mean((a.astype(np.float32) / 255 - b.astype(np.float32) / 255) ** 2))


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    return float(20 * np.log10(1 / np.sqrt(mse(a, b))))


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    from skimage.metrics import structural_similarity

    return float(
        structural_similarity(a.astype(np.float32) / 255, b.astype(np.float32) / 255, data_range=1.0, channel_axis=2)
    )


def pixcorr(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def edges(image: np.ndarray) -> np.ndarray:
    from scipy.ndimage import sobel

    grey = np.asarray(Image.fromarray(image).convert("L")).astype(np.float32)
    return np.concatenate([sobel(grey, axis=axis, mode="mirror").ravel() for axis in (1, 0)])


def edge_cosine(a: np.ndarray, b: np.ndarray) -> float:
    one, two = edges(a), edges(b)
    return float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))


def histogram(image: np.ndarray) -> np.ndarray:
    codes = image.astype(np.int64) // 32
    counts = np.bincount(((codes[..., 0] * 8 + codes[..., 1]) * 8 + codes[..., 2]).ravel(), minlength=512)
    return counts / counts.sum()


def color_histogram(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.minimum(histogram(a), histogram(b)).sum())


PLAIN: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "mse": mse, "psnr": psnr, "ssim": ssim, "pixcorr": pixcorr, "edge_cosine": edge_cosine,
    "color_histogram": color_histogram,
}  # fmt: skip


def plain(corpus: Corpus, rows: range, *, anew: bool) -> dict[str, list[float]]:
    """Every metric of some pairs; with ``anew`` images are decoded for each metric."""
    out: dict[str, list[float]] = {name: [] for name in PLAIN}
    for row in rows:
        files = corpus.reference_file(row), corpus.reconstruction_file(row)
        images = [load(path) for path in files]
        for number, (name, measure) in enumerate(PLAIN.items()):
            if anew and number:
                images = [load(path) for path in files]
            out[name].append(measure(*images))
    return out


def speed(pairs: int, size: int) -> None:
    """Print pairs a second of both loops and of the table."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        corpus = drawn_corpus(root, pairs, size)
        compute_table(corpus.subset(np.arange(pairs) < 8), METRICS, root / "warm", progress=False)
        part = range(min(pairs, 100))
        plain(corpus, range(2), anew=False)
        rates, busy, values = {}, {}, {}
        for name, anew in (
            ("a plain loop that decodes once a pair", False),
            ("one that decodes for each metric", True),
        ):
            begun, spent = time.perf_counter(), time.process_time()
            values[name] = plain(corpus, part, anew=anew)
            rates[name] = len(part) / (time.perf_counter() - begun)
            busy[name] = (time.process_time() - spent) / len(part)
        begun, spent = time.perf_counter(), time.process_time()
        table = compute_table(corpus, METRICS, root / "out", progress=False)
        rates["the metric table"] = pairs / (time.perf_counter() - begun)
        busy["the metric table"] = (time.process_time() - spent) / pairs
        for found in values.values():
            for name in METRICS:
                np.testing.assert_allclose(
                    table.values[name].to_numpy()[: len(part)], found[name], rtol=1e-4, atol=1e-5
                )
        print(f"{pairs} pairs of {size} x {size} PNG, {', '.join(METRICS)}")
        for name, rate in rates.items():
            faster = rates["the metric table"] / rate
            print(f"  {name}: {rate:.1f} pairs/s, {1000 * busy[name]:.1f} ms of CPU a pair; the table: {faster:.1f} x")


def memory(small: int, large: int) -> None:
    """Print the peak memory of one process for each number of pairs."""
    peaks = {}
    for pairs in (small, large):
        with tempfile.TemporaryDirectory() as folder:
            drawn_corpus(Path(folder), pairs, 64)
            command = [sys.executable, __file__, "one", folder]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            peaks[pairs] = int(said[-1])
            print(f"  {pairs} pairs: peak {peaks[pairs] / 1024:.0f} MiB, {float(said[-2]):.0f} pairs/s", flush=True)
    print(f"  {large} pairs need {(peaks[large] - peaks[small]) / 1024:.0f} MiB more than {small}")


def one(folder: str) -> None:
    """One table in this process: pairs a second and peak resident memory in KiB."""
    corpus = load_corpus("manifest", folder, need_answers=False, need_images=False)
    begun = time.perf_counter()
    compute_table(corpus, [*METRICS, "cosine:lowlevel"], Path(folder) / "out", progress=False)
    rate = len(corpus) / (time.perf_counter() - begun)
    print(rate, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def main() -> None:
    """Run what the command line asks for."""
    mode, *rest = sys.argv[1:] or ["speed"]
    if mode == "one":
        one(rest[0])
        return
    options = {key: int(value) for key, _, value in (item.partition("=") for item in rest)}
    if mode == "speed":
        speed(options.get("pairs", 300), options.get("size", 512))
    elif mode == "memory":
        memory(options.get("small", 1000), options.get("large", 20000))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
