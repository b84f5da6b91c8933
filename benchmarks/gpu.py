"""Measure one GPU: rollouts and updates in tokens per second, peak memory, a policy from scratch.

    python benchmarks/gpu.py --output gpu.md

Policies in the shapes of Qwen2.5-0.5B and 3B with random weights are trained for some steps; nothing is
downloaded. Each is sampled in each way (vLLM only if it is installed) in its own process, and `cotune plan
--steps` compares its estimates with what it measures. Then a larger policy for the bundled world `geo` is
fitted from scratch. Prints Markdown. Without a GPU it prints a line and ends; `--device cpu --tiny` runs the
same code on a CPU, at a size whose figures mean nothing.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from gpu_arms import SAMPLERS, SHAPES, Figures, Load, make_policy, measure, run_file
from gpu_fit import Fitted, learn, recipe

from cotune.run.json_files import write_atomic
from cotune.types import Limits
from cotune.utils.packages import installed

TINY = Load(
    steps=2,
    questions=2,
    group_size=2,
    micro_batch=2,
    limits=Limits(
        turns=2, turn_tokens=8, observation_tokens=16, trajectory_tokens=40, prompt_tokens=384
    ),
)
PACKAGES = ("cotune", "torch", "transformers", "trl", "vllm")


def machine(device: str) -> str:
    """Return the machine and the package versions in a line."""
    name = "no GPU"
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        name = f"{properties.name} ({properties.total_memory / 2**30:.0f} GiB), CUDA {torch.version.cuda}"
    found = [f"{p} {version}" for p in PACKAGES if (version := installed(p))]
    return f"{name}; {os.cpu_count()} CPU cores; Python {platform.python_version()}, {', '.join(found)}"


def arms(policy: Path, samplers: list[str], load: Load, device: str) -> dict[str, Figures | str]:
    """Return the figures of each sampler, or how it failed."""
    found: dict[str, Figures | str] = {}
    for sampler in samplers:
        if sampler == "vllm" and (device == "cpu" or not installed("vllm")):
            continue
        print(f"{sampler} …", file=sys.stderr, flush=True)
        found[sampler] = _one(policy, sampler, load, device)
    return found


def _one(policy: Path, sampler: str, load: Load, device: str) -> Figures | str:
    if device == "cpu":
        return measure(policy, policy.with_name(sampler), sampler, load, device)
    # In its own process, so that no other arm holds memory of the GPU.
    result = policy.with_name(f"{sampler}.json")
    command = [sys.executable, __file__, *sys.argv[1:], "--arm", sampler, "--policy", str(policy)]
    done = subprocess.run([*command, "--output", str(result)], check=False)
    if done.returncode:
        return f"failed with status {done.returncode}"
    return Figures(**json.loads(result.read_text(encoding="utf-8")))


def plan(policy: Path, load: Load) -> str:
    """Return what `cotune plan --steps` prints for the policy under this load, as Markdown."""
    file = policy.with_name("run.yaml")
    file.write_text(json.dumps(run_file(policy, load)), encoding="utf-8")  # JSON is YAML
    command = [sys.executable, "-m", "cotune", "plan", str(file), "--steps", str(load.steps)]
    print("plan …", file=sys.stderr, flush=True)
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    said = done.stdout.strip() if not done.returncode else f"failed with status {done.returncode}"
    return f"`cotune plan`:\n\n```\n{said}\n```"


def arm_table(shape: str, found: Mapping[str, Figures | str], load: Load) -> str:
    """Return the arms of a shape as Markdown."""
    lines = [
        f"{load.questions} questions × {load.group_size} rollouts a step, up to {load.limits.turns} "
        f"turns of {load.limits.turn_tokens} tokens; updates of {load.micro_batch} rollouts at a time; "
        f"medians of {load.steps - 1} steps after the first.",
        "",
        "| shape | parameters | rollouts by | rollout tokens/s | update tokens/s | peak GiB |",
        "| --- | ---: | --- | ---: | ---: | ---: |",
    ]
    for sampler, figures in found.items():
        if isinstance(figures, str):
            lines.append(f"| {shape} | | {sampler} | {figures} | | |")
            continue
        peak = f"{figures.peak_gib:.1f}" if figures.peak_gib else ""
        lines.append(
            f"| {shape} | {figures.parameters / 1e6:,.1f} M | {sampler} | "
            f"{figures.rollout_rate:,.0f} | {figures.update_rate:,.0f} | {peak} |"
        )
    return "\n".join(lines)


def fit_table(fitted: Fitted, seconds: float) -> str:
    """Return the policy from scratch as Markdown."""
    return "\n".join(
        (
            f"A policy of `geo` fitted from scratch in {seconds:,.0f} s; {fitted.questions} test questions, "
            "greedy.",
            "",
            "| parameters | steps | tokens/s | loss | exact match, initial instruction | guided |",
            "| ---: | ---: | ---: | --- | ---: | ---: |",
            f"| {fitted.parameters / 1e6:,.1f} M | {fitted.steps:,} | {fitted.tokens_rate:,.0f} | "
            f"{fitted.first_loss:.2f} to {fitted.last_loss:.2f} | {fitted.plain:.2f} | "
            f"{fitted.guided:.2f} |",
        )
    )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["0.5B", "3B"])
    parser.add_argument("--samplers", nargs="*", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument(
        "--steps", type=int, default=3, help="of each arm; the first is not counted"
    )
    parser.add_argument("--questions", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--gpu-memory", type=float, default=0.4, help="vLLM's share")
    parser.add_argument("--fit-seconds", type=float, default=600, help="0: no policy from scratch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a size whose figures mean nothing")
    parser.add_argument("--output", type=Path, help="a file for the Markdown")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--policy", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < 2:
        parser.error(f"--steps is {args.steps}; expected 2 or more, as the first is not counted")
    if args.questions * args.group_size % args.micro_batch or args.group_size < 2:
        parser.error(
            f"{args.questions} questions × {args.group_size} rollouts; expected groups of 2 or more, and "
            f"a multiple of --micro-batch {args.micro_batch}"
        )
    return args


def load_of(args: argparse.Namespace) -> Load:
    """Return the load of each arm."""
    if args.tiny:
        return TINY
    return Load(
        steps=args.steps,
        questions=args.questions,
        group_size=args.group_size,
        micro_batch=args.micro_batch,
        gpu_memory=args.gpu_memory,
    )


def main() -> None:
    args = arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: nothing was measured (--device cpu --tiny tries the code)")
        return
    load = load_of(args)
    if args.arm:
        figures = measure(args.policy, args.policy.with_name(args.arm), args.arm, load, args.device)
        write_atomic(args.output, json.dumps(asdict(figures)))
        return
    shapes, seconds, questions = args.shapes, args.fit_seconds, 300
    fitted_shape = recipe(512, 8, 256)
    if args.tiny:
        shapes, questions = ["tiny"], 3
        seconds, fitted_shape = min(seconds, 3.0), recipe(64, 2, 4)
    parts: list[str] = []

    def tell(text: str) -> None:
        """Print and write what is known so far: time on a GPU may end at any moment."""
        parts.append(f"{text}\n")
        print(parts[-1], flush=True)
        if args.output:
            write_atomic(args.output, "\n".join(parts))

    tell(machine(args.device))
    for shape in shapes:
        with tempfile.TemporaryDirectory() as folder:
            policy = Path(folder) / "policy"
            make_policy(policy, shape, args.device)
            if found := arms(policy, args.samplers, load, args.device):
                tell(arm_table(shape, found, load))
            tell(plan(policy, load))
    if seconds:
        with tempfile.TemporaryDirectory() as folder:
            fitted = learn(Path(folder), fitted_shape, seconds, args.device, questions)
        tell(fit_table(fitted, seconds))


if __name__ == "__main__":
    main()
