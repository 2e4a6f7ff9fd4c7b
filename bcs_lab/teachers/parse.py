"""Read a teacher's reply: what it clearly says, and nothing that it may have meant (Section 4.1, Appendix B).

A label that is read is the label that was given, or it is missing; a wrong one would enter the consensus unseen. Every
way of writing an object that leaves no doubt is read: fences, prose around it, wrappers, lists, Python dicts, comments,
trailing commas, typographic or unescaped quotes, JSON inside JSON, other spellings of a key. The rest is refused:
prose, numbers, hedges, negations, echoes of the scale, answers cut short, and different answers to one question.

What counts, in short:

- An answer belongs to a question through a key (``"P1": …``), a field (``"question": "P1"``) or the head of a list
  (``["P1", "yes", …]``). If one question was asked, an object without any of these answers it.
- A key is a question's id, its id followed by words of that question, its name, or one of its aliases; case, blanks and
  punctuation do not matter. The label is in the field ``answer``, else in one of ``LABEL_KEYS``.
- A label is one of the scale, or in the table ``ALIASES``; case, quotes and emphasis around it and one full stop do not
  matter.
- An object must be closed. Of a reply that breaks off, what was closed before is kept.
- Thinking is no part of the reply, whether it ends or not.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bcs_lab.teachers.literals import ANY_QUOTE, MAX_KEY, QUOTES, Bare, Items, Node, Pairs, Reader, Text, unescaped
from bcs_lab.teachers.protocol import BCS12, Protocol, spelling
from bcs_lab.teachers.spellings import (
    ALIASES,
    LABEL_KEYS,
    NUMBERS,
    QUESTION_KEYS,
    RATIONALE_KEYS,
    WRAPPERS,
    Meant,
    Spellings,
    spellings,
)

__all__ = ["ALIASES", "LABEL_KEYS", "MAX_CHARACTERS", "ParsedResponse", "parse_response"]

#: Longer replies are refused unread; no teacher is allowed that many tokens.
MAX_CHARACTERS = 400_000
#: How often a text inside a text is read.
MAX_LAYERS = 3
#: A longer object is no quotation inside a sentence.
MAX_QUOTED = 60


@dataclass(frozen=True)
class ParsedResponse:
    """What a reply says.

    Attributes:
        answers: question id -> 0, 0.5 or 1 (eq. 7), or ``None`` where the reply gives no clear answer; every question
            that was asked, in order.
        rationales: question id -> text, for the questions that are answered with one.
        problems: everything that was left out or looks wrong, one text each; an answered question may have some.
    """

    answers: dict[str, float | None]
    rationales: dict[str, str]
    problems: tuple[str, ...]

    @property
    def valid(self) -> bool:
        """Whether every question that was asked is answered."""
        return not self.missing

    @property
    def missing(self) -> tuple[str, ...]:
        """Ids of the questions without an answer, in order."""
        return tuple(question for question, answer in self.answers.items() if answer is None)


def parse_response(
    text: str | None, protocol: Protocol = BCS12, questions: Sequence[str] | None = None
) -> ParsedResponse:
    """Read one reply.

    Args:
        text: the reply as the model wrote it; ``None`` counts as empty.
        protocol: the questions and the scale.
        questions: ids that were asked, by default all of the protocol. With one id the reply may leave it out.

    Returns:
        Answers, rationales and problems. Nothing that a model can write raises an error.

    Raises:
        ValueError: ``questions`` holds an id that the protocol lacks.

    Example:
        >>> found = parse_response('Sure! {"P4": {"rationale": "Both brown.", "answer": "Yes"}}', questions=("P4",))
        >>> found.answers, found.rationales, found.valid
        ({'P4': 1.0}, {'P4': 'Both brown.'}, True)
        >>> parse_response("No artifacts are left, so yes.", questions=("P5",)).answers
        {'P5': None}
    """
    asked = protocol.ids if questions is None else tuple(questions)
    unknown = ", ".join(repr(question) for question in asked if question not in protocol.ids)
    if unknown:
        raise ValueError(f"Expected `questions` among {', '.join(protocol.ids)} but got {unknown}.")
    notes: list[str] = []
    found: list[_Verdict] = []
    if text is None or not text.strip():
        notes.append("the reply is empty")
    elif len(text) > MAX_CHARACTERS:
        notes.append(f"the reply has {len(text):,} characters; more than {MAX_CHARACTERS:,} are not read")
    else:
        segments, thinking = _without_thinking(text)
        notes += [thinking] if thinking else []
        search = _Search(spellings(protocol), asked[0] if len(asked) == 1 else None)
        for segment in segments:
            search.text(segment)
        found = search.verdicts
        if search.strays or any(verdict.question not in asked for verdict in found):
            # The reply answers more than was asked, so what names no question may be about any.
            found = [verdict for verdict in found if not verdict.unnamed]
        notes += search.problems()
    return _decided(asked, found, protocol, notes)


# --- one verdict a question -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Verdict:
    """An answer that was found.

    Attributes:
        question: its id.
        label: of the scale; ``None`` if something else stands there.
        said: what stands there.
        rationale: the text beside it.
        blank: whether it is no answer at all, such as a placeholder: it does not contradict a real one.
        weak: whether its object is not closed: it can contradict an answer but does not make one.
        unnamed: whether it belongs to the question only because no other was asked.
    """

    question: str
    label: str | None
    said: str
    rationale: str = ""
    blank: bool = False
    weak: bool = False
    unnamed: bool = False


def _decided(asked: Sequence[str], found: Sequence[_Verdict], protocol: Protocol, notes: list[str]) -> ParsedResponse:
    answers: dict[str, float | None] = {}
    rationales: dict[str, str] = {}
    absent: list[str] = []
    bare: list[str] = []
    for question in asked:
        answers[question] = None
        every = [verdict for verdict in found if verdict.question == question]
        real = [verdict for verdict in every if not verdict.blank] or every
        whole = [verdict for verdict in real if not verdict.weak]
        said = ", ".join(dict.fromkeys(_short(verdict.said) for verdict in real))
        if not real:
            absent.append(question)
        elif len({verdict.label for verdict in real}) > 1:
            notes.append(f"{question}: answered more than once, differently ({said})")
        elif not whole:
            notes.append(f"{question}: its answer is in an object that is not closed ({said})")
        elif whole[0].label is None:
            notes.append(f"{question}: expected one of {', '.join(protocol.levels)}, got {said}")
        else:
            answers[question] = float(protocol.levels[whole[0].label])
            rationales[question] = next((verdict.rationale for verdict in whole if verdict.rationale), "")
            if not rationales[question]:
                del rationales[question]
                bare.append(question)
    if absent:
        notes.append(f"no answer to {', '.join(absent)}")
    if bare:
        notes.append(f"no rationale for {', '.join(bare)}")
    return ParsedResponse(answers, rationales, tuple(dict.fromkeys(notes)))


def _short(text: str, limit: int = 60) -> str:
    text = " ".join(text[: 4 * limit].split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


# --- thinking is no part of the reply ---------------------------------------------------------------------------------

_THINK = re.compile(
    r"<\s*(?P<a>/?)\s*(?:think|thinking|thought|thoughts|reasoning|reflection|analysis|scratchpad)\s*>"
    r"|◁\s*(?P<b>/?)\s*think\s*▷|\[(?P<c>/?)think\]|<\|(?P<d>begin|end)_of_thought\|>",
    re.IGNORECASE,
)
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)[^<]{0,80}<\|message\|>")


def _without_thinking(text: str) -> tuple[list[str], str]:
    """The parts outside thinking, which are never joined, and what to say about it.

    An end without a beginning ends thinking that the chat template began, so all before it goes.
    """
    channels = list(_CHANNEL.finditer(text))
    if channels:
        if channels[-1].group(1).lower() != "final":
            return [], "the reply ends in thinking"
        text = text[channels[-1].end() :]
    segments: list[str] = []
    depth = start = 0
    for tag in _THINK.finditer(text):
        ends = "/" in (tag["a"], tag["b"], tag["c"]) or (tag["d"] or "").lower() == "end"
        if not ends:
            if depth == 0:
                segments.append(text[start : tag.start()])
            depth += 1
            continue
        if depth:
            depth -= 1
        else:
            segments.clear()
        start = tag.end()
    if depth:
        return segments, "the reply breaks off in thinking"
    return [*segments, text[start:]], ""


# --- from objects and lists to verdicts -------------------------------------------------------------------------------

#: An object or list whose first quote is escaped.
_ESCAPED = re.compile(r"[{\[](?:\s|\\[nrt]|[{\[]){0,40}\\{1,8}[\"']")
#: What looks like the id of a question, of this protocol or another.
_IDENTITY = re.compile(r"[a-z]{1,3} ?\d{1,3}(?![^\W_])")
_FENCE = re.compile(r"```\w*\s*\Z")
_GOES_ON = re.compile(r"\s*[,，}\]]")
#: A word before an object, but for those that announce one.
_SENTENCE_BEFORE = re.compile(
    r"(?:(?<=[^\W_])(?<!json)(?<!answer)(?<!answers)(?<!output)(?<!response)(?<!reply)|(?<![}\])])[,(])"
    rf"[^\S\n]*[{ANY_QUOTE}`]?[^\S\n]*\Z",
    re.IGNORECASE,
)
#: A word after an object that does not begin a sentence or a pair.
_SENTENCE_AFTER = re.compile(rf"[{ANY_QUOTE}`]?,?[^\S\n]+[a-z]+(?![\w .-]{{0,40}}[{ANY_QUOTE}]?\s*[:=])")


@dataclass(frozen=True)
class _Place:
    """Where a value stands.

    Attributes:
        question: the nearest question above it.
        free: whether nothing above it says what it is about, so that it may answer the only question asked.
        kind: ``rationale`` or ``number`` where only such values stand, else empty.
        key: the nearest key above it.
    """

    question: str | None = None
    free: bool = True
    kind: str = ""
    key: str = ""


@dataclass
class _Search:
    """Walks through a reply and collects verdicts.

    Attributes:
        names: spellings of the protocol.
        only: the question asked, if it was one.
    """

    names: Spellings
    only: str | None
    verdicts: list[_Verdict] = field(default_factory=list)
    read: int = 0
    cut: bool = False
    broken: str = ""
    others: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        """What was met on the way."""
        found = list(dict.fromkeys(self.others))
        if not self.read:
            found.append("the reply holds no object or list with answers")
        if self.cut:
            found.append("the reply breaks off inside an object or list; only what was closed before is read")
        if self.broken:
            found.append(f"not readable from {_short(self.broken, 40)!r} on")
        strays = list(dict.fromkeys(map(_short, self.strays)))
        if strays:
            more = f" and {len(strays) - 5} more" if len(strays) > 5 else ""
            found.append(f"left out, since no such question was asked: {', '.join(strays[:5])}{more}")
        return found

    def text(self, text: str, layer: int = 0, place: _Place | None = None) -> None:
        """Every object and list in a text, with whatever is between them."""
        reader = Reader(text)
        while reader.find():
            start = reader.start
            if layer < MAX_LAYERS and _ESCAPED.match(text, start):
                # What stands before stays visible, without its brackets.
                before = re.sub(r"[{\[]", "\n", text[max(0, start - MAX_KEY) : start])
                self.text(unescaped(before) + unescaped(text[start:]), layer + 1, place)
                return
            node = reader.read()
            if reader.exhausted:
                self.verdicts.clear()
                self.others.append("the reply is too tangled to be read")
                return
            if reader.code:
                self.others.append("a call in the place of a value; the object around it is not read")
                continue
            self.cut |= node.state == "cut"
            if not (node.pairs if isinstance(node, Pairs) else node.items):
                continue
            self.read += 1
            if node.state == "broken" and not self.broken:
                self.broken = text[reader.at : reader.at + 60]
            if _is_quoted(text, start, reader.at):
                self.others.append("an object in the middle of a sentence is not an answer")
            else:
                self.visit(node, place or self.around(text, start, reader.at), layer)

    def around(self, text: str, start: int, end: int) -> _Place:
        """The place of an object in prose; what goes on after it as in an object has lost its beginning."""
        place = self.before(text, start)
        return replace(place, free=False) if _GOES_ON.match(text, end) else place

    def before(self, text: str, start: int) -> _Place:
        """What the line before an object says: ``"P3": {…}`` after a break, or ``P3:`` as its heading."""
        line = _FENCE.sub("", text[max(0, start - MAX_KEY) : start].rstrip()).rstrip()
        line = re.split(r"[\n{}\[\],;]", line)[-1].strip(" \t*_")
        if not line or line[-1] not in ":：=":
            return _Place(free=not self.speaks_of_others(line))
        key = line[:-1].strip()
        inner = key.strip(ANY_QUOTE + "*_#->• \t")
        quoted = not key or key[-1] in ANY_QUOTE
        if quoted and (not key or key[0] not in QUOTES or set(inner) & set(ANY_QUOTE)):
            return _Place(free=False, key=inner)  # the rest of a key
        meant = self.names.meant(inner)
        place = self.below(_Place(), inner, " ".join(spelling(inner)), None if meant and meant.by_name else meant)
        own = spelling(self.only or "")
        announced = re.search(r"[^\W\d_]{4}\Z", inner) is not None or bool(own and spelling(inner)[-len(own) :] == own)
        announced &= not self.speaks_of_others(inner)
        return replace(place, free=place.question is None and (place.free if quoted else announced))

    def speaks_of_others(self, line: str) -> bool:
        """Whether a line names a question other than the only one asked."""
        words = spelling(line)
        own = spelling(self.only or "")
        ids = [one for one in self.names.ids if one != own]
        if any(words[i : i + len(one)] == one for one in ids for i in range(len(words))):
            return True
        return any(_IDENTITY.fullmatch(w) and spelling(w) != own for w in re.findall(r"\w+", line.casefold()))

    def visit(self, node: Node, place: _Place, layer: int) -> None:
        if isinstance(node, Pairs):
            self.pairs(node, place, layer)
        elif isinstance(node, Items):
            self.items(node, place, layer)
        elif isinstance(node, Text):
            self.inner(node, place, layer)

    def inner(self, value: Text, place: _Place, layer: int) -> bool:
        """JSON inside a text; whether there is any."""
        if layer >= MAX_LAYERS or place.kind or value.text.lstrip()[:1] not in ("{", "["):
            return False
        if value.doubtful:
            self.others.append("an object inside a text whose quotes are not escaped is not read")
        else:
            self.text(value.text, layer + 1, place)
        return True

    def items(self, node: Items, place: _Place, layer: int) -> None:
        if node.state == "closed" and self.row(node.items, place):
            return
        for item in node.items:
            self.visit(item, place, layer)

    def row(self, items: Sequence[Node], place: _Place) -> bool:
        """``["P1", "yes", "…"]``, or ``["yes", "…"]`` as the value of a question; whether ``items`` are one."""
        if not 2 <= len(items) <= 3 or not all(isinstance(item, (Text, Bare)) for item in items):
            return False
        head, *rest = (item for item in items if isinstance(item, (Text, Bare)))
        meant = self.names.meant(head.text)
        if meant is not None and meant.part == "entry" and place.question in (None, meant.question):
            if len(rest) == 1 and self.names.label(rest[0].text) is None:
                return False  # perhaps a list of ids
            self.add(meant.question, rest[0], rest[1].text if len(rest) == 2 else "")
            return True
        if place.question is None or len(rest) != 1 or self.names.label(head.text) is None:
            return False
        if self.names.label(rest[0].text) is None:
            self.add(place.question, head, rest[0].text)
        return True

    def pairs(self, node: Pairs, place: _Place, layer: int) -> None:
        entry = self.entry(node, place)
        if self.explains(node):
            place = replace(place, kind="rationale")
        for key, value in node.pairs:
            words = " ".join(spelling(key))
            meant = self.names.meant(key)
            if meant is not None and meant.by_name and (entry or place.question is not None):
                meant = None  # a property of this answer, not another question
            if words in RATIONALE_KEYS and not isinstance(value, (Pairs, Items)):
                continue
            if entry and words in QUESTION_KEYS:
                continue
            below = self.below(place, key, words, meant)
            if meant is not None and isinstance(value, (Text, Bare)):
                if not (isinstance(value, Text) and self.inner(value, below, layer)):
                    inside = entry or place.question not in (None, meant.question)
                    self.flat(node, meant, value, below, inside=inside)
                continue
            self.visit(value, below, layer)
            if isinstance(value, (Text, Bare)) and not entry and not below.kind and words not in WRAPPERS:
                self.strays += [key] if self.names.label(value.text) else []

    def explains(self, node: Pairs) -> bool:
        """Whether the values of questions are texts rather than labels, as in a map of rationales."""
        labels = texts = 0
        for key, value in node.pairs:
            meant = self.names.meant(key) if isinstance(value, Text) else None
            if isinstance(value, Text) and meant is not None and meant.part == "entry":
                labels += self.names.label(value.text) is not None
                texts += len(spelling(value.text)) > 3 and value.text.lstrip()[0] not in "{["
        return texts > labels

    def below(self, place: _Place, key: str, words: str, meant: Meant | None) -> _Place:
        """The place of the value of a key."""
        if meant is not None:
            kind = meant.part if meant.part in ("rationale", "number") else place.kind
            return _Place(meant.question, free=False, kind=kind, key=key)
        kind = "rationale" if words in RATIONALE_KEYS else "number" if words in NUMBERS else place.kind
        return replace(place, free=place.free and words in WRAPPERS, kind=kind, key=key)

    def flat(self, node: Pairs, meant: Meant, value: Text | Bare, place: _Place, *, inside: bool) -> None:
        """``"P1": "yes"``."""
        if place.kind:
            return
        if inside:
            # Inside the answer to another question it is not clear whose it is.
            self.verdicts.append(_Verdict(meant.question, None, f"{value.text} inside another answer"))
            return
        reason = ""
        for key, other in node.pairs:
            named = self.names.meant(key) if isinstance(other, Text) else None
            if isinstance(other, Text) and named == replace(meant, part="rationale"):
                reason = other.text
        # What follows a break could take it back.
        self.add(meant.question, value, reason, weak=node.state == "broken")

    def entry(self, node: Pairs, place: _Place) -> bool:
        """``{"answer": "yes", "rationale": "…"}``: whether ``node`` is one."""
        answers: list[Text | Bare] = []
        labels: list[Text | Bare] = []
        others: list[Text | Bare] = []
        reason = ""
        known = True
        for key, value in node.pairs:
            words = " ".join(spelling(key))
            if words in RATIONALE_KEYS:
                reason = reason or (value.text if isinstance(value, Text) else "")
            elif words == "answer":
                answers += _scalars(value)
            elif words in LABEL_KEYS:
                labels += _scalars(value)
            elif "answer" in words.split() and isinstance(value, (Text, Bare)) and self.names.label(value.text):
                others += [value] if self.names.meant(key) is None else []
            else:
                known &= words in QUESTION_KEYS
        chosen = answers or labels or others
        if not chosen:
            return False
        question, unnamed = self.whose(node, place)
        if question is None or place.kind:
            return bool(answers) or question is not None
        if not answers and place.question is None and not any(self.names.label(one.text) for one in chosen):
            return False  # {"label": "dog"} is about something else
        every = [*answers, *labels, *others] if answers else chosen
        found = {self.names.label(one.text) for one in chosen} | {self.names.label(one.text) for one in every} - {None}
        said = ", ".join(dict.fromkeys(one.text for one in every))
        if len(found) > 1:
            self.verdicts.append(_Verdict(question, None, said))
        elif node.doubtful and not known:
            self.verdicts.append(_Verdict(question, None, f"{said}, beside a text whose quotes are not escaped"))
        else:
            self.add(question, chosen[0], reason, weak=node.state != "closed", unnamed=unnamed)
        return True

    def whose(self, node: Pairs, place: _Place) -> tuple[str | None, bool]:
        """The question that an answer belongs to, and whether nothing names it; what belongs to none is noted."""
        own: list[str] = []
        for key, value in node.pairs:
            if " ".join(spelling(key)) not in QUESTION_KEYS or not isinstance(value, (Text, Bare)):
                continue
            meant = self.names.meant(value.text)
            if meant is not None and meant.part == "entry":
                own.append(meant.question)
            elif isinstance(value, Text) and (_IDENTITY.match(value.text.strip().casefold()) or _is_short(value.text)):
                self.strays.append(value.text)
                return None, False
        every = list(dict.fromkeys([*own, *([place.question] if place.question else [])]))
        if len(every) > 1:
            self.others.append(f"one object answers {' and '.join(every)}")
            self.verdicts += [_Verdict(one, None, "an answer that is also another question's") for one in every]
            return None, False
        if every:
            return every[0], False
        if self.only is not None and place.free:
            return self.only, True
        self.strays.append(place.key or "an answer that names no question")
        return None, False

    def add(
        self, question: str, value: Text | Bare, rationale: str, *, weak: bool = False, unnamed: bool = False
    ) -> None:
        """One verdict from what stands in the place of a label."""
        label = self.names.label(value.text)
        blank = label is None and self.names.is_blank(value.text)
        said = value.text if value.text.strip() else "nothing"
        self.verdicts.append(_Verdict(question, label, said, _clean(rationale), blank, weak, unnamed))


def _scalars(value: Node) -> list[Text | Bare]:
    """What stands in the place of a label; a list of words is something else, and counts as such."""
    if isinstance(value, (Text, Bare)):
        return [] if isinstance(value, Text) and value.text.lstrip()[:1] in ("{", "[") else [value]
    if isinstance(value, Items) and not any(isinstance(item, (Pairs, Items)) for item in value.items):
        return [Bare("a list")]
    return []


def _is_quoted(text: str, start: int, end: int) -> bool:
    """Whether a short object stands in the middle of a sentence."""
    if end - start > MAX_QUOTED:
        return False
    return bool(_SENTENCE_BEFORE.search(text, max(0, start - 60), start) or _SENTENCE_AFTER.match(text, end))


def _is_short(text: str) -> bool:
    return len(spelling(text)) <= 3


def _clean(text: str) -> str:
    """A rationale that any file can hold, on one line."""
    text = " ".join(text.split())
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
