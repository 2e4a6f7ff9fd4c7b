from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bcs_lab.errors import ConfigError
from bcs_lab.heads import HEADS, NormLinear, build_head, soft_levels

NETWORKS = [name for name, head in HEADS.items() if not head.FITS_ITSELF]
LEVELS = torch.tensor([0.0, 0.5, 1.0])


def inputs(n: int = 9, dim: int = 21, questions: int = 5, seed: int = 0) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator)
    target = torch.randint(0, 5, (n, questions), generator=generator) / 4
    weight = 0.75 + 0.25 * torch.rand(n, questions, generator=generator)
    weight[torch.rand(n, questions, generator=generator) < 0.2] = 0.0
    return x, target, weight


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_continuous_has_the_published_number_of_parameters() -> None:
    assert count(build_head("continuous", 9219, 12)) == 6_848_530


def test_continuous_is_the_published_architecture() -> None:
    """The layers of Table 13 in plain PyTorch, with the same weights, give the same numbers and gradients."""
    torch.manual_seed(0)
    head = build_head("continuous", 21, 5, hidden=8, dropout=0.0)
    for parameter in head.parameters():  # away from ones and zeros, so that every part matters
        nn.init.normal_(parameter, std=0.5)
    norm, linear = nn.LayerNorm(21), nn.Linear(21, 8)
    blocks = [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2)]
    norm2, out = nn.LayerNorm(8), nn.Linear(8, 5)
    plain = nn.ModuleList([norm, linear, *blocks, norm2, out])
    for mine, theirs in zip(head.parameters(), plain.parameters(), strict=True):
        theirs.data.copy_(mine.data)
    x, target, weight = inputs()
    h = F.gelu(linear(norm(x)))
    for block in blocks:
        h = h + block(h)
    expected = torch.sigmoid(out(norm2(h)))
    output = head(x)
    torch.testing.assert_close(output.prediction, expected)
    numerator, denominator = head.loss(output, target, weight)
    (numerator / denominator).backward()
    ((weight * (expected - target) ** 2).sum() / weight.sum()).backward()
    for mine, theirs in zip(head.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_initialisation_is_pytorchs() -> None:
    torch.manual_seed(3)
    head = build_head("continuous", 21, 5, hidden=8)
    torch.manual_seed(3)
    linear = nn.Linear(21, 8)
    assert torch.equal(head.trunk[0].linear.weight, linear.weight)
    assert torch.equal(head.trunk[0].norm.weight, torch.ones(21))


@pytest.mark.parametrize("shape", [(1, 3, 2), (7, 70, 45)])
def test_norm_linear_has_the_gradients_of_its_two_layers(shape: tuple[int, int, int]) -> None:
    n, wide, narrow = shape
    torch.manual_seed(0)
    layer = NormLinear(wide, narrow).double()
    nn.init.normal_(layer.norm.weight)
    layer.norm.weight.data[0] = 0.0
    nn.init.normal_(layer.norm.bias)
    x = torch.randn(n, wide, dtype=torch.float64)
    parameters = list(layer.parameters())
    mine = torch.autograd.grad(layer(x).pow(3).sum(), parameters)
    theirs = torch.autograd.grad(layer.linear(layer.norm(x)).pow(3).sum(), parameters)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)
    x.requires_grad_()
    assert torch.autograd.grad(layer(x).sum(), x)[0].shape == x.shape


