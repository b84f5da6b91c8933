"""Compare a KV cache that is kept across turns with a call of `model.generate` for each turn.

    python benchmarks/generation.py --groups 16 --repeats 3

Both sample the same episodes of the bundled world, alternating in one process; in CPU seconds.
"""

import argparse
import contextlib
import statistics
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cotune.policy.codec import HFCodec
from cotune.policy.policy_files import policy_path
from cotune.policy.sampling import CachedSampler, GenerateSampler
from cotune.protocols import Sampler
from cotune.rollout.episode import new_episodes, run_episodes
from cotune.types import Assignment, Limits, Prompt, Sampling
from cotune.worlds.geo import GeoEnvironment, GeoOptions

LIMITS = Limits(turns=4, turn_tokens=64, observation_tokens=200, trajectory_tokens=640)
GUIDED = (
    "Look up one entity at a time. First make a plan inside <think> and </think>. "
    "Use only evidence from the documents. "
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    path = policy_path("bundled:geo")
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    codec = HFCodec(tokenizer)
    environment = GeoEnvironment(GeoOptions(train=args.groups, validation=3, test=3))
    samplers: dict[str, Sampler] = {
        "generate": GenerateSampler(
            lambda: contextlib.nullcontext(model), codec, tokenizer.pad_token_id
        ),
        "cached": CachedSampler(
            lambda: contextlib.nullcontext(model), codec, tokenizer.pad_token_id
        ),
    }
    for label, extra in (
        ("plain instruction, short episodes", ""),
        ("guided, up to 4 turns", GUIDED),
    ):
        prompt = Prompt(extra + environment.initial_instruction)
        assignments = [
            Assignment(task, prompt, prompt, "i0", group)
            for group, task in enumerate(environment.tasks("train"))
            for _ in range(args.group_size)
        ]
        ratios = []
        seconds: dict[str, float] = {}
        for repeat in range(args.repeats + 1):
            for name, sampler in samplers.items():
                episodes = new_episodes(assignments, environment, codec, LIMITS)
                session = sampler.open(Sampling(1.0, environment.stop, repeat))
                begun = time.process_time()
                trajectories = run_episodes(episodes, environment, session)
                seconds[name] = time.process_time() - begun
                session.close()
                tokens = sum(t.generated_tokens for t in trajectories)
                if repeat:
                    print(
                        f"{label}: {name:9} {seconds[name]:.2f} CPU s, {tokens} tokens", flush=True
                    )
            if repeat:
                ratios.append(seconds["generate"] / seconds["cached"])
        print(f"{label}: generate / cached = {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
