"""An offline stand-in for the proposing LLM: rules that read the proposers' prompts.

`RulesLLM` is for worlds made for experiments, and for tests. It is not a language model. It reads the prompt
text that a model would get (INSPO's `<ins_0>` and `<example>`, GEPA's examples), and has the rules of a
world write instructions or hints in the expected reply format. It knows nothing but its world, so a result
obtained with it shows how the training loop behaves, not how well an LLM reflects.
"""

import random
import re
from dataclasses import replace

from cotune.errors import LLMError
from cotune.methods.fst import ABOUT_AN_AGENT
from cotune.methods.inspo.proposers import KEEP
from cotune.types import Completion
from cotune.worlds.remedies import RULES, Example, Rules

_MARK = "I provided an assistant with the following instructions"
_EXAMPLE = re.compile(
    r"^# Example \d+\n## Inputs\n(.*?)\n## Generated Outputs\n(.*?)\n## Feedback\n(.*?)(?=^# Example|\Z|\n```)",
    re.DOTALL | re.MULTILINE,
)
_ENDED = re.compile(r"The response was ended by: ([^.]*)\.")
_KEEP_LINE = re.compile(rf"^{re.escape(KEEP)} .*\n", re.MULTILINE)
_FAILURE = re.compile(
    r"Question:(?P<question>.*?)\nResponse:(?P<response>.*?)(\nCorrect answer:(?P<answers>[^\n]*))?"
    r"(\nFeedback:.*)?",
    re.DOTALL,
)


def is_gepa_prompt(prompt: str) -> bool:
    """Return whether a prompt is GEPA's (`gepa.strategies.instruction_proposal`)."""
    return prompt.startswith(_MARK)


def read_examples(prompt: str) -> list[Example]:
    """Return the examples of one of GEPA's prompts, or the failed ones of one of INSPO's."""
    if is_gepa_prompt(prompt):
        blocks = [[part.strip() for part in match] for match in _EXAMPLE.findall(prompt)]
        return [Example(question, response, feedback=text) for question, response, text in blocks]
    blocks = re.findall(r"<example>\s*(Question:.*?)\n</example>", prompt, re.DOTALL)
    return [
        Example(
            match["question"].strip(),
            match["response"].strip(),
            tuple(a.strip() for a in (match["answers"] or "").split("|")),
        )
        for match in map(_FAILURE.fullmatch, blocks)
        if match
    ]


class RulesLLM:
    """Write instructions and hints by rule; deterministic for a seed and a prompt.

    Args:
        seed: seed of the draws.
        rules: the rules of a world; the default are those of `ladder`.
    """

    def __init__(self, seed: int = 0, rules: Rules = RULES) -> None:
        self.seed = seed
        self._rules = rules

    def rules_for(self, *, question: str = "", instruction: str = "") -> Rules:
        """Return the rules for a failed question, or for an instruction that is paraphrased."""
        return self._rules

    def complete(self, prompt: str) -> Completion:
        """Reply to a prompt of INSPO's proposers, or to GEPA's for a hint or an instruction.

        Raises:
            LLMError: any other prompt, or one that shows nothing to reflect on.
        """
        # The rules keep their parent's text, so the line on required texts changes nothing.
        rng = random.Random(f"rules/{self.seed}/{_KEEP_LINE.sub('', prompt)}")
        if is_gepa_prompt(prompt):
            return Completion(self._reply_to_gepa(prompt, rng))
        return Completion(self._propose(prompt, rng))

    def _reply_to_gepa(self, prompt: str, rng: random.Random) -> str:
        failed = [e for e in read_examples(prompt) if not e.feedback.startswith("Correct")]
        current = re.search(r"```\n(.*?)\n```", prompt, re.DOTALL)
        if not failed:
            raise LLMError("the rules found no failed example to reflect on")
        if current is None:
            raise LLMError("the rules found no current instruction in the reflection prompt")
        rules = self.rules_for(question=failed[0].question)
        text = current[1].strip()
        if ABOUT_AN_AGENT in prompt:
            critique, write = rules.reflect(text, [_with_end(example) for example in failed])
            text = " ".join(write(rng))
        else:
            critique, text = rules.write_hint(text, failed, rng)
        return f"{critique}\n\n```\n{text}\n```".lstrip()

    def _propose(self, prompt: str, rng: random.Random) -> str:
        """Reply to a prompt of `methods.inspo.proposers`."""
        count = re.search(r"\b[Gg]ive (\d+) different", prompt)
        parent = re.search(r"<ins_0>\s*(.*?)\s*</ins_0>", prompt, re.DOTALL)
        if count is None or parent is None:
            raise LLMError("RulesLLM reads the proposers' prompts only; configure `llm` for others")
        if examples := read_examples(prompt):
            rules = self.rules_for(question=examples[0].question)
            critique, write = rules.reflect(parent[1], examples)
        else:
            critique = ""
            write = self.rules_for(instruction=parent[1]).paraphrase(parent[1])
        candidates = [" ".join(write(rng)) for _ in range(int(count[1]))]
        body = "\n\n".join(f"<ins_{i}>\n{c}\n</ins_{i}>" for i, c in enumerate(candidates, 1))
        return f"{critique}\n\n{body}".strip()


def _with_end(example: Example) -> Example:
    """Return one of GEPA's examples as INSPO's show it: the response says what ended it."""
    ends = [f"\n[stopped: {how}]" for how in _ENDED.findall(example.feedback)]
    return replace(example, response="".join((example.response, *ends)))
