"""Set-level metrics against the notebooks' own procedure (numpy's corrcoef over the whole set), and their loading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from audit_pictures import flat, scene, write_corpus
from scipy.spatial.distance import correlation
from small_networks import features_file, whole_file

from bcs_lab.audit.metrics import load_metric
from bcs_lab.audit.set_table import compute_set_table, two_way
from bcs_lab.corpus.schema import Corpus
from bcs_lab.errors import ConfigError


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "alexnet.pth"
    features_file("alexnet", path)
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Five references, two reconstructions each but one."""
    pairs = [(scene(k // 2, (60, 60)), scene(100 + k, (60, 60))) for k in range(9)]
    return write_corpus(tmp_path_factory.mktemp("set"), pairs)


def notebook(real: np.ndarray, fake: np.ndarray) -> tuple[float, float]:
    """Two-way identification and mean correlation distance of n pairs with n references, features [n, d]."""
    n = len(real)
    r = np.corrcoef(real, fake)[:n, n:]
    success = r < np.diag(r)
    distance = np.array([correlation(a, b) for a, b in zip(real, fake, strict=True)])
    return float(np.mean(success.sum(axis=0)) / (n - 1)), float(distance.mean())


def features(weights: Path, node: int, image: np.ndarray) -> np.ndarray:
    """By hand: bilinear, ImageNet's normalisation, layers up to the node."""
    state = torch.load(weights, weights_only=True)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    x = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 255
    x = (x - mean[None, :, None, None]) / std[None, :, None, None]
    plan = {0: (4, 2), 3: (1, 2), 6: (1, 1), 8: (1, 1), 10: (1, 1)}
    for index in range(node + 1):
        if index in plan:
            stride, padding = plan[index]
            x = torch.nn.functional.conv2d(
                x, state[f"features.{index}.weight"], state[f"features.{index}.bias"], stride, padding
            )
        elif index in (2, 5):
            x = torch.nn.functional.max_pool2d(x, 3, 2)
        else:
            x = x.relu()
    return x.flatten().double().numpy()


@pytest.mark.parametrize(("name", "node"), [("alexnet2", 4), ("alexnet5", 11)])
def test_as_the_notebooks_where_each_reference_occurs_once(tmp_path: Path, weights: Path, name: str, node: int) -> None:
    pairs = [(scene(k, (70, 60)), scene(50 + k, (60, 70))) for k in range(5)]
    corpus = write_corpus(tmp_path / "corpus", pairs)
    metric = load_metric(name, options={"source": str(weights)}, device="cpu")
    table = compute_set_table(corpus, [metric], tmp_path / "out", progress=False)
    ones, twos = zip(*pairs, strict=True)
    sides = [np.stack([features(weights, node, metric.prepare(image)) for image in side]) for side in (ones, twos)]
    share, distance = notebook(*sides)
    row = table.values.set_index("group").loc["overall"]
    assert (row["pairs"], row["references"]) == (5, 5)
    assert row["two_way"] == pytest.approx(share, abs=1e-12)
    assert row["distance"] == pytest.approx(distance, abs=1e-5)


def test_recurring_references_count_once_and_methods_stand_alone(tmp_path: Path, weights: Path, corpus: Corpus) -> None:
    metric = load_metric("alexnet2", options={"source": str(weights)}, device="cpu")
    table = compute_set_table(corpus, [metric], tmp_path, progress=False)
    vectors = {}
    for row in range(len(corpus)):
        for side, path in (("ref", corpus.reference_file(row)), ("rec", corpus.reconstruction_file(row))):
            from bcs_lab.corpus.images import load_image

            vectors[side, row] = features(weights, 4, metric.prepare(load_image(path)))
    values = table.values.set_index("group")
    for group, rows in {"overall": range(9), "M0": range(0, 9, 2), "M1": range(1, 9, 2)}.items():
        references = {row // 2: vectors["ref", row] for row in rows}
        shares = []
        for row in rows:
            own = np.corrcoef(references[row // 2], vectors["rec", row])[0, 1]
            others = [np.corrcoef(v, vectors["rec", row])[0, 1] for key, v in references.items() if key != row // 2]
            shares.append(np.mean([other < own for other in others]))
        assert values.loc[group, "two_way"] == pytest.approx(np.mean(shares), abs=1e-12)
        assert values.loc[group, "references"] == len(references)


def test_a_method_called_like_all_pairs_replaces_nothing(tmp_path: Path, weights: Path, corpus: Corpus) -> None:
    metric = load_metric("alexnet2", options={"source": str(weights)}, device="cpu")
    odd = replace(corpus, pairs=corpus.pairs.assign(method=corpus.pairs["method"].replace("M0", "overall")))
    table = compute_set_table(odd, [metric], tmp_path, progress=False).values.set_index("group")
    assert table["pairs"].to_dict() == {"overall": 9, "M1": 4, "'overall'": 5}


def test_correlations_are_found_again(
    tmp_path: Path, weights: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = load_metric("alexnet5", options={"source": str(weights)}, device="cpu")
    first = compute_set_table(corpus, [metric], tmp_path, progress=False)
    monkeypatch.setattr(metric.family, "network", None)  # would fail if it were asked
    again = compute_set_table(corpus, [metric], tmp_path, progress=False)
    assert first.values.equals(again.values)
    # A part that is damaged is computed again, which it cannot be here.
    (part,) = (tmp_path / "sets").glob("*/part-*.npz")
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(TypeError):
        compute_set_table(corpus, [metric], tmp_path, progress=False)


def test_bad_images_do_not_count(tmp_path: Path, weights: Path) -> None:
    pairs = [
        (scene(0), scene(10)),
        (scene(1), b"no image"),
        (b"", scene(12)),
        (scene(3), scene(13)),
        (scene(4), scene(14)),
    ]
    corpus = write_corpus(tmp_path / "corpus", pairs)
    metric = load_metric("alexnet5", options={"source": str(weights)}, device="cpu")
    for _ in range(2):  # the second time from what was written
        table = compute_set_table(corpus, [metric], tmp_path / "out", progress=False)
        assert table.failures["pair_id"].tolist() == ["p0001", "p0002"]
        assert "image" in table.failures["reason"][0]
        assert table.values.set_index("group").loc["overall", "pairs"] == 3


def test_two_way_by_hand() -> None:
    r = np.array([[0.9, 0.2, np.nan], [0.1, 0.2, 0.3], [0.5, 0.1, 0.4]], dtype=np.float32)
    # The second ties with its own reference's correlation, which counts against it.
    np.testing.assert_allclose(two_way(r, np.array([0, 1, 2])), [1.0, 0.5, 1.0])
    assert np.isnan(two_way(r[:1], np.array([0, 0, 0]))).all()


def test_names_that_have_a_value_a_pair_are_refused(tmp_path: Path, corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match="value for each pair"):
        compute_set_table(corpus, ["ssim"], tmp_path)


def test_unavailable_weights_are_named(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    table = compute_set_table(corpus, ["alexnet2", "swav"], tmp_path, progress=False)
    assert set(table.unavailable) == {"alexnet2", "swav"}
    assert table.values.empty


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inception", "efficientnet_b", "swav"])
def test_large_networks_load_and_cut(tmp_path: Path, name: str) -> None:
    from torchvision import models

    torch.manual_seed(0)
    if name == "inception":
        network = models.inception_v3(weights=None, init_weights=True)
        network.transform_input = True
        network.aux_logits, network.AuxLogits, size = False, None, 342
    elif name == "swav":
        network, size = models.resnet50(weights=None), 224
    else:
        network, size = models.efficientnet_b1(weights=None), 255
    whole_file(network, tmp_path / "w.pth", "module." if name == "swav" else "")
    metric = load_metric(name, options={"source": str(tmp_path / "w.pth")}, device="cpu")
    image = metric.prepare(scene(1))
    got = metric.family.features([image, metric.prepare(flat(0))])
    if name == "swav" or name == "inception":
        network.fc = torch.nn.Identity()
    else:
        network.classifier = torch.nn.Identity()
    x = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 255
    x = torch.nn.functional.interpolate(x, (size, size), mode="bilinear", antialias=True)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.inference_mode():
        wanted = network.eval()((x - mean[None, :, None, None]) / std[None, :, None, None]).flatten().double()
    wanted = (wanted - wanted.mean()) / (wanted - wanted.mean()).norm()
    np.testing.assert_allclose(got[0], wanted.numpy(), atol=2e-4)
