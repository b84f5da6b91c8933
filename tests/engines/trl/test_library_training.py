"""The library's methods through a trainer of one's own: trained, evaluated, resumed, refused."""

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerControl
from trl import GRPOConfig, GRPOTrainer

import cotune
from cotune.engines.evaluation import Validation
from cotune.engines.trl.checkpoints import load_state
from cotune.engines.trl.library_api import TrainerMethod
from cotune.engines.trl.trl_joint import was_cut
from cotune.errors import ConfigError
from cotune.run.scores import Score
from tests.engines.trl.library_runs import (
    LIMITS,
    METHODS,
    P2O,
    STEPS,
    Even,
    LibraryTraining,
    Scribe,
    begin,
    figures,
    method_of,
)
from tests.engines.trl.setup import config
from tests.policy.tiny import Letters, tiny_model, tiny_tokenizer

SAVING = {"save_strategy": "steps", "save_steps": 2}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LibraryTraining]:
    """A method's name gives its run from start to end, which several tests read."""

    @cache
    def run(name: str) -> LibraryTraining:
        training = begin(tmp_path_factory.mktemp("run"), name, remembers=True)
        training.trainer.train()
        return training

    return run


@pytest.fixture(params=METHODS)
def trained(
    request: pytest.FixtureRequest, plain: Callable[[str], LibraryTraining]
) -> LibraryTraining:
    return plain(request.param)


def test_each_method_trains_and_is_written_down(trained: LibraryTraining) -> None:
    name = trained.run.read_config()["strategy"]["kind"]
    rows = figures(trained)
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    assert any(row["grad_norm"] > 0 for row in rows)
    spent = trained.spent()
    assert spent["train"] == STEPS * 6
    assert (spent["verify"] > 0) == ("inspo" in name)
    assert (spent["evolve"] > 0) == ("p2o" in name)
    assert len(trained.events("evolution")) == ("inspo" in name)
    assert len(trained.events("hint_phase_ended")) == ("p2o" in name)
    assert [row["kind"] for row in trained.run.read_events()][-1] == "run_finished"
    assert (len(trained.run.read_instructions()) > 2) == ("inspo" in name)


def test_hinted_rollouts_are_trained_on_without_their_hints(trained: LibraryTraining) -> None:
    hinted = [row for row in figures(trained) if row.get("hinted_share", 0) > 0]
    assert bool(hinted) == ("p2o" in trained.run.read_config()["strategy"]["kind"])
    assert all(row["p2o/ratio_mean"] > 0 for row in hinted)


def test_the_strategys_numbers_are_in_the_trainers_log(trained: LibraryTraining) -> None:
    logged = [row for row in trained.trainer.state.log_history if "loss" in row]
    for seen, written in zip(logged, figures(trained), strict=True):
        own = {k: v for k, v in written.items() if k.startswith(("inspo/", "p2o/"))}
        assert {name: seen[name] for name in own} == pytest.approx(own)


class Retold(Letters):
    """Solved is whatever is written under another instruction than the initial one."""

    def score(self, trajectory: Any) -> tuple[float, str | None]:
        told = trajectory.assignment.sampled.instruction
        return float(told != self.initial_instruction), None


def test_gepa_searches_once_and_trains_under_what_it_found(tmp_path: Path) -> None:
    method = cotune.GEPA(
        environment=Retold(),
        llm=Scribe(),
        limits=LIMITS,
        seed=1,
        budget=20,
        dev_size=2,
    )
    training = begin(tmp_path, method=method, max_steps=2)
    training.trainer.train()
    spent = training.spent()
    assert spent["train"] == 2 * 6
    assert 10 < spent["evolve"] <= 20  # begun after step 1 again, it would be twice as many
    best = training.strategy.best_prompt()
    assert best.instruction != Retold.initial_instruction
    assert {t.assignment.trained for t in training.joint.last_rollouts} == {best}
    assert training.run.read_instructions()[-1]["text"] != Retold.initial_instruction
    assert training.run.read_config()["strategy"]["kind"] == "gepa"


