"""Every analysis of the audit over one table of metric values, as the content of ``audit.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from bcs_lab.agreement import cluster_draws
from bcs_lab.audit.consensus_scores import DEFINITIONS, consensus_scores
from bcs_lab.audit.correlations import NOTABLE, Correlation, WithinMethods, correlation, pooling, within_methods
from bcs_lab.audit.degradation import SEVERITIES, TITLES, tracking
from bcs_lab.audit.failure_rates import FailureRates, quartile_rates, threshold_rates
from bcs_lab.audit.gallery import mean_ranks, worst_pairs
from bcs_lab.audit.groups import OVERALL, group_of
from bcs_lab.consensus import teacher_answers
from bcs_lab.corpus.schema import Corpus
from bcs_lab.methods import UNKNOWN, clusters
from bcs_lab.regimes import REGIMES, THRESHOLD, regime_codes
from bcs_lab.results import AXES
from bcs_lab.teachers.protocol import PERCEPTUAL, SEMANTIC

if TYPE_CHECKING:
    from bcs_lab.audit.metrics import MetricSpec

Floats = NDArray[np.float64]
Row = dict[str, Any]

#: Analysis -> what it is.
ANALYSES: Mapping[str, str] = {
    "consensus": "correlation of every metric with the teachers' T-PAS and T-SAS (Table 12)",
    "failures": "how often a metric is harsh or blind, by the teachers' T-SAS",
    "captions": "correlation and failure rates by the cosine of captions (Table 1)",
    "degradation": "how a metric falls as a known corruption grows (Table 2)",
    "regimes": "high and low T-PAS and T-SAS, overall and by method (Table 9)",
    "gallery": "the pairs a metric fails on worst (Figure 1)",
}

#: Axis -> end of the keys of its columns.
SHORT: Mapping[str, str] = {"t_pas": "pas", "t_sas": "sas"}

NO_TEACHER = "no teacher has answered questions about this corpus"


@dataclass(frozen=True)
class Settings:
    """How the analyses are done.

    Attributes:
        analyses: keys of :data:`ANALYSES`.
        consensus: key of :data:`bcs_lab.audit.consensus_scores.DEFINITIONS`.
        threshold: where T-PAS and T-SAS are high.
        resamples: of whole concepts, and of whole images in the degradation probe.
        seed: of the resampling.
        pairs: most pairs of a gallery.
        compat: ``correct`` or ``reference``, as the values were computed.
    """

    analyses: tuple[str, ...] = tuple(ANALYSES)
    consensus: str = "teachers"
    threshold: float = THRESHOLD
    resamples: int = 1000
    seed: int = 0
    pairs: int = 4
    compat: str = "correct"


@dataclass(frozen=True)
class Probed:
    """Values of the degradation probe.

    Attributes:
        values: metric -> [n_images, n_degradations, 4], not oriented, NaN where undefined.
        left_out: metric -> why it was not probed.
        facts: about the images (JSON-able).
    """

    values: Mapping[str, Floats] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """What was measured on a corpus.

    Attributes:
        specs: every metric asked for and known, by name, in the order asked for.
        values: metric -> [n_pairs] in the corpus' order, not oriented, NaN where undefined; of those that ran.
        unavailable: metric -> why it could not run.
        failed: metric -> reason -> number of pairs without a value.
        captions: [n_pairs] cosine of the captions, NaN where unknown; or why there is none.
        caption_facts: about captions and sentence encoder (JSON-able).
        probed: of the degradation probe, or why there is none.
        flags: what is odd about some pairs -> their ids.
        sets: a row a set-level metric and group: ``metric, group, pairs, references, two_way, distance``.
        trained_on: metric -> how many of the pairs trained its model, ``None`` where that is not known.
    """

    specs: Mapping[str, MetricSpec]
    values: Mapping[str, Floats]
    unavailable: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    captions: Floats | str = "not asked for"
    caption_facts: Mapping[str, Any] = field(default_factory=dict)
    probed: Probed | str = "not asked for"
    flags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sets: Sequence[Row] = ()
    trained_on: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def pairwise(self) -> list[str]:
        """All metrics asked for that have a value for each pair."""
        return [name for name in self.names if name not in self.specs or self.specs[name].kind != "set"]

    @property
    def names(self) -> list[str]:
        """All metrics asked for: those that ran, and those that could not."""
        return list(dict.fromkeys([*self.specs, *self.values, *self.unavailable]))

    def title(self, name: str) -> str:
        """What tables call a metric."""
        return self.specs[name].title if name in self.specs else name

    def oriented(self, name: str) -> Floats:
        """Values of a metric, larger is better (equation 2)."""
        values = np.asarray(self.values[name], dtype=np.float64)
        return values if self.specs[name].higher_is_better else -values


@cache
def paper_audit() -> dict[str, Any]:
    """The paper's values on its own corpus."""
    return yaml.safe_load(files("bcs_lab").joinpath("assets/paper_audit.yaml").read_text(encoding="utf-8"))


