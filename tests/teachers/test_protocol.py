"""Protocols as data: the paper's, a user's file, and what is wrong with it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from bcs_lab.catalogue import config_dir
from bcs_lab.errors import ConfigError
from bcs_lab.launch import resolve
from bcs_lab.teachers.protocol import (
    BCS12,
    LEVELS,
    PERCEPTUAL,
    SEMANTIC,
    Protocol,
    Question,
    corpus_protocol,
    load_protocol,
    protocol_from,
    protocol_text,
    protocol_values,
    same_questions,
)

SMALL: dict[str, Any] = {
    "name": "small",
    "answers": [{"label": "no", "score": 0}, {"label": "yes", "score": 1, "meaning": "it is"}],
    "questions": [
        {"id": "A1", "group": "perceptual", "name": "edges"},
        {"id": "B1", "group": "semantic", "name": "mood", "examples": [{"label": "no", "text": "a storm"}]},
    ],
}


def changed(**values: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SMALL), **values}


def question(**values: Any) -> dict[str, Any]:
    return changed(questions=[{**SMALL["questions"][0], **values}, SMALL["questions"][1]])


def test_the_papers_questions() -> None:
    assert BCS12.ids == ("P1", "P2", "P3", "P4", "P5", "P6", "S1", "S2", "S3", "S4", "S5", "S6")
    assert BCS12.indices(PERCEPTUAL) == list(range(6))
    assert BCS12.indices(SEMANTIC) == list(range(6, 12))
    assert dict(BCS12.levels) == dict(LEVELS) == {"no": 0.0, "somewhat": 0.5, "yes": 1.0}
    assert set(BCS12.meanings) == set(LEVELS)
    for one in BCS12.questions:
        assert "?" in one.criterion
        assert len(one.tolerated) >= 2
        assert one.penalised
        assert one.aliases[0].startswith(f"{one.id}_")
        assert all(label in LEVELS and text for label, text in one.examples)
    # the paper gives examples for S1 to S5, of every kind of answer but for S5
    assert [one.id for one in BCS12.questions if one.examples] == ["S1", "S2", "S3", "S4", "S5"]
    for one in BCS12.questions[6:10]:
        assert {label for label, _ in one.examples} == set(LEVELS)


def test_named_and_cached() -> None:
    assert load_protocol("bcs12") is BCS12
    assert hash(load_protocol("bcs12")) == hash(BCS12)
    with pytest.raises(ConfigError, match="Did you mean bcs12"):
        load_protocol("bsc12")


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "copy.yaml"
    path.write_text(protocol_text(BCS12), encoding="utf-8")
    again = load_protocol(path)
    assert again == BCS12
    assert again.digest == BCS12.digest
    assert protocol_values(again) == protocol_values(BCS12)
    assert load_protocol(str(path)) == BCS12
    assert pickle.loads(pickle.dumps(BCS12)) == BCS12
    plain = Protocol("plain", (Question("A", "perceptual", "a"),))
    path.write_text(protocol_text(plain), encoding="utf-8")
    assert load_protocol(path) == plain


def test_the_digest_is_of_everything() -> None:
    assert len(BCS12.digest) == 16
    seen = {BCS12.digest}
    values = protocol_values(BCS12)

    def different(**parts: Any) -> None:
        digest = protocol_from({**copy.deepcopy(values), **parts}).digest
        assert digest not in seen
        seen.add(digest)

    different(name="other")
    different(system="Judge.")
    different(answers=[{**answer, "meaning": "x"} for answer in values["answers"]])
    different(questions=values["questions"][::-1])
    for key, value in (("criterion", "x?"), ("name", "x"), ("tolerated", ["x"]), ("aliases", ["x"]), ("id", "X")):
        different(questions=[{**values["questions"][0], key: value}, *values["questions"][1:]])


def test_from_a_config(tmp_path: Path) -> None:
    assert protocol_from(protocol_values(BCS12)) == BCS12
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    mine = protocol_from({"path": "mine.yaml"}, base=tmp_path)
    assert mine.ids == ("A1", "B1")
    assert protocol_from({"path": str(tmp_path / "mine.yaml")}) == mine
    for value in ("???", None, "", 3):
        with pytest.raises(ConfigError, match=r"protocol\.path"):
            protocol_from({"path": value})
    with pytest.raises(ConfigError, match="path and name"):
        protocol_from({"path": "mine.yaml", "name": "x"}, base=tmp_path)


def test_composed_by_hydra(tmp_path: Path) -> None:
    def composed(*overrides: str) -> dict[str, Any]:
        with initialize_config_dir(str(config_dir()), version_base="1.3"):
            return resolve(compose("annotate", ["corpus=demo", *overrides]))["protocol"]

    assert protocol_from(composed()) == protocol_from(composed("protocol=bcs12")) == BCS12
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    values = composed("protocol=file", "protocol.path=mine.yaml")
    assert protocol_from(values, base=tmp_path).name == "small"


def test_words_that_yaml_takes_for_truth(tmp_path: Path) -> None:
    """Nobody should have to know that YAML 1.1 reads yes and no as true and false."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nanswers:\n- {label: no, score: 0}\n- {label: yes, score: 1}\n"
        "questions:\n- {id: A, group: semantic, name: off, examples: [{label: yes, text: on}]}\n",
        encoding="utf-8",
    )
    mine = load_protocol(path)
    assert mine.levels == {"no": 0.0, "yes": 1.0}
    assert mine.questions[0].name == "off"
    assert mine.questions[0].examples == (("yes", "on"),)


