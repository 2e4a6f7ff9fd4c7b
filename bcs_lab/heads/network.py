"""The paper's networks and their relatives (Section 5.2, Appendix 0.C.3): heads that are trained by gradient.

All layers keep PyTorch's default initialisation.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bcs_lab.heads.base import Head, HeadOutput, check_sizes, weighted_sums

N_LEVELS = 3


class _NormLinear(torch.autograd.Function):
    """``linear(layer_norm(x))`` for an ``x`` that needs no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, scale, shift, weight)
        ctx.eps = eps
        return F.linear(F.layer_norm(x, scale.shape, scale, shift, eps), weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, shift, weight = ctx.saved_tensors
        (grad,) = gradients
        for_bias = grad.sum(dim=0)
        for_weight = grad.T @ F.layer_norm(x, scale.shape, eps=ctx.eps)  # as if the norm had no scale and shift
        # row blocks stay in the cache; one product of this size would be 19 MB at 9,219 features
        blocks = zip(weight.split(32), for_weight.split(32), strict=True)
        for_scale = torch.stack([(a * b).sum(dim=0) for a, b in blocks]).sum(dim=0)
        for_weight = for_weight.mul_(scale).addr_(for_bias, shift)
        return None, for_scale, for_bias @ weight, for_weight, for_bias, None


class NormLinear(nn.Module):
    """``Linear(LayerNorm(x))`` for the wide pair features.

    Same parameters, function and gradients as the two layers. But the gradient of the norm's scale follows from that of
    the linear weight, so the gradient of the normalised input, a third of the arithmetic of this layer, is never
    formed. At 9,219 features this layer is most of the cost of training.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(in_features)
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x: Tensor) -> Tensor:
        """[n, in_features] -> [n, out_features]."""
        if x.requires_grad or torch.is_autocast_enabled(x.device.type) or not torch.is_grad_enabled():
            return self.linear(self.norm(x))
        parameters = self.norm.weight, self.norm.bias, self.linear.weight, self.linear.bias
        return _NormLinear.apply(x, *parameters, self.norm.eps)


class ResidualBlock(nn.Module):
    """``x + [LayerNorm, Linear(d, 2d), GELU, Dropout, Linear(2d, d), Dropout](x)``."""

    def __init__(self, dim: int, dropout: float, expansion: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(dim),
            nn.Linear(dim, expansion * dim),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(expansion * dim, dim),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[n, dim] -> [n, dim]."""
        return x + self.layers(x)


class Trunk(nn.Sequential):
    """The paper's residual MLP up to its last norm: [n, in_dim] -> [n, hidden] (Table 13)."""

    def __init__(self, in_dim: int, hidden: int, blocks: int, dropout: float) -> None:
        check_sizes(hidden=hidden, blocks=blocks, dropout=dropout)
        super().__init__(
            NormLinear(in_dim, hidden),
            nn.GELU(),
            *(ResidualBlock(hidden, dropout) for _ in range(blocks)),
            nn.LayerNorm(hidden),
        )


class ContinuousHead(Head):
    """The paper's BCS: residual MLP with sigmoid outputs, weighted squared error (eq. 26, Table 13).

    Args:
        in_dim: length of the pair features.
        n_questions: outputs.
        hidden: width of the trunk.
        blocks: residual blocks.
        dropout: in the residual blocks.
    """

    def __init__(self, in_dim: int, n_questions: int, hidden: int = 512, blocks: int = 2, dropout: float = 0.2) -> None:
        super().__init__()
        self.trunk = Trunk(in_dim, hidden, blocks, dropout)
        self.out = nn.Linear(hidden, n_questions)

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1]."""
        return HeadOutput(torch.sigmoid(self.out(self.trunk(x))))


class LevelHead(Head):
    """Base of the heads with three levels a question: a weighted sum of squared error and cross-entropy."""

    snap = True

    def __init__(self, mse_weight: float, ce_weight: float) -> None:
        super().__init__()
        self.mse_weight, self.ce_weight = mse_weight, ce_weight

    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        """[n, n_questions, 3] level logits and [n, n_questions] targets -> [n, n_questions]."""
        raise NotImplementedError

    def loss(self, output: HeadOutput, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See the class; sums as in :meth:`Head.loss`."""
        assert output.logits is not None
        square = (output.prediction - target) ** 2
        cross_entropy = self.cross_entropy(output.logits, target)
        return weighted_sums(weight, self.mse_weight * square + self.ce_weight * cross_entropy)


