"""``bcs push model=DIR repo=user/name``: upload a trained ensemble to the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence

from bcs_lab.errors import ConfigError

USAGE = "usage: bcs push model=DIR repo=user/name [private=true|false] [message=TEXT]"


def run(arguments: Sequence[str]) -> int:
    """Upload a model; a new repository is private unless ``private=false``.

    Raises:
        ConfigError: a setting is missing or unknown.
        ModelError: the model is damaged, or the hub refused.
    """
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in ("model", "repo", "private", "message") or key in given:
            raise ConfigError(f"push: unexpected {argument!r}; {USAGE}")
        given[key] = value
    missing = [key for key in ("model", "repo") if not given.get(key)]
    if missing:
        raise ConfigError(f"push: needs {' and '.join(f'{key}=…' for key in missing)}; {USAGE}")
    private = given.get("private", "true").lower()
    if private not in ("true", "false"):
        raise ConfigError(f"push: private: expected true or false, got {given['private']!r}")

    from bcs_lab.models import push_model

    address = push_model(given["model"], given["repo"], private=private == "true", message=given.get("message"))
    repo = given["repo"].removeprefix("hf:")
    print(f"{address}\nUse it with: bcs score model=hf:{repo} reference=… reconstruction=…")
    return 0
