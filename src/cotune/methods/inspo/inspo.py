"""INSPO: Instruction-Policy Co-Evolution (arXiv 2512.01945), Algorithm 1."""

import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from cotune.methods.contract import TextRules
from cotune.methods.inspo.population import Member, Population
from cotune.methods.inspo.proposers import ProposerKind, propose, read_tagged
from cotune.methods.inspo.replay import Experience, ReplayBuffer
from cotune.methods.inspo.trial import Contestant, Trial
from cotune.methods.inspo.verification import Candidate, Verification, accept, verify
from cotune.methods.last_stage import (
    EvolvedInstructions,
    Groups,
    TrainedPromptOptions,
    check_last_stage,
)
from cotune.methods.method import Context, Cost, Evolution, Method, RunShape, check_least
from cotune.methods.proposals import (
    ProposalAccount,
    reads_prompts,
    record_born,
    record_gone,
    record_rejected,
)
from cotune.protocols import Recorder, State
from cotune.types import (
    Choice,
    Instruction,
    Metrics,
    Progress,
    Purpose,
    Section,
    StopReason,
    Task,
    Trajectory,
)

_LEAST_QUESTIONS = 4  # of a step; with fewer a weight rests on too few rollouts


@dataclass(frozen=True, kw_only=True)
class InspoOptions(TrainedPromptOptions, Section):
    """INSPO's options; defaults are the paper's. Steps are rollout batches.

    Attributes:
        population_size: N_P, instructions after the start and after an evolution.
        parents: N_parent, instructions kept at an evolution and never pruned below.
        selection_temperature: tau_s of Eq. 4.
        window: n of Eq. 6, in observed steps.
        prune_every: K_p, steps; 0 turns pruning off.
        evolve_every: K_e, steps; 0 turns evolution off. Both 0: a constant population.
        evolve_until: T_e; no evolution and no pruning from this step on.
        verification_tasks: |D_B|, the most questions a candidate is verified on; never those that its
            author, or an ancestor's, was shown.
        verification_rounds: the most generate-and-verify rounds per phase.
        verification: how a candidate is verified: on questions of the buffer ("full", the paper's), in groups
            of the next training batches, without a rollout of its own ("trial"), or not at all ("none").
        failures_per_reflection: failed rollouts shown to the reflection proposer.
        candidates: instructions requested per proposal.
        proposer: what candidates are written from at an evolution: failures ("reflection", the paper's), or
            the parent alone ("paraphrase").
        groups: what the rollouts of a question are sampled under (`methods.last_stage.Groups`): "own" is
            the paper's; "mixed" compares the drawn instruction with the initial one in each group;
            "population" draws an instruction for each rollout.
    """

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
        check_least(self, 0, "prune_every", "evolve_every", "evolve_until")
        check_least(self, 1, "population_size", "parents", "window", "candidates")
        check_least(self, 1, "verification_tasks", "verification_rounds", "failures_per_reflection")
        if not self.selection_temperature > 0:
            raise ValueError(
                f"selection_temperature is {self.selection_temperature}; expected above 0"
            )
        if self.evolves and self.parents >= self.population_size:
            raise ValueError(
                f"parents is {self.parents}; expected fewer than population_size, {self.population_size}, so that "
                "an evolution has room for new instructions, or evolve_every 0"
            )

    @property
    def evolves(self) -> bool:
        """Return whether a long run has phases of evolution."""
        return 0 < self.evolve_every < self.evolve_until and self.population_size > 1

    def is_due(self, step: int, every: int) -> bool:
        """Return whether a phase that runs every so many steps is due at the end of a step."""
        return every > 0 and 0 < step < self.evolve_until and step % every == 0

    @property
    def checks_uplift(self) -> bool:
        return self.groups == "mixed" or super().checks_uplift


