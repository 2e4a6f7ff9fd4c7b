"""Ask a teacher about every pair of a corpus, keep its raw replies, and parse them into annotations (Section 4.1).

::

    DIR/raw/<teacher>.jsonl           raw replies, see :mod:`bcs_lab.teachers.records`
    DIR/annotations/<teacher>.jsonl   what they say, in the schema of a corpus' annotations, in the order of the corpus
    DIR/<teacher>.json                the summary

The annotations follow from the raw replies alone and are written anew at the end of each run, so that neither the order
of arrival nor any number of kills leaves a trace in them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from bcs_lab.corpus import Corpus
from bcs_lab.corpus.images import check_image_file, file_sha256
from bcs_lab.errors import ImageError, Problem, RunError, TeacherError
from bcs_lab.files import replacing, write_text
from bcs_lab.teachers.backends import Backend, Reply, Request
from bcs_lab.teachers.ledger import Ledger
from bcs_lab.teachers.progress import Progress
from bcs_lab.teachers.prompts import Prompt, build_prompts
from bcs_lab.teachers.protocol import BCS12, PROTOCOL_FILE, Protocol, load_protocol, protocol_text, same_questions
from bcs_lab.teachers.records import REPLY, Header, RawFile, now, read_at, read_header

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """One teacher, one corpus, one folder.

    Attributes:
        corpus: the pairs, with images.
        protocol: the questions.
        folder: where everything goes.
        header: what is asked of whom; its ``backend`` is filled in once the backend is there.
        budget: how often a prompt is asked about a pair in one run before its reply stays invalid.
        overwrite: set earlier replies aside where they do not fit, rather than refuse.
        batch_size: of the summary; ``None`` where the backend has none.
        price: of a million prompt and completion tokens.
        log_every: seconds between two lines of progress.
    """

    corpus: Corpus
    protocol: Protocol
    folder: Path
    header: Header
    budget: int = 1
    overwrite: bool = False
    batch_size: int | None = None
    price: tuple[float | None, float | None] = (None, None)
    log_every: float = 30.0

    @property
    def raw(self) -> Path:
        """The file of raw replies."""
        return self.folder / "raw" / f"{self.header.teacher}.jsonl"

    @property
    def annotations(self) -> Path:
        """The file of annotations."""
        return self.folder / "annotations" / f"{self.header.teacher}.jsonl"

    @property
    def summary(self) -> Path:
        """The file of the summary."""
        return self.folder / f"{self.header.teacher}.json"


@dataclass
class Outcome:
    """What is known at the end of a run.

    Attributes:
        header: of the raw replies.
        ledger: their state.
        answers: float32 ``[n_pairs, n_questions]`` in the order of the corpus; NaN where missing.
        replied: bool ``[n_pairs]``, whether there is any reply.
        problems: broken images, by row.
        unfit: what is wrong with replies that do not answer everything, by row.
        asked: requests of this run that were answered or refused.
        stopped: why the run ended early, if it did.
    """

    header: Header
    ledger: Ledger
    answers: np.ndarray
    replied: np.ndarray
    problems: dict[int, Problem] = field(default_factory=dict)
    unfit: dict[int, str] = field(default_factory=dict)
    asked: int = 0
    stopped: str | None = None

    @property
    def valid(self) -> np.ndarray:
        """bool ``[n_pairs]``: every question is answered."""
        return ~np.isnan(self.answers).any(axis=1)


def annotate(job: Job, load: Callable[[], Backend], finish: Callable[[Outcome], object] = lambda _: None) -> Outcome:
    """Ask for what is missing, then write the annotations.

    Args:
        job: what to do.
        load: makes the backend; not called when nothing is to be asked.
        finish: writes whatever else is to be there before the run counts as over.

    Raises:
        RunError: the folder holds replies of another kind, or another process works there.
        TeacherError: nothing could be asked at all.
    """
    _check_folder(job)
    prompts = build_prompts(job.protocol, job.header.mode)
    with RawFile(job.raw) as raw:
        if raw.repaired:
            log.warning("%s: cut off an incomplete last record (a killed run); it is asked for again", raw.path)
        images = Images(job.corpus)
        header, ledger = _earlier(job, raw, prompts, images)
        run = _Run(job, raw, ledger, prompts, images)
        if header is None or ledger.todo(job.budget, run.order):
            backend = load()
            try:
                wanted = replace(job.header, backend=backend.identity)
                if header is not None and not _fits(job, raw, header, wanted):
                    header, run.ledger = None, _ledger(job, prompts)
                if header is None:
                    header = wanted
                    raw.append(header.record())
                run.ask(backend)
            except KeyboardInterrupt:
                log.warning(
                    "%s: %d replies of this run are kept; the same command goes on from there", raw.path, run.asked
                )
                raise
            finally:
                backend.close()
        outcome = write(job, header, run.ledger, raw.path)
        outcome.problems, outcome.asked, outcome.stopped = run.problems, run.asked, run.stopped
        finish(outcome)
        if run.stopped is None and run.ledger.open:
            # Last, so that a run killed before goes on as the same run and asks for nothing twice.
            raw.end(asked=run.asked, valid=int(outcome.valid.sum()))
    return outcome


# --- what is there already -------------------------------------------------------------------------------------------


class Images:
    """Digests of the images of pairs, each file read once."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._known: dict[Path, bytes] = {}

    def files(self, row: int) -> tuple[Path, Path]:
        """Reference and reconstruction."""
        return self._corpus.reference_file(row), self._corpus.reconstruction_file(row)

    def digest(self, row: int) -> str:
        """16 hex digits of the SHA-256 over the SHA-256 of both files.

        Raises:
            ImageError: a file cannot be read.
        """
        return hashlib.sha256(b"".join(self._of(path) for path in self.files(row))).hexdigest()[:16]

    def _of(self, path: Path) -> bytes:
        if path not in self._known:
            self._known[path] = file_sha256(path)
        return self._known[path]

    def changed(self, recorded: dict[int, str]) -> list[int]:
        """Rows whose images are not those recorded; files that cannot be read say nothing."""
        paths = list(dict.fromkeys(path for row in recorded for path in self.files(row)))
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            for path, value in zip(paths, pool.map(_sha256, paths), strict=True):
                if value is not None:
                    self._known[path] = value
        readable = [row for row in recorded if all(path in self._known for path in self.files(row))]
        return [row for row in readable if self.digest(row) != recorded[row]]


