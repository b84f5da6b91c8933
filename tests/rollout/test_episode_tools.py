"""Episodes whose policy calls tools through a chat template."""

from collections.abc import Sequence
from typing import Any

import pytest

from cotune.environments.tools import ToolEnvironment
from cotune.rollout.episode import Episode
from cotune.types import Limits, Prompt, Response, StopReason, Task, Trajectory
from tests import scripted
from tests.helpers import add, tool_call, under
from tests.scripted import CharacterCodec, Reply, shown

TASK = Task("q0", "3 + 4?", ("7",))
CODEC = CharacterCodec()
EOS = CODEC.eos_id


def repeat(text: str, times: int) -> str:
    """Repeats.

    Args:
        text: what.
        times: how often.
    """
    return text * times


ENVIRONMENT = ToolEnvironment([add, repeat], {"train": [TASK]}, "Add.")


def encode_calls(*calls: tuple[str, dict[str, Any]]) -> list[int]:
    text = "".join(tool_call(name, **arguments) for name, arguments in calls)
    return [*CODEC.encode(text), EOS]


ADD = encode_calls(("add", {"a": 3, "b": 4}))
ANSWER = [*CODEC.encode("It is 7."), EOS]


def roll_out(
    replies: Sequence[Reply],
    limits: Limits | None = None,
    hint: str = "",
    context_tokens: int | None = None,
) -> Trajectory:
    limits = limits or Limits(turns=4, turn_tokens=400)
    assignments = [under(TASK, "Add.", hint)]
    return scripted.roll_out(
        ENVIRONMENT, replies, assignments, limits, context_tokens=context_tokens
    )[0]


def test_a_result_comes_back_as_the_template_renders_it_and_is_not_trained_on() -> None:
    trajectory = roll_out([ADD, ANSWER])
    assert trajectory.stop is StopReason.ANSWERED
    assert trajectory.answer == "It is 7."
    assert shown(trajectory, 1) == CODEC.decode(ADD + ANSWER)
    assert shown(trajectory, 0) == "[tool: 7]"
    assert [turn.action for turn in trajectory.turns] == ["add", "answer"]
    # A turn that was not closed is closed before the result.
    trajectory = roll_out([ADD[:-1], ANSWER])
    assert shown(trajectory, 0) == f"{chr(EOS)}[tool: 7]"
    assert shown(trajectory, 1) == CODEC.decode(ADD[:-1] + ANSWER)
    # A reply that did not fit is none of its messages.
    (turn,) = roll_out([ADD, ANSWER], Limits(turns=4, trajectory_tokens=len(ADD) + 8)).turns
    assert [message["role"] for message in turn.messages] == ["assistant"]
    assert turn.observation == ""


def test_the_prompts_with_and_without_a_hint_both_show_the_tools() -> None:
    trajectory = roll_out([ANSWER], hint="Count on your fingers.")

    assert CODEC.decode(trajectory.sampled_prompt_ids) == (
        "[add][repeat]Count on your fingers.\n\nAdd.\n\n3 + 4?"
    )
    assert CODEC.decode(trajectory.prompt_ids) == "[add][repeat]Add.\n\n3 + 4?"


def test_results_share_the_limit_of_an_observation() -> None:
    turn = encode_calls(
        ("repeat", {"text": "a", "times": 50}),
        ("repeat", {"text": "b", "times": 4}),
        ("repeat", {"text": "c", "times": 50}),
    )
    trajectory = roll_out([turn, ANSWER], Limits(turn_tokens=400, observation_tokens=24))

    assert shown(trajectory, 0) == f"[tool: {'a' * 10}][tool: bbbb][tool: {'c' * 10}]"
    assert (
        trajectory.turns[0].observation
        == f"\nrepeat: {'a' * 10}\nrepeat: bbbb\nrepeat: {'c' * 10}\n"
    )


@pytest.mark.parametrize(
    ("room", "stop"),
    [("trajectory", StopReason.TOKEN_LIMIT), ("context", StopReason.CONTEXT_LIMIT)],
)
def test_a_result_that_does_not_fit_ends_the_episode(room: str, stop: StopReason) -> None:
    result = "[tool: 7]"
    fitting = len(ADD) + len(result) + 2  # a token to write, and a closing EOS
    prompt = len(CODEC.encode("[add][repeat]Add.\n\n3 + 4?"))
    limits = {"turn_tokens": 400}

    def within(tokens: int) -> Trajectory:
        if room == "trajectory":
            return roll_out([ADD, ANSWER], Limits(**limits, trajectory_tokens=tokens))
        return roll_out([ADD, ANSWER], Limits(**limits), context_tokens=prompt + tokens)

    enough, short = within(fitting), within(fitting - 1)

    assert shown(enough, 0).startswith(result)
    assert len(enough.turns) == 2
    assert short.stop is stop
    assert len(short.turns) == 1
    assert short.turns[0].observation == ""
    assert list(short.completion_ids) == ADD


def test_an_environment_that_broke_ends_the_episode_without_its_message() -> None:
    limits = Limits(turn_tokens=400)
    assignment = under(TASK, "Add.")
    episode = Episode(0, assignment, [1], [1], limits, CODEC, tools=ENVIRONMENT.tools)
    episode.advance(ADD, [-1.0] * len(ADD))

    episode.observe(
        Response(failed=True, messages=({"role": "tool", "name": "add", "content": "x"},))
    )

    assert episode.stop_reason is StopReason.ENVIRONMENT_ERROR
    assert list(episode.trajectory().completion_ids) == ADD


def test_actions_carry_the_prompt_that_is_trained_on() -> None:
    for trained_hint in ("", "hint"):
        assignment = under(TASK, "Add.", "hint", trained_hint)
        episode = Episode(3, assignment, [1], [1], Limits(), CODEC, tools=ENVIRONMENT.tools)
        action = episode.advance(ADD, [-1.0] * len(ADD))
        assert (action.prompt, action.row) == (Prompt("Add."), 3)
