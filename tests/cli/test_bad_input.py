"""Bad input, and the mistakes that people make first: one line that names the cause, status 2, nothing written or lost."""

import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cotune.cli import train as training
from cotune.run.record import Record
from tests.command_line import Command, Refused
from tests.export.finished import files
from tests.forked import ROOT
from tests.helpers import without_loading
from tests.run_files import script_fields, tiny, write

KEY = "sk-proj-Zx81kQ"
OPENAI = {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:9"}


@pytest.fixture(autouse=True)
def _without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown option": ({"strategy": {"populationsize": 3}}, ["strategy.populationsize", "mean strategy.population_size?"]),
    "unknown option of an option": ({"strategy": {"kind": "p2o", "hints": {"beem": 3}}}, ["strategy.hints.beem: unknown field", "did you mean strategy.hints.beam?"]),
    "indivisible": ({"training": {"micro_batch_size": 3}}, ["training.questions_per_step × group_size is 8, which mini_batches × micro_batch_size = 3", "change micro_batch_size"]),
    "a search that leaves no batch": ({"strategy": {"kind": "gepa", "budget": 20, "dev_size": 4}, "training": {"rollout_budget": 27}}, ["strategy.budget is 20, and 8 rollouts must follow, more than"]),
    "budget below a batch": ({"training": {"rollout_budget": 7}}, ["training.rollout_budget is 7", "8"]),
    "unknown engine argument": ({"training": {"engine_args": {"lerning_rate": 1}}}, ["training.engine_args.lerning_rate", "mean learning_rate?"]),
    "impossible engine argument": ({"training": {"engine_args": {"shuffle_dataset": True}}}, ["GRPOConfig.shuffle_dataset is True", "set shuffle_dataset=False"]),
    "engine argument of the wrong kind": ({"training": {"engine_args": {"logging_strategy": "sometimes"}}}, ["training.engine_args", "sometimes"]),
    "engine argument that a field sets": ({"training": {"engine_args": {"num_generations": 2}}}, ["training.engine_args.num_generations", "set training.group_size"]),
    "no key": ({"llm": OPENAI}, ["OPENAI_API_KEY", "llm.api_key_env"]),
    "unknown LLM": ({"llm": {"kind": "gpt"}}, ["llm.kind", "'rules', 'openai'"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_run_file_is_refused(name: str, tmp_path: Path, refused: Refused) -> None:
    changes, parts = CASES[name]
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "out", changes))
    error = refused("train", file)
    assert [part for part in parts if part not in error] == [], error
    assert not (tmp_path / "out").exists()


RANDOM = "aZ3kQ9vTn3mLp0aQw7e8xK2"


@pytest.mark.parametrize("key", [KEY, RANDOM])
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"policy": {"path": "https://me:{}@host/model"}}, "policy.path"),
        ({"policy": {"path": "{}"}}, "policy.path"),
        ({"environment": {"kind": "search", "retriever": {"url": "http://me:{}@host/retrieve"}}}, "environment.retriever.url"),
        ({"llm": {**OPENAI, "model": "{}"}}, "llm.model"),
        ({"llm": "{}"}, "llm"),
        ({"llm": {**OPENAI, "api_key_env": "{}"}}, "llm"),
        ({"llm": {**OPENAI, "temperature": "{}"}}, "llm"),
        ({"llm": {**OPENAI, "{}": None}}, "llm"),
        ({"llm": {**OPENAI, "base_url": "https://user:{}@host/v1"}}, "llm"),
        ({"training": {"steps": "{}"}}, "training.steps"),
        ({"training": {"{}": 1}}, "training"),
        ({"training": {"engine_args": {"run_name": "http://me:{}@host"}}}, "training.engine_args"),
        ({"strategy": {"kind": "{}"}}, "strategy.kind"),
        ({"name": "http://me:{}@host"}, "name"),
    ],
)  # fmt: skip
def test_a_secret_in_the_wrong_place_is_neither_shown_nor_kept(
    changes: dict[str, Any],
    field: str,
    key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Refused,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    raw = tiny(tmp_path / "out", json.loads(json.dumps(changes).replace("{}", key)))
    file = write(tmp_path / "run.yaml", raw)
    error = refused("train", file)
    assert field in error
    assert key not in error
    assert not (tmp_path / "out").exists()


def test_a_key_in_broken_yaml_is_not_shown(tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"name: x\nllm: {{api_key_env: {KEY}: oops}}\n")
    error = refused("train", file)
    assert f"{file}, line 2" in error
    assert KEY not in error


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "No such file"),
        ("", "holds nothing"),
        ("- a\n", "holds list"),
        ("a: [1\n", "line 2"),
        ("a: b: c\n", ", line 1: mapping values are not allowed here; expected YAML"),
        (b"\xff\xfe\x00", "expected YAML, in UTF-8"),
        ("a: 2001-99-99", "expected YAML"),
        ("[" * 600, "expected YAML"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_run_file(
    content: str | bytes | None, expected: str, tmp_path: Path, refused: Refused
) -> None:
    file = tmp_path / "run.yaml"
    if content is not None:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    for command in ("train", "plan"):
        error = refused(command, file)
        assert str(file) in error
        assert expected in error


def test_indivisible_over_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "out"))
    error = refused("train", file)
    assert "training.micro_batch_size is 2 on 3 processes" in error
    assert not (tmp_path / "out").exists()


