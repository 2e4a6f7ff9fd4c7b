"""Read a teacher's reply: what it clearly says, and nothing that it may have meant (Section 4.1, Appendix B).

A label that is read is the label that was given, or it is missing; a wrong one would enter the consensus unseen. Every
way of writing an object that leaves no doubt is read: fences, prose around it, wrappers, lists, Python dicts, comments,
trailing commas, typographic or unescaped quotes, JSON inside JSON, other spellings of a key. The rest is refused:
prose, numbers, hedges, negations, echoes of the scale, answers cut short, and different answers to one question.

What counts, in short; ``docs/annotate.md`` has it in full:

- An answer belongs to a question through a key (``"P1": …``), a field (``"question": "P1"``) or the head of a list
  (``["P1", "yes", …]``). If one question was asked, an object without any of these answers it.
- A key is a question's id, its id followed by words of its name or aliases, its name, or one of its aliases; case,
  blanks and separators do not matter. Another key that holds the id contradicts the answer.
- The label is in the field ``answer`` or one of ``LABEL_KEYS``. Any other field that holds a label, a truth value or
  the score of another label makes it unclear.
- Answers count at the top and below the keys in ``WRAPPERS``; elsewhere they can only contradict.
- A label is one of the scale, or in the table ``ALIASES``; case, quotes and emphasis around it and one full stop do not
  matter.
- An object must be closed. Of a reply that breaks off, what was closed before is kept.
- Thinking is no part of the reply, whether it ends or not. Words around an object can make it doubtful.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from bcs_lab.teachers.literals import ANY_QUOTE, MAX_KEY, QUOTES, Bare, Items, Node, Pairs, Reader, Text, unescaped
from bcs_lab.teachers.protocol import BCS12, Protocol, spelling
from bcs_lab.teachers.spellings import (
    ALIASES,
    DOUBTS,
    LABEL_KEYS,
    NUMBERS,
    QUESTION_KEYS,
    RATIONALE_KEYS,
    SCORES,
    Meant,
    Spellings,
    spellings,
    wraps,
)

__all__ = ["ALIASES", "LABEL_KEYS", "MAX_CHARACTERS", "ParsedResponse", "parse_response"]

#: Longer replies are refused unread; no teacher is allowed that many tokens.
MAX_CHARACTERS = 100_000
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
        TypeError: ``text`` is no text.
        ValueError: ``questions`` holds an id that the protocol lacks, or one twice.

    Example:
        >>> found = parse_response('Sure! {"P4": {"rationale": "Both brown.", "answer": "Yes"}}', questions=("P4",))
        >>> found.answers, found.rationales, found.valid
        ({'P4': 1.0}, {'P4': 'Both brown.'}, True)
        >>> parse_response("No artifacts are left, so yes.", questions=("P5",)).answers
        {'P5': None}
    """
    if text is not None and not isinstance(text, str):
        raise TypeError(f"Expected `text` as a str or None but got {type(text).__name__}. Decode bytes as UTF-8 first.")
    asked = protocol.ids if questions is None else tuple(questions)
    unknown = ", ".join(repr(question) for question in asked if question not in protocol.ids)
    if unknown:
        raise ValueError(f"Expected `questions` among {', '.join(protocol.ids)} but got {unknown}.")
    if len(set(asked)) < len(asked):
        raise ValueError(f"Expected every id in `questions` once but got {', '.join(asked)}.")
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
        found = [] if search.tangled else search.verdicts
        if set(search.said) - {verdict.question for verdict in found if not verdict.weak}:
            # The reply answers in prose; what objects it holds may be quotations.
            notes.append("answers outside of objects are not read")
            found = [replace(verdict, weak=True) for verdict in found]
        if search.retracted:
            found = [replace(verdict, weak=True) for verdict in found]
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

