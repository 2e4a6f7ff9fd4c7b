"""The transformers backend with tiny random models of the classes that the real teachers load with."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_teacher
import torch
import transformers
from hydra import compose, initialize_config_dir
from tiny_model import draw

from bcs_lab.catalogue import choices, config_dir
from bcs_lab.config import TeacherConfig, parse
from bcs_lab.errors import BCSError, ConfigError, TeacherError
from bcs_lab.launch import resolve
from bcs_lab.teachers.backends import Reply, Request
from bcs_lab.teachers.backends.transformers import TransformersBackend, _Drawn, uniforms
from bcs_lab.teachers.backends.weights import find_checkpoint, folder_digest
from bcs_lab.teachers.prompts import RECONSTRUCTION, REFERENCE, Prompt, build_prompts
from bcs_lab.teachers.protocol import BCS12

FAMILIES = {"internvl": {"crop_to_patches": False}, "ovis2": {"crop_to_patches": True, "max_patches": 4}}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: getattr(tiny_teacher, name)(root / name) for name in FAMILIES}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("pictures")
    paths = [root / f"{i}.png" for i in range(6)]
    for i, path in enumerate(paths):
        draw(i, (80, 50)).save(path)
    return paths


def prompt(system: str = "Judge.", text: str = "") -> Prompt:
    return Prompt(system, ("First ", REFERENCE, "then ", RECONSTRUCTION, f"answer {text}"), ("P1",), {})


def requests(pictures: list[Path], n: int = 5) -> list[Request]:
    """Prompts of different lengths, so that a batch has padding."""
    return [Request(f"p{i}", prompt(text="x" * 3 * i), pictures[i % 2], pictures[i]) for i in range(n)]


def backend(folder: Path, images: Mapping[str, Any] | None = None, **changes: Any) -> TransformersBackend:
    settings = {"dtype": "float32", "batch_size": 1, "max_new_tokens": 12, "device": "cpu", "images": images}
    return TransformersBackend(str(folder), **{**settings, **changes})


def texts(made: TransformersBackend, asked: list[Request]) -> dict[str, str | None]:
    return {request.pair_id: reply.text for request, reply in made.answer(asked)}


def one(made: TransformersBackend, request: Request) -> Reply:
    ((_, reply),) = made.answer([request])
    return reply


# --- replies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_answers_as_its_requests_alone(family: str, models: dict[str, Path], pictures: list[Path]) -> None:
    asked = requests(pictures)
    alone = texts(backend(models[family], FAMILIES[family]), asked)
    assert len(set(alone.values())) == len(asked)
    for size in (2, 5):
        assert texts(backend(models[family], FAMILIES[family], batch_size=size), asked) == alone


@pytest.mark.parametrize("family", FAMILIES)
def test_replies_are_what_the_models_own_generate_says(
    family: str, models: dict[str, Path], pictures: list[Path]
) -> None:
    """By hand, one pair, no padding: the processor's chat template, then greedy search."""
    from PIL import Image
    from transformers import AutoModelForImageTextToText, AutoProcessor

    asked = requests(pictures)[3]
    processor = AutoProcessor.from_pretrained(models[family])
    model = AutoModelForImageTextToText.from_pretrained(models[family], dtype=torch.float32)
    system = {"role": "system", "content": [{"type": "text", "text": "Judge."}]}
    user = [
        {"type": "text", "text": "First "},
        {"type": "image", "image": Image.open(asked.reference)},
        {"type": "text", "text": "then "},
        {"type": "image", "image": Image.open(asked.reconstruction)},
        {"type": "text", "text": "answer xxxxxxxxx"},
    ]
    if family == "ovis2":  # its template has no place for another system turn
        user.insert(0, {"type": "text", "text": "Judge.\n\n"})
    turns = [*([system] if family == "internvl" else []), {"role": "user", "content": user}]
    inputs = processor.apply_chat_template(
        turns,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"images_kwargs": FAMILIES[family]},
    )
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    width = inputs["input_ids"].shape[1]
    reply = one(backend(models[family], FAMILIES[family]), asked)
    assert reply.text == processor.tokenizer.decode(output[0, width:], skip_special_tokens=True)
    assert reply.prompt_tokens == width


