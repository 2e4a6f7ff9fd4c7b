"""Write ``experiments/demo_truth.md`` from a sweep of ``experiment=demo_truth``: what is known when the truth is known.

    python train.py -m experiment=demo_truth hydra.sweep.dir=runs/demo_truth
    python train.py -m corpus=demo corpus.size=paper encoder=efficientnet_lite0 split=concept,pair \\
        hydra.sweep.dir=runs/demo_leakage
    python scripts/demo_truth.py runs/demo_truth runs/demo_leakage [--out experiments/demo_truth.md]

The second sweep is at the paper's size: with some ten test concepts in the small demo, leakage drowns in noise.

All numbers are on test pairs; intervals (95 %) come from resampling whole concepts. Differences between two runs are
paired: the same pairs, the same resamples.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from bcs_lab.errors import RunError
from bcs_lab.evaluate import bootstrap_ci, evaluate, paired_difference
from bcs_lab.files import read_json, write_text
from bcs_lab.split import concept_key
from bcs_lab.teachers.protocol import BCS12

AXES = {"T-PAS": "pas", "T-SAS": "sas"}


@dataclass(frozen=True)
class Job:
    """One training of the sweep, test pairs only, in order of pair id."""

    split: str
    head: str
    teachers: int
    weight: str
    names: list[str]
    ids: list[str]
    concepts: NDArray[Any]
    truth: NDArray[Any]
    consensus: NDArray[Any]
    prediction: NDArray[Any]
    record: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Job:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        frame = pd.read_parquet(folder / "predictions.parquet")
        frame = frame[frame["split"] == "test"].sort_values("pair_id")
        split = pd.read_parquet(folder / "split.parquet").set_index("pair_id")

        def cells(suffix: str) -> NDArray[Any]:
            return frame[[f"{question}_{suffix}" for question in BCS12.ids]].to_numpy(float)

        record = read_json(folder / "truth.json")
        return cls(
            split=config["split"]["scheme"],
            head=config["head"]["name"],
            teachers=len(record["teachers"]),
            weight=config["consensus"]["weight"],
            names=list(record["teachers"]),
            ids=list(frame["pair_id"]),
            concepts=split.loc[frame["pair_id"], "concept"].map(concept_key).to_numpy(),
            truth=cells("truth"),
            consensus=cells("target"),
            prediction=cells("prediction"),
            record=record,
        )


def with_interval(values: dict[str, Any], key: str) -> str:
    """``0.123 (0.10 to 0.15)``; a dash where undefined."""
    value, bounds = values[key], values["ci95"][key]
    return "–" if value is None else f"{value:.3f}" + (f" ({bounds[0]:.3f} to {bounds[1]:.3f})" if bounds else "")


def difference(values: dict[str, Any]) -> str:
    """``+0.012 (+0.003 to +0.021)``; bold when the interval leaves out zero."""
    value, bounds = values["difference"], values["interval"]
    if value is None or bounds is None:
        return "–"
    text = f"{value:+.3f} ({bounds[0]:+.3f} to {bounds[1]:+.3f})"
    return f"**{text}**" if bounds[0] > 0 or bounds[1] < 0 else text


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    names = list(header)
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def versus_truth(first: Job, second: Job, of: Callable[[Job], NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """Paired difference of two jobs against the truth.

    Raises:
        RunError: they were tested on different pairs.
    """
    if first.ids != second.ids:
        raise RunError("two jobs of the sweep have different test pairs, so they cannot be compared pair by pair")
    known = np.where(np.isnan(of(first)) | np.isnan(of(second)), np.nan, first.truth)
    return paired_difference(
        np.nan_to_num(of(first)), np.nan_to_num(of(second)), known, first.concepts, BCS12, n_boot=1000
    )


def page(jobs: list[Job], large: list[Job]) -> str:
    """The page as Markdown, from the jobs of the small demo and the two of the paper's size."""
    grid = {(job.split, job.head, job.teachers, job.weight): job for job in jobs}
    by_split = {job.split: job for job in large}
    base = grid["concept", "continuous", 4, "variance"]
    three = grid["concept", "continuous", 3, "variance"]
    keys = [(axis, f"{short}_{statistic}") for axis, short in AXES.items() for statistic in ("mae", "r")]
    heading = [f"{axis} {'MAE' if key.endswith('mae') else 'r'}" for axis, key in keys]

    recovery = [
        [name, *(with_interval(base.record["each_teacher"][name], key) for _, key in keys)] for name in base.names
    ]
    recovery += [
        [f"consensus of {job.teachers}", *(with_interval(job.record["consensus"], key) for _, key in keys)]
        for job in (three, base)
    ]
    gain = versus_truth(base, three, lambda job: job.consensus)
    recovery.append(["4 minus 3 teachers, paired", *(difference(gain[key]) for _, key in keys)])

    weights = []
    for head in ("continuous", "ordinal"):
        for teachers in (3, 4):
            uniform = grid["concept", head, teachers, "uniform"]
            for weight in ("variance", "step"):
                gain = versus_truth(grid["concept", head, teachers, weight], uniform, lambda job: job.prediction)
                weights.append(
                    [f"{weight} minus uniform", head, str(teachers), *(difference(gain[key]) for _, key in keys)]
                )

    heads = []
    for teachers in (3, 4):
        jobs_of = [grid["concept", head, teachers, "variance"] for head in ("ordinal", "continuous")]
        fractional = np.isin(jobs_of[0].consensus, (0.25, 0.75)).mean()
        for name, of in (("truth", "truth"), ("consensus", "consensus")):
            target = getattr(jobs_of[0], of)
            gain = paired_difference(
                jobs_of[0].prediction, jobs_of[1].prediction, target, jobs_of[0].concepts, BCS12, n_boot=1000
            )
            shown = ["q_mae", *(key for _, key in keys)]
            heads.append([str(teachers), f"{fractional:.1%}", name, *(difference(gain[key]) for key in shown)])

    leakage = []
    for split in ("concept", "pair"):
        job = by_split[split]
        for name, target in (("consensus", job.consensus), ("truth", job.truth)):
            values: dict[str, Any] = dict(evaluate(job.prediction, target, BCS12))
            values["ci95"] = bootstrap_ci(job.prediction, target, job.concepts, BCS12)
            leakage.append(
                [
                    split,
                    f"{len(job.ids)} on {len(set(job.concepts))}",
                    name,
                    *(with_interval(values, key) for _, key in keys),
                ]
            )

    return f"""# What the demo teaches, since its truth is known

Made by `python train.py -m experiment=demo_truth` and `python scripts/demo_truth.py`. The teachers are **simulated**
(`corpus=demo`), the encoders are {", ".join(base.record["encoders"])}; {len(base.ids)} test pairs on
{len(set(base.concepts))} concepts under the concept split. Intervals are 95 %, from resampling whole concepts; a
difference is paired and **bold** when its interval leaves out zero. Numbers hold for this corpus and these teachers;
what carries over is the way of asking.

{(Path(__file__).parent / "demo_truth_summary.md").read_text(encoding="utf-8")}
## How much of the truth does the consensus recover?

Scores against the true answers.

{table(["", *heading], recovery)}
## What do agreement weights buy?

The trained ensemble's scores against the truth, as differences to equal weights on the same pairs. Lower MAE and
higher r are better.

{table(["weights", "head", "teachers", *heading], weights)}
## Continuous or ordinal, when medians are fractional?

Ordinal minus continuous head on the same pairs. With three teachers every median is a level; with four some lie between
two levels (second column: share of test cells).

{table(["teachers", "fractional", "against", "Q MAE", *heading], heads)}
## How much does leakage flatter a pair split?

The same training at the paper's size (6,855 pairs), judged on held-out concepts and on pairs drawn at random, whose
concepts were seen in training. The test pairs differ, so this difference is not paired.

{table(["split", "test pairs on concepts", "against", *heading], leakage)}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="of experiment=demo_truth")
    parser.add_argument("leakage", type=Path, help="of split=concept,pair at the paper's size")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).resolve().parents[1] / "experiments" / "demo_truth.md"
    )
    arguments = parser.parse_args()
    jobs, large = (
        [Job.read(path.parent) for path in sorted(folder.glob("*/truth.json"))]
        for folder in (arguments.sweep, arguments.leakage)
    )
    write_text(arguments.out, page(jobs, large))
    print(f"{arguments.out}: {len(jobs)} + {len(large)} jobs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
