"""`cotune plan --steps`: run some steps, discard them, and project the whole run."""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cotune.cli.step_progress import step_progress
from cotune.cli.train import passed
from cotune.config.build import describe_llm
from cotune.config.cost import Plan, plan_run
from cotune.config.run_file import ASKS_A_MODEL, RunConfig, load_config
from cotune.engines.engine import Measured
from cotune.errors import ConfigError, Stopped
from cotune.utils.stopping import stopped_by_sigterm
from cotune.utils.tables import duration, plain_table
from cotune.utils.text import size


def plan_by_steps(
    path: Path, console: Console, steps: int, assignments: Sequence[str] = ()
) -> None:
    """Run the first steps of a run file in a temporary folder and print their time and memory.

    The policy, the rewards and the LLM are the run file's, so LLM calls are real. Nothing is
    evaluated or left behind.
    """
    config = load_config(path, assignments=assignments)
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
    planned = plan_run(config)
    training = config.training
    seconds = project(measured, planned, training.questions_per_step * training.group_size)
    table = plain_table(
        "Measured, in seconds", (), ("step", "evolution", "rollouts", "update", "all")
    )
    for number, step in enumerate(measured.steps, 1):
        times = (step.evolution, step.rollouts, step.update, step.evolution + step.training)
        table.add_row(str(number), *(f"{time:.2f}" for time in times))
    console.print(table)
    console.print("\n".join(rates(measured)), highlight=False)
    title = f"The whole run, {training.steps:,} steps, at this rate"
    table = plain_table(title, [""], ["rollouts at most", "time projected"])
    for part, projected in seconds.items():
        count = planned.rollouts.get(part)
        time = "?" if projected is None else duration(projected)
        table.add_row(part, "" if count is None else f"{count:,}", time)
    table.add_row("all", "", duration(math.fsum(filter(None, seconds.values()))))
    console.print(table)
    console.print(caveats(measured, planned, seconds), highlight=False)


def measured_steps(config: RunConfig, folder: Path, steps: int, console: Console) -> Measured:
    """Run the first steps of a run in a temporary folder and show progress.

    Raises:
        ConfigError: for the same reasons as in `cotune train`.
    """
    changes = {
        "training": {"save_every": 0},
        "evaluation": {"every": 0, "before": False},
        "logging": {"report_to": (), "trajectories_every": 0},
    }
    sections = {
        name: getattr(config, name).model_copy(update=fields) for name, fields in changes.items()
    }
    measured = config.model_copy(update={"output": folder, **sections})
    with step_progress(console):
        checked = passed(measured)
        return checked.engine.measure(checked.engine.prepare(checked, console), steps)


def project(measured: Measured, planned: Plan, rollouts_per_step: int) -> dict[str, float | None]:
    """Return the seconds of a planned run by purpose of its rollouts, and of its "LLM" calls.

    "train" includes the updates. Evaluation and any purpose not measured count as fast as training
    rollouts. LLM calls are made one after the other; None if none was measured.
    """
    totals = measured.totals
    steady = measured.steady
    per_step = math.fsum(step.training for step in steady) / len(steady)
    rollout = math.fsum(step.rollouts for step in steady) / len(steady) / rollouts_per_step
    seconds: dict[str, float | None] = {}
    for purpose, count in planned.rollouts.items():
        if purpose == "train":
            seconds[purpose] = count / rollouts_per_step * per_step
        elif measured_rollouts := totals.rollouts.get(purpose):
            seconds[purpose] = count * totals.seconds[purpose] / measured_rollouts
        else:
            seconds[purpose] = count * rollout
    if planned.calls:
        calls = totals.llm_calls
        seconds["LLM"] = planned.calls * totals.llm_seconds / calls if calls else None
    return seconds


def rates(measured: Measured) -> list[str]:
    """Return lines about speed, memory and LLM calls."""
    totals = measured.totals
    parts = [f"{measured.tokens_per_second:,.0f} generated tokens a second of training rollouts"]
    if measured.memory is not None:
        parts.append(f"peak memory {size(measured.memory)}")
    if measured.gpu_memory is not None and measured.gpu_total is not None:
        parts.append(f"peak GPU memory {size(measured.gpu_memory)} of {size(measured.gpu_total)}")
    calls = (
        f"{totals.llm_calls:,} LLM calls ({totals.llm_failed} failed) in {totals.llm_seconds:.1f} s, "
        f"{totals.money:.4f} spent"
    )
    return ["; ".join(parts), *([calls] if totals.llm_calls else [])]


def caveats(measured: Measured, planned: Plan, seconds: dict[str, float | None]) -> str:
    """Return what the projection assumes."""
    text = "The time assumes the most rollouts, at the rate of the steps after the first."
    if len(measured.steps) == 1:
        text = "The time is based on one step, warm-up included: give --steps 2 or more."
    rollouts = measured.totals.rollouts
    assumed = [name for name in planned.rollouts if name != "train" and not rollouts[name]]
    if assumed:
        text += f" Not measured, assumed to be as fast as training: {', '.join(assumed)}."
    if seconds.get("LLM", 0.0) is None:
        text += " No evolution fell due: the time of LLM calls is not included."
    return text
