"""What a report says about one run, as plain values for its template: tiles, notes, tables, charts, provenance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from bcs_lab import __version__
from bcs_lab.errors import ConfigError
from bcs_lab.evaluate import METRICS
from bcs_lab.methods import method_table, verdict
from bcs_lab.regimes import REGIMES
from bcs_lab.report import page_charts as charts
from bcs_lab.report.page_corpus import Behind, Pictures, stored_cosine
from bcs_lab.report.page_run import TRAIN, ReportRun
from bcs_lab.report.page_stats import (
    Gallery,
    covered,
    cross_regimes,
    galleries,
    mean,
    question_rows,
    regime_counts,
    reliability,
)
from bcs_lab.report.table import BASELINE, MEMBER, PAPER, RUN, Row, interval, number, paper_rows
from bcs_lab.results import AXES, result_rows
from bcs_lab.store import fingerprint_digest
from bcs_lab.teachers.protocol import BCS12, PERCEPTUAL, SEMANTIC

Floats = NDArray[np.float64]
View = dict[str, Any]

PAPER_TITLE = "The paper’s Table 6: another corpus (6,855 EEG pairs), not comparable"

#: Structural similarity is measured on at most this many pairs.
MAX_SIMILARITY = 1500

#: From this share of unfamiliar pairs on, a banner says so.
NOTABLE_OOD = 0.05

_KINDS = ("pas", "sas")
_METRIC_PREFIX = {"t_pas": "pas", "t_sas": "sas"}


@dataclass
class Section:
    """A run with what is computed once for its part of the page.

    Attributes:
        run: as read.
        behind: its corpus.
        part: of a training run, or ``all``.
        shown: positions of the pairs that charts, tables and galleries are about.
        answers: of all the corpus' teachers, [n, n_teachers, n_questions].
        predicted_codes: regime of every pair as predicted.
        target_codes: regime of every pair by the consensus, ``""`` where unknown.
        metrics: conventional metrics by name, [n], NaN where not measured.
        metric_note: which metric the harsh and blind galleries use, in a sentence.
        galleries: pairs worth looking at.
        has_pictures: whether any pair of the part has a readable picture.
        has_rationales: whether any pair of the part has a rationale.
    """

    run: ReportRun
    behind: Behind
    part: str
    shown: NDArray[np.int64]
    answers: Floats
    predicted_codes: NDArray[np.object_]
    target_codes: NDArray[np.object_]
    metrics: dict[str, Floats]
    metric_note: str
    galleries: list[Gallery]
    has_pictures: bool
    has_rationales: bool

    @property
    def of_part(self) -> str:
        """Which pairs, as the end of a sentence."""
        if self.run.kind != TRAIN:
            return "of the scored set"
        return {"all": "of all parts", "val": "of the validation part"}.get(self.part, f"of the {self.part} part")

    @property
    def judged(self) -> bool:
        """Whether any pair shown has a consensus."""
        return not np.isnan(self.run.target[self.shown]).all()

    @property
    def headline(self) -> str:
        """The run's main numbers on one line."""
        run = self.run
        if run.kind == TRAIN:
            values = run.facts["ensemble"]
            parts = [f"T-PAS r {number(values['pas_r'])}", f"T-SAS r {number(values['sas_r'])}"]
            return f"{run.corpus_name}, {plural(run.facts['n'].get('test', 0), 'test pair')}: {', '.join(parts)}"
        p, s = (number(mean(own.score)) for own in run.axes.values())
        return f"{run.corpus_name or run.folder.name}, {plural(len(run), 'pair')} scored: mean T-PAS {p}, T-SAS {s}"


