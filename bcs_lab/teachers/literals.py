"""Objects and lists inside a text, as people and models write them: JSON, Python, JavaScript, and nearly so.

A reader that repairs guesses. This one keeps what it has read up to the point where it no longer knows, and says how
each object and list ended: ``closed``, ``cut`` (the text ends inside it) or ``broken`` (it goes on in no known way). A
text ends at the first quote after which only structure can follow, so unescaped quotes inside it remain a part of it.
Repeated keys are all kept. Nothing is evaluated; the time grows with the length of the text only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

#: Deeper nesting is broken.
MAX_DEPTH = 24
#: Longer keys are broken.
MAX_KEY = 400

#: More objects and lists are not read one after the other.
MAX_READ = 5_000
#: What stands for a value that the text ends in.
CUT = "cut off"

State = Literal["closed", "cut", "broken"]


@dataclass
class Text:
    """A text in quotes; ``doubtful`` if it holds its own quote unescaped."""

    text: str
    doubtful: bool = False


@dataclass
class Bare:
    """Something without quotes: a word, a number, true, null."""

    text: str


@dataclass
class Items:
    """A list."""

    items: list[Node]
    state: State


@dataclass
class Pairs:
    """An object, its pairs in order, repeated keys included; ``doubtful`` if one of its texts is."""

    pairs: list[tuple[str, Node]]
    state: State
    doubtful: bool = False


Node = Text | Bare | Items | Pairs
Inside = Literal["object", "list"]

#: Opening quote -> what may close it.
QUOTES = {'"': '"', "'": "'", "“": '”“"', "„": '“”"', "”": '”"', "‘": "’'", "‚": "‘’'", "«": "»", "「": "」"}
ANY_QUOTE = "\"'“”„‘’‚«»「」"
#: Full-width forms come from models that think in Chinese.
COMMAS = ",，"
COLONS = ":："

_OPENING = re.compile(r"[{\[]")
_SPECIAL = {quote: re.compile(rf"[{re.escape(ends)}\\]") for quote, ends in QUOTES.items()}
_BLANK = re.compile(r"[\s\ufeff\u200b]*")
_BARE = re.compile(rf"[^{COMMAS}{COLONS}{{}}\[\]()\n/#{ANY_QUOTE}]{{1,80}}")
_BARE_KEY = re.compile(r"[^\W\d][\w .-]{0,60}")
_NOT_IN_KEY = re.compile(r"[{}\n]")
_KEYS = "|".join(rf"{q}[^{re.escape(ends)}\n{{}}]{{1,{MAX_KEY}}}[{re.escape(ends)}]" for q, ends in QUOTES.items())
_STARTS = "|".join(
    rf"{q}[^{re.escape(ends)}\n{{}}]{{0,{MAX_KEY}}}(?:[{re.escape(ends)}]\s*)?" for q, ends in QUOTES.items()
)
#: What may follow the comma after a value: the next key and its colon, or the end of the object.
_NEXT_KEY = re.compile(rf"(?:[uU]?(?:{_KEYS})|[^\W\d][\w.-]{{0,60}})\s*[{COLONS}]|\}}")
#: The same where the text ends within it.
_NEXT_KEY_CUT = re.compile(rf"(?:[uU]?(?:{_STARTS})|[^\W\d][\w.-]{{0,60}}\s*)?\Z")
_NEXT_ITEM = re.compile(rf"[{re.escape(''.join(QUOTES))}{{\[\](\w-]|\Z")
#: The end of one entry and the beginning of the next, which no text holds unless its quotes are not its own.
_BOUNDARY = re.compile(rf"\}}[\s,]*[{ANY_QUOTE}]?[^\W\d]\w{{0,40}}[{ANY_QUOTE}]?\s*[{COLONS}]\s*[{{\[]")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_HEX = {"u": 4, "x": 2, "U": 8}


class Reader:
    """The objects and lists of ``text``, one after the other, whatever stands between them.

    Attributes:
        at: where reading goes on.
        start: where the last value began.
        code: whether the last value held a call in the place of a value.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.start = 0
        self.code = False
        # Looking ahead costs, and a hostile text could ask for it at every character.
        self._budget = 60 * len(text) + 10_000
        self._reads = 0

    @property
    def exhausted(self) -> bool:
        """Whether the text is too tangled to be read on."""
        return self._budget < 0 or self._reads > MAX_READ

    def find(self) -> bool:
        """Move to the next opening bracket."""
        found = _OPENING.search(self.text, self.at)
        if found is None:
            return False
        self.at = self.start = found.start()
        return True

    def read(self) -> Pairs | Items:
        """The object or list that opens here; what is broken is passed over up to the place that broke it."""
        self.code = False
        self._reads += 1
        found: Pairs | Items = self._pairs(0) if self.text[self.at] == "{" else self._items(0)
        self.at = max(self.at, self.start + 1)
        return found

    def _pairs(self, depth: int) -> Pairs:
        found = Pairs([], "broken")
        if depth >= MAX_DEPTH:
            return found
        self.at += 1
        while True:
            here = self._blank()
            if here is None:
                found.state = "cut"
                return found
            if here == "}":
                self.at += 1
                found.state = "closed"
                return found
            if here in COMMAS:
                self.at += 1
                continue
            key, found.state = self._key()
            if key is None:
                return found
            node, found.state = self._value(depth, "object")
            if node is None and found.state == "cut":
                node = Bare(CUT)
            if node is not None:
                found.pairs.append((key, node))
                found.doubtful |= isinstance(node, Text) and node.doubtful
            if found.state != "closed":
                return found
            here = self._blank()
            if here is None:
                # A word is only known to be complete by what follows it.
                if isinstance(node, (Text, Bare)):
                    found.pairs[-1] = (key, Bare(CUT))
                found.state = "cut"
                return found
            # Between two entries a comma may be forgotten.
            nested = isinstance(node, (Pairs, Items))
            if here not in COMMAS and here != "}" and not (nested and _NEXT_KEY.match(self.text, self.at)):
                found.state = "broken"
                return found

    def _items(self, depth: int) -> Items:
        found = Items([], "broken")
        if depth >= MAX_DEPTH:
            return found
        self.at += 1
        while True:
            here = self._blank()
            if here is None:
                found.state = "cut"
                return found
            if here in "])":
                self.at += 1
                found.state = "closed"
                return found
            if here in COMMAS:
                self.at += 1
                continue
            node, found.state = self._value(depth, "list")
            if node is not None:
                found.items.append(node)
            if found.state != "closed":
                return found
            here = self._blank()
            nested = isinstance(node, (Pairs, Items))
            if here is not None and here not in COMMAS and here not in "])" and not (nested and here in "{["):
                found.state = "broken"
                return found

    def _key(self) -> tuple[str | None, State]:
        """A key with its colon; it holds neither its own quote unescaped, nor a brace, nor a line break."""
        text = self.text
        self._prefix()
        start = self.at
        quote = text[start]
        if quote not in QUOTES:
            word = _BARE_KEY.match(text, start)
            if word is None:
                return None, "broken"
            self.at = word.end()
            return self._colon(word.group().strip())
        at = start + 1
        parts: list[str] = []
        while True:
            hit = _SPECIAL[quote].search(text, at, start + MAX_KEY)
            stop = hit.start() if hit else min(len(text), start + MAX_KEY)
            if _NOT_IN_KEY.search(text, at, stop) or (hit is None and stop < len(text)):
                self.at = start + 1
                return None, "broken"
            if hit is None:
                self.at = len(text)
                return None, "cut"
            parts.append(text[at:stop])
            if hit.group() != "\\":
                self.at = hit.end()
                return self._colon("".join(parts))
            piece, at = _escape(text, stop)
            parts.append(piece)

    def _colon(self, key: str) -> tuple[str | None, State]:
        here = self._blank()
        if here is None or here not in COLONS:
            return None, "cut" if here is None else "broken"
        self.at += 1
        return key, "closed"

    def _value(self, depth: int, inside: Inside) -> tuple[Node | None, State]:
        here = self._blank()
        if here is None:
            return None, "cut"
        if here in "{[(":
            found: Pairs | Items = self._pairs(depth + 1) if here == "{" else self._items(depth + 1)
            return found, found.state
        self._prefix()
        if self.text[self.at] in QUOTES:
            return self._quoted(inside)
        return self._bare(inside)

    def _prefix(self) -> None:
        """Pass over the u of a Python 2 text."""
        if self.text[self.at] in "uU" and self.text[self.at + 1 : self.at + 2] in ("'", '"'):
            self.at += 1

    def _bare(self, inside: Inside) -> tuple[Node | None, State]:
        text = self.text
        word = _BARE.match(text, self.at)
        if word is None:
            return None, "broken"
        self.at = end = word.end()
        if text[end : end + 1] == "(" or "__" in word.group():
            self.code = True
            return None, "broken"
        if self._blank() is None:
            return None, "cut"
        # Words without quotes run on; only a key or a bracket shows that they do not.
        if not self._ends(self.at, inside, firmly=True):
            self.at = end
            return None, "broken"
        return Bare(word.group().strip()), "closed"

    def _quoted(self, inside: Inside) -> tuple[Node | None, State]:
        text = self.text
        special = _SPECIAL[text[self.at]]
        at = self.at + 1
        parts: list[str] = []
        doubtful = False
        while True:
            hit = special.search(text, at)
            if hit is None or self.exhausted:
                self.at = len(text)
                return None, "cut"
            parts.append(text[at : hit.start()])
            if hit.group() == "\\":
                piece, at = _escape(text, hit.start())
            elif self._ends(hit.end(), inside):
                self.at = hit.end()
                found = Text("".join(parts), doubtful)
                return found, "broken" if _BOUNDARY.search(found.text) and found.text.lstrip()[
                    0
                ] not in "{[" else "closed"
            elif self._follows(hit.end()):
                self.at = hit.end()  # more likely structure that is wrong than a word in quotes
                return None, "broken"
            else:
                piece, at, doubtful = hit.group(), hit.end(), True
            parts.append(piece)

    def _ends(self, at: int, inside: Inside, *, firmly: bool = False) -> bool:
        """Whether a value may end at ``at``; ``firmly`` if the end of the text does not show it."""
        text = self.text
        after = self._skip(at)
        self._budget -= after - at + 1
        if after >= len(text):
            return not firmly
        here = text[after]
        if here not in COMMAS:
            return here == "}" if inside == "object" else here in "])"
        following = self._skip(after + 1)
        self._budget -= following - after
        if inside == "list":
            return _NEXT_ITEM.match(text, following) is not None
        if _NEXT_KEY.match(text, following):
            return True
        return not firmly and _NEXT_KEY_CUT.match(text, following) is not None

    def _follows(self, at: int) -> bool:
        """Whether a comma or colon comes next."""
        blank = _BLANK.match(self.text, at)
        at = blank.end() if blank else at
        return at < len(self.text) and self.text[at] in COLONS + COMMAS

    def _blank(self) -> str | None:
        """Pass over blanks and comments; the character there, ``None`` at the end."""
        self.at = self._skip(self.at)
        return self.text[self.at] if self.at < len(self.text) else None

    def _skip(self, at: int) -> int:
        text = self.text
        while True:
            blank = _BLANK.match(text, at)
            at = blank.end() if blank else at
            if text.startswith("/*", at):
                end = text.find("*/", at + 2)
                end = len(text) if end < 0 else end + 2
            elif text.startswith(("//", "#"), at):
                end = text.find("\n", at)
                end = len(text) if end < 0 else end
            else:
                return at
            self._budget -= end - at
            if self.exhausted:
                return len(text)
            at = end


def unescaped(text: str) -> str:
    r"""``text`` with one level of escapes taken away.

    >>> unescaped(r'{\"P1\": \"yes\"}')
    '{"P1": "yes"}'
    """
    parts: list[str] = []
    at = 0
    while True:
        hit = text.find("\\", at)
        if hit < 0:
            parts.append(text[at:])
            return "".join(parts)
        parts.append(text[at:hit])
        piece, at = _escape(text, hit)
        parts.append(piece)


def _escape(text: str, at: int) -> tuple[str, int]:
    """What the escape at ``at`` stands for, and where it ends; the character itself where it means nothing."""
    letter = text[at + 1 : at + 2]
    digits = _HEX.get(letter)
    if digits:
        code = text[at + 2 : at + 2 + digits]
        if re.fullmatch(r"[0-9A-Fa-f]+", code) and len(code) == digits and int(code, 16) <= 0x10FFFF:
            return chr(int(code, 16)), at + 2 + digits
    return _ESCAPES.get(letter, letter), at + 1 + len(letter)
