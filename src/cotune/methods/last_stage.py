"""What INSPO and FST share: evolved instructions, and a last stage that moves their gain into the weights.

In the last stage the policy under the best instruction is the teacher of the policy under the initial one,
in every group.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from cotune.methods.contract import check_same_initial
from cotune.methods.method import Context, Evolution, RunShape, check_least
from cotune.methods.proposals import record_born
from cotune.protocols import LLM, Recorder, Rollout, State, Strategy
from cotune.types import (
    Assignment,
    Distillation,
    Instruction,
    Metrics,
    Progress,
    Prompt,
    Task,
    Trajectory,
)

Groups = Literal["own", "mixed", "population"]
"""What the rollouts of a question's group are sampled under: one drawn instruction (INSPO's), the drawn one for the
first half and the initial one for the others, or several spread evenly (FST's). One advantage is computed over the
whole group, so rollouts under different instructions are compared with each other."""


def plan_instructions(
    groups: Groups, size: int, drawn: Sequence[Instruction], initial: Instruction
) -> list[Instruction]:
    """Return the instruction of each of a group's `size` rollouts.

    Args:
        drawn: one instruction, or for "population" up to `size`, whose counts differ by one at most.

    >>> a, b = Instruction("a", ""), Instruction("b", "")
    >>> "".join(one.id for one in plan_instructions("population", 5, [a, b], a))
    'aaabb'
    """
    count = size - size // 2 if groups == "mixed" else size
    spread = [drawn[i * len(drawn) // count] for i in range(count)]
    return spread + [initial] * (size - count)


@dataclass(frozen=True, kw_only=True)
class TrainedPromptOptions:
    """What rollouts under evolved instructions are trained on.

    Attributes:
        target: the instruction that the gradient is taken on: "sampled" is the papers'; "initial"
            moves the instructions' gain into the weights.
        distillation: how rollouts are weighted with target "initial"; null is the signed mask.
        distil_steps: the run's last batches, which are sampled under the best instruction and teach their
            successes to the policy under the initial one. Nothing evolves in them. 0 turns the stage off.
    """

    target: Literal["sampled", "initial"] = "sampled"
    distillation: Distillation | None = None
    distil_steps: int = 0

    def __post_init__(self) -> None:
        check_least(self, 0, "distil_steps")
        if self.distil_steps and self.target != "sampled":
            raise ValueError(
                f"distil_steps is {self.distil_steps}, but target is {self.target!r}, which moves the gain into "
                "the weights in every batch; expected target 'sampled', or distil_steps 0"
            )
        if self.target == "sampled" and self.weighting != Distillation():
            raise ValueError(
                "distillation is set, but target is 'sampled', so nothing is distilled; expected target "
                "'initial', or no distillation"
            )

    @property
    def weighting(self) -> Distillation:
        """Return how rollouts that are trained on another instruction are weighted.

        Without a mask nothing bounds how far failures under one instruction are pushed down under another
        (lab/results/ladder.md, "Into the weights").
        """
        ratio = "original" if self.target == "sampled" else "masked_signed"
        return self.distillation or Distillation(ratio=ratio)

    @property
    def checks_uplift(self) -> bool:
        """Return whether the gain may move into the weights (`Strategy.checks_uplift`)."""
        return self.target == "initial" or self.distil_steps > 0


class EvolvedInstructions(Strategy):
    """Base class of strategies that evolve instructions and may end with a last stage.

    Args:
        groups: the plan of a group before the last stage.
    """

    name: ClassVar[str]
    """In the keys of draws and the names of metrics."""

    def __init__(self, options: TrainedPromptOptions, context: Context, groups: Groups) -> None:
        self._training = options
        self._groups: Groups = groups
        self.seed = context.seed
        self._tasks = context.tasks
        self._lineage = [Instruction("i0", context.instruction)]  # all, in order of birth
        self._begun = 0  # the last step whose evolution was considered
        self._batch = 0  # rollouts of the last batch, and the expected size of the next one
        self._distilling = False  # whether the last batch is one of the last stage
        self._settled: str | None = None  # the best instruction on validation, at a run's end

    # ---- what a method decides

    def _start(self, evolution: Evolution) -> Metrics:
        """Prepare the first step, after the initial instruction was recorded."""
        return {}

    @abstractmethod
    def _evolve(self, evolution: Evolution) -> Metrics:
        """Run the evolution that is due before step `evolution.progress.step`, if any."""

    @abstractmethod
    def _draw(self, key: str, group_size: int) -> list[Instruction]:
        """Return the instructions of a group, whose draws `key` decides."""

    @abstractmethod
    def best(self) -> Instruction:
        """Return the best instruction so far; after `settle`, the one named there."""

    # ---- a step

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        """Run the evolution that is due; a second call at the same step does nothing.

        Raises:
            EngineError, EvolutionError: see `TextSearch.end_phase` and `ProposalAccount.end_phase`.
        """
        if progress.step <= self._begun:
            return {}
        evolution = Evolution(progress, rollout, llm, record)
        starts = self._begun == 0
        self._begun = progress.step
        metrics: Metrics = {}
        if starts:
            record_born(self._lineage[0], record)
            metrics = self._start(evolution)
        if self._distils(progress, self._batch):
            if not self._distilling and self.best().parent is None:
                record(
                    "notice",
                    text=f"the last {self._training.distil_steps} batches have nothing to distil: no instruction "
                    "is better than the initial one",
                )
            return metrics
        return {**metrics, **self._evolve(evolution)}

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """Sample each group under the instructions drawn for it; in the last stage under the best one.

        The policy under the best instruction then teaches. Rollouts under the initial one do not hold what the
        policy never does there.
        """
        initial = self._lineage[0]
        best = self.best()
        distils = self._distilling = self._distils(progress, len(tasks) * group_size)
        on_initial = distils or self._training.target == "initial"
        teacher = Prompt(best.text) if distils and best != initial else None
        plans = [[best] * group_size] * len(tasks)
        if not distils:
            plans = self._plan_groups(tasks, group_size, progress.step)
        assignments: list[Assignment] = []
        for group, (task, plan) in enumerate(zip(tasks, plans, strict=True)):
            for instruction in plan:
                sampled = Prompt(instruction.text)
                trained = Prompt(initial.text) if on_initial else sampled
                assignments.append(
                    Assignment(task, sampled, trained, instruction.id, group, teacher)
                )
        return assignments

    def _plan_groups(
        self, tasks: Sequence[Task], group_size: int, step: int
    ) -> list[list[Instruction]]:
        """Return the instruction of each rollout of each group."""
        drawn = [
            self._draw(f"{self.name}/{self.seed}/assign/{step}/{group}", group_size)
            for group in range(len(tasks))
        ]
        initial = self._lineage[0]
        return [plan_instructions(self._groups, group_size, d, initial) for d in drawn]

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        self._settled = None
        self._batch = len(trajectories)
        return {}

    @property
    def distillation(self) -> Distillation:
        return self._training.weighting

    def _spendable(self, progress: Progress) -> int | None:
        """Return the rollouts that evolution may spend: this batch and the last stage are set aside."""
        if progress.rollouts_left is None:
            return None
        return progress.rollouts_left - self._batch * (1 + self._training.distil_steps)

    def _record_population(
        self,
        members: Sequence[dict[str, Any]],
        trajectories: Sequence[Trajectory],
        record: Recorder,
    ) -> None:
        """Record the "population" event: the living instructions, with the groups they were drawn for."""
        instruction_groups = {
            (t.assignment.instruction_id, t.assignment.group) for t in trajectories
        }
        groups = Counter(identity for identity, _group in instruction_groups)
        record(
            "population",
            members=[member | {"assigned_groups": groups[member["id"]]} for member in members],
        )

    # ---- the last stage

    @property
    def has_teacher(self) -> bool:
        return self._training.distil_steps > 0

    @property
    def checks_uplift(self) -> bool:
        return self._training.checks_uplift

    def _distils(self, progress: Progress, batch: int) -> bool:
        """Return whether a step's batch, of so many rollouts, is one of the last stage."""
        steps_left = progress.total_steps - progress.step + 1
        if progress.rollouts_left is not None and batch:
            steps_left = min(steps_left, progress.rollouts_left // batch)
        return steps_left <= self._training.distil_steps and self.has_teacher

    # ---- the best instruction, and saved state

    def settle(self, instruction_id: str) -> None:
        self._settled = instruction_id

    def best_prompt(self) -> Prompt:
        return Prompt(self.best().text)

    def best_instruction_id(self) -> str:
        return self.best().id

    def state_dict(self) -> State:
        return {
            "lineage": [asdict(instruction) for instruction in self._lineage],
            "begun": self._begun,
            "batch": self._batch,
            "distilling": self._distilling,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state; raise ConfigError if it began with a different initial instruction."""
        lineage = [Instruction(**fields) for fields in state["lineage"]]
        check_same_initial(lineage[0].text, self._lineage[0].text)
        self._lineage = lineage
        self._begun = int(state["begun"])
        self._batch = int(state["batch"])
        self._distilling = bool(state["distilling"])


def check_last_stage(steps: int, shape: RunShape) -> None:
    """Raise ValueError if a last stage has nothing before it to distil.

    Args:
        steps: batches of the stage; 0 turns it off.
    """
    if steps and steps >= shape.steps:
        raise ValueError(
            f"strategy.distil_steps is {steps}, of {shape.steps} rollout batches; expected fewer, because the first "
            "batches find the instruction that the last ones distil"
        )
