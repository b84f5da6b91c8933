"""What the tests of this engine share: tiny policies as folders, and run files on the fake server."""

import random
from pathlib import Path
from typing import Any

from cotune.config.run_file import parse_config
from cotune.engines.preflight import Preflight
from cotune.engines.tinker.server_policy import Adapter
from cotune.engines.tinker.service import Service, TinkerArguments
from cotune.run.run_dir import RunDir
from cotune.types import Completion, Trajectory
from tests.engines.tinker.fake_server import FakeServer
from tests.policy.tiny import Letters, tiny_model, tiny_tokenizer
from tests.run_files import tiny

LETTERS = {
    "environment": "tests.policy.tiny:Letters",
    "limits": {
        "turns": 3, "turn_tokens": 8, "observation_tokens": 6, "trajectory_tokens": 40, "prompt_tokens": 64,
    },
}  # fmt: skip


def letters_policy(folder: Path) -> str:
    """The folder of an untrained policy of the tests' letters."""
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(folder)
    tiny_model(tokenizer).save_pretrained(folder)
    return str(folder)


def run_file(output: Path, policy: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """A tiny run file of this engine; a section of `changes` is merged into the section."""
    changes = dict(changes or {})
    changes["policy"] = {"path": policy, "lora": {"rank": 4}, **changes.get("policy", {})}
    changes["training"] = {"engine": "tinker", **changes.get("training", {})}
    return tiny(output, changes)


def adapter_of(server: FakeServer) -> Adapter:
    """A new adapter on a server that is installed."""
    service = Service(TinkerArguments(base_url="http://server"), server.model)
    return Adapter(service, 4, seed=3)


def preflight(raw: dict[str, Any]) -> Preflight:
    """The preflight of a run file."""
    return Preflight(parse_config(raw, "run.yaml"))


class Hints(Letters):
    """Letters that are solved under a hint alone, by an "a"; so every question is hard, and hints help."""

    def score(self, trajectory: Trajectory) -> tuple[float, str | None]:
        share, answer = super().score(trajectory)
        hinted = trajectory.assignment.sampled.hint
        return float(share > 0) if hinted else share / 2, answer


class Proposer:
    """An optimizer LLM that writes texts in the letters that the policy knows, as every method asks for them."""

    def __init__(self) -> None:
        self.calls = 0

    def complete(self, prompt: str) -> Completion:
        self.calls += 1
        letters = random.Random(self.calls)
        text = " ".join("".join(letters.choices("abcdef", k=5)) for _ in range(4))
        if "<ins_0>" in prompt:
            return Completion(f"It wandered.\n<ins_1>\n{text}\n</ins_1>\n", 7, 5)
        return Completion(f"```\n{text}\n```", 7, 5)


INSPO = {
    "kind": "inspo", "population_size": 3, "prune_every": 2, "evolve_every": 2,
    "verification_tasks": 2, "verification_rounds": 1,
}  # fmt: skip
P2O = {
    "kind": "p2o", "distillation": {"ratio": "masked_signed"},
    "hints": {"hard_set_min_count": 2, "dev_size": 2, "budget": 24, "beam": 2},
}  # fmt: skip
FST = {"kind": "fst", "prompts": 2, "evolve_every": 2, "budget": 12, "dev_size": 2}
TRAINING = {
    "steps": 4, "questions_per_step": 3, "group_size": 4, "micro_batch_size": 1, "save_every": 2,
    "learning_rate": 1e-2, "engine_args": {"base_url": "http://server"},
}  # fmt: skip


def letters(output: Path, policy: str, strategy: dict[str, Any], **training: Any) -> dict[str, Any]:
    llm = {} if strategy["kind"] == "static" else {"llm": "tests.engines.tinker.setup:Proposer"}
    hints = "hints" in strategy
    world = {"environment": "tests.engines.tinker.setup:Hints"} if hints else {}
    sections = {**LETTERS, **world, **llm, "strategy": strategy, "evaluation": {"every": 2}}
    return run_file(output, policy, {**sections, "training": {**TRAINING, **training}})


def lines(run: RunDir) -> dict[str, Any]:
    """What a run did, without times, attempts and addresses."""
    timed = ("time", "attempt", "seconds")
    without = lambda row: {k: v for k, v in row.items() if k not in timed}  # noqa: E731
    files = run.trajectory_files()
    return {
        "rollouts": {str(file): list(map(without, run.read_trajectories(*file))) for file in files},
        "metrics": [without(row) for row in run.read_metrics()],
        "evaluated": [without(e) for e in run.read_events() if e["kind"] == "evaluated"],
        "instructions": [without(row) for row in run.read_instructions()],
        "adapter": (run.best_path / "adapter_model.safetensors").read_bytes(),
        "best": (run.best_path / "best.json").read_text(),
    }
