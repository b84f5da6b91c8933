"""The best policy of a run on TRL."""

from pathlib import Path
from typing import TYPE_CHECKING

from cotune.engines.best_policy import BestPolicy
from cotune.engines.trl.sharding import restore_weights
from cotune.policy.adapters import save_weights

if TYPE_CHECKING:
    from cotune.engines.trl.trained import Trained


class TRLBest(BestPolicy):
    """As `BestPolicy`, of weights that the trainer's processes hold, whole or in shards."""

    def write_weights(self, joint: "Trained", folder: Path, step: int) -> None:
        save_weights(joint.unwrapped, folder, joint.coordinator.gather_here())

    def load_weights(self, joint: "Trained", step: int) -> None:
        restore_weights(joint.unwrapped, self._folder)
        joint.weights_replaced()