def section(run: ReportRun, behind: Behind, pictures: Pictures, part: str, pairs: int) -> Section:
    """Measure what the page needs.

    Args:
        run: as read.
        behind: its corpus.
        pictures: of the page; measured pictures are kept there.
        part: of a training run.
        pairs: most pairs a gallery.

    Raises:
        ConfigError: no pair is in that part.
    """
    everything = run.kind != TRAIN or part == "all"
    shown = np.arange(len(run)) if everything else np.flatnonzero(run.part == part)
    if not len(shown):
        raise ConfigError(f"part={part}: {run.folder} has no pair in that part; choose train, val, test or all")
    p, s = run.axes["t_pas"], run.axes["t_sas"]
    metrics, note = _metrics(run, behind, pictures, shown)
    # An axis without questions is undefined everywhere and says nothing about which pairs are good.
    asked = [own for own, group in ((p, PERCEPTUAL), (s, SEMANTIC)) if run.protocol.indices(group)]
    overall, target = (np.mean(values, axis=0) for values in ([a.score for a in asked], [a.target for a in asked]))
    spread = np.fmax(p.std, s.std)
    first = next(iter(metrics.items()), None)
    chosen = galleries(shown, overall, target, spread, run.labels["concept"].tolist(), first, pairs)
    known = behind.row[shown] >= 0
    return Section(
        run,
        behind,
        "all" if everything else part,
        shown,
        behind.answers(),
        run.regimes(),
        run.regimes(of_target=True),
        metrics,
        note,
        chosen,
        has_pictures=any(pictures.cost(path, behind.max_pixels) for i in shown[:20] for path in behind.files(run, i)),
        has_rationales=behind.corpus is not None
        and bool(known.any())
        and bool((behind.corpus.rationales[behind.row[shown[known]]] != "").any()),
    )


def _metrics(
    run: ReportRun, behind: Behind, pictures: Pictures, shown: NDArray[np.int64]
) -> tuple[dict[str, Floats], str]:
    """Conventional metrics to hold the scores against, the one for the galleries first."""
    out: dict[str, Floats] = {}
    notes = []
    measured = shown
    if len(shown) > MAX_SIMILARITY:
        measured = np.sort(np.random.default_rng(0).choice(shown, MAX_SIMILARITY, replace=False))
    values = np.full(len(run), np.nan)
    for i in measured.tolist():
        values[i] = pictures.similarity(*behind.files(run, i), behind.max_pixels)
    if not np.isnan(values).all():
        out["SSIM"] = values
        notes.append(
            "The conventional metric is SSIM (structural similarity) of the grey pictures at 128 pixels a side"
        )
        if len(measured) < len(shown):
            notes[-1] += f", measured on {len(measured):,} pairs drawn at random"
    cosine = stored_cosine(run, behind)
    if cosine is not None:
        name = f"cosine {cosine[0]}"
        if not out:
            notes.append(
                f"Without pictures there is no pixel metric; its place takes the {name} of reference and reconstruction"
            )
        out[name] = cosine[1]
    if not out:
        notes.append("Without pictures or stored embeddings there is no metric to hold the scores against")
    return out, notes[0] + "."


# --- words and numbers ------------------------------------------------------------------------------------------------


def share(value: float | None) -> str:
    """A share in per cent; a dash where undefined."""
    return "–" if value is None else f"{value:.0%}".replace("%", " %")


def signed(value: float | None) -> str:
    """A difference, with its sign."""
    return "–" if value is None else f"{value:+.3f}".replace("-", "−")


def between(bounds: Sequence[float | None] | None) -> str:
    """An interval that may hold negative numbers."""
    if not bounds or bounds[0] is None or bounds[1] is None:
        return ""
    return f"{signed(bounds[0])} to {signed(bounds[1])}"


