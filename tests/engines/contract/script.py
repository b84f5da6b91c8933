"""One run as data: the tasks, what the policy writes, what the LLM replies, what decides prompts.

Every engine is driven through the same script (`Driver`), in its own way and in whatever processes
it needs: a script goes there as JSON. The strategy, the environment, the codec and the coordinator
are the real ones. The policy's turns, and with them the rewards, are given.
"""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from cotune.config.run_file import RunConfig, parse_config
from cotune.methods.fst import ABOUT_AN_AGENT
from cotune.protocols import Codec
from cotune.types import Completion, Limits, Task
from cotune_lab.worlds.geo import GeoEnvironment, GeoOptions
from tests.engines.contract.recording import Recording
from tests.scripted import ScriptedSampler

POLICY = "bundled:geo"
"""Its tokenizer and, where an engine updates weights, its weights; it samples nothing."""

ONE_AT_A_TIME = "Search for one entity at a time."
PLAN = "Plan first: name the country"


@dataclass(frozen=True)
class Rule:
    """What is said where all of `when` stand in the text.

    Attributes:
        when: parts of the text.
        say: of the policy, the turns of rollout 0, 1, … of a group; of the LLM, its replies to
            the first, second, … prompt that this rule answers, each a single turn.
    """

    when: tuple[str, ...]
    say: tuple[tuple[str, ...], ...]

    def holds(self, text: str) -> bool:
        return all(part in text for part in self.when)


@dataclass(frozen=True)
class Script:
    """A run of `steps` batches, each of `questions` × `group_size` rollouts.

    Attributes:
        strategy: its options with their `kind`, as a run file has them.
        environment: of the bundled world, as a run file has them.
        policy: the first rule that holds of a rollout's context speaks; the row within its call
            tells which of its rollouts, and of greedy calls it is the first.
        llm: the first rule that holds of the prompt speaks.
    """

    strategy: Mapping[str, Any]
    environment: Mapping[str, Any]
    policy: tuple[Rule, ...]
    llm: tuple[Rule, ...]
    limits: Limits
    steps: int
    questions: int
    group_size: int
    seed: int = 1
    learning_rate: float = 1e-6

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Script":
        return TypeAdapter(cls).validate_json(text)

    def config(self, output: Path, **training: Any) -> RunConfig:
        """The same as a run file, for an engine that is driven by one.

        Args:
            output: its folder.
            training: further fields of that section.
        """
        raw = {
            "output": str(output),
            "seed": self.seed,
            "policy": {"path": POLICY},
            "environment": self.environment,
            "limits": asdict(self.limits),
            "strategy": self.strategy,
            "training": {
                "steps": self.steps, "questions_per_step": self.questions,
                "group_size": self.group_size, "mini_batches": 1,
                "micro_batch_size": self.questions * self.group_size,
                "learning_rate": self.learning_rate, "schedule": "constant", "warmup": 0, "kl": 0,
                **training,
            },
            "evaluation": {"every": 0, "before": False},
        }  # fmt: skip
        return parse_config(raw, "the script")

    def sampler(self, codec: Codec) -> ScriptedSampler:
        """The policy; a greedy one writes the first of a rule's rollouts."""

        def reply_to(row: int, turn: int, context: str) -> str:
            rule = next(rule for rule in self.policy if rule.holds(context))
            rollout = 0 if sampler.opened[-1].temperature == 0 else row % len(rule.say)
            return rule.say[rollout][turn]

        sampler = ScriptedSampler(codec, reply_to)
        return sampler

    def optimizer(self) -> "ScriptedOptimizer":
        return ScriptedOptimizer(self.llm)


class Driver(Protocol):
    """An engine under test: runs a script from its first step to its last.

    A driver puts `script.sampler(codec)` in the place of the engine's own, calls
    `recording.watch(strategy, path)` in the process where the strategy lives before the first
    step, and reads the file at the end.
    """

    def run(self, script: Script) -> Recording: ...


