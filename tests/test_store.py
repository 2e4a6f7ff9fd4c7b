"""The embedding store: hits, damage, several processes, kills, full disks."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from bcs_lab import store as store_module
from bcs_lab.errors import StoreError
from bcs_lab.store import EmbeddingStore, fingerprint_digest

DIM = 16
PRINT = {"library": "test", "model": "a/Model", "revision": "r1", "dtype": "float32", "resize": 224, "dim": DIM}
REPOSITORY = Path(__file__).resolve().parents[1]


def key(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def vectors(numbers: Sequence[int]) -> np.ndarray:
    """What the encoder of these tests gives: a function of the number alone."""
    return np.stack([np.random.default_rng(number).normal(size=DIM) for number in numbers]).astype(np.float32)


KEYS = [key(number) for number in range(40)]


class Encoder:
    """Counts what it computes."""

    def __init__(self, portion: int = 7, skip: frozenset[int] = frozenset()) -> None:
        self.seen: list[int] = []
        self.portion, self.skip = portion, skip

    def __call__(self, missing: list[int]) -> Iterator[tuple[list[int], np.ndarray]]:
        for start in range(0, len(missing), self.portion):
            part = [number for number in missing[start : start + self.portion] if number not in self.skip]
            self.seen += part
            if part:
                yield part, vectors(part)


def fill(root: Path, fingerprint: dict[str, object] | None = None) -> tuple[store_module.Filled, Encoder]:
    encoder = Encoder()
    return EmbeddingStore(root).fill(fingerprint or PRINT, KEYS, encoder), encoder


def segments(root: Path) -> list[Path]:
    return sorted(root.glob("*/segment-*.safetensors"))


def test_each_key_is_computed_once(tmp_path: Path) -> None:
    encoder = Encoder()
    store = EmbeddingStore(tmp_path)
    first = store.fill(PRINT, [*KEYS, *KEYS[:5]], encoder)
    assert sorted(encoder.seen) == list(range(40))
    assert (first.hits, first.computed, first.present.all()) == (0, 40, True)
    again = store.fill(PRINT, [*KEYS, *KEYS[:5]], encoder)
    assert (again.hits, again.computed, len(encoder.seen)) == (40, 0, 40)
    assert np.array_equal(first.embeddings, again.embeddings)
    assert np.array_equal(first.embeddings, vectors([*range(40), *range(5)]))
    assert first.embeddings.dtype == np.float32
    # Another process, and a file any safetensors reader can open.
    from safetensors.numpy import load_file

    got, mask = EmbeddingStore(tmp_path).get(PRINT, KEYS[::-1])
    assert mask.all()
    assert np.array_equal(got, vectors(range(39, -1, -1)))
    assert sum(len(load_file(path)["keys"]) for path in segments(tmp_path)) == 40


def test_what_compute_leaves_out_stays_missing(tmp_path: Path) -> None:
    filled = EmbeddingStore(tmp_path).fill(PRINT, KEYS, Encoder(skip=frozenset({3, 11})))
    assert np.flatnonzero(~filled.present).tolist() == [3, 11]
    assert filled.computed == 38
    assert fill(tmp_path)[1].seen == [3, 11]


def test_every_change_of_the_encoder_is_another_entry(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    changes = [{}, {"model": "b/Model"}, {"revision": "r2"}, {"dtype": "float16"}, {"resize": 256}]
    for change in changes:
        _, encoder = fill(tmp_path, {**PRINT, **change})
        assert len(encoder.seen) == 40, change
    # Nothing was deleted: the first one still hits.
    assert fill(tmp_path)[1].seen == []
    assert "40 hits, 0 computed" in caplog.text
    assert "0 hits, 40 computed" in caplog.text
    assert len({fingerprint_digest({**PRINT, **change}) for change in changes}) == len(changes)
    assert fingerprint_digest(dict(reversed(PRINT.items()))) == fingerprint_digest(PRINT)
    assert len(EmbeddingStore(tmp_path).fingerprints()) == len(changes)


def test_damage_of_any_kind_is_found_named_and_mended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clean, _ = fill(tmp_path)
    (path,) = segments(tmp_path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    cuts = [0, 1, 7, 8, 9, len(whole) - 1, *rng.integers(0, len(whole), 25).tolist()]
    damaged = [whole[:cut] for cut in cuts]
    damaged += [whole + b"\0" * 8, b"\xff" * 64, b"\0" * len(whole)]
    damaged += [
        whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in rng.integers(0, len(whole), 25)
    ]
    for content in damaged:
        path.write_bytes(content)
        caplog.clear()
        got, mask = EmbeddingStore(tmp_path).get(PRINT, KEYS)
        trusted = bool(mask.any())
        # One bit of the padding or of an unused part of the header may change without harm, never the numbers.
        assert not trusted or np.array_equal(got, clean.embeddings)
        assert trusted or path.name in caplog.text
        assert path.exists(), "a reader moves nothing"
        again, encoder = fill(tmp_path)
        assert np.array_equal(again.embeddings, clean.embeddings)
        assert sorted(encoder.seen) == ([] if trusted else list(range(40)))
        if not trusted:
            assert path.with_name(path.name + ".corrupt").read_bytes() == content
        for made in segments(tmp_path):
            made.unlink()
        path.write_bytes(whole)


def test_only_the_damaged_segment_is_computed_again(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path)
    store.fill(PRINT, KEYS[:20], Encoder())
    store.fill(PRINT, KEYS, Encoder())
    segments(tmp_path)[0].write_bytes(b"")
    filled = store.fill(PRINT, KEYS, encoder := Encoder())
    assert sorted(encoder.seen) == list(range(20))
    assert np.array_equal(filled.embeddings, vectors(range(40)))


def test_a_damaged_description_is_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path)
    (path,) = tmp_path.glob("*/encoder.json")
    path.write_text("{")
    EmbeddingStore(tmp_path).fill(PRINT, [*KEYS, key(99)], lambda missing: [(missing, vectors([99]))])
    assert "encoder.json is damaged" in caplog.text
    assert EmbeddingStore(tmp_path).fingerprints() == [PRINT]


def test_files_that_only_look_like_ours(tmp_path: Path) -> None:
    clean, _ = fill(tmp_path)
    folder = segments(tmp_path)[0].parent
    (folder / ".segment-000009-ffff.safetensors.1.tmp").write_bytes(b"half")
    (folder / "segment-000009-torn.npz").write_bytes(b"PK")
    np.savez(folder / "segment-000010-x.safetensors", a=np.zeros(3))
    (folder / "segment-000010-x.safetensors.npz").rename(folder / "segment-000010-x.safetensors")
    assert np.array_equal(EmbeddingStore(tmp_path).get(PRINT, KEYS)[0], clean.embeddings)
    EmbeddingStore(tmp_path).fill(PRINT, [key(50)], lambda missing: [(missing, vectors([50]))])
    assert not list(folder.glob(".*.tmp"))
    assert (folder / "segment-000009-torn.npz").exists()


def test_later_values_of_a_key_win(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path)
    store.put(PRINT, KEYS[:3], vectors([0, 1, 2]))
    store.put(PRINT, KEYS[1:2], vectors([77]))
    assert np.array_equal(EmbeddingStore(tmp_path).get(PRINT, KEYS[:3])[0], vectors([0, 77, 2]))


def test_an_exception_keeps_what_was_computed(tmp_path: Path) -> None:
    def fails(missing: list[int]) -> Iterator[tuple[list[int], np.ndarray]]:
        yield missing[:6], vectors(missing[:6])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        EmbeddingStore(tmp_path).fill(PRINT, KEYS, fails)
    assert EmbeddingStore(tmp_path).get(PRINT, KEYS)[1].sum() == 6
    assert len(fill(tmp_path)[1].seen) == 34


# --- several processes ---


def _fill_slowly(root: str, log: str, barrier: object) -> None:
    def compute(missing: list[int]) -> Iterator[tuple[list[int], np.ndarray]]:
        for number in missing:
            with Path(log).open("a") as file:
                file.write(f"{number}\n")
            time.sleep(0.01)
            yield [number], vectors([number])

    barrier.wait()  # type: ignore[attr-defined]
    filled = EmbeddingStore(root).fill(PRINT, KEYS, compute)
    if not np.array_equal(filled.embeddings, vectors(range(40))):
        raise SystemExit(3)


def test_processes_that_fill_at_once_share_the_work(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(3)
    log = tmp_path / "log"
    workers = [
        context.Process(target=_fill_slowly, args=(str(tmp_path / "store"), str(log), barrier)) for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert sorted(map(int, log.read_text().split())) == list(range(40))
    assert np.array_equal(EmbeddingStore(tmp_path / "store").get(PRINT, KEYS)[0], vectors(range(40)))


KILLED = """
import sys, time
sys.path.insert(0, {repository!r})
from tests import test_store as t
from bcs_lab import store
store.FLUSH_ROWS = 3
def compute(missing):
    for number in missing:
        time.sleep(0.004)
        yield [number], t.vectors([number])
