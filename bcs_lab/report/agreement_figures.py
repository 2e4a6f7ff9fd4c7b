"""Figures of the agreement of teachers: Figure 3's heat maps, operating points, questions, influence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bcs_lab.files import write_text
from bcs_lab.report.figures import COLOURS, INK, MUTED, STYLE, save, svg
from bcs_lab.results import AXES

Result = Mapping[str, Any]

#: White to the blue of the palette; what is undefined stays white with a dash.
_BLUES = LinearSegmentedColormap.from_list("agreement", ["#ffffff", "#cfe5f3", COLOURS[0], "#00324f"])

#: Down and up, white between.
_SIGNED = LinearSegmentedColormap.from_list("shift", [COLOURS[1], "#ffffff", COLOURS[0]])

#: No to yes, as on the page.
_SCALE = LinearSegmentedColormap.from_list("answers", [COLOURS[1], "#F0E442", COLOURS[0]])

_PAPER = "the paper's teachers on its corpus"


def write_figures(result: Result, out: Path) -> list[Path]:
    """Write every figure as PNG and SVG, and return their paths."""
    drawn = {"teachers": teachers(result)}
    if result["pairwise"]:
        drawn |= {"agreement": heat_maps(result), "questions": questions(result), "influence": influence(result)}
    paths = []
    for name, figure in drawn.items():
        paths.append(save(figure, out / f"{name}.png"))
        paths.append(out / f"{name}.svg")
        write_text(paths[-1], svg(figure))
    return paths


def heat_maps(result: Result) -> Figure:
    """Weighted kappa and rationale similarity of every two teachers, as in Figure 3."""
    names = result["teachers"]
    spoken = result["rationale_similarity"]
    side = 1.5 + 0.75 * len(names)
    with rc_context(STYLE):
        figure = Figure(figsize=(2 * side + 0.6, side + 0.9), layout="constrained")
        left, right = figure.subplots(1, 2)
        paper = result["paper"] or {}
        _heat(left, names, result["weighted_kappa"], "Answers: weighted κ", paper.get("weighted_kappa"))
        if spoken is None:
            right.axis("off")
            text = f"No rationale similarity:\n{_folded(result['rationales']['reason'], 44)}"
            right.text(0.5, 0.5, text, ha="center", va="center", color=MUTED, fontsize=9)
        else:
            title = f"Rationales: cosine ({result['rationales']['model'].split('/')[-1]})"
            _heat(right, names, spoken, title, paper.get("rationale_similarity"))
            right.set_yticklabels([])
        _caption(figure, result, bars=False)
    return figure


def _heat(
    axes: Axes,
    names: Sequence[str],
    table: Mapping[str, Mapping[str, float | None]],
    title: str,
    paper: Mapping[str, Mapping[str, float]] | None,
) -> None:
    values = np.array([[_number(table[a][b]) for b in names] for a in names])
    axes.imshow(np.ma.masked_invalid(values), cmap=_BLUES, vmin=0, vmax=1)
    for i, j in np.ndindex(*values.shape):
        value, published = values[i, j], (paper or {}).get(names[i], {}).get(names[j])
        text = "–" if np.isnan(value) else f"{value:.2f}".replace("-", "−")
        colour = "white" if value > 0.55 else INK
        up = 0.0 if published is None else 0.1
        axes.text(j, i - up, text, ha="center", va="center", color=colour, fontsize=11)
        if published is not None:
            axes.text(j, i + 0.2, f"paper {published:.2f}", ha="center", va="center", color=colour, fontsize=7)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor", color=INK)
    axes.set_yticks(range(len(names)), names, color=INK)
    axes.set_title(title)
    _bare(axes)


def teachers(result: Result) -> Figure:
    """How each teacher uses the scale, and its mean T-PAS and T-SAS (Table 4)."""
    rows = result["by_teacher"]
    labels = [key.removeprefix("share_") for key in rows[0] if key.startswith("share_")]
    with rc_context(STYLE):
        figure = Figure(figsize=(10, 1.9 + 0.5 * len(rows)), layout="constrained")
        bars, means = figure.subplots(1, 2, sharey=True)
        for at, row in enumerate(reversed(rows)):
            start = 0.0
            for code, label in enumerate(labels):
                share = row[f"share_{label}"] or 0.0
                colour = _SCALE(code / max(1, len(labels) - 1))
                bars.barh(at, share, left=start, color=colour, height=0.62, label=label if at == 0 else None)
                if share >= 0.07:
                    dark = 0 < code < len(labels) - 1
                    bars.text(start + share / 2, at, f"{share:.0%}", ha="center", va="center", fontsize=8.5,
                              color=INK if dark else "white")  # fmt: skip
                start += share
            for side, (key, tint) in zip((0.13, -0.13), _axis_colours(), strict=True):
                _point(means, row, key, at + side, tint, (row["paper"] or {}).get(key))
        for key, tint in _axis_colours():
            if result["consensus"][key] is not None:
                means.axvline(result["consensus"][key], color=tint, lw=1, ls=":", alpha=0.8)
        bars.set_yticks(range(len(rows)), [row["teacher"] for row in reversed(rows)], color=INK)
        bars.set_ylim(-0.6, len(rows) - 0.4)
        bars.set(xlim=(0, 1), title="Answers given")
        bars.grid(visible=False)
        bars.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=len(labels), fontsize=8.5)
        means.set(xlim=(0, 1), title="Mean score; dotted: consensus")
        means.grid(axis="y", visible=False)
        handles = _axis_handles()
        if any(row["paper"] for row in rows):
            handles.append(_paper_handle())
        means.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, fontsize=8.5)
        _caption(figure, result)
    return figure


def questions(result: Result) -> Figure:
    """Unanimity and Fleiss' kappa of every question, least agreement first (Table 5)."""
    rows = result["questions"]
    columns = (("unanimous", "Unanimous"), ("kappa", "Fleiss' κ"))
    with rc_context(STYLE):
        figure = Figure(figsize=(10, 1.5 + 0.34 * len(rows)), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        for axes, (key, title) in zip(panels, columns, strict=True):
            overall = result["unanimous_rate"] if key == "unanimous" else result["fleiss_kappa"]
            if overall is not None:
                axes.axvline(overall, color=MUTED, lw=1, ls=":")
            for at, row in enumerate(reversed(rows)):
                colour = COLOURS[0] if row["group"] == "perceptual" else COLOURS[1]
                _point(axes, row, key, at, colour, (row["paper"] or {}).get(key))
            axes.set_title(f"{title}; dotted: all questions")
            axes.grid(axis="y", visible=False)
        panels[0].set_yticks(range(len(rows)), [f"{row['id']}  {row['name']}" for row in reversed(rows)], color=INK)
        panels[0].set_xlim(-0.02, 1.02)
        panels[1].axvline(0, color=MUTED, lw=0.8)
        panels[1].set_xlim(right=1.02)
        handles = [
            Line2D([], [], marker="o", lw=1.6, color=COLOURS[0], label="perceptual"),
            Line2D([], [], marker="o", lw=1.6, color=COLOURS[1], label="semantic"),
        ]
        if any(row["paper"] for row in rows):
            handles.append(_paper_handle())
        figure.legend(handles=handles, loc="outside upper right", ncols=3, fontsize=8.5)
        _caption(figure, result)
    return figure


def influence(result: Result) -> Figure:
    """How the consensus moves by a teacher: how far T-PAS and T-SAS, and each question in which direction."""
    rows = result["influence"]
    ids = list(result["protocol"]["questions"])
    values = np.array([[_number(row["per_question"][q]["shift"]) for q in ids] for row in rows])
    with rc_context(STYLE):
        figure = Figure(figsize=(11, 1.9 + 0.5 * len(rows)), layout="constrained")
        bars, heat = figure.subplots(1, 2, width_ratios=(2, 3))
        for at, row in enumerate(reversed(rows)):
            for side, (key, colour) in zip((0.13, -0.13), _axis_colours(), strict=True):
                _point(bars, row, f"{key}_change", at + side, colour, None)
        names = [row["teacher"] for row in rows]
        bars.set_yticks(range(len(rows)), names[::-1], color=INK)
        bars.set_ylim(-0.6, len(rows) - 0.4)
        bars.set_xlim(left=0)
        bars.set_title("Consensus with and without: mean |change|")
        bars.grid(axis="y", visible=False)
        bars.legend(handles=_axis_handles(), loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, fontsize=8.5)
        most = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
        reach = 1.4 * max(most, 0.01)
        heat.imshow(np.ma.masked_invalid(values), cmap=_SIGNED, vmin=-reach, vmax=reach, aspect="auto")
        for i, j in np.ndindex(*values.shape):
            text = "–" if np.isnan(values[i, j]) else f"{values[i, j]:+.2f}".replace("-", "−").replace("0.", ".")
            strong = abs(values[i, j]) > 0.6 * reach
            heat.text(j, i, text, ha="center", va="center", fontsize=8.5, color="white" if strong else INK)
        heat.set_xticks(range(len(ids)), ids, color=INK)
        heat.set_yticks(range(len(rows)), ["" for _ in rows])
        heat.set_title("Mean shift of the consensus answer by the teacher")
        _bare(heat)
        _caption(figure, result)
    return figure


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _axis_colours() -> list[tuple[str, str]]:
    return list(zip(AXES, COLOURS, strict=False))


def _axis_handles() -> list[Line2D]:
    return [Line2D([], [], marker="o", lw=1.6, color=colour, label=AXES[axis]) for axis, colour in _axis_colours()]


def _bare(axes: Axes) -> None:
    """A heat map needs neither grid nor frame."""
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _point(axes: Axes, row: Mapping[str, Any], key: str, height: float, colour: str, paper: float | None) -> None:
    low, high = row[f"{key}_lo"], row[f"{key}_hi"]
    if low is not None:
        axes.plot([low, high], [height, height], color=colour, lw=1.8, alpha=0.5)
    if row[key] is not None:
        axes.plot([row[key]], [height], "o", color=colour, ms=6)
    if paper is not None:
        axes.plot([paper], [height], "D", color=MUTED, ms=4.5, mfc="white", zorder=3)


def _paper_handle() -> Line2D:
    return Line2D([], [], marker="D", lw=0, ms=4.5, color=MUTED, mfc="white", label=_PAPER)


def _folded(text: str, width: int) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width))


def _caption(figure: Figure, result: Result, *, bars: bool = True) -> None:
    text = f"{result['corpus']} · {result['n_pairs']:,} pairs, {result['n_items']:,} items answered by every teacher"
    if bars:
        text += f" · bars: 95 % intervals over {result['settings']['clusters']} concepts"
    if not bars and any((result["paper"] or {}).get("weighted_kappa", {}).values()):
        text += f" · paper: {_PAPER}"
    if result["simulated_teachers"]:
        text += " · SIMULATED teachers"
    figure.supxlabel(text, fontsize=7.5, color=MUTED, x=0.02, ha="left")
