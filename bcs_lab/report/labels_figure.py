"""Quality against the number of labels as a figure: one panel an axis and group of encoders, names beside the lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from bcs_lab.files import write_text
from bcs_lab.report.figures import COLOURS, INK, MUTED, STYLE, save, svg
from bcs_lab.report.labels import AXES, LabelStudy, Quality

NAME = "quality_by_labels"
_MARKERS = "os^DvPX*"
_STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))
#: How far below the middle of all values a panel reaches; what lies lower is marked at its edge.
_DEPTH = 0.36
#: Least distance of two names, as a share of a panel's height.
_APART = 0.056


@dataclass(frozen=True)
class _Name:
    """A name at the right end of a line."""

    value: float
    text: str
    colour: str
    size: float = 9.0


def quality_figure(study: LabelStudy) -> Figure:
    """Spearman's ρ against the pairs learned from, on a logarithmic axis.

    Intervals are bars, beside each other where points share a place. Plain cosines need no labels: level dashed lines.
    A point far below all others is a triangle at the lower edge with its value.
    """
    encoders = study.encoders
    recipes = list(dict.fromkeys(recipe for _, recipe in next(iter(study.quality.values()))))
    with rc_context(STYLE):
        figure = Figure(
            figsize=(14, 0.7 + 4.9 * len(encoders)), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08, wspace=0.06)
        )
        panels = figure.subplots(len(encoders), len(AXES), squeeze=False)
        limits = _range(study)
        for row, group in enumerate(encoders):
            for axes, (column, (_, name)) in zip(panels[row], AXES.items(), strict=True):
                axes.set_ylim(*limits)
                names = _levels(axes, study.cosines[column].get(group, {}))
                below: Counter[int] = Counter()
                for index, recipe in enumerate(recipes):
                    cells = study.quality[column].get((group, recipe))
                    if cells:
                        names += _line(axes, study.sizes, cells, recipe, index, len(recipes), below)
                _scale(axes, study)
                _write(axes, names, max(study.sizes))
                axes.set_title(f"{name} · {group}")
                axes.set_xlabel("training pairs (log scale)" if row == len(encoders) - 1 else "")
        for axes in panels[:, 0]:
            axes.set_ylabel("Spearman's ρ with the consensus")
        caption = (
            f"{study.pairs}; bars: 95 % intervals, whole concepts resampled; dashed: cosines, which need no labels"
        )
        figure.supxlabel(caption, fontsize=8.5, color=MUTED, x=0.01, ha="left")
    return figure


def write_figure(study: LabelStudy, out: Path) -> str:
    """Write ``quality_by_labels.png`` and ``.svg``; returns the latter."""
    figure = quality_figure(study)
    drawn = svg(figure)
    write_text(out / f"{NAME}.svg", drawn)
    save(figure, out / f"{NAME}.png")
    return drawn


def _range(study: LabelStudy) -> tuple[float, float]:
    cells = [quality for runs in study.quality.values() for own in runs.values() for quality in own.values()]
    cells += [quality for own in study.cosines.values() for names in own.values() for quality in names.values()]
    values = [quality.value for quality in cells if quality.value is not None]
    if not values:
        return -1.0, 1.0
    high = max([bound for quality in cells for bound in quality.interval or ()] + values)
    low = min(values) if np.median(values) - min(values) < _DEPTH else float(np.median(values)) - _DEPTH
    return low - 0.03, min(1.0, high + 0.02)


def _line(
    axes: Axes,
    sizes: Sequence[int],
    cells: Mapping[int, Quality],
    recipe: str,
    index: int,
    count: int,
    below: Counter[int],
) -> list[_Name]:
    known = {size: value for size in sizes if size in cells and (value := cells[size].value) is not None}
    if not known:
        return []
    low, high = axes.get_ylim()
    colour, style = COLOURS[index % len(COLOURS)], _STYLES[index // len(COLOURS) % len(_STYLES)]
    x = {size: size * 1.021 ** (index - (count - 1) / 2) for size in known}  # side by side
    for size, value in known.items():
        bounds = cells[size].interval
        if bounds:
            axes.plot([x[size]] * 2, list(bounds), color=colour, lw=1.1, alpha=0.35, solid_capstyle="butt")
        if value < low:
            edge = low + 0.015 * (high - low)
            axes.plot([x[size]], [edge], marker="v", ms=6, color=colour, zorder=4)
            place = 3 + 9 * below[size]  # one above the other
            below[size] += 1
            axes.annotate(
                f"{value:.2f}", (x[size], edge), (6, place), textcoords="offset points", fontsize=7.5, color=colour
            )
    axes.plot(
        list(x.values()), list(known.values()), color=colour, ls=style, lw=1.8,
        marker=_MARKERS[index % len(_MARKERS)], ms=5, mec="white", mew=0.6, zorder=3,
    )  # fmt: skip
    return [_Name(known[max(known)], f"{recipe}  {known[max(known)]:.2f}", colour)]


def _levels(axes: Axes, cosines: Mapping[str, Quality]) -> list[_Name]:
    low, high = axes.get_ylim()
    names = []
    for name, quality in cosines.items():
        if quality.value is not None and low < quality.value < high:
            axes.axhline(quality.value, color=INK, lw=0.9, ls="--", alpha=0.5, zorder=1)
            names.append(_Name(quality.value, f"{name}  {quality.value:.2f}", MUTED, 8.0))
    return names


def _scale(axes: Axes, study: LabelStudy) -> None:
    axes.set_xscale("log")
    axes.set_xlim(min(study.sizes) * 0.82, max(study.sizes) * 1.16)
    ticks = [f"{size}\n(all)" if size == study.everything else str(size) for size in study.sizes]
    axes.set_xticks(list(study.sizes), ticks)
    texts = axes.get_xticklabels()
    for index, (size, after) in enumerate(pairwise(study.sizes)):
        if after < 1.3 * size:  # two numbers would run into each other
            texts[index].set_horizontalalignment("right")
            texts[index + 1].set_horizontalalignment("left")
    axes.minorticks_off()
    axes.grid(axis="x", visible=False)


def _write(axes: Axes, names: Sequence[_Name], last: int) -> None:
    """Names right of the panel, each with a thin line to where it belongs."""
    low, high = axes.get_ylim()
    ordered = sorted(names, key=lambda name: name.value)
    places = spread([name.value for name in ordered], _APART * (high - low), low, high)
    edge = axes.get_xlim()[1]
    for name, place in zip(ordered, places, strict=True):
        axes.annotate(
            name.text,
            xy=(edge if name.colour == MUTED else last * 1.12, name.value),
            xytext=(edge * 1.13, place),
            fontsize=name.size,
            color=name.colour,
            va="center",
            ha="left",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": name.colour, "lw": 0.7, "alpha": 0.55, "shrinkA": 2, "shrinkB": 0,
                "relpos": (0.0, 0.5),
            },
        )  # fmt: skip


def spread(values: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Places near ascending values, at least ``apart`` from each other and within the bounds while there is room.

    >>> [round(place, 2) for place in spread([0.5, 0.5, 0.9], 0.1, 0.0, 1.0)]
    [0.45, 0.55, 0.9]
    """
    places = [min(max(value, low), high) for value in values]
    for _ in range(500):
        moved = 0.0
        for index in range(1, len(places)):
            gap = places[index] - places[index - 1]
            if gap < apart - 1e-9:
                shift = (apart - gap) / 2
                places[index - 1] -= shift
                places[index] += shift
                moved = max(moved, shift)
        if places and (len(places) - 1) * apart <= high - low:
            for index, place in enumerate(places):
                clipped = min(max(place, low + index * apart), high - (len(places) - 1 - index) * apart)
                moved = max(moved, abs(clipped - place))
                places[index] = clipped
        if moved < 1e-6:
            break
    return places
