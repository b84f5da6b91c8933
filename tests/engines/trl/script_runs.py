"""Methods on a tiny policy, through a `JointTrainer` that the test makes as a script does."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.trainer_callback import PrinterCallback

import cotune
from cotune.config.joint_method import JointMethod
from cotune.engines.trl.trl_joint import TRLJoint
from cotune.types import Completion, Trajectory
from cotune.worlds.rules_llm import is_gepa_prompt
from tests.engines.trl.kills import numbers
from tests.engines.trl.setup import config
from tests.policy.tiny import Letters, tiny_model, tiny_tokenizer

LIMITS = cotune.Limits(
    turns=3, turn_tokens=8, observation_tokens=6, trajectory_tokens=40, prompt_tokens=400
)
INSPO: dict[str, Any] = {
    "population_size": 3, "evolve_every": 3, "evolve_until": 5, "prune_every": 2,
    "verification_tasks": 2, "verification_rounds": 1,
}  # fmt: skip
P2O: dict[str, Any] = {
    "hints": cotune.HintOptions(hard_set_min_count=2, dev_size=2, budget=24, beam=2),
    "distillation": cotune.Distillation(ratio="masked_signed"),
}
# Two questions a batch of six: an epoch is three steps, so hints come before the fourth.
STEPS = 6


class Even(Letters):
    """Solved is what is of even length, but every other question takes a hint, and hints help."""

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        text, hint = trajectory.own_text, trajectory.assignment.sampled.hint
        hopeless = int(trajectory.task.id[-1]) % 2 == 1
        if hint:  # an untrained policy writes much the same under any hint
            solved = (len(text) + hint.count("a")) % 4 != 0
        else:
            solved = len(text) % 2 == 0 and not hopeless
        return float(solved), text[-1:] or None


@dataclass
class Scribe:
    """An LLM that writes words of the policy's alphabet, other ones for every prompt."""

    prompts: list[str] = field(default_factory=list[str])

    def complete(self, prompt: str) -> Completion:
        self.prompts.append(prompt)
        rng = random.Random(prompt)
        texts = [" ".join(_word(rng) for _ in range(6)) for _ in range(6)]
        if is_gepa_prompt(prompt):
            return Completion(f"```\n{texts[0]}\n```", prompt_tokens=5, completion_tokens=3)
        reply = "\n".join(f"<ins_{i}>{text} </ins_{i}>" for i, text in enumerate(texts, 1))
        return Completion(reply, prompt_tokens=7, completion_tokens=4)


def _word(rng: random.Random) -> str:
    return "".join(rng.choices("abcdef", k=3))


METHODS = ("static", "inspo", "p2o")


def method_of(name: str, **changes: Any) -> JointMethod:
    if name == "static":
        return cotune.Static(**changes)
    options: dict[str, Any] = {"llm": Scribe(), **changes}
    if name == "inspo":
        return cotune.INSPO(**{**INSPO, **options})
    return cotune.P2O(**{**P2O, **options})


@dataclass
class ScriptTraining:
    """A trainer as a user makes it, and what it left behind."""

    trainer: cotune.JointTrainer
    logged: list[str] = field(default_factory=list[str])

    @property
    def joint(self) -> TRLJoint:
        return self.trainer.joint

    @property
    def strategy(self) -> Any:
        return self.joint.coordinator.strategy

    @property
    def checkpoints(self) -> Path:
        return self.joint.state_folder

    @property
    def run(self) -> cotune.RunDir:
        return cotune.open_run(self.trainer.run_folder)

    def spent(self) -> dict[str, int]:
        return dict(self.run.totals().rollouts)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.run.read_events() if row["kind"] == kind]


def begin(
    folder: Path,
    name: str = "static",
    method: JointMethod | None = None,
    evaluates: bool = False,
    trainer_arguments: dict[str, Any] | None = None,
    **changes: Any,
) -> ScriptTraining:
    """A trainer that is ready to train; the same arguments give the same run.

    Args:
        trainer_arguments: replace arguments of the trainer.
    """
    tokenizer = tiny_tokenizer()
    evaluating = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 6}
    values = {"max_steps": STEPS, "seed": 1, **(evaluating if evaluates else {}), **changes}
    arguments: dict[str, Any] = {
        "args": config(folder, **values),
        "processing_class": tokenizer,
        "method": method or method_of(name),
        "environment": Even(),
        "limits": LIMITS,
        **(trainer_arguments or {}),
    }
    # With this seed of the weights, hints come out of the first phase.
    trainer = cotune.JointTrainer(tiny_model(tokenizer, seed=3), **arguments)
    trainer.remove_callback(PrinterCallback)
    return ScriptTraining(trainer)


def figures(training: ScriptTraining) -> list[dict[str, Any]]:
    """What another run of the same has to equal, step by step."""
    return numbers(training.run)
