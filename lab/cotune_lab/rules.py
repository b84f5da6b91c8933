"""The offline rules for the lab's worlds, in an LLM's place: `llm: cotune_lab.rules:Rules` in a run file."""

from collections.abc import Sequence

from cotune import RulesLLM
from cotune.worlds.remedies import Rules as WorldRules
from cotune_lab.worlds import arithmetic_rules, bank_rules, scaffold_rules


class Rules(RulesLLM):
    """`cotune.RulesLLM`, which knows the worlds of the lab as well."""

    def rules_for_question(self, question: str) -> WorldRules | None:
        """Return the rules of the world that a question belongs to; None for `geo`."""
        rules = bank_rules.rules_for_question(question) or super().rules_for_question(question)
        if rules is None and scaffold_rules.knows(question):
            return scaffold_rules.RULES
        if rules is None and arithmetic_rules.kind_of(question):
            return arithmetic_rules.RULES
        return rules

    def rules_for_instructions(self, instructions: Sequence[str]) -> WorldRules | None:
        """Return the rules of the world that instructions belong to; None for `geo`."""
        if rules := bank_rules.rules_for_instruction(*instructions):
            return rules
        if arithmetic_rules.advises(instructions):
            return arithmetic_rules.RULES
        if scaffold_rules.owns(instructions[0]):
            return scaffold_rules.RULES
        return super().rules_for_instructions(instructions)
