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
FIELDS = ("prompts", "responses", "loss_mask", "advantages", "old_log_probs", "ref_log_prob")


def spread(completions: list[Any], **_: Any) -> list[float]:
    """A reward that differs between texts."""
    return [sum(str(completion).encode()) % 7 / 6 for completion in completions]


def _noted(*arguments: Any) -> Any:
    import transfer_queue as tq

    from cotune.engines.verl.trainer import JointTrainer

    update = JointTrainer._update_actor

    def noted(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS)
        )
        rows = [{n: data[n][i].tolist() for n in FIELDS} for i in range(len(batch.keys))]
        with Path(os.environ[NOTES]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows) + "\n")
        return update(self, batch, metrics)

    JointTrainer._update_actor = noted  # type: ignore[method-assign]
    return _fit(*arguments)


if NOTES in os.environ:
    _fit = run._fit
    run._fit = _noted
