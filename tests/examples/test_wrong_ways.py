"""The example's script with mistakes: each gives one line with the argument and the fix, and writes nothing.

The same mistakes in a run file: tests/cli/test_bad_input.py; in reward functions: tests/rewards.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transformers import AutoTokenizer, TrainingArguments
from trl import GRPOConfig

import cotune
from cotune.worlds.ladder import LadderOptions
from tests.examples.three_tools import FOLDER
from tests.helpers import raises_line

FEW = LadderOptions(train=1, validation=1, test=1)


def start(example: dict[str, ModuleType], folder: Path, changes: dict[str, Any]) -> None:
    """Do what `with_cotune.main` does up to the first step, with some arguments replaced."""
    task = example["task"]
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "policy")
    tokenizer.chat_template = changes.get("chat_template", tokenizer.chat_template)
    fields = {"max_steps": 4, "per_device_train_batch_size": 8, "num_generations": 4}
    fields |= {"max_completion_length": 256, "report_to": "none", "use_cpu": True, "bf16": False}
    fields |= {"save_strategy": "no", "logging_steps": 1}
    args = GRPOConfig(output_dir=str(folder / "run"), **fields | changes.get("args", {}))
    options = {
        "llm": str(FOLDER / "instructions.txt"),
        "instruction": task.INSTRUCTION,
    } | changes.get("options", {})
    arguments: dict[str, Any] = {
        "args": args, "processing_class": tokenizer, "train_dataset": task.questions(),
        "reward_funcs": task.exact, "tools": task.TOOLS,
        "method": changes.get("method", cotune.INSPO)(**options), **changes.get("trainer", {}),
    }  # fmt: skip
    cotune.JointTrainer(str(FOLDER / "policy"), **arguments).train()


def short(completions: list[Any], **_: Any) -> list[float]:
    return [1.0]


IN_PYTHON: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a name for a method": ({"trainer": {"method": "inspo"}}, ["method is of type str; expected an object such as cotune.INSPO(llm=…)"]),
    "a class for an environment": ({"trainer": {"environment": cotune.LadderEnvironment}}, ["environment is the class LadderEnvironment; expected"]),
    "a function for tools": ({"trainer": {"tools": short}}, ["tools is of type function; expected a list of functions"]),
    "a number for data": ({"trainer": {"train_dataset": 5}}, ["train_dataset is 5; expected rows"]),
    "TrainingArguments": ({"trainer": {"args": TrainingArguments("x")}}, ["args is of type TrainingArguments; expected"]),
    "no data": ({"trainer": {"train_dataset": None}}, ["train_dataset is missing", "environment="]),
    "rows without a prompt": ({"trainer": {"train_dataset": [{"text": "b"}] * 9}}, ["train_dataset", "prompt"]),
    "no reward": ({"trainer": {"reward_funcs": None}}, ["rewards: missing", "gives none"]),
    "reward of the wrong length": ({"trainer": {"reward_funcs": short}}, ["rewards: short returned [1.0]", "8 numbers"]),
    "weights of other rewards": ({"args": {"reward_weights": [1.0, 2.0]}}, ["reward_weights has 2 entries for 1 reward functions"]),
    "blank instruction": ({"options": {"instruction": " "}}, ["instruction"]),
    "no LLM": ({"options": {"llm": None}}, ["INSPO: llm is missing", 'INSPO(llm="gpt-4.1")', "OpenAIOptions(model=…"]),
    "chat template without tools": ({"chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}"}, ["chat template"]),
    "data and an environment": ({"trainer": {"environment": cotune.LadderEnvironment(FEW)}}, ["environment and train_dataset are both given"]),
    "rollouts of one's own": ({"trainer": {"rollout_func": print}}, ["rollout_func: cotune makes the rollouts itself; remove it"]),
    "hard for ever": ({"method": cotune.P2O, "options": {"successes_below": 9}}, ["successes_below is 9", "a group of 4", "at most 4"]),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_PYTHON)
def test_in_python(name: str, example: dict[str, ModuleType], tmp_path: Path) -> None:
    changes, parts = IN_PYTHON[name]
    with raises_line(*parts):
        start(example, tmp_path, changes)
    # A script's reward functions are first called on the first batch.
    assert any(tmp_path.iterdir()) == (name == "reward of the wrong length")
