"""What would make TRL run something else than cotune was told is refused in a line."""

import math
import os
import re
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trl
from transformers import TrainingArguments
from trl import GRPOConfig

from cotune.config.run_file import parse_config
from cotune.engines.trl import checks
from cotune.engines.trl.checks import (
    check_args,
    check_named_parts,
    check_release,
    check_strategy,
    check_trl,
)
from cotune.engines.trl.run_file_setup import grpo_config
from cotune.errors import ConfigError, EngineError
from cotune.methods.method import Context
from cotune.methods.p2o.p2o import P2O, P2OOptions
from cotune.methods.static import StaticStrategy
from cotune.types import Distillation
from tests.engines.trl.setup import HintedRows, config, start
from tests.helpers import raises_line
from tests.run_files import tiny

TWO_STEPS_A_BATCH = {
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 2,
}


EVALUATING = {"eval_strategy": "steps", "per_device_eval_batch_size": 6}

# A value of each refused field that is refused.
REFUSED: dict[str, Any] = {
    "auto_find_batch_size": True, "generation_kwargs": {"suppress_tokens": [3]},
    "ignore_data_skip": True, "min_p": 0.1, "neftune_noise_alpha": 5.0, "parallelism_config": object(), "push_to_hub": True,
    "repetition_penalty": 1.1, "reward_weights": [2.0], "save_on_each_node": True,
    "save_only_model": True, "shuffle_dataset": True, "sync_ref_model": True, "top_k": 20,
    "top_p": 0.9, "vllm_structured_outputs_regex": "a+",
}  # fmt: skip


def with_value(args: GRPOConfig, name: str, value: Any) -> GRPOConfig:
    """Set afterwards: GRPOConfig itself would look for libraries and ranks, or set variables."""
    setattr(args, name, value)
    return args


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("optim", "adamw_bnb_8bit", "bitsandbytes.*; install it, or remove the field"),
        ("lr_scheduler_kwargs", {"a": 1}, "unexpected keyword argument 'a'; correct it"),
        ("report_to", ["nosuch"], "nosuch is not supported"),
    ],
)
def test_what_the_trainer_would_build_later_is_tried_first(
    tmp_path: Path, name: str, value: Any, message: str
) -> None:
    check_named_parts(config(tmp_path))
    args = with_value(config(tmp_path, lr_scheduler_type="cosine"), name, value)
    with raises_line(match=rf"^training.engine_args.{name}: .*{message}"):
        check_named_parts(args)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_field_is_named_with_its_reason_and_fix(tmp_path: Path, name: str) -> None:
    check_args(config(tmp_path))
    reason = re.escape(checks.refusal(name))
    with raises_line(match=rf"^GRPOConfig\.{name} is .*{reason}$"):
        check_args(with_value(config(tmp_path), name, REFUSED[name]))


REVIEWED = """
beta cache_implementation cast_lm_head_to_fp32 chat_template_kwargs delta disable_dropout
ds3_gather_for_generation entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min
entropy_target epsilon epsilon_high generation_batch_size generation_kwargs
importance_sampling_level log_completions log_completions_hub_repo log_multimodal
log_unique_prompts loss_type mask_truncated_completions max_completion_length
max_tool_calling_iterations min_p model_init_kwargs multi_objective_aggregation
num_completions_to_print num_generations num_generations_eval num_iterations
off_policy_mask_threshold pad_to_multiple_of ref_model_mixup_alpha ref_model_sync_steps
repetition_penalty reward_weights router_aux_loss_coef sapo_temperature_neg
sapo_temperature_pos scale_rewards shuffle_dataset steps_per_generation sync_ref_model
temperature top_entropy_quantile top_k top_p transformers_continuous_batching_config
trust_remote_code use_adaptive_entropy use_bias_correction_kl
use_transformers_continuous_batching use_transformers_paged use_vllm vespo_k_neg vespo_k_pos
vespo_lambda_neg vespo_lambda_pos vllm_enable_sleep_mode vllm_gpu_memory_utilization
vllm_group_port vllm_importance_sampling_cap vllm_importance_sampling_clip_max
vllm_importance_sampling_clip_min vllm_importance_sampling_correction
vllm_importance_sampling_mode vllm_max_model_length vllm_mode vllm_model_impl
vllm_server_base_url vllm_server_host vllm_server_port vllm_server_timeout
vllm_structured_outputs_regex vllm_tensor_parallel_size
"""


