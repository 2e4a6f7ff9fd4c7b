"""Run a task under Hydra: run folders, job records, sweeps that go on after a failure, one clear message an error.

Every job folder holds ``run.json``: its state (``running``, ``finished``, ``failed`` or ``interrupted``), overrides,
error and times. A sweep that is started again in the same folder keeps its finished jobs.
"""

from __future__ import annotations

import errno
import gc
import hashlib
import importlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import hydra
from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bcs_lab import __version__
from bcs_lab.catalogue import CORPUS_KEYS, PATHS, Task, choices, config_dir
from bcs_lab.errors import BCSError, ConfigError, RunError
from bcs_lab.files import read_json, write_json

log = logging.getLogger(__name__)

RECORD = "run.json"
#: Settings that do not change a result, so that a finished job is recognised whatever they are.
_IRRELEVANT = ("force", "logger", "store", "workers")
#: Settings that name input files or folders, beside those of the corpus.
INPUTS = ("model", "reference", "reconstruction", "run", "scores", "study", "ratings", "captions")
_DISK_ERRORS = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ENAMETOOLONG),
}

# What happened in this process; Hydra itself returns nothing to the caller of a main function.
_failure: Exception | None = None
_sweep_dir: Path | None = None
_sweep_failed = False
_status = 0


def launch(task: Task, overrides: Sequence[str]) -> int:
    """Run a task with Hydra overrides and return its exit status.

    Returns:
        0 done; 1 a part failed (a job of a sweep, some pairs of a scoring), or an unexpected error; 2 bad input; 130
        interrupted.
    """
    if task.config is None:
        return _guarded(lambda: importlib.import_module(task.module).run(list(overrides)))
    # Two commands can start in the same second: the suffix keeps their folders apart.
    os.environ["BCS_RUN_ID"] = f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(3)}"
    # Threads that spin while they wait bring a shared machine to a halt: two runs at once on two cores took 60 times
    # as long to embed. Read by OpenMP when torch is imported, so it has to be set by now.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Errors are reported here, not by Hydra.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    return _guarded(lambda: _hydra(task, list(overrides)))


def _hydra(task: Task, overrides: list[str]) -> int:
    global _failure, _sweep_dir, _sweep_failed, _status
    _failure, _sweep_dir, _sweep_failed, _status = None, None, False, 0
    _check_no_secret(overrides)
    _check_choices(overrides)
    overrides = [quoted(override, sweep=bool({"-m", "--multirun"} & set(overrides))) for override in overrides]

    def job(cfg: DictConfig) -> None:
        run_job(cfg, task.module)

    sys.argv = [f"bcs {task.name}", *overrides]
    try:
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=task.config)(job)()
    finally:
        _close_log_files()
    if _failure is not None:
        raise _failure
    return 1 if _sweep_failed else _status


def _check_no_secret(overrides: Sequence[str]) -> None:
    """Refuse a key or password before Hydra writes all settings down."""
    for override in overrides:
        key, equals, value = override.partition("=")
        name = key.lstrip("+~").rpartition(".")[2].lower()
        if equals and name in ("api_key", "apikey", "token", "password") and value not in ("", "null"):
            raise ConfigError(
                f"{key}: secrets are no settings, since settings are written down; put it into an environment variable "
                "(backend.api_key_env names it)."
            )


def _check_choices(overrides: Sequence[str]) -> None:
    """Refuse a number where the name of an option is expected, for which Hydra has no error of its own."""
    for override in overrides:
        key, _, value = override.partition("=")
        if re.fullmatch(r"[a-z]+", key) and re.fullmatch(r"-?[\d.]+", value) and (config_dir() / key).is_dir():
            hint = f" Did you mean {key}s={value}?" if key == "teacher" else ""
            raise ConfigError(f"{override}: no such {key}.{hint} Choices: {', '.join(choices(key))}.")


def _close_log_files() -> None:
    """Let go of the run's log, whose folder may be moved or removed while this process goes on."""
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if type(handler) is logging.FileHandler]:
        root.removeHandler(handler)
        handler.close()