#: A tag such as <think>, <seed:think>, <|END_THINKING|>, <inner_monologue> or ◁/think▷.
_TAG = re.compile(
    r"(?P<begin><\|channel>(?!\s*final))|(?P<end><channel\|>)|◁\s*(?P<b>/?)\s*think\s*▷|\[(?P<c>/?)think(?:ing)?\]"
    r"|<\|?\s*(?P<a>/?)\s*(?P<name>[a-z][\w:.-]{0,40})[^<>{}\[\]]{0,100}>",
    re.IGNORECASE,
)
_THINKING = frozenset(
    {
        "think", "thinking", "thought", "thoughts", "reason", "reasons", "reasoning", "reflection", "reflect",
        "analysis", "analyze", "analyse", "scratchpad", "rationale", "draft", "drafts", "monologue", "cot", "planning",
        "plan", "deliberation", "deliberate", "internal", "inner", "ponder", "notes",
    }
)  # fmt: skip
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)[^<]{0,80}(?:<\|message\|>)?")


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
    for tag in _TAG.finditer(text):
        words = spelling((tag["name"] or "").replace("_", " "))
        if tag["name"] and not _THINKING & set(words):
            continue
        if text[max(0, tag.start() - 1) : tag.start()] in QUOTES and text[tag.end() : tag.end() + 1] in QUOTES:
            continue  # a placeholder
        ends = "/" in (tag["a"], tag["b"], tag["c"]) or "end" in words or tag["end"] is not None
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
#: A sign in a field's name that could deny it.
_ODD_SIGN = re.compile(r"[^\w\s*_`\"'.:-]")
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


#: What follows the answer to one question as if it were another: a scale or alternatives.
_ANOTHER = re.compile(r"(?:\s*[,，;]\s*|[^\S\n]*(?:or|and|vs\.?|/|\|)?[^\S\n]*)[{\[(]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^\W\da-z_])")
#: Words in the sentence before an object that make it something other than the answer.
_CAUTION = re.compile(
    r"\b(?:examples?|e\.g|instance|samples?|wrong|incorrect|not|never|avoid|instead|drafts?|templates?|hypothetical\w*|"
    r"suppose|imagine|bad|invalid|refus\w+|reject\w*|cannot|\w+n['’]t|if|unless|might|could|previous\w*|earlier|"
    r"initial\w*|first (?:attempt|try|guess|thought|impression)|old|ground truth|opposite|mistake\w*|fake|dummy)\b",
    re.IGNORECASE,
)
#: Words after an object that take it back.
_RETRACTION = re.compile(
    r"\b(?:wait|corrections?|corrected|mistaken?|mistakes|(?:is|was|are|were) (?:wrong|incorrect|not right|false)|oops|"
    r"scratch (?:that|this)|should (?:be|have)(?! noted)|revis(?:e|ed|ing|ion)|retract\w*|second thoughts?|disregard|"
    r"reconsider\w*|ignore (?:that|this|it|the)|change (?:my|the)|(?:real|right|correct|true|final|actual) answers?|"
    r"answers? (?:is|are)(?! (?:based|given|above))|i meant?|sorry|apolog\w+|actually|opposite|invert\w*|revers\w+)\b",
    re.IGNORECASE,
)
#: The end of a text that an object was quoted in, and what comes after it.
_FRAGMENT = re.compile(rf"[^{ANY_QUOTE}{{}}\[\]]{{0,400}}[{ANY_QUOTE}]\s*[,}}\]]")
#: A key and a word outside every object.
_DANGLING = re.compile(
    rf"[{ANY_QUOTE}]([^{ANY_QUOTE}\n{{}}\[\]]{{1,60}})[{ANY_QUOTE}]\s{{0,5}}[:：=]\s{{0,5}}[{ANY_QUOTE}]?"
    rf"([^\W\d_][^{ANY_QUOTE}\n,{{}}\[\]]{{0,30}})"
)
#: The same without quotes, or in a table.
_SAID = re.compile(r"(?<!\w)(\w{1,32})[\"'*_`\])\s]{0,4}[:：=|][|\"'*_`\[(\s]{0,4}([^\W\d_]{1,40})(?!\w)")


