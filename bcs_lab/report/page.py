"""One self-contained HTML page about one or several runs: everything inlined, bounded in size, safe to open.

Content comes from files and models that others made. Markup is escaped by Jinja, the data for the page's script is JSON
that cannot end its element, the script sets text only, and a content security policy lets nothing else run or load.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape
from markupsafe import Markup

from bcs_lab.errors import ConfigError
from bcs_lab.files import json_safe, write_text
from bcs_lab.regimes import REGIMES
from bcs_lab.report import page_view as view
from bcs_lab.report.compare import collect, warnings
from bcs_lab.report.page_charts import regime_bar
from bcs_lab.report.page_corpus import Pictures, open_behind
from bcs_lab.report.page_run import TRAIN, ReportRun, load_runs
from bcs_lab.report.page_view import Section, View
from bcs_lab.report.table import BASELINE, HEADINGS, PAPER, RUN, Row, best_rows, interval, number
from bcs_lab.results import AXES
from bcs_lab.split import PARTS, UNUSED

log = logging.getLogger(__name__)

#: Set before anything is drawn, so that a dark page never flashes white.
THEME_SCRIPT = (
    "let t=null;try{t=localStorage.getItem('bcs-theme')}catch{}"
    "document.documentElement.dataset.theme=t||(matchMedia('(prefers-color-scheme: dark)').matches?'dark':'light');"
)

#: Left free below the size bound.
_SLACK = 2_000


@dataclass(frozen=True)
class Options:
    """What a report shows.

    Attributes:
        max_mb: upper bound of the file, in millions of bytes.
        pairs: most pairs in a gallery.
        part: of a training run: ``test``, ``val``, ``train`` or ``all``. A scoring run shows all its pairs.
    """

    max_mb: float = 8.0
    pairs: int = 6
    part: str = "test"


@dataclass(frozen=True)
class Written:
    """What became of it.

    Attributes:
        path: of the page.
        size: in bytes.
        summary: two lines.
    """

    path: Path
    size: int
    summary: str


def write_report(folders: Sequence[Path], out: Path, options: Options | None = None, *, start: Path) -> Written:
    """Write one page about the given runs.

    Args:
        folders: of finished training or scoring runs.
        out: the HTML file.
        options: what it shows.
        start: the current folder, where a relative corpus folder is looked for last.

    Raises:
        RunError: a folder is no finished run, or its files are damaged; all folders' problems at once.
        ConfigError: no pairs in that part, or not even the page without pictures fits into ``max_mb``.
    """
    options = options or Options()
    runs = load_runs(list(folders))
    pictures = Pictures()
    sections = [view.section(run, open_behind(run, start), pictures, options.part, options.pairs) for run in runs]
    limit = int(options.max_mb * 1e6)
    page = _Page(sections, pictures, _comparison(runs), options)
    text = page.fit(limit)
    write_text(out, text)
    size = len(text.encode("utf-8"))
    return Written(out, size, _summary(sections, page, size))


# --- fitting into the bound -------------------------------------------------------------------------------------------


@dataclass
class _Room:
    """What of a section is in the page.

    Attributes:
        kept: positions of the pairs in its table, in order.
        galleries: pairs of each gallery that are in the page.
        pictured: pairs whose pictures (or the note that they cannot be had) and rationales are in the page.
        cut: what was left out for the bound, in sentences.
    """

    kept: list[int]
    galleries: list[list[int]] = field(default_factory=list)
    pictured: list[int] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)


class _Page:
    """Chooses what fits, then renders."""

    def __init__(
        self, sections: list[Section], pictures: Pictures, comparison: dict[str, Any] | None, options: Options
    ) -> None:
        self.sections, self.pictures, self.comparison, self.options = sections, pictures, comparison, options
        self.rooms = [_Room(list(range(len(section.run)))) for section in sections]
        self.texts: list[dict[str, int]] = [{} for _ in sections]

    def fit(self, limit: int) -> str:
        """The page as text of at most ``limit`` bytes."""
        free = limit - _SLACK - self._shrink_tables(limit - _SLACK)
        free = self._fill_galleries(free)
        self._fill_pairs(free)
        text = self.render()
        size = len(text.encode("utf-8"))
        if size > limit:
            raise ConfigError(f"max_mb={limit / 1e6:g}: the page comes to {size / 1e6:.2f} MB; allow it that much.")
        return text

    def _shrink_tables(self, limit: int) -> int:
        """Leave out rows until the page without pictures fits; returns its size."""
        size = 0
        for keep in ("all", "shown", *(0.5**power for power in range(1, 8))):
            for section, room in zip(self.sections, self.rooms, strict=True):
                chosen = {pair for gallery in section.galleries for pair in gallery.pairs}
                room.kept = list(range(len(section.run)))
                if keep != "all":
                    room.kept = section.shown.tolist()
                if isinstance(keep, float):
                    most = max(1, int(keep * len(section.shown)))
                    room.kept = sorted({*section.shown[:most].tolist(), *chosen})
                room.galleries = [list(gallery.pairs) for gallery in section.galleries]
                left_out = len(section.run) - len(room.kept)
                room.cut = [f"{_are(left_out)} left out of the table of pairs."] if left_out else []
            size = len(self.render().encode("utf-8"))
            if size <= limit:
                for room in self.rooms:
                    room.galleries = [[] for _ in room.galleries]
                return size
        raise ConfigError(
            f"max_mb={self.options.max_mb:g}: this report needs about {size / 1e6 + 0.1:.1f} MB without any picture; "
            "raise max_mb, or report fewer runs at once."
        )

    def _fill_galleries(self, free: int) -> int:
        """Add pictures and rationales of the gallery pairs, best places first, while they fit."""
        most = max((len(gallery.pairs) for section in self.sections for gallery in section.galleries), default=0)
        for place in range(most):
            for at, section in enumerate(self.sections):
                for number_, gallery in enumerate(section.galleries):
                    taken = self.rooms[at].galleries[number_]
                    if place < len(gallery.pairs) and len(taken) == place:
                        cost = self._cost(at, gallery.pairs[place])
                        if cost <= free:
                            free -= cost
                            self._add(at, gallery.pairs[place])
                            taken.append(gallery.pairs[place])
        for section, room in zip(self.sections, self.rooms, strict=True):
            missing = sum(len(gallery.pairs) for gallery in section.galleries) - sum(map(len, room.galleries))
            if missing:
                room.cut.append(f"The galleries lack {view.plural(missing, 'pair')}.")
        return free

    def _fill_pairs(self, free: int) -> None:
        """Add pictures and rationales of the other pairs of the part shown, in order, while they fit."""
        for at, (section, room) in enumerate(zip(self.sections, self.rooms, strict=True)):
            share = free // (len(self.sections) - at)
            kept = set(room.kept)
            waiting = [pair for pair in section.shown.tolist() if pair in kept and pair not in room.pictured]
            full = 0
            for pair in waiting:
                cost = self._cost(at, pair)
                if cost > share:
                    full += 1
                    if full > 20:
                        break
                    continue
                share -= cost
                free -= cost
                self._add(at, pair)
            lacking = len(set(section.shown.tolist()) - set(room.pictured))
            if lacking and section.has_pictures:
                room.cut.append(f"{_are(lacking, section.of_part)} without their pictures and rationales.")
            elif lacking and section.has_rationales:
                room.cut.append(f"{_are(lacking, section.of_part)} without their rationales.")

    def _cost(self, at: int, pair: int) -> int:
        if pair in self.rooms[at].pictured:
            return 0
        behind, run = self.sections[at].behind, self.sections[at].run
        size = sum(self.pictures.cost(path, behind.max_pixels) for path in behind.files(run, pair))
        known = self.texts[at]
        new = {text for row in behind.rationales(pair) for text in row} - known.keys()
        cells = sum(len(row) for row in behind.rationales(pair))
        return size + sum(len(embed_json(text).encode("utf-8")) + 1 for text in new) + 7 * cells + 40

    def _add(self, at: int, pair: int) -> None:
        room = self.rooms[at]
        if pair in room.pictured:
            return
        room.pictured.append(pair)
        behind, run = self.sections[at].behind, self.sections[at].run
        for path in behind.files(run, pair):
            self.pictures.place(path, behind.max_pixels)
        for row in behind.rationales(pair):
            for text in row:
                self.texts[at].setdefault(text, len(self.texts[at]))

    # --- rendering ----------------------------------------------------------------------------------------------------

    def render(self) -> str:
        """The page with what is in it now."""
        labels = self.comparison["labels"] if self.comparison else [""] * len(self.sections)
        views: list[View] = []
        for at, (section, room) in enumerate(zip(self.sections, self.rooms, strict=True)):
            place = {pair: row for row, pair in enumerate(room.kept)}
            content = view.view(section, place, labels[at], room.cut)
            content["data"] = Markup(embed_json(self._data(at, place)))
            views.append(content)
        style, script = asset("report.css"), asset("page.js", "report.js")
        title = f"BCS report: {views[0]['title']}" if len(views) == 1 else f"BCS report: {len(views)} runs"
        return (
            environment()
            .get_template("report.html.j2")
            .render(
                title=title,
                views=views,
                comparison=self.comparison,
                style=Markup(style),
                script=Markup(script),
                theme_script=Markup(THEME_SCRIPT),
                script_hashes=Markup(" ".join(script_hash(text) for text in (THEME_SCRIPT, script))),
                images=Markup(embed_json(self.pictures.uris)),
            )
        )

    def _data(self, at: int, place: Mapping[int, int]) -> dict[str, Any]:
        """What the page's script shows of a run; scores in thousandths, rows in the order of the table."""
        section, room = self.sections[at], self.rooms[at]
        run, behind = section.run, section.behind
        kept = np.array(room.kept, dtype=np.int64)
        lists: dict[str, list[str]] = {}
        rows: dict[str, Any] = {"id": [run.pair_ids[i] for i in room.kept]}
        for key, values in (("m", run.labels["method"]), ("c", run.labels["concept"]), ("s", run.labels["subject"])):
            names, codes = np.unique(values[kept].astype(str), return_inverse=True)
            lists[key], rows[key] = names.tolist(), codes.tolist()
        parts = [part for part in (*PARTS, UNUSED) if (run.part == part).any()] or [""]
        rows["part"] = [parts.index(str(part)) if part in parts else 0 for part in run.part[kept]]
        rows["ax"] = {
            axis: {
                key: _thousandths(values[kept])
                for key, values in (
                    ("v", own.score),
                    ("sd", own.std),
                    ("lo", own.low),
                    ("hi", own.high),
                    ("t", own.target),
                )
            }
            for axis, own in run.axes.items()
        }
        regimes = list(REGIMES)
        for key, values in (("g", section.predicted_codes), ("tg", section.target_codes)):
            rows[key] = [regimes.index(code) if code else None for code in values[kept]]
        rows["p"] = _thousandths(run.prediction[kept])
        for key, block in (("sd", run.std), ("t", run.target), ("truth", run.truth)):
            rows[key] = _thousandths(block[kept]) if not np.isnan(block).all() else None
        rows["ood"] = "".join("1" if flag else "0" for flag in run.ood[kept])
        rows["a"] = _answer_codes(section.answers[kept]) if section.answers.shape[1] else None
        rows["metrics"] = {name: _thousandths(values[kept]) for name, values in section.metrics.items()}
        rows["img"] = {}
        rows["r"] = {}
        for pair in room.pictured:
            if pair not in place:
                continue
            found = [self.pictures.place(path, behind.max_pixels) for path in behind.files(run, pair)]
            if any(item is not None for item in found):
                rows["img"][place[pair]] = found
            said = behind.rationales(pair)
            if any(text for row in said for text in row):
                rows["r"][place[pair]] = [self.texts[at][text] for row in said for text in row]
        return {
            "questions": [{"id": q.id, "name": q.name, "group": q.group} for q in run.protocol.questions],
            "axes": [
                {"key": key, "name": name, "kind": kind}
                for (key, name), kind in zip(AXES.items(), ("pas", "sas"), strict=True)
            ],
            "teachers": [{"name": name, "used": name in run.judged_by} for name in behind.teachers],
            "regimes": [{"code": code, "name": name} for code, name in REGIMES.items()],
            "methods": lists["m"],
            "concepts": lists["c"],
            "subjects": lists["s"],
            "parts": parts,
            "part": parts.index(section.part) if section.part in parts and len(parts) > 1 else None,
            "pictures": section.has_pictures,
            "reasons": section.has_rationales,
            "texts": list(self.texts[at]),
            "rows": rows,
            "galleries": [
                {"key": item.key, "title": item.title, "lead": item.lead, "rows": [place[pair] for pair in pairs]}
                for item, pairs in zip(section.galleries, room.galleries, strict=True)
                if pairs
            ],
        }


