"""``bcs annotate`` against a scripted server: what it writes, what it refuses, and how it goes on."""

from __future__ import annotations

import copy
import csv
import dataclasses
import functools
import itertools
import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from chat_server import Call, ChatServer, Say, answers, good, serving
from hydra import compose, initialize_config_dir
from PIL import Image

sys.path.append(str(Path(__file__).parent / "tasks"))

from drawn_corpus import draw_corpus, only

from bcs_lab.catalogue import choices, config_dir
from bcs_lab.cli import main
from bcs_lab.config import AnnotateConfig, parse
from bcs_lab.corpus import load_corpus
from bcs_lab.launch import _guarded, resolve
from bcs_lab.tasks import annotate as task
from bcs_lab.teachers.protocol import BCS12, load_protocol, protocol_text
from bcs_lab.teachers.records import RawFile, _repair

CONCEPTS = 4
PAIRS = 2 * CONCEPTS


@pytest.fixture
def cwd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["bcs"])
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    draw_corpus(folder / "pairs", concepts=CONCEPTS)
    return folder


def command(server: ChatServer | str, *more: str, root: str = "pairs", teacher: str = "internvl3") -> list[str]:
    url = server if isinstance(server, str) else server.url
    return [
        "annotate", "corpus=manifest", f"corpus.root={root}", f"teacher={teacher}", "backend=openai",
        f"backend.base_url={url}", "backend.backoff_s=0.005", "backend.timeout_s=5", *more,
    ]  # fmt: skip


@functools.cache
def composed(groups: tuple[str, ...], needed: tuple[str, ...]) -> dict[str, Any]:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return resolve(compose("annotate", [*groups, *needed]))


def go(words: list[str]) -> int:
    """As the command line, without composing the same configs for each call again, which takes most of its time."""
    words = words[1:]
    groups = tuple(word for word in words if re.match(r"(corpus|teacher|backend|protocol)=", word))
    rest = dict(word.split("=", 1) for word in words if word not in groups)
    needed = ("corpus.root", "backend.base_url", "teacher.model", "protocol.path")
    first = tuple(
        f"{key}={value!r}" if " " in (value := rest.pop(key)) else f"{key}={value}" for key in needed if key in rest
    )
    values = copy.deepcopy(composed(groups, first))
    for key, text in rest.items():
        *path, name = key.split(".")
        section = functools.reduce(lambda at, step: at[step], path, values)
        assert name in section
        section[name] = yaml.safe_load(text.replace(":", ": "))
    folder = Path(f"runs/annotate/{2000 + len(list(Path('runs/annotate').glob('2*')))}")
    folder.mkdir(parents=True)
    handler, root = logging.StreamHandler(sys.stderr), logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        return _guarded(lambda: task.run(values, folder, Path.cwd()).get("exit_status", 0))
    finally:
        root.removeHandler(handler)


OUT = Path("runs/annotate/pairs")
RAW = OUT / "raw" / "internvl3.jsonl"
ANNOTATIONS = OUT / "annotations" / "internvl3.jsonl"


def summary(path: Path = OUT / "internvl3.json") -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def records(path: Path = RAW, kind: str = "reply") -> list[dict[str, Any]]:
    return [record for line in path.read_text().splitlines() if (record := json.loads(line))["kind"] == kind]


def pair_of(call: Call, root: Path) -> str:
    """Which pair a call is about, by its images."""
    for row in csv.DictReader((root / "manifest.csv").open()):
        paths = [root / row[name] for name in ("reference_path", "reconstruction_path")]
        if [path.read_bytes() for path in paths] == call.images:
            return row["pair_id"]
    raise AssertionError("no pair of the corpus has these images")


def test_every_option_is_valid() -> None:
    needed = {"backend=openai": ("backend.base_url=http://x/v1",), "teacher=any": ("teacher.model=x",)}
    for option in [f"{group}={name}" for group in ("teacher", "backend") for name in choices(group)]:
        config = parse(AnnotateConfig, composed((option,), ("corpus.root=x", *needed.get(option, ()))))
        assert config.max_new_tokens == config.teacher.max_new_tokens.joint


