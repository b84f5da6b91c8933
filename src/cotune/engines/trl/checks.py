"""Which TRL the engine takes, and the arguments with which it would not do what cotune asks."""

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import torch
import trl
from accelerate.utils import is_peft_model
from packaging.version import Version
from transformers import Trainer, TrainingArguments, get_scheduler
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from trl import GRPOConfig, GRPOTrainer

from cotune.engines.trl.sharding import check_sharding, sharding_of
from cotune.errors import ConfigError, EngineError
from cotune.methods.context_distillation import uses_context_mask
from cotune.protocols import Strategy
from cotune.utils.text import one_line

# `rollout_func` is experimental upstream, so each minor release is reviewed before it is allowed.
SUPPORTED = (Version("1.14"), Version("1.17"))


def check_trl() -> None:
    """Raise EngineError unless the installed TRL is in the range that this engine was written for."""
    version = Version(trl.__version__)
    oldest, newest = SUPPORTED
    if not oldest <= version < newest:
        needed = f"trl>={oldest},<{newest}"
        raise EngineError(
            f"trl {version} is installed; this engine needs {needed}: pip install '{needed}'"
        )


def check_release(args: GRPOConfig) -> None:
    """Raise EngineError if the arguments need a newer TRL than the installed one."""
    version = Version(trl.__version__)
    if version >= Version("1.16"):
        return
    # Elsewhere Triton's kernels run in its interpreter only. TRL 1.14 does without, and TRL 1.16 again.
    interprets = os.environ.get("TRITON_INTERPRET") == "1"
    if version >= Version("1.15") and args.device.type in ("cpu", "mps") and not interprets:
        raise EngineError(
            f"trl {version} computes log-probabilities with Triton alone, which needs a GPU: "
            "pip install 'trl>=1.16,<1.17', or 'trl==1.14.2'"
        )
    if args.use_vllm and args.vllm_mode == "server":
        raise EngineError(
            f"trl {version} cannot read the context length of a vLLM server: pip install "
            "'trl>=1.16,<1.17', or set GRPOConfig.vllm_mode='colocate'"
        )


def has_fused_head(model: Any) -> bool:
    """Return whether a trainer gave its model TRL's fused head; call before accelerate wraps the model.

    TRL 1.14 gives none.
    """
    forward = (model.get_base_model() if is_peft_model(model) else model).forward
    # The head keeps the original's name and signature.
    return "fused_lm_head" in inspect.signature(forward, follow_wrapped=False).parameters


LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "luspo", "cispo", "sapo", "vespo")
"""TRL's loss types."""

_NOT_THE_POLICYS = "log-probabilities would not be the policy's"
_OFF = (False, None)


class Refused(NamedTuple):
    """Why a field raises an error when the joint run is made, unless its value has no effect.

    Attributes:
        why: the reason.
        allowed: the values that are not refused; the first is the one to set.
    """

    why: str
    allowed: tuple[Any, ...]


REFUSED: Mapping[str, Refused] = {
    # Sampling.
    "top_p": Refused(_NOT_THE_POLICYS, (1.0,)),
    "top_k": Refused(_NOT_THE_POLICYS, (0, None)),
    "min_p": Refused(_NOT_THE_POLICYS, (None,)),
    "repetition_penalty": Refused(_NOT_THE_POLICYS, (1.0,)),
    "vllm_structured_outputs_regex": Refused(_NOT_THE_POLICYS, (None,)),
    "generation_kwargs": Refused("cotune does its own sampling and would not apply it", (None, {})),
    # The loss.
    "reward_weights": Refused("TRL sees one reward, which cotune has weighted", (None, [1.0])),
    "sync_ref_model": Refused("a resumed run would use the initial reference", _OFF),
    "neftune_noise_alpha": Refused("the policy is not sampled with the noise", (None,)),
    # The order of tasks.
    "shuffle_dataset": Refused("cotune orders the tasks itself", _OFF),
    "ignore_data_skip": Refused("a resumed run would begin with the first task again", _OFF),
    "auto_find_batch_size": Refused("a smaller batch would split groups", _OFF),
    "parallelism_config": Refused("ranks sample on their own from whole weights", (None,)),
    # Saving.
    "save_only_model": Refused("without its optimizer a run cannot be resumed", _OFF),
    "save_on_each_node": Refused(
        "cotune's half of a checkpoint is written once, into an output_dir that all nodes share",
        _OFF,
    ),
    "push_to_hub": Refused(
        "it uploads output_dir with the run folder in it: questions, rollouts and costs", _OFF
    ),
}


def refusal(name: str) -> str:
    """Return why a field of `REFUSED` is refused, and what to set."""
    field = REFUSED[name]
    return f"{field.why}: set {name}={field.allowed[0]!r}"


def check_args(args: GRPOConfig) -> None:
    """Raise ConfigError for the first argument that would change the run, EngineError for one that needs a newer TRL.

    `REFUSED` lists the fields that are refused on their own; the rest are combinations.
    """
    for name, field in REFUSED.items():
        value = getattr(args, name)
        if value not in field.allowed:
            came = " ".join(repr(value).split())[:80]
            raise ConfigError(f"GRPOConfig.{name} is {came}; {refusal(name)}")
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
            f"GRPOConfig.importance_sampling_level is 'sequence', but strategy.distillation.ratio {settings.ratio!r} "
            "leaves out single tokens, which the ratio of a sequence would still include; set "
            "importance_sampling_level='token', or strategy.distillation.ratio: original"
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
