"""Environments of verifiers.v1, with a harness that runs in this process."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cotune.environments.verifiers import VerifiersOptions, from_verifiers, verifiers_environment
from cotune.errors import ConfigError
from cotune.types import Limits, Prompt, StopReason, Trajectory
from tests import scripted
from tests.helpers import raises_line, tool_call, under

ARGS = {"taskset": {"count": 20}, "agent": {"runtime": {"type": "subprocess"}}}
TASKSET = '''
import json
import httpx
import verifiers.v1 as vf

ADD = {"type": "function", "function": {
    "name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}}


class Data(vf.TaskData):
    answer: str
    mode: str


class Sum(vf.Task[Data]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.assistant_messages[-1].content == self.data.answer)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class Config(vf.TasksetConfig):
    count: int = 20
    mode: str = ""


class Sums(vf.Taskset[Sum, Config]):
    def load(self):
        for i in range(self.config.count):
            mode = self.config.mode
            prompt = None if mode == "silent user" else f"What is {i} + {i}?"
            if mode == "assistant first":
                prompt = [vf.AssistantMessage(content="Yes?")]
            data = Data(prompt=prompt, answer=str(2 * i), system_prompt="Add up.", mode=mode)
            yield Sum(data, self.config.task)


class InProcess(vf.Harness[vf.HarnessConfig]):
    """A chat loop with one tool; a program like the others, except for its process."""

    APPENDS_SYSTEM_PROMPT = True
    NEEDS_CONTAINER = EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **_):
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        tools = [ADD]
        if data.mode == "prefixes" and system == "Use the tool.":
            messages = messages + messages
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            while True:
                body = {"model": ctx.model, "messages": messages, "tools": tools}
                reply = await client.post(
                    f"{endpoint}/chat/completions",
                    json=body,
                    headers={"authorization": f"Bearer {secret}"},
                )
                if reply.status_code != 200:
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                message = reply.json()["choices"][0]["message"]
                messages.append(message)
                if not message.get("tool_calls"):
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                for call in message["tool_calls"]:
                    arguments = json.loads(call["function"]["arguments"])
                    if "a" not in arguments:
                        raise RuntimeError("no a")
                    text = str(2 * arguments["a"])
                    if data.mode == "shows":
                        image = {"type": "image_url", "image_url": {"url": "https://a.org/b.png"}}
                        text = [{"type": "text", "text": "See"}, image]
                    if data.mode != "silent":
                        messages.append(
                            {"role": "tool", "tool_call_id": call["id"], "content": text}
                        )
                if data.mode == "rewrites":
                    messages[0]["content"] = "Forget."
                if data.mode == "more tools":
                    tools = []


__all__ = ["Sums", "InProcess"]
'''


def make_env(mode: str = "", count: int = 20, **options: Any) -> Any:
    args = {**ARGS, "taskset": {"count": count, "mode": mode}}
    fields = {"environment": "vf-v1-sums-test", "args": args, "validation": 2, "test": 3, **options}
    return verifiers_environment(VerifiersOptions(**fields), None)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("verifiers.v1")
    folder = tmp_path_factory.mktemp("v1")
    (folder / "vf_v1_sums_test.py").write_text(TASKSET)
    sys.path.insert(0, str(folder))
    try:
        yield make_env()
    finally:
        sys.path.remove(str(folder))


def roll_out(
    env: Any, replies: Any, count: int = 2, limits: Limits | None = None
) -> list[Trajectory]:
    assignments = [under(task, "Use the tool.") for task in env.tasks("train")[:count]]
    return scripted.roll_out(env, replies, assignments, limits or Limits(turns=6, turn_tokens=400))


def adds(row: int, turn: int, context: str) -> str:
    if turn == 0:
        number = int(context.split("What is ")[1].split(" +")[0])
        return f"I add. {tool_call('add', a=number)}"
    return context.rpartition("[tool: ")[2].rstrip("]")


def test_tasks_system_prompt_and_tools_are_taken_over(env: Any) -> None:
    counts = [len(env.tasks(split)) for split in ("train", "validation", "test")]
    assert counts == [15, 2, 3]
    assert env.initial_instruction == "Add up."
    assert [tool["function"]["name"] for tool in env.tools] == ["add"]
    task = env.tasks("train")[0]
    assert task.answers == (task.columns["answer"],)
    assert env.messages(task, Prompt("Sum."))[0] == {"role": "system", "content": "Sum."}
    # A run file may name a function.
    loaded = make_env(environment="verifiers.v1:load_environment", args={"config": make_config()})
    assert loaded.initial_instruction == "Add up."


def test_the_policy_is_asked_in_place_of_a_model(env: Any) -> None:
    for trajectory in roll_out(env, adds):
        (answer,) = trajectory.task.answers
        assert trajectory.answer == answer, trajectory.turns
        assert trajectory.stop is StopReason.ANSWERED
        assert trajectory.turns[0].observation == f"\n{answer}\n"
        assert [turn.action for turn in trajectory.turns] == ["add", "answer"]
        assert trajectory.reward == 2.0
        assert trajectory.parts == {"right": 2.0, "turns": 2.0}
    # An episode that our limits end is scored.
    (trajectory,) = roll_out(env, [tool_call("add", a=1)] * 2, 1, Limits(turns=2, turn_tokens=400))
    assert trajectory.stop is StopReason.TURN_LIMIT
    assert trajectory.reward == 0.0
    assert trajectory.parts["turns"] == 2.0
    # An environment that breaks ends its episode alone.
    first, second = roll_out(
        env, lambda row, turn, context: tool_call("add") if row == 0 else adds(1, turn, context)
    )
    assert first.stop is StopReason.ENVIRONMENT_ERROR
    assert "no a" in first.turns[0].error
    assert (first.reward, second.reward) == (0.0, 2.0)
    # Calls that cannot be read are text, as from a server.
    (trajectory,) = roll_out(env, ["<tool_call>add</tool_call>"], count=1)
    assert trajectory.stop is StopReason.ANSWERED
    assert trajectory.turns[0].action == "invalid"
    assert "not JSON" in trajectory.turns[0].error
    assert trajectory.answer is None
    # Parallel calls come back by name.
    (trajectory,) = roll_out(env, [tool_call("add", a=1) + tool_call("add", a=2), "2"], count=1)
    assert trajectory.turns[0].observation == "\nadd: 2\nadd: 4\n"
    assert trajectory.turns[0].action == "2 calls"


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("rewrites", "rewrites the conversation"),
        ("prefixes", "or a row's prompt when a rollout begins"),
        ("silent", "answers a turn with nothing"),
        ("shows", "more than text"),
        ("more tools", r"offers the tools \(none\), the environment add"),
    ],
)
def test_rollouts_that_no_policy_can_be_trained_on_are_refused(
    env: Any, mode: str, message: str
) -> None:
    with raises_line(match=message):
        roll_out(make_env(mode), [tool_call("add", a=1), "2"], count=1)


@pytest.mark.parametrize(
    ("mode", "count", "message"),
    [
        ("", 4, "has 4 different questions; expected at least"),
        ("silent user", 20, "the prompt of task 0 has messages of: none; expected"),
        ("assistant first", 20, "messages of: assistant; expected texts"),
    ],
)
def test_environments_that_cannot_be_trained_in_are_refused(
    env: Any, mode: str, count: int, message: str
) -> None:
    with raises_line(match=rf"environment\.environment.*{message}"):
        make_env(mode, count)


def test_an_environment_of_another_interface_is_refused() -> None:
    pytest.importorskip("verifiers.v1")
    with pytest.raises(ConfigError, match=r"is object; expected an Env of verifiers\.v1"):
        from_verifiers(object())


def test_rows_can_be_used_again_after_a_rollout_was_broken_off(env: Any) -> None:
    class Stop(Exception):
        pass

    def stops(row: int, turn: int, context: str) -> str:
        if turn:
            raise Stop
        return tool_call("add", a=1)

    with pytest.raises(Stop):
        roll_out(env, stops)

    assert [t.reward for t in roll_out(env, adds)] == [2.0, 2.0]


def make_config() -> Any:
    import verifiers.v1 as vf

    return vf.resolve_env_config({**ARGS, "taskset": {"id": "vf-v1-sums-test", "count": 20}})


def test_without_the_package_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "cotune.environments.verifiers_rollouts", raising=False)
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with pytest.raises(ConfigError, match=r"pip install 'cotune\[verifiers\]'"):
        verifiers_environment(VerifiersOptions(environment="gsm8k"), None)


@pytest.mark.parametrize("environment", ["vf-none-such", "json:loads"])
def test_what_cannot_be_loaded_is_named(environment: str) -> None:
    pytest.importorskip("verifiers.v1")
    with pytest.raises(ConfigError, match=f"verifiers cannot load '{environment}'"):
        verifiers_environment(VerifiersOptions(environment=environment), None)
