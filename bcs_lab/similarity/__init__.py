"""Similarities of a pair: many plain numbers that say how alike two images are to a frozen network, stage by stage.

Few labels go further on eighty numbers that already mean "alike" than on thousands that describe two images. Every
number is named, finite for any two images, and on the CPU the same to the last bit whatever the batch and the number of
cores. A cosine or correlation with something of length 0 is 0.
"""

from __future__ import annotations

from bcs_lab.similarity.describer import (
    SIMILARITY_VERSION,
    Describer,
    Description,
    DescriptionMemory,
    directions,
    load_describer,
)
from bcs_lab.similarity.pairs import PairSimilarities, pair_similarities, similarity_matrix, similarity_names

__all__ = [
    "SIMILARITY_VERSION",
    "Describer",
    "Description",
    "DescriptionMemory",
    "PairSimilarities",
    "directions",
    "load_describer",
    "pair_similarities",
    "similarity_matrix",
    "similarity_names",
]
