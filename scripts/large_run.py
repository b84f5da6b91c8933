"""Time the report and the resume of a run folder with 100,000 rollouts and 1,000 instructions.

    python scripts/large_run.py

The folder is written as a run writes it, with made-up rollouts. The first line is the writing itself: the memory at its
end says whether it grows with the run.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cotune.experiments.report.run_report import write_report
from cotune.run.record import Record
from cotune.types import Assignment, Prompt, StopReason, Task, Trajectory, Turn

GROUP = 8
MEMBERS = 7
TOKENS = 200
METRICS = [f"metric_{i}" for i in range(40)]


def write(folder: Path, rollouts: int, instructions: int, steps: int) -> None:
    record = Record.create(folder, {"name": "large", "strategy": {"kind": "inspo"}})
    record.total_steps = steps
    record.begin_attempt(None)
    record.event("run_started", 0, config="large, seed 0", strategy="inspo")
    draw = random.Random(0)
    texts = [
        f"Solve the problem in way {i}. " + "Think about each line. " * 20
        for i in range(instructions)
    ]
    born = 0
    for step in range(1, steps + 1):
        record.step = step
        while born < min(instructions, step * instructions // steps):
            parent = None if born == 0 else f"i{max(0, born - MEMBERS)}"
            record.event(
                "instruction_born", step, id=f"i{born}", text=texts[born], parent=parent, origin="reflection",
                born=step, critique="It forgets to carry. " * 10, shown=[], score=0.5, parent_score=0.4,
            )  # fmt: skip
            if born >= MEMBERS:
                gone = f"i{born - MEMBERS}"
                record.event(
                    "instruction_pruned",
                    step,
                    id=gone,
                    weight=0.4,
                    observed_rollouts=64,
                    cause="rank",
                )
            born += 1
        living = [f"i{i}" for i in range(max(0, born - MEMBERS), max(born, 1))]
        members = [
            {
                "id": name,
                "weight": draw.random(),
                "probability": 1 / MEMBERS,
                "observed": 0.5,
                "observed_rollouts": 64,
            }
            for name in living
        ]
        record.event("population", step, members=members)
        batch = [_rollout(step, i, living[i % len(living)], draw) for i in range(rollouts // steps)]
        record.rollouts(step, "train", batch)
        record.count("train", len(batch), TOKENS * len(batch), 1.0)
        record.metrics(step, dict.fromkeys(METRICS, draw.random()) | {"reward": draw.random()})


def _rollout(step: int, index: int, instruction: str, draw: random.Random) -> Trajectory:
    task = Task(f"q{draw.randrange(10_000)}", "What is 12 + 34 + 56?", ("102",))
    prompt = Prompt("Solve the problem.")
    return Trajectory(
        assignment=Assignment(
            task, prompt, prompt, group=index // GROUP, instruction_id=instruction
        ),
        turns=(Turn("12 + 34 is 46, and 56 more is 102. " * 10),),
        prompt_ids=tuple(range(100)),
        sampled_prompt_ids=tuple(range(100)),
        completion_ids=tuple(range(TOKENS)),
        mask=(1,) * TOKENS,
        logprobs=(-0.5,) * TOKENS,
        stop=StopReason.ANSWERED,
        reward=float(draw.random() < 0.5),
        answer="102",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--instructions", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=3_125)
    parser.add_argument("--part", nargs=2, metavar=("PART", "FOLDER"))
    args = parser.parse_args()
    if not args.part:
        # Each part in a process of its own, whose memory is the part's alone.
        with tempfile.TemporaryDirectory() as scratch:
            for part in ("write", "report", "resume"):
                subprocess.run(
                    [sys.executable, __file__, *sys.argv[1:], "--part", part, f"{scratch}/run"],
                    check=True,
                )
        return
    part, folder = args.part[0], Path(args.part[1])
    before = time.process_time()
    outcome = ""
    if part == "write":
        write(folder, args.rollouts, args.instructions, args.steps)
    elif part == "report":
        outcome = f"a page of {write_report(folder).stat().st_size / 1e6:.2f} MB"
    else:
        Record.open(folder).begin_attempt(args.steps - 1)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{part:8} {time.process_time() - before:6.2f} CPU s, {memory:5.0f} MB of memory  {outcome}",
        flush=True,
    )


if __name__ == "__main__":
    main()
