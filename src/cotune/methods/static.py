"""GRPO with a static instruction: the strategy that does nothing, and every method's baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from cotune.methods.instruction_rules import check_same_initial
from cotune.methods.method import Method
from cotune.protocols import LLM, Recorder, Rollout, State
from cotune.types import (
    AnyDistillation,
    Assignment,
    Distillation,
    Metrics,
    Progress,
    Prompt,
    Task,
    Trajectory,
)


@dataclass(frozen=True, kw_only=True)
class StaticOptions:
    """No options: the instruction is the environment's, or the run's."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    kind: Literal["static"] = "static"


class Unhinted:
    """Base class of strategies without hints: every rollout is trained on its sampling prompt."""

    @property
    def distillation(self) -> AnyDistillation:
        """Return settings that weight no token, since nothing is distilled."""
        return Distillation(ratio="original")

    def best_hint(self) -> str:
        return ""


class StaticStrategy(Unhinted):
    """Sample and train every rollout under the same instruction, "i0"."""

    def __init__(self, instruction: str) -> None:
        self._prompt = Prompt(instruction)

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        """Do nothing: the instruction does not evolve."""
        return {}

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """Return `group_size` times the best instruction for each task, group after group."""
        prompt, name = self.best_prompt(), self.best_instruction_id()
        return [
            Assignment(task, prompt, prompt, name, group)
            for group, task in enumerate(tasks)
            for _ in range(group_size)
        ]

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        """Do nothing: rewards of training rollouts change no prompt."""
        return {}

    def best_prompt(self) -> Prompt:
        return self._prompt

    def best_instruction_id(self) -> str:
        return "i0"

    def state_dict(self) -> State:
        return {"instruction": self._prompt.instruction}

    def load_state_dict(self, state: State) -> None:
        """Raise ConfigError if the state is from a run with a different instruction."""
        check_same_initial(state["instruction"], self._prompt.instruction)


METHOD = Method(
    options=StaticOptions,
    build=lambda options, context: StaticStrategy(context.instruction),
    label="GRPO",
    about="GRPO under the static instruction",
    card="GRPO under a fixed instruction",
    card_frozen="No method: the instruction is fixed",
    needs_llm=lambda options: False,
    uses_batches=False,
)
