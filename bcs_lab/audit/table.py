"""The metric table: one row a pair and one column a metric, written as it goes.

Files, in the folder given::

    metrics.parquet          pair_id and one column a metric; made anew at the end of a run
    metrics_failures.csv     pair_id, metric, kind, reason of every cell without a value, and of flagged pairs
    cells/part-*.parquet     what was computed, by the content of both images and the identity of the metric

A cell is computed once for each pair of contents. A run that was killed loses at most what was not yet in a part; the
same command then goes on, and gives the same table as one that was never killed. Cells that failed (a damaged file, an
error of a library) are tried again by the next run; undefined ones (the correlation with a constant picture) are not.

Pairs are worked through reference by reference, so that a reference is decoded and described once however many
reconstructions it has, and nothing is held for more than two chunks of pairs.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bcs_lab.audit.metrics import Metric, expand, load_metrics, metric_spec
from bcs_lab.audit.metrics.base import Family, Floats, Values, batches, digest
from bcs_lab.corpus.images import file_sha256, load_image
from bcs_lab.corpus.schema import Corpus
from bcs_lab.errors import BCSError, ConfigError, ImageError, ModelError
from bcs_lab.files import replacing

if TYPE_CHECKING:
    from bcs_lab.store import EmbeddingStore

log = logging.getLogger(__name__)

TABLE, FAILURES, CELLS = "metrics.parquet", "metrics_failures.csv", "cells"
#: Pairs that are worked on at once.
CHUNK = 32
#: A part is written when this many pairs have come together, or this many seconds have passed.
FLUSH_PAIRS, FLUSH_SECONDS = 512, 10.0
#: More parts than this are made one at the start of a run.
MOST_PARTS = 32
#: Embeddings are put into the store when this many have come together.
STORED = 512
#: Columns of the pixel metrics' family that are facts about a pair, not metrics.
FLAGS: Mapping[str, str] = {
    "flat_reconstruction": "the reconstruction is one flat colour",
    "identical_pictures": "both pictures are the same, pixel by pixel",
}
ROLES = ("reference", "reconstruction")
OK, UNDEFINED, FAILED, MISSING = 0, 1, 2, -1
_KINDS = {UNDEFINED: "undefined", FAILED: "failed"}
_NO_IMAGES = "the corpus ships embeddings only, no images"


@dataclass(frozen=True)
class MetricTable:
    """What :func:`compute_table` found.

    Attributes:
        values: ``pair_id`` and one float64 column a metric, in the corpus' order; NaN where there is no value. PSNR is
            infinite for identical pictures, unless computed with ``compat=reference``.
        failures: ``pair_id, metric, kind, reason``: a row for each cell without a value (``kind`` is ``undefined`` or
            ``failed``), and one with ``kind`` ``flag`` for each pair that is worth a look.
        unavailable: metric -> why it has no value at all.
        identities: metric -> everything that decides its values.
        facts: distinct pairs and references, cells computed now and found, seconds.
    """

    values: pd.DataFrame
    failures: pd.DataFrame
    unavailable: dict[str, str]
    identities: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def compute_table(
    corpus: Corpus,
    metrics: Sequence[str | Metric],
    out: Path,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    device: str = "auto",
    compat: str = "correct",
    store: EmbeddingStore | None = None,
    chunk: int = CHUNK,
    threads: int | None = None,
    progress: bool = True,
) -> MetricTable:
    """Compute the metrics of every pair of a corpus, or go on where an earlier run stopped.

    Args:
        corpus: the pairs; answers are not looked at.
        metrics: names as in :func:`bcs_lab.audit.metrics.expand`, or loaded metrics.
        out: folder of the table.
        options: metric -> its options.
        device: of networks.
        compat: ``correct``, or ``reference`` to do as the published code does.
        store: embeddings are looked up and kept there.
        chunk: pairs that are worked on at once.
        threads: that decode and compute pixel metrics; by default one a core, at most 8.
        progress: show a bar when standard error is a terminal.

    Raises:
        ConfigError: a name or option is unknown, or a metric is of a set of pairs.
    """
    begun = time.monotonic()
    names, loaded, unavailable = _loaded(corpus, metrics, options or {}, device, compat, store)
    whole, rest = _without_images(corpus, names, loaded, unavailable, store, options or {}, device)
    out.mkdir(parents=True, exist_ok=True)
    work = _Work(corpus, rest, out / CELLS, store, chunk, threads, progress)
    work.run()
    identities = {metric.spec.name: metric.identity for metric in rest} | {
        name: identity for name, (_, identity) in whole.items()
    }
    values, failures = _assembled(corpus, names, work, {name: column for name, (column, _) in whole.items()})
    with replacing(out / TABLE) as temporary:
        values.to_parquet(temporary, index=False)
    with replacing(out / FAILURES) as temporary:
        failures.to_csv(temporary, index=False)
    facts = {**work.facts, "pairs": len(corpus), "seconds": round(time.monotonic() - begun, 3)}
    return MetricTable(values, failures, unavailable, identities, facts)


def _loaded(
    corpus: Corpus, metrics: Sequence[str | Metric], options: Mapping[str, Mapping[str, Any]], device: str,
    compat: str, store: EmbeddingStore | None,
) -> tuple[list[str], dict[str, Metric], dict[str, str]]:  # fmt: skip
    given = {metric.spec.name: metric for metric in metrics if isinstance(metric, Metric)}
    names = expand([metric if isinstance(metric, str) else metric.spec.name for metric in metrics])
    wrong = [name for name in names if metric_spec(name).kind == "set"]
    if wrong:
        raise ConfigError(
            f"metrics: {', '.join(wrong)} describe a set of pairs, not a pair (bcs_lab.audit.set_table computes them)."
        )
    if corpus.root is None:
        return names, given, {}
    wanted = [name for name in names if name not in given and not _is_brought(corpus, name, store)]
    groups = {"bcs": {"bcs_pas", "bcs_sas"}}
    own = {key: value for key, value in options.items() if key in wanted or groups.get(key, set()) & set(wanted)}
    found, unavailable = load_metrics(wanted, options=own, device=device, compat=compat)
    return names, given | {metric.spec.name: metric for metric in found}, unavailable


# --- without images --------------------------------------------------------------------------------------------------


def _is_brought(corpus: Corpus, name: str, store: EmbeddingStore | None) -> bool:
    """Whether the embeddings of a cosine travel with the corpus or were imported for its pairs."""
    from bcs_lab.audit.metrics.cosine import PREFIX, encoders_of
    from bcs_lab.embeddings import stored_names

    if not name.startswith(PREFIX):
        return False
    imported = stored_names(store, corpus) if store is not None else []
    return all(part in corpus.shipped or part in imported for part in encoders_of(name.removeprefix(PREFIX)))


def _without_images(
    corpus: Corpus, names: Sequence[str], loaded: Mapping[str, Metric], unavailable: dict[str, str],
    store: EmbeddingStore | None, options: Mapping[str, Mapping[str, Any]], device: str,
) -> tuple[dict[str, tuple[Floats, dict[str, Any]]], list[Metric]]:  # fmt: skip
    """Columns from embeddings that are there already, and the metrics that look at images."""
    from bcs_lab.audit.metrics.cosine import PREFIX, encoders_of

    whole: dict[str, tuple[Floats, dict[str, Any]]] = {}
    rest = []
    scores: pd.DataFrame | None = None
    for name in names:
        if name in unavailable:
            continue
        try:
            if name.startswith(PREFIX) and (corpus.root is None or _is_brought(corpus, name, store)):
                encoders = encoders_of(name.removeprefix(PREFIX))
                whole[name] = _brought_cosine(corpus, encoders, store)
            elif corpus.root is not None:
                rest.append(loaded[name])
            elif metric_spec(name).kind == "model":
                chosen = {**metric_spec(name).options, **options.get("bcs", {}), **options.get(name, {})}
                if scores is None:
                    scores, model = _brought_scores(corpus, str(chosen["model"]), store, device)
                from bcs_lab.audit.metrics.model import AXES

                column = scores[AXES[name]].reindex(corpus.pairs["pair_id"]).to_numpy(dtype=np.float64)
                whole[name] = (column, {"metric": name, "model": model})
            else:
                unavailable[name] = f"{metric_spec(name).title}: {_NO_IMAGES}"
        except BCSError as error:
            unavailable[name] = f"{metric_spec(name).title}: {error}"
    return whole, rest


def _brought_cosine(
    corpus: Corpus, encoders: Sequence[str], store: EmbeddingStore | None
) -> tuple[Floats, dict[str, Any]]:
    from bcs_lab.audit.metrics.cosine import cosines
    from bcs_lab.embeddings import pair_embeddings

    _, found = pair_embeddings(corpus, list(encoders), store=store, only_stored=True)
    parts = []
    for part in found:
        column = np.empty(len(corpus))
        for rows in batches(range(len(corpus)), 4096):
            column[rows] = cosines(part.images[part.reference[rows]], part.images[part.reconstruction[rows]])
        parts.append(column)
    return np.mean(parts, axis=0), {"encoders": [part.fingerprint for part in found]}


def _brought_scores(corpus: Corpus, model: str, store: EmbeddingStore | None, device: str) -> tuple[pd.DataFrame, str]:
    from bcs_lab.score import BCS

    bcs = BCS.load(model, device=device)
    frame, problems = bcs.score_corpus(corpus, store=store, progress=False)
    if frame.empty:
        raise ModelError(f"no pair could be scored: {problems[0] if problems else 'none is there'}")
    return frame.set_index("pair_id"), bcs.ensemble.digest


# --- cells -----------------------------------------------------------------------------------------------------------

_COLUMNS = ("pair", "metric", "identity", "value", "status", "reason")


class _Cells:
    """Values by distinct pair and column, and the parts on disk that hold them."""

    def __init__(self, folder: Path, keys: Sequence[str], identities: Mapping[str, str]) -> None:
        self.folder = folder
        self.keys = list(keys)
        self.columns = list(identities)
        self.identities = dict(identities)
        self.values = np.full((len(self.keys), len(self.columns)), np.nan)
        self.status = np.full(self.values.shape, MISSING, dtype=np.int8)
        self.reasons: dict[tuple[int, int], str] = {}
        self._fresh: list[tuple[int, int]] = []
        self._since = time.monotonic()
        self._place = {name: at for at, name in enumerate(self.columns)}
        folder.mkdir(parents=True, exist_ok=True)
        for stale in folder.glob(".*.tmp"):
            stale.unlink(missing_ok=True)  # of a run that was killed
        self._read()

    def _read(self) -> None:
        frames, paths = [], sorted(self.folder.glob("part-*.parquet"))
        for path in paths:
            try:
                frames.append(pd.read_parquet(path, columns=list(_COLUMNS)))
            except FileNotFoundError:
                continue  # another run has just made it one with others
            except Exception as error:  # whatever pyarrow raises: what it held is computed again
                log.warning(
                    "%s is damaged (%s); what it held is computed again", path, " ".join(str(error).split())[:120]
                )
        if not frames:
            return
        frame = pd.concat(frames, ignore_index=True)
        if len(paths) > MOST_PARTS:
            frame = frame.drop_duplicates(["pair", "metric", "identity"], keep="last")
            self._write(frame)
            for path in paths:
                path.unlink(missing_ok=True)
        rows = pd.Series(np.arange(len(self.keys)), index=self.keys)
        at = rows.reindex(frame["pair"]).to_numpy(dtype=np.float64)
        wanted = ~np.isnan(at) & (frame["identity"] == frame["metric"].map(self.identities)).to_numpy()
        frame, at = frame[wanted], at[wanted].astype(np.int64)
        column = frame["metric"].map(self._place).to_numpy(dtype=np.int64)
        status = frame["status"].to_numpy(dtype=np.int8)
        # Later parts come last and win.
        self.values[at, column] = frame["value"].to_numpy(dtype=np.float64)
        self.status[at, column] = status
        reasons = frame["reason"].to_numpy(dtype=object)
        for place in np.flatnonzero(status != OK).tolist():
            self.reasons[int(at[place]), int(column[place])] = str(reasons[place])

    def needed(self, columns: Sequence[str]) -> NDArray[np.bool_]:
        """Distinct pairs of which a cell of these columns is missing, or failed before this run."""
        status = self.status[:, [self._place[name] for name in columns]]
        return np.asarray(((status == MISSING) | (status == FAILED)).any(axis=1))

    def put(self, rows: Sequence[int], name: str, values: Values) -> None:
        """Values of distinct pairs."""
        column = self._place[name]
        for at, row in enumerate(rows):
            value = float(values.values[at])
            undefined = value != value
            self.values[row, column] = value
            self.status[row, column] = UNDEFINED if undefined else OK
            self.reasons.pop((row, column), None)
            if undefined:
                self.reasons[row, column] = values.reasons.get(at, "undefined")
            self._fresh.append((row, column))

    def fail(self, row: int, name: str, reason: str) -> None:
        """A cell that could not be computed."""
        column = self._place[name]
        self.values[row, column] = np.nan
        self.status[row, column] = FAILED
        self.reasons[row, column] = reason
        self._fresh.append((row, column))

    def flush(self, force: bool = False) -> None:
        """Write what is new, if it is time."""
        enough = len(self._fresh) >= FLUSH_PAIRS * max(len(self.columns), 1)
        if not self._fresh or not (force or enough or time.monotonic() - self._since >= FLUSH_SECONDS):
            return
        cells = self._fresh
        rows, columns = (np.array(side, dtype=np.int64) for side in zip(*cells, strict=True))
        names = [self.columns[column] for column in columns.tolist()]
        self._write(
            pd.DataFrame(
                {
                    "pair": [self.keys[row] for row in rows.tolist()],
                    "metric": names,
                    "identity": [self.identities[name] for name in names],
                    "value": self.values[rows, columns],
                    "status": self.status[rows, columns],
                    "reason": [self.reasons.get(cell, "") for cell in cells],
                }
            )
        )
        self._fresh = []
        self._since = time.monotonic()

    def _write(self, frame: pd.DataFrame) -> None:
        numbers = [int(path.name.split("-")[1]) for path in self.folder.glob("part-[0-9]*-*.parquet")]
        name = f"part-{max(numbers, default=0) + 1:06d}-{secrets.token_hex(4)}.parquet"
        with replacing(self.folder / name) as temporary:
            frame.to_parquet(temporary, index=False)


# --- the work --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Broken:
    """Why an image, or one input made of it, cannot be used."""

    reason: str


@dataclass
class _Side:
    """One image of a pair: inputs by preparation, features of threaded families by family."""

    inputs: dict[str, Any] = field(default_factory=dict)
    features: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ImagePair:
    """A distinct pair of contents.

    Attributes:
        reference: SHA-256 of the file.
        reconstruction: likewise.
        files: the first ones met with these contents.
    """

    reference: bytes
    reconstruction: bytes
    files: tuple[Path, Path]


@dataclass(frozen=True)
class Contents:
    """The distinct pairs of a corpus, those of one reference side by side.

    Attributes:
        pairs: distinct ones.
        pair_of: int64 [n_pairs of the corpus], position in ``pairs``, -1 where a file cannot be read.
        unreadable: row of the corpus -> why not.
    """

    pairs: list[ImagePair]
    pair_of: NDArray[np.int64]
    unreadable: dict[int, str]


def distinct_pairs(corpus: Corpus) -> Contents:
    """Distinct pairs of contents of a corpus with images; each file is read once."""
    known: dict[Path, bytes | ImageError] = {}

    def key(path: Path) -> bytes | ImageError:
        if path not in known:
            try:
                known[path] = file_sha256(path)
            except ImageError as error:
                known[path] = error
        return known[path]

    found: dict[tuple[bytes, bytes], ImagePair] = {}
    of: list[tuple[bytes, bytes] | None] = []
    unreadable: dict[int, str] = {}
    for row in range(len(corpus)):
        files = (corpus.reference_file(row), corpus.reconstruction_file(row))
        one, two = key(files[0]), key(files[1])
        if isinstance(one, ImageError) or isinstance(two, ImageError):
            sides = {"reference": one, "reconstruction": two}
            unreadable[row] = "; ".join(f"{role} image: {e}" for role, e in sides.items() if isinstance(e, ImageError))
            of.append(None)
            continue
        found.setdefault((one, two), ImagePair(one, two, files))
        of.append((one, two))
    first: dict[bytes, int] = {}
    for pair in found.values():
        first.setdefault(pair.reference, len(first))
    pairs = sorted(found.values(), key=lambda pair: first[pair.reference])
    place = {(pair.reference, pair.reconstruction): at for at, pair in enumerate(pairs)}
    pair_of = np.array([-1 if keys is None else place[keys] for keys in of], dtype=np.int64)
    return Contents(pairs, pair_of, unreadable)


class _Work:
    """One call of :func:`compute_table` over images."""

    def __init__(
        self, corpus: Corpus, metrics: Sequence[Metric], folder: Path, store: EmbeddingStore | None, chunk: int,
        threads: int | None, progress: bool,
    ) -> None:  # fmt: skip
        self.corpus, self.metrics, self.store = corpus, list(metrics), store
        self.chunk, self.progress = chunk, progress
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.threads = threads or min(cores, 8)
        self.families: dict[str, Family] = {}
        self.names: dict[str, list[str]] = {}
        identities: dict[str, str] = {}
        for metric in self.metrics:
            self.families.setdefault(metric.family.key, metric.family)
            self.names.setdefault(metric.family.key, []).append(metric.spec.name)
            identities[metric.spec.name] = digest(metric.identity)
        for key, family in self.families.items():
            if family.threaded:
                self.names[key] += FLAGS
                identities |= {flag: digest({"metric": flag, **family.identity}) for flag in FLAGS}
        contents = (
            distinct_pairs(corpus) if self.metrics else Contents([], np.full(len(corpus), -1, dtype=np.int64), {})
        )
        self.pairs, self.pair_of, self.unreadable = contents.pairs, contents.pair_of, contents.unreadable
        keys = [hashlib.sha256(pair.reference + pair.reconstruction).hexdigest()[:32] for pair in self.pairs]
        self.cells = _Cells(folder, keys, identities)
        self.facts: dict[str, Any] = {
            "distinct_pairs": len(self.pairs), "distinct_references": len({pair.reference for pair in self.pairs})
        }  # fmt: skip
        self._known: dict[tuple[str, bytes], Any] = {}
        self._references: dict[bytes, Future[_Side | _Broken]] = {}
        self._pending: dict[str, dict[bytes, tuple[Any, ...]]] = {}

    def run(self) -> None:
        """Compute what is missing."""
        needed = {key: self.cells.needed(names) for key, names in self.names.items()}
        todo = np.flatnonzero(np.any(list(needed.values()), axis=0)).tolist() if needed else []
        asked = len(self.pairs) * len(self.cells.columns)
        self.facts |= {
            "cells": asked,
            "cells_found": asked - sum(int(needed[key].sum()) * len(names) for key, names in self.names.items()),
        }
        if not todo:
            return
        # What has to be made of a reference is what any of its pairs needs.
        wants: dict[bytes, set[str]] = {}
        for row in todo:
            wants.setdefault(self.pairs[row].reference, set()).update(key for key in needed if needed[key][row])
        from tqdm import tqdm

        show = self.progress and sys.stderr.isatty()
        if self.progress and not show:
            log.info("metrics: %d pairs, %s", len(todo), ", ".join(metric.spec.name for metric in self.metrics))
        begun = time.monotonic()
        with (
            tqdm(total=len(todo), desc="metrics", unit="pair", disable=not show) as bar,
            ThreadPoolExecutor(self.threads, thread_name_prefix="metrics") as pool,
        ):
            try:
                for rows, jobs, found, upcoming in self._ahead(pool, batches(todo, self.chunk), needed, wants):
                    self._finish(rows, jobs, found, needed)
                    self._forget(upcoming)
                    self.cells.flush()
                    bar.update(len(rows))
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
                self.cells.flush(force=True)
                self._keep(force=True)
        seconds = time.monotonic() - begun
        self.facts |= {"pairs_computed": len(todo), "pairs_per_second": round(len(todo) / max(seconds, 1e-9), 2)}
        if self.progress and not show:
            log.info("metrics: %d pairs in %.1f s (%.1f/s)", len(todo), seconds, len(todo) / max(seconds, 1e-9))

    def _ahead(
        self, pool: ThreadPoolExecutor, chunks: list[list[int]], needed: Mapping[str, NDArray[np.bool_]],
        wants: Mapping[bytes, set[str]],
    ) -> Iterator[tuple[list[int], list[Any], dict[str, dict[bytes, Any]], list[int]]]:  # fmt: skip
        """Chunks with their work handed out, and the next one, on which threads work while the caller uses this."""
        waiting = None
        for rows in chunks:
            submitted = (rows, *self._submit(pool, rows, needed, wants))
            if waiting is not None:
                yield *waiting, rows
            waiting = submitted
        if waiting is not None:
            yield *waiting, []

    def _submit(
        self, pool: ThreadPoolExecutor, rows: list[int], needed: Mapping[str, NDArray[np.bool_]],
        wants: Mapping[bytes, set[str]],
    ) -> tuple[list[Any], dict[str, dict[bytes, Any]]]:  # fmt: skip
        """Hand out the decoding of a chunk, references first, so that no thread waits for one that is not begun."""
        found = self._looked_up(rows, needed)
        here = {self.pairs[row].reference: self.pairs[row].files[0] for row in rows}
        fresh = {key: path for key, path in here.items() if key not in self._references}
        for key, path in fresh.items():
            wanted = [
                self.families[name] for name in wants[key] if (name, key) not in self._known and key not in found[name]
            ]
            self._references[key] = pool.submit(self._side, path, wanted)
        jobs = []
        for row in rows:
            pair = self.pairs[row]
            mine = [self.families[key] for key in self.families if needed[key][row]]
            jobs.append(pool.submit(self._pair, pair, mine, found, self._references[pair.reference]))
        return jobs, found

    def _looked_up(self, rows: Sequence[int], needed: Mapping[str, NDArray[np.bool_]]) -> dict[str, dict[bytes, Any]]:
        """Family -> features that the embedding store holds of a chunk's images."""
        found: dict[str, dict[bytes, Any]] = {key: {} for key in self.families}
        for key, family in self.families.items():
            if self.store is None or not family.embeds:
                continue
            own = [self.pairs[row] for row in rows if needed[key][row]]
            images = list(dict.fromkeys(image for pair in own for image in (pair.reference, pair.reconstruction)))
            if not images:
                continue
            parts = [self.store.get(fingerprint, images) for fingerprint in family.embeds]
            present = np.all([there for _, there in parts], axis=0)
            for at in np.flatnonzero(present).tolist():
                found[key][images[at]] = tuple(vectors[at].copy() for vectors, _ in parts)
        return found

    # --- in threads --------------------------------------------------------------------------------------------------

    def _side(self, path: Path, families: Sequence[Family]) -> _Side | _Broken:
        """Decode one image and make its inputs; of threaded families the features too."""
        side = _Side()
        if not families:
            return side
        try:
            image = load_image(path, max_pixels=self.corpus.max_image_pixels)
        except ImageError as error:
            return _Broken(str(error))
        for family in families:
            key = family.preparation.key
            if key not in side.inputs:
                try:
                    side.inputs[key] = family.preparation.apply(image)
                except Exception as error:  # one metric's trouble must not cost the others their value
                    side.inputs[key] = _Broken(_reason(error))
        for family in families:
            if family.threaded:
                given = side.inputs[family.preparation.key]
                try:
                    side.features[family.key] = given if isinstance(given, _Broken) else family.features([given])[0]
                except Exception as error:  # as above
                    side.features[family.key] = _Broken(_reason(error))
        slow = {family.preparation.key for family in families if not family.threaded}
        side.inputs = {key: value for key, value in side.inputs.items() if key in slow}
        return side

    def _pair(
        self, pair: ImagePair, families: Sequence[Family], found: Mapping[str, Mapping[bytes, Any]],
        reference: Future[_Side | _Broken],
    ) -> tuple[_Side | _Broken, dict[str, dict[str, Values] | _Broken]]:  # fmt: skip
        """One reconstruction, and the values of threaded families, whose features are then let go."""
        wanted = [family for family in families if pair.reconstruction not in found[family.key]]
        side = self._side(pair.files[1], wanted)
        values: dict[str, dict[str, Values] | _Broken] = {}
        one = reference.result()
        for family in families:
            if not family.threaded or isinstance(side, _Broken) or isinstance(one, _Broken):
                continue
            try:
                first, second = one.features[family.key], side.features.pop(family.key)
                bad = next((part for part in (first, second) if isinstance(part, _Broken)), None)
                values[family.key] = bad or family.compare(self.names[family.key], [first], [second])
            except Exception as error:  # as above
                values[family.key] = _Broken(_reason(error))
        return side, values

    # --- in the caller's thread --------------------------------------------------------------------------------------

    def _finish(
        self, rows: list[int], jobs: list[Any], found: dict[str, dict[bytes, Any]],
        needed: Mapping[str, NDArray[np.bool_]],
    ) -> None:  # fmt: skip
        """Everything a chunk still lacks: networks, comparisons, cells."""
        results = [job.result() for job in jobs]
        references = {key: self._references[key].result() for key in {self.pairs[row].reference for row in rows}}
        good: list[int] = []
        for at, row in enumerate(rows):
            side, values = results[at]
            bad = {"reference": references[self.pairs[row].reference], "reconstruction": side}
            reasons = [f"{role} image: {part.reason}" for role, part in bad.items() if isinstance(part, _Broken)]
            if reasons:
                for key in self.families:
                    if needed[key][row]:
                        self._fail(row, key, "; ".join(reasons))
                continue
            good.append(at)
            for key, value in values.items():
                if isinstance(value, _Broken):
                    self._fail(row, key, value.reason)
                else:
                    for name, one in value.items():
                        self.cells.put([row], name, one)
        for key, family in self.families.items():
            if not family.threaded:
                mine = [at for at in good if needed[key][rows[at]]]
                self._network(key, family, [(rows[at], results[at][0]) for at in mine], references, found[key])

    def _forget(self, upcoming: Sequence[int]) -> None:
        """Let go of references that do not come again: the next chunk may go on with the last one."""
        kept = {self.pairs[row].reference for row in upcoming}
        self._known = {place: value for place, value in self._known.items() if place[1] in kept}
        self._references = {key: future for key, future in self._references.items() if key in kept}

    def _network(
        self, key: str, family: Family, items: Sequence[tuple[int, _Side]],
        references: Mapping[bytes, Any], found: Mapping[bytes, Any],
    ) -> None:  # fmt: skip
        """Features of what is new, then values, of one family, a few pairs at a time: features are large."""
        step = family.preparation.key
        for group in batches(items, family.batch):
            rows = [row for row, _ in group]
            one, two = ({getattr(self.pairs[row], role): row for row in rows} for role in ROLES)
            first = {image: references[image].inputs.get(step) for image in one}
            sides = dict(group)
            second = {image: sides[row].inputs.get(step) for image, row in two.items()}
            known = {image: self._known[key, image] for image in first if (key, image) in self._known}
            ones = self._features(family, first, {**found, **known}, family.features)
            twos = self._features(family, second, found, family.reconstruction_features)
            # Pairs of a reference lie side by side: only the last one may come again.
            last = self.pairs[rows[-1]].reference
            self._known = {place: value for place, value in self._known.items() if place[0] != key}
            if not isinstance(ones[last], _Broken):
                self._known[key, last] = ones[last]
            ready = []
            for row in rows:
                pair = self.pairs[row]
                bad = [part for part in (ones[pair.reference], twos[pair.reconstruction]) if isinstance(part, _Broken)]
                if bad:
                    self._fail(row, key, bad[0].reason)
                else:
                    ready.append(row)
            self._compare(key, family, ready, ones, twos)

    def _compare(
        self, key: str, family: Family, rows: list[int], ones: Mapping[bytes, Any], twos: Mapping[bytes, Any]
    ) -> None:
        """Values of pairs whose features are there; one at a time where together they fail."""

        def put(some: list[int]) -> None:
            pairs = [self.pairs[row] for row in some]
            found = family.compare(
                self.names[key], [ones[pair.reference] for pair in pairs], [twos[pair.reconstruction] for pair in pairs]
            )
            for name, values in found.items():
                self.cells.put(some, name, values)

        try:
            if rows:
                put(rows)
        except Exception:
            for row in rows:
                try:
                    put([row])
                except Exception as error:  # one bad pair must cost no other its value
                    self._fail(row, key, _reason(error))

    def _features(
        self, family: Family, inputs: Mapping[bytes, Any], found: Mapping[bytes, Any], compute: Any
    ) -> dict[bytes, Any]:
        """Features by image: found, or computed in batches; an image that breaks its batch breaks alone."""
        out = {image: found[image] for image in inputs if image in found}
        out |= {image: one for image, one in inputs.items() if image not in out and isinstance(one, _Broken)}
        for group in batches([image for image in inputs if image not in out], family.batch):
            try:
                fresh = dict(zip(group, compute([inputs[image] for image in group]), strict=True))
            except Exception:
                fresh = {}
                for image in group:
                    try:
                        fresh[image] = compute([inputs[image]])[0]
                    except Exception as error:
                        fresh[image] = _Broken(_reason(error))
            out |= fresh
            if self.store is not None and family.embeds:
                kept = self._pending.setdefault(family.key, {})
                kept |= {image: value for image, value in fresh.items() if not isinstance(value, _Broken)}
        self._keep()
        return out

    def _keep(self, force: bool = False) -> None:
        """Put new embeddings into the store, if there are enough of them."""
        for key, rows in self._pending.items():
            if self.store is None or not rows or not (force or len(rows) >= STORED):
                continue
            for place, fingerprint in enumerate(self.families[key].embeds):
                self.store.put(fingerprint, list(rows), np.stack([parts[place] for parts in rows.values()]))
            self._pending[key] = {}

    def _fail(self, row: int, key: str, reason: str) -> None:
        for name in self.names[key]:
            self.cells.fail(row, name, reason)


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    named = text if isinstance(error, BCSError) else f"{type(error).__name__}: {text}"
    return named if len(named) <= 300 else named[:300] + "…"


