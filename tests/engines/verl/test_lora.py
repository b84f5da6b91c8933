"""`policy.lora` on veRL: sampled, trained, saved, resumed and kept as whole weights are."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from cotune.engines.verl.checkpoints import adapter_weights
from cotune.export.export import export
from cotune.policy.adapters import write_adapter
from cotune.policy.local_policy import load
from cotune.policy.policy_files import LoraOptions, policy_path
from tests.engines.verl import noted
from tests.engines.verl.cpu.settings import environment
from tests.engines.verl.runs import GEO, cotune, events, kill_once, run_file, start
from tests.reference_loop import completion_logprobs, grpo_loss

RATE = 0.02
OPTIONS = LoraOptions(rank=4, alpha=8)
BASE = policy_path("bundled:geo")
ADAPTED = GEO | {
    "policy": {"path": "bundled:geo", "lora": OPTIONS.model_dump()},
    "rewards": [f"{noted.__name__}:spread"],
    "training": {"questions_per_step": 4, "group_size": 4, "micro_batch_size": 8},
}
Update = list[dict[str, Any]]


def begin(folder: Path, **changes: Any) -> tuple[Path, dict[str, str]]:
    """A run file, and the variables with which its updates are noted in `folder`/notes.jsonl."""
    path = run_file(folder, ADAPTED, kl=0.1, learning_rate=RATE, **changes)
    modules = f"{environment()['VERL_USE_EXTERNAL_MODULES']},{noted.__name__}"
    notes = str(folder / "notes.jsonl")
    return path, {"VERL_USE_EXTERNAL_MODULES": modules, noted.NOTES: notes}


def noted_in(folder: Path) -> list[Update]:
    """The complete lines of notes.jsonl."""
    notes = folder / "notes.jsonl"
    text = notes.read_text(encoding="utf-8") if notes.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def policy_of(checkpoint: Path, folder: Path) -> Any:
    """The policy whose adapter veRL's ranks have saved."""
    write_adapter(folder, adapter_weights(checkpoint / "actor"), OPTIONS, BASE)
    return load(folder, "float32")[0]


def scored(model: Any, update: Update) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of an update's rows by the reference loop, and their mask, (B, C)."""
    rollouts: list[Any] = [SimpleNamespace(**row) for row in update]
    return completion_logprobs(model, rollouts)


def column(update: Update, name: str) -> torch.Tensor:
    """A value of each completion token, (B, C), padded on the right with 0."""
    values = [torch.tensor(row[name], dtype=torch.float32) for row in update]
    return torch.nn.utils.rnn.pad_sequence(values, batch_first=True)


def gap(model: Any, update: Update, name: str) -> float:
    """The largest difference between veRL's log-probabilities and the reference loop's."""
    with torch.no_grad():
        expected, mask = scored(model, update)
    return float(((column(update, name) - expected) * mask).abs().max())


def test_a_killed_run_steps_as_the_reference_loop(tmp_path: Path) -> None:
    """On two ranks, which share the adapter and Adam's moments: it goes on with both."""
    seeded = {"actor_rollout_ref.rollout.full_determinism": True}
    path, variables = begin(
        tmp_path, steps=3, save_every=1, keep_checkpoints=3, ranks=2, engine_args=seeded
    )
    run = tmp_path / "run"
    checkpoints = run / "checkpoints"
    kill_once(start("train", path, variables=variables), lambda: len(noted_in(tmp_path)) > 2)
    for newer in (2, 3):  # as if it had been killed before they were saved
        shutil.rmtree(checkpoints / f"global_step_{newer}", ignore_errors=True)
    cotune("resume", run, variables=variables)
    assert [row["from_step"] for row in events(run, "resumed")] == [1]
    first, *undone, second, third = (
        sorted(update, key=lambda row: row["completion_ids"]) for update in noted_in(tmp_path)
    )
    for killed, resumed in zip(undone, (second, third), strict=True):
        assert [r["completion_ids"] for r in killed] == [r["completion_ids"] for r in resumed]
        change = column(killed, "old") - column(resumed, "old")
        assert change.abs().max() < 1e-4  # sums of rows in the order they returned

    base, _ = load(BASE, "float32")
    policy = policy_of(checkpoints / "global_step_1", tmp_path / "one")
    assert gap(base, first, "old") < 5e-5
    assert gap(policy, second, "old") < 5e-5
    assert gap(policy, third, "old") > 1e-2  # or the test shows nothing
    assert gap(base, second, "reference") < 5e-5
    assert gap(base, second, "old") > 0.1

    # B begins as 0 and is all that the first step changes.
    ups = [p for name, p in policy.named_parameters() if ".lora_B." in name]
    trained = [up.detach().clone() for up in ups]
    for up in ups:
        torch.nn.init.zeros_(up.requires_grad_())
    logprobs, mask = scored(policy, first)
    loss = grpo_loss(logprobs, logprobs.detach(), column(first, "advantages"), mask, 0.2)
    gradients = torch.cat([g.flatten() for g in torch.autograd.grad(loss, ups)])
    steps = -RATE * gradients / (gradients.abs() + 1e-8)  # AdamW's first
    clear = gradients.abs() > 1e-5
    assert clear.float().mean() > 0.5
    actual = torch.cat([up.flatten() for up in trained])
    torch.testing.assert_close(actual[clear], steps[clear], atol=RATE / 100, rtol=0)

    # What is kept is an adapter with its chat template, of the policy after the last step.
    last = policy_of(checkpoints / "global_step_3", tmp_path / "three")
    best, _ = load(run / "best", "float32")
    with torch.no_grad():
        assert torch.equal(scored(best, second)[0], scored(last, second)[0])
    assert (run / "best" / "chat_template.jinja").is_file()
    assert not list(run.glob("checkpoints/**/*.safetensors"))  # the base is nowhere

    # It is exported as it is, or as whole weights that score the same.
    for merge in (False, True):
        exported, _ = load(export(run, merge, tmp_path / f"merge-{merge}"), "float32")
        with torch.no_grad():
            torch.testing.assert_close(
                scored(exported, second)[0], scored(best, second)[0], atol=1e-4, rtol=1e-5
            )