def paper_of(spec: MetricSpec | None, table: str) -> dict[str, Any] | None:
    """What the paper reports of a metric in one of its tables."""
    name = None if spec is None else spec.paper
    return None if name is None else paper_audit()[table].get(name)


# --- everything -----------------------------------------------------------------------------------------------------


@dataclass
class _Pairs:
    """The corpus as the analyses see it."""

    corpus: Corpus
    teachers: tuple[str, ...]
    scores: dict[str, dict[str, Floats]]
    cluster: NDArray[np.int64]
    times: Floats
    methods: list[str]

    @property
    def concepts(self) -> list[str]:
        return [name if name != UNKNOWN else "" for name in self.corpus.pairs["concept"].astype(str)]


def analyze(corpus: Corpus, teachers: Sequence[str], measured: Measured, settings: Settings | None = None) -> Row:
    """The content of ``audit.json``; everything undefined is ``None``, with its reason under ``undefined``.

    Args:
        corpus: the pairs.
        teachers: whose consensus counts; may be none, and then only captions and degradations are judged by.
        measured: values of the metrics on them.
        settings: of the analyses.
    """
    settings = settings or Settings()
    pairs = _pairs(corpus, teachers, settings)
    undefined: dict[str, str] = {}
    lacking = _lacking(corpus)
    for name in ANALYSES:
        if name not in settings.analyses:
            undefined[name] = "not asked for (analyses)"
        elif name in ("consensus", "failures", "regimes") and not teachers:
            undefined[name] = NO_TEACHER
        elif name == "regimes" and lacking:
            undefined[name] = next(iter(lacking.values()))
        elif name == "failures" and "t_sas" in lacking:
            undefined[name] = lacking["t_sas"]
    if "captions" not in undefined and isinstance(measured.captions, str):
        undefined["captions"] = measured.captions
    if "degradation" not in undefined and isinstance(measured.probed, str):
        undefined["degradation"] = measured.probed
    if "gallery" not in undefined and isinstance(measured.captions, str) and (not teachers or "t_sas" in lacking):
        undefined["gallery"] = f"{lacking['t_sas'] if teachers else NO_TEACHER}, and there are no captions"

    consensus, within = ([], []) if "consensus" in undefined else _consensus(pairs, measured, settings)
    failures = [] if "failures" in undefined else _failures(pairs, measured, settings)
    captions = [] if "captions" in undefined else _captions(pairs, measured)
    degradation = [] if "degradation" in undefined else _degradation(measured, settings)
    regimes = {} if "regimes" in undefined else {name: _regimes(pairs, name, settings) for name in DEFINITIONS}
    galleries = [] if "gallery" in undefined else _gallery(pairs, measured, settings)
    result: Row = {
        "metric_consensus": None
        if "consensus" in undefined
        else {row["metric"]: {key: row[key] for key in ("rho_pas", "r_pas", "rho_sas", "r_sas")} for row in consensus},
        "caption": None
        if "captions" in undefined
        else {row["metric"]: {key: row[key] for key in ("rho", "r", "hr", "bsr")} for row in captions},
        "degradation": None if "degradation" in undefined else _nested(degradation),
        "regimes": None if "regimes" in undefined else _groups(regimes[settings.consensus]),
        "unavailable": dict(measured.unavailable),
        "corpus": corpus.name,
        "simulated_teachers": corpus.simulated_teachers,
        "n_pairs": len(corpus),
        "teachers": list(teachers),
        "settings": _settings(pairs, settings),
        "metrics": [_metric(name, measured, pairs) for name in measured.names],
        "consensus": consensus,
        "within_methods": within,
        "failures": failures,
        "captions": captions,
        "caption_facts": dict(measured.caption_facts),
        "degradations": degradation,
        "degradation_facts": dict(measured.probed.facts) if isinstance(measured.probed, Probed) else {},
        "regime_rows": regimes,
        "flags": {reason: list(ids) for reason, ids in measured.flags.items()},
        "set_level": _set_level(pairs, measured, settings),
        "gallery": galleries,
        "paper": {"what": "the paper's pairs and teachers", "pairs": paper_audit()["pairs"]},
    }
    result["undefined"] = undefined | _undefined(result)
    result["notes"] = _notes(result, measured, pairs)
    return result


