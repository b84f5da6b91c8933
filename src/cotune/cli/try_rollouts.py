"""`cotune try`: show a few rollouts of a run file's policy; also the prompt of `cotune plan`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.show_rollouts import (
    LEGEND,
    OBSERVED,
    OWN,
    PROMPT,
    completion_text,
    outcome_lines,
    prompt_text,
    shared_lines,
)
from cotune.cli.step_progress import step_progress
from cotune.config.run_file import RunConfig, load_config
from cotune.engines.preflight import Preflight
from cotune.errors import ConfigError
from cotune.experiments.evaluate.evaluating import SPLITS
from cotune.experiments.evaluate.run_policy import run_policy
from cotune.run.scores import score_trajectories
from cotune.run.truncation import truncation_fix, truncation_metrics, truncation_summary
from cotune.types import Assignment, Prompt, Trajectory
from cotune.utils.importing import uncollected

if TYPE_CHECKING:
    from cotune.policy.codec import HFCodec


def try_run(
    path: Path,
    console: Console,
    count: int = 4,
    split: str = "train",
    greedy: bool = False,
    assignments: Sequence[str] = (),
) -> list[Trajectory]:
    """Roll out a few questions with the run file's policy and print the results.

    Samples as training does: at its temperature, under the initial instruction, with its tools
    and rewards. Trains nothing, calls no LLM and writes nothing.

    Args:
        count: how many questions from the start of the split, one rollout each.
        split: "train", "validation" or "test".
        greedy: pick the most likely token each time, as evaluation does.
        assignments: fields to set, as with --set.

    Raises:
        ConfigError: `cotune train` would reject the run file.
    """
    if split not in SPLITS:
        raise ConfigError(f"--split is {split!r}; expected one of {', '.join(SPLITS)}")
    if count < 1:
        raise ConfigError(f"-n is {count}; expected 1 or more")
    config = load_config(path, assignments=assignments)
    quiet_libraries(config)
    with step_progress(console):
        checked = Preflight(config, new=False, loads=True)
        with uncollected():
            checked.require_run_file("policy files", "environment.retriever")
        if not checked.environment.tasks(split):
            raise ConfigError(f"--split {split} has no questions; expected a split with some")
        trajectories, codec = _rolled_out(checked, count, split, greedy)
    if console.color_system is not None:
        console.print(LEGEND)
    shown = ""
    for number, trajectory in enumerate(trajectories, 1):
        shown = _show(number, trajectory, codec, console, shown)
    _summary(trajectories, console)
    return trajectories


def _rolled_out(
    checked: Preflight, count: int, split: str, greedy: bool
) -> "tuple[list[Trajectory], HFCodec]":
    environment, instruction = checked.environment, checked.instruction
    coordinator = run_policy(checked.config, environment, instruction, rewards=checked.rewards)
    codec: HFCodec = coordinator.codec  # pyright: ignore[reportAssignmentType]
    prompt = Prompt(instruction)
    assignments = [
        Assignment(task, prompt, prompt, "i0", group)
        for group, task in enumerate(environment.tasks(split)[:count])
    ]
    return coordinator.rollout(assignments, purpose="try", greedy=greedy), codec


def _show(
    number: int, trajectory: Trajectory, codec: "HFCodec", console: Console, before: str
) -> str:
    """Print a rollout without the lines that its prompt shares with the one before; return its prompt."""
    console.print(Rule(Text(f"{number}: {trajectory.task.id}"), align="left"))
    instruction = trajectory.assignment.sampled.instruction
    text = codec.decode(trajectory.sampled_prompt_ids)
    if shared := shared_lines(text, before):
        console.print(Text(f"[{shared} lines as above]", style=PROMPT))
    own = "".join(text.splitlines(keepends=True)[shared:])
    prompt = prompt_text(own, instruction)
    completion = completion_text(trajectory, codec, labelled=console.color_system is None)
    console.print(Text.assemble(prompt, completion), soft_wrap=True)
    for line in outcome_lines(trajectory):
        console.print(line, markup=False, highlight=False)
    return text


def _summary(trajectories: Sequence[Trajectory], console: Console) -> None:
    console.print(Rule())
    count = len(trajectories)
    mean = score_trajectories(trajectories).em
    broken = sum(any(turn.error for turn in t.turns) for t in trajectories)
    answered = sum(t.answer is not None and not t.truncated_by for t in trajectories)
    console.print(
        f"{count} rollout{'s' * (count != 1)}: mean reward {mean:.3g}, {answered} with an answer, "
        f"{broken} with an error in a turn",
        highlight=False,
    )
    if truncated := truncation_summary(trajectories):
        console.print(truncated, style="yellow", highlight=False)
    rewards = {t.reward for t in trajectories}
    if count > 1 and len(rewards) == 1:
        fix = truncation_fix(truncation_metrics(trajectories))
        advice = f"{fix} first" if fix else "try more (-n), or look at the reward function"
        console.print(
            f"All have the reward {rewards.pop():.3g}: groups of equal rewards give no gradient; "
            f"{advice}.",
            highlight=False,
        )


def show_prompt(config: RunConfig, console: Console) -> None:
    """Print the first training task's prompt as the policy would see it, with its token count.

    Never downloads a tokenizer.

    Raises:
        ConfigError: the run file is invalid.
    """
    checked = Preflight(config, new=False).require_run_file()
    if not {"codec", "environment"} <= vars(checked).keys():
        console.print(
            f"prompt: not shown; this machine lacks the tokenizer of {config.policy.path}, or what the "
            "environment needs; cotune try fetches and shows it",
            markup=False,
        )
        return
    codec, environment = checked.codec, checked.environment
    (task, *_) = environment.tasks("train")
    prompt = Prompt(checked.instruction)
    ids = codec.render(environment.messages(task, prompt), environment.tools)
    console.print(Rule(Text(f"prompt of {task.id}: {len(ids)} tokens"), align="left"))
    shown = Text.assemble(
        prompt_text(codec.decode(ids), prompt.instruction),
        ("[the policy's turn: trained on]", OWN),
    )
    if checked.config.limits.turns > 1:
        shown.append("[what the environment answers: masked]", style=OBSERVED)
        shown.append("[the policy's next turn: trained on] …", style=OWN)
    console.print(shown, soft_wrap=True)
