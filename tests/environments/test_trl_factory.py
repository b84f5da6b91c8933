import asyncio
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from cotune.config.run_checks import check_columns
from cotune.environments.trl_factory import (
    INITIAL_INSTRUCTION,
    TrlEnvironment,
    TrlOptions,
    from_trl,
    trl_environment,
)
from cotune.errors import ConfigError
from cotune.rewards.functions import RewardFunctions, WeightedReward
from cotune.types import Limits, Prompt, StopReason, Task, Trajectory
from tests import scripted
from tests.helpers import raises_line, tool_call, under

CODEC = scripted.CharacterCodec()
TASKS = [
    Task(f"q{i}", f"Guess {i}.", (), columns={"question": f"Guess {i}.", "secret": i})
    for i in range(3)
]


class Guessing:
    """An environment as TRL's documentation has them: the number is the row's `secret`."""

    instances = 0

    def __init__(self) -> None:
        type(self).instances += 1
        self.thread = threading.get_ident()
        self.guesses: list[int] = []
        self.secret = -1

    @property
    def fails(self) -> bool:
        raise RuntimeError("properties are not looked at")

    def reset(self, secret: int, **columns: Any) -> str:
        assert columns == {"question": f"Guess {secret}."}
        self.guesses, self.secret = [], secret
        return " It is below 10."

    def guess(self, number: int) -> str:
        """Guesses the number.

        Args:
            number: the guess.
        """
        assert self.thread == threading.get_ident()
        self.guesses.append(number)
        return "right" if number == self.secret else "wrong"

    async def hints(self) -> dict[str, bool]:
        """Asks for a hint."""
        await asyncio.sleep(0)
        return {"even": self.secret % 2 == 0}

    def get_reward(self) -> float:
        return float(self.secret in self.guesses)

    def _private(self) -> None: ...


class Unscored(Guessing):
    get_reward = None  # type: ignore[assignment]


def environment(factory: Callable[[], Any] = Guessing, **options: Any) -> TrlEnvironment:
    return from_trl(factory, {"train": TASKS}, "Guess.", **options)


def roll_out(
    env: TrlEnvironment, replies: Any, tasks: Sequence[Task] = TASKS, **settings: Any
) -> list[Trajectory]:
    assignments = [under(task, "Guess.") for task in tasks]
    return scripted.roll_out(env, replies, assignments, Limits(turn_tokens=1000), **settings)


def guess_reply(row: int, turn: int, context: str) -> str:
    return tool_call("guess", number=1) if turn == 0 else "Done."


def test_methods_are_tools_and_what_reset_returns_stands_after_the_users_message() -> None:
    guess, hints = (tool["function"] for tool in environment().tools)
    assert (guess["name"], hints["name"]) == ("guess", "hints")
    assert list(guess["parameters"]["properties"]) == ["number"]
    (message,) = environment().messages(TASKS[1], Prompt("Guess.", "Think."))
    assert message == {"role": "user", "content": "Think.\n\nGuess.\n\nGuess 1. It is below 10."}


def test_each_episode_has_an_instance_of_its_own_that_get_reward_scores() -> None:
    Guessing.instances = 0
    env = environment()
    trajectories = roll_out(env, guess_reply)
    assert [t.reward for t in trajectories] == [0.0, 1.0, 0.0]
    assert [t.turns[0].observation for t in trajectories] == ["\nwrong\n", "\nright\n", "\nwrong\n"]
    assert [t.answer for t in trajectories] == ["Done."] * 3
    # They are made once, and reset for later episodes.
    later = roll_out(env, guess_reply, first_row=512)
    assert Guessing.instances == 3
    assert [t.reward for t in later] == [0.0, 1.0, 0.0]
    assert [t.reward for t in roll_out(env, ["Nothing guessed."])] == [0.0] * 3
    # The calls of an episode are made in order.
    replies = ["".join(tool_call("guess", number=n) for n in range(9)), "Done."]
    (trajectory,) = roll_out(env, replies, TASKS[:1])
    assert env.reward_arguments([trajectory])["environments"][0].guesses == list(range(9))


