import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cotune.errors import BudgetError, ConfigError, EngineError, EvolutionError, LLMError
from cotune.methods.fst import Gepa, GepaOptions
from cotune.methods.method import Context
from cotune.types import Assignment, Progress, Prompt, StopReason, Task, Trajectory
from cotune.worlds.rules_llm import read_examples
from tests.helpers import Events, make_trajectory
from tests.methods.p2o.hint_fakes import Policy
from tests.scripted import Author, raising

START = "Solve it inside <think> and </think>."
FIRST = Progress(step=1, epoch=0, total_steps=3)
SMALL = GepaOptions(budget=200, dev_size=10)


def questions(count: int = 60) -> list[Task]:
    return [Task(f"q{i}", f"Problem {i}?", (f"secret{i}",)) for i in range(count)]


def solves(task: Task, told: str) -> bool:
    """A share of the questions that grows with the words `skill0` to `skill3` it is told."""
    share = 0.2 + 0.2 * sum(f"skill{i}" in told for i in range(4))
    return random.Random(task.id).random() < share


def policy_of(greedy: bool = True) -> Policy:
    return Policy(solves, "instruction", greedy=greedy)


def reply(text: str) -> str:
    return f"It guesses.\n\n```\n{text}\n```"


def one_skill_more(n: int, prompt: str) -> str:
    """The instruction of the prompt with a skill that it lacks, and a word of its own."""
    now = prompt.split("```")[1].strip()
    lacks = [f"skill{i}" for i in range(4) if f"skill{i}" not in now]
    return reply(f"{now} Mind {lacks[0] if lacks else 'it'}, alpha{n}x beta{n}x gamma{n}x.")


def gepa(options: GepaOptions = SMALL, **context: Any) -> Gepa:
    given: dict[str, Any] = {"instruction": START, "tasks": questions(), "seed": 5, **context}
    return Gepa(options, Context(**given))


def searched(
    write: Callable[[int, str], str] = one_skill_more, options: GepaOptions = SMALL, **also: Any
) -> tuple[Gepa, Policy, Author, Events]:
    strategy = gepa(options, **also)
    policy, author, record = policy_of(options.scoring == "greedy"), Author(write), Events()
    strategy.evolve_if_due(FIRST, policy, author, record)
    return strategy, policy, author, record


def test_the_best_on_dev_is_kept_and_everything_is_sampled_under_it():
    strategy, policy, author, record = searched()
    found = strategy._lineage
    means = [strategy._means[i.id] for i in found]
    best = means.index(max(means))
    assert max(means) > means[0]
    assert strategy.best_instruction_id() == found[best].id
    assert strategy.best_prompt() == Prompt(found[best].text)
    rows = strategy.assign(questions(3), 2, FIRST)
    assert [(a.task.id, a.group) for a in rows] == [
        ("q0", 0), ("q0", 0), ("q1", 1), ("q1", 1), ("q2", 2), ("q2", 2),
    ]  # fmt: skip
    assert {a.sampled for a in rows} == {a.trained for a in rows} == {strategy.best_prompt()}
    assert {a.instruction_id for a in rows} == {strategy.best_instruction_id()}
    assert len(author.prompts) > 3
    [ended], [told] = record.of("gepa_phase_ended"), record.of("best_instruction")
    assert ended["evaluations"] == policy.evaluations
    assert (ended["initial_dev_score"], ended["best_dev_score"]) == (means[0], max(means))
    assert (told["id"], told["weight"], told["observed_rollouts"]) == (
        strategy.best_instruction_id(), max(means), 10,
    )  # fmt: skip


def test_a_search_without_failures_says_that_it_asked_for_nothing():
    strategy, author, record = gepa(), Author(one_skill_more), Events()
    solved = lambda rows, **_: [make_trajectory(a, 1.0) for a in rows]  # noqa: E731
    strategy.evolve_if_due(FIRST, solved, author, record)
    assert not author.prompts
    assert "no failure to reflect on" in record.of("notice")[-1]["text"]


