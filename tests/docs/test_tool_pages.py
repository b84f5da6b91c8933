"""The pages on tools, environments and verifiers: their programs run as described."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import cotune
from cotune.environments.tool_calls import read_hermes
from cotune.environments.tools import ToolEnvironment, ToolsOptions
from cotune.environments.trl_factory import TrlEnvironment, TrlOptions, trl_environment
from cotune.environments.verifiers import VerifiersOptions
from cotune.types import Action, Limits, Prompt, Task
from tests.docs.sources import DOCS, blocks
from tests.helpers import under
from tests.scripted import roll_out

TOOLS = DOCS / "how-to" / "tools.md"
ENVIRONMENTS = DOCS / "how-to" / "environments.md"
TASKS = {"train": [Task("q0", "Guess.", ("3",), columns={"secret": 3})]}


def shown_tools() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "my_tools"}
    exec(compile(blocks(TOOLS, "python")[0], "tools.md", "exec"), names)
    return names


def reads(environment: Any, name: str, **arguments: Any) -> str:
    text = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    (response,) = environment.respond(
        [Action(TASKS["train"][0], (), text, False, 0, read_hermes(text))]
    )
    return response.messages[0]["content"]


def test_the_tools_of_the_page_work_as_described() -> None:
    names = shown_tools()
    environment = ToolEnvironment([names["price"], names["multiply"]], TASKS)
    page = TOOLS.read_text(encoding="utf-8")

    assert reads(environment, "price", article="Lamp") == "24.5"
    assert reads(environment, "multiply", a=2.0, b=3) == "6.0"
    for said in (
        reads(environment, "prize", article="lamp"),
        reads(environment, "multiply", a=1),
        reads(environment, "price", article="sofa"),
    ):
        assert f"`{said}`" in page


def test_the_run_files_of_the_pages_are_read(cwd: Path) -> None:
    tools, own = (yaml.safe_load(block)["environment"] for block in blocks(TOOLS, "yaml"))
    Path("my_env.py").write_text(blocks(TOOLS, "python")[2].partition("\nenvironment =")[0])

    assert ToolsOptions.model_validate(tools).seconds == 5
    environment = trl_environment(TrlOptions.model_validate(own), None)
    (message,) = environment.messages(environment.tasks("train")[0], Prompt("Go."))
    assert message["content"].startswith("Go.\n\nCount to ")
    section = yaml.safe_load(blocks(ENVIRONMENTS, "yaml")[1])["environment"]
    assert VerifiersOptions.model_validate(section).environment == "my-taskset"


def test_the_library_is_used_as_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cotune, "JointTrainer", lambda *values, **named: named)
    names = {**shown_tools(), "exact": len, "args": None, "dataset": []}

    exec(compile(blocks(TOOLS, "python")[1], "tools.md", "exec"), names)
    exec(compile(blocks(TOOLS, "python")[2], "tools.md", "exec"), names)

    in_script = ToolEnvironment(names["trainer"]["tools"], TASKS)
    assert reads(in_script, "price", article="lamp") == "24.5"
    assert isinstance(names["environment"], TrlEnvironment)
    assert reads(names["environment"], "add", step=3) == "3"


def test_the_environment_of_the_page_plays_its_game() -> None:
    names: dict[str, Any] = {}
    exec(compile(blocks(ENVIRONMENTS, "python")[0], "environments.md", "exec"), names)
    tasks = cotune.tasks_from([{"question": "Between 1 and 20", "answer": "7"}])
    environment = names["HigherOrLower"](tasks)
    assignment = under(environment.tasks("train")[0], environment.initial_instruction)
    section = yaml.safe_load(blocks(ENVIRONMENTS, "yaml")[0])
    limits = Limits(**section["limits"])

    replies = ["I say 10\0", "hm\0", "7\0"]
    (played,) = roll_out(environment, replies, [assignment], limits)

    assert [turn.observation.strip() for turn in played.turns] == [
        "Lower.",
        "That is no number.",
        "",
    ]
    assert [turn.action for turn in played.turns] == ["guess", "invalid", "answer"]
    assert (played.reward, played.answer) == (pytest.approx(1 / 3), "7")