class ScriptedOptimizer:
    """An `LLM` that answers by rules; in the process of the strategy alone."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._calls: Counter[int] = Counter()

    def complete(self, prompt: str) -> Completion:
        """Raises IndexError when a rule has no reply left."""
        number = next(n for n, rule in enumerate(self._rules) if rule.holds(prompt))
        self._calls[number] += 1
        (reply,) = self._rules[number].say[self._calls[number] - 1]
        return Completion(reply, 7, 5)


# ---- the script


INSPO = {
    "population_size": 4,
    "prune_every": 3,
    "evolve_every": 2,
    "verification_tasks": 4,
    "verification_rounds": 2,
    "candidates": 2,
}
HINTS = {"hard_set_min_count": 2, "dev_size": 2, "budget": 20, "beam": 2}
STRATEGIES: dict[str, dict[str, Any]] = {
    "static": {"kind": "static"},
    "inspo": {"kind": "inspo", **INSPO},
    "p2o": {"kind": "p2o", "hints": HINTS, "distillation": {"ratio": "masked_signed"}},
    "mixed": {"kind": "inspo", **INSPO, "groups": "mixed", "target": "initial"},
    "population": {"kind": "inspo", **INSPO, "groups": "population"},
    "fst": {"kind": "fst", "prompts": 2, "evolve_every": 2, "budget": 60, "dev_size": 4},
}


HALVES = ("Take care.", "Be exact.")
"""In FST's prompts: each makes the policy answer half of the questions."""


def script(kind: str) -> Script:
    """Five steps of half the questions each: two epochs end within the run, each with a phase of
    hints where there are any; INSPO prunes once and evolves twice.

    Some questions are easy. The others are solved seldom, more often under an instruction that says
    to search for one entity at a time, and half of them well enough under a hint that asks for a plan.
    """
    draft = Script(
        strategy=STRATEGIES[kind],
        environment={"kind": "geo", "train": 8, "validation": 1, "test": 1},
        policy=(),
        llm=_replies(),
        limits=Limits(
            turns=2, turn_tokens=40, observation_tokens=50, trajectory_tokens=120, prompt_tokens=800
        ),
        steps=5,
        questions=4,
        group_size=4,
        # With 2 the better instruction turns out to be better; with 5 FST reflects on both halves.
        seed=5 if kind == "fst" else 2,
    )
    tasks = GeoEnvironment(GeoOptions(**draft.environment)).tasks("train")
    rules = [rule for number, task in enumerate(tasks) for rule in _rules(task, number)]
    return replace(draft, policy=tuple(rules))


def _rules(task: Task, number: int) -> list[Rule]:
    right = ("<search> Town country </search>", f"<answer> {task.answers[0]} </answer>")
    short = (f"<answer> {task.answers[0]} </answer>",)
    wrong = ("<search> Town </search>", "<answer> nothing </answer>")
    cut = ("I do not know what to do, so that I go on", "and on <answer> nothing </answer>")
    question = f"Question: {task.question}"
    if number % 3 == 0:
        return [Rule((question,), (right, short, wrong, short))]
    return [
        Rule((question, HALVES[number % 3 - 1]), (right, wrong, cut, right)),
        # Of every other question one success in four is too few: it stays hard.
        Rule((question, PLAN), (right, right if number % 3 == 1 else wrong, cut, wrong)),
        Rule((question, ONE_AT_A_TIME), (wrong, right, cut, wrong)),
        Rule((question,), (wrong, cut, wrong, wrong)),
    ]


def _replies() -> tuple[Rule, ...]:
    """To INSPO's prompts candidates, a valid and an invalid one each; to gepa's, a hint."""
    first = GeoEnvironment(GeoOptions(train=1, validation=1, test=1)).initial_instruction
    styles = ("Be brief.", "Take a deep breath.", "Read the question twice before you begin.")
    instructions = [
        f"It wandered off.\n<ins_1>\n{first} {advice}\n</ins_1>\n<ins_2>\nNo tags {n}.\n</ins_2>"
        for n, advice in enumerate(
            (*styles, ONE_AT_A_TIME, *(f"{ONE_AT_A_TIME} Again: {s}" for s in styles))
        )
    ]
    vague = "Look closely at the wording: alpha{n} beta{n} gamma{n}"
    hints = [
        f"```\n{PLAN if n % 2 else vague.format(n=n)} of kind{n}, then delta{n} and eps{n}.\n```"
        for n in range(12)
    ]
    prompts = [f"```\n{first} {HALVES[n % 2]} Sign {n}, then {n + 7}.\n```" for n in range(40)]
    return (
        Rule(("<ins_0>",), tuple((reply,) for reply in instructions)),
        Rule((ABOUT_AN_AGENT,), tuple((reply,) for reply in prompts)),
        Rule((), tuple((reply,) for reply in hints)),
    )
