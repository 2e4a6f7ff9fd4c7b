"""Where trained models come from and go to: folders, run folders, and repositories of the Hugging Face hub."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bcs_lab.errors import ConfigError, ModelError, RunError
from bcs_lab.files import read_json
from bcs_lab.model_files import CARD, FAMILIARITY, MANIFEST

if TYPE_CHECKING:
    import pandas as pd

    from bcs_lab.ensemble import Ensemble

logger = logging.getLogger(__name__)

#: What a model on the hub begins with: ``hf:user/repo`` or ``hf:user/repo@revision``.
HUB = "hf:"
#: Files of a repository that belong to a model.
FILES = (MANIFEST, "member-*.safetensors", FAMILIARITY, CARD)
#: The model that ships with the package, and its folder.
SHIPPED = "bcs-lite"
SHIPPED_FOLDER = Path(__file__).resolve().parent / "assets" / "bcs_lite"
#: Seconds for the hub to answer.
TIMEOUT = 3.0


def resolve_model(model: str | Path) -> Path:
    """The folder of a trained model.

    Args:
        model: a model's folder, a run's folder (its ``ensemble/`` is taken), ``bcs-lite``, which ships with the
            package, or ``hf:user/repo[@revision]``, which is looked up in the local cache where the hub does not
            answer.

    Raises:
        ModelError: nothing there is a model; says what was looked for.
    """
    if not isinstance(model, (str, Path)) or not str(model):
        raise ModelError(f"Expected the folder of a model or {HUB}user/repo but got {model!r}.")
    if str(model).startswith(HUB):
        return _from_hub(str(model).removeprefix(HUB))
    folder = Path(model).expanduser()
    if folder.name == SHIPPED and not folder.exists():
        return SHIPPED_FOLDER
    for candidate in (folder, folder / "ensemble"):
        if (candidate / MANIFEST).is_file():
            return candidate
    if folder.is_file() and folder.name == MANIFEST:
        return folder.parent
    if not folder.exists():
        near = f" A model on the hub is written {HUB}{model}." if str(model).count("/") == 1 else ""
        raise ModelError(f"model={model}: there is no such folder; expected one that `bcs train` wrote.{near}")
    if _cross_validated(folder):
        raise ModelError(
            f"model={model}: is a cross-validation (split.fold=all), which keeps no model, only what was said of pairs "
            "that were held out (predictions.parquet). Train one without split.fold=all and name its folder."
        )
    raise ModelError(
        f"model={model}: holds neither {MANIFEST} nor ensemble/{MANIFEST}; expected RUN/ensemble of a finished run "
        "of `bcs train`."
    )


def _cross_validated(folder: Path) -> bool:
    try:
        record = read_json(folder / "run.json")
    except (OSError, RunError):
        return False
    return isinstance(record, dict) and bool(record.get("folds"))


def _from_hub(name: str) -> Path:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError

    repo, _, revision = name.partition("@")
    _check_repo(repo)
    asked = revision or None
    reason = ""
    try:
        # One short question first: the client itself retries a dead connection for half a minute.
        get_hf_file_metadata(hf_hub_url(repo, MANIFEST, revision=asked), timeout=TIMEOUT)
        return Path(snapshot_download(repo, revision=asked, allow_patterns=list(FILES), etag_timeout=TIMEOUT))
    except EntryNotFoundError:
        raise ModelError(
            f"model={HUB}{name}: the repository holds no {MANIFEST}, so it is no model of bcs_lab."
        ) from None
    except Exception as error:  # whatever the client raises, the user needs the same answer
        reason = _short(error)
    try:
        folder = Path(snapshot_download(repo, revision=asked, allow_patterns=list(FILES), local_files_only=True))
    except Exception:  # as above; the hub's own answer says more
        raise ModelError(
            f"model={HUB}{name}: cannot be had from the hub, and the local cache does not hold it ({reason}). "
            f"On a machine with a network: `hf download {repo}`; then copy the folder here and name it: model=DIR."
        ) from None
    logger.warning("%s%s: the hub did not answer (%s); the copy in the local cache is used", HUB, name, reason)
    return folder


def push_model(model: str | Path, repo: str, *, private: bool = True, message: str | None = None) -> str:
    """Upload a model to a repository of the hub, which is made if it is not there.

    The copy that goes out is loaded and verified first, and does not say where on this machine encoders lay. Logging in
    is the client's business (``hf auth login`` or ``HF_TOKEN``).

    Args:
        model: see :func:`resolve_model`.
        repo: ``user/name``, with or without ``hf:``.
        private: whether a new repository is private; an existing one stays as it is.
        message: of the commit.

    Returns:
        The address of the commit.

    Raises:
        ModelError: the model is damaged, or the hub refused; says why.
        ConfigError: ``repo`` is not a repository's name.
    """
    from huggingface_hub import HfApi

    from bcs_lab.ensemble import Ensemble

    repo = repo.removeprefix(HUB)
    _check_repo(repo)
    ensemble = Ensemble.load(resolve_model(model))
    with tempfile.TemporaryDirectory() as temporary:
        folder = portable(ensemble).save(Path(temporary) / "model")
        card = folder / CARD
        card.write_text(card.read_text(encoding="utf-8").replace("THIS_FOLDER", f"{HUB}{repo}"), encoding="utf-8")
        api = HfApi(library_name="bcs_lab")
        try:
            api.create_repo(repo, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=repo,
                folder_path=folder,
                commit_message=message or f"BCS ensemble {ensemble.digest}",
                delete_patterns=list(FILES),  # members of an earlier model must not stay behind
            )
        except Exception as error:  # as above
            answered = getattr(error, "response", None) is not None
            advice = (
                "Log in with `hf auth login` or set HF_TOKEN, and check that you may write to this repository."
                if answered
                else "It could not be reached: check the network."
            )
            raise ModelError(f"repo={repo}: the hub did not take the model ({_short(error)}). {advice}") from error
    return str(commit.commit_url)


def portable(ensemble: Ensemble) -> Ensemble:
    """The same model without paths of this machine in its encoders' options."""
    from dataclasses import replace

    encoders = [
        {**encoder, "options": {key: value for key, value in encoder["options"].items() if key != "source"}}
        for encoder in ensemble.encoders
    ]
    return replace(ensemble, encoders=encoders)