def quoted(override: str, *, sweep: bool = False) -> str:
    """An override as Hydra takes it: paths quoted where they hold characters of its grammar, options as new keys.

    Args:
        override: ``key=value`` as typed.
        sweep: whether commas separate values, so that they are left alone.

    >>> quoted("reference=Käse.png"), quoted("encoder.options.siglip.source=/x")
    ("reference='Käse.png'", '++encoder.options.siglip.source=/x')
    >>> quoted("reference=my cat (1).png"), quoted("model=runs/a"), quoted("out='x y'"), quoted("encoder=siglip")
    ("reference='my cat (1).png'", 'model=runs/a', "out='x y'", 'encoder=siglip')
    """
    key, equals, value = override.partition("=")
    if key.startswith("encoder.options"):
        return f"++{override}"  # which encoders have options is not known beforehand
    # Hydra's grammar knows no letters beyond ASCII.
    plain = re.fullmatch(r"[\w./@:%~+-]*" if not sweep else r"[\w./@:%~+,-]*", value, flags=re.ASCII)
    if not equals or key not in PATHS or plain or value[0] in "'\"$[":
        return override
    if sweep and "," in value:
        return override
    # Hydra reads a backslash literally, except before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + (found[2] and "\\'"), value)
    return f"{key}='{escaped}'"


def _guarded(action: Callable[[], int | None]) -> int:
    """Turn what can go wrong into one message on stderr and an exit status."""
    previous = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, _interrupt)
    except ValueError:  # not the main thread: whoever runs us handles signals
        previous = None
    try:
        return int(action() or 0)
    except BCSError as error:
        return _say(str(error), 2)
    except MissingConfigException as error:
        return _say(_missing_option(error), 2)
    except (HydraException, OmegaConfBaseException) as error:
        return _say(_hydra_message(error), 2)
    except BrokenPipeError:
        # Whoever read our output (`| head`) has had enough.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 (the interpreter flushes it at exit)
        return 141
    except KeyboardInterrupt:
        if _sweep_dir is not None:
            print(job_table(_sweep_dir), file=sys.stderr)
            print(f"To go on and keep the finished jobs, add: hydra.sweep.dir={_sweep_dir}", file=sys.stderr)
        return _say("interrupted", 130)
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        return _say(
            f"cannot use {error.filename or 'a file'}: {error.strerror}. Run folders go below `runs/` in the current "
            "folder; choose another with hydra.run.dir=DIR (hydra.sweep.dir=DIR under -m).",
            2,
        )
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(message: str, status: int) -> int:
    print(f"bcs: {message}", file=sys.stderr)
    return status


def _hydra_message(error: Exception) -> str:
    """Hydra's words on one line, with the override and the cause it leaves out."""
    text = " ".join(line for line in str(error).splitlines() if line.strip() and "https://" not in line)
    key = re.search(r"Could not override 'corpus\.(\w+)'", text)
    kinds = [kind for kind, keys in CORPUS_KEYS.items() if key is not None and key.group(1) in keys]
    if key is not None and kinds:
        return f"corpus.{key.group(1)} is a setting of {' and '.join(f'corpus={kind}' for kind in kinds)} only"
    override = getattr(error, "override", None)
    if override and override not in text:
        text = f"cannot read {override!r}: {text}"
    cause = error.__cause__
    return text if cause is None or str(cause).strip() in str(error) else f"{text} ({cause})"


def _missing_option(error: MissingConfigException) -> str:
    from difflib import get_close_matches

    missing = error.missing_cfg_file
    if missing is None or "/" not in missing:
        return str(error).strip()
    group, name = missing.rsplit("/", 1)
    options = choices(group)
    near = get_close_matches(name, options, n=1)
    hint = f" Did you mean {group}={near[0]}?" if near else ""
    return f"{group}={name}: no such {group}.{hint} Choices: {', '.join(options)}."


# ---------------------------------------------------------------------------------------------------------------- jobs


