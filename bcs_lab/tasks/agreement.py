"""``bcs agreement``: how far the teachers of a corpus agree, as numbers, tables, figures and one page."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcs_lab.config import AgreementConfig, RationalesConfig, absolute, parse
from bcs_lab.consensus import select_teachers, teacher_answers
from bcs_lab.errors import CorpusError, EncoderError
from bcs_lab.files import check_writable, write_json, write_text
from bcs_lab.tasks.inputs import open_corpus, open_store, report_skipped

if TYPE_CHECKING:
    from bcs_lab.corpus import Corpus
    from bcs_lab.rationales import Cosines

log = logging.getLogger(__name__)

RESULT, PAGE, SUMMARY = "agreement.json", "agreement.html", "agreement.txt"


def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
    """Entry of the command line.

    Raises:
        ConfigError: teachers that the corpus does not have, or results that cannot be written there.
        CorpusError: a corpus without answers of these teachers, or one that cannot be read.
        EncoderError: a sentence encoder that was named and cannot be had; ``auto`` goes on without.
    """
    config = parse(AgreementConfig, values)
    target = absolute(config.out, start) or out
    check_writable(target / RESULT, "out")
    # A pair that no teacher could answer is counted, not refused.
    corpus = open_corpus(config.corpus, start, need_images=False, need_answers=False)
    if not corpus.teachers:
        raise CorpusError(
            f"corpus {corpus.name} has no annotations; expected annotations/TEACHER.jsonl in its folder, or "
            "corpus.annotations=DIR. bcs annotate writes them."
        )
    report_skipped(corpus, out)
    teachers = select_teachers(corpus.teachers, config.teachers)

    from bcs_lab.report.agreement_figures import write_figures
    from bcs_lab.report.agreement_page import write_page
    from bcs_lab.report.agreement_tables import csv_tables, summary
    from bcs_lab.report.table import csv_text
    from bcs_lab.teacher_agreement import Settings, analyze, disagreement_rows, prepare

    settings = Settings(config.bootstrap.resamples, config.bootstrap.seed, config.pairs)
    items = prepare(corpus, teachers, settings)  # refuses a corpus without answers before any text is embedded
    spoken = _cosines(corpus, teachers, config.rationales, config.store, start)
    result = analyze(corpus, teachers, settings, spoken)
    text = summary(result)
    write_json(target / RESULT, result)
    tables = {**csv_tables(result), "disagreement.csv": disagreement_rows(corpus, items)}
    for name, rows in tables.items():
        write_text(target / name, csv_text(rows))
    figures = write_figures(result, target)
    write_page(result, corpus, target / PAGE)
    write_text(target / SUMMARY, text + "\n")
    print(text)
    names = [RESULT, PAGE, SUMMARY, *tables, *(path.name for path in figures)]
    print(f"\nWritten: {target}: {', '.join(names)}")
    return {
        "corpus": corpus.name,
        "simulated_teachers": corpus.simulated_teachers,
        "teachers": list(teachers),
        "items": result["n_items"],
        "unanimous_rate": result["unanimous_rate"],
        "fleiss_kappa": result["fleiss_kappa"],
        "rationales": result["rationales"].get("model"),
        "page": str(target / PAGE),
    }


def _cosines(
    corpus: Corpus, teachers: tuple[str, ...], config: RationalesConfig, store: str, start: Path
) -> Cosines | str:
    """Cosines of the rationales, or why there are none."""
    from bcs_lab.rationales import complete_rationales, load_sentence_encoder, rationale_cosines

    if config.model == "none":
        return "not asked for (rationales.model=none)"
    if len(teachers) < 2:
        return "one teacher alone: there is nothing to compare"
    rationales = teacher_answers(corpus.rationales, corpus.teachers, teachers)
    answers = teacher_answers(corpus.answers, corpus.teachers, teachers)
    if not complete_rationales(rationales, answers).any():
        return "no item for which every teacher gave a rationale"
    local = absolute(config.model, start)
    model = str(local) if local is not None and config.model != "auto" and local.is_dir() else config.model
    try:
        encoder = load_sentence_encoder(model, config.device, config.batch_size)
    except EncoderError as error:
        if config.model != "auto":
            raise
        log.warning("rationales are not compared: %s", error)
        return str(error)
    return rationale_cosines(
        rationales, answers, encoder, store=open_store(store, start), items=config.items, seed=config.seed
    )