def _check_repo(repo: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(
            f"{repo!r} is not the name of a hub repository, such as user/name ({_short(error)})."
        ) from None


def _short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + "…"


def known_split(model: Path) -> pd.DataFrame | None:
    """In which part each pair was when a model was trained: ``pair_id``, ``concept`` and ``split``, all text.

    Args:
        model: the model's folder; its run's ``split.parquet`` lies beside it, that of the shipped model in it.

    Returns:
        ``None`` where there is no such file.

    Raises:
        ModelError: the file cannot be read.
    """
    import pandas as pd

    path = next((path for place in (model.parent, model) if (path := place / "split.parquet").is_file()), None)
    if path is None:
        return None
    try:
        frame = pd.read_parquet(path).reindex(columns=["pair_id", "concept", "split"], fill_value="").astype(str)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path}: expected the parts of the training run as a Parquet table, cannot be read ({error}); restore the "
            "file, or remove it to go on without knowing which pairs trained the model."
        ) from None
    return frame


def trained_on(scored: pd.DataFrame, model: Path) -> int | None:
    """How many pairs trained the model or stopped its training.

    The same id with the same concept counts, whatever the corpus is called.

    Args:
        scored: pairs with ``pair_id`` and, if known, ``concept``.
        model: the model's folder.

    Returns:
        ``None`` where no split is known.

    Raises:
        ModelError: see :func:`known_split`.
    """
    from bcs_lab.split import concept_key

    split = known_split(model)
    if split is None:
        return None
    if "concept" not in scored:
        return 0
    used = split[~split["split"].isin(["test", "unused"])]
    known = set(zip(used["pair_id"], used["concept"].map(concept_key), strict=True))
    pairs = zip(scored["pair_id"].astype(str), scored["concept"].map(concept_key), strict=True)
    return sum(pair in known for pair in pairs)
