"""What `cotune plan` shows of a run's memory."""

from rich.console import Console
from rich.table import Table

from cotune.config import RunConfig
from cotune.memory import Memory, find_config, read_shape, rounding_notice
from cotune.memory_sharding import memory_over, sharding_named


def show_memory(config: RunConfig, console: Console, processes: int = 1) -> None:
    """Prints the memory a GPU needs at most, or why that is not known.

    Args:
        processes: over which FSDP2 or DeepSpeed spreads a run, where its run file asks for it.
    """
    path = config.policy.path
    raw = find_config(path)
    if raw is None:
        console.print(f"memory: unknown, {path} is not on this machine", markup=False)
        return
    try:
        shape = read_shape(raw)
    except ValueError as error:
        console.print(f"memory: unknown, {error}", markup=False)
        return
    memory = memory_over(config, shape, processes)
    console.print(_table(config, memory))
    trained = f"{memory.trained / memory.parameters:.1%} of " if config.policy.lora else ""
    console.print(
        f"Trained: {trained}{memory.parameters:,} parameters. {_several(config, memory, processes)} "
        "CUDA and fragmentation take 1 to 2 GiB besides.",
        highlight=False,
    )
    if memory.cache is None:
        console.print("vLLM samples: its share of the GPU is training.engine_args' to say.")
    dtype = shape.dtype if config.policy.dtype == "auto" else config.policy.dtype
    rate = config.training.engine_args.get("learning_rate", config.training.learning_rate)
    notice = None if config.policy.lora else rounding_notice(dtype, float(rate))
    if notice:
        console.print(f"notice: {notice}", markup=False, highlight=False)


def _several(config: RunConfig, memory: Memory, processes: int) -> str:
    """What several processes change about a GPU's memory."""
    kind = sharding_named(config)
    if kind == "none":
        return f"Where several processes train, each holds {_size(memory.buckets)} more (DDP)."
    more = f"; each holds {_size(memory.buckets)} more (buckets)" if memory.buckets else ""
    said = "process: see --processes" if processes == 1 else "processes"
    return f"Spread by {kind} over {processes} {said}{more}."


def _table(config: RunConfig, memory: Memory) -> Table:
    training, limits = config.training, config.limits
    longest = limits.prompt_tokens + limits.trajectory_tokens
    both = {
        "weights": memory.weights,
        "reference policy": memory.reference,
        "optimizer (AdamW)": memory.optimizer,
        "copies to compute in bfloat16": memory.copies,
    }
    rows: list[tuple[str, int | None, int | None]] = [(n, b, b) for n, b in both.items()]
    rows += [
        (f"KV cache, {training.rows_per_call} rows of {longest:,} tokens", memory.cache, 0),
        ("prompts, attention, draws", memory.sampling_work, 0),
        ("gradients", 0, memory.gradients),
        (
            f"activations, {training.micro_batch_size} rows of {longest:,} tokens",
            0,
            memory.activations,
        ),
        ("log-probabilities", 0, memory.head),
    ]
    table = Table(
        title="Memory of a GPU, estimated, at most",
        title_justify="left",
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("")
    table.add_column("sampling", justify="right")
    table.add_column("training", justify="right")
    for name, sampling, update in rows:
        if sampling or update:
            table.add_row(name, _cell(sampling), _cell(update))
    table.add_section()
    table.add_row("in all", _cell(memory.sampling), _cell(memory.training))
    return table


def _cell(count: int | None) -> str:
    return "" if not count else _size(count)


def _size(count: int) -> str:
    """Bytes, in GiB from a tenth of one on, else in MiB."""
    if count >= 2**30 / 10:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.1f} MiB"
