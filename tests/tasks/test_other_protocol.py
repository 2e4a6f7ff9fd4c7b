"""Corpora that were asked other questions: everything after the teachers follows their protocol."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from drawn_corpus import draw_corpus, only

from bcs_lab.cli import main
from bcs_lab.corpus import load_corpus
from bcs_lab.ensemble import Ensemble
from bcs_lab.errors import ConfigError, CorpusError, ModelError
from bcs_lab.evaluate import METRICS
from bcs_lab.score import BCS
from bcs_lab.teachers.protocol import BCS12, Protocol, Question, protocol_text

FIVE = Protocol(
    "five",
    tuple(
        Question(f"V{i}", "perceptual", name) for i, name in enumerate(("edges", "hue", "grain", "place", "size"), 1)
    ),
)
MIXED = Protocol(
    "mixed",
    (
        Question("look", "perceptual", "overall look", "Does it look alike?"),
        Question("M1", "semantic", "mood"),
        Question("tone", "perceptual", "tone"),
        Question("M2", "semantic", "theme"),
        Question("M3", "semantic", "story"),
    ),
    {"nein": 0.0, "etwas": 0.5, "ja": 1.0},
)
PROTOCOLS = {"five": FIVE, "mixed": MIXED}
QUICK = ("logger=none", "bootstrap.resamples=100", "encoder=lowlevel", "teachers=all")


def strict(path: Path) -> Any:
    """JSON that holds no NaN or Infinity."""

    def refuse(token: str) -> float:
        raise ValueError(token)

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For each protocol a corpus, a run with a head that fits itself, and one of epochs that snaps."""
    root = tmp_path_factory.mktemp("protocols")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setattr(sys, "argv", ["bcs"])
        for name, protocol in PROTOCOLS.items():
            draw_corpus(root / name, concepts=30, protocol=protocol)
            given = ("corpus=manifest", f"corpus.root={name}", "store=store", *QUICK)
            for head, seeds in (("ridge", "[7,13]"), ("ordinal", "[7]")):
                more = ("trainer=debug", f"head={head}", f"seeds={seeds}", f"hydra.run.dir={name}-{head}")
                assert main(["train", *given, *more]) == 0
    return root


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> Protocol:
    return PROTOCOLS[request.param]


@pytest.mark.parametrize("head", ["ridge", "ordinal"])
def test_training(root: Path, protocol: Protocol, head: str) -> None:
    folder = root / f"{protocol.name}-{head}"
    metrics = strict(folder / "metrics.json")
    assert metrics["protocol"] == protocol.name
    semantic = [key for key in METRICS if key.startswith("sas")]
    for values in (metrics["ensemble"], metrics["ci95"], *metrics["baselines"].values()):
        assert set(values) == set(METRICS)
        if protocol is FIVE:
            assert [values[key] for key in semantic] == [None] * 3
    assert metrics["ensemble"]["pas_mae"] is not None
    assert (metrics["ensemble"]["sas_mae"] is None) == (protocol is FIVE)

    frame = pd.read_parquet(folder / "predictions.parquet")
    assert [name[: -len("_target")] for name in frame if name.endswith("_target")] == [*protocol.ids, "t_pas", "t_sas"]
    test = frame[frame["split"] == "test"]
    for axis, group in (("t_pas", "perceptual"), ("t_sas", "semantic")):
        names = [protocol.ids[i] for i in protocol.indices(group)]
        for kind in ("target", "prediction"):
            expected = test[[f"{name}_{kind}" for name in names]].mean(axis=1) if names else np.full(len(test), np.nan)
            np.testing.assert_allclose(test[f"{axis}_{kind}"], expected, atol=1e-6)

    ensemble = Ensemble.load(folder / "ensemble")
    assert ensemble.protocol == protocol.name
    assert ensemble.questions == [{"id": q.id, "group": q.group, "name": q.name} for q in protocol.questions]
    assert f"{protocol.name}, 5 questions" in (folder / "ensemble" / "README.md").read_text()
    said = (folder / "results.txt").read_text()
    assert f"Questions of the protocol {protocol.name}: {', '.join(protocol.ids)}." in said
    assert "Table 6" not in said, "the paper's numbers are about its own questions"
    assert "nan" not in said
    assert ("T-SAS none (no validation pair has a consensus on it)" in said) == (protocol is FIVE)
    coverage = strict(folder / "coverage.json")
    assert set(coverage["axes"]) == {"t_pas", "t_sas"}


