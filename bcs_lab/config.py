"""Typed settings of every task: what a composed Hydra config must look like before anything runs.

Hydra composes, these models check. All problems of a config are reported at once, each under its dotted key.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from bcs_lab.catalogue import wrong_corpus_keys
from bcs_lab.encoders import ENCODER_GROUPS, group_label, list_encoders
from bcs_lab.errors import ConfigError


class Section(BaseModel):
    """A block of settings: strict types (``flag=no`` is not a boolean) and no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _distinct(values: list[Any]) -> list[Any]:
    if len(set(values)) != len(values):
        raise ValueError(f"expected distinct values, got {values}")
    return values


def _fold(value: int | str) -> int | str:
    if value != "all" and (isinstance(value, str) or value < 0):
        raise ValueError(f"expected a whole number from 0, or all, got {value}")
    return value


Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Analysis = Literal["consensus", "failures", "captions", "degradation", "regimes", "gallery"]
Names = Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)]


def _several(value: Any) -> list[str] | None:
    """Distinct names, also where one was given bare; ``None`` where that is not what is there."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        return None
    return names if len(set(names)) == len(names) else None


def _metrics(value: Any) -> Any:
    names = value if value in ("all", "list") else _several(value)
    if names is None:
        raise ValueError(
            f"expected all, list, or one or more distinct metrics (metrics=list shows them), got {value!r}"
        )
    return names


def _analyses(value: Any) -> Any:
    names = value if value == "all" else _several(value)
    if names is None or (names != "all" and not set(names) <= set(get_args(Analysis))):
        raise ValueError(f"expected all or one or more distinct ones of {', '.join(get_args(Analysis))}, got {value!r}")
    return names


class CorpusConfig(Section):
    """Which pairs, and what to do with bad rows; some settings belong to some kinds of corpus only."""

    kind: str
    root: str | None = None
    teachers: Names | None = None
    on_bad_row: Literal["error", "skip"] = "error"
    max_image_pixels: PositiveInt = 64_000_000
    size: Literal["small", "paper"] | None = None
    seed: Seed | None = None
    images: str | None = None
    per_image: PositiveInt | None = None
    cache: str | None = None
    annotations: str | None = None

    @property
    def extra(self) -> dict[str, Any]:
        """The settings of this kind only, as given."""
        values = {key: getattr(self, key) for key in ("size", "seed", "images", "per_image", "cache", "annotations")}
        return {key: value for key, value in values.items() if value is not None}

    @model_validator(mode="after")
    def _of_this_kind(self) -> CorpusConfig:
        problem = wrong_corpus_keys(self.kind, self.extra)
        if problem:
            raise ValueError(problem.removeprefix("corpus: "))
        return self


class EncoderConfig(Section):
    """Which frozen encoders, in which order, and how they compute.

    ``name`` is a label. What a table calls a run is derived from ``names`` (:attr:`label`), so that no label can claim
    encoders that were not used.
    """

    name: str
    names: Names
    only_stored: bool = False
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    stand_in: dict[str, str] | None = None
    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    batch_size: PositiveInt = 32

    @property
    def label(self) -> str:
        """The name of the group that ``names`` is, else the names."""
        return group_label(self.names)

    @property
    def given_options(self) -> dict[str, dict[str, Any]]:
        """Options that were set, by encoder; those of a library (``encoder=timm``) go to its encoders."""
        given = {
            key: {option: value for option, value in options.items() if value is not None}
            for key, options in self.options.items()
        }
        return {
            name: options for name in self.names if (options := given.get(name) or given.get(name.split(":")[0]) or {})
        }

    @model_validator(mode="after")
    def _no_stray_options(self) -> EncoderConfig:
        known = {*self.names, *(name.split(":")[0] for name in self.names)}
        stray = [
            key
            for key, options in self.options.items()
            if key not in known and any(value is not None for value in options.values())
        ]
        if stray:
            raise ValueError(f"options: {', '.join(stray)} is not among the encoders {', '.join(self.names)}")
        return self

    def check_name(self) -> None:
        """A name that promises other encoders than ``names`` holds is refused.

        Raises:
            ConfigError: say which setting chooses an encoder.
        """
        promised = ENCODER_GROUPS.get(self.name, (self.name,) if self.name in list_encoders() else None)
        if promised is not None and not set(self.names) & set(promised):
            raise ConfigError(
                f"encoder.name={self.name} is only a label and the encoders are {', '.join(self.names)}; choose "
                f"encoders with encoder={self.name} (or encoder.names=[…])"
            )


class ConsensusConfig(Section):
    """How the teachers' answers become targets (eq. 12) and agreement weights (eq. 18)."""

    weight: Literal["variance", "step", "uniform"]


