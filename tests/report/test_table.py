"""Result tables: marks, intervals, undefined values, escaping."""

from __future__ import annotations

from bcs_lab.report.table import (
    BASELINE,
    HEADINGS,
    PAPER,
    RUN,
    Row,
    best_rows,
    csv_rows,
    markdown_table,
    paper_rows,
    text_table,
)


def row(label: str, mae: float | None, r: float | None, kind: str = RUN, **extra: object) -> Row:
    values = {key: (mae if key.endswith("_mae") else r) for key in HEADINGS}
    return Row(kind, label, values, **extra)  # type: ignore[arg-type]


def test_the_papers_rows_are_table_6() -> None:
    rows = {entry.label: entry.values for entry in paper_rows()}
    assert list(rows) == [
        "SigLIP baseline",
        "3-VLM ordinal ensemble",
        "4-VLM ordinal ensemble",
        "4-VLM continuous ensemble",
    ]
    best = rows["4-VLM continuous ensemble"]
    assert (best["q_mae"], best["pas_mae"], best["pas_r"], best["sas_mae"], best["sas_r"]) == (
        0.137,
        0.079,
        0.700,
        0.082,
        0.850,
    )
    assert best["pas_rho"] is None


def test_best_is_lowest_error_and_highest_correlation_among_runs_only() -> None:
    rows = [row("a", 0.2, 0.5), row("b", 0.1, 0.4), row("c", 0.01, 0.99, PAPER)]
    assert best_rows(rows, "q_mae") == {1}
    assert best_rows(rows, "q_r") == {0}
    assert best_rows(rows[:1] + rows[2:], "q_mae") == set()


def test_ties_as_printed_are_both_best() -> None:
    assert best_rows([row("a", 0.1001, 0.5), row("b", 0.1004, 0.4)], "q_mae") == {0, 1}


def test_undefined_is_a_dash_and_never_best() -> None:
    rows = [row("a", None, None), row("b", 0.3, 0.2)]
    assert best_rows(rows, "q_r") == {1}
    text = text_table(rows)
    assert "–" in text
    assert "nan" not in text.lower()
    assert csv_rows(rows)[0]["q_mae"] is None


def test_text_columns_line_up() -> None:
    rows = [row("short", 0.1, 0.2, ci95={"q_mae": [0.05, 0.15]}), row("a much longer label", 0.1, 0.2, BASELINE)]
    lines = text_table(rows).splitlines()
    ends = {len(line) for line in lines if line.startswith(("model", "short", "a much", "  95 %"))}
    assert ends == {len(lines[0])}
    assert "0.05–0.15" in text_table(rows)
    assert "0.05–0.15" not in text_table(rows, intervals=False)


def test_markdown_labels_are_literal_text() -> None:
    text = markdown_table([row("a|b_*<script>", 0.1, 0.2), row("c", 0.2, 0.1, note="x|y")])
    assert "a\\|b\\_\\*\\<script\\>" in text
    assert "x\\|y" in text
    assert {line.count("|") - line.count("\\|") for line in text.splitlines()} == {len(HEADINGS) + 2}


def test_csv_has_intervals_in_columns_of_their_own() -> None:
    (flat,) = csv_rows([row("a", 0.1, 0.2, ci95={"sas_r": [0.1, 0.3], "q_r": None}, facts={"run": "x"})])
    assert (flat["sas_r_lo"], flat["sas_r_hi"], flat["q_r_lo"]) == (0.1, 0.3, None)
    assert flat["run"] == "x"
