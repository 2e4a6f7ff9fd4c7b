"""Tables of the audit as CSV, Markdown and LaTeX, and the text that is printed.

A CSV file holds everything, a row a metric (and degradation, or method); Markdown and LaTeX hold what a paper prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bcs_lab.audit.analysis import SHORT
from bcs_lab.audit.degradation import SEVERITIES, TITLES
from bcs_lab.files import write_text
from bcs_lab.regimes import REGIMES
from bcs_lab.report.table import aligned, csv_text, escape_latex, escape_markdown, interval, number
from bcs_lab.results import AXES

Row = Mapping[str, Any]
Result = Mapping[str, Any]

PAPER = "paper's corpus"
PAPER_NOTE = (
    "Columns headed paper's corpus: the paper's pairs and teachers; other pairs, to compare in kind, not in size."
)


@dataclass(frozen=True)
class Column:
    """One column in print.

    Attributes:
        heading: plain, such as ``ρ T-SAS``.
        cell: from a row to its text.
        group: a heading above several columns, such as :data:`PAPER`.
        tex: the heading in LaTeX, where it differs.
    """

    heading: str
    cell: Callable[[Row], str]
    group: str = ""
    tex: str = ""


@dataclass(frozen=True)
class PrintTable:
    """A table as a paper prints it, and all that is known as flat rows.

    Attributes:
        name: of the files.
        title: what it shows.
        columns: of Markdown, LaTeX and the printed text.
        rows: what the columns are made of.
        flat: rows of the CSV file.
        notes: beneath the table.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    flat: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def shown(self) -> list[Column]:
        """The columns that hold something; those about the paper are left out where it says nothing."""
        return [
            column
            for column in self.columns
            if column.group != PAPER or any(column.cell(row) not in ("–", "") for row in self.rows)
        ]

    def markdown(self) -> str:
        """GitHub Markdown with title and notes."""
        columns = self.shown
        heads = [f"{column.group}: {column.heading}" if column.group else column.heading for column in columns]
        lines = [f"**{escape_markdown(self.title)}**", "", "| " + " | ".join(map(escape_markdown, heads)) + " |"]
        lines.append("|---|" + "---:|" * (len(columns) - 1))
        lines += [
            "| " + " | ".join(escape_markdown(column.cell(row)) for column in columns) + " |" for row in self.rows
        ]
        return "\n".join([*lines, "", *(f"- {escape_markdown(note)}" for note in self._notes()), ""])

    def latex(self) -> str:
        """The ``tabular`` of a paper's table; needs no package."""
        columns = self.shown
        lines = ["% " + self.title.replace("\n", " "), *(f"% {note}" for note in self._notes())]
        lines += [rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}", r"\hline"]
        if any(column.group for column in columns):
            lines.append(" & ".join(_spans(columns)) + r" \\")
        lines.append(" & ".join(column.tex or escape_latex(column.heading) for column in columns) + r" \\")
        lines.append(r"\hline")
        lines += [" & ".join(escape_latex(column.cell(row)) for column in columns) + r" \\" for row in self.rows]
        return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])

    def text(self) -> str:
        """Aligned plain text with notes, without metrics that could not run."""
        columns = self.shown
        rows = [row for row in self.rows if not row.get("unavailable")]
        heads = [
            f"paper {column.heading}" if column.group == PAPER else f"{column.group} {column.heading}".strip()
            for column in columns
        ]
        body = [[column.cell(row) for column in columns] for row in rows]
        return "\n".join([self.title, *aligned([heads, *body]), *(f"- {note}" for note in self.notes)])

    def _notes(self) -> list[str]:
        paper = any(column.group == PAPER for column in self.shown)
        return [*self.notes, *([PAPER_NOTE] if paper else [])]


def _spans(columns: Sequence[Column]) -> list[str]:
    """Cells of the heading above, a span for each run of columns of one group."""
    cells: list[str] = []
    at = 0
    while at < len(columns):
        group = columns[at].group
        end = at
        while end < len(columns) and columns[end].group == group:
            end += 1
        if group:
            cells.append(rf"\multicolumn{{{end - at}}}{{c}}{{{escape_latex(group)}}}")
        else:
            cells += [""] * (end - at)
        at = end
    return cells


