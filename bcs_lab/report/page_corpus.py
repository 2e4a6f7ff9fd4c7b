"""What a report takes from the corpus behind a run: teachers' answers, rationales, pictures, and plain image metrics.

Everything here may be missing: a corpus that moved, one without images, a broken file. What is missing is said in
:attr:`Behind.notes`, and the report is made without it.
"""

from __future__ import annotations

import base64
import io
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features
from scipy.ndimage import gaussian_filter

from bcs_lab.config import CorpusConfig, absolute, parse
from bcs_lab.consensus import consensus, teacher_answers
from bcs_lab.corpus import Corpus, load_image
from bcs_lab.corpus.images import DEFAULT_MAX_IMAGE_PIXELS
from bcs_lab.errors import BCSError, ImageError
from bcs_lab.report.page_run import TRAIN, ReportRun

log = logging.getLogger(__name__)

#: Longest side of a picture in the page.
THUMBNAIL = 224

#: Side of the grey squares that the structural similarity compares.
SSIM_SIDE = 128

Floats = NDArray[np.float64]


@dataclass
class Behind:
    """The corpus of a run, matched to its pairs.

    Attributes:
        corpus: as opened, or ``None``.
        row: the corpus' row of each pair of the run, -1 where it has none, [n].
        base: folder that relative paths start at.
        notes: what is missing and why, in sentences.
        stale: what makes the corpus look changed since the run, in a sentence, or ``""``.
    """

    corpus: Corpus | None
    row: NDArray[np.int64]
    base: Path
    notes: list[str] = field(default_factory=list)
    stale: str = ""

    @property
    def teachers(self) -> tuple[str, ...]:
        """All teachers of the corpus."""
        return () if self.corpus is None else self.corpus.teachers

    def answers(self) -> Floats:
        """[n, n_teachers, n_questions], NaN where unknown."""
        if self.corpus is None:
            return np.zeros((len(self.row), 0, 0))
        out = self.corpus.answers[np.maximum(self.row, 0)].astype(np.float64)
        out[self.row < 0] = np.nan
        return out

    def rationales(self, pair: int) -> list[list[str]]:
        """[n_teachers][n_questions] of a pair; empty where unknown."""
        if self.corpus is None or self.row[pair] < 0:
            return []
        return [[str(text) for text in row] for row in self.corpus.rationales[self.row[pair]]]

    def files(self, run: ReportRun, pair: int) -> tuple[Path | None, Path | None]:
        """Image files of a pair: of the corpus, else as the table of a scoring run names them."""
        corpus, row = self.corpus, int(self.row[pair])
        if corpus is not None and corpus.root is not None and row >= 0:
            return corpus.reference_file(row), corpus.reconstruction_file(row)
        one, two = run.images[pair]
        return absolute(one, self.base), absolute(two, self.base)

    @property
    def max_pixels(self) -> int:
        """Size limit of its images."""
        return DEFAULT_MAX_IMAGE_PIXELS if self.corpus is None else self.corpus.max_image_pixels


def open_behind(run: ReportRun, start: Path) -> Behind:
    """Open the corpus that the run's settings name.

    A relative folder is looked for where the run was started (``start`` of ``run.json``, else above its ``runs``
    folder), then in the current folder.

    Args:
        run: as read from its folder.
        start: the current folder.
    """
    bases = _bases(run, start)
    missing = np.full(len(run), -1, dtype=np.int64)
    settings = run.settings.get("corpus")
    if not isinstance(settings, dict) or not settings.get("kind"):
        behind = Behind(None, missing, next((place for place in bases if _has_images(run, place)), bases[0]))
        if not any(run.images[0]):
            behind.notes.append("The run's settings name no corpus, so there are no pictures and no teachers' answers.")
        return behind
    folder = settings.get("root") or settings.get("images")
    base = next((base for base in bases if not folder or (base / Path(str(folder)).expanduser()).is_dir()), None)
    if base is None:
        tried = ", ".join(str((base / str(folder)).resolve()) for base in bases)
        note = f"The corpus folder of this run was not found (tried {tried}), so there are no pictures and no answers."
        return Behind(None, missing, bases[0], [note])
    try:
        corpus, notes = _open(settings, base)
    except (BCSError, OSError) as error:
        first = str(error).splitlines()[0]
        return Behind(None, missing, base, [f"The corpus of this run could not be opened: {first}"])
    place = {str(pair_id): row for row, pair_id in enumerate(corpus.pairs["pair_id"])}
    row = np.array([place.get(pair_id, -1) for pair_id in run.pair_ids], dtype=np.int64)
    behind = Behind(corpus, row, base, notes)
    lost = int((row < 0).sum())
    if lost:
        behind.notes.append(f"{lost:,} of {len(run):,} pairs of the run are not in the corpus as it is now.")
    if corpus.root is None and not any(run.images[0]):
        behind.notes.append(f"The corpus {corpus.name} ships without its images, so no pictures are shown.")
    _complete(run, behind)
    return behind


