"""`cotune try`: show a few rollouts of a run file's policy; also the prompt of `cotune plan`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.step_progress import step_progress
from cotune.config.run_file import RunConfig, load_config
from cotune.engines.preflight import Preflight
from cotune.errors import ConfigError
from cotune.experiments.evaluate.evaluating import SPLITS
from cotune.experiments.evaluate.rollout_text import OBSERVED, OWN, prompt_text, show_rollouts
from cotune.experiments.evaluate.run_policy import run_policy
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
    show_rollouts(trajectories, codec, console)
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