def _sha256(path: Path) -> bytes | None:
    try:
        return file_sha256(path)
    except ImageError:
        return None


def _ledger(job: Job, prompts: Sequence[Prompt]) -> Ledger:
    known = [(prompt.digest, prompt.questions) for prompt in prompts]
    return Ledger(job.corpus.pairs["pair_id"].tolist(), known, job.protocol)


def _earlier(job: Job, raw: RawFile, prompts: Sequence[Prompt], images: Images) -> tuple[Header | None, Ledger]:
    """The header and the state of earlier replies that fit; ``None`` and an empty state where there are none."""
    header = read_header(raw.path)
    if header is None:
        _check_free(job)
    elif _fits(job, raw, header, job.header):
        ledger = _ledger(job, prompts)
        ledger.read(raw.path)
        try:
            check_corpus(raw.path, ledger, images)
        except RunError as error:
            if not job.overwrite:
                raise RunError(
                    f"{error} Choose another folder with out=DIR, or set the earlier replies aside with overwrite=true."
                ) from None
            _set_aside(raw, "they are about other pairs")
        else:
            warn(job, ledger, raw.path)
            return header, ledger
    return None, _ledger(job, prompts)


def _fits(job: Job, raw: RawFile, header: Header, wanted: Header) -> bool:
    """Whether new replies may join those of ``header``.

    Raises:
        RunError: they may not, and may not be set aside either.
    """
    differences = wanted.differences(header)
    if not differences:
        return True
    if job.overwrite:
        _set_aside(raw, "; ".join(differences))
        return False
    found = "\n".join(f"  - {line}" for line in differences)
    raise RunError(
        f"{raw.path} holds replies to other settings:\n{found}\nReplies of two kinds are never mixed. Choose "
        "another folder with out=DIR, go back to those settings, or set the earlier replies aside with overwrite=true."
    )


def _set_aside(raw: RawFile, why: str) -> None:
    target = raw.set_aside()
    log.warning("%s: earlier replies set aside as %s (%s)", raw.path, target.name, why)


def check_corpus(path: Path, ledger: Ledger, images: Images) -> None:
    """Make sure that the replies are about these pairs; pairs that came or went since do no harm.

    Raises:
        RunError: a pair has other images now, or no pair is known.
    """
    changed = images.changed(ledger.images)
    if changed:
        names = ", ".join(repr(ledger.pair_ids[row]) for row in changed[:5])
        raise RunError(
            f"{path}: {len(changed)} of {len(ledger.images)} pairs had other images when they were asked about "
            f"({names}): this is another corpus, or its images have changed."
        )
    if ledger.strangers and not ledger.images:
        raise RunError(
            f"{path}: holds replies about {len(ledger.strangers)} pairs, none of which is in this corpus, such as "
            f"{', '.join(map(repr, sorted(ledger.strangers)[:3]))}."
        )


