"""What depends on TRL's release: which of them the engine takes, and what the older ones lack."""

import inspect
import os
from typing import Any

import trl
from accelerate.utils import is_peft_model
from packaging.version import Version
from trl import GRPOConfig

from cotune.errors import EngineError

# `rollout_func` is experimental upstream, so each minor release is reviewed before it is allowed.
SUPPORTED = (Version("1.14"), Version("1.17"))

SLOWER_SCORES = (
    f"the trainer of trl {trl.__version__} scores rollouts itself, so a prompt that several share is fed again for "
    "each: updates are slower than with TRL 1.16's GRPOTrainer"
)
"""A notice for runs that do not score with the fused head."""


def check_trl() -> None:
    """Raise EngineError unless the installed TRL has the hooks this engine was written for."""
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
