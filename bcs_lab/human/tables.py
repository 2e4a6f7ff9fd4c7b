"""Results of a study as files and text: Table 7 as CSV, Markdown and LaTeX, per question, correlations, a summary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bcs_lab.files import write_json, write_text
from bcs_lab.human import figures
from bcs_lab.human.analyze import SCORES
from bcs_lab.report.figures import save
from bcs_lab.report.table import aligned, csv_text, escape_latex, escape_markdown, interval, number


def write_results(result: Mapping[str, Any], out: Path) -> list[Path]:
    """Write every file of the results into ``out`` and return their paths."""
    write_json(out / "study_results.json", result)
    write_text(out / "table7.csv", csv_text([_flat(row) for row in result["groups"]]))
    write_text(out / "table7.md", table7_markdown(result))
    write_text(out / "table7.tex", table7_latex(result))
    write_text(out / "per_question.csv", csv_text(result["questions"]))
    write_text(out / "correlations.csv", csv_text(result["correlations"]))
    write_text(
        out / "raters.csv", csv_text([{**row, "flags": "; ".join(row["flags"])} for row in result["rater_diagnostics"]])
    )
    caption = _caption(result)
    weights = result["settings"]["kappa_weights"]
    save(figures.reliability(result["groups"], weights, caption), out / "reliability.png")
    save(figures.ratings_against_scores(result["pairs"], _panels(result), caption), out / "ratings_and_scores.png")
    names = ("study_results.json", "table7.csv", "table7.md", "table7.tex", "per_question.csv", "correlations.csv")
    return [out / name for name in (*names, "raters.csv", "reliability.png", "ratings_and_scores.png")]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of Table 7 with the paper's values in columns of their own."""
    paper = row.get("paper") or {}
    mine = {key: value for key, value in row.items() if key != "paper"}
    return {**mine, **{f"paper_{key}": paper.get(key) for key in ("kappa_mean", "kappa_std", "alpha")}}


