"""A finished training or scoring run as a report needs it: one shape for both, every problem of its files named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from bcs_lab.errors import RunError
from bcs_lab.evaluate import METRICS, axis_scores
from bcs_lab.files import read_json
from bcs_lab.pair_scores import protocol_of_questions
from bcs_lab.regimes import regime_codes
from bcs_lab.results import AXES
from bcs_lab.teachers.protocol import BCS12, Protocol

TRAIN, SCORE = "train", "score"

#: Part of every pair of a scoring run.
SCORED = "scored"

Floats = NDArray[np.float64]
Texts = NDArray[np.object_]


@dataclass
class Axis:
    """T-PAS or T-SAS of all pairs, [n] each, NaN where undefined.

    Attributes:
        score: as predicted.
        std: over the members.
        low: lower end of the prediction interval.
        high: its upper end.
        target: the consensus.
    """

    score: Floats
    std: Floats
    low: Floats
    high: Floats
    target: Floats


@dataclass
class ReportRun:
    """One run, whatever made it.

    Attributes:
        folder: the run's folder.
        kind: ``train`` or ``score``.
        facts: content of ``metrics.json`` or ``score.json``.
        record: content of ``run.json``.
        settings: content of ``config.yaml``.
        ensemble: content of ``ensemble/ensemble.json`` of a training run, where it can be read.
        coverage: content of ``coverage.json``, where there is one.
        truth_results: content of ``truth.json``, where there is one.
        pair_ids: text, [n].
        part: ``train``, ``val`` or ``test`` of a training run, ``scored`` of a scoring run, [n].
        labels: ``method``, ``concept``, ``subject``: text, ``""`` where unknown, [n] each.
        prediction: [n, n_questions].
        std: over the members, NaN where not recorded, [n, n_questions].
        target: consensus, NaN where unknown, [n, n_questions].
        truth: the right answers, NaN where unknown, [n, n_questions].
        axes: ``t_pas`` and ``t_sas``.
        ood: whether a pair is unlike the training images, [n].
        images: paths of a scoring run's images as its table gives them, ``("", "")`` where unknown.
        protocol: the questions.
        notes: what is missing from the run's files, in sentences.
    """

    folder: Path
    kind: str
    facts: dict[str, Any]
    record: dict[str, Any]
    settings: dict[str, Any]
    ensemble: dict[str, Any]
    coverage: dict[str, Any] | None
    truth_results: dict[str, Any] | None
    pair_ids: list[str]
    part: Texts
    labels: dict[str, Texts]
    prediction: Floats
    std: Floats
    target: Floats
    truth: Floats
    axes: dict[str, Axis]
    ood: NDArray[np.bool_]
    images: list[tuple[str, str]]
    protocol: Protocol = BCS12
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.pair_ids)

    @property
    def level(self) -> float | None:
        """Nominal coverage of the intervals, ``None`` without intervals."""
        if self.kind == SCORE:
            return _number(self.facts.get("coverage"))
        return _number((self.coverage or {}).get("coverage"))

    @property
    def teachers(self) -> list[str]:
        """Whose consensus was learned."""
        source = self.facts if self.kind == TRAIN else self.facts["model"]
        return [str(name) for name in source.get("teachers") or []]

    @property
    def judged_by(self) -> list[str]:
        """Whose consensus the predictions are held against; empty where the scored corpus has no answers."""
        if self.kind == TRAIN:
            return self.teachers
        return [str(name) for name in (self.facts.get("against_consensus") or {}).get("teachers") or []]

    @property
    def encoders(self) -> list[str]:
        """Labels of the encoders really used."""
        source = self.facts if self.kind == TRAIN else self.facts["model"]
        return [str(name) for name in source.get("encoders") or []]

    @property
    def head(self) -> str:
        """Name of the head."""
        source = self.facts if self.kind == TRAIN else self.facts["model"]
        return str(source.get("head") or "")

    @property
    def corpus_name(self) -> str:
        """Name of the corpus that was trained on or scored."""
        given = self.record.get("corpus") if self.kind == TRAIN else self.facts.get("corpus")
        return str(given or (self.settings.get("corpus") or {}).get("kind") or "")

    @property
    def simulated(self) -> bool:
        """Whether the model learned simulated answers, or the scored corpus holds them."""
        if self.kind == TRAIN:
            return bool(self.facts.get("simulated_teachers"))
        return bool(self.facts["model"].get("simulated_teachers") or self.facts.get("corpus_simulated_teachers"))

    @property
    def stand_ins(self) -> list[str]:
        """Encoders that stand in for others."""
        return [name for name in self.encoders if "(stand-in " in name]

    def regimes(self, *, of_target: bool = False) -> Texts:
        """Regime code of every pair, as predicted or by the consensus; ``""`` where undefined."""
        p, s = (self.axes[axis].target if of_target else self.axes[axis].score for axis in ("t_pas", "t_sas"))
        return regime_codes(p, s)

    def set_target(self, target: Floats) -> None:
        """Hold the predictions against this consensus [n, n_questions], on the questions it has (as the metrics do)."""
        self.target = target
        for axis, values in zip(AXES, axis_scores(target, self.protocol), strict=True):
            self.axes[axis].target = values


def load_runs(folders: list[Path]) -> list[ReportRun]:
    """Read every run.

    Raises:
        RunError: listing what is wrong with each folder.
    """
    runs, problems = [], []
    for folder in folders:
        try:
            runs.append(load_run(folder))
        except RunError as error:
            problems.append(str(error))
    if len(problems) == 1:
        raise RunError(problems[0])
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise RunError(f"{len(problems)} of {len(folders)} runs cannot be reported:\n{lines}")
    return runs


def load_run(folder: Path) -> ReportRun:
    """Read a run's files.

    Raises:
        RunError: the folder is no finished run of ``bcs train`` or ``bcs score``, or a file of it is damaged.
    """
    kind = _kind(folder)
    record = _optional_json(folder / "run.json") or {}
    state = record.get("state")
    if state not in (None, "finished"):
        raise RunError(
            f"{folder}: expected a finished run, run.json says {state!r}"
            + (f" ({record['error']})" if record.get("error") else "")
            + "; run it again, then report it"
        )
    name = "metrics.json" if kind == TRAIN else "score.json"
    facts = _read(lambda: read_json(folder / name), folder / name)
    problems = _problems(facts, _TRAIN_KEYS if kind == TRAIN else _SCORE_KEYS)
    if kind == TRAIN and not problems:
        problems = _problems(facts["ensemble"], _METRIC_KEYS, "ensemble.")
    if problems:
        raise RunError(f"{folder / name}: {'; '.join(problems)}; run the job again")
    notes: list[str] = []
    settings = _settings(folder, notes)
    common: dict[str, Any] = {
        "folder": folder,
        "kind": kind,
        "facts": facts,
        "record": record,
        "settings": settings,
        "ensemble": _optional_json(folder / "ensemble" / "ensemble.json") or {},
        "coverage": _coverage(folder, kind, notes),
        "truth_results": _optional_json(folder / "truth.json"),
        "notes": notes,
    }
    return _trained(common) if kind == TRAIN else _scored(common)


def _kind(folder: Path) -> str:
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder; expected the folder of a `bcs train` or `bcs score` run")
    if (folder / "metrics.json").is_file():
        return TRAIN
    if (folder / "score.json").is_file():
        return SCORE
    state = (_optional_json(folder / "run.json") or {}).get("state")
    if state:
        what = "it is still going on" if state == "running" else f"its state is {state!r}"
        raise RunError(
            f"{folder}: expected a finished run with metrics.json or score.json, found neither ({what}); run it again"
        )
    inside = sorted({path.parent for name in ("metrics.json", "score.json") for path in folder.glob(f"*/{name}")})
    if inside:
        shown = ",".join(str(path) for path in inside[:6])
        raise RunError(f"{folder}: holds {len(inside)} run(s) but is none itself; report them with 'runs=[{shown}]'")
    raise RunError(
        f"{folder}: is no run folder, it holds neither metrics.json (`bcs train`) nor score.json (`bcs score`)"
    )


# --- checking ---------------------------------------------------------------------------------------------------------

_TRAIN_KEYS: Mapping[str, type | tuple[type, ...]] = {
    "ensemble": dict,
    "ci95": dict,
    "baseline": dict,
    "baselines": dict,
    "members": list,
    "encoders": list,
    "teachers": list,
    "head": str,
    "split": str,
    "n": dict,
}
_SCORE_KEYS: Mapping[str, type | tuple[type, ...]] = {"model": dict, "pairs": int, "mean": dict}
_METRIC_KEYS: Mapping[str, type | tuple[type, ...]] = dict.fromkeys(METRICS, (int, float, type(None)))


def _problems(values: Any, keys: Mapping[str, type | tuple[type, ...]], prefix: str = "") -> list[str]:
    if not isinstance(values, dict):
        return [f"expected an object with the keys {', '.join(keys)}, found {type(values).__name__}"]
    lacking = [f"{prefix}{key}" for key in keys if key not in values]
    wrong = [
        f"{prefix}{key} is {type(values[key]).__name__}"
        for key, kind in keys.items()
        if key in values and not isinstance(values[key], kind)
    ]
    out = [f"lacks {', '.join(lacking)}"] if lacking else []
    return out + ([f"wrong type: {', '.join(wrong)}"] if wrong else [])


def _read(action: Callable[[], Any], path: Path) -> Any:
    """A file's content, or one error that names it."""
    try:
        return action()
    except RunError:
        raise
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error}); run the job again") from None


