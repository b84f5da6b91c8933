"""Start the vLLM that a trainer samples with: in the trainer's type and with the run's seed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import trl.generation.vllm_generation as vllm_generation
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

from cotune.errors import EngineError
from cotune.utils.progress import begin
from cotune.utils.text import one_line, shorten_middle

_LONGEST = 400  # of what vLLM says


@contextmanager
def starting_vllm(trainer: GRPOTrainer) -> Iterator[None]:
    """Give the vLLM that the trainer starts in this process the trainer's type, while it is constructed.

    TRL has no argument for the type, and by default vLLM samples a float32 policy in half precision.

    Raises:
        EngineError: vLLM did not start, or its server does not answer.
    """
    replaced = {
        name: getattr(vllm_generation, name)
        for name in ("LLM", "VLLMClient")
        if hasattr(vllm_generation, name)  # without vLLM there is no LLM
    }
    if engine := replaced.get("LLM"):

        def start(**options: Any) -> Any:
            begin("starting vLLM")
            dtype = str(compute_dtype(trainer)).removeprefix("torch.")
            return _start(engine, options | {"dtype": dtype})

        vllm_generation.LLM = start
    client = replaced["VLLMClient"]
    vllm_generation.VLLMClient = lambda **options: _start(client, options)
    try:
        yield
    finally:
        for name, original in replaced.items():
            setattr(vllm_generation, name, original)


def _start(make: Callable[..., Any], options: dict[str, Any]) -> Any:
    try:
        return make(**options)
    except Exception as error:
        reason = one_line(shorten_middle(f"{type(error).__name__}: {error}", _LONGEST))
        raise EngineError(
            f"vLLM did not start: {reason} (its settings are vllm_… in training.engine_args or GRPOConfig)"
        ) from error


def compute_dtype(trainer: GRPOTrainer) -> torch.dtype:
    """Return the type in which the trainer computes the policy's probabilities."""
    mixed = {"bf16": torch.bfloat16, "fp16": torch.float16}
    weights_dtype: torch.dtype = cast(Any, trainer.model).dtype
    return mixed.get(str(trainer.accelerator.mixed_precision), weights_dtype)


def seed_vllm(trainer: GRPOTrainer, seed: int) -> None:
    """Seed the draws of the vLLM in this process with a run's seed.

    vLLM draws from the process's random state, which TRL seeds alike in every run. Processes that
    share an engine have the same seed.
    """
    if trainer.use_vllm and trainer.vllm_mode == "colocate":
        args = cast(GRPOConfig, trainer.args)
        process = trainer.accelerator.process_index
        set_seed(seed + process // args.vllm_tensor_parallel_size)
