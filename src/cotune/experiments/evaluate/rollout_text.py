"""Print rollouts, coloured by who wrote their tokens."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from cotune.protocols import Codec
from cotune.run.events import limit_name, truncation_metrics, truncation_notice
from cotune.run.scores import score_trajectories
from cotune.types import StopReason, Trajectory
from cotune.utils.text import one_line, printable

PROMPT = "dim"
INSTRUCTION = "bold magenta"
OWN = "green"
OBSERVED = "blue"
"""Styles of the parts of a rollout."""


def show_rollouts(trajectories: Sequence[Trajectory], codec: Codec, console: Console) -> None:
    """Print rollouts with their outcomes, and what they have in common."""
    for number, trajectory in enumerate(trajectories, 1):
        console.print(Rule(Text(f"{number}: {trajectory.task.id}"), align="left"))
        console.print(rollout_text(trajectory, codec), soft_wrap=True)
        for line in outcome_lines(trajectory):
            console.print(line, markup=False, highlight=False)
    _show_summary(trajectories, console)


def rollout_text(trajectory: Trajectory, codec: Codec) -> Text:
    """Return a rollout's whole text, control tokens included: its instruction marked, then labelled by the mask."""
    text = Text(printable(codec.decode(trajectory.sampled_prompt_ids)), style=PROMPT)
    instruction = printable(trajectory.assignment.sampled.instruction).strip()
    if instruction:
        text.highlight_words([instruction], style=INSTRUCTION)
    tokens = zip(trajectory.completion_ids, trajectory.mask, strict=True)
    for by_policy, run in groupby(tokens, key=lambda token: token[1]):
        text.append("\n[policy] " if by_policy else "\n[masked] ")
        written = codec.decode([token for token, _ in run])
        text.append(printable(written), style=OWN if by_policy else OBSERVED)
    return text


def outcome_lines(trajectory: Trajectory) -> list[str]:
    """Return a rollout's outcome: reward and its parts, why it ended, any feedback and errors."""
    parts = ", ".join(f"{name} {value:.3g}" for name, value in trajectory.parts.items())
    lines = [f"reward {trajectory.reward:.3g}" + (f" ({parts})" if parts else "")]
    limit = trajectory.truncated_by
    ended = f"truncated by {limit_name(limit)}" if limit else f"stopped: {trajectory.stop}"
    lines.append(
        f"{ended} after {len(trajectory.turns)} turn{'s' * (len(trajectory.turns) != 1)}, "
        f"{trajectory.generated_tokens} of {len(trajectory.completion_ids)} completion tokens are the policy's"
    )
    answer = "none" if trajectory.answer is None else one_line(trajectory.answer)[:200]
    if limit and trajectory.stop is not StopReason.TURN_LIMIT:
        answer = "none (cut off)"
    expected = " or ".join(map(one_line, trajectory.task.answers))[:200]
    lines.append(f"answer: {answer}" + (f"; expected {expected}" if expected else ""))
    if trajectory.feedback:
        lines.append(f"feedback: {one_line(trajectory.feedback)[:500]}")
    for number, turn in enumerate(trajectory.turns, 1):
        if turn.error:
            lines.append(f"turn {number}: {one_line(turn.error)}")
    return lines


def _show_summary(trajectories: Sequence[Trajectory], console: Console) -> None:
    console.print(Rule())
    count = len(trajectories)
    mean = score_trajectories(trajectories).em
    with_errors = sum(any(turn.error for turn in t.turns) for t in trajectories)
    answered = sum(t.answer is not None and not t.truncated_by for t in trajectories)
    truncated = sum(bool(t.truncated_by) for t in trajectories)
    console.print(
        f"{count} rollout{'s' * (count != 1)}: mean reward {mean:.3g}, {answered} with an answer, "
        f"{truncated} truncated, {with_errors} with an error in a turn",
        highlight=False,
    )
    if notice := truncation_notice(truncation_metrics(trajectories)):
        console.print(notice, style="yellow", highlight=False)
    rewards = {t.reward for t in trajectories}
    if count > 1 and len(rewards) == 1:
        console.print(
            f"All have the reward {rewards.pop():.3g}: groups of equal rewards give no gradient; "
            "try more rollouts, or look at the reward function.",
            highlight=False,
        )
