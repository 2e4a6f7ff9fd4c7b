"""A reply is read as what it says, or not at all."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replies import FORMS, IDS, LABELS, PROSE, SCORES, WHY, entries, mutated, reply

from bcs_lab.teachers import ParsedResponse, parse_response
from bcs_lab.teachers.parse import MAX_CHARACTERS
from bcs_lab.teachers.protocol import BCS12, LEVELS, Protocol, Question

ENTRIES = entries()
PLAIN = json.dumps(ENTRIES)


def all_right(found: ParsedResponse, rationales: bool = True) -> bool:
    return found.answers == SCORES and found.valid and not found.missing and (not rationales or found.rationales == WHY)


def nothing(found: ParsedResponse) -> bool:
    return set(found.answers.values()) == {None} and not found.valid and bool(found.problems)


def one(text: str, question: str = "P5") -> float | None:
    return parse_response(text, questions=(question,)).answers[question]


# --- what is read ---------------------------------------------------------------------------------------------------


def trailing_commas() -> str:
    return json.dumps(ENTRIES, indent=2).replace('"\n', '",\n').replace("}\n", "},\n")


def smart_quotes() -> str:
    return "{" + ", ".join(f"“{q}”: {{“answer”: “{LABELS[q]}”, “rationale”: “{WHY[q]}”}}" for q in IDS) + "}"


READ = {
    "as asked for": PLAIN,
    "rationale first": json.dumps({q: {"rationale": WHY[q], "answer": LABELS[q]} for q in IDS}),
    "fenced": f"```json\n{json.dumps(ENTRIES, indent=1)}\n```",
    "fence without an end": f"```json\n{PLAIN}",
    "prose around": f"Sure! Here is my judgement:\n\n{PLAIN}\n\nI hope that no question is left; yes?",
    "prose with brackets": f"I compared [Image 1] with [Image 2] {{carefully}}.\n{PLAIN}\n[end]",
    "trailing commas": trailing_commas(),
    "Python": repr({**ENTRIES, "final": True, "notes": None}),
    "line comments": json.dumps(ENTRIES, indent=2).replace("{\n", "{ // perception first\n", 1),
    "block and hash comments": json.dumps(ENTRIES, indent=2).replace("},\n", "}, /* no */ # next\n"),
    "typographic quotes": smart_quotes(),
    "JavaScript": "{" + ", ".join(f"{q}: {{answer: '{LABELS[q]}', rationale: '{WHY[q]}'}}" for q in IDS) + "}",
    "thinking": f'<think>First {{"P1": {{"answer": "no"}}}} ...</think>\n{PLAIN}',
    "end of thinking only": f'Let me draft {{"P1": {{"answer": "no"}}}}\n</think>\n{PLAIN}',
    "thinking in another dialect": f'◁think▷{{"P1": "no"}}◁/think▷{PLAIN}',
    "channels": f'<|channel|>analysis<|message|>{{"P1": "no"}}<|end|><|channel|>final<|message|>{PLAIN}',
    "wrapper": json.dumps({"data": ENTRIES}),
    "three wrappers": json.dumps({"data": [{"results": {"output": ENTRIES}}]}),
    "sections": json.dumps(
        {"perceptual": {q: ENTRIES[q] for q in IDS[:6]}, "semantic": {q: ENTRIES[q] for q in IDS[6:]}}
    ),
    "list of objects": json.dumps([{"question": q, **ENTRIES[q]} for q in IDS]),
    "list of keyed objects": json.dumps([{q: ENTRIES[q]} for q in IDS]),
    "list of lists": json.dumps([[q, LABELS[q], WHY[q]] for q in IDS]),
    "list of tuples": repr([(q, LABELS[q], WHY[q]) for q in IDS]),
    "label and rationale in a list": json.dumps({q: [LABELS[q], WHY[q]] for q in IDS}),
    "one object a line": "\n".join(json.dumps({"id": q, **ENTRIES[q]}) for q in IDS),
    "no outer braces": ",\n".join(f'"{q}": {json.dumps(ENTRIES[q])}' for q in IDS),
    "headings": "\n\n".join(f"**{q}:**\n{json.dumps(ENTRIES[q])}" for q in IDS),
    "forgotten commas": "{" + "\n".join(f'"{q}": {json.dumps(ENTRIES[q])}' for q in IDS) + "}",
    "encoded twice": json.dumps(PLAIN),
    "encoded three times": json.dumps(json.dumps(PLAIN)),
    "escaped without quotes around": PLAIN.replace('"', '\\"'),
    "a text in a wrapper": json.dumps({"arguments": PLAIN}),
    "extra keys": json.dumps({**ENTRIES, "P7": {"answer": "yes", "rationale": "Bonus."}, "overall": "yes"}),
    "extra fields": json.dumps({q: {**ENTRIES[q], "confidence": 0.9, "score": 3, "group": "x"} for q in IDS}),
    "other field names": json.dumps({q: {"Label": LABELS[q], "Reason": WHY[q]} for q in IDS}),
    "two identical objects": f"{PLAIN}\n{PLAIN}",
    "a key twice, the same": PLAIN[:-1] + ', "P1": {"answer": "yes", "rationale": "Same place."}}',
    "capital labels": json.dumps(entries({q: label.upper() for q, label in LABELS.items()})),
    "emphasised labels": json.dumps(entries({q: f" **{label.title()}.** " for q, label in LABELS.items()})),
    "line breaks in rationales": PLAIN.replace("is visible", "is\nvisible"),
    "rest of a template": f'{{"P1": {{"rationale": "<text>", "answer": "yes|somewhat|no"}}}}\n{PLAIN}',
    "blank template": json.dumps(dict.fromkeys(IDS)) + PLAIN,
    "full-width punctuation": PLAIN.replace('": ', '"：').replace('", "', '"，"'),
    "keys with the name": json.dumps({f"{q.id}: {q.name}": ENTRIES[q.id] for q in BCS12.questions}),
    "keys with the question": json.dumps({f"{q.id}. {q.criterion}": ENTRIES[q.id] for q in BCS12.questions}),
    "names as keys": json.dumps({q.name.title(): ENTRIES[q.id] for q in BCS12.questions}),
    "the authors' keys": json.dumps({q.aliases[0]: ENTRIES[q.id] for q in BCS12.questions}),
    "other spellings of the keys": json.dumps(
        dict(
            zip(
                (
                    "P1_layout",
                    "p2",
                    "P3.",
                    "question P4",
                    "P5_artifact_absence",
                    "P 6",
                    "**S1**",
                    "Ｓ2",
                    "[S3]",
                    "s-4",
                    "Semantic S5",
                    "S6:",
                ),
                ENTRIES.values(),
                strict=True,
            )
        )
    ),
}


@pytest.mark.parametrize("name", READ)
def test_is_read(name: str) -> None:
    found = parse_response(READ[name])
    assert all_right(found), found.problems


def test_labels_without_rationales() -> None:
    found = parse_response(json.dumps(LABELS))
    assert all_right(found, rationales=False)
    assert not found.rationales
    assert any("no rationale for P1, P2" in problem for problem in found.problems)
    entry = dict(ENTRIES, P2={"answer": "yes"})
    found = parse_response(json.dumps(entry))
    assert all_right(found, rationales=False)
    assert list(found.rationales) == [q for q in IDS if q != "P2"]
    assert "no rationale for P2" in found.problems
    beside = {key: value for q in IDS for key, value in ((q, LABELS[q]), (f"{q}_rationale", WHY[q]))}
    assert all_right(parse_response(json.dumps(beside)))


def test_apostrophes_and_quotes_stay_in_a_rationale() -> None:
    why = dict(WHY, S3="The dog's leash isn't there.", S4='It reads "one".')
    assert parse_response(repr(entries(why=why))).rationales == why
    for text in ('The sign "no entry" is gone, so the role is lost.', 'It reads „dog" on the tag.', "A 'b' c"):
        found = parse_response(PLAIN.replace(WHY["S3"], text))
        assert all_right(found, rationales=False)
        assert found.rationales["S3"] == text


def test_a_group_in_another_order_comes_back_in_the_order_asked() -> None:
    found = parse_response(json.dumps({q: ENTRIES[q] for q in reversed(IDS)}))
    assert tuple(found.answers) == IDS
    found = parse_response(PLAIN, questions=("S2", "P4"))
    assert found.answers == {"S2": 0.5, "P4": 0.0}
    assert found.valid
    with pytest.raises(ValueError, match="P9"):
        parse_response("", questions=("P1", "P9"))


# --- what is missing ------------------------------------------------------------------------------------------------


def test_truncated_replies_keep_what_is_complete() -> None:
    first = ", ".join(f'"{q}": {json.dumps(ENTRIES[q])}' for q in IDS[:8])
    cut = parse_response("{" + first + ', "S3": {"answer": "no", "rationale": "The leash is go')
    assert {q: v for q, v in cut.answers.items() if v is not None} == {q: SCORES[q] for q in IDS[:8]}
    assert cut.missing == ("S3", "S4", "S5", "S6")
    assert any("breaks off" in problem for problem in cut.problems)
    half = parse_response("{" + first + ', "S3": {"answer": "some')
    assert half.missing == ("S3", "S4", "S5", "S6")
    early = parse_response('{"P1": {"answer": "yes", "rationale": "a"}, "P2": {"answer": "yes"}, "P3": {"answer":')
    assert early.missing == IDS[2:]


@pytest.mark.parametrize(
    "text",
    [
        PLAIN, json.dumps(ENTRIES, indent=2), repr(ENTRIES), json.dumps(PLAIN), READ["list of lists"],
        json.dumps(LABELS), READ["list of objects"], READ["rationale first"], READ["typographic quotes"],
        READ["JavaScript"], READ["line comments"], READ["headings"], READ["label and rationale in a list"],
    ],
)  # fmt: skip
def test_every_truncation_of_a_reply(text: str) -> None:
    read = 0
    for end in range(len(text)):
        found = parse_response(text[:end]).answers
        assert all(value in (None, SCORES[q]) for q, value in found.items()), text[:end]
        count = sum(value is not None for value in found.values())
        assert count >= read, "more text, fewer answers"
        read = count
    assert read >= 11


def test_answers_that_differ() -> None:
    other = dict(ENTRIES, P1={"answer": "no", "rationale": "On second thought it moved."})
    for text in (f"{PLAIN}\n\nCorrection:\n{json.dumps(other)}", PLAIN[:-1] + ', "P1": {"answer": "no"}}'):
        found = parse_response(text)
        assert found.missing == ("P1",)
        assert any(
            problem.startswith("P1: answered more than once, differently (yes, no)") for problem in found.problems
        )
    assert one('{"answer": "yes", "answer": "no"}') is None
    assert one('{"answer": "yes", "final_answer": "no"}') is None
    assert one('{"answer": "no", "rationale": "a"}\n{"answer": "yes"}') is None
    # a broken one contradicts too
    assert one('{"P5": {"answer": "no", "rationale": oops!!}} {"P5": {"answer": "yes"}}') is None
    assert one('{"P5": {"question": "P4", "answer": "yes"}}') is None


def test_one_question_absent() -> None:
    found = parse_response(json.dumps({q: entry for q, entry in ENTRIES.items() if q != "S5"}))
    assert found.missing == ("S5",)
    assert found.answers["S5"] is None
    assert "no answer to S5" in found.problems


@pytest.mark.parametrize(
    "label",
    [
        "some", "yes|somewhat|no", "yes/no", "yes or no", "not yes", "not no", "no, yes", "yes (0.9)", "Yes, it is.",
        "1", "0.5", "true", "maybe", "mostly", "yes?", "no...", "", "n/a", "oui", "ja", "y", "so-so", "somewhat yes",
        "yesno", "yes\0", "y es", "<yes>", "answer: yes", "unsure", "None",
    ],
)  # fmt: skip
def test_other_words_are_no_labels(label: str) -> None:
    for text in (
        json.dumps({"P5": label}),
        json.dumps({"P5": {"rationale": "yes", "answer": label}}),
        f'["P5", "{label}", "yes"]',
    ):
        found = parse_response(text, questions=("P5",))
        assert found.answers == {"P5": None}
        assert found.problems


@pytest.mark.parametrize(
    "value", ["1", "0.5", "true", "false", "null", "NaN", '["yes"]', '{"yes": 1}', '["yes", "no"]', "-1"]
)
def test_other_values_are_no_labels(value: str) -> None:
    assert one(f'{{"P5": {{"answer": {value}}}}}') is None
    assert one(f'{{"P5": {value}}}') is None


@pytest.mark.parametrize("word", ["partially", "Partly", "PARTIALLY."])
def test_the_alias_table(word: str) -> None:
    assert one(json.dumps({"answer": word})) == 0.5
    german = Protocol("g", BCS12.questions, {"nein": 0.0, "etwas": 0.5, "ja": 1.0})
    assert parse_response(json.dumps({"P5": word}), german, ("P5",)).answers == {"P5": None}
    assert parse_response('{"P5": "JA"}', german, ("P5",)).answers == {"P5": 1.0}
    assert parse_response('{"P5": "yes"}', german, ("P5",)).answers == {"P5": None}


def test_one_question_need_not_be_named() -> None:
    assert one('{"rationale": "There is no doubt that the category matches.", "answer": "yes"}') == 1.0
    assert one('{"answer": yes, "rationale": "No halo around the object."}') == 1.0
    assert one('{"answer": "no", "rationale": "Yes, a dog is there, but the garden is gone."}') == 0.0
    assert one('{"result": {"answer": "somewhat", "reason": "x"}}') == 0.5
    assert one('My answer: {"answer": "yes"}') == 1.0
    assert one('For P5:\n```json\n{"answer": "yes"}\n```') == 1.0
    assert one('{"question": "Is the reconstruction free from severe artifacts", "answer": "yes"}') == 1.0
    found = parse_response('{"answer": "yes", "rationale": "a"}')
    assert nothing(found)


@pytest.mark.parametrize(
    "text",
    [
        "No visible artifacts remain, so my answer is: yes.", "The answer is not yes; it is somewhat.",
        "Nothing known can be noted about the object.", "Answer: somewhat. Although yes for colour and no for shape.",
        "yes", "No", '"yes"', "P5: yes", "| P5 | yes |", "<answer>yes</answer>", "\\boxed{yes}",
        'He said {"answer": "yes"} to me.', 'The form {"answer": "no"}, I think, fits.',
        '{"P4": {"answer": "yes"}}', '{"P7": {"answer": "yes"}}', '{"overall": {"answer": "yes"}}',
        '{"question": "P4", "answer": "yes"}', '{"question": "Q7", "answer": "yes"}', 'P4: {"answer": "yes"}',
        'P4"}, {"answer": "yes"}, "P3": {"answer": "yes"}', '4": {"answer": "yes"}', '"P4": {"answer": "yes"}',
        'On P4 {"answer": "yes"}', '{"answer": "yes", "rationale": "cut', '{"answer": "yes"', '{"answer": yes',
        '{"rationale": "It says "answer": "yes" there"}', '{"P5_artifacts": "yes"}', '{"not P5": "yes"}',
        '{"P5 and P6": "yes"}', '{"P55": "yes"}', '{"P5.1": "yes"}', '{"answer": "<think>yes</think>"}',
        '<think>I see {"answer": "yes"}', '{"answer": "ye<think>no</think>s"}', '{"rationales": {"P5": "yes"}}',
        '{"scores": {"P5": "yes"}}', '{"yes": ["P5", "P6"], "no": ["P1"]}', '{"P5": "yes" or "somewhat"}',
        '</think> {"answer": "yes"}, "S6": {"answer": "no"}}', '{"answer": "yes"} {"P9": {"answer": "no"}}',
        '{"answer": "yes"}]}', '{"P5": "yes" / "no"}', '{"P5": "yes" "no"}', '{"P5": yes or no}',
        '["yes", "It is clean."]', '{"S1": {"reason": "x", "P5answer": "yes"}}',
    ],
)  # fmt: skip
def test_no_answer_to_the_question(text: str) -> None:
    found = parse_response(text, questions=("P5",))
    assert found.answers == {"P5": None}, found
    assert found.problems


@pytest.mark.parametrize(
    "text",
    [
        "", " \n\n", "ERROR: the backend gave no answer after 5 tries", "Sorry, I cannot compare pictures of people.",
        "[" * 10_000, "{" * 10_000, '{"P1": {"answer": "yes\0", "rationale": "tab\there"}}', '{"P1": {"answer": NaN}}',
        "<html><body>502 Bad Gateway</body></html>", '{"error": {"message": "no", "code": "yes"}}', "\ud800{\udfff",
        '{"answer": "yes"}',
    ],
)  # fmt: skip
def test_no_answer_at_all(text: str) -> None:
    assert nothing(parse_response(text))
    assert nothing(parse_response(None))


def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in (
        "{'P1': __import__('pathlib').Path('PWNED').write_text('x'), 'P2': 'yes'}",
        "{'P2': 'yes', 'P1': open('PWNED', 'w')}",
        "```python\nopen('PWNED','w').write('x')\n```",
        "!!python/object/apply:os.system ['touch PWNED']",
        "{'P2': {'answer': 'yes'}, 'P1': eval('open(\"PWNED\", \"w\")')}",
    ):
        assert nothing(parse_response(text)), text
    assert not list(tmp_path.iterdir())


HOSTILE: dict[str, Callable[[int], str]] = {
    "braces": lambda n: "{" * n,
    "brackets": lambda n: "[" * n,
    "both": lambda n: "[{" * (n // 2),
    "open keys": lambda n: '{"' * (n // 2),
    "nested": lambda n: '{"a":' * (n // 5),
    "nested lists": lambda n: '{"a":[' * (n // 6),
    "quotes": lambda n: '{"a":"' + '" ' * (n // 2) + "}",
    "commas": lambda n: '{"a":"' + '","' * (n // 3),
    "comments": lambda n: '{"a":"' + '"/*' * (n // 3) + "*/",
    "line comments": lambda n: '{"a":"' + '"//' * (n // 3) + '\n"}',
    "escapes": lambda n: '{"a":"' + "\\" * n,
    "escaped quotes": lambda n: '{\\"' * (n // 3),
    "blanks": lambda n: '{"P1' + " " * n,
    "blanks after quotes": lambda n: '{"a":"' + ('"' + " " * 100) * (n // 101),
    "thinking": lambda n: "<think>" * (n // 7),
    "answers": lambda n: '{"P1":{"answer":"yes"}}' * (n // 23),
    "pairs": lambda n: "{" + ",".join(['"P1":"yes","P1_rationale":"x"'] * (n // 30)) + "}",
    "keys with ids": lambda n: "{" + ",".join(f'"P1 x{i} P1 P2":"yes"' for i in range(n // 22)) + "}",
    "entries in entries": lambda n: '{"a":{"answer":"yes","b":[' * (n // 26),
    "pairs outside": lambda n: '"P1": "yes" ' * (n // 12),
    "words": lambda n: "{a b c d " * (n // 9),
    "prose": lambda n: "a [b] " * (n // 6),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_time_grows_with_the_length(name: str) -> None:
    def seconds(n: int) -> float:
        start = time.process_time()
        found = parse_response(HOSTILE[name](n))
        assert set(found.answers.values()) <= {None, 1.0}
        return time.process_time() - start

    assert seconds(50_000) < max(0.3, 40 * seconds(5_000))


def test_longer_replies_are_not_read() -> None:
    found = parse_response(PLAIN + " " * MAX_CHARACTERS)
    assert nothing(found)
    assert "characters" in found.problems[0]


# --- what looks like an answer and is none --------------------------------------------------------------------------

CRITERIA = {question.id: question.criterion for question in BCS12.questions}
LONG = '{"P1": {"rationale": "It is all in the same place as in the reference, more or less.", "answer": "yes"}}'
SHORT = '{"P1": {"answer": "yes"}}'


@pytest.mark.parametrize(
    "text",
    [
        '{"P1": [{"answer":"yes","probability":0.1},{"answer":"somewh', '{"P1": [["yes", 0.1], ["somewh',
        '{"P1": {"initial": {"answer":"yes"}, "fin', '{"P1": {"image1": {"answer":"yes"}, "ima',
        '{"draft": {"P1": {"answer":"yes"}}, "final": {"P', '[{"answer":"yes"}, {"answ',
        '{"answers": [{"label":"yes","score":1.0},{"label":"some', '[{"answer":"yes"}, {"answer":"somewhat"}]',
        '{"P1": "yes", "P1": "n', '[{"id": "P1", "answer": "yes"}, {"id": "P1", "answer": "n',
    ],
)  # fmt: skip
def test_one_of_several_answers(text: str) -> None:
    for questions in (None, ("P1",)):
        assert nothing(parse_response(text, questions=questions))


@pytest.mark.parametrize(
    "key", ["P1_corrected", "P1 (corrected)", "P1_revised", "P1_final", "P1_v2", "P1a", "corrected P1", "!P1", "P1_no"]
)
def test_a_second_key_with_the_id_contradicts(key: str) -> None:
    for value in ('"no"', '"yes"', '{"answer": "no"}', '["no", "It moved to the left."]'):
        assert nothing(parse_response(f'{{"P1": "yes", "{key}": {value}}}'))


@pytest.mark.parametrize(
    "field",
    [
        "wrong_answer", "rejected_answer", "not the answer", "possible_answer", "expected_answer", "example_answer",
        "answer_if_sharper", "artifacts_present_answer", "not_answer", "!answer", "default", "anwser",
    ],
)  # fmt: skip
def test_other_fields_hold_no_label(field: str) -> None:
    for text in (f'{{"P5": {{"{field}": "yes"}}}}', f'{{"{field}": "yes"}}', f'[{{"id": "P5", "{field}": "yes"}}]'):
        assert one(text) is None


@pytest.mark.parametrize(
    "field",
    [
        '"score": 0', '"score": "0.0"', '"correct": false', '"is_correct": "no"', '"revised": "no"', '"final": "no"',
        '"correction": "no"', '"value": "no"', '"rating": "no"', '"result": "no"', '"anwser": "no"', '"negate": true',
        '"answer_zh": "否"', '"correction": "should be no"', '"update": "no, it moved"', '"x": {"answer": "no"}',
        '"others": ["somewhat", "no"]', '"confidence": 0', '"image": "reference"', '"question": "Has it moved?"',
    ],
)  # fmt: skip
def test_fields_that_contradict_the_label(field: str) -> None:
    for text in (f'{{"answer": "yes", {field}}}', f'{{"P5": {{{field}, "answer": "yes"}}}}'):
        assert one(text) is None
    if field.split('"')[1] in ("correct", "revised", "final", "correction", "negate", "anwser"):
        assert one(f'{{"P5": "yes", {field}}}') is None


@pytest.mark.parametrize(
    "key",
    [
        "differences", "missing", "errors", "mismatches", "is_different", "not", "artifacts_present", "example",
        "incorrect_example", "ground_truth", "previous_answer", "image1", "if_sharp", "notes", "thinking", "thought",
        "default", "type", "correct answers", "no answer",
    ],
)  # fmt: skip
def test_keys_below_which_nothing_counts(key: str) -> None:
    for value in (
        '{"shape": "yes", "colour": "no"}', '{"P1": "yes", "P5": {"answer": "no"}}', '[{"P5": {"answer": "yes"}}]',
        '{"question": "P5", "answer": "yes"}', '[["P5", "yes", "It is quite clean."]]', '{"answer": "yes"}',
    ):  # fmt: skip
        assert nothing(parse_response(f'{{"{key}": {value}}}'))
        assert one(f'{{"{key}": {value}}}') is None
        assert one(f'{{"P5": {{"{key}": {value}}}}}') is None


@pytest.mark.parametrize(
    "key",
    [
        "!P5", "¬P5", "~P5", "P5≠", "❌ P5", "P5 ❌", "P5…", "P5...", "P5?", "P5+", "P5^-1", "not P5", "P5_shiny",
        "P5_not_free_from_artifacts", "P5_not_absence_of_artifacts", "P5_missing_detail", "P5_outdoors",
    ],
)  # fmt: skip
def test_keys_that_do_not_mean_the_question(key: str) -> None:
    for value in ('"yes"', '{"answer": "yes"}'):
        assert nothing(parse_response(f'{{"{key}": {value}}}'))
        assert one(f'{{"{key}": {value}}}') is None


def test_names_alone_are_keys_only_among_their_like() -> None:
    assert nothing(parse_response('{"type": "function", "function": "yes"}'))
    assert one('{"type": "function", "function": "yes"}', "S3") is None
    assert one('{"function": "yes"}', "S3") == 1.0


@pytest.mark.parametrize(
    "question", ["Are there severe artifacts in the reconstruction?", CRITERIA["P2"], "P2", "shape", "Q7", "a dog"]
)
def test_an_answer_to_another_question(question: str) -> None:
    entry = {"question": question, "answer": "yes"}
    assert one(json.dumps(entry)) is None
    assert one(json.dumps({"P5": entry})) is None


@pytest.mark.parametrize(
    "row",
    ["[yes, 0]", '["yes", false]', '["P1", "yes", 0]', '["P1", "yes", "no"]', '["yes", "no, actually"]', '["yes"]'],
)
def test_rows_with_something_else_than_a_rationale(row: str) -> None:
    for text in (f'{{"P1": {row}}}', f"P1: {row}", f"[{row}]"):
        assert nothing(parse_response(text))


@pytest.mark.parametrize(
    "text",
    [
        "P1: [yes, 1], [somewhat, 0.5], [no, 0]", 'P1: ["yes", "It is the same."], ["no", "It is not the same."]',
        'P1: {"answer":"yes","score":1.0}, {"answer":"somewhat","score":0.5}',
        'P1: {"answer":"yes"} or {"answer":"no"}',
        f"<|START_THINKING|>{SHORT}", f"<|START_THINKING|>{SHORT}<|END_THINKING|>", f"<seed:think>{SHORT}",
        f'<think type="x">{SHORT}', f"<reason>{SHORT}", f"<rationale>{SHORT}", f"<draft>{SHORT}",
        f"<inner_monologue>{SHORT}", f"<|channel>thought\n{SHORT}", f"<|channel>thought\n{SHORT}<channel|>",
        f"<|channel|>analysis {SHORT}", '{"P1": {"rationale": "says "no", "answer": "yes"}, right", "answer": "no"}}',
        "P2: yes\nP3: no, since it reads:\n{'P1': 'yes'}\nP1: no",
    ],
)  # fmt: skip
def test_scales_and_thinking(text: str) -> None:
    assert nothing(parse_response(text))


@pytest.mark.parametrize(
    "frame",
    [
        "For example: {}", "Example output:\n{}", "It would be wrong to answer:\n{}", "Wrong answer: {}",
        "I will not answer {}", "{}\nWait, that is wrong. The answer is no.", '{}\nCorrection: P1 should be "no".',
        '{}\n"P1": "no"', '{} "answer": "no"', "Here is an example.\n```json\n{}\n```", "{}\nP1: no",
    ],
)  # fmt: skip
def test_what_the_words_around_an_object_take_back(frame: str) -> None:
    for text in (LONG, SHORT):
        assert nothing(parse_response(frame.replace("{}", text)))
    assert one(frame.replace("{}", '{"answer": "yes"}'), "P1") is None


def test_words_around_an_object_that_take_nothing_back() -> None:
    for frame in (
        "Here is the JSON without any other text:\n{}", "{}\n\nNote that the answers are based on layout.",
        "My evaluation:\n\n{}\n\nP1: yes, as it is in the same place.", "<answer>{}</answer>",
        '{"evaluation_results": {}}', '{"P1": {"rationale": "<rationale>", "answer": "<answer>"}}\n{}',
    ):  # fmt: skip
        assert parse_response(frame.replace("{}", SHORT), questions=("P1",)).answers == {"P1": 1.0}, frame


def test_arguments_of_another_kind() -> None:
    for text in (5, b"{}", ["yes"]):
        with pytest.raises(TypeError, match="Expected `text`"):
            parse_response(text)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="once"):
        parse_response(SHORT, questions=("P1", "P1"))


# --- never a wrong label --------------------------------------------------------------------------------------------


def test_every_form_is_read() -> None:
    rng = random.Random(0)
    for form in FORMS:
        for _ in range(20):
            labels, text = reply(rng, form)
            found = parse_response(text)
            assert found.answers == {q: LEVELS[labels[q]] for q in IDS}, (form, text, found.problems)
    for form in PROSE:
        labels, text = reply(rng, form)
        assert nothing(parse_response(text)), text


@pytest.mark.parametrize("seed", range(6))
def test_a_label_is_right_or_missing(seed: int) -> None:
    """Replies in every form, mutated up to three times, asked for together or one by one."""
    rng = random.Random(seed)
    asked = read = 0
    for _ in range(750):
        form = rng.choice([*FORMS, *FORMS, *PROSE])
        labels, text = reply(rng, form)
        done, text = mutated(text, labels, rng, rng.choice([1, 1, 1, 2, 3]))
        questions = (rng.choice(IDS),) if rng.random() < 0.2 else None
        found = parse_response(text, questions=questions)
        for question, value in found.answers.items():
            assert value in (None, LEVELS[labels[question]]), (form, done, question, labels[question], value, text)
            assert value is not None or found.problems
        asked += len(found.answers)
        read += sum(value is not None for value in found.answers.values())
    assert read > 0.45 * asked


def test_translated_labels_are_missing() -> None:
    for words in (
        ("nein", "etwas", "ja"),
        ("non", "un peu", "oui"),
        ("いいえ", "多少", "はい"),
        ("нет", "отчасти", "да"),
    ):
        other = dict(zip(LEVELS, words, strict=True))
        assert nothing(parse_response(json.dumps(entries({q: other[label] for q, label in LABELS.items()}))))


def test_another_protocol() -> None:
    mine = Protocol(
        "mine",
        (Question("colour", "perceptual", "main colours"), Question("colour_back", "perceptual", "colours behind"),
         Question("Q10", "semantic", "mood", aliases=("feeling",)), Question("Q1", "semantic", "place")),
        {"nein": 0.0, "kaum": 0.5, "ganz und gar": 1.0},
    )  # fmt: skip
    values: dict[str, Any] = {"Colour": "Ganz  und gar", "colour-back": "nein", "Feeling": "kaum", "q1": "nein"}
    found = parse_response(json.dumps(values), mine)
    assert found.answers == {"colour": 1.0, "colour_back": 0.0, "Q10": 0.5, "Q1": 0.0}
    assert parse_response('{"Q100": "nein", "Q 1_0": "nein", "Q": "nein"}', mine).missing == mine.ids


def test_frozen_and_equal() -> None:
    assert parse_response(PLAIN) == parse_response(PLAIN)
    with pytest.raises(AttributeError):
        parse_response(PLAIN).answers = {}  # type: ignore[misc]
