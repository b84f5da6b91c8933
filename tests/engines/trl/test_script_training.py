"""A script's `JointTrainer`: trained, evaluated, resumed, kept."""

import logging
from collections.abc import Callable
from functools import cache
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerControl
from trl import GRPOTrainer

import cotune
from cotune.engines.trl.trl_joint import was_cut
from cotune.errors import ConfigError
from cotune.run.checkpoints import load_state
from tests.engines.trl.script_runs import METHODS, STEPS, Even, ScriptTraining, begin, figures
from tests.policy.tiny import Letters, tiny_tokenizer

SAVING = {"save_strategy": "steps", "save_steps": 2}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ScriptTraining]:
    """A method's name gives its run from start to end, which several tests read."""

    @cache
    def run(name: str) -> ScriptTraining:
        training = begin(tmp_path_factory.mktemp("run"), name)
        handler = BufferingHandler(1000)
        logger = logging.getLogger("cotune")
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        training.trainer.train()
        logger.removeHandler(handler)
        logger.setLevel(level)
        training.logged = [record.getMessage() for record in handler.buffer]
        return training

    return run


def test_a_trainer_class_scores_and_weighs_all_rollouts_itself(
    plain: Callable[[str], ScriptTraining], tmp_path: Path
) -> None:
    rows: dict[str, list[int]] = {"scored": [], "in the loss": []}

    class Watched(GRPOTrainer):
        def _get_per_token_logps_and_entropies(self, model: Any, input_ids: Any, *arguments: Any, **options: Any) -> Any:  # fmt: skip
            rows["scored"].append(len(input_ids))
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, *arguments, **options
            )

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            rows["in the loss"].append(len(inputs["advantages"]))
            return super()._compute_loss(model, inputs)

    watched = {"trainer_class": Watched}
    training = begin(tmp_path, trainer_arguments=watched, max_steps=2)
    assert isinstance(training.trainer, cotune.JointTrainer)
    training.trainer.train()
    # The updates are those of TRL's class.
    for row, expected in zip(figures(training), figures(plain("static"))[:2], strict=True):
        assert row["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-3)
    assert rows == {"scored": [6, 6], "in the loss": [6, 6]}
    assert "updates are slower" in training.events("notice")[0]["text"]
    with pytest.raises(ConfigError, match="trainer_class is <class 'int'>; expected a subclass of"):
        begin(tmp_path / "refused", trainer_arguments={"trainer_class": int})


EVOLVED = {
    "evolution": "evolution: {accepted} of {proposed} proposals accepted",
    "hint_phase_ended": "hints: {accepted} of {asked} proposals accepted",
}


@pytest.mark.parametrize("name", METHODS)
def test_each_method_trains_and_is_written_down(
    name: str, plain: Callable[[str], ScriptTraining]
) -> None:
    trained = plain(name)
    run, trainer = trained.run, trained.trainer
    rows = figures(trained)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert any(row["grad_norm"] > 0 for row in rows)
    spent = trained.spent()
    assert spent["train"] == STEPS * 6
    assert (spent["verify"] > 0) == ("inspo" in name)
    assert (spent["evolve"] > 0) == ("p2o" in name)
    assert len(trained.events("evolution")) == ("inspo" in name)
    assert len(trained.events("hint_phase_ended")) == ("p2o" in name)
    assert [row["kind"] for row in run.read_events()][-1] == "run_finished"
    assert (len(run.read_instructions()) > 2) == ("inspo" in name)
    assert (run.totals().llm_calls > 0) == (name != "static")
    # Hinted rollouts are trained on without their hints.
    hinted = [row for row in rows if row.get("hinted_share", 0) > 0]
    assert bool(hinted) == ("p2o" in name)
    assert all(row["p2o/ratio_mean"] > 0 for row in hinted)
    logged = [row for row in trainer.state.log_history if "loss" in row]
    for log_row, row in zip(logged, rows, strict=True):
        metrics = {k: v for k, v in row.items() if k.startswith(("inspo/", "p2o/"))}
        assert {name: log_row[name] for name in metrics} == pytest.approx(metrics)
    # The best policy is kept with a summary and a report.
    assert (run.best_path / "instruction.txt").read_text() == trainer.best_instruction + "\n"
    summary = run.read_summary()
    assert summary is not None
    assert summary["best_instruction"] == trainer.best_instruction
    assert (run.path / "report.html").is_file()
    assert trainer.outcome is not None
    assert trainer.outcome.after is not None
    (arm,) = summary["arms"].values()
    assert arm["em"] == trainer.outcome.after.em
    # What happens is logged in a line each.
    assert all("\n" not in line for line in trained.logged)
    assert sum(": + i" in line for line in trained.logged) == len(run.read_instructions())
    for kind, line in EVOLVED.items():
        for event in trained.events(kind):
            started = f"step 4: {line.format(**event)}"
            assert sum(logged.startswith(started) for logged in trained.logged) == 1
    assert "trained; report" in trained.logged[-1]


class StopAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **_: Any) -> None:
        control.should_training_stop = state.global_step >= self._step