def _lacking(corpus: Corpus) -> dict[str, str]:
    """Axis of which the protocol asks no question -> that it does not."""
    groups = {"t_pas": PERCEPTUAL, "t_sas": SEMANTIC}
    protocol = corpus.protocol
    return {
        axis: f"the protocol {protocol.name} has no {group} questions"
        for axis, group in groups.items()
        if not protocol.indices(group)
    }


def _pairs(corpus: Corpus, teachers: Sequence[str], settings: Settings) -> _Pairs:
    answers = teacher_answers(corpus.answers, corpus.teachers, teachers)
    scores = {name: consensus_scores(answers, corpus.protocol, name) for name in DEFINITIONS} if teachers else {}
    reference = np.where(corpus.pairs["reference_path"] == "", corpus.pairs["pair_id"], corpus.pairs["reference_path"])
    labels = clusters(pd.DataFrame({"concept": corpus.pairs["concept"], "reference": reference}))
    names, cluster = np.unique(labels.astype(str), return_inverse=True)
    times = cluster_draws(len(names), settings.resamples, settings.seed)
    methods = ["" if name in ("", UNKNOWN) else name for name in corpus.pairs["method"].astype(str)]
    return _Pairs(corpus, tuple(teachers), scores, cluster.astype(np.int64), times, methods)


def pair_rows(corpus: Corpus, teachers: Sequence[str], measured: Measured, settings: Settings) -> list[Row]:
    """One row a pair: its scores, its regime and the cosine of its captions."""
    pairs = _pairs(corpus, teachers, settings)
    scores = pairs.scores.get(settings.consensus, {})
    codes = regime_codes(scores["t_pas"], scores["t_sas"], settings.threshold) if scores else None
    rows = []
    for i in range(len(corpus)):
        pair = corpus.pairs.iloc[i]
        row: Row = {key: str(pair[key]) for key in ("pair_id", "concept", "method", "subject")}
        row |= {axis: _optional(values[i]) for axis, values in scores.items()}
        if codes is not None:
            row["regime"] = codes[i] or None
        if not isinstance(measured.captions, str):
            row["caption_cosine"] = _optional(measured.captions[i])
        rows.append(row)
    return rows


def _metric(name: str, measured: Measured, pairs: _Pairs) -> Row:
    """What a metric is, and how many pairs have a value of it."""
    spec = measured.specs.get(name)
    values = measured.values.get(name)
    counted = next((row["pairs"] for row in measured.sets if (row["metric"], row["group"]) == (name, OVERALL)), 0)
    return {
        "metric": name,
        "title": measured.title(name),
        "higher_is_better": None if spec is None else spec.higher_is_better,
        "kind": None if spec is None else spec.kind,
        "input": None if spec is None else spec.input,
        "library": None if spec is None else spec.library,
        "weights": None if spec is None else spec.weights,
        "licence": None if spec is None else spec.licence,
        "pairs": counted if values is None else int((~np.isnan(values)).sum()),
        "without_value": len(pairs.corpus) - counted if values is None else int(np.isnan(values).sum()),
        "infinite": 0 if values is None else int(np.isinf(values).sum()),
        "mean": _mean(values),
        "failed": dict(measured.failed.get(name, {})),
        "unavailable": measured.unavailable.get(name),
        "trained_on": measured.trained_on.get(name),
    }


