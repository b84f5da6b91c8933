r"""Questions answered in one turn: any, and mathematics with the final answer in \boxed{…}."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from cotune.environments.base import SingleTurnEnvironment, TaskEnvironment, without_answer
from cotune.environments.registry import EnvironmentKind, Tasks
from cotune.rewards.boxed import BoxedReward, last_boxed
from cotune.rewards.qa import Reward
from cotune.types import Task, Trajectory
from cotune.utils.validation import Model


class SingleTurnOptions(Model):
    """Questions of `dataset`, answered in one turn and scored by `rewards`."""

    kind: Literal["single_turn"] = "single_turn"


KIND = EnvironmentKind(
    options=SingleTurnOptions,
    build=lambda options, tasks: SingleTurnEnvironment(tasks or {}, ""),
    dataset="required",
)


INITIAL_INSTRUCTION = "Solve the problem. Put the final answer in \\boxed{}."
REQUIRED = ("\\boxed",)


class MathOptions(Model):
    r"""Problems of `dataset`, answered in one turn in \boxed{…} and compared by math-verify."""

    kind: Literal["math"] = "math"


class MathEnvironment(TaskEnvironment):
    r"""Problems answered in one turn; its last \boxed{…} is the answer.

    Set `limits.turns` to 1, so that an episode without an answer is reported as stopped at its turn limit.

    Args:
        reward: scores the answer, or None, against a task's answers; `BoxedReward()` by default.
        tasks, initial_instruction: see `TaskEnvironment`.
    """

    measure: ClassVar[str] = "exact match"
    no_answer = "no \\boxed{} answer"
    required = REQUIRED

    def __init__(
        self,
        tasks: Mapping[str, Sequence[Task]],
        initial_instruction: str = INITIAL_INSTRUCTION,
        reward: Reward | None = None,
    ) -> None:
        super().__init__(tasks, initial_instruction)
        self._reward = BoxedReward() if reward is None else reward

    def read_answer(self, text: str) -> str | None:
        """Return the last boxed answer, stripped; None if there is none or it is blank."""
        return (last_boxed(text) or "").strip() or None

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        """Return the reward of the last boxed answer outside the policy's thoughts, and that answer."""
        answer = self.answer_of(trajectory)
        return self._reward(answer, trajectory.task.answers), answer

    def scores(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, str | None]]:
        """Return the rewards of a batch, whose answers several processes compare."""
        is_own = type(self).score is MathEnvironment.score
        if not isinstance(self._reward, BoxedReward) or not is_own:
            return [self.score(trajectory) for trajectory in trajectories]
        pairs = [(self.answer_of(t), t.task.answers) for t in trajectories]
        rewards = self._reward.score(pairs)
        return [(reward, answer) for reward, (answer, _) in zip(rewards, pairs, strict=True)]


def math_environment(options: MathOptions, tasks: Tasks | None) -> MathEnvironment:
    r"""Build the environment of a run file over the tasks of its `dataset`.

    Of an answer with a \boxed{…} the last box counts; a task without an answer has its solution's.

    Raises:
        ConfigError: a task has neither an answer nor a box in its solution.
    """
    return MathEnvironment(
        {split: [with_final(task) for task in rows] for split, rows in (tasks or {}).items()}
    )


def with_final(task: Task) -> Task:
    r"""Return a task whose answers are the last boxes of its answers, or of its solution without any."""
    box_of_solution = (last_boxed(task.solution) or "").strip()
    answers = [(last_boxed(text) or "").strip() or text for text in task.answers]
    if not answers and not box_of_solution:
        raise without_answer(task, ", or a solution with \\boxed{…} by {solution: …}")
    return replace(task, answers=tuple(answers) or (box_of_solution,))


MATH = EnvironmentKind(options=MathOptions, build=math_environment, dataset="required")
