"""``backend=openai``: any server that speaks OpenAI's chat completions (vLLM, SGLang, LMDeploy, transformers serve).

Calls run in threads; what is under way is bounded, whatever the number of pairs. A call that fails in
passing (429, 5xx, time-out, lost connection, torn answer) is repeated after a growing, jittered wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from bcs_lab.errors import ConfigError, ImageError, TeacherError
from bcs_lab.teachers.backends import Reply, Request
from bcs_lab.teachers.backends.payload import ImageCache, ImageForm

if TYPE_CHECKING:
    import requests

    from bcs_lab.config import BackendConfig, GenerationConfig

log = logging.getLogger(__name__)

#: Ways to constrain a reply, from the strictest; a server that refuses one is asked the next way.
FORMATS = ("json_schema", "json_object", "none")
#: Statuses that may be gone at the next try.
PASSING = frozenset({408, 409, 425, 429, *range(500, 600)})
#: Statuses with which servers refuse a field of the request.
REFUSING = frozenset({400, 415, 422, 501})
#: Longest wait between two tries, in seconds: grown by ourselves, and asked for by the server.
MAX_BACKOFF, MAX_RETRY_AFTER = 60.0, 600.0
CONNECT_S = 10.0
#: Longest body in bytes; twelve rationales take a few thousand.
MAX_REPLY = 4 * 2**20
#: Fields of a request that are ours to fill.
OURS = frozenset({"model", "messages", "response_format", "stream", "n", "max_tokens", "max_completion_tokens"})
_LOCAL = ("localhost", "127.0.0.1", "::1")

Auth = Callable[["requests.PreparedRequest"], "requests.PreparedRequest"]


class OpenAIBackend:
    """A model behind a server.

    Args:
        config: of the backend.
        model: its name at the server.
        generation: how it chooses its next token.
        max_new_tokens: longest reply.
        max_image_pixels: larger images are refused before they are decoded.
        seed: where the model samples, every request gets a seed made of this one, the pair, the prompt and the attempt.

    Raises:
        ConfigError: the address or the key cannot be used.
    """

    def __init__(
        self,
        config: BackendConfig,
        model: str,
        generation: GenerationConfig,
        *,
        max_new_tokens: int,
        max_image_pixels: int,
        seed: int = 0,
    ) -> None:
        self._url = check_base_url(config.base_url) + "/chat/completions"
        self._key = _key(config.api_key_env)
        if self._key and self._url.startswith("http://") and urlsplit(self._url).hostname not in _LOCAL:
            log.warning("the key of %s travels unencrypted to %s", config.api_key_env, self._url)
        stray = sorted({*OURS, "api_key", "authorization"} & {key.lower() for key in config.extra or {}})
        if stray:
            raise ConfigError(f"backend.extra: {', '.join(stray)} cannot be set here; expected other fields.")
        self._config, self._model, self._generation, self._seed = config, model, generation, seed
        self._images = ImageCache(
            ImageForm(config.max_image_side, config.image_format, config.jpeg_quality, max_image_pixels),
            most=2 * config.concurrency + 2,
        )
        self._settings: dict[str, Any] = {config.token_key: max_new_tokens}
        # Not left out for greedy models: servers take their own default then, which samples.
        self._settings["temperature"] = (generation.temperature or 1.0) if generation.do_sample else 0.0
        for key in ("top_p", "repetition_penalty"):
            if getattr(generation, key) is not None:
                self._settings[key] = getattr(generation, key)
        self._settings |= config.extra or {}
        self.identity: dict[str, Any] = {
            "backend": "openai",
            "model": model,
            "settings": self._settings | {"max_new_tokens": max_new_tokens},
            "sampling_seed": seed if generation.do_sample else None,
            "response_format": config.response_format,
            "images": {
                "max_side": config.max_image_side,
                "format": config.image_format,
                "quality": config.jpeg_quality if config.image_format == "jpeg" else None,
            },
        }
        self.identity["settings"].pop(config.token_key, None)
        self._auto = config.response_format == "auto"
        self._level = 0 if self._auto else FORMATS.index(config.response_format)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._local = threading.local()
        self._reached = False
        self._in_a_row = 0

    # --- the crew ----------------------------------------------------------------------------------------------------

    def answer(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Reply]]:
        """See :class:`bcs_lab.teachers.backends.Backend`.

        Raises:
            TeacherError: there is no server, it refuses the key or the model, or it has stopped answering.
        """
        if not self._reached:
            self._knock()
        tasks: SimpleQueue[Request | None] = SimpleQueue()
        results: SimpleQueue[tuple[Request, Reply] | Exception] = SimpleQueue()
        crew = [
            threading.Thread(target=self._work, args=(tasks, results), daemon=True, name=f"ask-{i}")
            for i in range(self._config.concurrency)
        ]
        for member in crew:
            member.start()
        source, under_way, more = iter(requests), 0, True
        try:
            while True:
                # Two more than can be called at once, so that nobody waits for the next request to be made.
                while more and under_way < self._config.concurrency + 2:
                    request = next(source, None)
                    if request is None:
                        more = False
                        break
                    tasks.put(request)
                    under_way += 1
                if not under_way:
                    return
                item = results.get()
                under_way -= 1
                if isinstance(item, Exception):
                    self._stop.set()
                    yield from _finished(results)
                    raise item
                yield item
                self._judge(item[1])
        finally:
            for _ in crew:
                tasks.put(None)

    def close(self) -> None:
        """Give up what is under way; threads end by themselves."""
        self._stop.set()

    def _work(
        self, tasks: SimpleQueue[Request | None], results: SimpleQueue[tuple[Request, Reply] | Exception]
    ) -> None:
        while (request := tasks.get()) is not None:
            if self._stop.is_set():
                return
            try:
                results.put((request, self._ask(request)))
            except Exception as error:
                results.put(error)

    def _judge(self, reply: Reply) -> None:
        """End the run when the server answers nobody any more, rather than fail for every pair in turn."""
        if reply.text is not None:
            self._reached, self._in_a_row = True, 0
        elif reply.calls:
            self._in_a_row += 1
            # A server that has answered before is right about requests that it refuses.
            if self._in_a_row >= self._config.give_up and (reply.retriable or not self._reached):
                raise TeacherError(
                    f"{self._url}: {self._in_a_row} calls in a row without any reply; the last: {reply.error}. Replies "
                    "so far are kept; see to the server and start the same command again."
                )

    def _knock(self) -> None:
        """Find out in a moment that there is no server."""
        parts = urlsplit(self._url)
        host = parts.hostname or ""
        if getproxies().get(parts.scheme) and not proxy_bypass(host):
            return
        try:
            with socket.create_connection((host, parts.port or {"http": 80, "https": 443}[parts.scheme]), CONNECT_S):
                return
        except OSError as error:
            raise TeacherError(
                f"backend.base_url={self._config.base_url}: no server answers there ({error.strerror or error}); start "
                "it, or correct the address."
            ) from None

    # --- one request -------------------------------------------------------------------------------------------------

    def _ask(self, request: Request) -> Reply:
        try:
            body = self._body(request)
        except (ImageError, OSError) as error:
            return Reply(None, error=str(error), calls=0, image_encodes=0)
        level, calls, refused = self._level, 0, ""
        while True:
            reply, status = self._call(body | _response_format(FORMATS[level], request.prompt.schema))
            calls += reply.calls
            if status in REFUSING and self._auto and level + 1 < len(FORMATS):
                # Only the server knows which field it minds: asked without this one, it may answer.
                refused = refused or str(reply.error)
                level += 1
                continue
            if reply.text is not None and level > self._level:
                self._remember(level, refused)
            details = {**reply.details, "response_format": FORMATS[level]}
            if "seed" in body:
                details["seed"] = body["seed"]
            return dataclasses.replace(reply, calls=calls, image_encodes=2 * calls, details=details)

    def _remember(self, level: int, refused: str) -> None:
        with self._lock:
            if level <= self._level:
                return
            log.warning(
                "%s: takes no response_format %s (%s); from now on: %s",
                self._url, FORMATS[self._level], refused, FORMATS[level],
            )  # fmt: skip
            self._level = level

    def _body(self, request: Request) -> dict[str, Any]:
        from bcs_lab.teachers.prompts import Slot

        files = {Slot.REFERENCE: request.reference, Slot.RECONSTRUCTION: request.reconstruction}
        content = [
            {"type": "image_url", "image_url": {"url": self._images.get(files[part])}}
            if isinstance(part, Slot)
            else {"type": "text", "text": part}
            for part in request.prompt.parts
        ]
        system = [{"role": "system", "content": request.prompt.system}] if request.prompt.system else []
        body: dict[str, Any] = {"model": self._model, "messages": [*system, {"role": "user", "content": content}]}
        if self._generation.do_sample:
            text = f"{self._seed}\0{request.pair_id}\0{request.prompt.digest}\0{request.attempt}"
            body["seed"] = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
        return body | self._settings

    def _call(self, body: dict[str, Any]) -> tuple[Reply, int | None]:
        """Ask until there is a reply, a refusal or no try left; returns the last status, ``None`` for none."""
        data = json.dumps(body).encode("ascii")
        reply, status = Reply(None, error="interrupted", calls=0, retriable=True), None
        for attempt in range(self._config.retries + 1):
            if self._stop.is_set():
                break
            started = time.monotonic()
            reply, status, wait = self._post(data)
            reply = dataclasses.replace(reply, calls=attempt + 1, latency_s=time.monotonic() - started)
            if not reply.retriable or attempt == self._config.retries:
                break
            grown = min(MAX_BACKOFF, self._config.backoff_s * 2**attempt)
            # Jittered, or all threads would come back at the same moment.
            self._stop.wait(grown * random.uniform(0.5, 1.0) if wait is None else wait + random.uniform(0, grown) / 4)
        return reply, status

    def _post(self, data: bytes) -> tuple[Reply, int | None, float | None]:
        """One call: the reply, its status, and how long the server wants to be left alone."""
        import requests

        try:
            response = self._session().post(
                self._url,
                data=data,
                headers={"Content-Type": "application/json", "Accept": "application/json"},
                timeout=(CONNECT_S, self._config.timeout_s),
                auth=self._authorise,
                allow_redirects=False,
                stream=True,
            )
            self._load(response)
        except requests.exceptions.SSLError as error:
            raise TeacherError(
                f"{self._url}: no secure connection ({self._clean(str(error))}); name the certificates to trust in "
                "REQUESTS_CA_BUNDLE, or correct backend.base_url."
            ) from None
        except requests.exceptions.Timeout:
            return Reply(None, error=f"no reply within {self._config.timeout_s:g} s", retriable=True), None, None
        except (requests.exceptions.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            return Reply(None, error=f"connection lost ({self._clean(str(error))})", retriable=True), None, None
        except requests.exceptions.ContentDecodingError as error:
            return Reply(None, error=f"damaged answer ({self._clean(str(error))})", retriable=True), None, None
        except (requests.exceptions.RequestException, ValueError) as error:
            raise TeacherError(f"{self._url}: cannot be called ({self._clean(str(error))})") from None
        except _TooLong:
            return Reply(None, error=f"a reply of more than {MAX_REPLY / 2**20:g} MiB"), None, None
        if response.status_code == 200:
            return self._read(response), 200, None
        return self._refusal(response), response.status_code, _retry_after(response.headers.get("Retry-After"))

    def _load(self, response: requests.Response) -> None:
        """Read the body, which may neither take longer than a call may nor grow without end."""
        import requests

        deadline = time.monotonic() + self._config.timeout_s
        parts, size = [], 0
        # As the bytes come: else a server that sends one now and then would hold the call for ever.
        for part in _arriving(response):
            parts.append(part)
            size += len(part)
            if size > MAX_REPLY:
                response.close()
                raise _TooLong
            if time.monotonic() > deadline:
                response.close()
                raise requests.exceptions.ReadTimeout
        response._content = b"".join(parts)

    def _read(self, response: requests.Response) -> Reply:
        try:
            value = response.json()
            choice = value["choices"][0]
            content = choice["message"].get("content")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            start = self._clean(response.text[:120])
            return Reply(None, error=f"expected a chat completion, found {start!r}", retriable=True)
        if isinstance(content, list):
            content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
        usage = value.get("usage") if isinstance(value.get("usage"), dict) else {}
        served = value.get("model")
        return Reply(
            # A model that says nothing has replied, too; what it said is not valid.
            text=content if isinstance(content, str) else "",
            finish=_text(choice.get("finish_reason")),
            prompt_tokens=_count(usage.get("prompt_tokens")),
            completion_tokens=_count(usage.get("completion_tokens")),
            details={"served_model": served} if isinstance(served, str) else {},
        )

    def _refusal(self, response: requests.Response) -> Reply:
        """An error reply, or the end of the run where no other request could fare better."""
        status, said = response.status_code, self._said(response)
        where = f"{self._url}: HTTP {status} ({said})"
        if status in (401, 403):
            name = self._config.api_key_env
            key = f"check the key in the environment variable {name}" if self._key else (
                f"set the environment variable {name}" if name else "name the key's environment variable in "
                "backend.api_key_env"
            )  # fmt: skip
            raise TeacherError(f"{where}: the server does not let us in; {key}.")
        if status == 402 or (status == 429 and "insufficient_quota" in response.text):
            raise TeacherError(f"{where}: the account has nothing left to spend.")
        if status in (404, 405) or 300 <= status < 400:
            raise TeacherError(
                f"{where}: no model {self._model!r}, or no chat completions at this address; check teacher.model, and "
                "backend.base_url, which usually ends in /v1."
            )
        if status == 413:
            said += "; backend.max_image_side=N sends smaller images"
        return Reply(None, error=f"HTTP {status} ({said})", retriable=status in PASSING)

    def _said(self, response: requests.Response) -> str:
        text = response.text
        with contextlib.suppress(ValueError, RecursionError):
            value = response.json()
            if isinstance(value, dict):
                error = value.get("error") or value.get("detail") or value.get("message") or value
                message = error.get("message") if isinstance(error, dict) else error
                text = message if isinstance(message, str) else json.dumps(error)
        return self._clean(text)

    def _clean(self, text: str) -> str:
        """On one line, short, and without the key, whoever repeated it."""
        if self._key:
            text = text.replace(self._key, "***")
        text = " ".join(text.split())
        return (text if len(text) <= 300 else f"{text[:299]}…") or "no words"

    def _session(self) -> requests.Session:
        import requests

        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
        session: requests.Session = self._local.session
        return session

    def _authorise(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        # Given as a callable even without a key: else requests would send what a .netrc holds for this host.
        if self._key:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request


class _TooLong(Exception):
    """A reply that no model of ours would give."""


def _arriving(response: requests.Response) -> Iterator[bytes]:
    """The decoded body in the pieces in which it comes; errors as those of ``requests``."""
    import requests
    import urllib3

    raw = response.raw
    try:
        while part := raw.read1(65536, decode_content=True):
            yield part
    except urllib3.exceptions.ReadTimeoutError as error:
        raise requests.exceptions.ReadTimeout(error) from None
    except urllib3.exceptions.DecodeError as error:
        raise requests.exceptions.ContentDecodingError(error) from None
    except urllib3.exceptions.HTTPError as error:
        raise requests.exceptions.ChunkedEncodingError(error) from None


def check_base_url(url: str | None) -> str:
    """The address without a final slash.

    Raises:
        ConfigError: it is no ``http(s)://HOST[:PORT][/PATH]``, or holds a password.
    """
    text = (url or "").strip().rstrip("/")
    expected = "expected http(s)://HOST[:PORT]/v1"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"backend.base_url: {expected}, but it cannot be read ({error}).") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            f"backend.base_url: {expected}, found a name or password before the host; put the key into an environment "
            "variable and name that in backend.api_key_env."
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or re.search(r"\s", text):
        raise ConfigError(f"backend.base_url: {expected}, got {url!r}.")
    if parts.query or parts.fragment:
        raise ConfigError(f"backend.base_url: {expected} without ? and #, got {url!r}.")
    if parts.path.endswith("/chat/completions"):
        raise ConfigError(f"backend.base_url: expected the part before /chat/completions, got {url!r}.")
    return text


def _key(variable: str | None) -> str | None:
    if not variable:
        return None
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        # Not shown: it may be the key itself.
        raise ConfigError("backend.api_key_env: expected the name of an environment variable, found something else.")
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable() and not re.search(r"\s", key)):
        raise ConfigError(f"the environment variable {variable} holds characters that no key has; set it again.")
    return key or None


def _finished(results: SimpleQueue[tuple[Request, Reply] | Exception]) -> Iterator[tuple[Request, Reply]]:
    """What others have got in the meantime."""
    while True:
        try:
            item = results.get_nowait()
        except Empty:
            return
        if not isinstance(item, Exception):
            yield item


def _response_format(name: str, schema: Any) -> dict[str, Any]:
    if name == "json_schema":
        form = {"type": name, "json_schema": {"name": "answers", "strict": True, "schema": schema}}
        return {"response_format": form}
    return {"response_format": {"type": name}} if name == "json_object" else {}


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait, from a number of seconds or a date; ``None`` where there is neither."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            until = parsedate_to_datetime(value)
        except (TypeError, ValueError):
            return None
        seconds = (until.replace(tzinfo=until.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), MAX_RETRY_AFTER) if seconds == seconds else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
