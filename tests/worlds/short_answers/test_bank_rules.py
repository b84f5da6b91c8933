"""The banks, and the offline rules that propose from them: INSPO, P²O and FST run without a key."""

import hashlib
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cotune.config.run_file import parse_config
from cotune.config.strategy import build_strategy
from cotune.environments.base import TaskEnvironment
from cotune.errors import ConfigError
from cotune.methods.inspo.proposers import (
    crossover_prompt,
    history_prompt,
    paraphrase_prompt,
    parse_candidates,
    reflection_prompt,
)
from cotune.methods.inspo.replay import Experience
from cotune.methods.instruction_rules import is_near_copy
from cotune.methods.p2o.hint_rules import HintRules
from cotune.types import Assignment, Limits, Progress, StopReason, Task, Trajectory
from cotune.worlds.rules_llm import RulesLLM
from cotune.worlds.short_answers import arith, extract3
from cotune.worlds.short_answers.arith import ArithEnvironment, ArithOptions
from cotune.worlds.short_answers.bank import Bank, Sections, read_sections
from cotune.worlds.short_answers.bank_rules import (
    Lack,
    rules_for_instruction,
    rules_for_question,
)
from cotune.worlds.short_answers.extract3 import NAMES, VALUES, Extract3Environment, Extract3Options
from tests.helpers import Events, make_trajectory

WORLDS = {"arith": arith, "extract3": extract3}
BANKS = {name: read_sections(world.BANK) for name, world in WORLDS.items()}
SMALL = {"train": 36, "validation": 6, "test": 6}
ENVIRONMENTS: dict[str, TaskEnvironment] = {
    "arith": ArithEnvironment(ArithOptions(**SMALL)),
    "extract3": Extract3Environment(Extract3Options(**SMALL)),
}
BOTH = pytest.mark.parametrize("name", WORLDS)


def texts(sections: Sections) -> list[str]:
    return [text for own in sections.values() for text in own]


def proposed(bank: Bank) -> set[str]:
    return {*texts(bank.instructions), *texts(bank.hints)}


# ---- the banks


def test_the_banks_are_frozen() -> None:
    # They were written before any training: a change is a new bank, under a new name.
    found = {
        name: hashlib.sha256(w.BANK.read_bytes()).hexdigest()[:16] for name, w in WORLDS.items()
    }
    assert found == {"arith": "8edd0bfd3f2b3dc9", "extract3": "0f79cc0319982fe7"}


@BOTH
def test_a_bank_is_large_enough_and_part_of_it_is_held_out(name: str) -> None:
    bank = BANKS[name]
    assert len(texts(bank.instructions)) >= 30
    assert len(texts(bank.held_out_instructions)) >= 10
    assert bank.held_out_instructions.keys() == bank.instructions.keys()
    assert {"short form", "step by step", "worked example", "opposite", "off-topic"} <= set(
        bank.instructions
    )
    assert set(bank.hints) == set(bank.held_out_hints) == set(WORLDS[name].STRATA)
    assert len(texts(bank.hints)) >= 12
    assert min(len(own) for own in bank.hints.values()) >= 4


@BOTH
def test_no_text_copies_another(name: str) -> None:
    # A near copy would be rejected, and a held-out text would not be held out.
    bank = BANKS[name]
    instructions = [
        WORLDS[name].INITIAL_INSTRUCTION,
        *texts(bank.instructions),
        *texts(bank.held_out_instructions),
    ]
    for i, text in enumerate(instructions):
        assert [other for other in instructions[:i] if is_near_copy(text, other)] == [], text
    hints = [*texts(bank.hints), *texts(bank.held_out_hints)]
    assert len({text.casefold() for text in hints}) == len(hints)
    assert not set(hints) & set(instructions)


@BOTH
def test_no_text_holds_an_answer(name: str) -> None:
    bank = BANKS[name]
    everything = [*proposed(bank), *texts(bank.held_out_instructions), *texts(bank.held_out_hints)]
    for text in everything:
        assert not set(re.findall(r"\w+", text.casefold())) & {
            word.casefold() for word in (*NAMES, *(v for values in VALUES.values() for v in values))
        }, text
        assert all(int(number) > 300 for number in re.findall(r"\d+", text)), text


