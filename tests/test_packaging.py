"""The wheel holds all it needs to run from anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """Built without build isolation, so that nothing is downloaded."""
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    # A build writes into its source; tracked and new files are enough.
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=repository,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        path = repository / name
        if name and path.exists():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                target.symlink_to(path.readlink())
            elif path.is_file():
                target.write_bytes(path.read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "-w",
        str(out),
        ".",
    ]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=300)
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_configs_experiments_and_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "bcs_lab/conf/train.yaml",
        "bcs_lab/conf/corpus_show.yaml",
        "bcs_lab/conf/score.yaml",
        "bcs_lab/conf/features/similarity.yaml",
        "bcs_lab/assets/bcs_lite/ensemble.json",
        "bcs_lab/assets/bcs_lite/member-7.safetensors",
        "bcs_lab/assets/similarity_bank/index.json",
        "bcs_lab/assets/stage_statistics/index.json",
        "bcs_lab/conf/report.yaml",
        "bcs_lab/conf/study_select.yaml",
        "bcs_lab/report/report.html.j2",
        "bcs_lab/report/report_run.html.j2",
        "bcs_lab/report/report.css",
        "bcs_lab/report/report.js",
        "bcs_lab/human/form.html.j2",
        "bcs_lab/human/form.css",
        "bcs_lab/human/form.js",
        "bcs_lab/human/questions.yaml",
        "bcs_lab/assets/paper_table7.yaml",
        "bcs_lab/conf/corpus/demo.yaml",
        "bcs_lab/conf/corpus/simulated.yaml",
        "bcs_lab/conf/protocol/bcs12.yaml",
        "bcs_lab/conf/encoder/siglip.yaml",
        "bcs_lab/conf/hydra/job_logging/bcs.yaml",
        "bcs_lab/conf/experiment/table6.yaml",
        "bcs_lab/assets/paper_table6.yaml",
        "bcs_lab/assets/simulated_teachers.yaml",
        "bcs_lab/corpus/demo/concepts.yaml",
        "bcs_lab/assets/brainbank/bundle.json",
        "bcs_lab/assets/brainbank/embeddings-efficientnet_lite0.safetensors",
        "bcs_lab/assets/brainbank/similarities-efficientnet_lite0.safetensors",
        "bcs_lab/assets/stage_statistics/index.json",
        "bcs_lab/assets/stage_statistics/efficientnet_lite0.safetensors",
        "bcs_lab/similarity/stages.py",
        "bcs_lab/encoders/registry.yaml",
        "bcs_lab/report/compare.html.j2",
        "bcs_lab/py.typed",
    ):
        assert name in names, name


def test_the_installed_wheel_runs_from_the_root_folder(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-index",
        "--quiet",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    for arguments, expected in (
        (["train", "--cfg", "job"], "kind: brainbank"),
        (["train", "experiment=table6", "--cfg", "hydra"], "siglip_baseline"),
        (["train", "--help"], "table6"),
    ):
        done = subprocess.run(
            [str(site / "bin" / "bcs"), *arguments],
            cwd="/",
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
    where = subprocess.run(
        [sys.executable, "-c", "import bcs_lab.catalogue as c; print(c.config_dir())"],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert where.stdout.strip() == str(site / "bcs_lab" / "conf")
