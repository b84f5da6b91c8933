"""The generate-and-verify loop that writes new instructions (INSPO, Algorithm 1, lines 18-22)."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cotune.methods.inspo.proposers import (
    Proposal,
    Proposals,
    ProposerKind,
    history_prompt,
    paraphrase_prompt,
    reflection_prompt,
)
from cotune.methods.inspo.replay import ReplayBuffer
from cotune.methods.inspo.verification import Candidate, accept, verify
from cotune.methods.instruction_rules import InstructionRules
from cotune.protocols import LLM, Recorder, Rollout, State
from cotune.types import Instruction, Task

if TYPE_CHECKING:
    from cotune.methods.inspo.inspo import InspoOptions


@dataclass(frozen=True, slots=True)
class Generation:
    """The result of a phase.

    Attributes:
        accepted: at most the number of candidates wanted, in order of acceptance.
        rounds: number of proposals requested.
        proposed: candidates read from the replies.
        verified: candidates rolled out.
    """

    accepted: tuple[Candidate, ...] = ()
    rounds: int = 0
    proposed: int = 0
    verified: int = 0


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
        self._rules, self._replay, self._options = rules, replay, options
        self._seed, self._description = seed, description
        self._proposals = Proposals()

    def generate(
        self,
        parents: Sequence[Instruction],
        wanted: int,
        proposer: ProposerKind,
        *,
        step: int,
        llm: LLM,
        rollout: Rollout | None,
        record: Recorder,
        history: Sequence[tuple[str, float]] = (),
        origin: str = "",
        last: bool = False,
        affordable: int | None = None,
    ) -> Generation:
        """Run rounds until `wanted` candidates are accepted or the rounds are spent.

        One parent a round, drawn uniformly. A round whose call fails is the last one.

        Args:
            step: the step before which this happens; 0 at the start. Keys the draws.
            rollout: the current policy; None to accept without verification.
            history: (instruction, score from 0 to 100), worst first, for the history proposer.
            origin: label of the candidates' origin; the proposer's kind if empty.
            last: whether this is the run's last phase.
            affordable: rollouts that may be spent on verification; None is no limit. A round that
                could exceed it does not start.

        Raises:
            EvolutionError: all proposals of two phases in a row failed, or of the only one.
        """
        accepted: list[Candidate] = []
        tried = [parent.text for parent in parents]
        rounds = proposed = verified = paid = 0
        while len(accepted) < wanted and rounds < self._options.verification_rounds:
            rng = random.Random(f"inspo/{self._seed}/generate/{step}/{rounds}")
            parent = rng.choice(parents)
            prompt = self._prompt(proposer, parent, history, rounds + 1, rng)
            tasks = self._replay.recent_tasks(self._options.verification_tasks, rng)
            left = None if affordable is None else affordable - paid
            wanting = self._wanting(prompt, tasks if rollout is not None else None, left)
            if prompt is None or wanting:
                record("notice", text=f"{wanting} before step {step}")
                break
            rounds += 1
            proposal = self._proposals.ask(prompt, llm, record, self._options.candidates)
            if proposal is None:
                break
            proposed += len(proposal.candidates)
            name = f"c{step}.{rounds}"
            candidates = self._valid_drafts(
                proposal, parent, origin or proposer, name, tried, record
            )
            tried += [c.text for c in candidates]
            if rollout is not None and candidates:
                candidates = verify(candidates, parent, tasks, rollout)
                verified += len(candidates)
                paid += (len(candidates) + 1) * len(tasks)
            best, rejected = accept(candidates, wanted - len(accepted))
            accepted += best
            for candidate, reason in rejected:
                _record_rejected(candidate, reason, record)
        if rounds:
            self._proposals.end_phase(llm, record, last)
        return Generation(tuple(accepted), rounds, proposed, verified)

    def _wanting(
        self, prompt: str | None, verified_on: Sequence[Task] | None, left: int | None
    ) -> str:
        """Return why a round cannot start; "" if it can.

        Args:
            prompt: the prompt for the LLM; None if there is none.
            verified_on: number of verification questions; None without verification.
            left: rollouts that it may cost; None is no limit.
        """
        if prompt is None or (verified_on is not None and not verified_on):
            return "no experience to learn from"
        if verified_on is None or left is None:
            return ""
        most = (self._options.candidates + 1) * len(verified_on)  # plus their parent
        return "too few rollouts are left to verify" if most > left else ""

    def _prompt(
        self,
        proposer: ProposerKind,
        parent: Instruction,
        history: Sequence[tuple[str, float]],
        attempt: int,
        rng: random.Random,
    ) -> str | None:
        """Return the prompt; None if there is no experience to learn from."""
        how = (self._options.candidates, attempt, self._description)
        if proposer == "paraphrase":
            return paraphrase_prompt(parent.text, *how)
        if proposer == "history":
            return history_prompt(history, self._rules.original, *how) if history else None
        failures = self._replay.failures(self._options.failures_per_reflection, rng)
        if not failures:
            return None
        return reflection_prompt(parent.text, failures, *how)

    def _valid_drafts(
        self,
        proposal: Proposal,
        parent: Instruction,
        origin: str,
        name: str,
        others: Sequence[str],
        record: Recorder,
    ) -> list[Candidate]:
        """Return the candidates that meet the contract, each different from all before it."""
        questions, seen = self._replay.tasks(), list(others)
        valid: list[Candidate] = []
        reasons: list[str] = []
        for number, text in enumerate(proposal.candidates):
            candidate = Candidate(f"{name}.{number}", text, parent.id, origin, proposal.critique)
            reason = self._rules.check(text, parent.text, seen, questions)
            if reason is None:
                valid.append(candidate)
                seen.append(text)
            else:
                reasons.append(reason)
                _record_rejected(candidate, reason, record)
        self._proposals.valid(len(valid), reasons)
        return valid

    def state_dict(self) -> State:
        return self._proposals.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._proposals.load_state_dict(state)


def _record_rejected(candidate: Candidate, reason: str, record: Recorder) -> None:
    fields = asdict(candidate)
    shown = {k: fields[k] for k in ("text", "parent", "origin", "score", "parent_score")}
    record("instruction_rejected", reason=reason, **shown)
