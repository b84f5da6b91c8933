"""`cotune try`: show a few rollouts of a run file's policy."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.step_progress import step_progress
from cotune.config.run_file import load_config
from cotune.engines.preflight import Preflight
from cotune.errors import ConfigError
from cotune.experiments.evaluate.rollout_text import show_rollouts
from cotune.types import Assignment, Prompt, Trajectory


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
    config = load_config(path, assignments=assignments)
    quiet_libraries(config)
    with step_progress(console):
        checked = Preflight(config, new=False)
        checked.require(machine_checks=("policy files", "environment.retriever"))
        tasks = checked.environment.tasks(split)[:count]
        if not tasks:
            raise ConfigError(f"--split {split} has no questions; expected a split with some")
        prompt = Prompt(checked.instruction)
        coordinator = checked.engine.open_policy(
            config, checked.environment, rewards=checked.rewards
        )
        trajectories = coordinator.rollout(
            [Assignment(task, prompt, prompt, "i0", group) for group, task in enumerate(tasks)],
            purpose="try",
            greedy=greedy,
        )
    show_rollouts(trajectories, coordinator.codec, console)
    return trajectories
