"""Figures of a study: what was chosen, how reliable the ratings are, and how they go with the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from bcs_lab.human.study import STRATA, Item, Study
from bcs_lab.report.figures import COLOURS, GRID, INK, MUTED, STYLE, save

#: Colour of each stratum.
STRATUM_COLOURS = dict(zip(STRATA, COLOURS, strict=False))

_DPI = 150
_SIDE, _GAP, _CARD_GAP, _MARGIN, _PER_LINE = 150, 6, 34, 40, 6


def overview(study: Study, folder: Path) -> Path:
    """Draw ``overview.png``: the pairs of every stratum with their scores. Not for raters."""
    card = 2 * _SIDE + _GAP
    groups = [(name, [item for item in study.items if item.stratum == name]) for name in STRATA]
    groups = [(name, sorted(items, key=lambda item: item.pair_id)) for name, items in groups if items]
    columns = min(_PER_LINE, max(len(items) for _, items in groups))
    lines = sum(-(-len(items) // columns) for _, items in groups)
    width = max(2 * _MARGIN + columns * card + (columns - 1) * _CARD_GAP, 900)
    height = 120 + lines * (_SIDE + 70) + len(groups) * 46 + 20
    with rc_context(STYLE):
        figure = Figure(figsize=(width / _DPI, height / _DPI), facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.axis("off")
        _head(axes, study, width)
        y = 120.0
        for name, items in groups:
            axes.add_patch(_bar(_MARGIN, y - 9, STRATUM_COLOURS[name]))
            axes.text(_MARGIN + 16, y, f"{name.replace('_', ' ')} ({len(items)})", size=9, weight="bold", va="center")
            axes.text(width - _MARGIN, y, study.looks_for(name), size=7.5, color=MUTED, va="center", ha="right")
            y += 26
            for start in range(0, len(items), columns):
                for column, item in enumerate(items[start : start + columns]):
                    _card(axes, item, folder, _MARGIN + column * (card + _CARD_GAP), y)
                y += _SIDE + 70
            y += 20
    return save(figure, folder / "overview.png")


def _bar(x: float, y: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x, y), 7, 18, facecolor=colour, edgecolor="none")


def _head(axes: Axes, study: Study, width: int) -> None:
    stimuli = len({item.stimulus for item in study.items})
    axes.text(_MARGIN, 40, f"Study of {len(study.items)} pairs", size=15, weight="bold", va="center")
    source = study.scores.get("source", "?")
    text = (
        f"corpus {study.corpus}, {stimuli} reference pictures, {study.per_stimulus} reconstructions each; scores: "
        f"{source}; joint coherence: {study.coherence}; for those who run the study, not for raters"
    )
    axes.text(_MARGIN, 74, text, size=7.5, color=MUTED, va="center")
    if study.simulated:
        axes.text(
            width - _MARGIN, 40, "SIMULATED TEACHERS", size=8, weight="bold", color="white", ha="right", va="center",
            bbox={"boxstyle": "round,pad=0.4", "facecolor": "#9a3412", "edgecolor": "none"},
        )  # fmt: skip


def _card(axes: Axes, item: Item, folder: Path, x: float, y: float) -> None:
    from matplotlib.patches import Rectangle

    for k, name in enumerate((item.reference, item.reconstruction)):
        left = x + k * (_SIDE + _GAP)
        axes.add_patch(Rectangle((left, y), _SIDE, _SIDE, facecolor="#f5f6f8", edgecolor=GRID, lw=0.8))
        with Image.open(folder / name) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        scale = _SIDE / max(pixels.shape[:2])
        high, wide = scale * pixels.shape[0], scale * pixels.shape[1]
        x0, y0 = left + (_SIDE - wide) / 2, y + (_SIDE - high) / 2
        axes.imshow(pixels, extent=(x0, x0 + wide, y0 + high, y0), aspect="auto", zorder=2)
    who = f"{item.concept.replace('_', ' ')} · {item.method}"
    axes.text(x, y + _SIDE + 14, who if len(who) <= 34 else who[:33] + "…", size=6.5, va="center")
    scores = f"T-PAS {item.t_pas:.2f}   T-SAS {item.t_sas:.2f}   joint {item.coherence:.2f}"
    axes.text(x, y + _SIDE + 34, scores, size=6.5, color=MUTED, va="center")


def reliability(rows: Sequence[Mapping[str, Any]], weights: str, caption: str = "") -> Figure:
    """Mean kappa and alpha of each group of questions with their intervals; the paper's values as diamonds.

    Args:
        rows: the groups of ``study_results.json``.
        weights: of kappa, for its label.
        caption: what was rated, in small print.
    """
    kappa = "Cohen's κ, mean over pairs of raters" + ("" if weights == "none" else f" ({weights} weights)")
    columns = (("kappa_mean", kappa, "kappa"), ("alpha", "Krippendorff's α", "alpha"))
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 1.5 + 0.55 * len(rows)), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (key, title, short) in zip(panels, columns, strict=True):
            axes.axvline(0, color=MUTED, lw=0.8)
            for at, row in enumerate(reversed(rows)):
                _estimate(axes, row, key, short, at)
            axes.set_title(title + (f" ({rows[0]['alpha_level']})" if short == "alpha" and rows else ""))
            axes.set_xlim(right=1.05)
            axes.grid(axis="y", visible=False)
        panels[0].set_yticks(range(len(rows)), [str(row["group"]) for row in reversed(rows)], color=INK)
        panels[0].set_ylim(-0.6, len(rows) - 0.4)
        handles = [
            Line2D([], [], marker="o", color=COLOURS[0], lw=1.6, label="this study, 95 % interval over stimuli"),
            Line2D([], [], marker="D", color=MUTED, lw=0, ms=5, label="the paper (18 raters, EEG pairs)"),
        ]
        figure.legend(handles=handles, loc="outside upper right", ncols=2, fontsize=8)
        _caption(figure, caption)
    return figure


def _estimate(axes: Axes, row: Mapping[str, Any], key: str, short: str, at: int) -> None:
    low, high = row.get(f"{short}_lo"), row.get(f"{short}_hi")
    if low is not None and high is not None:
        axes.plot([low, high], [at, at], color=COLOURS[0], lw=1.6, alpha=0.5)
    if row.get(key) is not None:
        axes.plot([row[key]], [at], "o", color=COLOURS[0], ms=6)
    published = (row.get("paper") or {}).get(key)
    if published is not None:
        axes.plot([published], [at - 0.22], "D", color=MUTED, ms=4.5)


def ratings_against_scores(
    items: Sequence[Mapping[str, Any]], panels: Sequence[tuple[str, str, str, str]], caption: str = ""
) -> Figure:
    """Mean rating of every pair against a score, one panel a group of questions, coloured by stratum.

    Args:
        items: the pairs of ``study_results.json``.
        panels: group, key of the score, name of the score, and a line under the title.
        caption: what was rated, in small print.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(3.7 * max(1, len(panels)), 4.8), layout="constrained")
        for axes, (group, key, name, note) in zip(
            np.atleast_1d(figure.subplots(1, max(1, len(panels)), sharey=True)), panels, strict=False
        ):
            for stratum, colour in STRATUM_COLOURS.items():
                shown = [
                    item for item in items if item["stratum"] == stratum and item.get(f"rated_{group}") is not None
                ]
                x, y = [item[key] for item in shown], [item[f"rated_{group}"] for item in shown]
                axes.plot(x, y, "o", ms=7, color=colour, alpha=0.85, markeredgecolor="white", markeredgewidth=0.6)
            axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal", xlabel=name)
            axes.set_title(f"{group}\n{note}")
        figure.axes[0].set_ylabel("mean rating")
        handles = [
            Line2D([], [], marker="o", lw=0, ms=6, color=colour, label=name.replace("_", " "))
            for name, colour in STRATUM_COLOURS.items()
            if any(item["stratum"] == name for item in items)
        ]
        figure.legend(handles=handles, loc="outside upper right", ncols=max(1, len(handles)), fontsize=8)
        _caption(figure, caption)
    return figure


def _caption(figure: Figure, text: str) -> None:
    if text:
        figure.supxlabel(text, fontsize=7.5, color=MUTED, x=0.02, ha="left")
