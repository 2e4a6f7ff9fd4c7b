"""The few-label experiment: its recipes, choosing among heads, and the tables of a sweep over training pairs."""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from bcs_lab.catalogue import choices, config_dir
from bcs_lab.cli import main
from bcs_lab.config import TrainConfig, parse
from bcs_lab.errors import ConfigError
from bcs_lab.evaluate import holm
from bcs_lab.files import write_json
from bcs_lab.heads import HEADS, build_head, check_features
from bcs_lab.heads.fitted import FittedHead, concept_folds
from bcs_lab.heads.stack import best_weights
from bcs_lab.launch import resolve
from bcs_lab.report.compare import collect, compare
from bcs_lab.report.labels import AXES, label_study, markdown, page_tables, tables
from bcs_lab.report.labels_figure import spread
from bcs_lab.report.table import HEADINGS

SIZES = (25, 100, None)


# --- recipes ----------------------------------------------------------------------------------------------------------


def recipe(name: str, *more: str) -> TrainConfig:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return parse(TrainConfig, resolve(compose("train", ["experiment=few_labels", f"recipe={name}", *more])))


@pytest.mark.parametrize("name", choices("recipe"))
def test_every_recipe_is_a_head_on_features_it_takes(name: str) -> None:
    config = recipe(name)
    check_features(config.head.name, config.features.kind)
    build_head(config.head.name, 20, 12, **config.head.settings)
    assert config.split.fold == "all"
    assert config.logger.name == "none"


def test_the_sweep_of_the_experiment_holds_no_job_that_cannot_be() -> None:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        composed = compose("train", ["experiment=few_labels"], return_hydra_config=True)
    params: Any = OmegaConf.to_container(composed.hydra.sweeper.params)
    swept = {key: str(values).split(",") for key, values in params.items()}
    assert set(swept["split.train_pairs"]) == {"25", "50", "100", "200", "null"}
    assert set(swept["encoder"]) == {"embedded", "efficientnet_lite0", "efficientnet_lite2"}
    assert set(swept["recipe"]) <= set(choices("recipe"))
    assert recipe(swept["recipe"][0], "encoder=efficientnet_lite2", "split.train_pairs=200").split.train_pairs == 200


def test_recipes_hold_the_papers_head_and_features() -> None:
    config = recipe("paper")
    assert (config.head.name, config.features.kind) == ("continuous", "embedding")
    assert config.head.settings == {"hidden": 512, "blocks": 2, "dropout": 0.2}


# --- choosing among heads ---------------------------------------------------------------------------------------------