def test_mlp_is_the_authors_first() -> None:
    head = build_head("mlp", 3073, 12)
    expected = (3073 * 512 + 512) + 2 * 512 + (512 * 256 + 256) + 2 * 256 + (256 * 12 + 12)
    assert count(head) == expected
    kinds = [type(layer).__name__ for layer in head.layers]
    assert kinds == ["Linear", "LayerNorm", "GELU", "Dropout"] * 2 + ["Linear"]
    assert head.layers[3].p == 0.1


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("n", [1, 9])
def test_every_head_predicts_in_range_and_ignores_masked_cells(name: str, n: int) -> None:
    torch.manual_seed(0)
    head = build_head(name, 21, 5, hidden=8).eval()
    x, target, weight = (part[:n] for part in inputs())
    weight[0, :2] = 0.0
    output = head(x)
    assert output.prediction.shape == (n, 5)
    assert ((output.prediction >= 0) & (output.prediction <= 1)).all()
    numerator, denominator = head.loss(output, target, weight)
    torch.testing.assert_close(denominator, weight.sum())
    other = target.clone()
    other[0, :2] = 1 - other[0, :2]
    torch.testing.assert_close(head.loss(output, other, weight)[0], numerator)
    nothing = head.loss(output, target, torch.zeros_like(weight))
    assert nothing[0].item() == nothing[1].item() == 0.0
    numerator.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in head.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_sums_can_be_pooled_over_batches(name: str) -> None:
    torch.manual_seed(0)
    head = build_head(name, 21, 5, hidden=8).eval()
    x, target, weight = inputs()
    whole = head.loss(head(x), target, weight)
    parts = [head.loss(head(x[i]), target[i], weight[i]) for i in (slice(0, 4), slice(4, 9))]
    torch.testing.assert_close(parts[0][0] + parts[1][0], whole[0])
    torch.testing.assert_close(parts[0][1] + parts[1][1], whole[1])


@pytest.mark.parametrize("name", NETWORKS)
def test_every_head_learns(name: str) -> None:
    torch.manual_seed(0)
    head = build_head(name, 21, 5, hidden=16, dropout=0.0)
    x, target, _ = inputs(n=32)
    weight = torch.ones_like(target)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
    errors = []
    for _ in range(150):
        output = head(x)
        errors.append((output.prediction - target).abs().mean().item())
        numerator, denominator = head.loss(output, target, weight)
        optimizer.zero_grad()
        (numerator / denominator).backward()
        optimizer.step()
    assert errors[-1] < 0.5 * errors[0]


@pytest.mark.parametrize(
    ("target", "mass"),
    [
        (0.0, (1, 0, 0)),
        (0.25, (0.5, 0.5, 0)),
        (0.5, (0, 1, 0)),
        (0.75, (0, 0.5, 0.5)),
        (1.0, (0, 0, 1)),
        (0.1, (0.8, 0.2, 0)),
    ],
)
def test_fractional_medians_split_their_mass(target: float, mass: tuple[float, ...]) -> None:
    found = soft_levels(torch.tensor([[target]]))
    torch.testing.assert_close(found, torch.tensor([[mass]], dtype=torch.float32))
    assert float(found @ LEVELS) == pytest.approx(target)


def test_ordinal_loss_by_hand() -> None:
    head = build_head("ordinal", 21, 5, hidden=8).eval()
    x, target, weight = inputs()
    output = head(x)
    probability = output.logits.softmax(-1).detach().numpy().astype(np.float64)
    np.testing.assert_allclose(output.prediction.detach(), probability @ [0, 0.5, 1], atol=1e-6)
    total = 0.0
    for i in range(9):
        for q in range(5):
            z, p = float(target[i, q]), probability[i, q]
            low = min(math.floor(2 * z), 1)
            share = 2 * z - low
            entropy = -(1 - share) * math.log(p[low]) - share * math.log(p[low + 1])
            total += float(weight[i, q]) * ((p @ [0, 0.5, 1] - z) ** 2 + 0.35 * entropy)
    assert float(head.loss(output, target, weight)[0].detach()) == pytest.approx(total, rel=1e-5)