def _optional_json(path: Path) -> dict[str, Any] | None:
    try:
        value = read_json(path)
    except (OSError, RunError):
        return None
    return value if isinstance(value, dict) else None


def _settings(folder: Path, notes: list[str]) -> dict[str, Any]:
    try:
        value = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        notes.append(f"The run's settings are not shown: config.yaml cannot be read ({type(error).__name__}).")
        return {}
    return value if isinstance(value, dict) else {}


def _coverage(folder: Path, kind: str, notes: list[str]) -> dict[str, Any] | None:
    value = _optional_json(folder / "coverage.json")
    if value is not None and isinstance(value.get("axes"), dict):
        return value
    if kind == TRAIN:
        notes.append("No prediction intervals: this run has no readable coverage.json.")
    return None


def _table(path: Path, needed: list[str]) -> pd.DataFrame:
    frame: pd.DataFrame = _read(lambda: pd.read_parquet(path), path)
    lacking = [name for name in needed if name not in frame.columns]
    if lacking:
        more = f" and {len(lacking) - 6} more" if len(lacking) > 6 else ""
        raise RunError(f"{path}: lacks the column(s) {', '.join(lacking[:6])}{more}; run the job again")
    if frame.empty:
        raise RunError(f"{path}: expected one row a pair, found none; run the job again")
    return frame


