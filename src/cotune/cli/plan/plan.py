"""`cotune plan`: show the most that a run can spend."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.step_progress import step_progress
from cotune.config.build import describe_llm
from cotune.config.cost import Plan, plan_run, show_plan, split_sizes
from cotune.config.run_file import RunConfig, load_config
from cotune.data.splits import SPLITS
from cotune.engines.engine import engine_of
from cotune.engines.estimate import (
    COMPUTE,
    DECODING,
    GPUS,
    Layout,
    Memory,
    Shape,
    memory_of,
    run_seconds,
    shape_of,
)
from cotune.errors import ConfigError
from cotune.policy.precision import rounding_notice
from cotune.utils.progress import begin
from cotune.utils.tables import plain_table
from cotune.utils.text import size

_LIBRARIES = 3 * 2**30  # bytes of CUDA, NCCL and fragmentation, at most


def plan(
    path: Path,
    console: Console,
    assignments: Sequence[str] = (),
    processes: int = 1,
    questions: str | None = None,
    gpu: str | None = None,
) -> None:
    """Print the most that a run can spend, before it spends anything.

    Args:
        assignments: fields to set, as with --set.
        processes: how many processes train, if the run file does not say.
        questions: "TRAIN,VALIDATION,TEST": plan for this many, and do not read the data.
        gpu: project the time on this GPU; None is h100.
    """
    if gpu is not None and gpu not in GPUS:
        raise ConfigError(f"--gpu is {gpu}; expected {', '.join(GPUS)}")
    config = load_config(path, assignments=assignments)
    quiet_libraries(config)
    planned = plan_run(config, _sizes(config, questions))
    llm = config.proposer
    show_plan(planned, config.name, config.limits, llm, describe_llm(llm), console)
    if config.training.rollout_budget is not None:
        console.print(
            f"Training ends before a batch that would take training, verification and evolution "
            f"over {config.training.rollout_budget:,} rollouts; an evolution that falls due just "
            "before may."
        )
    with step_progress(console):
        begin("estimating the memory")
        show_estimate(_at_once(config, planned), planned, console, processes, gpu or "h100")


def _sizes(config: RunConfig, questions: str | None) -> Mapping[str, int]:
    """Return the questions of each split, as given or counted.

    Raises:
        ConfigError: `questions` is not three numbers, or the data cannot be read.
    """
    if questions is None:
        try:
            return split_sizes(config)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; or plan without the data: --questions TRAIN,VALIDATION,TEST"
            ) from error
    parts = questions.split(",")
    if len(parts) != len(SPLITS) or not all(part.strip().isdecimal() for part in parts):
        raise ConfigError(
            f"--questions is {questions}; expected three numbers, as in --questions 5000,500,500"
        )
    return dict(zip(SPLITS, map(int, parts), strict=True))


def _at_once(config: RunConfig, planned: Plan) -> RunConfig:
    """Return the run file with `rows_per_call` lowered if rollouts never come in as large a batch."""
    training = config.training
    batches = dict(planned.rollouts)
    if "train" in batches:
        batches["train"] = min(batches["train"], training.questions_per_step * training.group_size)
    rows = min(training.rows_per_call, max(1, *batches.values()))
    training = training.model_copy(update={"rows_per_call": rows})
    return config.model_copy(update={"training": training})


def show_estimate(
    config: RunConfig, planned: Plan, console: Console, processes: int, gpu: str
) -> None:
    """Print the maximum memory per GPU and the hours of a run; if unknown, why.

    Args:
        processes: how many processes train, if the run file does not say.
        gpu: one of `GPUS`.
    """
    layout = engine_of(config).layout(config, processes)
    try:
        shape = shape_of(config.policy.path, ask_hub=True)
    except ValueError as error:
        console.print(f"memory and time: unknown, {error}", markup=False, highlight=False)
        return
    memory = memory_of(config, shape, layout)
    _print_memory(config, memory, layout, console, gpu)
    try:
        hours = _hours_table(config, planned, shape, layout, gpu)
    except ValueError as error:
        console.print(f"time on {gpu}: unknown, {error}", markup=False)
        return
    console.print(hours)
    console.print(
        "Projected from the policy's shape and a data sheet, within a factor of about two: updates and prompts "
        f"reach {COMPUTE:.0%} of the FLOP/s, decoding {DECODING:.0%} of the bandwidth. Not counted: rewards, "
        "searches, the LLM, exchanging weights. cotune plan --steps measures this machine.",
        markup=False,
        highlight=False,
    )


def _print_memory(
    config: RunConfig, memory: Memory, layout: Layout, console: Console, gpu: str
) -> None:
    table = plain_table("Memory of a GPU, estimated, at most", [""], ["sampling", "training"])
    for label, (sampled, trained) in memory.rows.items():
        if sampled or trained:
            table.add_row(label, _cell(sampled), _cell(trained))
    table.add_section()
    table.add_row("in all", _cell(memory.sampling), _cell(memory.training))
    console.print(table)
    of = f"of {memory.parameters:,} " if config.policy.lora else ""
    lines = [
        f"Trained: {memory.trained:,} {of}parameters on {_count(layout.gpus, 'GPU')}; "
        f"{_spread(layout)}. CUDA and fragmentation take 1 to 2 GiB in addition."
    ]
    if layout.share:
        lines.append(f"vLLM takes {layout.share:.0%} of each GPU while it samples.")
    card = GPUS[gpu].memory
    needed = max(memory.sampling or 0, memory.training) + layout.kept * card + _LIBRARIES
    if needed > card:
        lines.append(
            f"notice: an {gpu} of {card / 1e9:.0f} GB does not hold this; see --gpu, --processes, "
            "training.micro_batch_size, and training.rows_per_call, the rollouts that are sampled together, "
            "which changes no result"
        )
    if config.policy.lora is None:
        lost = rounding_notice(memory.dtype, config.training.learning_rate)
        lines += [f"notice: {lost}"] if lost else []
    for line in lines:
        console.print(line, markup=False, highlight=False)


def _spread(layout: Layout) -> str:
    if layout.shards > 1:
        return f"weights, gradients and moments are spread over {layout.shards}"
    if layout.zero > 1:
        return f"moments are spread over {layout.zero}"
    return "each holds all of it"


def _hours_table(config: RunConfig, planned: Plan, shape: Shape, layout: Layout, gpu: str) -> Table:
    """Return the hours of each part, at the token limits and at a quarter of them."""
    columns = [
        run_seconds(config, planned.rollouts, shape, layout, GPUS[gpu], fill)
        for fill in (1.0, 0.25)
    ]
    card = f"{gpu} of {GPUS[gpu].memory / 1e9:.0f} GB"
    title = f"Hours on {layout.gpus} × {card}, projected, not measured"
    table = plain_table(title, [""], ["every rollout at its limits", "at a quarter of them"])
    for part in columns[0]:
        label = part if part == "updates" else f"rollouts: {part}"
        table.add_row(label, *(_hours(seconds[part]) for seconds in columns))
    table.add_section()
    sums = [sum(seconds.values()) for seconds in columns]
    table.add_row("in all", *map(_hours, sums))
    table.add_row("GPU hours", *(_hours(layout.gpus * seconds) for seconds in sums))
    return table


def _hours(seconds: float) -> str:
    return f"{float(f'{seconds / 3600:.2g}'):,g}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _cell(count: int | None) -> str:
    return size(count) if count else ""
