"""`cotune try`: a few rollouts of a run file's policy, shown; and the prompt that `plan` shows."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from cotune.cli.libraries import quiet_libraries
from cotune.cli.show_rollouts import (
    LEGEND,
    OBSERVED,
    OWN,
    completion_text,
    outcome_lines,
    prompt_text,
)
from cotune.config.build import build_environment, build_rewards, initial_instruction
from cotune.config.preflight import check_instruction, check_prompts, check_retriever, check_told
from cotune.config.run_file import RunConfig, load_config
from cotune.errors import ConfigError
from cotune.experiments.evaluate.evaluating import SPLITS
from cotune.policy.folder import cached_folder
from cotune.policy.paths import policy_path
from cotune.protocols import Environment
from cotune.rollout.coordinator import RolloutSettings
from cotune.run.scores import score_trajectories
from cotune.types import Assignment, Prompt, Trajectory
from cotune.utils.text import one_line

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
    """Rolls out a few questions with the run file's policy and prints what happened.

    Sampled as training samples: at its temperature, under the initial instruction, with its tools
    and rewards. Nothing is trained, no LLM is asked and nothing is written.

    Args:
        path: the run file.
        console: where to show.
        count: questions, the first of the split, a rollout each.
        split: "train", "validation" or "test".
        greedy: the most likely token each time, as evaluation does.
        assignments: fields that are set, as in --set.

    Raises:
        ConfigError: what `cotune train` would refuse, too.
    """
    if split not in SPLITS:
        raise ConfigError(f"--split is {split!r}; expected one of {', '.join(SPLITS)}")
    if count < 1:
        raise ConfigError(f"-n is {count}; expected 1 or more")
    config = load_config(path, assignments=assignments)
    quiet_libraries(config)
    environment = build_environment(config)
    instruction = initial_instruction(config, environment)
    check_instruction(environment, instruction)
    check_retriever(environment)
    trajectories, codec = _rolled_out(config, environment, instruction, count, split, greedy)
    console.print(LEGEND)
    for number, trajectory in enumerate(trajectories, 1):
        _show(number, trajectory, codec, console)
    _summary(trajectories, console)
    return trajectories


def _rolled_out(
    config: RunConfig,
    environment: Environment,
    instruction: str,
    count: int,
    split: str,
    greedy: bool,
) -> "tuple[list[Trajectory], HFCodec]":
    from cotune.policy.local_policy import local_coordinator

    training = config.training
    coordinator = local_coordinator(
        policy_path(config.policy.path),
        environment,
        instruction,
        RolloutSettings(config.limits, training.temperature, config.seed, training.rows_per_call),
        dtype=config.policy.dtype,
        template_args=config.policy.template_args,
        chat_template=config.policy.chat_template,
        rewards=build_rewards(config),
    )
    codec: HFCodec = coordinator.codec  # pyright: ignore[reportAssignmentType]
    check_told(environment, instruction, codec)
    prompt = Prompt(instruction)
    assignments = [
        Assignment(task, prompt, prompt, "i0", group)
        for group, task in enumerate(environment.tasks(split)[:count])
    ]
    found = coordinator.rollout(assignments, purpose="try", greedy=greedy)
    return found, codec


def _show(number: int, trajectory: Trajectory, codec: "HFCodec", console: Console) -> None:
    console.print(Rule(Text(f"{number}: {trajectory.task.id}"), align="left"))
    instruction = trajectory.assignment.sampled.instruction
    prompt = prompt_text(codec.decode(trajectory.sampled_prompt_ids), instruction)
    completion = completion_text(trajectory, codec, labelled=console.color_system is None)
    console.print(Text.assemble(prompt, completion), soft_wrap=True)
    for line in outcome_lines(trajectory):
        console.print(line, markup=False, highlight=False)


def _summary(trajectories: Sequence[Trajectory], console: Console) -> None:
    console.print(Rule())
    count = len(trajectories)
    mean = score_trajectories(trajectories).em
    broken = sum(any(turn.error for turn in t.turns) for t in trajectories)
    answered = sum(t.answer is not None for t in trajectories)
    console.print(
        f"{count} rollouts: mean reward {mean:.3g}, {answered} with an answer, {broken} with an "
        "error in a turn",
        highlight=False,
    )
    rewards = {t.reward for t in trajectories}
    if count > 1 and len(rewards) == 1:
        console.print(
            f"All have the reward {rewards.pop():.3g}: groups of equal rewards give no gradient; try "
            "more (-n), or look at the reward function.",
            highlight=False,
        )


def show_prompt(config: RunConfig, console: Console) -> None:
    """Prints the first training task's prompt as the policy would see it, tokens counted.

    A tokenizer that is not on this machine is said so; nothing is downloaded for it.
    """
    environment = build_environment(config)
    instruction = initial_instruction(config, environment)
    (task, *_) = environment.tasks("train")
    try:
        codec = _codec(config)
    except (ConfigError, OSError, ValueError) as error:
        console.print(f"prompt: not shown; {_why_not(config, error)}", markup=False)
        return
    check_told(environment, instruction, codec)
    check_prompts(
        environment, codec, instruction, config.limits, SPLITS, strategy=config.strategy.kind
    )
    ids = codec.render(environment.messages(task, Prompt(instruction)), environment.tools)
    console.print(Rule(Text(f"prompt of {task.id}: {len(ids)} tokens"), align="left"))
    shown = Text.assemble(
        prompt_text(codec.decode(ids), instruction), ("[the policy's turn: trained on]", OWN)
    )
    if config.limits.turns > 1:
        shown.append("[what the environment answers: masked]", style=OBSERVED)
        shown.append("[the policy's next turn: trained on] …", style=OWN)
    console.print(shown, soft_wrap=True)


def _why_not(config: RunConfig, error: Exception) -> str:
    """Why there is no tokenizer; the hub's own words blame the network, which was not asked."""
    path = policy_path(config.policy.path)
    if not Path(path).is_dir() and cached_folder(str(path)) is None:
        return f"the tokenizer of {path} is not on this machine; cotune try fetches and shows it"
    return one_line(str(error))


def _codec(config: RunConfig) -> "HFCodec":
    from transformers import AutoTokenizer

    from cotune.policy.codec import HFCodec, use_template

    tokenizer = AutoTokenizer.from_pretrained(
        policy_path(config.policy.path), local_files_only=True
    )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    use_template(tokenizer, config.policy.chat_template)
    return HFCodec(tokenizer, config.policy.template_args)
