"""Instructions that the offline rules write for `arithmetic`."""

from cotune.environments.math import INITIAL_INSTRUCTION
from cotune.methods.inspo.proposers import crossover_prompt, parse_candidates, reflection_prompt
from cotune.methods.inspo.replay import Experience
from cotune.types import StopReason, Task
from cotune.worlds.arithmetic_rules import ADVICE, Kind
from cotune.worlds.rules_llm import RulesLLM

FAILURE = Experience(
    "i0",
    Task("a", "What is 405 - 138?", ("267",)),
    "\\boxed{333}",
    0.0,
    1,
    StopReason.ANSWERED,
)


def kinds_in(text: str) -> list[Kind]:
    return [kind for kind, options in ADVICE.items() for s in options if s in text]


def test_a_failed_problem_gets_its_kinds_remedy_beside_others() -> None:
    parent = f"{ADVICE[Kind.ADDITION][0]} {ADVICE[Kind.SUBTRACTION][0]} {INITIAL_INSTRUCTION}"
    seen = set[tuple[Kind, ...]]()
    for seed in range(6):
        reply = RulesLLM(seed).complete(reflection_prompt(parent, [FAILURE], 6)).text
        for candidate in parse_candidates(reply):
            assert INITIAL_INSTRUCTION in candidate
            assert ADVICE[Kind.SUBTRACTION][0] not in candidate  # a fresh one in its place
            seen.add(tuple(kinds_in(candidate)))
    assert seen == {(Kind.SUBTRACTION,), (Kind.ADDITION, Kind.SUBTRACTION)}


def test_crossover_takes_a_remedy_of_any_parent() -> None:
    pair = [(f"{ADVICE[kind][0]} {INITIAL_INSTRUCTION}", 50.0) for kind in list(Kind)[:2]]
    seen = set[tuple[Kind, ...]]()
    for seed in range(6):
        reply = RulesLLM(seed).complete(crossover_prompt(pair, INITIAL_INSTRUCTION, 6)).text
        seen |= {tuple(kinds_in(candidate)) for candidate in parse_candidates(reply)}
    first, second = list(Kind)[:2]
    assert seen == {(first,), (second,), (first, second)}
