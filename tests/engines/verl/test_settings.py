"""A run file as veRL's configuration."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from cotune.config.run_file import parse_config
from cotune.engines.verl.settings import verl_config
from cotune.errors import ConfigError
from cotune.policy.policy_files import policy_path
from tests.engines.verl.runs import GEO, run_file


def make_config(changed: dict[str, Any] | None = None, **training: Any) -> Any:
    raw = GEO | {"name": "tried", "output": "runs/tried", "seed": 5}
    raw |= changed or {}
    shared = {"engine": "verl", "mini_batches": 1}
    raw |= {"training": shared | GEO["training"] | training}
    folder = Path("/runs/tried/checkpoints")
    config = parse_config(raw, "the test")
    return verl_config(config, folder, 2, 4096)


def test_the_type_of_the_weights() -> None:
    parts = ("actor", "ref")
    default = make_config().actor_rollout_ref
    assert [default[part].fsdp_config.model_dtype for part in parts] == ["fp32", "fp32"]
    half = {"policy": {"path": "bundled:geo", "dtype": "bfloat16"}}
    bfloat16 = make_config(half).actor_rollout_ref
    assert [bfloat16[part].fsdp_config.model_dtype for part in parts] == ["bf16", "bf16"]
    key = "actor_rollout_ref.actor.fsdp_config.model_dtype"
    overridden = make_config(half, engine_args={key: "fp32"}).actor_rollout_ref
    assert [overridden[part].fsdp_config.model_dtype for part in parts] == ["fp32", "bf16"]


def test_each_field_lands_where_verl_reads_it() -> None:
    config = make_config(
        {"logging": {"report_to": ["tensorboard"]}},
        steps=7,
        questions_per_step=8,
        group_size=4,
        mini_batches=2,
        micro_batch_size=4,
        learning_rate=3e-6,
        schedule="cosine",
        warmup=0.25,
        kl=0.02,
        clip=0.1,
        temperature=0.7,
        save_every=3,
    )
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    lands = {
        "steps": (config.trainer.total_training_steps, 7),
        "questions_per_step": (config.data.train_batch_size, 8),
        "group_size": (rollout.n, 4),
        "mini_batches": (actor.ppo_mini_batch_size, 4),  # questions, not rollouts
        "micro_batch_size": (actor.ppo_micro_batch_size_per_gpu, 4),
        "micro_batch_size, log-probabilities": (rollout.log_prob_micro_batch_size_per_gpu, 4),
        "learning_rate": (actor.optim.lr, 3e-6),
        "schedule": (actor.optim.lr_scheduler_type, "cosine"),
        "warmup": (actor.optim.lr_warmup_steps, 2),  # a quarter of 7, rounded up
        "no batch at a rate of 0": (actor.optim.zero_indexed_step, False),
        "kl": (actor.kl_loss_coef, 0.02),
        "kl is on": (actor.use_kl_loss, True),
        "clip": ((actor.clip_ratio, actor.clip_ratio_low, actor.clip_ratio_high), (0.1, 0.1, 0.1)),
        "temperature": (rollout.temperature, 0.7),
        "save_every": (config.trainer.save_freq, 3),
        "seed": (rollout.seed, 5),
        "name": (config.trainer.experiment_name, "tried"),
        "report_to": (list(config.trainer.logger), ["tensorboard"]),
        "prompt_tokens": (config.data.max_prompt_length, 384),
        "trajectory_tokens": (config.data.max_response_length, 640),
        "policy": (config.actor_rollout_ref.model.path, policy_path("bundled:geo")),
        "output": (config.trainer.default_local_dir, "/runs/tried/checkpoints"),
        "GPUs": (config.trainer.n_gpus_per_node, 2),
        "resuming": (
            (config.trainer.resume_mode, config.trainer.resume_from_path),
            ("disable", None),
        ),
        "loss": (actor.loss_agg_mode, "seq-mean-token-mean"),
        "advantages": (config.algorithm.adv_estimator, "cotune_grpo"),
        "order": (config.data.shuffle, False),
        # Of the prompt and response: what the rollout engine must hold.
        "context": (rollout.max_model_len, 384 + 640),
        "stop strings": (rollout.skip_tokenizer_init, False),
        "mini-batches are drawn": ((actor.shuffle, actor.data_loader_seed), (True, 5)),
        "as TRL": (actor.optim.weight_decay, 0.0),
        "entropy": (actor.entropy_coeff, 0),
        "reward": (config.algorithm.use_kl_in_reward, False),
    }
    assert {name: value for name, (value, _) in lands.items()} == {
        name: expected for name, (_, expected) in lands.items()
    }


def adapted(**options: Any) -> dict[str, Any]:
    return {"policy": {"path": "bundled:geo", "lora": options}}


def test_an_adapter_lands_where_verl_reads_it() -> None:
    config = make_config(adapted(rank=4, alpha=8, target_modules=["q_proj", "v_proj"]))
    model = config.actor_rollout_ref.model
    assert (model.lora_rank, model.lora_alpha) == (4, 8)
    assert list(model.target_modules) == ["q_proj", "v_proj"]
    assert config.actor_rollout_ref.rollout.load_format == "auto"
    with pytest.raises(ConfigError, match=r"policy\.lora: veRL's megatron .* expected FSDP"):
        make_config(adapted(), engine_args={"model_engine": "megatron"})


def test_off_is_off() -> None:
    config = make_config(kl=0, save_every=0, schedule="constant", warmup=0.5)
    actor = config.actor_rollout_ref.actor
    assert not actor.use_kl_loss
    assert config.trainer.save_freq == -1
    assert actor.optim.lr_warmup_steps == 0
    assert config.trainer.test_freq == -1
    assert not config.trainer.val_before_train
    assert config.algorithm.rollout_correction.rollout_rs is None
    assert not config.actor_rollout_ref.rollout.calculate_log_probs


def test_a_constant_rate_may_be_warmed_up_to() -> None:
    config = make_config(schedule="constant_with_warmup", warmup=0.5, steps=5)
    optim = config.actor_rollout_ref.actor.optim
    assert (optim.lr_scheduler_type, optim.lr_warmup_steps) == ("constant", 3)


@pytest.mark.parametrize("ratio", ["masked_signed", "original"])
def test_the_divisor_of_runs_with_hints_does_not_depend_on_the_mask(ratio: str) -> None:
    config = make_config({"strategy": {"kind": "p2o", "distillation": {"ratio": ratio}}})
    assert config.actor_rollout_ref.actor.loss_agg_mode == "token-mean"


# ---- engine_args

UTILISATION = "actor_rollout_ref.rollout.gpu_memory_utilization"


@pytest.mark.parametrize(
    ("args", "path", "expected"),
    [
        ({UTILISATION: 0.6}, UTILISATION, 0.6),
        ({"actor_rollout_ref": {"rollout": {"gpu_memory_utilization": 0.7}}}, UTILISATION, 0.7),
        ({"actor_rollout_ref.rollout": {"engine_kwargs.vllm": {"+seed": 3}}}, "actor_rollout_ref.rollout.engine_kwargs.vllm.seed", 3),
        ({"+trainer.of_my_own": {"a": 1}}, "trainer.of_my_own.a", 1),
        ({"+trainer": {"+of_my_own": 1}}, "trainer.of_my_own", 1),
        ({"++trainer.logger": ["console"]}, "trainer.logger", ["console"]),
        # Wins over what the run file says without naming it.
        ({"actor_rollout_ref.actor.clip_ratio_high": 0.28}, "actor_rollout_ref.actor.clip_ratio_high", 0.28),
        ({"actor_rollout_ref.rollout.name": "mine"}, "actor_rollout_ref.rollout.name", "mine"),
        # Decides which of veRL's files are read.
        ({"model_engine": "megatron"}, "actor_rollout_ref.actor.strategy", "megatron"),
    ],
)  # fmt: skip
def test_engine_args_are_keys_of_verl(args: dict[str, Any], path: str, expected: object) -> None:
    value = OmegaConf.select(make_config(engine_args=args), path)
    assert (list(value) if isinstance(expected, list) else value) == expected


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"trainer.n_gpus_per_nodes": 2}, "engine_args.trainer.n_gpus_per_nodes"),
        ({"trainer.of_my_own": 1}, "write +trainer.of_my_own"),
        ({"model_engine": "no-such"}, "training.engine_args"),
    ],
)
def test_engine_args_that_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_config(engine_args=args)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_rollout_engine_with_other_sampling_parameters_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout.name is sglang, .* expected vllm"):
        make_config(engine_args={"actor_rollout_ref.rollout.name": "sglang"})


def test_a_context_shorter_than_an_episode_bounds_the_rollout_engine() -> None:
    config = parse_config(GEO | {"name": "tried", "output": "x", "training": {"engine": "verl"}
        | GEO["training"] | {"mini_batches": 1}}, "the test")  # fmt: skip
    verl_keys = verl_config(config, Path("/x"), 1, 1000)
    assert verl_keys.actor_rollout_ref.rollout.max_model_len == 1000


def test_the_preflight_checks_it_without_importing_verl(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from cotune.config.run_file import load_config\n"
        "from cotune.engines.preflight import Preflight\n"
        "from cotune.engines.verl.verl_engine import ENGINE\n"
        "(check,) = ENGINE.check(Preflight(load_config(Path(sys.argv[1]))))\n"
        "assert check.look() is None\n"
        "assert not {'verl', 'ray', 'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(run_file(tmp_path))], check=True)