def test_a_search_before_the_first_step_is_not_paid_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def training(llm: Scribe) -> LibraryTraining:
        method = cotune.GEPA(
            environment=Retold(), llm=llm, limits=LIMITS, seed=1, budget=20, dev_size=2
        )
        return begin(tmp_path, method=method, max_steps=1)

    scored = Retold.score
    left = iter(range(12))

    def interrupted(environment: Retold, trajectory: Any) -> tuple[float, str | None]:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return scored(environment, trajectory)

    first, second = Scribe(), Scribe()
    with monkeypatch.context() as patched:
        patched.setattr(Retold, "score", interrupted)
        with pytest.raises(KeyboardInterrupt):
            training(first).trainer.train()
    again = training(second)
    again.trainer.train()
    assert len(first.asked) == 1
    assert not second.asked
    (reused,) = again.events("notice")
    assert "used again" in reused["text"]
    assert again.spent()["evolve"] <= 20


class StopAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **_: Any) -> None:
        control.should_training_stop = state.global_step >= self._step


@pytest.mark.parametrize("name", METHODS)
def test_a_stopped_run_is_resumed_as_if_never_stopped(
    tmp_path: Path, name: str, plain: Callable[[str], LibraryTraining]
) -> None:
    unbroken = plain(name)
    stopped = begin(tmp_path / "stopped", name, remembers=True, **SAVING)
    stopped.trainer.add_callback(StopAfter(4))  # in the second epoch, with hints
    stopped.trainer.train()
    again = begin(tmp_path / "stopped", name, remembers=True, **SAVING)
    again.trainer.train(resume_from_checkpoint=True)
    assert figures(again) == figures(unbroken)
    assert again.strategy.state_dict() == unbroken.strategy.state_dict()
    assert again.spent() == unbroken.spent()
    assert [row["from_step"] for row in again.events("resumed")] == [4]


def test_a_checkpoint_of_what_was_discarded_is_refused(tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 1}
    first = begin(tmp_path, **saving)
    first.trainer.add_callback(StopAfter(4))
    first.trainer.train()
    back = begin(tmp_path, **saving)
    back.trainer.add_callback(StopAfter(2))
    back.trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoints" / "checkpoint-1"))
    assert [row["from_step"] for row in back.events("resumed")] == [1]
    # Checkpoints 3 and 4 are still those of the first attempt, whose logs were cut back.
    with pytest.raises(
        ConfigError, match="step 4 was saved by attempt 1, whose steps after 1 were discarded"
    ):
        begin(tmp_path, **saving).trainer.train(resume_from_checkpoint=True)


@pytest.mark.parametrize("name", ["inspo", "p2o"])
def test_the_trainers_evaluation_is_counted_and_changes_nothing(
    tmp_path: Path, name: str, plain: Callable[[str], LibraryTraining]
) -> None:
    unseen = plain(name)
    seen = begin(tmp_path / "seen", name, evaluates=True, eval_on_start=True, remembers=True)
    seen.trainer.train()
    # The trainer shuffles a batch's rows with torch's generator, which its evaluation moves on.
    for one, other in zip(figures(seen), figures(unseen), strict=True):
        # Logged of the rows that are trained on: of a batch without any advantage, the first one.
        own = {name: value for name, value in one.items() if name != "entropy"}
        assert own == pytest.approx({name: other[name] for name in own}, abs=1e-4)
    assert seen.strategy.state_dict() == unseen.strategy.state_dict()
    scores = {
        row["step"]: row["eval_reward"]
        for row in seen.trainer.state.log_history
        if "eval_reward" in row
    }
    assert list(scores) == [0, 2, 4, 6]
    # Two questions of validation; their groups hold copies of one greedy rollout. At the end they
    # choose between instructions, if the method has several.
    events = seen.events("evaluated")
    chosen = [e for e in events if e["step"] > STEPS]
    assert seen.spent() == unseen.spent() | {"evaluate": (4 + len(chosen)) * 2}
    (finished,) = seen.events("run_finished")
    best = max((e["em"] for e in chosen), default=None)
    assert (finished["em"], best is None) == (best, name == "p2o")
    assert finished["instruction_id"] == seen.strategy.best_instruction_id()
    assert unseen.events("run_finished")[0]["em"] is None
    events = [e for e in events if e["step"] <= STEPS]
    assert [(e["trained"], e["split"], e["n"]) for e in events] == [
        (step, "validation", 2) for step in scores
    ]
    assert [e["em"] for e in events] == pytest.approx(list(scores.values()))
    assert [e["when"] for e in events] == ["before", "during", "during", "during"]

    again = seen.trainer.evaluate(eval_dataset=seen.joint.eval_dataset("test"))
    assert seen.spent()["evaluate"] == (4 + len(chosen)) * 2 + 2
    last = seen.events("evaluated")[-1]
    assert (last["split"], last["when"], last["em"]) == ("test", "after", again["eval_reward"])
    assert last["instruction_id"] == seen.strategy.best_instruction_id()
    (row, *_) = seen.run.read_trajectories(STEPS, "evaluate_after")
    assert row["sampled"]["hint"] == ""


