"""The evaluator: every kind of input, what is refused, tables, corpora, and the loss down to the pixels."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tiny_model import CONFORMAL, SMALL, draw, draw_files, tiny_ensemble

import bcs_lab
from bcs_lab import embedder as embedder_module
from bcs_lab.corpus.schema import PAIR_COLUMNS, Corpus, ShippedEmbeddings
from bcs_lab.embeddings import import_npz
from bcs_lab.encoders import load_encoder
from bcs_lab.encoders.base import FrozenEncoder, Preprocessing, torch_encoder
from bcs_lab.encoders.lowlevel import colour_histogram, describe, describe_tensor, edge_histograms
from bcs_lab.ensemble import Ensemble
from bcs_lab.errors import CorpusError, EncoderError, ImageError, ModelError
from bcs_lab.familiarity import Familiarity
from bcs_lab.pixels import tensor_pixels
from bcs_lab.score import BCS, BCSScore, differences, scores_of
from bcs_lab.store import EmbeddingStore

QUESTIONS = [f"{axis}{i}" for axis in "PS" for i in range(1, 7)]
MIDDLE = [
    *QUESTIONS, "t_pas", "t_sas", "t_pas_std", "t_sas_std", "t_pas_lo", "t_pas_hi", "t_sas_lo", "t_sas_hi", "regime",
]  # fmt: skip
BOTH = ("efficientnet_lite0", "lowlevel")


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    return tiny_ensemble(BOTH)


@pytest.fixture(scope="module")
def folder(ensemble: Ensemble, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensemble.save(tmp_path_factory.mktemp("run") / "ensemble")


@pytest.fixture(scope="module")
def bcs(folder: Path) -> BCS:
    return BCS.load(folder.parent, device="cpu", batch_size=4)


@pytest.fixture(scope="module")
def light() -> BCS:
    """Over the descriptor alone: as quick as it gets."""
    return BCS(tiny_ensemble(), device="cpu")


def same(a: BCSScore, b: BCSScore) -> bool:
    return a.to_frame().equals(b.to_frame())


# --- one pair ---


def test_a_pair_of_files_equals_the_pipeline_by_hand(bcs: BCS, ensemble: Ensemble, tmp_path: Path) -> None:
    (ref,), (rec,) = draw_files(tmp_path, 1)
    score = bcs.score(ref, str(rec))
    sides = []
    for path in (ref, rec):
        image = Image.open(path).convert("RGB")
        sides.append([load_encoder(name, options=SMALL.get(name)).embed([image]) for name in BOTH])
    members = ensemble.predict_members(*sides)[:, 0].astype(np.float64)
    answers = members.mean(axis=0).astype(np.float32)
    assert isinstance(score.t_pas, float)
    assert score.questions == dict(zip(QUESTIONS, answers.tolist(), strict=True))
    assert score.t_pas == pytest.approx(answers[:6].mean(), abs=1e-6)
    assert score.t_sas == pytest.approx(answers[6:].mean(), abs=1e-6)
    assert score.t_pas_std == pytest.approx(members[:, :6].mean(axis=1).std(), abs=1e-6)
    assert score.questions_std["S2"] == pytest.approx(members[:, 7].std(), abs=1e-6)
    half = CONFORMAL.half_width("t_sas", 0.9)
    assert score.t_sas_interval == pytest.approx((max(score.t_sas - half, 0), min(score.t_sas + half, 1)))
    assert score.regime == ("h" if score.t_pas >= 0.5 else "l") + ("h" if score.t_sas >= 0.5 else "l")
    assert (score.ood, score.coverage, score.simulated_teachers, score.encoders) == (None, 0.9, False, BOTH)
    assert score.t_pas_std > 0
    narrow = bcs.score(ref, rec, coverage=0.5)
    assert narrow.t_sas_interval[1] - narrow.t_sas_interval[0] < 2 * half


def kinds(image: Image.Image, path: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The same picture in every form, with what must be declared."""
    image.save(path)
    array = np.asarray(image)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    return {
        "path": (path, {}),
        "text": (str(path), {}),
        "PIL": (image, {}),
        "PIL with alpha": (image.convert("RGBA"), {}),
        "uint8 HWC": (array, {}),
        "uint8 CHW": (array.transpose(2, 0, 1), {"layout": "CHW"}),
        "float32": (array / np.float32(255), {}),
        "float64": (array / 255, {}),
        "float16": ((array / 255).astype(np.float16), {}),
        "0 to 255": (array.astype(np.float32), {"value_range": (0, 255)}),
        "-1 to 1": (array / 127.5 - 1, {"value_range": (-1, 1)}),
        "tensor uint8": (tensor, {}),
        "tensor float": (tensor / 255, {}),
        "tensor half": ((tensor / 255).half(), {}),
        "tensor HWC": (tensor.permute(1, 2, 0), {"layout": "HWC"}),
        "tensor with gradient": ((tensor / 255).requires_grad_(), {}),
    }