def _head(name: str, measured: Measured) -> Row:
    return {"metric": name, "title": measured.title(name), "unavailable": measured.unavailable.get(name)}


# --- Table 12 -------------------------------------------------------------------------------------------------------


def _consensus(pairs: _Pairs, measured: Measured, settings: Settings) -> tuple[list[Row], list[Row]]:
    """A row a metric, and a row a metric and method."""
    rows: list[Row] = []
    within_rows: list[Row] = []
    lacking = _lacking(pairs.corpus)
    scores = pairs.scores[settings.consensus]
    (other,) = (name for name in DEFINITIONS if name != settings.consensus)
    for name in measured.pairwise:
        row = _head(name, measured)
        known = name in measured.values
        quality = measured.oriented(name) if known else np.full(len(pairs.corpus), np.nan)
        for axis, short in SHORT.items():
            one = correlation(quality, scores[axis], pairs.cluster, pairs.times)
            own = within_methods(quality, scores[axis], pairs.methods, pairs.cluster, pairs.times)
            reason = lacking.get(axis, "") if known else _unavailable(measured, name)
            row |= _correlated(one, short, reason)
            row |= _means(own, short)
            row[f"pooling_{short}"] = pooling(one, own)
            row[f"rho_{short}_{other}"] = correlation(
                quality, pairs.scores[other][axis], pairs.cluster, pairs.times[:0]
            ).rho
            for method, mine in own.methods.items() if known else ():
                found = next((r for r in within_rows if (r["metric"], r["method"]) == (name, method)), None)
                if found is None:
                    found = {"metric": name, "title": row["title"], "method": method}
                    within_rows.append(found)
                found |= _correlated(mine, short, "")
        row["paper"] = paper_of(measured.specs.get(name), "metric_consensus")
        rows.append(row)
    return rows, within_rows


def _correlated(one: Correlation, short: str, reason: str) -> Row:
    return {
        f"n_{short}": one.n,
        **_bounded(f"rho_{short}", one.rho, one.rho_interval),
        **_bounded(f"r_{short}", one.r, one.r_interval),
        f"reason_{short}": reason or one.reason,
    }


def _means(own: WithinMethods, short: str) -> Row:
    return {
        **_bounded(f"within_rho_{short}", own.rho, own.rho_interval),
        **_bounded(f"within_r_{short}", own.r, own.r_interval),
        f"within_plain_rho_{short}": own.rho_plain,
        f"within_plain_r_{short}": own.r_plain,
        f"within_methods_{short}": own.defined,
        f"within_n_{short}": own.n,
        f"within_reason_{short}": own.reason,
    }


def _bounded(name: str, value: float | None, bounds: Sequence[float] | None) -> Row:
    low, high = bounds or (None, None)
    return {name: value, f"{name}_lo": low, f"{name}_hi": high}


def _unavailable(measured: Measured, name: str) -> str:
    return f"unavailable: {measured.unavailable.get(name, 'it was not computed')}"


# --- failure rates and Table 1 --------------------------------------------------------------------------------------


def _failures(pairs: _Pairs, measured: Measured, settings: Settings) -> list[Row]:
    score = pairs.scores[settings.consensus]["t_sas"]
    rows = []
    for name in measured.pairwise:
        row = _head(name, measured)
        quality = measured.oriented(name) if name in measured.values else np.full(len(score), np.nan)
        for variant, found in (
            ("quartile", quartile_rates(quality, score, pairs.cluster, pairs.times)),
            ("threshold", threshold_rates(quality, score, pairs.cluster, pairs.times, threshold=settings.threshold)),
        ):
            row |= {f"{variant}_{key}": value for key, value in _rates(found).items()}
            if name not in measured.values:
                row[f"{variant}_reason"] = _unavailable(measured, name)
        rows.append(row)
    return rows


