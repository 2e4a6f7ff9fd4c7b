"""``bcs corpus export``: a corpus without its images, as one folder that can be shared and trained on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcs_lab.config import ExportConfig, absolute, parse
from bcs_lab.corpus import write_bundle
from bcs_lab.errors import ConfigError
from bcs_lab.negatives import compare_negatives, shipped_negatives
from bcs_lab.tasks.inputs import compare, embed, open_corpus, open_store, report_skipped

if TYPE_CHECKING:
    from bcs_lab.similarity import PairSimilarities

log = logging.getLogger(__name__)


def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
    """Entry of the command line: embed and compare with the encoders asked for, then write the bundle.

    Raises:
        ConfigError: the card is no readable file.
        CorpusError: bad rows, or the bundle's folder exists.
        EncoderError: an encoder's weights cannot be had; stand-ins are never exported.
    """
    config = parse(ExportConfig, values)
    target = absolute(config.out, start)
    assert target is not None
    card = None
    if config.card is not None:
        path = absolute(config.card, start)
        assert path is not None
        try:
            card = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"card: expected a Markdown file, cannot read {path}: {error}") from None

    corpus = open_corpus(config.corpus, start)
    encoder = config.encoder.model_copy(update={"stand_in": None})
    store = open_store(config.store, start)
    corpus, embeddings = embed(corpus, encoder, store, config.encoders)
    similarities: list[PairSimilarities] = []
    if config.similarities:
        corpus, similarities = compare(corpus, encoder, store, config.similarities)
    # A bundle that is exported again keeps those it has.
    shipped = {part.name: shipped_negatives(corpus, part) for part in similarities}
    negatives = {name: item for name, item in shipped.items() if item is not None}
    if config.negatives:
        if not similarities:
            raise ConfigError("negatives: known negatives are similarities; name encoders with similarities=[…] too.")
        compared = [part.name for part in similarities]
        found, _ = compare_negatives(corpus, similarities, lambda made: compare(made, encoder, store, compared)[1])
        negatives = dict(zip(compared, found, strict=True))
    report_skipped(corpus, out)
    sources = None if corpus.root is None else corpus.root / "sources.csv"
    write_bundle(
        corpus,
        embeddings,
        target,
        similarities=similarities,
        negatives=negatives,
        sources_csv=sources if sources is not None and sources.is_file() else None,
        card_extra=card,
        overwrite=config.overwrite,
    )
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"{target}: {len(corpus)} pairs, {', '.join(part.name for part in embeddings)}, {size / 1e6:.1f} MB")
    names = ",".join(part.name for part in embeddings)
    print(f"Train on it with: bcs train corpus=bundle corpus.root={target} encoder.names=[{names}] teachers=all")
    return {
        "corpus": corpus.name,
        "encoders": [part.name for part in embeddings],
        "similarities": [part.name for part in similarities],
        "bundle": str(target),
    }
