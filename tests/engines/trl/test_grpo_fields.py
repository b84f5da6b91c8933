"""Fields that are passed on do train, with advantages that are one value a token."""

import math
from pathlib import Path
from typing import Any

import pytest

from cotune.config.run_file import parse_config
from cotune.engines.trl.run_file_setup import grpo_config
from cotune.types import Distillation
from tests.engines.trl.setup import HintedRows, start
from tests.run_files import tiny

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
    ("given", "expected"),
    [
        ({}, ("cispo", 5.0)),
        ({"epsilon_high": 3.0}, ("cispo", 3.0)),
        ({"loss_type": "grpo"}, ("grpo", 0.2)),
    ],
)
def test_fst_trains_with_cispo_unless_another_loss_is_named(
    tmp_path: Path, given: dict[str, Any], expected: tuple[str, float]
) -> None:
    changes = {"strategy": {"kind": "fst"}, "training": {"engine_args": given}}
    args = grpo_config(parse_config(tiny(tmp_path, changes), "test"), tmp_path)
    assert (args.loss_type, args.epsilon_high or args.epsilon) == expected
    # The KL term is the paper's, and veRL's, unless the run file asks for TRL's.
    assert args.use_bias_correction_kl is False
    asked = {"training": {"engine_args": {"use_bias_correction_kl": True}}}
    asked = parse_config(tiny(tmp_path, asked), "test")
    assert grpo_config(asked, tmp_path).use_bias_correction_kl is True
