"""Finished members survive a killed training, and only for the same data and settings (case R05)."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_lightning.callbacks import Callback
from small import make_data, make_similarity_data

from bcs_lab.data import BCSDataModule
from bcs_lab.fit import train_ensemble
from bcs_lab.members import MemberResult

HEAD = {"name": "continuous", "hidden": 8}
QUICK = {"max_epochs": 3}


def train(
    data: BCSDataModule, keep: Path | None, seeds: list[int], **changes: Any
) -> tuple[list[MemberResult], list[int]]:
    """The members, and the seeds that were really trained."""
    started: list[int] = []

    class Note(Callback):
        def __init__(self, seed: int) -> None:
            started.append(seed)

    settings: dict[str, Any] = {"head": HEAD, "optim": {}, "trainer": QUICK} | changes
    members = train_ensemble(
        data,
        settings["head"],
        settings["optim"],
        settings["trainer"],
        seeds,
        callback_factory=lambda s: [Note(s)],
        keep=keep,
    )
    return members, started


def equal(a: MemberResult, b: MemberResult) -> bool:
    return (
        (a.seed, a.best_epoch, a.epochs, a.history) == (b.seed, b.best_epoch, b.epochs, b.history)
        and np.array_equal(a.predictions, b.predictions)
        and a.state_dict.keys() == b.state_dict.keys()
        and all(torch.equal(a.state_dict[key], b.state_dict[key]) for key in a.state_dict)
    )


def test_a_second_start_trains_only_what_is_missing_and_gives_the_same_numbers(tmp_path: Path) -> None:
    data, *_ = make_data()
    clean, _ = train(data, None, [7, 13, 21])
    first, started = train(data, tmp_path, [7, 13])
    assert started == [7, 13]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again, started = train(data, tmp_path, [7, 13, 21])
    assert started == [21]
    assert all(equal(a, b) for a, b in zip(again, clean, strict=True))
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert len(first) == 2


@pytest.mark.parametrize(
    "changes",
    [{"head": {"name": "continuous", "hidden": 16}}, {"optim": {"lr": 1e-2}}, {"trainer": {"max_epochs": 4}}],
)
def test_other_settings_train_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    data, *_ = make_data()
    train(data, tmp_path, [7])
    members, started = train(data, tmp_path, [7], **changes)
    assert started == [7]
    assert equal(members[0], train(data, None, [7], **changes)[0][0])


@pytest.mark.parametrize("name", ["ridge", "trees", "boosting", "kernel", "stack"])
def test_members_of_heads_that_fit_themselves_are_taken_over(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data, *_ = make_similarity_data()
    few: dict[str, dict[str, Any]] = {"trees": {"trees": 5}, "boosting": {"trees": 3}, "stack": {"folds": 2}}
    head = {"name": name, **few.get(name, {})}
    clean, _ = train(data, None, [7, 13], head=head)
    train(data, tmp_path, [7], head=head)
    with caplog.at_level(logging.INFO):
        again, started = train(data, tmp_path, [7, 13], head=head)
    assert started == [13]
    assert "(seed 7): already trained" in caplog.text
    assert all(equal(a, b) for a, b in zip(again, clean, strict=True))


def test_other_targets_or_another_size_train_again(tmp_path: Path) -> None:
    data, *_ = make_data()
    train(data, tmp_path, [7])
    data.targets[0, 0] = 1.0 - data.targets[0, 0]
    assert train(data, tmp_path, [7])[1] == [7]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.6, 0.999])
def test_a_cut_file_is_named_and_trained_again(tmp_path: Path, share: float, caplog: pytest.LogCaptureFixture) -> None:
    data, *_ = make_data()
    (clean,), _ = train(data, tmp_path, [7])
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with caplog.at_level(logging.WARNING):
        (member,), started = train(data, tmp_path, [7])
    assert started == [7]
    assert equal(member, clean)
    assert str(path) in caplog.text
    assert "damaged" in caplog.text