def test_every_field_of_grpos_own_was_reviewed() -> None:
    # A new TRL has others: read each, refuse or adjust it where needed, and list it here.
    common = {field.name for field in fields(TrainingArguments)}
    grpo_fields = {field.name for field in fields(GRPOConfig)}
    assert grpo_fields - common <= set(REVIEWED.split())
    assert REFUSED.keys() <= grpo_fields
    # Each refused one has its example.
    assert REFUSED.keys() == checks.REFUSED.keys()


@pytest.mark.parametrize(
    ("changes", "field", "fix"),
    [
        (
            {
                "per_device_train_batch_size": 2,
                "steps_per_generation": 3,
                "gradient_accumulation_steps": 2,
            },
            "steps_per_generation is 3",
            "multiple of gradient_accumulation_steps=2",
        ),
        (TWO_STEPS_A_BATCH | {"max_steps": 4, "save_strategy": "steps", "save_steps": 3}, "save_steps is 3", "make save_steps a multiple of 2"),
        (TWO_STEPS_A_BATCH | {"max_steps": 3}, "max_steps is 3", "make max_steps a multiple of 2"),
        (TWO_STEPS_A_BATCH | EVALUATING | {"max_steps": 4, "eval_steps": 3}, "eval_steps is 3", "make eval_steps a multiple of 2"),
        ({"temperature": 0.0}, "temperature is 0.0", "set it above 0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_does_not_go_together_is_refused_with_its_fix(
    tmp_path: Path, changes: dict[str, Any], field: str, fix: str
) -> None:
    args = config(tmp_path, **changes)
    with raises_line(field, fix):
        check_args(args)


def p2o(**settings: Any) -> P2O:
    options = P2OOptions(distillation=Distillation(**settings))
    return P2O(options, Context(instruction="abc"))


def test_the_ratio_of_a_sequence_cannot_leave_tokens_out(tmp_path: Path) -> None:
    args = config(tmp_path, importance_sampling_level="sequence")
    check_args(args)
    with pytest.raises(ConfigError, match=r"importance_sampling_level is 'sequence'.*'token'"):
        check_strategy(args, p2o(ratio="masked_signed"))
    check_strategy(args, p2o(ratio="original"))
    check_strategy(args, StaticStrategy("abc"))
    check_strategy(config(tmp_path), p2o(ratio="masked_signed"))


def test_another_trl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_trl()
    for version in ("1.13.2", "1.17.0", "2.0"):
        monkeypatch.setattr(trl, "__version__", version)
        with pytest.raises(
            EngineError, match=rf"trl {version} .*needs trl>=1.14,<1.17: pip install"
        ):
            check_trl()


@pytest.mark.parametrize(
    ("version", "changes", "refusal"),
    [
        ("1.15.0", {}, r"with Triton alone, which needs a GPU: pip install 'trl>=1.16"),
        (
            "1.14.2",
            {"use_vllm": True, "vllm_mode": "server"},
            r"a vLLM server: .* or set GRPOConfig.vllm_mode='colocate'",
        ),
        ("1.14.2", {}, None),
    ],
)
def test_what_an_older_trl_cannot_do_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    changes: dict[str, Any],
    refusal: str | None,
) -> None:
    args = config(tmp_path, **changes)
    monkeypatch.setattr(trl, "__version__", version)
    refused = nullcontext() if refusal is None else pytest.raises(EngineError, match=refusal)
    with refused:
        check_release(args)


# ---- vLLM


VLLM_ARGS = {
    "use_vllm": True,
    "vllm_mode": "server",
    "vllm_server_base_url": "http://localhost:8000",
    "vllm_max_model_length": 2048,
}


def test_a_run_file_asks_for_vllm_by_engine_args(tmp_path: Path) -> None:
    run = parse_config(tiny(tmp_path, {"training": {"engine_args": VLLM_ARGS}}), "test")
    with mock.patch.dict(os.environ, {"WORLD_SIZE": "1"}):
        args = grpo_config(run, tmp_path)
    assert {name: getattr(args, name) for name in VLLM_ARGS} == VLLM_ARGS
    check_args(args)
    # It reserves memory for the longest episode; its own default is the policy's context, for which a GPU may have no memory.
    limits = {"prompt_tokens": 96, "trajectory_tokens": 64}

    def args_of(**engine_args: Any) -> Any:
        changes = {"limits": limits, "training": {"engine_args": {"use_vllm": True, **engine_args}}}
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "1"}):
            return grpo_config(parse_config(tiny(tmp_path, changes), "test"), tmp_path)

    assert args_of().vllm_max_model_length == 160
    assert args_of(vllm_max_model_length=200).vllm_max_model_length == 200


