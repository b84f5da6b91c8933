"""Send assignments to the agent loops and collect trajectories, over veRL's TransferQueue."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import transfer_queue as tq
from tensordict import NonTensorStack, TensorDict
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from cotune import errors
from cotune.engines.verl.questions import question_row
from cotune.engines.verl.row_format import (
    ASSIGNMENTS,
    RESULT,
    ROW,
    SAMPLING,
    assignments_text,
    result_from,
    sampling_text,
)
from cotune.errors import EngineError
from cotune.types import Assignment, Sampling, Trajectory

if TYPE_CHECKING:
    from cotune.engines.verl.hooks import VerlJoint
    from cotune.engines.verl.trainer import JointTrainer

_APART = "val"  # the partition of rollouts that are not trained on


class Manager(AgentLoopManagerTQ):
    """Write the strategy's assignments into the rows of a training batch before it is sent out.

    Attributes:
        joint: decides the assignments; set once the trainer is ready.
        places: by the uid of a prompt's row, the place of its first rollout in the batch sent out last.
    """

    joint: "VerlJoint"
    places: Mapping[str, int]
    _assignments: Sequence[Assignment]

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Run `AgentLoopManagerTQ.generate_sequences`; rows that have assignments keep them."""
        if ASSIGNMENTS not in prompts:
            task_ids = [str(i) for i in _column(prompts, "task_id")]
            self._assignments, sampling = self.joint.assign(task_ids)
            size = self.joint.group_size
            starts = range(0, len(self._assignments), size)
            uids = map(str, _column(prompts, "uid"))
            self.places = dict(zip(uids, starts, strict=True))
            texts = [assignments_text(self._assignments[i : i + size]) for i in starts]
            prompts[ASSIGNMENTS] = _stack(texts)
            prompts[SAMPLING] = _stack([sampling_text(sampling)] * len(prompts))
            prompts[ROW] = _stack(starts)
        super().generate_sequences(prompts)

    def trained_rollouts(self) -> list[Trajectory]:
        """Return the finished rollouts of the last batch sent out, in the order of its assignments.

        Raises:
            CotuneError: the error of a failed rollout; EngineError if rollouts are missing.
        """
        listed = (tq.kv_list("train") or {}).get("train", {})
        places: dict[str, int] = {}
        for key, tag in listed.items():
            uid, *session = key.split("_")
            if uid in self.places and not (tag.get("is_prompt") or tag.get("is_padding")):
                places[key] = self.places[uid] + int(session[0])
        return in_order(_results("train", list(places)), places, self._assignments)


class Apart:
    """Roll out what is not trained on: verification, evolution, evaluation. See `RollOutHere`.

    Args:
        trainer: veRL's, with the manager that sends rows to the agent loops.
    """

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
                ASSIGNMENTS: assignments_text([assignment]),
                SAMPLING: sampling_text(sampling),
                ROW: first_row + number,
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


def _results(partition: str, keys: Sequence[str]) -> dict[str, str]:
    if not keys:
        return {}
    table = tq.kv_batch_get(keys=list(keys), partition_id=partition, select_fields=["extra_fields"])
    fields: list[Any] = [getattr(value, "data", value) for value in table["extra_fields"]]
    return {key: value[RESULT] for key, value in zip(keys, fields, strict=True)}


def in_order(
    results: Mapping[str, str], places: Mapping[str, int], assignments: Sequence[Assignment]
) -> list[Trajectory]:
    """Return rollouts in the order of their assignments.

    Args:
        results: `row_format.result_text` or `failure_text` by key.
        places: the place of each key's assignment.

    Raises:
        CotuneError: the error of a failed rollout; EngineError if rollouts are missing.
    """
    by_place: dict[int, Trajectory] = {}
    for key, text in results.items():
        result = result_from(text, assignments[places[key]])
        if not isinstance(result, Trajectory):
            raise _exception_of(*result)
        by_place[places[key]] = result
    if len(by_place) != len(assignments):
        raise EngineError(
            f"{len(assignments) - len(by_place)} of {len(assignments)} rollouts did not come back from "
            "veRL's agent loops; the cause is in Ray's logs of AgentLoopWorkerTQ"
        )
    return [by_place[place] for place in range(len(assignments))]


def _exception_of(name: str, message: str) -> Exception:
    """Return an agent loop's error as an exception of the original type."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.CotuneError):
        return kind(message)
    return EngineError(f"a rollout failed: {name}: {message}")


def _stack(values: Iterable[Any]) -> Any:
    """Return values without tensors as a column."""
    stack: Any = NonTensorStack  # abstract to a type checker
    return stack(*values)


def _column(prompts: TensorDict, name: str) -> list[Any]:
    """Return a column without tensors as a list."""
    return [getattr(value, "data", value) for value in prompts[name]]
