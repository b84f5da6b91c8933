"""GEPA on the instruction, before any training: the prompt-only baseline (arXiv 2507.19457)."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Literal

from cotune.errors import ConfigError
from cotune.methods.gepa.gepa_phase import Search
from cotune.methods.gepa.instruction_evolution import Candidates, evolve_instruction
from cotune.methods.instruction_rules import InstructionRules
from cotune.methods.method import Context, Cost, Method, Proposals, RunShape, arxiv
from cotune.methods.p2o.hints import split
from cotune.methods.static import Unhinted
from cotune.protocols import LLM, Recorder, Rollout, State
from cotune.types import Assignment, Instruction, Metrics, Progress, Prompt, Task, Trajectory

_BARREN = 20  # iterations in a row without a lawful instruction that end the search


@dataclass(frozen=True, kw_only=True)
class GepaOptions:
    """GEPA's numbers. The paper spends about 2,000 to 7,000 rollouts on a task.

    Attributes:
        budget: evaluations (one is one rollout), all before the first training batch.
        dev_size: training questions that instructions are scored on; the others are reflected on.
            Half of the training questions where there are fewer than 1.5 times as many.
        minibatch: questions shown to the reflector, on which a child must beat its parent.
        beam: parents that instructions are derived from in one iteration, drawn from the Pareto
            front.
        show_answers: whether the reflector is shown the ground truth.
        max_instruction_chars: length limit of a candidate, in characters.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    kind: Literal["gepa"] = "gepa"
    budget: int = 6000
    dev_size: int = 300
    minibatch: int = 3
    beam: int = 1
    show_answers: bool = False
    max_instruction_chars: int = 4000

    def __post_init__(self) -> None:
        for name in ("dev_size", "minibatch", "beam", "max_instruction_chars"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.budget <= self.dev_size:
            raise ValueError(
                f"budget is {self.budget}; expected more than dev_size, {self.dev_size}, which "
                "scoring the initial instruction costs alone"
            )

    @property
    def overrun(self) -> int:
        """By how many evaluations the last batch, of minibatches, can exceed the budget at most."""
        return self.beam * self.minibatch


class Gepa(Unhinted):
    """Evolves the instruction once, at the first step; then every rollout is under the best one.

    With `training.frozen` nothing else happens: "prompt only". Without, the policy is then trained
    as GRPO with a static instruction is: "prompt before RL".

    The tags of the initial instruction are the protocol's, and every candidate keeps them. No other
    question than a training question is scored or reflected on.
    """

    def __init__(self, options: GepaOptions, context: Context) -> None:
        self._rules = InstructionRules.of(context, options.max_instruction_chars)
        if len(context.tasks) < 2:
            raise ConfigError(
                f"{len(context.tasks)} training questions; GEPA expects 2 or more, to score and "
                "reflect on"
            )
        self.options, self.seed = options, context.seed
        self._tasks, self._description = context.tasks, context.description
        self._initial = Instruction("i0", context.instruction)
        self._found: Candidates | None = None

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        """The whole search, at the first call; later ones do nothing.

        Raises:
            EvolutionError: no proposal kept to the contract.
        """
        if self._found is not None:
            return {}
        options, key = self.options, f"gepa/{self.seed}"
        dev, train = split(self._tasks, options.dev_size, key)
        self._found = found = evolve_instruction(
            dev,
            train,
            rollout=rollout,
            llm=llm,
            rules=self._rules,
            search=Search(
                seed=self._initial.text,
                budget=options.budget,
                beam=options.beam,
                minibatch=options.minibatch,
                show_answers=options.show_answers,
                barren=_BARREN,
                overrun=False,
            ),
            seed_key=key,
            step=progress.step,
            record=record,
            description=self._description,
        )
        return {
            "gepa/evaluations": float(found.evaluations),
            "gepa/instructions": float(len(found.instructions)),
            "gepa/initial_dev_score": found.mean(0),
            "gepa/best_dev_score": found.mean(found.best),
        }

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """`group_size` times the best instruction for each task, group after group."""
        prompt, name = self.best_prompt(), self.best_instruction_id()
        return [
            Assignment(task, prompt, prompt, name, group)
            for group, task in enumerate(tasks)
            for _ in range(group_size)
        ]

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        """Nothing is learnt: the search is over."""
        return {}

    def best_prompt(self) -> Prompt:
        return Prompt(self._best().text)

    def best_instruction_id(self) -> str:
        return self._best().id

    def _best(self) -> Instruction:
        """The highest mean reward on the questions set apart; the initial one before the search."""
        return self._initial if self._found is None else self._found.instructions[self._found.best]

    def candidates(self) -> Candidates | None:
        """All that the search accepted; None before it."""
        return self._found

    def state_dict(self) -> State:
        found = self._found
        return {
            "initial": self._initial.text,
            "found": None
            if found is None
            else {
                "instructions": [asdict(instruction) for instruction in found.instructions],
                "scores": [list(row) for row in found.scores],
                "evaluations": found.evaluations,
            },
        }

    def load_state_dict(self, state: State) -> None:
        """Raises ConfigError where the state is of a run with another initial instruction."""
        if state["initial"] != self._initial.text:
            raise ConfigError(
                f"the saved run's initial instruction is {state['initial']!r}, this run's "
                f"{self._initial.text!r}; expected the same: restore the run file's"
            )
        found = state["found"]
        self._found = None
        if found is not None:
            self._found = Candidates(
                tuple(Instruction(**fields) for fields in found["instructions"]),
                tuple(tuple(row) for row in found["scores"]),
                int(found["evaluations"]),
            )


# ---- the method's entry in the registry


def _check(options: GepaOptions, shape: RunShape) -> None:
    if shape.rollout_budget is None:
        return
    batch = 0 if shape.frozen else shape.questions_per_step * shape.group_size
    if options.budget + batch > shape.rollout_budget:
        follows = f", and a batch of {batch} follows it" if batch else ""
        raise ValueError(
            f"strategy.budget is {options.budget}{follows}, more than training.rollout_budget, "
            f"{shape.rollout_budget}; lower strategy.budget, or raise training.rollout_budget"
        )


def _cost(options: GepaOptions, shape: RunShape) -> Cost:
    most = options.budget + options.overrun
    calls = math.ceil(most / options.minibatch)
    shown = Proposals(calls, options.max_instruction_chars, options.minibatch)
    return Cost(1, {"evolve": most}, (shown,))


def _scaled(options: GepaOptions) -> GepaOptions:
    return replace(options, dev_size=2, budget=24, minibatch=2, beam=1)


METHOD = Method(
    options=GepaOptions,
    build=Gepa,
    label="GEPA",
    about="the instruction evolved before the first step",
    card=f"GRPO under an instruction that GEPA ({arxiv('2507.19457')}) evolved before the first step",
    card_frozen=f"GEPA ({arxiv('2507.19457')}) on the instruction",
    tags=("grpo", "gepa"),
    evolves=("instruction",),
    offline_worlds=("geo",),
    uses_batches=False,
    check=_check,
    cost=_cost,
    scaled=_scaled,
)
