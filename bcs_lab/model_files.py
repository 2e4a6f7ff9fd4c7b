"""A trained ensemble as a folder that holds everything needed to score: safetensors and JSON, no pickles.

::

    ensemble.json             what the model is: features, encoders with fingerprints, protocol, intervals, provenance,
                              metrics
    member-<seed>.safetensors     weights of one member's head
    familiarity.safetensors   training embeddings, to tell pictures unlike them
    README.md                 the model card

``ensemble.json`` holds the SHA-256 of every other file but the card, and of itself: what is loaded is what was saved.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bcs_lab import __version__
from bcs_lab.conformal import Conformal
from bcs_lab.errors import ConfigError, ModelError, RunError
from bcs_lab.familiarity import SIDES, Familiarity
from bcs_lab.files import json_safe, write_json, write_text
from bcs_lab.model_card import model_card

if TYPE_CHECKING:
    from bcs_lab.ensemble import Ensemble

#: Version of the files written by :func:`write_model`.
FORMAT_VERSION = 3
MANIFEST = "ensemble.json"
FAMILIARITY = "familiarity.safetensors"
CARD = "README.md"
_MEMBER = re.compile(r"member-\d+\.safetensors")


def write_model(ensemble: Ensemble, folder: Path) -> Path:
    """Write all files of a model at once, and set ``ensemble.digest``.

    Everything is written to a temporary sibling that is then renamed; an earlier model in ``folder`` is replaced as a
    whole, any other content is left alone.

    Args:
        ensemble: the model.
        folder: where to; its parents are made.

    Returns:
        The folder.

    Raises:
        ModelError: ``folder`` holds something that is not a model.
        RunError: it cannot be written.
    """
    from safetensors.torch import save as to_bytes

    if folder.exists() and not _replaceable(folder):
        raise ModelError(f"{folder}: holds files that are not part of an ensemble; choose another folder.")
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.mkdir(parents=True)
        members = []
        for seed, state in zip(ensemble.seeds, ensemble.states, strict=True):
            content = to_bytes({key: value.contiguous() for key, value in state.items()})
            members.append({"seed": seed, **_write(temporary / f"member-{seed}.safetensors", content)})
        familiarity = None
        if ensemble.familiarity is not None:
            content = _familiarity_bytes(ensemble.familiarity)
            thresholds = dict(ensemble.familiarity.thresholds)
            familiarity = {"thresholds": thresholds, **_write(temporary / FAMILIARITY, content)}
        manifest = json_safe(_manifest(ensemble, members, familiarity))
        manifest["sha256"] = _digest(manifest)
        ensemble.digest = manifest["sha256"][:12]
        write_json(temporary / MANIFEST, manifest)
        write_text(temporary / CARD, model_card(ensemble))
        if folder.exists():
            old = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
            folder.rename(old)
            temporary.rename(folder)
            shutil.rmtree(old, ignore_errors=True)
        else:
            temporary.rename(folder)
    except OSError as error:
        raise RunError(f"{folder}: the ensemble cannot be written ({error.strerror or error}).") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def read_model(folder: Path) -> Ensemble:
    """Read a model and verify it: format, digests of all files, and the shape of every tensor.

    Raises:
        ModelError: a file is missing, altered, of a later format, or does not fit the head it claims to be.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    from bcs_lab.ensemble import Ensemble

    manifest = _read_manifest(folder)
    try:
        thresholds = manifest["thresholds"]
        residuals = manifest["conformal"]
        ensemble = Ensemble(
            head=dict(manifest["head"]),
            encoders=[dict(encoder) for encoder in manifest["encoders"]],
            protocol=manifest["protocol"],
            questions=[dict(question) for question in manifest["questions"]],
            teachers=list(manifest["teachers"]),
            weight_scheme=manifest["weight_scheme"],
            split=dict(manifest["split"]),
            seeds=[int(member["seed"]) for member in manifest["members"]],
            states=[],
            thresholds=None if thresholds is None else np.asarray(thresholds, dtype=np.float64),
            simulated_teachers=bool(manifest["simulated_teachers"]),
            metrics=manifest["metrics"],
            conformal=None if residuals is None else Conformal(residuals),
            provenance=dict(manifest["provenance"]),
            features=_features(manifest["features"]),
            digest=str(manifest["sha256"])[:12],
        )
        files = [(str(member["file"]), str(member["sha256"])) for member in manifest["members"]]
        familiarity = manifest["familiarity"]
        in_dim, head_name = ensemble.in_dim, ensemble.head["name"]
        if familiarity is not None:
            content = _read(folder / FAMILIARITY, str(familiarity["sha256"]))
            ensemble.familiarity = _familiarity(folder / FAMILIARITY, content, familiarity["thresholds"], ensemble.dims)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{folder / MANIFEST}: incomplete or damaged ({error!r}); restore or retrain it.") from None
    if not files:
        raise ModelError(f"{folder / MANIFEST}: lists no members; restore or retrain it.")
    if thresholds is not None and np.shape(thresholds) != (len(ensemble.questions), 2):
        raise ModelError(f"{folder / MANIFEST}: expected two thresholds a question; restore or retrain it.")
    for name, digest in files:
        path = folder / name
        if not _MEMBER.fullmatch(name):
            raise ModelError(f"{folder / MANIFEST}: {name!r} is not the name of a member file.")
        content = _read(path, digest)
        try:
            state = from_bytes(content)
            ensemble.build(state)
        except (SafetensorError, RuntimeError, ConfigError) as error:
            raise ModelError(
                f"{path}: does not fit a head {head_name!r} with D={in_dim}: {_first_line(error)}"
            ) from None
        ensemble.states.append(state)
    return ensemble


