"""Agreement of teachers as CSV files and as the text that is printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bcs_lab.report.page_view import signed
from bcs_lab.report.table import aligned, interval, number
from bcs_lab.results import AXES
from bcs_lab.teacher_agreement import paper_value

Row = Mapping[str, Any]

_AXIS_TITLES = {"questions": "answers", **AXES}


def csv_tables(result: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Name of each CSV file -> its rows, where it has any; the paper's values in columns of their own."""
    tables = {
        "teachers.csv": [_with_paper(row, ("t_pas", "t_sas")) for row in result["by_teacher"]],
        "questions.csv": [
            {key: value for key, value in _with_paper(row, ("unanimous", "kappa")).items() if key != "means"}
            | {f"mean_{teacher}": value for teacher, value in row["means"].items()}
            for row in result["questions"]
        ],
        "teacher_pairs.csv": [
            {
                **row,
                **_spoken(result, row),
                "paper_weighted_kappa": paper_of(result, "weighted_kappa", row),
                "paper_rationale_similarity": paper_of(result, "rationale_similarity", row),
            }
            for row in result["pairwise"]
        ],
        "influence.csv": [
            {key: value for key, value in row.items() if key != "per_question"}
            | {f"shift_{q}": row["per_question"][q]["shift"] for q in result["protocol"]["questions"]}
            for row in result["influence"]
        ],
    }
    return {name: rows for name, rows in tables.items() if rows}


def _with_paper(row: Row, keys: Sequence[str]) -> dict[str, Any]:
    paper = row["paper"] or {}
    mine = {key: value for key, value in row.items() if key != "paper"}
    return {**mine, **{f"paper_{key}": paper.get(key) for key in keys}}


