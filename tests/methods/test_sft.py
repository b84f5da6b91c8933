"""What supervised fine-tuning is trained on."""

from dataclasses import replace
from typing import Any

import pytest

from cotune.errors import EngineError
from cotune.methods.sft import (
    IGNORED,
    SFTOptions,
    accepted,
    check_accepted,
    optimizer_steps,
    reference_row,
    rollout_row,
)
from cotune.testing import CharacterCodec
from cotune.types import Assignment, Prompt, Trajectory, Turn
from tests.helpers import make_tasks, make_trajectory

TASKS = make_tasks(3)


def rollout(task: int, reward: float, text: str) -> Trajectory:
    prompt = Prompt("Answer.")
    return make_trajectory(Assignment(TASKS[task], prompt, prompt, "i0", 0), reward, text)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"epochs": 0}, "strategy.epochs is 0"),
        ({"samples": 0}, "strategy.samples is 0"),
        ({"keep_per_question": 0}, "strategy.keep_per_question is 0"),
        ({"keep_from": float("nan")}, "strategy.keep_from is nan"),
    ],
)
def test_options_out_of_range(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SFTOptions(**given)


def test_rows_of_a_question_at_most() -> None:
    assert SFTOptions(data="answers", samples=8).most_per_question == 1
    assert SFTOptions(data="rollouts", samples=8).most_per_question == 8
    assert SFTOptions(data="rollouts", samples=8, keep_per_question=3).most_per_question == 3


def test_rollouts_that_are_kept() -> None:
    sampled = [
        rollout(0, 0.9, "low"),
        rollout(0, 1.0, "a"),
        rollout(1, 1.0, "a"),
        rollout(0, 1.0, "a"),
        rollout(0, 1.5, "b"),
        rollout(0, 1.0, "c"),
        replace(rollout(2, 1.0, "nothing"), mask=(0, 0)),
    ]
    kept = accepted(sampled, SFTOptions(data="rollouts", keep_per_question=2))
    assert kept == [sampled[1], sampled[2], sampled[4]]
    assert accepted(sampled, SFTOptions(data="rollouts")) == [*kept, sampled[5]]
    assert sampled[0] in accepted(sampled, SFTOptions(data="rollouts", keep_from=0.9))


def test_other_turns_are_another_rollout() -> None:
    """Two rollouts whose joined texts are equal may still be different ones."""
    one = replace(rollout(0, 1.0, ""), turns=(Turn("ab"), Turn("c")))
    other = replace(rollout(0, 1.0, ""), turns=(Turn("a"), Turn("bc")))
    assert len(accepted([one, other], SFTOptions(data="rollouts"))) == 2


def test_only_own_tokens_are_targets() -> None:
    trajectory = replace(
        rollout(0, 1.0, "x"),
        sampled_prompt_ids=(90, 91),
        prompt_ids=(10, 11),
        completion_ids=(1, 2, 3, 4, 5, 6),
        mask=(1, 1, 0, 1, 0, 0),
    )
    row = rollout_row(trajectory)
    assert row.input_ids == (10, 11, 1, 2, 3, 4)
    assert row.labels == (IGNORED, IGNORED, 1, 2, IGNORED, 4)
    assert row.targets == 3
    assert row.task == "q0"


def test_an_eos_ends_a_reference_unless_a_stop_string_does() -> None:
    codec = CharacterCodec()
    ids = codec.encode("yes")
    plain = reference_row("q0", [7, 8], "yes", codec, ())
    assert plain.input_ids == (7, 8, *ids, codec.eos_id)
    assert plain.labels == (IGNORED, IGNORED, *ids, codec.eos_id)
    assert reference_row("q0", [7, 8], "yes", codec, ("no",)) == plain
    stopped = reference_row("q0", [7, 8], "yes", codec, ("no", "es"))
    assert stopped.input_ids == (7, 8, *ids)
    assert stopped.targets == 3


def test_steps_of_a_fit() -> None:
    # 17 rows make 5 micro-batches of 4, which make 3 steps of 2, twice.
    assert optimizer_steps(17, 2, 4, 2) == 6
    assert optimizer_steps(16, 2, 4, 2) == 4


def test_nothing_kept_is_an_error_that_says_what_to_change() -> None:
    options = SFTOptions(data="rollouts", keep_from=0.5)
    check_accepted(1, 40, 1.0, options)
    with pytest.raises(
        EngineError, match=r"none of the 40 .* 0\.5 .*is 0\.25.*strategy\.keep_from"
    ):
        check_accepted(0, 40, 0.25, options)
