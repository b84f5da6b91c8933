"""`cotune push` against a hub on the loopback: what arrives is the export, or nothing."""

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from cotune.errors import ConfigError
from cotune.export.export import export
from cotune.export.push import push
from tests.export.fake_hub import TOKEN, Hub, Repository, running_hub
from tests.export.finished import files
from tests.export.test_export import whole, with_lora


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Generator[Hub]:
    with running_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        # Its uploads are another protocol, of a service that the hub names.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def leavings(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")}


def test_what_arrives_is_the_export_and_nothing_else(hub: Hub, tmp_path: Path) -> None:
    run, _ = whole(tmp_path)
    expected = files(export(run.path))
    kept = files(run.best_path)
    assert push(run.path, "me/my-agent") == f"{hub.address}/me/my-agent"
    found = hub.repositories["me/my-agent"]
    assert not found.private
    card = found.files.pop("README.md").decode()
    written = expected.pop("README.md").decode()
    assert found.files == expected
    assert card == written.replace("path/to/this/folder", "me/my-agent")
    assert "vllm serve me/my-agent" in card
    assert leavings(run.path) == set()
    assert files(run.best_path) == kept
    assert not [name for name, content in files(run.path).items() if TOKEN.encode() in content]
    assert not any(TOKEN.encode() in body for _, _, body in hub.requests)


def test_a_second_push_replaces_the_first(hub: Hub, tmp_path: Path) -> None:
    run, _ = whole(tmp_path)
    push(run.path, "me/my-agent")
    hub.repositories["me/my-agent"].files["config.json"] = b"{}"
    hub.repositories["me/my-agent"].files["notes.md"] = b"mine"
    push(run.path, "me/my-agent")
    found = hub.repositories["me/my-agent"].files
    assert found["config.json"] == (run.best_path / "config.json").read_bytes()
    assert found["notes.md"] == b"mine"


def test_private_is_private(hub: Hub, tmp_path: Path) -> None:
    run, _ = whole(tmp_path)
    push(run.path, "me/secret", private=True)
    assert hub.repositories["me/secret"].private
    push(run.path, "me/secret", private=True)
    hub.repositories["me/open"] = Repository()
    with pytest.raises(ConfigError, match="me/open exists and is public, which --private does not"):
        push(run.path, "me/open", private=True)
    assert hub.repositories["me/open"].files == {}


def test_an_adapter_needs_a_base_that_others_have(hub: Hub, tmp_path: Path) -> None:
    run, _, _ = with_lora(tmp_path)
    with pytest.raises(ConfigError, match="push whole weights with --format merged"):
        push(run.path, "me/adapter")
    assert hub.requests == []
    push(run.path, "me/merged", "merged")
    found = hub.repositories["me/merged"].files
    assert "model.safetensors" in found
    assert not [name for name in found if name.startswith("adapter")]
    assert not [name for name, content in found.items() if str(tmp_path).encode() in content]


@pytest.mark.parametrize("file", ["model-00001-of-00002.safetensors", "adapter_config.json"])
def test_weights_of_another_upload_are_not_joined(file: str, hub: Hub, tmp_path: Path) -> None:
    run, _ = whole(tmp_path)
    files = {file: b"old", "README.md": b"old"}
    hub.repositories["me/old"] = Repository(files=dict(files))
    with pytest.raises(ConfigError, match=rf"holds {file}, weights that"):
        push(run.path, "me/old")
    assert hub.repositories["me/old"].files == files


@pytest.mark.parametrize("name", ["", "agent", "me/", "me/a b", "me/../x", "a/b/c", "me/x.git"])
def test_a_name_that_is_none_sends_nothing(name: str, hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected owner/name"):
        push(tmp_path, name)
    assert hub.requests == []


def one_line(raised: pytest.ExceptionInfo[ConfigError]) -> str:
    text = str(raised.value)
    assert "\n" not in text
    assert TOKEN not in text
    return text


def test_what_the_hub_refuses_is_said_in_one_line(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = whole(tmp_path)
    with pytest.raises(
        ConfigError, match=r"others/agent at .*rights to create.*; check the owner's"
    ) as raised:
        push(run.path, "others/agent")
    one_line(raised)
    hub.broken = 422
    with pytest.raises(ConfigError, match=r"nothing was pushed .*\(the disk is full\)") as raised:
        push(run.path, "me/agent")
    one_line(raised)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ConfigError, match=r"\(Invalid username.*that HF_TOKEN may") as raised:
        push(run.path, "me/agent")
    assert "hf_wrong" not in one_line(raised)
    assert leavings(run.path) == set()


def test_no_token_no_network_and_offline(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = whole(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"offline mode is enabled.*HF_HUB_OFFLINE"):
        push(run.path, "me/agent")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"at http://127\.0\.0\.1:9 .*network") as raised:
        push(run.path, "me/agent")
    one_line(raised)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="no token of the Hugging Face hub: set HF_TOKEN"):
        push(run.path, "me/agent")
    assert hub.requests == []


def test_the_command_uploads_a_run_of_a_local_policy(hub: Hub, tmp_path: Path) -> None:
    run, _ = whole(tmp_path)
    environment: dict[str, Any] = {
        **{k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "RANK")},
        "HF_ENDPOINT": hub.address,
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_XET": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "cotune", "push", str(run.path), "me/agent", "--private"],
        capture_output=True, text=True, env=environment, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.strip() == f"pushed to {hub.address}/me/agent"
    assert hub.repositories["me/agent"].private
    assert "model.safetensors" in hub.repositories["me/agent"].files