def test_the_consensus_is_of_its_scale(root: Path, protocol: Protocol) -> None:
    corpus = load_corpus("manifest", root / protocol.name)
    assert corpus.protocol == protocol
    assert corpus.answers.shape[2] == 5
    assert set(np.unique(corpus.answers)) == {0.0, 0.5, 1.0}
    with pytest.raises(CorpusError, match="unknown question"):
        load_corpus("manifest", root / protocol.name, protocol=BCS12)


def test_scoring(root: Path, protocol: Protocol, bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    name = protocol.name
    given = (f"store={root / 'store'}", "bootstrap.resamples=100")
    corpus = ("corpus=manifest", f"corpus.root={root / name}")
    assert bcs("score", f"model={root / name}-ridge", *corpus, "out=scores.csv", *given) == 0
    scores = pd.read_csv("scores.csv")
    assert list(scores)[3:10] == [*protocol.ids, "t_pas", "t_sas"]
    folder = only(Path("runs/score"), "*")
    summary = strict(folder / "score.json")
    assert summary["model"]["protocol"] == name
    assert summary["against_consensus"]["pas_r"] > 0.5
    (difference,) = summary["differences"]
    shares = [values["share"] for values in summary["regimes"].values()]
    text = (folder / "scores.txt").read_text()
    assert "nan" not in text
    if protocol is FIVE:
        assert scores["t_sas"].isna().all()
        assert summary["mean"]["t_sas"] is None
        assert shares == [None] * 4
        assert all(row["t_sas"] is None and row["hh"] is None for row in summary["methods"])
        assert [difference[f"t_sas{end}"] for end in ("", "_lo", "_hi", "_p")] == [None] * 4
        assert "undefined" in text
    else:
        assert sum(shares) == pytest.approx(1.0)
        assert difference["t_sas"] is not None
    assert bcs("report", f"run={folder}") == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert all(question.name in page for question in protocol.questions)
    assert "paper’s Table 6 (" not in page

    capsys.readouterr()
    pair = (f"reference={root / name}/images/ref1.png", f"reconstruction={root / name}/images/rec1_0.png")
    assert bcs("score", f"model={root / name}-ridge", *pair, *given) == 0
    said = capsys.readouterr().out
    assert "nan" not in said
    assert ("T-SAS undefined: the model has no question of it" in said) == (protocol is FIVE)
    batch = BCS.load(root / f"{name}-ridge").score([pair[0][10:]] * 2, [pair[1][15:]] * 2)
    assert "nan" not in str(batch)


def test_a_corpus_that_was_asked_other_questions_is_not_compared(
    root: Path, bcs: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("corpus=manifest", f"corpus.root={root / 'mixed'}", "out=scores.csv", f"store={root / 'store'}")
    assert bcs("score", f"model={root / 'five'}-ridge", *given, "bootstrap.resamples=100") == 0
    summary = strict(only(Path("runs/score"), "*") / "score.json")
    assert summary["against_consensus"] is None
    assert any("asked other questions (mixed)" in warning for warning in summary["warnings"])


def test_reports_and_comparison_of_runs(root: Path, protocol: Protocol, bcs: Callable[..., int]) -> None:
    name = protocol.name
    shutil.copytree(root / f"{name}-ordinal", "run")
    shutil.copytree(root / f"{name}-ridge", "other")
    assert bcs("report", "run=run") == 0
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert all(question.name in page for question in protocol.questions)
    assert all(f">{question.name}<" not in page for question in BCS12.questions)
    assert bcs("compare", "run", "other", "out=comparison") == 0
    table = Path("comparison/comparison.md").read_text()
    assert "Table 6" not in table
    assert f"protocol {name}" in table
    assert "nan" not in Path("comparison/comparison.csv").read_text().lower()


def test_a_bundle_keeps_the_protocol(root: Path, protocol: Protocol, bcs: Callable[..., int]) -> None:
    store, name = f"store={root / 'store'}", protocol.name
    given = ("corpus=manifest", f"corpus.root={root / name}", "encoders=[lowlevel]", "out=bundle", store)
    assert bcs("corpus", "export", *given) == 0
    index = strict(Path("bundle/bundle.json"))
    assert index["protocol"] == {"name": name, "questions": list(protocol.ids)}
    assert "protocol.yaml" in index["sha256"]
    corpus = load_corpus("bundle", "bundle")
    assert corpus.protocol == protocol
    original = load_corpus("manifest", root / name)
    np.testing.assert_array_equal(corpus.answers, original.answers)
    assert bcs("corpus", "show", "corpus=bundle", "corpus.root=bundle", "out=sheet.png") == 0
    run = ("corpus=bundle", "corpus.root=bundle", "head=ridge", "seeds=[7]", store, "hydra.run.dir=again", *QUICK)
    assert bcs("train", *run) == 0
    before, after = (strict(path / "metrics.json")["members"][0] for path in (root / f"{name}-ridge", Path("again")))
    assert after["q_mae"] == pytest.approx(before["q_mae"], abs=1e-3)
    with pytest.raises(CorpusError, match="expected bcs12"):
        load_corpus("bundle", "bundle", protocol=BCS12)
    Path("bundle/protocol.yaml").write_text(protocol_text(FIVE) + "\n# altered\n")
    with pytest.raises(CorpusError, match=r"protocol\.yaml"):
        load_corpus("bundle", "bundle")


def test_training_loop(root: Path) -> None:
    from bcs_lab.metric import BCSMetric

    torch = pytest.importorskip("torch")
    bcs = BCS.load(root / "five-ordinal")
    picture = torch.rand(1, 3, 24, 32)
    with pytest.raises(ModelError, match="0 for semantic"):
        bcs.loss(picture, picture)
    assert torch.isfinite(bcs.loss(picture, picture, weights=(1.0, 0.0)))
    with pytest.raises(ModelError, match="no questions on one of the two axes"):
        BCSMetric(bcs)


def test_answers_in_another_folder(tmp_path: Path, bcs: Callable[..., int]) -> None:
    """What ``bcs annotate`` writes elsewhere, with the protocol above its folder of answers."""
    corpus = draw_corpus(tmp_path / "corpus", concepts=4)
    other = draw_corpus(tmp_path / "other", concepts=4, teachers=("x", "y"), protocol=MIXED)
    for given in (other, other / "annotations"):
        read = load_corpus("manifest", corpus, annotations=given)
        assert read.teachers == ("x", "y")
        assert read.protocol == MIXED
        assert read.root == corpus
    assert load_corpus("manifest", corpus).protocol is BCS12
    # beside the answers themselves
    shutil.copytree(other / "annotations", tmp_path / "flat")
    shutil.copy(other / "protocol.yaml", tmp_path / "flat" / "protocol.yaml")
    assert load_corpus("manifest", corpus, annotations=tmp_path / "flat").protocol == MIXED
    # a corpus' own protocol holds for answers that come without one
    shutil.copytree(other / "annotations", tmp_path / "bare")
    assert load_corpus("manifest", other, annotations=tmp_path / "bare").protocol == MIXED
    with pytest.raises(CorpusError, match="unknown question"):
        load_corpus("manifest", corpus, annotations=tmp_path / "bare")
    with pytest.raises(CorpusError, match=r"corpus\.annotations=.*no such folder"):
        load_corpus("manifest", corpus, annotations=tmp_path / "absent")
    with pytest.raises(ConfigError, match="annotations is a setting of corpus=manifest"):
        load_corpus("brainbank", annotations=corpus)
    (corpus / "protocol.yaml").write_text("name: x\n")
    with pytest.raises(ConfigError, match=r"protocol\.yaml"):
        load_corpus("manifest", corpus)
    shown = ("corpus=manifest", f"corpus.root={corpus}", f"corpus.annotations={other}", "out=sheet.png")
    assert bcs("corpus", "show", *shown) == 0
