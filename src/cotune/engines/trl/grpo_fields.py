"""The fields of GRPOConfig that cotune refuses; every other one is passed on to TRL.

Refused is what would change the gradient or the order of tasks without a word, or break a resume.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "luspo", "cispo", "sapo", "vespo")
"""TRL's loss types."""

_NOT_THE_POLICYS = "log-probabilities would not be the policy's"
_OFF = (False, None)


class Refused(NamedTuple):
    """Why a field raises an error when the joint run is made, unless its value has no effect.

    Attributes:
        why: the reason.
        allowed: the values that are not refused; the first is the one to set.
        instead: what to do, if that is more than to set the first allowed value.
    """

    why: str
    allowed: tuple[Any, ...]
    instead: str = ""

    def fix(self, name: str) -> str:
        return self.instead or f"set {name}={self.allowed[0]!r}"


REFUSED: Mapping[str, Refused] = {
    # Sampling.
    "top_p": Refused(_NOT_THE_POLICYS, (1.0,)),
    "top_k": Refused(_NOT_THE_POLICYS, (0, None)),
    "min_p": Refused(_NOT_THE_POLICYS, (None,)),
    "repetition_penalty": Refused(_NOT_THE_POLICYS, (1.0,)),
    "vllm_structured_outputs_regex": Refused(_NOT_THE_POLICYS, (None,)),
    "generation_kwargs": Refused("cotune does its own sampling and would not apply it", (None, {})),
    # The loss.
    "reward_weights": Refused(
        "TRL sees one reward function, the environment's score", (None, [1.0])
    ),
    "sync_ref_model": Refused("a resumed run would use the initial reference", _OFF),
    "neftune_noise_alpha": Refused(
        "the policy would be trained with noise that it was not sampled with", (None,)
    ),
    # The order of tasks.
    "shuffle_dataset": Refused("cotune orders the tasks itself", _OFF),
    "ignore_data_skip": Refused("a resumed run would begin with the first task again", _OFF),
    "auto_find_batch_size": Refused(
        "a smaller batch would split groups",
        _OFF,
        "set auto_find_batch_size=False and lower per_device_train_batch_size",
    ),
    "parallelism_config": Refused("ranks sample on their own from whole weights", (None,)),
    # Saving.
    "save_only_model": Refused("without its optimizer a run cannot be resumed", _OFF),
    "save_on_each_node": Refused(
        "cotune's half of a checkpoint is written once, on rank 0, for all to read",
        _OFF,
        "set save_on_each_node=False and give output_dir on a file system that all nodes share",
    ),
    "push_to_hub": Refused(
        "it uploads output_dir with the run folder in it: questions, rollouts and costs",
        _OFF,
        "set push_to_hub=False and push the trained model afterwards",
    ),
}
