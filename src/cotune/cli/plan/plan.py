"""`cotune plan`: show the most that a run can spend."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from cotune.cli.library_settings import quiet_libraries
from cotune.cli.step_progress import step_progress
from cotune.config.build import describe_llm
from cotune.config.cost import Plan, plan_run
from cotune.config.run_file import RunConfig, load_config
from cotune.engines.engine import engine_of
from cotune.errors import ConfigError
from cotune.experiments.report.pages import duration
from cotune.llm.client import OpenAIOptions
from cotune.utils.progress import begin
from cotune.utils.tables import plain_table
from cotune.utils.text import size


def plan(path: Path, console: Console, assignments: Sequence[str] = (), processes: int = 1) -> None:
    """Print the most that a run can spend, before it spends anything."""
    config = load_config(path, assignments=assignments)
    quiet_libraries(config)
    title = f"{escape(config.name)}: what it spends at most"
    table = plain_table(title, [""], ["rollouts", "generated tokens"])
    per_rollout = config.limits.turns * config.limits.turn_tokens
    planned = plan_run(config)
    for purpose, count in planned.rollouts.items():
        table.add_row(purpose, f"{count:,}", f"{count * per_rollout:,}")
    console.print(table)
    console.print(
        f"proposer: {describe_llm(config.proposer)}; at most {planned.calls:,} proposals{_price(config, planned)}",
        markup=False,
    )
    console.print(
        f"Tokens are upper bounds: {config.limits.turns} turns of {config.limits.turn_tokens} each."
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
        show_memory(_at_once(config, planned), console, processes)
        if processes == 1:
            begin("timing this CPU")
            show_time(config, planned, console)


def _at_once(config: RunConfig, planned: Plan) -> RunConfig:
    """Return the run file with `rows_per_call` lowered to the most rollouts that there are at once."""
    most = max(1, *planned.rollouts.values())
    rows = min(config.training.rows_per_call, most)
    training = config.training.model_copy(update={"rows_per_call": rows})
    return config.model_copy(update={"training": training})


def show_time(config: RunConfig, planned: Plan, console: Console) -> None:
    """Print how long the run takes at most on this CPU, if that is what it trains on."""
    try:
        found = engine_of(config).cpu_time(config, planned.rollouts)
    except (ConfigError, ValueError) as error:
        console.print(f"time: unknown, {error}", markup=False)
        return
    if found is None:
        return
    console.print(
        f"Time on this CPU ({found.threads} threads), projected from its speed now, at most "
        f"{duration(found.rollouts + found.updates)}: rollouts {duration(found.rollouts)}, updates "
        f"{duration(found.updates)}. cotune plan --steps measures it.",
        highlight=False,
    )


def plan_prompt(path: Path, console: Console, assignments: Sequence[str] = ()) -> None:
    """Print one prompt of the run file as its policy will see it."""
    config = load_config(path, assignments=assignments)
    from cotune.cli.try_rollouts import show_prompt

    with step_progress(console):
        show_prompt(config, console)


def _price(config: RunConfig, planned: Plan) -> str:
    if not isinstance(config.llm, OpenAIOptions) or planned.price is None:
        return ", free of charge"
    text = f", at most {planned.price:.2f} at the prices of llm"
    if config.llm.budget is not None:
        text += f"; stopped at the budget of {config.llm.budget:.2f}"
    return text


def show_memory(config: RunConfig, console: Console, processes: int = 1) -> None:
    """Print the maximum memory per GPU, or why it is unknown.

    Args:
        processes: how many processes FSDP2 or DeepSpeed shards over, if the run file asks for it.
    """
    try:
        found = engine_of(config).memory(config, processes)
    except ValueError as error:
        console.print(f"memory: unknown, {error}", markup=False)
        return
    table = plain_table(found.title, [""], ["sampling", "training"])
    for name, sampled, trained in found.rows:
        if sampled or trained:
            table.add_row(name, _cell(sampled), _cell(trained))
    table.add_section()
    table.add_row("in all", _cell(found.sampling), _cell(found.training))
    console.print(table)
    for note in found.notes:
        console.print(note, markup=False, highlight=False)


def _cell(count: int | None) -> str:
    return size(count) if count else ""
