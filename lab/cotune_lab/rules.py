"""The offline rules for the lab's worlds, in an LLM's place: `llm: cotune_lab.rules:Rules` in a run file."""

from cotune import RulesLLM
from cotune.worlds import ladder_rules
from cotune.worlds.remedies import Rules as WorldRules
from cotune_lab.worlds import arithmetic_rules, bank_rules, scaffold_rules


class Rules(RulesLLM):
    """`cotune.RulesLLM`, which knows the worlds of the lab as well."""

    def rules_for_question(self, question: str) -> WorldRules:
        """Return the rules of the world that a question belongs to."""
        if rules := bank_rules.rules_for_question(question):
            return rules
        if ladder_rules.knows(question):
            return ladder_rules.RULES
        if scaffold_rules.knows(question):
            return scaffold_rules.RULES
        if arithmetic_rules.kind_of(question):
            return arithmetic_rules.RULES
        return super().rules_for_question(question)

    def rules_for_instruction(self, instruction: str) -> WorldRules:
        """Return the rules of the world that an instruction belongs to."""
        if rules := bank_rules.rules_for_instruction(instruction):
            return rules
        if arithmetic_rules.advises(instruction):
            return arithmetic_rules.RULES
        if scaffold_rules.owns(instruction):
            return scaffold_rules.RULES
        return super().rules_for_instruction(instruction)
