"""Figures of the audit: what each metric follows, its correlations with intervals, degradation curves, regimes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bcs_lab.audit.analysis import SHORT
from bcs_lab.audit.degradation import LEVELS, SEVERITIES, TITLES
from bcs_lab.files import write_text
from bcs_lab.regimes import REGIMES
from bcs_lab.report.figures import COLOURS, INK, MUTED, STYLE, save, svg
from bcs_lab.results import AXES

Result = Mapping[str, Any]
Row = Mapping[str, Any]

#: Against, unrelated, with.
_SIGNED = LinearSegmentedColormap.from_list("audit", [COLOURS[1], "#ffffff", COLOURS[0]])

#: Regime -> colour, as on the page of a run.
_REGIME_COLOURS = dict(zip(REGIMES, (COLOURS[2], COLOURS[4], COLOURS[5], COLOURS[3]), strict=True))

_PAPER = "the paper's corpus"


def write_figures(result: Result, out: Path) -> list[Path]:
    """Write every figure that has something to show as PNG and SVG, and return their paths."""
    drawn: dict[str, Figure] = {}
    if len(_columns(result)[0]) and _metrics(result):
        drawn["correlations"] = heat_map(result)
    if any(row["rho_sas"] is not None or row["rho_pas"] is not None for row in result["consensus"]):
        drawn["consensus"] = forest(result)
    if any(row["rho"] is not None for row in result["degradations"]):
        drawn["degradation"] = curves(result)
    if any(row["n"] for row in result["regime_rows"].get(result["settings"]["consensus"], ())):
        drawn["regimes"] = regimes(result)
    paths = []
    for name, figure in drawn.items():
        paths.append(save(figure, out / f"{name}.png"))
        paths.append(out / f"{name}.svg")
        write_text(paths[-1], svg(figure))
    return paths


# --- heat map -------------------------------------------------------------------------------------------------------


def _metrics(result: Result) -> list[Row]:
    """The metrics that ran, those that go most with T-SAS first where that is known."""
    rows = [row for row in result["metrics"] if row["unavailable"] is None]
    rho = {row["metric"]: row["rho_sas"] for row in result["consensus"] if row["rho_sas"] is not None}
    return sorted(rows, key=lambda row: -rho.get(row["metric"], -2.0)) if rho else rows


def _columns(result: Result) -> tuple[list[str], list[dict[str, float | None]], list[int]]:
    """Headings, values by metric, and after which columns a gap comes."""
    heads: list[str] = []
    values: list[dict[str, float | None]] = []
    gaps: list[int] = []
    if result["consensus"]:
        for axis, short in SHORT.items():
            heads += [AXES[axis], f"{AXES[axis]}\nwithin methods"]
            values.append({row["metric"]: row[f"rho_{short}"] for row in result["consensus"]})
            values.append({row["metric"]: row[f"within_rho_{short}"] for row in result["consensus"]})
    if result["captions"]:
        heads.append("captions")
        values.append({row["metric"]: row["rho"] for row in result["captions"]})
    gaps.append(len(heads))
    for kind in SEVERITIES if result["degradations"] else ():
        heads.append(TITLES[kind])
        values.append({row["metric"]: row["rho"] for row in result["degradations"] if row["degradation"] == kind})
    keep = [at for at, own in enumerate(values) if any(value is not None for value in own.values())]
    gaps = [sum(at < gap for at in keep) for gap in gaps]
    return [heads[at] for at in keep], [values[at] for at in keep], gaps


def heat_map(result: Result) -> Figure:
    """Rank correlation of every metric with scores and with the severity of degradations."""
    metrics = _metrics(result)
    heads, values, gaps = _columns(result)
    table = np.array([[_number(own.get(row["metric"])) for own in values] for row in metrics])
    with rc_context(STYLE):
        figure = Figure(figsize=(2.6 + 0.86 * len(heads), 1.9 + 0.36 * len(metrics)), layout="constrained")
        axes = figure.subplots()
        axes.imshow(np.ma.masked_invalid(table), cmap=_SIGNED, vmin=-1, vmax=1, aspect="auto")
        for i, j in np.ndindex(*table.shape):
            value = table[i, j]
            text = "–" if np.isnan(value) else f"{value:.2f}".replace("-", "−")
            axes.text(j, i, text, ha="center", va="center", fontsize=9, color="white" if abs(value) > 0.7 else INK)
        for gap in gaps:
            if 0 < gap < len(heads):
                axes.axvline(gap - 0.5, color="white", lw=6)
        axes.set_xticks(range(len(heads)), heads, rotation=35, ha="left", rotation_mode="anchor", color=INK, fontsize=9)
        axes.xaxis.tick_top()
        axes.set_yticks(range(len(metrics)), [row["title"] for row in metrics], color=INK)
        _bare(axes)
        _caption(figure, result, "Spearman's ρ of each metric, oriented, with scores of the pairs"
                 + (" and with mildness of degradations" if result["degradations"] else ""))  # fmt: skip
    return figure


# --- forest ---------------------------------------------------------------------------------------------------------


def forest(result: Result) -> Figure:
    """Rank correlation with T-PAS and T-SAS: over all pairs, within methods, and the paper's."""
    rows = [row for row in result["consensus"] if row["unavailable"] is None]
    rows.sort(key=lambda row: _number(row["rho_sas"]) if row["rho_sas"] is not None else -2)
    within = any(row["within_rho_sas"] is not None or row["within_rho_pas"] is not None for row in rows)
    paper = any(row["paper"] for row in rows)
    with rc_context(STYLE):
        figure = Figure(figsize=(10.5, 1.7 + 0.4 * len(rows)), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True, sharex=True)
        for axes, (axis, short), colour in zip(panels, SHORT.items(), COLOURS, strict=False):
            axes.axvline(0, color=MUTED, lw=0.8)
            for at, row in enumerate(rows):
                _point(axes, row, f"rho_{short}", at + 0.14 * within, colour, "o")
                if within:
                    _point(axes, row, f"within_rho_{short}", at - 0.18, colour, "s")
                published = (row["paper"] or {}).get(f"rho_{short}")
                if published is not None:
                    axes.plot([published], [at + 0.14 * within], "D", color=MUTED, ms=4.5, mfc="white", zorder=3)
            axes.set_title(f"Rank correlation with {AXES[axis]}")
            axes.grid(axis="y", visible=False)
        panels[0].set_yticks(range(len(rows)), [row["title"] for row in rows], color=INK)
        panels[0].set_ylim(-0.6, len(rows) - 0.4)
        handles = [Line2D([], [], marker="o", lw=1.8, color=INK, label="all pairs")]
        if within:
            handles.append(Line2D([], [], marker="s", ms=4.5, lw=1.8, color=INK, mfc="white", label="within methods"))
        if paper:
            handles.append(Line2D([], [], marker="D", lw=0, ms=4.5, color=MUTED, mfc="white", label=_PAPER))
        figure.legend(handles=handles, loc="outside upper right", ncols=3, fontsize=8.5)
        bars = f"bars: 95 % intervals over {result['settings']['clusters']:,} concepts"
        _caption(figure, result, bars)
    return figure


