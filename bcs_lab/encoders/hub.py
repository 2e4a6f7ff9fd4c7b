"""Weights from a local folder, the local hub cache, or the hub, in that order, without ever waiting for long.

The hub client retries a dead connection for half a minute or more, so one request with a short time-out asks whether
the hub answers at all before a download starts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bcs_lab.errors import EncoderError

if TYPE_CHECKING:
    from bcs_lab.encoders import EncoderSpec

logger = logging.getLogger(__name__)

#: Seconds for the hub to answer the first request.
HUB_TIMEOUT = 3.0


def fetch_file(spec: EncoderSpec, repo: str, revision: str, filenames: Sequence[str]) -> Path:
    """The first of ``filenames`` that a hub repository holds.

    Raises:
        EncoderError: neither the local cache nor the hub gives one; says what was tried.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError

    _check_repo(spec, repo)
    for filename in filenames:
        cached = try_to_load_from_cache(repo, filename, revision=revision)
        if isinstance(cached, str):
            return Path(cached)
    reason = ""
    for filename in filenames:
        try:
            _probe(repo, filename, revision)
            logger.info("encoder %s: downloading %s from %s@%s", spec.name, filename, repo, revision)
            return Path(hf_hub_download(repo, filename, revision=revision, etag_timeout=HUB_TIMEOUT))
        except EntryNotFoundError:
            reason = f"the repository holds none of {', '.join(filenames)}"
        except Exception as error:
            # Whatever the client raises (its HTTP library changes between versions), the user needs the same answer.
            reason = _reason(error)
            break
    raise unavailable(spec, f"{repo}@{revision}", filenames, reason)


def fetch_folder(spec: EncoderSpec, repo: str, revision: str, required: str, patterns: Sequence[Sequence[str]]) -> Path:
    """A local folder with a repository's files.

    Args:
        spec: the encoder, for messages.
        repo: hub repository.
        revision: branch, tag or commit.
        required: a file that every usable copy has.
        patterns: groups of file patterns. The first group is taken; a later one only if no file that matches the last
            pattern of the group before it was found.

    Raises:
        EncoderError: as :func:`fetch_file`.
    """
    _check_repo(spec, repo)
    folder, reason = cached_or_downloaded(repo, revision, required, patterns, f"encoder {spec.name}")
    if folder is None:
        raise unavailable(spec, f"{repo}@{revision}", [required, *(group[-1] for group in patterns)], reason)
    return folder


def cached_or_downloaded(
    repo: str, revision: str | None, required: str, patterns: Sequence[Sequence[str]], label: str
) -> tuple[Path | None, str]:
    """A repository's files from the local cache, else from the hub; or ``None`` and why they cannot be had.

    The arguments are those of :func:`fetch_folder`; ``label`` says in the log what the files are for.
    """
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    cached = try_to_load_from_cache(repo, required, revision=revision)
    if isinstance(cached, str) and any(list(Path(cached).parent.glob(group[-1])) for group in patterns):
        return Path(cached).parent, ""
    try:
        _probe(repo, required, revision)
        for group in patterns:
            logger.info("%s: downloading %s%s", label, repo, f"@{revision}" if revision else "")
            folder = Path(
                snapshot_download(repo, revision=revision, allow_patterns=list(group), etag_timeout=HUB_TIMEOUT)
            )
            if list(folder.glob(group[-1])):
                return folder, ""
        return None, f"the repository holds no {' or '.join(group[-1] for group in patterns)}"
    except Exception as error:
        # Whatever the client raises (its HTTP library changes between versions), the user needs the same answer.
        return None, _reason(error)


def unavailable(spec: EncoderSpec, where: str, files: Sequence[str], reason: str) -> EncoderError:
    """The error for weights that cannot be had: what was tried, and the ways out."""
    from huggingface_hub import constants

    local = f"encoder={spec.library} encoder.name=/folder"
    if ":" not in spec.name:
        local = f"encoder.options.{spec.name}.source=/folder, or {local}"
    return EncoderError(
        f"The weights of encoder {spec.name!r} ({where}) cannot be had.\n"
        f"Tried: the local cache ({constants.HF_HUB_CACHE}): no {', '.join(files)}; the hub ({constants.ENDPOINT}): "
        f"{reason}.\n"
        "Ways out:\n"
        f"  - name a local copy: {local}\n"
        f"  - download on a machine with a network (`hf download {where.partition('@')[0]}`), copy its cache folder "
        "here and point HF_HOME at it\n"
        "  - bring embeddings computed elsewhere: bcs embed source=npz path=FILE encoder.name=NAME\n"
        "  - use encoders that work offline: encoder=embedded"
    )


def local_source(spec: EncoderSpec, source: str | Path | None) -> Path | None:
    """The option ``source``, or else the model where that is a local path; ``None`` if neither is local.

    A model asked for by ``LIBRARY:MODEL`` is local where a file or folder of that name exists.

    Raises:
        EncoderError: nothing is there.
    """
    path = Path(source or spec.model).expanduser()
    named = spec.model.startswith(("/", "./", "../", "~"))
    if (source is not None or named or ":" in spec.name) and path.exists():
        if source is None and not named:
            # It may only happen to be called like a model of the library.
            logger.info(
                "encoder %s: %s exists and is used in place of a model of that name", spec.name, path.absolute()
            )
        return path
    if source is not None or named:
        raise EncoderError(f"Encoder {spec.name!r}: expected a folder or weight file at {path}, found none.")
    return None


def no_config(spec: EncoderSpec, source: Path, config: str) -> EncoderError:
    """The error for a local model of which nothing says what it is; ``config`` is the file that would."""
    if source.is_file():
        return EncoderError(
            f"Encoder {spec.name!r}: the weight file {source} does not say its architecture; name a folder that holds "
            f"{config} and the weights."
        )
    inside = sorted(path.name for path in source.iterdir())
    found = ", ".join(inside[:10]) + ("…" if len(inside) > 10 else "")
    return EncoderError(
        f"Encoder {spec.name!r}: expected {source / config} beside the weights; found {found or 'an empty folder'}."
    )


def _check_repo(spec: EncoderSpec, repo: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise EncoderError(
            f"Encoder {spec.name!r}: {repo!r} is neither a local path nor a hub repository ({error})."
        ) from None


def _probe(repo: str, filename: str, revision: str | None) -> None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    get_hf_file_metadata(hf_hub_url(repo, filename, revision=revision), timeout=HUB_TIMEOUT)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"
