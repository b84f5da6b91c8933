"""The environment variables and the keys of veRL's configuration under which it runs on a CPU."""

import os
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[4]


def environment() -> dict[str, str]:
    """Environment variables of the process that starts veRL; Ray's workers inherit them."""
    paths = [str(REPOSITORY), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        # So that Ray's workers import the plug-in and cotune.
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "VERL_USE_EXTERNAL_MODULES": "tests.engines.verl.cpu.platform",
        "VERL_PLATFORM": "cpu",
        # veRL registers its FSDP engine for CUDA and NPU alone; it is the same on a CPU.
        "VERL_ENGINE_DEVICE": "cuda",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # Ray gives its workers 15 less priority than it has itself: on a busy machine they starve.
        "RAY_worker_niceness": "0",
        # Workers that Ray starts beforehand lack the environment of veRL's, and are never used.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
    }


def overrides(ranks: int = 1) -> dict[str, Any]:
    """Keys of veRL's configuration, dotted: everything that a CPU needs, nothing of the task.

    Args:
        ranks: training processes; each has a rollout replica of its own.
    """
    model, actor = "actor_rollout_ref.model", "actor_rollout_ref.actor"
    rollout, ray_init = "actor_rollout_ref.rollout", "ray_kwargs.ray_init"
    full = f"{actor}.fsdp_config.mixed_precision"
    return {
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": ranks,
        "trainer.nnodes": 1,
        f"{model}.external_lib": "tests.engines.verl.cpu.plugin",
        # Packed sequences need flash-attn.
        f"{model}.use_remove_padding": False,
        f"{model}.enable_gradient_checkpointing": False,
        f"{model}.override_config.attn_implementation": "sdpa",
        f"{actor}.strategy": "fsdp2",
        f"{actor}.use_torch_compile": False,
        f"{actor}.fsdp_config.use_torch_compile": False,
        f"{full}.param_dtype": "fp32",
        f"{full}.reduce_dtype": "fp32",
        f"{rollout}.name": "hf_cpu",
        f"{rollout}.dtype": "float32",
        f"{rollout}.tensor_model_parallel_size": 1,
        f"{rollout}.agent.num_workers": 1,
        "data.dataloader_num_workers": 0,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        # Numbers that Ray counts by; a laptop with two cores runs all of the actors.
        f"{ray_init}.num_cpus": 16,
        f"{ray_init}.num_gpus": ranks,
        f"{ray_init}.include_dashboard": False,
    }
