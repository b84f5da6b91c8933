from collections.abc import Mapping, Sequence

import pytest

from cotune.contracts import ConfigError
from cotune.environments.math import MathEnvironment
from cotune.environments.search import SEARCH_R1_INSTRUCTION, SearchEnvironment
from cotune.preflight import check_context, check_instruction, check_prompts, evolved_room
from cotune.records import Limits, Task
from cotune.rewards import exact_match


class Words:
    """A codec with a token a word, and one for the template."""

    eos_id = 0

    def render(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
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
        (" \n", "instruction is blank"),
    ],
)
def test_an_instruction_must_name_the_tags(instruction: str, missing: str) -> None:
    with pytest.raises(ConfigError, match="instruction ") as caught:
        check_instruction(environment("Who?"), instruction)
    assert missing in str(caught.value)


def test_an_instruction_with_the_tags() -> None:
    check_instruction(environment("Who?"), SEARCH_R1_INSTRUCTION)


def test_the_longest_prompt_must_fit() -> None:
    # "do" + "Question:" + 8 words of the question + 1 of the template.
    env, limits = environment("a b c d e f g h"), Limits(prompt_tokens=11)
    check_prompts(env, Words(), "do", limits, ["train", "test"], strategy="static")
    with pytest.raises(
        ConfigError, match="prompt_tokens is 10, but the prompt of task long has 11"
    ):
        check_prompts(env, Words(), "do", Limits(prompt_tokens=10), ["train"], strategy="static")
    check_prompts(env, Words(), "do", Limits(prompt_tokens=10), ["test"], strategy="static")


def test_half_of_the_prompt_is_left_for_what_evolves() -> None:
    # Without an instruction the longest prompt has 10 tokens.
    env = environment("a b c d e f g h")
    check_prompts(env, Words(), "do", Limits(prompt_tokens=20), ["train"], strategy="inspo")
    with pytest.raises(ConfigError, match="task long has 10 tokens; expected at least 20"):
        check_prompts(env, Words(), "do", Limits(prompt_tokens=18), ["train"], strategy="inspo")
    assert evolved_room(Limits(prompt_tokens=20), "inspo") == 10


def test_a_mathematics_instruction_must_name_the_box() -> None:
    env = MathEnvironment({})
    check_instruction(env, "Put it in \\boxed{}.")
    with pytest.raises(ConfigError, match=r"^instruction names no \\boxed; expected it"):
        check_instruction(env, SEARCH_R1_INSTRUCTION)


def test_beside_hints_the_instruction_stays() -> None:
    env = MathEnvironment({"train": [Task("t", "a b c d", ("1",))]})
    # 1 of the template, 2 of the instruction and 4 of the question, and as many for a hint.
    check_prompts(env, Words(), "do it", Limits(prompt_tokens=14), ["train"], strategy="p2o")
    with pytest.raises(ConfigError, match=r"left for evolved hints, but .* has 7 tokens; .* 14"):
        check_prompts(env, Words(), "do it", Limits(prompt_tokens=13), ["train"], strategy="p2o")
    # Where instructions evolve, too, it does not count: half is for both, a quarter each.
    check_prompts(env, Words(), "do it", Limits(prompt_tokens=12), ["train"], strategy="inspo+p2o")
    # But the initial instruction is no longer than it is, and a hint is to fit beside it.
    long = "a b c d e f"  # 11 tokens with the question, and 4 of a quarter
    check_prompts(env, Words(), long, Limits(prompt_tokens=14), ["train"], strategy="inspo+p2o")
    with pytest.raises(ConfigError, match=r"a quarter .* task t under .* has 11 tokens"):
        check_prompts(env, Words(), long, Limits(prompt_tokens=13), ["train"], strategy="inspo+p2o")
    rooms = [evolved_room(Limits(prompt_tokens=40), k) for k in ("p2o", "inspo", "inspo+p2o")]
    assert rooms == [20, 20, 10]


def test_context() -> None:
    limits = Limits(prompt_tokens=100, trajectory_tokens=28)
    check_context(128, limits)
    check_context(None, limits)
    with pytest.raises(ConfigError, match=r"100 \+ 28 = 128, but the policy's context holds 127"):
        check_context(127, limits)
