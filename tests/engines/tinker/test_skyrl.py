"""The engine on a real server, SkyRL's on the CPU; `make test-tinker` runs it (CONTRIBUTING.md)."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("tinker", reason="needs the SDK: pip install 'cotune[tinker]'")

from transformers import AutoTokenizer

from cotune.cli.train import resume, train
from cotune.config.build import run_environment, run_policy
from cotune.config.resuming import recorded_config
from cotune.engines.engine import engine_of
from cotune.engines.tinker.run import TinkerJoint, probe
from cotune.engines.tinker.server_policy import Adapter
from cotune.engines.tinker.service import Service, TinkerArguments
from cotune.errors import Stopped
from cotune.experiments.evaluate.evaluation import best_record
from cotune.policy.codec import HFCodec
from cotune.run.run_dir import RunDir
from cotune.types import Prompt
from tests.engines.tinker.parity import check_log_probabilities, check_update
from tests.engines.tinker.setup import INSPO, letters, lines
from tests.engines.tinker.skyrl_server import PYTHON, skyrl_server

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="needs a server: make test-tinker"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def url(policy: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("skyrl") / "server"
    with skyrl_server(Path(policy), folder, port) as address:
        yield address


@pytest.fixture
def service(url: str, policy: str) -> Service:
    return Service(TinkerArguments(base_url=url), policy)


def test_the_probe_knows_the_server(service: Service, policy: str) -> None:
    codec = HFCodec(AutoTokenizer.from_pretrained(policy))
    reduction, text = probe(service, codec, [2, 5, 6, 7, 8, 9, 10, 11], 4)
    assert reduction == "mean"
    assert "seeds repeat their draws" in text
    assert float(text.rpartition(" ")[2]) < 1e-5


def test_log_probabilities_are_those_of_peft(service: Service, policy: str, tmp_path: Path) -> None:
    check_log_probabilities(Adapter(service, 4, seed=3), policy, tmp_path)


@pytest.mark.parametrize("ratio", ["original", "masked_signed"])
def test_an_update_is_a_step_of_the_reference_loop(
    ratio: str, service: Service, policy: str, tmp_path: Path
) -> None:
    check_update(Adapter(service, 4, seed=3), policy, tmp_path, ratio, "mean")


def test_a_resumed_run_is_the_unbroken_one(
    url: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = {"base_url": url, "row_multiple": 8}
    update = TinkerJoint._update

    def stopped(joint: TinkerJoint, *arguments: object) -> object:
        if joint.batches == 2:
            raise KeyboardInterrupt
        return update(joint, *arguments)  # type: ignore[arg-type]

    unbroken = RunDir.open(
        train(letters(tmp_path / "unbroken", policy, INSPO, engine_args=args), quiet=True)
    )
    raw = letters(tmp_path / "broken", policy, INSPO, engine_args=args)
    with monkeypatch.context() as patch:
        patch.setattr(TinkerJoint, "_update", stopped)
        with pytest.raises(Stopped):
            train(raw, quiet=True)
    broken = RunDir.open(resume(tmp_path / "broken", quiet=True))
    expected, resumed = lines(unbroken), lines(broken)
    for name in expected:
        assert resumed[name] == expected[name], name
    assert all(row["server/drift"] < 1e-4 for row in expected["metrics"])
    assert all(row["rows_sent"] > 0 for row in expected["metrics"])
    # The server evaluates what it kept, and the base model.
    config = recorded_config(unbroken)
    environment = run_environment(config)
    tasks = environment.tasks("test")
    best = best_record(unbroken)
    trained, base, local = (
        evaluated(config, environment, best=folder).evaluate(tasks, Prompt(best.instruction))
        for evaluated, folder in (
            (engine_of(config).open_policy, unbroken.best_path),
            (engine_of(config).open_policy, None),
            (run_policy, None),
        )
    )
    rewards = [row["reward"] for row in unbroken.read_evaluation("after")]
    assert [rollout.reward for rollout in trained] == rewards
    assert [rollout.completion_ids for rollout in base] == [r.completion_ids for r in local]
    assert [rollout.completion_ids for rollout in base] != [r.completion_ids for r in trained]
