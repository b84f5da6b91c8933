"""Time the rollouts of examples/three_tools with episodes that wait for each other, and with ones that do not.

    python scripts/waiting.py

The policy is a clock: a token takes as long as vLLM's decoding step with 128 rows on an H200, whatever the number of
rows. Turns have log-normal lengths, tools take between 20 and 500 ms. Everything else is what a run does.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from cotune.environments.tools import ToolEnvironment
from cotune.policy.codec import HFCodec
from cotune.rollout.drivers import run_episodes
from cotune.rollout.episode import new_episodes
from cotune.types import Assignment, Limits, Prompt, Sample, SampleRequest, Task

EXAMPLE = Path(__file__).parents[1] / "examples/three_tools"
STEP = 0.0106  # seconds
TURNS = 4
MEAN_TOKENS = 256


class Clock:
    """A session that calls a question's tool in each turn but the last, after as long as its tokens take.

    Args:
        turns: what to write in each turn of each row.
        tokens: how many tokens that stands for.
    """

    def __init__(self, turns: list[list[list[int]]], tokens: np.ndarray) -> None:
        self._turns = turns
        self._tokens = tokens
        self._written: Counter[int] = Counter()

    def generate(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        seconds, samples = zip(*map(self._next, requests), strict=True)
        time.sleep(max(seconds))
        return list(samples)

    async def sample(self, request: SampleRequest) -> Sample:
        seconds, sample = self._next(request)
        await asyncio.sleep(seconds)
        return sample

    def close(self) -> None: ...

    def _next(self, request: SampleRequest) -> tuple[float, Sample]:
        turn = self._written[request.row]
        self._written[request.row] += 1
        ids = self._turns[request.row][turn]
        return self._tokens[request.row, turn] * STEP, Sample(tuple(ids), (0.0,) * len(ids))


def delayed(tool: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(tool)
    def call(**arguments: Any) -> Any:
        # Both ways of running wait equally long.
        time.sleep(random.Random(str(arguments)).uniform(0.02, 0.5))
        return tool(**arguments)

    return call


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--variation", type=float, nargs="+", default=[0.4, 0.8, 1.2])
    chosen = parser.parse_args()
    sys.path.insert(0, str(EXAMPLE))
    from task import calculator, calendar, dictionary, rows

    def day(day: str) -> str:
        """Says which day of the week a day is.

        Args:
            day: as 2026-01-31.
        """
        return asyncio.run(calendar(day))

    codec = HFCodec(AutoTokenizer.from_pretrained(EXAMPLE / "policy"))
    questions = rows(chosen.rows, 0)
    tasks = [Task(str(row), q["question"], (q["answer"],)) for row, q in enumerate(questions)]
    calls: list[list[list[int]]] = []
    for question in questions:
        name = {"calendar": "day"}.get(question["tool"], question["tool"])
        call = {"name": name, "arguments": {question["parameter"]: question["argument"]}}
        ids = codec.encode(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")
        calls.append([[*ids, codec.eos_id]] * (TURNS - 1) + [[*codec.encode("done"), codec.eos_id]])
    tools = [delayed(tool) for tool in (calculator, dictionary, day)]
    environment = ToolEnvironment(tools, {"train": tasks})
    plain = Prompt(environment.initial_instruction)
    assignments = [Assignment(task, plain, plain, "i0", row) for row, task in enumerate(tasks)]
    limits = Limits(turns=TURNS)
    print(f"{chosen.rows} rollouts of {TURNS} turns; rollouts a second waiting, not waiting, ratio")
    for variation in chosen.variation:
        spread = np.log(1 + variation**2)
        tokens = np.random.default_rng(0).lognormal(
            np.log(MEAN_TOKENS) - spread / 2, np.sqrt(spread), (chosen.rows, TURNS)
        )
        speeds: list[float] = []
        rollouts: list[Any] = []
        for parallel in (0, ToolEnvironment.parallel_responses):
            environment.parallel_responses = parallel
            episodes = new_episodes(assignments, environment, codec, limits)
            started = time.monotonic()
            rollouts.append(run_episodes(episodes, environment, Clock(calls, tokens)))
            speeds.append(chosen.rows / (time.monotonic() - started))
        assert rollouts[0] == rollouts[1]
        waiting, apart = speeds
        print(f"variation {variation}: {waiting:.1f}, {apart:.1f}, {apart / waiting:.2f}")


if __name__ == "__main__":
    main()
