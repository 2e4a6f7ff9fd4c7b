"""What has been answered, what is still to be asked, and which of several replies counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bcs_lab.errors import Problem
from bcs_lab.teachers.parse import ParsedResponse, parse_response
from bcs_lab.teachers.protocol import Protocol
from bcs_lab.teachers.records import END, HEADER, lines

#: More tries than any budget allows: another try in the same run would end alike.
_ENOUGH = 2**20


@dataclass
class Totals:
    """Sums over recorded replies.

    Attributes:
        replies: texts of the model.
        errors: requests without a text.
        calls: model calls, repeated ones included.
        image_encodes: images the model had to encode.
        prompt_tokens: tokens read, as far as known.
        completion_tokens: tokens written, as far as known.
        seconds: sum of the latencies.
        finish: how often the model stopped for which reason.
    """

    replies: int = 0
    errors: int = 0
    calls: int = 0
    image_encodes: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float = 0.0
    finish: Counter[str] = field(default_factory=Counter)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add one reply record."""
        self.replies += record["text"] is not None
        self.errors += record["text"] is None
        self.calls += int(record.get("calls") or 0)
        self.image_encodes += int(record.get("image_encodes") or 0)
        self.seconds += float(record.get("latency_s") or 0.0)
        for key in ("prompt_tokens", "completion_tokens"):
            if record.get(key) is not None:
                setattr(self, key, (getattr(self, key) or 0) + int(record[key]))
        if record["text"] is not None:
            self.finish[str(record.get("finish"))] += 1


class Ledger:
    """The state of a raw file, without its texts: one cell a pair and prompt.

    Of several replies to one prompt about one pair the first valid one counts; without one, the first of those with the
    most answers. Attempts are counted within a run, which may be killed and started any number of times, so that the
    outcome does not depend on the kills.

    Args:
        pair_ids: of the corpus, in its order.
        prompts: digest and questions of each prompt.
        protocol: the questions.

    Attributes:
        offset: int64 ``[n_pairs, n_prompts]``, where the reply that counts begins in the raw file; -1 for none.
        answered: int16, likewise, how many questions it answers; -1 for no reply.
        attempts: int32, likewise, replies and final errors so far.
        tries: int32, likewise, those of the current run.
        failed: bool, likewise, the last request ended without a text.
        error: the last error of such a cell.
        images: digest of the two images a pair was shown with, by row.
        strangers: pair ids of the file that the corpus does not have.
        damaged: lines that cannot be used.
        totals: sums over the file.
        open: whether the current run has not come to its end.
    """

    def __init__(
        self, pair_ids: Sequence[str], prompts: Sequence[tuple[str, Sequence[str]]], protocol: Protocol
    ) -> None:
        shape = (len(pair_ids), len(prompts))
        self.pair_ids = list(pair_ids)
        self.prompts = [(digest, tuple(questions)) for digest, questions in prompts]
        self.protocol = protocol
        self.rows = {pair_id: row for row, pair_id in enumerate(pair_ids)}
        self.columns = {digest: column for column, (digest, _) in enumerate(prompts)}
        self.wanted = np.array([len(questions) for _, questions in prompts], dtype=np.int16)
        self.offset = np.full(shape, -1, dtype=np.int64)
        self.answered = np.full(shape, -1, dtype=np.int16)
        self.attempts = np.zeros(shape, dtype=np.int32)
        self.tries = np.zeros(shape, dtype=np.int32)
        self.failed = np.zeros(shape, dtype=bool)
        self.error: dict[tuple[int, int], str] = {}
        self.images: dict[int, str] = {}
        self.strangers: set[str] = set()
        self.damaged: list[Problem] = []
        self.totals = Totals()
        self.open = True

    def read(self, path: Path) -> None:
        """Take in a whole raw file."""
        for line in lines(path):
            if line.record is None:
                self.damaged.append(Problem(str(path), line.number, line.damage))
            elif line.record["kind"] == END:
                self.tries[:] = 0
                self.open = False
            elif line.record["kind"] == HEADER:
                if line.number > 1:
                    self.damaged.append(Problem(str(path), line.number, "a second header"))
            elif line.record["prompt"] not in self.columns:
                self.damaged.append(
                    Problem(str(path), line.number, "a reply to a prompt that the header does not name")
                )
            else:
                self.add(line.record, line.offset)

    def add(self, record: Mapping[str, Any], offset: int) -> bool:
        """Take in one reply record, written at ``offset``; returns whether it answers everything it was asked."""
        self.totals.add(record)
        self.open = True
        row = self.rows.get(record["pair_id"])
        if row is None:
            self.strangers.add(record["pair_id"])
            return False
        column = self.columns[record["prompt"]]
        self.images[row] = record["images"]
        if record["text"] is None:
            self.failed[row, column] = True
            self.error[row, column] = str(record.get("error"))
            if not record.get("retriable"):
                self.attempts[row, column] += 1
                self.tries[row, column] = _ENOUGH
            return False
        self.failed[row, column] = False
        self.error.pop((row, column), None)
        self.attempts[row, column] += 1
        self.tries[row, column] += 1
        parsed = self.parse(record, column)
        count = len(parsed.answers) - len(parsed.missing)
        if count > self.answered[row, column]:
            self.answered[row, column], self.offset[row, column] = count, offset
        return parsed.valid

    def parse(self, record: Mapping[str, Any], column: int) -> ParsedResponse:
        """What a reply says about the questions of its prompt."""
        return parse_response(record["text"], self.protocol, self.prompts[column][1])

    @property
    def complete(self) -> np.ndarray:
        """bool ``[n_pairs, n_prompts]``: every question of the prompt is answered."""
        return self.answered >= self.wanted

    def todo(self, budget: int, order: Sequence[int]) -> list[tuple[int, int]]:
        """Cells to ask in this run, as row and column.

        Args:
            budget: tries a cell has in one run.
            order: rows, as they are to be asked; those that never failed come first.
        """
        ask = ~self.complete & (self.tries < budget)
        rows = np.asarray(order, dtype=np.int64)
        stale = np.any(self.failed | (self.attempts > 0), axis=1)[rows]
        ordered = np.concatenate([rows[~stale], rows[stale]])
        return [(int(row), int(column)) for row in ordered for column in np.flatnonzero(ask[row])]
