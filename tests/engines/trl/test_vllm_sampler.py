"""Turns by vLLM: TRL's own VLLMGeneration above a fake engine, beside the sampler without vLLM."""

import asyncio
import inspect
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import trl.generation.vllm_generation as vllm_generation
from trl.generation.vllm_client import VLLMClient

from cotune.errors import EngineError
from cotune.types import Sample, SampleRequest, Sampling
from tests.engines.trl.fake_vllm import Client, Engine, SamplingParams
from tests.engines.trl.setup import Run
from tests.engines.trl.vllm_setup import cached, sampler, vllm_run
from tests.policy.tiny import Letters


@pytest.mark.parametrize(
    "method",
    [
        "__init__",
        "generate",
        "init_communicator",
        "get_server_info",
        "update_named_params",
        "reset_prefix_cache",
    ],
)
def test_the_fake_client_takes_what_trls_takes(method: str) -> None:
    real = inspect.signature(getattr(VLLMClient, method)).parameters
    fake = inspect.signature(getattr(Client, method)).parameters
    assert list(fake) == list(real)
    assert [p.default for p in fake.values()] == [p.default for p in real.values()]


def test_the_fake_parameters_are_some_of_vllms() -> None:
    vllm = pytest.importorskip("vllm")
    real = vllm.SamplingParams()
    for field in fields(SamplingParams):
        assert hasattr(real, field.name)


def requests(run: Run, *limits: int) -> list[SampleRequest]:
    tasks = Letters().tasks("train")
    render = run.joint.codec.render
    return [
        SampleRequest(row, tuple(render([{"role": "user", "content": task.question * row}])), limit)
        for row, (task, limit) in enumerate(zip(tasks, limits, strict=False), 1)
    ]


@pytest.mark.parametrize("mode", ["colocate", "server"])
@pytest.mark.parametrize("stop", [(), Letters.stop])
def test_every_row_keeps_its_own_limit(
    mode: str, stop: tuple[str, ...], tmp_path: Path, engine: Engine
) -> None:
    run = vllm_run(tmp_path, mode=mode)
    rows = requests(run, 3, 30, 1, 0, 12)
    sampling = Sampling(temperature=0.0, stop=stop)
    session, cached_session = sampler(run).open(sampling), cached(run).open(sampling)
    samples = session.generate(rows)
    expected = [*cached_session.generate(rows[:3]), cached_session.generate(rows[4:])[0]]
    session.close()
    cached_session.close()
    assert [len(sample.ids) <= r.max_tokens for sample, r in zip(samples, rows, strict=True)]
    assert samples.pop(3).ids == ()  # no room, nothing asked
    assert [sample.ids for sample in samples] == [sample.ids for sample in expected]
    for sample, cached_sample in zip(samples, expected, strict=True):
        assert sample.logprobs == pytest.approx(cached_sample.logprobs, abs=1e-4)
    assert len(samples[0].ids) == 3
    assert sorted(params.max_tokens for params, _ in engine.calls) == [1, 3, 12, 30]


@pytest.mark.parametrize(
    ("mode", "changes", "expected"),
    [
        ("colocate", {}, 90),
        ("colocate", {"vllm_max_model_length": 60}, 60),
        ("server", {}, 90),  # what it was started with
        ("colocate", {"vllm_max_model_length": 1024}, 512),  # the policy's own
    ],
)
def test_episodes_end_where_vllms_context_does(
    mode: str, changes: dict[str, int], expected: int, tmp_path: Path, engine: Engine
) -> None:
    engine.max_model_len = 90
    run = vllm_run(tmp_path, mode=mode, **changes)
    assert run.joint.coordinator.settings.context_tokens == expected


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_rows_that_come_late_or_are_dropped_change_no_other(
    mode: str, tmp_path: Path, engine: Engine
) -> None:
    run = vllm_run(tmp_path, mode=mode)
    rows = requests(run, *[20] * 6)
    session: Any = sampler(run).open(Sampling(seed=4, stop=Letters.stop))
    expected = session.generate(rows)
    assert len(set(expected)) == 6

    async def late(row: SampleRequest) -> Sample:
        await asyncio.sleep(random.random() / 50)
        return await session.sample(row)

    async def sample() -> list[Sample]:
        dropped = asyncio.create_task(session.sample(rows[0]))
        await asyncio.sleep(0)
        dropped.cancel()
        return await asyncio.gather(*map(late, rows))

    assert asyncio.run(sample()) == expected
    if mode == "colocate":
        assert not run.trainer.vllm_generation.llm.llm_engine.waiting
    session.close()


def test_vllm_without_log_probabilities_is_an_error(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = vllm_run(tmp_path)
    monkeypatch.setattr(vllm_generation, "extract_logprobs", lambda outputs: (None, None))
    session = sampler(run).open(Sampling(temperature=0.0))
    with pytest.raises(EngineError, match="vLLM returned no log-probabilities"):
        session.generate(requests(run, 5))
