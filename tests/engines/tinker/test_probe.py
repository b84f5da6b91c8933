"""A server with which a run would train on another gradient is refused before the run begins."""

from typing import Any

import pytest

pytest.importorskip("tinker", reason="needs the SDK: pip install 'cotune[tinker]'")

from transformers import AutoTokenizer

from cotune.engines.tinker.run import ServerFacts, probe
from cotune.engines.tinker.service import Service, TinkerArguments
from cotune.errors import EngineError
from cotune.policy.codec import HFCodec
from tests.engines.tinker.fake_server import FakeServer
from tests.helpers import raises_line

PROMPT = [2, 5, 6, 7, 8, 9]


def probed(server: FakeServer) -> ServerFacts:
    service = Service(TinkerArguments(base_url="http://server"), server.model)
    codec = HFCodec(AutoTokenizer.from_pretrained(server.model))
    return probe(service, codec, PROMPT, 4)


@pytest.mark.parametrize(
    ("quirks", "reduction"),
    [
        ({"reduction": "sum"}, "sum"),
        (
            {"reduction": "mean", "names_modules": False, "bare_names": True},
            "mean",
        ),  # SkyRL's jax server
        ({"metrics": "sum"}, "sum"),
        ({"futures": True}, "sum"),  # newer versions of the SDK
    ],
)
def test_what_known_servers_do_is_found(
    quirks: dict[str, Any], reduction: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = FakeServer(policy, **quirks).install(monkeypatch)
    found, text = probed(server)
    assert found == reduction
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
