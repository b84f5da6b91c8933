"""`cotune plan`: the most that a run can spend, and the memory of its GPUs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from cotune.config.cost import Plan, plan_run, show_plan, split_sizes
from cotune.config.library_settings import quiet_libraries
from cotune.config.run_file import RunConfig, load_config
from cotune.data.splits import SPLITS
from cotune.engines.engine import engine_of
from cotune.engines.estimate import memory_of, shape_of
from cotune.errors import ConfigError
from cotune.policy.precision import rounding_notice
from cotune.utils.progress import begin, step_progress
from cotune.utils.tables import plain_table
from cotune.utils.text import size


def plan(
    path: Path,
    console: Console,
    assignments: Sequence[str] = (),
    processes: int = 1,
    questions: str | None = None,
) -> None:
    """Print the most that a run can spend, before it spends anything.

    Args:
        processes: how many processes train, if the run file does not say.
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
    planned = plan_run(config, sizes or split_sizes(config))
    show_plan(planned, config.name, config.limits, config.proposer, console)
    if price := engine_of(config).price(config, planned.rollouts):
        console.print(price, markup=False, highlight=False)
    with step_progress(console):
        begin("estimating the memory")
        _show_memory(config, planned, console, processes)


def _show_memory(config: RunConfig, planned: Plan, console: Console, processes: int) -> None:
    """Print the maximum memory of each GPU; if unknown, why."""
    training = config.training
    # Rollouts of training come a step at a time, all others in one batch.
    batch = training.questions_per_step * training.group_size
    batches = {**planned.rollouts, "train": min(planned.rollouts["train"], batch)}
    rows = min(training.rows_per_call, max(1, *batches.values()))
    try:
        layout = engine_of(config).layout(config, processes)
        memory = memory_of(config, shape_of(config.policy), layout, rows)
    except ValueError as error:
        console.print(f"memory: unknown, {error}", markup=False, highlight=False)
        return
    table = plain_table("Memory of a GPU, estimated, at most", [""], ["sampling", "training"])
    peaks = (memory.sampling or 0, memory.training)
    for label, parts in [*memory.rows.items(), ("in all", peaks)]:
        if label == "in all":
            table.add_section()
        if any(parts):
            table.add_row(label, *(size(part) if part else "" for part in parts))
    console.print(table)
    of = f"of {memory.parameters:,} " if config.policy.lora else ""
    gpus = f"{layout.gpus} GPU{'' if layout.gpus == 1 else 's'}"
    lines = [
        f"Trained: {memory.trained:,} {of}parameters on {gpus}. CUDA and fragmentation take 1 to 2 GiB in addition."
    ]
    if layout.share:
        lines.append(f"vLLM takes {layout.share:.0%} of each GPU while it samples.")
    lost = rounding_notice(memory.dtype, training.learning_rate)
    if lost and config.policy.lora is None:
        lines.append(f"notice: {lost}")
    for line in lines:
        console.print(line, markup=False, highlight=False)
