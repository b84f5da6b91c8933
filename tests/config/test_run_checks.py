import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from cotune.config.run_checks import (
    check_columns,
    check_instruction,
    check_prompts,
    check_splits,
    shape_notices,
    without_too_long,
)
from cotune.environments.base import SingleTurnEnvironment, TaskEnvironment
from cotune.environments.search import SEARCH_R1_INSTRUCTION, SearchEnvironment
from cotune.environments.single_turn import MathEnvironment
from cotune.errors import ConfigError
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.method import MethodOptions, RunShape
from cotune.methods.p2o.p2o import P2OOptions
from cotune.methods.registry import method_of
from cotune.methods.static import StaticOptions
from cotune.rewards.functions import RewardFunctions
from cotune.rewards.qa import exact_match
from cotune.types import Limits, Task
from tests.helpers import raises_line


class Words:
    """A codec with a token a word, and one for the template."""

    eos_id = 0
    control_tokens = ("<|end|>",)

    def render(
        self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        return [1, *(2 for m in messages for _ in m["content"].split())]

    def encode(self, text: str) -> list[int]:
        return [2 for _ in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join("x" for _ in ids)


class NoSearch:
    def search(self, queries: Sequence[str], top_k: int) -> list[list[str]]:
        return [[] for _ in queries]


def environment(train: str, test: str = "Who?") -> SearchEnvironment:
    tasks = {"train": [Task("short", "Who?", ("a",)), Task("long", train, ("a",))]}
    return SearchEnvironment(
        {**tasks, "test": [Task("t", test, ("a",))]}, NoSearch(), SEARCH_R1_INSTRUCTION, exact_match
    )


@pytest.mark.parametrize(
    ("instruction", "missing"),
    [
        ("Search with <search> and </search>.", "names no <answer>, </answer>;"),
        ("<search> <answer> </answer>", "names no </search>;"),
        (" \n", "names no <search>,"),
    ],
)
def test_an_instruction_must_name_the_tags(instruction: str, missing: str) -> None:
    with pytest.raises(ConfigError, match="instruction ") as caught:
        check_instruction(environment("Who?"), instruction)
    assert missing in str(caught.value)


def test_a_mathematics_instruction_must_name_the_box() -> None:
    check_instruction(MathEnvironment({}), "Put it in \\boxed{}.")
    with pytest.raises(ConfigError, match=r"^instruction names no \\boxed; expected "):
        check_instruction(MathEnvironment({}), SEARCH_R1_INSTRUCTION)


@pytest.mark.parametrize("strategy", ["inspo", "gepa"])
def test_a_blank_instruction_cannot_evolve(strategy: str) -> None:
    plain = SingleTurnEnvironment({}, "")
    name = re.escape(method_of(strategy).label)
    with pytest.raises(ConfigError, match=rf"^instruction: blank; {name} evolves it: say in "):
        check_instruction(plain, " ", strategy)
    check_instruction(plain, "Answer.", strategy)


def test_texts_without_the_comma_of_a_tuple_are_refused() -> None:
    class Forgot(SingleTurnEnvironment):
        stop = "</answer>"  # type: ignore[assignment]

    with pytest.raises(ConfigError, match=r"Forgot.stop is the text '</answer>'; .*with a comma"):
        check_instruction(Forgot({}, "Answer."), "Answer.")


def test_a_split_without_questions_is_refused_before_anything_is_spent() -> None:
    tasks, empty = [Task("a", "Who?", ("a",))], list[Task]()
    env = environment("Who?").with_tasks({"train": tasks, "validation": empty, "test": tasks})
    check_splits(env, validates=False)
    with pytest.raises(
        ConfigError,
        match=r"the validation split has no .* of its own, or set evaluation.every to 0",
    ):
        check_splits(env, validates=True)
    with pytest.raises(ConfigError, match="the test split has no questions"):
        check_splits(env.with_tasks({"train": tasks, "test": empty}), validates=False)


TWENTY = [Task(f"long {i}", "tree " * 8, ("a",)) for i in range(20)]
SHORT = [Task(f"s{i}", "a b c", ()) for i in range(20)]
LONG = Task("long", "a", (), context=(("system", "b " * 30),))


@pytest.mark.parametrize(
    ("env", "instruction", "strategy", "task", "tokens", "enough"),
    [
        # "do" + "Question:" + 8 words of the question + 1 of the template.
        (environment("a b c d e f g h"), "do", "static", "long", 11, 11),
        # Without an instruction it has 10; half is left for what evolves.
        (environment("a b c d e f g h"), "do", "inspo", "long", 11, 20),
        # 1 of the template, 2 of the instruction and 4 of the question, and as many for a hint.
        (MathEnvironment({"train": [Task("t", "a b c d", ("1",))]}), "do it", "p2o", "t", 7, 14),
        # The longest prompt need not have the most bytes.
        (
            environment("Who?").with_tasks({"train": [*TWENTY, Task("digits", "1 2 3 4 5 6 7 8 9", ())]}),
            "do", "static", "digits", 12, 12,
        ),
        # What stands before a question makes its prompt long.
        (SingleTurnEnvironment({"train": [*SHORT, LONG]}, "do"), "do", "static", "long", 33, 33),
    ],
)  # fmt: skip
def test_the_longest_prompt_must_fit(
    env: TaskEnvironment, instruction: str, strategy: str, task: str, tokens: int, enough: int
) -> None:
    def check(limit: int) -> None:
        limits = Limits(prompt_tokens=limit)
        check_prompts(env, Words(), instruction, limits, ["train"], strategy=strategy)

    check(enough)
    half = ", half of which is left for what evolves" if strategy != "static" else ""
    with raises_line(
        f"limits.prompt_tokens is {enough - 1}{half}, but the prompt of task {task} has {tokens} tokens; "
        f"expected at least {enough}: raise it to {enough}, shorten"
    ):
        check(enough - 1)


@pytest.mark.parametrize(
    ("options", "per_step", "message"),
    [
        (P2OOptions(), 4, "P²O has no phase of evolution in this run (steps: 8, questions: 32); one comes after an epoch"),
        (InspoOptions(), 4, "INSPO has no phase of evolution in this run"),
        (InspoOptions(evolve_every=4), 4, ""),
        (InspoOptions(evolve_every=4, distil_steps=4), 4, "INSPO has no phase"),
        (InspoOptions(evolve_every=7), 8, "INSPO has no phase of evolution in this run (steps: 6, "),
        (InspoOptions(evolve_every=0, prune_every=0), 4, ""),
        (StaticOptions(), 33, "a step takes 33 questions and there are 32"),
    ],
)  # fmt: skip
def test_sizes_under_which_a_run_cannot_do_what_it_is_for_are_noticed(
    options: MethodOptions, per_step: int, message: str
) -> None:
    size = {"questions_per_step": per_step, "questions": 32, "rollout_budget": 200}
    notices = [*shape_notices(options, RunShape(group_size=4, steps=8, **size))]
    assert len(notices) == bool(message)
    assert all(text.startswith(message) for text in notices)
    frozen = RunShape(group_size=4, steps=8, frozen=True, **size)
    assert options.kind != "static" or not [*shape_notices(options, frozen)]


def test_a_number_beyond_the_context_is_said_to_be() -> None:
    limits = Limits(prompt_tokens=2, trajectory_tokens=10, turn_tokens=1)
    with pytest.raises(ConfigError, match=r"least 11: lower limits.trajectory_tokens .* holds 20"):
        check_prompts(
            environment("a b c d e f g h"), Words(), "do", limits, ["train"],
            strategy="static", context_tokens=20,
        )  # fmt: skip


def test_questions_that_are_too_long_are_left_out_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks = [Task(f"t{n}", " ".join("a" * n), ()) for n in (1, 5, 6, 9, 40)]
    env = SingleTurnEnvironment({"train": tasks, "validation": tasks[:1], "test": tasks[2:]}, "do")
    filtered = without_too_long(env, Words(), "do", 8, "static")  # "do" and the template take 2
    assert [len(filtered.tasks(split)) for split in SPLITS] == [3, 1, 1]
    assert [record.message.partition(";")[0] for record in caplog.records] == [
        "dataset.drop_too_long: 2 of 5 train questions are left out",
        "dataset.drop_too_long: 2 of 3 test questions are left out",
    ]
    # Half is left for hints, so that half as many tokens fit.
    assert len(without_too_long(env, Words(), "do", 14, "p2o").tasks("train")) == 2


# ---- rewards


def single_turn(**splits: list[Task]) -> SingleTurnEnvironment:
    row = {"level": 1}
    tasks = {s: [Task(f"{s}0", "q?", ("a",), columns=row)] for s in ("train", "validation", "test")}
    return SingleTurnEnvironment({**tasks, **splits}, "Do it.")


SPLITS = ("train", "validation", "test")


def test_a_column_that_one_split_lacks() -> None:
    def levelled(completions: list[str], level: list[int]) -> list[float]:
        return [float(n) for n in level]

    check_columns(RewardFunctions([levelled]), single_turn(validation=[]), SPLITS)
    other = single_turn(test=[Task("t", "q", (), columns={"grade": 1})])
    with pytest.raises(ConfigError, match="levelled needs the column 'level', but the data has gr"):
        check_columns(RewardFunctions([levelled]), other, SPLITS)


def test_an_environment_without_rewards_needs_functions() -> None:
    with pytest.raises(ConfigError, match=r"^rewards: missing; SingleTurnEnvironment gives none"):
        check_columns(None, single_turn(), SPLITS)
    check_columns(None, environment("Who?"), SPLITS)


def test_context() -> None:
    limits = Limits(prompt_tokens=100, trajectory_tokens=28, turn_tokens=8)
    env = environment("Who?")
    for context in (128, None):
        check_prompts(
            env, Words(), "do", limits, SPLITS[:1], strategy="static", context_tokens=context
        )
    with pytest.raises(ConfigError, match=r"100 \+ 28 = 128, but the policy's context holds 127"):
        check_prompts(env, Words(), "do", limits, SPLITS[:1], strategy="static", context_tokens=127)


def test_an_instruction_that_spells_out_a_control_token() -> None:
    with pytest.raises(ConfigError, match=r"^instruction spells out <\|end\|>, control tokens"):
        check_prompts(environment("Who?"), Words(), "do <|end|>", Limits(), [], strategy="static")
