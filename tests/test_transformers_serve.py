"""``bcs annotate`` against a real server process: a tiny random model behind ``transformers serve``.

Its words are noise, so no reply is valid; what is shown is that prompts and images arrive as they should, and that
replies are recorded, kept and completed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny_teacher
from tiny_model import draw

from bcs_lab.cli import main

pytest.importorskip("fastapi", reason="transformers serve needs transformers[serving]")
pytest.importorskip("uvicorn", reason="transformers serve needs transformers[serving]")
pytest.importorskip("openai", reason="transformers serve needs transformers[serving]")
pytest.importorskip("accelerate", reason="transformers serve needs transformers[serving]")

PAIRS = 4
#: Two short questions: among the thousands of tokens of the paper's twelve, a random model hardly sees the images.
PROTOCOL = """
name: short
answers: [{label: "yes", score: 1.0}, {label: "no", score: 0.0}]
questions:
  - {id: P1, group: perceptual, name: colour, criterion: Same?}
  - {id: S1, group: semantic, name: thing, criterion: Same?}
"""


@dataclass
class Server:
    url: str
    model: Path
    log: Path

    @property
    def calls(self) -> int:
        """Chat completions answered so far, by the server's own account."""
        return self.log.read_text(encoding="utf-8", errors="replace").count('"POST /v1/chat/completions HTTP/1.1" 200')


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise AssertionError(f"the server ended:\n{log.read_text(errors='replace')[-3000:]}")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"no server after {seconds} s:\n{log.read_text(errors='replace')[-3000:]}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("server")
    tiny_teacher.internvl(root / "tiny")
    port, log = free_port(), root / "log.txt"
    command = [sys.executable, "-c", "from transformers.cli.transformers import main; main()", "serve", "tiny"]
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(root / "home"), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        # From the folder that holds it, so that its name at the server is just "tiny".
        process = subprocess.Popen([*command, *options], cwd=root, env=environment, stdout=output, stderr=output)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, log)
        yield Server(f"http://127.0.0.1:{port}/v1", root / "tiny", log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    lines = ["pair_id,method,subject,concept,rank,candidate,reference_path,reconstruction_path"]
    for i in range(PAIRS):
        draw(i // 2).save(root / f"ref{i // 2}.png")
        draw(10 + i, (60, 60)).save(root / f"rec{i}.png")
        lines.append(f"p{i},m,s1,c{i // 2},1,{i},ref{i // 2}.png,rec{i}.png")
    (root / "manifest.csv").write_text("\n".join(lines) + "\n")
    return root


def test_a_served_model_is_asked_recorded_and_gone_on_with(
    server: Server, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bcs"])
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    out, protocol = tmp_path / "out", tmp_path / "short.yaml"
    protocol.write_text(PROTOCOL)
    command = [
        *("annotate", "corpus=manifest", f"corpus.root={corpus}", "teacher=any", "teacher.model=tiny"),
        *("teacher.max_new_tokens.joint=16", "backend=openai", f"backend.base_url={server.url}", f"out={out}"),
        *("protocol=file", f"protocol.path={protocol}"),
    ]
    raw, annotations, summary = out / "raw" / "tiny.jsonl", out / "annotations" / "tiny.jsonl", out / "tiny.json"
    before = server.calls
    # Status 1: pairs are left without a full set of answers.
    assert main(command) == 1
    assert server.calls == before + PAIRS

    header, *replies, end = (json.loads(line) for line in raw.read_text().splitlines())
    assert (header["kind"], end["kind"]) == ("header", "end")
    assert sorted(reply["pair_id"] for reply in replies) == [f"p{i}" for i in range(PAIRS)]
    for reply in replies:
        assert (reply["error"], reply["finish"], reply["completion_tokens"]) == (None, "length", 16)
        assert (reply["calls"], reply["image_encodes"], reply["attempt"]) == (1, 2, 1)
        assert reply["served_model"] == "tiny"
    heard = {reply["pair_id"]: (reply["text"], reply["prompt_tokens"]) for reply in replies}
    assert heard == expected(server.model, corpus, protocol)
    assert len(set(heard.values())) > 1

    facts = json.loads(summary.read_text())
    assert (facts["pairs"], facts["valid"], facts["left"]["invalid"]) == (PAIRS, 0.0, PAIRS)
    assert (facts["mean_t_pas"], facts["mean_t_sas"]) == (None, None)
    assert (facts["replies"]["calls_a_pair"], facts["replies"]["image_encodes_a_pair"]) == (1.0, 2.0)
    first = annotations.read_bytes()
    rows = [json.loads(line) for line in first.decode().splitlines()]
    assert [row["pair_id"] for row in rows] == [f"p{i}" for i in range(PAIRS)]
    assert not any(row["valid"] for row in rows)

    # Killed within its last record: the others are kept, and only this pair is asked about again.
    lines = raw.read_bytes().splitlines(keepends=True)
    raw.write_bytes(b"".join(lines[:PAIRS]) + lines[PAIRS][:40])
    assert main(command) == 1
    assert server.calls == before + PAIRS + 1
    assert annotations.read_bytes() == first
    again = [json.loads(line) for line in raw.read_text().splitlines()]
    assert [record["kind"] for record in again] == ["header", *["reply"] * PAIRS, "end"]
    assert {r["pair_id"]: (r["text"], r["prompt_tokens"]) for r in again[1:-1]} == heard


def expected(model: Path, corpus: Path, protocol: Path) -> dict[str, tuple[str | None, int | None]]:
    """What the same model says without a server in between; equal only if prompt and both images arrive unharmed."""
    from bcs_lab.corpus import load_corpus
    from bcs_lab.teachers.backends import Request
    from bcs_lab.teachers.backends.transformers import TransformersBackend
    from bcs_lab.teachers.prompts import build_prompts
    from bcs_lab.teachers.protocol import load_protocol

    pairs = load_corpus("manifest", corpus, need_answers=False)
    (prompt,) = build_prompts(load_protocol(protocol), "joint")
    backend: Any = TransformersBackend(str(model), dtype="float32", batch_size=1, max_new_tokens=16, device="cpu")
    requests = [
        Request(name, prompt, pairs.reference_file(row), pairs.reconstruction_file(row))
        for row, name in enumerate(pairs.pairs["pair_id"])
    ]
    return {request.pair_id: (reply.text, reply.prompt_tokens) for request, reply in backend.answer(requests)}
