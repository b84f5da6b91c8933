"""What a resume must find as it was, and what it may find changed."""

from pathlib import Path
from typing import Any

import pytest

from cotune.config.resuming import changes, check_resumable, identity
from cotune.config.run_file import RunConfig, dump_config, parse_config
from cotune.errors import ConfigError
from tests.run_files import tiny

KEY = "a-secret-of-no-known-form"
ENDPOINT = {"kind": "openai", "model": KEY, "api_key_env": None}


def of(part: Any, **change: Any) -> dict[str, str]:
    return part(parse_config(tiny(Path("out"), change), "test"))


def test_what_the_optimizers_state_stands_on_may_not_change() -> None:
    was = of(identity, training={"engine_args": {"adam_beta1": 0.8, "epsilon": 0.3}})
    now = of(identity, training={"engine_args": {"optim": "sgd", "epsilon": 0.4}})
    assert set(was.items()) ^ set(now.items()) == {
        ("training.engine_args.adam_beta1", "0.8"),
        ("training.engine_args.optim", '"sgd"'),
    }


def config_of(**change: Any) -> RunConfig:
    return parse_config(tiny(Path("out"), change), "test")


def test_a_resume_may_change_what_the_run_does_not_stand_on() -> None:
    changed = config_of(
        name="longer", training={"steps": 9, "kl": 0.1}, evaluation={"every": 2}, llm=ENDPOINT
    )
    check_resumable(config_of(), changed, "run.yaml with --set")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"strategy": {"evolve_every": 3}}, "strategy is fixed once a run has started"),
        ({"seed": 1}, "seed is fixed"),
        ({"policy": {"dtype": "bfloat16"}}, "policy is fixed"),
        ({"environment": {"train": 9}}, "environment is fixed"),
        ({"limits": {"turns": 2}}, "limits is fixed"),
        ({"training": {"mini_batches": 2}}, "training.mini_batches is fixed"),
        ({"training": {"group_size": 4}}, "training.group_size is fixed"),
        ({"output": "elsewhere"}, "output is fixed"),
    ],
)
def test_what_a_resume_may_not_change_is_refused_with_what_it_may(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        check_resumable(config_of(), config_of(**change), "run.yaml with --set")
    assert str(caught.value).startswith(f"run.yaml with --set: {said}")
    assert "\n" not in str(caught.value)


def test_what_changed_is_said_with_what_it_was() -> None:
    was = dump_config(config_of())
    now = dump_config(
        config_of(
            training={"steps": 5, "learning_rate": 0.01, "rollout_budget": 99},
            evaluation={"every": 2},
            name="longer",
            threads=None,
        )
    )
    assert changes(was, now) == {
        "evaluation.every": [0, 2],
        "name": ["tiny", "longer"],
        "threads": [1, None],
        "training.learning_rate": [0.0001, 0.01],
        "training.rollout_budget": [None, 99],
        "training.steps": [3, 5],
    }
    assert changes(was, was) == changes({}, {}) == {}


def test_what_may_hold_a_key_is_named_and_not_shown() -> None:
    was = dump_config(config_of(llm={"kind": "rules"}))
    now = dump_config(config_of(llm=ENDPOINT, training={"engine_args": {"hub_token": KEY}}))
    changed = changes(was, now)
    assert set(changed.values()) == {None}
    assert {"llm.kind", "llm.model", "training.engine_args.hub_token"} <= changed.keys()


def searching(url: str, **more: Any) -> dict[str, Any]:
    """Sections of a run on a search environment."""
    environment = {"kind": "search", "retriever": {"url": url}, **more}
    return {"environment": environment, "dataset": {"path": "questions.jsonl"}, "llm": ENDPOINT}


def test_a_retrieval_server_may_have_moved() -> None:
    here, there = searching("http://a:8000/retrieve"), searching("http://b:8000/retrieve")
    was, now = config_of(**here), config_of(**there)
    check_resumable(was, now, "run.yaml")
    assert changes(dump_config(was), dump_config(now)) == {
        "environment.retriever.url": ["http://a:8000/retrieve", "http://b:8000/retrieve"]
    }
    assert identity(was) == identity(now)
    more = config_of(**searching("http://a:8000/retrieve", top_k=5))
    with pytest.raises(ConfigError, match="environment is fixed"):
        check_resumable(was, more, "run.yaml")
    local = here | {"environment": {"kind": "search", "corpus": "c.jsonl"}}
    with pytest.raises(ConfigError, match="environment is fixed"):
        check_resumable(was, config_of(**local), "run.yaml")
