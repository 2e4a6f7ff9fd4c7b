"""From a corpus and its scores to a study on disk: ``study.json``, ``images/`` and an overview of the strata."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bcs_lab.corpus.images import file_sha256, load_image
from bcs_lab.corpus.schema import Corpus
from bcs_lab.errors import CorpusError, ImageError, Problem, StudyError, listing
from bcs_lab.files import replacing
from bcs_lab.human.figures import overview
from bcs_lab.human.select import choose, doubts, joint_coherence, pool
from bcs_lab.human.study import FILE, Item, Study

log = logging.getLogger(__name__)

#: Longest side of the pictures that are shown, in pixels.
MAX_SIDE = 512


@dataclass(frozen=True)
class Scored:
    """The scores pairs are chosen by.

    Attributes:
        t_pas: [n_pairs] in [0, 1], NaN where undefined.
        t_sas: likewise.
        source: where they come from, for the record.
        simulated: whether they come from simulated teachers.
        ood: [n_pairs], 1 where a picture is unlike the model's training images, 0 where not, NaN where unknown;
            ``None`` where nothing is known.
        parts: pair -> the part it was in when the model was trained; empty where that is unknown.
        notes: what else a reader of the study has to know about the scores.
    """

    t_pas: NDArray[np.float64]
    t_sas: NDArray[np.float64]
    source: Mapping[str, Any]
    simulated: bool
    ood: NDArray[np.float64] | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def about(self, pair_ids: Sequence[str], rows: Sequence[int]) -> tuple[dict[str, Any], list[str]]:
        """How many of the chosen pairs are out of distribution or were seen in training: for the record, in words.

        Args:
            pair_ids: [n_pairs].
            rows: of the chosen pairs.
        """
        record: dict[str, Any] = {}
        notes: list[str] = []
        chosen = list(rows)
        if self.ood is not None and not np.isnan(self.ood[chosen]).any():
            known = self.ood[~np.isnan(self.ood)]
            counts = (int(self.ood[chosen].sum()), len(chosen)), (int(known.sum()), len(known))
            record["ood"] = dict(zip(("chosen", "all"), ({"n": n, "pairs": of} for n, of in counts), strict=True))
            mine, every = (
                f"{n:,} of {of:,} {which} pair{'s' * (of != 1)} ({n / of:.0%})".replace("%", " %")
                for (n, of), which in zip(counts, ("chosen", "scored"), strict=True)
            )
            notes.append(f"Out of distribution (ood) for the model: {mine}, {every}")
        if self.parts:
            found = Counter(self.parts.get(pair_ids[row], "") for row in chosen)
            record["parts"] = {part: found[part] for part in ("train", "val", "test") if found[part]}
            if found["train"] or found["val"]:
                notes.append(
                    f"Of the {len(chosen)} chosen pairs the model was trained on {found['train']} and validated on "
                    f"{found['val']} (split.parquet of its run); part=test chooses among its held-out pairs"
                )
        return record, [*notes, *self.notes]


def make_study(
    corpus: Corpus,
    scored: Scored,
    out: Path,
    *,
    sizes: Mapping[str, int],
    per_stimulus: int = 2,
    coherence: str = "mean",
    high: str = "dominant",
    seed: int = 0,
    overwrite: bool = False,
) -> Study:
    """Choose pairs, copy their pictures, and write the study.

    Args:
        corpus: the pairs, with images.
        scored: their scores.
        out: folder of the study; made if needed.
        sizes: stratum -> number of pairs.
        per_stimulus: pairs of each chosen reference picture.
        coherence: formula of the joint coherence.
        high: see :func:`bcs_lab.human.select.criteria`.
        seed: of the opaque ids and of the choice between equals.
        overwrite: replace a study that is there.

    Raises:
        CorpusError: the corpus has no images, or (unless it leaves bad rows out) a picture cannot be read.
        StudyError: too few stimuli, or the folder holds a study.
    """
    if (out / FILE).exists() and not overwrite:
        raise StudyError(
            f"{out / FILE} exists, and ratings may refer to it. Choose another folder (out=DIR), or add overwrite=true."
        )
    if corpus.root is None:
        raise CorpusError(
            f"The corpus {corpus.name!r} has no images to show: use one with images, such as corpus=demo or "
            "corpus=manifest corpus.root=DIR."
        )
    bad: set[int] = set()
    hashes = _hashes(corpus, bad)
    while True:
        usable = np.array([row not in bad for row in range(len(corpus))])
        found = pool(
            hashes[0],
            hashes[1],
            np.where(usable, scored.t_pas, np.nan),
            np.where(usable, scored.t_sas, np.nan),
            per_stimulus,
        )
        chosen = choose(found, sizes, per_stimulus, coherence=coherence, high=high, seed=seed)
        rows = {int(found.rows[at]): stratum for at, stratum in chosen.items()}
        pictures, broken = _pictures(corpus, rows)
        if not broken:
            break
        # A torn file is seen only when it is decoded: choose again without its pair.
        _report(corpus, broken)
        bad |= set(broken)
    items = _items(corpus, scored, rows, hashes[0], pictures, out, coherence, seed)
    record, notes = scored.about(corpus.pairs["pair_id"].tolist(), list(rows))
    study = Study(
        items=tuple(sorted(items, key=lambda item: item.item)),
        corpus=corpus.name,
        simulated=scored.simulated,
        seed=seed,
        sizes=dict(sizes),
        per_stimulus=per_stimulus,
        coherence=coherence,
        high=high,
        scores={**scored.source, **record},
        warnings=(*doubts(chosen, found, coherence), *notes),
    )
    overview(study, out)
    study.write(out)
    return study


def _hashes(corpus: Corpus, bad: set[int]) -> tuple[list[str], list[str]]:
    """Content hashes of all references and reconstructions; rows with unreadable files join ``bad``."""
    known: dict[Path, str] = {}
    broken: dict[int, str] = {}
    sides: tuple[list[str], list[str]] = ([], [])
    for row in range(len(corpus)):
        for side, path in zip(sides, (corpus.reference_file(row), corpus.reconstruction_file(row)), strict=True):
            try:
                if path not in known:
                    known[path] = file_sha256(path).hex()
                side.append(known[path])
            except ImageError as error:
                side.append("")
                broken[row] = str(error)
    if broken:
        _report(corpus, broken)
        bad |= set(broken)
    return sides


def _report(corpus: Corpus, broken: Mapping[int, str]) -> None:
    """List pairs with broken pictures; only a corpus that leaves bad rows out goes on."""
    problems: list[Problem] = [corpus.problem(row, message) for row, message in sorted(broken.items())]
    text = f"{len(problems)} pair(s) with unreadable pictures:\n{listing(problems)}"
    if corpus.on_bad_row != "skip":
        raise CorpusError(f"{text}\nCorrect these, or go on without them: corpus.on_bad_row=skip")
    log.warning("left out: %s", text)


def _pictures(corpus: Corpus, rows: Mapping[int, str]) -> tuple[dict[int, tuple[Any, Any]], dict[int, str]]:
    """Both pictures of every chosen pair, and what is wrong with those that cannot be read."""
    pictures: dict[int, tuple[Any, Any]] = {}
    broken: dict[int, str] = {}
    for row in rows:
        try:
            pictures[row] = (
                _small(corpus.reference_file(row), corpus.max_image_pixels),
                _small(corpus.reconstruction_file(row), corpus.max_image_pixels),
            )
        except ImageError as error:
            broken[row] = str(error)
    return pictures, broken


def _small(path: Path, max_pixels: int) -> Image.Image:
    picture = load_image(path, max_pixels=max_pixels)
    picture.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    return picture


def _items(
    corpus: Corpus,
    scored: Scored,
    rows: Mapping[int, str],
    references: list[str],
    pictures: Mapping[int, tuple[Any, Any]],
    out: Path,
    coherence: str,
    seed: int,
) -> list[Item]:
    """Write the pictures under opaque names and describe the pairs."""
    ids = _opaque(2 * len(rows), seed, corpus.name)
    stimuli: dict[str, str] = {}
    files: dict[str, str] = {}
    joint = joint_coherence(scored.t_pas, scored.t_sas, coherence)
    items: list[Item] = []
    for row, stratum in rows.items():
        stimulus = stimuli.setdefault(references[row], f"s{ids[len(rows) + len(stimuli)]}")
        item = f"p{ids[len(items)]}"
        names = (f"images/{stimulus}.png", f"images/{item}.png")
        for name, picture in zip(names, pictures[row], strict=True):
            if name not in files:
                files[name] = _save(picture, out / name)
        pair = corpus.pairs.iloc[row]
        items.append(
            Item(
                item=item,
                stimulus=stimulus,
                stratum=stratum,
                **{key: str(pair[key]) for key in ("pair_id", "method", "subject", "concept")},
                t_pas=float(scored.t_pas[row]),
                t_sas=float(scored.t_sas[row]),
                coherence=float(joint[row]),
                reference=names[0],
                reconstruction=names[1],
                reference_sha256=files[names[0]],
                reconstruction_sha256=files[names[1]],
            )
        )
    return items


def _save(picture: Image.Image, path: Path) -> str:
    """Write a PNG that holds pixels only; returns its hash."""
    with replacing(path) as temporary:
        picture.save(temporary, format="PNG", optimize=True)
    return file_sha256(path).hex()


def _opaque(n: int, seed: int, corpus: str) -> list[str]:
    """Distinct ids that say nothing, the same for the same seed and corpus."""
    rng = np.random.default_rng([seed, *corpus.encode()])
    ids: list[str] = []
    while len(ids) < n:
        one = f"{rng.integers(16**6):06x}"
        if one not in ids:
            ids.append(one)
    return ids