def _rates(found: FailureRates) -> Row:
    return {
        "n": found.n,
        "low_cut": found.low_cut,
        "high_cut": found.high_cut,
        "right": found.right,
        "harsh": found.harsh,
        **_bounded("harshness", found.harshness, found.harsh_interval),
        "harsh_chance": found.harsh_chance,
        "top": found.top,
        "blind": found.blind,
        **_bounded("blind_spot", found.blind_spot, found.blind_interval),
        "blind_chance": found.blind_chance,
        "notes": list(found.notes),
        "reason": found.reason,
    }


def _captions(pairs: _Pairs, measured: Measured) -> list[Row]:
    """Table 1."""
    cosine = np.asarray(measured.captions, dtype=np.float64)
    rows = []
    for name in measured.pairwise:
        if name == measured.caption_facts.get("source"):
            continue  # it is the caption cosine itself
        known = name in measured.values
        quality = measured.oriented(name) if known else np.full(len(cosine), np.nan)
        one = correlation(quality, cosine, pairs.cluster, pairs.times)
        found = quartile_rates(quality, cosine, pairs.cluster, pairs.times)
        rates = _rates(found)
        renamed = {"harshness": "hr", "blind_spot": "bsr"}
        rows.append(
            {
                **_head(name, measured),
                "n": one.n,
                **_bounded("rho", one.rho, one.rho_interval),
                **_bounded("r", one.r, one.r_interval),
                **{key: rates[key] for key in ("right", "harsh", "top", "blind", "low_cut", "high_cut")},
                **{
                    f"{short}{end}": rates[f"{key}{end}"]
                    for key, short in renamed.items()
                    for end in ("", "_lo", "_hi")
                },
                "notes": rates["notes"],
                "reason": (one.reason or found.reason) if known else _unavailable(measured, name),
                "paper": paper_of(measured.specs.get(name), "caption"),
            }
        )
    return rows


# --- Table 2 --------------------------------------------------------------------------------------------------------


def _degradation(measured: Measured, settings: Settings) -> list[Row]:
    """A row a metric and degradation."""
    assert isinstance(measured.probed, Probed)
    rows = []
    for name in measured.pairwise:
        values = measured.probed.values.get(name)
        paper = paper_of(measured.specs.get(name), "degradation") or {}
        for at, kind in enumerate(SEVERITIES):
            row = _head(name, measured) | {"degradation": kind}
            if values is None:
                reason = measured.probed.left_out.get(name) or _unavailable(measured, name)
                own = np.full((0, 4), np.nan)
            else:
                reason, own = "", np.asarray(values[:, at], dtype=np.float64)
                own = own if measured.specs[name].higher_is_better else -own
            found = tracking(own, resamples=settings.resamples, seed=settings.seed)
            rows.append(
                row
                | {
                    "images": found.images,
                    **_bounded("rho", found.rho, found.rho_interval),
                    **_bounded("per_image", found.per_image, found.per_image_interval),
                    "still_images": found.still_images,
                    "reading": found.reading,
                    "mean_ranks": list(found.means),
                    "reason": reason or found.reason,
                    "paper": paper.get(kind),
                    "paper_images": paper.get("n"),
                }
            )
    return rows


