"""Figures of a run and of a comparison. Each function returns a matplotlib figure; :func:`save` writes it."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bcs_lab.files import replacing
from bcs_lab.report.table import PAPER, RUN, Row

# Okabe and Ito's palette: told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
INK, MUTED, GRID = "#1f2430", "#6b7280", "#e5e7eb"
STYLE: Any = {  # keys are checked by matplotlib itself
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "bcs_lab",
}


def save(figure: Figure, path: Path) -> Path:
    """Write a PNG in one step."""
    with replacing(path) as temporary, warnings.catch_warnings():
        # A concept in a script the font lacks is drawn as boxes; one warning a character tells nobody anything.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .*missing from font")
        figure.savefig(
            temporary, dpi=150, format="png", metadata={"Software": None}, bbox_inches="tight", pad_inches=0.15
        )
    return path


def svg(figure: Figure) -> str:
    """The figure as an ``<svg>`` element to stand inside a page, without ids that could clash or dates."""
    buffer = io.StringIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), count=1, flags=re.DOTALL)


def training_curves(
    histories: Mapping[int, Sequence[Mapping[str, float]]], best_epochs: Mapping[int, int], caption: str = ""
) -> Figure:
    """Loss against epoch, one colour a member.

    Args:
        histories: seed -> one mapping an epoch with ``epoch``, ``train_loss`` and ``val_loss``.
        best_epochs: seed -> epoch whose weights were kept.
        caption: what was trained, in small print.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(7, 3.8), layout="constrained")
        axes = figure.subplots()
        for index, (seed, history) in enumerate(histories.items()):
            colour = COLOURS[index % len(COLOURS)]
            epochs = [row["epoch"] for row in history]
            axes.plot(epochs, [row["train_loss"] for row in history], color=colour, lw=1, ls=":", alpha=0.8)
            axes.plot(epochs, [row["val_loss"] for row in history], color=colour, lw=1.4, label=f"seed {seed}")
            kept = [row["val_loss"] for row in history if row["epoch"] == best_epochs[seed]]
            axes.plot([best_epochs[seed]] * len(kept), kept, "o", color=colour, ms=5)
        axes.set(xlabel="epoch", ylabel="weighted loss")
        axes.set_title("Validation loss (solid), training loss (dotted), weights kept (dot)")
        axes.legend(ncols=2, fontsize=9)
        _caption(figure, caption)
    return figure


def prediction_against_consensus(
    target: Mapping[str, np.ndarray],
    prediction: Mapping[str, np.ndarray],
    spread: Mapping[str, np.ndarray],
    notes: Mapping[str, str],
    caption: str = "",
) -> Figure:
    """Predicted against consensus score of the test pairs, one panel an axis.

    Args:
        target: axis name (``T-PAS``, ``T-SAS``) -> consensus scores, 0 to 1, NaN where undefined.
        prediction: axis name -> predicted scores.
        spread: axis name -> standard deviation over the members, drawn as bars.
        notes: axis name -> line under the panel's title.
        caption: what was trained, in small print.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(4.1 * max(1, len(target)), 4.2), layout="constrained")
        panels = np.atleast_1d(figure.subplots(1, len(target)))
        for index, (axes, name) in enumerate(zip(panels, target, strict=True)):
            colour = COLOURS[index]
            axes.plot([0, 1], [0, 1], color=MUTED, lw=1, ls="--")
            axes.errorbar(
                target[name], prediction[name], yerr=spread[name], fmt="o", ms=4, lw=0.8, color=colour, alpha=0.65
            )
            axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal", xlabel=f"consensus {name}")
            axes.set_ylabel(f"predicted {name}")
            axes.set_title(f"{name}\n{notes[name]}")
        _caption(figure, caption)
    return figure


def _caption(figure: Figure, text: str) -> None:
    if text:
        figure.supxlabel(text, fontsize=7.5, color=MUTED, x=0.02, ha="left")


def comparison(rows: Sequence[Row]) -> Figure:
    """Pearson correlation with the consensus of both axes, with intervals; the paper's rows in grey beneath."""
    shown = [row for row in rows if row.values.get("pas_r") is not None or row.values.get("sas_r") is not None]
    with rc_context(STYLE):
        figure = Figure(figsize=(11, 1.3 + 0.32 * max(1, len(shown))), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, column, name in zip(panels, ("pas_r", "sas_r"), ("T-PAS", "T-SAS"), strict=True):
            for index, row in enumerate(shown):
                _dot(axes, row, column, len(shown) - 1 - index)
            axes.set_title(name)
            axes.set_xlabel("Pearson correlation with the consensus")
            axes.grid(axis="y", visible=False)
        labels = [row.label if len(row.label) <= 64 else f"{row.label[:63]}…" for row in reversed(shown)]
        panels[0].set_yticks(range(len(shown)), labels, color=INK)
        panels[0].set_ylim(-0.7, len(shown) - 0.3)
    return figure


def _dot(axes: Axes, row: Row, column: str, height: int) -> None:
    value = row.values.get(column)
    if value is None:
        return
    colour = {RUN: COLOURS[0], PAPER: MUTED}.get(row.kind, COLOURS[5])
    bounds = row.ci95.get(column)
    if bounds:
        axes.plot(list(bounds), [height, height], color=colour, lw=1.6, alpha=0.5)
    axes.plot([value], [height], "o" if row.kind == RUN else "D", color=colour, ms=6 if row.kind == RUN else 4.5)