# --- reading ----------------------------------------------------------------------------------------------------------


def _number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(value)
    return float(value) if usable else None


def _texts(frame: pd.DataFrame, name: str) -> Texts:
    if name not in frame.columns:
        return np.full(len(frame), "", dtype=object)
    values = ["" if pd.isna(value) else str(value) for value in frame[name].tolist()]
    return np.array(values, dtype=object)


def _floats(frame: pd.DataFrame, name: str) -> Floats:
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    return pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def _block(frame: pd.DataFrame, names: list[str]) -> Floats:
    return np.stack([_floats(frame, name) for name in names], axis=1)


def _protocol(model: Mapping[str, Any]) -> Protocol:
    """The questions of a run, from what its files keep of the model; runs of earlier versions have the paper's."""
    questions = model.get("questions")
    if not isinstance(questions, list) or not questions:
        return BCS12
    known = all(isinstance(item, dict) and {"id", "group"} <= set(item) for item in questions)
    return protocol_of_questions(str(model.get("protocol")), questions) if known else BCS12


def _trained(common: dict[str, Any]) -> ReportRun:
    folder, protocol = common["folder"], _protocol(common["ensemble"])
    kinds = ("target", "prediction")
    needed = ["pair_id", "split", *(f"{name}_{kind}" for name in (*protocol.ids, *AXES) for kind in kinds)]
    frame = _table(folder / "predictions.parquet", needed)
    n = len(frame)
    axes = {}
    for axis in AXES:
        score, std = _floats(frame, f"{axis}_prediction"), _floats(frame, f"{axis}_std")
        width = _number(((common["coverage"] or {}).get("axes", {}).get(axis) or {}).get("half_width"))
        low, high = (np.full(n, np.nan) if width is None else np.clip(score + side * width, 0, 1) for side in (-1, 1))
        axes[axis] = Axis(score, std, low, high, _floats(frame, f"{axis}_target"))
    labels = {name: np.full(n, "", dtype=object) for name in ("method", "concept", "subject")}
    concepts = _concepts(folder, common["notes"])
    labels["concept"] = np.array([concepts.get(pair_id, "") for pair_id in _texts(frame, "pair_id")], dtype=object)
    return ReportRun(
        **common,
        pair_ids=_texts(frame, "pair_id").tolist(),
        part=_texts(frame, "split"),
        labels=labels,
        prediction=_block(frame, [f"{name}_prediction" for name in protocol.ids]),
        std=_block(frame, [f"{name}_std" for name in protocol.ids]),
        target=_block(frame, [f"{name}_target" for name in protocol.ids]),
        truth=_block(frame, [f"{name}_truth" for name in protocol.ids]),
        axes=axes,
        protocol=protocol,
        ood=np.zeros(n, dtype=bool),
        images=[("", "")] * n,
    )


