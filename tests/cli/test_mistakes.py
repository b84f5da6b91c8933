"""Mistakes that people make first: one line that names the cause, status 2, and nothing written."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cotune.cli import app as cli
from tests.forked import ROOT
from tests.helpers import without_loading

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
    "name": "s", "output": "s", "base": "run.yaml", "budget": 24, "baseline": "grpo",
    "methods": ["grpo"],
}  # fmt: skip

# A command, and what its line must say.
LIGHT: dict[str, tuple[str, list[str]]] = {
    "another strategy, whose fields go": ("try run.yaml --set strategy.kind=static --set dataset.path=nope.jsonl", ["dataset.path: no file nope.jsonl in "]),
    "no LLM": ("train run.yaml --set llm=null", ["llm is missing", "my_llm.py:MyLLM"]),
    "no such LLM of one's own": ("train run.yaml --set llm=nope.py:MyLLM", ["no file nope.py"]),
    "no such file of texts": ("train run.yaml --set 'llm={kind: bank, path: nope.txt}'", ["llm.path: cannot read nope.txt", "name a text file"]),
    "no such data": ("train run.yaml --set dataset.path=nope.jsonl", ["dataset.path: no file nope.jsonl in "]),
    "no such policy": ("train run.yaml --set policy.path=./nope", ["'./nope', and there is no such folder"]),
    "no such policy on the hub": (
        "try run.yaml --set policy.path=nobody/has-this",
        ["cannot load 'nobody/has-this'", "the hub is out of reach"],
    ),
    "no tool": ("train run.yaml --set 'environment={kind: tools, tools: []}'", ["environment.tools: Tuple should have at least 1 item"]),
    "another method's option": ("train run.yaml --set strategy.kind=static --set strategy.evolve_every=2", ["strategy.evolve_every: is a field of another kind; remove it"]),
    "no such chat template": ("train run.yaml --set policy.chat_template=nope.jinja", ["no chat template nope.jinja"]),
    "no such reward": ("train run.yaml --set 'rewards=[nope.py:f]'", ["rewards: no file nope.py"]),
    "a misspelt reward": ("train run.yaml --set 'rewards=[exact]'", ["'exact' is unknown"]),
    "a suite for a run file": ("train suite.yaml", ["is a suite file", "cotune compare suite.yaml"]),
    "a run file for a suite": ("compare run.yaml", ["is a run file", "cotune train run.yaml"]),
    "a run file for a run": ("resume run.yaml", ["run.yaml is not a run folder: it is a file"]),
    "no such run": ("evaluate nope", ["is not a run folder: there is no such folder"]),
    "a starter for a run": ("report .", ["its run.yaml is a run file that was not trained"]),
    "data that is not JSON": ("train run.yaml --set dataset.path=bad.jsonl", ["bad.jsonl, line 1: not JSON (JSONDecodeError: ", "put one JSON "]),
    "an endpoint that is down": ("train run.yaml --set llm.max_tokens=8", ["llm: a first call failed", "ConnectError"]),
    "a field of another section": ("train run.yaml --set steps=3", ["mean training.steps?"]),
}  # fmt: skip
# The same, if it takes the policy's tokenizer, or transformers, to find out.
WITH_MODEL: dict[str, tuple[str, list[str]]] = {
    "a tool without a docstring": ("train run.yaml --set 'environment={kind: tools, tools: [bad.py:silent]}'", ["tools: silent cannot be a tool", "no docstring"]),
    "short prompts": (
        "try run.yaml --set limits.prompt_tokens=20",
        [
            "limits.prompt_tokens is 20, half of which",
            "expected at least 40: raise it to 40",
            "(dataset.drop_too_long: true)",
        ],
    ),
    "short prompts in a suite": (
        "compare suite.yaml --dry-run --set set.limits.prompt_tokens=20",
        ["limits.prompt_tokens is 20, but", "expected at least 28: raise it to 28"],
    ),
    "a question of thousands of tokens": ("try run.yaml --set dataset.path=long.jsonl", ["has 3021 tokens", "context holds 512", "leave long questions out"]),
}  # fmt: skip


def put_files(folder: Path) -> None:
    """Write what the commands name."""
    rows = [{"question": f"What is {i}+{i}?", "answer": str(2 * i)} for i in range(40)]
    long = {"question": "word " * 3000, "answer": "x"}
    for name, given in (("questions", rows), ("long", [*rows, long])):
        text = "".join(f"{json.dumps(row)}\n" for row in given)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN), encoding="utf-8")
    (folder / "suite.yaml").write_text(yaml.safe_dump(SUITE), encoding="utf-8")
    (folder / "bad.jsonl").write_text('{"question": "x"')
    (folder / "bad.py").write_text("def silent(city: str) -> str:\n    return city\n")


def there(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How the light commands ended: status, output, error output, heavy imports, new files."""
    folders = {name: tmp_path_factory.mktemp("mistake") for name in LIGHT}
    for folder in folders.values():
        put_files(folder)
    before = there(folders["no LLM"])
    asked = [[str(folders[name]), shlex.split(LIGHT[name][0])] for name in LIGHT]
    done = subprocess.run(
        [sys.executable, "-m", "tests.cli.light_runs"],
        input=json.dumps(asked), capture_output=True, text=True, cwd=ROOT, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    return {
        name: [*end, [path for path in there(folders[name]) if path not in before]]
        for name, end in zip(LIGHT, json.loads(done.stdout), strict=True)
    }


def check(status: int, out: str, err: str, says: list[str]) -> None:
    assert status == 2, err
    assert without_loading(out) == ""
    *notices, line = err.splitlines()
    assert line.startswith("cotune: ")
    assert [part for part in says if part not in line] == [], line
    dropped = "strategy.prune_every is dropped; strategy.kind "
    assert all(line.startswith(f"run.yaml: {dropped}") for line in notices)
    assert len(notices) < 2


@pytest.mark.parametrize("name", LIGHT)
def test_a_mistake_is_one_line_before_anything_heavy_is_loaded(
    name: str, ends: dict[str, Any]
) -> None:
    status, out, err, heavy, written = ends[name]
    check(status, out, err, LIGHT[name][1])
    assert heavy == []
    assert written == []


@pytest.mark.parametrize("name", WITH_MODEL)
def test_a_mistake_that_the_policy_shows_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_files(tmp_path)
    before = there(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["cotune", *shlex.split(WITH_MODEL[name][0])])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    printed = capsys.readouterr()
    status = stopped.value.code
    assert isinstance(status, int)
    if name.endswith("suite"):  # the table is printed, too
        printed = printed._replace(out="")
    check(status, printed.out, printed.err, WITH_MODEL[name][1])
    assert there(tmp_path) == before
