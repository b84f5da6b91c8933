"""The example with mistakes: each gives one line with the field or file and the fix, and writes nothing."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import yaml
from transformers import AutoTokenizer
from transformers.utils import logging
from trl import GRPOConfig

import cotune
from cotune.cli import app as cli
from tests.examples.three_tools import FOLDER, Teacher, modules
from tests.helpers import without_loading

FILES = ("run.yaml", "task.py", "questions.jsonl")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the environment variables that the command line sets."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    logging.disable_progress_bar()
    with mock.patch.dict(os.environ, {"KEY_OF_THE_TEST": "k"}):
        os.environ.pop("OPENAI_API_KEY", None)
        yield
    logging.enable_progress_bar()


# ---- as a run file

Change = Callable[[Path, dict[str, Any]], object]


def fields(path: str, value: object) -> Change:
    """Set a field of the run file, or remove it with `...`."""

    def change(_: Path, raw: dict[str, Any]) -> None:
        *sections, name = path.split(".")
        for section in sections:
            raw = raw[section]
        if value is ...:
            del raw[name]
        else:
            raw[name] = value

    return change


def written(file: str, old: str, new: str) -> Change:
    """Replace a text in a file of the example."""

    def change(folder: Path, _: dict[str, Any]) -> None:
        text = (folder / file).read_text(encoding="utf-8")
        assert old in text
        (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def reward(body: str) -> Change:
    """Replace the body of the reward function."""
    return written(
        "task.py", "def exact(", f"def exact(completions, **_):\n    {body}\n\n\ndef old("
    )


def another_template(folder: Path, raw: dict[str, Any]) -> None:
    text = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    (folder / "chat.jinja").write_text(text, encoding="utf-8")
    raw["policy"]["chat_template"] = "chat.jinja"


def an_earlier_run(folder: Path, raw: dict[str, Any]) -> None:
    (folder / raw["output"]).mkdir(parents=True)
    (folder / raw["output"] / "thesis.txt").write_text("years of work", encoding="utf-8")


def few_questions(folder: Path, _: dict[str, Any]) -> None:
    lines = (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "questions.jsonl").write_text("".join(lines[:8]), encoding="utf-8")


AS_RUN_FILE: dict[str, tuple[Change, list[str]]] = {
    "misspelt field": (fields("training.stepz", 3), ["training.stepz", "did you mean training.steps?"]),
    "misspelt method": (fields("strategy.kind", "inspa"), ["strategy.kind", "'inspa'", "'inspo'"]),
    "option of another method": (fields("strategy.kind", "static"), ["strategy.evolve_every: is not a field of strategy.kind static", "remove it"]),
    "file not there": (fields("dataset.path", "question.jsonl"), ["dataset.path", "no file question.jsonl"]),
    "missing column": (fields("dataset.columns", {"question": "text"}), ["dataset.columns.question is 'text'", "question, answer", "name one of them"]),
    "row without the column": (written("questions.jsonl", '"question"', '"text"'), ["questions.jsonl", "question", "line 1"]),
    "too few questions": (few_questions, ["questions.jsonl has 8 different questions", "add some"]),
    "no such tools file": (fields("environment.tools", ["tools.py:calculator"]), ["environment.tools", "no file tools.py"]),
    "no such module of tools": (fields("environment.tools", ["my_tools:calculator"]), ["environment.tools", "no module 'my_tools'", "install"]),
    "no such tool": (fields("environment.tools", ["task.py:calculater"]), ["environment.tools", "did you mean calculator?"]),
    "no tool": (fields("environment.tools", []), ["environment.tools: is empty", "name at least 1"]),
    "tool without types": (written("task.py", "expression: str", "expression"), ["environment.tools: calculator cannot be a tool", "Argument expression is missing a type hint", "expected for each parameter", "a type: str, int"]),
    "tool without docstring": (written("task.py", '"""Says what a word means.\n\n    Args:\n        word: in lower case.\n    """', "pass"), ["tools: dictionary has no docstring", "describe what it does"]),
    "two tools of a name": (fields("environment.tools", ["task.py:calculator", "task.py:calculator"]), ["tools", "two are called calculator", "rename"]),
    "no reward": (fields("rewards", ...), ["rewards: missing", "name reward functions"]),
    "reward of the wrong length": (reward("return [1.0]"), ["rewards: exact returned 1 values for 2 completions"]),
    "reward that is None": (reward("return None"), ["rewards: exact returned None", "expected a list"]),
    "reward that is NaN": (reward("return [float('nan')] * len(completions)"), ["rewards: exact returned nan", "finite"]),
    "reward that raises": (reward("return completions[0]['content']"), ["rewards: exact raised TypeError", "task.py, line", "fix the function"]),
    "reward that needs another column": (written("task.py", "answer: Sequence[str]", "truth: Sequence[str]"), ["rewards: exact needs the column 'truth'", "rename"]),
    "blank instruction": (fields("instruction", ""), ["instruction: blank", "say in a sentence"]),
    "instruction that loses the box": (fields("environment", "math"), ["instruction", "\\boxed"]),
    "no LLM": (fields("llm", ...), ["llm is missing", "set llm"]),
    "no key": (fields("llm.api_key_env", "NO_SUCH_KEY"), ["NO_SUCH_KEY", "llm.api_key_env"]),
    "context shorter than an episode": (fields("limits.prompt_tokens", 900), ["limits.prompt_tokens + limits.trajectory_tokens", "1156", "1024", "lower"]),
    "prompt longer than its limit": (fields("limits.prompt_tokens", 100), ["limits.prompt_tokens is 100", "raise it"]),
    "no such policy": (fields("policy.path", "polcy"), ["policy.path: cannot load 'polcy'", "name a folder"]),
    "chat template without tools": (another_template, ["chat template", "policy.chat_template"]),
    "group of one": (fields("training.group_size", 1), ["training.group_size", "equal to 2; got 1"]),
    "micro-batch that does not divide": (fields("training.micro_batch_size", 5), ["questions_per_step × group_size is 32", "change micro_batch_size"]),
    "tools of TRL": (fields("training.engine_args", {"tools": ["calculator"]}), ["training.engine_args.tools: unknown field", "remove it"]),
    "shuffled": (fields("training.engine_args", {"shuffle_dataset": True}), ["GRPOConfig.shuffle_dataset is True", "set shuffle_dataset=False"]),
    "output that exists": (an_earlier_run, ["output: ", "exists", "choose another output"]),
}  # fmt: skip


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "policy" not in path.parts
    }


@pytest.mark.parametrize("name", AS_RUN_FILE)
def test_as_a_run_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change, expected = AS_RUN_FILE[name]
    for file in FILES:
        (tmp_path / file).write_bytes((FOLDER / file).read_bytes())
    (tmp_path / "policy").symlink_to(FOLDER / "policy")
    raw = yaml.safe_load((tmp_path / "run.yaml").read_text(encoding="utf-8"))
    raw["llm"]["api_key_env"] = "KEY_OF_THE_TEST"
    change(tmp_path, raw)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    before = snapshot(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["cotune", "train", "run.yaml"])
    # The endpoint answers: the mistake is another one.
    monkeypatch.setattr("cotune.engines.preflight.llm_answers", lambda *_, **__: (None, []))
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    printed = capsys.readouterr()
    assert stopped.value.code == 2, printed
    assert without_loading(printed.out) == ""
    assert printed.err.startswith("cotune: ")
    assert printed.err.count("\n") == 1, printed.err
    assert [part for part in expected if part not in printed.err] == [], printed.err
    assert snapshot(tmp_path) == before


# ---- in Python


@pytest.fixture(scope="module")
def example() -> Iterator[dict[str, ModuleType]]:
    with modules() as found:
        yield found


def start(example: dict[str, ModuleType], folder: Path, given: dict[str, Any]) -> None:
    """Do what `with_cotune.main` does up to the first step, with some arguments replaced."""
    task = example["task"]
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "policy")
    tokenizer.chat_template = given.get("chat_template", tokenizer.chat_template)
    fields = {"max_steps": 4, "per_device_train_batch_size": 8, "num_generations": 4}
    fields |= {"max_completion_length": 256, "report_to": "none", "use_cpu": True, "bf16": False}
    fields |= {"save_strategy": "no", "logging_steps": 1}
    args = GRPOConfig(output_dir=str(folder / "run"), **fields | given.get("args", {}))
    options = {"llm": Teacher(), "instruction": task.INSTRUCTION} | given.get("options", {})
    arguments: dict[str, Any] = {
        "args": args,
        "processing_class": tokenizer,
        "train_dataset": task.questions(),
        "reward_funcs": task.exact,
        "tools": task.TOOLS,
        "method": given.get("method", cotune.INSPO)(**options),
        **given.get("trainer", {}),
    }
    cotune.JointTrainer(str(FOLDER / "policy"), **arguments).train()


def untyped(expression):  # type: ignore[no-untyped-def]
    """Works something out.

    Args:
        expression: what.
    """


def undocumented(word: str) -> str:
    return word


def short(completions: list[Any], **_: Any) -> list[float]:
    return [1.0]


def nan(completions: list[Any], **_: Any) -> list[float]:
    return [float("nan")] * len(completions)


def nothing(completions: list[Any], **_: Any) -> None: ...


def broken(completions: list[Any], **_: Any) -> list[float]:
    raise ZeroDivisionError("no completions")


def of_a_column(completions: list[Any], truth: list[str]) -> list[float]:
    return [0.0] * len(completions)


OPENAI = cotune.OpenAIOptions(model="m", api_key_env="NO_SUCH_KEY")
IN_PYTHON: dict[str, tuple[dict[str, Any], list[str]]] = {
    "impossible option": ({"options": {"window": 0}}, ["INSPO: window is 0", "at least 1"]),
    "no data": ({"trainer": {"train_dataset": None}}, ["train_dataset is missing", "environment="]),
    "rows without a prompt": ({"trainer": {"train_dataset": [{"text": "b"}] * 9}}, ["train_dataset", "prompt"]),
    "tool without types": ({"trainer": {"tools": [untyped]}}, ["untyped", "expression", "type"]),
    "tool without docstring": ({"trainer": {"tools": [undocumented]}}, ["undocumented", "docstring"]),
    "two tools of a name": ({"trainer": {"tools": [undocumented, undocumented]}}, ["undocumented"]),
    "no reward": ({"trainer": {"reward_funcs": None}}, ["reward"]),
    "reward of the wrong length": ({"trainer": {"reward_funcs": short}}, ["rewards: short returned 1 values for 2 completions"]),
    "reward that is NaN": ({"trainer": {"reward_funcs": nan}}, ["rewards: nan returned nan"]),
    "reward that is None": ({"trainer": {"reward_funcs": nothing}}, ["rewards: nothing returned None"]),
    "reward that raises": ({"trainer": {"reward_funcs": broken}}, ["rewards: broken raised ZeroDivisionError"]),
    "reward that needs another column": ({"trainer": {"reward_funcs": of_a_column}}, ["rewards: of_a_column needs the column 'truth'"]),
    "weights of other rewards": ({"args": {"reward_weights": [1.0, 2.0]}}, ["reward_weights has 2 entries for 1 reward functions"]),
    "blank instruction": ({"options": {"instruction": " "}}, ["instruction"]),
    "no LLM": ({"options": {"llm": None}}, ["INSPO: llm is missing", 'INSPO(llm="gpt-4.1")', "OpenAIOptions(model=…"]),
    "no key": ({"options": {"llm": OPENAI}}, ["NO_SUCH_KEY"]),
    "completions longer than the context": ({"args": {"max_completion_length": 1020}}, ["max_completion_length is 1020 and leaves 4 tokens", "lower max_completion_length to"]),
    "prompt longer than its limit": ({"trainer": {"limits": cotune.Limits(turns=3, turn_tokens=64, trajectory_tokens=256, prompt_tokens=100)}}, ["limits.prompt_tokens is 100", "raise it"]),
    "chat template without tools": ({"chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}, ["chat template"]),
    "data and an environment": ({"trainer": {"environment": cotune.GeoEnvironment()}}, ["environment and train_dataset are both given"]),
    "rollouts of one's own": ({"trainer": {"rollout_func": print}}, ["rollout_func: cotune makes the rollouts itself"]),
    "another sampling": ({"args": {"top_k": 50}}, ["GRPOConfig.top_k is 50"]),
    "hard for ever": ({"method": cotune.P2O, "options": {"successes_below": 9}}, ["successes_below is 9", "at most 4"]),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PYTHON)
def test_in_python(name: str, example: dict[str, ModuleType], tmp_path: Path) -> None:
    given, expected = IN_PYTHON[name]
    with pytest.raises(cotune.ConfigError) as caught:
        start(example, tmp_path, given)
    error = str(caught.value)
    assert "\n" not in error
    assert [part for part in expected if part not in error] == [], error
    assert list(tmp_path.iterdir()) == []


def test_right_it_starts(example: dict[str, ModuleType], tmp_path: Path) -> None:
    """Without a replaced part it starts, so each case above fails because of its replacement."""
    start(example, tmp_path, {"args": {"max_steps": 1}, "options": {"evolve_every": 0}})
    assert [row["step"] for row in cotune.open_run(tmp_path / "run" / "cotune").read_metrics()] == [
        1
    ]
    with pytest.raises(cotune.ConfigError, match="holds an earlier run"):
        start(example, tmp_path, {"args": {"max_steps": 1}, "options": {"evolve_every": 0}})
