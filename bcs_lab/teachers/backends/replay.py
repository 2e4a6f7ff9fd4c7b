"""``backend=replay``: nobody is asked; replies that were saved are parsed again, after a change of the parser, say."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from bcs_lab.errors import ConfigError, RunError
from bcs_lab.teachers.annotate import Images, Job, Outcome, check_corpus, warn, write
from bcs_lab.teachers.ledger import Ledger
from bcs_lab.teachers.prompts import build_prompts
from bcs_lab.teachers.records import RawFile, read_header

log = logging.getLogger(__name__)


def replay(job: Job, source: Path | None) -> Outcome:
    """Parse saved replies again and write the annotations that follow from them.

    Args:
        job: teacher, corpus, protocol and folder; model, mode and settings are those recorded with the replies.
        source: a raw file; ``None`` for the folder's own.

    Raises:
        RunError: there is none, or it is about other pairs or other questions.
        ConfigError: the folder has replies of its own beside ``source``.
    """
    own = job.raw
    if source is not None and source.resolve() != own.resolve():
        if own.exists():
            raise ConfigError(
                f"backend.raw={source}: {own} holds replies of this teacher already, and its annotations would be "
                "replaced; choose another folder with out=DIR."
            )
        return _replay(job, source)
    if not own.exists():
        raise RunError(
            f"{own}: no such file, so there are no replies to parse again; name the folder that holds "
            f"raw/{own.name} (out=DIR), or a file (backend.raw=FILE)."
        )
    with RawFile(own) as raw:
        return _replay(job, raw.path)


def _replay(job: Job, path: Path) -> Outcome:
    if not path.is_file():
        raise RunError(f"backend.raw={path}: no such file; expected replies that an earlier run saved.")
    header = read_header(path)
    if header is None:
        raise RunError(f"{path}: holds no whole line; expected the header of raw replies.")
    prompts = build_prompts(job.protocol, header.mode)
    scale = {"questions": list(job.protocol.ids), "levels": dict(job.protocol.levels)}
    asked = {key: header.protocol.get(key) for key in scale}
    if asked != scale or len(prompts) != len(header.prompts):
        raise RunError(
            f"{path}: these replies are about {json.dumps(asked, ensure_ascii=False)}, which are not the questions of "
            f"the protocol {job.protocol.name!r}; name the one they were asked with (protocol=file protocol.path=FILE)."
        )
    if header.protocol.get("digest") != job.protocol.digest:
        log.warning(
            "%s: asked with another wording of the protocol (%s) than the one it is parsed with (%s)",
            path, header.protocol.get("digest"), job.protocol.digest,
        )  # fmt: skip
    known = [(digest, prompt.questions) for digest, prompt in zip(header.prompts, prompts, strict=True)]
    ledger = Ledger(job.corpus.pairs["pair_id"].tolist(), known, job.protocol)
    ledger.read(path)
    check_corpus(path, ledger, Images(job.corpus))
    warn(job, ledger, path)
    return write(job, header, ledger, path)