class SplitConfig(Section):
    """How pairs are divided into train, validation and test; ``fold=all`` tests every pair once, fold by fold."""

    scheme: Literal["concept", "subject", "method", "pair", "kfold"]
    fractions: tuple[Fraction, Fraction, Fraction] = (0.70, 0.15, 0.15)
    seed: Seed = 42
    folds: Annotated[int, Field(ge=3)] = 5
    fold: Annotated[int | str, AfterValidator(_fold)] = 0
    train_pairs: Annotated[int, Field(ge=2)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _list_is_a_tuple(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and isinstance(value.get("fractions"), list):
            return {**value, "fractions": tuple(value["fractions"])}
        return value

    @model_validator(mode="after")
    def _consistent(self) -> SplitConfig:
        if abs(sum(self.fractions) - 1.0) > 1e-6:
            raise ValueError(f"fractions: expected three shares that sum to 1, got {list(self.fractions)}")
        if self.fold == "all":
            if self.scheme != "kfold":
                raise ValueError(f"fold: all is for split=kfold only, not for split={self.scheme}")
        elif not isinstance(self.fold, int) or self.fold >= self.folds:
            raise ValueError(f"fold: expected 0 to {self.folds - 1} or all, got {self.fold}")
        return self


class FeaturesConfig(Section):
    """What a head sees of a pair: fused embeddings (the paper's) or similarities of several stages of the encoders."""

    kind: Literal["embedding", "similarity"] = "embedding"


class HeadConfig(BaseModel):
    """Name of a head and its own settings, which the head checks; ``negatives`` is what a known negative weighs."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str
    snap: bool = False
    negatives: Annotated[float, Field(ge=0.0)] = 0.0

    @property
    def settings(self) -> dict[str, Any]:
        """What is passed on to the head."""
        return dict(self.model_extra or {})


class OptimConfig(Section):
    """AdamW and its schedule (Table 13)."""

    lr: Annotated[float, Field(gt=0.0)]
    weight_decay: Annotated[float, Field(ge=0.0)]
    schedule: Literal["cosine", "none"]
    eta_min_ratio: Annotated[float, Field(ge=0.0, le=1.0)] = 0.05


class TrainerConfig(Section):
    """Length of training and where it runs (Table 13)."""

    max_epochs: PositiveInt
    patience: PositiveInt
    min_delta: Annotated[float, Field(ge=0.0)] = 1e-6
    batch_size: PositiveInt
    gradient_clip_val: Annotated[float, Field(gt=0.0)] | None = 1.0
    accelerator: Literal["auto", "cpu", "gpu", "cuda", "mps"] = "auto"
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true"


class BootstrapConfig(Section):
    """Concept-clustered bootstrap of the test metrics."""

    resamples: Annotated[int, Field(ge=100)]
    seed: Seed = 0


class LoggerConfig(Section):
    """Where curves are mirrored; the files of the run stay the record."""

    name: Literal["wandb", "csv", "none"]
    project: str = "bcs_lab"
    entity: str | None = None
    mode: Literal["auto", "online", "offline", "disabled"] = "auto"


class TrainConfig(Section):
    """Settings of ``bcs train``."""

    corpus: CorpusConfig
    encoder: EncoderConfig
    teachers: Annotated[int, Field(strict=True)] | str | list[str]
    consensus: ConsensusConfig
    split: SplitConfig
    features: FeaturesConfig = Field(default_factory=FeaturesConfig)
    head: HeadConfig
    optim: OptimConfig
    trainer: TrainerConfig
    seeds: Annotated[list[Seed], Field(min_length=1), AfterValidator(_distinct)]
    bootstrap: BootstrapConfig
    logger: LoggerConfig
    store: str
    workers: PositiveInt | None = None
    force: bool = False


class EmbedConfig(Section):
    """Settings of ``bcs embed``."""

    corpus: CorpusConfig
    encoder: EncoderConfig
    features: FeaturesConfig = Field(default_factory=FeaturesConfig)
    source: Literal["images", "npz"]
    path: str | None = None
    overwrite: bool = False
    store: str
    force: bool = False


class ScoringEncoderConfig(Section):
    """How the encoders of a trained model compute; which they are, the model says."""

    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    batch_size: PositiveInt = 32
    options: dict[str, dict[str, Any]] = Field(default_factory=dict)
    mismatch: Literal["refuse", "warn"] = "refuse"


class ScoreConfig(Section):
    """Settings of ``bcs score``."""

    model: str
    corpus: CorpusConfig | None = None
    reference: str | None = None
    reconstruction: str | None = None
    out: str | None = None
    coverage: Fraction = 0.9
    part: Literal["train", "val", "test"] | None = None
    max_image_pixels: PositiveInt = 80_000_000
    encoder: ScoringEncoderConfig
    bootstrap: BootstrapConfig
    store: str
    force: bool = False


class ExportConfig(Section):
    """Settings of ``bcs corpus export``."""

    corpus: CorpusConfig
    encoder: EncoderConfig
    encoders: Names
    similarities: Annotated[list[str], AfterValidator(_distinct)] = Field(default_factory=list)
    negatives: bool = False
    out: str
    card: str | None = None
    overwrite: bool = False
    store: str
    force: bool = False


class ShowConfig(Section):
    """Settings of ``bcs corpus show``."""

    corpus: CorpusConfig
    n: PositiveInt = 12
    seed: Seed = 0
    out: str | None = None
    force: bool = False


class ReportConfig(Section):
    """Settings of ``bcs report``."""

    run: str | None = None
    runs: Names | None = None
    part: Literal["train", "val", "test", "all"] = "test"
    pairs: PositiveInt = 6
    max_mb: Annotated[float, Field(gt=0.0)] = 8.0
    out: str | None = None
    force: bool = False

    @model_validator(mode="after")
    def _one_way_to_name_runs(self) -> ReportConfig:
        if (self.run is None) == (self.runs is None):
            found = "neither" if self.run is None else "both"
            raise ValueError(f"run: expected run=DIR for one run or runs=[DIR,DIR] for several, got {found}")
        return self


class StudySelectConfig(Section):
    """Settings of ``bcs study select``."""

    corpus: CorpusConfig
    model: str | None = None
    part: Literal["train", "val", "test"] | None = None
    scores: str | None = None
    out: str | None = None
    stimuli: PositiveInt = 9
    per_stimulus: PositiveInt = 2
    high_perceptual: Annotated[int, Field(ge=0)] = 6
    high_semantic: Annotated[int, Field(ge=0)] = 6
    highest: Annotated[int, Field(ge=0)] = 3
    lowest: Annotated[int, Field(ge=0)] = 3
    high: Literal["dominant", "plain"] = "dominant"
    coherence: Literal["mean", "min", "harmonic", "geometric"] = "mean"
    seed: Seed = 0
    overwrite: bool = False
    store: str
    force: bool = False

    @property
    def sizes(self) -> dict[str, int]:
        """Stratum -> number of pairs."""
        return {name: getattr(self, name) for name in ("high_perceptual", "high_semantic", "highest", "lowest")}

    @model_validator(mode="after")
    def _sizes_fit(self) -> StudySelectConfig:
        total, wanted = sum(self.sizes.values()), self.stimuli * self.per_stimulus
        if total != wanted:
            given = " + ".join(f"{name}={size}" for name, size in self.sizes.items())
            raise ValueError(
                f"sizes: {given} is {total}, expected stimuli={self.stimuli} x per_stimulus={self.per_stimulus} = "
                f"{wanted} pairs, got {total}"
            )
        if self.model is not None and self.scores is not None:
            raise ValueError(f"scores: give model or scores, not both, got {self.model!r} and {self.scores!r}")
        if self.part is not None and self.model is None:
            raise ValueError("part: only the run of a model knows parts; expected model=RUN beside it, got no model")
        return self


class StudyFormConfig(Section):
    """Settings of ``bcs study form``."""

    study: str | None = None
    out: str | None = None
    questions: str | None = None
    label_studio: Literal["inline", "local_files", "none"] = "inline"
    overwrite: bool = False
    force: bool = False


class StudyAnalyzeConfig(Section):
    """Settings of ``bcs study analyze``."""

    ratings: str
    study: str | None = None
    out: str | None = None
    kappa_weights: Literal["none", "linear", "quadratic"] = "none"
    level: Literal["scale", "nominal", "ordinal", "interval"] = "scale"
    exclude: list[str] = Field(default_factory=list)
    fast_seconds: Annotated[float, Field(ge=0.0)] = 1.0
    on_bad_row: Literal["error", "skip"] = "error"
    bootstrap: BootstrapConfig
    force: bool = False


class GenerationConfig(Section):
    """How a teacher chooses its next token; greedy unless ``do_sample``."""

    do_sample: bool = False
    temperature: Annotated[float, Field(gt=0.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0.0)] | None = None

    @model_validator(mode="after")
    def _greedy_has_no_temperature(self) -> GenerationConfig:
        stray = [key for key in ("temperature", "top_p") if getattr(self, key) is not None]
        if stray and not self.do_sample:
            raise ValueError(f"{' and '.join(stray)} would be ignored without do_sample=true")
        return self


class MaxNewTokens(Section):
    """Longest reply in tokens: of one question, and of all of them."""

    single: PositiveInt
    joint: PositiveInt


class TeacherConfig(Section):
    """Which model answers, and with which settings (Table 11).

    ``checkpoint`` is what the paper calls ``model``; ``images`` are settings of its image processor; ``remote_code``
    says that the model needs Python code of its own; ``serve`` tells how to serve one that no library has a class for.
    """

    name: str
    model: str
    checkpoint: str | None = None
    revision: str | None = None
    dtype: Literal["bfloat16", "float16", "float32", "auto"] = "bfloat16"
    batch_size: PositiveInt = 8
    max_new_tokens: MaxNewTokens
    generation: GenerationConfig = Field(default_factory=GenerationConfig)
    images: dict[str, Any] | None = None
    remote_code: bool = False
    serve: str | None = None


class PriceConfig(Section):
    """What a million tokens cost, in any currency; ``None`` where it is not known or nothing."""

    prompt: Annotated[float, Field(ge=0.0)] | None = None
    completion: Annotated[float, Field(ge=0.0)] | None = None


class BackendConfig(Section):
    """Who is asked, and how; most settings belong to one backend only and are absent from the configs of the others."""

    name: Literal["transformers", "openai", "replay", "simulated"]
    base_url: str | None = None
    api_key_env: str | None = None
    concurrency: PositiveInt = 8
    timeout_s: Annotated[float, Field(gt=0.0)] = 300.0
    retries: Annotated[int, Field(ge=0)] = 5
    backoff_s: Annotated[float, Field(gt=0.0)] = 1.0
    give_up: PositiveInt = 20
    max_image_side: Annotated[int, Field(ge=16)] | None = None
    image_format: Literal["auto", "png", "jpeg"] = "auto"
    jpeg_quality: Annotated[int, Field(ge=1, le=100)] = 95
    response_format: Literal["auto", "json_schema", "json_object", "none"] = "auto"
    token_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    extra: dict[str, Any] | None = None
    price: PriceConfig = Field(default_factory=PriceConfig)
    device: str = "auto"
    batch_size: PositiveInt | None = None
    raw: str | None = None


class RetryConfig(Section):
    """How often a pair (a question of it, in ``mode=single``) is asked in one run before its reply stays invalid."""

    max: PositiveInt = 3


class AnnotateConfig(Section):
    """Settings of ``bcs annotate``."""

    corpus: CorpusConfig
    teacher: TeacherConfig
    backend: BackendConfig
    protocol: dict[str, Any]
    mode: Literal["joint", "single"] = "joint"
    out: str | None = None
    dry_run: Annotated[int, Field(ge=0)] = 0
    retry: RetryConfig = Field(default_factory=RetryConfig)
    seed: Seed = 0
    allow_remote_code: bool = False
    overwrite: bool = False
    log_every: Annotated[float, Field(gt=0.0)] = 30.0
    force: bool = False

    @property
    def max_new_tokens(self) -> int:
        """Longest reply in tokens, in the mode asked for."""
        tokens = self.teacher.max_new_tokens
        return tokens.joint if self.mode == "joint" else tokens.single


class RationalesConfig(Section):
    """How teachers' rationales are compared: ``model`` is ``auto``, ``none``, a folder or a name on the hub."""

    model: str = "auto"
    items: PositiveInt | None = None
    device: str = "auto"
    batch_size: PositiveInt = 64
    seed: Seed = 0


class AgreementConfig(Section):
    """Settings of ``bcs agreement``."""

    corpus: CorpusConfig
    teachers: Annotated[int, Field(strict=True)] | str | list[str]
    out: str | None = None
    pairs: PositiveInt = 6
    rationales: RationalesConfig = Field(default_factory=RationalesConfig)
    bootstrap: BootstrapConfig
    store: str
    force: bool = False


class ProbeConfig(Section):
    """Which references the degradation probe degrades."""

    images: PositiveInt | None = 200
    network_images: PositiveInt | None = 32
    seed: Seed = 0


class SentencesConfig(Section):
    """How captions are compared: ``model`` is ``auto``, a folder or a name on the hub."""

    model: str = "auto"
    device: str = "auto"
    batch_size: PositiveInt = 64


class AuditConfig(Section):
    """Settings of ``bcs audit``; ``metrics``: ``all``, ``list``, or names; ``captions``: ``auto``, ``none``, a file."""

    corpus: CorpusConfig
    metrics: Annotated[Literal["all", "list"] | list[str], BeforeValidator(_metrics)] = "all"
    analyses: Annotated[Literal["all"] | list[Analysis], BeforeValidator(_analyses)] = "all"
    out: str | None = None
    teachers: Annotated[int, Field(strict=True)] | str | list[str] = "all"
    consensus_of: Literal["teachers", "questions"] = "teachers"
    threshold: Fraction = 0.5
    captions: str = "auto"
    pairs: PositiveInt = 4
    compat: Literal["correct", "reference"] = "correct"
    model: str = "bcs-lite"
    options: dict[str, dict[str, Any]] | None = None
    device: str = "auto"
    workers: PositiveInt | None = None
    degradation: ProbeConfig = Field(default_factory=ProbeConfig)
    sentences: SentencesConfig = Field(default_factory=SentencesConfig)
    bootstrap: BootstrapConfig
    store: str
    force: bool = False


Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Check a composed config.

    Args:
        model: the task's settings.
        values: plain containers, all interpolations resolved.

    Raises:
        ConfigError: listing every problem under its dotted key.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        lines = [f"  - {line}" for line in dict.fromkeys(_describe(model, item) for item in error.errors())]
        raise ConfigError(f"{len(lines)} config problem(s):\n" + "\n".join(lines)) from None


def _describe(model: type[BaseModel], item: Any) -> str:
    steps = [str(step) for step in item["loc"]]
    # Branches of a union and list indices are pydantic's bookkeeping, not part of the user's key.
    while steps and steps[-1] in {"int", "str", "list[str]", "function-after[_distinct()", "constrained-int"}:
        steps.pop()
    key = ".".join(steps) or "config"
    found = item.get("input")
    shown = "" if isinstance(found, (dict, BaseModel)) else f", got {found!r}"
    if item["type"] == "extra_forbidden":
        known = _keys(model, steps[:-1])
        near = difflib.get_close_matches(steps[-1], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"{key}: unknown key; {hint}"
    if item["type"] == "missing":
        return f"{key}: a value is needed"
    if key == "teachers":
        return f"{key}: expected a whole number, a list of names, or all{shown}"
    message = item["msg"].removeprefix("Value error, ")
    return f"{key}: {message[0].lower()}{message[1:]}{'' if 'got' in message else shown}"


def _keys(model: type[BaseModel], steps: list[str]) -> list[str]:
    current: Any = model
    for step in steps:
        annotation = current.model_fields[step].annotation if step in current.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        current = annotation
    return sorted(current.model_fields)


def absolute(path: str | None, base: Path) -> Path | None:
    """A path of a config, relative to the folder the command was started in; ``None`` for none and for an empty one."""
    return None if not path else (base / Path(path).expanduser()).resolve()
