"""What `cotune doctor` finds: in the installation, the machine and a run file."""

import re
import shutil
from collections import namedtuple
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from cotune.cli import doctor
from cotune.config.run_file import RunConfig, parse_config
from cotune.engines import preflight
from cotune.engines.preflight import Notice, Preflight
from cotune.errors import ConfigError, EngineError, LLMError
from cotune.llm import client
from cotune.llm.client import OpenAIOptions, make_first_call
from cotune.policy import policy_files as policies
from cotune.run.record import Record
from cotune.types import Completion
from cotune.utils.progress import listening
from tests.command_line import Command
from tests.loopback import endpoint, retrieval_server
from tests.run_files import tiny, write

SECRET = "sk-value-of-the-key"
ENDPOINT = {"kind": "openai", "model": "m", "api_key_env": "COTUNE_TEST_KEY"}
BUNDLED = Path(policies.policy_path("bundled:geo"))


def config(tmp_path: Path, **changes: Any) -> RunConfig:
    return parse_config(tiny(tmp_path / "out", changes), "test")


def lacking(look: Callable[[], object]) -> str:
    """What a check says is missing, with its fix."""
    with pytest.raises((ConfigError, EngineError)) as caught:
        look()
    found = str(caught.value)
    assert "\n" not in found
    assert re.search(r"[;:] ", found)
    return found


def test_a_run_file_that_lacks_nothing(tmp_path: Path) -> None:
    said = [*doctor.examine(write(tmp_path / "run.yaml", tiny(tmp_path / "out")))]
    assert not any(isinstance(found, Exception) for found in said)
    for beginning in ("python 3", "packages: ", "engine trl: 1.", "CPU: ", "run file: ",
                      "policy: bundled:geo, 4.0 MiB", "training: TRL takes", "output: "):  # fmt: skip
        assert any(str(line).startswith(beginning) for line in said), beginning
    assert f"torch {torch.__version__}" in str(said[1])
    assert not (tmp_path / "out").exists()


