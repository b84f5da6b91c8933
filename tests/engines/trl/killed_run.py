"""The command line in a process that kills itself at a given place.

python -m tests.engines.trl.killed_run PLACE STEP train FILE --quiet
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn


def kill() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def after_rollouts(purpose: str, step: int) -> None:
    """Once a step's rollouts of a purpose are made and counted, before anything else."""
    from cotune.coordinator import Coordinator

    rollout = Coordinator.rollout

    def killed(self: Any, assignments: Any, **given: Any) -> Any:
        trajectories = rollout(self, assignments, **given)
        if given["purpose"] == purpose and self.step == step:
            kill()
        return trajectories

    Coordinator.rollout = killed  # type: ignore[method-assign]


def between_the_halves(step: int) -> None:
    """When all of a checkpoint is there but trainer_state.json."""
    from transformers import TrainerState

    save = TrainerState.save_to_json

    def killed(self: Any, path: str) -> None:
        if self.global_step == step:
            kill()
        save(self, path)

    TrainerState.save_to_json = killed  # type: ignore[method-assign]


def before_the_log(step: int) -> None:
    """When the weights are updated, but nothing of the step is written to metrics.jsonl."""
    from cotune.engines.trl.callback import JointCallback

    log = JointCallback.on_log

    def killed(self: Any, args: Any, state: Any, *rest: Any, **given: Any) -> None:
        if state.global_step == step:
            kill()
        log(self, args, state, *rest, **given)

    JointCallback.on_log = killed  # type: ignore[method-assign]


def in_the_state(step: int) -> None:
    """When cotune's half of a checkpoint is written, but not yet under its name."""
    replace = os.replace

    def killed(source: Any, target: Any, **given: Any) -> None:
        if os.path.basename(target) == f"cotune-state-{step}.json":
            kill()
        replace(source, target, **given)

    os.replace = killed  # type: ignore[assignment]


def reward_lengths() -> None:
    """Rewards that any policy's rollouts differ in, so that every run has gradients to lose."""
    from cotune.environments.geo import GeoEnvironment

    score = GeoEnvironment.score

    def by_length(self: Any, trajectory: Any) -> tuple[float, str | None]:
        return float(len(trajectory.own_text) % 2), score(self, trajectory)[1]

    GeoEnvironment.score = by_length  # type: ignore[method-assign]


PLACES: dict[str, Callable[[int], None]] = {
    "nowhere": lambda step: None,
    "train": lambda step: after_rollouts("train", step),
    "verify": lambda step: after_rollouts("verify", step),
    "checkpoint": between_the_halves,
    "state": in_the_state,
    "log": before_the_log,
}

if __name__ == "__main__":
    place, at, *command = sys.argv[1:]
    reward_lengths()
    PLACES[place](int(at))
    from cotune.cli import main

    sys.argv = ["cotune", *command]
    main()
