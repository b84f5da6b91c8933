"""Settings of third-party libraries, to be made before a command imports them."""

import os
import warnings
from pathlib import Path

from cotune.config.run_file import RunConfig
from cotune.data.splits import warn
from cotune.llm.own import OwnLLMOptions
from cotune.policy.policy_files import is_local


def quiet_libraries(config: RunConfig) -> None:
    """Turn off telemetry and progress bars in this process, and the network if it is not needed."""
    # Warnings of these libraries about each other; no run file could change them.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|trl")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    # It would override training.precision; transformers sets it anew from that.
    if os.environ.pop("ACCELERATE_MIXED_PRECISION", "no") != "no":
        warn(
            "ACCELERATE_MIXED_PRECISION is ignored; training.precision says in which type to compute"
        )
    if not _may_fetch(config):
        os.environ.setdefault("HF_HUB_OFFLINE", "1")


def allow_hub() -> None:
    """Allow this process to use the hub even for a local policy; call before `quiet_libraries`."""
    os.environ.setdefault("HF_HUB_OFFLINE", os.environ.get("TRANSFORMERS_OFFLINE") or "0")


def _may_fetch(config: RunConfig) -> bool:
    """Return whether a run may need the Hugging Face hub for its policy, data or user code."""
    dataset = config.dataset
    of_hub = dataset is not None and dataset.name is not None and not Path(dataset.name).is_dir()
    user_code = config.environment_kind.runs_user_code or isinstance(config.proposer, OwnLLMOptions)
    return (
        not is_local(config.policy.path)
        or of_hub
        or user_code
        or any(":" in reward.function for reward in config.rewards)
    )
