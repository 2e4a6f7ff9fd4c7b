"""Teachers that run here, by transformers: any model of its image-text-to-text classes, and SAIL-VL's own code.

A batch is padded on the left, greedy unless the teacher samples (Table 11). Sampled tokens depend on the seed, the
pair, the prompt and the attempt only: each request has its own stream of uniform numbers and takes the token in which
its number falls in the cumulative probabilities. Another batch size can still change a reply where two tokens are as
good as equal, since floating-point sums depend on the shape of a batch; rare in float32, not so in bfloat16.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bcs_lab.corpus.images import DEFAULT_MAX_IMAGE_PIXELS, load_image
from bcs_lab.errors import ImageError, TeacherError
from bcs_lab.teachers.backends import Reply, Request
from bcs_lab.teachers.backends.weights import Checkpoint, check_code, find_checkpoint, is_commit
from bcs_lab.teachers.prompts import REFERENCE, Prompt, Slot

if TYPE_CHECKING:
    import torch
    from PIL import Image

logger = logging.getLogger(__name__)

DTYPES = ("bfloat16", "float16", "float32", "auto")

#: So many pairs in a row without a reply end the run: a GPU in a state of error refuses everything.
_GIVE_UP = 20

#: Normalisation of InternVL's image encoder, and of SAIL-VL's, which follows it.
_IMAGENET_MEAN = np.array((0.485, 0.456, 0.406), dtype=np.float32)
_IMAGENET_STD = np.array((0.229, 0.224, 0.225), dtype=np.float32)


class TransformersBackend:
    """Answers requests with a model loaded by transformers.

    Args:
        model: a hub repository, or a folder.
        revision: commit, tag or branch; a commit if ``allow_remote_code``. A folder has none.
        dtype: of the weights: ``bfloat16``, ``float16``, ``float32``, or ``auto`` (as stored).
        batch_size: requests a model call; halved for good whenever memory runs out.
        max_new_tokens: longest reply; one that reaches it has finish ``length``.
        do_sample: sample, else take the likeliest token.
        temperature: of sampling; ``None`` is 1.
        top_p: sample from the likeliest tokens that hold this much probability; ``None`` is all.
        repetition_penalty: divides the scores of tokens that the reply already holds; ``None`` is 1. The prompt does
            not count, so that its words may be used and padding changes nothing.
        allow_remote_code: run the Python code that comes with the model.
        device: ``auto`` spreads the model over the GPUs by accelerate where it is installed, else takes the first GPU,
            else the CPU; or a device of torch.
        max_image_pixels: larger images get an error as reply.
        seed: of sampling.
        images: settings of the model's image processor, such as ``max_patches``.
        remote_code: the model needs code of its own, as its config says.
        serve: how to serve the model, which means that it cannot be loaded here.

    Raises:
        TeacherError: the weights cannot be had, the code may not be run, or the model does not take two images.
    """

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        dtype: str = "bfloat16",
        batch_size: int = 8,
        max_new_tokens: int = 128,
        do_sample: bool = False,
        temperature: float | None = None,
        top_p: float | None = None,
        repetition_penalty: float | None = None,
        allow_remote_code: bool = False,
        device: str = "auto",
        max_image_pixels: int = DEFAULT_MAX_IMAGE_PIXELS,
        seed: int = 0,
        images: Mapping[str, Any] | None = None,
        remote_code: bool = False,
        serve: str | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise TeacherError(f"teacher.dtype={dtype!r}: expected one of {', '.join(DTYPES)}.")
        if serve is not None:
            raise TeacherError(f"backend=transformers cannot run {model}: no library has a class for it.\n{serve}")
        if remote_code and not allow_remote_code:
            raise TeacherError(_code_not_allowed(model))
        if allow_remote_code and not Path(model).expanduser().exists() and not is_commit(revision):
            raise TeacherError(
                f"allow_remote_code=true runs Python code of {model} on this machine, so it has to be pinned: expected "
                f"teacher.revision to be a commit (40 hex digits), got {revision!r}, which may become other code. Read "
                f"the code at one commit (huggingface.co/{model}/commits), then give that commit."
            )
        checkpoint = find_checkpoint(model, revision, code=allow_remote_code)
        if allow_remote_code:
            check_code(checkpoint)
        self._chat = _load(checkpoint, dtype, device, allow_remote_code, dict(images or {}))
        self._limit = max_new_tokens
        self._sampling = _Sampling(do_sample, temperature or 1.0, top_p or 1.0, repetition_penalty or 1.0, seed)
        self._max_pixels = max_image_pixels
        #: Requests a model call; smaller than asked for once memory has run out.
        self.batch_size = batch_size
        self._in_a_row = 0
        self._check()
        self.identity: dict[str, Any] = self._identity(checkpoint, images, allow_remote_code)

    def answer(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        """Replies batch by batch; a request that cannot be answered has an error as its reply.

        Latency is a request's share of its batch's time; image encodes are counted as images, not tiles, and each model
        call encodes both images anew. A batch counts as one call for each of its requests.

        Raises:
            TeacherError: many requests in a row had no reply.
        """
        batch: list[_Job] = []
        for request in requests:
            try:
                images = tuple(
                    load_image(path, max_pixels=self._max_pixels)
                    for path in (request.reference, request.reconstruction)
                )
            except ImageError as error:
                yield request, _failed(str(error), calls=0)
                continue
            batch.append(_Job(request, images[0], images[1]))
            if len(batch) >= self.batch_size:
                yield from self._run(batch)
                batch = []
        yield from self._run(batch)

    def close(self) -> None:
        """Let go of the model's memory."""
        import torch

        self.__dict__.pop("_chat", None)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    # --- one batch ---------------------------------------------------------------------------------------------------

    def _run(self, jobs: list[_Job]) -> Iterator[tuple[Request, Reply]]:
        """Replies of some jobs, in as many calls as memory needs."""
        position = 0
        while position < len(jobs):
            chunk = jobs[position : position + self.batch_size]
            start = time.perf_counter()
            # Memory is freed outside of the except block, where the traceback would still hold the batch's tensors.
            replies, error, full = self._try(chunk)
            share = (time.perf_counter() - start) / len(chunk)
            for job in chunk:
                job.calls += 1
                job.seconds += share
            if replies is not None:
                for job, (text, finish, prompt, completion) in zip(chunk, replies, strict=True):
                    reply = Reply(
                        text=text,
                        finish=finish,
                        latency_s=job.seconds,
                        prompt_tokens=prompt,
                        completion_tokens=completion,
                        calls=job.calls,
                        image_encodes=2 * job.calls,
                        details={"batch_size": len(chunk)},
                    )
                    yield job.request, reply
                self._in_a_row = 0
                position += len(chunk)
            elif full and len(chunk) > 1:
                self._free()
                self.batch_size = max(1, len(chunk) // 2)
                logger.warning("out of memory with %d pairs a call; %d from here on", len(chunk), self.batch_size)
            elif len(chunk) > 1:
                # Something is wrong with one of them, which must not cost the others their reply.
                for job in chunk:
                    yield from self._run([job])
                position += len(chunk)
            else:
                self._free()
                job = chunk[0]
                message = f"out of memory with a single pair ({error})" if full else error
                yield job.request, _failed(message, calls=job.calls, seconds=job.seconds)
                position += 1
                self._in_a_row += 1
                if self._in_a_row >= _GIVE_UP:
                    raise TeacherError(
                        f"teacher.model={self._chat.name}: {_GIVE_UP} pairs in a row without any reply; the last: "
                        f"{message}. Replies so far are kept; the same command goes on from there."
                    )

    def _try(self, chunk: Sequence[_Job]) -> tuple[list[tuple[str, str, int, int]] | None, str, bool]:
        """Replies, or ``None`` with what went wrong and whether it was memory."""
        import torch

        try:
            return self._generate(chunk), "", False
        except torch.OutOfMemoryError as error:
            return None, _line(error), True
        except Exception as error:
            # Libraries below torch report a full GPU in words only.
            message = _line(error)
            return None, f"{type(error).__name__}: {message}", "out of memory" in message.lower()

    def _generate(self, chunk: Sequence[_Job]) -> list[tuple[str, str, int, int]]:
        """Text, finish, prompt tokens and new tokens of each job, from one model call."""
        import torch

        inputs = self._chat.inputs([(job.request.prompt, job.reference, job.reconstruction) for job in chunk])
        width = int(inputs["input_ids"].shape[1])
        lengths = inputs["attention_mask"].sum(dim=1).tolist()
        processors = self._sampling.processors(
            [job.request for job in chunk], self._limit, 0 if self._chat.returns_new_only else width
        )
        with torch.inference_mode():
            output = self._chat.generate(inputs, self._limit, processors)
        new = output if self._chat.returns_new_only else output[:, width:]
        return [
            (*self._text(row), int(length), self._count(row)) for row, length in zip(new.tolist(), lengths, strict=True)
        ]

    def _text(self, row: Sequence[int]) -> tuple[str, str]:
        count = self._count(row)
        ended = any(token in self._chat.stops for token in row[:count])
        text = self._chat.tokenizer.decode(row[:count], skip_special_tokens=True)
        return text, "stop" if ended else "length"

    def _count(self, row: Sequence[int]) -> int:
        """New tokens up to the one that ends the reply; padding follows it."""
        return next((i + 1 for i, token in enumerate(row) if token in self._chat.stops), len(row))

    def _free(self) -> None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _check(self) -> None:
        """Two small images go through template and processor before hours of work depend on them."""
        from PIL import Image

        prompt = Prompt("system", ("a", *Slot, "b"), (), {})
        picture = Image.new("RGB", (32, 32))
        try:
            self._chat.inputs([(prompt, picture, picture)])
        except Exception as error:
            raise TeacherError(
                f"teacher.model={self._chat.name}: a prompt with two images cannot be prepared for it "
                f"({type(error).__name__}: {_line(error)}). teacher.images is {self._chat.images}; a model without a "
                "chat template for images, or for one image only, cannot be a teacher."
            ) from error

    def _identity(self, checkpoint: Checkpoint, images: Mapping[str, Any] | None, code: bool) -> dict[str, Any]:
        import transformers

        return {
            "backend": "transformers",
            "library_version": transformers.__version__,
            "model": checkpoint.name,
            "revision": checkpoint.revision,
            "architecture": type(self._chat.model).__name__,
            "dtype": str(self._chat.model.dtype).removeprefix("torch."),
            "remote_code": code,
            "images": dict(images or {}),
            "generation": {"max_new_tokens": self._limit, **self._sampling.identity},
        }


@dataclass
class _Job:
    request: Request
    reference: Image.Image
    reconstruction: Image.Image
    calls: int = 0
    seconds: float = 0.0


def _failed(message: str, calls: int, seconds: float = 0.0) -> Reply:
    return Reply(text=None, error=message, finish=None, latency_s=seconds, calls=calls, image_encodes=2 * calls)


def _line(error: Exception, limit: int = 300) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[:limit] + "…"


# --- sampling --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Sampling:
    do_sample: bool
    temperature: float
    top_p: float
    repetition_penalty: float
    seed: int

    @property
    def identity(self) -> dict[str, Any]:
        values: dict[str, Any] = {"do_sample": self.do_sample, "repetition_penalty": self.repetition_penalty}
        if self.do_sample:
            values.update(temperature=self.temperature, top_p=self.top_p, seed=self.seed)
        return values

    def processors(self, requests: Sequence[Request], steps: int, prompt_width: int) -> list[Any]:
        """What happens to the scores of each step, in transformers' order; the last one leaves the drawn token only."""
        from transformers import (
            RepetitionPenaltyLogitsProcessor,
            TemperatureLogitsWarper,
            TopPLogitsWarper,
        )

        chain: list[Any] = []
        if self.repetition_penalty != 1.0:
            chain.append(RepetitionPenaltyLogitsProcessor(float(self.repetition_penalty), prompt_width))
        if not self.do_sample:
            return chain
        if self.temperature != 1.0:
            chain.append(TemperatureLogitsWarper(float(self.temperature)))
        if self.top_p < 1.0:
            chain.append(TopPLogitsWarper(float(self.top_p)))
        return [*chain, _Drawn(np.stack([uniforms(request, self.seed, steps) for request in requests]))]


def uniforms(request: Request, seed: int, count: int) -> np.ndarray:
    """[count] numbers in 0 to 1 that a request's tokens are drawn with: of seed, pair, prompt and attempt only."""
    text = f"teacher\0{seed}\0{request.pair_id}\0{request.prompt.digest}\0{request.attempt}"
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little"))).random(count)


class _Drawn:
    """Leaves one token a row, drawn by inverting the cumulative probabilities at the row's number of this step.

    transformers' own sampling draws from one stream for a whole batch, so that a reply would depend on its neighbours.
    """

    def __init__(self, numbers: np.ndarray) -> None:
        self._numbers = numbers
        self._step = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        import torch

        number = torch.from_numpy(self._numbers[:, self._step]).to(scores.device)[:, None]
        self._step += 1
        total = torch.softmax(scores.double(), dim=-1).cumsum(dim=-1)
        token = (total <= number * total[:, -1:]).sum(dim=-1, keepdim=True).clamp(max=scores.shape[-1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


# --- models ----------------------------------------------------------------------------------------------------------


class _Chat(Protocol):
    """A loaded model: how a prompt with two images becomes its input, and what it returns."""

    name: str
    model: Any
    tokenizer: Any
    images: dict[str, Any]
    stops: frozenset[int]
    returns_new_only: bool

    def inputs(self, batch: Sequence[tuple[Prompt, Image.Image, Image.Image]]) -> dict[str, Any]:
        """Tensors on the model's device, padded on the left; at least ``input_ids`` and ``attention_mask``."""
        ...

    def generate(self, inputs: dict[str, Any], limit: int, processors: list[Any]) -> torch.Tensor:
        """Token ids [n, …]."""
        ...


class _ProcessorChat:
    """A model of transformers' image-text-to-text classes, with its processor and chat template."""

    returns_new_only = False

    def __init__(self, name: str, model: Any, processor: Any, images: dict[str, Any]) -> None:
        self.name = name
        self.model = model
        self.processor = processor
        self.images = images
        self.tokenizer = processor.tokenizer
        self.stops = _prepare(model, self.tokenizer)
        self._system_turn = self._keeps_system_turn()

    def inputs(self, batch: Sequence[tuple[Prompt, Image.Image, Image.Image]]) -> dict[str, Any]:
        """See :class:`_Chat`."""
        texts, images = [], []
        for prompt, reference, reconstruction in batch:
            texts.append(self._render(prompt))
            # In the order of the slots, which is the order of the image places in the text.
            images.append([reference if slot is REFERENCE else reconstruction for slot in _slots(prompt)])
        given: dict[str, Any] = {"images_kwargs": self.images} if self.images else {}
        if self.tokenizer.bos_token is not None and texts[0].startswith(self.tokenizer.bos_token):
            given["add_special_tokens"] = False
        # Inputs cut to the tokenizer's length would lose image places; a model that is too short has to say so itself.
        encoded = self.processor(text=texts, images=images, padding=True, return_tensors="pt", **given)
        tensors = dict(encoded.to(self.model.device, dtype=self.model.dtype))
        if "token_type_ids" in tensors and "token_type_ids" not in inspect.signature(self.model.forward).parameters:
            del tensors["token_type_ids"]
        return tensors

    def generate(self, inputs: dict[str, Any], limit: int, processors: list[Any]) -> torch.Tensor:
        """See :class:`_Chat`."""
        return self.model.generate(**inputs, **_settings(self.stops, self.tokenizer, limit, processors))

    def _render(self, prompt: Prompt) -> str:
        user: list[dict[str, str]] = [
            {"type": "image"} if isinstance(part, Slot) else {"type": "text", "text": part} for part in prompt.parts
        ]
        turns: list[dict[str, Any]] = [{"role": "user", "content": user}]
        if prompt.system and self._system_turn:
            turns.insert(0, {"role": "system", "content": [{"type": "text", "text": prompt.system}]})
        elif prompt.system:
            user.insert(0, {"type": "text", "text": f"{prompt.system}\n\n"})
        return self._template(turns)

    def _template(self, turns: list[dict[str, Any]]) -> str:
        return str(self.processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))

    def _keeps_system_turn(self) -> bool:
        """Whether the template has a place for a system text.

        Ovis2's always writes its own system turn first (a second one would contradict it), others refuse or drop it;
        the text then opens the user's turn.
        """
        mark = "\N{SECTION SIGN}system text\N{SECTION SIGN}"
        turns = [
            {"role": "system", "content": [{"type": "text", "text": mark}]},
            {"role": "user", "content": [{"type": "text", "text": "question"}]},
        ]
        try:
            text = self._template(turns)
        except Exception:
            return False
        before, found, _ = text.partition(mark)
        return bool(found) and before.lower().count("system") <= 1


class _OwnCodeChat:
    """A model with its own code in the manner of InternVL's first releases, as SAIL-VL's is.

    It has no processor: each image is one square tile, written into the text as a fixed number of image tokens.
    """

    returns_new_only = True

    def __init__(self, name: str, model: Any, tokenizer: Any, images: dict[str, Any]) -> None:
        if images:
            raise TeacherError(f"teacher.images={images}: {name} has no image processor that could take settings.")
        self.name = name
        self.model = model
        self.images = images
        self.tokenizer = tokenizer
        self.stops = _prepare(model, tokenizer)
        if hasattr(model, "language_model"):
            _prepare(model.language_model, tokenizer)
        model.img_context_token_id = tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>")
        size = getattr(model.config, "force_image_size", None) or model.config.vision_config.image_size
        self._size = int(size[0] if isinstance(size, (list, tuple)) else size)
        self._image = f"<img>{'<IMG_CONTEXT>' * int(model.num_image_token)}</img>\n"

    def inputs(self, batch: Sequence[tuple[Prompt, Image.Image, Image.Image]]) -> dict[str, Any]:
        """See :class:`_Chat`."""
        import torch

        texts, tiles = [], []
        for prompt, reference, reconstruction in batch:
            user = "".join(self._image if isinstance(part, Slot) else part for part in prompt.parts)
            turns = [{"role": "system", "content": prompt.system}] if prompt.system else []
            turns.append({"role": "user", "content": user})
            texts.append(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
            tiles += [self._tile(reference if slot is REFERENCE else reconstruction) for slot in _slots(prompt)]
        encoded = self.tokenizer(texts, padding=True, return_tensors="pt", add_special_tokens=False)
        place = self.model.device
        return {
            "input_ids": encoded["input_ids"].to(place),
            "attention_mask": encoded["attention_mask"].to(place),
            "pixel_values": torch.from_numpy(np.stack(tiles)).to(place, dtype=self.model.dtype),
        }

    def generate(self, inputs: dict[str, Any], limit: int, processors: list[Any]) -> torch.Tensor:
        """See :class:`_Chat`."""
        return self.model.generate(**inputs, **_settings(self.stops, self.tokenizer, limit, processors))

    def _tile(self, image: Image.Image) -> np.ndarray:
        from PIL import Image as pillow

        resized = image.resize((self._size, self._size), pillow.Resampling.BICUBIC)
        pixels = np.asarray(resized, dtype=np.float32) / 255.0
        return ((pixels - _IMAGENET_MEAN) / _IMAGENET_STD).transpose(2, 0, 1)


def _slots(prompt: Prompt) -> list[Slot]:
    return [part for part in prompt.parts if isinstance(part, Slot)]


def _prepare(model: Any, tokenizer: Any) -> frozenset[int]:
    """Left padding, a pad token, and no settings but ours; returns the tokens that end a reply."""
    from transformers import GenerationConfig

    tokenizer.padding_side = "left"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    stored = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    stops = {*(stored if isinstance(stored, (list, tuple)) else [stored]), tokenizer.eos_token_id} - {None}
    # A checkpoint's own sampling settings would fill in whatever a call leaves open.
    model.generation_config = GenerationConfig(eos_token_id=sorted(stops), pad_token_id=tokenizer.pad_token_id)
    return frozenset(stops)


def _settings(stops: frozenset[int], tokenizer: Any, limit: int, processors: list[Any]) -> dict[str, Any]:
    from transformers import GenerationConfig, LogitsProcessorList

    settings = GenerationConfig(
        max_new_tokens=limit,
        do_sample=False,  # sampling, if any, is in the processors
        num_beams=1,
        eos_token_id=sorted(stops),
        pad_token_id=tokenizer.pad_token_id,
    )
    return {"generation_config": settings, "logits_processor": LogitsProcessorList(processors)}


def _load(checkpoint: Checkpoint, dtype: str, device: str, code: bool, images: dict[str, Any]) -> _Chat:
    """The model and what prepares its input.

    Raises:
        TeacherError: transformers has no class for it, or cannot load it.
    """
    import torch
    import transformers

    mapping = checkpoint.config.get("auto_map") or {}
    needs_code = bool(mapping) and not _native(checkpoint)
    if needs_code and not code:
        raise TeacherError(_code_not_allowed(checkpoint.name))
    place = _place(device)
    kind: Any = "auto" if dtype == "auto" else getattr(torch, dtype)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": needs_code}
    if place is None:
        placing: dict[str, Any] = {"device_map": "auto"}
    else:
        placing = {}
    own = needs_code and "AutoModelForImageTextToText" not in mapping
    loader = transformers.AutoModel if own else transformers.AutoModelForImageTextToText
    folder = str(checkpoint.folder)
    try:
        model = loader.from_pretrained(folder, dtype=kind, **options, **placing).eval().requires_grad_(False)
        helper = transformers.AutoTokenizer if own else transformers.AutoProcessor
        processor = helper.from_pretrained(folder, **options)
        if place is not None:
            model.to(place)
    except Exception as error:
        raise TeacherError(
            f"teacher.model={checkpoint.name}: transformers {transformers.__version__} cannot load it as a model for "
            f"images and text ({type(error).__name__}: {_line(error)}). Its files are in {folder}."
        ) from error
    _warn_of_offload(model)
    if not own:
        return _ProcessorChat(checkpoint.name, model, processor, images)
    if not hasattr(model, "num_image_token"):
        raise TeacherError(
            f"teacher.model={checkpoint.name}: its own code ({type(model).__name__}) has neither a class for images "
            "and text nor InternVL's num_image_token, so how it takes images is unknown; ask a server that runs it: "
            "backend=openai backend.base_url=http://HOST:PORT/v1."
        )
    return _OwnCodeChat(checkpoint.name, model, processor, images)


def _code_not_allowed(model: str) -> str:
    return (
        f"teacher.model={model}: transformers has no class for it, and it comes with Python code of its own, which is "
        "not run unless you say so: read it, then give allow_remote_code=true and teacher.revision=COMMIT (40 hex "
        "digits; none for a folder); or ask a server that runs it: backend=openai backend.base_url=http://HOST:PORT/v1."
    )


def _native(checkpoint: Checkpoint) -> bool:
    """Whether transformers itself has a class for the model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    return checkpoint.config.get("model_type") in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES


def _place(device: str) -> torch.device | None:
    """Where the model goes as a whole; ``None`` leaves it to accelerate.

    Raises:
        TeacherError: the device is unknown or not on this machine.
    """
    import torch
    from transformers.utils import is_accelerate_available

    if device == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return None if is_accelerate_available() else torch.device("cuda", 0)
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise TeacherError(
            f"backend.device={device!r} cannot be used here ({str(error).splitlines()[0]}); choose auto, cpu, cuda, "
            "cuda:N or mps."
        ) from None
    return chosen


def _warn_of_offload(model: Any) -> None:
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    if places & {"cpu", "disk"} and len(places) > 1:
        logger.warning("the model does not fit on the GPUs: parts of it are kept in %s, which is slow", sorted(places))
