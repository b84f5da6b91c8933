"""Run files whose policy calls tools, trained by TRL: a tiny policy that calls them by chance."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoTokenizer

from cotune.cli.train import train
from cotune.policy.codec import HFCodec
from cotune.run.run_dir import RunDir
from tests.helpers import jsonl, tool_call
from tests.policy.bigram import save
from tests.run_files import tiny, write

TURNS = {
    tool_call("add", a=3, b=4): 0.3,
    tool_call("add", a=3): 0.2,
    tool_call("add", a=1, b=1) + "\n" + tool_call("fail"): 0.2,
    "seven": 0.2,
    "eight": 0.1,
}
TOOLS = '''
import random


def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: one.
        b: two.
    """
    return a + b


async def fail() -> str:
    """Fails."""
    raise RuntimeError("as it should")


def right(completions, answer, **kwargs):
    return [float(c[-1]["content"].strip() == a) for c, a in zip(completions, answer)]


class Adder:
    def reset(self, **kwargs):
        self.calls = 0
        return f"{random.randint(1, 10**6)} + 1? Call add."

    def add(self, a: int, b: int) -> int:
        """Adds.

        Args:
            a: one.
            b: two.
        """
        self.calls += 1
        return a + b

    def get_reward(self):
        return self.calls / 4
'''


def run_file(folder: Path, **changes: Any) -> dict[str, Any]:
    """A run of two steps in a folder with tools, data and a policy."""
    (folder / "own.py").write_text(TOOLS)
    rows = [{"question": f"3 + 4? ({i})", "answer": "seven"} for i in range(20)]
    jsonl(folder / "data.jsonl", rows)
    policy = folder / "policy"
    save(policy, TURNS)
    own = str(folder / "own.py")
    return tiny(
        folder / "out",
        {
            "policy": {"path": str(policy)},
            "dataset": {"path": str(folder / "data.jsonl"), "validation": 2, "test": 2},
            "environment": {
                "kind": "tools",
                "tools": [f"{own}:add", f"{own}:fail"],
                "seconds": 5,
            },
            "rewards": [f"{own}:right"],
            "limits": {
                "turns": 3,
                "turn_tokens": 24,
                "observation_tokens": 300,
                "trajectory_tokens": 1200,
                "prompt_tokens": 2000,
            },
            "strategy": {"kind": "static"},
            "training": {"steps": 2, "save_every": 0, "learning_rate": 1e-2},
            "evaluation": {"every": 1, "before": False},
            "logging": {"trajectories_every": 1},
            **changes,
        },
    )


def trained(folder: Path, **changes: Any) -> tuple[RunDir, list[dict[str, Any]]]:
    """A finished run, and its training rollouts as they were written down."""
    file = write(folder / "run.yaml", run_file(folder, **changes))
    run = RunDir.open(train(file, Console(quiet=True)))
    steps = [step for step, purpose in run.trajectory_files() if purpose == "train"]
    assert steps
    return run, [row for step in steps for row in run.read_trajectories(step, "train")]


@pytest.mark.slow
def test_a_run_file_with_tools_is_trained(tmp_path: Path) -> None:
    run, rows = trained(tmp_path)
    codec = HFCodec(AutoTokenizer.from_pretrained(tmp_path / "out" / "best"))

    turns = [turn for row in rows for turn in row["turns"]]
    by_action = {turn["action"]: turn for turn in turns}
    assert {"add", "2 calls", "answer"} <= by_action.keys()
    assert by_action["2 calls"]["error"] == "fail: RuntimeError"
    assert "add: TypeError" in {turn["error"] for turn in turns}
    assert "\n7\n" in {turn["observation"] for turn in turns}
    for row in rows:
        own = [i for i, m in zip(row["completion_ids"], row["mask"], strict=True) if m]
        assert codec.decode(own) == "".join(f"{t['text']}<|im_end|>" for t in row["turns"])
        assert '"name": "add"' in codec.decode(row["prompt_ids"])
        assert row["reward"] == float(row["answer"] == "seven")
        assert row["reward_parts"] == {"right": row["reward"]}
    last = run.read_metrics()[-1]
    assert last["step"] == 2
    assert last["grad_norm"] > 0
    assert 0 < last["turn_error_share"] < 1


@pytest.mark.slow
def test_an_environment_written_for_trl_is_trained_without_data(tmp_path: Path) -> None:
    factory = f"{tmp_path / 'own.py'}:Adder"
    environment = {"kind": "trl", "factory": factory, "validation": 2, "test": 2}

    _, rows = trained(tmp_path, environment=environment, dataset=None, rewards=[])

    asked: dict[tuple[int, int], set[str]] = {}
    for row in rows:
        asked.setdefault((row["step"], row["group"]), set()).add(row["task"]["question"])
        made = [t for t in row["turns"] if t["observation"] == "\n7\n"]
        both = [t for t in row["turns"] if t["observation"].startswith("\nadd: 2\nfail: {'error':")]
        assert row["reward"] == (len(made) + len(both)) / 4
    assert len({row["reward"] for row in rows}) > 1
    assert {len(texts) for texts in asked.values()} == {1}
    assert len(set.union(*asked.values())) == len(asked) > 2
