"""The rating form: one HTML file with the pictures inside, which needs nothing but a browser.

It holds opaque ids and pictures, and nothing about methods, concepts or strata. Its content policy allows its own
script and style only and no connection at all; words from the questions reach the page as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from bcs_lab.errors import StudyError
from bcs_lab.files import read_json, write_json, write_text
from bcs_lab.human.questionnaire import Questionnaire, checked
from bcs_lab.human.study import Study

#: Of the file a rater downloads.
RATINGS_FORMAT, RATINGS_VERSION = "bcs_lab.ratings", 1

#: Beside ``study.json``: the questions its form asks.
QUESTIONS_FILE = "questionnaire.json"


def write_form(study: Study, folder: Path, questionnaire: Questionnaire, out: Path) -> Path:
    """Write the form.

    Args:
        study: what to show.
        folder: where its pictures are.
        questionnaire: what to ask.
        out: the HTML file.
    """
    write_text(out, render(study, folder, questionnaire))
    return out


def render(study: Study, folder: Path, questionnaire: Questionnaire) -> str:
    """The form as HTML."""
    css, js = (files("bcs_lab").joinpath(f"human/form.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    environment = Environment(
        loader=PackageLoader("bcs_lab", "human"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
    )
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(css)}'; script-src '{_hash(js)}'; base-uri 'none'; "
        "form-action 'none'"
    )
    return environment.get_template("form.html.j2").render(
        q=questionnaire, policy=policy, css=css, js=js, data=embedded_json(form_data(study, folder, questionnaire))
    )


def form_data(study: Study, folder: Path, questionnaire: Questionnaire) -> dict[str, Any]:
    """What the script of the form works on; all that raters can learn is in here."""
    names = {name for item in study.items for name in (item.reference, item.reconstruction)}
    asked = questionnaire.model_dump()
    return {
        "format": RATINGS_FORMAT,
        "version": RATINGS_VERSION,
        "study": study.digest,
        "questionnaire": {"digest": questionnaire.digest, **questionnaire.structure},
        **{key: asked[key] for key in ("dir", "scale", "groups", "ui")},
        "items": [{"id": i.item, "original": i.stimulus, "reconstruction": i.item} for i in study.items],
        "images": {Path(name).stem: data_uri(folder / name) for name in sorted(names)},
    }


def data_uri(path: Path) -> str:
    """A PNG as an address that holds the picture itself."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def embedded_json(value: Any) -> str:
    """JSON that can stand inside a ``<script>`` element: nothing in it can end the element or start a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def keep_questionnaire(folder: Path, questionnaire: Questionnaire, *, overwrite: bool = False) -> None:
    """Write the questions of a study beside it, where the analysis finds them.

    Raises:
        StudyError: the study has a form with other questions or another scale, whose ratings would no longer fit.
    """
    path = folder / QUESTIONS_FILE
    if path.exists() and not overwrite:
        before = read_kept_questionnaire(folder)
        if before.digest != questionnaire.digest:
            raise StudyError(
                f"{path}: this study has a form with other questions or another scale ({before.name}), and its ratings "
                "would no longer fit. Add overwrite=true to change the questions, or select another study."
            )
    write_json(path, questionnaire.model_dump())


def read_kept_questionnaire(folder: Path) -> Questionnaire:
    """The questions of a study.

    Raises:
        StudyError: the study has no form yet.
        ConfigError: the file is damaged.
        RunError: the file is no JSON.
    """
    path = folder / QUESTIONS_FILE
    if not path.is_file():
        raise StudyError(f"{path}: no such file; expected a study with a form: bcs study form study={folder}")
    value = read_json(path)
    return checked(value if isinstance(value, Mapping) else {}, str(path))


# --- order ----------------------------------------------------------------------------------------------------------


def item_order(study: str, rater: str, originals: Mapping[str, str]) -> list[str]:
    """The order in which a rater sees the pairs, as the form computes it.

    Args:
        study: digest of the study.
        rater: the rater's code, in lower case.
        originals: id of each pair -> id of its original; pairs of one original do not follow each other where a
            hundred tries find such an order.
    """
    draw = _xorshift(f"{study}|{rater}|items")
    order: list[str] = []
    for _ in range(100):
        order = _shuffled(sorted(originals), draw)
        if all(originals[a] != originals[b] for a, b in pairwise(order)):
            break
    return order


def group_order(study: str, rater: str, groups: Sequence[str]) -> list[str]:
    """The order in which a rater gets the groups of questions, the same for every pair."""
    return _shuffled(sorted(groups), _xorshift(f"{study}|{rater}|groups"))


def _xorshift(text: str) -> Callable[[], int]:
    """A 32-bit xorshift generator seeded by FNV-1a: the same few lines as in the form's script."""
    x = 0x811C9DC5
    for byte in text.encode("utf-8"):
        x = (x ^ byte) * 0x01000193 & 0xFFFFFFFF
    x = x or 1

    def draw() -> int:
        nonlocal x
        x = (x ^ x << 13) & 0xFFFFFFFF
        x = x ^ x >> 17
        x = (x ^ x << 5) & 0xFFFFFFFF
        return x

    for _ in range(8):
        draw()
    return draw


def _shuffled(items: Sequence[str], draw: Callable[[], int]) -> list[str]:
    out = list(items)
    for i in range(len(out) - 1, 0, -1):
        j = draw() % (i + 1)
        out[i], out[j] = out[j], out[i]
    return out