def write_tables(result: Result, pairs: Sequence[Row], out: Path) -> list[Path]:
    """Write every table as CSV, Markdown and LaTeX, and ``pairs.csv``; returns their paths."""
    paths = [out / "pairs.csv"]
    write_text(paths[0], csv_text(pairs))
    for table in tables(result):
        for end, text in (("csv", csv_text(table.flat)), ("md", table.markdown()), ("tex", table.latex())):
            paths.append(out / f"{table.name}.{end}")
            write_text(paths[-1], text)
    if result["within_methods"]:
        paths.append(out / "within_methods.csv")
        write_text(paths[-1], csv_text(result["within_methods"]))
    return paths


def tables(result: Result) -> list[PrintTable]:
    """The tables of what was analysed."""
    found = [metric_table(result)]
    if result["consensus"]:
        found.append(consensus_table(result))
    if result["failures"]:
        found.append(failure_table(result))
    if result["captions"]:
        found.append(caption_table(result))
    if result["degradations"]:
        found.append(degradation_table(result))
    found += [regime_table(result, name) for name in result["regime_rows"]]
    if result["set_level"]:
        found.append(set_table(result))
    return found


# --- each table -----------------------------------------------------------------------------------------------------


def _title(row: Row) -> str:
    return f"{row['title']} (unavailable)" if row.get("unavailable") else str(row["title"])


def _own(key: str) -> Callable[[Row], str]:
    """A value with its interval."""

    def cell(row: Row) -> str:
        bounds = interval(None if row.get(f"{key}_lo") is None else [row[f"{key}_lo"], row[f"{key}_hi"]])
        return f"{number(row[key])} ({bounds})" if bounds else number(row[key])

    return cell


def _plain(key: str) -> Callable[[Row], str]:
    return lambda row: number(row.get(key))


def _paper(key: str) -> Callable[[Row], str]:
    return lambda row: number((row["paper"] or {}).get(key))


def _count(key: str) -> Callable[[Row], str]:
    return lambda row: f"{row[key]:,}"


def _flat(row: Row, paper: Sequence[str] = ()) -> Row:
    """A row without lists, with the paper's values in columns of their own."""
    mine = {
        key: "; ".join(map(str, value)) if isinstance(value, list) else value
        for key, value in row.items()
        if key != "paper"
    }
    known = row.get("paper") or {}
    return {**mine, **{f"paper_{key}": known.get(key) for key in paper}}


def metric_table(result: Result) -> PrintTable:
    """What was computed, by what, and what could not be."""

    def direction(row: Row) -> str:
        return "–" if row["higher_is_better"] is None else "higher" if row["higher_is_better"] else "lower"

    columns = (
        Column("metric", lambda row: str(row["title"])),
        Column("better", direction),
        Column("library", lambda row: row["library"] or "–"),
        Column("weights", lambda row: row["weights"] or "–"),
        Column("licence", lambda row: row["licence"] or "–"),
        Column("pairs", _count("pairs")),
        Column("unavailable", lambda row: _first(row["unavailable"]) if row["unavailable"] else ""),
    )
    flat = [
        {**_flat(row), "failed": "; ".join(f"{reason} ({n})" for reason, n in row["failed"].items())}
        for row in result["metrics"]
    ]
    return PrintTable("metric_list", "Metrics", columns, tuple(result["metrics"]), tuple(flat))


def _first(text: str) -> str:
    return text.splitlines()[0]


def short_reason(text: str) -> str:
    """Why a metric cannot run, without what was tried and what to do about it.

    >>> short_reason("LPIPS: its weights (a.pth) cannot be had. Tried: the cache.")
    'LPIPS: its weights (a.pth) cannot be had'
    """
    return re.split(r"(?<=cannot be had)|\. |; ", _first(text))[0]


def consensus_table(result: Result) -> PrintTable:
    """Table 12, with the correlations within methods beside those over all pairs."""
    columns = [Column("metric", _title)]
    columns += [Column(f"pairs {AXES[axis]}", _count(f"n_{short}")) for axis, short in SHORT.items()]
    for axis, short in SHORT.items():
        name = AXES[axis]
        columns += [
            Column(f"ρ {name}", _own(f"rho_{short}"), tex=rf"$\rho$ {name}"),
            Column(f"r {name}", _own(f"r_{short}"), tex=f"$r$ {name}"),
            Column(f"ρ {name} within methods", _own(f"within_rho_{short}"), tex=rf"$\rho$ {name} within"),
        ]
    for short, name in zip(SHORT.values(), AXES.values(), strict=True):
        columns += [
            Column(f"ρ {name}", _paper(f"rho_{short}"), PAPER, rf"$\rho$ {name}"),
            Column(f"r {name}", _paper(f"r_{short}"), PAPER, f"$r$ {name}"),
        ]
    settings = result["settings"]
    notes = (
        f"{result['corpus']}: metrics oriented so that larger is better; consensus: "
        f"{settings['consensus_definition']}.",
        f"In brackets: 95 % intervals from {settings['resamples']:,} resamples of {settings['clusters']:,} concepts.",
        "Within methods: the correlation in each method, averaged with the methods' pairs as weights.",
    )
    keys = ("rho_pas", "r_pas", "rho_sas", "r_sas")
    return PrintTable(
        "consensus",
        "Correlation with the teachers' consensus (Table 12)",
        tuple(columns),
        tuple(result["consensus"]),
        tuple(_flat(row, keys) for row in result["consensus"]),
        notes,
    )


