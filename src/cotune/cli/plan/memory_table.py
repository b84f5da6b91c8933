"""What `cotune plan` shows of a run's memory."""

from rich.console import Console
from rich.table import Table

from cotune.cli.plan.memory import Memory, find_config, read_shape
from cotune.cli.plan.memory_sharding import memory_over, sharding_named
from cotune.cli.plan.memory_verl import VerlMemory, verl_memory
from cotune.config.run_file import RunConfig
from cotune.policy.rounding import rounding_notice


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
    if config.training.engine == "verl":
        _show_verl(config, verl_memory(config, shape), console)
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
    elif (memory.sampling or 0) > _CARD:
        console.print(
            "notice: sampling needs more than a GPU of 80 GB has; lower training.rows_per_call, the "
            "rollouts that are sampled together, which changes no result",
            markup=False,
            highlight=False,
        )
    dtype = shape.dtype if config.policy.dtype == "auto" else config.policy.dtype
    rate = config.training.engine_args.get("learning_rate", config.training.learning_rate)
    notice = None if config.policy.lora else rounding_notice(dtype, float(rate))
    if notice:
        console.print(f"notice: {notice}", markup=False, highlight=False)


_CARD = 80 * 10**9  # bytes of a large GPU, for what is said of one


def _show_verl(config: RunConfig, memory: VerlMemory, console: Console) -> None:
    """Prints what each GPU needs under FSDP, and what vLLM makes of its share."""
    console.print(_verl_table(config, memory))
    console.print(
        f"Projected, not measured. {memory.whole.trained:,} parameters are trained, sharded over "
        f"{memory.shards} GPUs by FSDP. CUDA, NCCL and fragmentation take 2 to 3 GiB besides.",
        highlight=False,
    )
    rollouts = memory.rollouts_at_once(_CARD)
    console.print(
        f"The rollout engine takes {memory.share:.0%} of a GPU while it samples: of 80 GB "
        f"{_size(int(memory.share * _CARD))}, {_size(memory.engine_weights)} of them its weights, "
        f"the rest the cache of {rollouts:,} rollouts at their longest "
        f"({_size(memory.rollout_cache)} each).",
        highlight=False,
    )


def _verl_table(config: RunConfig, memory: VerlMemory) -> Table:
    whole, limits = memory.whole, config.limits
    tokens = limits.prompt_tokens + limits.trajectory_tokens
    rows: list[tuple[str, int | None, int | None]] = [
        (name, memory.spread(count), memory.spread(count))
        for name, count in (
            (f"weights / {memory.shards}", whole.weights),
            (f"reference policy / {memory.shards}", whole.reference),
            (f"optimizer (AdamW) / {memory.shards}", whole.optimizer),
        )
    ]
    micro = config.training.micro_batch_size
    rows += [
        (f"gradients / {memory.shards}", 0, memory.spread(whole.gradients)),
        ("weights gathered by layer", 0, memory.units),
        (f"activations, {micro} rows of {tokens:,} tokens", 0, whole.activations),
        ("log-probabilities", 0, memory.logits),
    ]  # fmt: skip
    return _filled("Memory of a GPU, projected, at most", rows, None, memory.training)


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
    return _filled("Memory of a GPU, estimated, at most", rows, memory.sampling, memory.training)


def _filled(
    title: str,
    rows: list[tuple[str, int | None, int | None]],
    sampling: int | None,
    training: int,
) -> Table:
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("sampling", justify="right")
    table.add_column("training", justify="right")
    for name, sampled, trained in rows:
        if sampled or trained:
            table.add_row(name, _cell(sampled), _cell(trained))
    table.add_section()
    table.add_row("in all", _cell(sampling), _cell(training))
    return table


def _cell(count: int | None) -> str:
    return "" if not count else _size(count)


def _size(count: int) -> str:
    """Bytes, in GiB from a tenth of one on, else in MiB."""
    if count >= 2**30 / 10:
        return f"{count / 2**30:.1f} GiB"
    return f"{count / 2**20:.1f} MiB"