def _nested(rows: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    out: dict[str, dict[str, float | None]] = {}
    for row in rows:
        out.setdefault(row["metric"], {})[row["degradation"]] = row["rho"]
    return out


# --- Table 9 --------------------------------------------------------------------------------------------------------


def _regimes(pairs: _Pairs, definition: str, settings: Settings) -> list[Row]:
    """A row for all pairs, then one a method, in order of name."""
    scores = pairs.scores[definition]
    codes = regime_codes(scores["t_pas"], scores["t_sas"], settings.threshold)
    methods = np.array(pairs.methods, dtype=object)
    groups = [(OVERALL, np.ones(len(codes), dtype=bool))]
    groups += [(group_of(name), methods == name) for name in sorted(set(pairs.methods) - {""})]
    rows = []
    for name, here in groups:
        own = codes[here]
        n = int((own != "").sum())
        counts = {code: int((own == code).sum()) for code in REGIMES}
        rows.append(
            {
                "group": name,
                "n": n,
                **counts,
                **{f"{code}_share": count / n if n else None for code, count in counts.items()},
                "undefined": int(here.sum()) - n,
                "paper": paper_audit()["regimes"].get(name) if settings.threshold == THRESHOLD else None,
            }
        )
    return rows


def _groups(rows: Sequence[Row]) -> dict[str, Row]:
    """The rows by name of the group."""
    return {row["group"]: {key: value for key, value in row.items() if key not in ("group", "paper")} for row in rows}


# --- set-level metrics ----------------------------------------------------------------------------------------------


def _set_level(pairs: _Pairs, measured: Measured, settings: Settings) -> list[Row]:
    """Set-level metrics by group, beside the mean T-PAS and T-SAS of the same pairs."""
    scores = pairs.scores.get(settings.consensus, {})
    names = np.array([group_of(name) for name in pairs.corpus.pairs["method"].astype(str)], dtype=object)
    rows = []
    for row in measured.sets:
        here = np.ones(len(names), dtype=bool) if row["group"] == OVERALL else names == row["group"]
        higher = measured.specs[row["metric"]].higher_is_better
        rows.append(
            {
                "group": row["group"],
                "metric": row["metric"],
                "title": measured.title(row["metric"]),
                "pairs": row["pairs"],
                "references": row["references"],
                "value": _optional(row["two_way"] if higher else row["distance"]),
                "two_way": _optional(row["two_way"]),
                "distance": _optional(row["distance"]),
                **{axis: _mean(values[here]) for axis, values in scores.items()},
            }
        )
    return rows


# --- Figure 1 -------------------------------------------------------------------------------------------------------


def _gallery(pairs: _Pairs, measured: Measured, settings: Settings) -> list[Row]:
    """Most harsh and most blind pairs of every metric."""
    scores = pairs.scores.get(settings.consensus, {})
    score, by = scores.get("t_sas"), "T-SAS"
    cosine = None if isinstance(measured.captions, str) else np.asarray(measured.captions, dtype=np.float64)
    if score is None or np.isnan(score).all():
        if cosine is None:
            return []
        score, by = cosine, "the cosine of the captions"
        low, high = np.nanquantile(cosine, [0.25, 0.75]) if np.isfinite(cosine).any() else (np.nan, np.nan)
    else:
        low = high = settings.threshold
    right, wrong = score >= high, score < low
    oriented = {name: measured.oriented(name) for name in measured.pairwise if name in measured.values}
    ranks = {name: mean_ranks(quality) for name, quality in oriented.items()}

    def shown(row: int, name: str) -> Row:
        pair = pairs.corpus.pairs.iloc[row]
        return {
            "pair_id": str(pair["pair_id"]),
            "row": row,
            **{key: str(pair[key]) for key in ("concept", "method", "subject")},
            **{axis: _optional(values[row]) for axis, values in scores.items()},
            "caption_cosine": None if cosine is None else _optional(cosine[row]),
            "scores": {
                metric: {"value": _optional(measured.values[metric][row]), "rank": _optional(ranks[metric][row])}
                for metric in oriented
            },
            "metric": name,
        }

    rows = []
    for name, quality in oriented.items():
        harsh, blind = worst_pairs(quality, score, right, wrong, pairs.concepts, settings.pairs)
        if harsh or blind:
            rows.append(
                {
                    "metric": name,
                    "title": measured.title(name),
                    "by": by,
                    "harsh": [shown(row, name) for row in harsh],
                    "blind": [shown(row, name) for row in blind],
                }
            )
    return rows


# --- what was used, what is undefined, what to know -----------------------------------------------------------------


def _settings(pairs: _Pairs, settings: Settings) -> Row:
    return {
        "analyses": list(settings.analyses),
        "consensus": settings.consensus,
        "consensus_definition": DEFINITIONS[settings.consensus],
        "threshold": settings.threshold,
        "compat": settings.compat,
        "resamples": settings.resamples,
        "seed": settings.seed,
        "clusters": int(pairs.cluster.max()) + 1 if len(pairs.cluster) else 0,
        "interval": "95 %, percentiles of a bootstrap over whole concepts (images in the degradation probe)",
        "orientation": "metrics whose smaller values are better are negated",
    }


def _undefined(result: Row) -> dict[str, str]:
    """Path of every undefined statistic of a metric that ran -> why."""
    out: dict[str, str] = {}
    for row in result["consensus"]:
        for short in SHORT.values():
            if row[f"rho_{short}"] is None and row["unavailable"] is None:
                out[f"metric_consensus/{row['metric']}/rho_{short}"] = row[f"reason_{short}"]
    for row in result["captions"]:
        if row["unavailable"] is None and None in (row["rho"], row["hr"], row["bsr"]):
            out[f"caption/{row['metric']}"] = row["reason"]
    for row in result["failures"]:
        for variant in ("quartile", "threshold"):
            if row["unavailable"] is None and row[f"{variant}_reason"]:
                out[f"failures/{row['metric']}/{variant}"] = row[f"{variant}_reason"]
    for row in result["degradations"]:
        if row["unavailable"] is None and row["rho"] is None:
            out[f"degradation/{row['metric']}/{row['degradation']}"] = row["reason"]
    for name, rows in result["regime_rows"].items():
        for row in rows:
            if not row["n"]:
                out[f"regimes/{name}/{row['group']}"] = "no pair has both T-PAS and T-SAS"
    return out


def _notes(result: Row, measured: Measured, pairs: _Pairs) -> list[str]:
    """What must be known before a number is read, and what the numbers say."""
    out = []
    if result["simulated_teachers"]:
        out.append("SIMULATED teachers: answers were computed, not given by annotators.")
    if not result["teachers"]:
        out.append(f"{NO_TEACHER[:1].upper()}{NO_TEACHER[1:]}: metrics cannot be held against T-PAS and T-SAS.")
    out += _consensus_notes(result, pairs)
    out += _training_notes(result, measured)
    for reason, ids in result["flags"].items():
        shown = ", ".join(ids[:5]) + (", …" if len(ids) > 5 else "")
        out.append(f"{len(ids):,} of {len(pairs.corpus):,} pairs: {reason} ({shown}).")
    # A picture that cannot be read costs every metric its value: that is said once.
    ran = [row for row in result["metrics"] if row["unavailable"] is None]
    titles: dict[tuple[int, str], list[str]] = {}
    for row in ran:
        if row["without_value"]:
            why = "; ".join(f"{reason} ({n:,})" for reason, n in row["failed"].items()) or "undefined"
            titles.setdefault((row["without_value"], why), []).append(row["title"])
    for (n, why), names in titles.items():
        who = "Every metric" if len(names) == len(ran) > 1 else ", ".join(names)
        out.append(f"{who}: no value for {n:,} of {len(pairs.corpus):,} pairs: {why}.")
    for row in result["metrics"]:
        if row["infinite"]:
            out.append(
                f"{row['title']}: infinite for {row['infinite']:,} of {len(pairs.corpus):,} pairs (identical "
                "pictures); they count in ranks and quartiles, but not in Pearson's r and in means."
            )
    out += _axis_notes(result)
    out += _pooling_notes(result)
    out += _failure_notes(result)
    out += _degradation_notes(result)
    if result["settings"]["clusters"] < 2:
        out.append("One concept only: there are no intervals.")
    return out


def _consensus_notes(result: Row, pairs: _Pairs) -> list[str]:
    """Which scores and regimes the pairs do not have."""
    scores = pairs.scores.get(result["settings"]["consensus"], {})
    lacking = _lacking(pairs.corpus) if scores else {}
    out = [
        f"{reason[:1].upper()}{reason[1:]}: there is no {AXES[axis]}, and nothing is judged by it."
        for axis, reason in lacking.items()
    ]
    missing = {axis: int(np.isnan(values).sum()) for axis, values in scores.items() if axis not in lacking}
    if any(missing.values()):
        said = [f"no {AXES[axis]} of {n:,}" for axis, n in missing.items() if n]
        if not lacking:
            neither = np.isnan(scores["t_pas"]) | np.isnan(scores["t_sas"])
            said.append(f"no regime of {int(neither.sum()):,}")
        which = " and ".join([", ".join(said[:-1]), said[-1]] if said[1:] else said)
        out.append(
            f"Of {len(pairs.corpus):,} pairs there is {which} for want of answers; they have no part in what needs it."
        )
    return out


def _training_notes(result: Row, measured: Measured) -> list[str]:
    """Which metrics were trained on the pairs they are held against."""
    titles: dict[int, list[str]] = {}
    for row in result["metrics"]:
        if row["unavailable"] is None and measured.trained_on.get(row["metric"]):
            titles.setdefault(row["trained_on"], []).append(row["title"])
    return [
        f"{' and '.join(names)}: {n:,} of {result['n_pairs']:,} pairs trained the model or stopped its training; its "
        "numbers here say how well it fits them, not how well it judges other pairs."
        for n, names in titles.items()
    ]


def most_and_least(rows: Sequence[Row], key: str) -> tuple[Row | None, Row | None]:
    """The metrics of the largest and of the smallest correlation, signs included.

    Args:
        rows: of metrics.
        key: of the correlation, such as ``rho_sas``.

    Returns:
        Both ``None`` where no correlation is as far from zero as :data:`~bcs_lab.audit.correlations.NOTABLE`; the
        second one also where there is one metric only, or all are the same.
    """
    known = [row for row in rows if row[key] is not None]
    if not any(abs(row[key]) >= NOTABLE for row in known):
        return None, None
    most, least = max(known, key=lambda row: row[key]), min(known, key=lambda row: row[key])
    return most, least if least[key] < most[key] else None


def _axis_notes(result: Row) -> list[str]:
    """Which metrics go with T-SAS most and least."""
    most, least = most_and_least(result["consensus"], "rho_sas")
    if most is None or least is None:
        return []
    return [
        f"With T-SAS, {most['title']} goes most (rank correlation {_signed(most['rho_sas'])}) and {least['title']} "
        f"least ({_signed(least['rho_sas'])})."
    ]


def _pooling_notes(result: Row) -> list[str]:
    out = []
    for axis, short in SHORT.items():
        for kind, text in (
            ("made", "Differences between methods make much of the correlation with {axis} over all pairs: {which}."),
            ("hidden", "Pooling the methods hides a correlation with {axis} that each of them shows: {which}."),
        ):
            which = [
                f"{row['title']} {_signed(row[f'rho_{short}'])} over all, {_signed(row[f'within_rho_{short}'])} within"
                for row in result["consensus"]
                if row[f"pooling_{short}"] == kind
            ]
            if which:
                out.append(text.format(axis=AXES[axis], which="; ".join(which)))
    return out


def _failure_notes(result: Row) -> list[str]:
    out = []
    for rows, key, where in (
        (result["failures"], "quartile_notes", "T-SAS"),
        (result["captions"], "notes", "captions"),
    ):
        by_note: dict[str, list[str]] = {}
        for row in rows:
            for note in row[key]:
                by_note.setdefault(note, []).append(row["title"])
        ran = sum(row["unavailable"] is None for row in rows)
        for note, titles in by_note.items():
            who = "Every metric" if len(titles) == ran > 1 else ", ".join(titles)
            out.append(f"{who}, quartile rates by {where}: {note.replace('the score', where)}.")
    return out


def _degradation_notes(result: Row) -> list[str]:
    out = []
    for kind, text in (
        ("steadier", "Falls on each image more surely than over all images together (images differ in how much a "
                     "degradation costs them): {which}."),
        ("unsteadier", "Follows the severity over all images better than on each image: {which}."),
    ):  # fmt: skip
        by_metric: dict[str, list[str]] = {}
        for row in result["degradations"]:
            if row["reading"] == kind:
                text_ = f"{TITLES[row['degradation']]} {_signed(row['rho'])} → {_signed(row['per_image'])}"
                by_metric.setdefault(row["title"], []).append(text_)
        if by_metric:
            which = "; ".join(f"{title}: {', '.join(cells)}" for title, cells in by_metric.items())
            out.append(text.format(which=which))
    return out


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _optional(value: float | np.floating) -> float | None:
    plain = float(value)
    return plain if np.isfinite(plain) else None


def _mean(values: Floats | None) -> float | None:
    if values is None:
        return None
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None
