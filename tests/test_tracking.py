"""W&B as a mirror: offline by default, below the job's folder, always finished."""

from __future__ import annotations

from pathlib import Path

import pytest

from bcs_lab.config import LoggerConfig
from bcs_lab.errors import RunError
from bcs_lab.tracking import CSVTracker, Tracker, WandbTracker, _wandb_mode, tracking


@pytest.mark.parametrize("variable", ["WANDB_API_KEY", None])
def test_online_only_for_who_has_logged_in(
    variable: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert _wandb_mode("auto") == "offline"
    assert _wandb_mode("online") == "online"
    if variable:
        monkeypatch.setenv(variable, "k" * 40)
    else:
        (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert _wandb_mode("auto") == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert _wandb_mode("auto") == "disabled"


def test_a_failure_inside_finishes_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    monkeypatch.chdir(tmp_path)
    (tmp_path / "job").mkdir()
    config = LoggerConfig(name="wandb")
    with (  # noqa: PT012 (fails half-way)
        pytest.raises(ZeroDivisionError),
        tracking(config, tmp_path / "job", settings={"a": 1}, tags=["t"], group="g", name="n") as tracker,
    ):
        assert isinstance(tracker, WandbTracker)
        assert tracker.run.group == "g"
        assert tracker.run.tags == ("t",)
        assert dict(tracker.run.config) == {"a": 1}
        tracker.note({"encoders": ["siglip (stand-in x)"]})
        assert tracker.run.config["used"] == {"encoders": ["siglip (stand-in x)"]}
        with (
            pytest.raises(RunError, match="already open"),
            tracking(config, tmp_path / "job", settings={}, tags=[], group=None, name="m"),
        ):
            pass
        raise ZeroDivisionError
    assert wandb.run is None
    assert len(list((tmp_path / "job" / "wandb").glob("offline-run-*"))) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


def test_csv_curves_have_a_folder_a_member(tmp_path: Path) -> None:
    with tracking(LoggerConfig(name="csv"), tmp_path, settings={}, tags=[], group=None, name="n") as tracker:
        assert isinstance(tracker, CSVTracker)
        logger = tracker.member_logger(7)
        logger.log_metrics({"val/loss": 0.5}, step=0)
        logger.save()
    assert (tmp_path / "curves" / "seed-7" / "metrics.csv").is_file()


def test_none_mirrors_nothing(tmp_path: Path) -> None:
    with tracking(LoggerConfig(name="none"), tmp_path, settings={}, tags=[], group=None, name="n") as tracker:
        assert type(tracker) is Tracker
        assert tracker.member_logger(7) is None
        tracker.results([{"kind": "run"}], {}, [])
    assert list(tmp_path.iterdir()) == []
