"""Where models are found, and the way to the hub and back, with the real client against a small hub of our own."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import make_data, make_embeddings

from bcs_lab.conformal import Conformal
from bcs_lab.ensemble import Ensemble
from bcs_lab.errors import ConfigError, ModelError
from bcs_lab.familiarity import SIDES, Familiarity
from bcs_lab.fit import train_ensemble
from bcs_lab.model_files import CARD, FAMILIARITY, MANIFEST
from bcs_lab.models import portable, push_model, resolve_model
from bcs_lab.teachers.protocol import BCS12

HEAD = {"name": "continuous", "hidden": 8}


@pytest.fixture(scope="module")
def ensemble() -> Ensemble:
    data, embeddings, targets, split = make_data()
    images = make_embeddings()
    return Ensemble.from_members(
        train_ensemble(data, HEAD, {"lr": 1e-2}, {"max_epochs": 2}, [7, 13]),
        head=HEAD, embeddings=embeddings, protocol=BCS12, teachers=("a", "b"), weight_scheme="variance", split=split,
        targets=targets, simulated_teachers=True, options={"made0": {"pooling": "cls", "source": "/home/me/weights"}},
        conformal=Conformal({"t_pas": [[0.1, 0.2]] * 12, "t_sas": [[0.3]] * 12}),
        familiarity=Familiarity.fit(
            {side: [part.images[getattr(part, side)] for part in images] for side in SIDES},
            {side: np.array([f"c{i % 7}" for i in range(60)]) for side in SIDES},
        ),
        provenance={"corpus": "made", "pairs": 60, "concepts": 20, "counts": {"train": 42, "val": 9, "test": 9},
                    "held_out_coverage": {"t_pas": 0.875, "t_sas": None}, "bcs_lab": "0.1.0", "created": "2026-01-01"},
        metrics={"ensemble": {"pas_r": 0.5}, "ci95": {}},
    )  # fmt: skip


@pytest.fixture
def folder(ensemble: Ensemble, tmp_path: Path) -> Path:
    return ensemble.save(tmp_path / "run" / "ensemble")


# --- folders ---


def test_what_is_saved_comes_back(ensemble: Ensemble, folder: Path) -> None:
    loaded = Ensemble.load(folder)
    assert loaded.conformal == ensemble.conformal
    assert loaded.provenance == ensemble.provenance
    assert loaded.digest == ensemble.digest != ""
    assert loaded.encoders[0]["options"] == {"pooling": "cls", "source": "/home/me/weights"}
    assert loaded.familiarity is not None
    assert ensemble.familiarity is not None
    assert loaded.familiarity.thresholds == ensemble.familiarity.thresholds
    for side in SIDES:
        for a, b in zip(loaded.familiarity.kept[side], ensemble.familiarity.kept[side], strict=True):
            np.testing.assert_array_equal(a, b)


def test_card_says_what_the_model_is(folder: Path) -> None:
    card = (folder / CARD).read_text()
    for text in ("SIMULATED TEACHERS", "T-PAS ± 0.20", "T-SAS ± 0.30", "T-PAS 88%", "60 pairs of 20 concepts", "0.500"):
        assert text in card
    assert "/home/me" not in card
    assert card.startswith("---\nlibrary_name: bcs_lab\n")


@pytest.mark.parametrize("name", [MANIFEST, "member-7.safetensors", FAMILIARITY])
def test_missing_and_altered_files_are_named(folder: Path, name: str) -> None:
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(ModelError, match=re.escape(name)):
        Ensemble.load(folder)
    # one character of a number, or one bit of a tensor
    changed = content.replace(b"0.875", b"0.885") if name == MANIFEST else content[:-1] + bytes([content[-1] ^ 1])
    assert changed != content
    path.write_bytes(changed)
    with pytest.raises(ModelError, match=rf"{re.escape(name)}: (altered|damaged)"):
        Ensemble.load(folder)
    path.write_bytes(content)
    Ensemble.load(folder)


def test_folders_and_runs_are_found(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(folder) == folder
    assert resolve_model(folder.parent) == folder
    assert resolve_model(folder / MANIFEST) == folder
    monkeypatch.chdir(tmp_path)
    assert resolve_model("run").resolve() == folder
    with pytest.raises(ModelError, match="no such folder"):
        resolve_model("gone")
    with pytest.raises(ModelError, match="hf:user/model"):
        resolve_model("user/model")
    with pytest.raises(ModelError, match="holds neither"):
        resolve_model(tmp_path)
    with pytest.raises(ConfigError, match="not the name of a hub repository"):
        resolve_model("hf:a/b/c")
    with pytest.raises(ConfigError, match="not the name of a hub repository"):
        push_model(folder, "no spaces please")


def test_portable_forgets_where_weights_lay(ensemble: Ensemble) -> None:
    assert portable(ensemble).encoders[0]["options"] == {"pooling": "cls"}
    assert ensemble.encoders[0]["options"]["source"]


# --- a small hub ---


class Hub(ThreadingHTTPServer):
    """Repositories in memory, as much of the hub's protocol as a push and a download need."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.refuse = False

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def commit(self, repo: str) -> str:
        files = self.repos[repo]
        return hashlib.sha1(b"".join(name.encode() + files[name] for name in sorted(files))).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: Any = b"", **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.split("?")[0]
        if path == "/api/validate-yaml":
            return self.answer(200, {"errors": [], "warnings": []})
        if self.server.refuse:
            return self.answer(403, {"error": "You may not write here"})
        if path == "/api/repos/create":
            given = json.loads(body)
            repo = "/".join(part for part in (given.get("organization"), given["name"]) if part)
            self.server.repos.setdefault(repo, {})
            return self.answer(200, {"url": f"{self.server.address}/{repo}", "name": repo, "id": repo})
        repo = "/".join(path.split("/")[3:5])
        files = self.server.repos[repo]
        if "/preupload/" in path:
            asked = [{"path": item["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                     for item in json.loads(body)["files"]]  # fmt: skip
            return self.answer(200, {"files": asked})
        for line in body.splitlines():
            item = json.loads(line)
            if item["key"] == "file":
                files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
            elif item["key"] == "deletedFile":
                files.pop(item["value"]["path"], None)
        oid = self.server.commit(repo)
        return self.answer(200, {"success": True, "commitOid": oid, "commitUrl": f"{self.server.address}/{repo}",
                                 "hookOutput": ""})  # fmt: skip

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        match = re.match(r"/api/models/([^/]+/[^/]+)(/.*)?$", path)
        if match:
            repo = match.group(1)
            if repo not in self.server.repos:
                return self.answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            files = self.server.repos[repo]
            if "/tree/" in path:
                listed = [{"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                          for name, content in files.items()]  # fmt: skip
                return self.answer(200, listed)
            oid = self.server.commit(repo)
            siblings = [{"rfilename": name} for name in files]
            return self.answer(
                200, {"_id": "1", "id": repo, "modelId": repo, "sha": oid, "siblings": siblings, "private": True}
            )
        match = re.match(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)$", path)
        if not match or match.group(1) not in self.server.repos:
            return self.answer(404, b"", X_Error_Code="RepoNotFound")
        files = self.server.repos[match.group(1)]
        if match.group(2) not in files:
            return self.answer(404, b"", X_Error_Code="EntryNotFound")
        content = files[match.group(2)]
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        return self.answer(200, content, ETag=etag, X_Repo_Commit=self.server.commit(match.group(1)))

    do_HEAD = do_GET


@pytest.fixture
def hub() -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def bcs(code: str, endpoint: str, cache: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A new process, since the hub's client reads its settings when it is imported."""
    env = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(cache),
        "HF_TOKEN": "hf_test",
        "HF_HUB_DISABLE_XET": "1",
    }
    env.pop("HF_HUB_OFFLINE", None)
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, timeout=120, check=False
    )


MAIN = "import sys; from bcs_lab.cli import main; sys.exit(main())"
LOAD = """
import sys
from bcs_lab.ensemble import Ensemble
from bcs_lab.models import resolve_model
print(Ensemble.load(resolve_model(sys.argv[1])).digest)
"""


def test_push_and_load_again(hub: Hub, folder: Path, ensemble: Ensemble, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    hub.repos["me/scorer"] = {"member-99.safetensors": b"old", "notes.md": b"mine"}
    pushed = bcs(MAIN, hub.address, cache, "push", f"model={folder.parent}", "repo=me/scorer")
    assert pushed.returncode == 0, pushed.stderr
    assert "bcs score model=hf:me/scorer" in pushed.stdout
    files = hub.repos["me/scorer"]
    assert set(files) == {MANIFEST, "member-7.safetensors", "member-13.safetensors", FAMILIARITY, CARD, "notes.md"}
    assert b"/home/me" not in files[MANIFEST]
    assert b"model=hf:me/scorer" in files[CARD]

    loaded = bcs(LOAD, hub.address, cache, "hf:me/scorer")
    assert loaded.returncode == 0, loaded.stderr
    again = bcs(LOAD, "http://127.0.0.1:9", cache, "hf:me/scorer")  # nobody answers there
    assert again.stdout == loaded.stdout
    assert "local cache is used" in again.stderr


def test_hub_refuses_or_does_not_know(hub: Hub, folder: Path, tmp_path: Path) -> None:
    hub.refuse = True
    pushed = bcs(MAIN, hub.address, tmp_path, "push", f"model={folder}", "repo=other/scorer")
    assert pushed.returncode == 2
    assert "the hub did not take the model" in pushed.stderr
    assert "Traceback" not in pushed.stderr
    loaded = bcs(MAIN, hub.address, tmp_path, "score", "model=hf:no/body", "reference=a.png", "reconstruction=b.png")
    assert loaded.returncode == 2
    assert "model=hf:no/body: cannot be had from the hub" in loaded.stderr
    assert "Traceback" not in loaded.stderr


def test_push_says_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    from bcs_lab.cli import main

    for arguments, message in (
        (["model=x"], "needs repo=…"),
        (["model=x", "repo=a/b", "private=maybe"], "expected true or false"),
        (["x"], "unexpected 'x'"),
        (["model=gone", "repo=a/b"], "no such folder"),
    ):
        assert main(["push", *arguments]) == 2
        assert message in capsys.readouterr().err
