"""Known negatives: which pairs are made, what they are compared to, and how heads learn from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from drawn_corpus import draw_corpus

from bcs_lab.consensus import consensus
from bcs_lab.corpus import Corpus, load_corpus, load_image
from bcs_lab.corpus.bundle import bundle_differences, read_bundle, write_bundle
from bcs_lab.corpus.schema import ShippedNegatives
from bcs_lab.embeddings import pair_embeddings
from bcs_lab.errors import ConfigError, CorpusError
from bcs_lab.negatives import ANSWERS, beside, compare_negatives, negative_pairs, negative_rows
from bcs_lab.similarity import load_describer, pair_similarities, similarity_matrix
from bcs_lab.similarity.pairs import PairSimilarities
from bcs_lab.split import concept_key


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return load_corpus("manifest", draw_corpus(tmp_path_factory.mktemp("negatives") / "drawn"))


def lowlevel(corpus: Corpus) -> list[PairSimilarities]:
    return pair_similarities(corpus, ["lowlevel"], store=None, progress=False)[1]


def test_pairs_are_of_two_concepts_and_of_one_decoder_where_it_has_several() -> None:
    corpus = load_corpus("brainbank")
    pairs = negative_pairs(corpus, per_pair=3)
    concepts = corpus.pairs["concept"].map(concept_key).to_numpy()
    methods = corpus.pairs["method"].to_numpy()
    assert len(np.unique(pairs, axis=0)) == len(pairs) > 2.5 * len(corpus)
    assert (concepts[pairs[:, 0]] != concepts[pairs[:, 1]]).all()
    several = [len(set(concepts[methods == method])) > 1 for method in methods[pairs[:, 0]]]
    same = methods[pairs[:, 0]] == methods[pairs[:, 1]]
    assert same[several].all()
    assert np.array_equal(pairs, negative_pairs(corpus, per_pair=3))
    assert not np.array_equal(pairs, negative_pairs(corpus, per_pair=3, seed=1))


def test_there_are_none_with_one_concept() -> None:
    corpus = load_corpus("brainbank")
    concept = corpus.pairs["concept"].mode()[0]
    assert negative_pairs(corpus.subset((corpus.pairs["concept"] == concept).to_numpy())).shape == (0, 2)


def test_values_are_those_of_the_images(pictures: Corpus) -> None:
    parts = lowlevel(pictures)
    items, pairs = compare_negatives(pictures, parts, lowlevel)
    describer = load_describer("lowlevel")

    def described(path: Path) -> object:
        return describer.describe(describer.prepare(load_image(path))[None])[0]

    for row in (0, len(pairs) // 2, len(pairs) - 1):
        reference, reconstruction = pairs[row]
        one, two = (
            described(pictures.reference_file(reference)),
            described(pictures.reconstruction_file(reconstruction)),
        )
        assert np.array_equal(items[0].values[row], describer.compare_all([(one, two)])[0])
    made = beside(pictures, pairs)
    assert made.pairs["reference_path"].tolist() == pictures.pairs["reference_path"].iloc[pairs[:, 0]].tolist()
    assert np.isnan(made.answers).all()


def test_only_those_inside_the_training_part_are_learned_from(pictures: Corpus) -> None:
    items, pairs = compare_negatives(pictures, lowlevel(pictures), lowlevel)
    train = np.arange(0, len(pictures), 2)
    targets = consensus(pictures.answers)
    rows = negative_rows(items, pairs, targets, train, pictures.protocol, 0.3)
    kept = [set(pair) <= set(train.tolist()) for pair in pairs.tolist()]
    assert 0 < len(rows.x) == sum(kept) < len(pairs)
    assert np.array_equal(rows.x, items[0].values[kept])
    own = pictures.protocol.ids.index("P5")  # artifacts are the reconstruction's own
    assert np.array_equal(rows.y[:, own], targets[pairs[kept, 1], own], equal_nan=True)
    others = [column for column in range(12) if column != own]
    expected = [ANSWERS[pictures.protocol.questions[column].group] for column in others]
    assert np.allclose(rows.y[:, others], expected)
    assert np.allclose(rows.weight[:, others], 0.3)

    unanswered = np.full_like(targets, np.nan)
    rows = negative_rows(items, pairs, unanswered, train, pictures.protocol, 0.3)
    assert np.isnan(rows.y[:, own]).all()
    assert (rows.weight[:, own] == 0).all()


def test_they_travel_in_a_bundle_and_stay_with_their_pairs(pictures: Corpus, tmp_path: Path) -> None:
    parts = lowlevel(pictures)
    items, pairs = compare_negatives(pictures, parts, lowlevel)
    _, embeddings = pair_embeddings(pictures, ["lowlevel"], store=None, progress=False)
    write_bundle(pictures, embeddings, tmp_path / "a", similarities=parts, negatives={"lowlevel": items[0]})
    back = read_bundle(tmp_path / "a")
    found, again = compare_negatives(back, lowlevel(back), lambda _: pytest.fail("they are shipped"))
    assert np.array_equal(again, pairs)
    assert np.array_equal(found[0].values, items[0].values)
    # Written once more without being named.
    write_bundle(
        back, list(back.shipped.values()), tmp_path / "b", similarities=list(back.shipped_similarities.values())
    )
    assert bundle_differences(back, read_bundle(tmp_path / "b")) == []
    assert (tmp_path / "a" / "similarities-lowlevel.safetensors").read_bytes() == (
        tmp_path / "b" / "similarities-lowlevel.safetensors"
    ).read_bytes()

    keep = np.arange(len(back)) % 3 > 0
    rows = np.flatnonzero(keep)
    part = back.subset(keep).shipped_similarities["lowlevel"].negatives
    assert part is not None
    inside = np.isin(pairs, rows).all(axis=1)
    assert np.array_equal(rows[part.pairs], pairs[inside])
    assert np.array_equal(part.values, items[0].values[inside])


def test_a_bundle_without_them_says_so(pictures: Corpus, tmp_path: Path) -> None:
    _, embeddings = pair_embeddings(pictures, ["lowlevel"], store=None, progress=False)
    write_bundle(pictures, embeddings, tmp_path / "a", similarities=lowlevel(pictures))
    back = read_bundle(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"ships no similarities of known negatives for lowlevel.*head\.negatives=0"):
        compare_negatives(back, lowlevel(back), lowlevel)
    assert any(
        "negatives" in line
        for line in bundle_differences(
            back,
            replace(
                back,
                shipped_similarities={
                    "lowlevel": replace(
                        back.shipped_similarities["lowlevel"],
                        negatives=ShippedNegatives(np.array([[0, 9]]), np.zeros((1, 14), dtype=np.float32)),
                    )
                },
            ),
        )
    )


def test_arrays_that_do_not_fit_are_refused(pictures: Corpus, tmp_path: Path) -> None:
    _, embeddings = pair_embeddings(pictures, ["lowlevel"], store=None, progress=False)
    wrong = ShippedNegatives(np.array([[0, len(pictures)]]), np.zeros((1, 14), dtype=np.float32))
    with pytest.raises(CorpusError, match="Known negatives of lowlevel do not fit"):
        write_bundle(
            pictures, embeddings, tmp_path / "a", similarities=lowlevel(pictures), negatives={"lowlevel": wrong}
        )
    assert not (tmp_path / "a").exists()


def test_the_shipped_ones_are_made_of_the_shipped_pairs() -> None:
    corpus = load_corpus("brainbank")
    for item in corpus.shipped_similarities.values():
        assert item.negatives is not None
        assert np.array_equal(item.negatives.pairs, negative_pairs(corpus))
        assert item.negatives.values.shape == (len(item.negatives.pairs), len(item.names))
    # Pairs of other things are less alike than real ones, else they would be no negatives.
    _, parts = pair_similarities(corpus, ["efficientnet_lite0"], store=None)
    values = corpus.shipped_similarities["efficientnet_lite0"].negatives
    assert values is not None
    column = parts[0].names.index("head.pooled_mean")
    assert np.median(values.values[:, column]) < np.quantile(similarity_matrix(parts)[:, column], 0.25)


def test_a_head_learns_from_them(bcs: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("train", "features=similarity", "head=ridge", "seeds=[7]", "logger=none", "bootstrap.resamples=100")
    for weight in ("0", "0.4"):
        assert bcs(*arguments, f"head.negatives={weight}", f"hydra.run.dir={tmp_path / weight}") == 0
    without, with_them = (pd.read_parquet(tmp_path / weight / "predictions.parquet") for weight in ("0", "0.4"))
    assert not np.allclose(without["S1_prediction"], with_them["S1_prediction"])
    # What is unlike is scored lower by a head that has seen pairs with nothing in common.
    low = with_them["S1_target"] == 0
    assert with_them.loc[low, "S1_prediction"].mean() < without.loc[low, "S1_prediction"].mean()
    capsys.readouterr()
    assert bcs(*arguments, "head.negatives=0.4", "features=embedding") == 2
    assert "known negatives are for features=similarity" in capsys.readouterr().err


def test_export_of_negatives(
    bcs: Callable[..., int], drawn: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = ["corpus=manifest", f"corpus.root={drawn}", "encoder=lowlevel"]
    assert bcs("corpus", "export", *corpus, f"out={tmp_path / 'a'}", "negatives=true") == 2
    assert "similarities=" in capsys.readouterr().err
    assert bcs("corpus", "export", *corpus, f"out={tmp_path / 'a'}", "similarities=[lowlevel]", "negatives=true") == 0
    shipped = read_bundle(tmp_path / "a").shipped_similarities["lowlevel"].negatives
    assert shipped is not None
    assert np.array_equal(shipped.pairs, negative_pairs(load_corpus("manifest", drawn)))
