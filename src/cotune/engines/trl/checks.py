"""Checks that reject arguments with which TRL would not do what cotune asks."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from accelerate.utils import is_peft_model
from transformers import Trainer, TrainingArguments, get_scheduler
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from trl import GRPOConfig, GRPOTrainer

from cotune.engines.trl.grpo_fields import REFUSED
from cotune.engines.trl.sharding import check_sharding, sharding_of
from cotune.engines.trl.trl_release import check_release
from cotune.errors import ConfigError
from cotune.methods.context_distillation import uses_context_mask
from cotune.protocols import Strategy
from cotune.utils.text import one_line


def check_args(args: GRPOConfig) -> None:
    """Raise ConfigError for the first argument that would change the run, EngineError for one that needs a newer TRL.

    `grpo_fields.REFUSED` lists the fields that are refused on their own; the rest are combinations.
    """
    for name, field in REFUSED.items():
        value = getattr(args, name)
        if value not in field.allowed:
            came = " ".join(repr(value).split())[:80]
            raise ConfigError(f"GRPOConfig.{name} is {came}; {field.why}: {field.fix(name)}")
    for conflict in _conflicts(args):
        raise ConfigError(f"GRPOConfig.{conflict}")
    check_release(args)
    if args.n_gpu > 1:
        raise ConfigError(
            f"one process sees {args.n_gpu} GPUs and would split its batches over them (DataParallel); start one "
            f"process per GPU: torchrun --nproc_per_node {args.n_gpu} …, or show it one: CUDA_VISIBLE_DEVICES=0, in a "
            "run file training.single_gpu: true"
        )


def _conflicts(args: GRPOConfig) -> Iterator[str]:
    """Yield what does not go together: the fields, why, and the fix."""
    if not args.temperature > 0:
        yield (
            f"temperature is {args.temperature}, but rollouts must be drawn from a distribution, and TRL "
            "divides by it: set it above 0 (evaluation is greedy anyway)"
        )
    if (args.steps_per_generation or 0) % args.gradient_accumulation_steps:
        yield (
            f"steps_per_generation is {args.steps_per_generation}, not a multiple of "
            f"gradient_accumulation_steps={args.gradient_accumulation_steps}: a rollout batch would end "
            "inside an optimizer step"
        )
    in_batches = {
        "max_steps": True,
        "save_steps": args.save_strategy == SaveStrategy.STEPS,
        "eval_steps": args.eval_strategy == IntervalStrategy.STEPS,
    }
    per_batch = steps_per_batch(args)
    for name, is_used in in_batches.items():
        if is_used and (steps := getattr(args, name) or 0) % per_batch:
            yield (
                f"{name} is {steps}, but a rollout batch takes {per_batch} optimizer steps: make {name} "
                f"a multiple of {per_batch}"
            )


def check_named_parts(args: TrainingArguments) -> None:
    """Build what the arguments only name: optimizer, schedule, trackers.

    The trainer would build them when the run folder is there.

    Raises:
        ConfigError: one of them is unknown, lacks a package, or does not take its arguments.
    """
    optimizer = torch.optim.SGD([torch.zeros(1)])
    arguments = cast("dict[str, Any] | None", args.lr_scheduler_kwargs)
    builders: dict[str, Callable[[], object]] = {
        "optim": lambda: Trainer.get_optimizer_cls_and_kwargs(args),
        "lr_scheduler_kwargs": lambda: get_scheduler(
            args.lr_scheduler_type, optimizer, 1, 9, arguments
        ),
        "report_to": lambda: get_reporting_integration_callbacks(args.report_to),
    }
    for name, build in builders.items():
        try:
            build()
        except (ImportError, TypeError, ValueError) as error:
            if name == "optim" and not isinstance(error, ImportError):
                continue  # it may only lack the model, which the trainer gives it
            fix = (
                "install it, or remove the field"
                if isinstance(error, ImportError)
                else "correct it"
            )
            reason = one_line(str(error))[:200].rstrip(".")
            raise ConfigError(f"training.engine_args.{name}: {reason}; {fix}") from error


def check_strategy(args: GRPOConfig, strategy: Strategy) -> None:
    """Raise ConfigError if the loss does not support the strategy's weights."""
    settings = strategy.distillation
    if uses_context_mask(settings) and args.importance_sampling_level == "sequence":
        raise ConfigError(
            f"GRPOConfig.importance_sampling_level is 'sequence', but distillation.ratio {settings.ratio!r} "
            "leaves out single tokens, which the ratio of a sequence would still include; set "
            "importance_sampling_level='token', or ratio: original"
        )


def check_trainer(trainer: GRPOTrainer, strategy: Strategy) -> None:
    """Raise ConfigError if the trainer's model, or how it is spread over processes, does not suit the run."""
    model: Any = trainer.model
    args = cast(GRPOConfig, trainer.args)
    sharding = sharding_of(trainer)
    check_sharding(trainer)
    if is_peft_model(model) and model.active_peft_config.is_prompt_learning:
        raise ConfigError(
            f"peft_config is {type(model.active_peft_config).__name__}, whose virtual tokens cotune's "
            "samplers do not feed: use LoRA, or another adapter of the layers"
        )
    if strategy.has_teacher and sharding != "none":
        raise ConfigError(
            "strategy.distil_steps asks for a teacher, which reads rollouts with whole weights, but they or "
            f"their gradients are sharded ({sharding}); train without FSDP and DeepSpeed, or set it to 0"
        )
    # Ranks make different numbers of turns, and would wait for each other forever.
    sleeps = args.use_vllm and args.vllm_mode == "colocate" and args.vllm_enable_sleep_mode
    if sleeps and sharding == "fsdp2":
        raise ConfigError(
            "GRPOConfig.vllm_enable_sleep_mode is True under FSDP2, where vLLM would collect all weights "
            "again in every turn: set vllm_enable_sleep_mode=False"
        )


def steps_per_batch(args: GRPOConfig) -> int:
    """Return the number of optimizer steps per rollout batch, which is trained on `num_iterations` times."""
    steps = max(1, (args.steps_per_generation or 0) // args.gradient_accumulation_steps)
    return steps * args.num_iterations


def on_one_gpu(args: GRPOConfig) -> GRPOConfig:
    """Return the arguments changed so that the trainer uses only the first GPU.

    Trainer wraps the model in DataParallel if it counts several GPUs. It sets the same field to 1
    itself for a model that is split over GPUs.
    """
    if args.n_gpu > 1:
        args._n_gpu = 1
    return args
