"""Simulated teachers: answers computed from the true ones, for corpora whose truth is known.

Each stands for one of the paper's four annotators and answers from the truth through its own calibration and noise. For
pair i, question q of axis g and teacher t

    y = gain[t,q] truth[i,q] + halo[t,g] h[i,g] + ease[t,q] d[i,q] + kinship[q] k[i,q] + e[i,t,q]

is cut into no, somewhat and yes at two thresholds of its own. ``h`` is how good the pair looks as a whole, ``d`` how
easy the question is on that pair, both seen by all teachers; ``k`` is shared by the two of kindred architecture only;
``e`` is the teacher's own noise. All are standard normal (``h`` correlated between the axes). The numbers are in
``assets/simulated_teachers.yaml``, found by ``scripts/fit_simulated_teachers.py`` so that the demo's paper size has the
aggregates the paper reports (Tables 4, 5 and 9, Figure 3). They are not models of the real annotators beyond that.
"""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray

from bcs_lab.errors import ConfigError
from bcs_lab.teachers.protocol import BCS12, PERCEPTUAL, SEMANTIC

if TYPE_CHECKING:
    from bcs_lab.corpus.demo.scene import PairPlan

#: The simulated teachers, named after the paper's annotators, in its order (Table 4).
TEACHERS = ("internvl3", "sail_vl", "ola", "ovis2")
#: The two whose answers share a part of their noise (the highest agreement of Figure 3).
KINDRED = ("internvl3", "ovis2")

_AXES = (PERCEPTUAL, SEMANTIC)
_PARAMETERS = "simulated_teachers.yaml"


@dataclass(frozen=True)
class Noise:
    """What a pair's answers depend on besides the truth; standard normal draws that depend on seed and pair id only.

    Attributes:
        halo: [n, 2], one value an axis (perceptual, semantic), independent of each other here.
        ease: [n, 12].
        kinship: [n, 12].
        own: [n, 4, 12], in the order of ``TEACHERS``.
    """

    halo: NDArray[np.float64]
    ease: NDArray[np.float64]
    kinship: NDArray[np.float64]
    own: NDArray[np.float64]


@dataclass(frozen=True)
class Calibration:
    """How the four teachers turn truth and noise into answers; axes are ``TEACHERS`` and the questions of ``BCS12``.

    Attributes:
        gain: [4, 12], weight of the truth (0, 0.5, 1), in units of the teacher's own noise.
        low: [4, 12], from here on the answer is "somewhat".
        high: [4, 12], from here on it is "yes"; not below ``low``.
        halo: [4, 2], weight of the whole impression of the axis.
        halo_correlation: between the two axes' impressions, -1 to 1.
        ease: [4, 12], weight of the ease of a question on a pair.
        kinship: [12], weight of the noise shared by ``KINDRED``.
    """

    gain: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    halo: NDArray[np.float64]
    halo_correlation: float
    ease: NDArray[np.float64]
    kinship: NDArray[np.float64]


def simulate(
    truth: NDArray[np.floating], pair_ids: Sequence[str], seed: int, teachers: Sequence[str] = TEACHERS
) -> NDArray[np.float32]:
    """Answers of the simulated teachers.

    Args:
        truth: [n, 12] true answers in 0 to 1, in the order of ``BCS12``; NaN where the true answer cannot be known.
        pair_ids: [n] ids; a pair's answers depend on its id, its truth and the seed, not on the other pairs.
        seed: another seed gives other noise.
        teachers: which of ``TEACHERS``, in the order wanted; a teacher's answers do not depend on the others asked.

    Returns:
        float32 [n, n_teachers, 12] in {0, 0.5, 1}; NaN where the truth is NaN.

    Raises:
        ConfigError: a teacher is unknown.
        ValueError: shapes do not fit.
    """
    truth = np.asarray(truth, dtype=np.float64)
    if truth.shape != (len(pair_ids), len(BCS12.questions)):
        raise ValueError(
            f"Expected `truth` to be [{len(pair_ids)} pairs, {len(BCS12.questions)} questions] but got {truth.shape}."
        )
    unknown = [name for name in teachers if name not in TEACHERS]
    if unknown:
        raise ConfigError(
            f"No simulated teacher called {', '.join(map(repr, unknown))}; there are {', '.join(TEACHERS)}."
        )
    chosen = [TEACHERS.index(name) for name in teachers]
    calibration = load_calibration()
    noise = draw_noise(pair_ids, seed)
    latent = (latent_means(truth, noise, calibration) + noise.own)[:, chosen]
    answers = 0.5 * (latent >= calibration.low[chosen]) + 0.5 * (latent >= calibration.high[chosen])
    return np.where(np.isnan(truth)[:, None, :], np.nan, answers).astype(np.float32)


