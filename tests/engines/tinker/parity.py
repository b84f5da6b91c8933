"""One update on a server, compared with a step of the reference loop; for the fake and for a real one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from cotune.engines.tinker.run import rows_of, server_loss, token_terms
from cotune.engines.tinker.server_policy import Adapter, TinkerSampler
from cotune.methods.context_distillation import Floats, ratio_metrics
from cotune.policy.codec import HFCodec
from cotune.types import (
    Assignment,
    Distillation,
    Prompt,
    SampleRequest,
    Sampling,
    StopReason,
    Task,
    Trajectory,
)
from tests.reference_loop import completion_logprobs, policy_loss

RATE = 1e-3
GROUP = 4


def rollouts(adapter: Adapter, codec: HFCodec) -> list[Trajectory]:
    """Four groups, the last two sampled under a hint; the last without a difference in reward."""
    render = lambda text: tuple(codec.render([{"role": "user", "content": text}]))  # noqa: E731
    questions = [f"{a}bc?" for a in "abcd"]
    requests = []
    for row in range(4 * GROUP):
        hint = "fade " if row >= 2 * GROUP else ""
        context = render(hint + questions[row // GROUP])
        requests.append(SampleRequest(row, context, 3 + row % 7))
    samples = TinkerSampler(adapter, codec).open(Sampling(seed=11)).generate(requests)
    trajectories: list[Trajectory] = []
    for row, (request, sample) in enumerate(zip(requests, samples, strict=True)):
        group = row // GROUP
        plain = Prompt("i")
        assignment = Assignment(
            Task(str(group), "q", ("a",)),
            Prompt("i", "h") if group > 1 else plain,
            plain,
            "i0",
            group,
        )
        # Two tokens of an observation, and the EOS that an episode adds.
        ids = (*sample.ids, 5, 6, codec.eos_id)
        mask = (*(1 for _ in sample.ids), 0, 0, 0)
        reward = 1.0 if group == 3 else float(sum(token % 3 == 0 for token in sample.ids))
        trajectories.append(
            Trajectory(
                assignment, request.context_ids, render(questions[group]), ids, mask,
                (*sample.logprobs, 0.0, 0.0, 0.0), (), StopReason.ANSWERED, reward=reward,
            )
        )  # fmt: skip
    # Its environment broke: nothing of it is trained on.
    trajectories[1] = replace(trajectories[1], stop=StopReason.ENVIRONMENT_ERROR)
    return trajectories


def loaded(policy: str, folder: Path) -> Any:
    base = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    return PeftModel.from_pretrained(base, str(folder), is_trainable=True).eval()


def trained(model: Any) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}


def check_update(
    adapter: Adapter, policy: str, folder: Path, ratio: Any, reduction: Any
) -> dict[str, float]:
    """Check that an update on a server moves every weight as a step of the reference loop does, to 1e-5."""
    adapter.export("first", folder / "first", policy)
    batch = rollouts(adapter, HFCodec(AutoTokenizer.from_pretrained(policy)))
    distillation = Distillation(ratio=ratio, low=0.9, high=1.1)
    ratios: list[tuple[Floats, Floats]] = []
    terms = token_terms(batch, GROUP, distillation, adapter.forward, ratios)
    data = rows_of(batch, terms, range(len(batch)), "grpo", reduction, multiple=8)
    reported = adapter.update(data, *server_loss("grpo", 0.2), RATE)
    adapter.export("second", folder / "second", policy)
    assert reported["drift"] < 1e-5

    model: Any = loaded(policy, folder / "first")
    initial = trained(model)
    # The server's sampler is the trainer itself, so both ratios begin at 1.
    policy_loss(model, batch, GROUP, 0.2, 1.0, distillation).backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    torch.optim.AdamW(parameters, lr=RATE, weight_decay=0.0).step()
    expected, exported = trained(model), trained(loaded(policy, folder / "second"))
    assert max((expected[n] - initial[n]).abs().max() for n in expected) > 0.5 * RATE
    for name, weights in expected.items():
        assert torch.allclose(weights, exported[name], rtol=0, atol=1e-5), name
    return ratio_metrics(ratios)


def check_log_probabilities(adapter: Adapter, policy: str, folder: Path) -> None:
    """Check that sampler, forward pass and the exported adapter, loaded by PEFT, agree to 1e-5."""
    adapter.export("first", folder / "first", policy)
    batch = rollouts(adapter, HFCodec(AutoTokenizer.from_pretrained(policy)))[: 2 * GROUP]
    forward = adapter.forward([(t.prompt_ids, t.completion_ids) for t in batch])
    with torch.no_grad():
        peft = completion_logprobs(loaded(policy, folder / "first"), batch)[0].numpy()
    for row, t in enumerate(batch):
        assert np.allclose(forward[row], peft[row, : len(t.mask)], atol=1e-5)
        sampled = np.array(t.mask) == 1
        assert np.allclose(forward[row][sampled], np.array(t.logprobs)[sampled], atol=1e-5)
