"""`cotune plan`: show the most that a run can spend, and the memory of its GPUs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.step_progress import step_progress
from cotune.config.build import describe_llm
from cotune.config.cost import Plan, plan_run, show_plan, split_sizes
from cotune.config.run_file import RunConfig, load_config
from cotune.data.splits import SPLITS
from cotune.engines.engine import engine_of
from cotune.engines.estimate import Layout, memory_of, shape_of
from cotune.errors import ConfigError
from cotune.policy.precision import rounding_notice
from cotune.utils.progress import begin
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
        assignments: fields to set, as with --set.
        processes: how many processes train, if the run file does not say.
        questions: "TRAIN,VALIDATION,TEST": plan for this many, and do not read the data.
    """
    config = load_config(path, assignments=assignments)
    quiet_libraries(config)
    planned = plan_run(config, _count_questions(config, questions))
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
        show_memory(_lower_rows_per_call(config, planned), console, processes)


def _count_questions(config: RunConfig, questions: str | None) -> Mapping[str, int]:
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


def _lower_rows_per_call(config: RunConfig, planned: Plan) -> RunConfig:
    """Return the run file with `rows_per_call` lowered if rollouts never come in as large a batch."""
    training = config.training
    batch = training.questions_per_step * training.group_size
    batches = {**planned.rollouts, "train": min(planned.rollouts["train"], batch)}
    rows = min(training.rows_per_call, max(1, *batches.values()))
    training = training.model_copy(update={"rows_per_call": rows})
    return config.model_copy(update={"training": training})


def show_memory(config: RunConfig, console: Console, processes: int) -> None:
    """Print the maximum memory of each GPU; if unknown, why.

    Args:
        processes: how many processes train, if the run file does not say.
    """
    try:
        layout = engine_of(config).layout(config, processes)
        memory = memory_of(config, shape_of(config.policy.path), layout)
    except ValueError as error:
        console.print(f"memory: unknown, {error}", markup=False, highlight=False)
        return
    table = plain_table("Memory of a GPU, estimated, at most", [""], ["sampling", "training"])
    for label, (sampled, trained) in memory.rows.items():
        if sampled or trained:
            table.add_row(label, _cell(sampled), _cell(trained))
    table.add_section()
    table.add_row("in all", _cell(memory.sampling), _cell(memory.training))
    console.print(table)
    of = f"of {memory.parameters:,} " if config.policy.lora else ""
    gpus = f"{layout.gpus} GPU{'' if layout.gpus == 1 else 's'}"
    lines = [
        f"Trained: {memory.trained:,} {of}parameters on {gpus}; {_spread(layout)}. CUDA and "
        "fragmentation take 1 to 2 GiB in addition. Time: cotune plan --steps measures this machine."
    ]
    if layout.share:
        lines.append(f"vLLM takes {layout.share:.0%} of each GPU while it samples.")
    if config.policy.lora is None and (
        lost := rounding_notice(memory.dtype, config.training.learning_rate)
    ):
        lines.append(f"notice: {lost}")
    for line in lines:
        console.print(line, markup=False, highlight=False)


def _spread(layout: Layout) -> str:
    if layout.shards > 1:
        return f"weights, gradients and moments are spread over {layout.shards}"
    if layout.zero > 1:
        return f"moments are spread over {layout.zero}"
    return "each holds all of it"


def _cell(count: int | None) -> str:
    return size(count) if count else ""