@pytest.mark.parametrize("family", FAMILIES)
def test_both_images_and_their_order_matter(family: str, models: dict[str, Path], pictures: list[Path]) -> None:
    made = backend(models[family], FAMILIES[family], batch_size=5)
    a, b, c = (_open(path) for path in pictures[:3])
    asked = prompt()
    turned = Prompt(asked.system, ("First ", RECONSTRUCTION, "then ", REFERENCE, "answer "), ("P1",), {})
    batch = {
        "ab": (asked, a, b),
        "ac": (asked, a, c),
        "cb": (asked, c, b),
        "ba": (asked, b, a),
        "turned": (turned, b, a),
    }
    with torch.inference_mode():
        last = made._chat.model(**made._chat.inputs(list(batch.values()))).logits[:, -1]
    logits = dict(zip(batch, last, strict=True))
    for first, second in itertools.combinations(("ab", "ac", "cb", "ba"), 2):
        assert (logits[first] - logits[second]).abs().max() > 0.01
    # The slots say which image goes where.
    torch.testing.assert_close(logits["turned"], logits["ab"])
    files = pictures[:4]
    replies = texts(made, [Request(f"{x}{y}", asked, x, y) for x, y in itertools.permutations(files, 2)])
    assert len(set(replies.values())) > 1


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_on_the_left(family: str, models: dict[str, Path], pictures: list[Path]) -> None:
    made = backend(models[family], FAMILIES[family])
    images = [draw(i) for i in range(2)]
    inputs = made._chat.inputs([(prompt(), *images), (prompt(text="much longer"), *images)])  # type: ignore[arg-type]
    assert inputs["attention_mask"][:, -1].tolist() == [1, 1]
    assert inputs["attention_mask"][0, 0] == 0


def test_the_system_text_takes_the_place_its_template_has(models: dict[str, Path]) -> None:
    system = prompt("Be strict.")
    own = backend(models["internvl"])._chat._render(system)  # type: ignore[attr-defined]
    assert own.startswith("<|im_start|>system\nBe strict.<|im_end|>\n<|im_start|>user\nFirst <IMG_CONTEXT>\nthen ")
    other = backend(models["ovis2"])._chat._render(system)  # type: ignore[attr-defined]
    assert other.count("system") == 1
    assert "<|im_start|>user\nBe strict.\n\nFirst <image>\nthen <image>\nanswer" in other


