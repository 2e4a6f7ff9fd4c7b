"""Charts of a report as small SVG elements, coloured by classes of its style sheet, so that they follow its theme.

Every chart is about as wide as a phone; a page puts several side by side. Texts are escaped here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from bcs_lab.regimes import REGIMES, THRESHOLD
from bcs_lab.report.page_stats import Bin

Floats = NDArray[np.float64]

#: Above this many points a scatter is drawn as shaded squares.
MAX_POINTS = 1500


@dataclass(frozen=True)
class Frame:
    """Pixel geometry of a chart whose axes both go from 0 to 1.

    Attributes:
        width: of the drawing.
        height: of the drawing.
        left: margin for the tick labels of the vertical axis.
        bottom: margin for those of the horizontal axis.
        top: margin above.
        right: margin at the right.
    """

    width: int = 320
    height: int = 300
    left: int = 40
    bottom: int = 38
    top: int = 10
    right: int = 10

    def x(self, value: float) -> float:
        """Horizontal place of a value."""
        return round(self.left + value * (self.width - self.left - self.right), 1)

    def y(self, value: float) -> float:
        """Vertical place of a value."""
        return round(self.height - self.bottom - value * (self.height - self.top - self.bottom), 1)


SQUARE = Frame()
SMALL = Frame(width=150, height=138, left=24, bottom=20, top=6, right=6)


def _svg(frame: Frame, label: str, parts: Sequence[str], kind: str = "") -> Markup:
    body = "".join(parts)
    return Markup(
        f'<svg class="chart {kind}" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{escape(label)}">{body}</svg>'
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "middle", turn: bool = False) -> str:
    rotate = f' transform="rotate(-90 {x} {y})"' if turn else ""
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}"{rotate}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" class="{kind}"/>'


def _axes(
    frame: Frame, across: str = "", up: str = "", ticks: Sequence[float] = (0, 0.25, 0.5, 0.75, 1), grid: bool = True
) -> list[str]:
    parts = []
    for tick in ticks:
        x, y = frame.x(tick), frame.y(tick)
        if grid:
            parts.append(_line(frame.x(0), y, frame.x(1), y, "grid"))
            parts.append(_line(x, frame.y(0), x, frame.y(1), "grid"))
        shown = f"{tick:g}"
        parts.append(_text(x, frame.y(0) + 13, shown, "tick"))
        parts.append(_text(frame.x(0) - 5, y + 3.5, shown, "tick", "end"))
    if across:
        parts.append(_text((frame.x(0) + frame.x(1)) / 2, frame.height - 6, across, "label"))
    if up:
        parts.append(_text(11, (frame.y(0) + frame.y(1)) / 2, up, "label", turn=True))
    return parts


def _diagonal(frame: Frame) -> str:
    return _line(frame.x(0), frame.y(0), frame.x(1), frame.y(1), "ideal")


def scatter(
    across: Floats, up: Floats, rows: Sequence[int], kinds: Sequence[str], names: tuple[str, str], label: str,
    *, diagonal: bool = False, quadrants: Mapping[str, str] | None = None, jitter: float = 0.0,
) -> Markup:  # fmt: skip
    """Points, or shaded squares when there are more than :data:`MAX_POINTS`.

    Args:
        across: [n] in [0, 1], NaN where undefined.
        up: likewise.
        rows: position of each point's pair in the page's table, which a click opens.
        kinds: class of each point, which gives its colour.
        names: of the two axes.
        label: what the chart shows, for those who cannot see it.
        diagonal: draw the line of equal values.
        quadrants: regime code -> text in its corner.
        jitter: largest shift of the points across, so that equal levels do not hide each other.
    """
    frame = SQUARE
    parts = _axes(frame, *names)
    if quadrants is not None:
        x, y = frame.x(THRESHOLD), frame.y(THRESHOLD)
        parts += [_line(x, frame.y(0), x, frame.y(1), "cut"), _line(frame.x(0), y, frame.x(1), y, "cut")]
    if diagonal:
        parts.append(_diagonal(frame))
    known = np.flatnonzero(~np.isnan(across) & ~np.isnan(up)).tolist()
    if len(known) > MAX_POINTS:
        parts += _squares(frame, across[known], up[known])
    else:
        for i in known:
            # The golden ratio spreads shifts evenly and is the same on every run.
            shift = jitter * 2 * ((i * 0.6180339887) % 1 - 0.5)
            x = frame.x(float(np.clip(across[i] + shift, 0, 1)))
            parts.append(
                f'<circle cx="{x}" cy="{frame.y(float(up[i]))}" r="2.6" class="{kinds[i]}" data-row="{rows[i]}"/>'
            )
    if quadrants is not None:
        for code, text in quadrants.items():
            at_x = frame.x(1) - 4 if code[0] == "h" else frame.x(0) + 4
            at_y = frame.y(1) + 12 if code[1] == "h" else frame.y(0) - 5
            parts.append(_text(at_x, at_y, text, f"corner {code}", "end" if code[0] == "h" else "start"))
    return _svg(frame, label, parts)


def _squares(frame: Frame, across: Floats, up: Floats, bins: int = 40) -> list[str]:
    counts, _, _ = np.histogram2d(across, up, bins=bins, range=[[0, 1], [0, 1]])
    width, height = frame.x(1 / bins) - frame.x(0), frame.y(0) - frame.y(1 / bins)
    most = counts.max()
    return [
        f'<rect x="{frame.x(i / bins)}" y="{frame.y((j + 1) / bins)}" width="{width:.1f}" height="{height:.1f}" '
        f'class="heat" fill-opacity="{max(0.08, float(counts[i, j] / most) ** 0.6):.2f}"/>'
        for i, j in zip(*np.nonzero(counts), strict=True)
    ]


def level_strips(prediction: Floats, target: Floats, kind: str, label: str, bins: int = 20) -> Markup:
    """How predictions spread at each level of the consensus: a mirrored histogram a level, and a tick at its median.

    Args:
        prediction: [n] in [0, 1].
        target: [n], few distinct values; gathered into eighths where there are more than nine. NaN is left out.
        kind: class that gives the colour.
        label: what the chart shows.
        bins: of each histogram.
    """
    frame = SMALL
    parts = [*_axes(frame, ticks=(0, 0.5, 1)), _diagonal(frame)]
    known = ~np.isnan(target) & ~np.isnan(prediction)
    x, y = prediction[known], target[known]
    levels = np.unique(y)
    if len(levels) > 9:
        y = np.round(y * 8) / 8
        levels = np.unique(y)
    histograms = {level: np.histogram(x[y == level], bins=bins, range=(0, 1))[0] for level in levels}
    most = max((int(counts.max()) for counts in histograms.values()), default=1)
    reach = 0.11 * (frame.width - frame.left - frame.right)
    for level, counts in histograms.items():
        centre = frame.x(0.06 + 0.88 * float(level))
        path = []
        for j in np.flatnonzero(counts).tolist():
            half = max(0.8, reach * float(counts[j]) / most)
            path.append(
                f"M{centre - half:.1f} {frame.y((j + 1) / bins)}h{2 * half:.1f}V{frame.y(j / bins)}h{-2 * half:.1f}z"
            )
        parts.append(f'<path d="{"".join(path)}" class="{kind} strip"/>')
        middle = frame.y(float(np.median(x[y == level])))
        parts.append(_line(centre - 5, middle, centre + 5, middle, "median"))
    return _svg(frame, label, parts, "small")


def reliability_chart(series: Sequence[tuple[str, str, Sequence[Bin]]], label: str) -> Markup:
    """Mean consensus against mean prediction of pairs with about the same prediction.

    Args:
        series: name, class and bins of each line.
        label: what the chart shows.
    """
    frame = SQUARE
    parts = [*_axes(frame, "mean prediction", "mean consensus"), _diagonal(frame)]
    for at, (name, kind, bins) in enumerate(series):
        points = " ".join(f"{frame.x(item.predicted)},{frame.y(item.observed)}" for item in bins)
        parts.append(f'<polyline points="{points}" class="{kind} line"/>')
        most = max((item.n for item in bins), default=1)
        for item in bins:
            radius = 1.8 + 3.4 * (item.n / most) ** 0.5
            parts.append(
                f'<circle cx="{frame.x(item.predicted)}" cy="{frame.y(item.observed)}" r="{radius:.1f}" '
                f'class="{kind}"><title>{escape(name)}: {item.n} predicted {item.predicted:.2f}, consensus '
                f"{item.observed:.2f}</title></circle>"
            )
        parts += _key(frame, at, name, kind)
    return _svg(frame, label, parts)


def _key(frame: Frame, at: int, name: str, kind: str, low: bool = False) -> list[str]:
    """A line of the legend: in the upper left, or in the lower right."""
    x, y = (frame.x(1) - 96, frame.y(0) - 12 - 15 * at) if low else (frame.x(0) + 8, frame.y(1) + 12 + 15 * at)
    return [f'<circle cx="{x}" cy="{y - 3.5}" r="4" class="{kind}"/>', _text(x + 9, y, name, "key", "start")]


def coverage_chart(series: Sequence[tuple[str, str, Sequence[tuple[float, float]]]], label: str) -> Markup:
    """Share of held-out pairs inside their interval against the share promised.

    Args:
        series: name, class and points (promised, held) of each line.
        label: what the chart shows.
    """
    frame = SQUARE
    parts = [*_axes(frame, "coverage promised", "coverage on held-out pairs"), _diagonal(frame)]
    for at, (name, kind, points) in enumerate(series):
        path = " ".join(f"{frame.x(promised)},{frame.y(held)}" for promised, held in points)
        parts.append(f'<polyline points="{path}" class="{kind} line"/>')
        parts += [
            f'<circle cx="{frame.x(promised)}" cy="{frame.y(held)}" r="3" class="{kind}"><title>{escape(name)}: '
            f"{held:.0%} where {promised:.0%} is promised</title></circle>"
            for promised, held in points
        ]
        parts += _key(frame, at, name, kind)
    return _svg(frame, label, parts)


def histogram(values: Floats, name: str, kind: str, bins: int = 25) -> Markup:
    """How scores are spread; the tick is their mean."""
    frame = Frame(width=320, height=150, left=14, bottom=34, top=18, right=14)
    known = values[~np.isnan(values)]
    counts, _ = np.histogram(known, bins=bins, range=(0, 1))
    most = max(int(counts.max()), 1)
    width = (frame.x(1) - frame.x(0)) / bins
    parts = [
        f'<rect x="{frame.x(i / bins):.1f}" y="{frame.y(counts[i] / most)}" width="{width - 1:.1f}" '
        f'height="{frame.y(0) - frame.y(counts[i] / most):.1f}" class="{kind}"><title>{counts[i]} '
        f"pair{'s' if counts[i] != 1 else ''} from {i / bins:.2f} to {(i + 1) / bins:.2f}</title></rect>"
        for i in range(bins)
        if counts[i]
    ]
    parts += [_text(frame.x(tick), frame.y(0) + 13, f"{tick:g}", "tick") for tick in (0, 0.25, 0.5, 0.75, 1)]
    parts.append(_line(frame.x(0), frame.y(0), frame.x(1), frame.y(0), "axis"))
    parts.append(_text((frame.x(0) + frame.x(1)) / 2, frame.height - 6, name, "label"))
    if len(known):
        mean = float(known.mean())
        parts.append(_line(frame.x(mean), frame.y(1) - 4, frame.x(mean), frame.y(0), "median"))
        parts.append(_text(frame.x(mean), frame.y(1) - 7, f"mean {mean:.2f}", "key"))
    return _svg(frame, f"Distribution of {name} over {len(known)} pair{'s' * (len(known) != 1)}", parts)


def forest(
    value: float | None, low: float | None, high: float | None, kind: str, target: float | None = None
) -> Markup:
    """A mean with its interval on a line from 0 to 1, for a table cell; a diamond is the consensus."""
    frame = Frame(width=132, height=16, left=4, right=4, top=0, bottom=0)
    parts = [_line(frame.x(0), 8, frame.x(1), 8, "grid"), _line(frame.x(0.5), 3, frame.x(0.5), 13, "grid")]
    if low is not None and high is not None:
        parts.append(_line(frame.x(low), 8, frame.x(high), 8, f"{kind} whisker"))
    if target is not None:
        x = frame.x(target)
        parts.append(f'<path d="M{x} 3.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z" class="consensus"/>')
    if value is not None:
        parts.append(f'<circle cx="{frame.x(value)}" cy="8" r="3.6" class="{kind}"/>')
    return _svg(frame, "", parts, "cell")


def regime_bar(shares: Mapping[str, float | None]) -> Markup:
    """Shares of the four regimes as one bar."""
    pieces = [
        f'<i class="{code}" style="width:{100 * (shares.get(code) or 0):.2f}%" title="{escape(name)}: '
        f'{(shares.get(code) or 0):.0%}"></i>'
        for code, name in REGIMES.items()
        if shares.get(code)
    ]
    label = ", ".join(f"{name} {(shares.get(code) or 0):.0%}" for code, name in REGIMES.items())
    return Markup(f'<span class="regimebar" role="img" aria-label="{escape(label)}">{"".join(pieces)}</span>')
