"""The offline rules of the lab's worlds: they remedy what failed, in texts that no recipe taught."""

import random

import pytest
from gepa.strategies.instruction_proposal import InstructionProposalSignature

from cotune import Task
from cotune.worlds import rules_llm
from cotune_lab.rules import Rules
from cotune_lab.worlds import arith, arithmetic_rules, extract3, scaffold, scaffold_rules
from cotune_lab.worlds.arithmetic import KINDS, problem
from cotune_lab.worlds.bank import read_sections
from recipes.arithmetic.measure import BENCH as ARITHMETIC
from recipes.arithmetic.phrases import all_sentences
from recipes.geo import phrases as geo
from recipes.ladder.measure import BENCH as LADDER
from recipes.ladder.phrases import GRAMMAR as LADDER_GRAMMAR
from recipes.scaffold.measure import BENCH as SCAFFOLD
from recipes.scaffold.phrases import GRAMMAR as SCAFFOLD_GRAMMAR


def hint(question: str, reply: str, seed: int, current: str = "") -> str:
    """The hint that the rules write at GEPA's prompt on one failure."""
    example = {"Inputs": question, "Generated Outputs": reply, "Feedback": "Incorrect."}
    prompt = InstructionProposalSignature.prompt_renderer(
        {"current_instruction_doc": current, "dataset_with_feedback": [example]}
    )
    return Rules(seed).complete(str(prompt)).text.strip("`\n")


def candidates(instruction: str, question: str, reply: str, seed: int) -> str:
    """What the rules reply to INSPO's prompt on one failure."""
    return (
        Rules(seed)
        .complete(
            f"<ins_0>\n{instruction}\n</ins_0>\n<example>\nQuestion: {question}\nResponse: {reply}\n"
            "Correct answer: x\n</example>\nGive 4 different candidates."
        )
        .text
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_hint_is_about_what_failed(kind: str) -> None:
    advice = arithmetic_rules.ADVICE[arithmetic_rules.Kind(kind)]
    for seed in range(10):
        drawn = problem(random.Random(f"{kind}/{seed}"), kind, "long")
        assert arithmetic_rules.kind_of(drawn.text) == kind
        assert hint(drawn.text, "\\boxed{7}", seed).startswith(advice)


def test_each_world_has_its_own_remedies() -> None:
    lacks = scaffold_rules.Lack
    question = "Bergen: what is the population of the capital of its country?"
    reply = "Find: <search> the city population </search>"
    for seed in range(5):
        text = candidates(scaffold.INITIAL_INSTRUCTION, question, reply, seed)
        assert any(s in text for s in scaffold_rules.REMEDIES[lacks.CHECKS])
        assert not any(s in text for s in scaffold_rules.REMEDIES[lacks.TURNS])
        ladder = candidates("Put it in \\boxed{}.", "What is 4 + 7 + 8?", "\\boxed{9}", seed)
        assert any(s in ladder for texts in rules_llm.REMEDIES.values() for s in texts)


@pytest.mark.parametrize("world", [arith, extract3])
def test_a_bank_proposes_its_own_texts_and_never_those_held_out(world: object) -> None:
    bank = read_sections(world.BANK)  # pyright: ignore
    kind = world.environment  # pyright: ignore
    environment = kind.build(kind.options(train=12, validation=3, test=3), None)
    task: Task = environment.tasks("train")[0]
    proposed = {text for texts in bank.instructions.values() for text in texts}
    held_out = {text for texts in bank.held_out_instructions.values() for text in texts}
    assert not proposed & held_out
    for seed in range(5):
        text = candidates(environment.initial_instruction, task.question, "I do not know.", seed)
        assert sum(instruction in text for instruction in proposed) >= 4
        assert not any(f"\n{instruction}\n" in text for instruction in held_out)
        assert hint(task.question, "no", seed) in bank.hints[world.type_of(task.question)]  # pyright: ignore


def test_recipes_banks_and_rules_share_no_sentence() -> None:
    rules = {
        "arithmetic": {s for texts in arithmetic_rules.ADVICE.values() for s in texts},
        "ladder": {s for texts in rules_llm.REMEDIES.values() for s in texts},
        "scaffold": {s for texts in scaffold_rules.REMEDIES.values() for s in texts},
    }
    taught = {
        "arithmetic": all_sentences() | geo.all_sentences(),
        "ladder": LADDER_GRAMMAR.all_sentences(),
        "scaffold": SCAFFOLD_GRAMMAR.all_sentences(),
    }
    for bench, count in ((ARITHMETIC, 60), (LADDER, 100), (SCAFFOLD, 72)):
        bank = {line for lines in bench.requests.values() for line in lines}
        assert len(bank) == count
        assert not bank & taught[bench.world]
        assert not bank & rules[bench.world]
        assert not rules[bench.world] & taught[bench.world]