@dataclass(frozen=True)
class _Place:
    """Where a value stands.

    Attributes:
        question: the question whose value it is, or is within.
        free: whether nothing above it says what it is about, so that it may answer the only question asked.
        weak: whether an answer here can only contradict one elsewhere.
        open: whether an object or list around it is not closed.
        kind: ``rationale`` or ``number`` where only such values stand, else empty.
        key: the nearest key above it.
    """

    question: str | None = None
    free: bool = True
    weak: bool = False
    open: bool = False
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
    said: list[str] = field(default_factory=list)
    tangled: bool = False
    retracted: bool = False

    def problems(self) -> list[str]:
        """What was met on the way."""
        found = list(dict.fromkeys(self.others))
        if not self.read:
            found.append("the reply holds no object or list with answers")
        if self.cut:
            found.append("the reply breaks off inside an object or list; only what was closed before is read")
        if self.retracted:
            found.append("words after the answers take them back")
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
        end = 0
        broken = False
        while reader.find():
            start = reader.start
            if layer < MAX_LAYERS and _ESCAPED.match(text, start):
                # What stands before stays visible, without its brackets.
                before = re.sub(r"[{\[]", "\n", text[max(0, start - MAX_KEY) : start])
                self.text(unescaped(before) + unescaped(text[start:]), layer + 1, place)
                return
            node = reader.read()
            if reader.exhausted:
                self.tangled = True
                self.others.append("the reply is too tangled to be read")
                return
            between = text[end:start]
            if reader.code:
                self.others.append("a call in the place of a value; the object around it is not read")
                self.between(between, heading=False)
                end = reader.at
                continue
            self.cut |= node.state == "cut"
            if not (node.pairs if isinstance(node, Pairs) else node.items):
                continue
            self.read += 1
            if node.state == "broken" and not self.broken:
                self.broken = text[reader.at : reader.at + 60]
            known = len(self.verdicts)
            earlier = self.latest()
            if _is_quoted(text, start, reader.at):
                self.others.append("an object in the middle of a sentence is not an answer")
            else:
                here = place or self.around(text, end, start, reader.at)
                # What comes after a break may be inside a text.
                self.visit(node, replace(here, weak=here.weak or broken), layer)
                if node.state == "closed" and _FRAGMENT.match(text, reader.at):
                    # So was this.
                    self.verdicts[known:] = [replace(one, weak=True) for one in self.verdicts[known:]]
            broken |= node.state == "broken" and isinstance(node, Pairs)
            heading = len(self.verdicts) > known and between.rstrip(" \t\n`*json")[-1:] in (":", "：", "")
            self.between(between, heading=heading, last=earlier)
            end = reader.at
        self.between(text[end:], heading=False, last=self.latest())

    def latest(self) -> list[_Verdict]:
        """The last verdict that is no placeholder, if there is one."""
        return next(([one] for one in reversed(self.verdicts) if not one.blank), [])

    def between(self, text: str, *, heading: bool, last: Sequence[_Verdict] = ()) -> None:
        """What is said outside objects: it makes no answer, but can take one back or contradict it."""
        for hit in _DANGLING.finditer(text):
            label = self.names.label(hit[2])
            meant = self.names.meant(hit[1])
            if label is None:
                continue
            if meant is not None and meant.part in ("entry", "answer") and not meant.by_name:
                named = [meant.question]
            elif " ".join(spelling(hit[1])) in ("answer", *LABEL_KEYS):
                named = [one.question for one in last] or ([self.only] if self.only else [])
            else:
                named = self.names.within(hit[1])
            self.verdicts += [_Verdict(one, label, hit[2], weak=True) for one in named]
        for hit in _SAID.finditer(text):
            label, meant = self.names.label(hit[2]), self.names.meant(hit[1])
            if label is not None and meant is not None and meant.part == "entry" and not meant.by_name:
                self.verdicts.append(_Verdict(meant.question, label, hit[2], weak=True))
                self.said.append(meant.question)
        if last and not heading and _RETRACTION.search(text):
            self.retracted = True

    def around(self, text: str, last: int, start: int, end: int) -> _Place:
        """The place of an object in prose; what goes on after it as in an object has lost its beginning."""
        place = self.before(text, start)
        prose = re.split(r"\n\s*\n", _FENCE.sub("", text[max(last, start - MAX_KEY) : start]).rstrip())[-1]
        line = _SENTENCE_END.split(prose)[-1]
        if _CAUTION.search(line):
            self.others.append(f"the words before an object say that it is something else: {_short(line, 40)!r}")
            place = replace(place, weak=True)
        if place.question is not None and _ANOTHER.match(text, end):
            self.poison(place.question, "one of several")
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
        place = replace(place, weak=place.weak and quoted)
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
        """Whatever answers there are in ``node``."""
        if isinstance(node, Text):
            self.inner(node, place, layer)
        if not isinstance(node, (Pairs, Items)) or place.kind:
            return
        place = replace(place, open=place.open or node.state != "closed")
        if place.question is not None:
            self.own(node, place, layer)
        elif isinstance(node, Pairs):
            self.pairs(node, place, layer)
        else:
            self.items(node, place, layer)

    def own(self, node: Pairs | Items, place: _Place, layer: int) -> None:
        """The value of a question: one entry, one row, or a list of one entry. Anything else contradicts."""
        question = place.question or ""
        place = replace(place, weak=place.weak or node.state != "closed")
        if isinstance(node, Pairs):
            if not self.entry(node, place, layer):
                blank = not any(True for _ in _scalars_in(node))
                self.poison(question, "an object without an answer", blank=blank)
                self.elsewhere(node, layer)
        elif not self.row(node.items, place):
            first = node.items[0] if len(node.items) == 1 else None
            if isinstance(first, (Pairs, Items)):
                self.visit(first, place, layer)
            else:
                self.poison(question, "a list", blank=not node.items)
                self.elsewhere(node, layer)

    def elsewhere(self, node: Node, layer: int) -> None:
        """What stands where no answer is expected can only contradict."""
        place = _Place(free=False, weak=True)
        if isinstance(node, Pairs):
            for key, value in node.pairs:
                self.keyed(node, key, value, place, layer, {}, named=False)
        elif isinstance(node, Items):
            for item in node.items:
                self.visit(item, place, layer)

    def poison(self, question: str, said: str, *, blank: bool = False) -> None:
        """A place where an answer should be, without a clear one."""
        self.verdicts.append(_Verdict(question, None, said, blank=blank, weak=True))

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
            question, value, why = meant.question, rest[0], rest[1] if len(rest) == 2 else None
        elif place.question is not None and len(rest) == 1 and self.names.label(head.text) is not None:
            question, value, why = place.question, head, rest[0]
        else:
            return False
        if why is None or self.is_reason(why, self.names.label(value.text)):
            self.add(question, value, why.text if why else "", weak=place.weak)
        else:
            self.poison(question, f"{value.text} and {why.text}")
        return True

    def is_reason(self, value: Text | Bare, label: str | None) -> bool:
        """Whether a value beside a label is a sentence and no second label."""
        if not isinstance(value, Text) or not value.text.strip():
            return isinstance(value, Text)
        return len(spelling(value.text)) >= 3 and self.names.begins(value.text) in (None, label)

    def pairs(self, node: Pairs, place: _Place, layer: int) -> None:
        if self.entry(node, place, layer):
            return
        if self.explains(node):
            return
        reasons: dict[str, str] = {}
        by_name: set[str] = set()
        every: set[str] = set()
        named = True
        for key, value in node.pairs:
            meant = self.names.meant(key)
            words = " ".join(spelling(key))
            if meant is not None and meant.part == "rationale" and isinstance(value, Text):
                reasons.setdefault(meant.question, value.text)
            if meant is not None and meant.by_name:
                by_name.add(meant.question)
            every |= {meant.question} if meant is not None else set()
            named &= meant is not None or words in RATIONALE_KEYS | NUMBERS or wraps(words)
        named &= len(every) > 1 or (self.only is not None and by_name == {self.only})
        if len(every) == 1:
            self.beside(node, *every)
        for at, (key, value) in enumerate(node.pairs):
            # What follows a break could take the last one back, or show that it was no more than a quotation.
            doubtful = node.state == "broken" and at == len(node.pairs) - 1
            below = replace(place, weak=place.weak or doubtful)
            self.keyed(node, key, value, below, layer, reasons, named=named)

    def beside(self, node: Pairs, question: str) -> None:
        """An object with a key of one question: what its other fields say about the label."""
        words = [value.text for key, value in node.pairs if self.names.meant(key) and isinstance(value, (Text, Bare))]
        label = next(filter(None, map(self.names.label, words)), None)
        for key, value in node.pairs:
            explains = " ".join(spelling(key)) in RATIONALE_KEYS
            if self.names.meant(key) is None and not explains and isinstance(value, (Text, Bare)):
                doubt = self.doubt(key, value, label, unnamed=False)
                if doubt:
                    self.poison(question, f"beside {doubt}")

    def keyed(
        self,
        node: Pairs,
        key: str,
        value: Node,
        place: _Place,
        layer: int,
        reasons: dict[str, str],
        *,
        named: bool,
    ) -> None:
        """One pair of an object that is no entry; ``named`` if the names of questions count as keys."""
        words = " ".join(spelling(key))
        meant = self.names.meant(key)
        if meant is not None and meant.by_name and not named:
            place = replace(place, weak=True)
        below = self.below(place, key, words, meant)
        if meant is None and not wraps(words):
            for question in self.names.within(key):
                if not isinstance(value, (Text, Bare)) or not self.names.is_blank(value.text):
                    self.poison(question, f"under the key {key!r}")
        if not isinstance(value, (Text, Bare)):
            if meant is not None and meant.part == "answer":
                self.poison(meant.question, "no word")
            else:
                self.visit(value, below, layer)
        elif isinstance(value, Text) and self.inner(value, below, layer):
            pass
        elif meant is not None:
            self.flat(node, meant, value, below, reasons)
        elif not below.kind and not wraps(words) and self.names.label(value.text):
            self.strays.append(key)

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
            return replace(place, question=meant.question, free=False, kind=kind, key=key)
        kind = "rationale" if words in RATIONALE_KEYS else "number" if words in NUMBERS else place.kind
        known = wraps(words)
        return replace(place, free=place.free and known, weak=place.weak or not known, kind=kind, key=key)

    def flat(self, node: Pairs, meant: Meant, value: Text | Bare, place: _Place, reasons: dict[str, str]) -> None:
        """``"P1": "yes"``."""
        if place.kind == "number":
            label = self.names.scored(value.text) if spelling(place.key)[-1] in SCORES else self.names.label(value.text)
            if label is not None:
                self.verdicts.append(_Verdict(meant.question, label, value.text, weak=True))
        if place.kind:
            return
        weak = place.weak or node.state == "broken"
        self.add(meant.question, value, reasons.get(meant.question, ""), weak=weak)

    def entry(self, node: Pairs, place: _Place, layer: int) -> bool:
        """``{"answer": "yes", "rationale": "…"}``: whether ``node`` is one."""
        answers: list[Text | Bare] = []
        others: list[tuple[str, Node]] = []
        reason = ""
        asks = stranger = False
        for key, value in node.pairs:
            words = " ".join(spelling(key))
            if words == "answer" or words in LABEL_KEYS:
                found = _scalars(value)
                answers += found
                if not found:
                    others.append((key, value))
                stranger |= _ODD_SIGN.search(key) is not None
            elif words in RATIONALE_KEYS and isinstance(value, (Text, Bare)):
                reason = reason or (value.text if isinstance(value, Text) else "")
            elif words in QUESTION_KEYS and isinstance(value, (Text, Bare)):
                asks = True
            else:
                others.append((key, value))
        if not answers:
            if asks and node.state != "closed":
                question, _ = self.whose(node, replace(place, free=False))
                if question is not None:
                    self.poison(question, "cut off")
            return False
        firm = any(" ".join(spelling(key)) == "answer" for key, _ in node.pairs)
        labels = [self.names.label(one.text) for one in answers]
        if not firm and place.question is None and not asks and not any(labels):
            return False  # {"label": "dog"} is about something else
        said = ", ".join(dict.fromkeys(one.text for one in answers))
        question, unnamed = self.whose(node, place)
        doubt = ""
        for key, value in others:
            doubt = doubt or self.doubt(key, value, next(filter(None, labels), None), unnamed=unnamed)
            self.elsewhere(Pairs([(key, value)], node.state), layer)
        if question is None:
            return True
        real = [one for one, label in zip(answers, labels, strict=True) if label or not self.names.is_blank(one.text)]
        weak = place.weak or node.state != "closed" or (unnamed and place.open)
        if len({self.names.label(one.text) for one in real}) > 1:
            self.verdicts.append(_Verdict(question, None, said))
        elif doubt or stranger:
            self.verdicts.append(_Verdict(question, None, f"{said}, beside {doubt or 'an unclear key'}"))
        elif node.doubtful and any(" ".join(spelling(key)) not in NUMBERS for key, _ in others):
            self.verdicts.append(_Verdict(question, None, f"{said}, beside a text whose quotes are not escaped"))
        else:
            self.add(question, (real or answers)[0], reason, weak=weak, unnamed=unnamed)
        return True

    def doubt(self, key: str, value: Node, label: str | None, *, unnamed: bool) -> str:
        """Why another field of an entry makes its label unclear; empty if it does not."""
        words = spelling(key)
        said = f"{key!r}"
        scalars = list(_scalars_in(value))
        if all(self.names.is_blank(one.text) and not self.names.label(one.text) for one in scalars):
            return ""
        if " ".join(words) in NUMBERS:
            for one in scalars:
                scored = self.names.scored(one.text)
                wrong = scored not in (None, label) if words[-1] in SCORES else one.text.strip() in ("0", "0.0", "0%")
                if wrong or self.names.label(one.text) or one.text.casefold() in ("true", "false"):
                    return said
            return ""
        meant = self.names.meant(key)
        strange = {"answer", "label", "verdict", *DOUBTS} & set(words)
        if strange or self.names.within(key) or (meant is not None and not meant.by_name):
            return said
        if unnamed and not {"group", "category", "type", "status"} & set(words) and not wraps(" ".join(words)):
            return said
        for one in scalars:
            bare = one.text.strip().casefold()
            begins = self.names.begins(one.text)
            if self.names.label(one.text) or begins not in (None, label) or bare in ("true", "false"):
                return said
            if self.names.scored(one.text) not in (None, label):
                return said
        return ""

    def whose(self, node: Pairs, place: _Place) -> tuple[str | None, bool]:
        """The question that an answer belongs to, and whether nothing names it; what belongs to none is noted."""
        own: list[str] = []
        for key, value in node.pairs:
            if " ".join(spelling(key)) not in QUESTION_KEYS or not isinstance(value, (Text, Bare)):
                continue
            asked = self.names.asks(value.text)
            if asked is not None:
                own.append(asked)
            elif not self.names.is_blank(value.text):
                # It asks something else, perhaps the opposite.
                self.strays.append(value.text)
                if place.question is not None:
                    self.poison(place.question, f"an answer to {_short(value.text, 40)!r}")
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


def _scalars_in(node: Node) -> Iterator[Text | Bare]:
    """Every text and word in a value."""
    if isinstance(node, (Text, Bare)):
        yield node
    elif isinstance(node, Pairs):
        for _, value in node.pairs:
            yield from _scalars_in(value)
    else:
        for item in node.items:
            yield from _scalars_in(item)


def _clean(text: str) -> str:
    """A rationale that any file can hold, on one line."""
    text = " ".join(text.split())
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