def test_the_initial_instruction_is_kept_if_validation_finds_no_uplift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cotune")
    scores = Score(0.5, 8, {}, "mean reward"), Score(0.5, 8, {}, "mean reward")
    monkeypatch.setattr(Validation, "during", lambda *_, **__: scores)
    training = begin(tmp_path, "inspo", evaluates=True, eval_strategy="no", max_steps=1)
    monkeypatch.setattr(training.strategy, "best_instruction_id", lambda: "i4")
    training.trainer.train()
    (finished,) = training.events("run_finished")
    assert (finished["instruction_id"], finished["em"]) == ("i0", 0.5)
    assert finished["instruction"] == Even.initial_instruction
    assert "best instruction i0, mean reward 0.500 on validation" in caplog.text


def shares() -> TrainerMethod[Any]:
    """On a world whose rewards are of any size, so that evaluations differ."""
    return method_of("inspo", environment=Letters(), seed=3)


BEST: dict[str, Any] = {
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_reward",
    "evaluates": True,
    "eval_steps": 1,
    "remembers": True,
}


@pytest.mark.parametrize(
    "saving",
    [{"save_strategy": "steps", "save_steps": 1, "save_total_limit": 1}, {"save_strategy": "best"}],
    ids=["steps", "best"],
)
def test_the_best_policy_comes_with_the_strategy_of_its_checkpoint(
    tmp_path: Path, saving: dict[str, Any]
) -> None:
    training = begin(tmp_path, method=shares(), **saving, **BEST)
    training.trainer.train()
    best = training.trainer.state.best_global_step
    assert best is not None
    assert 0 < best < STEPS  # or the test shows nothing
    folder = Path(str(training.args.output_dir))
    saved = load_state(folder, best)
    assert saved is not None
    assert training.state() == saved["coordinator"]["strategy"]
    weights = load_file(folder / f"checkpoint-{best}" / "model.safetensors")
    for name, value in training.trainer.model.state_dict().items():  # type: ignore[union-attr]
        torch.testing.assert_close(value, weights[name])
    score = training.trainer.evaluate()["eval_reward"]
    assert score == training.trainer.state.best_metric
    (finished,) = training.events("run_finished")
    assert finished["instruction"] == training.strategy.best_prompt().instruction
    # Rotation keeps that pair, and no half of another.
    states = {int(p.stem.rpartition("-")[2]) for p in folder.glob("cotune-state-*.json")}
    assert states == {int(p.name.rpartition("-")[2]) for p in folder.glob("checkpoint-*")}
    assert best in states


def test_a_run_that_keeps_the_best_alone_is_resumed_from_it(tmp_path: Path) -> None:
    saving = {"save_strategy": "best", **BEST}
    unbroken = begin(tmp_path / "unbroken", method=shares(), **saving)
    unbroken.trainer.train()
    stopped = begin(tmp_path / "stopped", method=shares(), **saving)
    stopped.trainer.add_callback(StopAfter(3))
    stopped.trainer.train()
    again = begin(tmp_path / "stopped", method=shares(), **saving)
    again.trainer.train(resume_from_checkpoint=True)
    (resumed,) = again.events("resumed")
    assert resumed["from_step"] == 2  # step 3 was no better
    assert figures(again) == figures(unbroken)
    assert again.trainer.state.best_metric == unbroken.trainer.state.best_metric


