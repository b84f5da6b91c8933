"""`cotune evaluate` scores a run's best policy, `cotune try` rolls out the policy that a run file starts from."""

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from cotune.config.library_settings import allow_hub, quiet_libraries
from cotune.config.resuming import open_trained
from cotune.config.run_file import RunConfig, load_config
from cotune.engines.engine import engine_of
from cotune.engines.preflight import Preflight
from cotune.errors import ConfigError
from cotune.experiments.evaluate.evaluation import evaluate_run, show_evaluation
from cotune.experiments.evaluate.quadrants import FILE, quadrant_table, quadrants_as_json
from cotune.experiments.evaluate.questions import EvaluationOptions
from cotune.experiments.evaluate.rollout_text import show_rollouts
from cotune.experiments.evaluate.score_quadrants import evaluate_quadrants
from cotune.run.json_files import plain
from cotune.run.run_dir import RunDir
from cotune.types import Assignment, Prompt, Trajectory
from cotune.utils.progress import begin, step_progress
from cotune.utils.tables import on_console
from cotune.utils.text import command_on, one_line


def evaluate(
    folder: Path,
    console: Console,
    options: EvaluationOptions,
    as_json: bool,
    assignments: Sequence[str],
) -> None:
    """Score a run's best policy; print tables, or only JSON."""
    run, config = open_trained(folder, assignments)
    with _measuring(config, options, console, as_json):
        evaluation = evaluate_run(config, run, options, engine_of(config).open_policy)
    if as_json:
        print(json.dumps(plain(asdict(evaluation), "evaluation"), indent=2))
    else:
        show_evaluation(evaluation, console)


def show_quadrants(
    folder: Path,
    console: Console,
    options: EvaluationOptions,
    since: Path | None,
    as_json: bool,
    assignments: Sequence[str],
) -> None:
    """Score a run's quadrants, see `Quadrants`, and print them; those of all questions are kept in its folder."""
    run, config = open_trained(folder, assignments)
    first = None if since is None else RunDir.open(since)
    with _measuring(config, options, console, as_json):
        open_policy = engine_of(config).open_policy
        quadrants = evaluate_quadrants(config, run, options, first, open_policy)
    place = "not kept, since --limit leaves questions out"
    if options.limit is None:
        quadrants.write(run.path)
        report = command_on(run.path, "report")
        place = f"written to {run.path / FILE}; to show them in the report: {report}"
    if as_json:
        print(json.dumps(plain(quadrants_as_json(quadrants), "quadrants"), indent=2))
        return
    table = quadrant_table(quadrants)
    console.print(on_console(table))
    for line in map(one_line, (table.notes, place)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _measuring(
    config: RunConfig, options: EvaluationOptions, console: Console, as_json: bool
) -> Generator[None]:
    if any("=" not in benchmark for benchmark in options.benchmarks):
        allow_hub()
    quiet_libraries(config)
    with step_progress(Console(quiet=True) if as_json else console):
        begin("reading the questions")
        yield


def try_run(
    path: Path,
    console: Console,
    count: int = 4,
    split: str = "train",
    greedy: bool = False,
    assignments: Sequence[str] = (),
) -> list[Trajectory]:
    """Roll out a few questions with the run file's policy and print the results.

    Samples as training does: at its temperature, under the initial instruction, with its tools
    and rewards. Trains nothing, calls no LLM and writes nothing.

    Args:
        count: how many questions from the start of the split, one rollout each.
        greedy: pick the most likely token each time, as evaluation does.
    """
    config = load_config(path, assignments=assignments)
    quiet_libraries(config)
    with step_progress(console):
        checked = Preflight(config, new=False)
        checked.require(machine_checks=("policy files", "environment.retriever"))
        environment = checked.environment
        tasks = environment.tasks(split)[:count]
        if not tasks:
            raise ConfigError(f"--split {split} has no questions; expected a split with some")
        prompt = Prompt(checked.instruction)
        coordinator = checked.engine.open_policy(config, environment, rewards=checked.rewards)
        trajectories = coordinator.rollout(
            [Assignment(task, prompt, prompt, "i0", group) for group, task in enumerate(tasks)],
            purpose="try",
            greedy=greedy,
        )
    show_rollouts(trajectories, coordinator.codec, console)
    return trajectories
