"""An optimizer LLM in this process: the policy before training, or another model."""

from pathlib import Path
from typing import Any

import pytest
import torch

from cotune.config.build import build_llm
from cotune.config.run_file import load_config
from cotune.engines import preflight
from cotune.engines.engine import engine_of
from cotune.errors import ConfigError, LLMError
from cotune.policy import local_policy
from cotune.policy.codec import HFCodec
from cotune.policy.local_llm import LocalLLM, LocalOptions
from cotune.policy.local_policy import load
from cotune.policy.options import PolicyConfig
from cotune.policy.policy_files import bundled_folder
from cotune.policy.precision import Precision
from cotune.run.ledger import Ledger

WORLD = PolicyConfig(path="bundled:ladder")
RUN = Path(__file__).parents[2] / "configs" / "ladder-inspo.yaml"
ASKED = "3 5 + 4 8 ="


def llm(seed: int = 0, **fields: Any) -> LocalLLM:
    options = LocalOptions(**{"max_tokens": 40, **fields})
    return LocalLLM(options, options.as_policy(WORLD), seed)


def test_a_greedy_reply_is_what_transformers_generates() -> None:
    model, tokenizer = load(bundled_folder("ladder"))
    ids = HFCodec(tokenizer).render([{"role": "user", "content": ASKED}])
    (whole,) = model.generate(
        model.dummy_inputs["input_ids"].new_tensor([ids]), max_new_tokens=40, do_sample=False
    )
    reply = llm(temperature=0.0).complete(ASKED)
    assert reply.text == tokenizer.decode(whole[len(ids) :], skip_special_tokens=True).strip() != ""
    assert reply.prompt_tokens == len(ids)
    assert reply.completion_tokens == len(whole) - len(ids)
    assert reply.truncated == (whole[-1] != tokenizer.eos_token_id)


def test_a_reply_depends_on_seed_and_prompt_alone() -> None:
    one, other = llm(temperature=2.0), llm(temperature=2.0)
    other.complete("something else first")
    assert one.complete(ASKED) == other.complete(ASKED)
    assert llm(seed=1, temperature=2.0).complete(ASKED).text != one.complete(ASKED).text


def test_it_computes_in_the_type_that_the_policy_would(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def loaded(path: Any, dtype: str) -> Any:
        asked.append(dtype)
        raise ConfigError("enough")

    monkeypatch.setattr(local_policy, "load", loaded)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cases: list[tuple[bool, Precision]] = [(False, "auto"), (True, "auto"), (True, "fp32")]
    for native, precision in cases:
        monkeypatch.setattr("cotune.policy.precision.native_bfloat16", lambda native=native: native)
        options = LocalOptions()
        with pytest.raises(ConfigError, match="enough"):
            LocalLLM(options, options.as_policy(WORLD), 0, precision).complete(ASKED)
    assert asked == ["float32", "auto", "float32"]


def test_a_prompt_beyond_the_context_is_no_reply() -> None:
    with pytest.raises(LLMError, match=r"the prompt has .* tokens, and bundled:ladder reads "):
        llm().complete("3 + 4 = " * 500)


def test_a_run_file_asks_its_own_policy_and_counts_the_call(tmp_path: Path) -> None:
    config = load_config(RUN, ["llm=local", f"output={tmp_path / 'run'}"])
    assert config.llm == LocalOptions()
    with Ledger(":memory:") as ledger:
        ledger.begin_attempt(None)
        reply = build_llm(config.proposer, 0, ledger, config.policy).complete(ASKED)
        (row,) = ledger.rows()
        assert reply.text
        assert (row.kind, row.completion_tokens) == ("llm", reply.completion_tokens)
    assert preflight.llm(config.proposer) == "llm: the policy before training"


def test_errors_name_the_field_of_the_llm(tmp_path: Path) -> None:
    folder = tmp_path / "policy.d"
    folder.mkdir()
    options = LocalOptions(path=str(folder))
    with pytest.raises(ConfigError, match=rf"^llm\.path: cannot load '{folder}'"):
        preflight.llm(options)
    with pytest.raises(ConfigError, match=r"^llm\.path: cannot load"):
        LocalLLM(options, options.as_policy(WORLD), 0).complete("")


def test_on_verl_it_is_refused(tmp_path: Path) -> None:
    sets = ["training.engine=verl", f"output={tmp_path / 'run'}"]
    config = load_config(RUN, ["llm=local", *sets])
    (check,) = engine_of(config).check(preflight.Preflight(config))
    with pytest.raises(ConfigError, match=r"llm\.kind is local, but with training\.engine verl"):
        check.look()
