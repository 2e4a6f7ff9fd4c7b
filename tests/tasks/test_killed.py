"""A training that is killed and started again ends with the numbers of an undisturbed one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.slow
def test_killed_between_members_and_started_again(repository: Path, tmp_path: Path) -> None:
    def command(folder: str) -> list[str]:
        fast = ["trainer.max_epochs=8", "seeds=[7,13,21]", "logger=none", "bootstrap.resamples=100"]
        return [sys.executable, str(repository / "train.py"), *fast, f"hydra.run.dir={tmp_path / folder}"]

    environment = {**os.environ, "PYTHONPATH": str(repository)}
    subprocess.run(command("clean"), cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=120)

    process = subprocess.Popen(command("killed"), cwd=tmp_path, env=environment, stdout=-1, stderr=-1)
    first = tmp_path / "killed" / "members" / "member-7.safetensors"
    deadline = time.monotonic() + 100
    while not first.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert first.exists()
    assert not (tmp_path / "killed" / "metrics.json").exists()
    assert json.loads((tmp_path / "killed" / "run.json").read_text())["state"] == "running"

    done = subprocess.run(
        command("killed"), cwd=tmp_path, env=environment, check=True, capture_output=True, text=True, timeout=120
    )
    assert "(seed 7): already trained" in done.stderr
    clean, killed = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("clean", "killed"))
    assert {**clean, "wall_s": 0} == {**killed, "wall_s": 0}
    assert not (tmp_path / "killed" / "members").exists()
    for member in ("member-7", "member-13", "member-21"):
        a, b = ((tmp_path / name / "ensemble" / f"{member}.safetensors").read_bytes() for name in ("clean", "killed"))
        assert a == b
