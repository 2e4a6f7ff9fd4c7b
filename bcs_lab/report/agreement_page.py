"""The agreement of teachers as one self-contained page, with the pairs they judge most differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from bcs_lab import __version__
from bcs_lab.corpus.schema import Corpus
from bcs_lab.files import write_text
from bcs_lab.report.agreement_tables import paper_of, spoken_row
from bcs_lab.report.figures import COLOURS, INK
from bcs_lab.report.page import THEME_SCRIPT, asset, environment, script_hash
from bcs_lab.report.page_charts import forest
from bcs_lab.report.page_corpus import Pictures
from bcs_lab.report.page_view import plural, share
from bcs_lab.report.table import interval, number
from bcs_lab.results import AXES

Result = Mapping[str, Any]

_KINDS = {"t_pas": "pas", "t_sas": "sas"}

#: No, somewhat, yes; as in the report of a run.
_ENDS = ((213, 94, 0), (240, 228, 66), (0, 114, 178))


def write_page(result: Result, corpus: Corpus, path: Path) -> Path:
    """Write ``agreement.html``.

    Args:
        result: of :func:`bcs_lab.teacher_agreement.analyze`.
        corpus: the same, for pictures and rationales.
        path: of the page.
    """
    script = asset("page.js", "agreement.js")
    pictures = Pictures()
    text = (
        environment()
        .get_template("agreement.html.j2")
        .render(
            title=f"Agreement of teachers: {corpus.name}",
            style=Markup(asset("report.css", "agreement.css")),
            script=Markup(script),
            theme_script=Markup(THEME_SCRIPT),
            script_hashes=Markup(" ".join(script_hash(code) for code in (THEME_SCRIPT, script))),
            axes=AXES,
            moved={"questions": "answers", **AXES},
            kinds=_KINDS,
            result=result,
            lead=_lead(result),
            banner=_banner(result),
            tiles=_tiles(result),
            teachers=[_teacher(result, at) for at in range(len(result["by_teacher"]))],
            levels=_levels(result),
            matrices=_matrices(result),
            pairs=[_pair_row(result, row) for row in result["pairwise"]],
            questions=[_question(row) for row in result["questions"]],
            influence=result["influence"],
            galleries=[_gallery(result, corpus, pictures, gallery) for gallery in result["disagreement"]["galleries"]],
            has_pictures=corpus.root is not None,
            teacher_colour=teacher_colour,
            rate=rate,
            facts=_facts(result),
        )
    )
    write_text(path, text)
    return path


# --- head -----------------------------------------------------------------------------------------------------------


def _lead(result: Result) -> str:
    used = result["used"]
    text = (
        f"{', '.join(result['teachers'])} on {plural(result['n_pairs'], 'pair')} of "
        f"{plural(result['settings']['clusters'], 'concept')}: {result['n_items']:,} answers to compare"
    )
    if used["items_dropped"]:
        text += f"; {used['items_dropped']:,} questions about a pair are left out, since a teacher did not answer them"
    return text + "."


def _banner(result: Result) -> list[str]:
    return [note for note in result["notes"] if note.startswith(("SIMULATED", "Only "))]


def _tiles(result: Result) -> list[dict[str, str]]:
    ci, paper = result["ci95"], result["paper"] or {}
    alpha, pairs = result["alpha"]["ordinal"], [row for row in result["pairwise"] if row["weighted_kappa"] is not None]

    def tile(name: str, value: str, *notes: str) -> dict[str, str]:
        return {"name": name, "value": value, "note": "\n".join(note for note in notes if note)}

    def bounds(own: Sequence[float] | None) -> str:
        return f"95 % {interval(own)}" if own else ""

    def published(key: str) -> str:
        return f"paper’s corpus {number(paper[key])}" if key in paper else ""

    labels = [label for label, _ in _levels(result)]
    ends = labels[0], labels[-1]
    tiles = [
        tile("Unanimous", share(result["unanimous_rate"]), _percents(ci["unanimous_rate"]),
             f"paper’s corpus {share(paper['unanimous_rate'])}" if paper else ""),
        tile("Fleiss’ κ", number(result["fleiss_kappa"]), bounds(ci["fleiss_kappa"]), published("fleiss_kappa")),
        tile("Krippendorff’s α", number(alpha["value"]), bounds(alpha["ci95"]), "ordinal"),
        tile("Both ends of the scale", rate(result["patterns"]["opposite"]),
             f"one teacher {ends[0]}, another {ends[1]}"),
    ]  # fmt: skip
    if pairs:
        most = max(pairs, key=lambda row: row["weighted_kappa"])
        least = min(pairs, key=lambda row: row["weighted_kappa"])
        tiles.append(
            tile("Weighted κ of two", f"{number(least['weighted_kappa'])} to {number(most['weighted_kappa'])}",
                 f"least: {least['first']}, {least['second']}", f"most: {most['first']}, {most['second']}")
            | {"kind": "long"}
        )  # fmt: skip
    spoken = [row["similarity"] for row in result["rationales"]["pairwise"]]
    if spoken:
        chance = [row["other_pair"] for row in result["rationales"]["pairwise"] if row["other_pair"] is not None]
        baseline = f"{sum(chance) / len(chance):.2f} for rationales of other pairs" if chance else ""
        tiles.append(
            tile("Rationales alike", f"{sum(spoken) / len(spoken):.2f}", "mean cosine of two teachers", baseline)
        )
    return tiles


def rate(value: float | None) -> str:
    """A share in per cent, small ones with a decimal; a dash where undefined."""
    if value is None or value == 0 or value >= 0.095:
        return share(value)
    return f"{value:.1%}".replace("%", " %")


def _percents(bounds: Sequence[float] | None) -> str:
    return f"95 % {bounds[0]:.0%}–{bounds[1]:.0%}".replace("%", " %") if bounds else ""


# --- tables ---------------------------------------------------------------------------------------------------------


def _levels(result: Result) -> list[tuple[str, str]]:
    """Label and colour of each answer, from worst to best."""
    levels = sorted(result["protocol"]["levels"].items(), key=lambda item: item[1])
    return [(label, _colour(score)[0]) for label, score in levels]


def _colour(score: float) -> tuple[str, str]:
    """Background and text of an answer."""
    low, high, part = (*_ENDS[:2], 2 * score) if score < 0.5 else (*_ENDS[1:], 2 * score - 1)
    rgb = [round(a + part * (b - a)) for a, b in zip(low, high, strict=True)]
    light = sum(weight * value for weight, value in zip((0.299, 0.587, 0.114), rgb, strict=True)) / 255
    return f"rgb({rgb[0]} {rgb[1]} {rgb[2]})", INK if light > 0.52 else "#ffffff"


def _teacher(result: Result, at: int) -> dict[str, Any]:
    row = result["by_teacher"][at]
    pieces, words = [], []
    for label, colour in _levels(result):
        part = row.get(f"share_{label}")
        if part:
            pieces.append(
                f'<i style="width:{100 * part:.2f}%;background:{colour}" title="{escape(label)} {part:.0%}"></i>'
            )
        words.append(f"{label} {share(part)}")
    label = escape(", ".join(words))
    bar = Markup(f'<span class="regimebar" role="img" aria-label="{label}">{"".join(pieces)}</span>')
    paper = row["paper"] or {}
    charts = {
        axis: forest(row[axis], row[f"{axis}_lo"], row[f"{axis}_hi"], kind, paper.get(axis))
        for axis, kind in _KINDS.items()
    }
    return {**row, "bar": bar, "words": ", ".join(words), "charts": charts, "bounds": _all_bounds(row, AXES)}


def _all_bounds(row: Mapping[str, Any], names: Sequence[str] | Mapping[str, str]) -> dict[str, list[float] | None]:
    return {name: None if row[f"{name}_lo"] is None else [row[f"{name}_lo"], row[f"{name}_hi"]] for name in names}


def _matrices(result: Result) -> list[dict[str, Any]]:
    """Figure 3: a table of shaded cells for answers and one for rationales."""
    if not result["pairwise"]:
        return []
    paper = result["paper"] or {}
    out = [_matrix(result, "weighted_kappa", "Answers", "Cohen’s κ with linear weights", paper)]
    if result["rationale_similarity"] is not None:
        out.append(_matrix(result, "rationale_similarity", "Rationales", "mean cosine of sentence embeddings", paper))
    return out


def _matrix(result: Result, key: str, title: str, what: str, paper: Mapping[str, Any]) -> dict[str, Any]:
    names, table = result["teachers"], result[key]
    published = paper.get(key, {})
    rows = [
        [
            {
                "value": number(table[a][b]) if a != b else ("1" if table[a][b] is not None else "–"),
                "shade": round(0.04 + 0.62 * max(0.0, table[a][b] or 0.0), 3),
                "own": a == b,
                "paper": published.get(a, {}).get(b),
            }
            for b in names
        ]
        for a in names
    ]
    return {"title": title, "what": what, "rows": rows}


def _pair_row(result: Result, row: Mapping[str, Any]) -> dict[str, Any]:
    shares = [("exact", "var(--accent)", 0.85), ("adjacent", "var(--accent)", 0.4), ("opposite", "var(--sas)", 0.9)]
    pieces = "".join(
        f'<i style="width:{100 * (row[name] or 0):.2f}%;background:{colour};opacity:{opacity}" '
        f'title="{name} {row[name] or 0:.0%}"></i>'
        for name, colour, opacity in shares
    )
    bar = Markup(f'<span class="regimebar" aria-hidden="true">{pieces}</span>')
    names = ["weighted_kappa", *(f"{axis}_{name}" for axis in AXES for name in ("pearson", "spearman", "difference"))]
    spoken = spoken_row(result, row)
    return {
        **row,
        "bar": bar,
        "bounds": _all_bounds(row, names),
        "spoken": spoken,
        "spoken_bounds": _all_bounds(spoken, ["similarity"])["similarity"] if spoken else None,
        "paper_kappa": paper_of(result, "weighted_kappa", row),
        "paper_spoken": paper_of(result, "rationale_similarity", row),
    }


def _question(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "bounds": _all_bounds(row, ("unanimous", "kappa")), "paper": row["paper"] or {}}


# --- galleries ------------------------------------------------------------------------------------------------------


def _gallery(result: Result, corpus: Corpus, pictures: Pictures, gallery: Mapping[str, Any]) -> dict[str, Any]:
    return {**gallery, "cards": [_card(result, corpus, pictures, pair) for pair in gallery["pairs"]]}


def _card(result: Result, corpus: Corpus, pictures: Pictures, pair: Mapping[str, Any]) -> dict[str, Any]:
    row = pair["row"]
    shown = []
    for name, path in (
        ("reference", corpus.reference_file(row) if corpus.root is not None else None),
        ("reconstruction", corpus.reconstruction_file(row) if corpus.root is not None else None),
    ):
        place = pictures.place(path, corpus.max_image_pixels)
        shown.append((name, None if place is None else pictures.uris[place]))
    origin = [pair["method"], str(corpus.pairs["subject"].iloc[row]), pair["pair_id"]]
    words = {score: label for label, score in result["protocol"]["levels"].items()}
    questions = []
    for question, name in result["protocol"]["questions"].items():
        at = corpus.protocol.ids.index(question)
        said = []
        for teacher in result["teachers"]:
            answer = pair["answers"][teacher][question]
            text = str(corpus.rationales[row, corpus.teachers.index(teacher), at]).strip()
            said.append({"teacher": teacher, "answer": _cell(answer, words), "text": text})
        group = corpus.protocol.questions[at].group
        questions.append({"id": question, "name": name, "group": group, "said": said})
    return {
        "title": pair["concept"].replace("_", " ") if pair["concept"] not in ("", "na") else pair["pair_id"],
        "origin": " · ".join(text for text in origin if text not in ("", "na")),
        "pictures": shown if corpus.root is not None else [],
        "scores": [_score(result, pair, axis) for axis in AXES],
        "questions": questions,
        "opposite": int(pair["apart_opposite"]),
        "has_rationales": any(own["text"] for question in questions for own in question["said"]),
    }


def _cell(answer: float | None, words: Mapping[float, str]) -> dict[str, str]:
    if answer is None:
        return {"word": "not answered", "letter": "·", "style": ""}
    word = next(label for score, label in words.items() if abs(score - answer) < 1e-6)
    background, ink = _colour(answer)
    return {"word": word, "letter": word[:1], "style": f"background:{background};color:{ink}"}


def _score(result: Result, pair: Mapping[str, Any], axis: str) -> dict[str, Any]:
    """Where each teacher puts a pair on an axis."""
    known = {name: value for name, value in pair[axis].items() if value is not None}
    dots = [
        {"at": f"{100 * value:.1f}", "colour": teacher_colour(result, name), "title": f"{name} {value:.2f}"}
        for name, value in known.items()
    ]
    low, high = (min(known.values()), max(known.values())) if known else (0.0, 0.0)
    return {
        "name": AXES[axis],
        "kind": _KINDS[axis],
        "dots": dots,
        "left": f"{100 * low:.1f}",
        "width": f"{100 * (high - low):.1f}",
        "text": f"{low:.2f}–{high:.2f}" if known else "–",
    }


def teacher_colour(result: Result, name: str) -> str:
    """One colour a teacher; beyond six they come again."""
    return COLOURS[result["teachers"].index(name) % len(COLOURS)]


# --- provenance -----------------------------------------------------------------------------------------------------


def _facts(result: Result) -> list[tuple[str, str]]:
    used, settings, spoken = result["used"], result["settings"], result["rationales"]
    dropped = ", ".join(f"{n:,} {why}" for why, n in used["dropped"].items() if n)
    facts = [
        ("Corpus", result["corpus"] + (" (SIMULATED teachers)" if result["simulated_teachers"] else "")),
        ("Teachers", ", ".join(result["teachers"])),
        ("Protocol", result["protocol"]["name"] + (f" {result['protocol']['digest'] or ''}").rstrip()),
        ("Pairs", f"{used['pairs']:,} of {used['corpus_pairs']:,} with an item that every teacher answered"),
        ("Items", f"{used['items']:,} of {used['possible_items']:,}" + (f"; dropped: {dropped}" if dropped else "")),
        ("Missing answers", ", ".join(f"{name} {n:,}" for name, n in used["missing"].items())),
        ("Fleiss’ κ", settings["fleiss"] + ", complete items"),
        ("Weighted κ", settings["weighted_kappa"]),
        ("Intervals", f"{settings['interval']}, {settings['resamples']:,} resamples, seed {settings['seed']}"),
    ]
    if spoken.get("model"):
        parts = [
            spoken["model"],
            spoken["source"],
            f"weights {spoken['weights_sha256'][:12]}…",
            spoken["pooling"],
            f"at most {spoken['max_length']} tokens",
            f"{spoken['items']:,} items",
            f"{spoken['distinct_texts']:,} distinct texts",
            f"{spoken['cut_texts']:,} cut",
        ]
        facts.append(("Rationales", ", ".join(parts)))
    else:
        facts.append(("Rationales", f"not compared: {spoken['reason']}"))
    loose = result["fleiss_per_item"]
    facts.append(
        ("Fleiss’ κ of items with two answers or more", f"{number(loose['kappa'])} over {loose['items']:,} items")
    )
    facts.append(("bcs_lab", f"{__version__}, {datetime.now(UTC):%Y-%m-%d}"))
    return facts
