"""Weights & Biases as a mirror of a run: one W&B run a job, curves a member, the test table, the figures.

The files in the run folder are the record. W&B stays offline unless the user has logged in, writes below the run
folder, and is always finished, also after a failure.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bcs_lab.config import LoggerConfig
from bcs_lab.errors import RunError

if TYPE_CHECKING:
    from pytorch_lightning.loggers import Logger

log = logging.getLogger(__name__)


class Tracker:
    """What a task tells the mirror; this base class has no mirror."""

    def member_logger(self, seed: int) -> Logger | None:
        """A Lightning logger for the curves of one ensemble member."""
        return None

    def note(self, facts: Mapping[str, Any]) -> None:
        """Facts that the settings do not hold, such as the encoders really used; part of the run's config."""

    def results(self, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], figures: Sequence[Path]) -> None:
        """The test table (one mapping a row), the headline numbers, and figures as PNG files."""


class CSVTracker(Tracker):
    """Lightning's CSV logger, one folder a member."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def member_logger(self, seed: int) -> Logger:
        """Writes ``curves/seed-<seed>/metrics.csv``."""
        from pytorch_lightning.loggers import CSVLogger

        return CSVLogger(save_dir=str(self.folder), name="curves", version=f"seed-{seed}")


class WandbTracker(Tracker):
    """One open W&B run."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def member_logger(self, seed: int) -> Logger:
        """Logs into the job's run under ``seed-<seed>-…``, each member against its own epochs."""
        from pytorch_lightning.loggers import WandbLogger

        return WandbLogger(experiment=self.run, prefix=f"seed-{seed}")

    def note(self, facts: Mapping[str, Any]) -> None:
        """Added to the W&B config under ``used``; encoders, stand-ins and simulated teachers are tags too."""
        self.run.config.update({"used": dict(facts)})
        kinds = [key.replace("_", "-") for key in ("stand_in", "simulated_teachers") if facts.get(key)]
        self.run.tags = tuple(dict.fromkeys([*self.run.tags, *(_tag(name) for name in facts["encoders"]), *kinds]))

    def results(self, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], figures: Sequence[Path]) -> None:
        """Logs a table, summary values and images; an undefined number is left out of the summary."""
        import wandb

        columns: list[str | int] = list(rows[0])
        table = wandb.Table(columns=columns, data=[[row.get(str(column)) for column in columns] for row in rows])
        self.run.log({"test/table": table, **{f"figures/{path.stem}": wandb.Image(str(path)) for path in figures}})
        self.run.summary.update({f"test/{key}": value for key, value in summary.items() if value is not None})


@contextmanager
def tracking(
    config: LoggerConfig,
    folder: Path,
    *,
    settings: Mapping[str, Any],
    tags: Sequence[str],
    group: str | None,
    name: str,
) -> Iterator[Tracker]:
    """Open the mirror of one job.

    Args:
        config: which logger, and how W&B runs.
        folder: the job's folder; everything is written below it.
        settings: the resolved config, plain containers.
        tags: W&B tags (encoder, teachers, head); :meth:`Tracker.note` adds the encoders really used.
        group: W&B group, the sweep; ``None`` for a single run.
        name: name of the run.

    Raises:
        RunError: a W&B run is already open in this process.
    """
    if config.name == "none":
        yield Tracker()
        return
    if config.name == "csv":
        yield CSVTracker(folder)
        return

    import wandb

    if wandb.run is not None:
        raise RunError("a W&B run is already open in this process; finish it first (wandb.finish())")
    mode = _wandb_mode(config.mode)
    if mode != "online":
        log.info("W&B: %s, files in %s", mode, folder / "wandb")
    # "wandb" beside the other files of the job; W&B adds that folder itself.
    run = wandb.init(
        project=config.project,
        entity=config.entity,
        dir=str(folder),
        config=dict(settings),
        tags=[_tag(tag) for tag in tags],
        group=group,
        name=name,
        mode=mode,
        settings=wandb.Settings(silent=True, console="off", disable_git=True),
    )
    failed = True
    try:
        yield WandbTracker(run)
        failed = False
    finally:
        run.finish(exit_code=int(failed))


def _tag(text: str) -> str:
    """W&B takes tags of 1 to 64 characters."""
    return text[:64] or "-"


def _wandb_mode(asked: str) -> Any:
    """``auto`` is online for a user who has logged in, else offline; WANDB_MODE has the last word, as users expect."""
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"]
    if asked != "auto":
        return asked
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    return "online" if _stored_key() else "offline"


def _stored_key() -> bool:
    """Whether ``wandb login`` left a key in the netrc file."""
    import netrc

    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc.netrc(str(path)).authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False
