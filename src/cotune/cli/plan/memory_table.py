"""The memory table of `cotune plan`."""

from rich.console import Console

from cotune.config.run_file import RunConfig
from cotune.engines.engine import engine_of
from cotune.utils.tables import plain_table
from cotune.utils.text import size


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