def rows(n: int = 80, dim: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A line in the first feature: nothing for trees, all for ridge."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, dim)).astype(np.float32)
    y = np.clip(0.5 + 0.15 * x[:, :1] + 0.01 * rng.normal(size=(n, 3)), 0, 1).astype(np.float32)
    return x, y, rng.uniform(0.5, 1, size=(n, 3)).astype(np.float32), np.arange(n) // 2


OF = [{"trees": {"trees": 5, "min_leaf": 10}}, {"ridge": {"alpha": 1.0}}]


def fitted(of: Any, seed: int = 3, **settings: Any) -> FittedHead:
    x, y, weight, groups = rows()
    head = build_head("stack", x.shape[1], y.shape[1], of=of, **settings)
    assert isinstance(head, FittedHead)
    head.fit(x, y, weight, seed, groups=groups)
    return head.eval()


@pytest.mark.parametrize("order", [OF, OF[::-1]])
def test_the_best_takes_all(order: list[Any]) -> None:
    x = torch.from_numpy(rows()[0])
    head = fitted(order, combine="best")
    names = list(head.parts)  # type: ignore[arg-type]
    assert head.weights.tolist() == [float(name == "ridge") for name in names]  # type: ignore[operator,union-attr]
    alone = build_head("ridge", 6, 3, alpha=1.0)
    assert isinstance(alone, FittedHead)
    alone.fit(*rows()[:3], 3, groups=rows()[3])
    torch.testing.assert_close(head(x).prediction, alone.eval()(x).prediction)


def test_the_choice_is_the_least_error_on_held_out_concepts() -> None:
    """Recomputed from heads fitted fold by fold."""
    x, y, weight, groups = rows()
    y = np.where(x[:, 1:2] > 0, 0.8, 0.2) + 0.1 * x[:, :1] + np.zeros((1, 3))
    y = np.clip(y, 0, 1).astype(np.float32)
    error = {"trees": 0.0, "ridge": 0.0}
    for held in concept_folds(groups, 5, 11):
        for name, settings in (("trees", {"trees": 20}), ("ridge", {"alpha": 10.0})):
            part: Any = build_head(name, 6, 3, **settings)
            part.fit(x[~held], y[~held], weight[~held], 11, groups=groups[~held])
            square = (part.eval()(torch.from_numpy(x[held])).prediction.detach().numpy() - y[held]) ** 2
            error[name] += float((weight[held] * square).sum())
    head: Any = build_head("stack", 6, 3, of=[{"trees": {"trees": 20}}, {"ridge": {"alpha": 10.0}}], combine="best")
    head.fit(x, y, weight, 11, groups=groups)
    best = min(error, key=lambda name: error[name])
    assert dict(zip(head.parts, head.weights.tolist(), strict=True)) == {name: float(name == best) for name in error}


def test_best_weights_by_hand() -> None:
    target, weight = np.array([0.0, 1.0, 0.5]), np.array([1.0, 1.0, 4.0])
    predictions = target[:, None] + np.array([[0.3, 0.0], [0.3, 0.0], [0.0, 0.25]])
    assert best_weights(predictions, target, weight).tolist() == [1.0, 0.0]
    assert best_weights(predictions, target, np.ones(3)).tolist() == [0.0, 1.0]
    assert best_weights(np.zeros((3, 2)), target, weight).tolist() == [1.0, 0.0]


def test_a_chosen_head_survives_saving_and_one_concept() -> None:
    head = fitted(OF, combine="best")
    again = build_head("stack", 6, 3, of=OF, combine="best")
    again.load_state_dict(head.state_dict())
    x = torch.from_numpy(rows()[0])
    torch.testing.assert_close(again.eval()(x).prediction, head(x).prediction, rtol=0, atol=0)
    x_, y, weight, _ = rows()
    one: Any = build_head("stack", 6, 3, of=OF, combine="best")
    one.fit(x_, y, weight, 0, groups=np.zeros(len(x_), dtype=int))
    assert one.weights.tolist() == [1.0, 0.0]


def test_weights_stay_the_default_and_other_ways_are_refused() -> None:
    torch.testing.assert_close(
        fitted(OF).state_dict()["weights"], fitted(OF, combine="weights").state_dict()["weights"]
    )
    with pytest.raises(ConfigError, match=r"head\.combine=worst: expected one of weights, best"):
        build_head("stack", 6, 3, of=OF, combine="worst")
    assert HEADS["stack"].FITS_ITSELF


# --- tables of a sweep ------------------------------------------------------------------------------------------------


def fake(folder: Path, name: str, encoder: str, size: int | None, rho: float, p: float | None, **more: Any) -> None:
    """A finished cross-validation with given numbers."""
    values = {key: 0.2 if key.endswith("_mae") else rho for key in HEADINGS}
    cosines = {f"cosine {encoder}": {**values, "pas_rho": 0.7, "sas_rho": 0.6}}
    metrics = {
        "ensemble": values,
        "ci95": {key: [value - 0.05, value + 0.05] for key, value in values.items()},
        "members": [{"seed": 7, "best_epoch": 1, "epochs": 1, **values}],
        "baseline": values,
        "baselines": cosines,
        "n": {"train": size or 233, "val": 9, "test": 311},
        "encoders": [encoder],
        "stand_in": False,
        "simulated_teachers": False,
        "teachers": ["a", "b"],
        "head": "ridge",
        "split": "kfold",
        "wall_s": 1.0,
    }
    write_json(folder / "metrics.json", metrics)
    record = {"corpus": "c", "split_hash": "h", "test_hash": "h", "state": "finished", "overrides": [f"recipe={name}"]}
    write_json(folder / "run.json", {**record, **more})
    settings = {"split": {"fold": "all", "train_pairs": size}, "head": {"name": "ridge"}}
    (folder / "config.yaml").write_text(json.dumps(settings), encoding="utf-8")
    test = {"name": f"cosine {encoder}", "difference": rho - 0.7, "interval": [rho - 0.75, rho - 0.65], "p": p}
    axis = {
        "ensemble": {"value": rho, "interval": [rho - 0.05, rho + 0.05]},
        "cosines": {f"cosine {encoder}": {"value": 0.7, "interval": [0.6, 0.8]}},
        "against": {"best cosine": test},
    }
    found = {"pairs": 311, "concepts": 153, "resamples": 100, "seed": 0}
    write_json(folder / "paired.json", {**found, **{key: {"rho": axis, "r": axis} for key in ("t_pas", "t_sas")}})


#: Recipe -> p value a size.
P = {"stack": (0.9, 0.012, 0.001), "ridge": (0.3, 0.02, 0.03), "paper": (0.001, 0.001, None)}


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for index, (name, values) in enumerate(P.items()):
        for place, (size, p) in enumerate(zip(SIZES, values, strict=True)):
            rho = {"stack": 0.70, "ridge": 0.65, "paper": 0.1}[name] + 0.05 * place
            fake(tmp_path / str(3 * index + place), name, "lite0", size, rho, p)
    return tmp_path


def test_quality_by_labels(sweep: Path) -> None:
    study = label_study(collect([sweep])[0])
    assert study is not None
    assert (study.sizes, study.everything, study.encoders) == ((25, 100, 233), 233, ["lite0"])
    for column in AXES:
        assert {key[1] for key in study.quality[column]} == set(P)
        for place, size in enumerate(study.sizes):
            cells = {name: study.quality[column]["lite0", name][size] for name in P}
            wanted = holm([values[place] for values in P.values()])
            assert [cells[name].tests["best cosine"]["holm"] for name in P] == wanted
            assert cells["stack"].value == pytest.approx(0.70 + 0.05 * place)
    said = tables(study)
    assert "233 (all)" in said
    lines = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    assert "▲0.800*" in lines["stack"]
    assert "▲0.750*" in lines["stack"]
    assert "▲" not in lines["ridge"].split()[1]
    assert lines["paper"].count("▽") == 2  # an undefined p marks nothing
    assert "(cosine lite0)" in said


def test_files_of_the_comparison(sweep: Path) -> None:
    said = compare([sweep], sweep)
    assert "All 9 runs" in said
    text, page = ((sweep / f"comparison.{end}").read_text(encoding="utf-8") for end in ("md", "html"))
    assert "### T-PAS, Spearman's ρ" in text
    assert "### T-SAS: difference to the best cosine, and Holm's p" in text
    assert "**+0.100 [+0.050, +0.150], p 0.002**" in text
    assert page.count("<svg") == 2
    assert "Quality against the number of labels" in page
    assert not re.search(r"""(?:src|href)=["']http""", page)
    assert (sweep / "quality_by_labels.png").stat().st_size > 10_000
    svg = (sweep / "quality_by_labels.svg").read_text(encoding="utf-8")
    assert all(f">{name}  0." in svg for name in P)
    assert ">233" in svg
    before = svg
    compare([sweep], sweep)
    assert (sweep / "quality_by_labels.svg").read_text(encoding="utf-8") == before


def test_names_are_escaped(sweep: Path) -> None:
    fake(sweep / "9", "<b>|x", "lite0", 25, 0.5, 0.5)
    study = label_study(collect([sweep])[0])
    assert study is not None
    assert "\\<b\\>\\|x" in markdown(study)
    compare([sweep], sweep)
    assert "<b>|x" not in (sweep / "comparison.html").read_text(encoding="utf-8")


def test_where_there_is_no_such_table(sweep: Path, tmp_path: Path) -> None:
    one = [sweep / str(number) for number in (0, 3, 6)]  # all from 25 labels
    assert label_study(collect(one)[0]) is None
    fake(tmp_path / "other", "stack", "lite0", 50, 0.5, 0.5, test_hash="other")
    assert label_study(collect([sweep])[0]) is None
    assert "different test pairs" in compare([sweep], tmp_path / "out")


def test_sizes_that_a_recipe_lacks_stay_empty(sweep: Path) -> None:
    (sweep / "8" / "metrics.json").unlink()  # paper from all
    (sweep / "1" / "paired.json").unlink()
    study = label_study(collect([sweep])[0])
    assert study is not None
    assert not study.validated
    (group,) = page_tables(study)[0]["groups"]
    shown = {name: [cell["value"] for cell in cells] for name, _, cells in group[1]}
    assert shown["paper"] == ["0.100", "0.150", ""]
    assert shown["stack"] == ["0.700", "0.750", "0.800"]
    compare([sweep], sweep)


def test_runs_of_one_split_have_values_but_no_tests(sweep: Path) -> None:
    for path in sweep.glob("*/paired.json"):
        path.unlink()
    study = label_study(collect([sweep])[0])
    assert study is not None
    assert study.opponents() == []
    assert "▲" not in tables(study)
    assert "of one split" in tables(study)
    compare([sweep], sweep)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
def test_names_beside_lines_do_not_overlap(count: int) -> None:
    values = sorted(np.random.default_rng(count).uniform(0.9, 1.0, size=count).tolist())
    places = spread(values, 0.1, 0.0, 1.0)
    assert all(b - a >= 0.1 - 1e-6 for a, b in itertools.pairwise(places))
    assert min(places) >= -1e-9
    assert max(places) <= 1 + 1e-9


def test_a_small_sweep_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bcs"])
    call: Callable[[list[str]], int] = main
    command = [
        "train", "-m", "experiment=few_labels", "recipe=ridge", "encoder=efficientnet_lite0", "workers=1",
        "split.train_pairs=25,null", "split.folds=3", "bootstrap.resamples=100", "hydra.sweep.dir=sweep",
    ]  # fmt: skip
    assert call(command) == 0
    said = capsys.readouterr().out
    assert "(cosine efficientnet_lite0)" in said
    assert "(cross-validation: no model)" in said
    study = label_study(collect([tmp_path / "sweep"])[0])
    assert study is not None
    assert study.sizes[0] == 25
    for cells in study.quality["pas_rho"].values():
        assert all(cell.tests["best cosine"]["holm"] is not None for cell in cells.values())
        assert cells[study.sizes[-1]].value is not None
    assert call(command) == 0  # nothing is trained again
    assert "already finished" in capsys.readouterr().err
