"""The rows for fine-tuning: tokenized references, or rejection sampling, kept on disk."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cotune.config.cost import rollouts_sampled
from cotune.config.run_file import TrainingConfig
from cotune.environments.base import reference_of
from cotune.errors import ConfigError, EngineError
from cotune.methods.sft import (
    SFTOptions,
    TrainingRow,
    accepted,
    check_accepted,
    reference_row,
    rollout_row,
)
from cotune.protocols import Environment
from cotune.rollout.episode import score_all
from cotune.rollout.task_order import TaskOrder
from cotune.run.json_files import Row, json_line, read_jsonl, write_atomic
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn

if TYPE_CHECKING:
    from cotune.engines.trl.sft import TRLSft

ROWS, ROLLOUTS = "rows.jsonl", "rollouts.jsonl"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Rows:
    """The rows to fit, and the fields of the event that records them."""

    rows: Sequence[TrainingRow]
    about: Mapping[str, object]


def check_references(environment: Environment) -> None:
    """Raise ConfigError if training questions have no reference answer."""
    tasks = environment.tasks("train")
    without = [task.id for task in tasks if not reference_of(environment, task)]
    if without:
        raise ConfigError(
            f"strategy.data is answers, but {len(without)} of {len(tasks)} training questions have "
            f"neither a solution nor an answer, {without[0]!r} among them: name their column "
            "(dataset.columns.answers), or set strategy.data: rollouts"
        )


def answer_rows(joint: "TRLSft") -> Rows:
    """Return one row per training question: its reference under the initial instruction.

    References longer than a turn are left out, because the policy could never write them.

    Raises:
        ConfigError: a prompt is longer than the limit.
        EngineError: every reference is too long.
    """
    environment, codec = joint.parts.environment, joint.coordinator.codec
    prompt, limits = joint.coordinator.strategy.best_prompt(), joint.parts.limits
    most = min(limits.turn_tokens, limits.trajectory_tokens - 1)
    tried: list[tuple[TrainingRow, Trajectory]] = []
    tasks = environment.tasks("train")
    for task in tasks:
        ids = codec.render(environment.messages(task, prompt), environment.tools)
        if len(ids) > limits.prompt_tokens:
            raise ConfigError(
                f"the prompt of task {task.id} has {len(ids)} tokens, but limits.prompt_tokens is "
                f"{limits.prompt_tokens}; raise it or shorten the instruction"
            )
        text = reference_of(environment, task)
        row = reference_row(task.id, ids, text, codec, environment.stop)
        if row.targets <= most:
            tried.append((row, _written(task, prompt, row, text)))
    if not tried:
        raise EngineError(
            f"all {len(tasks)} references are longer than limits.turn_tokens ({limits.turn_tokens}) and "
            f"limits.trajectory_tokens ({limits.trajectory_tokens}) allow: raise them"
        )
    scored = [trajectory for _, trajectory in tried]
    if joint.parts.rewards is None:
        scored = score_all(scored, environment)
    else:
        scored = joint.parts.rewards(scored, environment)
    mean = sum(t.reward for t in scored) / len(scored)
    about = {"left_out": len(tasks) - len(tried), "reward_mean": mean}
    return Rows([row for row, _ in tried], about)


def _written(task: Task, prompt: Prompt, row: TrainingRow, text: str) -> Trajectory:
    """Return the reference as a one-turn trajectory, to be scored as the policy's own."""
    own = len(row.input_ids) - row.targets
    completion = row.input_ids[own:]
    return Trajectory(
        assignment=Assignment(task, prompt, prompt, "i0", 0),
        sampled_prompt_ids=row.input_ids[:own],
        prompt_ids=row.input_ids[:own],
        completion_ids=completion,
        mask=(1,) * len(completion),
        logprobs=(0.0,) * len(completion),
        turns=(Turn(text, action="answer"),),
        stop=StopReason.ANSWERED,
        answer=text,
    )


def rollout_rows(joint: "TRLSft", options: SFTOptions, training: TrainingConfig) -> Rows:
    """Return the initial policy's own successful rollouts as rows (rejection sampling).

    Args:
        joint: a run with the initial policy, before any training step.
        options: the run file's `strategy`.
        training: its `training`.

    Raises:
        EngineError: no rollout succeeded.
    """
    trajectories = list(_sampled(joint, options, training))
    rewards = [t.reward for t in trajectories]
    kept = accepted(trajectories, options)
    check_accepted(len(kept), len(trajectories), max(rewards), options)
    about: dict[str, object] = {
        "rollouts": len(trajectories),
        "succeeded": sum(reward >= options.keep_from for reward in rewards),
        "reward_mean": sum(rewards) / len(rewards),
    }
    return Rows([rollout_row(trajectory) for trajectory in kept], about)


def _sampled(
    joint: "TRLSft", options: SFTOptions, training: TrainingConfig
) -> Iterator[Trajectory]:
    """Yield all rollouts, one of the run file's rollout batches at a time.

    Visits every question once in shuffled order, then every question again, so that a budget that
    ends early has reached as many questions as possible.
    """
    size = training.questions_per_step * training.group_size
    order = TaskOrder(joint.parts.environment.tasks("train"), size, joint.parts.seed)
    total = rollouts_sampled(training, options, len(order.by_id))
    coordinator, prompt = joint.coordinator, joint.coordinator.strategy.best_prompt()
    groups: dict[str, int] = {}  # a question's rollouts form one group across batches
    for first in range(0, total, size):
        tasks = [order.by_id[order.at(i)] for i in range(first, min(first + size, total))]
        batch = coordinator.rollout(
            [
                Assignment(task, prompt, prompt, "i0", groups.setdefault(task.id, len(groups)))
                for task in tasks
            ],
            purpose="train",
        )
        journal = joint.parts.journal
        journal.trajectories(0, "train", batch)
        journal.event(
            "sampled",
            0,
            rollouts=first + len(batch),
            of=total,
            reward_mean=sum(t.reward for t in batch) / len(batch),
        )
        yield from batch


def write_rows(
    path: Path,
    rows: Sequence[TrainingRow],
    identity: Mapping[str, str],
    changeable: Mapping[str, str],
) -> None:
    """Write rows atomically, after a line that identifies their run."""
    head: Row = {
        "schema_version": SCHEMA_VERSION,
        "identity": dict(identity),
        "changeable": dict(changeable),
    }
    lines = [
        {"task": row.task, "input_ids": list(row.input_ids), "labels": list(row.labels)}
        for row in rows
    ]
    path.parent.mkdir(exist_ok=True)
    write_atomic(path, b"".join(json_line(line, path.name) for line in [head, *lines]))


def read_head(path: Path) -> Row:
    """Return the head line that `write_rows` wrote; empty if it cannot be read."""
    lines = read_jsonl(path)
    return lines[0] if lines else {}


def read_rows(path: Path) -> list[TrainingRow]:
    """Read the rows that `write_rows` wrote.

    Raises:
        ConfigError: they are from another version, or cannot be read.
    """
    head, lines = read_head(path), read_jsonl(path)[1:]
    if head.get("schema_version") != SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: schema_version is {head.get('schema_version')!r}, expected {SCHEMA_VERSION}; open "
            "it with the version of cotune that wrote it"
        )
    return [
        TrainingRow(line["task"], tuple(line["input_ids"]), tuple(line["labels"])) for line in lines
    ]