@pytest.mark.parametrize("name", METHODS)
def test_a_stopped_run_is_resumed_as_if_never_stopped(
    tmp_path: Path, name: str, plain: Callable[[str], ScriptTraining]
) -> None:
    unbroken = plain(name)
    stopped = begin(tmp_path / "stopped", name, **SAVING)
    stopped.trainer.add_callback(StopAfter(4))  # in the second epoch, with hints
    stopped.trainer.train()
    again = begin(tmp_path / "stopped", name, **SAVING)
    again.trainer.train(resume_from_checkpoint=True)
    assert figures(again) == figures(unbroken)
    assert again.strategy.state_dict() == unbroken.strategy.state_dict()
    assert again.spent() == unbroken.spent()
    weights = (training.trainer.model.parameters() for training in (again, unbroken))  # type: ignore[union-attr]
    assert all(torch.equal(weight, expected) for weight, expected in zip(*weights, strict=True))
    assert [row["from_step"] for row in again.events("resumed")] == [4]


def test_checkpoints_after_the_one_that_is_resumed_are_set_aside(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 4}
    first = begin(tmp_path, **saving)
    first.trainer.add_callback(StopAfter(3))
    first.trainer.train()
    back = begin(tmp_path, **saving)
    back.trainer.add_callback(StopAfter(2))
    spelled = tmp_path / "checkpoints" / ".." / "checkpoints" / "checkpoint-1"
    back.trainer.train(resume_from_checkpoint=str(spelled))
    assert [row["from_step"] for row in back.events("resumed")] == [1]
    # Checkpoint 3 is that of the first attempt, whose logs were cut back.
    assert not back.checkpoints.joinpath("checkpoint-3").exists()
    assert back.checkpoints.joinpath("aside-checkpoint-3").is_dir()
    last = begin(tmp_path, **saving)
    last.trainer.train(resume_from_checkpoint=True)
    assert [row["from_step"] for row in last.events("resumed")] == [1, 2]
    assert [row["step"] for row in last.run.read_metrics()] == [1, 2, 3, 4]