def latent_means(truth: NDArray[np.floating], noise: Noise, calibration: Calibration) -> NDArray[np.float64]:
    """[n, 4, 12], the latent response without the teachers' own noise; NaN where ``truth`` is."""
    rho = calibration.halo_correlation
    halo = np.stack([noise.halo[:, 0], rho * noise.halo[:, 0] + np.sqrt(1 - rho**2) * noise.halo[:, 1]], axis=1)
    axis = [_AXES.index(question.group) for question in BCS12.questions]
    kindred = np.array([float(name in KINDRED) for name in TEACHERS])
    return (
        calibration.gain * truth[:, None, :]
        + (calibration.halo[None] * halo[:, None, :])[:, :, axis]
        + calibration.ease * noise.ease[:, None, :]
        + kindred[:, None] * (calibration.kinship * noise.kinship)[:, None, :]
    )


def draw_noise(pair_ids: Sequence[str], seed: int) -> Noise:
    """Noise of each pair from its id and the seed; see :class:`Noise`."""
    from scipy.special import ndtri

    questions = len(BCS12.questions)
    sizes = (len(_AXES), questions, questions, len(TEACHERS) * questions)
    uniform = np.empty((len(pair_ids), sum(sizes)))
    for row, pair_id in enumerate(pair_ids):
        digest = hashlib.sha256(f"teachers\0{seed}\0{pair_id}".encode()).digest()
        uniform[row] = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little"))).random(sum(sizes))
    # Half a step up keeps 0 out: numpy's uniform numbers are multiples of 2**-53 in [0, 1).
    normal = ndtri(uniform + 2.0**-54)
    halo, ease, kinship, own = np.split(normal, np.cumsum(sizes)[:-1], axis=1)
    return Noise(halo, ease, kinship, own.reshape(-1, len(TEACHERS), questions))


@functools.cache
def load_calibration() -> Calibration:
    """The shipped calibration."""
    text = resources.files("bcs_lab.assets").joinpath(_PARAMETERS).read_text(encoding="utf-8")
    return calibration_from(yaml.safe_load(text))


def calibration_from(values: Mapping[str, Any]) -> Calibration:
    """A calibration from the content of its YAML file."""
    teachers, questions = values["teachers"], BCS12.ids

    def table(key: str) -> NDArray[np.float64]:
        return np.array(
            [[teachers[name]["questions"][q][key] for q in questions] for name in TEACHERS], dtype=np.float64
        )

    return Calibration(
        gain=table("gain"),
        low=table("low"),
        high=table("high"),
        halo=np.array([[teachers[name]["halo"][axis] for axis in _AXES] for name in TEACHERS], dtype=np.float64),
        halo_correlation=float(values["halo_correlation"]),
        ease=table("ease"),
        kinship=np.array([values["kinship"][q] for q in questions], dtype=np.float64),
    )


# --- Rationales ------------------------------------------------------------------------------------------------------

