"""How far an annotation is: a bar on a terminal, else a line every so often."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Any

from bcs_lab.teachers.backends import Reply

log = logging.getLogger(__name__)


def cost(price: tuple[float | None, float | None], prompt: int | None, completion: int | None) -> float | None:
    """What tokens cost at a price a million; ``None`` where no price or no count is known."""
    parts = [
        at * n / 1e6 for at, n in zip(price, (prompt, completion), strict=True) if at is not None and n is not None
    ]
    return sum(parts) if parts else None


def tokens(count: int) -> str:
    """A number of tokens with three digits, such as ``1.23 M``."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)


def duration(seconds: float) -> str:
    """Such as ``45 s``, ``12 min`` or ``3.4 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Progress:
    """Counts replies and says so.

    Args:
        label: what is going on.
        total: replies to come.
        price: of a million prompt and completion tokens.
        log_every: seconds between two lines where there is no terminal.
    """

    def __init__(
        self, label: str, total: int, price: tuple[float | None, float | None] = (None, None), log_every: float = 30.0
    ) -> None:
        self.label, self.total, self.price, self.log_every = label, total, price, log_every
        self.done = self.valid = self.failed = 0
        self.prompt: int | None = None
        self.completion: int | None = None
        self._started = self._said = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        """Show the bar, or the first line."""
        if sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(total=self.total, desc=self.label, unit="reply", dynamic_ncols=True)
        else:
            log.info("%s: %d to ask", self.label, self.total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the bar, or say the last line."""
        if self._bar is not None:
            self._bar.close()
        elif self.done:
            log.info("%s", self.line())

    def update(self, reply: Reply, *, valid: bool) -> None:
        """Count one reply."""
        self.done += 1
        self.valid += valid
        self.failed += reply.text is None
        if reply.prompt_tokens is not None:
            self.prompt = (self.prompt or 0) + reply.prompt_tokens
        if reply.completion_tokens is not None:
            self.completion = (self.completion or 0) + reply.completion_tokens
        if self._bar is not None:
            self._bar.total = max(self.total, self.done)
            self._bar.set_postfix_str(", ".join(self._facts()), refresh=False)
            self._bar.update()
        elif time.monotonic() - self._said >= self.log_every:
            self._said = time.monotonic()
            log.info("%s", self.line())

    def line(self) -> str:
        """Rate, remaining time, share of valid replies, tokens and cost."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        rate = self.done / seconds
        left = max(self.total - self.done, 0)
        parts = [f"{self.done:,} of {max(self.total, self.done):,}", f"{rate:.3g}/s"]
        parts.append(f"{duration(left / rate)} left" if left and rate else f"in {duration(seconds)}")
        return f"{self.label}: " + ", ".join([*parts, *self._facts()])

    def _facts(self) -> list[str]:
        said = [f"{self.valid / self.done:.1%} valid"] if self.done else []
        if self.failed:
            said.append(f"{self.failed} without a reply")
        if self.prompt is not None or self.completion is not None:
            said.append(f"{tokens(self.prompt or 0)} + {tokens(self.completion or 0)} tokens")
        spent = cost(self.price, self.prompt, self.completion)
        if spent is not None and self.done:
            said.append(f"cost {spent:.2f} of about {spent * max(self.total, self.done) / self.done:.2f}")
        return said
