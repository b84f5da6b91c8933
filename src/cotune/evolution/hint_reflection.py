"""The two sides of a phase of hint evolution: the policy that is judged, the LLM that reflects."""

from collections.abc import Mapping, Sequence

from cotune.contracts import LLM, BudgetError, LLMError, Recorder, Rollout
from cotune.evolution.hard_samples import SOLVED_AT
from cotune.evolution.hint_rules import HintRules
from cotune.evolution.replay import shorten_middle
from cotune.records import Assignment, Prompt, StopReason, Task, Trajectory

Record = Mapping[str, str]
"""One example as gepa's reflection prompt shows it: headings and what stands under them."""

_RESPONSE_CHARS = 6000
_MOST_REASONS = 5


class Judge:
    """The current policy under hints, greedily, one rollout for each hint and question.

    Args:
        instruction: what stands around every question beside the hint.

    Attributes:
        evaluations: rollouts made so far.
    """

    def __init__(self, instruction: str, rollout: Rollout) -> None:
        self._instruction, self._rollout = instruction, rollout
        self.evaluations = 0

    def evaluate(self, items: Sequence[tuple[str, Sequence[Task]]]) -> list[list[Trajectory]]:
        """The trajectories of each (hint, questions), all made in one rollout call."""
        pairs = [(Prompt(self._instruction, hint), task) for hint, tasks in items for task in tasks]
        assignments = [Assignment(task, p, p, "", i) for i, (p, task) in enumerate(pairs)]
        done = self._rollout(assignments, purpose="evolve", greedy=True)
        if len(done) != len(assignments):
            raise ValueError(f"{len(done)} trajectories came; expected {len(assignments)}")
        self.evaluations += len(done)
        rest = iter(done)
        return [[next(rest) for _ in tasks] for _, tasks in items]


def feedback(trajectory: Trajectory, show_answers: bool) -> str:
    """What was wrong, the answer or its form, for the reflector; the truth only if it is shown."""
    if trajectory.reward >= SOLVED_AT:
        return "Correct."
    if trajectory.answer is None:
        said = ["Wrong: no final answer in the expected format was found."]
    else:
        said = [f"Wrong: the final answer {trajectory.answer} is not correct."]
    if trajectory.stop is not StopReason.ANSWERED:
        said.append(f"The response was ended by: {trajectory.stop.value}.")
    if errors := list(dict.fromkeys(turn.error for turn in trajectory.turns if turn.error)):
        said.append(f"Errors on the way: {'; '.join(errors)}.")
    if show_answers and trajectory.task.answers:
        said.append(f"The correct answer is {' or '.join(trajectory.task.answers)}.")
    return " ".join(said)


def example(trajectory: Trajectory, show_answers: bool) -> Record:
    """A rollout as the reflector sees it, in the form gepa recommends."""
    return {
        "Inputs": trajectory.task.question,
        "Generated Outputs": shorten_middle(trajectory.full_text, _RESPONSE_CHARS),
        "Feedback": feedback(trajectory, show_answers),
    }


def read_hint(reply: str) -> str:
    """The hint of a reply: gepa's own extraction from what follows the reasoning; never raises.

    A reply that was cut off within its reasoning is returned whole, so that the contract rejects
    it; gepa's extraction would take a draft from the middle of the reasoning.
    """
    from gepa.strategies.instruction_proposal import InstructionProposalSignature

    said = reply.strip()
    if said.startswith("<think>"):
        _, closed, said = said.partition("</think>")
        if not closed:
            return reply.strip()
    return InstructionProposalSignature.output_extractor(said.strip())["new_instruction"]


class Reflector:
    """Asks the LLM for hints in gepa's words, one question each, and keeps account of the replies.

    Args:
        tasks: the hard questions, whose answers and solutions no hint may hold.
        instruction: what the policy is told beside the hint.

    Attributes:
        asked: questions put to the LLM.
        proposed: replies that came.
        lawful: those that keep to the contract.
        reasons: why the others do not, or why none came; each once, five at most.
        spent: whether the LLM's budget is; nothing more is asked then.
    """

    def __init__(
        self,
        llm: LLM,
        rules: HintRules,
        tasks: Sequence[Task],
        instruction: str,
        record: Recorder,
    ) -> None:
        self._llm, self._rules, self._record = llm, rules, record
        self._tasks, self._instruction = tasks, instruction
        self._tried: list[str] = []
        self.asked = self.proposed = self.lawful = 0
        self.reasons: list[str] = []
        self.spent = False

    def propose(self, parent: str, examples: Sequence[Record]) -> str | None:
        """A lawful hint; None where the call failed or the reply breaks the contract.

        Recorded as "proposal_failed" and "hint_rejected".
        """
        from gepa.strategies.instruction_proposal import InstructionProposalSignature

        prompt = InstructionProposalSignature.prompt_renderer(
            {"current_instruction_doc": parent, "dataset_with_feedback": list(map(dict, examples))}
        )
        assert isinstance(prompt, str)  # it is a list only where examples hold images
        if self.spent:
            return None
        self.asked += 1
        try:
            reply = self._llm.complete(prompt).text
        except (LLMError, BudgetError) as error:
            self.spent = isinstance(error, BudgetError)
            reason = f"{type(error).__name__}: {error}"
            self._blame(reason)
            self._record("proposal_failed", reason=reason)
            return None
        self.proposed += 1
        hint = read_hint(reply)
        reason = self._rules.check(hint, parent, self._tried, self._tasks, self._instruction)
        if reason is not None:
            self._blame(f"broke the contract: {reason}")
            self._record("hint_rejected", reason=reason, text=hint, parent=parent)
            return None
        self.lawful += 1
        self._tried.append(hint)
        return hint

    def _blame(self, reason: str) -> None:
        if reason not in self.reasons and len(self.reasons) < _MOST_REASONS:
            self.reasons.append(reason)
