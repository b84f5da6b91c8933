"""What the evaluation of a run and the keeping of its best policy ask of a run that trains."""

from contextlib import AbstractContextManager
from typing import Protocol

from transformers import PreTrainedModel, Trainer

from cotune.contracts import Environment, Rewards
from cotune.coordinator import Coordinator, Journal


class TrainedParts(Protocol):
    """What of a run's parts is asked for."""

    @property
    def environment(self) -> Environment: ...

    @property
    def journal(self) -> Journal: ...

    @property
    def rewards(self) -> Rewards | None: ...


class Trained(Protocol):
    """A run on TRL: `TRLJoint`, or `TRLSft`."""

    @property
    def parts(self) -> TrainedParts: ...

    @property
    def coordinator(self) -> Coordinator: ...

    @property
    def batches(self) -> int:
        """Steps trained so far."""
        ...

    @property
    def bound(self) -> bool:
        """Whether there is a trainer."""
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

    def begin_closing(self) -> None:
        """What follows counts under the step after the last: a resume drops it and does it anew."""
        ...
