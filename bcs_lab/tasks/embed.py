"""``bcs embed``: fill the store from images, or bring in embeddings computed elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcs_lab.config import EmbedConfig, absolute, parse
from bcs_lab.embeddings import import_npz
from bcs_lab.errors import ConfigError
from bcs_lab.tasks.inputs import compare, embed, open_corpus, open_store, report_skipped

if TYPE_CHECKING:
    from bcs_lab.similarity import PairSimilarities

log = logging.getLogger(__name__)


def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
    """Entry of the command line.

    Raises:
        ConfigError: ``source=npz`` without ``path``, or with ``features=similarity``.
        CorpusError: bad rows, or an npz file that does not fit the corpus.
        EncoderError: an encoder's weights cannot be had.
    """
    config = parse(EmbedConfig, values)
    store = open_store(config.store, start)
    if config.source == "npz":
        path = absolute(config.path, start)
        if path is None:
            raise ConfigError("path: source=npz needs path=FILE, an npz with the arrays ids, reference, reconstruction")
        if config.features.kind == "similarity":
            raise ConfigError("features: source=npz brings in embeddings only; leave features=similarity out")
        corpus = open_corpus(config.corpus, start, need_images=False, need_answers=False)
        summary = import_npz(corpus, path, config.encoder.name, store, overwrite=config.overwrite)
        print(f"{summary}\nTrain on them with: encoder=stored encoder.names=[{config.encoder.name}]")
        return {"corpus": corpus.name, "encoders": [config.encoder.name], "skipped": len(corpus.skipped)}

    if config.path is not None:
        raise ConfigError("path: only source=npz reads a file; add source=npz, or leave path out")
    config.encoder.check_name()
    corpus = open_corpus(config.corpus, start, need_answers=False)
    corpus, embeddings = embed(corpus, config.encoder, store)
    similarities: list[PairSimilarities] = []
    if config.features.kind == "similarity":
        corpus, similarities = compare(corpus, config.encoder, store)
    report_skipped(corpus, out)
    for part in embeddings:
        print(f"{part.label}: {len(part.images)} distinct images of {2 * len(corpus)} slots, {part.dim} values each")
    for compared in similarities:
        print(f"{compared.label}: {len(compared.names)} similarities of {len(corpus)} pairs")
    print(f"Store: {store.root}")
    return {"corpus": corpus.name, "encoders": [part.label for part in embeddings], "skipped": len(corpus.skipped)}
