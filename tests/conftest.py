"""Shared fixtures: nothing here reaches the network, W&B's servers or the user's own store."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before torch is imported: several test processes share the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("BCS_STORE", str(tmp_path_factory.mktemp("store")))
    monkeypatch.setenv("BCS_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def repository() -> Path:
    """Root of the checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Hydra configures the root logger for each command; its handlers hold streams that end with the test."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
