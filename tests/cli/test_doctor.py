"""What `cotune doctor` finds: in the installation, the machine and a run file."""

import re
import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cotune.cli import doctor
from cotune.config.run_file import RunConfig, parse_config
from cotune.engines import preflight
from cotune.engines.preflight import Notice, Preflight
from cotune.errors import ConfigError, EngineError, LLMError
from cotune.llm.client import OpenAIOptions, make_first_call
from cotune.policy import policy_files as policies
from cotune.run.record import Record
from tests.command_line import Command
from tests.loopback import endpoint, retrieval_server
from tests.run_files import tiny, write

SECRET = "sk-value-of-the-key"
ENDPOINT = {"kind": "openai", "model": "m", "api_key_env": "COTUNE_TEST_KEY"}
BUNDLED = Path(policies.policy_path("bundled:geo"))


def config(tmp_path: Path, **changes: Any) -> RunConfig:
    return parse_config(tiny(tmp_path / "out", changes), "test")


def error_text(look: Callable[[], object]) -> str:
    """What a check says is missing, with its fix."""
    with pytest.raises((ConfigError, EngineError)) as caught:
        look()
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(r"[;:] ", message)
    return message


def test_a_run_file_that_lacks_nothing(tmp_path: Path) -> None:
    lines = [*doctor.examine(write(tmp_path / "run.yaml", tiny(tmp_path / "out")))]
    assert not any(isinstance(line, Exception) for line in lines)
    for beginning in ("python 3", "packages: ", "engine trl: 1.", "CPU: ", "run file: ",
                      "policy: bundled:geo, 4.0 MiB", "training: TRL takes", "output: "):  # fmt: skip
        assert any(str(line).startswith(beginning) for line in lines), beginning
    assert f"torch {torch.__version__}" in str(lines[1])
    assert not (tmp_path / "out").exists()


def test_the_checks_go_on_after_one_that_fails(tmp_path: Path) -> None:
    """But for those that need it."""
    args = {"policy": {"path": "nobody/has-this"}, "training": {"engine_args": {"loss_typ": "x"}}}
    outcomes = {
        check.name: outcome for check, outcome in Preflight(config(tmp_path, **args)).outcomes()
    }
    assert isinstance(outcomes["policy files"], ConfigError)
    assert isinstance(outcomes["training"], ConfigError)
    assert outcomes["environment"] is None
    assert "prompts" not in outcomes


# ---- the installation


def policy(config: RunConfig) -> Callable[[], str]:
    return lambda: preflight.policy(config.policy)


def check(name: str, config: RunConfig, **options: Any) -> Callable[[], str | None]:
    """A check of the preflight by its name."""
    return next(c.look for c in Preflight(config, **options).checks() if c.name == name)


@pytest.mark.parametrize(
    ("count", "lines"),
    [
        (0, ["GPU: none; training is on the CPU"]),
        (2, [f"GPU {index}: GPU X, 40.0 of 80.0 GiB free" for index in range(2)]),
    ],
)
def test_the_machine(count: int, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    properties = SimpleNamespace(name="GPU X")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (40 * 2**30, 80 * 2**30))
    cpu, *gpus = doctor.machine()
    assert cpu.startswith("CPU: ")
    assert gpus == lines


# ---- the policy


def test_a_policy_that_is_not_there(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    name = "nobody/no-such-model"
    run_config = config(cwd, policy={"path": name})
    assert policy(run_config)() == f"policy: {name}, on the Hugging Face hub"
    assert "HF_HUB_OFFLINE is set" in error_text(check("policy files", run_config))
    message = error_text(policy(config(cwd, policy={"path": "./none"})))
    assert message.startswith("policy.path is './none', and there is no such folder")
    run = Record.create(cwd / "run", {})
    message = error_text(policy(config(cwd, policy={"path": str(run.path)})))
    assert f"is the folder of a run, not of a model; name {run.best_path}" in message


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "policy"
    shutil.copytree(BUNDLED, copy)
    return copy


def test_a_folder_with_a_part_missing(folder: Path, tmp_path: Path) -> None:
    run_config = config(tmp_path, policy={"path": str(folder)})
    assert "4.0 MiB of weights" in policy(run_config)()
    for name, part in (("tokenizer.json", "tokenizer"), ("config.json", "config.json, tokenizer")):
        (folder / name).unlink()
        assert f"has no {part}" in error_text(policy(run_config))


def test_a_damaged_file_of_weights(folder: Path, tmp_path: Path) -> None:
    """As a copy leaves it that was broken off."""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    message = error_text(policy(config(tmp_path, policy={"path": str(folder)})))
    assert "model.safetensors is damaged (" in message


def test_packages_that_the_run_file_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "installed", lambda package: None)
    preflight.packages(config(tmp_path))
    cases = {
        "peft": {"policy": {"lora": {"rank": 4}}},
        # The newest vLLM is newer than what TRL supports.
        "'trl[vllm]'": {"training": {"engine_args": {"use_vllm": True}}},
        "wandb": {"training": {"engine_args": {"report_to": "wandb"}}},
        "trackio": {"training": {"engine_args": {"report_to": ["trackio"]}}},
    }
    for package, changes in cases.items():
        message = error_text(check("packages", config(tmp_path, **changes)))
        assert f"pip install {package}" in message
    monkeypatch.setattr(preflight, "installed", lambda package: "1")
    preflight.packages(config(tmp_path, **cases["peft"]))


