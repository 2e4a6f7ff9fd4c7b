"""Corpora: pairs of a reference image and its reconstruction, with the teachers' answers about them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bcs_lab.catalogue import wrong_corpus_keys
from bcs_lab.corpus.bundle import bundle_differences, read_brainbank, read_bundle, write_bundle
from bcs_lab.corpus.images import BACKGROUND, DEFAULT_MAX_IMAGE_PIXELS, LOADER_VERSION, load_image
from bcs_lab.corpus.manifest import load_manifest
from bcs_lab.corpus.schema import PAIR_COLUMNS, PATH_COLUMNS, Corpus, ShippedEmbeddings, ShippedSimilarities
from bcs_lab.corpus.summary import summary, write_skipped
from bcs_lab.errors import ConfigError
from bcs_lab.teachers.protocol import BCS12, Protocol


def _demo(*args: Any, **options: Any) -> Corpus:
    from bcs_lab.corpus.demo.make import load_demo  # imported here, since it reads its tables of concepts and outlines

    return load_demo(*args, **options)


def _simulated(*args: Any, **options: Any) -> Corpus:
    from bcs_lab.corpus.simulated import load_simulated

    return load_simulated(*args, **options)


#: Kind of corpus -> its reader. A reader takes ``root``, the keywords of :func:`load_corpus` that all kinds have, and
#: those that ``CORPUS_KEYS`` names for its kind.
CORPORA: dict[str, Callable[..., Corpus]] = {
    "brainbank": read_brainbank,
    "demo": _demo,
    "simulated": _simulated,
    "manifest": load_manifest,
    "bundle": read_bundle,
}

__all__ = [
    "BACKGROUND",
    "CORPORA",
    "DEFAULT_MAX_IMAGE_PIXELS",
    "LOADER_VERSION",
    "PAIR_COLUMNS",
    "PATH_COLUMNS",
    "Corpus",
    "ShippedEmbeddings",
    "ShippedSimilarities",
    "bundle_differences",
    "load_corpus",
    "load_image",
    "read_bundle",
    "summary",
    "write_bundle",
    "write_skipped",
]


def load_corpus(
    kind: str,
    root: str | Path | None = None,
    *,
    teachers_order: Sequence[str] | None = None,
    on_bad_row: str = "error",
    max_image_pixels: int = DEFAULT_MAX_IMAGE_PIXELS,
    protocol: Protocol | None = None,
    need_images: bool = True,
    need_answers: bool = True,
    size: str | None = None,
    seed: int | None = None,
    images: str | Path | None = None,
    per_image: int | None = None,
    cache: str | Path | None = None,
    annotations: str | Path | None = None,
) -> Corpus:
    """Read a corpus, or make it first.

    Args:
        kind: ``brainbank`` (ships with the package), ``demo`` (rendered scenes, made on first use), ``simulated`` (made
            from a folder of pictures), ``manifest`` (a folder of one's own) or ``bundle`` (made by
            :func:`write_bundle`).
        root: the folder of a manifest or bundle.
        teachers_order: declared order of the teachers, all or some of them; by default the corpus' own.
        on_bad_row: ``error`` stops with every problem listed, ``skip`` leaves bad rows out and keeps them in
            ``Corpus.skipped``.
        max_image_pixels: largest accepted width x height of an image.
        protocol: the questions; by default those of the folder's ``protocol.yaml``, else the paper's.
        need_images: ``False`` passes over all checks of image files, for embeddings computed elsewhere.
        need_answers: ``False`` takes a manifest's pairs that no teacher has answered; other kinds always have answers.
        size: of the demo, ``small`` or ``paper``.
        seed: of a demo or simulated corpus.
        images: folder of pictures of a simulated corpus: one sub-folder a concept, or pictures only.
        per_image: reconstructions a picture of a simulated corpus.
        annotations: folder of a manifest's answers, such as ``bcs annotate`` writes; by default ``root/annotations``.
        cache: where demo and simulated corpora are kept; by default ``BCS_CACHE``, else ``~/.cache/bcs_lab``.

    Raises:
        ConfigError: an argument has a value that cannot be used, or is not one of this kind of corpus.
        CorpusError: the corpus cannot be read, or has bad rows under ``error``.
    """
    if kind not in CORPORA:
        near = difflib.get_close_matches(str(kind), CORPORA, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"corpus: expected one of {', '.join(CORPORA)} but got {kind!r}.{hint}")
    if on_bad_row not in ("error", "skip"):
        raise ConfigError(f"corpus.on_bad_row: expected error or skip but got {on_bad_row!r}.")
    if isinstance(max_image_pixels, bool) or not isinstance(max_image_pixels, int) or max_image_pixels < 1:
        raise ConfigError(f"corpus.max_image_pixels: expected a whole number above 0 but got {max_image_pixels!r}.")
    given = {"size": size, "seed": seed, "images": images, "per_image": per_image, "cache": cache}
    given["annotations"] = annotations
    extra: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    problem = wrong_corpus_keys(kind, extra)
    if problem:
        raise ConfigError(problem)
    if kind == "manifest":
        extra["need_answers"] = need_answers
    if kind in ("demo", "simulated"):
        protocol = protocol or BCS12
    return CORPORA[kind](
        root,
        teachers_order=teachers_order,
        on_bad_row=on_bad_row,
        max_image_pixels=max_image_pixels,
        protocol=protocol,
        need_images=need_images,
        **extra,
    )
