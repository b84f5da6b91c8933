"""A run on TRL as `TRLBest` sees it."""

from contextlib import AbstractContextManager
from typing import Protocol

from transformers import PreTrainedModel, Trainer

from cotune.engines.evaluation import Evaluated


class Trained(Evaluated, Protocol):
    """A run on TRL: `TRLJoint`, or `TRLSft`."""

    @property
    def bound(self) -> bool:
        """Return whether there is a trainer."""
        ...

    @property
    def trainer(self) -> Trainer: ...

    @property
    def unwrapped(self) -> PreTrainedModel:
        """The current policy as it lies in this process: under FSDP2 its weights are shards."""
        ...

    def policy(self) -> AbstractContextManager[PreTrainedModel]:
        """The current policy, unwrapped, whole and in evaluation mode."""
        ...

    def weights_replaced(self) -> None:
        """To be called where weights came into the policy beside the trainer."""
        ...
