"""The two sides of a phase of text evolution: the policy that is judged, the LLM that reflects."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence

from cotune.errors import BudgetError, LLMError
from cotune.methods.inspo.replay import shorten_middle
from cotune.methods.p2o.hard_samples import SOLVED_AT
from cotune.protocols import LLM, Recorder, Rollout
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory

Record = Mapping[str, str]
"""One example as gepa's reflection prompt shows it: headings and what stands under them."""

_RESPONSE_CHARS = 6000
_MOST_REASONS = 5


class Judge:
    """The current policy under candidate texts, greedily, one rollout for each text and question.

    Args:
        prompt: what the policy is told where a text is the candidate.

    Attributes:
        evaluations: rollouts made so far.
    """

    def __init__(self, prompt: Callable[[str], Prompt], rollout: Rollout) -> None:
        self._prompt, self._rollout = prompt, rollout
        self._met: dict[str, Task] = {}
        self.evaluations = 0

    def evaluate(self, items: Sequence[tuple[str, Sequence[Task]]]) -> list[list[Trajectory]]:
        """The trajectories of each (text, questions), all made in one rollout call."""
        pairs = [(self._prompt(text), task) for text, tasks in items for task in tasks]
        assignments = [Assignment(task, p, p, "", i) for i, (p, task) in enumerate(pairs)]
        done = self._rollout(assignments, purpose="evolve", greedy=True)
        if len(done) != len(assignments):
            raise ValueError(f"{len(done)} trajectories came; expected {len(assignments)}")
        self.evaluations += len(done)
        self._met.update((task.id, task) for _, task in pairs)
        rest = iter(done)
        return [[next(rest) for _ in tasks] for _, tasks in items]

    def met(self) -> Iterable[Task]:
        """The questions that were rolled out, each once."""
        return self._met.values()


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


def fenced_text(reply: str) -> str:
    """What stands within the ``` blocks of a reply, by gepa's own extraction; never raises."""
    from gepa.strategies.instruction_proposal import InstructionProposalSignature

    return InstructionProposalSignature.output_extractor(reply.strip())["new_instruction"]


class Reflector(ABC):
    """Asks the LLM for texts in gepa's words, one question each, and keeps account of the replies.

    Attributes:
        asked: questions put to the LLM.
        proposed: replies that came.
        lawful: those that keep to the contract.
        reasons: why the others do not, or why none came; each once, five at most.
        spent: whether the LLM's budget is; nothing more is asked then.
    """

    def __init__(self, llm: LLM, record: Recorder) -> None:
        self._llm, self._record = llm, record
        self._tried: list[str] = []
        self.asked = self.proposed = self.lawful = 0
        self.reasons: list[str] = []
        self.spent = False

    def propose(self, parent: str, examples: Sequence[Record]) -> str | None:
        """A lawful text; None where the call failed or the reply breaks the contract.

        A failed call is recorded as "proposal_failed".
        """
        prompt = self._prompt(parent, examples)
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
        text = self._read(reply)
        reason = self._broken(text, parent)
        if reason is not None:
            self._blame(f"broke the contract: {reason}")
            self._reject(text, parent, reason)
            return None
        self.lawful += 1
        self._tried.append(text)
        return text

    @abstractmethod
    def _prompt(self, parent: str, examples: Sequence[Record]) -> str:
        """What the LLM is asked."""

    @abstractmethod
    def _read(self, reply: str) -> str:
        """The text of a reply; never raises."""

    @abstractmethod
    def _broken(self, text: str, parent: str) -> str | None:
        """Why a text breaks the contract; None where it does not."""

    @abstractmethod
    def _reject(self, text: str, parent: str, reason: str) -> None:
        """Records that a text breaks the contract."""

    def _blame(self, reason: str) -> None:
        if reason not in self.reasons and len(self.reasons) < _MOST_REASONS:
            self.reasons.append(reason)
