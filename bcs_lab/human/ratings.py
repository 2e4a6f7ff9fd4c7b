"""Ratings of a study from a folder: the files of the form and exports of Label Studio, all problems listed at once.

A bad answer never hides a good one: under ``skip`` a file is left out for what concerns it as a whole (damaged, of
another study, a rater given twice), an answer for what concerns it alone (unknown pair or question, out of scale).
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bcs_lab.errors import Problem, StudyError, listing
from bcs_lab.human.form import RATINGS_FORMAT, RATINGS_VERSION
from bcs_lab.human.label_studio import Annotation, is_export, read_export
from bcs_lab.human.questionnaire import Questionnaire
from bcs_lab.human.study import Study

#: Longest accepted rating file; a real one has some 20 kB.
MAX_BYTES = 50_000_000


@dataclass
class Rater:
    """One person's ratings.

    Attributes:
        code: the rater's code, in lower case.
        file: where they come from.
        submission: id of the form's session; ``""`` for Label Studio.
        saved: when the file was made, as it says.
        answers: (item, question) -> value; ``None`` for "cannot say".
        seconds: time until the first answer of each question, where it was recorded.
        comment: what the rater wrote at the end.
    """

    code: str
    file: str
    submission: str = ""
    saved: str = ""
    answers: dict[tuple[str, str], float | None] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    comment: str = ""


@dataclass(frozen=True)
class Ratings:
    """The ratings of a study.

    Attributes:
        raters: sorted by code.
        values: [n_raters, n_items, n_questions] on the scale, NaN where a rater gave none.
        items: ids, in the order of the study.
        questions: ids, in the order of the questionnaire.
        problems: what was left out.
        excluded: codes left out on request.
    """

    raters: tuple[Rater, ...]
    values: NDArray[np.float64]
    items: tuple[str, ...]
    questions: tuple[str, ...]
    problems: tuple[Problem, ...] = ()
    excluded: tuple[str, ...] = ()

    def group(self, questions: Sequence[str]) -> NDArray[np.float64]:
        """The ratings of some questions: [n_raters, n_items, len(questions)]."""
        return self.values[:, :, [self.questions.index(one) for one in questions]]


def read_ratings(
    folder: Path,
    study: Study,
    questionnaire: Questionnaire,
    *,
    on_bad_row: str = "error",
    exclude: Sequence[str] = (),
) -> Ratings:
    """All ratings in the ``.json`` files of a folder.

    Args:
        folder: where the files are; folders within are not searched.
        study: what was rated.
        questionnaire: what was asked.
        on_bad_row: ``error`` stops with every problem listed; ``skip`` leaves bad files and answers out.
        exclude: codes of raters to leave out.

    Raises:
        StudyError: no such folder, no ratings in it, an unknown rater to exclude, or problems under ``error``.
    """
    if not folder.is_dir():
        raise StudyError(f"ratings={folder}: no such folder; expected one with the raters' ratings-CODE.json")
    reader = _Reader(study, questionnaire)
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".json" and path.is_file())
    for path in paths:
        reader.read(path)
    raters = reader.distinct()
    if reader.problems and on_bad_row == "error":
        raise StudyError(
            f"{len(reader.problems)} problem(s) in the ratings {folder}:\n{listing(reader.problems)}\n"
            "Correct these, or go on without them: on_bad_row=skip"
        )
    left_out = {code.lower() for code in exclude}
    unknown = sorted(left_out - {rater.code for rater in raters})
    if unknown:
        known = ", ".join(rater.code for rater in raters) or "none"
        raise StudyError(f"exclude: no ratings of {', '.join(unknown)}; raters here: {known}")
    if raters and not [rater for rater in raters if rater.code not in left_out]:
        codes = ", ".join(rater.code for rater in raters)
        raise StudyError(f"exclude: every rater in {folder} is excluded ({codes}); leave at least one in")
    raters = [rater for rater in raters if rater.code not in left_out]
    if not raters:
        what = f":\n{listing(reader.problems)}" if reader.problems else "; expected the raters' ratings-CODE.json"
        raise StudyError(f"ratings={folder}: none of {len(paths)} .json file(s) holds ratings that can be used{what}")
    items = tuple(item.item for item in study.items)
    questions = tuple(questionnaire.question_ids)
    values = np.full((len(raters), len(items), len(questions)), np.nan)
    for r, rater in enumerate(raters):
        for (item, question), value in rater.answers.items():
            if value is not None:
                values[r, items.index(item), questions.index(question)] = value
    return Ratings(tuple(raters), values, items, questions, tuple(reader.problems), tuple(sorted(left_out)))


class _Reader:
    """Collects raters and problems over all files."""

    def __init__(self, study: Study, questionnaire: Questionnaire):
        self.study = study
        self.questionnaire = questionnaire
        self.items = {item.item for item in study.items}
        self.questions = set(questionnaire.question_ids)
        self.scale = questionnaire.scale.values
        self.raters: list[Rater] = []
        self.problems: list[Problem] = []

    def problem(self, file: str, message: str) -> None:
        self.problems.append(Problem(file, None, message))

    def read(self, path: Path) -> None:
        try:
            if path.stat().st_size > MAX_BYTES:
                self.problem(path.name, f"{path.stat().st_size} bytes are too many for ratings (limit {MAX_BYTES})")
                return
            value = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            self.problem(path.name, f"cannot be read as JSON ({error})")
            return
        if is_export(value):
            self._export(path.name, value)
        elif isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            self.problem(
                path.name, "a list without tasks, perhaps Label Studio's JSON-MIN; expected its export as JSON"
            )
        elif not isinstance(value, dict) or value.get("format") != RATINGS_FORMAT:
            self.problem(path.name, "neither ratings of the form nor a JSON export of Label Studio")
        elif value.get("version") != RATINGS_VERSION:
            self.problem(path.name, f"ratings of version {value.get('version')!r}, expected {RATINGS_VERSION}")
        else:
            self._form(path.name, value)

    def _fits(self, file: str, study: Any, questionnaire: Any) -> bool:
        wrong = []
        if study != self.study.digest:
            wrong.append(f"ratings of another study (digest {study!r}, expected {self.study.digest!r})")
        if questionnaire != self.questionnaire.digest:
            wrong.append(
                f"other questions or another scale (digest {questionnaire!r}, expected {self.questionnaire.digest!r})"
            )
        for message in wrong:
            self.problem(file, message)
        return not wrong

    def _form(self, file: str, value: Mapping[str, Any]) -> None:
        asked = value.get("questionnaire")
        if not self._fits(file, value.get("study"), asked.get("digest") if isinstance(asked, dict) else None):
            return
        code, answers = value.get("rater"), value.get("answers")
        if not isinstance(code, str) or not code.strip() or len(code) > 64:
            self.problem(file, f"rater: expected a code of 1 to 64 characters, got {code!r}")
            return
        if not isinstance(answers, dict):
            self.problem(file, f"answers: expected a mapping by pair, got {type(answers).__name__}")
            return
        rater = Rater(
            code.strip().lower(),
            file,
            submission=str(value.get("submission") or ""),
            saved=str(value.get("saved") or ""),
            comment=str(value.get("comment") or ""),
        )
        for item, given in answers.items():
            if item not in self.items:
                self.problem(file, f"rater {rater.code}: unknown pair {item!r}")
            elif not isinstance(given, dict):
                self.problem(file, f"rater {rater.code}, pair {item}: expected answers by question, got {given!r}")
            else:
                for question, answer in given.items():
                    self._answer(rater, item, question, answer)
        self.raters.append(rater)

    def _answer(self, rater: Rater, item: str, question: str, answer: Any) -> None:
        value = answer.get("value", "nothing") if isinstance(answer, dict) else answer
        if self._keep(rater, item, question, value) and isinstance(answer, dict):
            ms = answer.get("ms")
            if isinstance(ms, (int, float)) and not isinstance(ms, bool) and math.isfinite(ms) and ms >= 0:
                rater.seconds.append(ms / 1000)

    def _keep(self, rater: Rater, item: str, question: str, value: Any) -> bool:
        where = f"rater {rater.code}, pair {item}"
        if question not in self.questions:
            self.problem(rater.file, f"{where}: unknown question {question!r}")
        elif value is not None and (isinstance(value, bool) or value not in self.scale):
            self.problem(rater.file, f"{where}, {question}: {value!r} is not on the scale {self.scale}")
        else:
            rater.answers[item, question] = None if value is None else float(value)
            return True
        return False

    def _export(self, file: str, export: list[dict[str, Any]]) -> None:
        found: dict[str, Rater] = {}
        seen: set[tuple[str, str]] = set()
        for one in read_export(export, self.questionnaire):
            name = f"{file} (task {one.where})"
            if not self._fits(name, one.study, one.questionnaire):
                continue
            if one.item not in self.items:
                self.problem(name, f"rater {one.rater}: unknown pair {one.item!r}")
            elif (one.rater, one.item) in seen:
                self.problem(name, f"rater {one.rater}: pair {one.item} was rated more than once; the first counts")
            else:
                seen.add((one.rater, one.item))
                self._annotation(found.setdefault(one.rater, Rater(one.rater, file)), one)
        self.raters.extend(found.values())
        if not found and not self.problems:
            self.problem(file, "an export of Label Studio without annotations")

    def _annotation(self, rater: Rater, one: Annotation) -> None:
        for question, value in one.answers.items():
            self._keep(rater, str(one.item), question, value)
        if one.seconds is not None and one.answers:
            # Label Studio times the whole pair.
            rater.seconds += [one.seconds / len(one.answers)] * len(one.answers)

    def distinct(self) -> list[Rater]:
        """One entry a rater; the newest of several downloads of one session, none of several sessions of one code."""
        kept: list[Rater] = []
        by_submission: dict[str, list[Rater]] = {}
        for rater in self.raters:
            by_submission.setdefault(rater.submission or f"{rater.file}/{rater.code}", []).append(rater)
        for same in by_submission.values():
            newest = max(same, key=lambda rater: (rater.saved, rater.file))
            kept.append(newest)
            for rater in same:
                if rater is not newest:
                    self.problem(
                        rater.file,
                        f"rater {rater.code}: an earlier download of the submission in {newest.file}, which counts",
                    )
        codes = Counter(rater.code for rater in kept)
        for rater in kept:
            if codes[rater.code] > 1:
                others = sorted(other.file for other in kept if other.code == rater.code and other is not rater)
                self.problem(
                    rater.file, f"rater {rater.code} is also in {', '.join(others)}; which one counts is unknown"
                )
        return sorted((rater for rater in kept if codes[rater.code] == 1), key=lambda rater: rater.code)
