"""A saved policy outside of a run."""

from pathlib import Path

import pytest

from cotune.errors import ConfigError, LLMError
from cotune.policy.local_policy import load, local_coordinator
from cotune.policy.policy_files import policy_path
from cotune.rollout.coordinator import RolloutSettings
from cotune.types import Limits, StopReason
from cotune.worlds.geo import GeoEnvironment, GeoOptions

LIMITS = Limits(
    turns=4, turn_tokens=64, observation_tokens=200, trajectory_tokens=640, prompt_tokens=384
)


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy.path: cannot load .*nowhere.*; name a folder"):
        load(tmp_path / "nowhere")


def test_evaluation_is_greedy_repeatable_and_within_the_policys_context() -> None:
    environment = GeoEnvironment(GeoOptions(train=1, validation=1, test=6))
    folder, told = policy_path("bundled:geo"), environment.initial_instruction
    found = [
        local_coordinator(folder, environment, told, RolloutSettings(LIMITS, seed=seed))
        for seed in (0, 1)
    ]
    assert [c.settings.context_tokens for c in found] == [1024, 1024]
    first, second = (c.evaluate(environment.tasks("test")) for c in found)
    assert [t.completion_ids for t in first] == [t.completion_ids for t in second]
    assert {t.assignment.sampled.instruction for t in first} == {told}
    assert {t.stop for t in first} <= {StopReason.ANSWERED, StopReason.TURN_LIMIT}


def test_there_is_no_llm_to_ask() -> None:
    environment = GeoEnvironment(GeoOptions(train=1, validation=1, test=1))
    coordinator = local_coordinator(
        policy_path("bundled:geo"), environment, environment.initial_instruction, RolloutSettings()
    )
    with pytest.raises(LLMError, match="no LLM"):
        coordinator.llm.complete("propose")
