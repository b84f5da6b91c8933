"""Environments of verifiers.v1, with a harness that runs in this process."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from cotune.environments.environment_options import VerifiersOptions
from cotune.environments.verifiers import verifiers_environment
from cotune.errors import ConfigError
from cotune.rollout.episode import new_episodes, run_episodes
from cotune.testing import CharacterCodec, ScriptedSampler
from cotune.types import Assignment, Limits, Prompt, Sampling, StopReason, Trajectory

CODEC = CharacterCodec()
ARGS = {"taskset": {"count": 20}, "agent": {"runtime": {"type": "subprocess"}}}
TASKSET = '''
import json
import httpx
import verifiers.v1 as vf

ADD = {"type": "function", "function": {
    "name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}}


class Data(vf.TaskData):
    answer: str


class Sum(vf.Task[Data]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.assistant_messages[-1].content == self.data.answer)

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class Config(vf.TasksetConfig):
    count: int = 20


class Sums(vf.Taskset[Sum, Config]):
    def load(self):
        for i in range(self.config.count):
            data = Data(prompt=f"What is {i} + {i}?", answer=str(2 * i), system_prompt="Add up.")
            yield Sum(data, self.config.task)


class InProcess(vf.Harness[vf.HarnessConfig]):
    """A chat loop with one tool; a program like the others, except for its process."""

    APPENDS_SYSTEM_PROMPT = True
    NEEDS_CONTAINER = EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data, **_):
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            while True:
                body = {"model": ctx.model, "messages": messages, "tools": [ADD]}
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
                    given = json.loads(call["function"]["arguments"])
                    if "a" not in given:
                        raise RuntimeError("no a")
                    text = str(2 * given["a"])
                    messages.append(
                        {"role": "tool", "tool_call_id": call["id"], "content": text}
                    )


__all__ = ["Sums", "InProcess"]
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("verifiers.v1")
    folder = tmp_path_factory.mktemp("v1")
    (folder / "vf_v1_sums_test.py").write_text(TASKSET)
    sys.path.insert(0, str(folder))
    try:
        yield verifiers_environment(
            VerifiersOptions(environment="vf-v1-sums-test", args=ARGS, validation=2, test=3)
        )
    finally:
        sys.path.remove(str(folder))


def call(**arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': 'add', 'arguments': arguments})}</tool_call>"


def roll_out(
    own: Any, replies: Any, count: int = 2, limits: Limits | None = None
) -> list[Trajectory]:
    prompt = Prompt("Use the tool.")
    episodes = new_episodes(
        [
            Assignment(task, prompt, prompt, "i0", i)
            for i, task in enumerate(own.tasks("train")[:count])
        ],
        own,
        CODEC,
        limits or Limits(turns=6, turn_tokens=400),
    )
    return run_episodes(episodes, own, ScriptedSampler(CODEC, replies).open(Sampling()))


def adds(row: int, turn: int, context: str) -> str:
    if turn == 0:
        number = int(context.split("What is ")[1].split(" +")[0])
        return f"I add. {call(a=number)}"
    return context.rpartition("[tool: ")[2].rstrip("]")


def test_tasks_system_prompt_and_tools_are_taken_over(own: Any) -> None:
    counts = [len(own.tasks(split)) for split in ("train", "validation", "test")]
    assert counts == [15, 2, 3]
    assert own.initial_instruction == "Add up."
    assert [tool["function"]["name"] for tool in own.tools] == ["add"]
    task = own.tasks("train")[0]
    assert task.answers == (task.columns["answer"],)
    assert own.messages(task, Prompt("Sum."))[0] == {"role": "system", "content": "Sum."}


def test_the_policy_is_asked_in_place_of_a_model(own: Any) -> None:
    for trajectory in roll_out(own, adds):
        (answer,) = trajectory.task.answers
        assert trajectory.answer == answer, trajectory.turns
        assert trajectory.stop is StopReason.ANSWERED
        assert trajectory.turns[0].observation == f"\n{answer}\n"
        assert [turn.action for turn in trajectory.turns] == ["add", "answer"]
        assert trajectory.reward == 2.0
        assert trajectory.parts == {"right": 2.0, "turns": 2.0}


def test_an_episode_that_our_limits_end_is_scored(own: Any) -> None:
    (trajectory,) = roll_out(own, [call(a=1)] * 2, 1, Limits(turns=2, turn_tokens=400))

    assert trajectory.stop is StopReason.TURN_LIMIT
    assert trajectory.reward == 0.0
    assert trajectory.parts["turns"] == 2.0


def test_an_environment_that_breaks_ends_its_episode_alone(own: Any) -> None:
    first, second = roll_out(
        own, lambda row, turn, context: call() if row == 0 else adds(1, turn, context)
    )

    assert first.stop is StopReason.ENVIRONMENT_ERROR
    assert "no a" in first.turns[0].error
    assert (first.reward, second.reward) == (0.0, 2.0)


def test_what_cannot_be_loaded_names_the_version() -> None:
    with pytest.raises(ConfigError, match=r"cannot be loaded by verifiers \d+\.\d+"):
        verifiers_environment(VerifiersOptions(environment="vf-none-such"))