def test_prototype_head_by_hand() -> None:
    torch.manual_seed(0)
    head = build_head("prototype", 21, 5, hidden=8).eval()
    assert head.prototypes.shape == (5, 3, 8)
    assert float(head.prototypes.detach().std()) == pytest.approx(0.02, rel=0.3)
    assert torch.equal(head.bias, torch.zeros(5, 3))
    nn.init.normal_(head.bias)
    x, target, weight = inputs()
    h = head.trunk(x)
    h = h / h.norm(dim=1, keepdim=True)
    unit = head.prototypes / head.prototypes.norm(dim=-1, keepdim=True)
    logits = torch.stack([math.e * h @ unit[q].T + head.bias[q] for q in range(5)], dim=1)
    expected = 0.75 * logits.softmax(-1) @ LEVELS + 0.25 * torch.sigmoid(head.value(h))
    output = head(x)
    torch.testing.assert_close(output.prediction, expected)
    classes = {0.0: 0, 0.25: 0, 0.5: 1, 0.75: 2, 1.0: 2}  # halves to even
    total = 0.0
    for i in range(9):
        for q in range(5):
            entropy = -float(logits[i, q].log_softmax(-1)[classes[float(target[i, q])]])
            total += float(weight[i, q]) * (float(expected[i, q] - target[i, q]) ** 2 + 0.35 * entropy)
    assert float(head.loss(output, target, weight)[0]) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(("temperature", "scale"), [(-3.0, 1.0), (1.0, math.e), (10.0, 50.0)])
def test_prototype_scale_is_clamped(temperature: float, scale: float) -> None:
    head = build_head("prototype", 21, 5, hidden=8).eval()
    x = inputs()[0]
    head.temperature.data.fill_(math.log(2.0))
    base = head(x).logits / 2.0
    head.temperature.data.fill_(temperature)
    torch.testing.assert_close(head(x).logits, base * scale)


def test_coral_by_hand() -> None:
    torch.manual_seed(0)
    head = build_head("coral", 21, 5, hidden=8).eval()
    nn.init.normal_(head.gap, std=3.0)
    thresholds = head.thresholds()
    assert (thresholds[:, 1] > thresholds[:, 0]).all()
    x, target, weight = inputs()
    score = head.trunk(x) @ head.score.weight.T
    above_no = torch.sigmoid(score - thresholds[:, 0])
    above_somewhat = torch.sigmoid(score - thresholds[:, 1])
    assert (above_no >= above_somewhat).all()
    output = head(x)
    torch.testing.assert_close(output.prediction, (above_no + above_somewhat) / 2)
    one = F.binary_cross_entropy(above_no, (2 * target).clamp(0, 1), reduction="none")
    two = F.binary_cross_entropy(above_somewhat, (2 * target - 1).clamp(0, 1), reduction="none")
    expected = (weight * (one + two) / 2).sum()
    torch.testing.assert_close(head.loss(output, target, weight)[0], expected)


def test_coral_starts_with_thresholds_at_one_half() -> None:
    thresholds = build_head("coral", 21, 5, hidden=8).thresholds()
    torch.testing.assert_close(thresholds, torch.tensor([[-0.5, 0.5]]).expand(5, 2), atol=1e-4, rtol=0)


def test_which_heads_snap() -> None:
    assert {name for name, head in HEADS.items() if head.snap} == {"ordinal", "prototype"}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("linear", {}, "head=linear: expected one of continuous, ordinal, prototype, coral, mlp"),
        ("continuous", {"hiden": 3}, r"head\.hiden; it takes head\.hidden, head\.blocks, head\.dropout"),
        ("mlp", {"blocks": 2}, r"head=mlp: unknown settings head\.blocks"),
        ("continuous", {"in_dim2": 3}, "unknown"),
        ("continuous", {"hidden": 0}, r"head\.hidden=0"),
        ("ordinal", {"blocks": -1}, r"head\.blocks=-1"),
        ("coral", {"dropout": 1.0}, r"head\.dropout=1\.0"),
        ("mlp", {"hidden": "512"}, r"head\.hidden=512"),
    ],
)
def test_settings_are_checked(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_head(name, 21, 5, **settings)


def test_no_residual_blocks() -> None:
    assert build_head("continuous", 21, 5, hidden=8, blocks=0)(inputs()[0]).prediction.shape == (9, 5)
