"""The evaluator that people import: T-PAS, T-SAS and all twelve answers for any pair of images, by a trained model.

Example:
    from bcs_lab import BCS

    bcs = BCS.load("runs/train/X")
    print(bcs.score("reference.png", "reconstruction.png"))
"""

from __future__ import annotations

import copy
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bcs_lab.conformal import DEFAULT_COVERAGE
from bcs_lab.corpus.images import DEFAULT_MAX_IMAGE_PIXELS
from bcs_lab.corpus.schema import PATH_COLUMNS, Corpus
from bcs_lab.embedder import ImageEmbedder, Vectors
from bcs_lab.encoders import FrozenEncoder, load_encoder
from bcs_lab.errors import CorpusError, EncoderError, ImageError, ModelError, Problem, listing
from bcs_lab.pair_scores import (
    AXES,
    SIDES,
    BCSScore,
    check_coverage,
    count,
    joined,
    normal_tensors,
    score_table,
    scores_of,
)
from bcs_lab.pixels import Picture, image_error, pictures
from bcs_lab.store import EmbeddingStore

if TYPE_CHECKING:
    from torch import Tensor

    from bcs_lab.ensemble import Ensemble
    from bcs_lab.loss import PixelLoss
    from bcs_lab.similarity import Describer

__all__ = ["AXES", "BCS", "BCSScore", "differences", "scores_of"]

logger = logging.getLogger(__name__)

#: Parts of a fingerprint that may differ under ``on_encoder_mismatch="warn"``: they move numbers a little at most.
TOLERABLE = ("library_version", "dtype")
MISMATCH = ("refuse", "warn")
#: Pairs the heads take at once.
CHUNK = 256
#: Pairs that are compared at once: descriptions are larger than embeddings.
COMPARED = 32
#: Library that fingerprints of imported embeddings name.
_IMPORTED = "npz"


