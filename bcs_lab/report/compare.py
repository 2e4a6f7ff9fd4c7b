"""One comparison from any finished runs: text, CSV, Markdown and a self-contained page."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, select_autoescape

from bcs_lab.errors import RunError
from bcs_lab.files import read_json, write_text
from bcs_lab.report import figures
from bcs_lab.report.table import (
    BASELINE,
    HEADINGS,
    PAPER,
    RUN,
    Row,
    best_rows,
    csv_rows,
    markdown_table,
    number,
    paper_rows,
    text_table,
)

# Overrides that say where or how a job ran, not what it computed.
_SILENT_KEYS = ("experiment", "hydra.", "logger", "store", "force")


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Folders that hold ``metrics.json``, at or below the given ones, each once, in natural order.

    Raises:
        RunError: a folder does not exist, or none of them holds a finished run.
    """
    missing = [str(folder) for folder in folders if not folder.is_dir()]
    if missing:
        raise RunError(f"no such folder: {', '.join(missing)}; expected run folders of `bcs train`")
    found = {path.parent.resolve() for folder in folders for path in folder.rglob("metrics.json")}
    if not found:
        raise RunError(
            f"no metrics.json at or below {', '.join(map(str, folders))}; expected finished `bcs train` runs"
        )
    return sorted(
        found, key=lambda path: [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in path.parts]
    )


def load_run(folder: Path) -> tuple[Row, list[Row]]:
    """A finished run as its table row and its baseline rows.

    Raises:
        RunError: ``metrics.json`` is damaged or lacks keys.
    """
    metrics = read_json(folder / "metrics.json")
    needed = ("ensemble", "ci95", "baseline", "baselines", "encoders", "teachers", "head", "split", "n")
    lacking = [key for key in needed if not isinstance(metrics, dict) or key not in metrics]
    if lacking:
        raise RunError(f"{folder / 'metrics.json'}: expected the keys of `bcs train`, lacks {', '.join(lacking)}")
    settings = _settings(folder)
    record = read_json(folder / "run.json") if (folder / "run.json").is_file() else {}
    facts = {
        "run": str(folder),
        "corpus": record.get("corpus") or settings.get("corpus", {}).get("kind"),
        "encoders": " + ".join(metrics["encoders"]),
        "teachers": " ".join(metrics["teachers"]),
        "head": metrics["head"],
        "split": metrics["split"],
        "split_hash": record.get("split_hash"),
        "seeds": len(metrics.get("members", [])),
        "n_test": metrics["n"]["test"],
        "stand_in": str(bool(metrics.get("stand_in"))).lower(),
        "simulated_teachers": str(bool(metrics.get("simulated_teachers"))).lower(),
        "wall_s": metrics.get("wall_s"),
    }
    row = Row(RUN, run_label(metrics, settings), metrics["ensemble"], metrics["ci95"], facts)
    shared = {key: facts[key] for key in ("corpus", "teachers", "split", "split_hash", "n_test")}
    baselines = [Row(BASELINE, "train mean", metrics["baseline"], facts=shared)]
    baselines += [Row(BASELINE, name, values, facts=shared) for name, values in metrics["baselines"].items()]
    return row, baselines


def _settings(folder: Path) -> dict[str, Any]:
    try:
        value = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}
    return value if isinstance(value, dict) else {}


def run_label(metrics: dict[str, Any], settings: dict[str, Any]) -> str:
    """Encoder, teachers and head in one line; a stand-in or simulated teachers always show."""
    asked = settings.get("encoder", {}).get("name")
    used = metrics["encoders"]
    encoder = used[0] if len(used) == 1 else f"{asked or '+'.join(used)}"
    if len(used) > 1 and metrics.get("stand_in"):
        encoder += " (stand-ins)"
    teachers = f"{len(metrics['teachers'])} teachers" + (" (simulated)" if metrics.get("simulated_teachers") else "")
    weight = settings.get("consensus", {}).get("weight", "variance")
    parts = [encoder, teachers, metrics["head"], f"split {metrics['split']}"]
    if metrics["split"] == "kfold":
        parts[-1] += f" {settings.get('split', {}).get('fold')}"
    if weight != "variance":
        parts.append(f"{weight} weights")
    return " · ".join(parts)