@BOTH
def test_hints_keep_the_contract(name: str) -> None:
    tasks = ENVIRONMENTS[name].tasks("train")
    for kind, hints in BANKS[name].hints.items():
        shown = [task for task in tasks if task.stratum == kind]
        assert [HintRules().check(hint, "", (), shown) for hint in hints] == [None] * len(hints)


@pytest.mark.parametrize("text", ["a line\n", "[instructions]\nx\n", "[texts: a]\nx\n"])
def test_a_line_outside_a_section_is_an_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "bank.txt"
    file.write_text(f"# comment\n{text}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"bank.txt, line 2: .* is in no section"):
        read_sections(file)


# ---- the rules


LONG = "Well, let us think about this question for quite a while before we say anything: 7"


@pytest.mark.parametrize(
    ("name", "reply", "found"),
    [
        ("arith", "I do not know.", Lack.NO_ANSWER),
        ("arith", "1", Lack.WRONG),
        ("arith", "1 + 1 = 2", Lack.WRONG),
        ("arith", LONG, Lack.LONG),
        ("extract3", "I do not know.", Lack.NO_ANSWER),
        ("extract3", "Oslo", Lack.WRONG),
        ("extract3", "Oslo or Lima", Lack.SEVERAL),
        ("extract3", LONG, Lack.LONG),
    ],
)
def test_lacks_by_hand(name: str, reply: str, found: Lack) -> None:
    question = {"arith": "What is 3 plus 4?", "extract3": "Text.\n\nWhere does Nina live?"}[name]
    rules = rules_for_question(question)
    assert rules is not None
    assert rules.lack(question, reply) == found


def failure(name: str, reply: str) -> Experience:
    task = ENVIRONMENTS[name].tasks("train")[0]
    return Experience("i0", task, reply, 0.0, 1, StopReason.TOKEN_LIMIT)


@BOTH
def test_a_reflection_proposes_other_texts_of_the_bank(name: str) -> None:
    bank, initial = BANKS[name], WORLDS[name].INITIAL_INSTRUCTION
    seen = set[str]()
    for seed in range(60):
        prompt = reflection_prompt(initial, [failure(name, LONG)], 6)
        found = parse_candidates(RulesLLM(seed).complete(prompt).text)
        assert len(set(found)) == 6
        seen |= set(found)
    assert seen <= set(texts(bank.instructions))
    short = len(seen & set(bank.instructions["short form"]))
    assert short == len(bank.instructions["short form"])


def test_what_failed_decides_what_is_proposed_unless_at_random() -> None:
    bank = BANKS["arith"]

    def share(section: str, reply: str, **options: Any) -> float:
        found: list[str] = []
        for seed in range(60):
            prompt = reflection_prompt(arith.INITIAL_INSTRUCTION, [failure("arith", reply)], 1)
            found += parse_candidates(RulesLLM(seed, **options).complete(prompt).text)
        return sum(text in bank.instructions[section] for text in found) / len(found)

    assert share("step by step", "1") > 2 * share("step by step", LONG)
    assert share("short form", LONG) > 2 * share("short form", "1")
    assert (
        abs(
            share("short form", LONG, remedies="random")
            - share("short form", "1", remedies="random")
        )
        < 0.2
    )


@BOTH
def test_the_other_proposers_stay_with_the_sections_of_good_texts(name: str) -> None:
    bank, initial = BANKS[name], WORLDS[name].INITIAL_INSTRUCTION
    first, second = bank.instructions["short form"][:2]
    for prompt in (
        paraphrase_prompt(first, 3),
        history_prompt([(initial, 10.0), (first, 60.0)], initial, 3),
        crossover_prompt([(first, 20.0), (second, 60.0)], initial, 3),
        paraphrase_prompt(initial, 3),
    ):
        found = parse_candidates(RulesLLM(2).complete(prompt).text)
        assert len(found) == 3
        assert set(found) <= set(texts(bank.instructions))
    written = [
        text
        for seed in range(30)
        for text in parse_candidates(RulesLLM(seed).complete(paraphrase_prompt(first, 1)).text)
    ]
    assert first not in written
    assert sum(text in bank.instructions["short form"] for text in written) > 15
    assert rules_for_instruction("Write a poem about geography.") is None


def test_hints_are_those_on_the_types_that_failed() -> None:
    rules = rules_for_question("What is 3 times 4?")
    assert rules is not None
    rng = random.Random(0)
    failed = [("What is 3 times 4?", "7"), ("Multiply 3 by 9.", "12")]
    found = {rules.write_hint("", failed, rng, at_random=False) for _ in range(80)}
    assert found == set(BANKS["arith"].hints["multiplication"])
    current = BANKS["arith"].hints["multiplication"][0]
    assert current not in {
        rules.write_hint(current, failed, rng, at_random=False) for _ in range(80)
    }
    drawn = {rules.write_hint("", failed, rng, at_random=True) for _ in range(300)}
    assert drawn == set(texts(BANKS["arith"].hints))


# ---- the methods


class Policy:
    """Answers rightly under short instructions and, on half of the questions, under their hints."""

    def __init__(self, name: str) -> None:
        self.environment, self.bank = ENVIRONMENTS[name], BANKS[name]

    def __call__(
        self, assignments: Sequence[Assignment], *, purpose: str, greedy: bool = False
    ) -> list[Trajectory]:
        return [self._one(assignment) for assignment in assignments]

    def _one(self, assignment: Assignment) -> Trajectory:
        task, prompt = assignment.task, assignment.sampled
        text = task.answers[0] if self._right(task, prompt.instruction, prompt.hint) else LONG
        unscored = make_trajectory(assignment, 0.0, text)
        return make_trajectory(assignment, self.environment.score(unscored)[0], text)

    def _right(self, task: Task, instruction: str, hint: str) -> bool:
        short = instruction in self.bank.instructions["short form"]
        return short or hint in self.bank.hints[task.stratum]


HINTS = {"hard_set_min_count": 4, "dev_size": 12, "budget": 240, "beam": 4}
METHODS: dict[str, dict[str, Any]] = {
    "inspo": {"evolve_every": 2, "prune_every": 2, "verification_tasks": 6, "evolve_until": 12},
    "fst": {"budget": 120, "dev_size": 10, "beam": 3, "evolve_every": 3, "prompts": 3},
    "p2o": {"hints": HINTS},
}


@BOTH
@pytest.mark.parametrize("kind", METHODS)
def test_a_method_evolves_from_the_bank_alone(kind: str, name: str) -> None:
    environment, events, policy = ENVIRONMENTS[name], Events(), Policy(name)
    config = parse_config(
        {"output": "runs/x", "environment": name, "strategy": {"kind": kind, **METHODS[kind]}}, "x"
    )
    strategy = build_strategy(
        config.strategy,
        environment,
        instruction=environment.initial_instruction,
        seed=1,
        limits=Limits(),
    )
    tasks = list(environment.tasks("train"))
    for step in range(1, 13):
        progress = Progress(step, (step - 1) // 2, 100)
        strategy.evolve_if_due(progress, policy, RulesLLM(1), events)  # pyright: ignore[reportArgumentType]
        seen = policy(strategy.assign(tasks[(step % 2) * 18 :][:18], 4, progress), purpose="train")
        strategy.observe(seen, progress, events)
    if kind == "p2o":
        hint = strategy.best_hint()
        assert hint in texts(BANKS[name].hints)
    else:
        assert strategy.best_prompt().instruction in BANKS[name].instructions["short form"]
    born = {row["text"] for kind in ("instruction_born", "hint_born") for row in events.of(kind)}
    assert born - {environment.initial_instruction} <= proposed(BANKS[name])


# ---- the run file


@BOTH
def test_the_rules_are_the_default_proposer(name: str) -> None:
    raw = {"output": "runs/x", "environment": name}
    for kind in ("inspo", "p2o", "fst", "gepa", "inspo+p2o"):
        assert parse_config({**raw, "strategy": {"kind": kind}}, "run.yaml").proposer is not None
    with pytest.raises(ConfigError, match=r"offline rules know only geo, .* extract3 and arith; "):
        parse_config(
            {
                **raw,
                "environment": {"kind": "reasoning-gym", "tasks": ["gcd"]},
                "strategy": {"kind": "inspo"},
            },
            "x",
        )
