"""Quality against the number of labels: tables of a sweep over ``split.train_pairs``, tests against plain cosines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bcs_lab.errors import RunError
from bcs_lab.evaluate import holm
from bcs_lab.files import read_json
from bcs_lab.paired import BEST, MEAN, PAIRED
from bcs_lab.report.table import RUN, Row, aligned, escape_markdown, number

#: Column of the result tables -> key in ``paired.json``.
AXES: Mapping[str, tuple[str, str]] = {"pas_rho": ("t_pas", "T-PAS"), "sas_rho": ("t_sas", "T-SAS")}
#: Adjusted p values below this are marked.
ALPHA = 0.05


@dataclass(frozen=True)
class Quality:
    """One number of a run, or of a plain cosine on the same pairs.

    Attributes:
        value: Spearman's correlation with the consensus; ``None`` where undefined.
        interval: 95 %, or ``None``.
        tests: opponent -> ``name``, ``difference``, ``interval``, ``p`` and ``holm``.
    """

    value: float | None
    interval: Sequence[float] | None = None
    tests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class LabelStudy:
    """A sweep over the number of training pairs.

    Attributes:
        sizes: numbers of training pairs, ascending.
        everything: the size that is all there are, if it is among them.
        quality: column -> (encoders, recipe) -> size -> quality.
        cosines: column -> encoders -> name of a cosine -> quality; the same at every size.
        pairs: test pairs, and concepts among them where known.
        validated: whether all runs are cross-validations.
    """

    sizes: tuple[int, ...]
    everything: int | None
    quality: Mapping[str, Mapping[tuple[str, str], Mapping[int, Quality]]]
    cosines: Mapping[str, Mapping[str, Mapping[str, Quality]]]
    pairs: str
    validated: bool

    @property
    def encoders(self) -> list[str]:
        """Labels of the encoders, in the order of the runs."""
        return list(dict.fromkeys(encoders for encoders, _ in next(iter(self.quality.values()))))

    def size_name(self, size: int) -> str:
        """A heading; says which size is all there are."""
        return f"{size} (all)" if size == self.everything else str(size)

    def opponents(self) -> list[str]:
        """Opponents that any run was tested against."""
        found = {
            name
            for runs in self.quality.values()
            for sizes in runs.values()
            for quality in sizes.values()
            for name in quality.tests
        }
        return [name for name in (BEST, MEAN) if name in found]


def label_study(rows: Sequence[Row]) -> LabelStudy | None:
    """What the runs say of the number of labels; ``None`` where it does not vary or the test pairs do.

    Args:
        rows: of :func:`bcs_lab.report.compare.collect`; of two runs of one recipe and size the first counts.
    """
    runs = [row for row in rows if row.kind == RUN]
    if len({row.facts.get("train_pairs") for row in runs}) < 2:
        return None
    if len({(row.facts["corpus"], row.facts["teachers"], row.facts["test_hash"]) for row in runs}) > 1:
        return None
    whole = {_count(row) for row in runs if row.facts.get("train_pairs") is None}
    sizes = tuple(sorted({_count(row) for row in runs}))
    paired = {str(row.facts["run"]): _paired(Path(str(row.facts["run"]))) for row in runs}
    quality: dict[str, dict[tuple[str, str], dict[int, Quality]]] = {column: {} for column in AXES}
    cosines: dict[str, dict[str, dict[str, Quality]]] = {column: {} for column in AXES}
    for column, (axis, _) in AXES.items():
        for row in runs:
            found = paired[str(row.facts["run"])]
            values = found[axis]["rho"] if found else {}
            key = str(row.facts["encoder"]), str(row.facts["recipe"])
            quality[column].setdefault(key, {}).setdefault(
                _count(row), Quality(row.values.get(column), row.ci95.get(column), values.get("against", {}))
            )
            for name, cosine in values.get("cosines", {}).items():
                cosines[column].setdefault(key[0], {}).setdefault(name, Quality(cosine["value"], cosine["interval"]))
        _adjust(quality[column], sizes)
    known = next((found for found in paired.values() if found), None)
    pairs = f"{runs[0].facts['n_test']} test pairs" + (f" of {known['concepts']} concepts" if known else "")
    return LabelStudy(
        sizes,
        max(whole) if whole else None,
        quality,
        cosines,
        pairs,
        all(found is not None for found in paired.values()),
    )


def _count(row: Row) -> int:
    return int(row.facts["n_train"] or 0)


def _paired(folder: Path) -> dict[str, Any] | None:
    try:
        found = read_json(folder / PAIRED)
    except (OSError, RunError):
        return None
    return found if isinstance(found, dict) and all(axis in found for axis, _ in AXES.values()) else None


def _adjust(quality: dict[tuple[str, str], dict[int, Quality]], sizes: Iterable[int]) -> None:
    """Holm's correction over all recipes and encoders that meet one opponent at one size."""
    for size in sizes:
        for opponent in (BEST, MEAN):
            keys = [key for key, cells in quality.items() if size in cells and opponent in cells[size].tests]
            adjusted = holm([quality[key][size].tests[opponent].get("p") for key in keys])
            for key, value in zip(keys, adjusted, strict=True):
                cell = quality[key][size]
                tests = {**cell.tests, opponent: {**cell.tests[opponent], "holm": value}}
                quality[key][size] = Quality(cell.value, cell.interval, tests)


