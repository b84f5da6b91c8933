"""GRPO with a static instruction: the strategy that does nothing, and every method's baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cotune.methods.contract import check_same_initial
from cotune.methods.method import Method
from cotune.protocols import State, Strategy
from cotune.types import Assignment, Progress, Prompt, Section, Task


@dataclass(frozen=True, kw_only=True)
class StaticOptions(Section):
    """No options: the instruction is the environment's, or the run's."""

    kind: Literal["static"] = "static"


class StaticStrategy(Strategy):
    """Sample and train every rollout under the same instruction, "i0"."""

    def __init__(self, instruction: str) -> None:
        self._prompt = Prompt(instruction)

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """Return `group_size` times the best instruction for each task, group after group."""
        prompt = self.best_prompt()
        name = self.best_instruction_id()
        return [
            Assignment(task, prompt, prompt, name, group)
            for group, task in enumerate(tasks)
            for _ in range(group_size)
        ]

    def best_prompt(self) -> Prompt:
        return self._prompt

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
    needs_llm=False,
    uses_batches=False,
)
