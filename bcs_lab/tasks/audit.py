"""``bcs audit``: what conventional metrics do on a corpus, as numbers, tables, figures and one page."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bcs_lab.config import AuditConfig, absolute, parse
from bcs_lab.consensus import select_teachers
from bcs_lab.errors import ConfigError, EncoderError
from bcs_lab.files import check_writable, write_json, write_text
from bcs_lab.tasks.inputs import open_corpus, open_store, report_skipped

if TYPE_CHECKING:
    import pandas as pd

    from bcs_lab.audit.analysis import Measured
    from bcs_lab.audit.metrics import Metric
    from bcs_lab.audit.table import MetricTable
    from bcs_lab.corpus import Corpus

log = logging.getLogger(__name__)

RESULT, PAGE, SUMMARY = "audit.json", "audit.html", "audit.txt"

#: The metric that is the cosine of BLIP's captions.
CAPTION_METRIC = "blip_sbert"

#: Asked for beside all metrics that have a name of their own: a learned one that needs no download.
OFFLINE = "cosine:embedded"


def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
    """Entry of the command line.

    Raises:
        ConfigError: unknown metrics or options, teachers that the corpus does not have, captions that cannot be used,
            or results that cannot be written there.
        CorpusError: a corpus that cannot be read.
        EncoderError: a sentence encoder that was named and cannot be had.
    """
    config = parse(AuditConfig, values)
    if config.metrics == "list":
        print(listing(config, start))
        return {"transient": True}
    from bcs_lab.audit.analysis import ANALYSES, Settings, analyze, pair_rows
    from bcs_lab.report.audit_figures import write_figures
    from bcs_lab.report.audit_page import write_page
    from bcs_lab.report.audit_tables import summary, write_tables

    names = _names(config)
    _check_options(config, names)
    target = absolute(config.out, start) or out
    check_writable(target / RESULT, "out")
    corpus = open_corpus(config.corpus, start, need_answers=False)
    _check_encoders(names, corpus, config, start)
    report_skipped(corpus, out)
    teachers = select_teachers(corpus.teachers, config.teachers) if corpus.teachers else ()
    settings = Settings(
        analyses=tuple(ANALYSES) if config.analyses == "all" else tuple(a for a in ANALYSES if a in config.analyses),
        consensus=config.consensus_of,
        threshold=config.threshold,
        resamples=config.bootstrap.resamples,
        seed=config.bootstrap.seed,
        pairs=config.pairs,
        compat=config.compat,
    )
    measured = _measured(corpus, names, config, settings.analyses, target, start)
    result = analyze(corpus, teachers, measured, settings)
    text = summary(result)
    write_json(target / RESULT, result)
    written = write_tables(result, pair_rows(corpus, teachers, measured, settings), target)
    written += write_figures(result, target)
    _clear(target, {path.name for path in written})
    write_page(result, corpus, target / PAGE)
    write_text(target / SUMMARY, text + "\n")
    print(text)
    print(f"\nWritten: {target}: {', '.join([RESULT, PAGE, SUMMARY, *(path.name for path in written)])}")
    return {
        "corpus": corpus.name,
        "simulated_teachers": corpus.simulated_teachers,
        "teachers": list(teachers),
        "pairs": len(corpus),
        "metrics": [name for name in measured.names if name not in measured.unavailable],
        "unavailable": list(measured.unavailable),
        "page": str(target / PAGE),
    }


#: Names of files of tables and figures, which a run may write or not.
_TABLES = (
    "metric_list", "consensus", "failures", "captions", "degradation", "regimes", "regimes_teachers",
    "regimes_questions", "set_level",
)  # fmt: skip
_FIGURES = ("correlations", "consensus", "degradation", "regimes")


def _clear(target: Path, written: Collection[str]) -> None:
    """Remove tables and figures of an earlier run that this one did not write: they would not go with its results."""
    known = {f"{name}.{end}" for name in _TABLES for end in ("csv", "md", "tex")} | {"within_methods.csv"}
    known |= {f"{name}.{end}" for name in _FIGURES for end in ("png", "svg")}
    for name in sorted(known - set(written)):
        (target / name).unlink(missing_ok=True)


def _names(config: AuditConfig) -> list[str]:
    """The metrics asked for, as columns."""
    from bcs_lab.audit.metrics import expand, list_metrics

    if config.metrics == "all":
        return [*(spec.name for spec in list_metrics()), OFFLINE]
    return expand(list(config.metrics))


def _check_options(config: AuditConfig, names: Sequence[str]) -> None:
    """Refuse options of what is not computed: most often a slip of the pen.

    Raises:
        ConfigError: naming each of them.
    """
    from bcs_lab.audit.metrics import GROUPS

    asked = [*names, *(group for group, columns in GROUPS.items() if set(columns) & set(names))]
    if config.captions == "auto":
        asked.append(CAPTION_METRIC)
    stray = [name for name in config.options or {} if name not in asked]
    if stray:
        near = [match for name in stray for match in difflib.get_close_matches(name, asked, n=1, cutoff=0.6)]
        hint = f" Did you mean {' and '.join(near)}?" if near else f" Asked for: {', '.join(dict.fromkeys(asked))}."
        raise ConfigError(
            f"options: expected metrics that are asked for (metrics), found {', '.join(map(repr, stray))}.{hint}"
        )


def _check_encoders(names: Sequence[str], corpus: Corpus, config: AuditConfig, start: Path) -> None:
    """Refuse the cosine of an encoder that nobody knows: it can never be had, unlike one whose weights are missing.

    Raises:
        ConfigError: listing the known ones and those that the corpus ships or were imported for its pairs.
    """
    from bcs_lab.audit.metrics.cosine import PREFIX, encoders_of
    from bcs_lab.embeddings import stored_names
    from bcs_lab.encoders import LIBRARIES, encoder_spec, unknown_encoder

    also = ", ".join(f"{PREFIX}{library}:MODEL" for library in LIBRARIES)
    problems = []
    for name in names:
        for part in encoders_of(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else ():
            try:
                encoder_spec(part)
            except EncoderError:
                others = [*corpus.shipped, *stored_names(open_store(config.store, start), corpus)]
                if part not in others:
                    # Its last words are about the settings of other commands.
                    known = unknown_encoder(part, others).partition("; any other model by")[0]
                    problems.append(f"metrics: {name}: {known}; any other model by {also}.")
    if problems:
        raise ConfigError("\n".join(problems))


def _options(config: AuditConfig, names: Sequence[str], start: Path) -> dict[str, dict[str, Any]]:
    """Options of the metrics, with the settings that have a key of their own."""
    from bcs_lab.audit.metrics import GROUPS

    options = {name: dict(own) for name, own in (config.options or {}).items()}
    if any(name in GROUPS["bcs"] for name in names):
        local = absolute(config.model, start)
        model = str(local) if local is not None and local.is_dir() else config.model
        options["bcs"] = {"model": model, **options.get("bcs", {})}
    if CAPTION_METRIC in names and config.sentences.model != "auto":
        options[CAPTION_METRIC] = {"sentences": _sentences(config, start), **options.get(CAPTION_METRIC, {})}
    return options


def _sentences(config: AuditConfig, start: Path) -> str:
    """The sentence encoder, a relative folder made absolute."""
    local = absolute(config.sentences.model, start)
    return (
        str(local)
        if config.sentences.model != "auto" and local is not None and local.is_dir()
        else config.sentences.model
    )


# --- measuring ------------------------------------------------------------------------------------------------------


def _measured(
    corpus: Corpus, names: list[str], config: AuditConfig, analyses: Sequence[str], target: Path, start: Path
) -> Measured:
    """Metric table, captions and degradation probe."""
    from bcs_lab.audit.analysis import Measured
    from bcs_lab.audit.metrics import metric_spec

    # Captions first: a file that cannot be used must not cost the time of everything else.
    brought = _brought_captions(corpus, config, start) if "captions" in analyses else ("not asked for", {})
    hidden = [CAPTION_METRIC] if brought is None and CAPTION_METRIC not in names else []
    wanted = [*names, *hidden]
    table, loaded, unavailable = _table(corpus, wanted, config, target, start, quiet=hidden)
    if brought is None:
        brought = _blip_captions(table, unavailable)
    captions, caption_facts = brought
    sets, out_of_sets, failed_sets = _sets(corpus, names, config, target, start)
    unavailable |= out_of_sets
    values = {
        name: table.values[name].to_numpy(dtype=np.float64)
        for name in names
        if name in table.values and name not in unavailable
    }
    return Measured(
        specs={name: metric_spec(name) for name in names},
        values=values,
        unavailable={name: unavailable[name] for name in names if name in unavailable},
        failed=_reasons(table.failures[table.failures["kind"] != "flag"]) | failed_sets,
        captions=captions,
        caption_facts=caption_facts,
        probed=_probed(corpus, [m for m in loaded if m.spec.name in values], config, target)
        if "degradation" in analyses
        else "not asked for",
        flags=_flags(table),
        sets=sets,
        trained_on=_trained_on(corpus, list(values), config, start),
    )


def _trained_on(corpus: Corpus, names: Sequence[str], config: AuditConfig, start: Path) -> dict[str, int | None]:
    """Of metrics that are a trained model: how many of the pairs it was trained on, where that is known."""
    from bcs_lab.audit.metrics import metric_spec
    from bcs_lab.models import resolve_model, trained_on

    options = _options(config, names, start)
    models = {
        name: str({**options.get("bcs", {}), **options.get(name, {})}["model"])
        for name in names
        if metric_spec(name).kind == "model"
    }
    counts = {model: trained_on(corpus.pairs, resolve_model(model)) for model in set(models.values())}
    return {name: counts[model] for name, model in models.items()}


def _table(
    corpus: Corpus, names: Sequence[str], config: AuditConfig, target: Path, start: Path, quiet: Sequence[str] = ()
) -> tuple[MetricTable, list[Metric], dict[str, str]]:
    """The metric table, the metrics that are loaded, and why the others are not there."""
    from bcs_lab.audit.metrics import GROUPS, load_metrics, metric_spec
    from bcs_lab.audit.metrics.cosine import PREFIX
    from bcs_lab.audit.table import compute_table

    options = _options(config, names, start)
    pairwise = [name for name in names if metric_spec(name).kind != "set"]
    options = {name: own for name, own in options.items() if name in pairwise or name in GROUPS}
    metrics: list[Metric] = []
    missing: dict[str, str] = {}
    if corpus.root is not None:
        metrics, missing = load_metrics(
            pairwise, options=options, device=config.device, compat=config.compat, quiet=quiet
        )
    by_name = {metric.spec.name: metric for metric in metrics}
    # Embeddings of an encoder that is not here may have been imported, and a corpus may ship them.
    asked = [by_name.get(n, n) for n in pairwise if n in by_name or n.startswith(PREFIX) or corpus.root is None]
    table = compute_table(
        corpus,
        asked,
        target,
        options=options,
        device=config.device,
        compat=config.compat,
        store=open_store(config.store, start),
        threads=config.workers,
    )
    unavailable = {name: reason for name, reason in missing.items() if name not in table.values} | table.unavailable
    return table, metrics, unavailable


def _sets(
    corpus: Corpus, names: Sequence[str], config: AuditConfig, target: Path, start: Path
) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, dict[str, int]]]:
    """Set-level metrics by group, why some could not run, and pairs that do not count."""
    from bcs_lab.audit.metrics import metric_spec
    from bcs_lab.audit.set_table import compute_set_table

    wanted = [name for name in names if metric_spec(name).kind == "set"]
    if not wanted:
        return [], {}, {}
    options = {name: own for name, own in _options(config, names, start).items() if name in wanted}
    found = compute_set_table(corpus, wanted, target, options=options, device=config.device)
    rows = [{str(key): value for key, value in row.items()} for row in found.values.to_dict("records")]
    return rows, found.unavailable, _reasons(found.failures)


def _flags(table: MetricTable) -> dict[str, list[str]]:
    """What is odd about some pairs -> their ids."""
    rows = table.failures[table.failures["kind"] == "flag"]
    return {str(reason): own["pair_id"].astype(str).tolist() for reason, own in rows.groupby("reason", sort=False)}


def _reasons(rows: pd.DataFrame) -> dict[str, dict[str, int]]:
    """Metric -> reason -> pairs without a value."""
    out: dict[str, dict[str, int]] = {}
    for metric, reason in zip(rows["metric"].astype(str), rows["reason"].astype(str), strict=True):
        own = out.setdefault(metric, {})
        own[reason] = own.get(reason, 0) + 1
    return out


def _probed(corpus: Corpus, metrics: Sequence[Metric], config: AuditConfig, target: Path) -> Any:
    from bcs_lab.audit.metrics import load_metric
    from bcs_lab.audit.probing import probe

    if config.compat == "reference":
        # The published probe's SSIM has another window than the published audit's.
        options = {"window": "gaussian", **(config.options or {}).get("ssim", {})}
        metrics = [
            load_metric("ssim", options=options, compat="reference") if metric.spec.name == "ssim" else metric
            for metric in metrics
        ]
    return probe(
        corpus,
        metrics,
        target,
        images=config.degradation.images,
        network_images=config.degradation.network_images,
        seed=config.degradation.seed,
        compat=config.compat,
    )


# --- captions -------------------------------------------------------------------------------------------------------


def _brought_captions(corpus: Corpus, config: AuditConfig, start: Path) -> tuple[Any, dict[str, Any]] | None:
    """Cosines of captions from a file and facts about them, or why there are none; ``None``: BLIP is to write them."""
    from bcs_lab.audit.captions import caption_cosines, read_captions
    from bcs_lab.rationales import load_sentence_encoder

    if config.captions == "none":
        return "not asked for (captions=none)", {}
    if config.captions == "auto":
        return None
    path = absolute(config.captions, start)
    assert path is not None
    captions = read_captions(path, corpus)
    try:
        encoder = load_sentence_encoder(_sentences(config, start), config.sentences.device, config.sentences.batch_size)
    except EncoderError as error:
        message = str(error).replace("rationales.", "sentences.")
        if config.sentences.model != "auto":
            raise EncoderError(message) from None
        log.warning("captions are not compared: %s", message)
        return message, {}
    store = open_store(config.store, start)
    facts = {
        "captioner": f"the file {path.name}",
        "sentences": encoder.identity["model"],
        "sentences_from": encoder.source,
        "pairs": int(captions.complete.sum()),
        **captions.facts,
    }
    return caption_cosines(captions, encoder, store), facts


def _blip_captions(table: MetricTable, unavailable: Mapping[str, str]) -> tuple[Any, dict[str, Any]]:
    if CAPTION_METRIC in unavailable or CAPTION_METRIC not in table.values:
        reason = unavailable.get(CAPTION_METRIC, "the captioner was not run").splitlines()[0]
        return f"{reason.removesuffix('.')}. Captions can be brought in as a file: captions=FILE.jsonl", {}
    cosine = table.values[CAPTION_METRIC].to_numpy(dtype=np.float64)
    identity = table.identities.get(CAPTION_METRIC, {})
    facts = {
        "captioner": identity.get("captioner", {}).get("model", "BLIP"),
        "sentences": identity.get("sentences", {}).get("model", "all-MiniLM-L6-v2"),
        "source": CAPTION_METRIC,
        "pairs": int(np.isfinite(cosine).sum()),
    }
    return cosine, facts


# --- list -----------------------------------------------------------------------------------------------------------


def listing(config: AuditConfig, start: Path) -> str:
    """Every metric with direction, library, licence, and whether it can run here without a download."""
    from bcs_lab.audit.metrics import MetricUnavailable, expand, list_metrics, load_metric, metric_spec
    from bcs_lab.report.audit_tables import short_reason

    names = expand([*(spec.name for spec in list_metrics()), OFFLINE])
    options = _options(config, names, start)
    rows = [["metric", "here", "better", "a value a", "library", "licence"]]
    reasons = []
    with _offline():
        for name in names:
            spec = metric_spec(name)
            own = {**(options.get("bcs", {}) if name.startswith("bcs_") else {}), **options.get(name, {})}
            here = "yes"
            try:
                load_metric(name, options=own, device=config.device, compat=config.compat)
            except MetricUnavailable as error:
                here = "no"
                short = short_reason(str(error).removeprefix(f"{spec.title}: "))
                reasons.append(f"  {name}: {short}")
            better = "higher" if spec.higher_is_better else "lower"
            rows.append([name, here, better, "set" if spec.kind == "set" else "pair", spec.library, spec.licence])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", "cosine:<encoder> is one more for every encoder, such as cosine:siglip; bcs is bcs_pas and bcs_sas."]
    if reasons:
        lines += ["", "Not here (no server was asked; a run downloads weights where a network gives them):", *reasons]
    return "\n".join(lines)


@contextmanager
def _offline() -> Iterator[None]:
    """Let no weights be downloaded for a mere list."""
    from huggingface_hub import constants

    before, known = os.environ.get("HF_HUB_OFFLINE"), constants.HF_HUB_OFFLINE
    os.environ["HF_HUB_OFFLINE"] = "1"
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = known
        if before is None:
            os.environ.pop("HF_HUB_OFFLINE", None)
        else:
            os.environ["HF_HUB_OFFLINE"] = before