# --- words ------------------------------------------------------------------------------------------------------------


def signed(value: float | None) -> str:
    """Three decimals with a sign.

    >>> signed(0.0123), signed(-0.5), signed(None)
    ('+0.012', '−0.500', '–')
    """
    return "–" if value is None else f"{round(value, 3) + 0.0:+.3f}".replace("-", "−")


def difference(test: Mapping[str, Any]) -> str:
    """A difference and its interval: ``+0.012 [−0.003, +0.030]``."""
    bounds = test.get("interval")
    text = signed(test.get("difference"))
    return f"{text} [{signed(bounds[0])}, {signed(bounds[1])}]" if bounds else text


def p_value(p: float | None) -> str:
    """Three decimals; smaller ones only say so.

    >>> p_value(0.0004), p_value(0.2), p_value(None)
    ('<0.001', '0.200', '–')
    """
    return "–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


def mark(quality: Quality) -> str:
    """``▲`` for a run that is better than the best cosine of its encoders, ``▽`` for one that is worse, by Holm's p."""
    test = quality.tests.get(BEST)
    if not test or test.get("holm") is None or test["holm"] >= ALPHA:
        return ""
    return "▲" if (test["difference"] or 0) > 0 else "▽"


def best_of(study: LabelStudy, column: str) -> dict[int, float]:
    """The highest value of every size, as shown."""
    out: dict[int, float] = {}
    for cells in study.quality[column].values():
        for size, quality in cells.items():
            if quality.value is not None:
                out[size] = max(out.get(size, -2.0), round(quality.value, 3))
    return out


def notes(study: LabelStudy, best: str = "*") -> list[str]:
    """How to read the tables; ``best`` is how the best of a column is marked."""
    how = "pooled over folds of whole concepts" if study.validated else "of one split"
    said = [
        f"Spearman's ρ with the consensus on {study.pairs}, {how}; columns: pairs learned from. "
        f"{best}: best of a column; intervals: 95 %, whole concepts resampled.",
    ]
    if study.opponents():
        said.append(
            "▲ better, ▽ worse than the best plain cosine of the same encoders (the one that is best on these very "
            f"pairs): paired bootstrap over concepts, p < {ALPHA:g} after Holm's correction over all rows of a column."
        )
    return said


def tables(study: LabelStudy) -> str:
    """Plain text: a table an axis, values with their marks, cosines beneath."""
    blocks = []
    for column, (_, name) in AXES.items():
        lines = [[name, *map(study.size_name, study.sizes)]]
        best = best_of(study, column)
        for encoders in study.encoders:
            lines.append([f"— {encoders}", *[""] * len(study.sizes)])
            for (own, recipe), cells in study.quality[column].items():
                if own == encoders:
                    lines.append([recipe, *(_plain(cells.get(size), best.get(size)) for size in study.sizes)])
            for cosine, quality in study.cosines[column].get(encoders, {}).items():
                lines.append([f"({cosine})", *[number(quality.value)] * len(study.sizes)])
        blocks.append("\n".join(aligned(lines)))
    return "\n\n".join([*blocks, "\n".join(notes(study))])


def _plain(quality: Quality | None, best: float | None) -> str:
    if quality is None:
        return ""
    star = "*" if quality.value is not None and round(quality.value, 3) == best else ""
    return f"{mark(quality)}{number(quality.value)}{star}"


