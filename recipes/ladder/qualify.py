"""Check that the world `ladder` can tell joint training from staged: `python -m recipes.ladder.qualify`.

No joint method runs here, only static GRPO. The bank of requests is scored under the initial policy. The
policy is then trained under the first request of the best section, and after that under the first request of
the section that is best by then. Separately, the initial policy is trained under the initial instruction. The
world qualifies if

- the best way is "together", then "one by one", then "in order", by more than two standard errors each;
- the next best way was below 0.1 % of the rollouts under the instruction before it;
- opposites score below the initial instruction, off-topic requests as it does within two standard errors;
- training under the initial instruction does not find the ways.
"""

import argparse
import sys
from pathlib import Path

import torch

from cotune.policy.policy_files import policy_path
from cotune.worlds.ladder import WRITTEN
from recipes.ladder.measure import BENCH
from recipes.measuring import read_bank
from recipes.qualifying import UNDER, apart, show, train

RUN_FILE = Path(__file__).parents[2] / "configs" / "ladder-inspo.yaml"


def main() -> None:
    """Run the check and print its figures; exit with 1 if the world does not qualify."""
    parser = argparse.ArgumentParser(prog="python -m recipes.ladder.qualify", description=__doc__)
    parser.add_argument("--policy", type=Path, default=Path(policy_path("bundled:ladder")))
    parser.add_argument("--out", type=Path, default=Path("runs/qualify-ladder"))
    parser.add_argument("--problems", type=int, default=60, help="for each request of the bank")
    parser.add_argument("--seed", type=int, default=100, help="not one of a suite's")
    parser.add_argument("--set", action="append", default=[], help="a field of the training run")
    given = parser.parse_args()
    torch.set_num_threads(1)
    checks: dict[str, bool] = {}
    folder = given.policy
    scores = before = BENCH.by_section(BENCH.policy(folder), given.problems)
    show("initial policy, sampled", before)
    for number, way in enumerate(WRITTEN):
        lead = min(apart(scores[way], scores[other]) for other in WRITTEN if other is not way)
        when = f"after {number} times GRPO" if number else "at first"
        checks[f"{way} is best {when} by {lead:.1f} standard errors"] = lead > 2
        if way is WRITTEN[-1]:
            break
        request = BENCH.instructed(read_bank(BENCH.bank)[way][0], 0)
        under = BENCH.figure(BENCH.policy(folder), [request], UNDER)
        print(under.line(f"under {request!r}"))
        rest = WRITTEN[number + 1 :]
        found = max(under.ways[later] for later in rest)
        names = " or ".join(rest)
        checks[f"{names} is {found:.3%} of the rollouts under {way}"] = found < 0.001
        out = given.out / way.replace(" ", "-")
        folder = train(RUN_FILE, folder, out, request, given.seed + number, given.set)
        scores = BENCH.by_section(BENCH.policy(folder), given.problems)
        show(f"after static GRPO under {request!r}", scores)
    out = given.out / "static"
    static = BENCH.by_section(
        BENCH.policy(train(RUN_FILE, given.policy, out, BENCH.initial, given.seed, given.set)),
        given.problems,
    )
    show("after static GRPO under the initial instruction", static)
    opposite = apart(before["initial"], before["opposite"])
    topic = apart(before["initial"], before["off-topic"])
    checks |= {
        f"opposites are {opposite:.1f} standard errors below the initial instruction": opposite > 2,
        f"off-topic is within 2: {topic:.1f}": abs(topic) <= 2,
        f"static GRPO ends at {static['initial'].score:.3f}": static["initial"].score < 0.5,
    }
    print()
    for text, holds in checks.items():
        print("yes" if holds else "NO ", text)
    sys.exit(not all(checks.values()))


if __name__ == "__main__":
    main()
