"""Start the vLLM that a trainer samples with: in the trainer's type and with the run's seed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import trl.generation.vllm_generation as vllm_generation
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

from cotune.errors import EngineError
from cotune.utils.progress import begin


@contextmanager
def starting_vllm(trainer: GRPOTrainer) -> Iterator[None]:
    """Set the type of the vLLM that the trainer starts in this process while it is constructed.

    TRL has no argument for it, and vLLM samples a policy in float32 in half precision.

    Raises:
        EngineError: vLLM did not start, or its server does not answer.
    """
    engine = getattr(vllm_generation, "LLM", None)  # absent if vLLM is not installed

    def start(**options: Any) -> Any:
        assert engine is not None
        begin("starting vLLM")
        dtype = str(computed_in(cast(GRPOConfig, trainer.args), trainer.model)).removeprefix(
            "torch."
        )
        try:
            return engine(**options, dtype=dtype)
        except Exception as error:
            raise EngineError(
                f"vLLM did not start: {_in_a_line(error)}; its settings are GRPOConfig's vllm_… "
                "(training.engine_args)"
            ) from error

    if engine is not None:
        vllm_generation.LLM = start
    try:
        yield
    except ConnectionError as error:
        raise EngineError(_in_a_line(error)) from error
    finally:
        if engine is not None:
            vllm_generation.LLM = engine


def computed_in(args: GRPOConfig, model: Any) -> torch.dtype:
    """Return the type that the trainer computes the policy's probabilities in."""
    if args.bf16:
        return torch.bfloat16
    return torch.float16 if args.fp16 else model.dtype


def seed_vllm(trainer: GRPOTrainer) -> None:
    """Seed the draws of the vLLM in this process with the trainer's seed.

    vLLM draws from the process's random state. TRL starts it with the same seed in every run.
    Processes that share an engine must draw alike.
    """
    args = cast(GRPOConfig, trainer.args)
    if args.use_vllm and args.vllm_mode == "colocate":
        set_seed(args.seed + args.process_index // args.vllm_tensor_parallel_size)


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
