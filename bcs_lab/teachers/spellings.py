"""Which question a key means, and which label a word is; ``None`` in any doubt."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from bcs_lab.teachers.protocol import LEVELS, Protocol, Question, plain, spelling

#: Words that stand for a label of the paper's scale, beside the labels themselves. They hold only for that scale.
ALIASES: Mapping[str, str] = {"partially": "somewhat", "partly": "somewhat"}

#: Names of the field that holds the label, beside ``answer``. No other field does, whatever word it holds.
LABEL_KEYS = frozenset(
    {"label", "verdict", "response", "choice", "judgment", "judgement", "decision", "final answer", "my answer"}
)
RATIONALE_KEYS = frozenset(
    {
        "rationale", "rationales", "reason", "reasons", "reasoning", "explanation", "explanations", "justification",
        "justifications", "evidence", "comment", "comments", "note", "notes", "analysis", "observation", "observations",
        "description", "thought", "thoughts", "thinking",
    }
)  # fmt: skip
#: Names of the field that says which question an object answers.
QUESTION_KEYS = frozenset(
    {
        "question", "question id", "questionid", "id", "qid", "key", "q", "name", "item", "code", "dimension",
        "criterion", "criteria", "prompt", "question text", "text",
    }
)  # fmt: skip
#: The only keys below which answers count, beside the questions themselves and the two groups.
WRAPPERS = frozenset(
    {
        "data", "result", "results", "response", "responses", "output", "outputs", "answer", "answers", "json", "reply",
        "evaluation", "evaluations", "assessment", "assessments", "judgment", "judgments", "judgement", "judgements",
        "annotation", "annotations", "arguments", "groups", "questions", "content", "verdicts", "labels",
        "final answer", "final answers", "perceptual", "semantic", "perceptual questions", "semantic questions",
    }
)  # fmt: skip
#: Names of numbers beside the answers. They are no answers, but a score can contradict one.
SCORES = frozenset({"score", "scores", "rating", "value", "points", "grade", "mark"})
NUMBERS = SCORES | {"confidence", "confidences", "probability", "probabilities", "certainty"}
#: Fields that take an answer back or give it to something else.
DOUBTS = frozenset(
    {
        "correction", "corrected", "correct", "revised", "revision", "final", "update", "updated", "amended", "edit",
        "retraction", "retracted", "negate", "negated", "inverted", "not", "wrong", "image", "picture", "images",
        "subject", "target", "about", "for", "if", "condition", "actual", "truth",
    }
)  # fmt: skip

_FILLERS = frozenset({"of", "and", "the", "in"})
_NEGATIONS = frozenset(
    {"no", "not", "non", "without", "lack", "lacking", "lacks", "absent", "absence", "free", "missing", "never", "none"}
)
_LEADING = frozenset({"question", "q", "item", "dimension", "criterion", "prompt"})
#: What a key may consist of: words and separators. Any other sign could deny it.
_KEY = re.compile(r"[\s*_#\"'“”‘’„`\[(]*\w[\w\s.:：,;\-–—/()\[\]*'\"’‘“”`&?]*\Z")
_ODD = re.compile(r"\.\.|\d\s*\?|--")
_LONGEST = 600

Part = Literal["entry", "answer", "rationale", "number"]
_PARTS: Mapping[str, Part] = {
    **dict.fromkeys(("answer", *(key for key in LABEL_KEYS if " " not in key)), "answer"),
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
        self.levels = {float(score): label for label, score in protocol.levels.items()}
        self.exact: dict[tuple[str, ...], Meant] = {}
        self.criteria: dict[str, tuple[str, ...]] = {}
        self.vocabulary: dict[str, frozenset[str]] = {}
        self.denies: dict[str, bool] = {}
        self._known: dict[str, Meant | None] = {}
        for question in protocol.questions:
            own = spelling(question.id)
            for name in map(spelling, (question.name, *question.aliases)):
                if name:
                    self.exact[name] = Meant(question.id, by_name=name[: len(own)] != own)
            self.criteria[question.id] = spelling(question.criterion)
            words = spelling(" ".join((question.name, *question.aliases)))
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

    def begins(self, text: str) -> str | None:
        """The label that ``text`` begins with, as in "no, it moved"."""
        head = re.match(r"[\s\"'*_`]*([^,.;:!()–—-]{1,80})[,.;:!()–—-]", text)
        return self.label(text) or (self.label(head.group(1)) if head else None)

    def scored(self, text: str) -> str | None:
        """The label whose score ``text`` is."""
        try:
            return self.levels.get(float(text))
        except ValueError:
            return None

    def asks(self, text: str) -> str | None:
        """The question whose id, name, alias or own words ``text`` gives; its words may break off after four."""
        meant = self.meant(text)
        if meant is not None:
            return meant.question if meant.part == "entry" else None
        words = spelling(text[: 4 * _LONGEST])
        fits = [one for one, criterion in self.criteria.items() if len(words) >= 4 and criterion[: len(words)] == words]
        return fits[0] if len(fits) == 1 else None

    def within(self, key: str) -> list[str]:
        """Every question whose id is somewhere in ``key``."""
        words = spelling(key[:_LONGEST])
        every = (one for i in range(len(words)) for own, one in self.ids.items() if words[i : i + len(own)] == own)
        return list(dict.fromkeys(one.id for one in every))

    def meant(self, key: str) -> Meant | None:
        """The question that ``key`` names: by its id, its id and its name, its name, or an alias."""
        if len(key) > _LONGEST:
            return None
        if key not in self._known:
            if len(self._known) > 4096:
                self._known.clear()
            fine = _KEY.match(key) and not _ODD.search(key)
            self._known[key] = self._meant(spelling(key)) if fine else None
        return self._known[key]

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
        if set(rest) <= _FILLERS or not set(rest) <= self.vocabulary[question.id]:
            return False
        if any(rest[i : i + len(own)] == own for own in self.ids for i in range(len(rest))):
            return False
        # "P5_artifacts: no" may well say that there are none.
        return bool(_NEGATIONS & set(rest)) == self.denies[question.id]


def wraps(words: str) -> bool:
    """Whether a key's words, in lower case with single blanks, are a wrapper, such as ``evaluation results``."""
    return words in WRAPPERS or (bool(words) and all(word in WRAPPERS for word in words.split()))


@lru_cache(maxsize=8)
def spellings(protocol: Protocol) -> Spellings:
    """The spellings of ``protocol``."""
    return Spellings(protocol)