def test_rollouts_with_an_environment_error_are_not_shown():
    def failing(rows: Sequence[Assignment], **how: Any) -> list[Trajectory]:
        lost = {"stop": StopReason.ENVIRONMENT_ERROR, "reward": 0.0}
        return [replace(trajectory, **lost) for trajectory in policy_of()(rows, **how)]

    strategy, author = gepa(), Author(one_skill_more)
    with pytest.raises(EngineError, match="all rollouts to reflect on ended in an environment"):
        strategy.evolve_if_due(FIRST, failing, author, Events())
    assert not author.prompts
    author.optional, record = True, Events()  # pyright: ignore[reportAttributeAccessIssue]
    gepa().evolve_if_due(FIRST, failing, author, record)
    assert "ended in an environment error" in record.of("notice")[-1]["text"]


def test_the_lineage_is_recorded_with_critiques_and_scores():
    strategy, _, _, record = searched()
    found = strategy._lineage
    first, *others = record.of("instruction_born")
    assert (first["id"], first["text"], first["parent"], first["score"]) == (
        "i0",
        START,
        None,
        None,
    )
    assert [row["id"] for row in others] == [f"i{n}" for n in range(1, len(found))]
    for index, row in enumerate(others, 1):
        assert row["text"] == found[index].text
        assert (row["origin"], row["born"], row["critique"]) == ("gepa", 1, "It guesses.")
        assert row["shown"] == found[index].shown != ()
        assert row["score"] == strategy._means[row["id"]]
        assert row["parent_score"] == strategy._means[row["parent"]]
    refused = record.of("instruction_rejected")
    assert {row["reason"] for row in refused} == {"not above its parent"}
    assert all(row["score"] <= row["parent_score"] for row in refused)


def test_an_answer_that_was_not_shown_is_no_leak():
    def cautious(n: int, prompt: str) -> str:
        shown = {example.question.split()[1].rstrip("?") for example in read_examples(prompt)}
        others = " ".join(f"secret{i}" for i in range(60) if str(i) not in shown)
        return reply(f"{START} Never say {others}, a{n} b{n} c{n}.")

    record = Events()
    gepa().evolve_if_due(FIRST, policy_of(), Author(cautious), record)
    assert not any("brings in" in row["reason"] for row in record.of("instruction_rejected"))


@pytest.mark.parametrize("shown", [False, True])
@pytest.mark.parametrize("scoring", ["greedy", "sampled"])  # the policy checks that it is asked so
def test_the_truth_is_shown_where_it_is_asked_for(shown: bool, scoring: Any):
    _, _, author, _ = searched(options=replace(SMALL, show_answers=shown, scoring=scoring))
    assert all(f"{START[:-1]}" in prompt for prompt in author.prompts)
    assert all("Keep these texts in the new instruction" in prompt for prompt in author.prompts)
    assert all("<think>, </think>" in prompt for prompt in author.prompts)
    assert any("The correct answer is secret" in prompt for prompt in author.prompts) == shown


def test_an_llm_that_is_dead_or_spent_before_a_valid_instruction_is_an_error():
    for error, said in (
        (LLMError("gone"), "LLMError: gone"),
        (BudgetError("no money"), "no money"),
    ):
        with pytest.raises(EvolutionError, match=f"the only phase failed .*{said}"):
            searched(raising(error))


def test_the_state_holds_the_search():
    strategy, *_ = searched()
    again = gepa()
    again.load_state_dict(json.loads(json.dumps(strategy.state_dict())))
    assert again.best_prompt() == strategy.best_prompt() != Prompt(START)
    assert again.state_dict() == strategy.state_dict()
    assert again.evolve_if_due(FIRST, policy_of(), Author(raising(LLMError("no"))), Events()) == {}
    fresh = gepa()
    fresh.load_state_dict(fresh.state_dict())
    assert fresh.best_instruction_id() == "i0"
    assert [(i.id, fresh._means.get(i.id)) for i in fresh._lineage] == [("i0", None)]
    with pytest.raises(ConfigError, match="1 training questions; GEPA expects 2 or more"):
        gepa(tasks=questions(1))
