"""``corpus=demo``: made once, whole or absent, the same for a seed, and told apart from real data."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from bcs_lab.corpus import Corpus, load_corpus, read_bundle, summary, write_bundle
from bcs_lab.corpus.demo import make as demo
from bcs_lab.corpus.demo.plan import plan_demo
from bcs_lab.corpus.demo.scene import PairPlan
from bcs_lab.corpus.made import INDEX, damage
from bcs_lab.corpus.schema import ShippedEmbeddings
from bcs_lab.corpus.workers import map_jobs
from bcs_lab.errors import ConfigError, CorpusError, RunError
from bcs_lab.teachers.protocol import BCS12

TEACHERS = ("internvl3", "sail_vl", "ola", "ovis2")

#: Run in another process: a demo of a few pairs; `SLOW` makes every picture take a while.
SCRIPT = """
import os, sys, time, logging
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
from bcs_lab.corpus.demo import make
whole, draw = make.plan_demo, make.draw
make.plan_demo = lambda size, seed: whole(size, seed)[::40]
def slow(scene):
    time.sleep(float(os.environ["SLOW"]))
    return draw(scene)
make.draw = slow
corpus = make.load_demo()
print(len(corpus), corpus.root)
"""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("BCS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty pairs instead of eight hundred."""
    monkeypatch.setattr(demo, "plan_demo", lambda size, seed: _spread(plan_demo(size, seed)))


