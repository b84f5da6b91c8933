"""A dead server, a wrong key, another model, an error: one line each, in time; and what the sampler asks for."""

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("tinker", reason="needs the SDK: pip install 'cotune[tinker]'")

from transformers import AutoTokenizer

from cotune.engines.tinker import service as service_module
from cotune.engines.tinker.run import ServerFacts, probe
from cotune.engines.tinker.server_policy import Adapter, TinkerSampler
from cotune.engines.tinker.service import Service, TinkerArguments
from cotune.errors import ConfigError, EngineError
from cotune.policy.codec import HFCodec
from cotune.types import SampleRequest, Sampling
from tests.engines.tinker.fake_server import KEY, FakeServer
from tests.engines.tinker.setup import adapter_of
from tests.helpers import raises_line
from tests.loopback import answering


def test_a_dead_server_is_named_at_once() -> None:
    started = time.monotonic()
    with raises_line("the Tinker server at http://127.0.0.1:9 does not answer"):
        Service(TinkerArguments(base_url="http://127.0.0.1:9"), "m")
    assert time.monotonic() - started < 15


@pytest.mark.parametrize("key", ["tml-wrong-key-of-mine", "sk-no-tinker-key"])
def test_a_wrong_key_is_named_by_its_variable(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the SDK itself, over HTTP."""
    monkeypatch.setenv("MY_KEY", key)
    started = time.monotonic()

    def answer(path: str, _: object) -> tuple[int, object]:
        healthy = path.endswith("healthz")
        return 200 if healthy else 401, {"status": "ok", "detail": "invalid key"}

    without_key = rf"^(?!.*{key}).*refuses the key in the environment variable MY_KEY"
    with answering(answer) as url, raises_line(match=without_key):
        Service(TinkerArguments(base_url=url, api_key_env="MY_KEY"), "m")
    assert time.monotonic() - started < 30


@pytest.mark.usefixtures("server")
def test_another_model_is_refused_and_the_server_s_is_named() -> None:
    """SkyRL takes any name for its one model."""
    with pytest.raises(ConfigError, match=r"has no 'Qwen/Qwen3-8B'; expected one of /"):
        Service(TinkerArguments(base_url="http://server"), "Qwen/Qwen3-8B")


@pytest.mark.parametrize(("setting", "expected"), [("1", "1"), (None, "0")])
def test_telemetry_is_off_unless_the_user_set_it(
    setting: str | None, expected: str, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TINKER_TELEMETRY", raising=False)
    if setting is not None:
        monkeypatch.setenv("TINKER_TELEMETRY", setting)
    adapter_of(server)
    assert os.environ["TINKER_TELEMETRY"] == expected


def test_an_error_of_the_server_is_one_line_without_the_key(
    server: FakeServer, adapter: Adapter
) -> None:
    def fail(name: str) -> None:
        if name == "save":
            raise ValueError(f"Error retrieving result:\n no room for {KEY}")

    server.fail = fail
    expected = r"\(a checkpoint\): Error retrieving result: no room for \*\*\*$"
    with raises_line(match=expected, error=EngineError):
        adapter.save("x")


def test_a_server_that_dies_while_it_works_or_never_answers_ends_the_run(
    server: FakeServer, adapter: Adapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "_LOOK_SECONDS", 0.05)
    looks: list[str] = []

    def fail(name: str) -> None:
        if name == "save":
            time.sleep(2)
        if name == "get":
            looks.append(name)
            if len(looks) > 1:
                raise service_module.httpx.ConnectError("refused")

    server.fail = fail
    with pytest.raises(EngineError, match="no longer answers"):
        adapter.save("x")
    assert len(looks) == 4  # once well, then three times not
    # One that never answers is given up: SkyRL's hangs for another version of the SDK than it knows.
    monkeypatch.setattr(service_module, "_LOOK_SECONDS", 0.05)
    adapter.service.limit = 0.1
    server.fail = lambda name: time.sleep(2) if name == "update" else None
    with pytest.raises(EngineError, match=r"SkyRL 0.3.0 needs tinker 0.24.1"):
        adapter.update([], "ppo", {}, 0.0)


@pytest.mark.parametrize("futures", [False, True])
def test_a_session_draws_by_row_and_stops_in_either_form(
    futures: bool, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(policy, futures=futures).install(monkeypatch)
    codec = HFCodec(AutoTokenizer.from_pretrained(policy))
    sampler = TinkerSampler(adapter_of(server), codec)
    requests = [SampleRequest(row, (2, 5 + row, 7), 12) for row in range(6)]
    together = sampler.open(Sampling(seed=5)).generate(requests)
    assert together == sampler.open(Sampling(seed=5)).generate(requests)
    alone = sampler.open(Sampling(seed=5)).generate(requests[3:4])
    assert alone == together[3:4]
    assert together != sampler.open(Sampling(seed=6)).generate(requests)
    assert {tuple(p.stop) for p in server.requests} == {(codec.eos_id,)}
    assert len({p.seed for p in server.requests[:6]}) == 6
    sampler.open(Sampling(stop=("de",))).generate(requests[:1])
    assert server.requests[-1].stop == ["de", codec.decode([codec.eos_id])]
    sampler.open(Sampling(temperature=0.0)).generate(requests[:1])
    assert server.requests[-1].temperature == 0.0


def test_a_turn_ends_at_its_first_end_and_its_own_limit(policy: str) -> None:
    """Whatever a server goes on with; one that compiles is asked for the same number of tokens every turn."""
    codec = HFCodec(AutoTokenizer.from_pretrained(policy))
    end = codec.eos_id
    requests: list[Any] = []

    def sample(rows: Any) -> list[Any]:
        requests.extend(rows)
        return [SimpleNamespace(tokens=[5, 6, end, 7], logprobs=[-1.0, -2.0, -3.0, -4.0])] * 2

    policy_stub: Any = SimpleNamespace(sample=sample)
    session = TinkerSampler(policy_stub, codec, turn_tokens=9).open(Sampling())
    long, short = session.generate([SampleRequest(0, (2,), 8), SampleRequest(1, (2,), 2)])
    assert long.ids == (5, 6, end)
    assert long.logprobs == (-1.0, -2.0, -3.0)
    assert short.ids == (5, 6)
    assert [parameters["max_tokens"] for _, parameters in requests] == [9, 9]


def test_a_saved_adapter_goes_on_with_its_moments(adapter: Adapter) -> None:
    path = adapter.save("step-1")
    again = Adapter(adapter.service, 4, saved=path)
    expected, restored = (a.forward([((2, 5), (6, 7))])[0].tolist() for a in (adapter, again))
    assert expected == restored
    with pytest.raises(EngineError, match="tinker://gone"):
        Adapter(adapter.service, 4, saved="tinker://gone")


# ---- a server with which a run would train on another gradient is refused before the run begins


PROMPT = [2, 5, 6, 7, 8, 9]


def probed(server: FakeServer) -> ServerFacts:
    service = Service(TinkerArguments(base_url="http://server"), server.model)
    codec = HFCodec(AutoTokenizer.from_pretrained(server.model))
    return probe(service, codec, PROMPT, 4)


@pytest.mark.parametrize(
    ("quirks", "reduction"),
    [
        ({"reduction": "sum"}, "sum"),
        # SkyRL's jax server
        ({"reduction": "mean", "names_modules": False, "bare_names": True}, "mean"),
        ({"metrics": "sum"}, "sum"),
        ({"futures": True}, "sum"),  # newer versions of the SDK
    ],
)
def test_what_known_servers_do_is_found(
    quirks: dict[str, Any], reduction: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(policy, **quirks).install(monkeypatch)
    probed_reduction, text = probed(server)
    assert probed_reduction == reduction
    assert f"losses are a {reduction}, seeds repeat their draws" in text
    assert float(text.rpartition(" ")[2]) < 1e-5
    assert {adam.grad_clip_norm for adam in server.adams} == {0.0}
    assert [path for path in server.saved if "probe" in path] == []  # deleted again


@pytest.mark.parametrize(
    ("quirks", "problem"),
    [
        ({"reduction": "mean of rows"}, "adds up losses in an unknown way"),
        ({"metrics": "nothing"}, "reports neither a gradient's norm nor how it adds up losses"),
        ({"off": 0.5}, "0.50 from its trainer's"),
        ({"stops": "ignored"}, "does not end a sequence at the stop"),
        ({"stops": "dropped"}, "does not end a sequence at the stop"),
        ({"alpha": 16}, r"r and alpha \(4, 16\); expected \(4, 32\)"),
    ],
)
def test_a_server_that_would_change_the_gradient_is_refused(
    quirks: dict[str, Any], problem: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(policy, **quirks).install(monkeypatch)
    with raises_line(match=problem, error=EngineError):
        probed(server)


def test_seeds_that_do_not_repeat_are_only_said(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(policy, seeded=False).install(monkeypatch)
    assert "seeds do not repeat" in probed(server)[1]
