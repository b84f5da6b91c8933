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


def at_rollouts(purpose: str, step: int, call: int = 1, *, after: bool) -> None:
    """Before or after this process's n-th rollout call of a purpose in a step.

    After is: once its rollouts are made and counted, before anything else.
    """
    from cotune.rollout.coordinator import Coordinator

    roll_out, calls = Coordinator._roll_out, []

    def killed(self: Any, assignments: Any, this_purpose: str, sampling: Any) -> Any:
        matches = this_purpose == purpose and self.current_step == step
        if matches:
            calls.append(this_purpose)
        if matches and len(calls) == call and not after:
            kill()
        trajectories = roll_out(self, assignments, this_purpose, sampling)
        if matches and len(calls) == call:
            kill()
        return trajectories

    Coordinator._roll_out = killed  # type: ignore[method-assign]


def before_reply(step: int, call: int) -> None:
    """Before this process's n-th question to the LLM in a step."""
    from cotune.llm.client import MeteredLLM

    complete, calls = MeteredLLM.complete, []

    def killed(self: Any, prompt: str) -> Any:
        if self._record.step == step:
            calls.append(prompt)
            if len(calls) == call:
                kill()
        return complete(self, prompt)

    MeteredLLM.complete = killed  # type: ignore[method-assign]


def note_calls(path: str) -> None:
    """Appends a line for each rollout call that was made and each question that was put."""
    from cotune.llm.client import MeteredLLM
    from cotune.rollout.coordinator import Coordinator

    roll_out, complete = Coordinator._roll_out, MeteredLLM.complete

    def write(*words: object) -> None:
        with open(path, "a", encoding="utf-8") as file:
            print(*words, file=file)

    def rolled_out(self: Any, assignments: Any, purpose: str, sampling: Any) -> Any:
        trajectories = roll_out(self, assignments, purpose, sampling)
        write(purpose, self.current_step, len(trajectories))
        return trajectories

    def completed(self: Any, prompt: str) -> Any:
        write("llm", self._record.step, 1)
        return complete(self, prompt)

    Coordinator._roll_out = rolled_out  # type: ignore[method-assign]
    MeteredLLM.complete = completed  # type: ignore[method-assign]


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
    from cotune.engines.trl.trl_joint import CheckpointCallback

    log = CheckpointCallback.on_log

    def killed(self: Any, args: Any, state: Any, *others: Any, **options: Any) -> None:
        if state.global_step == step:
            kill()
        log(self, args, state, *others, **options)

    CheckpointCallback.on_log = killed  # type: ignore[method-assign]


def interrupted(step: int) -> None:
    """Ctrl-C once a step is written down."""
    from cotune.engines.trl.trl_joint import CheckpointCallback

    log = CheckpointCallback.on_log

    def killed(self: Any, args: Any, state: Any, *others: Any, **options: Any) -> None:
        log(self, args, state, *others, **options)
        if state.global_step == step:
            signal.raise_signal(signal.SIGINT)

    CheckpointCallback.on_log = killed  # type: ignore[method-assign]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it


def in_the_state(step: int) -> None:
    """When cotune's half of a checkpoint is written, but not yet under its name."""
    replace = os.replace

    def killed(source: Any, target: Any, **options: Any) -> None:
        if str(target).endswith(f"checkpoint-{step}/cotune-state.json"):
            kill()
        replace(source, target, **options)

    os.replace = killed  # type: ignore[assignment]


def check_uplift() -> None:
    """INSPO's instruction is checked against the initial one at the end of a run."""
    from cotune.methods.inspo.inspo import Inspo

    Inspo.checks_uplift = True  # type: ignore[attr-defined]  # pyright: ignore


def reward_lengths() -> None:
    """Rewards that any policy's rollouts differ in, so that every run has gradients to lose."""
    from cotune.worlds.ladder import LadderEnvironment
    from cotune_lab.worlds.geo import GeoEnvironment

    for kind in (LadderEnvironment, GeoEnvironment):

        def by_length(
            self: Any, trajectory: Any, score: Any = kind.score
        ) -> tuple[float, str | None]:
            return float(len(trajectory.own_text) % 2), score(self, trajectory)[1]

        kind.score = by_length  # type: ignore[method-assign]


PLACES: dict[str, Callable[[int], None]] = {
    "nowhere": lambda step: None,
    "train": lambda step: at_rollouts("train", step, after=True),
    "verify": lambda step: at_rollouts("verify", step, after=True),
    "before verify": lambda step: at_rollouts("verify", step, after=False),
    "evolve": lambda step: at_rollouts("evolve", step, after=True),
    "before third evolve": lambda step: at_rollouts("evolve", step, 3, after=False),
    "second reply": lambda step: before_reply(step, 2),
    "third evaluation": lambda step: at_rollouts("evaluate", step, 3, after=True),
    "checkpoint": between_the_halves,
    "state": in_the_state,
    "log": before_the_log,
    "ctrl-c": interrupted,
}

if __name__ == "__main__":
    place, at, *command = sys.argv[1:]
    reward_lengths()
    check_uplift()
    note_calls(os.environ.get("SAMPLED", os.devnull))
    PLACES[place](int(at))
    from cotune.cli.app import main

    sys.argv = ["cotune", *command]
    main()
