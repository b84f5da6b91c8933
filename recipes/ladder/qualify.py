"""Check that the world `ladder` can tell joint training from staged: `python -m recipes.ladder.qualify`.

No joint method runs here, static GRPO alone. The bank of requests is scored under the initial policy. The
policy is then trained under the first request of the best section, and on from there under the first of the
section that is best by then; from the start again it is trained under the initial instruction. The world
qualifies if

- the best way is "together", then "one by one", then "in order", by more than two standard errors each;
- the next best way was below 0.1 % of the rollouts under the instruction before it;
- opposites score below the initial instruction, off-topic requests as it does within two standard errors;
- training under the initial instruction does not find the ways.
"""

import argparse
import sys
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

from cotune.config.run_file import load_config
from cotune.policy.policy_files import policy_path
from cotune.worlds.ladder import WRITTEN
from recipes.ladder.measure import BENCH
from recipes.measuring import Bench, read_bank
from recipes.qualifying import UNDER, Sections, apart, show, train

RUN_FILE = Path(__file__).parents[2] / "configs" / "ladder-inspo.yaml"


def main() -> None:
    """Run the check and print its figures; exit with 1 if the world does not qualify."""
    parser = argparse.ArgumentParser(prog="python -m recipes.ladder.qualify", description=__doc__)
    parser.add_argument("--policy", type=Path, default=Path(policy_path("bundled:ladder")))
    parser.add_argument("--run-file", type=Path, default=RUN_FILE, help="of the training runs")
    parser.add_argument("--out", type=Path, default=Path("runs/qualify-ladder"))
    parser.add_argument("--problems", type=int, default=60, help="for each request of the bank")
    parser.add_argument("--under", type=int, default=UNDER, help="rollouts that look for the ways")
    parser.add_argument("--seed", type=int, default=100, help="not one of a suite's")
    parser.add_argument("--set", action="append", default=[], help="a field of the training run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    temperature = load_config(given.run_file).training.temperature
    bench = replace(BENCH, temperature=temperature)
    with ThreadPoolExecutor(1) as beside:  # trains while this process samples
        checks = _check(bench, given, beside)
    print()
    for text, holds in checks.items():
        print("yes" if holds else "NO ", text)
    sys.exit(not all(checks.values()))


def _check(bench: Bench, given: argparse.Namespace, beside: Executor) -> dict[str, bool]:
    """Return what must hold, in words with the figures, and whether it does."""

    def trained(name: str, folder: Path, instruction: str, seed: int) -> Future[Path]:
        rest = (folder, given.out / name, instruction, seed, given.set)
        return beside.submit(train, given.run_file, *rest)

    alone = trained("static", given.policy, bench.initial, given.seed)
    checks: dict[str, bool] = {}
    folder = given.policy

    def scored(title: str, folder: Path) -> Sections:
        found = bench.by_section(bench.policy(folder), given.problems)
        show(title, found)
        return found

    scores = before = scored("initial policy, sampled", folder)
    for number, way in enumerate(WRITTEN):
        lead = min(apart(scores[way], scores[other]) for other in WRITTEN if other is not way)
        when = f"after {number} times GRPO" if number else "at first"
        checks[f"{way} is best {when} by {lead:.1f} standard errors"] = lead > 2
        if way is WRITTEN[-1]:
            break
        request = bench.instructed(read_bank(bench.bank)[way][0], 0)
        next_policy = trained(way.replace(" ", "-"), folder, request, given.seed + number)
        under = bench.figure(bench.policy(folder), [request], given.under)
        print(under.line(f"under {request!r}"), flush=True)
        rest = WRITTEN[number + 1 :]
        found = max(under.ways[later] for later in rest)
        names = " or ".join(rest)
        checks[f"{names} is {found:.3%} of the rollouts under {way}"] = found < 0.001
        folder = next_policy.result()
        scores = scored(f"after static GRPO under {request!r}", folder)
    static = scored("after static GRPO under the initial instruction", alone.result())
    opposite = apart(before["initial"], before["opposite"])
    topic = apart(before["initial"], before["off-topic"])
    return checks | {
        f"opposites are {opposite:.1f} standard errors below the initial instruction": opposite > 2,
        f"off-topic is within 2: {topic:.1f}": abs(topic) <= 2,
        f"static GRPO ends at {static['initial'].score:.3f}": static["initial"].score < 0.5,
    }


if __name__ == "__main__":
    main()