KINDS = [
    "path", "text", "PIL", "PIL with alpha", "uint8 HWC", "uint8 CHW", "float32", "float64", "float16", "0 to 255",
    "-1 to 1", "tensor uint8", "tensor float", "tensor half", "tensor HWC", "tensor with gradient",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_scores_the_same_in_every_form(bcs: BCS, tmp_path: Path, kind: str) -> None:
    one, two = draw(1), draw(2, (70, 90))
    (a, declared), (b, _) = (kinds(image, tmp_path / f"{i}.png")[kind] for i, image in enumerate((one, two)))
    expected = bcs.score(tmp_path / "0.png", tmp_path / "1.png")
    assert same(bcs.score(a, b, **declared), expected)


def test_bfloat16_is_accepted_and_as_near_as_it_can_be(bcs: BCS) -> None:
    a, b = (torch.from_numpy(np.asarray(draw(i)).copy()).permute(2, 0, 1) / 255 for i in (1, 2))
    near = bcs.score(a.bfloat16(), b.bfloat16())
    assert near.t_pas == pytest.approx(bcs.score(a, b).t_pas, abs=0.02)


def test_grey_is_replicated(light: BCS) -> None:
    grey = np.asarray(draw(1).convert("L"))
    expected = light.score(np.repeat(grey[..., None], 3, axis=2), draw(2))
    for image in (grey, grey[..., None], torch.from_numpy(grey.copy()), torch.from_numpy(grey.copy())[None]):
        assert same(light.score(image, draw(2)), expected)


def test_a_batch_is_its_pairs(bcs: BCS, tmp_path: Path) -> None:
    refs = np.stack([np.asarray(draw(i)) for i in range(5)])
    recs = [draw(10 + i, (50 + i, 60)) for i in range(5)]
    batch = bcs.score(refs, recs)
    assert batch.batched
    assert len(batch) == 5
    assert batch.t_pas.shape == batch.regime.shape == batch.t_sas_interval[0].shape == (5,)
    assert batch.questions["P3"].shape == batch.questions_std["S6"].shape == (5,)
    for i, one in enumerate(batch):
        assert isinstance(one.t_sas, float)
        alone = bcs.score(refs[i], recs[i])
        # Heads are a matrix product over the batch, whose sums may be rounded in another order.
        pd.testing.assert_frame_equal(one.to_frame(), alone.to_frame(), atol=1e-6, rtol=0)
    assert batch[-1].t_pas == batch.t_pas[4]
    with pytest.raises(IndexError):
        batch[5]
    frame = batch.to_frame()
    assert list(frame.columns) == [*MIDDLE, "ood", "simulated_teachers"]
    np.testing.assert_array_equal(frame["t_sas_hi"], batch.t_sas_interval[1])
    tensor = torch.from_numpy(refs).permute(0, 3, 1, 2)
    assert same(bcs.score(tensor, recs), batch)
    assert len(bcs.score([draw(1)], [draw(2)])) == 1
    assert bcs.score([draw(1)], [draw(2)]).batched


@pytest.mark.parametrize(
    ("given", "declared", "message"),
    [
        (np.zeros((8, 8, 3), np.float32) + 255, {}, r"from 0 to 1 \(the default of floats\).*values from 255 to 255"),
        (torch.zeros(3, 8, 8) - 1, {}, r"values from -1 to -1.*value_range=\(0, 255\) or \(-1, 1\)"),
        (np.full((8, 8, 3), 1.02), {}, "values from 1.02"),
        (np.full((8, 8, 3), 256.5), {"value_range": (0, 255)}, r"from 0 to 255 \(as declared\)"),
        (torch.full((3, 8, 8), torch.nan), {}, "NaN"),
        (np.zeros((8, 8, 4), np.uint8), {}, r"\[H, W, C\].*3 channels or 1.*\[8, 8, 4\]"),
        (np.zeros((3, 8, 8), np.uint8), {}, r"\[3, 8, 8\].*layout='CHW'"),
        (torch.zeros(8, 8, 3), {}, r"\[C, H, W\].*layout='HWC'"),
        (np.zeros((1, 2, 8, 8, 3), np.uint8), {}, r"\[1, 2, 8, 8, 3\]"),
        (np.zeros(8), {}, r"but got \[8\]"),
        (np.zeros((0, 8, 3), np.uint8), {}, "at least one pixel"),
        (np.zeros((8, 8, 3), np.int64), {}, "expected uint8.*int64"),
        (np.zeros((8, 8, 3), bool), {}, "expected uint8.*bool"),
        ([], {}, "empty sequence"),
        (7, {}, "but got int"),
        (np.zeros((8, 8, 3)), {"layout": "NCHW"}, "layout"),
        (np.zeros((8, 8, 3)), {"value_range": (1, 0)}, "value_range"),
        (np.zeros((8, 8, 3)), {"value_range": 255}, "value_range"),
        (Image.new("F", (8, 8)), {}, "floating-point"),
        ([np.zeros((2, 8, 8, 3), np.uint8)], {}, "got a batch"),
        ("/nowhere/a.png", {}, "/nowhere/a.png: no such file"),
    ],
)
def test_what_is_refused_says_so(light: BCS, given: Any, declared: dict[str, Any], message: str) -> None:
    with pytest.raises(ImageError, match="(?s)" + message):
        light.score(given, draw(0), **declared)


def test_rounding_to_half_precision_is_no_other_range(light: BCS) -> None:
    image = torch.full((3, 8, 8), 1.002)
    assert same(light.score(image, draw(0)), light.score(torch.ones(3, 8, 8), draw(0)))


def test_numbers_must_agree_and_all_bad_images_are_listed(light: BCS, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="2 and 1; repeat"):
        light.score([draw(0), draw(1)], draw(2))
    refs, recs = draw_files(tmp_path, 3)
    recs[0].write_bytes(b"<html>")
    refs[2].write_bytes(refs[2].read_bytes()[:60])
    with pytest.raises(ImageError, match=r"(?s)2 images cannot be used.*rec0.png: not an image.*ref2.png: damaged"):
        light.score(refs, recs)
    with pytest.raises(ImageError, match=r"(?s)2 images.*reference 0: .*reference 2: "):
        light.score([np.zeros((2, 2, 2), np.uint8), draw(0), 3], [draw(0)] * 3)
    with pytest.raises(ModelError, match="coverage"):
        light.score(draw(0), draw(1), coverage=90)


def test_output_is_readable(light: BCS) -> None:
    text = str(light.score(draw(0), draw(1)))
    assert "90 % interval" in text
    assert "P1 0." in text
    assert "SIMULATED" not in text
    simulated = BCS(tiny_ensemble(simulated_teachers=True), device="cpu")
    one, many = simulated.score(draw(0), draw(1)), simulated.score([draw(0)] * 3, [draw(1)] * 3)
    assert "SIMULATED TEACHERS" in str(one)
    assert "SIMULATED TEACHERS" in str(many)
    assert "3 pairs: mean T-PAS" in str(many)
    assert one.simulated_teachers
    assert many.to_frame()["simulated_teachers"].all()
    assert "simulated" in repr(simulated)


def test_levels_and_what_a_model_does_not_know() -> None:
    thresholds = np.tile([0.4, 0.6], (12, 1))
    snapped = BCS(tiny_ensemble(thresholds=thresholds, conformal=None), device="cpu").score(
        [draw(0)] * 2, [draw(1)] * 2
    )
    answers = np.stack(list(snapped.questions.values()), axis=1)
    assert set(np.unique(answers)) <= {0.0, 0.5, 1.0}
    np.testing.assert_allclose(snapped.t_pas, answers[:, :6].mean(axis=1))
    assert (snapped.t_pas_std > 0).all()  # of the raw answers
    assert np.isnan(snapped.t_pas_interval[0]).all()
    assert "no interval" in str(snapped[0])
    assert snapped.to_frame()["ood"].isna().all()


def test_unfamiliar_pictures_are_flagged() -> None:
    known = [Image.new("RGB", (40, 30), (90 + i, 100, 110 - i)) for i in range(20)]
    vectors = load_encoder("lowlevel").embed(known)
    familiarity = Familiarity.fit(
        {"reference": [vectors], "reconstruction": [vectors]},
        {side: [str(i) for i in range(20)] for side in ("reference", "reconstruction")},
    )
    bcs = BCS(tiny_ensemble(familiarity=familiarity), device="cpu")
    score = bcs.score([known[0], known[0], draw(0)], [known[1], draw(0), known[1]])
    assert score.ood.tolist() == [False, True, True]
    assert "UNFAMILIAR: 2 with" in str(score)
    assert "UNFAMILIAR" in str(score[1])
    assert "UNFAMILIAR" not in str(score[0])
    assert score.to_frame()["ood"].dtype == bool


# --- loading ---


def test_import_is_lazy() -> None:
    code = (
        "import sys, bcs_lab; assert not {'torch', 'pandas'} & set(sys.modules); assert 'BCS' in dir(bcs_lab); "
        "from bcs_lab import BCS, BCSScore; assert BCS.__name__ == 'BCS'; assert 'torchmetrics' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(bcs_lab.__all__) == {"BCS", "BCSMetric", "BCSScore", "__version__"}
    with pytest.raises(AttributeError, match="nothing"):
        bcs_lab.nothing  # noqa: B018


def test_arguments_are_checked(ensemble: Ensemble, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="refuse or warn"):
        BCS(ensemble, on_encoder_mismatch="ignore")
    with pytest.raises(ModelError, match="batch_size"):
        BCS(ensemble, batch_size=0)
    with pytest.raises(ModelError, match="siglip, but the encoders of this model are efficientnet_lite0, lowlevel"):
        BCS(ensemble, options={"siglip": {"source": "/folder"}})
    with pytest.raises(ModelError, match="no such folder"):
        BCS.load(tmp_path / "nowhere")


def recorded(ensemble: Ensemble, index: int, **changes: Any) -> Ensemble:
    """The ensemble as if one of its encoders had been another at training."""
    encoders = copy.deepcopy(ensemble.encoders)
    for key, value in changes.items():
        target, name = encoders[index]["fingerprint"], key
        if "__" in key:
            first, name = key.split("__")
            target = target[first]
        target[name] = value
    return replace(ensemble, encoders=encoders)


def test_another_encoder_is_refused(ensemble: Ensemble) -> None:
    other = recorded(ensemble, 0, weights="sha256:0", preprocessing__size=[32, 32])
    for mode in ("refuse", "warn"):
        bcs = BCS(other, device="cpu", on_encoder_mismatch=mode)
        with pytest.raises(
            ModelError, match=r"(?s)efficientnet_lite0: preprocessing.size was \[32, 32\] at training"
        ) as caught:
            bcs.score(draw(0), draw(1))
        assert "weights was 'sha256:0' at training and is 'sha256:" in str(caught.value)
        assert 'on_encoder_mismatch="warn"' not in str(caught.value)


def test_another_version_may_be_accepted(ensemble: Ensemble, caplog: pytest.LogCaptureFixture) -> None:
    other = recorded(ensemble, 0, library_version="0.0.1")
    with pytest.raises(ModelError, match=r"(?s)library_version was '0.0.1'.*on_encoder_mismatch=\"warn\""):
        BCS(other, device="cpu").load_encoders()
    bcs = BCS(other, device="cpu", on_encoder_mismatch="warn")
    assert bcs.warnings == []
    bcs.load_encoders()
    assert len(bcs.warnings) == 1
    assert "library_version was '0.0.1'" in bcs.warnings[0]
    assert "scores may differ a little" in caplog.text
    assert same(bcs.score(draw(0), draw(1)), BCS(ensemble, device="cpu").score(draw(0), draw(1)))
    both = recorded(recorded(ensemble, 0, library_version="0.0.1"), 1, weights={"colours": 2.0})
    with pytest.raises(ModelError, match=r"lowlevel: weights.colours was 2.0") as caught:
        BCS(both, device="cpu", on_encoder_mismatch="warn").load_encoders()
    assert "library_version" not in str(caught.value)


def test_dtype_follows_training_unless_given(ensemble: Ensemble) -> None:
    with pytest.raises(ModelError, match="dtype was 'float32' at training and is 'bfloat16' here"):
        BCS(ensemble, device="cpu", dtype="bfloat16").load_encoders()


def test_recorded_and_given_options_reach_the_encoder(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def loader(name: str, *, options: Any, device: str, dtype: str | None) -> FrozenEncoder:
        seen[name] = (options, dtype)
        return load_encoder(name, options={k: v for k, v in options.items() if k != "source"}, device=device)

    monkeypatch.setattr("bcs_lab.score.load_encoder", loader)
    encoders = copy.deepcopy(ensemble.encoders)
    encoders[0] |= {"name": "siglip", "label": "siglip (stand-in efficientnet_lite0)", "stand_in": "efficientnet_lite0"}
    given = {"siglip": {"source": "/folder"}, "efficientnet_lite0": {"image_size": None}, "clip": {"source": None}}
    bcs = BCS(replace(ensemble, encoders=encoders), options=given, device="cpu")
    bcs.load_encoders()
    assert seen["efficientnet_lite0"] == ({"image_size": 64, "source": "/folder"}, "float32")
    assert bcs.labels[0] == "siglip (stand-in efficientnet_lite0)"


def test_weights_that_cannot_be_had_say_how_to_name_them(ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch) -> None:
    def loader(*_: Any, **__: Any) -> FrozenEncoder:
        raise EncoderError("no hub")

    monkeypatch.setattr("bcs_lab.score.load_encoder", loader)
    with pytest.raises(EncoderError, match=r"no hub\n.*options=\{\"efficientnet_lite0\": \{\"source\""):
        BCS(ensemble).load_encoders()


def test_differences_are_dotted_and_leave_data_out() -> None:
    assert differences({"a": {"b": (1, 2)}, "data": 1}, {"a": {"b": [1, 2]}, "data": 2}) == []
    assert differences({"a": 1}, {"b": None, "c": 0}) == [("a", 1, None), ("c", None, 0)]


def test_copies_score_the_same(bcs: BCS) -> None:
    expected = bcs.score(draw(0), draw(1))
    assert copy.deepcopy(bcs).encoders is bcs.encoders
    content = pickle.dumps(bcs)
    fresh = pickle.loads(content)
    assert fresh._embedder is None
    assert same(fresh.score(draw(0), draw(1)), expected)
    assert same(copy.copy(bcs).score(draw(0), draw(1)), expected)


# --- tables ---


def table(refs: list[Path], recs: list[Path]) -> pd.DataFrame:
    return pd.DataFrame({"reference": [str(p) for p in refs], "reconstruction": [str(p) for p in recs]}, dtype=object)


def test_a_table_of_pairs(bcs: BCS, tmp_path: Path) -> None:
    refs, recs = draw_files(tmp_path, 6, references=2)
    pairs = table(refs, recs).map(lambda path: Path(path).name)
    pairs["method"] = list("aabbcc")
    pairs["t_pas"] = 7
    pairs["manifest_t_pas"] = 8
    pairs["ood"] = "x"
    frame = bcs.score_pairs(pairs, root=tmp_path, progress=False)
    assert list(frame.columns) == [
        "pair_id", "reference", "reconstruction", *MIDDLE, "method", "manifest_t_pas", "manifest_manifest_t_pas",
        "manifest_ood", "ood", "simulated_teachers",
    ]  # fmt: skip
    assert frame["pair_id"].tolist() == [f"pair-{i:06d}" for i in range(1, 7)]
    assert frame["reference"].tolist() == pairs["reference"].tolist()
    assert frame["manifest_t_pas"].tolist() == [7] * 6
    assert frame.attrs["skipped"] == []
    batch = bcs.score(refs, recs)
    np.testing.assert_array_equal(frame["S3"], batch.questions["S3"])
    np.testing.assert_array_equal(frame["t_sas_lo"], batch.t_sas_interval[0])
    path = tmp_path / "scores.parquet"
    frame.to_parquet(path)
    pd.testing.assert_frame_equal(pd.read_parquet(path), frame, check_dtype=False)


def test_manifest_columns_are_kept(light: BCS, tmp_path: Path) -> None:
    refs, recs = draw_files(tmp_path, 2)
    pairs = table(refs, recs).rename(columns=lambda name: f"{name}_path").assign(pair_id=["x", "y"])
    frame = light.score_pairs(pairs.iloc[::-1], progress=False)
    assert frame["pair_id"].tolist() == ["y", "x"]
    assert frame["reference"].tolist() == frame["reference_path"].tolist() == [str(refs[1]), str(refs[0])]


def bad_table(tmp_path: Path) -> pd.DataFrame:
    refs, recs = draw_files(tmp_path, 6)
    recs[1].write_bytes(b"<html>")
    refs[4].write_bytes(refs[4].read_bytes()[:70])
    pairs = table(refs, recs).assign(pair_id=["a", "b", "c", "d", "e", "a"])
    pairs.loc[2, "reference"] = None
    return pairs


def test_bad_rows_are_all_listed(light: BCS, tmp_path: Path) -> None:
    with pytest.raises(CorpusError) as caught:
        light.score_pairs(bad_table(tmp_path), progress=False)
    text = str(caught.value)
    assert "4 rows of 6" in text
    for part in (
        "pairs:2: pair 'b': reconstruction image: ",
        "pairs:3: pair 'c': no reference path",
        "pairs:5: pair 'e': reference image: ",
        "pairs:6: pair 'a': the pair_id is that of row 1",
    ):
        assert part in text
    with pytest.raises(ImageError, match="1 row of 1"):
        light.score_pairs(bad_table(tmp_path).iloc[[1]], progress=False)


def test_bad_rows_may_be_skipped(light: BCS, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pairs = bad_table(tmp_path)
    frame = light.score_pairs(pairs, on_bad_row="skip", progress=False)
    assert frame["pair_id"].tolist() == ["a", "d"]
    expected = light.score_pairs(pairs.iloc[[0, 3]], progress=False)
    pd.testing.assert_frame_equal(frame, expected, atol=1e-6, rtol=0)
    assert [item["row"] for item in frame.attrs["skipped"]] == [2, 3, 5, 6]
    assert json.loads(json.dumps(frame.attrs["skipped"])) == frame.attrs["skipped"]
    assert "4 rows of 6 left out" in caplog.text
    empty = light.score_pairs(pairs.iloc[[1]], on_bad_row="skip", progress=False)
    assert len(empty) == 0
    assert list(empty.columns) == list(frame.columns)


def test_a_table_without_paths_is_refused(light: BCS) -> None:
    with pytest.raises(CorpusError, match=r"Expected the columns reference and reconstruction .* found ref, rec"):
        light.score_pairs(pd.DataFrame({"ref": [], "rec": []}))
    with pytest.raises(CorpusError, match="on_bad_row"):
        light.score_pairs(pd.DataFrame({"reference": [], "reconstruction": []}), on_bad_row="drop")


# --- corpora ---


def corpus_of(root: Path | None, n: int, **changes: Any) -> Corpus:
    rows = [
        (f"p{i}", f"m{i % 2}", "s", "c", "1", "1", f"ref{i % 2}.png" if root else "", f"rec{i}.png" if root else "")
        for i in range(n)
    ]
    settings: dict[str, Any] = {
        "name": "test",
        "pairs": pd.DataFrame(rows, columns=list(PAIR_COLUMNS), dtype=object),
        "teachers": ("a",),
        "answers": np.ones((n, 1, 12), dtype=np.float32),
        "rationales": np.full((n, 1, 12), "", dtype=object),
        "root": root,
        "where": [f"manifest.csv:{i + 2}" for i in range(n)],
    }
    return Corpus(**{**settings, **changes})


def test_a_corpus_with_images(bcs: BCS, tmp_path: Path) -> None:
    refs, recs = draw_files(tmp_path, 5, references=2)
    recs[3].write_bytes(b"nothing")
    frame, problems = bcs.score_corpus(corpus_of(tmp_path, 5), progress=False)
    assert frame["pair_id"].tolist() == ["p0", "p1", "p2", "p4"]
    assert list(frame.columns) == [
        "pair_id", "reference", "reconstruction", *MIDDLE, *PAIR_COLUMNS[1:], "ood", "simulated_teachers",
    ]  # fmt: skip
    assert [(p.file, p.row, p.pair_id) for p in problems] == [("manifest.csv", 5, "p3")]
    assert "reconstruction image: " in problems[0].message
    good = [0, 1, 2, 4]
    np.testing.assert_array_equal(frame["t_pas"], bcs.score([refs[i] for i in good], [recs[i] for i in good]).t_pas)


def vectors_of(names: tuple[str, ...], paths: list[Path]) -> list[np.ndarray]:
    images = [Image.open(path).convert("RGB") for path in paths]
    return [load_encoder(name, options=SMALL.get(name)).embed(images) for name in names]


def test_a_corpus_without_images_and_what_it_ships(bcs: BCS, ensemble: Ensemble, tmp_path: Path) -> None:
    refs, recs = draw_files(tmp_path, 4, references=2)
    rows = np.arange(4)
    shipped = {
        record["name"]: ShippedEmbeddings(
            record["name"], record["fingerprint"], vectors.astype(np.float16), rows % 2, rows + 2
        )
        for record, vectors in zip(ensemble.encoders, vectors_of(BOTH, [*refs[:2], *recs]), strict=True)
    }
    frame, problems = bcs.score_corpus(corpus_of(None, 4, shipped=shipped), progress=False)
    assert problems == []
    # The one rounding to float16 makes a bundle and its images the same to the last bit.
    np.testing.assert_array_equal(frame["t_sas"], bcs.score(refs, recs).t_sas)
    assert frame["reference"].tolist() == [""] * 4
    changed = shipped | {
        "lowlevel": replace(shipped["lowlevel"], fingerprint=shipped["lowlevel"].fingerprint | {"revision": "0"})
    }
    with pytest.raises(ModelError, match="lowlevel: revision was '1' at training and is '0' here"):
        bcs.score_corpus(corpus_of(None, 4, shipped=changed), progress=False)
    with pytest.raises(EncoderError, match="lowlevel"):
        bcs.score_corpus(corpus_of(None, 4, shipped={BOTH[0]: shipped[BOTH[0]]}), progress=False)


def test_a_model_on_imported_embeddings(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    corpus, store = corpus_of(None, 4), EmbeddingStore(tmp_path / "store")
    reference, reconstruction = rng.normal(size=(2, 4, 384)).astype(np.float32)
    np.savez(
        tmp_path / "mine.npz", ids=corpus.pairs["pair_id"].to_numpy(dtype=str), reference=reference,
        reconstruction=reconstruction,
    )  # fmt: skip
    import_npz(corpus, tmp_path / "mine.npz", "mine", store)
    ensemble = tiny_ensemble()
    record = ensemble.encoders[0] | {
        "name": "mine",
        "label": "mine",
        "fingerprint": {"library": "npz", "name": "mine", "model": "npz-mine", "dim": 384, "data": "sha256:other"},
    }
    bcs = BCS(replace(ensemble, encoders=[record]))
    frame, _ = bcs.score_corpus(corpus, store=store, progress=False)
    unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (reference, reconstruction)]
    np.testing.assert_allclose(frame["t_pas"], scores_of(bcs.ensemble, [unit[0]], [unit[1]]).t_pas, atol=1e-4)
    with pytest.raises(ModelError, match="imported embeddings \\(mine\\)"):
        bcs.score(draw(0), draw(1))


# --- streaming ---


class Counting:
    """Encoders that count what they prepare and compute."""

    def __init__(self, dim: int = 4) -> None:
        self.prepared = self.computed = 0
        self.batches: list[int] = []

        def prepare(image: Image.Image) -> np.ndarray:
            self.prepared += 1
            return np.asarray(image, dtype=np.float32).mean(axis=(0, 1))

        def forward(inputs: np.ndarray) -> np.ndarray:
            self.computed += len(inputs)
            self.batches.append(len(inputs))
            return np.concatenate([inputs, np.ones((len(inputs), dim - 3))], axis=1)

        self.encoder = FrozenEncoder("lowlevel", dim, {"model": "counting", "dim": dim}, prepare, forward)


def counted(monkeypatch: pytest.MonkeyPatch, batch_size: int = 4) -> tuple[BCS, Counting]:
    made = Counting()
    monkeypatch.setattr("bcs_lab.score.load_encoder", lambda *_, **__: made.encoder)
    return BCS(tiny_ensemble(encoders=[made.encoder]), batch_size=batch_size), made


def test_each_content_is_embedded_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bcs, made = counted(monkeypatch)
    refs, recs = draw_files(tmp_path, 30, references=3)
    recs[29].write_bytes(recs[0].read_bytes())
    frame = bcs.score_pairs(table(refs, recs), progress=False)
    assert len(frame) == 30
    assert made.computed == 3 + 29
    assert made.prepared <= 3 + 29 + 2  # two threads may take the same content at once
    assert max(made.batches) <= 4
    bcs.score_pairs(table(refs, recs), progress=False)
    assert made.computed == 3 + 29


def test_memory_is_bounded_and_forgetting_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refs, recs = draw_files(tmp_path, 40, references=7)
    bcs, _ = counted(monkeypatch)
    expected = bcs.score_pairs(table(refs, recs), progress=False)
    forgetful, made = counted(monkeypatch, batch_size=3)
    forgetful.load_encoders()
    assert forgetful._embedder is not None
    forgetful._embedder.remembered = 2
    monkeypatch.setattr("bcs_lab.score.CHUNK", 7)
    frame = forgetful.score_pairs(table(refs, recs), progress=False)
    pd.testing.assert_frame_equal(frame, expected, atol=1e-6, rtol=0)
    assert len(forgetful._embedder._memory) <= 2
    assert made.computed > 47


def test_no_more_than_a_few_batches_are_decoded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    bcs, _ = counted(monkeypatch)
    bcs.load_encoders()
    assert bcs._embedder is not None
    taken = 0

    def source() -> Any:
        nonlocal taken
        for i in range(200):
            taken += 1
            yield embedder_module.Picture(str(i), image=draw(i, (6, 5)))

    stream = bcs._embedder.embed(source())
    for done in range(100):
        next(stream)
        assert taken - done <= 4 * 4  # two batches ahead, one in the networks
    stream.close()
    assert taken < 130


def test_a_store_is_read_and_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bcs, made = counted(monkeypatch)
    refs, recs = draw_files(tmp_path / "images", 6, references=2)
    corpus, store = corpus_of(tmp_path / "images", 6), EmbeddingStore(tmp_path / "store")
    expected, _ = bcs.score_corpus(corpus, progress=False)
    keys = [embedder_module.Picture("", path).identity() for path in [*refs[:2], *recs[:5]]]
    vectors = made.encoder.embed([Image.open(path) for path in [*refs[:2], *recs[:5]]])
    store.put(made.encoder.fingerprint, keys, vectors)
    before = sorted(path.name for path in store.root.rglob("*"))
    again, counting = counted(monkeypatch)
    frame, _ = again.score_corpus(corpus, store=EmbeddingStore(store.root), progress=False)
    pd.testing.assert_frame_equal(frame, expected)
    assert counting.computed == 1
    assert sorted(path.name for path in store.root.rglob("*")) == before


# --- the loss ---


def batch(n: int = 2, size: tuple[int, int] = (40, 36)) -> torch.Tensor:
    images = [torch.from_numpy(np.asarray(draw(50 + i, size)).copy()).permute(2, 0, 1) for i in range(n)]
    return torch.stack(images) / 255


def network(dtype: torch.dtype = torch.float64) -> FrozenEncoder:
    """A tiny network of timm as an encoder, with a version as precise as a gradient check needs."""
    import timm

    torch.manual_seed(0)
    module = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=12, depth=1, num_heads=2, num_classes=0
    )
    exact = copy.deepcopy(module).to(dtype).eval().requires_grad_(False)
    made = torch_encoder(
        name="lowlevel", module=module, features=module,
        preprocessing=Preprocessing((16, 16), "squash", (16, 16), "bicubic", (0.5,) * 3, (0.5,) * 3),
        identity={"library": "timm", "model": "tiny"}, device="cpu", dtype="float32",
    )  # fmt: skip
    return replace(made, differentiable=exact) if dtype != torch.float32 else made


def over(monkeypatch: pytest.MonkeyPatch, encoder: FrozenEncoder) -> BCS:
    monkeypatch.setattr("bcs_lab.score.load_encoder", lambda *_, **__: encoder)
    return BCS(tiny_ensemble(encoders=[encoder]))


def test_gradient_check_down_to_the_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    bcs = over(monkeypatch, network())
    rng = np.random.default_rng(0)
    moved, still = (torch.from_numpy(rng.uniform(0.3, 0.7, (2, 3, 4, 5))) for _ in range(2))
    moved.requires_grad_()
    one = moved[:1].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: bcs.loss(x, still, weights=(0.3, 0.7), reduction="none"), (moved,))
    assert torch.autograd.gradcheck(lambda x: bcs.loss(2 * x - 1, 2 * still[:1] - 1, value_range=(-1, 1)), (one,))


def test_loss_is_one_minus_the_score(bcs: BCS) -> None:
    moved, still = batch(3), batch(3).flip(0)
    scores = bcs.score(still, moved)
    loss = bcs.loss(moved, still, weights=(0.25, 0.75), reduction="none")
    assert loss.shape == (3,)
    np.testing.assert_allclose(1 - loss, 0.25 * scores.t_pas + 0.75 * scores.t_sas, atol=0.01)
    assert bcs.loss(moved, still).item() == pytest.approx(1 - (scores.t_pas + scores.t_sas).mean() / 2, abs=0.01)
    # At the input size of an encoder there is nothing to resize, so only its float16 rounding is left.
    light = BCS(tiny_ensemble(), device="cpu")
    exact = batch(2, (64, 64)), batch(2, (64, 64)).flip(0)
    assert 1 - light.loss(*exact, weights=(1, 0)).item() == pytest.approx(
        light.score(exact[1], exact[0]).t_pas.mean(), abs=1e-3
    )


@pytest.mark.parametrize("names", [("lowlevel",), ("efficientnet_lite0",), BOTH])
def test_descent_on_pixels_raises_the_score(names: tuple[str, ...]) -> None:
    bcs = BCS(tiny_ensemble(names), device="cpu")
    still = batch(1)
    pixels = torch.full_like(still, 0.5) + 0.05 * torch.randn(still.shape, generator=torch.Generator().manual_seed(0))
    pixels.requires_grad_()
    before = bcs.score(still, pixels)
    optimiser = torch.optim.Adam([pixels], lr=0.02)
    for _ in range(15):
        optimiser.zero_grad()
        bcs.loss(pixels, still).backward()
        assert pixels.grad is not None
        assert torch.isfinite(pixels.grad).all()
        optimiser.step()
        pixels.data.clamp_(0, 1)
    after = bcs.score(still, pixels)
    assert after.t_pas[0] + after.t_sas[0] > before.t_pas[0] + before.t_sas[0] + 0.02


def test_weights_stay_frozen_and_halves_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = network(torch.float32)
    bcs = over(monkeypatch, encoder)
    moved, still = batch().requires_grad_(), batch().flip(0).requires_grad_()
    exact = bcs.loss(moved, still)
    exact.backward()
    assert still.grad is None
    full = moved.grad
    assert full is not None
    assert full.abs().sum() > 0
    assert bcs._loss is not None
    for head in bcs._loss.heads(torch.zeros(1)):
        assert all(parameter.grad is None and not parameter.requires_grad for parameter in head.parameters())
    for head in bcs.ensemble.heads:
        assert all(parameter.grad is None for parameter in head.parameters())
    moved.grad = None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = bcs.loss(moved, still)
    inside.backward()
    assert torch.equal(inside, exact)
    assert torch.equal(moved.grad, full)
    half = batch().half().requires_grad_()
    bcs.loss(half, still.half()).backward()
    assert half.grad is not None
    assert half.grad.dtype == torch.float16


def test_inference_mode_before_does_not_spoil_a_gradient_after(folder: Path) -> None:
    moved = batch().requires_grad_()
    with torch.inference_mode():
        bcs = BCS.load(folder, device="cpu")
        bcs.score(batch(), batch())
        bcs.loss(batch(), batch())
    bcs.loss(moved, batch().flip(0)).backward()
    assert moved.grad is not None


def test_scoring_does_not_leave_tensors_that_block_gradients() -> None:
    """DINOv3's rotary positions are computed within the network."""
    import timm

    torch.manual_seed(0)
    settings = {"embed_dim": 24, "depth": 1, "num_heads": 2, "img_size": 32}
    module = timm.create_model("vit_small_patch16_dinov3", num_classes=0, **settings).eval()
    encoder = torch_encoder(
        name="dino", module=module, features=module,
        preprocessing=Preprocessing((32, 32), "crop", (36, 36), "bilinear", (0.5,) * 3, (0.5,) * 3),
        identity={}, device="cpu", dtype=None,
    )  # fmt: skip
    encoder.embed([draw(0)])
    moved = batch(1).requires_grad_()
    encoder.embed_tensor(moved).sum().backward()
    assert moved.grad is not None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: (x * 255).to(torch.uint8), "expected a float tensor, which can have a gradient"),
        (lambda x: x[0], r"\[N, C, H, W\].*\[3, 36, 40\]"),
        (lambda x: x[:, :2], "3 channels or 1"),
        (lambda x: x * 255, "value_range"),
        (lambda x: x * torch.nan, "NaN"),
        (lambda x: x[:1], "1 and 2"),
        (lambda x: x.numpy(), "got ndarray"),
    ],
)
def test_what_the_loss_refuses(light: BCS, change: Callable[[torch.Tensor], Any], message: str) -> None:
    with pytest.raises(ImageError, match="(?s)" + message):
        light.loss(change(batch()), batch())


