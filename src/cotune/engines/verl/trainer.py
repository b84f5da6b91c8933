"""veRL's synchronous trainer, with a joint run's actions at its public hooks.

veRL's loop, in the order of a step:

    on_step_begin       weights are synced                  -> evolve, evaluate
    step:  generate_sequences                               -> assign (`rollouts.Manager`)
           on_sample_end                                    -> credit, keep failures
           old log-probabilities, advantages, update        on the prompt that is trained on
    save, on_save                                           -> the strategy's state beside the weights
    on_step_end         weights are synced
"""

from pathlib import Path
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1 import PPOTrainerSync

import cotune.engines.verl.advantages  # noqa: F401  registers the estimator
from cotune.engines.verl.hooks import VerlJoint
from cotune.engines.verl.rollouts import Apart, Manager

_POLL_SECONDS = 0.2
"""Seconds between veRL's polls for finished rollouts; 2 s, its default, is long for an evaluation."""


class JointTrainer(PPOTrainerSync):
    """Train a joint run on veRL; see the module docstring. Set `joint` before calling `init`."""

    joint: VerlJoint
    manager: Manager

    def on_init_end(self) -> None:
        super().on_init_end()
        self.replay_buffer.poll_interval = _POLL_SECONDS

    def take_manager(self, manager: Manager) -> None:
        """Connect the manager to the joint run that decides its rows; call before `fit`."""
        self.manager = self.agent_loop_manager = manager
        manager.joint = self.joint
        self.joint.bind(self, Apart(self))

    def on_step_begin(self) -> None:
        super().on_step_begin()
        self.joint.begin_step()

    def on_sample_end(self) -> None:
        super().on_sample_end()
        self.joint.take(self.manager.trained_rollouts())

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        batch = super().step(metrics, timing_raw)
        if self.joint.end_step(metrics):
            # This is the last step: it is saved, and no step follows.
            self.total_training_steps = self.global_steps
            if self.config.trainer.save_freq > 0:
                self.config.trainer.save_freq = 1
        return batch


class SaveStrategy(CheckpointCallback):
    """Save cotune's state; veRL calls it once its half of a checkpoint is written."""

    def on_save(
        self,
        trainer: Any,
        global_step: int,
        checkpoint_dir: str,
        async_save: bool = False,
        **_: Any,
    ) -> None:
        trainer.joint.save(Path(checkpoint_dir))
