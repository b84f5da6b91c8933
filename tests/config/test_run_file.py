from pathlib import Path
from typing import Any

import pytest
import yaml

from cotune.config.run_file import RulesConfig, dump_config, load_config, parse_config
from cotune.errors import ConfigError
from cotune.llm.own import OwnLLMOptions
from cotune.methods.inspo.inspo import InspoOptions
from cotune.methods.p2o.p2o import P2OOptions
from cotune.run.record import Record
from cotune.types import Limits
from cotune.utils.field_yaml import FieldLoader
from tests.helpers import raises_line
from tests.run_files import config_of

LEAST: dict[str, Any] = {
    "output": "out",
    "environment": {"kind": "geo"},
    "strategy": {"kind": "static"},
}


def test_a_field_given_twice_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    text = (
        "output: out\nenvironment: {kind: geo}\nstrategy: {kind: static}\ntraining:\n  steps: 3\n"
    )
    file.write_text(text + "  steps: 4\n")
    with pytest.raises(ConfigError, match=r"run.yaml, line 6: steps is given twice; remove one"):
        load_config(file)
    file.write_text("x: &x {steps: 3}\ny: &y {<<: *x, steps: 4}\n" + text + "  <<: *y\n")
    with pytest.raises(
        ConfigError, match="x: unknown field"
    ):  # overriding what is merged is no repetition
        load_config(file)


def test_a_number_needs_no_point(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    text = "output: out\nenvironment: {kind: geo}\nstrategy: {kind: static}\ntraining:\n"
    file.write_text(text + "  engine_args: {adam_epsilon: 1e-8, optim_args: a1e5}\n")
    config = load_config(file, assignments=["training.engine_args.weight_decay=1E-2"])
    args = {"adam_epsilon": 1e-8, "optim_args": "a1e5", "weight_decay": 0.01}
    assert config.training.engine_args == args
    # What was a text stays one when it is written and read again.
    run = Record.create(tmp_path / "out", dump_config(config) | {"name": "1e5"})
    assert yaml.load(run.config_path.read_text(), FieldLoader)["name"] == "1e5"


def test_defaults_are_the_papers() -> None:
    config = parse_config(LEAST | {"strategy": {"kind": "inspo"}}, "test")
    training = config.training
    assert (training.questions_per_step, training.group_size, training.mini_batches) == (512, 5, 2)
    assert (training.learning_rate, training.kl, training.clip) == (5e-7, 0.001, 0.2)
    assert (training.temperature, training.schedule, training.warmup) == (1.0, "cosine", 0.1)
    assert config.limits == Limits(4, 500, 500, 4096, 4096)
    assert config.strategy == (inspo := InspoOptions())
    assert (inspo.population_size, inspo.parents, inspo.selection_temperature) == (7, 1, 0.2)
    assert (inspo.window, inspo.prune_every) == (5, 5)
    assert (inspo.evolve_every, inspo.evolve_until) == (15, 150)
    assert (inspo.verification_tasks, inspo.verification_rounds) == (200, 5)
    assert (inspo.failures_per_reflection, inspo.candidates) == (4, 6)
    p2o = P2OOptions()
    assert (p2o.successes_below, p2o.hinted_per_group) == (2, "all")
    assert p2o.distillation.ratio == "original"


@pytest.mark.parametrize("llm", [None, {"kind": "rules"}])
def test_rules_write_for_the_worlds_that_have_them(llm: dict[str, Any] | None) -> None:
    for method, world in (("gepa", "geo"), ("p2o", "ladder")):
        raw = LEAST | {"environment": world, "strategy": {"kind": method}, "llm": llm}
        assert parse_config(raw, "test").strategy.kind == method
    raw = LEAST | {"environment": "math", "dataset": {"path": "x"}, "policy": {"path": "me/model"}}
    assert parse_config(raw | {"llm": llm}, "test").proposer is None  # a static run asks none
    raw["strategy"] = {"kind": "inspo"}
    expected = "environment.kind math has no offline rules; set llm to an OpenAI-compatible"
    with raises_line(expected, "{kind: bank, "):
        parse_config(raw | {"llm": llm}, "test")
    parse_config(raw | {"llm": {"kind": "openai", "model": "m"}}, "test")


def test_an_llm_by_name() -> None:
    raw = LEAST | {"strategy": {"kind": "inspo"}}
    assert parse_config(raw | {"llm": "my.py:My"}, "t").llm == OwnLLMOptions(object="my.py:My")
    assert parse_config(raw | {"llm": "rules"}, "t").llm == RulesConfig()
    for key in ("sk-secret", "sk-secret:1"):
        with pytest.raises(ConfigError) as caught:
            parse_config(raw | {"llm": key}, "test")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environment": {}}, "environment: expected {kind: …} with one of 'ladder', "),
        ({"environment": {"kind": None}}, "environment.kind: 'None' is unknown; expected one of 'ladder', "),
        ({"llm": {"kind": ["sk-secret"]}}, "llm.kind: expected one of 'rules', 'openai', 'bank', 'python'"),
        ({"strategy": {"kind": "\ud800"}}, "strategy.kind: '?' is unknown; expected one of 'static', "),
        ({"strategy": "inspo"}, "strategy: expected {kind: …} with one of 'static', 'inspo', 'p2o', 'gepa', 'fst'; got 'inspo'"),
        ({"rewards": [3]}, "rewards.0: expected fields below it, as in {function: …}; got 3"),
        ({"policy": "Qwen/Qwen3-0.6B"}, "policy: expected fields below it, as in {path: …}; got 'Qwen/Qwen3-0.6B'"),
        ({"llm": "gpt-4.1"}, "llm is a text (not shown, as it may be a key); expected rules, the file.py:name of your own, {kind: openai"),
        ({"strategy": None}, "strategy: missing; it has no default"),
        ({"seed": 2**32}, "seed: expected less than 4294967296"),
        # An unknown field comes before what it makes missing.
        ({"output": None, "outptu": "x"}, "outptu: unknown field (did you mean output"),
        ({"seed": -1, "training": {"steps": 0, "kl": -1}}, "seed: expected greater than or equal to 0; got -1 (and 2 more)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_field(change: Any, message: str) -> None:
    raw = {name: value for name, value in (LEAST | change).items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, "test")
    assert str(caught.value).startswith(f"test: {message}")


def test_the_cause_of_an_error_holds_no_values() -> None:
    raw = LEAST | {"llm": {"kind": "openai", "model": "m", "api_key_env": "sk-secret"}}
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, "test")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "sk-secret" not in str(caught.value)


TEXTS = "<think> </think> <search> </search> <information> </information> <answer> </answer>"
FORMS: dict[str, dict[str, Any]] = {
    "an instruction as a text": {"instruction": TEXTS},
    "an instruction in any script": {"instruction": f"{TEXTS} Ünïcode “quotes”: {{braces}}\n- list"},
    "an instruction with its place": {"instruction": {"text": TEXTS, "role": "system"}},
    "an object": {"environment": "my.module:Class", "strategy": {"kind": "static"}},
    "rewards by name and by weight": {
        "environment": {"kind": "single_turn"}, "dataset": {"path": "x.jsonl"},
        "rewards": ["exact_match", {"function": "a.b:c", "weight": 2}],
        "strategy": {"kind": "static"},
    },
    "an LLM by name": {"llm": "my.py:MyLLM"},
    "a bank": {"llm": {"kind": "bank", "path": "texts.txt"}},
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_forms_of_sections(name: str) -> None:
    config = config_of(**FORMS[name])
    assert parse_config(dump_config(config), "test") == config
