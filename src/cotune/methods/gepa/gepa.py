"""GEPA on the instruction, before any training: the prompt-only baseline (arXiv 2507.19457)."""

import math
from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from cotune.errors import ConfigError
from cotune.methods.contract import MAX_CHARS, InstructionRules, check_same_initial
from cotune.methods.instruction_evolution import (
    Candidates,
    check_budget,
    evolve_instruction,
)
from cotune.methods.method import Context, Cost, Method, Proposals, RunShape, arxiv
from cotune.methods.proposals import ProposalAccount, record_born
from cotune.methods.static import StaticStrategy
from cotune.methods.text_evolution import (
    FENCED,
    MINIBATCH,
    Judge,
    Scoring,
    Search,
    dev_count,
    least_budget,
    scores_are_lost,
    split,
    too_close_to_call,
)
from cotune.protocols import LLM, Recorder, Rollout, State
from cotune.types import Instruction, Metrics, Progress, Prompt, Standing

_BARREN = 20  # consecutive iterations without a valid instruction that end the search


@dataclass(frozen=True, kw_only=True)
class GepaOptions:
    """GEPA's options. The paper spends about 2,000 to 7,000 rollouts on a task.

    Attributes:
        budget: evaluations (one is one rollout), all before the first training batch.
        dev_size: training questions that instructions are scored on; the others are reflected on.
            Half of the training questions if there are fewer than 1.5 times as many.
        scoring: how instructions are scored, by one rollout for each question: greedy, or sampled as in
            training.
        beam: parents that instructions are derived from in one iteration, drawn from the Pareto
            front.
        show_answers: whether the reflector is shown the ground truth.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    kind: Literal["gepa"] = "gepa"
    budget: int = 6000
    dev_size: int = 300
    scoring: Scoring = "greedy"
    beam: int = 1
    show_answers: bool = False

    def __post_init__(self) -> None:
        for name in ("dev_size", "beam"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        if self.budget <= self.dev_size:
            raise ValueError(
                f"budget is {self.budget}; expected more than dev_size, {self.dev_size}, which "
                "scoring the initial instruction already costs"
            )


# ---- the strategy


class Gepa(StaticStrategy):
    """Evolve the instruction once, at the first step; every rollout then uses the best one.

    With `training.frozen` nothing else happens: "prompt only". Otherwise the policy is then trained
    as in GRPO with a static instruction: "prompt before RL".

    The tags of the initial instruction are the protocol's, and every candidate keeps them. Only
    training questions are scored or reflected on.
    """

    def __init__(self, options: GepaOptions, context: Context) -> None:
        self._rules = InstructionRules.of(context)
        if len(context.tasks) < 2:
            raise ConfigError(
                f"{len(context.tasks)} training questions; GEPA expects 2 or more, to score and "
                "reflect on"
            )
        dev = dev_count(len(context.tasks), options.dev_size)
        if options.budget < (least := least_budget(dev)):
            raise ConfigError(
                f"strategy.budget is {options.budget}; expected at least {least}, to score the initial "
                f"instruction and another on {dev} questions; raise it, or lower strategy.dev_size"
            )
        super().__init__(context.instruction)
        self.options, self.seed = options, context.seed
        self._tasks, self._description = context.tasks, context.description
        self._initial = Instruction("i0", context.instruction)
        self._found: Candidates | None = None

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        """Run the whole search on the first call; do nothing on later ones.

        Raises:
            EvolutionError: no proposal met the contract.
        """
        if self._found is not None:
            return {}
        options, key = self.options, f"gepa/{self.seed}"
        dev, train = split(self._tasks, options.dev_size, key)
        record_born(self._initial, record)
        self._found = found = evolve_instruction(
            dev,
            train,
            judge=Judge(Prompt, rollout, record, scoring=options.scoring),
            llm=llm,
            rules=self._rules,
            search=Search(
                seed=self._initial.text,
                budget=options.budget,
                beam=options.beam,
                barren=_BARREN,
            ),
            show_answers=options.show_answers,
            seed_key=key,
            step=progress.step,
            record=record,
            account=ProposalAccount("instruction", FENCED, needed=True),
            known=[self._initial],
            description=self._description,
            last=True,
        )
        if scores_are_lost(found.lost, found.evaluations, record, "the initial instruction stays"):
            self._found = Candidates((self._initial,), found.scores[:1], found.evaluations)
        _record_best(self._found, record)
        return {
            "gepa/evaluations": float(found.evaluations),
            "gepa/instructions": float(len(found.instructions)),
            "gepa/initial_dev_score": found.mean(0),
            "gepa/best_dev_score": self._found.mean(self._found.best),
        }

    def best_prompt(self) -> Prompt:
        return Prompt(self._best().text)

    def best_instruction_id(self) -> str:
        return self._best().id

    def _best(self) -> Instruction:
        """Return the prompt with the highest mean dev reward; the initial one before the search."""
        return self._initial if self._found is None else self._found.instructions[self._found.best]

    def standings(self) -> list[Standing]:
        """Return the accepted candidates, weighted by mean dev score; [] before the search."""
        found = self._found
        return (
            [
                Standing(one, weight=found.mean(i), observed_rollouts=len(found.scores[i]))
                for i, one in enumerate(found.instructions)
            ]
            if found
            else []
        )

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
        """Raise ConfigError if the state is from a run with a different initial instruction."""
        check_same_initial(state["initial"], self._initial.text)
        found = state["found"]
        self._found = None
        if found is not None:
            self._found = Candidates(
                tuple(Instruction(**fields) for fields in found["instructions"]),
                tuple(tuple(row) for row in found["scores"]),
                int(found["evaluations"]),
            )


def _record_best(found: Candidates, record: Recorder) -> None:
    first, *others = found.ranked
    second = others[0] if others else None
    record(
        "best_instruction",
        id=found.instructions[first].id,
        weight=found.mean(first),
        observed_steps=0,
        observed_rollouts=len(found.scores[first]),
        runner_up=None if second is None else found.instructions[second].id,
        too_close_to_call=second is not None
        and too_close_to_call(found.scores[first], found.scores[second]),
    )


# ---- the method's entry in the registry


def _cost(options: GepaOptions, shape: RunShape) -> Cost:
    calls = math.ceil(options.budget / MINIBATCH)
    shown = Proposals(calls, MAX_CHARS, MINIBATCH)
    return Cost(1, {"evolve": options.budget}, (shown,))


METHOD = Method(
    options=GepaOptions,
    build=Gepa,
    label="GEPA",
    about="the instruction evolved before the first step",
    card=f"GRPO under an instruction that GEPA ({arxiv('2507.19457')}) evolved before the first step",
    card_frozen=f"GEPA ({arxiv('2507.19457')}) on the instruction",
    tags=("grpo", "gepa"),
    evolves=("instruction",),
    uses_batches=False,
    check=lambda options, shape: check_budget(options.budget, shape),
    cost=_cost,
)
