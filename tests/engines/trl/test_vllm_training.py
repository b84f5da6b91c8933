"""Whole trainings through vLLM: which weights it has, and what TRL makes of its log-probabilities."""

import math
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
import trl.generation.vllm_generation as vllm_generation

from cotune.engines.trl.joint_trainer import TRLBest
from cotune.errors import ConfigError, EngineError
from cotune.types import Distillation, Limits, Prompt, StopReason
from tests.engines.trl.fake_vllm import Engine
from tests.engines.trl.setup import HINT, HintedRows, Run, scored
from tests.engines.trl.vllm_setup import assert_synced, cached, same_rollouts, vllm_run
from tests.policy.tiny import ApartLetters, Letters, tiny_tokenizer

EXPECTED = {
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "top_p": 1.0,
    "top_k": 0, "min_p": 0.0, "stop": list(Letters.stop), "include_stop_str_in_output": True,
    "skip_special_tokens": False, "ignore_eos": True, "n": 1, "logprobs": 0, "detokenize": True,
}  # fmt: skip


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_a_training_through_vllm(mode: str, tmp_path: Path, engine: Engine) -> None:
    run = vllm_run(tmp_path, mode, seed=5, temperature=0.7, max_steps=2)
    run.trainer.train()
    trajectories = [t for batch in run.trajectories for t in batch]
    assert len({t.completion_ids for t in trajectories[:3]}) > 1  # group-mates draw differently
    assert {StopReason.ANSWERED, StopReason.TURN_LIMIT} <= {t.stop for t in trajectories}
    turns = [turn for t in trajectories for turn in t.turns]
    assert any(turn.text.endswith(Letters.stop) for turn in turns)
    for params, _ in engine.calls:
        assert {name: getattr(params, name) for name in EXPECTED} == EXPECTED
        assert params.stop_token_ids == [run.joint.codec.eos_id]
        assert params.temperature == 0.7
    assert len({params.seed for params, _ in engine.calls}) == len(engine.calls) > 20
    # The weights came once a step, and the prefix cache of older ones was dropped.
    assert (engine.syncs, engine.resets) == (2, 2)
    same_implementation = run.logged("sampling/importance_sampling_ratio/mean")
    assert same_implementation == pytest.approx([1.0] * 2, abs=1e-4)
    assert max(run.logged("sampling/sampling_logp_difference/max")) < 1e-4


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_episodes_that_do_not_wait_resumed_in_flight_are_those_that_wait(
    mode: str, tmp_path: Path, engine: Engine
) -> None:
    changes: dict[str, Any] = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    waiting = vllm_run(tmp_path / "waiting", mode, **changes)
    waiting.trainer.train()
    engine.calls.clear()
    broken = vllm_run(tmp_path / "apart", mode, environment=ApartLetters(), **changes)
    engine.fails_at = sum(len(t.turns) for t in waiting.trajectories[0]) + 9
    with pytest.raises(Exception, match="the engine died"):
        broken.trainer.train()
    engine.fails_at = -1
    resumed = vllm_run(tmp_path / "apart", mode, environment=ApartLetters(), resume=True, **changes)
    resumed.trainer.train(resume_from_checkpoint=True)
    apart = [*broken.trajectories[:1], *resumed.trajectories]
    for batch, expected in zip(apart, waiting.trajectories, strict=True):
        same_rollouts(batch, expected)
    for name, tensor in waiting.weights.items():
        assert torch.equal(resumed.weights[name], tensor), name


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_evaluations_are_greedy_and_under_the_weights_of_the_last_step(
    mode: str, tmp_path: Path, engine: Engine
) -> None:
    changes = {"limits": Limits(3, 20, 6, 40), "max_steps": 1}
    run = vllm_run(tmp_path, mode, temperature=0.7, **changes)
    run.trainer.train()
    engine.calls.clear()
    tasks = [task for split in ("train", "test") for task in Letters().tasks(split)]
    rollouts = run.joint.coordinator.evaluate(tasks)
    assert engine.syncs == 2  # trained once, and stepped since
    assert_synced(run, engine)
    assert {params.temperature for params, _ in engine.calls} == {0.0}
    again = run.joint.coordinator.evaluate(tasks)
    assert engine.syncs == 2  # nothing is sent twice
    run.joint.coordinator.sampler = cached(run)
    expected = run.joint.coordinator.evaluate(tasks)
    same_rollouts(rollouts, expected)
    same_rollouts(again, expected)


def test_a_sleeping_engine_is_woken_and_sent_its_weights(tmp_path: Path, engine: Engine) -> None:
    run = vllm_run(tmp_path, vllm_enable_sleep_mode=True, max_steps=1)
    run.trainer.train()
    assert engine.asleep
    tasks = Letters().tasks("train")
    rollouts = run.joint.coordinator.evaluate(tasks)
    run.joint.coordinator.sampler = cached(run)
    same_rollouts(rollouts, run.joint.coordinator.evaluate(tasks))


