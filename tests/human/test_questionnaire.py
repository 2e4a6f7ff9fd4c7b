"""Questions as data: the default, translations, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from bcs_lab.errors import ConfigError
from bcs_lab.human.questionnaire import Questionnaire, default_text, read_questionnaire


def changed(path: Path, **changes: Any) -> Path:
    value = {**yaml.safe_load(default_text()), **changes}
    path.write_text(yaml.safe_dump(value, allow_unicode=True), encoding="utf-8")
    return path


def test_the_default_asks_what_the_paper_asked(asked: Questionnaire) -> None:
    assert {group.id: len(group.questions) for group in asked.groups} == {
        "perceptual": 3,
        "semantic": 3,
        "coherence": 3,
    }
    assert asked.scale.values == [0.0, 0.5, 1.0]
    assert [option.label for option in asked.scale.options] == ["no", "somewhat", "yes"]
    assert asked.scale.level == "ordinal"


def test_a_translation_is_the_same_questionnaire(tmp_path: Path, asked: Questionnaire) -> None:
    value = yaml.safe_load(default_text())
    for group in value["groups"]:
        group["title"] = "Überschrift"
        for question in group["questions"]:
            question["text"] = "Frage?"
    value["scale"]["options"] = [{"value": v, "label": w} for v, w in ((0, "nein"), (0.5, "etwas"), (1, "ja"))]
    (tmp_path / "de.yaml").write_text(yaml.safe_dump({**value, "lang": "de", "ui": {"start": "Los"}}), encoding="utf-8")
    translated = read_questionnaire(tmp_path / "de.yaml")
    assert translated.digest == asked.digest
    assert translated.ui["start"] == "Los"
    assert translated.ui["next"] == asked.ui["next"]


def test_another_scale_or_level_is_another_questionnaire(tmp_path: Path, asked: Questionnaire) -> None:
    five = {"level": "ordinal", "options": [{"value": k / 4, "label": str(k + 1)} for k in range(5)]}
    digests = {asked.digest, read_questionnaire(changed(tmp_path / "a.yaml", scale=five)).digest}
    digests.add(read_questionnaire(changed(tmp_path / "b.yaml", scale={**five, "level": "interval"})).digest)
    assert len(digests) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scale": {"level": "ratio", "options": []}}, ["2 config problem(s)", "scale.level", "scale.options"]),
        (
            {"scale": {"level": "ordinal", "options": [{"value": 1, "label": "a"}, {"value": 0, "label": "b"}]}},
            ["ascending"],
        ),
        ({"groups": [{"id": "a b", "title": "x", "questions": []}]}, ["groups", "questions"]),
        ({"title": ""}, ["title"]),
        ({"colour": "red"}, ["colour", "unknown key"]),
        ({"ui": {"begin": "x"}}, ["ui", "begin", "known"]),
        ({"ui": ["x"]}, ["ui"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    path = changed(tmp_path / "mine.yaml", **changes)
    with pytest.raises(ConfigError) as caught:
        read_questionnaire(path)
    assert all(word in str(caught.value) for word in [*words, "mine.yaml"]), str(caught.value)


def test_ids_are_used_once(tmp_path: Path) -> None:
    groups = yaml.safe_load(default_text())["groups"]
    groups[1]["questions"][0]["id"] = groups[0]["questions"][0]["id"]
    with pytest.raises(ConfigError, match="realism more than once"):
        read_questionnaire(changed(tmp_path / "mine.yaml", groups=groups))


@pytest.mark.parametrize("text", ["- a", "a: [", ""])
def test_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "q.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"q\.yaml"):
        read_questionnaire(tmp_path / "q.yaml")
    with pytest.raises(ConfigError, match="nowhere"):
        read_questionnaire(tmp_path / "nowhere.yaml")