#: Sentences that fit an answer whatever is in the picture: question -> sentences for no, somewhat, yes.
_GENERIC: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "P1": (
        ("The main regions are in other places.", "The picture is laid out differently."),
        ("The main region is roughly there, but shifted or resized.", "Only part of the layout survives."),
        ("The main regions keep their place and size.", "The layout is about the same."),
    ),
    "P2": (
        ("The outline is a different one.", "The silhouette does not match."),
        ("The outline is partly alike.", "The silhouette is bent, but hints at the same form."),
        ("The outline is the same.", "The silhouette matches well."),
    ),
    "P3": (
        ("The surface looks like another material.", "No matching surface can be made out."),
        ("The surface is similar, but not the same.", "The material matches only roughly."),
        ("The surface looks alike.", "The same material can be seen."),
    ),
    "P4": (
        ("The main colours are different.", "The palette does not match."),
        ("The colours are close, but off.", "The palette matches only in part."),
        ("The main colours match.", "The palette is the same."),
    ),
    "P5": (
        ("Artifacts cover most of the picture.", "Structured faults overwhelm the content."),
        ("Some artifacts disturb the picture.", "Faults are visible, but the content shows through."),
        ("No severe artifacts, only softness.", "Nothing but mild blur disturbs the picture."),
    ),
    "P6": (
        ("The original cannot be made out.", "Too little of the original is left to see."),
        ("Parts of the original can be made out.", "The original can be guessed from some cues."),
        ("The original can be recovered at a glance.", "Enough is kept to see what was shown."),
    ),
    "S1": (
        ("It shows another kind of thing.", "The category is wrong."),
        ("The category is related, but not the same.", "It could belong to the same broad group."),
        ("The category is right.", "Both belong to the same broad group."),
    ),
    "S2": (
        ("It is not the same thing.", "The specific kind is wrong."),
        ("It is a close relative of what was shown.", "The specific kind is nearly right."),
        ("It is the same specific thing.", "The specific kind is right."),
    ),
    "S3": (
        ("It serves another purpose.", "The role of the object is lost."),
        ("The purpose is related.", "The role is kept in part."),
        ("It serves the same purpose.", "The role of the object is kept."),
    ),
    "S4": (
        ("The number of objects is wrong.", "The count does not match."),
        ("The number of objects is nearly right.", "The count is close."),
        ("The number of objects is right.", "The count matches."),
    ),
    "S5": (
        ("The setting is another one.", "The surroundings do not match."),
        ("The setting is similar.", "The surroundings match in part."),
        ("The setting is the same.", "The surroundings match."),
    ),
    "S6": (
        ("The meaning is lost.", "One would take it for something else."),
        ("Some of the meaning survives.", "The intended content can be guessed."),
        ("The meaning is clear.", "The intended content is understood at once."),
    ),
}

_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six")


def rationale(
    question_id: str, answer: float, plan: PairPlan | None = None, teacher: str = "", pair_id: str = ""
) -> str:
    """One short sentence that a teacher might give for an answer.

    Facts of the scenes are named only where the answer is the true one; a mistaken teacher has not seen them.

    Args:
        question_id: an id of ``BCS12``.
        answer: 0, 0.5 or 1, or NaN.
        plan: the pair, where its scenes are known.
        teacher: name; different teachers word it differently.
        pair_id: of a pair without a plan, so that wordings vary between pairs too.

    Returns:
        The sentence, the same one each time; ``""`` for a missing answer.
    """
    if np.isnan(answer):
        return ""
    level = round(2 * float(answer))
    sentences = list(_GENERIC[question_id][level])
    if plan is not None and plan.truth[BCS12.ids.index(question_id)] == answer:
        # Facts come in twice, so that they are told more often than not.
        sentences += 2 * _facts(question_id, level, plan)
    key = f"{teacher}\0{question_id}\0{plan.pair_id if plan is not None else pair_id}"
    return sentences[zlib.crc32(key.encode()) % len(sentences)]


