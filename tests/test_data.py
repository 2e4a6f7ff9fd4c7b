from __future__ import annotations

import numpy as np
import pytest
import torch
from small import make_data, make_embeddings, make_pairs, make_similarity_data, make_targets

from bcs_lab.data import BCSDataModule, features_of
from bcs_lab.embeddings import canonical
from bcs_lab.errors import ConfigError, CorpusError
from bcs_lab.features import feature_dim, fused_features
from bcs_lab.heads import NO_GROUP, ExtraRows
from bcs_lab.split import Split, make_split


def order(data: BCSDataModule, epochs: int = 1) -> list[list[int]]:
    loader = data.train_dataloader()
    return [torch.cat([batch["index"] for batch in loader]).tolist() for _ in range(epochs)]


def test_a_batch_is_what_the_index_says() -> None:
    data, embeddings, targets, _ = make_data()
    index = torch.tensor([3, 0, 41])
    batch = data.batch(index)
    for k, part in enumerate(embeddings):
        images = canonical(part.images)
        np.testing.assert_array_equal(batch["ref"][k].numpy(), images[part.reference[index]])
        np.testing.assert_array_equal(batch["rec"][k].numpy(), images[part.reconstruction[index]])
    np.testing.assert_array_equal(batch["target"].numpy(), np.nan_to_num(targets[index]))
    assert torch.equal(batch["index"], index)
    assert fused_features(list(zip(batch["ref"], batch["rec"], strict=True))).shape == (3, data.in_dim)


def test_missing_targets_are_a_mask() -> None:
    data, *_ = make_data()
    batch = data.batch(torch.tensor([3]))
    assert batch["target"][0, 1] == 0
    assert batch["weight"][0, 1] == 0
    assert (batch["weight"] > 0).sum() == 11
    assert torch.isfinite(data.targets).all()
    embeddings = make_embeddings()
    targets, weights = make_targets(embeddings)
    targets[5, 2] = np.nan  # a gap that the weights do not know of
    again = BCSDataModule(embeddings, targets, weights, make_split(make_pairs()))  # type: ignore[arg-type]
    assert again.weights[5, 2] == 0


def test_each_distinct_image_is_held_once_in_float32() -> None:
    embeddings = make_embeddings(60)
    halves = [type(e)(e.name, e.images.astype(np.float16), e.reference, e.reconstruction) for e in embeddings]
    targets, weights = make_targets(embeddings)
    data = BCSDataModule(halves, targets, weights, make_split(make_pairs()))  # type: ignore[arg-type]
    full, *_ = make_data()
    for a, b, part in zip(data.images, full.images, embeddings, strict=True):
        assert a.shape == part.images.shape
        assert a.dtype == torch.float32
        assert torch.equal(a, b)  # float16 bundle and float32 store give the same numbers
    assert data.in_dim == feature_dim([8, 5])
    assert (data.n_pairs, data.n_questions) == (60, 12)


def test_training_order_is_new_every_epoch_and_set_by_the_seed_alone() -> None:
    data, *_ = make_data()
    data.seed = 7
    first = order(data, 3)
    torch.manual_seed(123)
    torch.rand(5)
    assert order(data, 3) == first
    assert first[0] != first[1] != first[2]
    assert all(sorted(epoch) == data.split.indices("train").tolist() for epoch in first)
    data.seed = 13
    assert order(data)[0] != first[0]


def test_last_partial_batch_is_kept() -> None:
    data, *_ = make_data(batch_size=16)
    sizes = [len(batch["index"]) for batch in data.train_dataloader()]
    assert sizes == [16, 16, 10]
    assert len(data.train_dataloader()) == 3


def test_validation_and_test_are_in_corpus_order() -> None:
    data, *_ = make_data(batch_size=4)
    for part, loader in (("val", data.val_dataloader()), ("test", data.test_dataloader())):
        assert torch.cat([batch["index"] for batch in loader]).tolist() == data.split.indices(part).tolist()
    assert torch.cat([batch["index"] for batch in data.batches(7)]).tolist() == list(range(60))


def test_one_training_pair() -> None:
    embeddings = make_embeddings(3)
    targets, weights = make_targets(make_embeddings(4))
    data = BCSDataModule(embeddings, targets[:3], weights[:3], make_split(make_pairs(3), "pair"))  # type: ignore[arg-type]
    assert [len(batch["index"]) for batch in data.train_dataloader()] == [1]


def test_parts_that_do_not_fit() -> None:
    embeddings = make_embeddings()
    targets, weights = make_targets(embeddings)
    split = make_split(make_pairs())
    with pytest.raises(CorpusError, match="at least one encoder"):
        BCSDataModule([], targets, weights, split)
    with pytest.raises(CorpusError, match=r"\[60, n_questions\]"):
        BCSDataModule(embeddings, targets[:50], weights[:50], split)  # type: ignore[arg-type]
    with pytest.raises(CorpusError, match="encoder made0: embeddings of 40 pairs, but the split has 60"):
        BCSDataModule(make_embeddings(40), targets, weights, split)  # type: ignore[arg-type]
    for size in (0, -1, 2.5, True):
        with pytest.raises(ConfigError, match="batch_size="):
            BCSDataModule(embeddings, targets, weights, split, batch_size=size)  # type: ignore[arg-type]


