"""A toy decoder whose validation loop logs BCSMetric: a template for a decoder of your own.

    python scripts/example_metric.py --model runs/train/X [--epochs 5] [--pairs 256] [--out DIR] [--loss]

Drawn scenes (a disc on a background) are "shown", and a fixed random projection of what they hold, plus noise, is the
"brain signal". A small network learns to draw the scene back. After each epoch the mean T-PAS and T-SAS of the
validation pairs and the shares of the four regimes are logged and printed, and at the end plotted to DIR/metric.png.
With `--loss` the decoder also learns from the score itself (`bcs.loss`), which is slower.

Takes some seconds on a CPU with a model over `lowlevel`, and up to a minute or two with large encoders.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bcs_lab import BCS, BCSMetric

SIZE, SIGNAL = 32, 48


def scenes(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures ``[n, 3, SIZE, SIZE]`` in [0, 1] and the ten numbers each is drawn from."""
    rng = np.random.default_rng(seed)
    latent = rng.uniform(size=(n, 10)).astype(np.float32)
    rows, columns = np.mgrid[0:SIZE, 0:SIZE] / SIZE
    pictures = np.empty((n, 3, SIZE, SIZE), dtype=np.float32)
    for i, values in enumerate(latent):
        x, y, radius = 0.3 + 0.4 * values[0], 0.3 + 0.4 * values[1], 0.15 + 0.2 * values[2]
        inside = np.hypot(columns - x, rows - y) < radius
        shade = (0.6 + 0.4 * rows * values[9])[None]
        pictures[i] = np.where(inside, values[3:6, None, None], values[6:9, None, None] * shade)
    return torch.from_numpy(pictures), torch.from_numpy(latent)


def signals(latent: Tensor, noise: float, seed: int) -> Tensor:
    """What the "brain" makes of the scenes: ``[n, SIGNAL]``."""
    fixed, varying = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    projection = torch.randn(latent.shape[1], SIGNAL, generator=fixed)
    clean = torch.tanh((latent - 0.5) @ projection)
    return clean + noise * torch.randn(clean.shape, generator=varying)


class ToyDecoder(pl.LightningModule):
    """Signals to pictures, with BCSMetric as a validation metric."""

    def __init__(self, bcs: BCS, use_loss: bool = False) -> None:
        super().__init__()
        self.decoder = nn.Sequential(
            nn.Linear(SIGNAL, 256), nn.GELU(),
            nn.Linear(256, 64 * 8 * 8), nn.GELU(), nn.Unflatten(1, (64, 8, 8)),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1), nn.GELU(),
            nn.ConvTranspose2d(32, 3, 4, stride=2, padding=1), nn.Sigmoid(),
        )  # fmt: skip
        self.metric = BCSMetric(bcs)
        self.bcs = bcs if use_loss else None
        self.history: list[dict[str, Tensor]] = []

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        signal, picture = batch
        drawn = self.decoder(signal)
        loss = nn.functional.mse_loss(drawn, picture)
        if self.bcs is not None:
            loss = loss + 0.1 * self.bcs.loss(drawn, picture)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        signal, picture = batch
        self.metric.update(self.decoder(signal), picture)

    def on_validation_epoch_end(self) -> None:
        # Computed over all processes here, so Lightning has nothing left to reduce.
        values = self.metric.compute()
        self.metric.reset()
        self.log_dict({f"val/{name}": value for name, value in values.items()}, rank_zero_only=True)
        if not self.trainer.sanity_checking:
            self.history.append({name: value.cpu() for name, value in values.items()})
            shares = " ".join(f"{code} {values[code]:.0%}" for code in ("hh", "hl", "lh", "ll"))
            self.print(
                f"epoch {self.current_epoch + 1}: T-PAS {values['t_pas']:.3f}, T-SAS {values['t_sas']:.3f}; {shares}"
            )

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a model or a training run, or hf:user/repo")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=256, help="training pairs; a quarter as many for validation")
    parser.add_argument("--out", type=Path, help="where metric.png goes")
    parser.add_argument("--loss", action="store_true", help="also train on the score itself")
    arguments = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")

    pl.seed_everything(0, verbose=False)
    loaders = []
    for n, seed in ((arguments.pairs, 1), (max(arguments.pairs // 4, 1), 2)):
        pictures, latent = scenes(n, seed)
        data = TensorDataset(signals(latent, noise=0.1, seed=seed), pictures)
        loaders.append(DataLoader(data, batch_size=32, shuffle=seed == 1))
    model = ToyDecoder(BCS.load(arguments.model), arguments.loss)
    trainer = pl.Trainer(
        max_epochs=arguments.epochs,
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=1,
    )
    trainer.fit(model, loaders[0], loaders[1])
    if arguments.out is not None:
        import matplotlib

        matplotlib.use("Agg")
        figure, _ = model.metric.plot(model.history)
        arguments.out.mkdir(parents=True, exist_ok=True)
        figure.savefig(arguments.out / "metric.png", dpi=120)
        print(f"Written: {arguments.out / 'metric.png'}")


if __name__ == "__main__":
    main()
