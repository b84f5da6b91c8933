"""INSPO: Instruction-Policy Co-Evolution (arXiv 2512.01945), Algorithm 1."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import ClassVar, Literal

from cotune.methods.contract import MAX_CHARS, InstructionRules, check_same_initial
from cotune.methods.group_plan import Groups, planned
from cotune.methods.inspo.generation import Generator
from cotune.methods.inspo.population import Member, Population
from cotune.methods.inspo.proposers import HISTORY, PROPOSERS, ProposerKind
from cotune.methods.inspo.replay import ReplayBuffer
from cotune.methods.inspo.verification import Candidate, Verification
from cotune.methods.last_stage import (
    LastStage,
    TrainedPromptOptions,
    check_last_stage,
    taught_groups,
)
from cotune.methods.method import Context, Cost, Method, Proposals, RunShape, arxiv
from cotune.methods.proposals import record_born
from cotune.protocols import LLM, Recorder, Rollout, State
from cotune.types import (
    Assignment,
    Choice,
    Instruction,
    Metrics,
    Progress,
    Purpose,
    Standing,
    StopReason,
    Task,
    Trajectory,
)


@dataclass(frozen=True, kw_only=True)
class InspoOptions(TrainedPromptOptions):
    """INSPO's options; defaults are the paper's. Steps are rollout batches.

    Attributes:
        population_size: N_P, instructions after the start and after an evolution.
        parents: N_parent, instructions kept at an evolution and never pruned below.
        selection_temperature: tau_s of Eq. 4.
        window: n of Eq. 6, in observed steps.
        prune_every: K_p, steps; 0 is never.
        evolve_every: K_e, steps; 0 is never. Both 0: a constant population.
        evolve_until: T_e; no evolution and no pruning from this step on.
        verification_tasks: |D_B|, questions a candidate is verified on; never those that its
            author, or an ancestor's, was shown.
        verification_rounds: the most generate-and-verify rounds per phase.
        verification: how far a candidate is verified: on all questions ("full", the paper's), until a paired
            test against its parent decides ("racing"), or not at all ("none"): candidates that meet the
            contract then join without any rollout.
        failures_per_reflection: failed rollouts shown to the reflection proposer.
        candidates: instructions requested per proposal.
        proposer: who writes candidates at an evolution, from failures ("reflection", the paper's), the
            parent alone, or the best instructions with their scores ("history").
        groups: what the rollouts of a question are sampled under (`methods.group_plan`): "own" is
            the paper's; "mixed" compares the drawn instruction with the initial one in each group;
            "population" draws an instruction for each rollout.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    kind: Literal["inspo"] = "inspo"
    population_size: int = 7
    parents: int = 1
    selection_temperature: float = 0.2
    window: int = 5
    prune_every: int = 5
    evolve_every: int = 15
    evolve_until: int = 150
    verification_tasks: int = 200
    verification_rounds: int = 5
    verification: Verification = "full"
    failures_per_reflection: int = 4
    candidates: int = 6
    proposer: ProposerKind = "reflection"
    groups: Groups = "own"

    def __post_init__(self) -> None:
        super().__post_init__()
        least = {"prune_every": 0, "evolve_every": 0, "evolve_until": 0}
        ones = ("population_size", "parents", "window", "verification_tasks", "candidates")
        least |= dict.fromkeys((*ones, "verification_rounds", "failures_per_reflection"), 1)
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least {low}")
        if not self.selection_temperature > 0:
            raise ValueError(
                f"selection_temperature is {self.selection_temperature}; expected above 0"
            )
        if self.parents > self.population_size:
            raise ValueError(
                f"parents is {self.parents}; expected at most population_size, {self.population_size}"
            )
        evolves = 0 < self.evolve_every < self.evolve_until and self.population_size > 1
        if evolves and self.parents == self.population_size:
            raise ValueError(
                f"parents is {self.parents}, all of population_size, so an evolution has no room for new "
                "instructions; expected fewer parents, or evolve_every 0"
            )

    @property
    def checks_uplift(self) -> bool:
        return self.groups == "mixed" or super().checks_uplift


class Inspo(LastStage):
    """Run Algorithm 1 of INSPO around an engine's policy update.

    Choices that the paper leaves open: one instruction per question, shared by its group (other
    values of `groups` and `target` are ours); phases that are due after step t run at the start of step
    t + 1, prune before evolve; candidates below their parent are rejected; after an evolution the
    population is the parents and the accepted candidates, fewer than N_P if the rounds are spent. If
    none is accepted, the population is unchanged instead of shrinking to the parents. Rollouts that saw
    a hint are neither credited to an instruction nor reflected on.

    The tags of the initial instruction are the protocol's, and every candidate keeps them.
    """

    def __init__(self, options: InspoOptions, context: Context) -> None:
        super().__init__(options)
        self.options, self.seed = options, context.seed
        rules = InstructionRules.of(context)
        self.population = Population(options.window, options.selection_temperature)
        self._replay = ReplayBuffer()
        self._generator = Generator(rules, self._replay, options, self.seed, context.description)
        self._lineage = [Instruction("i0", context.instruction)]
        self.population.add(self._lineage[0], 0.0)
        self.last_weights: dict[str, float] = {}  # by instruction id; used by the history proposer
        self._rewards: tuple[float, float] | None = None  # the lowest and the highest observed
        self._phases_run = 0  # the step whose due phases ran last
        self._batch = 0  # rollouts of the last batch, and the expected size of the next one

    # ---- Algorithm 1, lines 2, 10-13 and 16-24

    def evolve_if_due(
        self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder
    ) -> Metrics:
        """Run line 2 at the first step, and later the phases due at the end of the previous step.

        A second call at the same step does nothing.

        Raises:
            EvolutionError: all proposals of two phases in a row failed, or of the only one.
        """
        if progress.step <= self._phases_run:
            return {}
        first, self._phases_run = self._phases_run == 0, progress.step
        options, ended = self.options, progress.step - 1
        metrics: dict[str, float] = {}
        if first:
            before_stage = progress.total_steps - options.distil_steps
            evolves = range(1, min(options.evolve_until, before_stage))
            later = any(_due(step, options.evolve_every, options.evolve_until) for step in evolves)
            metrics |= self._initialise(llm, record, last=not later)
        if self._distils(progress, self._batch):
            self._notice_if_idle(progress, self._batch, self.best(), record)
            return metrics
        if _due(ended, options.prune_every, options.evolve_until):
            metrics |= self._prune(record)
        if _due(ended, options.evolve_every, options.evolve_until):
            metrics |= self._evolve(progress, rollout, llm, record)
        return metrics

    def _initialise(self, llm: LLM, record: Recorder, last: bool) -> Metrics:
        """Start from the initial instruction and the LLM's rewrites of it, with weight 0 (line 2)."""
        initial, vacancies = self._lineage[0], self.options.population_size - 1
        record_born(initial, record)
        rewrites = self._generator.generate(
            [initial],
            vacancies,
            "paraphrase",
            step=0,
            llm=llm,
            rollout=None,
            record=record,
            origin="rewrite",
            last=last,
        )
        for candidate in rewrites.accepted:
            self._join(candidate, 0.0, 0, record)
        self._notice_if_short(record)
        return {"inspo/initial_rewrites": float(len(rewrites.accepted))}

    def _prune(self, record: Recorder) -> Metrics:
        """Prune the population (lines 10-13)."""
        pruned = self.population.prune(self.options.parents)
        _record_gone(pruned, "prune", record)
        return {"inspo/pruned": float(len(pruned))}

    def _evolve(self, progress: Progress, rollout: Rollout, llm: LLM, record: Recorder) -> Metrics:
        """Evolve the population (lines 16-24); it is unchanged if no candidate is accepted."""
        step, left = progress.step, progress.rollouts_left
        # Line 17: the parents are the best.
        parents = self.population.top(self.options.parents)
        # Lines 18-22, in `Generator.generate`.
        new = self._generator.generate(
            [parent.instruction for parent in parents],
            self.options.population_size - len(parents),
            self.options.proposer,
            step=step,
            llm=llm,
            rollout=None if self.options.verification == "none" else rollout,
            record=record,
            history=self._history(),
            affordable=None
            if left is None
            else left - self._batch * (1 + self.options.distil_steps),
        )
        # Line 23: parents and new instructions are the population.
        if new.accepted:
            starts = [self.population[c.parent].weight + c.gain for c in new.accepted]
            gone = self.population.keep_only({parent.id for parent in parents})
            _record_gone(gone, "evolution", record)
            for candidate, start in zip(new.accepted, starts, strict=True):
                self._join(candidate, start, step, record)
        self._notice_if_short(record)
        count = {"rounds": new.rounds, "proposed": new.proposed, "verified": new.verified}
        count |= {"accepted": len(new.accepted), "saved": new.saved}
        size = len(self.population)
        record("evolution", parents=[p.id for p in parents], population=size, **count)
        return {f"inspo/evolution_{name}": float(value) for name, value in count.items()}

    def _history(self) -> list[tuple[Instruction, float]]:
        """Return the best instructions so far with their last observed scores, worst first."""
        best = sorted(self.last_weights.items(), key=lambda item: item[1])[-HISTORY:]
        lineage = {instruction.id: instruction for instruction in self._lineage}
        return [(lineage[identity], self._score(weight)) for identity, weight in best]

    def _score(self, weight: float) -> float:
        """Map a weight to the history proposer's scale: 0 to 100 over the rewards observed so far.

        Rewards that were all equal have no range; 0 to 1 is assumed.
        """
        low, high = self._rewards or (0.0, 1.0)
        if low == high:
            low, high = 0.0, 1.0
        return 100 * min(max((weight - low) / (high - low), 0.0), 1.0)

    def _join(self, candidate: Candidate, start: float, born: int, record: Recorder) -> None:
        instruction = Instruction(
            id=f"i{len(self._lineage)}",
            text=candidate.text,
            parent=candidate.parent,
            origin=candidate.origin,
            born=born,
            critique=candidate.critique,
            shown=candidate.shown,
        )
        self._lineage.append(instruction)
        self.population.add(instruction, start)
        record_born(instruction, record, candidate.score, candidate.parent_score)

    # ---- lines 5, 9 and 15

    def assign(
        self, tasks: Sequence[Task], group_size: int, progress: Progress
    ) -> list[Assignment]:
        """Draw instructions by Eq. 4: one per question, or with `groups: population` one per rollout."""
        options, initial = self.options, self._lineage[0]
        self._distilling = self._distils(progress, len(tasks) * group_size)
        if self._distilling:
            return taught_groups(tasks, group_size, initial, self.best())
        trained = initial if options.target == "initial" else None
        assignments: list[Assignment] = []
        for group, task in enumerate(tasks):
            key = f"inspo/{self.seed}/assign/{progress.step}/{group}"
            keys = [key]
            if options.groups == "population":
                keys = [f"{key}/{rollout}" for rollout in range(group_size)]
            drawn = [self.population.draw(draw_key) for draw_key in keys]
            assignments += planned(task, group, group_size, options.groups, drawn, initial, trained)
        return assignments

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        """Update Eq. 6 and the replay buffer. Hinted rollouts say nothing about an instruction."""
        self._settled = None
        self._batch = len(trajectories)
        if self._distilling:
            return self._report(trajectories, record)
        unhinted = [t for t in trajectories if t.scored and not t.assignment.sampled.hint]
        # Mixed groups still sample under the initial instruction after it was pruned.
        gone = {self._lineage[0].id} - {member.id for member in self.population.members}
        credits: defaultdict[str, list[float]] = defaultdict(list)
        for trajectory in unhinted:
            identity = trajectory.assignment.instruction_id
            if trajectory.stop is not StopReason.ENVIRONMENT_ERROR and identity not in gone:
                credits[identity].append(trajectory.reward)
        self.population.observe(credits)
        for instruction_id in credits:
            self.last_weights[instruction_id] = self.population[instruction_id].weight
        if unhinted:
            seen = [*(self._rewards or ()), *(t.reward for t in unhinted)]
            self._rewards = (min(seen), max(seen))
        self._replay.add(unhinted, progress.step)
        return self._report(trajectories, record)

    def _report(self, trajectories: Sequence[Trajectory], record: Recorder) -> Metrics:
        """Record the "population" event: weights and probabilities after this step, groups drawn."""
        drawn = {(t.assignment.instruction_id, t.assignment.group) for t in trajectories}
        groups = Counter(identity for identity, _group in drawn)
        members, chances = self.population.members, self.population.probabilities()
        rows = [
            {
                "id": m.id,
                "weight": m.weight,
                "probability": chance,
                "observed": m.observed,
                "observed_rollouts": m.rollouts,
                "assigned_groups": groups[m.id],
            }
            for m, chance in zip(members, chances, strict=True)
        ]
        record("population", members=rows)
        return {
            "inspo/population_size": float(len(members)),
            "inspo/best_weight": self.choice().weight,
            "inspo/mean_weight": fmean(m.weight for m in members),
            "inspo/entropy": -sum(p * math.log(p) for p in chances if p > 0),
            "inspo/instruction_chars_mean": fmean(len(m.instruction.text) for m in members),
        }

    # ---- line 26

    def best(self) -> Instruction:
        return self.choice().instruction

    def choice(self) -> Choice:
        """Return I* = argmax w_j among the observed instructions, and the evidence for it.

        Until one is observed, it is the initial instruction. After `settle`, it is the one named there.
        """
        best = self.population.best(self._settled)
        return best or Choice(self._lineage[0], 0.0, 0, 0, None, False)

    # ---- reporting and saved state

    def standings(self) -> list[Standing]:
        """Return all instructions, oldest first; the weight of a dropped one is its last."""
        members, chances = self.population.members, self.population.probabilities()
        alive = {
            m.id: Standing(m.instruction, True, m.weight, chance, m.rollouts)
            for m, chance in zip(members, chances, strict=True)
        }
        return [
            alive.get(instruction.id)
            or Standing(instruction, False, self.last_weights.get(instruction.id))
            for instruction in self._lineage
        ]

    def _notice_if_short(self, record: Recorder) -> None:
        have, want = len(self.population), self.options.population_size
        if have < want:
            record("notice", text=f"population of {have} instead of {want} instructions")

    def state_dict(self) -> State:
        return {
            "phases_run": self._phases_run,
            "batch": self._batch,
            "population": self.population.state_dict(),
            "replay": self._replay.state_dict(),
            "generator": self._generator.state_dict(),
            "lineage": [asdict(instruction) for instruction in self._lineage],
            "last_weights": dict(self.last_weights),
            "rewards": self._rewards and list(self._rewards),
        }

    def load_state_dict(self, state: State) -> None:
        """Raise ConfigError if the state is from a run with a different initial instruction."""
        lineage = [Instruction(**fields) for fields in state["lineage"]]
        check_same_initial(lineage[0].text, self._lineage[0].text)
        self._lineage, self._phases_run = lineage, state["phases_run"]
        self._batch = int(state["batch"])
        self.population.load_state_dict(state["population"])
        self._replay.load_state_dict(state["replay"])
        self._generator.load_state_dict(state["generator"])
        self.last_weights = dict(state["last_weights"])
        rewards = state["rewards"]
        self._rewards = (rewards[0], rewards[1]) if rewards else None


def _due(step: int, every: int, until: int) -> bool:
    return every > 0 and 0 < step < until and step % every == 0


def _record_gone(members: Sequence[Member], cause: str, record: Recorder) -> None:
    for member in members:
        record(
            "instruction_pruned",
            id=member.id,
            weight=member.weight,
            observed_rollouts=member.rollouts,
            cause=cause,
        )


# ---- the method's entry in the registry


def cost(options: InspoOptions, shape: RunShape) -> Cost:
    """Bound the verification rollouts and the proposals: t mod K_e = 0 with t < T_e and t < T."""
    every, last = options.evolve_every, min(options.evolve_until, shape.steps)
    phases = len(range(every, last, every)) if every else 0
    rounds = options.verification_rounds
    rows = options.verification_tasks * (options.candidates + 1)  # plus their parent
    proposer = PROPOSERS[options.proposer]
    failures = options.failures_per_reflection if proposer.reflects else 0
    proposals = Proposals((1 + phases) * rounds, proposer.texts * MAX_CHARS, failures)
    verifies = options.verification != "none"
    verify: dict[Purpose, int] = {"verify": phases * rounds * rows} if verifies else {}
    return Cost(
        phases, verify, (proposals,), 1 + options.checks_uplift, options.population_size - 1
    )


METHOD = Method(
    options=InspoOptions,
    build=Inspo,
    label="INSPO",
    about="instructions and policy together",
    card=f"INSPO ({arxiv('2512.01945')}): weights and instruction trained together, on GRPO",
    tags=("grpo", "inspo"),
    evolves=("instruction",),
    check=lambda options, shape: check_last_stage(options.distil_steps, shape),
    cost=cost,
    distillation=lambda options: options.weighting,
)
