"""Rollouts that a limit of tokens cut off, for `mask_truncated_completions`."""

from collections.abc import Sequence

from cotune.types import StopReason, Trajectory


def was_cut(trajectory: Trajectory, stop: Sequence[str]) -> bool:
    """Return whether a limit of tokens ended the rollout, or the policy's part of its last turn.

    TRL tells it by a missing EOS, which no rollout of ours lacks. A turn ends by an EOS, by a stop
    string, or by a limit.

    Args:
        trajectory: one with its closing EOS.
        stop: strings after which a turn ends.
    """
    if trajectory.stop in (StopReason.TOKEN_LIMIT, StopReason.CONTEXT_LIMIT):
        return True
    *before, closing = trajectory.mask
    if closing or not before or not before[-1]:
        return False  # the policy wrote the EOS, or an observation came last
    return not trajectory.turns[-1].text.endswith(tuple(stop))
