"""A whole method in one module, as a package would add it; CONTRIBUTING.md points here."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from cotune.methods.method import Context, Method, RunShape
from cotune.protocols import LLM, Recorder, Rollout, State, Strategy
from cotune.types import (
    Assignment,
    Instruction,
    Metrics,
    Progress,
    Prompt,
    Section,
    Task,
    Trajectory,
)


@dataclass(frozen=True, kw_only=True)
class BanditOptions(Section):
    """Two instructions in turn; the better one is kept.

    Attributes:
        ending: what the second instruction adds to the first.
    """

    kind: Literal["bandit"] = "bandit"
    ending: str = "Be brief."


class Bandit(Strategy):
    """Draw the groups of a batch alternately under two instructions; credit each with its rewards."""

    def __init__(self, options: BanditOptions, context: Context) -> None:
        text = context.instruction
        self.instructions = (
            Instruction("i0", text),
            Instruction("i1", f"{text} {options.ending}", parent="i0", origin="bandit"),
        )
        self.rewards: dict[str, list[float]] = {"i0": [], "i1": []}

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        if progress.step == 1:
            for instruction in self.instructions:
                record("instruction_born", **asdict(instruction), score=None, parent_score=None)
        return {}

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        assignments: list[Assignment] = []
        for group, task in enumerate(tasks):
            instruction = self.instructions[(progress.step + group) % 2]
            prompt = Prompt(instruction.text)
            assignments += [Assignment(task, prompt, prompt, instruction.id, group)] * group_size
        return assignments

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        for trajectory in trajectories:
            self.rewards[trajectory.assignment.instruction_id].append(trajectory.reward)
        return {"bandit/observed": float(len(trajectories))}

    def _best(self) -> Instruction:
        def mean(instruction: Instruction) -> float:
            rewards = self.rewards[instruction.id]
            return sum(rewards) / len(rewards) if rewards else 0.0

        return max(self.instructions, key=mean)

    def best_prompt(self) -> Prompt:
        return Prompt(self._best().text)

    def best_instruction_id(self) -> str:
        return self._best().id

    def state_dict(self) -> State:
        return {"rewards": self.rewards}

    def load_state_dict(self, state: State) -> None:
        self.rewards = state["rewards"]


def _check(options: BanditOptions, shape: RunShape) -> None:
    if shape.questions_per_step < 2:
        raise ValueError("training.questions_per_step is 1; a bandit needs two groups a batch")


METHOD = Method(
    options=BanditOptions,
    build=Bandit,
    label="Two-armed bandit",
    about="two instructions in turn, the better one is kept",
    evolves="instruction",
    needs_llm=False,
    check=_check,
)
