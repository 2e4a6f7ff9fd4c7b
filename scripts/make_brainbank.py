"""Regenerate the shipped corpus ``bcs_lab/assets/brainbank`` from the images it was cut from.

    python scripts/make_brainbank.py FOLDER_WITH_IMAGES [--out bcs_lab/assets/brainbank]

FOLDER is the original ``brainbank`` corpus: ``manifest.csv``, ``annotations/``, ``sources.csv`` and ``images/``. The
images are third-party and are not part of this project; labels and numbers computed from the images are.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bcs_lab.config import EncoderConfig
from bcs_lab.corpus import load_corpus, write_bundle
from bcs_lab.encoders import EMBEDDED
from bcs_lab.negatives import compare_negatives
from bcs_lab.store import EmbeddingStore
from bcs_lab.tasks.inputs import compare, embed

ROOT = Path(__file__).resolve().parents[1]
TEACHERS = ("literal", "conservative", "lenient", "decisive")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the corpus with its images")
    parser.add_argument("--out", type=Path, default=ROOT / "bcs_lab" / "assets" / "brainbank")
    arguments = parser.parse_args()
    corpus = load_corpus("manifest", arguments.folder, teachers_order=TEACHERS)
    corpus.name = "brainbank"
    with tempfile.TemporaryDirectory() as folder:
        encoder = EncoderConfig(name="embedded", names=list(EMBEDDED))
        store = EmbeddingStore(Path(folder))
        corpus, embeddings = embed(corpus, encoder, store)
        corpus, similarities = compare(corpus, encoder, store)
        negatives, _ = compare_negatives(corpus, similarities, lambda made: compare(made, encoder, store)[1])
        write_bundle(
            corpus,
            embeddings,
            arguments.out,
            similarities=similarities,
            negatives={part.name: item for part, item in zip(similarities, negatives, strict=True)},
            sources_csv=arguments.folder / "sources.csv",
            card_extra=(ROOT / "scripts" / "brainbank_card.md").read_text(encoding="utf-8"),
            overwrite=True,
        )
    size = sum(path.stat().st_size for path in arguments.out.iterdir())
    print(f"{arguments.out}: {len(corpus)} pairs, {size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
