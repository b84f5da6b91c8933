"""Print prompts and rollouts, coloured by who wrote their tokens."""

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from cotune.protocols import Codec
from cotune.run.scores import score_trajectories
from cotune.run.truncation import (
    limit_name,
    truncation_fix,
    truncation_metrics,
    truncation_summary,
)
from cotune.types import StopReason, Trajectory
from cotune.utils.text import one_line, printable

PROMPT, INSTRUCTION, OWN, OBSERVED = "dim", "bold magenta", "green", "blue"

_WORTH_LEAVING_OUT = 4  # lines

LEGEND = Text.assemble(
    "colours: ",
    ("prompt", PROMPT),
    ", ",
    ("instruction", INSTRUCTION),
    ", ",
    ("written by the policy, trained on", OWN),
    ", ",
    ("observed, masked", OBSERVED),
)


def show_rollouts(trajectories: Sequence[Trajectory], codec: Codec, console: Console) -> None:
    """Print rollouts with their outcomes, and what they have in common."""
    if console.color_system is not None:
        console.print(LEGEND)
    previous_prompt = ""
    for number, trajectory in enumerate(trajectories, 1):
        previous_prompt = _show(number, trajectory, codec, console, previous_prompt)
    _show_summary(trajectories, console)


def _show(
    number: int, trajectory: Trajectory, codec: Codec, console: Console, previous_prompt: str
) -> str:
    """Print a rollout without the lines that its prompt shares with the one before; return its prompt."""
    console.print(Rule(Text(f"{number}: {trajectory.task.id}"), align="left"))
    instruction = trajectory.assignment.sampled.instruction
    prompt = codec.decode(trajectory.sampled_prompt_ids)
    if shared := shared_lines(prompt, previous_prompt):
        console.print(Text(f"[{shared} lines as above]", style=PROMPT))
    new_lines = "".join(prompt.splitlines(keepends=True)[shared:])
    completion = completion_text(trajectory, codec, labelled=console.color_system is None)
    console.print(Text.assemble(prompt_text(new_lines, instruction), completion), soft_wrap=True)
    for line in outcome_lines(trajectory):
        console.print(line, markup=False, highlight=False)
    return prompt


def _show_summary(trajectories: Sequence[Trajectory], console: Console) -> None:
    console.print(Rule())
    count = len(trajectories)
    mean = score_trajectories(trajectories).em
    with_errors = sum(any(turn.error for turn in t.turns) for t in trajectories)
    answered = sum(t.answer is not None and not t.truncated_by for t in trajectories)
    console.print(
        f"{count} rollout{'s' * (count != 1)}: mean reward {mean:.3g}, {answered} with an answer, "
        f"{with_errors} with an error in a turn",
        highlight=False,
    )
    if truncated := truncation_summary(trajectories):
        console.print(truncated, style="yellow", highlight=False)
    rewards = {t.reward for t in trajectories}
    if count > 1 and len(rewards) == 1:
        fix = truncation_fix(truncation_metrics(trajectories))
        advice = f"{fix} first" if fix else "try more rollouts, or look at the reward function"
        console.print(
            f"All have the reward {rewards.pop():.3g}: groups of equal rewards give no gradient; "
            f"{advice}.",
            highlight=False,
        )


def prompt_text(prompt: str, instruction: str) -> Text:
    """Return a rendered prompt with every occurrence of its instruction marked."""
    text = Text(printable(prompt), style=PROMPT)
    shown = printable(instruction).strip()
    if shown:
        text.highlight_words([shown], style=INSTRUCTION)
    return text


def shared_lines(prompt: str, shown: str) -> int:
    """Return how many lines at the start of a prompt need not be repeated after another one.

    A system prompt with the schemas of tools can be long. Up to three lines are repeated anyway.
    """
    pairs = zip(prompt.splitlines()[:-1], shown.splitlines(), strict=False)
    count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return count if count >= _WORTH_LEAVING_OUT else 0


def completion_text(trajectory: Trajectory, codec: Codec, labelled: bool = False) -> Text:
    """Return the text after the prompt, control tokens included, coloured by the mask.

    Args:
        labelled: whether to label each run of tokens with its author, for output without colours.
    """
    text = Text()
    for own, ids in segments(trajectory.completion_ids, trajectory.mask):
        if labelled:
            text.append("\n[policy] " if own else "\n[masked] ")
        text.append(printable(codec.decode(ids)), style=OWN if own else OBSERVED)
    return text


def segments(ids: Sequence[int], mask: Sequence[int]) -> Iterator[tuple[bool, list[int]]]:
    """Yield runs of tokens with equal mask: (whether the policy wrote them, token ids)."""
    for own, run in groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1]):
        yield bool(own), [token for token, _ in run]


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
    given = "none" if trajectory.answer is None else one_line(trajectory.answer)[:200]
    if limit and trajectory.stop is not StopReason.TURN_LIMIT:
        given = "none (cut off)"
    expected = " or ".join(map(one_line, trajectory.task.answers))[:200]
    lines.append(f"answer: {given}" + (f"; expected {expected}" if expected else ""))
    if trajectory.feedback:
        lines.append(f"feedback: {one_line(trajectory.feedback)[:500]}")
    lines += [
        f"turn {number}: {one_line(turn.error)}"
        for number, turn in enumerate(trajectory.turns, 1)
        if turn.error
    ]
    return lines
