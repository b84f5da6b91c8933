"""veRL's synchronous trainer, with a joint run's actions at its public hooks.

veRL's loop, in the order of a step:

    on_step_begin       weights are synced                  -> evolve, evaluate
    step:  generate_sequences                               -> assign (`Manager`)
           on_sample_end                                    -> credit, keep failures
           old log-probabilities, advantages, update        on the prompt that is trained on
    save, on_save                                           -> the strategy's state beside the weights
    on_step_end         weights are synced
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import transfer_queue as tq
from tensordict import NonTensorStack, TensorDict
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

import cotune.engines.verl.losses  # noqa: F401  registers the estimator
from cotune.engines.verl.processes import (
    RESULT,
    ROW,
    PromptRow,
    SessionResult,
    question_row,
    without_columns,
)
from cotune.engines.verl.run import VerlJoint
from cotune.errors import EngineError
from cotune.types import Assignment, Sampling, Trajectory

_APART = "val"  # the partition of rollouts that are not trained on
# Between veRL's polls for finished rollouts; its default, 2 s, is long for an evaluation.
_POLL_SECONDS = 0.2


class Manager(AgentLoopManagerTQ):
    """Write the strategy's assignments into the rows of a training batch before it is sent to the agent loops.

    Attributes:
        joint: decides the assignments; set once the trainer is ready.
        places: by the uid of a prompt's row, the place of its first rollout in the batch sent out last.
    """

    joint: VerlJoint
    places: Mapping[str, int]
    _assignments: Sequence[Assignment]

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Run `AgentLoopManagerTQ.generate_sequences`; rows that have assignments keep them."""
        if ROW not in prompts:
            task_ids = [str(i) for i in _column(prompts, "task_id")]
            self._assignments, sampling = self.joint.assign(task_ids)
            size = self.joint.group_size
            starts = range(0, len(self._assignments), size)
            uids = map(str, _column(prompts, "uid"))
            self.places = dict(zip(uids, starts, strict=True))
            rows = [
                prompt_row(self._assignments[first : first + size], sampling, first)
                for first in starts
            ]
            stack: Any = NonTensorStack  # abstract to a type checker
            prompts[ROW] = stack(*rows)
        super().generate_sequences(prompts)

    def trained_rollouts(self) -> list[Trajectory]:
        """Return the finished rollouts of the last batch sent out, in the order of its assignments."""
        listed = (tq.kv_list("train") or {}).get("train", {})
        places: dict[str, int] = {}
        for key, tag in listed.items():
            uid, *session = key.split("_")
            if uid in self.places and not (tag.get("is_prompt") or tag.get("is_padding")):
                places[key] = self.places[uid] + int(session[0])
        return in_order(_results("train", list(places)), places, self._assignments)


class Apart:
    """Roll out what is not trained on: verification, evolution, evaluation. See `RollOutHere`."""

    def __init__(self, trainer: "JointTrainer") -> None:
        self._trainer = trainer

    def __call__(
        self, assignments: Sequence[Assignment], first_row: int, sampling: Sampling
    ) -> list[Trajectory]:
        if not assignments:
            return []
        uids = [str(uuid4()) for _ in assignments]
        rows = [
            {
                **question_row(assignment.task.id, number),
                "__rollout_n__": 1,
                ROW: prompt_row([assignment], sampling, first_row + number),
            }
            for number, assignment in enumerate(assignments)
        ]
        step = int(self._trainer.global_steps)
        table = collate_fn(rows)
        table["uid"] = np.array(uids, dtype=object)
        prompts = tu.get_tensordict(table)
        tu.assign_non_tensor_data(prompts, "global_steps", step)
        tu.assign_non_tensor_data(prompts, "validate", True)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": step}] * len(rows)
        tq.kv_batch_put(keys=uids, partition_id=_APART, tags=tags)
        self._trainer.manager.generate_sequences(prompts)
        done, _ = self._trainer.replay_buffer.sample(
            global_steps=step, partition_id=_APART, batch_size=len(rows)
        )
        try:
            numbers = {uid: number for number, uid in enumerate(uids)}
            places = {key: numbers[key.split("_")[0]] for key in done.keys}
            return in_order(_results(_APART, list(done.keys)), places, assignments)
        finally:
            tq.kv_clear(keys=done.keys, partition_id=_APART)


def prompt_row(assignments: Sequence[Assignment], sampling: Sampling, first: int) -> PromptRow:
    """Return the row of assignments of one task, without the task's columns."""
    return PromptRow(tuple(map(without_columns, assignments)), sampling, first)


def _results(partition: str, keys: Sequence[str]) -> dict[str, SessionResult]:
    if not keys:
        return {}
    table = tq.kv_batch_get(keys=list(keys), partition_id=partition, select_fields=["extra_fields"])
    fields: list[Any] = [getattr(value, "data", value) for value in table["extra_fields"]]
    return {key: value[RESULT] for key, value in zip(keys, fields, strict=True)}


def in_order(
    results: Mapping[str, SessionResult],
    places: Mapping[str, int],
    assignments: Sequence[Assignment],
) -> list[Trajectory]:
    """Return results by key as rollouts in the order of their assignments, whose tasks have their columns again."""
    by_place: dict[int, Trajectory] = {}
    for key, result in results.items():
        rollout = result.outcome
        if not isinstance(rollout, Trajectory):
            raise rollout
        assignment = assignments[places[key]]
        # An environment may have changed the question.
        task = replace(assignment.task, question=rollout.task.question)
        by_place[places[key]] = replace(rollout, assignment=replace(assignment, task=task))
    if len(by_place) != len(assignments):
        raise EngineError(
            f"{len(assignments) - len(by_place)} of {len(assignments)} rollouts did not come back from "
            "veRL's agent loops; the cause is in Ray's logs of AgentLoopWorkerTQ"
        )
    return [by_place[place] for place in range(len(assignments))]


def _column(prompts: TensorDict, name: str) -> list[Any]:
    """Return a column without tensors as a list."""
    return [getattr(value, "data", value) for value in prompts[name]]


class JointTrainer(PPOTrainerSync):
    """Train a joint run on veRL; see the module docstring. Set `joint` before calling `init`."""

    joint: VerlJoint
    manager: Manager

    def on_init_end(self) -> None:
        super().on_init_end()
        self.replay_buffer.poll_interval = _POLL_SECONDS

    def take_manager(self, manager: Manager) -> None:
        """Connect the manager to the joint run that decides its rows; call before `fit`."""
        self.manager = self.agent_loop_manager = manager
        manager.joint = self.joint
        self.joint.bind(self, Apart(self))

    def on_step_begin(self) -> None:
        super().on_step_begin()
        self.joint.begin_step()

    def on_sample_end(self) -> None:
        super().on_sample_end()
        self.joint.take(self.manager.trained_rollouts())

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        batch = super().step(metrics, timing_raw)
        if self.joint.end_step(metrics):
            # This is the last step: it is saved, and no step follows.
            self.total_training_steps = self.global_steps
            if self.config.trainer.save_freq > 0:
                self.config.trainer.save_freq = 1
        return batch


class SaveStrategy(CheckpointCallback):
    """Save cotune's state; veRL calls it once its half of a checkpoint is written."""

    def on_save(
        self,
        trainer: Any,
        global_step: int,
        checkpoint_dir: str,
        async_save: bool = False,
        **_: Any,
    ) -> None:
        trainer.joint.save(Path(checkpoint_dir))
