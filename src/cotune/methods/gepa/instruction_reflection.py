"""The LLM that reflects on the instruction of an agent, asked in GEPA's form (arXiv 2507.19457)."""

import re
from collections.abc import Callable, Iterable, Sequence

from cotune.methods.gepa.reflection import Record, Reflector, fenced_text
from cotune.methods.inspo.proposers import surroundings
from cotune.methods.instruction_rules import InstructionRules, protocol_tags
from cotune.methods.p2o.hint_rules import PLACEHOLDERS
from cotune.protocols import LLM, Recorder
from cotune.types import Task

ABOUT_AN_AGENT = "The assistant is an agent: it may act in several turns"
"""In every prompt of this module, in none of gepa's own."""

# gepa's own text but for the agent, and for its advice to put facts of the examples into the
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
_THINK_TAG = re.compile(r"</?think>")
_CRITIQUE_CHARS = 2000


def instruction_prompt(parent: str, examples: Sequence[Record], required: Iterable[str]) -> str:
    """Parent and examples in; critique and one new instruction out.

    Args:
        required: texts that the new instruction must hold.
    """
    from gepa.strategies.instruction_proposal import InstructionProposalSignature

    prompt = InstructionProposalSignature.prompt_renderer(
        {
            "current_instruction_doc": parent,
            "dataset_with_feedback": list(map(dict, examples)),
            "prompt_template": _TEMPLATE,
        }
    )
    assert isinstance(prompt, str)  # it is a list only where examples hold images
    kept = ", ".join(required)
    keep = f"Keep these texts in the new instruction, letter by letter: {kept}\n\n" if kept else ""
    return f"{prompt}\n{keep}Provide the new instructions within ``` blocks."


def read_instruction(reply: str) -> tuple[str, str]:
    """(critique, instruction) of a reply; never raises.

    The critique is what stands before the first block. A reply that was cut off within its
    reasoning is returned whole as the instruction, so that the contract rejects it.
    """
    said = _after_reasoning(reply.strip())
    if said is None:
        return "", reply.strip()
    critique, fence, _ = said.partition("```")
    return critique.strip()[:_CRITIQUE_CHARS] if fence else "", fenced_text(said)


def _after_reasoning(reply: str) -> str | None:
    """The reply after its leading think block; None where that is not closed.

    Tags are counted: reasoning may itself speak of "<think> and </think>".
    """
    if not reply.startswith("<think>"):
        return reply
    depth = 0
    for tag in _THINK_TAG.finditer(reply):
        depth += 1 if tag.group() == "<think>" else -1
        if depth == 0:
            return reply[tag.end() :].strip()
    return None


class InstructionReflector(Reflector):
    """Asks for instructions.

    Args:
        rules: the contract of an instruction.
        met: the questions so far, whose answers no instruction may bring in.
        reject: records what breaks the contract: text, parent, reason.
        description: what the LLM is told of the environment.

    Attributes:
        critiques: by lawful instruction, what the LLM said before it.
    """

    def __init__(
        self,
        llm: LLM,
        rules: InstructionRules,
        met: Callable[[], Iterable[Task]],
        reject: Callable[[str, str, str], None],
        record: Recorder,
        description: str = "",
    ) -> None:
        super().__init__(llm, record)
        self._rules, self._met, self._reject_text = rules, met, reject
        self._surroundings = surroundings(description)
        self._tried.append(rules.original)
        self._critique = ""
        self.critiques: dict[str, str] = {}

    def _prompt(self, parent: str, examples: Sequence[Record]) -> str:
        kept = dict.fromkeys((*protocol_tags(self._rules.original), *self._rules.required))
        return self._surroundings + instruction_prompt(parent, examples, kept)

    def _read(self, reply: str) -> str:
        self._critique, text = read_instruction(reply)
        return text

    def _broken(self, text: str, parent: str) -> str | None:
        if placed := [p for p in PLACEHOLDERS if p in text]:
            return f"holds {', '.join(placed)}, which only the reflection prompt may"
        reason = self._rules.check(text, parent, self._tried, self._met())
        if reason is None:
            self.critiques[text] = self._critique
        return reason

    def _reject(self, text: str, parent: str, reason: str) -> None:
        self._reject_text(text, parent, reason)
