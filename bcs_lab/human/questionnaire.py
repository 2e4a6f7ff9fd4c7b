"""The questions people are asked, read from YAML and checked; see ``questions.yaml`` for the default and its words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from bcs_lab.config import Section, parse
from bcs_lab.errors import ConfigError

Id = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,31}$")]
Text = Annotated[str, Field(min_length=1)]
#: Keys 1 to 9 give the answers.
MAX_OPTIONS = 9


class Option(Section):
    """One answer of the scale: the number that is stored and the word that is shown."""

    value: Annotated[float, Field(ge=0.0, le=1.0)]
    label: Text


class Scale(Section):
    """The answers, from least to most, and what their numbers mean."""

    level: Literal["nominal", "ordinal", "interval"]
    options: Annotated[list[Option], Field(min_length=2, max_length=MAX_OPTIONS)]
    cannot_say: Text | None = None

    @property
    def values(self) -> list[float]:
        """The numbers, ascending."""
        return [option.value for option in self.options]

    @model_validator(mode="after")
    def _ascending(self) -> Scale:
        if any(b <= a for a, b in zip(self.values, self.values[1:], strict=False)):
            raise ValueError(f"options: expected ascending values without repeats, got {self.values}")
        labels = [option.label for option in self.options] + ([self.cannot_say] if self.cannot_say else [])
        if len(set(labels)) != len(labels):
            raise ValueError(f"options: expected distinct labels, got {labels}")
        return self


class Question(Section):
    """One question: its id, the sentence that is shown, and two or three words for tables."""

    id: Id
    text: Text
    short: Text


class Group(Section):
    """Questions that are asked together and counted together, such as the rows of Table 7."""

    id: Id
    title: Text
    hint: str = ""
    questions: Annotated[list[Question], Field(min_length=1)]


class Questionnaire(Section):
    """A whole form: its words, its groups of questions, and the scale they share."""

    name: Text
    lang: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{2,20}$")] = "en"
    dir: Literal["ltr", "rtl"] = "ltr"
    title: Text
    intro: list[Text] = Field(default_factory=list)
    consent: Text
    scale: Scale
    groups: Annotated[list[Group], Field(min_length=1)]
    ui: dict[str, Text] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _distinct_ids(self) -> Questionnaire:
        for what, ids in (("groups", [group.id for group in self.groups]), ("questions", self.question_ids)):
            twice = sorted({one for one in ids if ids.count(one) > 1})
            if twice:
                raise ValueError(f"{what}: expected distinct ids, got {', '.join(twice)} more than once")
        return self

    @property
    def question_ids(self) -> list[str]:
        """Ids of all questions, in order."""
        return [question.id for group in self.groups for question in group.questions]

    @property
    def structure(self) -> dict[str, Any]:
        """What ratings depend on: ids, values and level of measurement, without any words."""
        return {
            "name": self.name,
            "level": self.scale.level,
            "values": self.scale.values,
            "groups": [{"id": g.id, "questions": [q.id for q in g.questions]} for g in self.groups],
        }

    @property
    def digest(self) -> str:
        """Identity of :attr:`structure`: equal for a form and its translation."""
        return hashlib.sha256(json.dumps(self.structure, sort_keys=True).encode()).hexdigest()[:16]


def default_text() -> str:
    """The questions that come with the package, as YAML."""
    return files("bcs_lab").joinpath("human/questions.yaml").read_text(encoding="utf-8")


def read_questionnaire(path: Path | None = None) -> Questionnaire:
    """Questions from a YAML file, by default those that come with the package.

    Words under ``ui`` that a file lacks are the default's.

    Raises:
        ConfigError: no such file, no YAML, or listing every problem of its content.
    """
    default = yaml.safe_load(default_text())
    if path is None:
        return parse(Questionnaire, default)
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"questions: expected a YAML file as bcs_lab/human/questions.yaml, got {path}: {reason}"
        ) from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{path}: expected a mapping as in bcs_lab/human/questions.yaml, got {type(value).__name__}")
    return checked(value, str(path))


def checked(value: Mapping[str, Any], where: str) -> Questionnaire:
    """A questionnaire from plain containers.

    Raises:
        ConfigError: listing every problem, after ``where``.
    """
    words = yaml.safe_load(default_text())["ui"]
    given = value.get("ui") or {}
    stray = sorted(set(given) - set(words)) if isinstance(given, Mapping) else []
    if stray:
        raise ConfigError(f"{where}: ui: unknown key(s) {', '.join(map(str, stray))}; known: {', '.join(words)}")
    try:
        return parse(Questionnaire, {**value, "ui": {**words, **given} if isinstance(given, Mapping) else given})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
