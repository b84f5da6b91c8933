"""The hours and the price of a run on GPUs, as `cotune plan` prints them."""

from rich.console import Console

from cotune.config.cost import Plan
from cotune.config.run_file import RunConfig
from cotune.engines.engine import engine_of
from cotune.engines.gpu_time import FAST, GPUS, SLOW, gpu_seconds
from cotune.engines.memory import shape_of
from cotune.utils.tables import plain_table
from cotune.utils.text import size

_FILLS = (1.0, 0.25)
"""The shares of the token limits that the hours are projected for."""
_LIBRARIES = 3 * 2**30  # bytes of CUDA, NCCL and fragmentation, at most


def show_gpu_hours(
    config: RunConfig,
    planned: Plan,
    console: Console,
    processes: int,
    name: str,
    price: float | None,
    needed: int | None,
) -> None:
    """Print the hours and the price of a run on GPUs, projected from the GPU's data sheet.

    Args:
        processes: how many processes train, if the run file does not say.
        name: one of `GPUS`.
        price: of an hour of one GPU; None prints none.
        needed: the maximum memory per GPU in bytes, if known.
    """
    gpu = GPUS[name]
    try:
        layout = engine_of(config).layout(config, processes)
        shape = shape_of(config.policy.path)
        fills = [
            [
                gpu_seconds(config, planned.rollouts, shape, layout, gpu, use, fill)
                for use in (FAST, SLOW)
            ]
            for fill in _FILLS
        ]
    except ValueError as error:
        console.print(f"time on {name}: unknown, {error}", markup=False)
        return
    card = f"{name} of {gpu.memory / 1e9:.0f} GB"
    title = f"Hours on {layout.gpus} × {card}, projected, not measured"
    table = plain_table(title, [""], ["every rollout at its limits", "at a quarter of them"])
    for part in fills[0][0]:
        label = part if part == "updates" else f"rollouts: {part}"
        table.add_row(label, *(_range([one[part] / 3600 for one in both]) for both in fills))
    table.add_section()
    hours = [[sum(one.values()) / 3600 for one in both] for both in fills]
    table.add_row("in all", *map(_range, hours))
    spent = [[layout.gpus * number for number in both] for both in hours]
    table.add_row("GPU hours", *map(_range, spent))
    if price is not None:
        prices = [[price * number for number in both] for both in spent]
        table.add_row(f"price, at {price:g} a GPU hour", *map(_range, prices))
    console.print(table)
    console.print(
        f"Projected from the policy's shape and a data sheet: {gpu.flops / 1e12:.0f} TFLOP/s in bfloat16, of "
        f"which updates and prompts reach {SLOW.compute:.0%} to {FAST.compute:.0%}, and "
        f"{gpu.bandwidth / 1e12:g} TB/s, of which decoding reaches {SLOW.decoding:.0%} to "
        f"{FAST.decoding:.0%}. Not counted: rewards, searches, the LLM, exchanging weights.",
        markup=False,
        highlight=False,
    )
    kept = layout.kept * gpu.memory
    if needed is not None and needed + kept + _LIBRARIES > gpu.memory:
        vllm = f", {size(round(kept))} that vLLM keeps" if kept else ""
        console.print(
            f"notice: one {card} does not hold the {size(needed)} above{vllm} and 3 GiB for CUDA; see --gpu, "
            "--processes and training.rows_per_call",
            markup=False,
            highlight=False,
        )


def _range(numbers: list[float]) -> str:
    return " to ".join(f"{float(f'{number:.2g}'):,g}" for number in numbers)
