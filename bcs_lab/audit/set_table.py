"""The field's set-level metrics: one number for a set of pairs, overall and for each method.

*Two-way identification* of a reconstruction is the share of the other references whose features correlate less with
those of the reconstruction than its own reference's do (ties count against it, chance is one half); of a set it is the
mean. *Distance* is the mean of one minus the correlation of a reconstruction with its own reference. The evaluation
notebooks of MindEye and ATM, where every reference occurs once, compare with the references of the set; so does this,
each distinct reference (by content) counting once, and never one with itself.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bcs_lab.audit.groups import OVERALL, group_of
from bcs_lab.audit.metrics import Metric, load_metrics, metric_spec
from bcs_lab.audit.metrics.base import batches, digest
from bcs_lab.audit.table import Contents, distinct_pairs
from bcs_lab.corpus.images import check_image_file, load_image
from bcs_lab.corpus.schema import Corpus
from bcs_lab.errors import ConfigError, ImageError
from bcs_lab.files import replacing

log = logging.getLogger(__name__)

TABLE, PARTS = "set_metrics.csv", "sets"
#: Reconstructions whose correlations are written at once.
PART = 256
#: References whose features are multiplied at once.
BLOCK = 256
SAME_EVERYWHERE = "the network says the same everywhere, so that there is no correlation"

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class SetTable:
    """What :func:`compute_set_table` found.

    Attributes:
        values: a row a group and metric: ``group`` (``overall`` or a method), ``metric``, ``pairs`` and ``references``
            that count, ``two_way`` (0 to 1, larger is better), ``distance`` (smaller is better); NaN where undefined.
        failures: ``pair_id, metric, reason`` of pairs that do not count.
        unavailable: metric -> why it could not run.
        identities: metric -> everything that decides its values.
    """

    values: pd.DataFrame
    failures: pd.DataFrame
    unavailable: dict[str, str]
    identities: dict[str, dict[str, Any]]


def compute_set_table(
    corpus: Corpus,
    metrics: Sequence[str | Metric],
    out: Path,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    device: str = "auto",
    progress: bool = True,
) -> SetTable:
    """Set-level metrics of a corpus; correlations are written as they come, and found by the next run.

    Args:
        corpus: the pairs.
        metrics: names or loaded metrics of kind ``set``.
        out: folder of ``set_metrics.csv``.
        options: metric -> its options.
        device: of networks.
        progress: show a bar when standard error is a terminal.

    Raises:
        ConfigError: a metric is unknown or has a value for each pair.
    """
    names = [metric if isinstance(metric, str) else metric.spec.name for metric in metrics]
    wrong = [name for name in names if metric_spec(name).kind != "set"]
    if wrong:
        raise ConfigError(f"metrics: {', '.join(wrong)} have a value for each pair; the metric table holds them.")
    loaded = {metric.spec.name: metric for metric in metrics if isinstance(metric, Metric)}
    asked = [name for name in names if name not in loaded]
    unavailable: dict[str, str] = {}
    if corpus.root is None:
        unavailable = dict.fromkeys(asked, "the corpus ships embeddings only, no images")
    elif asked:
        own = {name: value for name, value in (options or {}).items() if name in asked}
        found, unavailable = load_metrics(asked, options=own, device=device)
        loaded |= {metric.spec.name: metric for metric in found}
    rows: list[dict[str, Any]] = []
    failures: list[tuple[str, str, str]] = []
    contents = distinct_pairs(corpus) if loaded else None
    for name in names:
        if name in loaded and contents is not None:
            work = _Correlations(corpus, contents, loaded[name], out / PARTS, progress)
            rows += work.rows()
            failures += work.failures()
    out.mkdir(parents=True, exist_ok=True)
    columns = ["group", "metric", "pairs", "references", "two_way", "distance"]
    values = pd.DataFrame(rows, columns=columns)
    with replacing(out / TABLE) as temporary:
        values.to_csv(temporary, index=False)
    return SetTable(
        values,
        pd.DataFrame(failures, columns=["pair_id", "metric", "reason"], dtype=object),
        unavailable,
        {name: metric.identity for name, metric in loaded.items()},
    )


def two_way(correlations: Floats, own: NDArray[np.int64]) -> NDArray[np.float64]:
    """Two-way identification of each reconstruction.

    Args:
        correlations: [n_references, n_reconstructions], NaN where undefined.
        own: [n_reconstructions], row of its own reference.

    Returns:
        float64 [n_reconstructions], NaN where its own correlation is undefined or there is no other reference.
    """
    columns = np.arange(correlations.shape[1])
    mine = correlations[own, columns]
    others = ~np.isnan(correlations)
    others[own, columns] = False
    count = others.sum(axis=0)
    with np.errstate(invalid="ignore"):
        less = (others & (correlations < mine)).sum(axis=0)
    defined = (count > 0) & ~np.isnan(mine)
    return np.where(defined, less / np.maximum(count, 1), np.nan)


class _Correlations:
    """One metric over one corpus: the correlation of every distinct reference with every distinct reconstruction."""

    def __init__(self, corpus: Corpus, contents: Contents, metric: Metric, folder: Path, progress: bool) -> None:
        self.corpus, self.contents, self.metric, self.progress = corpus, contents, metric, progress
        pairs = contents.pairs
        self.references = list(dict.fromkeys(pair.reference for pair in pairs))
        self.reconstructions = list(dict.fromkeys(pair.reconstruction for pair in pairs))
        self.files = {pair.reconstruction: pair.files[1] for pair in reversed(pairs)}
        self.originals = {pair.reference: pair.files[0] for pair in reversed(pairs)}
        name = metric.spec.name
        key = digest({**metric.identity, "references": hashlib.sha256(b"".join(self.references)).hexdigest()})
        self.folder = folder / f"{name}-{key}"
        self.broken: dict[bytes, str] = {}
        self.place = {image: at for at, image in enumerate(self.reconstructions)}
        self.r = np.full((len(self.references), len(self.reconstructions)), np.nan, dtype=np.float32)
        self._compute()

    def _compute(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        done = self._read()
        todo = [image for image in self.reconstructions if image not in done]
        if not todo:
            return
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            features = self._references(Path(scratch))
            if features is None:
                return
            from tqdm import tqdm

            show = self.progress and sys.stderr.isatty()
            with tqdm(total=len(todo), desc=self.metric.spec.name, unit="image", disable=not show) as bar:
                for part in batches(todo, PART):
                    good, vectors = self._features(part, self.files)
                    if good:
                        r = np.concatenate(
                            [features[at : at + BLOCK] @ vectors.T for at in range(0, len(features), BLOCK)]
                        )
                        r = np.clip(r, -1.0, 1.0)
                        # A network that says the same everywhere has no correlation.
                        r[~features.any(axis=1)] = np.nan
                        r[:, ~vectors.any(axis=1)] = np.nan
                        self._write(good, r)
                        self.r[:, [self.place[image] for image in good]] = r
                    bar.update(len(part))
            del features

    def _references(self, scratch: Path) -> Any:
        """Features of all references, float32 [n, d], in a file, since those of early layers are large."""
        features: Any = None
        for part in batches(range(len(self.references)), BLOCK):
            good, vectors = self._features([self.references[at] for at in part], self.originals)
            if not good:
                continue
            if features is None:
                shape = (len(self.references), vectors.shape[1])
                features = np.lib.format.open_memmap(
                    scratch / "references.npy", mode="w+", dtype=np.float32, shape=shape
                )
            at = {image: number for number, image in zip(part, (self.references[n] for n in part), strict=True)}
            features[[at[image] for image in good]] = vectors
        return features

    def _features(self, images: Sequence[bytes], files: Mapping[bytes, Path]) -> tuple[list[bytes], Floats]:
        """Images that can be used, and their features; the others are remembered."""
        family, good, vectors = self.metric.family, [], []
        limit = self.corpus.max_image_pixels

        def prepare(image: bytes) -> Any:
            try:
                return family.preparation.apply(load_image(files[image], max_pixels=limit))
            except ImageError as error:
                return error

        with ThreadPoolExecutor(min(os.cpu_count() or 1, 8), thread_name_prefix="decode") as pool:
            for group in batches(images, family.batch):
                inputs = dict(zip(group, pool.map(prepare, group), strict=True))
                self.broken |= {image: str(one) for image, one in inputs.items() if isinstance(one, ImageError)}
                usable = [image for image in group if not isinstance(inputs[image], ImageError)]
                if usable:
                    good += usable
                    vectors += family.features([inputs[image] for image in usable])
        return good, np.stack(vectors) if vectors else np.zeros((0, 0), dtype=np.float32)

    def _read(self) -> set[bytes]:
        done: set[bytes] = set()
        for path in sorted(self.folder.glob("part-*.npz")):
            try:
                with np.load(path, allow_pickle=False) as part:
                    images, r = [bytes(row) for row in part["images"]], part["r"]
            except Exception as error:  # whatever a damaged archive raises: it is computed again
                log.warning("%s is damaged (%s); what it held is computed again", path, error)
                continue
            at = [number for number, image in enumerate(images) if image in self.place]
            self.r[:, [self.place[images[number]] for number in at]] = r[:, at]
            done |= {images[number] for number in at}
        for stale in self.folder.glob("tmp*"):
            shutil.rmtree(stale, ignore_errors=True)  # of a run that was killed
        return done

    def _write(self, images: Sequence[bytes], r: Floats) -> None:
        packed = np.frombuffer(b"".join(images), dtype=np.uint8).reshape(len(images), -1)
        with replacing(self.folder / f"part-{secrets.token_hex(8)}.npz") as temporary, temporary.open("wb") as file:
            np.savez(file, images=packed, r=r)

    def _why(self) -> dict[int, str]:
        """Row of the corpus -> why it does not count."""
        why = dict(self.contents.unreadable)
        row_of = {image: at for at, image in enumerate(self.references)}
        for row, at in enumerate(self.contents.pair_of.tolist()):
            if at < 0:
                continue
            pair = self.contents.pairs[at]
            sides = {"reference": pair.reference, "reconstruction": pair.reconstruction}
            bad = [f"{role} image: {self.broken[image]}" for role, image in sides.items() if image in self.broken]
            if bad:
                why[row] = "; ".join(bad)
            elif np.isnan(self.r[row_of[pair.reference], self.place[pair.reconstruction]]):
                # Of correlations found from an earlier run, a reference may have been no image.
                damaged = check_image_file(self.originals[pair.reference], decode=True)
                why[row] = f"reference image: {damaged}" if damaged else SAME_EVERYWHERE
        return why

    def failures(self) -> list[tuple[str, str, str]]:
        """Pairs that do not count."""
        ids = self.corpus.pairs["pair_id"].astype(str).tolist()
        return [(ids[row], self.metric.spec.name, reason) for row, reason in sorted(self._why().items())]

    def rows(self) -> list[dict[str, Any]]:
        """The metric overall and of each method."""
        row_of = {image: at for at, image in enumerate(self.references)}
        usable = np.array([row not in self._why() for row in range(len(self.corpus))], dtype=bool)
        methods = self.corpus.pairs["method"].astype(str).to_numpy()
        groups = {OVERALL: usable, **{group_of(name): usable & (methods == name) for name in sorted(set(methods))}}
        out = []
        for group, mask in groups.items():
            pairs = [self.contents.pairs[at] for at in self.contents.pair_of[mask].tolist()]
            images = sorted({row_of[pair.reference] for pair in pairs})
            own = np.searchsorted(images, [row_of[pair.reference] for pair in pairs]).astype(np.int64)
            columns = np.array([self.place[pair.reconstruction] for pair in pairs], dtype=np.int64)
            shares, distances = [], []
            for part in batches(range(len(pairs)), 1024):
                r = self.r[np.array(images)[:, None], columns[part]]
                shares.append(two_way(r, own[part]))
                distances.append(1 - r[own[part], np.arange(len(part))].astype(np.float64))
            share = np.concatenate(shares) if shares else np.zeros(0)
            share = share[~np.isnan(share)]
            out.append(
                {
                    "group": group,
                    "metric": self.metric.spec.name,
                    "pairs": len(pairs),
                    "references": len(images),
                    "two_way": float(share.mean()) if len(share) else np.nan,
                    "distance": float(np.concatenate(distances).mean()) if distances else np.nan,
                }
            )
        return out
