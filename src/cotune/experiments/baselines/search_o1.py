"""Search-o1: agentic search with reason-in-documents (arXiv 2501.05366)."""

import re
from dataclasses import replace

from cotune.environments.search import OUT_OF_TURNS
from cotune.environments.tag_protocol import (
    error_observation,
    failure_observation,
    parse_turn,
    render_information,
)
from cotune.experiments.baselines.base import UNSCORED, Baseline, Found, Steps, ask, search
from cotune.experiments.baselines.chat import Ask
from cotune.types import Prompt, Task, Turn

NOTHING = "No helpful information found."

_CONDENSE = (
    "Read the passages between <information> and </information>, which were found for the search "
    "query below, and write down what in them helps with it and with the reasoning before it. Keep "
    f'to what they say. Begin with "Final Information:"; if nothing helps, write "{NOTHING}"'
)
_FINAL = re.compile(r"\**final information\**\s*:?\**", re.IGNORECASE)


class SearchO1(Baseline):
    """An agent over the tag protocol whose documents are condensed before they enter its reasoning.

    The reasoning is the environment's protocol under the run file's instruction, with one difference:
    a search returns what the model, in a separate request, wrote about the passages (the paper's
    Reason-in-Documents). `limits.turns` bounds the turns of the reasoning.
    """

    description = "agentic search; the model condenses what is found before it continues reasoning"
    retrieves = True

    @property
    def instruction(self) -> str:
        return self.bench.instruction

    def steps(self, task: Task) -> Steps:
        bench = self.bench
        messages = tuple(bench.environment.messages(task, Prompt(self.instruction)))
        reasoning = Ask(messages, bench.environment.stop)
        turns: list[Turn] = []
        for left in reversed(range(self.limits.turns)):
            reply = yield from ask(reasoning)
            parsed = parse_turn(reply.text)
            turn = Turn(reply.text, "", parsed.action, parsed.error)
            if parsed.action == "answer":
                return [*turns, turn]
            if not left:
                return [*turns, replace(turn, error=parsed.error or OUT_OF_TURNS)]
            if parsed.action == "search":
                found = yield from search(parsed.argument)
                turn, *condensed = yield from self._condensed(task, turns, turn, found)
                turns += [turn, *condensed]
                observation = condensed[0].observation if condensed else turn.observation
            else:
                observation = error_observation(parsed.error)
                turns.append(replace(turn, observation=observation))
            reasoning = replace(reasoning, written=(*reasoning.written, (reply, observation)))
            if bench.chat.size(reasoning) > bench.chat.room:
                return turns
        return turns

    def _condensed(self, task: Task, turns: list[Turn], turn: Turn, found: Found) -> Steps:
        """Return the search's turn with its passages, and the turn in which the model condensed them."""
        if found.error or not found.passages:
            nothing = failure_observation() if found.error else render_information(())
            return [replace(turn, observation=nothing, error=found.error)]
        before = "".join(t.text for t in [*turns, turn] if t.action not in UNSCORED)
        query = parse_turn(turn.text).argument
        rest = f"Search query: {query}\n\nReasoning before it: {before}"
        reply = yield from ask(self.prompt(task, _CONDENSE, found.passages, rest))
        condensed = final_information(reply.text) or NOTHING
        return [
            replace(turn, observation=render_information(found.passages)),
            Turn(reply.text, render_information([condensed]), "condense"),
        ]


def final_information(text: str) -> str:
    """Return the text after the last "Final Information", or all of it; stripped.

    >>> final_information("Two helped. **Final Information:** Kota Tinggi is in Malaysia.")
    'Kota Tinggi is in Malaysia.'
    """
    return _FINAL.split(text)[-1].strip()
