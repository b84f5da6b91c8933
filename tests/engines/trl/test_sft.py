"""Supervised fine-tuning on SFTTrainer: the loss, the rows, the budget, and what is refused."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from cotune.engines.preflight import Preflight
from cotune.engines.trl.run_file_setup import Setup, prepare
from cotune.engines.trl.sft import build_trainer, check_engine_args
from cotune.engines.trl.sft_rows import ROLLOUTS as LOG
from cotune.engines.trl.sft_rows import ROWS, read_rows, write_rows
from cotune.errors import ConfigError, EngineError
from cotune.methods.sft import IGNORED, TrainingRow
from cotune.run.ledger import Ledger
from cotune.run.run_dir import RunDir
from tests.engines.trl.sft_runs import ROLLOUTS, configured, saved_policy, start
from tests.policy.tiny import Letters, tiny_model, tiny_tokenizer

X = IGNORED
ROW_A = TrainingRow("a", (5, 6, 7, 8, 9, 4), (X, X, 7, X, 9, 4))
ROW_B = TrainingRow("b", (4, 5, 6, 7), (X, X, X, 7))
ROW_C = TrainingRow("c", (9, 8, 7, 6, 5), (X, 8, 7, X, X))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_policy(tmp_path_factory.mktemp("policy"))


def trainer_of(folder: Path, rows: list[TrainingRow], **changes: Any) -> SFTTrainer:
    args: dict[str, Any] = {
        "output_dir": str(folder),
        "max_length": None,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    tokenizer = tiny_tokenizer()
    setup = Setup(tiny_model(tokenizer), tokenizer, Letters(), args=SFTConfig(**(args | changes)))
    return build_trainer(None, setup, rows, TrainerCallback())  # type: ignore[arg-type]


def mean_nll(model: Any, rows: list[TrainingRow]) -> float:
    """The mean over all targets of −log π(target given all before it), a row at a time."""
    total, count = 0.0, 0
    for row in rows:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row.input_ids])).logits[0]
        logprobs = torch.log_softmax(logits.double(), -1)
        for at, label in enumerate(row.labels):
            if label != IGNORED:
                total -= logprobs[at - 1, label].item()
                count += 1
    return total / count


def batch_loss(trainer: SFTTrainer) -> float:
    (batch,) = trainer.get_train_dataloader()
    return trainer.compute_loss(cast(Any, trainer.model), dict(batch)).item()


def test_the_loss_is_the_mean_nll_of_own_tokens(tmp_path: Path) -> None:
    rows = [ROW_A, ROW_B, ROW_C]
    trainer = trainer_of(tmp_path, rows, per_device_train_batch_size=3)
    assert batch_loss(trainer) == pytest.approx(mean_nll(trainer.model, rows), rel=1e-5)


def test_a_step_weighs_every_own_token_alike_over_its_micro_batches(tmp_path: Path) -> None:
    rows = [ROW_A, ROW_B, ROW_C]
    trainer = trainer_of(
        tmp_path, rows, per_device_train_batch_size=1, gradient_accumulation_steps=3, max_steps=1
    )
    expected = mean_nll(trainer.model, rows)
    trainer.train()
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert logged == pytest.approx([expected], rel=1e-4)


def test_a_token_that_is_masked_is_no_target(tmp_path: Path) -> None:
    """What stands after the last target has no influence at all."""
    other = TrainingRow("c", (9, 8, 7, 4, 4), ROW_C.labels)
    losses = [
        batch_loss(trainer_of(tmp_path, [row], per_device_train_batch_size=1))
        for row in (ROW_C, other)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    unmasked = TrainingRow("c", ROW_C.input_ids, (X, 8, 7, 6, 5))
    assert batch_loss(trainer_of(tmp_path, [unmasked], per_device_train_batch_size=1)) != (
        pytest.approx(losses[0], rel=1e-3)
    )


def test_rows_outlive_the_process(tmp_path: Path) -> None:
    path, identity = tmp_path / "sft" / ROWS, {"seed": "1"}
    write_rows(path, [ROW_A, ROW_B], identity, {})
    assert read_rows(path) == [ROW_A, ROW_B]
    path.write_text("{}\n")
    with pytest.raises(ConfigError, match="schema_version is None, expected 1"):
        read_rows(path)


def test_a_run_on_rollouts_stays_within_its_budget(policy: Path, tmp_path: Path) -> None:
    config = configured(policy, tmp_path / "run", rollout_budget=14)
    outcome = start(config)
    run = RunDir.open(config.output)
    with Ledger(run.ledger_path) as ledger:
        assert ledger.totals().rollouts["train"] == 14
    sampled = [row["rollouts"] for row in run.read_events() if row["kind"] == "sampled"]
    assert sampled == [4, 8, 12, 14]
    (told,) = [row for row in run.read_events() if row["kind"] == "training_rows"]
    written = [row for row in run.read_trajectories(0, "train") if row["reward"] >= 0.02]
    assert told["rollouts"] == 14
    assert told["succeeded"] == len(written) >= told["rows"] > 0
    assert told["questions"] == len({row["task"]["id"] for row in written}) > 1
    assert not (run.sft_path / LOG).exists()
    assert [row["step"] for row in run.read_metrics()] == list(range(1, told["steps"] + 1))
    assert outcome.steps == told["steps"]
    assert (run.best_path / "best.json").is_file()
    # Every row is a rollout of its question, and no two are the same.
    rows = (run.sft_path / ROWS).read_text().splitlines()[1:]
    assert len(set(rows)) == len(rows) == told["rows"]


def test_a_run_on_answers(policy: Path, tmp_path: Path) -> None:
    config = configured(policy, tmp_path / "run", {"kind": "sft", "epochs": 20}, learning_rate=3e-3)
    outcome = start(config)
    run = RunDir.open(config.output)
    (told,) = [row for row in run.read_events() if row["kind"] == "training_rows"]
    # "a" and an EOS, of six questions; its reward is the share of "a".
    assert (told["rows"], told["tokens"], told["reward_mean"]) == (6, 12, 1.0)
    assert outcome.steps == told["steps"] == 40
    assert outcome.before is not None
    losses = [row["loss"] for row in run.read_metrics()]
    assert losses[-1] < losses[0] / 2
    with Ledger(run.ledger_path) as ledger:
        assert ledger.totals().rollouts["train"] == 0
    assert outcome.after.em > outcome.before.em
    # An earlier policy was as good and is kept, so the last one is scored besides.
    assert outcome.kept is not None
    assert outcome.kept.step < 40
    told = {row["when"]: row for row in run.read_events() if row["kind"] == "evaluated"}
    assert outcome.last is not None
    assert (told["last"]["em"], told["last"]["trained"]) == (outcome.last.em, 40)


def test_nothing_kept_ends_the_run_in_a_line(policy: Path, tmp_path: Path) -> None:
    config = configured(policy, tmp_path / "run", {**ROLLOUTS, "keep_from": 5, "samples": 1})
    with pytest.raises(EngineError, match=r"none of the 6 rollouts .* lower strategy\.keep_from"):
        start(config)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"use_vllm": True}, "use_vllm: a field of GRPOConfig only"),
        ({"num_generations": 4}, "num_generations: a field of GRPOConfig only"),
        ({"max_length": 64}, "max_length: rows are tokens already"),
        ({"packing": True}, "packing: rows are tokens already"),
        ({"max_steps": 3}, r"max_steps: set elsewhere; remove it and set strategy\.epochs"),
        ({"save_steps": 3}, r"save_steps: set elsewhere; .* training\.save_every"),
        ({"output_dir": "x"}, "output_dir: a run's checkpoints"),
        ({"hub_token": "hf_secret"}, r"hub_token: the run file is stored .*HF_TOKEN$"),
        ({"fsdp": True}, "fsdp: strategy.kind sft trains in one process"),
        ({"losstype": "dft"}, "losstype: unknown field of SFTConfig .did you mean loss_type"),
    ],
)
def test_engine_args_that_are_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        check_engine_args(args)
    assert "hf_secret" not in str(refused.value)


def test_engine_args_that_are_passed_on(policy: Path, tmp_path: Path) -> None:
    config = configured(policy, tmp_path, engine_args={"loss_type": "dft", "weight_decay": 0.5})
    args = prepare(Preflight(config, new=False).require(), tmp_path / "checkpoints").args
    assert (args.loss_type, args.weight_decay, args.num_train_epochs) == ("dft", 0.5, 2)
    assert (args.per_device_train_batch_size, args.gradient_accumulation_steps) == (2, 2)


def test_several_processes_are_refused(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"2 processes were started, but strategy\.kind sft"):
        prepare(
            Preflight(configured(policy, tmp_path), new=False).require(), tmp_path / "checkpoints"
        )


def test_questions_without_a_reference_are_refused(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Letters, "reference", lambda self, task: "", raising=False)
    config = configured(policy, tmp_path, {"kind": "sft"})
    with pytest.raises(ConfigError, match=r"strategy\.data is answers, but 6 of 6 .*'train0'"):
        prepare(Preflight(config, new=False).require(), tmp_path / "checkpoints")
