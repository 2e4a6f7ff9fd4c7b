"""What a teacher reads about one pair: the words of a protocol around two image slots (Table 10, Appendix B).

The user turn holds what all pairs share first, then the reference, then the reconstruction, so that a server's prefix
cache serves the instructions of every call, and the reference of every reconstruction made of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Literal

from bcs_lab.errors import ConfigError
from bcs_lab.teachers.protocol import Protocol, Question

Mode = Literal["joint", "single"]

#: Keys of one answer, in the order in which they are written: evidence first, then the label that follows from it.
FIELDS = ("rationale", "answer")


class Slot(Enum):
    """Where an image goes in the user turn."""

    REFERENCE = "reference"
    RECONSTRUCTION = "reconstruction"


REFERENCE = Slot.REFERENCE
RECONSTRUCTION = Slot.RECONSTRUCTION


@dataclass(frozen=True, eq=False)
class Prompt:
    """One call to a teacher, without its images.

    Attributes:
        system: the system text; may be empty.
        parts: the user turn in order, texts and image slots.
        questions: ids of the questions that the reply must answer, in order.
        schema: JSON schema of the reply: an object with one entry a question, each with ``rationale``, then ``answer``.
    """

    system: str
    parts: tuple[str | Slot, ...]
    questions: tuple[str, ...]
    schema: dict[str, Any]

    @cached_property
    def digest(self) -> str:
        """Identity: 16 hexadecimal digits of the SHA-256 over all that is sent."""
        parts = [{"image": part.value} if isinstance(part, Slot) else part for part in self.parts]
        content = {"system": self.system, "parts": parts, "questions": self.questions, "schema": self.schema}
        # Keys stay in their order: constrained decoding writes them in the schema's.
        canonical = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prompt) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def text(self) -> str:
        """All of it for a reader, with the image slots shown as ``<image: reference>``."""
        user = "".join(f"<image: {part.value}>" if isinstance(part, Slot) else part for part in self.parts)
        turns = [f"[system]\n{self.system}"] if self.system else []
        return "\n\n".join([*turns, f"[user]\n{user}"])


def build_prompts(protocol: Protocol, mode: Mode = "joint") -> tuple[Prompt, ...]:
    """The calls that ask about one pair.

    Args:
        protocol: the questions.
        mode: ``joint`` is one call for all questions; ``single`` is the paper's one call a question, whose texts differ
            only after the images.

    Raises:
        ConfigError: unknown mode.

    Example:
        >>> from bcs_lab.teachers.protocol import BCS12
        >>> len(build_prompts(BCS12, "joint")), len(build_prompts(BCS12, "single"))
        (1, 12)
    """
    if mode == "joint":
        return (_joint(protocol),)
    if mode == "single":
        return tuple(_single(protocol, question) for question in protocol.questions)
    raise ConfigError(f"mode: expected joint (one call for all questions) or single (one a question), got {mode!r}.")


def _joint(protocol: Protocol) -> Prompt:
    count = len(protocol.questions)
    before = [
        f"Compare the two images below and answer {_number(count, 'question')} about them.",
        _scale(protocol),
        "Questions:",
        *(_question(question) for question in protocol.questions),
        _form(protocol, protocol.ids),
    ]
    keys = ", ".join(protocol.ids)
    after = (
        f"Now reply with the JSON object only. Its {_number(count, 'key')}: {keys}. Each holds rationale, then answer, "
        f"which is exactly one of {_choices(protocol)}."
    )
    return Prompt(protocol.system, _around(before, after), protocol.ids, _schema(protocol, protocol.ids))


def _single(protocol: Protocol, question: Question) -> Prompt:
    before = ["Compare the two images below and answer the question that follows them.", _scale(protocol)]
    after = "\n\n".join(
        [
            f"Question:\n\n{_question(question)}",
            f"{_form(protocol, (question.id,))} answer is exactly one of {_choices(protocol)}.",
        ]
    )
    return Prompt(protocol.system, _around(before, after), (question.id,), _schema(protocol, (question.id,)))


def _around(before: Sequence[str], after: str) -> tuple[str | Slot, ...]:
    return (
        "\n\n".join(before) + "\n\nImage 1, the reference:\n",
        REFERENCE,
        "\nImage 2, the reconstruction:\n",
        RECONSTRUCTION,
        f"\n\n{after}",
    )


def _scale(protocol: Protocol) -> str:
    lines = ["Admitted answers:"]
    for label in _best_first(protocol):
        meaning = protocol.meanings.get(label)
        lines.append(f"- {label}: {meaning}" if meaning else f"- {label}")
    return "\n".join(lines)


def _question(question: Question) -> str:
    lines = [f"{question.id} ({question.group}), {question.name}: {question.criterion}".removesuffix(": ")]
    if question.tolerated:
        lines.append(f"  Tolerate: {'; '.join(question.tolerated)}.")
    if question.penalised:
        lines.append(f"  Penalise: {'; '.join(question.penalised)}.")
    if question.examples:
        cases = "; ".join(f"{text} → {label}" for label, text in question.examples)
        lines.append(f"  Examples (reconstruction for reference): {cases}.")
    return "\n".join(lines)


def _form(protocol: Protocol, ids: Sequence[str]) -> str:
    """The form of the reply; placeholders stand in place of answers, so that an echo of it answers nothing."""
    entries = ", ".join(
        f'"{identity}": {{"rationale": "<one short sentence>", "answer": "<answer>"}}' for identity in ids
    )
    return f"Reply with one JSON object on one line and nothing else:\n{{{entries}}}\nrationale: at most 25 words."


def _schema(protocol: Protocol, ids: Iterable[str]) -> dict[str, Any]:
    labels = _best_first(protocol)
    return _object(
        {
            identity: _object({"rationale": {"type": "string"}, "answer": {"type": "string", "enum": labels}})
            for identity in ids
        }
    )


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _best_first(protocol: Protocol) -> list[str]:
    return sorted(protocol.levels, key=lambda label: -protocol.levels[label])


def _choices(protocol: Protocol) -> str:
    labels = _best_first(protocol)
    return f"{', '.join(labels[:-1])} or {labels[-1]}"


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + ("s" if count != 1 else "")
