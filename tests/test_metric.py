"""The torchmetrics metric: values, several processes, half precision, copies, collections, and the example."""

from __future__ import annotations

import copy
import pickle
import runpy
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_model import draw, tiny_ensemble
from torchmetrics import MeanMetric, MetricCollection

from bcs_lab import BCS, BCSMetric
from bcs_lab.errors import ImageError, ModelError

KEYS = ["t_pas", "t_sas", "hh", "hl", "lh", "ll"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_ensemble().save(tmp_path_factory.mktemp("model") / "ensemble")


@pytest.fixture(scope="module")
def bcs(folder: Path) -> BCS:
    return BCS.load(folder, device="cpu")


def images(start: int, n: int) -> torch.Tensor:
    return torch.stack([torch.from_numpy(np.asarray(draw(start + i)).copy()).permute(2, 0, 1) for i in range(n)])


def pairs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Reconstructions and references, uint8."""
    return images(0, n), images(100, n)


def plain(values: dict[str, torch.Tensor]) -> dict[str, float]:
    return {key: value.item() for key, value in values.items()}


def test_values_are_means_and_shares_of_the_scores(bcs: BCS) -> None:
    rec, ref = pairs(7)
    scores = bcs.score(ref, rec)
    metric = BCSMetric(bcs)
    for part in (slice(0, 3), slice(3, 7)):
        metric.update(rec[part] / 255, ref[part] / 255)
    values = metric.compute()
    assert list(values) == KEYS
    assert all(value.ndim == 0 and value.dtype == torch.float32 for value in values.values())
    assert values["t_pas"].item() == pytest.approx(scores.t_pas.mean(), abs=1e-6)
    assert values["t_sas"].item() == pytest.approx(scores.t_sas.mean(), abs=1e-6)
    for code in KEYS[2:]:
        assert values[code].item() == pytest.approx((scores.regime == code).mean())
    assert sum(plain(values)[code] for code in KEYS[2:]) == pytest.approx(1)
    assert (BCSMetric.higher_is_better, BCSMetric.is_differentiable, BCSMetric.full_state_update) == (
        True,
        False,
        False,
    )


def test_value_range_and_uint8(bcs: BCS) -> None:
    rec, ref = pairs(2)
    expected = plain(BCSMetric(bcs)(rec, ref))
    assert plain(BCSMetric(bcs, value_range=(-1, 1))(rec / 127.5 - 1, ref / 127.5 - 1)) == expected
    assert plain(BCSMetric(bcs, value_range=(0, 255))(rec.float(), ref)) == expected
    assert plain(BCSMetric(bcs)((rec / 255).half(), (ref / 255).requires_grad_())) == expected
    with pytest.raises(ImageError, match="value_range"):
        BCSMetric(bcs, value_range=(1, 1))


@pytest.mark.parametrize(
    ("rec", "ref", "message"),
    [
        (torch.zeros(3, 8, 8), torch.zeros(3, 8, 8), r"reconstruction: expected a tensor \[N, C, H, W\].*\[3, 8, 8\]"),
        (torch.zeros(1, 3, 8, 8), np.zeros((1, 3, 8, 8)), "reference: .*ndarray"),
        (torch.zeros(1, 3, 8, 8), torch.zeros(2, 3, 8, 8), "as many"),
        (torch.zeros(1, 3, 8, 8) + 2, torch.zeros(1, 3, 8, 8), "(?s)values from 2 to 2.*value_range"),
        (torch.zeros(1, 8, 8, 3), torch.zeros(1, 3, 8, 8), "3 channels or 1"),
    ],
)
def test_what_is_refused(bcs: BCS, rec: Any, ref: Any, message: str) -> None:
    metric = BCSMetric(bcs)
    with pytest.raises(ImageError, match=message):
        metric.update(rec, ref)
    assert int(metric.pairs) == 0


def test_forward_reset_and_nothing_yet(bcs: BCS) -> None:
    rec, ref = pairs(5)
    metric = BCSMetric(bcs)
    first, second = metric(rec[:2], ref[:2]), metric(rec[2:], ref[2:])
    whole, alone = BCSMetric(bcs), BCSMetric(bcs)
    whole.update(rec, ref)
    alone.update(rec[2:], ref[2:])
    assert plain(second) == plain(alone.compute())
    # A network takes batches of another size another way, to the last bit.
    assert plain(metric.compute()) == pytest.approx(plain(whole.compute()), rel=1e-6)
    assert plain(first) != plain(second)
    metric.reset()
    with pytest.warns(UserWarning, match="before the ``update``"):
        values = metric.compute()
    assert all(value.isnan() for value in values.values())


def test_half_precision_takes_nothing_from_the_sums(bcs: BCS) -> None:
    rec, ref = pairs(5)
    exact, metric = BCSMetric(bcs), BCSMetric(bcs)
    holder = torch.nn.Module()
    holder.metric = metric
    for change in (
        lambda: holder.half(), lambda: metric.half(), lambda: metric.set_dtype(torch.float16),
        lambda: holder.to(torch.bfloat16), lambda: holder.double(),
    ):  # fmt: skip
        change()
        for made in (exact, metric):
            for _ in range(8):
                made.update(rec, ref)
    assert plain(metric.compute()) == plain(exact.compute())
    assert int(metric.pairs) == 200
    assert metric.t_pas_sum.dtype == torch.int64


def test_copies_collections_and_state(bcs: BCS) -> None:
    rec, ref = pairs(4)
    metric = BCSMetric(bcs)
    metric.update(rec[:2], ref[:2])
    others = [metric.clone(), copy.deepcopy(metric), pickle.loads(pickle.dumps(metric))]
    assert others[0].bcs is bcs
    metric.update(rec[2:], ref[2:])
    for other in others:
        other.update(rec[2:], ref[2:])
        assert plain(other.compute()) == plain(metric.compute())
    assert dict(metric.state_dict()) == {}
    assert list(metric.modules()) == [metric]
    metric.persistent(True)
    restored = BCSMetric(bcs)
    restored.load_state_dict(metric.state_dict())
    with pytest.warns(UserWarning, match="before the ``update``"):  # torchmetrics does not keep the count of updates
        assert plain(restored.compute()) == plain(metric.compute())
    collection = MetricCollection({"a": BCSMetric(bcs), "b": BCSMetric(bcs)}, prefix="val_")
    collection.update(rec, ref)
    collection.update(rec, ref)  # from the second batch on the two share their states
    found = plain(collection.compute())
    assert len(found) == 12
    values = plain(metric.compute())
    assert all(found[key] == values[next(name for name in KEYS if key.endswith(name))] for key in found)


def test_in_inference_mode_and_after_it(bcs: BCS) -> None:
    rec, ref = pairs(2)
    metric = BCSMetric(bcs)
    with torch.inference_mode():
        metric.reset()
        metric.update(rec, ref)
    metric.update(rec, ref)
    assert int(metric.pairs) == 4


def test_plot(bcs: BCS) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rec, ref = pairs(2)
    metric = BCSMetric(bcs)
    values = [metric(rec, ref), metric(ref, rec)]
    for given in (None, values):
        figure, _ = metric.plot(given)
        assert figure.axes
        plt.close(figure)


def test_simulated_teachers_are_named_once(tmp_path: Path) -> None:
    folder = tiny_ensemble(simulated_teachers=True).save(tmp_path / "e")
    with pytest.warns(UserWarning, match="SIMULATED TEACHERS"):
        metric = BCSMetric(folder, device="cpu")
    assert metric.simulated_teachers
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metric.update(*pairs(1))
        metric.clone().compute()


def test_a_model_without_semantic_questions_is_refused() -> None:
    ensemble = tiny_ensemble()
    ensemble.questions = [{**question, "group": "perceptual"} for question in ensemble.questions]
    with pytest.raises(ModelError, match="no questions on one of the two axes"):
        BCSMetric(BCS(ensemble))


# --- two processes ---


def work(rank: int, port: int, folder: str, out: str, shares: list[list[int]]) -> None:
    """One of the processes: scores its share of the pairs, twice, and keeps what it computes."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=len(shares)
    )
    rec, ref = pairs(9)
    metric = BCSMetric(folder, device="cpu")
    for i in shares[rank]:
        metric.update(rec[i : i + 1], ref[i : i + 1])
    first = plain(metric.compute())
    metric.half()
    metric.update(rec[rank : rank + 1], ref[rank : rank + 1])
    torch.save([first, plain(metric.compute())], f"{out}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("shares", [[[0, 1, 2, 3, 4, 5, 6], [7, 8]]])
def test_two_processes_agree_with_one(folder: Path, bcs: BCS, tmp_path: Path, shares: list[list[int]]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Forked, since a process that is spawned spends many seconds on imports.
    arguments = (port, str(folder), str(tmp_path), shares)
    torch.multiprocessing.start_processes(work, arguments, nprocs=2, start_method="fork")
    rec, ref = pairs(9)
    single = BCSMetric(bcs)
    single.update(rec, ref)
    expected = [plain(single.compute())]
    single.update(rec[:2], ref[:2])
    expected.append(plain(single.compute()))
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for one, other in zip(found, expected, strict=True):
            # A pair alone and in a batch may differ by the rounding of a matrix product.
            assert one == pytest.approx(other, abs=1e-6)


# --- the example ---


def test_the_example_runs(
    folder: Path, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = repository / "scripts" / "example_metric.py"
    options = ["--model", str(folder), "--epochs", "2", "--pairs", "48", "--out", str(tmp_path / "out"), "--loss"]
    monkeypatch.setattr(sys, "argv", [str(script), *options])
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert "epoch 2: T-PAS 0." in printed
    assert (tmp_path / "out" / "metric.png").is_file()


def test_torchmetrics_beside_it(bcs: BCS) -> None:
    """Sums with other metrics of torchmetrics work as between any two."""
    rec, ref = pairs(2)
    metric, other = BCSMetric(bcs), MeanMetric()
    metric.update(rec, ref)
    other.update(metric.compute()["t_pas"])
    assert other.compute() == metric.compute()["t_pas"]
