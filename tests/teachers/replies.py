"""Replies of a teacher in many forms, and what can happen to them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from bcs_lab.teachers.protocol import BCS12, LEVELS

IDS = BCS12.ids
LABELS = {
    "P1": "yes", "P2": "yes", "P3": "somewhat", "P4": "no", "P5": "yes", "P6": "somewhat",
    "S1": "yes", "S2": "somewhat", "S3": "no", "S4": "yes", "S5": "no", "S6": "no",
}  # fmt: skip
WHY = {
    "P1": "The layout sits in the same place.", "P2": "The outline is kept.",
    "P3": "The fur is smoother than in the reference.", "P4": "The hue moved from brown to green.",
    "P5": "Few halos are visible.", "P6": "A viewer could guess part of it.", "S1": "Both show a dog.",
    "S2": "The breed is close.", "S3": "The leash is gone.", "S4": "One animal in each.",
    "S5": "The garden became a room.", "S6": "The scene cannot be named.",
}  # fmt: skip
SCORES = {question: LEVELS[label] for question, label in LABELS.items()}


def entries(labels: Mapping[str, str] = LABELS, why: Mapping[str, str] = WHY, **names: str) -> dict[str, Any]:
    """Question -> its answer and rationale, as the prompt asks for them, with other names for the fields if given."""
    answer, rationale = names.get("answer", "answer"), names.get("rationale", "rationale")
    return {question: {answer: labels[question], rationale: why[question]} for question in labels}


#: Rationales that hold what could be taken for something else.
TRICKY = (
    "The layout sits in the same place.", "Yes, a dog is there, but the garden is gone.", "No halo is left.",
    "It's the dog's leash, isn't it?", 'The sign "no entry" is gone, so the role is lost.',
    'It reads "yes", "no" or "somewhat" on it.', 'The prompt says {"answer": "no"}, yet it fits.',
    "He wrote {'P2': 'yes'} there.", "P2: no. S1: yes.", "Curly “quotes”, „low“ and «angled» ones.",
    "A tab\tand a\nbreak.", 'Backslash \\ and \\" end', "", "Ünïcode 狗 🐶", "a, b; c: d / e // f # g", "answer: no",
    '"no"', "somewhat", "}", "]}", '", "x', "'", 'no", ', "/* no */", "The shape: yes", "[see P3]", "not yes",
    '"answer": "no"', "As before:\n{'P2': 'yes'}\nand so on.",
    '\n{"answer": "somewhat"}\n', "\n{'P3': {'answer': 'no'}}\n",
)  # fmt: skip
#: Those that leave a text readable whose quotes are not escaped.
UNESCAPED = tuple(text for text in TRICKY if "\n" not in text and ('"' not in text or text.startswith("The sign")))
#: Those that are sentences, and not one that begins with another label.
SENTENCES = (
    "The layout sits in the same place.",
    "No halo is left.",
    "It's the dog's leash, isn't it?",
    "The shape is: yes.",
)
PLAIN = ("plain", "The “no” sign, gone.", "It’s there: yes", 'a "b" c')

Reply = tuple[dict[str, str], str]
Maker = Callable[[dict[str, str], dict[str, str], random.Random], str]
Mutation = Callable[[str, dict[str, str], random.Random], str]


def _encoded(value: Any, rng: random.Random) -> str:
    form = rng.randrange(7)
    if form == 0:
        return repr(value)
    if form == 1:
        return json.dumps(value, indent=2).replace('"\n', '",\n').replace("}\n", "},\n")
    if form == 2:
        return json.dumps(json.dumps(value))
    if form == 3:
        return json.dumps(json.dumps(json.dumps(value)))
    if form == 4:
        return f"Here you go:\n```json\n{json.dumps(value, indent=2)}\n```\nHope this helps (P1 is yes)."
    if form == 5:
        return json.dumps(value, indent=rng.choice([1, 4]), ensure_ascii=False)
    return json.dumps(value)


def _listed(labels: dict[str, str], why: dict[str, str], rng: random.Random) -> str:
    key = rng.choice(["question", "id", "dimension", "Question ID"])
    return _encoded([{key: q, **entry} for q, entry in entries(labels, why).items()], rng)


def _named(labels: dict[str, str], why: dict[str, str], rng: random.Random) -> str:
    forms: list[Callable[[str], str]] = [
        str.lower, lambda q: f"{q}.", lambda q: f"{q[0]} {q[1]}", lambda q: f"Question {q}", lambda q: f"**{q}**",
        {q.id: q.aliases[0] for q in BCS12.questions}.__getitem__, {q.id: q.name for q in BCS12.questions}.__getitem__,
        {q.id: f"{q.id}: {q.name}" for q in BCS12.questions}.__getitem__,
    ]  # fmt: skip
    form = rng.choice(forms)
    return _encoded({form(q): entry for q, entry in entries(labels, why).items()}, rng)


def _sections(labels: dict[str, str], why: dict[str, str], rng: random.Random) -> str:
    every = entries(labels, why, answer=rng.choice(["answer", "Answer", "label"]), rationale="reasoning")
    parts = {"perceptual": {q: every[q] for q in IDS[:6]}, "semantic": {q: every[q] for q in IDS[6:]}}
    return _encoded(rng.choice([parts, {"result": parts, "final": True, "notes": None}]), rng)


def _typographic(labels: dict[str, str], why: dict[str, str], rng: random.Random) -> str:
    parts = [f"“{q}”: {{“answer”: “{labels[q]}”, “rationale”: “{rng.choice(PLAIN)}”}}" for q in labels]
    return "{" + ", ".join(parts) + "}"


def _unescaped(labels: dict[str, str], why: dict[str, str], rng: random.Random) -> str:
    parts = [f'"{q}": {{"rationale": "{rng.choice(UNESCAPED)}", "answer": "{labels[q]}"}}' for q in labels]
    return "{" + ", ".join(parts) + "}"


def _commented(labels: dict[str, str], why: dict[str, str], rng: random.Random) -> str:
    lines = [f'  // {why[q].splitlines()[0] if why[q] else "no"}\n  "{q}": "{labels[q]}", # or no' for q in labels]
    return "{\n" + "\n".join(lines) + "\n}"


def _flat(labels: dict[str, str], why: dict[str, str], rng: random.Random) -> str:
    beside = {key: value for q in labels for key, value in ((q, labels[q]), (f"{q}_rationale", why[q]))}
    return _encoded(rng.choice([labels, beside]), rng)


#: Form -> what writes it.
FORMS: dict[str, Maker] = {
    "object": lambda labels, why, rng: _encoded(entries(labels, why), rng),
    "rationale first": lambda labels, why, rng: _encoded(
        {q: {"rationale": why[q], "answer": labels[q]} for q in labels}, rng
    ),
    "list of objects": _listed,
    "list of lists": lambda labels, why, rng: _encoded([[q, labels[q], rng.choice(SENTENCES)] for q in labels], rng),
    "other keys": _named,
    "sections": _sections,
    "flat": _flat,
    "one a line": lambda labels, why, rng: "\n".join(
        json.dumps({"id": q, **entry}) for q, entry in entries(labels, why).items()
    ),
    "headings": lambda labels, why, rng: "\n\n".join(
        f"{q}: {json.dumps(entry)}" for q, entry in entries(labels, why).items()
    ),
    "no outer braces": lambda labels, why, rng: ",\n".join(
        f'"{q}": {json.dumps(entry)}' for q, entry in entries(labels, why).items()
    ),
    "no commas": lambda labels, why, rng: (
        "{" + "\n".join(f'"{q}": {json.dumps(entry)}' for q, entry in entries(labels, why).items()) + "}"
    ),
    "typographic quotes": _typographic,
    "unescaped quotes": _unescaped,
    "comments": _commented,
}
#: Forms that are not read at all.
PROSE: dict[str, Maker] = {
    "sentences": lambda labels, why, rng: "\n".join(f"{q}: {labels[q]} because {why[q]}" for q in labels),
    "tags": lambda labels, why, rng: "".join(f"<{q}><answer>{labels[q]}</answer></{q}>" for q in labels),
    "table": lambda labels, why, rng: "\n".join(f"| {q} | {labels[q]} | {why[q]} |" for q in labels),
}


def reply(rng: random.Random, form: str) -> Reply:
    """Labels drawn at random, and a reply that gives them."""
    labels = {question: rng.choice(list(LEVELS)) for question in rng.sample(IDS, len(IDS))}
    why = {question: rng.choice(TRICKY) for question in labels}
    return labels, {**FORMS, **PROSE}[form](labels, why, rng)


_NOISE = (
    *"\"'{}[]():,\\\n/#|.- \t“”x7é", "not ", "no", "yes", "//", "/*", "*/", "```", "<think>", "</think>", "null", "P1",
    "...", '\\"', "\\'", "or ", "\0", "<answer>", '"answer"', " wait,", ', "', '": "',
)  # fmt: skip
_OTHER_WORDS = {
    "yes": ("oui", "ja", "sí", "はい", "да", "true", "1", "correct", "y", "fully"),
    "somewhat": ("un peu", "etwas", "algo", "一点", "0.5", "maybe", "some", "somewhat|no", "mostly", "somewhat yes"),
    "no": ("non", "nein", "いいえ", "нет", "0", "false", "never", "none", "n", "not yes"),
}
_QUOTING: tuple[dict[str, Any], ...] = ({'"': "'"}, {'"': "“"}, {"'": '"'}, {'"': "'", "'": '"'}, {'"': "”"})


def _draft(rng: random.Random) -> str:
    return json.dumps({question: {"answer": rng.choice(list(LEVELS))} for question in IDS})


def _think(text: str, labels: dict[str, str], rng: random.Random) -> str:
    form = rng.choice(
        ["<think>{}</think>{}", "{}</think>{}", "<THINKING>\n{}\n</THINKING>\n\n{}", "◁think▷{}◁/think▷{}"]
    )
    return form.format(_draft(rng), text) if "<think" not in text else text


def _noise(text: str, labels: dict[str, str], rng: random.Random) -> str:
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(_NOISE) + text[at:]
    return text


def _without_one(text: str, labels: dict[str, str], rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + 1 :]


def _swapped(text: str, labels: dict[str, str], rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at : at + 2][::-1] + text[at + 2 :]


def _blanks(text: str, labels: dict[str, str], rng: random.Random) -> str:
    others = [" ", "\n", "\t", "  ", "\u00a0"]
    return "".join(rng.choice(others) if c in " \n" and rng.random() < 0.3 else c for c in text)


def _requoted(text: str, labels: dict[str, str], rng: random.Random) -> str:
    return text.translate({ord(old): new for old, new in rng.choice(_QUOTING).items()})


def _translated(text: str, labels: dict[str, str], rng: random.Random) -> str:
    for label, words in _OTHER_WORDS.items():
        if rng.random() < 0.7:
            for left, right in (('"', '"'), ("'", "'"), ("“", "”"), ('\\"', '\\"')):
                text = text.replace(f"{left}{label}{right}", f"{left}{rng.choice(words)}{right}")
    return text


def _contradicted(text: str, labels: dict[str, str], rng: random.Random) -> str:
    other = json.dumps({question: {"answer": label} for question, label in labels.items()})
    return rng.choice([f"{text}\n{other}", f"{other}\n{text}"])


def _other(label: str, rng: random.Random) -> str:
    return rng.choice([one for one in LEVELS if one != label])


def _alternatives(text: str, labels: dict[str, str], rng: random.Random) -> str:
    """The label of one question becomes one of several, perhaps cut off after the first."""
    question = rng.choice(IDS)
    label, other = (labels[question], _other(labels[question], rng))[:: rng.choice([1, -1])]
    form = rng.choice(
        [
            '[{"answer": "%s", "score": 0.1}, {"answer": "%s", "score": 0.9}]', '[["%s", 0.1], ["%s", 0.9]]',
            '{"initial": {"answer": "%s"}, "final": {"answer": "%s"}}', '["%s", "%s"]', '[{"%s": 0.1}, {"%s": 0.9}]',
            '{"image1": "%s", "image2": "%s"}', '{"first": ["%s", "It is the same."], "second": ["%s", "It is not."]}',
        ]
    )  # fmt: skip
    value = form % (label, other)
    head = f'{{"{question}": '
    if rng.random() < 0.5:
        return head + value[: rng.randrange(value.rindex(other))]
    return rng.choice([f"{head}{value}}}\n{text}", f"{text}\n{head}{value}}}", f"{head}{value}}}"])


def _corrected(text: str, labels: dict[str, str], rng: random.Random) -> str:
    """A first answer that is wrong, taken back in some way."""
    question = rng.choice(IDS)
    right, wrong = labels[question], _other(labels[question], rng)
    key = rng.choice(["%s_corrected", "%s (corrected)", "%s_revised", "%s_final", "%s_v2", "%sb", "final %s", "!%s"])
    return rng.choice(
        [
            f'{{"{question}": "{wrong}", "{key % question}": "{right}"}}',
            f'{{"{question}": {{"answer": "{wrong}"}}, "{key % question}": {{"answer": "{right}"}}}}',
            f'{{"{question}": {{"answer": "{wrong}"}}}}\nWait, that is wrong. The answer is {right}.',
            f'{{"{question}": {{"answer": "{wrong}"}}}}\nCorrection: {question} should be "{right}".',
            f'{{"{question}": {{"answer": "{wrong}"}}}}\n"{question}": "{right}"',
            f'It would be wrong to answer:\n{{"{question}": {{"answer": "{wrong}"}}}}\n{text}',
            f'For example: {{"{question}": "{wrong}"}}\n\n{text}',
        ]
    )


def _doubted(text: str, labels: dict[str, str], rng: random.Random) -> str:
    """A field beside a wrong answer that contradicts it."""
    question = rng.choice(IDS)
    right, wrong = labels[question], _other(labels[question], rng)
    beside = rng.choice(
        [
            f'"score": {LEVELS[right]}', f'"rating": "{LEVELS[right]}"', '"correct": false', '"is_correct": "no"',
            f'"revised": "{right}"', f'"final": "{right}"', f'"value": "{right}"', f'"anwser": "{right}"',
            '"negate": true', f'"correction": "it should be {right}"', f'"update": "{right}, it moved"',
        ]
    )  # fmt: skip
    if beside == '"is_correct": "no"' and wrong == "no":
        beside = '"is_correct": false'
    name = rng.choice(["answer", "label", "verdict"])
    return f'{{"{question}": {{{beside}, "rationale": "It is.", "{name}": "{wrong}"}}}}'


def _misplaced(text: str, labels: dict[str, str], rng: random.Random) -> str:
    """Wrong answers below a key that says that they are something else."""
    key = rng.choice(
        [
            "differences", "missing", "errors", "is_different", "not", "example", "ground_truth", "previous_answer",
            "image1", "if_sharp", "thinking", "default", "wrong_answer", "not_answer", "expected",
        ]
    )  # fmt: skip
    wrong = {question: _other(label, rng) for question, label in labels.items()}
    names = {q.id: q.name for q in BCS12.questions}
    value: Any = rng.choice(
        [wrong, {names[q]: one for q, one in wrong.items()}, {q: {"answer": wrong[q]} for q in wrong}]
    )
    question = rng.choice(IDS)
    return json.dumps(rng.choice([{key: value}, {question: {key: wrong[question]}}, {key: [value]}]))


#: What happens to a reply -> how. None of these makes a reply say something else.
MUTATIONS: dict[str, Mutation] = {
    "cut": lambda text, labels, rng: text[: rng.randrange(len(text) + 1)],
    "beginning lost": lambda text, labels, rng: text[rng.randrange(len(text) + 1) :],
    "twice": lambda text, labels, rng: text + rng.choice(["", "\n", "\n\n---\n", ","]) + text,
    "repeated in another form": _contradicted,
    "begun again": lambda text, labels, rng: (
        text[: rng.randrange(len(text) + 1)] + rng.choice(["", "\n", "\n\n"]) + text
    ),
    "alternatives": _alternatives,
    "corrected": _corrected,
    "contradicted beside it": _doubted,
    "below another key": _misplaced,
    "thinking before": _think,
    "noise": _noise,
    "a character lost": _without_one,
    "two characters swapped": _swapped,
    "other quotes": _requoted,
    "other blanks": _blanks,
    "translated": _translated,
    "no line breaks": lambda text, labels, rng: text.replace("\n", " "),
    "capitals": lambda text, labels, rng: text.upper(),
    "echo of the scale": lambda text, labels, rng: '{"P1": {"rationale": "...", "answer": "yes|somewhat|no"}}\n' + text,
    "echo of the form": lambda text, labels, rng: (
        'Form: {"P1": {"rationale": "<text>", "answer": "<answer>"}}\n' + text
    ),
    "prose around": lambda text, labels, rng: (
        f"I compare [Image 1] with [Image 2] {{carefully}}. No doubt: yes.\n{text}\nNote: P1 no, P2 yes."
    ),
    "byte order mark": lambda text, labels, rng: f"\ufeff{text}",
}
#: Mutations after which the second could turn what was thinking or an echo into the reply itself.
_HARM = frozenset({"beginning lost", "cut", "noise", "a character lost", "two characters swapped", "begun again"})
APART = {
    "thinking before": _HARM,
    "alternatives": _HARM | {"other quotes", "translated"},
    "corrected": _HARM | {"other quotes", "translated"},
    "contradicted beside it": _HARM | {"other quotes", "translated"},
    "below another key": _HARM | {"other quotes", "translated"},
}


def mutated(text: str, labels: dict[str, str], rng: random.Random, times: int) -> tuple[list[str], str]:
    """``text`` after some mutations, and which."""
    done: list[str] = []
    for _ in range(times):
        name = rng.choice(list(MUTATIONS))
        if text and not any(name in APART.get(earlier, ()) for earlier in done):
            text = MUTATIONS[name](text, labels, rng)
            done.append(name)
    return done, text