def failure_table(result: Result) -> PrintTable:
    """Harshness and blind spots by T-SAS, both ways of calling a pair right."""
    columns = [Column("metric", _title), Column("pairs", _count("threshold_n"))]
    for variant, group in (
        ("threshold", f"T-SAS at {result['settings']['threshold']:g}"),
        ("quartile", "T-SAS quartiles"),
    ):
        columns += [
            Column("harsh", _own(f"{variant}_harshness"), group),
            Column("harsh by chance", _plain(f"{variant}_harsh_chance"), group),
            Column("blind", _own(f"{variant}_blind_spot"), group),
            Column("blind by chance", _plain(f"{variant}_blind_chance"), group),
        ]
    notes = (
        "Harsh: share of right pairs that the metric puts into its lowest quarter. Blind: share of its highest quarter "
        "that is wrong. By chance: the same for a metric that has nothing to do with T-SAS. Lower is better.",
        f"{result['corpus']}; intervals draw whole concepts while the cuts stay.",
    )
    return PrintTable(
        "failures",
        "Failure rates by the teachers' T-SAS",
        tuple(columns),
        tuple(result["failures"]),
        tuple(_flat(row) for row in result["failures"]),
        notes,
    )


def caption_table(result: Result) -> PrintTable:
    """Table 1."""
    columns = [
        Column("metric", _title),
        Column("pairs", _count("n")),
        Column("ρ", _own("rho"), tex=r"$\rho$"),
        Column("r", _own("r"), tex="$r$"),
        Column("Cap-HR", _own("hr")),
        Column("Cap-BSR", _own("bsr")),
        *(
            Column(head, _paper(key), PAPER, tex)
            for key, head, tex in (
                ("rho", "ρ", r"$\rho$"),
                ("r", "r", "$r$"),
                ("hr", "Cap-HR", ""),
                ("bsr", "Cap-BSR", ""),
            )
        ),
    ]
    facts = result["caption_facts"]
    notes = (
        f"{result['corpus']}: cosine of sentence embeddings ({facts.get('sentences', 'unknown')}) of captions "
        f"({facts.get('captioner', 'unknown')}).",
        "Cap-HR and Cap-BSR are near 0.25 for a metric that has nothing to do with the captions; lower is better.",
    )
    return PrintTable(
        "captions",
        "Caption probe (Table 1)",
        tuple(columns),
        tuple(result["captions"]),
        tuple(_flat(row, ("rho", "r", "hr", "bsr")) for row in result["captions"]),
        notes,
    )


def degradation_table(result: Result) -> PrintTable:
    """Table 2: a line a metric, each cell pooled and within images."""
    by_metric: dict[str, dict[str, Any]] = {}
    for row in result["degradations"]:
        own = by_metric.setdefault(
            row["metric"], {"title": row["title"], "unavailable": row["unavailable"], "cells": {}}
        )
        own["cells"][row["degradation"]] = row

    def both(kind: str) -> Callable[[Row], str]:
        def cell(row: Row) -> str:
            own = row["cells"][kind]
            return "–" if own["rho"] is None else f"{number(own['rho'])} ({number(own['per_image'])})"

        return cell

    def published(kind: str) -> Callable[[Row], str]:
        return lambda row: number(row["cells"][kind]["paper"])

    columns = [Column("metric", _title), Column("images", lambda row: f"{row['cells']['blur']['images']:,}")]
    columns += [Column(TITLES[kind], both(kind)) for kind in SEVERITIES]
    columns.append(Column("images", lambda row: _or_dash(row["cells"]["blur"]["paper_images"]), PAPER))
    columns += [Column(TITLES[kind], published(kind), PAPER) for kind in SEVERITIES]
    facts = result["degradation_facts"]
    notes = (
        "Spearman correlation of quality and negative severity, over all images and severities; in brackets within "
        "each image, averaged over images.",
        f"{result['corpus']}: {facts.get('distinct', 0):,} distinct references; noise drawn for each image.",
    )
    return PrintTable(
        "degradation",
        "Degradation probe (Table 2)",
        tuple(columns),
        tuple(by_metric.values()),
        tuple({**_flat(row), "paper": row["paper"]} for row in result["degradations"]),
        notes,
    )


