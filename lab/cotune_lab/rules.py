"""The offline rules for the lab's worlds, in an LLM's place: `llm: cotune_lab.rules:Rules` in a run file."""

import re

from cotune import RulesLLM
from cotune.worlds import rules_llm
from cotune.worlds.rules_llm import Rules as WorldRules
from cotune_lab.worlds import arithmetic_rules, bank_rules, geo_rules, scaffold_rules

_LADDER = re.compile(r"\d \+ \d+ [+-] \d")
"""A question of the world `ladder`."""


class Rules(RulesLLM):
    """`cotune.RulesLLM`, which tells the lab's worlds and `ladder` by their questions and instructions."""

    def rules_for(self, *, question: str = "", instruction: str = "") -> WorldRules:
        """Return the rules of the world that a question or an instruction belongs to."""
        if rules := bank_rules.rules_of(question, instruction):
            return rules
        if _LADDER.search(question):
            return rules_llm.RULES
        if arithmetic_rules.kind_of(question) or arithmetic_rules.advises(instruction):
            return arithmetic_rules.RULES
        if scaffold_rules.knows(question) or scaffold_rules.owns(instruction):
            return scaffold_rules.RULES
        return rules_llm.RULES if "\\boxed" in instruction else geo_rules.RULES
