"""A joint run of a tiny policy on TRL."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig

from cotune.engines.joint import Parts, RunSettings
from cotune.engines.trl.policy_update import PolicyUpdate
from cotune.engines.trl.trl_joint import TRLJoint
from cotune.methods.static import StaticStrategy
from cotune.policy.codec import HFCodec
from cotune.protocols import LLM, Environment, Recorder, Rollout, State, Strategy
from cotune.run.record import Record
from cotune.run.scores import Score
from cotune.types import (
    Assignment,
    Distillation,
    Limits,
    Metrics,
    Progress,
    Prompt,
    Task,
    Trajectory,
)
from tests.policy.tiny import Letters, tiny_model, tiny_tokenizer
from tests.scripted import ScriptedLLM

LIMITS = Limits(turns=3, turn_tokens=8, observation_tokens=6, trajectory_tokens=40)
HINT = "fade fade"


class Counting(StaticStrategy):
    """Has a state: the rewards it observed, by task.

    Its instruction grows with the rewards seen, so that what is sampled depends on the state.
    """

    def __init__(self, instruction: str = "abc de. ") -> None:
        super().__init__(instruction)
        self._instruction = instruction
        self.total, self.batches = 0.0, 0

    @property
    def _grown_prompt(self) -> Prompt:
        return Prompt(self._instruction + "abcdef"[int(self.total * 10) % 6])

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        return {"counting/started": float(progress.step)}

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        prompt = self._grown_prompt
        return [
            Assignment(task, prompt, prompt, f"i{self.batches}", group)
            for group, task in enumerate(tasks)
            for _ in range(group_size)
        ]

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        self.total += sum(t.reward for t in trajectories)
        self.batches += 1
        return {"counting/total": self.total}

    @property
    def distillation(self) -> Distillation:
        return Distillation(ratio="original")

    def best_prompt(self) -> Prompt:
        return self._grown_prompt

    def state_dict(self) -> State:
        return {"total": self.total, "batches": self.batches}

    def load_state_dict(self, state: State) -> None:
        self.total, self.batches = state["total"], state["batches"]


class HintedRows(StaticStrategy):
    """Samples rows of every batch under a hint and trains on them without it.

    Args:
        rows: which; None is all.
        distillation: the default's if it is None.
        taught: whether a teacher that reads the hint teaches hinted rows.
    """

    def __init__(
        self,
        rows: Sequence[int] | None,
        distillation: Distillation | None = None,
        instruction: str = "abc de. ",
        hint: str = HINT,
        taught: bool = False,
    ) -> None:
        super().__init__(instruction)
        self._rows, self._hinted = rows, Prompt(instruction, hint)
        self._distillation, self._taught = distillation or Distillation(), taught

    @property
    def distillation(self) -> Distillation:
        return self._distillation

    @property
    def has_teacher(self) -> bool:
        return self._taught

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        plain = super().assign(tasks, group_size, progress)
        teacher = self._hinted if self._taught else None
        return [
            replace(assignment, sampled=self._hinted, teacher=teacher)
            if self._rows is None or row in self._rows
            else assignment
            for row, assignment in enumerate(plain)
        ]


@dataclass
class Run:
    """A joint run and what its hooks saw."""

    joint: TRLJoint
    trainer: PolicyUpdate
    folder: Record
    trajectories: list[list[Trajectory]]

    @property
    def strategy(self) -> Any:
        return self.joint.parts.strategy

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The policy's parameters as they are now, by name."""
        model = self.trainer.model
        assert isinstance(model, torch.nn.Module)
        return {name: parameter.data for name, parameter in model.named_parameters()}

    def logged(self, name: str) -> list[float]:
        """The values of a metric in TRL's history, of training steps."""
        return [row[name] for row in self.trainer.state.log_history if "loss" in row]

    def outputs(self) -> list[Any]:
        """A list that each batch is added to as TRL prepared it, from here on."""
        outputs: list[Any] = []
        generate = self.trainer._generate_and_score_completions

        def record_output(inputs: Any) -> Any:
            outputs.append(generate(inputs))
            return outputs[-1]

        self.trainer._generate_and_score_completions = record_output  # type: ignore[method-assign]
        return outputs


def config(folder: Path, **changes: Any) -> GRPOConfig:
    """Two questions a batch, three rollouts each, on the CPU."""
    values: dict[str, Any] = {
        "output_dir": str(folder / "checkpoints"), "max_steps": 2,
        "per_device_train_batch_size": 6, "gradient_accumulation_steps": 1, "num_generations": 3,
        "max_completion_length": LIMITS.trajectory_tokens, "learning_rate": 1e-3,
        "lr_scheduler_type": "constant", "beta": 0.0, "loss_type": "grpo", "top_k": 0,
        "shuffle_dataset": False, "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
        "report_to": "none", "disable_tqdm": True, "logging_steps": 1, "save_strategy": "no",
    }  # fmt: skip
    return GRPOConfig(**(values | changes))


def scored(em: float) -> Score:
    """A score on four validation questions."""
    return Score(em, 4, {})


def start(
    folder: Path,
    strategy: Strategy | None = None,
    environment: Environment | None = None,
    policy: tuple[Any, Any] | None = None,
    limits: Limits = LIMITS,
    trainer_arguments: dict[str, Any] | None = None,
    resume: bool = False,
    identity: dict[str, str] | None = None,
    llm: LLM | None = None,
    seed: int = 1,
    budget: int | None = None,
    **changes: Any,
) -> Run:
    """A run that is ready to train; the same arguments give the same run.

    Args:
        budget: the most rollouts of the policy.
    """
    tokenizer = policy[1] if policy else tiny_tokenizer()
    model = policy[0] if policy else tiny_model(tokenizer)
    run_dir = Record.open(folder / "run") if resume else Record.create(folder / "run", {})
    settings = RunSettings(
        folder=folder / "run", record={}, seed=seed, rollout_budget=budget, identity=identity or {}
    )
    parts = Parts(
        strategy or Counting(),
        environment or Letters(),
        HFCodec(tokenizer),
        limits,
        settings,
        llm=llm or ScriptedLLM([]),
        record=run_dir,
    )
    args = config(folder, **changes)
    joint = TRLJoint(parts, args)
    trajectories: list[list[Trajectory]] = []
    observe = joint.coordinator.observe

    def observe_and_record(batch: list[Trajectory], *a: Any) -> Any:
        result = observe(batch, *a)
        trajectories.append(batch)
        return result

    joint.coordinator.observe = observe_and_record  # type: ignore[method-assign]
    trainer = PolicyUpdate(model, joint, **(trainer_arguments or {}))
    trainer.remove_callback(PrinterCallback)
    return Run(joint, trainer, run_dir, trajectories)
