"""An engine that trains nothing: scripted steps, and the bundled policy as the best one."""

import json
import shutil

from rich.console import Console

from cotune.config.run_file import RunConfig
from cotune.engines.engine import Engine
from cotune.engines.evaluation import Outcome, conclude
from cotune.engines.joint import RunSettings, settings_of
from cotune.engines.preflight import Check, Preflight
from cotune.engines.run_start import opened_run
from cotune.errors import ConfigError
from cotune.policy.policy_files import policy_path
from cotune.run.best import read_best
from cotune.run.checkpoints import save_state, trained_steps
from cotune.run.record import Record
from cotune.run.scores import score_trajectories
from cotune.types import Task, Trajectory
from tests.helpers import make_trajectory, under


class Fake(Engine):
    """Keeps a checkpoint a step; `engine_args.stop_at` is the step at which a person stops it."""

    def installation(self) -> str:
        return "engine fake: here"

    def check_installed(self) -> None:
        pass

    def check(self, checked: Preflight) -> list[Check]:
        def check_engine_args() -> None:
            if unknown := set(checked.config.training.engine_args) - {"stop_at"}:
                raise ConfigError(f"training.engine_args: {sorted(unknown)} unknown; remove them")

        return [Check("training", check_engine_args)]

    def prepare(self, checked: Preflight, console: Console) -> tuple[Preflight, RunSettings]:
        return checked, settings_of(checked.config, console)

    def train(self, setup: tuple[Preflight, RunSettings], *, resume: bool) -> None:
        checked, settings = setup
        with opened_run(settings, checked.config.training.steps, resume=resume) as run:
            self._train(checked, settings, run, resume=resume)

    def _train(
        self, checked: Preflight, settings: RunSettings, run: Record, *, resume: bool
    ) -> None:
        config = checked.config
        if (run.path / "damaged").exists():
            raise ConfigError(f"{run.path}/damaged: is damaged")
        trained = 0
        if resume:
            run.replace_config(settings.record)
            trained = trained_steps(run.checkpoints_path) or 0
        run.begin_attempt(trained or None)
        for step in range(trained + 1, config.training.steps + 1):
            if not trained and step == config.training.engine_args.get("stop_at"):
                raise KeyboardInterrupt
            run.step = step
            run.count("train", 8, 80)
            run.metrics(step, {"reward": step / 10, "loss": 0.0})
            checkpoint = run.checkpoints_path / f"checkpoint-{step}"
            checkpoint.mkdir(parents=True)
            save_state(checkpoint, {"batches": step})
        conclude(settings, run, _outcome(config, run, checked), checked.environment)


def _outcome(config: RunConfig, run: Record, setup: Preflight) -> Outcome:
    """Scores by hand, and best/ as engines leave it."""
    steps, text = config.training.steps, setup.instruction
    for when, rewards in (("before", (0.0, 0.0)), ("after", (1.0, 0.0))):
        batch = [_trajectory(task, r, text) for task, r in zip(_tasks(setup), rewards, strict=True)]
        score = score_trajectories(batch)
        run.score(steps + 1, batch, score, split="test", when=when, trained=steps, prompt="initial")
    shutil.copytree(policy_path(config.policy.path), run.best_path, dirs_exist_ok=True)
    (run.best_path / "instruction.txt").write_text(text + "\n")
    best = {
        "schema_version": 1,
        "em": 0.5,
        "step": steps,
        "instruction_id": "i0",
        "instruction": text,
    }
    (run.best_path / "best.json").write_text(json.dumps({**best, "hint": ""}))
    before = score_trajectories([_trajectory(task, 0.0, text) for task in _tasks(setup)])
    record = read_best(run.best_path)
    assert record is not None
    return Outcome(kept=record, steps=steps, before=before, after=score, plain=score)


def _tasks(setup: Preflight) -> list[Task]:
    return list(setup.environment.tasks("test"))[:2]


def _trajectory(task: Task, reward: float, instruction: str) -> Trajectory:
    return make_trajectory(under(task, instruction), reward, turns=())


ENGINE = Fake()