def _panels(result: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    panels = []
    for row in result["correlations"]:
        if row["matching"]:
            note = f"r = {number(row['pearson'])}, ρ = {number(row['spearman'])}"
            panels.append((row["group"], row["score"], SCORES[row["score"]], note))
    return panels


def _caption(result: Mapping[str, Any]) -> str:
    simulated = " · scores from SIMULATED teachers" if result["simulated_scores"] else ""
    return f"{_who(result)} · corpus {result['corpus']}{simulated}"


def _who(result: Mapping[str, Any]) -> str:
    raters = result["raters"]
    return f"{raters} rater{'s' * (raters != 1)}, {result['items']} pairs of {result['stimuli']} stimuli"


# --- Table 7 --------------------------------------------------------------------------------------------------------


def _settings_line(result: Mapping[str, Any]) -> str:
    settings = result["settings"]
    weights = "unweighted" if settings["kappa_weights"] == "none" else f"{settings['kappa_weights']} weights"
    return (
        f"{_who(result)}. Cohen's kappa ({weights}): mean ± standard deviation over pairs of raters. Krippendorff's "
        f"alpha: {settings['alpha_level']}, nominal beside it. 95 % intervals from {settings['resamples']} resamples "
        "of whole stimuli."
    )


def _pm(mean: float | None, std: float | None) -> str:
    return "–" if mean is None else f"{number(mean)} ± {number(std)}"


def _with_interval(row: Mapping[str, Any], key: str, name: str) -> str:
    bounds = interval(None if row[f"{name}_lo"] is None else [row[f"{name}_lo"], row[f"{name}_hi"]])
    return f"{number(row[key])} ({bounds})" if bounds else number(row[key])


def table7_markdown(result: Mapping[str, Any]) -> str:
    """Table 7 with intervals, and the paper's values in columns that say so."""
    level = result["settings"]["alpha_level"]
    lines = [
        f"| judgement | Cohen's κ | 95 % of the mean | Krippendorff's α ({level}) | α (nominal) "
        "| paper's κ | paper's α |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["groups"]:
        paper = row["paper"] or {}
        bounds = interval(None if row["kappa_lo"] is None else [row["kappa_lo"], row["kappa_hi"]])
        cells = [
            escape_markdown(row["group"]),
            _pm(row["kappa_mean"], row["kappa_std"]),
            bounds or "–",
            _with_interval(row, "alpha", "alpha"),
            _with_interval(row, "alpha_nominal", "alpha_nominal"),
            _pm(paper.get("kappa_mean"), paper.get("kappa_std")),
            number(paper.get("alpha")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    notes = [_settings_line(result), "The paper's values are of other raters and other pictures.", *result["warnings"]]
    return "\n".join([*lines, "", *(f"- {escape_markdown(note)}" for note in notes), ""])


def table7_latex(result: Mapping[str, Any]) -> str:
    """The table's body for a paper; needs no package."""
    lines = [
        "% " + _settings_line(result),
        *(f"% {warning}" for warning in result["warnings"]),
        r"\begin{tabular}{lcccc}",
        r"\hline",
        r" & \multicolumn{2}{c}{this study} & \multicolumn{2}{c}{Tiwari et al., Table 7} \\",
        r"Human judgement & Cohen's $\kappa$ & Krippendorff's $\alpha$ & Cohen's $\kappa$ & Krippendorff's $\alpha$ \\",
        r"\hline",
    ]
    for row in result["groups"]:
        paper = row["paper"] or {}
        cells = [
            escape_latex(str(row["group"]).capitalize()),
            _tex_pm(row["kappa_mean"], row["kappa_std"]),
            _tex(row["alpha"]),
            _tex_pm(paper.get("kappa_mean"), paper.get("kappa_std")),
            _tex(paper.get("alpha")),
        ]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def _tex(value: float | None) -> str:
    return "--" if value is None else f"${value:.3f}$"


def _tex_pm(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "--"
    return f"${mean:.3f}$" if std is None else rf"${mean:.3f} \pm {std:.3f}$"


# --- text -----------------------------------------------------------------------------------------------------------


def summary(result: Mapping[str, Any]) -> str:
    """What is printed at the end."""
    level = result["settings"]["alpha_level"]
    lines = [_settings_line(result), ""]
    head = ["judgement", "kappa", "95 %", f"alpha {level}", "95 %", "nominal", "paper: kappa", "alpha"]
    body = []
    for row in result["groups"]:
        paper = row["paper"] or {}
        body.append([
            row["group"], _pm(row["kappa_mean"], row["kappa_std"]), _bounds(row, "kappa"), number(row["alpha"]),
            _bounds(row, "alpha"), number(row["alpha_nominal"]), _pm(paper.get("kappa_mean"), paper.get("kappa_std")),
            number(paper.get("alpha")),
        ])  # fmt: skip
    lines += aligned([head, *body])
    lines += [
        "(paper: other raters, other pictures)",
        "",
        "Raters' means against scores (*: the score a group should follow; mean over a group's questions of each "
        "question's mean over raters):",
    ]
    body = [
        [row["group"], SCORES[row["score"]] + "*" * row["matching"], number(row["pearson"]), _bounds(row, "pearson"),
         number(row["spearman"]), _bounds(row, "spearman")]
        for row in result["correlations"]
    ]  # fmt: skip
    lines += aligned([["rated", "score", "Pearson", "95 %", "Spearman", "95 %"], *body])
    groups = [row["group"] for row in result["groups"]]
    body = [
        [row["stratum"].replace("_", " "), str(row["pairs"]), *(number(row[key]) for key in SCORES),
         *(number(row[f"rated_{group}"]) for group in groups)]
        for row in result["strata"]
    ]  # fmt: skip
    lines += ["", "Means by stratum:"]
    lines += aligned([["stratum", "pairs", *SCORES.values(), *(f"rated {group}" for group in groups)], *body])
    flagged = [f"  {row['rater']}: {'; '.join(row['flags'])}" for row in result["rater_diagnostics"] if row["flags"]]
    if flagged:
        lines += ["", "Raters to look at (nobody is left out by itself; exclude=[CODE] does):", *flagged]
    lines += [f"Note: {warning}" for warning in result["warnings"]]
    return "\n".join(lines)


def _bounds(row: Mapping[str, Any], name: str) -> str:
    return interval(None if row[f"{name}_lo"] is None else [row[f"{name}_lo"], row[f"{name}_hi"]]) or "–"
