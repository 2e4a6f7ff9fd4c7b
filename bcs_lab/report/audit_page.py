"""The audit as one self-contained page, with the pairs that each metric fails on worst."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from bcs_lab import __version__
from bcs_lab.audit.analysis import SHORT, most_and_least
from bcs_lab.audit.consensus_scores import DEFINITIONS
from bcs_lab.audit.degradation import LEVELS, SEVERITIES, TITLES
from bcs_lab.corpus.schema import Corpus
from bcs_lab.files import write_text
from bcs_lab.report.page import THEME_SCRIPT, asset, embed_json, environment, script_hash
from bcs_lab.report.page_charts import Frame, regime_bar
from bcs_lab.report.page_corpus import Pictures
from bcs_lab.report.page_view import plural, share
from bcs_lab.report.table import interval, number
from bcs_lab.results import AXES

Result = Mapping[str, Any]
Row = Mapping[str, Any]

_KINDS = {"t_pas": "pas", "t_sas": "sas"}


def write_page(result: Result, corpus: Corpus, path: Path) -> Path:
    """Write ``audit.html``.

    Args:
        result: of :func:`bcs_lab.audit.analysis.analyze`.
        corpus: the same, for pictures.
        path: of the page.
    """
    script = asset("page.js", "audit.js")
    pictures = Pictures()
    galleries = [_gallery(result, corpus, pictures, gallery) for gallery in result["gallery"]]
    text = (
        environment()
        .get_template("audit.html.j2")
        .render(
            title=f"Audit of metrics: {corpus.name}",
            style=Markup(asset("report.css", "audit.css")),
            script=Markup(script),
            theme_script=Markup(THEME_SCRIPT),
            script_hashes=Markup(" ".join(script_hash(code) for code in (THEME_SCRIPT, script))),
            result=result,
            lead=_lead(result),
            banner=[note for note in result["notes"] if note.startswith("SIMULATED")],
            tiles=_tiles(result),
            axes=AXES,
            short=SHORT,
            kinds=_KINDS,
            matrix=_matrix(result),
            consensus=_consensus(result),
            failures=_failures(result),
            captions=_captions(result),
            degradation=_degradation(result),
            curves=_curves(result),
            degradations=TITLES,
            tables_of_regimes=_regimes(result),
            galleries=galleries,
            sets=_sets(result),
            has_pictures=corpus.root is not None,
            images=Markup(embed_json(pictures.uris)),
            unavailable=[row for row in result["metrics"] if row["unavailable"]],
            ran=[row for row in result["metrics"] if not row["unavailable"]],
            facts=_facts(result),
            left_out={key: why for key, why in result["undefined"].items() if "/" not in key},
            undefined={key: why for key, why in result["undefined"].items() if "/" in key},
        )
    )
    write_text(path, text)
    return path


# --- head -----------------------------------------------------------------------------------------------------------


def _lead(result: Result) -> str:
    ran = sum(not row["unavailable"] for row in result["metrics"])
    text = f"{plural(ran, 'metric')} on {plural(result['n_pairs'], 'pair')} of "
    text += plural(result["settings"]["clusters"], "concept")
    if result["teachers"]:
        text += f", held against the consensus of {', '.join(result['teachers'])}"
    missing = len(result["metrics"]) - ran
    if missing:
        text += f"; {missing} more could not run here and {'are' if missing != 1 else 'is'} not replaced"
    return text + "."


def _tiles(result: Result) -> list[dict[str, str]]:
    tiles = []

    def tile(name: str, value: str, *notes: str, kind: str = "") -> None:
        tiles.append({"name": name, "value": value, "note": "\n".join(note for note in notes if note), "kind": kind})

    best, least = most_and_least(result["consensus"], "rho_sas")
    if best is not None:
        tile("Most with T-SAS", best["title"], f"ρ {number(best['rho_sas'])}, 95 % {_bounds(best, 'rho_sas')}",
             _within(best, "sas"), kind="sas long")  # fmt: skip
    if least is not None:
        tile("Least with T-SAS", least["title"], f"ρ {number(least['rho_sas'])}, 95 % {_bounds(least, 'rho_sas')}",
             _within(least, "sas"), kind="sas long")  # fmt: skip
    best, _ = most_and_least(result["consensus"], "rho_pas")
    if best is not None:
        tile("Most with T-PAS", best["title"], f"ρ {number(best['rho_pas'])}, 95 % {_bounds(best, 'rho_pas')}",
             _within(best, "pas"), kind="pas long")  # fmt: skip
    harsh = [row for row in result["failures"] if row["threshold_harshness"] is not None]
    if harsh:
        most = max(harsh, key=lambda row: row["threshold_harshness"])
        tile("Harshest", most["title"], f"calls {share(most['threshold_harshness'])} of the right pairs bad",
             f"{share(most['threshold_harsh_chance'])} by chance", kind="long")  # fmt: skip
        blind = max(harsh, key=lambda row: row["threshold_blind_spot"])
        tile("Blindest", blind["title"], f"{share(blind['threshold_blind_spot'])} of its best quarter is wrong",
             f"{share(blind['threshold_blind_chance'])} by chance", kind="long")  # fmt: skip
    return tiles


def _within(row: Row, short: str) -> str:
    value = row[f"within_rho_{short}"]
    return "" if value is None else f"within methods {number(value)}"


def _bounds(row: Row, key: str) -> str:
    low, high = row[f"{key}_lo"], row[f"{key}_hi"]
    return "undefined" if low is None else interval([low, high])


# --- tables ---------------------------------------------------------------------------------------------------------


def _by_meaning(result: Result, rows: Sequence[Row]) -> list[Row]:
    """Metrics that go most with T-SAS first, where that is known; unavailable ones last."""
    rho = {row["metric"]: row["rho_sas"] for row in result["consensus"] if row["rho_sas"] is not None}
    return sorted(rows, key=lambda row: (bool(row["unavailable"]), -rho.get(row["metric"], -2.0)))


def _matrix(result: Result) -> dict[str, Any] | None:
    """Every rank correlation of every metric that ran, as shaded cells."""
    columns: list[tuple[str, str, dict[str, float | None]]] = []
    if result["consensus"]:
        for axis, short in SHORT.items():
            columns.append((AXES[axis], "all pairs", {r["metric"]: r[f"rho_{short}"] for r in result["consensus"]}))
            columns.append((AXES[axis], "within", {r["metric"]: r[f"within_rho_{short}"] for r in result["consensus"]}))
    if result["captions"]:
        columns.append(("captions", "all pairs", {row["metric"]: row["rho"] for row in result["captions"]}))
    edge = len(columns)
    for kind in SEVERITIES if result["degradations"] else ():
        own = {row["metric"]: row["rho"] for row in result["degradations"] if row["degradation"] == kind}
        columns.append((TITLES[kind], "", own))
    kept = [(at, column) for at, column in enumerate(columns) if any(v is not None for v in column[2].values())]
    metrics = [row for row in _by_meaning(result, result["metrics"]) if not row["unavailable"]]
    if not kept or not metrics:
        return None
    first = next((place for place, (at, _) in enumerate(kept) if at >= edge), -1)
    return {
        "heads": [(name, note, place == first) for place, (_, (name, note, _)) in enumerate(kept)],
        "rows": [
            {"title": row["title"], "cells": [_shaded(own.get(row["metric"])) for _, (_, _, own) in kept]}
            for row in metrics
        ],
        "first": first,
    }


def _shaded(value: float | None) -> dict[str, Any]:
    shade = 0.0 if value is None else round(0.03 + 0.66 * abs(value), 3)
    text = "–" if value is None else f"{round(value, 2) + 0.0:.2f}".replace("-", "−")
    return {"text": text, "value": value, "shade": shade, "down": value is not None and value < 0}


def _consensus(result: Result) -> list[dict[str, Any]]:
    rows = _by_meaning(result, result["consensus"])
    ends = [
        row[f"{name}_{short}{end}"]
        for row in rows
        for name in ("rho", "within_rho")
        for short in SHORT.values()
        for end in ("", "_lo", "_hi")
    ]
    known = [value for value in ends if value is not None]
    low, high = min([-0.2, *known]), max([0.3, *known])
    out = []
    for row in rows:
        paper = row["paper"] or {}
        charts = {
            short: _forest(row, short, kind, paper.get(f"rho_{short}"), low, high)
            for short, kind in zip(SHORT.values(), _KINDS.values(), strict=True)
        }
        keys = [f"{name}_{short}" for short in SHORT.values() for name in ("rho", "r", "within_rho")]
        bounds = {key: None if row[f"{key}_lo"] is None else [row[f"{key}_lo"], row[f"{key}_hi"]] for key in keys}
        out.append({**row, "charts": charts, "bounds": bounds, "paper": paper})
    return out


def _forest(row: Row, short: str, kind: str, paper: float | None, low: float, high: float) -> Markup:
    """All pairs (dot), within methods (ring) and the paper (diamond) on one line, zero marked."""
    frame = Frame(width=150, height=22, left=5, right=5, top=0, bottom=0)

    def x(value: float) -> float:
        return frame.x((min(max(value, low), high) - low) / (high - low))

    parts = [
        f'<line x1="{frame.x(0)}" y1="11" x2="{frame.x(1)}" y2="11" class="grid"/>',
        f'<line x1="{x(0)}" y1="2" x2="{x(0)}" y2="20" class="axis"/>',
    ]
    for key, y, ring in ((f"rho_{short}", 8, False), (f"within_rho_{short}", 15, True)):
        if row[f"{key}_lo"] is not None:
            parts.append(
                f'<line x1="{x(row[f"{key}_lo"])}" y1="{y}" x2="{x(row[f"{key}_hi"])}" y2="{y}" '
                f'class="{kind} whisker{" thin" if ring else ""}"/>'
            )
        if row[key] is not None:
            size = 3.0 if ring else 3.8
            parts.append(f'<circle cx="{x(row[key])}" cy="{y}" r="{size}" class="{kind}{" ring" if ring else ""}"/>')
    if paper is not None:
        parts.append(f'<path d="M{x(paper)} 3.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z" class="consensus"/>')
    return Markup(f'<svg class="chart cell wide" viewBox="0 0 150 22" aria-hidden="true">{"".join(parts)}</svg>')


def _failures(result: Result) -> list[dict[str, Any]]:
    out = []
    for row in _by_meaning(result, result["failures"]):
        cells = []
        for variant in ("threshold", "quartile"):
            for name, chance, part, whole in (
                ("harshness", "harsh_chance", "harsh", "right"),
                ("blind_spot", "blind_chance", "blind", "top"),
            ):
                key = f"{variant}_{name}"
                low = row[f"{key}_lo"]
                cells.append(
                    {
                        "value": row[key],
                        "bounds": None if low is None else [low, row[f"{key}_hi"]],
                        "chance": row[f"{variant}_{chance}"],
                        "of": f"{row[f'{variant}_{part}']:,} of {row[f'{variant}_{whole}']:,}",
                        "bar": _meter(row[key], row[f"{variant}_{chance}"]),
                        "notes": row[f"{variant}_notes"],
                    }
                )
        out.append({**row, "cells": cells})
    return out


def _meter(value: float | None, chance: float | None) -> Markup:
    """A share as a bar, with a tick where chance would put it."""
    if value is None:
        return Markup("")
    tick = "" if chance is None else f'<b style="left:{100 * chance:.1f}%"></b>'
    worse = " worse" if chance is not None and value > chance else ""
    return Markup(f'<span class="meter rate{worse}"><i style="width:{100 * value:.1f}%"></i>{tick}</span>')


def _captions(result: Result) -> list[dict[str, Any]]:
    out = []
    for row in _by_meaning(result, result["captions"]):
        keys = ("rho", "r", "hr", "bsr")
        bounds = {key: None if row[f"{key}_lo"] is None else [row[f"{key}_lo"], row[f"{key}_hi"]] for key in keys}
        bars = {key: _meter(row[key], 0.25) for key in ("hr", "bsr")}
        out.append({**row, "bounds": bounds, "bars": bars, "paper": row["paper"] or {}})
    return out


def _degradation(result: Result) -> list[dict[str, Any]]:
    by_metric: dict[str, dict[str, Any]] = {}
    for row in result["degradations"]:
        own = by_metric.setdefault(
            row["metric"],
            {key: row[key] for key in ("metric", "title", "unavailable", "reason", "images", "paper_images")}
            | {"cells": []},
        )
        own["cells"].append(
            {**_shaded(row["rho"]), "each": number(row["per_image"])[:-1] if row["per_image"] is not None else "–",
             "reading": row["reading"], "paper": row["paper"]}
        )  # fmt: skip
    return [dict(row) for row in _by_meaning(result, list(by_metric.values()))]


def _curves(result: Result) -> list[dict[str, Any]]:
    """One small chart a metric."""
    by_metric: dict[str, list[Row]] = {}
    for row in result["degradations"]:
        if len(row["mean_ranks"]) == LEVELS:
            by_metric.setdefault(row["metric"], []).append(row)
    out = []
    for row in _by_meaning(result, [{"metric": m, "unavailable": None, "rows": rows} for m, rows in by_metric.items()]):
        frame = Frame(width=170, height=126, left=22, bottom=20, top=6, right=8)
        parts = []
        for tick in (0, 0.5, 1):
            parts.append(
                f'<line x1="{frame.x(0)}" y1="{frame.y(tick)}" x2="{frame.x(1)}" y2="{frame.y(tick)}" class="grid"/>'
            )
            parts.append(
                f'<text x="{frame.x(0) - 4}" y="{frame.y(tick) + 3}" class="tick" text-anchor="end">{tick:g}</text>'
            )
        for level in range(LEVELS):
            at = frame.x(level / (LEVELS - 1))
            parts.append(f'<text x="{at}" y="{frame.y(0) + 13}" class="tick" text-anchor="middle">{level + 1}</text>')
        for own in row["rows"]:
            colour = f"d{list(SEVERITIES).index(own['degradation'])}"
            points = [(frame.x(k / (LEVELS - 1)), frame.y(value)) for k, value in enumerate(own["mean_ranks"])]
            title = escape(
                f"{TITLES[own['degradation']]}: ρ {number(own['rho'])}, on each image {number(own['per_image'])}"
            )
            parts.append(f'<polyline points="{" ".join(f"{a},{b}" for a, b in points)}" class="{colour} line"/>')
            parts += [
                f'<circle cx="{a}" cy="{b}" r="2.4" class="{colour}"><title>{title}</title></circle>' for a, b in points
            ]
        label = escape(f"{row['rows'][0]['title']}: mean rank of quality at each severity")
        chart = Markup(
            f'<svg class="chart small" viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{label}">'
            f"{''.join(parts)}</svg>"
        )
        out.append({"title": row["rows"][0]["title"], "chart": chart})
    return out


def _regimes(result: Result) -> list[dict[str, Any]]:
    out = []
    for name, rows in result["regime_rows"].items():
        chosen = name == result["settings"]["consensus"]
        shown = []
        for row in rows:
            paper = row["paper"]
            shares = {code: row[f"{code}_share"] for code in ("hh", "hl", "lh", "ll")}
            of_paper = None if paper is None else {code: paper[code] / paper["n"] for code in shares}
            shown.append(
                {
                    **row,
                    "bar": regime_bar(shares) if row["n"] else Markup(""),
                    "paper_bar": None if of_paper is None else regime_bar(of_paper),
                    "paper_shares": of_paper,
                }
            )
        has_paper = any(row["paper_bar"] for row in shown)
        out.append({"definition": DEFINITIONS[name], "chosen": chosen, "rows": shown, "has_paper": has_paper})
    return sorted(out, key=lambda table: not table["chosen"])


def _sets(result: Result) -> dict[str, Any] | None:
    """Set-level metrics: a line a group."""
    groups: dict[str, dict[str, Any]] = {}
    for row in result["set_level"]:
        groups.setdefault(row["group"], {**row, "values": {}})["values"][row["metric"]] = row["value"]
    titles = {row["metric"]: row["title"] for row in result["set_level"]}
    better = {row["metric"]: row["higher_is_better"] for row in result["metrics"]}
    return {"titles": titles, "better": better, "rows": list(groups.values())} if groups else None


# --- galleries ------------------------------------------------------------------------------------------------------


def _gallery(result: Result, corpus: Corpus, pictures: Pictures, gallery: Row) -> dict[str, Any]:
    titles = {row["metric"]: row["title"] for row in result["metrics"]}
    kinds = {
        "harsh": ("Harsh", f"Right by {gallery['by']}, and yet in the lowest quarter of {gallery['title']}."),
        "blind": ("Blind", f"Wrong by {gallery['by']}, and yet in the highest quarter of {gallery['title']}."),
    }
    blocks = [
        {
            "kind": kind,
            "title": title,
            "lead": lead,
            "cards": [_card(corpus, pictures, titles, pair) for pair in gallery[kind]],
        }
        for kind, (title, lead) in kinds.items()
    ]
    return {"metric": gallery["metric"], "title": gallery["title"], "blocks": blocks}


def _card(corpus: Corpus, pictures: Pictures, titles: Mapping[str, str], pair: Row) -> dict[str, Any]:
    shown = []
    if corpus.root is not None:
        for name, path in (
            ("reference", corpus.reference_file(pair["row"])),
            ("reconstruction", corpus.reconstruction_file(pair["row"])),
        ):
            shown.append((name, pictures.place(path, corpus.max_image_pixels)))
    origin = [pair["method"], pair["subject"], pair["pair_id"]]
    scores = [
        {"name": name, "kind": _KINDS[axis], "at": f"{100 * pair[axis]:.1f}", "text": f"{pair[axis]:.2f}"}
        for axis, name in AXES.items()
        if pair.get(axis) is not None
    ]
    metrics = [
        {
            "title": titles[metric],
            "mine": metric == pair["metric"],
            "at": None if own["rank"] is None else f"{100 * own['rank']:.1f}",
            "text": _short(own["value"]) if own["value"] is not None else "∞" if own["rank"] is not None else "–",
        }
        for metric, own in pair["scores"].items()
    ]
    metrics.sort(key=lambda own: not own["mine"])
    cosine = pair.get("caption_cosine")
    return {
        "title": pair["concept"].replace("_", " ") if pair["concept"] not in ("", "na") else pair["pair_id"],
        "origin": " · ".join(text for text in origin if text not in ("", "na")),
        "pictures": shown,
        "scores": scores,
        "caption": None if cosine is None else f"captions {cosine:.2f}",
        "metrics": metrics,
    }


def _short(value: float) -> str:
    """Three digits that mean something.

    >>> _short(0.00321), _short(23.4567), _short(-0.25)
    ('0.0032', '23.5', '−0.250')
    """
    size = abs(value)
    digits = 4 if size < 0.01 and size else 3 if size < 1 else 2 if size < 10 else 1
    return f"{value:.{digits}f}".replace("-", "−")


# --- provenance -----------------------------------------------------------------------------------------------------


def _facts(result: Result) -> list[tuple[str, str]]:
    settings, probe, captions = result["settings"], result["degradation_facts"], result["caption_facts"]
    facts = [
        ("Corpus", result["corpus"] + (" (SIMULATED teachers)" if result["simulated_teachers"] else "")),
        ("Teachers", ", ".join(result["teachers"]) or "none"),
        ("Consensus", settings["consensus_definition"]),
        ("High", f"{settings['threshold']:g} or more"),
        ("Orientation", settings["orientation"]),
        ("Intervals", f"{settings['interval']}, {settings['resamples']:,} resamples, seed {settings['seed']}"),
    ]
    if probe:
        facts.append(
            (
                "Degradation probe",
                ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in probe.items() if value is not None),
            )
        )
    if captions:
        facts.append(("Captions", ", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in captions.items())))
    if settings["compat"] != "correct":
        facts.append(("Definitions", "as in the authors' code (compat=reference)"))
    facts.append(("bcs_lab", f"{__version__}, {datetime.now(UTC):%Y-%m-%d}"))
    return facts