class OrdinalHead(LevelHead):
    """Three ordered levels a question on the same trunk; the prediction is the expected level (Sections 5.4, 5.5).

    The loss is ``mse_weight`` * squared error + ``ce_weight`` * cross-entropy (1.0 and 0.35 in Table 13). A median
    between two levels splits its mass between them: .25 is (.5, .5, 0).

    Args:
        in_dim: length of the pair features.
        n_questions: outputs.
        hidden: width of the trunk.
        blocks: residual blocks.
        dropout: in the residual blocks.
        mse_weight: of the squared error.
        ce_weight: of the cross-entropy.
    """

    def __init__(
        self,
        in_dim: int,
        n_questions: int,
        hidden: int = 512,
        blocks: int = 2,
        dropout: float = 0.2,
        mse_weight: float = 1.0,
        ce_weight: float = 0.35,
    ) -> None:
        super().__init__(mse_weight, ce_weight)
        self.trunk = Trunk(in_dim, hidden, blocks, dropout)
        self.out = nn.Linear(hidden, N_LEVELS * n_questions)

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1] and level logits."""
        logits = self.out(self.trunk(x)).unflatten(1, (-1, N_LEVELS))
        return HeadOutput(_expected_level(logits), logits)

    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        """Against the mass of each target on the levels."""
        return -(soft_levels(target) * logits.log_softmax(dim=-1)).sum(dim=-1)


class PrototypeHead(LevelHead):
    """The authors' ordinal prototype head (their published code; the paper does not describe it).

    Three learned prototypes a question, compared with the normalised trunk output by a scaled cosine. The prediction is
    .75 of the expected level and .25 of a plain sigmoid output. Unlike :class:`OrdinalHead`, its cross-entropy takes
    one class a label, ``round(2 * median)`` with halves to even, so .25 counts as "no" and .75 as "yes".

    Args:
        in_dim: length of the pair features.
        n_questions: outputs.
        hidden: width of the trunk.
        blocks: residual blocks.
        dropout: in the residual blocks.
        mse_weight: of the squared error.
        ce_weight: of the cross-entropy.
    """

    ordinal_share = 0.75

    def __init__(
        self,
        in_dim: int,
        n_questions: int,
        hidden: int = 512,
        blocks: int = 2,
        dropout: float = 0.2,
        mse_weight: float = 1.0,
        ce_weight: float = 0.35,
    ) -> None:
        super().__init__(mse_weight, ce_weight)
        self.trunk = Trunk(in_dim, hidden, blocks, dropout)
        self.prototypes = nn.Parameter(0.02 * torch.randn(n_questions, N_LEVELS, hidden))
        self.bias = nn.Parameter(torch.zeros(n_questions, N_LEVELS))
        self.temperature = nn.Parameter(torch.tensor(1.0))
        self.value = nn.Linear(hidden, n_questions)

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1] and level logits."""
        hidden = F.normalize(self.trunk(x), dim=-1)
        prototypes = F.normalize(self.prototypes, dim=-1)
        scale = self.temperature.exp().clamp(1.0, 50.0)
        logits = scale * torch.einsum("nd,qkd->nqk", hidden, prototypes) + self.bias
        value = torch.sigmoid(self.value(hidden))
        mixed = self.ordinal_share * _expected_level(logits) + (1.0 - self.ordinal_share) * value
        return HeadOutput(mixed, logits)

    def cross_entropy(self, logits: Tensor, target: Tensor) -> Tensor:
        """Against the one level a target is rounded to."""
        level = (2.0 * target).round().clamp(0, N_LEVELS - 1).long()  # torch rounds halves to even
        return F.cross_entropy(logits.flatten(0, 1), level.flatten(), reduction="none").view_as(target)


