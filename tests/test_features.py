from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch

from bcs_lab import features as module
from bcs_lab.features import feature_dim, fused_features


def unit(n: int, dim: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(n, dim, generator=generator), dim=1)


def test_papers_dimension() -> None:
    assert feature_dim([768, 768, 768]) == 9219
    assert feature_dim([768]) == 3073


def test_parts_and_order_of_one_encoder() -> None:
    a, b = unit(5, 7, 0), unit(5, 7, 1)
    x, y = a.double().numpy(), b.double().numpy()
    cosine = (x * y).sum(axis=1, keepdims=True) / np.linalg.norm(x, axis=1, keepdims=True)
    cosine /= np.linalg.norm(y, axis=1, keepdims=True)
    expected = np.concatenate([x, y, np.abs(x - y), x * y, cosine], axis=1)
    found = fused_features([(a, b)])
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_encoders_are_concatenated_in_order_and_may_differ_in_size() -> None:
    pairs = [(unit(4, dim, dim), unit(4, dim, dim + 100)) for dim in (6, 3, 8)]
    found = fused_features(pairs)
    assert found.shape == (4, feature_dim([6, 3, 8]))
    assert torch.equal(found, torch.cat([fused_features([pair]) for pair in pairs], dim=1))


def test_one_pair_and_none() -> None:
    assert fused_features([(unit(1, 3, 0), unit(1, 3, 1))]).shape == (1, 13)
    assert fused_features([(torch.empty(0, 3), torch.empty(0, 3))]).shape == (0, 13)


def test_equal_images_have_cosine_one_and_no_difference() -> None:
    a = unit(3, 16, 0)
    found = fused_features([(a, a)])
    assert torch.equal(found[:, 32:48], torch.zeros(3, 16))
    torch.testing.assert_close(found[:, -1], torch.ones(3))


def test_inputs_are_left_alone_and_carry_no_gradient() -> None:
    a, b = unit(3, 4, 0).requires_grad_(), unit(3, 4, 1)
    before = a.detach().clone(), b.clone()
    assert not fused_features([(a, b)]).requires_grad
    assert torch.equal(a, before[0])
    assert torch.equal(b, before[1])


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match="one n for all encoders"):
        fused_features([(unit(3, 4, 0), unit(3, 4, 1)), (unit(2, 4, 0), unit(2, 4, 1))])
    with pytest.raises(ValueError, match="one n for all encoders"):
        fused_features([(unit(3, 4, 0), unit(3, 5, 0))])
    with pytest.raises(ValueError, match="at least one encoder"):
        fused_features([])


def test_examples() -> None:
    assert doctest.testmod(module) == (0, 2)
