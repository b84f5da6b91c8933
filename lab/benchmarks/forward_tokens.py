"""Count the tokens that the policy and its teacher read in finished training runs, by what they were read for.

    cotune compare configs/suites/distillation-ladder.yaml   # at commit 7a51392c, which has teachers
    python benchmarks/forward_tokens.py runs/suites/distillation-ladder/*/seed-*/train

Methods with equal rollouts differ in this: rollouts with a teacher are read again, by the policy and the teacher.

- sampled: prompts and responses of all rollouts, evaluation left out; prompts are counted at their mean length in training
- trained on: prompts and responses of the batches; rows that the trainer skips because they have no gradient are counted
- distilled: the extra passes of policy and teacher
"""

import argparse
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from cotune.run.frames import cost_rows, open_run


class ForwardTokens(NamedTuple):
    """The tokens of a run, or their means over runs."""

    sampled: float
    trained: float
    distilled: float


def forward_tokens(run: Path) -> ForwardTokens:
    """Count the tokens of a run folder of the TRL engine."""
    folder = open_run(run)
    rows = [row for row in folder.read_metrics() if "num_tokens" in row]
    training = folder.read_config()["training"]
    rollouts = training["questions_per_step"] * training["group_size"]
    # The metric is a mean over the micro-batches of an optimizer step, and a row is one of these.
    passes = rollouts / training["micro_batch_size"] / training["mini_batches"]
    costs = [
        cost
        for cost in cost_rows(folder.ledger_path)
        if cost["committed"] and not str(cost["kind"]).startswith("evaluate")
    ]
    prompt = fmean(row["prompt_tokens_mean"] for row in rows)
    return ForwardTokens(
        sum(cost["generated_tokens"] + cost["rollouts"] * prompt for cost in costs),
        rows[-1]["num_tokens"],
        sum(row.get("distil/tokens", 0) for row in rows) * passes,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", help="run folders")
    found: dict[str, list[ForwardTokens]] = {}
    for run in parser.parse_args().runs:
        name = str(open_run(run).read_config()["name"]).rpartition(", seed")[0] or run.name
        found.setdefault(name, []).append(forward_tokens(run))
    columns = ("run", "sampled", "trained on", "distilled", "all")
    table = Table(*columns, show_edge=False, pad_edge=False)
    for name, counts in found.items():
        means = ForwardTokens(*(fmean(values) for values in zip(*counts, strict=True)))
        table.add_row(name, *(f"{value / 1000:,.0f}k" for value in (*means, sum(means))))
    Console().print(table)


if __name__ == "__main__":
    main()