def test_without_get_reward_reward_functions_score_and_see_the_instances() -> None:
    def count(environments: list[Guessing], secret: list[int], **_: Any) -> list[float]:
        return [len(e.guesses) + s / 10 for e, s in zip(environments, secret, strict=True)]

    env = environment(Unscored)
    rewards = RewardFunctions([count])
    check_columns(rewards, env, ["train"])
    with pytest.raises(ConfigError, match="needs the column 'environments'"):
        rewards.check_tasks(TASKS, "train")  # without such an environment

    trajectories = roll_out(env, guess_reply, rewards=rewards)

    assert env.needs_rewards
    assert [t.reward for t in trajectories] == [1.0, 1.1, 1.2]


def test_get_reward_counts_beside_reward_functions_and_may_be_async() -> None:
    def half(completions: list[Any], **_: Any) -> list[float]:
        return [0.5] * len(completions)

    half.__name__ = "Guessing"  # as the environment's own is called
    env, rewards = environment(), RewardFunctions([WeightedReward(function=half, weight=2.0)])
    (_, second, _) = roll_out(env, guess_reply, rewards=rewards)
    assert not env.needs_rewards
    assert second.reward == 2.0
    assert second.parts == {"Guessing": 0.5, "Guessing_2": 1.0}
    assert rewards.weights(env) == {"Guessing": 2.0, "Guessing_2": 1.0}

    # It may be async, and score nothing.
    class Judged(Guessing):
        async def get_reward(self) -> float | None:  # type: ignore[override]
            await asyncio.sleep(0)
            return 0.5 if self.guesses else None

    (plain,) = roll_out(environment(Judged), ["Done."], TASKS[:1])
    (judged,) = roll_out(environment(Judged), [tool_call("guess", number=0), "Done."], TASKS[:1])
    assert (plain.scored, plain.reward, plain.parts) == (False, 0.0, {})
    assert (judged.scored, judged.reward, judged.parts) == (True, 0.5, {"Judged": 0.5})


def test_a_get_reward_that_raises_is_named() -> None:
    class Judged(Guessing):
        def get_reward(self) -> float:
            raise KeyError("score")

    with pytest.raises(ConfigError, match=r"get_reward\(\) of Judged raised KeyError"):
        roll_out(environment(Judged), ["Done."])


SECOND_BROKE = [StopReason.ANSWERED, StopReason.ENVIRONMENT_ERROR, StopReason.ANSWERED]


OUTAGE = "reset() raised OSError: no answer"


@pytest.mark.parametrize(
    "error", ["guess: took too long", "reset() took longer than 0.05 s", OUTAGE]
)
def test_a_call_that_hangs_or_fails_ends_its_episode_alone(error: str) -> None:
    released = threading.Event()
    problems = ["once"] if error.startswith("reset") else []

    class Hanging(Guessing):
        def reset(self, secret: int, **columns: Any) -> str:
            if secret == 1 and problems:
                problems.clear()
                if error == OUTAGE:
                    raise OSError("no answer")
                released.wait()
            return super().reset(secret, **columns)

        def guess(self, number: int) -> str:
            """Guesses.

            Args:
                number: the guess.
            """
            if self.secret == 1:
                released.wait()
            return "wrong"

    env = environment(Hanging, seconds=0.05)
    try:
        trajectories = roll_out(env, guess_reply)
        assert [t.stop for t in trajectories] == SECOND_BROKE
        assert (trajectories[1].turns[0].error, trajectories[1].reward) == (error, 0.0)
        hung = env.reward_arguments(trajectories)["environments"][1]
        later = roll_out(env, ["Done."])
        assert error == OUTAGE or hung not in env.reward_arguments(later)["environments"]
    finally:
        released.set()


# ---- environments that draw their tasks, as TRL's documentation and examples show them


class Counter:
    """Draws its own task; there is no data set."""

    def reset(self, **kwargs: Any) -> str | None:
        assert kwargs == {"prompt": [{"role": "user", "content": ""}]}
        self.count, self.target = 0, random.randint(1, 10**9)
        return f"Count to {self.target}."

    def get_reward(self) -> float:
        return float(self.count == self.target)

    def add(self, step: int) -> int:
        """Adds to the counter.

        Args:
            step: how much.
        """
        self.count += step
        return self.count


