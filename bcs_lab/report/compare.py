"""One comparison from any finished runs: text, CSV, Markdown and a self-contained page."""

from __future__ import annotations

import csv
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, select_autoescape

from bcs_lab.encoders import group_label
from bcs_lab.errors import RunError
from bcs_lab.files import read_json, write_text
from bcs_lab.report import figures
from bcs_lab.report.labels import LabelStudy, label_study, markdown, page_tables, tables
from bcs_lab.report.labels import notes as label_notes
from bcs_lab.report.table import (
    BASELINE,
    HEADINGS,
    PAPER,
    RUN,
    Row,
    best_rows,
    csv_rows,
    interval,
    markdown_table,
    number,
    paper_rows,
    text_table,
)
from bcs_lab.results import head_label

log = logging.getLogger(__name__)

#: More runs than this make a figure that nobody reads.
MOST_DOTS = 60
#: What the test targets of a run depend on.
_TARGETS = ("corpus", "teachers", "split", "test_hash", "n_test")


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


def load_run(folder: Path) -> tuple[Row, dict[str, str], list[Row]]:
    """A finished run as its table row (not yet labelled), what tells it from others, and its baseline rows.

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
        "test_hash": record.get("test_hash") or record.get("split_hash"),
        "encoder": encoder_label(metrics["encoders"]),
        "train_pairs": (settings.get("split") or {}).get("train_pairs"),
        "n_train": metrics["n"].get("train"),
        "seeds": len(metrics.get("members", [])),
        "n_test": metrics["n"]["test"],
        "stand_in": str(bool(metrics.get("stand_in"))).lower(),
        "simulated_teachers": str(bool(metrics.get("simulated_teachers"))).lower(),
        "wall_s": metrics.get("wall_s"),
    }
    note = " + ".join(metrics["encoders"]) if len(metrics["encoders"]) > 1 else ""
    row = Row(RUN, "", metrics["ensemble"], metrics["ci95"], note, facts)
    shared = {key: facts[key] for key in _TARGETS}
    baselines = [Row(BASELINE, "train mean", metrics["baseline"], facts=shared)]
    baselines += [Row(BASELINE, name, values, facts=shared) for name, values in metrics["baselines"].items()]
    return row, run_parts(metrics, settings, record), baselines


def _settings(folder: Path) -> dict[str, Any]:
    try:
        value = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}
    return value if isinstance(value, dict) else {}


def encoder_label(used: Sequence[str]) -> str:
    """A short name for the encoders really used; whether any stands in is always part of it."""
    if len(used) == 1:
        return used[0]
    names = [name.split(" (stand-in ")[0] for name in used]
    group = group_label(names)
    return f"{group} (stand-ins)" if names != list(used) else group


def run_parts(metrics: dict[str, Any], settings: dict[str, Any], record: dict[str, Any]) -> dict[str, str]:
    """What tells one run from another, each in a few words; a stand-in or simulated teachers always show."""

    def named(group: str) -> str:
        key = f"{group}="
        return next(
            (item.removeprefix(key) for item in reversed(record.get("overrides", [])) if item.startswith(key)), ""
        )

    seeds = [str(member.get("seed")) for member in metrics.get("members", [])]
    used = metrics["encoders"]
    encoder = encoder_label(used)
    split = settings.get("split") or {}
    fold = f" {split.get('fold')}" if metrics["split"] == "kfold" else ""
    teachers = metrics["teachers"]
    return {
        "preset": named("preset"),
        "recipe": named("recipe"),
        "encoder": encoder,
        "teachers": _teachers(len(teachers)) + (" (simulated)" if metrics.get("simulated_teachers") else ""),
        "names": "+".join(teachers),
        "head": head_label(metrics) + (" (best)" if (settings.get("head") or {}).get("combine") == "best" else ""),
        "weights": f"{settings.get('consensus', {}).get('weight', 'variance')} weights",
        "split": f"split {metrics['split']}{fold}",
        "corpus": f"corpus {record.get('corpus') or settings.get('corpus', {}).get('kind', '?')}",
        "protocol": f"protocol {metrics['protocol']}" if "protocol" in metrics else "",
        "optim": f"lr {settings.get('optim', {}).get('lr')}",
        "seeds": f"seed {'+'.join(seeds)}" if len(seeds) < 3 else f"{len(seeds)} seeds",
        "labels": f"{split['train_pairs']} labels" if split.get("train_pairs") else ALL_LABELS,
    }


#: What is said of a run that learns from its whole training part, where others do not.
ALL_LABELS = "all labels"


def _teachers(number: int) -> str:
    return f"{number} teacher{'s' * (number != 1)}"


def _label_runs(parts: Sequence[Mapping[str, str]]) -> tuple[list[str], str]:
    """Short labels from what differs between the runs, and one line with what they share."""
    varying = [key for key in parts[0] if len({entry[key] for entry in parts}) > 1]
    if len({entry["preset"] for entry in parts} - {""}) == len(parts):
        # A preset is the name of everything it sets.
        varying = ["preset"]
    if all(entry["recipe"] for entry in parts):  # likewise, of head and features
        varying = [key for key in varying if key != "head"]
    if "teachers" in varying and len({(entry["teachers"], entry["names"]) for entry in parts}) == len(
        {entry["teachers"] for entry in parts}
    ):
        varying.remove("names")
    elif "names" in varying and "teachers" in varying:
        varying.remove("teachers")
    labelled = [key for key in parts[0] if key in varying or key == "encoder"]
    labels = [" · ".join(entry[key] for key in labelled if entry[key]) for entry in parts]
    common = [key for key in parts[0] if len({entry[key] for entry in parts}) == 1]
    left_out = {"preset", "encoder", "optim", "names"} | ({"labels"} if parts[0]["labels"] == ALL_LABELS else set())
    shared = ", ".join(parts[0][key] for key in common if key not in left_out and parts[0][key])
    return labels, f"All runs: {shared}." if len(parts) > 1 else f"Run: {shared}."


def _recipes(parts: Sequence[Mapping[str, str]]) -> list[str]:
    """What runs are called beside their encoders and their number of labels."""
    same = [{**entry, "labels": "", "encoder": ""} for entry in parts]
    labels, _ = _label_runs(same)
    return [label or entry["recipe"] or entry["head"] for label, entry in zip(labels, parts, strict=True)]


def collect(folders: Sequence[Path]) -> tuple[list[Row], str]:
    """Rows of a comparison, and one line with what all runs share.

    The rows are the runs, their baselines (each once a set of targets), and the paper's Table 6.
    """
    loaded, damaged = [], []
    for folder in find_runs(folders):
        try:
            loaded.append(load_run(folder))
        except RunError as error:
            damaged.append(str(error))
    if not loaded:
        raise RunError("\n".join(damaged))
    for message in damaged:
        log.warning("left out: %s", message)
    labels, shared = _label_runs([parts for _, parts, _ in loaded])
    recipes = _recipes([parts for _, parts, _ in loaded])
    runs = _distinct_labels(
        [
            replace(row, label=label, facts={**row.facts, "recipe": recipe})
            for (row, _, _), label, recipe in zip(loaded, labels, recipes, strict=True)
        ]
    )
    targets = {_targets(row) for row in runs}
    baselines: dict[tuple[Any, ...], Row] = {}
    for _, _, rows in loaded:
        for row in rows:
            teachers = len(str(row.facts["teachers"]).split())
            where = [_teachers(teachers)] if len({key[1] for key in targets}) > 1 else []
            where += [f"split {row.facts['split']}"] if len({key[2:] for key in targets}) > 1 else []
            where += [f"corpus {row.facts['corpus']}"] if len({key[0] for key in targets}) > 1 else []
            shown = replace(row, label=" · ".join([row.label, *where]))
            baselines.setdefault((row.label, *_targets(row)), shown)
    ordered = sorted(
        baselines.values(), key=lambda row: (str(row.facts["split"]), str(row.facts["teachers"]).count(" "))
    )
    # The paper's rows are about its own questions.
    return [*runs, *ordered, *(paper_rows() if any(not parts["protocol"] for _, parts, _ in loaded) else ())], shared


def _targets(row: Row) -> tuple[Any, ...]:
    """What the test targets of a row depend on."""
    return tuple(row.facts[key] for key in _TARGETS)


def _distinct_labels(rows: list[Row]) -> list[Row]:
    """Runs that would read the same get the tail of their folder added."""
    labels = [row.label for row in rows]
    return [
        row
        if labels.count(row.label) == 1
        else replace(row, label=f"{row.label} [{'/'.join(Path(str(row.facts['run'])).parts[-2:])}]")
        for row in rows
    ]


def compare(folders: Sequence[Path], out: Path) -> str:
    """Write ``comparison.csv``, ``.md`` and ``.html`` into ``out``; where the number of labels varies, its figure too.

    Args:
        folders: run folders, or folders above them (a sweep).
        out: where the three files go; made if needed.

    Returns:
        The table as text, followed by where the files are.

    Raises:
        RunError: no finished run found, or a damaged ``metrics.json``.
    """
    rows, shared = collect([Path(folder) for folder in folders])
    flat = csv_rows(rows)
    columns = list(dict.fromkeys(key for entry in flat for key in entry))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    write_text(out / "comparison.csv", buffer.getvalue())

    notes = warnings(rows)
    study = label_study(rows)
    lines = [
        "# Comparison of BCS runs",
        "",
        *([markdown(study), "### All runs", ""] if study else []),
        markdown_table(rows, heading="run"),
        "Test pairs only; lower MAE and higher correlation are better; bold: best run of a column; –: undefined.",
        "",
    ]
    write_text(out / "comparison.md", "\n".join([*lines, shared, "", *(f"- {note}" for note in notes), ""]))
    curve = ""
    if study:
        from bcs_lab.report.labels_figure import NAME, write_figure

        curve = write_figure(study, out)
    write_text(out / "comparison.html", _page(rows, shared, notes, study, curve))
    written = f"Written: {out / 'comparison.csv'}, comparison.md, comparison.html"
    if study:
        more = f"All {sum(row.kind == RUN for row in rows)} runs with all columns are in comparison.csv, .md and .html."
        return "\n".join([tables(study), shared, *notes, more, f"{written}, {NAME}.png, {NAME}.svg"])
    return "\n".join(
        [
            text_table(rows, heading="run", intervals=False),
            "*: best run of a column; –: undefined; 95 % intervals are in comparison.csv and .html.",
            shared,
            *notes,
            written,
        ]
    )


def warnings(rows: Sequence[Row]) -> list[str]:
    """What a reader must know before comparing the rows."""
    runs = [row for row in rows if row.kind == RUN]
    notes = []
    if len({(row.facts["corpus"], row.facts["test_hash"]) for row in runs}) > 1:
        notes.append("The runs have different test pairs: their rows are not strictly comparable.")
    if len({row.facts["teachers"] for row in runs}) > 1:
        notes.append("The runs have different teachers, so different targets.")
    if any(row.facts["stand_in"] == "true" for row in runs):
        notes.append("Stand-in encoders were used where a row says so: these are not the paper's encoders.")
    if any(row.facts["simulated_teachers"] == "true" for row in runs):
        notes.append("Teachers are simulated where a row says so.")
    return notes


def _page(rows: Sequence[Row], shared: str, notes: Sequence[str], study: LabelStudy | None, curve: str) -> str:
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
        shared=shared,
        notes=notes,
        number=number,
        interval=interval,
        study=page_tables(study) if study else [],
        study_notes=label_notes(study, "Blue") if study else [],
        curve=curve,
        figure=""
        if len(runs) > MOST_DOTS
        else figures.svg(figures.comparison([row for row in rows if ", fitted" not in row.label])),
    )