def test_a_plan_and_a_try_before_training_change_nothing(
    plain: Callable[[str], ScriptTraining], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = begin(tmp_path, "inspo")
    planned = training.trainer.plan()
    rollouts = training.trainer.try_rollouts(2)
    assert not training.trainer.run_folder.exists()
    output = capsys.readouterr().out
    assert "proposer: " in output
    assert "2 rollouts: mean reward" in output
    assert [t.task.id for t in rollouts] == [t.id for t in Even().tasks("train")[:2]]
    training.trainer.train()
    assert figures(training) == figures(plain("inspo"))
    # What was planned is an upper bound of what was spent.
    assert planned.rollouts["train"] == training.spent()["train"]
    assert planned.rollouts["verify"] >= training.spent()["verify"] > 0
    assert planned.calls >= training.run.totals().llm_calls > 0
    for count, problem in (("x", "count is 'x'"), (1, "'development' has no questions")):
        with pytest.raises(ConfigError, match=problem):
            training.trainer.try_rollouts(cast(Any, count), split="development")


@pytest.mark.parametrize("name", ["inspo", "p2o"])
def test_evaluations_are_counted_and_change_no_step(
    tmp_path: Path, name: str, plain: Callable[[str], ScriptTraining]
) -> None:
    unevaluated = plain(name)
    evaluated = begin(tmp_path / "seen", name, evaluates=True, eval_on_start=True)
    evaluated.trainer.train()
    assert figures(evaluated) == figures(unevaluated)
    assert evaluated.strategy.state_dict() == unevaluated.strategy.state_dict()
    scores = {
        row["step"]: row["eval_reward"]
        for row in evaluated.trainer.state.log_history
        if "eval_reward" in row
    }
    assert list(scores) == [0, 2, 4, 6]
    events = evaluated.events("evaluated")
    # Greedily, once for each of two questions.
    assert {event["n"] for event in events} == {2}
    assert evaluated.spent() == unevaluated.spent() | {"evaluate": 2 * len(events)}
    during = [e for e in events if e["step"] <= STEPS]
    assert {(e["split"], e["when"]) for e in during} == {("validation", "during")}
    assert [e["trained"] for e in during] == list(scores)
    assert [e["em"] for e in during] == pytest.approx(list(scores.values()))
    # At the end they choose between instructions that are too close to call; then the test questions.
    closing = {(e["split"], e["when"]) for e in events if e["step"] > STEPS}
    assert ("test", "after") in closing
    assert {when for split, when in closing if split == "validation"} <= {"contender"}
    outcome = evaluated.trainer.outcome
    assert outcome is not None
    assert outcome.kept.em == max(e["em"] for e in events if e["split"] == "validation")
    (row, *_) = evaluated.run.read_trajectories(STEPS + 1, "evaluate_after")
    assert row["sampled"] == {"instruction": evaluated.trainer.best_instruction, "hint": ""}
    # Afterwards nothing more is recorded.
    again = evaluated.trainer.evaluate("test")
    assert outcome.after is not None
    assert again["eval_reward"] == outcome.after.em
    assert evaluated.events("evaluated") == events


def shares(folder: Path, **changes: Any) -> ScriptTraining:
    """A run on a world whose rewards are of any size, so that evaluations differ."""
    values = {"evaluates": True, "eval_steps": 1, "seed": 3, **changes}
    return begin(folder, "inspo", trainer_arguments={"environment": Letters()}, **values)


def test_after_training_it_holds_the_best_policy_and_its_instruction(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 1, "load_best_model_at_end": True}
    training = shares(tmp_path, metric_for_best_model="eval_reward", **saving)
    training.trainer.train()
    check_that_it_holds_the_best(training, tmp_path / "model")


def check_that_it_holds_the_best(training: ScriptTraining, folder: Path) -> None:
    outcome = training.trainer.outcome
    assert outcome is not None
    assert 0 < outcome.kept.step < STEPS  # or the test shows nothing
    weights = load_file(training.run.best_path / "model.safetensors")
    for name, value in training.trainer.model.state_dict().items():  # type: ignore[union-attr]
        torch.testing.assert_close(value, weights[name])
    assert training.trainer.evaluate()["eval_reward"] == pytest.approx(outcome.kept.em)
    assert training.trainer.state.best_metric == pytest.approx(outcome.kept.em)
    assert training.trainer.best_instruction == outcome.kept.instruction
    training.trainer.save_model(str(folder))
    saved = (folder / "instruction.txt").read_text(encoding="utf-8")
    assert saved == training.trainer.best_instruction + "\n"


def test_a_run_that_saves_the_best_alone_is_resumed_from_it(tmp_path: Path) -> None:
    saving = {"save_strategy": "best", "metric_for_best_model": "eval_reward", "seed": 4}
    unbroken = shares(tmp_path / "unbroken", **saving)
    unbroken.trainer.train()
    check_that_it_holds_the_best(unbroken, tmp_path / "model")
    stopped = shares(tmp_path / "stopped", **saving)
    stopped.trainer.add_callback(StopAfter(3))
    stopped.trainer.train()
    again = shares(tmp_path / "stopped", **saving)
    again.trainer.train(resume_from_checkpoint=True)
    (resumed,) = again.events("resumed")
    assert resumed["from_step"] == 2  # step 3 was no better
    assert figures(again) == figures(unbroken)
    assert again.trainer.outcome == unbroken.trainer.outcome


def test_the_chat_template_gets_its_arguments(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ 'bad' if shout else '' }}" + str(tokenizer.chat_template)
    changes = {"chat_template_kwargs": {"shout": True}}
    joint = begin(tmp_path, trainer_arguments={"processing_class": tokenizer}, **changes).joint
    message = [{"role": "user", "content": "abc"}]
    assert joint.codec.decode(joint.codec.render(message)).startswith("bad")


