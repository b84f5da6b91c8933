"""The pages on tools, environments, verifiers, data and rewards: tables agree with the code, programs run."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import trl
import yaml

import cotune
from cotune.data.dataset import DEFAULT_COLUMNS
from cotune.environments.tool_calls import read_hermes
from cotune.environments.tools import ToolEnvironment, ToolsOptions
from cotune.environments.trl_factory import TrlEnvironment, TrlOptions, trl_environment
from cotune.environments.verifiers import VerifiersOptions
from cotune.rewards.functions import ARGUMENTS
from cotune.rewards.reward_model import rewards_of_trainer
from cotune.types import Action, Limits, Prompt, Task
from tests.docs.sources import DOCS, blocks
from tests.helpers import make_trajectory, under
from tests.scripted import roll_out

TOOLS = DOCS / "how-to" / "tools.md"
ENVIRONMENTS = DOCS / "how-to" / "environments.md"
DATA, REWARDS = DOCS / "how-to" / "data.md", DOCS / "how-to" / "rewards.md"
TASKS = {"train": [Task("q0", "Guess.", ("3",), columns={"secret": 3})]}


def load_tools() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "my_tools"}
    exec(compile(blocks(TOOLS, "python")[0], "tools.md", "exec"), names)
    return names


def call_tool(environment: Any, name: str, **arguments: Any) -> str:
    text = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    (response,) = environment.respond(
        [Action(TASKS["train"][0], (), text, False, 0, read_hermes(text))]
    )
    return response.messages[0]["content"]


def test_the_tools_of_the_page_work_as_described() -> None:
    names = load_tools()
    environment = ToolEnvironment([names["price"], names["multiply"]], TASKS)
    page = TOOLS.read_text(encoding="utf-8")

    assert call_tool(environment, "price", article="Lamp") == "24.5"
    assert call_tool(environment, "multiply", a=2.0, b=3) == "6.0"
    for message in (
        call_tool(environment, "prize", article="lamp"),
        call_tool(environment, "multiply", a=1),
        call_tool(environment, "price", article="sofa"),
    ):
        assert f"`{message}`" in page


def test_the_run_files_of_the_pages_are_read(cwd: Path) -> None:
    tools, game = (yaml.safe_load(block)["environment"] for block in blocks(TOOLS, "yaml"))
    Path("my_env.py").write_text(blocks(TOOLS, "python")[2].partition("\nenvironment =")[0])

    assert ToolsOptions.model_validate(tools).seconds == 5
    environment = trl_environment(TrlOptions.model_validate(game), None)
    (message,) = environment.messages(environment.tasks("train")[0], Prompt("Go."))
    assert message["content"].startswith("Go.\n\nCount to ")
    section = yaml.safe_load(blocks(ENVIRONMENTS, "yaml")[1])["environment"]
    assert VerifiersOptions.model_validate(section).environment == "my-taskset"


def test_the_library_is_used_as_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cotune, "JointTrainer", lambda *values, **options: options)
    names = {**load_tools(), "exact": len, "args": None, "dataset": []}

    exec(compile(blocks(TOOLS, "python")[1], "tools.md", "exec"), names)
    exec(compile(blocks(TOOLS, "python")[2], "tools.md", "exec"), names)

    in_script = ToolEnvironment(names["trainer"]["tools"], TASKS)
    assert call_tool(in_script, "price", article="lamp") == "24.5"
    assert isinstance(names["environment"], TrlEnvironment)
    assert call_tool(names["environment"], "add", step=3) == "3"


def test_the_environment_of_the_page_plays_its_game() -> None:
    names: dict[str, Any] = {}
    exec(compile(blocks(ENVIRONMENTS, "python")[0], "environments.md", "exec"), names)
    tasks = cotune.tasks_from([{"question": "Between 1 and 20", "answer": "7"}])
    environment = names["HigherOrLower"](tasks)
    assignment = under(environment.tasks("train")[0], environment.initial_instruction)
    section = yaml.safe_load(blocks(ENVIRONMENTS, "yaml")[0])
    limits = Limits(**section["limits"])

    replies = ["I say 10\0", "hm\0", "7\0"]
    (trajectory,) = roll_out(environment, replies, [assignment], limits)

    assert [turn.observation.strip() for turn in trajectory.turns] == [
        "Lower.",
        "That is no number.",
        "",
    ]
    assert [turn.action for turn in trajectory.turns] == ["guess", "invalid", "answer"]
    assert (trajectory.reward, trajectory.answer) == (pytest.approx(1 / 3), "7")


# ---- data and rewards


def table(page: Path, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    _, _, text = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    lines = text.partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in x.strip("|").split("|")] for x in lines if x[:1] == "|"]
    return rows[2:]


def test_the_columns_are_those_that_are_read() -> None:
    rows = table(DATA, "Which columns are read")
    roles = {name.strip("`"): set(re.findall(r"`([\w.]+)`", columns)) for name, columns, _ in rows}
    default_roles = {role: set(columns) for role, columns in DEFAULT_COLUMNS.items()}
    assert roles == default_roles


def test_the_arguments_of_reward_functions_are_listed() -> None:
    text = REWARDS.read_text(encoding="utf-8").partition("\n## What a function is given\n")[2]
    names = re.findall(r"^- `(\w+)", text.partition("\n## ")[0], re.MULTILINE)
    assert set(names) == set(ARGUMENTS)


def test_the_data_of_one_page_with_the_functions_of_the_other(
    cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = blocks(DATA, "json")
    row = json.loads(line)
    rows = [row, *({**row, "question": f"{row['question']} ({i})"} for i in range(19))]
    Path("questions.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    names: dict[str, Any] = {}
    monkeypatch.setattr(cotune, "JointTrainer", lambda *values, **options: (values, options))
    exec(compile(blocks(DATA, "python")[0], "data.md", "exec"), names)
    assert {split: len(tasks) for split, tasks in names["tasks"].items()} == {
        "train": 14,
        "validation": 2,
        "test": 4,
    }
    (_, name), options = names["trainer"]
    assert (name, options) == ("exact_match", {"environment": names["environment"]})

    functions, library = blocks(REWARDS, "python")
    exec(compile(functions, "rewards.md", "exec"), names)
    score = cotune.RewardFunctions(
        [names["exact"], cotune.WeightedReward(function=names["brief"], weight=0.1)]
    )
    task = names["tasks"]["train"][0]
    texts = ("It is Paris.", "London " * 100)
    trajectories = score(
        [make_trajectory(under(task), 0.0, text) for text in texts], names["environment"]
    )
    assert [t.reward for t in trajectories] == pytest.approx([1.1, 0.0])

    names["dataset"] = []
    on_cpu = functools.partial(trl.GRPOConfig, use_cpu=True, bf16=False)
    monkeypatch.setattr(trl, "GRPOConfig", on_cpu)
    exec(compile(library, "rewards.md", "exec"), names)
    options = names["trainer"][1]
    rewards = rewards_of_trainer(options["reward_funcs"], None, options["args"])
    assert rewards is not None
    assert rewards.weights(names["environment"]) == {"exact": 1.0, "brief": 0.1, "f1_squad": 0.5}
