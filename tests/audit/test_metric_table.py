"""The metric table: what it holds, how it goes on after a kill, and what a bad image costs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from audit_pictures import flat, scene, write_corpus

from bcs_lab.audit import table as table_module
from bcs_lab.audit.metrics import load_metric
from bcs_lab.audit.metrics.base import Values
from bcs_lab.audit.table import MetricTable, compute_table
from bcs_lab.corpus.images import load_image
from bcs_lab.corpus.schema import Corpus
from bcs_lab.errors import ConfigError
from bcs_lab.store import EmbeddingStore

PIXELS = ["mse", "psnr", "ssim", "pixcorr", "edge_cosine", "color_histogram"]


def drawn(root: Path, n: int = 12, references: int = 4) -> Corpus:
    """References recur, out of order."""
    pairs = [(scene(k % references, (60, 50)), scene(100 + k, (40, 70))) for k in range(n)]
    return write_corpus(root, pairs)


def compute(corpus: Corpus, out: Path, metrics: Any = PIXELS, **options: Any) -> MetricTable:
    return compute_table(corpus, metrics, out, device="cpu", progress=False, **options)


def test_one_row_a_pair_with_the_metrics_own_values(tmp_path: Path) -> None:
    corpus = drawn(tmp_path / "corpus")
    table = compute(corpus, tmp_path / "out", [*PIXELS, "cosine:lowlevel"], chunk=5)
    assert table.values.columns.tolist() == ["pair_id", *PIXELS, "cosine:lowlevel"]
    assert table.values["pair_id"].tolist() == corpus.pairs["pair_id"].tolist()
    ones = [load_image(corpus.reference_file(row)) for row in range(len(corpus))]
    twos = [load_image(corpus.reconstruction_file(row)) for row in range(len(corpus))]
    for name in table.values.columns[1:]:
        np.testing.assert_array_equal(table.values[name], load_metric(name, device="cpu").compute(ones, twos))
    assert table.failures.empty
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out" / "metrics.parquet"), table.values)
    assert (table.facts["distinct_references"], table.facts["distinct_pairs"]) == (4, 12)


def test_a_second_run_computes_nothing_and_other_metrics_are_added(tmp_path: Path) -> None:
    corpus = drawn(tmp_path / "corpus")
    first = compute(corpus, tmp_path / "out", ["ssim"])
    again = compute(corpus, tmp_path / "out", ["ssim"])
    assert again.facts["cells_found"] == again.facts["cells"]
    assert "pairs_computed" not in again.facts
    pd.testing.assert_frame_equal(first.values, again.values)
    more = compute(corpus, tmp_path / "out", ["mse", "ssim"])
    assert "pairs_computed" in more.facts
    np.testing.assert_array_equal(more.values["ssim"], first.values["ssim"])
    # Another definition is another cell; the earlier one is still there.
    gaussian = compute(corpus, tmp_path / "out", ["ssim"], options={"ssim": {"window": "gaussian"}})
    assert not np.allclose(gaussian.values["ssim"], first.values["ssim"])
    back = compute(corpus, tmp_path / "out", ["ssim"])
    assert "pairs_computed" not in back.facts
    np.testing.assert_array_equal(back.values["ssim"], first.values["ssim"])


def test_cells_follow_the_content_not_the_name(tmp_path: Path) -> None:
    corpus = drawn(tmp_path / "corpus", 6)
    first = compute(corpus, tmp_path / "out", ["mse"])
    scene(999, (40, 70)).save(corpus.reconstruction_file(2))
    changed = compute(corpus, tmp_path / "out", ["mse"])
    assert changed.facts["pairs_computed"] == 1
    differs = changed.values["mse"] != first.values["mse"]
    assert np.flatnonzero(differs).tolist() == [2]


def test_sizes_identical_and_constant_pictures(tmp_path: Path) -> None:
    pairs = [
        (scene(1, (200, 50)), scene(2, (33, 90))),
        (scene(1, (200, 50)), scene(1, (200, 50))),
        (scene(3), flat(128)),
        (flat(0), flat((255, 0, 0))),
        (scene(4, (1, 1)), scene(5, (2, 3))),
    ]
    table = compute(write_corpus(tmp_path / "corpus", pairs), tmp_path / "out")
    values, failures = table.values.set_index("pair_id"), table.failures
    assert values["psnr"].map(np.isposinf).tolist() == [False, True, False, False, False]
    assert values.loc["p0001", "mse"] == 0
    undefined = {(row.pair_id, row.metric) for row in failures[failures["kind"] == "undefined"].itertuples()}
    assert undefined >= {("p0002", "pixcorr"), ("p0003", "edge_cosine")}
    assert all(np.isnan(values.loc[pair, metric]) for pair, metric in undefined)
    flags = {(row.pair_id, row.metric) for row in failures[failures["kind"] == "flag"].itertuples()}
    assert flags == {
        ("p0001", "identical_pictures"), ("p0002", "flat_reconstruction"), ("p0003", "flat_reconstruction")
    } | ({("p0004", "flat_reconstruction")} & flags)  # fmt: skip
    assert not (failures["kind"] == "failed").any()
    capped = compute(write_corpus(tmp_path / "corpus", pairs), tmp_path / "out", ["psnr"], compat="reference")
    assert capped.values["psnr"][1] == 100.0


def test_a_bad_image_is_a_row_of_failures_and_is_tried_again(tmp_path: Path) -> None:
    pairs = [(scene(k), scene(50 + k)) for k in range(5)]
    bad = [pairs[0], (pairs[1][0], b"no image"), (b"", pairs[2][1]), pairs[3], pairs[4]]
    corpus = write_corpus(tmp_path / "corpus", bad)
    corpus.reconstruction_file(3).unlink()
    table = compute(corpus, tmp_path / "out", ["ssim", "cosine:lowlevel"])
    assert np.isnan(table.values["ssim"]).tolist() == [False, True, True, True, False]
    failed = table.failures
    assert set(failed["kind"]) == {"failed"}
    assert failed["pair_id"].tolist() == ["p0001"] * 2 + ["p0002"] * 2 + ["p0003"] * 2
    assert failed["metric"].tolist() == ["ssim", "cosine:lowlevel"] * 3
    reasons = failed["reason"].tolist()
    assert "reconstruction image" in reasons[0]
    assert "rec_0001.png" in reasons[0]
    assert "reference image" in reasons[2]
    assert "no such file" in reasons[4]
    for row in (1, 3):
        pairs[row][1].save(corpus.reconstruction_file(row))
    pairs[2][0].save(corpus.reference_file(2))
    mended = compute(corpus, tmp_path / "out", ["ssim", "cosine:lowlevel"])
    assert mended.failures.empty
    whole = compute(write_corpus(tmp_path / "other", pairs), tmp_path / "other_out", ["ssim", "cosine:lowlevel"])
    pd.testing.assert_frame_equal(mended.values, whole.values)


def test_a_metric_that_fails_on_one_pair_costs_no_other_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = drawn(tmp_path / "corpus", 8)
    metric = load_metric("cosine:lowlevel")
    target = load_image(corpus.reconstruction_file(3))
    bad = metric.describe([target])[0][0]
    compare = type(metric.family).compare

    def fussy(self: Any, names: Any, references: Any, reconstructions: Any) -> dict[str, Values]:
        if any(np.array_equal(part[0], bad) for part in reconstructions):
            raise RuntimeError("cannot stand this one")
        return compare(self, names, references, reconstructions)

    monkeypatch.setattr(type(metric.family), "compare", fussy)
    table = compute(corpus, tmp_path / "out", ["ssim", metric])
    assert np.flatnonzero(np.isnan(table.values["cosine:lowlevel"])).tolist() == [3]
    assert not table.values["ssim"].isna().any()
    assert "RuntimeError: cannot stand this one" in table.failures["reason"][0]
    monkeypatch.undo()
    again = compute(corpus, tmp_path / "out", ["ssim", metric])
    assert again.facts["pairs_computed"] == 1
    assert again.failures.empty


def test_images_are_decoded_once_and_references_described_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = drawn(tmp_path / "corpus", 24, references=3)
    decoded: list[str] = []
    monkeypatch.setattr(
        table_module, "load_image", lambda path, **options: decoded.append(path.name) or load_image(path, **options)
    )
    metric = load_metric("cosine:lowlevel")
    described = []
    compute_vectors = type(metric.family).features
    monkeypatch.setattr(
        type(metric.family), "features",
        lambda self, inputs: described.append(len(inputs)) or compute_vectors(self, inputs),
    )  # fmt: skip
    compute(corpus, tmp_path / "out", [*PIXELS, metric], chunk=5)
    assert len(decoded) == 24 + 3
    assert len(set(decoded)) == len(decoded)
    assert sum(described) == 24 + 3


def test_embeddings_go_through_the_store(tmp_path: Path) -> None:
    corpus = drawn(tmp_path / "corpus")
    store = EmbeddingStore(tmp_path / "store")
    options = {"cosine:efficientnet_lite0": {"image_size": 64}}
    names = ["cosine:efficientnet_lite0"]
    first = compute(corpus, tmp_path / "one", names, options=options, store=store)
    metric = load_metric(names[0], options=options[names[0]], device="cpu")
    (fingerprint,) = metric.family.embeds
    from bcs_lab.corpus.images import file_sha256

    keys = [file_sha256(corpus.reconstruction_file(row)) for row in range(12)]
    assert store.get(fingerprint, keys)[1].all()

    def never(inputs: Any) -> Any:
        raise AssertionError("everything is in the store")

    metric.family.features = never  # type: ignore[method-assign]
    again = compute(corpus, tmp_path / "two", [metric], store=store)
    np.testing.assert_array_equal(first.values[names[0]], again.values[names[0]])


def test_unavailable_metrics_have_an_empty_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "none"))
    table = compute(drawn(tmp_path / "corpus", 4), tmp_path / "out", ["lpips", "mse"])
    assert table.values["lpips"].isna().all()
    assert table.values["mse"].notna().all()
    assert set(table.unavailable) == {"lpips"}
    assert table.failures.empty


def test_set_level_metrics_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set of pairs"):
        compute(drawn(tmp_path / "corpus", 4), tmp_path / "out", ["mse", "swav"])


def test_a_corpus_without_images_gives_what_its_embeddings_give(tmp_path: Path) -> None:
    from bcs_lab.corpus import load_corpus

    corpus = load_corpus("brainbank")
    table = compute(corpus, tmp_path, ["ssim", "cosine:efficientnet_lite0"])
    assert "no images" in table.unavailable["ssim"]
    part = corpus.shipped["efficientnet_lite0"]
    one, two = (part.images[rows].astype(np.float64) for rows in (part.reference, part.reconstruction))
    wanted = (one * two).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    np.testing.assert_allclose(table.values["cosine:efficientnet_lite0"], wanted, atol=1e-12)


# --- killed ----------------------------------------------------------------------------------------------------------


def test_many_parts_become_one_and_a_damaged_one_is_computed_again(tmp_path: Path) -> None:
    corpus = drawn(tmp_path / "corpus", 6)
    first = compute(corpus, tmp_path / "out", ["mse", "ssim"])
    cells = tmp_path / "out" / "cells"
    (part,) = cells.glob("part-*.parquet")
    for number in range(40):
        (cells / f"part-{number + 2:06d}-00000000.parquet").write_bytes(part.read_bytes())
    (cells / ".part-000099-aa.parquet.bb.tmp").write_bytes(b"torn")
    pd.testing.assert_frame_equal(compute(corpus, tmp_path / "out", ["mse", "ssim"]).values, first.values)
    assert len(list(cells.iterdir())) == 1
    (part,) = cells.glob("part-*.parquet")
    part.write_bytes(part.read_bytes()[:-20])
    again = compute(corpus, tmp_path / "out", ["mse", "ssim"])
    assert again.facts["pairs_computed"] == 6
    pd.testing.assert_frame_equal(again.values, first.values)


SCRIPT = """
import sys
from pathlib import Path
import bcs_lab.audit.table as table
from bcs_lab.corpus import load_corpus
table.FLUSH_SECONDS = 0.0
corpus = load_corpus("manifest", sys.argv[1], need_answers=False, need_images=False)
print("ready", flush=True)
table.compute_table(corpus, ["mse", "psnr", "ssim", "pixcorr", "edge_cosine", "cosine:lowlevel"], Path(sys.argv[2]),
                    chunk=4, progress=False)
