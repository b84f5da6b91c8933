"""`cotune plan`: show the most that a run can spend."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.plan.gpu_hours import show_gpu_hours
from cotune.cli.step_progress import step_progress
from cotune.config.build import describe_llm
from cotune.config.cost import CHARS_PER_TOKEN, Plan, plan_run, split_sizes
from cotune.config.run_file import RunConfig, load_config
from cotune.data.splits import SPLITS
from cotune.engines.engine import engine_of
from cotune.engines.gpu_time import GPUS
from cotune.errors import ConfigError
from cotune.experiments.report.pages import duration
from cotune.llm.client import OpenAIOptions
from cotune.llm.own import OwnLLMOptions
from cotune.utils.progress import begin
from cotune.utils.tables import plain_table
from cotune.utils.text import size


def plan(
    path: Path,
    console: Console,
    assignments: Sequence[str] = (),
    processes: int = 1,
    questions: str | None = None,
    gpu: str | None = None,
    gpu_price: float | None = None,
) -> None:
    """Print the most that a run can spend, before it spends anything.

    Args:
        assignments: fields to set, as with --set.
        processes: how many processes train, if the run file does not say.
        questions: "TRAIN,VALIDATION,TEST": plan for this many, and do not read the data.
        gpu: project the time on this GPU; None does so only if a price is given or this CPU cannot be timed.
        gpu_price: the price of an hour of one GPU.
    """
    if gpu is not None and gpu not in GPUS:
        raise ConfigError(f"--gpu is {gpu}; expected {', '.join(GPUS)}")
    config = load_config(path, assignments=assignments)
    quiet_libraries(config)
    title = f"{escape(config.name)}: what it spends at most"
    table = plain_table(title, [""], ["rollouts", "generated tokens"])
    per_rollout = config.limits.turns * config.limits.turn_tokens
    planned = plan_run(config, _sizes(config, questions))
    for purpose, count in planned.rollouts.items():
        table.add_row(purpose, f"{count:,}", f"{count * per_rollout:,}")
    console.print(table)
    console.print(
        f"proposer: {describe_llm(config.proposer)}; at most {planned.calls:,} proposals{_price(config, planned)}",
        markup=False,
    )
    if planned.price:
        console.print(
            f"Without retries, at {CHARS_PER_TOKEN} characters a token, they cost at most {planned.unretried:.2f}: "
            "the other bound counts every retry, and a token per byte.",
            highlight=False,
        )
    console.print(
        f"Tokens are upper bounds: {config.limits.turns} × {config.limits.turn_tokens} in a rollout."
    )
    if planned.rows is not None:
        console.print(f"SFT: at most {planned.rows:,} rows, {planned.steps:,} optimizer steps.")
    elif config.training.rollout_budget is not None:
        console.print(
            f"Training ends before a batch that would take training, verification and evolution "
            f"over {config.training.rollout_budget:,} rollouts; an evolution that falls due just "
            "before may."
        )
    with step_progress(console):
        begin("estimating the memory")
        needed = show_memory(_at_once(config, planned), console, processes)
        if gpu is None and gpu_price is None and processes == 1:
            begin("timing this CPU")
            if show_time(config, planned, console):
                return
        if gpu is None and (needed is None or config.method.supervised):
            return  # there is nothing to project from
        show_gpu_hours(config, planned, console, processes, gpu or "h100", gpu_price, needed)


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
    training, most = config.training, dict(planned.rollouts)
    if "train" in most:
        most["train"] = min(most["train"], training.questions_per_step * training.group_size)
    rows = min(training.rows_per_call, max(1, *most.values()))
    training = training.model_copy(update={"rows_per_call": rows})
    return config.model_copy(update={"training": training})


def show_time(config: RunConfig, planned: Plan, console: Console) -> bool:
    """Print how long the run takes at most on this CPU; return whether this CPU can train it."""
    try:
        found = engine_of(config).cpu_time(config, planned.rollouts)
    except (ConfigError, ValueError) as error:
        console.print(f"time on this CPU: unknown, {error}", markup=False)
        return False
    if found is None:
        return False
    console.print(
        f"Time on this CPU ({found.threads} thread{'s' * (found.threads != 1)}), projected from its speed "
        "now, at most "
        f"{duration(found.rollouts + found.updates)}: rollouts {duration(found.rollouts)}, updates "
        f"{duration(found.updates)}. cotune plan --steps measures it, --gpu h100 projects it for an H100.",
        highlight=False,
    )
    return True


def plan_prompt(path: Path, console: Console, assignments: Sequence[str] = ()) -> None:
    """Print one prompt of the run file as its policy will see it."""
    config = load_config(path, assignments=assignments)
    from cotune.cli.try_rollouts import show_prompt

    with step_progress(console):
        show_prompt(config, console)


def _price(config: RunConfig, planned: Plan) -> str:
    if isinstance(config.llm, OwnLLMOptions):
        return ", at the cost of your own llm, which cotune does not know"
    if not isinstance(config.llm, OpenAIOptions) or planned.price is None:
        return ", free of charge"
    if not config.llm.price(1, 1):
        return (
            ", at unknown cost: llm has no prices; set llm.price_per_million_prompt_tokens and "
            "llm.price_per_million_completion_tokens unless its calls are free"
        )
    text = f", at most {planned.price:.2f} at the prices of llm"
    if config.llm.budget is not None:
        text += f"; stopped at the budget of {config.llm.budget:.2f}"
    return text


def show_memory(config: RunConfig, console: Console, processes: int = 1) -> int | None:
    """Print the maximum memory per GPU and return it in bytes; if unknown, print why and return None.

    Args:
        processes: how many processes FSDP2 or DeepSpeed shards over, if the run file asks for it.
    """
    try:
        found = engine_of(config).memory(config, processes)
    except ValueError as error:
        console.print(f"memory: unknown, {error}", markup=False)
        return None
    table = plain_table(found.title, [""], ["sampling", "training"])
    for name, sampled, trained in found.rows:
        if sampled or trained:
            table.add_row(name, _cell(sampled), _cell(trained))
    table.add_section()
    table.add_row("in all", _cell(found.sampling), _cell(found.training))
    console.print(table)
    for note in found.notes:
        console.print(note, markup=False, highlight=False)
    return max(found.sampling or 0, found.training)


def _cell(count: int | None) -> str:
    return size(count) if count else ""