def collect(folders: Sequence[Path]) -> list[Row]:
    """Rows of a comparison: the runs, their baselines (each once a set of targets), the paper's Table 6."""
    runs: list[Row] = []
    baselines: dict[tuple[str, str, str], Row] = {}
    for folder in find_runs(folders):
        row, shared = load_run(folder)
        runs.append(row)
        for base in shared:
            target = tuple(str(base.facts.get(key)) for key in ("corpus", "teachers", "split_hash"))
            baselines.setdefault((base.label, "|".join(target), str(base.values)), base)
    runs = _distinct_labels(runs)
    targets = {(row.facts["teachers"], row.facts["split_hash"]) for row in runs}
    shown = [
        Row(BASELINE, base.label + (f" · {_target(base)}" if len(targets) > 1 else ""), base.values, facts=base.facts)
        for base in baselines.values()
    ]
    shown.sort(key=lambda row: str(row.facts.get("teachers")).count(" "))
    return [*runs, *shown, *paper_rows()]


def _target(base: Row) -> str:
    teachers = len(str(base.facts.get("teachers")).split())
    return f"{teachers} teachers, split {base.facts.get('split')}"


def _distinct_labels(rows: list[Row]) -> list[Row]:
    """Runs that would read the same get the tail of their folder added."""
    labels = [row.label for row in rows]
    return [
        row
        if labels.count(row.label) == 1
        else Row(
            row.kind,
            f"{row.label} [{'/'.join(Path(str(row.facts['run'])).parts[-2:])}]",
            row.values,
            row.ci95,
            row.facts,
        )
        for row in rows
    ]


def compare(folders: Sequence[Path], out: Path) -> str:
    """Write ``comparison.csv``, ``.md`` and ``.html`` into ``out``.

    Args:
        folders: run folders, or folders above them (a sweep).
        out: where the three files go; made if needed.

    Returns:
        The table as text, followed by where the files are.

    Raises:
        RunError: no finished run found, or a damaged ``metrics.json``.
    """
    rows = collect([Path(folder) for folder in folders])
    flat = csv_rows(rows)
    columns = list(dict.fromkeys(key for entry in flat for key in entry))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    write_text(out / "comparison.csv", buffer.getvalue())

    notes = warnings(rows)
    lines = [
        "# Comparison of BCS runs",
        "",
        markdown_table(rows, heading="run"),
        "Test pairs only; lower MAE and higher correlation are better; bold: best run of a column; –: undefined.",
        "",
    ]
    write_text(out / "comparison.md", "\n".join([*lines, *(f"- {note}" for note in notes), ""]))
    write_text(out / "comparison.html", _page(rows, notes))
    return "\n".join(
        [
            text_table(rows, heading="run"),
            "*: best run of a column; intervals: bootstrap over whole concepts; –: undefined.",
            *notes,
            f"Written: {out / 'comparison.csv'}, comparison.md, comparison.html",
        ]
    )


def warnings(rows: Sequence[Row]) -> list[str]:
    """What a reader must know before comparing the rows."""
    runs = [row for row in rows if row.kind == RUN]
    notes = []
    if len({(row.facts["corpus"], row.facts["split_hash"]) for row in runs}) > 1:
        notes.append("The runs have different test pairs: their rows are not strictly comparable.")
    if len({row.facts["teachers"] for row in runs}) > 1:
        notes.append("The runs have different teachers, so different targets.")
    if any(row.facts["stand_in"] == "true" for row in runs):
        notes.append("Stand-in encoders were used where a row says so: these are not the paper's encoders.")
    if any(row.facts["simulated_teachers"] == "true" for row in runs):
        notes.append("Teachers are simulated where a row says so.")
    return notes


def _page(rows: Sequence[Row], notes: Sequence[str]) -> str:
    environment = Environment(
        loader=PackageLoader("bcs_lab", "report"), autoescape=select_autoescape(default=True, default_for_string=True)
    )
    runs = [row for row in rows if row.kind == RUN]
    return environment.get_template("compare.html.j2").render(
        headings=HEADINGS,
        groups=[
            ("", runs),
            ("Baselines on the same test pairs", [row for row in rows if row.kind == BASELINE]),
            (
                "The paper’s Table 6: another corpus (6,855 EEG pairs), not comparable",
                [row for row in rows if row.kind == PAPER],
            ),
        ],
        best={column: {rows[index].label for index in best_rows(rows, column)} for column in HEADINGS},
        notes=notes,
        number=number,
        figure=figures.svg(figures.comparison(rows)),
    )
