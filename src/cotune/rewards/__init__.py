"""Rewards: functions of a final answer, or None if there is none, and the accepted answers."""

from collections.abc import Callable, Mapping, Sequence

from cotune.rewards.qa import exact_match, f1_hotpot, f1_squad

Reward = Callable[[str | None, Sequence[str]], float]

REWARDS: Mapping[str, Reward] = {
    "exact_match": exact_match,
    "f1_squad": f1_squad,
    "f1_hotpot": f1_hotpot,
}
"""Rewards by the name that a run file gives them."""

__all__ = ["REWARDS", "Reward", "exact_match", "f1_hotpot", "f1_squad"]
