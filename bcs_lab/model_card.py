"""The model card: what a saved ensemble is, how to use it and what it is not, as Markdown with hub metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bcs_lab.conformal import DEFAULT_COVERAGE

if TYPE_CHECKING:
    from bcs_lab.ensemble import Ensemble

SIMULATED = (
    "**SIMULATED TEACHERS.** The answers this model learned from were computed, not given by vision-language models or "
    "people. Use it to try things out, not to judge reconstructions."
)


def model_card(ensemble: Ensemble) -> str:
    """The card's text.

    Args:
        ensemble: with ``digest`` and, as far as known, ``metrics``, ``conformal`` and ``provenance``.
    """
    encoders = " + ".join(str(encoder["label"]) for encoder in ensemble.encoders)
    parts = [
        "---\nlibrary_name: bcs_lab\ntags:\n- bcs_lab\n- image-reconstruction-evaluation\n- EEG\n- fMRI\n---\n",
        "# BCI-Coherence Score\n",
        "Scores how well an image reconstructed from brain signals matches the image that was seen: T-PAS (to the eye) "
        "and T-SAS (in meaning), each the mean of six answers between 0 (no) and 1 (yes).\n",
        *([SIMULATED + "\n"] if ensemble.simulated_teachers else []),
        *([_stand_ins(ensemble)] if any(encoder["stand_in"] for encoder in ensemble.encoders) else []),
        "```sh\nbcs score model=THIS_FOLDER reference=ref.png reconstruction=rec.png\n```\n",
        "## What it is\n",
        _facts(ensemble, encoders),
        *_metrics(ensemble),
        *_intervals(ensemble),
        "## What it is not\n",
        "It repeats the judgement of its teachers, errors included, and was measured on held-out pairs of its own "
        "corpus only. Pictures unlike its training images are flagged (`ood`) and their scores should be checked by "
        "eye. A difference between two decoders counts when the paired interval of `bcs score` leaves zero.\n",
    ]
    return "\n".join(parts)


def _stand_ins(ensemble: Ensemble) -> str:
    names = ", ".join(str(encoder["label"]) for encoder in ensemble.encoders if encoder["stand_in"])
    return f"**STAND-IN ENCODERS.** Not the encoders asked for at training: {names}.\n"


def _facts(ensemble: Ensemble, encoders: str) -> str:
    known = ensemble.provenance
    counts = known.get("counts") or {}
    negatives = float(known.get("negatives") or 0.0)
    trained = ", ".join(f"{counts[part]} {part}" for part in ("train", "val", "test") if part in counts)
    facts = {
        "identity": ensemble.digest,
        "encoders": encoders,
        "features": f"{len(ensemble.features['names'])} similarities of a pair"
        if ensemble.kind == "similarity"
        else None,
        "known negatives": f"references beside reconstructions of other concepts, weight {negatives:g}"
        if negatives
        else None,
        "head": f"{ensemble.head['name']}, {len(ensemble.seeds)} members",
        "protocol": f"{ensemble.protocol}, {len(ensemble.questions)} questions",
        "teachers": ", ".join(ensemble.teachers) + (" (simulated)" if ensemble.simulated_teachers else ""),
        "corpus": f"{known['corpus']}, {known['pairs']:,} pairs of {known['concepts']:,} concepts ({trained})"
        if {"corpus", "pairs", "concepts"} <= set(known)
        else None,
        "split": f"{ensemble.split['scheme']}, seed {ensemble.split['seed']}",
        "written by": f"bcs_lab {known['bcs_lab']}, {known['created']}"
        if {"bcs_lab", "created"} <= set(known)
        else None,
    }
    lines = ["| | |", "|---|---|", *(f"| {key} | {_cell(value)} |" for key, value in facts.items() if value)]
    return "\n".join(lines) + "\n"


def _metrics(ensemble: Ensemble) -> list[str]:
    from bcs_lab.report.table import RUN, Row, markdown_table

    metrics: dict[str, Any] = ensemble.metrics or {}
    if "ensemble" not in metrics:
        return []
    row = Row(RUN, "this model", metrics["ensemble"], metrics.get("ci95") or {})
    return ["## Held-out test pairs\n", markdown_table([row])]


def _intervals(ensemble: Ensemble) -> list[str]:
    if ensemble.conformal is None:
        return []
    widths = ", ".join(
        f"{name} ± {width:.2f}" if width < 1 else f"{name}: the whole range (too few validation concepts)"
        for axis, name in (("t_pas", "T-PAS"), ("t_sas", "T-SAS"))
        if (width := ensemble.conformal.half_width(axis, DEFAULT_COVERAGE)) is not None
    )
    held_out = ensemble.provenance.get("held_out_coverage") or {}
    shares = [
        f"{name} {held_out[axis]:.0%}"
        for axis, name in (("t_pas", "T-PAS"), ("t_sas", "T-SAS"))
        if held_out.get(axis) is not None
    ]
    measured = f" On test concepts they covered {' and '.join(shares)}." if shares else ""
    return [
        "## Intervals\n",
        f"Split-conformal over validation concepts at {DEFAULT_COVERAGE:.0%} coverage: {widths}.{measured}\n",
    ]


def _cell(value: str) -> str:
    from bcs_lab.report.table import escape_markdown

    return escape_markdown(value)