def _point(axes: Axes, row: Row, key: str, height: float, colour: str, marker: str) -> None:
    low, high = row[f"{key}_lo"], row[f"{key}_hi"]
    if low is not None:
        axes.plot([low, high], [height, height], color=colour, lw=1.8 if marker == "o" else 1.1, alpha=0.5)
    if row[key] is not None:
        inside = colour if marker == "o" else "white"
        axes.plot([row[key]], [height], marker, color=colour, ms=6 if marker == "o" else 4.5, mfc=inside)


# --- degradation ----------------------------------------------------------------------------------------------------


def curves(result: Result) -> Figure:
    """One panel a metric, one line a degradation: mean rank of quality as severity grows."""
    by_metric: dict[str, list[Row]] = {}
    for row in result["degradations"]:
        if len(row["mean_ranks"]) == LEVELS:
            by_metric.setdefault(row["title"], []).append(row)
    wide = min(4, len(by_metric))
    high = -(-len(by_metric) // wide)
    with rc_context(STYLE):
        figure = Figure(figsize=(0.8 + 2.5 * wide, 1.1 + 2.1 * high), layout="constrained")
        panels = np.atleast_1d(figure.subplots(high, wide, sharex=True, sharey=True)).ravel()
        for axes, (title, rows) in zip(panels, by_metric.items(), strict=False):
            for row in rows:
                colour = COLOURS[list(SEVERITIES).index(row["degradation"])]
                axes.plot(range(1, LEVELS + 1), row["mean_ranks"], "o-", color=colour, ms=3.5, lw=1.6)
            axes.set_title(title, fontsize=9.5)
            axes.set(ylim=(-0.03, 1.03), xticks=range(1, LEVELS + 1))
        for axes in panels[len(by_metric) :]:
            axes.set_visible(False)
        for axes in panels[::wide]:
            axes.set_ylabel("quality, mean rank", fontsize=8.5)
        for axes in panels[max(0, len(by_metric) - wide) : len(by_metric)]:
            axes.set_xlabel("severity", fontsize=8.5)
            axes.tick_params(labelbottom=True)
        handles = [
            Line2D([], [], marker="o", ms=3.5, color=colour, label=TITLES[kind])
            for kind, colour in zip(SEVERITIES, COLOURS, strict=True)
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=6 if wide > 2 else 3, fontsize=8.5)
        _caption(figure, result, "0: the worst of all values of that degradation, 1: the best")
    return figure


# --- regimes --------------------------------------------------------------------------------------------------------


def regimes(result: Result) -> Figure:
    """Shares of the four regimes, overall and by method."""
    rows = [row for row in result["regime_rows"][result["settings"]["consensus"]] if row["n"]]
    with rc_context(STYLE):
        figure = Figure(figsize=(8.5, 1.5 + 0.36 * max(1, len(rows))), layout="constrained")
        axes = figure.subplots()
        for at, row in enumerate(reversed(rows)):
            start = 0.0
            for code, name in REGIMES.items():
                share = row[f"{code}_share"]
                axes.barh(
                    at, share, left=start, color=_REGIME_COLOURS[code], height=0.68, label=name if not at else None
                )
                if share >= 0.06:
                    axes.text(start + share / 2, at, f"{share:.0%}", ha="center", va="center", fontsize=8, color=INK)
                start += share
        names = [f"{_short(row['group'])}  ({row['n']:,})" for row in reversed(rows)]
        axes.set_yticks(range(len(rows)), names, color=INK)
        axes.set(xlim=(0, 1), ylim=(-0.6, len(rows) - 0.4))
        axes.grid(visible=False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        figure.legend(loc="outside upper right", ncols=4, fontsize=8.5)
        _caption(figure, result, f"high: {result['settings']['threshold']:g} or more; in brackets: pairs")
    return figure


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _bare(axes: Axes) -> None:
    """A heat map needs neither grid nor frame."""
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _caption(figure: Figure, result: Result, text: str) -> None:
    line = f"{result['corpus']} · {result['n_pairs']:,} pairs · {text}"
    if result["simulated_teachers"]:
        line += " · SIMULATED teachers"
    figure.supxlabel(line, fontsize=7.5, color=MUTED, x=0.02, ha="left")
