"""Networks that start from something known, so that few labels need not teach it: trained by gradient as the others."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bcs_lab.heads.base import Head, HeadOutput, Stored, TrainingRows, check_sizes, weighted_sums
from bcs_lab.heads.fitted import Standardiser, with_every_question
from bcs_lab.heads.network import NormLinear


class SimilarityMLPHead(Head):
    """A small network over pair similarities: a line in clipped z-scores plus one hidden layer, into a sigmoid.

    It starts as each question's mean over the training pairs.

    Args:
        in_dim: number of similarities.
        n_questions: outputs.
        hidden: width of the hidden layer.
        dropout: on its way in and out.
        clip: largest z-score.
    """

    FEATURES = ("similarity",)
    PREPARES = True

    def __init__(
        self, in_dim: int, n_questions: int, hidden: int = 64, dropout: float = 0.2, clip: float = 4.0
    ) -> None:
        check_sizes(hidden=hidden, dropout=dropout)
        super().__init__()
        self.standardiser = Standardiser(in_dim, clip)
        self.line = nn.Linear(in_dim, n_questions)
        self.hidden = nn.Sequential(nn.Dropout(dropout), nn.Linear(in_dim, hidden), nn.GELU(), nn.Dropout(dropout))
        self.out = nn.Linear(hidden, n_questions, bias=False)
        nn.init.zeros_(self.line.weight)
        nn.init.zeros_(self.line.bias)
        nn.init.zeros_(self.out.weight)

    @torch.no_grad()
    def prepare(self, rows: TrainingRows) -> None:
        """Mean and scale of the similarities, and each question's mean answer."""
        rows = with_every_question(rows)
        self.standardiser.fit(rows)
        means = np.average(np.nan_to_num(rows.y), axis=0, weights=rows.weight)
        self.line.bias.copy_(torch.logit(torch.from_numpy(means), eps=0.02))

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1]."""
        z = self.standardiser(x)
        return HeadOutput(torch.sigmoid(self.line(z) + self.out(self.hidden(z))))


class CosineResidualHead(Stored, Head):
    """The calibrated cosine plus what a network on the embeddings learns to add to it; that starts as nothing.

    Calibrated: per question the line in the encoders' cosines with the least weighted squared error on the training
    pairs, which stays as it is. The loss is taken before the prediction is clipped to [0, 1], so that a pair beyond the
    ends is still learned from.

    Args:
        in_dim: length of the pair features.
        n_questions: outputs.
        hidden: width of the network.
        dropout: in it.
    """

    FEATURES = ("embedding",)
    PREPARES = True

    columns: Tensor
    slopes: Tensor
    intercepts: Tensor

    def __init__(self, in_dim: int, n_questions: int, hidden: int = 64, dropout: float = 0.2) -> None:
        check_sizes(hidden=hidden, dropout=dropout)
        super().__init__()
        self.in_dim, self.n_questions = in_dim, n_questions
        self.register_buffer("columns", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("slopes", torch.zeros(0, n_questions))
        self.register_buffer("intercepts", torch.zeros(n_questions))
        self.inner = NormLinear(in_dim, hidden)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden, n_questions)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def problems(self) -> list[str]:
        """A line that does not belong to these features or questions."""
        count = len(self.columns)
        shapes = tuple(self.slopes.shape), tuple(self.intercepts.shape)
        if shapes != ((count, self.n_questions), (self.n_questions,)):
            return [f"slopes and intercepts of shapes {shapes} do not fit {count} cosines"]
        if count and not 0 <= int(self.columns.min()) <= int(self.columns.max()) < self.in_dim:
            return [f"cosines at {self.columns.tolist()} of {self.in_dim} features"]
        return []

    def prepare(self, rows: TrainingRows) -> None:
        """Fit the line."""
        rows = with_every_question(rows)
        cosine = np.asarray(rows.x, dtype=np.float64)[:, list(rows.cosines)]
        slopes = np.zeros((cosine.shape[1], self.n_questions))
        intercepts = np.zeros(self.n_questions)
        for question in range(self.n_questions):
            used = rows.weight[:, question] > 0
            c, y, w = cosine[used], rows.y[used, question], rows.weight[used, question]
            mean_c, mean_y, root = np.average(c, axis=0, weights=w), np.average(y, weights=w), np.sqrt(w)
            # the shortest of the best lines, where few pairs leave several
            slopes[:, question] = np.linalg.lstsq(root[:, None] * (c - mean_c), root * (y - mean_y), rcond=1e-6)[0]
            intercepts[question] = mean_y - mean_c @ slopes[:, question]
        self.columns = torch.tensor(rows.cosines, dtype=torch.int64)
        self.slopes, self.intercepts = (torch.from_numpy(part.astype(np.float32)) for part in (slopes, intercepts))

    def forward(self, x: Tensor) -> HeadOutput:
        """[n, in_dim] -> predictions in [0, 1], and what they were before they were clipped."""
        line = x[:, self.columns] @ self.slopes + self.intercepts
        value = line + self.out(self.dropout(F.gelu(self.inner(x))))
        return HeadOutput(value.clamp(0.0, 1.0), value)

    def loss(self, output: HeadOutput, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """See the class; sums as in :meth:`Head.loss`."""
        assert output.logits is not None
        return weighted_sums(weight, (output.logits - target) ** 2)