def count_reply(row: int, turn: int, context: str) -> str:
    target = context.rpartition("Count to ")[2].partition(".")[0]
    return tool_call("add", step=int(target)) if turn == 0 else "Done."


def questions(trajectories: list[Trajectory]) -> list[str]:
    return [t.task.question for t in trajectories]


def test_without_data_reset_makes_the_tasks() -> None:
    env = trl_environment(TrlOptions(factory=f"{__file__}:Counter", validation=5, test=7), None)
    assert [len(env.tasks(split)) for split in ("train", "validation", "test")] == [1000, 5, 7]
    first, second, *_ = env.tasks("train")
    tasks = [first, first, second, second]

    rollouts = roll_out(env, count_reply, tasks, seed=1)

    assert [t.reward for t in rollouts] == [1.0] * 4
    goals = questions(rollouts)
    assert goals[0] == goals[1] != goals[2] == goals[3]  # a group starts from one state
    assert CODEC.decode(rollouts[0].prompt_ids).endswith(goals[0])
    (message,) = env.messages(rollouts[0].task, Prompt("Count."))
    assert message["content"] == f"Count.\n\n{goals[0]}"
    # The same in another process and after a resume; another state in another step.
    fresh_env = trl_environment(TrlOptions(factory=f"{__file__}:Counter"), None)
    assert questions(roll_out(fresh_env, count_reply, tasks[2:], first_row=2, seed=1)) == goals[2:]
    assert questions(roll_out(env, count_reply, [t.task for t in rollouts], seed=1)) == goals
    assert questions(roll_out(env, count_reply, tasks, seed=2))[0] != goals[0]


class Draws(Guessing):
    def reset(self, secret: int, **columns: Any) -> str:
        return f" {random.random()} {np.random.rand()} {torch.rand(1).item()}"

    def get_reward(self) -> float:
        return random.random()


def test_draws_of_the_users_code_leave_those_of_training() -> None:
    def seed() -> None:
        random.seed(5)
        np.random.seed(5)
        torch.manual_seed(5)

    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.rand(), torch.rand(1).item()

    seed()
    expected = draw()
    seed()
    first = questions(roll_out(environment(Draws), guess_reply))
    assert draw() == expected
    assert questions(roll_out(environment(Draws), guess_reply, TASKS[1:], first_row=1)) == first[1:]


class NoReset:
    pass


class Refuses(Guessing):
    def __init__(self) -> None:
        raise OSError("no server")


class NeedsMore(Guessing):
    def reset(self, secret: int, level: int, **columns: Any) -> str:  # type: ignore[override]
        return ""


class Pictured(Guessing):
    def reset(self, **columns: Any) -> Any:  # type: ignore[override]
        return [{"type": "image", "image": None}, {"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ({"guess": Guessing}, "is dict; expected one class or function"),
        (NoReset, r"NoReset has no reset\(\)"),
        (Refuses, "raised OSError: no server"),
        (NeedsMore, r"reset\(\) raised TypeError: .*'level' for task q0; fix it"),
        (Pictured, r"reset\(\) returned list; expected a text, .*, or None"),
    ],
)
def test_what_cannot_work_is_refused_in_a_line(factory: Any, message: str) -> None:
    with raises_line(match=message):
        environment(factory).messages(TASKS[0], Prompt("Guess."))


class Echo:
    def __init__(self, suffix: str = "") -> None:
        self.suffix = suffix

    def reset(self, **columns: Any) -> str:
        return self.suffix


def test_a_run_file_names_a_factory_and_its_arguments() -> None:
    options = TrlOptions(factory=f"{__file__}:Echo", args={"suffix": "!"})

    env = trl_environment(options, {"train": TASKS})

    assert env.messages(TASKS[0], Prompt(""))[0]["content"] == "Guess 0.!"
    assert env.initial_instruction == INITIAL_INSTRUCTION
    assert env.tools == ()
    assert isinstance(env.reward_arguments([]), Mapping)
    with pytest.raises(ConfigError, match="unexpected keyword argument 'prefix'"):
        trl_environment(TrlOptions(factory=f"{__file__}:Echo", args={"prefix": 1}), {})
