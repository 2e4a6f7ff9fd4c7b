"""What several tasks begin with: a corpus and its embeddings, from the settings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcs_lab.config import CorpusConfig, EncoderConfig, absolute
from bcs_lab.corpus import Corpus, load_corpus, write_skipped
from bcs_lab.corpus.summary import left_out
from bcs_lab.embeddings import PairEmbeddings, pair_embeddings
from bcs_lab.store import EmbeddingStore

if TYPE_CHECKING:
    from bcs_lab.similarity import PairSimilarities

log = logging.getLogger(__name__)


def open_corpus(
    config: CorpusConfig, base: Path, *, need_images: bool = True, need_answers: bool = True, skip: bool = False
) -> Corpus:
    """The corpus of the settings.

    Args:
        config: which corpus.
        base: folder that a relative root starts at.
        need_images: whether an encoder may have to look at the images; if not, they may be absent.
        need_answers: whether a teacher must have answered; if not, there may be no annotations.
        skip: leave bad rows out whatever the settings say.
    """
    given = {"images": config.images, "cache": config.cache, "annotations": config.annotations}
    folders = {key: absolute(value, base) for key, value in given.items() if value}
    return load_corpus(
        config.kind,
        absolute(config.root, base),
        teachers_order=config.teachers,
        on_bad_row="skip" if skip else config.on_bad_row,
        max_image_pixels=config.max_image_pixels,
        need_images=need_images,
        need_answers=need_answers,
        **{**config.extra, **folders},
    )


def open_store(path: str, base: Path) -> EmbeddingStore:
    """The embedding store of the settings."""
    root = absolute(path, base)
    assert root is not None
    return EmbeddingStore(root)


def embed(
    corpus: Corpus, config: EncoderConfig, store: EmbeddingStore, names: list[str] | None = None
) -> tuple[Corpus, list[PairEmbeddings]]:
    """Embeddings of all pairs; under ``corpus.on_bad_row=skip`` the corpus may lose pairs with broken images.

    Args:
        corpus: the pairs.
        config: which encoders and how they compute.
        store: cache to read and fill.
        names: encoders instead of those of the settings.
    """
    return pair_embeddings(corpus, names or config.names, store=store, **_computing(config))


def compare(
    corpus: Corpus, config: EncoderConfig, store: EmbeddingStore, names: list[str] | None = None
) -> tuple[Corpus, list[PairSimilarities]]:
    """Similarities of all pairs, with the arguments of :func:`embed`."""
    from bcs_lab.similarity import pair_similarities

    return pair_similarities(corpus, names or config.names, store=store, **_computing(config))


def _computing(config: EncoderConfig) -> dict[str, Any]:
    """How encoders compute, as embedding and comparing take it."""
    return {
        "options": config.given_options,
        "stand_in": config.stand_in,
        "device": config.device,
        "batch_size": config.batch_size,
        "dtype": config.dtype,
        "only_stored": config.only_stored,
    }


def report_skipped(corpus: Corpus, out: Path) -> None:
    """Write ``skipped.csv`` into the run folder and say how much was left out, if anything was."""
    if corpus.skipped:
        write_skipped(corpus.skipped, out / "skipped.csv")
        log.warning("%s, listed in %s", left_out(corpus.skipped), out / "skipped.csv")
