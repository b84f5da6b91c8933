"""`cotune plan`: the most that a run can spend, and with --steps the time and memory of some steps."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from cotune.cli.train import passed
from cotune.config.cost import Plan, plan_run, show_plan, split_sizes
from cotune.config.library_settings import quiet_libraries
from cotune.config.run_checks import shape_notices
from cotune.config.run_file import RunConfig, load_config
from cotune.data.splits import SPLITS
from cotune.engines.engine import Measured, engine_of
from cotune.errors import ConfigError, Stopped
from cotune.utils.processes import stopped_by_sigterm
from cotune.utils.progress import step_progress
from cotune.utils.tables import duration, plain_table
from cotune.utils.text import size


def plan(
    path: Path, console: Console, assignments: Sequence[str] = (), questions: str | None = None
) -> None:
    """Print the most that a run can spend, before it spends anything.

    Args:
        questions: "TRAIN,VALIDATION,TEST": plan for this many, and do not read the data.

    Raises:
        ConfigError: `questions` is not three numbers, or the data cannot be read.
    """
    config = load_config(path, assignments=assignments)
    quiet_libraries(config)
    sizes: Mapping[str, int] | None = None
    if questions is not None:
        counts = questions.split(",")
        if len(counts) != len(SPLITS) or not all(count.strip().isdecimal() for count in counts):
            raise ConfigError(
                f"--questions is {questions}; expected three numbers, as in --questions 5000,500,500"
            )
        sizes = dict(zip(SPLITS, map(int, counts), strict=True))
    sizes = sizes or split_sizes(config)
    planned = plan_run(config, sizes)
    show_plan(planned, config.name, config.limits, config.proposer, console)
    for text in shape_notices(config.strategy, config.shape(sizes["train"])):
        console.print(text, markup=False, highlight=False)
    if price := engine_of(config).price(config, planned.rollouts):
        console.print(price, markup=False, highlight=False)


# ---- plan --steps


def plan_by_steps(
    path: Path, console: Console, steps: int, assignments: Sequence[str] = ()
) -> None:
    """Run the first steps of a run file in a temporary folder and print their time and memory.

    The policy, the rewards and the LLM are the run file's, so LLM calls are real. Nothing is evaluated or left behind.
    """
    config = load_config(path, assignments=assignments)
    if not config.has_batches:
        raise ConfigError(
            f"--steps times rollout batches, but with training.frozen and strategy.kind "
            f"{config.strategy.kind} the run makes none; plan it without --steps"
        )
    steps = min(steps, config.training.steps)
    try:
        with stopped_by_sigterm(), tempfile.TemporaryDirectory(prefix="cotune-plan-") as folder:
            measured = measure(config, Path(folder) / "run", steps, console)
    except KeyboardInterrupt:
        raise Stopped("stopped; nothing was kept") from None
    show_projection(config, measured, plan_run(config), console)


def measure(config: RunConfig, folder: Path, steps: int, console: Console) -> Measured:
    """Run the first steps of a run in a folder and show progress; raises as `cotune train` does."""
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


def show_projection(config: RunConfig, measured: Measured, planned: Plan, console: Console) -> None:
    """Print the measured seconds, and what the whole run takes at this rate."""
    table = plain_table("Measured, in seconds", (), ("step", "evolution", "rollouts and update"))
    for number, seconds in enumerate(measured.steps, 1):
        table.add_row(str(number), *(f"{part:.2f}" for part in seconds))
    console.print(table)
    totals = measured.totals
    rate = totals.generated_tokens["train"] / max(totals.seconds["train"], 1e-9)
    text = f"{rate:,.0f} generated tokens a second of training rollouts"
    if measured.gpu_memory is not None:
        text += f"; peak GPU memory {size(measured.gpu_memory)}"
    if totals.llm_calls:
        text += (
            f"; {totals.llm_calls:,} LLM calls ({totals.llm_failed} failed) in "
            f"{totals.llm_seconds:.1f} s, {totals.money:.4f} spent"
        )
    console.print(text, highlight=False)
    training = config.training
    seconds = project(measured, planned, training.questions_per_step * training.group_size)
    title = f"The whole run, {training.steps:,} steps, at this rate"
    table = plain_table(title, [""], ["rollouts at most", "time projected"])
    for part, projected in seconds.items():
        count = planned.rollouts.get(part)
        table.add_row(part, "" if count is None else f"{count:,}", duration(projected))
    table.add_row("all", "", duration(math.fsum(seconds.values())))
    console.print(table)
    console.print(
        "The time assumes the most rollouts, at the rate of the steps after the first, if there are several. Rollouts "
        "that none of them made count as fast as training ones; LLM calls count if one was made.",
        highlight=False,
    )


def project(measured: Measured, planned: Plan, rollouts_per_step: int) -> dict[str, float]:
    """Return the seconds of a planned run by purpose of its rollouts, and of its "LLM" calls.

    "train" includes the updates; its first step, a warm-up, counts only if it is alone. Any purpose that
    was not measured counts as fast as training rollouts. LLM calls are made one after the other; they are
    left out if none was measured.
    """
    totals = measured.totals
    steady = [training for _, training in measured.steps[1:] or measured.steps]
    seconds: dict[str, float] = {}
    for purpose, count in planned.rollouts.items():
        if purpose == "train":
            seconds[purpose] = count / rollouts_per_step * math.fsum(steady) / len(steady)
            continue
        timed = purpose if totals.rollouts.get(purpose) else "train"
        seconds[purpose] = count * totals.seconds[timed] / totals.rollouts[timed]
    if planned.calls and totals.llm_calls:
        seconds["LLM"] = planned.calls * totals.llm_seconds / totals.llm_calls
    return seconds