def rationales(
    answers: NDArray[np.floating],
    plans: Sequence[PairPlan] | None = None,
    teachers: Sequence[str] = TEACHERS,
    *,
    pair_ids: Sequence[str] | None = None,
) -> NDArray[np.object_]:
    """A sentence for each of ``answers`` [n, n_teachers, 12]; see :func:`rationale`.

    Without ``plans`` the sentences are general ones; ``pair_ids`` make them vary between pairs.
    """
    result = np.empty(answers.shape, dtype=object)
    for i, row in enumerate(np.asarray(answers, dtype=np.float64).tolist()):
        plan = plans[i] if plans is not None else None
        pair_id = pair_ids[i] if pair_ids is not None else ""
        for t, teacher in enumerate(teachers):
            for q, question_id in enumerate(BCS12.ids):
                result[i, t, q] = rationale(question_id, row[t][q], plan, teacher, pair_id)
    return result


def _facts(question_id: str, level: int, plan: PairPlan) -> list[str]:
    """Sentences from the scenes, for the right answer."""
    # Here, because the corpora import this module.
    from bcs_lab.corpus.demo.concepts import ARTIFACTS, TEXTURES

    old, new = plan.reference, plan.reconstruction
    was, now = _words(old.concept), _words(new.concept)
    same = old.concept == new.concept
    if question_id == "S4" and old.count != new.count:
        things = _counted(new.count, now if same else "object")
        return [f"{things} instead of {_NUMBERS[old.count].lower()}."]
    if question_id == "S4" and level == 2:
        return [f"{_counted(old.count, was if same else 'object')} in both."]
    if question_id in ("S1", "S2", "S3", "S6", "P2") and not same and level < 2:
        return {
            "S1": [f"{_article(now)} where {_article(was).lower()} was shown."],
            "S2": [f"It looks like {_article(now).lower()}, not {_article(was).lower()}."],
            "S3": [f"{_article(now)} is not used as {_article(was).lower()} is."],
            "S6": [f"The {was} has become {_article(now).lower()}."],
            "P2": [f"The outline suggests {_article(now).lower()} rather than {_article(was).lower()}."],
        }[question_id]
    if question_id in ("S1", "S2", "S6", "P6") and same and level == 2:
        return [f"The {was} is recognisable.", f"{_article(was)} can be seen in both."]
    if question_id in ("P6", "S6") and same and level == 1:
        return [f"The {was} can just be made out."]
    if question_id == "P2" and same:
        return [
            (f"The {was} has lost its form.", f"The {was} is bent out of shape.", f"The {was} keeps its outline.")[
                level
            ]
        ]
    if question_id == "P3" and old.texture != new.texture:
        return [f"The surface looks {TEXTURES[new.texture]} rather than {TEXTURES[old.texture]}."]
    changed = {
        "P3": (old.texture, new.texture),
        "P4": (old.colour, new.colour),
        "S5": (old.environment, new.environment),
    }.get(question_id)
    if changed is not None:
        before, after = map(_words, changed)
        if before != after:
            return [f"{after.capitalize()} instead of {before}."]
        return [f"{after.capitalize()} in both."] if level == 2 else []
    if question_id == "P1" and level < 2 and old.layout != new.layout:
        return [f"The {now} moved from {_words(old.layout)} to {_words(new.layout)}."]
    if question_id == "P5" and level < 2 and plan.decoder.artifact != "none":
        return [f"The picture suffers from {ARTIFACTS[plan.decoder.artifact]}."]
    return []


def _words(name: str) -> str:
    return name.replace("_", " ")


def _article(name: str) -> str:
    if name.endswith("s") and not name.endswith("ss"):
        return name.capitalize()
    return ("An " if name[0] in "aeiou" else "A ") + name


def _counted(count: int, name: str) -> str:
    if count == 1:
        return f"One {name}"
    if name.endswith(("s", "x", "ch", "sh")):
        plural = name if name.endswith("s") and not name.endswith("ss") else name + "es"
    else:
        plural = name[:-1] + "ies" if name.endswith("y") and name[-2] not in "aeiou" else name + "s"
    return f"{_NUMBERS[count]} {plural}"
