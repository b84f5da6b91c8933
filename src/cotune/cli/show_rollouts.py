"""Print prompts and rollouts, coloured by who wrote their tokens."""

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile

from rich.text import Text

from cotune.protocols import Codec
from cotune.run.truncation import limit_name
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
