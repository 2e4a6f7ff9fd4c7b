"""A server of chat completions that says what it is told to: right answers, faults, and nothing at all."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LABELS = ("no", "somewhat", "yes")


@dataclass(frozen=True)
class Call:
    """One request as it came in."""

    number: int
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def content(self) -> list[dict[str, Any]]:
        """Parts of the user turn."""
        parts: list[dict[str, Any]] = self.body["messages"][-1]["content"]
        return parts

    @property
    def images(self) -> list[bytes]:
        """The images, decoded from their data URIs, in order."""
        uris = [part["image_url"]["url"] for part in self.content if part["type"] == "image_url"]
        return [base64.b64decode(uri.partition("base64,")[2]) for uri in uris]

    @property
    def key(self) -> str:
        """Digest of the two images."""
        return hashlib.sha256(b"".join(self.images)).hexdigest()

    @property
    def questions(self) -> list[str]:
        """Ids that the schema of the reply names."""
        schema = self.body["response_format"]["json_schema"]["schema"]
        return list(schema["properties"])


@dataclass(frozen=True)
class Say:
    """What is done with a call.

    Attributes:
        text: content of the reply.
        status: of HTTP; any other than 200 sends ``text`` as the error's message.
        headers: beside the usual ones.
        wait_s: before anything is sent.
        fault: ``drop`` closes the connection unanswered, ``torn`` in the middle of the answer, ``garbage`` sends HTML,
            ``deep`` JSON nested beyond reading, ``long`` megabytes, ``drip`` a byte now and then.
        finish: why the model stopped.
    """

    text: Any = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    fault: str = ""
    finish: str = "stop"


def answers(key: str, questions: list[str]) -> dict[str, dict[str, str]]:
    """The same answers each time the same two images are shown."""
    return {
        question: {
            "rationale": f"seen in {key[:6]}",
            "answer": LABELS[hashlib.sha256(f"{key}{question}".encode()).digest()[0] % 3],
        }
        for question in questions
    }


def good(call: Call) -> Say:
    return Say(json.dumps(answers(call.key, call.questions)))


class ChatServer:
    """Serves until it is closed; ``calls`` holds what came in."""

    def __init__(self, reply: Callable[[Call], Say] = good, *, keep: bool = True, port: int = 0) -> None:
        self.reply, self.keep = reply, keep
        self.calls: list[Call] = []
        self.count = self.busy = self.most_busy = 0
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                outer._serve(self)

            def log_message(self, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that was killed, or has waited long enough

        self._server = Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            call = Call(self.count, handler.path, dict(handler.headers), body)
            self.count += 1
            self.busy += 1
            self.most_busy = max(self.most_busy, self.busy)
            if self.keep:
                self.calls.append(call)
        try:
            say = self.reply(call)
            time.sleep(say.wait_s)
        finally:
            with self._lock:
                self.busy -= 1
        self._send(handler, call, say)

    def _send(self, handler: BaseHTTPRequestHandler, call: Call, say: Say) -> None:
        if say.fault == "drop":
            handler.close_connection = True
            return
        data = json.dumps(self._value(call, say)).encode()
        faults = {"garbage": b"<html>Bad gateway</html>", "deep": b"[" * 200_000, "long": b" " * 5 * 2**20}
        data = faults.get(say.fault, data)
        handler.send_response(say.status)
        for name, value in {"Content-Type": "application/json", **say.headers}.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        if say.fault == "torn":
            data = data[: len(data) // 2]
            handler.close_connection = True
        if say.fault == "drip":
            for position in range(len(data)):
                handler.wfile.write(data[position : position + 1])
                time.sleep(0.1)
            return
        handler.wfile.write(data)

    def _value(self, call: Call, say: Say) -> dict[str, Any]:
        if say.status != 200:
            return {"error": {"message": say.text, "type": "scripted"}}
        return {
            "id": f"call-{call.number}",
            "model": call.body["model"],
            "choices": [
                {"index": 0, "finish_reason": say.finish, "message": {"role": "assistant", "content": say.text}}
            ],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }


@contextlib.contextmanager
def serving(reply: Callable[[Call], Say] = good, **options: Any) -> Iterator[ChatServer]:
    server = ChatServer(reply, **options)
    try:
        yield server
    finally:
        server.close()
