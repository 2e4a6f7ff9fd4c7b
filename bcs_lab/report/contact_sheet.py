"""A sheet of pairs: reference beside reconstruction, with every teacher's answers, their consensus, and the truth."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from numpy.typing import NDArray
from PIL import Image, ImageOps

from bcs_lab.consensus import consensus
from bcs_lab.corpus.images import load_image
from bcs_lab.corpus.schema import Corpus
from bcs_lab.errors import CorpusError, ImageError
from bcs_lab.evaluate import axis_scores
from bcs_lab.regimes import REGIMES, regime_codes
from bcs_lab.report.figures import COLOURS, GRID, INK, MUTED, STYLE
from bcs_lab.teachers.protocol import PERCEPTUAL, SEMANTIC, Protocol

UNKNOWN = "partly unknown"

#: No, somewhat, yes: orange-red, yellow, blue of Okabe and Ito, which also differ in lightness.
NO, SOMEWHAT, YES = COLOURS[1], "#F0E442", COLOURS[0]
_ANSWER = {0.0: NO, 0.5: SOMEWHAT, 1.0: YES}
_SCALE = LinearSegmentedColormap.from_list("answers", [NO, SOMEWHAT, YES])
_WARNING = "#9a3412"

# All lengths in pixels of the saved PNG (150 an inch).
_DPI = 150
_IMAGE, _GAP = 230, 8
_CELL, _ROW, _LABEL, _SCORE = 20, 25, 108, 46
_BETWEEN_AXES = 12
_CARD_GAP, _MARGIN = 44, 36


def regimes(answers: NDArray[Any], protocol: Protocol) -> list[str]:
    """Regime of each pair by the T-PAS and T-SAS of ``answers`` ``[n, n_questions]``."""
    return [REGIMES.get(code, UNKNOWN) for code in regime_codes(*axis_scores(answers, protocol))]


def choose_pairs(corpus: Corpus, n: int, seed: int) -> list[int]:
    """Rows of ``n`` pairs, as evenly spread over the regimes as there are pairs, in the order of the regimes.

    Within a regime they are drawn by the seed, concepts and methods that are not there yet first.

    Args:
        corpus: the pairs.
        n: how many; all of them if the corpus has fewer.
        seed: another seed gives others.
    """
    order = np.random.default_rng(seed).permutation(len(corpus)).tolist()
    regime = regimes(consensus(corpus.answers), corpus.protocol)
    waiting = {name: [i for i in order if regime[i] == name] for name in (*REGIMES.values(), UNKNOWN)}
    concepts, methods = corpus.pairs["concept"].tolist(), corpus.pairs["method"].tolist()
    chosen: list[int] = []
    used: dict[str, int] = {}
    while len(chosen) < min(n, len(corpus)):
        for group in waiting.values():
            if group and len(chosen) < n:
                # The first of the least used: a stable order, so that the seed decides among equals.
                best = min(group, key=lambda i: used.get(f"c {concepts[i]}", 0) + 0.1 * used.get(f"m {methods[i]}", 0))
                group.remove(best)
                chosen.append(best)
                for key in (f"c {concepts[best]}", f"m {methods[best]}"):
                    used[key] = used.get(key, 0) + 1
    place = {name: at for at, name in enumerate((*REGIMES.values(), UNKNOWN))}
    return sorted(chosen, key=lambda i: (place[regime[i]], chosen.index(i)))


def truth_note(corpus: Corpus) -> str:
    """How far the consensus is from the truth, in a sentence; ``""`` where no truth is known."""
    if corpus.truth is None:
        return ""
    target = consensus(corpus.answers)
    known = ~np.isnan(corpus.truth) & ~np.isnan(target)
    if not known.any():
        return ""
    gap = np.abs(target - corpus.truth)[known]
    share = float((gap < 1e-6).mean())
    return f"the consensus is the truth in {share:.0%} of the answers and {gap.mean():.2f} from it on average"


def contact_sheet(corpus: Corpus, rows: Sequence[int]) -> Figure:
    """Draw the sheet.

    Args:
        corpus: the pairs.
        rows: which of them, see :func:`choose_pairs`.

    Raises:
        CorpusError: ``rows`` is empty.
    """
    if not rows:
        raise CorpusError(f"The corpus {corpus.name!r} has no pair to show.")
    target = consensus(corpus.answers)
    regime = regimes(target, corpus.protocol)
    layout = _Layout.of(corpus, len(rows))
    with rc_context(STYLE):
        figure = Figure(figsize=(layout.width / _DPI, layout.height / _DPI), facecolor="white")
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, layout.width), ylim=(layout.height, 0))
        axes.axis("off")
        _head(axes, corpus, len(rows), layout)
        for at, i in enumerate(rows):
            column, line = divmod(at, layout.lines)  # down the columns: twelve pairs show a regime a column
            x = _MARGIN + column * (layout.card_width + _CARD_GAP)
            y = layout.top + line * (layout.card_height + _CARD_GAP)
            _card(axes, corpus, i, target[i], regime[i], layout, x, y)
        _questions(axes, corpus.protocol, layout)
    return figure


@dataclass(frozen=True)
class _Layout:
    lines: int
    images: bool
    card_width: int
    width: int
    height: int
    card_height: int
    top: int

    @staticmethod
    def of(corpus: Corpus, n: int) -> _Layout:
        images = corpus.root is not None
        rows = len(corpus.teachers) + 1 + (corpus.truth is not None)
        grid = _LABEL + len(corpus.protocol.questions) * _CELL + _BETWEEN_AXES + 2 * _SCORE
        card_width = max(grid, 2 * _IMAGE + _GAP) if images else grid
        card_height = 52 + (_IMAGE + 32 if images else 0) + 24 + rows * _ROW + 8
        lines = -(-n // 4)
        columns = -(-n // lines)
        top = 190
        width = max(2 * _MARGIN + columns * card_width + (columns - 1) * _CARD_GAP, 1050)
        height = top + lines * card_height + (lines - 1) * _CARD_GAP + 120
        return _Layout(lines, images, card_width, width, height, card_height, top)


def _head(axes: Axes, corpus: Corpus, n: int, layout: _Layout) -> None:
    axes.text(_MARGIN, 44, f"Corpus {corpus.name}", size=17, weight="bold", va="center")
    said = f"{n} of {len(corpus):,} pairs, spread over the four regimes of T-PAS and T-SAS (0.5 and up is high)"
    note = truth_note(corpus)
    lines = [said + (f"; {note}" if note else "")]
    if "shows" in corpus.pairs.columns:
        lines.append("a → b: a was seen, the reconstruction shows b")
    if not layout.images:
        lines.append("This corpus has no images: labels and embeddings only.")
    text = "\n".join(part for line in lines for part in textwrap.wrap(line, int(layout.width / 10.5)))
    axes.text(_MARGIN, 76, text, size=8.5, color=MUTED, va="top", linespacing=1.35)
    x = float(_MARGIN)
    y = 146
    words = [(_ANSWER[score], label) for label, score in corpus.protocol.levels.items()]
    for colour, name in (*words, (None, "not answered")):
        _cell(axes, x, y - 9, colour)
        axes.text(x + _CELL + 6, y, name, size=8, va="center")
        x += 50 + 10.5 * len(name)
    for value in (0.25, 0.75):
        _cell(axes, x, y - 9, to_hex(_SCALE(value)))
        x += _CELL + 4
    axes.text(x + 2, y, "a median between two answers", size=8, va="center")
    if corpus.simulated_teachers:
        axes.text(
            layout.width - _MARGIN, 44, "SIMULATED TEACHERS", size=10, weight="bold", color="white", ha="right",
            va="center", bbox={"boxstyle": "round,pad=0.45", "facecolor": _WARNING, "edgecolor": "none"},
        )  # fmt: skip


def _card(
    axes: Axes,
    corpus: Corpus,
    i: int,
    target: NDArray[Any],
    regime: str,
    layout: _Layout,
    x: float,
    y: float,
) -> None:
    pair = corpus.pairs.iloc[i]
    right = x + layout.card_width
    axes.plot([x, right], [y - 12, y - 12], color=GRID, lw=1)
    title = str(pair["concept"]).replace("_", " ")
    shown = str(pair.get("shows", pair["concept"])).replace("_", " ")
    title = _short(title, 28) if shown == title else f"{_short(title, 14)} → {_short(shown, 14)}"
    axes.text(x, y + 8, title, size=9.5, weight="bold", va="center")
    axes.text(right, y + 8, regime, size=6.5, color=MUTED, ha="right", va="center", style="italic")
    pair_id = str(pair["pair_id"])
    parts = [pair_id] if pair_id.startswith(pair["method"]) else [pair["method"], pair["subject"], pair_id]
    who = " · ".join(str(part) for part in parts if part != "na")
    axes.text(x, y + 33, _short(who, int(layout.card_width / 7.8)), size=6, color=MUTED, va="center")
    if layout.images:
        for k, (label, find) in enumerate((("seen", corpus.reference_file), ("decoded", corpus.reconstruction_file))):
            left = x + k * (_IMAGE + _GAP)
            _picture(axes, corpus, find, i, left, y + 50)
            axes.text(left + _IMAGE / 2, y + 50 + _IMAGE + 10, label, size=6.5, color=MUTED, ha="center", va="center")
        y += _IMAGE + 32
    _answers(axes, corpus, i, target, x, y + 50)


def _picture(axes: Axes, corpus: Corpus, find: Any, i: int, left: float, top: float) -> None:
    axes.add_patch(Rectangle((left, top), _IMAGE, _IMAGE, facecolor="#f5f6f8", edgecolor=GRID, lw=0.8))
    try:
        picture = load_image(find(i), max_pixels=corpus.max_image_pixels)
    except ImageError:
        axes.text(left + _IMAGE / 2, top + _IMAGE / 2, "cannot be read", size=7, color=_WARNING, ha="center")
        return
    picture = ImageOps.contain(picture, (2 * _IMAGE, 2 * _IMAGE), Image.Resampling.BICUBIC)
    width, height = (_IMAGE * side / (2 * _IMAGE) for side in picture.size)
    x, y = left + (_IMAGE - width) / 2, top + (_IMAGE - height) / 2
    axes.imshow(
        np.asarray(picture), extent=(x, x + width, y + height, y), aspect="auto", interpolation="antialiased", zorder=2
    )


def _answers(axes: Axes, corpus: Corpus, i: int, target: NDArray[Any], x: float, y: float) -> None:
    """Rows of cells: teachers, consensus, truth; to their right T-PAS and T-SAS."""
    protocol = corpus.protocol
    places, scores_at = _places(protocol, x)
    if corpus.simulated_teachers:
        axes.text(x, y + 6, "SIMULATED", size=6, color=_WARNING, weight="bold", va="center")
    for place, question in zip(places, protocol.ids, strict=True):
        axes.text(place + _CELL / 2 - 1, y + 6, question, size=6, color=MUTED, ha="center", va="center")
    for at, name in zip(scores_at, ("T-PAS", "T-SAS"), strict=True):
        axes.text(at, y + 6, name, size=6, color=MUTED, ha="right", va="center")
    rows: list[tuple[str, NDArray[Any], bool]] = [
        (name, corpus.answers[i, t], False) for t, name in enumerate(corpus.teachers)
    ]
    rows.append(("consensus", target, True))
    if corpus.truth is not None:
        rows.append(("truth", corpus.truth[i], True))
    top = y + 22.0
    for name, values, strong in rows:
        if name == "consensus":
            top += 8
        weight = "bold" if strong else "normal"
        axes.text(x, top + 9, _short(name, 13), size=7, va="center", weight=weight)
        for place, value in zip(places, values.tolist(), strict=True):
            _cell(axes, place, top, to_hex(_SCALE(value)) if value == value else None)
        for at, axis in zip(scores_at, axis_scores(values[None], protocol), strict=True):
            mean = float(axis[0])
            axes.text(
                at, top + 9, f"{mean:.2f}" if mean == mean else "–", size=6.5, ha="right", va="center",
                weight=weight, color=INK if strong else MUTED,
            )  # fmt: skip
        top += _ROW


def _places(protocol: Protocol, x: float) -> tuple[list[float], list[float]]:
    """Left edges of the cells, and right edges of the two scores."""
    places, left = [], x + _LABEL
    for k, question in enumerate(protocol.questions):
        if k and question.group != protocol.questions[k - 1].group:
            left += _BETWEEN_AXES
        places.append(left)
        left += _CELL
    return places, [left + _SCORE, left + 2 * _SCORE]


def _cell(axes: Axes, x: float, y: float, colour: str | None) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x + 1.5, y + 1.5), _CELL - 4, _CELL - 4, boxstyle="round,pad=0,rounding_size=3", lw=0.7,
            facecolor=colour or "white", edgecolor=colour or "#c4c9d1",
        )
    )  # fmt: skip
    if colour is None:
        axes.plot([x + _CELL / 2 - 0.5], [y + _CELL / 2 - 0.5], ".", color="#c4c9d1", ms=2)


def _questions(axes: Axes, protocol: Protocol, layout: _Layout) -> None:
    y = layout.height - 84
    for group, name in ((PERCEPTUAL, "perceptual (T-PAS)"), (SEMANTIC, "semantic (T-SAS)")):
        asked = "    ".join(f"{protocol.ids[q]} {protocol.questions[q].name}" for q in protocol.indices(group))
        axes.text(_MARGIN, y, name, size=7.5, weight="bold", va="center")
        axes.text(_MARGIN + 190, y, asked, size=7.5, va="center", color=MUTED)
        y += 28


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
