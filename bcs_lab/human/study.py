"""A study on disk: ``study.json`` with the chosen pairs and what is known about them, and the pictures to show.

``study.json`` says which method made a picture and why it was chosen, so it is for those who run the study. What raters
get (the form, the Label Studio project) holds the opaque ids and the pictures only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bcs_lab.corpus.images import file_sha256
from bcs_lab.errors import ImageError, StudyError
from bcs_lab.files import read_json, write_json

FILE = "study.json"
FORMAT, VERSION = "bcs_lab.study", 1

#: Why a pair was chosen (Section 5.6), in the order of the paper.
STRATA: Mapping[str, str] = {
    "high_perceptual": "perception-dominant: high T-PAS, low T-SAS",
    "high_semantic": "meaning-dominant: high T-SAS, low T-PAS",
    "highest": "highest joint coherence",
    "lowest": "lowest joint coherence",
}


#: What the two "high" strata are under ``high=plain``, which asks for one axis whatever the other is.
PLAIN: Mapping[str, str] = {"high_perceptual": "high T-PAS", "high_semantic": "high T-SAS"}


@dataclass(frozen=True)
class Item:
    """One pair of a study.

    Attributes:
        item: opaque id of the pair.
        stimulus: opaque id of its reference picture; pairs of one stimulus share it.
        stratum: a key of :data:`STRATA`.
        pair_id: the pair in its corpus.
        method: as in the manifest.
        subject: as in the manifest.
        concept: as in the manifest.
        t_pas: the score it was chosen by, 0 to 1.
        t_sas: likewise.
        coherence: the joint coherence of both, 0 to 1.
        reference: picture file, relative to the study.
        reconstruction: likewise.
        reference_sha256: of that file, in hexadecimal.
        reconstruction_sha256: likewise.
    """

    item: str
    stimulus: str
    stratum: str
    pair_id: str
    method: str
    subject: str
    concept: str
    t_pas: float
    t_sas: float
    coherence: float
    reference: str
    reconstruction: str
    reference_sha256: str
    reconstruction_sha256: str


@dataclass(frozen=True)
class Study:
    """The pairs of a study and how they were chosen.

    Attributes:
        items: the pairs, sorted by opaque id, which is no order at all.
        corpus: name of the corpus they come from.
        simulated: whether the scores come from simulated teachers.
        seed: of the ids and of the choice between equals.
        sizes: stratum -> number of pairs.
        per_stimulus: pairs of each stimulus.
        coherence: formula of the joint coherence.
        high: what the two "high" strata look for, ``dominant`` or ``plain``.
        scores: where the scores come from.
        warnings: what a reader of the results has to know.
    """

    items: tuple[Item, ...]
    corpus: str
    simulated: bool
    seed: int
    sizes: Mapping[str, int]
    per_stimulus: int
    coherence: str
    high: str
    scores: Mapping[str, Any]
    warnings: tuple[str, ...] = field(default=())

    @property
    def digest(self) -> str:
        """Identity of what raters see: ids, which pairs share a stimulus, and the pictures."""
        shown = [(i.item, i.stimulus, i.reference_sha256, i.reconstruction_sha256) for i in self.items]
        return hashlib.sha256(json.dumps(sorted(shown)).encode()).hexdigest()[:16]

    def looks_for(self, stratum: str) -> str:
        """What a stratum was to show, in words."""
        return PLAIN.get(stratum, STRATA[stratum]) if self.high == "plain" else STRATA[stratum]

    def write(self, folder: Path) -> Path:
        """Write ``study.json`` into ``folder``."""
        value = {"format": FORMAT, "version": VERSION, "digest": self.digest, **asdict(self)}
        write_json(folder / FILE, value)
        return folder / FILE

    @classmethod
    def read(cls, folder: Path) -> Study:
        """The study in ``folder``, with every picture there and unchanged.

        Raises:
            StudyError: listing all that is missing, damaged or altered.
        """
        study = cls._parsed(folder)
        problems = []
        for name, sha256 in sorted(
            {
                pair
                for i in study.items
                for pair in ((i.reference, i.reference_sha256), (i.reconstruction, i.reconstruction_sha256))
            }
        ):
            try:
                if file_sha256(folder / name).hex() != sha256:
                    problems.append(f"{folder / name}: is not the picture that was chosen; its content has changed")
            except ImageError as error:
                problems.append(str(error))
        if problems:
            raise StudyError("\n".join([f"{len(problems)} problem(s) in the study {folder}:", *problems]))
        return study

    @classmethod
    def _parsed(cls, folder: Path) -> Study:
        path = folder / FILE
        expected = "expected the folder that `bcs study select` wrote"
        if not path.is_file():
            raise StudyError(f"{path}: no such file; {expected}")
        try:
            value = read_json(path)
            if value["format"] != FORMAT or value["version"] != VERSION:
                raise StudyError(f"{path}: expected {FORMAT} version {VERSION}, got version {value['version']!r}")
            items = tuple(Item(**entry) for entry in value["items"])
            known = {f.name for f in fields(cls)}
            study = cls(**{**{key: value[key] for key in known}, "items": items, "warnings": tuple(value["warnings"])})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StudyError(f"{path}: damaged ({type(error).__name__}: {error}); {expected}") from None
        if study.digest != value.get("digest"):
            raise StudyError(f"{path}: its items do not fit its digest, so it was altered; {expected}")
        return study


def find_study(given: Path | None, start: Path, *near: Path) -> Path:
    """The folder of a study: the one that is named, else the one that lies where it may be expected.

    Args:
        given: what ``study=`` says, if anything.
        start: where the command was started; ``study/`` in it, itself, and the latest of ``runs/study_select/`` count.
        near: looked at first, such as the folder of the ratings.

    Raises:
        StudyError: none is named, and none is there.
    """
    if given is not None:
        return given
    latest = sorted((start / "runs" / "study_select").glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime_ns)
    for place in (*near, start / "study", start, *(path.parent for path in latest[-1:])):
        if (place / FILE).is_file():
            return place
    places = ", ".join(str(place) for place in (*near, start / "study", start))
    raise StudyError(f"study: no {FILE} in {places}; name the folder that `bcs study select` wrote: study=DIR.")