class BCS:
    """A trained model with its encoders, ready to score pairs of images; made by :meth:`load`.

    Encoders are loaded when first needed, or by :meth:`load_encoders`. The embeddings of the latest few thousand images
    are remembered. A deep copy is the object itself, since nothing of it changes; a pickle holds the model's weights
    but not the encoders, which are loaded anew when needed.

    Args:
        ensemble: the model.
        path: the folder it came from, for messages.
        device: of the encoders: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        dtype: of the encoders; by default what the model was trained with.
        batch_size: images an encoder takes at once.
        options: encoder -> further options of :func:`bcs_lab.encoders.load_encoder`, such as ``{"siglip": {"source":
            "/folder"}}``, over those the model was trained with.
        on_encoder_mismatch: ``refuse`` encoders that are not exactly those of training, or ``warn`` and go on where
            only the version of a library or the dtype differs. Other differences are always refused.
        max_image_pixels: largest accepted width x height of a file; a corpus brings its own limit.

    Attributes:
        ensemble: the model.
        path: see above.
        warnings: what the user should know about the scores, such as a tolerated difference.

    Raises:
        ModelError: an argument cannot be used.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        *,
        path: str | Path | None = None,
        device: str = "auto",
        dtype: str | None = None,
        batch_size: int = 32,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        on_encoder_mismatch: str = "refuse",
        max_image_pixels: int = DEFAULT_MAX_IMAGE_PIXELS,
    ) -> None:
        self.ensemble = ensemble
        self.max_image_pixels = max_image_pixels
        self.path = None if path is None else Path(path)
        self.device, self.dtype, self.batch_size = device, dtype, batch_size
        self.options = _given(options or {})
        self.on_encoder_mismatch = on_encoder_mismatch
        self.warnings: list[str] = []
        self._embedder: ImageEmbedder | None = None
        self._encoders: list[FrozenEncoder] = []
        self._plan = _Plan((), ())
        self._loss: PixelLoss | None = None
        self._check_arguments()

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        device: str = "auto",
        dtype: str | None = None,
        batch_size: int = 32,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        on_encoder_mismatch: str = "refuse",
        max_image_pixels: int = DEFAULT_MAX_IMAGE_PIXELS,
    ) -> BCS:
        """Read and verify a model; its encoders are loaded later.

        Args:
            model: a model's folder, the folder of a training run, ``bcs-lite``, which ships with the package, or
                ``hf:user/repo[@revision]``.
            device: this and the following as in :class:`BCS`.
            dtype: see there.
            batch_size: see there.
            options: see there.
            on_encoder_mismatch: see there.
            max_image_pixels: see there.

        Raises:
            ModelError: there is no model, a file of it is missing or altered, or an argument cannot be used.
        """
        from bcs_lab.models import resolve_model

        path = resolve_model(model)
        with normal_tensors():
            from bcs_lab.ensemble import Ensemble

            ensemble = Ensemble.load(path)
        return cls(
            ensemble,
            path=path,
            device=device,
            dtype=dtype,
            batch_size=batch_size,
            options=options,
            on_encoder_mismatch=on_encoder_mismatch,
            max_image_pixels=max_image_pixels,
        )

    def _check_arguments(self) -> None:
        if self.on_encoder_mismatch not in MISMATCH:
            raise ModelError(
                f"Expected `on_encoder_mismatch` to be {' or '.join(MISMATCH)} but got {self.on_encoder_mismatch!r}."
            )
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ModelError(f"Expected `batch_size` to be a whole number above 0 but got {self.batch_size!r}.")
        known = [name for record in [*self.ensemble.encoders, *self._parts] for name in _names(record)]
        stray = sorted(set(self.options) - set(known))
        if stray:
            raise ModelError(
                f"`options` names {', '.join(stray)}, but the encoders of this model are "
                f"{', '.join(dict.fromkeys(known))}."
            )

    def __repr__(self) -> str:
        simulated = ", simulated teachers" if self.simulated_teachers else ""
        return f"BCS({' + '.join(self.labels)}, {count(len(self.ensemble.seeds), 'member')}{simulated})"

    @property
    def labels(self) -> tuple[str, ...]:
        """What the model's encoders are called, stand-ins named."""
        return tuple(record["label"] for record in self.ensemble.encoders)

    @property
    def _parts(self) -> list[dict[str, Any]]:
        """Records of the encoders whose similarities the members take, if they take any."""
        return list(self.ensemble.features.get("parts", []))

    @property
    def _embedded(self) -> list[dict[str, Any]]:
        """Records of the encoders whose embeddings are needed: for the members, or to tell what is unfamiliar."""
        needed = self.ensemble.kind == "embedding" or self.ensemble.familiarity is not None
        return self.ensemble.encoders if needed else []

    @property
    def simulated_teachers(self) -> bool:
        """Whether the model has learned from simulated teachers."""
        return self.ensemble.simulated_teachers

    # --- encoders ----------------------------------------------------------------------------------------------------

    @property
    def encoders(self) -> list[FrozenEncoder]:
        """The model's encoders, loaded by now."""
        self._images()
        return self._encoders

    def load_encoders(self) -> None:
        """Load the encoders and make sure that they are those of training.

        Raises:
            EncoderError: weights cannot be had.
            ModelError: an encoder is not the one of training, or the model was trained on imported embeddings.
        """
        self._images()

    def _images(self) -> ImageEmbedder:
        if self._embedder is None:
            imported = [record["label"] for record in self._embedded if _imported(record)]
            if imported:
                raise ModelError(
                    f"{self._called()} was trained on imported embeddings ({', '.join(imported)}), which nothing here "
                    "can compute from an image. It scores a corpus for whose pairs they are imported: "
                    "bcs embed source=npz, then bcs score corpus=… (score_corpus with store=…)."
                )
            steps: list[FrozenEncoder | Describer] = []
            records: list[dict[str, Any]] = []
            place: dict[str, int] = {}
            with normal_tensors():
                # A describer gives the embedding too, so that no network looks at an image twice.
                for record in [*self._parts, *self._embedded]:
                    if _made_by(record) not in place:
                        place[_made_by(record)] = len(steps)
                        steps.append(self._load(record))
                        records.append(record)
            self._agree([(record, step.fingerprint) for record, step in zip(records, steps, strict=True)])
            self._plan = _Plan(*(tuple(place[_made_by(record)] for record in part)
                                 for part in (self._embedded, self._parts)))  # fmt: skip
            self._encoders = [step if isinstance(step, FrozenEncoder) else step.encoder for step in steps]
            self._embedder = ImageEmbedder(steps, self.batch_size)
        return self._embedder

    def _load(self, record: Mapping[str, Any]) -> FrozenEncoder | Describer:
        """An encoder, or what compares by it where the record is that of similarities."""
        options = dict(record.get("options") or {})
        for name in _names(record):
            options |= self.options.get(name, {})
        fingerprint = record["fingerprint"]
        dtype = self.dtype or fingerprint.get("encoder", fingerprint).get("dtype")
        name = _made_by(record)
        try:
            if "encoder" in fingerprint:
                from bcs_lab.similarity import load_describer

                mirror = bool(fingerprint.get("mirror", False))
                return load_describer(name, options=options, device=self.device, dtype=dtype, mirror=mirror)
            return load_encoder(name, options=options, device=self.device, dtype=dtype)
        except EncoderError as error:
            raise EncoderError(
                f"{self._called()} needs encoder {name!r}: {error}\nA local copy of its weights can be named with "
                f'options={{"{name}": {{"source": "/folder"}}}} (bcs score: encoder.options).'
            ) from error

    def _agree(self, found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> None:
        """Compare fingerprints with those of training; one error for all encoders."""
        lines: dict[bool, list[str]] = {True: [], False: []}  # by whether warn would accept it
        for record, fingerprint in found:
            for key, then, now in differences(record["fingerprint"], fingerprint):
                line = f"{record['label']}: {key} was {_brief(then)} at training and is {_brief(now)} here"
                lines[key.removeprefix("encoder.") in TOLERABLE].append(line)
        tolerated = lines[True] if self.on_encoder_mismatch == "warn" else []
        refused = [*lines[False], *(lines[True] if not tolerated else [])]
        if refused:
            hint = (
                "" if lines[False] else '; on_encoder_mismatch="warn" (bcs score: encoder.mismatch=warn) accepts this'
            )
            raise ModelError(
                f"{self._called()}: these encoders are not those it was trained with, so its scores would mean "
                "something else:\n" + "\n".join(f"  - {line}" for line in refused) + "\nInstall the version of "
                f"training, name its weights with options, or train again with the encoders of today{hint}."
            )
        for line in tolerated:
            text = f"encoder mismatch accepted: {line}"
            if text not in self.warnings:
                self.warnings.append(text)
                logger.warning("%s: %s; scores may differ a little from those of training", self._called(), text)

    def _called(self) -> str:
        return "The model" if self.path is None else f"The model {self.path}"

    # --- scoring -----------------------------------------------------------------------------------------------------

    def score(
        self,
        reference: Any,
        reconstruction: Any,
        *,
        value_range: tuple[float, float] | None = None,
        layout: str | None = None,
        coverage: float = DEFAULT_COVERAGE,
    ) -> BCSScore:
        """Score one pair or a batch.

        Both sides may be a path, a PIL image, an array, a tensor, or a sequence of them; arrays and tensors with one
        more dimension are batches. Everything becomes 8-bit RGB first, so a picture and its file score the same.

        Args:
            reference: what was seen.
            reconstruction: what was decoded; as many as references.
            value_range: lowest and highest value of floats, 0 and 1 by default; ``uint8`` is 0 to 255 in any case.
            layout: ``CHW`` or ``HWC``; by default CHW for torch tensors and HWC for arrays.
            coverage: of the intervals.

        Returns:
            Numbers for one pair, arrays for a batch.

        Raises:
            ImageError: images that cannot be used, all of them listed.
            EncoderError: an encoder's weights cannot be had.
            ModelError: an encoder is not the one of training.
        """
        check_coverage(coverage)
        sides = [
            pictures(given, name, value_range=value_range, layout=layout)
            for name, given in zip(SIDES, (reference, reconstruction), strict=True)
        ]
        (references, first), (reconstructions, second) = sides
        if len(references) != len(reconstructions):
            raise ImageError(
                f"Expected as many reconstructions as references but got {len(references)} and {len(reconstructions)}; "
                "repeat an image that belongs to several pairs."
            )
        result = self._stream(zip(references, reconstructions, strict=True), coverage)
        if result.problems:
            raise image_error([message for _, message in result.problems])
        return result.scores if first or second else result.scores[0]

    def score_pairs(
        self,
        pairs: pd.DataFrame,
        *,
        root: str | Path | None = None,
        coverage: float = DEFAULT_COVERAGE,
        on_bad_row: str = "error",
        progress: bool = True,
    ) -> pd.DataFrame:
        """Score the pairs of a table.

        Args:
            pairs: columns ``reference`` and ``reconstruction`` (or ``reference_path`` and ``reconstruction_path``) with
                paths; ``pair_id`` if you have one; any others are kept.
            root: folder that relative paths start at; the working directory by default.
            coverage: of the intervals.
            on_bad_row: ``error`` lists all bad rows once everything was looked at; ``skip`` leaves them out and lists
                them in ``attrs["skipped"]`` of the result.
            progress: show a bar when standard error is a terminal.

        Returns:
            One row a pair, in the given order: ``pair_id, reference, reconstruction``, the questions, ``t_pas, t_sas,
            t_pas_std, t_sas_std, t_pas_lo, t_pas_hi, t_sas_lo, t_sas_hi, regime``, the other columns given (prefixed
            ``manifest_`` where a name is taken), ``ood``, ``simulated_teachers``.

        Raises:
            CorpusError: columns are missing, or rows are bad under ``error``.
            ImageError: images cannot be used under ``error``, and nothing else is wrong.
            EncoderError: an encoder's weights cannot be had.
            ModelError: an encoder is not the one of training.
        """
        check_coverage(coverage)
        if on_bad_row not in ("error", "skip"):
            raise CorpusError(f"Expected `on_bad_row` to be error or skip but got {on_bad_row!r}.")
        columns = _path_columns(pairs)
        ids = _pair_ids(pairs)
        where = str(pairs.attrs.get("source", "pairs"))
        bad = _bad_rows(pairs, columns, ids)
        problems = [Problem(where, row + 1, message, ids[row]) for row, message in bad]
        usable = np.setdiff1d(np.arange(len(pairs)), [row for row, _ in bad])
        folder = Path() if root is None else Path(root).expanduser()

        def of(row: int) -> tuple[Picture, Picture]:
            one, two = (str(pairs[column].iat[row]) for column in columns)
            return Picture(one, folder / one), Picture(two, folder / two)

        result = self._stream(map(of, usable.tolist()), coverage, total=len(usable), progress=progress)
        broken = [Problem(where, int(usable[i]) + 1, text, ids[usable[i]]) for i, text in result.problems]
        everything = sorted([*problems, *broken], key=lambda problem: problem.row or 0)
        if everything and on_bad_row == "error":
            raise (CorpusError if problems else ImageError)(
                f"{count(len({problem.row for problem in everything}), 'row')} of {len(pairs)} cannot be scored; mend "
                f'what is listed, or leave these rows out with on_bad_row="skip":\n{listing(everything, 200)}'
            )
        if everything:
            left_out = count(len({problem.row for problem in everything}), "row")
            logger.warning("%s of %d left out, listed in attrs['skipped']: %s …", left_out, len(pairs), everything[0])
        kept = pairs.iloc[usable[result.kept]]
        used = {"pair_id", *(column for column in columns if column in SIDES)}
        frame = score_table(
            [ids[row] for row in usable[result.kept]],
            [[str(value) for value in kept[column]] for column in columns],
            result.scores,
            kept.drop(columns=[name for name in kept.columns if name in used]),
        )
        frame.attrs["skipped"] = [
            {"file": item.file, "row": item.row, "message": item.message, "pair_id": item.pair_id}
            for item in everything
        ]
        return frame

    def score_corpus(
        self,
        corpus: Corpus,
        *,
        store: EmbeddingStore | None = None,
        coverage: float = DEFAULT_COVERAGE,
        progress: bool = True,
    ) -> tuple[pd.DataFrame, list[Problem]]:
        """Score the pairs of a corpus.

        Images are embedded or compared as they are needed. A corpus without images, and a model trained on imported
        embeddings, go through what is shipped with the corpus or stored.

        Args:
            corpus: the pairs; answers are not looked at.
            store: embeddings found there are used; nothing is written.
            coverage: of the intervals.
            progress: show a bar when standard error is a terminal.

        Returns:
            The table of :meth:`score_pairs`, and what is wrong with pairs that are not in it. Its ``attrs["cosines"]``
            holds the plain cosines of the model's encoders, by name, where they were needed anyway.

        Raises:
            EncoderError: embeddings or weights cannot be had.
            ModelError: they are not those of training.
        """
        check_coverage(coverage)
        if corpus.root is None or any(_imported(record) for record in self._embedded):
            return self._score_stored(corpus, store, coverage)

        def of(row: int) -> tuple[Picture, Picture]:
            one, two = corpus.reference_file(row), corpus.reconstruction_file(row)
            return Picture(str(one), one), Picture(str(two), two)

        result = self._stream(
            map(of, range(len(corpus))), coverage,
            total=len(corpus), progress=progress, max_pixels=corpus.max_image_pixels, store=store,
        )  # fmt: skip
        problems = [corpus.problem(row, message) for row, message in result.problems]
        frame = _corpus_table(corpus.pairs.iloc[result.kept], result.scores)
        frame.attrs["cosines"] = self._named_cosines(result.cosines)
        return frame, problems

    def _named_cosines(self, values: NDArray[np.float64]) -> dict[str, list[float]]:
        """Cosines [n, n_embedded] under the names that result tables use."""
        from bcs_lab.results import with_mean

        found = {f"cosine {record['label']}": values[:, at] for at, record in enumerate(self._embedded)}
        networks = [
            f"cosine {record['label']}"
            for record in self._embedded
            if record["fingerprint"].get("library") != "bcs_lab.lowlevel"
        ]
        return {name: column.tolist() for name, column in with_mean(found, networks).items()}

    def _score_stored(
        self, corpus: Corpus, store: EmbeddingStore | None, coverage: float
    ) -> tuple[pd.DataFrame, list[Problem]]:
        from bcs_lab.embeddings import pair_embeddings

        names = [_made_by(record) for record in self._embedded]
        lenient = replace(corpus, on_bad_row="skip", skipped=[])
        left, compared = self._stored_similarities(lenient, store)
        kept, found = pair_embeddings(left, list(dict.fromkeys(names)), store=store, only_stored=True)
        if len(kept) < len(left):  # an image that only the embeddings had to read is broken
            left, compared = self._stored_similarities(kept, store)
        by_name = {part.name: part for part in found}
        parts = [by_name[name] for name in names]
        self._agree([(record, part.fingerprint) for record, part in zip(self._embedded, parts, strict=True)])
        scores, cosines = [], []
        for start in range(0, max(len(left), 1), CHUNK):
            rows = slice(start, start + CHUNK)
            sides = [[part.images[index[rows]] for part, index in zip(parts, indices, strict=True)] for indices in (
                [part.reference for part in parts], [part.reconstruction for part in parts])]  # fmt: skip
            values = None if compared is None else compared[rows]
            scores.append(scores_of(self.ensemble, sides[0], sides[1], coverage, similarities=values))
            cosines.append(_cosines(sides[0], sides[1]))
        frame = _corpus_table(left.pairs, joined(scores))
        frame.attrs["cosines"] = self._named_cosines(np.concatenate(cosines))
        return frame, left.skipped

    def _stored_similarities(self, corpus: Corpus, store: EmbeddingStore | None) -> tuple[Corpus, np.ndarray | None]:
        """Similarities that are shipped or stored, [n, in_dim], of a model that takes any."""
        if not self._parts:
            return corpus, None
        from bcs_lab.similarity import pair_similarities, similarity_matrix

        found = {}
        for record in self._parts:
            name, mirror = _made_by(record), bool(record["fingerprint"].get("mirror", False))
            corpus, (found[name],) = pair_similarities(corpus, [name], store=store, only_stored=True, mirror=mirror)
            self._agree([(record, found[name].fingerprint)])
        return corpus, similarity_matrix([found[_made_by(record)] for record in self._parts])

    def _stream(
        self,
        pairs: Iterable[tuple[Picture, Picture]],
        coverage: float,
        *,
        total: int | None = None,
        progress: bool = False,
        max_pixels: int | None = None,
        store: EmbeddingStore | None = None,
    ) -> _Streamed:
        """Embed and score pairs as they come, holding no more than a chunk of embeddings."""
        from tqdm import tqdm

        embedder, plan = self._images(), self._plan
        chunk = COMPARED if plan.compared else CHUNK
        begun = time.monotonic()
        show = progress and sys.stderr.isatty()
        if progress and not show and total is not None:
            logger.info(
                "scoring %s on %s", count(total, "pair"), ", ".join(dict.fromkeys(e.device for e in self.encoders))
            )
        results = embedder.embed(
            (picture for pair in pairs for picture in pair), max_pixels=max_pixels or self.max_image_pixels, store=store
        )
        parts: list[BCSScore] = []
        cosines: list[NDArray[np.float64]] = []
        kept: list[int] = []
        problems: list[tuple[int, str]] = []
        waiting: list[tuple[Vectors, Vectors]] = []

        def flush() -> None:
            sides = [
                [
                    np.stack([_embedding(pair[side][number]) for pair in waiting])
                    if waiting
                    else np.zeros((0, record["dim"]), dtype=np.float32)
                    for number, record in zip(plan.embedded, self._embedded, strict=True)
                ]
                for side in (0, 1)
            ]
            values = None
            if plan.compared:
                columns = []
                for number in plan.compared:
                    step = embedder.encoders[number]
                    assert not isinstance(step, FrozenEncoder)
                    columns.append(step.compare_all([(one[number], two[number]) for one, two in waiting]))
                values = np.concatenate(columns, axis=1)
            parts.append(scores_of(self.ensemble, sides[0], sides[1], coverage, similarities=values))
            cosines.append(_cosines(sides[0], sides[1]))
            waiting.clear()

        with tqdm(total=total, desc="scoring", unit="pair", disable=not show) as bar:
            for row, (first, second) in enumerate(zip(results, results, strict=True)):
                bar.update()
                if isinstance(first, ImageError) or isinstance(second, ImageError):
                    problems += [
                        (row, f"{side} image: {result}")
                        for side, result in zip(SIDES, (first, second), strict=True)
                        if isinstance(result, ImageError)
                    ]
                    continue
                kept.append(row)
                waiting.append((first, second))
                if len(waiting) >= chunk:
                    flush()
            if waiting or not parts:
                flush()
        if progress and not show and total is not None:
            seconds = time.monotonic() - begun
            logger.info("scored %s in %.1f s", count(len(kept), "pair"), seconds)
        return _Streamed(joined(parts), np.array(kept, dtype=np.int64), problems, np.concatenate(cosines))

    # --- as a loss ---------------------------------------------------------------------------------------------------

    def loss(
        self,
        reconstruction: Tensor,
        reference: Tensor,
        *,
        value_range: tuple[float, float] = (0.0, 1.0),
        weights: tuple[float, float] = (0.5, 0.5),
        reduction: str = "mean",
    ) -> Tensor:
        """One minus the weighted score, differentiable down to the pixels of the reconstruction.

        The reconstruction is resized and normalised in torch, and nothing is rounded on the way, so the value differs
        a little (about 0.01) from :meth:`score`, which goes through 8 bits and Pillow. Models that snap their answers
        to levels are taken before snapping. The colour histogram of the encoder ``lowlevel`` has no slope and is given
        one (see :func:`bcs_lab.encoders.lowlevel.describe_tensor`). Computed in float32, or float64 if that is given,
        whatever autocast says.

        Args:
            reconstruction: float ``[n, 3 or 1, height, width]``.
            reference: the same kind, of any height and width; no gradient flows to it.
            value_range: lowest and highest value of both.
            weights: of T-PAS and T-SAS, 0 or more; with a sum of 1 the loss lies in [0, 1].
            reduction: ``mean`` over the pairs, or ``none``.

        Returns:
            A scalar, or ``[n]``; on the device of ``reconstruction``.

        Raises:
            ImageError: the tensors cannot be used, see :func:`bcs_lab.pixels.tensor_pixels`.
            EncoderError: an encoder of the model cannot be differentiated.
            ModelError: an argument cannot be used, an encoder is not the one of training, or the model takes
                similarities, which have no gradient.
        """
        if self.ensemble.kind != "embedding":
            raise ModelError(
                f"{self._called()} was trained with features=similarity, which have no gradient down to the pixels; as "
                "a loss use a model trained with features=embedding."
            )
        self.load_encoders()
        if self._loss is None:
            from bcs_lab.loss import PixelLoss

            self._loss = PixelLoss(self.ensemble, self.encoders)
        return self._loss(reconstruction, reference, value_range, weights, reduction)

    # --- copies ------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        ensemble = copy.copy(self.ensemble)
        ensemble.__dict__.pop("heads", None)  # made again from the states
        return {**self.__dict__, "ensemble": ensemble, "_embedder": None, "_encoders": [], "_loss": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> BCS:
        # Nothing of it changes, so that a copy, as metrics make many, would only cost memory.
        return self


@dataclass(frozen=True)
class _Plan:
    """Which results of the embedder are whose.

    Attributes:
        embedded: of each encoder whose embeddings are needed.
        compared: of each encoder whose similarities are needed.
    """

    embedded: tuple[int, ...]
    compared: tuple[int, ...]


def _embedding(result: Any) -> np.ndarray:
    """The embedding itself, or that of a description."""
    return result if isinstance(result, np.ndarray) else result.embedding


@dataclass(frozen=True)
class _Streamed:
    """Scores of the pairs that could be scored, which ones they are, what is wrong with the others, and cosines."""

    scores: BCSScore
    kept: NDArray[np.int64]
    problems: list[tuple[int, str]]
    cosines: NDArray[np.float64]


def _cosines(reference: Sequence[np.ndarray], reconstruction: Sequence[np.ndarray]) -> NDArray[np.float64]:
    """Of each encoder's two embeddings [n, dim]: [n, n_encoders]; 0 for one without length."""
    columns = []
    for a, b in zip(reference, reconstruction, strict=True):
        one, two = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
        lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
        columns.append((one * two).sum(axis=1) / np.where(lengths > 0, lengths, 1.0))
    n = len(reference[0]) if reference else 0
    return np.stack(columns, axis=1) if columns else np.zeros((n, 0))


def differences(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Keys by which two fingerprints differ, nested ones dotted, each with both values (``None`` where absent).

    The checksum of imported vectors names the corpus they belong to rather than what made them, and is left out.

    Example:
        >>> differences({"model": "m", "preprocessing": {"size": 224}}, {"model": "m", "preprocessing": {"size": 256}})
        [('preprocessing.size', 224, 256)]
    """
    one, two = (dict(_flat({key: value for key, value in side.items() if key != "data"})) for side in (recorded, found))
    keys = sorted({*one, *two})
    return [(key, one.get(key), two.get(key)) for key in keys if one.get(key) != two.get(key)]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", list(value) if isinstance(value, tuple) else value


def _brief(value: Any, longest: int = 120) -> str:
    text = repr(value)
    return text if len(text) <= longest else text[:longest] + "…"


def _made_by(record: Mapping[str, Any]) -> str:
    """The encoder whose embeddings were really used."""
    return str(record["stand_in"] or record["name"])


def _names(record: Mapping[str, Any]) -> list[str]:
    """What options of an encoder may be filed under: its library (``timm``), what was asked for, what was used."""
    made = _made_by(record)
    return list(dict.fromkeys([*([made.split(":")[0]] if ":" in made else []), str(record["name"]), made]))


def _given(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Without what is ``None``, which is no option."""
    found = {name: {key: value for key, value in given.items() if value is not None} for name, given in options.items()}
    return {name: given for name, given in found.items() if given}


def _imported(record: Mapping[str, Any]) -> bool:
    return bool(record["fingerprint"].get("library") == _IMPORTED)


# --- tables ----------------------------------------------------------------------------------------------------------


def _path_columns(pairs: pd.DataFrame) -> tuple[str, str]:
    for columns in (SIDES, PATH_COLUMNS):
        if all(column in pairs.columns for column in columns):
            return columns[0], columns[1]
    raise CorpusError(
        f"Expected the columns reference and reconstruction (or {' and '.join(PATH_COLUMNS)}) but found "
        f"{', '.join(map(str, pairs.columns)) or 'none'}."
    )


def _pair_ids(pairs: pd.DataFrame) -> list[str]:
    if "pair_id" in pairs.columns:
        return ["" if _missing(value) else str(value) for value in pairs["pair_id"]]
    return [f"pair-{row + 1:06d}" for row in range(len(pairs))]


def _bad_rows(pairs: pd.DataFrame, columns: Sequence[str], ids: Sequence[str]) -> list[tuple[int, str]]:
    """Rows that name no pair of files, by position, with the reason."""
    bad = []
    seen: dict[str, int] = {}
    cells = [pairs[column].tolist() for column in columns]
    for row, pair_id in enumerate(ids):
        reasons = [f"no {side} path" for side, values in zip(SIDES, cells, strict=True) if _missing(values[row])]
        if not pair_id:
            reasons.append("no pair_id")
        elif pair_id in seen:
            reasons.append(f"the pair_id is that of row {seen[pair_id] + 1} too; each must be used once")
        seen.setdefault(pair_id, row)
        if reasons:
            bad.append((row, "; ".join(reasons)))
    return bad


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)) or not str(value).strip()


def _corpus_table(pairs: pd.DataFrame, scores: BCSScore) -> pd.DataFrame:
    paths = [pairs[column].tolist() for column in PATH_COLUMNS]
    return score_table(pairs["pair_id"].tolist(), paths, scores, pairs.drop(columns="pair_id"))