def test_the_real_prompts_go_through(models: dict[str, Path], pictures: list[Path]) -> None:
    made = backend(models["internvl"], FAMILIES["internvl"], max_new_tokens=2)
    for mode in ("joint", "single"):
        for asked in build_prompts(BCS12, mode)[:2]:  # type: ignore[arg-type]
            reply = one(made, Request("p", asked, pictures[0], pictures[1]))
            assert reply.error is None
            # Two images a call: 2 a pair in joint mode, 24 in single mode.
            assert (reply.calls, reply.image_encodes) == (1, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_images_are_cut_into_the_tiles_asked_for(family: str, models: dict[str, Path]) -> None:
    wide = (prompt(), draw(0, (300, 100)), draw(1, (300, 100)))

    def tiles(settings: Mapping[str, Any] | None) -> int:
        return int(backend(models[family], settings)._chat.inputs([wide])["pixel_values"].shape[0])

    # Up to 12 tiles and the whole, of two images; then one tile each, or 3 tiles and the whole.
    assert tiles(None) == 26
    assert tiles(FAMILIES[family]) == {"internvl": 2, "ovis2": 8}[family]


def test_a_reply_ends_at_a_stop_token_or_at_the_limit(models: dict[str, Path], pictures: list[Path]) -> None:
    asked = requests(pictures, 3)
    made = backend(models["internvl"], FAMILIES["internvl"], batch_size=3)
    full = dict(made.answer(asked))
    assert {reply.finish for reply in full.values()} == {"length"}
    assert {reply.completion_tokens for reply in full.values()} == {12}
    # The fifth token of the first reply, as if it were the end of a turn.
    with torch.inference_mode():
        inputs = made._chat.inputs(
            [(asked[0].prompt, *(_open(p) for p in (asked[0].reference, asked[0].reconstruction)))]
        )  # type: ignore[arg-type]
        tokens = made._chat.generate(inputs, 12, [])[0, inputs["input_ids"].shape[1] :].tolist()
    stop = tokens[4]
    made._chat.stops = frozenset({stop})
    ended = dict(made.answer(asked))
    first = ended[asked[0]]
    assert (first.finish, first.completion_tokens) == ("stop", tokens.index(stop) + 1)
    assert first.text is not None
    assert str(full[asked[0]].text).startswith(first.text)


def _open(path: Path) -> Any:
    from bcs_lab.corpus.images import load_image

    return load_image(path)


def test_a_checkpoints_own_sampling_settings_do_not_leak_in(
    models: dict[str, Path], pictures: list[Path], tmp_path: Path
) -> None:
    asked = requests(pictures, 2)
    plain = texts(backend(models["internvl"]), asked)
    folder = tmp_path / "model"
    shutil.copytree(models["internvl"], folder)
    values = {"do_sample": True, "temperature": 3.0, "repetition_penalty": 9.0, "top_k": 2, "max_new_tokens": 3}
    (folder / "generation_config.json").write_text(json.dumps(values))
    assert texts(backend(folder), asked) == plain


# --- trouble ---------------------------------------------------------------------------------------------------------


class Crowded:
    """A generate that has memory for some requests a call only, and notes how many came."""

    def __init__(self, made: TransformersBackend, room: int, error: type[Exception] = torch.OutOfMemoryError) -> None:
        self.generate, self.room, self.error = made._chat.generate, room, error
        self.sizes: list[int] = []

    def __call__(self, inputs: dict[str, Any], limit: int, processors: list[Any]) -> torch.Tensor:
        self.sizes.append(len(inputs["input_ids"]))
        if self.sizes[-1] > self.room:
            raise self.error("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.generate(inputs, limit, processors)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_a_batch_is_halved_for_good_when_memory_runs_out(
    error: type[Exception], models: dict[str, Path], pictures: list[Path]
) -> None:
    asked = [
        *requests(pictures, 6),
        *(replace(request, pair_id=f"q{i}") for i, request in enumerate(requests(pictures))),
    ]
    plain = texts(backend(models["internvl"]), asked)
    made = backend(models["internvl"], batch_size=8)
    crowded = made._chat.generate = Crowded(made, 2, error)  # type: ignore[method-assign]
    replies = dict(made.answer(asked))
    assert {request.pair_id: reply.text for request, reply in replies.items()} == plain
    assert crowded.sizes == [8, 4, 2, 2, 2, 2, 2, 1]
    assert made.batch_size == 2
    # Those of the first batch took part in calls that failed, and their images were encoded for them.
    assert [reply.calls for reply in replies.values()] == [3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1]
    assert all(reply.image_encodes == 2 * reply.calls for reply in replies.values())


def test_a_pair_that_is_too_large_alone_gets_an_error_and_the_rest_goes_on(
    models: dict[str, Path], pictures: list[Path]
) -> None:
    made = backend(models["internvl"])
    made._chat.generate = Crowded(made, 0)  # type: ignore[method-assign]
    replies = [reply for _, reply in made.answer(requests(pictures, 3))]
    assert [reply.text for reply in replies] == [None] * 3
    assert all("out of memory with a single pair" in str(reply.error) for reply in replies)


def test_a_model_that_answers_nothing_any_more_ends_the_run(models: dict[str, Path], pictures: list[Path]) -> None:
    made = backend(models["internvl"], batch_size=4)
    made._chat.generate = Crowded(made, 0, ValueError)  # type: ignore[method-assign]
    asked = [replace(requests(pictures)[0], pair_id=str(i)) for i in range(40)]
    replies = made.answer(asked)
    taken = [next(replies) for _ in range(20)]
    assert all(reply.text is None for _, reply in taken)
    with pytest.raises(TeacherError, match="20 pairs in a row without any reply"):
        next(replies)
    made.close()
    made.close()


def test_one_bad_request_does_not_cost_the_others_their_reply(models: dict[str, Path], pictures: list[Path]) -> None:
    asked = requests(pictures, 4)
    # A prompt that writes an image place as text has one place too many.
    asked[1] = replace(asked[1], prompt=prompt(text="<IMG_CONTEXT>"))
    made = backend(models["internvl"], batch_size=4)
    replies = {request.pair_id: reply for request, reply in made.answer(asked)}
    assert [name for name, reply in replies.items() if reply.error is not None] == ["p1"]
    alone = texts(backend(models["internvl"]), [asked[0], *asked[2:]])
    assert {name: reply.text for name, reply in replies.items() if name != "p1"} == alone


def test_a_broken_image_gets_an_error_that_names_it(
    models: dict[str, Path], pictures: list[Path], tmp_path: Path
) -> None:
    torn, absent = tmp_path / "torn.png", tmp_path / "absent.png"
    torn.write_bytes(pictures[0].read_bytes()[:200])
    asked = requests(pictures, 4)
    asked[1] = replace(asked[1], reference=torn)
    asked[2] = replace(asked[2], reconstruction=absent)
    replies = {request.pair_id: reply for request, reply in backend(models["ovis2"], batch_size=3).answer(asked)}
    assert sorted(replies) == ["p0", "p1", "p2", "p3"]
    for name, path in (("p1", torn), ("p2", absent)):
        assert str(path) in str(replies[name].error)
        assert (replies[name].text, replies[name].calls, replies[name].image_encodes) == (None, 0, 0)
    assert replies["p0"].error is None
    small = one(backend(models["ovis2"], max_image_pixels=100), asked[0])
    assert "exceed the limit of 100" in str(small.error)


def test_accelerate_places_the_model(
    models: dict[str, Path], pictures: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with a GPU; here it has the CPU only to choose from."""
    pytest.importorskip("accelerate")
    asked = requests(pictures, 2)
    plain = texts(backend(models["ovis2"]), asked)
    monkeypatch.setattr("bcs_lab.teachers.backends.transformers._place", lambda device: None)
    maps: list[Any] = []
    load = transformers.AutoModelForImageTextToText.from_pretrained

    def watched(*arguments: Any, **settings: Any) -> Any:
        maps.append(settings.get("device_map"))
        return load(*arguments, **settings)

    monkeypatch.setattr(transformers.AutoModelForImageTextToText, "from_pretrained", watched)
    assert texts(backend(models["ovis2"], device="auto"), asked) == plain
    assert maps == ["auto"]


def test_requests_are_taken_as_they_are_needed(models: dict[str, Path], pictures: list[Path]) -> None:
    taken: list[str] = []

    def asked() -> Iterator[Request]:
        for request in requests(pictures):
            taken.append(request.pair_id)
            yield request

    replies = backend(models["internvl"], batch_size=2, max_new_tokens=1).answer(asked())
    next(replies)
    assert taken == ["p0", "p1"]


# --- sampling --------------------------------------------------------------------------------------------------------

SAIL = {"do_sample": True, "temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.05}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sampled_reply_depends_on_the_request_only(
    family: str, models: dict[str, Path], pictures: list[Path]
) -> None:
    asked = requests(pictures)
    alone = texts(backend(models[family], FAMILIES[family], **SAIL), asked)
    batched = backend(models[family], FAMILIES[family], batch_size=3, **SAIL)
    assert texts(batched, asked) == alone
    assert texts(batched, asked[::-1]) == alone
    assert texts(batched, [replace(request, attempt=2) for request in asked]) != alone
    assert texts(backend(models[family], FAMILIES[family], seed=1, **SAIL), asked) != alone
    assert alone != texts(backend(models[family], FAMILIES[family]), asked)


def test_tokens_are_drawn_with_the_probabilities_of_the_scores() -> None:
    probabilities = torch.tensor([0.1, 0.0, 0.55, 0.05, 0.3])
    numbers = np.random.default_rng(0).random((4000, 1))
    drawn = _Drawn(numbers)(torch.zeros(4000, 1), probabilities.log().repeat(4000, 1))
    assert ((drawn == 0).sum(dim=1) == 1).all()
    shares = torch.bincount(drawn.argmax(dim=1), minlength=5) / 4000
    assert shares[1] == 0
    # Four standard errors of a share.
    assert (shares - probabilities).abs().max() < 4 * 0.5 / 4000**0.5
    # The ends of the range: a number of 0 never takes a token without probability.
    ends = _Drawn(np.array([[0.0], [1 - 2**-53]]))(
        torch.zeros(2, 1), torch.tensor([[-torch.inf, 0, 0, -torch.inf]] * 2)
    )
    assert ends.argmax(dim=1).tolist() == [1, 2]


def test_numbers_of_a_request_are_its_own(pictures: list[Path]) -> None:
    request = requests(pictures)[0]
    first = uniforms(request, 0, 8)
    np.testing.assert_array_equal(first, uniforms(replace(request, reference=pictures[5]), 0, 20)[:8])
    for other in (
        replace(request, attempt=2),
        replace(request, pair_id="z"),
        replace(request, prompt=prompt("Other.")),
    ):
        assert not np.isin(first, uniforms(other, 0, 8)).any()


def test_repetition_penalty_counts_the_reply_only(models: dict[str, Path], pictures: list[Path]) -> None:
    asked = requests(pictures, 3)
    plain = texts(backend(models["internvl"], FAMILIES["internvl"]), asked)
    penalised = texts(backend(models["internvl"], FAMILIES["internvl"], repetition_penalty=5.0), asked)
    assert penalised != plain
    for name, text in plain.items():
        assert str(text)[0] == str(penalised[name])[0]  # nothing to repeat yet, though the prompt is long
    assert (
        texts(backend(models["internvl"], FAMILIES["internvl"], repetition_penalty=5.0, batch_size=3), asked)
        == penalised
    )


# --- files and code --------------------------------------------------------------------------------------------------


def test_missing_weights_are_one_clear_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(TeacherError) as raised:
        TransformersBackend("OpenGVLab/InternVL3-8B-hf", revision="v1")
    message = str(raised.value)
    for part in ("OpenGVLab/InternVL3-8B-hf", "revision v1", str(tmp_path), "hf download", "teacher.model=/folder"):
        assert part in message
    with pytest.raises(TeacherError, match="neither a folder nor the name"):
        TransformersBackend("no such:thing")


def test_folders_that_hold_no_model_say_what_they_lack(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match="found nothing"):
        TransformersBackend(str(tmp_path / "nothing"))
    with pytest.raises(TeacherError, match=r"lacks config\.json; found an empty folder"):
        TransformersBackend(str(tmp_path))
    folder = tmp_path / "model"
    shutil.copytree(models["internvl"], folder)
    with pytest.raises(TeacherError, match="folders have no revisions"):
        TransformersBackend(str(folder), revision="main")
    weights = (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"a": weights.name, "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(TeacherError, match="lacks 1 of 2 weight files"):
        TransformersBackend(str(folder))


def test_a_model_in_the_cache_is_used_without_the_network(
    models: dict[str, Path], pictures: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    repository = tmp_path / "models--someone--tiny"
    shutil.copytree(models["internvl"], repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    def no_network(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("asked the hub")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", no_network)
    monkeypatch.setattr("huggingface_hub.snapshot_download", no_network)
    made = backend(Path("someone/tiny"))
    assert (made.identity["model"], made.identity["revision"]) == ("someone/tiny", COMMIT)
    assert find_checkpoint("someone/tiny", COMMIT).revision == COMMIT
    assert one(made, requests(pictures)[0]).error is None
    (repository / "snapshots" / COMMIT / "model.safetensors").unlink()
    with pytest.raises(TeacherError, match="cannot be had"):
        backend(Path("someone/tiny"))


def test_identity_is_all_that_changes_a_reply_and_no_path(models: dict[str, Path], tmp_path: Path) -> None:
    made = backend(models["internvl"], FAMILIES["internvl"], **SAIL)
    assert json.loads(json.dumps(made.identity)) == made.identity
    assert made.identity["generation"] == {"max_new_tokens": 12, "seed": 0, **SAIL}
    assert (made.identity["architecture"], made.identity["dtype"]) == ("InternVLForConditionalGeneration", "float32")
    assert str(models["internvl"].parent) not in json.dumps(made.identity)
    copy = tmp_path / "internvl"
    shutil.copytree(models["internvl"], copy)
    same = backend(copy, FAMILIES["internvl"], batch_size=4, **SAIL)
    assert same.identity == made.identity
    changes: list[dict[str, Any]] = [
        {"seed": 1},
        {"dtype": "bfloat16"},
        {"max_new_tokens": 13},
        {"images": None},
        {"top_p": 0.8},
    ]
    for change in changes:
        assert backend(copy, **{"images": FAMILIES["internvl"], **SAIL, **change}).identity != made.identity
    tiny_teacher.internvl(copy, seed=1)
    assert backend(copy, FAMILIES["internvl"], **SAIL).identity["revision"] != made.identity["revision"]


def test_large_weights_are_told_apart_by_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from bcs_lab.teachers.backends import weights

    monkeypatch.setattr(weights, "_WHOLE", 1000)
    monkeypatch.setattr(weights, "_BLOCK", 10)
    file = tmp_path / "model.safetensors"
    content = bytearray(range(250)) * 10
    digests = set()
    for position in (None, 0, len(content) - 1, (len(content) - 10) // 15 + 3):
        changed = bytearray(content)
        if position is not None:
            changed[position] ^= 255
        file.write_bytes(changed)
        digests.add(folder_digest(tmp_path))
    file.write_bytes(content + b"x")
    digests.add(folder_digest(tmp_path))
    assert len(digests) == 5


def test_settings_that_the_model_cannot_take_are_found_at_once(models: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match=r"teacher\.dtype='fp8'"):
        backend(models["internvl"], dtype="fp8")
    with pytest.raises(TeacherError, match=r"backend\.device='cuda:99' cannot be used"):
        backend(models["internvl"], device="cuda:99")
    with pytest.raises(TeacherError, match="two images cannot be prepared"):
        backend(models["internvl"], {"max_patches": "many"})
    folder = tmp_path / "model"
    shutil.copytree(models["internvl"], folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(TeacherError, match="two images cannot be prepared"):
        backend(folder)
    text_only = tmp_path / "text"
    from transformers import Qwen2ForCausalLM

    tokens = tiny_teacher.tokenizer(())
    Qwen2ForCausalLM(tiny_teacher.language(len(tokens))).save_pretrained(text_only)
    tokens.save_pretrained(text_only)
    with pytest.raises(TeacherError, match="cannot load it as a model for images and text"):
        backend(text_only)


def test_code_runs_only_when_allowed_and_pinned(tmp_path: Path, pictures: list[Path]) -> None:
    folder = tiny_teacher.own_code(tmp_path / "sail")
    for settings in ({"remote_code": True}, {}):
        with pytest.raises(TeacherError, match="not run unless you say so"):
            backend(folder, **settings)
    for revision in (None, "main", COMMIT[:7]):
        with pytest.raises(TeacherError, match=r"expected teacher\.revision to be a commit"):
            TransformersBackend("BytedanceDouyinContent/SAIL-VL-1d6-8B", revision=revision, allow_remote_code=True)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {key: f"someone/else--{value}" for key, value in config["auto_map"].items()}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(TeacherError, match=r"from another repository \(someone/else--"):
        backend(folder, allow_remote_code=True)


def test_own_code_in_the_manner_of_internvl_is_asked_as_it_expects(tmp_path: Path, pictures: list[Path]) -> None:
    folder = tiny_teacher.own_code(tmp_path / "sail")
    asked = requests(pictures)
    made = backend(folder, allow_remote_code=True, remote_code=True)
    alone = texts(made, asked)
    assert len(set(alone.values())) == len(asked)
    assert texts(backend(folder, allow_remote_code=True, batch_size=5), asked) == alone
    swapped = replace(asked[0], reference=asked[1].reconstruction, reconstruction=asked[0].reference)
    assert one(made, swapped).text != one(made, replace(swapped, reference=pictures[4])).text
    assert made.identity["remote_code"] is True
    sampled = texts(backend(folder, allow_remote_code=True, **SAIL), asked)
    assert texts(backend(folder, allow_remote_code=True, batch_size=2, **SAIL), asked) == sampled != alone
    inputs = made._chat.inputs([(asked[0].prompt, draw(0), draw(1))])
    text = made._chat.tokenizer.decode(inputs["input_ids"][0])
    image = f"<img>{'<IMG_CONTEXT>' * 4}</img>\n"
    assert text == (
        f"<|im_start|>system\nJudge.<|im_end|>\n<|im_start|>user\nFirst {image}then {image}answer <|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    with pytest.raises(TeacherError, match="no image processor"):
        backend(folder, {"max_patches": 2}, allow_remote_code=True)


# --- teachers --------------------------------------------------------------------------------------------------------


def teacher(name: str, *overrides: str) -> TeacherConfig:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        values = resolve(compose("annotate", ["corpus=demo", f"teacher={name}", *overrides]))
    return parse(TeacherConfig, values["teacher"])


def test_teachers_have_table_11s_settings() -> None:
    assert set(choices("teacher")) == {"internvl3", "sail_vl", "ola", "ovis2", "any"}
    found = {
        name: (made.checkpoint, made.dtype, made.batch_size, made.max_new_tokens.single, made.generation.do_sample)
        for name in ("internvl3", "sail_vl", "ola", "ovis2")
        for made in [teacher(name)]
    }
    assert found == {
        "internvl3": ("OpenGVLab/InternVL3-8B", "bfloat16", 8, 80, False),
        "sail_vl": ("BytedanceDouyinContent/SAIL-VL-1d6-8B", "bfloat16", 24, 128, True),
        "ola": ("THUdyh/Ola-7b", "bfloat16", 32, 128, False),
        "ovis2": ("AIDC-AI/Ovis2-8B", "bfloat16", 8, 128, False),
    }
    sail = teacher("sail_vl")
    assert sail.generation.model_dump() == {
        "do_sample": True,
        "temperature": 0.2,
        "top_p": 0.9,
        "repetition_penalty": 1.05,
    }
    assert sail.remote_code
    assert all(teacher(name).name == name for name in found)
    # Twelve rationales need more room than one.
    assert all(teacher(name).max_new_tokens.joint >= 12 * 128 for name in found)


def test_a_teacher_without_a_class_is_refused_with_how_to_serve_it() -> None:
    ola = teacher("ola")
    with pytest.raises(BCSError, match="backend=openai") as raised:
        TransformersBackend(ola.model, serve=ola.serve)
    assert str(ola.serve) in str(raised.value)


def test_any_model_has_to_be_named_and_greedy_has_no_temperature() -> None:
    with pytest.raises(ConfigError, match=r"teacher\.model="):
        teacher("any")
    assert teacher("any", "teacher.model=Qwen/some-VL").checkpoint is None
    with pytest.raises(ConfigError, match="temperature would be ignored without do_sample=true"):
        teacher("ovis2", "teacher.generation.temperature=0.5")