def _bases(run: ReportRun, start: Path) -> list[Path]:
    given = run.record.get("start")
    above = [parent.parent for parent in run.folder.resolve().parents if parent.name == "runs"]
    bases = [Path(given)] if isinstance(given, str) else []
    return list(dict.fromkeys([*bases, *above, start]))


def _has_images(run: ReportRun, base: Path) -> bool:
    path = absolute(run.images[0][0], base)
    return path is not None and path.is_file()


def _open(settings: dict[str, Any], base: Path) -> tuple[Corpus, list[str]]:
    from bcs_lab.tasks.inputs import open_corpus

    # Pairs that broke since must not keep the others from being shown.
    config = parse(CorpusConfig, settings)
    try:
        return open_corpus(config, base, need_answers=False, skip=True), []
    except BCSError as error:
        corpus = open_corpus(config, base, need_images=False, need_answers=False, skip=True)
        corpus.root = None
        return corpus, [f"The corpus' images cannot be used: {str(error).splitlines()[0]}"]


def _complete(run: ReportRun, behind: Behind) -> None:
    """Give the run what only the corpus knows, and compare what both know."""
    from bcs_lab.launch import data_digest

    corpus, known = behind.corpus, behind.row >= 0
    assert corpus is not None
    for name, values in run.labels.items():
        from_corpus = corpus.pairs[name].astype(str).to_numpy()[np.maximum(behind.row, 0)]
        from_corpus = np.where(known & (from_corpus != "na"), from_corpus, "")
        run.labels[name] = np.where(values == "", from_corpus, values)
    recorded = run.record.get("data")
    if recorded and recorded != data_digest(run.settings, behind.base):
        behind.stale = "Files of the corpus have changed since this run: pictures and answers may not be those it saw."
    judges = [name for name in run.judged_by if name in corpus.teachers]
    if not judges or judges != run.judged_by:
        return
    target = np.full(run.prediction.shape, np.nan)
    target[known] = consensus(teacher_answers(corpus.answers, corpus.teachers, judges))[behind.row[known]]
    if run.kind != TRAIN:
        run.set_target(target)
        return
    mine = run.target[known]
    differ = ~np.isclose(mine, target[known], atol=1e-5, equal_nan=True)
    if differ.any():
        behind.stale = (
            f"The consensus in the corpus differs from the one this run learned for {int(differ.any(axis=1).sum()):,} "
            "pairs: the teachers' answers shown may not be those it saw."
        )


# --- pictures ---------------------------------------------------------------------------------------------------------


