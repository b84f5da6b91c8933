"""A joint run of a tiny policy whose rollouts are sampled by the fake vLLM."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from cotune.engines.trl.vllm_sampler import VLLMSampler
from cotune.policy.sampling import CachedSampler
from cotune.rollout.coordinator import SingleProcess
from cotune.types import Trajectory
from tests.engines.trl.fake_vllm import Engine
from tests.engines.trl.setup import Run, start


@contextlib.contextmanager
def no_traces() -> Iterator[None]:
    """Undo what TRL's colocated vLLM does to the process, which would make later trainers ranks.

    TRL sets RANK and others in the environment; a second trainer then starts a process group.
    """
    with mock.patch.dict(os.environ):
        yield
    if dist.is_initialized():
        dist.destroy_process_group()


def vllm_run(folder: Path, mode: str = "colocate", *arguments: Any, **changes: Any) -> Run:
    return start(folder, *arguments, use_vllm=True, vllm_mode=mode, **changes)


def sampler(run: Run) -> VLLMSampler:
    return VLLMSampler(run.trainer, run.joint.codec, SingleProcess(), 512)


def cached(run: Run) -> CachedSampler:
    """What samples without vLLM, on the trainer's weights."""
    return CachedSampler(run.joint.policy, run.joint.codec, 0)


def assert_synced(run: Run, engine: Engine) -> None:
    engine_weights = dict(engine.model.named_parameters())
    for name, tensor in run.weights.items():
        assert torch.equal(engine_weights[name], tensor), name


def same_rollouts(rollouts: list[Trajectory], expected: list[Trajectory]) -> None:
    assert [t.completion_ids for t in rollouts] == [t.completion_ids for t in expected]
    assert [t.stop for t in rollouts] == [t.stop for t in expected]
    for rollout, reference in zip(rollouts, expected, strict=True):
        assert rollout.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
