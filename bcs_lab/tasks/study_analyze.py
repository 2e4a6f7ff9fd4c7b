"""``bcs study analyze``: agreement between raters, and of their ratings with the scores."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from bcs_lab.config import StudyAnalyzeConfig, absolute, parse
from bcs_lab.files import check_writable

log = logging.getLogger(__name__)


def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
    """Entry of the command line.

    Raises:
        ConfigError: results that cannot be written there.
        StudyError: no study or no ratings there, or bad ratings under ``on_bad_row=error``.
    """
    from bcs_lab.human.analyze import Settings, analyze
    from bcs_lab.human.form import read_kept_questionnaire
    from bcs_lab.human.ratings import read_ratings
    from bcs_lab.human.study import Study, find_study
    from bcs_lab.human.tables import summary, write_results

    config = parse(StudyAnalyzeConfig, values)
    source = absolute(config.ratings, start)
    assert source is not None
    folder = find_study(absolute(config.study, start), start, source, source.parent)
    study = Study.read(folder)
    questionnaire = read_kept_questionnaire(folder)
    ratings = read_ratings(source, study, questionnaire, on_bad_row=config.on_bad_row, exclude=config.exclude)
    for problem in ratings.problems:
        log.warning("left out: %s", problem)
    target = absolute(config.out, start) or out
    check_writable(target / "study_results.json", "out")
    settings = Settings(
        weights=config.kappa_weights,
        level=questionnaire.scale.level if config.level == "scale" else config.level,
        resamples=config.bootstrap.resamples,
        seed=config.bootstrap.seed,
        fast_seconds=config.fast_seconds,
    )
    result = analyze(study, questionnaire, ratings, settings)
    paths = write_results(result, target)
    print(summary(result))
    print(f"Written: {target}: {', '.join(path.name for path in paths)}")
    return {
        "study": study.digest,
        "raters": result["raters"],
        "left_out": len(ratings.problems),
        "alpha": {row["group"]: row["alpha"] for row in result["groups"]},
    }
