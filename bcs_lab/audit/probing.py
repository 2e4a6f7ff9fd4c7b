"""Running the degradation probe: which references, which metrics, and values kept from one run to the next."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image

from bcs_lab.audit.analysis import Probed
from bcs_lab.audit.degradation import (
    LEVELS,
    SEVERITIES,
    SIDE,
    VERSION,
    Measure,
    Probe,
    measure_images,
    probe_images,
    sampled,
)
from bcs_lab.audit.metrics import Metric
from bcs_lab.audit.metrics.base import batches, digest
from bcs_lab.corpus.schema import Corpus
from bcs_lab.errors import BCSError
from bcs_lab.files import replacing

log = logging.getLogger(__name__)

#: File of the values, one row a metric, image, degradation and severity.
VALUES = "degradation_values.parquet"

#: References degraded at once.
CHUNK = 4

#: Seconds between two writes of the values.
FLUSH_SECONDS = 30.0

#: Kinds of metrics that cannot be probed, and why.
_LEFT_OUT = {"set": "one value a set of pairs: there is none of a single picture"}

Floats = NDArray[np.float64]
_Key = tuple[str, str]


def probe(
    corpus: Corpus,
    metrics: Sequence[Metric],
    out: Path,
    *,
    images: int | None = None,
    network_images: int | None = None,
    seed: int = 0,
    compat: str = "correct",
) -> Probed | str:
    """Values of every metric on the degraded references of a corpus.

    Values are kept in ``out`` as they come, by the content of the reference and what the metric is made of, so that a
    run that was interrupted goes on and one with further metrics computes only those.

    Args:
        corpus: with images.
        metrics: ready to compute.
        out: folder of the values.
        images: at most this many references.
        network_images: at most this many for metrics that are no pixel metrics.
        seed: of the drawing and of the noise.
        compat: as in :func:`bcs_lab.audit.degradation.degrade`.

    Returns:
        The values, or why there are none.
    """
    if corpus.root is None:
        return "this corpus ships without its images"
    found, counted = probe_images(corpus, compat=compat)
    if not found:
        return "no reference image could be read"
    chosen = sampled(found, images, seed=seed, compat=compat)
    few = sampled(chosen, network_images, seed=seed, compat=compat)
    left_out = {m.spec.name: _LEFT_OUT[m.spec.kind] for m in metrics if m.spec.kind in _LEFT_OUT}
    run = [metric for metric in metrics if metric.spec.name not in left_out]
    wanted = {metric.spec.name: chosen if metric.spec.kind == "pixel" else few for metric in run}
    kept = _Kept(out / VALUES, {metric.spec.name: _identity(metric, seed, compat) for metric in run})
    members = {name: set(own) for name, own in wanted.items()}
    todo: list[tuple[Probe, list[Metric]]] = []
    for image in chosen:
        due = [m for m in run if image in members[m.spec.name] and not kept.has(m.spec.name, image)]
        if due:
            todo.append((image, due))
    left_out |= _run(todo, kept, corpus.max_image_pixels, seed, compat)
    return Probed(
        values={name: kept.values(name, own) for name, own in wanted.items() if name not in left_out},
        left_out=left_out,
        facts={
            "distinct": len(found),
            **counted,
            "probed": len(chosen),
            "probed_by_networks": min(len(few), len(chosen)),
            "side": SIDE,
            "seed": seed,
            "compat": compat,
        },
    )


def _identity(metric: Metric, seed: int, compat: str) -> str:
    """Everything that changes a value of the probe."""
    severities = {kind: list(levels) for kind, levels in SEVERITIES.items()}
    return digest(
        {
            "metric": metric.identity,
            "severities": severities,
            "side": SIDE,
            "seed": seed,
            "compat": compat,
            "probe": VERSION,
        }
    )


def _run(
    todo: Sequence[tuple[Probe, list[Metric]]], kept: _Kept, max_pixels: int, seed: int, compat: str
) -> dict[str, str]:
    """Compute what is due; returns the metrics that failed, which keep no other one from going on."""
    from tqdm import tqdm

    failed: dict[str, str] = {}
    if not todo:
        return failed
    show = sys.stderr.isatty()
    if not show:
        names = dict.fromkeys(metric.spec.name for _, metrics in todo for metric in metrics)
        log.info("degradation probe: %d images, %s", len(todo), ", ".join(names))
    started = written = time.monotonic()
    with tqdm(total=len(todo), desc="degradation probe", unit="image", disable=not show) as bar:
        for group, metrics in _alike(todo):
            pictures = [image.open(max_pixels) for image in group]
            families: dict[str, list[Metric]] = {}
            for metric in metrics:
                if metric.spec.name not in failed:
                    families.setdefault(metric.family.key, []).append(metric)
            measures = [_guarded(relatives, failed) for relatives in families.values()]
            for name, values in measure_images(pictures, measures, seed=seed, compat=compat):
                for image, own in zip(group, values, strict=True):
                    if name not in failed:
                        kept.add(name, image, own)
            bar.update(len(group))
            if time.monotonic() - written > FLUSH_SECONDS:
                kept.write()
                written = time.monotonic()
    kept.write()
    if not show:
        log.info("degradation probe: %.0f s", time.monotonic() - started)
    return failed


def _guarded(metrics: Sequence[Metric], failed: dict[str, str]) -> Measure:
    """The metrics of one family, whose failure is noted."""
    names = [metric.spec.name for metric in metrics]

    def measure(references: Sequence[Image.Image], variants: Sequence[Image.Image]) -> dict[str, Floats]:
        try:
            return _values(metrics[0], names, references, variants)
        except (BCSError, RuntimeError, ValueError) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            log.warning("degradation probe: %s fail(s) and take(s) no part (%s)", ", ".join(names), reason)
            failed.update(dict.fromkeys(names, f"it fails ({reason})"))
            return {}

    return measure


def _values(
    metric: Metric, names: Sequence[str], references: Sequence[Image.Image], variants: Sequence[Image.Image]
) -> dict[str, Floats]:
    """Values of relatives: what they see of a picture is computed once for all of them."""
    out = {name: np.full(len(references), np.nan) for name in names}
    originals = metric.describe(references)
    for rows in batches(range(len(references)), metric.family.batch):
        others = metric.describe([variants[row] for row in rows], "reconstruction")
        for name, found in metric.family.compare(names, [originals[row] for row in rows], others).items():
            out[name][rows] = found.values
    return out


def _alike(todo: Sequence[tuple[Probe, list[Metric]]]) -> Iterator[tuple[list[Probe], list[Metric]]]:
    """Chunks of images that want the same metrics."""
    group: list[Probe] = []
    wanted: list[Metric] = []
    for image, metrics in todo:
        if group and (len(group) == CHUNK or metrics != wanted):
            yield group, wanted
            group = []
        group, wanted = [*group, image], metrics
    if group:
        yield group, wanted


class _Kept:
    """Values of earlier runs and of this one."""

    def __init__(self, path: Path, identities: Mapping[str, str]) -> None:
        self.path, self.identities = path, identities
        self.cells: dict[_Key, dict[str, Floats]] = {}
        table = _read(path)
        kinds = list(SEVERITIES)
        columns = [table[name].tolist() for name in _COLUMNS]
        for metric, identity, image, kind, severity, value in zip(*columns, strict=True):
            own = self.cells.setdefault((metric, identity), {})
            own.setdefault(image, np.full((len(kinds), LEVELS), np.nan))[kinds.index(kind), severity - 1] = value

    def _of(self, name: str) -> dict[str, Floats]:
        return self.cells.setdefault((name, self.identities[name]), {})

    def has(self, name: str, image: Probe) -> bool:
        """Whether the values of an image have been computed, be they undefined."""
        return image.digest in self._of(name)

    def add(self, name: str, image: Probe, values: Floats) -> None:
        self._of(name)[image.digest] = values

    def values(self, name: str, images: Sequence[Probe]) -> Floats:
        """[n_images, n_degradations, 4]."""
        return np.stack([self._of(name)[image.digest] for image in images])

    def write(self) -> None:
        rows: list[tuple[Any, ...]] = []
        for (name, identity), images in self.cells.items():
            for image, values in images.items():
                rows += [
                    (name, identity, image, kind, level + 1, float(values[at, level]))
                    for at, kind in enumerate(SEVERITIES)
                    for level in range(LEVELS)
                ]
        table = pd.DataFrame(rows, columns=list(_COLUMNS))
        with replacing(self.path) as temporary:
            table.to_parquet(temporary, index=False)


_COLUMNS = ("metric", "identity", "image", "degradation", "severity", "value")


def _read(path: Path) -> pd.DataFrame:
    """Values of earlier runs; none where there is no file, or one that cannot be used."""
    empty = pd.DataFrame(columns=list(_COLUMNS))
    if not path.is_file():
        return empty
    try:
        table = pd.read_parquet(path)
    except Exception as error:  # a torn file can raise almost anything
        log.warning("%s: cannot be read (%s); the probe starts anew", path, type(error).__name__)
        return empty
    usable = set(_COLUMNS) <= set(table.columns) and table["degradation"].isin(list(SEVERITIES)).all()
    return table if usable else empty