def _features(record: Mapping[str, Any]) -> dict[str, Any]:
    features = dict(record)
    if features["kind"] == "similarity":
        names = [f"{part['name']}.{name}" for part in features["parts"] for name in part["names"]]
        if names != features["names"]:
            raise ValueError("the names of the features are not those of their parts")
    elif features["kind"] != "embedding":
        raise ValueError(f"features of kind {features['kind']!r}")
    return features


def _manifest(
    ensemble: Ensemble, members: list[dict[str, Any]], familiarity: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "format": "bcs_lab ensemble",
        "format_version": FORMAT_VERSION,
        "package_version": __version__,
        "head": ensemble.head,
        "features": ensemble.features,
        "encoders": ensemble.encoders,
        "in_dim": ensemble.in_dim,
        "protocol": ensemble.protocol,
        "questions": ensemble.questions,
        "teachers": ensemble.teachers,
        "simulated_teachers": ensemble.simulated_teachers,
        "weight_scheme": ensemble.weight_scheme,
        "split": ensemble.split,
        "seeds": ensemble.seeds,
        "thresholds": None if ensemble.thresholds is None else ensemble.thresholds.tolist(),
        "members": members,
        "conformal": None if ensemble.conformal is None else dict(ensemble.conformal.residuals),
        "familiarity": familiarity,
        "provenance": ensemble.provenance,
        "metrics": ensemble.metrics,
    }


def _digest(manifest: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def _write(path: Path, content: bytes) -> dict[str, str]:
    path.write_bytes(content)
    return {"file": path.name, "sha256": hashlib.sha256(content).hexdigest()}


def _read(path: Path, digest: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error}); restore or retrain it.") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise ModelError(
            f"{path}: damaged, its {len(content)} bytes do not have the sha256 that {MANIFEST} records; "
            "restore it from a copy, or retrain the ensemble."
        )
    return content


def _familiarity_bytes(familiarity: Familiarity) -> bytes:
    from safetensors.numpy import save

    return save(
        {
            f"{side}.{index}": np.ascontiguousarray(part)
            for side in SIDES
            for index, part in enumerate(familiarity.kept[side])
        }
    )


def _familiarity(path: Path, content: bytes, thresholds: Mapping[str, float], dims: list[int]) -> Familiarity:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
        kept = {side: [arrays[f"{side}.{index}"] for index in range(len(dims))] for side in SIDES}
    except (SafetensorError, KeyError) as error:
        raise ModelError(f"{path}: damaged ({error}); restore it from a copy, or retrain the ensemble.") from None
    if any([part.shape[1] for part in kept[side]] != dims for side in SIDES):
        raise ModelError(f"{path}: does not fit embeddings of sizes {dims}; restore it from a copy, or retrain.")
    return Familiarity(kept, {side: float(thresholds[side]) for side in SIDES})


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be read ({error.strerror or error}); expected the folder of a saved ensemble."
        ) from None
    except ValueError as error:
        raise ModelError(f"{path}: damaged, it is not JSON ({error}); restore or retrain it.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != "bcs_lab ensemble":
        raise ModelError(f"{path}: is not the manifest of a bcs_lab ensemble.")
    version = manifest.get("format_version")
    if version != FORMAT_VERSION:
        way = "train it again" if isinstance(version, int) and version < FORMAT_VERSION else "install that version"
        raise ModelError(
            f"{path}: format version {version}, but bcs_lab {__version__} reads version {FORMAT_VERSION}; "
            f"it was written by bcs_lab {manifest.get('package_version')}: {way}."
        )
    if manifest.get("sha256") != _digest(manifest):
        raise ModelError(
            f"{path}: altered, its content does not have the sha256 it records; restore it from a copy, or retrain "
            "the ensemble."
        )
    return manifest


def _replaceable(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    names = {item.name for item in folder.iterdir()}
    mine = all(name in (MANIFEST, FAMILIARITY, CARD) or _MEMBER.fullmatch(name) for name in names)
    return mine and (not names or MANIFEST in names)


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "; ".join(lines[1:3] if len(lines) > 1 else lines) or type(error).__name__
