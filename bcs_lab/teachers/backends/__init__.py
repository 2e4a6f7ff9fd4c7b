"""Where replies come from: local weights, a server, replies saved earlier, or simulated teachers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bcs_lab.errors import ConfigError

if TYPE_CHECKING:
    from bcs_lab.config import AnnotateConfig
    from bcs_lab.corpus import Corpus
    from bcs_lab.teachers.prompts import Prompt


@dataclass(frozen=True)
class Request:
    """One call: a prompt about one pair.

    Attributes:
        pair_id: the pair.
        prompt: what is asked.
        reference: file of the reference image.
        reconstruction: file of the reconstruction.
        attempt: 1 the first time; a teacher that samples answers otherwise when it is asked again.
    """

    pair_id: str
    prompt: Prompt
    reference: Path
    reconstruction: Path
    attempt: int = 1


@dataclass(frozen=True)
class Reply:
    """What came of one request.

    Attributes:
        text: the model's words, ``None`` if there are none.
        error: why there are none.
        finish: why the model stopped, such as ``stop`` or ``length``.
        latency_s: seconds the last call took.
        prompt_tokens: tokens read, where known.
        completion_tokens: tokens written, where known.
        calls: model calls, repeated ones included.
        image_encodes: images the model had to encode for them.
        retriable: the error may be gone in another run (the server was busy or away).
        details: what else belongs into the record (JSON-able).
    """

    text: str | None
    error: str | None = None
    finish: str | None = None
    latency_s: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    calls: int = 1
    image_encodes: int = 2
    retriable: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """Answers requests."""

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that changes a reply (JSON-able): backend, model, revision, number type, generation."""

    def answer(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        """Replies in any order, each request taken when it is needed; one that fails has a :class:`Reply` too.

        Raises:
            TeacherError: nothing can be answered any more.
        """

    def close(self) -> None:
        """Let go of connections or weights; requests under way are given up."""


def load_backend(config: AnnotateConfig, corpus: Corpus) -> Backend:
    """The backend of the settings.

    Args:
        config: checked settings.
        corpus: the pairs; simulated teachers answer from it.

    Raises:
        ConfigError: the backend does not fit the teacher or the corpus.
        TeacherError: the model or server cannot be had.
    """
    name, teacher = config.backend.name, config.teacher
    if name == "simulated":
        from bcs_lab.teachers.backends.simulated import SimulatedBackend

        return SimulatedBackend(corpus, teacher.name)
    if name == "openai":
        from bcs_lab.teachers.backends.openai import OpenAIBackend

        return OpenAIBackend(
            config.backend,
            teacher.model,
            teacher.generation,
            max_new_tokens=config.max_new_tokens,
            max_image_pixels=corpus.max_image_pixels,
            seed=config.seed,
        )
    if name == "transformers":
        from bcs_lab.teachers.backends.transformers import TransformersBackend

        return TransformersBackend(
            teacher.model,
            revision=teacher.revision,
            dtype=teacher.dtype,
            batch_size=config.backend.batch_size or teacher.batch_size,
            max_new_tokens=config.max_new_tokens,
            **teacher.generation.model_dump(),
            images=teacher.images,
            remote_code=teacher.remote_code,
            serve=teacher.serve,
            allow_remote_code=config.allow_remote_code,
            device=config.backend.device,
            max_image_pixels=corpus.max_image_pixels,
            seed=config.seed,
        )
    raise ConfigError(f"backend={name}: asks nobody; it only reads what was saved.")
