"""The generate-and-verify loop that writes new instructions (INSPO, Algorithm 1, lines 18-22)."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from cotune.methods.inspo.proposers import (
    Proposal,
    ProposalAccount,
    ProposerKind,
    history_prompt,
    paraphrase_prompt,
    reflection_prompt,
)
from cotune.methods.inspo.replay import Experience, ReplayBuffer
from cotune.methods.inspo.verification import Candidate, accept, verify
from cotune.methods.instruction_rules import InstructionRules
from cotune.methods.llm_health import reads_prompts
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
        saved: rollouts that full verification would have cost in addition.
    """

    accepted: tuple[Candidate, ...] = ()
    rounds: int = 0
    proposed: int = 0
    verified: int = 0
    saved: int = 0


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to the LLM.

    Attributes:
        provenance: ids of the questions that the author of the replies, or an ancestor's, was shown.
        tasks: the questions that the prompt shows.
    """

    prompt: str
    provenance: tuple[str, ...]
    tasks: tuple[Task, ...] = ()


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
        self._proposals = ProposalAccount()
        races = options.verification == "racing"
        self._error = options.verification_error if races else None

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
        history: Sequence[tuple[Instruction, float]] = (),
        origin: str = "",
        last: bool = False,
        affordable: int | None = None,
    ) -> Generation:
        """Run rounds until `wanted` candidates are accepted or the rounds are spent.

        Each round draws one parent uniformly. A round whose call fails is the last one.

        Args:
            step: the step before which this happens; 0 at the start. Keys the draws.
            rollout: the current policy; None to accept without verification.
            history: (instruction, score from 0 to 100), worst first, for the history proposer. Its
                candidates inherit the provenance of all.
            origin: label of the candidates' origin, unless the LLM has one; the proposer's kind if
                empty.
            last: whether this is the run's last phase.
            affordable: rollouts that may be spent on verification; None: no limit. A round that
                could exceed it does not start.

        Raises:
            EvolutionError: all proposals of two phases in a row failed, or of the only one.
        """
        accepted: list[Candidate] = []
        tried = [parent.text for parent in parents]
        source = getattr(llm, "origin", "") or origin or proposer
        rounds = proposed = verified = paid = saved = 0
        verifies, reads = rollout is not None, reads_prompts(llm)
        while len(accepted) < wanted and rounds < self._options.verification_rounds:
            rng = random.Random(f"inspo/{self._seed}/generate/{step}/{rounds}")
            parent = rng.choice(parents)
            sparing = verifies and reads
            request = self._request(proposer, parent, history, rounds + 1, rng, sparing)
            if request is not None and not reads:
                request = replace(request, provenance=parent.shown)
            shown = request.provenance if request else parent.shown
            tasks = self._replay.recent_tasks(self._options.verification_tasks, rng, shown)
            left = None if affordable is None else affordable - paid
            reason = self._why_not(request, tasks if verifies else None, left)
            if request is None or reason:
                record("notice", text=f"{reason} before step {step}")
                break
            rounds += 1
            proposal = self._proposals.ask(request.prompt, llm, record, self._options.candidates)
            if proposal is None:
                break
            proposed += len(proposal.candidates)
            name = f"c{step}.{rounds}"
            candidates = self._valid_drafts(proposal, parent, source, name, tried, request, record)
            tried += [c.text for c in candidates]
            if rollout is not None and candidates:
                if not verified:
                    self._notice_if_few(len(tasks), step, record)
                vacancies = wanted - len(accepted)
                candidates, spent = verify(
                    candidates, parent, tasks, rollout, vacancies, self._error
                )
                verified += len(candidates)
                paid += spent
                saved += (len(candidates) + 1) * len(tasks) - spent
            best, rejected = accept(candidates, wanted - len(accepted))
            accepted += best
            for candidate, reason in rejected:
                _record_rejected(candidate, reason, record)
        if rounds:
            self._proposals.end_phase(llm, record, last)
        return Generation(tuple(accepted), rounds, proposed, verified, saved)

    def _why_not(
        self, request: _Request | None, verified_on: Sequence[Task] | None, left: int | None
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
        if left is None:
            return ""
        most = (self._options.candidates + 1) * len(verified_on)  # plus their parent
        return "too few rollouts are left to verify" if most > left else ""

    def _notice_if_few(self, left: int, step: int, record: Recorder) -> None:
        """Record a notice if provenance left fewer questions to verify on than the buffer has."""
        wanted = min(self._options.verification_tasks, len(self._replay.tasks()))
        if left < wanted:
            record(
                "notice",
                text=f"verification on {left} instead of {wanted} questions before step {step}: "
                "the authors of the candidates were shown the others",
            )

    def _request(
        self,
        proposer: ProposerKind,
        parent: Instruction,
        history: Sequence[tuple[Instruction, float]],
        attempt: int,
        rng: random.Random,
        sparing: bool,
    ) -> _Request | None:
        """Return the request; None if there is no experience to learn from. `sparing` leaves questions unseen."""
        how = (self._options.candidates, attempt, self._description, self._rules.required)
        if proposer == "paraphrase":
            return _Request(paraphrase_prompt(parent.text, *how), parent.shown)
        if proposer == "history":
            if not history:
                return None
            scored = [(instruction.text, score) for instruction, score in history]
            prompt = history_prompt(scored, self._rules.original, *how)
            return _Request(prompt, _union(parent.shown, *(i.shown for i, _ in history)))
        failures = self._failures(parent, rng, sparing)
        if not failures:
            return None
        own = [failure for failure in failures if failure.instruction_id == parent.id]
        others = [failure for failure in failures if failure.instruction_id != parent.id]
        tasks = tuple(failure.task for failure in failures)
        return _Request(
            reflection_prompt(parent.text, own, *how, others=others),
            _union(parent.shown, (task.id for task in tasks)),
            tasks,
        )

    def _failures(self, parent: Instruction, rng: random.Random, sparing: bool) -> list[Experience]:
        """Draw the failures to show, and keep questions to verify on that the lineage was not shown.

        It keeps `verification_tasks` of them, but at most half of the buffer's questions. If there are no
        more than these, it draws only from questions that were shown before; if none of those failed, it
        keeps just one.
        """
        count, options = self._options.failures_per_reflection, self._options
        if not sparing:
            return self._replay.failures(count, rng, parent.id)
        questions = self._replay.tasks()
        unseen = sum(task.id not in parent.shown for task in questions)
        for kept in (min(options.verification_tasks, (len(questions) + 1) // 2), 1):
            most_new = max(0, unseen - kept)
            if found := self._replay.failures(count, rng, parent.id, parent.shown, most_new):
                return found
        return []

    def _valid_drafts(
        self,
        proposal: Proposal,
        parent: Instruction,
        origin: str,
        name: str,
        others: Sequence[str],
        request: _Request,
        record: Recorder,
    ) -> list[Candidate]:
        """Return the candidates that meet the contract, each different from all before it."""
        seen = list(others)
        valid: list[Candidate] = []
        reasons: list[str] = []
        for number, text in enumerate(proposal.candidates):
            identity, critique = f"{name}.{number}", proposal.critique
            candidate = Candidate(
                identity, text, parent.id, origin, critique, shown=request.provenance
            )
            reason = self._rules.check(text, parent.text, seen, request.tasks)
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


def _union(*ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(chain.from_iterable(ids)))


def _record_rejected(candidate: Candidate, reason: str, record: Recorder) -> None:
    fields = asdict(candidate)
    shown = {k: fields[k] for k in ("text", "parent", "origin", "score", "parent_score")}
    record("instruction_rejected", reason=reason, **shown)
