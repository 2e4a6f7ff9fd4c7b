"""Subsets of the training part, all folds in one run, and what is pooled and tested from them."""

from __future__ import annotations

import doctest
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from small import make_embeddings, make_pairs, make_similarities, make_targets

from bcs_lab import crossval, paired
from bcs_lab.config import TrainConfig, parse
from bcs_lab.consensus import consensus
from bcs_lab.corpus import load_corpus
from bcs_lab.data import BCSDataModule
from bcs_lab.embeddings import pair_embeddings
from bcs_lab.errors import ConfigError, ModelError, SplitError
from bcs_lab.evaluate import bootstrap_ci, cosine_scores, evaluate, holm
from bcs_lab.files import read_json
from bcs_lab.fit import train_ensemble
from bcs_lab.members import MemberResult
from bcs_lab.models import resolve_model
from bcs_lab.paired import against_cosines, bootstrap_p
from bcs_lab.report.page import write_report
from bcs_lab.split import PARTS, UNUSED, Split, concept_key, make_folds, make_split
from bcs_lab.tasks.train import train
from bcs_lab.teachers.protocol import BCS12

HEAD = {"name": "ridge", "alpha": [10.0, 100.0]}
AXES = {"pas": "t_pas", "sas": "t_sas"}


# --- subsets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["concept", "kfold", "subject", "method", "pair"])
def test_training_part_is_cut_to_the_number_and_nested(scheme: str) -> None:
    pairs = make_pairs(200, 60)
    whole = make_split(pairs, scheme)
    earlier: set[int] = set()
    for wanted in (2, 9, 25, 26, 60):
        split = make_split(pairs, scheme, train_pairs=wanted)
        train, val = (set(split.indices(part).tolist()) for part in ("train", "val"))
        assert len(train) == wanted
        assert earlier <= train <= set(whole.indices("train").tolist())
        assert val <= set(whole.indices("val").tolist())
        assert len(val) == min(max(2, -(-wanted // 5)), whole.counts()["val"])
        np.testing.assert_array_equal(split.indices("test"), whole.indices("test"))
        left = np.flatnonzero(split.assignment == UNUSED)
        assert sum(split.counts().values()) + len(left) == len(pairs)
        assert split.hash != whole.hash
        assert split.test_hash == whole.test_hash
        earlier = train


def test_at_most_one_concept_is_cut() -> None:
    pairs = make_pairs(200, 40)
    split = make_split(pairs, "concept", train_pairs=43)
    whole = make_split(pairs, "concept")
    taken = pairs["concept"].to_numpy()[split.indices("train")]
    full = pd.Series(pairs["concept"].to_numpy()[whole.indices("train")]).value_counts()
    cut = [name for name, count in pd.Series(taken).value_counts().items() if count < full[name]]
    assert len(cut) == 1


def test_subsets_depend_on_the_seed_and_on_no_order_of_pairs() -> None:
    pairs = make_pairs(120, 40)
    order = np.random.default_rng(0).permutation(len(pairs))
    one, two = (make_split(frame, train_pairs=20) for frame in (pairs, pairs.iloc[order].reset_index(drop=True)))
    assert set(one.pair_ids[one.indices("train")]) == set(two.pair_ids[two.indices("train")])
    assert one.hash == two.hash == make_split(pairs, train_pairs=20).hash
    assert one.hash != make_split(pairs, train_pairs=20, seed=1).hash


@pytest.mark.parametrize("wanted", [1, 0, -3, 2.5, "25", True])
def test_no_number_of_pairs(wanted: Any) -> None:
    with pytest.raises(ConfigError, match=r"split\.train_pairs=.*at least 2"):
        make_split(make_pairs(), train_pairs=wanted)


def test_more_pairs_than_there_are() -> None:
    with pytest.raises(SplitError, match=r"train_pairs=500: the training part has \d+ pairs; ask for at most \d+"):
        make_split(make_pairs(), train_pairs=500)
    with pytest.raises(SplitError, match=r"the training part of fold 0 has"):
        make_folds(make_pairs(), train_pairs=500)


def test_unused_pairs_are_never_learned_from() -> None:
    embeddings = make_embeddings()
    targets, weights = make_targets(embeddings)
    split = make_split(make_pairs(), train_pairs=10)
    data = BCSDataModule(embeddings, targets, weights, split)
    assert len(data.training_rows().x) == 10
    used = np.concatenate([data.part[part].numpy() for part in PARTS])
    assert not set(used) & set(np.flatnonzero(split.assignment == UNUSED))


def test_a_group_cannot_be_cut_into_two_parts() -> None:
    ids = np.array(["a", "b", "c"], dtype=object)
    groups = np.array(["x", "x", "y"], dtype=object)
    Split("concept", 0, np.array(["train", UNUSED, "test"]), ids, groups)
    with pytest.raises(SplitError, match="in both train and test"):
        Split("concept", 0, np.array(["train", "test", UNUSED]), ids, groups)


# --- folds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("folds", "train_pairs"), [(3, None), (5, None), (5, 12), (8, 20)])
def test_every_pair_is_tested_once_and_no_concept_is_on_two_sides(folds: int, train_pairs: int | None) -> None:
    pairs = make_pairs(90, 30)
    made = make_folds(pairs, folds, train_pairs=train_pairs)
    concepts = pairs["concept"].map(concept_key).to_numpy()
    tested = np.concatenate([split.indices("test") for split in made.splits])
    assert sorted(tested.tolist()) == list(range(len(pairs)))
    for index, split in enumerate(made.splits):
        assert (made.fold[split.indices("test")] == index).all()
        sides = [set(concepts[split.indices(part)]) for part in PARTS]
        assert all(not a & b for a, b in itertools.combinations(sides, 2))
    frame = made.to_frame(pairs)
    assert len(frame) == folds * len(pairs)
    assert (frame[frame["split"] == "test"].groupby("pair_id").size() == 1).all()
    assert made.hash == make_folds(pairs, folds).hash
    assert made.hash != make_folds(pairs, folds, seed=1).hash


def result(predictions: np.ndarray, seed: int = 7) -> MemberResult:
    return MemberResult(seed, 1, 1, {}, [], predictions, 0.0)


def test_pooling_takes_each_pair_from_its_own_fold() -> None:
    pairs = make_pairs(30, 12)
    folds = make_folds(pairs, 3)
    targets = np.full((30, 12), 0.5, dtype=np.float32)
    rng = np.random.default_rng(0)
    members = [[result(rng.random((30, 12)).astype(np.float32), seed) for seed in (1, 2)] for _ in folds.splits]
    scores = crossval.pooled(members, targets, folds)
    for row, fold in enumerate(folds.fold.tolist()):
        both = np.stack([member.predictions[row] for member in members[fold]])
        np.testing.assert_allclose(scores.prediction[row], both.mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(scores.std[row], both.std(axis=0), atol=1e-6)
        np.testing.assert_array_equal(scores.member(1)[row], both[1])
    assert scores.split.counts() == {"train": 0, "val": 0, "test": 30}


def test_snapping_looks_at_each_folds_own_validation_pairs() -> None:
    pairs = make_pairs(60, 20)
    folds = make_folds(pairs, 3)
    rng = np.random.default_rng(1)
    targets = rng.choice([0.0, 0.5, 1.0], size=(60, 12)).astype(np.float32)
    members = [[result(np.clip(targets + shift, 0, 1).astype(np.float32))] for shift in (-0.2, 0.0, 0.2)]
    changed = [[result(part[0].predictions.copy())] for part in members]
    for split, (member,) in zip(folds.splits, changed, strict=True):
        member.predictions[split.indices("train")] = 0.3
    one, two = (crossval.pooled(part, targets, folds, snap=True) for part in (members, changed))
    np.testing.assert_array_equal(one.prediction, two.prediction)
    assert set(np.unique(one.prediction)) <= {0.0, 0.5, 1.0}
    np.testing.assert_array_equal(one.prediction, targets)


# --- runs -------------------------------------------------------------------------------------------------------------


def settings(**changes: Any) -> TrainConfig:
    from hydra import compose, initialize_config_dir

    from bcs_lab.catalogue import config_dir
    from bcs_lab.launch import resolve

    given = {
        "recipe": "ridge", "encoder": "efficientnet_lite0", "split": "kfold", "split.fold": "all", "split.folds": 3,
        "seeds": "[7,13]", "logger": "none", "bootstrap.resamples": 100, "workers": 1, "head.alpha": "[30,300]",
    }  # fmt: skip
    given |= {key.replace("__", "."): value for key, value in changes.items()}
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return parse(TrainConfig, resolve(compose("train", [f"{key}={value}" for key, value in given.items()])))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-validation of brainbank from 40 pairs a fold."""
    out = tmp_path_factory.mktemp("run")
    train(settings(split__train_pairs=40, store=out / "store"), out, out)
    return out


def test_metrics_are_those_of_the_pooled_predictions(run: Path) -> None:
    metrics = read_json(run / "metrics.json")
    frame = pd.read_parquet(run / "predictions.parquet")
    assert (frame["split"] == "test").all()
    assert metrics["n"] == {"train": 40, "val": 8, "test": len(frame)}
    assert set(metrics) - {"features"} == {
        "ensemble", "ci95", "members", "baseline", "baselines", "n", "encoders", "stand_in", "simulated_teachers",
        "teachers", "head", "split", "wall_s",
    }  # fmt: skip
    for key, axis in AXES.items():
        known = frame.dropna(subset=[f"{axis}_target"])
        x, y = known[f"{axis}_prediction"], known[f"{axis}_target"]
        assert metrics["ensemble"][f"{key}_rho"] == pytest.approx(scipy.stats.spearmanr(x, y)[0], abs=1e-6)
        assert metrics["ensemble"][f"{key}_r"] == pytest.approx(scipy.stats.pearsonr(x, y)[0], abs=1e-6)
        assert metrics["ensemble"][f"{key}_mae"] == pytest.approx(float((x - y).abs().mean()), abs=1e-6)


def test_predictions_come_from_what_had_not_seen_the_concept(run: Path) -> None:
    """Every fold trained again on its own rows gives the pooled predictions."""
    corpus = load_corpus("brainbank", None)
    frame = pd.read_parquet(run / "predictions.parquet")
    split = pd.read_parquet(run / "split.parquet")
    from bcs_lab.consensus import agreement_weight
    from bcs_lab.similarity import pair_similarities

    corpus, similarities = pair_similarities(corpus, ["efficientnet_lite0"], store=None)
    targets, weights = consensus(corpus.answers), agreement_weight(corpus.answers, "variance")
    assert list(frame["pair_id"]) == list(corpus.pairs["pair_id"])
    concepts = corpus.pairs["concept"].map(concept_key).to_numpy(dtype=object)
    for fold, own in split.groupby("fold"):
        part = own.set_index("pair_id").loc[corpus.pairs["pair_id"], "split"].to_numpy().astype("<U6")
        assert not set(concepts[part == "train"]) & set(concepts[part == "test"])
        assert int((part == "train").sum()) == 40
        data = BCSDataModule(
            [], targets, weights, Split("kfold", 42, part, corpus.pairs["pair_id"].to_numpy(), concepts),
            similarities=similarities, concepts=concepts,
        )  # fmt: skip
        members = train_ensemble(data, {"name": "ridge", "alpha": [30, 300]}, {}, {}, [7, 13])
        rows = np.flatnonzero(part == "test")
        assert (frame["fold"].to_numpy()[rows] == fold).all()
        again = np.mean([member.predictions[rows] for member in members], axis=0)
        columns = [f"{question}_prediction" for question in BCS12.ids]
        np.testing.assert_allclose(frame[columns].to_numpy()[rows], again, atol=1e-5)


def test_baselines_are_pooled_too(run: Path) -> None:
    corpus = load_corpus("brainbank", None)
    split = pd.read_parquet(run / "split.parquet")
    targets = consensus(corpus.answers)
    corpus, (embeddings,) = pair_embeddings(corpus, ["efficientnet_lite0"], store=None)
    metrics, cosine = read_json(run / "metrics.json"), cosine_scores(embeddings)
    wanted = evaluate(np.repeat(cosine[:, None], 12, axis=1), targets, BCS12)
    assert metrics["baselines"]["cosine efficientnet_lite0"]["pas_rho"] == pytest.approx(wanted["pas_rho"])
    lines, means = np.zeros_like(targets), np.zeros_like(targets)
    for _, own in split.groupby("fold"):
        part = own.set_index("pair_id").loc[corpus.pairs["pair_id"], "split"].to_numpy()
        for question in range(12):
            y = targets[part == "train", question]
            fit = scipy.stats.linregress(cosine[part == "train"][~np.isnan(y)], y[~np.isnan(y)])
            lines[part == "test", question] = np.clip(fit.intercept + fit.slope * cosine[part == "test"], 0, 1)
            means[part == "test", question] = np.nanmean(y)
    fitted = metrics["baselines"]["cosine efficientnet_lite0, fitted"]
    assert fitted["q_mae"] == pytest.approx(evaluate(lines, targets, BCS12)["q_mae"], abs=1e-5)
    assert metrics["baseline"]["q_mae"] == pytest.approx(evaluate(means, targets, BCS12)["q_mae"], abs=1e-5)


def test_files_of_a_run(run: Path) -> None:
    assert not (run / "ensemble").exists()
    assert not (run / "members").exists()
    assert not (run / "coverage.json").exists()
    said = (run / "results.txt").read_text(encoding="utf-8")
    assert "no model is kept" in said
    assert "Spearman's ρ minus that of the best cosine: T-PAS" in said
    assert (run / "prediction_vs_consensus.png").stat().st_size > 1000


@pytest.mark.slow
def test_the_numbers_do_not_depend_on_the_number_of_processes(run: Path, tmp_path: Path) -> None:
    train(settings(split__train_pairs=40, workers=2, store=tmp_path / "store"), tmp_path, tmp_path)
    pd.testing.assert_frame_equal(
        pd.read_parquet(run / "predictions.parquet"),
        pd.read_parquet(tmp_path / "predictions.parquet"),
        check_exact=True,
    )


def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(split__train_pairs=20, store=tmp_path / "store")
    whole, real = tmp_path / "whole", crossval._members
    train(config, whole, tmp_path)
    trained: list[int] = []

    def until_the_third(fold: Any) -> Any:
        if len(trained) == 2:
            raise KeyboardInterrupt
        trained.append(fold.split.fold)
        return real(fold)

    monkeypatch.setattr(crossval, "_members", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "killed", tmp_path)
    monkeypatch.setattr(crossval, "_members", real)
    import bcs_lab.fit

    again: list[int] = []
    member = bcs_lab.fit.train_member
    monkeypatch.setattr(bcs_lab.fit, "train_member", lambda *a, **k: again.append(1) or member(*a, **k))
    train(config, tmp_path / "killed", tmp_path)
    assert len(again) == 2  # the seeds of the third fold
    pd.testing.assert_frame_equal(
        *(pd.read_parquet(tmp_path / name / "predictions.parquet") for name in ("whole", "killed")), check_exact=True
    )


def test_scoring_with_it_says_why_not(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"folds": 5}', encoding="utf-8")
    with pytest.raises(ModelError, match=r"is a cross-validation \(split\.fold=all\), which keeps no model"):
        resolve_model(tmp_path)


def test_report_of_a_run(run: Path, tmp_path: Path) -> None:
    written = write_report([run], tmp_path / "page.html", start=tmp_path)
    text = written.path.read_text(encoding="utf-8")
    assert "311 test pairs" in written.summary
    assert "No prediction intervals" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"split": "concept"}, "all is for split=kfold only"),
        ({"split__fold": "some"}, "expected a whole number from 0, or all"),
        ({"split__fold": 3}, "expected 0 to 2 or all"),
        ({"split__train_pairs": 1}, "split.train_pairs"),
        ({"workers": 0}, "workers"),
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        settings(**changes)


# --- paired comparison ------------------------------------------------------------------------------------------------


def opponents(n: int = 120) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    targets = np.clip(rng.random((n, 1)) + 0.2 * rng.normal(size=(n, 12)), 0, 1)
    targets[rng.random(targets.shape) < 0.05] = np.nan
    truth = np.nanmean(targets, axis=1)
    prediction = np.clip(truth[:, None] + 0.15 * rng.normal(size=(n, 12)), 0, 1)
    plain = {f"cosine {name}": truth + noise * rng.normal(size=n) for name, noise in (("a", 0.3), ("b", 0.6))}
    plain["cosine mean"] = (plain["cosine a"] + plain["cosine b"]) / 2
    return prediction, plain, targets, rng.integers(0, 40, size=n)


def test_differences_against_an_independent_bootstrap() -> None:
    prediction, plain, targets, clusters = opponents()
    found = against_cosines(prediction, plain, targets, clusters, BCS12, n_boot=300, seed=4)
    labels = np.unique(clusters)
    draws = np.random.default_rng(4).integers(len(labels), size=(300, len(labels)))
    for axis, group in (("t_pas", "perceptual"), ("t_sas", "semantic")):
        columns = BCS12.indices(group)
        part = targets[:, columns]
        known = 2 * (~np.isnan(part)).sum(axis=1) >= len(columns)
        y = np.nanmean(part, axis=1)
        mine = np.nanmean(np.where(np.isnan(part), np.nan, prediction[:, columns]), axis=1)
        for key, of in (("rho", scipy.stats.spearmanr), ("r", scipy.stats.pearsonr)):
            values = {name: of(plain[name][known], y[known])[0] for name in plain}
            best = max(("cosine a", "cosine b"), key=lambda name: values[name])
            for opponent, name in (("best cosine", best), ("cosine mean", "cosine mean")):
                test = found[axis][key]["against"][opponent]
                assert test["name"] == name
                assert test["difference"] == pytest.approx(of(mine[known], y[known])[0] - values[name], abs=1e-9)
                gaps = []
                for draw in draws:
                    rows = np.concatenate([np.flatnonzero((clusters == labels[one]) & known) for one in draw])
                    gaps.append(of(mine[rows], y[rows])[0] - of(plain[name][rows], y[rows])[0])
                assert test["interval"] == pytest.approx(np.quantile(gaps, [0.025, 0.975]).tolist(), abs=1e-9)
                assert test["p"] == pytest.approx(bootstrap_p(np.array(gaps)))


def test_intervals_are_those_of_the_metrics() -> None:
    prediction, plain, targets, clusters = opponents()
    found = against_cosines(prediction, plain, targets, clusters, BCS12, n_boot=200, seed=1)
    wanted = bootstrap_ci(prediction, targets, clusters, BCS12, n_boot=200, seed=1)
    for key, axis in AXES.items():
        for statistic in ("rho", "r"):
            assert found[axis][statistic]["ensemble"]["interval"] == pytest.approx(wanted[f"{key}_{statistic}"])


def test_what_is_undefined_is_null() -> None:
    prediction, plain, targets, clusters = opponents()
    found = against_cosines(np.full_like(prediction, 0.5), plain, targets, clusters, BCS12, n_boot=100)
    test = found["t_pas"]["rho"]["against"]["best cosine"]
    assert (test["difference"], test["interval"], test["p"]) == (None, None, None)
    alone = against_cosines(prediction, plain, targets, np.zeros(len(targets)), BCS12, n_boot=100)
    assert alone["t_pas"]["rho"]["against"]["best cosine"]["p"] is None
    assert alone["t_pas"]["rho"]["against"]["best cosine"]["difference"] is not None
    single = against_cosines(prediction, {"cosine a": plain["cosine a"]}, targets, clusters, BCS12, n_boot=100)
    assert list(single["t_pas"]["rho"]["against"]) == ["best cosine"]


def test_p_values() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.normal(0.8, 1.0, size=999)
    below = (drawn <= 0).sum() + 1
    assert bootstrap_p(drawn) == pytest.approx(2 * below / 1000)
    assert bootstrap_p(np.full(999, 2.0)) == pytest.approx(2 / 1000)
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert (bootstrap_p(drawn) < 0.05) == (low > 0 or high < 0)


@pytest.mark.parametrize("seed", range(5))
def test_holm_against_statsmodels(seed: int) -> None:
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p = np.random.default_rng(seed).random(7) ** 3
    np.testing.assert_allclose(holm(p.tolist()), multitest.multipletests(p, method="holm")[1])


def test_holm_by_hand() -> None:
    assert [None if p is None else round(p, 6) for p in holm([0.02, None, 0.01, 0.9])] == [0.04, None, 0.03, 0.9]
    assert holm([]) == []


def test_examples() -> None:
    from bcs_lab.report import labels

    for module in (paired, labels):
        assert doctest.testmod(module).failed == 0


def test_similarity_data_of_the_small_inputs_still_fits() -> None:
    """The folds of a run with made-up similarities, through a head with inner folds."""
    embeddings = make_embeddings()
    targets, weights = make_targets(embeddings)
    folds = make_folds(make_pairs(), 3, train_pairs=15)
    members = [
        train_ensemble(
            BCSDataModule(embeddings, targets, weights, split, similarities=make_similarities(embeddings)),
            HEAD,
            {},
            {},
            [1],
        )
        for split in folds.splits
    ]
    scores = crossval.pooled(members, targets, folds)
    found = evaluate(scores.prediction, targets, BCS12)
    assert found["pas_rho"] is not None
    assert found["pas_rho"] > 0.5