class Inspo(EvolvedInstructions):
    """Run Algorithm 1 of INSPO around an engine's policy update.

    The engine rolls out and updates the weights: lines 6 to 8. Choices that the paper leaves open: one
    instruction per question, shared by its group (other values of `groups` and `target` are ours); prune
    before evolve; candidates below their parent are rejected; after an evolution the population is the
    parents and the accepted candidates, fewer than N_P if the rounds are spent. If none is accepted, the
    population is unchanged instead of shrinking to the parents.
    """

    name = "inspo"

    def __init__(self, options: InspoOptions, context: Context) -> None:
        super().__init__(options, context, options.groups)
        self.options = options
        self.population = Population(options.window, options.selection_temperature)
        self.population.add(self.population.new_member(self._lineage[0]))
        self._trial: Trial | None = None
        self._description = context.description
        self._rules = TextRules.of_instructions(context)
        self._account = ProposalAccount("instruction", read_tagged, needed=True)
        self._replay = ReplayBuffer()

    # ---- Algorithm 1, line 2: before the first step

    def _start(self, evolution: Evolution) -> Metrics:
        """Start from the initial instruction and the LLM's rewrites of it, with weight 0."""
        options = self.options
        before_stage = range(1, evolution.progress.total_steps - options.distil_steps)
        evolves = any(options.is_due(step, options.evolve_every) for step in before_stage)
        rewrites, _ = self._generate(
            [self._lineage[0]],
            options.population_size - 1,
            "paraphrase",
            evolution,
            at_start=True,
            last=not evolves,
        )
        for candidate in rewrites:
            self._join(candidate, 0.0, evolution.record)
        self._notice_if_short(evolution.record)
        return {"inspo/initial_rewrites": float(len(rewrites))}

    # ---- lines 4 and 5: an instruction for each question

    def _draw(self, key: str, group_size: int) -> list[Instruction]:
        """Draw one instruction by Eq. 4, or with `groups: population` one for each rollout."""
        if self.options.groups == "population":
            return [self.population.draw(f"{key}/{rollout}") for rollout in range(group_size)]
        return [self.population.draw(key)]

    def _plan_groups(
        self, tasks: Sequence[Task], group_size: int, step: int
    ) -> list[list[Instruction]]:
        """Plan the groups, of which some are on trial for a candidate."""
        plans = super()._plan_groups(tasks, group_size, step)
        if self._trial is not None:
            trial_groups = self._trial.draw_groups(tasks, f"inspo/{self.seed}/trial/{step}")
            for group, contestant in trial_groups.items():
                plans[group] = contestant.share_group(group_size)
        return plans

    # ---- lines 9 and 15: after the rollouts

    def observe(
        self, trajectories: Sequence[Trajectory], progress: Progress, record: Recorder
    ) -> Metrics:
        """Update the weights of instructions and the replay buffer."""
        if not self._batch:
            self._notice_if_few_questions(trajectories, record)
        super().observe(trajectories, progress, record)
        if not self._distilling:
            scored = [t for t in trajectories if t.scored]
            # Line 9: the importance weights, by Eq. 6.
            self._credit(scored)
            # Line 15: the replay buffer.
            self._replay.add(scored, progress.step)
        metrics: Metrics = {}
        if self._trial is not None:
            metrics = self._judge(self._trial, progress.step, record)
        return {**metrics, **self._report(trajectories, record)}

    def _credit(self, trajectories: Sequence[Trajectory]) -> None:
        rewards: defaultdict[str, list[float]] = defaultdict(list)
        for trajectory in trajectories:
            if trajectory.stop is not StopReason.ENVIRONMENT_ERROR:
                rewards[trajectory.assignment.instruction_id].append(trajectory.reward)
        # Mixed groups still sample under the initial instruction after it was pruned.
        not_members = {self._lineage[0].id}
        if self._trial is not None:
            self._trial.observe(trajectories, rewards)
            not_members |= self._trial.ids
        not_members -= {member.id for member in self.population.members}
        self.population.observe({id: row for id, row in rewards.items() if id not in not_members})

    # ---- lines 10 to 13 and 16 to 24: at the end of step t

    def _evolve(self, evolution: Evolution) -> Metrics:
        """Run the phases that were due at the end of the paper's step t.

        They run at the start of step t + 1, so that a checkpoint saved after t is resumed with its phases
        still to come.
        """
        t = evolution.progress.step - 1
        metrics: dict[str, float] = {}
        # Lines 10-13: every K_p steps, prune.
        if self.options.is_due(t, self.options.prune_every):
            pruned = self.population.prune(self.options.parents)
            _record_gone(pruned, "prune", evolution.record)
            metrics["inspo/pruned"] = float(len(pruned))
        # Lines 16-24: every K_e steps, evolve. Candidates on trial hold the vacancies.
        if self.options.is_due(t, self.options.evolve_every) and self._trial is None:
            metrics |= self._renew(evolution)
        return metrics

    def _renew(self, evolution: Evolution) -> Metrics:
        """Evolve the population (lines 17-23); it is unchanged if no candidate is accepted."""
        options = self.options
        record = evolution.record
        # Line 17: the parents are the best. Unlike the paper's, their weights are kept, so that selection goes on.
        parents = self.population.top(options.parents)
        # Lines 18-22: new instructions.
        instructions = [parent.instruction for parent in parents]
        vacancies = options.population_size - len(parents)
        new, counts = self._generate(instructions, vacancies, options.proposer, evolution)
        if new and options.verification == "trial":
            self._begin_trial(new, counts, instructions, record)
            return {}
        # Line 23: parents and new instructions are the population.
        if new:
            weights: dict[str | None, float] = {parent.id: parent.weight for parent in parents}
            gone = self.population.keep_only({parent.id for parent in parents})
            _record_gone(gone, "evolution", record)
            for candidate in new:
                start = weights[candidate.instruction.parent] + candidate.gain
                self._join(candidate, start, record)
        return self._end_phase(counts, [parent.id for parent in parents], record)

    def _end_phase(
        self, counts: Mapping[str, int], parents: Sequence[str], record: Recorder
    ) -> Metrics:
        """Record the "evolution" event of a phase; return its metrics."""
        self._notice_if_short(record)
        record("evolution", parents=list(parents), population=len(self.population), **counts)
        return {f"inspo/evolution_{name}": float(value) for name, value in counts.items()}

    # ---- lines 21 to 23 by a trial in training batches (not in the paper)

    def _begin_trial(
        self,
        new: Sequence[Candidate],
        counts: Mapping[str, int],
        parents: Sequence[Instruction],
        record: Recorder,
    ) -> None:
        by_id = {parent.id: parent for parent in parents}
        contestants = [
            Contestant(
                self.population.new_member(self._name(candidate.instruction)),
                by_id[str(candidate.instruction.parent)],
            )
            for candidate in new
        ]
        self._trial = Trial(contestants, {**counts, "verified": len(contestants), "accepted": 0})
        texts = {c.instruction.id: c.instruction.text for c in contestants}
        against = [contestant.parent.id for contestant in contestants]
        record("trial", count=len(contestants), candidates=texts, parents=against)

    def _judge(self, trial: Trial, step: int, record: Recorder) -> Metrics:
        """Let the candidates that are decided join or go; end a trial in which none is left."""
        for contestant, reason in trial.decide(self.options.verification_tasks, self._distilling):
            instruction = contestant.instruction
            origin = instruction.origin
            parent_id = contestant.parent.id
            scores = contestant.scores
            if reason:
                record_rejected(instruction.text, parent_id, origin, reason, record, *scores)
                continue
            # Line 23, at the first that is accepted: only the parents stay.
            if not trial.counts["accepted"]:
                stay = {member.id for member in self.population.top(self.options.parents)}
                _record_gone(self.population.keep_only(stay), "evolution", record)
            trial.counts["accepted"] += 1
            joined = replace(instruction, born=step + 1)  # it can be drawn from the next batch on
            contestant.member.instruction = joined
            self._lineage = [joined if each.id == joined.id else each for each in self._lineage]
            self.population.add(contestant.member)
            record_born(joined, record, *scores)
        metrics = {"inspo/on_trial": float(len(trial.contestants))}
        if trial.contestants:
            return metrics
        self._trial = None
        return {**metrics, **self._end_phase(trial.counts, trial.parents, record)}

    # ---- lines 18 to 22: generate and verify

    def _generate(
        self,
        parents: Sequence[Instruction],
        vacancies: int,
        proposer: ProposerKind,
        evolution: Evolution,
        at_start: bool = False,
        last: bool = False,
    ) -> tuple[list[Candidate], dict[str, int]]:
        """Run rounds of lines 18 to 22 until `vacancies` candidates are accepted or the rounds are spent.

        A round whose call fails is the last one. None starts whose verification could exceed the rollouts left.

        Args:
            at_start: whether these are the rewrites of the initial instruction, which are not verified.
            last: whether this is the run's last phase.

        Returns:
            the accepted candidates, and what the event "evolution" tells of the phase.
        """
        options = self.options
        account = self._account
        llm = evolution.llm
        record = evolution.record
        step = 0 if at_start else evolution.progress.step
        verifies = options.verification == "full" and not at_start
        origin = getattr(llm, "origin", "") or ("rewrite" if at_start else proposer)
        ids = {parent.text: parent.id for parent in parents}

        def refuse(text: str, parent: str, reason: str) -> None:
            record_rejected(text, ids[parent], origin, reason, record)

        account.begin(llm, record, self._rules.check, refuse, tried=ids)
        spendable = self._spendable(evolution.progress) if verifies else None
        accepted: list[Candidate] = []
        rounds = 0
        verified = 0
        paid = 0  # rollouts of verification
        # Line 18: until the population is full.
        while len(accepted) < vacancies and rounds < options.verification_rounds:
            rng = random.Random(f"inspo/{self.seed}/generate/{step}/{rounds}")
            # Line 19: sample a parent, failures of it and questions to verify on from the replay buffer.
            parent = rng.choice(parents)
            failures = None
            if proposer == "reflection":
                # A candidate is compared on questions that its author was not shown; some have to be left.
                compares = options.verification != "none" and reads_prompts(llm)
                spared = options.verification_tasks if compares else 0
                count = options.failures_per_reflection
                failures = self._replay.failures(count, rng, parent, spared)
            request = propose(
                parent,
                failures,
                options.candidates,
                rounds + 1,
                self._description,
                self._rules.required,
            )
            shown_ids = request.provenance(llm)
            tasks = self._replay.recent_tasks(options.verification_tasks, rng, shown_ids)
            left = None if spendable is None else spendable - paid
            if obstacle := self._obstacle(failures, tasks if verifies else None, left):
                record("notice", text=f"{obstacle} before step {step}")
                break
            # Line 20: the LLM generates new instructions; the contract filters them.
            rounds += 1
            drafts = account.ask(request, options.candidates)
            if drafts is None:
                break
            candidates = [
                Candidate(
                    Instruction(f"c{i}", d.text, parent.id, origin, step, d.critique, d.shown)
                )
                for i, d in enumerate(drafts)
            ]
            # Line 21: verify them, take the best, and add them to the population.
            if verifies and candidates:
                if not verified:
                    self._notice_if_few_left(len(tasks), step, record)
                verified += len(candidates)
                paid += (len(candidates) + 1) * len(tasks)
                candidates = verify(candidates, parent, tasks, evolution.rollout)
            best, rejected = accept(candidates, vacancies - len(accepted))
            accepted += best
            for c, reason in rejected:
                text = c.instruction.text
                record_rejected(text, parent.id, origin, reason, record, c.score, c.parent_score)
        if rounds:
            account.end_phase(last)
        counts = {"rounds": rounds, "proposed": account.proposed}
        return accepted, counts | {"verified": verified, "accepted": len(accepted)}

    def _obstacle(
        self,
        failures: Sequence[Experience] | None,
        tasks: Sequence[Task] | None,
        rollouts_left: int | None,
    ) -> str:
        """Return why a round cannot start; "" if it can. None: a proposer reads no failures; no verification."""
        if failures == [] or (tasks is not None and not len(self._replay)):
            return "no experience to learn from"
        if tasks == []:
            return "every question in the buffer was shown to the candidates' authors, so none is left to verify on"
        needed = (self.options.candidates + 1) * len(tasks or ())  # plus their parent
        if rollouts_left is not None and needed > rollouts_left:
            return "too few rollouts are left to verify"
        return ""

    def _join(self, candidate: Candidate, start: float, record: Recorder) -> None:
        instruction = self._name(candidate.instruction)
        self.population.add(self.population.new_member(instruction, start))
        record_born(instruction, record, candidate.score, candidate.parent_score)

    def _name(self, candidate: Instruction) -> Instruction:
        """Return a candidate with an id of its own, and keep it in the lineage."""
        instruction = replace(candidate, id=f"i{len(self._lineage)}")
        self._lineage.append(instruction)
        return instruction

    # ---- line 26: the result

    def best(self) -> Instruction:
        return self.choice().instruction

    def choice(self) -> Choice:
        """Return I* = argmax w_j among the observed instructions, and the evidence for it.

        Until one is observed, it is the initial instruction. After `settle`, it is the one named there.
        """
        best = self.population.best(self._settled)
        return best or Choice(self._lineage[0], 0.0, 0, 0, None, False)

    # ---- reporting and saved state

    def _report(self, trajectories: Sequence[Trajectory], record: Recorder) -> Metrics:
        """Record weights and probabilities after this step."""
        members = self.population.members
        chances = self.population.probabilities()
        rows = [
            {
                "id": member.id,
                "weight": member.weight,
                "probability": chance,
                "observed": member.observed,
                "observed_rollouts": member.rollouts,
            }
            for member, chance in zip(members, chances, strict=True)
        ]
        self._record_population(rows, trajectories, record)
        return {
            "inspo/population_size": float(len(members)),
            "inspo/best_weight": self.choice().weight,
            "inspo/mean_weight": fmean(m.weight for m in members),
            "inspo/entropy": -sum(p * math.log(p) for p in chances if p > 0),
            "inspo/instruction_chars_mean": fmean(len(m.instruction.text) for m in members),
        }

    def _notice_if_short(self, record: Recorder) -> None:
        size = len(self.population)
        full_size = self.options.population_size
        if size < full_size:
            record("notice", text=f"population of {size} instead of {full_size} instructions")

    def _notice_if_few_questions(
        self, trajectories: Sequence[Trajectory], record: Recorder
    ) -> None:
        """Record a notice in the first step if a weight, a mean over steps, rests on few questions."""
        questions = len({t.assignment.group for t in trajectories})
        if questions < _LEAST_QUESTIONS and self.options.population_size > 1:
            record(
                "notice",
                text=f"{questions} questions a step, so an instruction's weight rests on {self.options.window} "
                f"steps of few rollouts: raise the questions of a step to {_LEAST_QUESTIONS} or more, or "
                "strategy.window, prune_every and evolve_every",
            )

    def _notice_if_few_left(self, count: int, step: int, record: Recorder) -> None:
        """Record a notice if provenance left fewer questions to verify on than the buffer has."""
        full_count = min(self.options.verification_tasks, len(self._replay.tasks()))
        if count < full_count:
            record(
                "notice",
                text=f"verification on {count} instead of {full_count} questions before step {step}: "
                "the authors of the candidates were shown the others",
            )

    def state_dict(self) -> State:
        return super().state_dict() | {
            "population": self.population.state_dict(),
            "replay": self._replay.state_dict(),
            "health": self._account.state_dict(),
            "trial": self._trial and self._trial.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.population.load_state_dict(state["population"])
        self._replay.load_state_dict(state["replay"], self._tasks)
        self._account.load_state_dict(state["health"])
        if trial := state.get("trial"):
            self._trial = Trial.restore(trial, self.population.restore_member)


def _record_gone(members: Sequence[Member], cause: str, record: Recorder) -> None:
    for member in members:
        record_gone(member.id, member.weight, member.rollouts, cause, record)


# ---- the method's entry in the registry


def cost(options: InspoOptions, shape: RunShape) -> Cost:
    """Bound the verification rollouts and the proposals: t mod K_e = 0 with t < T_e and t before the last stage."""
    every = options.evolve_every
    last = min(options.evolve_until, shape.steps - options.distil_steps)
    phases = len(range(every, last, every)) if options.evolves else 0
    rounds = options.verification_rounds
    rows = options.verification_tasks * (options.candidates + 1)  # plus their parent
    failures = options.failures_per_reflection if options.proposer == "reflection" else 0
    verify: dict[Purpose, int] = {}
    if options.verification == "full":
        verify["verify"] = phases * rounds * rows
    calls = (1 + phases) * rounds
    validations = 1 + options.checks_uplift
    return Cost(phases, verify, calls, failures, validations, options.population_size - 1)


METHOD = Method(
    options=InspoOptions,
    build=Inspo,
    label="INSPO",
    about="instructions and policy together",
    evolves="instruction",
    check=lambda options, shape: check_last_stage(options.distil_steps, shape),
    cost=cost,
    schedule=lambda options: (
        f"one comes every evolve_every, {options.evolve_every}, steps" if options.evolves else ""
    ),
    distillation=lambda options: options.weighting,
)
