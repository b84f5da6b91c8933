"""Check `training.engine_args`, and the fields that veRL does not support, without veRL."""

from collections.abc import Mapping
from typing import Any

from cotune.config.run_file import RunConfig
from cotune.engines.estimate import Layout
from cotune.errors import ConfigError
from cotune.utils.text import flat

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""The values of `policy.dtype`, and veRL's names for them."""
MODEL_DTYPE = "fsdp_config.model_dtype"
"""veRL's key for the type that weights are loaded in, below an actor or a reference policy."""

# Keys that a run file sets elsewhere, or that this engine depends on.
_OURS = {
    "data.train_files": "environment",
    "data.val_files": "environment",
    "data.train_batch_size": "training.questions_per_step",
    "data.gen_batch_size": "training.questions_per_step",
    "data.shuffle": "seed",
    "data.custom_cls": "environment",
    "data.max_prompt_length": "limits.prompt_tokens",
    "data.max_response_length": "limits.trajectory_tokens",
    "actor_rollout_ref.model.path": "policy.path",
    "actor_rollout_ref.model.lora_rank": "policy.lora.rank",
    "actor_rollout_ref.model.lora_alpha": "policy.lora.alpha",
    "actor_rollout_ref.model.target_modules": "policy.lora.target_modules",
    "actor_rollout_ref.model.lora_adapter_path": "policy.path",
    "actor_rollout_ref.rollout.n": "training.group_size",
    "actor_rollout_ref.rollout.temperature": "training.temperature",
    "actor_rollout_ref.rollout.top_p": "fixed: rollouts are drawn from the policy as it is",
    "actor_rollout_ref.rollout.top_k": "fixed: rollouts are drawn from the policy as it is",
    "actor_rollout_ref.rollout.agent.agent_loop_config_path": "environment",
    "actor_rollout_ref.rollout.agent.default_agent_loop": "environment",
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class": "environment",
    "actor_rollout_ref.rollout.calculate_log_probs": "strategy.distillation",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "training.mini_batches",
    "actor_rollout_ref.actor.checkpoint": "output",
    "algorithm.adv_estimator": "fixed: the methods are GRPO's",
    "algorithm.rollout_correction": "strategy.distillation",
    "algorithm.filter_groups": "fixed: strategies read the group of each question",
    "ray_kwargs.ray_init.runtime_env.env_vars": "the shell: engine_args are written into run.yaml and logs",
    "trainer.total_training_steps": "training.steps",
    "trainer.total_epochs": "training.steps",
    "trainer.save_freq": "training.save_every",
    "trainer.default_local_dir": "output",
    "trainer.default_hdfs_dir": "output",
    "trainer.resume_mode": "fixed: cotune resume sets it",
    "trainer.resume_from_path": "fixed: cotune resume sets it",
    "trainer.checkpoint_callback_class": "training.save_every",
    "trainer.max_actor_ckpt_to_keep": "training.keep_checkpoints",
    "trainer.remove_previous_ckpt_in_save": "training.keep_checkpoints",
    "trainer.val_before_train": "evaluation.before",
    "trainer.val_only": "evaluation",
    "trainer.test_freq": "evaluation.every",
    "trainer.use_v1": "fixed: cotune runs on the V1 trainer",
    "trainer.v1.trainer_mode": "fixed: cotune runs on the sync trainer",
}
SCHEDULES = {"cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant"}
"""veRL's name of each schedule."""


def checked_arguments(config: RunConfig) -> dict[str, Any]:
    """Return `training.engine_args` as veRL's dotted keys; a + is in front.

    Raises:
        ConfigError: a field is not supported, or a key is not for engine_args; the message names it.
    """
    engine_args = _keys(config.training.engine_args)
    _check_supported(config)
    _check_ours(engine_args)
    return engine_args


def _check_supported(config: RunConfig) -> None:
    """Raise ConfigError for settings that veRL's public hooks do not support; name the field."""
    training = config.training
    refused = {
        "training.frozen": training.frozen,
        f"training.precision {training.precision}": training.precision != "auto",
        "policy.lora.dropout": config.policy.lora is not None and config.policy.lora.dropout > 0,
        # A last stage needs a teacher, which veRL's public hooks have not.
        "strategy.distil_steps": getattr(config.strategy, "distil_steps", 0) > 0,
        f"training.schedule {training.schedule}": training.schedule not in SCHEDULES,
    }
    for field, is_set in refused.items():
        if is_set:
            raise ConfigError(
                f"{field} is not supported by training.engine verl; change it, or set training.engine: trl"
            )
    if training.questions_per_step % training.mini_batches:
        raise ConfigError(
            f"training.mini_batches is {training.mini_batches}; with training.engine verl expected a "
            f"divisor of questions_per_step {training.questions_per_step}, which veRL counts them by"
        )


def _check_ours(engine_args: Mapping[str, Any]) -> None:
    for name in engine_args:
        bare = name.lstrip("+")
        for key, field in _OURS.items():
            if bare == key or bare.startswith(f"{key}."):
                why = field if field.startswith("fixed: ") else f"set by {field}"
                raise ConfigError(f"training.engine_args.{name}: {why}; remove it from engine_args")
            if key.startswith(f"{bare}."):
                raise ConfigError(
                    f"training.engine_args.{name}: is a section of veRL's; expected keys in it"
                )


def _keys(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested keys to dotted ones; a + before any part of a key moves to the front."""
    return {
        f"+{name.replace('+', '')}" if "+" in name else name: value
        for name, value in flat(engine_args).items()
    }


def layout_of(config: RunConfig) -> Layout:
    """Return the GPUs that train, and the rollout engine's share of each.

    Raises:
        ConfigError: a key of `engine_args` that is used here is not a number.
    """
    args = {
        name.replace("+", ""): value for name, value in flat(config.training.engine_args).items()
    }

    def number(name: str, default: float) -> float:
        value = args.get(name)
        try:
            return default if value is None else float(value)
        except (TypeError, ValueError):
            raise ConfigError(
                f"training.engine_args.{name} is {value!r}; expected a number, or null for {default:g}"
            ) from None

    # veRL's defaults.
    per_node = number("trainer.n_gpus_per_node", 1 if config.training.single_gpu else 8)
    gpus = max(1, int(per_node * number("trainer.nnodes", 1)))
    fsdp = int(number("actor_rollout_ref.actor.fsdp_config.fsdp_size", -1))
    # veRL loads float32 unless something else is set.
    model_dtype = str(args.get(f"actor_rollout_ref.actor.{MODEL_DTYPE}"))
    dtype = {short: name for name, short in DTYPES.items()}.get(model_dtype, config.policy.dtype)
    return Layout(
        gpus,
        shards=fsdp if fsdp > 0 else gpus,
        share=number("actor_rollout_ref.rollout.gpu_memory_utilization", 0.5),
        dtype="float32" if dtype == "auto" else dtype,
        whole_logits=True,
    )
