"""Measure the fixed statistics of the stages of the embedded networks, and make their bank of pictures of other things.

    python scripts/make_stage_statistics.py FOLDER_WITH_IMAGES [--out bcs_lab/assets]

Written to ``stage_statistics/`` and ``similarity_bank/`` there, which the package ships.

FOLDER is the original ``brainbank`` corpus; its distinct images are looked at, no answer is. Similarities of these
networks change with the statistics: run ``scripts/make_brainbank.py`` afterwards.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bcs_lab.corpus import Corpus, load_corpus, load_image
from bcs_lab.embeddings import CorpusImages, hash_images
from bcs_lab.encoders import EMBEDDED
from bcs_lab.files import write_json
from bcs_lab.similarity import Describer, load_describer
from bcs_lab.similarity.bank import bank_bytes, bank_layers
from bcs_lab.similarity.statistics import INDEX, measure, read_statistics
from bcs_lab.split import concept_key

ROOT = Path(__file__).resolve().parents[1]
STATISTICS, BANK = "stage_statistics", "similarity_bank"
#: Images described at once.
BATCH = 32


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the corpus with its images")
    parser.add_argument("--out", type=Path, default=ROOT / "bcs_lab" / "assets")
    arguments = parser.parse_args()
    corpus = load_corpus("manifest", arguments.folder, need_answers=False)
    corpus.name = "brainbank"
    names = [name for name in EMBEDDED if name != "lowlevel"]
    for folder, make in ((STATISTICS, _measure), (BANK, _bank)):
        # The bank needs the statistics, so they are written first.
        out = arguments.out / folder
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / INDEX, {"networks": {name: make(name, corpus, out) for name in names}})
        print(f"{out}: {', '.join(names)}, {sum(path.stat().st_size for path in out.iterdir()) / 1e6:.2f} MB")
    return 0


def _described(name: str, corpus: Corpus) -> tuple[Describer, CorpusImages, list[int], list[Any]]:
    """All distinct images in the order of their content, so that names of files do not matter."""
    describer = load_describer(name, device="cpu")
    images = hash_images(corpus)
    order = sorted(range(len(images.keys)), key=lambda position: images.keys[position])
    found = []
    for start in range(0, len(order), BATCH):
        files = [images.files[position] for position in order[start : start + BATCH]]
        found += describer.describe(np.stack([describer.prepare(load_image(file)) for file in files]))
    return describer, images, order, found


def _entry(describer: Describer, images: CorpusImages, corpus: Corpus, file: str, content: bytes) -> dict[str, Any]:
    fingerprint = describer.encoder.fingerprint
    assert describer.encoder.staging is not None
    return {
        "file": file,
        "sha256": hashlib.sha256(content).hexdigest(),
        "weights": fingerprint["weights"],
        "preprocessing": fingerprint["preprocessing"],
        "stages": list(describer.encoder.staging().names),
        "corpus": corpus.name,
        "images": len(images.keys),
        "images_sha256": hashlib.sha256(b"".join(sorted(images.keys))).hexdigest(),
    }


def _measure(name: str, corpus: Corpus, out: Path) -> dict[str, Any]:
    """Write one network's statistics; its entry in the index."""
    from safetensors.numpy import save

    describer, images, _, found = _described(name, corpus)
    assert describer.encoder.staging is not None
    pooled = [[part.numpy() for part in description.pooled] for description in found]
    content = save(measure(describer.encoder.staging().names, pooled))
    (out / f"{name}.safetensors").write_bytes(content)
    return _entry(describer, images, corpus, f"{name}.safetensors", content)


def _bank(name: str, corpus: Corpus, out: Path) -> dict[str, Any]:
    """Write one network's bank; its entry in the index."""
    describer, images, order, found = _described(name, corpus)
    assert describer.encoder.staging is not None
    stages = list(describer.encoder.staging().names)
    statistics = read_statistics(out.parent / STATISTICS, name)
    layers = bank_layers(stages)
    rows = []
    for stage, row in layers:
        number = stages.index(stage)
        part = np.stack([description.pooled[number][row].numpy() for description in found])
        part = (part - statistics.mean[stage][row]) / statistics.sd[stage][row]
        rows.append(part / np.linalg.norm(part, axis=1, keepdims=True))
    concept: dict[int | str, str] = {}
    reconstruction = np.zeros(len(order), dtype=bool)
    place = {position: rank for rank, position in enumerate(order)}
    for slots, shown in zip(images.slots, corpus.pairs["concept"].map(concept_key), strict=True):
        concept |= dict.fromkeys(slots, shown)
        reconstruction[place[int(slots[1])]] = True
    labels = sorted(set(concept.values()))
    group = np.array([labels.index(concept[position]) for position in order])
    content = bank_bytes(layers, rows, reconstruction, group)
    (out / f"{name}.safetensors").write_bytes(content)
    return _entry(describer, images, corpus, f"{name}.safetensors", content)


if __name__ == "__main__":
    sys.exit(main())