def _spoken(result: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """What is known of the rationales of two teachers, as columns."""
    own = spoken_row(result, row) or {}
    names = ("items", "similarity", "similarity_lo", "similarity_hi", "same_answer", "other_answer", "other_pair")
    return {f"rationale_{name}": own.get(name) for name in names}


def spoken_row(result: Mapping[str, Any], row: Row) -> dict[str, Any] | None:
    """The row of the rationales of two teachers."""
    both = (row["first"], row["second"])
    return next((own for own in result["rationales"]["pairwise"] if (own["first"], own["second"]) == both), None)


def paper_of(result: Mapping[str, Any], key: str, row: Row) -> float | None:
    """The paper's value of a pair of teachers, where the questions are the paper's."""
    return None if result["paper"] is None else paper_value(key, row["first"], row["second"])


# --- text -----------------------------------------------------------------------------------------------------------


def summary(result: Mapping[str, Any]) -> str:
    """What is printed at the end."""
    blocks = [_head(result), _teachers(result)]
    if result["pairwise"]:
        blocks += [_pairs(result), _questions(result), _influence(result), _apart(result)]
    notes = [f"Note: {note}" for note in result["notes"]]
    shown = [*result["by_teacher"], *(result["questions"] if result["pairwise"] else [])]
    if any(row["paper"] for row in shown):
        notes.append("Columns headed paper: the paper's teachers on the paper's corpus, not comparable.")
    return "\n\n".join(["\n".join(block) for block in blocks] + (["\n".join(notes)] if notes else []))


def _head(result: Mapping[str, Any]) -> list[str]:
    teachers, used = result["teachers"], result["used"]
    dropped = f" ({used['items_dropped']:,} dropped)" if used["items_dropped"] else ""
    plural = "s" * (len(teachers) != 1)
    lines = [
        f"{len(teachers)} teacher{plural} on {result['corpus']}: {result['n_pairs']:,} pairs, {result['n_items']:,} "
        f"items answered by {'it' if len(teachers) == 1 else 'all'}{dropped}, {result['settings']['clusters']} concepts"
    ]
    if len(teachers) < 2:
        return lines
    alpha, ci = result["alpha"], result["ci95"]
    paper = result["paper"] or {}
    body = [
        ["unanimous", number(result["unanimous_rate"]), _ci(ci["unanimous_rate"]), number(paper.get("unanimous_rate"))],
        ["Fleiss' kappa", number(result["fleiss_kappa"]), _ci(ci["fleiss_kappa"]), number(paper.get("fleiss_kappa"))],
        ["Krippendorff's alpha, ordinal", number(alpha["ordinal"]["value"]), _ci(alpha["ordinal"]["ci95"]), "–"],
        ["both ends of the scale", number(result["patterns"]["opposite"]), "–", "–"],
    ]
    if used["items_dropped"]:
        loose = result["fleiss_per_item"]
        label = f"Fleiss' kappa of {loose['items']:,} items with two answers or more"
        body.insert(2, [label, number(loose["kappa"]), _ci(loose["ci95"]), "–"])
    return [*lines, "", *_table([["", "value", "95 %", "paper"], *body])]


def _teachers(result: Mapping[str, Any]) -> list[str]:
    labels = [key for key in result["by_teacher"][0] if key.startswith("share_")]
    head = ["teacher (Table 4)", "T-PAS", "95 %", "pairs", "paper", "T-SAS", "95 %", "pairs", "paper"]
    head += [label.removeprefix("share_") for label in labels]
    body = []
    for row in result["by_teacher"]:
        cells = [row["teacher"]]
        for axis in AXES:
            paper = (row["paper"] or {}).get(axis)
            cells += [number(row[axis]), _ci(_bounds(row, axis)), f"{row[f'{axis}_pairs']:,}", number(paper)]
        body.append([*cells, *(_share(row[label]) for label in labels)])
    cells = ["consensus"]
    for axis in AXES:
        own = result["consensus"]
        cells += [number(own[axis]), _ci(_bounds(own, axis)), f"{own[f'{axis}_pairs']:,}", "–"]
    return _table([head, *body, [*cells, *("" for _ in labels)]])


def _pairs(result: Mapping[str, Any]) -> list[str]:
    head = [
        "two teachers (Figure 3)", "kappa", "95 %", "paper", "exact", "adjacent", "opposite", "rationales", "95 %",
        "paper", "T-PAS r", "ρ", "|Δ|", "T-SAS r", "ρ", "|Δ|",
    ]  # fmt: skip
    body = []
    for row in result["pairwise"]:
        spoken = spoken_row(result, row)
        cells = [
            f"{row['first']} – {row['second']}",
            number(row["weighted_kappa"]),
            _ci(_bounds(row, "weighted_kappa")),
        ]
        cells += [number(paper_of(result, "weighted_kappa", row))]
        cells += [_share(row[name]) for name in ("exact", "adjacent", "opposite")]
        cells += [number(spoken["similarity"]), _ci(_bounds(spoken, "similarity"))] if spoken else ["–", "–"]
        cells += [number(paper_of(result, "rationale_similarity", row))]
        for axis in AXES:
            cells += [number(row[f"{axis}_{name}"]) for name in ("pearson", "spearman", "difference")]
        body.append(cells)
    lines = _table([head, *body])
    lines.append("kappa: Cohen's, linear weights; |Δ|: mean absolute difference of the teachers' own scores")
    facts = result["rationales"]
    if facts.get("model"):
        lines.append(
            f"rationales: mean cosine of {facts['model']} ({facts['source']}) over {facts['items']:,} items, "
            f"{facts['distinct_texts']:,} distinct texts"
        )
    return lines


def _questions(result: Mapping[str, Any]) -> list[str]:
    head = ["question (Table 5)", "items", "unanimous", "95 %", "paper", "Fleiss' kappa", "95 %", "paper", "alpha",
            "opposite"]  # fmt: skip
    body = []
    for row in result["questions"]:
        paper = row["paper"] or {}
        body.append(
            [
                f"{row['id']} {row['name']}",
                f"{row['items']:,}",
                number(row["unanimous"]),
                _ci(_bounds(row, "unanimous")),
                number(paper.get("unanimous")),
                number(row["kappa"]),
                _ci(_bounds(row, "kappa")),
                number(paper.get("kappa")),
                number(row["alpha_ordinal"]),
                _share(row["opposite"]),
            ]
        )
    return _table([head, *body])


def _influence(result: Mapping[str, Any]) -> list[str]:
    head = ["consensus with and without"]
    for title in _AXIS_TITLES.values():
        head += [f"{title}: |change|", "shift", "ρ"]
    body = []
    for row in result["influence"]:
        cells = [row["teacher"]]
        for name in _AXIS_TITLES:
            cells += [number(row[f"{name}_change"]), signed(row[f"{name}_shift"]), number(row[f"{name}_spearman"])]
        cells += [_share(row["regime_changed"]), number(row["distance"]), signed(row["offset"])]
        body.append(cells)
    return [
        *aligned([[*head, "regime changed", "distance", "offset"], *body]),
        "shift: consensus with the teacher minus without; distance and offset: its answers against the consensus of "
        "the others",
    ]


def _apart(result: Mapping[str, Any]) -> list[str]:
    lines = []
    for gallery in result["disagreement"]["galleries"]:
        key = f"apart_{gallery['key']}"
        shown = ", ".join(f"{pair['pair_id']} ({number(pair[key])})" for pair in gallery["pairs"][:5])
        lines.append(f"farthest apart {gallery['title'][:1].lower()}{gallery['title'][1:]}: {shown}")
    if lines:
        return lines
    if result["disagreement"]["mean"]["range"] is None:
        return ["No pair has two answers to half of its questions, so none can be said to divide the teachers."]
    return ["The teachers agree on every pair."]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, without columns of paper's values that hold none."""
    empty = {at for at, name in enumerate(rows[0]) if name == "paper" and all(row[at] in ("–", "") for row in rows[1:])}
    return aligned([[cell for at, cell in enumerate(row) if at not in empty] for row in rows])


def _ci(bounds: Sequence[float] | None) -> str:
    return interval(bounds) or "–"


def _bounds(row: Row, name: str) -> list[float] | None:
    low, high = row[f"{name}_lo"], row[f"{name}_hi"]
    return None if low is None else [low, high]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}".replace("%", " %")