def _or_dash(value: int | None) -> str:
    return "–" if value is None else f"{value:,}"


def regime_table(result: Result, definition: str) -> PrintTable:
    """Table 9."""

    def own(code: str) -> Callable[[Row], str]:
        return lambda row: f"{row[code]:,} ({number(row[f'{code}_share'])})"

    def published(code: str) -> Callable[[Row], str]:
        def cell(row: Row) -> str:
            paper = row["paper"]
            return "–" if paper is None else f"{paper[code]:,} ({number(paper[code] / paper['n'])})"

        return cell

    columns = [Column("group", lambda row: str(row["group"])), Column("pairs", _count("n"))]
    columns += [Column(name, own(code)) for code, name in REGIMES.items()]
    columns.append(Column("pairs", lambda row: _or_dash((row["paper"] or {}).get("n")), PAPER))
    columns += [Column(name, published(code), PAPER) for code, name in REGIMES.items()]
    from bcs_lab.audit.consensus_scores import DEFINITIONS

    chosen = definition == result["settings"]["consensus"]
    rows = result["regime_rows"][definition]
    return PrintTable(
        "regimes" if chosen else f"regimes_{definition}",
        f"Regimes at {result['settings']['threshold']:g} (Table 9)" + ("" if chosen else ", the other consensus"),
        tuple(columns),
        tuple(rows),
        tuple(_flat(row, ("n", *REGIMES)) for row in rows),
        (f"{result['corpus']}; consensus: {DEFINITIONS[definition]}.",),
    )


def set_table(result: Result) -> PrintTable:
    """Set-level metrics: a line a group, a column a metric."""
    groups: dict[str, dict[str, Any]] = {}
    for row in result["set_level"]:
        groups.setdefault(row["group"], {**row, "values": {}})["values"][row["metric"]] = row["value"]
    titles = {row["metric"]: row["title"] for row in result["set_level"]}

    def value_of(metric: str) -> Callable[[Row], str]:
        return lambda row: number(row["values"].get(metric))

    columns = [Column("group", lambda row: str(row["group"])), Column("pairs", _count("pairs"))]
    columns += [Column(title, value_of(metric)) for metric, title in titles.items()]
    columns += [Column(f"mean {name}", _plain(axis)) for axis, name in AXES.items() if result["teachers"]]
    return PrintTable(
        "set_level",
        "Set-level metrics",
        tuple(columns),
        tuple(groups.values()),
        tuple(result["set_level"]),
        (
            "AlexNet, Inception, CLIP: two-way identification among the group's references (larger is better, chance "
            "0.5). EfficientNet, SwAV: mean correlation distance (smaller is better).",
        ),
    )


# --- text -----------------------------------------------------------------------------------------------------------


def summary(result: Result) -> str:
    """What is printed at the end."""
    ran = sum(row["unavailable"] is None for row in result["metrics"])
    head = (
        f"Audit of {result['corpus']}: {result['n_pairs']:,} pairs, {ran} of {len(result['metrics'])} metrics, "
        f"{len(result['teachers'])} teacher{'s' * (len(result['teachers']) != 1)}"
    )
    chosen = [table for table in tables(result)[1:] if not table.name.startswith("regimes_")]
    blocks = [head, *(table.text() for table in chosen)]
    if result["unavailable"]:
        lines = [f"  {name}: {short_reason(reason)}" for name, reason in result["unavailable"].items()]
        blocks.append("\n".join(["Unavailable, and not replaced by anything (ways out: metric_list.csv):", *lines]))
    left = {key: reason for key, reason in result["undefined"].items() if "/" not in key}
    if left:
        blocks.append("\n".join(f"No {name}: {_first(reason)}" for name, reason in left.items()))
    notes = [f"Note: {note}" for note in result["notes"]]
    if any(column.group == PAPER for table in tables(result) for column in table.shown):
        notes.append(f"Note: columns headed paper are of the {PAPER}, not comparable in size.")
    return "\n\n".join([*blocks, *(["\n".join(notes)] if notes else [])])
