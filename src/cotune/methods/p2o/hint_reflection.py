"""The LLM that reflects on hints, asked in gepa's own words."""

from collections.abc import Sequence

from cotune.methods.gepa.reflection import Record, Reflector, fenced_text
from cotune.methods.inspo.proposers import surroundings
from cotune.methods.p2o.hint_rules import HintRules
from cotune.protocols import LLM, Recorder
from cotune.types import Task


def read_hint(reply: str) -> str:
    """The hint of a reply: gepa's own extraction from what follows the reasoning; never raises.

    A reply that was cut off within its reasoning is returned whole, so that the contract rejects
    it; gepa's extraction would take a draft from the middle of the reasoning.
    """
    said = reply.strip()
    if said.startswith("<think>"):
        _, closed, said = said.partition("</think>")
        if not closed:
            return reply.strip()
    return fenced_text(said)


class HintReflector(Reflector):
    """Asks for hints by gepa's prompt.

    Args:
        tasks: the hard questions, whose answers and solutions no hint may hold.
        instruction: what the policy is told beside the hint.
        description: what the LLM is told of the environment, before gepa's prompt.
    """

    def __init__(
        self,
        llm: LLM,
        rules: HintRules,
        tasks: Sequence[Task],
        instruction: str,
        record: Recorder,
        description: str = "",
    ) -> None:
        super().__init__(llm, record)
        self._rules, self._tasks, self._instruction = rules, tasks, instruction
        self._surroundings = surroundings(description)

    def _prompt(self, parent: str, examples: Sequence[Record]) -> str:
        from gepa.strategies.instruction_proposal import InstructionProposalSignature

        prompt = InstructionProposalSignature.prompt_renderer(
            {"current_instruction_doc": parent, "dataset_with_feedback": list(map(dict, examples))}
        )
        assert isinstance(prompt, str)  # it is a list only where examples hold images
        return self._surroundings + prompt

    def _read(self, reply: str) -> str:
        return read_hint(reply)

    def _broken(self, text: str, parent: str) -> str | None:
        return self._rules.check(text, parent, self._tried, self._tasks, self._instruction)

    def _reject(self, text: str, parent: str, reason: str) -> None:
        self._record("hint_rejected", reason=reason, text=text, parent=parent)
