"""The generate-and-verify loop that writes new instructions (INSPO, Algorithm 1, lines 18-22)."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cotune.methods.contract import InstructionRules
from cotune.methods.inspo.proposers import PROPOSERS, TAGGED, Brief, ProposerKind
from cotune.methods.inspo.replay import Experience, ReplayBuffer
from cotune.methods.inspo.verification import Candidate, accept, race, verify
from cotune.methods.proposals import ProposalAccount, Request, reads_prompts, rejections
from cotune.protocols import LLM, Recorder, Rollout, State
from cotune.types import Instruction, Task

if TYPE_CHECKING:
    from cotune.methods.inspo.inspo import InspoOptions


_UNREWARDED = (
    "verification could not tell candidates from their parent, since no rollout of them was rewarded: the "
    "questions may be too hard for the policy, or the reward may not find its answers"
)


@dataclass(slots=True)
class Generation:
    """What the rounds of a phase have brought.

    Attributes:
        accepted: the new instructions, in order of acceptance.
        rounds: number of proposals requested.
        proposed: candidates read from the replies.
        verified: candidates rolled out.
        paid: rollouts of verification.
        saved: rollouts that full verification would have cost in addition.
    """

    accepted: list[Candidate] = field(default_factory=list[Candidate])
    rounds: int = 0
    proposed: int = 0
    verified: int = 0
    paid: int = 0
    saved: int = 0


class Generator:
    """Write instructions: an LLM proposes, the contract filters, the current policy verifies.

    Args:
        rules: the contract of an instruction.
        replay: the source of failures and of questions to verify on.
        seed: seed of all draws.
        description: the environment, described to the LLM.
    """

    def __init__(
        self,
        rules: InstructionRules,
        replay: ReplayBuffer,
        options: "InspoOptions",
        seed: int,
        description: str,
    ) -> None:
        self._rules = rules
        self._replay = replay
        self._options = options
        self._seed = seed
        self._description = description
        self._account = ProposalAccount("instruction", TAGGED, needed=True)

    def generate(
        self,
        parents: Sequence[Instruction],
        vacancies: int,
        proposer: ProposerKind,
        *,
        step: int,
        llm: LLM,
        rollout: Rollout | None,
        record: Recorder,
        origin: str = "",
        last: bool = False,
        affordable: int | None = None,
    ) -> Generation:
        """Run rounds until `vacancies` candidates are accepted or the rounds are spent.

        A round whose call fails is the last one.

        Args:
            step: the step before which this happens; 0 at the start. Keys the draws.
            rollout: the current policy; None to accept without verification.
            origin: label of the candidates' origin, unless the LLM has one; the proposer's kind if
                empty.
            last: whether this is the run's last phase.
            affordable: rollouts that may be spent on verification; None: no limit. A round that
                could exceed it does not start.

        Raises:
            EvolutionError: all proposals of two phases in a row failed, or of the only one.
        """
        options = self._options
        account = self._account
        source = getattr(llm, "origin", "") or origin or proposer
        ids = {parent.text: parent.id for parent in parents}
        reject = rejections(record, ids, source)
        account.begin(llm, record, self._rules.check, reject, tried=ids)
        phase = Generation()
        # Line 18: until the population is full.
        while len(phase.accepted) < vacancies and phase.rounds < options.verification_rounds:
            rng = random.Random(f"inspo/{self._seed}/generate/{step}/{phase.rounds}")
            # Line 19: sample a parent, failures of it and questions to verify on from the replay buffer.
            parent = rng.choice(parents)
            spares_questions = rollout is not None and reads_prompts(llm)
            reads_failures = proposer == "reflection"
            failures = self._failures(parent, rng, spares_questions) if reads_failures else []
            form = (options.candidates, phase.rounds + 1, self._description, self._rules.required)
            request = PROPOSERS[proposer](Brief(parent=parent, failures=failures, form=form))
            shown_ids = request.provenance(llm) if request else parent.shown
            tasks = self._replay.recent_tasks(options.verification_tasks, rng, shown_ids)
            left = None if affordable is None else affordable - phase.paid
            obstacle = self._obstacle(request, tasks if rollout else None, left)
            if request is None or obstacle:
                record("notice", text=f"{obstacle} before step {step}")
                break
            # Line 20: the LLM generates new instructions; the contract filters them.
            phase.rounds += 1
            drafts = account.ask(request, options.candidates)
            if drafts is None:
                break
            candidates = [
                Candidate(
                    f"c{step}.{phase.rounds}.{draft.number}", draft.text, parent.id, source,
                    draft.critique, shown=draft.shown,
                )
                for draft in drafts
            ]  # fmt: skip
            # Line 21: verify them, take the best, and add them to the population.
            open_places = vacancies - len(phase.accepted)
            if rollout is not None and candidates:
                if not phase.verified:
                    self._notice_if_few(len(tasks), step, record)
                candidates, paid = self._verify(candidates, parent, tasks, rollout, open_places)
                phase.verified += len(candidates)
                phase.paid += paid
                phase.saved += (len(candidates) + 1) * len(tasks) - paid
                if all(candidate.unrewarded for candidate in candidates):
                    record("notice", text=f"{_UNREWARDED} before step {step}")
            best, rejected = accept(candidates, open_places)
            phase.accepted += best
            for c, reason in rejected:
                reject(c.text, parent.text, reason, c.score, c.parent_score)
        phase.proposed = account.proposed
        if phase.rounds:
            account.end_phase(last)
        return phase

    def _verify(
        self,
        candidates: Sequence[Candidate],
        parent: Instruction,
        tasks: Sequence[Task],
        rollout: Rollout,
        vacancies: int,
    ) -> tuple[list[Candidate], int]:
        if self._options.verification == "racing":
            return race(candidates, parent, tasks, rollout, vacancies)
        return verify(candidates, parent, tasks, rollout)

    def _obstacle(
        self, request: Request | None, verified_on: Sequence[Task] | None, left: int | None
    ) -> str:
        """Return why a round cannot start; "" if it can. `verified_on` is None without verification."""
        if request is None or (verified_on is not None and not len(self._replay)):
            return "no experience to learn from"
        if verified_on is None:
            return ""
        if not verified_on:
            return (
                "every question in the buffer was shown to the candidates' authors, so none is left to "
                "verify on"
            )
        rollouts_at_most = (self._options.candidates + 1) * len(verified_on)  # plus their parent
        return (
            "too few rollouts are left to verify"
            if left is not None and rollouts_at_most > left
            else ""
        )

    def _notice_if_few(self, count: int, step: int, record: Recorder) -> None:
        """Record a notice if provenance left fewer questions to verify on than the buffer has."""
        usual = min(self._options.verification_tasks, len(self._replay.tasks()))
        if count < usual:
            record(
                "notice",
                text=f"verification on {count} instead of {usual} questions before step {step}: "
                "the authors of the candidates were shown the others",
            )

    def _failures(
        self, parent: Instruction, rng: random.Random, spares_questions: bool
    ) -> list[Experience]:
        """Draw the failures to show, and spare questions to verify on, which the lineage was not shown.

        It spares `verification_tasks` of them, but at most half of the buffer's questions. If there are no
        more than these, it draws only from questions that were shown before; if none of those failed, it
        spares just one.
        """
        count = self._options.failures_per_reflection
        options = self._options
        if not spares_questions:
            return self._replay.failures(count, rng, parent.id)
        questions = self._replay.tasks()
        unseen = sum(task.id not in parent.shown for task in questions)
        for spared in (min(options.verification_tasks, (len(questions) + 1) // 2), 1):
            most_new = max(0, unseen - spared)
            if failures := self._replay.failures(count, rng, parent.id, parent.shown, most_new):
                return failures
        return []

    def state_dict(self) -> State:
        return {"health": self._account.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._account.load_state_dict(state["health"])