class Pictures:
    """Pictures of the page, each kept once, and what can be measured on them.

    Args:
        quality: of the lossy format, 1 to 100.
    """

    def __init__(self, quality: int = 76) -> None:
        self.format = "WEBP" if features.check("webp") else "JPEG"
        self.quality = quality
        self._places: dict[Path, int | None] = {}
        self._grey: dict[Path, NDArray[np.uint8] | None] = {}
        self._encoded: dict[Path, bytes | None] = {}
        self.uris: list[str] = []
        self.broken: dict[Path, str] = {}

    def cost(self, path: Path | None, max_pixels: int) -> int:
        """Bytes that the page grows by when this picture is added; 0 for one it has, and for one that cannot be had."""
        if path is None or self._places.get(path) is not None:
            return 0
        content = self._load(path, max_pixels)
        return 0 if content is None else 4 * -(-len(content) // 3) + 30

    def place(self, path: Path | None, max_pixels: int) -> int | None:
        """Index of a picture in :attr:`uris`, added if need be; ``None`` for one that cannot be had."""
        if path is None:
            return None
        if self._places.get(path) is None:
            content = self._load(path, max_pixels)
            self._places[path] = None
            if content is not None:
                self._places[path] = len(self.uris)
                kind = "webp" if self.format == "WEBP" else "jpeg"
                self.uris.append(f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}")
        return self._places[path]

    def similarity(self, first: Path | None, second: Path | None, max_pixels: int) -> float:
        """Structural similarity of two pictures, see :func:`ssim`; NaN where one cannot be had."""
        if first is None or second is None:
            return float("nan")
        self._load(first, max_pixels)
        self._load(second, max_pixels)
        a, b = self._grey.get(first), self._grey.get(second)
        return float("nan") if a is None or b is None else ssim(a / 255, b / 255)

    def _load(self, path: Path, max_pixels: int) -> bytes | None:
        if path in self._encoded:
            return self._encoded[path]
        self._encoded[path] = None
        self._grey[path] = None
        try:
            image = load_image(path, max_pixels=max_pixels)
        except ImageError as error:
            self.broken[path] = str(error)
            return None
        grey = image.convert("L").resize((SSIM_SIDE, SSIM_SIDE), Image.Resampling.BICUBIC)
        self._grey[path] = np.asarray(grey)
        image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        image.save(buffer, self.format, quality=self.quality)
        self._encoded[path] = buffer.getvalue()
        return self._encoded[path]


def ssim(first: NDArray[np.floating], second: NDArray[np.floating], sigma: float = 1.5) -> float:
    """Mean structural similarity of two grey pictures in [0, 1] (Wang et al. 2004: Gaussian window of 11 pixels).

    Args:
        first: [height, width].
        second: the same shape, at least 11 pixels a side.
        sigma: of the window.

    Returns:
        -1 to 1; 1 for equal pictures. The border of five pixels, where the window is cut off, does not count.
    """
    if first.shape != second.shape or first.ndim != 2 or min(first.shape) < 11:
        raise ValueError(
            f"Expected two pictures of one shape, 11 pixels or more, but got {first.shape}, {second.shape}."
        )

    def blurred(values: Floats) -> Floats:
        out: Floats = gaussian_filter(values, sigma, truncate=5 / sigma)
        return out[5:-5, 5:-5]

    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    mean_x, mean_y = blurred(x), blurred(y)
    var_x, var_y = blurred(x * x) - mean_x**2, blurred(y * y) - mean_y**2
    covariance = blurred(x * y) - mean_x * mean_y
    c1, c2 = 0.01**2, 0.03**2
    value = (2 * mean_x * mean_y + c1) * (2 * covariance + c2)
    return float((value / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))).mean())


# --- plain cosine -----------------------------------------------------------------------------------------------------


def stored_cosine(run: ReportRun, behind: Behind) -> tuple[str, Floats] | None:
    """Cosine of reference and reconstruction under the run's first encoder, where its embeddings are at hand.

    Returns:
        Name of the encoder and [n] cosines, NaN where unknown; ``None`` if the store does not hold them. Nothing is
        computed from images.
    """
    if behind.corpus is None or not run.encoders:
        return None
    label = run.encoders[0]
    name = label.split("(stand-in ")[-1].rstrip(")") if "(stand-in " in label else label
    from bcs_lab.embeddings import pair_embeddings
    from bcs_lab.evaluate import cosine_scores
    from bcs_lab.tasks.inputs import open_store

    options = (run.settings.get("encoder") or {}).get("options") or {}
    given = {key: {k: v for k, v in (value or {}).items() if v is not None} for key, value in options.items()}
    try:
        store = open_store(str(run.settings.get("store") or "store"), behind.base)
        corpus, (part,) = pair_embeddings(behind.corpus, [name], store=store, options=given, only_stored=True)
        cosine = cosine_scores(part)
    except (BCSError, OSError, ValueError) as error:
        log.debug("no plain cosine in the report: %s", str(error).splitlines()[0])
        return None
    by_id = dict(zip(corpus.pairs["pair_id"].astype(str), cosine.tolist(), strict=True))
    return label, np.array([by_id.get(pair_id, np.nan) for pair_id in run.pair_ids], dtype=np.float64)