def test_an_output_that_exists_is_left_alone(tmp_path: Path, refused: Refused) -> None:
    out = tmp_path / "out"
    run = Record.create(out, tiny(out))
    run.event("evaluated", 0, em=0.5)
    before = files(out)
    file = write(tmp_path / "run.yaml", tiny(out))
    error = refused("train", file)
    assert f"output: {out} exists" in error
    assert f"cotune resume {out}" in error
    assert files(out) == before


@pytest.mark.parametrize(
    ("field", "command"),
    [
        ("output", ["train", "{file}"]),
        ("FOLDER", ["init", "{out}", "--kind", "tools"]),
        ("--output", ["export", "{finished}", "--output", "{out}"]),
    ],
)
def test_folders_that_cannot_be_written(
    field: str, command: list[str], tmp_path: Path, refused: Refused
) -> None:
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / "a" / "b"
    file = write(tmp_path / "run.yaml", tiny(out))
    finished = tmp_path / "finished"
    write_finished_run(finished)
    before = files(tmp_path)
    error = refused(*(word.format(file=file, out=out, finished=finished) for word in command))
    assert f"{field}: " in error
    assert error.rstrip().endswith("choose another folder")
    assert files(tmp_path) == before


def fail_training(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(training, "passed", fail)


@pytest.mark.parametrize("command", ["train", "resume"])
def test_a_disk_that_fills_while_training(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    out = tmp_path / "out"
    file = write(tmp_path / "run.yaml", tiny(out))
    if command == "resume":
        Record.create(out, tiny(out))
    fail_training(OSError(errno.ENOSPC, "No space left on device", "state.json"), monkeypatch)
    error = refused(command, str(out if command == "resume" else file))
    assert error.startswith("cotune: state.json: ")
    advice = f"cotune resume {out}" if command == "resume" else "start again"
    assert error.endswith(f"; make room, then: {advice}\n")


def test_other_failures_keep_their_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: Command
) -> None:
    fail_training(RuntimeError("something else"), monkeypatch)
    file = write(tmp_path / "run.yaml", tiny(tmp_path / "out"))
    with pytest.raises(RuntimeError, match="something else"):
        run_command("train", file)


def write_finished_run(folder: Path) -> None:
    run = Record.create(folder, tiny(folder))
    run.write_summary({"arms": {}})
    run.best_path.mkdir()
    (run.best_path / "best.json").write_text('{"instruction": "Do."}')


def test_run_folders_that_do_not_fit_the_command(tmp_path: Path, refused: Refused) -> None:
    for command in ("resume", "evaluate", "report"):
        error = refused(command, tmp_path)
        assert "is not a run folder" in error

    unfinished = tmp_path / "unfinished"
    Record.create(unfinished, tiny(unfinished))
    error = refused("evaluate", unfinished)
    assert f"cotune resume {unfinished}" in error

    script = tmp_path / "script"
    Record.create(script, script_fields(script))
    for command in ("resume", "evaluate"):
        error = refused(command, script)
        assert "resume_from_checkpoint=True" in error
    assert "trainer.plan()" in refused("plan", script / "run.yaml")
    (script / "run.yaml").write_bytes(b"\xff")
    assert f"{script / 'run.yaml'} is not YAML ('utf-8' codec" in refused("report", script)


def test_a_plan_without_the_data_takes_no_steps_on_it(tmp_path: Path, refused: Refused) -> None:
    words = ["plan", str(tmp_path / "run.yaml"), "--questions", "9,1,1", "--steps", "1"]
    assert "--questions plans without the data" in refused(*words)


RUN: dict[str, Any] = {
    "output": "out",
    "policy": {"path": "bundled:ladder"},
    "dataset": {"path": "questions.jsonl"},
    "environment": "single_turn",
    "rewards": ["exact_match"],
    "instruction": "Answer with a number.",
    "limits": {"turns": 1, "turn_tokens": 64, "trajectory_tokens": 128, "prompt_tokens": 200},
    "strategy": {"kind": "inspo", "prune_every": 2},
    "llm": {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:9", "api_key_env": None},
    "training": {"questions_per_step": 4, "group_size": 2, "mini_batches": 1, "micro_batch_size": 2},
}  # fmt: skip
SUITE: dict[str, Any] = {
    "name": "s", "output": "s", "base": "run.yaml", "budget": 24, "baseline": "grpo", "methods": ["grpo"],
}  # fmt: skip

# A command, and what its line must say.
LIGHT: dict[str, tuple[str, list[str]]] = {
    "another strategy, whose fields go": ("try run.yaml --set strategy.kind=static --set dataset.path=nope.jsonl", ["dataset.path: no file nope.jsonl; relative paths start "]),
    "no LLM": ("train run.yaml --set llm=null", ["llm is missing", "my_llm.py:MyLLM"]),
    "no such LLM of one's own": ("train run.yaml --set llm=nope.py:MyLLM", ["no file nope.py"]),
    "no such file of texts": ("train run.yaml --set 'llm={kind: bank, path: nope.txt}'", ["llm.path: cannot read nope.txt", "name a text file"]),
    "another method's option": ("train run.yaml --set strategy.kind=static --set strategy.evolve_every=2", ["strategy.evolve_every: is a field of another kind; remove it"]),
    "no such chat template": ("train run.yaml --set policy.chat_template=nope.jinja", ["no chat template nope.jinja"]),
    "a reward that is no list": ("train run.yaml --set rewards=rewards.py:f", ["rewards: expected a list; got 'rewards.py:f'"]),
    "no output": ("train run.yaml --set output=null", ["output: expected a path; got None"]),
    "no tool": ("train run.yaml --set 'environment={kind: tools, tools: []}'", ["environment.tools: expected 1 or more items; got []"]),
    "an endpoint that is down": ("train run.yaml --set llm.max_tokens=8", ["llm: a first call failed", "ConnectError"]),
    "a suite's folder that is a file": ("compare suite.yaml --dry-run --set output=run.yaml", ["output: ", "run.yaml is a file"]),
    "a run file for a suite": ("compare run.yaml", ["is a run file", "cotune train run.yaml"]),
    "a starter for a run": ("report .", ["its run.yaml is a run file that was not trained"]),
    "data that is not JSON": ("train run.yaml --set dataset.path=bad.jsonl", ["bad.jsonl, line 1: not JSON (JSONDecodeError: ", "put one JSON "]),
    "a field of another section": ("train run.yaml --set steps=3", ["mean training.steps?"]),
}  # fmt: skip
# The same, if it takes the policy's tokenizer, or transformers, to find out.
WITH_MODEL: dict[str, tuple[str, list[str]]] = {
    "a tool without a docstring": ("train run.yaml --set 'environment={kind: tools, tools: [bad.py:silent]}'", ["tools: silent cannot be a tool", "no docstring"]),
    "short prompts in a suite": ("compare suite.yaml --dry-run --set set.limits.prompt_tokens=20", ["limits.prompt_tokens is 20, but", "expected at least 28: raise it to 28"]),
    "a question of thousands of tokens": ("try run.yaml --set dataset.path=long.jsonl", ["has 3021 tokens", "context holds more than 512", "leave long questions out"]),
}  # fmt: skip


def put_files(folder: Path) -> None:
    """Write what the commands name."""
    rows = [{"question": f"What is {i}+{i}?", "answer": str(2 * i)} for i in range(40)]
    long_row = {"question": "word " * 3000, "answer": "x"}
    for name, questions in (("questions", rows), ("long", [*rows, long_row])):
        text = "".join(f"{json.dumps(row)}\n" for row in questions)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN), encoding="utf-8")
    (folder / "suite.yaml").write_text(yaml.safe_dump(SUITE), encoding="utf-8")
    (folder / "bad.jsonl").write_text('{"question": "x"')
    (folder / "bad.py").write_text("def silent(city: str) -> str:\n    return city\n")


