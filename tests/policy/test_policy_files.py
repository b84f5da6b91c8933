"""Whether the hub is asked for a policy: once, and in vain in one line."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from cotune.errors import ConfigError
from cotune.policy.local_policy import load, load_tokenizer
from cotune.policy.policy_files import only_local
from tests.policy.bigram import save
from tests.policy.tiny import CHAT_TEMPLATE

NOWHERE = "http://127.0.0.1:9"  # nothing listens there: refused at once


@contextmanager
def hub(status: int, headers: dict[str, str]) -> Generator[tuple[str, list[str]]]:
    """A hub that answers everything alike; its address, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps({"id": "org/model", "modelId": "org/model"}).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", NOWHERE)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def cached(folder: Path, name: str) -> Path:
    """A whole model in the hub's cache."""
    repository = folder / "cache" / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc", encoding="utf-8")
    snapshot = repository / "snapshots" / "abc"
    save(snapshot, {"a": 1.0}, CHAT_TEMPLATE)
    return snapshot


def test_a_folder_makes_no_request(tmp_path: Path) -> None:
    assert only_local(tmp_path)


def test_an_unreachable_hub_is_one_line_at_once() -> None:
    for loads in (load, load_tokenizer):
        with pytest.raises(ConfigError) as raised:
            loads("org/model")
        said = str(raised.value)
        assert said.startswith("policy.path: cannot load 'org/model': it is not a folder here")
        assert f"{NOWHERE} cannot be reached" in said
        assert "name a folder" in said
        assert "\n" not in said


def test_what_is_cached_is_used_where_the_hub_is_out_of_reach(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshot = cached(tmp_path, "org/model")

    assert only_local("org/model")
    assert "org/model is taken from the cache" in caplog.text
    (snapshot / "model.safetensors").unlink()
    assert only_local("org/model", weights=False)
    with pytest.raises(ConfigError, match="lacks weights of it"):
        only_local("org/model")
    (snapshot / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="lacks weights, tokenizer of it"):
        only_local("org/model")


def test_offline_mode_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="and HF_HUB_OFFLINE is set; name a folder"):
        only_local("org/model")


def test_a_model_that_the_hub_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub(404, {"X-Error-Code": "RepoNotFound"}) as (address, asked):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        with pytest.raises(ConfigError, match=r"has no such model.*correct the name"):
            only_local("org/modle")
        cached(tmp_path, "org/private")  # the token that fetched it has expired, say
        assert only_local("org/private")
    assert asked == ["/api/models/org/modle", "/api/models/org/private"]
    with pytest.raises(ConfigError, match="neither a folder here nor a model's name"):
        only_local("runs/a/best")


@pytest.mark.parametrize("status", [200, 503])
def test_a_hub_that_answers_is_left_to_the_loader(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub(status, {}) as (address, asked):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        assert not only_local("org/model")
    assert len(asked) == 1