class CoralHead(Head):
    """Cumulative link: one score a question and two ordered thresholds (after CORAL, Cao et al. 2020).

    Models P(y > no) and P(y > somewhat); the second threshold lies above the first by construction, so the
    probabilities cannot cross. A median z asks for P(y > no) = clip(2z, 0, 1) and P(y > somewhat) = clip(2z - 1, 0,
    1) by binary cross-entropy. The prediction is the mean of the two, which is the expected level.

    Args:
        in_dim: length of the pair features.
        n_questions: outputs.
        hidden: width of the trunk.
        blocks: residual blocks.
        dropout: in the residual blocks.
    """

    def __init__(self, in_dim: int, n_questions: int, hidden: int = 512, blocks: int = 2, dropout: float = 0.2) -> None:
        super().__init__()
        self.trunk = Trunk(in_dim, hidden, blocks, dropout)
        self.score = nn.Linear(hidden, n_questions, bias=False)  # the first threshold is the bias
        self.threshold = nn.Parameter(torch.full((n_questions,), -0.5))
        self.gap = nn.Parameter(torch.full((n_questions,), 0.5413))  # softplus gives 1, so it starts at -.5 and .5

    def thresholds(self) -> Tensor:
        """[n_questions, 2], ascending."""
        return torch.stack([self.threshold, self.threshold + F.softplus(self.gap)], dim=-1)

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1] and threshold logits."""
        logits = self.score(self.trunk(x)).unsqueeze(-1) - self.thresholds()
        return HeadOutput(torch.sigmoid(logits).mean(dim=-1), logits)

    def loss(self, output: HeadOutput, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See the class; sums as in :meth:`Head.loss`, a cell being the mean over both thresholds."""
        assert output.logits is not None
        above = torch.stack([(2.0 * target).clamp(0, 1), (2.0 * target - 1.0).clamp(0, 1)], dim=-1)
        cross_entropy = F.binary_cross_entropy_with_logits(output.logits, above, reduction="none").mean(dim=-1)
        return weighted_sums(weight, cross_entropy)


class MLPHead(Head):
    """The authors' first, plain MLP, taken as the SigLIP baseline of Table 6 (their published v1 code).

    Args:
        in_dim: length of the pair features.
        n_questions: outputs.
        hidden: width of the first layer; the second has half of it.
        dropout: after both layers.
    """

    def __init__(self, in_dim: int, n_questions: int, hidden: int = 512, dropout: float = 0.1) -> None:
        check_sizes(hidden=hidden, dropout=dropout)
        super().__init__()
        half = max(hidden // 2, 1)
        self.layers = nn.Sequential(
            nn.Linear(in_dim, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, half),
            nn.LayerNorm(half),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(half, n_questions),
        )

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1]."""
        return HeadOutput(torch.sigmoid(self.layers(x)))


def soft_levels(target: Tensor) -> Tensor:
    """Mass of each target on the three levels, split linearly between the two nearest: [...] -> [..., 3]."""
    position = (2.0 * target).clamp(0, N_LEVELS - 1).unsqueeze(-1)
    levels = torch.arange(N_LEVELS, dtype=target.dtype, device=target.device)
    return (1.0 - (position - levels).abs()).clamp_min(0.0)


def _expected_level(logits: Tensor) -> Tensor:
    values = torch.linspace(0.0, 1.0, N_LEVELS, dtype=logits.dtype, device=logits.device)
    return logits.softmax(dim=-1) @ values
