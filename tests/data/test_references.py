r"""References: what a policy would write that answers, in each environment's own form."""

from cotune.environments.base import SingleTurnEnvironment, reference_of
from cotune.environments.math import MathEnvironment
from cotune.environments.search import SearchEnvironment
from cotune.rewards import exact_match
from cotune.types import Action, Assignment, Prompt, Task
from cotune.worlds.geo import GeoEnvironment, GeoOptions
from tests.helpers import make_trajectory
from tests.policy.tiny import Letters

MATH = MathEnvironment({"train": ()})
PLAIN = SingleTurnEnvironment({"train": ()}, "")


def reward_of(environment: MathEnvironment | SearchEnvironment, task: Task) -> float:
    prompt = Prompt(environment.initial_instruction)
    text = environment.reference(task)
    (response,) = environment.respond([Action(task, (), text, last=False)])
    assert response.done
    assert not response.error
    assignment = Assignment(task, prompt, prompt, "i0", 0)
    return environment.score(make_trajectory(assignment, 0.0, text))[0]


def test_references_of_the_bundled_world_are_right() -> None:
    environment = GeoEnvironment(GeoOptions(train=30, validation=1, test=1))
    tasks = environment.tasks("train")
    assert [reward_of(environment, task) for task in tasks] == [1.0] * len(tasks)


def test_math() -> None:
    boxed = Task("a", "?", ("4",), solution="Two and two. \\boxed{4} ")
    assert MATH.reference(boxed) == "Two and two. \\boxed{4}"
    assert MATH.reference(Task("b", "?", ("4", "4.0"))) == "\\boxed{4}"
    gsm8k = Task("c", "?", ("72",), solution="48 + 24 = 72\n#### 72")
    assert MATH.reference(gsm8k) == "48 + 24 = 72 \\boxed{72}"


def test_search() -> None:
    environment = SearchEnvironment({"train": ()}, _NoSearch(), "", exact_match)
    assert (
        environment.reference(Task("a", "?", ("Lima", "Lima, Peru"))) == "<answer> Lima </answer>"
    )
    assert environment.reference(Task("b", "?", ())) == ""
    solved = "<think> It is Lima. </think> <answer> Lima </answer>"
    assert environment.reference(Task("c", "?", ("Lima",), solution=solved)) == solved
    assert environment.reference(Task("d", "?", ("Lima",), solution="Lima is it")) == (
        "<answer> Lima </answer>"
    )


def test_plain_text_elsewhere() -> None:
    assert PLAIN.reference(Task("a", "?", (" yes ", "yeah"))) == "yes"
    assert PLAIN.reference(Task("b", "?", ("yes",), solution="Because. yes")) == "Because. yes"
    assert PLAIN.reference(Task("c", "?", ())) == ""
    letters = Letters()  # an environment that has no such member
    assert reference_of(letters, letters.tasks("train")[0]) == "a"


class _NoSearch:
    def search(self, queries: object, top_k: int) -> list[list[str]]:
        raise AssertionError("nothing is searched")