def test_loss_arguments_are_checked(light: BCS, monkeypatch: pytest.MonkeyPatch) -> None:
    for weights in ((0, 0), (-1, 2), 1, (1, 2, 3)):
        with pytest.raises(ModelError, match="weights"):
            light.loss(batch(), batch(), weights=weights)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="reduction"):
        light.loss(batch(), batch(), reduction="sum")
    plain = counted(monkeypatch)[0]
    with pytest.raises(EncoderError, match="'lowlevel' cannot be differentiated"):
        plain.loss(batch(), batch())


# --- preprocessing and descriptor in torch ---


@pytest.mark.parametrize("size", [(97, 50), (41, 88), (300, 260)])
@pytest.mark.parametrize("resize", ["squash", "crop"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_preprocessing_in_torch_is_that_of_pillow(size: tuple[int, int], resize: str, interpolation: str) -> None:
    rng = np.random.default_rng(0)
    image = draw(3, size)
    noisy = np.asarray(image).astype(int) + rng.integers(-20, 20, (size[1], size[0], 3))
    image = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
    for cut in ("round", "floor"):
        made = Preprocessing((32, 32), resize, (37, 37), interpolation, (0.4, 0.5, 0.6), (0.25, 0.25, 0.2), cut=cut)
        tensor = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None] / 255
        ours = made.apply_tensor(tensor)[0].numpy()
        std = np.array(made.std, dtype=np.float32)[:, None, None]
        levels = np.abs(ours - made.apply(image)) * std * 255
        assert ours.shape == (3, 32, 32)
        # Pillow rounds twice.
        assert levels.mean() < 0.5
        assert np.quantile(levels, 0.99) < 2.5


def test_preprocessing_that_torch_cannot_do() -> None:
    made = Preprocessing((8, 8), "squash", (8, 8), "lanczos", (0.5,) * 3, (0.5,) * 3)
    with pytest.raises(EncoderError, match="'lanczos' cannot be differentiated"):
        made.apply_tensor(torch.zeros(1, 3, 9, 9))


@pytest.mark.parametrize("flat", [False, True])
def test_descriptor_in_torch_is_that_of_numpy(flat: bool) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    if flat:
        pixels[:] = pixels[0, 0]
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255.0
    tensor.requires_grad_()
    ours = describe_tensor(tensor)
    np.testing.assert_allclose(ours[0].detach(), describe(Image.fromarray(pixels)), atol=2e-6)
    ours.square()[0, ::3].sum().backward()
    assert tensor.grad is not None
    assert torch.isfinite(tensor.grad).all()


def test_slopes_of_the_descriptor() -> None:
    """Edges and layout by finite differences; colours follow a histogram that shares pixels between bins."""
    from bcs_lab.encoders import lowlevel

    rng = np.random.default_rng(0)
    base = torch.from_numpy(rng.uniform(0.1, 0.9, (1, 3, 64, 64)))
    direction = torch.from_numpy(rng.normal(size=base.shape))
    step = 1e-6
    for block in (lowlevel._edges, lowlevel._layout):
        moved = base.clone().requires_grad_()
        weights = torch.from_numpy(rng.normal(size=block(base).shape))
        (gradient,) = torch.autograd.grad((block(moved) * weights).sum(), moved)
        ends = [(block(base + sign * step * direction) * weights).sum() for sign in (1, -1)]
        assert (gradient * direction).sum().item() == pytest.approx(((ends[0] - ends[1]) / (2 * step)).item(), rel=1e-4)
    moved = base.clone().requires_grad_()
    found = lowlevel._colours(moved)
    bytes_ = (base[0].permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
    np.testing.assert_allclose(found[0].detach(), colour_histogram(bytes_), atol=1e-9)
    # More red moves mass from the lower red bins to the higher ones.
    by_red = found.view(4, 4, 4).sum(dim=(1, 2))
    (gradient,) = torch.autograd.grad((by_red * torch.arange(4.0)).sum(), moved)
    assert (gradient[:, 0] >= 0).all()
    assert gradient[:, 0].sum() > 0
    assert gradient[:, 1:].abs().max() < 1e-9
    np.testing.assert_allclose(
        lowlevel._edges(torch.from_numpy(bytes_ / 255.0).permute(2, 0, 1)[None])[0].view(16, 8),
        edge_histograms(bytes_), atol=1e-9,
    )  # fmt: skip


def test_pixels_of_a_tensor_keep_their_gradient() -> None:
    grey = (2 * torch.rand(2, 1, 4, 5) - 1).requires_grad_()
    pixels = tensor_pixels(grey, "x", (-1, 1))
    assert pixels.shape == (2, 3, 4, 5)
    pixels.sum().backward()
    assert grey.grad is not None
    np.testing.assert_allclose(grey.grad, 1.5)
