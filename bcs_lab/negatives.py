"""Known negatives: references beside reconstructions of other things, whose answers need no annotator.

A corpus of shown results holds few pairs that have nothing in common, so a head for few labels hardly learns what such
a pair looks like. They can be made: a reconstruction of one concept by the side of a reference of another one, by
the same decoder where it has several. What teachers would say of them is nearly "no" throughout; a little is left for
palettes and layouts that agree by chance, and for neighbouring categories. A question about the reconstruction alone,
such as that for artifacts, keeps the answer of the reconstruction's own pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bcs_lab.corpus.schema import Corpus, ShippedNegatives
from bcs_lab.errors import ConfigError
from bcs_lab.heads import ExtraRows
from bcs_lab.similarity.pairs import PairSimilarities
from bcs_lab.split import concept_key
from bcs_lab.teachers.protocol import PERCEPTUAL, SEMANTIC, Protocol

#: Negatives made for each pair of a corpus.
PER_PAIR = 2
#: What they are taken to be answered, by group.
ANSWERS = {PERCEPTUAL: 0.15, SEMANTIC: 0.05}

Compare = Callable[[Corpus], Sequence[PairSimilarities]]


def negative_pairs(corpus: Corpus, per_pair: int = PER_PAIR, seed: int = 0) -> NDArray[np.int64]:
    """Which references stand beside which reconstructions.

    Args:
        corpus: the pairs.
        per_pair: negatives of each reference.
        seed: another seed gives other ones.

    Returns:
        int64 ``[m, 2]``: the pair whose reference, and the pair whose reconstruction; distinct rows, of two concepts
        each. Fewer than ``per_pair`` a reference where there are no other concepts, or the same was drawn twice.
    """
    concepts = corpus.pairs["concept"].map(concept_key).to_numpy(dtype=object).astype(str)
    methods = corpus.pairs["method"].to_numpy(dtype=object).astype(str)
    rng = np.random.default_rng(seed)
    found: list[tuple[int, int]] = []
    for row in range(len(corpus)):
        others = np.flatnonzero(concepts != concepts[row])
        own = others[methods[others] == methods[row]]
        choice = own if len(own) else others
        found += [(row, int(other)) for other in rng.choice(choice, size=per_pair)] if len(choice) else []
    return np.array(list(dict.fromkeys(found)), dtype=np.int64).reshape(-1, 2)


def compare_negatives(
    corpus: Corpus, parts: Sequence[PairSimilarities], compare: Compare
) -> tuple[list[ShippedNegatives], NDArray[np.int64]]:
    """Similarities of the negatives of a corpus, shipped with it or computed from its images.

    Args:
        corpus: the pairs.
        parts: similarities of its pairs, whose encoders and settings those of the negatives have too.
        compare: similarities of the pairs of a corpus.

    Returns:
        One item for each of ``parts``, and the pairs they all belong to, as :func:`negative_pairs`.

    Raises:
        ConfigError: some are not shipped, and there are no images.
    """
    shipped = [shipped_negatives(corpus, part) for part in parts]
    if all(item is not None for item in shipped):
        items = [item for item in shipped if item is not None]
        if all(np.array_equal(item.pairs, items[0].pairs) for item in items):
            return items, items[0].pairs
    if corpus.root is None:
        missing = [part.label for part, item in zip(parts, shipped, strict=True) if item is None]
        raise ConfigError(
            f"head.negatives: corpus {corpus.name} ships no similarities of known negatives for "
            f"{', '.join(missing) or 'all encoders alike'}, and has no images to compute them from; use "
            "head.negatives=0, or export the bundle with negatives=true."
        )
    pairs = negative_pairs(corpus)
    items = []
    for part, found in zip(parts, compare(beside(corpus, pairs)), strict=True):
        if found.fingerprint != part.fingerprint:
            raise ConfigError(
                f"head.negatives: similarities of {part.label} come with the corpus, but were made in another way than "
                "those that can be computed here; use head.negatives=0."
            )
        items.append(ShippedNegatives(pairs, found.values))
    return items, pairs


def shipped_negatives(corpus: Corpus, part: PairSimilarities) -> ShippedNegatives | None:
    """Those that came with a corpus, made like its similarities ``part``."""
    item = corpus.shipped_similarities.get(part.stand_in or part.name)
    return item.negatives if item is not None and item.fingerprint == part.fingerprint else None


def beside(corpus: Corpus, pairs: NDArray[np.integer]) -> Corpus:
    """The images of a corpus in other pairs: references of ``pairs[:, 0]`` beside reconstructions of ``pairs[:, 1]``.

    Nobody has answered anything about them, and nothing is shipped for them.
    """
    table = corpus.pairs.iloc[pairs[:, 0]].reset_index(drop=True)
    table["reconstruction_path"] = corpus.pairs["reconstruction_path"].to_numpy(dtype=object)[pairs[:, 1]]
    table["pair_id"] = [f"negative-{number}" for number in range(len(pairs))]
    shape = (len(pairs), *corpus.answers.shape[1:])
    return replace(
        corpus,
        pairs=table,
        answers=np.full(shape, np.nan, dtype=np.float32),
        rationales=np.full(shape, "", dtype=object),
        where=[],
        shipped={},
        shipped_similarities={},
        truth=None,
    )


def negative_rows(
    items: Sequence[ShippedNegatives],
    pairs: NDArray[np.integer],
    targets: NDArray[np.floating],
    train: NDArray[np.integer],
    protocol: Protocol,
    weight: float,
) -> ExtraRows:
    """What a head learns from: the negatives of which both images belong to the training part.

    Args:
        items: of :func:`compare_negatives`.
        pairs: likewise.
        targets: [n_pairs, n_questions], the consensus on the corpus' own pairs; NaN where missing.
        train: positions of the training pairs.
        protocol: the questions.
        weight: of each answered cell; a pair on which all teachers agree weighs 1.
    """
    kept = np.isin(pairs, train).all(axis=1)
    answers = np.array([ANSWERS[question.group] for question in protocol.questions], dtype=np.float32)
    alone = np.array([question.alone for question in protocol.questions])
    x = np.concatenate([np.asarray(item.values)[kept] for item in items], axis=1).astype(np.float32)
    y = np.where(alone, np.asarray(targets, dtype=np.float32)[pairs[kept, 1]], answers)
    return ExtraRows(x, y, np.where(np.isnan(y), 0.0, weight).astype(np.float32))
