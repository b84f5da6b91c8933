"""The teacher of a run on TRL: the live policy, its average over steps, or the initial policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import is_peft_model
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from cotune.errors import ConfigError
from cotune.methods.teacher_kl import TeacherDistillation
from cotune.policy.prompt_cache import prompt_cache
from cotune.types import KLDistillation

FILE = "teacher.safetensors"
"""The averaged weights, in the trainer's half of a checkpoint."""


class Teacher:
    """Provide the weights that read rollouts under the teacher's prompt.

    Args:
        settings: which weights they are.
        policy: the initial policy, before a checkpoint is loaded into it. It is copied for "ema" and
            "base"; a policy with an adapter is its own base without it.
    """

    def __init__(self, settings: TeacherDistillation, policy: PreTrainedModel) -> None:
        kind = settings.teacher if isinstance(settings, KLDistillation) else "live"
        self._without_adapter = kind == "base" and is_peft_model(policy)
        copies = kind == "ema" or (kind == "base" and not self._without_adapter)
        self._copy = _copied(policy) if copies else None
        if self._copy is not None and kind == "ema" and not is_peft_model(policy):
            self._copy.float()  # bfloat16 would round most of an average's small steps away
        self._names = [name for name, weight in policy.named_parameters() if weight.requires_grad]
        self._keep = settings.ema_decay if isinstance(settings, KLDistillation) else 0.0
        self._averages = kind == "ema"

    def follow(self, policy: PreTrainedModel) -> None:
        """Move an average towards the policy: θ' ← d θ' + (1 − d) θ. Call once before each batch."""
        if not self._averages:
            return
        averages, weights = self._averaged(), dict(policy.named_parameters())
        with torch.no_grad():
            for name, average in averages.items():
                average.lerp_(weights[name].to(average.dtype), 1 - self._keep)

    @contextmanager
    def reading(self, policy: PreTrainedModel) -> Iterator[PreTrainedModel]:
        """Yield the teacher, given the current policy in evaluation mode."""
        if self._copy is not None:
            yield self._copy
        elif self._without_adapter:
            with cast(Any, policy).disable_adapter():
                yield policy
        else:
            yield policy

    def save(self, folder: Path) -> None:
        """Write an average into a checkpoint; other teachers follow from the policy."""
        if self._averages:
            folder.mkdir(parents=True, exist_ok=True)
            save_file(
                {name: one.contiguous() for name, one in self._averaged().items()}, folder / FILE
            )

    def load(self, folder: Path) -> None:
        """Load the average that `save` wrote.

        Raises:
            ConfigError: the checkpoint has none.
        """
        if not self._averages:
            return
        if not (folder / FILE).is_file():
            raise ConfigError(f"{folder}: has no {FILE}, which distillation.teacher 'ema' needs")
        saved = load_file(folder / FILE)
        with torch.no_grad():
            for name, average in self._averaged().items():
                average.copy_(saved[name])

    def _averaged(self) -> dict[str, torch.Tensor]:
        """Return the averages of the weights that are trained, by name: with an adapter only its own."""
        assert self._copy is not None
        copies = dict(self._copy.named_parameters())
        return {name: copies[name] for name in self._names}


def _copied(policy: PreTrainedModel) -> PreTrainedModel:
    """Return a frozen copy in evaluation mode."""
    copied = deepcopy(policy).requires_grad_(False).eval()
    for model in (copied, cast(Any, copied).get_base_model() if is_peft_model(copied) else copied):
        # TRL's patched `forward` is bound to the policy, also in a copy.
        model.__dict__.pop("forward", None)
    return copied


def completion_logits(
    model: Any, batch: dict[str, Any], temperature: float, shared: bool
) -> torch.Tensor:
    """Return logits at every completion token, divided by the temperature, (B, C, V).

    Args:
        batch: prompt_ids and prompt_mask (B, P), completion_ids and completion_mask (B, C).
        shared: feed each distinct prompt once; the model must be able to (`can_share`).
    """
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    # A prompt's last token predicts the first of the completion, so it is fed with the completion.
    start = batch["prompt_ids"].shape[1] - 1 if shared else 0
    logits = model(
        input_ids=ids[:, start:-1],
        attention_mask=mask[:, :-1],
        past_key_values=prompt_cache(model, ids[:, :start], mask[:, :start]),
        use_cache=False,
        logits_to_keep=batch["completion_ids"].shape[1],
    ).logits
    return logits.float() / temperature