def test_a_best_checkpoint_that_is_gone_leaves_the_last_steps_strategy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    training = begin(tmp_path, method=shares(), save_strategy="steps", save_steps=1, **BEST)

    class Lose(TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            state.best_model_checkpoint = str(tmp_path / "checkpoint-1")

    training.trainer.add_callback(Lose())
    training.trainer.train()
    assert "checkpoint-1 is not whole: the instruction is the last step's" in caplog.text
    last = load_state(Path(str(training.args.output_dir)), STEPS)
    assert last is not None
    assert training.state() == last["coordinator"]["strategy"]


@pytest.mark.parametrize("name", ["p2o", "inspo+p2o"])
def test_a_trainer_that_cannot_weigh_tokens_is_refused_when_it_is_made(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match=r"use cotune\.JointTrainer in its place") as refused:
        begin(tmp_path, name, trainer_class=GRPOTrainer)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.rglob("cotune*"))


def test_a_plain_trainer_does_without_weights(tmp_path: Path) -> None:
    original = cotune.P2OOptions(
        hints=P2O.hints, distillation=cotune.Distillation(ratio="original")
    )
    training = begin(
        tmp_path,
        "p2o",
        GRPOTrainer,
        method=method_of("p2o", options=original),
        max_steps=4,
        remembers=True,
    )
    training.trainer.train()
    assert figures(training)[-1]["hinted_share"] > 0


def test_a_trainer_without_our_callbacks_is_refused_at_its_first_rollout(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    args = config(tmp_path, max_steps=4)
    joint = method_of("p2o").for_trl(tokenizer, args)
    trainer = GRPOTrainer(
        tiny_model(tokenizer),
        args=args,
        processing_class=tokenizer,
        train_dataset=joint.dataset,
        rollout_func=joint.rollout_func,
        reward_funcs=joint.reward_funcs,
    )
    with pytest.raises(ConfigError, match=r"use cotune\.JointTrainer in its place"):
        trainer.train()


def test_a_joint_trainer_is_bound_when_it_is_made(tmp_path: Path) -> None:
    training = begin(tmp_path, "p2o")
    assert training.joint.bound
    assert training.joint.trainer is training.trainer
    assert cotune.JointTrainer.in_the_making() is None


@pytest.mark.parametrize("trainer_class", [GRPOTrainer, cotune.JointTrainer])
def test_limits_beyond_the_policys_context_are_refused_when_the_trainer_is_made(
    tmp_path: Path, trainer_class: type[GRPOTrainer]
) -> None:
    wide = cotune.Limits(
        turns=3, turn_tokens=8, observation_tokens=6, trajectory_tokens=40, prompt_tokens=480
    )
    method = cotune.Static(environment=Even(), limits=wide)
    with pytest.raises(ConfigError, match=r"480 \+ 40 = 520, but the policy's context holds 512"):
        begin(tmp_path, method=method, trainer_class=trainer_class)
    assert not list(tmp_path.rglob("cotune*"))


def made_with(folder: Path, **changes: Any) -> GRPOTrainer:
    """A trainer whose arguments are not all those of the joint run."""
    tokenizer = tiny_tokenizer()
    args = config(folder)
    joint = method_of("static").for_trl(tokenizer, args)
    given = {
        "args": args,
        "processing_class": tokenizer,
        "train_dataset": joint.dataset,
        "rollout_func": joint.rollout_func,
        "reward_funcs": joint.reward_funcs,
        "callbacks": joint.callbacks,
    }
    return GRPOTrainer(tiny_model(tokenizer), **(given | changes))


def no_reward(**_: Any) -> list[float]:
    return [0.0] * 6


def test_a_trainer_with_other_arguments_is_refused(tmp_path: Path) -> None:
    other: GRPOConfig = config(tmp_path, learning_rate=1.0)
    with pytest.raises(ConfigError, match=r"other args than cotune checked.*same GRPOConfig"):
        made_with(tmp_path, args=other)
    with pytest.raises(ConfigError, match=r"generated rollouts itself: give it rollout_func"):
        made_with(tmp_path / "a", rollout_func=None).train()
    trainer = made_with(tmp_path / "b", reward_funcs=[no_reward, no_reward])
    with pytest.raises(
        ConfigError, match=r"\['no_reward', 'no_reward'\].*joint\.reward_funcs as it"
    ):
        trainer.train()
    trainer = made_with(tmp_path / "d", reward_funcs=[no_reward])
    with pytest.raises(
        ConfigError, match=r"given reward_funcs=\['no_reward'\], which would .* rewards="
    ):
        trainer.train()
    with pytest.raises(ConfigError, match=r"give it callbacks=joint\.callbacks"):
        made_with(tmp_path / "c", callbacks=[]).train()
    assert not list((tmp_path / "c").rglob("cotune"))


def test_a_question_that_could_never_graduate_is_refused(tmp_path: Path) -> None:
    options = cotune.P2OOptions(successes_below=2, hinted_per_group="half")
    method = method_of("p2o", options=options)
    with pytest.raises(ConfigError, match=r"successes_below is 2.*num_generations 3.*at most 1"):
        method.for_trl(tiny_tokenizer(), config(tmp_path))


def test_the_chat_template_gets_its_arguments(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ 'bad' if shout else '' }}" + str(tokenizer.chat_template)
    given = {"chat_template_kwargs": {"shout": True}}
    joint = method_of("static").for_trl(tokenizer, config(tmp_path, **given))
    message = [{"role": "user", "content": "abc"}]
    assert joint.codec.decode(joint.codec.render(message)).startswith("bad")


