"""The same study as a Label Studio project, and its JSON export back as ratings.

Formats as documented at labelstud.io: a labelling configuration (tags View, Header, Image, Choices, Choice), tasks as a
list of ``{"data": …}``, and an export whose tasks carry ``annotations`` with ``result`` entries of type ``choices``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as xml

from bcs_lab.files import write_json, write_text
from bcs_lab.human.form import data_uri
from bcs_lab.human.questionnaire import Questionnaire
from bcs_lab.human.study import Study

#: Alias of the answer that counts as missing.
CANNOT_SAY = "cannot_say"

_HOW_TO = """# This study in Label Studio

1. Make a project; under Settings, Labeling Interface, Code, paste `config.xml`.
2. Import `tasks.json`.{local}
3. Under Settings, Annotation, let every task be annotated by as many people as there are raters, in random order.
4. Export as JSON (not JSON-MIN), put the file into the ratings' folder, and run `bcs study analyze`.

Label Studio neither shuffles the groups of questions for each rater nor records the time of a single answer, as the
HTML form does. Do not give raters the study's folder: it says which method made which picture.
"""

_LOCAL = """ The pictures are served from disk: start Label Studio with
   `LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true` and `LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT` set to the folder that
   holds the study's folder, and add `{folder}/images` as a local storage of the project."""


def write_project(study: Study, folder: Path, questionnaire: Questionnaire, *, inline: bool = True) -> Path:
    """Write ``label_studio/`` into the study's folder: ``config.xml``, ``tasks.json`` and how to use them.

    Args:
        study: what to show.
        folder: the study's folder.
        questionnaire: what to ask.
        inline: put the pictures into the tasks; otherwise tasks name them by the path Label Studio serves them at.
    """
    out = folder / "label_studio"
    write_text(out / "config.xml", labelling_config(questionnaire))
    write_json(out / "tasks.json", tasks(study, folder, questionnaire, inline=inline))
    local = "" if inline else _LOCAL.format(folder=folder.name)
    write_text(out / "README.md", _HOW_TO.format(local=local))
    return out


def labelling_config(questionnaire: Questionnaire) -> str:
    """The labelling interface: both pictures side by side, then all questions."""
    view = xml.Element("View")
    xml.SubElement(view, "Header", value=questionnaire.title)
    pictures = xml.SubElement(view, "View", style="display: flex; gap: 1em")
    for name in ("original", "reconstruction"):
        side = xml.SubElement(pictures, "View", style="flex: 1")
        xml.SubElement(side, "Header", value=questionnaire.ui[name], size="5")
        xml.SubElement(side, "Image", name=name, value=f"${name}", zoom="true")
    for group in questionnaire.groups:
        xml.SubElement(view, "Header", value=group.title, size="4")
        for question in group.questions:
            xml.SubElement(view, "Header", value=question.text, size="5")
            choices = xml.SubElement(
                view, "Choices", name=question.id, toName="reconstruction", choice="single-radio", required="true",
                showInline="true",
            )  # fmt: skip
            for alias, label in _choices(questionnaire).items():
                xml.SubElement(choices, "Choice", value=label, alias=alias)
    xml.indent(view)
    return xml.tostring(view, encoding="unicode") + "\n"


def tasks(study: Study, folder: Path, questionnaire: Questionnaire, *, inline: bool = True) -> list[dict[str, Any]]:
    """One task a pair, with nothing about methods or strata."""

    def address(name: str) -> str:
        return data_uri(folder / name) if inline else f"/data/local-files/?d={folder.name}/{name}"

    return [
        {
            "data": {
                "item": item.item,
                "study": study.digest,
                "questionnaire": questionnaire.digest,
                "original": address(item.reference),
                "reconstruction": address(item.reconstruction),
            }
        }
        for item in study.items
    ]


def _choices(questionnaire: Questionnaire) -> dict[str, str]:
    """Alias, which the export carries, -> label."""
    out = {f"{option.value:g}": option.label for option in questionnaire.scale.options}
    if questionnaire.scale.cannot_say:
        out[CANNOT_SAY] = questionnaire.scale.cannot_say
    return out


# --- export ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Annotation:
    """One person's answers about one pair.

    Attributes:
        where: number of the task in the export, from 1.
        rater: a code made from the person's id; addresses are not kept.
        item: as the task says, not yet checked.
        study: likewise.
        questionnaire: likewise.
        answers: question id -> value, ``None`` for "cannot say", or the text that is neither.
        seconds: time spent on the pair, where it is known.
    """

    where: int
    rater: str
    item: Any
    study: Any
    questionnaire: Any
    answers: Mapping[str, float | str | None]
    seconds: float | None


def is_export(value: Any) -> bool:
    """Whether some JSON looks like a Label Studio export: a list of tasks."""
    return isinstance(value, list) and bool(value) and all(isinstance(task, dict) and "data" in task for task in value)


def read_export(export: list[dict[str, Any]], questionnaire: Questionnaire) -> Iterator[Annotation]:
    """Every annotation of an export that its author did not cancel."""
    choices = _choices(questionnaire)
    # Old versions export the label where an alias is set.
    values: dict[str, float | None] = {}
    for alias, label in choices.items():
        values[alias] = values[label] = None if alias == CANNOT_SAY else float(alias)
    for number, task in enumerate(export, start=1):
        data = task["data"] if isinstance(task["data"], dict) else {}
        for annotation in task.get("annotations") or []:
            if not isinstance(annotation, dict) or annotation.get("was_cancelled"):
                continue
            seconds = annotation.get("lead_time")
            yield Annotation(
                where=number,
                rater=_rater(annotation.get("completed_by")),
                item=data.get("item"),
                study=data.get("study"),
                questionnaire=data.get("questionnaire"),
                answers=dict(_answers(annotation.get("result"), values)),
                seconds=float(seconds) if isinstance(seconds, (int, float)) else None,
            )


def _answers(result: Any, values: Mapping[str, float | None]) -> Iterator[tuple[str, float | str | None]]:
    for entry in result if isinstance(result, list) else []:
        if isinstance(entry, dict) and entry.get("type") == "choices":
            value = entry.get("value")
            chosen = value.get("choices") if isinstance(value, dict) else None
            text = str(chosen[0]) if isinstance(chosen, list) and len(chosen) == 1 else str(chosen)
            yield str(entry.get("from_name")), values.get(text, text)


def _rater(completed_by: Any) -> str:
    if isinstance(completed_by, dict):
        completed_by = completed_by.get("id")
    return f"ls-{completed_by}"