def run_job(cfg: DictConfig, module: str) -> None:
    """Run one job in its Hydra folder and keep its record.

    A failing job of a sweep is recorded and the sweep goes on; the failure of a single run is reported at the end of
    the command.
    """
    global _failure
    hydra_config = HydraConfig.get()
    out = Path(hydra_config.runtime.output_dir).resolve()
    start = Path(hydra_config.runtime.cwd)
    try:
        if hydra_config.mode == RunMode.RUN and hydra_config.sweeper.get("params"):
            raise ConfigError(
                f"experiment={hydra_config.runtime.choices.get('experiment')} is a sweep over "
                f"{', '.join(hydra_config.sweeper.params)}: add -m"
            )
        transient = _record_and_run(cfg, module, out, start, list(hydra_config.overrides.task))
        if transient and not any(item.startswith("hydra.run.dir=") for item in hydra_config.overrides.hydra):
            _remove(out)
    except Exception as error:
        if hydra_config.mode == RunMode.MULTIRUN:
            message = str(error) if isinstance(error, (BCSError, OmegaConfBaseException)) else traceback.format_exc()
            log.error("job %s failed: %s", hydra_config.job.num, message)
        else:
            _failure = error
    finally:
        gc.collect()  # trainers and their weights refer to each other; a sweep should not hold those of earlier jobs


def _remove(out: Path) -> None:
    """Take away the folder of a run that leaves nothing behind, and the folders above it if they are empty."""
    shutil.rmtree(out, ignore_errors=True)
    with suppress(OSError):
        for parent in list(out.parents)[:2]:
            parent.rmdir()


def _record_and_run(cfg: DictConfig, module: str, out: Path, start: Path, overrides: list[str]) -> bool:
    """Run and keep the record; returns whether the task said that its folder need not stay (``transient``)."""
    global _status
    values = resolve(cfg)
    digest = config_digest(values)
    data = data_digest(values, start)
    with only_run_in(out):
        earlier = read_record(out)
        if earlier.get("state") == "finished" and not values.get("force"):
            if earlier.get("config") != digest:
                raise RunError(
                    f"{out} already holds a finished run with other settings. Choose another folder "
                    "(hydra.run.dir=DIR, hydra.sweep.dir=DIR under -m) or add force=true to replace it."
                )
            out_file = values.get("out")
            lost = bool(out_file) and not (start / Path(str(out_file)).expanduser()).exists()
            left = bool(earlier.get("exit_status"))
            if earlier.get("data") == data and not lost and not left:
                log.info("already finished, kept: %s (force=true runs it again)", out)
                return False
            why = f"{out_file} is no longer there" if lost else "the input has changed"
            log.warning("%s since %s finished; it is run again", "a part was left" if left else why, out)
        record: dict[str, Any] = {
            "task": module.rsplit(".", 1)[-1],
            "state": "running",
            "overrides": overrides,
            "error": None,
            "config": digest,
            "data": data,
            "bcs_lab": __version__,
            "start": str(start),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": None,
        }
        write_json(out / RECORD, record)
        started = time.monotonic()
        try:
            facts = dict(importlib.import_module(module).run(values, out, start) or {})
            transient = bool(facts.pop("transient", False))
            _status = max(_status, int(facts.get("exit_status", 0)))
            record.update(facts, state="finished")
        except KeyboardInterrupt:
            record.update(state="interrupted", error="interrupted")
            raise
        except Exception as error:
            record.update(state="failed", error=f"{type(error).__name__}: {error}")
            raise
        finally:
            record["seconds"] = round(time.monotonic() - started, 3)
            write_json(out / RECORD, record)
    return transient


def resolve(cfg: DictConfig) -> dict[str, Any]:
    """A composed config as plain containers.

    Raises:
        ConfigError: naming every key that still needs a value.
    """
    missing = sorted(_unset(OmegaConf.to_container(cfg, resolve=False)))
    if missing:
        raise ConfigError("these settings need a value: " + ", ".join(f"{key}=…" for key in missing))
    values = OmegaConf.to_container(cfg, resolve=True)
    if not isinstance(values, dict):
        raise ConfigError(f"expected a mapping of settings, got {type(values).__name__}")
    return {str(key): value for key, value in values.items() if key != "hydra"}


