"""Environments built from verifiers' own classes, rolled out by a scripted policy."""

import asyncio
import gc
import json
import signal
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from cotune.environments.environment_options import VerifiersOptions
from cotune.environments.verifiers import _splits, from_verifiers, verifiers_environment  # pyright: ignore[reportPrivateUsage]
from cotune.errors import ConfigError
from cotune.rollout.episode import new_episodes, run_episodes
from cotune.testing import CharacterCodec, ScriptedSampler
from cotune.types import Assignment, Limits, Prompt, Sampling, StopReason, Task, Trajectory

vf: Any
CALCULATE: Any
CODEC = CharacterCodec()
SUMS = [{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(20)]
SYSTEM = "Calculate."


@pytest.fixture(scope="module", autouse=True)
def _verifiers() -> None:
    """Import verifiers for these tests alone, since that takes seconds."""
    global vf, CALCULATE
    vf = pytest.importorskip("verifiers")
    CALCULATE = tool_env().tool_defs[0]


def calculate(a: int, b: int) -> int:
    """Adds.

    Args:
        a: one.
        b: two.
    """
    return a + b


def exact(completion: Any, answer: str, parser: Any) -> float:
    return float(parser.parse_answer(completion) == answer)


async def asks_before(prompt: Any, completion: Any, info: Any) -> float:
    """Whether the prompt holds the question, and a tool was called."""
    await asyncio.sleep(0)
    called = any(getattr(m, "tool_calls", None) for m in completion)
    return float("What is" in prompt[-1].content) + 0.5 * called


def rubric(*functions: Any, parser: Any = None) -> Any:
    return vf.Rubric(funcs=list(functions or (exact,)), parser=parser or vf.Parser())


def tool_env(**options: Any) -> Any:
    return vf.ToolEnv(
        **{
            "dataset": Dataset.from_list(SUMS),
            "tools": [calculate],
            "system_prompt": SYSTEM,
            "rubric": rubric(exact, asks_before),
            **options,
        }
    )


def call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>{body}</tool_call>"


def roll_out(
    own: Any,
    replies: Any,
    count: int = 2,
    limits: Limits | None = None,
    instruction: str = "Add up.",
) -> list[Trajectory]:
    limits = limits or Limits(turns=6, turn_tokens=400)
    prompt = Prompt(instruction)
    episodes = new_episodes(
        [
            Assignment(task, prompt, prompt, "i0", i)
            for i, task in enumerate(own.tasks("train")[:count])
        ],
        own,
        CODEC,
        limits,
    )
    return run_episodes(episodes, own, ScriptedSampler(CODEC, replies).open(Sampling()))


ADD_ONES = call("calculate", a=1, b=1)


def adds(row: int, turn: int, context: str) -> str:
    """Reads the question out of the prompt, calls the tool, answers with what it said."""
    if turn == 0:
        number = int(context.split("What is ")[1].split(" +")[0])
        return f"I add. {call('calculate', a=number, b=number)}"
    return context.rpartition("[tool: ")[2].rstrip("]")


def test_data_system_prompt_and_tools_are_taken_over() -> None:
    own = from_verifiers(tool_env(), validation=2, test=3)
    task = own.tasks("train")[0]

    assert {split: len(own.tasks(split)) for split in ("train", "validation", "test")} == {
        "train": 15,
        "validation": 2,
        "test": 3,
    }
    assert task.answers == (task.columns["answer"],)
    assert task.context == ()
    assert own.initial_instruction == SYSTEM
    assert [tool["function"]["name"] for tool in own.tools] == ["calculate"]
    assert own.messages(task, Prompt("Add up.")) == [
        {"role": "system", "content": "Add up."},
        {"role": "user", "content": task.question},
    ]


def test_a_rollout_is_the_environments_own_with_its_tools_and_its_rubric() -> None:
    own = from_verifiers(tool_env())

    trajectories = roll_out(own, adds)

    for trajectory in trajectories:
        (answer,) = trajectory.task.answers
        assert trajectory.answer == answer
        assert trajectory.stop is StopReason.ANSWERED
        assert trajectory.turns[0].observation == f"\n{answer}\n"
        assert [turn.action for turn in trajectory.turns] == ["calculate", "answer"]
        assert trajectory.reward == 1 + 1.5
        assert trajectory.parts["exact"] == 1.0
        assert trajectory.parts["asks_before"] == 1.5
        assert trajectory.parts["calculate_calls"] == 1.0


def test_the_environment_is_shown_the_prompt_that_is_trained_on() -> None:
    seen: list[str] = []

    def looks(prompt: Any) -> float:
        seen.extend(message.content for message in prompt)
        return 1.0

    own = from_verifiers(tool_env(rubric=rubric(looks)))
    (trajectory,) = roll_out(own, adds, count=1, instruction="A new instruction.")

    assert seen == ["A new instruction.", trajectory.task.question]


def test_what_a_tool_raises_is_shown_as_the_environment_words_it() -> None:
    own = from_verifiers(tool_env(error_formatter=lambda error: f"Oh: {error}"))

    (trajectory,) = roll_out(own, [call("calculate", a=1), "I give up."], count=1)

    assert trajectory.turns[0].observation.startswith("\nOh: calculate() missing 1 required")
    assert trajectory.reward == 1.5


def test_calls_that_cannot_be_read_are_text_as_from_a_server() -> None:
    (trajectory,) = roll_out(from_verifiers(tool_env()), ["<tool_call>add</tool_call>"], count=1)

    assert trajectory.stop is StopReason.ANSWERED
    assert trajectory.turns[0].action == "invalid"
    assert "not JSON" in trajectory.turns[0].error
    assert trajectory.answer is None


def test_parallel_calls_come_back_by_name() -> None:
    replies = [call("calculate", a=1, b=1) + call("nothing"), "2"]

    (trajectory,) = roll_out(from_verifiers(tool_env()), replies, count=1)

    assert trajectory.turns[0].observation == "\ncalculate: 2\nnothing: 'nothing'\n"
    assert trajectory.turns[0].action == "2 calls"


@pytest.mark.parametrize(
    "limits",
    [
        Limits(turns=2, turn_tokens=400),
        Limits(turns=9, turn_tokens=400, trajectory_tokens=len(ADD_ONES) + 5),
    ],
)
def test_an_episode_that_our_limits_end_is_scored_as_truncated(limits: Limits) -> None:
    kept: list[Any] = []

    def looks(state: Any, completion: Any) -> float:
        kept.append((state["is_truncated"], len(completion)))
        return 0.5

    own = from_verifiers(tool_env(rubric=rubric(looks)))
    (trajectory,) = roll_out(own, [ADD_ONES] * 3, count=1, limits=limits)

    assert trajectory.stop in (StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT)
    assert trajectory.reward == 0.5
    assert trajectory.answer is None
    assert kept[0][0]


def test_the_environments_own_limit_of_turns_holds() -> None:
    own = from_verifiers(tool_env(max_turns=2))

    (trajectory,) = roll_out(own, [ADD_ONES] * 2, count=1)

    assert trajectory.stop is StopReason.ANSWERED
    assert len(trajectory.turns) == 2
    assert trajectory.parts["num_turns"] == 2.0


def test_a_single_turn_environment_is_scored_by_its_parser() -> None:
    parser = vf.XMLParser(["reasoning", "answer"], answer_field="answer")
    single = vf.SingleTurnEnv(
        dataset=Dataset.from_list(SUMS),
        system_prompt=parser.get_format_str(),
        parser=parser,
        rubric=vf.Rubric(funcs=[exact, parser.get_format_reward_func()], parser=parser),
    )
    own = from_verifiers(single)
    task = own.tasks("train")[0]

    def answers(row: int, turn: int, context: str) -> str:
        said = task.answers[0] if row == 0 else "nothing"
        return f"<reasoning>\nEasy.\n</reasoning>\n<answer>\n{said}\n</answer>"

    right, wrong = roll_out(own, answers)

    assert own.tools == ()
    assert "<answer>" in own.initial_instruction
    assert right.reward - wrong.reward == 1.0
    assert right.parts["exact"] == 1.0


class Guessing:
    """The user says higher or lower until the number is guessed; a state of its own.

    `guessing` adds verifiers' MultiTurnEnv, and makes `guessed` a condition to stop.
    """

    async def setup_state(self, state: Any) -> Any:
        state["guesses"] = []
        return state

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        state["guesses"].append(int(messages[-1].content))
        said = "Higher." if state["guesses"][-1] < int(state["answer"]) else "Lower."
        return [{"role": "user", "content": said}]

    async def guessed(self, state: Any) -> bool:
        turns = state["trajectory"]
        return bool(turns) and turns[-1]["completion"][-1].content == state["answer"]


async def few(state: Any) -> float:
    return 1.0 / (1 + len(state["guesses"]))


def guessing(cls: type[Any] = Guessing, **options: Any) -> Any:
    stops = {"guessed": vf.stop(cls.guessed)}
    return type(cls.__name__, (cls, vf.MultiTurnEnv), stops)(
        **{
            "dataset": Dataset.from_list(SUMS),
            "system_prompt": "Guess.",
            "rubric": rubric(few),
            **options,
        }
    )


def test_a_multi_turn_environment_answers_as_the_user_and_stops_by_its_own_rule() -> None:
    own = from_verifiers(guessing())
    numbers = [int(task.answers[0]) for task in own.tasks("train")[:2]]

    def guess(row: int, turn: int, context: str) -> str:
        return str(numbers[row] + (1 if turn == 0 else 0))

    first, second = roll_out(own, guess)

    assert first.turns[0].observation == "\nLower.\n"
    assert first.reward == second.reward == 0.5
    assert first.stop is StopReason.ANSWERED
    assert first.answer == str(numbers[0])


def test_an_environment_that_breaks_ends_its_episode_alone() -> None:
    own = from_verifiers(guessing())

    first, second = roll_out(
        own,
        lambda row, turn, context: "no number" if row == 0 else own.tasks("train")[1].answers[0],
    )

    assert first.stop is StopReason.ENVIRONMENT_ERROR
    assert first.turns[0].error.startswith("ValueError: invalid literal")
    assert first.reward == 0.0
    assert second.reward == 1.0


def test_an_error_of_verifiers_own_is_an_environment_error() -> None:
    class Down(Guessing):
        async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
            raise vf.InfraError("the sandbox is down")

    (trajectory,) = roll_out(from_verifiers(guessing(Down)), ["-1"], count=1)

    assert trajectory.stop is StopReason.ENVIRONMENT_ERROR
    assert "InfraError" in trajectory.turns[0].error


def test_rows_can_be_used_again_after_a_rollout_was_broken_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stop(Exception):
        pass

    def stops(row: int, turn: int, context: str) -> str:
        if turn:
            raise Stop
        return "-1"

    cleaned: list[list[int]] = []

    class Cleaning(Guessing):
        @vf.cleanup
        async def clean(self, state: Any) -> None:
            cleaned.append(state["guesses"])

    own = from_verifiers(guessing(Cleaning))
    with pytest.raises(Stop):
        roll_out(own, stops)
    assert cleaned == []

    assert [t.reward for t in roll_out(own, ["-1", own.tasks("train")[0].answers[0]], 1)] == [0.5]
    assert cleaned == [[-1], [-1]]  # that of the rollout that was broken off, and its own
    gc.collect()
    assert "destroyed" not in caplog.text  # the rollout was ended, not forgotten


class Rewrites(Guessing):
    async def get_prompt_messages(self, state: Any) -> Any:
        messages = await super().get_prompt_messages(state)
        return messages if len(messages) < 4 else messages[-2:]


class Prefixes(Guessing):
    async def setup_state(self, state: Any) -> Any:
        state["prompt"] = [*state["prompt"], *state["prompt"]]
        return await super().setup_state(state)


class Silent(Guessing):
    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        return []


class Shows(Guessing):
    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
        return [{"role": "user", "content": [{"type": "text", "text": "See"}, image]}]


class MoreTools(Guessing):
    async def setup_state(self, state: Any) -> Any:
        state["tool_defs"] = [CALCULATE]
        return await super().setup_state(state)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Rewrites, "rewrites the conversation"),
        (Prefixes, "changes a row's prompt when a rollout begins"),
        (Silent, "answers a turn with nothing"),
        (Shows, "more than text"),
        (MoreTools, r"offers the tools calculate, the environment \(none\)"),
    ],
)
def test_rollouts_that_no_policy_can_be_trained_on_are_refused(kind: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        roll_out(from_verifiers(guessing(kind)), ["-1", "-2"], count=1)

    assert "\n" not in str(raised.value)


class OwnRollout(Guessing):
    async def rollout(self, *args: Any, **kwargs: Any) -> Any: ...


def in_groups(completions: list[Any]) -> list[float]:
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: object(), "is object; expected a MultiTurnEnv"),
        (lambda: vf.EnvGroup(envs=[guessing()], env_names=["a"]), "is EnvGroup; expected"),
        (lambda: guessing(OwnRollout), r"rollout\(\) of its own"),
        (lambda: guessing(rubric=rubric(in_groups)), "scores groups"),
        (lambda: guessing(score_rollouts=False), "does not score"),
        (lambda: guessing(dataset=Dataset.from_list(SUMS[:9])), "has 9; expected at least 10"),
        (
            lambda: guessing(eval_dataset=Dataset.from_list(SUMS[:1])),
            "has 1; expected at least 2 questions for evaluation",
        ),
        (
            lambda: guessing(
                dataset=Dataset.from_list(
                    [{"prompt": [{"role": "assistant", "content": "Yes?"}], "answer": "1"}] * 20
                )
            ),
            "ends with a message of the assistant",
        ),
        (
            lambda: tool_env(
                dataset=Dataset.from_list(
                    [{**row, "info": json.dumps({"tool_defs": []})} for row in SUMS]
                )
            ),
            "has its own tools",
        ),
    ],
)
def test_environments_that_cannot_be_trained_in_are_refused(
    make: Callable[[], Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        from_verifiers(make())

    assert "\n" not in str(raised.value)


def test_evaluation_data_is_what_is_evaluated_on() -> None:
    evaluation = Dataset.from_list([{"question": f"{i}?", "answer": str(i)} for i in range(6)])
    own = from_verifiers(tool_env(eval_dataset=evaluation), validation=10, test=20)

    assert len(own.tasks("train")) == 20
    assert [t.question for t in own.tasks("validation")] == ["0?", "1?"]
    assert [t.question for t in own.tasks("test")] == ["2?", "3?", "4?", "5?"]


def test_what_is_held_out_does_not_hang_on_the_order_of_the_data() -> None:
    def held_out(rows: list[dict[str, str]]) -> set[str]:
        own = from_verifiers(tool_env(dataset=Dataset.from_list(rows)), validation=2, test=3)
        return {task.question for task in own.tasks("test")}

    assert held_out(SUMS) == held_out(SUMS[::-1])


def test_rows_with_the_same_prompt_are_in_one_split() -> None:
    rows = [(f"r{i}", {"prompt": f"q{i % 20}"}) for i in range(160)]
    splits = _splits(rows, None, 10, 25)
    prompts = [{row["prompt"] for _, row in split} for split in splits.values()]
    assert sum(map(len, prompts)) == 20
    assert sum(map(len, splits.values())) == 160
    few = _splits(rows, None, 1, 1)  # the first prompt of eight rows fills both
    assert [len(few[name]) for name in ("train", "validation", "test")] == [144, 8, 8]
    alike = _splits([(f"r{i}", {"prompt": "q"}) for i in range(40)], None, 4, 4)
    assert [len(alike[name]) for name in ("train", "validation", "test")] == [32, 4, 4]


def test_few_shot_examples_stay_before_the_question() -> None:
    few_shot = [
        {"role": "user", "content": "What is 1 + 1?"},
        {"role": "assistant", "content": "2"},
    ]
    own = from_verifiers(tool_env(few_shot=few_shot), "Sums.")
    task = own.tasks("train")[0]

    assert task.context == (("user", "What is 1 + 1?"), ("assistant", "2"))
    assert [m["role"] for m in own.messages(task, Prompt(own.initial_instruction))] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert own.initial_instruction == "Sums."


def test_system_prompts_of_rows_are_the_instruction_where_all_have_the_same() -> None:
    def with_systems(systems: list[str]) -> Task:
        rows = [
            {
                "prompt": [
                    {"role": "system", "content": systems[i % len(systems)]},
                    {"role": "user", "content": f"{i}?"},
                ],
                "answer": str(i),
            }
            for i in range(20)
        ]
        made = tool_env(dataset=Dataset.from_list(rows), system_prompt=None)
        own = from_verifiers(made)
        said.append(own.initial_instruction)
        return own.tasks("train")[0]

    said: list[str] = []

    assert with_systems(["Be brief."]).context == ()
    assert with_systems(["Be brief.", "Be long."]).context[0][0] == "system"
    assert said == ["Be brief.", ""]


LOADER = """
import verifiers as vf
from datasets import Dataset

def load_environment(count=20):
    rows = [{"question": f"{i}?", "answer": str(i)} for i in range(count)]

    def right(completion, answer):
        return float(completion[-1].content == answer)

    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows), system_prompt="Echo.", rubric=vf.Rubric(funcs=[right])
    )
"""


def test_a_run_file_names_an_installed_environment_or_a_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vf_echo_test.py").write_text(LOADER)
    monkeypatch.syspath_prepend(tmp_path)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    installed = verifiers_environment(
        VerifiersOptions(environment="vf-echo-test", args={"count": 40}, validation=1, test=1)
    )
    loaded = verifiers_environment(
        VerifiersOptions(environment="vf_echo_test:load_environment", initial_instruction="Say it.")
    )

    assert len(installed.tasks("train")) == 38
    assert installed.initial_instruction == "Echo."
    assert loaded.initial_instruction == "Say it."
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize("environment", ["vf-none-such", "json:loads"])
def test_an_environment_that_cannot_be_loaded_names_the_field(environment: str) -> None:
    with pytest.raises(ConfigError, match=r"environment\.environment: .* cannot be loaded"):
        verifiers_environment(VerifiersOptions(environment=environment))


def test_without_the_package_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("cotune.environments.verifiers.version", missing)

    with pytest.raises(ConfigError, match=r"pip install 'cotune\[verifiers\]'"):
        verifiers_environment(VerifiersOptions(environment="gsm8k"))