def _check_folder(job: Job) -> None:
    """Annotations of one folder answer the same questions.

    Raises:
        RunError: another teacher there was asked others.
    """
    scale = job.header.protocol["questions"], job.header.protocol["levels"]
    others = {path: read_header(path) for path in sorted(job.raw.parent.glob("*.jsonl")) if path != job.raw}
    found = [
        path for path, header in others.items()
        if header is not None and (header.protocol.get("questions"), header.protocol.get("levels")) != scale
    ]  # fmt: skip
    path = job.folder / PROTOCOL_FILE
    if path.exists() and not same_questions(load_protocol(path), job.protocol):
        found.insert(0, path)
    elif not path.exists() and not same_questions(BCS12, job.protocol):
        # Without that file, what is there answers the paper's questions.
        found = sorted(job.annotations.parent.glob("[!.]*"))
    if found:
        raise RunError(
            f"{found[0]}: other questions than those of the protocol {job.protocol.name!r}; all annotations of a "
            "folder answer the same ones. Choose another folder with out=DIR."
        )


def _check_free(job: Job) -> None:
    """Annotations that did not come from replies in this folder are not replaced.

    Raises:
        RunError: there are some.
    """
    table = job.annotations.with_suffix(".parquet")
    foreign = job.annotations if job.annotations.exists() and not job.summary.exists() else table
    if foreign.exists():
        raise RunError(
            f"{foreign}: answers of this teacher that were not made here, and would be replaced. Move the file away, "
            "or choose another folder with out=DIR."
        )


def warn(job: Job, ledger: Ledger, path: Path) -> None:
    """Say which lines of a raw file are of no use, and why."""
    for problem in ledger.damaged[:20]:
        log.warning("%s; the line is passed over, what it answered counts as missing", problem)
    if len(ledger.damaged) > 20:
        log.warning("%s: %d damaged lines in all", path, len(ledger.damaged))
    if ledger.strangers:
        log.warning(
            "%s: %d pairs that the corpus %s does not have (such as %r): their replies are kept there, and not used",
            path, len(ledger.strangers), job.corpus.name, min(ledger.strangers),
        )  # fmt: skip


# --- asking -----------------------------------------------------------------------------------------------------------


class _Run:
    """The asking of one run; rows are pairs, columns are prompts."""

    def __init__(self, job: Job, raw: RawFile, ledger: Ledger, prompts: Sequence[Prompt], images: Images) -> None:
        self.job, self.raw, self.ledger, self.prompts, self.images = job, raw, ledger, prompts, images
        paths = job.corpus.pairs["reference_path"].tolist()
        #: Pairs of one reference follow each other, so that a server finds it in its prefix cache.
        self.order = sorted(range(len(paths)), key=lambda row: (paths[row], row))
        self.problems: dict[int, Problem] = {}
        self.asked = 0
        self.stopped: str | None = None
        self._over: set[tuple[int, int]] = set()
        self._seen: set[tuple[int, int]] = set()

    def ask(self, backend: Backend) -> None:
        """Ask until every cell is answered or has had its tries.

        Raises:
            TeacherError: there was no reply at all.
        """
        protocol, job = self.job.protocol, self.job
        if protocol.digest != BCS12.digest and not (job.folder / PROTOCOL_FILE).exists():
            write_text(job.folder / PROTOCOL_FILE, protocol_text(protocol))
        cells = self._cells()
        label = f"{job.header.teacher} on {job.corpus.name}"
        with Progress(label, len(cells), job.price, job.log_every) as progress:
            try:
                while cells:
                    self._seen.clear()
                    for request, reply in backend.answer(self._requests(cells, progress)):
                        self._take(request, reply, progress)
                    # Nothing is asked for ever, whatever a backend leaves out.
                    self._over |= set(cells) - self._seen
                    cells = self._cells()
                    progress.total = progress.done + len(cells)
            except TeacherError as error:
                if progress.done == progress.failed:
                    raise
                self.stopped = str(error)

    def _cells(self) -> list[tuple[int, int]]:
        todo = self.ledger.todo(self.job.budget, self.order)
        return [cell for cell in todo if cell not in self._over and cell[0] not in self.problems]

    def _requests(self, cells: Sequence[tuple[int, int]], progress: Progress) -> Iterator[Request]:
        for row, column in cells:
            if row in self.problems:
                continue
            reference, reconstruction = self.images.files(row)
            try:
                self.images.digest(row)
            except ImageError as error:
                self._broken(row, str(error))
                continue
            attempt = int(self.ledger.attempts[row, column]) + 1
            yield Request(self.ledger.pair_ids[row], self.prompts[column], reference, reconstruction, attempt)

    def _take(self, request: Request, reply: Reply, progress: Progress) -> None:
        row, column = self.ledger.rows[request.pair_id], self.ledger.columns[request.prompt.digest]
        self._seen.add((row, column))
        if reply.text is None and not reply.retriable and (reason := self._image_problem(request)):
            self._broken(row, reason)
            progress.update(reply, valid=False)
            return
        record = self._record(request, reply, row)
        valid = self.ledger.add(record, self.raw.append(record))
        self.asked += 1
        if reply.text is None:
            self._over.add((row, column))
        progress.update(reply, valid=valid)

    def _record(self, request: Request, reply: Reply, row: int) -> dict[str, Any]:
        header, settings = self.job.header, self.job.header.settings
        return {
            "kind": REPLY,
            "pair_id": request.pair_id,
            "questions": list(request.prompt.questions),
            "prompt": request.prompt.digest,
            "protocol": header.protocol["digest"],
            "images": self.images.digest(row),
            "attempt": request.attempt,
            "model": settings.get("model"),
            "revision": settings.get("revision"),
            "settings": {key: value for key, value in settings.items() if key not in ("model", "revision")},
            "text": reply.text,
            "error": reply.error,
            "retriable": reply.retriable,
            "finish": reply.finish,
            "latency_s": round(reply.latency_s, 4),
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
            "calls": reply.calls,
            "image_encodes": reply.image_encodes,
            **{key: value for key, value in reply.details.items() if value is not None},
            "time": now(),
        }

    def _image_problem(self, request: Request) -> str | None:
        limit = self.job.corpus.max_image_pixels
        found = (
            check_image_file(path, max_pixels=limit, decode=True)
            for path in (request.reference, request.reconstruction)
        )
        return next((reason for reason in found if reason), None)

    def _broken(self, row: int, reason: str) -> None:
        if row not in self.problems:
            self.problems[row] = self.job.corpus.problem(row, reason)
            log.warning("%s", self.problems[row])


