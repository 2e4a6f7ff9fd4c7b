"""What the openai backend sends, and what it makes of every way in which a server can answer or not."""

from __future__ import annotations

import base64
import io
import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import Call, Say, answers, good, serving
from PIL import Image

from bcs_lab.config import BackendConfig, GenerationConfig
from bcs_lab.corpus import load_image
from bcs_lab.errors import ConfigError, TeacherError
from bcs_lab.teachers import parse_response
from bcs_lab.teachers.backends import Reply, Request
from bcs_lab.teachers.backends.openai import OpenAIBackend, _retry_after, check_base_url
from bcs_lab.teachers.backends.payload import ImageCache, ImageForm, data_uri
from bcs_lab.teachers.prompts import Slot, build_prompts
from bcs_lab.teachers.protocol import BCS12

(JOINT,) = build_prompts(BCS12, "joint")
SINGLE = build_prompts(BCS12, "single")


def backend(url: str, generation: dict[str, Any] | None = None, **settings: Any) -> OpenAIBackend:
    config = BackendConfig(name="openai", base_url=url, **{"backoff_s": 0.005, "timeout_s": 5.0, **settings})
    return OpenAIBackend(
        config, "tiny", GenerationConfig(**generation or {}), max_new_tokens=77, max_image_pixels=10**7, seed=5
    )


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    paths = []
    for i in range(8):
        pixels = np.random.default_rng(i).integers(0, 255, (20 + i, 30, 3), dtype=np.uint8)
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(pixels).save(paths[-1])
    return paths


def requests(images: list[Path], n: int = 1, prompt: Any = JOINT, **more: Any) -> list[Request]:
    return [Request(f"p{i}", prompt, images[i % 4], images[4 + i % 4], **more) for i in range(n)]


def ask(client: OpenAIBackend, wanted: list[Request]) -> list[Reply]:
    """Replies in the order of the requests."""
    found = {id(request): reply for request, reply in client.answer(wanted)}
    return [found[id(request)] for request in wanted]


# --- what is sent --------------------------------------------------------------------------------------------------