# --- the result ------------------------------------------------------------------------------------------------------


def _assembled(
    corpus: Corpus, names: Sequence[str], work: _Work, whole: Mapping[str, Floats]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Values in the corpus' order, and what is to be said about cells without one."""
    ids = corpus.pairs["pair_id"].astype(str).tolist()
    cells, of = work.cells, work.pair_of
    place = {name: at for at, name in enumerate(cells.columns)}
    columns: dict[str, Any] = {"pair_id": ids}
    said: list[tuple[int, int, str, str, str, str]] = []
    there = of >= 0
    for number, name in enumerate(names):
        values = np.full(len(corpus), np.nan)
        if name in whole:
            values = np.asarray(whole[name], dtype=np.float64)
            for row in np.flatnonzero(np.isnan(values)).tolist():
                said.append((row, number, ids[row], name, "undefined", "undefined"))
        elif name in place:
            at = place[name]
            values[there] = cells.values[of[there], at]
            for row in np.flatnonzero(~there).tolist():
                said.append((row, number, ids[row], name, "failed", work.unreadable[row]))
            for row in np.flatnonzero(there).tolist():
                status = int(cells.status[of[row], at])
                if status != OK:
                    reason = cells.reasons.get((int(of[row]), at), "")
                    said.append((row, number, ids[row], name, _KINDS[status], reason))
        columns[name] = values
    for flag, reason in FLAGS.items():
        if flag in place:
            flagged = np.zeros(len(corpus), dtype=bool)
            flagged[there] = cells.values[of[there], place[flag]] == 1
            for row in np.flatnonzero(flagged).tolist():
                said.append((row, len(names), ids[row], flag, "flag", reason))
    said.sort(key=lambda item: item[:2])
    failures = pd.DataFrame([item[2:] for item in said], columns=["pair_id", "metric", "kind", "reason"], dtype=object)
    return pd.DataFrame(columns), failures