def _concepts(folder: Path, notes: list[str]) -> dict[str, str]:
    try:
        frame = pd.read_parquet(folder / "split.parquet", columns=["pair_id", "concept"])
    except (OSError, ValueError) as error:
        notes.append(f"Concepts are unknown: split.parquet cannot be read ({type(error).__name__}).")
        return {}
    return dict(zip(frame["pair_id"].astype(str), frame["concept"].astype(str), strict=True))


def _scored(common: dict[str, Any]) -> ReportRun:
    protocol = _protocol(common["facts"]["model"])
    needed = ["pair_id", *protocol.ids, *(f"{axis}{end}" for axis in AXES for end in ("", "_std", "_lo", "_hi"))]
    frame = _table(common["folder"] / "scores.parquet", needed)
    n = len(frame)
    axes = {
        axis: Axis(
            score=_floats(frame, axis),
            std=_floats(frame, f"{axis}_std"),
            low=_floats(frame, f"{axis}_lo"),
            high=_floats(frame, f"{axis}_hi"),
            target=np.full(n, np.nan),
        )
        for axis in AXES
    }
    unknown = np.full((n, len(protocol.ids)), np.nan)
    ood = frame["ood"].fillna(False).to_numpy(dtype=bool) if "ood" in frame.columns else np.zeros(n, dtype=bool)
    return ReportRun(
        **common,
        pair_ids=_texts(frame, "pair_id").tolist(),
        part=np.full(n, SCORED, dtype=object),
        labels={name: _known(_texts(frame, name)) for name in ("method", "concept", "subject")},
        prediction=_block(frame, list(protocol.ids)),
        std=unknown.copy(),
        target=unknown.copy(),
        truth=unknown.copy(),
        axes=axes,
        protocol=protocol,
        ood=ood,
        images=list(zip(_texts(frame, "reference"), _texts(frame, "reconstruction"), strict=True)),
    )


def _known(values: Texts) -> Texts:
    """The text ``na`` of a manifest is an unknown value."""
    return np.where(values == "na", "", values)
