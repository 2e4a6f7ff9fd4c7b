"""What a teacher reads."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bcs_lab.errors import ConfigError
from bcs_lab.teachers import parse_response
from bcs_lab.teachers.prompts import RECONSTRUCTION, REFERENCE, Prompt, Slot, build_prompts
from bcs_lab.teachers.protocol import BCS12, Protocol, Question

JOINT = build_prompts(BCS12, "joint")
SINGLE = build_prompts(BCS12, "single")


def order(prompt: Prompt) -> list[str]:
    return ["image" if isinstance(part, Slot) else "text" for part in prompt.parts]


def test_one_call_or_one_a_question() -> None:
    assert [prompt.questions for prompt in JOINT] == [BCS12.ids]
    assert [prompt.questions for prompt in SINGLE] == [(question,) for question in BCS12.ids]
    with pytest.raises(ConfigError, match="joint"):
        build_prompts(BCS12, "both")  # type: ignore[arg-type]


def test_the_shared_part_comes_first() -> None:
    for prompt in (*JOINT, *SINGLE):
        assert order(prompt) == ["text", "image", "text", "image", "text"]
        assert prompt.parts[1] is REFERENCE
        assert prompt.parts[3] is RECONSTRUCTION
        assert prompt.system == BCS12.system
    assert len({prompt.parts[:-1] for prompt in SINGLE}) == 1, "all twelve share everything before the question"
    assert len({prompt.parts[-1] for prompt in SINGLE}) == 12


def test_every_word_of_the_protocol_is_in_it() -> None:
    texts = {prompt.questions: prompt.text() for prompt in (*JOINT, *SINGLE)}
    for question in BCS12.questions:
        for text in (texts[BCS12.ids], texts[(question.id,)]):
            for part in (question.criterion, *question.tolerated, *question.penalised):
                assert part in text
            for label, case in question.examples:
                assert f"{case} → {label}" in text
    for text in texts.values():
        assert all(f"- {label}: {meaning}" in text for label, meaning in BCS12.meanings.items())
        assert text.index("<image: reference>") < text.index("<image: reconstruction>")
    assert BCS12.questions[0].criterion not in texts[("P2",)]


def test_the_schema_asks_for_the_rationale_first() -> None:
    (joint,) = JOINT
    assert list(joint.schema["properties"]) == list(BCS12.ids)
    assert joint.schema["required"] == list(BCS12.ids)
    for prompt in (joint, *SINGLE):
        for question in prompt.questions:
            entry = prompt.schema["properties"][question]
            assert list(entry["properties"]) == ["rationale", "answer"] == entry["required"]
            assert entry["properties"]["answer"] == {"type": "string", "enum": ["yes", "somewhat", "no"]}
            assert entry["additionalProperties"] is False
    json.dumps(joint.schema)


def test_an_answer_that_fits_the_schema_is_read() -> None:
    for prompt in (*JOINT, *SINGLE):
        value = {question: {"rationale": "x", "answer": "somewhat"} for question in prompt.questions}
        assert parse_response(json.dumps(value), questions=prompt.questions).valid


def test_an_echo_of_the_prompt_answers_nothing() -> None:
    for prompt in (*JOINT, *SINGLE):
        text = prompt.text()
        assert set(parse_response(text, questions=prompt.questions).answers.values()) == {None}
        value = {question: {"rationale": "x", "answer": "no"} for question in prompt.questions}
        found = parse_response(text + "\n\n" + json.dumps(value), questions=prompt.questions)
        assert found.valid
        assert set(found.answers.values()) == {0.0}


def test_the_digest_changes_with_every_word() -> None:
    (joint,) = JOINT
    assert len(joint.digest) == 16
    assert joint == build_prompts(BCS12, "joint")[0]
    assert hash(joint) == hash(build_prompts(BCS12, "joint")[0])
    others = [
        replace(joint, system="x"),
        replace(joint, parts=(*joint.parts[:-1], "x")),
        replace(joint, parts=(joint.parts[0], RECONSTRUCTION, joint.parts[2], REFERENCE, joint.parts[4])),
        replace(joint, questions=joint.questions[1:]),
        replace(joint, schema={}),
        *SINGLE,
    ]
    assert len({joint.digest, *(other.digest for other in others)}) == len(others) + 1


def test_a_short_protocol() -> None:
    mine = Protocol("mine", (Question("A", "semantic", "mood"),), {"nein": 0.0, "ja": 1.0})
    (prompt,) = build_prompts(mine, "joint")
    text = prompt.text()
    assert text.startswith("[user]")
    assert "answer 1 question about them" in text
    assert "A (semantic), mood\n" in text
    assert "- ja\n- nein" in text
    assert "exactly one of ja or nein" in text
    assert prompt.schema["properties"]["A"]["properties"]["answer"]["enum"] == ["ja", "nein"]
