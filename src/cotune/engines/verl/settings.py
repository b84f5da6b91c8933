"""Build veRL's configuration from a run file."""

import math
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from cotune.config.run_file import RunConfig
from cotune.engines.verl.verl_engine import SCHEDULES, checked_arguments
from cotune.errors import ConfigError
from cotune.methods.context_distillation import uses_context_mask
from cotune.methods.method import CISPO_CAP
from cotune.policy.policy_files import LoraOptions, policy_path
from cotune.types import Distillation
from cotune.utils.text import one_line

AGENT = "cotune"  # the agent loop in agents.yaml
ADVANTAGES = "cotune_grpo"  # the estimator of `engines.verl.losses`
SIGNED_LOSS = "cotune_signed_"  # its policy losses; the name of veRL's own follows

_LOSS_BY_ROLLOUT = (
    "seq-mean-token-mean"  # the mean over rollouts of their token means (INSPO's Eq. 2)
)
_LOSS_BY_TOKEN = "token-mean"  # P²O's, with a mask or without: it divides by all own tokens
# veRL's names of `policy.dtype`
_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_LOSS_MODE = "actor_rollout_ref.actor.policy_loss.loss_mode"
_NO_DUAL_CLIP = 1.0e9
_LEAST_RATIO = 1.0e-9  # veRL wants a lower bound above 0, and clamps the ratio to e⁻²⁰


def verl_config(
    config: RunConfig, folder: Path, gpus: int, context_tokens: int | None = None
) -> DictConfig:
    """Return veRL's configuration; `training.engine_args` overrides what the run file leaves open.

    Args:
        folder: the checkpoint folder.
        gpus: how many GPUs of this node are used.
        context_tokens: the policy's context length; None is unlimited.
    """
    engine_args = checked_arguments(config)
    # Selects which of veRL's files are read.
    model_engine = engine_args.pop("model_engine", None)
    try:
        verl_values = deepcopy(_compose(model_engine))
    except HydraException as error:
        raise ConfigError(f"training.engine_args: {one_line(str(error))[:200]}") from error
    distillation = config.method.distillation(config.strategy)
    values = {
        **_data_values(config),
        **_actor_values(config, engine_args.get(_LOSS_MODE)),
        **_rollout_values(config, distillation, context_tokens),
        **_trainer_values(config, folder, gpus),
        **_adapter_values(config.policy.lora),
    }
    if config.policy.dtype != "auto":
        for part in ("actor", "ref"):
            if "fsdp_config" in verl_values.actor_rollout_ref[part]:
                key = f"actor_rollout_ref.{part}.fsdp_config.model_dtype"
                values[key] = _DTYPES[config.policy.dtype]
    with open_dict(verl_values):
        for name, value in values.items():
            OmegaConf.update(verl_values, name, value, force_add=True)
    for name, value in engine_args.items():
        _set(verl_values, name, value)
    if uses_context_mask(distillation):
        _set_signed_mask(verl_values)
    if (rollout := verl_values.actor_rollout_ref.rollout.name) in ("sglang", "trtllm"):
        raise ConfigError(
            f"training.engine_args.actor_rollout_ref.rollout.name is {rollout}, whose sampling parameters "
            "have other names; expected vllm"
        )
    strategy = str(verl_values.actor_rollout_ref.actor.strategy)
    if config.policy.lora is not None and not strategy.startswith("fsdp"):
        raise ConfigError(
            f"policy.lora: veRL's {strategy} has adapters of its own, which are not saved as PEFT's; expected FSDP "
            "(remove training.engine_args.model_engine), or no policy.lora"
        )
    return verl_values


@cache
def _compose(model_engine: str | None) -> DictConfig:
    """Compose veRL's files; veRL itself, which takes ten seconds, is not imported."""
    verl = find_spec("verl")
    assert verl is not None
    assert verl.origin is not None
    overrides = [] if model_engine is None else [f"model_engine={model_engine}"]
    folder = Path(verl.origin).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        return compose("ppo_trainer", overrides=overrides)


def _data_values(config: RunConfig) -> dict[str, Any]:
    limits = config.limits
    return {
        "data.train_files": "of the run file",
        "data.val_files": "of the run file",
        "data.custom_cls.path": "pkg://cotune.engines.verl.processes",
        "data.custom_cls.name": "Questions",
        "data.shuffle": False,
        "data.train_batch_size": config.training.questions_per_step,
        "data.dataloader_num_workers": 0,
        "data.max_prompt_length": limits.prompt_tokens,
        "data.max_response_length": limits.trajectory_tokens,
    }


