"""The caption probe's semantic score: the cosine of what captions say about both images (Section 3.1, equation 1).

Captions are brought in as a file, or written by BLIP where its weights are there (the metric ``blip_sbert``, which is
the same cosine). Nothing takes their place otherwise.
"""

from __future__ import annotations

import json
import logging
import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcs_lab.corpus.schema import Corpus
from bcs_lab.errors import ConfigError, Problem, listing

if TYPE_CHECKING:
    from bcs_lab.rationales import SentenceEncoder
    from bcs_lab.store import EmbeddingStore

log = logging.getLogger(__name__)

#: The paper's captioner on the hub.
BLIP = "Salesforce/blip-image-captioning-base"

#: Longest caption in tokens.
MAX_NEW_TOKENS = 32

Floats = NDArray[np.float64]

_SIDES = ("reference", "reconstruction")


@dataclass(frozen=True)
class Captions:
    """A caption of both images of every pair.

    Attributes:
        reference: [n_pairs] cleaned text, ``""`` where there is none.
        reconstruction: likewise.
        facts: where they come from (JSON-able).
    """

    reference: tuple[str, ...]
    reconstruction: tuple[str, ...]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Pairs of which both images have a caption, bool [n_pairs]."""
        return np.array([bool(a and b) for a, b in zip(self.reference, self.reconstruction, strict=True)], dtype=bool)


def clean_caption(text: str) -> str:
    """A caption in lower case, punctuation and hyphens as spaces, one space between words.

    >>> clean_caption("A close-up of  a Dog's nose.")
    'a close up of a dog s nose'
    """
    plain = "".join(" " if unicodedata.category(c)[0] in "PSZC" else c for c in unicodedata.normalize("NFC", text))
    return " ".join(plain.lower().split())


# --- brought in -----------------------------------------------------------------------------------------------------


def read_captions(path: Path, corpus: Corpus) -> Captions:
    """Captions from a JSON Lines file.

    A line is about a pair (``pair_id``, ``reference``, ``reconstruction``; either text may be missing) or about an
    image (``image``: its path as in the manifest, or any path to the same file; ``caption``). What is said about a pair
    comes before what is said about its images.

    Args:
        path: the file.
        corpus: whose pairs are meant. Lines about other pairs and images are counted and passed over, so that one file
            may serve several corpora.

    Raises:
        ConfigError: the file cannot be read, holds lines that cannot be used (all are listed), or says nothing about
            this corpus.
    """
    lines = _lines(path)
    rows = {str(pair_id): row for row, pair_id in enumerate(corpus.pairs["pair_id"])}
    by_pair: list[list[str]] = [["", ""] for _ in rows]
    by_image: dict[str, str] = {}
    problems: list[Problem] = []
    elsewhere = 0
    seen: dict[str, int] = {}
    for number, line in lines:
        wrong, key = _fault(line), f"{line.get('pair_id')!r} {line.get('image')!r}" if isinstance(line, dict) else ""
        if not wrong and key in seen:
            wrong = f"the same pair or image as in line {seen[key]}; expected one line each"
        if wrong:
            problems.append(Problem(path.name, number, wrong))
            continue
        seen[key] = number
        if "image" in line:
            by_image[line["image"]] = clean_caption(line["caption"])
        elif line["pair_id"] in rows:
            by_pair[rows[line["pair_id"]]] = [clean_caption(line.get(side) or "") for side in _SIDES]
        else:
            elsewhere += 1
    if problems:
        raise ConfigError(f"captions={path}: {len(problems)} line(s) cannot be used:\n{listing(problems)}")
    used = _spread(corpus, by_pair, by_image)
    elsewhere += len(by_image.keys() - used)
    captions = Captions(
        tuple(pair[0] for pair in by_pair),
        tuple(pair[1] for pair in by_pair),
        {"source": "file", "file": path.name, "lines": len(lines), "lines_about_others": elsewhere},
    )
    if not captions.complete.any():
        raise ConfigError(
            f"captions={path}: expected captions of both images of pairs of {corpus.name}, found none in {len(lines)} "
            'lines. A line is {"pair_id": …, "reference": …, "reconstruction": …} or {"image": …, "caption": …}.'
        )
    if elsewhere:
        log.warning("%s: %d of %d lines are about no pair of this corpus", path.name, elsewhere, len(lines))
    return captions


def _lines(path: Path) -> list[tuple[int, Any]]:
    """Number and content of every line that is not blank; text that is no JSON stays text."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"captions={path}: expected a JSON Lines file, which cannot be read ({reason}).") from None
    found: list[tuple[int, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                found.append((number, json.loads(line)))
            except ValueError:
                found.append((number, line))
    return found


def _fault(line: Any) -> str:
    """What keeps a line from being used, or ``""``."""
    if not isinstance(line, dict):
        return f"expected a JSON object, found {str(line)[:60]!r}"
    if ("pair_id" in line) == ("image" in line):
        return f"expected either pair_id or image, found the keys {', '.join(line) or '(none)'}"
    if "image" in line:
        known: tuple[str, ...] = ("image", "caption")
        wanted = known
    else:
        known = ("pair_id", *_SIDES)
        wanted = ("pair_id", *(side for side in _SIDES if line.get(side) is not None))
    unknown = [key for key in line if key not in known]
    if unknown:
        return f"expected the keys {', '.join(known)} only, found also {', '.join(unknown)}"
    if wanted == ("pair_id",):
        return f"expected a caption under {' or '.join(_SIDES)}, found neither"
    for key in wanted:
        if not isinstance(line.get(key), str):
            return f"{key}: expected text, found {line.get(key)!r}"
        if key not in ("pair_id", "image") and not clean_caption(line[key]):
            return f"{key}: expected words, found {line[key]!r}; leave the key out where there is no caption"
    return ""


def _spread(corpus: Corpus, by_pair: list[list[str]], by_image: dict[str, str]) -> set[str]:
    """Give pairs the captions of their images where they have none of their own; returns the paths that were used."""
    if not by_image:
        return set()
    used: set[str] = set()
    places = {str(Path(name).expanduser().resolve()): name for name in by_image}
    for at, side in enumerate(_SIDES):
        for row, name in enumerate(corpus.pairs[f"{side}_path"].astype(str)):
            key = name if name in by_image else None
            if key is None and name and corpus.root is not None:
                file = corpus.reference_file(row) if side == "reference" else corpus.reconstruction_file(row)
                key = places.get(str(file.resolve()))
            if key is not None:
                used.add(key)
                by_pair[row][at] = by_pair[row][at] or by_image[key]
    return used


# --- cosines --------------------------------------------------------------------------------------------------------


def caption_cosines(captions: Captions, encoder: SentenceEncoder, store: EmbeddingStore | None = None) -> Floats:
    """Cosine of the sentence embeddings of both captions of every pair (equation 1).

    Args:
        captions: of the pairs.
        encoder: of sentences; unit vectors.
        store: where vectors are kept.

    Returns:
        float64 [n_pairs] in [-1, 1], NaN where a caption is missing.
    """
    have = captions.complete
    out = np.full(len(have), np.nan)
    rows = np.flatnonzero(have).tolist()
    if rows:
        texts = [captions.reference[i] for i in rows] + [captions.reconstruction[i] for i in rows]
        vectors = encoder.embed(texts, store).astype(np.float64)
        first, second = vectors[: len(rows)], vectors[len(rows) :]
        # Captions that are the same word by word are alike without rounding.
        same = np.array([captions.reference[i] == captions.reconstruction[i] for i in rows])
        out[rows] = np.where(same, 1.0, np.clip(np.einsum("nd,nd->n", first, second), -1.0, 1.0))
    return out
