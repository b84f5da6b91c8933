"""What would make TRL run something else than cotune was told is refused in a line."""

from pathlib import Path
from typing import Any

import pytest
import trl
from trl.chat_template_utils import qwen3_chat_template

from cotune.contracts import ConfigError, EngineError
from cotune.engines.trl.checks import check_args, check_trainer, check_trl, steps_per_batch
from tests.engines.tiny import tiny_model, tiny_tokenizer
from tests.engines.trl.setup import config, start

TWO_STEPS_A_BATCH = {
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 1,
    "steps_per_generation": 2,
}


@pytest.mark.parametrize(
    ("changes", "field", "mend"),
    [
        ({"shuffle_dataset": True}, "shuffle_dataset is True", "set shuffle_dataset=False"),
        ({"max_steps": -1, "num_train_epochs": 2}, "max_steps is -1", "set max_steps"),
        ({"num_iterations": 2}, "num_iterations is 2", "only with num_iterations=1"),
        ({"use_vllm": True}, "use_vllm is True", "set use_vllm=False"),
        ({"top_p": 0.9}, "top_p=0.9", "set top_p=1.0"),
        ({"top_k": 20}, "top_k=20", "top_k=0"),
        ({"min_p": 0.1}, "min_p=0.1", "min_p=None"),
        ({"repetition_penalty": 1.1}, "repetition_penalty is 1.1", "set it to 1.0"),
        (
            {
                "per_device_train_batch_size": 2,
                "steps_per_generation": 3,
                "gradient_accumulation_steps": 2,
            },
            "steps_per_generation is 3",
            "multiple of gradient_accumulation_steps=2",
        ),
        (
            TWO_STEPS_A_BATCH | {"max_steps": 4, "save_strategy": "steps", "save_steps": 3},
            "save_steps is 3",
            "make save_steps a multiple of 2",
        ),
        (TWO_STEPS_A_BATCH | {"max_steps": 3}, "max_steps is 3", "make max_steps a multiple of 2"),
        ({"save_strategy": "epoch"}, "save_strategy='epoch'", "set save_strategy='steps'"),
        (
            {
                "save_strategy": "best",
                "eval_strategy": "steps",
                "eval_steps": 1,
                "load_best_model_at_end": True,
                "per_device_eval_batch_size": 6,
            },
            "load_best_model_at_end=True",
            "load_best_model_at_end=False",
        ),
        ({"reward_weights": [2.0]}, "reward_weights is [2.0]", "set reward_weights=None"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_argument_that_breaks_the_run_is_refused_with_its_mend(
    tmp_path: Path, changes: dict[str, Any], field: str, mend: str
) -> None:
    args = config(tmp_path, **changes)
    with pytest.raises(ConfigError) as error:
        check_args(args)
    message = str(error.value)
    assert field in message
    assert mend in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("field", "value"),
    [("fsdp", "full_shard"), ("fsdp", True), ("deepspeed", "zero3.json"), ("deepspeed", {})],
)
def test_sharded_weights_are_refused(tmp_path: Path, field: str, value: Any) -> None:
    args = config(tmp_path)
    check_args(args)
    setattr(args, field, value)  # GRPOConfig itself would look for the libraries and the ranks
    with pytest.raises(ConfigError, match=r"fsdp or \.deepspeed is set.*torchrun \(DDP\)$"):
        check_args(args)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        TWO_STEPS_A_BATCH | {"max_steps": 4, "save_strategy": "steps", "save_steps": 2},
        {"loss_type": "dapo", "beta": 0.04, "scale_rewards": "none", "epsilon_high": 0.28},
        {"reward_weights": [1.0], "temperature": 0.7},
    ],
)
def test_what_works_passes(tmp_path: Path, changes: dict[str, Any]) -> None:
    check_args(config(tmp_path, **changes))


def test_optimizer_steps_of_a_batch(tmp_path: Path) -> None:
    assert steps_per_batch(config(tmp_path)) == 1
    assert steps_per_batch(config(tmp_path, **TWO_STEPS_A_BATCH)) == 2
    halved = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    assert steps_per_batch(config(tmp_path, **halved)) == 1


def lookup(query: str) -> str:
    """Looks something up.

    Args:
        query: what to look up.
    """
    return query


class Room:
    """An environment of TRL's own kind."""

    def reset(self, **_: object) -> None:
        pass

    def look(self) -> str:
        """Looks around."""
        return ""


@pytest.mark.parametrize(
    "given",
    [{"tools": [lookup]}, {"environment_factory": Room}],
    ids=["tools", "environment_factory"],
)
def test_trls_own_tool_loop_is_refused(tmp_path: Path, given: dict[str, Any]) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = qwen3_chat_template  # one that TRL knows to render tools with
    run = start(tmp_path, policy=(tiny_model(tokenizer), tokenizer), trainer_arguments=given)
    with pytest.raises(ConfigError, match=r"tools= or environment_factory=.*drop the argument"):
        check_trainer(run.trainer)
    with pytest.raises(ConfigError, match="tools= or environment_factory="):
        run.trainer.train()


def test_another_trl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_trl()
    for version in ("1.15.2", "1.17.0", "2.0"):
        monkeypatch.setattr(trl, "__version__", version)
        with pytest.raises(
            EngineError, match=rf"trl {version} .*needs trl>=1.16,<1.17: pip install"
        ):
            check_trl()
