"""Refuses, in a line each, what would make TRL run something other than what cotune was told."""

import inspect

import trl
from packaging.version import Version
from transformers.trainer_utils import SaveStrategy
from trl import GRPOConfig, GRPOTrainer

from cotune.contracts import ConfigError, EngineError

# `rollout_func` is marked experimental upstream: each minor release is read before it is admitted.
SUPPORTED = (Version("1.16"), Version("1.17"))


def check_trl() -> None:
    """Raises EngineError unless the installed TRL has the hooks this engine was written for."""
    version = Version(trl.__version__)
    if not SUPPORTED[0] <= version < SUPPORTED[1]:
        raise EngineError(
            f"trl {version} is installed; this engine needs trl>={SUPPORTED[0]},<{SUPPORTED[1]}: "
            "pip install 'trl>=1.16,<1.17'"
        )
    accepted = inspect.signature(GRPOTrainer.__init__).parameters
    missing = {"rollout_func", "reward_funcs", "train_dataset", "callbacks"} - set(accepted)
    if missing:
        raise EngineError(
            f"trl {version}: GRPOTrainer no longer takes {', '.join(sorted(missing))}; "
            "reinstall from the pins in constraints.txt"
        )


def check_args(args: GRPOConfig) -> None:
    """Raises ConfigError for the first argument under which a run would not be what it says."""
    for wrong, message in (*_sampling_conflicts(args), *_batch_conflicts(args)):
        if wrong:
            raise ConfigError(message)


def _sampling_conflicts(args: GRPOConfig) -> list[tuple[bool, str]]:
    """What would sample, order or score other than cotune does."""
    return [
        (
            bool(args.shuffle_dataset),
            "GRPOConfig.shuffle_dataset is True, but a resumed run would then repeat the first "
            "epoch's order; cotune orders the tasks itself: set shuffle_dataset=False",
        ),
        (
            bool(args.use_vllm),
            "GRPOConfig.use_vllm is True; cotune samples from the trainer's own model: set "
            "use_vllm=False",
        ),
        (
            args.top_p != 1.0 or args.top_k not in (0, None) or args.min_p is not None,
            f"GRPOConfig has top_p={args.top_p}, top_k={args.top_k}, min_p={args.min_p}, under "
            "which log-probabilities are not the policy's: set top_p=1.0, top_k=0, min_p=None",
        ),
        (
            args.repetition_penalty != 1.0,
            f"GRPOConfig.repetition_penalty is {args.repetition_penalty}; set it to 1.0",
        ),
        (
            bool(args.fsdp) or args.deepspeed is not None,
            "GRPOConfig.fsdp or .deepspeed is set, but ranks sample on their own from whole weights: "
            "leave both unset and start the processes with torchrun (DDP)",
        ),
        (
            args.reward_weights not in (None, [1.0]),
            f"GRPOConfig.reward_weights is {args.reward_weights}; the environment's score is the "
            "only reward function: set reward_weights=None",
        ),
    ]


def _batch_conflicts(args: GRPOConfig) -> list[tuple[bool, str]]:
    """What would begin or save a step inside a rollout batch."""
    per_batch = steps_per_batch(args)
    saves_inside = args.save_strategy == "steps" and args.save_steps % per_batch != 0
    return [
        (
            args.max_steps < 1,
            f"GRPOConfig.max_steps is {args.max_steps}; cotune needs the number of optimizer "
            "steps: set max_steps (num_train_epochs is not used)",
        ),
        (
            args.num_iterations != 1,
            f"GRPOConfig.num_iterations is {args.num_iterations}; a run can be resumed exactly "
            "only with num_iterations=1",
        ),
        (
            (args.steps_per_generation or 0) % args.gradient_accumulation_steps != 0,
            f"GRPOConfig.steps_per_generation is {args.steps_per_generation}, no multiple of "
            f"gradient_accumulation_steps={args.gradient_accumulation_steps}: a rollout batch "
            "would end inside an optimizer step",
        ),
        (
            saves_inside,
            f"GRPOConfig.save_steps is {args.save_steps}, but a rollout batch takes {per_batch} "
            f"optimizer steps: make save_steps a multiple of {per_batch}",
        ),
        (
            args.max_steps % per_batch != 0,
            f"GRPOConfig.max_steps is {args.max_steps}, but a rollout batch takes {per_batch} "
            f"optimizer steps: make max_steps a multiple of {per_batch}",
        ),
        (
            args.save_strategy not in ("steps", "no") or bool(args.load_best_model_at_end),
            f"GRPOConfig has save_strategy={SaveStrategy(args.save_strategy).value!r}, "
            "load_best_model_at_end="
            f"{args.load_best_model_at_end}; cotune saves between rollout batches: set "
            "save_strategy='steps' (or 'no') and load_best_model_at_end=False",
        ),
    ]


def check_trainer(trainer: GRPOTrainer) -> None:
    """Raises ConfigError if the trainer would generate or score by itself beside `rollout_func`."""
    if trainer.tools or trainer.environment_factories is not None:
        raise ConfigError(
            "GRPOTrainer was given tools= or environment_factory=, with which TRL runs its own tool "
            "loop and ignores cotune's masks: drop the argument; cotune's environment calls tools"
        )


def steps_per_batch(args: GRPOConfig) -> int:
    """Optimizer steps that one rollout batch feeds."""
    return max(1, (args.steps_per_generation or 0) // args.gradient_accumulation_steps)
