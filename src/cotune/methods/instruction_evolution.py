"""Evolve instructions with GEPA under the current policy: the prompt, and what a search records."""

from collections.abc import Iterable, Sequence

from cotune.methods.contract import TextRules
from cotune.methods.method import Evolution, RunShape
from cotune.methods.proposals import ProposalAccount, record_born, record_rejected, surroundings
from cotune.methods.text_evolution import (
    DevScores,
    Record,
    SearchPlan,
    TextSearch,
    gepa_prompt,
    mean_scores,
)
from cotune.types import Instruction, Prompt

_ORIGIN = "gepa"
_PROGRESS_EVENTS = 20  # within a phase


class InstructionSearch(TextSearch):
    """Evolve instructions from one by GEPA, and record the events.

    Args:
        instructions: all so far, in order of birth; the search starts from one of them.
        description: the environment, described to the LLM.

    Attributes:
        instructions: all instructions, the new ones last.
    """

    def __init__(
        self,
        instructions: Sequence[Instruction],
        description: str,
        plan: SearchPlan,
        evolution: Evolution,
        account: ProposalAccount,
        rules: TextRules,
    ) -> None:
        self.instructions = list(instructions)
        self._about = surroundings(description)
        self._rules = rules
        self._born = evolution.progress.step
        self._ids = {instruction.text: instruction.id for instruction in instructions}
        self._origin = getattr(evolution.llm, "origin", "") or _ORIGIN
        self._before = 0  # rollouts before the search itself
        self._part = -1  # of the budget, when progress was last recorded
        lineage = {instruction.text: instruction.shown for instruction in instructions}
        super().__init__(plan, evolution, account, rules, self._refuse, lineage)

    def run(self, seed: Instruction, last: bool) -> DevScores:
        """Return all texts with their scores, the seed first; the accepted ones join the instructions.

        Args:
            last: whether no other search can follow.

        Raises:
            EngineError, EvolutionError: see `end_phase`.
        """
        self._before = self.evaluations
        budget = self.left
        self.record("gepa_phase", dev=len(self.plan.dev), train=len(self.plan.train), budget=budget)
        scores = self.evolve(seed.text)
        self.end_phase(last)
        means = [*mean_scores(scores).values()]
        self.record(
            "gepa_phase_ended",
            evaluations=self.evaluations - self._before,
            budget=budget,
            asked=self.account.asked,
            proposed=self.account.answered,
            valid=self.account.valid,
            accepted=len(scores) - 1,
            initial_dev_score=means[0],
            best_dev_score=max(means),
        )
        return scores

    def prompt(self, text: str) -> Prompt:
        return Prompt(text)

    def reflection_prompt(self, parent: str, examples: Sequence[Record]) -> str:
        return self._about + instruction_prompt(parent, examples, self._rules.kept_texts)

    def record_accepted(self, text: str, parent: str, score: float, parent_score: float) -> None:
        draft = self.drafts[text]
        instruction = Instruction(
            id=f"i{len(self.instructions)}",
            text=text,
            parent=self._ids[parent],
            origin=self._origin,
            born=self._born,
            critique=draft.critique,
            shown=tuple(sorted(draft.shown)),
        )
        self.instructions.append(instruction)
        self._ids[text] = instruction.id
        record_born(instruction, self.record, score, parent_score)

    def record_rejected(
        self, text: str, parent: str, score: float, parent_score: float, reason: str
    ) -> None:
        parent_id = self._ids[parent]
        record_rejected(text, parent_id, self._origin, reason, self.record, score, parent_score)

    def _refuse(self, text: str, parent: str, reason: str) -> None:
        record_rejected(text, self._ids[parent], self._origin, reason, self.record)

    def record_progress(self, texts: int, best: float) -> None:
        """Recorded periodically: an iteration may be only six rollouts."""
        evaluations = self.evaluations - self._before
        budget = self.plan.budget - self._before
        part = evaluations * _PROGRESS_EVENTS // budget
        if part == self._part:
            return
        self._part = part
        self.record(
            "gepa_progress",
            evaluations=evaluations,
            budget=budget,
            instructions=texts,
            best_dev_score=best,
        )


def check_budget(budget: int, shape: RunShape, batches: int = 1) -> None:
    """Raise ValueError if a search before step 1 and the batches that must follow it cost too much."""
    batch = 0 if shape.frozen else shape.questions_per_step * shape.group_size
    if shape.rollout_budget is not None and budget + batches * batch > shape.rollout_budget:
        raise ValueError(
            f"strategy.budget is {budget}, and {batches * batch} rollouts must follow, more than "
            f"training.rollout_budget, {shape.rollout_budget}; lower strategy.budget, or raise it"
        )


# ---- the prompt

ABOUT_AN_AGENT = "The assistant is an agent: it may act in several turns"
"""Present in every prompt of this module and in none of gepa's own."""

# gepa's own text, except for the agent and for its advice to put facts of the examples into the
# instruction, which the contract forbids.
_TEMPLATE = f"""I provided an assistant with the following instructions to perform a task for me:
```
<curr_param>
```

{ABOUT_AN_AGENT}, and what its tools returned stands in its responses where it saw it. The following are examples of different task inputs provided to the assistant along with the assistant's response for each of them, and some feedback on how the assistant's response could be better:
```
<side_info>
```

Your task is to write a new instruction for the assistant.

Read the inputs carefully and identify the input format and infer detailed task description about the task I wish to solve with the assistant.

Read all the assistant responses turn by turn with the corresponding feedback: how it planned, what it asked its tools for, what it made of their results, how it gave its answer. First say in a few sentences what went wrong, and what in the instructions allowed it. The assistant may have utilized a generalizable strategy to solve the task, if so, include that in the instruction as well. Write general strategies, never the answers to these examples.
"""


def instruction_prompt(parent: str, examples: Sequence[Record], required: Iterable[str]) -> str:
    """Build the prompt: parent and examples in, critique and one new instruction out.

    Args:
        required: texts that the new instruction must contain.
    """
    prompt = gepa_prompt(parent, examples, prompt_template=_TEMPLATE)
    texts = ", ".join(required)
    keep = (
        f"Keep these texts in the new instruction, letter by letter: {texts}\n\n" if texts else ""
    )
    return f"{prompt}\n{keep}Provide the new instructions within ``` blocks."