def embed_json(value: Any) -> str:
    """JSON that can stand inside a script element whatever text it holds.

    >>> embed_json({"a": "</script><b> & \\u2028"})
    '{"a":"\\\\u003c/script\\\\u003e\\\\u003cb\\\\u003e \\\\u0026 \\\\u2028"}'
    """
    text = json.dumps(json_safe(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _thousandths(values: np.ndarray) -> list[Any]:
    """Whole thousandths; ``None`` for NaN."""
    scaled = np.round(np.asarray(values, dtype=np.float64) * 1000)
    if scaled.ndim == 1:
        return [None if value != value else int(value) for value in scaled.tolist()]
    return [[None if value != value else int(value) for value in row] for row in scaled.tolist()]


def _answer_codes(answers: np.ndarray) -> list[str]:
    """One text a pair: teacher after teacher, ``0`` no, ``1`` somewhat, ``2`` yes, ``-`` not answered."""
    codes = np.where(np.isnan(answers), 3, np.nan_to_num(answers) * 2).astype(int)
    letters = np.array(list("012-"))[codes]
    return ["".join(row) for row in letters.reshape(len(answers), -1).tolist()]


# --- parts of the page ------------------------------------------------------------------------------------------------


def environment() -> Environment:
    """Of the templates: everything escaped, and the numbers' formats."""
    made = Environment(
        loader=PackageLoader("bcs_lab", "report"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        headings=HEADINGS, regimes=REGIMES, number=number, interval=interval, share=view.share, signed=view.signed,
        plural=view.plural, between=view.between,
    )  # fmt: skip
    return made


def asset(*names: str) -> str:
    """Style sheets or scripts of this folder, one after the other."""
    folder = files("bcs_lab").joinpath("report")
    return "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def script_hash(script: str) -> str:
    """What a content security policy allows a script by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode('utf-8')).digest()).decode('ascii')}'"


def _comparison(runs: Sequence[ReportRun]) -> dict[str, Any] | None:
    """The block above several runs, ``None`` for one."""
    if len(runs) < 2:
        return None
    trained = [run for run in runs if run.kind == TRAIN]
    labels = _labels(runs)
    block: dict[str, Any] = {"groups": [], "shared": "", "notes": [], "labels": labels, "best": {}, "scores": []}
    if trained:
        rows, shared = collect([run.folder for run in trained])
        by_folder = {str(run.folder.resolve()): label for run, label in zip(runs, labels, strict=True)}
        rows = [
            _named(row, by_folder.get(str(row.facts["run"]), row.label)) if row.kind == RUN else row for row in rows
        ]
        block["groups"] = [
            ("", [row for row in rows if row.kind == RUN]),
            ("Baselines on the same test pairs", [row for row in rows if row.kind == BASELINE]),
            (view.PAPER_TITLE, [row for row in rows if row.kind == PAPER]),
        ]
        block["best"] = {column: {rows[index].label for index in best_rows(rows, column)} for column in HEADINGS}
        block["shared"], block["notes"] = shared, warnings(rows)
    for run, label in zip(runs, labels, strict=True):
        if run.kind != TRAIN:
            p, s = run.axes["t_pas"].score, run.axes["t_sas"].score
            codes = run.regimes()
            block["scores"].append(
                {
                    "label": label,
                    "note": " + ".join(run.encoders),
                    "pairs": len(run),
                    "t_pas": view.mean(p),
                    "t_sas": view.mean(s),
                    "bar": regime_bar({code: share for code, (_, share) in view.regime_counts(codes).items()}),
                    "ood": float(run.ood.mean()),
                }
            )
    return block


def _labels(runs: Sequence[ReportRun]) -> list[str]:
    """Corpus and folder of each run, with as many folders above it as it takes to tell the runs apart."""
    depth = max(len(run.folder.parts) for run in runs)
    labels: list[str] = []
    for parts in range(1, depth + 1):
        labels = [" · ".join(filter(None, (run.corpus_name, "/".join(run.folder.parts[-parts:])))) for run in runs]
        if len(set(labels)) == len({run.folder for run in runs}):
            break
    return labels


def _named(row: Row, label: str) -> Row:
    """A training run under another label; the encoder and what else told it apart come beneath."""
    said = row.label.partition(" [")[0]
    more = row.note and row.note.replace(" ", "") != said
    return replace(row, label=label, note=f"{said}: {row.note}" if more else row.note or said)


def _are(n: int, of_part: str = "") -> str:
    """How many pairs, up to the verb: ``1 pair of the test part is``."""
    return " ".join(filter(None, (view.plural(n, "pair"), of_part, "is" if n == 1 else "are")))


def _summary(sections: Sequence[Section], page: _Page, size: int) -> str:
    pictured = sum(len(room.pictured) for room in page.rooms)
    pairs = sum(len(section.run) for section in sections)
    cut = [line for room in page.rooms for line in room.cut]
    first = "; ".join(section.headline for section in sections)
    second = (
        f"{size / 1e6:.1f} MB: {view.plural(pairs, 'pair')}, {view.plural(len(page.pictures.uris), 'picture')}, "
        f"{view.plural(pictured, 'pair')} with all details{'; ' + ' '.join(cut) if cut else ''}"
    )
    return f"{first}\n{second}"
