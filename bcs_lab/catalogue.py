"""What can be run and chosen: the tasks of the command line and the options of every config group. Nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Task:
    """One task of the command line.

    Attributes:
        name: one or two words after ``bcs``.
        summary: one line for the overview.
        module: module with ``run``; imported only when the task runs.
        config: primary Hydra config, or ``None`` for a task that takes plain arguments.
        examples: commands shown by ``--help``.
        usage: the arguments of a task without a config.
    """

    name: str
    summary: str
    module: str
    config: str | None
    examples: tuple[str, ...]
    usage: str = ""


#: Settings that are paths: their values may hold characters that mean something in Hydra's grammar.
PATHS = frozenset(
    {
        "model", "reference", "reconstruction", "out", "path", "run", "scores", "study", "ratings", "store", "card",
        "questions", "captions", "corpus.root", "corpus.annotations", "corpus.images", "corpus.cache",
        "protocol.path", "backend.raw", "teacher.model", "rationales.model", "sentences.model",
    }
)  # fmt: skip


TASKS: tuple[Task, ...] = (
    Task(
        "train",
        "train a BCS ensemble and evaluate it on held-out pairs",
        "bcs_lab.tasks.train",
        "train",
        (
            "bcs train                                          # 311 real pairs that ship with the package",
            "bcs train -m encoder=siglip,fusion teachers=3,4    # a sweep, compared at its end",
            "bcs train -m experiment=table6                     # the rows of the paper's Table 6",
            "bcs train corpus=manifest corpus.root=DIR encoder=embedded teachers=all",
        ),
    ),
    Task(
        "score",
        "score new reconstructions with a trained BCS",
        "bcs_lab.tasks.score",
        "score",
        (
            "bcs score model=runs/train/RUN reference=ref.png reconstruction=rec.png",
            "bcs score model=runs/train/RUN reference=refs/ reconstruction=recs/ out=scores.csv",
            "bcs score model=hf:user/repo corpus=manifest corpus.root=DIR out=scores.parquet",
        ),
    ),
    Task(
        "push",
        "upload a trained BCS to the Hugging Face hub",
        "bcs_lab.tasks.push",
        None,
        ("bcs push model=runs/train/RUN repo=user/name", "bcs push model=DIR repo=user/name private=false"),
        usage="model=DIR repo=user/name [private=true|false] [message=TEXT]\n\n"
        "  private   whether a new repository is private (default true); an existing one stays as it is\n"
        "  message   of the commit on the hub",
    ),
    Task(
        "compare",
        "one table and page from finished runs",
        "bcs_lab.tasks.compare",
        None,
        ("bcs compare runs/sweep/DIR", "bcs compare RUN1 RUN2 out=comparison"),
        usage="DIR [DIR ...] [out=DIR]",
    ),
    Task(
        "report",
        "one self-contained page about a run: numbers, calibration, galleries, every pair",
        "bcs_lab.tasks.report",
        "report",
        (
            "bcs report run=runs/train/RUN                     # report.html in that folder",
            "bcs report run=runs/score/RUN out=page.html max_mb=3",
            "bcs report 'runs=[runs/train/A,runs/train/B]'     # beside each other",
        ),
    ),
    Task(
        "annotate",
        "let a vision-language model, a teacher, answer the questions about every pair",
        "bcs_lab.tasks.annotate",
        "annotate",
        (
            "bcs annotate corpus=demo teacher=internvl3 backend=simulated",
            "bcs annotate corpus=manifest corpus.root=DIR teacher=internvl3 dry_run=5      # only shows the prompts",
            "bcs annotate corpus=manifest corpus.root=DIR teacher=any teacher.model=NAME backend=openai "
            "backend.base_url=http://127.0.0.1:8000/v1",
            "bcs annotate corpus=manifest corpus.root=DIR teacher=internvl3 backend=replay # parses saved replies",
        ),
    ),
    Task(
        "agreement",
        "how far teachers agree (Tables 4 and 5, Figure 3), and where they part",
        "bcs_lab.tasks.agreement",
        "agreement",
        (
            "bcs agreement                                      # the real pairs that ship with the package",
            "bcs agreement corpus=manifest corpus.root=DIR out=agreement",
            "bcs agreement corpus=manifest corpus.root=DIR teachers=[internvl3,ovis2] rationales.model=none",
        ),
    ),
    Task(
        "audit",
        "what conventional metrics do on your pairs (Tables 1, 2, 9, 12): where harsh, where blind",
        "bcs_lab.tasks.audit",
        "audit",
        (
            "bcs audit metrics=list                             # every metric, and whether it can run here",
            "bcs audit corpus=manifest corpus.root=DIR out=audit",
            "bcs audit corpus=manifest corpus.root=DIR out=audit metrics=[mse,ssim,lpips,cosine:siglip] "
            "captions=captions.jsonl",
        ),
    ),
    Task(
        "embed",
        "fill the embedding store, or bring in embeddings computed elsewhere",
        "bcs_lab.tasks.embed",
        "embed",
        (
            "bcs embed corpus=manifest corpus.root=DIR encoder=fusion",
            "bcs embed corpus=manifest corpus.root=DIR source=npz path=FILE.npz encoder.name=mine",
        ),
    ),
    Task(
        "corpus export",
        "write a corpus without its images: labels and embeddings in one folder",
        "bcs_lab.tasks.corpus_export",
        "corpus_export",
        ("bcs corpus export corpus=manifest corpus.root=DIR out=BUNDLE encoders=[efficientnet_lite0,lowlevel]",),
    ),
    Task(
        "corpus show",
        "draw a contact sheet: pairs beside the teachers' answers, and the truth where it is known",
        "bcs_lab.tasks.corpus_show",
        "corpus_show",
        (
            "bcs corpus show corpus=demo",
            "bcs corpus show corpus=simulated corpus.images=DIR n=24 seed=1",
        ),
    ),
    Task(
        "study select",
        "choose pairs for people to rate: high in one way only, most and least coherent (Section 5.6)",
        "bcs_lab.tasks.study_select",
        "study_select",
        (
            "bcs study select corpus=demo out=study",
            "bcs study select corpus=manifest corpus.root=DIR model=runs/train/RUN out=study",
            "bcs study select corpus.root=DIR scores=scores.parquet out=study stimuli=6 high_perceptual=4 "
            "high_semantic=4 highest=2 lowest=2",
        ),
    ),
    Task(
        "study form",
        "write the rating form of a study as one HTML file, and as a Label Studio project",
        "bcs_lab.tasks.study_form",
        "study_form",
        ("bcs study form study=study out=form.html", "bcs study form study=study questions=MINE.yaml out=form.html"),
    ),
    Task(
        "study analyze",
        "agreement between raters (Table 7), and of their ratings with T-PAS and T-SAS",
        "bcs_lab.tasks.study_analyze",
        "study_analyze",
        (
            "bcs study analyze ratings=ratings study=study out=results",
            "bcs study analyze ratings=ratings study=study kappa_weights=linear on_bad_row=skip",
        ),
    ),
)

#: Settings that only some kinds of corpus take, beside those that all have.
CORPUS_KEYS: Mapping[str, tuple[str, ...]] = {
    "demo": ("size", "seed", "cache"),
    "simulated": ("images", "per_image", "seed", "cache"),
    "manifest": ("annotations",),
}


def wrong_corpus_keys(kind: str, given: Iterable[str]) -> str:
    """Which of the given extra settings a kind of corpus does not take, as a message; ``""`` if it takes all."""
    takes = CORPUS_KEYS.get(kind, ())
    parts = []
    for key in given:
        if key not in takes:
            kinds = " and ".join(f"corpus={name}" for name, keys in CORPUS_KEYS.items() if key in keys)
            parts.append(f"{key} is a setting of {kinds}, not of corpus={kind}")
    return "corpus: " + "; ".join(parts) if parts else ""


def find_task(arguments: Sequence[str]) -> tuple[Task | None, list[str]]:
    """Match the leading words of a command line to a task; the rest are its arguments."""
    for task in TASKS:
        words = task.name.split()
        if list(arguments[: len(words)]) == words:
            return task, list(arguments[len(words) :])
    return None, list(arguments)


def config_dir() -> Path:
    """The folder of Hydra configs: ``conf/`` beside the package in a checkout, else the copy inside the wheel."""
    package = Path(__file__).resolve().parent
    checkout = package.parent / "conf"
    return checkout if (checkout / "train.yaml").is_file() else package / "conf"


def choices(group: str) -> list[str]:
    """Options of one config group; names that start with an underscore are shared parts, not options."""
    folder = config_dir() / group
    return sorted(path.stem for path in folder.glob("*.yaml") if not path.stem.startswith("_"))