def _spread(plans: Sequence[PairPlan]) -> list[PairPlan]:
    return list(plans[:: len(plans) // 20])


def index(corpus: Corpus) -> dict[str, object]:
    assert corpus.root is not None
    return json.loads((corpus.root / INDEX).read_text())


def start(repository: Path, slow: float) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(repository), "SLOW": str(slow)}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.usefixtures("tiny")
def test_what_the_corpus_holds(cache: Path) -> None:
    corpus = load_corpus("demo")
    plans = _spread(plan_demo("small", 0))
    assert (corpus.name, corpus.stand_ins, corpus.simulated_teachers) == ("demo", True, True)
    assert corpus.teachers == TEACHERS
    assert corpus.pairs["pair_id"].tolist() == [plan.pair_id for plan in plans]
    assert corpus.pairs["pair_id"].is_monotonic_increasing
    for column in ("method", "subject", "concept", "rank", "candidate"):
        assert corpus.pairs[column].tolist() == [getattr(plan, column) for plan in plans]
    assert corpus.pairs["shows"].tolist() == [plan.reconstruction.concept for plan in plans]
    assert corpus.truth is not None
    assert corpus.truth.dtype == np.float32
    np.testing.assert_array_equal(corpus.truth, [plan.truth for plan in plans])
    assert corpus.answers.shape == (len(plans), 4, 12)
    assert set(np.unique(corpus.answers)) <= {0.0, 0.5, 1.0}
    assert all(corpus.rationales.ravel())
    assert corpus.card is not None
    assert "simulated" in corpus.card
    assert corpus.root is not None
    assert corpus.root.is_relative_to(cache / "demo")
    assert corpus.root.name.endswith("-small-seed0")
    for i in range(len(corpus)):
        for path in (corpus.reference_file(i), corpus.reconstruction_file(i)):
            assert Image.open(path).size == (128, 128)
    assert summary(corpus)["pairs"].sum() == len(plans)


@pytest.mark.usefixtures("tiny")
def test_images_are_the_drawn_scenes_and_one_file_a_distinct_image() -> None:
    corpus = load_corpus("demo")
    plans = _spread(plan_demo("small", 0))
    for i in (0, 7, len(plans) - 1):
        picture = demo.draw(plans[i].reference)
        np.testing.assert_array_equal(np.asarray(Image.open(corpus.reference_file(i))), np.asarray(picture))
        spoilt = demo.spoil(demo.draw(plans[i].reconstruction), plans[i].decoder)
        np.testing.assert_array_equal(np.asarray(Image.open(corpus.reconstruction_file(i))), np.asarray(spoilt))
    assert corpus.root is not None
    files = {f"images/{path.name}" for path in (corpus.root / "images").iterdir()}
    assert files == {*corpus.pairs["reference_path"], *corpus.pairs["reconstruction_path"]}
    references = {plan.reference for plan in plans}
    assert corpus.pairs["reference_path"].nunique() == len(references)


@pytest.mark.usefixtures("tiny")
def test_same_seed_same_bytes_other_seed_other_corpus(tmp_path: Path) -> None:
    first = load_corpus("demo")
    again = load_corpus("demo", cache=tmp_path / "elsewhere")
    other = load_corpus("demo", seed=1)
    assert first.root != again.root
    assert index(first)["content"] == index(again)["content"]
    assert first.root is not None
    assert again.root is not None
    for path in sorted(first.root.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (again.root / path.relative_to(first.root)).read_bytes()
    assert index(other)["content"] != index(first)["content"]
    images = [set(corpus.pairs["reconstruction_path"]) for corpus in (first, other)]
    assert not images[0] & images[1]
    assert not np.array_equal(first.answers, other.answers)


@pytest.mark.usefixtures("tiny")
def test_the_number_of_workers_does_not_matter(tmp_path: Path) -> None:
    made = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        (folder / "images").mkdir(parents=True)
        result = demo.make_demo(folder, workers=workers)
        files = {path.name: path.read_bytes() for path in (folder / "images").iterdir()}
        made.append((result.rows, files))
    assert made[0] == made[1]


def _half(value: int) -> float:
    if value == 7:
        raise ValueError("seven is odd")
    print("whatever a job prints does not reach the answers")
    return value / 2


def test_workers_keep_the_order_and_pass_on_errors() -> None:
    jobs = [i for i in range(100) if i != 7]
    assert map_jobs(_half, jobs, label="halving", unit="number", workers=2) == [i / 2 for i in jobs]
    with pytest.raises(ValueError, match="seven is odd"):
        map_jobs(_half, range(100), label="halving", unit="number", workers=2)


def _vanish(value: int) -> int:
    os._exit(3)


def test_a_worker_that_vanishes_is_an_error() -> None:
    with pytest.raises(RunError, match="exit status 3"):
        map_jobs(_vanish, range(40), label="vanishing", unit="number", workers=2)


@pytest.mark.usefixtures("tiny")
def test_made_once_and_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_corpus("demo")
    monkeypatch.setattr(demo, "plan_demo", lambda *_: pytest.fail("made again"))
    second = load_corpus("demo", teachers_order=["ovis2", "ola"])
    assert second.teachers == ("ovis2", "ola")
    np.testing.assert_array_equal(second.answers, first.answers[:, [3, 2]])


@pytest.mark.usefixtures("tiny")
def test_it_is_an_ordinary_manifest_corpus_too() -> None:
    corpus = load_corpus("demo")
    plain = load_corpus("manifest", corpus.root)
    pd.testing.assert_frame_equal(plain.pairs, corpus.pairs)
    np.testing.assert_array_equal(plain.answers, corpus.answers)
    assert plain.teachers == corpus.teachers
    assert plain.simulated_teachers  # whoever reads it is told
    assert not plain.stand_ins
    assert plain.skipped == []


@pytest.mark.usefixtures("tiny")
def test_subset_and_bundle_carry_the_truth(tmp_path: Path) -> None:
    corpus = load_corpus("demo")
    assert corpus.truth is not None
    keep = np.arange(len(corpus)) % 3 == 0
    part = corpus.subset(keep)
    np.testing.assert_array_equal(part.truth, corpus.truth[keep])
    rows = np.arange(len(part), dtype=np.int64)
    shipped = ShippedEmbeddings("e", {"model": "m"}, np.eye(len(part), dtype=np.float16), rows, rows[::-1].copy())
    bundle = read_bundle(write_bundle(part, [shipped], tmp_path / "bundle"))
    np.testing.assert_array_equal(bundle.truth, part.truth)
    assert bundle.simulated_teachers
    assert bundle.card is not None
    assert "simulated" in bundle.card


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    "harm", ["image gone", "image cut", "image bit", "image new", "answers", "truth", "index", "no index"]
)
def test_a_damaged_cache_is_made_again(harm: str, caplog: pytest.LogCaptureFixture) -> None:
    corpus = load_corpus("demo")
    assert corpus.root is not None
    root, content = corpus.root, index(corpus)["content"]
    image = corpus.reconstruction_file(3)
    if harm == "image gone":
        image.unlink()
    elif harm == "image cut":
        image.write_bytes(image.read_bytes()[:-20])
    elif harm == "image bit":
        content_of = bytearray(image.read_bytes())
        content_of[len(content_of) // 2] ^= 1
        image.write_bytes(content_of)
    elif harm == "image new":
        shutil.copy(image, image.with_name("other.png"))
    elif harm == "answers":
        path = root / "annotations" / "ola.jsonl"
        path.write_text(path.read_text().replace('"yes"', '"no"', 1))
    elif harm == "truth":
        (root / "truth.parquet").write_bytes(b"")
    elif harm == "index":
        (root / INDEX).write_text('{"format": "bcs')
    else:
        (root / INDEX).unlink()
    assert damage(root) is not None
    with caplog.at_level(logging.INFO):
        again = load_corpus("demo")
    assert "made again" in caplog.text
    assert damage(root) is None
    assert index(again)["content"] == content
    np.testing.assert_array_equal(again.answers, corpus.answers)


def test_a_killed_making_leaves_nothing_half(repository: Path, cache: Path) -> None:
    process = start(repository, slow=0.2)
    deadline = time.monotonic() + 60
    while not list(cache.glob("demo/.*.partial/images/*.png")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert list(cache.glob("demo/.*.partial/images/*.png"))
    assert not list(cache.glob("demo/[!.]*"))

    done = start(repository, slow=0.0)
    out, log = done.communicate(timeout=60)
    assert done.returncode == 0, log
    assert out.split()[0] == "20"
    assert [path.name.endswith("-small-seed0") for path in cache.glob("demo/[!.]*")] == [True]
    assert not list(cache.glob("demo/.*.partial"))


def test_two_processes_at_once_one_makes_it(repository: Path) -> None:
    processes = [start(repository, slow=0.05) for _ in range(2)]
    outputs = [process.communicate(timeout=90) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    logs = [log for _, log in outputs]
    assert sum("made in" in log for log in logs) == 1
    assert sum("another process is making it" in log for log in logs) <= 1


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"corpus\.cache=DIR"):
        load_corpus("demo", cache=tmp_path / "file")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": "large"}, "small, paper"),
        ({"seed": -1}, "corpus.seed"),
        ({"root": "somewhere"}, "corpus.root"),
        ({"images": "photos"}, "images is a setting of corpus=simulated"),
        ({"per_image": 2}, "per_image is a setting of corpus=simulated"),
    ],
)
def test_wrong_settings(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_corpus("demo", **options)  # type: ignore[arg-type]


def test_other_kinds_do_not_take_its_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="size is a setting of corpus=demo, not of corpus=manifest"):
        load_corpus("manifest", tmp_path, size="small")


@pytest.mark.usefixtures("tiny")
def test_other_questions_are_refused() -> None:
    from bcs_lab.teachers.protocol import Protocol

    with pytest.raises(CorpusError, match="unknown question"):
        load_corpus("demo", protocol=Protocol("short", BCS12.questions[:3]))