def test_every_problem_at_once() -> None:
    bad = {
        "nam": "x",
        "system": 3,
        "answers": [
            {"label": "Yes", "score": 1},
            {"label": "no", "score": 0.3},
            {"label": "no", "score": True},
            {"score": 0, "meening": "x"},
            "maybe",
        ],
        "questions": [
            {"id": "1", "group": "visual", "name": ""},
            {"id": "pair_id", "group": "semantic", "name": "x", "tolerated": "blur"},
            {"id": "A", "group": "semantic", "name": "y", "examples": [{"label": "perhaps", "text": "z"}, 4]},
            {"id": "a", "group": "semantic", "name": "w", "crit": "?", "aliases": [1]},
        ],
    }
    with pytest.raises(ConfigError) as error:
        protocol_from(bad)
    text = str(error.value)
    for part in (
        "nam: unknown key; did you mean name?", "name: is missing", "system: expected a text, got a number (3)",
        "answers.0.label: expected lower case", "answers.1.score: expected 0, 0.5 or 1 (eq. 7), got 0.3",
        "answers.2.label: 'no' is there twice", "answers.3.meening: unknown key; did you mean meaning?",
        "answers.3.label: is missing", "answers.4: expected a mapping, got a text", "questions.0.id: expected a letter",
        "questions.0.group: expected perceptual (counts for T-PAS) or semantic (T-SAS), got 'visual'",
        "questions.0.name: is empty", "questions.1.id: 'pair_id' is also the name of a column",
        "questions.1.tolerated: expected a list of texts, got a text", "questions.2.examples.0.label: expected one of",
        "questions.2.examples.1: expected a mapping", "questions.3.crit: unknown key; did you mean criterion?",
        "questions.3.id: 'a' is also used by questions.2", "questions.3.aliases.0: expected a text, got a number (1)",
    ):  # fmt: skip
        assert part in text, part


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (changed(questions=[]), "questions: expected a list of mappings, got an empty list"),
        (changed(answers=None), "answers: expected a list of mappings, got nothing"),
        (changed(answers=[{"label": "yes", "score": 1}]), "answers: expected one with score 0 and one with score 1"),
        (changed(answers=[*SMALL["answers"], {"label": "also", "score": 1}]), "two answers have the score 1"),
        (changed(answers=[*SMALL["answers"], {"label": "yes.", "score": 0.5}]), "'yes.' reads like another label"),
        (changed(answers=[*SMALL["answers"], {"label": "*no*", "score": 0.5}]), "'*no*' reads like another label"),
        (changed(answers=[*SMALL["answers"], {"label": "ｙｅｓ", "score": 0.5}]), "reads like another label"),
        (changed(answers=[*SMALL["answers"], {"label": "{y}", "score": 0.5}]), "a word that can be read in JSON"),
        (changed(answers=[*SMALL["answers"], {"label": "**", "score": 0.5}]), "a word that can be read in JSON"),
        (question(id="yes"), "'yes' is also the name of an answer"),
        (question(id="t_pas"), "also the name of a column"),
        (question(id="B_1"), "'B1' is also used by questions.0"),
        (question(name="B1"), "'B1' is also used by questions.0"),
        (question(aliases=["Mood"]), "'mood' is also used by questions.0"),
        (question(id=True), "put it in quotes"),
        (question(criterion="\ud800"), "not valid Unicode"),
        ({}, "questions: is missing"),
    ],
)
def test_one_problem(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        protocol_from(values)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name: [", "not readable as YAML"),
        (b"- a\n- b", "got a list"),
        (b"", "got nothing"),
        (b"\xff\xfe\x00", "not readable as YAML"),
        (b"name: a\nname: b", "'name' is there twice"),
        (b"a: !!python/object/apply:os.system ['true']", "not readable as YAML"),
    ],
)
def test_files_that_hold_no_protocol(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_protocol(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)
    with pytest.raises(ConfigError, match="no such file"):
        load_protocol(tmp_path / "absent.yaml")


def test_of_a_corpus_folder(tmp_path: Path) -> None:
    assert corpus_protocol(tmp_path) is BCS12
    (tmp_path / "protocol.yaml").write_text(yaml.safe_dump(SMALL), encoding="utf-8")
    assert corpus_protocol(tmp_path).name == "small"
    (tmp_path / "protocol.yaml").unlink()
    (tmp_path / "protocol.yaml").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match="no such file"):
        corpus_protocol(tmp_path)


def test_same_questions() -> None:
    small = protocol_from(SMALL)
    assert same_questions(small, protocol_from(changed(name="other", system="x")))
    assert not same_questions(small, BCS12)
    assert not same_questions(small, protocol_from(question(group="semantic")))
    assert not same_questions(small, protocol_from(changed(questions=SMALL["questions"][::-1])))


def test_importing_it_is_quick() -> None:
    """It is imported by nearly everything; reading the YAML must not be felt."""
    code = (
        "import time, yaml; t = time.process_time(); import bcs_lab.teachers.protocol; print(time.process_time() - t)"
    )
    times = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(3)
    ]
    assert min(times) < 0.06
