from cotune.methods.static import StaticStrategy
from cotune.protocols import Strategy
from cotune.types import Distillation
from tests.helpers import Events, ScriptedRollout, make_tasks, run
from tests.scripted import ScriptedLLM


def test_it_does_nothing():
    strategy: Strategy = StaticStrategy("Answer.")
    rollout, events = ScriptedRollout(lambda _: 0.5), Events()
    metrics = run(strategy, rollout, ScriptedLLM([]), events, range(1, 5), make_tasks(3))
    assert metrics == [{}] * 4
    assert events.rows == []
    assert {purpose for purpose, _ in rollout.calls} == {"train"}
    assert strategy.best_prompt().instruction == "Answer."
    assert strategy.best_instruction_id() == "i0"
    strategy.settle("i1")
    assert (strategy.choice(), strategy.best_hint()) == (None, "")
    assert (strategy.checks_uplift, strategy.has_teacher) == (False, False)
    assert strategy.distillation == Distillation(ratio="original")