def test_the_key_of_the_llm_is_named_and_never_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_config = config(tmp_path, llm=ENDPOINT)
    monkeypatch.delenv("COTUNE_TEST_KEY", raising=False)
    assert "COTUNE_TEST_KEY is not set" in error_text(lambda: preflight.llm(run_config.proposer))
    monkeypatch.setenv("COTUNE_TEST_KEY", SECRET)
    line = preflight.llm(run_config.proposer)
    assert line == "llm: m at api.openai.com; the environment variable COTUNE_TEST_KEY is set"
    assert preflight.llm(config(tmp_path, llm={"kind": "rules"}).proposer) is None
    static = config(tmp_path, llm=ENDPOINT, strategy={"kind": "static"})
    assert preflight.llm(static.proposer) is None


def test_the_llm_is_asked_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[str] = []

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return "yes"

    llm = ENDPOINT | {"api_key_env": None, "price_per_million_prompt_tokens": 100.0}
    with endpoint(reply) as url:
        run_config = config(tmp_path, llm={**llm, "base_url": url})
        assert isinstance(run_config.proposer, OpenAIOptions)
        (row,) = make_first_call(run_config.proposer)
    assert (len(prompts), row.error, row.money) == (1, "", 0.001)
    # Nothing answers there any more.
    look = check("llm answers", run_config, ask_llm=True)
    with pytest.raises(
        ConfigError, match=r"a first call failed \(no reply from m at .*ConnectError"
    ):
        look()
    optional = config(tmp_path, llm={**llm, "base_url": url, "optional": True})
    with pytest.raises(Notice):  # which stops nothing
        check("llm answers", optional, ask_llm=True)()
    assert check("llm answers", config(tmp_path), ask_llm=True)() is None


def test_a_resume_may_need_the_llm_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(options: OpenAIOptions) -> None:
        raise LLMError("it is down")

    monkeypatch.setattr(preflight, "make_first_call", fail)
    run_config = config(tmp_path, llm=ENDPOINT)
    for new, expected in ((True, ConfigError), (False, Notice)):
        checker = Preflight(run_config, new=new)
        checker.starting = True
        look = next(check for check in checker.checks() if check.name == "llm answers").look
        with pytest.raises(ConfigError, match=r"a first call failed \(it is down\)") as caught:
            look()
        assert type(caught.value) is expected


# ---- the command


def test_the_command_s_status_says_whether_something_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: Command
) -> None:
    file = str(write(tmp_path / "run.yaml", tiny(tmp_path / "out")))
    monkeypatch.setenv("COTUNE_TEST_KEY", SECRET)
    status, out, err = run_command("doctor", file)
    assert (status, err) == (0, "")
    lines = [line for line in out.splitlines() if not line.endswith(" …")]
    assert all(line.startswith("ok ") for line in lines)
    with endpoint(str) as url:
        llm = f"llm={{kind: openai, model: m, base_url: '{url}', api_key_env: COTUNE_TEST_KEY}}"
        status, out, err = run_command("doctor", file, "--set", llm)
    assert (status, err) == (0, "")
    assert "COTUNE_TEST_KEY is set" in out
    assert f"numpy {version('numpy')}" in out
    assert "llm: a first call was answered" in out
    monkeypatch.delenv("COTUNE_TEST_KEY")
    status, out, err = run_command("doctor", file, "--set", llm)
    assert (status, err) == (1, "")
    (line,) = [line for line in out.splitlines() if not re.match("ok |  .* …$", line)]
    assert line.startswith(
        "not ok   environment variable COTUNE_TEST_KEY is not set, expected the API"
    )
    assert SECRET not in out


# ---- the retrieval server


def test_a_retrieval_server_is_asked(tmp_path: Path) -> None:
    rows = tmp_path / "questions.jsonl"
    rows.write_text("\n".join(f'{{"question": "q{i}", "answers": ["a"]}}' for i in range(40)))
    sections = {"dataset": {"path": str(rows)}, "strategy": {"kind": "static"}}
    with retrieval_server(lambda query: ["a passage"]) as url:
        search = {"kind": "search", "retriever": {"url": url}}
        look = check("environment.retriever", config(tmp_path, environment=search, **sections))
        assert look() == f"environment.retriever: {url} answers"
    message = error_text(look)
    assert message.startswith("environment.retriever.url")
    assert "start the server, such as Search-R1's" in message
