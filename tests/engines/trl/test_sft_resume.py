"""A fine-tuning run that is killed goes on; what it has paid for is not sampled twice."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from cotune.engines.trl.sft_rows import ROLLOUTS, ROWS
from cotune.run.ledger import Ledger
from cotune.run.run_dir import RunDir
from tests.engines.trl.sft_runs import configured, go_on, saved_policy, start

BUDGET = 14


class Killed(BaseException):
    """Nothing that a run would catch."""


class Killing:
    """A journal that writes to a run folder and ends the process after the n-th event of a kind."""

    def __init__(self, run: RunDir, kind: str, count: int) -> None:
        self._run, self._kind, self._left = run, kind, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def event(self, kind: str, step: int, /, **fields: object) -> None:
        self._run.event(kind, step, **fields)
        self._meet(kind)

    def metrics(self, step: int, values: dict[str, float]) -> None:
        self._run.metrics(step, values)
        self._meet("metrics")

    def _meet(self, kind: str) -> None:
        self._left -= kind == self._kind
        if kind == self._kind and not self._left:
            raise Killed


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_policy(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def unbroken(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    config = configured(policy, tmp_path_factory.mktemp("unbroken") / "run", rollout_budget=BUDGET)
    start(config)
    return RunDir.open(config.output)


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    newest = max(run.checkpoints_path.glob("checkpoint-*"), key=lambda p: int(p.name[11:]))
    model: Any = AutoModelForCausalLM.from_pretrained(newest)
    return model.state_dict()


@pytest.mark.parametrize(
    ("kind", "count", "left"),
    [
        ("sampled", 2, ROLLOUTS),  # half of the rollouts are there
        # All of them, and no row is written yet.
        pytest.param("training_rows", 1, ROLLOUTS, marks=pytest.mark.slow),
        ("metrics", 1, ROWS),  # before the first checkpoint
        pytest.param("saved", 1, ROWS, marks=pytest.mark.slow),  # right after it
        ("evaluated", 3, ROWS),  # past it: before, during, during
    ],
)
def test_a_killed_run_goes_on(
    kind: str, count: int, left: str, policy: Path, unbroken: RunDir, tmp_path: Path
) -> None:
    config = configured(policy, tmp_path / "run", rollout_budget=BUDGET)
    run = RunDir.create(config.output, {})
    with pytest.raises(Killed):
        go_on(config, run, Killing(run, kind, count), resume=False)
    assert [path.name for path in run.sft_path.iterdir()] == [left]

    again = RunDir.open(config.output)
    changed = configured(policy, config.output, rollout_budget=BUDGET, keep_checkpoints=3)
    outcome = go_on(changed, again, again)
    told = [row["changed"] for row in again.read_events() if row["kind"] == "resumed"]
    anew = left == ROLLOUTS
    assert told == ([] if anew else [{"training.keep_checkpoints": [2, 3]}])

    with Ledger(again.ledger_path) as ledger:
        assert ledger.totals().rollouts["train"] == BUDGET
        paid = sum(row.rollouts for row in ledger.rows() if row.kind == "train")
    assert paid == BUDGET, "sampled twice"
    rows, expected = ((r.sft_path / ROWS).read_text().splitlines() for r in (again, unbroken))
    assert rows[1:] == expected[1:]
    steps, tokens = (
        [[row[name] for row in of.read_metrics()] for of in (again, unbroken)]
        for name in ("step", "num_tokens")
    )
    assert steps[0] == steps[1]
    assert tokens[0] == tokens[1]
    assert outcome.steps == len(steps[0])
    for name in ("sampled", "training_rows", "evaluated"):
        events = [_told(run, name) for run in (again, unbroken)]
        assert events[0] == events[1], name
    found, wanted = weights(again), weights(unbroken)
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


def _told(run: RunDir, kind: str) -> list[dict[str, Any]]:
    """The events of a kind without their times and attempts."""
    return [
        {name: value for name, value in row.items() if name not in ("time", "attempt")}
        for row in run.read_events()
        if row["kind"] == kind
    ]
