"""What every metric of the audit shares: the facts about it, and the three steps from two images to a number.

``prepare`` turns one image into an input (in threads), ``features`` turns a batch of inputs into whatever is kept of an
image, and ``compare`` gives a value to each pair of features. Metrics that share the first two steps are one *family*:
the table prepares an image once for all of them, and describes a reference once however many pairs it has.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from bcs_lab.encoders.base import loader_fingerprint
from bcs_lab.errors import BCSError

Floats = NDArray[np.float64]
Compat = Literal["correct", "reference"]
KINDS = ("pixel", "network", "set", "caption", "model")
#: Side of the square that pixel metrics, LPIPS, DISTS and the set-level metrics look at.
SIDE = 256
#: Raise it when the numbers of a family change, so that cells of an earlier version are computed again.
VERSION = "1"


class MetricUnavailable(BCSError):
    """A metric cannot run here; the message says what is missing and what to do. Nothing takes its place."""


@dataclass(frozen=True)
class MetricSpec:
    """The facts about a metric, as ``conf/metric`` has them.

    Attributes:
        name: of the column.
        title: what tables and figures call it.
        higher_is_better: its direction.
        input: what it is given: size, range, colours.
        library: where its implementation comes from.
        weights: what its weights are called and where they come from; ``None`` if it has none.
        licence: of the implementation and the weights.
        kind: ``pixel``, ``network``, ``caption``, ``model`` (one value a pair), or ``set`` (one value a set of pairs).
        needs_captions: whether images must be captioned first.
        paper: its name in the paper's tables, or ``None``.
        loader: which module makes it, a key of :data:`bcs_lab.audit.metrics.LOADERS`.
        options: accepted options and their defaults.
        note: what else to know.
    """

    name: str
    title: str
    higher_is_better: bool
    input: str
    library: str
    weights: str | None
    licence: str
    kind: str
    needs_captions: bool = False
    paper: str | None = None
    loader: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def sign(self) -> int:
        """What to multiply values by so that larger is better."""
        return 1 if self.higher_is_better else -1


@dataclass(frozen=True)
class Values:
    """Values of some pairs.

    Attributes:
        values: float64 [n]; NaN where undefined; infinite only where a definition says so (PSNR of identical pictures).
        reasons: position -> why the value there is NaN.
    """

    values: Floats
    reasons: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Preparation:
    """A function of one image that several families may share.

    Attributes:
        key: equal keys mean equal results.
        apply: from an RGB image.
    """

    key: str
    apply: Callable[[Image.Image], Any] = field(compare=False)


def square(image: Image.Image) -> NDArray[np.uint8]:
    """The largest centred square of an image, resized to 256 x 256 (Lanczos): uint8 [256, 256, 3], RGB."""
    fitted = ImageOps.fit(image, (SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.asarray(fitted, dtype=np.uint8)


SQUARE = Preparation("square256", square)
WHOLE = Preparation("whole", lambda image: np.asarray(image, dtype=np.uint8))
PICTURE = Preparation("picture", lambda image: image)


class Family:
    """Metrics that describe an image in the same way; a subclass fills in the three steps.

    Attributes:
        key: equal keys mean interchangeable families.
        identity: everything that changes a value, JSON-able, without paths.
        preparation: the first step.
        threaded: whether ``features`` and ``compare`` are plain numpy that threads may run side by side.
        batch: inputs that ``features`` takes at once.
        embeds: fingerprint of each part of the features that the embedding store can keep, in order.
    """

    threaded: ClassVar[bool] = False
    batch: int = 32

    def __init__(self, identity: Mapping[str, Any], preparation: Preparation) -> None:
        self.identity: dict[str, Any] = {
            "version": VERSION, "preparation": preparation.key, "loader": loader_fingerprint(), **identity
        }  # fmt: skip
        self.preparation = preparation
        self.key = digest(self.identity)
        self.embeds: tuple[Mapping[str, Any], ...] = ()

    def features(self, inputs: Sequence[Any]) -> list[Any]:
        """What is kept of each image; by default the input itself."""
        return list(inputs)

    def reconstruction_features(self, inputs: Sequence[Any]) -> list[Any]:
        """The same for the second image of pairs, where a family keeps something else of it."""
        return self.features(inputs)

    def compare(
        self, names: Sequence[str], references: Sequence[Any], reconstructions: Sequence[Any]
    ) -> dict[str, Values]:
        """Values of some of the family's metrics for pairs of features."""
        raise NotImplementedError


@dataclass(frozen=True)
class Metric:
    """A metric that is ready to compute.

    Attributes:
        spec: the facts.
        family: what computes it, together with its relatives.
    """

    spec: MetricSpec
    family: Family

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that changes its values, JSON-able."""
        return {"metric": self.spec.name, **self.family.identity}

    def prepare(self, image: Image.Image) -> Any:
        """The input made of one RGB image."""
        return self.family.preparation.apply(image)

    def describe(self, images: Sequence[Image.Image], role: str = "reference") -> list[Any]:
        """Features of RGB images, in order; an image object that recurs is described once.

        Args:
            images: of any size.
            role: ``reference`` or ``reconstruction``.
        """
        features = self.family.features if role == "reference" else self.family.reconstruction_features
        distinct = {id(image): image for image in images}
        order = list(distinct)
        found: dict[int, Any] = {}
        for batch in batches(order, self.family.batch):
            inputs = [self.prepare(distinct[key]) for key in batch]
            found.update(zip(batch, features(inputs), strict=True))
        return [found[id(image)] for image in images]

    def compare(self, references: Sequence[Any], reconstructions: Sequence[Any]) -> Values:
        """Values of pairs of features, with the reasons of those that are undefined."""
        return self.family.compare([self.spec.name], references, reconstructions)[self.spec.name]

    def compute(self, references: Sequence[Image.Image], reconstructions: Sequence[Image.Image]) -> Floats:
        """Values of pairs of RGB images, float64 [n], NaN where undefined.

        Memory grows with the batch, not with the number of pairs.
        """
        out = np.full(len(references), np.nan)
        kept: dict[int, Any] = {}
        for rows in batches(range(len(references)), self.family.batch):
            first = [references[row] for row in rows]
            fresh = list({id(image): image for image in first if id(image) not in kept}.values())
            now = dict(zip(map(id, fresh), self.describe(fresh), strict=True))
            kept = {id(image): now.get(id(image), kept.get(id(image))) for image in first}
            others = self.describe([reconstructions[row] for row in rows], "reconstruction")
            out[list(rows)] = self.compare([kept[id(image)] for image in first], others).values
        return out


def batches(items: Iterable[Any], size: int) -> list[list[Any]]:
    """Lists of at most ``size`` items."""
    items = list(items)
    return [items[start : start + size] for start in range(0, len(items), size)]


def digest(value: Any) -> str:
    """16 hex digits of the SHA-256 over canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
