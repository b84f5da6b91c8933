"""Methods of the library on a tiny policy, through a trainer that the test makes itself."""

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

import cotune
from cotune.engines.trl.library_api import TrainerMethod
from cotune.engines.trl.trl_joint import TRLJoint
from cotune.types import Completion, Trajectory
from cotune.worlds.rules_llm import is_gepa_prompt
from tests.engines.trl.setup import Remembered, config
from tests.helpers import WAITING
from tests.policy.tiny import Letters, tiny_model, tiny_tokenizer

LIMITS = cotune.Limits(
    turns=3, turn_tokens=8, observation_tokens=6, trajectory_tokens=40, prompt_tokens=400
)
INSPO = cotune.InspoOptions(
    population_size=3, evolve_every=3, evolve_until=5, prune_every=2, verification_tasks=2,
    verification_rounds=1,
)  # fmt: skip
P2O = cotune.P2OOptions(
    hints=cotune.HintOptions(hard_set_min_count=2, dev_size=2, budget=24, beam=2),
    distillation=cotune.Distillation(ratio="masked_signed"),
)
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

    asked: list[str] = field(default_factory=list[str])

    def complete(self, prompt: str) -> Completion:
        self.asked.append(prompt)
        rng = random.Random(prompt)
        texts = [" ".join(_word(rng) for _ in range(6)) for _ in range(6)]
        if is_gepa_prompt(prompt):
            return Completion(f"```\n{texts[0]}\n```", prompt_tokens=5, completion_tokens=3)
        written = "\n".join(f"<ins_{i}>{text} </ins_{i}>" for i, text in enumerate(texts, 1))
        return Completion(written, prompt_tokens=7, completion_tokens=4)


def _word(rng: random.Random) -> str:
    return "".join(rng.choices("abcdef", k=3))


METHODS = ("static", "inspo", "p2o", "inspo+p2o")


def method_of(name: str, **changes: Any) -> TrainerMethod[Any]:
    given: dict[str, Any] = {"environment": Even(), "limits": LIMITS, "seed": 1, **changes}
    if name == "static":
        return cotune.Static(**given)
    given = {"llm": Scribe(), **given}
    if name == "inspo":
        return cotune.INSPO(**{"options": INSPO, **given})
    if name == "p2o":
        return cotune.P2O(**{"options": P2O, **given})
    return cotune.INSPOWithP2O(inspo=INSPO, p2o=P2O, **given)


@dataclass
class LibraryTraining:
    """A trainer as a user makes it, and what it left behind."""

    joint: TRLJoint
    trainer: GRPOTrainer
    args: GRPOConfig

    @property
    def strategy(self) -> Any:
        return self.joint.coordinator.strategy

    def state(self) -> dict[str, Any]:
        """The strategy's, as it is saved."""
        return json.loads(json.dumps(self.strategy.state_dict()))

    @property
    def folder(self) -> Path:
        return Path(str(self.args.output_dir)) / "cotune"

    @property
    def run(self) -> cotune.RunReader:
        return cotune.open_run(self.folder)

    def spent(self) -> dict[str, int]:
        record = cotune.open_run(self.folder)
        return dict(record.totals().rollouts)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.run.read_events() if row["kind"] == kind]


def begin(
    folder: Path,
    name: str = "static",
    trainer_class: type[GRPOTrainer] | None = None,
    method: TrainerMethod[Any] | None = None,
    trainer_arguments: dict[str, Any] | None = None,
    evaluates: bool = False,
    remembers: bool = False,
    **changes: Any,
) -> LibraryTraining:
    """A trainer that is ready to train; the same arguments give the same run.

    Args:
        remembers: take what another run has sampled with the same weights from memory.
    """
    tokenizer = tiny_tokenizer()
    evaluating = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 6}
    args = config(folder, **{"max_steps": STEPS, **(evaluating if evaluates else {}), **changes})
    joint = (method or method_of(name)).for_trl(tokenizer, args)
    if remembers:
        joint.coordinator.sampler = Remembered(joint)
    if trainer_class is None:
        trainer_class = cotune.JointTrainer if "p2o" in name else GRPOTrainer
    trainer = trainer_class(
        tiny_model(tokenizer, seed=3),  # with which hints are found in the first phase
        args=args,
        processing_class=tokenizer,
        train_dataset=joint.dataset,
        eval_dataset=joint.eval_dataset("validation") if evaluates else None,
        rollout_func=joint.rollout_func,
        reward_funcs=joint.reward_funcs,
        callbacks=joint.callbacks,
        **(trainer_arguments or {}),
    )
    trainer.remove_callback(PrinterCallback)
    return LibraryTraining(joint, trainer, args)


TIMES = {"time", "attempt", "step_time", *WAITING}


def figures(training: LibraryTraining) -> list[dict[str, Any]]:
    """What another run of the same has to equal, step by step."""
    rows = training.run.read_metrics()
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]