def _defined(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(value)
    return float(value) if usable else None


def plural(n: int, noun: str) -> str:
    """A number and its noun: ``1 pair``, ``1,200 pairs``."""
    return f"{n:,} {noun}{'s' * (n != 1)}"


# --- the view ---------------------------------------------------------------------------------------------------------


def view(section: Section, place: Mapping[int, int], label: str, cut: Sequence[str]) -> View:
    """Everything the template says about a run.

    Args:
        section: of the run.
        place: position of a pair -> its row in the page's table, which charts link to.
        label: short name beside other runs.
        cut: what was left out to keep the page small.
    """
    run, shown = section.run, section.shown
    used = [section.behind.teachers.index(name) for name in run.judged_by if name in section.behind.teachers]
    answers = section.answers[shown][:, used] if used else np.zeros((len(shown), 0, len(run.protocol.questions)))
    questions = question_rows(run.prediction[shown], run.target[shown], answers, run.protocol)
    predicted, target = section.predicted_codes[shown], section.target_codes[shown]
    crossed = cross_regimes(predicted, target)
    name = run.corpus_name or run.folder.name
    notes = [*run.notes, *section.behind.notes, *([section.behind.stale] if section.behind.stale else [])]
    if cut:
        notes.append("To keep the page small: " + " ".join(cut) + " A larger max_mb shows more.")
    content: View = {
        "label": label,
        "title": f"{'BCS trained on' if run.kind == TRAIN else 'BCS scores of'} {name}",
        "lead": _lead(section),
        "banner": _banner(section),
        "tiles": _tiles(section, crossed.agreement if crossed.n else None),
        "notes": [*_baseline_notes(run), *notes],
        "of_part": section.of_part,
        "count": plural(len(shown), "pair"),
        "questions": questions,
        "agreement_note": "" if used else "Unknown here, since the corpus could not be opened.",
        "regimes": regime_counts(predicted),
        "target_regimes": regime_counts(target),
        "crossed": crossed if crossed.n else None,
        "gallery_lead": _gallery_lead(section),
        "pairs_lead": _pairs_lead(section),
        "filters": {
            "method": bool((run.labels["method"] != "").any()),
            "part": len(set(run.part.tolist())) > 1,
            "ood": bool(run.ood.any()),
        },
        "facts": _provenance(section),
        "settings": yaml.safe_dump(run.settings, sort_keys=False, allow_unicode=True) if run.settings else "",
    }
    content |= _tables(run) | _charts(section, questions, place) | _calibration(section) | _methods(section)
    return content


def _lead(section: Section) -> str:
    run = section.run
    encoders = " + ".join(run.encoders)
    teachers = f"{plural(len(run.teachers), 'teacher')} ({', '.join(run.teachers)})"
    if run.kind == TRAIN:
        n = run.facts["n"]
        counts = ", ".join(f"{n.get(part, 0):,} {part}" for part in ("train", "val", "test"))
        members = plural(len(run.facts["members"]), "member")
        return f"{encoders}; {run.head} head, {members}; consensus of {teachers}; {run.facts['split']} split: {counts}."
    source = run.facts["model"].get("corpus")
    trained = f", trained on {source}" if source else ""
    scored = f"{plural(len(run), 'pair')} scored by {encoders} with a {run.head} head{trained}"
    return f"{scored}; it learned the consensus of {teachers}."


def _banner(section: Section) -> list[tuple[str, str]]:
    """Heads and texts of what must be known before any number is read."""
    run = section.run
    out = []
    warned = run.facts.get("warnings")
    for text in warned if isinstance(warned, list) else []:
        head, colon, rest = str(text).partition(": ")
        # Warnings of a run begin with what they are about in capitals; others have no head.
        out.append(
            (head.capitalize() + ".", rest[:1].upper() + rest[1:]) if colon and head.isupper() else ("", str(text))
        )
    said = " ".join(f"{head} {text}" for head, text in out).lower()
    if run.simulated and "simulated" not in said:
        out.append(("Simulated teachers.", "Answers behind these figures were computed, not given by annotators."))
    if run.kind != TRAIN and run.facts.get("corpus_simulated_teachers") and run.judged_by:
        out.append(
            ("Simulated consensus.", "The scored corpus holds computed answers; what is said against its consensus is.")
        )
    if run.stand_ins and "stand-in" not in said:
        out.append(("Stand-in encoders.", f"Not the encoders asked for: {'; '.join(run.stand_ins)}."))
    unfamiliar = float(run.ood.mean())
    if unfamiliar >= NOTABLE_OOD and "ood" not in said and "out of distribution" not in said:
        n = int(run.ood.sum())
        text = (
            f"{share(unfamiliar)} of the pairs ({n:,}) {'is' if n == 1 else 'are'} far from the images the model was "
            "trained on; their scores and intervals deserve less trust."
        )
        out.append(("Out of distribution.", text))
    if run.kind == TRAIN and section.part in ("train", "all"):
        out.append(
            ("Seen in training.", "Charts and galleries below show pairs the model was trained on; Table 6 does not.")
        )
    return out


def _tile(name: str, value: str, note: str = "", unit: str = "", kind: str = "") -> dict[str, str]:
    return {"name": name, "value": value, "note": note, "unit": unit, "kind": kind}


def _tiles(section: Section, agreement: float | None) -> list[dict[str, str]]:
    run = section.run
    tiles = []
    results = run.facts["ensemble"] if run.kind == TRAIN else run.facts.get("against_consensus")
    if run.kind != TRAIN:
        for (axis, own), kind in zip(run.axes.items(), _KINDS, strict=True):
            known = own.score[~np.isnan(own.score)]
            middle = (
                f"half of the pairs lie in {np.quantile(known, 0.25):.2f}–{np.quantile(known, 0.75):.2f}"
                if len(known)
                else ""
            )
            tiles.append(_tile(f"Mean {AXES[axis]}", number(mean(known)), middle, kind=kind))
    if isinstance(results, dict):
        bounds = (run.facts if run.kind == TRAIN else results).get("ci95") or {}
        for (axis, name), kind in zip(AXES.items(), _KINDS, strict=True):
            key = _METRIC_PREFIX[axis]
            others = f"MAE {number(results.get(f'{key}_mae'))}, ρ {number(results.get(f'{key}_rho'))}"
            note = f"{_bounds(bounds.get(f'{key}_r'))}\n{others}"
            tiles.append(_tile(f"{name}, correlation", number(results.get(f"{key}_r")), note, "r", kind))
        note = f"{_bounds(bounds.get('q_mae'))}\nr {number(results.get('q_r'))}, ρ {number(results.get('q_rho'))}"
        tiles.append(_tile("Single answers, error", number(results.get("q_mae")), note, "MAE"))
    if run.kind == TRAIN:
        tests = run.part == "test"
        concepts = len(set(run.labels["concept"][tests].tolist()) - {""})
        note = plural(concepts, "unseen concept") if run.facts["split"] == "concept" else plural(concepts, "concept")
        tiles.append(_tile("Test pairs", f"{int(tests.sum()):,}", f"{note}\nof {plural(len(run), 'pair')}"))
    else:
        skipped = _defined(run.facts.get("skipped")) or 0
        tiles.append(_tile("Pairs scored", f"{len(run):,}", f"{int(skipped):,} skipped"))
        tiles.append(
            _tile(
                "Out of distribution",
                share(float(run.ood.mean())),
                f"{plural(int(run.ood.sum()), 'pair')} unlike the training images",
            )
        )
    if run.coverage and run.level is not None:
        widths = [_defined((run.coverage["axes"].get(axis) or {}).get("half_width")) for axis in AXES]
        held = [_defined((run.coverage["axes"].get(axis) or {}).get("held_out_concepts")) for axis in AXES]
        shown = " · ".join("–" if width is None else f"±{width:.2f}" for width in widths)
        tiles.append(
            _tile(
                f"{share(run.level)} intervals",
                shown,
                f"hold {share(held[0])} and {share(held[1])} of held-out T-PAS and T-SAS",
                kind="long",
            )
        )
    if agreement is not None:
        tiles.append(_tile("Same regime", share(agreement), f"as the consensus, pairs {section.of_part}"))
    return tiles


def _bounds(given: Any) -> str:
    return f"95 % interval {interval(given)}" if given else "no interval"


def _baseline_notes(run: ReportRun) -> list[str]:
    """Where a plain cosine ranks pairs better than the ensemble, which the reader should know first."""
    if run.kind != TRAIN:
        return []
    notes = []
    plain = {name: row for name, row in run.facts["baselines"].items() if not name.endswith(", fitted")}
    for axis, name in AXES.items():
        key = f"{_METRIC_PREFIX[axis]}_rho"
        mine = _defined(run.facts["ensemble"].get(key))
        others = {label: value for label, row in plain.items() if (value := _defined(row.get(key))) is not None}
        best = max(others, key=lambda label: others[label], default=None)
        if mine is not None and best is not None and others[best] > mine:
            notes.append(
                f"On {name} a plain baseline ranks pairs better than this ensemble: {best} (ρ {number(others[best])} "
                f"against {number(mine)})."
            )
    return notes


def _tables(run: ReportRun) -> View:
    if run.kind == TRAIN:
        rows = result_rows(run.facts)
        groups = [
            ("", [row for row in rows if row.kind == RUN]),
            ("Members on their own", [row for row in rows if row.kind == MEMBER]),
            ("Baselines on the same test pairs", [row for row in rows if row.kind == BASELINE]),
            (PAPER_TITLE, [row for row in rows if row.kind == PAPER]),
        ]
        return {
            "table": groups,
            "table_lead": f"The ensemble on {plural(run.facts['n'].get('test', 0), 'held-out test pair')}, its "
            "members, and what plain baselines reach.",
            "truth": _truth_table(run),
        }
    results = run.facts.get("against_consensus")
    if not isinstance(results, dict):
        return {"table": None, "truth": None}
    own = Row(RUN, "this scored set", {key: _defined(results.get(key)) for key in METRICS}, results.get("ci95") or {})
    trained = _metrics_of_model(run)
    groups = [("", [own])]
    if trained is not None:
        groups.append(("The model’s own held-out test pairs", [trained]))
    if run.protocol.ids == BCS12.ids:
        groups.append((PAPER_TITLE, list(paper_rows())))
    return {
        "table": groups,
        "table_lead": f"The scores against the consensus of {', '.join(run.judged_by) or 'the corpus’ teachers'}.",
        "truth": None,
    }


def _metrics_of_model(run: ReportRun) -> Row | None:
    given = run.facts["model"].get("metrics")
    values = given.get("ensemble") if isinstance(given, dict) else None
    if not isinstance(values, dict):
        return None
    return Row(
        BASELINE,
        str(run.facts["model"].get("corpus") or "test part"),
        {key: _defined(values.get(key)) for key in METRICS},
        given.get("ci95") or {},
    )


def _truth_table(run: ReportRun) -> list[tuple[str, list[Row]]] | None:
    results = run.truth_results
    if not results or not isinstance(results.get("ensemble"), dict):
        return None

    def row(kind: str, name: str, values: Any) -> Row:
        return Row(kind, name, {key: _defined(values.get(key)) for key in METRICS}, values.get("ci95") or {})

    teachers = results.get("each_teacher") or {}
    return [
        (
            "",
            [
                row(RUN, "ensemble", results["ensemble"]),
                row(RUN, "consensus it learned", results.get("consensus") or {}),
            ],
        ),
        ("Each teacher", [row(MEMBER, name, values) for name, values in teachers.items()]),
    ]


def _charts(section: Section, questions: Sequence[Any], place: Mapping[int, int]) -> View:
    run = section.run
    linked = [i for i in section.shown.tolist() if i in place]
    rows = [place[i] for i in linked]
    codes = section.predicted_codes
    counts = regime_counts(codes[section.shown])
    corners = {
        code: f"{name}: {share(part)}" for code, name in REGIMES.items() if (part := counts[code][1]) is not None
    }
    scatter = []
    for (axis, own), kind in zip(run.axes.items(), _KINDS, strict=True):
        if section.judged:
            results = run.facts["ensemble"] if run.kind == TRAIN else run.facts.get("against_consensus") or {}
            on_test = run.kind != TRAIN or section.part == "test"
            key = _METRIC_PREFIX[axis]
            note = f"r {number(results.get(f'{key}_r'))}, MAE {number(results.get(f'{key}_mae'))}" if on_test else ""
            names = (f"consensus {AXES[axis]}", f"predicted {AXES[axis]}")
            chart = charts.scatter(
                own.target[linked], own.score[linked], rows, [kind] * len(rows), names,
                f"Predicted against consensus {AXES[axis]}", diagonal=True, jitter=0.008,
            )  # fmt: skip
            scatter.append((AXES[axis], note, chart))
    strips = []
    if section.judged:
        for index, row in enumerate(questions):
            kind = "pas" if row.group == "perceptual" else "sas"
            label = f"{row.id}, {row.name}: predictions at each level of the consensus"
            predicted, target = (values[section.shown][:, index] for values in (run.prediction, run.target))
            strips.append((row, charts.level_strips(predicted, target, kind, label)))
    return {
        "scatter": scatter,
        "plane": charts.scatter(
            run.axes["t_pas"].score[linked],
            run.axes["t_sas"].score[linked],
            rows,
            [str(codes[i]) for i in linked],
            ("T-PAS", "T-SAS"),
            "T-PAS and T-SAS of the pairs",
            quadrants=corners,
        ),
        "histograms": [
            charts.histogram(own.score[section.shown], AXES[axis], kind)
            for (axis, own), kind in zip(run.axes.items(), _KINDS, strict=True)
        ],
        "strips": strips,
    }


_COVERAGE_ROWS = (
    ("half_width", "half width"),
    ("held_out_concepts", "held-out coverage, mean over concepts"),
    ("held_out_pairs", "held-out coverage, over pairs"),
    ("val_concepts", "validation concepts it rests on"),
    ("test_concepts", "held-out concepts"),
    ("test_pairs", "held-out pairs"),
)


def _calibration(section: Section) -> View:
    run, shown = section.run, section.shown
    out: View = {
        "reliability": None,
        "gaps": [],
        "coverage": [],
        "coverage_chart": None,
        "coverage_rows": (),
        "coverage_lead": "",
        "level": share(run.level),
        "calibration_note": "This set has no teachers’ answers that calibration or coverage could be checked on.",
    }
    if section.judged:
        series = []
        blocks = [
            (AXES[axis], kind, own.score[shown], own.target[shown])
            for (axis, own), kind in zip(run.axes.items(), _KINDS, strict=True)
        ]
        blocks.append(("single answers", "all", run.prediction[shown], run.target[shown]))
        for name, kind, score, target in blocks:
            bins, gap = reliability(score, target)
            series.append((name, kind, bins))
            out["gaps"].append((name, gap))
        out["reliability"] = charts.reliability_chart(series, "Mean consensus against mean prediction")
    held = None if run.kind == TRAIN else run.facts["model"].get("held_out_coverage")
    if isinstance(held, dict):
        shares = " and ".join(f"{share(_defined(held.get(axis)))} ({name})" for axis, name in AXES.items())
        out["calibration_note"] += f" On the model’s own held-out concepts its intervals held {shares} of the pairs."
    if run.coverage:
        _recorded_coverage(run, out)
    elif section.judged and run.level is not None:
        _observed_coverage(section, out)
    return out


def _recorded_coverage(run: ReportRun, out: View) -> None:
    """What training measured on its held-out concepts."""
    assert run.coverage is not None
    for axis, name in AXES.items():
        given = run.coverage["axes"].get(axis) or {}
        cells = {}
        for key, _ in _COVERAGE_ROWS:
            value = _defined(given.get(key))
            if key.startswith("held_out"):
                cells[key] = share(value)
            else:
                cells[key] = number(value) if key == "half_width" else "–" if value is None else f"{int(value):,}"
        out["coverage"].append({"name": name, **cells})
    out["coverage_rows"] = _COVERAGE_ROWS
    out["coverage_lead"] = (
        "Split-conformal intervals: wide enough for this share of the validation concepts, so they promise the "
        "same for new concepts of the same kind, averaged over concepts. A dash: too few concepts for that width."
    )
    curve = [point for point in run.coverage.get("curve") or [] if isinstance(point, dict)]
    series = []
    for (axis, name), kind in zip(AXES.items(), _KINDS, strict=True):
        points = [(_defined(point.get("level")), _defined(point.get(axis))) for point in curve]
        known = [(level, held) for level, held in points if level is not None and held is not None]
        if known:
            series.append((name, kind, known))
    if series:
        out["coverage_chart"] = charts.coverage_chart(series, "Held-out coverage against the coverage promised")


def _observed_coverage(section: Section, out: View) -> None:
    """How many consensus scores of a scored set lie inside their intervals."""
    run, shown = section.run, section.shown
    for axis, own in run.axes.items():
        by_concept, by_pair = covered(
            own.low[shown], own.high[shown], own.target[shown], run.labels["concept"][shown].tolist()
        )
        width = mean((own.high - own.low)[shown])
        out["coverage"].append(
            {"name": AXES[axis], "concepts": share(by_concept), "pairs": share(by_pair), "width": number(width)}
        )
    out["coverage_rows"] = (
        ("width", "mean width"),
        ("concepts", "holds the consensus, mean over concepts"),
        ("pairs", "holds the consensus, over pairs"),
    )
    out["coverage_lead"] = (
        "The promise is made for new concepts of the kind the model was trained on; on another kind of pictures the "
        "intervals may hold less."
    )


def _methods(section: Section) -> View:
    run, shown = section.run, section.shown
    if run.kind == TRAIN:
        rows = _own_methods(section)
    else:
        given = run.facts.get("methods")
        rows = [dict(row) for row in given if isinstance(row, dict)] if isinstance(given, list) else []
    for row in rows:
        own = shown[run.labels["method"][shown] == row.get("method")]
        row["bounds"], row["charts"] = {}, {}
        for (axis, values), kind in zip(run.axes.items(), _KINDS, strict=True):
            value, low, high = (_defined(row.get(f"{axis}{end}")) for end in ("", "_lo", "_hi"))
            row[axis] = value
            row["bounds"][axis] = None if low is None or high is None else [low, high]
            row["charts"][axis] = charts.forest(value, low, high, kind, mean(values.target[own]))
        row["bar"] = charts.regime_bar({code: _defined(row.get(code)) for code in REGIMES})
    lead = f"Mean scores of each method {section.of_part}, dots with 95 % intervals over concepts."
    if section.judged:
        lead += (
            " Diamonds are the means of the consensus: where both come in the same order, BCS ranks the methods as the "
            "teachers do."
        )
    return {"methods": rows, "methods_lead": lead, "differences": _differences(run)}


def _own_methods(section: Section) -> list[dict[str, Any]]:
    """Means by method of the pairs of a training run; empty below two methods."""
    run, shown = section.run, section.shown
    columns = {name: run.labels[name][shown] for name in ("method", "concept")}
    scores = {axis: own.score[shown] for axis, own in run.axes.items()}
    reference = np.array(run.pair_ids, dtype=object)[shown]  # a pair of no known concept stands for itself
    frame = pd.DataFrame({**columns, **scores, "reference": reference, "regime": section.predicted_codes[shown]})
    rows = method_table(frame)
    return sorted(rows, key=lambda row: -sum(row[axis] or 0.0 for axis in AXES)) if len(rows) > 1 else []


def _differences(run: ReportRun) -> list[dict[str, Any]]:
    given = run.facts.get("differences")
    out = []
    for row in given if isinstance(given, list) else []:
        if not isinstance(row, dict):
            continue
        entry: dict[str, Any] = {"first": row.get("first"), "second": row.get("second")}
        entry |= {"concepts": int(_defined(row.get("concepts")) or 0), "bounds": {}, "verdict": {}}
        for axis in AXES:
            value, low, high, p = (_defined(row.get(f"{axis}{end}")) for end in ("", "_lo", "_hi", "_p"))
            entry |= {axis: value, f"{axis}_p": p}
            entry["bounds"][axis] = [low, high]
            entry["verdict"][axis] = verdict(entry, axis)
        out.append(entry)
    return out


def _gallery_lead(section: Section) -> str:
    text = f"Pairs {section.of_part}, as far as possible each of another concept. "
    text += "Choose the pictures to see every answer." if section.has_pictures else "No pictures are at hand."
    return f"{text} {section.metric_note}"


def _pairs_lead(section: Section) -> str:
    run = section.run
    text = "Search, filter, sort by the column heads, and choose a row to open its pair."
    if run.kind == TRAIN and section.part != "all":
        text += f" The filter starts with the {section.part} part; the model has seen the training part."
    return text


# --- provenance -------------------------------------------------------------------------------------------------------


def _provenance(section: Section) -> list[tuple[str, str | list[str]]]:
    run, record = section.run, section.run.record
    facts: list[tuple[str, str | list[str] | None]] = [("run", str(run.folder))]
    facts.append(("made by", f"bcs {record.get('task', '?')}, bcs_lab {record.get('bcs_lab', '?')}"))
    seconds = _defined(record.get("seconds"))
    took = "" if seconds is None else f", took {seconds:,.0f} s"
    facts.append(("started", f"{record.get('started', '?')}{took}"))
    facts.append(("overrides", [str(item) for item in record.get("overrides") or []] or "none"))
    facts.append(("corpus", run.corpus_name or "none: image files"))
    facts.append(("teachers", ", ".join(run.teachers) + (" (simulated)" if run.simulated else "")))
    facts.append(("encoders", _encoders(run)))
    if run.kind == TRAIN:
        facts.append(("head and members", f"{run.head}; {', '.join(_member(item) for item in run.facts['members'])}"))
        split = run.settings.get("split") or {}
        digest = str(record.get("split_hash") or "")[:12]
        facts.append(
            ("split", f"{run.facts['split']}, seed {split.get('seed', '?')}" + (f", {digest}" if digest else ""))
        )
    else:
        model = run.facts["model"]
        facts.append(
            (
                "model",
                [f"{key}: {model[key]}" for key in ("path", "digest", "head", "corpus", "created") if model.get(key)],
            )
        )
    facts.append(
        (
            "corpus files",
            _digest(record.get("data"), "not hashed: the corpus ships with the package or is made from its settings"),
        )
    )
    facts.append(("settings", _digest(record.get("config"), "?")))
    facts.append(
        (
            "files",
            [
                f"{path.name}  {path.stat().st_size:,} bytes"
                for path in sorted(run.folder.iterdir())
                if path.is_file() and not path.name.startswith(".") and path.suffix != ".html"
            ],
        )
    )
    facts.append(("this page", f"bcs_lab {__version__}, {datetime.now(UTC).isoformat(timespec='seconds')}"))
    return [(name, value) for name, value in facts if value]


def _digest(value: Any, otherwise: str) -> str:
    return f"sha256 {str(value)[:12]}…" if value else otherwise


def _member(item: Any) -> str:
    return (
        f"seed {item.get('seed')} (epoch {item.get('best_epoch')} of {item.get('epochs')})"
        if isinstance(item, dict)
        else "?"
    )


def _encoders(run: ReportRun) -> list[str]:
    """Label, model and short fingerprint of each encoder."""
    lines = []
    known = [item for item in run.ensemble.get("encoders") or [] if isinstance(item, dict)]
    for label in run.encoders:
        item = next((entry for entry in known if entry.get("label") == label), None)
        mark = item.get("fingerprint") if item else None
        if not isinstance(mark, dict):
            lines.append(label)
            continue
        parts = [f"{mark.get('model', '?')} by {mark.get('library', '?')} {mark.get('library_version', '')}".strip()]
        if mark.get("weights"):
            parts.append(f"weights {str(mark['weights']).removeprefix('sha256:')[:12]}")
        parts.append(f"fingerprint {fingerprint_digest(mark)[:12]}")
        lines.append(f"{label}: {', '.join(parts)}")
    return lines
