"""Result tables: the Table 6 columns as plain text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

#: Column -> heading, in Table 6's order with the Spearman correlation of each axis added.
HEADINGS: Mapping[str, str] = {
    "q_mae": "Q-MAE",
    "q_r": "Q-r",
    "q_rho": "Q-ρ",
    "pas_mae": "PAS-MAE",
    "pas_r": "PAS-r",
    "pas_rho": "PAS-ρ",
    "sas_mae": "SAS-MAE",
    "sas_r": "SAS-r",
    "sas_rho": "SAS-ρ",
}

RUN, MEMBER, BASELINE, PAPER = "run", "member", "baseline", "paper"
_TITLES = {
    MEMBER: "members",
    BASELINE: "baselines on the same test pairs",
    PAPER: "the paper's Table 6 (another corpus: 6,855 EEG pairs; not comparable)",
}


@dataclass(frozen=True)
class Row:
    """One line of a result table.

    Attributes:
        kind: ``run``, ``member``, ``baseline`` or ``paper``.
        label: what is scored.
        values: the columns of :data:`HEADINGS`; ``None`` = undefined or not given.
        ci95: the same keys, ``[low, high]`` or ``None``.
        note: a second line under the label, such as the encoders of a fusion.
        facts: further columns of the CSV (run folder, encoders, teachers, …).
    """

    kind: str
    label: str
    values: Mapping[str, float | None]
    ci95: Mapping[str, Sequence[float] | None] = field(default_factory=dict)
    note: str = ""
    facts: Mapping[str, str | int | float | None] = field(default_factory=dict)


@cache
def paper_rows() -> tuple[Row, ...]:
    """Table 6 as published."""
    text = files("bcs_lab").joinpath("assets/paper_table6.yaml").read_text(encoding="utf-8")
    return tuple(Row(PAPER, entry["name"], {key: entry.get(key) for key in HEADINGS}) for entry in yaml.safe_load(text))


def best_rows(rows: Sequence[Row], column: str) -> set[int]:
    """Indices of the runs with the best value of a column (MAE lowest, correlations highest); empty for fewer than two.

    Values are compared as shown, with three decimals, so that a tie in print is a tie.
    """
    shown = {
        index: round(value, 3)
        for index, row in enumerate(rows)
        if row.kind == RUN and (value := row.values.get(column)) is not None
    }
    if sum(row.kind == RUN for row in rows) < 2 or not shown:
        return set()
    best = min(shown.values()) if column.endswith("_mae") else max(shown.values())
    return {index for index, value in shown.items() if value == best}


def number(value: float | None) -> str:
    """Three decimals; an undefined value is a dash, a minus is a minus sign and never stands before zero.

    >>> number(-0.2614), number(-0.0001), number(None)
    ('−0.261', '0.000', '–')
    """
    return "–" if value is None else f"{round(value, 3) + 0.0:.3f}".replace("-", "−")


def text_table(rows: Sequence[Row], *, heading: str = "model", intervals: bool = True) -> str:
    """Aligned plain text; ``*`` marks the best run of a column, intervals and notes stand on lines of their own."""
    best = {column: best_rows(rows, column) for column in HEADINGS}
    body: list[list[str] | str] = []
    kind = RUN
    for index, row in enumerate(rows):
        if row.kind != kind:
            kind = row.kind
            body.append(f"  — {_TITLES.get(kind, kind)}")
        body.append(
            [row.label, *(number(row.values.get(column)) + "*" * (index in best[column]) for column in HEADINGS)]
        )
        if intervals and any(row.ci95.get(column) for column in HEADINGS):
            body.append(["  95 % interval", *(interval(row.ci95.get(column)) for column in HEADINGS)])
        if row.note:
            body.append(f"    {row.note}")
    header = [heading, *HEADINGS.values()]
    cells = [line for line in body if isinstance(line, list)]
    widths = [max(len(line[column]) for line in [header, *cells]) for column in range(len(header))]

    def aligned(line: Sequence[str]) -> str:
        return "  ".join(
            [f"{line[0]:<{widths[0]}}", *(f"{cell:>{w}}" for cell, w in zip(line[1:], widths[1:], strict=True))]
        )

    rule = "─" * len(aligned(header))
    return "\n".join([aligned(header), rule, *(line if isinstance(line, str) else aligned(line) for line in body)])


def interval(bounds: Sequence[float] | None) -> str:
    """Two decimals each, ``0.08–0.63``, with words between negative ones; empty for an undefined interval."""
    if not bounds:
        return ""
    low, high = (f"{round(bound, 2) + 0.0:.2f}".replace("-", "−") for bound in bounds)
    return f"{low} to {high}" if "−" in low + high else f"{low}–{high}"


def markdown_table(rows: Sequence[Row], *, heading: str = "model") -> str:
    """GitHub Markdown; the best run of a column is bold."""
    best = {column: best_rows(rows, column) for column in HEADINGS}
    lines = [f"| {heading} | " + " | ".join(HEADINGS.values()) + " |", "|---|" + "---:|" * len(HEADINGS)]
    kind = RUN
    for index, row in enumerate(rows):
        if row.kind != kind:
            kind = row.kind
            lines.append(f"| *{_TITLES.get(kind, kind)}* |" + " |" * len(HEADINGS))
        cells = []
        for column in HEADINGS:
            cell = number(row.values.get(column))
            cells.append(f"**{cell}**" if index in best[column] else cell)
        label = escape_markdown(row.label) + (f"<br><sub>{escape_markdown(row.note)}</sub>" if row.note else "")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def escape_markdown(text: str) -> str:
    """A label as literal text inside a Markdown table."""
    for character in "\\`*_{}[]<>|":
        text = text.replace(character, "\\" + character)
    return text.replace("\n", " ")


_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}", "−": "$-$", "–": "--"}
)


def escape_latex(text: str) -> str:
    """A label as literal text in LaTeX.

    >>> escape_latex("50 % of_it")
    '50 \\\\% of\\\\_it'
    """
    return text.translate(_LATEX).replace("\n", " ")


def csv_rows(rows: Iterable[Row]) -> list[dict[str, str | int | float | None]]:
    """One flat mapping a row: kind, label, facts, the metric columns, then ``<metric>_lo`` and ``<metric>_hi``."""
    flat: list[dict[str, str | int | float | None]] = []
    for row in rows:
        entry: dict[str, str | int | float | None] = {"kind": row.kind, "label": row.label, **row.facts}
        entry.update({column: row.values.get(column) for column in HEADINGS})
        for column in HEADINGS:
            bounds = row.ci95.get(column) or (None, None)
            entry[f"{column}_lo"], entry[f"{column}_hi"] = bounds[0], bounds[1]
        flat.append(entry)
    return flat


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV with a header of all their keys, in the order they come up; ``None`` is an empty cell."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a plain-text table; the first column stands left, the others right.

    >>> aligned([["", "n"], ["cats", "12"]])
    ['       n', 'cats  12']
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