# --- what comes of it -------------------------------------------------------------------------------------------------


def write(job: Job, header: Header, ledger: Ledger, raw: Path) -> Outcome:
    """Write the annotations that follow from a raw file, in the order of the corpus.

    A pair has a record once there is any reply about it; what its replies do not answer is null.
    """
    protocol = job.protocol
    outcome = Outcome(
        header=header,
        ledger=ledger,
        answers=np.full((len(ledger.pair_ids), len(protocol.ids)), np.nan, dtype=np.float32),
        replied=np.any(ledger.offset >= 0, axis=1),
    )
    if not outcome.replied.any():
        return outcome
    labels = {score: label for label, score in protocol.levels.items()}
    with (
        raw.open("rb") as source,
        replacing(job.annotations) as temporary,
        temporary.open("w", encoding="utf-8") as out,
    ):
        for row in np.flatnonzero(outcome.replied).tolist():
            out.write(json.dumps(_annotation(source, row, outcome, labels), ensure_ascii=False) + "\n")
    return outcome


def _annotation(source: IO[bytes], row: int, outcome: Outcome, labels: dict[float, str]) -> dict[str, Any]:
    ledger, position = outcome.ledger, {question: i for i, question in enumerate(outcome.ledger.protocol.ids)}
    cells: dict[str, dict[str, Any]] = {question: {"answer": None} for question in position}
    wrong: list[str] = []
    for column, offset in enumerate(ledger.offset[row].tolist()):
        if offset < 0:
            continue
        record = read_at(source, offset)
        parsed = ledger.parse(record, column)
        for question, value in parsed.answers.items():
            if value is None:
                continue
            outcome.answers[row, position[question]] = value
            cells[question]["answer"] = labels[value]
            if parsed.rationales.get(question):
                cells[question]["reasoning"] = parsed.rationales[question]
        if not parsed.valid:
            cut = ["cut off at the token limit"] if record.get("finish") == "length" else []
            wrong += [*cut, *parsed.problems, f"no answer to {', '.join(parsed.missing)}"]
    valid = not np.isnan(outcome.answers[row]).any()
    if not valid:
        outcome.unfit[row] = "; ".join(dict.fromkeys(wrong)) or "not all questions have been asked"
    simulated = {"simulated": True} if outcome.header.simulated else {}
    return {"pair_id": ledger.pair_ids[row], "valid": valid, **simulated, "answers": cells}