# ---- fields that are passed on do train, with advantages that are one value a token


SUPPORTED: list[dict[str, Any]] = [
    {
        "loss_type": "grpo", "importance_sampling_level": "token", "pad_to_multiple_of": 8,
        "remove_unused_columns": True, "dataloader_num_workers": 1, "dataloader_drop_last": True,
    },
    {
        "loss_type": "dr_grpo", "scale_rewards": "batch", "mask_truncated_completions": True,
        "log_completions": True, "num_completions_to_print": 1, "log_unique_prompts": True,
    },
    {
        "loss_type": "dapo", "scale_rewards": "none", "delta": 2.0, "epsilon_high": 0.28,
        "per_device_train_batch_size": 3, "generation_batch_size": 6, "max_steps": 2,
    },
    {"loss_type": "bnpo", "multi_objective_aggregation": "normalize_then_sum", "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2},
    {"loss_type": "cispo", "top_entropy_quantile": 0.5, "gradient_checkpointing": True},
    {"loss_type": "sapo", "entropy_coef": 0.01, "lr_scheduler_type": "cosine", "warmup_steps": 1},
    {"loss_type": "luspo", "max_grad_norm": 0.5, "cast_lm_head_to_fp32": True},
    {"loss_type": "vespo", "disable_dropout": True, "torch_empty_cache_steps": 1, "bf16": True},
    {"use_adaptive_entropy": True, "entropy_target": 2.0, "skip_memory_metrics": False, "off_policy_mask_threshold": 0.5, "full_determinism": False},
]  # fmt: skip
"""Each field is in one; those that do not concern each other are tried together."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", SUPPORTED, ids=lambda changes: "=".join(map(str, next(iter(changes.items()))))
)
def test_hinted_rollouts_are_trained_on(tmp_path: Path, changes: dict[str, Any]) -> None:
    strategy = HintedRows((0, 1, 2, 4, 5), Distillation(ratio="masked_signed"))
    run = start(tmp_path, strategy, **{"max_steps": 1, **changes})
    run.trainer.train()
    rows = run.folder.read_metrics()
    assert run.joint.batches == 1
    assert all(row["hinted_share"] > 0 for row in rows)
    assert all(row["p2o/ratio_mean"] > 0 for row in rows)
    assert all(math.isfinite(row["loss"]) and math.isfinite(row["grad_norm"]) for row in rows)
    assert any(row["grad_norm"] > 0 for row in rows)


@pytest.mark.parametrize(
    ("engine_args", "expected"),
    [
        ({}, ("cispo", 5.0)),
        ({"epsilon_high": 3.0}, ("cispo", 3.0)),
        ({"loss_type": "grpo"}, ("grpo", 0.2)),
    ],
)
def test_fst_trains_with_cispo_unless_another_loss_is_named(
    tmp_path: Path, engine_args: dict[str, Any], expected: tuple[str, float]
) -> None:
    changes = {"strategy": {"kind": "fst"}, "training": {"engine_args": engine_args}}
    args = grpo_config(parse_config(tiny(tmp_path, changes), "test"), tmp_path)
    assert (args.loss_type, args.epsilon_high or args.epsilon) == expected
    # The KL term is the paper's, and veRL's, unless the run file asks for TRL's.
    assert args.use_bias_correction_kl is False
    run_file = {"training": {"engine_args": {"use_bias_correction_kl": True}}}
    run_file = parse_config(tiny(tmp_path, run_file), "test")
    assert grpo_config(run_file, tmp_path).use_bias_correction_kl is True