def test_the_checks_go_on_after_one_that_fails(tmp_path: Path) -> None:
    """But for those that need it."""
    args = {"policy": {"path": "nobody/has-this"}, "training": {"engine_args": {"loss_typ": "x"}}}
    outcomes = {
        check.name: found for check, found in Preflight(config(tmp_path, **args)).outcomes()
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


Properties = namedtuple("Properties", ["name", "total_memory"])


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int, gib: float = 80.0) -> None:
    total = int(gib * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: Properties("GPU X", total)
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (total // 2, total))


def test_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with_gpus(monkeypatch, 0)
    cpu, none = doctor.machine()
    assert cpu.startswith("CPU: ")
    assert none == "GPU: none; training is on the CPU"
    with_gpus(monkeypatch, 2)
    assert [*doctor.machine()][1:] == [
        "GPU 0: GPU X, 40.0 of 80.0 GiB free",
        "GPU 1: GPU X, 40.0 of 80.0 GiB free",
        doctor.sampling_on_a_gpu(),
    ]
    monkeypatch.setattr(doctor, "installed", lambda name: "0.32.0")
    assert doctor.sampling_on_a_gpu().startswith("sampling with TRL: vLLM 0.32.0")
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    assert len([*doctor.machine()]) == 3
    assert "vLLM is not installed" in doctor.sampling_on_a_gpu()
    assert "engine_args: {use_vllm: true}" in doctor.sampling_on_a_gpu()


# ---- the policy


def test_a_policy_that_is_not_there(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    name = "nobody/no-such-model"
    given = config(cwd, policy={"path": name})
    assert policy(given)() == f"policy: {name}, on the Hugging Face hub"
    assert "HF_HUB_OFFLINE is set" in lacking(check("policy files", given))
    said = lacking(policy(config(cwd, policy={"path": "./none"})))
    assert said.startswith("policy.path is './none', and there is no such folder")
    run = Record.create(cwd / "run", {})
    said = lacking(policy(config(cwd, policy={"path": str(run.path)})))
    assert f"is the folder of a run, not of a model; name {run.best_path}" in said


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy = tmp_path / "policy"
    shutil.copytree(BUNDLED, copy)
    return copy


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ("config.json", "has no config.json"),
        ("model.safetensors", "has no weights"),
        ("tokenizer.json", "has no tokenizer"),
    ],
)
def test_a_folder_with_a_part_missing(folder: Path, tmp_path: Path, gone: str, said: str) -> None:
    given = config(tmp_path, policy={"path": str(folder)})
    assert "4.0 MiB of weights" in policy(given)()
    (folder / gone).unlink()
    assert said in lacking(policy(given))


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
        said = lacking(check("packages", config(tmp_path, **changes)))
        assert f"pip install {package}" in said
    monkeypatch.setattr(preflight, "installed", lambda package: "1")
    preflight.packages(config(tmp_path, **cases["peft"]))


def test_the_key_of_the_llm_is_named_and_never_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = config(tmp_path, llm=ENDPOINT)
    monkeypatch.delenv("COTUNE_TEST_KEY", raising=False)
    assert "COTUNE_TEST_KEY is not set" in lacking(lambda: preflight.llm(given.proposer))
    monkeypatch.setenv("COTUNE_TEST_KEY", SECRET)
    said = preflight.llm(given.proposer)
    assert said == "llm: m at api.openai.com; the environment variable COTUNE_TEST_KEY is set"
    assert preflight.llm(config(tmp_path, llm={"kind": "rules"}).proposer) is None
    static = config(tmp_path, llm=ENDPOINT, strategy={"kind": "static"})
    assert preflight.llm(static.proposer) is None


def test_the_llm_is_asked_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def reply(prompt: str) -> str:
        asked.append(prompt)
        return "yes"

    llm = ENDPOINT | {"api_key_env": None, "price_per_million_prompt_tokens": 100.0}
    with endpoint(reply) as url:
        given = config(tmp_path, llm={**llm, "base_url": url})
        assert isinstance(given.proposer, OpenAIOptions)
        (row,) = make_first_call(given.proposer)
    assert (len(asked), row.error, row.money) == (1, "", 0.001)
    # Nothing answers there any more.
    look = check("llm answers", given, ask_llm=True)
    with pytest.raises(
        ConfigError, match=r"a first call failed \(no reply from m at .*ConnectError"
    ):
        look()
    optional = config(tmp_path, llm={**llm, "base_url": url, "optional": True})
    with pytest.raises(Notice):  # which stops nothing
        check("llm answers", optional, ask_llm=True)()
    assert check("llm answers", config(tmp_path), ask_llm=True)() is None


def test_the_first_call_is_one_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[tuple[OpenAIOptions, int]] = []

    class Client:
        def __init__(self, options: OpenAIOptions, record: Record, retries: int) -> None:
            asked.append((options, retries))

        def complete(self, prompt: str) -> Completion:
            raise LLMError("it is down")

    monkeypatch.setattr(client, "OpenAIClient", Client)
    llm = ENDPOINT | {"price_per_million_prompt_tokens": 1.0, "budget": 2.0}
    given = config(tmp_path, llm=llm)

    said: list[str] = []

    def note(stage: str, *_: int) -> None:
        said.append(stage)

    def look(new: bool) -> str | None:
        checked = preflight.Preflight(given, new=new)
        checked.starting = True
        return next(check for check in checked.checks() if check.name == "llm answers").look()

    with pytest.raises(ConfigError, match="a first call failed"), listening(note):
        look(new=True)
    given.output.mkdir()
    # A resume may need the LLM no more.
    assert "it is down" in lacking(lambda: look(new=False))
    # Whatever later calls may take, the first one is not waited for silently or long.
    assert [(options.timeout_s, retries) for options, retries in asked] == [(30.0, 1)] * 2
    assert said == [f"asking {asked[0][0].describe()} (at most 61 s)"]


# ---- the command


def test_the_command_s_status_says_whether_something_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_command: Command
) -> None:
    file = str(write(tmp_path / "run.yaml", tiny(tmp_path / "out")))
    monkeypatch.setenv("COTUNE_TEST_KEY", SECRET)
    status, said, err = run_command("doctor", file)
    assert (status, err) == (0, "")
    found = [line for line in said.splitlines() if not line.endswith(" …")]
    assert all(line.startswith("ok ") for line in found)
    with endpoint(str) as url:
        llm = f"llm={{kind: openai, model: m, base_url: '{url}', api_key_env: COTUNE_TEST_KEY}}"
        status, said, err = run_command("doctor", file, "--set", llm)
    assert (status, err) == (0, "")
    assert "COTUNE_TEST_KEY is set" in said
    assert f"numpy {version('numpy')}" in said
    assert "llm: a first call was answered" in said
    monkeypatch.delenv("COTUNE_TEST_KEY")
    status, said, err = run_command("doctor", file, "--set", llm)
    assert (status, err) == (1, "")
    (line,) = [line for line in said.splitlines() if not re.match("ok |  .* …$", line)]
    assert line.startswith(
        "not ok   environment variable COTUNE_TEST_KEY is not set, expected the API"
    )
    assert SECRET not in said


# ---- the retrieval server


def test_a_retrieval_server_is_asked(tmp_path: Path) -> None:
    assert check("environment.retriever", config(tmp_path))() is None
    rows = tmp_path / "questions.jsonl"
    rows.write_text("\n".join(f'{{"question": "q{i}", "answers": ["a"]}}' for i in range(40)))

    def asked(url: str) -> Callable[[], str | None]:
        changes = {"environment": {"kind": "search", "retriever": {"url": url}}}
        sections = {"dataset": {"path": str(rows)}, "strategy": {"kind": "static"}}
        return check("environment.retriever", config(tmp_path, **changes, **sections))

    with retrieval_server(lambda query: ["a passage"]) as url:
        assert asked(url)() == f"environment.retriever: {url} answers"
        said = lacking(asked(url.replace("retrieve", "search")))
        assert "status 404: check the address" in said
    said = lacking(asked(url))
    assert said.startswith("environment.retriever.url")
    assert "start the server, such as Search-R1's" in said
