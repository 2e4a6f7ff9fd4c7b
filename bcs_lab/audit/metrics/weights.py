"""Weights that a library keeps on its own server: from a file that is named, torch's cache, or that server.

Nothing waits for a dead network, and a file is only ever read as tensors, never unpickled into objects.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from bcs_lab.audit.metrics.base import MetricSpec, MetricUnavailable
from bcs_lab.encoders.hub import HUB_TIMEOUT

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


def torch_file(spec: MetricSpec, url: str, source: str | Path | None = None) -> Path:
    """A weight file of torch hub.

    Args:
        spec: the metric, for messages.
        url: where the library keeps it; its last part is its name in the cache.
        source: a local copy; ``None`` looks in the cache, then asks the server.

    Raises:
        MetricUnavailable: it cannot be had; says what was tried.
    """
    import torch

    if source is not None:
        path = Path(source).expanduser()
        if not path.is_file():
            raise MetricUnavailable(f"{spec.title}: expected a weight file at {path} (option source), found none.")
        return path
    name = Path(urlparse(url).path).name
    cached = Path(torch.hub.get_dir()) / "checkpoints" / name
    if cached.is_file():
        return cached
    reason = _fetch(url, cached)
    if reason is None:
        return cached
    raise MetricUnavailable(
        f"{spec.title}: its weights ({name}) cannot be had. Tried: torch's cache ({cached.parent}): not there; {url}: "
        f"{reason}. Ways out: download that file on a machine with a network and put it into the cache (TORCH_HOME), "
        f"or name a local copy with the option source of metric {spec.name}."
    )


def _fetch(url: str, target: Path) -> str | None:
    """Download a file, or say why not."""
    if os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in ("1", "true", "yes", "on"):
        return "not asked, since HF_HUB_OFFLINE is set"
    import requests
    import torch

    try:
        # One short question first, so that a dead network costs seconds.
        requests.head(url, timeout=HUB_TIMEOUT, allow_redirects=True).raise_for_status()
        target.parent.mkdir(parents=True, exist_ok=True)
        log.info("downloading %s", url)
        # torchvision's names end in the first digits of the file's SHA-256, which is checked.
        prefix = target.stem.rpartition("-")[2]
        hashed = len(prefix) == 8 and all(c in "0123456789abcdef" for c in prefix)
        torch.hub.download_url_to_file(url, str(target), hash_prefix=prefix if hashed else None, progress=False)
    except (requests.ConnectionError, requests.Timeout):
        return f"no connection to {urlparse(url).hostname} within {HUB_TIMEOUT:g} s"
    except Exception as error:  # whatever the client raises, the user needs the same answer
        text = " ".join(str(error).split()) or type(error).__name__
        return text if len(text) <= 200 else text[:200] + "…"
    return None


def read_tensors(spec: MetricSpec, path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a weight file by name; one level of nesting (``state_dict``, ``params``) is taken off.

    Raises:
        MetricUnavailable: it is no file of tensors.
    """
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise almost anything
        raise MetricUnavailable(
            f"{spec.title}: {path} cannot be read as tensors "
            f"({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        ) from error
    for key in ("state_dict", "params"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    tensors = {str(key): value for key, value in found.items() if hasattr(value, "shape")} if found else {}
    if not tensors:
        raise MetricUnavailable(f"{spec.title}: {path} holds no tensors.")
    return tensors


def fill(
    spec: MetricSpec, module: torch.nn.Module, tensors: Mapping[str, torch.Tensor], path: Path, prefix: str = ""
) -> None:
    """Give a module its weights; all of them must be there, others are passed over.

    Args:
        spec: the metric, for messages.
        module: whose names, after ``prefix``, are those of ``tensors``.
        tensors: by name.
        path: where they come from, for messages.
        prefix: of the module's part of the names.

    Raises:
        MetricUnavailable: names are missing or shapes differ.
    """
    wanted = module.state_dict()
    missing = [name for name in wanted if prefix + name not in tensors and not name.endswith("num_batches_tracked")]
    other = [
        name for name, value in wanted.items()
        if prefix + name in tensors and tensors[prefix + name].shape != value.shape
    ]  # fmt: skip
    if missing or other:
        raise MetricUnavailable(
            f"{spec.title}: {path} holds other weights than expected: "
            f"{len(missing)} names are missing ({', '.join(missing[:3]) or 'none'}), "
            f"{len(other)} have another shape ({', '.join(other[:3]) or 'none'})."
        )
    own = {name: tensors[prefix + name] for name in wanted if prefix + name in tensors}
    module.load_state_dict(own, strict=False)


def state_digest(module: torch.nn.Module) -> str:
    """SHA-256 over all weights of a module, on any device."""
    from bcs_lab.encoders.base import weights_digest

    return weights_digest(module.state_dict())


def text_digest(text: str) -> str:
    """SHA-256 of text."""
    return hashlib.sha256(text.encode()).hexdigest()
