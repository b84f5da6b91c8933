"""The reference loop behind `Driver`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cotune.methods.context_distillation import batch_weights
from cotune.policy.codec import HFCodec
from cotune.policy.policy_files import policy_path
from cotune.protocols import Environment, Strategy
from cotune.rollout.coordinator import Coordinator, RolloutSettings
from cotune.rollout.task_order import TaskOrder
from cotune.run.record import Record
from cotune.types import Trajectory
from tests.engines.contract.recording import Recording, Row, update_row, watch
from tests.engines.contract.script import POLICY, Script
from tests.reference_loop import LoopSettings, completion_logprobs, group_advantages, train
from tests.run_files import environment_of, strategy_of


def build_parts(script: Script, codec: HFCodec) -> tuple[Environment, Strategy]:
    """Environment and strategy of a script as a run file has them; nothing is written."""
    config = script.config(Path("unused"))
    environment = environment_of(config)
    return environment, strategy_of(config, environment, codec)


@dataclass(frozen=True)
class LoopDriver:
    """The reference loop."""

    folder: Path
    policy: str = POLICY

    def run(self, script: Script) -> Recording:
        path = policy_path(self.policy)
        model = AutoModelForCausalLM.from_pretrained(path)
        codec = HFCodec(AutoTokenizer.from_pretrained(path))
        environment, strategy = build_parts(script, codec)
        lines = self.folder / "loop.jsonl"
        watch(strategy, lines)
        updates: list[list[Row]] = []
        record = Record()
        record.begin_attempt(None)
        coordinator = Coordinator(
            strategy=strategy,
            environment=environment,
            codec=codec,
            sampler=script.sampler(codec),
            llm=script.optimizer(),
            record=record,
            settings=RolloutSettings(
                script.limits, seed=script.seed, context_tokens=model.config.max_position_embeddings
            ),
        )
        observe = coordinator.observe

        def observe_and_record(trajectories: list[Trajectory], *args: Any) -> Any:
            result = observe(trajectories, *args)
            updates.append(_loop_rows(model, trajectories, strategy, script.group_size))
            return result

        coordinator.observe = observe_and_record  # type: ignore[method-assign]
        tasks = environment.tasks("train")
        settings = LoopSettings(
            steps=script.steps,
            group_size=script.group_size,
            steps_per_epoch=len(tasks) // script.questions,
            learning_rate=script.learning_rate,
        )
        order = TaskOrder(tasks, script.questions, script.seed)
        train(model, coordinator, order.step, settings)
        return Recording.read(lines, updates)


def _loop_rows(
    model: Any, trajectories: list[Trajectory], strategy: Any, group_size: int
) -> list[Row]:
    with torch.no_grad():
        old_logprobs = completion_logprobs(model, trajectories)[0].double().numpy()
    advantages = group_advantages(torch.tensor([t.reward for t in trajectories]), group_size)
    weights = batch_weights(trajectories, old_logprobs, advantages.tolist(), strategy.distillation)
    return [
        update_row(t.prompt_ids, t.completion_ids, t.mask, (float(a) * w[: len(t.mask)]).tolist())
        for t, a, w in zip(trajectories, advantages, weights, strict=True)
    ]