# --- from nothing --------------------------------------------------------------------------------------------------


def test_simulated_teacher_of_a_made_corpus(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pairs/made.json").write_text("{}")  # what tells a made corpus from a collected one
    expected = load_corpus("manifest", "pairs")
    for mode in ("joint", "single"):
        given = ["annotate", "corpus=manifest", "corpus.root=pairs", "teacher=any", "teacher.model=a", f"mode={mode}"]
        assert go([*given, "backend=simulated", f"out={mode}"]) == 2
        assert "no simulated teacher called 'any'" in capsys.readouterr().err
        for name in ("a", "b"):
            assert go([*given, "backend=simulated", f"teacher.name={name}", f"out={mode}"]) == 0
        assert "a (SIMULATED) on pairs" in capsys.readouterr().out
        lines = [json.loads(line) for line in Path(mode, "annotations/a.jsonl").read_text().splitlines()]
        assert all(line["simulated"] for line in lines)
        shutil.copytree("pairs", f"{mode}/again", ignore=shutil.ignore_patterns("annotations"))
        shutil.copytree(f"{mode}/annotations", f"{mode}/again/annotations")
        again = load_corpus("manifest", f"{mode}/again")
        assert again.simulated_teachers
        assert (again.answers == expected.answers[:, :2]).all()
        assert (again.rationales == expected.rationales[:, :2]).all()
        found = summary(Path(mode, "a.json"))
        assert (found["simulated_teachers"], found["valid"], found["replies"]["calls"]) == (True, 1.0, 0)


@pytest.mark.slow
def test_simulated_teacher_of_the_demo(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the same records and the same parser as a model's words, the computed answers come out as they were."""
    given = ("corpus=demo", "teacher=ovis2", "backend=simulated")
    assert main(["annotate", *given]) == 0
    said = capsys.readouterr().out
    assert "ovis2 (SIMULATED) on demo" in said
    assert "Ovis2-8B on the paper's corpus, 6,855 pairs (Table 11)" in said
    folder = Path("runs/annotate/demo")
    demo = load_corpus("demo")
    first, *replies = [json.loads(line) for line in (folder / "raw/ovis2.jsonl").read_text().splitlines()[:-1]]
    assert first["simulated"]
    assert all(record["simulated"] for record in replies)
    assert len(replies) == len(demo)
    root = demo.root
    assert root is not None
    copy = shutil.copytree(root, "copy")
    shutil.rmtree(copy + "/annotations")
    shutil.copytree(folder / "annotations", copy + "/annotations")
    again = load_corpus("manifest", copy)
    assert again.simulated_teachers
    column = demo.teachers.index("ovis2")
    assert (again.answers[:, 0] == demo.answers[:, column]).all()
    assert (again.rationales[:, 0] == demo.rationales[:, column]).all()
    found = summary(folder / "ovis2.json")
    assert found["simulated_teachers"]
    assert found["valid"] == 1.0
    assert found["mean_t_pas"] == pytest.approx(demo.answers[:, column, :6].mean(), abs=1e-6)
    assert found["replies"]["calls"] == 0
    assert json.loads((only(Path("runs/annotate"), "2*") / "run.json").read_text())["simulated_teachers"]
    assert main(["annotate", "corpus=demo", "teacher=any", "teacher.model=x", "backend=simulated"]) == 2
    assert "no simulated teacher called 'any'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["corpus=manifest", "corpus.root=pairs", "backend=simulated"], "are not known"),
        (["corpus=brainbank", "backend=openai", "backend.base_url=http://x/v1"], "has no images"),
        (["corpus=manifest", "backend=simulated"], "corpus.root=…"),
        (["corpus=demo", "teacher=any", "backend=simulated"], "teacher.model=…"),
        (["corpus=manifest", "corpus.root=pairs", "backend=openai"], "backend.base_url=…"),
        (["corpus=manifest", "corpus.root=pairs", "backend=openai", "backend.base_url=here"], "backend.base_url"),
        (["corpus=manifest", "corpus.root=pairs", "backend=replay"], "no replies to parse again"),
        (["corpus=manifest", "corpus.root=pairs", "backend=replay", "backend.raw=x.jsonl"], "x.jsonl: no such file"),
        (["corpus=manifest", "corpus.root=pairs", "mode=both"], "mode"),
        (["corpus=manifest", "corpus.root=pairs", "retry.max=0"], "retry.max"),
        (["corpus=manifest", "backend=openai", "+backend.api_key=sk-secret"], "environment variable"),
        (
            ["corpus=manifest", "corpus.root=pairs", "backend=openai", "backend.base_url=http://127.0.0.1:1/v1"],
            "no server answers there",
        ),
    ],
)
def test_bad_input(arguments: list[str], message: str, cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["annotate", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    for path in Path().rglob("*"):
        assert not path.is_file() or "sk-secret" not in path.read_bytes().decode("utf-8", "replace")


def test_dry_run_shows_the_prompts_and_leaves_nothing(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(Path().rglob("*"))
    for mode, prompts in (("joint", 1), ("single", 12)):
        assert main(command("http://127.0.0.1:1/v1", "dry_run=3", f"mode={mode}")) == 0
        said = capsys.readouterr().out
        assert said.count("\npair p") == 3
        assert said.count("--- prompt ") == 3 * prompts
        assert f"reference: {cwd}/pairs/images/ref0.png (32 x 24 pixels" in said
        assert BCS12.system in said
    assert sorted(Path().rglob("*")) == before


# --- what is asked and written -------------------------------------------------------------------------------------


def test_joint(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        assert main(command(server, "backend.price={prompt:1000,completion:10000}")) == 0
    said = capsys.readouterr()
    assert "internvl3 on pairs" in said.out
    assert "8 of 8 pairs valid; 8 replies, 8 model calls (1 a pair), 800 + 80 tokens, cost 1.60" in said.out
    assert "100.0% valid, 800 + 80 tokens, cost 1.60 of about 1.60" in said.err
    assert server.count == PAIRS
    (header,), replies = records(kind="header"), records()
    assert header["protocol"]["digest"] == BCS12.digest
    assert header["backend"]["settings"] == {"temperature": 0.0, "max_new_tokens": 1536}
    for record in replies:
        assert set(record) >= {
            "pair_id", "questions", "prompt", "protocol", "images", "attempt", "model", "revision", "settings", "text",
            "error", "finish", "latency_s", "prompt_tokens", "completion_tokens", "calls", "image_encodes", "time",
        }  # fmt: skip
        assert record["questions"] == list(BCS12.ids)
        assert record["model"] == "OpenGVLab/InternVL3-8B-hf"
        assert record["settings"]["max_new_tokens"] == 1536
        assert record["response_format"] == "json_schema"
        assert record["attempt"] == 1
    corpus = load_corpus("manifest", "pairs")
    lines = [json.loads(line) for line in ANNOTATIONS.read_text().splitlines()]
    assert [line["pair_id"] for line in lines] == corpus.pairs["pair_id"].tolist()
    keys = {pair_of(call, Path("pairs")): call.key for call in server.calls}
    for line in lines:
        assert line["valid"]
        expected = answers(keys[line["pair_id"]], list(BCS12.ids))
        assert line["answers"] == {
            question: {"answer": item["answer"], "reasoning": item["rationale"]} for question, item in expected.items()
        }
    found = summary()
    assert (found["valid"], found["pairs"], found["dtype"], found["revision"]) == (1.0, PAIRS, None, None)
    assert found["paper"]["t_pas"] == 0.341
    assert found["replies"]["calls_a_pair"] == 1.0
    assert found["replies"]["image_encodes_a_pair"] == 2.0
    assert found["replies"]["cost"] == pytest.approx(1.6)
    # and what was annotated is a corpus' annotations
    shutil.rmtree("pairs/annotations")
    shutil.copytree(OUT / "annotations", "pairs/annotations")
    again = load_corpus("manifest", "pairs")
    assert again.teachers == ("internvl3",)
    assert found["mean_t_sas"] == pytest.approx(float(again.answers[:, 0, 6:].mean()), abs=1e-6)


def test_single_is_one_question_a_call_by_reference(cwd: Path) -> None:
    with serving() as server:
        assert go(command(server, "mode=single", "backend.concurrency=1")) == 0
    assert server.count == 12 * PAIRS
    seen = [(call.images[0], pair_of(call, Path("pairs")), call.questions[0]) for call in server.calls]
    references = [reference for reference, _, _ in seen]
    assert sum(a != b for a, b in itertools.pairwise(references)) == CONCEPTS - 1
    assert [question for _, _, question in seen[:12]] == list(BCS12.ids)
    assert len({pair for _, pair, _ in seen[:12]}) == 1
    # the shared part comes first, the question last
    first, second = (call.content for call in server.calls[:2])
    assert first[:-1] == second[:-1]
    assert first[-1] != second[-1]
    assert server.calls[0].body["max_tokens"] == 80
    found = summary()
    assert (found["valid"], found["replies"]["calls_a_pair"], found["replies"]["image_encodes_a_pair"]) == (1.0, 12, 24)


def test_the_model_names_the_files_of_teacher_any(cwd: Path) -> None:
    with serving() as server:
        assert go(command(server, "teacher.model=org/Tiny VL:2", "out=mine", teacher="any")) == 0
    assert Path("mine/annotations/org_Tiny_VL_2.jsonl").exists()
    assert server.calls[0].body["model"] == "org/Tiny VL:2"
    assert summary(Path("mine/org_Tiny_VL_2.json"))["paper"] is None


def test_into_the_corpus_itself(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        assert go(command(server, "out=pairs")) == 0
        assert go(command(server, "out=pairs")) == 0  # its own annotations are no obstacle
        assert server.count == PAIRS
        assert go(command(server, "out=pairs", "teacher.model=x", teacher="any")) == 0
        capsys.readouterr()
        shutil.copy("pairs/annotations/a.jsonl", "pairs/annotations/y.jsonl")
        assert go(command(server, "out=pairs", "teacher.model=y", teacher="any")) == 2
    assert "were not made here" in capsys.readouterr().err
    assert load_corpus("manifest", "pairs").teachers == ("internvl3", "a", "b", "c", "d", "x", "y")


def test_another_protocol(cwd: Path) -> None:
    questions = (BCS12.questions[3], BCS12.questions[6])
    Path("two.yaml").write_text(protocol_text(dataclasses.replace(BCS12, name="two", questions=questions)))
    with serving() as server:
        assert go(command(server, "protocol=file", "protocol.path=two.yaml", "out=two")) == 0
        assert server.calls[0].questions == ["P4", "S1"]
        assert load_protocol(Path("two/protocol.yaml")).ids == ("P4", "S1")
        assert summary(Path("two/internvl3.json"))["valid"] == 1.0
        # annotations of other questions may not join those of the corpus
        count = server.count
        assert go(command(server, "protocol=file", "protocol.path=two.yaml", "out=pairs")) == 2
        assert not Path("pairs/protocol.yaml").exists()
        assert server.count == count
        # another teacher cannot be asked other questions in the same folder
        assert go(command(server, "out=two", teacher="ovis2")) == 2
        assert go(command(server, "out=two", "protocol=file", "protocol.path=two.yaml", teacher="ovis2")) == 0


# --- invalid replies, and asking again -----------------------------------------------------------------------------


def test_invalid_replies_are_counted_and_their_answers_kept(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def reply(call: Call) -> Say:
        pair = pair_of(call, Path("pairs"))
        given = answers(call.key, call.questions)
        if pair == "p00_0":
            return Say("I cannot help with that.")
        if pair == "p00_1":
            del given["S6"]
        if pair == "p01_0":
            return Say(json.dumps(given)[:-60], finish="length")
        return Say(json.dumps(given))

    with serving(reply) as server:
        assert go(command(server)) == 1
        assert server.count == PAIRS  # a greedy model is not asked the same twice in a run
        said = capsys.readouterr().err
        assert "3 of 8 pairs have no full set of answers" in said
        assert "1 were cut off at the token limit: raise teacher.max_new_tokens.joint" in said
        rows = list(csv.DictReader((only(Path("runs/annotate"), "2*") / "left.csv").open()))
        assert [(row["pair_id"], row["left"]) for row in rows] == [
            ("p00_0", "invalid"), ("p00_1", "invalid"), ("p01_0", "invalid")
        ]  # fmt: skip
        found = summary()
        assert (found["valid_pairs"], found["valid"]) == (5, 5 / 8)
        lines = {line["pair_id"]: line for line in map(json.loads, ANNOTATIONS.read_text().splitlines())}
        assert len(lines) == PAIRS
        assert {cell["answer"] for cell in lines["p00_0"]["answers"].values()} == {None}
        assert [q for q, cell in lines["p00_1"]["answers"].items() if cell["answer"] is None] == ["S6"]
        assert not lines["p00_1"]["valid"]
        valid = [
            sum(BCS12.levels[cell["answer"]] for q, cell in line["answers"].items() if q[0] == "P") / 6
            for line in lines.values()
            if line["valid"]
        ]
        assert found["mean_t_pas"] == pytest.approx(sum(valid) / 5)
        # the next run asks for those three only
        before = ANNOTATIONS.read_bytes()
        assert go(command(server)) == 1
        assert server.count == PAIRS + 3
        assert ANNOTATIONS.read_bytes() == before
        server.reply = good
        assert go(command(server)) == 0
        assert server.count == PAIRS + 6
        assert go(command(server)) == 0
        assert server.count == PAIRS + 6
    assert summary()["valid"] == 1.0
    assert [record["attempt"] for record in records() if record["pair_id"] == "p00_0"] == [1, 2, 3]


def test_the_same_job_of_a_sweep_goes_on_where_something_was_left(cwd: Path) -> None:
    given = ("teacher=internvl3,ovis2", "hydra.sweep.dir=sweep")

    def reply(call: Call) -> Say:
        return Say("Hm.") if "InternVL3" in call.body["model"] else good(call)

    with serving(reply) as server:
        words = [word for word in command(server, *given)[1:] if word != "teacher=internvl3"]
        assert main(["annotate", "-m", *words]) == 1
        assert server.count == 2 * PAIRS
        server.reply = good
        assert main(["annotate", "-m", *words]) == 0
        assert server.count == 3 * PAIRS
    assert summary()["valid"] == summary(OUT / "ovis2.json")["valid"] == 1.0


def test_a_sampling_teacher_is_asked_again_with_other_seeds(cwd: Path) -> None:
    seeds: dict[str, list[int]] = {}

    def reply(call: Call) -> Say:
        pair = pair_of(call, Path("pairs"))
        mine = seeds.setdefault(pair, [])
        mine.append(call.body["seed"])
        return good(call) if pair != "p02_1" and len(mine) > int(pair[-1]) else Say("Hm.")

    with serving(reply) as server:
        assert go(command(server, "retry.max=2", "teacher.generation.repetition_penalty=null", teacher="sail_vl")) == 1
        assert {pair: len(mine) for pair, mine in seeds.items()} == {
            f"p{c:02d}_{k}": k + 1 for c in range(CONCEPTS) for k in (0, 1)
        }
        # another run is another two tries for the one that is left
        assert go(command(server, "retry.max=2", "teacher.generation.repetition_penalty=null", teacher="sail_vl")) == 1
    assert len(set(seeds["p02_1"])) == len(seeds["p02_1"]) == 4
    assert summary(OUT / "sail_vl.json")["valid_pairs"] == PAIRS - 1


def test_pairs_without_a_reply_are_left_for_the_next_run(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = Path("pairs/images/rec1_0.png").read_bytes()

    def reply(call: Call) -> Say:
        return Say("worker died", 500) if call.images[1] == bad else good(call)

    with serving(reply) as server:
        assert go(command(server, "backend.retries=1")) == 1
        said = capsys.readouterr().err
        assert "1 got no reply" in said
        (failed,) = [record for record in records() if record["text"] is None]
        assert (failed["error"], failed["calls"], failed["retriable"]) == ("HTTP 500 (worker died)", 2, True)
        assert len(ANNOTATIONS.read_text().splitlines()) == PAIRS - 1
        assert summary()["left"]["no_reply"] == 1
        server.reply = good
        count = server.count
        assert go(command(server)) == 0
        assert server.count == count + 1
    assert summary()["left"]["no_reply"] == 0


def test_a_server_that_goes_away_ends_the_run_with_what_there_is(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def reply(call: Call) -> Say:
        return good(call) if call.number < 3 else Say(fault="drop")

    given = ("backend.retries=0", "backend.give_up=2", "backend.concurrency=1")
    with serving(reply) as server:
        assert go(command(server, *given)) == 1
        assert "stopped: " in capsys.readouterr().err
        # One more may be under way when the run is called off.
        assert server.count in (5, 6)
        counts = summary()["left"]
        assert counts["no_reply"] in (2, 3)
        assert counts["no_reply"] + counts["not_asked"] == 5
        server.reply = lambda call: Say(fault="drop")
        assert go(command(server, *given)) == 2  # no reply at all
        assert "without any reply" in capsys.readouterr().err
        server.reply = good
        assert go(command(server, *given)) == 0
    assert summary()["valid"] == 1.0


def test_broken_images_cost_the_others_nothing(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("pairs/images/rec2_1.png")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with serving() as server:
        assert go(command(server)) == 1
        assert server.count == PAIRS - 1
        said = capsys.readouterr().err
        assert "rec2_1.png: damaged or truncated PNG" in said
        assert "1 have a broken image" in said
        assert summary()["left"]["broken_image"] == 1
        path.write_bytes(b"")
        assert go(command(server)) == 2  # known before anyone is asked
        assert go(command(server, "corpus.on_bad_row=skip")) == 1
        path.write_bytes(whole)
        assert go(command(server)) == 0
        assert server.count == PAIRS


# --- never mixed, never twice --------------------------------------------------------------------------------------


def test_other_settings_corpora_and_images_are_refused(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("pairs", "other/pairs")
    for path in Path("other/pairs/images").glob("rec*.png"):
        Image.new("RGB", (8, 8), "red").save(path)
    draw_corpus(Path("third/pairs"), concepts=2)
    text = Path("third/pairs/manifest.csv").read_text()
    Path("third/pairs/manifest.csv").write_text(text.replace("\np0", "\nq0"))
    shutil.rmtree("third/pairs/annotations")
    with serving() as server:
        assert go(command(server)) == 0
        before = RAW.read_bytes(), ANNOTATIONS.read_bytes()
        refused = [
            (command(server, "mode=single"), "mode: recorded"),
            (command(server, "teacher.model=x"), "settings.model: recorded"),
            (command(server, "teacher.max_new_tokens.joint=99"), "max_new_tokens: recorded 1536, now 99"),
            (command(server, "backend.max_image_side=64"), "images.max_side"),
            (command(server, "backend.extra={top_k:1}"), "settings.top_k"),
            (command(server, root="other/pairs"), "had other images"),
            (command(server, root="third/pairs"), "none of which is in this corpus"),
        ]
        # what the backend alone knows is compared once there is something to ask
        lines = before[0].splitlines(keepends=True)
        RAW.write_bytes(b"".join(lines[:-2]))
        before = RAW.read_bytes(), before[1]
        for given, message in refused:
            capsys.readouterr()
            assert go(given) == 2, given
            said = capsys.readouterr().err
            assert message in said, said
            assert "out=DIR" in said
            assert (RAW.read_bytes(), ANNOTATIONS.read_bytes()) == before
        count = server.count
        assert go(command(server, "mode=single", "overwrite=true")) == 0
        assert server.count == count + 12 * PAIRS
        assert Path(f"{RAW}.1.old").read_bytes() == before[0]
        assert go(command(server, "mode=single", "overwrite=true")) == 0  # fits now, so it is kept
        assert server.count == count + 12 * PAIRS
        assert not Path(f"{RAW}.2.old").exists()


def test_another_port_or_more_calls_at_once_are_no_other_settings(cwd: Path) -> None:
    with serving() as server, serving() as second:
        assert go(command(server)) == 0
        assert go(command(second, "backend.concurrency=3", "backend.retries=0")) == 0
        assert second.count == 0


def test_a_corpus_may_grow_and_shrink(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = Path("pairs/manifest.csv")
    text = manifest.read_text()
    shutil.rmtree("pairs/annotations")
    manifest.write_text("\n".join(text.splitlines()[:4]) + "\n")
    with serving() as server:
        assert go(command(server)) == 0
        manifest.write_text(text)
        assert go(command(server)) == 0
        assert server.count == PAIRS
        manifest.write_text("\n".join(text.splitlines()[:3]) + "\n")
        assert go(command(server)) == 0
    assert "6 pairs that the corpus pairs does not have" in capsys.readouterr().err
    assert len(ANNOTATIONS.read_text().splitlines()) == 2
    assert len(records()) == PAIRS


def test_two_runs_at_once(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server, RawFile(RAW):
        assert main(command(server)) == 2
        assert server.count == 0
    assert "another run is asking this teacher" in capsys.readouterr().err


def test_interrupted(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def reply(call: Call) -> Say:
        if call.number == 3:
            os.kill(os.getpid(), signal.SIGINT)
            return Say(wait_s=1.0, fault="drop")
        return good(call)

    with serving(reply) as server:
        assert go(command(server, "backend.concurrency=1")) == 130
        kept = len(records())
        assert kept in (1, 2, 3)  # the last ones may be on their way
        assert f"{kept} replies of this run are kept" in capsys.readouterr().err
        count, server.reply = server.count, good
        assert go(command(server)) == 0
        assert server.count == count + PAIRS - kept


# --- what is on the disk -------------------------------------------------------------------------------------------


def test_torn_tails_are_cut_wherever_they_are_torn(cwd: Path) -> None:
    with serving() as server:
        assert go(command(server)) == 0
        whole, expected = RAW.read_bytes(), ANNOTATIONS.read_bytes()
        lines = whole.splitlines(keepends=True)
        kept, last = b"".join(lines[:-2]), lines[-2]
        for cut in range(len(last)):
            RAW.write_bytes(lines[1] + last[:cut])
            assert _repair(RAW) == cut
            assert RAW.read_bytes() == lines[1]
        for cut in (1, len(last) // 2, len(last) - 1):
            RAW.write_bytes(kept + last[:cut])
            count = server.count
            assert go(command(server)) == 0
            assert server.count == count + 1
            assert ANNOTATIONS.read_bytes() == expected
        # the header itself torn: nothing was asked yet
        RAW.write_bytes(lines[0][:-1])
        assert go(command(server)) == 0
        assert ANNOTATIONS.read_bytes() == expected


def test_damaged_lines_in_the_middle_are_reported(cwd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as server:
        assert go(command(server)) == 0
        expected = ANNOTATIONS.read_bytes()
        lines = RAW.read_bytes().splitlines(keepends=True)
        lines[2] = lines[2][:50] + b"\n"
        lines[3] = b"\0" * 20 + b"\n"
        lines[4] = lines[4].replace(b'"attempt":1', b'"attempt":"x"')
        RAW.write_bytes(b"".join(lines))
        capsys.readouterr()
        assert go(command(server)) == 0
        said = capsys.readouterr()
        for number in (3, 4, 5):
            assert f"internvl3.jsonl:{number}: " in said.err
        assert "3 damaged lines passed over" in said.out
        assert server.count == PAIRS + 3
        assert ANNOTATIONS.read_bytes() == expected
        assert summary()["replies"]["damaged_lines"] == 3
        RAW.write_bytes(b"".join([b"{}\n", *lines[1:]]))
        assert go(command(server)) == 2
        assert "internvl3.jsonl:1: expected the header" in capsys.readouterr().err


def test_replay(cwd: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(call: Call) -> Say:
        return Say("certainly!") if pair_of(call, Path("pairs")) == "p00_0" else good(call)

    with serving(reply) as server:
        assert go(command(server)) == 1
    raw, expected = RAW.read_bytes(), ANNOTATIONS.read_bytes()
    ANNOTATIONS.unlink()
    again = ["annotate", "corpus=manifest", "corpus.root=pairs", "teacher=internvl3", "backend=replay"]
    assert go(again) == 1
    assert ANNOTATIONS.read_bytes() == expected
    assert RAW.read_bytes() == raw
    assert summary()["model"] == "OpenGVLab/InternVL3-8B-hf"
    assert go([*again, f"backend.raw={RAW}", "out=elsewhere", "mode=single"]) == 1  # the file says joint
    assert Path("elsewhere/annotations/internvl3.jsonl").read_bytes() == expected
    assert not Path("elsewhere/raw").exists()
    assert go([*again, f"backend.raw={RAW}", "out=elsewhere"]) == 1
    # a better parser reads what it could not read before
    import bcs_lab.teachers.ledger as ledger

    monkeypatch.setattr(
        ledger,
        "parse_response",
        lambda text, protocol, questions: type("All", (), {
            "answers": dict.fromkeys(questions, 1.0), "rationales": {}, "problems": (), "missing": (), "valid": True
        })(),
    )  # fmt: skip
    assert go(again) == 0
    assert summary()["mean_t_pas"] == 1.0
    shutil.copy(RAW, "saved.jsonl")
    assert go([*again, "backend.raw=saved.jsonl"]) == 2
    assert "holds replies of this teacher already" in capsys.readouterr().err


def test_disk_full_leaves_whole_lines(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a record and an error: what was written of it is taken back."""
    with RawFile(RAW) as raw:
        raw.append({"kind": "end"})
        size = RAW.stat().st_size
        handle = raw._handle
        assert handle is not None

        class Full:
            def write(self, data: bytes) -> int:
                if handle.tell() > size:
                    raise OSError(28, "No space left on device")
                return handle.write(bytes(data)[:10])

            def __getattr__(self, name: str) -> Any:
                return getattr(handle, name)

        raw._handle = Full()  # type: ignore[assignment]
        with pytest.raises(OSError, match="No space"):
            raw.append({"kind": "end", "more": "x" * 100})
        raw._handle = handle
    assert RAW.stat().st_size == size


@pytest.mark.parametrize("mode", ["joint", "single"])
def test_order_of_arrival_leaves_no_trace(mode: str, cwd: Path) -> None:
    lock, waits = threading.Lock(), iter(range(10**6))

    def reply(call: Call) -> Say:
        with lock:
            turn = next(waits)
        return Say(good(call).text, wait_s=0.004 * (7 * turn % 5))

    files: list[Callable[[], bytes]] = []
    for out, concurrency in (("one", 1), ("many", 6)):
        with serving(reply) as server:
            assert go(command(server, f"out={out}", f"mode={mode}", f"backend.concurrency={concurrency}")) == 0
        files.append(Path(out, "annotations/internvl3.jsonl").read_bytes)
    assert files[0]() == files[1]()
