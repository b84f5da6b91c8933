"""What veRL's trainer updates the policy on, for tests of the update itself.

Imported in each of veRL's processes by `VERL_USE_EXTERNAL_MODULES`.
"""

import json
import os
from pathlib import Path
from typing import Any

from cotune.engines.verl import run

NOTES = "NOTED_UPDATES"
"""An environment variable: the file that gets a line of rows before each update."""
FIELDS = {
    "prompt_ids": "prompts",
    "completion_ids": "responses",
    "trained_mask": "loss_mask",
    "advantages": "advantages",
    "old": "old_log_probs",
    "reference": "ref_log_prob",
}
"""The values of a row, the first three by the names that a rollout has, and veRL's names for them."""


def spread(completions: list[Any], **_: Any) -> list[float]:
    """A reward that differs between texts."""
    return [sum(str(completion).encode()) % 7 / 6 for completion in completions]


def _fit_noting_updates(*arguments: Any) -> Any:
    import transfer_queue as tq

    from cotune.engines.verl.trainer import JointTrainer

    update = JointTrainer._update_actor

    def note_update(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS.values())
        )
        places = range(len(batch.keys))
        rows = [{name: data[f][i].tolist() for name, f in FIELDS.items()} for i in places]
        with Path(os.environ[NOTES]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows) + "\n")
        return update(self, batch, metrics)

    JointTrainer._update_actor = note_update  # type: ignore[method-assign]
    return _fit(*arguments)


if NOTES in os.environ:
    _fit = run._fit
    run._fit = _fit_noting_updates