def test_weights_that_are_put_back_are_sent(tmp_path: Path, engine: Engine) -> None:
    run = vllm_run(tmp_path / "run", max_steps=1)
    run.folder.begin_attempt(None)
    best = TRLBest(tmp_path / "best", tiny_tokenizer())
    tasks = Letters().tasks("train")
    expected = run.joint.coordinator.evaluate(tasks, Prompt("abc de. "), "i0")
    best.offer(run.joint, scored(0.5), 0)
    run.trainer.train()
    run.joint.coordinator.evaluate(tasks, Prompt("abc de. "), "i0")
    trained = {name: tensor.clone() for name, tensor in run.weights.items()}
    best.restore(run.joint)
    assert any(not torch.equal(trained[name], tensor) for name, tensor in run.weights.items())
    restored = run.joint.coordinator.evaluate(tasks, Prompt("abc de. "), "i0")
    assert_synced(run, engine)
    same_rollouts(restored, expected)


def corrections(run: Run) -> list[torch.Tensor]:
    """Each batch's importance-sampling ratios (B, 1), noted while it trains."""
    outputs = run.outputs()
    run.trainer.train()
    return [output["importance_sampling_ratio"] for output in outputs]


@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_plain_rows_are_corrected_and_hinted_rows_are_not(
    mode: str, tmp_path: Path, engine: Engine
) -> None:
    """Under a hint vLLM's chances are those of another prompt than the trainer computes them on."""
    engine.shift = 0.01
    strategy = HintedRows((1, 2, 4), Distillation(ratio="original"))
    run = vllm_run(
        tmp_path, mode, strategy, vllm_importance_sampling_mode="sequence_truncate", max_steps=1
    )
    (ratios,) = corrections(run)
    (batch,) = run.trajectories
    hinted = [row for row, t in enumerate(batch) if t.assignment.sampled.hint == HINT]
    assert hinted == [1, 2, 4]
    for row, t in enumerate(batch):
        expected = 1.0 if row in hinted else math.exp(-0.01 * t.generated_tokens)
        assert float(ratios[row]) == pytest.approx(expected, abs=1e-4)
    assert math.isfinite(run.logged("loss")[0])


def test_a_token_that_vllm_could_not_score_counts_as_unhinted(
    tmp_path: Path, engine: Engine
) -> None:
    engine.unscored = tuple(range(4, 8))
    strategy = HintedRows((0, 1, 3), Distillation(ratio="masked_signed"))
    run = vllm_run(tmp_path, "server", strategy, max_steps=1)
    run.trainer.train()
    logprobs = [x for batch in run.trajectories for t in batch for x in t.logprobs]
    assert any(math.isnan(x) for x in logprobs)
    for name in ("loss", "p2o/ratio_mean", "grad_norm"):
        assert all(math.isfinite(float(value)) for value in run.logged(name))
    assert all(bool(tensor.isfinite().all()) for tensor in run.weights.values())


@pytest.mark.parametrize(
    ("mode", "changes", "refused"),
    [
        ("raw_logprobs", {"temperature": 0.7}, True),
        ("raw_logprobs", {"temperature": 1.0}, False),
        ("raw_logprobs", {"temperature": 0.7, "vllm_importance_sampling_correction": False}, False),
        ("processed_logprobs", {"temperature": 0.7}, False),
    ],
)
def test_a_server_that_leaves_out_the_temperature_is_refused(
    mode: str, changes: dict[str, Any], refused: bool, tmp_path: Path, engine: Engine
) -> None:
    engine.logprobs_mode = mode
    if not refused:
        vllm_run(tmp_path, "server", **changes)
        return
    with pytest.raises(ConfigError, match=r"logprobs-mode raw_logprobs.*--logprobs-mode processed"):
        vllm_run(tmp_path, "server", **changes)
    assert engine.calls == []


def test_vllm_computes_in_the_trainers_type_or_says_why_it_does_not_start(
    tmp_path: Path, engine: Engine
) -> None:
    # By default vLLM would sample a float32 policy in half precision.
    started = vllm_generation.LLM  # type: ignore[attr-defined]
    vllm_run(tmp_path, vllm_max_model_length=512)
    assert engine.options["dtype"] == "float32"
    # On a CPU no prompt is split between steps.
    assert not engine.options["enable_chunked_prefill"]
    assert engine.options["max_num_batched_tokens"] >= engine.max_model_len
    assert vllm_generation.LLM is started  # type: ignore[attr-defined]
    # If it does not start it says why in a line.
    engine.refuses_to_start = True
    with pytest.raises(EngineError) as error:
        vllm_run(tmp_path / "other")
    assert str(error.value) == (
        "vLLM did not start: ValueError: No available memory for the cache blocks. (its settings are "
        "vllm_… in training.engine_args or GRPOConfig)"
    )
    assert vllm_generation.LLM is started  # type: ignore[attr-defined]


def test_a_server_that_does_not_answer_is_named_in_a_line(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(**options: Any) -> None:
        raise requests.ConnectionError("The vLLM server can't be reached\nat http://localhost:1")

    monkeypatch.setattr(vllm_generation, "VLLMClient", unreachable)
    with pytest.raises(EngineError, match=r"can't be reached at http://localhost:1 \(its settings"):
        vllm_run(tmp_path, "server")
