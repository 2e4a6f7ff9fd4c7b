"""``corpus=demo``: draw the plan, spoil the reconstructions, let simulated teachers answer, keep it in the cache."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bcs_lab.corpus.demo.draw import draw
from bcs_lab.corpus.demo.plan import plan_demo
from bcs_lab.corpus.demo.scene import Decoder, PairPlan, Scene
from bcs_lab.corpus.demo.spoil import spoil
from bcs_lab.corpus.images import DEFAULT_MAX_IMAGE_PIXELS
from bcs_lab.corpus.made import Made, cache_folder, ensure, read_made, save_picture, source_digest
from bcs_lab.corpus.schema import Corpus
from bcs_lab.corpus.workers import map_jobs
from bcs_lab.errors import ConfigError
from bcs_lab.teachers.protocol import BCS12, Protocol
from bcs_lab.teachers.simulated import TEACHERS, rationales, simulate

SIZES = ("small", "paper")

_PACKAGE = Path(__file__).resolve().parents[2]
#: Everything that decides what the corpus holds.
_SOURCES = (
    *sorted(Path(__file__).parent.glob("*.py")),
    *sorted(Path(__file__).parent.glob("*.yaml")),
    _PACKAGE / "corpus" / "made.py",
    _PACKAGE / "teachers" / "simulated.py",
    _PACKAGE / "assets" / "simulated_teachers.yaml",
)


def load_demo(
    root: str | Path | None = None,
    *,
    size: str = "small",
    seed: int = 0,
    cache: str | Path | None = None,
    teachers_order: Sequence[str] | None = None,
    on_bad_row: str = "error",
    max_image_pixels: int = DEFAULT_MAX_IMAGE_PIXELS,
    protocol: Protocol = BCS12,
    need_images: bool = True,
) -> Corpus:
    """The demo, made first if the cache does not hold it.

    Args:
        root: must not be given.
        size: ``small`` (about 800 pairs) or ``paper`` (6,855 pairs, composed as Table 8).
        seed: another seed is another corpus.
        cache: where made corpora are kept; by default ``BCS_CACHE``, else ``~/.cache/bcs_lab``.
        teachers_order: all or some of the simulated teachers, in another order.
        on_bad_row: kept in the corpus; the demo holds good rows only.
        max_image_pixels: kept in the corpus.
        protocol: the questions; must be those of ``BCS12``.
        need_images: has no effect, the demo always has its images.

    Raises:
        ConfigError: an argument has a value that cannot be used.
        RunError: the cache cannot be written.
    """
    if root is not None and str(root).strip():
        raise ConfigError(
            f"corpus=demo is made by the package and takes no corpus.root (got {root}); corpus.cache says where."
        )
    if size not in SIZES:
        raise ConfigError(f"corpus.size: expected one of {', '.join(SIZES)} but got {size!r}.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"corpus.seed: expected a whole number from 0 on but got {seed!r}.")
    folder = cache_folder(cache, "demo") / f"{source_digest(_SOURCES)}-{size}-seed{seed}"
    ensure(folder, lambda target: make_demo(target, size, seed), f"demo ({size}, seed {seed})")
    return read_made(
        folder,
        name="demo",
        stand_ins=True,
        teachers_order=teachers_order,
        on_bad_row=on_bad_row,
        max_image_pixels=max_image_pixels,
        protocol=protocol,
    )


def make_demo(folder: Path, size: str = "small", seed: int = 0, *, workers: int | None = None) -> Made:
    """Draw the pictures of the demo into ``folder/images``, and work out everything else.

    Args:
        folder: exists and has a sub-folder ``images``.
        size: see :func:`load_demo`.
        seed: see :func:`load_demo`.
        workers: processes that draw; the result does not depend on it.

    Returns:
        What is to be written beside the images.
    """
    plans = plan_demo(size, seed)
    seen = list(dict.fromkeys(plan.reference for plan in plans))
    decoded = list(dict.fromkeys((plan.reconstruction, plan.decoder) for plan in plans))
    jobs: list[tuple[str, Scene, Decoder | None]] = [
        *((str(folder), scene, None) for scene in seen),
        *((str(folder), scene, decoder) for scene, decoder in decoded),
    ]
    names = map_jobs(draw_one, jobs, label=f"drawing the demo ({size})", unit="image", workers=workers)
    reference = dict(zip(seen, names, strict=False))
    reconstruction = dict(zip(decoded, names[len(seen) :], strict=True))
    truth = np.array([plan.truth for plan in plans], dtype=np.float32)
    answers = simulate(truth, [plan.pair_id for plan in plans], seed)
    rows = [
        {
            "pair_id": plan.pair_id,
            "method": plan.method,
            "subject": plan.subject,
            "concept": plan.concept,
            "rank": plan.rank,
            "candidate": plan.candidate,
            "reference_path": reference[plan.reference],
            "reconstruction_path": reconstruction[plan.reconstruction, plan.decoder],
            "shows": plan.reconstruction.concept,
        }
        for plan in plans
    ]
    return Made(
        rows=rows,
        teachers=tuple(TEACHERS),
        answers=answers,
        rationales=rationales(answers, plans),
        truth=truth,
        card=_card(plans, size, seed, len(set(names))),
        kind="demo",
        settings={"size": size, "seed": seed, "recipe": source_digest(_SOURCES)},
    )


def draw_one(job: tuple[str, Scene, Decoder | None]) -> str:
    """Draw one picture, spoil it if a decoder is given, and return its name in the corpus."""
    folder, scene, decoder = job
    picture = draw(scene)
    if decoder is None:
        return save_picture(picture, Path(folder), "seen")
    return save_picture(spoil(picture, decoder), Path(folder), "decoded")


def _card(plans: Sequence[PairPlan], size: str, seed: int, images: int) -> str:
    methods: dict[str, list[PairPlan]] = {}
    for plan in plans:
        methods.setdefault(plan.method, []).append(plan)
    table = "\n".join(
        f"| {name} | {len(of)} | {len({p.subject for p in of})} | {len({p.concept for p in of})} |"
        for name, of in sorted(methods.items())
    )
    fields = ", ".join(item.name for item in dataclasses.fields(Scene))
    return f"""# Corpus demo ({size}, seed {seed})

{len(plans)} pairs of a rendered scene and a changed, spoiled rendering of it: {len({p.concept for p in plans})} \
concepts, {images} distinct images. Nothing here comes from a brain, and **the teachers are simulated**: four sets of \
answers computed from the truth, named after the paper's annotators because they imitate how often each says yes.

What is known of each pair is exact. A scene is {fields}; a reconstruction is the same scene after changes to exactly \
the things the questions ask about. `truth.parquet` holds the right answer to every question by written rules \
(`bcs_lab/corpus/demo/truth.py`); `shows` in the manifest is the concept that the reconstruction shows.

Use it to see that a pipeline works and what a method can recover when the truth is known. Numbers on it say nothing \
about real decoders; methods and subjects only have the names and counts of the paper's Table 8.

| method | pairs | subjects | concepts |
| --- | --- | --- | --- |
{table}

Silhouettes: Font Awesome Free by Fonticons, Inc. (icons CC BY 4.0, font SIL OFL 1.1). Made by bcs_lab on this machine.
"""
