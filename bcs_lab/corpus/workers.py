"""Spread many small jobs over processes, with results in the order of the jobs.

The workers are plain interpreters that read jobs from a pipe. Unlike :mod:`multiprocessing` this needs no
``if __name__ == "__main__"`` in the caller's script, forks no process that may hold locks of other threads, and leaves
nothing behind when the caller is killed: a worker whose pipe closes ends.
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from bcs_lab.errors import RunError

logger = logging.getLogger(__name__)

#: Starting a worker takes about a second; fewer jobs than this a worker are not worth it.
JOBS_A_WORKER = 400
#: Jobs handed over at once.
CHUNK = 16

Job = TypeVar("Job")
Result = TypeVar("Result")


def map_jobs(
    work: Callable[[Job], Result], jobs: Sequence[Job], *, label: str, unit: str, workers: int | None = None
) -> list[Result]:
    """``[work(job) for job in jobs]``, by several processes where that pays.

    Args:
        work: a function of a module, with picklable arguments and results.
        jobs: its arguments.
        label: what is going on, for the progress bar and the log.
        unit: what a job makes, in the singular.
        workers: number of processes; by default one a core, at most 8, and only as many as pay.

    Raises:
        RunError: a worker ended without an answer, for instance killed for memory.
        Exception: whatever ``work`` raises.
    """
    from tqdm import tqdm

    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        workers = min(cores, 8, len(jobs) // JOBS_A_WORKER)
    show = sys.stderr.isatty()
    if not show:
        logger.info("%s: %d %ss", label, len(jobs), unit)
    started = time.monotonic()
    chunks = [jobs[i : i + CHUNK] for i in range(0, len(jobs), CHUNK)]
    results: list[Result] = []
    with tqdm(total=len(jobs), desc=label, unit=unit, disable=not show) as bar:
        for done in _in_processes(work, chunks, workers) if workers > 1 else _here(work, chunks):
            results += done
            bar.update(len(done))
    seconds = time.monotonic() - started
    logger.info("%s: %d %ss in %.1f s (%.0f/s)", label, len(jobs), unit, seconds, len(jobs) / max(seconds, 1e-9))
    return results


def _here(work: Callable[[Job], Result], chunks: Sequence[Sequence[Job]]) -> Iterator[list[Result]]:
    for chunk in chunks:
        yield [work(job) for job in chunk]


def _in_processes(work: Callable[[Job], Result], chunks: Sequence[Sequence[Job]], n: int) -> Iterator[list[Result]]:
    # Each thread talks to the worker that is free; the order of results is that of the chunks.
    with _workers(work.__module__, work.__qualname__, n) as free, ThreadPoolExecutor(n) as pool:

        def ask(chunk: Sequence[Job]) -> list[Result]:
            process = free.pop()
            try:
                return _ask(process, chunk)
            finally:
                free.append(process)

        try:
            yield from pool.map(ask, chunks)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _ask(process: subprocess.Popen[bytes], chunk: Sequence[Any]) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(list(chunk), process.stdin)
        process.stdin.flush()
        failed, value = pickle.load(process.stdout)
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        raise RunError(
            f"A worker process ended without an answer (exit status {process.wait()}); was it killed for memory?"
        ) from error
    if failed:
        raise value
    return value


@contextmanager
def _workers(module: str, function: str, n: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(dict.fromkeys([root, *filter(None, sys.path)]))  # whatever this process can import
    # One thread each: the workers themselves fill the cores.
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", f"from {__name__} import serve; serve({module!r}, {function!r})"]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) for _ in range(n)
    ]
    try:
        yield list(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    _close(pipe)


def _close(pipe: IO[bytes]) -> None:
    try:
        pipe.close()
    except OSError:
        logger.debug("the pipe of a worker was closed already")


def serve(module: str, function: str) -> None:
    """Answer chunks of jobs from standard input until it closes; what a worker process runs."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr  # whatever prints must not spoil the answers
    work = getattr(importlib.import_module(module), function)
    while True:
        try:
            chunk = pickle.load(source)
        except (EOFError, KeyboardInterrupt):
            return
        try:
            answer: tuple[bool, Any] = (False, [work(job) for job in chunk])
        except KeyboardInterrupt:
            return
        except Exception as error:
            answer = (True, error)
        pickle.dump(answer, sink)
        sink.flush()