filled = store.EmbeddingStore(sys.argv[1]).fill(t.PRINT, t.KEYS, compute)
print("done", filled.computed, flush=True)
"""


def _killed_and_restarted(root: Path, times: int) -> None:
    rng = np.random.default_rng(1)
    code = KILLED.format(repository=str(REPOSITORY))
    for round_ in range(times):
        target = root / str(round_)
        command = [sys.executable, "-c", code, str(target)]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Wait for the writer to be at work, so that the kill meets it there and not in its imports.
        limit = time.monotonic() + 30
        while not segments(target) and child.poll() is None and time.monotonic() < limit:
            time.sleep(0.002)
        time.sleep(float(rng.uniform(0, 0.12)))
        child.send_signal(signal.SIGKILL)
        child.wait()
        filled, encoder = fill(target)
        assert np.array_equal(filled.embeddings, vectors(range(40)))
        assert len(encoder.seen) < 40
        assert not list(target.glob("*/.*.tmp"))
        assert not list(target.glob("*/*.corrupt")), "a rename is never half done"


def test_a_killed_writer_loses_little_and_breaks_nothing(tmp_path: Path) -> None:
    _killed_and_restarted(tmp_path, 5)


@pytest.mark.slow
def test_a_killed_writer_twenty_times(tmp_path: Path) -> None:
    _killed_and_restarted(tmp_path, 20)


# --- disks ---

FULL = """
import resource, sys
sys.path.insert(0, {repository!r})
from tests import test_store as t
from bcs_lab.errors import StoreError
from bcs_lab.store import EmbeddingStore
store = EmbeddingStore(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
try:
    store.fill(t.PRINT, [*t.KEYS, *map(t.key, range(100, 140))], lambda missing: [(missing, t.vectors(missing))])
except StoreError as error:
    print(error)
    sys.exit(7)
"""


def test_a_full_disk_is_said_and_leaves_nothing_partial(tmp_path: Path) -> None:
    clean, _ = fill(tmp_path)
    before = segments(tmp_path)
    command = [sys.executable, "-c", FULL.format(repository=str(REPOSITORY)), str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 7, child.stderr
    assert "no space left" in child.stdout
    assert str(tmp_path) in child.stdout
    assert segments(tmp_path) == before
    assert not list(tmp_path.glob("*/.*.tmp"))
    assert np.array_equal(EmbeddingStore(tmp_path).get(PRINT, KEYS)[0], clean.embeddings)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_file_system(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32k", "none", str(small)], capture_output=True, check=False
    ).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        store = EmbeddingStore(small)
        store.fill(PRINT, KEYS, Encoder())
        many = [key(number) for number in range(1000)]
        with pytest.raises(StoreError, match=r"no space left to write .*small"):
            store.fill(PRINT, many, lambda missing: [(missing, vectors(missing))])
        assert EmbeddingStore(small).get(PRINT, KEYS)[1].all()
        assert not list(small.glob("*/.*.tmp"))
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_an_unwritable_root_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=r"cannot write .*file"):
        EmbeddingStore(tmp_path / "file").fill(PRINT, KEYS, Encoder())


def test_a_read_only_store_serves_hits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, _ = fill(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    filled, encoder = fill(tmp_path)
    assert encoder.seen == []
    assert np.array_equal(filled.embeddings, clean.embeddings)
    with pytest.raises(StoreError, match="cannot write"):
        EmbeddingStore(tmp_path).fill(PRINT, [key(99)], Encoder())


def test_wrong_shapes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="expected vectors of shape"):
        EmbeddingStore(tmp_path).fill(PRINT, KEYS[:2], lambda missing: [(missing, np.zeros((2, 5)))])