@pytest.mark.parametrize("masks", [True, False])
def test_rollouts_that_were_cut_off_get_no_gradient_if_asked(tmp_path: Path, masks: bool) -> None:
    short = cotune.Limits(turns=1, turn_tokens=8, trajectory_tokens=40, prompt_tokens=400)
    method = cotune.Static(environment=Even(), limits=short, seed=1)
    training = begin(tmp_path, method=method, max_steps=1, mask_truncated_completions=masks)
    rollout = training.joint.rollout_func
    sent: list[Any] = []

    def noted(prompts: Any, trainer: Any) -> Any:
        sent.append(rollout(prompts, trainer))
        return sent[-1]

    training.trainer.rollout_func = noted
    training.trainer.train()
    rollouts = training.joint.last_rollouts
    cut = [was_cut(t) for t in rollouts]
    assert True in cut
    assert False in cut
    for mask, trajectory, was in zip(sent[0]["env_mask"], rollouts, cut, strict=True):
        assert mask == ([0] * len(trajectory.mask) if was and masks else list(trajectory.mask))
    assert (training.trainer.state.log_history[0]["completions/min_length"] == 0) == masks
    logged = training.trainer.state.log_history[0]
    assert logged["completions/clipped_ratio"] == pytest.approx(sum(cut) / len(cut))


def test_what_an_evolution_brought_is_logged_in_a_line_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cotune")
    training = begin(tmp_path, "inspo+p2o", max_steps=4, remembers=True)
    training.trainer.train()
    lines = [r.getMessage() for r in caplog.records if r.name == "cotune"]
    assert all("\n" not in line for line in lines)
    (evolved,) = [line for line in lines if line.startswith("step 4: evolution: ")]
    event = training.events("evolution")[0]
    assert f"{event['accepted']} of {event['proposed']} proposals accepted" in evolved
    born = training.run.read_instructions()
    assert sum(": + i" in line for line in lines) == len(born)
    assert sum("hints: " in line for line in lines) == 1
    assert "trained; best instruction" in lines[-1]


def test_no_handler_is_put_on_the_logger() -> None:
    assert logging.getLogger("cotune").handlers == []


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
    training = begin(tmp_path, save_steps=2, save_total_limit=1, max_steps=3)
    training.trainer.add_callback(Asks(3))
    training.trainer.train()
    assert load_state(training.joint.state_folder, 3) is not None


def test_a_trainer_that_was_interrupted_within_a_batch_begins_it_again(tmp_path: Path) -> None:
    batches: dict[str, Any] = {
        "steps_per_generation": 2, "gradient_accumulation_steps": 1, "max_steps": 6,
        "save_strategy": "steps", "save_steps": 2,
    }  # fmt: skip
    whole = begin(tmp_path / "whole", **batches)
    whole.trainer.train()
    stopped = begin(tmp_path / "stopped", **batches)
    stopped.trainer.add_callback(Asks(3, stops=True))
    with pytest.raises(KeyboardInterrupt):
        stopped.trainer.train()
    stopped.trainer.train(resume_from_checkpoint=True)
    assert figures(stopped) == figures(whole)
