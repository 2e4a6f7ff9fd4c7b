"""``bcs study form``: the rating form of a study, and its Label Studio project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bcs_lab.config import StudyFormConfig, absolute, parse
from bcs_lab.files import check_writable


def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
    """Entry of the command line.

    Raises:
        ConfigError: questions that cannot be used, or a form that cannot be written there.
        StudyError: no study there, pictures missing or altered, or a form with other questions.
    """
    from bcs_lab.human.form import keep_questionnaire, write_form
    from bcs_lab.human.label_studio import write_project
    from bcs_lab.human.questionnaire import read_questionnaire
    from bcs_lab.human.study import Study, find_study

    config = parse(StudyFormConfig, values)
    folder = find_study(absolute(config.study, start), start)
    path = absolute(config.out, start) or folder / "form.html"
    if path.is_dir():
        path = path / "form.html"
    study = Study.read(folder)
    questionnaire = read_questionnaire(absolute(config.questions, start))
    check_writable(path, "out")
    keep_questionnaire(folder, questionnaire, overwrite=config.overwrite)
    write_form(study, folder, questionnaire, path)
    answers = len(study.items) * len(questionnaire.question_ids)
    size = path.stat().st_size / 1e6
    print(
        f"{path}: {len(study.items)} pairs x {len(questionnaire.question_ids)} questions = {answers} answers a rater, "
        f"{size:.1f} MB. Open it in a browser, or send it to the raters; nothing else is needed."
    )
    if config.label_studio != "none":
        project = write_project(study, folder, questionnaire, inline=config.label_studio == "inline")
        print(f"{project}: the same as a Label Studio project (see its README.md)")
    print(f"Next: collect the raters' ratings-CODE.json in a folder; bcs study analyze ratings=FOLDER study={folder}")
    return {"study": str(folder), "digest": study.digest, "questionnaire": questionnaire.digest, "form": str(path)}
