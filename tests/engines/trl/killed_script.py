"""A script that trains the tiny policy with INSPO, in a process that kills itself at a given place.

python -m tests.engines.trl.killed_script PLACE STEP FOLDER
"""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from cotune.run.best import read_best
from tests.engines.trl.killed_run import at_rollouts, in_the_state, kill
from tests.engines.trl.script_runs import begin


def before_the_swap(step: int) -> None:
    """When the best policy of a step is complete, and the earlier one is gone."""
    from cotune.engines.evaluation import BestPolicy

    swap_in = BestPolicy._swap_in

    def killed(self: Any, staged: Path) -> None:
        record = read_best(staged)
        if record is not None and record.step == step:
            shutil.rmtree(self._folder, ignore_errors=True)
            kill()
        swap_in(self, staged)

    BestPolicy._swap_in = killed  # type: ignore[method-assign]


def in_the_weights(step: int) -> None:
    """When the best policy of a step has weights, but nothing else yet."""
    from cotune.engines.trl.joint_trainer import TRLBest

    write = TRLBest.write_weights

    def killed(self: Any, joint: Any, folder: Path, trained: int) -> None:
        write(self, joint, folder, trained)
        if trained == step:
            kill()

    TRLBest.write_weights = killed  # type: ignore[method-assign]


def before_the_report(step: int) -> None:
    """When the summary is written, but not the report."""
    from cotune.engines import evaluation

    def killed(*_: object) -> NoReturn:
        kill()

    evaluation.write_report = killed  # pyright: ignore


PLACES: dict[str, Callable[[int], None]] = {
    "nowhere": lambda step: None,
    "first step": lambda step: at_rollouts("train", step, after=True),
    "state": in_the_state,
    "weights": in_the_weights,
    "swap": before_the_swap,
    "closing": lambda step: at_rollouts("evaluate", step, after=True),
    "report": before_the_report,
}

if __name__ == "__main__":
    place, at, output, resume = sys.argv[1:]
    PLACES[place](int(at))
    training = begin(
        Path(output),
        "inspo",
        evaluates=True,
        save_strategy="steps",
        save_steps=1,
        lr_scheduler_type="linear",
    )
    training.trainer.train(resume_from_checkpoint=resume == "resume")
