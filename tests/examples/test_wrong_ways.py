"""The example with mistakes: each gives one line with the field or file and the fix, and writes nothing."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

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
    "option of another method": (
        fields("strategy.kind", "static"),
        ["strategy.evolve_every: is not a field of strategy.kind static", "remove it"],
    ),
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
    """Do what `with_cotune.main` does up to the first step, with some parts replaced."""
    task = example["task"]
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "policy")
    tokenizer.chat_template = given.get("chat_template", tokenizer.chat_template)
    fields = {"max_steps": 4, "per_device_train_batch_size": 8, "num_generations": 4, "top_k": 0}
    fields |= {"shuffle_dataset": False, "report_to": "none", "use_cpu": True, "bf16": False}
    fields |= {"save_strategy": "no", "logging_steps": 1}
    args = GRPOConfig(output_dir=str(folder / "run"), **fields | given.get("args", {}))
    tasks = cotune.tasks_from(given.get("data", task.questions()), **given.get("data_fields", {}))
    environment = given.get("environment", cotune.ToolEnvironment)(
        given.get("tools", task.TOOLS), tasks, task.INSTRUCTION
    )
    limits = {"turns": 3, "turn_tokens": 64, "trajectory_tokens": 256, "prompt_tokens": 512}
    parts: dict[str, Any] = {"environment": environment, "rewards": [task.exact], "llm": Teacher()}
    parts |= {"limits": cotune.Limits(**limits | given.get("limits", {}))} | given.get("parts", {})
    joint = given.get("method", cotune.INSPO)(**parts).for_trl(tokenizer, args)
    model = AutoModelForCausalLM.from_pretrained(FOLDER / "policy")
    trainer = given.get("trainer", cotune.JointTrainer)(
        model,
        args=args,
        processing_class=tokenizer,
        train_dataset=joint.dataset,
        rollout_func=joint.rollout_func,
        callbacks=joint.callbacks,
        **{"reward_funcs": joint.reward_funcs, **given.get("trainer_fields", {})},
    )
    trainer.train()


class Tagged(cotune.ToolEnvironment):
    """An environment that reads the answer from a tag."""

    required = ("<final>", "</final>")  # type: ignore[assignment]


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
    "misspelt option": ({"parts": {"evolve_evry": 5}}, ["INSPO: evolve_evry", "did you mean evolve_every?"]),
    "impossible option": ({"parts": {"window": 0}}, ["INSPO: window is 0", "at least 1"]),
    "missing column": ({"data_fields": {"columns": {"question": "text"}}}, ["dataset.columns.question is 'text'", "prompt, answer"]),
    "no mapping": ({"data": ["What is 1?"]}, ["dataset, row 1", "expected a mapping"]),
    "several splits": ({"data": {"train": []}}, ["dataset: is a dict of train", "data['train']"]),
    "row without the question": ({"data": [{"question": "a"}, {"text": "b"}]}, ["dataset, row 2", '"question" is None']),
    "tool without types": ({"tools": [untyped]}, ["untyped", "expression", "type"]),
    "tool without docstring": ({"tools": [undocumented]}, ["undocumented", "docstring"]),
    "two tools of a name": ({"tools": [undocumented, undocumented]}, ["undocumented"]),
    "no tools": ({"tools": []}, ["tools is empty", "one function or more"]),
    "no reward": ({"parts": {"rewards": None}}, ["rewards: missing", "name reward functions"]),
    "reward of the wrong length": ({"parts": {"rewards": [short]}}, ["rewards: short returned 1 values for 2 completions"]),
    "reward that is NaN": ({"parts": {"rewards": [nan]}}, ["rewards: nan returned nan"]),
    "reward that is None": ({"parts": {"rewards": [nothing]}}, ["rewards: nothing returned None"]),
    "reward that raises": ({"parts": {"rewards": [broken]}}, ["rewards: broken raised ZeroDivisionError"]),
    "reward that needs another column": ({"parts": {"rewards": [of_a_column]}}, ["rewards: of_a_column needs the column 'truth'", "prompt, answer"]),
    "blank instruction": ({"parts": {"instruction": " "}}, ["instruction: blank"]),
    "instruction that loses the tags": ({"environment": Tagged}, ["instruction names no <final>, </final>", "add what is missing"]),
    "no LLM": ({"parts": {"llm": None}}, ["llm is None", "ToolEnvironment", "OpenAIOptions(model=…)"]),
    "no key": ({"parts": {"llm": OPENAI}}, ["NO_SUCH_KEY", "api_key_env"]),
    "context shorter than an episode": ({"limits": {"prompt_tokens": 900}}, ["900 + 256 = 1156", "1024 tokens", "lower"]),
    "prompt longer than its limit": ({"limits": {"prompt_tokens": 100}}, ["limits.prompt_tokens is 100", "raise it"]),
    "chat template without tools": ({"chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}, ["chat template"]),
    "tools= on the trainer": ({"trainer_fields": {"tools": [undocumented]}}, ["tools=", "drop the argument"]),
    "rewards on the trainer": ({"trainer_fields": {"reward_funcs": [short, nan]}}, ["reward_funcs=['short', 'nan']", "joint.reward_funcs"]),
    "shuffled": ({"args": {"shuffle_dataset": True}}, ["GRPOConfig.shuffle_dataset is True", "shuffle_dataset=False"]),
    "no number of steps": ({"args": {"max_steps": -1}}, ["GRPOConfig.max_steps is -1", "set max_steps"]),
    "another sampling": ({"args": {"top_k": 50}}, ["GRPOConfig.top_k is 50"]),
    "several passes": ({"args": {"num_iterations": 2}}, ["GRPOConfig.num_iterations is 2"]),
    "P²O's mask on a plain trainer": (
        {"method": cotune.P2O, "trainer": GRPOTrainer, "parts": {"distillation": cotune.Distillation(ratio="masked_signed")}},
        ["cotune.JointTrainer"],
    ),
    "hard for ever": ({"method": cotune.P2O, "parts": {"successes_below": 9}}, ["successes_below is 9", "at most 4"]),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PYTHON)
def test_in_python(name: str, example: dict[str, ModuleType], tmp_path: Path) -> None:
    given, expected = IN_PYTHON[name]
    with pytest.raises(cotune.ConfigError) as caught:
        start(example, tmp_path, given)
    error = str(caught.value)
    assert "\n" not in error
    assert [part for part in expected if part not in error] == [], error
    # The trainer makes its `output_dir` when it is made.
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_right_it_starts(example: dict[str, ModuleType], tmp_path: Path) -> None:
    """Without a replaced part it starts, so each case above fails because of its replacement."""
    start(example, tmp_path, {"args": {"max_steps": 1}, "parts": {"evolve_every": 0}})
    assert [row["step"] for row in cotune.open_run(tmp_path / "run" / "cotune").read_metrics()] == [
        1
    ]
    with pytest.raises(cotune.ConfigError, match="holds an earlier run"):
        start(example, tmp_path, {"args": {"max_steps": 1}, "parts": {"evolve_every": 0}})