print("done", flush=True)
"""


def test_killed_at_random_moments_it_gives_the_same_table(tmp_path: Path, repository: Path) -> None:
    pairs = [(scene(k % 9, (120, 100)), scene(500 + k, (90, 110))) for k in range(120)]
    pairs[7] = (pairs[7][0], flat(9))  # an undefined cell
    corpus = write_corpus(tmp_path / "corpus", pairs)
    names = ["mse", "psnr", "ssim", "pixcorr", "edge_cosine", "cosine:lowlevel"]
    whole = compute(corpus, tmp_path / "whole", names)
    out = tmp_path / "killed"
    draw = random.Random(5)
    environment = {**os.environ, "PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"}
    parts = out / "cells"
    for kill in range(3):
        before = len(list(parts.glob("part-*"))) if parts.is_dir() else 0
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "corpus"), str(out)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            # Once before anything is written, then in the middle of the work.
            until = time.monotonic() + 60
            while kill and len(list(parts.glob("part-*"))) <= before and time.monotonic() < until:
                time.sleep(0.002)
            time.sleep(draw.uniform(0.0, 0.05))
            process.send_signal(signal.SIGKILL)
            assert "done" not in process.stdout.read()
    final = compute(corpus, out, names)
    assert 0 < final.facts["cells_found"] < final.facts["cells"]
    pd.testing.assert_frame_equal(final.values, whole.values)
    pd.testing.assert_frame_equal(final.failures, whole.failures)
    assert (out / "metrics.parquet").read_bytes() == (tmp_path / "whole" / "metrics.parquet").read_bytes()
    assert not list(out.glob("**/*.tmp"))


def test_the_record_is_plain_json(tmp_path: Path) -> None:
    from bcs_lab.files import json_safe

    table = compute(drawn(tmp_path / "corpus", 4), tmp_path / "out", ["psnr", "cosine:lowlevel"])
    text = json.dumps(json_safe({"identities": table.identities, "facts": table.facts}), allow_nan=False)
    assert str(tmp_path) not in text