def list_files(folder: Path) -> list[str]:
    """The files and folders below a folder but Python's own, which importing the user's code may write."""
    paths = [path for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return sorted(str(path.relative_to(folder)) for path in paths)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How the light commands ended: status, output, error output, heavy imports, new files."""
    folders = {name: tmp_path_factory.mktemp("mistake") for name in LIGHT}
    for folder in folders.values():
        put_files(folder)
    before = list_files(folders["no LLM"])
    commands = [[str(folders[name]), shlex.split(LIGHT[name][0])] for name in LIGHT]
    process = subprocess.run(
        [sys.executable, "-m", "tests.cli.light_runs"],
        input=json.dumps(commands), capture_output=True, text=True, cwd=ROOT, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    return {
        name: [*outcome, [path for path in list_files(folders[name]) if path not in before]]
        for name, outcome in zip(LIGHT, json.loads(process.stdout), strict=True)
    }


def check(status: object, out: str, err: str, parts: list[str]) -> None:
    assert status == 2, err
    assert without_loading(out) == ""
    *notices, line = err.splitlines()
    assert line.startswith("cotune: ")
    assert [part for part in parts if part not in line] == [], line
    notice = "strategy.prune_every is dropped; strategy.kind "
    assert all(line.startswith(f"run.yaml: {notice}") for line in notices)
    assert len(notices) < 2


@pytest.mark.parametrize("name", LIGHT)
def test_a_mistake_is_one_line_before_anything_heavy_is_loaded(
    name: str, outcomes: dict[str, Any]
) -> None:
    status, out, err, heavy, new_files = outcomes[name]
    check(status, out, err, LIGHT[name][1])
    assert heavy == []
    assert new_files == []


@pytest.mark.parametrize("name", WITH_MODEL)
def test_a_mistake_that_the_policy_shows_is_one_line(
    name: str, cwd: Path, run_command: Command
) -> None:
    command, parts = WITH_MODEL[name]
    put_files(cwd)
    before = list_files(cwd)
    ended = run_command(*shlex.split(command))
    has_table = name.endswith("suite")  # is printed, too
    check(ended.status, "" if has_table else ended.out, ended.err, parts)
    assert list_files(cwd) == before