def _unset(value: Any, key: str = "") -> Iterator[str]:
    """Dotted keys that hold ``???``, leaving out Hydra's own."""
    if value == "???":
        yield key
    elif isinstance(value, dict):
        for name, item in value.items():
            if key or name != "hydra":
                yield from _unset(item, f"{key}.{name}" if key else str(name))


def config_digest(values: Mapping[str, Any]) -> str:
    """Digest of the settings that decide a result."""
    relevant = {key: value for key, value in values.items() if key not in _IRRELEVANT}
    return hashlib.sha256(json.dumps(relevant, sort_keys=True, default=str).encode()).hexdigest()


def data_digest(values: Mapping[str, Any], start: Path) -> str | None:
    """Digest of names, sizes and times of all input files, so that changed input is not taken for the same.

    ``None`` for a corpus that ships with the package or is made from its settings.
    """
    corpus = values.get("corpus") or {}
    inputs = [
        corpus.get("root") or corpus.get("images"),
        corpus.get("annotations"),
        *(values.get(key) for key in INPUTS),
    ]
    roots = [start / Path(str(item)).expanduser() for item in inputs if item]
    if not roots:
        return None
    lines = []
    for root in roots:
        if (root / "ensemble").is_dir():  # a run given as a model: a page written beside it changes nothing
            root = root / "ensemble"
        files = (Path(parent, name) for parent, _, names in os.walk(root) for name in names)
        for path in [root] if root.is_file() else files:
            with suppress(OSError):
                status = path.stat()
                lines.append(f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a job folder; empty when there is none or it is damaged."""
    try:
        value = read_json(folder / RECORD)
    except (OSError, RunError):
        return {}
    return value if isinstance(value, dict) else {}


@contextmanager
def only_run_in(folder: Path) -> Iterator[None]:
    """Refuse a second run in a folder where one is going on.

    Raises:
        RunError: another process holds the folder.
    """
    lock = FileLock(str(folder / ".run.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunError(f"another run is going on in {folder}; choose another folder") from None
    try:
        yield
    finally:
        lock.release()


# -------------------------------------------------------------------------------------------------------------- sweeps


class SweepEnd(Callback):
    """At the end of a multirun: one line a job, and for training one comparison of the finished runs."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Remember the folder, so that an interrupted sweep can say how to go on."""
        global _sweep_dir
        _sweep_dir = Path(str(config.hydra.sweep.dir)).resolve()

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Report every job, compare the finished ones, and remember whether one failed."""
        global _sweep_failed
        folder = Path(str(config.hydra.sweep.dir)).resolve()
        records = job_records(folder)
        failed = [number for number, record in records.items() if record.get("state") != "finished"]
        _sweep_failed = bool(failed)
        if failed:
            print(job_table(folder))
            print(f"To run only what is missing, start the same command with: hydra.sweep.dir={folder}")
        if any(record.get("task") == "train" and record.get("state") == "finished" for record in records.values()):
            from bcs_lab.report.compare import compare

            print(compare([folder], folder))


def job_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Records of the jobs of a sweep, in job order."""
    jobs = [path.parent for path in folder.glob(f"*/{RECORD}")]
    jobs.sort(key=lambda path: (not path.name.isdigit(), int(path.name) if path.name.isdigit() else 0, path.name))
    return {path.name: read_record(path) for path in jobs}


def job_table(folder: Path) -> str:
    """One line a job: number, state, overrides, error."""
    lines = [f"Jobs in {folder}:"]
    for number, record in job_records(folder).items():
        overrides = " ".join(record.get("overrides", []))
        lines.append(f"  {number:>3}  {record.get('state', '?'):<11}  {overrides}")
        if record.get("error"):
            first, *rest = str(record["error"]).splitlines()
            lines.append(f"       {first}{' …' if rest else ''}")
    return "\n".join(lines)
