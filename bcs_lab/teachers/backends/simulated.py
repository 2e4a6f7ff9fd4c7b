"""``backend=simulated``: the computed answers of a made corpus, worded as the JSON a model would have written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bcs_lab.errors import ConfigError
from bcs_lab.teachers.backends import Reply, Request

if TYPE_CHECKING:
    from bcs_lab.corpus import Corpus


class SimulatedBackend:
    """A simulated teacher. Its words go the way of real ones: recorded, then parsed.

    Args:
        corpus: one whose teachers are simulated.
        teacher: which of them.

    Raises:
        ConfigError: the corpus has real pairs, or no simulated teacher of that name.
    """

    def __init__(self, corpus: Corpus, teacher: str) -> None:
        if not corpus.simulated_teachers:
            raise ConfigError(
                f"backend=simulated: the right answers about the corpus {corpus.name!r} are not known, so none can be "
                "simulated; expected corpus=demo or corpus=simulated, or a backend that asks a model "
                "(backend=openai, backend=transformers)."
            )
        if teacher not in corpus.teachers:
            raise ConfigError(
                f"backend=simulated: no simulated teacher called {teacher!r}; expected teacher= one of "
                f"{', '.join(corpus.teachers)}."
            )
        column = corpus.teachers.index(teacher)
        self._answers = corpus.answers[:, column]
        self._rationales = corpus.rationales[:, column]
        self._rows = {pair_id: row for row, pair_id in enumerate(corpus.pairs["pair_id"])}
        self._columns = {question: i for i, question in enumerate(corpus.protocol.ids)}
        self._labels = {value: label for label, value in corpus.protocol.levels.items()}
        self.identity: dict[str, Any] = {"backend": "simulated", "teacher": teacher}

    def answer(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        """See :class:`bcs_lab.teachers.backends.Backend`; an answer that cannot be known is absent."""
        for request in requests:
            row = self._rows[request.pair_id]
            reply = {}
            for question in request.prompt.questions:
                column = self._columns.get(question)
                if column is None:
                    continue
                value = float(self._answers[row, column])
                if value == value:
                    reply[question] = {"rationale": self._rationales[row, column], "answer": self._labels[value]}
            text = json.dumps(reply, ensure_ascii=False)
            yield request, Reply(text, finish="stop", calls=0, image_encodes=0, details={"simulated": True})

    def close(self) -> None:
        """Nothing to let go of."""
