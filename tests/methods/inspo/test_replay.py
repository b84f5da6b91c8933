import json
import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cotune.methods.inspo.replay import ReplayBuffer
from cotune.types import Assignment, Instruction, Prompt, StopReason, Task, Trajectory
from tests.helpers import make_tasks, make_trajectory

INITIAL = Instruction("i0", "x")
OTHER = Instruction("i9", "y")


def rollout(task: Task, reward: float, text: str = "t", stop=StopReason.ANSWERED) -> Trajectory:
    prompt = Prompt("x")
    return make_trajectory(Assignment(task, prompt, prompt, "i0", 0), reward, text, stop)


def test_failures_are_of_the_latest_step_first_and_one_a_question():
    tasks = make_tasks(8)
    buffer = ReplayBuffer()
    buffer.add([rollout(t, 0.0, "old") for t in tasks[:4]], 1)
    buffer.add([rollout(t, 0.0) for t in (tasks[4], tasks[5], tasks[5])], 2)
    # No failures: a reward at the threshold, whose text is not kept, and a broken environment.
    broken = rollout(tasks[7], 0.0, stop=StopReason.ENVIRONMENT_ERROR)
    buffer.add([rollout(tasks[0], 1.0), rollout(tasks[6], 0.5, "fine"), broken], 2)
    failures = buffer.failures(4, random.Random(0), INITIAL)
    assert [e.step for e in failures] == [2, 2, 1, 1]
    assert {e.task.id for e in failures[:2]} == {"q4", "q5"}
    assert failures == buffer.failures(4, random.Random(0), INITIAL)
    assert len(buffer.failures(99, random.Random(0), INITIAL)) == 6
    assert "fine" not in json.dumps(buffer.state_dict())


def test_an_instructions_own_failures_come_first_and_few_new_questions_are_shown():
    tasks = make_tasks(8)
    buffer, prompt = ReplayBuffer(), Prompt("x")
    for step, identity in ((1, "i1"), (2, "i0")):
        rows = [
            Assignment(task, prompt, prompt, identity, 0) for task in tasks[4 * step - 4 : 4 * step]
        ]
        buffer.add([make_trajectory(row, 0.0) for row in rows], step)
    draw = random.Random(0)
    parent = Instruction("i1", "z", shown=("q0", "q5"))
    sources = set(parent.shown)
    assert [e.instruction_id for e in buffer.failures(6, draw, parent)] == ["i1"] * 4 + ["i0"] * 2
    assert [e.instruction_id for e in buffer.failures(5, draw, OTHER)] == ["i0"] * 4 + ["i1"]
    # Six questions are unseen; at most half of the eight are spared.
    for spared, unseen in ((5, 2), (3, 3), (1, 4)):
        failures = {e.task.id for e in buffer.failures(6, draw, parent, spared)}
        assert len(failures) == 2 + unseen
        assert sources < failures
    assert {t.id for t in buffer.recent_tasks(9, draw, sources)} == {t.id for t in tasks} - sources


def test_capacity_drops_the_oldest():
    buffer = ReplayBuffer(capacity=3)
    buffer.add([rollout(t, 0.0) for t in make_tasks(5)], 1)
    assert [t.id for t in buffer.tasks()] == ["q2", "q3", "q4"]


def test_recent_tasks_are_distinct():
    buffer = ReplayBuffer()
    tasks = make_tasks(8)
    buffer.add([rollout(t, r) for t in tasks for r in (0.0, 1.0)], 1)
    recent = buffer.recent_tasks(5, random.Random(3))
    assert len({t.id for t in recent}) == 5
    assert recent == buffer.recent_tasks(5, random.Random(3))
    assert sorted(t.id for t in buffer.recent_tasks(99, random.Random(3))) == [t.id for t in tasks]


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.floats(0, 1), st.text(), st.sampled_from("ab")), max_size=30
    )
)
def test_state_round_trip(rows):
    tasks = make_tasks(5)
    buffer, copy = ReplayBuffer(capacity=20), ReplayBuffer(capacity=20)
    for step, (i, reward, text, question) in enumerate(rows):
        task = replace(tasks[i], question=question)  # some environments draw it in each step
        trajectory = rollout(task, reward, text, StopReason.TURN_LIMIT)
        buffer.add([replace(trajectory, feedback=text[::-1])], step // 3)
    copy.load_state_dict(json.loads(json.dumps(buffer.state_dict())), tasks)
    assert copy.state_dict() == buffer.state_dict()
    assert copy.failures(3, random.Random(1), INITIAL) == buffer.failures(
        3, random.Random(1), INITIAL
    )
    assert copy.recent_tasks(3, random.Random(1)) == buffer.recent_tasks(3, random.Random(1))
