"""Measure how long a batch of boxed answers takes to compare, by the number of workers.

    python benchmarks/boxed.py --answers 512 --endless 16

Answers are fractions, roots and polynomials, half of them wrong, and some that never end. Starting the
workers is not measured. Rewards must not depend on their number.
"""

import argparse
import time
from unittest.mock import patch

from cotune.rewards.boxed import BoxedReward, Verdict

Pair = tuple[str, list[str]]


def pairs(count: int, endless: int) -> list[Pair]:
    """Return answers with their ground truths, all different, in a fixed order."""
    found: list[Pair] = []
    for i in range(1, count - endless + 1):
        right = i + i // 3 % 2
        kinds = [
            (rf"\frac{{{i}}}{{8}}", str(right / 8)),
            (rf"\sqrt{{{i * i * 2}}}", rf"{right}\sqrt{{2}}"),
            (f"x^2+{i + 1}x+{i}", f"(x+1)(x+{right})"),
        ]
        answer, truth = kinds[i % 3]
        found.append((answer, [truth]))
    return found + [(f"9^{{9^{{9^{{{9 + i}}}}}}}", ["5"]) for i in range(endless)]


def judged(workers: int, asked: list[Pair]) -> tuple[list[Verdict], float, float]:
    """Return the verdicts, the seconds of one answer, and the seconds of the batch."""
    with patch("os.cpu_count", return_value=workers), BoxedReward() as reward:
        reward.score([(rf"\frac{{{i}}}{{7}}", ["5"]) for i in range(64)])  # starts all workers
        begun = time.perf_counter()
        reward("1/3", [r"\frac13"])
        alone = time.perf_counter() - begun
        found = reward.judge(asked)
        return found, alone, time.perf_counter() - begun - alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=512)
    parser.add_argument("--endless", type=int, default=16)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    args = parser.parse_args()
    asked = pairs(args.answers, args.endless)
    print("| workers | one answer, ms | batch, s | equal | without a verdict |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    first: list[Verdict] = []
    for workers in args.workers:
        found, alone, seconds = judged(workers, asked)
        right, none = sum(v.reward for v in found), sum(bool(v.reason) for v in found)
        print(
            f"| {workers} | {1000 * alone:.0f} | {seconds:.1f} | {right:.0f} | {none} |", flush=True
        )
        first = first or found
        if found != first:
            raise SystemExit("rewards depend on the number of workers")


if __name__ == "__main__":
    main()
