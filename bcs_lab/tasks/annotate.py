"""``bcs annotate``: a teacher's answers about every pair of a corpus, by one command that can be started again."""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bcs_lab.config import AnnotateConfig, absolute, parse
from bcs_lab.corpus import Corpus
from bcs_lab.errors import ConfigError, CorpusError, ImageError
from bcs_lab.files import write_json, write_text
from bcs_lab.tasks.inputs import open_corpus, report_skipped
from bcs_lab.teachers.annotate import Job, Outcome, annotate
from bcs_lab.teachers.backends import load_backend
from bcs_lab.teachers.progress import tokens
from bcs_lab.teachers.prompts import Slot, build_prompts
from bcs_lab.teachers.protocol import BCS12, Protocol, protocol_from, same_questions
from bcs_lab.teachers.records import Header
from bcs_lab.teachers.summary import left, summarise, table

log = logging.getLogger(__name__)


def run(values: dict[str, Any], out: Path, start: Path) -> dict[str, Any]:
    """Entry of the command line.

    Returns:
        Facts for the record; ``exit_status`` 1 when a pair is left without a full set of answers.

    Raises:
        ConfigError: settings do not fit together.
        CorpusError: the corpus cannot be read, or has no images.
        RunError: the folder holds replies of another kind, or another process works there.
        TeacherError: the model or server cannot be had.
    """
    config = parse(AnnotateConfig, values)
    corpus = open_corpus(config.corpus, start, need_answers=False)
    protocol = _protocol(config, corpus, start)
    _check_images(corpus)
    if config.dry_run:
        print(preview(corpus, protocol, config))
        return {"transient": True}
    job = _job(config, corpus, protocol, start)
    if config.backend.name == "replay":
        from bcs_lab.teachers.backends.replay import replay

        outcome = replay(job, absolute(config.backend.raw, start))
        _write_summary(job, outcome)
    else:
        outcome = annotate(job, lambda: load_backend(config, corpus), lambda found: _write_summary(job, found))
    summary = summarise(job, outcome)
    report_skipped(corpus, out)
    lost = {problem.pair_id for problem in corpus.skipped if not problem.file.startswith("annotations/")}
    write_text(out / "config.yaml", yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
    print(table(summary))
    print(_took(summary))
    missing = left(outcome)
    if missing:
        write_text(out / "left.csv", _left_table(missing))
        log.error("%s", advice(summary, outcome, config, missing, out / "left.csv"))
    if outcome.stopped:
        log.error("stopped: %s", outcome.stopped)
    print("\n".join(f"Written: {path}" for path in (job.annotations, job.summary) if path.exists()))
    return {
        "corpus": corpus.name,
        "teacher": summary["teacher"],
        "model": summary["model"],
        "simulated_teachers": summary["simulated_teachers"],
        "folder": str(job.folder),
        "pairs": summary["pairs"],
        "valid": summary["valid_pairs"],
        "left": summary["left"],
        "asked": outcome.asked,
        "skipped": len(lost),
        "exit_status": 1 if missing or lost or outcome.stopped else 0,
    }


def _write_summary(job: Job, outcome: Outcome) -> None:
    write_json(job.summary, summarise(job, outcome))


def _protocol(config: AnnotateConfig, corpus: Corpus, start: Path) -> Protocol:
    """The protocol of the settings; the corpus' own where it has another one and none was chosen."""
    protocol = protocol_from(config.protocol, base=start)
    if same_questions(protocol, corpus.protocol):
        return protocol
    if protocol.digest == BCS12.digest:
        log.info("asking the questions of the corpus' own protocol, %s", corpus.protocol.name)
        return corpus.protocol
    if corpus.teachers or corpus.protocol.digest != BCS12.digest:
        log.warning(
            "the corpus %s was asked other questions (%s) than those of the protocol %s",
            corpus.name, corpus.protocol.name, protocol.name,
        )  # fmt: skip
    return protocol


def _check_images(corpus: Corpus) -> None:
    if corpus.root is None or not corpus.pairs["reference_path"].astype(bool).all():
        raise CorpusError(
            f"the corpus {corpus.name!r} has no images, and a teacher has to see them; expected corpus=manifest "
            "corpus.root=DIR, or corpus=demo."
        )


def _job(config: AnnotateConfig, corpus: Corpus, protocol: Protocol, start: Path) -> Job:
    generation, simulated = config.teacher.generation, config.backend.name == "simulated"
    local = config.backend.name == "transformers"
    settings: dict[str, Any] = {"backend": config.backend.name, "checkpoint": config.teacher.checkpoint}
    if not simulated:
        # What a server loads, and how, is not known here; nothing is claimed about it.
        settings |= {
            "model": config.teacher.model,
            "revision": config.teacher.revision if local else None,
            "dtype": config.teacher.dtype if local else None,
            "max_new_tokens": config.max_new_tokens,
            "generation": generation.model_dump(),
            "seed": config.seed if generation.do_sample else None,
        }
    header = Header(
        teacher=file_name(config),
        corpus=corpus.name,
        mode=config.mode,
        protocol={
            "name": protocol.name,
            "digest": protocol.digest,
            "questions": list(protocol.ids),
            "levels": dict(protocol.levels),
        },
        prompts=tuple(prompt.digest for prompt in build_prompts(protocol, config.mode)),
        settings=settings,
        backend={},
        simulated=simulated,
    )
    return Job(
        corpus=corpus,
        protocol=protocol,
        folder=absolute(config.out, start)
        or (start / "runs" / "annotate" / (_safe(corpus.name) or "corpus")).resolve(),
        header=header,
        # A greedy model would say the same again.
        budget=config.retry.max if generation.do_sample and not simulated else 1,
        overwrite=config.overwrite,
        batch_size=(config.backend.batch_size or config.teacher.batch_size) if local else None,
        price=(config.backend.price.prompt, config.backend.price.completion),
        log_every=config.log_every,
    )


def file_name(config: AnnotateConfig) -> str:
    """The teacher's name in file names: its config's, or for ``teacher=any`` one made of the model's.

    Raises:
        ConfigError: nothing of the name can be used.
    """
    name = config.teacher.name if config.teacher.name != "any" else Path(config.teacher.model).as_posix()
    safe = _safe(name)
    if not safe:
        raise ConfigError(f"teacher.model={config.teacher.model!r}: expected a name with letters or digits in it.")
    return safe


def _safe(name: str) -> str:
    return re.sub(r"[^\w.-]+", "_", name).strip("._-")


# --- what is shown ----------------------------------------------------------------------------------------------------


def preview(corpus: Corpus, protocol: Protocol, config: AnnotateConfig) -> str:
    """The exact prompts of the first pairs, with their images' files and sizes; nobody is asked."""
    from bcs_lab.corpus.images import inspect_image

    prompts = build_prompts(protocol, config.mode)
    shown = min(config.dry_run, len(corpus))
    lines = [
        f"{shown} of {len(corpus):,} pairs of {corpus.name}; protocol {protocol.name} ({protocol.digest}), "
        f"mode={config.mode}: {len(prompts)} call{'s' * (len(prompts) != 1)} a pair to {config.teacher.model} "
        f"(backend={config.backend.name}). Nobody is asked, nothing is written."
    ]
    for row in range(shown):
        files = {Slot.REFERENCE: corpus.reference_file(row), Slot.RECONSTRUCTION: corpus.reconstruction_file(row)}
        lines += ["", "=" * 100, f"pair {corpus.pairs['pair_id'].iloc[row]}"]
        slots = {}
        for slot, path in files.items():
            try:
                width, height = inspect_image(path, max_pixels=corpus.max_image_pixels).size
                size = f"{width} x {height} pixels, {path.stat().st_size:,} bytes"
            except ImageError as error:
                size = f"CANNOT BE USED: {error}"
            slots[slot] = f"<{slot.value}: {path}, {size}>"
            lines.append(f"{slot.value}: {path} ({size})")
        for prompt in prompts:
            lines += ["", f"--- prompt {prompt.digest}: {', '.join(prompt.questions)}"]
            if prompt.system:
                lines += ["[system]", prompt.system]
            lines += ["[user]", "".join(slots[part] if isinstance(part, Slot) else part for part in prompt.parts)]
            lines += ["[schema of the reply]", json.dumps(prompt.schema, ensure_ascii=False)]
    return "\n".join(lines)


def _took(summary: Mapping[str, Any]) -> str:
    replies = summary["replies"]
    parts = [f"{replies['texts']:,} replies", f"{replies['calls']:,} model calls"]
    if replies["calls_a_pair"] is not None:
        parts[-1] += f" ({replies['calls_a_pair']:.3g} a pair)"
    if replies["prompt_tokens"] is not None or replies["completion_tokens"] is not None:
        parts.append(f"{tokens(replies['prompt_tokens'] or 0)} + {tokens(replies['completion_tokens'] or 0)} tokens")
    if replies["cost"] is not None:
        parts.append(f"cost {replies['cost']:.2f}")
    if replies["damaged_lines"]:
        parts.append(f"{replies['damaged_lines']} damaged lines passed over")
    return f"{summary['valid_pairs']:,} of {summary['pairs']:,} pairs valid; " + ", ".join(parts)


def advice(
    summary: Mapping[str, Any],
    outcome: Outcome,
    config: AnnotateConfig,
    missing: Sequence[tuple[str, str, str]],
    path: Path,
) -> str:
    """How many pairs are left, why, and what helps."""
    counts = summary["left"]
    lines = [f"{sum(counts.values()):,} of {summary['pairs']:,} pairs have no full set of answers; each is in {path}"]
    if counts["invalid"]:
        cut = sum("token limit" in why for why in outcome.unfit.values())
        key = f"teacher.max_new_tokens.{outcome.header.mode}"
        text = f"  {counts['invalid']:,} replies do not answer every question; the answers they give are kept"
        if cut:
            text += f". {cut:,} were cut off at the token limit: raise {key}, in another folder (out=DIR)"
        if config.backend.name == "replay":
            text += ". backend=replay asks nobody; the command that made them asks again"
        elif config.teacher.generation.do_sample:
            text += ". The same command samples them again"
        else:
            text += (
                ". A greedy model repeats itself, so the same command asks each once more only; look at some, then try "
                "mode=single or a server with constrained output (backend=openai), in another folder (out=DIR)"
            )
        lines.append(text)
    if counts["no_reply"]:
        reasons = Counter(reason for _, left, reason in missing if left == "no_reply")
        reason, times = reasons.most_common(1)[0] if reasons else ("", 0)
        lasting = re.search(r"HTTP 4(?!08|25|29)\d\d|expected a chat completion", reason)
        lines.append(
            f"  {counts['no_reply']:,} got no reply (most often, {times:,} times: {reason}): "
            + ("see to that first, then start" if lasting else "start")
            + " the same command again"
        )
    if counts["broken_image"]:
        lines.append(f"  {counts['broken_image']:,} have a broken image: mend it and start the same command again")
    if counts["not_asked"]:
        lines.append(f"  {counts['not_asked']:,} were not asked: start the same command again")
    return "\n".join(lines)


def _left_table(missing: list[tuple[str, str, str]]) -> str:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["pair_id", "left", "reason"])
    writer.writerows(missing)
    return buffer.getvalue()
