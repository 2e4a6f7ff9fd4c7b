"""Corpora: pairs of a reference image and its reconstruction, with the teachers' answers about them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path

from bcs_lab.corpus.bundle import bundle_differences, read_brainbank, read_bundle, write_bundle
from bcs_lab.corpus.images import BACKGROUND, DEFAULT_MAX_IMAGE_PIXELS, LOADER_VERSION, load_image
from bcs_lab.corpus.manifest import load_manifest
from bcs_lab.corpus.schema import PAIR_COLUMNS, PATH_COLUMNS, Corpus, ShippedEmbeddings
from bcs_lab.corpus.summary import summary, write_skipped
from bcs_lab.errors import ConfigError
from bcs_lab.teachers.protocol import BCS12, Protocol

#: Kind of corpus -> its reader. A reader takes ``root`` and the keywords of :func:`load_corpus`.
CORPORA: dict[str, Callable[..., Corpus]] = {
    "brainbank": read_brainbank,
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
    protocol: Protocol = BCS12,
    need_images: bool = True,
) -> Corpus:
    """Read a corpus.

    Args:
        kind: ``brainbank`` (ships with the package), ``manifest`` (a folder of one's own) or ``bundle`` (made by
            :func:`write_bundle`).
        root: the folder of a manifest or bundle.
        teachers_order: declared order of the teachers, all or some of them; by default the corpus' own.
        on_bad_row: ``error`` stops with every problem listed, ``skip`` leaves bad rows out and keeps them in
            ``Corpus.skipped``.
        max_image_pixels: largest accepted width x height of an image.
        protocol: the questions.
        need_images: ``False`` passes over all checks of image files, for embeddings computed elsewhere.

    Raises:
        ConfigError: an argument has a value that cannot be used.
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
    return CORPORA[kind](
        root,
        teachers_order=teachers_order,
        on_bad_row=on_bad_row,
        max_image_pixels=max_image_pixels,
        protocol=protocol,
        need_images=need_images,
    )
