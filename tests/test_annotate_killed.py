"""An annotation that is killed at any moment and started again ends with the file of an undisturbed one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from chat_server import Call, ChatServer, Say, good, serving

sys.path.append(str(Path(__file__).parent / "tasks"))

from drawn_corpus import draw_corpus

CONCEPTS, CONCURRENCY = 6, 3
CELLS = 2 * CONCEPTS * 12


def slow(call: Call) -> Say:
    """Some replies are never valid; none is at once."""
    text = "I would rather not say." if int(call.key[:2], 16) % 7 == 0 and call.questions == ["P3"] else good(call).text
    return Say(text, wait_s=0.01)


def arguments(server: ChatServer, out: str) -> list[str]:
    return [
        sys.executable, "-m", "bcs_lab.cli", "annotate", "corpus=manifest", "corpus.root=pairs", "mode=single",
        "teacher=any", "teacher.model=tiny", "backend=openai", f"backend.base_url={server.url}", f"out={out}",
        f"backend.concurrency={CONCURRENCY}", "backend.api_key_env=null",
    ]  # fmt: skip


def outcome(folder: Path) -> bytes:
    return (folder / "annotations" / "tiny.jsonl").read_bytes()


def replies(raw: Path) -> list[tuple[str, str]]:
    found = [json.loads(line) for line in raw.read_bytes().splitlines()]
    return [(record["pair_id"], record["prompt"]) for record in found if record["kind"] == "reply"]


def kill_and_go_on(repository: Path, folder: Path, kills: int, seed: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}
    draw_corpus(folder / "pairs", concepts=CONCEPTS)
    dice = random.Random(seed)
    with serving(slow) as server:

        def run(out: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                arguments(server, out), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )

        clean = run("clean")
        assert clean.wait(timeout=120) in (0, 1), clean.stdout and clean.stdout.read().decode()
        asked = server.count
        assert asked == CELLS
        raw = folder / "killed" / "raw" / "tiny.jsonl"
        done = 0
        for turn in range(kills):
            process = run("killed")
            # Somewhere in this turn's share of the work, and then at any byte of a record.
            share = CELLS * (turn + dice.random()) / kills
            deadline = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < deadline:
                if raw.exists() and raw.read_bytes().count(b"\n") > share:
                    break
                time.sleep(0.001)
            time.sleep(dice.random() * 0.01)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            now = len(replies(_whole(raw)))
            assert now >= done
            done = now
        last = run("killed")
        output = last.communicate(timeout=120)[0].decode()
        assert last.returncode == clean.returncode, output
        assert outcome(folder / "killed") == outcome(folder / "clean")
        assert max(Counter(replies(raw)).values()) == 1  # nothing that was answered is asked for again
        # Under way when a kill came: calls, and replies that were waiting to be written (two more than calls at once).
        assert server.count - asked <= CELLS + kills * (CONCURRENCY + 2)


def _whole(raw: Path) -> Path:
    """A copy without the torn tail."""
    copy = raw.with_suffix(".copy")
    data = raw.read_bytes() if raw.exists() else b""
    copy.write_bytes(data[: data.rfind(b"\n") + 1])
    return copy


def test_killed_and_started_again(repository: Path, tmp_path: Path) -> None:
    kill_and_go_on(repository, tmp_path, kills=1, seed=1)


@pytest.mark.slow
def test_killed_twenty_times(repository: Path, tmp_path: Path) -> None:
    kill_and_go_on(repository, tmp_path, kills=20, seed=2)


def test_the_second_of_two_at_once_is_refused(repository: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}
    draw_corpus(tmp_path / "pairs", concepts=2)
    refused = threading.Event()

    def waiting(call: Call) -> Say:
        refused.wait(60)
        return good(call)

    with serving(waiting) as server:
        processes = [
            subprocess.Popen(
                arguments(server, "both"), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            for _ in range(2)
        ]
        while all(process.poll() is None for process in processes):
            time.sleep(0.01)
        refused.set()
        said = [process.communicate(timeout=120)[1].decode() for process in processes]
        codes = [process.returncode for process in processes]
        assert sorted(codes) == [0, 2], said
        assert "another run is asking this teacher" in said[codes.index(2)]
        assert server.count == 4 * 12