def test_request(images: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with serving() as server:
        client = backend(server.url, api_key_env="MY_KEY", extra={"top_k": 1})
        (reply,) = ask(client, requests(images))
    (call,) = server.calls
    assert call.path == "/v1/chat/completions"
    assert call.headers["Authorization"] == "Bearer sk-secret"
    assert call.images == [images[0].read_bytes(), images[4].read_bytes()]  # the files themselves
    assert call.body["messages"][0] == {"role": "system", "content": BCS12.system}
    texts = iter([part["text"] for part in call.content if part["type"] == "text"])
    rebuilt = [next(texts) if not isinstance(part, Slot) else part for part in JOINT.parts]
    assert rebuilt == list(JOINT.parts)
    kinds = [part["type"] for part in call.content]
    assert kinds == ["image_url" if isinstance(part, Slot) else "text" for part in JOINT.parts]
    form = call.body["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["schema"] == JOINT.schema
    rest = {key: value for key, value in call.body.items() if key not in ("messages", "response_format")}
    assert rest == {"model": "tiny", "max_tokens": 77, "temperature": 0.0, "top_k": 1}
    assert parse_response(reply.text, BCS12).valid
    assert (reply.finish, reply.prompt_tokens, reply.completion_tokens) == ("stop", 100, 10)
    assert (reply.calls, reply.image_encodes) == (1, 2)
    assert reply.details == {"served_model": "tiny", "response_format": "json_schema"}
    assert "secret" not in repr(client.identity)


def test_without_a_key_none_is_sent(images: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hidden\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with serving() as server:
        for variable in ("OPENAI_API_KEY", None):
            ask(backend(server.url, api_key_env=variable), requests(images))
    assert not any("Authorization" in call.headers for call in server.calls)


def test_sampling_is_seeded_by_pair_prompt_and_attempt(images: list[Path]) -> None:
    generation = {"do_sample": True, "temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.05}
    with serving() as server:
        for _ in range(2):
            client = backend(server.url, generation, token_key="max_completion_tokens", concurrency=1)
            ask(client, [*requests(images, 2), *requests(images, 1, attempt=2), *requests(images, 1, SINGLE[3])])
    seeds = [call.body["seed"] for call in server.calls]
    assert len(set(seeds[:4])) == 4
    assert seeds[:4] == seeds[4:]
    body = server.calls[0].body
    assert (body["temperature"], body["top_p"], body["repetition_penalty"]) == (0.2, 0.9, 1.05)
    assert body["max_completion_tokens"] == 77
    assert "max_tokens" not in body
    assert client.identity["sampling_seed"] == 5


def decoded(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition("base64,")[2])))


def test_images_that_other_decoders_would_read_otherwise_are_encoded_anew(tmp_path: Path) -> None:
    form = ImageForm(None, "auto", 95, 10**7)
    pixels = np.random.default_rng(0).integers(0, 255, (12, 16, 4), dtype=np.uint8)
    Image.fromarray(pixels, "RGBA").save(tmp_path / "alpha.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels[..., :3]).save(tmp_path / "turned.jpg", exif=exif, quality=95)
    Image.fromarray(pixels[..., :3]).save(tmp_path / "plain.bmp")
    Image.fromarray(pixels[..., 0].astype(np.uint16) << 8).save(tmp_path / "deep.png")
    for name in ("alpha.png", "turned.jpg", "plain.bmp", "deep.png"):
        uri = data_uri(tmp_path / name, form)
        assert uri.startswith("data:image/png;base64,")
        assert decoded(uri).mode == "RGB"
        np.testing.assert_array_equal(np.asarray(decoded(uri)), np.asarray(load_image(tmp_path / name)))
    Image.fromarray(pixels[..., :3]).save(tmp_path / "plain.jpg", quality=80)
    assert data_uri(tmp_path / "plain.jpg", form).startswith("data:image/jpeg;base64,")


def test_size_cap_and_formats(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (90, 300, 3), dtype=np.uint8)).save(path)
    assert decoded(data_uri(path, ImageForm(100, "auto", 95, 10**7))).size == (100, 30)
    assert decoded(data_uri(path, ImageForm(300, "auto", 95, 10**7))).size == (300, 90)
    jpeg = decoded(data_uri(path, ImageForm(None, "jpeg", 90, 10**7)))
    assert (jpeg.format, jpeg.size) == ("JPEG", (300, 90))
    cache = ImageCache(ImageForm(None, "auto", 95, 10**7), most=2)
    copies = [path.with_name(f"{i}.png") for i in range(4)]
    for copy in copies:
        copy.write_bytes(path.read_bytes())
    for copy in (*copies, *copies):
        assert cache.get(copy) == data_uri(path, ImageForm(None, "auto", 95, 10**7))
    assert list(cache._kept) == copies[2:]


# --- faults --------------------------------------------------------------------------------------------------------

FAULTS = {
    "429": Say("slow down", 429),
    "500": Say("oops", 500),
    "503": Say("loading", 503),
    "drop": Say(fault="drop"),
    "torn": Say("x" * 500, fault="torn"),
    "garbage": Say(fault="garbage"),
}


def test_a_reply_that_trickles_in_ends_by_the_time_out(images: list[Path]) -> None:
    with serving(lambda call: Say(fault="drip")) as server:
        started = time.monotonic()
        (reply,) = ask(backend(server.url, timeout_s=0.5, retries=0), requests(images))
    assert time.monotonic() - started < 5
    assert reply.text is None
    assert reply.retriable
    assert "no reply within 0.5 s" in str(reply.error)


@pytest.mark.parametrize(("fault", "words"), [("deep", "expected a chat completion"), ("long", "more than 4 MiB")])
def test_a_reply_that_cannot_be_read_costs_one_pair(fault: str, words: str, images: list[Path]) -> None:
    with serving(lambda call: Say(fault=fault) if call.number == 0 else good(call)) as server:
        replies = ask(backend(server.url, retries=0, concurrency=1), requests(images, 2))
    assert words in str(replies[0].error)
    assert replies[1].text


@pytest.mark.parametrize("fault", FAULTS)
def test_passing_faults_are_got_over(fault: str, images: list[Path]) -> None:
    def reply(call: Call) -> Say:
        return FAULTS[fault] if call.number < 2 else good(call)

    with serving(reply) as server:
        (found,) = ask(backend(server.url), requests(images))
    assert found.text is not None
    assert parse_response(found.text, BCS12).valid
    assert (found.calls, found.image_encodes) == (3, 6)
    assert len({call.key for call in server.calls}) == 1


def test_hang_ups_end_by_the_time_out(images: list[Path]) -> None:
    def reply(call: Call) -> Say:
        return Say(wait_s=1.5, fault="drop") if call.number < 1 else good(call)

    with serving(reply) as server:
        started = time.monotonic()
        (found,) = ask(backend(server.url, timeout_s=0.2), requests(images))
    assert found.text is not None
    assert time.monotonic() - started < 1.4


@pytest.mark.parametrize("fault", ["500", "drop"])
def test_tries_have_an_end(fault: str, images: list[Path]) -> None:
    with serving(lambda call: FAULTS[fault]) as server:
        (found,) = ask(backend(server.url, retries=2), requests(images))
    assert found.text is None
    assert found.retriable
    assert found.calls == 3 == server.count
    assert found.error


def test_retry_after_is_honoured(images: list[Path]) -> None:
    def reply(call: Call) -> Say:
        return Say("later", 429, {"Retry-After": "0.4"}) if call.number == 0 else good(call)

    with serving(reply) as server:
        started = time.monotonic()
        ask(backend(server.url), requests(images))
        assert time.monotonic() - started >= 0.4
    assert _retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert _retry_after("1e9") == 600.0
    assert _retry_after("soon") is None
    assert _retry_after(None) is None


def test_waits_grow_and_are_jittered(images: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    with serving(lambda call: FAULTS["500"]) as server:
        client = backend(server.url, backoff_s=1.0, retries=7)
        monkeypatch.setattr(client._stop, "wait", lambda seconds: waits.append(seconds))
        ask(client, requests(images))
    limits = [min(60.0, 2.0**k) for k in range(7)]
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(waits, limits, strict=True))
    assert len(set(waits)) == 7


def test_a_refused_request_is_not_repeated(images: list[Path]) -> None:
    with serving(lambda call: Say("the prompt is too long", 400)) as server:
        (found,) = ask(backend(server.url, response_format="none"), requests(images))
    assert server.count == 1
    assert found.error == "HTTP 400 (the prompt is too long)"
    assert not found.retriable


def test_response_format_falls_back_once_and_for_all(images: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    def reply(call: Call) -> Say:
        form = call.body.get("response_format", {}).get("type", "none")
        if form != "none":
            return Say(f"{form} is not supported", 400)
        return Say(json.dumps(answers(call.key, list(BCS12.ids))))

    with serving(reply) as server, caplog.at_level(logging.WARNING):
        client = backend(server.url, concurrency=1)
        found = ask(client, requests(images, 5))
    forms = [call.body.get("response_format", {}).get("type", "none") for call in server.calls]
    assert forms == ["json_schema", "json_object", "none", "none", "none", "none", "none"]
    assert [reply.calls for reply in found] == [3, 1, 1, 1, 1]
    assert {reply.details["response_format"] for reply in found} == {"none"}
    assert [record for record in caplog.records if "takes no response_format" in record.message] != []
    assert sum("takes no response_format" in record.message for record in caplog.records) == 1


def test_a_request_refused_in_every_form_changes_nothing_for_others(images: list[Path]) -> None:
    bad = images[4].read_bytes()

    def reply(call: Call) -> Say:
        return Say("cannot read this image", 400) if call.images[1] == bad else good(call)

    with serving(reply) as server:
        found = ask(backend(server.url, concurrency=1), requests(images, 3))
    assert [reply.text is None for reply in found] == [True, False, False]
    assert found[1].details["response_format"] == "json_schema"


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        (401, "who are you, sk-secret?", "MY_KEY"),
        (403, "not for you", "MY_KEY"),
        (404, "no model tiny", "teacher.model"),
        (402, "pay first", "nothing left to spend"),
        (429, "insufficient_quota", "nothing left to spend"),
        (307, "elsewhere", "backend.base_url"),
    ],
)
def test_what_no_pair_can_get_over_ends_the_run(
    status: int, text: str, message: str, images: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with serving(lambda call: Say(text, status)) as server:
        with pytest.raises(TeacherError, match=message) as caught:
            ask(backend(server.url, api_key_env="MY_KEY", concurrency=1), requests(images, 6))
        assert server.count <= 3
    assert "sk-secret" not in str(caught.value)


def test_no_server(images: list[Path]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    with pytest.raises(TeacherError, match="no server answers there"):
        ask(backend(f"http://127.0.0.1:{port}/v1"), requests(images, 3))
    assert time.monotonic() - started < 2


def test_a_server_that_stops_answering_ends_the_run(images: list[Path]) -> None:
    def reply(call: Call) -> Say:
        return good(call) if call.number < 6 else FAULTS["drop"]

    found: list[Reply] = []
    with serving(reply) as server:
        stream = backend(server.url, concurrency=1, retries=0, give_up=4).answer(requests(images, 1000))
        with pytest.raises(TeacherError, match="4 calls in a row without any reply"):
            found.extend(reply for _, reply in stream)
    assert sum(reply.text is not None for reply in found) == 6
    assert len(found) == 10


def test_single_failures_do_not_end_the_run(images: list[Path]) -> None:
    def reply(call: Call) -> Say:
        return good(call) if call.number % 3 == 0 else FAULTS["500"]

    with serving(reply) as server:
        found = ask(backend(server.url, concurrency=1, retries=0, give_up=4), requests(images, 60))
    assert sum(reply.text is None for reply in found) == 40


# --- the crew ------------------------------------------------------------------------------------------------------


def test_calls_at_once_and_work_ahead_are_bounded(images: list[Path]) -> None:
    taken, answered, ahead = 0, 0, 0

    def source() -> Iterator[Request]:
        nonlocal taken, ahead
        for request in requests(images, 60):
            taken += 1
            ahead = max(ahead, taken - answered)
            yield request

    def reply(call: Call) -> Say:
        return Say(good(call).text, wait_s=0.01)

    with serving(reply) as server:
        for _ in backend(server.url, concurrency=4).answer(source()):
            answered += 1
    assert answered == 60
    assert 2 <= server.most_busy <= 4
    assert ahead <= 6


def test_a_broken_image_costs_nobody_else_a_reply(images: list[Path]) -> None:
    images[5].write_bytes(images[5].read_bytes()[:300])
    with serving() as server:
        found = ask(backend(server.url), requests(images, 4))
    assert [reply.text is None for reply in found] == [False, True, False, False]
    assert "5.png" in str(found[1].error)
    assert (found[1].calls, found[1].retriable) == (0, False)
    assert server.count == 3


def test_threads_end_with_the_work(images: list[Path]) -> None:
    with serving() as server:
        client = backend(server.url, concurrency=3)
        ask(client, requests(images, 4))
        stream = client.answer(requests(images, 50))
        next(stream)
        stream.close()
        client.close()
        deadline = time.monotonic() + 5
        while any(thread.name.startswith("ask-") for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        (None, ""),
        ("", ""),
        ("x\ud800", "x\ud800"),
    ],
)
def test_what_counts_as_the_reply(content: Any, text: str, images: list[Path]) -> None:
    with serving(lambda call: Say(content, finish="length")) as server:
        (found,) = ask(backend(server.url), requests(images))
    assert (found.text, found.finish, found.error) == (text, "length", None)


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1:8000/v1", "ftp://x/v1", "http://", "http://x:99999/v1", "http://x:0/v1", "http://x/v1?a=1",
     "http://x y/v1", "http://x/v1/chat/completions", "http://me:sk-secret@x/v1"],
)  # fmt: skip
def test_bad_addresses(url: str) -> None:
    with pytest.raises(ConfigError, match=r"backend\.base_url") as caught:
        check_base_url(url)
    assert "secret" not in str(caught.value)


def test_good_addresses() -> None:
    assert check_base_url("http://127.0.0.1:8000/v1/") == "http://127.0.0.1:8000/v1"
    assert check_base_url("https://[::1]:80") == "https://[::1]:80"


def test_keys_are_never_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"backend\.api_key_env") as caught:
        backend("http://x/v1", api_key_env="sk-abc-123")
    assert "abc" not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "sk-a\nb")
    with pytest.raises(ConfigError, match="MY_KEY") as caught:
        backend("http://x/v1", api_key_env="MY_KEY")
    assert "sk-a" not in str(caught.value)
    for extra in ({"api_key": "x"}, {"messages": []}, {"Authorization": "x"}):
        with pytest.raises(ConfigError, match=r"backend\.extra"):
            backend("http://x/v1", extra=extra)