@pytest.mark.parametrize("masks", [True, False])
def test_rollouts_that_were_cut_off_get_no_gradient_if_asked(tmp_path: Path, masks: bool) -> None:
    short = cotune.Limits(turns=1, turn_tokens=8, trajectory_tokens=40, prompt_tokens=400)
    arguments = {"limits": short}
    training = begin(
        tmp_path, trainer_arguments=arguments, max_steps=1, mask_truncated_completions=masks
    )
    rollout = training.joint.rollout_func
    outputs: list[Any] = []

    def record_rollouts(prompts: Any, trainer: Any) -> Any:
        outputs.append(rollout(prompts, trainer))
        return outputs[-1]

    training.trainer.rollout_func = record_rollouts
    training.trainer.train()
    rollouts = training.joint.batch.trajectories
    cut = [was_cut(t) for t in rollouts]
    assert True in cut
    assert False in cut
    for mask, trajectory, is_cut in zip(outputs[0]["env_mask"], rollouts, cut, strict=True):
        assert mask == ([0] * len(trajectory.mask) if is_cut and masks else list(trajectory.mask))
    assert (training.trainer.state.log_history[0]["completions/min_length"] == 0) == masks
    logged = training.trainer.state.log_history[0]
    assert logged["completions/clipped_ratio"] == pytest.approx(sum(cut) / len(cut))


class Asks(TrainerCallback):
    """A callback of the user's, after cotune's."""

    def __init__(self, step: int, stops: bool = False) -> None:
        self.step, self.stops = step, stops

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            if self.stops:
                self.stops = False
                raise KeyboardInterrupt
            control.should_save = True


def test_a_checkpoint_that_a_later_callback_asks_for_can_be_resumed(tmp_path: Path) -> None:
    training = begin(tmp_path, "inspo", save_steps=2, save_total_limit=1, max_steps=1)
    training.trainer.add_callback(Asks(1))
    training.trainer.train()
    assert "INSPO has no phase of evolution" in training.events("notice")[0]["text"]
    assert load_state(training.checkpoints / "checkpoint-1")["batches"] == 1


def test_a_trainer_that_was_interrupted_within_a_batch_begins_it_again(tmp_path: Path) -> None:
    batches: dict[str, Any] = {
        "steps_per_generation": 2, "gradient_accumulation_steps": 1, "max_steps": 4,
        "save_strategy": "steps", "save_steps": 2,
    }  # fmt: skip
    unbroken = begin(tmp_path / "whole", **batches)
    unbroken.trainer.train()
    stopped = begin(tmp_path / "stopped", **batches)
    stopped.trainer.add_callback(Asks(3, stops=True))
    with pytest.raises(KeyboardInterrupt):
        stopped.trainer.train()
    stopped.trainer.train(resume_from_checkpoint=True)
    assert figures(stopped) == figures(unbroken)
