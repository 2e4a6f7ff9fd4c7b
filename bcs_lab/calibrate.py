"""What a fresh ensemble needs beyond its members to be used on new pairs: intervals, familiarity, origins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcs_lab import __version__
from bcs_lab.conformal import Conformal, coverage_report
from bcs_lab.corpus import Corpus
from bcs_lab.embeddings import PairEmbeddings, canonical
from bcs_lab.familiarity import SIDES, Familiarity
from bcs_lab.results import AXES, Scores, axis_columns
from bcs_lab.split import concept_key

if TYPE_CHECKING:
    from bcs_lab.ensemble import Ensemble

Floats = NDArray[np.floating]


def calibrate(
    ensemble: Ensemble, scores: Scores, embeddings: Sequence[PairEmbeddings], corpus: Corpus
) -> dict[str, Any]:
    """Give an ensemble its intervals (on validation), its sense of the familiar (on training) and its provenance.

    Returns:
        The content of ``coverage.json``: how wide the intervals are and what they cover on the test part.
    """
    concepts = corpus.pairs["concept"].map(concept_key).to_numpy()
    columns = axis_columns(scores, corpus.protocol)
    consensus, reported = ({axis: part[index] for axis, part in columns.items()} for index in (0, 1))

    def of(part: str, values: Mapping[str, Floats]) -> dict[str, Floats]:
        return {axis: column[scores.split.indices(part)] for axis, column in values.items()}

    ensemble.conformal = Conformal.fit(of("val", reported), of("val", consensus), concepts[scores.split.indices("val")])
    ensemble.familiarity = training_familiarity(embeddings, scores.split.indices("train"), concepts)
    coverage = coverage_report(
        ensemble.conformal, of("test", reported), of("test", consensus), concepts[scores.split.indices("test")]
    )
    ensemble.provenance = {
        "corpus": corpus.name,
        "pairs": len(corpus),
        "concepts": len(set(concepts.tolist())),
        "counts": scores.split.counts(),
        "held_out_coverage": {axis: values["held_out_concepts"] for axis, values in coverage["axes"].items()},
        "bcs_lab": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    return coverage


def training_familiarity(
    embeddings: Sequence[PairEmbeddings], train: NDArray[np.integer], concepts: NDArray[Any]
) -> Familiarity:
    """What is familiar after training on these pairs.

    Args:
        embeddings: of all pairs, one an encoder.
        train: positions of the training pairs.
        concepts: [n_pairs] labels.
    """
    return Familiarity.fit(*_training_images(embeddings, train, concepts))


def _training_images(
    embeddings: Sequence[PairEmbeddings], train: NDArray[np.integer], concepts: NDArray[Any]
) -> tuple[dict[str, list[Floats]], dict[str, NDArray[Any]]]:
    """Per side the distinct training images' embeddings, one array an encoder, and the concept of each."""
    images: dict[str, list[Floats]] = {}
    labels: dict[str, NDArray[Any]] = {}
    for side in SIDES:
        # The same image has the same row in every encoder's table, but tables that were made apart may differ in order.
        keys = np.stack([getattr(part, side)[train] for part in embeddings], axis=1)
        _, first = np.unique(keys, axis=0, return_index=True)
        first = np.sort(first)
        images[side] = [canonical(np.asarray(part.images)[keys[first, index]]) for index, part in enumerate(embeddings)]
        labels[side] = concepts[train][first]
    return images, labels


def coverage_line(coverage: Mapping[str, Any]) -> str:
    """How wide the intervals are and what they cover, in one sentence."""
    said = []
    for axis, name in AXES.items():
        values = coverage["axes"][axis]
        width = values["half_width"]
        if not values["val_concepts"]:
            said.append(f"{name} none (no validation pair has a consensus on it)")
            continue
        if not np.isfinite(width):
            said.append(f"{name} the whole range ({values['val_concepts']} validation concepts are too few)")
            continue
        held_out = values["held_out_concepts"]
        share = "nothing to measure it on" if held_out is None else f"{held_out:.0%} of test concepts covered"
        said.append(f"{name} ± {width:.2f} ({share})")
    return f"Intervals at {coverage['coverage']:.0%} coverage: {', '.join(said)}."
