"""`cotune plan --steps`: run some steps, discard them, and project the whole run."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cotune.cli.step_progress import step_progress
from cotune.cli.train import passed
from cotune.config.build import describe_llm
from cotune.config.cost import Plan, plan_run
from cotune.config.run_file import ASKS_A_MODEL, RunConfig, dump_config, load_config
from cotune.engines.engine import Measured, engine_of
from cotune.errors import ConfigError, Stopped
from cotune.experiments.report.pages import duration
from cotune.run.journal import RunJournal, SilentJournal
from cotune.run.run_dir import RunDir
from cotune.utils.stopping import stopped_by_sigterm
from cotune.utils.tables import plain_table

_GIB = 2**30


def plan_by_steps(
    path: Path, console: Console, steps: int, assignments: Sequence[str] = ()
) -> None:
    """Run the first steps of a run file in a temporary folder and print their time and memory.

    The policy, the rewards and the LLM are the run file's, so LLM calls are real. Nothing is
    evaluated or left behind.
    """
    config = load_config(path, assignments=assignments)
    if config.method.supervised:
        raise ConfigError(
            "--steps measures steps of GRPO, but strategy.kind is sft; leave it out: cotune plan says "
            "how many optimizer steps there are"
        )
    if not config.has_batches:
        raise ConfigError(
            f"--steps times rollout batches, but with training.frozen and strategy.kind "
            f"{config.strategy.kind} the run makes none; plan it without --steps"
        )
    steps = min(steps, config.training.steps)
    if isinstance(config.proposer, ASKS_A_MODEL):
        console.print(
            f"LLM: {describe_llm(config.proposer)} is called if evolution falls due in these steps",
            markup=False,
            highlight=False,
        )
    try:
        with stopped_by_sigterm(), tempfile.TemporaryDirectory(prefix="cotune-plan-") as folder:
            measured = measured_steps(config, Path(folder) / "run", steps, console)
    except KeyboardInterrupt:
        raise Stopped("stopped; nothing was kept") from None
    rows = config.training.questions_per_step * config.training.group_size
    planned = plan_run(config)
    console.print(_steps_table(measured))
    _print_rates(measured, planned, console)
    projection = project(measured, planned, rows)
    console.print(_projection_table(config, projection))
    _print_notes(measured, planned, projection, console)


def measured_steps(config: RunConfig, folder: Path, steps: int, console: Console) -> Measured:
    """Run the first steps of a run in a temporary folder and show progress.

    Raises:
        ConfigError: for the same reasons as in `cotune train`.
    """
    given = config.model_copy(update={"output": folder})
    with step_progress(console):
        checked = passed(given)
        setup = checked.engine.prepare(checked, RunDir(folder, attempt=1).checkpoints_path)
        run, journal = _kept_for_now(given, folder, steps, console)
        return engine_of(given).measure(given, run, journal, setup, steps)


def _kept_for_now(
    config: RunConfig, folder: Path, steps: int, console: Console
) -> tuple[RunDir, RunJournal | SilentJournal]:
    """Return the temporary run folder and its journal, which is silent in all but the first process."""
    from cotune.engines.comm import world

    if world().rank != 0:
        return RunDir(folder, attempt=1), SilentJournal()
    run = RunDir.create(folder, dump_config(config))
    return run, RunJournal(run, console, steps, trajectories_every=0)


@dataclass(frozen=True, slots=True)
class Share:
    """The cost of one purpose of rollouts; counts are upper bounds, as in the plan."""

    rollouts: int
    tokens: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Projection:
    """The whole run, projected from the measured rate.

    Attributes:
        shares: costs by purpose; "train" includes the updates.
        llm: total seconds of LLM calls, made one after the other; None if none was measured.
    """

    shares: Mapping[str, Share]
    llm: float | None

    @property
    def seconds(self) -> float:
        return math.fsum(share.seconds for share in self.shares.values()) + (self.llm or 0.0)


def project(measured: Measured, planned: Plan, rollouts_per_step: int) -> Projection:
    """Project a planned run from the measured rate.

    Assumes that evaluation and any purpose not measured run as fast as training rollouts.
    """
    totals, steady = measured.totals, measured.steady
    per_step = math.fsum(step.training for step in steady) / len(steady)
    rollout = math.fsum(step.rollouts for step in steady) / len(steady) / rollouts_per_step
    shares: dict[str, Share] = {}
    for purpose, count in planned.rollouts.items():
        known = purpose if totals.rollouts.get(purpose) else "train"
        tokens = totals.generated_tokens[known] / max(1, totals.rollouts[known])
        if purpose == "train":
            seconds = count / rollouts_per_step * per_step
        elif known == purpose:
            seconds = count * totals.seconds[purpose] / totals.rollouts[purpose]
        else:
            seconds = count * rollout
        shares[purpose] = Share(count, count * tokens, seconds)
    llm = None
    if not planned.calls:
        llm = 0.0
    elif totals.llm_calls:
        llm = planned.calls * totals.llm_seconds / totals.llm_calls
    return Projection(shares, llm)


def _steps_table(measured: Measured) -> Table:
    columns = ("step", "evolution", "rollouts", "update", "all")
    table = plain_table("Measured, in seconds", (), columns)
    for number, step in enumerate(measured.steps, 1):
        cells = (step.evolution, step.rollouts, step.update, step.evolution + step.training)
        table.add_row(str(number), *(f"{seconds:.2f}" for seconds in cells))
    return table


def _print_rates(measured: Measured, planned: Plan, console: Console) -> None:
    totals = measured.totals
    parts = [f"{measured.tokens_per_second:,.0f} generated tokens a second of training rollouts"]
    if measured.memory is not None:
        parts.append(f"peak memory {measured.memory / _GIB:.2f} GiB")
    if measured.gpu_memory is not None and measured.gpu_total is not None:
        parts.append(
            f"peak GPU memory {measured.gpu_memory / _GIB:.2f} of {measured.gpu_total / _GIB:.1f} GiB"
        )
    console.print("; ".join(parts), highlight=False)
    if totals.llm_calls:
        console.print(
            f"{totals.llm_calls:,} LLM call{'' if totals.llm_calls == 1 else 's'} "
            f"({totals.llm_failed} failed) in {totals.llm_seconds:.1f} s, {totals.money:.4f} spent",
            highlight=False,
        )
    elif planned.calls:
        console.print("no LLM call: no evolution fell due in these steps", highlight=False)


def _projection_table(config: RunConfig, projection: Projection) -> Table:
    per_rollout = config.limits.turns * config.limits.turn_tokens
    title = f"The whole run, {config.training.steps:,} steps, at this rate"
    columns = ("rollouts at most", "tokens at most", "tokens projected", "time projected")
    table = plain_table(title, [""], columns)
    for purpose, share in projection.shares.items():
        table.add_row(
            purpose,
            f"{share.rollouts:,}",
            f"{share.rollouts * per_rollout:,}",
            f"{share.tokens:,.0f}",
            duration(share.seconds),
        )
    if projection.llm != 0.0:
        table.add_row(
            "LLM", "", "", "", "?" if projection.llm is None else duration(projection.llm)
        )
    table.add_row("all", "", "", "", duration(projection.seconds))
    return table


def _print_notes(
    measured: Measured, planned: Plan, projection: Projection, console: Console
) -> None:
    notes = [
        "The last two columns assume the most rollouts, at the rate of the steps after the first."
    ]
    if len(measured.steps) == 1:
        notes[0] = (
            "The last two columns are based on one step, warm-up included: give --steps 2 or more."
        )
    alike = [
        name for name in planned.rollouts if name != "train" and not measured.totals.rollouts[name]
    ]
    if alike:
        notes.append(f"Not measured, assumed to be as fast as training: {', '.join(alike)}.")
    if projection.llm is None:
        notes.append("LLM calls were not measured: their time is not included.")
    console.print(" ".join(notes), highlight=False)
