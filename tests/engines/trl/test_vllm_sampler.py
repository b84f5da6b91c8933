"""Turns by vLLM: TRL's own VLLMGeneration above a fake engine, beside the sampler without vLLM."""

import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from trl.generation.vllm_client import VLLMClient

from cotune.errors import EngineError
from cotune.types import SampleRequest, Sampling
from tests.engines.trl.fake_vllm import Client, Engine, SamplingParams, install
from tests.engines.trl.setup import Run
from tests.engines.trl.vllm_setup import cached, no_traces, sampler, vllm_run
from tests.policy.tiny import Letters, tiny_tokenizer

STOP = Letters.stop


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    with no_traces():
        yield install(tiny_tokenizer(), monkeypatch.setattr)


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
@pytest.mark.parametrize("stop", [(), STOP])
def test_every_row_keeps_its_own_limit(
    mode: str, stop: tuple[str, ...], tmp_path: Path, engine: Engine
) -> None:
    run = vllm_run(tmp_path, mode=mode)
    asked = requests(run, 3, 30, 1, 0, 12)
    sampling = Sampling(temperature=0.0, stop=stop)
    session, other = sampler(run).open(sampling), cached(run).open(sampling)
    found = session.generate(asked)
    expected = [*other.generate(asked[:3]), other.generate(asked[4:])[0]]
    session.close()
    other.close()
    assert [len(sample.ids) <= r.max_tokens for sample, r in zip(found, asked, strict=True)]
    assert found.pop(3).ids == ()  # no room, nothing asked
    assert [sample.ids for sample in found] == [sample.ids for sample in expected]
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
    assert len(found[0].ids) == 3
    assert [(params.max_tokens, rows) for params, rows in engine.calls] == [(30, 4)]


def test_what_the_engine_wrote_past_the_end_of_a_turn_is_cut_off(
    tmp_path: Path, engine: Engine
) -> None:
    engine.runs_on = 2
    run = vllm_run(tmp_path)
    sampling, asked = Sampling(temperature=0.0, stop=STOP), requests(run, *[30] * 6)
    session, other = sampler(run).open(sampling), cached(run).open(sampling)
    found, expected = session.generate(asked), other.generate(asked)
    session.close()
    other.close()
    assert [s.ids for s in found] == [s.ids for s in expected]
    assert [len(s.logprobs) for s in found] == [len(s.ids) for s in found]
    assert any(len(s.ids) < 28 for s in found)


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
def test_a_row_near_the_end_of_a_servers_context_waits_for_a_call_it_fits_into(
    mode: str, tmp_path: Path, engine: Engine
) -> None:
    engine.max_model_len = 60
    run = vllm_run(tmp_path, mode=mode)
    short, long = requests(run, 40, 5)
    long = SampleRequest(long.row, long.context_ids * 5, 60 - 5 * len(long.context_ids))
    assert 0 < long.max_tokens < 40
    session = sampler(run, 60).open(Sampling(temperature=0.0))
    found = session.generate([long, short])
    session.close()
    # An engine in this process ends a row at its context instead.
    calls = [(40, 2)] if mode == "colocate" else [(40, 1), (long.max_tokens, 1)]
    assert [(params.max_tokens, rows) for params, rows in engine.calls] == calls
    other = cached(run).open(Sampling(temperature=0.0))
    assert [s.ids for s in found] == [s.ids for s in other.generate([long, short])]
    other.close()


def test_the_trainers_parameters_come_back_after_a_failure(tmp_path: Path, engine: Engine) -> None:
    run = vllm_run(tmp_path)
    kept = {"seed": 3}
    run.trainer.vllm_generation.generation_kwargs = kept
    engine.fails_at = 0
    session = sampler(run).open(Sampling(temperature=0.0))
    with pytest.raises(Exception, match="the engine died"):
        session.generate(requests(run, 5))
    assert run.trainer.vllm_generation.generation_kwargs is kept
    session.close()
    session = sampler(run).open(Sampling(temperature=0.0))
    assert session.generate(requests(run, 5))[0].ids
    assert run.trainer.vllm_generation.generation_kwargs is kept


def test_vllm_without_log_probabilities_is_an_error(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = vllm_run(tmp_path)
    generate = run.trainer.vllm_generation.generate
    monkeypatch.setattr(
        run.trainer.vllm_generation, "generate", lambda **k: (*generate(**k)[:2], None, None)
    )
    session = sampler(run).open(Sampling(temperature=0.0))
    with pytest.raises(EngineError, match="vLLM returned no log-probabilities"):
        session.generate(requests(run, 5))