def test_no_features_are_kept() -> None:
    data, *_ = make_data(200, dims=(64,))
    held = sum(value.numel() for value in vars(data).values() if isinstance(value, torch.Tensor))
    held += sum(
        v.numel() for value in vars(data).values() if isinstance(value, list) for v in value if hasattr(v, "numel")
    )
    assert held < data.n_pairs * data.in_dim
    assert isinstance(data.split, Split)


# --- similarities ---


def test_similarities_are_the_features() -> None:
    data, _, similarities, targets, _ = make_similarity_data()
    matrix = np.concatenate([part.values for part in similarities], axis=1)
    assert (data.kind, data.in_dim, data.n_pairs) == ("similarity", matrix.shape[1], 60)
    assert data.names[:2] == ["made0.pooled_cosine", "made0.mse"]
    index = torch.tensor([3, 0, 41])
    batch = data.batch(index)
    np.testing.assert_array_equal(features_of(batch).numpy(), matrix[index])
    np.testing.assert_array_equal(batch["target"].numpy(), np.nan_to_num(targets[index]))
    assert make_data()[0].kind == "embedding"


def test_training_rows_are_the_training_part() -> None:
    concepts = np.array([f"c{i // 2}" for i in range(60)], dtype=object)
    data, _, similarities, targets, split = make_similarity_data(concepts=concepts)
    train = split.indices("train")
    rows = data.training_rows()
    np.testing.assert_array_equal(rows.x, np.concatenate([part.values for part in similarities], axis=1)[train])
    np.testing.assert_array_equal(rows.y, targets[train])
    assert np.array_equal(np.isnan(rows.y), rows.weight == 0)
    same = rows.groups[:, None] == rows.groups[None, :]
    assert np.array_equal(same, concepts[train][:, None] == concepts[train][None, :])
    assert rows.directions is not None
    assert rows.directions[:2].tolist() == [1, -1]
    of_embeddings = make_data()[0].training_rows()
    assert of_embeddings.cosines == (32, 53)
    assert of_embeddings.directions is None
    assert of_embeddings.x.shape == (42, 54)


def test_extra_rows_stand_behind_the_pairs() -> None:
    plain, *_ = make_similarity_data()
    x = np.full((5, plain.in_dim), 0.5, dtype=np.float32)
    y = np.zeros((5, 12), dtype=np.float32)
    y[0, 3] = np.nan
    data, *_ = make_similarity_data(extra=ExtraRows(x, y, np.full_like(y, 0.2)))
    assert (data.n_pairs, data.n_questions) == (60, 12)
    assert order(data)[0] != order(plain)[0]
    assert set(order(data)[0]) == {*plain.split.indices("train").tolist(), *range(60, 65)}
    assert torch.cat([batch["index"] for batch in data.batches(7)]).tolist() == list(range(60))
    assert torch.cat([batch["index"] for batch in data.val_dataloader()]).tolist() == data.split.indices("val").tolist()
    rows = data.training_rows()
    assert (rows.groups[-5:] == NO_GROUP).all()
    assert (rows.groups[:-5] >= 0).all()
    assert rows.weight[-5, 3] == 0
    assert np.isnan(rows.y[-5, 3])
    assert data.digest() != plain.digest()
    with pytest.raises(CorpusError, match="further training rows"):
        make_similarity_data(extra=ExtraRows(x[:, 1:], y, y))
    embeddings = make_embeddings()
    targets, weights = make_targets(embeddings)
    with pytest.raises(ConfigError, match="features=similarity only"):
        BCSDataModule(embeddings, targets, weights, make_split(make_pairs()), extra=ExtraRows(x, y, y))  # type: ignore[arg-type]


def test_similarities_that_do_not_fit() -> None:
    _, _, similarities, *_ = make_similarity_data()
    fewer = [type(part)(part.name, part.values[:40], part.names) for part in similarities]
    with pytest.raises(CorpusError, match=r"encoder made0: similarities of shape \(40, 7\), expected \[60, 7\]"):
        make_similarity_data(similarities=fewer)
    similarities[1].values[5, 2] = np.nan
    with pytest.raises(CorpusError, match="encoder made1: 1 similarities are not finite"):
        make_similarity_data(similarities=similarities)
    with pytest.raises(CorpusError, match="There are no similarities"):
        make_similarity_data(similarities=[])
    with pytest.raises(CorpusError, match="one concept for each of 60 pairs"):
        make_similarity_data(concepts=["a"])


def test_the_digest_knows_concepts() -> None:
    a, b = (make_similarity_data(concepts=[f"c{i // k}" for i in range(60)])[0] for k in (2, 3))
    assert a.digest() != b.digest()
