"""TRL behind `Driver`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from cotune.policy.codec import HFCodec
from cotune.policy.policy_files import policy_path
from tests.engines.contract.loop_driver import build_parts
from tests.engines.contract.recording import Recording, Row, update_row, watch
from tests.engines.contract.script import POLICY, Script
from tests.engines.trl.setup import start


@dataclass(frozen=True)
class TRLDriver:
    """TRL's GRPOTrainer."""

    folder: Path
    policy: str = POLICY

    def run(self, script: Script) -> Recording:
        path = policy_path(self.policy)
        tokenizer = AutoTokenizer.from_pretrained(path)
        codec, lines = HFCodec(tokenizer), self.folder / "trl.jsonl"
        environment, strategy = build_parts(script, codec)
        watch(strategy, lines)
        run = start(
            self.folder,
            strategy,
            environment,
            (AutoModelForCausalLM.from_pretrained(path), tokenizer),
            script.limits,
            llm=script.optimizer(),
            seed=script.seed,
            max_steps=script.steps,
            num_generations=script.group_size,
            per_device_train_batch_size=script.questions * script.group_size,
            max_completion_length=script.limits.trajectory_tokens,
            learning_rate=script.learning_rate,
        )
        run.joint.coordinator.sampler = script.sampler(codec)
        outputs = run.outputs()
        run.trainer.train()
        return Recording.read(lines, [_trl_rows(output) for output in outputs])


def _trl_rows(output: dict[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for i, advantage in enumerate(output["advantages"]):
        unpadded = output["completion_mask"][i] == 1
        prompt = output["prompt_ids"][i][output["prompt_mask"][i] == 1]
        by_token = advantage.expand(len(unpadded))[unpadded]
        rows.append(
            update_row(
                prompt.tolist(),
                output["completion_ids"][i][unpadded].tolist(),
                output["tool_mask"][i][unpadded].tolist(),
                by_token.tolist(),
            )
        )
    return rows
