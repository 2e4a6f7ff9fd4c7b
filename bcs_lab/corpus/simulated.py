"""``corpus=simulated``: pairs from any folder of pictures, whose right answers are known as far as they can be.

A reconstruction is a degraded version of the reference, of another picture of the same concept, or of a picture of
another concept. The decoder's strengths are known, the content of the pictures is not, so the right answers are

===================  ==========================  ===========================  =============================
question             same picture                other picture, same concept  other concept
===================  ==========================  ===========================  =============================
P1 layout, P2 shape  yes                         unknown                      unknown
P3 texture           yes; by blur                unknown                      unknown
P4 colour            yes; by fading              unknown                      unknown
P5 no artifacts      by artifact and grain       by artifact and grain        by artifact and grain
P6 recoverable       by visibility and P1 to P4  unknown                      unknown
S1 category          yes                         yes                          unknown
S2 kind              yes                         yes                          no
S3 function          yes                         yes                          unknown
S4 number, S5 scene  yes                         unknown                      unknown
S6 recoverable       by visibility               by visibility (*)            unknown
===================  ==========================  ===========================  =============================

(*) where number and scene make no difference to it. Where the decoder left nothing to see, every answer except P5 is
*no*. The thresholds are those of the demo (:mod:`bcs_lab.corpus.demo.truth`). Unknown answers are absent, of the truth
and of the simulated teachers alike. That a concept's name means one kind of thing, and another name another, is taken
from whoever sorted the pictures.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bcs_lab.corpus.demo import truth as rules
from bcs_lab.corpus.demo.concepts import ARTIFACTS
from bcs_lab.corpus.demo.scene import Decoder, Scene
from bcs_lab.corpus.demo.spoil import spoil
from bcs_lab.corpus.images import DEFAULT_MAX_IMAGE_PIXELS, file_sha256, load_image
from bcs_lab.corpus.made import Made, cache_folder, ensure, read_made, save_picture, source_digest
from bcs_lab.corpus.manifest import corpus_folder
from bcs_lab.corpus.schema import Corpus
from bcs_lab.corpus.workers import map_jobs
from bcs_lab.errors import ConfigError, CorpusError, ImageError, Problem, listing
from bcs_lab.split import concept_key
from bcs_lab.teachers.protocol import BCS12, Protocol
from bcs_lab.teachers.simulated import TEACHERS, rationales, simulate

logger = logging.getLogger(__name__)

#: Fewer pictures than this make no corpus.
FEWEST = 10
#: Larger pictures are scaled down to this many pixels on their longer side; no encoder looks at more.
LONGER_SIDE = 320
#: Names of files that are taken for pictures; the content decides what they are.
SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".webp", ".tif", ".tiff", ".bmp", ".ppm", ".pgm", ".pnm"),
    *(".jp2", ".j2k", ".avif", ".heic", ".heif", ".dng"),
)

DEGRADED, SAME_CONCEPT, OTHER_CONCEPT = "degraded", "swapped_within", "swapped_across"

_SOURCES = (
    Path(__file__),
    Path(__file__).with_name("made.py"),
    *(Path(rules.__file__).with_name(name) for name in ("truth.py", "spoil.py", "concepts.py")),
    Path(__file__).parents[1] / "teachers" / "simulated.py",
    Path(__file__).parents[1] / "assets" / "simulated_teachers.yaml",
)


@dataclass(frozen=True)
class Picture:
    """One picture of the user's.

    Attributes:
        name: its path below the user's folder, with ``/``.
        concept: what it shows.
        key: SHA-256 of the file, hexadecimal.
        seen: its scaled copy, relative to the corpus' folder.
    """

    name: str
    concept: str
    key: str
    seen: str


@dataclass(frozen=True)
class Candidate:
    """One reconstruction to be made.

    Attributes:
        number: counted from 0 within its reference.
        kind: ``degraded``, ``swapped_within`` or ``swapped_across``.
        reference: what was seen.
        content: the picture that is degraded.
        decoder: how.
    """

    number: int
    kind: str
    reference: Picture
    content: Picture
    decoder: Decoder


def load_simulated(
    root: str | Path | None = None,
    *,
    images: str | Path | None = None,
    per_image: int = 4,
    seed: int = 0,
    cache: str | Path | None = None,
    teachers_order: Sequence[str] | None = None,
    on_bad_row: str = "error",
    max_image_pixels: int = DEFAULT_MAX_IMAGE_PIXELS,
    protocol: Protocol = BCS12,
    need_images: bool = True,
) -> Corpus:
    """A corpus made from a folder of pictures, unless the cache holds it already.

    Args:
        root: must not be given; the folder is ``images``.
        images: one sub-folder a concept, or a flat folder, where each picture is a concept called by its stem.
        per_image: reconstructions a picture.
        seed: another seed gives other reconstructions and other answers.
        cache: where made corpora are kept; by default ``BCS_CACHE``, else ``~/.cache/bcs_lab``.
        teachers_order: all or some of the simulated teachers, in another order.
        on_bad_row: ``error`` stops with every broken picture listed, ``skip`` leaves them out.
        max_image_pixels: size limit of a picture.
        protocol: the questions; must be those of ``BCS12``.
        need_images: has no effect.

    Raises:
        ConfigError: an argument has a value that cannot be used.
        CorpusError: the folder does not hold ten good pictures of two concepts, or holds broken ones.
        RunError: the cache cannot be written.
    """
    if root is not None and str(root).strip():
        raise ConfigError(
            f"corpus=simulated takes no corpus.root (got {root}); the folder of pictures is corpus.images."
        )
    for name, value, low in (("per_image", per_image, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ConfigError(f"corpus.{name}: expected a whole number from {low} on but got {value!r}.")
    source = corpus_folder(
        images, "simulated", "of pictures: one sub-folder a concept, or pictures only", key="corpus.images"
    )
    files, flat = find_files(source)
    settings: dict[str, Any] = {
        "images": source.name,
        "flat": flat,
        "per_image": per_image,
        "seed": seed,
        "max_image_pixels": max_image_pixels,
        "recipe": source_digest(_SOURCES),
        "files": _hashes(files, source),
    }
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache_folder(cache, "simulated") / digest
    ensure(folder, lambda target: make_simulated(target, source, settings, on_bad_row), f"simulated ({source})")
    corpus = read_made(
        folder,
        name=f"simulated {source.name}",
        stand_ins=False,
        teachers_order=teachers_order,
        on_bad_row=on_bad_row,
        max_image_pixels=max_image_pixels,
        protocol=protocol,
    )
    _report(source, corpus.skipped, on_bad_row)
    return corpus


# --- pictures --------------------------------------------------------------------------------------------------------


def find_files(folder: Path) -> tuple[list[Path], bool]:
    """Files of a folder that are named like pictures, sorted, and whether they lie in the folder itself.

    Hidden files are not looked at, and files of other names are passed over; the content is not looked at here.

    Raises:
        CorpusError: there are none, or some in the folder itself and some in sub-folders.
    """
    flat: list[Path] = []
    nested: list[Path] = []
    others: list[str] = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") for part in parts) or path.is_dir():
            continue
        if path.suffix.lower() not in SUFFIXES:
            others.append("/".join(parts))
        else:
            (flat if len(parts) == 1 else nested).append(path)
    if flat and nested:
        raise CorpusError(
            f"corpus.images={folder}: found pictures ({', '.join(p.name for p in flat[:3])} …) beside "
            f"sub-folders with pictures ({', '.join(sorted({p.relative_to(folder).parts[0] for p in nested})[:3])} …); "
            "expected one sub-folder a concept, or pictures only. Move the pictures into sub-folders, or away."
        )
    if not flat and not nested:
        inside = f"only {', '.join(others[:10])}" if others else "it is empty"
        raise CorpusError(
            f"corpus.images={folder}: holds no pictures ({inside}); expected at least {FEWEST}, in one sub-folder a "
            f"concept or in the folder itself, with names in {' '.join(SUFFIXES)}."
        )
    unreadable = [str(path).encode("utf-8", "replace").decode() for path in flat + nested if not _is_text(str(path))]
    if unreadable:
        raise CorpusError(
            f"corpus.images={folder}: {len(unreadable)} file names are not UTF-8, which no table can hold; rename "
            f"{', '.join(unreadable[:10])}."
        )
    if others:
        logger.info("%s: %d files are no pictures and are passed over, such as %s", folder, len(others), others[0])
    return flat or nested, bool(flat)


def _is_text(name: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _hashes(files: Sequence[Path], folder: Path) -> list[list[str]]:
    """Name and SHA-256 of each file, the latter empty where it cannot be read."""

    def of(path: Path) -> str:
        try:
            return file_sha256(path).hex()
        except ImageError:
            return ""

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        keys = list(pool.map(of, files))
    return [[path.relative_to(folder).as_posix(), key] for path, key in zip(files, keys, strict=True)]


def _distinct(
    folder: Path, hashes: Sequence[Sequence[str]], flat: bool, results: Sequence[tuple[str, str]]
) -> tuple[list[Picture], list[Problem]]:
    """The good pictures, each once, and what is wrong with the others."""
    pictures: list[Picture] = []
    problems: list[Problem] = []
    first: dict[str, Picture] = {}
    for (name, key), (seen, reason) in zip(hashes, results, strict=True):
        if reason:
            problems.append(Problem(name, None, reason.removeprefix(f"{folder / name}: ")))
            continue
        concept = (Path(name).stem if flat else name.split("/")[0]).strip() or "na"
        picture = Picture(name, concept, key, seen)
        same = first.setdefault(seen, picture)
        if same is picture:
            pictures.append(picture)
        elif flat or concept_key(same.concept) == concept_key(concept):
            logger.warning("%s: %s is the same picture as %s; it counts once", folder, name, same.name)
        else:
            problems.append(Problem(name, None, f"is the same picture as {same.name}, under another concept"))
    return pictures, problems


def _report(folder: Path, problems: Sequence[Problem], on_bad_row: str) -> None:
    """Stop because of pictures that cannot be used, or say that they are left out."""
    if not problems:
        return
    count = f"{len(problems)} picture{'s' if len(problems) > 1 else ''}"
    if on_bad_row == "error":
        raise CorpusError(
            f"{count} of corpus.images={folder} cannot be used:\n"
            f"{listing(problems, 200)}\nMend or remove them, or go on without them: corpus.on_bad_row=skip"
        )
    logger.warning("%s: %s left out:\n%s", folder, count, listing(problems, 20))


def _check_enough(folder: Path, pictures: Sequence[Picture], broken: int) -> None:
    left = f" that can be used ({broken} cannot)" if broken else ""
    if len(pictures) < FEWEST:
        raise CorpusError(
            f"corpus.images={folder}: {len(pictures)} picture{'s' if len(pictures) != 1 else ''}{left}, expected at "
            f"least {FEWEST}, since fewer can be neither trained nor tested on. Add {FEWEST - len(pictures)} more."
        )
    concepts = {concept_key(picture.concept): picture.concept for picture in pictures}
    if len(concepts) < 2:
        (name,) = concepts.values()
        raise CorpusError(
            f"corpus.images={folder}: all {len(pictures)} pictures are of one concept ({name}), expected at least two "
            "(three for split=concept), since content is swapped across concepts and pairs are split by them. Add "
            "sub-folders of other concepts, or put the pictures into the folder itself, where each is its own concept."
        )


# --- pairs -----------------------------------------------------------------------------------------------------------


def make_simulated(
    folder: Path, source: Path, settings: dict[str, Any], on_bad_row: str, *, workers: int | None = None
) -> Made:
    """Write scaled and degraded pictures into ``folder/images``, and work out everything else.

    Args:
        folder: exists and has a sub-folder ``images``.
        source: the user's folder.
        settings: of :func:`load_simulated`; they go into the index.
        on_bad_row: ``error`` or ``skip``.
        workers: processes that draw; the result does not depend on it.

    Raises:
        CorpusError: see :func:`load_simulated`.
    """
    hashes, name = settings["files"], str(settings["images"])
    sources = [(str(folder), str(source / file), int(settings["max_image_pixels"])) for file, _ in hashes]
    results = map_jobs(scale_one, sources, label=f"reading {name}", unit="picture", workers=workers)
    pictures, problems = _distinct(source, hashes, bool(settings["flat"]), results)
    if on_bad_row == "error":
        _report(source, problems, on_bad_row)
    _check_enough(source, pictures, len(problems))
    candidates = sorted(
        (
            item
            for picture in pictures
            for item in plan_candidates(picture, pictures, int(settings["per_image"]), int(settings["seed"]))
        ),
        key=_pair_id,
    )
    jobs = [(str(folder), item.content.seen, item.decoder) for item in candidates]
    decoded = map_jobs(degrade_one, jobs, label=f"degrading {name}", unit="image", workers=workers)
    ids = [_pair_id(item) for item in candidates]
    truth = np.array([known_answers(item.kind, item.decoder) for item in candidates], dtype=np.float32)
    answers = simulate(truth, ids, int(settings["seed"]))
    rows = [
        {
            "pair_id": pair_id,
            "method": item.kind,
            "subject": "na",
            "concept": item.reference.concept,
            "rank": "1",
            "candidate": str(item.number),
            "reference_path": item.reference.seen,
            "reconstruction_path": file,
            "shows": item.content.concept,
            "source": item.reference.name,
            "source_shown": item.content.name,
        }
        for pair_id, item, file in zip(ids, candidates, decoded, strict=True)
    ]
    return Made(
        rows=rows,
        teachers=tuple(TEACHERS),
        answers=answers,
        rationales=rationales(answers),
        truth=truth,
        card=_card(name, pictures, candidates),
        kind="simulated",
        settings=settings,
        skipped=problems,
    )


def plan_candidates(picture: Picture, pictures: Sequence[Picture], per_image: int, seed: int) -> list[Candidate]:
    """The reconstructions of one picture: half degraded, the others swapped within and across concepts.

    They depend on the seed, on this picture's content and, for what it is swapped with, on the whole list.
    """
    dice = random.Random(f"{seed}/{picture.key}")
    within = [p for p in pictures if p is not picture and concept_key(p.concept) == concept_key(picture.concept)]
    across = [p for p in pictures if concept_key(p.concept) != concept_key(picture.concept)]
    kinds = [DEGRADED, SAME_CONCEPT if within else OTHER_CONCEPT, DEGRADED, OTHER_CONCEPT]
    start = dice.randrange(len(kinds))
    result = []
    for number in range(per_image):
        kind = kinds[(start + number) % len(kinds)]
        content = {DEGRADED: [picture], SAME_CONCEPT: within, OTHER_CONCEPT: across}[kind]
        result.append(Candidate(number, kind, picture, content[dice.randrange(len(content))], _decoder(dice)))
    return result


def _decoder(dice: random.Random) -> Decoder:
    """Faults of any strength; of six pictures four stay clear, one grows dim and in one nothing is left to see."""
    low, high = (((rules.CLEAR, 1.0),) * 4 + ((rules.NOTHING, rules.CLEAR), (0.0, rules.NOTHING)))[dice.randrange(6)]
    while True:
        # Whole percents from `randrange`: the same numbers with every version of Python.
        blur, fade, noise = (dice.randrange(5, 10 + dice.randrange(top)) / 100 for top in (90, 95, 80))
        faulty = dice.randrange(3) == 0
        decoder = Decoder(
            blur=blur,
            fade=fade,
            noise=noise,
            artifact=sorted(ARTIFACTS)[dice.randrange(len(ARTIFACTS))] if faulty else "none",
            artifact_strength=dice.randrange(20, 101) / 100 if faulty else 0.0,
            seed=dice.randrange(2**31),
        )
        if low <= rules.visibility(decoder) < high:
            return decoder


def known_answers(kind: str, decoder: Decoder) -> tuple[float, ...]:
    """The right answers of the module's table, NaN where unknown.

    Args:
        kind: ``degraded``, ``swapped_within`` or ``swapped_across``.
        decoder: how the picture is degraded.
    """
    # The rules compare two scenes; with equal scenes only the decoder decides.
    full = dict(zip(BCS12.ids, rules.true_answers(_ANY_SCENE, _ANY_SCENE, decoder), strict=True))
    if kind == DEGRADED or rules.visibility(decoder) < rules.NOTHING:
        known = set(full)
    elif kind == SAME_CONCEPT:
        known = {"P5", "S1", "S2", "S3"}
        # Number and scene are unknown: S6 is known where they make no difference to it.
        seen = rules.visibility(decoder)
        if rules.meaning((1.0, 1.0, 1.0, 0.0, 0.0), seen) == full["S6"]:
            known.add("S6")
    else:
        known = {"P5", "S2"}
        full["S2"] = rules.NO
    return tuple(full[question] if question in known else float("nan") for question in BCS12.ids)


def scale_one(job: tuple[str, str, int]) -> tuple[str, str]:
    """Decode one picture, scale it to a moderate size, and return its name in the corpus, or why it cannot be used."""
    folder, path, max_pixels = job
    try:
        picture = load_image(path, max_pixels=max_pixels)
    except ImageError as error:
        return "", str(error)
    scale = LONGER_SIDE / max(picture.size)
    if scale < 1:
        width, height = (max(1, round(side * scale)) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.LANCZOS)
    return save_picture(picture, Path(folder), "seen"), ""


def degrade_one(job: tuple[str, str, Decoder]) -> str:
    """Degrade one scaled picture and return the name of the result in the corpus."""
    folder, seen, decoder = job
    return save_picture(spoil(load_image(Path(folder) / seen), decoder), Path(folder), "decoded")


def _pair_id(item: Candidate) -> str:
    stem = Path(item.reference.name).stem
    text = f"{item.reference.concept}__{stem}__{item.reference.key[:8]}__cand{item.number}"
    return re.sub(r"[^\w.-]+", "_", text)


def _card(name: str, pictures: Sequence[Picture], candidates: Sequence[Candidate]) -> str:
    counts = "\n".join(
        f"| {kind} | {sum(item.kind == kind for item in candidates)} |"
        for kind in (DEGRADED, SAME_CONCEPT, OTHER_CONCEPT)
    )
    return f"""# Corpus simulated from {name}

{len(candidates)} pairs from {len(pictures)} pictures of {len({p.concept for p in pictures})} concepts. A \
reconstruction is the picture itself, another picture of its concept, or a picture of another concept, degraded as a \
decoder's output is. Nothing here comes from a brain, and **the teachers are simulated**: their answers are computed \
from `truth.parquet`.

An answer that cannot be known (whether two photographs of dogs have the same layout, say) is absent, not invented. \
The pictures belong to whoever they belonged to before.

| method | pairs |
| --- | --- |
{counts}
"""


_ANY_SCENE = Scene("dog", 1, "centre", 0.5, "red", "flat", "studio", 0)