def markdown(study: LabelStudy) -> str:
    """The same with intervals, and a table of tests an opponent and axis."""
    parts = []
    for column, (_, name) in AXES.items():
        best = best_of(study, column)
        head = ["encoders", "recipe", *map(study.size_name, study.sizes)]
        body = []
        for (encoders, recipe), cells in study.quality[column].items():
            shown = [_cell(cells.get(size), best.get(size)) for size in study.sizes]
            body.append([escape_markdown(encoders), escape_markdown(recipe), *shown])
        for encoders, own in study.cosines[column].items():
            for cosine, quality in own.items():
                shown = [_cell(quality, None), *["same"] * (len(study.sizes) - 1)]
                body.append([escape_markdown(encoders), f"*{escape_markdown(cosine)}*", *shown])
        parts += [f"### {name}, Spearman's ρ\n", _markdown_table(head, body)]
    parts.append("\n".join([*notes(study, "Bold"), ""]))
    for opponent in study.opponents():
        for column, (_, name) in AXES.items():
            head = ["encoders", "recipe", *map(study.size_name, study.sizes)]
            body = [
                [
                    escape_markdown(encoders),
                    escape_markdown(recipe),
                    *(_test(cells.get(size), opponent) for size in study.sizes),
                ]
                for (encoders, recipe), cells in study.quality[column].items()
                if any(opponent in quality.tests for quality in cells.values())
            ]
            parts += [f"### {name}: difference to the {opponent}, and Holm's p\n", _markdown_table(head, body)]
    return "\n".join(parts)


def _cell(quality: Quality | None, best: float | None) -> str:
    if quality is None:
        return ""
    value = number(quality.value)
    if quality.value is not None and round(quality.value, 3) == best:
        value = f"**{value}**"
    low_high = "" if not quality.interval else f" [{number(quality.interval[0])}, {number(quality.interval[1])}]"
    return f"{mark(quality)}{value}{low_high}"


def _test(quality: Quality | None, opponent: str) -> str:
    if quality is None or opponent not in quality.tests:
        return ""
    test = quality.tests[opponent]
    text = f"{difference(test)}, p {p_value(test.get('holm'))}"
    return f"**{text}**" if test.get("holm") is not None and test["holm"] < ALPHA else text


def _markdown_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body), ""])


def page_tables(study: LabelStudy) -> list[dict[str, Any]]:
    """What the page shows: per axis groups of rows, and per opponent a table of tests."""
    out: list[dict[str, Any]] = []
    for column, (_, name) in AXES.items():
        best = best_of(study, column)
        groups = []
        for encoders in study.encoders:
            rows = [
                (recipe, "run", [_page_cell(cells.get(size), best.get(size)) for size in study.sizes])
                for (own, recipe), cells in study.quality[column].items()
                if own == encoders
            ]
            rows += [
                (cosine, "baseline", [_page_cell(quality, None)] * len(study.sizes))
                for cosine, quality in study.cosines[column].get(encoders, {}).items()
            ]
            groups.append((encoders, rows))
        tests = []
        for opponent in study.opponents():
            lines = [
                (encoders, recipe, [_page_test(cells.get(size), opponent) for size in study.sizes])
                for (encoders, recipe), cells in study.quality[column].items()
                if any(opponent in quality.tests for quality in cells.values())
            ]
            tests.append((opponent, lines))
        out.append({"name": name, "sizes": list(map(study.size_name, study.sizes)), "groups": groups, "tests": tests})
    return out


def _page_cell(quality: Quality | None, best: float | None) -> dict[str, Any]:
    if quality is None:
        return {"value": "", "interval": "", "mark": "", "best": False}
    bounds = quality.interval
    return {
        "value": number(quality.value),
        "interval": f"{number(bounds[0])} to {number(bounds[1])}" if bounds else "",
        "mark": mark(quality),
        "best": quality.value is not None and round(quality.value, 3) == best,
    }


def _page_test(quality: Quality | None, opponent: str) -> dict[str, Any]:
    test = quality.tests.get(opponent) if quality is not None else None
    if test is None:
        return {"value": "", "p": "", "strong": False}
    p = test.get("holm")
    return {"value": difference(test), "p": f"p {p_value(p)}", "strong": p is not None and p < ALPHA}
