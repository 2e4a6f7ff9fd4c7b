"""The questions a teacher answers about a pair, as data (Table 3, Section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: The three admitted answers, from worst to best, and their scores (eq. 7).
LEVELS: Mapping[str, float] = {"no": 0.0, "somewhat": 0.5, "yes": 1.0}

PERCEPTUAL = "perceptual"
SEMANTIC = "semantic"


@dataclass(frozen=True)
class Question:
    """One question of a protocol.

    Attributes:
        id: short id, a column name in every table (``P1`` … ``S6``).
        group: the axis it counts towards, ``perceptual`` (T-PAS) or ``semantic`` (T-SAS).
        name: what it asks about, in two or three words.
    """

    id: str
    group: str
    name: str


@dataclass(frozen=True)
class Protocol:
    """An ordered set of questions; heads have one output a question, in this order."""

    name: str
    questions: tuple[Question, ...]
    levels: Mapping[str, float] = field(default_factory=lambda: LEVELS)

    @property
    def ids(self) -> tuple[str, ...]:
        """Question ids, in order."""
        return tuple(question.id for question in self.questions)

    def indices(self, group: str) -> list[int]:
        """Positions of the questions of one group (the sets P and S of eqs. 19 and 20)."""
        return [i for i, question in enumerate(self.questions) if question.group == group]


#: The paper's twelve questions (Table 3).
BCS12 = Protocol(
    name="bcs12",
    questions=(
        Question("P1", PERCEPTUAL, "spatial layout"),
        Question("P2", PERCEPTUAL, "shape"),
        Question("P3", PERCEPTUAL, "texture and material"),
        Question("P4", PERCEPTUAL, "colour"),
        Question("P5", PERCEPTUAL, "absence of artifacts"),
        Question("P6", PERCEPTUAL, "visual recoverability"),
        Question("S1", SEMANTIC, "basic category"),
        Question("S2", SEMANTIC, "specific identity"),
        Question("S3", SEMANTIC, "function"),
        Question("S4", SEMANTIC, "quantity"),
        Question("S5", SEMANTIC, "scene and context"),
        Question("S6", SEMANTIC, "semantic recoverability"),
    ),
)
