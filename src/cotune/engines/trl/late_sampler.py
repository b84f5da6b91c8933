"""The sampler of a run whose trainer is not made yet."""

from typing import TYPE_CHECKING, Any, cast

from transformers import PreTrainedTokenizerBase
from trl import GRPOTrainer

from cotune.engines.trl.vllm_sampler import VLLMSampler
from cotune.policy.sampling import policy_sampler
from cotune.protocols import Sampler

if TYPE_CHECKING:
    from cotune.engines.trl.hooks import TRLJoint


class LateSampler:
    """Samples from the bound trainer's policy or its vLLM; picked when the trainer is known."""

    def __init__(self, joint: "TRLJoint", tokenizer: PreTrainedTokenizerBase) -> None:
        self._joint, self._tokenizer = joint, tokenizer
        self._sampler: Sampler | None = None
        self._trainer: GRPOTrainer | None = None

    def open(self, sampling: Any) -> Any:
        trainer = self._joint.trainer
        if self._sampler is None or self._trainer is not trainer:
            self._sampler, self._trainer = self._pick(self._joint), trainer
        return self._sampler.open(sampling)

    def _pick(self, joint: "TRLJoint") -> Sampler:
        if joint.trainer.use_vllm:
            coordinator = joint.coordinator
            context = coordinator.settings.context_tokens
            return VLLMSampler(joint.trainer, joint.codec, coordinator.comm, context)
        return policy_sampler(joint.policy, joint.codec, cast(Any, self._tokenizer))
