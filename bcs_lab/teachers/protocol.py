"""The questions a teacher answers about a pair, as data (Table 3, Section 4.1, Appendix B).

The paper's are in ``conf/protocol/bcs12.yaml``; a file of the same form asks others.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml

from bcs_lab.catalogue import choices, config_dir
from bcs_lab.errors import ConfigError

#: The three admitted answers, from worst to best, and their scores (eq. 7).
LEVELS: Mapping[str, float] = {"no": 0.0, "somewhat": 0.5, "yes": 1.0}

PERCEPTUAL = "perceptual"
SEMANTIC = "semantic"
GROUPS = (PERCEPTUAL, SEMANTIC)

#: The file a corpus folder holds if it was not asked the paper's questions.
PROTOCOL_FILE = "protocol.yaml"

#: Names of columns in the tables that also have one column a question.
RESERVED = frozenset(
    {
        "pair_id", "split", "method", "subject", "concept", "rank", "candidate", "reference", "reconstruction",
        "reference_path", "reconstruction_path", "t_pas", "t_sas", "t_pas_std", "t_sas_std", "t_pas_lo", "t_pas_hi",
        "t_sas_lo", "t_sas_hi", "regime", "ood", "simulated_teachers", "question", "answer", "answers", "rationale",
        "reasoning", "reason", "teacher",
    }
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    """One question of a protocol.

    Attributes:
        id: short id, a column name in every table (``P1`` … ``S6``).
        group: the axis it counts towards, ``perceptual`` (T-PAS) or ``semantic`` (T-SAS).
        name: what it asks about, in two or three words.
        criterion: the question itself, as a teacher reads it.
        tolerated: deviations that must not count.
        penalised: deviations that must.
        examples: pairs of an answer and a case that deserves it.
        aliases: other spellings of the key under which a reply may answer it.
        alone: whether it asks about the reconstruction alone, whatever the reference.
    """

    id: str
    group: str
    name: str
    criterion: str = ""
    tolerated: tuple[str, ...] = ()
    penalised: tuple[str, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    aliases: tuple[str, ...] = ()
    alone: bool = False


@dataclass(frozen=True)
class Protocol:
    """An ordered set of questions; heads have one output a question, in this order.

    Attributes:
        name: of the protocol.
        questions: in order.
        levels: answer -> score, one of 0, 0.5 and 1 (eq. 7).
        system: what a teacher is told before any question.
        meanings: answer -> what it stands for.
    """

    name: str
    questions: tuple[Question, ...]
    levels: Mapping[str, float] = field(default_factory=lambda: LEVELS)
    system: str = ""
    meanings: Mapping[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def ids(self) -> tuple[str, ...]:
        """Question ids, in order."""
        return tuple(question.id for question in self.questions)

    def indices(self, group: str) -> list[int]:
        """Positions of the questions of one group (the sets P and S of eqs. 19 and 20); may be empty."""
        return [i for i, question in enumerate(self.questions) if question.group == group]

    @cached_property
    def digest(self) -> str:
        """Identity: 16 hexadecimal digits of the SHA-256 over everything a teacher is told and a table is named by."""
        canonical = json.dumps(protocol_values(self), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def load_protocol(name_or_path: str | Path) -> Protocol:
    """A protocol by its name in ``conf/protocol`` (``bcs12``), or from a YAML file.

    Args:
        name_or_path: a name, or a path. A text without a separator and without ``.yaml`` is a name.

    Raises:
        ConfigError: no such protocol or file, no YAML, or listing every problem of its content by key.

    Example:
        >>> load_protocol("bcs12").ids[:3]
        ('P1', 'P2', 'P3')
    """
    text = str(name_or_path)
    is_path = isinstance(name_or_path, Path) or "/" in text or Path(text).suffix.lower() in (".yaml", ".yml")
    return _read(Path(text).expanduser()) if is_path else _named(text)


def protocol_from(values: Mapping[str, Any], base: Path | None = None) -> Protocol:
    """The protocol of a composed config: the values of a file, or ``{"path": FILE}``.

    Args:
        values: the config section ``protocol``.
        base: folder that a relative ``path`` starts at; by default the current one.

    Raises:
        ConfigError: as in :func:`load_protocol`.
    """
    if "path" not in values:
        return _checked(values, "protocol")
    path = values["path"]
    stray = [str(key) for key in values if key != "path"]
    if stray:
        raise ConfigError(
            f"protocol: expected either path or the protocol itself, got path and {', '.join(stray)}. Keep one."
        )
    if not isinstance(path, (str, Path)) or not str(path).strip() or str(path) == "???":
        raise ConfigError(
            "protocol.path: expected a YAML file of questions, as conf/protocol/bcs12.yaml, but got "
            f"{path!r}. Give protocol=file protocol.path=FILE.yaml, or leave both out for the paper's questions."
        )
    return _read((base or Path()) / Path(path).expanduser())


def corpus_protocol(folder: Path, default: Protocol | None = None) -> Protocol:
    """The protocol of a corpus: its folder's ``protocol.yaml``, else ``default`` (the paper's questions).

    Raises:
        ConfigError: as in :func:`load_protocol`.
    """
    path = folder / PROTOCOL_FILE
    if path.exists() or path.is_symlink():
        return _read(path)
    return BCS12 if default is None else default


def protocol_values(protocol: Protocol) -> dict[str, Any]:
    """What a YAML file of ``protocol`` holds, as plain containers."""
    answers = []
    for label, score in protocol.levels.items():
        answer: dict[str, Any] = {"label": label, "score": float(score)}
        if label in protocol.meanings:
            answer["meaning"] = protocol.meanings[label]
        answers.append(answer)
    questions = []
    for question in protocol.questions:
        item: dict[str, Any] = {"id": question.id, "group": question.group, "name": question.name}
        if question.criterion:
            item["criterion"] = question.criterion
        for key in ("tolerated", "penalised"):
            if getattr(question, key):
                item[key] = list(getattr(question, key))
        if question.examples:
            item["examples"] = [{"label": label, "text": text} for label, text in question.examples]
        if question.aliases:
            item["aliases"] = list(question.aliases)
        if question.alone:
            item["alone"] = True
        questions.append(item)
    values: dict[str, Any] = {"name": protocol.name}
    if protocol.system:
        values["system"] = protocol.system
    return {**values, "answers": answers, "questions": questions}


def protocol_text(protocol: Protocol) -> str:
    """A YAML file that :func:`load_protocol` reads back as ``protocol``."""
    return yaml.safe_dump(protocol_values(protocol), sort_keys=False, allow_unicode=True, width=100)


def same_questions(first: Protocol, second: Protocol) -> bool:
    """Whether answers to one can be compared with answers to the other: same ids, groups, order and scale."""
    return (
        first.ids == second.ids
        and [q.group for q in first.questions] == [q.group for q in second.questions]
        and dict(first.levels) == dict(second.levels)
    )


# --- reading --------------------------------------------------------------------------------------------------------


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML in which yes, no, on and off are words, as they are in YAML 1.2, and a repeated key is an error."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":bool", ":timestamp"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is there twice", key.start_mark
                )
            seen.add(key.value)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def _named(name: str) -> Protocol:
    if name == "bcs12":
        return _bcs12()
    known = [one for one in choices("protocol") if one != "file"]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(
            f"protocol: expected {', '.join(known)} or a path to a YAML file, but got {name!r}.{hint} "
            "Questions of your own: protocol=file protocol.path=FILE.yaml"
        )
    return _read(config_dir() / "protocol" / f"{name}.yaml")


@lru_cache(maxsize=1)
def _bcs12() -> Protocol:
    return _read(config_dir() / "protocol" / "bcs12.yaml")


def _read(path: Path) -> Protocol:
    expected = "expected a YAML file of questions, as conf/protocol/bcs12.yaml"
    try:
        values = yaml.load(path.read_text(encoding="utf-8-sig"), Loader=_Loader)
    except OSError as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
        raise ConfigError(f"protocol: {path}: {what}; {expected}.") from None
    except (UnicodeDecodeError, yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"protocol: {path}: not readable as YAML; {expected}: {reason}") from None
    if not isinstance(values, Mapping):
        raise ConfigError(f"protocol: {path}: {expected}, got {_kind(values)}.")
    return _checked(values, str(path))


def _checked(values: Mapping[str, Any], where: str) -> Protocol:
    """A protocol from plain containers; raises ``ConfigError`` with every problem after ``where``."""
    check = _Check()
    check.keys("", values, required=("name", "answers", "questions"), optional=("system",))
    name = check.text("name", values.get("name"), missing="name" not in values)
    system = check.text("system", values["system"], empty=True) if "system" in values else ""
    levels, meanings = _answers(check, values.get("answers"), missing="answers" not in values)
    questions = _questions(check, values.get("questions"), levels, missing="questions" not in values)
    if check.problems:
        count = f"{len(check.problems)} problem{'s' if len(check.problems) > 1 else ''}"
        lines = "\n".join(f"  - {problem}" for problem in check.problems)
        raise ConfigError(f"protocol: {where}: {count} (the form is that of conf/protocol/bcs12.yaml):\n{lines}")
    return Protocol(name, questions, levels, system, meanings)


def _answers(check: _Check, given: Any, *, missing: bool) -> tuple[dict[str, float], dict[str, str]]:
    levels: dict[str, float] = {}
    meanings: dict[str, str] = {}
    for key, item in check.items("answers", given, missing=missing):
        check.keys(key, item, required=("label", "score"), optional=("meaning",))
        label = check.text(f"{key}.label", item.get("label"), missing="label" not in item)
        if label != " ".join(label.split()).casefold():
            check.add(f"{key}.label", f"expected lower case and single blanks, got {label!r}")
        elif label and (not plain(label) or re.search(r'[{}\[\]<>"|\\\x00-\x1f]', label)):
            check.add(f"{key}.label", f"expected a word that can be read in JSON, got {label!r}")
        elif label and label not in levels and plain(label) in map(plain, levels):
            check.add(f"{key}.label", f"{label!r} reads like another label; a reply could not be told apart")
        score = item.get("score")
        if "score" in item and (
            isinstance(score, bool) or not isinstance(score, (int, float)) or score not in (0, 0.5, 1)
        ):
            check.add(f"{key}.score", f"expected 0, 0.5 or 1 (eq. 7), got {score!r}")
            score = math.nan
        if "meaning" in item:
            meanings[label] = check.text(f"{key}.meaning", item["meaning"])
        if label and label in levels:
            check.add(f"{key}.label", f"{label!r} is there twice")
        elif score is not None and score in levels.values():
            check.add(f"{key}.score", f"two answers have the score {score}")
        levels[label] = float(score) if score is not None else math.nan
    if levels and not check.problems and not {0.0, 1.0} <= set(levels.values()):
        check.add("answers", f"expected one with score 0 and one with score 1, got {sorted(levels.values())}")
    # From worst to best, whatever the order of the file.
    return {label: levels[label] for label in sorted(levels, key=lambda one: levels[one])}, meanings


def _questions(check: _Check, given: Any, levels: Mapping[str, float], *, missing: bool) -> tuple[Question, ...]:
    questions: list[Question] = []
    names: dict[tuple[str, ...], str] = {}
    for key, item in check.items("questions", given, missing=missing):
        check.keys(
            key,
            item,
            required=("id", "group", "name"),
            optional=("criterion", "tolerated", "penalised", "examples", "aliases", "alone"),
        )
        identity = check.text(f"{key}.id", item.get("id"), missing="id" not in item)
        if identity and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", identity):
            check.add(f"{key}.id", f"expected a letter, then letters, digits or _ (32 at most), got {identity!r}")
        elif identity.casefold() in RESERVED or identity.casefold() in levels:
            what = "an answer" if identity.casefold() in levels else "a column of the tables"
            check.add(f"{key}.id", f"{identity!r} is also the name of {what}; choose another")
        group = item.get("group")
        if "group" in item and group not in GROUPS:
            check.add(f"{key}.group", f"expected perceptual (counts for T-PAS) or semantic (T-SAS), got {group!r}")
        examples = []
        for at, example in check.items(f"{key}.examples", item.get("examples", []), empty=True):
            check.keys(at, example, required=("label", "text"))
            label = check.text(f"{at}.label", example.get("label"), missing="label" not in example)
            if label and levels and label not in levels:
                check.add(f"{at}.label", f"expected one of {', '.join(levels)}, got {label!r}")
            examples.append((label, check.text(f"{at}.text", example.get("text"), missing="text" not in example)))
        question = Question(
            identity,
            str(group),
            check.text(f"{key}.name", item.get("name"), missing="name" not in item),
            check.text(f"{key}.criterion", item["criterion"], empty=True) if "criterion" in item else "",
            check.texts(f"{key}.tolerated", item.get("tolerated", [])),
            check.texts(f"{key}.penalised", item.get("penalised", [])),
            tuple(examples),
            check.texts(f"{key}.aliases", item.get("aliases", [])),
            item.get("alone", False) is True,
        )
        if not isinstance(item.get("alone", False), bool):
            check.add(f"{key}.alone", f"expected true or false, got {item['alone']!r}")
        for part, text in (
            ("id", question.id),
            ("name", question.name),
            *(("aliases", one) for one in question.aliases),
        ):
            words = spelling(text)
            owner = names.setdefault(words, key)
            if words and owner != key:
                check.add(f"{key}.{part}", f"{text!r} is also used by {owner}; a reply could not be told apart")
        questions.append(question)
    return tuple(questions)


def spelling(text: str) -> tuple[str, ...]:
    """The words of a key in lower case, letters and digits apart, so that ``P 6``, ``p6.`` and ``P6`` are the same.

    >>> spelling("P1_Global layout")
    ('p', '1', 'global', 'layout')
    """
    return tuple(re.findall(r"\d+|[^\W\d_]+", unicodedata.normalize("NFKC", text).casefold()))


#: What may stand around a label.
_EDGES = "\"'“”‘’„`*_\u200b\u200c\u200d\u2060\ufeff \t\r\n\u00a0"


def plain(text: str) -> str:
    """A label without case, blanks, quotes and emphasis around it, and one full stop.

    >>> plain(' **Yes.** ')
    'yes'
    """
    text = unicodedata.normalize("NFKC", text).casefold().strip(_EDGES)
    return " ".join(text.removesuffix(".").strip(_EDGES).split())


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    names = {
        dict: "a mapping",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)


class _Check:
    """Collects problems of one file, each under its dotted key."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def add(self, key: str, message: str) -> None:
        self.problems.append(f"{key}: {message}" if key else message)

    def keys(self, key: str, value: Mapping[str, Any], required: Sequence[str], optional: Sequence[str] = ()) -> None:
        known = (*required, *optional)
        for name in value:
            if name not in known:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(known)}"
                self.add(f"{key}.{name}" if key else str(name), f"unknown key{hint}")
        for name in required:
            if name not in value:
                self.add(f"{key}.{name}" if key else name, "is missing")

    def text(self, key: str, value: Any, *, missing: bool = False, empty: bool = False) -> str:
        if missing:  # reported by keys
            return ""
        if not isinstance(value, str):
            shown = f" ({value!r})" if isinstance(value, (bool, int, float)) else ""
            self.add(key, f"expected a text, got {_kind(value)}{shown}" + ("; put it in quotes" if shown else ""))
            return ""
        if not value.strip() and not empty:
            self.add(key, "is empty")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            self.add(key, "is not valid Unicode text")
        return value.strip()

    def texts(self, key: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list):
            self.add(key, f"expected a list of texts, got {_kind(value)}")
            return ()
        return tuple(self.text(f"{key}.{i}", item) for i, item in enumerate(value))

    def items(
        self, key: str, value: Any, *, missing: bool = False, empty: bool = False
    ) -> list[tuple[str, Mapping[str, Any]]]:
        if missing:
            return []
        if not isinstance(value, list) or not (value or empty):
            self.add(key, f"expected a list of mappings, got {'an empty list' if value == [] else _kind(value)}")
            return []
        good = []
        for i, item in enumerate(value):
            if isinstance(item, Mapping):
                good.append((f"{key}.{i}", item))
            else:
                self.add(f"{key}.{i}", f"expected a mapping, got {_kind(item)}")
        return good


#: The paper's twelve questions (Table 3), read from ``conf/protocol/bcs12.yaml``.
BCS12 = load_protocol("bcs12")