def _actor_values(config: RunConfig, loss_mode: str | None) -> dict[str, Any]:
    """Return the values of the policy, its update and the reference; `loss_mode` is that of engine_args."""
    training = config.training
    clip = dict.fromkeys(("", "_low", "_high"), training.clip)
    cispo = {"policy_loss.loss_mode": "cispo"} if config.method.loss == "cispo" else {}
    if (loss_mode or config.method.loss) == "cispo":
        # The clip range is [1 - low, 1 + high] of the ratio itself.
        clip |= {"_low": 1.0, "_high": CISPO_CAP - 1.0}
    by_token = config.method.evolves == "hints" or config.method.loss == "cispo"
    warms_up = training.schedule != "constant"
    values = {
        "ppo_mini_batch_size": training.questions_per_step // training.mini_batches,
        "ppo_micro_batch_size_per_gpu": training.micro_batch_size,
        "optim.lr": training.learning_rate,
        "optim.lr_warmup_steps": math.ceil(training.warmup * training.steps) if warms_up else 0,
        "optim.weight_decay": 0.0,
        "optim.lr_scheduler_type": SCHEDULES[training.schedule],
        # Count from 1; otherwise the first batch would be trained at a rate of 0.
        "optim.zero_indexed_step": False,
        # Mini-batches are cut from rollouts in the order they returned, short ones first.
        "shuffle": True,
        "data_loader_seed": config.seed,
        "clip_ratio_c": _NO_DUAL_CLIP,
        "use_kl_loss": training.kl > 0,
        "kl_loss_coef": training.kl,
        "loss_agg_mode": _LOSS_BY_TOKEN if by_token else _LOSS_BY_ROLLOUT,
        "checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        **{f"clip_ratio{end}": value for end, value in clip.items()},
        **cispo,
    }
    return {
        "actor_rollout_ref.model.path": policy_path(config.policy.path),
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": training.micro_batch_size,
        **{f"actor_rollout_ref.actor.{name}": value for name, value in values.items()},
    }


def _rollout_values(
    config: RunConfig, distillation: Distillation, context_tokens: int | None
) -> dict[str, Any]:
    training = config.training
    # An engine that holds the policy's whole context would reserve memory for it.
    longest = config.limits.prompt_tokens + config.limits.trajectory_tokens
    masks = uses_context_mask(distillation)
    values: dict[str, Any] = {
        "log_prob_micro_batch_size_per_gpu": training.micro_batch_size,
        "name": "vllm",
        "n": training.group_size,
        "temperature": training.temperature,
        "tensor_model_parallel_size": 1,
        "max_model_len": min(context_tokens or longest, longest),
        "seed": config.seed,
        "calculate_log_probs": masks,
        "agent.agent_loop_config_path": str(Path(__file__).with_name("agents.yaml")),
        "agent.default_agent_loop": AGENT,
        "skip_tokenizer_init": False,  # stop strings are looked for in text
    }
    correction: dict[str, Any] = {}
    if masks:
        bounds = f"{max(distillation.low, _LEAST_RATIO)!r}_{distillation.high!r}"
        correction = {"rollout_is": "token", "rollout_is_threshold": bounds}
    return {
        **{f"actor_rollout_ref.rollout.{name}": value for name, value in values.items()},
        **{f"algorithm.rollout_correction.{name}": value for name, value in correction.items()},
    }


def _adapter_values(lora: LoraOptions | None) -> dict[str, Any]:
    """Return the values of a policy with an adapter; veRL's reference is then the policy without it."""
    if lora is None:
        return {}
    targets = lora.target_modules
    return {
        "actor_rollout_ref.model.lora_rank": lora.rank,
        "actor_rollout_ref.model.lora_alpha": lora.alpha,
        "actor_rollout_ref.model.target_modules": targets
        if isinstance(targets, str)
        else [*targets],
        # The rollout engine reads the base itself, and is sent adapters alone.
        "actor_rollout_ref.rollout.load_format": "auto",
        "actor_rollout_ref.actor.checkpoint.save_lora_only": True,
        "actor_rollout_ref.actor.checkpoint.save_contents": ["model", "optimizer", "extra"],
    }


def _set_signed_mask(verl_values: DictConfig) -> None:
    """Replace the policy loss by its variant with the signed mask, which the workers import."""
    actor = verl_values.actor_rollout_ref.actor
    model = verl_values.actor_rollout_ref.model
    actor.policy_loss.loss_mode = f"{SIGNED_LOSS}{actor.policy_loss.loss_mode}"
    libraries = model.external_lib or []
    if isinstance(libraries, str):
        libraries = [libraries]
    model.external_lib = ["cotune.engines.verl.losses", *libraries]


def _trainer_values(config: RunConfig, folder: Path, gpus: int) -> dict[str, Any]:
    training = config.training
    return {
        "reward.num_workers": 0,  # rollouts come back from the agent loops with their rewards
        "algorithm.adv_estimator": ADVANTAGES,
        "trainer.n_gpus_per_node": gpus,
        "trainer.nnodes": 1,
        "trainer.logger": list(config.logging.report_to),
        "trainer.project_name": "cotune",
        "trainer.experiment_name": config.name,
        "trainer.total_training_steps": training.steps,
        "trainer.total_epochs": 2,  # one epoch holds all steps; veRL's loop must not end earlier
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": training.save_every or -1,
        "trainer.default_local_dir": str(folder),
        "trainer.resume_mode": "disable",
        "trainer.resume_from_path": None,
        "trainer.checkpoint_callback_class": "cotune.engines.verl.trainer.SaveStrategy",
        "ray_kwargs.ray_init.log_to_driver": False,
    }


def _set(verl_values: DictConfig, name: str, value: Any) -> None:
    """Set one of veRL's keys; prefix unknown ones with +, as on veRL's command line."""
    try:
        OmegaConf.update(verl_values, name.lstrip("+"), value, force_add=name.startswith("+"))
    except OmegaConfBaseException as error:
        raise ConfigError(
            f"training.engine_args.{name}: {one_line(str(error))[:200]}; correct it, or write +{name} for a key "
            "that veRL's files do not list"
        ) from error
