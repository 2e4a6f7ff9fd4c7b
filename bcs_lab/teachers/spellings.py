"""Which question a key means, and which label a word is; ``None`` in any doubt."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from bcs_lab.teachers.protocol import LEVELS, Protocol, Question, spelling

#: Words that stand for a label of the paper's scale, beside the labels themselves. They hold only for that scale.
ALIASES: Mapping[str, str] = {"partially": "somewhat", "partly": "somewhat"}

#: Names of the field that holds the label, where there is no ``answer``.
LABEL_KEYS = frozenset({"label", "verdict", "response", "choice", "judgment", "judgement", "decision"})
RATIONALE_KEYS = frozenset(
    {
        "rationale", "rationales", "reason", "reasons", "reasoning", "explanation", "explanations", "justification",
        "justifications", "evidence", "comment", "comments",
    }
)  # fmt: skip
#: Names of the field that says which question an object answers.
QUESTION_KEYS = frozenset(
    {"question", "question id", "questionid", "id", "qid", "key", "q", "name", "item", "code", "dimension", "criterion"}
)
#: Wrappers through which an object that names no question may still answer the only one that was asked.
WRAPPERS = frozenset(
    {
        "data", "result", "results", "response", "responses", "output", "answer", "answers", "json", "reply",
        "evaluation", "evaluations", "assessment", "judgment", "judgement", "annotation", "annotations",
    }
)  # fmt: skip
#: Names of numbers beside the answers, which are not answers.
NUMBERS = frozenset({"score", "scores", "confidence", "confidences", "probability", "probabilities", "certainty"})

_FILLERS = frozenset({"of", "and", "the", "a", "an", "or", "in", "to", "is", "are", "does"})
_NEGATIONS = frozenset(
    {"no", "not", "non", "without", "lack", "lacking", "lacks", "absent", "absence", "free", "missing", "never", "none"}
)
_LEADING = frozenset({"question", "q", "item", "dimension", "criterion", "prompt"})
_EDGES = "\"'“”‘’„`*_\u200b\u200c\u200d\u2060\ufeff \t\r\n\u00a0"
_LONGEST = 600

Part = Literal["entry", "answer", "rationale", "number"]
_PARTS: Mapping[str, Part] = {
    **dict.fromkeys(("answer", *LABEL_KEYS), "answer"),
    **dict.fromkeys(RATIONALE_KEYS, "rationale"),
    **dict.fromkeys(NUMBERS, "number"),
}


@dataclass(frozen=True)
class Meant:
    """The question that a key means.

    Attributes:
        question: its id.
        part: what the value of the key holds: the whole answer, or one part of it (``P1_rationale``).
        by_name: whether the key gives the question's name and not its id.
    """

    question: str
    part: Part = "entry"
    by_name: bool = False


class Spellings:
    """Spellings of the keys and labels of one protocol."""

    def __init__(self, protocol: Protocol) -> None:
        self.labels = {plain(label): label for label in protocol.levels}
        self.scale = frozenset(self.labels)
        if dict(protocol.levels) == dict(LEVELS):
            self.labels |= ALIASES
        self.ids = dict(
            sorted(((spelling(q.id), q) for q in protocol.questions), key=lambda item: len(item[0]), reverse=True)
        )
        self.exact: dict[tuple[str, ...], Meant] = {}
        self.criteria: dict[str, tuple[str, ...]] = {}
        self.vocabulary: dict[str, frozenset[str]] = {}
        self.denies: dict[str, bool] = {}
        for question in protocol.questions:
            own = spelling(question.id)
            for name in map(spelling, (question.name, *question.aliases)):
                if name:
                    self.exact[name] = Meant(question.id, by_name=name[: len(own)] != own)
            self.criteria[question.id] = spelling(question.criterion)
            words = spelling(" ".join((question.name, *question.aliases, question.criterion)))
            self.vocabulary[question.id] = frozenset(words) | _FILLERS
            self.denies[question.id] = bool(_NEGATIONS & set(spelling(question.name)))
        self.exact |= {words: Meant(question.id) for words, question in self.ids.items()}

    def label(self, text: str) -> str | None:
        """The label that ``text`` is: case, quotes and emphasis around it, and one full stop do not matter."""
        return self.labels.get(plain(text))

    def is_blank(self, text: str) -> bool:
        """Whether ``text`` is no answer at all: nothing, a placeholder such as ``<answer>``, or the whole scale."""
        text = text.strip()
        if not text.strip(".…_- ") or (text[0] in "<{" and text[-1] in ">}") or plain(text) in ("null", "none", "nil"):
            return True
        words = {plain(word) for word in re.split(r"[|/,;]|\s+or\s+", text[:_LONGEST])}
        return len(words) > 1 and self.scale <= words

    def meant(self, key: str) -> Meant | None:
        """The question that ``key`` names: by its id, its id and words about it, its name, or an alias."""
        return self._meant(spelling(key)) if len(key) <= _LONGEST else None

    def _meant(self, words: tuple[str, ...]) -> Meant | None:
        if words in self.exact:
            return self.exact[words]
        part = _PARTS.get(words[-1]) if len(words) > 1 else None
        if part is not None:
            whole = self._meant(words[:-1])
            if whole is not None and whole.part == "entry":
                return Meant(whole.question, part, whole.by_name)
        for lead in range(min(3, len(words))):
            for own, question in self.ids.items():
                if words[lead : lead + len(own)] == own:
                    before, rest = words[:lead], words[lead + len(own) :]
                    fits = all(word in _LEADING or word == question.group for word in before)
                    return Meant(question.id) if fits and self._fits(rest, question) else None
        return None

    def _fits(self, rest: tuple[str, ...], question: Question) -> bool:
        """Whether the words after an id are about that question."""
        if not rest:
            return True
        named = self.exact.get(rest)
        if named is not None:
            return named.question == question.id
        if len(rest) >= 4 and self.criteria[question.id][: len(rest)] == rest:
            return True
        if not set(rest) <= self.vocabulary[question.id]:
            return False
        if any(rest[i : i + len(own)] == own for own in self.ids for i in range(len(rest))):
            return False
        # "P5_artifacts: no" may well say that there are none.
        return bool(_NEGATIONS & set(rest)) == self.denies[question.id]


@lru_cache(maxsize=8)
def spellings(protocol: Protocol) -> Spellings:
    """The spellings of ``protocol``."""
    return Spellings(protocol)


def plain(text: str) -> str:
    """A label without case, blanks, quotes and emphasis around it, and one full stop.

    >>> plain(' **Yes.** ')
    'yes'
    """
    text = unicodedata.normalize("NFKC", text).casefold().strip(_EDGES)
    return " ".join(text.removesuffix(".").strip(_EDGES).split())
